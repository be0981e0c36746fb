//! Why an evaluation stops.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::infer::InferError;

/// Why the interpreter cannot give a value. Every message names the place and what was expected there.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EvalError {
    #[error("graph @{graph} takes {expected} inputs, {got} given")]
    InputCount { graph: String, expected: usize, got: usize },
    #[error("input {index} '{name}': dtype is {got}, the graph declares {expected}")]
    InputDType { index: usize, name: String, expected: DType, got: DType },
    #[error("input {index} '{name}': rank is {got}, the graph declares {declared} of rank {expected}")]
    InputRank { index: usize, name: String, declared: String, expected: usize, got: usize },
    /// An axis contradicts a constant, or what the other inputs bind.
    #[error("input {index} '{name}': axis {axis} is {got}, expected {expected}")]
    InputDim { index: usize, name: String, axis: usize, expected: String, got: usize },
    /// A symbol that no input shape determines.
    #[error("dim {dim} has no value: the input shapes do not determine its symbols")]
    UnboundDim { dim: Dim },
    #[error("weight '{name}' has no data: bind weights before evaluating")]
    UnboundWeight { name: String },
    #[error("weight '{name}': data are {got}, the graph declares {expected}")]
    WeightType { name: String, expected: String, got: String },
    /// The op's typing rule rejects the operands.
    #[error(transparent)]
    Infer(#[from] InferError),
    #[error("{op}: the result is {got}, declared {expected}")]
    ResultType { op: &'static str, expected: String, got: String },
    /// An index operand points outside its axis.
    #[error("{op}: index {index} is out of range for axis {axis} of size {size}")]
    IndexOutOfRange { op: &'static str, index: i64, axis: usize, size: usize },
    /// The op has no meaning for these operands.
    #[error("{op}: {message}")]
    Unsupported { op: &'static str, message: String },
    #[error("{op}: a result of shape {shape:?} does not fit in memory")]
    TooLarge { op: &'static str, shape: Vec<usize> },
    /// Where in the graph it happened.
    #[error("at {place}: {source}")]
    At { place: String, source: Box<EvalError> },
}

impl EvalError {
    pub(super) fn unsupported(op: &'static str, message: impl Into<String>) -> EvalError {
        EvalError::Unsupported { op, message: message.into() }
    }

    /// The error without its places.
    #[must_use]
    pub fn root(&self) -> &EvalError {
        match self {
            EvalError::At { source, .. } => source.root(),
            other => other,
        }
    }
}
