//! Gathers, scatters, top-k, one-hot and triangles.

use forge_ir::{BinaryOp, CompareOp, DType, Dim, Op, ScatterReduce, Tensor, Value};

use super::super::lower::{Call, Lowered, Refusal, normalize_axis};

/// Index operands are i32 or i64 in ONNX; narrower ones (OneHot allows any) are widened.
fn as_index(call: &mut Call<'_, '_>, value: Value) -> Result<Value, Refusal> {
    match call.dtype(value) {
        DType::I32 | DType::I64 => Ok(value),
        _ => call.cast(value, DType::I64),
    }
}

pub(super) fn gather(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", 0)?;
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let axis = normalize_axis(axis, call.rank(x))?;
    let y = call.emit(Op::Gather { axis }, &[x, indices])?;
    call.output(0, y)
}

pub(super) fn gather_elements(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", 0)?;
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let axis = normalize_axis(axis, call.rank(x))?;
    let y = call.emit(Op::GatherElements { axis }, &[x, indices])?;
    call.output(0, y)
}

pub(super) fn gather_nd(call: &mut Call<'_, '_>) -> Lowered {
    let batch_dims = call.attributes.int_or("batch_dims", 0)?;
    let batch_dims =
        usize::try_from(batch_dims).map_err(|_| Refusal::invalid(format!("batch_dims is {batch_dims}")))?;
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let y = call.emit(Op::GatherNd { batch_dims }, &[x, indices])?;
    call.output(0, y)
}

fn reduction(call: &Call<'_, '_>) -> Result<ScatterReduce, Refusal> {
    let name = call.attributes.string_or("reduction", "none")?;
    ScatterReduce::from_name(&name).ok_or_else(|| Refusal::invalid(format!("reduction '{name}' does not exist")))
}

pub(super) fn scatter_elements(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", 0)?;
    let reduce = reduction(call)?;
    let (x, indices, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let axis = normalize_axis(axis, call.rank(x))?;
    let y = call.emit(Op::ScatterElements { axis, reduce }, &[x, indices, updates])?;
    call.output(0, y)
}

pub(super) fn scatter_nd(call: &mut Call<'_, '_>) -> Lowered {
    let reduce = reduction(call)?;
    let (x, indices, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let y = call.emit(Op::ScatterNd { reduce }, &[x, indices, updates])?;
    call.output(0, y)
}

/// `k` is an attribute until opset 9; smallest-first exists since 11.
pub(super) fn top_k(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", -1)?;
    let largest = call.attributes.int_or("largest", 1)? != 0;
    // Any order is allowed when it is 0, sorted order included.
    call.attributes.ignore(&["sorted"]);
    let k = if call.version < 10 {
        Dim::from(call.attributes.int("k")?.ok_or_else(|| Refusal::invalid("attribute 'k' is missing"))?)
    } else {
        match call.dims(1, "k")?.as_slice() {
            [k] => k.clone(),
            more => return Err(Refusal::invalid(format!("k should be one number, but has {} elements", more.len()))),
        }
    };
    let x = call.input(0)?;
    let axis = normalize_axis(axis, call.rank(x))?;
    let results = call.emit_many(Op::TopK { axis, k, largest }, &[x])?;
    for (index, value) in results.into_iter().enumerate() {
        call.output(index, value)?;
    }
    Ok(())
}

/// `select(indices == [0..depth), on, off)`, with negative indices counted from `depth`.
pub(super) fn one_hot(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", -1)?;
    let depth = match call.known(1).and_then(|k| k.cast(DType::I64)).and_then(|k| k.dims()).as_deref() {
        Some([depth]) => depth.clone(),
        Some(_) => return Err(Refusal::invalid("the depth should be one number")),
        None => return Err(Refusal::data_dependent("the depth")),
    };
    let (indices, values) = (call.input(0)?, call.input(2)?);
    let indices = as_index(call, indices)?;
    let rank = call.rank(indices);
    let axis = normalize_axis(axis, rank + 1)?;
    let dtype = call.dtype(indices);

    let mut apart = call.shape(indices);
    apart.insert(axis, Dim::from(1));
    let indices = call.reshape(indices, apart)?;
    let negative = call.compare_scalar(CompareOp::Lt, indices, 0.0)?;
    let depth_value = call.emit(Op::DimValue { dim: depth.clone() }, &[])?;
    let depth_value = call.cast(depth_value, dtype)?;
    let wrapped = call.binary(BinaryOp::Add, indices, depth_value)?;
    let indices = call.select(negative, wrapped, indices)?;

    let classes = call.emit(Op::Iota { len: depth.clone(), dtype }, &[])?;
    let mut along = vec![Dim::from(1); rank + 1];
    along[axis] = depth;
    let classes = call.reshape(classes, along)?;
    let hot = call.compare(CompareOp::Eq, indices, classes)?;
    let off = call.slice_axis(values, 0, Dim::from(0), Dim::from(1))?;
    let off = call.reshape(off, Vec::new())?;
    let on = call.slice_axis(values, 0, Dim::from(1), Dim::from(1))?;
    let on = call.reshape(on, Vec::new())?;
    let y = call.select(hot, on, off)?;
    call.output(0, y)
}

/// Keeps the elements on one side of a diagonal of the last two axes.
pub(super) fn trilu(call: &mut Call<'_, '_>) -> Lowered {
    let upper = call.attributes.int_or("upper", 1)? != 0;
    let k = if call.has_input(1) { call.dims(1, "the diagonal")? } else { vec![Dim::from(0)] };
    let [k] = k.as_slice() else { return Err(Refusal::invalid("the diagonal should be one number")) };
    let x = call.input(0)?;
    let shape = call.shape(x);
    let [.., rows, columns] = shape.as_slice() else {
        return Err(Refusal::invalid(format!("its operand has {} axes, it needs 2", shape.len())));
    };
    // column - row >= k above the diagonal, <= k below.
    let row = call.emit(Op::Iota { len: rows.clone(), dtype: DType::I64 }, &[])?;
    let row = call.reshape(row, vec![rows.clone(), Dim::from(1)])?;
    let column = call.emit(Op::Iota { len: columns.clone(), dtype: DType::I64 }, &[])?;
    let k = call.emit(Op::DimValue { dim: k.clone() }, &[])?;
    let diagonal = call.binary(BinaryOp::Add, row, k)?;
    let kept = call.compare(if upper { CompareOp::Ge } else { CompareOp::Le }, column, diagonal)?;
    let dtype = call.dtype(x);
    let zero = call.scalar(0.0, dtype);
    let y = call.select(kept, x, zero)?;
    call.output(0, y)
}

/// The positions of the elements that are not 0, one row an axis; of a constant, since their number is a shape.
pub(super) fn non_zero(call: &mut Call<'_, '_>) -> Lowered {
    let tensor = call.constant(0)?.ok_or_else(|| Refusal::data_dependent("the number of its results"))?;
    let shape = tensor.shape().to_vec();
    let hits: Vec<usize> = tensor.to_f64().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(at, _)| at).collect();
    let mut positions = Vec::with_capacity(hits.len() * shape.len());
    for axis in 0..shape.len() {
        let inner: usize = shape[axis + 1..].iter().product();
        positions.extend(hits.iter().map(|flat| (flat / inner % shape[axis]) as i64));
    }
    call.output_tensor(0, Tensor::from_slice(&[shape.len(), hits.len()], &positions))
}
