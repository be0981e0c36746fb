use std::sync::Arc;

use super::*;
use crate::dim::Bindings;
use crate::op::{Fused, GeluApproximate};

/// Reads `f32[N, 4]`.
fn ty(text: &str) -> TensorType {
    let (dtype, shape) = text.strip_suffix(']').and_then(|t| t.split_once('[')).unwrap();
    let dims = shape.split(", ").filter(|d| !d.is_empty()).map(|d| Dim::parse(d).unwrap()).collect();
    TensorType::new(DType::from_name(dtype).unwrap(), dims)
}

fn attention(causal: bool, causal_offset: bool, masked_rows_zero: bool) -> Op {
    Op::Attention { scale: 0.125, causal, causal_offset, masked_rows_zero }
}

/// Every composite in its forms, on `F` for the float dtype.
fn cases() -> Vec<(Op, &'static [&'static str])> {
    let mut cases: Vec<(Op, &[&str])> = vec![
        (Op::Softmax { axis: 1 }, &["F[N, C, 5]"]),
        (Op::LogSoftmax { axis: 0 }, &["F[4]"]),
        (Op::Gelu { approximate: GeluApproximate::None }, &["F[N, 4]"]),
        (Op::Gelu { approximate: GeluApproximate::Tanh }, &["F[]"]),
        (Op::Silu, &["F[N, 4]"]),
        (Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &["F[N, S, 8]", "F[S, 8]", "F[S, 8]"]),
        (Op::LayerNorm { axis: 2, epsilon: 1e-5 }, &["F[N, S, 8]", "F[8]"]),
        (Op::RmsNorm { axis: 2, epsilon: 1e-6 }, &["F[N, S, D]", "F[D]"]),
        (Op::GroupNorm { groups: 4, epsilon: 1e-5 }, &["F[N, 8, H, W]", "F[8]", "F[8]"]),
        (Op::GroupNorm { groups: 2, epsilon: 1e-5 }, &["F[N, C]", "F[C]", "F[C]"]),
        (Op::BatchNorm { epsilon: 1e-5 }, &["F[N, 8, H, W]", "F[8]", "F[8]", "F[8]", "F[8]"]),
        (Op::BatchNorm { epsilon: 1e-5 }, &["F[N, 8]", "F[8]", "F[8]", "F[8]", "F[8]"]),
        (Op::Rotary { interleaved: false }, &["F[B, H, S, 8]", "F[S, 4]", "F[1, 1, S, 4]"]),
        (Op::Rotary { interleaved: true }, &["F[B, H, S, D]", "F[S, R]", "F[S, R]"]),
        (Op::Rotary { interleaved: false }, &["F[B, 2*R]", "F[R]", "F[R]"]),
    ];
    let attentions: [&[&str]; 8] = [
        &["F[B, 8, L, 16]", "F[B, 8, S, 16]", "F[B, 8, S, 32]"],
        &["F[B, 8, L, 16]", "F[B, 2, S, 16]", "F[B, 2, S, 32]"],
        &["F[B, 8, L, 16]", "F[B, 1, S, 16]", "F[B, 1, S, 32]", "bool[]"],
        &["F[B, H, 6, 16]", "F[B, K, 6, 16]", "F[B, K, 6, 16]", "bool[6, 6]"],
        &["F[B, 8, 1, 16]", "F[B, 2, 7, 16]", "F[B, 2, 7, 16]", "bool[B, 1, 1, 7]"],
        &["F[B, 8, L, 16]", "F[B, 2, S, 16]", "F[B, 2, S, 32]", "F[L, S]"],
        &["F[B, 8, L, 16]", "F[B, 8, L, 16]", "F[B, 8, L, 16]", "bool[B, 8, L, 1]"],
        &["F[B, 4, L, 16]", "F[2, 2, S, 16]", "F[C, 2, S, 16]", "F[S]"],
    ];
    for operands in attentions {
        for flags in 0..8 {
            cases.push((attention(flags & 1 != 0, flags & 2 != 0, flags & 4 != 0), operands));
        }
    }
    cases
}

fn operands(texts: &[&str], float: DType) -> Vec<TensorType> {
    texts.iter().map(|text| ty(&text.replacen('F', float.name(), usize::from(text.starts_with('F'))))).collect()
}

fn ops(graph: &Graph) -> Vec<&'static str> {
    graph.topological().into_iter().map(|node| graph.op(node).name()).collect()
}

fn count(graph: &Graph, name: &str) -> usize {
    ops(graph).iter().filter(|op| **op == name).count()
}

#[test]
fn definitions_have_the_types_of_their_op_and_primitive_ops_only() {
    for (op, texts) in cases() {
        for float in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let operands = operands(texts, float);
            let context = format!("{op:?} on {operands:?}");
            let graph = op.decompose(&operands).expect(&context);
            assert_eq!(graph.verify(), Ok(()), "{context}");
            assert_eq!(graph.dead_nodes(), [], "{context}");
            let inputs: Vec<TensorType> =
                graph.inputs().iter().map(|node| graph.node(*node).outputs[0].clone()).collect();
            assert_eq!(inputs, operands, "{context}");
            let results: Vec<TensorType> = graph.outputs().iter().map(|(_, v)| graph.ty(*v).clone()).collect();
            assert_eq!(results, infer(&op, &operands.iter().collect::<Vec<_>>()).unwrap(), "{context}");
            for node in graph.node_ids() {
                assert!(!matches!(graph.op(node).class(), OpClass::Composite | OpClass::Fused), "{context}");
            }
        }
    }
}

#[test]
fn narrow_floats_are_computed_in_f32_and_rounded_once() {
    for (op, texts) in cases() {
        let wide = op.decompose(&operands(texts, DType::F32)).unwrap();
        assert_eq!(count(&wide, "cast"), 0, "{op:?}");
        let narrow = op.decompose(&operands(texts, DType::F16)).unwrap();
        let widened = texts.iter().filter(|t| t.starts_with('F')).count();
        assert_eq!(count(&narrow, "cast"), widened + 1, "{op:?}");
        for node in narrow.node_ids() {
            let op = narrow.op(node);
            let plumbing = matches!(op, Op::Input { .. } | Op::Cast { .. });
            assert!(plumbing || narrow.node(node).outputs[0].dtype != DType::F16, "{op:?}");
        }
    }
}

#[test]
fn symbols_may_be_bound_before_or_after() {
    let bindings: Bindings =
        [("N", 3), ("C", 2), ("S", 5), ("D", 6), ("H", 4), ("W", 7), ("B", 2), ("L", 4), ("K", 2), ("R", 3)]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
    for (op, texts) in cases() {
        let operands = operands(texts, DType::F32);
        let bound: Vec<TensorType> = operands.iter().map(|ty| ty.substitute(&bindings)).collect();
        let early = op.decompose(&bound).unwrap();
        let late = op.decompose(&operands).unwrap().specialize(&bindings).unwrap();
        assert_eq!(late.verify(), Ok(()), "{op:?}");
        let result = |graph: &Graph| graph.ty(graph.outputs()[0].1).clone();
        assert_eq!(result(&early), result(&late), "{op:?} on {texts:?}");
        assert!(result(&early).const_shape().is_some());
    }
}

#[test]
fn definitions_read_as_their_formulas() {
    let list = |op: &Op, texts: &[&str]| ops(&op.decompose(&operands(texts, DType::F32)).unwrap()).join(" ");
    assert_eq!(list(&Op::Softmax { axis: 0 }, &["F[4]"]), "input reduce_max sub exp reduce_sum div");
    assert_eq!(
        list(&Op::LayerNorm { axis: 0, epsilon: 1e-5 }, &["F[4]", "F[4]", "F[4]"]),
        "input input input reduce_mean sub mul reduce_mean constant add rsqrt mul mul add"
    );
    assert_eq!(
        list(&attention(false, false, true), &["F[B, 8, L, 16]", "F[B, 8, S, 16]", "F[B, 8, S, 16]"]),
        "input input input matmul constant mul reduce_max sub exp reduce_sum div matmul"
    );
}

#[test]
fn grouped_heads_are_not_repeated() {
    let op = attention(false, false, false);
    let graph = op.decompose(&operands(&["F[B, 8, L, 16]", "F[B, 2, S, 16]", "F[B, 2, S, 16]"], DType::F32)).unwrap();
    let products: Vec<String> = graph
        .topological()
        .into_iter()
        .filter(|node| matches!(graph.op(*node), Op::MatMul { .. }))
        .map(|node| graph.node(node).outputs[0].to_string())
        .collect();
    assert_eq!(products, ["f32[B, 2, 4, L, S]", "f32[B, 2, 4, L, 16]"]);
    // One kv head broadcasts as it is.
    let graph = op.decompose(&operands(&["F[B, 8, L, 16]", "F[B, 1, S, 16]", "F[B, 1, S, 16]"], DType::F32)).unwrap();
    assert_eq!(count(&graph, "reshape"), 0);
}

#[test]
fn a_causal_offset_follows_the_lengths() {
    let offset = |texts: &[&str]| {
        let graph = attention(true, true, false).decompose(&operands(texts, DType::F32)).unwrap();
        let node = graph.topological().into_iter().find(|node| match graph.op(*node) {
            Op::DimValue { .. } => true,
            Op::Constant { value } => value.dtype() == DType::I64,
            _ => false,
        });
        node.map(|node| match graph.op(node) {
            Op::DimValue { dim } => dim.to_string(),
            Op::Constant { value } => format!("{:?}", value.to_i64().unwrap()),
            _ => String::new(),
        })
    };
    let texts = |l: &str, s: &str| [format!("F[B, 8, {l}, 16]"), format!("F[B, 8, {s}, 16]")];
    for (l, s, expected) in [("L", "S", Some("S - L")), ("3", "7", Some("[4]")), ("L", "L", None)] {
        let [q, k] = texts(l, s);
        assert_eq!(offset(&[&q, &k, &k]).as_deref(), expected, "{l} {s}");
    }
}

#[test]
fn other_ops_and_wrong_operands_have_no_definition() {
    assert_eq!(Op::Unary(UnaryOp::Relu).decompose(&[ty("f32[4]")]), None);
    assert_eq!(Op::Silu.decompose(&[]), None);
    assert_eq!(Op::Silu.decompose(&[ty("i32[4]")]), None);
    assert_eq!(Op::Softmax { axis: 1 }.decompose(&[ty("f32[4]")]), None);
}

#[test]
fn a_fused_call_of_nothing_has_a_definition() {
    let mut body = Graph::new("body");
    let one = body.add_constant(Tensor::scalar(1f32));
    body.set_outputs(vec![("one".into(), one)]);
    let fused = Op::Fused(Arc::new(Fused { body: body.clone(), kernel: String::new() }));
    assert_eq!(fused.decompose(&[]), Some(body));
}

#[test]
fn a_whole_graph_decomposes_through_fused_bodies() {
    let mut body = Graph::new("body");
    let x = body.add_input("x", ty("f32[N, 4]"));
    let y = body.add(Op::Silu, &[x], Loc::name("inner")).unwrap();
    body.set_outputs(vec![("y".into(), y), ("x".into(), x)]);
    let fused = Op::Fused(Arc::new(Fused { body, kernel: "k".into() }));
    assert_eq!(fused.decompose(&[ty("f32[N, 4]")]).unwrap().op_count(), 1);

    let mut graph = Graph::new("outer");
    let a = graph.add_input("a", ty("f32[N, 4]"));
    graph.node_mut(a.node).loc = Loc::name("given");
    let call = graph.add_node(fused, &[a], Loc::name("call")).unwrap();
    let [y, x] = graph.results(call).collect::<Vec<_>>()[..] else { panic!("two results") };
    let sum = graph.add(Op::Binary(BinaryOp::Add), &[x, y], Loc::name("sum")).unwrap();
    let soft = graph.add(Op::Softmax { axis: 1 }, &[sum], Loc::name("soft")).unwrap();
    graph.set_outputs(vec![("soft".into(), soft), ("x".into(), x)]);

    let flat = graph.decompose_all().unwrap();
    assert_eq!(flat.verify(), Ok(()));
    assert_eq!(ops(&flat).join(" "), "input sigmoid mul add reduce_max sub exp reduce_sum div");
    assert_eq!(flat.ty(flat.outputs()[0].1), graph.ty(soft));
    assert_eq!(flat.outputs()[1].1.node, flat.inputs()[0]);
    let locs: Vec<&Loc> = flat.topological().into_iter().map(|node| &flat.node(node).loc).collect();
    assert_eq!(locs[0], &Loc::name("given"));
    assert_eq!(locs[1], &Loc(vec!["call".into(), "inner".into()]));
    assert_eq!(locs[8], &Loc::name("soft"));
    assert_eq!(flat.decompose_all().unwrap(), flat);
}
