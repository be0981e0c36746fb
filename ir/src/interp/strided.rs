//! Walking strided operands: broadcasting, and copies under a view.
//!
//! The unit of work is a *segment*: a run of result elements along the innermost axis, for which every operand has one
//! base offset and one stride. Strides are computed once per op; nothing is allocated per element.

use super::parallel::{CHUNK, for_each_chunk};
use bytemuck::Pod;

/// Row-major strides of a dense shape, in elements.
pub(super) fn dense_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1isize;
    for (stride, dim) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul(isize::try_from(*dim).unwrap_or(isize::MAX));
    }
    strides
}

/// Strides that read a dense tensor of `from` as if broadcast to `to` (numpy rules; ranks aligned at the end).
pub(super) fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<isize> {
    let missing = to.len().saturating_sub(from.len());
    let mut strides = vec![0; missing];
    strides.extend(dense_strides(from).iter().zip(from).map(|(s, d)| if *d == 1 { 0 } else { *s }));
    strides
}

/// A result shape walked together with `N` strided operands; axes that can be merged are merged.
pub(super) struct Walk<const N: usize> {
    dims: Vec<usize>,
    strides: [Vec<isize>; N],
}

impl<const N: usize> Walk<N> {
    pub(super) fn new(shape: &[usize], strides: &[Vec<isize>; N]) -> Walk<N> {
        let mut walk = Walk { dims: Vec::new(), strides: std::array::from_fn(|_| Vec::new()) };
        for (axis, dim) in shape.iter().enumerate() {
            if *dim == 1 {
                continue;
            }
            let merges =
                walk.strides.iter().zip(strides).all(|(kept, new)| {
                    kept.last().is_some_and(|last| *last == new[axis].saturating_mul(*dim as isize))
                });
            match walk.dims.last_mut() {
                Some(last) if merges => {
                    *last *= dim;
                    for (kept, new) in walk.strides.iter_mut().zip(strides) {
                        if let Some(stride) = kept.last_mut() {
                            *stride = new[axis];
                        }
                    }
                }
                _ => {
                    walk.dims.push(*dim);
                    for (kept, new) in walk.strides.iter_mut().zip(strides) {
                        kept.push(new[axis]);
                    }
                }
            }
        }
        if walk.dims.is_empty() {
            walk.dims.push(1);
            for kept in &mut walk.strides {
                kept.push(0);
            }
        }
        walk
    }

    /// Operand strides along the innermost axis.
    pub(super) fn inner(&self) -> [isize; N] {
        std::array::from_fn(|i| self.strides[i].last().copied().unwrap_or(0))
    }

    /// Computes every result element: `kernel(segment, bases)` fills a run of results whose operand elements start at
    /// `bases` and advance by [`Walk::inner`].
    pub(super) fn fill<U: Pod + Send + Sync>(&self, kernel: &(dyn Fn(&mut [U], [isize; N]) + Sync)) -> Vec<U> {
        let mut out = vec![U::zeroed(); self.dims.iter().product()];
        for_each_chunk(&mut out, CHUNK, &|i, chunk| self.fill_chunk(chunk, i * CHUNK, kernel));
        out
    }

    fn fill_chunk<U>(&self, chunk: &mut [U], start: usize, kernel: &(dyn Fn(&mut [U], [isize; N]) + Sync)) {
        if chunk.is_empty() {
            return;
        }
        let rank = self.dims.len();
        let inner = self.dims[rank - 1];
        let mut column = start % inner;
        let mut row = start / inner;
        let mut index = vec![0usize; rank - 1];
        for (i, dim) in index.iter_mut().zip(&self.dims).rev() {
            *i = row % dim;
            row /= dim;
        }
        let mut bases: [isize; N] =
            std::array::from_fn(|n| index.iter().zip(&self.strides[n]).map(|(i, s)| *i as isize * s).sum::<isize>());
        let steps = self.inner();
        let mut rest = chunk;
        while !rest.is_empty() {
            let (segment, after) = rest.split_at_mut((inner - column).min(rest.len()));
            kernel(segment, std::array::from_fn(|n| bases[n] + column as isize * steps[n]));
            rest = after;
            column = 0;
            for axis in (0..rank - 1).rev() {
                index[axis] += 1;
                for (base, strides) in bases.iter_mut().zip(&self.strides) {
                    *base += strides[axis];
                }
                if index[axis] < self.dims[axis] {
                    break;
                }
                for (base, strides) in bases.iter_mut().zip(&self.strides) {
                    *base -= strides[axis] * self.dims[axis] as isize;
                }
                index[axis] = 0;
            }
        }
    }
}

/// A dense copy of `src` seen from `offset` under `strides`. Every element must lie inside `src`.
pub(super) fn copy<T: Pod + Send + Sync>(src: &[T], offset: isize, shape: &[usize], strides: Vec<isize>) -> Vec<T> {
    let walk = Walk::new(shape, &[strides]);
    let [step] = walk.inner();
    walk.fill(&|out, [base]| {
        let base = (base + offset) as usize;
        match step {
            1 => out.copy_from_slice(&src[base..base + out.len()]),
            0 => out.fill(src[base]),
            _ => {
                let mut at = base as isize;
                for value in out {
                    *value = src[at as usize];
                    at += step;
                }
            }
        }
    })
}

/// `f` over each element.
pub(super) fn map1<A: Pod + Send + Sync, U: Pod + Send + Sync>(a: &[A], f: impl Fn(A) -> U + Sync) -> Vec<U> {
    let mut out = vec![U::zeroed(); a.len()];
    for_each_chunk(&mut out, CHUNK, &|i, out| {
        for (out, a) in out.iter_mut().zip(&a[i * CHUNK..]) {
            *out = f(*a);
        }
    });
    out
}

/// `f` over pairs of elements, each operand broadcast to `shape`.
pub(super) fn map2<A: Pod + Send + Sync, B: Pod + Send + Sync, U: Pod + Send + Sync>(
    shape: &[usize],
    (a, a_shape): (&[A], &[usize]),
    (b, b_shape): (&[B], &[usize]),
    f: impl Fn(A, B) -> U + Sync,
) -> Vec<U> {
    let walk = Walk::new(shape, &[broadcast_strides(a_shape, shape), broadcast_strides(b_shape, shape)]);
    let [a_step, b_step] = walk.inner();
    walk.fill(&|out, [a_base, b_base]| {
        let (a_base, b_base) = (a_base as usize, b_base as usize);
        let count = out.len();
        match (a_step, b_step) {
            (1, 1) => {
                let pairs = a[a_base..a_base + count].iter().zip(&b[b_base..b_base + count]);
                for (out, (a, b)) in out.iter_mut().zip(pairs) {
                    *out = f(*a, *b);
                }
            }
            (1, 0) => {
                let right = b[b_base];
                for (out, a) in out.iter_mut().zip(&a[a_base..a_base + count]) {
                    *out = f(*a, right);
                }
            }
            (0, 1) => {
                let left = a[a_base];
                for (out, b) in out.iter_mut().zip(&b[b_base..b_base + count]) {
                    *out = f(left, *b);
                }
            }
            // Broadcast strides are 0 or dense, and a merged innermost axis is dense: what is left is (0, 0).
            _ => {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f(a[a_base + i * a_step as usize], b[b_base + i * b_step as usize]);
                }
            }
        }
    })
}

/// A shape split around one axis: elements sit at `(outer * len + i) * inner + j`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSplit {
    pub(super) outer: usize,
    pub(super) len: usize,
    pub(super) inner: usize,
}

impl AxisSplit {
    pub(super) fn new(shape: &[usize], axis: usize) -> AxisSplit {
        AxisSplit { outer: shape[..axis].iter().product(), len: shape[axis], inner: shape[axis + 1..].iter().product() }
    }

    /// Offset of the first element of each line along the axis, in row-major order of the other axes.
    pub(super) fn lines(self) -> impl Iterator<Item = usize> {
        (0..self.outer).flat_map(move |o| (0..self.inner).map(move |j| o * self.len * self.inner + j))
    }
}

/// Advances a row-major multi-index; false after the last.
pub(super) fn advance(index: &mut [usize], shape: &[usize]) -> bool {
    for (i, dim) in index.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < *dim {
            return true;
        }
        *i = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_matches_indexing() {
        let a: Vec<i64> = (0..2 * 3).collect();
        let b: Vec<i64> = (0..4 * 3).map(|v| v * 100).collect();
        // a: [2, 1, 3], b: [4, 1] broadcast to [2, 4, 3].
        let got = map2(&[2, 4, 3], (&a, &[2, 1, 3]), (&b[..4], &[4, 1]), |x, y| x + y);
        for i in 0..2 {
            for j in 0..4 {
                for k in 0..3 {
                    assert_eq!(got[(i * 4 + j) * 3 + k], (i * 3 + k) as i64 + 100 * j as i64);
                }
            }
        }
    }

    #[test]
    fn long_walks_agree_across_chunks() {
        let (rows, columns) = (130, 1000);
        let src: Vec<u32> = (0..rows * columns).collect();
        let transposed = copy(&src, 0, &[columns as usize, rows as usize], vec![1, columns as isize]);
        for (i, v) in transposed.iter().enumerate() {
            let (column, row) = (i as u32 / rows, i as u32 % rows);
            assert_eq!(*v, row * columns + column);
        }
    }

    #[test]
    fn empty_and_scalar_shapes() {
        assert_eq!(map2::<i64, i64, i64>(&[0, 3], (&[], &[0, 3]), (&[1, 2, 3], &[3]), |a, b| a + b), []);
        assert_eq!(map2(&[], (&[2i64], &[]), (&[3i64], &[]), |a, b| a * b), [6]);
        assert_eq!(copy(&[1u8, 2, 3], 2, &[3], vec![-1]), [3, 2, 1]);
    }
}
