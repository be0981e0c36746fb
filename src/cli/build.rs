//! `forge-cc MODEL`: the main job, with a progress bar on a terminal and plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forge_ir::Graph;
use forge_kernels::compile::Cache;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{BuildArgs, PassArgs};
use super::diagnostic::{Diagnostic, Exit};
use crate::driver::{self, BuildError, ModelError, Request, Watch};
use crate::search::budget::{Budget, OptLevel};
use crate::search::event::Stop;
use crate::search::run::Progress;

pub(super) fn build(args: &BuildArgs) -> Result<(), Diagnostic> {
    let request = request(args)?;
    let interrupt = Arc::new(AtomicBool::new(false));
    catch_interrupts(&interrupt)?;
    let mut watch = Terminal::new(&args.passes);
    let built = driver::build(&request, &mut watch, &interrupt).map_err(diagnose)?;
    watch.bar.finish_and_clear();
    if args.json {
        let json = serde_json::to_string_pretty(&built.manifest)
            .map_err(|e| Diagnostic::new(Exit::Failure, format!("the report cannot be written as JSON: {e}")))?;
        super::print(&format!("{json}\n"))?;
    } else {
        super::print(&built.manifest.report.summary())?;
    }
    if built.stop == Stop::Interrupted {
        return Err(Diagnostic::new(
            Exit::Interrupted,
            format!("interrupted; {} holds the best so far", args.output.display()),
        )
        .with_help("the same command with --resume goes on"));
    }
    Ok(())
}

fn request(args: &BuildArgs) -> Result<Request, Diagnostic> {
    let model = args
        .model
        .clone()
        .ok_or_else(|| Diagnostic::new(Exit::Input, "no model given").with_help("forge-cc MODEL.onnx -o OUT"))?;
    let level = match args.level {
        0 => OptLevel::O0,
        1 => OptLevel::O1,
        2 => OptLevel::O2,
        _ => OptLevel::O3,
    };
    let budget = match (args.budget, args.trials) {
        (None, None) => level.default_budget(),
        (time, trials) => Budget { time, trials },
    };
    let environment = |name: &str| std::env::var_os(name);
    let cache = Cache::default_dir(&environment).ok_or_else(|| {
        Diagnostic::new(
            Exit::Environment,
            "no place for compiled kernels: neither FORGE_CACHE, XDG_CACHE_HOME nor HOME is set",
        )
        .with_help("set FORGE_CACHE to a folder")
    })?;
    let worker = std::env::current_exe()
        .map_err(|e| Diagnostic::new(Exit::Environment, format!("the running program cannot be found: {e}")))?;
    Ok(Request {
        model,
        output: args.output.clone(),
        level,
        shape: super::bindings(&args.shape)?,
        budget,
        seed: args.seed,
        threads: super::threads(args.threads),
        resume: args.resume,
        force: args.force,
        passes: settings(&args.passes)?,
        worker,
        cache: Cache::new(cache),
    })
}

/// The pass manager's settings from the command line.
pub(super) fn settings(args: &PassArgs) -> Result<forge_passes::Settings, Diagnostic> {
    for name in args.print_after.iter().chain(&args.stop_after) {
        if forge_passes::pass(name).is_none() {
            return Err(Diagnostic::new(Exit::Input, format!("no pass is named '{name}'"))
                .with_help("`forge-cc list passes` names them all"));
        }
    }
    let default = forge_passes::Settings::default();
    Ok(forge_passes::Settings {
        verify_each: args.verify_each || default.verify_each,
        max_rewrites: args.max_rewrites,
        stop_after: args.stop_after.clone(),
    })
}

/// The first Ctrl-C ends the search; a second one the process.
fn catch_interrupts(interrupt: &Arc<AtomicBool>) -> Result<(), Diagnostic> {
    let failed = |e: std::io::Error| Diagnostic::new(Exit::Failure, format!("signals cannot be caught: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let interrupt = Arc::clone(interrupt);
    std::thread::spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if interrupt.swap(true, Ordering::Relaxed) {
                    std::process::exit(Exit::Interrupted as i32);
                }
            }
        });
    });
    Ok(())
}

fn diagnose(error: BuildError) -> Diagnostic {
    match error {
        BuildError::Model(ModelError::Import(e)) => {
            let help = e.help();
            Diagnostic::new(Exit::Input, e).with_help(help)
        }
        BuildError::Model(e) => Diagnostic::new(Exit::Input, e)
            .with_help("sizes are given as --shape NAME=SIZE,..; `forge-cc dump MODEL` shows the inputs"),
        BuildError::Compile(e) => Diagnostic::new(Exit::Environment, e),
        BuildError::Emit(e) => {
            let exit = match &e {
                crate::emit::EmitError::RuntimeMissing { .. } => Exit::Environment,
                crate::emit::EmitError::Occupied { .. }
                | crate::emit::EmitError::NotADirectory { .. }
                | crate::emit::EmitError::InUse { .. } => Exit::Input,
                _ => Exit::Failure,
            };
            let help = e.help();
            let diagnostic = Diagnostic::new(exit, e);
            match help {
                Some(help) => diagnostic.with_help(help),
                None => diagnostic,
            }
        }
        BuildError::Session(e) => Diagnostic::new(Exit::Input, e).with_help(
            "another -o OUT begins afresh; so does the same one without --resume, when no other run uses it",
        ),
        other => Diagnostic::new(Exit::Failure, other),
    }
}

/// Notes as lines, the search as a bar, on stderr.
struct Terminal {
    bar: ProgressBar,
    on_terminal: bool,
    print_all: bool,
    print_after: Vec<String>,
    timing: bool,
}

impl Terminal {
    fn new(args: &PassArgs) -> Terminal {
        let on_terminal = std::io::stderr().is_terminal();
        let target = if on_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}") {
            bar.set_style(style);
        }
        Terminal {
            bar,
            on_terminal,
            print_all: args.print_after_all,
            print_after: args.print_after.clone(),
            timing: args.pass_timing,
        }
    }

    fn line(&self, text: &str) {
        if self.on_terminal {
            self.bar.println(text);
        } else {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
        }
    }
}

impl Watch for Terminal {
    fn note(&mut self, text: &str) {
        self.line(text);
    }

    fn search(&mut self, progress: &Progress<'_>) {
        let state = progress.state;
        let message = format!(
            "{} tried, {} accepted; {}: {}",
            state.trials,
            state.accepted,
            progress.region.title(),
            progress.candidate
        );
        if self.on_terminal {
            self.bar.set_message(message);
            self.bar.tick();
        } else {
            self.line(&message);
        }
    }

    fn pass(&mut self, run: &forge_passes::PassRun, graph: &Graph) {
        if self.print_all || self.print_after.iter().any(|name| name == run.pass) {
            self.line(&format!("// ----- IR after {} -----\n{graph}", run.step));
        }
        if self.timing {
            self.line(&format!(
                "{:<28} {:>5} patches {:>5} -> {:<5} ops {:>9.3} ms",
                run.step,
                run.applied,
                run.ops_before,
                run.ops_after,
                run.elapsed.as_secs_f64() * 1e3
            ));
        }
    }
}
