//! Matrix products and convolutions.

use forge_ir::{BinaryOp, Dim, Op, Value, Window};

use super::super::lower::{Call, Lowered, Refusal, fixed};
use super::window::{AutoPad, auto_pad, same_pads};

/// numpy `matmul`: a vector operand is a row on the left, a column on the right, and its axis of 1 leaves the result.
pub(super) fn matmul(call: &mut Call<'_, '_>) -> Lowered {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let y = numpy_matmul(call, a, b)?;
    call.output(0, y)
}

pub(super) fn numpy_matmul(call: &mut Call<'_, '_>, a: Value, b: Value) -> Result<Value, Refusal> {
    let (a_shape, b_shape) = (call.shape(a), call.shape(b));
    if a_shape.is_empty() || b_shape.is_empty() {
        return Err(Refusal::invalid("an operand is a scalar"));
    }
    let a = if a_shape.len() == 1 { call.reshape(a, vec![Dim::from(1), a_shape[0].clone()])? } else { a };
    let b = if b_shape.len() == 1 { call.reshape(b, vec![b_shape[0].clone(), Dim::from(1)])? } else { b };
    let y = call.matmul(a, b)?;
    let mut shape = call.shape(y);
    let rows = shape.len() - 2;
    if b_shape.len() == 1 {
        shape.pop();
    }
    if a_shape.len() == 1 {
        shape.remove(rows);
    }
    call.reshape(y, shape)
}

/// `alpha * op(A) op(B) + beta * C`
pub(super) fn gemm(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.0)?;
    let beta = call.attributes.float_or("beta", 1.0)?;
    let trans_a = call.attributes.flag("transA")?;
    let trans_b = call.attributes.flag("transB")?;
    let (a, b) = (call.input(0)?, call.input(1)?);
    if call.rank(a) != 2 || call.rank(b) != 2 {
        return Err(Refusal::invalid(format!("its operands {} and {} are not matrices", call.ty(a), call.ty(b))));
    }
    let mut y = call.emit(Op::MatMul { trans_a, trans_b }, &[a, b])?;
    if alpha != 1.0 {
        y = call.with_scalar(BinaryOp::Mul, y, alpha)?;
    }
    if let Some(mut c) = call.optional(2)?.filter(|_| beta != 0.0) {
        if beta != 1.0 {
            c = call.with_scalar(BinaryOp::Mul, c, beta)?;
        }
        y = call.binary(BinaryOp::Add, y, c)?;
    }
    call.output(0, y)
}

/// Attributes that convolutions share.
struct Convolution {
    groups: i64,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    kernel: Vec<i64>,
    auto_pad: AutoPad,
}

fn convolution(call: &Call<'_, '_>, x: Value, weight: Value) -> Result<Convolution, Refusal> {
    let shape = call.shape(weight);
    if shape.len() < 3 || shape.len() != call.rank(x) {
        return Err(Refusal::invalid(format!("{} does not convolve with a weight {}", call.ty(x), call.ty(weight))));
    }
    let axes = shape.len() - 2;
    let kernel = shape[2..].iter().map(|d| fixed(d, "the kernel's size")).collect::<Result<Vec<i64>, Refusal>>()?;
    if let Some(stated) = call.attributes.ints("kernel_shape")?
        && stated != kernel
    {
        return Err(Refusal::invalid(format!("kernel_shape is {stated:?}, but the weight's is {kernel:?}")));
    }
    Ok(Convolution {
        groups: call.attributes.int_or("group", 1)?,
        strides: per_axis(call, "strides", axes, 1)?,
        dilations: per_axis(call, "dilations", axes, 1)?,
        kernel,
        auto_pad: auto_pad(call)?,
    })
}

/// An attribute with one entry per spatial axis.
pub(super) fn per_axis(call: &Call<'_, '_>, name: &str, axes: usize, default: i64) -> Result<Vec<i64>, Refusal> {
    let values = call.attributes.ints(name)?.unwrap_or_else(|| vec![default; axes]);
    if values.len() != axes {
        return Err(Refusal::invalid(format!("{name} {values:?} should have {axes} entries")));
    }
    if values.iter().any(|v| v.unsigned_abs() > 1 << 31) {
        return Err(Refusal::invalid(format!("{name} {values:?} is out of range")));
    }
    Ok(values)
}

/// `pads`: begins, then ends.
pub(super) fn explicit_pads(call: &Call<'_, '_>, axes: usize) -> Result<(Vec<i64>, Vec<i64>), Refusal> {
    let pads = per_axis(call, "pads", 2 * axes, 0)?;
    let (begin, end) = pads.split_at(axes);
    Ok((begin.to_vec(), end.to_vec()))
}

pub(super) fn conv(call: &mut Call<'_, '_>) -> Lowered {
    let (x, weight) = (call.input(0)?, call.input(1)?);
    let bias = call.optional(2)?;
    let y = convolved(call, x, weight, bias)?;
    call.output(0, y)
}

/// A convolution with the node's attributes.
pub(super) fn convolved(
    call: &mut Call<'_, '_>,
    x: Value,
    weight: Value,
    bias: Option<Value>,
) -> Result<Value, Refusal> {
    let attributes = convolution(call, x, weight)?;
    let axes = attributes.kernel.len();
    let explicit = explicit_pads(call, axes)?;
    let (pads_begin, pads_end) = match attributes.auto_pad {
        AutoPad::NotSet => explicit,
        AutoPad::Valid => (vec![0; axes], vec![0; axes]),
        AutoPad::Same { upper } => {
            let spatial = call.shape(x)[2..].to_vec();
            same_pads(&spatial, &attributes.kernel, &attributes.strides, &attributes.dilations, upper)?
        }
    };
    let window = Window { strides: attributes.strides, pads_begin, pads_end, dilations: attributes.dilations };
    let mut operands = vec![x, weight];
    operands.extend(bias);
    call.emit(Op::Conv { window, groups: attributes.groups }, &operands)
}

pub(super) fn conv_transpose(call: &mut Call<'_, '_>) -> Lowered {
    let (x, weight) = (call.input(0)?, call.input(1)?);
    let bias = call.optional(2)?;
    let attributes = convolution(call, x, weight)?;
    let axes = attributes.kernel.len();
    let output_padding = per_axis(call, "output_padding", axes, 0)?;
    let (mut pads_begin, mut pads_end) = explicit_pads(call, axes)?;
    let mut output_shape = call.attributes.ints("output_shape")?;
    if output_shape.as_ref().is_some_and(|s| s.len() == axes + 2) {
        output_shape = output_shape.map(|s| s[2..].to_vec());
    }
    let spatial = call.shape(x)[2..].to_vec();
    if output_shape.is_some() || matches!(attributes.auto_pad, AutoPad::Same { .. }) {
        for axis in 0..axes {
            let size = fixed(&spatial[axis], "a spatial size under output_shape or auto_pad")?;
            let stride = attributes.strides[axis];
            let wanted = match &output_shape {
                Some(shape) => *shape.get(axis).ok_or_else(|| Refusal::invalid("output_shape is too short"))?,
                None => size.saturating_mul(stride),
            };
            let reach = attributes.dilations[axis].saturating_mul(attributes.kernel[axis] - 1).saturating_add(1);
            let full = stride.saturating_mul(size - 1).saturating_add(output_padding[axis]).saturating_add(reach);
            let total = full.saturating_sub(wanted);
            if total < 0 {
                return Err(Refusal::unsupported(
                    format!("an output of {wanted} elements along axis {} is more than it computes", axis + 2),
                    "pad the result explicitly after the operator",
                ));
            }
            let upper = matches!(attributes.auto_pad, AutoPad::Same { upper: true });
            pads_begin[axis] = if upper { total / 2 } else { total - total / 2 };
            pads_end[axis] = total - pads_begin[axis];
        }
    } else if attributes.auto_pad == AutoPad::Valid {
        pads_begin.fill(0);
        pads_end.fill(0);
    }
    let window = Window { strides: attributes.strides, pads_begin, pads_end, dilations: attributes.dilations };
    let mut operands = vec![x, weight];
    operands.extend(bias);
    let y = call.emit(Op::ConvTranspose { window, groups: attributes.groups, output_padding }, &operands)?;
    call.output(0, y)
}
