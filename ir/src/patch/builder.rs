//! Writing a patch in few lines.

use std::collections::BTreeMap;

use super::{Exactness, Patch};
use crate::dtype::DType;
use crate::graph::{Graph, Loc, NodeId, Value};
use crate::infer::InferError;
use crate::op::Op;
use crate::tensor::{Tensor, TensorType};

impl Patch {
    /// Starts a patch of `graph`.
    #[must_use]
    pub fn builder<'g>(graph: &'g Graph, why: &str) -> PatchBuilder<'g> {
        PatchBuilder {
            graph,
            body: Graph::new("patch"),
            taps: Vec::new(),
            tapped: BTreeMap::new(),
            outputs: Vec::new(),
            replaces: Vec::new(),
            erase: Vec::new(),
            why: why.to_owned(),
        }
    }

    /// All uses of `old` go to `new`, a value of the same graph; no node is added. Exact.
    ///
    /// # Panics
    /// If `new` is not a value of `graph`.
    #[must_use]
    pub fn replace_with_value(graph: &Graph, old: Value, new: Value, why: &str) -> Patch {
        let mut patch = Patch::builder(graph, why);
        let new = patch.tap(new);
        patch.replace(old, new);
        patch.finish(Exactness::Exact)
    }

    /// All uses of `old` go to the first result of `op` on `operands`, values of the same graph.
    ///
    /// # Errors
    /// If the operands do not fit the op.
    ///
    /// # Panics
    /// If an operand is not a value of `graph`.
    pub fn replace_with_op(
        graph: &Graph,
        old: Value,
        op: Op,
        operands: &[Value],
        why: &str,
        exactness: Exactness,
    ) -> Result<Patch, InferError> {
        let mut patch = Patch::builder(graph, why);
        let operands: Vec<Value> = operands.iter().map(|value| patch.tap(*value)).collect();
        let new = patch.add(op, &operands)?;
        patch.replace(old, new);
        Ok(patch.finish(exactness))
    }

    /// Removes nodes that nothing but themselves uses ([`Graph::dead_nodes`]). Exact.
    #[must_use]
    pub fn erase(nodes: Vec<NodeId>, why: &str) -> Patch {
        Patch {
            body: Graph::new("patch"),
            taps: Vec::new(),
            replaces: Vec::new(),
            erase: nodes,
            why: why.to_owned(),
            exactness: Exactness::Exact,
        }
    }
}

/// Collects a patch: values of the old graph come in by [`tap`](PatchBuilder::tap), which gives a value of the body.
///
/// ```
/// use forge_ir::{DType, Exactness, Graph, Loc, Op, Patch, TensorType, UnaryOp, BinaryOp, InferError};
/// let mut graph = Graph::new("silu");
/// let x = graph.add_input("x", TensorType::fixed(DType::F32, &[4]));
/// let y = graph.add(Op::Silu, &[x], Loc::name("act")).unwrap();
/// graph.set_outputs(vec![("y".into(), y)]);
///
/// let mut patch = Patch::builder(&graph, "silu(x) = x * sigmoid(x)");
/// let x = patch.tap(x);
/// let gate = patch.add(Op::Unary(UnaryOp::Sigmoid), &[x])?;
/// let product = patch.add(Op::Binary(BinaryOp::Mul), &[x, gate])?;
/// patch.replace(y, product);
/// let patch = patch.finish(Exactness::Rounding);
/// graph.apply(&patch).unwrap();
/// assert_eq!(graph.node(graph.outputs()[0].1.node).loc, Loc::name("act"));
/// # Ok::<(), InferError>(())
/// ```
pub struct PatchBuilder<'g> {
    graph: &'g Graph,
    body: Graph,
    taps: Vec<Value>,
    tapped: BTreeMap<Value, Value>,
    outputs: Vec<(String, Value)>,
    replaces: Vec<(Value, usize)>,
    erase: Vec<NodeId>,
    why: String,
}

impl PatchBuilder<'_> {
    /// The body value that stands for `value` of the old graph; the same one every time.
    ///
    /// # Panics
    /// If `value` is not of the graph.
    pub fn tap(&mut self, value: Value) -> Value {
        if let Some(input) = self.tapped.get(&value) {
            return *input;
        }
        let input = self.body.add_input(&format!("tap{}", self.taps.len()), self.graph.ty(value).clone());
        self.taps.push(value);
        self.tapped.insert(value, input);
        input
    }

    /// Adds an op to the body and returns its first result.
    ///
    /// # Errors
    /// If the operands do not fit the op.
    pub fn add(&mut self, op: Op, operands: &[Value]) -> Result<Value, InferError> {
        self.body.add(op, operands, Loc::default())
    }

    /// Adds an op to the body.
    ///
    /// # Errors
    /// If the operands do not fit the op.
    pub fn add_node(&mut self, op: Op, operands: &[Value]) -> Result<NodeId, InferError> {
        self.body.add_node(op, operands, Loc::default())
    }

    /// Adds an op with a provenance of its own, beside that of what the patch replaces.
    ///
    /// # Errors
    /// If the operands do not fit the op.
    pub fn add_with_loc(&mut self, op: Op, operands: &[Value], loc: Loc) -> Result<Value, InferError> {
        self.body.add(op, operands, loc)
    }

    pub fn constant(&mut self, value: Tensor) -> Value {
        self.body.add_constant(value)
    }

    /// A rank-0 constant, rounded once to `dtype`.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Value {
        self.body.add_constant(Tensor::from_f64(dtype, &[], &[value]))
    }

    pub fn weight(&mut self, name: &str, data: Tensor) -> Value {
        self.body.add_weight(name, data)
    }

    /// The type of a body value.
    #[must_use]
    pub fn ty(&self, value: Value) -> &TensorType {
        self.body.ty(value)
    }

    /// Inlines `graph`, whose inputs are `operands` in order, and returns its outputs.
    ///
    /// # Errors
    /// If an operand does not fit what reads it.
    pub fn inline(&mut self, graph: &Graph, operands: &[Value]) -> Result<Vec<Value>, InferError> {
        self.body.inline(graph, operands, &Loc::default())
    }

    /// All uses of `old`, a value of the old graph, go to `new`, a value of the body.
    pub fn replace(&mut self, old: Value, new: Value) {
        self.replaces.push((old, self.outputs.len()));
        self.outputs.push((format!("out{}", self.outputs.len()), new));
    }

    /// Demands that `node` of the old graph is gone afterwards.
    pub fn erase(&mut self, node: NodeId) {
        self.erase.push(node);
    }

    #[must_use]
    pub fn finish(mut self, exactness: Exactness) -> Patch {
        self.body.set_outputs(self.outputs);
        Patch { body: self.body, taps: self.taps, replaces: self.replaces, erase: self.erase, why: self.why, exactness }
    }
}
