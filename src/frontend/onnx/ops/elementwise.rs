//! Elementwise operators.

use forge_ir::{BinaryOp, CompareOp, DType, Op, UnaryOp, Value};

use super::super::lower::{Call, Lowered, Refusal};
use super::super::proto::data_type;

pub(super) fn unary(call: &mut Call<'_, '_>, op: UnaryOp) -> Lowered {
    call.attributes.ignore(&["consumed_inputs"]);
    let x = call.input(0)?;
    let y = call.unary(op, x)?;
    call.output(0, y)
}

pub(super) fn binary(call: &mut Call<'_, '_>, op: BinaryOp) -> Lowered {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let y = call.binary(op, a, b)?;
    call.output(0, y)
}

pub(super) fn compare(call: &mut Call<'_, '_>, op: CompareOp) -> Lowered {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let y = call.compare(op, a, b)?;
    call.output(0, y)
}

/// Any number of operands, combined from the left.
pub(super) fn variadic(call: &mut Call<'_, '_>, op: BinaryOp) -> Lowered {
    let y = fold(call, op)?;
    call.output(0, y)
}

fn fold(call: &mut Call<'_, '_>, op: BinaryOp) -> Result<Value, Refusal> {
    let operands = call.all_inputs()?;
    let mut acc = operands[0];
    for operand in &operands[1..] {
        acc = call.binary(op, acc, *operand)?;
    }
    Ok(acc)
}

pub(super) fn mean(call: &mut Call<'_, '_>) -> Lowered {
    let count = call.input_count();
    let sum = fold(call, BinaryOp::Add)?;
    let y = if count == 1 { sum } else { call.with_scalar(BinaryOp::Div, sum, count as f64)? };
    call.output(0, y)
}

pub(super) fn bit_shift(call: &mut Call<'_, '_>) -> Lowered {
    let op = match call.attributes.string_or("direction", "")?.as_str() {
        "LEFT" => BinaryOp::Shl,
        "RIGHT" => BinaryOp::Shr,
        other => return Err(Refusal::invalid(format!("direction '{other}' is neither LEFT nor RIGHT"))),
    };
    binary(call, op)
}

pub(super) fn modulo(call: &mut Call<'_, '_>) -> Lowered {
    let op = if call.attributes.flag("fmod")? { BinaryOp::Rem } else { BinaryOp::Mod };
    binary(call, op)
}

/// The exponent may be of another dtype since opset 12; the result has the base's.
pub(super) fn pow(call: &mut Call<'_, '_>) -> Lowered {
    let (base, exponent) = (call.input(0)?, call.input(1)?);
    let (x, e) = (call.dtype(base), call.dtype(exponent));
    let y = if x == e {
        call.binary(BinaryOp::Pow, base, exponent)?
    } else if x.is_float() || !e.is_float() {
        let exponent = call.cast(exponent, x)?;
        call.binary(BinaryOp::Pow, base, exponent)?
    } else {
        let base = call.cast(base, e)?;
        let power = call.binary(BinaryOp::Pow, base, exponent)?;
        call.cast(power, x)?
    };
    call.output(0, y)
}

pub(super) fn cast(call: &mut Call<'_, '_>) -> Lowered {
    // `saturate` and `round_mode` concern 8-bit floats only.
    call.attributes.ignore(&["saturate", "round_mode"]);
    let number = call.attributes.int("to")?.ok_or_else(|| Refusal::invalid("attribute 'to' is missing"))?;
    let number = i32::try_from(number).unwrap_or(-1);
    let to = data_type::to_dtype(number).ok_or_else(|| {
        Refusal::unsupported(
            format!("a cast to {} is not supported", data_type::name(number)),
            "export the model with bool, integer, f16, bf16, f32 or f64 tensors",
        )
    })?;
    if call.input_type(0)?.dtype == to {
        let id = call.entry_id(0)?;
        return call.output_alias(0, id);
    }
    let x = call.input(0)?;
    let y = call.cast(x, to)?;
    call.output(0, y)
}

pub(super) fn cast_like(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["saturate", "round_mode"]);
    let to = call.input_type(1)?.dtype;
    let x = call.input(0)?;
    let y = call.cast(x, to)?;
    call.output(0, y)
}

pub(super) fn clip(call: &mut Call<'_, '_>) -> Lowered {
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let (low, high) = if call.version < 11 {
        let (low, high) = (call.attributes.float("min")?, call.attributes.float("max")?);
        (low.map(|v| call.scalar(v, dtype)), high.map(|v| call.scalar(v, dtype)))
    } else {
        (call.optional(1)?, call.optional(2)?)
    };
    // min(max(x, low), high): NaN passes through, and `high` wins where the bounds cross.
    let mut y = x;
    if let Some(low) = low {
        y = call.binary(BinaryOp::Max, y, low)?;
    }
    if let Some(high) = high {
        y = call.binary(BinaryOp::Min, y, high)?;
    }
    call.output(0, y)
}

pub(super) fn is_inf(call: &mut Call<'_, '_>) -> Lowered {
    let negative = call.attributes.int_or("detect_negative", 1)? != 0;
    let positive = call.attributes.int_or("detect_positive", 1)? != 0;
    let x = call.input(0)?;
    let y = match (negative, positive) {
        (true, true) => call.unary(UnaryOp::IsInf, x)?,
        (false, true) => call.compare_scalar(CompareOp::Eq, x, f64::INFINITY)?,
        (true, false) => call.compare_scalar(CompareOp::Eq, x, f64::NEG_INFINITY)?,
        (false, false) => {
            let no = call.scalar(0.0, DType::Bool);
            let shape = call.shape(x);
            call.broadcast(no, shape)?
        }
    };
    call.output(0, y)
}

pub(super) fn select(call: &mut Call<'_, '_>) -> Lowered {
    let (condition, then, otherwise) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let y = call.emit(Op::Select, &[condition, then, otherwise])?;
    call.output(0, y)
}
