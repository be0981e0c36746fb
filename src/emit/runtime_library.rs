//! Finding `libforge_runtime.so`, which every output directory carries.

use std::env;
use std::path::{Path, PathBuf};

use super::EmitError;

pub const RUNTIME_LIBRARY: &str = "libforge_runtime.so";
/// Names the library, or the folder that holds it; goes before all other places.
pub const RUNTIME_VARIABLE: &str = "FORGE_RUNTIME";

/// The library that matches this executable: named by `FORGE_RUNTIME`, or beside the executable, or in `deps/` there,
/// where cargo leaves it.
///
/// # Errors
/// [`EmitError::RuntimeMissing`] with the places searched.
pub fn find_runtime_library() -> Result<PathBuf, EmitError> {
    let folder = env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    search(env::var_os(RUNTIME_VARIABLE).map(PathBuf::from), folder)
}

fn search(named: Option<PathBuf>, folder: Option<PathBuf>) -> Result<PathBuf, EmitError> {
    let places: Vec<PathBuf> = match named {
        // A name that leads nowhere is a mistake to report, not to work around.
        Some(path) if path.is_dir() => vec![path.join(RUNTIME_LIBRARY)],
        Some(path) => vec![path],
        None => {
            folder.into_iter().flat_map(|f| [f.join(RUNTIME_LIBRARY), f.join("deps").join(RUNTIME_LIBRARY)]).collect()
        }
    };
    match places.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(EmitError::RuntimeMissing { searched: places }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_first_and_must_lead_somewhere() {
        let folder = tempfile::tempdir().unwrap();
        let deps = folder.path().join("deps");
        std::fs::create_dir(&deps).unwrap();
        let beside = Some(folder.path().to_owned());
        match search(None, beside.clone()) {
            Err(EmitError::RuntimeMissing { searched }) => assert_eq!(searched.len(), 2),
            other => panic!("{other:?}"),
        }
        std::fs::write(deps.join(RUNTIME_LIBRARY), b"").unwrap();
        assert_eq!(search(None, beside.clone()).unwrap(), deps.join(RUNTIME_LIBRARY));
        std::fs::write(folder.path().join(RUNTIME_LIBRARY), b"").unwrap();
        assert_eq!(search(None, beside.clone()).unwrap(), folder.path().join(RUNTIME_LIBRARY));
        assert_eq!(search(Some(deps.clone()), beside.clone()).unwrap(), deps.join(RUNTIME_LIBRARY));
        assert!(search(Some(folder.path().join("nowhere.so")), beside).is_err());
    }
}
