//! Model files in, [`Graph`]s out.
//!
//! [`load`] tells the format by the file's first bytes, never by its name, and hands over to the reader of that format.
//! A reader either gives a graph that means what the file means, or one [`ImportError`] that lists everything that it
//! could not take.

mod error;
pub mod onnx;
mod sniff;

use std::path::Path;

use bytes::Bytes;
pub use error::{Fault, ImportError};
use forge_ir::{Bindings, Graph};
pub use sniff::FileKind;

/// How to read a model.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Values for symbolic dims, by symbol (`batch`) or by input axis (`input_ids_dim0`).
    pub shape: Bindings,
    /// Accept weights whose external data file is absent: the graph then holds their types only.
    pub structure_only: bool,
}

/// A model as read.
#[derive(Clone, Debug)]
pub struct Imported {
    pub graph: Graph,
    /// What the importer took for granted about symbolic dims, one inequality each (`seq <= 512`), with the node that
    /// needs it. Bindings that break one are outside what the graph describes.
    pub assumptions: Vec<Assumption>,
}

/// A condition on symbolic dims under which the graph is what the model says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assumption {
    pub condition: String,
    pub node: String,
}

/// Reads a model file.
///
/// # Errors
/// If the file cannot be read, is of another kind, is damaged, or holds something that has no place in the IR; the
/// last case lists every such thing at once.
pub fn load(path: &Path, options: &Options) -> Result<Imported, ImportError> {
    let bytes =
        forge_runtime::mapped::map_file(path).map_err(|source| ImportError::Read { path: path.to_owned(), source })?;
    load_bytes(path, bytes, options)
}

/// Reads a model from memory. `path` names it in errors, and external data are looked up beside it.
///
/// # Errors
/// As [`load`].
pub fn load_bytes(path: &Path, bytes: Bytes, options: &Options) -> Result<Imported, ImportError> {
    match sniff::file_kind(&bytes) {
        FileKind::MaybeOnnx => onnx::import(path, bytes, options),
        found => Err(ImportError::Format { path: path.to_owned(), found }),
    }
}
