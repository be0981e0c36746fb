//! What a compiled kernel module asks of the process that loads it, read from its ELF file before anything is loaded.
//!
//! The source scan ([`crate::inspect`]) reads text; this reads the result: a module may import arithmetic and memory functions
//! only, runs nothing at load, and has no writable state.

/// What matters of a module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Symbols that the dynamic linker must find elsewhere.
    pub imports: Vec<String>,
    /// Symbols that it defines.
    pub exports: Vec<String>,
    /// Writable bytes: initialised, zeroed and thread-local.
    pub writable_bytes: u64,
    /// Variables among them, by name.
    pub variables: Vec<String>,
    /// Functions run at load.
    pub initialisers: u64,
}

/// What the compiler's own start-up files put into every shared library: `__dso_handle`, `completed.0`, `frame_dummy`.
const RUNTIME_WRITABLE_BYTES: u64 = 24;
const RUNTIME_INITIALISERS: u64 = 1;
const RUNTIME_VARIABLES: &[&str] = &["__dso_handle", "__TMC_END__", "completed."];

/// Imports that compute: memory blocks and the mathematics of libm (checked apart, by [`is_mathematics`]).
const ALLOWED_IMPORTS: &[&str] = &[
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "__cxa_finalize",
    "__gmon_start__",
    "_ITM_registerTMCloneTable",
    "_ITM_deregisterTMCloneTable",
    "_GLOBAL_OFFSET_TABLE_",
    "__stack_chk_fail",
    "__memcpy_chk",
    "__memset_chk",
    "__memmove_chk",
];

/// Functions of libm in double precision; `f` and `l` variants and glibc's vector forms are derived.
const MATHEMATICS: &[&str] = &[
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp10",
    "exp2",
    "expm1",
    "fabs",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "hypot",
    "ilogb",
    "ldexp",
    "lgamma",
    "llrint",
    "llround",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "lrint",
    "lround",
    "modf",
    "nan",
    "nearbyint",
    "nextafter",
    "pow",
    "remainder",
    "remquo",
    "rint",
    "round",
    "roundeven",
    "scalbln",
    "scalbn",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
];

fn is_mathematics(name: &str) -> bool {
    let name = name.strip_prefix("__").and_then(|n| n.strip_suffix("_finite")).unwrap_or(name);
    // Vector forms: _ZGVdN8v_expf.
    let name = match name.strip_prefix("_ZGV").and_then(|n| n.split_once('_')) {
        Some((_, scalar)) => scalar,
        None => name,
    };
    let known = |n: &str| MATHEMATICS.contains(&n);
    known(name) || name.strip_suffix(['f', 'l']).is_some_and(known)
}

/// Arithmetic helpers of the compiler's own library (128-bit division, half conversions): pure functions.
fn is_compiler_arithmetic(name: &str) -> bool {
    let Some(name) = name.strip_prefix("__") else { return false };
    [
        "divti3",
        "modti3",
        "udivti3",
        "umodti3",
        "multi3",
        "extendhfsf2",
        "truncsfhf2",
        "truncdfhf2",
        "truncsfbf2",
        "truncdfbf2",
    ]
    .contains(&name)
}

impl Facts {
    /// Why the module must not be loaded, if it must not.
    ///
    /// # Errors
    /// One sentence that names the symbol or the state.
    pub fn check(&self) -> Result<(), String> {
        if let Some(name) = self
            .imports
            .iter()
            .find(|n| !ALLOWED_IMPORTS.contains(&n.as_str()) && !is_mathematics(n) && !is_compiler_arithmetic(n))
        {
            return Err(format!(
                "the module imports '{name}'; kernels may import memory and mathematics functions only"
            ));
        }
        if self.initialisers > RUNTIME_INITIALISERS {
            return Err("the module runs code when it is loaded".into());
        }
        // Names too, because alignment leaves room for a small variable beside those of the start-up files.
        if let Some(name) = self.variables.iter().find(|n| !RUNTIME_VARIABLES.iter().any(|own| n.starts_with(own))) {
            return Err(format!(
                "the module has the writable variable '{name}'; kernels are functions of their operands"
            ));
        }
        if self.writable_bytes > RUNTIME_WRITABLE_BYTES {
            let bytes = self.writable_bytes;
            return Err(format!(
                "the module has {bytes} bytes of writable state; kernels are functions of their operands"
            ));
        }
        Ok(())
    }
}

/// Why bytes are not a module.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a 64-bit little-endian ELF shared library: {0}")]
pub struct ObjectError(&'static str);

const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const SHT_INIT_ARRAY: u32 = 14;
const SHT_PREINIT_ARRAY: u32 = 16;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_TLS: u64 = 0x400;
const SHT_PROGBITS: u32 = 1;

/// Reads a shared library's facts from its bytes (System V ABI, ELF-64).
///
/// # Errors
/// If the bytes are not such a library.
pub fn read(bytes: &[u8]) -> Result<Facts, ObjectError> {
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(ObjectError("no such header"));
    }
    let table = number(bytes, 0x28, 8)?;
    let (entry, count) = (number(bytes, 0x3a, 2)?, number(bytes, 0x3c, 2)?);
    let mut sections = Vec::new();
    for i in 0..count {
        let at = offset(table, i.checked_mul(entry))?;
        sections.push(Section {
            name: number(bytes, at, 4)?,
            kind: number(bytes, at + 4, 4)? as u32,
            flags: number(bytes, at + 8, 8)?,
            start: number(bytes, at + 24, 8)?,
            size: number(bytes, at + 32, 8)?,
            link: number(bytes, at + 40, 4)?,
        });
    }
    let names = section(&sections, number(bytes, 0x3e, 2)?)?;
    let mut facts = Facts::default();
    let mut state = vec![false; sections.len()];
    for (s, holds_state) in sections.iter().zip(&mut state) {
        match s.kind {
            SHT_DYNSYM => {
                for symbol in symbols(bytes, s, section(&sections, s.link)?)? {
                    if symbol.section == 0 { &mut facts.imports } else { &mut facts.exports }.push(symbol.name);
                }
            }
            SHT_INIT_ARRAY | SHT_PREINIT_ARRAY => facts.initialisers += s.size / 8,
            // Tables that the linker fills once are writable too, but named apart: only data sections hold state.
            SHT_PROGBITS | SHT_NOBITS if s.flags & (SHF_WRITE | SHF_ALLOC) == SHF_WRITE | SHF_ALLOC => {
                let name = text(bytes, offset(names.start, Some(s.name))?)?;
                let linked = name.starts_with(".got") || name.starts_with(".data.rel.ro") || name == ".tm_clone_table";
                if !linked || s.flags & SHF_TLS != 0 {
                    facts.writable_bytes += s.size;
                    *holds_state = true;
                }
            }
            _ => {}
        }
    }
    for s in sections.iter().filter(|s| s.kind == SHT_SYMTAB) {
        for symbol in symbols(bytes, s, section(&sections, s.link)?)? {
            let stored = usize::try_from(symbol.section).is_ok_and(|i| state.get(i) == Some(&true));
            if stored && matches!(symbol.kind, STT_OBJECT | STT_TLS) {
                facts.variables.push(symbol.name);
            }
        }
    }
    Ok(facts)
}

struct Section {
    name: u64,
    kind: u32,
    flags: u64,
    start: u64,
    size: u64,
    link: u64,
}

fn section(sections: &[Section], index: u64) -> Result<&Section, ObjectError> {
    usize::try_from(index).ok().and_then(|i| sections.get(i)).ok_or(ObjectError("a section is missing"))
}

const STT_OBJECT: u64 = 1;
const STT_TLS: u64 = 6;

struct Symbol {
    name: String,
    kind: u64,
    /// 0: defined elsewhere.
    section: u64,
}

fn symbols(bytes: &[u8], table: &Section, names: &Section) -> Result<Vec<Symbol>, ObjectError> {
    const ENTRY: u64 = 24;
    let mut symbols = Vec::new();
    for i in 1..table.size / ENTRY {
        let at = offset(table.start, i.checked_mul(ENTRY))?;
        symbols.push(Symbol {
            name: text(bytes, offset(names.start, Some(number(bytes, at, 4)?))?)?,
            kind: number(bytes, at + 4, 1)? & 0xf,
            section: number(bytes, at + 6, 2)?,
        });
    }
    Ok(symbols)
}

fn offset(base: u64, add: Option<u64>) -> Result<usize, ObjectError> {
    add.and_then(|a| base.checked_add(a))
        .and_then(|o| usize::try_from(o).ok())
        .ok_or(ObjectError("an offset overflows"))
}

fn number(bytes: &[u8], at: usize, width: usize) -> Result<u64, ObjectError> {
    let field = at.checked_add(width).and_then(|end| bytes.get(at..end)).ok_or(ObjectError("it is cut short"))?;
    Ok(field.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

fn text(bytes: &[u8], at: usize) -> Result<String, ObjectError> {
    let tail = bytes.get(at..).ok_or(ObjectError("it is cut short"))?;
    let end = tail.iter().position(|b| *b == 0).ok_or(ObjectError("a name does not end"))?;
    Ok(String::from_utf8_lossy(&tail[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mathematics_is_told_from_the_rest() {
        for name in ["expf", "pow", "_ZGVdN8v_sinf", "__log_finite", "sincosf", "roundevenf"] {
            assert!(is_mathematics(name), "{name}");
        }
        for name in ["system", "_ZGVdN8v_system", "f", "expff", "printf"] {
            assert!(!is_mathematics(name), "{name}");
        }
    }

    #[test]
    fn imports_state_and_initialisers_are_refused() {
        let clean = Facts {
            imports: vec!["expf".into(), "memcpy".into(), "__cxa_finalize".into()],
            exports: vec!["kernel".into()],
            writable_bytes: 16,
            variables: vec!["completed.0".into(), "__dso_handle".into()],
            initialisers: 1,
        };
        assert_eq!(clean.check(), Ok(()));
        let import = Facts { imports: vec!["puts".into()], ..clean.clone() };
        assert!(import.check().unwrap_err().contains("'puts'"));
        assert!(Facts { writable_bytes: 4096, ..clean.clone() }.check().unwrap_err().contains("4096 bytes"));
        assert!(Facts { initialisers: 2, ..clean }.check().unwrap_err().contains("when it is loaded"));
    }

    #[test]
    fn damaged_files_are_errors() {
        assert!(read(b"").is_err());
        assert!(read(b"\x7fELF\x02\x01").is_err());
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0xff);
        assert!(read(&bytes).is_err());
    }
}
