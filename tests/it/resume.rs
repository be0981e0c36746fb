//! A search that was killed goes on where it was: nothing accepted is lost, nothing is judged twice.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forge_cc::emit::JOURNAL_FOLDER;
use forge_cc::search::event::Event;
use forge_cc::search::journal;

use crate::command::{assert_consistent, fixture, forge_cc, run, words};

const TRIALS: u64 = 10;
/// A search that does not get there by then hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends with its group, however the test ends.
struct Search(Child);

impl Search {
    /// In a process group of its own, so that it can be killed with its workers at once.
    fn start(model: &Path, out: &Path) -> Search {
        let line = format!("{{}} -o {{}} -O3 --trials {TRIALS} --seed 3 --resume");
        let mut command = forge_cc();
        command.args(words(&line, &[model, out])).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Search(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        // Fails only where the group has ended already.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        self.0.wait().unwrap();
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.kill();
    }
}

/// (region, candidate hash) and verdict as JSON of all that a journal says was judged, in order.
type Judged = Vec<((String, String), serde_json::Value)>;

fn judged(out: &Path) -> Judged {
    let Ok(bytes) = fs::read(out.join(JOURNAL_FOLDER).join("events.jsonl")) else { return Vec::new() };
    let (history, _) = journal::parse(&bytes).unwrap();
    let mut proposed: BTreeMap<u64, (String, String)> = BTreeMap::new();
    let mut judged = Vec::new();
    for entry in history.entries {
        match entry.event {
            Event::CandidateProposed { id, region, hash, .. } => {
                assert!(proposed.insert(id, (region, hash)).is_none(), "candidate {id} is proposed twice");
            }
            Event::CandidateJudged { id, verdict, .. } => {
                judged.push((proposed[&id].clone(), serde_json::to_value(verdict).unwrap()));
            }
            _ => {}
        }
    }
    judged
}

#[test]
fn a_killed_search_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let model = fixture("digits/transformer.onnx");
    let mut before: Judged = Vec::new();
    // Killed in the middle of the first judgements, of later ones, and just after one; resumed each time.
    for (verdicts, later) in [(0, 700), (2, 350), (4, 0)] {
        let mut search = Search::start(&model, &out);
        let started = Instant::now();
        while judged(&out).len() < verdicts {
            assert!(started.elapsed() < PATIENCE, "no {verdicts} verdicts after {PATIENCE:?}");
            assert!(search.0.try_wait().unwrap().is_none(), "it ended with {} verdicts", judged(&out).len());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(later));
        search.kill();
        let now = judged(&out);
        assert!(now.len() >= verdicts && now.starts_with(&before), "verdicts were lost: {before:#?}, now {now:#?}");
        assert!(!out.join("manifest.json").exists(), "it was killed after it had written its result");
        before = now;
    }
    assert!(before.len() >= 4 && (before.len() as u64) < TRIALS, "{} verdicts before the last run", before.len());
    // The system may cut a line that was being written: that is no loss, either.
    let events = out.join(JOURNAL_FOLDER).join("events.jsonl");
    let mut bytes = fs::read(&events).unwrap();
    bytes.extend_from_slice(b"{\"v\":1,\"n\":9");
    fs::write(&events, bytes).unwrap();

    let line = format!("{{}} -o {{}} -O3 --trials {TRIALS} --seed 3");
    let mut resumed = words(&line, &[&model, &out]);
    resumed.push("--resume".into());
    run(&resumed).expect(0);

    let after = judged(&out);
    assert!(after.starts_with(&before), "verdicts were lost");
    let mut seen = BTreeMap::new();
    for (what, _) in &after {
        *seen.entry(what).or_insert(0) += 1;
    }
    assert!(seen.values().all(|times| *times == 1), "judged twice: {seen:#?}");
    assert_eq!(after.len() as u64, TRIALS, "the trials of all runs together are the budget");
    assert_consistent(&out);
    let history = journal::read(&out.join(JOURNAL_FOLDER)).unwrap();
    let count = |is: &dyn Fn(&Event) -> bool| history.entries.iter().filter(|entry| is(&entry.event)).count();
    assert_eq!(count(&|event| matches!(event, Event::RunStarted { .. })), 1);
    assert_eq!(count(&|event| matches!(event, Event::RunResumed { .. })), 3);
    assert_eq!(count(&|event| matches!(event, Event::RunFinished { .. })), 1);

    // Another seed is another search: said, not mixed in.
    let mut other = words(&line.replace("--seed 3", "--seed 4"), &[&model, &out]);
    other.push("--resume".into());
    let refused = run(&other).expect(2);
    assert!(refused.stderr.contains("its seed is 3, this run's is 4"), "{}", refused.stderr);
    assert!(refused.stderr.contains(" help: "), "{}", refused.stderr);
    assert_eq!(judged(&out), after);
}
