//! Executes a serialised [`plan::Plan`]: what is measured during search is what ships in the loader.
//!
//! What lives here: the plan's types, size expressions, arena planning, the thread pool, the GEMM library call, loading of
//! compiled kernels, the C ABI. What never lives here: search, ONNX, code generation, the IR. `unsafe` of the whole project is
//! here (kernel calls, mapped files, the C ABI).

pub mod mapped;
pub mod plan;
pub mod size;
