//! Typing of composites.

use super::{Call, InferError, Inferred};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::tensor::TensorType;

pub(super) fn softmax(call: &Call<'_>, axis: usize) -> Inferred {
    let [x] = call.exactly()?;
    call.float(x)?;
    call.axis(axis, x)?;
    call.one(x.dtype, x.shape.clone())
}

pub(super) fn activation(call: &Call<'_>) -> Inferred {
    let [x] = call.exactly()?;
    call.float(x)?;
    call.one(x.dtype, x.shape.clone())
}

fn epsilon_fits(call: &Call<'_>, epsilon: f64) -> Result<(), InferError> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        Ok(())
    } else {
        call.fail(format!("epsilon is {epsilon}, expected a finite number that is not negative"))
    }
}

/// Checks that each of `parameters` has x's dtype and the shape `shape`.
fn parameters(
    call: &Call<'_>,
    x: &TensorType,
    shape: &[Dim],
    parameters: &[(&TensorType, &str)],
) -> Result<(), InferError> {
    for (parameter, what) in parameters {
        call.same_dtype(&[x, parameter])?;
        call.shape_is(parameter, shape, what)?;
    }
    Ok(())
}

pub(super) fn layer_norm(call: &Call<'_>, axis: usize, epsilon: f64) -> Inferred {
    let ([x, scale], bias) = call.with_optional()?;
    call.float(x)?;
    call.axis(axis, x)?;
    epsilon_fits(call, epsilon)?;
    parameters(call, x, &x.shape[axis..], &[(scale, "scale")])?;
    if let Some(bias) = bias {
        parameters(call, x, &x.shape[axis..], &[(bias, "bias")])?;
    }
    call.one(x.dtype, x.shape.clone())
}

pub(super) fn rms_norm(call: &Call<'_>, axis: usize, epsilon: f64) -> Inferred {
    let [x, scale] = call.exactly()?;
    call.float(x)?;
    call.axis(axis, x)?;
    epsilon_fits(call, epsilon)?;
    parameters(call, x, &x.shape[axis..], &[(scale, "scale")])?;
    call.one(x.dtype, x.shape.clone())
}

fn channels(call: &Call<'_>, x: &TensorType) -> Result<Dim, InferError> {
    match x.shape.get(1) {
        Some(channels) => Ok(channels.clone()),
        None => call.fail(format!("operand {x} has rank {}, expected at least 2", x.rank())),
    }
}

pub(super) fn group_norm(call: &Call<'_>, groups: i64, epsilon: f64) -> Inferred {
    let [x, scale, bias] = call.exactly()?;
    call.float(x)?;
    epsilon_fits(call, epsilon)?;
    let channels = channels(call, x)?;
    if groups < 1 || channels.as_const().is_some_and(|c| c % groups != 0) {
        return call.fail(format!("{channels} channels do not split into {groups} groups"));
    }
    parameters(call, x, &[channels], &[(scale, "scale"), (bias, "bias")])?;
    call.one(x.dtype, x.shape.clone())
}

pub(super) fn batch_norm(call: &Call<'_>, epsilon: f64) -> Inferred {
    let [x, scale, bias, mean, variance] = call.exactly()?;
    call.float(x)?;
    epsilon_fits(call, epsilon)?;
    let channels = channels(call, x)?;
    let all = [(scale, "scale"), (bias, "bias"), (mean, "mean"), (variance, "variance")];
    parameters(call, x, &[channels], &all)?;
    call.one(x.dtype, x.shape.clone())
}

pub(super) fn attention(call: &Call<'_>, scale: f64) -> Inferred {
    let ([q, k, v], mask) = call.with_optional()?;
    call.float(q)?;
    call.same_dtype(&[q, k, v])?;
    if !scale.is_finite() {
        return call.fail(format!("scale is {scale}"));
    }
    for (x, what) in [(q, "q"), (k, "k"), (v, "v")] {
        call.rank(x, 4, what)?;
    }
    let batch = call.unify(&q.shape[0], &k.shape[0], "batches of q and k")?;
    let batch = call.unify(&batch, &v.shape[0], "batches of q and v")?;
    let key_heads = call.unify(&k.shape[1], &v.shape[1], "heads of k and v")?;
    let keys = call.unify(&k.shape[2], &v.shape[2], "lengths of k and v")?;
    call.unify(&q.shape[3], &k.shape[3], "last axes of q and k")?;
    let heads = &q.shape[1];
    if let (Some(h), Some(hkv)) = (heads.as_const(), key_heads.as_const())
        && (hkv == 0 || h % hkv != 0)
    {
        return call.fail(format!("{h} heads of q are not a multiple of {hkv} heads of k"));
    }
    if let Some(mask) = mask {
        if mask.dtype != DType::Bool && mask.dtype != q.dtype {
            return call.fail(format!("mask {mask} is neither bool nor {}", q.dtype));
        }
        let scores = [batch.clone(), heads.clone(), q.shape[2].clone(), keys];
        call.broadcasts_to(&mask.shape, &scores, "mask")?;
    }
    call.one(q.dtype, vec![batch, heads.clone(), q.shape[2].clone(), v.shape[3].clone()])
}

pub(super) fn rotary(call: &Call<'_>) -> Inferred {
    let [x, cos, sin] = call.exactly()?;
    call.float(x)?;
    call.same_dtype(&[x, cos, sin])?;
    let Some((last, lead)) = x.shape.split_last() else {
        return call.fail(format!("operand {x} has no last axis to rotate"));
    };
    if last.as_const().is_some_and(|d| d % 2 != 0) {
        return call.fail(format!("the last axis of {x} is odd"));
    }
    for (table, what) in [(cos, "cos"), (sin, "sin")] {
        let fits = table.shape.last().is_some_and(|half| {
            // Exactly half, never 1 for more: tables do not broadcast over the rotated axis.
            super::unify(&(half.clone() * Dim::from(2i64)), last).is_some()
        });
        if !fits {
            return call.fail(format!("{what} {table} does not end in half of the last axis of {x}"));
        }
        call.broadcasts_to(&table.shape[..table.rank() - 1], lead, what)?;
    }
    call.one(x.dtype, x.shape.clone())
}
