//! `forged.py`: a fixed program that reads the manifest, under a docstring that says what this model takes.

use super::manifest::{Manifest, SymbolRange};

const TEMPLATE: &str = include_str!("forged.py");

/// The loader for a model.
pub(crate) fn loader(manifest: &Manifest) -> String {
    let Manifest { name, tool_version, target, .. } = manifest;
    let title = quoted(&format!("{name}, forged by forge-cc {tool_version} for the target {target}."));
    TEMPLATE.replacen("@TITLE@", &title, 1).replacen("@SIGNATURE@", signature(manifest).trim_end(), 1)
}

fn signature(manifest: &Manifest) -> String {
    let plan = &manifest.plans.forged;
    let mut text = String::from("Inputs, in order:\n");
    for (port, original) in plan.inputs.iter().zip(&manifest.plans.original.inputs) {
        text += &format!("    {}: {}", quoted(&port.name), quoted(&port.type_text()));
        if port.shape != original.shape {
            text += &format!(
                "    (the plan was specialised to this shape; the unrewritten model takes {})",
                quoted(&original.type_text())
            );
        }
        text += "\n";
    }
    text += "Outputs:\n";
    for port in &plan.outputs {
        text += &format!("    {}: {}\n", quoted(&port.name), quoted(&port.type_text()));
    }
    if !manifest.symbols.is_empty() {
        text += "Sizes for which the kernels were validated:\n";
        for (symbol, range) in &manifest.symbols {
            text += &format!("    {}: {}\n", quoted(symbol), range_text(range));
        }
    }
    text
}

fn range_text(range: &SymbolRange) -> String {
    let end = |value: Option<i64>| value.map_or(String::new(), |value| value.to_string());
    format!("{}..{}", end(range.min.or(Some(0))), end(range.max))
}

/// Names come from model files: none may end the docstring or escape in it.
fn quoted(text: &str) -> String {
    text.chars().map(|c| if c == '\\' || c == '"' || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::{TEMPLATE, quoted};
    use crate::emit::manifest::MANIFEST_VERSION;

    #[test]
    fn the_template_speaks_this_version() {
        assert!(TEMPLATE.contains(&format!("\nMANIFEST_VERSION = {MANIFEST_VERSION}\n")));
        assert!(TEMPLATE.contains(&format!("\nABI_VERSION = {}\n", forge_runtime::c_api::ABI_VERSION)));
        assert_eq!(TEMPLATE.matches("@TITLE@").count() + TEMPLATE.matches("@SIGNATURE@").count(), 2);
    }

    #[test]
    fn names_cannot_leave_the_docstring() {
        assert_eq!(quoted("a\"\"\"\\b\nc"), "a____b_c");
    }
}
