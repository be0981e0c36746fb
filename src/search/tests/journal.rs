use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use forge_kernels::verdict::{Reason, Stage, Verdict};
use proptest::prelude::*;

use super::landscape::{accepted, region};
use super::run::{identity, lab, landscape, options, run, run_on};
use crate::search::budget::OptLevel;
use crate::search::event::{Entry, Event, Stop, VERSION, Winner};
use crate::search::journal::{Journal, JournalError, parse, read};
use crate::search::lab::{Lab, RegionTask};
use crate::search::state::State;

/// Enough that every kind of event occurs.
const TRIALS: u64 = 24;

struct Undisturbed {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
    state: State,
    judged: Vec<(String, String)>,
}

fn undisturbed() -> Undisturbed {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = lab(&landscape);
    run(folder.path(), false, &mut lab, &options(OptLevel::O3, Some(TRIALS)));
    let bytes = fs::read(folder.path().join("events.jsonl")).unwrap();
    let state = read(folder.path()).unwrap().state;
    Undisturbed { folder, bytes, state, judged: lab.judged }
}

/// The folder as a kill after `offset` bytes of the journal leaves it: blobs are there before the line that names them.
fn killed_at(undisturbed: &Undisturbed, offset: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let kept = &undisturbed.bytes[..offset];
    fs::write(folder.path().join("events.jsonl"), kept).unwrap();
    for candidate in parse(kept).unwrap().0.state.candidates.values() {
        for name in ["json", "cpp"].map(|extension| format!("{}.{extension}", candidate.hash)) {
            fs::copy(undisturbed.folder.path().join("blobs").join(&name), blobs.join(&name)).unwrap();
        }
    }
    folder
}

fn resume_reaches_the_same_end(undisturbed: &Undisturbed, offset: usize) {
    let folder = killed_at(undisturbed, offset);
    let before = parse(&undisturbed.bytes[..offset]).unwrap().0.state;
    let mut lab = lab(&landscape);
    let found = run(folder.path(), true, &mut lab, &options(OptLevel::O3, Some(TRIALS)));
    assert_eq!(found.stop, Stop::Budget);
    // The judgements of both processes are those of the undisturbed run: none lost, none made twice.
    assert_eq!(lab.judged, undisturbed.judged[before.trials as usize..], "offset {offset}");
    let after = read(folder.path()).unwrap().state;
    assert_eq!(after.candidates, undisturbed.state.candidates, "offset {offset}");
    assert_eq!(after.regions, undisturbed.state.regions, "offset {offset}");
    let winners: Vec<_> = found.winners.iter().map(|(hash, (candidate, _))| (hash.clone(), candidate.hash())).collect();
    let expected: Vec<_> = undisturbed
        .state
        .winners()
        .iter()
        .map(|winner| (winner.region.clone(), undisturbed.state.candidates[&winner.candidate].hash.clone()))
        .collect();
    assert_eq!(winners, expected);
}

#[test]
fn a_kill_at_any_byte_loses_nothing_and_repeats_nothing() {
    let undisturbed = undisturbed();
    let length = undisturbed.bytes.len();
    // The ends of lines are where the cases are; the rest of a line is all alike, so it is sampled.
    let ends = undisturbed.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let ends: Vec<usize> = ends.flat_map(|at| [at, at + 1, (at + 2).min(length)]).collect();
    for offset in ends.iter().step_by(5).copied().chain([0, 1, length]) {
        resume_reaches_the_same_end(&undisturbed, offset);
    }
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(48));
    runner
        .run(&(0..=length), |offset| {
            resume_reaches_the_same_end(&undisturbed, offset);
            Ok(())
        })
        .unwrap();
}

#[test]
fn shares_that_are_measured_anew_do_not_change_a_resumed_search() {
    let undisturbed = undisturbed();
    let cut = undisturbed.bytes.len() / 3;
    let folder = killed_at(&undisturbed, cut);
    let before = parse(&undisturbed.bytes[..cut]).unwrap().0.state;
    let mut lab = lab(&landscape);
    let regions = [region("r0", 0.05), region("r1", f64::NAN)];
    run_on(&regions, folder.path(), true, &mut lab, &options(OptLevel::O3, Some(TRIALS)));
    assert_eq!(lab.judged, undisturbed.judged[before.trials as usize..]);
}

#[test]
fn a_region_of_unknown_share_is_searched() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = lab(&landscape);
    let found = run_on(&[region("r0", f64::NAN)], folder.path(), false, &mut lab, &options(OptLevel::O2, None));
    assert_eq!(found.winners.len(), 1);
    assert_eq!(read(folder.path()).unwrap().state.regions["r0"].share, 0.0);
}

#[test]
fn every_prefix_reads_and_nothing_of_it_is_lost() {
    let undisturbed = undisturbed();
    let all = parse(&undisturbed.bytes).unwrap().0.entries;
    let mut whole = 0;
    let length = undisturbed.bytes.len();
    for offset in (0..600).chain((600..length).step_by(17)).chain([length]) {
        let (history, kept) = parse(&undisturbed.bytes[..offset]).unwrap();
        assert!(kept <= offset);
        assert!(history.entries.len() >= whole, "offset {offset}");
        whole = history.entries.len();
        assert_eq!(history.entries, all[..whole]);
    }
    assert_eq!(whole, all.len());
}

#[test]
fn a_resumed_run_may_go_on_after_its_end_with_a_larger_budget() {
    let undisturbed = undisturbed();
    let folder = killed_at(&undisturbed, undisturbed.bytes.len());
    let mut lab = lab(&landscape);
    let found = run(folder.path(), true, &mut lab, &options(OptLevel::O3, None));
    assert_eq!(found.stop, Stop::Exhausted);
    let state = read(folder.path()).unwrap().state;
    let all: BTreeSet<_> = undisturbed.judged.iter().chain(&lab.judged).collect();
    assert_eq!(all.len(), undisturbed.judged.len() + lab.judged.len());
    assert_eq!(state.trials as usize, all.len());
}

#[test]
fn a_new_run_keeps_the_old_journal_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    for count in 0..3 {
        let mut lab = lab(&landscape);
        run(folder.path(), false, &mut lab, &options(OptLevel::O3, Some(3 + count)));
        assert_eq!(lab.judged.len() as u64, 3 + count);
    }
    for (name, trials) in [("events.1.jsonl", 3), ("events.2.jsonl", 4), ("events.jsonl", 5)] {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        assert_eq!(parse(&bytes).unwrap().0.state.trials, trials, "{name}");
    }
}

#[test]
fn two_runs_do_not_share_a_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (held, _) = Journal::open(folder.path(), true).unwrap();
    assert!(matches!(Journal::open(folder.path(), true), Err(JournalError::InUse(_))));
    drop(held);
    Journal::open(folder.path(), true).unwrap();
}

#[test]
fn candidates_come_back_as_they_were_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path(), false).unwrap();
    let mut scripted = lab(&landscape);
    let task: RegionTask = region("r0", 0.5);
    let offers = scripted.survey(&task).offers;
    let parameters = forge_kernels::templates::default_point(&offers[0].axes);
    let ask = crate::search::lab::Ask { region: &task, strategy: &offers[0].strategy, parameters, parent: None };
    let candidate = scripted.propose(&ask).unwrap().remove(0);
    journal.store_candidate(&candidate).unwrap();
    journal.store_candidate(&candidate).unwrap();
    assert_eq!(journal.load_candidate(&candidate.hash()).unwrap(), candidate);
    let source = folder.path().join("blobs").join(format!("{}.cpp", candidate.hash()));
    assert_eq!(fs::read_to_string(&source).unwrap(), candidate.source);
    fs::write(&source, "// edited").unwrap();
    assert!(matches!(journal.load_candidate(&candidate.hash()), Err(JournalError::Blob { .. })));
    assert!(matches!(journal.load_candidate("0000"), Err(JournalError::Io { .. })));
}

fn write(folder: &Path, lines: &[String]) {
    fs::write(folder.join("events.jsonl"), lines.concat()).unwrap();
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let undisturbed = undisturbed();
    let text = String::from_utf8(undisturbed.bytes).unwrap();
    let lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let folder = tempfile::tempdir().unwrap();
    let fault = |edit: &dyn Fn(&mut Vec<String>)| {
        let mut edited = lines.clone();
        edit(&mut edited);
        write(folder.path(), &edited);
        let error = Journal::open(folder.path(), true).unwrap_err();
        assert_eq!(fs::read_to_string(folder.path().join("events.jsonl")).unwrap(), edited.concat(), "left as it is");
        error.to_string()
    };
    let cases = [
        fault(&|lines| lines[3] = "{\"v\":1,\"n\":3,\n".into()),
        fault(&|lines| lines[2] = "\n".into()),
        fault(&|lines| lines[1] = lines[1].replace("region_found", "region_lost")),
        fault(&|lines| lines[1] = lines[1].replace("\"share\"", "\"part\"")),
        fault(&|lines| lines[0] = lines[0].replace("\"v\":1", "\"v\":2")),
        fault(&|lines| drop(lines.remove(4))),
        fault(&|lines| drop(lines.drain(..1))),
        fault(&|lines| {
            let again = lines.iter().find(|line| line.contains("candidate_judged")).cloned().unwrap();
            let entry: Entry = serde_json::from_str(&again).unwrap();
            lines.push(format!("{}\n", serde_json::to_string(&Entry { n: lines.len() as u64, ..entry }).unwrap()));
        }),
    ];
    insta::assert_snapshot!(cases.join("\n"));
}

/// One of each: a change here is a change of the format, which readers of older journals meet.
#[test]
fn the_format_of_events_is_fixed() {
    let run = identity(7);
    let parameters = std::collections::BTreeMap::from([("tile".to_owned(), "48".to_owned())]);
    let events = [
        Event::RunStarted { tool: run.tool, model: run.model, config: run.config.clone(), seed: run.seed },
        Event::GraphReady { ops_before: 120, ops_after: 64 },
        Event::RegionFound {
            hash: "5f1e".into(),
            title: "matmul, add, gelu".into(),
            ops: 3,
            occurrences: 12,
            share: 0.375,
            baseline_ns: Some(81_250.5),
            headroom: Some(4.5),
            offers: vec!["template/matmul_epilogue".into()],
            refusals: vec![crate::search::lab::Refusal {
                strategy: "template/attention".into(),
                reason: "no attention in the region".into(),
            }],
        },
        Event::CandidateProposed {
            id: 0,
            parent: None,
            region: "5f1e".into(),
            hash: "c0de".into(),
            title: "template/matmul_epilogue{tile=48}".into(),
            strategy: "template/matmul_epilogue".into(),
            parameters: parameters.clone(),
            repeats: None,
        },
        Event::CandidateJudged { id: 0, verdict: accepted(1.5), seconds: 2.25 },
        Event::ProposalRefused {
            parent: Some(0),
            region: "5f1e".into(),
            strategy: "template/matmul_epilogue".into(),
            parameters: parameters.clone(),
            reason: "the tile does not fit".into(),
        },
        Event::CandidateProposed {
            id: 1,
            parent: Some(0),
            region: "5f1e".into(),
            hash: "beef".into(),
            title: "template/matmul_epilogue{tile=48}".into(),
            strategy: "template/matmul_epilogue".into(),
            parameters,
            repeats: Some(0),
        },
        Event::WholeGraphMeasured {
            kernels: vec![0],
            verdict: Verdict::rejected(Stage::Measure, Reason::NotFaster, "1.002 [0.998, 1.006]"),
        },
        Event::KernelDropped { id: 0, why: "no faster end to end".into() },
        Event::RunResumed { budget: run.config.budget },
        Event::RunFinished {
            stop: Stop::Budget,
            trials: 1,
            seconds: 30.5,
            winners: vec![Winner { region: "5f1e".into(), candidate: 0, ratio: 1.5 }],
        },
    ];
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(folder.path(), false).unwrap();
    for (n, event) in events.iter().enumerate() {
        journal.append(Duration::from_millis(250 * n as u64), event).unwrap();
    }
    let text = fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    let back = read(folder.path()).unwrap();
    assert_eq!(back.entries.iter().map(|entry| &entry.event).collect::<Vec<_>>(), events.iter().collect::<Vec<_>>());
    assert!(back.entries.iter().all(|entry| entry.v == VERSION));
    assert_eq!(back.state.candidates[&0].dropped.as_deref(), Some("no faster end to end"));
    insta::assert_snapshot!(text);
}
