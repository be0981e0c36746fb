//! Every fixture model, imported and run by the interpreter, gives PyTorch's own outputs.

use std::path::{Path, PathBuf};

use forge_cc::frontend::{Options, load};
use forge_cc::npy;
use forge_ir::interp::{Mode, run};
use forge_ir::{Bindings, Graph, Op, Tensor};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn import(path: &Path, shape: Bindings) -> Graph {
    load(path, &Options { shape, ..Options::default() }).unwrap_or_else(|e| panic!("{e}\nhelp: {}", e.help())).graph
}

/// `prefix_0.npy`, `prefix_1.npy`, ..
fn arrays(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let paths = (0..).map(|i| folder.join(format!("{prefix}_{i}.npy"))).take_while(|p| p.exists());
    paths.map(|p| npy::read(&p).unwrap()).collect()
}

/// Largest difference relative to the largest expected magnitude.
fn relative_difference(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(got.shape(), expected.shape());
    let (got, expected) = (got.to_f64(), expected.to_f64());
    let scale = expected.iter().fold(0.0f64, |acc, v| acc.max(v.abs()));
    assert!(scale > 0.0, "an output of zeros proves nothing");
    let worst = got.iter().zip(&expected).map(|(g, e)| (g - e).abs());
    // NaN must not look like agreement.
    worst.fold(0.0f64, |acc, d| if d.is_nan() { f64::INFINITY } else { acc.max(d) }) / scale
}

/// Imports `fixtures/models/NAME/model.onnx` and compares it in both modes with the arrays of `arrays_of`.
fn check(name: &str, arrays_of: &str) {
    let models = fixtures().join("models");
    let graph = import(&models.join(name).join("model.onnx"), Bindings::new());
    let inputs = arrays(&models.join(arrays_of), "input");
    let expected = arrays(&models.join(arrays_of), "output");
    assert_eq!(graph.outputs().len(), expected.len());
    for mode in [Mode::Native, Mode::F64] {
        let outputs = run(&graph, &inputs, mode).unwrap_or_else(|e| panic!("{name}, {mode:?}: {e}"));
        for (index, (got, want)) in outputs.iter().zip(&expected).enumerate() {
            let difference = relative_difference(got, want);
            assert!(difference <= 1e-4, "{name}, {mode:?}, output {index}: differs by {difference:.2e} of the maximum");
        }
    }
}

fn count(graph: &Graph, name: &str) -> usize {
    graph.node_ids().filter(|id| graph.op(*id).name() == name).count()
}

macro_rules! models {
    ($($test:ident: $name:literal as $arrays:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            check($name, $arrays);
        }
    )*};
}
models! {
    resnet18: "resnet18_tiny" as "resnet18_tiny",
    gpt2: "gpt2_tiny" as "gpt2_tiny",
    gpt2_opset_23: "gpt2_tiny_op23" as "gpt2_tiny",
    vit: "vit_tiny" as "vit_tiny",
    vit_opset_23: "vit_tiny_op23" as "vit_tiny",
    llama: "llama_tiny" as "llama_tiny",
    llama_opset_23: "llama_tiny_op23" as "llama_tiny",
    unet: "unet_tiny" as "unet_tiny",
    unet_opset_23: "unet_tiny_op23" as "unet_tiny",
}

#[test]
fn opset_23_keeps_attention_and_norms_whole() {
    let folder = |name: &str| fixtures().join("models").join(name).join("model.onnx");
    let llama = import(&folder("llama_tiny_op23"), Bindings::new());
    assert_eq!(count(&llama, "attention"), 2);
    assert_eq!(count(&llama, "rms_norm"), 5);
    let unet = import(&folder("unet_tiny_op23"), Bindings::new());
    assert!(count(&unet, "group_norm") > 0 && count(&unet, "attention") > 0);
}

#[test]
fn a_tied_weight_is_one_node_under_its_own_name() {
    let graph = import(&fixtures().join("models/gpt2_tiny/model.onnx"), Bindings::new());
    let embedding =
        |id: &forge_ir::NodeId| matches!(graph.op(*id), Op::Weight { name, .. } if name == "model.lm_head.weight");
    let found: Vec<_> = graph.node_ids().filter(embedding).collect();
    assert_eq!(found.len(), 1);
    assert!(graph.users(found[0]).len() >= 2, "the embedding is read by the gather and by the head");
}

#[test]
fn ops_know_the_module_they_came_from() {
    let graph = import(&fixtures().join("models/llama_tiny/model.onnx"), Bindings::new());
    let scoped = graph.node_ids().filter(|id| graph.node(*id).loc.0.iter().any(|s| s.contains("layers.1"))).count();
    assert!(scoped > 10, "{scoped} nodes of layer 1");
    let paths = graph.node_ids().any(|id| graph.node(id).loc.0.iter().any(|s| s.contains(".py")));
    assert!(!paths, "no source paths in a graph");
}

/// The trained digit classifiers reach the accuracy that was measured when they were made.
#[test]
fn digits_are_recognised() {
    let folder = fixtures().join("digits");
    let images = npy::read(&folder.join("test_images.npy")).unwrap();
    let labels = npy::read(&folder.join("test_labels.npy")).unwrap().to_i64().unwrap();
    for name in ["cnn", "transformer"] {
        let graph = import(&folder.join(format!("{name}.onnx")), Bindings::new());
        let outputs = run(&graph, std::slice::from_ref(&images), Mode::Native).unwrap();
        let logits = outputs[0].to_f64();
        let classes = logits.len() / labels.len();
        let best = |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i64;
        let hits = logits.chunks(classes).zip(&labels).filter(|(row, label)| best(row) == **label).count();
        let accuracy = hits as f64 / labels.len() as f64;
        assert!(accuracy > 0.9, "{name}: {accuracy}");
    }
}
