//! The processor for which kernels are built.

use std::fs;

use serde::{Deserialize, Serialize};

/// What kernels built with `-march=native` depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// As `uname -m` says: `x86_64`, `aarch64`.
    pub arch: String,
    pub model: String,
    /// Flags that a compiler may turn into instructions, sorted: a processor with all of them runs the kernels.
    pub isa: Vec<String>,
    /// blake3 of all flags, sorted, one space between: tells processors apart in reports.
    pub flags_hash: String,
}

/// Flags of /proc/cpuinfo that stand for instructions which compilers emit from plain C++, by prefix. The rest is
/// about the system (virtualisation, mitigations, timers), and differs between kernels on equal machines.
const X86_INSTRUCTIONS: &[&str] = &[
    "abm",
    "adx",
    "aes",
    "amx",
    "apx",
    "avx",
    "bmi",
    "cmov",
    "cx16",
    "f16c",
    "fma",
    "gfni",
    "lahf_lm",
    "mmx",
    "movbe",
    "pclmulqdq",
    "pni",
    "popcnt",
    "sha",
    "sse",
    "ssse3",
    "tbm",
    "vaes",
    "vpclmulqdq",
    "xop",
];

impl Cpu {
    /// This machine's.
    #[must_use]
    pub fn detect() -> Cpu {
        // Without /proc nothing is known, and the loader rebuilds on every machine but one as ignorant.
        Cpu::from_cpuinfo(std::env::consts::ARCH, &fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    fn from_cpuinfo(arch: &str, text: &str) -> Cpu {
        let field = |names: &[&str]| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                names.contains(&key.trim()).then(|| value.trim())
            })
        };
        let mut flags: Vec<&str> = field(&["flags", "Features"]).unwrap_or_default().split_whitespace().collect();
        flags.sort_unstable();
        flags.dedup();
        // On other architectures the listed features are instruction sets only.
        let emitted = |flag: &&&str| arch != "x86_64" || X86_INSTRUCTIONS.iter().any(|prefix| flag.starts_with(prefix));
        Cpu {
            arch: arch.to_owned(),
            model: field(&["model name", "Model", "CPU part"]).unwrap_or("unknown").to_owned(),
            isa: flags.iter().filter(emitted).map(|flag| (*flag).to_owned()).collect(),
            flags_hash: blake3::hash(flags.join(" ").as_bytes()).to_hex()[..32].to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cpu;

    #[test]
    fn instructions_are_told_from_the_rest() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: sse2 hypervisor avx2 fma pti avx512f sse2\n";
        let cpu = Cpu::from_cpuinfo("x86_64", text);
        assert_eq!(cpu.model, "Some CPU");
        assert_eq!(cpu.isa, ["avx2", "avx512f", "fma", "sse2"]);
        let other = Cpu::from_cpuinfo("x86_64", &text.replace("pti", "ibrs"));
        assert_eq!(other.isa, cpu.isa);
        assert_ne!(other.flags_hash, cpu.flags_hash);
        assert_eq!(Cpu::from_cpuinfo("aarch64", "Features : fp asimd sve\n").isa, ["asimd", "fp", "sve"]);
        assert!(Cpu::from_cpuinfo("x86_64", "").isa.is_empty());
    }
}
