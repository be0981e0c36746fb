//! Kernel candidates: generation, compilation, validation, measurement.
//!
//! What lives here: [`candidate`] (source + launch plan as data), [`codegen`] (IR to C++), [`generic`] (one op, nothing fused),
//! templates, [`assemble`] (graph + implementations = plan), [`compile`] (the system compiler), [`gate`] (what accepts or rejects a
//! candidate, from [`inspect`] over [`validate`] to [`measure`]) and [`worker`] (the process it runs in). What never lives here:
//! ONNX, search policy, LLMs.

pub mod assemble;
pub mod build;
pub mod candidate;
pub mod codegen;
pub mod compile;
pub mod gate;
pub mod generic;
pub mod inspect;
pub mod measure;
pub mod object;
pub mod process;
pub mod templates;
pub mod validate;
pub mod verdict;
pub mod whole;
pub mod worker;
