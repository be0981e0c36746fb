//! Reductions, scans, and the softmax family.

use forge_ir::{ArgOp, BinaryOp, CompareOp, DType, Dim, Op, ReduceOp, UnaryOp, Value};

use super::super::lower::{Call, Lowered, Refusal, normalize_axes, normalize_axis};

/// A reduction with what it does to the elements before and to the result after.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain(ReduceOp),
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

pub(super) fn reduce(call: &mut Call<'_, '_>, kind: Kind) -> Lowered {
    let keep = call.attributes.int_or("keepdims", 1)? != 0;
    let noop = call.attributes.flag("noop_with_empty_axes")?;
    let since = if kind == Kind::Plain(ReduceOp::Sum) { 13 } else { 18 };
    let rank = call.input_type(0)?.rank();
    let axes = match call.axes(since)?.filter(|axes| !axes.is_empty()) {
        Some(axes) => normalize_axes(&axes, rank)?,
        None if noop => Vec::new(),
        None => (0..rank).collect(),
    };
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let y = match kind {
        Kind::Plain(ReduceOp::Mean) if !dtype.is_float() => integer_mean(call, x, &axes, keep)?,
        Kind::Plain(op) if dtype == DType::Bool => {
            let wide = call.cast(x, DType::U8)?;
            let reduced = call.reduce(op, wide, &axes, keep)?;
            call.cast(reduced, DType::Bool)?
        }
        Kind::Plain(op) => call.reduce(op, x, &axes, keep)?,
        Kind::L1 => {
            let magnitude = call.unary(UnaryOp::Abs, x)?;
            call.reduce(ReduceOp::Sum, magnitude, &axes, keep)?
        }
        Kind::LogSum => in_compute_type(call, x, |call, x| {
            let sum = call.reduce(ReduceOp::Sum, x, &axes, keep)?;
            call.unary(UnaryOp::Log, sum)
        })?,
        Kind::SumSquare => in_compute_type(call, x, |call, x| sum_square(call, x, &axes, keep))?,
        Kind::L2 => in_compute_type(call, x, |call, x| {
            let sum = sum_square(call, x, &axes, keep)?;
            if dtype.is_float() {
                return call.unary(UnaryOp::Sqrt, sum);
            }
            let wide = call.cast(sum, DType::F64)?;
            let root = call.unary(UnaryOp::Sqrt, wide)?;
            call.cast(root, dtype)
        })?,
        Kind::LogSumExp => in_compute_type(call, x, |call, x| log_sum_exp(call, x, &axes, keep))?,
    };
    call.output(0, y)
}

/// A half-precision intermediate that overflows where the result does not would be an artefact: several steps are done
/// in the compute type and rounded once.
fn in_compute_type<'c, 'm>(
    call: &mut Call<'c, 'm>,
    x: Value,
    f: impl FnOnce(&mut Call<'c, 'm>, Value) -> Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    let dtype = call.dtype(x);
    let wide = call.cast(x, dtype.compute_type())?;
    let y = f(call, wide)?;
    call.cast(y, dtype)
}

fn sum_square(call: &mut Call<'_, '_>, x: Value, axes: &[usize], keep: bool) -> Result<Value, Refusal> {
    let square = call.binary(BinaryOp::Mul, x, x)?;
    call.reduce(ReduceOp::Sum, square, axes, keep)
}

fn integer_mean(call: &mut Call<'_, '_>, x: Value, axes: &[usize], keep: bool) -> Result<Value, Refusal> {
    let ty = call.ty(x);
    let count = Dim::product(axes.iter().map(|a| &ty.shape[*a]));
    let sum = call.reduce(ReduceOp::Sum, x, axes, keep)?;
    let count = call.emit(Op::DimValue { dim: count }, &[])?;
    let count = call.cast(count, ty.dtype)?;
    call.binary(BinaryOp::Div, sum, count)
}

/// `m + log(sum(exp(x - m)))` with m the maximum, or 0 where that is infinite (so that a row of -inf gives -inf).
fn log_sum_exp(call: &mut Call<'_, '_>, x: Value, axes: &[usize], keep: bool) -> Result<Value, Refusal> {
    let dtype = call.dtype(x);
    let max = call.reduce(ReduceOp::Max, x, axes, true)?;
    let infinite = call.unary(UnaryOp::IsInf, max)?;
    let zero = call.scalar(0.0, dtype);
    let shift = call.select(infinite, zero, max)?;
    let shifted = call.binary(BinaryOp::Sub, x, shift)?;
    let exp = call.unary(UnaryOp::Exp, shifted)?;
    let sum = call.reduce(ReduceOp::Sum, exp, axes, true)?;
    let log = call.unary(UnaryOp::Log, sum)?;
    let y = call.binary(BinaryOp::Add, log, shift)?;
    if keep {
        return Ok(y);
    }
    let shape = call.shape(y);
    let kept = shape.into_iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d).collect();
    call.reshape(y, kept)
}

pub(super) fn arg(call: &mut Call<'_, '_>, op: ArgOp) -> Lowered {
    let axis = call.attributes.int_or("axis", 0)?;
    let keep_dims = call.attributes.int_or("keepdims", 1)? != 0;
    let select_last = call.attributes.flag("select_last_index")?;
    let x = call.input(0)?;
    let axis = normalize_axis(axis, call.rank(x))?;
    let y = call.emit(Op::ArgReduce { op, axis, keep_dims, select_last }, &[x])?;
    call.output(0, y)
}

pub(super) fn cum_sum(call: &mut Call<'_, '_>) -> Lowered {
    let exclusive = call.attributes.flag("exclusive")?;
    let reverse = call.attributes.flag("reverse")?;
    let axis = call.int(1, "the axis")?;
    let x = call.input(0)?;
    let axis = normalize_axis(axis, call.rank(x))?;
    let y = call.emit(Op::CumSum { axis, exclusive, reverse }, &[x])?;
    call.output(0, y)
}

/// 1 at the first maximum of each row and 0 elsewhere; rows as in [`softmax`].
pub(super) fn hardmax(call: &mut Call<'_, '_>) -> Lowered {
    let y = along_rows(call, |call, x, axis| {
        let (ty, rank) = (call.ty(x), call.rank(x));
        let op = Op::ArgReduce { op: ArgOp::Max, axis, keep_dims: true, select_last: false };
        let best = call.emit(op, &[x])?;
        let positions = call.emit(Op::Iota { len: ty.shape[axis].clone(), dtype: DType::I64 }, &[])?;
        let mut along = vec![Dim::from(1); rank];
        along[axis] = ty.shape[axis].clone();
        let positions = call.reshape(positions, along)?;
        let hit = call.compare(CompareOp::Eq, positions, best)?;
        call.cast(hit, ty.dtype)
    })?;
    call.output(0, y)
}

/// Softmax or log-softmax.
pub(super) fn softmax(call: &mut Call<'_, '_>, log: bool) -> Lowered {
    let normalise = |axis| if log { Op::LogSoftmax { axis } } else { Op::Softmax { axis } };
    let y = along_rows(call, |call, x, axis| call.emit(normalise(axis), &[x]))?;
    call.output(0, y)
}

/// Applies `f(call, x, axis)` to the rows that the softmax family means. Until opset 12 the operand is flattened to two
/// axes at `axis` (default 1) and the second one is a row; from 13 on `axis` (default -1) is.
fn along_rows<'c, 'm>(
    call: &mut Call<'c, 'm>,
    f: impl FnOnce(&mut Call<'c, 'm>, Value, usize) -> Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    let flattens = call.version < 13;
    let axis = call.attributes.int_or("axis", if flattens { 1 } else { -1 })?;
    let x = call.input(0)?;
    let shape = call.shape(x);
    let rank = shape.len();
    // Before 13 `axis` may be the rank: then each element is a row of its own.
    let axis =
        if flattens && usize::try_from(axis).is_ok_and(|a| a == rank) { rank } else { normalize_axis(axis, rank)? };
    if !flattens || axis + 1 == rank {
        return f(call, x, axis);
    }
    let flat = vec![Dim::product(&shape[..axis]), Dim::product(&shape[axis..])];
    let matrix = call.reshape(x, flat)?;
    let y = f(call, matrix, 1)?;
    call.reshape(y, shape)
}
