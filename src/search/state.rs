//! What the events of a run add up to: the tables of the report, and what a resumed search need not do again.

use std::collections::{BTreeMap, BTreeSet};

use forge_kernels::verdict::Verdict;
use indexmap::IndexMap;

use super::event::{Config, Event, Stop, Winner};
use super::lab::Refusal;

/// A run's identity.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    pub tool: String,
    pub model: String,
    pub config: Config,
    pub seed: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct RegionState {
    pub hash: String,
    pub title: String,
    pub ops: usize,
    pub occurrences: usize,
    pub share: f64,
    pub baseline_ns: Option<f64>,
    pub headroom: Option<f64>,
    pub offers: Vec<String>,
    pub refusals: Vec<Refusal>,
    /// Candidates judged.
    pub tried: u64,
    pub accepted: u64,
    /// The accepted candidate of the greatest ratio; the first of equals.
    pub best: Option<Winner>,
    /// Reason -> judged candidates.
    pub rejected: BTreeMap<String, u64>,
    /// Candidates that were the same as an earlier one.
    pub repeats: u64,
    /// Reason -> asks that no candidate came of.
    pub refused: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct CandidateState {
    pub region: String,
    pub hash: String,
    pub title: String,
    pub strategy: String,
    pub parameters: BTreeMap<String, String>,
    pub parent: Option<u64>,
    pub repeats: Option<u64>,
    pub verdict: Option<Verdict>,
    /// Time that judging took.
    pub seconds: f64,
    /// Why it was left out of the plan although it won its region.
    pub dropped: Option<String>,
}

/// What one ask is known by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AskKey {
    pub region: String,
    pub strategy: String,
    pub parameters: BTreeMap<String, String>,
    pub parent: Option<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct WholeGraph {
    pub kernels: Vec<u64>,
    pub verdict: Verdict,
}

/// A fold over events.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct State {
    pub run: Option<Run>,
    /// Ops before and after passes.
    pub ops: Option<(usize, usize)>,
    /// By hash, in the order found.
    pub regions: IndexMap<String, RegionState>,
    pub candidates: BTreeMap<u64, CandidateState>,
    /// The last measurement of the whole graph.
    pub whole_graph: Option<WholeGraph>,
    pub finished: Option<Stop>,
    /// Candidates judged, over all regions.
    pub trials: u64,
    pub accepted: u64,
    /// (region hash, candidate hash) -> the first candidate of that content.
    first: BTreeMap<(String, String), u64>,
    asked: BTreeMap<AskKey, Vec<u64>>,
    refused: BTreeSet<AskKey>,
}

/// An event that cannot follow those before it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    #[error("the run has not started")]
    NotStarted,
    #[error("the run starts twice")]
    StartedTwice,
    #[error("region {0} is found twice")]
    RegionTwice(String),
    #[error("region {0} was never found")]
    NoRegion(String),
    #[error("candidate {0} is proposed twice")]
    ProposedTwice(u64),
    #[error("candidate {0} was never proposed")]
    NoCandidate(u64),
    #[error("candidate {0} is judged twice")]
    JudgedTwice(u64),
}

impl State {
    /// The state after these events.
    ///
    /// # Errors
    /// At the first event that cannot follow those before it.
    pub fn fold<'a>(events: impl IntoIterator<Item = &'a Event>) -> Result<State, StateError> {
        let mut state = State::default();
        for event in events {
            state.apply(event)?;
        }
        Ok(state)
    }

    /// The state after one more event.
    ///
    /// # Errors
    /// If the event cannot follow those before it; the state is unchanged then.
    pub fn apply(&mut self, event: &Event) -> Result<(), StateError> {
        if self.run.is_none() && !matches!(event, Event::RunStarted { .. }) {
            return Err(StateError::NotStarted);
        }
        match event {
            Event::RunStarted { tool, model, config, seed } => {
                if self.run.is_some() {
                    return Err(StateError::StartedTwice);
                }
                let (tool, model) = (tool.clone(), model.clone());
                self.run = Some(Run { tool, model, config: config.clone(), seed: *seed });
            }
            Event::RunResumed { budget } => {
                self.finished = None;
                if let Some(run) = &mut self.run {
                    run.config.budget = *budget;
                }
            }
            Event::GraphReady { ops_before, ops_after } => self.ops = Some((*ops_before, *ops_after)),
            Event::RegionFound { hash, title, ops, occurrences, share, baseline_ns, headroom, offers, refusals } => {
                if self.regions.contains_key(hash) {
                    return Err(StateError::RegionTwice(hash.clone()));
                }
                let region = RegionState {
                    hash: hash.clone(),
                    title: title.clone(),
                    ops: *ops,
                    occurrences: *occurrences,
                    share: *share,
                    baseline_ns: *baseline_ns,
                    headroom: *headroom,
                    offers: offers.clone(),
                    refusals: refusals.clone(),
                    tried: 0,
                    accepted: 0,
                    best: None,
                    rejected: BTreeMap::new(),
                    repeats: 0,
                    refused: BTreeMap::new(),
                };
                self.regions.insert(hash.clone(), region);
            }
            Event::CandidateProposed { id, parent, region, hash, title, strategy, parameters, repeats } => {
                if self.candidates.contains_key(id) {
                    return Err(StateError::ProposedTwice(*id));
                }
                for earlier in parent.iter().chain(repeats) {
                    self.candidate(*earlier)?;
                }
                let place = self.region_mut(region)?;
                place.repeats += u64::from(repeats.is_some());
                self.first.entry((region.clone(), hash.clone())).or_insert(*id);
                let key = AskKey {
                    region: region.clone(),
                    strategy: strategy.clone(),
                    parameters: parameters.clone(),
                    parent: *parent,
                };
                self.asked.entry(key).or_default().push(*id);
                let candidate = CandidateState {
                    region: region.clone(),
                    hash: hash.clone(),
                    title: title.clone(),
                    strategy: strategy.clone(),
                    parameters: parameters.clone(),
                    parent: *parent,
                    repeats: *repeats,
                    verdict: None,
                    seconds: 0.0,
                    dropped: None,
                };
                self.candidates.insert(*id, candidate);
            }
            Event::ProposalRefused { parent, region, strategy, parameters, reason } => {
                *self.region_mut(region)?.refused.entry(reason.clone()).or_default() += 1;
                let (region, strategy, parameters) = (region.clone(), strategy.clone(), parameters.clone());
                self.refused.insert(AskKey { region, strategy, parameters, parent: *parent });
            }
            Event::CandidateJudged { id, verdict, seconds } => self.judged(*id, verdict, *seconds)?,
            Event::WholeGraphMeasured { kernels, verdict } => {
                for kernel in kernels {
                    self.candidate(*kernel)?;
                }
                self.whole_graph = Some(WholeGraph { kernels: kernels.clone(), verdict: verdict.clone() });
            }
            Event::KernelDropped { id, why } => {
                self.candidates.get_mut(id).ok_or(StateError::NoCandidate(*id))?.dropped = Some(why.clone());
            }
            Event::RunFinished { stop, .. } => self.finished = Some(*stop),
        }
        Ok(())
    }

    fn judged(&mut self, id: u64, verdict: &Verdict, seconds: f64) -> Result<(), StateError> {
        let candidate = self.candidates.get_mut(&id).ok_or(StateError::NoCandidate(id))?;
        if candidate.verdict.is_some() {
            return Err(StateError::JudgedTwice(id));
        }
        candidate.verdict = Some(verdict.clone());
        candidate.seconds = seconds;
        let hash = candidate.region.clone();
        self.trials += 1;
        self.accepted += u64::from(matches!(verdict, Verdict::Accepted { .. }));
        let region = self.region_mut(&hash)?;
        region.tried += 1;
        match verdict {
            Verdict::Accepted { timing, .. } => {
                region.accepted += 1;
                if region.best.as_ref().is_none_or(|best| timing.ratio > best.ratio) {
                    region.best = Some(Winner { region: hash, candidate: id, ratio: timing.ratio });
                }
            }
            Verdict::Rejected { reason, .. } => *region.rejected.entry(reason.to_string()).or_default() += 1,
        }
        Ok(())
    }

    /// The first candidate of a region with this content.
    #[must_use]
    pub fn first_of(&self, region: &str, candidate: &str) -> Option<u64> {
        self.first.get(&(region.to_owned(), candidate.to_owned())).copied()
    }

    /// The verdict on a candidate, or on the one that it repeats.
    #[must_use]
    pub fn verdict(&self, id: u64) -> Option<&Verdict> {
        let candidate = self.candidates.get(&id)?;
        match candidate.repeats {
            Some(first) => self.candidates.get(&first)?.verdict.as_ref(),
            None => candidate.verdict.as_ref(),
        }
    }

    /// The candidate of this content that came of an ask.
    #[must_use]
    pub fn proposed(&self, ask: &AskKey, candidate: &str) -> Option<u64> {
        let ids = self.asked.get(ask)?;
        ids.iter().copied().find(|id| self.candidates.get(id).is_some_and(|found| found.hash == candidate))
    }

    /// Whether an ask was answered: refused, or with candidates that all have a verdict.
    #[must_use]
    pub fn is_settled(&self, ask: &AskKey) -> bool {
        let ids = self.asked.get(ask).map_or(&[][..], Vec::as_slice);
        self.refused.contains(ask) || (!ids.is_empty() && ids.iter().all(|id| self.verdict(*id).is_some()))
    }

    /// Whether an ask was refused.
    #[must_use]
    pub fn is_refused(&self, ask: &AskKey) -> bool {
        self.refused.contains(ask)
    }

    /// One more than the greatest id.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.candidates.last_key_value().map_or(0, |(id, _)| id + 1)
    }

    /// The best kernel of each region that has one, in the order of the regions.
    #[must_use]
    pub fn winners(&self) -> Vec<Winner> {
        self.regions.values().filter_map(|region| region.best.clone()).collect()
    }

    fn candidate(&self, id: u64) -> Result<&CandidateState, StateError> {
        self.candidates.get(&id).ok_or(StateError::NoCandidate(id))
    }

    fn region_mut(&mut self, hash: &str) -> Result<&mut RegionState, StateError> {
        self.regions.get_mut(hash).ok_or_else(|| StateError::NoRegion(hash.to_owned()))
    }
}
