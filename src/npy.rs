//! `.npy` files: versions 1 to 3, C order, little-endian, every dtype of the IR.
//!
//! numpy has no bfloat16: it is written as numpy writes `ml_dtypes.bfloat16`, a two-byte void (`|V2`), and read from
//! it. Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forge_ir::{DType, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Data start on a multiple of this.
const ALIGNMENT: usize = 64;

/// Why an array could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Format { path: PathBuf, source: FormatError },
}

/// What is wrong with the bytes of an array file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    #[error("not a .npy file: it does not start with \\x93NUMPY")]
    Magic,
    #[error("version {0}.{1} of the .npy format is not supported (1.0, 2.0 and 3.0 are)")]
    Version(u8, u8),
    #[error("the file ends inside its header")]
    ShortHeader,
    #[error("header: {0}")]
    Header(String),
    #[error("element type '{0}' is not supported (bool, i1-i8, u1-u8, f2-f8 little-endian, and |V2 for bfloat16 are)")]
    DType(String),
    #[error("the array is in Fortran order; save it with numpy.ascontiguousarray")]
    FortranOrder,
    #[error("shape {shape:?} of {dtype} needs {needed} bytes, the file has {found}")]
    Size { shape: Vec<usize>, dtype: DType, needed: String, found: usize },
}

/// Reads one array.
///
/// # Errors
/// If the file cannot be read or is not an array that a [`Tensor`] holds.
pub fn read(path: &Path) -> Result<Tensor, NpyError> {
    let bytes = fs::read(path).map_err(|source| NpyError::Io { path: path.to_owned(), source })?;
    parse(&Bytes::from(bytes)).map_err(|source| NpyError::Format { path: path.to_owned(), source })
}

/// Writes one array, format version 1.0.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), NpyError> {
    fs::write(path, encode(tensor)).map_err(|source| NpyError::Io { path: path.to_owned(), source })
}

/// The tensor that the bytes of a `.npy` file hold; shares them.
///
/// # Errors
/// If they are not an array that a [`Tensor`] holds.
pub fn parse(bytes: &Bytes) -> Result<Tensor, FormatError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(FormatError::Magic)?;
    let (length, start) = match rest {
        [1, 0, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), MAGIC.len() + 4),
        [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, MAGIC.len() + 6),
        [1..=3, 0, ..] | [] | [_] => return Err(FormatError::ShortHeader),
        [major, minor, ..] => return Err(FormatError::Version(*major, *minor)),
    };
    let end = start.checked_add(length).filter(|end| *end <= bytes.len()).ok_or(FormatError::ShortHeader)?;
    let header = std::str::from_utf8(&bytes[start..end]).map_err(|_| FormatError::Header("not text".into()))?;
    let descr = string_entry(header, "descr")?;
    let dtype = dtype_of(descr).ok_or_else(|| FormatError::DType(descr.to_owned()))?;
    let shape = shape_entry(header)?;
    if entry(header, "fortran_order")?.starts_with("True") && shape.len() > 1 {
        return Err(FormatError::FortranOrder);
    }
    let data = bytes.slice(end..);
    let needed = shape.iter().try_fold(dtype.size(), |acc, d| acc.checked_mul(*d));
    let found = data.len();
    match Tensor::new(dtype, shape.clone(), data) {
        Some(tensor) => Ok(tensor),
        None => {
            let needed = needed.map_or_else(|| "more than 2^64".to_owned(), |n| n.to_string());
            Err(FormatError::Size { shape, dtype, needed, found })
        }
    }
}

/// The bytes of a `.npy` file that holds `tensor`.
#[must_use]
pub fn encode(tensor: &Tensor) -> Vec<u8> {
    let dims: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let shape = match dims.as_slice() {
        [one] => format!("({one},)"),
        _ => format!("({})", dims.join(", ")),
    };
    let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", descr_of(tensor.dtype()));
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(ALIGNMENT) - unpadded));
    header.push('\n');
    let mut out = Vec::with_capacity(MAGIC.len() + 6 + header.len() + tensor.bytes().len());
    out.extend_from_slice(MAGIC);
    match u16::try_from(header.len()) {
        Ok(length) => {
            out.extend_from_slice(&[1, 0]);
            out.extend_from_slice(&length.to_le_bytes());
        }
        // Only a tensor of thousands of axes gets here; 4 GiB of header cannot.
        Err(_) => {
            out.extend_from_slice(&[2, 0]);
            out.extend_from_slice(&(header.len() as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(tensor.bytes());
    out
}

/// numpy's name and ours, one row each.
const DESCR: [(&str, DType); 13] = [
    ("|b1", DType::Bool),
    ("|u1", DType::U8),
    ("<u2", DType::U16),
    ("<u4", DType::U32),
    ("<u8", DType::U64),
    ("|i1", DType::I8),
    ("<i2", DType::I16),
    ("<i4", DType::I32),
    ("<i8", DType::I64),
    ("<f2", DType::F16),
    ("|V2", DType::BF16),
    ("<f4", DType::F32),
    ("<f8", DType::F64),
];

fn descr_of(dtype: DType) -> &'static str {
    DESCR.iter().find(|(_, d)| *d == dtype).map_or("", |(name, _)| name)
}

fn dtype_of(descr: &str) -> Option<DType> {
    // ml_dtypes arrays are saved as `<V2` by some versions of numpy.
    let descr = if descr == "<V2" { "|V2" } else { descr };
    DESCR.iter().find(|(name, _)| *name == descr).map(|(_, d)| *d)
}

/// The text after `'key':` in the header's Python dict.
fn entry<'a>(header: &'a str, key: &str) -> Result<&'a str, FormatError> {
    for quote in ['\'', '"'] {
        if let Some((_, rest)) = header.split_once(&format!("{quote}{key}{quote}"))
            && let Some(value) = rest.trim_start().strip_prefix(':')
        {
            return Ok(value.trim_start());
        }
    }
    Err(FormatError::Header(format!("no '{key}' entry")))
}

fn string_entry<'a>(header: &'a str, key: &str) -> Result<&'a str, FormatError> {
    let value = entry(header, key)?;
    let mut parts = value.split(['\'', '"']);
    match (parts.next(), parts.next()) {
        (Some(""), Some(text)) => Ok(text),
        _ => Err(FormatError::Header(format!("'{key}' is not a string (structured types are not supported)"))),
    }
}

fn shape_entry(header: &str) -> Result<Vec<usize>, FormatError> {
    let value = entry(header, "shape")?;
    let wrong = || FormatError::Header("'shape' is not a tuple of sizes".to_owned());
    let inner = value.strip_prefix('(').and_then(|v| v.split_once(')')).ok_or_else(wrong)?.0;
    inner
        .split(',')
        .map(|dim| dim.trim().trim_end_matches('L'))
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().map_err(|_| wrong()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{FormatError, encode, parse};
    use bytes::Bytes;
    use forge_ir::{DType, Tensor};

    #[test]
    fn writes_and_reads_every_dtype_and_rank() {
        for dtype in DType::ALL {
            for shape in [vec![], vec![3], vec![2, 3], vec![0, 4], vec![1, 2, 1, 2]] {
                let count: usize = shape.iter().product();
                let data: Vec<f64> = (0..count).map(|i| i as f64 % 2.0).collect();
                let tensor = Tensor::from_f64(dtype, &shape, &data);
                let bytes = encode(&tensor);
                let header = bytes.len() - tensor.bytes().len();
                assert_eq!(header % 64, 0);
                assert_eq!(parse(&Bytes::from(bytes)).unwrap(), tensor);
            }
        }
    }

    #[test]
    fn reads_what_numpy_writes() {
        // numpy.save of numpy.array([[1, 2]], dtype="<i2"), version 1.0.
        let mut bytes = b"\x93NUMPY\x01\x00v\x00{'descr': '<i2', 'fortran_order': False, 'shape': (1, 2), }".to_vec();
        bytes.resize(127, b' ');
        bytes.push(b'\n');
        bytes.extend_from_slice(&[1, 0, 2, 0]);
        assert_eq!(parse(&Bytes::from(bytes)).unwrap(), Tensor::from_slice(&[1, 2], &[1i16, 2]));
    }

    #[test]
    fn damaged_files_are_errors() {
        let whole = encode(&Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]));
        for length in 0..whole.len() {
            assert!(parse(&Bytes::copy_from_slice(&whole[..length])).is_err(), "cut at {length}");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x55;
            // Data bytes may change freely; anything else must not panic.
            let _ = parse(&Bytes::from(flipped));
        }
        let text = |header: &str| {
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(&[0; 16]);
            parse(&Bytes::from(bytes)).unwrap_err()
        };
        assert_eq!(text("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }"), FormatError::FortranOrder);
        assert_eq!(text("{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }"), FormatError::DType(">f4".into()));
        assert!(matches!(
            text("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 16), }"),
            FormatError::Size { .. }
        ));
        assert!(matches!(
            text("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }"),
            FormatError::Header(_)
        ));
    }
}
