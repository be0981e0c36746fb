//! The system C++ compiler: found, identified, run under a deadline, its results kept by content.
//!
//! An object's address is the hash of everything that decides its bytes: source, headers, compiler, flags, processor. So a cache
//! folder may be shared by processes, and copied; one that came from another machine is never read wrongly.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::process;

/// The device headers that sources may include, written beside the cache's objects so that the binary needs no files.
pub const LIBRARY: &[(&str, &str)] = &[
    ("forge_cpu.hpp", include_str!("../library/forge_cpu.hpp")),
    ("forge_gemm.hpp", include_str!("../library/forge_gemm.hpp")),
];

/// Every compilation's flags. `-fno-trapping-math` and `-fno-math-errno` change no result: kernels read neither flags nor errno.
pub const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
    "-fvisibility=default",
];

/// A compilation that takes longer is stopped.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Lines of diagnostics that an error keeps.
const LOG_LINES: usize = 40;

/// The folder of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// `$FORGE_CACHE`, else `$XDG_CACHE_HOME/forge-cc`, else `$HOME/.cache/forge-cc`, from an environment that the caller gives.
    #[must_use]
    pub fn default_dir(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = |name: &str| environment(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        set("FORGE_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("forge-cc")))
            .or_else(|| set("HOME").map(|d| d.join(".cache").join("forge-cc")))
    }

    /// A cache in `folder`, made when it is first written to.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: folder.into() }
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file so that other processes see all of it or nothing.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(bytes)?;
        file.persist(self.folder.join(name))?;
        Ok(())
    }

    /// The headers' folder; its name is their hash, so a newer version never disturbs a running older one.
    fn headers(&self) -> io::Result<PathBuf> {
        let name = format!("include-{}", &library_hash()[..16]);
        let folder = self.folder.join(&name);
        fs::create_dir_all(&folder)?;
        for (header, text) in LIBRARY {
            if fs::read(folder.join(header)).ok().as_deref() != Some(text.as_bytes()) {
                self.write(&format!("{name}/{header}"), text.as_bytes())?;
            }
        }
        Ok(folder)
    }
}

/// A compiled module.
#[derive(Clone, PartialEq, Debug)]
pub struct Object {
    pub path: PathBuf,
    /// blake3 of the file, hex.
    pub hash: String,
    /// It was there already.
    pub cached: bool,
    /// What compiling it took, now or when it was first compiled.
    pub seconds: f64,
    pub bytes: u64,
}

impl Object {
    /// Its name inside the cache folder.
    #[must_use]
    pub fn file(&self) -> String {
        self.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// What is written beside an object.
#[derive(Serialize, Deserialize)]
struct Record {
    hash: String,
    bytes: u64,
    seconds: f64,
    compiler: String,
}

/// Why there is no object.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error("no C++ compiler: tried {tried}; install g++ or clang++, or set CXX")]
    NoCompiler { tried: String },
    #[error("the source holds a NUL byte")]
    NulByte,
    /// The compiler refuses the source. `line` is the first line that it complains about, with its number.
    #[error("the compiler refuses the source{}:\n{log}", place(line))]
    Refused { log: String, line: Option<(u32, String)> },
    #[error("compiling took more than {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
}

fn place(line: &Option<(u32, String)>) -> String {
    line.as_ref().map(|(n, text)| format!(" at line {n}, `{}`", text.trim())).unwrap_or_default()
}

/// A C++ compiler and what identifies its output.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    version: String,
    identity: String,
    timeout: Duration,
}

impl Compiler {
    /// The first of `$CXX`, `c++`, `g++`, `clang++` that compiles for this machine.
    ///
    /// # Errors
    /// If there is none.
    pub fn detect() -> Result<Compiler, CompileError> {
        let chosen = std::env::var_os("CXX").filter(|c| !c.is_empty()).map(PathBuf::from);
        let names: Vec<PathBuf> = chosen.into_iter().chain(["c++", "g++", "clang++"].map(PathBuf::from)).collect();
        names.iter().find_map(|name| Compiler::at(name)).ok_or_else(|| CompileError::NoCompiler {
            tried: names.iter().map(|n| n.display().to_string()).collect::<Vec<_>>().join(", "),
        })
    }

    /// A given compiler; `None` if it doesn't run or doesn't know this machine.
    #[must_use]
    pub fn at(program: &Path) -> Option<Compiler> {
        let probe = |arguments: &[&str]| {
            let finished = process::run(Command::new(program).args(arguments).env("LC_ALL", "C"), TIMEOUT).ok()?;
            (finished.status.success() && !finished.timed_out).then_some(finished.stdout)
        };
        let version = String::from_utf8_lossy(&probe(&["--version"])?).into_owned();
        // The macros tell what -march=native stands for here.
        let target = probe(&["-march=native", "-dM", "-E", "-x", "c++", "/dev/null"])?;
        let mut hasher = blake3::Hasher::new();
        for part in [program.to_string_lossy().as_bytes(), version.as_bytes(), &target, processor().as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let version = version.lines().next().unwrap_or_default().to_owned();
        Some(Compiler {
            program: program.to_owned(),
            version,
            identity: hash_text(&hasher.finalize()),
            timeout: TIMEOUT,
        })
    }

    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Compiler {
        Compiler { timeout, ..self }
    }

    /// The first line of `--version`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Hash of the compiler's path, version and target, and of the processor's model.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Compiles a source to a shared library, or finds it compiled. Processes may compile the same source at the same time.
    ///
    /// # Errors
    /// If the source does not compile in time, or the cache can't be written.
    pub fn compile(&self, source: &str, cache: &Cache) -> Result<Object, CompileError> {
        if source.contains('\0') {
            return Err(CompileError::NulByte);
        }
        let doing = |what: &str| {
            let doing = format!("cannot {what} in {}", cache.folder.display());
            move |source| CompileError::Io { doing, source }
        };
        let key = self.key(source);
        let path = cache.folder.join(format!("{key}.so"));
        let record_name = format!("{key}.json");
        if let Some(object) = recorded(&path, &cache.folder.join(&record_name)) {
            return Ok(object);
        }
        fs::create_dir_all(&cache.folder).map_err(doing("make the folder"))?;
        let include = cache.headers().map_err(doing("write the device headers"))?;
        let work = tempfile::tempdir_in(&cache.folder).map_err(doing("make a working folder"))?;
        fs::write(work.path().join("kernel.cpp"), source).map_err(doing("write the source"))?;

        let start = Instant::now();
        let include = include.canonicalize().map_err(doing("find the device headers"))?;
        // The limit on processor time holds even if this process is killed and can't keep the deadline.
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -t \"$0\"; exec \"$@\"", &(self.timeout.as_secs() + 1).to_string()])
            .arg(&self.program);
        command.args(FLAGS).arg("-I").arg(&include).args(["kernel.cpp", "-o", "kernel.so"]);
        command.current_dir(work.path()).env("LC_ALL", "C");
        let finished = process::run(&mut command, self.timeout).map_err(doing("run the compiler"))?;
        let seconds = start.elapsed().as_secs_f64();
        if finished.timed_out {
            return Err(CompileError::Timeout(self.timeout));
        }
        if !finished.status.success() {
            let log = String::from_utf8_lossy(&finished.stderr).replace(&format!("{}/", include.display()), "");
            return Err(CompileError::Refused { line: first_error(&log, source), log: trimmed(&log) });
        }

        let built = work.path().join("kernel.so");
        let bytes = fs::read(&built).map_err(doing("read the object"))?;
        let record = Record {
            hash: hash_text(&blake3::hash(&bytes)),
            bytes: bytes.len() as u64,
            seconds,
            compiler: self.version.clone(),
        };
        // Source and record first: an object that is there is complete.
        cache.write(&format!("{key}.cpp"), source.as_bytes()).map_err(doing("keep the source"))?;
        // The record is plain data.
        let text = serde_json::to_vec(&record).unwrap_or_default();
        cache.write(&record_name, &text).map_err(doing("keep the record"))?;
        fs::rename(&built, &path).map_err(doing("keep the object"))?;
        Ok(Object { path, hash: record.hash, cached: false, seconds, bytes: record.bytes })
    }

    fn key(&self, source: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.identity.as_bytes()).update(library_hash().as_bytes()).update(FLAGS.join(" ").as_bytes());
        hasher.update(&[0]).update(source.as_bytes());
        hash_text(&hasher.finalize())[..40].to_owned()
    }
}

/// The object that a record describes, if its file is what was recorded.
fn recorded(path: &Path, record: &Path) -> Option<Object> {
    let record: Record = serde_json::from_slice(&fs::read(record).ok()?).ok()?;
    let hash = hash_text(&blake3::hash(&fs::read(path).ok()?));
    (hash == record.hash).then(|| Object {
        path: path.to_owned(),
        hash,
        cached: true,
        seconds: record.seconds,
        bytes: record.bytes,
    })
}

fn hash_text(hash: &blake3::Hash) -> String {
    hash.to_hex().to_string()
}

fn library_hash() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in LIBRARY {
        hasher.update(name.as_bytes()).update(&[0]).update(text.as_bytes()).update(&[0]);
    }
    hash_text(&hasher.finalize())
}

/// The processor's model and features, as the system states them; empty where it states none.
#[must_use]
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|l| l.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let features = [field("flags"), field("Features")].concat();
    format!("{}\n{features}", field("model name"))
}

/// The first lines of diagnostics.
fn trimmed(log: &str) -> String {
    let mut lines: Vec<&str> = log.lines().take(LOG_LINES).collect();
    let left = log.lines().count().saturating_sub(LOG_LINES);
    let more = format!("... {left} more lines");
    if left > 0 {
        lines.push(&more);
    }
    lines.join("\n")
}

/// The line that the first error points at: `kernel.cpp:12:3: error: ..`.
fn first_error(log: &str, source: &str) -> Option<(u32, String)> {
    let error = log.lines().find(|l| l.starts_with("kernel.cpp:") && l.contains("error"))?;
    let number: u32 = error.split(':').nth(1)?.parse().ok()?;
    let text = source.lines().nth(usize::try_from(number).ok()?.checked_sub(1)?)?;
    Some((number, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "#include \"forge_cpu.hpp\"\nextern \"C\" void f(void* const* b, const int64_t*, int64_t, int64_t, void*) {\n  \
                        static_cast<float*>(b[0])[0] = forge::exp(1.0f);\n}\n";

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("deep").join("cache"));
        (folder, cache)
    }

    #[test]
    fn a_source_is_compiled_once() {
        let (_folder, cache) = cache();
        let compiler = Compiler::detect().unwrap();
        let first = compiler.compile(GOOD, &cache).unwrap();
        assert!(!first.cached && first.bytes > 0);
        let second = compiler.compile(GOOD, &cache).unwrap();
        assert_eq!(second, Object { cached: true, ..first.clone() });
        let facts = crate::object::read(&fs::read(&first.path).unwrap()).unwrap();
        assert_eq!(facts.check(), Ok(()));
        assert!(facts.exports.contains(&"f".to_owned()));

        // A damaged object is built anew.
        fs::write(&first.path, b"damaged").unwrap();
        let third = compiler.compile(GOOD, &cache).unwrap();
        assert_eq!((third.cached, &third.path), (false, &first.path));
        assert_ne!(compiler.compile(&GOOD.replace("1.0f", "2.0f"), &cache).unwrap().path, first.path);
    }

    #[test]
    fn concurrent_compilations_agree() {
        let (_folder, cache) = cache();
        let compiler = Compiler::detect().unwrap();
        let objects: Vec<Object> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| compiler.compile(GOOD, &cache).unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let again = compiler.compile(GOOD, &cache).unwrap();
        assert!(again.cached);
        assert!(objects.iter().all(|o| o.path == again.path && o.hash == again.hash));
    }

    #[test]
    fn an_error_shows_the_line() {
        let (_folder, cache) = cache();
        let error = Compiler::detect().unwrap().compile("int f() {\n  return missing;\n}\n", &cache).unwrap_err();
        let CompileError::Refused { log, line } = &error else { panic!("{error}") };
        assert_eq!(line, &Some((2, "  return missing;".into())));
        assert!(log.contains("missing"));
        assert!(error.to_string().contains("at line 2, `return missing;`"));
    }

    #[test]
    fn a_compilation_ends_in_time() {
        let (_folder, cache) = cache();
        let compiler = Compiler::detect().unwrap().with_timeout(Duration::from_millis(1));
        assert!(matches!(compiler.compile(GOOD, &cache), Err(CompileError::Timeout(_))));
        assert!(matches!(compiler.compile("\0", &cache), Err(CompileError::NulByte)));
    }

    #[test]
    fn state_in_a_module_is_seen() {
        let (_folder, cache) = cache();
        let compiler = Compiler::detect().unwrap();
        let facts = |source: &str| {
            crate::object::read(&fs::read(compiler.compile(source, &cache).unwrap().path).unwrap()).unwrap()
        };
        assert!(facts("float cache[1024];\n").check().unwrap_err().contains("'cache'"));
        assert!(facts("__thread float cache[1024];\n").check().unwrap_err().contains("'cache'"));
        let counter = facts("int f() { static int calls = 0; return ++calls; }\n").check().unwrap_err();
        assert!(counter.contains("writable variable '_ZZ1fvE5calls'"), "{counter}");
        let constructor = "__attribute__((constructor)) static void start() { asm volatile(\"\"); }\n";
        assert!(facts(constructor).check().unwrap_err().contains("when it is loaded"));
        assert!(
            facts("#include <cstdlib>\nint f() { return system(\"\"); }\n").check().unwrap_err().contains("'system'")
        );
    }

    #[test]
    fn the_default_folder_follows_the_environment() {
        let folder = |pairs: &[(&str, &str)]| {
            Cache::default_dir(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        assert_eq!(folder(&[("FORGE_CACHE", "/a"), ("HOME", "/h")]), Some(PathBuf::from("/a")));
        assert_eq!(folder(&[("FORGE_CACHE", ""), ("XDG_CACHE_HOME", "/x")]), Some(PathBuf::from("/x/forge-cc")));
        assert_eq!(folder(&[("HOME", "/h")]), Some(PathBuf::from("/h/.cache/forge-cc")));
        assert_eq!(folder(&[]), None);
    }
}
