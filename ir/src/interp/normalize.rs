//! Softmax and the normalisations, computed directly.
//!
//! Statistics (mean, variance) are accumulated in f64 and rounded to f32 for f32, f16 and bf16, as a Welford or two-pass
//! kernel achieves in effect: a mean of large finite values never overflows. What is done per element runs in f32 and is
//! rounded once.

use super::error::EvalError;
use super::parallel::for_each_chunk;
use super::reduce::sum;
use super::storage::{Real, Want, with_real};
use super::strided::AxisSplit;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// exp(x - max) / sum, or x - max - log(sum) when `log`. A row whose maximum is not finite gives NaN, as the primitive
/// form does.
pub(super) fn softmax(axis: usize, log: bool, x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let split = AxisSplit::new(x.shape(), axis);
    with_real!(x.dtype(), C => {
        let mut data = C::load(x).into_owned();
        if split.inner == 1 && split.len > 0 {
            for_each_chunk(&mut data, split.len, &|_, row| softmax_row(row, log));
        } else {
            let mut row = vec![C::ZERO; split.len];
            for start in split.lines() {
                for (i, v) in row.iter_mut().enumerate() {
                    *v = data[start + i * split.inner];
                }
                softmax_row(&mut row, log);
                for (i, v) in row.iter().enumerate() {
                    data[start + i * split.inner] = *v;
                }
            }
        }
        C::store(want, data)
    })
}

pub(super) fn softmax_row<C: Real>(row: &mut [C], log: bool) {
    let max = row.iter().fold(C::NEG_INFINITY, |acc, v| acc.maximum(*v));
    for v in row.iter_mut() {
        *v = *v - max;
    }
    if log {
        let exponentials: Vec<C> = row.iter().map(|v| v.exp()).collect();
        let log_sum = sum(&exponentials).log();
        for v in row.iter_mut() {
            *v = *v - log_sum;
        }
    } else {
        for v in row.iter_mut() {
            *v = v.exp();
        }
        let total = sum(row);
        for v in row.iter_mut() {
            *v = *v / total;
        }
    }
}

/// Mean and 1 / sqrt(variance + epsilon) of a row; `centred` false leaves the mean out (RMS).
fn statistics<C: Real>(row: &[C], centred: bool, epsilon: f64) -> (C, C) {
    let wide: Vec<f64> = row.iter().map(|v| v.wide()).collect();
    let count = wide.len() as f64;
    let mean = if centred { sum(&wide) / count } else { 0.0 };
    let squares: Vec<f64> = wide.iter().map(|v| (v - mean) * (v - mean)).collect();
    let variance = sum(&squares) / count;
    (C::narrow(mean), C::narrow(1.0 / (variance + epsilon).sqrt()))
}

/// (x, scale, bias?) over axes `axis..`; without `centred` it is RMS normalisation.
pub(super) fn layer_norm(
    axis: usize,
    epsilon: f64,
    centred: bool,
    operands: &[Tensor],
    want: &Want,
) -> Result<Tensor, EvalError> {
    let [x, scale, bias @ ..] = operands else {
        return Err(EvalError::unsupported("layer_norm", "takes x, scale and an optional bias"));
    };
    let length: usize = x.shape()[axis..].iter().product();
    with_real!(x.dtype(), C => {
        let mut data = C::load(x).into_owned();
        let scale = C::load(scale);
        let bias = bias.first().map(C::load);
        if length > 0 {
            for_each_chunk(&mut data, length, &|_, row| {
                let (mean, inverse) = statistics(row, centred, epsilon);
                for (i, v) in row.iter_mut().enumerate() {
                    let scaled = (*v - mean) * inverse * scale[i];
                    *v = bias.as_ref().map_or(scaled, |bias| scaled + bias[i]);
                }
            });
        }
        C::store(want, data)
    })
}

/// (x: [N, C, ..], scale: [C], bias: [C])
pub(super) fn group_norm(groups: i64, epsilon: f64, operands: &[Tensor], want: &Want) -> Result<Tensor, EvalError> {
    let [x, scale, bias] = operands else {
        return Err(EvalError::unsupported("group_norm", "takes x, scale and bias"));
    };
    let groups = usize::try_from(groups).unwrap_or(1).max(1);
    let plane: usize = x.shape()[2..].iter().product();
    let per_group = x.shape()[1] / groups;
    with_real!(x.dtype(), C => {
        let mut data = C::load(x).into_owned();
        let (scale, bias) = (C::load(scale), C::load(bias));
        if per_group * plane > 0 {
            for_each_chunk(&mut data, per_group * plane, &|task, group| {
                let (mean, inverse) = statistics(group, true, epsilon);
                let first = task % groups * per_group;
                for (c, plane) in group.chunks_mut(plane).enumerate() {
                    for v in plane {
                        *v = (*v - mean) * inverse * scale[first + c] + bias[first + c];
                    }
                }
            });
        }
        C::store(want, data)
    })
}

/// (x: [N, C, ..], scale: [C], bias: [C], mean: [C], variance: [C])
pub(super) fn batch_norm(epsilon: f64, operands: &[Tensor], want: &Want) -> Result<Tensor, EvalError> {
    let [x, scale, bias, mean, variance] = operands else {
        return Err(EvalError::unsupported("batch_norm", "takes x, scale, bias, mean and variance"));
    };
    let plane: usize = x.shape()[2..].iter().product();
    let channels = x.shape()[1];
    with_real!(x.dtype(), C => {
        let mut data = C::load(x).into_owned();
        let (scale, bias, mean) = (C::load(scale), C::load(bias), C::load(mean));
        let inverse: Vec<C> =
            C::load(variance).iter().map(|v| C::narrow(1.0 / (v.wide() + epsilon).sqrt())).collect();
        if plane > 0 {
            for_each_chunk(&mut data, plane, &|i, plane| {
                let c = i % channels;
                for v in plane {
                    *v = (*v - mean[c]) * inverse[c] * scale[c] + bias[c];
                }
            });
        }
        C::store(want, data)
    })
}
