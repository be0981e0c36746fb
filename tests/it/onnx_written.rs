//! Models that forge-cc writes: read back, they are the same function, and so they are for ONNX Runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forge_cc::emit::onnx_model;
use forge_cc::frontend::{Options, load, load_bytes};
use forge_cc::npy;
use forge_ir::interp::{Mode, run};
use forge_ir::region::Region;
use forge_ir::{BinaryOp, DType, Dim, Graph, Loc, NodeId, Op, OpClass, ReduceOp, Tensor, TensorType, UnaryOp};
use prost::Message;

use crate::python::script;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models")
}

fn arrays(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let paths = (0..).map(|i| folder.join(format!("{prefix}_{i}.npy"))).take_while(|p| p.exists());
    paths.map(|p| npy::read(&p).unwrap()).collect()
}

fn import(path: &Path) -> Graph {
    load(path, &Options::default()).unwrap_or_else(|e| panic!("{e}")).graph
}

fn read_back(graph: &Graph) -> Graph {
    let model = onnx_model::to_model(graph).unwrap_or_else(|e| panic!("{e}"));
    let bytes = Bytes::from(model.encode_to_vec());
    load_bytes(Path::new("written.onnx"), bytes, &Options::default()).unwrap_or_else(|e| panic!("{e}")).graph
}

/// Writes a case for `check_models.py`.
fn write_case(folder: &Path, graph: &Graph, inputs: &[Tensor], outputs: &[Tensor]) {
    fs::create_dir_all(folder).unwrap();
    onnx_model::write(graph, &folder.join("model.onnx")).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for (prefix, tensors) in [("input", inputs), ("output", outputs)] {
        for (index, tensor) in tensors.iter().enumerate() {
            npy::write(&folder.join(format!("{prefix}_{index}.npy")), tensor).unwrap();
        }
    }
}

fn complaints(directory: &Path) -> BTreeMap<String, String> {
    serde_json::from_str(&script("check_models.py", directory)).unwrap()
}

/// Runs of elementwise ops, norms and what is between them, each fused as one region.
fn fuse_some(graph: &Graph) -> (Graph, usize) {
    let mut graph = graph.clone();
    let mut fused = 0;
    let candidates: Vec<NodeId> = graph.topological();
    for start in candidates {
        if !graph.contains(start) || graph.op(start).class() != OpClass::Elementwise {
            continue;
        }
        // Follow single users downstream for a few steps.
        let mut nodes = BTreeSet::from([start]);
        let mut at = start;
        while nodes.len() < 5 {
            let users = graph.users(at);
            let [next] = users.as_slice() else { break };
            if matches!(graph.op(*next).class(), OpClass::Leaf | OpClass::Fused) {
                break;
            }
            nodes.insert(*next);
            at = *next;
        }
        if nodes.len() < 2 {
            continue;
        }
        if let Some(region) = Region::new(&graph, nodes) {
            let patch = region.fuse_patch(&graph, String::new());
            graph.apply(&patch).unwrap();
            fused += 1;
        }
    }
    (graph, fused)
}

const MODELS: [&str; 5] = ["resnet18_tiny", "gpt2_tiny_op23", "vit_tiny", "llama_tiny_op23", "unet_tiny_op23"];

fn arrays_of(name: &str) -> PathBuf {
    models().join(name.trim_end_matches("_op23"))
}

#[test]
fn written_models_are_what_they_were() {
    let directory = tempfile::tempdir().unwrap();
    for name in MODELS {
        let graph = import(&models().join(name).join("model.onnx"));
        let inputs = arrays(&arrays_of(name), "input");
        let outputs = run(&graph, &inputs, Mode::Native).unwrap();
        let (fused, count) = fuse_some(&graph);
        assert!(count >= 2, "{name}: {count} regions");
        for (kind, graph) in [("plain", &graph), ("fused", &fused)] {
            let again = read_back(graph);
            let inputs_again: Vec<&str> = again.inputs().iter().map(|id| again.input_name(*id)).collect();
            let inputs_before: Vec<&str> = graph.inputs().iter().map(|id| graph.input_name(*id)).collect();
            assert_eq!(inputs_again, inputs_before);
            let exact = run(graph, &inputs, Mode::F64).unwrap();
            for (got, want) in run(&again, &inputs, Mode::F64).unwrap().iter().zip(&exact) {
                let worst = got.to_f64().iter().zip(want.to_f64()).fold(0.0f64, |acc, (g, w)| acc.max((g - w).abs()));
                assert!(worst < 1e-5, "{name}, {kind}: {worst}");
            }
            write_case(&directory.path().join(format!("{name}_{kind}")), graph, &inputs, &outputs);
        }
    }
    assert_eq!(complaints(directory.path()), BTreeMap::new());
}

#[test]
fn fused_calls_are_functions_and_equal_bodies_are_one() {
    let graph = import(&models().join("llama_tiny_op23/model.onnx"));
    let (fused, count) = fuse_some(&graph);
    let model = onnx_model::to_model(&fused).unwrap();
    let calls = model.graph.as_ref().unwrap().node.iter().filter(|n| n.domain == onnx_model::FUNCTION_DOMAIN).count();
    assert_eq!(calls, count);
    assert!(model.functions.len() < count, "{} functions for {count} calls", model.functions.len());
    // Modules survive the round trip.
    let scoped = |graph: &Graph| {
        graph.node_ids().filter(|id| graph.node(*id).loc.0.iter().any(|s| s.contains("layers.1"))).count()
    };
    assert!(scoped(&read_back(&graph)) >= scoped(&graph));
}

/// A fused body with a symbol that none of its operands has: the call passes it.
#[test]
fn symbols_reach_into_functions() {
    let mut graph = Graph::new("ramp");
    let n = Dim::symbol("n");
    let x = graph.add_input("x", TensorType::new(DType::F32, vec![n.clone() * Dim::from(2), Dim::from(3)]));
    let add = |graph: &mut Graph, op, operands: &[_]| graph.add(op, operands, Loc::default()).unwrap();
    let sum = add(&mut graph, Op::Reduce { op: ReduceOp::Sum, axes: vec![0], keep_dims: false }, &[x]);
    let ramp = add(&mut graph, Op::Iota { len: n.floor_div(&Dim::from(2)) + Dim::from(1), dtype: DType::F32 }, &[]);
    let ramp = add(&mut graph, Op::Unary(UnaryOp::Sqrt), &[ramp]);
    let column = Op::Reshape { shape: vec![n.floor_div(&Dim::from(2)) + Dim::from(1), Dim::from(1)] };
    let ramp = add(&mut graph, column, &[ramp]);
    let product = add(&mut graph, Op::Binary(BinaryOp::Mul), &[ramp, sum]);
    graph.set_outputs(vec![("y".into(), product), ("z".into(), product)]);
    let nodes = graph.node_ids().filter(|id| ![x.node, sum.node].contains(id)).collect();
    let region = Region::new(&graph, nodes).expect("the ramp is convex");
    let mut fused = graph.clone();
    fused.apply(&region.fuse_patch(&graph, String::new())).unwrap();

    let directory = tempfile::tempdir().unwrap();
    for size in [2usize, 10] {
        let data: Vec<f32> = (0..size * 3).map(|i| i as f32 * 0.25 - 1.0).collect();
        let inputs = [Tensor::from_slice(&[size, 3], &data)];
        let outputs = run(&graph, &inputs, Mode::Native).unwrap();
        assert_eq!(run(&read_back(&fused), &inputs, Mode::Native).unwrap(), outputs);
        write_case(&directory.path().join(format!("size_{size}")), &fused, &inputs, &outputs);
    }
    assert_eq!(complaints(directory.path()), BTreeMap::new());
}

#[test]
fn large_weights_go_beside_the_model() {
    let mut graph = Graph::new("large");
    let x = graph.add_input("x", TensorType::fixed(DType::F32, &[1]));
    // The same bytes many times over: shared here, a gibibyte in the file.
    let part = Tensor::from_f64(DType::F32, &[1 << 24], &vec![0.5; 1 << 24]);
    let mut sum = x;
    for index in 0..17 {
        let weight = graph.add_weight(&format!("w{index}"), part.clone());
        let first = Op::Slice { starts: vec![Dim::from(0)], steps: vec![1], sizes: vec![Dim::from(1)] };
        let first = graph.add(first, &[weight], Loc::default()).unwrap();
        sum = graph.add(Op::Binary(BinaryOp::Add), &[sum, first], Loc::default()).unwrap();
    }
    graph.set_outputs(vec![("y".into(), sum)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    onnx_model::write(&graph, &path).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 1 << 16);
    assert!(fs::metadata(folder.path().join("model.onnx.data")).unwrap().len() > 1 << 30);
    let y = run(&import(&path), &[Tensor::from_slice(&[1], &[1f32])], Mode::Native).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [9.5]);
}

/// Where ONNX Runtime is not the answer: its CPU kernels compute f16 in f32 and drop the casts around it, so that
/// nothing is rounded; and its nearest resize rounds the coordinate of element 32 down (microsoft/onnxruntime#28085).
const RUNTIME_DIFFERS: [&str; 3] = ["add_f16", "div_f16", "resize_26_64"];

#[test]
fn written_operators_agree_with_onnx_runtime() {
    let cases = tempfile::tempdir().unwrap();
    script("op_cases.py", cases.path());
    let names: Vec<String> = serde_json::from_slice(&fs::read(cases.path().join("cases.json")).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for name in &names {
        let folder = cases.path().join(name);
        let graph = import(&folder.join("model.onnx"));
        let (inputs, outputs) = (arrays(&folder, "input"), arrays(&folder, "output"));
        write_case(&directory.path().join(name), &graph, &inputs, &outputs);
    }
    let mut found = complaints(directory.path());
    found.retain(|name, _| !RUNTIME_DIFFERS.contains(&name.as_str()));
    assert!(found.is_empty(), "of {}: {found:#?}", names.len());
}
