//! The driver of forge-cc as a library.

pub mod cli;
pub mod emit;
