use super::*;

/// Arms with known times; noise from a seeded generator.
struct Synthetic {
    baseline_ns: f64,
    baseline_again_ns: f64,
    candidate_ns: f64,
    /// Standard width of multiplicative noise.
    noise: f64,
    /// Slow drift that paired samples must cancel.
    drift: f64,
    rng: StdRng,
    samples: Vec<(Arm, u32)>,
}

impl Synthetic {
    fn new(baseline_ns: f64, candidate_ns: f64) -> Synthetic {
        Synthetic {
            baseline_ns,
            baseline_again_ns: baseline_ns,
            candidate_ns,
            noise: 0.0,
            drift: 0.0,
            rng: StdRng::seed_from_u64(7),
            samples: Vec::new(),
        }
    }
}

impl Sampler for Synthetic {
    fn sample(&mut self, arm: Arm, repetitions: u32) -> Result<Duration, String> {
        self.samples.push((arm, repetitions));
        let ns = match arm {
            Arm::Baseline => self.baseline_ns,
            Arm::BaselineAgain => self.baseline_again_ns,
            Arm::Candidate => self.candidate_ns,
        };
        let noise = 1.0 + self.noise * (self.rng.random::<f64>() - 0.5);
        let drift = 1.0 + self.drift * self.samples.len() as f64;
        Ok(Duration::from_nanos((ns * noise * drift * f64::from(repetitions)) as u64))
    }
}

fn device() -> Device {
    Device { model: "test".into(), threads: 2 }
}

fn run(sampler: &mut Synthetic) -> Measurement {
    measure(sampler, &MeasureOptions::default(), device()).unwrap()
}

#[test]
fn a_clear_gain_is_seen_and_its_size_is_right() {
    let mut sampler = Synthetic { noise: 0.04, ..Synthetic::new(30_000.0, 20_000.0) };
    let result = run(&mut sampler);
    assert!((result.ratio - 1.5).abs() < 0.02, "{result}");
    assert!(result.ci.0 <= result.ratio && result.ratio <= result.ci.1);
    assert!(result.is_faster());
    assert!(result.p_value < 1e-4);
    assert!((result.baseline_ns - 30_000.0).abs() < 600.0);
    assert!(result.samples.len() >= 20);
    // 200 us samples of 20 us runs.
    assert!(result.repetitions >= 10 && result.repetitions <= 20, "{}", result.repetitions);
}

#[test]
fn equal_arms_are_not_faster() {
    for noise in [0.0, 0.05, 0.5] {
        let result = run(&mut Synthetic { noise, ..Synthetic::new(30_000.0, 30_000.0) });
        assert!(!result.is_faster(), "{result}");
    }
}

#[test]
fn a_gain_below_one_percent_is_none() {
    let result = run(&mut Synthetic::new(30_000.0, 29_800.0));
    assert!(result.ratio > 1.0 && result.p_value < 0.01);
    assert!(!result.is_faster(), "{result}");
}

#[test]
fn drift_cancels_in_pairs() {
    let result = run(&mut Synthetic { drift: 0.01, ..Synthetic::new(30_000.0, 15_000.0) });
    assert!((result.ratio - 2.0).abs() < 0.1, "{result}");
}

#[test]
fn a_baseline_that_differs_from_itself_raises_the_bar() {
    let result = run(&mut Synthetic { baseline_again_ns: 33_000.0, ..Synthetic::new(30_000.0, 29_000.0) });
    assert!(result.noise > 0.08, "{result}");
    assert!(!result.is_faster(), "{result}");
}

#[test]
fn every_block_samples_every_arm_equally_in_varying_order() {
    let mut sampler = Synthetic::new(300_000.0, 300_000.0);
    run(&mut sampler);
    // One warm-up of each arm comes first; no repetition was needed.
    let timed = &sampler.samples[3..];
    let orders: std::collections::HashSet<Vec<Arm>> =
        timed.chunks(3).map(|c| c.iter().map(|(arm, _)| *arm).collect()).collect();
    assert!(orders.len() > 3);
    for chunk in timed.chunks(3) {
        assert!(ARMS.iter().all(|arm| chunk.iter().any(|(a, n)| a == arm && *n == 1)));
    }
}

#[test]
fn the_budget_ends_a_slow_measurement() {
    let mut sampler = Synthetic::new(1e9, 1e9);
    let result = run(&mut sampler);
    assert!(sampler.samples.len() < 40, "{}", sampler.samples.len());
    assert!(!result.samples.is_empty());
}

#[test]
fn samples_are_given_up_before_blocks() {
    // 3 samples of 3 arms of 100 ms would be 18 s for 20 blocks.
    let result = run(&mut Synthetic::new(1e8, 9e7));
    assert!(result.samples.len() >= FEWEST_BLOCKS && result.is_faster(), "{result}");
    let spent: f64 = result.samples.iter().map(|b| b.baseline_ns + b.baseline_again_ns + b.candidate_ns).sum();
    assert!(spent <= 10.5e9, "{spent}");
}

#[test]
fn few_blocks_prove_nothing() {
    let result = run(&mut Synthetic::new(2e9, 1e9));
    assert_eq!(result.ratio, 2.0);
    assert!(result.samples.len() < FEWEST_BLOCKS && !result.is_faster(), "{result}");
}

#[test]
fn a_failing_arm_is_an_error() {
    let mut fine = || Ok(());
    let mut fine_too = || Ok(());
    let mut broken = || Err("broken".to_owned());
    let mut closures = Closures { baseline: &mut fine, baseline_again: &mut fine_too, candidate: &mut broken };
    assert_eq!(measure(&mut closures, &MeasureOptions::default(), device()), Err("broken".into()));
}

#[test]
fn results_are_deterministic() {
    let once = run(&mut Synthetic { noise: 0.1, ..Synthetic::new(3e4, 2e4) });
    let again = run(&mut Synthetic { noise: 0.1, ..Synthetic::new(3e4, 2e4) });
    assert_eq!(once, again);
    let json = serde_json::to_string(&once).unwrap();
    assert_eq!(serde_json::from_str::<Measurement>(&json).unwrap(), once);
}

#[test]
fn wilcoxon_agrees_with_tables() {
    // scipy.stats.wilcoxon(x, alternative='greater')
    assert_eq!(wilcoxon_greater(&[1.0, 2.0, 3.0, 4.0, 5.0]), 1.0 / 32.0);
    assert_eq!(wilcoxon_greater(&[-1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 32.0);
    assert_eq!(wilcoxon_greater(&[-1.0, -2.0]), 1.0);
    assert_eq!(wilcoxon_greater(&[]), 1.0);
    assert_eq!(wilcoxon_greater(&[0.0, 0.0]), 1.0);
    // Normal approximation with ties: 40 equal gains.
    assert!(wilcoxon_greater(&[1.0; 40]) < 1e-6);
    let mixed: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    assert!((wilcoxon_greater(&mixed) - 0.5).abs() < 0.01);
}

#[test]
fn holm_stops_at_the_first_failure() {
    assert_eq!(holm(&[0.01, 0.04, 0.03], 0.05), [true, false, false]);
    assert_eq!(holm(&[0.01, 0.02, 0.024], 0.05), [true, true, true]);
    assert_eq!(holm(&[], 0.05), Vec::<bool>::new());
}

#[test]
fn medians_and_intervals() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!(median(&[]).is_nan());
    assert_eq!(bootstrap_median(&[2.0; 10], 0.95, 1), (2.0, 2.0));
    let values: Vec<f64> = (0..101).map(f64::from).collect();
    let (low, high) = bootstrap_median(&values, 0.95, 1);
    assert!(low < 50.0 && high > 50.0 && low > 25.0 && high < 75.0);
}

/// Pairs whose drift is common to both sides: pairing must cancel it.
#[test]
fn a_common_drift_does_not_widen_the_interval() {
    let drift: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i) * 0.1).collect();
    let candidate: Vec<f64> = drift.iter().map(|d| d / 1.25).collect();
    let (ratio, low, high) = ratio_interval(&drift, &candidate, 7);
    assert!((ratio - 1.25).abs() < 1e-12 && high - low < 1e-12, "{ratio} {low} {high}");
}

#[test]
fn unusable_pairs_are_left_out() {
    assert_eq!(ratio_interval(&[2.0, f64::NAN, 0.0, 2.0, 9.0], &[1.0, 1.0, 1.0, f64::INFINITY], 1), (2.0, 2.0, 2.0));
    assert!(ratio_interval(&[], &[], 1).0.is_nan());
}

/// 95 % intervals must hold the truth about 95 times in 100: too narrow would call noise a win.
#[test]
fn intervals_cover_the_true_ratio() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut covered = 0;
    for trial in 0..60 {
        let mut side = || -> Vec<f64> { (0..21).map(|_| rng.random_range(0.9..1.1)).collect() };
        let (baseline, candidate) = (side(), side());
        let (_, low, high) = ratio_interval(&baseline, &candidate, trial);
        covered += usize::from((low..=high).contains(&1.0));
    }
    assert!((52..=59).contains(&covered), "{covered} of 60");
}
