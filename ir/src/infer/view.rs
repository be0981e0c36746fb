//! Typing of views.

use super::{Call, Inferred, is_negative, show, unify};
use crate::dim::Dim;
use crate::op::PadMode;

pub(super) fn reshape(call: &Call<'_>, shape: &[Dim]) -> Inferred {
    let [x] = call.exactly()?;
    call.sizes(shape, "shape")?;
    let (have, want) = (x.numel(), Dim::product(shape));
    if unify(&have, &want).is_none() {
        return call.fail(format!("{x} has {have} elements, shape {} has {want}", show(shape)));
    }
    call.one(x.dtype, shape.to_vec())
}

pub(super) fn transpose(call: &Call<'_>, perm: &[usize]) -> Inferred {
    let [x] = call.exactly()?;
    let mut seen = vec![false; x.rank()];
    let distinct = perm.iter().all(|axis| seen.get_mut(*axis).is_some_and(|s| !std::mem::replace(s, true)));
    if perm.len() != x.rank() || !distinct {
        return call.fail(format!("perm {perm:?} is not a permutation of the {} axes of {x}", x.rank()));
    }
    call.one(x.dtype, perm.iter().map(|axis| x.shape[*axis].clone()).collect())
}

pub(super) fn broadcast(call: &Call<'_>, shape: &[Dim]) -> Inferred {
    let [x] = call.exactly()?;
    call.sizes(shape, "shape")?;
    call.broadcasts_to(&x.shape, shape, "shape")?;
    call.one(x.dtype, shape.to_vec())
}

pub(super) fn slice(call: &Call<'_>, starts: &[Dim], steps: &[i64], sizes: &[Dim]) -> Inferred {
    let [x] = call.exactly()?;
    for (len, what) in [(starts.len(), "starts"), (steps.len(), "steps"), (sizes.len(), "sizes")] {
        call.per_axis(len, x.rank(), what)?;
    }
    if steps.contains(&0) {
        return call.fail(format!("steps {steps:?} has a zero"));
    }
    call.sizes(sizes, "sizes")?;
    for axis in 0..x.rank() {
        let (start, size, dim) = (&starts[axis], &sizes[axis], &x.shape[axis]);
        // An empty slice reads nothing, so any start does; a symbolic size may be zero.
        if size.as_const().is_none_or(|s| s == 0) {
            continue;
        }
        let last = start.clone() + (size.clone() - Dim::from(1i64)) * Dim::from(steps[axis]);
        let outside = |at: &Dim| is_negative(at) || is_negative(&(dim.clone() - at.clone() - Dim::from(1i64)));
        if outside(start) || outside(&last) {
            return call.fail(format!("elements {start} to {last} of axis {axis} are out of bounds of {x}"));
        }
    }
    call.one(x.dtype, sizes.to_vec())
}

pub(super) fn pad(call: &Call<'_>, mode: PadMode, before: &[Dim], after: &[Dim]) -> Inferred {
    let ([x], value) = call.with_optional()?;
    for (pads, what) in [(before, "before"), (after, "after")] {
        call.per_axis(pads.len(), x.rank(), what)?;
        call.sizes(pads, what)?;
    }
    if let Some(value) = value {
        if mode != PadMode::Constant {
            return call.fail(format!("mode '{}' takes no value", mode.name()));
        }
        call.same_dtype(&[x, value])?;
        call.rank(value, 0, "value")?;
    }
    let mut shape = Vec::with_capacity(x.rank());
    for axis in 0..x.rank() {
        let (dim, low, high) = (&x.shape[axis], &before[axis], &after[axis]);
        let pads_something = low.as_const() != Some(0) || high.as_const() != Some(0);
        // Reflection repeats neither end, so it reaches dim - 1 elements; an edge needs one element to repeat.
        let too_far = match mode {
            PadMode::Constant => false,
            PadMode::Reflect => {
                let reaches = |p: &Dim| is_negative(&(dim.clone() - p.clone() - Dim::from(1i64)));
                pads_something && (reaches(low) || reaches(high))
            }
            PadMode::Edge => pads_something && dim.as_const() == Some(0),
        };
        if too_far {
            return call.fail(format!("pads {low}, {high} of axis {axis} reach beyond {x} in mode '{}'", mode.name()));
        }
        shape.push(low.clone() + dim.clone() + high.clone());
    }
    call.one(x.dtype, shape)
}

pub(super) fn concat(call: &Call<'_>, axis: usize) -> Inferred {
    let Some((first, rest)) = call.operands.split_first() else {
        return call.fail("no operands, expected at least one");
    };
    call.same_dtype(call.operands)?;
    call.axis(axis, first)?;
    let mut shape = first.shape.clone();
    for other in rest {
        call.rank(other, first.rank(), "operand")?;
        for (at, dim) in other.shape.iter().enumerate() {
            shape[at] = if at == axis {
                shape[at].clone() + dim.clone()
            } else {
                unify(&shape[at], dim)
                    .ok_or_else(|| call.error(format!("operands {first} and {other} differ in axis {at}")))?
            };
        }
    }
    call.one(first.dtype, shape)
}
