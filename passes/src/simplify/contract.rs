//! Rules around matmuls. Both exact: every dot product is of the same numbers in the same order.

use forge_ir::{BinaryOp, Dim, Exactness, Graph, InferError, NodeId, Op, Patch, Value};

use crate::matching::used_once;

type Rewrite = Result<Option<Patch>, InferError>;

/// A transpose that brings the later source axis before the earlier one in its last two becomes the flag of that side
/// and, unless that leaves the identity, a transpose that does not.
pub(super) fn transpose_into_matmul(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::MatMul { trans_a, trans_b } = graph.op(node) else { return Ok(None) };
    let mut flags = [*trans_a, *trans_b];
    let operands = graph.operands(node);
    let Some(side) = operands.iter().position(|v| swaps_last_two(graph, *v)) else { return Ok(None) };
    let transposed = operands[side];
    let Op::Transpose { perm } = graph.op(transposed.node) else { return Ok(None) };
    let mut rest = perm.clone();
    let rank = rest.len();
    rest.swap(rank - 2, rank - 1);
    flags[side] = !flags[side];
    let mut patch = Patch::builder(graph, "transpose into a flag of matmul");
    let mut new_operands = Vec::new();
    for (slot, operand) in operands.iter().enumerate() {
        let mut value = if slot == side { graph.operands(transposed.node)[0] } else { *operand };
        value = patch.tap(value);
        if slot == side && !rest.iter().copied().eq(0..rank) {
            value = patch.add(Op::Transpose { perm: rest.clone() }, &[value])?;
        }
        new_operands.push(value);
    }
    let new = patch.add(Op::MatMul { trans_a: flags[0], trans_b: flags[1] }, &new_operands)?;
    patch.replace(Value { node, port: 0 }, new);
    Ok(Some(patch.finish(Exactness::Exact)))
}

fn swaps_last_two(graph: &Graph, value: Value) -> bool {
    match graph.op(value.node) {
        Op::Transpose { perm } => matches!(perm[..], [.., a, b] if a > b),
        _ => false,
    }
}

/// `Gemm` takes matrices, so exporters flatten x before it and restore the axes after it.
pub(super) fn matmul_at_full_rank(graph: &Graph, node: NodeId) -> Rewrite {
    let result = Value { node, port: 0 };
    let Op::Reshape { shape } = graph.op(node) else { return Ok(None) };
    let [inner] = graph.operands(node)[..] else { return Ok(None) };
    if !used_once(graph, inner) {
        return Ok(None);
    }
    let (product, bias) = match graph.op(inner.node) {
        Op::MatMul { .. } => (inner, None),
        Op::Binary(BinaryOp::Add) => {
            let [a, b] = graph.operands(inner.node)[..] else { return Ok(None) };
            let is_product = |v: Value| matches!(graph.op(v.node), Op::MatMul { .. });
            match (is_product(a), is_product(b)) {
                (true, false) => (a, Some((b, 1))),
                (false, true) => (b, Some((a, 0))),
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    let Op::MatMul { trans_a: false, trans_b } = *graph.op(product.node) else { return Ok(None) };
    let [rows, weight] = graph.operands(product.node)[..] else { return Ok(None) };
    let Op::Reshape { .. } = graph.op(rows.node) else { return Ok(None) };
    let x = graph.operands(rows.node)[0];
    let (row_type, product_type) = (graph.ty(rows), graph.ty(product));
    let bias_fits = bias.is_none_or(|(b, _)| graph.ty(b).rank() <= 1);
    let (Some((width, lead)), Some(depth)) = (shape.split_last(), row_type.shape.last()) else { return Ok(None) };
    let applies = used_once(graph, product)
        && bias_fits
        && row_type.rank() == 2
        && graph.ty(weight).rank() == 2
        // Rows stay rows: only the row axis is split. Any fewer axes would leave a reshape in place of this one.
        && product_type.shape.last() == Some(width)
        && graph.ty(inner) == product_type
        && lead.len() >= 2;
    if !applies {
        return Ok(None);
    }
    let mut patch = Patch::builder(graph, "linear layer at full rank");
    let (x, weight) = (patch.tap(x), patch.tap(weight));
    let wide: Vec<Dim> = lead.iter().chain([depth]).cloned().collect();
    let x = if patch.ty(x).shape == wide { x } else { patch.add(Op::Reshape { shape: wide }, &[x])? };
    let mut new = patch.add(Op::MatMul { trans_a: false, trans_b }, &[x, weight])?;
    if let Some((bias, slot)) = bias {
        let bias = patch.tap(bias);
        let operands = if slot == 0 { [bias, new] } else { [new, bias] };
        new = patch.add(Op::Binary(BinaryOp::Add), &operands)?;
    }
    patch.replace(result, new);
    Ok(Some(patch.finish(Exactness::Exact)))
}
