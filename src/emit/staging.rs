//! Replacing a directory as a whole: everything is written to a sibling, which then takes the directory's place in one
//! step. Whatever fails before that step leaves the directory as it was.
//!
//! This holds against errors and killed processes. It does not sync to disk, so it says nothing of power loss.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::EmitError;
use super::manifest::Manifest;

/// The one entry that a search leaves in its output directory before anything is emitted.
pub const JOURNAL_FOLDER: &str = "journal";

#[derive(Debug)]
pub(crate) struct Staging {
    target: PathBuf,
    force: bool,
    /// Beside the target, so that a rename suffices; removed with all in it when dropped.
    scratch: TempDir,
    /// The directory to be: inside `scratch`, which is private to this user, as the result shall not be.
    root: PathBuf,
}

/// What lies where the output is to go.
#[derive(Debug, PartialEq, Eq)]
enum Existing {
    Nothing,
    Empty,
    Replaceable,
}

/// Whether [`super::emit`] would accept `target`: it is absent, empty, an earlier output, or `force` is given.
///
/// # Errors
/// [`EmitError::Occupied`], [`EmitError::NotADirectory`] or [`EmitError::InUse`].
pub fn check_target(target: &Path, force: bool) -> Result<(), EmitError> {
    inspect(&resolve(target)?, force).map(|_| ())
}

impl Staging {
    pub(crate) fn begin(target: &Path, force: bool) -> Result<Staging, EmitError> {
        let target = resolve(target)?;
        inspect(&target, force)?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(EmitError::InUse { directory: target });
        };
        fs::create_dir_all(parent).map_err(|source| EmitError::io("create", parent, source))?;
        let scratch = tempfile::Builder::new()
            .prefix(&format!(".{}.forge-", name.to_string_lossy()))
            .tempdir_in(parent)
            .map_err(|source| EmitError::io("create a folder in", parent, source))?;
        let root = scratch.path().join("new");
        fs::create_dir(&root).map_err(|source| EmitError::io("create", &root, source))?;
        Ok(Staging { target, force, scratch, root })
    }

    /// Where to write.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory that will be replaced, as an absolute path.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Puts the new directory in place.
    pub(crate) fn commit(self) -> Result<(), EmitError> {
        // Looked at again: a search lies between the first look and now.
        let fail = |source| EmitError::io("replace", &self.target, source);
        match inspect(&self.target, self.force)? {
            // Renaming onto an empty directory replaces it.
            Existing::Nothing | Existing::Empty => fs::rename(&self.root, &self.target).map_err(fail)?,
            Existing::Replaceable => swap(&self.root, &self.target, &self.scratch.path().join("old")).map_err(fail)?,
        }
        let scratch = self.scratch.path().to_owned();
        if let Err(error) = self.scratch.close() {
            tracing::warn!("the output is complete, but {} could not be removed: {error}", scratch.display());
        }
        Ok(())
    }
}

/// Exchanges two directories in one step where the file system can (`spare` is then not used).
fn swap(new: &Path, target: &Path, spare: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
            fs::rename(target, spare)?;
            fs::rename(new, target).inspect_err(|_| {
                if let Err(error) = fs::rename(spare, target) {
                    tracing::error!("the previous output is left in {}: {error}", spare.display());
                }
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// The absolute path, through a symbolic link if it is one: the link stays, what it names is replaced.
fn resolve(target: &Path) -> Result<PathBuf, EmitError> {
    match fs::canonicalize(target) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::path::absolute(target).map_err(|source| EmitError::io("resolve", target, source))
        }
        Err(source) => Err(EmitError::io("resolve", target, source)),
    }
}

fn inspect(target: &Path, force: bool) -> Result<Existing, EmitError> {
    let entries = match fs::read_dir(target) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Nothing),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(EmitError::NotADirectory { path: target.to_owned() });
        }
        Err(source) => return Err(EmitError::io("list", target, source)),
    };
    // Replacing the directory that a shell stands in, or one above, takes away more than an output.
    if std::env::current_dir().is_ok_and(|here| here.starts_with(target)) {
        return Err(EmitError::InUse { directory: target.to_owned() });
    }
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(|source| EmitError::io("list", target, source))?.file_name());
    }
    if names.is_empty() {
        return Ok(Existing::Empty);
    }
    let unfinished = names.iter().all(|name| name == JOURNAL_FOLDER);
    if unfinished || force || Manifest::marks(target) {
        return Ok(Existing::Replaceable);
    }
    Err(EmitError::Occupied { directory: target.to_owned() })
}
