//! Commands: arguments in, library calls, text out. Exit codes are in [`diagnostic::Exit`].

pub mod args;
pub mod bench;
pub mod diagnostic;

use std::io::Write as _;

use self::diagnostic::Diagnostic;

/// Writes to stdout; a reader that has gone away is no error.
fn print(text: &str) -> Result<(), Diagnostic> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Diagnostic::new(diagnostic::Exit::Failure, format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// Threads to run on: as asked, else one per core.
fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}
