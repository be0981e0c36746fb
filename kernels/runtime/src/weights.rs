//! Weights: named tensors of a safetensors file or of the caller, used where they lie.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use safetensors::{Dtype, SafeTensors};

use crate::error::RuntimeError;
use crate::mapped::map_file;
use crate::memory::Memory;
use crate::plan::{Plan, Storage};

/// The file in the plan's folder.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

/// One weight's bytes: shared with the file or the caller, or copied for its alignment.
pub(crate) enum Weight {
    Shared(Bytes),
    Aligned(Memory),
}

impl Weight {
    fn new(bytes: Bytes, alignment: usize) -> Result<Weight, RuntimeError> {
        if !bytes.is_empty() && bytes.as_ptr().addr().is_multiple_of(alignment) {
            return Ok(Weight::Shared(bytes));
        }
        Memory::copy_of(&bytes).map(Weight::Aligned)
    }

    pub(crate) fn address(&self) -> *const u8 {
        match self {
            Weight::Shared(bytes) => bytes.as_ptr(),
            Weight::Aligned(memory) => memory.address(),
        }
    }
}

/// Where weights come from.
pub(crate) enum Source<'a> {
    /// `weights.safetensors` of this folder; needs to exist only if the plan names weights.
    Folder(&'a Path),
    Memory(&'a HashMap<String, Bytes>),
}

/// Gives a weight's bytes and the alignment of its elements.
type Find<'a> = dyn Fn(&str) -> Result<(Bytes, usize), RuntimeError> + 'a;

/// The weights of `plan`, by buffer index.
pub(crate) fn load(plan: &Plan, source: &Source<'_>) -> Result<Vec<Option<Weight>>, RuntimeError> {
    let wanted = |at: usize| match &plan.buffers[at].storage {
        Storage::Weight { name } => Some((name.as_str(), plan.buffers[at].bytes.as_const().unwrap_or(-1))),
        _ => None,
    };
    let buffers = 0..plan.buffers.len();
    if buffers.clone().all(|at| wanted(at).is_none()) {
        return Ok(buffers.map(|_| None).collect());
    }
    let fail = |name: &str, reason: String| RuntimeError::Weight { name: name.to_owned(), reason };
    let collect = |find: &Find<'_>| {
        let one = |at| {
            let Some((name, expected)) = wanted(at) else { return Ok(None) };
            let (bytes, alignment) = find(name)?;
            if i64::try_from(bytes.len()) != Ok(expected) {
                return Err(fail(name, format!("the plan expects {expected} bytes, got {}", bytes.len())));
            }
            Weight::new(bytes, alignment).map(Some)
        };
        buffers.clone().map(one).collect()
    };
    match source {
        Source::Memory(weights) => collect(&|name| match weights.get(name) {
            // The dtype isn't known here: align for the widest element that the length allows.
            Some(bytes) => Ok((bytes.clone(), 1 << bytes.len().trailing_zeros().min(3))),
            None => Err(fail(name, "not among the given weights".into())),
        }),
        Source::Folder(folder) => {
            let path: PathBuf = folder.join(WEIGHTS_FILE);
            let file = map_file(&path).map_err(|source| RuntimeError::Io { path: path.clone(), source })?;
            let tensors = SafeTensors::deserialize(&file)
                .map_err(|error| fail(&path.display().to_string(), format!("not a safetensors file: {error}")))?;
            collect(&|name| match tensors.tensor(name) {
                Ok(tensor) => Ok((file.slice_ref(tensor.data()), alignment(tensor.dtype()))),
                Err(error) => Err(fail(name, format!("{}: {error}", path.display()))),
            })
        }
    }
}

fn alignment(dtype: Dtype) -> usize {
    // Complex and packed types have the alignment of their parts, which a larger power of two satisfies too.
    (dtype.bitsize() / 8).clamp(1, 8).next_power_of_two()
}
