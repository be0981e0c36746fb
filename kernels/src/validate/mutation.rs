//! Deliberately wrong results: a test set that does not reject them says nothing about a candidate that it accepts.

use std::collections::HashMap;

use forge_ir::interp::{self, EvalError, Mode};
use forge_ir::{DType, Dim, Graph, Loc, NodeId, Op, Tensor, Value};

use super::compare::{OutputSpec, Rules};
use super::suite::{compare_all, refused};
use super::{Case, Refusal, ValidateOptions};
use crate::verdict::{Reason, Stage};

/// One way to be wrong.
pub(super) enum Mutant {
    Zeros {
        output: usize,
    },
    /// The mean of the first case's output, everywhere and always.
    Constant {
        output: usize,
    },
    /// An input, returned as it came.
    Copy {
        output: usize,
        input: usize,
    },
    /// The result of another case: memory that was not written.
    Stale {
        output: usize,
    },
    /// Every element one place on.
    Shift {
        output: usize,
        forward: bool,
    },
    /// What half-precision arithmetic leaves of an f32 result.
    Half {
        output: usize,
    },
    /// The region with the last term of one sum left out.
    Dropped {
        graph: Box<Graph>,
        place: String,
    },
}

/// Sums that lose a term, at most: each costs an evaluation.
const DROPPED: usize = 2;
/// Relative to the largest element, what rounding alone explains.
const ROUNDING: f64 = 64.0 * f32::EPSILON as f64;

/// The mutants that make sense for a region (without composites).
pub(super) fn mutants(flat: &Graph) -> Vec<Mutant> {
    let mut out = Vec::new();
    for (output, (_, value)) in flat.outputs().iter().enumerate() {
        let ty = flat.ty(*value);
        out.push(Mutant::Zeros { output });
        out.push(Mutant::Constant { output });
        out.push(Mutant::Stale { output });
        out.extend([true, false].map(|forward| Mutant::Shift { output, forward }));
        let same = |input: &NodeId| *flat.ty(Value { node: *input, port: 0 }) == *ty;
        out.extend(flat.inputs().iter().position(same).map(|input| Mutant::Copy { output, input }));
        if ty.dtype == DType::F32 {
            out.push(Mutant::Half { output });
        }
    }
    let sums = flat.topological().into_iter().filter(|n| matches!(flat.op(*n), Op::MatMul { .. } | Op::Reduce { .. }));
    let dropped = sums.filter_map(|node| {
        let graph = Box::new(without_last_term(flat, node)?);
        Some(Mutant::Dropped { graph, place: flat.op(node).name().to_owned() })
    });
    out.extend(dropped.take(DROPPED));
    out
}

impl Mutant {
    pub(super) fn name(&self) -> String {
        match self {
            Mutant::Zeros { .. } => "zeros".into(),
            Mutant::Constant { .. } => "a constant".into(),
            Mutant::Copy { input, .. } => format!("a copy of input {input}"),
            Mutant::Stale { .. } => "the result of an earlier call".into(),
            Mutant::Shift { forward, .. } => format!("indices off by {}", if *forward { 1 } else { -1 }),
            Mutant::Half { .. } => "half-precision arithmetic".into(),
            Mutant::Dropped { place, .. } => format!("{place} without its last term"),
        }
    }

    /// Whether a difference of this relative size may go unseen: one term in thousands is below half a unit of an f16, and a
    /// maximum that only keeps an exponential from overflowing changes nothing but rounding.
    pub(super) fn may_hide(&self, difference: f64, half_outputs: bool) -> bool {
        matches!(self, Mutant::Dropped { .. }) && (half_outputs || difference <= ROUNDING)
    }

    /// The wrong outputs for a case; `None` if this mutant has none here.
    pub(super) fn outputs(&self, case: &Case, first: &Case, other: &Case) -> Result<Option<Vec<Tensor>>, EvalError> {
        let mut outputs: Vec<Tensor> = case.expected.iter().map(|e| e.baseline.clone()).collect();
        let change = |tensor: &Tensor| -> Option<(usize, Tensor)> {
            let size = tensor.dtype().size();
            match self {
                Mutant::Zeros { output } => Some((*output, filled(tensor, 0.0))),
                Mutant::Constant { output } => {
                    let values = first.expected.get(*output)?.baseline.to_f64();
                    let finite: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
                    Some((*output, filled(tensor, finite.iter().sum::<f64>() / finite.len().max(1) as f64)))
                }
                Mutant::Copy { output, input } => Some((*output, case.inputs.get(*input)?.clone())),
                Mutant::Stale { output } => {
                    let stale = other.expected.get(*output)?.baseline.clone();
                    (stale.shape() == tensor.shape()).then_some((*output, stale))
                }
                Mutant::Shift { output, forward } => {
                    let mut bytes = tensor.bytes().to_vec();
                    if bytes.is_empty() {
                        return None;
                    }
                    if *forward {
                        bytes.rotate_left(size);
                    } else {
                        bytes.rotate_right(size);
                    }
                    Some((*output, Tensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes)?))
                }
                Mutant::Half { output } => {
                    // Eleven significant bits, but f32's range.
                    let data: Vec<f64> = tensor
                        .to_f64()
                        .into_iter()
                        .map(|v| f64::from_bits((v.to_bits() + (1 << 41)) >> 42 << 42))
                        .collect();
                    Some((*output, Tensor::from_f64(tensor.dtype(), tensor.shape(), &data)))
                }
                Mutant::Dropped { .. } => None,
            }
        };
        if let Mutant::Dropped { graph, .. } = self {
            // Shapes are constants: it fits the cases of its own shapes only.
            let fits = graph.inputs().iter().zip(&case.inputs).all(|(node, tensor)| {
                graph.ty(Value { node: *node, port: 0 }).const_shape().is_some_and(|shape| shape == tensor.shape())
            });
            return if fits { interp::run(graph, &case.inputs, Mode::Native).map(Some) } else { Ok(None) };
        }
        let output = match self {
            Mutant::Zeros { output }
            | Mutant::Constant { output }
            | Mutant::Copy { output, .. }
            | Mutant::Stale { output }
            | Mutant::Shift { output, .. }
            | Mutant::Half { output } => *output,
            Mutant::Dropped { .. } => 0,
        };
        let Some((at, tensor)) = outputs.get(output).and_then(change) else { return Ok(None) };
        if let Some(slot) = outputs.get_mut(at) {
            *slot = tensor;
        }
        Ok(Some(outputs))
    }
}

/// The largest difference over the largest magnitude; infinite where one is finite and the other is not.
fn relative_difference(a: &Tensor, b: &Tensor) -> f64 {
    if a == b {
        return 0.0;
    }
    let (a, b) = (a.to_f64(), b.to_f64());
    let largest = b.iter().filter(|v| v.is_finite()).fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let apart = a.iter().zip(&b).map(|(x, y)| match (x.is_finite(), y.is_finite()) {
        (true, true) => (x - y).abs() / largest,
        _ if x.is_nan() == y.is_nan() && (x.is_nan() || x == y) => 0.0,
        _ => f64::INFINITY,
    });
    apart.fold(0.0, f64::max)
}

/// Puts wrong results to the suite's own checks. Returns how many were seen.
pub(super) fn power(
    flat: &Graph,
    outputs: &[OutputSpec],
    cases: &[Case],
    options: &ValidateOptions,
    notes: &mut Vec<String>,
) -> Result<usize, Refusal> {
    let half_outputs = outputs.iter().any(|o| matches!(o.dtype, DType::F16 | DType::BF16));
    let tested: Vec<&Case> = cases.iter().filter(|c| c.rules != Rules::Special).collect();
    let Some(first) = tested.first() else { return Err(refused("no case to test")) };
    let mut rejected = 0;
    for mutant in mutants(flat) {
        let mut difference = 0.0f64;
        let mut seen = false;
        for (i, case) in tested.iter().enumerate() {
            // For the first case, the last one is what a call before may have left.
            let other = tested[(i + tested.len() - 1) % tested.len()];
            let wrong =
                mutant.outputs(case, first, other).map_err(|e| refused(format!("a wrong kernel can't be run: {e}")))?;
            let Some(wrong) = wrong else { continue };
            if compare_all(outputs, case, &wrong, options).is_err() {
                seen = true;
                break;
            }
            // Against the same arithmetic with the term left in, so that only the term makes a difference.
            let right = match mutant {
                Mutant::Dropped { .. } => interp::run(flat, &case.inputs, Mode::Native)
                    .map_err(|e| refused(format!("the region can't be evaluated: {e}")))?,
                _ => case.expected.iter().map(|e| e.baseline.clone()).collect(),
            };
            for (wrong, right) in wrong.iter().zip(&right) {
                difference = difference.max(relative_difference(wrong, right));
            }
        }
        if seen {
            rejected += 1;
        } else if difference > 0.0 {
            let what = format!("{} would be accepted", mutant.name());
            if !mutant.may_hide(difference, half_outputs) {
                return Err(Refusal::new(Stage::Validate, Reason::MutationPower, what));
            }
            notes.push(what);
        }
    }
    Ok(rejected)
}

fn filled(like: &Tensor, value: f64) -> Tensor {
    Tensor::from_f64(like.dtype(), like.shape(), &vec![value; like.numel()])
}

/// The graph with the last term of `node`'s sum (or the last competitor of its maximum) cut off; `None` if it has one term only.
fn without_last_term(graph: &Graph, target: NodeId) -> Option<Graph> {
    let mut out = Graph::new(graph.name());
    let mut map: HashMap<Value, Value> = HashMap::new();
    for node in graph.inputs() {
        let value = Value { node: *node, port: 0 };
        map.insert(value, out.add_input(graph.input_name(*node), graph.ty(value).clone()));
    }
    for node in graph.topological() {
        let op = graph.op(node);
        if matches!(op, Op::Input { .. }) {
            continue;
        }
        let mut operands: Vec<Value> =
            graph.operands(node).iter().map(|v| map.get(v).copied()).collect::<Option<_>>()?;
        if node == target {
            for (slot, axis) in summed_axes(graph, node) {
                let shortened = shorten(&mut out, *operands.get(slot)?, axis)?;
                *operands.get_mut(slot)? = shortened;
            }
        }
        let new = match op {
            Op::Weight { .. } | Op::Constant { .. } => {
                out.add_leaf(op.clone(), graph.node(node).outputs.first()?.clone())
            }
            _ => out.add(op.clone(), &operands, Loc::default()).ok()?,
        };
        for value in graph.results(node) {
            map.insert(value, Value { node: new.node, port: value.port });
        }
    }
    out.set_outputs(graph.outputs().iter().map(|(n, v)| Some((n.clone(), *map.get(v)?))).collect::<Option<_>>()?);
    Some(out)
}

/// (operand, axis) along which a node sums.
fn summed_axes(graph: &Graph, node: NodeId) -> Vec<(usize, usize)> {
    let operands = graph.operands(node);
    let rank = |i: usize| operands.get(i).map_or(0, |v| graph.ty(*v).rank());
    match graph.op(node) {
        Op::MatMul { trans_a, trans_b } => {
            vec![(0, rank(0) - if *trans_a { 2 } else { 1 }), (1, rank(1) - if *trans_b { 1 } else { 2 })]
        }
        Op::Reduce { axes, .. } => axes.last().map(|a| (0, *a)).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn shorten(out: &mut Graph, value: Value, axis: usize) -> Option<Value> {
    let mut sizes = out.ty(value).shape.clone();
    let extent = sizes.get(axis)?.as_const()?;
    if extent < 2 {
        return None;
    }
    *sizes.get_mut(axis)? = Dim::from(extent - 1);
    let rank = sizes.len();
    out.add(Op::Slice { starts: vec![Dim::from(0); rank], steps: vec![1; rank], sizes }, &[value], Loc::default()).ok()
}

#[cfg(test)]
mod tests {
    use forge_ir::text::parse;

    use super::*;

    #[test]
    fn a_sum_loses_its_last_term() {
        let graph = parse(
            "graph @g(%a: f32[2, 3], %b: f32[3, 2]) -> (f32[2, 2], f32[2]) {
               %0 = matmul(%a, %b) : f32[2, 2]
               %1 = reduce_max(%a) {axes = [1], keep_dims = false} : f32[2]
               return %0, %1
             }",
        )
        .unwrap();
        let inputs = [
            Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Tensor::from_slice(&[3, 2], &[1f32, 10.0, 1.0, 10.0, 1.0, 10.0]),
        ];
        let dropped: Vec<Vec<Tensor>> = mutants(&graph)
            .iter()
            .filter_map(|m| match m {
                Mutant::Dropped { graph, .. } => Some(interp::run(graph, &inputs, Mode::Native).unwrap()),
                _ => None,
            })
            .collect();
        assert_eq!(dropped[0][0].to_vec::<f32>().unwrap(), [3.0, 30.0, 9.0, 90.0]);
        assert_eq!(dropped[1][1].to_vec::<f32>().unwrap(), [2.0, 5.0]);
    }
}
