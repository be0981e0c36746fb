//! Slices and pads: ONNX's clamped, wrapped bounds as plain in-bounds ranges.

use forge_ir::{Dim, Op, PadMode, Value};

use super::super::lower::{Call, Lowered, Refusal, normalize_axis};

/// Elements `start + i * step` for `i < size`, all in bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) start: Dim,
    pub(super) step: i64,
    pub(super) size: Dim,
}

/// Against a symbolic dim, a constant this large means "to the end" (exporters write the extremes of i32 or i64, or
/// 10^9).
const END: i64 = 100_000_000;

/// The ranges of a Slice node over `shape`, one per axis.
pub(super) fn ranges(call: &mut Call<'_, '_>, shape: &[Dim]) -> Result<Vec<Range>, Refusal> {
    let as_dims = |ints: Vec<i64>| -> Vec<Dim> { ints.into_iter().map(Dim::from).collect() };
    let missing = |what: &str| Refusal::invalid(format!("attribute '{what}' is missing"));
    let (starts, ends, axes, steps) = if call.version < 10 {
        let starts = call.attributes.ints("starts")?.ok_or_else(|| missing("starts"))?;
        let ends = call.attributes.ints("ends")?.ok_or_else(|| missing("ends"))?;
        (as_dims(starts), as_dims(ends), call.attributes.ints("axes")?, None)
    } else {
        let starts = call.dims(1, "the starts")?;
        let ends = call.dims(2, "the ends")?;
        let axes = if call.has_input(3) { Some(call.ints(3, "the axes")?) } else { None };
        let steps = if call.has_input(4) { Some(call.ints(4, "the steps")?) } else { None };
        (starts, ends, axes, steps)
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) {
        return Err(Refusal::invalid(format!(
            "it has {} starts, {} ends, {} axes and {} steps",
            starts.len(),
            ends.len(),
            axes.len(),
            steps.len()
        )));
    }
    let mut ranges: Vec<Range> =
        shape.iter().map(|d| Range { start: Dim::from(0), step: 1, size: d.clone() }).collect();
    let mut sliced = vec![false; shape.len()];
    for (i, axis) in axes.iter().enumerate() {
        let axis = normalize_axis(*axis, shape.len())?;
        if std::mem::replace(&mut sliced[axis], true) {
            return Err(Refusal::invalid(format!("axis {axis} is sliced twice")));
        }
        ranges[axis] = range(call, &shape[axis], &starts[i], &ends[i], steps[i])?;
    }
    Ok(ranges)
}

fn range(call: &mut Call<'_, '_>, dim: &Dim, start: &Dim, end: &Dim, step: i64) -> Result<Range, Refusal> {
    if step == 0 || step == i64::MIN {
        return Err(Refusal::invalid(format!("its step is {step}")));
    }
    if let (Some(d), Some(s), Some(e)) = (dim.as_const(), start.as_const(), end.as_const()) {
        let wrap = |b: i64| if b < 0 { b.saturating_add(d) } else { b };
        let (start, end) = if step > 0 {
            (wrap(s).clamp(0, d), wrap(e).clamp(0, d))
        } else {
            (wrap(s).clamp(0, (d - 1).max(0)), wrap(e).clamp(-1, (d - 1).max(-1)))
        };
        let span = if step > 0 { end - start } else { start - end };
        let size = if d == 0 || span <= 0 { 0 } else { (span - 1) / step.abs() + 1 };
        return Ok(Range { start: Dim::from(start), step, size: Dim::from(size) });
    }
    let (zero, one) = (Dim::from(0), Dim::from(1));
    let last = dim.clone() - one.clone();
    let (start, end, span, whole) = if step > 0 {
        let start = position(call, dim, start, &zero, dim);
        let end = position(call, dim, end, &zero, dim);
        let whole = end == *dim || start == zero;
        (start.clone(), end.clone(), end - start, whole)
    } else {
        let start = position(call, dim, start, &zero, &last);
        let end = position(call, dim, end, &Dim::from(-1), &last);
        let whole = end == Dim::from(-1) || start == last;
        (start.clone(), end.clone(), start - end, whole)
    };
    let size = match span.as_const() {
        Some(span) => Dim::from(if span <= 0 { 0 } else { (span - 1) / step.abs() + 1 }),
        None => {
            // A bound at an end of the axis is past the other bound already.
            if !whole && span.lower_bound().is_none_or(|low| low < 0) {
                let (low, high) = if step > 0 { (&start, &end) } else { (&end, &start) };
                call.assume(format!("{low} <= {high}"));
            }
            span.ceil_div(&Dim::from(step.abs()))
        }
    };
    Ok(Range { start, step, size })
}

/// Where a bound lies on an axis of `dim` elements: wrapped if negative, then kept within `low..=high`. Constant bounds
/// are clamped exactly, by `min` and `max`; a symbolic bound is taken to be in range, which is recorded.
fn position(call: &mut Call<'_, '_>, dim: &Dim, bound: &Dim, low: &Dim, high: &Dim) -> Dim {
    let never_below = |a: &Dim, b: &Dim| (a.clone() - b.clone()).lower_bound().is_some_and(|d| d >= 0);
    let at = match bound.as_const() {
        Some(b) if b >= END => return high.clone(),
        Some(b) if b <= -END => return low.clone(),
        Some(b) if b < 0 => dim.clone() + bound.clone(),
        Some(_) => bound.clone(),
        None if never_below(bound, &Dim::from(0)) => bound.clone(),
        None if never_below(&Dim::from(-1), bound) => dim.clone() + bound.clone(),
        None => {
            call.assume(format!("0 <= {bound}"));
            bound.clone()
        }
    };
    let exact = bound.as_const().is_some();
    let at = if never_below(&at, low) {
        at
    } else if exact || never_below(low, &at) {
        at.maximum(low)
    } else {
        call.assume(format!("{low} <= {at}"));
        at
    };
    if never_below(high, &at) {
        at
    } else if exact || never_below(&at, high) {
        at.minimum(high)
    } else {
        call.assume(format!("{at} <= {high}"));
        at
    }
}

pub(super) fn slice(call: &mut Call<'_, '_>) -> Lowered {
    let shape = call.input_type(0)?.shape;
    let ranges = ranges(call, &shape)?;
    let whole = ranges.iter().zip(&shape).all(|(r, d)| r.step == 1 && r.start.as_const() == Some(0) && r.size == *d);
    if whole {
        let id = call.entry_id(0)?;
        return call.output_alias(0, id);
    }
    let x = call.input(0)?;
    let y = call.emit(
        Op::Slice {
            starts: ranges.iter().map(|r| r.start.clone()).collect(),
            steps: ranges.iter().map(|r| r.step).collect(),
            sizes: ranges.iter().map(|r| r.size.clone()).collect(),
        },
        &[x],
    )?;
    call.output(0, y)
}

pub(super) fn pad(call: &mut Call<'_, '_>) -> Lowered {
    let mode = call.attributes.string_or("mode", "constant")?;
    let wraps = mode == "wrap";
    let mode = match PadMode::from_name(&mode) {
        Some(mode) => mode,
        None if wraps => PadMode::Constant,
        None => return Err(Refusal::invalid(format!("mode '{mode}' does not exist"))),
    };
    let x = call.input(0)?;
    let rank = call.rank(x);
    let (pads, value) = if call.version < 11 {
        let pads = call.attributes.ints("pads")?.ok_or_else(|| Refusal::invalid("attribute 'pads' is missing"))?;
        let value = call.attributes.float_or("value", 0.0)?;
        let dtype = call.dtype(x);
        let value = (value != 0.0).then(|| call.scalar(value, dtype));
        (pads.into_iter().map(Dim::from).collect(), value)
    } else {
        let pads = call.dims(1, "the pads")?;
        let value = match call.optional(2)? {
            Some(value) => Some(call.reshape(value, Vec::new())?),
            None => None,
        };
        (pads, value)
    };
    let axes: Vec<usize> = if call.version >= 18 && call.has_input(3) {
        let axes = call.ints(3, "the axes")?;
        axes.iter().map(|a| normalize_axis(*a, rank)).collect::<Result<_, Refusal>>()?
    } else {
        (0..rank).collect()
    };
    if pads.len() != 2 * axes.len() {
        return Err(Refusal::invalid(format!("it has {} pads for {} axes", pads.len(), axes.len())));
    }
    let mut before = vec![Dim::from(0); rank];
    let mut after = before.clone();
    for (i, axis) in axes.iter().enumerate() {
        before[*axis] = pads[i].clone();
        after[*axis] = pads[axes.len() + i].clone();
    }
    let y = if wraps { wrapped(call, x, &before, &after)? } else { padded(call, x, mode, value, before, after)? };
    call.output(0, y)
}

/// Each axis with its own end before it and its own start after it.
fn wrapped(call: &mut Call<'_, '_>, mut x: Value, before: &[Dim], after: &[Dim]) -> Result<Value, Refusal> {
    for (axis, (before, after)) in before.iter().zip(after).enumerate() {
        let dim = call.shape(x)[axis].clone();
        let mut parts = Vec::new();
        for pad in [before, after] {
            let fits = pad.as_const().zip(dim.as_const()).is_none_or(|(pad, dim)| (0..=dim).contains(&pad));
            if !fits {
                return Err(Refusal::unsupported(
                    format!("a pad of {pad} wraps an axis of {dim} elements more than once, or crops it"),
                    "pad in several steps",
                ));
            }
            if pad.as_const().is_none() || dim.as_const().is_none() {
                call.assume(format!("{pad} <= {dim}"));
            }
        }
        if before.as_const() != Some(0) {
            parts.push(call.slice_axis(x, axis, dim.clone() - before.clone(), before.clone())?);
        }
        parts.push(x);
        if after.as_const() != Some(0) {
            parts.push(call.slice_axis(x, axis, Dim::from(0), after.clone())?);
        }
        x = call.concat(&parts, axis)?;
    }
    Ok(x)
}

/// Each of `axes` cropped or padded with zeros to a size, evenly on both sides.
pub(super) fn center_crop_pad(call: &mut Call<'_, '_>) -> Lowered {
    let mut x = call.input(0)?;
    let shape = call.shape(x);
    let sizes = call.ints(1, "its target shape")?;
    let axes = call.attributes.ints("axes")?.unwrap_or_else(|| (0..shape.len() as i64).collect());
    if sizes.len() != axes.len() {
        return Err(Refusal::invalid(format!("it has {} sizes for {} axes", sizes.len(), axes.len())));
    }
    let mut before = vec![Dim::from(0); shape.len()];
    let mut after = before.clone();
    for (axis, size) in axes.iter().zip(sizes) {
        let axis = normalize_axis(*axis, shape.len())?;
        let dim = super::super::lower::fixed(&shape[axis], "an axis that is cropped to its centre")?;
        if size <= dim {
            x = call.slice_axis(x, axis, Dim::from((dim - size) / 2), Dim::from(size))?;
        } else {
            before[axis] = Dim::from((size - dim) / 2);
            after[axis] = Dim::from(size - dim - (size - dim) / 2);
        }
    }
    let y = padded(call, x, PadMode::Constant, None, before, after)?;
    call.output(0, y)
}

/// Negative pads crop.
fn padded(
    call: &mut Call<'_, '_>,
    mut x: Value,
    mode: PadMode,
    value: Option<Value>,
    mut before: Vec<Dim>,
    mut after: Vec<Dim>,
) -> Result<Value, Refusal> {
    let negative = |d: &Dim| d.as_const().is_some_and(|c| c < 0);
    if before.iter().chain(&after).any(negative) {
        if mode != PadMode::Constant {
            return Err(Refusal::unsupported(
                format!("negative pads in mode '{}' are not supported", mode.name()),
                "crop with a Slice before the Pad",
            ));
        }
        let mut sizes = call.shape(x);
        let mut starts = vec![Dim::from(0); sizes.len()];
        for axis in 0..sizes.len() {
            if negative(&before[axis]) {
                starts[axis] = Dim::from(0) - std::mem::replace(&mut before[axis], Dim::from(0));
                sizes[axis] = sizes[axis].clone() - starts[axis].clone();
            }
            if negative(&after[axis]) {
                sizes[axis] = sizes[axis].clone() + std::mem::replace(&mut after[axis], Dim::from(0));
            }
        }
        let steps = vec![1; sizes.len()];
        x = call.emit(Op::Slice { starts, steps, sizes }, &[x])?;
    }
    if before.iter().chain(&after).all(|d| d.as_const() == Some(0)) {
        return Ok(x);
    }
    for pad in before.iter().chain(&after) {
        if pad.lower_bound().is_none_or(|low| low < 0) {
            call.assume(format!("0 <= {pad}"));
        }
    }
    let mut operands = vec![x];
    operands.extend(value.filter(|_| mode == PadMode::Constant));
    call.emit(Op::Pad { mode, before, after }, &operands)
}
