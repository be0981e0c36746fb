//! Typing of contractions and windows.

use super::{Call, InferError, Inferred, is_negative};
use crate::dim::Dim;
use crate::op::{PoolKind, ResizeMode, Window};
use crate::tensor::TensorType;

pub(super) fn matmul(call: &Call<'_>, trans_a: bool, trans_b: bool) -> Inferred {
    let [a, b] = call.exactly()?;
    call.same_dtype(&[a, b])?;
    call.numeric(a)?;
    let split = |x: &TensorType, transposed: bool| -> Result<(Vec<Dim>, Dim, Dim), InferError> {
        let [batch @ .., rows, columns] = x.shape.as_slice() else {
            return call.fail(format!("operand {x} has rank {}, expected at least 2", x.rank()));
        };
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        Ok((batch.to_vec(), rows.clone(), columns.clone()))
    };
    let (a_batch, m, k) = split(a, trans_a)?;
    let (b_batch, k_b, n) = split(b, trans_b)?;
    if super::unify(&k, &k_b).is_none() {
        return call.fail(format!("{a} by {b} contracts {k} with {k_b}"));
    }
    let mut shape = call.broadcast(&a_batch, &b_batch)?;
    shape.extend([m, n]);
    call.one(a.dtype, shape)
}

/// Checks a window's attributes and returns the number of spatial axes of `x: [N, C, spatial..]`.
fn spatial(call: &Call<'_>, x: &TensorType, window: &Window) -> Result<usize, InferError> {
    if x.rank() < 3 {
        return call.fail(format!("operand {x} has no spatial axes: its rank is below 3"));
    }
    let axes = x.rank() - 2;
    for (entries, what, least) in [
        (&window.strides, "strides", 1),
        (&window.dilations, "dilations", 1),
        (&window.pads_begin, "pads_begin", 0),
        (&window.pads_end, "pads_end", 0),
    ] {
        call.per_axis(entries.len(), axes, what)?;
        if entries.iter().any(|e| *e < least) {
            return call.fail(format!("{what} {entries:?} has an entry below {least}"));
        }
    }
    Ok(axes)
}

/// How far a dilated kernel reaches: `dilation * (kernel - 1) + 1`.
fn reach(kernel: &Dim, dilation: i64) -> Dim {
    Dim::from(dilation) * (kernel.clone() - Dim::from(1i64)) + Dim::from(1i64)
}

/// Positions that a window takes along one axis.
fn positions(
    call: &Call<'_>,
    x: &TensorType,
    axis: usize,
    kernel: &Dim,
    window: &Window,
    ceil_mode: bool,
) -> Result<Dim, InferError> {
    let dim = &x.shape[axis + 2];
    let (low, high) = (Dim::from(window.pads_begin[axis]), Dim::from(window.pads_end[axis]));
    let stride = Dim::from(window.strides[axis]);
    let free = dim.clone() + low.clone() + high - reach(kernel, window.dilations[axis]);
    if is_negative(&free) {
        return call.fail(format!("a window of {kernel} does not fit axis {} of {x}", axis + 2));
    }
    if !ceil_mode {
        return Ok(free.floor_div(&stride) + Dim::from(1i64));
    }
    // The last window must start inside the operand or its left padding (torch and ONNX agree on this since opset 19).
    let rounded_up = free.ceil_div(&stride) + Dim::from(1i64);
    Ok(rounded_up.minimum(&(dim.clone() + low).ceil_div(&stride)))
}

fn bias_fits(call: &Call<'_>, x: &TensorType, bias: Option<&TensorType>, channels: &Dim) -> Result<(), InferError> {
    let Some(bias) = bias else { return Ok(()) };
    call.same_dtype(&[x, bias])?;
    call.shape_is(bias, std::slice::from_ref(channels), "bias")
}

fn grouped(call: &Call<'_>, channels: &Dim, groups: i64, what: &str) -> Result<(), InferError> {
    if groups < 1 {
        return call.fail(format!("groups is {groups}, expected at least 1"));
    }
    if channels.as_const().is_some_and(|c| c % groups != 0) {
        return call.fail(format!("{channels} {what} do not split into {groups} groups"));
    }
    Ok(())
}

pub(super) fn conv(call: &Call<'_>, window: &Window, groups: i64) -> Inferred {
    let ([x, w], bias) = call.with_optional()?;
    call.same_dtype(&[x, w])?;
    call.float(x)?;
    let axes = spatial(call, x, window)?;
    call.rank(w, x.rank(), "weight")?;
    let channels = &w.shape[0];
    grouped(call, channels, groups, "result channels")?;
    let expected = w.shape[1].clone() * Dim::from(groups);
    if super::unify(&x.shape[1], &expected).is_none() {
        return call.fail(format!("{x} has {} channels, weight {w} in {groups} groups takes {expected}", x.shape[1]));
    }
    bias_fits(call, x, bias, channels)?;
    let mut shape = vec![x.shape[0].clone(), channels.clone()];
    for axis in 0..axes {
        shape.push(positions(call, x, axis, &w.shape[axis + 2], window, false)?);
    }
    call.one(x.dtype, shape)
}

pub(super) fn conv_transpose(call: &Call<'_>, window: &Window, groups: i64, output_padding: &[i64]) -> Inferred {
    let ([x, w], bias) = call.with_optional()?;
    call.same_dtype(&[x, w])?;
    call.float(x)?;
    let axes = spatial(call, x, window)?;
    call.rank(w, x.rank(), "weight")?;
    grouped(call, &w.shape[0], groups, "operand channels")?;
    if super::unify(&x.shape[1], &w.shape[0]).is_none() {
        return call.fail(format!("{x} has {} channels, weight {w} takes {}", x.shape[1], w.shape[0]));
    }
    call.per_axis(output_padding.len(), axes, "output_padding")?;
    let channels = w.shape[1].clone() * Dim::from(groups);
    bias_fits(call, x, bias, &channels)?;
    let mut shape = vec![x.shape[0].clone(), channels];
    for (axis, extra) in output_padding.iter().enumerate() {
        let stride = window.strides[axis];
        if *extra < 0 || *extra >= stride.max(window.dilations[axis]) {
            return call.fail(format!("output_padding {extra} of axis {axis} is not below its stride or dilation"));
        }
        let pads = Dim::from(window.pads_begin[axis]) + Dim::from(window.pads_end[axis]);
        let size = (x.shape[axis + 2].clone() - Dim::from(1i64)) * Dim::from(stride)
            + reach(&w.shape[axis + 2], window.dilations[axis])
            + Dim::from(*extra)
            - pads;
        if is_negative(&size) {
            return call.fail(format!("pads of axis {} remove more than {x} gives", axis + 2));
        }
        shape.push(size);
    }
    call.one(x.dtype, shape)
}

pub(super) fn pool(call: &Call<'_>, kind: PoolKind, kernel: &[i64], window: &Window, ceil_mode: bool) -> Inferred {
    let [x] = call.exactly()?;
    match kind {
        PoolKind::Max => call.numeric(x)?,
        PoolKind::Average => call.float(x)?,
    }
    let axes = spatial(call, x, window)?;
    call.per_axis(kernel.len(), axes, "kernel")?;
    if kernel.iter().any(|k| *k < 1) {
        return call.fail(format!("kernel {kernel:?} has an entry below 1"));
    }
    let mut shape = x.shape[..2].to_vec();
    for (axis, size) in kernel.iter().enumerate() {
        let size = Dim::from(*size);
        // A window that lies in padding alone would have no maximum, and no elements to average.
        let reach = reach(&size, window.dilations[axis]);
        if [window.pads_begin[axis], window.pads_end[axis]].iter().any(|p| reach.as_const().is_some_and(|r| *p >= r)) {
            return call.fail(format!("pads of axis {} are not below the window's reach {reach}", axis + 2));
        }
        shape.push(positions(call, x, axis, &size, window, ceil_mode)?);
    }
    call.one(x.dtype, shape)
}

pub(super) fn resize(call: &Call<'_>, mode: ResizeMode, cubic_coeff: f64, scales: &[f64], sizes: &[Dim]) -> Inferred {
    let [x] = call.exactly()?;
    match mode {
        ResizeMode::Nearest => {}
        ResizeMode::Linear | ResizeMode::Cubic => call.float(x)?,
    }
    call.per_axis(scales.len(), x.rank(), "scales")?;
    call.per_axis(sizes.len(), x.rank(), "sizes")?;
    call.sizes(sizes, "sizes")?;
    if scales.iter().any(|s| !s.is_finite() || *s <= 0.0) {
        return call.fail(format!("scales {scales:?} has an entry that is not positive and finite"));
    }
    if mode == ResizeMode::Cubic && !cubic_coeff.is_finite() {
        return call.fail(format!("cubic_coeff is {cubic_coeff}"));
    }
    for (axis, (dim, size)) in x.shape.iter().zip(sizes).enumerate() {
        if dim.as_const() == Some(0) && size.as_const() != Some(0) {
            return call.fail(format!("axis {axis} of {x} is empty, so it does not resize to {size}"));
        }
    }
    call.one(x.dtype, sizes.to_vec())
}
