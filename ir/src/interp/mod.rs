//! The reference interpreter: the oracle of record.
//!
//! It evaluates one op ([`eval_op`]) or a graph ([`run`], [`run_all`], [`run_visit`]) on real tensors, in one of two
//! [`Mode`]s. Every op has its typing rule checked on the actual shapes first, so an evaluation either gives values or a
//! precise [`EvalError`]; it does not panic on operands that `infer` accepts.
//!
//! What never lives here: speed at the price of a rule. Start reading at [`eval_op`]; scalar functions are in `math`,
//! rounding in `storage`, the one hot loop in `gemm`.

use std::collections::{HashMap, HashSet};

mod attention;
mod bind;
mod contract;
mod elementwise;
mod error;
mod gemm;
mod index;
mod math;
mod normalize;
mod parallel;
mod pool;
mod reduce;
mod resize;
mod storage;
mod strided;
#[cfg(test)]
mod tests;
mod view;

pub use bind::bind_inputs;
pub use error::EvalError;
pub use resize::{Resize, Taps};

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::graph::{Graph, NodeId, Value};
use crate::infer::infer;
use crate::op::Op;
use crate::tensor::{Tensor, TensorType};
use attention::Attention;
use storage::Want;

/// In which precision floats are carried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// As declared: an op on f16, bf16 or f32 computes in f32 and rounds once to its result dtype; sums run in f32.
    /// Transcendental functions are those of f64, rounded.
    Native,
    /// Every float tensor is f64, whatever its declared dtype; casts between floats do nothing. Integers are exact.
    F64,
}

impl Mode {
    /// The dtype in which a tensor declared `dtype` is carried.
    #[must_use]
    pub fn carried(self, dtype: DType) -> DType {
        match self {
            Mode::F64 if dtype.is_float() => DType::F64,
            _ => dtype,
        }
    }
}

/// Evaluates `graph` and returns its outputs in order; under [`Mode::F64`] float outputs are f64.
///
/// Symbols are bound from the input shapes ([`bind_inputs`]). Ops that no output needs are skipped, and values are freed
/// after their last use.
///
/// # Errors
/// If the inputs do not fit the graph, a weight has no data, or an op refuses its operands (an index out of range).
///
/// ```
/// use forge_ir::{DType, Dim, Graph, Loc, Op, Tensor, TensorType, UnaryOp, interp};
/// let mut graph = Graph::new("relu");
/// let x = graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("N")]));
/// let y = graph.add(Op::Unary(UnaryOp::Relu), &[x], Loc::default()).unwrap();
/// graph.set_outputs(vec![("y".into(), y)]);
/// let out = interp::run(&graph, &[Tensor::from_slice(&[3], &[f32::NAN, -1.0, 2.0])], interp::Mode::Native).unwrap();
/// let out = out[0].to_vec::<f32>().unwrap();
/// assert!(out[0].is_nan());
/// assert_eq!(out[1..], [0.0, 2.0]);
/// ```
pub fn run(graph: &Graph, inputs: &[Tensor], mode: Mode) -> Result<Vec<Tensor>, EvalError> {
    let bindings = bind_inputs(graph, inputs)?;
    evaluate(graph, inputs, &bindings, mode, &live(graph), &mut |_, _| {})
}

/// As [`run`], showing each value as it is computed, in topological order: every op's, needed or not.
///
/// # Errors
/// As [`run`].
pub fn run_visit(
    graph: &Graph,
    inputs: &[Tensor],
    mode: Mode,
    visit: &mut dyn FnMut(Value, &Tensor),
) -> Result<Vec<Tensor>, EvalError> {
    let bindings = bind_inputs(graph, inputs)?;
    evaluate(graph, inputs, &bindings, mode, &graph.node_ids().collect(), visit)
}

/// Every value of the graph, leaves included.
///
/// # Errors
/// As [`run`].
pub fn run_all(graph: &Graph, inputs: &[Tensor], mode: Mode) -> Result<HashMap<Value, Tensor>, EvalError> {
    let mut values = HashMap::new();
    run_visit(graph, inputs, mode, &mut |value, tensor| {
        values.insert(value, tensor.clone());
    })?;
    Ok(values)
}

/// Nodes that some output needs.
fn live(graph: &Graph) -> HashSet<NodeId> {
    let mut live = HashSet::new();
    let mut open: Vec<NodeId> =
        graph.outputs().iter().map(|(_, value)| value.node).chain(graph.inputs().iter().copied()).collect();
    while let Some(node) = open.pop() {
        if live.insert(node) {
            open.extend(graph.operands(node).iter().map(|value| value.node));
        }
    }
    live
}

fn evaluate(
    graph: &Graph,
    inputs: &[Tensor],
    bindings: &Bindings,
    mode: Mode,
    wanted: &HashSet<NodeId>,
    visit: &mut dyn FnMut(Value, &Tensor),
) -> Result<Vec<Tensor>, EvalError> {
    let order: Vec<NodeId> = graph.topological().into_iter().filter(|node| wanted.contains(node)).collect();
    // Uses yet to come; an output keeps its value to the end.
    let mut uses: HashMap<Value, usize> = HashMap::new();
    for value in order.iter().flat_map(|node| graph.operands(*node)).chain(graph.outputs().iter().map(|(_, v)| *v)) {
        *uses.entry(value).or_default() += 1;
    }
    let mut values: HashMap<Value, Tensor> = HashMap::new();
    for (index, node) in graph.inputs().iter().enumerate() {
        let value = Value { node: *node, port: 0 };
        if let Some(tensor) = inputs.get(index) {
            let declared = graph.ty(value).dtype;
            if tensor.dtype() != declared && tensor.dtype() != mode.carried(declared) {
                return Err(EvalError::InputDType {
                    index,
                    name: graph.input_name(*node).to_owned(),
                    expected: declared,
                    got: tensor.dtype(),
                });
            }
            values.insert(value, carry(tensor, mode)?);
        }
    }
    for id in order {
        let operands = graph.operands(id);
        let results: Vec<Tensor> = match &graph.node(id).op {
            Op::Input { .. } => values.get(&Value { node: id, port: 0 }).cloned().into_iter().collect(),
            op => {
                let tensors: Vec<Tensor> = operands.iter().filter_map(|value| values.get(value).cloned()).collect();
                eval_node(graph, id, op, &tensors, bindings, mode)
                    .map_err(|source| EvalError::At { place: place(graph, id), source: Box::new(source) })?
            }
        };
        for operand in operands {
            if let Some(count) = uses.get_mut(&operand) {
                *count -= 1;
                if *count == 0 {
                    values.remove(&operand);
                }
            }
        }
        for (value, tensor) in graph.results(id).zip(results) {
            visit(value, &tensor);
            if uses.contains_key(&value) {
                values.insert(value, tensor);
            }
        }
    }
    graph
        .outputs()
        .iter()
        .map(|(name, value)| {
            values
                .get(value)
                .cloned()
                .ok_or_else(|| EvalError::unsupported("output", format!("'{name}' is not computed")))
        })
        .collect()
}

fn place(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    match node.loc.0.first() {
        Some(name) => format!("'{name}' ({})", node.op.name()),
        None => format!("{id:?} ({})", node.op.name()),
    }
}

fn eval_node(
    graph: &Graph,
    id: NodeId,
    op: &Op,
    operands: &[Tensor],
    bindings: &Bindings,
    mode: Mode,
) -> Result<Vec<Tensor>, EvalError> {
    let types: Vec<TensorType> = graph.node(id).outputs.iter().map(|ty| ty.substitute(bindings)).collect();
    match op {
        Op::Fused(fused) => {
            let inner = bind::bind_nested(&fused.body, operands, bindings)?;
            evaluate(&fused.body, operands, &inner, mode, &live(&fused.body), &mut |_, _| {})
        }
        Op::Weight { .. } | Op::Constant { .. } => eval_op(op, operands, &types, mode),
        _ => eval_op(&op.map_dims(&|dim: &Dim| dim.substitute(bindings)), operands, &types, mode),
    }
}

/// The tensor as it is carried in this mode.
fn carry(tensor: &Tensor, mode: Mode) -> Result<Tensor, EvalError> {
    match mode {
        Mode::Native => Ok(tensor.clone()),
        Mode::F64 => storage::to_f64(tensor),
    }
}

fn concrete(dim: &Dim) -> Result<i64, EvalError> {
    dim.as_const().ok_or_else(|| EvalError::UnboundDim { dim: dim.clone() })
}

fn concrete_all(dims: &[Dim]) -> Result<Vec<i64>, EvalError> {
    dims.iter().map(concrete).collect()
}

fn concrete_shape(op: &Op, ty: &TensorType) -> Result<Vec<usize>, EvalError> {
    ty.shape
        .iter()
        .map(|dim| {
            let size = concrete(dim)?;
            usize::try_from(size)
                .map_err(|_| EvalError::unsupported(op.name(), format!("a result dim is {size}, in {ty}")))
        })
        .collect()
}

/// Evaluates one op. Dims in its attributes and in `result_types` must be constants.
///
/// `result_types` are the declared types: under [`Mode::F64`] float results come as f64 all the same, and float operands
/// of any dtype are widened.
///
/// # Errors
/// If the operands do not fit the op or the declared results, or the op refuses their values.
pub fn eval_op(
    op: &Op,
    operands: &[Tensor],
    result_types: &[TensorType],
    mode: Mode,
) -> Result<Vec<Tensor>, EvalError> {
    let operands: Vec<Tensor> = operands.iter().map(|tensor| carry(tensor, mode)).collect::<Result<_, _>>()?;
    let want = wanted_results(op, &operands, result_types, mode)?;
    let [first, ..] = want.as_slice() else {
        return Ok(Vec::new());
    };
    if let Op::Fused(fused) = op {
        let bindings = bind_inputs(&fused.body, &operands)?;
        return evaluate(&fused.body, &operands, &bindings, mode, &live(&fused.body), &mut |_, _| {});
    }
    if let Op::TopK { axis, largest, .. } = op {
        let [x] = operands.as_slice() else {
            return Err(EvalError::unsupported(op.name(), "takes one operand"));
        };
        return index::top_k(*axis, *largest, x, &want);
    }
    eval_single(op, &operands, first, mode).map(|tensor| vec![tensor])
}

/// Checks the op's typing rule on the actual operands and the declared results; gives what must be produced.
fn wanted_results(
    op: &Op,
    operands: &[Tensor],
    result_types: &[TensorType],
    mode: Mode,
) -> Result<Vec<Want>, EvalError> {
    let types: Vec<TensorType> = match op {
        Op::Input { name } => return Err(EvalError::unsupported("input", format!("'{name}' has no value of its own"))),
        Op::Weight { .. } | Op::Constant { .. } | Op::Fused(_) => result_types.to_vec(),
        _ => {
            let operand_types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
            infer(op, &operand_types.iter().collect::<Vec<_>>())?
        }
    };
    let mut want = Vec::with_capacity(types.len());
    for (i, ty) in types.iter().enumerate() {
        let shape = concrete_shape(op, ty)?;
        let declared = result_types
            .get(i)
            .filter(|declared| declared.shape == ty.shape && mode.carried(declared.dtype) == mode.carried(ty.dtype));
        if declared.is_none() || types.len() != result_types.len() {
            let list = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(EvalError::ResultType { op: op.name(), expected: list(result_types), got: list(&types) });
        }
        let elements = shape.iter().try_fold(16usize, |acc, d| acc.checked_mul(*d));
        if elements.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(EvalError::TooLarge { op: op.name(), shape });
        }
        want.push(Want { dtype: mode.carried(ty.dtype), shape });
    }
    Ok(want)
}

fn eval_single(op: &Op, operands: &[Tensor], want: &Want, mode: Mode) -> Result<Tensor, EvalError> {
    use Op::{
        ArgReduce, Attention as AttentionOp, BatchNorm, Binary, Broadcast, Cast, Compare, Concat, Constant, Conv,
        ConvTranspose, CumSum, DimValue, Fused, Gather, GatherElements, GatherNd, Gelu, GroupNorm, Input, Iota,
        LayerNorm, LogSoftmax, MatMul, Pad, Pool, Reduce, Reshape, Resize as ResizeOp, RmsNorm, Rotary,
        ScatterElements, ScatterNd, Select, Silu, Slice, Softmax, TopK, Transpose, Unary, Weight,
    };
    match (op, operands) {
        (Weight { name, data }, _) => match data {
            Some(data) => leaf(name, data, want, mode),
            None => Err(EvalError::UnboundWeight { name: name.clone() }),
        },
        (Constant { value }, _) => leaf("constant", value, want, mode),
        (Iota { .. }, _) => view::iota(want),
        (DimValue { dim }, _) => Ok(Tensor::scalar(concrete(dim)?)),

        (Unary(op), [x]) => elementwise::unary(*op, x, want),
        (Binary(op), [a, b]) => elementwise::binary(*op, a, b, want),
        (Compare(op), [a, b]) => elementwise::compare(*op, a, b, want),
        (Select, [condition, then, other]) => elementwise::select(condition, then, other, want),
        (Cast { .. }, [x]) => elementwise::cast(x, want),
        (Gelu { approximate }, [x]) => elementwise::gelu(*approximate, x, want),
        (Silu, [x]) => elementwise::silu(x, want),

        (Reduce { op, axes, .. }, [x]) => reduce::reduce(*op, axes, x, want),
        (ArgReduce { op, axis, select_last, .. }, [x]) => reduce::arg_reduce(*op, *axis, *select_last, x, want),
        (CumSum { axis, exclusive, reverse }, [x]) => reduce::cumsum(*axis, *exclusive, *reverse, x, want),

        (Reshape { .. }, [x]) => view::reshape(x, want),
        (Transpose { perm }, [x]) => view::transpose(perm, x, want),
        (Broadcast { .. }, [x]) => view::broadcast(x, want),
        (Slice { starts, steps, .. }, [x]) => view::slice(&concrete_all(starts)?, steps, x, want),
        (Pad { mode, before, .. }, [x, value @ ..]) => view::pad(*mode, &concrete_all(before)?, x, value.first(), want),
        (Concat { axis }, parts) => view::concat(*axis, parts, want),

        (Gather { axis }, [x, index]) => index::gather(*axis, x, index, want),
        (GatherElements { axis }, [x, index]) => index::gather_elements(*axis, x, index, want),
        (GatherNd { batch_dims }, [x, index]) => index::gather_nd(*batch_dims, x, index, want),
        (ScatterElements { axis, reduce }, [x, index, updates]) => {
            index::scatter_elements(*axis, *reduce, x, index, updates, want)
        }
        (ScatterNd { reduce }, [x, index, updates]) => index::scatter_nd(*reduce, x, index, updates, want),

        (MatMul { trans_a, trans_b }, [a, b]) => contract::matmul(*trans_a, *trans_b, a, b, want),
        (Conv { window, groups }, _) => contract::conv(window, *groups, operands, want),
        (ConvTranspose { window, groups, .. }, _) => contract::conv_transpose(window, *groups, operands, want),
        (Pool { kind, kernel, window, count_include_pad, .. }, [x]) => {
            pool::pool(*kind, kernel, window, *count_include_pad, x, want)
        }
        (ResizeOp { mode, coordinates, rounding, cubic_coeff, scales, .. }, [x]) => {
            let attributes =
                Resize { mode: *mode, coordinates: *coordinates, rounding: *rounding, cubic_coeff: *cubic_coeff };
            resize::resize(attributes, scales, x, want)
        }

        (Softmax { axis }, [x]) => normalize::softmax(*axis, false, x, want),
        (LogSoftmax { axis }, [x]) => normalize::softmax(*axis, true, x, want),
        (LayerNorm { axis, epsilon }, _) => normalize::layer_norm(*axis, *epsilon, true, operands, want),
        (RmsNorm { axis, epsilon }, _) => normalize::layer_norm(*axis, *epsilon, false, operands, want),
        (GroupNorm { groups, epsilon }, _) => normalize::group_norm(*groups, *epsilon, operands, want),
        (BatchNorm { epsilon }, _) => normalize::batch_norm(*epsilon, operands, want),
        (AttentionOp { scale, causal, causal_offset, masked_rows_zero }, _) => {
            let attributes = Attention {
                scale: *scale,
                causal: *causal,
                causal_offset: *causal_offset,
                masked_rows_zero: *masked_rows_zero,
            };
            attributes.eval(operands, want)
        }
        (Rotary { interleaved }, [x, cos, sin]) => attention::rotary(*interleaved, x, cos, sin, want),

        // `infer` has checked the number of operands; listed by name so that a new op cannot be forgotten.
        (
            Input { .. }
            | Unary(_)
            | Binary(_)
            | Compare(_)
            | Select
            | Cast { .. }
            | Gelu { .. }
            | Silu
            | Reduce { .. }
            | ArgReduce { .. }
            | CumSum { .. }
            | Reshape { .. }
            | Transpose { .. }
            | Broadcast { .. }
            | Slice { .. }
            | Pad { .. }
            | Gather { .. }
            | GatherElements { .. }
            | GatherNd { .. }
            | ScatterElements { .. }
            | ScatterNd { .. }
            | TopK { .. }
            | MatMul { .. }
            | Pool { .. }
            | ResizeOp { .. }
            | Softmax { .. }
            | LogSoftmax { .. }
            | Rotary { .. }
            | Fused(_),
            _,
        ) => Err(EvalError::unsupported(op.name(), format!("cannot take {} operands", operands.len()))),
    }
}

/// A leaf's data, which must be what the graph declares.
fn leaf(name: &str, data: &Tensor, want: &Want, mode: Mode) -> Result<Tensor, EvalError> {
    if mode.carried(data.dtype()) != want.dtype || data.shape() != want.shape {
        return Err(EvalError::WeightType {
            name: name.to_owned(),
            expected: format!("{}{:?}", want.dtype, want.shape),
            got: data.ty().to_string(),
        });
    }
    carry(data, mode)
}
