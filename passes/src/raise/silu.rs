//! SiLU.

use forge_ir::{BinaryOp, Graph, InferError, NodeId, Op, Patch, UnaryOp, Value};

use super::rounding;
use crate::matching::Matcher;

pub(super) fn silu(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let product = m.attempt(|m| {
        let pair = m.binary(root, BinaryOp::Mul)?;
        m.either(pair, |m, x, gate| (m.unary(gate, UnaryOp::Sigmoid)? == x).then_some(x))
    });
    // exp(-x) overflows to infinity, and x / infinity is the 0 that SiLU tends to.
    let found = product.or_else(|| {
        m.attempt(|m| {
            let (x, sum) = m.binary(root, BinaryOp::Div)?;
            let (power, one) = m.with_number(sum, BinaryOp::Add)?;
            let exponent = m.unary(power, UnaryOp::Exp)?;
            (one == 1.0 && m.unary(exponent, UnaryOp::Neg)? == x).then_some(x)
        })
    });
    match found {
        Some(x) if graph.ty(x) == graph.ty(root) && m.closed(root) => rounding(graph, root, Op::Silu, &[x], "silu"),
        _ => Ok(None),
    }
}
