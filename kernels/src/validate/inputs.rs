//! Test inputs: what each input of a region may hold, and seeded values for it.

use forge_ir::{BinaryOp, DType, Graph, Op, Tensor, UnaryOp, Value};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What the caller knows of an input beyond its type.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// Integers from `low` to `high`, both included.
    Range { low: i64, high: i64 },
    /// Floats above zero.
    Positive,
}

/// An input of the region with constant shape.
#[derive(Clone, PartialEq, Debug)]
pub struct InputSpec {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub role: Role,
    /// The same at every call.
    pub weight: bool,
}

/// What an input's values mean to the region.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Role {
    Float {
        positive: bool,
    },
    Bool,
    /// From `low` to `high`, both included; `distinct_along`: values differ along this axis (targets of a scatter, which would
    /// otherwise be written twice in no order).
    Integer {
        low: i64,
        high: i64,
        distinct_along: Option<usize>,
    },
}

/// Integers that nothing in the graph constrains.
pub const FREE_INTEGERS: (i64, i64) = (0, 7);

/// The inputs of a region of constant shapes. `None` if a shape is not constant.
#[must_use]
pub fn specs(graph: &Graph, weight_inputs: &[bool], hints: &[Option<Hint>]) -> Option<Vec<InputSpec>> {
    let mut out = Vec::new();
    for (index, node) in graph.inputs().iter().enumerate() {
        let value = Value { node: *node, port: 0 };
        let ty = graph.ty(value);
        let hint = hints.get(index).copied().flatten();
        let role = match (ty.dtype, hint) {
            (DType::Bool, _) => Role::Bool,
            (dtype, Some(Hint::Range { low, high })) if !dtype.is_float() => {
                Role::Integer { low, high, distinct_along: trace(graph, value).distinct_along }
            }
            (dtype, Some(Hint::Positive)) if dtype.is_float() => Role::Float { positive: true },
            (dtype, _) if dtype.is_float() => Role::Float { positive: trace(graph, value).positive },
            _ => {
                let found = trace(graph, value);
                let (low, high) = found.extent.map_or(FREE_INTEGERS, |e| (0, (e - 1).max(0)));
                Role::Integer { low, high, distinct_along: found.distinct_along }
            }
        };
        out.push(InputSpec {
            name: graph.input_name(*node).to_owned(),
            dtype: ty.dtype,
            shape: ty.const_shape()?,
            role,
            weight: weight_inputs.get(index).copied().unwrap_or(false),
        });
    }
    Some(out)
}

/// What the uses of a value say about its values.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Traced {
    /// It indexes an axis of this extent (the smallest, if several).
    extent: Option<i64>,
    distinct_along: Option<usize>,
    /// Its square root or logarithm is taken.
    positive: bool,
}

impl Traced {
    fn merged(self, other: Traced) -> Traced {
        let extent = match (self.extent, other.extent) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Traced {
            extent,
            distinct_along: self.distinct_along.or(other.distinct_along),
            positive: self.positive || other.positive,
        }
    }
}

/// Follows a value through ops that keep its elements.
fn trace(graph: &Graph, value: Value) -> Traced {
    let mut found = Traced::default();
    for (user, slot) in graph.uses(value) {
        let operands = graph.operands(user);
        let shape_of = |i: usize| operands.get(i).map(|v| &graph.ty(*v).shape[..]).unwrap_or_default();
        let extent = |axis: usize| shape_of(0).get(axis).and_then(forge_ir::Dim::as_const);
        let through = |port: u16| trace(graph, Value { node: user, port });
        found = found.merged(match (graph.op(user), slot) {
            (Op::Gather { axis } | Op::GatherElements { axis }, 1) => {
                Traced { extent: extent(*axis), ..Traced::default() }
            }
            (Op::GatherNd { batch_dims }, 1) => {
                let depth = shape_of(1).last().and_then(forge_ir::Dim::as_const).unwrap_or(0);
                let axes = *batch_dims..*batch_dims + usize::try_from(depth).unwrap_or(0);
                Traced { extent: axes.filter_map(extent).min(), ..Traced::default() }
            }
            (Op::ScatterElements { axis, .. }, 1) => {
                Traced { extent: extent(*axis), distinct_along: Some(*axis), positive: false }
            }
            (Op::ScatterNd { .. }, 1) => {
                let depth = shape_of(1).last().and_then(forge_ir::Dim::as_const).unwrap_or(0);
                let axes = 0..usize::try_from(depth).unwrap_or(0);
                Traced { extent: axes.filter_map(extent).min(), distinct_along: Some(0), positive: false }
            }
            (Op::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Log), _) | (Op::BatchNorm { .. }, 4) => {
                Traced { positive: true, ..Traced::default() }
            }
            (Op::Binary(BinaryOp::Pow), 0) => {
                Traced { positive: !is_integer(graph, operands.get(1)), ..Traced::default() }
            }
            (
                Op::Reshape { .. }
                | Op::Broadcast { .. }
                | Op::Slice { .. }
                | Op::Transpose { .. }
                | Op::Concat { .. }
                | Op::Cast { .. },
                _,
            ) => through(0),
            // Variance plus epsilon.
            (Op::Binary(BinaryOp::Add), _)
                if operands.iter().any(|v| matches!(graph.op(v.node), Op::Constant { .. })) =>
            {
                Traced { positive: through(0).positive, ..Traced::default() }
            }
            (Op::Fused(fused), _) => match fused.body.inputs().get(slot) {
                Some(input) => trace(&fused.body, Value { node: *input, port: 0 }),
                None => Traced::default(),
            },
            _ => Traced::default(),
        });
    }
    found
}

fn is_integer(graph: &Graph, value: Option<&Value>) -> bool {
    let Some(Op::Constant { value }) = value.map(|v| graph.op(v.node)) else { return false };
    value.to_f64().iter().all(|v| v.fract() == 0.0)
}

/// How random floats are spread. Each exposes errors that the others hide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    Normal,
    /// In (0, 1): sums grow, biased accumulation shows.
    Positive,
    /// Normal, thousands wide: exponentials saturate, squares grow.
    Large,
    /// Normal, with magnitudes near the smallest normal numbers, some below.
    Small,
    /// Mostly zeros, the rest from a few values: ties, exact cancellation.
    Sparse,
    /// Mean much larger than spread: cancelling formulas show.
    Offset,
    /// Normal, one in a hundred much larger, each tensor with a scale and sign of its own.
    Outliers,
}

impl Distribution {
    pub const ALL: [Distribution; 7] = [
        Distribution::Normal,
        Distribution::Positive,
        Distribution::Large,
        Distribution::Small,
        Distribution::Sparse,
        Distribution::Offset,
        Distribution::Outliers,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Normal => "normal",
            Distribution::Positive => "positive",
            Distribution::Large => "large",
            Distribution::Small => "small",
            Distribution::Sparse => "sparse",
            Distribution::Offset => "offset",
            Distribution::Outliers => "outliers",
        }
    }

    /// Mantissas are random: rounding errors are too, so probabilistic bounds hold.
    #[must_use]
    pub fn has_random_mantissas(self) -> bool {
        self != Distribution::Sparse
    }
}

fn generator(seed: u64, stream: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream)
}

/// Two standard normal values (Box and Muller, 1958).
fn normal_pair(rng: &mut StdRng) -> (f64, f64) {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * rng.random::<f64>()).sin_cos();
    (radius * cos, radius * sin)
}

fn normals(rng: &mut StdRng, count: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(count + 1);
    while out.len() < count {
        let (a, b) = normal_pair(rng);
        out.extend([a, b]);
    }
    out.truncate(count);
    out
}

/// Seeded inputs of one distribution. Weights are scaled as trained ones are, so that products keep their magnitude.
#[must_use]
pub fn random(specs: &[InputSpec], distribution: Distribution, seed: u64) -> Vec<Tensor> {
    specs
        .iter()
        .enumerate()
        .map(|(i, spec)| {
            let mut rng = generator(seed, i as u64 + 1);
            match spec.role {
                Role::Float { positive } => {
                    let mut data = floats(spec, distribution, &mut rng);
                    if positive {
                        data.iter_mut().for_each(|v| *v = v.abs());
                    }
                    Tensor::from_f64(spec.dtype, &spec.shape, &data)
                }
                _ => discrete(spec, &mut rng, false),
            }
        })
        .collect()
}

fn floats(spec: &InputSpec, distribution: Distribution, rng: &mut StdRng) -> Vec<f64> {
    let count: usize = spec.shape.iter().product();
    let half = spec.dtype == DType::F16;
    if spec.weight {
        // Vectors are scales and biases.
        let scale = if spec.shape.len() < 2 { 1.0 } else { (count.max(1) as f64).powf(-0.25) };
        let sparse = distribution == Distribution::Sparse;
        return normals(rng, count)
            .into_iter()
            .map(|v| if sparse { (v * 2.0).round() / 2.0 } else { v * scale })
            .collect();
    }
    match distribution {
        Distribution::Normal => normals(rng, count),
        Distribution::Positive => (0..count).map(|_| rng.random::<f64>()).collect(),
        Distribution::Large => {
            let scale = if half { 16.0 } else { 4096.0 };
            normals(rng, count).into_iter().map(|v| v * scale).collect()
        }
        Distribution::Small => {
            let (scale, tiny) = match spec.dtype {
                DType::F16 => (2f64.powi(-10), 2f64.powi(-20)),
                DType::F64 => (2f64.powi(-500), 2f64.powi(-1060)),
                _ => (2f64.powi(-60), 2f64.powi(-140)),
            };
            normals(rng, count).into_iter().map(|v| v * if rng.random_ratio(1, 10) { tiny } else { scale }).collect()
        }
        Distribution::Sparse => {
            const VALUES: [f64; 6] = [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0];
            let value =
                |rng: &mut StdRng| if rng.random_ratio(7, 10) { 0.0 } else { VALUES[rng.random_range(0..6usize)] };
            (0..count).map(|_| value(rng)).collect()
        }
        Distribution::Offset => normals(rng, count).into_iter().map(|v| v + 64.0).collect(),
        Distribution::Outliers => {
            let spread = if half { 2 } else { 8 };
            let scale = 2f64.powi(rng.random_range(-spread..=spread)) * if rng.random_ratio(1, 2) { -1.0 } else { 1.0 };
            let outlier = if half { 16.0 } else { 100.0 };
            normals(rng, count)
                .into_iter()
                .map(|v| v * scale * if rng.random_ratio(1, 100) { outlier } else { 1.0 })
                .collect()
        }
    }
}

/// Integers and bools.
fn discrete(spec: &InputSpec, rng: &mut StdRng, negative_indices: bool) -> Tensor {
    let count: usize = spec.shape.iter().product();
    let data: Vec<i64> = match spec.role {
        Role::Integer { low, high, distinct_along: Some(axis) } if axis < spec.shape.len() => {
            let inner: usize = spec.shape[axis + 1..].iter().product();
            let (extent, period) = (spec.shape[axis].max(1), (high - low + 1).max(1));
            let offset = rng.random_range(0..period);
            (0..count).map(|i| low + ((i / inner.max(1) % extent) as i64 + offset) % period).collect()
        }
        Role::Integer { low, high, .. } => (0..count)
            .map(|_| {
                let value = rng.random_range(low..=high.max(low));
                // The same element, counted from the end.
                if negative_indices && low == 0 && rng.random_ratio(1, 4) { value - (high + 1) } else { value }
            })
            .collect(),
        _ => (0..count).map(|_| i64::from(rng.random_ratio(3, 4))).collect(),
    };
    Tensor::from_i64(spec.dtype, &spec.shape, &data)
}

/// Inputs with values that arithmetic treats apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Special {
    /// A few NaN, infinities, signed zeros and subnormals in each activation.
    NonFinite,
    /// One row of minus infinity, one of NaN, one of infinity.
    InfiniteRows,
    /// One largest, one lowest, one smallest number in each activation.
    Extremes,
    /// Zeros of both signs.
    Zeros,
    /// Every bool false; indices negative where that is allowed.
    NothingAdmitted,
    /// Every bool true.
    EverythingAdmitted,
}

impl Special {
    pub const ALL: [Special; 6] = [
        Special::NonFinite,
        Special::InfiniteRows,
        Special::Extremes,
        Special::Zeros,
        Special::NothingAdmitted,
        Special::EverythingAdmitted,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Special::NonFinite => "non-finite",
            Special::InfiniteRows => "infinite rows",
            Special::Extremes => "extremes",
            Special::Zeros => "signed zeros",
            Special::NothingAdmitted => "nothing admitted",
            Special::EverythingAdmitted => "everything admitted",
        }
    }

    /// Whether these inputs differ from random ones.
    #[must_use]
    pub fn applies(self, specs: &[InputSpec]) -> bool {
        match self {
            Special::NothingAdmitted => specs.iter().any(|s| !s.dtype.is_float()),
            Special::EverythingAdmitted => specs.iter().any(|s| s.dtype == DType::Bool),
            _ => specs.iter().any(|s| s.dtype.is_float() && !s.weight),
        }
    }
}

/// Seeded inputs with special values; weights stay finite.
#[must_use]
pub fn special(specs: &[InputSpec], special: Special, seed: u64) -> Vec<Tensor> {
    let mut inputs = random(specs, Distribution::Normal, seed);
    for (i, (spec, tensor)) in specs.iter().zip(&mut inputs).enumerate() {
        let mut rng = generator(seed ^ 0x5bec_1a15, i as u64);
        let count = tensor.numel();
        if count == 0 {
            continue;
        }
        match (special, spec.role) {
            (Special::NothingAdmitted, Role::Bool) => {
                *tensor = Tensor::from_i64(DType::Bool, &spec.shape, &vec![0; count]);
            }
            (Special::EverythingAdmitted, Role::Bool) => {
                *tensor = Tensor::from_i64(DType::Bool, &spec.shape, &vec![1; count]);
            }
            (Special::NothingAdmitted, Role::Integer { .. }) => *tensor = discrete(spec, &mut rng, true),
            (_, Role::Float { .. }) if !spec.weight => {
                let mut data = tensor.to_f64();
                plant(&mut data, spec, special, &mut rng);
                *tensor = Tensor::from_f64(spec.dtype, &spec.shape, &data);
            }
            _ => {}
        }
    }
    inputs
}

fn plant(data: &mut [f64], spec: &InputSpec, special: Special, rng: &mut StdRng) {
    let (largest, smallest) = match spec.dtype {
        DType::F16 => (65504.0, 2f64.powi(-24)),
        DType::BF16 => (3.389_531_389_251_535_5e38, 2f64.powi(-133)),
        DType::F32 => (f64::from(f32::MAX), 2f64.powi(-149)),
        _ => (f64::MAX, f64::from_bits(1)),
    };
    let planted: &[f64] = match special {
        Special::NonFinite => &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, smallest, -3.0 * smallest],
        Special::Extremes => &[largest, -largest, smallest],
        Special::Zeros => {
            data.iter_mut().for_each(|v| *v = if rng.random_ratio(1, 2) { 0.0 } else { -0.0 });
            return;
        }
        Special::InfiniteRows => {
            let row = spec.shape.last().copied().unwrap_or(1).max(1);
            let rows = data.len() / row;
            for (i, value) in [f64::NEG_INFINITY, f64::NAN, f64::INFINITY].into_iter().enumerate() {
                // The last rows, so that the first stay comparable; a lone row is minus infinity.
                if i < rows.saturating_sub(1).max(1) {
                    data[(rows - 1 - i) * row..(rows - i) * row].fill(value);
                }
            }
            return;
        }
        Special::NothingAdmitted | Special::EverythingAdmitted => return,
    };
    // Apart from each other; in a tensor too small for all, the first stay.
    let segment = (data.len() / planted.len()).max(1);
    for (start, value) in (0..data.len()).step_by(segment).zip(planted) {
        let at = (start + rng.random_range(0..segment)).min(data.len() - 1);
        data[at] = *value;
    }
}

/// Small integers, so that every sum is exact: from 0 or `-magnitude` to `magnitude`.
#[must_use]
pub fn integers(specs: &[InputSpec], magnitude: i64, signed: bool, seed: u64) -> Vec<Tensor> {
    specs
        .iter()
        .enumerate()
        .map(|(i, spec)| {
            let mut rng = generator(seed ^ 0x1d7e_6e55, i as u64);
            let Role::Float { positive } = spec.role else { return discrete(spec, &mut rng, false) };
            let low = if signed && !positive { -magnitude } else { 0 };
            let count = spec.shape.iter().product();
            let data: Vec<i64> = (0..count).map(|_| rng.random_range(low..=magnitude)).collect();
            Tensor::from_i64(spec.dtype, &spec.shape, &data)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use forge_ir::text::parse;

    use super::*;

    fn region(text: &str) -> Vec<InputSpec> {
        specs(&parse(text).unwrap(), &[], &[]).unwrap()
    }

    #[test]
    fn roles_follow_the_uses() {
        let specs = region(
            "graph @g(%x: f32[5, 8], %i: i64[2, 3], %v: f32[8], %m: bool[5, 8], %f: i32[4]) -> (f32[2, 3, 8], f32[8], bool[5, 8], i32[4]) {
               %0 = reshape(%i) {shape = [6]} : i64[6]
               %1 = reshape(%0) {shape = [2, 3]} : i64[2, 3]
               %2 = gather(%x, %1) {axis = 0} : f32[2, 3, 8]
               %e = constant 0.001 : f32[]
               %3 = add(%v, %e) : f32[8]
               %4 = rsqrt(%3) : f32[8]
               %5 = not(%m) : bool[5, 8]
               %6 = neg(%f) : i32[4]
               return %2, %4, %5, %6
             }",
        );
        assert_eq!(specs[0].role, Role::Float { positive: false });
        assert_eq!(specs[1].role, Role::Integer { low: 0, high: 4, distinct_along: None });
        assert_eq!(specs[2].role, Role::Float { positive: true });
        assert_eq!(specs[3].role, Role::Bool);
        assert_eq!(specs[4].role, Role::Integer { low: 0, high: 7, distinct_along: None });
    }

    #[test]
    fn values_are_seeded_and_keep_their_roles() {
        let specs = region(
            "graph @g(%x: f32[6, 4], %i: i64[3, 4], %u: f32[3, 4]) -> (f32[6, 4]) {
               %0 = scatter_elements(%x, %i, %u) {axis = 0, reduce = \"none\"} : f32[6, 4]
               return %0
             }",
        );
        for distribution in Distribution::ALL {
            let inputs = random(&specs, distribution, 3);
            assert_eq!(inputs, random(&specs, distribution, 3));
            assert_ne!(inputs, random(&specs, distribution, 4));
            let indices = inputs[1].to_i64().unwrap();
            for column in 0..4 {
                let mut seen: Vec<i64> = (0..3).map(|row| indices[row * 4 + column]).collect();
                assert!(seen.iter().all(|i| (0..6).contains(i)));
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), 3);
            }
        }
    }

    #[test]
    fn special_values_are_there() {
        let specs = region(
            "graph @g(%x: f32[16, 32]) -> (f32[16, 32]) {
               %0 = neg(%x) : f32[16, 32]
               return %0
             }",
        );
        let values = |s: Special| special(&specs, s, 1)[0].to_vec::<f32>().unwrap();
        let non_finite = values(Special::NonFinite);
        assert!(non_finite.iter().any(|v| v.is_nan()) && non_finite.contains(&f32::INFINITY));
        assert!(values(Special::InfiniteRows)[15 * 32..].iter().all(|v| *v == f32::NEG_INFINITY));
        assert!(values(Special::Extremes).contains(&f32::MAX));
        assert!(values(Special::Zeros).iter().any(|v| v.is_sign_negative()));
        assert!(!Special::EverythingAdmitted.applies(&specs));
        let integers = integers(&specs, 3, true, 1)[0].to_vec::<f32>().unwrap();
        assert!(integers.iter().all(|v| v.fract() == 0.0 && v.abs() <= 3.0) && integers.contains(&-3.0));
    }
}
