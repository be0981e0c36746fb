//! Executes a serialised [`plan::Plan`]: what is measured during search is what ships in the loader.
//!
//! What lives here: the plan's types, size expressions, arena planning, the thread pool, the GEMM library call, loading of
//! compiled kernels, the C ABI. What never lives here: search, ONNX, code generation, the IR. `unsafe` of the whole project is
//! here (kernel calls, mapped files, the C ABI).
//!
//! Where to start reading: [`plan`] is the data; `validate` says what a plan must satisfy; [`exec`] loads and runs one;
//! `instance` is a plan for one set of shapes, `program` its resolved steps.

pub mod arena;
pub mod c_api;
pub mod error;
pub mod exec;
mod gemm;
mod guard;
mod instance;
pub mod mapped;
pub mod memory;
mod modules;
pub mod plan;
pub mod pool;
mod program;
pub mod size;
mod validate;
mod weights;

pub use error::{RuntimeError, Status};
pub use exec::{Executable, Options, StepTime};
pub use modules::KernelFunction;
pub use validate::TARGET;
pub use weights::WEIGHTS_FILE;
