//! One maker per kind of op; each builds the operands that it lacks.

use std::sync::Arc;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{NodeId, Value};
use crate::op::*;
use crate::tensor::TensorType;

use super::{Generator, Random};

impl Generator {
    pub(super) fn leaf(&mut self) -> Option<NodeId> {
        if self.random.chance(50) {
            let (len, dtype) = (self.dim(), self.numeric());
            return self.add(Op::Iota { len, dtype }, &[]);
        }
        let dim = self.dim() * Dim::from(2) + Dim::symbol("S").floor_div(&Dim::from(2));
        self.add(Op::DimValue { dim }, &[])
    }

    pub(super) fn unary(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.dtype(), self.rank(0, 3));
        let x = self.some(dtype, rank);
        let op = match dtype {
            DType::Bool => UnaryOp::Not,
            d if d.is_float() => *self.random.of(UnaryOp::ALL),
            _ => *self.random.of(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Sign, UnaryOp::Relu, UnaryOp::Not]),
        };
        let op = if dtype.is_float() && op == UnaryOp::Not { UnaryOp::Neg } else { op };
        self.add(Op::Unary(op), &[x])
    }

    pub(super) fn binary(&mut self) -> Option<NodeId> {
        use BinaryOp::*;
        let (dtype, rank) = (self.dtype(), self.rank(0, 3));
        let a = self.some(dtype, rank);
        let shape = self.broadcastable(&self.ty(a).shape);
        let b = self.operand(dtype, &shape);
        let op = match dtype {
            DType::Bool => *self.random.of(&[And, Or, Xor]),
            d if d.is_float() => *self.random.of(&[Add, Sub, Mul, Div, Rem, Mod, Pow, Min, Max]),
            _ => *self.random.of(&[Add, Sub, Mul, Div, Rem, Mod, Min, Max, And, Or, Xor, Shl, Shr]),
        };
        let operands = if self.random.chance(50) { [a, b] } else { [b, a] };
        self.add(Op::Binary(op), &operands)
    }

    pub(super) fn compare(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.dtype(), self.rank(0, 3));
        let a = self.some(dtype, rank);
        let shape = self.broadcastable(&self.ty(a).shape);
        let b = self.operand(dtype, &shape);
        let op = if dtype == DType::Bool { CompareOp::Ne } else { *self.random.of(CompareOp::ALL) };
        self.add(Op::Compare(op), &[a, b])
    }

    pub(super) fn select(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.dtype(), self.rank(0, 3));
        let then = self.some(dtype, rank);
        let shape = self.ty(then).shape;
        let condition = self.broadcastable(&shape);
        let condition = self.operand(DType::Bool, &condition);
        let otherwise = self.broadcastable(&shape);
        let otherwise = self.operand(dtype, &otherwise);
        self.add(Op::Select, &[condition, then, otherwise])
    }

    pub(super) fn cast(&mut self) -> Option<NodeId> {
        let x = self.pick(|_| true)?;
        let to = self.dtype();
        self.add(Op::Cast { to }, &[x])
    }

    pub(super) fn reduce(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.numeric(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let axes: Vec<usize> = (0..rank).filter(|_| self.random.chance(50)).collect();
        let op = *self.random.of(ReduceOp::ALL);
        let op = if op == ReduceOp::Mean && !dtype.is_float() { ReduceOp::Sum } else { op };
        let op = Op::Reduce { op, axes, keep_dims: self.random.chance(50) };
        self.add(op, &[x])
    }

    pub(super) fn arg_reduce(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.numeric(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let op = *self.random.of(ArgOp::ALL);
        let axis = self.random.below(rank);
        let (keep_dims, select_last) = (self.random.chance(50), self.random.chance(30));
        self.add(Op::ArgReduce { op, axis, keep_dims, select_last }, &[x])
    }

    pub(super) fn cum_sum(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.numeric(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let axis = self.random.below(rank);
        let op = Op::CumSum { axis, exclusive: self.random.chance(30), reverse: self.random.chance(30) };
        self.add(op, &[x])
    }

    pub(super) fn reshape(&mut self) -> Option<NodeId> {
        let x = self.pick(|_| true)?;
        let mut shape = self.ty(x).shape;
        if shape.len() >= 2 && self.random.chance(60) {
            let at = self.random.below(shape.len() - 1);
            let next = shape.remove(at + 1);
            shape[at] = shape[at].clone() * next;
        } else {
            let at = self.random.below(shape.len() + 1);
            shape.insert(at, Dim::from(1));
        }
        self.add(Op::Reshape { shape }, &[x])
    }

    pub(super) fn transpose(&mut self) -> Option<NodeId> {
        let x = self.pick(|t| t.rank() >= 2)?;
        let mut perm: Vec<usize> = (0..self.ty(x).rank()).collect();
        for i in (1..perm.len()).rev() {
            perm.swap(i, self.random.below(i + 1));
        }
        self.add(Op::Transpose { perm }, &[x])
    }

    pub(super) fn broadcast(&mut self) -> Option<NodeId> {
        let rank = self.rank(1, 3);
        let shape = self.shape(rank);
        let from = self.broadcastable(&shape);
        let dtype = self.dtype();
        let x = self.operand(dtype, &from);
        self.add(Op::Broadcast { shape }, &[x])
    }

    pub(super) fn slice(&mut self) -> Option<NodeId> {
        let x = self.pick(|t| t.rank() >= 1)?;
        let (mut starts, mut steps, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for dim in self.ty(x).shape {
            let (start, step, size) = match dim.as_const() {
                Some(extent) if extent > 0 && self.random.chance(60) => {
                    let start = self.random.below(extent as usize) as i64;
                    let step = *self.random.of(&[1, 1, 2, -1]);
                    let room = if step > 0 { (extent - 1 - start) / step } else { start };
                    (start, step, Dim::from(1 + self.random.below(room as usize + 1)))
                }
                Some(_) => (0, 1, dim),
                None if self.random.chance(30) => (0, 1, Dim::from(1)),
                None => (0, 1, dim),
            };
            starts.push(Dim::from(start));
            steps.push(step);
            sizes.push(size);
        }
        self.add(Op::Slice { starts, steps, sizes }, &[x])
    }

    pub(super) fn pad(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.dtype(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        // Reflection needs more elements than it pads; the edge needs one.
        let mode = *self.random.of(&[PadMode::Constant, PadMode::Constant, PadMode::Edge]);
        let pads = |g: &mut Self| -> Vec<Dim> { (0..rank).map(|_| Dim::from(g.random.below(3))).collect() };
        let (before, after) = (pads(self), pads(self));
        let mut operands = vec![x];
        if mode == PadMode::Constant && self.random.chance(50) {
            operands.push(self.operand(dtype, &[]));
        }
        self.add(Op::Pad { mode, before, after }, &operands)
    }

    pub(super) fn concat(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.dtype(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let axis = self.random.below(rank);
        let mut operands = vec![x];
        for _ in 0..self.random.below(3) {
            let mut shape = self.ty(x).shape;
            shape[axis] = self.dim();
            operands.push(self.operand(dtype, &shape));
        }
        self.add(Op::Concat { axis }, &operands)
    }

    pub(super) fn gather(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.dtype(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let axis = self.random.below(rank);
        let shape: Vec<usize> = (0..self.random.below(3)).map(|_| self.size()).collect();
        let indices = self.indices(&self.ty(x).shape[axis].clone(), &shape);
        self.add(Op::Gather { axis }, &[x, indices])
    }

    /// (x of constant shape, indices within it).
    pub(super) fn elements(&mut self, dtype: DType) -> (Value, Value, usize) {
        let rank = self.rank(1, 3);
        let shape = self.fixed(rank);
        let x = self.operand(dtype, &shape);
        let axis = self.random.below(rank);
        let extents: Vec<usize> = shape.iter().filter_map(Dim::as_const).map(|d| d as usize).collect();
        let indices = self.indices(&shape[axis], &extents);
        (x, indices, axis)
    }

    pub(super) fn gather_elements(&mut self) -> Option<NodeId> {
        let dtype = self.dtype();
        let (x, indices, axis) = self.elements(dtype);
        self.add(Op::GatherElements { axis }, &[x, indices])
    }

    pub(super) fn scatter_elements(&mut self) -> Option<NodeId> {
        let dtype = self.numeric();
        let (x, indices, axis) = self.elements(dtype);
        let updates = self.operand(dtype, &self.ty(indices).shape);
        let reduce = *self.random.of(ScatterReduce::ALL);
        self.add(Op::ScatterElements { axis, reduce }, &[x, indices, updates])
    }

    pub(super) fn gather_nd(&mut self) -> Option<NodeId> {
        let dtype = self.dtype();
        let dims = self.fixed(3);
        let x = self.operand(dtype, &dims);
        // One index, into an axis after the batch dims.
        let batch_dims = self.random.below(2);
        let batch = dims[0].as_const().unwrap_or(1) as usize;
        let shape = if batch_dims == 1 { vec![batch, 2, 1] } else { vec![2, 1] };
        let indices = self.indices(&dims[batch_dims], &shape);
        self.add(Op::GatherNd { batch_dims }, &[x, indices])
    }

    pub(super) fn scatter_nd(&mut self) -> Option<NodeId> {
        let dtype = self.numeric();
        let dims = self.fixed(2);
        let x = self.operand(dtype, &dims);
        let indices = self.indices(&dims[0], &[3, 1]);
        let updates = self.operand(dtype, &[Dim::from(3), dims[1].clone()]);
        let reduce = *self.random.of(ScatterReduce::ALL);
        self.add(Op::ScatterNd { reduce }, &[x, indices, updates])
    }

    pub(super) fn top_k(&mut self) -> Option<NodeId> {
        let dtype = self.numeric();
        let shape = vec![self.dim(), Dim::from(4)];
        let x = self.operand(dtype, &shape);
        let k = Dim::from(self.size());
        let op = Op::TopK { axis: 1, k, largest: self.random.chance(60) };
        self.add(op, &[x])
    }

    pub(super) fn matmul(&mut self) -> Option<NodeId> {
        let dtype = self.float();
        let (m, k, n) = (self.dim(), self.dim(), self.dim());
        let (trans_a, trans_b) = (self.random.chance(30), self.random.chance(50));
        let (rank_a, rank_b) = (self.random.below(2), self.random.below(2));
        let batch = self.shape(1);
        let with = |lead: usize, rows: &Dim, columns: &Dim, swap: bool| {
            let mut shape = batch[..lead].to_vec();
            shape.extend(if swap { [columns.clone(), rows.clone()] } else { [rows.clone(), columns.clone()] });
            shape
        };
        let a = self.operand(dtype, &with(rank_a, &m, &k, trans_a));
        let b = self.operand(dtype, &with(rank_b, &k, &n, trans_b));
        self.add(Op::MatMul { trans_a, trans_b }, &[a, b])
    }

    pub(super) fn window(&mut self, axes: usize) -> Window {
        let pads = |g: &mut Self| -> Vec<i64> { (0..axes).map(|_| g.random.below(2) as i64).collect() };
        Window {
            strides: (0..axes).map(|_| 1 + self.random.below(2) as i64).collect(),
            pads_begin: pads(self),
            pads_end: pads(self),
            dilations: vec![1; axes],
        }
    }

    pub(super) fn conv(&mut self) -> Option<NodeId> {
        let (dtype, axes) = (self.float(), self.rank(1, 2));
        let groups = 1 + self.random.below(2) as i64;
        let batch = self.dim();
        let mut shape = vec![batch, Dim::from(2 * groups)];
        shape.extend((0..axes).map(|_| Dim::from(4)));
        let x = self.operand(dtype, &shape);
        let mut kernel = vec![Dim::from(3 * groups), Dim::from(2)];
        kernel.extend((0..axes).map(|_| Dim::from(1 + self.random.below(3))));
        let w = self.operand(dtype, &kernel);
        let mut operands = vec![x, w];
        if self.random.chance(50) {
            operands.push(self.operand(dtype, &kernel[..1]));
        }
        let window = self.window(axes);
        self.add(Op::Conv { window, groups }, &operands)
    }

    pub(super) fn conv_transpose(&mut self) -> Option<NodeId> {
        let (dtype, axes) = (self.float(), self.rank(1, 2));
        let mut shape = vec![self.dim(), Dim::from(2)];
        shape.extend((0..axes).map(|_| Dim::from(3)));
        let x = self.operand(dtype, &shape);
        let mut kernel = vec![Dim::from(2), Dim::from(3)];
        kernel.extend((0..axes).map(|_| Dim::from(3)));
        let w = self.operand(dtype, &kernel);
        let window = self.window(axes);
        self.add(Op::ConvTranspose { window, groups: 1, output_padding: vec![0; axes] }, &[x, w])
    }

    pub(super) fn pool(&mut self) -> Option<NodeId> {
        let (dtype, axes) = (self.float(), self.rank(1, 2));
        let mut shape = vec![self.dim(), self.dim()];
        shape.extend((0..axes).map(|_| Dim::from(4)));
        let x = self.operand(dtype, &shape);
        let kind = *self.random.of(PoolKind::ALL);
        let window = self.window(axes);
        let (ceil_mode, count_include_pad) = (self.random.chance(30), self.random.chance(50));
        self.add(Op::Pool { kind, kernel: vec![2; axes], window, ceil_mode, count_include_pad }, &[x])
    }

    pub(super) fn resize(&mut self) -> Option<NodeId> {
        let dtype = self.float();
        let lead = [self.dim(), self.dim()];
        let shape = [lead[0].clone(), lead[1].clone(), Dim::from(3), Dim::from(4)];
        let x = self.operand(dtype, &shape);
        let scale = *self.random.of(&[0.5, 1.0, 2.0, 1.5]);
        let size = |extent: f64| Dim::from((extent * scale).floor() as i64);
        let op = Op::Resize {
            mode: *self.random.of(ResizeMode::ALL),
            coordinates: *self.random.of(ResizeCoordinates::ALL),
            rounding: *self.random.of(ResizeRounding::ALL),
            cubic_coeff: -0.75,
            scales: vec![1.0, 1.0, scale, scale],
            sizes: vec![lead[0].clone(), lead[1].clone(), size(3.0), size(4.0)],
        };
        self.add(op, &[x])
    }

    pub(super) fn softmax(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.float(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let axis = self.random.below(rank);
        let op = if self.random.chance(70) { Op::Softmax { axis } } else { Op::LogSoftmax { axis } };
        self.add(op, &[x])
    }

    pub(super) fn epsilon(&mut self) -> f64 {
        *self.random.of(&[1e-5, 1e-12, f64::from(1e-6f32)])
    }

    pub(super) fn norm(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.float(), self.rank(1, 3));
        let x = self.some(dtype, rank);
        let axis = self.random.below(rank);
        let shape = self.ty(x).shape[axis..].to_vec();
        let mut operands = vec![x, self.operand(dtype, &shape)];
        let epsilon = self.epsilon();
        if self.random.chance(50) {
            return self.add(Op::RmsNorm { axis, epsilon }, &operands);
        }
        if self.random.chance(60) {
            operands.push(self.operand(dtype, &shape));
        }
        self.add(Op::LayerNorm { axis, epsilon }, &operands)
    }

    pub(super) fn channel_norm(&mut self) -> Option<NodeId> {
        let dtype = self.float();
        let shape = vec![self.dim(), Dim::from(4), self.dim()];
        let x = self.operand(dtype, &shape);
        let epsilon = self.epsilon();
        let mut operands = vec![x];
        let group = self.random.chance(50);
        for _ in 0..if group { 2 } else { 4 } {
            operands.push(self.operand(dtype, &shape[1..2]));
        }
        let groups = *self.random.of(&[1, 2, 4]);
        self.add(if group { Op::GroupNorm { groups, epsilon } } else { Op::BatchNorm { epsilon } }, &operands)
    }

    pub(super) fn activation(&mut self) -> Option<NodeId> {
        let (dtype, rank) = (self.float(), self.rank(0, 3));
        let x = self.some(dtype, rank);
        let approximate = *self.random.of(GeluApproximate::ALL);
        let op = if self.random.chance(60) { Op::Gelu { approximate } } else { Op::Silu };
        self.add(op, &[x])
    }

    pub(super) fn attention(&mut self) -> Option<NodeId> {
        let dtype = self.float();
        let (batch, length, keys) = (self.dim(), self.dim(), self.dim());
        let key_heads = self.size();
        let heads = Dim::from(key_heads * (1 + self.random.below(2)));
        let key_heads = Dim::from(key_heads);
        let (width, value_width) = (Dim::from(self.size()), Dim::from(self.size()));
        let q = self.operand(dtype, &[batch.clone(), heads.clone(), length.clone(), width.clone()]);
        let k = self.operand(dtype, &[batch.clone(), key_heads.clone(), keys.clone(), width]);
        let v = self.operand(dtype, &[batch.clone(), key_heads, keys.clone(), value_width]);
        let mut operands = vec![q, k, v];
        if self.random.chance(60) {
            let one = Dim::from(1);
            let lead = if self.random.chance(50) { [batch, heads] } else { [batch, one] };
            let mask_dtype = if self.random.chance(50) { DType::Bool } else { dtype };
            let [b, h] = lead;
            operands.push(self.operand(mask_dtype, &[b, h, length, keys]));
        }
        let flags = [self.random.chance(40), self.random.chance(40), self.random.chance(40)];
        let [causal, causal_offset, masked_rows_zero] = flags;
        self.add(Op::Attention { scale: 0.125, causal, causal_offset, masked_rows_zero }, &operands)
    }

    pub(super) fn rotary(&mut self) -> Option<NodeId> {
        let dtype = self.float();
        let (heads, length, half) = (self.dim(), self.dim(), self.size());
        let x = self.operand(dtype, &[heads, length.clone(), Dim::from(2 * half)]);
        let cos = self.operand(dtype, &[length.clone(), Dim::from(half)]);
        let sin = self.operand(dtype, &[length, Dim::from(half)]);
        let op = Op::Rotary { interleaved: self.random.chance(40) };
        self.add(op, &[x, cos, sin])
    }

    pub(super) fn fused(&mut self) -> Option<NodeId> {
        if self.nesting == 0 {
            return None;
        }
        let size = self.size();
        let body = Generator::run(Random::new(self.random.bits()), size, self.nesting - 1);
        let types: Vec<TensorType> = body.inputs().iter().map(|n| body.node(*n).outputs[0].clone()).collect();
        let operands: Vec<Value> = types.iter().map(|t| self.operand(t.dtype, &t.shape)).collect();
        let kernel = if self.random.chance(50) { "3f9a".to_owned() } else { String::new() };
        self.add(Op::Fused(Arc::new(Fused { body, kernel })), &operands)
    }
}
