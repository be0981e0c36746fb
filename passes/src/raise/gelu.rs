//! GELU, exact and in its tanh form.
//!
//! Exporters write the same product in many orders, so the root is read as a monomial in x and the gate, and the gate's
//! argument as a polynomial in x.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use forge_ir::{BinaryOp, DType, GeluApproximate, Graph, InferError, NodeId, Op, Patch, UnaryOp, Value};

use super::rounding;
use crate::matching::{Matcher, is_about, number};

/// Products and sums nest no deeper than this in any spelling.
const DEPTH: usize = 6;

pub(super) fn gelu(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    if !matches!(graph.op(node), Op::Binary(BinaryOp::Mul | BinaryOp::Div)) {
        return Ok(None);
    }
    let mut m = Matcher::new(graph);
    let Some(gate) = find_gate(graph, root, DEPTH) else { return Ok(None) };
    let dtype = graph.ty(root).dtype;
    let mut candidates = Vec::new();
    candidate_values(graph, gate.argument, DEPTH, &mut candidates);
    for x in candidates {
        let found = m.attempt(|m| {
            let gate = read_gate(m, gate.value)?;
            let argument = polynomial(m, gate.argument, x, DEPTH)?;
            let wanted = match gate.approximate {
                GeluApproximate::None => [0.0, FRAC_1_SQRT_2, 0.0, 0.0],
                GeluApproximate::Tanh => [0.0, (2.0 / PI).sqrt(), 0.0, (2.0 / PI).sqrt() * 0.044715],
            };
            let fits = argument.iter().zip(wanted).all(|(found, wanted)| is_about(*found, wanted, dtype));
            let whole = monomial(m, root, x, gate.value, DEPTH)?;
            let factor = whole.coefficient * gate.factor;
            let once = whole.of_x == 1 && whole.of_gate == 1;
            (fits && once && is_about(factor, 0.5, DType::F32) && m.ty(x) == m.ty(root) && m.closed(root)).then_some(())
        });
        if found.is_some() {
            let op = Op::Gelu { approximate: gate.approximate };
            return rounding(graph, root, op, &[x], "gelu");
        }
    }
    Ok(None)
}

/// `factor * (1 + f(argument))`
struct Gate {
    value: Value,
    factor: f64,
    approximate: GeluApproximate,
    argument: Value,
}

/// The gate among the factors of `value`.
fn find_gate(graph: &Graph, value: Value, depth: usize) -> Option<Gate> {
    let mut m = Matcher::new(graph);
    if let Some(gate) = m.attempt(|m| read_gate(m, value)) {
        return Some(gate);
    }
    let depth = depth.checked_sub(1)?;
    match m.binary(value, BinaryOp::Mul) {
        Some((a, b)) => find_gate(graph, a, depth).or_else(|| find_gate(graph, b, depth)),
        None => find_gate(graph, m.with_number(value, BinaryOp::Div)?.0, depth),
    }
}

fn read_gate(m: &mut Matcher<'_>, value: Value) -> Option<Gate> {
    let (term, offset) = m.with_number(value, BinaryOp::Add)?;
    let (function, factor) = match m.with_number(term, BinaryOp::Mul) {
        Some((function, factor)) => (function, factor),
        None => (term, 1.0),
    };
    let (argument, approximate) = match m.attempt(|m| m.unary(function, UnaryOp::Erf)) {
        Some(argument) => (argument, GeluApproximate::None),
        None => (m.unary(function, UnaryOp::Tanh)?, GeluApproximate::Tanh),
    };
    (offset == factor).then_some(Gate { value, factor, approximate, argument })
}

/// Values that `value` may be a polynomial of, the nearest first.
fn candidate_values(graph: &Graph, value: Value, depth: usize, out: &mut Vec<Value>) {
    if depth == 0 || out.contains(&value) || number(graph, value).is_some() {
        return;
    }
    out.push(value);
    if let Op::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Pow) = graph.op(value.node) {
        for operand in graph.operands(value.node) {
            candidate_values(graph, operand, depth - 1, out);
        }
    }
}

/// Coefficients of 1, x, x^2, x^3.
type Polynomial = [f64; 4];

fn product(a: Polynomial, b: Polynomial) -> Option<Polynomial> {
    let mut out = [0.0; 4];
    for (i, x) in a.iter().enumerate() {
        for (j, y) in b.iter().enumerate() {
            let term = x * y;
            if term != 0.0 {
                *out.get_mut(i + j)? += term;
            }
        }
    }
    Some(out)
}

fn polynomial(m: &mut Matcher<'_>, value: Value, x: Value, depth: usize) -> Option<Polynomial> {
    if value == x {
        return Some([0.0, 1.0, 0.0, 0.0]);
    }
    if let Some(number) = number(m.graph(), value) {
        return Some([number, 0.0, 0.0, 0.0]);
    }
    let depth = depth.checked_sub(1)?;
    let (op, a, b) = m.op(value, |op, operands| match (op, operands) {
        (Op::Binary(op), [a, b]) => Some((*op, *a, *b)),
        _ => None,
    })?;
    let left = polynomial(m, a, x, depth)?;
    let right = polynomial(m, b, x, depth)?;
    let constant = || (right[1..] == [0.0; 3]).then_some(right[0]);
    match op {
        BinaryOp::Add => Some(std::array::from_fn(|i| left[i] + right[i])),
        BinaryOp::Sub => Some(std::array::from_fn(|i| left[i] - right[i])),
        BinaryOp::Mul => product(left, right),
        BinaryOp::Div => constant().filter(|c| *c != 0.0).map(|c| left.map(|v| v / c)),
        BinaryOp::Pow => match constant()? {
            2.0 => product(left, left),
            3.0 => product(product(left, left)?, left),
            _ => None,
        },
        _ => None,
    }
}

/// `coefficient * x^of_x * gate^of_gate`
struct Monomial {
    coefficient: f64,
    of_x: usize,
    of_gate: usize,
}

fn monomial(m: &mut Matcher<'_>, value: Value, x: Value, gate: Value, depth: usize) -> Option<Monomial> {
    if value == x || value == gate {
        return Some(Monomial { coefficient: 1.0, of_x: usize::from(value == x), of_gate: usize::from(value == gate) });
    }
    if let Some(coefficient) = number(m.graph(), value) {
        return Some(Monomial { coefficient, of_x: 0, of_gate: 0 });
    }
    let depth = depth.checked_sub(1)?;
    if let Some((a, divisor)) = m.with_number(value, BinaryOp::Div) {
        let a = monomial(m, a, x, gate, depth)?;
        return Some(Monomial { coefficient: a.coefficient / divisor, ..a });
    }
    let (a, b) = m.binary(value, BinaryOp::Mul)?;
    let (a, b) = (monomial(m, a, x, gate, depth)?, monomial(m, b, x, gate, depth)?);
    Some(Monomial { coefficient: a.coefficient * b.coefficient, of_x: a.of_x + b.of_x, of_gate: a.of_gate + b.of_gate })
}
