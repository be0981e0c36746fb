//! Common subexpression elimination by value numbering.

use std::collections::HashMap;

use forge_ir::{Exactness, Graph, NodeId, Op, Patch, Value};

use crate::{Context, PassError};

pub const ABOUT: &str = "one node for equal ops on equal operands, equal constants and equal weights";

/// A patch for every node that repeats an earlier one; chains of repeats fall in one run.
///
/// # Errors
/// None.
pub fn run(graph: &Graph, _: &Context) -> Result<Vec<Patch>, PassError> {
    let mut patches = Vec::new();
    // Node -> the first node that computes the same.
    let mut first: HashMap<NodeId, NodeId> = HashMap::new();
    let mut buckets: HashMap<(&str, Vec<Value>), Vec<NodeId>> = HashMap::new();
    for node in graph.topological() {
        let op = graph.op(node);
        if matches!(op, Op::Input { .. }) {
            continue;
        }
        let operands: Vec<Value> = graph
            .operands(node)
            .into_iter()
            .map(|v| Value { node: first.get(&v.node).copied().unwrap_or(v.node), port: v.port })
            .collect();
        let bucket = buckets.entry((op.name(), operands)).or_default();
        // Types are compared because leaves state them; attributes and data are part of the op.
        let same =
            bucket.iter().copied().find(|n| graph.op(*n) == op && graph.node(*n).outputs == graph.node(node).outputs);
        let Some(same) = same else {
            bucket.push(node);
            continue;
        };
        first.insert(node, same);
        let mut patch = Patch::builder(graph, &format!("repeats an equal {}", op.name()));
        for (old, new) in graph.results(node).zip(graph.results(same)) {
            let new = patch.tap(new);
            patch.replace(old, new);
        }
        patches.push(patch.finish(Exactness::Exact));
    }
    Ok(patches)
}
