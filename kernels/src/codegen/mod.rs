//! IR to device source. Pure functions of the region: no I/O, no environment.
//!
//! [`emit`] turns any value at any index into C++ expressions and statements (the generic lowering of every op); [`rowwise`]
//! arranges a region as loops over rows with staged reductions; [`special`] holds the few ops that are not functions from an index
//! to a value (scatter, top-k).

pub mod collapse;
pub mod cpp;
mod cpp_ops;
pub mod emit;
mod nested;
pub mod rowwise;
pub mod special;

/// Why a template or lowering does not apply: one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

impl Unsupported {
    pub fn new(message: impl Into<String>) -> Unsupported {
        Unsupported(message.into())
    }
}
