//! Operators whose result is known symbolically when their operands are.

use forge_ir::{DType, Dim};

use super::super::lower::{Call, Refusal, normalize_axes, normalize_axis};
use super::super::proto::data_type;
use super::super::shapes::{Known, Pairwise, broadcast_shape};
use super::slice::{Range, ranges};
use super::view::{reshape_target, split_sizes, squeezed, unsqueezed};

/// Sets the outputs of a node from the symbolic elements of its inputs. `false`: not such a node, or not known; the
/// node is then lowered as any other.
pub(in super::super) fn track(call: &mut Call<'_, '_>) -> Result<bool, Refusal> {
    if !super::standard(&call.node.domain).is_empty() || call.node.output.is_empty() {
        return Ok(false);
    }
    // The operand that the result's elements come from; no use looking further without it.
    let Some(x) = call.known(if call.node.op_type == "Where" { 1 } else { 0 }) else { return Ok(false) };
    let op_type = call.node.op_type.clone();
    let result = match op_type.as_str() {
        "Gather" => gather(call, &x)?,
        "Slice" => slice(call, &x)?,
        "Concat" => concat(call, &x)?,
        "Split" => return split(call, &x),
        "Reshape" => reshape(call, &x)?,
        "Flatten" if call.attributes.int_or("axis", 1)? == 0 => x.reshaped(&[1, x.elements.len()]),
        "Squeeze" => {
            let axes = if call.version < 13 || call.known(1).is_some() || !call.has_input(1) {
                call.axes(13)?
            } else {
                return Ok(false);
            };
            constant_shape(&squeezed(&dims(&x), axes.as_deref())?).and_then(|shape| x.reshaped(&shape))
        }
        "Unsqueeze" => match call.version < 13 || call.known(1).is_some() {
            true => match call.axes(13)? {
                Some(axes) => constant_shape(&unsqueezed(&dims(&x), &axes)?).and_then(|shape| x.reshaped(&shape)),
                None => None,
            },
            false => None,
        },
        "Transpose" => {
            let rank = x.shape.len();
            let perm = match call.attributes.ints("perm")? {
                Some(perm) => perm.iter().map(|p| normalize_axis(*p, rank)).collect::<Result<Vec<usize>, Refusal>>()?,
                None => (0..rank).rev().collect(),
            };
            x.transposed(&perm)
        }
        "Expand" => call.known(1).and_then(|target| {
            let target: Option<Vec<usize>> = target.consts()?.iter().map(|d| usize::try_from(*d).ok()).collect();
            x.broadcast(&broadcast_shape(&target?, &x.shape)?)
        }),
        "Cast" => {
            let to = call.attributes.int("to")?.and_then(|n| data_type::to_dtype(i32::try_from(n).ok()?));
            to.and_then(|to| x.cast(to))
        }
        "Neg" => x.negated(),
        "Not" => x.inverted(),
        "Floor" => x.floor(),
        "Ceil" => x.ceil(),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduce(call, &x)?,
        "Where" => match (call.known(0), call.known(2)) {
            (Some(condition), Some(otherwise)) => Known::select(&condition, &x, &otherwise),
            _ => None,
        },
        name => match pairwise(name) {
            Some(op) if !(name == "Mod" && call.attributes.flag("fmod")?) => {
                let mut acc = Some(x);
                for index in 1..call.input_count() {
                    acc = match (acc, call.known(index)) {
                        (Some(acc), Some(next)) => acc.pairwise(&next, op),
                        _ => None,
                    };
                }
                acc
            }
            _ => None,
        },
    };
    match result {
        Some(known) => call.output_known(0, known).map(|()| true),
        None => Ok(false),
    }
}

fn pairwise(op_type: &str) -> Option<Pairwise> {
    Some(match op_type {
        "Add" | "Sum" => Pairwise::Add,
        "Sub" => Pairwise::Sub,
        "Mul" => Pairwise::Mul,
        "Div" => Pairwise::Div,
        "Mod" => Pairwise::Mod,
        "Min" => Pairwise::Min,
        "Max" => Pairwise::Max,
        "Equal" => Pairwise::Equal,
        "Less" => Pairwise::Less,
        "LessOrEqual" => Pairwise::LessOrEqual,
        "Greater" => Pairwise::Greater,
        "GreaterOrEqual" => Pairwise::GreaterOrEqual,
        "And" => Pairwise::And,
        "Or" => Pairwise::Or,
        _ => return None,
    })
}

fn dims(known: &Known) -> Vec<Dim> {
    known.shape.iter().map(|d| Dim::from(*d)).collect()
}

fn constant_shape(dims: &[Dim]) -> Option<Vec<usize>> {
    dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect()
}

fn gather(call: &mut Call<'_, '_>, x: &Known) -> Result<Option<Known>, Refusal> {
    let axis = normalize_axis(call.attributes.int_or("axis", 0)?, x.shape.len())?;
    Ok(call.known(1).and_then(|indices| x.gather(axis, &indices)))
}

fn constant_ranges(ranges: &[Range]) -> Option<Vec<(i64, i64, usize)>> {
    ranges.iter().map(|r| Some((r.start.as_const()?, r.step, usize::try_from(r.size.as_const()?).ok()?))).collect()
}

fn slice(call: &mut Call<'_, '_>, x: &Known) -> Result<Option<Known>, Refusal> {
    if call.version >= 10 {
        for index in 1..call.input_count() {
            let constant = call.known(index).is_some_and(|k| k.consts().is_some());
            if call.has_input(index) && !constant {
                return Ok(None);
            }
        }
    }
    let ranges = ranges(call, &dims(x))?;
    Ok(constant_ranges(&ranges).and_then(|ranges| x.sliced(&ranges)))
}

fn concat(call: &mut Call<'_, '_>, first: &Known) -> Result<Option<Known>, Refusal> {
    let Some(axis) = call.attributes.int("axis")? else { return Ok(None) };
    let axis = normalize_axis(axis, first.shape.len())?;
    let parts: Option<Vec<Known>> = (0..call.input_count()).map(|i| call.known(i)).collect();
    Ok(parts.and_then(|parts| Known::concat(&parts, axis)))
}

fn split(call: &mut Call<'_, '_>, x: &Known) -> Result<bool, Refusal> {
    if call.version >= 13 && call.has_input(1) && call.known(1).is_none() {
        return Ok(false);
    }
    let axis = normalize_axis(call.attributes.int_or("axis", 0)?, x.shape.len())?;
    let sizes = split_sizes(call, &Dim::from(x.shape[axis]))?;
    let Some(sizes) = constant_shape(&sizes) else { return Ok(false) };
    let mut parts = Vec::new();
    let mut start = 0;
    for size in sizes {
        let mut ranges: Vec<(i64, i64, usize)> = x.shape.iter().map(|d| (0, 1, *d)).collect();
        ranges[axis] = (start, 1, size);
        start += size as i64;
        match x.sliced(&ranges) {
            Some(part) => parts.push(part),
            None => return Ok(false),
        }
    }
    for (index, part) in parts.into_iter().enumerate() {
        call.output_known(index, part)?;
    }
    Ok(true)
}

fn reshape(call: &mut Call<'_, '_>, x: &Known) -> Result<Option<Known>, Refusal> {
    let allow_zero = call.attributes.flag("allowzero")?;
    let Some(target) = call.known(1).and_then(|k| k.dims()) else { return Ok(None) };
    let shape = reshape_target(&dims(x), &target, allow_zero)?;
    Ok(constant_shape(&shape).and_then(|shape| x.reshaped(&shape)))
}

/// Reductions of integers over every axis.
fn reduce(call: &mut Call<'_, '_>, x: &Known) -> Result<Option<Known>, Refusal> {
    let (op, empty) = match call.node.op_type.as_str() {
        "ReduceProd" => (Pairwise::Mul, 1),
        "ReduceSum" => (Pairwise::Add, 0),
        "ReduceMax" => (Pairwise::Max, 0),
        _ => (Pairwise::Min, 0),
    };
    let since = if call.node.op_type == "ReduceSum" { 13 } else { 18 };
    let extreme_of_none = matches!(op, Pairwise::Max | Pairwise::Min) && x.elements.is_empty();
    if x.dtype.is_float()
        || x.dtype == DType::Bool
        || extreme_of_none
        || call.attributes.flag("noop_with_empty_axes")?
    {
        return Ok(None);
    }
    if call.version >= since && call.has_input(1) && call.known(1).is_none() {
        return Ok(None);
    }
    let keep = call.attributes.int_or("keepdims", 1)? != 0;
    let rank = x.shape.len();
    let all = match call.axes(since)?.filter(|axes| !axes.is_empty()) {
        Some(axes) => normalize_axes(&axes, rank)?.len() == rank,
        None => true,
    };
    let shape = if keep { vec![1; rank] } else { Vec::new() };
    Ok(x.fold(op, empty).filter(|_| all).and_then(|element| Known::new(x.dtype, shape, vec![element])))
}
