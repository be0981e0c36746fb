//! Pooling, as PyTorch and ONNX define it.
//!
//! A window covers the positions `start + tap * dilation`. A max looks at those inside the input. An average sums those
//! inside the input and divides by their number, or with `count_include_pad` by the number inside the padded input: what
//! `ceil_mode` adds beyond the padding never counts. A window with nothing to count gives -inf (lowest) or NaN (0).

use super::elementwise::integer_range;
use super::error::EvalError;
use super::math;
use super::parallel::collect;
use super::storage::{Real, Want, integers, store_integers, with_real};
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
            let fold = |plane: &[C], Covered { inside, divisor }: &Covered| match kind {
                PoolKind::Max => inside.iter().fold(C::NEG_INFINITY, |acc, at| C::narrow(math::maximum(acc.wide(), plane[*at].wide()))),
                PoolKind::Average => {
                    inside.iter().fold(C::ZERO, |acc, at| acc + plane[*at]) / C::narrow(*divisor as f64)
                }
            };
            C::store(want, over_planes(&data, planes, plane, &windows, &fold))
        });
    }
    let (low, _) = integer_range(x.dtype());
    let fold = |plane: &[i128], Covered { inside, divisor }: &Covered| {
        let values = inside.iter().map(|at| plane[*at]);
        match kind {
            PoolKind::Max => values.fold(low, i128::max),
            PoolKind::Average => values.sum::<i128>().checked_div(*divisor as i128).unwrap_or(0),
        }
    };
    store_integers(want, &over_planes(&integers(x), planes, plane, &windows, &fold))
}

fn over_planes<T: Sync + Send + Copy + Default>(
    data: &[T],
    planes: usize,
    plane: usize,
    windows: &[Covered],
    fold: &(dyn Fn(&[T], &Covered) -> T + Sync),
) -> Vec<T> {
    let work = windows.first().map_or(1, |window| window.inside.len());
    collect(planes * windows.len(), work, &|i| {
        let (p, window) = (i / windows.len(), &windows[i % windows.len()]);
        fold(&data[p * plane..(p + 1) * plane], window)
    })
}

/// What one window of a plane looks at.
struct Covered {
    /// Offsets within the plane.
    inside: Vec<usize>,
    /// What the sum is divided by.
    divisor: usize,
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

/// Every window of a plane, in order.
fn combine(axes: &[Vec<AxisWindow>], input: &[usize], count_include_pad: bool) -> Vec<Covered> {
    let strides = dense_strides(input);
    let shape: Vec<usize> = axes.iter().map(Vec::len).collect();
    let mut index = vec![0; axes.len()];
    let mut windows = Vec::new();
    for _ in 0..shape.iter().product() {
        let mut inside = vec![0usize];
        let mut padded = 1;
        for ((axis, position), stride) in axes.iter().zip(&index).zip(&strides) {
            let window = &axis[*position];
            padded *= window.padded;
            inside =
                inside.iter().flat_map(|base| window.inside.iter().map(move |c| base + c * *stride as usize)).collect();
        }
        let divisor = if count_include_pad { padded } else { inside.len() };
        windows.push(Covered { inside, divisor });
        advance(&mut index, &shape);
    }
    windows
}
