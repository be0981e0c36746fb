//! Ops that are not functions from an index to a value: scatters (copy, then update in order) and top-k (a selection per row).

use forge_ir::{Dim, Graph, NodeId, Op, ScatterReduce, Value};

use super::Unsupported;
use super::cpp::{self, Parameter, register_type};
use super::emit::{Binding, Emitter, Index, indent};
use super::rowwise::{Kernel, attribute_dims, comment};
use crate::candidate::{Launch, Slot};

/// Lowers a one-op region holding a scatter or a top-k.
///
/// # Errors
/// For any other region.
pub fn special(graph: &Graph, name: &str) -> Result<Kernel, Unsupported> {
    let node = graph
        .topological()
        .into_iter()
        .find(|n| matches!(graph.op(*n), Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::TopK { .. }))
        .ok_or_else(|| Unsupported::new("no scatter or top-k in the region"))?;
    if graph.op_count() != 1 {
        return Err(Unsupported::new("scatter and top-k are lowered alone"));
    }
    let mut emitter = Emitter::new(graph);
    let mut parameters = Vec::new();
    for (i, input) in graph.inputs().iter().enumerate() {
        let value = Value { node: *input, port: 0 };
        emitter.bind(value, Binding::Buffer(format!("in{i}")));
        parameters.push(Parameter { name: format!("in{i}"), dtype: graph.ty(value).dtype, write: false });
    }
    for (i, (_, value)) in graph.outputs().iter().enumerate() {
        parameters.push(Parameter { name: format!("out{i}"), dtype: graph.ty(*value).dtype, write: true });
    }
    let (body, grid, scratch) = match graph.op(node) {
        Op::TopK { axis, k, largest } => top_k(graph, &mut emitter, node, *axis, k, *largest)?,
        _ => (scatter(graph, &mut emitter, node)?, Dim::from(1), Dim::from(0)),
    };
    let dims: Vec<Dim> = graph
        .node_ids()
        .flat_map(|n| graph.node(n).outputs.iter().flat_map(|t| t.shape.clone()).collect::<Vec<_>>())
        .chain(attribute_dims(graph))
        .collect();
    let symbols = cpp::symbols_of(&dims);
    let source = cpp::kernel(&comment(graph), name, &parameters, &symbols, &body);
    let launch = Launch::Kernel {
        symbol: name.to_owned(),
        reads: (0..graph.inputs().len()).map(Slot::Input).collect(),
        writes: (0..graph.outputs().len()).map(Slot::Output).collect(),
        sizes: symbols.iter().map(|s| Dim::symbol(s)).collect(),
        grid,
        grain: Dim::from(1),
        scratch,
    };
    Ok(Kernel { source, launch })
}

fn update(reduce: ScatterReduce, dtype: forge_ir::DType, target: &str, x: &str) -> String {
    let ty = register_type(dtype);
    match reduce {
        ScatterReduce::None => format!("{target} = {x};"),
        ScatterReduce::Add if dtype.is_float() => format!("{target} = {ty}({target}) + {x};"),
        ScatterReduce::Add => format!("{target} = forge::wrapping_add<{ty}>({target}, {x});"),
        ScatterReduce::Mul if dtype.is_float() => format!("{target} = {ty}({target}) * {x};"),
        ScatterReduce::Mul => format!("{target} = forge::wrapping_mul<{ty}>({target}, {x});"),
        ScatterReduce::Max => format!("{target} = forge::maximum<{ty}>({target}, {x});"),
        ScatterReduce::Min => format!("{target} = forge::minimum<{ty}>({target}, {x});"),
    }
}

/// One thread: updates with equal indices apply in order.
fn scatter(graph: &Graph, emitter: &mut Emitter<'_>, node: NodeId) -> Result<String, Unsupported> {
    let operands = graph.operands(node);
    let [x, indices, updates] = operands.as_slice() else {
        return Err(Unsupported::new("a scatter takes three operands"));
    };
    let (x_ty, index_ty, update_ty) = (graph.ty(*x), graph.ty(*indices), graph.ty(*updates));
    emitter.push_scope();
    let mut at = Vec::new();
    emitter.delinear(&update_ty.shape, &Index::new("u", 1), &mut at);
    let u = emitter.value(*updates, &at)?;
    let (target, reduce) = match graph.op(node) {
        Op::ScatterElements { axis, reduce } => {
            let picked = emitter.value(*indices, &at)?;
            let mut target = at.clone();
            target[*axis] =
                Index::new(format!("forge::wrap_index(int64_t({picked}), {})", cpp::dim(&x_ty.shape[*axis])), 1);
            (target, *reduce)
        }
        Op::ScatterNd { reduce } => {
            let outer = index_ty.rank() - 1;
            let width = index_ty.shape[outer]
                .as_const()
                .ok_or_else(|| Unsupported::new("scatter_nd with a symbolic index depth"))?;
            let mut target = Vec::new();
            for j in 0..width {
                let mut index_at: Vec<Index> = at[..outer].to_vec();
                index_at.push(Index::new(j.to_string(), 0));
                let picked = emitter.value(*indices, &index_at)?;
                let extent = cpp::dim(&x_ty.shape[j as usize]);
                target.push(Index::new(format!("forge::wrap_index(int64_t({picked}), {extent})"), 1));
            }
            target.extend_from_slice(&at[outer..]);
            (target, *reduce)
        }
        other => return Err(Unsupported::new(format!("{} is not a scatter", other.name()))),
    };
    let offset = emitter.linear(&x_ty.shape, &target);
    emitter.line(1, update(reduce, x_ty.dtype, &format!("out0[{}]", offset.text), &u));
    let lines = emitter.pop_scope();
    let hoisted = emitter.pop_scope();
    Ok(format!(
        "  for (int64_t i = 0; i < {}; ++i) out0[i] = in0[i];\n{}  for (int64_t u = 0; u < {}; ++u) {{\n{}  }}\n",
        cpp::dim(&x_ty.numel()),
        indent(&hoisted, 2),
        cpp::dim(&update_ty.numel()),
        indent(&lines, 4)
    ))
}

/// Each row: repeated selection of the best not yet taken; ties and NaN as in the interpreter (NaN is the largest, lower index
/// first).
fn top_k(
    graph: &Graph,
    emitter: &mut Emitter<'_>,
    node: NodeId,
    axis: usize,
    k: &Dim,
    largest: bool,
) -> Result<(String, Dim, Dim), Unsupported> {
    let operand = graph.operands(node)[0];
    let ty = graph.ty(operand);
    let rows: Vec<Dim> =
        ty.shape.iter().enumerate().map(|(i, d)| if i == axis { Dim::from(1) } else { d.clone() }).collect();
    let mut base = Vec::new();
    emitter.delinear(&rows, &Index::new("r", 0), &mut base);
    emitter.push_scope();
    let mut at = base.clone();
    at[axis] = Index::new("j", 1);
    let x = emitter.value(operand, &at)?;
    let inner = emitter.pop_scope();
    let mut out_at = base;
    out_at[axis] = Index::new("t", 1);
    let mut out_shape = ty.shape.clone();
    out_shape[axis] = k.clone();
    let out_offset = emitter.linear(&out_shape, &out_at).text;
    let hoisted = emitter.pop_scope();
    let extent = cpp::dim(&ty.shape[axis]);
    let nan = |v: &str| if ty.dtype.is_float() { format!("({v} != {v})") } else { "false".into() };
    let beats = if largest {
        format!("(!{1} && ({0} || {2} > best))", nan(&x), nan("best"), x)
    } else {
        format!("(!{0} && ({1} || {2} < best))", nan(&x), nan("best"), x)
    };
    let writes: Vec<String> = graph
        .outputs()
        .iter()
        .enumerate()
        .map(|(i, (_, v))| format!("      out{i}[{out_offset}] = {};\n", if v.port == 0 { "best" } else { "at" }))
        .collect();
    let body = format!(
        "  uint8_t* taken = static_cast<uint8_t*>(scratch);\n  for (int64_t r = begin; r < end; ++r) {{\n{hoisted}    for (int64_t j = 0; \
         j < {extent}; ++j) taken[j] = 0;\n    for (int64_t t = 0; t < {k}; ++t) {{\n      {ty} best{{}};\n      int64_t at = -1;\n      for \
         (int64_t j = 0; j < {extent}; ++j) {{\n        if (taken[j]) continue;\n{inner}        if (at < 0 || {beats}) {{ best = {x}; at = \
         j; }}\n      }}\n      taken[at] = 1;\n{writes}    }}\n  }}\n",
        hoisted = indent(&hoisted, 4),
        inner = indent(&inner, 8),
        k = cpp::dim(k),
        ty = register_type(ty.dtype),
        writes = writes.concat(),
    );
    Ok((body, Dim::product(&rows), ty.shape[axis].clone()))
}
