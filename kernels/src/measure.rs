//! The clock: which of two ways to compute the same thing is faster, and how sure that is.
//!
//! Both sides take turns in random order inside blocks, so that frequency, temperature and neighbours hit them alike; a block
//! gives one ratio, and the median ratio with its bootstrap interval is the result. The baseline runs twice in every block:
//! how far it differs from itself is the noise that a candidate has to beat. Time and randomness come in as arguments.

mod device;
mod statistics;

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

pub use device::Device;
pub use statistics::{holm, median, median_interval, ratio_interval, wilcoxon_faster};

/// Fewer blocks than this prove nothing: [`Measurement::is_faster`] is false.
pub const FEWEST_BLOCKS: usize = 20;
/// What a candidate has to gain at least, whatever the noise.
pub const LEAST_GAIN: f64 = 0.01;
/// A sample never repeats a call more often, however short it is.
const MOST_REPETITIONS: u64 = 1 << 16;
/// Blocks between two looks at the interval's width.
const BLOCKS_BETWEEN_LOOKS: usize = 5;

/// How to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Blocks before the interval's width may end the measurement. Below [`FEWEST_BLOCKS`] the result never counts as faster.
    pub least_blocks: usize,
    pub most_blocks: usize,
    /// Samples of a side in a block, of which the median counts; fewer are taken where the budget would not do.
    pub samples: usize,
    /// A sample repeats short calls until it lasts this long.
    pub sample: Duration,
    /// Each side runs this long, and at least once, before anything counts.
    pub warm_up: Duration,
    /// No sample starts after this, but that the first block is always finished. A single call can't be cut short: that takes
    /// a process of its own and a kill.
    pub budget: Duration,
    /// Ends the measurement once the ratio's interval is this narrow, relative to the ratio.
    pub relative_width: f64,
    /// Whether the baseline is measured against itself as well, for half as much time again.
    pub against_itself: bool,
    /// Of the order inside blocks and of the bootstrap.
    pub seed: u64,
    pub device: Device,
}

impl Settings {
    /// The protocol's own values, within 10 seconds.
    #[must_use]
    pub fn new(device: Device, seed: u64) -> Settings {
        Settings {
            least_blocks: FEWEST_BLOCKS,
            most_blocks: 100,
            samples: 5,
            sample: Duration::from_micros(200),
            warm_up: Duration::from_millis(5),
            budget: Duration::from_secs(10),
            relative_width: 0.01,
            against_itself: true,
            seed,
            device,
        }
    }
}

/// The result of a comparison: a ratio, and what it rests on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Median over blocks of baseline time / candidate time: above 1 the candidate is faster.
    pub ratio: f64,
    /// 95 % bootstrap interval of `ratio`.
    pub ci: (f64, f64),
    pub blocks: usize,
    /// Median over blocks of the time of a call.
    pub baseline_ns: f64,
    pub candidate_ns: f64,
    /// How far from 1 the 95 % interval of the baseline against itself reaches; `None` if that was not measured.
    pub aa_noise: Option<f64>,
    /// One-sided: the chance of blocks as favourable as these if the candidate were not faster.
    pub wilcoxon_p: f64,
    /// How it was measured, for a reader.
    pub method: String,
    pub device: Device,
}

impl Measurement {
    /// The ratio that the interval's lower end has to pass.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        1.0 + self.aa_noise.unwrap_or(0.0).max(LEAST_GAIN)
    }

    /// Whether the candidate is faster beyond noise: the lower end of the 95 % interval lies above 1 + max(1 %, noise of the
    /// baseline against itself), over at least [`FEWEST_BLOCKS`] blocks.
    #[must_use]
    pub fn is_faster(&self) -> bool {
        self.blocks >= FEWEST_BLOCKS && self.ci.0 > self.threshold()
    }
}

/// A clock that never goes back.
pub trait Clock {
    /// Nanoseconds since some fixed moment.
    fn now(&mut self) -> u64;
}

/// The system's monotonic clock.
#[derive(Clone, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock { start: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now(&mut self) -> u64 {
        nanoseconds(self.start.elapsed())
    }
}

/// Measures by the system's clock. Both sides must compute the same, from memory of their own; neither may allocate, print or
/// do anything else that the other doesn't.
pub fn compare(settings: &Settings, baseline: &mut dyn FnMut(), candidate: &mut dyn FnMut()) -> Measurement {
    compare_by(&mut MonotonicClock::default(), settings, baseline, candidate)
}

/// Measures by any clock: equal clock readings and settings give an equal measurement.
pub fn compare_by(
    clock: &mut dyn Clock,
    settings: &Settings,
    baseline: &mut dyn FnMut(),
    candidate: &mut dyn FnMut(),
) -> Measurement {
    let start = clock.now();
    let deadline = start.saturating_add(nanoseconds(settings.budget));
    let sample_ns = nanoseconds(settings.sample);
    let warm_up_ns = nanoseconds(settings.warm_up);
    let baseline_repetitions = warm_up(clock, baseline, warm_up_ns, sample_ns, deadline);
    let candidate_repetitions = warm_up(clock, candidate, warm_up_ns, sample_ns, deadline);

    let mut sides = vec![Side::Baseline, Side::Candidate];
    if settings.against_itself {
        sides.push(Side::BaselineAgain);
    }
    let mut random = StdRng::seed_from_u64(settings.seed);
    let mut times = Times::default();
    let mut samples = settings.samples.max(1);
    while times.blocks() < settings.most_blocks.max(1) {
        let block_start = clock.now();
        let mut block = Block::default();
        let mut whole = true;
        while whole && block.baseline.len() < samples {
            sides.shuffle(&mut random);
            for side in &sides {
                if times.blocks() > 0 && clock.now() >= deadline {
                    whole = false;
                    break;
                }
                match side {
                    Side::Baseline => block.baseline.push(per_call(clock, baseline, baseline_repetitions)),
                    Side::BaselineAgain => block.baseline_again.push(per_call(clock, baseline, baseline_repetitions)),
                    Side::Candidate => block.candidate.push(per_call(clock, candidate, candidate_repetitions)),
                }
            }
            if times.blocks() == 0 && block.baseline.len() == 1 {
                // The first round shows what a block costs; a fifth of the budget is left for slower ones.
                let round = clock.now().saturating_sub(block_start).max(1);
                let budget = deadline.saturating_sub(block_start) / 5 * 4;
                let affordable = budget / round / settings.least_blocks.max(1) as u64;
                samples = samples.min(usize::try_from(affordable).unwrap_or(usize::MAX)).max(1);
            }
        }
        if !whole {
            break;
        }
        times.push(&block);
        let blocks = times.blocks();
        if blocks >= settings.least_blocks && blocks.is_multiple_of(BLOCKS_BETWEEN_LOOKS) {
            let (ratio, low, high) = ratio_interval(&times.baseline, &times.candidate, settings.seed);
            if high - low <= settings.relative_width * ratio {
                break;
            }
        }
    }
    let method = format!(
        "paired blocks in random order, {samples} samples a side and block, {baseline_repetitions} and {candidate_repetitions} \
         calls a sample, median of ratios, bootstrap over blocks, monotonic clock, warm caches"
    );
    times.summary(settings, method)
}

#[derive(Clone, Copy)]
enum Side {
    Baseline,
    /// The same code, timed as if it were another.
    BaselineAgain,
    Candidate,
}

/// Nanoseconds a call, a sample each.
#[derive(Default)]
struct Block {
    baseline: Vec<f64>,
    baseline_again: Vec<f64>,
    candidate: Vec<f64>,
}

/// Nanoseconds a call, a block each.
#[derive(Default)]
struct Times {
    baseline: Vec<f64>,
    baseline_again: Vec<f64>,
    candidate: Vec<f64>,
}

impl Times {
    fn blocks(&self) -> usize {
        self.baseline.len()
    }

    fn push(&mut self, block: &Block) {
        self.baseline.extend(median(&block.baseline));
        self.baseline_again.extend(median(&block.baseline_again));
        self.candidate.extend(median(&block.candidate));
    }

    fn summary(&self, settings: &Settings, method: String) -> Measurement {
        let (ratio, low, high) = ratio_interval(&self.baseline, &self.candidate, settings.seed);
        let aa_noise = settings.against_itself.then(|| {
            let (_, low, high) = ratio_interval(&self.baseline, &self.baseline_again, settings.seed);
            (high - 1.0).max(1.0 - low).max(0.0)
        });
        Measurement {
            ratio,
            ci: (low, high),
            blocks: self.blocks(),
            baseline_ns: median(&self.baseline).unwrap_or(0.0),
            candidate_ns: median(&self.candidate).unwrap_or(0.0),
            aa_noise,
            wilcoxon_p: wilcoxon_faster(&self.baseline, &self.candidate),
            method,
            device: settings.device.clone(),
        }
    }
}

/// Runs a side until it is warm; how many calls a sample of `sample_ns` takes then.
fn warm_up(clock: &mut dyn Clock, call: &mut dyn FnMut(), warm_up_ns: u64, sample_ns: u64, deadline: u64) -> u64 {
    let start = clock.now();
    let mut repetitions = 1_u64;
    loop {
        let before = clock.now();
        for _ in 0..repetitions {
            call();
        }
        let after = clock.now();
        let elapsed = after.saturating_sub(before);
        if elapsed < sample_ns && repetitions < MOST_REPETITIONS {
            // A fifth more than needed, since calls get faster while warming up; growth is bounded, since the first calls
            // tell little.
            let needed = repetitions.saturating_mul(sample_ns).saturating_mul(6) / (elapsed.max(1) * 5) + 1;
            repetitions = needed.clamp(repetitions + 1, repetitions * 8).min(MOST_REPETITIONS);
        } else if after.saturating_sub(start) >= warm_up_ns || repetitions == MOST_REPETITIONS {
            return repetitions;
        }
        if after >= deadline {
            return repetitions;
        }
    }
}

/// Nanoseconds a call, over one sample; at least a picosecond, so that ratios stay finite under a coarse clock.
fn per_call(clock: &mut dyn Clock, call: &mut dyn FnMut(), repetitions: u64) -> f64 {
    let before = clock.now();
    for _ in 0..repetitions {
        call();
    }
    (clock.now().saturating_sub(before) as f64 / repetitions as f64).max(1e-3)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use rand::RngExt;

    use super::*;

    /// Time that passes only where a test says so.
    struct FakeClock<'a>(&'a Cell<u64>);

    impl Clock for FakeClock<'_> {
        fn now(&mut self) -> u64 {
            self.0.get()
        }
    }

    fn settings() -> Settings {
        Settings::new(Device { model: "synthetic".into(), processors: 1, threads: 1 }, 11)
    }

    /// Measures sides whose n-th call, counted over both, takes as long as the functions say.
    fn measure(
        settings: &Settings,
        baseline: impl Fn(u64) -> u64,
        candidate: impl Fn(u64) -> u64,
    ) -> (Measurement, u64) {
        let (time, calls) = (Cell::new(0), Cell::new(0));
        let spend = |cost: &dyn Fn(u64) -> u64| {
            time.set(time.get() + cost(calls.get()));
            calls.set(calls.get() + 1);
        };
        let result = compare_by(&mut FakeClock(&time), settings, &mut || spend(&baseline), &mut || spend(&candidate));
        (result, time.get())
    }

    #[test]
    fn a_faster_candidate_is_faster() {
        let (result, _) = measure(&settings(), |_| 3000, |_| 2000);
        assert_eq!((result.ratio, result.ci), (1.5, (1.5, 1.5)));
        assert_eq!((result.baseline_ns, result.candidate_ns), (3000.0, 2000.0));
        assert_eq!(result.blocks, FEWEST_BLOCKS);
        assert_eq!(result.aa_noise, Some(0.0));
        assert!(result.wilcoxon_p < 1e-5);
        assert!(result.is_faster());
    }

    #[test]
    fn a_gain_below_one_percent_is_none() {
        let (result, _) = measure(&settings(), |_| 100_900, |_| 100_000);
        assert!(result.ci.0 > 1.0 && !result.is_faster(), "{result:?}");
    }

    #[test]
    fn a_copy_of_the_baseline_is_not_faster() {
        let random = RefCell::new(StdRng::seed_from_u64(3));
        let noisy = |_| random.borrow_mut().random_range(80_000..120_000);
        let (result, _) = measure(&Settings { most_blocks: 40, ..settings() }, noisy, noisy);
        assert!(!result.is_faster(), "{result:?}");
        assert!(result.aa_noise.is_some_and(|noise| noise > 0.0));
    }

    /// The machine slows down by half in the middle, for both sides: unpaired medians could tell anything.
    #[test]
    fn drift_that_hits_both_sides_cancels() {
        let drift = |n: u64| if n < 400 { 100_000 } else { 150_000 };
        let (result, _) = measure(&settings(), |n| drift(n) * 6 / 5, drift);
        assert!((result.ratio - 1.2).abs() < 0.01, "{result:?}");
        assert!(result.is_faster());
    }

    /// The same gain, but the baseline differs from itself by more.
    #[test]
    fn a_gain_within_the_baselines_noise_is_none() {
        let (mut result, _) = measure(&settings(), |_| 105_000, |_| 100_000);
        assert!(result.is_faster());
        result.aa_noise = Some(0.06);
        assert!(!result.is_faster());
    }

    #[test]
    fn short_calls_are_repeated_to_fill_a_sample() {
        let calls = Cell::new(0);
        let time = Cell::new(0);
        let mut call = || {
            calls.set(calls.get() + 1);
            time.set(time.get() + 70);
        };
        let repetitions = warm_up(&mut FakeClock(&time), &mut call, 0, 200_000, u64::MAX);
        assert!(repetitions * 70 >= 200_000 && repetitions * 70 < 400_000, "{repetitions}");
        assert!(calls.get() > repetitions);
    }

    #[test]
    fn calls_too_short_for_the_clock_end_too() {
        let (result, _) = measure(&Settings { samples: 1, ..settings() }, |_| 0, |_| 0);
        assert_eq!((result.ratio, result.blocks), (1.0, FEWEST_BLOCKS));
        assert!(!result.is_faster());
    }

    #[test]
    fn warming_up_counts_for_nothing() {
        let (result, _) = measure(&settings(), |n| if n < 3 { 50_000_000 } else { 300_000 }, |_| 300_000);
        assert_eq!((result.ratio, result.ci), (1.0, (1.0, 1.0)));
    }

    #[test]
    fn the_budget_holds() {
        let mut settings = settings();
        settings.budget = Duration::from_millis(100);
        // 3 sides of 2 ms: 16 blocks of one sample fit, which proves nothing.
        let (result, took) = measure(&settings, |_| 2_000_000, |_| 1_900_000);
        assert!(took <= 102_000_000, "{took}");
        assert!((5..FEWEST_BLOCKS).contains(&result.blocks), "{result:?}");
        assert!(!result.is_faster());
        assert!(result.method.contains("1 samples"));
    }

    #[test]
    fn one_block_is_measured_even_without_a_budget() {
        let mut settings = settings();
        settings.budget = Duration::ZERO;
        let (result, _) = measure(&settings, |_| 2_000_000, |_| 1_000_000);
        assert_eq!((result.blocks, result.ratio), (1, 2.0));
        assert!(!result.is_faster());
    }

    #[test]
    fn noise_takes_more_blocks() {
        let random = RefCell::new(StdRng::seed_from_u64(9));
        let noisy = |_| random.borrow_mut().random_range(150_000..300_000);
        let (result, _) = measure(&Settings { most_blocks: 31, ..settings() }, noisy, noisy);
        assert_eq!(result.blocks, 31);
    }

    #[test]
    fn measurements_survive_json() {
        let (result, _) = measure(&settings(), |n| 100_000 + n % 7, |n| 90_000 + n % 5);
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), result);
    }
}
