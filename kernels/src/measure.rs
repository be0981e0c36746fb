//! The clock: paired, interleaved samples of a baseline and a candidate, and what may be said from them.
//!
//! Protocol: blocks; in each block every arm is sampled the same number of times in random order; arms are the candidate and two
//! copies of the baseline. A sample repeats the work until it lasts long enough for the clock. The statistic is the median of
//! the per-block ratios, its uncertainty a bootstrap over blocks. The second copy of the baseline gives the noise of the protocol
//! itself (A/A), below which no difference means anything.
//!
//! Sampling comes in through [`Sampler`], so everything here is a deterministic function that tests feed with numbers.

mod statistics;

use std::fmt;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

pub use statistics::{bootstrap_median, holm, median, ratio_interval, wilcoxon_greater};

/// Fewer blocks prove nothing: the interval of one is a point.
pub const FEWEST_BLOCKS: usize = 20;

/// What is being timed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arm {
    Baseline,
    /// The same work as [`Arm::Baseline`], prepared apart.
    BaselineAgain,
    Candidate,
}

const ARMS: [Arm; 3] = [Arm::Baseline, Arm::BaselineAgain, Arm::Candidate];

/// Runs an arm `repetitions` times and says how long that took.
pub trait Sampler {
    /// # Errors
    /// If the work fails, in the failure's own words.
    fn sample(&mut self, arm: Arm, repetitions: u32) -> Result<Duration, String>;
}

/// Times closures with the system's monotonic clock.
pub struct Closures<'a> {
    pub baseline: &'a mut dyn FnMut() -> Result<(), String>,
    pub baseline_again: &'a mut dyn FnMut() -> Result<(), String>,
    pub candidate: &'a mut dyn FnMut() -> Result<(), String>,
}

impl Sampler for Closures<'_> {
    fn sample(&mut self, arm: Arm, repetitions: u32) -> Result<Duration, String> {
        let work = match arm {
            Arm::Baseline => &mut *self.baseline,
            Arm::BaselineAgain => &mut *self.baseline_again,
            Arm::Candidate => &mut *self.candidate,
        };
        let start = Instant::now();
        for _ in 0..repetitions {
            work()?;
        }
        Ok(start.elapsed())
    }
}

/// How long to measure, and how sure to be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasureOptions {
    /// Blocks before any statement.
    pub min_blocks: usize,
    pub max_blocks: usize,
    /// Samples of each arm in a block; its time there is their median. Fewer are taken where the budget would not do for
    /// `min_blocks`.
    pub samples_per_block: usize,
    /// Repetitions fill a sample to this.
    pub sample_ns: f64,
    /// Stop once the confidence interval is narrower than this part of the ratio.
    pub target_width: f64,
    /// No new block starts after this.
    pub budget_seconds: f64,
    /// A difference below this is none, whatever its certainty.
    pub min_gain: f64,
    pub confidence: f64,
    pub seed: u64,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions {
            min_blocks: 20,
            max_blocks: 100,
            samples_per_block: 3,
            sample_ns: 200_000.0,
            target_width: 0.005,
            budget_seconds: 10.0,
            min_gain: 0.01,
            confidence: 0.95,
            seed: 0,
        }
    }
}

/// A paired comparison. Ratios are baseline over candidate: above 1 is a gain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    pub ratio: f64,
    /// Bootstrap confidence interval of the ratio.
    pub ci: (f64, f64),
    /// One-sided Wilcoxon signed-rank p of "the candidate is faster".
    pub p_value: f64,
    /// How far from 1 the interval of baseline against baseline reaches.
    pub noise: f64,
    /// What the interval's lower end must exceed: `1 + max(min gain, noise)`.
    pub threshold: f64,
    /// Median time of one run.
    pub baseline_ns: f64,
    pub candidate_ns: f64,
    /// One per block.
    pub samples: Vec<Block>,
    pub repetitions: u32,
    pub method: String,
    pub device: Device,
}

/// Times of one run in one block, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Block {
    pub baseline_ns: f64,
    pub baseline_again_ns: f64,
    pub candidate_ns: f64,
}

/// Where a measurement was made: figures of two devices are never compared.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Device {
    pub model: String,
    pub threads: usize,
}

impl Device {
    /// The processor, as the system names it.
    #[must_use]
    pub fn cpu(threads: usize) -> Device {
        let model = crate::compile::processor().lines().next().unwrap_or_default().to_owned();
        Device { model: if model.is_empty() { std::env::consts::ARCH.to_owned() } else { model }, threads }
    }
}

impl Measurement {
    /// The interval's lower end is above the threshold, over at least [`FEWEST_BLOCKS`] blocks.
    #[must_use]
    pub fn is_faster(&self) -> bool {
        self.samples.len() >= FEWEST_BLOCKS && self.ci.0 > self.threshold
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3}x [{:.3}, {:.3}] ({} -> {}, {} blocks, noise {:.1} %)",
            self.ratio,
            self.ci.0,
            self.ci.1,
            time(self.baseline_ns),
            time(self.candidate_ns),
            self.samples.len(),
            self.noise * 100.0
        )
    }
}

fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Runs that no sample repeats more often than: work that takes no time at all is a bug elsewhere.
const MAX_REPETITIONS: u32 = 1 << 20;

/// Measures a candidate against its baseline.
///
/// # Errors
/// If either fails to run.
pub fn measure(sampler: &mut dyn Sampler, options: &MeasureOptions, device: Device) -> Result<Measurement, String> {
    let mut rng = StdRng::seed_from_u64(options.seed);
    // Warm up, and find how often a sample must repeat; the slower baseline decides for all, so that every arm does as many runs.
    let mut repetitions = 1u32;
    let mut spent = 0.0;
    let mut round;
    loop {
        let mut shortest = f64::INFINITY;
        round = 0.0;
        for arm in ARMS {
            let ns = sampler.sample(arm, repetitions)?.as_nanos() as f64;
            round += ns;
            shortest = shortest.min(ns);
        }
        spent += round;
        if shortest >= options.sample_ns || repetitions >= MAX_REPETITIONS {
            break;
        }
        let factor = (1.2 * options.sample_ns / shortest.max(1.0)).clamp(2.0, 64.0);
        repetitions = (f64::from(repetitions) * factor).ceil().min(f64::from(MAX_REPETITIONS)) as u32;
    }

    let mut samples: Vec<Block> = Vec::new();
    let min_blocks = options.min_blocks.max(1);
    let budget_ns = options.budget_seconds * 1e9;
    let affordable = budget_ns / (round.max(FLOOR_NS) * min_blocks as f64);
    let samples_per_block = options.samples_per_block.min(affordable as usize).max(1);
    while samples.len() < options.max_blocks.max(min_blocks) {
        // Twice the budget is the end, whatever the minimum: a statement from fewer blocks has a wider interval.
        let limit = if samples.len() < min_blocks { 2.0 * budget_ns } else { budget_ns };
        if spent >= limit && !samples.is_empty() {
            break;
        }
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..samples_per_block {
            let mut order = [0, 1, 2];
            for i in (1..order.len()).rev() {
                order.swap(i, rng.random_range(0..=i));
            }
            for arm in order {
                let ns = sampler.sample(ARMS[arm], repetitions)?.as_nanos() as f64;
                spent += ns;
                times[arm].push(ns / f64::from(repetitions));
            }
        }
        let [baseline_ns, baseline_again_ns, candidate_ns] = times.map(|t| median(&t));
        samples.push(Block { baseline_ns, baseline_again_ns, candidate_ns });
        if samples.len() >= min_blocks && samples.len().is_multiple_of(10) {
            let (ratio, ci) = ratio_of(&samples, options);
            if (ci.1 - ci.0) <= options.target_width * ratio {
                break;
            }
        }
    }
    Ok(summary(samples, repetitions, options, device))
}

/// Time that no run is faster than: keeps ratios finite.
const FLOOR_NS: f64 = 1.0;

fn ratio_of(samples: &[Block], options: &MeasureOptions) -> (f64, (f64, f64)) {
    // Both copies of the baseline are the baseline: their mean halves its noise.
    let ratios: Vec<f64> = samples
        .iter()
        .map(|b| (f64::midpoint(b.baseline_ns, b.baseline_again_ns)).max(FLOOR_NS) / b.candidate_ns.max(FLOOR_NS))
        .collect();
    (median(&ratios), bootstrap_median(&ratios, options.confidence, options.seed))
}

/// What the blocks say.
#[must_use]
pub fn summary(samples: Vec<Block>, repetitions: u32, options: &MeasureOptions, device: Device) -> Measurement {
    let (ratio, ci) = ratio_of(&samples, options);
    let same: Vec<f64> =
        samples.iter().map(|b| b.baseline_ns.max(FLOOR_NS) / b.baseline_again_ns.max(FLOOR_NS)).collect();
    let (low, high) = bootstrap_median(&same, options.confidence, options.seed);
    let noise = (1.0 - low).max(high - 1.0).max(0.0);
    let gains: Vec<f64> = samples
        .iter()
        .map(|b| {
            f64::midpoint(b.baseline_ns, b.baseline_again_ns).max(FLOOR_NS).ln() - b.candidate_ns.max(FLOOR_NS).ln()
        })
        .collect();
    let column = |f: fn(&Block) -> f64| median(&samples.iter().map(f).collect::<Vec<_>>());
    Measurement {
        ratio,
        ci,
        p_value: wilcoxon_greater(&gains),
        noise,
        threshold: 1.0 + options.min_gain.max(noise),
        baseline_ns: column(|b| f64::midpoint(b.baseline_ns, b.baseline_again_ns)),
        candidate_ns: column(|b| b.candidate_ns),
        repetitions,
        method: format!(
            "paired interleaved blocks, at most {} samples each, median ratio, {:.0} % bootstrap",
            options.samples_per_block,
            options.confidence * 100.0
        ),
        samples,
        device,
    }
}

#[cfg(test)]
mod tests;
