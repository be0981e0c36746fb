//! The journal's lines. The tree, the report and the GUI are folds over them; see [`super::state`].
//!
//! A change that an older reader would misread raises [`VERSION`]; a reader refuses other versions, unknown events and unknown
//! fields.

use std::collections::BTreeMap;

use forge_kernels::verdict::Verdict;
use serde::{Deserialize, Serialize};

use super::budget::{Budget, OptLevel};
use super::lab::Refusal;

/// Of the journal's format.
pub const VERSION: u32 = 1;

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// [`VERSION`].
    pub v: u32,
    /// Line number, from 0.
    pub n: u64,
    /// Seconds of run time, the time before each resumption included.
    pub at: f64,
    pub event: Event,
}

/// What a run was asked to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `cpu`, `cuda:sm_90`
    pub target: String,
    pub level: OptLevel,
    /// Bound dimensions: `batch` = 1.
    pub shape: BTreeMap<String, i64>,
    pub threads: usize,
    /// The only field that a resumed run may change.
    pub budget: Budget,
}

/// Why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Time or trials are used up.
    Budget,
    /// Nothing is left to try.
    Exhausted,
    /// Ctrl-C.
    Interrupted,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stop::Budget => "the budget is used up",
            Stop::Exhausted => "nothing is left to try",
            Stop::Interrupted => "interrupted",
        })
    }
}

/// The kernel that a region ends with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Winner {
    pub region: String,
    pub candidate: u64,
    pub ratio: f64,
}

/// What happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    RunStarted {
        /// Name and version of this program.
        tool: String,
        /// Hash of the model's file.
        model: String,
        config: Config,
        seed: u64,
    },
    /// The same run goes on in another process.
    RunResumed {
        budget: Budget,
    },
    /// Passes are done.
    GraphReady {
        ops_before: usize,
        ops_after: usize,
    },
    /// A region to search; its body is the blob `<hash>.forge`.
    RegionFound {
        hash: String,
        title: String,
        ops: usize,
        occurrences: usize,
        /// Of the whole graph's time, in [0, 1].
        share: f64,
        baseline_ns: Option<f64>,
        /// How many times faster the roofline lets it be, if known.
        headroom: Option<f64>,
        /// Strategies that apply.
        offers: Vec<String>,
        refusals: Vec<Refusal>,
    },
    /// A candidate; its source and plan are the blobs `<hash>.cpp` and `<hash>.json`.
    CandidateProposed {
        id: u64,
        /// The candidate that it refines.
        parent: Option<u64>,
        region: String,
        hash: String,
        title: String,
        strategy: String,
        parameters: BTreeMap<String, String>,
        /// The earlier candidate of this region that is the same; its verdict holds for both.
        repeats: Option<u64>,
    },
    /// No candidate came of an ask.
    ProposalRefused {
        parent: Option<u64>,
        region: String,
        strategy: String,
        parameters: BTreeMap<String, String>,
        reason: String,
    },
    CandidateJudged {
        id: u64,
        verdict: Verdict,
        /// Time that judging took.
        seconds: f64,
    },
    /// The rewritten graph with these kernels against the unrewritten one.
    WholeGraphMeasured {
        kernels: Vec<u64>,
        verdict: Verdict,
    },
    /// A winner that does not help end to end.
    KernelDropped {
        id: u64,
        why: String,
    },
    RunFinished {
        stop: Stop,
        trials: u64,
        seconds: f64,
        winners: Vec<Winner>,
    },
}
