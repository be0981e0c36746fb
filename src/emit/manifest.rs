//! `manifest.json`: what an output directory holds and for what it was made. The loader, `forge-cc run` and `bench` read it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use forge_kernels::compile::{Compiler, FLAGS};
use forge_runtime::plan::{Plan, Port};
use forge_runtime::size::Size;
use serde::{Deserialize, Serialize};

use super::EmitError;
use super::host::Cpu;
use super::report::Report;

/// Bumped on any change that an older loader would misread.
pub const MANIFEST_VERSION: u32 = 1;
pub const MANIFEST_FILE: &str = "manifest.json";
/// Marks a manifest as ours, and so its directory as one that may be replaced.
pub const TOOL: &str = "forge-cc";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub tool: String,
    pub version: u32,
    pub tool_version: String,
    /// Names the model and its plans: equal for equal files.
    pub id: String,
    pub name: String,
    pub target: String,
    pub plans: Plans,
    /// Ranges of symbols inside which the forged plan runs. A symbol that is not listed may take any value.
    pub symbols: BTreeMap<String, SymbolRange>,
    /// For what the kernels were built.
    pub cpu: Cpu,
    pub kernels: Kernels,
    #[serde(flatten)]
    pub report: Report,
    /// Every file but this one and the journal, sorted by path.
    pub files: Vec<FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plans {
    pub forged: PlanEntry,
    pub original: PlanEntry,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanEntry {
    pub file: String,
    pub inputs: Vec<PortEntry>,
    pub outputs: Vec<PortEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortEntry {
    pub name: String,
    pub dtype: String,
    /// For inputs: the guard. A constant must be met, a symbol is bound by the call, an expression is checked.
    pub shape: Vec<Size>,
    /// Integer inputs: the values that make sense, as [low, high), for random inputs of the self-check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<(i64, i64)>,
}

/// Both ends inclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolRange {
    pub min: Option<i64>,
    pub max: Option<i64>,
    /// For which the search was made; the self-check uses it.
    pub typical: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    #[serde(flatten)]
    pub build: KernelBuild,
    /// The folder of their headers.
    pub include: String,
    pub files: Vec<KernelEntry>,
}

/// How kernels become libraries: `compiler flags.. -I include source -o library`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelBuild {
    /// A command name, looked up in PATH on the machine that rebuilds.
    pub compiler: String,
    pub compiler_version: String,
    /// Without include path, source and output.
    pub flags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelEntry {
    pub hash: String,
    pub source: String,
    pub library: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: String,
    pub bytes: u64,
    pub blake3: String,
}

impl KernelBuild {
    /// How `forge_kernels::compile` builds. The compiler's path is this machine's business; its usual name goes along.
    #[must_use]
    pub fn of(compiler: &Compiler) -> KernelBuild {
        KernelBuild {
            compiler: "c++".to_owned(),
            compiler_version: compiler.version().to_owned(),
            flags: FLAGS.iter().map(|flag| (*flag).to_owned()).collect(),
        }
    }
}

impl Manifest {
    /// The manifest of an output directory.
    ///
    /// # Errors
    /// No manifest is there, or it is not of this tool or version.
    pub fn read(directory: &Path) -> Result<Manifest, EmitError> {
        let path = directory.join(MANIFEST_FILE);
        let bytes = fs::read(&path).map_err(|source| EmitError::io("read", &path, source))?;
        let refuse = |reason: String| EmitError::Manifest { path: path.clone(), reason };
        let header: Header = serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        if header.tool != TOOL {
            return Err(refuse(format!("it was written by '{}'", header.tool)));
        }
        if header.version != MANIFEST_VERSION {
            let found = header.version;
            return Err(refuse(format!("it has version {found}, this forge-cc reads version {MANIFEST_VERSION}")));
        }
        serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))
    }

    /// Whether `directory` holds a manifest of this tool, of any version.
    pub(crate) fn marks(directory: &Path) -> bool {
        fs::read(directory.join(MANIFEST_FILE))
            .is_ok_and(|bytes| serde_json::from_slice::<Header>(&bytes).is_ok_and(|header| header.tool == TOOL))
    }
}

/// What every version has.
#[derive(Deserialize)]
struct Header {
    tool: String,
    version: u32,
}

impl PlanEntry {
    pub(crate) fn new(file: &str, plan: &Plan, values: &BTreeMap<String, (i64, i64)>) -> PlanEntry {
        let entry = |port: &Port, values: Option<(i64, i64)>| PortEntry {
            name: port.name.clone(),
            dtype: port.dtype.clone(),
            shape: port.shape.clone(),
            values,
        };
        PlanEntry {
            file: file.to_owned(),
            inputs: plan.inputs.iter().map(|port| entry(port, values.get(&port.name).copied())).collect(),
            outputs: plan.outputs.iter().map(|port| entry(port, None)).collect(),
        }
    }
}

impl PortEntry {
    /// `f32[batch, 384]`.
    #[must_use]
    pub fn type_text(&self) -> String {
        let extents: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        format!("{}[{}]", self.dtype, extents.join(", "))
    }
}
