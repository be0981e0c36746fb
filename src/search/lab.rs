//! The one seam of the search: who proposes kernels and who judges them. The real lab asks templates and runs workers; a scripted
//! one runs in tests.

use forge_ir::{Graph, OpClass};
use forge_kernels::candidate::Candidate;
use forge_kernels::templates::Parameters;
use forge_kernels::verdict::{Evidence, Reason, Verdict};

use super::tree::{Offer, Outcome};

/// A region to find a kernel for: one search, whatever the number of places where it occurs.
#[derive(Clone, Debug)]
pub struct RegionTask {
    /// Canonical hash of the body.
    pub hash: String,
    pub body: Graph,
    /// For each input: whether it is a weight at every occurrence.
    pub weight_inputs: Vec<bool>,
    pub occurrences: usize,
    /// Time of one call of what it runs as without a kernel, if measured.
    pub baseline_ns: Option<f64>,
    /// Of the whole graph's time, all occurrences together, in [0, 1].
    pub estimated_share: f64,
    /// How many times faster the roofline lets it be, if known.
    pub headroom: Option<f64>,
}

impl RegionTask {
    /// What the region does, in a line: `matmul, add, gelu`.
    #[must_use]
    pub fn title(&self) -> String {
        const LONGEST: usize = 60;
        let mut title = String::new();
        let ops: Vec<&str> = self
            .body
            .topological()
            .into_iter()
            .map(|node| self.body.op(node))
            .filter(|op| op.class() != OpClass::Leaf)
            .map(forge_ir::Op::name)
            .collect();
        for (i, op) in ops.iter().enumerate() {
            if title.len() + op.len() + 2 > LONGEST {
                title.push_str(&format!(" and {} more", ops.len() - i));
                break;
            }
            if i > 0 {
                title.push_str(", ");
            }
            title.push_str(op);
        }
        title
    }
}

/// A strategy that does not apply to a region, and why.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    pub strategy: String,
    pub reason: String,
}

/// What may be tried on a region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The most promising first.
    pub offers: Vec<Offer>,
    pub refusals: Vec<Refusal>,
}

/// A request for candidates.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub region: &'a RegionTask,
    /// One of the strategies that the survey of the region offered.
    pub strategy: &'a str,
    /// A point of that offer's space.
    pub parameters: Parameters,
    /// Hash of the candidate, known to be right, that is to be refined.
    pub parent: Option<String>,
}

/// Why no candidate came of an ask.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Proposes and judges. Equal asks must be answered alike where a run is to be resumed.
pub trait Lab {
    /// What may be tried on a region; once a run.
    fn survey(&mut self, region: &RegionTask) -> Survey;

    /// Candidates for an ask, at least one.
    ///
    /// # Errors
    /// If there is none, with the reason, which the report shows.
    fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused>;

    /// Compiles, validates and times a candidate against the region without a kernel.
    fn judge(&mut self, region: &RegionTask, candidate: &Candidate) -> Verdict;
}

/// A verdict as the tree takes it: a kernel that is right but no faster still says something about its neighbours.
#[must_use]
pub fn outcome(candidate: &str, verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Accepted { timing, .. } => {
            Outcome::Measured { candidate: candidate.to_owned(), ratio: timing.ratio, accepted: true }
        }
        Verdict::Rejected { reason: Reason::NotFaster, evidence: Evidence { timing: Some(timing), .. }, .. } => {
            Outcome::Measured { candidate: candidate.to_owned(), ratio: timing.ratio, accepted: false }
        }
        Verdict::Rejected { reason, .. } => Outcome::Failed { reason: reason.to_string() },
    }
}
