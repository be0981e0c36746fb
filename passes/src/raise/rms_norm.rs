//! RMS norm, at one precision or with the statistics of half types computed in f32, as models do.

use forge_ir::{BinaryOp, Exactness, Graph, InferError, NodeId, Op, Patch, Value};

use super::standardized::{centered, is_parameter, over_root_mean_square, parameter};
use crate::matching::Matcher;

pub(super) fn rms_norm(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let found = m.attempt(|m| {
        let pair = m.binary(root, BinaryOp::Mul)?;
        m.either(pair, |m, y, scale| {
            // f16(norm(f32(x))) * scale: the norm of x itself, less a rounding.
            let (y, narrowed) = match m.attempt(|m| m.cast(y)) {
                Some((wide, dtype)) => (wide, Some(dtype)),
                None => (y, None),
            };
            let norm = over_root_mean_square(m, y)?;
            // That would take half of a layer norm.
            if centered(&mut Matcher::new(graph), norm.x).is_some_and(|(_, axis)| axis == norm.axis) {
                return None;
            }
            let x = match narrowed {
                None => norm.x,
                Some(dtype) => {
                    let (x, _) = Matcher::new(graph).cast(norm.x)?;
                    (graph.ty(x).dtype == dtype && dtype.compute_type() == graph.ty(norm.x).dtype).then_some(x)?
                }
            };
            is_parameter(graph, scale, &graph.ty(x).shape[norm.axis..]).then_some((x, norm, scale))
        })
    });
    let Some((x, norm, scale)) = found else { return Ok(None) };
    let ty = graph.ty(x);
    if graph.ty(root) != ty || !m.closed(root) {
        return Ok(None);
    }
    let mut patch = Patch::builder(graph, "rms norm");
    let operands = [patch.tap(x), parameter(&mut patch, scale, &ty.shape[norm.axis..])?];
    let new = patch.add(Op::RmsNorm { axis: norm.axis, epsilon: norm.epsilon }, &operands)?;
    patch.replace(root, new);
    Ok(Some(patch.finish(Exactness::Rounding)))
}
