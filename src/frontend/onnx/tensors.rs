//! Tensor data: typed fields, raw bytes, and external files.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use forge_ir::{DType, Tensor, tensor::Element};

use super::proto::{TensorProto, data_type};
use crate::frontend::Fault;

/// More elements than this are taken for a damaged file.
const MAX_ELEMENTS: u64 = 1 << 40;

/// Reads tensors of one model; maps each external file once.
pub(super) struct TensorReader {
    directory: PathBuf,
    mapped: HashMap<String, Result<Bytes, String>>,
    structure_only: bool,
}

/// What an initialiser holds.
pub(super) struct Contents {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// `None` only in structure-only reading, when the external file is absent.
    pub(super) tensor: Option<Tensor>,
}

impl TensorReader {
    /// External data are looked up beside `model`.
    pub(super) fn new(model: &Path, structure_only: bool) -> TensorReader {
        let directory = match model.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        TensorReader { directory, mapped: HashMap::new(), structure_only }
    }

    /// The contents of `proto`; `name` is for messages.
    pub(super) fn read(&mut self, proto: &TensorProto, name: &str) -> Result<Contents, Fault> {
        let fault = |message: String, help: &str| Fault::Tensor { name: name.to_owned(), message, help: help.into() };
        let Some(dtype) = data_type::to_dtype(proto.data_type) else {
            let type_name = data_type::name(proto.data_type);
            return Err(fault(
                format!("element type {type_name} is not supported"),
                "convert the model to f32, f16 or bf16 weights before exporting it",
            ));
        };
        let mut shape = Vec::with_capacity(proto.dims.len());
        let mut count = 1u64;
        for dim in &proto.dims {
            let Ok(size) = usize::try_from(*dim) else {
                return Err(fault(format!("negative size {dim} in its shape {:?}", proto.dims), DAMAGED));
            };
            match count.checked_mul(size as u64).filter(|c| *c <= MAX_ELEMENTS) {
                Some(product) => count = product,
                None => {
                    return Err(fault(
                        format!("shape {:?} has more elements than any file can hold", proto.dims),
                        DAMAGED,
                    ));
                }
            }
            shape.push(size);
        }
        let needed = count as usize * dtype.size();
        let bytes = if proto.data_location == 1 || !proto.external_data.is_empty() {
            match self.external(proto, name, needed)? {
                Some(bytes) => bytes,
                None => return Ok(Contents { dtype, shape, tensor: None }),
            }
        } else if let Some(raw) = &proto.raw_data {
            raw.clone()
        } else {
            typed_data(proto, dtype, count as usize).map_err(|message| fault(message, DAMAGED))?
        };
        if bytes.len() != needed {
            return Err(fault(
                format!("{dtype}{shape:?} needs {needed} bytes of data, the file has {}", bytes.len()),
                DAMAGED,
            ));
        }
        // One byte, 0 or 1, is what every consumer of a bool relies on.
        let bytes = if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            bytes.iter().map(|b| u8::from(*b != 0)).collect()
        } else {
            bytes
        };
        let tensor = Tensor::new(dtype, shape.clone(), bytes);
        Ok(Contents { dtype, shape, tensor })
    }

    /// The bytes that `external_data` names: inside the model's folder, of exactly the needed length.
    fn external(&mut self, proto: &TensorProto, name: &str, needed: usize) -> Result<Option<Bytes>, Fault> {
        let fault = |message: String, help: &str| Fault::Tensor { name: name.to_owned(), message, help: help.into() };
        let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let Some(location) = entry("location").filter(|l| !l.is_empty()) else {
            return Err(fault("its data are external, but no location is given".into(), DAMAGED));
        };
        let number = |key: &str| -> Result<Option<usize>, Fault> {
            let Some(text) = entry(key) else { return Ok(None) };
            let parsed =
                text.parse().map_err(|_| fault(format!("external data: {key} '{text}' is no number"), DAMAGED));
            parsed.map(Some)
        };
        let offset = number("offset")?.unwrap_or(0);
        let length = number("length")?.filter(|l| *l != 0 || needed == 0).unwrap_or(needed);
        if length != needed {
            return Err(fault(
                format!("its type needs {needed} bytes, but its external data entry says length {length}"),
                DAMAGED,
            ));
        }
        if !self.mapped.contains_key(location) {
            let mapped = match self.map(location) {
                Ok(bytes) => Ok(bytes),
                Err(ExternalError::Absent(_)) if self.structure_only => return Ok(None),
                Err(error) => Err(error.to_string()),
            };
            self.mapped.insert(location.to_owned(), mapped);
        }
        let file = match &self.mapped[location] {
            Ok(bytes) => bytes,
            Err(message) => {
                return Err(fault(
                    message.clone(),
                    "keep the model's external data files in the folder of the .onnx file, under the names they were \
                     exported with",
                ));
            }
        };
        match offset.checked_add(length) {
            Some(end) if end <= file.len() => Ok(Some(file.slice(offset..end))),
            _ => Err(fault(
                format!(
                    "external data file '{location}' has {} bytes, but the tensor's {length} bytes start at {offset}",
                    file.len()
                ),
                DAMAGED,
            )),
        }
    }

    fn map(&self, location: &str) -> Result<Bytes, ExternalError> {
        let relative = Path::new(location);
        // Backslashes separate on some systems only; refuse them everywhere rather than mean two things.
        let plain = !location.contains('\\')
            && relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !plain {
            return Err(ExternalError::Outside(location.to_owned()));
        }
        let joined = self.directory.join(relative);
        let absent = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ExternalError::Absent(joined.clone()),
            _ => ExternalError::Read(joined.clone(), source),
        };
        let directory = self.directory.canonicalize().map_err(absent)?;
        let resolved = joined.canonicalize().map_err(absent)?;
        if !resolved.starts_with(&directory) {
            return Err(ExternalError::Outside(location.to_owned()));
        }
        forge_runtime::mapped::map_file(&resolved).map_err(|source| ExternalError::Read(resolved.clone(), source))
    }
}

#[derive(Debug, thiserror::Error)]
enum ExternalError {
    #[error("external data file '{}' does not exist", .0.display())]
    Absent(PathBuf),
    #[error("external data file '{}': {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    #[error("external data location '{0}' leads outside the model's folder")]
    Outside(String),
}

const DAMAGED: &str = "the file is damaged or was written by a faulty exporter: export the model again";

/// Data in the field that belongs to the dtype. Narrow types share `int32_data`.
fn typed_data(proto: &TensorProto, dtype: DType, count: usize) -> Result<Bytes, String> {
    fn all<T: Copy, E: Element>(data: &[T], convert: impl Fn(T) -> E) -> (usize, Vec<u8>) {
        let mut out = Vec::with_capacity(size_of_val(data));
        data.iter().for_each(|v| convert(*v).write_le(&mut out));
        (data.len(), out)
    }
    let narrow = &proto.int32_data;
    let (found, bytes) = match dtype {
        DType::F32 => all(&proto.float_data, |v: f32| v),
        DType::F64 => all(&proto.double_data, |v: f64| v),
        DType::I64 => all(&proto.int64_data, |v: i64| v),
        DType::U64 => all(&proto.uint64_data, |v: u64| v),
        DType::U32 => all(&proto.uint64_data, |v: u64| v as u32),
        DType::I32 => all(narrow, |v: i32| v),
        DType::I16 => all(narrow, |v: i32| v as i16),
        DType::I8 => all(narrow, |v: i32| v as i8),
        DType::U16 => all(narrow, |v: i32| v as u16),
        DType::U8 => all(narrow, |v: i32| v as u8),
        DType::Bool => all(narrow, |v: i32| v != 0),
        // The bit pattern, widened to 32 bits.
        DType::F16 => all(narrow, |v: i32| half::f16::from_bits(v as u16)),
        DType::BF16 => all(narrow, |v: i32| half::bf16::from_bits(v as u16)),
    };
    if found == count {
        Ok(bytes.into())
    } else {
        Err(format!("its shape {:?} needs {count} elements of {dtype}, the file has {found}", proto.dims))
    }
}
