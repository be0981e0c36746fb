//! A run as it goes: its journal, what the journal adds up to, and its clock.

use std::path::Path;
use std::time::Duration;

use forge_kernels::verdict::Verdict;

use super::budget::Spent;
use super::event::{Event, Stop};
use super::journal::{History, Journal, JournalError};
use super::state::{Run, State, StateError};

/// Time since this process began the run.
pub type Clock<'a> = Box<dyn Fn() -> Duration + 'a>;

/// The one writer of events: what is journalled is also what the state knows.
pub struct Session<'a> {
    journal: Journal,
    state: State,
    clock: Clock<'a>,
    /// Run time before this process.
    before: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("internal: {0}")]
    State(#[from] StateError),
    #[error(
        "the journal is of another run: its {what} is {journal}, this run's is {run}; repeat the command that began it, or leave out \
         --resume"
    )]
    OtherRun { what: &'static str, journal: String, run: String },
}

impl<'a> Session<'a> {
    /// Begins a run in the journal of a folder or, with `resume`, goes on with the one that is there. Resuming where there is
    /// none begins one.
    ///
    /// # Errors
    /// If the journal cannot be opened or read, or is of a run of another tool, model, seed or configuration; the budget may
    /// differ.
    pub fn begin(folder: &Path, resume: bool, run: Run, clock: Clock<'a>) -> Result<Session<'a>, SessionError> {
        let (journal, history) = Journal::open(folder, resume)?;
        let before = history.time();
        let History { state, .. } = history;
        let event = match &state.run {
            Some(begun) => {
                same_run(begun, &run)?;
                Event::RunResumed { budget: run.config.budget }
            }
            None => Event::RunStarted { tool: run.tool, model: run.model, config: run.config, seed: run.seed },
        };
        let mut session = Session { journal, state, clock, before };
        session.emit(&event)?;
        Ok(session)
    }

    /// Journals an event.
    ///
    /// # Errors
    /// On I/O, or if it cannot follow what was journalled.
    pub fn emit(&mut self, event: &Event) -> Result<(), SessionError> {
        // The state first: what it refuses must not get into the journal.
        self.state.apply(event)?;
        self.journal.append(self.time(), event)?;
        Ok(())
    }

    /// Journals the size of the graph, once a run.
    ///
    /// # Errors
    /// On I/O, or if a resumed run's graph was another.
    pub fn graph_ready(&mut self, ops_before: usize, ops_after: usize) -> Result<(), SessionError> {
        match self.state.ops {
            Some(known) if known == (ops_before, ops_after) => Ok(()),
            Some((before, after)) => Err(SessionError::OtherRun {
                what: "op count",
                journal: format!("{before} before passes and {after} after"),
                run: format!("{ops_before} and {ops_after}"),
            }),
            None => self.emit(&Event::GraphReady { ops_before, ops_after }),
        }
    }

    /// Journals the whole graph's measurement.
    ///
    /// # Errors
    /// On I/O.
    pub fn whole_graph_measured(&mut self, kernels: Vec<u64>, verdict: Verdict) -> Result<(), SessionError> {
        self.emit(&Event::WholeGraphMeasured { kernels, verdict: super::run::finite(verdict) })
    }

    /// Journals the end of the run.
    ///
    /// # Errors
    /// On I/O.
    pub fn finish(&mut self, stop: Stop) -> Result<(), SessionError> {
        let (trials, winners) = (self.state.trials, self.state.winners());
        self.emit(&Event::RunFinished { stop, trials, seconds: self.time().as_secs_f64(), winners })
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Run time, that before each resumption included.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.before + (self.clock)()
    }

    #[must_use]
    pub fn spent(&self) -> Spent {
        Spent { time: self.time(), trials: self.state.trials }
    }
}

fn same_run(journal: &Run, run: &Run) -> Result<(), SessionError> {
    let (a, b) = (&journal.config, &run.config);
    let facts = [
        ("tool", journal.tool.clone(), run.tool.clone()),
        ("model", journal.model.clone(), run.model.clone()),
        ("seed", journal.seed.to_string(), run.seed.to_string()),
        ("target", a.target.clone(), b.target.clone()),
        ("level", a.level.to_string(), b.level.to_string()),
        ("shape", format!("{:?}", a.shape), format!("{:?}", b.shape)),
        ("thread count", a.threads.to_string(), b.threads.to_string()),
    ];
    for (what, journal, run) in facts {
        if journal != run {
            return Err(SessionError::OtherRun { what, journal, run });
        }
    }
    Ok(())
}
