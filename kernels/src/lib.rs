//! Kernel candidates: generation, compilation, validation, measurement.
//!
//! What lives here: [`candidate`] (source + launch plan as data), [`codegen`] (IR to C++), templates, the compiler driver, the gate
//! and the clock, assembly of plans. What never lives here: ONNX, search policy, LLMs.

pub mod candidate;
pub mod codegen;
