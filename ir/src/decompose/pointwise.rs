//! Activations, softmax and rotary embedding.

use super::{Body, Defined};
use crate::dim::Dim;
use crate::graph::{Graph, Value};
use crate::infer::InferError;
use crate::op::{GeluApproximate, Op, ReduceOp, UnaryOp};
use crate::tensor::TensorType;

impl Body {
    /// `(exp(x - max x), their sum)` along `axis`.
    fn exponentials(&mut self, shifted: Value, axis: usize) -> Result<(Value, Value), InferError> {
        let powers = self.unary(UnaryOp::Exp, shifted)?;
        Ok((powers, self.reduce(ReduceOp::Sum, powers, vec![axis])?))
    }

    /// `x - max x` along `axis`: no power overflows, and the largest is 1.
    fn shifted(&mut self, x: Value, axis: usize) -> Defined {
        let largest = self.reduce(ReduceOp::Max, x, vec![axis])?;
        self.sub(x, largest)
    }

    pub(super) fn softmax(&mut self, x: Value, axis: usize) -> Defined {
        let shifted = self.shifted(x, axis)?;
        let (powers, sum) = self.exponentials(shifted, axis)?;
        self.div(powers, sum)
    }

    /// Every second element of the last axis from `start`, or its half from `start`.
    fn part(&mut self, x: Value, start: Dim, step: i64, size: &Dim) -> Defined {
        let mut sizes = self.shape(x).to_vec();
        let mut starts = vec![Dim::from(0i64); sizes.len()];
        let mut steps = vec![1; sizes.len()];
        if let (Some(last_start), Some(last_step), Some(last_size)) =
            (starts.last_mut(), steps.last_mut(), sizes.last_mut())
        {
            (*last_start, *last_step) = (start, step);
            last_size.clone_from(size);
        }
        self.op(Op::Slice { starts, steps, sizes }, &[x])
    }
}

pub(super) fn softmax(mut body: Body, operands: &[TensorType], axis: usize) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let y = body.softmax(x, axis)?;
    body.finish(y)
}

/// `x - max x - log(sum(exp(x - max x)))`
pub(super) fn log_softmax(mut body: Body, operands: &[TensorType], axis: usize) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let shifted = body.shifted(x, axis)?;
    let (_, sum) = body.exponentials(shifted, axis)?;
    let log = body.unary(UnaryOp::Log, sum)?;
    let y = body.sub(shifted, log)?;
    body.finish(y)
}

/// `x/2 * (1 + erf(x / sqrt 2))`, or with `tanh(sqrt(2/pi) * (x + 0.044715 x^3))` for the error function
/// (Hendrycks and Gimpel, arXiv:1606.08415, section 2).
pub(super) fn gelu(mut body: Body, operands: &[TensorType], approximate: GeluApproximate) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let inner = match approximate {
        GeluApproximate::None => {
            let scale = body.scalar(std::f64::consts::FRAC_1_SQRT_2);
            let scaled = body.mul(x, scale)?;
            body.unary(UnaryOp::Erf, scaled)?
        }
        GeluApproximate::Tanh => {
            let kappa = body.scalar(0.044715);
            let beta = body.scalar((2.0 / std::f64::consts::PI).sqrt());
            let square = body.mul(x, x)?;
            let cube = body.mul(square, x)?;
            let correction = body.mul(cube, kappa)?;
            let sum = body.add(x, correction)?;
            let scaled = body.mul(sum, beta)?;
            body.unary(UnaryOp::Tanh, scaled)?
        }
    };
    let (half, one) = (body.scalar(0.5), body.scalar(1.0));
    let half_x = body.mul(x, half)?;
    let gate = body.add(inner, one)?;
    let y = body.mul(half_x, gate)?;
    body.finish(y)
}

pub(super) fn silu(mut body: Body, operands: &[TensorType]) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let gate = body.unary(UnaryOp::Sigmoid, x)?;
    let y = body.mul(x, gate)?;
    body.finish(y)
}

/// With (a, b) the two halves, or the even and the odd elements: `(a cos - b sin, b cos + a sin)`
/// (Su et al., arXiv:2104.09864, equation 34).
pub(super) fn rotary(mut body: Body, operands: &[TensorType], interleaved: bool) -> Result<Graph, InferError> {
    let x = body.operand("x", &operands[0])?;
    let cos = body.operand("cos", &operands[1])?;
    let sin = body.operand("sin", &operands[2])?;
    let shape = body.shape(x).to_vec();
    let last = shape.len() - 1;
    let half = shape[last].floor_div(&Dim::from(2i64));
    let (a, b) = if interleaved {
        (body.part(x, Dim::from(0i64), 2, &half)?, body.part(x, Dim::from(1i64), 2, &half)?)
    } else {
        (body.part(x, Dim::from(0i64), 1, &half)?, body.part(x, half.clone(), 1, &half)?)
    };
    let (a_cos, b_sin) = (body.mul(a, cos)?, body.mul(b, sin)?);
    let (b_cos, a_sin) = (body.mul(b, cos)?, body.mul(a, sin)?);
    let (first, second) = (body.sub(a_cos, b_sin)?, body.add(b_cos, a_sin)?);
    let y = if interleaved {
        let mut column = shape[..last].to_vec();
        column.extend([half, Dim::from(1i64)]);
        let (first, second) = (body.reshape(first, column.clone())?, body.reshape(second, column)?);
        body.op(Op::Concat { axis: last + 1 }, &[first, second])?
    } else {
        body.op(Op::Concat { axis: last }, &[first, second])?
    };
    // Also the symbolic case, in which twice the half of D does not print as D.
    let y = body.reshape(y, shape)?;
    body.finish(y)
}
