//! Printer and parser as inverses, and the parser on what no printer wrote.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::arbitrary::{Random, random_graph, random_tensor};
use crate::dtype::DType;
use crate::graph::{Graph, Loc};
use crate::op::{GeluApproximate, Op, OpClass};
use crate::tensor::{Tensor, TensorType};
use crate::{Dim, parse, parse_module};

fn parsed(text: &str) -> Graph {
    parse(text).unwrap_or_else(|e| panic!("{}\n{text}", e.render("test.forge")))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn round_trip(seed: u64, size in 1usize..24) {
        let graph = random_graph(seed, size).without_weight_data();
        let text = graph.to_text();
        let back = parsed(&text);
        prop_assert!(back == graph, "{}", text);
        prop_assert_eq!(back.to_text(), text);
        prop_assert_eq!(&back.metadata, &graph.metadata);
        prop_assert_eq!(back.content_hash(), graph.content_hash());
    }

    #[test]
    fn random_text_is_an_error(text in "\\PC{0,200}") {
        prop_assert!(parse(&text).is_err());
    }

    #[test]
    fn random_tokens_are_an_error_with_a_place(words in proptest::collection::vec(proptest::sample::select(WORDS), 0..60)) {
        let text = format!("graph @g(%x: f32[N]) -> () {{\n{}", words.join(" "));
        if let Err(error) = parse(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.lines().count().max(1) + 1);
            prop_assert!(error.render("x").contains('^'));
        }
    }

    /// Valid text with a few bytes replaced, removed or doubled: whatever comes of it, no panic, and what parses prints.
    #[test]
    fn mutated_text_never_panics(seed: u64, size in 1usize..12, edits in proptest::collection::vec(any::<(u16, u8, u8)>(), 1..6)) {
        let mut bytes = random_graph(seed, size).to_text().into_bytes();
        for (at, kind, byte) in edits {
            let at = usize::from(at) % bytes.len();
            match kind % 4 {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, b"0123456789[](){},:=#%@-*+ \n\""[usize::from(byte) % 27]),
                _ => { let piece = bytes[at..(at + usize::from(byte)).min(bytes.len())].to_vec(); bytes.splice(at..at, piece); }
            }
            if bytes.is_empty() { break; }
        }
        let text = String::from_utf8_lossy(&bytes);
        match parse(&text) {
            Ok(graph) => prop_assert!(parsed(&graph.to_text()) == graph, "{}", text),
            Err(error) => prop_assert!(!error.render("x").is_empty()),
        }
    }

    #[test]
    fn constants_of_any_bits_round_trip(seed: u64, dtype in proptest::sample::select(&DType::ALL[..]), numel in 0usize..40) {
        let mut random = Random::new(seed);
        let bytes: Vec<u8> = (0..numel * dtype.size())
            .map(|_| if dtype == DType::Bool { random.below(2) as u8 } else { random.bits() as u8 })
            .collect();
        for value in [Tensor::new(dtype, vec![numel], bytes).unwrap(), random_tensor(&mut random, dtype, &[numel], true)] {
            let mut graph = Graph::new("c");
            let c = graph.add_constant(value);
            graph.set_outputs(vec![(String::new(), c)]);
            prop_assert!(parsed(&graph.to_text()) == graph, "{}", graph);
        }
    }
}

const WORDS: &[&str] = &[
    "%x",
    "%0",
    "%1",
    "=",
    "relu",
    "(",
    ")",
    ":",
    "f32",
    "[",
    "N",
    "2",
    "]",
    "{",
    "}",
    "axis",
    ",",
    "return",
    "\n",
    "weight",
    "constant",
    "@w",
    "\"s\"",
    "-",
    "1.5",
    "nan",
    "fused",
    "graph",
    "->",
    "softmax",
    "reshape",
    "shape",
    "*",
    "+",
    "floordiv",
    "#",
    "top_k",
    "k",
    "metadata",
    "concat",
    "transpose",
    "perm",
    "99999999999999999999",
    "0x7f",
    "// loc: \"a\"\n",
];

/// The generator reaches every class of op, and nearly every op.
#[test]
fn the_generator_covers_the_op_set() {
    let mut names = BTreeSet::new();
    let mut classes = Vec::new();
    let mut symbolic = 0;
    for seed in 0..600 {
        let graph = random_graph(seed, 16);
        symbolic += usize::from(!graph.symbols().is_empty());
        for id in graph.node_ids() {
            names.insert(graph.op(id).name());
            if !classes.contains(&graph.op(id).class()) {
                classes.push(graph.op(id).class());
            }
        }
    }
    let missing: Vec<_> = super::op_names().into_iter().filter(|name| !names.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert_eq!(classes.len(), 10, "{classes:?}");
    assert!(classes.contains(&OpClass::Fused));
    assert!(symbolic > 300, "{symbolic}");
}

#[test]
fn same_seed_same_text() {
    assert_eq!(random_graph(7, 30).to_text(), random_graph(7, 30).to_text());
    assert_ne!(random_graph(7, 30).to_text(), random_graph(8, 30).to_text());
}

#[test]
fn half_floats_print_short() {
    let mut graph = Graph::new("h");
    let values = [0.1, 65504.0, 6e-8, -0.0, f64::INFINITY, 1.0 / 3.0];
    let h = graph.add_constant(Tensor::from_f64(DType::F16, &[6], &values));
    let b = graph.add_constant(Tensor::from_f64(DType::BF16, &[3], &[0.1, 3e38, f64::NAN]));
    graph.set_outputs(vec![(String::new(), h), (String::new(), b)]);
    let text = graph.to_text();
    assert!(text.contains("[0.1, 65500.0, 6e-8, -0.0, inf, 0.3333]"), "{text}");
    assert!(text.contains("[0.1, 3e38, nan]"), "{text}");
    assert!(parsed(&text) == graph);
}

#[test]
fn odd_names_and_symbols_round_trip() {
    let mut graph = Graph::new("");
    let shape = vec![Dim::symbol("Layer::dim 0"), Dim::symbol("max"), Dim::symbol("f32"), Dim::symbol("3d")];
    let x = graph.add_input("x", TensorType::new(DType::F32, shape.clone()));
    let _ = graph.add_input("x", TensorType::fixed(DType::U64, &[0]));
    let w = graph.add_leaf(Op::Weight { name: "x".into(), data: None }, TensorType::new(DType::F32, shape.clone()));
    let long: Vec<Dim> =
        shape.into_iter().chain([Dim::symbol("inf") * Dim::from(i64::MIN) - Dim::symbol("nan")]).collect();
    let y = graph
        .add(Op::Broadcast { shape: long[..4].to_vec() }, &[x], Loc(vec![String::new(), "é\u{7}".into()]))
        .unwrap();
    let i = graph.add(Op::Iota { len: Dim::symbol("f32"), dtype: DType::F64 }, &[], Loc::default()).unwrap();
    let d = graph.add(Op::DimValue { dim: long[4].clone() }, &[], Loc::default()).unwrap();
    let e = graph.add(Op::DimValue { dim: Dim::symbol("true") }, &[], Loc::default()).unwrap();
    graph.set_outputs(["", "y", "a b", "f32", ""].map(str::to_owned).into_iter().zip([w, y, i, d, e]).collect());
    let text = graph.to_text();
    assert!(parsed(&text) == graph, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn several_graphs_in_one_text() {
    let one = "graph @a(%x: f32[2]) -> (f32[2]) {\n  return %x\n}\n";
    let graphs = parse_module(&format!("// a comment\n{one}\n{}", one.replace("@a", "@b"))).unwrap();
    assert_eq!(graphs.iter().map(Graph::name).collect::<Vec<_>>(), ["a", "b"]);
    assert!(parse_module("").unwrap().is_empty());
    assert!(parse(&format!("{one}{one}")).unwrap_err().message.contains("end of the text"));
}

#[test]
fn types_may_be_left_to_inference() {
    let graph = parsed("graph @a(%x: f32[N, 4]) -> (y: f32[N]) {\n  %0 = reduce_sum(%x) {axes = [1]}\n  return %0\n}");
    assert_eq!(graph.ty(graph.outputs()[0].1).to_string(), "f32[N]");
}

#[test]
fn weights_are_bound_by_name_and_checked() {
    let graph = random_graph(3, 30);
    let names: Vec<(String, Tensor)> = graph
        .node_ids()
        .filter_map(|n| match graph.op(n) {
            Op::Weight { name, data: Some(data) } => Some((name.clone(), data.clone())),
            _ => None,
        })
        .collect();
    assert!(!names.is_empty());
    let bare = graph.without_weight_data();
    let lookup = |name: &str| names.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
    assert!(bare != graph);
    // Fused bodies may have weights of their own, which this lookup does not know but which the original has.
    assert!(graph.bind_weights(&lookup).unwrap() == graph);
    assert_eq!(
        bare.bind_weights(&|_| None).unwrap_err().to_string(),
        format!("no data for weight \"{}\"", first_weight(&bare))
    );
    let wrong = bare.bind_weights(&|_| Some(Tensor::scalar(1u8))).unwrap_err();
    assert!(wrong.to_string().ends_with("the data are u8[]"), "{wrong}");
}

fn first_weight(graph: &Graph) -> String {
    let name = graph.node_ids().find_map(|n| match graph.op(n) {
        Op::Weight { name, .. } => Some(name.clone()),
        Op::Fused(f) if f.body.node_ids().any(|n| matches!(f.body.op(n), Op::Weight { .. })) => {
            Some(first_weight(&f.body))
        }
        _ => None,
    });
    name.unwrap()
}

#[test]
fn from_parts_inverts_attributes() {
    for seed in 0..200 {
        let graph = random_graph(seed, 20);
        for id in graph.node_ids() {
            let op = graph.op(id);
            if matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } | Op::Fused(_)) {
                continue;
            }
            let attrs: Vec<_> = op.attributes().into_iter().map(|(name, attr)| (name.to_owned(), attr)).collect();
            assert_eq!(Op::from_parts(op.name(), &attrs).unwrap(), *op);
        }
    }
}

#[test]
fn prints_a_model_as_people_read_it() {
    let text = r#"
// Comments are for people.
graph @block(%x: f32[batch, seq, 768], %mask: bool[batch, 1, 1, seq]) -> (y: f32[batch, seq*768], i64[batch, seq, 4]) {
  metadata "producer" = "pytorch 2.11"
  %fc.weight = weight @"fc.weight" : f32[768, 768]
  %"onnx::b 1" = weight @"onnx::b 1" : f32[768]
  %scale = constant 0.125 : f32[]
  %0 = matmul(%x, %fc.weight) {trans_b}                  // loc: "/fc/Gemm", "model.py:31"
  %1 = add(%0, %"onnx::b 1")
  %2 = mul(%scale, %1) : f32[batch, seq, 768]
  %3:2 = top_k(%2) {axis = 2, k = 4, largest}
  %shape = reshape(%2) {shape = [batch, seq*768]}
  %9 = fused(%shape) {kernel = "3f9a"} graph @region(%a: f32[batch, seq*768]) -> (f32[batch, seq*768]) {
    %0 = gelu(%a) {approximate = "tanh"}
    return %0
  }
  return %9, %3#1
}"#;
    insta::assert_snapshot!(parsed(text));
}

/// Each message once, as it is shown.
#[test]
fn errors_are_for_people() {
    let body =
        |lines: &str| format!("graph @g(%x: f32[N, 4], %index: i64[2]) -> (f32[N, 4]) {{\n{lines}\n  return %x\n}}\n");
    let cases = [
        String::new(),
        "grahp @g() -> () {\n  return\n}".into(),
        "graph @g(%x: f31[2]) -> () {\n  return\n}".into(),
        "graph @g(%x: f32[2]) -> (f32[3]) {\n  return %x\n}".into(),
        "graph @g(%x: f32[2]) -> () {\n  return %x\n}".into(),
        "graph @g(%x: f32[2], %x: f32[2]) -> () {\n  return\n}".into(),
        "graph @g(%0: f32[2]) -> () {\n  return\n}".into(),
        "graph @g() -> () {\n  return\n} trailing".into(),
        "graph @g() -> () {\n  // loc: \"nowhere\"\n  return\n}".into(),
        body("  %0 = matmull(%x, %x)"),
        body("  %0 = softmax(%x)"),
        body("  %0 = softmax(%x) {axes = 1}"),
        body("  %0 = softmax(%x) {axis = -1}"),
        body("  %0 = softmax(%x) {axis = 7}"),
        body("  %0 = gelu(%x) {approximate = \"tahn\"}"),
        body("  %0 = relu(%x) : f32[N, 5]"),
        body("  %0 = relu(%indx)"),
        body("  %0 = relu(%3)"),
        body("  %0 = add(%x, %index)"),
        body("  %0 = top_k(%x) {axis = 1, k = 2}"),
        body("  %0:2 = top_k(%x) {axis = 1, k = 2}\n  %1 = relu(%0)"),
        body("  %0:2 = top_k(%x) {axis = 1, k = 2}\n  %1 = relu(%0#2)"),
        body("  %0 = relu(%x) %1 = relu(%x)"),
        body("  %0 = constant [1, 2] : f32[3]"),
        body("  %0 = constant [1, 256] : u8[2]"),
        body("  %0 = constant 1e999 : f32[]"),
        body("  %0 = constant [1.0] : f32[N]"),
        body("  %0 = reshape(%x) {shape = [N, (4)]}"),
        body("  %0 = reshape(%x) {shape = [1.5, N]}"),
        body("  %0 = relu(%x) {"),
        body("  %0 = relu(%x) & 3"),
    ];
    let shown: Vec<String> = cases.iter().map(|text| parse(text).unwrap_err().render("g.forge")).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn hostile_texts_are_errors_not_crashes() {
    let nested = "fused() graph @f() -> () {\n  %0:0 = ".repeat(10_000);
    let deep = format!("graph @g(%x: f32[{}]) -> () {{", "max(N, ".repeat(100_000));
    let wide = format!("graph @g(%x: f32[{}]) -> () {{\n  return\n}}", ["A + B + C + D"; 40].join(", "));
    let long =
        format!("graph @g(%x: f32[2]) -> () {{\n  %0 = concat({}) {{axis = 0}}\n  return\n}}", "%x, ".repeat(70_000));
    for text in [format!("graph @g() -> () {{\n  %0:0 = {nested}"), deep, wide, long] {
        assert!(parse(&text).is_err());
    }
    let overflow = "graph @g(%x: f32[N*9223372036854775807 + N*9223372036854775807]) -> () {\n  return\n}";
    assert!(parse(overflow).is_ok());
}

#[test]
fn attributes_read_by_what_the_op_wants() {
    let attrs = vec![("approximate".to_owned(), crate::Attr::Str("none".into()))];
    assert_eq!(Op::from_parts("gelu", &attrs).unwrap(), Op::Gelu { approximate: GeluApproximate::None });
    assert!(Op::from_parts("weight", &[]).is_err());
    let ints = vec![("scales".to_owned(), crate::Attr::Ints(vec![1, 2]))];
    let error = Op::from_parts("resize", &ints).unwrap_err();
    assert!(error.to_string().contains("needs attribute"), "{error}");
}
