//! Is it right? A suite of test cases for a region, made once and put to every candidate for it.
//!
//! A [`Suite`] holds inputs, the baseline's outputs, f64 references and error bounds; making it also proves its power: known wrong
//! results must fail the very checks that candidates face ([`mutation`]). [`Suite::check`] runs a candidate through all of it.
//! The rules for numbers are in [`compare`], the inputs in [`inputs`], what is known of a region in [`analysis`] and [`bound`].
//!
//! What runs a candidate comes in as [`Implementation`], so that nothing here compiles, loads or times anything.

pub mod analysis;
pub mod bound;
pub mod compare;
pub mod inputs;
mod mutation;
mod suite;

use forge_ir::{Graph, Tensor};

use crate::verdict::{Evidence, Reason, Stage, Verdict};
pub use compare::Policy;
pub use inputs::{Distribution, Hint};
pub use suite::Suite;

/// Something that computes the region.
pub trait Implementation {
    /// The outputs for one set of inputs (weights among them, in the region's order).
    ///
    /// # Errors
    /// What went wrong, if the run was stopped or broke a rule of memory.
    fn run(&self, inputs: &[Tensor], how: How) -> Result<Vec<Tensor>, Failure>;

    /// Results are the same bits for every number of threads.
    fn is_thread_invariant(&self) -> bool;
}

/// Circumstances that must not matter to a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    pub threads: usize,
    /// What outputs hold before the call.
    pub fill: u8,
    /// Canaries around every buffer, inputs compared afterwards, unwritten memory poisoned, caller memory no better aligned than
    /// its elements.
    pub checked: bool,
}

/// Why a run gave no outputs.
#[derive(Clone, PartialEq, Debug)]
pub enum Failure {
    OutOfBounds(String),
    InputModified(String),
    /// The shapes are outside what the plan accepts.
    Refused(String),
    Failed(String),
}

/// A region to validate for.
pub struct Subject<'a> {
    /// The region with constant shapes: first those that are timed, then others that the region admits.
    pub shapes: &'a [Graph],
    pub weight_inputs: &'a [bool],
    pub hints: &'a [Option<Hint>],
    /// Values that stand for an input in every case (real weights), by input; may be shorter than the inputs.
    pub given: &'a [Option<Tensor>],
    /// Real inputs of the first shape.
    pub captured: &'a [Vec<Tensor>],
}

/// How hard to test. The floor holds whatever the time: one case of each distribution, every special case, two exact ones.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ValidateOptions {
    /// Random cases per distribution.
    pub seeds: usize,
    pub distributions: Vec<Distribution>,
    /// Cases with NaN, infinities, zeros, full and empty masks.
    pub specials: bool,
    /// Seeds per distribution for which a forward error bound is computed: each costs several evaluations.
    pub bound_seeds: u64,
    pub policy: Policy,
    /// For making the suite; cases beyond the floor stop here.
    pub prepare_seconds: f64,
    /// For one candidate's repeats.
    pub repeat_seconds: f64,
    pub repeats: usize,
    /// Numbers of threads that must agree; the first is the one that everything else runs with.
    pub threads: Vec<usize>,
    /// Bytes of cases kept beyond the floor.
    pub bytes: usize,
    /// Fixed for a region: no candidate gets to try its luck.
    pub seed: u64,
}

impl Default for ValidateOptions {
    fn default() -> ValidateOptions {
        ValidateOptions {
            seeds: 8,
            distributions: Distribution::ALL.to_vec(),
            specials: true,
            bound_seeds: 2,
            policy: Policy::Default,
            prepare_seconds: 20.0,
            repeat_seconds: 1.0,
            repeats: 50,
            threads: vec![2, 1, 3],
            bytes: 1 << 30,
            seed: 0,
        }
    }
}

impl ValidateOptions {
    fn how(&self) -> How {
        How { threads: self.threads.first().copied().unwrap_or(1), fill: 0x5a, checked: false }
    }
}

/// Why a suite can't be made, or a candidate fails it.
#[derive(Clone, PartialEq, Debug)]
pub struct Refusal {
    pub stage: Stage,
    pub reason: Reason,
    pub evidence: Box<Evidence>,
}

impl Refusal {
    fn new(stage: Stage, reason: Reason, summary: impl Into<String>) -> Refusal {
        Refusal { stage, reason, evidence: Box::new(Evidence { summary: summary.into(), ..Evidence::default() }) }
    }

    fn in_case(mut self, case: &str) -> Refusal {
        self.evidence.case = Some(case.to_owned());
        self
    }
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Verdict {
        Verdict::Rejected { stage: refusal.stage, reason: refusal.reason, evidence: *refusal.evidence }
    }
}

/// One set of inputs and what must come of it.
struct Case {
    label: String,
    rules: compare::Rules,
    /// The same for cases whose baseline errors are comparable: distribution and shape.
    family: usize,
    inputs: Vec<Tensor>,
    expected: Vec<compare::Expected>,
}

#[cfg(test)]
mod tests;
