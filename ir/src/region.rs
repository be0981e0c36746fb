//! Regions: convex subgraphs, each a candidate for one kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::graph::{Graph, Loc, Node, NodeId, Value};
use crate::op::{Fused, Op, OpClass};
use crate::patch::{Exactness, Patch};

/// Constants up to this many elements are part of what a region computes, not of what it is given.
const SMALL_CONSTANT: usize = 64;

/// A non-empty convex set of nodes of one graph, without graph inputs: it can run as one call, since no path leaves it
/// and comes back. Only legal regions exist.
///
/// What belongs to a region beside its ops: small constants (64 elements at most), iotas and dim values that its ops
/// read are part of its definition whether or not they were listed. Where nodes outside read such a leaf as well, the
/// region has a copy of it. Weights and larger constants are part of it only if listed and read by nothing else;
/// otherwise they are inputs.
///
/// Inputs and nodes are in the order in which a walk from the outputs (operands before users, in slot order) meets
/// them, outputs by node id. So the regions of equal layers extract to equal graphs, up to names and provenance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    nodes: BTreeSet<NodeId>,
    /// What `extract` copies: the members that outputs need and the leaves copied from outside, operands before users.
    order: Vec<NodeId>,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl Region {
    /// The region of these nodes of `graph`. One walk over what the set reaches, O(V + E).
    ///
    /// `None` if a node is not of the graph or is a graph input, if there is no op beside leaves, if the set is not
    /// convex, or if nothing outside needs it.
    #[must_use]
    pub fn new(graph: &Graph, mut nodes: BTreeSet<NodeId>) -> Option<Region> {
        if nodes.iter().any(|node| !graph.contains(*node) || matches!(graph.op(*node), Op::Input { .. })) {
            return None;
        }
        let is_leaf = |node: NodeId| graph.op(node).class() == OpClass::Leaf;
        // Leaves are settled by who reads them; the ops decide.
        let listed: Vec<NodeId> = nodes.iter().copied().filter(|node| is_leaf(*node)).collect();
        nodes.retain(|node| !is_leaf(*node));
        if nodes.is_empty() {
            return None;
        }
        let read: BTreeSet<NodeId> =
            nodes.iter().flat_map(|node| graph.operands(*node)).map(|v| v.node).filter(|n| is_leaf(*n)).collect();
        let owned: Vec<NodeId> = read
            .iter()
            .copied()
            .filter(|leaf| listed.contains(leaf) || is_definition(graph.op(*leaf)))
            .filter(|leaf| used_only_by(graph, *leaf, &nodes))
            .collect();
        nodes.extend(owned);
        if !is_convex(graph, &nodes) {
            return None;
        }
        let outputs: Vec<Value> = nodes
            .iter()
            .flat_map(|node| graph.results(*node))
            .filter(|value| graph.is_output(*value) || graph.uses(*value).iter().any(|(user, _)| !nodes.contains(user)))
            .collect();
        if outputs.is_empty() {
            return None;
        }
        let (order, inputs) = walk(graph, &nodes, &outputs);
        Some(Region { nodes, order, inputs, outputs })
    }

    /// The member nodes: ops, and the leaves that only they read.
    #[must_use]
    pub fn nodes(&self) -> &BTreeSet<NodeId> {
        &self.nodes
    }

    /// Values from outside, in the order of the extracted graph's inputs.
    #[must_use]
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// Values that nodes outside use, or the graph returns, in the order of the extracted graph's outputs.
    #[must_use]
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// The region as a graph of its own: inputs `in0`, `in1`, .., outputs `out0`, `out1`, ... `graph` is the graph that
    /// the region was made of.
    ///
    /// # Panics
    /// If a node of the region has been removed from `graph`.
    #[must_use]
    pub fn extract(&self, graph: &Graph) -> Graph {
        let mut body = Graph::new("region");
        let mut map: BTreeMap<Value, Value> = BTreeMap::new();
        for (at, input) in self.inputs.iter().enumerate() {
            map.insert(*input, body.add_input(&format!("in{at}"), graph.ty(*input).clone()));
        }
        for id in &self.order {
            let node = body.push(graph.node(*id).clone());
            for (slot, operand) in graph.operands(*id).iter().enumerate() {
                body.connect(map[operand], node, slot);
            }
            map.extend(graph.results(*id).zip(body.results(node)));
        }
        let outputs = self.outputs.iter().enumerate();
        body.set_outputs(outputs.map(|(at, value)| (format!("out{at}"), map[value])).collect());
        body
    }

    /// The patch that replaces the region by one [`Op::Fused`] call with the extracted graph as its body. `kernel` is
    /// the content address of the implementation, empty for none; without one the patch is exact.
    ///
    /// # Panics
    /// If a node of the region has been removed from `graph`.
    #[must_use]
    pub fn fuse_patch(&self, graph: &Graph, kernel: String) -> Patch {
        let mut body = Graph::new("patch");
        let exactness = if kernel.is_empty() { Exactness::Exact } else { Exactness::Rounding };
        let call = body.push(Node {
            op: Op::Fused(Arc::new(Fused { body: self.extract(graph), kernel })),
            outputs: self.outputs.iter().map(|value| graph.ty(*value).clone()).collect(),
            // Applying the patch adds the provenance of every erased node.
            loc: Loc::default(),
        });
        for (slot, input) in self.inputs.iter().enumerate() {
            let tap = body.add_input(&format!("in{slot}"), graph.ty(*input).clone());
            body.connect(tap, call, slot);
        }
        body.set_outputs(body.results(call).map(|value| (format!("out{}", value.port), value)).collect());
        Patch {
            body,
            taps: self.inputs.clone(),
            replaces: self.outputs.iter().copied().zip(0..).collect(),
            erase: self.nodes.iter().copied().collect(),
            why: format!("fuse {} nodes", self.nodes.len()),
            exactness,
        }
    }
}

/// Leaves that are part of a definition wherever they are read.
fn is_definition(op: &Op) -> bool {
    match op {
        Op::Constant { value } => value.numel() <= SMALL_CONSTANT,
        Op::Iota { .. } | Op::DimValue { .. } => true,
        _ => false,
    }
}

fn used_only_by(graph: &Graph, leaf: NodeId, nodes: &BTreeSet<NodeId>) -> bool {
    graph.users(leaf).iter().all(|user| nodes.contains(user))
        && !graph.results(leaf).any(|value| graph.is_output(value))
}

/// No path leaves the set and comes back: one forward sweep from the users outside meets no member.
fn is_convex(graph: &Graph, nodes: &BTreeSet<NodeId>) -> bool {
    let mut seen = vec![false; graph.id_bound()];
    let mut pending: Vec<NodeId> =
        nodes.iter().flat_map(|node| graph.users(*node)).filter(|user| !nodes.contains(user)).collect();
    while let Some(node) = pending.pop() {
        if nodes.contains(&node) {
            return false;
        }
        if !std::mem::replace(&mut seen[node.index()], true) {
            pending.extend(graph.users(node));
        }
    }
    true
}

/// What the outputs need of the region, operands before users, and the values that it takes from outside.
fn walk(graph: &Graph, nodes: &BTreeSet<NodeId>, outputs: &[Value]) -> (Vec<NodeId>, Vec<Value>) {
    let (mut order, mut inputs) = (Vec::new(), Vec::new());
    let (mut seen_nodes, mut seen_inputs) = (BTreeSet::new(), BTreeSet::new());
    let pending = |node: NodeId| -> Vec<Value> { graph.operands(node).into_iter().rev().collect() };
    for output in outputs {
        // (node, its operands still to visit, last first): explicit, as regions may be deeper than the stack.
        let mut stack = Vec::new();
        if seen_nodes.insert(output.node) {
            stack.push((output.node, pending(output.node)));
        }
        while let Some((node, operands)) = stack.last_mut() {
            let Some(operand) = operands.pop() else {
                order.push(*node);
                stack.pop();
                continue;
            };
            if nodes.contains(&operand.node) || is_definition(graph.op(operand.node)) {
                if seen_nodes.insert(operand.node) {
                    stack.push((operand.node, pending(operand.node)));
                }
            } else if seen_inputs.insert(operand) {
                inputs.push(operand);
            }
        }
    }
    (order, inputs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::random_graph;
    use crate::dim::{Bindings, Dim};
    use crate::dtype::DType;
    use crate::op::{BinaryOp, UnaryOp};
    use crate::tensor::{Tensor, TensorType};

    const ADD: Op = Op::Binary(BinaryOp::Add);
    const MUL: Op = Op::Binary(BinaryOp::Mul);
    const EXP: Op = Op::Unary(UnaryOp::Exp);
    const NEG: Op = Op::Unary(UnaryOp::Neg);

    fn n_by_4() -> TensorType {
        TensorType::new(DType::F32, vec![Dim::symbol("N"), Dim::from(4i64)])
    }

    fn add(graph: &mut Graph, op: Op, operands: &[Value]) -> Value {
        let name = format!("{}{}", op.name(), graph.node_count());
        graph.add(op, operands, Loc::name(&name)).unwrap()
    }

    fn set(values: &[Value]) -> BTreeSet<NodeId> {
        values.iter().map(|value| value.node).collect()
    }

    fn ops(graph: &Graph) -> Vec<&'static str> {
        graph.topological().into_iter().map(|node| graph.op(node).name()).collect()
    }

    /// Two equal layers `exp(x * half) + w` with one `half` for both.
    struct Layers {
        graph: Graph,
        half: Value,
        layers: Vec<[Value; 4]>,
    }

    fn layers() -> Layers {
        let mut graph = Graph::new("layers");
        let mut x = graph.add_input("x", n_by_4());
        let half = graph.add_constant(Tensor::scalar(0.5f32));
        let layers = (0..2)
            .map(|layer| {
                let w = graph.add_weight(&format!("w{layer}"), Tensor::from_slice(&[4], &[layer as f32; 4]));
                let scaled = add(&mut graph, MUL, &[x, half]);
                let power = add(&mut graph, EXP, &[scaled]);
                x = add(&mut graph, ADD, &[w, power]);
                [w, scaled, power, x]
            })
            .collect();
        graph.set_outputs(vec![("y".into(), x)]);
        Layers { graph, half, layers }
    }

    #[test]
    fn equal_layers_are_one_graph() {
        let Layers { graph, half, layers } = layers();
        let regions: Vec<Region> = layers.iter().map(|layer| Region::new(&graph, set(&layer[1..])).unwrap()).collect();
        let [w, scaled, _, sum] = layers[1];
        assert_eq!(regions[1].inputs(), [w, layers[0][3]]);
        assert_eq!(regions[1].outputs(), [sum]);
        // Both read `half`, so neither owns it.
        assert!(!regions[1].nodes().contains(&half.node) && regions[1].nodes().contains(&scaled.node));
        let bodies: Vec<Graph> = regions.iter().map(|region| region.extract(&graph)).collect();
        for body in &bodies {
            assert_eq!(body.verify(), Ok(()));
            assert_eq!(ops(body), ["input", "input", "constant", "mul", "exp", "add"]);
            assert_eq!((body.input_name(body.inputs()[0]), body.input_name(body.inputs()[1])), ("in0", "in1"));
            assert_eq!(body.outputs()[0].0, "out0");
            assert_eq!(body.ty(body.outputs()[0].1), &n_by_4());
        }
        assert_eq!(bodies[0].canonical_hash(), bodies[1].canonical_hash());
    }

    #[test]
    fn fusing_replaces_the_region_by_one_call() {
        let Layers { mut graph, half, layers } = layers();
        let unfused = graph.clone();
        for layer in &layers {
            let region = Region::new(&graph, set(&layer[1..])).unwrap();
            let patch = region.fuse_patch(&graph, "k".into());
            assert_eq!(patch.exactness, Exactness::Rounding);
            graph.apply(&patch).unwrap();
            assert_eq!(graph.verify(), Ok(()));
        }
        assert!(!graph.contains(half.node));
        assert_eq!(ops(&graph), ["input", "weight", "weight", "fused", "fused"]);
        let call = graph.outputs()[0].1.node;
        assert_eq!(graph.node(call).loc, Loc(vec!["mul7".into(), "exp8".into(), "add9".into()]));
        // The bodies are what was there. Each has its own copy of `half`.
        let flat = graph.decompose_all().unwrap();
        let flat_ops = ops(&flat);
        assert_eq!(flat_ops.iter().filter(|op| **op != "constant").count(), unfused.node_count() - 1);
        assert_eq!(flat.ty(flat.outputs()[0].1), unfused.ty(layers[1][3]));
    }

    #[test]
    fn a_region_must_be_convex() {
        let mut graph = Graph::new("diamond");
        let x = graph.add_input("x", n_by_4());
        let a = add(&mut graph, EXP, &[x]);
        let b = add(&mut graph, NEG, &[a]);
        let c = add(&mut graph, NEG, &[b]);
        let d = add(&mut graph, ADD, &[a, c]);
        graph.set_outputs(vec![("d".into(), d)]);
        assert_eq!(Region::new(&graph, set(&[a, d])), None);
        assert_eq!(Region::new(&graph, set(&[a, b, d])), None);
        assert!(Region::new(&graph, set(&[a, b])).is_some());
        let whole = Region::new(&graph, set(&[a, b, c, d])).unwrap();
        assert_eq!((whole.inputs(), whole.outputs()), (&[x][..], &[d][..]));
    }

    #[test]
    fn what_is_no_region() {
        let mut graph = Graph::new("g");
        let x = graph.add_input("x", n_by_4());
        let one = graph.add_constant(Tensor::scalar(1f32));
        let y = add(&mut graph, ADD, &[x, one]);
        let unused = add(&mut graph, EXP, &[y]);
        graph.set_outputs(vec![("y".into(), y)]);
        assert_eq!(Region::new(&graph, BTreeSet::new()), None);
        assert_eq!(Region::new(&graph, set(&[x, y])), None);
        assert_eq!(Region::new(&graph, set(&[one])), None);
        assert_eq!(Region::new(&graph, set(&[unused])), None);
        assert!(Region::new(&graph, set(&[y])).is_some());
        graph.apply(&Patch::erase(vec![unused.node], "test")).unwrap();
        assert_eq!(Region::new(&graph, set(&[y, unused])), None);
    }

    #[test]
    fn leaves_belong_by_size_and_use() {
        let mut graph = Graph::new("leaves");
        let x = graph.add_input("x", TensorType::fixed(DType::F32, &[65]));
        let small = graph.add_constant(Tensor::scalar(1f32));
        let large = graph.add_constant(Tensor::from_slice(&[65], &[1f32; 65]));
        let shared = graph.add_constant(Tensor::from_slice(&[65], &[2f32; 65]));
        let iota = add(&mut graph, Op::Iota { len: Dim::from(65i64), dtype: DType::F32 }, &[]);
        let a = add(&mut graph, ADD, &[x, small]);
        let b = add(&mut graph, ADD, &[a, large]);
        let c = add(&mut graph, ADD, &[b, shared]);
        let d = add(&mut graph, ADD, &[c, iota]);
        let e = add(&mut graph, MUL, &[d, shared]);
        graph.set_outputs(vec![("e".into(), e), ("one".into(), small)]);

        // Unlisted: definitions come in, data do not.
        let region = Region::new(&graph, set(&[a, b, c, d])).unwrap();
        assert_eq!(region.inputs(), [x, large, shared]);
        assert_eq!(region.nodes(), &set(&[a, b, c, d, iota]));
        assert_eq!(region.outputs(), [d]);
        // Listed: what nothing else reads is a member. `small` is a graph output, so the region has a copy.
        let listed = Region::new(&graph, set(&[a, b, c, d, small, large, shared])).unwrap();
        assert_eq!(listed.inputs(), [x, shared]);
        assert_eq!(listed.nodes(), &set(&[a, b, c, d, iota, large]));
        graph.apply(&listed.fuse_patch(&graph, String::new())).unwrap();
        assert_eq!(graph.verify(), Ok(()));
        assert!(graph.contains(small.node) && graph.contains(shared.node) && !graph.contains(large.node));
        assert_eq!(ops(&graph), ["input", "constant", "constant", "fused", "mul"]);
    }

    #[test]
    fn outputs_are_what_others_need() {
        let mut graph = Graph::new("outputs");
        let x = graph.add_input("x", n_by_4());
        let top =
            graph.add_node(Op::TopK { axis: 1, k: Dim::from(2i64), largest: true }, &[x], Loc::default()).unwrap();
        let [values, indices] = graph.results(top).collect::<Vec<_>>()[..] else { panic!("top_k has two results") };
        let y = add(&mut graph, EXP, &[values]);
        let z = add(&mut graph, NEG, &[values]);
        graph.set_outputs(vec![("i".into(), indices), ("z".into(), z), ("y".into(), y)]);
        let region = Region::new(&graph, set(&[values, y])).unwrap();
        assert_eq!(region.outputs(), [values, indices, y]);
        let patch = region.fuse_patch(&graph, String::new());
        assert_eq!(patch.exactness, Exactness::Exact);
        graph.apply(&patch).unwrap();
        assert_eq!(graph.verify(), Ok(()));
        assert_eq!(ops(&graph), ["input", "fused", "neg"]);
        let ports: Vec<u16> = graph.outputs().iter().map(|(_, value)| value.port).collect();
        assert_eq!(ports, [1, 0, 2]);
    }

    #[test]
    fn a_fused_body_is_specialised_with_its_graph() {
        let mut graph = Graph::new("symbolic");
        let x = graph.add_input("x", n_by_4());
        let flat = add(&mut graph, Op::Reshape { shape: vec![Dim::symbol("N") * Dim::from(4i64)] }, &[x]);
        let y = add(&mut graph, EXP, &[flat]);
        graph.set_outputs(vec![("y".into(), y)]);
        let region = Region::new(&graph, set(&[flat, y])).unwrap();
        graph.apply(&region.fuse_patch(&graph, "k".into())).unwrap();

        let bound = graph.specialize(&Bindings::from([("N".into(), 3)])).unwrap();
        assert_eq!(bound.verify(), Ok(()));
        assert_eq!(bound.ty(bound.outputs()[0].1), &TensorType::fixed(DType::F32, &[12]));
        assert!(bound.symbols().is_empty());
        let Op::Fused(fused) = bound.op(bound.outputs()[0].1.node) else { panic!("the call is kept") };
        assert!(fused.body.symbols().is_empty());
        assert_eq!(fused.kernel, "k");
        assert!(
            fused
                .body
                .topological()
                .into_iter()
                .any(|node| { matches!(fused.body.op(node), Op::Reshape { shape } if *shape == [Dim::from(12i64)]) })
        );

        let renamed = graph.map_dims(&|dim| dim.rewrite(&|name| (name == "N").then(|| Dim::symbol("batch"))));
        assert_eq!(renamed.verify(), Ok(()));
        let Op::Fused(fused) = renamed.op(renamed.outputs()[0].1.node) else { panic!("the call is kept") };
        assert_eq!(fused.body.symbols(), BTreeSet::from(["batch".to_owned()]));
    }

    /// Whether a path from one op of `nodes` to another leaves the set, found by looking at every pair.
    fn leaves_and_returns(graph: &Graph, nodes: &BTreeSet<NodeId>) -> bool {
        let below = |node: NodeId| -> BTreeSet<NodeId> {
            let (mut seen, mut pending) = (BTreeSet::new(), graph.users(node));
            while let Some(next) = pending.pop() {
                if seen.insert(next) {
                    pending.extend(graph.users(next));
                }
            }
            seen
        };
        let after: BTreeSet<NodeId> = nodes.iter().flat_map(|node| below(*node)).collect();
        after.difference(nodes).any(|outside| !below(*outside).is_disjoint(nodes))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        /// Fusing any set of ops that is a region changes nothing but who owns the leaves; any other set has a reason.
        #[test]
        fn fusing_any_region_keeps_the_graph(seed: u64, size in 2usize..24, choice: u64) {
            let graph = random_graph(seed, size);
            let ops: BTreeSet<NodeId> =
                graph.node_ids().filter(|node| graph.op(*node).class() != OpClass::Leaf).collect();
            let chosen: BTreeSet<NodeId> =
                ops.iter().enumerate().filter(|(at, _)| choice >> (at % 64) & 1 == 1).map(|(_, node)| *node).collect();
            let Some(region) = Region::new(&graph, chosen.clone()) else {
                let needed = chosen.iter().flat_map(|node| graph.results(*node)).any(|value| {
                    graph.is_output(value) || graph.uses(value).iter().any(|(user, _)| !chosen.contains(user))
                });
                prop_assert!(!needed || leaves_and_returns(&graph, &chosen));
                return Ok(());
            };
            prop_assert!(!leaves_and_returns(&graph, &chosen));
            prop_assert_eq!(region.extract(&graph).verify(), Ok(()));
            let mut fused = graph.clone();
            fused.apply(&region.fuse_patch(&graph, String::new())).unwrap();
            // Random graphs may give one weight name to two tensors.
            if graph.verify().is_ok() {
                prop_assert_eq!(fused.verify(), Ok(()));
            }
            prop_assert!(region.nodes().iter().all(|node| !fused.contains(*node)));

            let copies = region.order.iter().any(|node| !region.nodes.contains(node));
            if !copies {
                let (before, after) = (graph.decompose_all().unwrap(), fused.decompose_all().unwrap());
                prop_assert_eq!(before.canonical_hash(), after.canonical_hash());
            }
        }
    }
}
