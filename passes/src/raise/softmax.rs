//! Softmax and its logarithm.
//!
//! Only the form that subtracts the maximum: without it the exponentials overflow where softmax does not. A row of all
//! -inf is NaN on both sides.

use forge_ir::{BinaryOp, Graph, InferError, NodeId, Op, Patch, ReduceOp, UnaryOp, Value};

use super::rounding;
use crate::matching::Matcher;

type Rewrite = Result<Option<Patch>, InferError>;

/// (x, axis) of `x - max x` along one axis.
fn shifted(m: &mut Matcher<'_>, value: Value) -> Option<(Value, usize)> {
    let (x, largest) = m.binary(value, BinaryOp::Sub)?;
    let axis = reduced(m, largest, ReduceOp::Max, x)?;
    Some((x, axis))
}

/// The one axis over which `value` reduces `x`, keeping it as 1.
fn reduced(m: &mut Matcher<'_>, value: Value, wanted: ReduceOp, x: Value) -> Option<usize> {
    m.op(value, |op, operands| match (op, operands) {
        (Op::Reduce { op, axes, keep_dims: true }, [operand]) if *op == wanted && *operand == x => {
            <[usize; 1]>::try_from(axes.as_slice()).ok().map(|[axis]| axis)
        }
        _ => None,
    })
}

pub(super) fn softmax(graph: &Graph, node: NodeId) -> Rewrite {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let found = m.attempt(|m| {
        let (powers, sum) = match m.binary(root, BinaryOp::Div) {
            Some(pair) => pair,
            None => {
                let pair = m.binary(root, BinaryOp::Mul)?;
                m.either(pair, |m, powers, inverse| Some((powers, m.unary(inverse, UnaryOp::Reciprocal)?)))?
            }
        };
        let axis = reduced(m, sum, ReduceOp::Sum, powers)?;
        let exponent = m.unary(powers, UnaryOp::Exp)?;
        let (x, same) = shifted(m, exponent)?;
        (axis == same && m.ty(x) == m.ty(root) && m.closed(root)).then_some((x, axis))
    });
    let Some((x, axis)) = found else { return Ok(None) };
    rounding(graph, root, Op::Softmax { axis }, &[x], "softmax")
}

pub(super) fn log_softmax(graph: &Graph, node: NodeId) -> Rewrite {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let found = m.attempt(|m| {
        let (exponent, log) = m.binary(root, BinaryOp::Sub)?;
        let sum = m.unary(log, UnaryOp::Log)?;
        let (x, axis) = shifted(m, exponent)?;
        let powers = m.op(sum, |op, operands| match (op, operands) {
            (Op::Reduce { op: ReduceOp::Sum, axes, keep_dims: true }, [powers]) if *axes == [axis] => Some(*powers),
            _ => None,
        })?;
        let same = m.unary(powers, UnaryOp::Exp)? == exponent;
        (same && m.ty(x) == m.ty(root) && m.closed(root)).then_some((x, axis))
    });
    let Some((x, axis)) = found else { return Ok(None) };
    rounding(graph, root, Op::LogSoftmax { axis }, &[x], "log softmax")
}
