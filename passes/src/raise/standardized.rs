//! What the norms share: division by a root of a mean of squares, and parameters along the last axes.

use forge_ir::{BinaryOp, Dim, Graph, InferError, Op, PatchBuilder, ReduceOp, UnaryOp, Value};

use crate::matching::{Matcher, number, without_leading_ones};

/// `x` normalised over its axes from `axis` on.
pub(super) struct Normalized {
    pub(super) x: Value,
    pub(super) axis: usize,
    pub(super) epsilon: f64,
}

/// `x / sqrt(mean(x^2) + epsilon)`, as a quotient or a product.
pub(super) fn over_root_mean_square(m: &mut Matcher<'_>, value: Value) -> Option<Normalized> {
    let quotient = m.attempt(|m| {
        let (x, deviation) = m.binary(value, BinaryOp::Div)?;
        let sum = m.unary(deviation, UnaryOp::Sqrt)?;
        with_mean_square(m, x, sum)
    });
    quotient.or_else(|| {
        m.attempt(|m| {
            let pair = m.binary(value, BinaryOp::Mul)?;
            m.either(pair, |m, x, inverse| {
                let sum = inverse_root(m, inverse)?;
                with_mean_square(m, x, sum)
            })
        })
    })
}

/// `(x - mean x) / sqrt(mean((x - mean x)^2) + epsilon)`.
pub(super) fn standardized(m: &mut Matcher<'_>, value: Value) -> Option<Normalized> {
    m.attempt(|m| {
        let inner = over_root_mean_square(m, value)?;
        let (x, axis) = centered(m, inner.x)?;
        (axis == inner.axis).then_some(Normalized { x, axis, epsilon: inner.epsilon })
    })
}

/// (x, first axis) of `x - mean x` over the last axes.
pub(super) fn centered(m: &mut Matcher<'_>, value: Value) -> Option<(Value, usize)> {
    m.attempt(|m| {
        let (x, mean) = m.binary(value, BinaryOp::Sub)?;
        let (same, axis) = m.reduce_last(mean, ReduceOp::Mean)?;
        (same == x).then_some((x, axis))
    })
}

/// `sum` of `1/sqrt(sum)`.
fn inverse_root(m: &mut Matcher<'_>, value: Value) -> Option<Value> {
    m.unary(value, UnaryOp::Rsqrt)
        .or_else(|| m.attempt(|m| m.unary(value, UnaryOp::Reciprocal).and_then(|root| m.unary(root, UnaryOp::Sqrt))))
        .or_else(|| {
            m.attempt(|m| {
                let (one, root) = m.binary(value, BinaryOp::Div)?;
                (number(m.graph(), one) == Some(1.0)).then_some(())?;
                m.unary(root, UnaryOp::Sqrt)
            })
        })
        .or_else(|| m.with_number(value, BinaryOp::Pow).filter(|(_, exponent)| *exponent == -0.5).map(|(sum, _)| sum))
}

/// `sum = mean(x^2) + epsilon`.
fn with_mean_square(m: &mut Matcher<'_>, x: Value, sum: Value) -> Option<Normalized> {
    let (mean, epsilon) = m.with_number(sum, BinaryOp::Add)?;
    let (square, axis) = m.reduce_last(mean, ReduceOp::Mean)?;
    let base = match m.with_number(square, BinaryOp::Pow) {
        Some((base, 2.0)) => base,
        Some(_) => return None,
        None => {
            let (a, b) = m.binary(square, BinaryOp::Mul)?;
            (a == b).then_some(a)?
        }
    };
    (base == x && epsilon.is_finite() && epsilon >= 0.0).then_some(Normalized { x, axis, epsilon })
}

/// Whether `value` can be a parameter of shape `shape`, the last axes of what it scales: of that shape, or with 1s
/// before it.
pub(super) fn is_parameter(graph: &Graph, value: Value, shape: &[Dim]) -> bool {
    without_leading_ones(&graph.ty(value).shape, shape.len()).is_some_and(|rest| rest == shape)
}

/// Taps `value` as a parameter of shape `shape`.
pub(super) fn parameter(patch: &mut PatchBuilder<'_>, value: Value, shape: &[Dim]) -> Result<Value, InferError> {
    let value = patch.tap(value);
    if patch.ty(value).shape == shape { Ok(value) } else { patch.add(Op::Reshape { shape: shape.to_vec() }, &[value]) }
}
