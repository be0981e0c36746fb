//! Matching subgraphs from their root upward.
//!
//! A [`Matcher`] records the nodes that it walks through. A match may be replaced as a whole only if it is
//! [closed](Matcher::closed): nothing outside uses what lies inside, so that nothing is computed twice afterwards.

use forge_ir::{BinaryOp, DType, Dim, Graph, NodeId, Op, PatchBuilder, ReduceOp, Tensor, TensorType, UnaryOp, Value};

pub(crate) struct Matcher<'g> {
    graph: &'g Graph,
    interior: Vec<NodeId>,
}

impl<'g> Matcher<'g> {
    pub(crate) fn new(graph: &'g Graph) -> Matcher<'g> {
        Matcher { graph, interior: Vec::new() }
    }

    pub(crate) fn graph(&self) -> &'g Graph {
        self.graph
    }

    pub(crate) fn ty(&self, value: Value) -> &'g TensorType {
        self.graph.ty(value)
    }

    /// Runs `inside`; what it recorded is forgotten if it fails.
    pub(crate) fn attempt<T>(&mut self, inside: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let recorded = self.interior.len();
        let result = inside(self);
        if result.is_none() {
            self.interior.truncate(recorded);
        }
        result
    }

    /// `inside(a, b)`, else `inside(b, a)`: for commutative ops.
    pub(crate) fn either<T>(
        &mut self,
        (a, b): (Value, Value),
        mut inside: impl FnMut(&mut Self, Value, Value) -> Option<T>,
    ) -> Option<T> {
        self.attempt(|m| inside(m, a, b)).or_else(|| self.attempt(|m| inside(m, b, a)))
    }

    /// The op that makes `value`, with its operands, if `accept` takes it.
    pub(crate) fn op<T>(&mut self, value: Value, accept: impl FnOnce(&'g Op, &[Value]) -> Option<T>) -> Option<T> {
        let result = accept(self.graph.op(value.node), &self.graph.operands(value.node))?;
        self.interior.push(value.node);
        Some(result)
    }

    pub(crate) fn unary(&mut self, value: Value, wanted: UnaryOp) -> Option<Value> {
        self.op(value, |op, operands| match (op, operands) {
            (Op::Unary(op), [x]) if *op == wanted => Some(*x),
            _ => None,
        })
    }

    pub(crate) fn binary(&mut self, value: Value, wanted: BinaryOp) -> Option<(Value, Value)> {
        self.op(value, |op, operands| match (op, operands) {
            (Op::Binary(op), [a, b]) if *op == wanted => Some((*a, *b)),
            _ => None,
        })
    }

    /// (operand, target dtype) of a cast.
    pub(crate) fn cast(&mut self, value: Value) -> Option<(Value, DType)> {
        self.op(value, |op, operands| match (op, operands) {
            (Op::Cast { to }, [x]) => Some((*x, *to)),
            _ => None,
        })
    }

    /// (operand, first reduced axis) of a reduction over the last axes that keeps them as 1.
    pub(crate) fn reduce_last(&mut self, value: Value, wanted: ReduceOp) -> Option<(Value, usize)> {
        let graph = self.graph;
        self.op(value, |op, operands| match (op, operands) {
            (Op::Reduce { op, axes, keep_dims: true }, [x]) if *op == wanted => {
                let first = *axes.first()?;
                axes.iter().copied().eq(first..graph.ty(*x).rank()).then_some((*x, first))
            }
            _ => None,
        })
    }

    /// (a, c) if `value` is `a op c` with a number c, or, for a commutative op, `c op a`; a has the type of the result.
    pub(crate) fn with_number(&mut self, value: Value, wanted: BinaryOp) -> Option<(Value, f64)> {
        let graph = self.graph;
        let ty = graph.ty(value);
        self.attempt(|m| {
            let (a, b) = m.binary(value, wanted)?;
            let number = |m: &mut Self, x: Value, c: Value| {
                let c = number(m.graph, c)?;
                (graph.ty(x) == ty).then_some((x, c))
            };
            match wanted {
                BinaryOp::Add | BinaryOp::Mul => m.either((a, b), |m, x, c| number(m, x, c)),
                _ => number(m, a, b),
            }
        })
    }

    /// Whether every use of an interior value is by the interior or `root`, and no graph output but `root` is inside.
    pub(crate) fn closed(&self, root: Value) -> bool {
        let inside = |node: NodeId| node == root.node || self.interior.contains(&node);
        self.interior.iter().filter(|n| **n != root.node).all(|node| {
            self.graph.results(*node).all(|value| {
                !self.graph.is_output(value) && self.graph.uses(value).iter().all(|(user, _)| inside(*user))
            })
        })
    }
}

/// Nothing else reads `value`.
pub(crate) fn used_once(graph: &Graph, value: Value) -> bool {
    !graph.is_output(value) && graph.uses(value).len() == 1
}

/// The tensor that `value` is known to be: a constant, or a weight of one element with data (exporters keep epsilons
/// and scales as initializers). Other weights are parameters: their values are no part of the graph's meaning.
pub(crate) fn constant(graph: &Graph, value: Value) -> Option<&Tensor> {
    match graph.op(value.node) {
        Op::Constant { value } => Some(value),
        Op::Weight { data: Some(data), .. } if data.numel() == 1 => Some(data),
        _ => None,
    }
}

/// The tensor that `value` is known to be, initializers included. For tables by their role: nobody trains the mask of an
/// attention or the cosines of a rotary embedding, and exporters store them beside the parameters.
pub(crate) fn known(graph: &Graph, value: Value) -> Option<&Tensor> {
    const MAX_ELEMENTS: usize = 1 << 24;
    match graph.op(value.node) {
        Op::Constant { value } => Some(value),
        Op::Weight { data: Some(data), .. } if data.numel() <= MAX_ELEMENTS => Some(data),
        _ => None,
    }
}

/// Adds a table that was computed from `source`, a [`known`] one: as what the source is, constant or initializer.
pub(crate) fn derived(patch: &mut PatchBuilder<'_>, graph: &Graph, source: Value, what: &str, table: Tensor) -> Value {
    match graph.op(source.node) {
        Op::Weight { name, .. } => patch.weight(&format!("{name}{what}"), table),
        _ => patch.constant(table),
    }
}

/// The number that all elements of `value` are, seen through reshapes and broadcasts.
pub(crate) fn number(graph: &Graph, value: Value) -> Option<f64> {
    if let Op::Reshape { .. } | Op::Broadcast { .. } = graph.op(value.node) {
        return number(graph, *graph.operands(value.node).first()?);
    }
    let tensor = constant(graph, value)?;
    let size = tensor.dtype().size();
    let first = tensor.bytes().get(..size)?;
    if !tensor.bytes().chunks_exact(size).all(|element| element == first) {
        return None;
    }
    // Integers beyond 2^53 are not all f64s, so not numbers here.
    let wide = *tensor.to_f64().first()?;
    (tensor.dtype().is_float() || wide.abs() < 9e15).then_some(wide)
}

/// Whether `found`, which was rounded to `dtype`, is meant to be `wanted`.
pub(crate) fn is_about(found: f64, wanted: f64, dtype: DType) -> bool {
    // An exporter may have rounded on the way to where it computed the number: two roundings to f32, or one to less.
    let tolerance = dtype.epsilon().unwrap_or(0.0).max(2.0 * f64::from(f32::EPSILON));
    (found - wanted).abs() <= tolerance * wanted.abs()
}

/// `dims` without as many leading 1s as it has more dims than `rank`; `None` if those are not all 1.
pub(crate) fn without_leading_ones(dims: &[Dim], rank: usize) -> Option<&[Dim]> {
    let extra = dims.len().checked_sub(rank)?;
    let (lead, rest) = dims.split_at(extra);
    lead.iter().all(Dim::is_one).then_some(rest)
}
