//! `forge-cc worker`: evaluates candidates for a search in another process.

use super::diagnostic::{Diagnostic, Exit};

pub(super) fn worker() -> Result<(), Diagnostic> {
    forge_kernels::worker::worker_main(std::io::stdin().lock(), std::io::stdout().lock())
        .map_err(|e| Diagnostic::new(Exit::Failure, format!("worker: {e}")))
}
