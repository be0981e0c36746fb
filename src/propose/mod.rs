//! Where candidates come from. A proposer says which of its strategies apply to a region, and writes the kernel at a point of one.

pub mod template;
pub mod user;

use forge_kernels::candidate::Candidate;

use crate::search::lab::{Ask, RegionTask, Survey};

pub use crate::search::lab::Refused;

/// A source of candidates. Strategies are named `<proposer>/<strategy>`. Equal asks are answered alike.
pub trait Proposer {
    /// The part of its strategies' names before the slash.
    fn name(&self) -> &'static str;

    /// Which strategies apply to a region, with their spaces, and why the others do not.
    fn survey(&mut self, region: &RegionTask) -> Survey;

    /// The candidates at a point, at least one.
    ///
    /// # Errors
    /// If there is none.
    fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused>;
}

/// Several proposers as one: offers in their order, asks to the one that made the offer.
#[derive(Default)]
pub struct Proposers(Vec<Box<dyn Proposer>>);

impl Proposers {
    /// Those that come first are tried first.
    #[must_use]
    pub fn new(proposers: Vec<Box<dyn Proposer>>) -> Proposers {
        Proposers(proposers)
    }

    /// Everything that may be tried on a region.
    pub fn survey(&mut self, region: &RegionTask) -> Survey {
        let mut all = Survey::default();
        for proposer in &mut self.0 {
            let Survey { offers, refusals } = proposer.survey(region);
            all.offers.extend(offers);
            all.refusals.extend(refusals);
        }
        all
    }

    /// The candidates for an ask.
    ///
    /// # Errors
    /// If the proposer has none, or there is no such proposer.
    pub fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused> {
        let name = ask.strategy.split('/').next().unwrap_or_default();
        match self.0.iter_mut().find(|proposer| proposer.name() == name) {
            Some(proposer) => proposer.propose(ask),
            None => Err(Refused(format!("no proposer is called '{name}'"))),
        }
    }
}

#[cfg(test)]
mod tests;
