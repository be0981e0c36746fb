//! What a region costs, by the roofline: enough to order attention before anything is measured, and the same on every run.

use forge_ir::{Graph, Op, OpClass, Value};

/// Floating-point operations per second and bytes per second of a nominal machine. Only their ratio matters here.
const FLOPS: f64 = 1e11;
const BYTES: f64 = 2e10;
/// Of each step, whatever it does.
const STEP_SECONDS: f64 = 1e-6;

/// Seconds that `graph` takes op by op: each op reads its operands and writes its results. Symbolic sizes count as 1.
#[must_use]
pub(super) fn seconds(graph: &Graph) -> f64 {
    graph.node_ids().map(|node| op_seconds(graph, node)).sum()
}

fn op_seconds(graph: &Graph, node: forge_ir::NodeId) -> f64 {
    let op = graph.op(node);
    match op {
        Op::Fused(fused) => return seconds(&fused.body),
        Op::Reshape { .. } => return 0.0,
        _ if op.class() == OpClass::Leaf => return 0.0,
        _ => {}
    }
    let numel = |v: Value| graph.ty(v).numel().as_const().unwrap_or(1) as f64;
    let size = |v: Value| numel(v) * graph.ty(v).dtype.size() as f64;
    let operands = graph.operands(node);
    let results: Vec<Value> = graph.results(node).collect();
    // A gather touches only what it picks.
    let read: f64 = match op {
        Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } | Op::Slice { .. } => {
            results.iter().map(|v| size(*v)).sum()
        }
        _ => operands.iter().map(|v| size(*v)).sum(),
    };
    let written: f64 = results.iter().map(|v| size(*v)).sum();
    let outputs: f64 = results.iter().map(|v| numel(*v)).sum();
    let extent = |v: Value, axis_from_end: usize| {
        let shape = &graph.ty(v).shape;
        shape.len().checked_sub(axis_from_end).and_then(|i| shape[i].as_const()).unwrap_or(1) as f64
    };
    let flops = match op {
        Op::MatMul { trans_a, .. } => {
            2.0 * outputs * operands.first().map_or(1.0, |a| extent(*a, if *trans_a { 2 } else { 1 }))
        }
        Op::Conv { .. } => {
            2.0 * outputs
                * operands.get(1).map_or(1.0, |w| numel(*w) / graph.ty(*w).shape[0].as_const().unwrap_or(1) as f64)
        }
        Op::Attention { .. } => 4.0 * outputs * operands.get(1).map_or(1.0, |k| extent(*k, 2)),
        _ => 4.0 * outputs,
    };
    STEP_SECONDS + (flops / FLOPS).max((read + written) / BYTES)
}
