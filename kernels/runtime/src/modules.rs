//! Compiled kernels: shared libraries beside the plan, opened once at load.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::RuntimeError;
use crate::mapped::map_file;
use crate::plan::{Module, Plan, Step};

/// `void symbol(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch)`; see
/// [`crate::plan::KernelStep`].
pub type KernelFunction =
    unsafe extern "C" fn(buffers: *const *mut c_void, sizes: *const i64, begin: i64, end: i64, scratch: *mut c_void);

/// The libraries of a plan. Function pointers taken from it are valid while it lives.
pub(crate) struct Modules {
    libraries: Vec<(PathBuf, Library)>,
}

impl Modules {
    /// Opens every module of the plan in `folder` (an absolute path), after checking its hash.
    pub(crate) fn open(plan: &Plan, folder: &Path) -> Result<Modules, RuntimeError> {
        let libraries: Result<_, RuntimeError> = plan.modules.iter().map(|module| open(module, folder)).collect();
        Ok(Modules { libraries: libraries? })
    }

    /// The function of each kernel step.
    pub(crate) fn resolve(&self, steps: &[Step]) -> Result<Vec<Option<KernelFunction>>, RuntimeError> {
        let function = |step: &Step| {
            let Step::Kernel(kernel) = step else { return Ok(None) };
            let Some((path, library)) = self.libraries.get(kernel.module as usize) else {
                return Err(RuntimeError::Malformed(format!("module {} does not exist", kernel.module)));
            };
            // SAFETY: a plan's kernels have this signature; the compiler that wrote the plan generated them so.
            let symbol = unsafe { library.get::<KernelFunction>(kernel.symbol.as_bytes()) };
            match symbol {
                Ok(symbol) => Ok(Some(*symbol)),
                Err(error) => Err(RuntimeError::Module {
                    path: path.clone(),
                    reason: format!("no symbol '{}': {error}", kernel.symbol),
                }),
            }
        };
        steps.iter().map(function).collect()
    }
}

fn open(module: &Module, folder: &Path) -> Result<(PathBuf, Library), RuntimeError> {
    let path = folder.join(&module.file);
    let fail = |reason: String| RuntimeError::Module { path: path.clone(), reason };
    if !module.hash.is_empty() {
        let bytes = map_file(&path).map_err(|source| RuntimeError::Io { path: path.clone(), source })?;
        let found = blake3::hash(&bytes).to_hex();
        if found.as_str() != module.hash {
            return Err(fail(format!("its hash is {found}, the plan expects {}", module.hash)));
        }
    }
    // SAFETY: loading runs the library's initialisers. A plan's modules are trusted as the plan is: they are code that the
    // compiler built, kept inside the plan's folder (`validate`), and checked against the plan's hash.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    match library {
        Ok(library) => Ok((path, library)),
        Err(error) => Err(fail(error.to_string())),
    }
}
