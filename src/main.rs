//! The command line; all work is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    forge_cc::cli::main()
}
