//! What a run found: regions, kernels, verdicts and the end-to-end figure. The manifest, the HTML page and the table on
//! the terminal are renderings of [`Report`].

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use forge_kernels::measure::Measurement;
use forge_kernels::verdict::Verdict;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub regions: Vec<RegionReport>,
    /// Of the whole model; `None` if it was not measured.
    pub end_to_end: Option<EndToEnd>,
}

/// Equal regions are one region that occurs several times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Canonical hash.
    pub hash: String,
    /// Its ops, for people: `add, layer_norm`.
    pub summary: String,
    pub occurrences: usize,
    /// Every kernel tried, in order.
    pub kernels: Vec<KernelReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// Content hash of the candidate.
    pub hash: String,
    /// Who proposed it, and with what parameters.
    pub title: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Outcome {
    Accepted {
        /// Against the region's unfused execution.
        ratio: Ratio,
        /// Whether the forged plan runs it; an accepted kernel may lose to another, or not help the whole model.
        used: bool,
        /// Why not, if not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unused_because: Option<String>,
    },
    Rejected {
        /// Of the evaluation: `compile`, `validate`, `measure`, ..
        stage: String,
        /// One of a closed set, by which rejections are counted.
        reason: String,
        /// What was seen.
        detail: String,
    },
}

/// Time of the baseline over time of the new, with its confidence interval: above 1 is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndToEnd {
    /// Unrewritten over forged.
    pub ratio: Ratio,
    /// Of the interval: 0.95.
    pub confidence: f64,
    pub original_ms: f64,
    pub forged_ms: f64,
    pub pairs: usize,
    pub threads: usize,
    /// Values of the symbols.
    pub sizes: BTreeMap<String, i64>,
}

/// Kernels of one or all regions, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub tried: usize,
    pub accepted: usize,
    pub used: usize,
    /// By reason.
    pub rejected: BTreeMap<String, usize>,
}

impl From<&Measurement> for Ratio {
    fn from(measurement: &Measurement) -> Ratio {
        Ratio { value: measurement.ratio, low: measurement.ci.0, high: measurement.ci.1 }
    }
}

impl From<&Verdict> for Outcome {
    /// An accepted kernel is not used until the caller says so.
    fn from(verdict: &Verdict) -> Outcome {
        match verdict {
            Verdict::Accepted { timing, .. } => {
                Outcome::Accepted { ratio: timing.into(), used: false, unused_because: None }
            }
            Verdict::Rejected { stage, reason, evidence } => {
                let parts = [evidence.summary.as_str(), evidence.detail.as_str()];
                let told: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
                let detail = if told.is_empty() { reason.message().to_owned() } else { told.join("\n") };
                Outcome::Rejected { stage: stage.to_string(), reason: reason.code(), detail }
            }
        }
    }
}

impl EndToEnd {
    /// From a comparison of the two plans, the unrewritten one being the baseline.
    #[must_use]
    pub fn new(measurement: &Measurement, confidence: f64, sizes: BTreeMap<String, i64>) -> EndToEnd {
        EndToEnd {
            ratio: measurement.into(),
            confidence,
            original_ms: measurement.baseline_ns / 1e6,
            forged_ms: measurement.candidate_ns / 1e6,
            pairs: measurement.samples.len(),
            threads: measurement.device.threads,
            sizes,
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}x [{:.3}, {:.3}]", self.value, self.low, self.high)
    }
}

impl Counts {
    fn of<'a>(kernels: impl IntoIterator<Item = &'a KernelReport>) -> Counts {
        let mut counts = Counts::default();
        for kernel in kernels {
            counts.tried += 1;
            match &kernel.outcome {
                Outcome::Accepted { used, .. } => {
                    counts.accepted += 1;
                    counts.used += usize::from(*used);
                }
                Outcome::Rejected { reason, .. } => *counts.rejected.entry(reason.clone()).or_default() += 1,
            }
        }
        counts
    }

    #[must_use]
    pub fn rejections(&self) -> usize {
        self.rejected.values().sum()
    }

    /// `2 mismatch, 1 compile`, the most frequent first; `-` if there are none.
    fn reasons(&self) -> String {
        let mut reasons: Vec<(&String, &usize)> = self.rejected.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let texts: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
    }
}

impl RegionReport {
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::of(&self.kernels)
    }

    /// The ratio of the kernel in use, else of the best accepted one.
    #[must_use]
    pub fn best(&self) -> Option<(Ratio, bool)> {
        let accepted = self.kernels.iter().filter_map(|kernel| match &kernel.outcome {
            Outcome::Accepted { ratio, used, .. } => Some((*ratio, *used)),
            Outcome::Rejected { .. } => None,
        });
        accepted.max_by(|(a, a_used), (b, b_used)| {
            (a_used, a.value).partial_cmp(&(b_used, b.value)).unwrap_or(std::cmp::Ordering::Equal)
        })
    }
}

impl Report {
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::of(self.regions.iter().flat_map(|region| &region.kernels))
    }

    /// The end-to-end figure in a sentence.
    #[must_use]
    pub fn end_to_end_text(&self) -> String {
        let Some(e) = &self.end_to_end else { return "End to end: not measured.".to_owned() };
        let sizes: Vec<String> = e.sizes.iter().map(|(symbol, value)| format!("{symbol}={value}")).collect();
        let sizes = if sizes.is_empty() { String::new() } else { format!(", {}", sizes.join(", ")) };
        format!(
            "End to end: {} at {:.0}% confidence: original {:.3} ms, forged {:.3} ms ({} pairs, {} threads{sizes}).",
            e.ratio,
            e.confidence * 100.0,
            e.original_ms,
            e.forged_ms,
            e.pairs,
            e.threads
        )
    }

    /// The table for the terminal: a line for each region, a total, and the end-to-end figure.
    #[must_use]
    pub fn summary(&self) -> String {
        let header = ["region", "ops", "times", "tried", "accepted", "used", "rejected", "best"].map(str::to_owned);
        let mut rows = vec![header];
        for region in &self.regions {
            let counts = region.counts();
            let best = match region.best() {
                None => "-".to_owned(),
                Some((ratio, true)) => ratio.to_string(),
                Some((ratio, false)) => format!("{ratio} (not used)"),
            };
            rows.push(row(short(&region.hash), shorten(&region.summary, 40), region.occurrences, &counts, best));
        }
        let occurrences = self.regions.iter().map(|region| region.occurrences).sum();
        let found = format!("{} found", self.regions.len());
        rows.push(row("total", found, occurrences, &self.counts(), String::new()));
        format!("{}{}\n", table(&rows), self.end_to_end_text())
    }
}

fn row(region: &str, ops: String, times: usize, counts: &Counts, best: String) -> [String; 8] {
    [
        region.to_owned(),
        ops,
        times.to_string(),
        counts.tried.to_string(),
        counts.accepted.to_string(),
        counts.used.to_string(),
        counts.reasons(),
        best,
    ]
}

/// Columns as wide as their widest cell; numbers to the right.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let numeric = |column: usize| {
        rows.iter().skip(1).all(|row| !row[column].is_empty() && row[column].bytes().all(|b| b.is_ascii_digit()))
    };
    let layout: [(usize, bool); N] = std::array::from_fn(|column| {
        (rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0), numeric(column))
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, (width, right)) in row.iter().zip(layout) {
            // Writing to a string cannot fail.
            let _ = if right { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Enough of a hash to tell regions apart by eye.
pub(crate) fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

fn shorten(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let kept: String = text.chars().take(limit.saturating_sub(2)).collect();
    format!("{kept}..")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Report {
        let ratio = |value: f64| Ratio { value, low: value - 0.05, high: value + 0.05 };
        let kernel =
            |hash: &str, outcome| KernelReport { hash: hash.into(), title: format!("template/{hash}"), outcome };
        let rejected = |stage: &str, reason: &str, detail: &str| Outcome::Rejected {
            stage: stage.into(),
            reason: reason.into(),
            detail: detail.into(),
        };
        let accepted = |value, used, because: Option<&str>| Outcome::Accepted {
            ratio: ratio(value),
            used,
            unused_because: because.map(str::to_owned),
        };
        Report {
            regions: vec![
                RegionReport {
                    hash: "0123456789abcdef".into(),
                    summary: "add, layer_norm".into(),
                    occurrences: 12,
                    kernels: vec![
                        kernel("rowwise", accepted(1.8, true, None)),
                        kernel("vector<4>", accepted(1.9, false, Some("slower end to end"))),
                        kernel("bad", rejected("validate", "mismatch", "output 0 differs at [3, 1]: 1.5 & not 1.25")),
                        kernel("worse", rejected("validate", "mismatch", "all zeros")),
                        kernel("broken", rejected("compile", "refused", "line 3")),
                    ],
                },
                RegionReport {
                    hash: "fedcba9876543210".into(),
                    summary: "matmul, add, gelu, matmul, add, mul, sub, div, exp".into(),
                    occurrences: 1,
                    kernels: vec![kernel("slow", rejected("measure", "not_faster", "0.97x"))],
                },
            ],
            end_to_end: Some(EndToEnd {
                ratio: Ratio { value: 1.25, low: 1.2, high: 1.3 },
                confidence: 0.95,
                original_ms: 12.5,
                forged_ms: 10.0,
                pairs: 30,
                threads: 2,
                sizes: BTreeMap::from([("batch".into(), 8), ("seq".into(), 128)]),
            }),
        }
    }

    #[test]
    fn the_summary_says_what_happened() {
        insta::assert_snapshot!(example().summary(), @r"
        region    ops                                       times  tried  accepted  used  rejected                             best
        01234567  add, layer_norm                              12      5         2     1  2 mismatch, 1 refused                1.800x [1.750, 1.850]
        fedcba98  matmul, add, gelu, matmul, add, mul, s..      1      1         0     0  1 not_faster                         -
        total     2 found                                      13      6         2     1  2 mismatch, 1 not_faster, 1 refused
        End to end: 1.250x [1.200, 1.300] at 95% confidence: original 12.500 ms, forged 10.000 ms (30 pairs, 2 threads, batch=8, seq=128).
        ");
    }

    #[test]
    fn nothing_found_is_said_too() {
        insta::assert_snapshot!(Report::default().summary(), @r"
        region  ops      times  tried  accepted  used  rejected  best
        total   0 found      0      0         0     0  -
        End to end: not measured.
        ");
    }

    #[test]
    fn verdicts_become_outcomes() {
        use forge_kernels::verdict::{Reason, Stage};
        let verdict = Verdict::rejected(Stage::Compile, Reason::CompileFailed, "line 3");
        let outcome = Outcome::from(&verdict);
        let wanted = ("compilation".to_owned(), "compile_failed".to_owned(), "line 3".to_owned());
        assert!(
            matches!(outcome, Outcome::Rejected { stage, reason, detail } if (stage.clone(), reason.clone(), detail.clone()) == wanted)
        );
        let bare = Outcome::from(&Verdict::rejected(Stage::Run, Reason::Timeout, ""));
        assert!(matches!(bare, Outcome::Rejected { detail, .. } if detail == Reason::Timeout.message()));
    }

    #[test]
    fn the_kernel_in_use_goes_before_a_faster_one() {
        let report = example();
        assert_eq!(report.regions[0].best().unwrap(), (Ratio { value: 1.8, low: 1.75, high: 1.85 }, true));
        assert_eq!(report.regions[1].best(), None);
        assert_eq!((report.counts().tried, report.counts().rejections()), (6, 4));
    }
}
