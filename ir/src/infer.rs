//! Shape and dtype inference: the typing rule of every op.
//!
//! Symbolic dims make some agreements undecidable here. The one rule for that, [`unify`]: two dims that can be proven
//! different are an error, two dims that may be equal are taken as equal at run time, and the more specific of the two
//! (the constant, else the first) goes into the result. Broadcasting adds numpy's constant 1 to it
//! ([`broadcast_dims`]): a symbol is never assumed to be 1, so `N` against `M` is "equal at run time", not "one may
//! broadcast".

mod composite;
mod contract;
mod elementwise;
mod index;
#[cfg(test)]
mod tests;
mod view;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{Fused, Op};
use crate::tensor::TensorType;

/// Why an op does not accept its operands: one sentence with the shapes or dtypes in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{op}: {message}")]
pub struct InferError {
    pub op: &'static str,
    pub message: String,
}

type Inferred = Result<Vec<TensorType>, InferError>;

/// Result types of `op` on operands of these types.
///
/// An input, and a weight without data, have the type that the graph states: for them there is nothing to infer from,
/// which is an error here.
///
/// # Errors
/// If operand count, dtypes, shapes or attributes do not fit the op.
///
/// ```
/// use forge_ir::{BinaryOp, DType, Dim, Op, TensorType, infer};
/// let x = TensorType::new(DType::F32, vec![Dim::symbol("N"), Dim::from(1i64), Dim::from(4i64)]);
/// let y = TensorType::fixed(DType::F32, &[3, 4]);
/// let sum = infer(&Op::Binary(BinaryOp::Add), &[&x, &y]).unwrap();
/// assert_eq!(sum[0].to_string(), "f32[N, 3, 4]");
/// ```
pub fn infer(op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>, InferError> {
    let call = Call { op: op.name(), operands };
    match op {
        Op::Input { .. } => call.fail("an input's type is stated by the graph, not inferred"),
        Op::Weight { data: None, name } => {
            call.fail(format!("weight '{name}' has no data: its type is stated by the graph, not inferred"))
        }
        Op::Weight { data: Some(data), .. } => call.leaf(data.ty()),
        Op::Constant { value } => call.leaf(value.ty()),
        Op::Iota { len, dtype } => {
            if *dtype == DType::Bool {
                return call.fail("dtype is bool, expected an integer or float dtype");
            }
            call.size(len, "len")?;
            call.leaf(TensorType::new(*dtype, vec![len.clone()]))
        }
        Op::DimValue { .. } => call.leaf(TensorType::new(DType::I64, Vec::new())),

        Op::Unary(op) => elementwise::unary(&call, *op),
        Op::Binary(op) => elementwise::binary(&call, *op),
        Op::Compare(op) => elementwise::compare(&call, *op),
        Op::Select => elementwise::select(&call),
        Op::Cast { to } => {
            let [x] = call.exactly()?;
            call.one(*to, x.shape.clone())
        }

        Op::Reduce { op, axes, keep_dims } => elementwise::reduce(&call, *op, axes, *keep_dims),
        Op::ArgReduce { axis, keep_dims, .. } => elementwise::arg_reduce(&call, *axis, *keep_dims),
        Op::CumSum { axis, .. } => elementwise::cum_sum(&call, *axis),

        Op::Reshape { shape } => view::reshape(&call, shape),
        Op::Transpose { perm } => view::transpose(&call, perm),
        Op::Broadcast { shape } => view::broadcast(&call, shape),
        Op::Slice { starts, steps, sizes } => view::slice(&call, starts, steps, sizes),
        Op::Pad { mode, before, after } => view::pad(&call, *mode, before, after),
        Op::Concat { axis } => view::concat(&call, *axis),

        Op::Gather { axis } => index::gather(&call, *axis),
        Op::GatherElements { axis } => index::gather_elements(&call, *axis),
        Op::GatherNd { batch_dims } => index::gather_nd(&call, *batch_dims),
        Op::ScatterElements { axis, reduce } => index::scatter_elements(&call, *axis, *reduce),
        Op::ScatterNd { reduce } => index::scatter_nd(&call, *reduce),
        Op::TopK { axis, k, .. } => index::top_k(&call, *axis, k),

        Op::MatMul { trans_a, trans_b } => contract::matmul(&call, *trans_a, *trans_b),
        Op::Conv { window, groups } => contract::conv(&call, window, *groups),
        Op::ConvTranspose { window, groups, output_padding } => {
            contract::conv_transpose(&call, window, *groups, output_padding)
        }
        Op::Pool { kind, kernel, window, ceil_mode, .. } => contract::pool(&call, *kind, kernel, window, *ceil_mode),
        Op::Resize { mode, cubic_coeff, scales, sizes, .. } => {
            contract::resize(&call, *mode, *cubic_coeff, scales, sizes)
        }

        Op::Softmax { axis } | Op::LogSoftmax { axis } => composite::softmax(&call, *axis),
        Op::LayerNorm { axis, epsilon } => composite::layer_norm(&call, *axis, *epsilon),
        Op::RmsNorm { axis, epsilon } => composite::rms_norm(&call, *axis, *epsilon),
        Op::GroupNorm { groups, epsilon } => composite::group_norm(&call, *groups, *epsilon),
        Op::BatchNorm { epsilon } => composite::batch_norm(&call, *epsilon),
        Op::Gelu { .. } | Op::Silu => composite::activation(&call),
        Op::Attention { scale, .. } => composite::attention(&call, *scale),
        Op::Rotary { .. } => composite::rotary(&call),

        Op::Fused(fused) => fused_call(&call, fused),
    }
}

/// The dim that two dims must both be: `None` if they are provably different, else the constant one, else `a`.
///
/// Different symbols, and a symbol against a constant, count as equal at run time. `N` against `N + 1` does not.
#[must_use]
pub fn unify(a: &Dim, b: &Dim) -> Option<Dim> {
    if a == b {
        return Some(a.clone());
    }
    match (a.as_const(), b.as_const()) {
        (Some(_), Some(_)) => None,
        (Some(_), None) => Some(a.clone()),
        (None, Some(_)) => Some(b.clone()),
        // A constant difference is not zero here: `a != b`, and dims are canonical.
        (None, None) => (a.clone() - b.clone()).as_const().is_none().then(|| a.clone()),
    }
}

/// [`unify`] axis by axis; `None` if ranks differ or some pair is provably different.
#[must_use]
pub fn unify_shapes(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    if a.len() != b.len() {
        return None;
    }
    a.iter().zip(b).map(|(x, y)| unify(x, y)).collect()
}

/// One axis of numpy broadcasting: a constant 1 gives way, everything else must [`unify`].
#[must_use]
pub fn broadcast_dims(a: &Dim, b: &Dim) -> Option<Dim> {
    if a.is_one() {
        Some(b.clone())
    } else if b.is_one() {
        Some(a.clone())
    } else {
        unify(a, b)
    }
}

/// numpy broadcasting of two shapes, aligned at their last axes.
#[must_use]
pub fn broadcast_shapes(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let lead = long.len() - short.len();
    let mut shape = long.to_vec();
    for (axis, dim) in short.iter().enumerate() {
        let (x, y) = if a.len() >= b.len() { (&long[lead + axis], dim) } else { (dim, &long[lead + axis]) };
        shape[lead + axis] = broadcast_dims(x, y)?;
    }
    Some(shape)
}

/// Whether two types may be the same at run time: equal dtype and [`unify`]-able shapes.
#[must_use]
pub fn compatible(a: &TensorType, b: &TensorType) -> bool {
    a.dtype == b.dtype && unify_shapes(&a.shape, &b.shape).is_some()
}

/// A shape as messages print it.
fn show(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn is_negative(dim: &Dim) -> bool {
    dim.as_const().is_some_and(|c| c < 0)
}

/// The types that one application of an op sees, with the checks that rules are made of.
struct Call<'a> {
    op: &'static str,
    operands: &'a [&'a TensorType],
}

impl<'a> Call<'a> {
    fn error(&self, message: impl Into<String>) -> InferError {
        InferError { op: self.op, message: message.into() }
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, InferError> {
        Err(self.error(message))
    }

    fn one(&self, dtype: DType, shape: Vec<Dim>) -> Inferred {
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn leaf(&self, ty: TensorType) -> Inferred {
        let [] = self.exactly()?;
        Ok(vec![ty])
    }

    /// The operands, which must be `N`.
    fn exactly<const N: usize>(&self) -> Result<[&'a TensorType; N], InferError> {
        <[&TensorType; N]>::try_from(self.operands)
            .map_err(|_| self.error(format!("{} operands, expected {N}", self.operands.len())))
    }

    /// `N` operands and at most one more.
    fn with_optional<const N: usize>(&self) -> Result<([&'a TensorType; N], Option<&'a TensorType>), InferError> {
        let wrong = || self.error(format!("{} operands, expected {N} or {}", self.operands.len(), N + 1));
        let (first, rest) = self.operands.split_first_chunk::<N>().ok_or_else(wrong)?;
        if rest.len() > 1 {
            return Err(wrong());
        }
        Ok((*first, rest.first().copied()))
    }

    /// The dtype that all of `types` share.
    fn same_dtype(&self, types: &[&TensorType]) -> Result<(), InferError> {
        match types.iter().find(|t| t.dtype != types[0].dtype) {
            None => Ok(()),
            Some(other) => self.fail(format!("operands {} and {other} differ in dtype", types[0])),
        }
    }

    fn float(&self, x: &TensorType) -> Result<(), InferError> {
        if x.dtype.is_float() { Ok(()) } else { self.fail(format!("operand {x} is not of a float dtype")) }
    }

    fn numeric(&self, x: &TensorType) -> Result<(), InferError> {
        if x.dtype == DType::Bool { self.fail(format!("operand {x} is not of a number dtype")) } else { Ok(()) }
    }

    fn index_dtype(&self, indices: &TensorType) -> Result<(), InferError> {
        if matches!(indices.dtype, DType::I32 | DType::I64) {
            Ok(())
        } else {
            self.fail(format!("indices {indices} are neither i32 nor i64"))
        }
    }

    fn axis(&self, axis: usize, x: &TensorType) -> Result<(), InferError> {
        if axis < x.rank() {
            Ok(())
        } else {
            self.fail(format!("axis {axis} is out of range for {x} of rank {}", x.rank()))
        }
    }

    fn rank(&self, x: &TensorType, rank: usize, what: &str) -> Result<(), InferError> {
        if x.rank() == rank { Ok(()) } else { self.fail(format!("{what} {x} has rank {}, expected {rank}", x.rank())) }
    }

    /// Attributes with one entry per axis.
    fn per_axis(&self, len: usize, axes: usize, what: &str) -> Result<(), InferError> {
        if len == axes { Ok(()) } else { self.fail(format!("{what} has {len} entries, expected {axes}")) }
    }

    /// A size may be symbolic but not a negative constant.
    fn size(&self, dim: &Dim, what: &str) -> Result<(), InferError> {
        if is_negative(dim) { self.fail(format!("{what} is negative: {dim}")) } else { Ok(()) }
    }

    fn sizes(&self, dims: &[Dim], what: &str) -> Result<(), InferError> {
        if dims.iter().any(is_negative) {
            self.fail(format!("{what} {} has a negative entry", show(dims)))
        } else {
            Ok(())
        }
    }

    fn unify(&self, a: &Dim, b: &Dim, what: &str) -> Result<Dim, InferError> {
        unify(a, b).ok_or_else(|| self.error(format!("{what} differ: {a} and {b}")))
    }

    fn broadcast(&self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, InferError> {
        broadcast_shapes(a, b).ok_or_else(|| self.error(format!("shapes {} and {} do not broadcast", show(a), show(b))))
    }

    /// `from` must broadcast to `to` without enlarging it.
    fn broadcasts_to(&self, from: &[Dim], to: &[Dim], what: &str) -> Result<(), InferError> {
        let fits = from.len() <= to.len()
            && from.iter().rev().zip(to.iter().rev()).all(|(f, t)| f.is_one() || unify(f, t).is_some());
        if fits { Ok(()) } else { self.fail(format!("{what} {} does not broadcast to {}", show(from), show(to))) }
    }

    fn shape_is(&self, x: &TensorType, shape: &[Dim], what: &str) -> Result<(), InferError> {
        if unify_shapes(&x.shape, shape).is_some() {
            Ok(())
        } else {
            self.fail(format!("{what} {x} does not have shape {}", show(shape)))
        }
    }
}

fn fused_call(call: &Call<'_>, fused: &Fused) -> Inferred {
    let body = &fused.body;
    if call.operands.len() != body.inputs().len() {
        return call.fail(format!("{} operands, expected {} as the body", call.operands.len(), body.inputs().len()));
    }
    for (operand, input) in call.operands.iter().zip(body.inputs()) {
        let Some(expected) = body.node(*input).outputs.first() else {
            return call.fail(format!("body input '{}' has no type", body.input_name(*input)));
        };
        if !compatible(operand, expected) {
            let name = body.input_name(*input);
            return call.fail(format!("operand {operand} for body input '{name}' of type {expected}"));
        }
    }
    Ok(body.outputs().iter().map(|(_, value)| body.ty(*value).clone()).collect())
}
