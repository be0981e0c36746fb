//! Layer norm.

use forge_ir::{BinaryOp, Exactness, Graph, InferError, NodeId, Op, Patch, Value};

use super::standardized::{is_parameter, parameter, standardized};
use crate::matching::{Matcher, used_once};

pub(super) fn layer_norm(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let scaled = |m: &mut Matcher<'_>, value: Value| {
        let pair = m.binary(value, BinaryOp::Mul)?;
        m.either(pair, |m, y, scale| {
            let norm = standardized(m, y)?;
            let shape = &m.ty(norm.x).shape[norm.axis..];
            is_parameter(graph, scale, shape).then_some((norm, scale))
        })
    };
    let with_bias = m.attempt(|m| {
        let pair = m.binary(root, BinaryOp::Add)?;
        m.either(pair, |m, product, bias| {
            let (norm, scale) = scaled(m, product)?;
            is_parameter(graph, bias, &m.ty(norm.x).shape[norm.axis..]).then_some((norm, scale, Some(bias)))
        })
    });
    let found = with_bias.or_else(|| m.attempt(|m| scaled(m, root).map(|(norm, scale)| (norm, scale, None))));
    let Some((norm, scale, bias)) = found else { return Ok(None) };
    let ty = graph.ty(norm.x);
    let shape = &ty.shape[norm.axis..];
    if graph.ty(root) != ty || !m.closed(root) || (bias.is_none() && has_bias_below(graph, root, shape)) {
        return Ok(None);
    }
    let mut patch = Patch::builder(graph, "layer norm");
    let mut operands = vec![patch.tap(norm.x), parameter(&mut patch, scale, shape)?];
    if let Some(bias) = bias {
        operands.push(parameter(&mut patch, bias, shape)?);
    }
    let new = patch.add(Op::LayerNorm { axis: norm.axis, epsilon: norm.epsilon }, &operands)?;
    patch.replace(root, new);
    Ok(Some(patch.finish(Exactness::Rounding)))
}

/// The sum with the bias is the better root: the product is left to it.
fn has_bias_below(graph: &Graph, product: Value, shape: &[forge_ir::Dim]) -> bool {
    used_once(graph, product)
        && graph.uses(product).iter().any(|(user, slot)| {
            graph.op(*user) == &Op::Binary(BinaryOp::Add)
                && graph.operands(*user).get(1 - slot).is_some_and(|bias| is_parameter(graph, *bias, shape))
        })
}
