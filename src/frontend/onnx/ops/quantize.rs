//! Linear quantisation: integers that stand for `(x - zero_point) * scale`.
//!
//! Integer products are exact: matrix products in i32 as the operators say, convolutions in f64, which holds every sum
//! that an i32 holds.

use forge_ir::{BinaryOp, CompareOp, DType, Dim, ReduceOp, UnaryOp, Value};

use super::super::lower::{Call, Lowered, Refusal, normalize_axis};
use super::super::proto::data_type;
use super::contract::{convolved, numpy_matmul};

/// A scale or zero point: a scalar (or one element), or one element for each position of `axis`.
fn along(call: &mut Call<'_, '_>, parameter: Value, axis: usize, rank: usize) -> Result<Value, Refusal> {
    let shape = call.shape(parameter);
    let shape = match shape.as_slice() {
        [] => return Ok(parameter),
        [one] if one.is_one() => Vec::new(),
        [many] => {
            let mut spread = vec![Dim::from(1); rank];
            match spread.get_mut(axis) {
                Some(dim) => *dim = many.clone(),
                None => return Err(Refusal::invalid(format!("a parameter for each position of axis {axis}"))),
            }
            spread
        }
        _ => {
            return Err(Refusal::unsupported(
                format!("blocked quantisation (a parameter {}) is not supported", call.ty(parameter)),
                "quantise per tensor or per axis, or not at all, before export",
            ));
        }
    };
    call.reshape(parameter, shape)
}

/// `x - zero_point` in `to`, which holds the difference exactly.
fn centred(
    call: &mut Call<'_, '_>,
    x: Value,
    zero_point: Option<Value>,
    axis: usize,
    to: DType,
) -> Result<Value, Refusal> {
    let rank = call.rank(x);
    let x = call.cast(x, to)?;
    match zero_point {
        Some(zero) => {
            let zero = along(call, zero, axis, rank)?;
            let zero = call.cast(zero, to)?;
            call.binary(BinaryOp::Sub, x, zero)
        }
        None => Ok(x),
    }
}

fn quantisation_axis(call: &Call<'_, '_>, rank: usize) -> Result<usize, Refusal> {
    if call.attributes.int_or("block_size", 0)? != 0 {
        return Err(Refusal::unsupported(
            "blocked quantisation is not supported",
            "quantise per tensor or per axis, or not at all, before export",
        ));
    }
    let axis = call.attributes.int_or("axis", 1)?;
    // Per tensor, the axis means nothing and may be out of range.
    Ok(normalize_axis(axis, rank).unwrap_or(rank))
}

pub(super) fn dequantize_linear(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["output_dtype"]);
    let (x, scale, zero_point) = (call.input(0)?, call.input(1)?, call.optional(2)?);
    let rank = call.rank(x);
    let axis = quantisation_axis(call, rank)?;
    let shifted = centred(call, x, zero_point, axis, DType::I32)?;
    let dtype = call.dtype(scale);
    let value = call.cast(shifted, dtype)?;
    let scale = along(call, scale, axis, rank)?;
    let y = call.binary(BinaryOp::Mul, value, scale)?;
    call.output(0, y)
}

/// `saturate(round(x) + zero_point)` of dtype `to`.
fn rounded(call: &mut Call<'_, '_>, x: Value, zero_point: Option<Value>, to: DType) -> Result<Value, Refusal> {
    let (low, high) = match to {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::U16 => (0.0, 65535.0),
        DType::I16 => (-32768.0, 32767.0),
        _ => return Err(Refusal::unsupported(format!("quantising to {to} is not supported"), "quantise to 8 bits")),
    };
    let mut y = call.unary(UnaryOp::Round, x)?;
    if let Some(zero) = zero_point {
        let zero = call.cast(zero, call.dtype(y))?;
        y = call.binary(BinaryOp::Add, y, zero)?;
    }
    y = call.with_scalar(BinaryOp::Max, y, low)?;
    y = call.with_scalar(BinaryOp::Min, y, high)?;
    call.cast(y, to)
}

pub(super) fn quantize_linear(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["saturate", "precision"]);
    let stated = call.attributes.int_or("output_dtype", 0)?;
    let (x, scale, zero_point) = (call.input(0)?, call.input(1)?, call.optional(2)?);
    let rank = call.rank(x);
    let axis = quantisation_axis(call, rank)?;
    let to = match zero_point {
        Some(zero) => call.dtype(zero),
        None => i32::try_from(stated).ok().and_then(data_type::to_dtype).unwrap_or(DType::U8),
    };
    let scale = along(call, scale, axis, rank)?;
    let wide = call.dtype(x).compute_type();
    let wide = if wide.is_float() { wide } else { DType::F32 };
    let (x, scale) = (call.cast(x, wide)?, call.cast(scale, wide)?);
    let zero_point = match zero_point {
        Some(zero) => Some(along(call, zero, axis, rank)?),
        None => None,
    };
    let scaled = call.binary(BinaryOp::Div, x, scale)?;
    let y = rounded(call, scaled, zero_point, to)?;
    call.output(0, y)
}

/// Scale and zero point from the range of x, which always holds 0.
pub(super) fn dynamic_quantize_linear(call: &mut Call<'_, '_>) -> Lowered {
    let x = call.input(0)?;
    let axes: Vec<usize> = (0..call.rank(x)).collect();
    let dtype = call.dtype(x);
    let max = call.reduce(ReduceOp::Max, x, &axes, false)?;
    let max = call.with_scalar(BinaryOp::Max, max, 0.0)?;
    let min = call.reduce(ReduceOp::Min, x, &axes, false)?;
    let min = call.with_scalar(BinaryOp::Min, min, 0.0)?;
    let range = call.binary(BinaryOp::Sub, max, min)?;
    let scale = call.with_scalar(BinaryOp::Div, range, 255.0)?;
    // All zeros: any scale will do, but for 0.
    let flat = call.compare_scalar(CompareOp::Eq, scale, 0.0)?;
    let one = call.scalar(1.0, dtype);
    let scale = call.select(flat, one, scale)?;
    let negated = call.unary(UnaryOp::Neg, min)?;
    let zero_point = call.binary(BinaryOp::Div, negated, scale)?;
    let zero_point = rounded(call, zero_point, None, DType::U8)?;
    let scaled = call.binary(BinaryOp::Div, x, scale)?;
    let y = rounded(call, scaled, Some(zero_point), DType::U8)?;
    call.output(0, y)?;
    call.output(1, scale)?;
    call.output(2, zero_point)
}

/// i32 product of `a - a_zero` and `b - b_zero`; zero points may be one for each row of a, column of b.
fn integer_product(
    call: &mut Call<'_, '_>,
    [a, b]: [Value; 2],
    [a_zero, b_zero]: [Option<Value>; 2],
) -> Result<Value, Refusal> {
    let (rows, columns) = (call.rank(a).saturating_sub(2), call.rank(b).saturating_sub(1));
    let a = centred(call, a, a_zero, rows, DType::I32)?;
    let b = centred(call, b, b_zero, columns, DType::I32)?;
    numpy_matmul(call, a, b)
}

pub(super) fn matmul_integer(call: &mut Call<'_, '_>) -> Lowered {
    let operands = [call.input(0)?, call.input(1)?];
    let zeros = [call.optional(2)?, call.optional(3)?];
    let y = integer_product(call, operands, zeros)?;
    call.output(0, y)
}

/// f64 convolution of `x - x_zero` and `w - w_zero`, whose values are integers. Padding is with zeros of the result of
/// the subtraction: with the zero point.
fn integer_convolution(
    call: &mut Call<'_, '_>,
    [x, w]: [Value; 2],
    [x_zero, w_zero]: [Option<Value>; 2],
    bias: Option<Value>,
) -> Result<Value, Refusal> {
    let x = centred(call, x, x_zero, 1, DType::F64)?;
    let w = centred(call, w, w_zero, 0, DType::F64)?;
    let bias = match bias {
        Some(bias) => Some(call.cast(bias, DType::F64)?),
        None => None,
    };
    convolved(call, x, w, bias)
}

pub(super) fn conv_integer(call: &mut Call<'_, '_>) -> Lowered {
    let operands = [call.input(0)?, call.input(1)?];
    let zeros = [call.optional(2)?, call.optional(3)?];
    let y = integer_convolution(call, operands, zeros, None)?;
    let y = call.cast(y, DType::I32)?;
    call.output(0, y)
}

/// The result of an integer product, brought from the operands' scales to the result's and quantised.
fn requantised(
    call: &mut Call<'_, '_>,
    product: Value,
    [a_scale, b_scale, y_scale]: [Value; 3],
    y_zero: Value,
) -> Lowered {
    let dtype = call.dtype(y_scale).compute_type();
    let mut factor = call.binary(BinaryOp::Mul, a_scale, b_scale)?;
    factor = call.cast(factor, dtype)?;
    let y_scale = call.cast(y_scale, dtype)?;
    factor = call.binary(BinaryOp::Div, factor, y_scale)?;
    let product = call.cast(product, dtype)?;
    let scaled = call.binary(BinaryOp::Mul, product, factor)?;
    let to = call.dtype(y_zero);
    let y = rounded(call, scaled, Some(y_zero), to)?;
    call.output(0, y)
}

/// (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
pub(super) fn q_linear_matmul(call: &mut Call<'_, '_>) -> Lowered {
    let all = call.all_inputs()?;
    let Ok([a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]) = <[Value; 8]>::try_from(all) else {
        return Err(Refusal::invalid("it does not have 8 inputs"));
    };
    let product = integer_product(call, [a, b], [Some(a_zero), Some(b_zero)])?;
    let rank = call.rank(product);
    let a_scale = along(call, a_scale, rank.saturating_sub(2), rank)?;
    let b_scale = along(call, b_scale, rank.saturating_sub(1), rank)?;
    let y_scale = along(call, y_scale, rank.saturating_sub(2), rank)?;
    let y_zero = along(call, y_zero, rank.saturating_sub(2), rank)?;
    requantised(call, product, [a_scale, b_scale, y_scale], y_zero)
}

/// (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias?)
pub(super) fn q_linear_conv(call: &mut Call<'_, '_>) -> Lowered {
    let bias = call.optional(8)?;
    let first = (0..8).map(|i| call.input(i)).collect::<Result<Vec<Value>, Refusal>>()?;
    let Ok([x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero]) = <[Value; 8]>::try_from(first) else {
        return Err(Refusal::invalid("it has fewer than 8 inputs"));
    };
    let product = integer_convolution(call, [x, w], [Some(x_zero), Some(w_zero)], bias)?;
    let rank = call.rank(product);
    let x_scale = along(call, x_scale, 1, rank)?;
    let w_scale = along(call, w_scale, 1, rank)?;
    let y_scale = along(call, y_scale, 1, rank)?;
    let y_zero = along(call, y_zero, 1, rank)?;
    requantised(call, product, [x_scale, w_scale, y_scale], y_zero)
}
