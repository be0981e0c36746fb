//! ONNX Runtime's own operators, as optimised files contain them.

use forge_ir::{BinaryOp, GeluApproximate, Op, Value};

use super::super::lower::{Call, Lowered, Refusal, normalize_axis};
use super::activation::swish_of;
use super::norm::{layer_norm, rms_norm};

pub(super) fn gelu(call: &mut Call<'_, '_>) -> Lowered {
    let x = call.input(0)?;
    let y = call.gelu(x, GeluApproximate::None)?;
    call.output(0, y)
}

pub(super) fn bias_gelu(call: &mut Call<'_, '_>) -> Lowered {
    let (x, bias) = (call.input(0)?, call.input(1)?);
    let sum = call.binary(BinaryOp::Add, x, bias)?;
    let y = call.gelu(sum, GeluApproximate::None)?;
    call.output(0, y)
}

pub(super) fn fast_gelu(call: &mut Call<'_, '_>) -> Lowered {
    let mut x = call.input(0)?;
    if let Some(bias) = call.optional(1)? {
        x = call.binary(BinaryOp::Add, x, bias)?;
    }
    let y = call.gelu(x, GeluApproximate::Tanh)?;
    call.output(0, y)
}

pub(super) fn quick_gelu(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.702)?;
    let x = call.input(0)?;
    let y = swish_of(call, x, alpha)?;
    call.output(0, y)
}

pub(super) fn fused_matmul(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1.0)?;
    let trans_a = call.attributes.flag("transA")?;
    let trans_b = call.attributes.flag("transB")?;
    if call.attributes.flag("transBatchA")? || call.attributes.flag("transBatchB")? {
        return Err(Refusal::unsupported(
            "transBatch is not supported",
            "export the model without ONNX Runtime's fusions",
        ));
    }
    let (a, b) = (call.input(0)?, call.input(1)?);
    let mut y = call.emit(Op::MatMul { trans_a, trans_b }, &[a, b])?;
    if alpha != 1.0 {
        y = call.with_scalar(BinaryOp::Mul, y, alpha)?;
    }
    call.output(0, y)
}

/// `input + skip (+ bias)`, which is also output 3.
fn skipped(call: &mut Call<'_, '_>, bias_input: usize) -> Result<Value, Refusal> {
    for (index, name) in [(1, "mean"), (2, "inv_std_var")] {
        if call.output_used(index) {
            return Err(Refusal::unsupported(
                format!("its output {index} ({name}) is used, which is not supported"),
                "export the model without ONNX Runtime's fusions",
            ));
        }
    }
    let (x, skip) = (call.input(0)?, call.input(1)?);
    let mut sum = call.binary(BinaryOp::Add, x, skip)?;
    if let Some(bias) = call.optional(bias_input)? {
        sum = call.binary(BinaryOp::Add, sum, bias)?;
    }
    call.output(3, sum)?;
    Ok(sum)
}

/// (input, skip, gamma, beta?, bias?)
pub(super) fn skip_layer_norm(call: &mut Call<'_, '_>) -> Lowered {
    let epsilon = call.attributes.float_or("epsilon", 1e-12)?;
    let sum = skipped(call, 4)?;
    let (gamma, beta) = (call.input(2)?, call.optional(3)?);
    let axis = normalize_axis(-1, call.rank(sum))?;
    let y = layer_norm(call, sum, gamma, beta, axis, epsilon)?;
    call.output(0, y)
}

/// (input, skip, gamma, bias?)
pub(super) fn skip_rms_norm(call: &mut Call<'_, '_>) -> Lowered {
    let epsilon = call.attributes.float_or("epsilon", 1e-12)?;
    let sum = skipped(call, 3)?;
    let gamma = call.input(2)?;
    let axis = normalize_axis(-1, call.rank(sum))?;
    let y = rms_norm(call, sum, gamma, axis, epsilon)?;
    call.output(0, y)
}
