//! Typing of gathers, scatters and top-k.

use super::{Call, InferError, Inferred};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::ScatterReduce;
use crate::tensor::TensorType;

pub(super) fn gather(call: &Call<'_>, axis: usize) -> Inferred {
    let [x, indices] = call.exactly()?;
    call.index_dtype(indices)?;
    call.axis(axis, x)?;
    let mut shape = x.shape[..axis].to_vec();
    shape.extend_from_slice(&indices.shape);
    shape.extend_from_slice(&x.shape[axis + 1..]);
    call.one(x.dtype, shape)
}

pub(super) fn gather_elements(call: &Call<'_>, axis: usize) -> Inferred {
    let [x, indices] = call.exactly()?;
    elements(call, x, indices, axis)?;
    call.one(x.dtype, indices.shape.clone())
}

/// What the element forms of gather and scatter share: `indices` lies within `x` on every axis but `axis`.
fn elements(call: &Call<'_>, x: &TensorType, indices: &TensorType, axis: usize) -> Result<(), InferError> {
    call.index_dtype(indices)?;
    call.axis(axis, x)?;
    call.rank(indices, x.rank(), "indices")?;
    for (at, (dim, count)) in x.shape.iter().zip(&indices.shape).enumerate() {
        if at != axis && super::is_negative(&(dim.clone() - count.clone())) {
            return call.fail(format!("indices {indices} exceed {x} in axis {at}"));
        }
    }
    Ok(())
}

pub(super) fn gather_nd(call: &Call<'_>, batch_dims: usize) -> Inferred {
    let [x, indices] = call.exactly()?;
    let depth = tuple_len(call, x, indices, batch_dims)?;
    let mut shape = Vec::new();
    for axis in 0..batch_dims {
        shape.push(call.unify(&x.shape[axis], &indices.shape[axis], "batch dims")?);
    }
    shape.extend_from_slice(&indices.shape[batch_dims..indices.rank() - 1]);
    shape.extend_from_slice(&x.shape[batch_dims + depth..]);
    call.one(x.dtype, shape)
}

/// The length of an index tuple: the last dim of `indices`, which decides the result's rank, so it must be constant.
fn tuple_len(call: &Call<'_>, x: &TensorType, indices: &TensorType, batch_dims: usize) -> Result<usize, InferError> {
    call.index_dtype(indices)?;
    if batch_dims >= indices.rank() || batch_dims >= x.rank() {
        return call.fail(format!("{batch_dims} batch dims are too many for {x} and indices {indices}"));
    }
    let last = indices.shape.last().and_then(Dim::as_const).and_then(|d| usize::try_from(d).ok());
    match last {
        Some(depth) if depth >= 1 && depth <= x.rank() - batch_dims => Ok(depth),
        _ => call.fail(format!(
            "indices {indices} must end in a constant from 1 to {}, to index {x}",
            x.rank() - batch_dims
        )),
    }
}

pub(super) fn scatter_elements(call: &Call<'_>, axis: usize, reduce: ScatterReduce) -> Inferred {
    let [x, indices, updates] = call.exactly()?;
    combinable(call, x, updates, reduce)?;
    elements(call, x, indices, axis)?;
    call.shape_is(updates, &indices.shape, "updates")?;
    call.one(x.dtype, x.shape.clone())
}

pub(super) fn scatter_nd(call: &Call<'_>, reduce: ScatterReduce) -> Inferred {
    let [x, indices, updates] = call.exactly()?;
    combinable(call, x, updates, reduce)?;
    let depth = tuple_len(call, x, indices, 0)?;
    let mut expected = indices.shape[..indices.rank() - 1].to_vec();
    expected.extend_from_slice(&x.shape[depth..]);
    call.shape_is(updates, &expected, "updates")?;
    call.one(x.dtype, x.shape.clone())
}

fn combinable(call: &Call<'_>, x: &TensorType, updates: &TensorType, reduce: ScatterReduce) -> Result<(), InferError> {
    call.same_dtype(&[x, updates])?;
    if reduce == ScatterReduce::None { Ok(()) } else { call.numeric(x) }
}

pub(super) fn top_k(call: &Call<'_>, axis: usize, k: &Dim) -> Inferred {
    let [x] = call.exactly()?;
    call.numeric(x)?;
    call.axis(axis, x)?;
    call.size(k, "k")?;
    if super::is_negative(&(x.shape[axis].clone() - k.clone())) {
        return call.fail(format!("k is {k}, axis {axis} of {x} has fewer elements"));
    }
    let mut shape = x.shape.clone();
    shape[axis] = k.clone();
    Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
}
