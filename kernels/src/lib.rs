//! Kernel candidates: generation, compilation, validation, measurement.
//!
//! What lives here: [`candidate`] (source + launch plan as data), [`codegen`] (IR to C++), [`generic`] (one op, nothing fused),
//! templates, [`assemble`] (graph + implementations = plan), the compiler driver, the gate and the clock. What never lives here: ONNX,
//! search policy, LLMs.

pub mod assemble;
pub mod candidate;
pub mod codegen;
pub mod generic;
pub mod measure;
pub mod templates;
