//! Errors for the person: what, where, what to do; and the exit code.

use std::fmt::Write as _;

/// Who has to act, as an exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// A check of the result failed, or the fault is ours.
    Failure = 1,
    /// The input or the command line.
    Input = 2,
    /// Something is missing on the machine.
    Environment = 3,
    /// Ctrl-C.
    Interrupted = 130,
}

/// An error as it is shown.
#[derive(Debug)]
pub struct Diagnostic {
    pub exit: Exit,
    pub what: String,
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn new(exit: Exit, what: impl std::fmt::Display) -> Diagnostic {
        Diagnostic { exit, what: what.to_string(), help: None }
    }

    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// `error: ..` with continuation lines indented and `help: ..` below; one screen at most.
    #[must_use]
    pub fn render(&self) -> String {
        const MOST_LINES: usize = 40;
        let mut out = String::new();
        let mut lines = self.what.lines();
        let _ = writeln!(out, "error: {}", lines.next().unwrap_or_default());
        let rest: Vec<&str> = lines.collect();
        for line in rest.iter().take(MOST_LINES) {
            let _ = writeln!(out, "  {line}");
        }
        if rest.len() > MOST_LINES {
            let _ = writeln!(out, "  .. and {} lines more", rest.len() - MOST_LINES);
        }
        if let Some(help) = &self.help {
            let mut lines = help.lines();
            let _ = writeln!(out, " help: {}", lines.next().unwrap_or_default());
            for line in lines {
                let _ = writeln!(out, "       {line}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_and_what_to_do() {
        let diagnostic = Diagnostic::new(Exit::Input, "x.onnx: not a model\nat byte 3").with_help("export it again");
        assert_eq!(diagnostic.render(), "error: x.onnx: not a model\n  at byte 3\n help: export it again\n");
    }

    #[test]
    fn stays_on_one_screen() {
        let long = (0..100).map(|i| format!("line {i}\n")).collect::<String>();
        assert!(Diagnostic::new(Exit::Input, long).render().lines().count() < 50);
    }
}
