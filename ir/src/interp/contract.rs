//! `matmul`, `conv` and `conv_transpose`, all through [`gemm`].

use super::error::EvalError;
use super::gemm::{Matrix, Ring, gemm};
use super::parallel::{collect, for_each_chunk};
use super::storage::{Real, Want, integers, store_integers, with_real};
use super::strided::{advance, broadcast_strides, dense_strides};
use crate::dtype::DType;
use crate::op::Window;
use crate::tensor::Tensor;

/// Result columns (spatial positions) per im2col tile: bounds the patch matrix to `C/groups * kernel * COLUMNS`.
const COLUMNS: usize = 1024;

pub(super) fn matmul(trans_a: bool, trans_b: bool, a: &Tensor, b: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let sizes = MatMul::new(trans_a, trans_b, a.shape(), b.shape(), &want.shape);
    if !a.dtype().is_float() {
        // Exact modulo 2^64, and so in every narrower type.
        let [a, b] = [a, b].map(|x| integers(x).into_iter().map(|v| v as i64).collect::<Vec<_>>());
        let wide: Vec<i128> = sizes.compute(&a, &b, want.numel()).into_iter().map(i128::from).collect();
        return store_integers(want, &wide);
    }
    with_real!(a.dtype(), C => C::store(want, sizes.compute(&C::load(a), &C::load(b), want.numel())))
}

/// The sizes of a batched product and where each batch's matrices start.
struct MatMul {
    m: usize,
    n: usize,
    k: usize,
    trans_a: bool,
    trans_b: bool,
    /// Offsets of a's and b's matrix for each batch of the result.
    batches: Vec<(usize, usize)>,
}

impl MatMul {
    fn new(trans_a: bool, trans_b: bool, a: &[usize], b: &[usize], out: &[usize]) -> MatMul {
        let (a_batch, a_matrix) = a.split_at(a.len() - 2);
        let (b_batch, b_matrix) = b.split_at(b.len() - 2);
        let (mut m, k) = if trans_a { (a_matrix[1], a_matrix[0]) } else { (a_matrix[0], a_matrix[1]) };
        let n = if trans_b { b_matrix[0] } else { b_matrix[1] };
        let out_batch = &out[..out.len() - 2];
        let count: usize = out_batch.iter().product();
        if !trans_a && b_batch.iter().all(|d| *d == 1) && a_batch.iter().product::<usize>() == count {
            // One b for all: a's batches are more rows.
            m *= count;
            return MatMul { m, n, k, trans_a, trans_b, batches: vec![(0, 0)] };
        }
        let strides = [a_batch, b_batch].map(|batch| broadcast_strides(batch, out_batch));
        let mut index = vec![0; out_batch.len()];
        let mut batches = Vec::with_capacity(count);
        for _ in 0..count {
            let [a_at, b_at] = [0, 1]
                .map(|i| index.iter().zip(&strides[i]).map(|(i, s): (&usize, &isize)| i * *s as usize).sum::<usize>());
            batches.push((a_at * m * k, b_at * k * n));
            advance(&mut index, out_batch);
        }
        MatMul { m, n, k, trans_a, trans_b, batches }
    }

    fn compute<C: Ring>(&self, a: &[C], b: &[C], count: usize) -> Vec<C> {
        let mut out = vec![C::ZERO; count];
        let (m, n, k) = (self.m, self.n, self.k);
        for_each_chunk(&mut out, m * n, &|batch, out| {
            let (a_at, b_at) = &self.batches[batch];
            let a = if self.trans_a { Matrix::dense(a, *a_at, m).transposed() } else { Matrix::dense(a, *a_at, k) };
            let b = if self.trans_b { Matrix::dense(b, *b_at, k).transposed() } else { Matrix::dense(b, *b_at, n) };
            gemm(m, n, k, a, b, out);
        });
        out
    }
}

/// (x: [N, C, spatial..], w: [M, C/groups, kernel..], bias?): one product per batch, group and tile of positions, of the
/// weights with the patch matrix (im2col).
pub(super) fn conv(window: &Window, groups: i64, operands: &[Tensor], want: &Want) -> Result<Tensor, EvalError> {
    let [x, w, bias @ ..] = operands else {
        return Err(EvalError::unsupported("conv", "takes x, w and an optional bias"));
    };
    let geometry = Geometry::new(window, groups, &x.shape()[2..], &w.shape()[2..], &want.shape[2..]);
    let (batch, channels, out_channels) = (x.shape()[0], x.shape()[1], w.shape()[0]);
    with_real!(x.dtype(), C => {
        let (x, w) = (C::load(x), C::load(w));
        let mut out = match bias.first() {
            Some(bias) => spread_bias::<C>(&C::load(bias), batch, geometry.positions),
            None => vec![C::default(); want.numel()],
        };
        geometry.conv(&x, &w, batch, channels, out_channels, &mut out);
        C::store(want, out)
    })
}

/// (x: [N, C, spatial..], w: [C, M/groups, kernel..], bias?): each input position adds its product with the kernel.
pub(super) fn conv_transpose(
    window: &Window,
    groups: i64,
    operands: &[Tensor],
    want: &Want,
) -> Result<Tensor, EvalError> {
    let [x, w, bias @ ..] = operands else {
        return Err(EvalError::unsupported("conv_transpose", "takes x, w and an optional bias"));
    };
    // The roles are swapped: x's positions are windows over the result.
    let geometry = Geometry::new(window, groups, &want.shape[2..], &w.shape()[2..], &x.shape()[2..]);
    let (batch, channels, out_channels) = (x.shape()[0], x.shape()[1], want.shape[1]);
    let plane: usize = want.shape[2..].iter().product();
    with_real!(x.dtype(), C => {
        let (x, w) = (C::load(x), C::load(w));
        let mut out = match bias.first() {
            Some(bias) => spread_bias::<C>(&C::load(bias), batch, plane),
            None => vec![C::default(); want.numel()],
        };
        geometry.conv_transpose(&x, &w, channels, out_channels, &mut out);
        C::store(want, out)
    })
}

fn spread_bias<C: Copy>(bias: &[C], batch: usize, plane: usize) -> Vec<C> {
    (0..batch).flat_map(|_| bias.iter().flat_map(|b| std::iter::repeat_n(*b, plane))).collect()
}

/// How windows of a kernel lie over a spatial input: position o, tap t reads input `o * stride + t * dilation - pad`.
struct Geometry<'a> {
    window: &'a Window,
    groups: usize,
    input: &'a [usize],
    output: &'a [usize],
    /// Kernel multi-indices in row-major order.
    taps: Vec<Vec<usize>>,
    /// Elements of an input plane, and windows.
    plane: usize,
    positions: usize,
}

impl<'a> Geometry<'a> {
    fn new(
        window: &'a Window,
        groups: i64,
        input: &'a [usize],
        kernel: &'a [usize],
        output: &'a [usize],
    ) -> Geometry<'a> {
        let count: usize = kernel.iter().product();
        let mut index = vec![0; kernel.len()];
        let mut taps = Vec::with_capacity(count);
        for _ in 0..count {
            taps.push(index.clone());
            advance(&mut index, kernel);
        }
        Geometry {
            window,
            groups: usize::try_from(groups).unwrap_or(1).max(1),
            input,
            output,
            taps,
            plane: input.iter().product(),
            positions: output.iter().product(),
        }
    }

    /// Whether every window is exactly one input element, in order.
    fn is_pointwise(&self) -> bool {
        self.taps.len() == 1
            && self.input == self.output
            && self.window.strides.iter().all(|s| *s == 1)
            && self.window.pads_begin.iter().all(|p| *p == 0)
    }

    /// Input coordinate of a tap along one axis; may lie outside.
    fn coordinate(&self, axis: usize, position: usize, tap: usize) -> i64 {
        // Saturating: what is far outside stays outside.
        let window = self.window;
        (position as i64)
            .saturating_mul(window.strides[axis])
            .saturating_add((tap as i64).saturating_mul(window.dilations[axis]))
            .saturating_sub(window.pads_begin[axis])
    }

    /// Calls `visit(position - first, count, plane offset, plane step)` for the runs of positions in `first..last` whose
    /// input elements under `tap` lie inside the input.
    fn runs(&self, tap: &[usize], first: usize, last: usize, mut visit: impl FnMut(usize, usize, usize, usize)) {
        if first >= last {
            return;
        }
        let Some(axis) = self.output.len().checked_sub(1) else {
            visit(0, last - first, 0, 0);
            return;
        };
        let width = self.output[axis];
        let strides = dense_strides(self.input);
        let mut column = first % width;
        let mut at = first;
        let mut index = vec![0; axis];
        let mut rest = first / width;
        for (i, dim) in index.iter_mut().zip(&self.output[..axis]).rev() {
            *i = rest % dim;
            rest /= dim;
        }
        while at < last {
            let end = (column + last - at).min(width);
            let base = index.iter().enumerate().try_fold(0usize, |acc, (i, position)| {
                let c = usize::try_from(self.coordinate(i, *position, tap[i])).ok().filter(|c| *c < self.input[i])?;
                Some(acc + c * strides[i] as usize)
            });
            if let Some(base) = base {
                // Columns whose coordinate is inside: the coordinate grows with the column.
                let inside = |column: usize| {
                    usize::try_from(self.coordinate(axis, column, tap[axis])).ok().filter(|c| *c < self.input[axis])
                };
                let mut low = column;
                while low < end && inside(low).is_none() {
                    low += 1;
                }
                let mut high = end;
                while high > low && inside(high - 1).is_none() {
                    high -= 1;
                }
                if let Some(c) = inside(low).filter(|_| high > low) {
                    visit(at - first + low - column, high - low, base + c, self.window.strides[axis] as usize);
                }
            }
            at += end - column;
            column = 0;
            advance(&mut index, &self.output[..axis]);
        }
    }

    fn conv<C: Ring>(&self, x: &[C], w: &[C], batch: usize, channels: usize, out_channels: usize, out: &mut [C]) {
        if out.is_empty() {
            return;
        }
        let (group_in, group_out) = (channels / self.groups, out_channels / self.groups);
        let depth = group_in * self.taps.len();
        let tiles: Vec<(usize, usize, usize)> = (0..batch)
            .flat_map(|b| (0..self.groups).map(move |g| (b, g)))
            .flat_map(|(b, g)| (0..self.positions).step_by(COLUMNS).map(move |first| (b, g, first)))
            .collect();
        let results: Vec<Vec<C>> = collect(tiles.len(), usize::MAX, &|tile| {
            let (b, g, first) = &tiles[tile];
            let count = COLUMNS.min(self.positions - first);
            let image = &x[(b * channels + g * group_in) * self.plane..][..group_in * self.plane];
            let weights = Matrix::dense(w, g * group_out * depth, depth);
            let mut product = vec![C::ZERO; group_out * count];
            if self.is_pointwise() {
                let patches = Matrix::dense(image, *first, self.plane);
                gemm(group_out, count, depth, weights, patches, &mut product);
            } else {
                let patches = self.patches(image, group_in, *first, count);
                gemm(group_out, count, depth, weights, Matrix::dense(&patches, 0, count), &mut product);
            }
            product
        });
        for ((b, g, first), product) in tiles.iter().zip(&results) {
            let count = COLUMNS.min(self.positions - first);
            for (m, row) in product.chunks(count).enumerate() {
                let at = (b * out_channels + g * group_out + m) * self.positions + first;
                for (out, v) in out[at..at + count].iter_mut().zip(row) {
                    *out = out.plus(*v);
                }
            }
        }
    }

    /// The patch matrix [C/groups * taps, count] of positions `first..first + count`; zero where a tap is in the padding.
    fn patches<C: Ring>(&self, image: &[C], channels: usize, first: usize, count: usize) -> Vec<C> {
        let mut out = vec![C::ZERO; channels * self.taps.len() * count];
        for (t, tap) in self.taps.iter().enumerate() {
            self.runs(tap, first, first + count, |at, length, offset, step| {
                for (c, plane) in image.chunks(self.plane).enumerate() {
                    let row = &mut out[(c * self.taps.len() + t) * count + at..][..length];
                    if step == 1 {
                        row.copy_from_slice(&plane[offset..offset + length]);
                    } else {
                        for (i, v) in row.iter_mut().enumerate() {
                            *v = plane[offset + i * step];
                        }
                    }
                }
            });
        }
        out
    }

    fn conv_transpose<C: Ring>(&self, x: &[C], w: &[C], channels: usize, out_channels: usize, out: &mut [C]) {
        let (group_in, group_out) = (channels / self.groups, out_channels / self.groups);
        let taps = self.taps.len();
        // Result planes of one batch and group are one task.
        for_each_chunk(out, group_out * self.plane, &|task, out| {
            let (b, g) = (task / self.groups, task % self.groups);
            // [M/groups * taps, C/groups] x [C/groups, positions].
            let weights = Matrix::dense(w, g * group_in * group_out * taps, group_out * taps).transposed();
            let image = Matrix::dense(x, (b * channels + g * group_in) * self.positions, self.positions);
            let mut columns = vec![C::ZERO; group_out * taps * self.positions];
            gemm(group_out * taps, self.positions, group_in, weights, image, &mut columns);
            for (t, tap) in self.taps.iter().enumerate() {
                self.runs(tap, 0, self.positions, |at, length, offset, step| {
                    for (m, plane) in out.chunks_mut(self.plane).enumerate() {
                        let row = &columns[(m * taps + t) * self.positions + at..][..length];
                        for (i, v) in row.iter().enumerate() {
                            let target = &mut plane[offset + i * step];
                            *target = target.plus(*v);
                        }
                    }
                });
            }
        });
    }
}
