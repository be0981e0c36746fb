//! `forge-cc bench`: an output directory against the unrewritten model, PyTorch eager and ONNX Runtime.
//!
//! Python times, since that is where models are called from; what the times mean is computed here.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use forge_kernels::measure::{Device, FEWEST_BLOCKS, bootstrap_median, median, ratio_interval};
use serde::{Deserialize, Serialize};

use super::args::BenchArgs;
use super::diagnostic::{Diagnostic, Exit};
use crate::emit::manifest::Manifest;

mod table;

const SCRIPT: &str = include_str!("bench.py");
/// Of the written figures; bumped on any change that an older reader would misread.
const SCHEMA: u32 = 1;
const SEED: u64 = 0;
/// A difference below this is called none, whatever its certainty.
const LEAST_DIFFERENCE: f64 = 0.01;
/// Of a thread: what it may lose to other processes on average. Beyond, nothing is concluded, since runtimes whose threads spin
/// at barriers lose more than others.
const MOST_CONTENTION: f64 = 0.1;
/// The contender to which the others are compared, its control, and what both must agree with.
const FORGED: &str = "forged";
const CONTROL: &str = "forged again";

/// What `bench.py` is asked.
#[derive(Serialize)]
struct Request<'a> {
    directory: &'a Path,
    onnx: Option<&'a Path>,
    eager: Option<&'a Path>,
    inputs: &'a [PathBuf],
    threads: usize,
    blocks: usize,
    seed: u64,
    scratch: &'a Path,
}

/// What it answers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Failed { error: String, install: Vec<String> },
    Timed(Timings),
}

#[derive(Deserialize)]
struct Timings {
    contenders: Vec<Timing>,
    inputs: Vec<Input>,
    python: String,
    /// That it could run on.
    processors: usize,
    /// Of those, how many other processes kept busy on average; `None` where the system doesn't say.
    others_busy: Option<f64>,
}

#[derive(Deserialize)]
struct Timing {
    name: String,
    version: String,
    error: Option<f64>,
    agrees: bool,
    why: Option<String>,
    repeats: u64,
    seconds: Vec<f64>,
}

#[derive(Clone, Serialize, Deserialize, Debug, PartialEq)]
struct Input {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

/// The figures, as `--json` writes them.
#[derive(Serialize, Debug, PartialEq)]
struct Figures {
    schema: u32,
    tool_version: &'static str,
    /// UTC, RFC 3339.
    date: String,
    command: Vec<String>,
    model: String,
    device: Device,
    processors: usize,
    python: String,
    /// Processors that other processes kept busy meanwhile, on average; `None` where the system doesn't say.
    others_busy: Option<f64>,
    /// Whether that left too few for the threads.
    contended: bool,
    blocks: usize,
    inputs: Vec<Input>,
    /// How far from 1 the interval of the forged model against itself, in another process, reaches.
    noise: f64,
    contenders: Vec<Contender>,
    /// Who may be called the fastest, by name: one, or several between which the difference is noise; nobody if nothing can be
    /// concluded.
    fastest: Vec<String>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Contender {
    name: String,
    version: String,
    /// Against the unrewritten model, relative to the largest magnitude; `None` if the outputs can't be compared.
    max_relative_error: Option<f64>,
    agrees: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    disagreement: Option<String>,
    /// `None` if it was not timed, because it disagrees.
    times: Option<Times>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Times {
    median_ms: f64,
    ci_ms: (f64, f64),
    /// Median over blocks of this contender's time / the forged model's: above 1 the forged model is faster.
    ratio_to_forged: f64,
    ratio_ci: (f64, f64),
    verdict: Verdict,
    calls_per_sample: u64,
    /// Of a call, one a block, in the order of the blocks.
    seconds: Vec<f64>,
}

/// The forged model beside a contender.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    ForgedFaster,
    ForgedSlower,
    /// Neither is certain beyond noise.
    Even,
    /// Too few blocks, or other processes got in the way.
    Unknown,
}

/// Times, prints, and writes the figures to `--json`.
///
/// # Errors
/// If the directory or a file cannot be used, Python or a package is missing, or the forged model disagrees with the
/// unrewritten one.
pub(super) fn bench(args: &BenchArgs) -> Result<(), Diagnostic> {
    let manifest = Manifest::read(&args.directory).map_err(|e| {
        Diagnostic::new(Exit::Input, e)
            .with_help("give the output directory of a build: forge-cc MODEL -o OUT, then forge-cc bench OUT")
    })?;
    if args.blocks == 0 {
        return Err(Diagnostic::new(Exit::Input, "--blocks 0 measures nothing"));
    }
    let threads = super::threads(args.threads);
    let timings = time(args, threads)?;
    let figures = figures(
        timings,
        &manifest.name,
        Device::cpu(threads),
        rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
        std::env::args().collect(),
    );
    super::print(&table::render(&figures))?;
    if let Some(path) = &args.json {
        write_json(path, &figures)?;
    }
    match figures.contenders.iter().find(|c| c.name == FORGED) {
        Some(Contender { agrees: false, disagreement, .. }) => {
            let why = disagreement.as_deref().unwrap_or("the outputs differ");
            Err(Diagnostic::new(Exit::Failure, format!("the forged model disagrees with the unrewritten one: {why}")))
        }
        _ => Ok(()),
    }
}

/// Runs the script.
fn time(args: &BenchArgs, threads: usize) -> Result<Timings, Diagnostic> {
    let environment = |what: String| Diagnostic::new(Exit::Environment, what);
    let scratch = tempfile::tempdir().map_err(|e| environment(format!("cannot create a temporary folder: {e}")))?;
    let script = scratch.path().join("bench.py");
    std::fs::write(&script, SCRIPT).map_err(|e| environment(format!("cannot write {}: {e}", script.display())))?;
    let inputs = args.inputs.iter().map(|path| absolute(path)).collect::<Result<Vec<_>, _>>()?;
    let (onnx, eager) =
        (args.onnx.as_deref().map(absolute).transpose()?, args.eager.as_deref().map(absolute).transpose()?);
    let request = Request {
        directory: &absolute(&args.directory)?,
        onnx: onnx.as_deref(),
        eager: eager.as_deref(),
        inputs: &inputs,
        threads,
        blocks: args.blocks,
        seed: SEED,
        scratch: scratch.path(),
    };
    let request =
        serde_json::to_vec(&request).map_err(|e| Diagnostic::new(Exit::Input, format!("a path is not UTF-8: {e}")))?;
    let mut child = Command::new(&args.python)
        .arg(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            environment(format!("cannot start {}: {e}", args.python.display()))
                .with_help("--python FILE, or FORGE_PYTHON, names a Python that has torch and numpy")
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it ended before it read, its own words below say why.
        let _ = stdin.write_all(&request);
    }
    let output = child.wait_with_output().map_err(|e| environment(format!("lost {}: {e}", args.python.display())))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match serde_json::from_slice(&output.stdout) {
        Ok(Answer::Timed(timings)) => Ok(timings),
        Ok(Answer::Failed { error, install }) => Err(failure(&error, &stderr, &install, &args.python)),
        Err(e) => {
            Err(failure(&format!("{} {}: {e}", args.python.display(), output.status), &stderr, &[], &args.python))
        }
    }
}

/// What went wrong, the end of what Python said about it, and what to install.
fn failure(error: &str, stderr: &str, install: &[String], python: &Path) -> Diagnostic {
    const MOST_LINES: usize = 20;
    let lines: Vec<&str> = stderr.trim_end().lines().collect();
    let tail = lines.get(lines.len().saturating_sub(MOST_LINES)..).unwrap_or_default();
    let what = std::iter::once(error).chain(tail.iter().copied()).collect::<Vec<_>>().join("\n");
    if install.is_empty() {
        return Diagnostic::new(Exit::Failure, what);
    }
    let help = format!(
        "{} -m pip install {}\nor name another Python with --python FILE or FORGE_PYTHON",
        python.display(),
        install.join(" ")
    );
    Diagnostic::new(Exit::Environment, what).with_help(help)
}

fn absolute(path: &Path) -> Result<PathBuf, Diagnostic> {
    path.canonicalize().map_err(|e| Diagnostic::new(Exit::Input, format!("{}: {e}", path.display())))
}

fn write_json(path: &Path, figures: &Figures) -> Result<(), Diagnostic> {
    let text = serde_json::to_string_pretty(figures).map_err(|e| Diagnostic::new(Exit::Failure, e))?;
    std::fs::write(path, text + "\n")
        .map_err(|e| Diagnostic::new(Exit::Input, format!("cannot write {}: {e}", path.display())))
}

/// What the times say.
fn figures(timings: Timings, model: &str, device: Device, date: String, command: Vec<String>) -> Figures {
    let seconds_of = |name: &str| -> &[f64] {
        timings.contenders.iter().find(|c| c.name == name).map_or(&[], |c| c.seconds.as_slice())
    };
    let forged = seconds_of(FORGED);
    let (_, low, high) = ratio_interval(seconds_of(CONTROL), forged, SEED);
    // NaN, without times, counts as none.
    let noise = (high - 1.0).max(1.0 - low).max(0.0);
    let blocks = forged.len();
    let threads = device.threads as f64;
    let contended =
        timings.others_busy.is_some_and(|busy| busy + threads - timings.processors as f64 > MOST_CONTENTION * threads);
    let conclusive = !contended && blocks >= FEWEST_BLOCKS;
    let judge = |interval| if conclusive { verdict(interval, noise) } else { Verdict::Unknown };
    let contenders: Vec<Contender> = timings
        .contenders
        .iter()
        .map(|timing| {
            let times = (!timing.seconds.is_empty()).then(|| times(timing, forged, judge));
            Contender {
                name: timing.name.clone(),
                version: timing.version.clone(),
                max_relative_error: timing.error,
                agrees: timing.agrees,
                disagreement: timing.why.clone(),
                times,
            }
        })
        .collect();
    Figures {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION"),
        date,
        command,
        model: model.to_owned(),
        device,
        processors: timings.processors,
        python: timings.python,
        others_busy: timings.others_busy,
        contended,
        blocks,
        fastest: if conclusive { fastest(&timings.contenders, noise) } else { Vec::new() },
        inputs: timings.inputs,
        noise,
        contenders,
    }
}

fn times(timing: &Timing, forged: &[f64], judge: impl Fn((f64, f64)) -> Verdict) -> Times {
    let milliseconds: Vec<f64> = timing.seconds.iter().map(|s| s * 1e3).collect();
    // Without times of the forged model there is nothing to compare to; JSON knows no NaN.
    let (ratio, low, high) =
        if forged.is_empty() { (0.0, 0.0, f64::MAX) } else { ratio_interval(&timing.seconds, forged, SEED) };
    Times {
        median_ms: median(&milliseconds),
        ci_ms: bootstrap_median(&milliseconds, 0.95, SEED),
        ratio_to_forged: ratio,
        ratio_ci: (low, high),
        verdict: judge((low, high)),
        calls_per_sample: timing.repeats,
        seconds: timing.seconds.clone(),
    }
}

/// Certain only if the whole interval lies beyond noise.
fn verdict((low, high): (f64, f64), noise: f64) -> Verdict {
    let bar = 1.0 + noise.max(LEAST_DIFFERENCE);
    if low > bar {
        Verdict::ForgedFaster
    } else if high < 1.0 / bar {
        Verdict::ForgedSlower
    } else {
        Verdict::Even
    }
}

/// The contender with the least median, and all that are not certainly slower than it.
fn fastest(contenders: &[Timing], noise: f64) -> Vec<String> {
    let timed = || contenders.iter().filter(|c| !c.seconds.is_empty() && c.name != CONTROL);
    let Some(first) = timed().min_by(|a, b| median(&a.seconds).total_cmp(&median(&b.seconds))) else {
        return Vec::new();
    };
    let slower = |other: &Timing| {
        let (_, low, high) = ratio_interval(&other.seconds, &first.seconds, SEED);
        verdict((low, high), noise) == Verdict::ForgedFaster
    };
    let others = timed().filter(|c| c.name != first.name && !slower(c));
    std::iter::once(first).chain(others).map(|c| c.name.clone()).collect()
}

/// A moment in UTC, `2026-01-31T23:59:59Z`, from seconds since 1970.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days: years begin in March, so that the leap
    // day is their last, and repeat every 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests;
