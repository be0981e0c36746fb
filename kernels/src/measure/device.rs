//! On what a measurement was made.

use serde::{Deserialize, Serialize};

/// A processor and how much of it was used. Numbers of different devices are never compared.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Device {
    /// The processor as it names itself.
    pub model: String,
    /// Logical processors that the system shows.
    pub processors: usize,
    /// Threads that the measured code ran on.
    pub threads: usize,
}

impl Device {
    /// This machine, with measured code on `threads` threads.
    #[must_use]
    pub fn this_machine(threads: usize) -> Device {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Device { model: processor_model(&text), processors, threads }
    }
}

/// The first `model name` of `/proc/cpuinfo`; the architecture where there is none, as on most Arm machines.
fn processor_model(cpuinfo: &str) -> String {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, value)| key.trim() == "model name" && !value.trim().is_empty())
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_model_name() {
        let text = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9354\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(processor_model(text), "AMD EPYC 9354");
        assert_eq!(processor_model("processor\t: 0\nBogoMIPS\t: 50.00\n"), std::env::consts::ARCH);
    }
}
