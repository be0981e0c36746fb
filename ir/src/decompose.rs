//! What composites mean: each as a graph of smaller ops.
//!
//! A decomposition is the definition against which kernels and rewrites are checked, so it is written for precision:
//! everything is computed in [`DType::compute_type`](crate::DType::compute_type) (f16 and bf16 operands are widened to
//! f32 first) and rounded to the result dtype once, at the end.

mod attention;
mod normalization;
mod pointwise;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, Loc, Value};
use crate::infer::{InferError, infer};
use crate::op::{BinaryOp, Op, OpClass, ReduceOp, UnaryOp};
use crate::tensor::{Tensor, TensorType};

impl Op {
    /// The definition of a composite in non-composite ops; of a fused call, its body.
    ///
    /// The result's inputs are the operands, in order and of their types (symbols included); its outputs are the op's
    /// results. `None` for any other op, and if the operands do not fit.
    ///
    /// ```
    /// use forge_ir::{DType, Op, TensorType};
    /// let silu = Op::Silu.decompose(&[TensorType::fixed(DType::F32, &[4])]).unwrap();
    /// assert_eq!((silu.inputs().len(), silu.outputs().len(), silu.op_count()), (1, 1, 2));
    /// ```
    #[must_use]
    pub fn decompose(&self, operands: &[TensorType]) -> Option<Graph> {
        if !matches!(self.class(), OpClass::Composite | OpClass::Fused) {
            return None;
        }
        let types: Vec<&TensorType> = operands.iter().collect();
        infer(self, &types).ok()?;
        if let Op::Fused(fused) = self {
            return Some(fused.body.clone());
        }
        let body = Body { graph: Graph::new(self.name()), dtype: operands.first()?.dtype };
        match self {
            Op::Softmax { axis } => pointwise::softmax(body, operands, *axis),
            Op::LogSoftmax { axis } => pointwise::log_softmax(body, operands, *axis),
            Op::Gelu { approximate } => pointwise::gelu(body, operands, *approximate),
            Op::Silu => pointwise::silu(body, operands),
            Op::Rotary { interleaved } => pointwise::rotary(body, operands, *interleaved),
            Op::LayerNorm { axis, epsilon } => normalization::layer_norm(body, operands, *axis, *epsilon),
            Op::RmsNorm { axis, epsilon } => normalization::rms_norm(body, operands, *axis, *epsilon),
            Op::GroupNorm { groups, epsilon } => normalization::group_norm(body, operands, *groups, *epsilon),
            Op::BatchNorm { epsilon } => normalization::batch_norm(body, operands, *epsilon),
            Op::Attention { scale, causal, causal_offset, masked_rows_zero } => {
                attention::attention(body, operands, *scale, *causal, *causal_offset, *masked_rows_zero)
            }
            _ => return None,
        }
        .ok()
    }
}

impl Graph {
    /// A copy in which every composite and every fused call is replaced by its definition, down to primitive ops.
    /// Provenance is kept.
    ///
    /// # Errors
    /// If the graph does not type; a verified graph decomposes.
    pub fn decompose_all(&self) -> Result<Graph, InferError> {
        let mut out = Graph::new(self.name());
        out.metadata.clone_from(&self.metadata);
        let mut map: BTreeMap<Value, Value> = BTreeMap::new();
        // Inputs first and in order, whatever their ids.
        for node in self.inputs() {
            let value = Value { node: *node, port: 0 };
            let new = out.add_input(self.input_name(*node), self.ty(value).clone());
            out.node_mut(new.node).loc.clone_from(&self.node(*node).loc);
            map.insert(value, new);
        }
        for id in self.topological() {
            let node = self.node(id);
            if matches!(node.op, Op::Input { .. }) {
                continue;
            }
            let operands: Vec<Value> = self.operands(id).iter().map(|value| map[value]).collect();
            let results: Vec<Value> = match node.op.class() {
                OpClass::Composite | OpClass::Fused => {
                    let types: Vec<TensorType> = operands.iter().map(|value| out.ty(*value).clone()).collect();
                    let Some(body) = node.op.decompose(&types) else {
                        infer(&node.op, &types.iter().collect::<Vec<_>>())?;
                        return Err(InferError { op: node.op.name(), message: "has no decomposition".to_owned() });
                    };
                    out.inline(&body.decompose_all()?, &operands, &node.loc)?
                }
                _ if matches!(node.op, Op::Weight { .. } | Op::Constant { .. }) => {
                    let new = out.push(node.clone());
                    out.results(new).collect()
                }
                _ => {
                    let new = out.add_node(node.op.clone(), &operands, node.loc.clone())?;
                    out.results(new).collect()
                }
            };
            map.extend(self.results(id).zip(results));
        }
        out.set_outputs(self.outputs().iter().map(|(name, value)| (name.clone(), map[value])).collect());
        Ok(out)
    }
}

/// A definition in the making, with the arithmetic that definitions are written in.
struct Body {
    graph: Graph,
    /// The dtype of the first operand, which results are rounded to.
    dtype: DType,
}

type Defined = Result<Value, InferError>;

impl Body {
    fn compute(&self) -> DType {
        self.dtype.compute_type()
    }

    /// Adds an operand, widened if it is of a narrow float.
    fn operand(&mut self, name: &str, ty: &TensorType) -> Defined {
        let value = self.graph.add_input(name, ty.clone());
        self.cast(value, if ty.dtype.is_float() { ty.dtype.compute_type() } else { ty.dtype })
    }

    /// Rounds the result to the dtype of the first operand and makes it the only output.
    fn finish(mut self, result: Value) -> Result<Graph, InferError> {
        let result = self.cast(result, self.dtype)?;
        self.graph.set_outputs(vec![("y".to_owned(), result)]);
        Ok(self.graph)
    }

    fn shape(&self, x: Value) -> &[Dim] {
        &self.graph.ty(x).shape
    }

    fn op(&mut self, op: Op, operands: &[Value]) -> Defined {
        self.graph.add(op, operands, Loc::default())
    }

    fn cast(&mut self, x: Value, to: DType) -> Defined {
        if self.graph.ty(x).dtype == to { Ok(x) } else { self.op(Op::Cast { to }, &[x]) }
    }

    /// A scalar of the compute dtype.
    fn scalar(&mut self, value: f64) -> Value {
        let dtype = self.compute();
        self.graph.add_constant(Tensor::from_f64(dtype, &[], &[value]))
    }

    fn unary(&mut self, op: UnaryOp, x: Value) -> Defined {
        self.op(Op::Unary(op), &[x])
    }

    fn add(&mut self, a: Value, b: Value) -> Defined {
        self.op(Op::Binary(BinaryOp::Add), &[a, b])
    }

    fn sub(&mut self, a: Value, b: Value) -> Defined {
        self.op(Op::Binary(BinaryOp::Sub), &[a, b])
    }

    fn mul(&mut self, a: Value, b: Value) -> Defined {
        self.op(Op::Binary(BinaryOp::Mul), &[a, b])
    }

    fn div(&mut self, a: Value, b: Value) -> Defined {
        self.op(Op::Binary(BinaryOp::Div), &[a, b])
    }

    /// A reduction over axes `from..`, or over `from` alone, that keeps the rank.
    fn reduce(&mut self, op: ReduceOp, x: Value, axes: Vec<usize>) -> Defined {
        self.op(Op::Reduce { op, axes, keep_dims: true }, &[x])
    }

    fn reshape(&mut self, x: Value, shape: Vec<Dim>) -> Defined {
        if self.shape(x) == shape { Ok(x) } else { self.op(Op::Reshape { shape }, &[x]) }
    }
}
