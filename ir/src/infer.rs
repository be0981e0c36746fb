//! Shape and dtype inference: the typing rule of every op.

use crate::op::Op;
use crate::tensor::TensorType;

/// Why an op does not accept its operands: one sentence with the shapes or dtypes in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{op}: {message}")]
pub struct InferError {
    pub op: &'static str,
    pub message: String,
}

/// Result types of `op` on operands of these types.
///
/// # Errors
/// If operand count, dtypes or shapes do not fit the op.
pub fn infer(op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>, InferError> {
    let _ = operands;
    Err(InferError { op: op.name(), message: "not inferred".into() })
}
