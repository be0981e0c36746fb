//! The real lab: templates propose, worker processes judge.

use std::collections::BTreeMap;
use std::time::Duration;

use forge_ir::{Bindings, Graph};
use forge_kernels::candidate::Candidate;
use forge_kernels::gate::GateOptions;
use forge_kernels::measure::MeasureOptions;
use forge_kernels::templates::{Spec, TEMPLATES};
use forge_kernels::validate::ValidateOptions;
use forge_kernels::verdict::Verdict;
use forge_kernels::worker::{Evaluation, WorkerClient, WorkerCommand};

use super::Request;
use crate::propose::Proposers;
use crate::propose::template::Templates;
use crate::search::lab::{Ask, Lab, Refused, RegionTask, Survey};

/// An evaluation that takes longer hangs: the slowest compile and the longest suite are well below.
const EVALUATION_TIMEOUT: Duration = Duration::from_secs(180);

/// Judges in a worker process, which is restarted when a candidate takes it down.
pub struct WorkerLab {
    proposers: Proposers,
    worker: WorkerClient,
    options: GateOptions,
    /// Region text by hash: printed once.
    texts: BTreeMap<String, String>,
}

impl WorkerLab {
    #[must_use]
    pub fn new(request: &Request) -> WorkerLab {
        let options = GateOptions {
            // A search judges many candidates: the suite's floor and a little more, and intervals as wide as a choice allows. What
            // ships is measured again, whole.
            validate: ValidateOptions {
                seeds: 2,
                prepare_seconds: 5.0,
                repeat_seconds: 0.2,
                seed: request.seed,
                ..ValidateOptions::default()
            },
            measure: MeasureOptions { budget_seconds: 1.0, seed: request.seed, ..MeasureOptions::default() },
        };
        WorkerLab {
            proposers: Proposers::new(vec![Box::new(Templates)]),
            worker: WorkerClient::new(WorkerCommand {
                program: request.worker.clone(),
                arguments: vec!["worker".into()],
                environment: vec![("FORGE_CACHE".into(), request.cache.folder().into())],
            }),
            options: options.with_threads(request.threads),
            texts: BTreeMap::new(),
        }
    }
}

impl Lab for WorkerLab {
    fn survey(&mut self, region: &RegionTask) -> Survey {
        self.proposers.survey(region)
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused> {
        self.proposers.propose(ask)
    }

    fn judge(&mut self, region: &RegionTask, candidate: &Candidate) -> Verdict {
        let text = self.texts.entry(region.hash.clone()).or_insert_with(|| region.body.to_text());
        let evaluation = Evaluation {
            region: text.clone(),
            bindings: Bindings::new(),
            weight_inputs: region.weight_inputs.clone(),
            candidate: candidate.clone(),
            baseline: None,
            hints: Vec::new(),
            options: self.options.clone(),
        };
        self.worker.evaluate(evaluation, EVALUATION_TIMEOUT)
    }
}

/// Whether some template can compute a region as one kernel.
#[must_use]
pub fn fits_a_template(region: &Graph, weight_inputs: &[bool]) -> bool {
    let spec = Spec { region, weight_inputs };
    TEMPLATES.iter().any(|template| (template.space)(&spec).is_ok())
}
