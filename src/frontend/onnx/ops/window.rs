//! Pools, and the padding rules that they share with convolutions.

use forge_ir::{BinaryOp, Dim, Op, PoolKind, ReduceOp, UnaryOp, Value, Window};

use super::super::lower::{Call, Lowered, Refusal, bind_symbols};
use super::contract::{explicit_pads, per_axis};

/// ONNX `auto_pad`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AutoPad {
    /// `pads` counts.
    NotSet,
    Valid,
    /// `upper`: an odd pad goes to the end.
    Same {
        upper: bool,
    },
}

pub(super) fn auto_pad(call: &Call<'_, '_>) -> Result<AutoPad, Refusal> {
    match call.attributes.string_or("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" | "" => Ok(AutoPad::NotSet),
        "VALID" => Ok(AutoPad::Valid),
        "SAME_UPPER" => Ok(AutoPad::Same { upper: true }),
        "SAME_LOWER" => Ok(AutoPad::Same { upper: false }),
        other => Err(Refusal::invalid(format!("auto_pad '{other}' does not exist"))),
    }
}

/// Pads under which the result has `ceil(size / stride)` positions.
pub(super) fn same_pads(
    spatial: &[Dim],
    kernel: &[i64],
    strides: &[i64],
    dilations: &[i64],
    upper: bool,
) -> Result<(Vec<i64>, Vec<i64>), Refusal> {
    let (mut begin, mut end) = (Vec::new(), Vec::new());
    for (axis, size) in spatial.iter().enumerate() {
        let (kernel, stride, dilation) = (kernel[axis], strides[axis], dilations[axis]);
        if stride < 1 || kernel < 1 || dilation < 1 {
            return Err(Refusal::invalid(format!("kernel {kernel}, stride {stride}, dilation {dilation} on an axis")));
        }
        let reach = dilation.saturating_mul(kernel - 1).saturating_add(1);
        let total = match size.as_const() {
            Some(size) => {
                let positions = (size.max(1) - 1) / stride + 1;
                (positions - 1).saturating_mul(stride).saturating_add(reach).saturating_sub(size).max(0)
            }
            // At stride 1 the pad does not depend on the size.
            None if stride == 1 => reach - 1,
            None => {
                return Err(Refusal::unsupported(
                    format!("auto_pad with stride {stride} along the symbolic dim {size} has no fixed pads"),
                    format!("{}, or export with explicit pads", bind_symbols(&[size])),
                ));
            }
        };
        let low = if upper { total / 2 } else { total - total / 2 };
        begin.push(low);
        end.push(total - low);
    }
    Ok((begin, end))
}

/// `(sum of |x|^p over the window) ^ (1/p)`: padding adds 0 to the sum, so that an average that counts it, times the
/// window's size, is the sum.
pub(super) fn lp_pool(call: &mut Call<'_, '_>) -> Lowered {
    let p = call.attributes.int_or("p", 2)?;
    if p < 1 {
        return Err(Refusal::invalid(format!("p is {p}")));
    }
    let kernel = call.attributes.ints("kernel_shape")?.unwrap_or_default();
    let size: f64 = kernel.iter().map(|k| *k as f64).product();
    let x = call.input(0)?;
    let magnitude = call.unary(UnaryOp::Abs, x)?;
    let powers = call.with_scalar(BinaryOp::Pow, magnitude, p as f64)?;
    let mean = pooled(call, powers, PoolKind::Average, true)?;
    let sum = call.with_scalar(BinaryOp::Mul, mean, size)?;
    let y = call.with_scalar(BinaryOp::Pow, sum, 1.0 / p as f64)?;
    call.output(0, y)
}

pub(super) fn max_pool(call: &mut Call<'_, '_>) -> Lowered {
    // The order of indices, which are an output that we do not give.
    call.attributes.ignore(&["storage_order"]);
    call.only_first_output(&["Indices"])?;
    pool(call, PoolKind::Max, false)
}

pub(super) fn average_pool(call: &mut Call<'_, '_>) -> Lowered {
    let count_include_pad = call.attributes.flag("count_include_pad")?;
    pool(call, PoolKind::Average, count_include_pad)
}

fn pool(call: &mut Call<'_, '_>, kind: PoolKind, count_include_pad: bool) -> Lowered {
    let x = call.input(0)?;
    let y = pooled(call, x, kind, count_include_pad)?;
    call.output(0, y)
}

fn pooled(call: &mut Call<'_, '_>, x: Value, kind: PoolKind, count_include_pad: bool) -> Result<Value, Refusal> {
    let kernel = call.attributes.ints("kernel_shape")?.ok_or_else(|| Refusal::invalid("kernel_shape is missing"))?;
    let axes = kernel.len();
    let kernel = if kernel.is_empty() { kernel } else { per_axis(call, "kernel_shape", axes, 1)? };
    let strides = per_axis(call, "strides", axes, 1)?;
    let dilations = per_axis(call, "dilations", axes, 1)?;
    let ceil_mode = call.attributes.flag("ceil_mode")?;
    let explicit = explicit_pads(call, axes)?;
    let auto_pad = auto_pad(call)?;
    let shape = call.shape(x);
    if shape.len() != axes + 2 {
        return Err(Refusal::invalid(format!("{} does not pool with a kernel of {axes} axes", call.ty(x))));
    }
    let (pads_begin, pads_end) = match auto_pad {
        AutoPad::NotSet => explicit,
        AutoPad::Valid => (vec![0; axes], vec![0; axes]),
        AutoPad::Same { upper } => same_pads(&shape[2..], &kernel, &strides, &dilations, upper)?,
    };
    // auto_pad fixes the number of positions; ceil_mode speaks of explicit pads.
    let ceil_mode = ceil_mode && auto_pad == AutoPad::NotSet;
    let window = Window { strides, pads_begin, pads_end, dilations };
    call.emit(Op::Pool { kind, kernel, window, ceil_mode, count_include_pad }, &[x])
}

/// A reduction of every spatial axis to 1.
pub(super) fn global_pool(call: &mut Call<'_, '_>, op: ReduceOp) -> Lowered {
    let x = call.input(0)?;
    let rank = call.rank(x);
    if rank < 2 {
        return Err(Refusal::invalid(format!("its operand {} has no channels", call.ty(x))));
    }
    let axes: Vec<usize> = (2..rank).collect();
    let y = call.reduce(op, x, &axes, true)?;
    call.output(0, y)
}
