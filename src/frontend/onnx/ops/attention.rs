//! Scaled dot-product attention and rotary embeddings (opset 23).

use forge_ir::{BinaryOp, CompareOp, DType, Dim, Op, UnaryOp, Value};

use super::super::lower::{Call, Lowered, Refusal, fixed};

/// `axis` of a 3-D operand `[B, L, H*D]` split into heads: `[B, H, L, D]`.
fn split_heads(call: &mut Call<'_, '_>, x: Value, heads: i64) -> Result<Value, Refusal> {
    let shape = call.shape(x);
    let [batch, length, hidden] = shape.as_slice() else {
        return Err(Refusal::invalid(format!("{} is mixed with 3-D operands", call.ty(x))));
    };
    if heads < 1 || hidden.as_const().is_some_and(|h| h % heads != 0) {
        return Err(Refusal::invalid(format!("{hidden} features do not split into {heads} heads")));
    }
    let depth = hidden.floor_div(&Dim::from(heads));
    let apart = call.reshape(x, vec![batch.clone(), length.clone(), Dim::from(heads), depth])?;
    call.transpose(apart, vec![0, 2, 1, 3])
}

/// `[B, H, L, D] -> [B, L, H*D]`
fn join_heads(call: &mut Call<'_, '_>, x: Value) -> Result<Value, Refusal> {
    let moved = call.transpose(x, vec![0, 2, 1, 3])?;
    let shape = call.shape(moved);
    call.reshape(moved, vec![shape[0].clone(), shape[1].clone(), shape[2].clone() * shape[3].clone()])
}

pub(super) fn attention(call: &mut Call<'_, '_>) -> Lowered {
    // The IR never does softmax in less than f32.
    call.attributes.ignore(&["softmax_precision", "qk_matmul_output_mode"]);
    let causal = call.attributes.flag("is_causal")?;
    let softcap = call.attributes.float_or("softcap", 0.0)?;
    let (q_heads, kv_heads) = (call.attributes.int("q_num_heads")?, call.attributes.int("kv_num_heads")?);
    let scale = call.attributes.float("scale")?;
    for side in ["left_window_size", "right_window_size"] {
        if call.attributes.int_or(side, -1)? != -1 {
            return Err(Refusal::unsupported(
                format!("{side} is not supported"),
                "give the window as a boolean attn_mask",
            ));
        }
    }
    if call.has_input(6) {
        return Err(Refusal::unsupported(
            "its input nonpad_kv_seqlen is not supported",
            "give the padding as a boolean attn_mask",
        ));
    }
    if call.output_used(3) {
        return Err(Refusal::unsupported(
            "its output qk_matmul_output is not supported",
            "export the model without attention weights as outputs",
        ));
    }
    let (mut q, mut k, mut v) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let mask = call.optional(3)?;
    let flat = call.rank(q) == 3;
    if flat {
        let heads = |count: Option<i64>, name| count.ok_or_else(|| Refusal::invalid(format!("{name} is missing")));
        q = split_heads(call, q, heads(q_heads, "q_num_heads")?)?;
        k = split_heads(call, k, heads(kv_heads, "kv_num_heads")?)?;
        v = split_heads(call, v, heads(kv_heads, "kv_num_heads")?)?;
    }
    for x in [q, k, v] {
        if call.rank(x) != 4 {
            return Err(Refusal::invalid(format!("operand {} has neither 3 nor 4 axes", call.ty(x))));
        }
    }
    let new_keys = call.shape(k)[2].clone();
    let mut past = Dim::from(0);
    if let (Some(past_key), Some(past_value)) = (call.optional(4)?, call.optional(5)?) {
        past = call.shape(past_key).get(2).cloned().unwrap_or(past);
        k = call.concat(&[past_key, k], 2)?;
        v = call.concat(&[past_value, v], 2)?;
    }
    call.output(1, k)?;
    call.output(2, v)?;

    let depth = fixed(&call.shape(q)[3].clone(), "the head size")?;
    let scale = scale.filter(|s| *s != 0.0).unwrap_or(1.0 / (depth as f64).sqrt());
    let queries = call.shape(q)[2].clone();
    let mut mask = match mask {
        Some(mask) => Some(fitted_mask(call, mask, q, k)?),
        None => None,
    };
    // Query i sees key j up to i + past: the top-left diagonal without a past, the bottom-right one where as many keys
    // as queries are new; anything between is a mask.
    let without_past = past.as_const() == Some(0);
    let between = causal && !without_past && new_keys != queries;
    if between || (causal && softcap != 0.0) {
        let admitted = causal_mask(call, q, k, &past)?;
        mask = Some(combined(call, mask, admitted, q)?);
    }
    let y = if softcap == 0.0 {
        let mut operands = vec![q, k, v];
        operands.extend(mask);
        let causal = causal && !between;
        let op = Op::Attention { scale, causal, causal_offset: causal && !without_past, masked_rows_zero: true };
        call.emit(op, &operands)?
    } else {
        capped(call, q, k, v, mask, scale, softcap)?
    };
    let y = if flat { join_heads(call, y)? } else { y };
    call.output(0, y)
}

/// The mask as bool or the operands' dtype, padded to the number of keys (allowed since opset 24).
fn fitted_mask(call: &mut Call<'_, '_>, mask: Value, q: Value, k: Value) -> Result<Value, Refusal> {
    let ty = call.ty(mask);
    let mask = if ty.dtype == DType::Bool { mask } else { call.cast(mask, call.dtype(q))? };
    let keys = call.shape(k)[2].clone();
    let Some(last) = ty.shape.last() else { return Err(Refusal::invalid("its mask is a scalar")) };
    let missing = keys - last.clone();
    match missing.as_const() {
        Some(count) if count > 0 && !last.is_one() && call.version >= 24 => {
            let excluded = if ty.dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
            let excluded = call.scalar(excluded, call.dtype(mask));
            let before = vec![Dim::from(0); ty.rank()];
            let mut after = before.clone();
            if let Some(end) = after.last_mut() {
                *end = Dim::from(count);
            }
            call.emit(Op::Pad { mode: forge_ir::PadMode::Constant, before, after }, &[mask, excluded])
        }
        _ => Ok(mask),
    }
}

/// `[L, S]`: key j is admitted for query i where `j <= i + past`.
fn causal_mask(call: &mut Call<'_, '_>, q: Value, k: Value, past: &Dim) -> Result<Value, Refusal> {
    let (queries, keys) = (call.shape(q)[2].clone(), call.shape(k)[2].clone());
    let row = call.emit(Op::Iota { len: queries.clone(), dtype: DType::I64 }, &[])?;
    let row = call.reshape(row, vec![queries, Dim::from(1)])?;
    let past = call.emit(Op::DimValue { dim: past.clone() }, &[])?;
    let last = call.binary(BinaryOp::Add, row, past)?;
    let column = call.emit(Op::Iota { len: keys, dtype: DType::I64 }, &[])?;
    call.compare(CompareOp::Le, column, last)
}

/// A mask that excludes what either excludes, of `mask`'s dtype.
fn combined(call: &mut Call<'_, '_>, mask: Option<Value>, admitted: Value, q: Value) -> Result<Value, Refusal> {
    match mask {
        None => Ok(admitted),
        Some(mask) if call.dtype(mask) == DType::Bool => call.binary(BinaryOp::And, mask, admitted),
        Some(mask) => {
            let excluded = call.scalar(f64::NEG_INFINITY, call.dtype(q));
            call.select(admitted, mask, excluded)
        }
    }
}

/// Attention with `softcap * tanh(scores / softcap)`, step by step in the compute type.
fn capped(
    call: &mut Call<'_, '_>,
    q: Value,
    k: Value,
    v: Value,
    mask: Option<Value>,
    scale: f64,
    softcap: f64,
) -> Result<Value, Refusal> {
    let dtype = call.dtype(q);
    let wide = dtype.compute_type();
    let (q, k, v) = (call.cast(q, wide)?, call.cast(k, wide)?, call.cast(v, wide)?);
    let k = repeated_heads(call, k, q)?;
    let v = repeated_heads(call, v, q)?;
    let scores = call.emit(Op::MatMul { trans_a: false, trans_b: true }, &[q, k])?;
    let scores = call.with_scalar(BinaryOp::Mul, scores, scale)?;
    let scores = call.with_scalar(BinaryOp::Div, scores, softcap)?;
    let scores = call.unary(UnaryOp::Tanh, scores)?;
    let mut scores = call.with_scalar(BinaryOp::Mul, scores, softcap)?;
    if let Some(mask) = mask {
        scores = if call.dtype(mask) == DType::Bool {
            let excluded = call.scalar(f64::NEG_INFINITY, wide);
            call.select(mask, scores, excluded)?
        } else {
            let mask = call.cast(mask, wide)?;
            call.binary(BinaryOp::Add, scores, mask)?
        };
    }
    let mut weights = call.emit(Op::Softmax { axis: 3 }, &[scores])?;
    if mask.is_some() {
        // A row without a key gives 0, not NaN.
        let max = call.reduce(forge_ir::ReduceOp::Max, scores, &[3], true)?;
        let empty = call.compare_scalar(CompareOp::Eq, max, f64::NEG_INFINITY)?;
        let zero = call.scalar(0.0, wide);
        weights = call.select(empty, zero, weights)?;
    }
    let y = call.matmul(weights, v)?;
    call.cast(y, dtype)
}

/// `[B, Hkv, S, D] -> [B, H, S, D]`: each head for `H / Hkv` query heads.
fn repeated_heads(call: &mut Call<'_, '_>, x: Value, q: Value) -> Result<Value, Refusal> {
    let (shape, heads) = (call.shape(x), call.shape(q)[1].clone());
    if shape[1] == heads {
        return Ok(x);
    }
    let (heads, own) = (fixed(&heads, "the number of heads")?, fixed(&shape[1], "the number of heads")?);
    if own < 1 || heads % own != 0 {
        return Err(Refusal::invalid(format!("{heads} query heads are not a multiple of {own} heads")));
    }
    let [batch, _, length, depth] = <[Dim; 4]>::try_from(shape).map_err(|_| Refusal::invalid("not 4-D"))?;
    let (own, times) = (Dim::from(own), Dim::from(heads / own));
    let apart = call.reshape(x, vec![batch.clone(), own.clone(), Dim::from(1), length.clone(), depth.clone()])?;
    let spread = call.broadcast(apart, vec![batch.clone(), own, times, length.clone(), depth.clone()])?;
    call.reshape(spread, vec![batch, Dim::from(heads), length, depth])
}

pub(super) fn rotary_embedding(call: &mut Call<'_, '_>) -> Lowered {
    let interleaved = call.attributes.flag("interleaved")?;
    let rotary_dim = call.attributes.int_or("rotary_embedding_dim", 0)?;
    let heads = call.attributes.int("num_heads")?;
    let (mut x, mut cos, mut sin) = (call.input(0)?, call.input(1)?, call.input(2)?);
    if let Some(positions) = call.optional(3)? {
        cos = call.emit(Op::Gather { axis: 0 }, &[cos, positions])?;
        sin = call.emit(Op::Gather { axis: 0 }, &[sin, positions])?;
    }
    let whole = call.shape(x);
    // Where the heads' axis stands in x, which the tables lack: [B, L, D/2].
    let head_axis = match whole.as_slice() {
        [_, _, _, _] => 1,
        [batch, length, hidden] => {
            let heads = heads.filter(|h| *h > 0).ok_or_else(|| Refusal::invalid("num_heads is missing"))?;
            let depth = hidden.floor_div(&Dim::from(heads));
            x = call.reshape(x, vec![batch.clone(), length.clone(), Dim::from(heads), depth])?;
            2
        }
        other => return Err(Refusal::invalid(format!("its operand has {} axes, not 3 or 4", other.len()))),
    };
    for table in [&mut cos, &mut sin] {
        let mut shape = call.shape(*table);
        if shape.len() != 3 {
            return Err(Refusal::invalid(format!("a cache has {} axes, not the 3 that it needs here", shape.len())));
        }
        shape.insert(head_axis, Dim::from(1));
        *table = call.reshape(*table, shape)?;
    }
    let depth = call.shape(x)[3].clone();
    let partial = rotary_dim > 0 && depth.as_const() != Some(rotary_dim);
    let y = if partial {
        let rotated = call.slice_axis(x, 3, Dim::from(0), Dim::from(rotary_dim))?;
        let kept = call.slice_axis(x, 3, Dim::from(rotary_dim), depth - Dim::from(rotary_dim))?;
        let rotated = call.emit(Op::Rotary { interleaved }, &[rotated, cos, sin])?;
        call.concat(&[rotated, kept], 3)?
    } else {
        call.emit(Op::Rotary { interleaved }, &[x, cos, sin])?
    };
    let y = call.reshape(y, whole)?;
    call.output(0, y)
}
