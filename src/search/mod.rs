//! The search: which kernels to try on which region, for how long, and what came of it.
//!
//! [`tree`] decides what to try next and knows nothing of kernels, clocks or files; [`run`] drives it against a [`lab::Lab`];
//! every step is an [`event::Event`] in the [`journal`], and [`state::State`] is the fold over them from which reports, winners
//! and resumption come. A resumed search makes the same choices again and takes every verdict that the journal has from there:
//! nothing is judged twice. What never lives here: ONNX, code generation, processes. Start reading at [`run::search`].

pub mod budget;
pub mod event;
pub mod journal;
pub mod lab;
pub mod policy;
pub mod run;
pub mod session;
pub mod state;
pub mod tree;

#[cfg(test)]
mod tests;
