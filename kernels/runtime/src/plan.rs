//! The serialised plan: what the compiler emits and the runtime executes. Data only.

use serde::{Deserialize, Serialize};

use crate::size::Size;

/// Bumped on any change that an older runtime would misread.
pub const PLAN_VERSION: u32 = 1;

/// An executable graph: steps over numbered buffers. Sizes may name symbols, which the input shapes bind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub version: u32,
    pub name: String,
    /// `cpu`; other targets are other plans.
    pub target: String,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub buffers: Vec<Buffer>,
    pub modules: Vec<Module>,
    /// Run once at load, in order: they fill `Prepared` buffers (packed weights) from weights.
    pub prepare: Vec<Step>,
    /// Run on each call, in order.
    pub steps: Vec<Step>,
}

/// A graph input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    pub name: String,
    /// `f32`, `i64`, `bool`, ...
    pub dtype: String,
    /// A constant is a guard; a bare symbol is bound by the call; any other expression is checked once symbols are bound.
    pub shape: Vec<Size>,
    pub buffer: BufferId,
}

/// Index into [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

/// A dense, 64-byte aligned (caller memory and weights: element-aligned) block of bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    pub bytes: Size,
    #[serde(flatten)]
    pub storage: Storage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "storage", rename_all = "snake_case")]
pub enum Storage {
    /// Caller memory, read only.
    Input { index: u32 },
    /// Caller memory, written.
    Output { index: u32 },
    /// A tensor of the weights file, mapped, read only.
    Weight { name: String },
    /// Allocated at load, written by `prepare` steps only. `bytes` is constant.
    Prepared,
    /// In the arena; its life is first write to last read.
    Arena,
    /// The same bytes as another buffer (a reshape).
    Alias { of: BufferId },
}

/// A shared library of compiled kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Path relative to the plan's folder.
    pub file: String,
    /// blake3 of the file, hex; checked at load when not empty.
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    Kernel(KernelStep),
    Gemm(GemmStep),
    /// Copies the whole of `from` to `to` (equal sizes).
    Copy {
        from: BufferId,
        to: BufferId,
    },
}

/// A call of `void symbol(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch)` for
/// disjoint ranges [begin, end) that together cover [0, grid), in any order, on any thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelStep {
    pub module: u32,
    pub symbol: String,
    /// `buffers` is reads then writes.
    pub reads: Vec<BufferId>,
    pub writes: Vec<BufferId>,
    pub sizes: Vec<Size>,
    pub grid: Size,
    /// Fewest indices worth handing to a thread.
    pub grain: Size,
    /// Bytes of 64-byte aligned scratch that each running range may use.
    pub scratch: Size,
    /// What it computes, for profiles and reports.
    pub label: String,
}

/// `c[batch] = a[batch] * b[batch]`, [m, k] x [k, n], through the GEMM library. Strides are in elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GemmStep {
    /// `f32` or `f64`.
    pub dtype: String,
    pub m: Size,
    pub n: Size,
    pub k: Size,
    /// Extents of the batch axes; empty for one product.
    pub batch: Vec<Size>,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub label: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    pub buffer: BufferId,
    pub row_stride: Size,
    pub column_stride: Size,
    /// One stride per batch axis; 0 broadcasts.
    pub batch_strides: Vec<Size>,
}
