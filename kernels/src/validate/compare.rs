//! One output against its baseline and its f64 reference: the rules, as pure functions of numbers.

use forge_ir::{DType, Tensor};

use super::analysis::{Kind, OutputTraits};
use super::bound::quantum;
use crate::verdict::{OutputErrors, Reason};

/// What is fixed of an output over all cases.
#[derive(Clone, PartialEq, Debug)]
pub struct OutputSpec {
    pub name: String,
    pub dtype: DType,
    pub traits: OutputTraits,
    /// The most terms that a sum on the way to it has.
    pub longest_sum: f64,
}

/// How the inputs of a case were made, which decides the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// Error budgets.
    Random,
    /// The same, where infinities and huge numbers stand beside ordinary ones.
    Special,
    /// Every value is a small integer: the reference is the only right result.
    Integers,
}

/// A baseline's own errors, relative to the reference's size: the yardstick of a candidate's.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Yardstick {
    pub rmse: f64,
    /// The largest error over the largest magnitude.
    pub tail: f64,
    /// The 99.99th percentile, likewise.
    pub tail_9999: f64,
}

impl Yardstick {
    /// The larger of both, in each part: one case's luck is no yardstick.
    #[must_use]
    pub fn merged(self, other: Yardstick) -> Yardstick {
        Yardstick {
            rmse: self.rmse.max(other.rmse),
            tail: self.tail.max(other.tail),
            tail_9999: self.tail_9999.max(other.tail_9999),
        }
    }
}

/// What one output of one case must be.
#[derive(Clone, Debug)]
pub struct Expected {
    pub baseline: Tensor,
    /// f64 for floats.
    pub reference: Tensor,
    /// Forward error bound per element.
    pub bound: Option<Vec<f64>>,
    pub yardstick: Yardstick,
}

/// Why an output is wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    pub reason: Reason,
    pub summary: String,
}

/// How much more than the baseline's errors a candidate's may be.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// 1.5 times, for f32.
    Strict,
    /// Twice; three times for half types.
    Default,
}

impl Policy {
    fn rmse_factor(self, dtype: DType) -> f64 {
        match (self, dtype) {
            (_, DType::F16 | DType::BF16) => 3.0,
            (Policy::Strict, _) => 1.5,
            (Policy::Default, _) => 2.0,
        }
    }
}

const TAIL_FACTOR: f64 = 4.0;
const TAIL_9999_FACTOR: f64 = 3.0;
/// Elements from which a 99.99th percentile says more than the maximum.
const TAIL_9999_ELEMENTS: usize = 10_000;
/// The analysis is of first order, and its sums are probable, not certain: twice is certain enough.
const BOUND_FACTOR: f64 = 2.0;

/// Distance from `x` to the next number of the dtype.
#[must_use]
pub fn ulp(x: f64, dtype: DType) -> f64 {
    let Some(epsilon) = dtype.epsilon() else { return 1.0 };
    let x = x.abs();
    if !x.is_finite() {
        return f64::INFINITY;
    }
    // The exponent from the bits: exact where log2 may round up. Subnormal f64s have the quantum anyway.
    let exponent = i32::try_from((x.to_bits() >> 52) & 0x7ff).unwrap_or(0) - 1023;
    (epsilon * 2f64.powi(exponent)).max(quantum(dtype))
}

/// A baseline's errors in one case.
#[must_use]
pub fn yardstick(baseline: &Tensor, reference: &Tensor) -> Yardstick {
    if !baseline.dtype().is_float() {
        return Yardstick::default();
    }
    let errors = Errors::of(&baseline.to_f64(), &baseline.to_f64(), &reference.to_f64(), false);
    errors.relative()
}

/// Errors over the elements where all three are finite.
struct Errors {
    /// Candidate errors, with their element.
    of: Vec<(f64, usize)>,
    rmse: f64,
    rms_reference: f64,
    max_reference: f64,
}

impl Errors {
    fn of(candidate: &[f64], baseline: &[f64], reference: &[f64], sensitive: bool) -> Errors {
        let mut of = Vec::with_capacity(candidate.len());
        let (mut square, mut reference_square, mut max_reference) = (0.0, 0.0, 0.0f64);
        for (i, ((c, b), r)) in candidate.iter().zip(baseline).zip(reference).enumerate() {
            if !(c.is_finite() && b.is_finite() && r.is_finite()) {
                continue;
            }
            let mut error = (c - r).abs();
            if sensitive {
                // Where rounding decides between two values, the baseline's decision is as right as the exact one.
                error = error.min((c - b).abs());
            }
            of.push((error, i));
            square += error * error;
            reference_square += r * r;
            max_reference = max_reference.max(r.abs());
        }
        let count = of.len().max(1) as f64;
        Errors { of, rmse: (square / count).sqrt(), rms_reference: (reference_square / count).sqrt(), max_reference }
    }

    fn largest(&self) -> (f64, usize) {
        self.of.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, 0))
    }

    fn percentile_9999(&self) -> Option<f64> {
        if self.of.len() < TAIL_9999_ELEMENTS {
            return None;
        }
        let mut errors: Vec<f64> = self.of.iter().map(|(e, _)| *e).collect();
        let at = (errors.len() - 1) - errors.len() / 10_000;
        let (_, value, _) = errors.select_nth_unstable_by(at, f64::total_cmp);
        Some(*value)
    }

    fn relative(&self) -> Yardstick {
        let over = |error: f64, size: f64| if error == 0.0 { 0.0 } else { error / size.max(f64::MIN_POSITIVE) };
        let tail = over(self.largest().0, self.max_reference);
        Yardstick {
            rmse: over(self.rmse, self.rms_reference),
            tail,
            tail_9999: self.percentile_9999().map_or(tail, |p| over(p, self.max_reference)),
        }
    }
}

/// Checks one output of a case.
///
/// # Errors
/// The first rule that does not hold.
pub fn compare(
    spec: &OutputSpec,
    expected: &Expected,
    got: &Tensor,
    rules: Rules,
    policy: Policy,
) -> Result<OutputErrors, Mismatch> {
    let baseline = &expected.baseline;
    if got.dtype() != baseline.dtype() || got.shape() != baseline.shape() {
        return Err(mismatch(spec, Reason::PlanMismatch, format!("it is {}, expected {}", got.ty(), baseline.ty())));
    }
    if !spec.dtype.is_float() {
        return discrete(spec, expected, got);
    }
    if spec.traits.kind == Kind::Moved && !spec.traits.sensitive {
        return moved(spec, baseline, got);
    }
    let (c, b, r) = (got.to_f64(), baseline.to_f64(), expected.reference.to_f64());
    if rules == Rules::Integers {
        return integers(spec, &c, &r);
    }
    if spec.traits.kind == Kind::Exact && !spec.traits.sensitive {
        return exact(spec, &c, &b);
    }
    let overflows = masks(spec, expected, &c, &b, &r)?;
    let mut report = budgets(spec, expected, &c, &b, &r, policy).map_err(|m| precision(spec, m, &c, &b, &r, rules))?;
    report.elements = c.len() - overflows;
    Ok(report)
}

fn mismatch(spec: &OutputSpec, reason: Reason, what: impl std::fmt::Display) -> Mismatch {
    Mismatch { reason, summary: format!("output '{}': {what}", spec.name) }
}

fn counted(spec: &OutputSpec, elements: usize) -> OutputErrors {
    OutputErrors { name: spec.name.clone(), elements, ..OutputErrors::default() }
}

fn discrete(spec: &OutputSpec, expected: &Expected, got: &Tensor) -> Result<OutputErrors, Mismatch> {
    let size = spec.dtype.size();
    let elements = |t: &Tensor| t.bytes().chunks_exact(size).map(<[u8]>::to_vec).collect::<Vec<_>>();
    if got.bytes() != expected.baseline.bytes() {
        let (c, b, r) = (elements(got), elements(&expected.baseline), elements(&expected.reference));
        let wrong = (0..c.len()).find(|i| c[*i] != b[*i] && !(spec.traits.sensitive && c.get(*i) == r.get(*i)));
        if let Some(i) = wrong {
            let (g, b) = (got.to_f64(), expected.baseline.to_f64());
            return Err(mismatch(spec, Reason::ExactMismatch, format!("element {i} is {}, expected {}", g[i], b[i])));
        }
    }
    Ok(counted(spec, got.numel()))
}

fn moved(spec: &OutputSpec, baseline: &Tensor, got: &Tensor) -> Result<OutputErrors, Mismatch> {
    if got.bytes() != baseline.bytes() {
        let size = spec.dtype.size();
        let bits = |t: &Tensor, i: usize| t.bytes().get(i * size..(i + 1) * size).map(<[u8]>::to_vec);
        let (c, b) = (got.to_f64(), baseline.to_f64());
        let wrong = (0..c.len()).find(|i| bits(got, *i) != bits(baseline, *i) && !(c[*i].is_nan() && b[*i].is_nan()));
        if let Some(i) = wrong {
            return Err(mismatch(spec, Reason::ExactMismatch, format!("element {i} is {}, moved was {}", c[i], b[i])));
        }
    }
    Ok(counted(spec, got.numel()))
}

fn same(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

fn exact(spec: &OutputSpec, c: &[f64], b: &[f64]) -> Result<OutputErrors, Mismatch> {
    match (0..c.len()).find(|i| !same(c[*i], b[*i])) {
        Some(i) if c[i].is_finite() != b[i].is_finite() || c[i].is_nan() != b[i].is_nan() => {
            Err(mismatch(spec, Reason::NonFiniteMask, format!("element {i} is {}, expected {}", c[i], b[i])))
        }
        Some(i) => Err(mismatch(spec, Reason::ExactMismatch, format!("element {i} is {}, expected {}", c[i], b[i]))),
        None => Ok(counted(spec, c.len())),
    }
}

/// Small integers: every partial sum is exact, so the result is, in any order.
fn integers(spec: &OutputSpec, c: &[f64], r: &[f64]) -> Result<OutputErrors, Mismatch> {
    let Some(i) = (0..c.len()).find(|i| !same(c[*i], r[*i])) else { return Ok(counted(spec, c.len())) };
    let errors = Errors::of(c, c, r, false);
    let what = format!("element {i} is {}, the exact value is {}", c[i], r[i]);
    let reason = if lost_precision(spec, errors.relative().rmse, c, r) {
        Reason::AccumulationPrecision
    } else {
        Reason::ExactMismatch
    };
    Err(mismatch(spec, reason, what))
}

/// NaN and infinities where the baseline has them. Returns how many elements only the baseline overflowed in.
fn masks(spec: &OutputSpec, expected: &Expected, c: &[f64], b: &[f64], r: &[f64]) -> Result<usize, Mismatch> {
    let largest = match spec.dtype {
        DType::F16 => 65504.0,
        DType::BF16 | DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    let mut overflows = 0;
    for (i, ((c, b), r)) in c.iter().zip(b).zip(r).enumerate() {
        let kind = |v: f64| (v.is_nan(), v.is_infinite(), v.is_infinite() && v < 0.0);
        let representable = r.is_finite() && r.abs() <= largest;
        let bound = expected.bound.as_ref().and_then(|e| e.get(i)).copied().filter(|e| e.is_finite()).unwrap_or(0.0);
        let fine = if kind(*c) == kind(*b) {
            true
        } else if !b.is_finite() && representable {
            overflows += 1;
            // The baseline overflowed on the way: the right value is welcome, and so is another overflow.
            !c.is_finite() || (c - r).abs() <= (64.0 * ulp(*r, spec.dtype)).max(BOUND_FACTOR * bound)
        } else {
            // As the exact value is, though the baseline differs.
            kind(*c) == kind(*r) || (r.is_finite() && !representable && c.is_infinite() && (*c < 0.0) == (*r < 0.0))
        };
        if !fine {
            return Err(mismatch(
                spec,
                Reason::NonFiniteMask,
                format!("element {i} is {c}, the baseline has {b}, the exact value is {r}"),
            ));
        }
    }
    Ok(overflows)
}

fn budgets(
    spec: &OutputSpec,
    expected: &Expected,
    c: &[f64],
    b: &[f64],
    r: &[f64],
    policy: Policy,
) -> Result<OutputErrors, Mismatch> {
    let errors = Errors::of(c, b, r, spec.traits.sensitive);
    let yardstick = expected.yardstick;
    let epsilon = spec.dtype.epsilon().unwrap_or(0.0);
    // Few elements: the baseline's errors may be small by luck, so the factor is wider.
    let count = errors.of.len().max(1) as f64;
    let rmse_factor = policy.rmse_factor(spec.dtype) * (1.0 + 8.0 / count.sqrt());
    let tail_factor = 1.0 + 4.0 / count.sqrt();

    let rmse_limit = (rmse_factor * yardstick.rmse + epsilon / 4.0) * errors.rms_reference + quantum(spec.dtype);
    let (largest, worst) = errors.largest();
    let two_ulp = 2.0 * ulp(errors.max_reference, spec.dtype);
    let tail_limit = TAIL_FACTOR * tail_factor * yardstick.tail * errors.max_reference + two_ulp;
    let at = |i: usize| format!("element {i} is {}, the exact value is {}", c[i], r[i]);
    if errors.rmse > rmse_limit {
        let what = format!("rmse {:.3e} of at most {rmse_limit:.3e}; worst {}", errors.rmse, at(worst));
        return Err(mismatch(spec, Reason::RmseBudget, what));
    }
    if largest > tail_limit {
        let what = format!("error {largest:.3e} of at most {tail_limit:.3e}: {}", at(worst));
        return Err(mismatch(spec, Reason::TailError, what));
    }
    if let Some(percentile) = errors.percentile_9999() {
        let limit = TAIL_9999_FACTOR * tail_factor * yardstick.tail_9999 * errors.max_reference + two_ulp;
        if percentile > limit {
            let what =
                format!("one in 10000 errors is over {percentile:.3e}, at most {limit:.3e}; worst {}", at(worst));
            return Err(mismatch(spec, Reason::TailError, what));
        }
    }
    let mut bound_used = None;
    if let Some(bound) = &expected.bound {
        let mut most = (0.0, 0);
        for (error, i) in &errors.of {
            let Some(limit) = bound.get(*i).filter(|e| e.is_finite()) else { continue };
            let used = error / (BOUND_FACTOR * limit + 2.0 * ulp(r[*i], spec.dtype));
            if used > most.0 {
                most = (used, *i);
            }
        }
        if most.0 > 1.0 {
            let what = format!("{:.1} times what its arithmetic explains: {}", most.0, at(most.1));
            return Err(mismatch(spec, Reason::ForwardErrorBound, what));
        }
        bound_used = Some(most.0);
    }
    Ok(OutputErrors {
        name: spec.name.clone(),
        elements: c.len(),
        relative_rmse: errors.relative().rmse,
        baseline_relative_rmse: yardstick.rmse,
        rmse_used: errors.rmse / rmse_limit,
        tail_used: largest / tail_limit,
        bound_used,
        max_ulp: errors
            .of
            .iter()
            .map(|(e, i)| e / ulp(r[*i].abs().max(errors.rms_reference), spec.dtype))
            .fold(0.0, f64::max),
        worst_case: String::new(),
        worst_index: worst,
    })
}

/// Names the cause where errors have the size, or results the granularity, of half-precision arithmetic.
fn precision(spec: &OutputSpec, found: Mismatch, c: &[f64], b: &[f64], r: &[f64], rules: Rules) -> Mismatch {
    let relative = Errors::of(c, b, r, spec.traits.sensitive).relative().rmse;
    if rules == Rules::Random && lost_precision(spec, relative, c, r) {
        return Mismatch { reason: Reason::AccumulationPrecision, ..found };
    }
    found
}

/// Between errors and results: near 1 for a wrong factor, small for rounding.
fn correlation(c: &[f64], r: &[f64]) -> f64 {
    let (mut product, mut error_square, mut reference_square) = (0.0, 0.0, 0.0);
    for (c, r) in c.iter().zip(r).filter(|(c, r)| c.is_finite() && r.is_finite()) {
        product += (c - r) * r;
        error_square += (c - r) * (c - r);
        reference_square += r * r;
    }
    let size: f64 = error_square * reference_square;
    if size > 0.0 { (product / size.sqrt()).abs() } else { 0.0 }
}

fn lost_precision(spec: &OutputSpec, relative_rmse: f64, c: &[f64], r: &[f64]) -> bool {
    if !matches!(spec.dtype, DType::F32 | DType::F64) || relative_rmse < 64.0 * f64::from(f32::EPSILON) {
        return false;
    }
    // A sum of K terms in f16 ends with a relative error near 1e-4 √K; a missing or wrong term gives 1/√K or more.
    let terms = spec.longest_sum;
    let sized = terms > 1.0
        && relative_rmse <= (2f64.powi(-12) * terms.sqrt()).min(0.5 / terms.sqrt())
        && correlation(c, r) < 0.5;
    let granular = |keep_bits: u32| {
        let kept = |v: &f64| v.to_bits() & ((1u64 << (52 - keep_bits)) - 1) == 0;
        let finite =
            |values: &[f64]| values.iter().filter(|v| v.is_finite() && **v != 0.0).map(kept).collect::<Vec<_>>();
        let share = |kept: &[bool]| kept.iter().filter(|k| **k).count() as f64 / kept.len().max(1) as f64;
        share(&finite(c)) > 0.99 && share(&finite(r)) < 0.5
    };
    sized || (relative_rmse < 0.05 && (granular(10) || granular(7)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: Kind, dtype: DType) -> OutputSpec {
        let traits = OutputTraits { kind, sensitive: false };
        OutputSpec { name: "y".into(), dtype, traits, longest_sum: 1.0 }
    }

    /// A reference of ordinary numbers, and its f32 rounding as the baseline.
    fn expected(count: usize) -> (Vec<f64>, Expected) {
        let r: Vec<f64> = (0..count).map(|i| (i as f64 * 0.7).sin() * 3.0 + 0.1).collect();
        let baseline = Tensor::from_f64(DType::F32, &[count], &r);
        let reference = Tensor::from_f64(DType::F64, &[count], &r);
        let yardstick = yardstick(&baseline, &reference);
        (r, Expected { baseline, reference, bound: None, yardstick })
    }

    fn check(expected: &Expected, c: &[f64]) -> Result<OutputErrors, Reason> {
        let got = Tensor::from_f64(DType::F32, &[c.len()], c);
        compare(&spec(Kind::Rounded, DType::F32), expected, &got, Rules::Random, Policy::Default).map_err(|m| m.reason)
    }

    #[test]
    fn the_baseline_passes_and_small_errors_do() {
        let (r, expected) = expected(1000);
        assert!(check(&expected, &r).is_ok());
        let near: Vec<f64> = r.iter().map(|v| v * (1.0 + 5e-8)).collect();
        let report = check(&expected, &near).unwrap();
        assert!(report.rmse_used <= 1.0 && report.max_ulp < 2.0);
    }

    #[test]
    fn each_rule_has_its_reason() {
        let (r, mut expected) = expected(1000);
        let changed = |f: &dyn Fn(usize, f64) -> f64| r.iter().enumerate().map(|(i, v)| f(i, *v)).collect::<Vec<_>>();
        assert_eq!(check(&expected, &changed(&|_, v| v * (1.0 + 3e-6))), Err(Reason::RmseBudget));
        assert_eq!(check(&expected, &changed(&|i, v| if i == 7 { v + 3e-6 } else { v })), Err(Reason::TailError));
        assert_eq!(check(&expected, &changed(&|i, v| if i == 7 { f64::NAN } else { v })), Err(Reason::NonFiniteMask));
        assert_eq!(
            check(&expected, &changed(&|i, v| if i == 7 { f64::INFINITY } else { v })),
            Err(Reason::NonFiniteMask)
        );
        assert_eq!(check(&expected, &vec![0.0; 1000]), Err(Reason::RmseBudget));
        let half = changed(&|_, v| half::f16::from_f64(v).to_f64());
        assert_eq!(check(&expected, &half), Err(Reason::AccumulationPrecision));
        assert_eq!(check(&expected, &r[..999]), Err(Reason::PlanMismatch));
        // The smallest element, off by its own size: only a bound per element sees it.
        let smallest = (0..1000).min_by(|a, b| r[*a].abs().total_cmp(&r[*b].abs())).unwrap();
        let off = changed(&|i, v| if i == smallest { v + 2e-7 } else { v });
        assert!(check(&expected, &off).is_ok());
        expected.bound = Some(r.iter().map(|v| v.abs() * 1e-7).collect());
        assert_eq!(check(&expected, &off), Err(Reason::ForwardErrorBound));
        assert!(check(&expected, &r).is_ok());
    }

    #[test]
    fn a_wrong_factor_is_no_lack_of_precision() {
        let (r, expected) = expected(1000);
        let spec = OutputSpec { longest_sum: 64.0, ..spec(Kind::Rounded, DType::F32) };
        let reason = |f: &dyn Fn(usize, f64) -> f64| {
            let c: Vec<f64> = r.iter().enumerate().map(|(i, v)| f(i, *v)).collect();
            let got = Tensor::from_f64(DType::F32, &[1000], &c);
            compare(&spec, &expected, &got, Rules::Random, Policy::Default).unwrap_err().reason
        };
        assert_eq!(reason(&|_, v| v * 1.001), Reason::RmseBudget);
        assert_eq!(reason(&|i, v| v * (1.0 + if i % 2 == 0 { 1e-3 } else { -1e-3 })), Reason::AccumulationPrecision);
    }

    #[test]
    fn overflow_of_the_baseline_alone_is_forgiven() {
        let tensor = |values: &[f64]| Tensor::from_f64(DType::F32, &[values.len()], values);
        let reference = Tensor::from_f64(DType::F64, &[2], &[1.0, 5.0]);
        let expected = Expected {
            baseline: tensor(&[1.0, f64::INFINITY]),
            yardstick: Yardstick::default(),
            bound: None,
            reference,
        };
        assert!(check(&expected, &[1.0, f64::INFINITY]).is_ok());
        assert!(check(&expected, &[1.0, 5.0]).is_ok());
        assert_eq!(check(&expected, &[1.0, 6.0]), Err(Reason::NonFiniteMask));
        assert_eq!(check(&expected, &[f64::NAN, 5.0]), Err(Reason::NonFiniteMask));
    }

    #[test]
    fn exact_results_have_one_value() {
        let bits = |values: &[f32]| Tensor::from_slice(&[values.len()], values);
        let b = bits(&[0.0, f32::NAN, 3.0]);
        let reference = Tensor::from_f64(DType::F64, &[3], &b.to_f64());
        let expected = Expected { baseline: b, reference, bound: None, yardstick: Yardstick::default() };
        let check = |kind: Kind, c: &[f32]| {
            compare(&spec(kind, DType::F32), &expected, &bits(c), Rules::Random, Policy::Default).map_err(|m| m.reason)
        };
        assert!(check(Kind::Moved, &[0.0, -f32::NAN, 3.0]).is_ok());
        assert_eq!(check(Kind::Moved, &[-0.0, f32::NAN, 3.0]), Err(Reason::ExactMismatch));
        assert!(check(Kind::Exact, &[-0.0, f32::NAN, 3.0]).is_ok());
        assert_eq!(check(Kind::Exact, &[0.0, f32::NAN, 3.000_000_2]), Err(Reason::ExactMismatch));
        assert_eq!(check(Kind::Exact, &[0.0, 0.0, 3.0]), Err(Reason::NonFiniteMask));
    }

    #[test]
    fn integers_admit_flips_only_where_rounding_decides() {
        let tensor = |values: &[i64]| Tensor::from_slice(&[values.len()], values);
        let expected = Expected {
            baseline: tensor(&[1, 2]),
            reference: tensor(&[1, 3]),
            bound: None,
            yardstick: Yardstick::default(),
        };
        let mut spec = spec(Kind::Exact, DType::I64);
        let check =
            |spec: &OutputSpec, c: &[i64]| compare(spec, &expected, &tensor(c), Rules::Random, Policy::Default).is_ok();
        assert!(check(&spec, &[1, 2]) && !check(&spec, &[1, 3]));
        spec.traits.sensitive = true;
        assert!(check(&spec, &[1, 2]) && check(&spec, &[1, 3]) && !check(&spec, &[1, 4]));
    }

    #[test]
    fn units_in_the_last_place() {
        assert_eq!(ulp(1.0, DType::F32), f64::from(f32::EPSILON));
        assert_eq!(ulp(-3.9, DType::F32), 2.0 * f64::from(f32::EPSILON));
        assert_eq!(ulp(0.0, DType::F32), f64::from(f32::from_bits(1)));
        assert_eq!(ulp(1.0, DType::F16), 2f64.powi(-10));
        assert_eq!(ulp(5.0, DType::I32), 1.0);
    }
}
