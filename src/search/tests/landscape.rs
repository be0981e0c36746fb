//! A lab whose verdicts are a function of the point.

use std::collections::BTreeMap;

use forge_kernels::candidate::{Candidate, Dialect, LaunchPlan, Origin};
use forge_kernels::templates::{Axis, Parameters};
use forge_kernels::verdict::{Reason, Stage, Verdict};

use crate::search::lab::{Ask, Lab, Refusal, Refused, RegionTask, Survey};
use crate::search::tree::Offer;

/// What becomes of a point.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Ratio(f64),
    Rejected(Reason),
    Refused(&'static str),
}

pub(super) struct Scripted<'a> {
    pub(super) offers: BTreeMap<String, Vec<Offer>>,
    pub(super) landscape: &'a dyn Fn(&str, &str, &Parameters) -> Reply,
    /// The kernel's text, from which equal kernels are known.
    pub(super) source: &'a dyn Fn(&str, &Parameters) -> String,
    /// (region, candidate hash) of every call, in order.
    pub(super) judged: Vec<(String, String)>,
    pub(super) asked: usize,
    pub(super) replies: BTreeMap<String, Reply>,
}

impl<'a> Scripted<'a> {
    pub(super) fn new(
        offers: BTreeMap<String, Vec<Offer>>,
        landscape: &'a dyn Fn(&str, &str, &Parameters) -> Reply,
    ) -> Scripted<'a> {
        Scripted { offers, landscape, source: &distinct, judged: Vec::new(), asked: 0, replies: BTreeMap::new() }
    }
}

fn distinct(strategy: &str, parameters: &Parameters) -> String {
    format!("// {strategy} {parameters:?}")
}

impl Lab for Scripted<'_> {
    fn survey(&mut self, region: &RegionTask) -> Survey {
        let refusals = vec![Refusal { strategy: "template/none".into(), reason: "no matmul in the region".into() }];
        Survey { offers: self.offers[&region.hash].clone(), refusals }
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused> {
        self.asked += 1;
        let reply = (self.landscape)(&ask.region.hash, ask.strategy, &ask.parameters);
        if let Reply::Refused(why) = reply {
            return Err(Refused(why.to_owned()));
        }
        let (proposer, strategy) = ask.strategy.split_once('/').unwrap();
        let candidate = Candidate {
            dialect: Dialect::Cpp,
            source: (self.source)(ask.strategy, &ask.parameters),
            launch: LaunchPlan::default(),
            origin: Origin {
                proposer: proposer.into(),
                strategy: strategy.into(),
                parameters: ask.parameters.clone(),
                parent: None,
            },
        };
        self.replies.insert(candidate.hash(), reply);
        Ok(vec![candidate])
    }

    fn judge(&mut self, region: &RegionTask, candidate: &Candidate) -> Verdict {
        self.judged.push((region.hash.clone(), candidate.hash()));
        match self.replies[&candidate.hash()] {
            Reply::Ratio(ratio) if ratio > 1.0 => accepted(ratio),
            Reply::Ratio(ratio) => slower(ratio),
            Reply::Rejected(reason) => Verdict::rejected(Stage::Validate, reason, "scripted"),
            Reply::Refused(_) => unreachable!("never proposed"),
        }
    }
}

fn timing(ratio: f64) -> serde_json::Value {
    serde_json::json!({
        "ratio": ratio, "ci": [ratio * 0.99, ratio * 1.01], "p_value": 0.001, "noise": 0.004, "threshold": 1.01,
        "baseline_ns": 1000.0, "candidate_ns": 1000.0 / ratio, "samples": [], "repetitions": 10, "method": "scripted",
        "device": {"model": "none", "threads": 1},
    })
}

/// As a journal has it: only the gate makes an acceptance any other way.
pub(super) fn accepted(ratio: f64) -> Verdict {
    let errors = serde_json::json!({
        "outputs": [], "random_cases": 32, "special_cases": 8, "exact_cases": 4, "homogeneous_inputs": 0, "repeats": 3,
        "mutants_rejected": 6, "baseline_overflows": 0, "seconds": 0.25,
    });
    serde_json::from_value(serde_json::json!({"verdict": "accepted", "errors": errors, "timing": timing(ratio)}))
        .unwrap()
}

fn slower(ratio: f64) -> Verdict {
    let evidence = serde_json::json!({"summary": "slower", "timing": timing(ratio)});
    let verdict =
        serde_json::json!({"verdict": "rejected", "stage": "measure", "reason": "not_faster", "evidence": evidence});
    serde_json::from_value(verdict).unwrap()
}

/// A region of one relu with this share of the graph's time.
pub(super) fn region(hash: &str, share: f64) -> RegionTask {
    let text = "graph @body(%x: f32[N, 8]) -> (f32[N, 8]) {\n  %0 = relu(%x) : f32[N, 8]\n  return %0\n}\n";
    let body = forge_ir::parse(text).unwrap();
    RegionTask {
        hash: hash.to_owned(),
        body,
        weight_inputs: vec![false],
        occurrences: 1,
        baseline_ns: Some(1000.0),
        estimated_share: share,
        headroom: None,
    }
}

/// An axis of the values `0..count`.
pub(super) fn axis(name: &'static str, count: usize) -> Axis {
    Axis { name, values: (0..count).map(|value| value.to_string()).collect() }
}

pub(super) fn offer(strategy: &str, axes: Vec<Axis>) -> Offer {
    Offer { strategy: strategy.to_owned(), axes }
}

/// The numbers of a point, in the order of the axes' names.
pub(super) fn numbers(parameters: &Parameters) -> Vec<f64> {
    parameters.values().map(|value| value.parse().unwrap()).collect()
}
