//! The one table of passes, and what a pass is.

use std::fmt::Write;

use forge_ir::{Graph, InferError, Op, Patch, PatchError, Tensor, TensorType};

use crate::{Options, cse, dce, fold, raise, simplify};

/// Evaluates one op on constants; the dims of the op and of the result types are constants too.
pub type Evaluate = fn(&Op, &[Tensor], &[TensorType]) -> Result<Vec<Tensor>, String>;

/// What a pass is given beside the graph.
#[derive(Clone, Debug)]
pub struct Context {
    pub options: Options,
    /// What constant folding computes with.
    pub evaluate: Evaluate,
}

impl Default for Context {
    /// No options; the reference interpreter, at the declared precision.
    fn default() -> Context {
        Context { options: Options::default(), evaluate: fold::reference }
    }
}

impl Context {
    #[must_use]
    pub fn with_options(&self, options: Options) -> Context {
        Context { options, evaluate: self.evaluate }
    }
}

/// An option of a pass, as `--help` lists it.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    pub name: &'static str,
    pub about: &'static str,
    pub default: &'static str,
}

/// A pass: data and one function.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    pub options: &'static [OptionSpec],
    /// Whether the manager runs it again until it gives no patch that applies.
    pub fixpoint: bool,
    /// Patches against the graph as it is; later ones may be overtaken by earlier ones, and are then dropped.
    pub run: fn(&Graph, &Context) -> Result<Vec<Patch>, PassError>,
}

/// Options that the manager gives to every pass.
pub const COMMON_OPTIONS: &[OptionSpec] =
    &[OptionSpec { name: "max", about: "apply at most this many patches", default: "no limit" }];

/// Every pass. Adding one is one entry and one file.
pub const PASSES: &[Pass] = &[
    Pass { name: "cse", about: cse::ABOUT, options: &[], fixpoint: true, run: cse::run },
    Pass { name: "dce", about: dce::ABOUT, options: &[], fixpoint: false, run: dce::run },
    Pass { name: "fold", about: fold::ABOUT, options: fold::OPTIONS, fixpoint: true, run: fold::run },
    Pass { name: "raise", about: raise::ABOUT, options: raise::OPTIONS, fixpoint: true, run: raise::run },
    Pass { name: "simplify", about: simplify::ABOUT, options: simplify::OPTIONS, fixpoint: true, run: simplify::run },
];

/// The pass of this name.
#[must_use]
pub fn pass(name: &str) -> Option<&'static Pass> {
    PASSES.iter().find(|pass| pass.name == name)
}

/// The table as text, for `--help`: passes, their options, and the rules of those that are made of rules.
#[must_use]
pub fn listing() -> String {
    let mut out = String::new();
    for pass in PASSES {
        let _ = writeln!(out, "{:<10} {}", pass.name, pass.about);
        for option in pass.options.iter().chain(COMMON_OPTIONS) {
            let _ = writeln!(out, "    {{{}=..}}  {} (default: {})", option.name, option.about, option.default);
        }
        let rules = match pass.name {
            "raise" => raise::RULES,
            "simplify" => simplify::RULES,
            _ => &[],
        };
        for rule in rules {
            let _ = writeln!(out, "    - {:<24} {}", rule.name, rule.about);
        }
    }
    out
}

/// Why a pass failed. None of these is a property of the model: each is a fault of a pass or of its options.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    #[error("a rewrite does not type: {0}")]
    Infer(#[from] InferError),
    #[error("the patch \"{why}\" does not apply: {source}")]
    Patch { why: String, source: Box<PatchError> },
    #[error("the graph is broken after \"{why}\":\n{faults}")]
    Broken { why: String, faults: String },
    #[error("option '{option}' takes {expected}, not '{found}'")]
    Option { option: String, expected: String, found: String },
    #[error("in pass '{pass}': {source}")]
    In { pass: &'static str, source: Box<PassError> },
}
