use super::*;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{BinaryOp, UnaryOp};
use crate::tensor::Tensor;

const ADD: Op = Op::Binary(BinaryOp::Add);
const RELU: Op = Op::Unary(UnaryOp::Relu);
const NEG: Op = Op::Unary(UnaryOp::Neg);
const EXP: Op = Op::Unary(UnaryOp::Exp);

fn f32(shape: &[i64]) -> TensorType {
    TensorType::fixed(DType::F32, shape)
}

fn add(graph: &mut Graph, op: Op, operands: &[Value], name: &str) -> Value {
    graph.add(op, operands, Loc::name(name)).unwrap()
}

/// The ops in topological order.
fn ops(graph: &Graph) -> Vec<&'static str> {
    graph.topological().into_iter().map(|node| graph.op(node).name()).collect()
}

/// Applies a patch that must fail and checks that nothing changed.
#[track_caller]
fn rejected(graph: &mut Graph, patch: &Patch) -> PatchError {
    let before = graph.clone();
    let ids: Vec<NodeId> = graph.node_ids().collect();
    let error = graph.apply(patch).unwrap_err();
    assert_eq!(*graph, before);
    assert_eq!(graph.node_ids().collect::<Vec<_>>(), ids);
    error
}

/// x -> a = neg(x) -> b = exp(a) -> c = relu(b); outputs c.
fn chain() -> (Graph, [Value; 4]) {
    let mut graph = Graph::new("chain");
    let x = graph.add_input("x", f32(&[4]));
    let a = add(&mut graph, NEG, &[x], "a");
    let b = add(&mut graph, EXP, &[a], "b");
    let c = add(&mut graph, RELU, &[b], "c");
    graph.set_outputs(vec![("c".into(), c)]);
    (graph, [x, a, b, c])
}

#[test]
fn a_value_takes_over_and_the_rest_dies_in_cascade() {
    let (mut graph, [x, a, b, c]) = chain();
    graph.apply(&Patch::replace_with_value(&graph, b, x, "test")).unwrap();
    assert_eq!(ops(&graph), ["input", "relu"]);
    assert_eq!(graph.operands(c.node), [x]);
    assert!(!graph.contains(a.node) && !graph.contains(b.node));
}

#[test]
fn ids_are_not_used_again() {
    let (mut graph, [x, a, b, _]) = chain();
    let stale = Patch::replace_with_value(&graph, a, x, "made before b was replaced");
    graph.apply(&Patch::replace_with_value(&graph, b, x, "test")).unwrap();
    let d = add(&mut graph, NEG, &[x], "d");
    assert!(d.node > b.node && d.node != a.node);
    assert_eq!(rejected(&mut graph, &stale), PatchError::MissingValue { value: a });
}

#[test]
fn new_nodes_carry_the_provenance_of_the_old() {
    let (mut graph, [x, a, b, c]) = chain();
    let mut patch = Patch::builder(&graph, "test");
    let tap = patch.tap(x);
    assert_eq!(patch.tap(x), tap);
    let one = patch.scalar(DType::F32, 1.0);
    let sum = patch.add_with_loc(ADD, &[tap, one], Loc::name("own")).unwrap();
    patch.replace(b, sum);
    patch.erase(a.node);
    graph.apply(&patch.finish(Exactness::Precision)).unwrap();
    assert_eq!(ops(&graph), ["input", "constant", "add", "relu"]);
    let sum = graph.operands(c.node)[0];
    assert_eq!(graph.node(sum.node).loc, Loc(vec!["a".into(), "b".into(), "own".into()]));
    assert_eq!(graph.operands(sum.node)[0], x);
}

#[test]
fn graph_outputs_are_redirected_and_inputs_stay() {
    let (mut graph, [x, .., c]) = chain();
    let mut patch = Patch::builder(&graph, "test");
    let zero = patch.constant(Tensor::from_slice(&[4], &[0f32; 4]));
    patch.replace(c, zero);
    graph.apply(&patch.finish(Exactness::Precision)).unwrap();
    assert_eq!(ops(&graph), ["input", "constant"]);
    assert_eq!(graph.inputs(), [x.node]);
    assert!(matches!(graph.op(graph.outputs()[0].1.node), Op::Constant { .. }));
}

#[test]
fn a_replaced_value_may_be_tapped() {
    // relu goes between a and all its users.
    let (mut graph, [x, a, b, _]) = chain();
    let patch = Patch::replace_with_op(&graph, a, RELU, &[a], "wrap", Exactness::Exact).unwrap();
    graph.apply(&patch).unwrap();
    let relu = graph.operands(b.node)[0];
    assert_eq!(*graph.op(relu.node), RELU);
    assert_eq!(graph.operands(relu.node), [a]);
    assert_eq!(graph.operands(a.node), [x]);
}

#[test]
fn a_user_in_two_slots_is_redirected_in_both() {
    let mut graph = Graph::new("square");
    let x = graph.add_input("x", f32(&[4]));
    let a = add(&mut graph, NEG, &[x], "a");
    let sum = add(&mut graph, ADD, &[a, a], "sum");
    graph.set_outputs(vec![("sum".into(), sum), ("a".into(), a)]);
    graph.apply(&Patch::replace_with_value(&graph, a, x, "test")).unwrap();
    assert_eq!(graph.operands(sum.node), [x, x]);
    assert_eq!(graph.outputs()[1].1, x);
    assert_eq!(graph.node_count(), 2);
}

#[test]
fn parts_of_the_body_that_nothing_reads_are_left_out() {
    let (mut graph, [x, .., c]) = chain();
    let mut patch = Patch::builder(&graph, "test");
    let tap = patch.tap(x);
    let used = patch.add(EXP, &[tap]).unwrap();
    patch.add(NEG, &[used]).unwrap();
    patch.replace(c, used);
    graph.apply(&patch.finish(Exactness::Precision)).unwrap();
    assert_eq!(ops(&graph), ["input", "exp"]);
}

#[test]
fn values_are_swapped() {
    let mut graph = Graph::new("swap");
    let x = graph.add_input("x", f32(&[4]));
    let a = add(&mut graph, NEG, &[x], "a");
    let b = add(&mut graph, EXP, &[x], "b");
    graph.set_outputs(vec![("a".into(), a), ("b".into(), b)]);
    let mut patch = Patch::builder(&graph, "swap");
    let (tap_a, tap_b) = (patch.tap(a), patch.tap(b));
    patch.replace(a, tap_b);
    patch.replace(b, tap_a);
    graph.apply(&patch.finish(Exactness::Precision)).unwrap();
    assert_eq!(graph.outputs(), [("a".to_owned(), b), ("b".to_owned(), a)]);
    assert_eq!(graph.node_count(), 3);
}

#[test]
fn cycles_are_rejected() {
    let (mut graph, [_, a, _, c]) = chain();
    let patch = Patch::replace_with_value(&graph, a, c, "test");
    assert_eq!(rejected(&mut graph, &patch), PatchError::Cycle { value: a });

    // Neither replacement alone makes a cycle, both do: p reads q's user and q reads p's.
    let mut graph = Graph::new("two");
    let x = graph.add_input("x", f32(&[4]));
    let (p, q) = (add(&mut graph, NEG, &[x], "p"), add(&mut graph, EXP, &[x], "q"));
    let (r, s) = (add(&mut graph, RELU, &[p], "r"), add(&mut graph, RELU, &[q], "s"));
    graph.set_outputs(vec![("r".into(), r), ("s".into(), s)]);
    let mut patch = Patch::builder(&graph, "test");
    let (tap_r, tap_s) = (patch.tap(r), patch.tap(s));
    patch.replace(p, tap_s);
    patch.replace(q, tap_r);
    let both = patch.finish(Exactness::Precision);
    assert!(matches!(rejected(&mut graph, &both), PatchError::Cycle { .. }));
    graph.apply(&Patch::replace_with_value(&graph, p, s, "test")).unwrap();
    assert_eq!(ops(&graph), ["input", "exp", "relu", "relu"]);
}

#[test]
fn malformed_patches_are_rejected() {
    let (mut graph, [x, a, b, c]) = chain();
    let good = Patch::replace_with_value(&graph, b, x, "test");

    let mut patch = good.clone();
    patch.taps.clear();
    assert_eq!(rejected(&mut graph, &patch), PatchError::TapCount { taps: 0, inputs: 1 });

    let mut patch = good.clone();
    patch.replaces[0].1 = 1;
    assert_eq!(rejected(&mut graph, &patch), PatchError::MissingOutput { index: 1, count: 1 });

    let mut patch = good.clone();
    patch.replaces.push((b, 0));
    assert_eq!(rejected(&mut graph, &patch), PatchError::ReplacedTwice { value: b });

    let mut patch = good.clone();
    patch.taps[0].port = 1;
    assert_eq!(rejected(&mut graph, &patch), PatchError::MissingValue { value: patch.taps[0] });

    let erase = |nodes: &[Value]| Patch::erase(nodes.iter().map(|v| v.node).collect(), "test");
    assert_eq!(rejected(&mut graph, &erase(&[x])), PatchError::ErasesInput { name: "x".into() });
    assert_eq!(rejected(&mut graph, &erase(&[a])), PatchError::StillUsed { node: a.node, op: "neg" });
    // An output has a use that is no node.
    let error = rejected(&mut graph, &erase(&[a, b, c]));
    assert_eq!(error, PatchError::StillUsed { node: c.node, op: "relu" });
    graph.apply(&good).unwrap();
    assert_eq!(rejected(&mut graph, &erase(&[a])), PatchError::MissingNode { node: a.node });
}

#[test]
fn types_must_agree_up_to_symbols() {
    let mut graph = Graph::new("types");
    let x = graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("N"), Dim::from(4)]));
    let y = graph.add_input("y", f32(&[2, 4]));
    let z = graph.add_input("z", f32(&[2, 5]));
    let a = add(&mut graph, NEG, &[x], "a");
    let b = add(&mut graph, RELU, &[a], "b");
    graph.set_outputs(vec![("b".into(), b)]);

    let patch = Patch::replace_with_value(&graph, a, z, "test");
    assert!(matches!(rejected(&mut graph, &patch), PatchError::ReplacedType { value, .. } if value == a));
    let mut patch = Patch::replace_with_value(&graph, a, y, "test");
    patch.taps[0] = z;
    assert!(matches!(rejected(&mut graph, &patch), PatchError::TapType { value, .. } if value == z));

    // N against 2 may be equal: what follows is typed anew.
    graph.apply(&Patch::replace_with_value(&graph, a, y, "test")).unwrap();
    assert_eq!(graph.ty(b), &f32(&[2, 4]));
    assert!(!graph.contains(a.node));
}

#[test]
fn a_type_that_breaks_what_follows_is_rejected() {
    let mut graph = Graph::new("types");
    let n = || TensorType::new(DType::F32, vec![Dim::symbol("N")]);
    let (x, y, z) = (graph.add_input("x", n()), graph.add_input("y", f32(&[2])), graph.add_input("z", f32(&[3])));
    let a = add(&mut graph, NEG, &[x], "a");
    let sum = add(&mut graph, ADD, &[a, z], "sum");
    graph.set_outputs(vec![("sum".into(), sum)]);
    let patch = Patch::replace_with_value(&graph, a, y, "N is 2 here, 3 there");
    assert!(matches!(rejected(&mut graph, &patch), PatchError::Retype { node, .. } if node == sum.node));
}

#[test]
fn dead_nodes_are_found_and_erased() {
    let (mut graph, [x, .., b, c]) = chain();
    let unused = graph.add_input("unused", f32(&[1]));
    let d = add(&mut graph, ADD, &[b, x], "d");
    let e = add(&mut graph, NEG, &[d], "e");
    let weight = graph.add_weight("w", Tensor::scalar(1f32));
    assert_eq!(graph.dead_nodes(), [d.node, e.node, weight.node]);
    graph.apply(&Patch::erase(graph.dead_nodes(), "dead")).unwrap();
    assert!(graph.dead_nodes().is_empty());
    assert!(graph.contains(unused.node) && graph.contains(c.node));
    assert_eq!(graph.node_count(), 5);
}

#[test]
fn an_inlined_graph_is_typed_by_its_operands() {
    let mut relu = Graph::new("relu");
    let x = relu.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("N")]));
    let y = relu.add(RELU, &[x], Loc::name("inner")).unwrap();
    relu.set_outputs(vec![("y".into(), y), ("x".into(), x)]);
    let mut graph = Graph::new("outer");
    let a = graph.add_input("a", f32(&[7]));
    let results = graph.inline(&relu, &[a], &Loc::name("outer")).unwrap();
    assert_eq!(results[1], a);
    assert_eq!(graph.ty(results[0]), &f32(&[7]));
    assert_eq!(graph.node(results[0].node).loc, Loc(vec!["outer".into(), "inner".into()]));
    assert!(graph.inline(&relu, &[], &Loc::default()).is_err());
}
