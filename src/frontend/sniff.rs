//! What a file is, by its first bytes.

use std::fmt;

/// A kind of file that people hand to a model compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// Protobuf has no magic number: anything that is nothing else is tried as ONNX.
    MaybeOnnx,
    Empty,
    Json,
    Zip,
    Hdf5,
    Pickle,
    Gguf,
    Safetensors,
    Flatbuffer,
    LfsPointer,
    Text,
}

/// The kind of file that starts with `bytes`.
pub(super) fn file_kind(bytes: &[u8]) -> FileKind {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    let text = || {
        let head = &bytes[..bytes.len().min(256)];
        head.len() >= 8 && head.iter().all(|b| matches!(b, b'\t' | b'\n' | b'\r' | 0x20..=0x7e))
    };
    match bytes {
        [] => FileKind::Empty,
        _ if starts(b"PK\x03\x04") || starts(b"PK\x05\x06") => FileKind::Zip,
        _ if starts(b"\x89HDF\r\n\x1a\n") => FileKind::Hdf5,
        _ if starts(b"GGUF") => FileKind::Gguf,
        _ if starts(b"version https://git-lfs") => FileKind::LfsPointer,
        _ if bytes.get(4..8) == Some(b"TFL3") => FileKind::Flatbuffer,
        // Pickle protocols 2 to 5 open with PROTO, and every later opcode of a state dict is above ASCII digits.
        [0x80, 2..=5, ..] => FileKind::Pickle,
        // safetensors: eight bytes of header length, then a JSON object.
        [_, _, _, _, _, 0, 0, 0, b'{', ..] => FileKind::Safetensors,
        _ => match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{' | b'[') if text() || serde_like(bytes) => FileKind::Json,
            _ if text() => FileKind::Text,
            _ => FileKind::MaybeOnnx,
        },
    }
}

/// Short JSON: `{` or `[` to the matching bracket at the end.
fn serde_like(bytes: &[u8]) -> bool {
    let trimmed = bytes.trim_ascii();
    matches!((trimmed.first(), trimmed.last()), (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')))
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::MaybeOnnx => "an unknown binary format",
            FileKind::Empty => "an empty file",
            FileKind::Json => "JSON",
            FileKind::Zip => "a zip archive (a .pt2, .pt or .pth file, perhaps)",
            FileKind::Hdf5 => "HDF5 (a Keras model, perhaps)",
            FileKind::Pickle => "a Python pickle (an old .pt or .pth file, perhaps)",
            FileKind::Gguf => "GGUF",
            FileKind::Safetensors => "safetensors (weights without a graph)",
            FileKind::Flatbuffer => "a TensorFlow Lite model",
            FileKind::LfsPointer => "a Git LFS pointer, not the file that it points to",
            FileKind::Text => "plain text",
        })
    }
}

impl FileKind {
    /// What to do with such a file.
    #[must_use]
    pub fn help(self) -> &'static str {
        match self {
            FileKind::LfsPointer => "fetch the file itself with `git lfs pull`",
            FileKind::Empty => "the export or the download did not finish: make the file again",
            FileKind::Safetensors | FileKind::Gguf => {
                "load the weights into the PyTorch model they belong to, and export that: \
                 torch.onnx.export(model, args, \"model.onnx\", dynamo=True, opset_version=23)"
            }
            _ => {
                "export the model from PyTorch: \
                 torch.onnx.export(model, args, \"model.onnx\", dynamo=True, opset_version=23)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FileKind, file_kind};

    #[test]
    fn names_what_is_not_onnx() {
        let cases: [(&[u8], FileKind); 10] = [
            (b"", FileKind::Empty),
            (b"{\"graph\": {}}", FileKind::Json),
            (b"  []", FileKind::Json),
            (b"PK\x03\x04....", FileKind::Zip),
            (b"\x89HDF\r\n\x1a\n...", FileKind::Hdf5),
            (b"\x80\x02}q\x00.", FileKind::Pickle),
            (b"GGUF\x03\0\0\0", FileKind::Gguf),
            (b"\x10\0\0\0\0\0\0\0{\"a\"", FileKind::Safetensors),
            (b"hello, this is a readme", FileKind::Text),
            // The start of a real model: field 1 (ir_version) = 10.
            (b"\x08\x0a\x12\x07pytorch", FileKind::MaybeOnnx),
        ];
        for (bytes, kind) in cases {
            assert_eq!(file_kind(bytes), kind, "{bytes:?}");
        }
    }
}
