//! A region as loops over rows: each row runs one inner loop per reduction level, so that softmax or a norm with everything
//! elementwise around it is one pass over memory.

use std::collections::HashMap;
use std::fmt::Write as _;

use forge_ir::{DType, Dim, Graph, NodeId, Op, ReduceOp, Value};

use super::Unsupported;
use super::collapse::collapse;
use super::cpp::{self, Parameter, register_type};
use super::emit::{Binding, Emitter, Index, indent, is_costly};
use super::nested::reduce_identity;
use crate::candidate::{Launch, Slot};

/// Which values of a row are kept in scratch between its loops instead of being computed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Nothing,
    /// Those with a division, a transcendental function or an index load.
    Costly,
    /// Every one that a later loop needs.
    Everything,
}

/// How [`rowwise`] arranges a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowOptions {
    pub stage: Stage,
    /// Elements of the inner axis per block, when nothing is reduced.
    pub block: i64,
}

impl Default for RowOptions {
    fn default() -> RowOptions {
        RowOptions { stage: Stage::Costly, block: 4096 }
    }
}

/// One kernel: its source (without the prelude) and its launch over the region's inputs and outputs.
pub struct Kernel {
    pub source: String,
    pub launch: Launch,
}

/// Fewest elements that are worth a thread's attention.
const GRAIN_ELEMENTS: i64 = 8192;

/// Lowers a region of composite-free ops to one kernel named `name`.
///
/// # Errors
/// If the region has no single row structure: outputs over different domains, reductions over different axes, ops without an
/// indexed form.
pub fn rowwise(region: &Graph, name: &str, options: RowOptions) -> Result<Kernel, Unsupported> {
    let collapsed = collapse(region);
    let graph = collapsed.as_ref().unwrap_or(region);
    let rows = Rows::of(graph)?;
    let mut emitter = Emitter::new(graph);
    let mut parameters = Vec::new();
    for (i, node) in graph.inputs().iter().enumerate() {
        let value = Value { node: *node, port: 0 };
        let parameter = format!("in{i}");
        emitter.bind(value, Binding::Buffer(parameter.clone()));
        parameters.push(Parameter { name: parameter, dtype: graph.ty(value).dtype, write: false });
    }
    for (i, (_, value)) in graph.outputs().iter().enumerate() {
        parameters.push(Parameter { name: format!("out{i}"), dtype: graph.ty(*value).dtype, write: true });
    }

    // Row and inner indices.
    let outer_rank = rows.domain.len() - rows.inner;
    let blocked = rows.reductions.is_empty() && rows.inner == 1;
    let extent = Dim::product(&rows.domain[outer_rank..]);
    let single_block = extent.as_const().is_some_and(|e| e <= options.block);
    let blocks = if blocked && !single_block { extent.ceil_div(&Dim::from(options.block)) } else { Dim::from(1) };
    let row_text = if blocks.is_one() { "r".to_owned() } else { format!("r / {}", cpp::dim(&blocks)) };
    emitter.line(0, format!("const int64_t row = {row_text};"));
    let mut index = Vec::new();
    emitter.delinear(&rows.domain[..outer_rank], &Index::new("row", 0), &mut index);
    let outer_index = index.clone();
    let inner_names: Vec<String> = (0..rows.inner).map(|i| format!("i{i}")).collect();
    index.extend(inner_names.iter().map(|n| Index::new(n.clone(), 1)));
    let (from, to) = if blocks.is_one() {
        ("0".to_owned(), rows.domain.last().map_or_else(|| "1".to_owned(), cpp::dim))
    } else {
        emitter.line(0, format!("const int64_t block = (r % {}) * {};", cpp::dim(&blocks), options.block));
        ("block".to_owned(), format!("min(block + {}, {})", options.block, cpp::dim(&extent)))
    };

    let mut scratch = Dim::from(0);
    let mut stage_setup = String::new();
    for level in 0..=rows.last_level {
        emitter.push_scope();
        let mut clauses = Vec::new();
        let mut after = Vec::new();
        for reduction in rows.reductions.iter().filter(|r| rows.level[&r.operand.node] == level) {
            let x = emitter.value(reduction.operand, &index)?;
            let done = accumulate(&mut emitter, graph, reduction, &x, &extent, &mut clauses);
            after.push((reduction.node, done));
        }
        for (i, (_, value)) in graph.outputs().iter().enumerate() {
            if rows.full(graph, *value) && rows.level[&value.node] == level {
                let text = emitter.value(*value, &index)?;
                let at = emitter.linear(&graph.ty(*value).shape, &index);
                emitter.line(1, format!("out{i}[{}] = {text};", at.text));
            }
        }
        let mut staged = Vec::new();
        for value in rows.staged(graph, level, options.stage) {
            let dtype = graph.ty(value).dtype;
            let buffer = emitter.fresh("stage");
            let ty = if dtype == DType::Bool { "uint8_t" } else { register_type(dtype) };
            let _ = writeln!(
                stage_setup,
                "  {ty}* __restrict {buffer} = reinterpret_cast<{ty}*>(static_cast<char*>(scratch) + {});",
                cpp::dim(&scratch)
            );
            let bytes = extent.clone() * Dim::from(dtype.size().max(4));
            scratch = scratch + bytes.ceil_div(&Dim::from(64)) * Dim::from(64);
            let text = emitter.value(value, &index)?;
            let at = emitter.linear(&rows.domain[outer_rank..], &index[outer_rank..]);
            emitter.line(1, format!("{buffer}[{}] = {text};", at.text));
            staged.push((
                value,
                Binding::Register { text: format!("{buffer}[{}]", at.text), depth: 1, index: index.clone() },
            ));
        }
        let body = emitter.pop_scope();
        if !body.is_empty() {
            loop_nest(&mut emitter, &body, &clauses, &inner_names, &rows.domain[outer_rank..], &from, &to);
        }
        for (value, binding) in staged {
            emitter.bind(value, binding);
        }
        for (node, result) in after {
            let value = Value { node, port: 0 };
            let mut at = outer_index.clone();
            if graph.ty(value).rank() == rows.domain.len() {
                at.extend((0..rows.inner).map(|_| Index::zero()));
            }
            let name = emitter.fresh("r");
            let dtype = graph.ty(value).dtype;
            let rounded = match dtype {
                DType::F16 => format!("forge::round_to_half({result})"),
                DType::BF16 => format!("forge::round_to_bfloat16({result})"),
                _ => result,
            };
            emitter.line(0, format!("const {} {name} = {rounded};", register_type(dtype)));
            emitter.bind(value, Binding::Register { text: name, depth: 0, index: normalized(graph, value, &at) });
        }
    }
    // Results of one element per row.
    for (i, (_, value)) in graph.outputs().iter().enumerate() {
        if !rows.full(graph, *value) {
            let mut at = outer_index.clone();
            at.extend((at.len()..graph.ty(*value).rank()).map(|_| Index::zero()));
            let text = emitter.value(*value, &at)?;
            let offset = emitter.linear(&graph.ty(*value).shape, &normalized(graph, *value, &at));
            emitter.line(0, format!("out{i}[{}] = {text};", offset.text));
        }
    }

    let lines = emitter.pop_scope();
    let symbols = cpp::symbols_of(
        graph
            .node_ids()
            .flat_map(|n| graph.node(n).outputs.iter().flat_map(|t| &t.shape).cloned().collect::<Vec<_>>())
            .chain(attribute_dims(graph))
            .collect::<Vec<_>>()
            .iter(),
    );
    let body = format!("{stage_setup}  for (int64_t r = begin; r < end; ++r) {{\n{}  }}\n", indent(&lines, 4));
    let source = cpp::kernel(&comment(region), name, &parameters, &symbols, &body);
    let grid = Dim::product(&rows.domain[..outer_rank]) * blocks.clone();
    let per_row = if blocks.is_one() { extent } else { Dim::from(options.block) };
    let launch = Launch::Kernel {
        symbol: name.to_owned(),
        reads: (0..graph.inputs().len()).map(Slot::Input).collect(),
        writes: (0..graph.outputs().len()).map(Slot::Output).collect(),
        sizes: symbols.iter().map(|s| Dim::symbol(s)).collect(),
        grid,
        grain: Dim::from(GRAIN_ELEMENTS).floor_div(&per_row.maximum(&Dim::from(1))).maximum(&Dim::from(1)),
        scratch,
    };
    Ok(Kernel { source, launch })
}

/// The dims that appear only in attributes (slice starts, pads).
pub(crate) fn attribute_dims(graph: &Graph) -> Vec<Dim> {
    let mut dims = Vec::new();
    for node in graph.node_ids() {
        match graph.op(node) {
            Op::Slice { starts, .. } => dims.extend(starts.iter().cloned()),
            Op::Pad { before, after, .. } => dims.extend(before.iter().chain(after).cloned()),
            Op::DimValue { dim } => dims.push(dim.clone()),
            _ => {}
        }
    }
    dims
}

/// The IR that a kernel implements, for its reader.
pub(super) fn comment(graph: &Graph) -> String {
    graph.to_text()
}

fn normalized(graph: &Graph, value: Value, index: &[Index]) -> Vec<Index> {
    let shape = &graph.ty(value).shape;
    shape.iter().zip(index).map(|(d, ix)| if d.is_one() { Index::zero() } else { ix.clone() }).collect()
}

struct Reduction {
    node: NodeId,
    operand: Value,
    op: ReduceOp,
}

/// The row structure of a region.
struct Rows {
    domain: Vec<Dim>,
    /// How many trailing axes a row spans.
    inner: usize,
    reductions: Vec<Reduction>,
    /// How many staged reductions stand between the inputs and a node.
    level: HashMap<NodeId, usize>,
    last_level: usize,
}

impl Rows {
    fn of(graph: &Graph) -> Result<Rows, Unsupported> {
        let mut reductions = Vec::new();
        let mut shape: Option<(Vec<Dim>, usize)> = None;
        for node in graph.topological() {
            let Op::Reduce { op, axes, .. } = graph.op(node) else { continue };
            let operand = graph.operands(node)[0];
            let operand_shape = &graph.ty(operand).shape;
            let trailing = axes.iter().copied().eq(operand_shape.len() - axes.len()..operand_shape.len());
            let fits = trailing && shape.as_ref().is_none_or(|(s, k)| s == operand_shape && *k == axes.len());
            if fits {
                shape.get_or_insert_with(|| (operand_shape.clone(), axes.len()));
                reductions.push(Reduction { node, operand, op: *op });
            } else if graph.outputs().iter().any(|(_, v)| graph.ty(*v).numel() != graph.node(node).outputs[0].numel()) {
                return Err(Unsupported::new("reductions over different axes would be recomputed for every element"));
            }
        }
        let first = graph.outputs().first().ok_or_else(|| Unsupported::new("a region without outputs"))?;
        let (domain, inner) = match shape {
            Some(found) => found,
            None => {
                let domain = graph.ty(first.1).shape.clone();
                let inner = usize::from(!domain.is_empty());
                (domain, inner)
            }
        };
        let mut level: HashMap<NodeId, usize> = HashMap::new();
        for node in graph.topological() {
            let below = graph.operands(node).iter().map(|v| level[&v.node]).max().unwrap_or(0);
            level.insert(node, below + usize::from(reductions.iter().any(|r| r.node == node)));
        }
        let rows = Rows { last_level: level.values().copied().max().unwrap_or(0), domain, inner, reductions, level };
        let row_shape = &rows.domain[..rows.domain.len() - rows.inner];
        for (_, value) in graph.outputs() {
            let shape = &graph.ty(*value).shape;
            let is_row = !rows.reductions.is_empty()
                && shape.len() >= row_shape.len()
                && shape[..row_shape.len()] == *row_shape
                && shape[row_shape.len()..].iter().all(Dim::is_one);
            if !(rows.full(graph, *value) || is_row) {
                return Err(Unsupported::new(format!(
                    "output {} is neither over the rows' domain nor one element a row",
                    graph.ty(*value)
                )));
            }
        }
        Ok(rows)
    }

    fn full(&self, graph: &Graph, value: Value) -> bool {
        graph.ty(value).shape == self.domain
    }

    /// Values of this level that later levels read, by policy.
    fn staged(&self, graph: &Graph, level: usize, stage: Stage) -> Vec<Value> {
        if stage == Stage::Nothing {
            return Vec::new();
        }
        let mut out = Vec::new();
        for node in graph.topological() {
            let value = Value { node, port: 0 };
            if matches!(graph.op(node), Op::Input { .. } | Op::Constant { .. } | Op::Reduce { .. })
                || self.level[&node] != level
                || !self.full(graph, value)
            {
                continue;
            }
            let read_later = graph
                .users(node)
                .iter()
                .any(|u| self.level[u] > level && !self.reads_only_as_reduction(graph, *u, level));
            let costly = stage == Stage::Everything || self.cone_is_costly(graph, node, level);
            if read_later && costly {
                out.push(value);
            }
        }
        out
    }

    /// Whether `user` is a reduction fed in this very level's loop.
    fn reads_only_as_reduction(&self, graph: &Graph, user: NodeId, level: usize) -> bool {
        self.reductions.iter().any(|r| r.node == user && self.level[&r.operand.node] == level) && graph.contains(user)
    }

    fn cone_is_costly(&self, graph: &Graph, node: NodeId, level: usize) -> bool {
        is_costly(graph.op(node))
            || graph.operands(node).iter().any(|v| {
                self.level[&v.node] == level && self.full(graph, *v) && self.cone_is_costly(graph, v.node, level)
            })
    }
}

/// Adds the statements of one reduction step; returns the expression of the result after the loop.
fn accumulate(
    emitter: &mut Emitter<'_>,
    graph: &Graph,
    reduction: &Reduction,
    x: &str,
    extent: &Dim,
    clauses: &mut Vec<String>,
) -> String {
    let dtype = graph.ty(reduction.operand).dtype;
    let ty = register_type(dtype);
    let accumulator = emitter.fresh("acc");
    emitter.line(0, format!("{ty} {accumulator} = {};", reduce_identity(reduction.op, dtype)));
    match reduction.op {
        ReduceOp::Sum | ReduceOp::Mean => {
            clauses.push(format!("reduction(+ : {accumulator})"));
            emitter.line(1, format!("{accumulator} += {x};"));
        }
        ReduceOp::Prod => {
            clauses.push(format!("reduction(* : {accumulator})"));
            emitter.line(1, format!("{accumulator} *= {x};"));
        }
        ReduceOp::Max | ReduceOp::Min => {
            let (name, sign) = if reduction.op == ReduceOp::Max { ("max", ">") } else { ("min", "<") };
            clauses.push(format!("reduction({name} : {accumulator})"));
            emitter.line(1, format!("{accumulator} = {x} {sign} {accumulator} ? {x} : {accumulator};"));
            if dtype.is_float() {
                // Comparisons drop NaN; a flag brings it back.
                let flag = emitter.fresh("nan");
                emitter.line(0, format!("int {flag} = 0;"));
                clauses.push(format!("reduction(| : {flag})"));
                emitter.line(1, format!("{flag} |= {x} != {x};"));
                return format!("{flag} ? {} : {accumulator}", cpp::float_literal(dtype, f64::NAN));
            }
        }
    }
    match reduction.op {
        ReduceOp::Mean if dtype.is_float() => format!("{accumulator} / {ty}({})", cpp::dim(extent)),
        ReduceOp::Mean => format!("forge::int_div<{ty}>({accumulator}, {ty}({}))", cpp::dim(extent)),
        _ => accumulator,
    }
}

fn loop_nest(
    emitter: &mut Emitter<'_>,
    body: &[String],
    clauses: &[String],
    names: &[String],
    extents: &[Dim],
    from: &str,
    to: &str,
) {
    let Some((last, outer)) = names.split_last() else {
        // A scalar domain: the statements run once.
        for line in body {
            emitter.line(0, line.clone());
        }
        return;
    };
    for (name, extent) in outer.iter().zip(extents) {
        emitter.line(0, format!("for (int64_t {name} = 0; {name} < {}; ++{name})", cpp::dim(extent)));
    }
    // Inner loops and early exits are for the scalar form.
    if !body.iter().any(|l| l.trim_start().starts_with("for (") || l.contains("continue;")) {
        emitter.line(0, format!("#pragma omp simd {}", clauses.join(" ")).trim_end().to_owned());
    }
    emitter.line(0, format!("for (int64_t {last} = {from}; {last} < {to}; ++{last}) {{"));
    for line in body {
        emitter.line(0, format!("  {line}"));
    }
    emitter.line(0, "}");
}
