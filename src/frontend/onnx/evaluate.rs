//! Constants that the model computes: parameters that exporters write as a chain of operators on initialisers.

use std::collections::{HashMap, HashSet};

use forge_ir::interp::{Mode, run};
use forge_ir::{Graph, NodeId, Op, OpClass, Tensor, Value};

/// A parameter is computed from few small tensors; anything larger is data.
const MAX_NODES: usize = 512;
const MAX_ELEMENTS: i64 = 1 << 16;

/// The value, if it is computed from constants alone.
pub(super) fn evaluate(graph: &Graph, value: Value) -> Option<Tensor> {
    let mut needed: HashSet<NodeId> = HashSet::new();
    let mut pending = vec![value.node];
    while let Some(id) = pending.pop() {
        if !needed.insert(id) {
            continue;
        }
        let node = graph.node(id);
        let small = node.outputs.iter().all(|ty| ty.numel().as_const().is_some_and(|n| n <= MAX_ELEMENTS));
        let constant = match &node.op {
            Op::Input { .. } | Op::Weight { data: None, .. } => false,
            Op::DimValue { dim } => dim.as_const().is_some(),
            _ => true,
        };
        if !small || !constant || needed.len() > MAX_NODES {
            return None;
        }
        pending.extend(graph.operands(id).into_iter().map(|v| v.node));
    }
    let mut part = Graph::new("parameter");
    let mut map: HashMap<Value, Value> = HashMap::new();
    // Operands precede their users in id order: the importer adds nodes in dependency order.
    let mut order: Vec<NodeId> = needed.into_iter().collect();
    order.sort_unstable();
    for id in order {
        let node = graph.node(id);
        let literal = node.op.class() == OpClass::Leaf && matches!(node.op, Op::Weight { .. } | Op::Constant { .. });
        let new = if literal {
            part.add_leaf(node.op.clone(), node.outputs.first()?.clone()).node
        } else {
            let operands: Option<Vec<Value>> = graph.operands(id).iter().map(|v| map.get(v).copied()).collect();
            part.add_node(node.op.clone(), &operands?, node.loc.clone()).ok()?
        };
        for result in graph.results(id) {
            map.insert(result, Value { node: new, port: result.port });
        }
    }
    part.set_outputs(vec![("value".into(), *map.get(&value)?)]);
    run(&part, &[], Mode::Native).ok()?.pop()
}
