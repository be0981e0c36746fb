//! The lowering of one op with nothing fused: what the unrewritten graph runs on, and the baseline of every comparison. Matrix
//! products go to the GEMM library, dense convolutions there through im2col, views cost nothing, everything else is one generated
//! kernel.

use std::collections::BTreeMap;

use forge_ir::{BinaryOp, DType, Dim, Graph, Loc, Op, TensorType, Value, Window};

use crate::candidate::{Candidate, Dialect, Launch, LaunchPlan, MatrixSlot, Origin, Slot};
use crate::codegen::cpp::{self, Parameter};
use crate::codegen::rowwise::{Kernel, RowOptions, rowwise};
use crate::codegen::special::special;
use crate::codegen::{Unsupported, cpp::PRELUDE};

/// How one op runs.
pub enum Lowered {
    /// The result is the first operand's buffer under another shape.
    Alias,
    Launches(Candidate),
    /// Through its definition, op by op.
    Decomposed(Graph),
}

/// Lowers a region of one op (small constants may stand beside it).
///
/// # Errors
/// If the op has no lowering for its dtypes and shapes.
pub fn lower_op(region: &Graph) -> Result<Lowered, Unsupported> {
    let node = region
        .topological()
        .into_iter()
        .find(|n| !matches!(region.op(*n), Op::Input { .. } | Op::Constant { .. }))
        .ok_or_else(|| Unsupported::new("a region without an op"))?;
    let operands = region.operands(node);
    let dtype = region.node(node).outputs[0].dtype;
    let only_inputs = operands.iter().all(|v| matches!(region.op(v.node), Op::Input { .. }));
    match region.op(node) {
        Op::Reshape { .. } if only_inputs => return Ok(Lowered::Alias),
        Op::MatMul { trans_a, trans_b } if only_inputs && matches!(dtype, DType::F32 | DType::F64) => {
            return Ok(Lowered::Launches(matmul(region, &operands, node, *trans_a, *trans_b)));
        }
        Op::Conv { window, groups: 1 } if only_inputs && dtype == DType::F32 && region.ty(operands[0]).rank() <= 4 => {
            return conv(region, node, window).map(Lowered::Launches);
        }
        Op::Fused(fused) => return Ok(Lowered::Decomposed(fused.body.clone())),
        Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::TopK { .. } => {
            return Ok(Lowered::Launches(single(special(region, "kernel")?)));
        }
        _ => {}
    }
    let types: Vec<TensorType> = operands.iter().map(|v| region.ty(*v).clone()).collect();
    let Some(definition) = region.op(node).decompose(&types) else {
        return Ok(Lowered::Launches(single(rowwise(region, "kernel", RowOptions::default())?)));
    };
    // A composite is one kernel where its definition has a row structure (norms, softmax, activations).
    match rowwise(&definition, "kernel", RowOptions::default()) {
        Ok(kernel) if only_inputs => Ok(Lowered::Launches(single(kernel))),
        _ => Ok(Lowered::Decomposed(definition)),
    }
}

/// A candidate of one kernel, its symbol renamed to its content address so that equal kernels are one.
fn single(kernel: Kernel) -> Candidate {
    candidate(&kernel.source, LaunchPlan { launches: vec![kernel.launch], ..LaunchPlan::default() })
}

fn candidate(source: &str, launch: LaunchPlan) -> Candidate {
    let mut candidate = Candidate {
        dialect: Dialect::Cpp,
        source: if source.is_empty() { String::new() } else { format!("{PRELUDE}{source}") },
        launch,
        origin: Origin {
            proposer: "generic".into(),
            strategy: "unfused".into(),
            parameters: BTreeMap::new(),
            parent: None,
        },
    };
    rename_symbols(&mut candidate);
    candidate
}

/// Gives every kernel a name from the content of the source, so that kernels of several candidates can share a module.
pub(crate) fn rename_symbols(candidate: &mut Candidate) {
    let digest = blake3::hash(candidate.source.as_bytes()).to_hex();
    let mut renamed = candidate.source.clone();
    for launch in candidate.launch.prepare.iter_mut().chain(&mut candidate.launch.launches) {
        if let Launch::Kernel { symbol, .. } = launch {
            let new = format!("{symbol}_{}", &digest[..16]);
            renamed = renamed.replace(&format!("void {symbol}("), &format!("void {new}("));
            *symbol = new;
        }
    }
    candidate.source = renamed;
}

/// Row-major strides of `shape`, in elements.
pub(crate) fn strides(shape: &[Dim]) -> Vec<Dim> {
    (0..shape.len()).map(|i| Dim::product(&shape[i + 1..])).collect()
}

fn matmul(region: &Graph, operands: &[Value], node: forge_ir::NodeId, trans_a: bool, trans_b: bool) -> Candidate {
    let (a, b) = (region.ty(operands[0]), region.ty(operands[1]));
    let out = &region.node(node).outputs[0];
    let rank = out.rank();
    let (m, n) = (out.shape[rank - 2].clone(), out.shape[rank - 1].clone());
    let k = a.shape[a.rank() - if trans_a { 2 } else { 1 }].clone();
    let batch: Vec<Dim> = out.shape[..rank - 2].to_vec();
    let slot_of = |value: Value| Slot::Input(region.inputs().iter().position(|i| *i == value.node).unwrap_or(0));
    let matrix = |slot: Slot, ty: &TensorType, swap: bool| {
        let strides = strides(&ty.shape);
        let (row, column) = (strides[ty.rank() - 2].clone(), strides[ty.rank() - 1].clone());
        let (row, column) = if swap { (column, row) } else { (row, column) };
        let skip = rank - ty.rank();
        let batch_strides = (0..rank - 2)
            .map(|axis| match axis.checked_sub(skip) {
                Some(own) if !ty.shape[own].is_one() => strides[own].clone(),
                _ => Dim::from(0),
            })
            .collect();
        MatrixSlot { slot, row_stride: row, column_stride: column, batch_strides }
    };
    let mut gemm = Launch::Gemm {
        dtype: out.dtype.name().to_owned(),
        m: m.clone(),
        n: n.clone(),
        k: k.clone(),
        batch: batch.clone(),
        a: matrix(slot_of(operands[0]), a, trans_a),
        b: matrix(slot_of(operands[1]), b, trans_b),
        c: matrix(Slot::Output(0), out, false),
    };
    // A shared right-hand side: the batch is more rows of one product.
    if !batch.is_empty() && b.rank() == 2 && !trans_a && a.shape[..a.rank() - 2] == batch[..] {
        let flat = |slot: Slot, columns: &Dim| MatrixSlot {
            slot,
            row_stride: columns.clone(),
            column_stride: Dim::from(1),
            batch_strides: Vec::new(),
        };
        let b_slot = MatrixSlot { batch_strides: Vec::new(), ..matrix(slot_of(operands[1]), b, trans_b) };
        gemm = Launch::Gemm {
            dtype: out.dtype.name().to_owned(),
            m: Dim::product(&batch) * m,
            n: n.clone(),
            k: k.clone(),
            batch: Vec::new(),
            a: flat(slot_of(operands[0]), &k),
            b: b_slot,
            c: flat(Slot::Output(0), &n),
        };
    }
    candidate("", LaunchPlan { launches: vec![gemm], ..LaunchPlan::default() })
}

/// Dense 1-d and 2-d convolution: columns of patches, one product per image, bias added after.
fn conv(region: &Graph, node: forge_ir::NodeId, window: &Window) -> Result<Candidate, Unsupported> {
    let operands = region.operands(node);
    let (x, w) = (region.ty(operands[0]), region.ty(operands[1]));
    let out = &region.node(node).outputs[0];
    let (images, channels) = (x.shape[0].clone(), out.shape[1].clone());
    let positions = Dim::product(&out.shape[2..]);
    let taps = Dim::product(&w.shape[1..]);
    let element = Dim::from(4);
    let unit = |v: &[i64], to: i64| v.iter().all(|x| *x == to);
    let pointwise = w.shape[2..].iter().all(Dim::is_one)
        && unit(&window.strides, 1)
        && unit(&window.pads_begin, 0)
        && unit(&window.pads_end, 0);
    let mut plan = LaunchPlan::default();
    let mut source = String::new();
    let columns = if pointwise {
        Slot::Input(0)
    } else {
        let im2col = im2col(x, w, out, window);
        source.push_str(&im2col.source);
        plan.temporaries.push(images.clone() * taps.clone() * positions.clone() * element.clone());
        plan.launches.push(remap(&im2col.launch, &|slot| match slot {
            Slot::Output(_) => Slot::Temporary(0),
            other => other,
        }));
        Slot::Temporary(0)
    };
    let bias = operands.get(2);
    let product = if bias.is_some() {
        plan.temporaries.push(out.numel() * element);
        Slot::Temporary(plan.temporaries.len() - 1)
    } else {
        Slot::Output(0)
    };
    plan.launches.push(Launch::Gemm {
        dtype: "f32".into(),
        m: channels.clone(),
        n: positions.clone(),
        k: taps.clone(),
        batch: vec![images.clone()],
        a: MatrixSlot {
            slot: Slot::Input(1),
            row_stride: taps.clone(),
            column_stride: Dim::from(1),
            batch_strides: vec![Dim::from(0)],
        },
        b: MatrixSlot {
            slot: columns,
            row_stride: positions.clone(),
            column_stride: Dim::from(1),
            batch_strides: vec![taps * positions.clone()],
        },
        c: MatrixSlot {
            slot: product,
            row_stride: positions.clone(),
            column_stride: Dim::from(1),
            batch_strides: vec![channels.clone() * positions.clone()],
        },
    });
    if bias.is_some() {
        let mut add = Graph::new("bias");
        let lhs = add.add_input("x", TensorType::new(DType::F32, vec![images, channels.clone(), positions]));
        let rhs = add.add_input("bias", TensorType::new(DType::F32, vec![channels, Dim::from(1)]));
        let sum = add
            .add(Op::Binary(BinaryOp::Add), &[lhs, rhs], Loc::default())
            .map_err(|e| Unsupported::new(e.to_string()))?;
        add.set_outputs(vec![("y".into(), sum)]);
        let kernel = rowwise(&add, "bias", RowOptions::default())?;
        source.push_str(&kernel.source);
        plan.launches.push(remap(&kernel.launch, &|slot| match slot {
            Slot::Input(0) => product,
            Slot::Input(_) => Slot::Input(2),
            other => other,
        }));
    }
    Ok(candidate(&source, plan))
}

/// The launch with its slots renamed.
pub(crate) fn remap(launch: &Launch, map: &dyn Fn(Slot) -> Slot) -> Launch {
    let matrix = |m: &MatrixSlot| MatrixSlot { slot: map(m.slot), ..m.clone() };
    match launch {
        Launch::Kernel { symbol, reads, writes, sizes, grid, grain, scratch } => Launch::Kernel {
            symbol: symbol.clone(),
            reads: reads.iter().map(|s| map(*s)).collect(),
            writes: writes.iter().map(|s| map(*s)).collect(),
            sizes: sizes.clone(),
            grid: grid.clone(),
            grain: grain.clone(),
            scratch: scratch.clone(),
        },
        Launch::Gemm { dtype, m, n, k, batch, a, b, c } => Launch::Gemm {
            dtype: dtype.clone(),
            m: m.clone(),
            n: n.clone(),
            k: k.clone(),
            batch: batch.clone(),
            a: matrix(a),
            b: matrix(b),
            c: matrix(c),
        },
        Launch::Copy { from, to } => Launch::Copy { from: map(*from), to: map(*to) },
    }
}

/// `columns[image][channel, taps..][positions..]` from `x`; rows of the output are copied whole where stride allows.
fn im2col(x: &TensorType, w: &TensorType, out: &TensorType, window: &Window) -> Kernel {
    // One spatial axis is two with a leading 1.
    let spatial = |shape: &[Dim]| match shape {
        [only] => [Dim::from(1), only.clone()],
        [h, w, ..] => [h.clone(), w.clone()],
        [] => [Dim::from(1), Dim::from(1)],
    };
    let pair = |v: &[i64], fill: i64| match v {
        [only] => [fill, *only],
        [h, w, ..] => [*h, *w],
        [] => [fill, fill],
    };
    let ([h, width], [kh, kw], [oh, ow]) = (spatial(&x.shape[2..]), spatial(&w.shape[2..]), spatial(&out.shape[2..]));
    let ([sh, sw], [ph, pw], [dh, dw]) =
        (pair(&window.strides, 1), pair(&window.pads_begin, 0), pair(&window.dilations, 1));
    let taps = Dim::product(&w.shape[1..]);
    let body = format!(
        "  for (int64_t r = begin; r < end; ++r) {{
    const int64_t image = r / {taps}, tap = r % {taps};
    const int64_t channel = tap / {khw}, kh = tap / {kw} % {kh}, kw = tap % {kw};
    const float* plane = in0 + (image * {c} + channel) * {hw};
    float* columns = out0 + r * {ohw};
    // Output columns whose input column is inside.
    const int64_t first = kw * {dw} - {pw};
    const int64_t low = min({ow}, first >= 0 ? 0 : (-first + {sw} - 1) / {sw});
    const int64_t high = max(low, min({ow}, first >= {w} ? 0 : ({w} - 1 - first) / {sw} + 1));
    for (int64_t oh = 0; oh < {oh}; ++oh) {{
      const int64_t ih = oh * {sh} - {ph} + kh * {dh};
      float* row = columns + oh * {ow};
      if (ih < 0 || ih >= {h}) {{
        for (int64_t ow = 0; ow < {ow}; ++ow) row[ow] = 0.0f;
        continue;
      }}
      const float* source = plane + ih * {w} + first;
      for (int64_t ow = 0; ow < low; ++ow) row[ow] = 0.0f;
      for (int64_t ow = low; ow < high; ++ow) row[ow] = source[ow * {sw}];
      for (int64_t ow = high; ow < {ow}; ++ow) row[ow] = 0.0f;
    }}
  }}
",
        taps = cpp::dim(&taps),
        khw = cpp::dim(&(kh.clone() * kw.clone())),
        kh = cpp::dim(&kh),
        kw = cpp::dim(&kw),
        c = cpp::dim(&x.shape[1]),
        hw = cpp::dim(&(h.clone() * width.clone())),
        ohw = cpp::dim(&(oh.clone() * ow.clone())),
        h = cpp::dim(&h),
        w = cpp::dim(&width),
        oh = cpp::dim(&oh),
        ow = cpp::dim(&ow),
    );
    let symbols = cpp::symbols_of(x.shape.iter().chain(&w.shape).chain(&out.shape));
    let parameters = [
        Parameter { name: "in0".into(), dtype: DType::F32, write: false },
        Parameter { name: "out0".into(), dtype: DType::F32, write: true },
    ];
    let comment = format!("im2col of {x} for windows of {w}");
    let launch = Launch::Kernel {
        symbol: "im2col".into(),
        reads: vec![Slot::Input(0)],
        writes: vec![Slot::Output(0)],
        sizes: symbols.iter().map(|s| Dim::symbol(s)).collect(),
        grid: x.shape[0].clone() * taps,
        grain: Dim::from(1),
        scratch: Dim::from(0),
    };
    Kernel { source: cpp::kernel(&comment, "im2col", &parameters, &symbols, &body), launch }
}
