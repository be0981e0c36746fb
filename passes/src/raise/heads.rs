//! Grouped-query attention: exporters repeat keys and values to the heads of q, attention does not need that.

use forge_ir::{Dim, Exactness, Graph, InferError, NodeId, Op, Patch, Value};

pub(super) fn shared_heads(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let op @ Op::Attention { .. } = graph.op(node) else { return Ok(None) };
    let mut operands = graph.operands(node);
    let [_, k, v, ..] = operands[..] else { return Ok(None) };
    let (Some(k), Some(v)) = (repeated(graph, k), repeated(graph, v)) else { return Ok(None) };
    if graph.ty(k).shape[1] != graph.ty(v).shape[1] {
        return Ok(None);
    }
    operands[1] = k;
    operands[2] = v;
    let root = Value { node, port: 0 };
    Patch::replace_with_op(graph, root, op.clone(), &operands, "keys and values shared by heads", Exactness::Exact)
        .map(Some)
}

/// x: [B, Hkv, S, D] of `reshape(broadcast(reshape(x)))` by [B, Hkv, 1, S, D] and [B, Hkv, r, S, D] to [B, Hkv*r, S, D].
fn repeated(graph: &Graph, value: Value) -> Option<Value> {
    let through = |value: Value, accept: fn(&Op) -> bool| match graph.operands(value.node)[..] {
        [x] if accept(graph.op(value.node)) => Some(x),
        _ => None,
    };
    let wide = through(value, |op| matches!(op, Op::Reshape { .. }))?;
    let single = through(wide, |op| matches!(op, Op::Broadcast { .. }))?;
    let x = through(single, |op| matches!(op, Op::Reshape { .. }))?;
    let [batch, heads, keys, depth] = graph.ty(x).shape.as_slice() else { return None };
    let with = |group: Dim| [batch.clone(), heads.clone(), group, keys.clone(), depth.clone()];
    let group = graph.ty(wide).shape.get(2)?.clone();
    let fits = graph.ty(single).shape == with(Dim::from(1))
        && graph.ty(wide).shape == with(group.clone())
        && graph.ty(value).shape == [batch.clone(), heads.clone() * group, keys.clone(), depth.clone()];
    fits.then_some(x)
}
