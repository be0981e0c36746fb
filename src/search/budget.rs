//! What a search may spend, and how much of one there is at each `-O` level.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The ends of a search; whichever comes first. Without either it ends when the space is exhausted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    pub time: Option<Duration>,
    /// Candidates judged.
    pub trials: Option<u64>,
}

/// What a search has spent so far, resumed runs included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    pub time: Duration,
    pub trials: u64,
}

impl Budget {
    /// Whether nothing more may be judged.
    #[must_use]
    pub fn is_spent(&self, spent: Spent) -> bool {
        self.time.is_some_and(|limit| spent.time >= limit) || self.trials.is_some_and(|limit| spent.trials >= limit)
    }

    /// How much of the budget is gone, in [0, 1], by the limit that is nearer; `None` if there is no limit.
    #[must_use]
    pub fn fraction(&self, spent: Spent) -> Option<f64> {
        let time = self.time.map(|limit| ratio(spent.time.as_secs_f64(), limit.as_secs_f64()));
        let trials = self.trials.map(|limit| ratio(spent.trials as f64, limit as f64));
        match (time, trials) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        }
    }
}

fn ratio(spent: f64, limit: f64) -> f64 {
    if limit > 0.0 { (spent / limit).clamp(0.0, 1.0) } else { 1.0 }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.time, self.trials) {
            (None, None) => f.write_str("unlimited"),
            (Some(time), None) => write!(f, "{time:?}"),
            (None, Some(trials)) => write!(f, "{trials} trials"),
            (Some(time), Some(trials)) => write!(f, "{time:?} or {trials} trials"),
        }
    }
}

/// `-O0` to `-O3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum OptLevel {
    /// Import only: the graph as it came.
    O0,
    /// Passes; no kernels beyond the generic ones.
    O1,
    /// The default point of each template that applies to a region.
    #[default]
    O2,
    /// Full search of the templates' spaces.
    O3,
}

impl OptLevel {
    pub const ALL: [OptLevel; 4] = [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3];

    /// Whether passes rewrite the graph.
    #[must_use]
    pub fn rewrites(self) -> bool {
        self >= OptLevel::O1
    }

    /// Whether kernels are searched for.
    #[must_use]
    pub fn searches(self) -> bool {
        self >= OptLevel::O2
    }

    /// Whether points other than a template's default are tried.
    #[must_use]
    pub fn explores(self) -> bool {
        self >= OptLevel::O3
    }

    /// The budget where none is given.
    #[must_use]
    pub fn default_budget(self) -> Budget {
        match self {
            OptLevel::O0 | OptLevel::O1 => Budget { time: Some(Duration::ZERO), trials: Some(0) },
            OptLevel::O2 => Budget { time: Some(Duration::from_secs(60)), trials: None },
            OptLevel::O3 => Budget { time: Some(Duration::from_secs(600)), trials: None },
        }
    }

    /// One line for `--help` and reports.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            OptLevel::O0 => "import only, no rewrites",
            OptLevel::O1 => "graph passes, generic kernels",
            OptLevel::O2 => "passes, and each template's default kernel where it helps",
            OptLevel::O3 => "passes, and a search of every template's parameters",
        }
    }
}

impl fmt::Display for OptLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Why a budget or level could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseBudgetError {
    #[error("'{0}' is no duration; write a number with a unit: 1500ms, 60s, 2m or 1h")]
    Duration(String),
    #[error("'{0}' is no optimisation level; the levels are 0, 1, 2 and 3")]
    Level(String),
}

impl FromStr for OptLevel {
    type Err = ParseBudgetError;

    /// `2`, `O2` or `-O2`.
    fn from_str(text: &str) -> Result<OptLevel, ParseBudgetError> {
        let digit = text.trim_start_matches('-').trim_start_matches(['O', 'o']);
        OptLevel::ALL
            .into_iter()
            .find(|level| level.to_string().strip_prefix('O') == Some(digit))
            .ok_or_else(|| ParseBudgetError::Level(text.to_owned()))
    }
}

/// A duration as users write it: `1500ms`, `60s`, `2m`, `1.5h`. The unit is required; more than ten years is refused.
///
/// # Errors
/// If the text is anything else.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(forge_cc::search::budget::parse_duration("2m"), Ok(Duration::from_secs(120)));
/// assert!(forge_cc::search::budget::parse_duration("60").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, ParseBudgetError> {
    let fault = || ParseBudgetError::Duration(text.to_owned());
    let trimmed = text.trim();
    let unit_at = trimmed.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(fault)?;
    let (number, unit) = trimmed.split_at(unit_at);
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(fault()),
    };
    let number = number.trim();
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(fault());
    }
    let value: f64 = number.parse().map_err(|_| fault())?;
    const LIMIT: f64 = 10.0 * 365.25 * 86_400.0;
    let total = value * seconds;
    // Nanoseconds, so that `0.1s` is the 100 ms that was written.
    if (0.0..=LIMIT).contains(&total) { Ok(Duration::from_nanos((total * 1e9).round() as u64)) } else { Err(fault()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_number_and_a_unit() {
        for (text, milliseconds) in
            [("1500ms", 1500), ("60s", 60_000), ("2m", 120_000), ("1.5h", 5_400_000), (" 0.1 s", 100)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "60", "s", "-1s", "1e3s", "1.2.3s", "1d", "nan s", "inf s", "99999999h", "1s2"] {
            assert_eq!(parse_duration(text), Err(ParseBudgetError::Duration(text.to_owned())));
        }
    }

    #[test]
    fn levels_parse_as_written_on_a_command_line() {
        for level in OptLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(format!("-{level}").parse(), Ok(level));
        }
        assert_eq!("2".parse(), Ok(OptLevel::O2));
        for text in ["4", "", "O", "fast", "02"] {
            assert!(text.parse::<OptLevel>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_budget_ends_at_the_nearer_limit() {
        let budget = Budget { time: Some(Duration::from_secs(10)), trials: Some(4) };
        let spent = |seconds, trials| Spent { time: Duration::from_secs(seconds), trials };
        assert!(!budget.is_spent(spent(9, 3)));
        assert!(budget.is_spent(spent(10, 0)));
        assert!(budget.is_spent(spent(0, 4)));
        assert_eq!(budget.fraction(spent(1, 3)), Some(0.75));
        assert_eq!(Budget::default().fraction(spent(1, 3)), None);
        assert!(!Budget::default().is_spent(spent(1_000_000, 1_000_000)));
        assert!(Budget { time: None, trials: Some(0) }.is_spent(spent(0, 0)));
        assert_eq!(Budget { time: None, trials: Some(0) }.fraction(spent(0, 0)), Some(1.0));
    }
}
