use super::*;
use crate::graph::{Graph, Loc};
use crate::op::*;
use crate::tensor::Tensor;

/// Reads `f32[N, 4]`.
fn ty(text: &str) -> TensorType {
    let (dtype, shape) = text.strip_suffix(']').and_then(|t| t.split_once('[')).unwrap();
    let dims = shape.split(", ").filter(|d| !d.is_empty()).map(|d| Dim::parse(d).unwrap()).collect();
    TensorType::new(DType::from_name(dtype).unwrap(), dims)
}

fn dims(text: &str) -> Vec<Dim> {
    ty(&format!("f32[{text}]")).shape
}

fn run(op: &Op, operands: &[&str]) -> Result<String, String> {
    let types: Vec<TensorType> = operands.iter().map(|t| ty(t)).collect();
    let refs: Vec<&TensorType> = types.iter().collect();
    let results = infer(op, &refs).map_err(|e| e.to_string())?;
    assert_eq!(results.len(), op.output_count(), "{}", op.name());
    Ok(results.iter().map(TensorType::to_string).collect::<Vec<_>>().join(" "))
}

#[track_caller]
fn gives(op: &Op, operands: &[&str], expected: &str) {
    assert_eq!(run(op, operands).as_deref(), Ok(expected));
}

#[track_caller]
fn fails(op: &Op, operands: &[&str], message: &str) {
    let error = run(op, operands).unwrap_err();
    assert_eq!(error, format!("{}: {message}", op.name()));
}

fn window(strides: &[i64], begin: &[i64], end: &[i64], dilations: &[i64]) -> Window {
    Window {
        strides: strides.to_vec(),
        pads_begin: begin.to_vec(),
        pads_end: end.to_vec(),
        dilations: dilations.to_vec(),
    }
}

#[test]
fn unify_keeps_the_more_specific_and_rejects_what_cannot_be() {
    let dim = |t: &str| Dim::parse(t).unwrap();
    for (a, b, expected) in [
        ("3", "3", Some("3")),
        ("3", "4", None),
        ("N", "N", Some("N")),
        ("N", "4", Some("4")),
        ("4", "N", Some("4")),
        ("N", "M", Some("N")),
        ("N", "2*N", Some("N")),
        ("N", "N + 1", None),
        ("N", "1", Some("1")),
    ] {
        assert_eq!(unify(&dim(a), &dim(b)), expected.map(dim), "{a} with {b}");
    }
}

#[test]
fn broadcasting_is_numpys() {
    for (a, b, expected) in [
        ("", "", Some("")),
        ("", "2, 3", Some("2, 3")),
        ("3", "2, 1", Some("2, 3")),
        ("N, 1", "1, M", Some("N, M")),
        ("N, 4", "M, 1", Some("N, 4")),
        ("N", "5", Some("5")),
        ("5", "N", Some("5")),
        ("1", "0", Some("0")),
        ("2", "3", None),
        ("2, 3", "2, 3, 1, 4", None),
        ("N", "N + 1", None),
    ] {
        assert_eq!(broadcast_shapes(&dims(a), &dims(b)), expected.map(dims), "{a} with {b}");
    }
}

#[test]
fn leaves() {
    let data = Tensor::from_slice(&[2, 1], &[1f32, 2.0]);
    gives(&Op::Weight { name: "w".into(), data: Some(data.clone()) }, &[], "f32[2, 1]");
    gives(&Op::Constant { value: data.clone() }, &[], "f32[2, 1]");
    fails(&Op::Constant { value: data }, &["f32[]"], "1 operands, expected 0");
    gives(&Op::Iota { len: Dim::symbol("N"), dtype: DType::I64 }, &[], "i64[N]");
    fails(&Op::Iota { len: Dim::from(-1), dtype: DType::I64 }, &[], "len is negative: -1");
    fails(
        &Op::Iota { len: Dim::from(2), dtype: DType::Bool },
        &[],
        "dtype is bool, expected an integer or float dtype",
    );
    gives(&Op::DimValue { dim: Dim::symbol("N") }, &[], "i64[]");
    fails(&Op::Input { name: "x".into() }, &[], "an input's type is stated by the graph, not inferred");
    fails(
        &Op::Weight { name: "w".into(), data: None },
        &[],
        "weight 'w' has no data: its type is stated by the graph, not inferred",
    );
}

#[test]
fn elementwise() {
    gives(&Op::Unary(UnaryOp::Exp), &["f16[N, 3]"], "f16[N, 3]");
    gives(&Op::Unary(UnaryOp::IsNan), &["f16[N, 3]"], "bool[N, 3]");
    gives(&Op::Unary(UnaryOp::Not), &["bool[2]"], "bool[2]");
    gives(&Op::Unary(UnaryOp::Neg), &["i32[2]"], "i32[2]");
    fails(&Op::Unary(UnaryOp::Exp), &["i32[2]"], "operand i32[2] is not of a float dtype");
    fails(&Op::Unary(UnaryOp::Neg), &["bool[2]"], "operand bool[2] is not of a number dtype");
    fails(&Op::Unary(UnaryOp::Not), &["f32[2]"], "operand f32[2] is neither bool nor of an integer dtype");
    fails(&Op::Unary(UnaryOp::Exp), &["f32[2]", "f32[2]"], "2 operands, expected 1");

    gives(&Op::Binary(BinaryOp::Add), &["f32[N, 1, 4]", "f32[3, 1]"], "f32[N, 3, 4]");
    gives(&Op::Binary(BinaryOp::And), &["bool[N]", "bool[]"], "bool[N]");
    fails(&Op::Binary(BinaryOp::Add), &["f32[2]", "f16[2]"], "operands f32[2] and f16[2] differ in dtype");
    fails(&Op::Binary(BinaryOp::Add), &["f32[2]", "f32[3]"], "shapes [2] and [3] do not broadcast");
    fails(&Op::Binary(BinaryOp::Add), &["bool[2]", "bool[2]"], "operand bool[2] is not of a number dtype");
    fails(&Op::Binary(BinaryOp::Shl), &["f32[2]", "f32[2]"], "operand f32[2] is not of an integer dtype");
    fails(&Op::Binary(BinaryOp::Xor), &["f32[2]", "f32[2]"], "operand f32[2] is neither bool nor of an integer dtype");

    gives(&Op::Compare(CompareOp::Lt), &["f32[N, 1]", "f32[4]"], "bool[N, 4]");
    gives(&Op::Compare(CompareOp::Eq), &["bool[2]", "bool[2]"], "bool[2]");
    fails(&Op::Compare(CompareOp::Lt), &["bool[2]", "bool[2]"], "operand bool[2] is not of a number dtype");

    gives(&Op::Select, &["bool[N, 1]", "f32[]", "f32[4]"], "f32[N, 4]");
    fails(&Op::Select, &["i32[2]", "f32[]", "f32[]"], "condition i32[2] is not bool");
    fails(&Op::Select, &["bool[2]", "f32[]", "f64[]"], "operands f32[] and f64[] differ in dtype");
    fails(&Op::Select, &["bool[2]", "f32[3]", "f32[]"], "shapes [2] and [3] do not broadcast");

    gives(&Op::Cast { to: DType::BF16 }, &["bool[N]"], "bf16[N]");
}

#[test]
fn reductions_and_scans() {
    let sum = |axes: &[usize], keep_dims| Op::Reduce { op: ReduceOp::Sum, axes: axes.to_vec(), keep_dims };
    gives(&sum(&[0, 2], false), &["f32[N, 3, 4]"], "f32[3]");
    gives(&sum(&[0, 2], true), &["f32[N, 3, 4]"], "f32[1, 3, 1]");
    gives(&sum(&[], false), &["i32[N]"], "i32[N]");
    fails(&sum(&[1, 0], true), &["f32[2, 2]"], "axes [1, 0] are not sorted and distinct");
    fails(&sum(&[1, 1], true), &["f32[2, 2]"], "axes [1, 1] are not sorted and distinct");
    fails(&sum(&[2], true), &["f32[2, 2]"], "axis 2 is out of range for f32[2, 2] of rank 2");
    fails(&sum(&[0], true), &["bool[2]"], "operand bool[2] is not of a number dtype");
    let mean = Op::Reduce { op: ReduceOp::Mean, axes: vec![0], keep_dims: false };
    fails(&mean, &["i64[4]"], "operand i64[4] is not of a float dtype");

    let arg = |axis| Op::ArgReduce { op: ArgOp::Max, axis, keep_dims: true, select_last: false };
    gives(&arg(1), &["f32[2, N]"], "i64[2, 1]");
    fails(&arg(1), &["f32[2, 0]"], "axis 1 of f32[2, 0] is empty: it has no extreme");
    fails(&arg(2), &["f32[2, 2]"], "axis 2 is out of range for f32[2, 2] of rank 2");

    gives(&Op::CumSum { axis: 0, exclusive: true, reverse: false }, &["i64[N]"], "i64[N]");
    fails(
        &Op::CumSum { axis: 1, exclusive: false, reverse: false },
        &["i64[N]"],
        "axis 1 is out of range for i64[N] of rank 1",
    );
}

#[test]
fn views() {
    let reshape = |to: &str| Op::Reshape { shape: dims(to) };
    gives(&reshape("N, 12, 32"), &["f32[N, 384]"], "f32[N, 12, 32]");
    gives(&reshape("M"), &["f32[N, 384]"], "f32[M]");
    gives(&reshape(""), &["f32[1, 1]"], "f32[]");
    fails(&reshape("5"), &["f32[2, 3]"], "f32[2, 3] has 6 elements, shape [5] has 5");
    fails(&reshape("N + 1"), &["f32[N]"], "f32[N] has N elements, shape [N + 1] has N + 1");
    fails(&reshape("-1"), &["f32[2, 3]"], "shape [-1] has a negative entry");

    let transpose = |perm: &[usize]| Op::Transpose { perm: perm.to_vec() };
    gives(&transpose(&[2, 0, 1]), &["f32[N, 3, 4]"], "f32[4, N, 3]");
    for perm in [&[0usize, 0][..], &[0, 2], &[0]] {
        let message = format!("perm {perm:?} is not a permutation of the 2 axes of f32[2, 3]");
        fails(&transpose(perm), &["f32[2, 3]"], &message);
    }

    let broadcast = |to: &str| Op::Broadcast { shape: dims(to) };
    gives(&broadcast("N, 3, 4"), &["f32[1, 4]"], "f32[N, 3, 4]");
    gives(&broadcast("5"), &["f32[N]"], "f32[5]");
    fails(&broadcast("1"), &["f32[4]"], "shape [4] does not broadcast to [1]");
    fails(&broadcast("4"), &["f32[1, 4]"], "shape [1, 4] does not broadcast to [4]");

    let slice =
        |start: &str, step: i64, size: &str| Op::Slice { starts: dims(start), steps: vec![step], sizes: dims(size) };
    gives(&slice("2", 3, "3"), &["f32[9]"], "f32[3]");
    gives(&slice("8", -4, "3"), &["f32[9]"], "f32[3]");
    gives(&slice("N - 1", -1, "N"), &["f32[N]"], "f32[N]");
    gives(&slice("20", 1, "0"), &["f32[9]"], "f32[0]");
    fails(&slice("2", 3, "4"), &["f32[9]"], "elements 2 to 11 of axis 0 are out of bounds of f32[9]");
    fails(&slice("7", -4, "3"), &["f32[9]"], "elements 7 to -1 of axis 0 are out of bounds of f32[9]");
    fails(&slice("N", 1, "1"), &["f32[N]"], "elements N to N of axis 0 are out of bounds of f32[N]");
    fails(&slice("0", 0, "1"), &["f32[9]"], "steps [0] has a zero");
    fails(&slice("0", 1, "-2"), &["f32[9]"], "sizes [-2] has a negative entry");
    fails(&slice("0", 1, "1"), &["f32[9, 9]"], "starts has 1 entries, expected 2");

    let pad = |mode, before: &str, after: &str| Op::Pad { mode, before: dims(before), after: dims(after) };
    gives(&pad(PadMode::Constant, "1, 0", "2, 0"), &["f32[N, 4]", "f32[]"], "f32[N + 3, 4]");
    gives(&pad(PadMode::Reflect, "3", "0"), &["f32[4]"], "f32[7]");
    fails(&pad(PadMode::Reflect, "4", "0"), &["f32[4]"], "pads 4, 0 of axis 0 reach beyond f32[4] in mode 'reflect'");
    fails(&pad(PadMode::Edge, "1", "0"), &["f32[0]"], "pads 1, 0 of axis 0 reach beyond f32[0] in mode 'edge'");
    fails(&pad(PadMode::Edge, "1", "0"), &["f32[2]", "f32[]"], "mode 'edge' takes no value");
    fails(&pad(PadMode::Constant, "-1", "0"), &["f32[2]"], "before [-1] has a negative entry");
    fails(&pad(PadMode::Constant, "1", "0"), &["f32[2]", "f16[]"], "operands f32[2] and f16[] differ in dtype");
    fails(&pad(PadMode::Constant, "1", "0"), &["f32[2]", "f32[1]"], "value f32[1] has rank 1, expected 0");
    fails(&pad(PadMode::Constant, "1", "0"), &[], "0 operands, expected 1 or 2");

    gives(&Op::Concat { axis: 1 }, &["f32[N, 2]", "f32[M, S]", "f32[4, 1]"], "f32[4, S + 3]");
    fails(&Op::Concat { axis: 0 }, &[], "no operands, expected at least one");
    fails(&Op::Concat { axis: 1 }, &["f32[2, 2]", "f32[3, 2]"], "operands f32[2, 2] and f32[3, 2] differ in axis 0");
    fails(&Op::Concat { axis: 0 }, &["f32[2]", "f32[2, 2]"], "operand f32[2, 2] has rank 2, expected 1");
    fails(&Op::Concat { axis: 0 }, &["f32[2]", "f64[2]"], "operands f32[2] and f64[2] differ in dtype");
}

#[test]
fn indexing() {
    gives(&Op::Gather { axis: 1 }, &["f32[2, V, 4]", "i64[N, S]"], "f32[2, N, S, 4]");
    gives(&Op::Gather { axis: 0 }, &["f32[V]", "i32[]"], "f32[]");
    fails(&Op::Gather { axis: 0 }, &["f32[V]", "u8[]"], "indices u8[] are neither i32 nor i64");
    fails(&Op::Gather { axis: 1 }, &["f32[V]", "i64[]"], "axis 1 is out of range for f32[V] of rank 1");

    gives(&Op::GatherElements { axis: 0 }, &["f32[4, 3]", "i64[9, 2]"], "f32[9, 2]");
    fails(&Op::GatherElements { axis: 0 }, &["f32[4, 3]", "i64[9, 5]"], "indices i64[9, 5] exceed f32[4, 3] in axis 1");
    fails(&Op::GatherElements { axis: 0 }, &["f32[4, 3]", "i64[9]"], "indices i64[9] has rank 1, expected 2");

    gives(&Op::GatherNd { batch_dims: 1 }, &["f32[B, 5, 6, 7]", "i64[B, N, 2]"], "f32[B, N, 7]");
    gives(&Op::GatherNd { batch_dims: 0 }, &["f32[5, 6]", "i64[2]"], "f32[]");
    fails(
        &Op::GatherNd { batch_dims: 0 },
        &["f32[5, 6]", "i64[N, K]"],
        "indices i64[N, K] must end in a constant from 1 to 2, to index f32[5, 6]",
    );
    fails(
        &Op::GatherNd { batch_dims: 0 },
        &["f32[5, 6]", "i64[3]"],
        "indices i64[3] must end in a constant from 1 to 2, to index f32[5, 6]",
    );
    fails(
        &Op::GatherNd { batch_dims: 2 },
        &["f32[5, 6]", "i64[5, 6, 1]"],
        "2 batch dims are too many for f32[5, 6] and indices i64[5, 6, 1]",
    );
    fails(&Op::GatherNd { batch_dims: 1 }, &["f32[5, 6]", "i64[4, 1]"], "batch dims differ: 5 and 4");

    let scatter = |reduce| Op::ScatterElements { axis: 1, reduce };
    gives(&scatter(ScatterReduce::Add), &["f32[4, 3]", "i64[4, N]", "f32[4, N]"], "f32[4, 3]");
    gives(&scatter(ScatterReduce::None), &["bool[4, 3]", "i64[4, 1]", "bool[4, 1]"], "bool[4, 3]");
    fails(
        &scatter(ScatterReduce::Max),
        &["bool[4, 3]", "i64[4, 1]", "bool[4, 1]"],
        "operand bool[4, 3] is not of a number dtype",
    );
    fails(
        &scatter(ScatterReduce::None),
        &["f32[4, 3]", "i64[4, 1]", "f32[4, 2]"],
        "updates f32[4, 2] does not have shape [4, 1]",
    );
    fails(
        &scatter(ScatterReduce::None),
        &["f32[4, 3]", "i64[5, 1]", "f32[5, 1]"],
        "indices i64[5, 1] exceed f32[4, 3] in axis 0",
    );

    let scatter_nd = Op::ScatterNd { reduce: ScatterReduce::None };
    gives(&scatter_nd, &["f32[V, 4]", "i64[N, 1]", "f32[N, 4]"], "f32[V, 4]");
    fails(&scatter_nd, &["f32[V, 4]", "i64[N, 1]", "f32[N, 5]"], "updates f32[N, 5] does not have shape [N, 4]");
    fails(&scatter_nd, &["f32[V, 4]", "i64[N, 1]"], "2 operands, expected 3");

    let top_k = |k: &str| Op::TopK { axis: 1, k: Dim::parse(k).unwrap(), largest: true };
    gives(&top_k("5"), &["f16[N, 9]"], "f16[N, 5] i64[N, 5]");
    gives(&top_k("K"), &["f16[N, 9]"], "f16[N, K] i64[N, K]");
    fails(&top_k("10"), &["f16[N, 9]"], "k is 10, axis 1 of f16[N, 9] has fewer elements");
}

#[test]
fn contractions() {
    let matmul = |trans_a, trans_b| Op::MatMul { trans_a, trans_b };
    gives(&matmul(false, false), &["f32[N, M, 3]", "f32[3, 5]"], "f32[N, M, 5]");
    gives(&matmul(true, true), &["f32[3, M]", "f32[B, 5, 3]"], "f32[B, M, 5]");
    fails(&matmul(false, true), &["f32[2, 3]", "f32[3, 5]"], "f32[2, 3] by f32[3, 5] contracts 3 with 5");
    fails(&matmul(false, false), &["f32[3]", "f32[3, 5]"], "operand f32[3] has rank 1, expected at least 2");
    fails(&matmul(false, false), &["f32[2, 1, 3]", "f32[4, 3, 5]", "f32[]"], "3 operands, expected 2");
    fails(&matmul(false, false), &["f32[2, 1, 3]", "f32[4, 3, 5]"], "shapes [2] and [4] do not broadcast");

    let conv = |groups| Op::Conv { window: window(&[2, 1], &[1, 0], &[1, 0], &[1, 2]), groups };
    gives(&conv(1), &["f32[N, 3, 8, W]", "f32[6, 3, 3, 3]", "f32[6]"], "f32[N, 6, 4, W - 4]");
    gives(&conv(3), &["f32[N, 3, 8, 8]", "f32[6, 1, 3, 3]"], "f32[N, 6, 4, 4]");
    fails(
        &conv(1),
        &["f32[N, 4, 8, 8]", "f32[6, 3, 3, 3]"],
        "f32[N, 4, 8, 8] has 4 channels, weight f32[6, 3, 3, 3] in 1 groups takes 3",
    );
    fails(&conv(4), &["f32[N, 4, 8, 8]", "f32[6, 1, 3, 3]"], "6 result channels do not split into 4 groups");
    fails(&conv(0), &["f32[N, 4, 8, 8]", "f32[6, 4, 3, 3]"], "groups is 0, expected at least 1");
    fails(&conv(1), &["f32[N, 3, 8, 4]", "f32[6, 3, 3, 3]"], "a window of 3 does not fit axis 3 of f32[N, 3, 8, 4]");
    fails(&conv(1), &["f32[N, 3, 8, 8]", "f32[6, 3, 3, 3]", "f32[5]"], "bias f32[5] does not have shape [6]");
    fails(&conv(1), &["f32[N, 3, 8]", "f32[6, 3, 3]"], "strides has 2 entries, expected 1");
    fails(&conv(1), &["f32[N, 3]", "f32[6, 3]"], "operand f32[N, 3] has no spatial axes: its rank is below 3");
    let still = Op::Conv { window: window(&[0], &[0], &[0], &[1]), groups: 1 };
    fails(&still, &["f32[N, 3, 8]", "f32[6, 3, 3]"], "strides [0] has an entry below 1");

    let transposed = |output_padding: i64| Op::ConvTranspose {
        window: window(&[2], &[1], &[1], &[1]),
        groups: 2,
        output_padding: vec![output_padding],
    };
    gives(&transposed(1), &["f32[N, 4, L]", "f32[4, 3, 3]", "f32[6]"], "f32[N, 6, L*2]");
    fails(
        &transposed(2),
        &["f32[N, 4, L]", "f32[4, 3, 3]"],
        "output_padding 2 of axis 0 is not below its stride or dilation",
    );
    fails(
        &transposed(0),
        &["f32[N, 6, L]", "f32[4, 3, 3]"],
        "f32[N, 6, L] has 6 channels, weight f32[4, 3, 3] takes 4",
    );
}

#[test]
fn windows() {
    let pool = |kind, ceil_mode| Op::Pool {
        kind,
        kernel: vec![3],
        window: window(&[2], &[0], &[0], &[1]),
        ceil_mode,
        count_include_pad: false,
    };
    gives(&pool(PoolKind::Max, false), &["f32[N, 3, 8]"], "f32[N, 3, 3]");
    gives(&pool(PoolKind::Max, true), &["f32[N, 3, 8]"], "f32[N, 3, 4]");
    gives(&pool(PoolKind::Average, false), &["f32[N, 3, L]"], "f32[N, 3, floordiv(L - 3, 2) + 1]");
    fails(&pool(PoolKind::Average, false), &["i32[N, 3, 8]"], "operand i32[N, 3, 8] is not of a float dtype");
    fails(&pool(PoolKind::Max, false), &["f32[N, 3, 2]"], "a window of 3 does not fit axis 2 of f32[N, 3, 2]");
    // Four positions round up, but the last would start in the right padding.
    let padded = Op::Pool {
        kind: PoolKind::Max,
        kernel: vec![2],
        window: window(&[3], &[1], &[1], &[1]),
        ceil_mode: true,
        count_include_pad: false,
    };
    gives(&padded, &["f32[N, 3, 5]"], "f32[N, 3, 2]");
    let lost = Op::Pool {
        kind: PoolKind::Max,
        kernel: vec![2],
        window: window(&[1], &[2], &[0], &[1]),
        ceil_mode: false,
        count_include_pad: false,
    };
    fails(&lost, &["f32[N, 3, 5]"], "pads of axis 2 are not below the window's reach 2");

    let resize = |mode, scales: &[f64], sizes: &str| Op::Resize {
        mode,
        coordinates: ResizeCoordinates::HalfPixel,
        rounding: ResizeRounding::Floor,
        cubic_coeff: -0.75,
        scales: scales.to_vec(),
        sizes: dims(sizes),
    };
    gives(&resize(ResizeMode::Nearest, &[1.0, 2.0], "N, 8"), &["u8[N, 4]"], "u8[N, 8]");
    fails(&resize(ResizeMode::Cubic, &[1.0, 2.0], "N, 8"), &["u8[N, 4]"], "operand u8[N, 4] is not of a float dtype");
    fails(&resize(ResizeMode::Linear, &[2.0], "N, 8"), &["f32[N, 4]"], "scales has 1 entries, expected 2");
    fails(
        &resize(ResizeMode::Linear, &[1.0, 0.0], "N, 8"),
        &["f32[N, 4]"],
        "scales [1.0, 0.0] has an entry that is not positive and finite",
    );
    fails(
        &resize(ResizeMode::Linear, &[1.0, 2.0], "N, 8"),
        &["f32[N, 0]"],
        "axis 1 of f32[N, 0] is empty, so it does not resize to 8",
    );
}

#[test]
fn composites() {
    gives(&Op::Softmax { axis: 1 }, &["f16[N, 4]"], "f16[N, 4]");
    gives(&Op::LogSoftmax { axis: 0 }, &["f16[N, 4]"], "f16[N, 4]");
    fails(&Op::Softmax { axis: 2 }, &["f16[N, 4]"], "axis 2 is out of range for f16[N, 4] of rank 2");
    fails(&Op::Softmax { axis: 0 }, &["i32[N, 4]"], "operand i32[N, 4] is not of a float dtype");
    gives(&Op::Gelu { approximate: GeluApproximate::Tanh }, &["bf16[N]"], "bf16[N]");
    gives(&Op::Silu, &["bf16[N]"], "bf16[N]");
    fails(&Op::Silu, &["i8[N]"], "operand i8[N] is not of a float dtype");

    let layer_norm = |axis, epsilon| Op::LayerNorm { axis, epsilon };
    gives(&layer_norm(1, 1e-5), &["f32[N, 4, 5]", "f32[4, 5]", "f32[4, 5]"], "f32[N, 4, 5]");
    gives(&layer_norm(2, 1e-5), &["f32[N, 4, 5]", "f32[5]"], "f32[N, 4, 5]");
    fails(&layer_norm(2, 1e-5), &["f32[N, 4, 5]", "f32[4]"], "scale f32[4] does not have shape [5]");
    fails(&layer_norm(2, 1e-5), &["f32[N, 4, 5]", "f32[5]", "f32[1]"], "bias f32[1] does not have shape [5]");
    fails(&layer_norm(3, 1e-5), &["f32[N, 4, 5]", "f32[5]"], "axis 3 is out of range for f32[N, 4, 5] of rank 3");
    fails(
        &layer_norm(2, f64::NAN),
        &["f32[N, 4, 5]", "f32[5]"],
        "epsilon is NaN, expected a finite number that is not negative",
    );
    gives(&Op::RmsNorm { axis: 1, epsilon: 0.0 }, &["f16[N, D]", "f16[D]"], "f16[N, D]");
    fails(
        &Op::RmsNorm { axis: 1, epsilon: 0.0 },
        &["f16[N, D]", "f32[D]"],
        "operands f16[N, D] and f32[D] differ in dtype",
    );
    gives(&Op::GroupNorm { groups: 2, epsilon: 1e-5 }, &["f32[N, 6, H, W]", "f32[6]", "f32[6]"], "f32[N, 6, H, W]");
    fails(
        &Op::GroupNorm { groups: 4, epsilon: 1e-5 },
        &["f32[N, 6, H, W]", "f32[6]", "f32[6]"],
        "6 channels do not split into 4 groups",
    );
    let batch_norm = Op::BatchNorm { epsilon: 1e-5 };
    gives(&batch_norm, &["f32[N, 6, H]", "f32[6]", "f32[6]", "f32[6]", "f32[6]"], "f32[N, 6, H]");
    fails(
        &batch_norm,
        &["f32[N, 6, H]", "f32[6]", "f32[6]", "f32[6]", "f32[3]"],
        "variance f32[3] does not have shape [6]",
    );
    fails(
        &batch_norm,
        &["f32[N]", "f32[6]", "f32[6]", "f32[6]", "f32[6]"],
        "operand f32[N] has rank 1, expected at least 2",
    );
}

#[test]
fn attention_and_rotary() {
    let attention = Op::Attention { scale: 0.125, causal: true, causal_offset: true, masked_rows_zero: false };
    let (q, k, v) = ("f16[B, 8, L, 64]", "f16[B, 2, S, 64]", "f16[B, 2, S, 32]");
    gives(&attention, &[q, k, v], "f16[B, 8, L, 32]");
    gives(&attention, &[q, k, v, "bool[B, 1, 1, S]"], "f16[B, 8, L, 32]");
    gives(&attention, &[q, k, v, "f16[L, S]"], "f16[B, 8, L, 32]");
    fails(&attention, &[q, k, v, "f32[L, S]"], "mask f32[L, S] is neither bool nor f16");
    fails(&attention, &[q, k, v, "bool[3, 1, 1, L, S]"], "mask [3, 1, 1, L, S] does not broadcast to [B, 8, L, S]");
    fails(&attention, &[q, "f16[B, 3, S, 64]", "f16[B, 3, S, 64]"], "8 heads of q are not a multiple of 3 heads of k");
    fails(&attention, &[q, "f16[B, 2, S, 32]", v], "last axes of q and k differ: 64 and 32");
    fails(&attention, &[q, k, "f16[B, 4, S, 32]"], "heads of k and v differ: 2 and 4");
    fails(&attention, &[q, k, "f16[B, S, 32]"], "v f16[B, S, 32] has rank 3, expected 4");

    let rotary = Op::Rotary { interleaved: false };
    gives(&rotary, &["f16[B, H, S, 64]", "f16[S, 32]", "f16[1, 1, S, 32]"], "f16[B, H, S, 64]");
    fails(
        &rotary,
        &["f16[B, H, S, 64]", "f16[S, 64]", "f16[S, 64]"],
        "cos f16[S, 64] does not end in half of the last axis of f16[B, H, S, 64]",
    );
    fails(&rotary, &["f16[B, 1, S, 64]", "f16[4, S, 32]", "f16[S, 32]"], "cos [4, S] does not broadcast to [B, 1, S]");
    fails(&rotary, &["f16[S, 7]", "f16[S, 3]", "f16[S, 3]"], "the last axis of f16[S, 7] is odd");
}

#[test]
fn a_fused_call_has_the_types_of_its_body() {
    let mut body = Graph::new("body");
    let x = body.add_input("x", ty("f32[N, 4]"));
    let y = body.add(Op::Unary(UnaryOp::Relu), &[x], Loc::default()).unwrap();
    let z = body.add(Op::Cast { to: DType::F16 }, &[x], Loc::default()).unwrap();
    body.set_outputs(vec![("y".into(), y), ("z".into(), z)]);
    let fused = Op::Fused(std::sync::Arc::new(Fused { body, kernel: String::new() }));
    gives(&fused, &["f32[N, 4]"], "f32[N, 4] f16[N, 4]");
    gives(&fused, &["f32[M, 4]"], "f32[N, 4] f16[N, 4]");
    fails(&fused, &["f32[N, 5]"], "operand f32[N, 5] for body input 'x' of type f32[N, 4]");
    fails(&fused, &["f16[N, 4]"], "operand f16[N, 4] for body input 'x' of type f32[N, 4]");
    fails(&fused, &[], "0 operands, expected 1 as the body");
}
