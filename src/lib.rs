//! The driver of forge-cc as a library: front ends, what a run leaves behind, and the second oracle.
//!
//! What lives here: reading models ([`frontend`]), `.npy` files ([`npy`]), what a run leaves behind ([`emit`]). What never
//! lives here: shape rules and numerics (forge-ir), rewrites (forge-passes), kernels (forge-kernels). Start reading at
//! [`frontend::load`].

pub mod emit;
pub mod frontend;
pub mod npy;
