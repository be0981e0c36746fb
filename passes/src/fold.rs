//! Constant folding.

use forge_ir::{Dim, Exactness, Graph, NodeId, Op, OpClass, Patch, Tensor, TensorType, interp};

use crate::{Context, OptionSpec, PassError};

pub const ABOUT: &str = "compute ops on constants; dims that are symbols stay symbolic";

pub const OPTIONS: &[OptionSpec] =
    &[OptionSpec { name: "max_bytes", about: "largest result of a fold", default: "1048576" }];

const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// The reference interpreter at the declared precision.
///
/// # Errors
/// What the interpreter says.
pub fn reference(op: &Op, operands: &[Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, String> {
    interp::eval_op(op, operands, results, interp::Mode::Native).map_err(|error| error.to_string())
}

/// Folds every op whose operands are constants and whose results have constant shapes within the limit. Weights are
/// not constants: they have names, and their data may be bound later. An op that refuses its operands (an index out of
/// range) stays, to fail where it would have failed.
///
/// # Errors
/// If the option is malformed.
pub fn run(graph: &Graph, context: &Context) -> Result<Vec<Patch>, PassError> {
    let limit = context.options.number("max_bytes")?.unwrap_or(DEFAULT_MAX_BYTES);
    let mut patches = Vec::new();
    for node in graph.topological() {
        if foldable(graph, node, limit)
            && let Some(operands) = constant_operands(graph, node)
            && let Ok(results) = (context.evaluate)(graph.op(node), &operands, &graph.node(node).outputs)
        {
            patches.push(folded(graph, node, results));
        }
    }
    Ok(patches)
}

fn foldable(graph: &Graph, node: NodeId, limit: usize) -> bool {
    let op = graph.op(node);
    let kind = match op {
        Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } | Op::Fused(_) => false,
        // A dim that became constant (a specialised graph).
        Op::DimValue { dim } => dim.as_const().is_some(),
        // As large as what it is made from is small: codegen computes an iota for free.
        Op::Iota { .. } => false,
        _ => true,
    };
    kind && graph.node(node).outputs.iter().all(|ty| bytes(ty).is_some_and(|n| n <= limit)) && has_constant_dims(op)
}

fn bytes(ty: &TensorType) -> Option<usize> {
    ty.const_shape()?.iter().try_fold(ty.dtype.size(), |acc, d| acc.checked_mul(*d))
}

fn has_constant_dims(op: &Op) -> bool {
    let symbolic = std::cell::Cell::new(false);
    let _ = op.map_dims(&|dim: &Dim| {
        symbolic.set(symbolic.get() || dim.as_const().is_none());
        dim.clone()
    });
    !symbolic.get()
}

/// The operands, if all are constants; an iota of constant length among other constants counts as one.
fn constant_operands(graph: &Graph, node: NodeId) -> Option<Vec<Tensor>> {
    graph
        .operands(node)
        .iter()
        .map(|v| match graph.op(v.node) {
            Op::Constant { value } => Some(value.clone()),
            Op::Iota { len, dtype } => {
                let values: Vec<i64> = (0..len.as_const()?.min(1 << 20)).collect();
                (Dim::from(values.len()) == *len).then(|| Tensor::from_i64(*dtype, &[values.len()], &values))
            }
            _ => None,
        })
        .collect()
}

fn folded(graph: &Graph, node: NodeId, results: Vec<Tensor>) -> Patch {
    let op = graph.op(node);
    let mut patch = Patch::builder(graph, &format!("{} of constants", op.name()));
    for (old, value) in graph.results(node).zip(results) {
        let new = patch.constant(value);
        patch.replace(old, new);
    }
    // The interpreter's arithmetic on floats is right, and may yet differ from a kernel's in the last place.
    let floats = graph.node(node).outputs.iter().any(|ty| ty.dtype.is_float());
    let exact = !floats || matches!(op.class(), OpClass::View | OpClass::Index | OpClass::Leaf);
    patch.finish(if exact { Exactness::Exact } else { Exactness::Rounding })
}
