//! The rewritten graph against the unrewritten one: the last gate before anything ships.

use forge_ir::interp::{self, Mode};
use forge_ir::{Graph, Tensor};
use forge_runtime::Executable;

use crate::gate::Proof;
use crate::measure::{Closures, Device, MeasureOptions, Measurement, measure};
use crate::validate::Policy;
use crate::validate::analysis::{longest_sum, output_traits};
use crate::validate::compare::{Expected, OutputSpec, Rules, compare, yardstick};
use crate::validate::inputs::{Distribution, Hint, random, specs};
use crate::verdict::{ErrorReport, Evidence, OutputErrors, Reason, Stage, Verdict};

/// Two ways to run one graph.
pub struct WholeGraph<'a> {
    /// The unrewritten graph with constant shapes: what both must compute.
    pub graph: &'a Graph,
    pub hints: Vec<Option<Hint>>,
    pub baseline: &'a Executable,
    /// A second load of the baseline, for the noise of the machine.
    pub baseline_again: &'a Executable,
    pub forged: &'a Executable,
}

/// How much to check and how long to time.
#[derive(Clone, Debug)]
pub struct WholeOptions {
    /// Input sets, over the distributions in turn.
    pub cases: usize,
    pub seed: u64,
    pub policy: Policy,
    pub measure: MeasureOptions,
}

impl Default for WholeOptions {
    fn default() -> WholeOptions {
        WholeOptions { cases: 3, seed: 1, policy: Policy::Default, measure: MeasureOptions::default() }
    }
}

/// What a whole model is fed: ordinary values first. Extremes that one op must survive drive a deep model to where the unrewritten
/// graph itself has no digits left.
const DISTRIBUTIONS: [Distribution; 2] = [Distribution::Normal, Distribution::Positive];

/// Checks the forged graph against the f64 reference by the rules of the gate, with the unrewritten graph's own errors as yardstick;
/// then times both.
///
/// The graph is accepted if it is right and its interval lies above the noise; a right graph that is not faster is rejected with its
/// timing as evidence.
#[must_use]
pub fn judge(whole: &WholeGraph<'_>, options: &WholeOptions) -> Verdict {
    let errors = match check(whole, options) {
        Ok(errors) => errors,
        Err(verdict) => return *verdict,
    };
    match time(whole, &options.measure) {
        Err(why) => Verdict::rejected(Stage::Measure, Reason::RunFailed, why),
        Ok(timing) if timing.is_faster() => Verdict::Accepted { errors, timing, proof: Proof::recorded() },
        Ok(timing) => Verdict::Rejected {
            stage: Stage::Measure,
            reason: Reason::NotFaster,
            evidence: Evidence {
                summary: timing.to_string(),
                errors: Some(errors),
                timing: Some(timing),
                ..Evidence::default()
            },
        },
    }
}

fn check(whole: &WholeGraph<'_>, options: &WholeOptions) -> Result<ErrorReport, Box<Verdict>> {
    let refuse = |reason: Reason, summary: String| Box::new(Verdict::rejected(Stage::Validate, reason, summary));
    let input_specs = specs(whole.graph, &[], &whole.hints)
        .ok_or_else(|| refuse(Reason::BaselineFailed, "a shape of the graph is not constant".into()))?;
    let traits = output_traits(whole.graph);
    let sum = longest_sum(whole.graph);
    let outputs: Vec<OutputSpec> = whole
        .graph
        .outputs()
        .iter()
        .zip(traits)
        .map(|((name, value), traits)| OutputSpec {
            name: name.clone(),
            dtype: whole.graph.ty(*value).dtype,
            traits,
            longest_sum: sum,
        })
        .collect();
    let mut report = ErrorReport::default();
    let mut worst: Vec<OutputErrors> = Vec::new();
    for case in 0..options.cases {
        let distribution = DISTRIBUTIONS[case % DISTRIBUTIONS.len()];
        let inputs = random(&input_specs, distribution, options.seed.wrapping_add(case as u64));
        let reference = interp::run(whole.graph, &inputs, Mode::F64)
            .map_err(|e| refuse(Reason::BaselineFailed, format!("the interpreter: {e}")))?;
        let baseline = execute(whole.baseline, whole.graph, &inputs).map_err(|e| refuse(Reason::BaselineFailed, e))?;
        let forged = execute(whole.forged, whole.graph, &inputs).map_err(|e| refuse(Reason::RunFailed, e))?;
        for (at, spec) in outputs.iter().enumerate() {
            let expected = Expected {
                yardstick: yardstick(&baseline[at], &reference[at]),
                baseline: baseline[at].clone(),
                reference: reference[at].clone(),
                bound: None,
            };
            let errors = compare(spec, &expected, &forged[at], Rules::Random, options.policy).map_err(|mismatch| {
                Box::new(Verdict::Rejected {
                    stage: Stage::Validate,
                    reason: mismatch.reason,
                    evidence: Evidence {
                        summary: mismatch.summary,
                        case: Some(format!("{} inputs, seed {}", distribution.name(), case)),
                        ..Evidence::default()
                    },
                })
            })?;
            match worst.get_mut(at) {
                Some(known) if known.relative_rmse >= errors.relative_rmse => {}
                Some(known) => *known = errors,
                None => worst.push(errors),
            }
        }
        report.random_cases += 1;
    }
    report.outputs = worst;
    Ok(report)
}

/// Times the forged graph against the baseline, interleaved.
///
/// # Errors
/// If either fails to run, in its own words.
pub fn time(whole: &WholeGraph<'_>, options: &MeasureOptions) -> Result<Measurement, String> {
    let input_specs =
        specs(whole.graph, &[], &whole.hints).ok_or_else(|| "a shape of the graph is not constant".to_owned())?;
    let inputs = random(&input_specs, Distribution::Normal, options.seed);
    let mut arms: Vec<Call<'_>> = [whole.baseline, whole.baseline_again, whole.forged]
        .into_iter()
        .map(|executable| Call::new(executable, whole.graph, &inputs))
        .collect();
    let [baseline, again, forged] = arms.as_mut_slice() else { return Err("three arms".into()) };
    let mut closures = Closures {
        baseline: &mut || baseline.run(),
        baseline_again: &mut || again.run(),
        candidate: &mut || forged.run(),
    };
    let threads = whole.forged.threads();
    measure(&mut closures, options, Device::cpu(threads))
}

/// One executable with its inputs and output memory, for repeated calls.
struct Call<'a> {
    executable: &'a Executable,
    inputs: Vec<(&'a [u8], Vec<i64>)>,
    outputs: Vec<Vec<u8>>,
}

impl<'a> Call<'a> {
    fn new(executable: &'a Executable, graph: &Graph, inputs: &'a [Tensor]) -> Call<'a> {
        let shape = |t: &Tensor| t.shape().iter().map(|d| *d as i64).collect();
        let bytes = |v: &forge_ir::Value| {
            let ty = graph.ty(*v);
            ty.const_shape().map_or(0, |s| s.iter().product::<usize>() * ty.dtype.size())
        };
        Call {
            executable,
            inputs: inputs.iter().map(|t| (&t.bytes()[..], shape(t))).collect(),
            outputs: graph.outputs().iter().map(|(_, v)| vec![0; bytes(v)]).collect(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let inputs: Vec<(&[u8], &[i64])> = self.inputs.iter().map(|(b, s)| (*b, s.as_slice())).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        self.executable.run(&inputs, &mut outputs).map_err(|e| e.to_string())
    }
}

fn execute(executable: &Executable, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let mut call = Call::new(executable, graph, inputs);
    call.run()?;
    call.outputs
        .into_iter()
        .zip(graph.outputs())
        .map(|(bytes, (name, value))| {
            let ty = graph.ty(*value);
            let shape = ty.const_shape().ok_or_else(|| format!("output '{name}' has no constant shape"))?;
            Tensor::new(ty.dtype, shape, bytes).ok_or_else(|| format!("output '{name}' has another size"))
        })
        .collect()
}
