//! What may be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Compiles a PyTorch model to fused, validated kernels and a loader that swaps them in.
#[derive(Parser, Debug)]
#[command(
    name = "forge-cc",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Exit codes: 0 done; 1 a check of the result failed, or an internal error; 2 bad input or usage; 3 something is \
                  missing on this machine (compiler, runtime library); 130 interrupted, with a consistent output directory."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub build: BuildArgs,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Prints the graph of a model, or of an output directory, as IR text
    Dump(DumpArgs),
    /// Runs passes over an IR file and prints the result
    Opt(OptArgs),
    /// Runs an output directory on .npy inputs
    Run(RunArgs),
    /// Times an output directory against the unrewritten graph and, through Python, PyTorch eager and ONNX Runtime
    Bench(BenchArgs),
    /// Lists passes, templates, operators
    List { what: Listing },
    /// Evaluates candidates on request (JSON lines on stdin and stdout); started by the search
    #[command(hide = true)]
    Worker,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Listing {
    Passes,
    Templates,
    Operators,
}

#[derive(Args, Debug)]
pub struct BuildArgs {
    /// The model: an ONNX file
    #[arg(required = true)]
    pub model: Option<PathBuf>,
    /// Where the result goes; an earlier result there is replaced as a whole
    #[arg(short, long, default_value = "out")]
    pub output: PathBuf,
    /// What to compile for
    #[arg(long, default_value = "cpu")]
    pub target: Target,
    /// 0: import only; 1: passes only; 2: the default kernel of every template; 3: full search
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2", value_parser = parse_level)]
    pub level: u8,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Time for the search: 60s, 2m, 1500ms
    #[arg(long, value_parser = parse_duration)]
    pub budget: Option<std::time::Duration>,
    /// Most candidates to try
    #[arg(long)]
    pub trials: Option<u64>,
    /// Seed of the search and of the test inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads that the plan runs on; default: all cores
    #[arg(long)]
    pub threads: Option<usize>,
    /// Goes on with the search whose journal lies in the output directory
    #[arg(long)]
    pub resume: bool,
    /// Replaces the output directory even if it is not one of forge-cc's
    #[arg(long)]
    pub force: bool,
    /// Prints the report as JSON on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub passes: PassArgs,
}

#[derive(Args, Debug, Clone, Default)]
pub struct ShapeArgs {
    /// Sizes of symbolic dims: batch=1,seq=128
    #[arg(long, value_name = "NAME=SIZE", value_delimiter = ',', value_parser = parse_shape)]
    pub shape: Vec<(String, i64)>,
}

#[derive(Args, Debug, Clone, Default)]
pub struct PassArgs {
    /// Prints the graph after every pass, on stderr
    #[arg(long)]
    pub print_after_all: bool,
    /// Prints the graph after this pass, on stderr; may be repeated
    #[arg(long, value_name = "PASS")]
    pub print_after: Vec<String>,
    /// Stops after this pass
    #[arg(long, value_name = "PASS")]
    pub stop_after: Option<String>,
    /// Verifies the graph after each pass
    #[arg(long)]
    pub verify_each: bool,
    /// Prints what each pass took and did, on stderr
    #[arg(long)]
    pub pass_timing: bool,
    /// Applies at most this many rewrites: for finding the one that breaks a model
    #[arg(long, value_name = "N")]
    pub max_rewrites: Option<usize>,
}

#[derive(Args, Debug)]
pub struct DumpArgs {
    /// An ONNX file, a .forge file or an output directory
    pub model: PathBuf,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Runs the default pass pipeline first
    #[arg(long)]
    pub optimized: bool,
    /// Prints the regions that the search would be given, too
    #[arg(long)]
    pub regions: bool,
}

#[derive(Args, Debug)]
pub struct OptArgs {
    /// The IR file
    pub file: PathBuf,
    /// Passes in order: cse,dce
    #[arg(short, long)]
    pub passes: Option<String>,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub settings: PassArgs,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    /// The output directory of a build
    pub directory: PathBuf,
    /// One .npy file per input, in order
    #[arg(long = "input", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Where results go: output_0.npy, ..
    #[arg(long, default_value = ".")]
    pub output: PathBuf,
    /// Runs the unrewritten graph instead
    #[arg(long)]
    pub original: bool,
    #[arg(long)]
    pub threads: Option<usize>,
    /// Prints the time of each step
    #[arg(long)]
    pub profile: bool,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// The output directory of a build
    pub directory: PathBuf,
    /// The ONNX file for ONNX Runtime
    #[arg(long)]
    pub onnx: Option<PathBuf>,
    /// A Python file that defines `build() -> (module, names of its inputs in order)` for PyTorch eager
    #[arg(long)]
    pub eager: Option<PathBuf>,
    /// .npy inputs, in order; default: random inputs inside the guard
    #[arg(long = "input")]
    pub inputs: Vec<PathBuf>,
    /// The Python that has torch (and onnxruntime)
    #[arg(long, default_value = "python3", env = "FORGE_PYTHON")]
    pub python: PathBuf,
    #[arg(long)]
    pub threads: Option<usize>,
    /// Interleaved blocks
    #[arg(long, default_value_t = 40)]
    pub blocks: usize,
    /// Writes the figures here, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    Cpu,
}

fn parse_level(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "2" => Ok(2),
        "3" => Ok(3),
        _ => Err("levels are 0, 1, 2 and 3".into()),
    }
}

fn parse_shape(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=SIZE")?;
    let size: i64 = value.trim().parse().map_err(|_| format!("'{value}' is not a whole number"))?;
    if size < 1 {
        // Nothing computed over an empty tensor can be checked or timed.
        return Err(format!("a size is at least 1, not {size}"));
    }
    Ok((name.trim().to_owned(), size))
}

fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let value: f64 = number.parse().map_err(|_| "expected a number and a unit: 60s, 2m, 1500ms".to_owned())?;
    let seconds = match unit {
        "ms" => value / 1e3,
        "s" | "" => value,
        "m" | "min" => value * 60.0,
        "h" => value * 3600.0,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, m or h")),
    };
    std::time::Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_take_units() {
        assert_eq!(parse_duration("1500ms").unwrap().as_millis(), 1500);
        assert_eq!(parse_duration("2m").unwrap().as_secs(), 120);
        assert!(parse_duration("soon").is_err());
        assert!(parse_duration("3 parsecs").is_err());
    }

    #[test]
    fn a_model_needs_no_subcommand() {
        let cli = Cli::try_parse_from(["forge-cc", "m.onnx", "-o", "x", "-O3", "--shape", "batch=1,seq=128"]).unwrap();
        assert_eq!(cli.build.shape.shape, [("batch".to_owned(), 1), ("seq".to_owned(), 128)]);
        assert_eq!(cli.build.level, 3);
        assert!(Cli::try_parse_from(["forge-cc"]).is_err());
    }
}
