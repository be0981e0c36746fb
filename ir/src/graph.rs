//! The SSA dataflow graph, on petgraph's stable graph (which never shows in the API).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::{EdgeRef, IntoNodeReferences};

use crate::dim::{Bindings, Dim};
use crate::infer::{InferError, infer};
use crate::op::{Fused, Op};
use crate::tensor::{Tensor, TensorType};

/// Identity of a node within one graph; stable under removal of others, and never given to another node: an id that
/// outlives its node (in a patch made before another patch was applied) names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// A dense-ish index for side tables: below [`Graph::id_bound`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    fn petgraph(self) -> NodeIndex {
        NodeIndex::new(self.0 as usize)
    }

    fn from_petgraph(index: NodeIndex) -> NodeId {
        NodeId(u32::try_from(index.index()).expect("petgraph indexes nodes with u32"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// One result of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Value {
    pub node: NodeId,
    pub port: u16,
}

/// Where an op came from: names in the model's source, outermost first. Survives rewrites.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Loc(pub Vec<String>);

impl Loc {
    #[must_use]
    pub fn name(name: &str) -> Loc {
        Loc(vec![name.to_owned()])
    }

    /// Both provenances, without repeats.
    #[must_use]
    pub fn merged(&self, other: &Loc) -> Loc {
        let mut names = self.0.clone();
        for name in &other.0 {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Loc(names)
    }
}

/// An op with its result types and provenance.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub op: Op,
    pub outputs: Vec<TensorType>,
    pub loc: Loc,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    port: u16,
    slot: u16,
}

/// An SSA dataflow graph with named inputs, outputs and weights.
///
/// ```
/// use forge_ir::{DType, Dim, Graph, Loc, Op, TensorType, UnaryOp};
/// let mut graph = Graph::new("relu");
/// let x = graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("N"), Dim::from(4i64)]));
/// let y = graph.add(Op::Unary(UnaryOp::Relu), &[x], Loc::default()).unwrap();
/// graph.set_outputs(vec![("y".into(), y)]);
/// assert_eq!(graph.ty(y).to_string(), "f32[N, 4]");
/// ```
#[derive(Clone)]
pub struct Graph {
    name: String,
    // A removed node leaves an empty slot, because petgraph would give a freed index to the next node.
    nodes: StableDiGraph<Option<Node>, Use>,
    live: usize,
    inputs: Vec<NodeId>,
    outputs: Vec<(String, Value)>,
    /// Free-form facts about the whole graph (producer, opset, ..), kept for diagnostics.
    pub metadata: IndexMap<String, String>,
}

impl Graph {
    #[must_use]
    pub fn new(name: &str) -> Graph {
        Graph {
            name: name.to_owned(),
            nodes: StableDiGraph::new(),
            live: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            metadata: IndexMap::new(),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Adds a graph input (in call order).
    pub fn add_input(&mut self, name: &str, ty: TensorType) -> Value {
        let node = self.push(Node { op: Op::Input { name: name.to_owned() }, outputs: vec![ty], loc: Loc::default() });
        self.inputs.push(node);
        Value { node, port: 0 }
    }

    /// Adds a weight whose data are known.
    pub fn add_weight(&mut self, name: &str, data: Tensor) -> Value {
        let ty = data.ty();
        self.add_leaf(Op::Weight { name: name.to_owned(), data: Some(data) }, ty)
    }

    pub fn add_constant(&mut self, value: Tensor) -> Value {
        let ty = value.ty();
        self.add_leaf(Op::Constant { value }, ty)
    }

    /// Adds a leaf whose type the caller states (weights without data).
    pub fn add_leaf(&mut self, op: Op, ty: TensorType) -> Value {
        let node = self.push(Node { op, outputs: vec![ty], loc: Loc::default() });
        Value { node, port: 0 }
    }

    /// Adds an op with inferred result types and returns its first result.
    ///
    /// # Errors
    /// If the operands do not fit the op; the graph is unchanged.
    pub fn add(&mut self, op: Op, operands: &[Value], loc: Loc) -> Result<Value, InferError> {
        let node = self.add_node(op, operands, loc)?;
        Ok(Value { node, port: 0 })
    }

    /// Adds an op with inferred result types.
    ///
    /// # Errors
    /// If the operands do not fit the op; the graph is unchanged.
    pub fn add_node(&mut self, op: Op, operands: &[Value], loc: Loc) -> Result<NodeId, InferError> {
        let types: Vec<&TensorType> = operands.iter().map(|v| self.ty(*v)).collect();
        let outputs = infer(&op, &types)?;
        let node = self.push(Node { op, outputs, loc });
        for (slot, operand) in operands.iter().enumerate() {
            self.connect(*operand, node, slot);
        }
        Ok(node)
    }

    /// Adds the nodes of `other` with `operands` for its inputs, in order, and returns its outputs as values of this
    /// graph. Result types are inferred anew; each node's provenance is `loc` merged with its own.
    ///
    /// # Errors
    /// If the operands are not as many as the inputs, or one does not fit what reads it; nodes added until then stay.
    pub fn inline(&mut self, other: &Graph, operands: &[Value], loc: &Loc) -> Result<Vec<Value>, InferError> {
        if operands.len() != other.inputs.len() {
            let message = format!("{} operands for {} inputs of @{}", operands.len(), other.inputs.len(), other.name);
            return Err(InferError { op: "inline", message });
        }
        let mut map: BTreeMap<Value, Value> =
            other.inputs.iter().zip(operands).map(|(input, value)| (Value { node: *input, port: 0 }, *value)).collect();
        for id in other.topological() {
            let node = other.node(id);
            let loc = loc.merged(&node.loc);
            let new = match node.op {
                Op::Input { .. } => continue,
                Op::Weight { .. } | Op::Constant { .. } => {
                    self.push(Node { op: node.op.clone(), outputs: node.outputs.clone(), loc })
                }
                _ => {
                    let operands: Vec<Value> = other.operands(id).iter().map(|v| map[v]).collect();
                    self.add_node(node.op.clone(), &operands, loc)?
                }
            };
            for value in other.results(id) {
                map.insert(value, Value { node: new, port: value.port });
            }
        }
        Ok(other.outputs.iter().map(|(_, value)| map[value]).collect())
    }

    pub fn set_outputs(&mut self, outputs: Vec<(String, Value)>) {
        self.outputs = outputs;
    }

    /// Graph inputs in call order.
    #[must_use]
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    #[must_use]
    pub fn input_name(&self, node: NodeId) -> &str {
        match &self.node(node).op {
            Op::Input { name } => name,
            _ => "",
        }
    }

    /// Named graph outputs in order.
    #[must_use]
    pub fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }

    /// # Panics
    /// If `node` is not of this graph: ids never come from outside data.
    #[must_use]
    pub fn node(&self, node: NodeId) -> &Node {
        self.nodes[node.petgraph()].as_ref().expect("the node is of this graph")
    }

    #[must_use]
    pub fn op(&self, node: NodeId) -> &Op {
        &self.node(node).op
    }

    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        matches!(self.nodes.node_weight(node.petgraph()), Some(Some(_)))
    }

    #[must_use]
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.node(value.node).outputs[value.port as usize]
    }

    /// Whether `value` is a result of a node of this graph.
    #[must_use]
    pub fn has(&self, value: Value) -> bool {
        self.contains(value.node) && (value.port as usize) < self.node(value.node).outputs.len()
    }

    /// All results of a node.
    pub fn results(&self, node: NodeId) -> impl Iterator<Item = Value> + use<> {
        let count = self.node(node).outputs.len();
        (0..count).map(move |port| Value { node, port: port as u16 })
    }

    /// Operands in slot order.
    #[must_use]
    pub fn operands(&self, node: NodeId) -> Vec<Value> {
        self.operand_slots(node).into_iter().map(|(_, value)| value).collect()
    }

    /// Operands with their slots, which are `0..n` in a well-formed graph.
    pub(crate) fn operand_slots(&self, node: NodeId) -> Vec<(u16, Value)> {
        // Edges are the only truth; petgraph's adjacency order is newest first, so sort by slot.
        let mut slots: Vec<(u16, Value)> = self
            .nodes
            .edges_directed(node.petgraph(), Direction::Incoming)
            .map(|e| (e.weight().slot, Value { node: NodeId::from_petgraph(e.source()), port: e.weight().port }))
            .collect();
        slots.sort_unstable();
        slots
    }

    /// Uses of a value as (user, slot), sorted. Graph outputs are not uses.
    #[must_use]
    pub fn uses(&self, value: Value) -> Vec<(NodeId, usize)> {
        let mut uses: Vec<(NodeId, usize)> = self
            .nodes
            .edges_directed(value.node.petgraph(), Direction::Outgoing)
            .filter(|e| e.weight().port == value.port)
            .map(|e| (NodeId::from_petgraph(e.target()), e.weight().slot as usize))
            .collect();
        uses.sort_unstable();
        uses
    }

    /// Distinct users of any result of a node, sorted.
    #[must_use]
    pub fn users(&self, node: NodeId) -> Vec<NodeId> {
        let users: BTreeSet<NodeId> =
            self.nodes.neighbors_directed(node.petgraph(), Direction::Outgoing).map(NodeId::from_petgraph).collect();
        users.into_iter().collect()
    }

    #[must_use]
    pub fn is_output(&self, value: Value) -> bool {
        self.outputs.iter().any(|(_, v)| *v == value)
    }

    #[must_use]
    pub fn node_count(&self) -> usize {
        self.live
    }

    /// Ops that are not leaves.
    #[must_use]
    pub fn op_count(&self) -> usize {
        use crate::op::OpClass;
        self.nodes.node_weights().flatten().filter(|n| n.op.class() != OpClass::Leaf).count()
    }

    /// Every [`NodeId::index`] is below this.
    #[must_use]
    pub fn id_bound(&self) -> usize {
        self.nodes.node_indices().next_back().map_or(0, |n| n.index() + 1)
    }

    /// All node ids, ascending.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.node_references().filter(|(_, node)| node.is_some()).map(|(index, _)| NodeId::from_petgraph(index))
    }

    /// Topological order, ties by id: reading order follows construction order. O((V + E) log V).
    #[must_use]
    pub fn topological(&self) -> Vec<NodeId> {
        let mut missing: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut ready = BinaryHeap::new();
        for node in self.node_ids() {
            let count = self.nodes.edges_directed(node.petgraph(), Direction::Incoming).count();
            if count == 0 {
                ready.push(Reverse(node));
            } else {
                missing.insert(node, count);
            }
        }
        let mut order = Vec::with_capacity(self.node_count());
        while let Some(Reverse(node)) = ready.pop() {
            order.push(node);
            for edge in self.nodes.edges_directed(node.petgraph(), Direction::Outgoing) {
                let user = NodeId::from_petgraph(edge.target());
                if let Some(count) = missing.get_mut(&user) {
                    *count -= 1;
                    if *count == 0 {
                        missing.remove(&user);
                        ready.push(Reverse(user));
                    }
                }
            }
        }
        order
    }

    /// The nodes in the order in which they are printed, hashed and compared: inputs in call order, then the rest
    /// topologically.
    pub(crate) fn reading_order(&self) -> Vec<NodeId> {
        let mut order = self.inputs().to_vec();
        order.extend(self.topological().into_iter().filter(|n| !matches!(self.op(*n), Op::Input { .. })));
        order
    }

    /// Every symbol in any type, sorted.
    #[must_use]
    pub fn symbols(&self) -> BTreeSet<String> {
        let mut symbols = BTreeSet::new();
        for ty in self.nodes.node_weights().flatten().flat_map(|n| &n.outputs) {
            for dim in &ty.shape {
                dim.symbols(&mut symbols);
            }
        }
        symbols
    }

    /// Nodes from which no graph output can be reached, ascending. Graph inputs are never among them.
    #[must_use]
    pub fn dead_nodes(&self) -> Vec<NodeId> {
        let mut live = vec![false; self.id_bound()];
        let mut pending: Vec<NodeId> = self.outputs.iter().map(|(_, value)| value.node).collect();
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut live[node.index()], true) {
                pending.extend(self.operands(node).iter().map(|value| value.node));
            }
        }
        self.node_ids().filter(|n| !live[n.index()] && !matches!(self.op(*n), Op::Input { .. })).collect()
    }

    /// A copy with symbols bound to constants in every type and attribute.
    ///
    /// # Errors
    /// If the bound shapes contradict an op's rules.
    pub fn specialize(&self, bindings: &Bindings) -> Result<Graph, InferError> {
        let mut map_op = |op: &Op| match op {
            // Not `map_dims`: types in the body are inferred anew, too.
            Op::Fused(fused) => {
                Ok(Op::Fused(Arc::new(Fused { body: fused.body.specialize(bindings)?, kernel: fused.kernel.clone() })))
            }
            op => Ok(op.map_dims(&|dim: &Dim| dim.substitute(bindings))),
        };
        self.rebuild(&mut map_op, &mut |ty| ty.substitute(bindings))
    }

    /// A copy with every dim in attributes and types mapped. Result types are mapped, not inferred: the map must respect
    /// the equalities that typing relied on, as renaming symbols does.
    #[must_use]
    pub fn map_dims(&self, map: &dyn Fn(&Dim) -> Dim) -> Graph {
        let mut out = self.clone();
        for id in self.node_ids() {
            let node = out.node_mut(id);
            node.op = node.op.map_dims(map);
            for dim in node.outputs.iter_mut().flat_map(|ty| &mut ty.shape) {
                *dim = map(dim);
            }
        }
        out
    }

    /// Rebuilds the graph in topological order with ops and leaf types mapped and result types inferred anew.
    fn rebuild(
        &self,
        map_op: &mut dyn FnMut(&Op) -> Result<Op, InferError>,
        map_leaf: &mut dyn FnMut(&TensorType) -> TensorType,
    ) -> Result<Graph, InferError> {
        let mut out = Graph::new(&self.name);
        out.metadata.clone_from(&self.metadata);
        let mut map: BTreeMap<Value, Value> = BTreeMap::new();
        // Inputs first and in order, whatever their ids.
        for node in &self.inputs {
            let value = Value { node: *node, port: 0 };
            let new = out.add_input(self.input_name(*node), map_leaf(self.ty(value)));
            out.node_mut(new.node).loc.clone_from(&self.node(*node).loc);
            map.insert(value, new);
        }
        for id in self.topological() {
            let node = self.node(id);
            if matches!(node.op, Op::Input { .. }) {
                continue;
            }
            let new = if matches!(node.op, Op::Weight { .. } | Op::Constant { .. }) {
                let outputs = node.outputs.iter().map(&mut *map_leaf).collect();
                out.push(Node { op: node.op.clone(), outputs, loc: node.loc.clone() })
            } else {
                let operands: Vec<Value> = self.operands(id).iter().map(|v| map[v]).collect();
                out.add_node(map_op(&node.op)?, &operands, node.loc.clone())?
            };
            for value in self.results(id) {
                map.insert(value, Value { node: new, port: value.port });
            }
        }
        out.outputs = self.outputs.iter().map(|(name, v)| (name.clone(), map[v])).collect();
        Ok(out)
    }

    // Mutation below is for `Patch` application only (see `patch.rs`).

    pub(crate) fn push(&mut self, node: Node) -> NodeId {
        self.live += 1;
        NodeId::from_petgraph(self.nodes.add_node(Some(node)))
    }

    pub(crate) fn connect(&mut self, from: Value, to: NodeId, slot: usize) {
        let slot = u16::try_from(slot).expect("no op has 65536 operands");
        self.nodes.add_edge(from.node.petgraph(), to.petgraph(), Use { port: from.port, slot });
    }

    /// Makes operand `slot` of `user` the value `new`.
    pub(crate) fn redirect(&mut self, user: NodeId, slot: usize, new: Value) {
        let edge = self
            .nodes
            .edges_directed(user.petgraph(), Direction::Incoming)
            .find(|e| e.weight().slot as usize == slot)
            .map(|e| e.id());
        if let Some(edge) = edge {
            self.nodes.remove_edge(edge);
            self.connect(new, user, slot);
        }
    }

    pub(crate) fn redirect_outputs(&mut self, map: &dyn Fn(Value) -> Value) {
        for (_, value) in &mut self.outputs {
            *value = map(*value);
        }
    }

    /// Removes a node with its edges; its id names nothing from now on.
    pub(crate) fn remove(&mut self, node: NodeId) {
        let index = node.petgraph();
        for direction in [Direction::Incoming, Direction::Outgoing] {
            while let Some(edge) = self.nodes.edges_directed(index, direction).next().map(|e| e.id()) {
                self.nodes.remove_edge(edge);
            }
        }
        if self.nodes.node_weight_mut(index).and_then(Option::take).is_some() {
            self.live -= 1;
        }
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        self.nodes[node.petgraph()].as_mut().expect("the node is of this graph")
    }
}

/// Structural equality up to node ids: same names, same ops in reading order, same wiring. Metadata do not enter.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        let (a, b) = (self.reading_order(), other.reading_order());
        if self.name != other.name || a.len() != b.len() || self.outputs.len() != other.outputs.len() {
            return false;
        }
        let position =
            |order: &[NodeId]| -> BTreeMap<NodeId, usize> { order.iter().enumerate().map(|(i, n)| (*n, i)).collect() };
        let (pa, pb) = (position(&a), position(&b));
        let same_values = |x: &[Value], y: &[Value]| {
            x.len() == y.len() && x.iter().zip(y).all(|(v, w)| v.port == w.port && pa[&v.node] == pb[&w.node])
        };
        a.iter()
            .zip(&b)
            .all(|(x, y)| self.node(*x) == other.node(*y) && same_values(&self.operands(*x), &other.operands(*y)))
            && self.inputs.iter().map(|n| pa[n]).eq(other.inputs.iter().map(|n| pb[n]))
            && self
                .outputs
                .iter()
                .zip(&other.outputs)
                .all(|((n, v), (m, w))| n == m && same_values(std::slice::from_ref(v), std::slice::from_ref(w)))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph(@{}, {} nodes)", self.name, self.node_count())
    }
}
