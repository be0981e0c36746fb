//! The SSA dataflow graph, on petgraph's stable graph (which never shows in the API).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;

use indexmap::IndexMap;
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;

use crate::dim::{Bindings, Dim};
use crate::infer::{InferError, infer};
use crate::op::Op;
use crate::tensor::{Tensor, TensorType};

/// Identity of a node within one graph; stable under removal of others.
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
    nodes: StableDiGraph<Node, Use>,
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
        &self.nodes[node.petgraph()]
    }

    #[must_use]
    pub fn op(&self, node: NodeId) -> &Op {
        &self.node(node).op
    }

    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains_node(node.petgraph())
    }

    #[must_use]
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.node(value.node).outputs[value.port as usize]
    }

    /// All results of a node.
    pub fn results(&self, node: NodeId) -> impl Iterator<Item = Value> + use<> {
        let count = self.node(node).outputs.len();
        (0..count).map(move |port| Value { node, port: port as u16 })
    }

    /// Operands in slot order.
    #[must_use]
    pub fn operands(&self, node: NodeId) -> Vec<Value> {
        // Edges are the only truth; petgraph's adjacency order is newest first, so sort by slot.
        let mut uses: Vec<(u16, Value)> = self
            .nodes
            .edges_directed(node.petgraph(), Direction::Incoming)
            .map(|e| (e.weight().slot, Value { node: NodeId::from_petgraph(e.source()), port: e.weight().port }))
            .collect();
        uses.sort_unstable();
        uses.into_iter().map(|(_, v)| v).collect()
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
        self.nodes.node_count()
    }

    /// Ops that are not leaves.
    #[must_use]
    pub fn op_count(&self) -> usize {
        use crate::op::OpClass;
        self.nodes.node_weights().filter(|n| n.op.class() != OpClass::Leaf).count()
    }

    /// Every [`NodeId::index`] is below this.
    #[must_use]
    pub fn id_bound(&self) -> usize {
        self.nodes.node_indices().next_back().map_or(0, |n| n.index() + 1)
    }

    /// All node ids, ascending.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.node_indices().map(NodeId::from_petgraph)
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
        for ty in self.nodes.node_weights().flat_map(|n| &n.outputs) {
            for dim in &ty.shape {
                dim.symbols(&mut symbols);
            }
        }
        symbols
    }

    /// A copy with symbols bound to constants in every type and attribute.
    ///
    /// # Errors
    /// If the bound shapes contradict an op's rules.
    pub fn specialize(&self, bindings: &Bindings) -> Result<Graph, InferError> {
        self.rebuild(&mut |op| op.map_dims(&|dim: &Dim| dim.substitute(bindings)), &mut |ty| ty.substitute(bindings))
    }

    /// Rebuilds the graph in topological order with ops and leaf types mapped and result types inferred anew.
    fn rebuild(
        &self,
        map_op: &mut dyn FnMut(&Op) -> Op,
        map_leaf: &mut dyn FnMut(&TensorType) -> TensorType,
    ) -> Result<Graph, InferError> {
        let mut out = Graph::new(&self.name);
        out.metadata.clone_from(&self.metadata);
        let mut map: BTreeMap<Value, Value> = BTreeMap::new();
        // Inputs first and in order, whatever their ids.
        for node in &self.inputs {
            let value = Value { node: *node, port: 0 };
            let new = out.add_input(self.input_name(*node), map_leaf(self.ty(value)));
            map.insert(value, new);
        }
        for id in self.topological() {
            let node = self.node(id);
            if matches!(node.op, Op::Input { .. }) {
                continue;
            }
            let new = if matches!(node.op, Op::Weight { .. } | Op::Constant { .. }) {
                out.add_leaf(node.op.clone(), map_leaf(&node.outputs[0])).node
            } else {
                let operands: Vec<Value> = self.operands(id).iter().map(|v| map[v]).collect();
                out.add_node(map_op(&node.op), &operands, node.loc.clone())?
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
        NodeId::from_petgraph(self.nodes.add_node(node))
    }

    pub(crate) fn connect(&mut self, from: Value, to: NodeId, slot: usize) {
        let slot = u16::try_from(slot).expect("no op has 65536 operands");
        self.nodes.add_edge(from.node.petgraph(), to.petgraph(), Use { port: from.port, slot });
    }

    /// Redirects every use of `old`, graph outputs included, to `new`.
    pub(crate) fn replace_uses(&mut self, old: Value, new: Value) {
        for (user, slot) in self.uses(old) {
            let edge = self
                .nodes
                .edges_connecting(old.node.petgraph(), user.petgraph())
                .find(|e| e.weight().port == old.port && e.weight().slot as usize == slot)
                .map(|e| e.id());
            if let Some(edge) = edge {
                self.nodes.remove_edge(edge);
                self.connect(new, user, slot);
            }
        }
        for (_, value) in &mut self.outputs {
            if *value == old {
                *value = new;
            }
        }
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.nodes.remove_node(node.petgraph());
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.petgraph()]
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
