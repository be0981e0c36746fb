//! Masks of attention: what an additive mask truly is.

use forge_ir::{
    BinaryOp, DType, Exactness, Graph, InferError, NodeId, Op, Patch, PatchBuilder, Tensor, UnaryOp, Value,
};

use crate::matching::{derived, known, number};

/// A score of a barred key is at most this: `exp` of it is 0 in f64 beside any score that a model has.
const BARRED: f64 = -1e9;
/// Ops between a mask and what bounds it.
const DEPTH: usize = 12;

/// The mask operand of an attention.
pub(super) enum Mask {
    /// Added.
    Float(Value),
    /// Admits where true.
    Bool(Value),
    /// Admits where false.
    NotBool(Value),
    /// A bool that a known table of 0 and -inf was.
    Known(Value, Tensor),
}

impl Mask {
    pub(super) fn is_bool(&self) -> bool {
        !matches!(self, Mask::Float(_))
    }

    pub(super) fn value(self, patch: &mut PatchBuilder<'_>, graph: &Graph) -> Result<Value, InferError> {
        match self {
            Mask::Float(value) | Mask::Bool(value) => Ok(patch.tap(value)),
            Mask::NotBool(value) => {
                let value = patch.tap(value);
                patch.add(Op::Unary(UnaryOp::Not), &[value])
            }
            Mask::Known(source, tensor) => Ok(derived(patch, graph, source, " == 0", tensor)),
        }
    }
}

/// A mask that is added to scores; `guarded` if a row of NaN becomes 0 afterwards.
pub(super) fn additive(graph: &Graph, value: Value, guarded: bool) -> Option<Mask> {
    if let (Op::Select, [condition, then, otherwise]) = (graph.op(value.node), &graph.operands(value.node)[..]) {
        match (number(graph, *then), number(graph, *otherwise)) {
            (Some(0.0), Some(f64::NEG_INFINITY)) => return Some(Mask::Bool(*condition)),
            (Some(f64::NEG_INFINITY), Some(0.0)) => return Some(Mask::NotBool(*condition)),
            _ => {}
        }
    }
    if let Some(tensor) = known(graph, value) {
        let values = tensor.to_f64();
        if values.iter().all(|v| *v == 0.0 || *v == f64::NEG_INFINITY) && values.contains(&f64::NEG_INFINITY) {
            let admits: Vec<bool> = values.iter().map(|v| *v == 0.0).collect();
            return Some(Mask::Known(value, Tensor::from_slice(tensor.shape(), &admits)));
        }
    }
    (!guarded || bounded_below(graph, value)).then_some(Mask::Float(value))
}

/// A mask by `select(condition, scores, barred)`.
pub(super) fn selected(graph: &Graph, condition: Value, barred: f64) -> Option<Mask> {
    // A row that admits no key is NaN if barred by -inf; by a finite number it is the mean of all values, which a bool
    // mask is not. So then each row must be known to admit one.
    let every_row_admits = || {
        let admits = known(graph, condition)?.to_vec::<bool>()?;
        let row = *known(graph, condition)?.shape().last()?;
        Some(row > 0 && admits.chunks_exact(row).all(|row| row.contains(&true)))
    };
    let is_bool = barred == f64::NEG_INFINITY || (barred <= BARRED && every_row_admits() == Some(true));
    is_bool.then_some(Mask::Bool(condition))
}

/// Whether no element of `value` can be -inf or NaN.
pub(super) fn bounded_below(graph: &Graph, value: Value) -> bool {
    range(graph, value, DEPTH).is_some()
}

/// Finite bounds of all elements, as far as constants and bools tell.
fn range(graph: &Graph, value: Value, depth: usize) -> Option<(f64, f64)> {
    let depth = depth.checked_sub(1)?;
    let operands = graph.operands(value.node);
    let dtype = graph.ty(value).dtype;
    let (low, high) = match (graph.op(value.node), operands.as_slice()) {
        (Op::Constant { .. } | Op::Weight { .. }, _) => {
            let values = known(graph, value)?.to_f64();
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (!values.iter().any(|v| v.is_nan())).then_some((low, high))?
        }
        (Op::Cast { .. }, [x]) if graph.ty(*x).dtype == DType::Bool => (0.0, 1.0),
        (
            Op::Cast { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Broadcast { .. }
            | Op::Slice { .. }
            | Op::Gather { .. },
            [x, ..],
        ) => range(graph, *x, depth)?,
        (Op::Select, [_, a, b]) => {
            let (a, b) = (range(graph, *a, depth)?, range(graph, *b, depth)?);
            (a.0.min(b.0), a.1.max(b.1))
        }
        (Op::Binary(op), [a, b]) => {
            let (a, b) = (range(graph, *a, depth)?, range(graph, *b, depth)?);
            let corners = |f: fn(f64, f64) -> f64| {
                let all = [f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)];
                (all.into_iter().fold(f64::INFINITY, f64::min), all.into_iter().fold(f64::NEG_INFINITY, f64::max))
            };
            match op {
                BinaryOp::Add => (a.0 + b.0, a.1 + b.1),
                BinaryOp::Sub => (a.0 - b.1, a.1 - b.0),
                BinaryOp::Mul => corners(|x, y| x * y),
                BinaryOp::Min => (a.0.min(b.0), a.1.min(b.1)),
                BinaryOp::Max => (a.0.max(b.0), a.1.max(b.1)),
                _ => return None,
            }
        }
        (Op::Unary(UnaryOp::Neg), [x]) => {
            let (low, high) = range(graph, *x, depth)?;
            (-high, -low)
        }
        _ => return None,
    };
    let largest = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.389e38,
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        // Integers wrap beyond what a mask holds.
        _ => 127.0,
    };
    (low >= -largest && high <= largest).then_some((low, high))
}

/// Attention whose constant mask bars exactly the later keys, or nothing.
pub(super) fn causal(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let Op::Attention { scale, causal: false, masked_rows_zero, .. } = *graph.op(node) else { return Ok(None) };
    let [q, k, v, mask] = graph.operands(node)[..] else { return Ok(None) };
    let dims = |value: Value| graph.ty(value).shape.get(2).and_then(|d| usize::try_from(d.as_const()?).ok());
    let (Some(tensor), Some(rows), Some(keys)) = (known(graph, mask), dims(q), dims(k)) else { return Ok(None) };
    let admitted: Option<Vec<bool>> = if tensor.dtype() == DType::Bool {
        tensor.to_vec()
    } else {
        tensor
            .to_f64()
            .into_iter()
            .map(|v| if v == 0.0 { Some(true) } else { (v <= BARRED).then_some(false) })
            .collect()
    };
    let Some(admitted) = admitted else { return Ok(None) };
    let bars_nothing = admitted.iter().all(|admits| *admits);
    let whole = matches!(tensor.shape(), [.., r, c] if *r == rows && *c == keys) && rows > 0 && keys > 0;
    let follows = |offset: usize| {
        whole && admitted.iter().enumerate().all(|(at, admits)| *admits == (at % keys <= at / keys % rows + offset))
    };
    // Every row must admit a key: of a row that does not, a float mask makes the mean or NaN, a causal one 0 or NaN.
    let (causal, causal_offset) = if bars_nothing {
        (false, false)
    } else if follows(0) {
        (true, false)
    } else if keys > rows && follows(keys - rows) {
        (true, true)
    } else {
        return Ok(None);
    };
    let op = Op::Attention { scale, causal, causal_offset, masked_rows_zero };
    let exactness = if tensor.dtype() == DType::Bool || bars_nothing { Exactness::Exact } else { Exactness::Rounding };
    let why = if causal { "the mask is causal" } else { "the mask bars nothing" };
    Patch::replace_with_op(graph, Value { node, port: 0 }, op, &[q, k, v], why, exactness).map(Some)
}
