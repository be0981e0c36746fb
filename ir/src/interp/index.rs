//! Gathers, scatters and top-k. An index outside its axis is an error, never a wrap or a clamp.

use std::cmp::Ordering;

use super::error::EvalError;
use super::math;
use super::parallel::collect;
use super::storage::{Want, floats, indices, integers, store_floats, store_integers, tensor, view, with_bits};
use super::strided::{AxisSplit, advance, dense_strides};
use crate::op::ScatterReduce;
use crate::tensor::Tensor;

/// A non-negative index, with negative ones counted from the end.
fn resolve(op: &'static str, index: i64, axis: usize, size: usize) -> Result<usize, EvalError> {
    let from_end = if index < 0 { index.checked_add(size as i64) } else { Some(index) };
    from_end.and_then(|i| usize::try_from(i).ok()).filter(|i| *i < size).ok_or(EvalError::IndexOutOfRange {
        op,
        index,
        axis,
        size,
    })
}

pub(super) fn gather(axis: usize, x: &Tensor, index: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let split = AxisSplit::new(x.shape(), axis);
    let picks: Vec<usize> =
        indices(index).into_iter().map(|i| resolve("gather", i, axis, split.len)).collect::<Result<_, _>>()?;
    with_bits!(x.dtype(), T => {
        let data = view::<T>(x);
        let mut out: Vec<T> = Vec::with_capacity(want.numel());
        for o in 0..split.outer {
            for pick in &picks {
                let start = (o * split.len + pick) * split.inner;
                out.extend_from_slice(&data[start..start + split.inner]);
            }
        }
        tensor(want.dtype, &want.shape, out)
    })
}

/// For each element of `index`, in order: where in a tensor of shape `x` it points, along `axis` and otherwise in place.
fn element_targets(op: &'static str, axis: usize, x: &[usize], index: &Tensor) -> Result<Vec<usize>, EvalError> {
    let strides = dense_strides(x);
    let mut at = vec![0; x.len()];
    let values = indices(index);
    let mut targets = Vec::with_capacity(values.len());
    for value in values {
        let mut target = 0;
        for (i, (position, stride)) in at.iter().zip(&strides).enumerate() {
            let position = if i == axis { resolve(op, value, axis, x[axis])? } else { *position };
            // Off the axis, an index tensor may be smaller than x, never larger.
            if position >= x[i] {
                return Err(EvalError::IndexOutOfRange { op, index: position as i64, axis: i, size: x[i] });
            }
            target += position * *stride as usize;
        }
        targets.push(target);
        advance(&mut at, index.shape());
    }
    Ok(targets)
}

pub(super) fn gather_elements(axis: usize, x: &Tensor, index: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let targets = element_targets("gather_elements", axis, x.shape(), index)?;
    with_bits!(x.dtype(), T => {
        let data = view::<T>(x);
        tensor(want.dtype, &want.shape, targets.iter().map(|at| data[*at]).collect::<Vec<_>>())
    })
}

/// For each index tuple, in order: the offset of the slice of `x` it names. `batch_dims` leading axes are paired.
fn slice_targets(op: &'static str, batch_dims: usize, x: &[usize], index: &Tensor) -> Result<Vec<usize>, EvalError> {
    let depth = index.shape().last().copied().unwrap_or(0);
    let strides = dense_strides(x);
    let tuples: usize = index.shape()[..index.shape().len().saturating_sub(1)].iter().product();
    let batches: usize = x[..batch_dims].iter().product();
    let per_batch = tuples.checked_div(batches).unwrap_or(0);
    let values = indices(index);
    (0..tuples)
        .map(|tuple| {
            let batch_stride: usize = x[batch_dims..].iter().product();
            let mut target = tuple.checked_div(per_batch).unwrap_or(0) * batch_stride;
            for (i, value) in values[tuple * depth..(tuple + 1) * depth].iter().enumerate() {
                let axis = batch_dims + i;
                target += resolve(op, *value, axis, x[axis])? * strides[axis] as usize;
            }
            Ok(target)
        })
        .collect()
}

pub(super) fn gather_nd(batch_dims: usize, x: &Tensor, index: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let depth = index.shape().last().copied().unwrap_or(0);
    let length: usize = x.shape()[batch_dims + depth..].iter().product();
    let targets = slice_targets("gather_nd", batch_dims, x.shape(), index)?;
    with_bits!(x.dtype(), T => {
        let data = view::<T>(x);
        let mut out: Vec<T> = Vec::with_capacity(want.numel());
        for target in targets {
            out.extend_from_slice(&data[target..target + length]);
        }
        tensor(want.dtype, &want.shape, out)
    })
}

pub(super) fn scatter_elements(
    axis: usize,
    reduce: ScatterReduce,
    x: &Tensor,
    index: &Tensor,
    updates: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let targets = element_targets("scatter_elements", axis, x.shape(), index)?;
    scatter(reduce, x, &targets, 1, updates, want)
}

pub(super) fn scatter_nd(
    reduce: ScatterReduce,
    x: &Tensor,
    index: &Tensor,
    updates: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let depth = index.shape().last().copied().unwrap_or(0);
    let length: usize = x.shape()[depth..].iter().product();
    let targets = slice_targets("scatter_nd", 0, x.shape(), index)?;
    scatter(reduce, x, &targets, length, updates, want)
}

/// Updates are applied in order: the last write wins, and a float reduction rounds once, at the end.
fn scatter(
    reduce: ScatterReduce,
    x: &Tensor,
    targets: &[usize],
    length: usize,
    updates: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let places = || targets.iter().enumerate().flat_map(|(i, to)| (0..length).map(move |j| (to + j, i * length + j)));
    if reduce == ScatterReduce::None {
        return with_bits!(x.dtype(), T => {
            let mut out = view::<T>(x).into_owned();
            let updates = view::<T>(updates);
            for (to, from) in places() {
                out[to] = updates[from];
            }
            tensor(want.dtype, &want.shape, out)
        });
    }
    if x.dtype().is_float() {
        let combine: fn(f64, f64) -> f64 = match reduce {
            ScatterReduce::Add => |a, b| a + b,
            ScatterReduce::Mul => |a, b| a * b,
            ScatterReduce::Max => math::maximum,
            ScatterReduce::Min | ScatterReduce::None => math::minimum,
        };
        let sum = accumulate(combine, floats(x).into_owned(), places(), &floats(updates));
        return store_floats(want, sum);
    }
    let combine: fn(i128, i128) -> i128 = match reduce {
        ScatterReduce::Add => i128::wrapping_add,
        ScatterReduce::Mul => i128::wrapping_mul,
        ScatterReduce::Max => i128::max,
        ScatterReduce::Min | ScatterReduce::None => i128::min,
    };
    store_integers(want, &accumulate(combine, integers(x), places(), &integers(updates)))
}

fn accumulate<T: Copy>(
    combine: fn(T, T) -> T,
    mut out: Vec<T>,
    places: impl Iterator<Item = (usize, usize)>,
    updates: &[T],
) -> Vec<T> {
    for (to, from) in places {
        out[to] = combine(out[to], updates[from]);
    }
    out
}

/// (values, indices): sorted, equal ones by index; NaN is greater than every number.
pub(super) fn top_k(axis: usize, largest: bool, x: &Tensor, want: &[Want]) -> Result<Vec<Tensor>, EvalError> {
    let [values, positions] = want else {
        return Err(EvalError::unsupported("top_k", "has two results"));
    };
    let split = AxisSplit::new(x.shape(), axis);
    let k = values.shape[axis];
    let lines: Vec<usize> = split.lines().collect();
    let winners = if x.dtype().is_float() {
        winners(&floats(x), &lines, split, k, largest)
    } else {
        winners(&integers(x), &lines, split, k, largest)
    };
    let out_split = AxisSplit { len: k, ..split };
    let mut index = vec![0i64; values.numel()];
    let mut source = vec![0usize; values.numel()];
    for ((line, start), winners) in out_split.lines().zip(&lines).zip(&winners) {
        for (i, winner) in winners.iter().enumerate() {
            index[line + i * split.inner] = *winner as i64;
            source[line + i * split.inner] = start + winner * split.inner;
        }
    }
    let picked = with_bits!(x.dtype(), T => {
        let data = view::<T>(x);
        tensor(values.dtype, &values.shape, source.iter().map(|at| data[*at]).collect::<Vec<_>>())
    })?;
    Ok(vec![picked, tensor(positions.dtype, &positions.shape, index)?])
}

/// For each line, the positions of its `k` most extreme elements, in order.
fn winners<T: PartialOrd + Copy + Sync>(
    data: &[T],
    lines: &[usize],
    split: AxisSplit,
    k: usize,
    largest: bool,
) -> Vec<Vec<usize>> {
    collect(lines.len(), split.len, &|line| {
        let mut order: Vec<usize> = (0..split.len).collect();
        let at = |i: &usize| data[lines[line] + i * split.inner];
        // Stable, so that equal elements keep their index order.
        order.sort_by(|a, b| {
            let ascending = nan_greatest(at(a), at(b));
            if largest { ascending.reverse() } else { ascending }
        });
        order.truncate(k);
        order
    })
}

fn nan_greatest<T: PartialOrd + Copy>(a: T, b: T) -> Ordering {
    let is_nan = |v: &T| v.partial_cmp(v).is_none();
    a.partial_cmp(&b).unwrap_or_else(|| is_nan(&a).cmp(&is_nan(&b)))
}
