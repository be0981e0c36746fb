//! Graph to graph: passes, their registry, and the manager that runs them.
//!
//! A pass is a function from a graph to patches ([`Patch`](forge_ir::Patch)); it never changes the graph itself. The
//! manager ([`Manager`]) applies them, repeats a pass until it finds nothing more, verifies between passes, and reports.
//! A pipeline is text: `simplify,fold,cse,raise{only=gelu},dce`.
//!
//! What never lives here: ONNX, kernels, I/O, time as an input. Start reading at [`registry`], the one table of passes;
//! a pass is one file (`fold`, `dce`, `cse`, `simplify`, `raise`), its rules one table within it.
//!
//! ```
//! use forge_passes::{Context, Manager, Pipeline};
//! let mut graph = forge_ir::parse(
//!     "graph @g(%x: f32[4]) -> (f32[4]) {
//!        %0 = sigmoid(%x)
//!        %1 = mul(%0, %x)
//!        return %1
//!      }",
//! )
//! .unwrap();
//! let pipeline: Pipeline = "raise,dce".parse().unwrap();
//! let report = Manager::new(Context::default()).run(&mut graph, &pipeline).unwrap();
//! assert_eq!(report.rewrites(), 1);
//! assert!(graph.to_text().contains("silu(%x)"));
//! ```

pub mod cse;
pub mod dce;
pub mod fold;
mod manager;
mod matching;
mod options;
mod pipeline;
pub mod raise;
pub mod regions;
pub mod registry;
mod rules;
pub mod simplify;

pub use manager::{Manager, Observer, PassRun, PrintAfter, Report, Settings};
pub use options::Options;
pub use pipeline::{DEFAULT_PIPELINE, Pipeline, PipelineError, Step};
pub use registry::{Context, Evaluate, OptionSpec, PASSES, Pass, PassError, pass};
pub use rules::Rule;
