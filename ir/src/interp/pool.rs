//! Pooling, as PyTorch and ONNX define it.
//!
//! A window covers the positions `start + tap * dilation`. A max looks at those inside the input. An average sums those
//! inside the input and divides by their number, or with `count_include_pad` by the number inside the padded input: what
//! `ceil_mode` adds beyond the padding never counts. A window with nothing to count gives -inf (lowest) or NaN (0).

use rayon::prelude::*;

use super::elementwise::integer_range;
use super::error::EvalError;
use super::math;
use super::storage::{Real, Scalar, Want, tensor, view, with_integer, with_real};
use super::strided::{advance, dense_strides};
use crate::dtype::DType;
use crate::op::{PoolKind, Window};
use crate::tensor::Tensor;

pub(super) fn pool(
    kind: PoolKind,
    kernel: &[i64],
    window: &Window,
    count_include_pad: bool,
    x: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let input = &x.shape()[2..];
    let axes: Vec<Vec<AxisWindow>> = (0..input.len())
        .map(|axis| (0..want.shape[axis + 2]).map(|o| AxisWindow::new(kernel, window, input, axis, o)).collect())
        .collect();
    let windows = combine(&axes, input, count_include_pad);
    let plane: usize = input.iter().product();
    let planes: usize = want.shape[..2].iter().product();
    if x.dtype().is_float() {
        return with_real!(x.dtype(), C => {
            let data = C::load(x);
            let fold = |plane: &[C], (inside, divisor): &(Vec<usize>, usize)| match kind {
                PoolKind::Max => inside.iter().fold(C::NEG_INFINITY, |acc, at| C::narrow(math::maximum(acc.wide(), plane[*at].wide()))),
                PoolKind::Average => {
                    inside.iter().fold(C::ZERO, |acc, at| acc + plane[*at]) / C::narrow(*divisor as f64)
                }
            };
            C::store(want, over_planes(&data, planes, plane, &windows, fold))
        });
    }
    let (low, _) = integer_range(x.dtype());
    with_integer!(x.dtype(), S => {
        let data = view::<<S as Scalar>::Store>(x);
        let fold = |plane: &[<S as Scalar>::Store], (inside, divisor): &(Vec<usize>, usize)| {
            let values = inside.iter().map(|at| S::decode(plane[*at]));
            S::encode(match kind {
                PoolKind::Max => values.fold(low, i128::max),
                PoolKind::Average => values.sum::<i128>().checked_div(*divisor as i128).unwrap_or(0),
            })
        };
        tensor(want.dtype, &want.shape, over_planes(&data, planes, plane, &windows, fold))
    })
}

fn over_planes<T: Sync + Copy, U: Send>(
    data: &[T],
    planes: usize,
    plane: usize,
    windows: &[(Vec<usize>, usize)],
    fold: impl Fn(&[T], &(Vec<usize>, usize)) -> U + Sync,
) -> Vec<U> {
    let fold = &fold;
    (0..planes)
        .into_par_iter()
        .flat_map_iter(|p| windows.iter().map(move |window| fold(&data[p * plane..(p + 1) * plane], window)))
        .collect()
}

/// One window along one axis.
struct AxisWindow {
    /// Input coordinates that it covers.
    inside: Vec<usize>,
    /// Taps that lie in the input or its declared padding.
    padded: usize,
}

impl AxisWindow {
    fn new(kernel: &[i64], window: &Window, input: &[usize], axis: usize, position: usize) -> AxisWindow {
        let size = input[axis] as i64;
        let start = (position as i64).saturating_mul(window.strides[axis]).saturating_sub(window.pads_begin[axis]);
        let taps = (0..kernel[axis]).map(|tap| start.saturating_add(tap.saturating_mul(window.dilations[axis])));
        let inside = taps.clone().filter(|c| (0..size).contains(c)).map(|c| c as usize).collect();
        let padded = taps.filter(|c| *c < size.saturating_add(window.pads_end[axis])).count();
        AxisWindow { inside, padded }
    }
}

/// For each window of a plane: the offsets that it covers, and the divisor of its average.
fn combine(axes: &[Vec<AxisWindow>], input: &[usize], count_include_pad: bool) -> Vec<(Vec<usize>, usize)> {
    let strides = dense_strides(input);
    let shape: Vec<usize> = axes.iter().map(Vec::len).collect();
    let mut index = vec![0; axes.len()];
    let mut windows = Vec::new();
    for _ in 0..shape.iter().product() {
        let mut offsets = vec![0usize];
        let mut padded = 1;
        for ((axis, position), stride) in axes.iter().zip(&index).zip(&strides) {
            let window = &axis[*position];
            padded *= window.padded;
            offsets = offsets
                .iter()
                .flat_map(|base| window.inside.iter().map(move |c| base + c * *stride as usize))
                .collect();
        }
        let divisor = if count_include_pad { padded } else { offsets.len() };
        windows.push((offsets, divisor));
        advance(&mut index, &shape);
    }
    windows
}
