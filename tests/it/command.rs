//! The forge-cc binary, started as a person would.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// One file below `fixtures`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// forge-cc with compiled kernels in a folder that all tests share, so that each is compiled once.
pub(crate) fn forge_cc() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forge-cc"));
    command.env("FORGE_CACHE", cache_folder()).env("NO_COLOR", "1");
    command
}

pub(crate) fn cache_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-cache")
}

/// What a command that ended left behind.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// # Panics
    /// With all that the command said, unless it ended with this code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        let Ended { code: found, stdout, stderr } = &self;
        assert_eq!(*found, Some(code), "exit code; stdout:\n{stdout}\nstderr:\n{stderr}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs forge-cc with these arguments to its end.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Ended {
    forge_cc().args(arguments).output().expect("forge-cc starts").into()
}

/// A command line from text split at spaces, with `{}` replaced by the paths in turn.
pub(crate) fn words(line: &str, paths: &[&Path]) -> Vec<std::ffi::OsString> {
    let mut paths = paths.iter();
    let word = |word: &str| match word {
        "{}" => paths.next().expect("a path for every {}").as_os_str().to_owned(),
        other => other.into(),
    };
    let words: Vec<_> = line.split(' ').map(word).collect();
    assert!(paths.next().is_none(), "more paths than places in '{line}'");
    words
}

/// Every file below a folder by its path in there, with a hash of its content.
pub(crate) fn hashes(folder: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below the folder").to_owned();
                files.insert(name, blake3::hash(&fs::read(&path).expect("a readable file")));
            }
        }
    }
    files
}

/// Whether every file that the manifest lists is there with its hash, and both plans are among them.
///
/// # Panics
/// At the first that is not.
pub(crate) fn assert_consistent(directory: &Path) {
    let manifest = forge_cc::emit::manifest::Manifest::read(directory).expect("a manifest");
    let files = hashes(directory);
    assert!(!manifest.files.is_empty());
    for entry in &manifest.files {
        let found = files.get(Path::new(&entry.path)).unwrap_or_else(|| panic!("{} is missing", entry.path));
        let bytes = fs::metadata(directory.join(&entry.path)).expect("metadata").len();
        assert_eq!(bytes, entry.bytes, "{}", entry.path);
        assert!(found.to_hex().starts_with(&entry.blake3), "{} was altered", entry.path);
    }
    for plan in [&manifest.plans.forged.file, &manifest.plans.original.file] {
        assert!(files.contains_key(Path::new(plan)), "{plan} is missing");
    }
    for kernel in &manifest.kernels.files {
        for path in [&kernel.source, &kernel.library] {
            assert!(files.contains_key(Path::new(path)), "{path} is missing");
        }
    }
}
