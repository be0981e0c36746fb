//! Scaled dot-product attention.

use super::{Body, Defined};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::infer::InferError;
use crate::op::{BinaryOp, CompareOp, Op, ReduceOp};
use crate::tensor::{Tensor, TensorType};

/// How the heads of q share those of k and v.
enum Heads {
    /// One to one, or all on one: the matmul's batch broadcasting does it.
    Broadcast,
    /// `H = Hkv * group`, each kv head read by `group` consecutive heads of q: done in `[B, Hkv, group, ..]`.
    Grouped { key_heads: Dim, group: Dim },
}

impl Body {
    /// `a b` or `a b^T` for `a: [B, H, ..]` and `b: [B, Hkv, ..]`, as `[B, H, ..]`.
    fn per_head(&mut self, heads: &Heads, a: Value, b: Value, trans_b: bool) -> Defined {
        let matmul = Op::MatMul { trans_a: false, trans_b };
        let Heads::Grouped { key_heads, group } = heads else {
            return self.op(matmul, &[a, b]);
        };
        let with_group = |shape: &[Dim], group: Dim| {
            let mut grouped = vec![shape[0].clone(), key_heads.clone(), group];
            grouped.extend_from_slice(&shape[2..]);
            grouped
        };
        let mut shape = self.shape(a).to_vec();
        let a_shape = with_group(&shape, group.clone());
        let b_shape = with_group(self.shape(b), Dim::from(1i64));
        let (a, b) = (self.reshape(a, a_shape)?, self.reshape(b, b_shape)?);
        let product = self.op(matmul, &[a, b])?;
        let grouped = self.shape(product);
        // Batch and columns as the matmul found them: q's may be less specific.
        shape[0] = grouped[0].clone();
        shape[3] = grouped[4].clone();
        self.reshape(product, shape)
    }

    /// `[L, S]`: whether key j comes no later than query i, `j <= i + offset`.
    fn causal(&mut self, queries: &Dim, keys: &Dim, bottom_right: bool) -> Defined {
        let query = self.op(Op::Iota { len: queries.clone(), dtype: DType::I64 }, &[])?;
        let mut query = self.reshape(query, vec![queries.clone(), Dim::from(1i64)])?;
        let offset = keys.clone() - queries.clone();
        if bottom_right && offset.as_const() != Some(0) {
            let offset = match offset.as_const() {
                Some(constant) => self.graph.add_constant(Tensor::scalar(constant)),
                None => self.op(Op::DimValue { dim: offset }, &[])?,
            };
            query = self.add(query, offset)?;
        }
        let key = self.op(Op::Iota { len: keys.clone(), dtype: DType::I64 }, &[])?;
        self.op(Op::Compare(CompareOp::Le), &[key, query])
    }

    /// Whether a row of `admitted: [.., S]` has a true, as `[.., 1]`.
    fn any(&mut self, admitted: Value) -> Defined {
        let admitted = match self.shape(admitted).len() {
            0 => self.reshape(admitted, vec![Dim::from(1i64)])?,
            _ => admitted,
        };
        let last = self.shape(admitted).len() - 1;
        let (one, zero) = (self.scalar(1.0), self.scalar(0.0));
        let indicator = self.op(Op::Select, &[admitted, one, zero])?;
        let largest = self.reduce(ReduceOp::Max, indicator, vec![last])?;
        self.op(Op::Compare(CompareOp::Gt), &[largest, zero])
    }
}

/// `softmax(scale q k^T + mask) v` (Vaswani et al., arXiv:1706.03762, equation 1).
pub(super) fn attention(
    mut body: Body,
    operands: &[TensorType],
    scale: f64,
    causal: bool,
    causal_offset: bool,
    masked_rows_zero: bool,
) -> Result<Graph, InferError> {
    let q = body.operand("q", &operands[0])?;
    let k = body.operand("k", &operands[1])?;
    let v = body.operand("v", &operands[2])?;
    let mask = operands.get(3).map(|mask| body.operand("mask", mask)).transpose()?;
    let (heads, key_heads) = (&operands[0].shape[1], &operands[1].shape[1]);
    let grouping = if heads == key_heads || key_heads.is_one() {
        Heads::Broadcast
    } else {
        Heads::Grouped { key_heads: key_heads.clone(), group: heads.floor_div(key_heads) }
    };

    let products = body.per_head(&grouping, q, k, true)?;
    let scale = body.scalar(scale);
    let mut scores = body.mul(products, scale)?;
    let mut admitted = None;
    if let Some(mask) = mask {
        if body.graph.ty(mask).dtype == DType::Bool {
            admitted = Some(mask);
        } else {
            scores = body.add(scores, mask)?;
        }
    }
    if causal {
        let causal = body.causal(&operands[0].shape[2], &operands[1].shape[2], causal_offset)?;
        admitted = Some(match admitted {
            Some(mask) => body.op(Op::Binary(BinaryOp::And), &[mask, causal])?,
            None => causal,
        });
    }
    if let Some(admitted) = admitted {
        let barred = body.scalar(f64::NEG_INFINITY);
        scores = body.op(Op::Select, &[admitted, scores, barred])?;
    }
    let weights = body.softmax(scores, 3)?;
    let mut y = body.per_head(&grouping, weights, v, false)?;
    if let (Some(admitted), true) = (admitted, masked_rows_zero) {
        let any = body.any(admitted)?;
        let zero = body.scalar(0.0);
        y = body.op(Op::Select, &[any, y, zero])?;
    }
    body.finish(y)
}
