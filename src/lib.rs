//! The driver of forge-cc as a library: what reads a model, searches kernels for it, and leaves an output directory behind.
//!
//! What lives here: front ends ([`frontend`]), the main job ([`driver`]), the search and its journal ([`search`]), where
//! candidates come from ([`propose`]), the output directory ([`emit`]), commands ([`cli`]). What never lives here: shape rules and
//! numerics (forge-ir), rewrites (forge-passes), code generation, validation and timing (forge-kernels). Start reading at
//! [`driver::build()`].

pub mod cli;
pub mod driver;
pub mod emit;
pub mod frontend;
pub mod npy;
pub mod oracle;
pub mod propose;
pub mod search;
