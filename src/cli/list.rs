//! `forge-cc list`: the closed sets, printed from their tables.

use std::fmt::Write as _;

use forge_kernels::templates::TEMPLATES;

use super::args::Listing;
use super::diagnostic::Diagnostic;

pub(super) fn list(what: Listing) -> Result<(), Diagnostic> {
    let text = match what {
        Listing::Passes => forge_passes::registry::listing(),
        Listing::Templates => {
            let mut text = String::new();
            for template in TEMPLATES {
                let _ = writeln!(text, "{:<18} {}", template.name, template.about);
            }
            text
        }
        Listing::Operators => operators(),
    };
    super::print(&text)
}

fn operators() -> String {
    let mut text = String::new();
    for operator in crate::frontend::onnx::ops::SUPPORTED {
        let _ = writeln!(text, "{operator}");
    }
    text
}
