//! Ops whose element needs a block of its own: conditionals (pad, concat), data-dependent indices, inner loops (reductions,
//! contractions, windows). Correct for every shape; the fast forms are templates.

use forge_ir::{
    ArgOp, DType, Dim, Op, PadMode, PoolKind, ReduceOp, ResizeCoordinates, ResizeMode, ResizeRounding, Value, Window,
};

use super::Unsupported;
use super::cpp::{self, float_literal, int_literal, register_type};
use super::emit::{Emitter, Index};

type Emitted = Result<String, Unsupported>;

pub(super) fn compute(e: &mut Emitter<'_>, value: Value, index: &[Index], depth: usize) -> Emitted {
    let graph = e.graph();
    let operands = graph.operands(value.node);
    match graph.op(value.node) {
        Op::Pad { mode, before, .. } => pad(e, value, &operands, *mode, before, index),
        Op::Concat { axis } => concat(e, value, &operands, *axis, index),
        Op::Gather { axis } => {
            let indices_rank = graph.ty(operands[1]).rank();
            let picked = e.value(operands[1], &index[*axis..*axis + indices_rank])?;
            let wrapped = wrap(e, &picked, &graph.ty(operands[0]).shape[*axis], depth);
            let mut mapped: Vec<Index> = index[..*axis].to_vec();
            mapped.push(wrapped);
            mapped.extend_from_slice(&index[*axis + indices_rank..]);
            e.value(operands[0], &mapped)
        }
        Op::GatherElements { axis } => {
            let picked = e.value(operands[1], index)?;
            let mut mapped = index.to_vec();
            mapped[*axis] = wrap(e, &picked, &graph.ty(operands[0]).shape[*axis], depth);
            e.value(operands[0], &mapped)
        }
        Op::GatherNd { batch_dims } => {
            let indices_shape = &graph.ty(operands[1]).shape;
            let outer = indices_shape.len() - 1;
            let width = indices_shape[outer]
                .as_const()
                .ok_or_else(|| Unsupported::new("gather_nd with a symbolic index depth"))?
                as usize;
            let mut mapped: Vec<Index> = index[..*batch_dims].to_vec();
            for j in 0..width {
                let mut at: Vec<Index> = index[..outer].to_vec();
                at.push(Index::new(j.to_string(), 0));
                let picked = e.value(operands[1], &at)?;
                mapped.push(wrap(e, &picked, &graph.ty(operands[0]).shape[*batch_dims + j], depth));
            }
            mapped.extend_from_slice(&index[outer..]);
            e.value(operands[0], &mapped)
        }
        Op::Reduce { op, axes, keep_dims } => reduce(e, value, operands[0], *op, axes, *keep_dims, index, depth),
        Op::ArgReduce { op, axis, keep_dims, select_last } => {
            arg_reduce(e, operands[0], *op, *axis, *keep_dims, *select_last, index, depth)
        }
        Op::CumSum { axis, exclusive, reverse } => {
            let extent = cpp::dim(&graph.ty(operands[0]).shape[*axis]);
            let here = index[*axis].text.clone();
            let range = match (*reverse, *exclusive) {
                (false, false) => ("0".to_owned(), format!("{here} + 1")),
                (false, true) => ("0".to_owned(), here),
                (true, false) => (here, extent),
                (true, true) => (format!("{here} + 1"), extent),
            };
            accumulate(e, value, depth, "0", &[range], |e, vars| {
                let mut mapped = index.to_vec();
                mapped[*axis] = vars[0].clone();
                e.value(operands[0], &mapped)
            })
        }
        Op::MatMul { trans_a, trans_b } => {
            let (a, b) = (operands[0], operands[1]);
            let (a_shape, b_shape) = (&graph.ty(a).shape, &graph.ty(b).shape);
            let k = &a_shape[a_shape.len() - if *trans_a { 2 } else { 1 }];
            let rank = index.len();
            let (row, column) = (index[rank - 2].clone(), index[rank - 1].clone());
            accumulate_product(e, value, depth, &[("0".into(), cpp::dim(k))], |e, vars| {
                let at = |operand_rank: usize, first: Index, second: Index, swap: bool| {
                    let mut mapped: Vec<Index> = index[rank - operand_rank..rank - 2].to_vec();
                    mapped.extend(if swap { [second, first] } else { [first, second] });
                    mapped
                };
                let x = e.value(a, &at(a_shape.len(), row.clone(), vars[0].clone(), *trans_a))?;
                let y = e.value(b, &at(b_shape.len(), vars[0].clone(), column.clone(), *trans_b))?;
                Ok(Some((x, y)))
            })
        }
        Op::Conv { window, groups } => conv(e, value, &operands, window, *groups, index, depth),
        Op::ConvTranspose { window, groups, .. } => conv_transpose(e, value, &operands, window, *groups, index, depth),
        Op::Pool { kind, kernel, window, count_include_pad, .. } => {
            pool(e, value, operands[0], *kind, kernel, window, *count_include_pad, index, depth)
        }
        Op::Resize { mode, coordinates, rounding, scales, .. } => {
            resize(e, value, operands[0], *mode, *coordinates, *rounding, scales, index, depth)
        }
        other => Err(Unsupported::new(format!("{} is not a function of an index", other.name()))),
    }
}

fn wrap(e: &mut Emitter<'_>, picked: &str, extent: &Dim, depth: usize) -> Index {
    let name = e.fresh("g");
    let depth = depth.min(e.depth());
    e.line(depth, format!("const int64_t {name} = forge::wrap_index(int64_t({picked}), {});", cpp::dim(extent)));
    Index::new(name, depth)
}

/// `T v = fallback; if (condition) { .. v = <body>; }` as statements in the innermost scope.
fn guarded(
    e: &mut Emitter<'_>,
    dtype: DType,
    fallback: &str,
    condition: &str,
    body: impl FnOnce(&mut Emitter<'_>, usize) -> Emitted,
) -> Emitted {
    let name = e.fresh("v");
    let depth = e.depth();
    let lines = e.nested(|e, inner| {
        let text = body(e, inner)?;
        e.line(inner, format!("{name} = {text};"));
        Ok(())
    })?;
    e.line(depth, format!("{} {name} = {fallback};", register_type(dtype)));
    e.line(depth, format!("if ({condition}) {{"));
    for line in lines {
        e.line(depth, line);
    }
    e.line(depth, "}");
    Ok(name)
}

/// The index moved into the innermost scope, so that nothing computed from it leaves a conditional.
fn pinned(index: Index, depth: usize) -> Index {
    Index { depth: index.depth.max(depth), ..index }
}

fn pad(
    e: &mut Emitter<'_>,
    value: Value,
    operands: &[Value],
    mode: PadMode,
    before: &[Dim],
    index: &[Index],
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let shape = &graph.ty(operands[0]).shape;
    let shifted: Vec<Index> = index
        .iter()
        .zip(before)
        .map(|(ix, b)| match b.as_const() {
            Some(0) => ix.clone(),
            _ => Index::new(format!("({} - {})", ix.text, cpp::dim(b)), ix.depth),
        })
        .collect();
    match mode {
        PadMode::Constant => {
            let fill = match operands.get(1) {
                Some(fill) => e.value(*fill, &[])?,
                None => zero(dtype),
            };
            let condition: Vec<String> = shifted
                .iter()
                .zip(shape)
                .map(|(ix, dim)| format!("{0} >= 0 && {0} < {1}", ix.text, cpp::dim(dim)))
                .collect();
            guarded(e, dtype, &fill, &condition.join(" && "), |e, depth| {
                let at: Vec<Index> = shifted.iter().map(|ix| pinned(ix.clone(), depth)).collect();
                e.value(operands[0], &at)
            })
        }
        PadMode::Edge | PadMode::Reflect => {
            let at: Vec<Index> = shifted
                .iter()
                .zip(shape)
                .map(|(ix, dim)| {
                    let extent = cpp::dim(dim);
                    let text = if mode == PadMode::Edge {
                        format!("max(0, min({}, {extent} - 1))", ix.text)
                    } else {
                        // Reflection about both edges, once: pads are below the extent.
                        format!("({extent} - 1 - std::abs({extent} - 1 - std::abs({})))", ix.text)
                    };
                    Index::new(text, ix.depth)
                })
                .collect();
            e.value(operands[0], &at)
        }
    }
}

fn concat(e: &mut Emitter<'_>, value: Value, operands: &[Value], axis: usize, index: &[Index]) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let depth = e.depth();
    let name = e.fresh("v");
    e.line(depth, format!("{} {name};", register_type(dtype)));
    let mut start = Dim::from(0);
    for (i, operand) in operands.iter().enumerate() {
        let end = start.clone() + graph.ty(*operand).shape[axis].clone();
        let lines = e.nested(|e, inner| {
            let mut at: Vec<Index> = index.iter().map(|ix| pinned(ix.clone(), inner)).collect();
            at[axis] = Index::new(format!("({} - {})", index[axis].text, cpp::dim(&start)), inner);
            let text = e.value(*operand, &at)?;
            e.line(inner, format!("{name} = {text};"));
            Ok(())
        })?;
        let head = match (i, i + 1 == operands.len()) {
            (0, true) => "{".to_owned(),
            (0, false) => format!("if ({} < {}) {{", index[axis].text, cpp::dim(&end)),
            (_, false) => format!("}} else if ({} < {}) {{", index[axis].text, cpp::dim(&end)),
            (_, true) => "} else {".to_owned(),
        };
        e.line(depth, head);
        for line in lines {
            e.line(depth, line);
        }
        start = end;
    }
    e.line(depth, "}");
    Ok(name)
}

fn zero(dtype: DType) -> String {
    if dtype.is_float() { float_literal(dtype, 0.0) } else { int_literal(dtype, 0) }
}

/// Loops over `ranges` around `body`, as statements in the innermost scope.
fn loops(
    e: &mut Emitter<'_>,
    ranges: &[(String, String)],
    body: impl FnOnce(&mut Emitter<'_>, &[Index], usize) -> Result<(), Unsupported>,
) -> Result<(), Unsupported> {
    let outer = e.depth();
    let names: Vec<String> = ranges.iter().map(|_| e.fresh("k")).collect();
    let lines = e.nested(|e, inner| {
        let vars: Vec<Index> = names.iter().map(|n| Index::new(n.clone(), inner)).collect();
        body(e, &vars, inner)
    })?;
    for (name, (from, to)) in names.iter().zip(ranges) {
        e.line(outer, format!("for (int64_t {name} = {from}; {name} < {to}; ++{name})"));
    }
    e.line(outer, "{");
    for line in lines {
        e.line(outer, line);
    }
    e.line(outer, "}");
    Ok(())
}

/// `acc = init; for (ranges) acc += body`, in the accumulation type, rounded once.
fn accumulate(
    e: &mut Emitter<'_>,
    value: Value,
    depth: usize,
    init: &str,
    ranges: &[(String, String)],
    body: impl FnOnce(&mut Emitter<'_>, &[Index]) -> Emitted,
) -> Emitted {
    let dtype = e.graph().ty(value).dtype;
    let accumulator = e.fresh("acc");
    let inner_depth = e.depth();
    e.line(inner_depth, format!("{} {accumulator} = {init};", register_type(dtype)));
    loops(e, ranges, |e, vars, inner| {
        let text = body(e, vars)?;
        e.line(inner, format!("{accumulator} += {text};"));
        Ok(())
    })?;
    Ok(e.rounded(depth.max(inner_depth), dtype, &accumulator))
}

/// `acc = 0; for (ranges) acc += x * y`; `body` may skip an element by adding a `continue` statement before.
fn accumulate_product(
    e: &mut Emitter<'_>,
    value: Value,
    depth: usize,
    ranges: &[(String, String)],
    body: impl FnOnce(&mut Emitter<'_>, &[Index]) -> Result<Option<(String, String)>, Unsupported>,
) -> Emitted {
    let init = zero(e.graph().ty(value).dtype);
    accumulate(e, value, depth, &init, ranges, |e, vars| {
        Ok(match body(e, vars)? {
            Some((x, y)) => format!("{x} * {y}"),
            None => init.clone(),
        })
    })
}

fn reduce(
    e: &mut Emitter<'_>,
    value: Value,
    operand: Value,
    op: ReduceOp,
    axes: &[usize],
    keep_dims: bool,
    index: &[Index],
    depth: usize,
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let shape = &graph.ty(operand).shape;
    let ranges: Vec<(String, String)> = axes.iter().map(|a| ("0".into(), cpp::dim(&shape[*a]))).collect();
    let ty = register_type(dtype);
    let accumulator = e.fresh("acc");
    let here = e.depth();
    e.line(here, format!("{ty} {accumulator} = {};", reduce_identity(op, dtype)));
    loops(e, &ranges, |e, vars, inner| {
        let mut at = Vec::with_capacity(shape.len());
        let mut outer = index.iter();
        for axis in 0..shape.len() {
            match axes.iter().position(|a| *a == axis) {
                Some(i) => {
                    if keep_dims {
                        outer.next();
                    }
                    at.push(vars[i].clone());
                }
                None => at.push(outer.next().cloned().unwrap_or_else(Index::zero)),
            }
        }
        let x = e.value(operand, &at)?;
        let step = match op {
            ReduceOp::Sum | ReduceOp::Mean if dtype.is_float() => format!("{accumulator} + {x}"),
            ReduceOp::Sum | ReduceOp::Mean => format!("forge::wrapping_add<{ty}>({accumulator}, {x})"),
            ReduceOp::Prod if dtype.is_float() => format!("{accumulator} * {x}"),
            ReduceOp::Prod => format!("forge::wrapping_mul<{ty}>({accumulator}, {x})"),
            ReduceOp::Max => format!("forge::maximum<{ty}>({accumulator}, {x})"),
            ReduceOp::Min => format!("forge::minimum<{ty}>({accumulator}, {x})"),
        };
        e.line(inner, format!("{accumulator} = {step};"));
        Ok(())
    })?;
    let result = if op == ReduceOp::Mean {
        let count = Dim::product(axes.iter().map(|a| &shape[*a]));
        if dtype.is_float() {
            format!("{accumulator} / {ty}({})", cpp::dim(&count))
        } else {
            format!("forge::int_div<{ty}>({accumulator}, {ty}({}))", cpp::dim(&count))
        }
    } else {
        accumulator
    };
    Ok(e.rounded(depth.max(here), dtype, &result))
}

/// The neutral element of a reduction as a literal.
pub(super) fn reduce_identity(op: ReduceOp, dtype: DType) -> String {
    let ty = register_type(dtype);
    match op {
        ReduceOp::Sum | ReduceOp::Mean => zero(dtype),
        ReduceOp::Prod => {
            if dtype.is_float() {
                float_literal(dtype, 1.0)
            } else {
                int_literal(dtype, 1)
            }
        }
        ReduceOp::Max if dtype.is_float() => float_literal(dtype, f64::NEG_INFINITY),
        ReduceOp::Min if dtype.is_float() => float_literal(dtype, f64::INFINITY),
        ReduceOp::Max => format!("std::numeric_limits<{ty}>::min()"),
        ReduceOp::Min => format!("std::numeric_limits<{ty}>::max()"),
    }
}

fn arg_reduce(
    e: &mut Emitter<'_>,
    operand: Value,
    op: ArgOp,
    axis: usize,
    keep_dims: bool,
    select_last: bool,
    index: &[Index],
    depth: usize,
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(operand).dtype;
    let shape = &graph.ty(operand).shape;
    let (best, best_at) = (e.fresh("best"), e.fresh("at"));
    let here = e.depth();
    e.line(here, format!("{} {best} = {};", register_type(dtype), zero(dtype)));
    e.line(here, format!("int64_t {best_at} = 0;"));
    loops(e, &[("0".into(), cpp::dim(&shape[axis]))], |e, vars, inner| {
        let mut at = index.to_vec();
        if keep_dims {
            at[axis] = vars[0].clone();
        } else {
            at.insert(axis, vars[0].clone());
        }
        let x = e.value(operand, &at)?;
        let sign = match (op, select_last) {
            (ArgOp::Max, false) => ">",
            (ArgOp::Max, true) => ">=",
            (ArgOp::Min, false) => "<",
            (ArgOp::Min, true) => "<=",
        };
        let k = &vars[0].text;
        let wins = if dtype.is_float() {
            // NaN is the extreme: it beats numbers, and the first (or last) NaN stays.
            let nan_again = if select_last { format!("{x} != {x}") } else { format!("{x} != {x} && {best} == {best}") };
            format!("{k} == 0 || ({nan_again}) || ({best} == {best} && {x} {sign} {best})")
        } else {
            format!("{k} == 0 || {x} {sign} {best}")
        };
        e.line(inner, format!("if ({wins}) {{ {best} = {x}; {best_at} = {k}; }}"));
        Ok(())
    })?;
    Ok(e.rounded(depth.max(here), DType::I64, &best_at))
}

/// The input coordinate of a window tap along one spatial axis: `out * stride - pad + tap * dilation`.
fn tap(out: &Index, tap: &Index, window: &Window, axis: usize) -> String {
    format!(
        "{} * {} - {} + {} * {}",
        out.text, window.strides[axis], window.pads_begin[axis], tap.text, window.dilations[axis]
    )
}

fn conv(
    e: &mut Emitter<'_>,
    value: Value,
    operands: &[Value],
    window: &Window,
    groups: i64,
    index: &[Index],
    depth: usize,
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let (x_shape, w_shape) = (&graph.ty(operands[0]).shape, &graph.ty(operands[1]).shape);
    let spatial = x_shape.len() - 2;
    let init = match operands.get(2) {
        Some(bias) => e.value(*bias, &index[1..2])?,
        None => zero(dtype),
    };
    let mut ranges = vec![("0".to_owned(), cpp::dim(&w_shape[1]))];
    ranges.extend((0..spatial).map(|i| ("0".to_owned(), cpp::dim(&w_shape[2 + i]))));
    let per_group_out = w_shape[0].floor_div(&Dim::from(groups));
    accumulate(e, value, depth, &init, &ranges, |e, vars| {
        let inner = e.depth();
        let channel = if groups == 1 {
            vars[0].clone()
        } else {
            let text = format!(
                "({} / {} * {} + {})",
                index[1].text,
                cpp::dim(&per_group_out),
                cpp::dim(&w_shape[1]),
                vars[0].text
            );
            Index::new(text, inner)
        };
        let mut at = vec![index[0].clone(), channel];
        for axis in 0..spatial {
            let name = e.fresh("x");
            e.line(inner, format!("const int64_t {name} = {};", tap(&index[2 + axis], &vars[1 + axis], window, axis)));
            e.line(inner, format!("if ({name} < 0 || {name} >= {}) continue;", cpp::dim(&x_shape[2 + axis])));
            at.push(Index::new(name, inner));
        }
        let x = e.value(operands[0], &at)?;
        let mut w_at = vec![index[1].clone()];
        w_at.extend(vars.iter().cloned());
        let w = e.value(operands[1], &w_at)?;
        Ok(format!("{x} * {w}"))
    })
}

fn conv_transpose(
    e: &mut Emitter<'_>,
    value: Value,
    operands: &[Value],
    window: &Window,
    groups: i64,
    index: &[Index],
    depth: usize,
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let (x_shape, w_shape) = (&graph.ty(operands[0]).shape, &graph.ty(operands[1]).shape);
    let spatial = x_shape.len() - 2;
    let init = match operands.get(2) {
        Some(bias) => e.value(*bias, &index[1..2])?,
        None => zero(dtype),
    };
    let per_group_in = cpp::dim(&x_shape[1].floor_div(&Dim::from(groups)));
    let per_group_out = cpp::dim(&w_shape[1]);
    let mut ranges = vec![("0".to_owned(), per_group_in.clone())];
    ranges.extend((0..spatial).map(|i| ("0".to_owned(), cpp::dim(&w_shape[2 + i]))));
    accumulate(e, value, depth, &init, &ranges, |e, vars| {
        let inner = e.depth();
        let out_channel = &index[1].text;
        let channel =
            Index::new(format!("({out_channel} / {per_group_out} * {per_group_in} + {})", vars[0].text), inner);
        let mut at = vec![index[0].clone(), channel.clone()];
        for axis in 0..spatial {
            // out = in * stride - pad + tap * dilation, solved for in.
            let (numerator, name) = (e.fresh("y"), e.fresh("x"));
            e.line(
                inner,
                format!(
                    "const int64_t {numerator} = {} + {} - {} * {};",
                    index[2 + axis].text,
                    window.pads_begin[axis],
                    vars[1 + axis].text,
                    window.dilations[axis]
                ),
            );
            let stride = window.strides[axis];
            e.line(inner, format!("if ({numerator} < 0 || {numerator} % {stride} != 0) continue;"));
            e.line(inner, format!("const int64_t {name} = {numerator} / {stride};"));
            e.line(inner, format!("if ({name} >= {}) continue;", cpp::dim(&x_shape[2 + axis])));
            at.push(Index::new(name, inner));
        }
        let x = e.value(operands[0], &at)?;
        let mut w_at = vec![channel, Index::new(format!("({out_channel} % {per_group_out})"), inner)];
        w_at.extend(vars[1..].iter().cloned());
        let w = e.value(operands[1], &w_at)?;
        Ok(format!("{x} * {w}"))
    })
}

fn pool(
    e: &mut Emitter<'_>,
    value: Value,
    operand: Value,
    kind: PoolKind,
    kernel: &[i64],
    window: &Window,
    count_include_pad: bool,
    index: &[Index],
    depth: usize,
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let ty = register_type(dtype);
    let shape = &graph.ty(operand).shape;
    let (accumulator, count) = (e.fresh("acc"), e.fresh("count"));
    let here = e.depth();
    let op = if kind == PoolKind::Max { ReduceOp::Max } else { ReduceOp::Sum };
    e.line(here, format!("{ty} {accumulator} = {};", reduce_identity(op, dtype)));
    e.line(here, format!("int64_t {count} = 0;"));
    let ranges: Vec<(String, String)> = kernel.iter().map(|k| ("0".into(), k.to_string())).collect();
    loops(e, &ranges, |e, vars, inner| {
        let mut at = index[..2].to_vec();
        let mut inside = Vec::new();
        let mut padded = Vec::new();
        for axis in 0..kernel.len() {
            let name = e.fresh("x");
            e.line(inner, format!("const int64_t {name} = {};", tap(&index[2 + axis], &vars[axis], window, axis)));
            let extent = cpp::dim(&shape[2 + axis]);
            inside.push(format!("{name} >= 0 && {name} < {extent}"));
            // Ceil mode may reach past the end padding; those taps never count.
            padded.push(format!("{name} < {extent} + {}", window.pads_end[axis]));
            at.push(Index::new(name, inner));
        }
        if count_include_pad {
            e.line(inner, format!("{count} += {};", padded.join(" && ")));
        }
        e.line(inner, format!("if (!({})) continue;", inside.join(" && ")));
        let x = e.value(operand, &at)?;
        if kind == PoolKind::Max {
            e.line(inner, format!("{accumulator} = forge::maximum<{ty}>({accumulator}, {x});"));
        } else {
            e.line(inner, format!("{accumulator} += {x};"));
            if !count_include_pad {
                e.line(inner, format!("++{count};"));
            }
        }
        Ok(())
    })?;
    let result = if kind == PoolKind::Max { accumulator } else { format!("{accumulator} / {ty}({count})") };
    Ok(e.rounded(depth.max(here), dtype, &result))
}

fn resize(
    e: &mut Emitter<'_>,
    value: Value,
    operand: Value,
    mode: ResizeMode,
    coordinates: ResizeCoordinates,
    rounding: ResizeRounding,
    scales: &[f64],
    index: &[Index],
    depth: usize,
) -> Emitted {
    let graph = e.graph();
    let dtype = graph.ty(value).dtype;
    let (out_shape, in_shape) = (&graph.ty(value).shape, &graph.ty(operand).shape);
    if mode == ResizeMode::Cubic {
        return Err(Unsupported::new("cubic resize has no generic lowering yet"));
    }
    let depth = depth.min(e.depth());
    // Per resized axis: the index taps and their weights.
    let mut taps: Vec<Vec<(Index, Option<String>)>> = Vec::new();
    for axis in 0..in_shape.len() {
        if out_shape[axis] == in_shape[axis] && scales.get(axis).is_none_or(|s| *s == 1.0) {
            taps.push(vec![(index[axis].clone(), None)]);
            continue;
        }
        let (out_extent, in_extent) = (cpp::dim(&out_shape[axis]), cpp::dim(&in_shape[axis]));
        let scale = format!("{:?}", scales.get(axis).copied().unwrap_or(1.0));
        let i = &index[axis].text;
        let source = match coordinates {
            ResizeCoordinates::HalfPixel => format!("(double({i}) + 0.5) / {scale} - 0.5"),
            ResizeCoordinates::PytorchHalfPixel => {
                format!("({out_extent} > 1 ? (double({i}) + 0.5) / {scale} - 0.5 : 0.0)")
            }
            ResizeCoordinates::AlignCorners => {
                format!("({out_extent} > 1 ? double({i}) * double({in_extent} - 1) / double({out_extent} - 1) : 0.0)")
            }
            ResizeCoordinates::Asymmetric => format!("double({i}) / {scale}"),
            ResizeCoordinates::HalfPixelSymmetric => format!(
                "double({in_extent}) / 2.0 * (1.0 - double({out_extent}) / ({scale} * double({in_extent}))) + (double({i}) + 0.5) / \
                 {scale} - 0.5"
            ),
        };
        let c = e.fresh("c");
        e.line(depth, format!("const double {c} = {source};"));
        if mode == ResizeMode::Nearest {
            let rounded = match rounding {
                ResizeRounding::RoundPreferFloor => format!("std::ceil({c} - 0.5)"),
                ResizeRounding::RoundPreferCeil => format!("std::floor({c} + 0.5)"),
                ResizeRounding::Floor => format!("std::floor({c})"),
                ResizeRounding::Ceil => format!("std::ceil({c})"),
            };
            let name = e.fresh("n");
            e.line(depth, format!("const int64_t {name} = max(0, min(int64_t({rounded}), {in_extent} - 1));"));
            taps.push(vec![(Index::new(name, depth), None)]);
        } else {
            let (low, fraction) = (e.fresh("n"), e.fresh("f"));
            e.line(depth, format!("const double {low}_floor = std::floor({c});"));
            e.line(depth, format!("const {0} {fraction} = {0}({c} - {low}_floor);", register_type(dtype)));
            e.line(depth, format!("const int64_t {low} = max(0, min(int64_t({low}_floor), {in_extent} - 1));"));
            e.line(
                depth,
                format!("const int64_t {low}_next = max(0, min(int64_t({low}_floor) + 1, {in_extent} - 1));"),
            );
            let one = float_literal(dtype, 1.0);
            taps.push(vec![
                (Index::new(low.clone(), depth), Some(format!("({one} - {fraction})"))),
                (Index::new(format!("{low}_next"), depth), Some(fraction)),
            ]);
        }
    }
    // The product of all taps: one for nearest, 2^n for linear in n axes.
    let mut terms: Vec<(Vec<Index>, Vec<String>)> = vec![(Vec::new(), Vec::new())];
    for axis_taps in &taps {
        terms = terms
            .iter()
            .flat_map(|(at, weights)| {
                axis_taps.iter().map(move |(ix, weight)| {
                    let mut at = at.clone();
                    at.push(ix.clone());
                    let mut weights = weights.clone();
                    weights.extend(weight.clone());
                    (at, weights)
                })
            })
            .collect();
    }
    let mut sum = Vec::new();
    for (at, weights) in &terms {
        let mut factors = vec![e.value(operand, at)?];
        factors.extend(weights.iter().cloned());
        sum.push(factors.join(" * "));
    }
    Ok(e.rounded(depth, dtype, &sum.join(" + ")))
}
