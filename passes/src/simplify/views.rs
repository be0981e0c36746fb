//! Rules on ops that only move elements. All exact.

use forge_ir::{Dim, Exactness, Graph, InferError, NodeId, Op, Patch, Value, infer};

use crate::matching::{constant, used_once};

type Rewrite = Result<Option<Patch>, InferError>;

fn result(node: NodeId) -> Value {
    Value { node, port: 0 }
}

pub(super) fn identity(graph: &Graph, node: NodeId) -> Rewrite {
    let operands = graph.operands(node);
    let Some(x) = operands.first().copied() else { return Ok(None) };
    let changes_nothing = match graph.op(node) {
        Op::Reshape { shape } | Op::Broadcast { shape } => *shape == graph.ty(x).shape,
        Op::Transpose { perm } => perm.iter().copied().eq(0..perm.len()),
        Op::Slice { starts, steps, sizes } => {
            *sizes == graph.ty(x).shape
                && starts.iter().zip(steps).zip(sizes).all(|((start, step), size)| {
                    // A step over one element is no step.
                    start.as_const() == Some(0) && (*step == 1 || size.is_one())
                })
        }
        Op::Pad { before, after, .. } => before.iter().chain(after).all(|pad| pad.as_const() == Some(0)),
        Op::Concat { .. } => operands.len() == 1,
        _ => false,
    };
    let why = format!("a {} that changes nothing", graph.op(node).name());
    Ok((changes_nothing && graph.ty(x) == graph.ty(result(node)))
        .then(|| Patch::replace_with_value(graph, result(node), x, &why)))
}

pub(super) fn of_view(graph: &Graph, node: NodeId) -> Rewrite {
    let [inner, ..] = graph.operands(node)[..] else { return Ok(None) };
    let [x, ..] = graph.operands(inner.node)[..] else { return Ok(None) };
    let op = match (graph.op(node), graph.op(inner.node)) {
        (Op::Reshape { shape }, Op::Reshape { .. }) => Op::Reshape { shape: shape.clone() },
        (Op::Broadcast { shape }, Op::Broadcast { .. }) => Op::Broadcast { shape: shape.clone() },
        (Op::Transpose { perm: outer }, Op::Transpose { perm: inner }) => {
            match outer.iter().map(|axis| inner.get(*axis).copied()).collect() {
                Some(perm) => Op::Transpose { perm },
                None => return Ok(None),
            }
        }
        (Op::Slice { starts, steps, sizes }, Op::Slice { starts: inner_starts, steps: inner_steps, .. })
            if starts.len() == inner_starts.len() =>
        {
            // Element i of the outer slice is element start + i*step of the inner one.
            let starts = inner_starts
                .iter()
                .zip(inner_steps)
                .zip(starts)
                .map(|((base, stride), start)| base.clone() + Dim::from(*stride) * start.clone())
                .collect();
            let Some(steps) = inner_steps.iter().zip(steps).map(|(a, b)| a.checked_mul(*b)).collect() else {
                return Ok(None);
            };
            Op::Slice { starts, steps, sizes: sizes.clone() }
        }
        _ => return Ok(None),
    };
    let why = format!("{} of {}", op.name(), op.name());
    Patch::replace_with_op(graph, result(node), op, &[x], &why, Exactness::Exact).map(Some)
}

/// For each dim of `from`, the consecutive dims of `to` whose product it is; `None` if `to` is not `from` with axes
/// split.
fn split_groups(from: &[Dim], to: &[Dim]) -> Option<Vec<Vec<Dim>>> {
    let mut rest = to.iter();
    let mut groups = Vec::with_capacity(from.len());
    for dim in from {
        let mut group = vec![rest.next()?.clone()];
        while Dim::product(&group) != *dim {
            group.push(rest.next()?.clone());
        }
        groups.push(group);
    }
    // Ones that are left over belong to the last axis.
    for one in rest {
        if !one.is_one() {
            return None;
        }
        groups.last_mut()?.push(one.clone());
    }
    Some(groups)
}

/// Splits move up, toward the reshape that made the axis, and transposes meet transposes below. The normal form in
/// which exporters' ways of transposing keys (merge batch and heads, transpose, split again) become one transpose.
pub(super) fn split_above_transpose(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Reshape { shape } = graph.op(node) else { return Ok(None) };
    let [inner] = graph.operands(node)[..] else { return Ok(None) };
    let Op::Transpose { perm } = graph.op(inner.node) else { return Ok(None) };
    let [x] = graph.operands(inner.node)[..] else { return Ok(None) };
    if !used_once(graph, inner) || shape.is_empty() {
        return Ok(None);
    }
    let Some(groups) = split_groups(&graph.ty(inner).shape, shape) else { return Ok(None) };
    // New axes of 1 are no split; they stay where they are put in.
    if !groups.iter().any(|group| group.iter().filter(|dim| !dim.is_one()).count() >= 2) {
        return Ok(None);
    }
    // Groups in the order of x's axes, and where each starts among the split axes.
    let mut by_source: Vec<(usize, usize)> = perm.iter().copied().enumerate().map(|(to, from)| (from, to)).collect();
    by_source.sort_unstable();
    let mut split = Vec::new();
    let mut starts = vec![0; groups.len()];
    for (_, to) in by_source {
        starts[to] = split.len();
        split.extend(groups[to].iter().cloned());
    }
    let perm = groups.iter().zip(&starts).flat_map(|(group, start)| *start..*start + group.len()).collect();
    let mut patch = Patch::builder(graph, "split above transpose");
    let x = patch.tap(x);
    let wide = patch.add(Op::Reshape { shape: split }, &[x])?;
    let new = patch.add(Op::Transpose { perm }, &[wide])?;
    patch.replace(result(node), new);
    Ok(Some(patch.finish(Exactness::Exact)))
}

/// Axes of 1 that are dropped below a transpose are dropped above it.
pub(super) fn squeeze_above_transpose(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Reshape { shape } = graph.op(node) else { return Ok(None) };
    let [inner] = graph.operands(node)[..] else { return Ok(None) };
    let Op::Transpose { perm } = graph.op(inner.node) else { return Ok(None) };
    let [x] = graph.operands(inner.node)[..] else { return Ok(None) };
    let mut rest = shape.as_slice();
    let mut kept = Vec::new();
    for (axis, dim) in graph.ty(inner).shape.iter().enumerate() {
        match rest.split_first() {
            Some((first, others)) if first == dim => {
                kept.push(perm[axis]);
                rest = others;
            }
            _ if dim.is_one() => {}
            _ => return Ok(None),
        }
    }
    if !rest.is_empty() || kept.len() == perm.len() || !used_once(graph, inner) {
        return Ok(None);
    }
    let mut sources = kept.clone();
    sources.sort_unstable();
    let narrow = sources.iter().map(|axis| graph.ty(x).shape[*axis].clone()).collect();
    let perm = kept.iter().filter_map(|axis| sources.iter().position(|source| source == axis)).collect();
    let mut patch = Patch::builder(graph, "squeeze above transpose");
    let x = patch.tap(x);
    let narrow = patch.add(Op::Reshape { shape: narrow }, &[x])?;
    let new = patch.add(Op::Transpose { perm }, &[narrow])?;
    patch.replace(result(node), new);
    Ok(Some(patch.finish(Exactness::Exact)))
}

pub(super) fn implied_broadcast(graph: &Graph, node: NodeId) -> Rewrite {
    let op = graph.op(node);
    if !matches!(op, Op::Binary(_) | Op::Compare(_) | Op::Select) {
        return Ok(None);
    }
    let operands = graph.operands(node);
    for (slot, operand) in operands.iter().enumerate() {
        if !matches!(graph.op(operand.node), Op::Broadcast { .. }) {
            continue;
        }
        let mut fewer = operands.clone();
        fewer[slot] = graph.operands(operand.node)[0];
        let types: Vec<_> = fewer.iter().map(|v| graph.ty(*v)).collect();
        // Identical, not just compatible: a symbol must not lose what the broadcast said it is.
        if infer(op, &types).is_ok_and(|types| types == graph.node(node).outputs) {
            let why = format!("{} broadcasts by itself", op.name());
            return Patch::replace_with_op(graph, result(node), op.clone(), &fewer, &why, Exactness::Exact).map(Some);
        }
    }
    Ok(None)
}

pub(super) fn gather_of_one(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Gather { axis } = graph.op(node) else { return Ok(None) };
    let [x, indices] = graph.operands(node)[..] else { return Ok(None) };
    let index = constant(graph, indices).filter(|t| t.shape().is_empty()).and_then(|t| t.to_i64()?.first().copied());
    let (Some(index), shape) = (index, &graph.ty(x).shape) else { return Ok(None) };
    let extent = &shape[*axis];
    let start = if index < 0 { extent.clone() + Dim::from(index) } else { Dim::from(index) };
    // Slices are always in bounds; an index that may not be stays a gather, which is checked when it runs.
    let in_range = extent.as_const().is_some_and(|n| index < n && index >= -n);
    if !in_range {
        return Ok(None);
    }
    let mut starts = vec![Dim::from(0); shape.len()];
    let mut sizes = shape.clone();
    starts[*axis] = start;
    sizes[*axis] = Dim::from(1);
    let slice = Op::Slice { starts, steps: vec![1; shape.len()], sizes };
    let mut patch = Patch::builder(graph, "gather of one index is a slice");
    let tap = patch.tap(x);
    let kept = patch.add(slice, &[tap])?;
    let new = patch.add(Op::Reshape { shape: graph.ty(result(node)).shape.clone() }, &[kept])?;
    patch.replace(result(node), new);
    Ok(Some(patch.finish(Exactness::Exact)))
}
