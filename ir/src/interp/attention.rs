//! Attention and rotary embedding, computed directly.

use super::error::EvalError;
use super::gemm::{Matrix, gemm};
use super::normalize::softmax_row;
use super::parallel::for_each_chunk;
use super::storage::{Real, Want, view, with_real};
use super::strided::{advance, broadcast_strides, dense_strides};
use crate::dtype::DType;
use crate::tensor::Tensor;

/// The attributes of `Op::Attention`.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub(super) scale: f64,
    pub(super) causal: bool,
    pub(super) causal_offset: bool,
    pub(super) masked_rows_zero: bool,
}

impl Attention {
    /// Scores, softmax and the product with v run in f32 (f64 for f64) and are rounded once. A key that is not admitted has
    /// score -inf, so it takes part with weight 0; a row that admits no key is 0 or NaN, whatever
    /// v holds.
    pub(super) fn eval(self, operands: &[Tensor], want: &Want) -> Result<Tensor, EvalError> {
        let [q, k, v, mask @ ..] = operands else {
            return Err(EvalError::unsupported("attention", "takes q, k, v and an optional mask"));
        };
        let (&[_, heads, rows, depth], &[_, kv_heads, keys, _], &[_, _, _, value_depth]) =
            (q.shape(), k.shape(), v.shape())
        else {
            return Err(EvalError::unsupported("attention", "q, k and v have rank 4"));
        };
        if want.numel() == 0 {
            return Ok(Tensor::from_f64(want.dtype, &want.shape, &[]));
        }
        let mask = mask.first().map(|mask| {
            let strides = broadcast_strides(mask.shape(), &[q.shape()[0], heads, rows, keys]);
            (mask, strides)
        });
        with_real!(q.dtype(), C => {
            let (q, k, v) = (C::load(q), C::load(k), C::load(v));
            let bool_mask = mask.as_ref().filter(|(mask, _)| mask.dtype() == DType::Bool);
            let bool_mask = bool_mask.map(|(mask, strides)| (view::<u8>(mask), strides));
            let float_mask = mask.as_ref().filter(|(mask, _)| mask.dtype() != DType::Bool);
            let float_mask = float_mask.map(|(mask, strides)| (C::load(mask), strides));
            let mut out = vec![C::default(); want.numel()];
            for_each_chunk(&mut out, rows * value_depth, &|task, out| {
                let (b, h) = (task / heads, task % heads);
                let shared = b * kv_heads + h / (heads / kv_heads);
                let queries = Matrix::dense(&q, task * rows * depth, depth);
                let key_matrix = Matrix::dense(&k, shared * keys * depth, depth);
                let mut scores = vec![C::default(); rows * keys];
                gemm(rows, keys, depth, queries, key_matrix.transposed(), &mut scores);
                let mut admitted = vec![false; rows];
                for (i, admits_any) in admitted.iter_mut().enumerate() {
                    let row = &mut scores[i * keys..(i + 1) * keys];
                    let at = |strides: &[isize], j: usize| -> usize {
                        [b, h, i, j].iter().zip(strides).map(|(i, s)| i * *s as usize).sum()
                    };
                    for (j, score) in row.iter_mut().enumerate() {
                        *score *= C::narrow(self.scale);
                        if let Some((mask, strides)) = &float_mask {
                            *score += mask[at(strides, j)];
                        }
                        let admits = self.admits(i, j, rows, keys)
                            && bool_mask.as_ref().is_none_or(|(mask, strides)| mask[at(strides, j)] != 0);
                        if admits {
                            *admits_any = true;
                        } else {
                            *score = C::NEG_INFINITY;
                        }
                    }
                    softmax_row(row, false);
                }
                let values = Matrix::dense(&v, shared * keys * value_depth, value_depth);
                gemm(rows, value_depth, keys, Matrix::dense(&scores, 0, keys), values, out);
                // Without any keys the product is an empty sum.
                let empty = if self.masked_rows_zero || keys == 0 { C::default() } else { C::NAN };
                for (row, admitted) in out.chunks_mut(value_depth).zip(&admitted) {
                    if !admitted {
                        row.fill(empty);
                    }
                }
            });
            C::store(want, out)
        })
    }

    fn admits(self, query: usize, key: usize, rows: usize, keys: usize) -> bool {
        // j <= i + S - L, without leaving the naturals.
        !self.causal || if self.causal_offset { key + rows <= query + keys } else { key <= query }
    }
}

/// (x: [.., D], cos, sin: [.., D/2]): (a, b) becomes (a cos - b sin, b cos + a sin), with a and b the halves of the last
/// axis, or its even and odd elements when `interleaved`.
pub(super) fn rotary(
    interleaved: bool,
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    want: &Want,
) -> Result<Tensor, EvalError> {
    let Some((depth, outer)) = x.shape().split_last() else {
        return Err(EvalError::unsupported("rotary", "x has rank 0"));
    };
    let half = depth / 2;
    let pairs: Vec<usize> = outer.iter().copied().chain([half]).collect();
    with_real!(x.dtype(), C => {
        let (data, cos_data, sin_data) = (C::load(x), C::load(cos), C::load(sin));
        let strides = [dense_strides(x.shape()), broadcast_strides(cos.shape(), &pairs), broadcast_strides(sin.shape(), &pairs)];
        let mut out = data.to_vec();
        let mut index = vec![0; pairs.len()];
        for _ in 0..pairs.iter().product() {
            let [base, c, s] = [0, 1, 2].map(|n: usize| {
                // The pair's place within x's last axis is added below.
                let axes = if n == 0 { outer.len() } else { pairs.len() };
                index[..axes].iter().zip(&strides[n]).map(|(i, s)| i * *s as usize).sum::<usize>()
            });
            let j = index.last().copied().unwrap_or(0);
            let (first, second) = if interleaved { (base + 2 * j, base + 2 * j + 1) } else { (base + j, base + half + j) };
            let (a, b) = (data[first], data[second]);
            out[first] = a * cos_data[c] - b * sin_data[s];
            out[second] = b * cos_data[c] + a * sin_data[s];
            advance(&mut index, &pairs);
        }
        C::store(want, out)
    })
}
