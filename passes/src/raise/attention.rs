//! Attention.
//!
//! The root is the product with v. Scores may be scaled before or after q k^T (the dynamo exporter multiplies both sides
//! by the root of the scale), masked by a sum or by a select, and softmax may be taken in f32. A guard that turns NaN
//! into 0 is claimed as `masked_rows_zero`, which is what it is for; where NaN comes from NaN operands instead, the
//! composite passes it on and the guard would not.
//!
//! The composite adds a float mask as it is, so a row of -inf is NaN in it as in the primitive form; a guard over a float
//! mask is claimed only where no row can be all -inf ([`mask::bounded_below`]) or the mask is truly a bool.

use forge_ir::{
    BinaryOp, CompareOp, Dim, Exactness, Graph, InferError, NodeId, Op, Patch, PatchBuilder, TensorType, UnaryOp, Value,
};

use super::mask::{self, Mask};
use crate::matching::{Matcher, is_about, number};

/// What `scale * q k^T + mask` is made of.
struct Scores {
    q: Value,
    k: Value,
    /// k is [.., D, S].
    k_transposed: bool,
    scale: f64,
    mask: Option<Mask>,
}

pub(super) fn attention(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let found = m.attempt(|m| {
        let (weights, v, v_transposed) = m.op(root, |op, operands| match (op, operands) {
            (Op::MatMul { trans_a: false, trans_b }, [weights, v]) => Some((*weights, *v, *trans_b)),
            _ => None,
        })?;
        let (weights, guarded) = match m.attempt(|m| guard(m, weights)) {
            Some(weights) => (weights, true),
            None => (weights, false),
        };
        let scores = softmax(m, weights)?;
        let scores = read_scores(m, scores, guarded)?;
        Some((scores, v, v_transposed, guarded))
    });
    let Some((scores, v, v_transposed, guarded)) = found else { return Ok(None) };
    if !m.closed(root) {
        return Ok(None);
    }
    build(graph, root, scores, (v, v_transposed), guarded)
}

/// `p` of `select(isnan(p), 0, p)`, or of its negation.
fn guard(m: &mut Matcher<'_>, value: Value) -> Option<Value> {
    let (condition, then, otherwise) = select(m, value)?;
    let zero = |m: &Matcher<'_>, v| number(m.graph(), v) == Some(0.0);
    if zero(m, then) && m.attempt(|m| m.unary(condition, UnaryOp::IsNan)) == Some(otherwise) {
        return Some(otherwise);
    }
    // x == x
    let equal = m.op(condition, |op, operands| match (op, operands) {
        (Op::Compare(CompareOp::Eq), [a, b]) if a == b => Some(*a),
        _ => None,
    })?;
    (equal == then && zero(m, otherwise)).then_some(then)
}

fn select(m: &mut Matcher<'_>, value: Value) -> Option<(Value, Value, Value)> {
    m.op(value, |op, operands| match (op, operands) {
        (Op::Select, [c, a, b]) => Some((*c, *a, *b)),
        _ => None,
    })
}

/// The operand of a softmax over the last axis, which may be wrapped in a cast to f32 and back.
fn softmax(m: &mut Matcher<'_>, value: Value) -> Option<Value> {
    let plain = |m: &mut Matcher<'_>, value: Value| {
        let last = m.ty(value).rank().checked_sub(1)?;
        m.op(value, |op, operands| match (op, operands) {
            (Op::Softmax { axis }, [x]) if *axis == last => Some(*x),
            _ => None,
        })
    };
    m.attempt(|m| plain(m, value)).or_else(|| {
        let (wide, dtype) = m.cast(value)?;
        let inner = plain(m, wide)?;
        let (narrow, _) = m.cast(inner)?;
        (m.ty(narrow).dtype == dtype && dtype.compute_type() == m.ty(wide).dtype).then_some(narrow)
    })
}

fn read_scores(m: &mut Matcher<'_>, value: Value, guarded: bool) -> Option<Scores> {
    let graph = m.graph();
    let sum = m.attempt(|m| {
        let pair = m.binary(value, BinaryOp::Add)?;
        m.either(pair, |m, scaled, mask| {
            (m.ty(scaled) == m.ty(value)).then_some(())?;
            let scores = products(m, scaled)?;
            Some(Scores { mask: Some(mask::additive(graph, mask, guarded)?), ..scores })
        })
    });
    let chosen = sum.or_else(|| {
        m.attempt(|m| {
            let (condition, scaled, barred) = select(m, value)?;
            (m.ty(scaled) == m.ty(value)).then_some(())?;
            let mask = mask::selected(graph, condition, number(graph, barred)?)?;
            let scores = products(m, scaled)?;
            Some(Scores { mask: Some(mask), ..scores })
        })
    });
    chosen.or_else(|| m.attempt(|m| products(m, value)))
}

/// `scale * q k^T`.
fn products(m: &mut Matcher<'_>, value: Value) -> Option<Scores> {
    let (value, scale) = unscaled(m, value);
    let (q, k, trans_b) = m.op(value, |op, operands| match (op, operands) {
        (Op::MatMul { trans_a: false, trans_b }, [q, k]) => Some((*q, *k, *trans_b)),
        _ => None,
    })?;
    // Scaled operands may have other users: they are looked through, not taken.
    let (q, q_scale) = unscaled(&mut Matcher::new(m.graph()), q);
    let (k, k_scale, k_transposed) = key(m.graph(), k, !trans_b);
    let scale = scale * q_scale * k_scale;
    let scale = usual_scale(m.ty(q), scale);
    scale.is_finite().then_some(Scores { q, k, k_transposed, scale, mask: None })
}

/// `1/sqrt(D)` itself where the number is a rounding of it, so that equal attentions are equal however they were spelled.
fn usual_scale(q: &TensorType, scale: f64) -> f64 {
    let usual = q.shape.last().and_then(Dim::as_const).map(|depth| 1.0 / (depth as f64).sqrt());
    usual.filter(|usual| is_about(scale, *usual, q.dtype)).unwrap_or(scale)
}

/// (x, c) of `x * c`, through several products and quotients; c is 1 if there are none.
fn unscaled(m: &mut Matcher<'_>, mut value: Value) -> (Value, f64) {
    let mut scale = 1.0;
    loop {
        if let Some((x, c)) = m.with_number(value, BinaryOp::Mul) {
            (value, scale) = (x, scale * c);
        } else if let Some((x, c)) = m.with_number(value, BinaryOp::Div).filter(|(_, c)| *c != 0.0) {
            (value, scale) = (x, scale / c);
        } else {
            return (value, scale);
        }
    }
}

/// k under scales and transposes of its last two axes.
fn key(graph: &Graph, mut value: Value, mut transposed: bool) -> (Value, f64, bool) {
    let mut scale = 1.0;
    loop {
        let (x, c) = unscaled(&mut Matcher::new(graph), value);
        (value, scale) = (x, scale * c);
        let operands = graph.operands(value.node);
        match (graph.op(value.node), operands.as_slice()) {
            (Op::Transpose { perm }, [x]) if swaps_only_last_two(perm) => {
                (value, transposed) = (*x, !transposed);
            }
            _ => return (value, scale, transposed),
        }
    }
}

fn swaps_only_last_two(perm: &[usize]) -> bool {
    let Some(lead) = perm.len().checked_sub(2) else { return false };
    perm.iter().copied().eq((0..lead).chain([lead + 1, lead]))
}

/// `value` as [batch, heads, ..], tapped; its last two axes swapped if `transposed`.
fn operand(patch: &mut PatchBuilder<'_>, value: Value, transposed: bool) -> Result<Value, InferError> {
    let mut value = patch.tap(value);
    if transposed {
        let rank = patch.ty(value).rank();
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        value = patch.add(Op::Transpose { perm }, &[value])?;
    }
    with_heads(patch, value)
}

/// [B, L, D] as [B, 1, L, D].
fn with_heads(patch: &mut PatchBuilder<'_>, value: Value) -> Result<Value, InferError> {
    match patch.ty(value).shape.as_slice() {
        [batch, rows, columns] => {
            let shape = vec![batch.clone(), Dim::from(1), rows.clone(), columns.clone()];
            patch.add(Op::Reshape { shape }, &[value])
        }
        _ => Ok(value),
    }
}

fn build(
    graph: &Graph,
    root: Value,
    scores: Scores,
    (v, v_transposed): (Value, bool),
    guarded: bool,
) -> Result<Option<Patch>, InferError> {
    let ty = graph.ty(root);
    if !fits(graph, root, &scores, v) {
        return Ok(None);
    }
    let mut patch = Patch::builder(graph, "attention");
    let mut operands = vec![
        operand(&mut patch, scores.q, false)?,
        operand(&mut patch, scores.k, scores.k_transposed)?,
        operand(&mut patch, v, v_transposed)?,
    ];
    let masked_rows_zero = guarded && scores.mask.as_ref().is_some_and(Mask::is_bool);
    if let Some(mask) = scores.mask {
        let mask = mask.value(&mut patch, graph)?;
        // Against [B, L, S] a mask of lower rank broadcasts over heads as it is.
        operands.push(if ty.rank() == 3 { with_heads(&mut patch, mask)? } else { mask });
    }
    let op = Op::Attention { scale: scores.scale, causal: false, causal_offset: false, masked_rows_zero };
    let Ok(mut new) = patch.add(op, &operands) else { return Ok(None) };
    if patch.ty(new).shape != ty.shape {
        if ty.rank() != 3 {
            return Ok(None);
        }
        new = patch.add(Op::Reshape { shape: ty.shape.clone() }, &[new])?;
    }
    patch.replace(root, new);
    Ok(Some(patch.finish(Exactness::Rounding)))
}

/// Batches agree and heads are one to one or shared by all: matmul would broadcast more than attention does.
fn fits(graph: &Graph, root: Value, scores: &Scores, v: Value) -> bool {
    let [q, k, v] = [scores.q, scores.k, v].map(|value| graph.ty(value));
    let dtypes = q.dtype == graph.ty(root).dtype && k.dtype == q.dtype && v.dtype == q.dtype;
    let shapes = match (q.shape.as_slice(), k.shape.as_slice(), v.shape.as_slice()) {
        ([q0, _, _], [k0, _, _], [v0, _, _]) => q0 == k0 && q0 == v0,
        ([q0, q1, _, _], [k0, k1, _, _], [v0, v1, _, _]) => {
            q0 == k0 && q0 == v0 && k1 == v1 && (k1 == q1 || k1.is_one())
        }
        _ => false,
    };
    dtypes && shapes
}
