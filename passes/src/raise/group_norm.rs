//! Group norm: exporters reshape to [N, groups, rest], normalise each group, reshape back, and scale channels.
//!
//! The normalisation is an instance norm (a group norm of one channel a group) with the neutral parameters 1 and 0, or
//! its definition.

use forge_ir::{BinaryOp, Dim, Exactness, Graph, InferError, NodeId, Op, Patch, PatchBuilder, Value};

use super::standardized::standardized;
use crate::matching::{Matcher, number, without_leading_ones};

pub(super) fn group_norm(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let ty = graph.ty(root);
    let channels = match ty.shape.get(1) {
        Some(channels) if ty.rank() >= 3 => channels,
        _ => return Ok(None),
    };
    let mut m = Matcher::new(graph);
    let found = m.attempt(|m| {
        let pair = m.binary(root, BinaryOp::Add)?;
        m.either(pair, |m, product, bias| {
            let pair = m.binary(product, BinaryOp::Mul)?;
            m.either(pair, |m, y, scale| {
                let (x, groups, epsilon) = grouped(m, y)?;
                let parameters = [scale, bias].iter().all(|p| is_per_channel(graph, *p, channels, ty.rank()));
                parameters.then_some((x, groups, epsilon, scale, bias))
            })
        })
    });
    let Some((x, groups, epsilon, scale, bias)) = found else { return Ok(None) };
    let divides = channels.as_const().is_some_and(|c| groups >= 1 && c % groups == 0);
    if graph.ty(x) != ty || !divides || !m.closed(root) {
        return Ok(None);
    }
    let mut patch = Patch::builder(graph, "group norm");
    let operands = [patch.tap(x), per_channel(&mut patch, scale, channels)?, per_channel(&mut patch, bias, channels)?];
    let new = patch.add(Op::GroupNorm { groups, epsilon }, &operands)?;
    patch.replace(root, new);
    Ok(Some(patch.finish(Exactness::Rounding)))
}

/// (x, groups, epsilon) of `reshape(norm(reshape(x)))` through [N, groups, rest].
fn grouped(m: &mut Matcher<'_>, value: Value) -> Option<(Value, i64, f64)> {
    let reshaped = |m: &mut Matcher<'_>, value: Value| {
        m.op(value, |op, operands| match (op, operands) {
            (Op::Reshape { .. }, [x]) => Some(*x),
            _ => None,
        })
    };
    let norm = reshaped(m, value)?;
    let (rows, epsilon) = m.attempt(|m| neutral_instance_norm(m, norm)).or_else(|| {
        let norm = standardized(m, norm)?;
        (norm.axis == 2).then_some((norm.x, norm.epsilon))
    })?;
    let x = reshaped(m, rows)?;
    match m.ty(rows).shape.as_slice() {
        [batch, groups, _] if *batch == m.ty(x).shape[0] => Some((x, groups.as_const()?, epsilon)),
        _ => None,
    }
}

fn neutral_instance_norm(m: &mut Matcher<'_>, value: Value) -> Option<(Value, f64)> {
    let graph = m.graph();
    m.op(value, |op, operands| match (op, operands) {
        (Op::GroupNorm { groups, epsilon }, [x, scale, bias]) => {
            let neutral = number(graph, *scale) == Some(1.0) && number(graph, *bias) == Some(0.0);
            let one_channel_each = graph.ty(*x).shape.get(1).and_then(Dim::as_const) == Some(*groups);
            (neutral && one_channel_each).then_some((*x, *epsilon))
        }
        _ => None,
    })
}

/// `[C, 1, ..]` against a value of rank `rank` whose axis 1 is the channels.
fn is_per_channel(graph: &Graph, value: Value, channels: &Dim, rank: usize) -> bool {
    match without_leading_ones(&graph.ty(value).shape, rank - 1) {
        Some([first, rest @ ..]) => first == channels && rest.iter().all(Dim::is_one),
        _ => false,
    }
}

fn per_channel(patch: &mut PatchBuilder<'_>, value: Value, channels: &Dim) -> Result<Value, InferError> {
    let value = patch.tap(value);
    patch.add(Op::Reshape { shape: vec![channels.clone()] }, &[value])
}
