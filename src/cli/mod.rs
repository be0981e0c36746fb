//! Commands: arguments in, library calls, text out. Exit codes are in [`diagnostic::Exit`].

pub mod args;
mod bench;
mod build;
pub mod diagnostic;
mod dump;
mod list;
mod opt;
mod run;
mod worker;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command};
use self::diagnostic::Diagnostic;

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("FORGE_LOG"))
        .with_writer(std::io::stderr)
        .init();
    let cli = Cli::parse();
    let result = match &cli.command {
        None => build::build(&cli.build),
        Some(Command::Dump(args)) => dump::dump(args),
        Some(Command::Opt(args)) => opt::opt(args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Bench(args)) => bench::bench(args),
        Some(Command::List { what }) => list::list(*what),
        Some(Command::Worker) => worker::worker(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(diagnostic) => {
            // With stderr gone there is nobody left to tell.
            let _ = std::io::stderr().write_all(diagnostic.render().as_bytes());
            ExitCode::from(diagnostic.exit as u8)
        }
    }
}

/// Writes to stdout; a reader that has gone away is no error.
fn print(text: &str) -> Result<(), Diagnostic> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Diagnostic::new(diagnostic::Exit::Failure, format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// The sizes given with `--shape`.
///
/// # Errors
/// If one name has two sizes.
fn bindings(args: &args::ShapeArgs) -> Result<forge_ir::Bindings, Diagnostic> {
    let mut bindings = forge_ir::Bindings::new();
    for (name, size) in &args.shape {
        if let Some(other) = bindings.insert(name.clone(), *size)
            && other != *size
        {
            let what = format!("--shape gives '{name}' both {other} and {size}");
            return Err(Diagnostic::new(diagnostic::Exit::Input, what));
        }
    }
    Ok(bindings)
}

/// Threads to run on: as asked, else one per core.
fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}
