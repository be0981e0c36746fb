//! The main job: a model file in, an output directory out.
//!
//! [`build()`] runs the stages of design order: import, passes, regions, search, whole-graph check and measurement, emit. Each
//! stage is a function of what the one before left; the journal in the output directory is the only state that outlives the
//! process.

mod cost;
mod lab;
mod model;
mod whole_graph;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use forge_ir::Graph;
use forge_kernels::candidate::Candidate;
use forge_kernels::compile::{Cache, Compiler, LIBRARY};
use forge_kernels::verdict::Verdict;
use forge_passes::regions::{RegionClass, discover};
use forge_passes::{Context, Manager, Pipeline, Settings};

pub use self::lab::{WorkerLab, fits_a_template};
pub use self::model::{Model, ModelError, load_model};
use crate::emit::host::Cpu;
use crate::emit::manifest::{KernelBuild, Manifest, SymbolRange};
use crate::emit::report::{EndToEnd, KernelReport, Outcome, RegionReport, Report};
use crate::emit::{self, EmitError, Kernel, Output, PlannedGraph};
use crate::search::budget::{Budget, OptLevel};
use crate::search::event::{Config, Event, Stop};
use crate::search::lab::RegionTask;
use crate::search::run::{Options, Progress, search};
use crate::search::session::{Session, SessionError};
use crate::search::state::{Run, State};

/// What to build, and how.
#[derive(Clone, Debug)]
pub struct Request {
    pub model: PathBuf,
    pub output: PathBuf,
    pub level: OptLevel,
    pub shape: forge_ir::Bindings,
    pub budget: Budget,
    pub seed: u64,
    pub threads: usize,
    pub resume: bool,
    pub force: bool,
    pub passes: Settings,
    /// The executable that is started as `EXE worker`.
    pub worker: PathBuf,
    pub cache: Cache,
}

/// What happens, as it happens.
pub trait Watch {
    /// A stage begins or something is worth a line.
    fn note(&mut self, text: &str);
    /// The search is about to judge a candidate.
    fn search(&mut self, progress: &Progress<'_>);
    /// After each pass.
    fn pass(&mut self, run: &forge_passes::PassRun, graph: &Graph);
}

/// What came of it.
#[derive(Debug)]
pub struct Built {
    pub manifest: Manifest,
    pub stop: Stop,
    /// Whether the whole forged graph passed its checks; otherwise the output directory runs the unrewritten graph.
    pub accepted: bool,
}

/// Why there is no output directory.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Pipeline(#[from] forge_passes::PipelineError),
    #[error(transparent)]
    Pass(#[from] forge_passes::PassError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Emit(#[from] EmitError),
    #[error(transparent)]
    Assemble(#[from] forge_kernels::assemble::AssembleError),
    #[error(transparent)]
    Compile(#[from] forge_kernels::compile::CompileError),
    #[error(transparent)]
    Load(#[from] forge_kernels::build::BuildError),
    #[error(transparent)]
    WholeGraph(#[from] whole_graph::WholeGraphError),
    #[error("the rewritten graph cannot be cut into its regions: {0}")]
    Regions(String),
}

/// Optimises a model and writes its output directory.
///
/// # Errors
/// See [`BuildError`]; the output directory is then as it was, but for the journal of a search that had begun.
pub fn build(request: &Request, watch: &mut dyn Watch, interrupt: &AtomicBool) -> Result<Built, BuildError> {
    let started = Instant::now();
    emit::check_target(&request.output, request.force)?;
    let runtime_library = emit::find_runtime_library()?;
    let compiler = Compiler::detect()?;
    let model = load_model(&request.model, &request.shape)?;
    for note in &model.notes {
        watch.note(note);
    }
    let original = &model.bound;
    watch.note(&format!("{}: {} ops over {}", model.name, original.op_count(), inputs_text(original)));

    let rewritten = if request.level.rewrites() { optimise(original, request, watch)? } else { original.clone() };
    let classes = if request.level.searches() { discover(&rewritten, &fits_a_template) } else { Vec::new() };
    let run = Run {
        tool: format!("{} {}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
        model: model.hash.clone(),
        config: Config {
            target: "cpu".into(),
            level: request.level,
            shape: model.bindings.clone(),
            threads: request.threads,
            budget: request.budget,
        },
        seed: request.seed,
    };
    let journal = request.output.join(emit::JOURNAL_FOLDER);
    let clock = Box::new(move || started.elapsed());
    let mut session = Session::begin(&journal, request.resume, run, clock)?;
    session.graph_ready(original.op_count(), rewritten.op_count())?;
    watch.note(&format!(
        "passes: {} ops; {} regions in {} places",
        rewritten.op_count(),
        classes.len(),
        classes.iter().map(|c| c.occurrences.len()).sum::<usize>()
    ));

    let bench = whole_graph::Bench::new(original, &compiler, request)?;
    let tasks = tasks(&classes, &rewritten, &bench)?;
    let mut lab = WorkerLab::new(request);
    let options = Options { level: request.level, budget: request.budget, seed: request.seed, ..Options::default() };
    let found = search(&mut session, &mut lab, &tasks, &options, interrupt, &mut |p| watch.search(p))?;
    drop(lab);

    watch.note(&format!("search: {}; {} regions have a faster kernel", found.stop, found.winners.len()));
    let chosen = whole_graph::choose(&bench, &rewritten, &classes, &found.winners, request, watch)?;
    for (region, why) in &chosen.dropped {
        if let Some(candidate) = candidate_id(session.state(), region, &found.winners) {
            session.emit(&Event::KernelDropped { id: candidate, why: why.clone() })?;
        }
    }
    let kernels =
        chosen.kept.keys().filter_map(|region| candidate_id(session.state(), region, &found.winners)).collect();
    session.whole_graph_measured(kernels, chosen.verdict.clone())?;
    session.finish(found.stop)?;

    let report = report(session.state(), &chosen, &model.bindings);
    let manifest = write(request, &model, &chosen, &report, &compiler, &runtime_library, &journal, watch)?;
    watch.note(&format!("wrote {} in {:.1} s", request.output.display(), started.elapsed().as_secs_f64()));
    Ok(Built { manifest, stop: found.stop, accepted: chosen.accepted() })
}

/// Runs the default pipeline.
///
/// # Errors
/// If a pass is at fault.
pub fn optimise(graph: &Graph, request: &Request, watch: &mut dyn Watch) -> Result<Graph, BuildError> {
    struct Observe<'a>(&'a mut dyn Watch);
    impl forge_passes::Observer for Observe<'_> {
        fn after_pass(&mut self, run: &forge_passes::PassRun, graph: &Graph) {
            self.0.pass(run, graph);
        }
    }
    let pipeline: Pipeline = forge_passes::DEFAULT_PIPELINE.parse()?;
    let mut graph = graph.clone();
    let mut observer = Observe(watch);
    Manager::new(Context::default())
        .with_settings(request.passes.clone())
        .with_observer(&mut observer)
        .run(&mut graph, &pipeline)?;
    Ok(graph)
}

/// The regions as the search sees them, each with its share of the rewritten graph's time without kernels.
fn tasks(
    classes: &[RegionClass],
    rewritten: &Graph,
    bench: &whole_graph::Bench<'_>,
) -> Result<Vec<RegionTask>, BuildError> {
    let shares = bench.shares(rewritten, classes)?;
    Ok(classes
        .iter()
        .zip(shares)
        .map(|(class, share)| RegionTask {
            hash: class.hash.clone(),
            body: class.body.clone(),
            weight_inputs: class.weight_inputs.clone(),
            occurrences: class.occurrences.len(),
            baseline_ns: None,
            estimated_share: share,
            headroom: None,
        })
        .collect())
}

fn inputs_text(graph: &Graph) -> String {
    let inputs: Vec<String> = graph
        .inputs()
        .iter()
        .map(|n| format!("{}: {}", graph.input_name(*n), graph.ty(forge_ir::Value { node: *n, port: 0 })))
        .collect();
    inputs.join(", ")
}

fn candidate_id(state: &State, region: &str, winners: &BTreeMap<String, (Candidate, Verdict)>) -> Option<u64> {
    let (candidate, _) = winners.get(region)?;
    state.first_of(region, &candidate.hash())
}

fn report(state: &State, chosen: &whole_graph::Chosen, sizes: &forge_ir::Bindings) -> Report {
    let mut regions = Vec::new();
    for region in state.regions.values() {
        let kernels = state
            .candidates
            .values()
            .filter(|c| c.region == region.hash && c.repeats.is_none())
            .filter_map(|c| {
                let mut outcome = Outcome::from(c.verdict.as_ref()?);
                if let Outcome::Accepted { used, unused_because, .. } = &mut outcome {
                    *used = chosen.kept.get(&region.hash).is_some_and(|kept| kept.hash() == c.hash);
                    if !*used {
                        *unused_because = Some(match (&c.dropped, chosen.accepted()) {
                            (Some(why), _) => why.clone(),
                            (None, false) => "the whole graph was not accepted".into(),
                            (None, true) => "another kernel of the region is faster".into(),
                        });
                    }
                }
                Some(KernelReport { hash: c.hash.clone(), title: c.title.clone(), outcome })
            })
            .collect();
        regions.push(RegionReport {
            hash: region.hash.clone(),
            summary: region.title.clone(),
            occurrences: region.occurrences,
            kernels,
        });
    }
    let end_to_end = chosen.timing().map(|timing| EndToEnd::new(timing, 0.95, sizes.clone()));
    Report { regions, end_to_end }
}

fn write(
    request: &Request,
    model: &Model,
    chosen: &whole_graph::Chosen,
    report: &Report,
    compiler: &Compiler,
    runtime_library: &std::path::Path,
    journal: &std::path::Path,
    watch: &mut dyn Watch,
) -> Result<Manifest, BuildError> {
    let original = forge_kernels::assemble::assemble(&model.symbolic, &|_| None)?;
    let original_built = forge_kernels::build::build(&original, compiler, &request.cache)?;
    let forged_built = forge_kernels::build::build(&chosen.assembled, compiler, &request.cache)?;
    let mut kernels: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for (built, assembled) in [(&original_built, &original), (&forged_built, &chosen.assembled)] {
        for (object, source) in built.objects.iter().zip(&assembled.sources) {
            kernels.insert(object.path.clone(), source);
        }
    }
    let kernels: Vec<Kernel<'_>> =
        kernels.iter().map(|(library, source)| Kernel { library: library.as_path(), source }).collect();
    let onnx = match emit::onnx_model::to_model(&chosen.graph) {
        Ok(onnx) => Some(prost::Message::encode_to_vec(&onnx)),
        Err(why) => {
            watch.note(&format!("no {}: {why}", emit::ONNX_FILE));
            None
        }
    };
    let output = Output {
        name: &model.name,
        forged: PlannedGraph { graph: &chosen.graph, plan: &forged_built.plan, weights: &chosen.assembled.weights },
        original: PlannedGraph { graph: &model.symbolic, plan: &original_built.plan, weights: &original.weights },
        kernels: &kernels,
        kernel_build: KernelBuild::of(compiler),
        kernel_headers: LIBRARY,
        cpu: Cpu::detect(),
        runtime_library,
        symbols: BTreeMap::<String, SymbolRange>::new(),
        input_values: whole_graph::input_ranges(&model.bound),
        onnx: onnx.as_deref(),
        report,
        journal: Some(journal),
    };
    Ok(emit::emit(&output, &request.output, request.force)?)
}

/// Time that a stage may take of a budget: a tenth, between one and ten seconds.
fn share_of(budget: &Budget) -> Duration {
    let tenth = budget.time.unwrap_or(Duration::from_secs(60)) / 10;
    tenth.clamp(Duration::from_secs(1), Duration::from_secs(10))
}
