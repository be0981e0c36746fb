//! The arithmetic of the tree: rewards, priors, PUCT, progressive widening. Pure functions of numbers.

use serde::{Deserialize, Serialize};

/// A whole-graph speed-up that counts as full reward; what is beyond it is no better.
const FULL_REWARD_SPEEDUP: f64 = 16.0;
/// The reward of a kernel that changes nothing.
pub const NEUTRAL: f64 = 0.5;

/// The constants of the search.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// Weight of the exploration term of PUCT.
    pub exploration: f64,
    /// A node visited `n` times may have `ceil(widening * (n + 1) ^ widening_exponent)` children before the children it has
    /// are preferred to a new one.
    pub widening: f64,
    pub widening_exponent: f64,
    /// How much of a node's value is its best reward; the rest is the mean. A search wants the best kernel, not a good average.
    pub best_weight: f64,
    /// The best counts half after this many visits that did not raise it.
    pub patience: f64,
    /// Part of a strategy's new points that are drawn from anywhere in its space, not from near its default.
    pub spread: f64,
    /// Weight of the last visit in what a region is expected to gain from the next.
    pub gain_memory: f64,
    /// Factor on the prior for each step away from the default (or from the refined point).
    pub distance_decay: f64,
    /// Priors are jittered by this fraction, so that seeds differ where nothing else does.
    pub jitter: f64,
    /// How much faster a region might get where no roofline says so.
    pub assumed_headroom: f64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            exploration: 0.2,
            widening: 1.0,
            widening_exponent: 0.5,
            best_weight: 0.95,
            patience: 200.0,
            spread: 0.6,
            gain_memory: 0.25,
            distance_decay: 0.7,
            jitter: 0.05,
            assumed_headroom: 3.0,
        }
    }
}

/// Amdahl: the speed-up of the whole graph if the `share` of its time in [0, 1] gets `ratio` times faster.
///
/// ```
/// assert_eq!(forge_cc::search::policy::whole_graph_speedup(0.5, 2.0), 1.0 / 0.75);
/// ```
#[must_use]
pub fn whole_graph_speedup(share: f64, ratio: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    1.0 / (1.0 - share + share / ratio)
}

/// The reward of a kernel `ratio` times as fast as what it replaces, over a `share` of the graph's time: the logarithm of the
/// whole graph's speed-up, bounded and scaled to [0, 1], [`NEUTRAL`] where nothing changes. 0 for a ratio that is no positive
/// number.
#[must_use]
pub fn reward(share: f64, ratio: f64) -> f64 {
    if ratio.is_nan() || ratio <= 0.0 {
        return 0.0;
    }
    let speedup = whole_graph_speedup(share, ratio);
    (NEUTRAL + 0.5 * speedup.ln() / FULL_REWARD_SPEEDUP.ln()).clamp(0.0, 1.0)
}

impl Policy {
    /// The most that a region may add to the reward, as far as is known before it is tried.
    #[must_use]
    pub fn potential(&self, share: f64, headroom: Option<f64>) -> f64 {
        (reward(share, headroom.unwrap_or(self.assumed_headroom).max(1.0)) - NEUTRAL).max(0.0)
    }

    /// The prior of something `distance` steps away from what is expected to be best.
    #[must_use]
    pub fn distance_prior(&self, distance: usize) -> f64 {
        self.distance_decay.powi(i32::try_from(distance).unwrap_or(i32::MAX))
    }

    /// How many children a node may have after `visits` before its children are preferred to a new one.
    #[must_use]
    pub fn width(&self, visits: u32) -> usize {
        (self.widening * (f64::from(visits) + 1.0).powf(self.widening_exponent)).ceil() as usize
    }

    /// PUCT. `prior` is normalised among the siblings; visits count those in flight.
    #[must_use]
    pub fn score(&self, value: f64, prior: f64, parent_visits: u32, visits: u32) -> f64 {
        value + self.exploration * prior * f64::from(parent_visits.max(1)).sqrt() / (1.0 + f64::from(visits))
    }
}

/// The least and greatest of the rewards seen, for scaling: rewards of one region differ in the third digit where its share is
/// small, and must still tell its kernels apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    low: f64,
    high: f64,
}

impl Default for Range {
    fn default() -> Range {
        Range { low: f64::INFINITY, high: f64::NEG_INFINITY }
    }
}

impl Range {
    pub fn widen(&mut self, value: f64) {
        self.low = self.low.min(value);
        self.high = self.high.max(value);
    }

    /// `value` scaled to [0, 1]; everything is 1 while all that was seen is equal.
    #[must_use]
    pub fn scale(&self, value: f64) -> f64 {
        if self.high > self.low { ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reward_is_bounded_and_grows_with_ratio_and_share() {
        for share in [0.0, 0.01, 0.5, 1.0] {
            assert_eq!(reward(share, 1.0), NEUTRAL);
            let mut last = -1.0;
            for ratio in [1e-9, 0.1, 0.9, 1.0, 1.1, 2.0, 10.0, 1e9, f64::INFINITY] {
                let now = reward(share, ratio);
                assert!((0.0..=1.0).contains(&now), "{share} {ratio} {now}");
                assert!(now >= last, "{share} {ratio}: {now} < {last}");
                last = now;
            }
        }
        assert!(reward(0.5, 2.0) > reward(0.1, 2.0));
        assert_eq!(reward(0.5, f64::NAN), 0.0);
        assert_eq!(reward(0.5, -1.0), 0.0);
        assert_eq!(reward(0.5, 0.0), 0.0);
    }

    #[test]
    fn the_potential_of_a_region_is_what_amdahl_leaves() {
        let policy = Policy::default();
        assert!(policy.potential(0.6, None) > policy.potential(0.2, None));
        assert!(policy.potential(0.6, Some(1.2)) < policy.potential(0.6, None));
        assert_eq!(policy.potential(0.6, Some(0.5)), 0.0);
    }

    #[test]
    fn width_grows_slower_than_visits() {
        let policy = Policy::default();
        assert_eq!(policy.width(0), 1);
        assert!(policy.width(100) > policy.width(10));
        assert!(policy.width(100) <= 12);
    }

    #[test]
    fn an_empty_range_scales_to_one() {
        let mut range = Range::default();
        assert_eq!(range.scale(0.3), 1.0);
        range.widen(0.5);
        assert_eq!(range.scale(0.5), 1.0);
        range.widen(0.6);
        assert!((range.scale(0.55) - 0.5).abs() < 1e-12);
        assert_eq!(range.scale(0.0), 0.0);
    }
}
