//! tract's second opinion: where it has one, it is ours.
#![cfg(feature = "tract")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use forge_cc::frontend::{Options, load};
use forge_cc::npy;
use forge_cc::oracle::second_opinion;
use forge_ir::interp::{Mode, run};
use forge_ir::{Graph, Tensor};

use crate::python::script;

fn arrays(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let paths = (0..).map(|i| folder.join(format!("{prefix}_{i}.npy"))).take_while(|p| p.exists());
    paths.map(|p| npy::read(&p).unwrap()).collect()
}

fn import(path: &Path) -> Graph {
    load(path, &Options::default()).unwrap_or_else(|e| panic!("{e}")).graph
}

/// Where and how much two results differ beyond f32 rounding.
fn difference(got: &Tensor, expected: &Tensor) -> Option<String> {
    if got.dtype() != expected.dtype() || got.shape() != expected.shape() {
        return Some(format!("{} instead of {}", got.ty(), expected.ty()));
    }
    let (got, expected) = (got.to_f64(), expected.to_f64());
    let scale = expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |acc, v| acc.max(v.abs()));
    let close = |g: f64, e: f64| g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= 1e-4 * e.abs() + 1e-5 * scale;
    let at = (0..got.len()).find(|i| !close(got[*i], expected[*i]))?;
    Some(format!("element {at} is {:e} instead of {:e}", got[at], expected[at]))
}

#[test]
fn tract_agrees_on_whole_models() {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    for (name, arrays_of) in [
        ("resnet18_tiny", "resnet18_tiny"),
        ("vit_tiny_op23", "vit_tiny"),
        ("gpt2_tiny_op23", "gpt2_tiny"),
        ("llama_tiny_op23", "llama_tiny"),
    ] {
        let graph = import(&models.join(name).join("model.onnx"));
        let inputs = arrays(&models.join(arrays_of), "input");
        let opinion = second_opinion(&graph, &inputs).unwrap_or_else(|| panic!("{name} has an op off the list"));
        let outputs = opinion.unwrap_or_else(|e| panic!("{name}: {e}"));
        for (got, want) in outputs.iter().zip(run(&graph, &inputs, Mode::Native).unwrap()) {
            assert_eq!(difference(got, &want), None, "{name}");
        }
    }
}

/// Where a difference says nothing: a layer norm whose mean is so far above its deviation that f32 decides, and a resize
/// whose coordinate is a rounding error away from the next element.
const ILL_CONDITIONED: [&str; 2] = ["layernorm_wide", "resize_26_64"];

/// The list of trusted ops is what this test says it is: on every case of a trusted op, tract has the right answer.
#[test]
fn trusted_operators_are_right() {
    let cases = tempfile::tempdir().unwrap();
    script("op_cases.py", cases.path());
    let names: Vec<String> = serde_json::from_slice(&fs::read(cases.path().join("cases.json")).unwrap()).unwrap();
    let (mut asked, mut report) = (0, String::new());
    for name in names.iter().filter(|name| !ILL_CONDITIONED.contains(&name.as_str())) {
        let folder = cases.path().join(name);
        let graph = import(&folder.join("model.onnx"));
        let Some(opinion) = second_opinion(&graph, &arrays(&folder, "input")) else { continue };
        asked += 1;
        match opinion {
            Err(error) => {
                let _ = writeln!(report, "{name}: {error}");
            }
            Ok(outputs) => {
                let differs = outputs.iter().zip(arrays(&folder, "output")).find_map(|(g, w)| difference(g, &w));
                if let Some(difference) = differs {
                    let _ = writeln!(report, "{name}: {difference}");
                }
            }
        }
    }
    assert!(report.is_empty(), "of {asked} of {} cases:\n{report}", names.len());
    assert!(asked > 300, "only {asked} of {} cases are of trusted ops", names.len());
}

#[test]
fn tract_is_not_asked_about_what_it_gets_wrong() {
    use forge_ir::{DType, Loc, Op, TensorType};
    let mut graph = Graph::new("half");
    let x = graph.add_input("x", TensorType::fixed(DType::BF16, &[2]));
    let y = graph.add(Op::Silu, &[x], Loc::default()).unwrap();
    graph.set_outputs(vec![("y".into(), y)]);
    assert!(second_opinion(&graph, &[Tensor::from_f64(DType::BF16, &[2], &[1.0, 2.0])]).is_none());
}
