//! Steps with every size known: what remains of a call is to fill in the caller's addresses and to go.

use std::ffi::c_void;

use crate::error::RuntimeError;
use crate::gemm::{BatchAxis, Operand, Product, Scalar};
use crate::memory::Memory;
use crate::modules::KernelFunction;
use crate::plan::{BufferId, GemmStep, Matrix, Step};
use crate::pool::Pool;
use crate::size::{Size, Symbols};
use crate::validate::label;

/// Bytes that one thread copies at least; less isn't worth waking it.
const COPY_GRAIN: usize = 256 * 1024;

/// The bytes of a buffer: known when the program is built, or the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Fixed(*mut u8),
    Input(usize),
    Output(usize),
}

/// Steps ready to run, and the one array of addresses that they take theirs from.
pub(crate) struct Program {
    steps: Vec<Ready>,
    /// Reads then writes of every step, one after another.
    addresses: Vec<*mut u8>,
    /// Slots of `addresses` that each call fills in.
    inputs: Vec<(usize, usize)>,
    outputs: Vec<(usize, usize)>,
    /// Largest over the steps.
    scratch_bytes: usize,
}

// SAFETY: the addresses point into memory that the owner of the program keeps (arena, weights, the caller's buffers for the
// length of a call); nothing in it is tied to a thread.
unsafe impl Send for Program {}

enum Ready {
    Kernel { function: KernelFunction, slot: usize, sizes: Box<[i64]>, grid: usize, grain: usize, scratch: usize },
    Gemm { product: Box<Product>, slot: usize },
    Copy { slot: usize, bytes: usize },
}

/// Scratch of all threads: thread `i` has the bytes from `i * stride + offset` on.
pub(crate) struct Scratch {
    pub(crate) memory: Memory,
    pub(crate) stride: usize,
    pub(crate) offset: usize,
    pub(crate) threads: usize,
}

impl Scratch {
    fn start(&self, thread: usize) -> *mut u8 {
        self.memory.address().wrapping_add(thread * self.stride + self.offset)
    }

    /// Of each thread.
    pub(crate) fn starts(&self) -> impl Iterator<Item = *mut u8> {
        (0..self.threads).map(|thread| self.start(thread))
    }
}

/// Moves what a step needs to other threads.
#[derive(Clone, Copy)]
struct Across<T>(T);

// SAFETY: used for addresses of buffers whose parts the threads of a step access as the step's contract says: reads shared,
// writes disjoint, scratch per thread.
unsafe impl<T> Sync for Across<T> {}

impl<T: Copy> Across<T> {
    fn get(&self) -> T {
        self.0
    }
}

/// What a program is built from.
pub(crate) struct Sources<'a> {
    pub(crate) phase: &'static str,
    pub(crate) steps: &'a [Step],
    pub(crate) functions: &'a [Option<KernelFunction>],
    pub(crate) symbols: &'a Symbols,
    /// By buffer, aliases resolved.
    pub(crate) places: &'a [Place],
    pub(crate) bytes: &'a [usize],
    pub(crate) threads: usize,
}

/// The value of a size that counts something.
pub(crate) fn count(size: &Size, symbols: &Symbols, at: &dyn Fn() -> String) -> Result<usize, RuntimeError> {
    let value = size.eval(symbols).map_err(|source| RuntimeError::Size { at: at(), source })?;
    usize::try_from(value)
        .map_err(|_| RuntimeError::Malformed(format!("{}: size '{size}' is {value}, which is negative", at())))
}

impl Program {
    pub(crate) fn build(sources: &Sources<'_>) -> Result<Program, RuntimeError> {
        let mut program = Program {
            steps: Vec::with_capacity(sources.steps.len()),
            addresses: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scratch_bytes: 0,
        };
        for (index, step) in sources.steps.iter().enumerate() {
            let at = || format!("{} {index} ({})", sources.phase, label(step));
            let slot = program.addresses.len();
            let ready = match step {
                Step::Kernel(kernel) => {
                    let value = |size: &Size| {
                        size.eval(sources.symbols).map_err(|source| RuntimeError::Size { at: at(), source })
                    };
                    let Some(function) = sources.functions.get(index).copied().flatten() else {
                        return Err(RuntimeError::Malformed(format!("{} has no function", at())));
                    };
                    program.take_addresses(sources, kernel.reads.iter().chain(&kernel.writes));
                    let scratch = count(&kernel.scratch, sources.symbols, &at)?;
                    program.scratch_bytes = program.scratch_bytes.max(scratch);
                    Ready::Kernel {
                        function,
                        slot,
                        sizes: kernel.sizes.iter().map(value).collect::<Result<_, _>>()?,
                        grid: count(&kernel.grid, sources.symbols, &at)?,
                        grain: usize::try_from(value(&kernel.grain)?.max(1)).unwrap_or(1),
                        scratch,
                    }
                }
                Step::Gemm(gemm) => {
                    program.take_addresses(sources, [&gemm.a.buffer, &gemm.b.buffer, &gemm.c.buffer]);
                    Ready::Gemm { product: Box::new(product(gemm, sources, &at)?), slot }
                }
                Step::Copy { from, to } => {
                    let bytes = [from, to].map(|id| sources.bytes[id.0 as usize]);
                    if bytes[0] != bytes[1] {
                        let what = format!("{} copies {} bytes into {}", at(), bytes[0], bytes[1]);
                        return Err(RuntimeError::Malformed(what));
                    }
                    program.take_addresses(sources, [from, to]);
                    Ready::Copy { slot, bytes: bytes[0] }
                }
            };
            program.steps.push(ready);
        }
        Ok(program)
    }

    fn take_addresses<'a>(&mut self, sources: &Sources<'_>, buffers: impl IntoIterator<Item = &'a BufferId>) {
        for buffer in buffers {
            let slot = self.addresses.len();
            // A caller's address is written by `bind` before any step runs.
            let unbound = std::ptr::null_mut();
            self.addresses.push(match sources.places[buffer.0 as usize] {
                Place::Fixed(address) => address,
                Place::Input(index) => {
                    self.inputs.push((slot, index));
                    unbound
                }
                Place::Output(index) => {
                    self.outputs.push((slot, index));
                    unbound
                }
            });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Bytes of scratch that step `index` may use.
    pub(crate) fn step_scratch(&self, index: usize) -> usize {
        match self.steps.get(index) {
            Some(Ready::Kernel { scratch, .. }) => *scratch,
            _ => 0,
        }
    }

    /// Fills in the caller's addresses.
    pub(crate) fn bind(&mut self, input: impl Fn(usize) -> *const u8, output: impl Fn(usize) -> *mut u8) {
        for &(slot, index) in &self.inputs {
            // Kernels receive all buffers as `void*`; those that they read they don't write.
            self.addresses[slot] = input(index).cast_mut();
        }
        for &(slot, index) in &self.outputs {
            self.addresses[slot] = output(index);
        }
    }

    /// Runs step `index`.
    ///
    /// # Safety
    /// Every buffer of the step is bound and valid for its size, reads and writes are disjoint, `scratch` has room for
    /// `step_scratch(index)` bytes for each thread of the pool, and kernels keep to their contract.
    pub(crate) unsafe fn run_step(&self, index: usize, pool: &Pool, scratch: &Scratch) {
        let address = |slot: usize| self.addresses[slot];
        match &self.steps[index] {
            Ready::Kernel { function, slot, sizes, grid, grain, .. } => {
                let buffers = Across(self.addresses[*slot..].as_ptr().cast::<*mut c_void>());
                pool.run(*grid, *grain, &|begin, end, thread| {
                    let own = scratch.start(thread);
                    // SAFETY: the caller's promise about buffers and kernels; ranges are disjoint and within the grid,
                    // which fits i64 because it came from one; scratch is this thread's.
                    unsafe { function(buffers.get(), sizes.as_ptr(), begin as i64, end as i64, own.cast()) };
                });
            }
            Ready::Gemm { product, slot } => {
                // SAFETY: `product` checked that its elements lie within the buffers; the caller promises the rest.
                unsafe { product.run(pool, address(*slot), address(slot + 1), address(slot + 2)) };
            }
            // SAFETY: both buffers have `bytes` bytes and are disjoint, by the caller's promise.
            Ready::Copy { slot, bytes } => unsafe { copy(pool, address(*slot), address(slot + 1), *bytes) },
        }
    }
}

/// Copies on several threads when it is worth it.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes` bytes, and they don't overlap.
pub(crate) unsafe fn copy(pool: &Pool, from: *const u8, to: *mut u8, bytes: usize) {
    let ends = Across((from, to));
    pool.run(bytes, COPY_GRAIN, &|begin, end, _| {
        let (from, to) = ends.get();
        // SAFETY: the range is within both blocks, which don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.add(begin), to.add(begin), end - begin) };
    });
}

fn product(gemm: &GemmStep, sources: &Sources<'_>, at: &dyn Fn() -> String) -> Result<Product, RuntimeError> {
    let value = |size: &Size| count(size, sources.symbols, at);
    let [m, n, k] = [value(&gemm.m)?, value(&gemm.n)?, value(&gemm.k)?];
    let (scalar, element) = if gemm.dtype == "f64" { (Scalar::F64, 8) } else { (Scalar::F32, 4) };
    let batch: Vec<usize> = gemm.batch.iter().map(value).collect::<Result<_, _>>()?;
    let operand = |name: &str, matrix: &Matrix, rows: usize, columns: usize| {
        let strides = [value(&matrix.row_stride)?, value(&matrix.column_stride)?];
        let along: Vec<usize> = matrix.batch_strides.iter().map(value).collect::<Result<_, _>>()?;
        let axes = || [rows, columns].into_iter().zip(strides).chain(batch.iter().copied().zip(along.iter().copied()));
        let available = sources.bytes[matrix.buffer.0 as usize];
        if axes().all(|(extent, _)| extent > 0) {
            let reach =
                axes().try_fold(0usize, |last, (extent, stride)| last.checked_add((extent - 1).checked_mul(stride)?));
            let needed = reach.and_then(|last| last.checked_add(1)?.checked_mul(element));
            if needed.is_none_or(|needed| needed > available) {
                let needed = needed.map_or("too many".to_owned(), |needed| needed.to_string());
                let what = format!("{}: {name} reaches {needed} bytes of a buffer of {available}", at());
                return Err(RuntimeError::Malformed(what));
            }
            // Two threads must never write one element.
            if name == "c" && axes().any(|(extent, stride)| extent > 1 && stride == 0) {
                return Err(RuntimeError::Malformed(format!("{}: c has a zero stride", at())));
            }
        }
        let signed = |stride: usize| stride as isize;
        let operand = Operand { row_stride: signed(strides[0]), column_stride: signed(strides[1]) };
        Ok((operand, along.into_iter().map(signed).collect::<Vec<isize>>()))
    };
    let (a, a_along) = operand("a", &gemm.a, m, k)?;
    let (b, b_along) = operand("b", &gemm.b, k, n)?;
    let (c, c_along) = operand("c", &gemm.c, m, n)?;
    if batch.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent)).is_none() {
        return Err(RuntimeError::Malformed(format!("{}: the batch overflows", at())));
    }
    let axes = (0..batch.len())
        .map(|axis| BatchAxis { extent: batch[axis], strides: [a_along[axis], b_along[axis], c_along[axis]] })
        .collect();
    Ok(Product::new(scalar, [m, n, k], axes, a, b, c, sources.threads))
}
