//! Running pipelines: fixpoints, verification, limits, and what there is to see on the way.

use std::fmt;
use std::time::{Duration, Instant};

use forge_ir::{Exactness, Graph, Patch};

use crate::registry::PassError;
use crate::{Context, Pipeline, Step};

/// Rounds of one pass before it counts as running away.
const MAX_ROUNDS: usize = 1000;

/// What a run does beside the passes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Verify after every pass; on by default in debug builds.
    pub verify_each: bool,
    /// Stop after this many patches in all: bisection finds the rewrite at fault.
    pub max_rewrites: Option<usize>,
    /// Stop after the first step of this pass.
    pub stop_after: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { verify_each: cfg!(debug_assertions), max_rewrites: None, stop_after: None }
    }
}

/// Watches a run. Every method may be left out.
pub trait Observer {
    /// A patch was applied; the graph is as after it.
    fn after_patch(&mut self, _pass: &'static str, _patch: &Patch, _graph: &Graph) {}
    /// A step is done.
    fn after_pass(&mut self, _run: &PassRun, _graph: &Graph) {}
}

/// What one step of a pipeline did.
#[derive(Clone, Debug)]
pub struct PassRun {
    /// The step as written: `raise{only=gelu}`.
    pub step: String,
    pub pass: &'static str,
    /// Times that the pass looked at the graph.
    pub rounds: usize,
    /// Patches applied.
    pub applied: usize,
    /// Patches that an earlier patch of the same round had overtaken.
    pub stale: usize,
    /// The least exact patch applied.
    pub exactness: Exactness,
    /// Ops, leaves left out.
    pub ops_before: usize,
    pub ops_after: usize,
    pub elapsed: Duration,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub passes: Vec<PassRun>,
    /// Whether `stop_after` or `max_rewrites` ended the run early.
    pub stopped: bool,
}

impl Report {
    /// Patches applied in all.
    #[must_use]
    pub fn rewrites(&self) -> usize {
        self.passes.iter().map(|run| run.applied).sum()
    }

    /// The least exact patch of the run.
    #[must_use]
    pub fn exactness(&self) -> Exactness {
        self.passes.iter().map(|run| run.exactness).max().unwrap_or(Exactness::Exact)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28} {:>8} {:>6} {:>13} {:>10}", "pass", "patches", "rounds", "ops", "time")?;
        for run in &self.passes {
            let ops = format!("{} -> {}", run.ops_before, run.ops_after);
            let micros = run.elapsed.as_micros();
            writeln!(f, "{:<28} {:>8} {:>6} {ops:>13} {micros:>7} us", run.step, run.applied, run.rounds)?;
        }
        Ok(())
    }
}

/// Runs pipelines over graphs.
pub struct Manager<'a> {
    context: Context,
    settings: Settings,
    observers: Vec<&'a mut dyn Observer>,
}

impl<'a> Manager<'a> {
    /// With default settings and no observers. Options of `context` are replaced by those of each step.
    #[must_use]
    pub fn new(context: Context) -> Manager<'a> {
        Manager { context, settings: Settings::default(), observers: Vec::new() }
    }

    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Manager<'a> {
        self.settings = settings;
        self
    }

    #[must_use]
    pub fn with_observer(mut self, observer: &'a mut dyn Observer) -> Manager<'a> {
        self.observers.push(observer);
        self
    }

    /// Runs the steps in order. The graph is valid after each.
    ///
    /// # Errors
    /// If a pass is at fault (see [`PassError`]); the graph is then as after the last patch.
    pub fn run(&mut self, graph: &mut Graph, pipeline: &Pipeline) -> Result<Report, PassError> {
        let mut report = Report::default();
        for step in &pipeline.steps {
            let left = self.settings.max_rewrites.map(|max| max.saturating_sub(report.rewrites()));
            let run = self
                .step(graph, step, left)
                .map_err(|source| PassError::In { pass: step.pass.name, source: Box::new(source) })?;
            for observer in &mut self.observers {
                observer.after_pass(&run, graph);
            }
            report.passes.push(run);
            let spent = self.settings.max_rewrites.is_some_and(|max| report.rewrites() >= max);
            if spent || self.settings.stop_after.as_deref() == Some(step.pass.name) {
                report.stopped = true;
                break;
            }
        }
        Ok(report)
    }

    fn step(&mut self, graph: &mut Graph, step: &Step, left: Option<usize>) -> Result<PassRun, PassError> {
        let start = Instant::now();
        let context = self.context.with_options(step.options.clone());
        let limit = context.options.number("max")?.into_iter().chain(left).min().unwrap_or(usize::MAX);
        let mut run = PassRun {
            step: step.to_string(),
            pass: step.pass.name,
            rounds: 0,
            applied: 0,
            stale: 0,
            exactness: Exactness::Exact,
            ops_before: graph.op_count(),
            ops_after: 0,
            elapsed: Duration::ZERO,
        };
        let mut last = String::new();
        while run.applied < limit {
            if run.rounds == MAX_ROUNDS {
                let faults = format!("no fixpoint after {MAX_ROUNDS} rounds: two rewrites undo each other");
                return Err(PassError::Broken { why: last, faults });
            }
            run.rounds += 1;
            let mut applied = 0;
            for patch in (step.pass.run)(graph, &context)? {
                if run.applied + applied >= limit {
                    break;
                }
                match graph.apply(&patch) {
                    Ok(()) => applied += 1,
                    // Made against the graph as it was before the first patch of this round.
                    Err(_) if applied > 0 => {
                        run.stale += 1;
                        continue;
                    }
                    Err(source) => return Err(PassError::Patch { why: patch.why, source: Box::new(source) }),
                }
                run.exactness = run.exactness.max(patch.exactness);
                for observer in &mut self.observers {
                    observer.after_patch(step.pass.name, &patch, graph);
                }
                last.clone_from(&patch.why);
            }
            run.applied += applied;
            if applied == 0 || !step.pass.fixpoint {
                break;
            }
        }
        if self.settings.verify_each {
            graph.verify().map_err(|faults| PassError::Broken { why: last, faults: faults.to_string() })?;
        }
        run.ops_after = graph.op_count();
        run.elapsed = start.elapsed();
        Ok(run)
    }
}

/// Writes the graph after passes, as `--print-after` does.
pub struct PrintAfter<W: std::io::Write> {
    /// Passes to print after; all of them if empty.
    pub passes: Vec<String>,
    pub out: W,
}

impl<W: std::io::Write> Observer for PrintAfter<W> {
    fn after_pass(&mut self, run: &PassRun, graph: &Graph) {
        if self.passes.is_empty() || self.passes.iter().any(|name| name == run.pass) {
            // Who watches may go away (a closed pipe); the run goes on.
            let _ = write!(self.out, "// after {}: {} patches\n{graph}", run.step, run.applied);
        }
    }
}
