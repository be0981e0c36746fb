//! Template `rowwise`: see [`crate::codegen::rowwise`].

use super::{Axis, Parameters, Spec, candidate};
use crate::candidate::{Candidate, LaunchPlan};
use crate::codegen::Unsupported;
use crate::codegen::rowwise::{RowOptions, Stage, rowwise};

pub(super) fn space(spec: &Spec<'_>) -> Result<Vec<Axis>, Unsupported> {
    let mut stages = vec!["costly".to_owned()];
    // Without reductions nothing is staged: one point.
    let definition = definition(spec)?;
    // Element by element, a contraction is right but never fast.
    if definition.node_ids().any(|n| definition.op(n).class() == forge_ir::OpClass::Contract) {
        return Err(Unsupported::new("a contraction in the region"));
    }
    rowwise(&definition, "kernel", RowOptions::default())?;
    let reduces = definition.node_ids().any(|n| matches!(definition.op(n), forge_ir::Op::Reduce { .. }));
    if reduces {
        stages.extend(["nothing".to_owned(), "everything".to_owned()]);
    }
    let blocks: &[i64] = if reduces { &[4096] } else { &[4096, 1024, 16384] };
    Ok(vec![Axis { name: "stage", values: stages }, super::axis("block", blocks)])
}

pub(super) fn instantiate(spec: &Spec<'_>, parameters: &Parameters) -> Result<Candidate, Unsupported> {
    let stage = match parameters.get("stage").map(String::as_str) {
        Some("nothing") => Stage::Nothing,
        Some("costly") => Stage::Costly,
        Some("everything") => Stage::Everything,
        other => return Err(Unsupported::new(format!("parameter 'stage' is {other:?}"))),
    };
    let options = RowOptions { stage, block: super::number(parameters, "block")? };
    let kernel = rowwise(&definition(spec)?, "rowwise", options)?;
    let launch = LaunchPlan { launches: vec![kernel.launch], ..LaunchPlan::default() };
    Ok(candidate("rowwise", &kernel.source, launch, parameters))
}

fn definition(spec: &Spec<'_>) -> Result<forge_ir::Graph, Unsupported> {
    spec.region.decompose_all().map_err(|e| Unsupported::new(e.to_string()))
}
