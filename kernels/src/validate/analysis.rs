//! What kind of function a region is: which results have one right value, in which inputs it is linear, where rounding decides.

use std::collections::HashMap;

use forge_ir::{BinaryOp, DType, Graph, Op, PadMode, PoolKind, ReduceOp, ResizeMode, UnaryOp, Value};

/// How an output is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Elements of inputs and constants, moved: equal bits (any NaN for a NaN).
    Moved,
    /// Arithmetic that does not round: equal values.
    Exact,
    /// Arithmetic that rounds: an error budget.
    Rounded,
}

/// What is known of an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputTraits {
    pub kind: Kind,
    /// A comparison, a floor or an index was taken of a rounded value: nearly equal values may lead far apart.
    pub sensitive: bool,
}

/// The traits of each output of a region without composites.
#[must_use]
pub fn output_traits(graph: &Graph) -> Vec<OutputTraits> {
    let mut traits: HashMap<Value, OutputTraits> = HashMap::new();
    for node in graph.topological() {
        let operands = graph.operands(node);
        let mut joined = OutputTraits { kind: Kind::Moved, sensitive: false };
        for operand in &operands {
            let Some(of) = traits.get(operand) else { continue };
            // Which element is moved does not change what it is.
            if graph.ty(*operand).dtype.is_float() {
                joined.kind = joined.kind.max(of.kind);
            }
            joined.sensitive |= of.sensitive;
        }
        let own = kind_of(graph, node);
        let rounded_before = operands
            .iter()
            .any(|v| graph.ty(*v).dtype.is_float() && traits.get(v).is_some_and(|t| t.kind == Kind::Rounded));
        joined.sensitive |= rounded_before && is_discontinuous(graph.op(node));
        for value in graph.results(node) {
            // An integer result has one right value, but for the flips that `sensitive` admits.
            let kind = if graph.ty(value).dtype.is_float() { joined.kind.max(own) } else { Kind::Exact };
            traits.insert(value, OutputTraits { kind, ..joined });
        }
    }
    let unknown = OutputTraits { kind: Kind::Rounded, sensitive: false };
    graph.outputs().iter().map(|(_, v)| traits.get(v).copied().unwrap_or(unknown)).collect()
}

fn kind_of(graph: &Graph, node: forge_ir::NodeId) -> Kind {
    match graph.op(node) {
        Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } | Op::Iota { .. } | Op::DimValue { .. } => {
            Kind::Moved
        }
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Broadcast { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::Select => Kind::Moved,
        Op::ScatterElements { reduce, .. } | Op::ScatterNd { reduce } => match reduce {
            forge_ir::ScatterReduce::None => Kind::Moved,
            forge_ir::ScatterReduce::Max | forge_ir::ScatterReduce::Min => Kind::Exact,
            forge_ir::ScatterReduce::Add | forge_ir::ScatterReduce::Mul => Kind::Rounded,
        },
        Op::TopK { .. } | Op::Compare(_) | Op::Cast { .. } | Op::ArgReduce { .. } => Kind::Exact,
        Op::Unary(
            UnaryOp::Neg
            | UnaryOp::Abs
            | UnaryOp::Sign
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Round
            | UnaryOp::Relu
            | UnaryOp::Not
            | UnaryOp::IsNan
            | UnaryOp::IsInf,
        ) => Kind::Exact,
        Op::Binary(BinaryOp::Min | BinaryOp::Max | BinaryOp::Rem) => Kind::Exact,
        Op::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. } | Op::Pool { kind: PoolKind::Max, .. } => Kind::Exact,
        Op::Resize { mode: ResizeMode::Nearest, .. } => Kind::Moved,
        _ => Kind::Rounded,
    }
}

fn is_discontinuous(op: &Op) -> bool {
    match op {
        Op::Compare(_) | Op::ArgReduce { .. } | Op::TopK { .. } => true,
        Op::Cast { to } => !to.is_float(),
        Op::Unary(op) => {
            matches!(
                op,
                UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Sign | UnaryOp::IsNan | UnaryOp::IsInf
            )
        }
        Op::Binary(op) => matches!(op, BinaryOp::Rem | BinaryOp::Mod),
        _ => false,
    }
}

/// Whether doubling input `index` alone doubles every output, or leaves it. Only for regions without composites.
#[must_use]
pub fn is_homogeneous(graph: &Graph, index: usize) -> bool {
    /// Degree in the input: 0, 1, or neither.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Degree {
        Free,
        One,
        Other,
    }
    use Degree::{Free, One, Other};
    let mut degrees: HashMap<Value, Degree> = HashMap::new();
    for node in graph.topological() {
        let operands = graph.operands(node);
        let of: Vec<Degree> = operands.iter().map(|v| degrees.get(v).copied().unwrap_or(Other)).collect();
        let is_zero = |value: Option<&Value>| matches!(value.map(|v| graph.op(v.node)), Some(Op::Constant { value }) if value.to_f64().iter().all(|v| *v == 0.0));
        let all_same = || {
            let first = of.first().copied().unwrap_or(Free);
            if of.iter().all(|d| *d == first) { first } else { Other }
        };
        let degree = if of.contains(&Other) {
            Other
        } else if of.iter().all(|d| *d == Free) && !matches!(graph.op(node), Op::Input { .. }) {
            Free
        } else {
            match graph.op(node) {
                Op::Input { .. } if graph.inputs().get(index) == Some(&node) => One,
                Op::Input { .. } => Free,
                Op::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Relu) => One,
                Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Min | BinaryOp::Max) => {
                    match (of.first(), of.get(1)) {
                        (Some(One), Some(Free)) if is_zero(operands.get(1)) => One,
                        (Some(Free), Some(One)) if is_zero(operands.first()) => One,
                        _ => all_same(),
                    }
                }
                Op::Binary(BinaryOp::Mul) | Op::MatMul { .. } if of.contains(&Free) => One,
                Op::Binary(BinaryOp::Div) if of.get(1) == Some(&Free) => One,
                Op::Conv { .. } | Op::ConvTranspose { .. } if operands.len() == 2 && of.contains(&Free) => One,
                Op::Reduce { op, .. } if *op != ReduceOp::Prod => One,
                Op::CumSum { .. } | Op::Pool { .. } | Op::Resize { .. } => One,
                Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } | Op::Slice { .. } => One,
                Op::Concat { .. } => all_same(),
                Op::Pad { mode, .. }
                    if *mode != PadMode::Constant || operands.len() == 1 || is_zero(operands.get(1)) =>
                {
                    One
                }
                Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } if of.get(1) == Some(&Free) => One,
                Op::Select if of.first() == Some(&Free) => match (of.get(1), of.get(2)) {
                    (Some(One), Some(One)) => One,
                    (Some(One), _) if is_zero(operands.get(2)) => One,
                    (_, Some(One)) if is_zero(operands.get(1)) => One,
                    _ => Other,
                },
                Op::Cast { to } if to.is_float() => One,
                _ => Other,
            }
        };
        for value in graph.results(node) {
            degrees.insert(value, degree);
        }
    }
    // In halves and integers, doubling may round or wrap.
    let wide = graph
        .node_ids()
        .flat_map(|n| graph.node(n).outputs.iter())
        .all(|ty| !matches!(ty.dtype, DType::F16 | DType::BF16));
    let outputs: Vec<Degree> = graph.outputs().iter().map(|(_, v)| degrees.get(v).copied().unwrap_or(Other)).collect();
    let floats = graph.outputs().iter().zip(&outputs).all(|((_, v), d)| *d == Free || graph.ty(*v).dtype.is_float());
    wide && floats && !outputs.contains(&Other) && outputs.contains(&One)
}

/// Whether integers stay integers through every op, so that small ones give exact results in any order of summation.
#[must_use]
pub fn keeps_integers(graph: &Graph) -> bool {
    let rounds = graph.outputs().iter().zip(output_traits(graph)).any(|(_, t)| t.kind == Kind::Rounded);
    rounds
        && graph.node_ids().all(|node| match graph.op(node) {
            Op::Constant { value } | Op::Weight { data: Some(value), .. } => {
                !value.dtype().is_float() || value.to_f64().iter().all(|v| v.fract() == 0.0 && v.abs() <= 64.0)
            }
            Op::Unary(op) => kind_of(graph, node) == Kind::Exact && !matches!(op, UnaryOp::IsNan | UnaryOp::IsInf),
            Op::Binary(op) => {
                !graph.node(node).outputs[0].dtype.is_float()
                    || matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max)
            }
            Op::Reduce { op, .. } => matches!(op, ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min),
            Op::Pool { kind, .. } => *kind == PoolKind::Max,
            Op::MatMul { .. } | Op::Conv { .. } | Op::ConvTranspose { .. } | Op::CumSum { .. } => true,
            Op::Weight { data: None, .. } => false,
            _ => kind_of(graph, node) != Kind::Rounded,
        })
}

/// The most terms that one element of a contraction, reduction or scan sums.
#[must_use]
pub fn longest_sum(graph: &Graph) -> f64 {
    graph.node_ids().map(|node| terms(graph, node)).fold(1.0, f64::max)
}

/// Terms that one element of a node sums; 1 for ops that don't.
pub(super) fn terms(graph: &Graph, node: forge_ir::NodeId) -> f64 {
    let operands = graph.operands(node);
    let extent = |operand: usize, axis: Option<usize>| -> f64 {
        let shape = operands.get(operand).map(|v| &graph.ty(*v).shape[..]).unwrap_or_default();
        axis.and_then(|a| shape.get(a)).and_then(forge_ir::Dim::as_const).unwrap_or(1) as f64
    };
    let rank = |operand: usize| operands.get(operand).map_or(0, |v| graph.ty(*v).rank());
    match graph.op(node) {
        Op::MatMul { trans_a, .. } => extent(0, rank(0).checked_sub(if *trans_a { 2 } else { 1 })),
        Op::Conv { .. } => (1..rank(1)).map(|a| extent(1, Some(a))).product(),
        Op::ConvTranspose { groups, .. } => {
            extent(1, Some(0)) / *groups as f64 * (2..rank(1)).map(|a| extent(1, Some(a))).product::<f64>()
        }
        Op::Reduce { axes, .. } => axes.iter().map(|a| extent(0, Some(*a))).product(),
        Op::CumSum { axis, .. } => extent(0, Some(*axis)),
        Op::Pool { kernel, .. } => kernel.iter().map(|k| *k as f64).product(),
        Op::Resize { .. } => 8.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use forge_ir::text::parse;

    use super::*;

    fn graph(body: &str, result: &str) -> Graph {
        let text = format!(
            "graph @g(%x: f32[4, 8], %w: f32[8, 8], %b: f32[8], %i: i64[3]) -> ({result}) {{\n{body}\n  return %r\n}}\n"
        );
        parse(&text).unwrap()
    }

    #[test]
    fn outputs_are_told_apart() {
        let traits = |body: &str, result: &str| output_traits(&graph(body, result))[0];
        let moved = OutputTraits { kind: Kind::Moved, sensitive: false };
        assert_eq!(traits("%r = gather(%x, %i) {axis = 0} : f32[3, 8]", "f32[3, 8]"), moved);
        assert_eq!(traits("%r = relu(%x) : f32[4, 8]", "f32[4, 8]"), OutputTraits { kind: Kind::Exact, ..moved });
        assert_eq!(
            traits("%r = matmul(%x, %w) : f32[4, 8]", "f32[4, 8]"),
            OutputTraits { kind: Kind::Rounded, ..moved }
        );
        let argmax = "%0 = matmul(%x, %w) : f32[4, 8]\n%r = argmax(%0) {axis = 1, keep_dims = false, select_last = false} : i64[4]";
        assert_eq!(traits(argmax, "i64[4]"), OutputTraits { kind: Kind::Exact, sensitive: true });
        let direct = "%r = argmax(%x) {axis = 1, keep_dims = false, select_last = false} : i64[4]";
        assert_eq!(traits(direct, "i64[4]"), OutputTraits { kind: Kind::Exact, sensitive: false });
    }

    #[test]
    fn linearity_is_per_input() {
        let product = graph("%0 = matmul(%x, %w) : f32[4, 8]\n%r = relu(%0) : f32[4, 8]", "f32[4, 8]");
        assert!(is_homogeneous(&product, 0) && is_homogeneous(&product, 1));
        assert!(!is_homogeneous(&product, 2));
        let affine = graph("%0 = matmul(%x, %w) : f32[4, 8]\n%r = add(%0, %b) : f32[4, 8]", "f32[4, 8]");
        assert!(!is_homogeneous(&affine, 0));
        let square = graph("%r = mul(%x, %x) : f32[4, 8]", "f32[4, 8]");
        assert!(!is_homogeneous(&square, 0));
        let exponential = graph("%r = exp(%x) : f32[4, 8]", "f32[4, 8]");
        assert!(!is_homogeneous(&exponential, 0));
    }

    #[test]
    fn integers_are_kept_by_sums_and_products() {
        assert!(keeps_integers(&graph("%0 = matmul(%x, %w) : f32[4, 8]\n%r = add(%0, %b) : f32[4, 8]", "f32[4, 8]")));
        assert!(!keeps_integers(&graph("%r = exp(%x) : f32[4, 8]", "f32[4, 8]")));
        // Nothing rounds: compared by value in every case already.
        assert!(!keeps_integers(&graph("%r = relu(%x) : f32[4, 8]", "f32[4, 8]")));
        assert_eq!(longest_sum(&graph("%r = matmul(%x, %w) : f32[4, 8]", "f32[4, 8]")), 8.0);
    }
}
