//! Whole graphs: binding of symbols, errors that say where, every intermediate, fused calls.

use std::sync::Arc;

use forge_ir::interp::{self, EvalError, Mode};
use forge_ir::{BinaryOp, DType, Dim, Fused, Graph, Loc, Op, Tensor, TensorType, UnaryOp, Value};

use crate::{assert_same, f32s, i64s};

fn symbolic(dims: &[&str]) -> TensorType {
    TensorType::new(DType::F32, dims.iter().map(|d| Dim::parse(d).unwrap()).collect())
}

/// relu(x + w) for x: [N, 2].
fn small() -> (Graph, Value, Value) {
    let mut graph = Graph::new("small");
    let x = graph.add_input("x", symbolic(&["N", "2"]));
    let w = graph.add_weight("w", f32s(&[2], &[1.0, -1.0]));
    let sum = graph.add(Op::Binary(BinaryOp::Add), &[x, w], Loc::name("sum")).unwrap();
    let y = graph.add(Op::Unary(UnaryOp::Relu), &[sum], Loc::default()).unwrap();
    graph.set_outputs(vec![("y".into(), y), ("sum".into(), sum), ("again".into(), y)]);
    (graph, sum, y)
}

#[test]
fn runs_in_both_modes() {
    let (graph, sum, y) = small();
    let x = f32s(&[2, 2], &[0.0, 0.0, -3.0, 3.0]);
    let out = interp::run(&graph, std::slice::from_ref(&x), Mode::Native).unwrap();
    let want = f32s(&[2, 2], &[1.0, 0.0, 0.0, 2.0]);
    assert_same(&out[0], &want);
    assert_same(&out[1], &f32s(&[2, 2], &[1.0, -1.0, -2.0, 2.0]));
    assert_same(&out[2], &want);
    let wide = interp::run(&graph, std::slice::from_ref(&x), Mode::F64).unwrap();
    assert_same(&wide[0], &Tensor::from_slice(&[2, 2], &[1f64, 0.0, 0.0, 2.0]));
    let all = interp::run_all(&graph, &[x], Mode::Native).unwrap();
    assert_eq!(all.len(), graph.node_count());
    assert_same(&all[&y], &want);
    assert_same(&all[&sum], &out[1]);
}

#[test]
fn f64_mode_takes_f64_inputs_and_native_does_not() {
    let (graph, ..) = small();
    let x = Tensor::from_slice(&[1, 2], &[0.1f64, 0.2]);
    let out = interp::run(&graph, std::slice::from_ref(&x), Mode::F64).unwrap();
    assert_same(&out[0], &Tensor::from_slice(&[1, 2], &[1.1f64, 0.0]));
    let error = interp::run(&graph, &[x], Mode::Native).unwrap_err();
    assert_eq!(error.to_string(), "input 0 'x': dtype is f64, the graph declares f32");
    let error = interp::run(&graph, &[i64s(&[1, 2], &[1, 2])], Mode::F64).unwrap_err();
    assert_eq!(error.to_string(), "input 0 'x': dtype is i64, the graph declares f32");
}

#[test]
fn binding_says_which_input_and_axis() {
    let mut graph = Graph::new("g");
    graph.add_input("a", symbolic(&["B", "S*2 + 1"]));
    graph.add_input("b", symbolic(&["B", "B*S", "3"]));
    let zeros = |shape: &[usize]| f32s(shape, &vec![0.0; shape.iter().product()]);
    let bind = |a: &[usize], b: &[usize]| interp::bind_inputs(&graph, &[zeros(a), zeros(b)]);
    let bound = bind(&[2, 9], &[2, 8, 3]).unwrap();
    assert_eq!((bound["B"], bound["S"]), (2, 4));
    let message = |a: &[usize], b: &[usize]| bind(a, b).unwrap_err().to_string();
    assert_eq!(message(&[2, 9], &[5, 8, 3]), "input 1 'b': axis 0 is 5, expected B = 2 (B from input 0 'a' axis 0)");
    assert_eq!(message(&[2, 9], &[2, 8, 4]), "input 1 'b': axis 2 is 4, expected 3");
    assert_eq!(
        message(&[2, 9], &[2, 7, 3]),
        "input 1 'b': axis 1 is 7, expected B*S = 8 (B from input 0 'a' axis 0, S from input 0 'a' axis 1)"
    );
    // 8 = 2S + 1 has no solution: S comes from b, and a is then wrong.
    assert!(message(&[2, 8], &[2, 8, 3]).starts_with("input 0 'a': axis 1 is 8, expected S*2 + 1 = 9"));
    assert_eq!(message(&[2], &[2, 8, 3]), "input 0 'a': rank is 1, the graph declares f32[B, S*2 + 1] of rank 2");
    let error = interp::bind_inputs(&graph, &[zeros(&[2, 9])]).unwrap_err();
    assert_eq!(error.to_string(), "graph @g takes 2 inputs, 1 given");
    assert_eq!(bind(&[0, 1], &[0, 0, 3]).unwrap()["S"], 0);
}

#[test]
fn dims_in_attributes_are_evaluated() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", symbolic(&["N", "4"]));
    let n = Dim::symbol("N");
    let flat = graph.add(Op::Reshape { shape: vec![n.clone() * Dim::from(4i64)] }, &[x], Loc::default()).unwrap();
    let count = graph.add(Op::DimValue { dim: n.clone() + Dim::from(1i64) }, &[], Loc::default()).unwrap();
    let iota = graph.add(Op::Iota { len: n, dtype: DType::I64 }, &[], Loc::default()).unwrap();
    graph.set_outputs([flat, count, iota].map(|v| ("o".to_owned(), v)).to_vec());
    let out = interp::run(&graph, &[f32s(&[2, 4], &[0.5; 8])], Mode::Native).unwrap();
    assert_same(&out[0], &f32s(&[8], &[0.5; 8]));
    assert_same(&out[1], &i64s(&[], &[3]));
    assert_same(&out[2], &i64s(&[2], &[0, 1]));
}

#[test]
fn errors_name_the_op() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", symbolic(&["N"]));
    let index = graph.add_constant(i64s(&[1], &[7]));
    let y = graph.add(Op::Gather { axis: 0 }, &[x, index], Loc::name("/encoder/Gather")).unwrap();
    graph.set_outputs(vec![("y".into(), y)]);
    let error = interp::run(&graph, &[f32s(&[3], &[0.0; 3])], Mode::Native).unwrap_err();
    assert_eq!(
        error.to_string(),
        "at '/encoder/Gather' (gather): gather: index 7 is out of range for axis 0 of size 3"
    );
    assert_eq!(error.root(), &EvalError::IndexOutOfRange { op: "gather", index: 7, axis: 0, size: 3 });
}

#[test]
fn weights_must_have_data_of_their_type() {
    let mut graph = Graph::new("g");
    let w = graph.add_leaf(Op::Weight { name: "fc.weight".into(), data: None }, TensorType::fixed(DType::F32, &[2]));
    graph.set_outputs(vec![("w".into(), w)]);
    let error = interp::run(&graph, &[], Mode::Native).unwrap_err();
    assert_eq!(error.root(), &EvalError::UnboundWeight { name: "fc.weight".into() });
    let mut graph = Graph::new("g");
    let data = Some(f32s(&[3], &[0.0; 3]));
    let w = graph.add_leaf(Op::Weight { name: "fc.weight".into(), data }, TensorType::fixed(DType::F32, &[2]));
    graph.set_outputs(vec![("w".into(), w)]);
    let error = interp::run(&graph, &[], Mode::F64).unwrap_err();
    assert!(matches!(error.root(), EvalError::WeightType { .. }), "{error}");
}

#[test]
fn unneeded_ops_do_not_run() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", symbolic(&["N"]));
    let index = graph.add_constant(i64s(&[1], &[7]));
    graph.add(Op::Gather { axis: 0 }, &[x, index], Loc::default()).unwrap();
    graph.set_outputs(vec![("x".into(), x)]);
    let x = f32s(&[1], &[4.0]);
    assert_same(&interp::run(&graph, std::slice::from_ref(&x), Mode::Native).unwrap()[0], &x);
    assert!(interp::run_all(&graph, &[x], Mode::Native).is_err());
}

#[test]
fn symbols_that_unify_at_run_time_are_checked() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", symbolic(&["N"]));
    let y = graph.add_input("y", symbolic(&["M"]));
    let z = graph.add(Op::Binary(BinaryOp::Add), &[x, y], Loc::default()).unwrap();
    graph.set_outputs(vec![("z".into(), z)]);
    let run =
        |n: usize, m: usize| interp::run(&graph, &[f32s(&[n], &vec![1.0; n]), f32s(&[m], &vec![2.0; m])], Mode::Native);
    assert_same(&run(2, 2).unwrap()[0], &f32s(&[2], &[3.0, 3.0]));
    assert!(matches!(run(2, 3).unwrap_err().root(), EvalError::Infer(_)));
    // The type says N; a broadcast from 1 would give M.
    assert!(matches!(run(1, 3).unwrap_err().root(), EvalError::ResultType { .. }));
}

#[test]
fn fused_bodies_run_with_their_own_symbols() {
    let (body, ..) = small();
    let mut graph = Graph::new("outer");
    let x = graph.add_input("x", symbolic(&["batch", "2"]));
    let fused = Op::Fused(Arc::new(Fused { body, kernel: String::new() }));
    let operands = [x];
    // The body's types name its own symbol N.
    let node = graph.add_node(fused, &operands, Loc::default()).unwrap();
    graph.set_outputs(graph.results(node).map(|v| ("o".to_owned(), v)).collect());
    let run = |mode| interp::run(&graph, &[f32s(&[1, 2], &[1.0, 1.0])], mode).unwrap();
    assert_same(&run(Mode::Native)[0], &f32s(&[1, 2], &[2.0, 0.0]));
    assert_same(&run(Mode::F64)[1], &Tensor::from_slice(&[1, 2], &[2f64, 0.0]));
}

#[test]
fn values_pass_through_untouched() {
    let mut graph = Graph::new("g");
    let x = graph.add_input("x", symbolic(&["2"]));
    let y = graph.add_input("unused", symbolic(&["K"]));
    graph.set_outputs(vec![("x".into(), x), ("y".into(), y)]);
    let out = interp::run(&graph, &[f32s(&[2], &[f32::NAN, -0.0]), f32s(&[0], &[])], Mode::Native).unwrap();
    assert_same(&out[0], &f32s(&[2], &[f32::NAN, -0.0]));
    assert_same(&out[1], &f32s(&[0], &[]));
}
