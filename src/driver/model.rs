//! A model file as the build needs it: once with its symbols, once with sizes bound.

use std::path::{Path, PathBuf};

use forge_ir::{Bindings, Dim, Graph, Value};

use crate::frontend::{self, ImportError};

/// Size of a symbol that leads an input's shape (a batch), where `--shape` says nothing.
const DEFAULT_LEADING: i64 = 1;
/// Size of any other symbol.
const DEFAULT_SIZE: i64 = 128;

/// A model, imported.
#[derive(Clone, Debug)]
pub struct Model {
    /// Stem of the file name.
    pub name: String,
    /// blake3 of the file, hex.
    pub hash: String,
    /// As imported, symbols kept: what runs outside the guards.
    pub symbolic: Graph,
    /// With every symbol bound: what is optimised.
    pub bound: Graph,
    pub bindings: Bindings,
    /// What the person should know.
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("{}: no symbolic dim is named '{name}'; {known}", path.display())]
    UnknownSymbol { path: PathBuf, name: String, known: String },
    #[error("{}: the sizes {sizes} do not fit the model: {reason}", path.display())]
    Sizes { path: PathBuf, sizes: String, reason: String },
}

/// Imports a model and binds its symbols: as `shape` says, the rest to defaults that a note names.
///
/// # Errors
/// If the file is no model, or the sizes do not fit it.
pub fn load_model(path: &Path, shape: &Bindings) -> Result<Model, ModelError> {
    let imported = frontend::load(path, &frontend::Options::default())?;
    let symbolic = imported.graph;
    let mut notes = Vec::new();
    let known = symbols(&symbolic);
    for name in shape.keys() {
        if !known.iter().any(|(symbol, _)| symbol == name) {
            let names: Vec<&str> = known.iter().map(|(n, _)| n.as_str()).collect();
            let known = if names.is_empty() {
                "the model's shapes are all fixed".to_owned()
            } else {
                format!("it has {}", names.join(", "))
            };
            return Err(ModelError::UnknownSymbol { path: path.to_owned(), name: name.clone(), known });
        }
    }
    let mut bindings = Bindings::new();
    let mut assumed = Vec::new();
    for (symbol, leads) in known {
        let size = shape.get(&symbol).copied().unwrap_or_else(|| {
            let size = if leads { DEFAULT_LEADING } else { DEFAULT_SIZE };
            assumed.push(format!("{symbol}={size}"));
            size
        });
        bindings.insert(symbol, size);
    }
    if !assumed.is_empty() {
        notes.push(format!(
            "sizes not given are taken as {}; say --shape {} to choose (other sizes run the unrewritten graph)",
            assumed.join(", "),
            assumed.join(",")
        ));
    }
    let sizes = || bindings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(", ");
    for assumption in &imported.assumptions {
        if violates(&assumption.condition, &bindings) {
            return Err(ModelError::Sizes {
                path: path.to_owned(),
                sizes: sizes(),
                reason: format!("{} needs {}", assumption.node, assumption.condition),
            });
        }
    }
    let bound = symbolic.specialize(&bindings).map_err(|e| ModelError::Sizes {
        path: path.to_owned(),
        sizes: sizes(),
        reason: e.to_string(),
    })?;
    let bytes =
        forge_runtime::mapped::map_file(path).map_err(|source| ImportError::Read { path: path.to_owned(), source })?;
    let name = path.file_stem().map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned());
    Ok(Model { name, hash: blake3::hash(&bytes).to_hex()[..32].to_owned(), symbolic, bound, bindings, notes })
}

/// The symbols of the inputs, in order of appearance, with whether each leads a shape wherever it first appears.
fn symbols(graph: &Graph) -> Vec<(String, bool)> {
    let mut found: Vec<(String, bool)> = Vec::new();
    for node in graph.inputs() {
        for (axis, dim) in graph.ty(Value { node: *node, port: 0 }).shape.iter().enumerate() {
            if let Some(name) = dim.as_symbol()
                && !found.iter().any(|(n, _)| n == name)
            {
                found.push((name.to_owned(), axis == 0));
            }
        }
    }
    found
}

/// Whether `a <= b` (or `==`, `>=`, `<`, `>`, `!=`) is false under the bindings; what cannot be read is taken to hold.
fn violates(condition: &str, bindings: &Bindings) -> bool {
    for sign in ["<=", ">=", "==", "!=", "<", ">"] {
        let Some((left, right)) = condition.split_once(sign) else { continue };
        let value = |text: &str| Dim::parse(text.trim()).ok().and_then(|d| d.eval(bindings));
        let (Some(a), Some(b)) = (value(left), value(right)) else { return false };
        return !match sign {
            "<=" => a <= b,
            ">=" => a >= b,
            "==" => a == b,
            "!=" => a != b,
            "<" => a < b,
            _ => a > b,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_checked() {
        let bindings = Bindings::from([("seq".to_owned(), 600)]);
        assert!(violates("seq <= 512", &bindings));
        assert!(!violates("seq >= 1", &bindings));
        assert!(!violates("something else", &bindings));
    }
}
