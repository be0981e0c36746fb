//! Rules on elementwise ops and reductions. Where -0.0, NaN or rounding decide, the rule says so.

use forge_ir::{BinaryOp, DType, Exactness, Graph, InferError, NodeId, Op, Patch, ReduceOp, UnaryOp, Value};

use crate::matching::{constant, number};

type Rewrite = Result<Option<Patch>, InferError>;

fn result(node: NodeId) -> Value {
    Value { node, port: 0 }
}

/// `x` for the node's result, where their types agree.
fn just(graph: &Graph, node: NodeId, x: Value, why: &str) -> Option<Patch> {
    (graph.ty(x) == graph.ty(result(node))).then(|| Patch::replace_with_value(graph, result(node), x, why))
}

pub(super) fn empty_reduce(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Reduce { op, axes, .. } = graph.op(node) else { return Ok(None) };
    let [x] = graph.operands(node)[..] else { return Ok(None) };
    // A sum starts from 0.0, and 0.0 + -0.0 is 0.0.
    let keeps_zero_sign = !graph.ty(x).dtype.is_float() || matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::Prod);
    Ok(if axes.is_empty() && keeps_zero_sign { just(graph, node, x, "reduction over no axes") } else { None })
}

pub(super) fn cast_chain(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Cast { to } = graph.op(node) else { return Ok(None) };
    let [inner] = graph.operands(node)[..] else { return Ok(None) };
    if graph.ty(inner).dtype == *to {
        return Ok(just(graph, node, inner, "cast to the same dtype"));
    }
    let Op::Cast { to: middle } = graph.op(inner.node) else { return Ok(None) };
    let [x] = graph.operands(inner.node)[..] else { return Ok(None) };
    let from = graph.ty(x).dtype;
    if !holds_all_of(*middle, from) {
        return Ok(None);
    }
    // A float becomes an integer by saturation, an integer becomes one by wrapping: the way matters.
    if from.is_int() && middle.is_float() && to.is_int() && from != *to {
        return Ok(None);
    }
    if from == *to {
        return Ok(just(graph, node, x, "cast there and back"));
    }
    let op = Op::Cast { to: *to };
    Patch::replace_with_op(graph, result(node), op, &[x], "cast of a cast that loses nothing", Exactness::Exact)
        .map(Some)
}

/// Whether every value of `from`, an infinity and a NaN included, is a value of `wide`.
fn holds_all_of(wide: DType, from: DType) -> bool {
    // Bits of integers that are surely exact: value bits of integers, significand bits of floats.
    let significand = |d: DType| match d {
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F32 => 24,
        _ => 53,
    };
    let bits = |d: DType| 8 * d.size() - usize::from(d.is_signed());
    match (from, wide) {
        (a, b) if a == b => true,
        (DType::Bool, _) => true,
        (_, DType::Bool) => false,
        (DType::F16 | DType::BF16, DType::F32 | DType::F64) | (DType::F32, DType::F64) => true,
        (a, _) if a.is_float() => false,
        (a, b) if b.is_float() => bits(a) <= significand(b),
        (a, b) => bits(a) <= bits(b) && (b.is_signed() || !a.is_signed()),
    }
}

pub(super) fn involution(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Unary(op @ (UnaryOp::Neg | UnaryOp::Not)) = graph.op(node) else { return Ok(None) };
    let [inner] = graph.operands(node)[..] else { return Ok(None) };
    let [x] = graph.operands(inner.node)[..] else { return Ok(None) };
    let why = format!("{0} of {0}", op.name());
    Ok(if graph.op(inner.node) == graph.op(node) { just(graph, node, x, &why) } else { None })
}

pub(super) fn idempotent(graph: &Graph, node: NodeId) -> Rewrite {
    use UnaryOp::{Abs, Ceil, Floor, Relu, Round, Sign};
    let Op::Unary(op @ (Relu | Abs | Sign | Floor | Ceil | Round)) = graph.op(node) else { return Ok(None) };
    let [inner] = graph.operands(node)[..] else { return Ok(None) };
    let why = format!("{0} of {0}", op.name());
    Ok(if graph.op(inner.node) == graph.op(node) { just(graph, node, inner, &why) } else { None })
}

pub(super) fn neutral_operand(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Binary(op) = graph.op(node) else { return Ok(None) };
    let [a, b] = graph.operands(node)[..] else { return Ok(None) };
    let float = graph.ty(a).dtype.is_float();
    let is = |value: Value, wanted: f64| {
        // Bits, so that 0.0 is not -0.0.
        number(graph, value).is_some_and(|n| n.to_bits() == wanted.to_bits() || (!float && n == wanted))
    };
    let commutes = matches!(op, BinaryOp::Mul | BinaryOp::Add);
    let neutral = match op {
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::Pow => 1.0,
        BinaryOp::Sub => 0.0,
        BinaryOp::Add => -0.0,
        _ => return Ok(None),
    };
    let why = format!("{} with its neutral operand", op.name());
    Ok(if is(b, neutral) {
        just(graph, node, a, &why)
    } else if commutes && is(a, neutral) {
        just(graph, node, b, &why)
    } else {
        None
    })
}

pub(super) fn add_of_neg(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Binary(op @ (BinaryOp::Add | BinaryOp::Sub)) = graph.op(node) else { return Ok(None) };
    let [a, b] = graph.operands(node)[..] else { return Ok(None) };
    let negated = |value: Value| match graph.op(value.node) {
        Op::Unary(UnaryOp::Neg) => graph.operands(value.node).first().copied(),
        _ => None,
    };
    let (other, a, b) = match (op, negated(a), negated(b)) {
        (BinaryOp::Sub, _, Some(y)) => (BinaryOp::Add, a, y),
        (BinaryOp::Add, _, Some(y)) => (BinaryOp::Sub, a, y),
        (BinaryOp::Add, Some(y), _) => (BinaryOp::Sub, b, y),
        _ => return Ok(None),
    };
    let op = Op::Binary(other);
    Patch::replace_with_op(graph, result(node), op, &[a, b], "neg goes into the sum", Exactness::Exact).map(Some)
}

pub(super) fn known_select(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Select = graph.op(node) else { return Ok(None) };
    let [condition, then, otherwise] = graph.operands(node)[..] else { return Ok(None) };
    let (branch, why) = match number(graph, condition) {
        Some(1.0) => (then, "the condition is true"),
        Some(_) => (otherwise, "the condition is false"),
        None if then == otherwise => (then, "both branches are the same"),
        None => return Ok(None),
    };
    let ty = graph.ty(result(node));
    if graph.ty(branch) == ty {
        return Ok(just(graph, node, branch, why));
    }
    let op = Op::Broadcast { shape: ty.shape.clone() };
    Patch::replace_with_op(graph, result(node), op, &[branch], why, Exactness::Exact).map(Some)
}

pub(super) fn square(graph: &Graph, node: NodeId) -> Rewrite {
    let Op::Binary(BinaryOp::Pow) = graph.op(node) else { return Ok(None) };
    let [x, exponent] = graph.operands(node)[..] else { return Ok(None) };
    if number(graph, exponent) != Some(2.0) || graph.ty(x) != graph.ty(result(node)) {
        return Ok(None);
    }
    let exactness = if graph.ty(x).dtype.is_float() { Exactness::Rounding } else { Exactness::Exact };
    Patch::replace_with_op(graph, result(node), Op::Binary(BinaryOp::Mul), &[x, x], "pow(x, 2) = x*x", exactness)
        .map(Some)
}

pub(super) fn reciprocal_sqrt(graph: &Graph, node: NodeId) -> Rewrite {
    let operands = graph.operands(node);
    let root = match (graph.op(node), &operands[..]) {
        (Op::Unary(UnaryOp::Reciprocal), [root]) => *root,
        (Op::Binary(BinaryOp::Div), [one, root]) if is_one(graph, *one) => *root,
        _ => return Ok(None),
    };
    if graph.op(root.node) != &Op::Unary(UnaryOp::Sqrt) || graph.ty(root) != graph.ty(result(node)) {
        return Ok(None);
    }
    let x = graph.operands(root.node)[0];
    let op = Op::Unary(UnaryOp::Rsqrt);
    Patch::replace_with_op(graph, result(node), op, &[x], "1/sqrt(x) = rsqrt(x)", Exactness::Rounding).map(Some)
}

fn is_one(graph: &Graph, value: Value) -> bool {
    constant(graph, value).is_some_and(|t| t.dtype().is_float()) && number(graph, value) == Some(1.0)
}
