//! What an evaluation ends in. There is no third outcome, and only the gate can accept.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::gate::Proof;
use crate::measure::Measurement;
use crate::process::Death;

/// The outcome of evaluating one candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Equal enough, and faster. [`Proof`] is made by the gate alone.
    Accepted {
        errors: ErrorReport,
        timing: Measurement,
        #[serde(skip, default = "Proof::recorded")]
        proof: Proof,
    },
    Rejected {
        stage: Stage,
        reason: Reason,
        evidence: Evidence,
    },
}

impl Verdict {
    /// A rejection with nothing but a sentence.
    #[must_use]
    pub fn rejected(stage: Stage, reason: Reason, summary: impl Into<String>) -> Verdict {
        Verdict::Rejected { stage, reason, evidence: Evidence { summary: summary.into(), ..Evidence::default() } }
    }

    /// Baseline time over candidate time, where both were measured.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        match self {
            Verdict::Accepted { timing, .. } => Some(timing.ratio),
            Verdict::Rejected { evidence, .. } => evidence.timing.as_ref().map(|t| t.ratio),
        }
    }

    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Verdict::Accepted { .. } => None,
            Verdict::Rejected { reason, .. } => Some(*reason),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accepted { errors, timing, .. } => write!(f, "accepted: {timing}; {errors}"),
            Verdict::Rejected { stage, reason, evidence } => {
                write!(f, "rejected at {stage} ({}): {}", reason.code(), reason.message())?;
                if !evidence.summary.is_empty() {
                    write!(f, ": {}", evidence.summary)?;
                }
                Ok(())
            }
        }
    }
}

/// Where an evaluation was when it ended, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Inspect,
    Assemble,
    Compile,
    Load,
    Run,
    Validate,
    Measure,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Inspect => "inspection",
            Stage::Assemble => "assembly",
            Stage::Compile => "compilation",
            Stage::Load => "loading",
            Stage::Run => "running",
            Stage::Validate => "validation",
            Stage::Measure => "measurement",
        })
    }
}

/// Defines [`Reason`]: variant, code, message.
macro_rules! reasons {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $message:literal;)*) => {
        /// Why a candidate was rejected. Codes are stable: journals keep them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub enum Reason {
            $($(#[$meta])* $variant,)*
            /// The worker died; how.
            Crash(Death),
        }

        impl Reason {
            /// Every reason but [`Reason::Crash`], which carries how.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];

            #[must_use]
            pub fn code(self) -> String {
                match self {
                    $(Reason::$variant => $code.to_owned(),)*
                    Reason::Crash(death) => format!("crash:{}", death.name()),
                }
            }

            /// One line for a person.
            #[must_use]
            pub fn message(self) -> &'static str {
                match self {
                    $(Reason::$variant => $message,)*
                    Reason::Crash(_) => "the process that ran the candidate died",
                }
            }
        }
    };
}

reasons! {
    Forbidden = "forbidden", "the source holds a construct that no kernel needs";
    PlanMismatch = "plan_mismatch", "the launch plan does not fit the region";
    CompileFailed = "compile_failed", "the compiler refuses the source";
    ForbiddenSymbol = "forbidden_symbol", "the compiled module asks for more than arithmetic, or keeps state";
    LoadFailed = "load_failed", "the compiled module cannot be loaded";
    RunFailed = "run_failed", "the runtime refuses to run the plan";
    Timeout = "timeout", "the evaluation passed its deadline";
    OutOfBoundsWrite = "out_of_bounds_write", "memory outside the declared writes was changed";
    InputModified = "input_modified", "an input was changed";
    UninitializedOutput = "uninitialized_output", "an output depends on what was in memory before";
    NotRepeatable = "not_repeatable", "equal inputs gave different outputs";
    /// Bitwise differences between thread counts.
    ThreadDependent = "thread_dependent", "the result depends on how the grid is divided";
    NonFiniteMask = "non_finite_mask", "NaN or infinity where the baseline has none, or the reverse";
    RmseBudget = "rmse_budget", "the root mean square error against f64 is over the budget";
    TailError = "tail_error", "the largest errors against f64 are over the budget";
    ForwardErrorBound = "forward_error_bound", "an element is further from f64 than its arithmetic can explain";
    ExactMismatch = "exact_mismatch", "a result that has only one right value has another";
    AccumulationPrecision = "accumulation_precision", "sums were carried in less than the graph's precision";
    Homogeneity = "homogeneity", "scaling an input by two did not scale the output by two";
    /// Our fault, or the region's: no statement about the candidate.
    MutationPower = "mutation_power", "the test set does not tell wrong kernels from right ones";
    NotFaster = "not_faster", "not faster than the baseline beyond the noise";
    /// Our fault: no statement about the candidate.
    BaselineFailed = "baseline_failed", "the baseline cannot be built or run";
    /// Our fault: no statement about the candidate.
    WorkerFailed = "worker_failed", "the worker process cannot be started or understood";
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.code()
    }
}

impl TryFrom<String> for Reason {
    type Error = String;

    fn try_from(code: String) -> Result<Reason, String> {
        if let Some(death) = code.strip_prefix("crash:").and_then(Death::from_name) {
            return Ok(Reason::Crash(death));
        }
        Reason::ALL.iter().copied().find(|r| r.code() == code).ok_or_else(|| format!("unknown reason '{code}'"))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

/// What a rejection rests on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// One sentence with the numbers that matter.
    pub summary: String,
    /// Diagnostics, or the source line; may be long.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The test case in which it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
    /// What was measured until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<ErrorReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Measurement>,
}

/// How far a candidate is from the f64 reference, and how hard that was tested.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ErrorReport {
    pub outputs: Vec<OutputErrors>,
    /// Random cases over all distributions.
    pub random_cases: usize,
    pub special_cases: usize,
    /// Cases compared bitwise against exact values.
    pub exact_cases: usize,
    /// Inputs in which the region was found linear and was checked for it.
    pub homogeneous_inputs: usize,
    pub repeats: usize,
    /// Deliberately wrong results that the same checks rejected.
    pub mutants_rejected: usize,
    /// Elements where only the baseline overflowed.
    pub baseline_overflows: usize,
    /// What could not be checked, and why.
    #[serde(default)]
    pub notes: Vec<String>,
    pub seconds: f64,
}

/// Errors of one output, the worst over all random cases.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct OutputErrors {
    pub name: String,
    pub elements: usize,
    /// Root mean square error over the root mean square of the reference.
    pub relative_rmse: f64,
    /// The same of the baseline, in the same case.
    pub baseline_relative_rmse: f64,
    /// Candidate error over what the budget admits: at most 1.
    pub rmse_used: f64,
    pub tail_used: f64,
    /// Error over the forward error bound, where one is known.
    pub bound_used: Option<f64>,
    /// The largest error, in units in the last place of the output there, or of its root mean square where the output is smaller
    /// (what is left of a cancellation has no digits of its own).
    pub max_ulp: f64,
    /// Where that was.
    pub worst_case: String,
    pub worst_index: usize,
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tested = self.random_cases + self.special_cases + self.exact_cases;
        write!(f, "{tested} cases ({} exact), {} wrong kernels told apart", self.exact_cases, self.mutants_rejected)?;
        for output in &self.outputs {
            write!(
                f,
                "; '{}': relative rmse {:.2e} (baseline {:.2e}), worst {:.1} ulp",
                output.name, output.relative_rmse, output.baseline_relative_rmse, output.max_ulp
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_distinct_codes_that_read_back() {
        let mut codes: Vec<String> = Reason::ALL.iter().map(|r| r.code()).collect();
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), Reason::ALL.len());
        for reason in
            Reason::ALL.iter().copied().chain([Reason::Crash(Death::Signal(11)), Reason::Crash(Death::Exit(3))])
        {
            let json = serde_json::to_string(&reason).unwrap();
            assert_eq!(serde_json::from_str::<Reason>(&json).unwrap(), reason);
        }
        assert_eq!(Reason::Crash(Death::Signal(11)).code(), "crash:SIGSEGV");
        assert!(serde_json::from_str::<Reason>("\"nonsense\"").is_err());
    }

    #[test]
    fn a_rejection_reads_as_a_sentence_and_back() {
        let verdict = Verdict::rejected(Stage::Validate, Reason::RmseBudget, "output 'y': 3.1e-3 of 1.0e-6");
        assert_eq!(
            verdict.to_string(),
            "rejected at validation (rmse_budget): the root mean square error against f64 is over the budget: output 'y': \
             3.1e-3 of 1.0e-6"
        );
        let json = serde_json::to_string(&verdict).unwrap();
        assert_eq!(
            json,
            r#"{"verdict":"rejected","stage":"validate","reason":"rmse_budget","evidence":{"summary":"output 'y': 3.1e-3 of 1.0e-6"}}"#
        );
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
    }
}
