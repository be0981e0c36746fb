//! Typing of elementwise ops, reductions and scans.

use super::{Call, Inferred};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{BinaryOp, CompareOp, ReduceOp, UnaryOp};
use crate::tensor::TensorType;

pub(super) fn unary(call: &Call<'_>, op: UnaryOp) -> Inferred {
    let [x] = call.exactly()?;
    match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Relu => call.numeric(x)?,
        UnaryOp::Not => logical_or_bitwise(call, x)?,
        UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Round
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Reciprocal
        | UnaryOp::Exp
        | UnaryOp::Log
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Tan
        | UnaryOp::Asin
        | UnaryOp::Acos
        | UnaryOp::Atan
        | UnaryOp::Sinh
        | UnaryOp::Cosh
        | UnaryOp::Tanh
        | UnaryOp::Asinh
        | UnaryOp::Acosh
        | UnaryOp::Atanh
        | UnaryOp::Erf
        | UnaryOp::Sigmoid
        | UnaryOp::Softplus
        | UnaryOp::IsNan
        | UnaryOp::IsInf => call.float(x)?,
    }
    let dtype = if matches!(op, UnaryOp::IsNan | UnaryOp::IsInf) { DType::Bool } else { x.dtype };
    call.one(dtype, x.shape.clone())
}

pub(super) fn binary(call: &Call<'_>, op: BinaryOp) -> Inferred {
    let [a, b] = call.exactly()?;
    call.same_dtype(&[a, b])?;
    match op {
        BinaryOp::Add
        | BinaryOp::Sub
        | BinaryOp::Mul
        | BinaryOp::Div
        | BinaryOp::Rem
        | BinaryOp::Mod
        | BinaryOp::Pow
        | BinaryOp::Min
        | BinaryOp::Max => call.numeric(a)?,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => logical_or_bitwise(call, a)?,
        BinaryOp::Shl | BinaryOp::Shr => {
            if !a.dtype.is_int() {
                return call.fail(format!("operand {a} is not of an integer dtype"));
            }
        }
    }
    call.one(a.dtype, call.broadcast(&a.shape, &b.shape)?)
}

pub(super) fn compare(call: &Call<'_>, op: CompareOp) -> Inferred {
    let [a, b] = call.exactly()?;
    call.same_dtype(&[a, b])?;
    match op {
        // Bools are equal or not; they have no order.
        CompareOp::Eq | CompareOp::Ne => {}
        CompareOp::Lt | CompareOp::Le | CompareOp::Gt | CompareOp::Ge => call.numeric(a)?,
    }
    call.one(DType::Bool, call.broadcast(&a.shape, &b.shape)?)
}

pub(super) fn select(call: &Call<'_>) -> Inferred {
    let [condition, then, otherwise] = call.exactly()?;
    if condition.dtype != DType::Bool {
        return call.fail(format!("condition {condition} is not bool"));
    }
    call.same_dtype(&[then, otherwise])?;
    let branches = call.broadcast(&then.shape, &otherwise.shape)?;
    call.one(then.dtype, call.broadcast(&condition.shape, &branches)?)
}

pub(super) fn reduce(call: &Call<'_>, op: ReduceOp, axes: &[usize], keep_dims: bool) -> Inferred {
    let [x] = call.exactly()?;
    match op {
        ReduceOp::Mean => call.float(x)?,
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min | ReduceOp::Prod => call.numeric(x)?,
    }
    if !axes.windows(2).all(|pair| pair[0] < pair[1]) {
        return call.fail(format!("axes {axes:?} are not sorted and distinct"));
    }
    for axis in axes {
        call.axis(*axis, x)?;
    }
    call.one(x.dtype, reduced(&x.shape, axes, keep_dims))
}

pub(super) fn arg_reduce(call: &Call<'_>, axis: usize, keep_dims: bool) -> Inferred {
    let [x] = call.exactly()?;
    call.numeric(x)?;
    call.axis(axis, x)?;
    if x.shape[axis].as_const() == Some(0) {
        return call.fail(format!("axis {axis} of {x} is empty: it has no extreme"));
    }
    call.one(DType::I64, reduced(&x.shape, &[axis], keep_dims))
}

pub(super) fn cum_sum(call: &Call<'_>, axis: usize) -> Inferred {
    let [x] = call.exactly()?;
    call.numeric(x)?;
    call.axis(axis, x)?;
    call.one(x.dtype, x.shape.clone())
}

fn logical_or_bitwise(call: &Call<'_>, x: &TensorType) -> Result<(), super::InferError> {
    if x.dtype.is_float() { call.fail(format!("operand {x} is neither bool nor of an integer dtype")) } else { Ok(()) }
}

fn reduced(shape: &[Dim], axes: &[usize], keep_dims: bool) -> Vec<Dim> {
    let mut out = Vec::with_capacity(shape.len());
    for (axis, dim) in shape.iter().enumerate() {
        if !axes.contains(&axis) {
            out.push(dim.clone());
        } else if keep_dims {
            out.push(Dim::from(1i64));
        }
    }
    out
}
