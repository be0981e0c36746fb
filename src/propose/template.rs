//! The parameterised kernels of [`forge_kernels::templates`].

use forge_kernels::candidate::Candidate;
use forge_kernels::templates::{Spec, TEMPLATES, Template};

use super::Proposer;
use crate::search::lab::{Ask, Refusal, Refused, RegionTask, Survey};
use crate::search::tree::Offer;

const NAME: &str = "template";

/// Offers every template that applies to a region, in the order of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Templates;

impl Proposer for Templates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn survey(&mut self, region: &RegionTask) -> Survey {
        let mut survey = Survey::default();
        for template in TEMPLATES {
            let strategy = strategy(template);
            match (template.space)(&spec(region)) {
                Ok(axes) => survey.offers.push(Offer { strategy, axes }),
                Err(why) => survey.refusals.push(Refusal { strategy, reason: why.to_string() }),
            }
        }
        survey
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Vec<Candidate>, Refused> {
        let template = TEMPLATES
            .iter()
            .find(|template| strategy(template) == ask.strategy)
            .ok_or_else(|| Refused(format!("no template is called '{}'", ask.strategy)))?;
        match (template.instantiate)(&spec(ask.region), &ask.parameters) {
            Ok(candidate) => Ok(vec![candidate]),
            Err(why) => Err(Refused(why.to_string())),
        }
    }
}

fn strategy(template: &Template) -> String {
    format!("{NAME}/{}", template.name)
}

fn spec(region: &RegionTask) -> Spec<'_> {
    Spec { region: &region.body, weight_inputs: &region.weight_inputs }
}
