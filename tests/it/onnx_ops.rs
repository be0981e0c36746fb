//! Operators against the answers of ONNX Runtime and of ONNX's own node tests, which Python scripts write.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use forge_cc::frontend::{Options, load};
use forge_cc::npy;
use forge_ir::Tensor;
use forge_ir::interp::{Mode, run};

use crate::python::script;

fn arrays(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let paths = (0..).map(|i| folder.join(format!("{prefix}_{i}.npy"))).take_while(|p| p.exists());
    paths.map(|p| npy::read(&p).unwrap()).collect()
}

/// The first difference beyond the tolerance, in words. `relative` is the least tolerance of floats.
fn difference(got: &Tensor, expected: &Tensor, relative: f64) -> Option<String> {
    if got.dtype() != expected.dtype() || got.shape() != expected.shape() {
        return Some(format!("{} instead of {}", got.ty(), expected.ty()));
    }
    let (relative, absolute) = match expected.dtype().epsilon() {
        // Half types round once per op of a chain.
        Some(epsilon) => ((4.0 * epsilon).max(relative), epsilon.max(1e-5)),
        None => (0.0, 0.0),
    };
    let (got, expected) = (got.to_f64(), expected.to_f64());
    let close = |g: f64, e: f64| g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= absolute + relative * e.abs();
    let at = (0..got.len()).find(|i| !close(got[*i], expected[*i]))?;
    Some(format!("element {at} is {:e} instead of {:e}", got[at], expected[at]))
}

/// Imports and runs one case; why it is not right, or `None`.
fn complaint(folder: &Path, relative: f64) -> Option<String> {
    let graph = match load(&folder.join("model.onnx"), &Options::default()) {
        Ok(imported) => imported.graph,
        Err(error) => return Some(format!("refused: {error}")),
    };
    let outputs = match run(&graph, &arrays(folder, "input"), Mode::Native) {
        Ok(outputs) => outputs,
        Err(error) => return Some(format!("does not run: {error}")),
    };
    let expected = arrays(folder, "output");
    if outputs.len() != expected.len() {
        return Some(format!("{} outputs instead of {}", outputs.len(), expected.len()));
    }
    outputs.iter().zip(&expected).find_map(|(got, want)| difference(got, want, relative)).map(|d| format!("wrong: {d}"))
}

fn cases(directory: &Path) -> Vec<String> {
    let list = std::fs::read(directory.join("cases.json")).unwrap();
    serde_json::from_slice(&list).unwrap()
}

/// Where the cases go: a temporary folder, or the one that `FORGE_CASES` names, which is kept.
fn directory(name: &str) -> (PathBuf, Option<tempfile::TempDir>) {
    match std::env::var_os("FORGE_CASES") {
        Some(kept) => (PathBuf::from(kept).join(name), None),
        None => {
            let temporary = tempfile::tempdir().unwrap();
            (temporary.path().to_owned(), Some(temporary))
        }
    }
}

#[test]
fn operators_agree_with_onnx_runtime() {
    let (folder, _guard) = directory("op_cases");
    script("op_cases.py", &folder);
    let names = cases(&folder);
    assert!(names.len() > 100, "only {} cases", names.len());
    let mut report = String::new();
    for name in &names {
        if let Some(complaint) = complaint(&folder.join(name), 1e-4) {
            let _ = writeln!(report, "{name}: {complaint}");
        }
    }
    assert!(report.is_empty(), "of {} cases:\n{report}", names.len());
}

/// Node tests whose expectation differs from ONNX Runtime's and PyTorch's behaviour, which is ours: under
/// `align_corners` the reference divides by the unrounded `size * scale - 1`, so that the last sample is not the last
/// element.
const DIFFERENT: [&str; 2] =
    ["test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"];

/// Node tests of the ONNX standard (at the tolerance of its own runner): each is right, or on the list of those that
/// are refused, which is text under review. `FORGE_BLESS=1` writes the list.
#[test]
fn node_tests_of_the_standard() {
    let (folder, _guard) = directory("node_cases");
    script("node_cases.py", &folder);
    let names = cases(&folder);
    assert!(names.len() > 1000, "only {} cases", names.len());
    let (mut refused, mut wrong) = (String::new(), String::new());
    for name in &names {
        match complaint(&folder.join(name), 1e-3) {
            Some(complaint) if complaint.starts_with("refused") => {
                let reason = complaint.split_once("model.onnx: ").map_or(complaint.as_str(), |(_, reason)| reason);
                let _ = writeln!(refused, "{name}: {}", reason.replace('\n', " "));
            }
            Some(_) if DIFFERENT.contains(&name.as_str()) => {}
            Some(complaint) => {
                let _ = writeln!(wrong, "{name}: {complaint}");
            }
            None => {}
        }
    }
    assert!(wrong.is_empty(), "of {} cases:\n{wrong}", names.len());
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/onnx_node_refused.txt");
    if std::env::var_os("FORGE_BLESS").is_some() {
        std::fs::write(&list, &refused).unwrap();
    }
    let expected = std::fs::read_to_string(&list).unwrap_or_default();
    assert!(expected == refused, "{} differs; FORGE_BLESS=1 writes it. Now refused:\n{refused}", list.display());
}
