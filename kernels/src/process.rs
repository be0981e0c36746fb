//! Child processes under a deadline: the one wrapper that the compiler driver and the worker client use.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a finished child left.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// The deadline passed and the child's group was killed.
    pub timed_out: bool,
}

/// Bytes kept of each stream; the rest is read and dropped.
const KEPT_BYTES: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(4);

/// Runs a command in a process group of its own and waits for it; at the deadline the whole group is killed.
///
/// # Errors
/// If the program can't be started.
pub fn run(command: &mut Command, timeout: Duration) -> io::Result<Finished> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()?;
    let stdout = child.stdout.take().map(|stream| thread::spawn(move || drain(stream)));
    let stderr = child.stderr.take().map(|stream| thread::spawn(move || drain(stream)));
    let (status, timed_out) = wait(&mut child, timeout)?;
    let collect = |reader: Option<thread::JoinHandle<Vec<u8>>>| reader.and_then(|r| r.join().ok()).unwrap_or_default();
    Ok(Finished { status, stdout: collect(stdout), stderr: collect(stderr), timed_out })
}

/// Waits for a child until the deadline, then kills its group.
///
/// # Errors
/// If the child can't be waited for.
pub fn wait(child: &mut Child, timeout: Duration) -> io::Result<(ExitStatus, bool)> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if Instant::now() >= deadline {
            return Ok((kill_group(child)?, true));
        }
        thread::sleep(POLL);
    }
}

/// Kills a child that leads a process group, with everything in the group, and reaps it.
///
/// # Errors
/// If the child can't be waited for.
pub fn kill_group(child: &mut Child) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    // The standard library signals one process only; the shell's built-in reaches the group without unsafe code here.
    let group = Command::new("sh")
        .args(["-c", "kill -s KILL -- \"-$0\"", &child.id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !group.is_ok_and(|s| s.success()) {
        child.kill()?;
    }
    child.wait()
}

/// Everything the stream gives, at most [`KEPT_BYTES`] of it kept.
fn drain(mut stream: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    if stream.by_ref().take(KEPT_BYTES).read_to_end(&mut kept).is_ok() {
        // A full pipe would stall the child.
        let _ = io::copy(&mut stream, &mut io::sink());
    }
    kept
}

/// How a process ended, when not by its own success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Death {
    Signal(i32),
    Exit(i32),
}

impl Death {
    /// `None` for success.
    #[must_use]
    pub fn of(status: ExitStatus) -> Option<Death> {
        match (status.signal(), status.code()) {
            (Some(signal), _) => Some(Death::Signal(signal)),
            (None, Some(0)) => None,
            (None, code) => Some(Death::Exit(code.unwrap_or(-1))),
        }
    }

    /// `SIGSEGV`, `signal 99`, `exit 3`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Death::Signal(number) => match SIGNALS.iter().find(|(n, _)| *n == number) {
                Some((_, name)) => (*name).to_owned(),
                None => format!("signal {number}"),
            },
            Death::Exit(code) => format!("exit {code}"),
        }
    }

    /// The inverse of [`Death::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Death> {
        if let Some((number, _)) = SIGNALS.iter().find(|(_, n)| *n == name) {
            return Some(Death::Signal(*number));
        }
        let (kind, number) = name.split_once(' ')?;
        let number = number.parse().ok()?;
        match kind {
            "signal" => Some(Death::Signal(number)),
            "exit" => Some(Death::Exit(number)),
            _ => None,
        }
    }
}

/// The signals whose numbers are the same on every Linux architecture that we build for.
const SIGNALS: &[(i32, &str)] = &[
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
    (31, "SIGSYS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_are_collected() {
        let finished = run(&mut shell("echo out; echo err >&2; exit 3"), Duration::from_secs(30)).unwrap();
        assert_eq!(finished.stdout, b"out\n");
        assert_eq!(finished.stderr, b"err\n");
        assert_eq!(Death::of(finished.status), Some(Death::Exit(3)));
        assert!(!finished.timed_out);
    }

    #[test]
    fn the_deadline_kills_grandchildren_too() {
        // The reader threads end only when every process that holds the pipe is gone: had the grandchild survived, `run` would
        // last as long as it.
        let start = Instant::now();
        let finished = run(&mut shell("sleep 60 & sleep 60"), Duration::from_millis(100)).unwrap();
        assert!(finished.timed_out);
        assert_eq!(Death::of(finished.status), Some(Death::Signal(9)));
        assert!(start.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn more_output_than_is_kept_does_not_stall_the_child() {
        let finished = run(&mut shell("head -c 3000000 /dev/zero"), Duration::from_secs(60)).unwrap();
        assert_eq!(finished.stdout.len() as u64, KEPT_BYTES);
        assert!(finished.status.success());
    }

    #[test]
    fn deaths_have_names() {
        for death in [Death::Signal(11), Death::Signal(99), Death::Exit(-1)] {
            assert_eq!(Death::from_name(&death.name()), Some(death));
        }
        assert_eq!(Death::from_name("SIGWINCH"), None);
    }
}
