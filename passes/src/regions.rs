//! Region discovery: a partition of a graph into legal convex subgraphs worth one kernel each, equal ones found once.
//!
//! Three kinds of seeds, in this order, since what a contraction can take in is worth most: contractions with everything
//! elementwise after them; attention with the views around it; norms, softmax, reductions and elementwise chains with each other.
//! Whether a grown region is still one kernel is the caller's to say (`fits`): this crate knows nothing of kernels.

use std::collections::{BTreeMap, BTreeSet};

use forge_ir::{Graph, NodeId, Op, OpClass, Region, Value};

/// A region that occurs one or more times.
#[derive(Clone, Debug)]
pub struct RegionClass {
    /// Canonical hash of the body, with the inputs that are weights.
    pub hash: String,
    pub body: Graph,
    /// Which inputs are weights or constants at every occurrence.
    pub weight_inputs: Vec<bool>,
    pub occurrences: Vec<Region>,
}

/// Whether some kernel can compute this body (given which inputs are weights) as one unit.
pub type Fits<'a> = &'a dyn Fn(&Graph, &[bool]) -> bool;

/// Ops in one region at most: past this, one kernel's code grows faster than what it saves.
const MAX_OPS: usize = 32;

/// Finds the regions of `graph`. Deterministic; each node is in at most one. O(nodes x growth attempts), each attempt bounded by
/// [`MAX_OPS`].
#[must_use]
pub fn discover(graph: &Graph, fits: Fits<'_>) -> Vec<RegionClass> {
    let mut search = Search { graph, fits, taken: BTreeSet::new(), found: Vec::new() };
    let order = graph.topological();
    for node in &order {
        if is_anchor(graph, *node) {
            search.anchored(*node);
        }
    }
    for node in &order {
        if matches!(graph.op(*node), Op::Attention { .. }) {
            search.attention(*node);
        }
    }
    // Reductions pull in their surroundings before plain chains form.
    for reductions in [true, false] {
        for node in &order {
            if is_rowwise(graph.op(*node)) && (!reductions || reduces(graph.op(*node))) {
                search.rows(*node);
            }
        }
    }
    search.classes()
}

struct Search<'a> {
    graph: &'a Graph,
    fits: Fits<'a>,
    taken: BTreeSet<NodeId>,
    found: Vec<Region>,
}

impl Search<'_> {
    fn free(&self, node: NodeId) -> bool {
        !self.taken.contains(&node) && self.graph.op(node).class() != OpClass::Leaf
    }

    fn region(&self, nodes: &BTreeSet<NodeId>) -> Option<Region> {
        let region = Region::new(self.graph, nodes.clone())?;
        let body = region.extract(self.graph);
        (self.fits)(&body, &weight_flags(self.graph, &region)).then_some(region)
    }

    /// Keeps a region unless the regions together would then depend on each other in a circle: two convex sets can.
    fn keep(&mut self, region: Region) {
        self.found.push(region);
        if !self.acyclic() {
            self.found.pop();
            return;
        }
        let Some(region) = self.found.last() else { return };
        self.taken.extend(region.nodes().iter().copied().filter(|n| self.graph.op(*n).class() != OpClass::Leaf));
    }

    /// Whether the graph with every found region contracted to one node has a topological order. O(V + E).
    fn acyclic(&self) -> bool {
        let mut group: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (at, region) in self.found.iter().enumerate() {
            group.extend(region.nodes().iter().map(|n| (*n, at)));
        }
        // Groups keep their position, other nodes follow.
        let offset = self.found.len();
        let of = |n: NodeId| group.get(&n).copied().unwrap_or(offset + n.index());
        let mut successors: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut missing: BTreeMap<usize, usize> = BTreeMap::new();
        for node in self.graph.node_ids() {
            let to = of(node);
            missing.entry(to).or_insert(0);
            for operand in self.graph.operands(node) {
                let from = of(operand.node);
                if from != to && successors.entry(from).or_default().insert(to) {
                    *missing.entry(to).or_insert(0) += 1;
                }
            }
        }
        let total = missing.len();
        let mut ready: Vec<usize> = missing.iter().filter(|(_, count)| **count == 0).map(|(n, _)| *n).collect();
        let mut done = 0;
        while let Some(node) = ready.pop() {
            done += 1;
            for next in successors.get(&node).into_iter().flatten() {
                if let Some(count) = missing.get_mut(next) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(*next);
                    }
                }
            }
        }
        done == total
    }

    /// A contraction and the elementwise ops after it, as far as one result leaves.
    fn anchored(&mut self, anchor: NodeId) {
        let mut nodes = BTreeSet::from([anchor]);
        let Some(mut best) = self.region(&nodes) else { return };
        let shape = &self.graph.node(anchor).outputs[0].shape;
        while nodes.len() < MAX_OPS {
            let next = nodes.iter().flat_map(|n| self.graph.users(*n)).filter(|u| !nodes.contains(u)).find(|user| {
                self.free(*user)
                    && is_elementwise(self.graph.op(*user))
                    && self.graph.node(*user).outputs[0].shape == *shape
                    && Region::new(self.graph, nodes.iter().copied().chain([*user]).collect()).is_some()
            });
            let Some(next) = next else { break };
            nodes.insert(next);
            if let Some(region) = self.region(&nodes)
                && region.outputs().len() == 1
            {
                best = region;
            }
        }
        self.keep(best);
    }

    /// Attention, the views that feed it alone, and the views that alone read it.
    fn attention(&mut self, anchor: NodeId) {
        let mut nodes = BTreeSet::from([anchor]);
        let Some(mut best) = self.region(&nodes) else { return };
        let mut frontier: Vec<NodeId> = vec![anchor];
        while let Some(node) = frontier.pop() {
            let before = self.graph.operands(node).into_iter().map(|v| v.node);
            let only_mine = |n: &NodeId| self.graph.users(*n).iter().all(|u| nodes.contains(u));
            let sole_user = match self.graph.users(node).as_slice() {
                [user] if !self.graph.results(node).any(|v| self.graph.is_output(v)) => Some(*user),
                _ => None,
            };
            let around: Vec<NodeId> = before.filter(only_mine).chain(sole_user).collect();
            for neighbour in around {
                let is_view = matches!(
                    self.graph.op(neighbour),
                    Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } | Op::Slice { .. }
                );
                if !is_view || !self.free(neighbour) || nodes.contains(&neighbour) {
                    continue;
                }
                nodes.insert(neighbour);
                match self.region(&nodes) {
                    Some(region) => {
                        best = region;
                        frontier.push(neighbour);
                    }
                    None => {
                        nodes.remove(&neighbour);
                    }
                }
            }
        }
        self.keep(best);
    }

    /// Row-wise ops around a seed, producers and consumers alike.
    fn rows(&mut self, seed: NodeId) {
        if !self.free(seed) {
            return;
        }
        let mut nodes = BTreeSet::from([seed]);
        let Some(mut best) = self.region(&nodes) else { return };
        let mut grew = true;
        while grew && nodes.len() < MAX_OPS {
            grew = false;
            for neighbour in self.neighbours(&nodes) {
                nodes.insert(neighbour);
                let grown = self.region(&nodes).filter(|r| r.outputs().len() <= best.outputs().len().max(1));
                match grown {
                    Some(region) => {
                        best = region;
                        grew = true;
                        break;
                    }
                    None => {
                        nodes.remove(&neighbour);
                    }
                }
            }
        }
        // One plain op gains nothing from a kernel of its own: that is what the generic lowering does.
        let ops: Vec<NodeId> = nodes.iter().copied().filter(|n| !is_free_view(self.graph.op(*n))).collect();
        let alone = ops.len() < 2 && !ops.iter().any(|n| self.graph.op(*n).class() == OpClass::Composite);
        if !alone {
            self.keep(best);
        }
    }

    /// Free row-wise neighbours, producers first.
    fn neighbours(&self, nodes: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let producers = nodes.iter().flat_map(|n| self.graph.operands(*n)).map(|v| v.node);
        let consumers = nodes.iter().flat_map(|n| self.graph.users(*n));
        let mut seen = BTreeSet::new();
        producers
            .chain(consumers)
            .filter(|n| !nodes.contains(n) && self.free(*n) && is_rowwise(self.graph.op(*n)) && seen.insert(*n))
            .collect()
    }

    fn classes(self) -> Vec<RegionClass> {
        let mut classes: Vec<RegionClass> = Vec::new();
        let mut index: BTreeMap<String, usize> = BTreeMap::new();
        let mut found = self.found;
        found.sort_by_key(|r| r.nodes().iter().next().copied());
        for region in found {
            let body = region.extract(self.graph);
            let weight_inputs = weight_flags(self.graph, &region);
            let flags: String = weight_inputs.iter().map(|w| if *w { 'w' } else { 'x' }).collect();
            let hash = format!("{}-{flags}", &body.canonical_hash().to_string()[..24]);
            match index.get(&hash) {
                Some(at) => classes[*at].occurrences.push(region),
                None => {
                    index.insert(hash.clone(), classes.len());
                    classes.push(RegionClass { hash, body, weight_inputs, occurrences: vec![region] });
                }
            }
        }
        classes
    }
}

/// Which inputs of a region are weights or literals of the graph.
#[must_use]
pub fn weight_flags(graph: &Graph, region: &Region) -> Vec<bool> {
    let is_weight = |v: &Value| matches!(graph.op(v.node), Op::Weight { .. } | Op::Constant { .. });
    region.inputs().iter().map(is_weight).collect()
}

/// A contraction whose second operand is a weight.
fn is_anchor(graph: &Graph, node: NodeId) -> bool {
    let weight = |slot: usize| {
        graph
            .operands(node)
            .get(slot)
            .is_some_and(|v| matches!(graph.op(v.node), Op::Weight { .. } | Op::Constant { .. }))
    };
    matches!(graph.op(node), Op::MatMul { .. } | Op::Conv { .. }) && weight(1)
}

fn is_elementwise(op: &Op) -> bool {
    op.class() == OpClass::Elementwise || matches!(op, Op::Gelu { .. } | Op::Silu | Op::Broadcast { .. })
}

fn reduces(op: &Op) -> bool {
    matches!(
        op,
        Op::Reduce { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::GroupNorm { .. }
    )
}

fn is_rowwise(op: &Op) -> bool {
    is_elementwise(op)
        || reduces(op)
        || matches!(
            op,
            Op::BatchNorm { .. }
                | Op::Rotary { .. }
                | Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Slice { .. }
                | Op::Concat { .. }
                | Op::Pad { .. }
                | Op::Gather { .. }
        )
}

/// Costs nothing when left alone.
fn is_free_view(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. })
}
