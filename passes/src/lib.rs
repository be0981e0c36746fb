//! Passes over the graph IR: Graph in, patches out.

pub mod regions;
