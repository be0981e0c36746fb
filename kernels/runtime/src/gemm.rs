//! Matrix products through the GEMM library, split over the pool's threads.
//!
//! The library runs single-threaded on each tile (`Parallelism::None`); this module only decides the tiles, once per shape.
//! Limits: FLOP for large products, bytes of `b` for products with one row. The library allocates packing buffers inside a
//! call, which is the only allocation of a plan's steady state.

use crate::pool::Pool;

/// Multiply-adds that cost as much as handing a tile to another thread (about a microsecond).
const DISPATCH: f64 = 30_000.0;
/// Multiply-adds that cost as much as packing one element of an operand.
const PACK: f64 = 12.0;
/// Multiply-adds that cost as much as streaming one element of an operand once.
const STREAM: f64 = 4.0;
/// Tiles are cut at multiples of the library's micro-kernel, or of a cache line.
const ROW_STEP: usize = 8;
const COLUMN_STEP: usize = 32;

/// An operand: strides in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) row_stride: isize,
    pub(crate) column_stride: isize,
}

/// One batch axis: its extent and the strides of a, b, c along it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchAxis {
    pub(crate) extent: usize,
    pub(crate) strides: [isize; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    F32,
    F64,
}

/// `c[batch] = a[batch] * b[batch]`, [m, k] x [k, n], with its tiling.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    scalar: Scalar,
    m: usize,
    n: usize,
    k: usize,
    batch: Box<[BatchAxis]>,
    a: Operand,
    b: Operand,
    c: Operand,
    tiling: Tiling,
}

/// Tiles of `rows` x `columns` of each matrix of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    rows: usize,
    columns: usize,
    row_tiles: usize,
    column_tiles: usize,
    /// Over the whole batch.
    tiles: usize,
}

impl Tiling {
    /// The tiling with the least estimated time on `threads` threads: rounds of tiles, each of which multiplies, reads its
    /// operands, and packs what the library packs.
    fn choose(batch: usize, m: usize, n: usize, k: usize, threads: usize) -> Tiling {
        let mut best = Tiling { rows: m, columns: n, row_tiles: 1, column_tiles: 1, tiles: batch };
        if batch == 0 || m == 0 || n == 0 {
            return Tiling { tiles: 0, ..best };
        }
        let mut least = f64::INFINITY;
        for row_parts in 1..=threads {
            for column_parts in 1..=threads / row_parts {
                let rows = part(m, row_parts, ROW_STEP);
                let columns = part(n, column_parts, COLUMN_STEP);
                let (row_tiles, column_tiles) = (m.div_ceil(rows), n.div_ceil(columns));
                let Some(tiles) = row_tiles.checked_mul(column_tiles).and_then(|tiles| tiles.checked_mul(batch)) else {
                    continue;
                };
                let (r, c, depth) = (rows as f64, columns as f64, k as f64);
                // A single row or column goes to the library's matrix-vector kernel, which packs nothing.
                let per_element = if m == 1 || n == 1 { STREAM } else { PACK };
                let tile = r * c * depth + per_element * depth * (r + c);
                let rounds = tiles.div_ceil(threads) as f64;
                let time = rounds * tile + if tiles > 1 { DISPATCH } else { 0.0 };
                if time < least {
                    least = time;
                    best = Tiling { rows, columns, row_tiles, column_tiles, tiles };
                }
            }
        }
        best
    }
}

/// The size of each of `parts` parts of `extent`, a multiple of `step` when there is more than one.
fn part(extent: usize, parts: usize, step: usize) -> usize {
    if parts == 1 { extent } else { extent.div_ceil(parts).next_multiple_of(step).min(extent) }
}

impl Product {
    /// Prepares a product for a pool of `threads` threads.
    pub(crate) fn new(
        scalar: Scalar,
        [m, n, k]: [usize; 3],
        batch: Box<[BatchAxis]>,
        a: Operand,
        b: Operand,
        c: Operand,
        threads: usize,
    ) -> Product {
        let count = batch.iter().map(|axis| axis.extent).product();
        Product { scalar, m, n, k, batch, a, b, c, tiling: Tiling::choose(count, m, n, k, threads) }
    }

    /// Computes the product.
    ///
    /// # Safety
    /// `a` and `b` are valid for reads and `c` for writes at every element that the extents and strides reach; all are
    /// aligned to the scalar; no element of `c` is also one of `a` or `b`, or reached by two index tuples; nothing else
    /// writes them during the call.
    pub(crate) unsafe fn run(&self, pool: &Pool, a: *const u8, b: *const u8, c: *mut u8) {
        match self.scalar {
            // SAFETY: the caller's promise, for this scalar.
            Scalar::F32 => unsafe { self.run_as::<f32>(pool, a.cast(), b.cast(), c.cast()) },
            // SAFETY: as above.
            Scalar::F64 => unsafe { self.run_as::<f64>(pool, a.cast(), b.cast(), c.cast()) },
        }
    }

    /// # Safety
    /// As [`Product::run`], with `T` the product's scalar.
    unsafe fn run_as<T: Float>(&self, pool: &Pool, a: *const T, b: *const T, c: *mut T) {
        let operands = Pointers { a, b, c };
        // As many products as make a thread worth it, when single ones don't.
        let work = self.tiling.rows as f64 * self.tiling.columns as f64 * self.k.max(1) as f64;
        let grain = ((DISPATCH / work).ceil() as usize).max(1);
        pool.run(self.tiling.tiles, grain, &|begin, end, _| {
            for tile in begin..end {
                // SAFETY: the caller's promise; tiles of one product are disjoint in `c`.
                unsafe { self.run_tile(&operands, tile) };
            }
        });
    }

    /// # Safety
    /// As [`Product::run`], for the elements of this tile; `tile < tiling.tiles`.
    unsafe fn run_tile<T: Float>(&self, operands: &Pointers<T>, tile: usize) {
        let Tiling { rows, columns, row_tiles, column_tiles, .. } = self.tiling;
        let column = tile % column_tiles * columns;
        let rest = tile / column_tiles;
        let row = rest % row_tiles * rows;
        let mut at = rest / row_tiles;
        let [mut a_at, mut b_at, mut c_at] = [0isize; 3];
        for axis in self.batch.iter().rev() {
            let index = (at % axis.extent) as isize;
            at /= axis.extent;
            a_at += index * axis.strides[0];
            b_at += index * axis.strides[1];
            c_at += index * axis.strides[2];
        }
        a_at += row as isize * self.a.row_stride;
        b_at += column as isize * self.b.column_stride;
        c_at += row as isize * self.c.row_stride + column as isize * self.c.column_stride;
        // SAFETY: the offsets stay within the operands, by the caller's promise; the library reads and writes only the
        // elements of the given extents, and doesn't read `c` (`read_dst` is false).
        unsafe {
            gemm::gemm(
                rows.min(self.m - row),
                columns.min(self.n - column),
                self.k,
                operands.c.offset(c_at),
                self.c.column_stride,
                self.c.row_stride,
                false,
                operands.a.offset(a_at),
                self.a.column_stride,
                self.a.row_stride,
                operands.b.offset(b_at),
                self.b.column_stride,
                self.b.row_stride,
                T::ZERO,
                T::ONE,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

struct Pointers<T> {
    a: *const T,
    b: *const T,
    c: *mut T,
}

// SAFETY: the threads of one product read `a` and `b` and write disjoint tiles of `c` (`Product::run`).
unsafe impl<T> Sync for Pointers<T> {}

trait Float: Copy + 'static {
    const ZERO: Self;
    const ONE: Self;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::any::TypeId;

    use proptest::prelude::*;

    fn check_tiling(batch: usize, m: usize, n: usize, k: usize, threads: usize) -> Tiling {
        let tiling = Tiling::choose(batch, m, n, k, threads);
        assert_eq!(tiling.tiles, batch * tiling.row_tiles * tiling.column_tiles);
        assert!((tiling.row_tiles - 1) * tiling.rows < m && tiling.row_tiles * tiling.rows >= m);
        assert!((tiling.column_tiles - 1) * tiling.columns < n && tiling.column_tiles * tiling.columns >= n);
        tiling
    }

    #[test]
    fn large_products_use_all_threads() {
        for threads in [2, 4, 8, 16, 32, 64] {
            for (batch, m, n, k) in
                [(1, 1024, 1024, 1024), (1, 128, 3072, 768), (1, 4096, 512, 512), (12, 512, 512, 64)]
            {
                let tiling = check_tiling(batch, m, n, k, threads);
                let rounds = tiling.tiles.div_ceil(threads);
                let busiest = (rounds * tiling.rows * tiling.columns) as f64;
                let fair = (batch * m * n) as f64 / threads as f64;
                assert!(busiest <= fair * 1.5, "{threads} threads, {batch}x{m}x{n}x{k}: {tiling:?}");
            }
            // A matrix-vector product splits its columns.
            let tiling = check_tiling(1, 1, 4096, 4096, threads);
            assert!(tiling.column_tiles * 2 > threads, "{threads}: {tiling:?}");
        }
    }

    #[test]
    fn small_products_stay_whole() {
        assert_eq!(check_tiling(1, 16, 16, 16, 64).tiles, 1);
        assert_eq!(check_tiling(1, 1, 64, 64, 8).tiles, 1);
        assert_eq!(Tiling::choose(3, 0, 5, 5, 8).tiles, 0);
    }

    /// A matrix with the given order of its axes, gaps between rows, and NaN in the gaps.
    #[derive(Clone, Debug)]
    struct Strided {
        operand: Operand,
        batch_strides: Vec<isize>,
        length: usize,
    }

    fn strided(
        rows: usize,
        columns: usize,
        batch: &[usize],
        column_major: bool,
        gap: usize,
        broadcast: bool,
    ) -> Strided {
        let (row_stride, column_stride, area) = if column_major {
            (1, rows + gap, (rows + gap) * columns)
        } else {
            (columns + gap, 1, (columns + gap) * rows)
        };
        let mut length = area.max(1);
        let mut batch_strides = vec![0isize; batch.len()];
        for (axis, extent) in batch.iter().enumerate().rev() {
            if !(broadcast && axis == 0) {
                batch_strides[axis] = length as isize;
                length *= extent;
            }
        }
        let operand = Operand { row_stride: row_stride as isize, column_stride: column_stride as isize };
        Strided { operand, batch_strides, length }
    }

    fn run_case<T>(
        [m, n, k]: [usize; 3],
        batch: &[usize],
        majors: [bool; 3],
        gap: usize,
        broadcast: bool,
        pool: &Pool,
    ) -> Result<(), TestCaseError>
    where
        T: Float + Into<f64> + std::ops::Add<Output = T> + From<i16>,
    {
        let a = strided(m, k, batch, majors[0], gap, broadcast);
        let b = strided(k, n, batch, majors[1], gap, false);
        let c = strided(m, n, batch, majors[2], gap, false);
        // Small integers: every sum is exact, so the order of additions doesn't matter.
        let fill = |length: usize, seed: usize| -> Vec<T> {
            (0..length).map(|at| T::from(((at * 31 + seed * 17 + at / 7) % 15) as i16 - 7)).collect()
        };
        let (a_data, b_data) = (fill(a.length, 1), fill(b.length, 2));
        let untouched = 12345i16;
        let mut c_data = vec![T::from(untouched); c.length];
        let axes: Box<[BatchAxis]> = (0..batch.len())
            .map(|axis| BatchAxis {
                extent: batch[axis],
                strides: [a.batch_strides[axis], b.batch_strides[axis], c.batch_strides[axis]],
            })
            .collect();
        let scalar = if TypeId::of::<T>() == TypeId::of::<f32>() { Scalar::F32 } else { Scalar::F64 };
        let product = Product::new(scalar, [m, n, k], axes.clone(), a.operand, b.operand, c.operand, pool.threads());
        // SAFETY: the vectors hold every element that the strides reach, and are distinct.
        unsafe { product.run(pool, a_data.as_ptr().cast(), b_data.as_ptr().cast(), c_data.as_mut_ptr().cast()) };
        let mut expected: Vec<f64> = vec![f64::from(untouched); c.length];
        for mut flat in 0..batch.iter().product::<usize>() {
            let mut bases = [0isize; 3];
            for axis in axes.iter().rev() {
                let index = (flat % axis.extent) as isize;
                flat /= axis.extent;
                for (base, stride) in bases.iter_mut().zip(axis.strides) {
                    *base += index * stride;
                }
            }
            let index = |base: isize, operand: Operand, row: usize, column: usize| {
                (base + row as isize * operand.row_stride + column as isize * operand.column_stride) as usize
            };
            for row in 0..m {
                for column in 0..n {
                    expected[index(bases[2], c.operand, row, column)] = (0..k)
                        .map(|depth| {
                            let left: f64 = a_data[index(bases[0], a.operand, row, depth)].into();
                            let right: f64 = b_data[index(bases[1], b.operand, depth, column)].into();
                            left * right
                        })
                        .sum();
                }
            }
        }
        let got: Vec<f64> = c_data.into_iter().map(Into::into).collect();
        prop_assert_eq!(got, expected);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn agrees_with_the_definition(
            m in 0usize..70,
            n in 0usize..150,
            k in 0usize..60,
            batch in proptest::collection::vec(0usize..4, 0..3),
            majors in any::<[bool; 3]>(),
            gap in 0usize..4,
            broadcast in any::<bool>(),
            double in any::<bool>(),
            threads in prop_oneof![Just(1usize), Just(3), Just(16)],
        ) {
            let pool = Pool::shared(threads);
            if double {
                run_case::<f64>([m, n, k], &batch, majors, gap, broadcast, &pool)?;
            } else {
                run_case::<f32>([m, n, k], &batch, majors, gap, broadcast, &pool)?;
            }
        }

        #[test]
        fn vectors_agree_with_the_definition(
            m in prop_oneof![Just(1usize), Just(2)],
            n in 1usize..1500,
            k in 1usize..300,
            majors in any::<[bool; 3]>(),
            swap in any::<bool>(),
            threads in prop_oneof![Just(1usize), Just(4)],
        ) {
            let pool = Pool::shared(threads);
            let shape = if swap { [n, m, k] } else { [m, n, k] };
            run_case::<f32>(shape, &[], majors, 0, false, &pool)?;
        }
    }
}
