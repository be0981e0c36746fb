//! The text form: what dumps, diffs and filetests are written in.
//!
//! ```text
//! graph @mlp(%x: f32[N, 768]) -> (f32[N, 768]) {
//!   metadata "producer" = "pytorch"
//!   %fc.weight = weight @"fc.weight" : f32[3072, 768]
//!   %0 = matmul(%x, %fc.weight) {trans_b} : f32[N, 3072]  // loc: "/fc/Gemm", "model.py:31"
//!   %1:2 = top_k(%0) {axis = 1, k = 4, largest} : (f32[N, 4], i64[N, 4])
//!   %2 = fused(%1#0) {kernel = "ab12"} graph @body(%a: f32[N, 4]) -> (f32[N, 4]) {
//!     %0 = relu(%a) : f32[N, 4]
//!     return %0
//!   } : f32[N, 4]
//!   return %2
//! }
//! ```
//!
//! One op a line, in topological order. Inputs and weights go by their own names (quoted if not identifiers: `%"a b"`),
//! other values by number. Literals are exact: shortest decimals that read back to the same bits, `inf`, `nan`, and
//! `0x7fc00001` for the bits of any other NaN. Result types are checked against inference; they may be left out where
//! inference knows them. Weights have no data until [`Graph::bind_weights`].
//!
//! `lexer.rs` makes tokens, `parse.rs` graphs, `print.rs` text; `attrs.rs` is the one table of attributes.

mod attrs;
mod error;
mod lexer;
mod literal;
mod parse;
mod print;
#[cfg(test)]
mod tests;
mod weights;

pub use attrs::{AttrError, op_names};
pub use error::ParseError;
pub use parse::{parse, parse_module};
pub(crate) use print::{dim_text, type_text};
pub use weights::WeightError;

#[allow(unused_imports, reason = "documentation links")]
use crate::graph::Graph;
