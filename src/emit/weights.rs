//! `weights.safetensors`: one file for both plans, written as a stream, every tensor 64-byte aligned.
//!
//! The format allows no holes, and its own writer aligns to 8 bytes only. So tensors whose size is a multiple of 64
//! come first, and the others are followed by a padding tensor each, which readers see and nobody asks for.

use std::collections::HashMap;
use std::io::{self, Write};

use forge_ir::{DType, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::EmitError;

/// The runtime uses weights where they lie in the mapped file if they lie on such boundaries.
const ALIGNMENT: usize = 64;
const PADDING_PREFIX: &str = "__padding.";
const ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];

/// Where each weight will lie in the file; ONNX external data may point there.
#[derive(Debug)]
pub struct WeightsLayout<'a> {
    header: Vec<u8>,
    /// In file order; offset from the start of the file.
    weights: Vec<Placed<'a>>,
}

#[derive(Debug)]
struct Placed<'a> {
    name: &'a str,
    tensor: &'a Tensor,
    offset: usize,
}

impl<'a> WeightsLayout<'a> {
    /// Lays out weights in the given order (sizes that are not a multiple of 64 last). A name that comes twice with
    /// equal data is written once.
    ///
    /// # Errors
    /// A name with two unlike tensors, or one that the format or its padding reserves.
    pub fn new(weights: &'a [(String, Tensor)]) -> Result<WeightsLayout<'a>, EmitError> {
        let mut seen: HashMap<&str, &Tensor> = HashMap::with_capacity(weights.len());
        let mut distinct = Vec::with_capacity(weights.len());
        for (name, tensor) in weights {
            if name == "__metadata__" || name.starts_with(PADDING_PREFIX) {
                return Err(EmitError::WeightName { name: name.clone(), reason: "is reserved" });
            }
            match seen.insert(name, tensor) {
                Some(other) if other != tensor => {
                    return Err(EmitError::WeightName { name: name.clone(), reason: "names two unlike tensors" });
                }
                Some(_) => {}
                None => distinct.push((name.as_str(), tensor)),
            }
        }
        let (whole, rest): (Vec<_>, Vec<_>) =
            distinct.into_iter().partition(|(_, tensor)| tensor.bytes().len().is_multiple_of(ALIGNMENT));
        let mut infos = Vec::with_capacity(whole.len() + 2 * rest.len());
        let mut placed = Vec::with_capacity(whole.len() + rest.len());
        let mut at = 0usize;
        for (name, tensor) in whole.into_iter().chain(rest) {
            let end = at + tensor.bytes().len();
            let shape = tensor.shape().to_vec();
            infos.push((name.to_owned(), TensorInfo { dtype: dtype(tensor.dtype()), shape, data_offsets: (at, end) }));
            placed.push(Placed { name, tensor, offset: at });
            at = end.next_multiple_of(ALIGNMENT);
            if at > end {
                let name = format!("{PADDING_PREFIX}{}", infos.len());
                infos.push((name, TensorInfo { dtype: Dtype::U8, shape: vec![at - end], data_offsets: (end, at) }));
            }
        }
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let bug = |error: String| EmitError::WeightsHeader { reason: error };
        let metadata = Metadata::new(Some(format), infos).map_err(|error| bug(error.to_string()))?;
        let mut text = serde_json::to_vec(&metadata).map_err(|error| bug(error.to_string()))?;
        // Spaces may follow the header, so that the data starts aligned too.
        text.resize((text.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        for weight in &mut placed {
            weight.offset += header.len();
        }
        Ok(WeightsLayout { header, weights: placed })
    }

    /// (offset from the start of the file, bytes) of a weight.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<(usize, usize)> {
        self.weights.iter().find(|w| w.name == name).map(|w| (w.offset, w.tensor.bytes().len()))
    }

    /// Writes the file. Tensor data goes straight from where it lies to `out`.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.header)?;
        for weight in &self.weights {
            let bytes = weight.tensor.bytes();
            out.write_all(bytes)?;
            out.write_all(&ZEROS[..bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()])?;
        }
        Ok(())
    }
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    fn write(weights: &[(String, Tensor)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        WeightsLayout::new(weights).unwrap().write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_dtype_reads_back_aligned() {
        let mut weights: Vec<(String, Tensor)> = DType::ALL
            .iter()
            .map(|dtype| (format!("layer.{dtype}"), Tensor::from_i64(*dtype, &[3, 1], &[1, 0, 1])))
            .collect();
        weights.push(("empty".into(), Tensor::from_slice::<f32>(&[0, 4], &[])));
        weights.push(("scalar".into(), Tensor::scalar(2.5f32)));
        weights.push(("whole".into(), Tensor::from_slice(&[16], &[7i32; 16])));
        weights.push(("scalar".into(), Tensor::scalar(2.5f32)));
        let bytes = write(&weights);
        let layout = WeightsLayout::new(&weights).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (name, tensor) in &weights {
            let view = file.tensor(name).unwrap();
            assert_eq!((view.data(), view.shape()), (&tensor.bytes()[..], tensor.shape()), "{name}");
            assert_eq!(view.dtype(), dtype(tensor.dtype()), "{name}");
            let (offset, length) = layout.place(name).unwrap();
            assert_eq!(offset % ALIGNMENT, 0, "{name}");
            assert_eq!(&bytes[offset..offset + length], &tensor.bytes()[..], "{name}");
        }
        assert_eq!(layout.place("absent"), None);
    }

    #[test]
    fn names_that_cannot_be_kept_apart_are_refused() {
        let two = [("w".to_owned(), Tensor::scalar(1f32)), ("w".to_owned(), Tensor::scalar(2f32))];
        assert!(matches!(WeightsLayout::new(&two), Err(EmitError::WeightName { .. })));
        for name in ["__metadata__", "__padding.3"] {
            let reserved = [(name.to_owned(), Tensor::scalar(1f32))];
            assert!(matches!(WeightsLayout::new(&reserved), Err(EmitError::WeightName { .. })), "{name}");
        }
        assert!(SafeTensors::deserialize(&write(&[])).unwrap().is_empty());
    }
}
