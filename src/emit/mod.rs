//! What a run leaves behind: the output directory, which PyTorch imports.
//!
//! What lives here: the layout of that directory ([`emit()`]), its manifest ([`manifest`]), the loader `forged.py`, the weights
//! file ([`weights`]), the report ([`report`]). What never lives here: planning, search, measurement: all that comes in as
//! data, in [`Output`].
//!
//! An output directory is self-contained and may be moved. It is replaced as a whole or left as it was ([`emit()`]).

pub mod host;
mod loader;
pub mod manifest;
pub mod onnx_model;
mod page;
pub mod report;
mod runtime_library;
mod staging;
pub mod weights;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use forge_ir::{Graph, Tensor};
use forge_runtime::plan::{Plan, Storage};

use self::host::Cpu;
use self::manifest::{
    FileEntry, KernelBuild, KernelEntry, Kernels, MANIFEST_FILE, MANIFEST_VERSION, Manifest, PlanEntry, Plans,
    SymbolRange, TOOL,
};
use self::report::Report;
pub use self::runtime_library::{RUNTIME_LIBRARY, RUNTIME_VARIABLE, find_runtime_library};
use self::staging::Staging;
pub use self::staging::{JOURNAL_FOLDER, check_target};
use self::weights::WeightsLayout;

pub const FORGED_PLAN: &str = "plan.json";
pub const ORIGINAL_PLAN: &str = "original.plan.json";
pub const WEIGHTS_FILE: &str = "weights.safetensors";
pub const LOADER_FILE: &str = "forged.py";
pub const ONNX_FILE: &str = "model.forged.onnx";
const KERNELS_FOLDER: &str = "kernels";
const INCLUDE_FOLDER: &str = "kernels/include";

/// All that an output directory is made of.
#[derive(Clone, Debug)]
pub struct Output<'a> {
    pub name: &'a str,
    pub forged: PlannedGraph<'a>,
    /// Unrewritten, its symbolic shapes kept: what runs outside the guards of `forged`.
    pub original: PlannedGraph<'a>,
    /// Every library that either plan names as a module; one that both name may come twice.
    pub kernels: &'a [Kernel<'a>],
    pub kernel_build: KernelBuild,
    /// (file name, text) of what kernels include, for rebuilding them elsewhere.
    pub kernel_headers: &'a [(&'a str, &'a str)],
    pub cpu: Cpu,
    /// See [`find_runtime_library`].
    pub runtime_library: &'a Path,
    /// Ranges inside which the forged plan may run; a symbol without an entry may take any value.
    pub symbols: BTreeMap<String, SymbolRange>,
    /// Integer inputs: the values [low, high) that make sense, for the self-check of the loader.
    pub input_values: BTreeMap<String, (i64, i64)>,
    /// `model.forged.onnx`. [`WeightsLayout`] tells where weights lie, so that it may refer to them as external data.
    pub onnx: Option<&'a [u8]>,
    pub report: &'a Report,
    /// Becomes `journal/`, unchanged. Files that lie in the replaced directory stay the same files, so that a writer may
    /// go on appending.
    pub journal: Option<&'a Path>,
}

#[derive(Clone, Copy, Debug)]
pub struct PlannedGraph<'a> {
    pub graph: &'a Graph,
    /// Its modules are found among [`Output::kernels`] by the stem of their file name; folders don't matter.
    pub plan: &'a Plan,
    /// Every tensor that the plan names, at least. Where both plans have one under the same name and the tensors differ,
    /// that of the original is renamed.
    pub weights: &'a BTreeMap<String, Tensor>,
}

#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The compiled library; the stem of its name becomes the name in `kernels/`.
    pub library: &'a Path,
    pub source: &'a str,
}

/// Why nothing was emitted. [`EmitError::help`] says what to do.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    #[error("{} is not empty, and not an output of forge-cc", directory.display())]
    Occupied { directory: PathBuf },
    #[error("{} is a file", path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} holds the current directory", directory.display())]
    InUse { directory: PathBuf },
    #[error("{RUNTIME_LIBRARY} was not found{}", places(searched))]
    RuntimeMissing { searched: Vec<PathBuf> },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} cannot be read: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
    #[error("the weight name '{name}' {reason}")]
    WeightName { name: String, reason: &'static str },
    #[error("the weights do not make a safetensors file: {reason}")]
    WeightsHeader { reason: String },
    #[error("{plan} names the weight '{name}' of {expected} bytes; there is {}", found.map_or("none".to_owned(), |n| format!("one of {n} bytes")))]
    Weight { plan: &'static str, name: String, expected: String, found: Option<usize> },
    #[error("{plan} names the kernel library {file}, which is not among the kernels")]
    UnknownKernel { plan: &'static str, file: String },
    #[error("the kernel library {} {reason}", path.display())]
    Kernel { path: PathBuf, reason: &'static str },
}

fn places(searched: &[PathBuf]) -> String {
    searched.iter().map(|path| format!("\n  not at {}", path.display())).collect()
}

impl EmitError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> EmitError {
        EmitError::Io { action, path: path.to_owned(), source }
    }

    /// What the person may do about it; `None` where the message says all.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            EmitError::Occupied { .. } => {
                Some("choose another directory, or pass --force to replace this one and all that is in it".into())
            }
            EmitError::NotADirectory { .. } => Some("choose another name for the output directory".into()),
            EmitError::InUse { .. } => Some(
                "the output directory is replaced as a whole: run forge-cc from outside it, or choose another".into(),
            ),
            EmitError::RuntimeMissing { .. } => Some(format!(
                "put {RUNTIME_LIBRARY} beside the forge-cc executable, or name it in {RUNTIME_VARIABLE}; \
                 `cargo build` leaves it in target/*/deps"
            )),
            EmitError::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => Some("check who may write there".into()),
                io::ErrorKind::StorageFull => Some("free some space; the previous output is untouched".into()),
                io::ErrorKind::CrossesDevices | io::ErrorKind::ResourceBusy => {
                    Some("a mount point cannot be replaced: choose a directory inside it".into())
                }
                _ => None,
            },
            EmitError::Manifest { .. } => Some("is this an output directory of this version of forge-cc?".into()),
            EmitError::WeightName { .. } => Some("rename the weight in the model".into()),
            EmitError::WeightsHeader { .. }
            | EmitError::Weight { .. }
            | EmitError::UnknownKernel { .. }
            | EmitError::Kernel { .. } => Some("this is a bug in forge-cc; the previous output is untouched".into()),
        }
    }
}

/// Writes the output directory `directory`: to a sibling folder, which takes its place in one step at the end.
///
/// An earlier output and an empty directory are replaced; any other only with `force`.
///
/// # Errors
/// `directory` then is what it was before: see [`check_target`] for what is refused. An unfinished sibling folder
/// (`.NAME.forge-*`) remains only of a killed process.
pub fn emit(output: &Output<'_>, directory: &Path, force: bool) -> Result<Manifest, EmitError> {
    let staging = Staging::begin(directory, force)?;
    let manifest = write_all(output, &staging)?;
    staging.commit()?;
    Ok(manifest)
}

fn write_all(output: &Output<'_>, staging: &Staging) -> Result<Manifest, EmitError> {
    let mut folder = Folder { root: staging.root(), files: Vec::new() };
    let libraries = write_kernels(output, &mut folder)?;
    let (weights, renamed) = merged_weights(output.forged.weights, output.original.weights);
    let layout = WeightsLayout::new(&weights)?;
    let mut id = blake3::Hasher::new();
    for (file, planned, names) in
        [(FORGED_PLAN, output.forged, &BTreeMap::new()), (ORIGINAL_PLAN, output.original, &renamed)]
    {
        check_weights(file, &planned)?;
        let mut plan = planned.plan.clone();
        place_modules(file, &mut plan, &libraries)?;
        rename_weights(&mut plan, names);
        id.update(folder.write_json(file, &plan)?.as_bytes());
    }
    id.update(folder.write(WEIGHTS_FILE, |out| layout.write(out))?.as_bytes());
    folder.write_text("graph.forge", &output.forged.graph.to_string())?;
    folder.write_text("original.forge", &output.original.graph.to_string())?;
    folder.copy(RUNTIME_LIBRARY, output.runtime_library)?;
    if let Some(bytes) = output.onnx {
        folder.write(ONNX_FILE, |out| out.write_all(bytes))?;
    }
    let plan = |file, planned: PlannedGraph<'_>| PlanEntry::new(file, planned.plan, &output.input_values);
    let mut manifest = Manifest {
        tool: TOOL.to_owned(),
        version: MANIFEST_VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        id: id.finalize().to_hex()[..32].to_owned(),
        name: output.name.to_owned(),
        target: output.forged.plan.target.clone(),
        plans: Plans { forged: plan(FORGED_PLAN, output.forged), original: plan(ORIGINAL_PLAN, output.original) },
        symbols: output.symbols.clone(),
        cpu: output.cpu.clone(),
        kernels: Kernels {
            build: output.kernel_build.clone(),
            include: INCLUDE_FOLDER.to_owned(),
            files: libraries.into_values().map(|library| library.entry).collect(),
        },
        report: output.report.clone(),
        files: Vec::new(),
    };
    folder.write_text(LOADER_FILE, &loader::loader(&manifest))?;
    folder.write_text("report.html", &page::page(&manifest))?;
    if let Some(journal) = output.journal {
        let own = fs::canonicalize(journal).is_ok_and(|path| path.starts_with(staging.target()));
        copy_folder(journal, &staging.root().join(JOURNAL_FOLDER), own)?;
    }
    manifest.files = std::mem::take(&mut folder.files);
    manifest.files.sort_by(|a, b| a.path.cmp(&b.path));
    folder.write_json(MANIFEST_FILE, &manifest)?;
    Ok(manifest)
}

/// A kernel library as it lies in the output.
struct Library {
    entry: KernelEntry,
    blake3: String,
}

/// Libraries by the stem of their name.
fn write_kernels(output: &Output<'_>, folder: &mut Folder<'_>) -> Result<BTreeMap<String, Library>, EmitError> {
    let mut libraries = BTreeMap::new();
    let mut seen = HashMap::new();
    for kernel in output.kernels {
        let refuse = |reason| EmitError::Kernel { path: kernel.library.to_owned(), reason };
        let stem = stem(kernel.library).ok_or_else(|| refuse("has a name that is no plain word"))?;
        let entry = KernelEntry {
            hash: stem.to_owned(),
            source: format!("{KERNELS_FOLDER}/{stem}.cpp"),
            library: format!("{KERNELS_FOLDER}/{stem}.so"),
        };
        if let Some((library, source)) = seen.insert(stem, (kernel.library, kernel.source)) {
            if (library, source) != (kernel.library, kernel.source) {
                return Err(refuse("shares its name with another"));
            }
            continue;
        }
        folder.write_text(&entry.source, kernel.source)?;
        let blake3 = folder.copy(&entry.library, kernel.library)?;
        libraries.insert(stem.to_owned(), Library { entry, blake3 });
    }
    if !libraries.is_empty() {
        for (name, text) in output.kernel_headers {
            folder.write_text(&format!("{INCLUDE_FOLDER}/{name}"), text)?;
        }
    }
    Ok(libraries)
}

/// The name of a library without folder and extension, if it is a plain word.
fn stem(path: &Path) -> Option<&str> {
    let stem = path.file_stem()?.to_str()?;
    stem.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_').then_some(stem)
}

/// Points the modules of a plan at where the output has them.
fn place_modules(name: &'static str, plan: &mut Plan, libraries: &BTreeMap<String, Library>) -> Result<(), EmitError> {
    for module in &mut plan.modules {
        let known = stem(Path::new(&module.file)).and_then(|stem| libraries.get(stem));
        let Some(library) = known else {
            return Err(EmitError::UnknownKernel { plan: name, file: module.file.clone() });
        };
        if !module.hash.is_empty() && module.hash != library.blake3 {
            let reason = "is not the one that was validated: its hash is another";
            return Err(EmitError::Kernel { path: PathBuf::from(&module.file), reason });
        }
        module.file.clone_from(&library.entry.library);
        module.hash.clone_from(&library.blake3);
    }
    Ok(())
}

/// Every weight of the plan must be there, as long as the plan takes it to be.
fn check_weights(name: &'static str, planned: &PlannedGraph<'_>) -> Result<(), EmitError> {
    for buffer in &planned.plan.buffers {
        let Storage::Weight { name: weight } = &buffer.storage else { continue };
        let found = planned.weights.get(weight).map(|tensor| tensor.bytes().len());
        let fits = found.is_some_and(|bytes| i64::try_from(bytes).ok() == buffer.bytes.as_const());
        if !fits {
            let expected = buffer.bytes.to_string();
            return Err(EmitError::Weight { plan: name, name: weight.clone(), expected, found });
        }
    }
    Ok(())
}

/// The weights of both plans, and the new names of those of the original that a forged one has taken. Front ends name
/// weights alike, but constants are numbered by each plan for itself.
fn merged_weights(
    forged: &BTreeMap<String, Tensor>,
    original: &BTreeMap<String, Tensor>,
) -> (Vec<(String, Tensor)>, BTreeMap<String, String>) {
    let mut merged: Vec<(String, Tensor)> =
        forged.iter().map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    let mut renamed = BTreeMap::new();
    for (name, tensor) in original {
        let kept = match forged.get(name) {
            Some(same) if same == tensor => continue,
            None => name.clone(),
            Some(_) => {
                let mut free = format!("original.{name}");
                while forged.contains_key(&free) || original.contains_key(&free) {
                    free.push('_');
                }
                renamed.insert(name.clone(), free.clone());
                free
            }
        };
        merged.push((kept, tensor.clone()));
    }
    (merged, renamed)
}

fn rename_weights(plan: &mut Plan, names: &BTreeMap<String, String>) {
    for buffer in &mut plan.buffers {
        if let Storage::Weight { name } = &mut buffer.storage
            && let Some(renamed) = names.get(name)
        {
            name.clone_from(renamed);
        }
    }
}

/// Copies all files below `from`. With `link` they become the same files under a second name.
fn copy_folder(from: &Path, to: &Path, link: bool) -> Result<(), EmitError> {
    fs::create_dir_all(to).map_err(|source| EmitError::io("create", to, source))?;
    let entries = fs::read_dir(from).map_err(|source| EmitError::io("list", from, source))?;
    for entry in entries {
        let path = entry.map_err(|source| EmitError::io("list", from, source))?.path();
        let Some(name) = path.file_name() else { continue };
        let place = to.join(name);
        if path.is_dir() {
            copy_folder(&path, &place, link)?;
        } else if !link || fs::hard_link(&path, &place).is_err() {
            fs::copy(&path, &place).map_err(|source| EmitError::io("copy", &path, source))?;
        }
    }
    Ok(())
}

/// The directory that is being written, and the hashes of what is in it.
struct Folder<'a> {
    root: &'a Path,
    files: Vec<FileEntry>,
}

impl Folder<'_> {
    /// Writes a file as a stream; its blake3.
    fn write(
        &mut self,
        relative: &str,
        body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<String, EmitError> {
        let path = self.root.join(relative);
        let fail = |source| EmitError::io("write", &path, source);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(fail)?;
        }
        let file = File::create_new(&path).map_err(fail)?;
        let mut out = Hashing { out: BufWriter::with_capacity(1 << 20, file), hasher: blake3::Hasher::new(), bytes: 0 };
        body(&mut out).and_then(|()| out.flush()).map_err(fail)?;
        let blake3 = out.hasher.finalize().to_hex().to_string();
        self.files.push(FileEntry { path: relative.to_owned(), bytes: out.bytes, blake3: blake3.clone() });
        Ok(blake3)
    }

    fn write_text(&mut self, relative: &str, text: &str) -> Result<String, EmitError> {
        self.write(relative, |out| out.write_all(text.as_bytes()))
    }

    fn write_json(&mut self, relative: &str, value: &impl serde::Serialize) -> Result<String, EmitError> {
        self.write(relative, |out| {
            serde_json::to_writer_pretty(&mut *out, value)?;
            out.write_all(b"\n")
        })
    }

    fn copy(&mut self, relative: &str, from: &Path) -> Result<String, EmitError> {
        let mut source = File::open(from).map_err(|source| EmitError::io("read", from, source))?;
        self.write(relative, |out| io::copy(&mut source, out).map(|_| ()))
    }
}

struct Hashing<W> {
    out: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
