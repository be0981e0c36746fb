//! What accepts or rejects: a candidate in, a [`Verdict`] out.
//!
//! In order: the source is [inspected](crate::inspect), assembled with the region, compiled, its object
//! [examined](crate::object), loaded, [validated](crate::validate) and [measured](crate::measure). The first that fails ends it.
//! Candidate code runs in this process, so callers that do not trust it go through a [`worker`](crate::worker).

mod block;
mod build;

use std::rc::Rc;

use forge_ir::{Bindings, Graph, Tensor};
use serde::{Deserialize, Serialize};

use crate::assemble::{AssembleError, Assembled, assemble_baseline, assemble_candidate};
use crate::candidate::{Candidate, Launch};
use crate::compile::{Cache, CompileError, Compiler};
use crate::inspect::inspect;
use crate::measure::{Closures, Device, MeasureOptions, measure};
use crate::validate::{Hint, How, Implementation, Subject, Suite, ValidateOptions};
use crate::verdict::{Evidence, Reason, Stage, Verdict};
use build::{Built, Timed, examined};

/// That the gate itself accepted: no other module can make one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof(());

impl Proof {
    /// Of a verdict read back from a worker or a journal, which a gate wrote.
    pub(crate) fn recorded() -> Proof {
        Proof(())
    }
}

/// How hard to look, and for how long.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GateOptions {
    pub validate: ValidateOptions,
    pub measure: MeasureOptions,
}

impl GateOptions {
    /// Runs everything with `threads` threads; other counts are tried where they must not matter.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> GateOptions {
        let mut counts = vec![threads.max(1)];
        counts.extend([1, 2, 3].into_iter().filter(|t| *t != threads));
        self.validate.threads = counts;
        self
    }

    fn threads(&self) -> usize {
        self.validate.threads.first().copied().unwrap_or(1)
    }
}

/// A candidate for a region.
pub struct Task<'a> {
    pub region: &'a Graph,
    /// The shapes to time at: a value for every symbol.
    pub bindings: &'a Bindings,
    pub weight_inputs: &'a [bool],
    pub candidate: &'a Candidate,
    /// What the candidate must beat; the region run op by op if there is nothing better.
    pub baseline: Option<&'a Candidate>,
    pub hints: &'a [Option<Hint>],
    /// Real weights, by input; random ones where there are none.
    pub given: &'a [Option<Tensor>],
    /// Real inputs of the bound shapes.
    pub captured: &'a [Vec<Tensor>],
    pub options: &'a GateOptions,
}

/// Suites kept: a search goes back and forth between few regions.
const KEPT_SUITES: usize = 4;

/// A compiler, a cache, and the suites of the regions seen last.
pub struct Bench {
    compiler: Compiler,
    cache: Cache,
    suites: Vec<(String, Rc<Prepared>)>,
}

/// What all candidates for a region share.
struct Prepared {
    suite: Suite,
    baseline: Built,
}

impl Bench {
    #[must_use]
    pub fn new(compiler: Compiler, cache: Cache) -> Bench {
        Bench { compiler, cache, suites: Vec::new() }
    }

    /// With the system's compiler.
    ///
    /// # Errors
    /// If there is none.
    pub fn detect(cache: Cache) -> Result<Bench, CompileError> {
        Ok(Bench::new(Compiler::detect()?, cache))
    }

    #[must_use]
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Judges a candidate for a region. `progress` hears of each stage as it begins.
    pub fn evaluate(&mut self, task: &Task<'_>, progress: &mut dyn FnMut(Stage)) -> Verdict {
        self.try_evaluate(task, progress).unwrap_or_else(|rejection| *rejection)
    }

    fn try_evaluate(&mut self, task: &Task<'_>, progress: &mut dyn FnMut(Stage)) -> Result<Verdict, Box<Verdict>> {
        progress(Stage::Inspect);
        admit(task.candidate)?;
        progress(Stage::Assemble);
        let assembled =
            assemble_candidate(task.region, task.weight_inputs, task.candidate).map_err(|e| plan_mismatch(&e))?;
        progress(Stage::Compile);
        let candidate = self.built(&assembled, task.weight_inputs)?;
        let beaten = match task.baseline {
            None => None,
            Some(baseline) => {
                let assembled =
                    assemble_candidate(task.region, task.weight_inputs, baseline).map_err(baseline_failed)?;
                Some(self.built(&assembled, task.weight_inputs).map_err(|v| baseline_failed(*v))?)
            }
        };
        let prepared = self.prepared(task)?;
        judge(&candidate, beaten.as_ref().unwrap_or(&prepared.baseline), &prepared.suite, task.options, progress)
    }

    fn built(&self, assembled: &Assembled, weight_inputs: &[bool]) -> Result<Built, Box<Verdict>> {
        let plan = examined(assembled, &self.compiler, &self.cache).map_err(|e| Box::new(Verdict::from(e)))?;
        Ok(Built::new(plan, &self.cache, assembled.weights.clone(), weight_inputs))
    }

    /// The suite of a region and its plain lowering, from the last few or made anew.
    fn prepared(&mut self, task: &Task<'_>) -> Result<Rc<Prepared>, Box<Verdict>> {
        let key = suite_key(task);
        if let Some((_, prepared)) = self.suites.iter().find(|(k, _)| *k == key) {
            return Ok(Rc::clone(prepared));
        }
        let assembled = assemble_baseline(task.region, task.weight_inputs).map_err(baseline_failed)?;
        let baseline = self.built(&assembled, task.weight_inputs).map_err(|v| baseline_failed(*v))?;
        let shapes = test_shapes(task.region, task.bindings).map_err(baseline_failed)?;
        let subject = Subject {
            shapes: &shapes,
            weight_inputs: task.weight_inputs,
            hints: task.hints,
            given: task.given,
            captured: task.captured,
        };
        let suite =
            Suite::prepare(&subject, &baseline, &task.options.validate).map_err(|r| Box::new(Verdict::from(r)))?;
        let prepared = Rc::new(Prepared { suite, baseline });
        if self.suites.len() >= KEPT_SUITES {
            self.suites.remove(0);
        }
        self.suites.push((key, Rc::clone(&prepared)));
        Ok(prepared)
    }
}

/// The parts of a candidate that are text from outside.
fn admit(candidate: &Candidate) -> Result<(), Box<Verdict>> {
    let forbidden = |what: String| Box::new(Verdict::rejected(Stage::Inspect, Reason::Forbidden, what));
    inspect(&candidate.source).map_err(|finding| forbidden(finding.to_string()))?;
    for launch in candidate.launch.prepare.iter().chain(&candidate.launch.launches) {
        if let Launch::Kernel { symbol, .. } = launch {
            let first = symbol.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
            if !first || !symbol.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                return Err(forbidden(format!("the kernel name {symbol:?} is not an identifier")));
            }
        }
    }
    Ok(())
}

fn plan_mismatch(error: &AssembleError) -> Box<Verdict> {
    let reason = match error {
        AssembleError::NoLowering { .. } | AssembleError::MissingData(_) => Reason::BaselineFailed,
        _ => Reason::PlanMismatch,
    };
    Box::new(Verdict::rejected(Stage::Assemble, reason, error.to_string()))
}

fn baseline_failed(error: impl std::fmt::Display) -> Box<Verdict> {
    Box::new(Verdict::rejected(Stage::Assemble, Reason::BaselineFailed, error.to_string()))
}

/// Validation and measurement of something built.
fn judge(
    candidate: &Built,
    baseline: &Built,
    suite: &Suite,
    options: &GateOptions,
    progress: &mut dyn FnMut(Stage),
) -> Result<Verdict, Box<Verdict>> {
    progress(Stage::Load);
    let inputs = suite.typical_inputs();
    let threads = options.threads();
    let mut timed = candidate
        .timed(inputs, threads)
        .map_err(|e| Box::new(Verdict::rejected(Stage::Load, load_reason(&e), e.to_string())))?;
    progress(Stage::Validate);
    let errors = suite.check(candidate).map_err(|r| Box::new(Verdict::from(r)))?;

    progress(Stage::Measure);
    let bench = |built: &Built| built.timed(inputs, threads).map_err(baseline_failed);
    let (mut first, mut second) = (bench(baseline)?, bench(baseline)?);
    let once = |timed: &mut Timed| timed.run_once().map_err(|e| e.to_string());
    let timing = measure(
        &mut Closures {
            baseline: &mut || once(&mut first),
            baseline_again: &mut || once(&mut second),
            candidate: &mut || once(&mut timed),
        },
        &options.measure,
        Device::cpu(threads),
    )
    .map_err(|e| Box::new(Verdict::rejected(Stage::Measure, Reason::RunFailed, e)))?;

    // What was timed is what was validated: the last timed call left what a call of its own gives.
    let how = How { threads, fill: 0x5a, checked: false };
    let apart = candidate.run(inputs, how).ok();
    if apart != timed.tensors() {
        let what = "the last of the timed calls gave another result than a call by itself";
        return Err(Box::new(Verdict::rejected(Stage::Measure, Reason::NotRepeatable, what)));
    }
    if !timing.is_faster() {
        let summary = format!("{timing}; the interval must be above {:.3}", timing.threshold);
        let evidence = Evidence { summary, errors: Some(errors), timing: Some(timing), ..Evidence::default() };
        return Err(Box::new(Verdict::Rejected { stage: Stage::Measure, reason: Reason::NotFaster, evidence }));
    }
    Ok(Verdict::Accepted { errors, timing, proof: Proof(()) })
}

fn load_reason(error: &forge_runtime::RuntimeError) -> Reason {
    match error {
        forge_runtime::RuntimeError::Module { .. } | forge_runtime::RuntimeError::Io { .. } => Reason::LoadFailed,
        forge_runtime::RuntimeError::Guard { .. } => Reason::OutOfBoundsWrite,
        _ => Reason::PlanMismatch,
    }
}

/// What a suite depends on.
fn suite_key(task: &Task<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(task.region.to_text().as_bytes());
    hasher.update(format!("{:?}{:?}{:?}", task.bindings, task.weight_inputs, task.hints).as_bytes());
    // Plain data serialises.
    hasher.update(&serde_json::to_vec(&task.options.validate).unwrap_or_default());
    for tensor in task.given.iter().flatten().chain(task.captured.iter().flatten()) {
        hasher.update(tensor.ty().to_string().as_bytes()).update(tensor.bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Sizes near which loops end: alone, below a vector, odd, just over a block.
const SMALL_SIZES: [[i64; 3]; 3] = [[1, 1, 1], [3, 5, 7], [17, 13, 33]];

/// The region at the bound sizes, then at small ones that its symbols admit.
fn test_shapes(region: &Graph, bindings: &Bindings) -> Result<Vec<Graph>, forge_ir::InferError> {
    let mut shapes = vec![region.specialize(bindings)?];
    let symbols = region.symbols();
    if symbols.is_empty() {
        return Ok(shapes);
    }
    for sizes in SMALL_SIZES {
        let small: Bindings =
            symbols.iter().enumerate().map(|(i, symbol)| (symbol.clone(), sizes[i % sizes.len()])).collect();
        // A size that the region's rules exclude (a slice beyond an end) is no shape of it.
        let Ok(graph) = region.specialize(&small) else { continue };
        let positive = graph.node_ids().all(|node| {
            graph.node(node).outputs.iter().all(|ty| ty.const_shape().is_some_and(|shape| !shape.contains(&0)))
        });
        if positive {
            shapes.push(graph);
        }
    }
    Ok(shapes)
}

#[cfg(test)]
mod tests {
    use forge_ir::text::parse;

    use super::*;

    #[test]
    fn symbolic_regions_are_tested_at_small_sizes_too() {
        let region = parse(
            "graph @g(%x: f32[N, 8]) -> (f32[N, 8]) {
               %0 = relu(%x)
               return %0
             }",
        )
        .unwrap();
        let shapes = test_shapes(&region, &Bindings::from([("N".to_owned(), 64)])).unwrap();
        let rows: Vec<String> = shapes.iter().map(|g| g.ty(g.outputs()[0].1).to_string()).collect();
        assert_eq!(rows, ["f32[64, 8]", "f32[1, 8]", "f32[3, 8]", "f32[17, 8]"]);
    }

    #[test]
    fn kernel_names_are_identifiers() {
        let mut candidate: Candidate = serde_json::from_str(
            r#"{"dialect": "cpp", "source": "", "launch": {"temporaries": [], "packed": [], "prepare": [], "launches": []},
                "origin": {"proposer": "user", "strategy": "", "parameters": {}, "parent": null}}"#,
        )
        .unwrap();
        assert!(admit(&candidate).is_ok());
        for (name, fine) in [("kernel_1", true), ("1kernel", false), ("", false), ("a;b", false), ("_start", false)] {
            candidate.launch.launches = vec![Launch::Kernel {
                symbol: name.into(),
                reads: vec![],
                writes: vec![],
                sizes: vec![],
                grid: 1.into(),
                grain: 1.into(),
                scratch: 0.into(),
            }];
            assert_eq!(admit(&candidate).is_ok(), fine, "{name}");
        }
    }
}
