//! The parent's side of a worker.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Evaluation, Request, RequestKind, Response, ResponseKind};
use crate::process::{Death, kill_group};
use crate::verdict::{Evidence, Reason, Stage, Verdict};

/// What the worker's environment keeps of ours; keys and tokens are not among it.
const KEPT_VARIABLES: &[&str] =
    &["PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "CXX", "FORGE_CACHE", "XDG_CACHE_HOME", "RUST_BACKTRACE"];

/// Bytes of the worker's stderr that a verdict may quote.
const KEPT_STDERR: usize = 4096;
/// For a process to end by itself once its input has ended.
const GRACE: Duration = Duration::from_millis(500);

/// How to start a worker: `program arguments..`, speaking [`super::worker_main`]'s language.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Added to what the environment keeps.
    pub environment: Vec<(OsString, OsString)>,
}

/// A worker that is started when needed, and again after it died.
#[derive(Debug)]
pub struct WorkerClient {
    command: WorkerCommand,
    running: Option<Running>,
    next_id: u64,
    starts: usize,
}

#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<io::Result<String>>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

/// What a wait for an answer ended in.
enum Answer {
    Done(ResponseKind),
    Died,
    TimedOut,
}

impl WorkerClient {
    #[must_use]
    pub fn new(command: WorkerCommand) -> WorkerClient {
        WorkerClient { command, running: None, next_id: 1, starts: 0 }
    }

    /// Processes started so far.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.starts
    }

    /// Whether a worker answers within the deadline.
    pub fn ping(&mut self, timeout: Duration) -> bool {
        let mut stage = Stage::Inspect;
        let answer = self.ask(RequestKind::Ping, timeout, &mut |s| stage = s);
        let fine = matches!(answer, Ok(Answer::Done(ResponseKind::Pong)));
        if !fine {
            self.stop();
        }
        fine
    }

    /// Has a candidate judged. Always ends, at the latest soon after the deadline; a death or a timeout is a verdict too.
    pub fn evaluate(&mut self, evaluation: Evaluation, timeout: Duration) -> Verdict {
        let mut stage = Stage::Inspect;
        let answer = self.ask(RequestKind::Evaluate(Box::new(evaluation)), timeout, &mut |s| stage = s);
        match answer {
            Ok(Answer::Done(ResponseKind::Verdict { verdict })) => *verdict,
            Ok(Answer::Done(ResponseKind::Error { message })) => {
                Verdict::rejected(stage, Reason::WorkerFailed, format!("the worker refuses the request: {message}"))
            }
            Ok(Answer::Done(other)) => {
                self.stop();
                Verdict::rejected(stage, Reason::WorkerFailed, format!("an answer of another kind: {other:?}"))
            }
            Ok(Answer::Died) => self.died(stage),
            Ok(Answer::TimedOut) => {
                self.stop();
                Verdict::rejected(stage, Reason::Timeout, format!("no verdict after {:.1} s", timeout.as_secs_f64()))
            }
            Err(error) => {
                self.stop();
                let program = self.command.program.display();
                Verdict::rejected(stage, Reason::WorkerFailed, format!("{program}: {error}"))
            }
        }
    }

    fn ask(&mut self, kind: RequestKind, timeout: Duration, progress: &mut dyn FnMut(Stage)) -> io::Result<Answer> {
        let deadline = Instant::now() + timeout;
        let id = self.next_id;
        self.next_id += 1;
        let mut line = serde_json::to_vec(&Request { id, kind })?;
        line.push(b'\n');
        let running = self.start()?;
        if running.input.write_all(&line).and_then(|()| running.input.flush()).is_err() {
            return Ok(Answer::Died);
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match running.lines.recv_timeout(left) {
                Ok(line) => line?,
                Err(RecvTimeoutError::Timeout) => return Ok(Answer::TimedOut),
                Err(RecvTimeoutError::Disconnected) => return Ok(Answer::Died),
            };
            let response: Response = serde_json::from_str(&line)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{e} in {line:?}")))?;
            match response.kind {
                // An answer to a request given up earlier can't come: its process was killed.
                _ if response.id != id => {}
                ResponseKind::Stage { stage } => progress(stage),
                kind => return Ok(Answer::Done(kind)),
            }
        }
    }

    fn start(&mut self) -> io::Result<&mut Running> {
        if self.running.as_mut().is_some_and(|r| !matches!(r.child.try_wait(), Ok(None))) {
            // It died while idle.
            self.running = None;
        }
        let running = match self.running.take() {
            Some(running) => running,
            None => {
                self.starts += 1;
                spawn(&self.command)?
            }
        };
        Ok(self.running.insert(running))
    }

    /// The verdict on a worker that closed its output.
    fn died(&mut self, stage: Stage) -> Verdict {
        let Some(mut running) = self.running.take() else {
            return Verdict::rejected(stage, Reason::WorkerFailed, "no worker");
        };
        // The pipe closes a moment before the process is reaped.
        let death = match crate::process::wait(&mut running.child, GRACE) {
            Ok((status, false)) => Death::of(status),
            _ => None,
        };
        let detail = {
            let stderr = running.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&stderr).into_owned()
        };
        let (reason, summary) = match death {
            // What a shell says of a program that it can't start.
            Some(Death::Exit(126 | 127)) => (Reason::WorkerFailed, "the worker can't be started".to_owned()),
            Some(death) => (Reason::Crash(death), death.name()),
            None => (Reason::WorkerFailed, "the worker closed its output".to_owned()),
        };
        Verdict::Rejected { stage, reason, evidence: Evidence { summary, detail, ..Evidence::default() } }
    }

    /// Kills the worker, if one runs.
    pub fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            // There is nobody to tell if it can't be killed.
            let _ = kill_group(&mut running.child);
        }
    }
}

impl Drop for WorkerClient {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let Running { mut child, input, .. } = running;
            drop(input);
            // Kills it after the grace period.
            let _ = crate::process::wait(&mut child, GRACE);
        }
    }
}

fn spawn(worker: &WorkerCommand) -> io::Result<Running> {
    // No core dumps: a crash of a candidate is expected, its memory image is not wanted.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c 0; exec \"$0\" \"$@\""]).arg(&worker.program).args(&worker.arguments);
    command.env_clear();
    command.envs(KEPT_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    command.envs(worker.environment.iter().map(|(name, value)| (name, value)));
    let mut child =
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        kill_group(&mut child)?;
        return Err(io::Error::other("the worker has no pipes"));
    };
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let stderr = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&stderr);
    thread::spawn(move || keep_tail(errors, &kept));
    Ok(Running { child, input, lines, stderr })
}

fn keep_tail(mut stream: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&chunk[..count]);
        let excess = kept.len().saturating_sub(KEPT_STDERR);
        kept.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> WorkerClient {
        WorkerClient::new(WorkerCommand {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("FORGE_TEST".into(), "1".into())],
        })
    }

    fn evaluation() -> Evaluation {
        serde_json::from_str(
            r#"{"region": "", "weight_inputs": [], "candidate": {"dialect": "cpp", "source": "",
                "launch": {"temporaries": [], "packed": [], "prepare": [], "launches": []},
                "origin": {"proposer": "user", "strategy": "", "parameters": {}, "parent": null}}}"#,
        )
        .unwrap()
    }

    #[test]
    fn deaths_and_deadlines_are_verdicts() {
        let mut client = shell("read line; echo '{\"id\":1,\"kind\":\"stage\",\"stage\":\"validate\"}'; kill -SEGV $$");
        let verdict = client.evaluate(evaluation(), Duration::from_secs(30));
        let Verdict::Rejected { stage, reason, .. } = &verdict else { panic!("{verdict}") };
        assert_eq!((*stage, *reason), (Stage::Validate, Reason::Crash(Death::Signal(11))));
        assert_eq!(reason.code(), "crash:SIGSEGV");

        let mut client = shell("read line; echo problem >&2; exit 3");
        let verdict = client.evaluate(evaluation(), Duration::from_secs(30));
        assert_eq!(verdict.reason(), Some(Reason::Crash(Death::Exit(3))));

        let mut client = shell("sleep 60 & sleep 60");
        let verdict = client.evaluate(evaluation(), Duration::from_millis(200));
        assert_eq!(verdict.reason(), Some(Reason::Timeout));
        // A new process for the next request.
        assert_eq!(client.evaluate(evaluation(), Duration::from_millis(50)).reason(), Some(Reason::Timeout));
        assert_eq!(client.starts(), 2);
    }

    #[test]
    fn nonsense_is_the_workers_fault() {
        let mut client = shell("read line; echo nonsense; sleep 60");
        assert_eq!(client.evaluate(evaluation(), Duration::from_secs(30)).reason(), Some(Reason::WorkerFailed));
        let mut client = WorkerClient::new(WorkerCommand {
            program: "/nonexistent/worker".into(),
            arguments: vec![],
            environment: vec![],
        });
        assert_eq!(client.evaluate(evaluation(), Duration::from_secs(30)).reason(), Some(Reason::WorkerFailed));
    }

    #[test]
    fn secrets_stay_outside() {
        // CARGO_MANIFEST_DIR stands for any variable of ours that is not on the list: the test runner sets it.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let script = "read line; if [ -z \"$CARGO_MANIFEST_DIR\" ] && [ \"$FORGE_TEST\" = 1 ]; then \
                      echo '{\"id\":1,\"kind\":\"pong\"}'; fi; sleep 60";
        assert!(shell(script).ping(Duration::from_secs(30)));
    }
}
