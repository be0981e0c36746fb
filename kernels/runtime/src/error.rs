//! Everything that can go wrong between a plan on disk and an output in memory.

use std::path::PathBuf;

use crate::size::SizeError;

/// Why a plan can't be loaded or run. The C ABI maps each to a [`RuntimeError::status`].
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{} is not a plan: {reason}", path.display())]
    Syntax { path: PathBuf, reason: String },
    #[error("the plan has version {found}; this runtime reads version {supported}")]
    Version { found: u32, supported: u32 },
    #[error("the plan is for target '{found}'; this runtime executes '{supported}'")]
    Target { found: String, supported: &'static str },
    #[error("malformed plan: {0}")]
    Malformed(String),
    #[error("{at}: {source}")]
    Size { at: String, source: SizeError },
    #[error("weight '{name}': {reason}")]
    Weight { name: String, reason: String },
    #[error("kernel module {}: {reason}", path.display())]
    Module { path: PathBuf, reason: String },
    #[error("cannot allocate {bytes} bytes")]
    OutOfMemory { bytes: usize },
    #[error("the plan has {expected} {kind}, got {got}")]
    Count { kind: &'static str, expected: usize, got: usize },
    #[error("input '{input}' has rank {expected}, got rank {got}")]
    Rank { input: String, expected: usize, got: usize },
    #[error("input '{input}' axis {axis}: expected {expected}, got {got}")]
    Axis { input: String, axis: usize, expected: String, got: i64 },
    #[error("{kind} '{name}': expected {expected} bytes, got {got}")]
    Length { kind: &'static str, name: String, expected: usize, got: usize },
    #[error("{kind} '{name}' is not aligned to {alignment} bytes")]
    Alignment { kind: &'static str, name: String, alignment: usize },
    #[error("{at} {what}")]
    Guard { at: String, what: String },
    #[error("invalid argument: {0}")]
    Argument(String),
    #[error("internal failure: {0}")]
    Panic(String),
}

/// Status codes of the C ABI, in step with `include/forge_runtime.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    /// A null pointer, a negative rank, text that is not UTF-8, too little room for results.
    Argument = 1,
    /// A file could not be read.
    Io = 2,
    /// The plan is malformed, of another version or for another target.
    Plan = 3,
    /// A kernel module could not be loaded.
    Module = 4,
    /// A weight is missing or has another size.
    Weight = 5,
    /// Input shapes that the plan does not accept.
    Shape = 6,
    /// Not enough memory.
    Memory = 7,
    /// A step broke the rules that guarded execution checks.
    Guard = 8,
    /// A bug in the runtime.
    Internal = 9,
}

impl RuntimeError {
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            RuntimeError::Io { .. } => Status::Io,
            RuntimeError::Syntax { .. }
            | RuntimeError::Version { .. }
            | RuntimeError::Target { .. }
            | RuntimeError::Malformed(_) => Status::Plan,
            RuntimeError::Weight { .. } => Status::Weight,
            RuntimeError::Module { .. } => Status::Module,
            RuntimeError::OutOfMemory { .. } => Status::Memory,
            // Sizes without symbols are checked at load, so a size that fails later does so for these shapes.
            RuntimeError::Size { .. }
            | RuntimeError::Count { .. }
            | RuntimeError::Rank { .. }
            | RuntimeError::Axis { .. }
            | RuntimeError::Length { .. } => Status::Shape,
            RuntimeError::Alignment { .. } | RuntimeError::Argument(_) => Status::Argument,
            RuntimeError::Guard { .. } => Status::Guard,
            RuntimeError::Panic(_) => Status::Internal,
        }
    }
}
