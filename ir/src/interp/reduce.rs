//! Reductions and scans.
//!
//! Float sums run in f32 for f32, f16 and bf16 (f64 for f64) and are rounded once at the end. A sum is pairwise over
//! blocks of [`BLOCK`] elements, each block in eight interleaved partial sums: the error grows with log n, not n.

use super::elementwise::integer_range;
use super::error::EvalError;
use super::math;
use super::parallel::collect;
use super::storage::{Real, Want, floats, integers, store_integers, tensor, view, with_bits, with_real};
use super::strided::{AxisSplit, copy, dense_strides};
use crate::dtype::DType;
use crate::op::{ArgOp, ReduceOp};
use crate::tensor::Tensor;

/// Elements summed without recursion.
const BLOCK: usize = 128;

pub(super) fn reduce(op: ReduceOp, axes: &[usize], x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    // Reduced axes last, so that every result is a fold over one contiguous row.
    let kept: Vec<usize> = (0..x.shape().len()).filter(|axis| !axes.contains(axis)).collect();
    let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
    let shape: Vec<usize> = order.iter().map(|axis| x.shape()[*axis]).collect();
    let length: usize = axes.iter().map(|axis| x.shape()[*axis]).product();
    let rows = if order.is_sorted() {
        x.clone()
    } else {
        let dense = dense_strides(x.shape());
        let strides: Vec<isize> = order.iter().map(|axis| dense[*axis]).collect();
        with_bits!(x.dtype(), T => tensor(x.dtype(), &shape, copy(&view::<T>(x), 0, &shape, strides)))?
    };
    let count = want.numel();
    if x.dtype().is_float() {
        return with_real!(x.dtype(), C => {
            let data = C::load(&rows);
            let fold = float_fold::<C>(op);
            C::store(want, collect(count, length, &|i| fold(&data[i * length..(i + 1) * length])))
        });
    }
    let limits = integer_range(x.dtype());
    let data = integers(&rows);
    let fold = |i: usize| integer_fold(op, &data[i * length..(i + 1) * length], limits);
    store_integers(want, &collect(count, length, &fold))
}

/// The fold of one row. An empty one gives 0, 1, NaN (0/0), -inf and +inf.
fn float_fold<C: Real>(op: ReduceOp) -> fn(&[C]) -> C {
    match op {
        ReduceOp::Sum => sum,
        ReduceOp::Mean => |row| sum(row) / C::narrow(row.len() as f64),
        ReduceOp::Prod => |row| row.iter().fold(C::ONE, |acc, v| acc * *v),
        ReduceOp::Max => {
            |row| row.iter().fold(C::NEG_INFINITY, |acc, v| C::narrow(math::maximum(acc.wide(), v.wide())))
        }
        ReduceOp::Min => |row| row.iter().fold(C::INFINITY, |acc, v| C::narrow(math::minimum(acc.wide(), v.wide()))),
    }
}

/// Wraps at the store; a mean truncates toward zero and is 0 when empty, as integer division is.
fn integer_fold(op: ReduceOp, row: &[i128], (low, high): (i128, i128)) -> i128 {
    let length = row.len();
    let row = row.iter().copied();
    match op {
        ReduceOp::Sum => row.sum(),
        ReduceOp::Mean => row.sum::<i128>().checked_div(length as i128).unwrap_or(0),
        ReduceOp::Prod => row.fold(1, i128::wrapping_mul),
        ReduceOp::Max => row.fold(low, i128::max),
        ReduceOp::Min => row.fold(high, i128::min),
    }
}

/// Pairwise sum.
pub(super) fn sum<C: Real>(row: &[C]) -> C {
    if row.len() > BLOCK {
        // Blocks stay whole, so that the split depends on the length alone.
        let (a, b) = row.split_at(row.len().div_ceil(2).next_multiple_of(BLOCK));
        return sum(a) + sum(b);
    }
    let mut lanes = [C::ZERO; 8];
    let mut chunks = row.chunks_exact(8);
    for chunk in &mut chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = *lane + *v;
        }
    }
    for (lane, v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = *lane + *v;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// NaN is more extreme than any number, so the first (or last) NaN wins.
pub(super) fn arg_reduce(
    op: ArgOp,
    axis: usize,
    select_last: bool,
    x: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let split = AxisSplit::new(x.shape(), axis);
    let lines: Vec<usize> = split.lines().collect();
    if split.len == 0 && !lines.is_empty() {
        return Err(EvalError::unsupported(op.name(), format!("axis {axis} of {:?} is empty", x.shape())));
    }
    let extremes = if x.dtype().is_float() {
        extremes(op, select_last, &floats(x), &lines, split)
    } else {
        extremes(op, select_last, &integers(x), &lines, split)
    };
    tensor(want.dtype, &want.shape, extremes)
}

fn extremes<T: PartialOrd + Copy + Sync>(
    op: ArgOp,
    select_last: bool,
    data: &[T],
    lines: &[usize],
    split: AxisSplit,
) -> Vec<i64> {
    collect(lines.len(), split.len, &|line| {
        let at = |i: usize| data[lines[line] + i * split.inner];
        let mut best = 0;
        for i in 1..split.len {
            if displaces(op, select_last, at(best), at(i)) {
                best = i;
            }
        }
        best as i64
    })
}

/// Whether a later `new` displaces the extreme so far.
fn displaces<T: PartialOrd + Copy>(op: ArgOp, select_last: bool, best: T, new: T) -> bool {
    let is_nan = |v: &T| v.partial_cmp(v).is_none();
    match (is_nan(&best), is_nan(&new)) {
        (true, new_nan) => new_nan && select_last,
        (false, true) => true,
        _ if select_last && new == best => true,
        _ => match op {
            ArgOp::Max => new > best,
            ArgOp::Min => new < best,
        },
    }
}

/// Running sums in order along the axis; floats run in f32 (f64 for f64) and every element is rounded once.
pub(super) fn cumsum(
    axis: usize,
    exclusive: bool,
    reverse: bool,
    x: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let split = AxisSplit::new(x.shape(), axis);
    if x.dtype().is_float() {
        return with_real!(x.dtype(), C => {
            let data = C::load(x);
            let mut out = vec![C::ZERO; data.len()];
            scan(split, exclusive, reverse, C::ZERO, |acc, at| acc + data[at], |at, acc| out[at] = acc);
            C::store(want, out)
        });
    }
    let data = integers(x);
    let mut out = vec![0i128; data.len()];
    scan(split, exclusive, reverse, 0, |acc, at| acc + data[at], |at, acc| out[at] = acc);
    store_integers(want, &out)
}

fn scan<A: Copy>(
    split: AxisSplit,
    exclusive: bool,
    reverse: bool,
    zero: A,
    step: impl Fn(A, usize) -> A,
    mut put: impl FnMut(usize, A),
) {
    for start in split.lines() {
        let mut acc = zero;
        for i in 0..split.len {
            let at = start + if reverse { split.len - 1 - i } else { i } * split.inner;
            let next = step(acc, at);
            put(at, if exclusive { acc } else { next });
            acc = next;
        }
    }
}
