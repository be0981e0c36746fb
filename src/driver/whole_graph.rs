//! From region winners to one plan: assemble, check, measure, and drop what does not help.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use forge_ir::{Graph, Op, Region};
use forge_kernels::assemble::{AssembleError, Assembled, assemble};
use forge_kernels::build::{self, BuildError};
use forge_kernels::candidate::Candidate;
use forge_kernels::compile::Compiler;
use forge_kernels::measure::{MeasureOptions, Measurement};
use forge_kernels::validate::inputs::{self, Hint, Role};
use forge_kernels::verdict::Verdict;
use forge_kernels::whole::{WholeGraph, WholeOptions, judge, time};
use forge_passes::regions::RegionClass;
use forge_runtime::{Executable, Options};

use super::{Request, Watch, cost, share_of};

#[derive(Debug, thiserror::Error)]
pub enum WholeGraphError {
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("region {0} cannot be fused into the graph: {1}")]
    Fuse(String, String),
    #[error("the unrewritten graph cannot be run: {0}")]
    Baseline(String),
}

/// The unrewritten graph, ready to run: what everything is measured against.
pub(super) struct Bench<'a> {
    original: &'a Graph,
    compiler: &'a Compiler,
    request: &'a Request,
    baseline: Arc<Executable>,
    baseline_again: Arc<Executable>,
}

/// The plan that ships.
pub(super) struct Chosen {
    /// With a fused call for every kernel kept.
    pub(super) graph: Graph,
    pub(super) assembled: Assembled,
    /// By region hash.
    pub(super) kept: BTreeMap<String, Candidate>,
    /// Winners that do not ship, with the reason.
    pub(super) dropped: Vec<(String, String)>,
    pub(super) verdict: Verdict,
}

impl Chosen {
    #[must_use]
    pub(super) fn accepted(&self) -> bool {
        matches!(self.verdict, Verdict::Accepted { .. })
    }

    /// Of the whole graph, if it came to that.
    #[must_use]
    pub(super) fn timing(&self) -> Option<&Measurement> {
        match &self.verdict {
            Verdict::Accepted { timing, .. } => Some(timing),
            Verdict::Rejected { evidence, .. } => evidence.timing.as_ref(),
        }
    }
}

impl<'a> Bench<'a> {
    /// Builds the baseline.
    ///
    /// # Errors
    /// If it cannot be lowered, compiled or loaded.
    pub(super) fn new(
        original: &'a Graph,
        compiler: &'a Compiler,
        request: &'a Request,
    ) -> Result<Bench<'a>, WholeGraphError> {
        let assembled = assemble(original, &|_| None)?;
        let load = || build::load(&assembled, compiler, &request.cache, options(request));
        Ok(Bench { original, compiler, request, baseline: load()?, baseline_again: load()? })
    }

    /// Each region's share of the rewritten graph's time, all its occurrences together, by the roofline.
    ///
    /// # Errors
    /// Never, today; measured shares may fail.
    pub(super) fn shares(&self, rewritten: &Graph, classes: &[RegionClass]) -> Result<Vec<f64>, WholeGraphError> {
        let total = cost::seconds(rewritten).max(f64::MIN_POSITIVE);
        Ok(classes
            .iter()
            .map(|class| (cost::seconds(&class.body) * class.occurrences.len() as f64 / total).min(1.0))
            .collect())
    }

    fn load(&self, assembled: &Assembled) -> Result<Arc<Executable>, WholeGraphError> {
        Ok(build::load(assembled, self.compiler, &self.request.cache, options(self.request))?)
    }

    fn whole<'g>(&'g self, forged: &'g Executable) -> WholeGraph<'g> {
        WholeGraph {
            graph: self.original,
            hints: hints(self.original),
            baseline: &self.baseline,
            baseline_again: &self.baseline_again,
            forged,
        }
    }
}

fn options(request: &Request) -> Options {
    Options { threads: request.threads, poison: false, guard: false }
}

/// Fuses the winners into the rewritten graph, drops those without which it is no slower, checks the rest against the unrewritten
/// graph, and measures it. If the checks fail, the result runs the unrewritten graph.
///
/// # Errors
/// If a plan cannot be built.
pub(super) fn choose(
    bench: &Bench<'_>,
    rewritten: &Graph,
    classes: &[RegionClass],
    winners: &BTreeMap<String, (Candidate, Verdict)>,
    request: &Request,
    watch: &mut dyn Watch,
) -> Result<Chosen, WholeGraphError> {
    let budget = share_of(&request.budget);
    let mut kept: BTreeMap<String, Candidate> =
        winners.iter().map(|(hash, (candidate, _))| (hash.clone(), candidate.clone())).collect();
    let mut dropped = Vec::new();
    let (mut graph, mut assembled) = fuse(rewritten, classes, &kept)?;
    let mut forged = bench.load(&assembled)?;
    // Least expected gain first: what goes is what was least sure to help.
    let mut order: Vec<(f64, String)> = classes
        .iter()
        .filter_map(|class| {
            let (_, verdict) = winners.get(&class.hash)?;
            let gain =
                cost::seconds(&class.body) * class.occurrences.len() as f64 * (1.0 - 1.0 / verdict.ratio()?.max(1.0));
            Some((gain, class.hash.clone()))
        })
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    let started = Instant::now();
    for (at, (_, hash)) in order.iter().enumerate() {
        if started.elapsed() > budget * 2 {
            watch.note(&format!(
                "{} kernels are kept without a leave-one-out measurement: out of time",
                order.len() - at
            ));
            break;
        }
        let mut without = kept.clone();
        let Some(candidate) = without.remove(hash) else { continue };
        let (other_graph, other_assembled) = fuse(rewritten, classes, &without)?;
        let other = bench.load(&other_assembled)?;
        let measure = MeasureOptions {
            budget_seconds: (budget.as_secs_f64() * 2.0 / order.len() as f64).clamp(0.2, 2.0),
            seed: request.seed,
            ..MeasureOptions::default()
        };
        let whole = WholeGraph { baseline: &other, baseline_again: &other, ..bench.whole(&forged) };
        let timing = time(&whole, &measure).map_err(WholeGraphError::Baseline)?;
        if timing.ratio <= 1.0 {
            let why = format!(
                "does not help the whole graph: {:.4}x with it [{:.4}, {:.4}]",
                timing.ratio, timing.ci.0, timing.ci.1
            );
            watch.note(&format!("dropped {}: {why}", candidate.title()));
            dropped.push((hash.clone(), why));
            kept = without;
            graph = other_graph;
            assembled = other_assembled;
            forged = other;
        }
    }
    let whole_options = WholeOptions {
        seed: request.seed.wrapping_add(1),
        measure: MeasureOptions { budget_seconds: budget.as_secs_f64(), ..MeasureOptions::default() },
        ..WholeOptions::default()
    };
    let verdict = judge(&bench.whole(&forged), &whole_options);
    drop(forged);
    if let Verdict::Rejected { .. } = &verdict {
        watch.note(&format!("the rewritten graph is not used: {verdict}"));
        let assembled = assemble(bench.original, &|_| None)?;
        return Ok(Chosen { graph: bench.original.clone(), assembled, kept: BTreeMap::new(), dropped, verdict });
    }
    Ok(Chosen { graph, assembled, kept, dropped, verdict })
}

/// The rewritten graph with a fused call at every occurrence of a region that has a kernel, and its plan.
fn fuse(
    rewritten: &Graph,
    classes: &[RegionClass],
    kernels: &BTreeMap<String, Candidate>,
) -> Result<(Graph, Assembled), WholeGraphError> {
    let mut graph = rewritten.clone();
    let mut by_kernel: HashMap<String, &Candidate> = HashMap::new();
    for class in classes {
        let Some(candidate) = kernels.get(&class.hash) else { continue };
        let kernel = candidate.hash();
        by_kernel.insert(kernel.clone(), candidate);
        for occurrence in &class.occurrences {
            let failed = |why: String| WholeGraphError::Fuse(class.hash.clone(), why);
            // Made anew, since fusing its neighbours has renamed its inputs.
            let nodes: BTreeSet<_> = occurrence.nodes().iter().copied().filter(|n| graph.contains(*n)).collect();
            let region = Region::new(&graph, nodes).ok_or_else(|| failed("it is no longer convex".into()))?;
            let patch = region.fuse_patch(&graph, kernel.clone());
            graph.apply(&patch).map_err(|e| failed(e.to_string()))?;
        }
    }
    let assembled = assemble(&graph, &|node| match graph.op(node) {
        Op::Fused(fused) => by_kernel.get(&fused.kernel).map(|c| (*c).clone()),
        _ => None,
    })?;
    Ok((graph, assembled))
}

/// Integer inputs that nothing constrains are flags: masks, in every model met so far.
fn hints(graph: &Graph) -> Vec<Option<Hint>> {
    let constrained = |spec: &inputs::InputSpec| !matches!(spec.role, Role::Integer { low, high, .. } if (low, high) == inputs::FREE_INTEGERS);
    match inputs::specs(graph, &[], &[]) {
        None => Vec::new(),
        Some(specs) => {
            specs.iter().map(|s| if constrained(s) { None } else { Some(Hint::Range { low: 0, high: 1 }) }).collect()
        }
    }
}

/// The values [low, high) that make sense for each integer input.
#[must_use]
pub(super) fn input_ranges(graph: &Graph) -> BTreeMap<String, (i64, i64)> {
    let specs = inputs::specs(graph, &[], &hints(graph)).unwrap_or_default();
    specs
        .iter()
        .filter_map(|s| match s.role {
            Role::Integer { low, high, .. } => Some((s.name.clone(), (low, high.saturating_add(1)))),
            _ => None,
        })
        .collect()
}
