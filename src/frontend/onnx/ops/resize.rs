//! Resize and its predecessor Upsample.

use forge_ir::{Dim, Op, ResizeCoordinates, ResizeMode, ResizeRounding, Value};

use super::super::lower::{Call, Lowered, Refusal, bind_symbols, normalize_axis};

/// Sizes of the result and the factors that coordinates are scaled with, one per axis.
struct Extent {
    sizes: Vec<Dim>,
    scales: Vec<f64>,
}

pub(super) fn resize(call: &mut Call<'_, '_>) -> Lowered {
    let mode = mode(call)?;
    let x = call.input(0)?;
    let shape = call.shape(x);
    if call.version < 11 {
        let scales = call.floats(1, "the scales")?;
        let extent = from_scales(call, &shape, &scales)?;
        let rounding = simple_rounding(mode, &extent.scales)?;
        return emit(call, x, mode, ResizeCoordinates::Asymmetric, rounding, -0.75, extent);
    }
    if call.attributes.flag("exclude_outside")? {
        return Err(Refusal::unsupported("exclude_outside=1 is not supported", "export with exclude_outside=0"));
    }
    let antialias = call.attributes.flag("antialias")?;
    // Read by tf_crop_and_resize only.
    call.attributes.ignore(&["extrapolation_value"]);
    let coordinates = call.attributes.string_or("coordinate_transformation_mode", "half_pixel")?;
    let coordinates = ResizeCoordinates::from_name(&coordinates).ok_or_else(|| {
        Refusal::unsupported(
            format!("coordinate_transformation_mode '{coordinates}' is not supported"),
            "use half_pixel, pytorch_half_pixel, align_corners, asymmetric or half_pixel_symmetric",
        )
    })?;
    let rounding = call.attributes.string_or("nearest_mode", "round_prefer_floor")?;
    let rounding = ResizeRounding::from_name(&rounding)
        .ok_or_else(|| Refusal::invalid(format!("nearest_mode '{rounding}' does not exist")))?;
    let cubic_coeff = call.attributes.float_or("cubic_coeff_a", -0.75)?;
    let policy = call.attributes.string_or("keep_aspect_ratio_policy", "stretch")?;
    let axes: Vec<usize> = match call.attributes.ints("axes")? {
        Some(axes) => axes.iter().map(|a| normalize_axis(*a, shape.len())).collect::<Result<_, Refusal>>()?,
        None => (0..shape.len()).collect(),
    };
    let extent = if has_elements(call, 3) {
        let sizes = call.dims(3, "the sizes")?;
        from_sizes(&shape, &axes, &sizes, &policy)?
    } else if has_elements(call, 2) {
        let given = call.floats(2, "the scales")?;
        if given.len() != axes.len() {
            return Err(Refusal::invalid(format!("it has {} scales for {} axes", given.len(), axes.len())));
        }
        let mut scales = vec![1.0; shape.len()];
        for (axis, scale) in axes.iter().zip(given) {
            scales[*axis] = scale;
        }
        from_scales(call, &shape, &scales)?
    } else {
        return Err(Refusal::invalid("it has neither scales nor sizes"));
    };
    // Antialiasing filters only where the image shrinks.
    if antialias && mode != ResizeMode::Nearest && extent.scales.iter().any(|s| *s < 1.0) {
        return Err(Refusal::unsupported("antialias=1 is not supported", "export the model with antialias=False"));
    }
    emit(call, x, mode, coordinates, rounding, cubic_coeff, extent)
}

/// `scales` is an attribute at opset 7, an input at 9.
pub(super) fn upsample(call: &mut Call<'_, '_>) -> Lowered {
    if call.version > 9 {
        return Err(Refusal::invalid("Upsample was replaced by Resize at opset 10"));
    }
    let mode = mode(call)?;
    let scales = if call.version < 9 {
        call.attributes.floats("scales")?.ok_or_else(|| Refusal::invalid("attribute 'scales' is missing"))?
    } else {
        call.floats(1, "the scales")?
    };
    let x = call.input(0)?;
    let extent = from_scales(call, &call.shape(x), &scales)?;
    let rounding = simple_rounding(mode, &extent.scales)?;
    emit(call, x, mode, ResizeCoordinates::Asymmetric, rounding, -0.75, extent)
}

fn mode(call: &Call<'_, '_>) -> Result<ResizeMode, Refusal> {
    let name = call.attributes.string_or("mode", "nearest")?;
    // Upsample 7 says bilinear for what is linear on every axis.
    let name = if name == "bilinear" { "linear".to_owned() } else { name };
    ResizeMode::from_name(&name).ok_or_else(|| Refusal::invalid(format!("mode '{name}' does not exist")))
}

/// Absent inputs were written as empty tensors for a while.
fn has_elements(call: &Call<'_, '_>, index: usize) -> bool {
    call.has_input(index) && call.input_type(index).is_ok_and(|ty| ty.numel().as_const() != Some(0))
}

/// Before opset 11 nearest takes the floor of the coordinate when enlarging and the ceiling when shrinking.
fn simple_rounding(mode: ResizeMode, scales: &[f64]) -> Result<ResizeRounding, Refusal> {
    if mode != ResizeMode::Nearest || scales.iter().all(|s| *s >= 1.0) {
        Ok(ResizeRounding::Floor)
    } else if scales.iter().all(|s| *s <= 1.0) {
        Ok(ResizeRounding::Ceil)
    } else {
        Err(Refusal::unsupported(
            "it enlarges one axis and shrinks another, which had no defined rounding before opset 11",
            "convert the model to opset 11 or later",
        ))
    }
}

fn from_scales(call: &mut Call<'_, '_>, shape: &[Dim], scales: &[f64]) -> Result<Extent, Refusal> {
    if scales.len() != shape.len() || scales.iter().any(|s| !s.is_finite() || *s <= 0.0 || *s > 1e6) {
        return Err(Refusal::invalid(format!("its scales {scales:?} do not fit {} axes", shape.len())));
    }
    let mut sizes = Vec::with_capacity(shape.len());
    for (dim, scale) in shape.iter().zip(scales) {
        sizes.push(match dim.as_const() {
            // The specification computes in f32.
            Some(size) => Dim::from((size as f32 * *scale as f32).floor() as i64),
            None => scaled(dim, *scale).ok_or_else(|| {
                Refusal::unsupported(
                    format!("scale {scale} of the symbolic dim {dim} is no simple fraction"),
                    bind_symbols(&[dim]),
                )
            })?,
        });
    }
    for (dim, size) in shape.iter().zip(&sizes) {
        if size.as_const() == Some(0) && dim.as_const() != Some(0) {
            call.assume(format!("1 <= {size}"));
        }
    }
    Ok(Extent { sizes, scales: scales.to_vec() })
}

/// `floor(dim * scale)` for a scale with a power-of-two denominator.
fn scaled(dim: &Dim, scale: f64) -> Option<Dim> {
    let denominator = (0..=16).map(|shift| 1i64 << shift).find(|d| (scale * *d as f64).fract() == 0.0)?;
    let numerator = Dim::from((scale * denominator as f64) as i64);
    Some((dim.clone() * numerator).floor_div(&Dim::from(denominator)))
}

fn from_sizes(shape: &[Dim], axes: &[usize], given: &[Dim], policy: &str) -> Result<Extent, Refusal> {
    if given.len() != axes.len() {
        return Err(Refusal::invalid(format!("it has {} sizes for {} axes", given.len(), axes.len())));
    }
    let mut sizes = shape.to_vec();
    let mut scales = vec![1.0; shape.len()];
    for (axis, size) in axes.iter().zip(given) {
        let ratio = match (size.as_const(), shape[*axis].as_const()) {
            (Some(size), Some(dim)) if dim > 0 && size > 0 => Some(size as f64 / dim as f64),
            (None, None) => constant_ratio(size, &shape[*axis]),
            _ => None,
        };
        scales[*axis] = ratio.ok_or_else(|| {
            Refusal::unsupported(
                format!("resizing {} to {size} has no fixed scale", shape[*axis]),
                bind_symbols(&[&shape[*axis], size]),
            )
        })?;
        sizes[*axis] = size.clone();
    }
    if policy == "stretch" {
        return Ok(Extent { sizes, scales });
    }
    // One scale for all axes: the smallest (nothing gets larger than asked) or the largest.
    let pick: fn(f64, f64) -> f64 = match policy {
        "not_larger" => f64::min,
        "not_smaller" => f64::max,
        other => return Err(Refusal::invalid(format!("keep_aspect_ratio_policy '{other}' does not exist"))),
    };
    let scale = axes.iter().map(|a| scales[*a]).reduce(pick).unwrap_or(1.0);
    for axis in axes {
        let Some(dim) = shape[*axis].as_const() else {
            return Err(Refusal::unsupported(
                format!("keep_aspect_ratio_policy '{policy}' with symbolic dims is not supported"),
                "give the symbolic dims values with shape bindings",
            ));
        };
        scales[*axis] = scale;
        // Halves round up.
        sizes[*axis] = Dim::from((scale * dim as f64 + 0.5).floor() as i64);
    }
    Ok(Extent { sizes, scales })
}

/// `a / b` if it is a number.
fn constant_ratio(a: &Dim, b: &Dim) -> Option<f64> {
    if let Some(ratio) = a.div_exact(b).and_then(|r| r.as_const()) {
        return Some(ratio as f64);
    }
    b.div_exact(a).and_then(|r| r.as_const()).map(|r| 1.0 / r as f64)
}

fn emit(
    call: &mut Call<'_, '_>,
    x: Value,
    mode: ResizeMode,
    coordinates: ResizeCoordinates,
    rounding: ResizeRounding,
    cubic_coeff: f64,
    extent: Extent,
) -> Lowered {
    let y = call.emit(
        Op::Resize { mode, coordinates, rounding, cubic_coeff, scales: extent.scales, sizes: extent.sizes },
        &[x],
    )?;
    call.output(0, y)
}
