//! The append-only journal: `events.jsonl`, one [`Entry`] a line, and content-addressed `blobs/`.
//!
//! A line is written with one call and its newline last, so that a kill leaves at most one cut line, at the end; whatever else
//! does not read is an error with its line. Blobs are complete before a line names them. Verdicts are synced to the disk, other
//! lines are handed to the system at once.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forge_ir::Graph;
use forge_kernels::candidate::Candidate;

use super::event::{Entry, Event, VERSION};
use super::state::{State, StateError};

const EVENTS: &str = "events.jsonl";
const BLOBS: &str = "blobs";

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is in use by another run", .0.display())]
    InUse(PathBuf),
    #[error("line {line} of the journal is not an event: {why}")]
    Line { line: usize, why: String },
    #[error("line {line} of the journal has version {found}; this program reads version {VERSION}")]
    Version { line: usize, found: u64 },
    #[error("line {line} of the journal is numbered {found}: lines are missing or were edited")]
    Sequence { line: usize, found: u64 },
    #[error("line {line} of the journal does not follow: {source}")]
    Order { line: usize, source: StateError },
    #[error("blob {} is damaged: {why}", path.display())]
    Blob { path: PathBuf, why: String },
}

/// The writing end of a run's journal. One process at a time, held by a lock on the file.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
    next: u64,
}

/// A journal's lines and what they add up to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct History {
    pub entries: Vec<Entry>,
    pub state: State,
}

impl History {
    /// Run time of the last line.
    #[must_use]
    pub fn time(&self) -> Duration {
        let seconds = self.entries.last().map_or(0.0, |entry| entry.at);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// Reads a journal that may be in use: the lines so far.
///
/// # Errors
/// If it cannot be read, or if a line other than a cut last one is not what it should be.
pub fn read(folder: &Path) -> Result<History, JournalError> {
    let path = folder.join(EVENTS);
    let bytes = fs::read(&path).map_err(io_error("cannot read", &path))?;
    Ok(parse(&bytes)?.0)
}

/// The lines of a journal, and the bytes that they take up. A last line without its newline counts if it is whole.
///
/// # Errors
/// At the first line that is not what it should be; a cut last line is left out.
pub fn parse(bytes: &[u8]) -> Result<(History, usize), JournalError> {
    let mut history = History::default();
    let mut at = 0;
    for (index, raw) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        let line = index + 1;
        let (text, ended) = match raw.strip_suffix(b"\n") {
            Some(text) => (text, true),
            None => (raw, false),
        };
        let entry = match entry(text, line) {
            Ok(entry) => entry,
            // Cut while it was being written. Its beginning says nothing that could be held against it.
            Err(JournalError::Line { .. }) if !ended => break,
            Err(error) => return Err(error),
        };
        if entry.n != index as u64 {
            return Err(JournalError::Sequence { line, found: entry.n });
        }
        history.state.apply(&entry.event).map_err(|source| JournalError::Order { line, source })?;
        history.entries.push(entry);
        at += raw.len();
    }
    Ok((history, at))
}

fn entry(text: &[u8], line: usize) -> Result<Entry, JournalError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        v: u64,
    }
    // The parser sees one line: only its column means anything.
    let fault =
        |e: serde_json::Error| JournalError::Line { line, why: e.to_string().replace(" line 1 column ", " column ") };
    let Versioned { v } = serde_json::from_slice(text).map_err(fault)?;
    if v != u64::from(VERSION) {
        return Err(JournalError::Version { line, found: v });
    }
    serde_json::from_slice(text).map_err(fault)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { action, path, source }
}

impl Journal {
    /// Opens the journal of a folder, which is made if there is none, and gives what it holds.
    ///
    /// With `resume` the journal is gone on with; a cut last line is cut off. Without, an existing one is kept under another
    /// name (`events.1.jsonl`, ...) and a new one begun; blobs are shared.
    ///
    /// # Errors
    /// If another run holds it, if a line other than a cut last one does not read, or on I/O.
    pub fn open(folder: &Path, resume: bool) -> Result<(Journal, History), JournalError> {
        let blobs = folder.join(BLOBS);
        fs::create_dir_all(&blobs).map_err(io_error("cannot create", &blobs))?;
        let path = folder.join(EVENTS);
        let mut file = open_locked(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error("cannot read", &path))?;
        if !resume && !bytes.is_empty() {
            rotate(folder)?;
            file = open_locked(&path)?;
            bytes.clear();
        }
        let (history, whole) = parse(&bytes)?;
        file.set_len(whole as u64).map_err(io_error("cannot cut", &path))?;
        let next = history.entries.len() as u64;
        let mut journal = Journal { folder: folder.to_owned(), file, length: whole as u64, next };
        if whole > 0 && bytes.get(whole - 1) != Some(&b'\n') {
            journal.write(b"\n")?;
        }
        Ok((journal, history))
    }

    /// Appends an event that happened at this run time. A verdict is on the disk when this returns.
    ///
    /// # Errors
    /// On I/O; the journal is as before then.
    pub fn append(&mut self, at: Duration, event: &Event) -> Result<(), JournalError> {
        // Microseconds are more than any event's time means.
        let at = at.as_micros() as f64 / 1e6;
        let entry = Entry { v: VERSION, n: self.next, at, event: event.clone() };
        let mut line = serde_json::to_vec(&entry)
            .map_err(|e| JournalError::Line { line: self.next as usize + 1, why: e.to_string() })?;
        line.push(b'\n');
        self.write(&line)?;
        if matches!(event, Event::CandidateJudged { .. } | Event::WholeGraphMeasured { .. } | Event::RunFinished { .. })
        {
            let path = self.folder.join(EVENTS);
            self.file.sync_data().map_err(io_error("cannot sync", &path))?;
        }
        self.next += 1;
        Ok(())
    }

    /// All of the bytes or none.
    fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        let path = self.folder.join(EVENTS);
        let written = self
            .file
            .seek(SeekFrom::Start(self.length))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(io_error("cannot write to", &path));
        if written.is_err() {
            // A full disk must not leave half a line with more to follow; if this fails too, the reader cuts the line.
            let _ = self.file.set_len(self.length);
        } else {
            self.length += bytes.len() as u64;
        }
        written
    }

    /// Keeps a candidate: its source as `<hash>.cpp`, the rest as `<hash>.json`. Equal candidates are kept once.
    ///
    /// # Errors
    /// On I/O.
    pub fn store_candidate(&self, candidate: &Candidate) -> Result<(), JournalError> {
        let hash = candidate.hash();
        let plan = Candidate { source: String::new(), ..candidate.clone() };
        let path = self.blob(&format!("{hash}.json"));
        let mut text = serde_json::to_vec_pretty(&plan)
            .map_err(|e| JournalError::Blob { path: path.clone(), why: e.to_string() })?;
        text.push(b'\n');
        store(&self.blob(&format!("{hash}.cpp")), candidate.source.as_bytes())?;
        store(&path, &text)
    }

    /// A candidate that was kept.
    ///
    /// # Errors
    /// On I/O, or if the blobs are not what was kept under this hash.
    pub fn load_candidate(&self, hash: &str) -> Result<Candidate, JournalError> {
        load_candidate(&self.folder, hash)
    }

    /// Keeps a region's body as `<hash>.forge`.
    ///
    /// # Errors
    /// On I/O.
    pub fn store_region(&self, hash: &str, body: &Graph) -> Result<(), JournalError> {
        store(&self.blob(&format!("{hash}.forge")), format!("{body}\n").as_bytes())
    }

    fn blob(&self, name: &str) -> PathBuf {
        self.folder.join(BLOBS).join(name)
    }
}

/// A candidate that was kept in the journal of a folder.
///
/// # Errors
/// On I/O, or if the blobs are not what was kept under this hash.
pub fn load_candidate(folder: &Path, hash: &str) -> Result<Candidate, JournalError> {
    let read = |extension: &str| {
        let path = folder.join(BLOBS).join(format!("{hash}.{extension}"));
        let text = fs::read_to_string(&path).map_err(io_error("cannot read", &path))?;
        Ok((path, text))
    };
    let (path, plan) = read("json")?;
    let mut candidate: Candidate =
        serde_json::from_str(&plan).map_err(|e| JournalError::Blob { path: path.clone(), why: e.to_string() })?;
    candidate.source = read("cpp")?.1;
    let found = candidate.hash();
    if found != hash {
        return Err(JournalError::Blob { path, why: format!("its content has the hash {found}") });
    }
    Ok(candidate)
}

fn open_locked(path: &Path) -> Result<File, JournalError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io_error("cannot open", path))?;
    // The system lets go of the lock when the process ends, however it ends.
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(io_error("cannot lock", path)(source)),
    }
}

/// Renames the journal to the first free `events.N.jsonl`.
fn rotate(folder: &Path) -> Result<(), JournalError> {
    let path = folder.join(EVENTS);
    let mut number = 1_u64;
    let kept = loop {
        let kept = folder.join(format!("events.{number}.jsonl"));
        if !kept.exists() {
            break kept;
        }
        number += 1;
    };
    fs::rename(&path, &kept).map_err(io_error("cannot rename", &path))
}

/// Writes a blob whole or not at all; one that is there is left.
fn store(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    if path.exists() {
        return Ok(());
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut file = File::create(&partial).map_err(io_error("cannot create", &partial))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("cannot write", &partial))?;
    fs::rename(&partial, path).map_err(io_error("cannot rename", &partial))
}
