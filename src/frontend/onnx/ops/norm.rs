//! Normalisations.

use forge_ir::{BinaryOp, DType, Dim, Op, PoolKind, ReduceOp, Tensor, UnaryOp, Value, Window};

use super::super::lower::{Call, Lowered, Refusal, fixed, normalize_axis};

/// A parameter as the exact shape that the IR's norms take. ONNX lets it broadcast; `Err` gives it back where it varies
/// along axes before the normalised ones.
fn parameter(call: &mut Call<'_, '_>, value: Value, shape: &[Dim]) -> Result<Result<Value, Value>, Refusal> {
    let mut own = call.shape(value);
    while own.len() > shape.len() && own[0].is_one() {
        own.remove(0);
    }
    if own.len() > shape.len() {
        return Ok(Err(value));
    }
    let value = call.reshape(value, own)?;
    call.broadcast(value, shape.to_vec()).map(Ok)
}

fn ones(call: &mut Call<'_, '_>, shape: Vec<Dim>, dtype: DType) -> Result<Value, Refusal> {
    let one = call.scalar(1.0, dtype);
    call.broadcast(one, shape)
}

/// `y * scale + bias` for parameters that the norm itself did not take.
fn affine(call: &mut Call<'_, '_>, y: Value, scale: Option<Value>, bias: Option<Value>) -> Result<Value, Refusal> {
    let y = match scale {
        Some(scale) => call.binary(BinaryOp::Mul, y, scale)?,
        None => y,
    };
    match bias {
        Some(bias) => call.binary(BinaryOp::Add, y, bias),
        None => Ok(y),
    }
}

/// Statistics are taken in f32 or better whatever `stash_type` says: the IR never computes them in half precision.
pub(super) fn layer(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["stash_type"]);
    let epsilon = call.attributes.float_or("epsilon", 1e-5)?;
    let axis = call.attributes.int_or("axis", -1)?;
    let (x, scale, bias) = (call.input(0)?, call.input(1)?, call.optional(2)?);
    let shape = call.shape(x);
    let axis = normalize_axis(axis, shape.len())?;
    let y = layer_norm(call, x, scale, bias, axis, epsilon)?;
    call.output(0, y)?;
    if call.output_used(1) || call.output_used(2) {
        let wide = call.cast(x, call.dtype(x).compute_type())?;
        let axes: Vec<usize> = (axis..shape.len()).collect();
        let mean = call.reduce(ReduceOp::Mean, wide, &axes, true)?;
        let centred = call.binary(BinaryOp::Sub, wide, mean)?;
        let square = call.binary(BinaryOp::Mul, centred, centred)?;
        let variance = call.reduce(ReduceOp::Mean, square, &axes, true)?;
        let shifted = call.with_scalar(BinaryOp::Add, variance, epsilon)?;
        let inverse = call.unary(UnaryOp::Rsqrt, shifted)?;
        call.output(1, mean)?;
        call.output(2, inverse)?;
    }
    Ok(())
}

pub(super) fn layer_norm(
    call: &mut Call<'_, '_>,
    x: Value,
    scale: Value,
    bias: Option<Value>,
    axis: usize,
    epsilon: f64,
) -> Result<Value, Refusal> {
    let normalised = call.shape(x)[axis..].to_vec();
    let scale = parameter(call, scale, &normalised)?;
    let bias = match bias {
        Some(bias) => Some(parameter(call, bias, &normalised)?),
        None => None,
    };
    let op = Op::LayerNorm { axis, epsilon };
    match (scale, bias) {
        (Ok(scale), None) => call.emit(op, &[x, scale]),
        (Ok(scale), Some(Ok(bias))) => call.emit(op, &[x, scale, bias]),
        (Ok(scale), Some(Err(bias))) => {
            let y = call.emit(op, &[x, scale])?;
            affine(call, y, None, Some(bias))
        }
        (Err(scale), bias) => {
            let unit = ones(call, normalised, call.dtype(x))?;
            let y = call.emit(op, &[x, unit])?;
            affine(call, y, Some(scale), bias.map(|b| b.unwrap_or_else(|b| b)))
        }
    }
}

/// RMSNormalization, and ONNX Runtime's SimplifiedLayerNormalization, which it standardised.
pub(super) fn rms(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["stash_type"]);
    call.only_first_output(&["inv_std_var"])?;
    let epsilon = call.attributes.float_or("epsilon", 1e-5)?;
    let axis = call.attributes.int_or("axis", -1)?;
    let (x, scale) = (call.input(0)?, call.input(1)?);
    let axis = normalize_axis(axis, call.rank(x))?;
    let y = rms_norm(call, x, scale, axis, epsilon)?;
    call.output(0, y)
}

pub(super) fn rms_norm(
    call: &mut Call<'_, '_>,
    x: Value,
    scale: Value,
    axis: usize,
    epsilon: f64,
) -> Result<Value, Refusal> {
    let normalised = call.shape(x)[axis..].to_vec();
    let op = Op::RmsNorm { axis, epsilon };
    match parameter(call, scale, &normalised)? {
        Ok(scale) => call.emit(op, &[x, scale]),
        Err(scale) => {
            let unit = ones(call, normalised, call.dtype(x))?;
            let y = call.emit(op, &[x, unit])?;
            affine(call, y, Some(scale), None)
        }
    }
}

/// Scale and bias are one per group at opset 18, one per channel since 21.
pub(super) fn group(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["stash_type"]);
    let epsilon = call.attributes.float_or("epsilon", 1e-5)?;
    let groups =
        call.attributes.int("num_groups")?.ok_or_else(|| Refusal::invalid("attribute 'num_groups' is missing"))?;
    let (x, mut scale, mut bias) = (call.input(0)?, call.input(1)?, call.input(2)?);
    if call.version < 21 {
        let channels = call.shape(x).get(1).cloned().ok_or_else(|| Refusal::invalid("its operand has no channels"))?;
        let within = channels.floor_div(&Dim::from(groups.max(1)));
        for parameter in [&mut scale, &mut bias] {
            let column = call.reshape(*parameter, vec![Dim::from(groups), Dim::from(1)])?;
            let spread = call.broadcast(column, vec![Dim::from(groups), within.clone()])?;
            *parameter = call.reshape(spread, vec![channels.clone()])?;
        }
    }
    let y = call.emit(Op::GroupNorm { groups, epsilon }, &[x, scale, bias])?;
    call.output(0, y)
}

/// Group normalisation with one channel a group.
pub(super) fn instance(call: &mut Call<'_, '_>) -> Lowered {
    let epsilon = call.attributes.float_or("epsilon", 1e-5)?;
    let (x, scale, bias) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let channels = call.shape(x).get(1).cloned().unwrap_or(Dim::from(1));
    let channels = match call.shape(scale).as_slice() {
        [one] if one.as_const().is_some() => one.clone(),
        _ => channels,
    };
    let groups = fixed(&channels, "the number of channels")?;
    let y = call.emit(Op::GroupNorm { groups, epsilon }, &[x, scale, bias])?;
    call.output(0, y)
}

pub(super) fn batch(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["momentum"]);
    let epsilon = call.attributes.float_or("epsilon", 1e-5)?;
    if call.attributes.flag("training_mode")? {
        return Err(Refusal::unsupported(
            "it is in training mode",
            "export the model in inference mode: call model.eval() first",
        ));
    }
    if call.version < 9 && call.attributes.int_or("spatial", 1)? == 0 {
        return Err(Refusal::unsupported("spatial=0 is not supported", "convert the model to opset 9 or later"));
    }
    call.only_first_output(&["mean", "var", "saved_mean", "saved_var"])?;
    let x = call.input(0)?;
    let dtype = call.dtype(x);
    let mut operands = vec![x];
    for index in 1..5 {
        // Since opset 14 the statistics may be of another float dtype than the operand.
        let parameter = call.input(index)?;
        operands.push(call.cast(parameter, dtype)?);
    }
    let y = call.emit(Op::BatchNorm { epsilon }, &operands)?;
    call.output(0, y)
}

/// `x / (bias + alpha / size * sum of x^2 over a window of `size` channels) ^ beta`, the window's sum as an average
/// pool over the channel axis.
pub(super) fn local_response(call: &mut Call<'_, '_>) -> Lowered {
    let alpha = call.attributes.float_or("alpha", 1e-4)?;
    let beta = call.attributes.float_or("beta", 0.75)?;
    let bias = call.attributes.float_or("bias", 1.0)?;
    let size = call.attributes.int("size")?.ok_or_else(|| Refusal::invalid("attribute 'size' is missing"))?;
    if !(1..=1 << 16).contains(&size) {
        return Err(Refusal::invalid(format!("its size is {size}")));
    }
    let x = call.input(0)?;
    let shape = call.shape(x);
    let [batch, channels, spatial @ ..] = shape.as_slice() else {
        return Err(Refusal::invalid(format!("its operand has {} axes, it needs 2", shape.len())));
    };
    let square = call.binary(BinaryOp::Mul, x, x)?;
    let rows = vec![batch.clone(), Dim::from(1), channels.clone(), Dim::product(spatial)];
    let rows = call.reshape(square, rows)?;
    let window = Window {
        strides: vec![1, 1],
        pads_begin: vec![(size - 1) / 2, 0],
        pads_end: vec![size - 1 - (size - 1) / 2, 0],
        dilations: vec![1, 1],
    };
    let pool =
        Op::Pool { kind: PoolKind::Average, kernel: vec![size, 1], window, ceil_mode: false, count_include_pad: true };
    let mean = call.emit(pool, &[rows])?;
    let mean = call.reshape(mean, shape.clone())?;
    let scaled = call.with_scalar(BinaryOp::Mul, mean, alpha)?;
    let shifted = call.with_scalar(BinaryOp::Add, scaled, bias)?;
    let divisor = call.with_scalar(BinaryOp::Pow, shifted, beta)?;
    let y = call.binary(BinaryOp::Div, x, divisor)?;
    call.output(0, y)
}

/// `x / norm_p(x)` along one axis; a zero norm gives 0.
pub(super) fn lp(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", -1)?;
    let p = call.attributes.int_or("p", 2)?;
    let x = call.input(0)?;
    let axis = normalize_axis(axis, call.rank(x))?;
    let norm = match p {
        1 => {
            let magnitude = call.unary(UnaryOp::Abs, x)?;
            call.reduce(ReduceOp::Sum, magnitude, &[axis], true)?
        }
        2 => {
            let square = call.binary(BinaryOp::Mul, x, x)?;
            let sum = call.reduce(ReduceOp::Sum, square, &[axis], true)?;
            call.unary(UnaryOp::Sqrt, sum)?
        }
        _ => return Err(Refusal::invalid(format!("p is {p}, it can be 1 or 2"))),
    };
    let zero = call.compare_scalar(forge_ir::CompareOp::Eq, norm, 0.0)?;
    let one = call.scalar(1.0, call.dtype(x));
    let divisor = call.select(zero, one, norm)?;
    let y = call.binary(BinaryOp::Div, x, divisor)?;
    call.output(0, y)
}

/// `(x - mean) / (std + 1e-9)` over `axes`.
pub(super) fn mean_variance(call: &mut Call<'_, '_>) -> Lowered {
    let axes = call.attributes.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let x = call.input(0)?;
    let axes = super::super::lower::normalize_axes(&axes, call.rank(x))?;
    let mean = call.reduce(ReduceOp::Mean, x, &axes, true)?;
    let centred = call.binary(BinaryOp::Sub, x, mean)?;
    let square = call.binary(BinaryOp::Mul, centred, centred)?;
    let variance = call.reduce(ReduceOp::Mean, square, &axes, true)?;
    let deviation = call.unary(UnaryOp::Sqrt, variance)?;
    let epsilon = call.tensor(Tensor::from_f64(call.dtype(x), &[], &[1e-9]));
    let divisor = call.binary(BinaryOp::Add, deviation, epsilon)?;
    let y = call.binary(BinaryOp::Div, centred, divisor)?;
    call.output(0, y)
}
