//! A kernel candidate: device source plus a declarative launch plan. Data, never a program: allocation, launching, timing and
//! comparing are always ours.

use std::collections::BTreeMap;

use forge_ir::Dim;
use serde::{Deserialize, Serialize};

/// The language of a candidate's source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// C++17 for the system compiler, with `forge_cpu.hpp` on the include path.
    Cpp,
}

/// One way to compute a region.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Candidate {
    pub dialect: Dialect,
    /// Defines every symbol that the launch plan names, as `extern "C"`. Empty if only library calls are launched.
    pub source: String,
    pub launch: LaunchPlan,
    pub origin: Origin,
}

/// Who proposed a candidate, and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// `generic`, `template`, `user`, ...
    pub proposer: String,
    /// The template's or strategy's name.
    pub strategy: String,
    pub parameters: BTreeMap<String, String>,
    /// Content hash of the candidate that this one refines.
    pub parent: Option<String>,
}

/// What to launch, in order, over the region's operands.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Bytes of each intermediate buffer.
    pub temporaries: Vec<Dim>,
    /// Bytes of each buffer that `prepare` fills once from weight inputs.
    pub packed: Vec<Dim>,
    /// Run once at load; may read only inputs that are weights, and write only packed buffers.
    pub prepare: Vec<Launch>,
    pub launches: Vec<Launch>,
}

/// A buffer seen from a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    Input(usize),
    Output(usize),
    Temporary(usize),
    Packed(usize),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "launch", rename_all = "snake_case")]
pub enum Launch {
    /// `symbol(buffers = reads ++ writes, sizes, begin, end, scratch)` over ranges of [0, grid); see
    /// [`forge_runtime::plan::KernelStep`].
    Kernel {
        symbol: String,
        reads: Vec<Slot>,
        writes: Vec<Slot>,
        sizes: Vec<Dim>,
        grid: Dim,
        grain: Dim,
        /// Bytes per running range.
        scratch: Dim,
    },
    /// A library matrix product; strides in elements.
    Gemm { dtype: String, m: Dim, n: Dim, k: Dim, batch: Vec<Dim>, a: MatrixSlot, b: MatrixSlot, c: MatrixSlot },
    /// Bytes of one slot to another of the same size.
    Copy { from: Slot, to: Slot },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MatrixSlot {
    pub slot: Slot,
    pub row_stride: Dim,
    pub column_stride: Dim,
    pub batch_strides: Vec<Dim>,
}

impl Candidate {
    /// The content address: what two equal candidates share, whoever proposed them.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.source.as_bytes());
        hasher.update(&[0]);
        // Serialising plain data into memory cannot fail.
        hasher.update(&serde_json::to_vec(&self.launch).unwrap_or_default());
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// A one-line name for reports: `template/rowwise{stage=costly}`.
    #[must_use]
    pub fn title(&self) -> String {
        let parameters: Vec<String> = self.origin.parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
        format!("{}/{}{{{}}}", self.origin.proposer, self.origin.strategy, parameters.join(", "))
    }
}
