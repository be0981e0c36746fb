//! The graph IR of forge-cc.
//!
//! What lives here: tensor types with symbolic dims ([`Dim`]), the closed op set ([`Op`]), the SSA dataflow graph
//! ([`Graph`]), its text form, verifier, rewrites as values ([`Patch`]), regions, hashes, and the reference
//! interpreter that is the oracle of record.
//!
//! What never lives here: ONNX, CUDA, egg, I/O, time, randomness. Start reading at [`graph`], then [`op`].

#[cfg(any(test, feature = "testing"))]
pub mod arbitrary;
pub mod decompose;
pub mod dim;
pub mod dtype;
pub mod graph;
pub mod hash;
pub mod infer;
pub mod interp;
pub mod op;
pub mod patch;
pub mod region;
pub mod tensor;
pub mod text;
pub mod verify;

pub use dim::{Bindings, Dim, DimStep};
pub use dtype::DType;
pub use graph::{Graph, Loc, Node, NodeId, Value};
pub use hash::Digest;
pub use infer::{InferError, infer};
pub use op::{
    ArgOp, Attr, BinaryOp, CompareOp, Fused, GeluApproximate, Op, OpClass, PadMode, PoolKind, ReduceOp,
    ResizeCoordinates, ResizeMode, ResizeRounding, ScatterReduce, UnaryOp, Window,
};
pub use patch::{Exactness, Patch, PatchBuilder, PatchError};
pub use region::Region;
pub use tensor::{Tensor, TensorType};
pub use text::{ParseError, WeightError, parse, parse_module};
pub use verify::{Fault, Faults, Problem};
