//! Rotary embedding by halves: `x*cos + rotate_half(x)*sin`, with `rotate_half(a, b) = (-b, a)`, or written out as
//! `(a cos - b sin, b cos + a sin)`.
//!
//! In the first form cos and sin are as wide as x and must be equal in both halves: constants are compared, computed
//! ones are followed to a concat of one value with itself.

use forge_ir::{BinaryOp, Dim, Exactness, Graph, InferError, NodeId, Op, Patch, PatchBuilder, Tensor, UnaryOp, Value};

use crate::matching::{Matcher, derived, known, number};

/// How deep a computed table is followed.
const DEPTH: usize = 8;

pub(super) fn rotary(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let Some((x, cos, sin)) = m.attempt(|m| rotated(m, root)) else { return written_out(graph, root) };
    if graph.ty(x) != graph.ty(root) || !m.closed(root) {
        return Ok(None);
    }
    let half = match half_of(graph, x) {
        Some(half) => half,
        None => return Ok(None),
    };
    if !repeats(graph, cos, &half, DEPTH) || !repeats(graph, sin, &half, DEPTH) {
        return Ok(None);
    }
    let mut patch = Patch::builder(graph, "rotary");
    let operands =
        [patch.tap(x), first_half(&mut patch, graph, cos, &half)?, first_half(&mut patch, graph, sin, &half)?];
    let new = patch.add(Op::Rotary { interleaved: false }, &operands)?;
    patch.replace(root, new);
    Ok(Some(patch.finish(Exactness::Rounding)))
}

fn half_of(graph: &Graph, x: Value) -> Option<Dim> {
    graph.ty(x).shape.last()?.div_exact(&Dim::from(2))
}

/// (x, cos, sin) of `x*cos + rotate_half(x)*sin`.
fn rotated(m: &mut Matcher<'_>, root: Value) -> Option<(Value, Value, Value)> {
    let pair = m.binary(root, BinaryOp::Add)?;
    m.either(pair, |m, plain, turned| {
        let turned = m.binary(turned, BinaryOp::Mul)?;
        let (x, sin) = m.either(turned, |m, turned, sin| Some((rotate_half(m, turned)?, sin)))?;
        let plain = m.binary(plain, BinaryOp::Mul)?;
        m.either(plain, |_, same, cos| (same == x).then_some((x, cos, sin)))
    })
}

/// x of `concat(-x[half..], x[..half])` along the last axis.
fn rotate_half(m: &mut Matcher<'_>, value: Value) -> Option<Value> {
    let graph = m.graph();
    let last = graph.ty(value).rank().checked_sub(1)?;
    let (low, high) = m.op(value, |op, operands| match (op, operands) {
        (Op::Concat { axis }, [a, b]) if *axis == last => Some((*a, *b)),
        _ => None,
    })?;
    let negated = m.unary(low, UnaryOp::Neg)?;
    let (x, upper) = part(m, negated)?;
    let (same, lower) = part(m, high)?;
    (x == same && upper == Half::Upper && lower == Half::Lower).then_some(x)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Lower,
    Upper,
}

/// Which half of the last axis of x a slice is.
fn part(m: &mut Matcher<'_>, value: Value) -> Option<(Value, Half)> {
    let graph = m.graph();
    m.op(value, |op, operands| {
        let (Op::Slice { starts, steps, sizes }, [x]) = (op, operands) else { return None };
        let half = half_of(graph, *x)?;
        let shape = &graph.ty(*x).shape;
        let last = shape.len() - 1;
        let whole_before = (0..last).all(|i| starts[i].as_const() == Some(0) && sizes[i] == shape[i]);
        if !whole_before || steps.iter().any(|step| *step != 1) || sizes[last] != half {
            return None;
        }
        match &starts[last] {
            start if start.as_const() == Some(0) => Some((*x, Half::Lower)),
            start if *start == half => Some((*x, Half::Upper)),
            _ => None,
        }
    })
}

/// `concat(a cos - b sin, b cos + a sin)` of the halves a, b of x.
fn written_out(graph: &Graph, root: Value) -> Result<Option<Patch>, InferError> {
    let mut m = Matcher::new(graph);
    let found = m.attempt(|m| {
        let last = m.ty(root).rank().checked_sub(1)?;
        let (low, high) = m.op(root, |op, operands| match (op, operands) {
            (Op::Concat { axis }, [a, b]) if *axis == last => Some((*a, *b)),
            _ => None,
        })?;
        let factors = |m: &mut Matcher<'_>, value: Value| {
            let pair = m.binary(value, BinaryOp::Mul)?;
            m.either(pair, |m, half, table| part(m, half).map(|(x, half)| (x, half, table)))
        };
        let (a_cos, b_sin) = m.binary(low, BinaryOp::Sub)?;
        let (x, Half::Lower, cos) = factors(m, a_cos)? else { return None };
        let (x2, Half::Upper, sin) = factors(m, b_sin)? else { return None };
        let pair = m.binary(high, BinaryOp::Add)?;
        let (x3, x4) = m.either(pair, |m, b_cos, a_sin| {
            let (x3, upper, c) = factors(m, b_cos)?;
            let (x4, lower, s) = factors(m, a_sin)?;
            (upper == Half::Upper && lower == Half::Lower && c == cos && s == sin).then_some((x3, x4))
        })?;
        let tables_fit = [cos, sin].iter().all(|t| graph.ty(*t).shape.last().cloned() == half_of(graph, x));
        let fits = [x2, x3, x4].iter().all(|v| *v == x) && tables_fit && m.ty(x) == m.ty(root) && m.closed(root);
        fits.then_some([x, cos, sin])
    });
    let Some(operands) = found else { return Ok(None) };
    super::rounding(graph, root, Op::Rotary { interleaved: false }, &operands, "rotary")
}

/// Whether `value` is some table twice along its last axis, each `half` wide, by construction.
fn repeats(graph: &Graph, value: Value, half: &Dim, depth: usize) -> bool {
    let ty = graph.ty(value);
    if depth == 0 || ty.shape.last() != Some(&(half.clone() * Dim::from(2))) {
        return false;
    }
    let operands = graph.operands(value.node);
    match (graph.op(value.node), operands.as_slice()) {
        (Op::Constant { .. } | Op::Weight { .. }, _) => {
            known(graph, value).and_then(halves).is_some_and(|(low, high)| low == high)
        }
        (Op::Concat { axis }, [a, b]) => a == b && *axis == ty.rank() - 1,
        (Op::Unary(_) | Op::Cast { .. }, [x]) => repeats(graph, *x, half, depth - 1),
        (Op::Binary(_), [x, c]) if number(graph, *c).is_some() => repeats(graph, *x, half, depth - 1),
        // Axes of 1 put in before the last one.
        (Op::Reshape { .. }, [x]) => {
            graph.ty(*x).shape.last() == ty.shape.last() && repeats(graph, *x, half, depth - 1)
        }
        _ => false,
    }
}

/// The rows of the two halves of the last axis.
fn halves(table: &Tensor) -> Option<(Vec<u8>, Vec<u8>)> {
    let row = table.shape().last()? * table.dtype().size();
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for bytes in table.bytes().chunks_exact(row.max(1)) {
        let (a, b) = bytes.split_at(row / 2);
        low.extend_from_slice(a);
        high.extend_from_slice(b);
    }
    Some((low, high))
}

/// The first half of what [`repeats`] accepted. What was computed on both halves is computed on one.
fn first_half(patch: &mut PatchBuilder<'_>, graph: &Graph, value: Value, half: &Dim) -> Result<Value, InferError> {
    if let Some((table, (low, _))) = known(graph, value).and_then(|t| Some((t, halves(t)?))) {
        let mut shape = table.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last /= 2;
        }
        if let Some(table) = Tensor::new(table.dtype(), shape, low) {
            return Ok(derived(patch, graph, value, "[..half]", table));
        }
    }
    let operands = graph.operands(value.node);
    match (graph.op(value.node), operands.as_slice()) {
        (Op::Concat { .. }, [x, _]) => Ok(patch.tap(*x)),
        (op @ (Op::Unary(_) | Op::Cast { .. }), [x]) => {
            let x = first_half(patch, graph, *x, half)?;
            patch.add(op.clone(), &[x])
        }
        (op @ Op::Binary(_), [x, c]) => {
            let operands = [first_half(patch, graph, *x, half)?, patch.tap(*c)];
            patch.add(op.clone(), &operands)
        }
        (Op::Reshape { shape }, [x]) => {
            let x = first_half(patch, graph, *x, half)?;
            let mut shape = shape.clone();
            if let Some(last) = shape.last_mut() {
                last.clone_from(half);
            }
            patch.add(Op::Reshape { shape }, &[x])
        }
        // Anything else `repeats` has refused; half of it is a slice all the same.
        _ => {
            let value = patch.tap(value);
            let mut sizes = patch.ty(value).shape.clone();
            if let Some(last) = sizes.last_mut() {
                last.clone_from(half);
            }
            let zeros = vec![Dim::from(0); sizes.len()];
            patch.add(Op::Slice { starts: zeros, steps: vec![1; sizes.len()], sizes }, &[value])
        }
    }
}
