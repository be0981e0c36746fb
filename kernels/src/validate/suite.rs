//! Making a suite, and putting it to a candidate.

use std::collections::HashMap;
use std::time::Instant;

use forge_ir::interp::{self, Mode};
use forge_ir::{DType, Graph, Tensor};

use super::analysis::{is_homogeneous, keeps_integers, longest_sum, output_traits};
use super::bound::forward_error;
use super::compare::{Expected, Mismatch, OutputSpec, Rules, Yardstick, compare, yardstick};
use super::inputs::{Distribution, InputSpec, Role, Special, integers, random, special, specs};
use super::mutation::power;
use super::{Case, Failure, How, Implementation, Refusal, Subject, ValidateOptions};
use crate::verdict::{ErrorReport, OutputErrors, Reason, Stage};

/// Families beside those of random cases.
const CAPTURED: usize = usize::MAX;
const INTEGERS: usize = usize::MAX - 1;
const SPECIAL: usize = usize::MAX - 2;

/// Largest small integers tried for exact cases, the most telling first.
const INTEGER_MAGNITUDES: [i64; 4] = [15, 7, 3, 1];
/// Inputs checked for homogeneity.
const HOMOGENEOUS_INPUTS: usize = 3;
/// Fewest repeats of a call, whatever the time.
const MIN_REPEATS: usize = 3;

/// Test cases for a region and the proof of their power.
pub struct Suite {
    options: ValidateOptions,
    outputs: Vec<OutputSpec>,
    cases: Vec<Case>,
    /// Inputs in which the region is linear.
    homogeneous: Vec<usize>,
    mutants_rejected: usize,
    notes: Vec<String>,
    prepare_seconds: f64,
}

impl Suite {
    /// Makes the cases from the baseline and the interpreter, and checks that wrong results would be seen.
    ///
    /// # Errors
    /// If the baseline can't be run or contradicts the interpreter where there is one right result, or wrong results pass.
    pub fn prepare(
        subject: &Subject<'_>,
        baseline: &dyn Implementation,
        options: &ValidateOptions,
    ) -> Result<Suite, Refusal> {
        let start = Instant::now();
        let mut maker =
            Maker { subject, baseline, options, start, outputs: Vec::new(), cases: Vec::new(), notes: Vec::new() };
        let mut homogeneous = Vec::new();
        let mut flats = Vec::new();
        for (index, graph) in subject.shapes.iter().enumerate() {
            let flat = graph.decompose_all().map_err(|e| refused(format!("the region does not decompose: {e}")))?;
            let Some(specs) = specs(graph, subject.weight_inputs, subject.hints) else {
                return Err(refused("a shape of the region is not constant"));
            };
            let specs = defined(specs, graph, options.seed);
            if index == 0 {
                maker.outputs = output_specs(graph, &flat);
            }
            flats.push((graph, flat, specs));
        }
        let Some((graph, flat, input_specs)) = flats.first() else {
            return Err(refused("no shape to test"));
        };
        maker.random_cases(0, graph, flat, input_specs, 0)?;
        maker.captured_cases(graph, flat)?;
        maker.integer_cases(0, graph, flat, input_specs)?;
        maker.special_cases(0, graph, flat, input_specs)?;
        // Smaller shapes are cheap, and where tails are.
        for (index, (graph, flat, specs)) in flats.iter().enumerate().skip(1) {
            maker.random_cases(index, graph, flat, specs, 0)?;
            maker.integer_cases(index, graph, flat, specs)?;
        }
        for seed in 1..options.seeds as u64 {
            for (index, (graph, flat, specs)) in flats.iter().enumerate() {
                maker.random_cases(index, graph, flat, specs, seed)?;
            }
        }
        maker.pool_yardsticks();
        for index in 0..flat.inputs().len() {
            let activation = input_specs.get(index).is_some_and(|s| s.dtype.is_float() && !s.weight);
            if activation && homogeneous.len() < HOMOGENEOUS_INPUTS && is_homogeneous(flat, index) {
                match maker.cases.first().map(|case| doubled(baseline, case, index, options.how())) {
                    Some(Ok(None)) => homogeneous.push(index),
                    _ => maker.notes.push(format!("the baseline is not homogeneous in input {index}")),
                }
            }
        }
        let Maker { outputs, cases, mut notes, .. } = maker;
        let mutants_rejected = power(flat, &outputs, &cases, options, &mut notes)?;
        Ok(Suite {
            options: options.clone(),
            outputs,
            cases,
            homogeneous,
            mutants_rejected,
            notes,
            prepare_seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Seconds that making it took.
    #[must_use]
    pub fn prepare_seconds(&self) -> f64 {
        self.prepare_seconds
    }

    /// What timing runs on: real inputs if there are any, else those of the first random case.
    #[must_use]
    pub fn typical_inputs(&self) -> &[Tensor] {
        let captured = self.cases.iter().find(|c| c.family == CAPTURED);
        captured.or(self.cases.first()).map(|c| c.inputs.as_slice()).unwrap_or_default()
    }

    /// Puts every case to a candidate.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn check(&self, candidate: &dyn Implementation) -> Result<ErrorReport, Refusal> {
        let start = Instant::now();
        let mut report = ErrorReport {
            mutants_rejected: self.mutants_rejected,
            notes: self.notes.clone(),
            outputs: self
                .outputs
                .iter()
                .map(|o| OutputErrors { name: o.name.clone(), ..OutputErrors::default() })
                .collect(),
            ..ErrorReport::default()
        };
        if let Some(first) = self.cases.first() {
            report.repeats = self.memory_and_repeats(candidate, first).map_err(|r| r.in_case(&first.label))?;
        }
        let mut shapes_seen: Vec<Vec<&[usize]>> = Vec::new();
        for case in &self.cases {
            let shape: Vec<&[usize]> = case.inputs.iter().map(Tensor::shape).collect();
            let fresh = !shapes_seen.contains(&shape);
            // Canaries where accesses may differ: at every new shape, and where values steer them.
            let how = How { checked: fresh || case.rules == Rules::Special, ..self.options.how() };
            if fresh {
                shapes_seen.push(shape);
            }
            let outputs = run(candidate, &case.inputs, how).map_err(|r| r.in_case(&case.label))?;
            let errors = compare_all(&self.outputs, case, &outputs, &self.options)
                .map_err(|m| Refusal::new(Stage::Validate, m.reason, m.summary).in_case(&case.label))?;
            match case.rules {
                Rules::Random => report.random_cases += 1,
                Rules::Special => report.special_cases += 1,
                Rules::Integers => report.exact_cases += 1,
            }
            if case.rules == Rules::Random {
                for (worst, errors) in report.outputs.iter_mut().zip(errors) {
                    merge(worst, errors, &case.label);
                }
            }
        }
        if let Some(case) = self.cases.first() {
            for index in &self.homogeneous {
                if let Some(what) =
                    doubled(candidate, case, *index, self.options.how()).map_err(|r| r.in_case(&case.label))?
                {
                    return Err(Refusal::new(Stage::Validate, Reason::Homogeneity, what).in_case(&case.label));
                }
                report.homogeneous_inputs += 1;
            }
        }
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Circumstances that must not matter: poison, repetition, threads. Returns the number of equal runs.
    fn memory_and_repeats(&self, candidate: &dyn Implementation, case: &Case) -> Result<usize, Refusal> {
        let how = self.options.how();
        let differs = |a: &[Tensor], b: &[Tensor]| {
            self.outputs.iter().zip(a.iter().zip(b)).find_map(|(s, (a, b))| difference(s, a, b))
        };
        // Canaries first: what writes out of bounds must not do so in memory that has none.
        let poisoned = run(candidate, &case.inputs, How { checked: true, fill: 0xff, ..how })?;
        let plain = run(candidate, &case.inputs, how)?;
        let again = run(candidate, &case.inputs, how)?;
        if let Some(what) = differs(&plain, &again) {
            return Err(Refusal::new(Stage::Validate, Reason::NotRepeatable, what));
        }
        let refilled = run(candidate, &case.inputs, How { fill: 0x00, ..how })?;
        if let Some(what) = differs(&plain, &refilled).or_else(|| differs(&plain, &poisoned)) {
            return Err(Refusal::new(Stage::Validate, Reason::UninitializedOutput, what));
        }
        let mut repeats = 4;
        let start = Instant::now();
        while repeats < self.options.repeats
            && (repeats < MIN_REPEATS + 4 || start.elapsed().as_secs_f64() < self.options.repeat_seconds)
        {
            let again = run(candidate, &case.inputs, how)?;
            if let Some(what) = differs(&plain, &again) {
                return Err(Refusal::new(Stage::Validate, Reason::NotRepeatable, what));
            }
            repeats += 1;
        }
        if candidate.is_thread_invariant() {
            for threads in self.options.threads.iter().skip(1) {
                let other = run(candidate, &case.inputs, How { threads: *threads, ..how })?;
                if let Some(what) = differs(&plain, &other) {
                    let what = format!("{} and {threads} threads: {what}", how.threads);
                    return Err(Refusal::new(Stage::Validate, Reason::ThreadDependent, what));
                }
                repeats += 1;
            }
        }
        Ok(repeats)
    }
}

pub(super) fn refused(what: impl Into<String>) -> Refusal {
    Refusal::new(Stage::Validate, Reason::BaselineFailed, what)
}

fn run(implementation: &dyn Implementation, inputs: &[Tensor], how: How) -> Result<Vec<Tensor>, Refusal> {
    implementation.run(inputs, how).map_err(|failure| match failure {
        Failure::OutOfBounds(what) => Refusal::new(Stage::Run, Reason::OutOfBoundsWrite, what),
        Failure::InputModified(what) => Refusal::new(Stage::Run, Reason::InputModified, what),
        Failure::Refused(what) | Failure::Failed(what) => Refusal::new(Stage::Run, Reason::RunFailed, what),
    })
}

/// Integers whose use the graph hides behind arithmetic may be indices: where they lead out of range, smaller ones are tried.
fn defined(mut specs: Vec<InputSpec>, graph: &Graph, seed: u64) -> Vec<InputSpec> {
    if !specs.iter().any(|s| matches!(s.role, Role::Integer { .. })) {
        return specs;
    }
    for cap in [i64::MAX, 1, 0] {
        for spec in &mut specs {
            if let Role::Integer { low, high, .. } = &mut spec.role {
                *high = (*high).min(cap).max(*low);
            }
        }
        if interp::run(graph, &random(&specs, Distribution::Normal, seed), Mode::F64).is_ok() {
            break;
        }
    }
    specs
}

fn output_specs(graph: &Graph, flat: &Graph) -> Vec<OutputSpec> {
    let longest_sum = longest_sum(flat);
    graph
        .outputs()
        .iter()
        .zip(output_traits(flat))
        .map(|((name, value), traits)| OutputSpec {
            name: name.clone(),
            dtype: graph.ty(*value).dtype,
            traits,
            longest_sum,
        })
        .collect()
}

pub(super) fn compare_all(
    specs: &[OutputSpec],
    case: &Case,
    outputs: &[Tensor],
    options: &ValidateOptions,
) -> Result<Vec<OutputErrors>, Mismatch> {
    if outputs.len() != specs.len() {
        let summary = format!("{} outputs, expected {}", outputs.len(), specs.len());
        return Err(Mismatch { reason: Reason::PlanMismatch, summary });
    }
    specs
        .iter()
        .zip(&case.expected)
        .zip(outputs)
        .map(|((spec, expected), got)| compare(spec, expected, got, case.rules, options.policy))
        .collect()
}

/// The first element whose bits differ.
fn difference(spec: &OutputSpec, a: &Tensor, b: &Tensor) -> Option<String> {
    if a == b {
        return None;
    }
    let size = a.dtype().size();
    let (x, y) = (a.to_f64(), b.to_f64());
    let at = a.bytes().chunks_exact(size).zip(b.bytes().chunks_exact(size)).position(|(p, q)| p != q).unwrap_or(0);
    let value = |v: &[f64]| v.get(at).copied().unwrap_or(f64::NAN);
    Some(format!("output '{}': element {at} is {} in one run and {} in another", spec.name, value(&x), value(&y)))
}

fn merge(worst: &mut OutputErrors, errors: OutputErrors, label: &str) {
    let bound_used = match (worst.bound_used, errors.bound_used) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    let (rmse_used, tail_used) = (worst.rmse_used.max(errors.rmse_used), worst.tail_used.max(errors.tail_used));
    let max_ulp = worst.max_ulp.max(errors.max_ulp);
    if errors.relative_rmse >= worst.relative_rmse {
        *worst = OutputErrors { worst_case: label.to_owned(), ..errors };
    }
    *worst = OutputErrors { bound_used, rmse_used, tail_used, max_ulp, ..worst.clone() };
}

/// Runs a case with one input doubled; says where the outputs are not doubled, if anywhere.
fn doubled(
    implementation: &dyn Implementation,
    case: &Case,
    index: usize,
    how: How,
) -> Result<Option<String>, Refusal> {
    let once = run(implementation, &case.inputs, how)?;
    let mut inputs = case.inputs.clone();
    if let Some(input) = inputs.get_mut(index) {
        let data: Vec<f64> = input.to_f64().iter().map(|v| v * 2.0).collect();
        *input = Tensor::from_f64(input.dtype(), input.shape(), &data);
    }
    let twice = run(implementation, &inputs, how)?;
    for (once, twice) in once.iter().zip(&twice) {
        // Below, subnormals round; above, doubling overflows.
        let (low, high) = if once.dtype() == DType::F64 { (1e-300, 1e300) } else { (1e-30, 1e30) };
        let wrong = once.to_f64().into_iter().zip(twice.to_f64()).enumerate().find(|(_, (y, z))| {
            once.dtype().is_float() && y.abs() > low && y.abs() < high && *z != 2.0 * y && *z != *y
        });
        if let Some((i, (y, z))) = wrong {
            return Ok(Some(format!("input {index} doubled: element {i} went from {y} to {z}")));
        }
    }
    Ok(None)
}

struct Maker<'a> {
    subject: &'a Subject<'a>,
    baseline: &'a dyn Implementation,
    options: &'a ValidateOptions,
    start: Instant,
    outputs: Vec<OutputSpec>,
    cases: Vec<Case>,
    notes: Vec<String>,
}

impl Maker<'_> {
    /// Time and memory are left for a case beyond the floor.
    fn may_go_on(&self) -> bool {
        let bytes: usize = self.cases.iter().map(Case::bytes).sum();
        self.start.elapsed().as_secs_f64() < self.options.prepare_seconds && bytes < self.options.bytes
    }

    fn seed(&self, shape: usize, seed: u64) -> u64 {
        self.options.seed.wrapping_add(seed * 1000 + shape as u64)
    }

    fn random_cases(
        &mut self,
        shape: usize,
        graph: &Graph,
        flat: &Graph,
        specs: &[InputSpec],
        seed: u64,
    ) -> Result<(), Refusal> {
        let floats = specs.iter().any(|s| s.dtype.is_float() && !s.weight);
        // Without float activations, distributions are all one.
        let all = &self.options.distributions;
        let distributions = if floats { &all[..] } else { &all[..all.len().min(1)] };
        for (d, distribution) in distributions.iter().enumerate() {
            let floor = shape == 0 && seed == 0;
            if !floor && !self.may_go_on() {
                return Ok(());
            }
            let inputs = self.with_given(random(specs, *distribution, self.seed(shape, seed)));
            let bounded = distribution.has_random_mantissas() && seed < self.options.bound_seeds;
            let label = format!("{}, seed {seed}{}", distribution.name(), shape_label(shape, graph));
            let family = shape * Distribution::ALL.len() + d;
            self.add(&label, Rules::Random, family, inputs, graph, flat, bounded)?;
        }
        Ok(())
    }

    fn captured_cases(&mut self, graph: &Graph, flat: &Graph) -> Result<(), Refusal> {
        for (i, inputs) in self.subject.captured.iter().enumerate() {
            self.add(
                &format!("captured {i}"),
                Rules::Random,
                CAPTURED,
                inputs.clone(),
                graph,
                flat,
                self.options.bound_seeds > 0,
            )?;
        }
        Ok(())
    }

    fn special_cases(&mut self, shape: usize, graph: &Graph, flat: &Graph, specs: &[InputSpec]) -> Result<(), Refusal> {
        let bounded = self.options.bound_seeds > 0;
        for which in Special::ALL.into_iter().filter(|s| self.options.specials && s.applies(specs)) {
            let inputs = self.with_given(special(specs, which, self.seed(shape, 77)));
            self.add(which.name(), Rules::Special, SPECIAL, inputs, graph, flat, bounded)?;
        }
        Ok(())
    }

    /// Cases whose every sum is exact, if the region has such.
    fn integer_cases(&mut self, shape: usize, graph: &Graph, flat: &Graph, specs: &[InputSpec]) -> Result<(), Refusal> {
        if !keeps_integers(flat) {
            return Ok(());
        }
        for (signed, seed) in [(false, 88), (true, 89)] {
            for magnitude in INTEGER_MAGNITUDES {
                let inputs = integers(specs, magnitude, signed, self.seed(shape, seed));
                if stays_exact(flat, &inputs) {
                    let sign = if signed { "signed " } else { "" };
                    let label = format!("{sign}integers up to {magnitude}{}", shape_label(shape, graph));
                    self.add(&label, Rules::Integers, INTEGERS, inputs, graph, flat, false)?;
                    break;
                }
            }
        }
        // The sharpest of all: every partial sum counts.
        let inputs = integers(specs, 1, false, self.seed(shape, 90));
        if stays_exact(flat, &inputs) {
            let label = format!("zeros and ones{}", shape_label(shape, graph));
            self.add(&label, Rules::Integers, INTEGERS, inputs, graph, flat, false)?;
        }
        Ok(())
    }

    fn with_given(&self, mut inputs: Vec<Tensor>) -> Vec<Tensor> {
        for (input, given) in inputs.iter_mut().zip(self.subject.given) {
            if let Some(given) = given.as_ref().filter(|g| g.ty() == input.ty()) {
                *input = given.clone();
            }
        }
        inputs
    }

    fn add(
        &mut self,
        label: &str,
        rules: Rules,
        family: usize,
        inputs: Vec<Tensor>,
        graph: &Graph,
        flat: &Graph,
        bounded: bool,
    ) -> Result<(), Refusal> {
        let unusable = |what: String| refused(what).in_case(label);
        let references = match interp::run(graph, &inputs, Mode::F64) {
            Ok(references) => references,
            // Not every region is defined on every special value (an index that counts from the end of a part).
            Err(error) if rules == Rules::Special => {
                self.notes.push(format!("{label}: {error}"));
                return Ok(());
            }
            Err(error) => return Err(unusable(format!("interpreter: {error}"))),
        };
        let baselines = match self.baseline.run(&inputs, self.options.how()) {
            Ok(outputs) => outputs,
            Err(failure) => return Err(unusable(format!("baseline: {failure:?}"))),
        };
        let mut bounds = match bounded.then(|| forward_error(flat, &inputs)) {
            Some(Ok(bounds)) => bounds,
            _ => vec![None; baselines.len()],
        };
        bounds.resize(baselines.len(), None);
        let mut expected = Vec::new();
        for ((baseline, reference), bound) in baselines.into_iter().zip(references).zip(bounds) {
            let yardstick = yardstick(&baseline, &reference);
            expected.push(Expected { baseline, reference, bound, yardstick });
        }
        let mut case = Case { label: label.to_owned(), rules, family, inputs, expected };
        self.judge_baseline(&mut case)?;
        self.cases.push(case);
        Ok(())
    }

    /// The baseline faces the rules too. A bound that it breaks is no bound; where there is one right result, it must have it.
    fn judge_baseline(&mut self, case: &mut Case) -> Result<(), Refusal> {
        let own: Vec<Tensor> = case.expected.iter().map(|e| e.baseline.clone()).collect();
        for ((spec, expected), baseline) in self.outputs.iter().zip(&mut case.expected).zip(&own) {
            let verdict = compare(spec, expected, baseline, case.rules, self.options.policy);
            match verdict {
                Ok(_) => {}
                Err(m) if m.reason == Reason::ForwardErrorBound => {
                    self.notes.push(format!("{}: no error bound, the baseline is over it", case.label));
                    expected.bound = None;
                }
                Err(m) => return Err(refused(format!("the baseline is wrong: {}", m.summary)).in_case(&case.label)),
            }
            // A wrong lowering of ours would make every candidate wrong with it.
            if !spec.dtype.is_float() && !spec.traits.sensitive && *baseline != expected.reference {
                let what = format!("output '{}': the baseline and the interpreter differ", spec.name);
                return Err(refused(what).in_case(&case.label));
            }
        }
        Ok(())
    }

    /// Gives the random cases of a family the largest yardstick among them.
    fn pool_yardsticks(&mut self) {
        let mut pooled: HashMap<(usize, usize), Yardstick> = HashMap::new();
        for case in self.cases.iter().filter(|c| c.rules == Rules::Random) {
            for (output, expected) in case.expected.iter().enumerate() {
                let slot = pooled.entry((case.family, output)).or_default();
                *slot = slot.merged(expected.yardstick);
            }
        }
        for case in self.cases.iter_mut().filter(|c| c.rules == Rules::Random) {
            for (output, expected) in case.expected.iter_mut().enumerate() {
                if let Some(yardstick) = pooled.get(&(case.family, output)) {
                    expected.yardstick = *yardstick;
                }
            }
        }
    }
}

impl Case {
    fn bytes(&self) -> usize {
        let tensors = self.expected.iter().flat_map(|e| [&e.baseline, &e.reference]).chain(&self.inputs);
        let bounds: usize = self.expected.iter().filter_map(|e| e.bound.as_ref()).map(|b| b.len() * 8).sum();
        tensors.map(|t| t.bytes().len()).sum::<usize>() + bounds
    }
}

fn shape_label(shape: usize, graph: &Graph) -> String {
    if shape == 0 {
        return String::new();
    }
    let ty = |node: &forge_ir::NodeId| graph.ty(forge_ir::Value { node: *node, port: 0 }).to_string();
    format!(", {}", graph.inputs().iter().map(ty).collect::<Vec<_>>().join(" "))
}

/// Whether every float of the evaluation is an integer small enough that neither storing nor summing rounds.
fn stays_exact(flat: &Graph, inputs: &[Tensor]) -> bool {
    let mut exact = true;
    let mut largest: HashMap<forge_ir::Value, f64> = HashMap::new();
    let visited = interp::run_visit(flat, inputs, Mode::F64, &mut |value, tensor| {
        let declared = flat.ty(value).dtype;
        if !declared.is_float() {
            return;
        }
        let limit = 2.0 / declared.epsilon().unwrap_or(1.0);
        let values = tensor.to_f64();
        let most = values.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        exact &= values.iter().all(|v| v.fract() == 0.0 && v.abs() <= limit);
        // Partial sums are at most terms times the largest product.
        let factors: f64 =
            flat.operands(value.node).iter().map(|v| largest.get(v).copied().unwrap_or(1.0).max(1.0)).product();
        let terms = super::analysis::terms(flat, value.node);
        exact &= terms <= 1.0 || terms * factors <= 2.0 / declared.compute_type().epsilon().unwrap_or(1.0);
        largest.insert(value, most);
    });
    exact && visited.is_ok()
}
