//! Template `matmul_epilogue`: `epilogue(x * w)` with the weight packed into panels at load.

use forge_ir::{DType, Dim, Graph, NodeId, Op, Value};

use super::epilogue::{Epilogue, split_row};
use super::{Axis, Parameters, Spec, anchor, axis, candidate, number, region_parameters, region_slots};
use crate::candidate::{Candidate, Launch, LaunchPlan, Slot};
use crate::codegen::Unsupported;
use crate::codegen::cpp::{self, Parameter};
use crate::codegen::emit::{Index, indent};

/// The pieces of an applicable region.
struct Product {
    region: Graph,
    node: NodeId,
    /// Region inputs that hold the operands.
    x: usize,
    w: usize,
    trans_w: bool,
    m: Dim,
    n: Dim,
    k: Dim,
    epilogue: Epilogue,
}

fn product(spec: &Spec<'_>) -> Result<Product, Unsupported> {
    let region = spec.region.decompose_all().map_err(|e| Unsupported::new(e.to_string()))?;
    let node = anchor(&region, "matmul", |op| matches!(op, Op::MatMul { .. }))?;
    let Op::MatMul { trans_a: false, trans_b } = *region.op(node) else {
        return Err(Unsupported::new("a transposed left operand"));
    };
    let operands = region.operands(node);
    let position = |value: Value| {
        region
            .inputs()
            .iter()
            .position(|i| *i == value.node)
            .ok_or_else(|| Unsupported::new("an operand of the product is computed inside the region"))
    };
    let (x, w) = (position(operands[0])?, position(operands[1])?);
    let (x_ty, w_ty, out) = (region.ty(operands[0]), region.ty(operands[1]), &region.node(node).outputs[0]);
    if w_ty.rank() != 2 || !spec.weight_inputs.get(w).copied().unwrap_or(false) {
        return Err(Unsupported::new("the right operand is not a rank-2 weight"));
    }
    if out.dtype != DType::F32 {
        return Err(Unsupported::new(format!("a {} product", out.dtype)));
    }
    let rank = out.rank();
    let (m, n) = (Dim::product(&out.shape[..rank - 1]), out.shape[rank - 1].clone());
    let k = x_ty.shape[x_ty.rank() - 1].clone();
    let epilogue = Epilogue::cut(&region, node)?;
    Ok(Product { node, x, w, trans_w: trans_b, m, n, k, epilogue, region })
}

pub(super) fn space(spec: &Spec<'_>) -> Result<Vec<Axis>, Unsupported> {
    product(spec)?;
    Ok(vec![
        // rows x columns of the register tile.
        Axis {
            name: "tile",
            values: ["8x32", "6x64", "8x48", "12x32", "7x64", "4x64", "6x16"].map(str::to_owned).to_vec(),
        },
        axis("rows_per_task", &[48, 16, 128, 1024]),
    ])
}

pub(super) fn instantiate(spec: &Spec<'_>, parameters: &Parameters) -> Result<Candidate, Unsupported> {
    let p = product(spec)?;
    let (rows, width) = parameters
        .get("tile")
        .and_then(|t| t.split_once('x'))
        .and_then(|(r, v)| Some((r.parse::<i64>().ok()?, v.parse::<i64>().ok()?)))
        .ok_or_else(|| Unsupported::new("parameter 'tile' is not ROWSxCOLUMNS"))?;
    // Rows per task: whole tiles.
    let per_task = (number(parameters, "rows_per_task")? / rows).max(1) * rows;
    let row_tasks = p.m.ceil_div(&Dim::from(per_task));
    let out_rank = p.region.node(p.node).outputs[0].rank();
    let groups = [(0..out_rank - 1).collect::<Vec<_>>(), vec![out_rank - 1]];
    let (epilogue, row_index) = match p.epilogue.merged(&groups) {
        Some(merged) => (merged, vec![Index::new("m", 0)]),
        None => {
            let shape = p.epilogue.shape();
            let index = split_row("m", &shape[..out_rank - 1]);
            (p.epilogue, index)
        }
    };
    let row_lines = epilogue.row_code(&row_index, "n0", "count", "acc")?;
    // The last tile of a task may be short; its height is a constant where the row count is.
    let tail = match p.m.as_const() {
        Some(m) if m % rows == 0 => format!("forge::product_tile<{rows}, {width}>(a, {{k}}, 1, {{k}}, panel, tile);"),
        Some(m) => format!(
            "if (height == {rows}) forge::product_tile<{rows}, {width}>(a, {{k}}, 1, {{k}}, panel, tile);\n      else \
             forge::product_tile<{}, {width}>(a, {{k}}, 1, {{k}}, panel, tile);",
            m % rows
        ),
        None => format!("forge::product_tail<{rows}, {width}>(height, a, {{k}}, 1, {{k}}, panel, tile);"),
    }
    .replace("{k}", &cpp::dim(&p.k));
    let body = format!(
        "  constexpr int64_t kWidth = {width};
  alignas(64) float tile[{rows} * kWidth];
  for (int64_t task = begin; task < end; ++task) {{
    const int64_t n0 = task / {row_tasks} * kWidth, m_first = task % {row_tasks} * {per_task};
    const int64_t count = min(kWidth, {n} - n0), m_last = min({m}, m_first + {per_task});
    const float* panel = packed + n0 * {k};
    for (int64_t m0 = m_first; m0 < m_last; m0 += {rows}) {{
      const int64_t height = min({rows}, m_last - m0);
      const float* a = in{x} + m0 * {k};
      {tail}
      for (int64_t row = 0; row < height; ++row) {{
        const int64_t m = m0 + row;
        (void)m;
        const float* acc = tile + row * kWidth;
{epilogue}      }}
    }}
  }}
",
        row_tasks = cpp::dim(&row_tasks),
        n = cpp::dim(&p.n),
        m = cpp::dim(&p.m),
        k = cpp::dim(&p.k),
        x = p.x,
        epilogue = indent(&row_lines, 8),
    );
    let (row_stride, column_stride) = if p.trans_w { (Dim::from(1), p.k.clone()) } else { (p.n.clone(), Dim::from(1)) };
    let pack_body = format!(
        "  constexpr int kWidth = {width};
  for (int64_t panel = begin; panel < end; ++panel) {{
    forge::pack_panel<kWidth>(w, {row}, {column}, {k}, {n}, panel * kWidth, packed + panel * kWidth * {k});
  }}
",
        row = cpp::dim(&row_stride),
        column = cpp::dim(&column_stride),
        k = cpp::dim(&p.k),
        n = cpp::dim(&p.n),
    );
    let mut dims = epilogue.dims();
    dims.extend([p.m.clone(), p.n.clone(), p.k.clone()]);
    let symbols = cpp::symbols_of(&dims);
    let sizes: Vec<Dim> = symbols.iter().map(|s| Dim::symbol(s)).collect();
    // Packing happens before any input is seen: it may know nothing of the rows.
    let pack_symbols = cpp::symbols_of([&p.n, &p.k]);
    let mut with_packed = region_parameters(spec.region);
    let inputs = spec.region.inputs().len();
    with_packed.insert(inputs, Parameter { name: "packed".into(), dtype: DType::F32, write: false });
    let pack_parameters = [
        Parameter { name: "w".into(), dtype: DType::F32, write: false },
        Parameter { name: "packed".into(), dtype: DType::F32, write: true },
    ];
    let source = format!(
        "#include \"forge_gemm.hpp\"\n\n{}\n{}",
        cpp::kernel(
            "packs the weight into panels of the tile's width",
            "pack",
            &pack_parameters,
            &pack_symbols,
            &pack_body
        ),
        cpp::kernel(&spec.region.to_text(), "matmul_epilogue", &with_packed, &symbols, &body)
    );
    let panels = p.n.ceil_div(&Dim::from(width));
    let (mut reads, writes) = region_slots(spec.region);
    reads.push(Slot::Packed(0));
    let launch = LaunchPlan {
        temporaries: Vec::new(),
        packed: vec![panels.clone() * Dim::from(width * 4) * p.k.clone()],
        prepare: vec![Launch::Kernel {
            symbol: "pack".into(),
            reads: vec![Slot::Input(p.w)],
            writes: vec![Slot::Packed(0)],
            sizes: pack_symbols.iter().map(|s| Dim::symbol(s)).collect(),
            grid: panels.clone(),
            grain: Dim::from(1),
            scratch: Dim::from(0),
        }],
        launches: vec![Launch::Kernel {
            symbol: "matmul_epilogue".into(),
            reads,
            writes,
            sizes,
            grid: panels * row_tasks,
            grain: Dim::from(1),
            scratch: Dim::from(0),
        }],
    };
    Ok(candidate("matmul_epilogue", &source, launch, parameters))
}
