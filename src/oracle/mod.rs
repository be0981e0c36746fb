//! A second opinion on what an f32 graph computes, from an implementation that shares nothing with ours.
//!
//! The oracle of record is the interpreter of forge-ir. tract is asked only about ops that it was seen to get right (see
//! [`trusted`]); where the two differ, a person should look. Only this module names tract, behind the cargo feature of that
//! name; without it there is no second opinion on anything.

use forge_ir::{ArgOp, BinaryOp, DType, Graph, InferError, Op, PoolKind, Tensor, TensorType, UnaryOp, Value};
use forge_ir::{ResizeCoordinates, ResizeMode, ResizeRounding};

use crate::emit::onnx_model::OnnxError;

#[cfg(feature = "tract")]
mod tract;

/// Why tract gave no answer on a graph of ops that it should know.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    #[error("the graph has no ONNX form: {0}")]
    Onnx(#[from] OnnxError),
    #[error("the inputs do not fit the graph: {0}")]
    Inputs(#[from] forge_ir::interp::EvalError),
    #[error(transparent)]
    Infer(#[from] InferError),
    #[error("tract refuses: {0}")]
    Tract(String),
}

/// What tract computes for `graph` on `inputs`. `None` if it has no say: an op or dtype off the list, an input that is not
/// finite (its `Relu`, `Max` and `Min` swallow NaN), or a build without tract.
///
/// The graph is specialised to the inputs' shapes, and fused calls are replaced by their bodies.
#[must_use]
pub fn second_opinion(graph: &Graph, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>, OracleError>> {
    #[cfg(feature = "tract")]
    {
        let finite = |t: &Tensor| !t.dtype().is_float() || t.to_f64().iter().all(|v| v.is_finite());
        if !inputs.iter().all(finite) {
            return None;
        }
        match prepare(graph, inputs) {
            Ok(graph) => in_scope(&graph).then(|| tract::run(&graph, inputs)),
            Err(error) => Some(Err(error)),
        }
    }
    #[cfg(not(feature = "tract"))]
    {
        let _ = (graph, inputs);
        None
    }
}

#[cfg_attr(not(feature = "tract"), allow(dead_code))]
fn prepare(graph: &Graph, inputs: &[Tensor]) -> Result<Graph, OracleError> {
    let bindings = forge_ir::interp::bind_inputs(graph, inputs)?;
    Ok(without_calls(&graph.specialize(&bindings)?)?)
}

/// The graph with the bodies of fused calls in their place, and the definitions of what tract gets wrong: `LogSoftmax`
/// where the spread is large, `BatchNormalization` of computed statistics. The other composites stay whole.
fn without_calls(graph: &Graph) -> Result<Graph, InferError> {
    let mut out = Graph::new(graph.name());
    let mut map = std::collections::HashMap::new();
    for node in graph.inputs() {
        let value = Value { node: *node, port: 0 };
        map.insert(value, out.add_input(graph.input_name(*node), graph.ty(value).clone()));
    }
    for id in graph.topological() {
        let node = graph.node(id);
        let operands: Vec<Value> = graph.operands(id).iter().map(|v| map[v]).collect();
        let results: Vec<Value> = match &node.op {
            Op::Input { .. } => continue,
            Op::Weight { .. } | Op::Constant { .. } => vec![out.add_leaf(node.op.clone(), node.outputs[0].clone())],
            Op::Fused(fused) => out.inline(&without_calls(&fused.body)?, &operands, &node.loc)?,
            op @ (Op::LogSoftmax { .. } | Op::BatchNorm { .. }) => {
                let types: Vec<TensorType> = operands.iter().map(|v| out.ty(*v).clone()).collect();
                match op.decompose(&types) {
                    Some(definition) => out.inline(&definition, &operands, &node.loc)?,
                    None => vec![out.add(op.clone(), &operands, node.loc.clone())?],
                }
            }
            op => {
                let new = out.add_node(op.clone(), &operands, node.loc.clone())?;
                out.results(new).collect()
            }
        };
        map.extend(graph.results(id).zip(results));
    }
    out.set_outputs(graph.outputs().iter().map(|(name, value)| (name.clone(), map[value])).collect());
    Ok(out)
}

#[cfg_attr(not(feature = "tract"), allow(dead_code))]
fn in_scope(graph: &Graph) -> bool {
    graph.node_ids().all(|id| {
        let node = graph.node(id);
        let dtypes = node.outputs.iter().all(|ty| matches!(ty.dtype, DType::F32 | DType::I64 | DType::Bool));
        let operands: Vec<DType> = graph.operands(id).iter().map(|v| graph.ty(*v).dtype).collect();
        // Empty tensors are where implementations differ most and kernels matter least.
        let filled = node.outputs.iter().all(|ty| ty.numel().as_const() != Some(0));
        dtypes && filled && trusted(&node.op, &operands)
    })
}

/// Ops (by what [`crate::emit::onnx_model`] writes for them) on which tract 0.23 agreed with ONNX Runtime, case by case.
fn trusted(op: &Op, operands: &[DType]) -> bool {
    let float = operands.first().is_none_or(|d| *d == DType::F32);
    match op {
        Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } | Op::Iota { .. } | Op::DimValue { .. } => true,
        Op::Unary(op) => float && !matches!(op, UnaryOp::IsInf),
        Op::Binary(op) => matches!(
            op,
            BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Mul
                | BinaryOp::Div
                | BinaryOp::Pow
                | BinaryOp::Min
                | BinaryOp::Max
        ),
        Op::Compare(_) => operands.first() != Some(&DType::Bool),
        Op::Select => true,
        // Between floats and out of bool or integers: what tract does to a float that no integer holds is its own affair.
        Op::Cast { to } => *to == DType::F32,
        Op::Reduce { .. } => float,
        Op::ArgReduce { op, .. } => matches!(op, ArgOp::Max | ArgOp::Min) && float,
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Broadcast { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. } => true,
        // Its other steps do not commute with its reshapes.
        Op::Slice { steps, .. } => steps.iter().all(|step| *step == 1),
        Op::MatMul { .. } => float,
        Op::Conv { .. } => true,
        Op::Pool { kind, ceil_mode, .. } => matches!(kind, PoolKind::Max | PoolKind::Average) && !ceil_mode,
        Op::Resize { mode, coordinates, rounding, .. } => {
            *mode == ResizeMode::Nearest
                && *coordinates == ResizeCoordinates::Asymmetric
                && *rounding == ResizeRounding::Floor
        }
        Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::Gelu { .. }
        | Op::RmsNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Silu
        | Op::Rotary { .. }
        | Op::Attention { .. } => true,
        Op::CumSum { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::TopK { .. }
        | Op::ConvTranspose { .. }
        | Op::LogSoftmax { .. }
        | Op::BatchNorm { .. }
        | Op::Fused(_) => false,
    }
}
