//! Activation functions, composed from elementwise ops where the IR has none of their own.
//!
//! The forms let NaN through and keep the branch that ONNX's formulas name, so that an overflowing `exp` of the
//! branch not taken does no harm.

use forge_ir::{BinaryOp, CompareOp, GeluApproximate, Op, UnaryOp, Value};

use super::super::lower::{Call, Lowered, Refusal};

/// `x < 0 ? negative : x`
fn below_zero(call: &mut Call<'_, '_>, x: Value, negative: Value) -> Result<Value, Refusal> {
    let is_negative = call.compare_scalar(CompareOp::Lt, x, 0.0)?;
    call.select(is_negative, negative, x)
}

/// `alpha * (exp(x) - 1)`
fn scaled_expm1(call: &mut Call<'_, '_>, x: Value, alpha: f64) -> Result<Value, Refusal> {
    let exp = call.unary(UnaryOp::Exp, x)?;
    let shifted = call.with_scalar(BinaryOp::Sub, exp, 1.0)?;
    if alpha == 1.0 { Ok(shifted) } else { call.with_scalar(BinaryOp::Mul, shifted, alpha) }
}

/// `max(0, min(1, alpha * x + beta))`
fn hard_sigmoid_of(call: &mut Call<'_, '_>, x: Value, alpha: f64, beta: f64) -> Result<Value, Refusal> {
    let scaled = call.with_scalar(BinaryOp::Mul, x, alpha)?;
    let shifted = call.with_scalar(BinaryOp::Add, scaled, beta)?;
    let below = call.with_scalar(BinaryOp::Min, shifted, 1.0)?;
    call.with_scalar(BinaryOp::Max, below, 0.0)
}

pub(super) fn leaky_relu(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 0.01)?;
    let x = call.input(0)?;
    let scaled = call.with_scalar(BinaryOp::Mul, x, alpha)?;
    let y = below_zero(call, x, scaled)?;
    call.output(0, y)
}

pub(super) fn p_relu(call: &mut Call<'_, '_>) -> Lowered {
    let (x, slope) = (call.input(0)?, call.input(1)?);
    let scaled = call.binary(BinaryOp::Mul, x, slope)?;
    let y = below_zero(call, x, scaled)?;
    call.output(0, y)
}

pub(super) fn elu(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.0)?;
    let x = call.input(0)?;
    let negative = scaled_expm1(call, x, alpha)?;
    let y = below_zero(call, x, negative)?;
    call.output(0, y)
}

pub(super) fn selu(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.673_263_192_176_818_8)?;
    let gamma = call.attributes.float_or("gamma", 1.050_701_022_148_132_3)?;
    let x = call.input(0)?;
    let negative = scaled_expm1(call, x, alpha)?;
    let y = below_zero(call, x, negative)?;
    let y = call.with_scalar(BinaryOp::Mul, y, gamma)?;
    call.output(0, y)
}

pub(super) fn celu(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.0)?;
    let x = call.input(0)?;
    let scaled = call.with_scalar(BinaryOp::Div, x, alpha)?;
    let negative = scaled_expm1(call, scaled, alpha)?;
    let y = below_zero(call, x, negative)?;
    call.output(0, y)
}

pub(super) fn hard_sigmoid(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 0.2)?;
    let beta = call.attributes.float_or("beta", 0.5)?;
    let x = call.input(0)?;
    let y = hard_sigmoid_of(call, x, alpha, beta)?;
    call.output(0, y)
}

pub(super) fn hard_swish(call: &mut Call<'_, '_>) -> Lowered {
    let x = call.input(0)?;
    let gate = hard_sigmoid_of(call, x, 1.0 / 6.0, 0.5)?;
    let y = call.binary(BinaryOp::Mul, x, gate)?;
    call.output(0, y)
}

pub(super) fn mish(call: &mut Call<'_, '_>) -> Lowered {
    let x = call.input(0)?;
    let softplus = call.unary(UnaryOp::Softplus, x)?;
    let gate = call.unary(UnaryOp::Tanh, softplus)?;
    let y = call.binary(BinaryOp::Mul, x, gate)?;
    call.output(0, y)
}

pub(super) fn softsign(call: &mut Call<'_, '_>) -> Lowered {
    let x = call.input(0)?;
    let magnitude = call.unary(UnaryOp::Abs, x)?;
    let divisor = call.with_scalar(BinaryOp::Add, magnitude, 1.0)?;
    let y = call.binary(BinaryOp::Div, x, divisor)?;
    call.output(0, y)
}

pub(super) fn thresholded_relu(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.0)?;
    let x = call.input(0)?;
    let above = call.compare_scalar(CompareOp::Gt, x, alpha)?;
    let dtype = call.dtype(x);
    let zero = call.scalar(0.0, dtype);
    let y = call.select(above, x, zero)?;
    call.output(0, y)
}

pub(super) fn shrink(call: &mut Call<'_, '_>) -> Lowered {
    let lambda = call.attributes.float_or("lambd", 0.5)?;
    let bias = call.attributes.float_or("bias", 0.0)?;
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let below = call.compare_scalar(CompareOp::Lt, x, -lambda)?;
    let above = call.compare_scalar(CompareOp::Gt, x, lambda)?;
    let (raised, lowered) = (call.with_scalar(BinaryOp::Add, x, bias)?, call.with_scalar(BinaryOp::Sub, x, bias)?);
    let zero = call.scalar(0.0, dtype);
    let upper = call.select(above, lowered, zero)?;
    let y = call.select(below, raised, upper)?;
    call.output(0, y)
}

pub(super) fn gelu(call: &mut Call<'_, '_>) -> Lowered {
    let approximate = call.attributes.string_or("approximate", "none")?;
    let approximate = GeluApproximate::from_name(&approximate)
        .ok_or_else(|| Refusal::invalid(format!("approximate '{approximate}' is neither none nor tanh")))?;
    let x = call.input(0)?;
    let y = call.gelu(x, approximate)?;
    call.output(0, y)
}

pub(super) fn swish(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.0)?;
    let x = call.input(0)?;
    let y = swish_of(call, x, alpha)?;
    call.output(0, y)
}

/// `x * sigmoid(alpha * x)`
pub(super) fn swish_of(call: &mut Call<'_, '_>, x: Value, alpha: f64) -> Result<Value, Refusal> {
    if alpha == 1.0 {
        return call.emit(Op::Silu, &[x]);
    }
    let scaled = call.with_scalar(BinaryOp::Mul, x, alpha)?;
    let gate = call.unary(UnaryOp::Sigmoid, scaled)?;
    call.binary(BinaryOp::Mul, x, gate)
}
