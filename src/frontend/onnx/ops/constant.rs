//! Leaves: constants, shapes, ranges, and the branch that a constant condition takes.

use forge_ir::{BinaryOp, CompareOp, DType, Dim, Op, Tensor};

use super::super::lower::{Call, Lowered, Refusal};
use super::super::proto::data_type;
use super::super::shapes::{Known, MAX_TRACKED};

pub(super) fn constant(call: &mut Call<'_, '_>) -> Lowered {
    for name in ["sparse_value", "value_string", "value_strings"] {
        if call.attributes.has(name) {
            return Err(Refusal::unsupported(
                format!("a constant with {name} is not supported"),
                "store the constant as a dense tensor of numbers",
            ));
        }
    }
    let tensor = if let Some(proto) = call.attributes.tensor("value")? {
        match call.read_tensor(proto)? {
            Some(tensor) => tensor,
            None => {
                return Err(Refusal::unsupported(
                    "its data are external and absent",
                    "keep the external data file beside the model",
                ));
            }
        }
    } else if let Some(value) = call.attributes.float("value_float")? {
        Tensor::from_f64(DType::F32, &[], &[value])
    } else if let Some(values) = call.attributes.floats("value_floats")? {
        Tensor::from_f64(DType::F32, &[values.len()], &values)
    } else if let Some(value) = call.attributes.int("value_int")? {
        Tensor::scalar(value)
    } else if let Some(values) = call.attributes.ints("value_ints")? {
        Tensor::from_slice(&[values.len()], &values)
    } else {
        return Err(Refusal::invalid("it has no value"));
    };
    call.output_tensor(0, tensor)
}

pub(super) fn constant_of_shape(call: &mut Call<'_, '_>) -> Lowered {
    let shape = call.dims(0, "its shape")?;
    let value = match call.attributes.tensor("value")? {
        Some(proto) => call.read_tensor(proto)?.ok_or_else(|| Refusal::invalid("its value is absent"))?,
        None => Tensor::scalar(0f32),
    };
    if value.numel() != 1 {
        return Err(Refusal::invalid(format!("its value has {} elements, not 1", value.numel())));
    }
    if shape.iter().any(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(Refusal::invalid("its shape has a negative dim"));
    }
    let count = Dim::product(&shape).as_const().and_then(|c| usize::try_from(c).ok());
    let sizes: Option<Vec<usize>> = shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
    // Small ones are shape arithmetic more often than data: keep their elements in sight.
    if let (Some(count), Some(sizes)) = (count.filter(|c| *c <= MAX_TRACKED), sizes) {
        let bytes = value.bytes().repeat(count);
        if let Some(tensor) = Tensor::new(value.dtype(), sizes, bytes) {
            return call.output_tensor(0, tensor);
        }
    }
    let scalar = value.reshaped(&[]).ok_or_else(|| Refusal::invalid("its value is no scalar"))?;
    let scalar = call.tensor(scalar);
    let y = call.broadcast(scalar, shape)?;
    call.output(0, y)
}

/// The operand's shape, between `start` and `end` since opset 15.
pub(super) fn shape(call: &mut Call<'_, '_>) -> Lowered {
    let shape = call.input_type(0)?.shape;
    let rank = shape.len() as i64;
    let clamp = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let start = clamp(call.attributes.int_or("start", 0)?);
    let end = clamp(call.attributes.int_or("end", rank)?);
    let dims = shape.get(start..end.max(start)).unwrap_or_default();
    let known = Known::vector(dims).ok_or_else(|| Refusal::invalid("its operand has too many axes"))?;
    call.output_known(0, known)
}

pub(super) fn size(call: &mut Call<'_, '_>) -> Lowered {
    let count = call.input_type(0)?.numel();
    call.output_known(0, Known::scalar(count))
}

/// `[start, start + delta, ..)` below (or above) `limit`.
pub(super) fn range(call: &mut Call<'_, '_>) -> Lowered {
    let dtype = call.input_type(0)?.dtype;
    // Float ranges over sizes are integer ranges in another dtype.
    let whole = (0..3).all(|i| call.known(i).is_some_and(|k| k.dims().is_some()));
    let (start, step, len) = if dtype.is_float() && !whole {
        let mut bounds = Vec::new();
        for (index, what) in ["the start", "the limit", "the step"].into_iter().enumerate() {
            match call.floats(index, what)?.as_slice() {
                [value] => bounds.push(*value),
                _ => return Err(Refusal::invalid(format!("{what} should be one number"))),
            }
        }
        let len = ((bounds[1] - bounds[0]) / bounds[2]).ceil().max(0.0);
        if !len.is_finite() || len > 1e9 {
            return Err(Refusal::invalid(format!("a range of {len} elements")));
        }
        let start = call.scalar(bounds[0], dtype);
        (start, bounds[2], Dim::from(len as i64))
    } else {
        let one = |dims: Vec<Dim>, what: &str| match dims.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(Refusal::invalid(format!("{what} should be one number"))),
        };
        let start = one(call.dims(0, "the start")?, "the start")?;
        let limit = one(call.dims(1, "the limit")?, "the limit")?;
        let step = call.int(2, "the step")?;
        if step == 0 || step == i64::MIN {
            return Err(Refusal::invalid(format!("its step is {step}")));
        }
        let span = if step > 0 { limit.clone() - start.clone() } else { start.clone() - limit.clone() };
        let len = match span.as_const() {
            Some(span) => Dim::from(if span <= 0 { 0 } else { (span - 1) / step.abs() + 1 }),
            None => {
                if span.lower_bound().is_none_or(|low| low < 0) {
                    let (low, high) = if step > 0 { (&start, &limit) } else { (&limit, &start) };
                    call.assume(format!("{low} <= {high}"));
                }
                span.ceil_div(&Dim::from(step.abs()))
            }
        };
        if let (Some(start), Some(len)) = (start.as_const(), len.as_const())
            && usize::try_from(len).is_ok_and(|len| len <= MAX_TRACKED)
        {
            let values: Vec<i64> = (0..len).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect();
            return call.output_tensor(0, Tensor::from_i64(dtype, &[values.len()], &values));
        }
        let start = call.emit(Op::DimValue { dim: start }, &[])?;
        (call.cast(start, dtype)?, step as f64, len)
    };
    let mut y = call.emit(Op::Iota { len, dtype }, &[])?;
    if step != 1.0 {
        y = call.with_scalar(BinaryOp::Mul, y, step)?;
    }
    y = call.binary(BinaryOp::Add, y, start)?;
    call.output(0, y)
}

/// Ones on the `k`th diagonal of a matrix of the operand's shape.
pub(super) fn eye_like(call: &mut Call<'_, '_>) -> Lowered {
    let ty = call.input_type(0)?;
    let k = call.attributes.int_or("k", 0)?;
    let dtype = match call.attributes.int("dtype")? {
        Some(number) => i32::try_from(number)
            .ok()
            .and_then(data_type::to_dtype)
            .ok_or_else(|| Refusal::invalid(format!("element type {number} is not supported")))?,
        None => ty.dtype,
    };
    let [rows, columns] = ty.shape.as_slice() else {
        return Err(Refusal::invalid(format!("its operand {ty} is not a matrix")));
    };
    let row = call.emit(Op::Iota { len: rows.clone(), dtype: DType::I64 }, &[])?;
    let row = call.reshape(row, vec![rows.clone(), Dim::from(1)])?;
    let diagonal = call.tensor(Tensor::scalar(k));
    let diagonal = call.binary(BinaryOp::Add, row, diagonal)?;
    let column = call.emit(Op::Iota { len: columns.clone(), dtype: DType::I64 }, &[])?;
    let hit = call.compare(CompareOp::Eq, column, diagonal)?;
    let y = call.cast(hit, dtype)?;
    call.output(0, y)
}

/// The branch that the condition takes, inlined.
pub(super) fn if_(call: &mut Call<'_, '_>) -> Lowered {
    let condition = call.constant(0)?.ok_or_else(|| {
        Refusal::unsupported(
            "its condition depends on the data that flow through the model",
            "if it asks for a size, fix the size with a shape binding; else export one model for each branch, or compute \
             both branches and choose with Where",
        )
    })?;
    let taken = condition.to_f64().first().is_some_and(|c| *c != 0.0);
    let (then, otherwise) = (call.attributes.graph("then_branch")?, call.attributes.graph("else_branch")?);
    let branch = if taken { then } else { otherwise };
    let branch = branch.ok_or_else(|| Refusal::invalid("a branch is missing"))?;
    let outputs = call.importer.subgraph(branch, call.scope, call.opsets, &call.loc)?;
    for (index, id) in outputs.into_iter().enumerate() {
        call.output_alias(index, id)?;
    }
    Ok(())
}
