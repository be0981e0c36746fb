use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forge_kernels::templates::Parameters;
use forge_kernels::verdict::{Reason, Stage, Verdict};

use super::landscape::{Reply, Scripted, accepted, axis, numbers, offer, region};
use crate::search::budget::{Budget, OptLevel};
use crate::search::event::{Config, Stop};
use crate::search::journal::{History, read};
use crate::search::lab::RegionTask;
use crate::search::policy::Policy;
use crate::search::run::{Found, Options, finite, search};
use crate::search::session::{Session, SessionError};
use crate::search::state::Run;
use crate::search::tree::Offer;

pub(super) fn identity(seed: u64) -> Run {
    let config = Config {
        target: "cpu".into(),
        level: OptLevel::O3,
        shape: BTreeMap::from([("batch".into(), 1)]),
        threads: 2,
        budget: Budget { time: None, trials: Some(20) },
    };
    Run { tool: "forge-cc 0.1.0".into(), model: "ab12".into(), config, seed }
}

pub(super) fn options(level: OptLevel, trials: Option<u64>) -> Options {
    Options { level, budget: Budget { time: None, trials }, seed: 1, policy: Policy::default() }
}

/// Two regions with two templates each; `x` has no effect on the second template's kernel.
pub(super) fn offers() -> BTreeMap<String, Vec<Offer>> {
    let both = vec![
        offer("template/tile", vec![axis("x", 4), axis("y", 4)]),
        offer("template/row", vec![axis("x", 3), axis("y", 2)]),
    ];
    BTreeMap::from([("r0".to_owned(), both.clone()), ("r1".to_owned(), both)])
}

pub(super) fn landscape(region: &str, strategy: &str, parameters: &Parameters) -> Reply {
    let at = numbers(parameters);
    match (strategy, at[0] as i64, at[1] as i64) {
        ("template/tile", 1, 1) => Reply::Rejected(Reason::TailError),
        ("template/tile", 3, 0) => Reply::Refused("the tile does not fit"),
        ("template/tile", ..) => {
            Reply::Ratio(0.9 + 0.2 * at[0] + if region == "r0" { 0.1 * at[1] } else { -0.1 * at[1] })
        }
        (_, _, y) => Reply::Ratio(1.25 + 0.25 * y as f64),
    }
}

pub(super) fn source(strategy: &str, parameters: &Parameters) -> String {
    let shown = if strategy == "template/row" { parameters["y"].clone() } else { format!("{parameters:?}") };
    format!("// {strategy} {shown}")
}

pub(super) fn lab(landscape: &dyn Fn(&str, &str, &Parameters) -> Reply) -> Scripted<'_> {
    Scripted { source: &source, ..Scripted::new(offers(), landscape) }
}

pub(super) fn run(folder: &Path, resume: bool, lab: &mut Scripted<'_>, options: &Options) -> Found {
    run_on(&[region("r0", 0.5), region("r1", 0.2)], folder, resume, lab, options)
}

pub(super) fn run_on(
    regions: &[RegionTask],
    folder: &Path,
    resume: bool,
    lab: &mut Scripted<'_>,
    options: &Options,
) -> Found {
    let mut session = Session::begin(folder, resume, identity(1), Box::new(|| Duration::ZERO)).unwrap();
    let found = search(&mut session, lab, regions, options, &AtomicBool::new(false), &mut |_| ()).unwrap();
    session.finish(found.stop).unwrap();
    found
}

#[test]
fn a_search_finds_the_best_kernel_of_each_region_and_tells_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = lab(&landscape);
    let found = run(folder.path(), false, &mut lab, &options(OptLevel::O3, None));
    assert_eq!(found.stop, Stop::Exhausted);
    let ratios: Vec<(String, f64)> =
        found.winners.iter().map(|(hash, (_, verdict))| (hash.clone(), verdict.ratio().unwrap())).collect();
    let best = 0.9 + 0.2 * 3.0 + 0.1 * 3.0;
    assert_eq!(ratios, [("r0".to_owned(), best), ("r1".to_owned(), 1.5)]);
    assert_eq!(found.winners["r0"].0.source, source("template/tile", &parameters(3, 3)));

    let History { state, .. } = read(folder.path()).unwrap();
    let region = &state.regions["r0"];
    assert_eq!(region.title, "relu");
    assert_eq!(region.refusals[0].reason, "no matmul in the region");
    // 16 tiles, one refused; 6 rows, two of them distinct.
    assert_eq!((region.tried, region.repeats), (15 + 2, 4));
    assert_eq!(region.refused, BTreeMap::from([("the tile does not fit".to_owned(), 1)]));
    assert_eq!(region.rejected[&Reason::TailError.to_string()], 1);
    assert_eq!(region.tried, region.accepted + region.rejected.values().sum::<u64>());
    assert_eq!(state.finished, Some(Stop::Exhausted));
    assert_eq!(state.trials as usize, lab.judged.len());
}

fn parameters(x: usize, y: usize) -> Parameters {
    BTreeMap::from([("x".to_owned(), x.to_string()), ("y".to_owned(), y.to_string())])
}

#[test]
fn equal_kernels_are_judged_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = lab(&landscape);
    run(folder.path(), false, &mut lab, &options(OptLevel::O3, None));
    let distinct: BTreeSet<_> = lab.judged.iter().collect();
    assert_eq!(distinct.len(), lab.judged.len());
    assert_eq!(lab.asked, 2 * (16 + 6), "every point was asked for");
    let History { state, .. } = read(folder.path()).unwrap();
    let repeat = state.candidates.iter().find(|(_, candidate)| candidate.repeats.is_some()).unwrap();
    assert!(state.verdict(*repeat.0).is_some(), "a repeat has the verdict of the first");
}

#[test]
fn levels_restrict_the_space() {
    for (level, trials) in [(OptLevel::O0, 0), (OptLevel::O1, 0), (OptLevel::O2, 4), (OptLevel::O3, 2 * (15 + 2))] {
        let folder = tempfile::tempdir().unwrap();
        let mut lab = lab(&landscape);
        let found = run(folder.path(), false, &mut lab, &options(level, None));
        assert_eq!((lab.judged.len(), found.stop), (trials, Stop::Exhausted), "{level}");
    }
}

#[test]
fn trials_and_time_end_a_search() {
    let folder = tempfile::tempdir().unwrap();
    let mut scripted = lab(&landscape);
    let found = run(folder.path(), false, &mut scripted, &options(OptLevel::O3, Some(7)));
    assert_eq!((scripted.judged.len(), found.stop), (7, Stop::Budget));
    let mut none = lab(&landscape);
    let found = run(folder.path(), false, &mut none, &options(OptLevel::O3, Some(0)));
    assert_eq!((none.judged.len(), none.asked, found.stop), (0, 0, Stop::Budget));

    // A clock that goes on by a second at each judgement.
    let now = Cell::new(Duration::ZERO);
    let ticking = |r: &str, s: &str, p: &Parameters| {
        now.set(now.get() + Duration::from_secs(1));
        landscape(r, s, p)
    };
    let mut timed = lab(&ticking);
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { budget: Budget { time: Some(Duration::from_secs(5)), trials: None }, ..options(OptLevel::O3, None) };
    let mut session = Session::begin(folder.path(), false, identity(1), Box::new(|| now.get())).unwrap();
    let regions = [region("r0", 0.5), region("r1", 0.2)];
    let mut shown = 0;
    let mut progress = |progress: &crate::search::run::Progress<'_>| {
        assert!(progress.budget.fraction(progress.spent).unwrap() < 1.0);
        assert_eq!(progress.state.trials, shown);
        shown += 1;
    };
    let found = search(&mut session, &mut timed, &regions, &options, &AtomicBool::new(false), &mut progress).unwrap();
    assert_eq!((timed.asked, found.stop), (5, Stop::Budget));
    assert_eq!(shown as usize, timed.judged.len());
}

#[test]
fn an_interrupt_ends_a_search_with_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = lab(&landscape);
    let interrupt = AtomicBool::new(false);
    let mut session = Session::begin(folder.path(), false, identity(1), Box::new(|| Duration::ZERO)).unwrap();
    let mut progress = |progress: &crate::search::run::Progress<'_>| {
        interrupt.store(progress.state.trials == 9, std::sync::atomic::Ordering::Relaxed);
    };
    let regions = [region("r0", 0.5), region("r1", 0.2)];
    let options = options(OptLevel::O3, None);
    let found = search(&mut session, &mut lab, &regions, &options, &interrupt, &mut progress).unwrap();
    // The flag rose while the tenth was about to be judged; that one was finished.
    assert_eq!((found.stop, lab.judged.len()), (Stop::Interrupted, 10));
    assert!(!found.winners.is_empty());
}

#[test]
fn another_run_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let begin = |run| Session::begin(folder.path(), true, run, Box::new(|| Duration::ZERO));
    drop(begin(identity(1)).unwrap());
    let other = begin(identity(2)).err().unwrap();
    assert!(matches!(other, SessionError::OtherRun { what: "seed", .. }), "{other}");
    let mut wider = identity(1);
    wider.config.budget.trials = None;
    assert_eq!(begin(wider.clone()).unwrap().state().run, Some(wider), "the budget may change");
    let mut session = begin(identity(1)).unwrap();
    session.graph_ready(10, 8).unwrap();
    session.graph_ready(10, 8).unwrap();
    assert!(session.graph_ready(10, 7).is_err());
}

#[test]
fn figures_that_json_cannot_hold_do_not_reach_the_journal() {
    let mut verdict = accepted(1.5);
    if let Verdict::Accepted { timing, .. } = &mut verdict {
        timing.noise = f64::NAN;
    }
    assert_eq!(finite(verdict.clone()).reason(), Some(Reason::WorkerFailed));
    let Verdict::Accepted { errors, .. } = verdict else { unreachable!() };
    let mut rejected = Verdict::rejected(Stage::Validate, Reason::NonFiniteMask, "nan at 3");
    if let Verdict::Rejected { evidence, .. } = &mut rejected {
        evidence.errors = Some(forge_kernels::verdict::ErrorReport { seconds: f64::INFINITY, ..errors });
    }
    let plain = Verdict::rejected(Stage::Validate, Reason::NonFiniteMask, "nan at 3");
    assert_eq!(finite(rejected), plain);
    assert_eq!(finite(accepted(1.25)), accepted(1.25));
}
