//! Normalisations. Variances are the mean of squared distances from the mean (two passes), which does not cancel.

use super::{Body, Defined};
use crate::dim::Dim;
use crate::graph::{Graph, Value};
use crate::infer::InferError;
use crate::op::{ReduceOp, UnaryOp};
use crate::tensor::TensorType;

impl Body {
    /// `1 / sqrt(variance + epsilon)`
    fn inverse_deviation(&mut self, variance: Value, epsilon: f64) -> Defined {
        let epsilon = self.scalar(epsilon);
        let sum = self.add(variance, epsilon)?;
        self.unary(UnaryOp::Rsqrt, sum)
    }

    /// `x / sqrt(mean(x^2) + epsilon)` over `axes`.
    fn over_root_mean_square(&mut self, x: Value, axes: Vec<usize>, epsilon: f64) -> Defined {
        let square = self.mul(x, x)?;
        let mean = self.reduce(ReduceOp::Mean, square, axes)?;
        let inverse = self.inverse_deviation(mean, epsilon)?;
        self.mul(x, inverse)
    }

    fn standardized(&mut self, x: Value, axes: Vec<usize>, epsilon: f64) -> Defined {
        let mean = self.reduce(ReduceOp::Mean, x, axes.clone())?;
        let centered = self.sub(x, mean)?;
        self.over_root_mean_square(centered, axes, epsilon)
    }

    /// A per-channel parameter `[C]` as `[C, 1, ..]`, which broadcasts against `x: [N, C, ..]`.
    fn per_channel(&mut self, parameter: Value, x: Value) -> Defined {
        let mut shape = self.shape(parameter).to_vec();
        shape.resize(self.shape(x).len() - 1, Dim::from(1i64));
        self.reshape(parameter, shape)
    }
}

pub(super) fn layer_norm(
    mut body: Body,
    operands: &[TensorType],
    axis: usize,
    epsilon: f64,
) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let scale = body.operand("scale", &operands[1])?;
    let bias = operands.get(2).map(|bias| body.operand("bias", bias)).transpose()?;
    let standardized = body.standardized(x, (axis..operands[0].rank()).collect(), epsilon)?;
    let mut y = body.mul(standardized, scale)?;
    if let Some(bias) = bias {
        y = body.add(y, bias)?;
    }
    body.finish(y)
}

pub(super) fn rms_norm(
    mut body: Body,
    operands: &[TensorType],
    axis: usize,
    epsilon: f64,
) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let scale = body.operand("scale", &operands[1])?;
    let normalized = body.over_root_mean_square(x, (axis..operands[0].rank()).collect(), epsilon)?;
    let y = body.mul(normalized, scale)?;
    body.finish(y)
}

pub(super) fn group_norm(
    mut body: Body,
    operands: &[TensorType],
    groups: i64,
    epsilon: f64,
) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let scale = body.operand("scale", &operands[1])?;
    let bias = body.operand("bias", &operands[2])?;
    let shape = body.shape(x).to_vec();
    let groups = Dim::from(groups);
    let group_size = shape[1].floor_div(&groups) * Dim::product(&shape[2..]);
    let grouped = body.reshape(x, vec![shape[0].clone(), groups, group_size])?;
    let standardized = body.standardized(grouped, vec![2], epsilon)?;
    let standardized = body.reshape(standardized, shape)?;
    let (scale, bias) = (body.per_channel(scale, x)?, body.per_channel(bias, x)?);
    let scaled = body.mul(standardized, scale)?;
    let y = body.add(scaled, bias)?;
    body.finish(y)
}

pub(super) fn batch_norm(mut body: Body, operands: &[TensorType], epsilon: f64) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let scale = body.operand("scale", &operands[1])?;
    let bias = body.operand("bias", &operands[2])?;
    let mean = body.operand("mean", &operands[3])?;
    let variance = body.operand("variance", &operands[4])?;
    let inverse = body.inverse_deviation(variance, epsilon)?;
    let factor = body.mul(inverse, scale)?;
    let (factor, bias, mean) = (body.per_channel(factor, x)?, body.per_channel(bias, x)?, body.per_channel(mean, x)?);
    let centered = body.sub(x, mean)?;
    let scaled = body.mul(centered, factor)?;
    let y = body.add(scaled, bias)?;
    body.finish(y)
}
