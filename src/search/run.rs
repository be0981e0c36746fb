//! The loop: select, propose, judge, record, journal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use forge_kernels::candidate::Candidate;
use forge_kernels::templates::Parameters;
use forge_kernels::verdict::{Evidence, Reason, Stage, Verdict};

use super::budget::{Budget, OptLevel, Spent};
use super::event::{Event, Stop};
use super::lab::{Ask, Lab, RegionTask, Survey, outcome};
use super::policy::Policy;
use super::session::{Session, SessionError};
use super::state::{AskKey, State};
use super::tree::{Choice, Offer, Outcome, Space, Tree};

/// How to search.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Options {
    pub level: OptLevel,
    pub budget: Budget,
    pub seed: u64,
    pub policy: Policy,
}

/// What a search ends with.
#[derive(Clone, Debug)]
pub struct Found {
    /// The fastest accepted kernel of each region that has one, by region hash.
    pub winners: BTreeMap<String, (Candidate, Verdict)>,
    pub stop: Stop,
}

/// For a progress bar.
pub struct Progress<'a> {
    /// Counts, and the best kernel of each region.
    pub state: &'a State,
    pub spent: Spent,
    pub budget: Budget,
    /// What is about to be judged.
    pub region: &'a RegionTask,
    pub candidate: &'a str,
}

/// Searches kernels for these regions until the budget ends, nothing is left to try, or `interrupt` is set; none of them ends an
/// evaluation that is running. With a resumed session, makes the choices of the run so far again without judging them again.
///
/// # Errors
/// If the journal cannot be written or read.
pub fn search(
    session: &mut Session<'_>,
    lab: &mut dyn Lab,
    regions: &[RegionTask],
    options: &Options,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Found, SessionError> {
    let mut spaces = Vec::new();
    for region in regions {
        let survey = if options.level.searches() { lab.survey(region) } else { Survey::default() };
        announce(session, region, &survey)?;
        // Shares may have been measured: a resumed search goes by what the journal says, or it would choose otherwise.
        let (share, headroom) = match session.state().regions.get(&region.hash) {
            Some(known) => (known.share, known.headroom),
            None => (region.estimated_share, region.headroom),
        };
        spaces.push(Space {
            share,
            headroom,
            offers: survey.offers.into_iter().map(|offer| restrict(offer, options.level)).collect(),
        });
    }
    let mut tree = Tree::new(spaces.clone(), options.policy, options.seed);
    let stop = loop {
        if interrupt.load(Ordering::Relaxed) {
            break Stop::Interrupted;
        }
        let Some(choice) = tree.select() else { break Stop::Exhausted };
        let (Some(region), Some(offer)) =
            (regions.get(choice.region), spaces.get(choice.region).and_then(|space| space.offers.get(choice.offer)))
        else {
            break Stop::Exhausted;
        };
        let mut trial = Trial { session, lab, region, options, progress };
        match trial.carry_out(&choice, offer)? {
            Some(outcome) => tree.record(choice, outcome),
            None => break Stop::Budget,
        }
    };
    Ok(Found { winners: winners(session)?, stop })
}

/// Keeps the region's body and journals it, once a run.
fn announce(session: &mut Session<'_>, region: &RegionTask, survey: &Survey) -> Result<(), SessionError> {
    if session.state().regions.contains_key(&region.hash) {
        return Ok(());
    }
    session.journal().store_region(&region.hash, &region.body)?;
    session.emit(&Event::RegionFound {
        hash: region.hash.clone(),
        title: region.title(),
        ops: region.body.op_count(),
        occurrences: region.occurrences,
        // JSON has no NaN and no infinity.
        share: if region.estimated_share.is_finite() { region.estimated_share } else { 0.0 },
        baseline_ns: region.baseline_ns.filter(|time| time.is_finite()),
        headroom: region.headroom.filter(|factor| factor.is_finite()),
        offers: survey.offers.iter().map(|offer| offer.strategy.clone()).collect(),
        refusals: survey.refusals.clone(),
    })
}

/// What of an offer is searched at a level.
fn restrict(mut offer: Offer, level: OptLevel) -> Offer {
    if !level.explores() {
        for axis in &mut offer.axes {
            axis.values.truncate(1);
        }
    }
    offer
}

/// One choice of the tree, carried out.
struct Trial<'t, 's> {
    session: &'t mut Session<'s>,
    lab: &'t mut dyn Lab,
    region: &'t RegionTask,
    options: &'t Options,
    progress: &'t mut dyn FnMut(&Progress<'_>),
}

impl Trial<'_, '_> {
    /// The best outcome of the candidates that the choice stands for; `None` if the budget does not admit a new one.
    fn carry_out(&mut self, choice: &Choice, offer: &Offer) -> Result<Option<Outcome>, SessionError> {
        let parameters: Parameters = offer
            .axes
            .iter()
            .zip(&choice.point)
            .filter_map(|(axis, index)| Some((axis.name.to_owned(), axis.values.get(*index)?.clone())))
            .collect();
        let key = AskKey {
            region: self.region.hash.clone(),
            strategy: offer.strategy.clone(),
            parameters: parameters.clone(),
            parent: choice.parent.as_ref().and_then(|hash| self.session.state().first_of(&self.region.hash, hash)),
        };
        if !self.session.state().is_settled(&key) && self.budget_is_spent() {
            return Ok(None);
        }
        let ask = Ask { region: self.region, strategy: &offer.strategy, parameters, parent: choice.parent.clone() };
        let candidates = match self.lab.propose(&ask) {
            Ok(candidates) => candidates,
            Err(refused) => {
                let reason = refused.to_string();
                self.refuse(&key, &reason)?;
                return Ok(Some(Outcome::Failed { reason }));
            }
        };
        let mut best: Option<Outcome> = None;
        for candidate in candidates {
            let Some(next) = self.evaluate(&key, candidate)? else { return Ok(best) };
            best = Some(match best {
                Some(known) => better(known, next),
                None => next,
            });
        }
        if best.is_none() {
            let reason = "no candidate was proposed";
            self.refuse(&key, reason)?;
            return Ok(Some(Outcome::Failed { reason: reason.to_owned() }));
        }
        Ok(best)
    }

    fn budget_is_spent(&self) -> bool {
        self.options.budget.is_spent(self.session.spent())
    }

    fn refuse(&mut self, key: &AskKey, reason: &str) -> Result<(), SessionError> {
        if self.session.state().is_refused(key) {
            return Ok(());
        }
        self.session.emit(&Event::ProposalRefused {
            parent: key.parent,
            region: key.region.clone(),
            strategy: key.strategy.clone(),
            parameters: key.parameters.clone(),
            reason: reason.to_owned(),
        })
    }

    /// Journals a candidate and judges it, unless the journal has its verdict; `None` if the budget does not admit it.
    fn evaluate(&mut self, key: &AskKey, mut candidate: Candidate) -> Result<Option<Outcome>, SessionError> {
        let hash = candidate.hash();
        candidate.origin.parent =
            key.parent.and_then(|id| self.session.state().candidates.get(&id)).map(|parent| parent.hash.clone());
        let first = self.session.state().first_of(&key.region, &hash);
        if first.is_none() && self.budget_is_spent() {
            return Ok(None);
        }
        if self.session.state().proposed(key, &hash).is_none() {
            if first.is_none() {
                self.session.journal().store_candidate(&candidate)?;
            }
            let id = self.session.state().next_id();
            self.session.emit(&Event::CandidateProposed {
                id,
                parent: key.parent,
                region: key.region.clone(),
                hash: hash.clone(),
                title: candidate.title(),
                strategy: key.strategy.clone(),
                parameters: key.parameters.clone(),
                repeats: first,
            })?;
        }
        let Some(id) = self.session.state().first_of(&key.region, &hash) else { return Ok(None) };
        if let Some(verdict) = self.session.state().verdict(id) {
            return Ok(Some(outcome(&hash, verdict)));
        }
        if self.budget_is_spent() {
            return Ok(None);
        }
        let title = candidate.title();
        let start = self.session.time();
        (self.progress)(&Progress {
            state: self.session.state(),
            spent: self.session.spent(),
            budget: self.options.budget,
            region: self.region,
            candidate: &title,
        });
        let verdict = finite(self.lab.judge(self.region, &candidate));
        let seconds = self.session.time().saturating_sub(start).as_secs_f64();
        let outcome = outcome(&hash, &verdict);
        self.session.emit(&Event::CandidateJudged { id, verdict, seconds })?;
        Ok(Some(outcome))
    }
}

/// The outcome that a node with both stands for.
fn better(a: Outcome, b: Outcome) -> Outcome {
    let rank = |outcome: &Outcome| match outcome {
        Outcome::Measured { ratio, accepted, .. } => (1 + u8::from(*accepted), *ratio),
        Outcome::Failed { .. } => (0, 0.0),
    };
    let ((kind_a, ratio_a), (kind_b, ratio_b)) = (rank(&a), rank(&b));
    if kind_b > kind_a || (kind_b == kind_a && ratio_b > ratio_a) { b } else { a }
}

/// JSON has no NaN and no infinity: a verdict with one could not be read back from the journal. Rejections keep their reason and
/// lose the figures; an acceptance that rests on such a figure is none.
pub(super) fn finite(verdict: Verdict) -> Verdict {
    let read = serde_json::to_vec(&verdict).ok().and_then(|text| serde_json::from_slice::<Verdict>(&text).ok());
    match (read, verdict) {
        (Some(read), _) => read,
        (None, Verdict::Rejected { stage, reason, evidence }) => {
            Verdict::Rejected { stage, reason, evidence: Evidence { errors: None, timing: None, ..evidence } }
        }
        (None, Verdict::Accepted { .. }) => Verdict::rejected(
            Stage::Measure,
            Reason::WorkerFailed,
            "the figures of the acceptance are not all finite numbers",
        ),
    }
}

fn winners(session: &Session<'_>) -> Result<BTreeMap<String, (Candidate, Verdict)>, SessionError> {
    let state = session.state();
    let mut winners = BTreeMap::new();
    for winner in state.winners() {
        let found = state.candidates.get(&winner.candidate).and_then(|c| Some((c, state.verdict(winner.candidate)?)));
        if let Some((candidate, verdict)) = found {
            let kept = session.journal().load_candidate(&candidate.hash)?;
            winners.insert(winner.region, (kept, verdict.clone()));
        }
    }
    Ok(winners)
}
