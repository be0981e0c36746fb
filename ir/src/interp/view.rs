//! Views made dense, padding and concatenation: elements are moved bit for bit.

use super::error::EvalError;
use super::storage::{Want, tensor, view, with_bits};
use super::strided::{AxisSplit, advance, broadcast_strides, copy, dense_strides};
use crate::op::PadMode;
use crate::tensor::Tensor;

pub(super) fn reshape(x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    x.reshaped(&want.shape).ok_or_else(|| {
        EvalError::unsupported("reshape", format!("{:?} does not hold the elements of {:?}", want.shape, x.shape()))
    })
}

pub(super) fn transpose(perm: &[usize], x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let dense = dense_strides(x.shape());
    let strides: Vec<isize> = perm.iter().map(|axis| dense[*axis]).collect();
    with_bits!(x.dtype(), T => tensor(want.dtype, &want.shape, copy(&view::<T>(x), 0, &want.shape, strides)))
}

pub(super) fn broadcast(x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let strides = broadcast_strides(x.shape(), &want.shape);
    with_bits!(x.dtype(), T => tensor(want.dtype, &want.shape, copy(&view::<T>(x), 0, &want.shape, strides)))
}

/// `starts` and `steps` per axis.
pub(super) fn slice(starts: &[i64], steps: &[i64], x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    for (axis, (start, step)) in starts.iter().zip(steps).enumerate() {
        let (size, count) = (x.shape()[axis], want.shape[axis]);
        let last = i128::from(*start) + i128::from(*step) * (count as i128 - 1);
        for end in [i128::from(*start), last] {
            if count > 0 && !(0..size as i128).contains(&end) {
                let index = i64::try_from(end).unwrap_or(i64::MAX);
                return Err(EvalError::IndexOutOfRange { op: "slice", index, axis, size });
            }
        }
    }
    if want.numel() == 0 {
        return empty(want);
    }
    let dense = dense_strides(x.shape());
    let offset: isize = starts.iter().zip(&dense).map(|(start, stride)| *start as isize * stride).sum();
    // A step across an axis of one element may be of any size: it is never taken.
    let strides: Vec<isize> = steps.iter().zip(&dense).map(|(step, s)| (*step as isize).wrapping_mul(*s)).collect();
    with_bits!(x.dtype(), T => tensor(want.dtype, &want.shape, copy(&view::<T>(x), offset, &want.shape, strides)))
}

fn empty(want: &Want) -> Result<Tensor, EvalError> {
    tensor::<u8>(want.dtype, &want.shape, Vec::new())
}

/// `before` gives each axis's leading pad; the trailing one follows from the result shape.
pub(super) fn pad(
    mode: PadMode,
    before: &[i64],
    x: &Tensor,
    value: Option<&Tensor>,
    want: &Want,
) -> Result<Tensor, EvalError> {
    if want.numel() == 0 {
        return empty(want);
    }
    // Per axis and result position: the element offset to read, or none where the pad value stands.
    let dense = dense_strides(x.shape());
    let mut maps: Vec<Vec<Option<usize>>> = Vec::new();
    for (axis, (size, count)) in x.shape().iter().zip(&want.shape).enumerate() {
        let n = *size as i64;
        if mode != PadMode::Constant && n == 0 {
            return Err(EvalError::unsupported(
                "pad",
                format!("{} mode has nothing to repeat along axis {axis}", mode.name()),
            ));
        }
        let source = |position: usize| {
            let i = position as i64 - before[axis];
            let inside = match mode {
                PadMode::Constant => {
                    return usize::try_from(i).ok().filter(|i| i < size).map(|i| i * dense[axis] as usize);
                }
                PadMode::Edge => i.clamp(0, n - 1),
                PadMode::Reflect if n == 1 => 0,
                PadMode::Reflect => {
                    let period = 2 * (n - 1);
                    let phase = i.rem_euclid(period);
                    phase.min(period - phase)
                }
            };
            Some(inside as usize * dense[axis] as usize)
        };
        maps.push((0..*count).map(source).collect());
    }
    with_bits!(x.dtype(), T => {
        let data = view::<T>(x);
        let fill: T = value.and_then(|v| view::<T>(v).first().copied()).unwrap_or_default();
        let mut out: Vec<T> = Vec::with_capacity(want.numel());
        let Some((last, outer)) = maps.split_last() else {
            return Ok(x.clone());
        };
        let mut index = vec![0; outer.len()];
        loop {
            let base = index.iter().zip(outer).try_fold(0usize, |acc, (i, map)| map[*i].map(|offset| acc + offset));
            match base {
                Some(base) => out.extend(last.iter().map(|offset| offset.map_or(fill, |offset| data[base + offset]))),
                None => out.resize(out.len() + last.len(), fill),
            }
            if !advance(&mut index, &want.shape[..outer.len()]) {
                break;
            }
        }
        tensor(want.dtype, &want.shape, out)
    })
}

pub(super) fn concat(axis: usize, parts: &[Tensor], want: &Want) -> Result<Tensor, EvalError> {
    with_bits!(want.dtype, T => {
        let mut out: Vec<T> = Vec::with_capacity(want.numel());
        let parts: Vec<_> = parts.iter().map(|part| (view::<T>(part), AxisSplit::new(part.shape(), axis))).collect();
        let outer = parts.first().map_or(0, |(_, split)| split.outer);
        for o in 0..outer {
            for (data, split) in &parts {
                let row = split.len * split.inner;
                out.extend_from_slice(&data[o * row..(o + 1) * row]);
            }
        }
        tensor(want.dtype, &want.shape, out)
    })
}

pub(super) fn iota(want: &Want) -> Result<Tensor, EvalError> {
    let data: Vec<i64> = (0..want.numel() as i64).collect();
    Ok(Tensor::from_i64(want.dtype, &want.shape, &data))
}
