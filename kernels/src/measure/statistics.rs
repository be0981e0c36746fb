//! The statistics of paired timings: pure functions of samples and a seed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Resamples of a bootstrap: enough for the 2.5 % tails to rest on 50 values each.
const RESAMPLES: usize = 2000;
/// Up to here the signed-rank distribution is counted out; beyond, a normal approximation is as good.
const EXACT_RANKS: usize = 200;

/// Median of the per-pair ratios `baseline[i] / candidate[i]` and its 95 % bootstrap interval over pairs: `(ratio, low, high)`.
/// Above 1 the candidate is faster. Units cancel, so any will do.
///
/// Pairs that are not positive and finite on both sides are left out, as are entries past the shorter slice. Without a pair
/// nothing is known: `(1, 0, f64::MAX)`. With one pair the interval is a point; who concludes from it has to ask for more
/// pairs. O(2000 n).
#[must_use]
pub fn ratio_interval(baseline: &[f64], candidate: &[f64], seed: u64) -> (f64, f64, f64) {
    let ratios = ratios(baseline, candidate);
    median_interval(&ratios, seed).unwrap_or((1.0, 0.0, f64::MAX))
}

/// Median of `values` and its 95 % bootstrap interval: `(median, low, high)`; `None` without values.
///
/// The percentile bootstrap: resampled with replacement, seeded, so that equal input gives equal output. NaN sorts last.
#[must_use]
pub fn median_interval(values: &[f64], seed: u64) -> Option<(f64, f64, f64)> {
    bootstrap_median(values, seed, RESAMPLES)
}

fn bootstrap_median(values: &[f64], seed: u64, resamples: usize) -> Option<(f64, f64, f64)> {
    let center = median(values)?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut resample = Vec::with_capacity(values.len());
    let mut medians = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        resample.clear();
        resample.extend((0..values.len()).filter_map(|_| values.get(random.random_range(0..values.len()))));
        medians.push(median_in_place(&mut resample)?);
    }
    medians.sort_by(f64::total_cmp);
    let tail = resamples / 40;
    Some((center, *medians.get(tail)?, *medians.get(resamples - 1 - tail)?))
}

/// The median; the mean of the middle two for an even count, `None` for no values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    median_in_place(&mut values.to_vec())
}

fn median_in_place(values: &mut [f64]) -> Option<f64> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(count / 2, f64::total_cmp);
    if count % 2 == 1 {
        return Some(upper);
    }
    let lower = below.iter().copied().max_by(f64::total_cmp)?;
    Some((lower + upper) / 2.0)
}

fn ratios(baseline: &[f64], candidate: &[f64]) -> Vec<f64> {
    let positive = |x: f64| x.is_finite() && x > 0.0;
    baseline.iter().zip(candidate).filter(|&(&b, &c)| positive(b) && positive(c)).map(|(&b, &c)| b / c).collect()
}

/// One-sided p-value of Wilcoxon's signed-rank test that the candidate is faster: the chance of ranks at least this favourable
/// if neither side were. 1 without a pair that differs.
///
/// Ranks are of `|ln(baseline / candidate)|`, so that "twice" and "half" weigh the same; ties share the mean rank, equal pairs
/// are dropped (Wilcoxon 1945). Exact, conditional on the ties, for up to 200 pairs; then normal with continuity and tie
/// corrections.
#[must_use]
pub fn wilcoxon_faster(baseline: &[f64], candidate: &[f64]) -> f64 {
    let ranks = SignedRanks::new(&ratios(baseline, candidate));
    if ranks.doubled.len() <= EXACT_RANKS { ranks.exact_tail() } else { ranks.normal_tail() }
}

struct SignedRanks {
    /// Twice the ranks, which are whole even where ties share one.
    doubled: Vec<usize>,
    /// The sum of those whose pair speaks for the candidate.
    positive_sum: usize,
    /// Sum over groups of ties of size^3 - size.
    ties: f64,
}

impl SignedRanks {
    fn new(ratios: &[f64]) -> SignedRanks {
        let mut differences: Vec<f64> =
            ratios.iter().map(|ratio| ratio.ln()).filter(|d| *d != 0.0 && d.is_finite()).collect();
        differences.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        let mut ranks = SignedRanks { doubled: Vec::with_capacity(differences.len()), positive_sum: 0, ties: 0.0 };
        for tied in differences.chunk_by(|a, b| a.abs() == b.abs()) {
            let first = ranks.doubled.len() + 1;
            let rank = 2 * first + tied.len() - 1;
            ranks.doubled.extend(std::iter::repeat_n(rank, tied.len()));
            ranks.positive_sum += rank * tied.iter().filter(|d| **d > 0.0).count();
            let size = tied.len() as f64;
            ranks.ties += size * size * size - size;
        }
        ranks
    }

    fn exact_tail(&self) -> f64 {
        exact_upper_tail(&self.doubled, self.positive_sum)
    }

    fn normal_tail(&self) -> f64 {
        let count = self.doubled.len() as f64;
        let statistic = self.positive_sum as f64 / 2.0;
        let mean = count * (count + 1.0) / 4.0;
        let variance = count * (count + 1.0) * (2.0 * count + 1.0) / 24.0 - self.ties / 48.0;
        normal_upper_tail((statistic - mean - 0.5) / variance.sqrt())
    }
}

/// Chance that the sum of a random half of the ranks is at least `sum`: each rank is in it with probability 1/2.
fn exact_upper_tail(ranks: &[usize], sum: usize) -> f64 {
    let mut chances = vec![0.0_f64; ranks.iter().sum::<usize>() + 1];
    chances[0] = 1.0;
    for &rank in ranks {
        for total in (0..chances.len()).rev() {
            let without = chances[total];
            let with = total.checked_sub(rank).map_or(0.0, |rest| chances[rest]);
            chances[total] = (without + with) / 2.0;
        }
    }
    chances.iter().skip(sum).sum::<f64>().clamp(0.0, 1.0)
}

/// Of the standard normal distribution; Abramowitz and Stegun 26.2.17, absolute error below 7.5e-8.
fn normal_upper_tail(z: f64) -> f64 {
    const POLYNOMIAL: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let tail = density * POLYNOMIAL.iter().rev().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    if z >= 0.0 { tail } else { 1.0 - tail }
}

/// Holm's step-down correction: p-values adjusted for having tested all of them, in the order given. Rejecting those below
/// 5 % keeps the chance of any false rejection below 5 %, whatever their dependence.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<(usize, f64)> = p_values.iter().copied().enumerate().collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut floor = 0.0_f64;
    for (tested, (index, p)) in order.into_iter().enumerate() {
        floor = floor.max((p * (p_values.len() - tested) as f64).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn an_interval_of_constant_ratios_is_a_point() {
        let baseline = [2.0, 4.0, 6.0];
        let candidate = [1.0, 2.0, 3.0];
        assert_eq!(ratio_interval(&baseline, &candidate, 1), (2.0, 2.0, 2.0));
    }

    #[test]
    fn unusable_pairs_are_left_out() {
        let baseline = [2.0, f64::NAN, 0.0, 2.0, 9.0];
        let candidate = [1.0, 1.0, 1.0, f64::INFINITY];
        assert_eq!(ratio_interval(&baseline, &candidate, 1), (2.0, 2.0, 2.0));
        assert_eq!(ratio_interval(&[], &[], 1), (1.0, 0.0, f64::MAX));
    }

    /// Pairs whose drift is common to both sides: pairing must cancel it.
    #[test]
    fn a_common_drift_does_not_widen_the_interval() {
        let drift: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i) * 0.1).collect();
        let candidate: Vec<f64> = drift.iter().map(|d| d / 1.25).collect();
        let (ratio, low, high) = ratio_interval(&drift, &candidate, 7);
        assert!((ratio - 1.25).abs() < 1e-12 && high - low < 1e-12, "{ratio} {low} {high}");
    }

    /// 95 % intervals must hold the truth about 95 times in 100: too narrow would call noise a win.
    #[test]
    fn intervals_cover_the_true_ratio() {
        let mut random = StdRng::seed_from_u64(5);
        let mut covered = 0;
        for trial in 0..100 {
            let mut side = || -> Vec<f64> { (0..30).map(|_| random.random_range(0.9..1.1)).collect() };
            let ratios = ratios(&side(), &side());
            let (_, low, high) = bootstrap_median(&ratios, trial, 400).unwrap();
            covered += usize::from((low..=high).contains(&1.0));
        }
        assert!((88..=99).contains(&covered), "{covered} of 100");
    }

    /// Tail counts by hand: with n pairs, all positive, one of 2^n sign patterns is as extreme.
    #[test]
    fn small_wilcoxon_tails_are_exact() {
        let all_faster: Vec<f64> = (1..=5).map(|i| 1.0 + f64::from(i) * 0.1).collect();
        assert_eq!(wilcoxon_faster(&all_faster, &[1.0; 5]), 1.0 / 32.0);
        // Only the smallest difference speaks against: ranks sum to 14 or 15 in 2 of 32 patterns.
        let one_slower = [1.0 / 1.05, 1.2, 1.3, 1.4, 1.5];
        assert_eq!(wilcoxon_faster(&one_slower, &[1.0; 5]), 2.0 / 32.0);
        // Ties: every pair has rank 2; at least 2 of 3 positive in 4 of 8 patterns.
        assert_eq!(wilcoxon_faster(&[2.0, 2.0, 0.5], &[1.0; 3]), 0.5);
        assert_eq!(wilcoxon_faster(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
    }

    /// The two formulas must meet where one hands over to the other.
    #[test]
    fn the_normal_approximation_meets_the_exact_tail() {
        for shift in [-0.5, -0.45, -0.4] {
            let ratios: Vec<f64> =
                (0..EXACT_RANKS).map(|i| ((i * 7919 % 1009) as f64 / 1009.0 + shift).exp()).collect();
            let ranks = SignedRanks::new(&ratios);
            let (exact, normal) = (ranks.exact_tail(), ranks.normal_tail());
            assert!((exact - normal).abs() < 0.05 * exact + 1e-5, "{exact} {normal}");
        }
        assert!((normal_upper_tail(1.959_963_985) - 0.025).abs() < 1e-7);
        assert!((normal_upper_tail(-1.0) - 0.841_344_746).abs() < 1e-7);
    }

    #[test]
    fn holm_multiplies_by_the_tests_that_are_left() {
        let adjusted = holm(&[0.04, 0.01, 0.03, 0.5]);
        let expected = [0.09, 0.04, 0.09, 0.5];
        for (got, want) in adjusted.iter().zip(expected) {
            assert!((got - want).abs() < 1e-12, "{adjusted:?}");
        }
        assert!(holm(&[]).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn intervals_hold_the_median_and_repeat(
            pairs in prop::collection::vec((0.1f64..10.0, 0.1f64..10.0), 1..60), seed: u64
        ) {
            let (baseline, candidate): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let (ratio, low, high) = ratio_interval(&baseline, &candidate, seed);
            prop_assert!(low <= ratio && ratio <= high);
            prop_assert_eq!((ratio, low, high), ratio_interval(&baseline, &candidate, seed));
        }

        #[test]
        fn the_two_one_sided_tests_cover_everything(
            pairs in prop::collection::vec((0.1f64..10.0, 0.1f64..10.0), 1..40)
        ) {
            let (baseline, candidate): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let both = wilcoxon_faster(&baseline, &candidate) + wilcoxon_faster(&candidate, &baseline);
            prop_assert!((1.0 - 1e-9..=2.0).contains(&both), "{}", both);
        }
    }
}
