//! Operators that move elements without computing on them.

use forge_ir::{DType, Dim, Value};

use super::super::lower::{Call, Lowered, Refusal, normalize_axes, normalize_axis};

pub(super) fn identity(call: &mut Call<'_, '_>) -> Lowered {
    let id = call.entry_id(0)?;
    call.output_alias(0, id)
}

/// The identity, unless the node asks for training.
pub(super) fn dropout(call: &mut Call<'_, '_>) -> Lowered {
    call.attributes.ignore(&["ratio", "seed", "is_test"]);
    if call.version >= 12 && call.has_input(2) {
        let training = call.constant(2)?.ok_or_else(|| Refusal::data_dependent("the training mode"))?;
        if training.to_f64().iter().any(|t| *t != 0.0) {
            return Err(Refusal::unsupported(
                "it is in training mode",
                "export the model in inference mode: call model.eval() first",
            ));
        }
    }
    if call.output_used(1) {
        if call.version < 10 {
            return call.only_first_output(&["mask"]);
        }
        let shape = call.input_type(0)?.shape;
        let kept = call.scalar(1.0, DType::Bool);
        let mask = call.broadcast(kept, shape)?;
        call.output(1, mask)?;
    }
    identity(call)
}

pub(super) fn transpose(call: &mut Call<'_, '_>) -> Lowered {
    let perm = call.attributes.ints("perm")?;
    let x = call.input(0)?;
    let rank = call.rank(x);
    let perm = match perm {
        Some(perm) => perm.iter().map(|p| normalize_axis(*p, rank)).collect::<Result<Vec<usize>, Refusal>>()?,
        None => (0..rank).rev().collect(),
    };
    let y = call.transpose(x, perm)?;
    call.output(0, y)
}

pub(super) fn reshape(call: &mut Call<'_, '_>) -> Lowered {
    let allow_zero = call.attributes.flag("allowzero")?;
    let target = call.dims(1, "its target shape")?;
    let x = call.input(0)?;
    let shape = reshape_target(&call.shape(x), &target, allow_zero)?;
    let y = call.reshape(x, shape)?;
    call.output(0, y)
}

/// ONNX's target: 0 copies a dim (unless `allow_zero`), one -1 is whatever is left.
pub(super) fn reshape_target(shape: &[Dim], target: &[Dim], allow_zero: bool) -> Result<Vec<Dim>, Refusal> {
    let mut out: Vec<Dim> = Vec::with_capacity(target.len());
    let mut inferred = None;
    for (axis, dim) in target.iter().enumerate() {
        match dim.as_const() {
            Some(0) if !allow_zero => out.push(shape.get(axis).cloned().ok_or_else(|| {
                Refusal::invalid(format!("target dim {axis} copies an axis that the operand does not have"))
            })?),
            Some(-1) if inferred.is_some() => return Err(Refusal::invalid("its target shape has two -1")),
            Some(-1) => {
                inferred = Some(axis);
                out.push(Dim::from(1));
            }
            Some(n) if n < -1 => return Err(Refusal::invalid(format!("its target shape has the dim {n}"))),
            _ => out.push(dim.clone()),
        }
    }
    if let Some(axis) = inferred {
        let rest = Dim::product(out.iter());
        if rest.as_const() == Some(0) {
            return Err(Refusal::invalid("its target shape has a -1 beside a 0, which leaves it undefined"));
        }
        out[axis] = quotient(shape, &out);
    }
    Ok(out)
}

/// `product(whole) / product(parts)`: factors that both have are cancelled one by one, so that a sum such as
/// `past + seq` cancels too.
fn quotient(whole: &[Dim], parts: &[Dim]) -> Dim {
    let mut numerator: Vec<Dim> = whole.to_vec();
    let mut denominator: Vec<Dim> = Vec::new();
    for part in parts {
        match numerator.iter().position(|d| d == part && d.as_const().is_none()) {
            Some(at) => {
                numerator.remove(at);
            }
            None => denominator.push(part.clone()),
        }
    }
    Dim::product(&numerator).floor_div(&Dim::product(&denominator))
}

pub(super) fn flatten(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", 1)?;
    let x = call.input(0)?;
    let shape = call.shape(x);
    let rank = shape.len();
    let axis = if usize::try_from(axis).is_ok_and(|a| a == rank) { rank } else { normalize_axis(axis, rank)? };
    let y = call.reshape(x, vec![Dim::product(&shape[..axis]), Dim::product(&shape[axis..])])?;
    call.output(0, y)
}

pub(super) fn expand(call: &mut Call<'_, '_>) -> Lowered {
    let target = call.dims(1, "its target shape")?;
    let x = call.input(0)?;
    let shape = forge_ir::infer::broadcast_shapes(&target, &call.shape(x)).ok_or_else(|| {
        let list: Vec<String> = target.iter().map(Dim::to_string).collect();
        Refusal::invalid(format!("{} does not broadcast with [{}]", call.ty(x), list.join(", ")))
    })?;
    let y = call.broadcast(x, shape)?;
    call.output(0, y)
}

/// Shape after dropping `axes`, or every dim that is 1.
pub(super) fn squeezed(shape: &[Dim], axes: Option<&[i64]>) -> Result<Vec<Dim>, Refusal> {
    let dropped = match axes {
        Some(axes) => normalize_axes(axes, shape.len())?,
        None => (0..shape.len()).filter(|axis| shape[*axis].is_one()).collect(),
    };
    if let Some(axis) = dropped.iter().find(|axis| shape[**axis].as_const().is_some_and(|d| d != 1)) {
        return Err(Refusal::invalid(format!("axis {axis} is squeezed, but its size is {}", shape[*axis])));
    }
    Ok(shape.iter().enumerate().filter(|(axis, _)| !dropped.contains(axis)).map(|(_, d)| d.clone()).collect())
}

/// Shape with a 1 put in at each of `axes`, which count in the result.
pub(super) fn unsqueezed(shape: &[Dim], axes: &[i64]) -> Result<Vec<Dim>, Refusal> {
    let axes = normalize_axes(axes, shape.len() + axes.len())?;
    let mut out = shape.to_vec();
    for axis in axes {
        out.insert(axis, Dim::from(1));
    }
    Ok(out)
}

pub(super) fn squeeze(call: &mut Call<'_, '_>) -> Lowered {
    let axes = call.axes(13)?;
    let x = call.input(0)?;
    let shape = squeezed(&call.shape(x), axes.as_deref())?;
    let y = call.reshape(x, shape)?;
    call.output(0, y)
}

pub(super) fn unsqueeze(call: &mut Call<'_, '_>) -> Lowered {
    let axes = call.axes(13)?.ok_or_else(|| Refusal::invalid("the axes are missing"))?;
    let x = call.input(0)?;
    let shape = unsqueezed(&call.shape(x), &axes)?;
    let y = call.reshape(x, shape)?;
    call.output(0, y)
}

pub(super) fn concat(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int("axis")?.ok_or_else(|| Refusal::invalid("attribute 'axis' is missing"))?;
    let parts = call.all_inputs()?;
    let axis = normalize_axis(axis, call.rank(parts[0]))?;
    let y = call.concat(&parts, axis)?;
    call.output(0, y)
}

/// Sizes of the parts of an axis: given, or as equal as they come.
pub(super) fn split_sizes(call: &mut Call<'_, '_>, dim: &Dim) -> Result<Vec<Dim>, Refusal> {
    let given = if call.version < 13 {
        call.attributes.ints("split")?.map(|sizes| sizes.into_iter().map(Dim::from).collect())
    } else if call.has_input(1) {
        Some(call.dims(1, "the list of sizes")?)
    } else {
        None
    };
    let count = call.node.output.len();
    let stated = call.attributes.int("num_outputs")?;
    let sizes: Vec<Dim> = match given {
        Some(sizes) => sizes,
        None => {
            if count == 0 || stated.is_some_and(|n| usize::try_from(n).ok() != Some(count)) {
                return Err(Refusal::invalid(format!("num_outputs does not match its {count} outputs")));
            }
            // Since opset 18 the last part may be smaller; before, the parts are equal.
            let part = dim.ceil_div(&Dim::from(count));
            let last = dim.clone() - part.clone() * Dim::from(count - 1);
            if call.version < 18 && last != part && dim.as_const().is_some() {
                return Err(Refusal::invalid(format!("an axis of {dim} does not split into {count} equal parts")));
            }
            let mut sizes = vec![part; count];
            sizes[count - 1] = last;
            sizes
        }
    };
    if sizes.len() != count {
        return Err(Refusal::invalid(format!("it has {count} outputs, but {} sizes", sizes.len())));
    }
    let total = sizes.iter().fold(Dim::from(0), |acc, s| acc + s.clone());
    if forge_ir::infer::unify(&total, dim).is_none() {
        return Err(Refusal::invalid(format!("its sizes add up to {total}, but the axis has {dim}")));
    }
    Ok(sizes)
}

pub(super) fn split(call: &mut Call<'_, '_>) -> Lowered {
    let axis = call.attributes.int_or("axis", 0)?;
    let x = call.input(0)?;
    let axis = normalize_axis(axis, call.rank(x))?;
    let dim = call.shape(x)[axis].clone();
    let sizes = split_sizes(call, &dim)?;
    let mut start = Dim::from(0);
    for (index, size) in sizes.into_iter().enumerate() {
        if call.output_used(index) {
            let part = call.slice_axis(x, axis, start.clone(), size.clone())?;
            call.output(index, part)?;
        }
        start = start + size;
    }
    Ok(())
}

pub(super) fn tile(call: &mut Call<'_, '_>) -> Lowered {
    let repeats = call.dims(1, "the repeats")?;
    let x = call.input(0)?;
    let y = tiled(call, x, &repeats)?;
    call.output(0, y)
}

/// Repeats each axis: `[d0, d1] -> [1, d0, 1, d1] -> [r0, d0, r1, d1] -> [r0*d0, r1*d1]`.
fn tiled(call: &mut Call<'_, '_>, x: Value, repeats: &[Dim]) -> Result<Value, Refusal> {
    let shape = call.shape(x);
    if repeats.len() != shape.len() {
        return Err(Refusal::invalid(format!("it has {} repeats for {} axes", repeats.len(), shape.len())));
    }
    let (mut apart, mut repeated, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, repeat) in shape.iter().zip(repeats) {
        if !repeat.is_one() {
            apart.push(Dim::from(1));
            repeated.push(repeat.clone());
        }
        apart.push(dim.clone());
        repeated.push(dim.clone());
        joined.push(dim.clone() * repeat.clone());
    }
    let x = call.reshape(x, apart)?;
    let x = call.broadcast(x, repeated)?;
    call.reshape(x, joined)
}

fn block_size(call: &Call<'_, '_>) -> Result<i64, Refusal> {
    let size = call.attributes.int("blocksize")?.unwrap_or(0);
    if (1..=1 << 16).contains(&size) { Ok(size) } else { Err(Refusal::invalid(format!("blocksize is {size}"))) }
}

fn image(call: &Call<'_, '_>, x: Value) -> Result<[Dim; 4], Refusal> {
    <[Dim; 4]>::try_from(call.shape(x))
        .map_err(|s| Refusal::invalid(format!("its operand has {} axes, not 4", s.len())))
}

pub(super) fn depth_to_space(call: &mut Call<'_, '_>) -> Lowered {
    let block = Dim::from(block_size(call)?);
    let mode = call.attributes.string_or("mode", "DCR")?;
    let x = call.input(0)?;
    let [n, c, h, w] = image(call, x)?;
    let depth = c.floor_div(&(block.clone() * block.clone()));
    let (apart, perm) = match mode.as_str() {
        "DCR" => {
            (vec![n.clone(), block.clone(), block.clone(), depth.clone(), h.clone(), w.clone()], vec![0, 3, 4, 1, 5, 2])
        }
        "CRD" => {
            (vec![n.clone(), depth.clone(), block.clone(), block.clone(), h.clone(), w.clone()], vec![0, 1, 4, 2, 5, 3])
        }
        other => return Err(Refusal::invalid(format!("mode '{other}' is neither DCR nor CRD"))),
    };
    let x = call.reshape(x, apart)?;
    let x = call.transpose(x, perm)?;
    let y = call.reshape(x, vec![n, depth, h * block.clone(), w * block])?;
    call.output(0, y)
}

pub(super) fn space_to_depth(call: &mut Call<'_, '_>) -> Lowered {
    let block = Dim::from(block_size(call)?);
    let mode = call.attributes.string_or("mode", "DCR")?;
    let x = call.input(0)?;
    let [n, c, h, w] = image(call, x)?;
    let (rows, columns) = (h.floor_div(&block), w.floor_div(&block));
    let apart = vec![n.clone(), c.clone(), rows.clone(), block.clone(), columns.clone(), block.clone()];
    let perm = match mode.as_str() {
        "DCR" => vec![0, 3, 5, 1, 2, 4],
        "CRD" => vec![0, 1, 3, 5, 2, 4],
        other => return Err(Refusal::invalid(format!("mode '{other}' is neither DCR nor CRD"))),
    };
    let x = call.reshape(x, apart)?;
    let x = call.transpose(x, perm)?;
    let y = call.reshape(x, vec![n, c * block.clone() * block, rows, columns])?;
    call.output(0, y)
}
