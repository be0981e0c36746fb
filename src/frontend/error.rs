//! Everything that can be wrong with a model file, each with what to do about it.

use std::io;
use std::path::PathBuf;

use super::sniff::FileKind;

/// Why a model could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The operating system would not give us the file.
    #[error("{}: cannot read the file: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file of another kind.
    #[error("{}: not an ONNX model, but {found}", path.display())]
    Format { path: PathBuf, found: FileKind },
    /// An ONNX file that ends early or whose bytes do not decode.
    #[error("{}: damaged ONNX file: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    /// A well-formed file with contents that we cannot take; all of them.
    #[error("{}: {}", path.display(), list(faults))]
    Model { path: PathBuf, faults: Vec<Fault> },
}

/// One thing in a model that we cannot take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// An operator that is not in the table of supported ones, or not at this version.
    #[error("{node}: operator {operator} is not supported{detail}")]
    Operator { node: String, operator: String, detail: String, help: String },
    /// A supported operator, used in a way that breaks its rules or that we do not support.
    #[error("{node}: {message}")]
    Node { node: String, message: String, help: String },
    /// A shape, axis or other parameter that only the data of a run would tell.
    #[error("{node}: {what} must be known at import, not computed from the data that flow through the model")]
    DataDependent { node: String, what: String },
    /// An initialiser or constant whose data do not fit what the file says of it.
    #[error("tensor '{name}': {message}")]
    Tensor { name: String, message: String, help: String },
    /// A graph input or output.
    #[error("{side} '{name}': {message}")]
    Interface { side: &'static str, name: String, message: String, help: String },
    /// The graph as a whole: names, order, versions.
    #[error("{message}")]
    Graph { message: String, help: String },
    /// A requested value for a symbolic dim.
    #[error("shape binding {name}={value}: {message}")]
    Binding { name: String, value: i64, message: String, help: String },
}

impl ImportError {
    /// What to do about it, in a sentence or two; for a model with several faults, one line each without repeats.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            ImportError::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "check the path".into(),
                io::ErrorKind::PermissionDenied => "check the file's permissions".into(),
                io::ErrorKind::IsADirectory => "give the model file inside the directory".into(),
                _ => "check that the file can be read".into(),
            },
            ImportError::Format { found, .. } => found.help().into(),
            ImportError::Damaged { .. } => {
                "the export, copy or download was cut short or altered: make the file again, and check it with \
                 `python -c \"import onnx, sys; onnx.checker.check_model(sys.argv[1])\" FILE`"
                    .into()
            }
            ImportError::Model { faults, .. } => {
                let mut lines: Vec<String> = Vec::new();
                for fault in faults {
                    let help = fault.help();
                    if !lines.contains(&help) {
                        lines.push(help);
                    }
                }
                lines.join("\n")
            }
        }
    }

    /// The faults of a model; empty for the other errors.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        match self {
            ImportError::Model { faults, .. } => faults,
            _ => &[],
        }
    }
}

impl Fault {
    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Fault::Operator { help, .. }
            | Fault::Node { help, .. }
            | Fault::Tensor { help, .. }
            | Fault::Interface { help, .. }
            | Fault::Graph { help, .. }
            | Fault::Binding { help, .. } => help.clone(),
            Fault::DataDependent { .. } => "export the part of the model before and after this node separately, or \
                                            replace it with an operation whose result shape does not depend on data"
                .into(),
        }
    }
}

/// One fault as it is; several as a count and a list.
fn list(faults: &[Fault]) -> String {
    match faults {
        [fault] => fault.to_string(),
        _ => {
            let mut out = format!("{} things in this model cannot be taken:", faults.len());
            for fault in faults {
                out.push_str("\n  - ");
                out.push_str(&fault.to_string());
            }
            out
        }
    }
}
