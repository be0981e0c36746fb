//! The driver of forge-cc as a library.

pub mod emit;
pub mod propose;
pub mod search;
