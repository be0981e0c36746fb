//! How far from f64 each element may be, from the region's own arithmetic.
//!
//! First-order forward error analysis, run on the actual inputs: every value carries, beside its f64 value, a bound on the error
//! that f32 arithmetic makes up to there. Sums of K products grow as √K, not K (Higham and Mary, "A new approach to probabilistic
//! rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019): `2 u √K Σ|a||b|`. Errors of operands pass through a function as the
//! function's own change over them. What comes out is per element, so a small element beside large ones is held to its own scale,
//! which no norm-wise budget does; and it does not depend on a baseline, which may be bad itself.

use std::collections::HashMap;

use forge_ir::interp::{EvalError, Mode, eval_op};
use forge_ir::{
    BinaryOp, DType, Dim, Graph, NodeId, Op, PadMode, PoolKind, ReduceOp, ResizeMode, Tensor, TensorType, UnaryOp,
    Value,
};

use super::analysis::terms;

/// Unit roundoff of the accumulation type: half the gap between 1 and the next number.
fn roundoff(dtype: DType) -> f64 {
    dtype.compute_type().epsilon().unwrap_or(0.0) / 2.0
}

/// Rounding of a result that is stored in `dtype`.
fn storage_roundoff(dtype: DType) -> f64 {
    dtype.epsilon().unwrap_or(0.0) / 2.0
}

/// Smallest subnormal: the absolute error of anything that underflows.
pub(super) fn quantum(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-24),
        DType::BF16 => 2f64.powi(-133),
        DType::F32 => 2f64.powi(-149),
        DType::F64 => f64::from_bits(1),
        _ => 0.0,
    }
}

/// `u` of a result that rounds to nearest, or the smallest subnormal; infinities are exact.
fn rounded(u: f64, result: f64, dtype: DType) -> f64 {
    if result.is_infinite() { 0.0 } else { u * result.abs() + quantum(dtype) }
}

/// The bound of each output, per element (NaN or infinite where nothing can be said); `None` where an op's error has no such
/// analysis, or a discontinuous op was fed rounded values.
///
/// `graph` has constant shapes and no composites.
///
/// # Errors
/// If the graph can't be evaluated on these inputs.
pub fn forward_error(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Option<Vec<f64>>>, EvalError> {
    let mut values: HashMap<Value, Tensor> = HashMap::new();
    // Absent: unknown. Present and empty: exact.
    let mut errors: HashMap<Value, Error> = HashMap::new();
    for node in graph.topological() {
        let operands = graph.operands(node);
        let own: Vec<Tensor> = operands.iter().filter_map(|v| values.get(v).cloned()).collect();
        let own_errors: Vec<Error> =
            operands.iter().map(|v| errors.get(v).cloned().unwrap_or(Error::Unknown)).collect();
        let types: Vec<TensorType> = graph.node(node).outputs.clone();
        let op = graph.op(node);
        let (results, error) = match graph.inputs().iter().position(|i| *i == node) {
            Some(index) => (inputs.get(index).cloned().into_iter().collect(), Error::Zero),
            None => {
                let results = eval_op(op, &own, &types, Mode::F64)?;
                let step =
                    Step { graph, node, op, operands: &own, errors: &own_errors, types: &types, results: &results };
                let error = step.error()?;
                (results, error)
            }
        };
        for (value, result) in graph.results(node).zip(results) {
            let result = if result.dtype().is_float() { widened(&result) } else { result };
            values.insert(value, result);
            errors.insert(value, error.clone());
        }
    }
    Ok(graph
        .outputs()
        .iter()
        .map(|(_, value)| match (errors.get(value), values.get(value)) {
            (Some(Error::Zero), Some(v)) => Some(vec![0.0; v.numel()]),
            (Some(Error::Each(e)), _) => Some(e.to_f64()),
            _ => None,
        })
        .collect())
}

fn widened(tensor: &Tensor) -> Tensor {
    Tensor::from_f64(DType::F64, tensor.shape(), &tensor.to_f64())
}

#[derive(Clone)]
enum Error {
    Zero,
    /// f64, in the value's shape.
    Each(Tensor),
    Unknown,
}

impl Error {
    fn is_zero(&self) -> bool {
        matches!(self, Error::Zero)
    }
}

struct Step<'a> {
    graph: &'a Graph,
    node: NodeId,
    op: &'a Op,
    operands: &'a [Tensor],
    errors: &'a [Error],
    types: &'a [TensorType],
    results: &'a [Tensor],
}

type Bounded = Result<Error, EvalError>;

impl Step<'_> {
    fn error(&self) -> Bounded {
        if self.errors.iter().any(|e| matches!(e, Error::Unknown)) {
            return Ok(Error::Unknown);
        }
        let exact = self.errors.iter().all(Error::is_zero);
        let dtype = self.types.first().map_or(DType::F32, |t| t.dtype);
        if !dtype.is_float() {
            // Integers and bools do not round; from rounded floats they would jump.
            return Ok(if exact { Error::Zero } else { Error::Unknown });
        }
        match self.op {
            Op::Constant { .. } | Op::Weight { .. } | Op::Iota { .. } | Op::DimValue { .. } => Ok(Error::Zero),
            Op::Unary(op) => match op {
                UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Relu => self.perturbed(0.0),
                UnaryOp::Sqrt | UnaryOp::Reciprocal => self.perturbed(1.0),
                UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Sign => {
                    Ok(if exact { Error::Zero } else { Error::Unknown })
                }
                // Vectorised elementary functions: up to 4 units in the last place.
                _ => self.perturbed(8.0),
            },
            Op::Binary(op) => match op {
                BinaryOp::Min | BinaryOp::Max => self.perturbed(0.0),
                BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div => self.perturbed(1.0),
                BinaryOp::Pow => self.perturbed(16.0),
                _ => Ok(if exact { Error::Zero } else { Error::Unknown }),
            },
            Op::Select => self.through(&[1, 2]),
            Op::Cast { .. } => self.cast(dtype),
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } | Op::Slice { .. } => self.through(&[0]),
            Op::Pad { mode, .. } => self.through(if *mode == PadMode::Constant { &[0, 1] } else { &[0] }),
            Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => self.through(&[0]),
            Op::Concat { .. } => self.through(&(0..self.operands.len()).collect::<Vec<_>>()),
            Op::Reduce { op, .. } => match op {
                ReduceOp::Max | ReduceOp::Min => self.extreme(ReduceOp::Max),
                ReduceOp::Sum | ReduceOp::Mean => self.linear(&[0]),
                ReduceOp::Prod => {
                    Ok(if exact { self.relative(2.0 * terms(self.graph, self.node), dtype) } else { Error::Unknown })
                }
            },
            Op::CumSum { .. } => self.linear(&[0]),
            Op::Pool { kind: PoolKind::Max, .. } => self.through(&[0]),
            // Cubic weights are negative in part: the op on absolute values is no sum of absolute terms.
            Op::Resize { mode: ResizeMode::Cubic, .. } => Ok(Error::Unknown),
            Op::Pool { .. } | Op::Resize { .. } => self.linear(&[0]),
            Op::MatMul { .. } | Op::Conv { .. } | Op::ConvTranspose { .. } => self.linear(&[0, 1]),
            _ => Ok(if exact && matches!(self.op, Op::TopK { .. }) { Error::Zero } else { Error::Unknown }),
        }
    }

    fn eval(&self, operands: &[Tensor]) -> Result<Tensor, EvalError> {
        let results = eval_op(self.op, operands, self.types, Mode::F64)?;
        results
            .into_iter()
            .next()
            .ok_or_else(|| EvalError::Unsupported { op: self.op.name(), message: "it has no result".into() })
    }

    fn result(&self) -> Vec<f64> {
        self.results.first().map(Tensor::to_f64).unwrap_or_default()
    }

    fn shape(&self) -> Vec<usize> {
        self.results.first().map(|t| t.shape().to_vec()).unwrap_or_default()
    }

    fn dtype(&self) -> DType {
        self.types.first().map_or(DType::F32, |t| t.dtype)
    }

    fn each(&self, data: &[f64]) -> Error {
        Error::Each(Tensor::from_f64(DType::F64, &self.shape(), data))
    }

    /// `units` roundoffs of the result.
    fn relative(&self, units: f64, dtype: DType) -> Error {
        let u = roundoff(dtype);
        let data: Vec<f64> = self.result().iter().map(|v| rounded(units * u, *v, dtype)).collect();
        self.each(&data)
    }

    /// Adds what storing the result costs: one rounding of its dtype, or the smallest subnormal.
    fn stored(&self, data: &mut [f64]) {
        let dtype = self.dtype();
        // A compute type wider than the storage rounds once more.
        let extra = if dtype.compute_type() == dtype { 0.0 } else { storage_roundoff(dtype) };
        for (e, v) in data.iter_mut().zip(self.result()) {
            *e += if v.is_infinite() { 0.0 } else { extra * v.abs() };
        }
    }

    /// The op's change over the operands' errors, plus `units` roundoffs of its own.
    fn perturbed(&self, units: f64) -> Bounded {
        if units == 0.0 && self.errors.iter().all(Error::is_zero) {
            return Ok(Error::Zero);
        }
        let center = self.result();
        let dtype = self.dtype();
        let u = roundoff(dtype);
        let own = |v: &f64| if units == 0.0 { 0.0 } else { rounded(units * u, *v, dtype) };
        let mut data: Vec<f64> = center.iter().map(own).collect();
        for (i, error) in self.errors.iter().enumerate() {
            let Error::Each(error) = error else { continue };
            let (value, error) = (self.operands[i].to_f64(), error.to_f64());
            let mut change = vec![0.0f64; center.len()];
            for sign in [1.0, -1.0] {
                let moved: Vec<f64> = value.iter().zip(&error).map(|(v, e)| v + sign * e).collect();
                let mut operands = self.operands.to_vec();
                operands[i] = Tensor::from_f64(DType::F64, self.operands[i].shape(), &moved);
                for ((change, moved), center) in change.iter_mut().zip(self.eval(&operands)?.to_f64()).zip(&center) {
                    // NaN (a moved operand left the domain) spreads: nothing is known there.
                    let distance = if moved == *center { 0.0 } else { (moved - center).abs() };
                    *change = if distance.is_nan() || change.is_nan() { f64::NAN } else { change.max(distance) };
                }
            }
            data.iter_mut().zip(&change).for_each(|(e, c)| *e += c);
        }
        self.stored(&mut data);
        Ok(self.each(&data))
    }

    /// Errors moved as the elements are: the op applied to them, in place of the operands `moved`.
    fn through(&self, moved: &[usize]) -> Bounded {
        if self.errors.iter().all(Error::is_zero) {
            return Ok(Error::Zero);
        }
        let operands: Vec<Tensor> = (0..self.operands.len())
            .map(|i| if moved.contains(&i) { self.error_of(i) } else { self.operands[i].clone() })
            .collect();
        Ok(Error::Each(self.eval(&operands)?))
    }

    fn error_of(&self, operand: usize) -> Tensor {
        match &self.errors[operand] {
            Error::Each(error) => error.clone(),
            _ => {
                let shape = self.operands[operand].shape();
                Tensor::from_f64(DType::F64, shape, &vec![0.0; self.operands[operand].numel()])
            }
        }
    }

    fn cast(&self, dtype: DType) -> Bounded {
        let from = self.operands.first().map_or(dtype, Tensor::dtype);
        let declared = self.graph.operands(self.node).first().map_or(from, |v| self.graph.ty(*v).dtype);
        if !declared.is_float() {
            // Wide integers round.
            return Ok(self.relative(1.0, dtype));
        }
        let mut data = match self.through(&[0])? {
            Error::Each(error) => error.to_f64(),
            _ => vec![0.0; self.result().len()],
        };
        if dtype.size() < declared.size() || dtype != declared && dtype.size() == declared.size() {
            let u = storage_roundoff(dtype);
            data.iter_mut().zip(self.result()).for_each(|(e, v)| *e += rounded(u, v, dtype));
        }
        Ok(if data.iter().all(|e| *e == 0.0) { Error::Zero } else { self.each(&data) })
    }

    /// The largest error among the elements that compete.
    fn extreme(&self, op: ReduceOp) -> Bounded {
        let (Op::Reduce { axes, keep_dims, .. }, Some(Error::Each(error))) = (self.op, self.errors.first()) else {
            return Ok(Error::Zero);
        };
        let largest = Op::Reduce { op, axes: axes.clone(), keep_dims: *keep_dims };
        let types: Vec<TensorType> =
            self.types.iter().map(|t| TensorType { dtype: DType::F64, shape: t.shape.clone() }).collect();
        let results = eval_op(&largest, std::slice::from_ref(error), &types, Mode::F64)?;
        Ok(results.into_iter().next().map_or(Error::Unknown, Error::Each))
    }

    /// Sums of K terms, linear in each of the operands `factors`: `Σ |other factors| · error + 2 u √K Σ |all factors|`. A bias is
    /// one more term.
    fn linear(&self, factors: &[usize]) -> Bounded {
        let dtype = self.dtype();
        let absolute = |i: usize| {
            let data: Vec<f64> = self.operands[i].to_f64().iter().map(|v| v.abs()).collect();
            Tensor::from_f64(DType::F64, self.operands[i].shape(), &data)
        };
        let all: Vec<Tensor> = (0..self.operands.len()).map(absolute).collect();
        let growth = 2.0 * roundoff(dtype) * (terms(self.graph, self.node) + 1.0).sqrt();
        let mut data: Vec<f64> = self.eval(&all)?.to_f64().iter().map(|s| growth * s + quantum(dtype)).collect();
        for (i, error) in self.errors.iter().enumerate() {
            if error.is_zero() {
                continue;
            }
            let mut operands = all.clone();
            operands[i] = self.error_of(i);
            if !factors.contains(&i) || factors.len() > 1 {
                // Only this operand's error: terms without it (a bias beside a product) drop out.
                for (j, operand) in operands.iter_mut().enumerate() {
                    let apart = (factors.contains(&i) && !factors.contains(&j))
                        || (!factors.contains(&i) && factors.contains(&j));
                    if apart {
                        *operand = Tensor::from_f64(
                            DType::F64,
                            self.operands[j].shape(),
                            &vec![0.0; self.operands[j].numel()],
                        );
                    }
                }
            }
            data.iter_mut().zip(self.eval(&operands)?.to_f64()).for_each(|(e, more)| *e += more);
        }
        self.stored(&mut data);
        Ok(self.each(&data))
    }
}

/// Whether every dim is a constant: what [`forward_error`] needs.
#[must_use]
pub fn has_constant_shapes(graph: &Graph) -> bool {
    graph
        .node_ids()
        .all(|n| graph.node(n).outputs.iter().all(|ty| ty.shape.iter().all(|d: &Dim| d.as_const().is_some())))
}

#[cfg(test)]
mod tests {
    use forge_ir::interp;
    use forge_ir::text::parse;

    use super::*;
    use crate::validate::inputs::{Distribution, random, specs};

    /// The f32 interpreter keeps to the bound, and the bound is not much larger than what it keeps to.
    fn holds(text: &str, slack: f64) {
        let graph = parse(text).unwrap();
        let flat = graph.decompose_all().unwrap();
        let specs = specs(&graph, &[], &[]).unwrap();
        for distribution in [Distribution::Normal, Distribution::Positive, Distribution::Large, Distribution::Offset] {
            let inputs = random(&specs, distribution, 5);
            let bound = forward_error(&flat, &inputs).unwrap();
            let exact = interp::run(&graph, &inputs, Mode::F64).unwrap()[0].to_f64();
            let native = interp::run(&graph, &inputs, Mode::Native).unwrap()[0].to_f64();
            let bound = bound[0].as_ref().expect("an analysis");
            let mut used = 0.0f64;
            for ((n, e), b) in native.iter().zip(&exact).zip(bound) {
                assert!(b.is_finite(), "no bound");
                assert!((n - e).abs() <= *b, "{}: {n} is {} from {e}, bound {b}", distribution.name(), (n - e).abs());
                if *b > 0.0 {
                    used = used.max((n - e).abs() / b);
                }
            }
            if distribution == Distribution::Normal {
                assert!(used > slack, "only {used} of the bound is used");
            }
        }
    }

    #[test]
    fn products_keep_to_their_bound() {
        holds("graph @g(%a: f32[9, 300], %b: f32[300, 7]) -> (f32[9, 7]) {\n%r = matmul(%a, %b)\nreturn %r\n}", 0.01);
    }

    #[test]
    fn softmax_and_norms_keep_to_their_bound() {
        holds("graph @g(%x: f32[16, 100]) -> (f32[16, 100]) {\n%r = softmax(%x) {axis = 1}\nreturn %r\n}", 0.01);
        holds(
            "graph @g(%x: f32[16, 100], %s: f32[100], %b: f32[100]) -> (f32[16, 100]) {
               %r = layer_norm(%x, %s, %b) {axis = 1, epsilon = 1e-5}
               return %r
             }",
            0.001,
        );
        holds("graph @g(%x: f32[500]) -> (f32[500]) {\n%r = gelu(%x) {approximate = \"tanh\"}\nreturn %r\n}", 0.01);
    }

    #[test]
    fn masked_rows_keep_to_their_bound() {
        // Scores of minus infinity are exact: they must not take the bound of the others with them.
        holds(
            "graph @g(%q: f32[1, 2, 12, 16], %k: f32[1, 2, 12, 16], %v: f32[1, 2, 12, 16]) -> (f32[1, 2, 12, 16]) {
               %r = attention(%q, %k, %v) {scale = 0.25, causal = true, causal_offset = false, masked_rows_zero = true}
               return %r
             }",
            0.001,
        );
    }

    #[test]
    fn jumps_have_no_bound() {
        let text = "graph @g(%a: f32[3, 4], %b: f32[4, 3]) -> (f32[3, 3], f32[3, 4]) {
              %0 = matmul(%a, %b)
              %r = floor(%0)
              %s = floor(%a)
              return %r, %s
            }";
        let graph = parse(text).unwrap();
        let inputs = random(&specs(&graph, &[], &[]).unwrap(), Distribution::Normal, 1);
        let bound = forward_error(&graph, &inputs).unwrap();
        assert_eq!(bound[0], None);
        assert_eq!(bound[1], Some(vec![0.0; 12]));
    }
}
