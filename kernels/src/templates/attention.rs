//! Template `attention`: one task is a block of query rows of one head. Keys are packed transposed, values as panels; the scores of
//! the block stay in scratch. Views of q, k, v before and of the result after are folded into the loads and stores.

use forge_ir::{DType, Dim, Graph, NodeId, Op, OpClass, Value};

use super::{Axis, Parameters, Spec, anchor, axis, candidate, number, region_parameters, region_slots};
use crate::candidate::{Candidate, Launch, LaunchPlan};
use crate::codegen::Unsupported;
use crate::codegen::cpp;
use crate::codegen::emit::{Binding, Emitter, Index, indent};
use crate::codegen::rowwise::attribute_dims;

const WIDTH: i64 = 32;
const ROWS: i64 = 8;

fn find(spec: &Spec<'_>) -> Result<NodeId, Unsupported> {
    let region = spec.region;
    let node = anchor(region, "attention", |op| matches!(op, Op::Attention { .. }))?;
    let operands = region.operands(node);
    if operands.iter().take(3).any(|v| region.ty(*v).dtype != DType::F32) {
        return Err(Unsupported::new("attention in another dtype than f32"));
    }
    if region.outputs().len() != 1 {
        return Err(Unsupported::new("more than one output"));
    }
    views_after(region, node)?;
    Ok(node)
}

/// The views from the attention's result to the region's output, in order.
fn views_after(region: &Graph, node: NodeId) -> Result<Vec<NodeId>, Unsupported> {
    let mut chain = Vec::new();
    let mut at = region.outputs()[0].1.node;
    while at != node {
        if !matches!(region.op(at), Op::Reshape { .. } | Op::Transpose { .. }) {
            return Err(Unsupported::new(format!("{} after the attention is not a view", region.op(at).name())));
        }
        chain.push(at);
        at = region.operands(at)[0].node;
        if region.op(at).class() == OpClass::Leaf {
            return Err(Unsupported::new("the output does not come from the attention"));
        }
    }
    chain.reverse();
    Ok(chain)
}

pub(super) fn space(spec: &Spec<'_>) -> Result<Vec<Axis>, Unsupported> {
    find(spec)?;
    Ok(vec![axis("query_block", &[64, 128, 32, 16])])
}

pub(super) fn instantiate(spec: &Spec<'_>, parameters: &Parameters) -> Result<Candidate, Unsupported> {
    let region = spec.region;
    let node = find(spec)?;
    let Op::Attention { scale, causal, causal_offset, masked_rows_zero } = *region.op(node) else {
        return Err(Unsupported::new("no attention"));
    };
    let block = number(parameters, "query_block")?;
    let operands = region.operands(node);
    let (q, k, v) = (region.ty(operands[0]), region.ty(operands[1]), region.ty(operands[2]));
    let [batch, heads, queries, depth] = q.shape.as_slice() else {
        return Err(Unsupported::new("q is not rank 4"));
    };
    let (kv_heads, keys, value_depth) = (&k.shape[1], &k.shape[2], &v.shape[3]);
    let group = heads.floor_div(kv_heads);
    let blocks = queries.ceil_div(&Dim::from(block));
    let padded = |d: &Dim| d.ceil_div(&Dim::from(WIDTH)) * Dim::from(WIDTH);
    let (padded_keys, padded_depth) = (padded(keys), padded(value_depth));

    let mut e = Emitter::new(region);
    for (i, input) in region.inputs().iter().enumerate() {
        e.bind(Value { node: *input, port: 0 }, Binding::Buffer(format!("in{i}")));
    }
    let (b, h) = (Index::new("b", 0), Index::new("h", 0));
    let kv_head = if group.is_one() { h.clone() } else { Index::new("kv", 0) };
    // Each block of code is emitted in a scope of its own; what it hoists is row-scope code before all of them.
    let block_of = |e: &mut Emitter<'_>, value: Value, index: &[Index]| -> Result<(Vec<String>, String), Unsupported> {
        e.push_scope();
        let text = e.value(value, index)?;
        Ok((e.pop_scope(), text))
    };
    let (q_lines, q_text) =
        block_of(&mut e, operands[0], &[b.clone(), h.clone(), Index::new("(first + i)", 1), Index::new("d", 1)])?;
    let (k_lines, k_text) =
        block_of(&mut e, operands[1], &[b.clone(), kv_head.clone(), Index::new("j", 1), Index::new("d", 1)])?;
    let (v_lines, v_text) =
        block_of(&mut e, operands[2], &[b.clone(), kv_head, Index::new("j", 1), Index::new("d", 1)])?;
    let mask = match operands.get(3) {
        None => None,
        Some(mask) => {
            let shape = &region.ty(*mask).shape;
            let full = [b.clone(), h.clone(), Index::new("(first + i)", 1), Index::new("j", 1)];
            let index: Vec<Index> = full.iter().skip(4 - shape.len()).cloned().collect();
            let (lines, text) = block_of(&mut e, *mask, &index)?;
            Some((lines, text, region.ty(*mask).dtype))
        }
    };
    // The element's offset in the output, through the views.
    e.push_scope();
    let mut index = vec![b, h, Index::new("(first + i)", 1), Index::new("d", 1)];
    let mut shape = region.node(node).outputs[0].shape.clone();
    for view in views_after(region, node)? {
        let result = region.node(view).outputs[0].shape.clone();
        index = match region.op(view) {
            Op::Transpose { perm } => perm.iter().map(|axis| index[*axis].clone()).collect(),
            _ => {
                // Row-major order is kept: the same groups of axes, read the other way.
                e.reshape_index(&shape, &result, &index)
            }
        };
        shape = result;
    }
    let offset = e.linear(&shape, &index).text;
    let store_lines = e.pop_scope();
    let hoisted = e.pop_scope();

    let bool_mask = matches!(&mask, Some((_, _, DType::Bool)));
    let mut score = format!("s[j] * {}", cpp::float_literal(DType::F32, scale));
    let mut score_lines = Vec::new();
    // What admits key j to row i.
    let mut admits = Vec::new();
    if let Some((lines, text, dtype)) = &mask {
        score_lines.extend(lines.clone());
        if *dtype == DType::Bool {
            admits.push(format!("({text})"));
        } else {
            score = format!("{score} + {text}");
        }
    }
    if causal {
        let limit = if causal_offset {
            format!("first + i + {} - {}", cpp::dim(keys), cpp::dim(queries))
        } else {
            "first + i".to_owned()
        };
        admits.push(format!("(j <= {limit})"));
    }
    // A row that admits no key: its weights are zero where the definition says so, NaN otherwise. Scores of minus infinity that are
    // admitted are no reason; without an offset, causal rows admit the first key.
    let guard_rows = masked_rows_zero && (bool_mask || (causal && causal_offset));
    if !admits.is_empty() {
        score_lines.push(format!("const bool admitted = {};", admits.join(" && ")));
        if guard_rows {
            score_lines.push("alive |= admitted;".to_owned());
        }
        score = format!("admitted ? ({score}) : -std::numeric_limits<float>::infinity()");
    }
    let (alive, alive_reduction) = if guard_rows { ("        int alive = 0;\n", ", alive") } else { ("", "") };
    let dead = if guard_rows {
        "        dead[i - i0] = !alive;
        const float shift = top;
"
    } else {
        "        const float shift = top;
"
    };
    let (dead_rows, dead_or) = if guard_rows {
        (format!("      bool dead[{ROWS}] = {{}};\n"), "dead[r] ? 0.0f : ")
    } else {
        (String::new(), "")
    };
    let body = format!(
        "  float* keys = static_cast<float*>(scratch);                  // [panel][depth][{WIDTH}]
  float* values = keys + {padded_keys} * {depth};              // [panel][keys][{WIDTH}]
  float* query = values + {padded_depth} * {keys};             // [{block}][depth]
  float* scores = query + {block} * {depth};                   // [{block}][padded keys]
  alignas(64) float tile[{ROWS} * {WIDTH}];
  for (int64_t task = begin; task < end; ++task) {{
    const int64_t head = task / {blocks}, first = task % {blocks} * {block};
    const int64_t b = head / {heads}, h = head % {heads}, kv = h / {group};
    const int64_t height = min({block}, {queries} - first);
    (void)b; (void)h; (void)kv;
{hoisted}    for (int64_t j = 0; j < {padded_keys}; ++j) {{
      float* to = keys + j / {WIDTH} * {WIDTH} * {depth} + j % {WIDTH};
      if (j >= {keys}) {{
        for (int64_t d = 0; d < {depth}; ++d) to[d * {WIDTH}] = 0.0f;
        continue;
      }}
      for (int64_t d = 0; d < {depth}; ++d) {{
{k_lines}        to[d * {WIDTH}] = {k_text};
      }}
    }}
    for (int64_t j = 0; j < {keys}; ++j) {{
      for (int64_t d = 0; d < {value_depth}; ++d) {{
{v_lines}        values[d / {WIDTH} * {WIDTH} * {keys} + j * {WIDTH} + d % {WIDTH}] = {v_text};
      }}
      for (int64_t d = {value_depth}; d < {padded_depth}; ++d) {{
        values[d / {WIDTH} * {WIDTH} * {keys} + j * {WIDTH} + d % {WIDTH}] = 0.0f;
      }}
    }}
    for (int64_t i = 0; i < height; ++i) {{
      for (int64_t d = 0; d < {depth}; ++d) {{
{q_lines}        query[i * {depth} + d] = {q_text};
      }}
    }}
    for (int64_t i0 = 0; i0 < height; i0 += {ROWS}) {{
      const int64_t rows = min({ROWS}, height - i0);
{dead_rows}      for (int64_t panel = 0; panel < {padded_keys}; panel += {WIDTH}) {{
        forge::product_tail<{ROWS}, {WIDTH}>(rows, query + i0 * {depth}, {depth}, 1, {depth}, keys + panel * {depth}, tile);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t j = 0; j < {WIDTH}; ++j) scores[(i0 + r) * {padded_keys} + panel + j] = tile[r * {WIDTH} + j];
      }}
      for (int64_t i = i0; i < i0 + rows; ++i) {{
        float* s = scores + i * {padded_keys};
        float top = -std::numeric_limits<float>::infinity();
        int nan = 0;
{alive}#pragma omp simd reduction(max : top) reduction(| : nan{alive_reduction})
        for (int64_t j = 0; j < {keys}; ++j) {{
{score_lines}          const float x = {score};
          s[j] = x;
          top = x > top ? x : top;
          nan |= x != x;
        }}
        if (nan) top = std::numeric_limits<float>::quiet_NaN();
{dead}        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < {keys}; ++j) {{
          const float x = forge::exp(s[j] - shift);
          s[j] = x;
          sum += x;
        }}
        const float scale = 1.0f / sum;
#pragma omp simd
        for (int64_t j = 0; j < {keys}; ++j) s[j] *= scale;
      }}
      for (int64_t panel = 0; panel < {padded_depth}; panel += {WIDTH}) {{
        forge::product_tail<{ROWS}, {WIDTH}>(rows, scores + i0 * {padded_keys}, {padded_keys}, 1, {keys}, values + panel * {keys}, tile);
        const int64_t last = min({WIDTH}, {value_depth} - panel);
        for (int64_t r = 0; r < rows; ++r) {{
          const int64_t i = i0 + r;
          for (int64_t lane = 0; lane < last; ++lane) {{
            const int64_t d = panel + lane;
{store_lines}            out0[{offset}] = {dead_or}tile[r * {WIDTH} + lane];
          }}
        }}
      }}
    }}
  }}
",
        padded_keys = cpp::dim(&padded_keys),
        padded_depth = cpp::dim(&padded_depth),
        depth = cpp::dim(depth),
        value_depth = cpp::dim(value_depth),
        keys = cpp::dim(keys),
        queries = cpp::dim(queries),
        heads = cpp::dim(heads),
        group = cpp::dim(&group),
        blocks = cpp::dim(&blocks),
        hoisted = indent(&hoisted, 4),
        k_lines = indent(&k_lines, 8),
        v_lines = indent(&v_lines, 8),
        q_lines = indent(&q_lines, 8),
        score_lines = indent(&score_lines, 10),
        store_lines = indent(&store_lines, 12),
    );
    let types = region.node_ids().flat_map(|n| region.node(n).outputs.clone()).flat_map(|t| t.shape);
    let dims: Vec<Dim> = types.chain(attribute_dims(region)).collect();
    let symbols = cpp::symbols_of(&dims);
    let source = format!(
        "#include \"forge_gemm.hpp\"\n\n{}",
        cpp::kernel(&region.to_text(), "attention", &region_parameters(region), &symbols, &body)
    );
    let (reads, writes) = region_slots(region);
    let floats = padded_keys.clone() * depth.clone()
        + padded_depth * keys.clone()
        + Dim::from(block) * depth.clone()
        + Dim::from(block) * padded_keys;
    let launch = LaunchPlan {
        launches: vec![Launch::Kernel {
            symbol: "attention".into(),
            reads,
            writes,
            sizes: symbols.iter().map(|s| Dim::symbol(s)).collect(),
            grid: batch.clone() * heads.clone() * blocks,
            grain: Dim::from(1),
            scratch: floats * Dim::from(4),
        }],
        ..LaunchPlan::default()
    };
    Ok(candidate("attention", &source, launch, parameters))
}
