//! What the importer makes of whole graphs: symbolic shapes, functions, constant branches, dead arithmetic.

use forge_cc::frontend::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto, attribute_type,
};
use forge_cc::frontend::{Imported, Options};
use forge_ir::interp::{Mode, run};
use forge_ir::{Bindings, Graph, Op, Tensor};

use crate::onnx_build::{f32s, i64s, import, import_with, input, model, node, with_int, with_ints};

fn imported(model: &ModelProto) -> Imported {
    import(model).unwrap_or_else(|e| panic!("{e}"))
}

fn op_names(graph: &Graph) -> Vec<&'static str> {
    graph.topological().into_iter().map(|id| graph.op(id).name()).collect()
}

fn output_types(graph: &Graph) -> Vec<String> {
    graph.outputs().iter().map(|(_, v)| graph.ty(*v).to_string()).collect()
}

fn ramp(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count).map(|i| i as f32 * 0.5 - 3.0).collect();
    Tensor::from_slice(shape, &data)
}

/// The way a traced PyTorch model splits heads: sizes taken from the operand, one by one.
#[test]
fn shape_arithmetic_becomes_attributes() {
    let model = model(
        13,
        vec![
            node("Shape", &["x"], &["shape"]),
            with_int(node("Gather", &["shape", "zero"], &["batch"]), "axis", 0),
            with_int(node("Gather", &["shape", "minus_one"], &["width"]), "axis", 0),
            node("Div", &["width", "heads"], &["depth"]),
            node("Unsqueeze", &["batch", "first"], &["batch_1"]),
            node("Unsqueeze", &["depth", "first"], &["depth_1"]),
            with_int(node("Concat", &["batch_1", "rest", "heads_1", "depth_1"], &["target"]), "axis", 0),
            node("Reshape", &["x", "target"], &["split"]),
            with_ints(node("Transpose", &["split"], &["y"]), "perm", &[0, 2, 1, 3]),
        ],
        vec![input("x", 1, &["batch", "seq", "48"])],
        &["y"],
        vec![
            i64s("zero", &[], &[0]),
            i64s("minus_one", &[], &[-1]),
            i64s("first", &[1], &[0]),
            i64s("heads", &[], &[4]),
            i64s("heads_1", &[1], &[4]),
            i64s("rest", &[1], &[-1]),
        ],
    );
    let graph = imported(&model).graph;
    assert_eq!(op_names(&graph), ["input", "reshape", "transpose"]);
    assert_eq!(output_types(&graph), ["f32[batch, 4, seq, 12]"]);
    let y = run(&graph, &[ramp(&[2, 3, 48])], Mode::Native).unwrap();
    assert_eq!(y[0].shape(), [2, 4, 3, 12]);
}

/// A mean over a symbolic axis divides by the size itself.
#[test]
fn a_size_that_is_data_is_computed() {
    let model = model(
        13,
        vec![
            node("Shape", &["x"], &["shape"]),
            with_int(node("Gather", &["shape", "one"], &["seq"]), "axis", 0),
            with_int(node("Cast", &["seq"], &["count"]), "to", 1),
            with_int(node("ReduceSum", &["x", "axes"], &["sum"]), "keepdims", 0),
            node("Div", &["sum", "count"], &["y"]),
            // And the whole shape, as an output.
            node("Identity", &["shape"], &["size"]),
        ],
        vec![input("x", 1, &["batch", "seq"])],
        &["y", "size"],
        vec![i64s("one", &[], &[1]), i64s("axes", &[1], &[1])],
    );
    let graph = imported(&model).graph;
    assert!(op_names(&graph).contains(&"dim_value"));
    let outputs = run(&graph, &[Tensor::from_slice(&[2, 4], &[1f32, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 2.0])], Mode::Native);
    let outputs = outputs.unwrap();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [2.5, 0.5]);
    assert_eq!(outputs[1].to_i64().unwrap(), [2, 4]);
}

#[test]
fn a_position_table_bounds_the_sequence() {
    let slice = node("Slice", &["positions", "zero", "seq", "axis"], &["own"]);
    let model = model(
        13,
        vec![
            node("Shape", &["ids"], &["shape"]),
            node("Slice", &["shape", "one", "two"], &["seq"]),
            slice,
            node("Gather", &["table", "own"], &["embedded"]),
            node("Gather", &["table", "ids"], &["tokens"]),
            node("Add", &["tokens", "embedded"], &["y"]),
        ],
        vec![input("ids", 7, &["batch", "seq"])],
        &["y"],
        vec![
            i64s("positions", &[1, 8], &[0, 1, 2, 3, 4, 5, 6, 7]),
            i64s("zero", &[1], &[0]),
            i64s("one", &[1], &[1]),
            i64s("two", &[1], &[2]),
            i64s("axis", &[1], &[1]),
            f32s(
                "table",
                &[8, 2],
                &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0],
            ),
        ],
    );
    let imported = imported(&model);
    assert_eq!(imported.assumptions.len(), 1);
    assert_eq!(imported.assumptions[0].condition, "seq <= 8");
    assert_eq!(imported.graph.metadata["assumes"], "seq <= 8");
    assert_eq!(output_types(&imported.graph), ["f32[batch, seq, 2]"]);
    let ids = |seq: usize| Tensor::from_slice(&[1, seq], &vec![1i64; seq]);
    let y = run(&imported.graph, &[ids(2)], Mode::Native).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [2.0, 4.0, 4.0, 6.0]);
    assert!(run(&imported.graph, &[ids(9)], Mode::Native).is_err(), "9 positions are more than the table has");
}

#[test]
fn dims_that_only_look_named_are_their_own() {
    let model = model(
        13,
        vec![node("Relu", &["x"], &["y"])],
        vec![input("x", 1, &["?", "?", "N", "2*N", "seq len", "max"])],
        &["y"],
        vec![],
    );
    assert_eq!(output_types(&imported(&model).graph), ["f32[x_dim0, x_dim1, N, N*2, seq_len, max_2]"]);
    let shape = Bindings::from([("N".into(), 3), ("seq len".into(), 5)]);
    let bound = import_with(&model, &Options { shape, ..Options::default() }).unwrap().graph;
    assert_eq!(output_types(&bound), ["f32[x_dim0, x_dim1, 3, 6, 5, max_2]"]);
}

fn attribute_reference(name: &str, of: &str, kind: i32) -> AttributeProto {
    AttributeProto { name: name.into(), ref_attr_name: of.into(), r#type: kind, ..AttributeProto::default() }
}

/// A function with a required and a defaulted attribute, and an input that a call may leave out.
#[test]
fn functions_are_inlined_with_their_attributes() {
    let mut scaled = node("LeakyRelu", &["i"], &["t"]);
    scaled.attribute.push(attribute_reference("alpha", "slope", attribute_type::FLOAT));
    let mut clipped = node("Clip", &["t", "low"], &["u"]);
    clipped.name = "clip".into();
    let mut softmax = node("Softmax", &["u"], &["o"]);
    softmax.attribute.push(attribute_reference("axis", "axis", attribute_type::INT));
    let default =
        AttributeProto { name: "axis".into(), i: Some(1), r#type: attribute_type::INT, ..AttributeProto::default() };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let function = FunctionProto {
        name: "Relu".into(),
        domain: "my.ns".into(),
        input: vec!["i".into(), "low".into()],
        output: vec!["o".into()],
        attribute: vec!["slope".into()],
        attribute_proto: vec![default],
        node: vec![scaled, clipped, softmax],
        opset_import: vec![opset("", 13)],
        ..FunctionProto::default()
    };
    let call = |inputs: &[&str], output: &str, slope: f32, axis: Option<i64>| {
        let mut call = node("Relu", inputs, &[output]);
        call.domain = "my.ns".into();
        call.name = format!("call_{output}");
        let attribute = AttributeProto {
            name: "slope".into(),
            f: Some(slope),
            r#type: attribute_type::FLOAT,
            ..AttributeProto::default()
        };
        call.attribute.push(attribute);
        match axis {
            Some(axis) => with_int(call, "axis", axis),
            None => call,
        }
    };
    let mut model = model(
        13,
        vec![call(&["x"], "a", 0.5, None), call(&["x", "floor"], "b", 0.25, Some(0))],
        vec![input("x", 1, &["2", "2"])],
        &["a", "b"],
        vec![f32s("floor", &[], &[-0.5])],
    );
    model.functions = vec![function];
    model.opset_import.push(opset("my.ns", 1));
    let graph = imported(&model).graph;
    let x = Tensor::from_slice(&[2, 2], &[-4f32, 0.0, 1.0, 2.0]);
    let outputs = run(&graph, &[x], Mode::F64).unwrap();
    let softmax = |values: [f64; 2]| {
        let sum: f64 = values.iter().map(|v| v.exp()).sum();
        values.map(|v| v.exp() / sum)
    };
    let close = |got: &Tensor, want: [f64; 4]| {
        got.to_f64().iter().zip(want).for_each(|(g, w)| assert!((g - w).abs() < 1e-12, "{g} {w}"));
    };
    // Rows, slope 0.5, nothing clipped.
    let (first, second) = (softmax([-2.0, 0.0]), softmax([1.0, 2.0]));
    close(&outputs[0], [first[0], first[1], second[0], second[1]]);
    // Columns, slope 0.25, clipped at -0.5.
    let (first, second) = (softmax([-0.5, 1.0]), softmax([0.0, 2.0]));
    close(&outputs[1], [first[0], second[0], first[1], second[1]]);
    // Provenance says which call an op came from.
    let clip = graph.node_ids().find(|id| graph.op(*id).name() == "max").expect("the clip of the second call");
    assert_eq!(graph.node(clip).loc.0, ["call_b", "clip"]);
}

#[test]
fn the_branch_of_a_known_condition_is_inlined() {
    let branch = |op: &str| GraphProto {
        node: vec![node(op, &["x"], &["r"])],
        output: vec![ValueInfoProto { name: "r".into(), r#type: None }],
        ..GraphProto::default()
    };
    let mut choice = node("If", &["is_square"], &["y"]);
    for (name, op) in [("then_branch", "Neg"), ("else_branch", "Abs")] {
        choice.attribute.push(AttributeProto {
            name: name.into(),
            g: Some(branch(op)),
            r#type: attribute_type::GRAPH,
            ..AttributeProto::default()
        });
    }
    let model = |dims: &[&str]| {
        model(
            13,
            vec![
                node("Shape", &["x"], &["shape"]),
                with_int(node("Gather", &["shape", "zero"], &["rows"]), "axis", 0),
                with_int(node("Gather", &["shape", "one"], &["columns"]), "axis", 0),
                node("Equal", &["rows", "columns"], &["is_square"]),
                choice.clone(),
            ],
            vec![input("x", 1, dims)],
            &["y"],
            vec![i64s("zero", &[], &[0]), i64s("one", &[], &[1])],
        )
    };
    assert_eq!(op_names(&imported(&model(&["n", "n"])).graph), ["input", "neg"]);
    assert_eq!(op_names(&imported(&model(&["3", "4"])).graph), ["input", "abs"]);
    // Whether n is m is not known before they are bound.
    assert!(import(&model(&["n", "m"])).is_err());
    let shape = Bindings::from([("n".into(), 2), ("m".into(), 2)]);
    let bound = import_with(&model(&["n", "m"]), &Options { shape, ..Options::default() }).unwrap().graph;
    assert_eq!(op_names(&bound), ["input", "neg"]);
}

#[test]
fn weights_keep_their_names_and_dead_ones_go() {
    let zeros = vec![0.0; 100];
    let model = model(
        13,
        vec![
            node("Add", &["x", "shared"], &["a"]),
            node("Identity", &["shared"], &["alias"]),
            node("Mul", &["a", "alias"], &["y"]),
            node("Neg", &["unused"], &["nowhere"]),
        ],
        vec![input("x", 1, &["100"]), input("ignored", 1, &["3"])],
        &["y"],
        vec![f32s("shared", &[100], &zeros), f32s("unused", &[100], &zeros)],
    );
    let graph = imported(&model).graph;
    let weights: Vec<String> = graph
        .node_ids()
        .filter_map(|id| match graph.op(id) {
            Op::Weight { name, .. } => Some(name.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(weights, ["shared"], "one node for a weight and its alias, none for an unused one");
    assert_eq!(graph.inputs().len(), 2, "an unused input is still an input");
}
