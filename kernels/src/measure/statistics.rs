//! Order statistics, resampling and rank tests on small samples.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The middle value, or the mean of the two middle values; NaN for none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, middle.checked_sub(1).and_then(|i| sorted.get(i)), sorted.get(middle)) {
        (0, Some(low), Some(high)) => f64::midpoint(*low, *high),
        (_, _, Some(value)) => *value,
        _ => f64::NAN,
    }
}

/// Resamples for an interval.
const RESAMPLES: usize = 2000;

/// Percentile bootstrap interval of the median (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, §13.3).
/// Deterministic for a seed; (NaN, NaN) for no values.
#[must_use]
pub fn bootstrap_median(values: &[f64], confidence: f64, seed: u64) -> (f64, f64) {
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0b00_7577);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut resample = vec![0.0; values.len()];
    for _ in 0..RESAMPLES {
        for slot in &mut resample {
            *slot = values[rng.random_range(0..values.len())];
        }
        resample.sort_by(f64::total_cmp);
        medians.push(median_of_sorted(&resample));
    }
    medians.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        let index = (quantile * (RESAMPLES - 1) as f64).round() as usize;
        medians[index.min(RESAMPLES - 1)]
    };
    let tail = (1.0 - confidence.clamp(0.0, 1.0)) / 2.0;
    (at(tail), at(1.0 - tail))
}

/// Median of the per-pair ratios `baseline[i] / candidate[i]` and its 95 % bootstrap interval over pairs: `(ratio, low, high)`.
/// Above 1 the candidate is faster. Units cancel, so any will do.
///
/// Pairs that are not positive and finite on both sides are left out, as are entries past the shorter slice; NaN if none is left.
#[must_use]
pub fn ratio_interval(baseline: &[f64], candidate: &[f64], seed: u64) -> (f64, f64, f64) {
    let usable = |time: f64| time.is_finite() && time > 0.0;
    let ratios: Vec<f64> =
        baseline.iter().zip(candidate).filter(|&(&b, &c)| usable(b) && usable(c)).map(|(&b, &c)| b / c).collect();
    let (low, high) = bootstrap_median(&ratios, 0.95, seed);
    (median(&ratios), low, high)
}

/// Samples up to this size get the exact null distribution.
const EXACT_SIZE: usize = 25;

/// One-sided Wilcoxon signed-rank p of "the median difference is above 0" (Wilcoxon, Biometrics Bulletin 1(6), 1945). Zeros are
/// dropped, ties share their mean rank. Exact for small samples without ties, else normal with tie and continuity corrections.
#[must_use]
pub fn wilcoxon_greater(differences: &[f64]) -> f64 {
    let mut values: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0 && !d.is_nan()).collect();
    values.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let n = values.len();
    if n == 0 {
        return 1.0;
    }
    let mut positive = 0.0;
    let mut tie_term = 0.0;
    let mut start = 0;
    while start < n {
        let mut end = start + 1;
        while end < n && values[end].abs() == values[start].abs() {
            end += 1;
        }
        // Ranks start+1 ..= end share their mean.
        let rank = (start + 1 + end) as f64 / 2.0;
        let ties = (end - start) as f64;
        tie_term += ties.powi(3) - ties;
        positive += rank * values[start..end].iter().filter(|v| **v > 0.0).count() as f64;
        start = end;
    }
    if n <= EXACT_SIZE && tie_term == 0.0 {
        return exact_upper_tail(n, positive as usize);
    }
    let count = n as f64;
    let mean = count * (count + 1.0) / 4.0;
    let variance = count * (count + 1.0) * (2.0 * count + 1.0) / 24.0 - tie_term / 48.0;
    normal_upper_tail((positive - mean - 0.5) / variance.sqrt())
}

/// P(W >= w): of the 2^n sign patterns, those whose positive ranks sum to w or more.
fn exact_upper_tail(n: usize, w: usize) -> f64 {
    let most = n * (n + 1) / 2;
    let mut ways = vec![0.0f64; most + 1];
    ways[0] = 1.0;
    for rank in 1..=n {
        for sum in (rank..=most).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let tail: f64 = ways[w.min(most)..].iter().sum();
    tail / 2f64.powi(i32::try_from(n).unwrap_or(i32::MAX))
}

/// P(Z > z): Abramowitz and Stegun 26.2.17, absolute error below 7.5e-8.
fn normal_upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let polynomial =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * polynomial;
    if z >= 0.0 { tail } else { 1.0 - tail }
}

/// Which hypotheses hold at family-wise error `alpha`, in the order given (Holm, Scandinavian Journal of Statistics 6, 1979).
#[must_use]
pub fn holm(p_values: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut holds = vec![false; p_values.len()];
    for (i, index) in order.iter().enumerate() {
        if p_values[*index] > alpha / (p_values.len() - i) as f64 {
            break;
        }
        holds[*index] = true;
    }
    holds
}
