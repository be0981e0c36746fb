use std::cell::Cell;

use forge_ir::interp::{self, Mode};
use forge_ir::text::parse;

use super::*;

/// The interpreter at native precision, with something done to what it computes.
struct Fake<'a> {
    graph: &'a Graph,
    change: &'a dyn Fn(&mut [f64], &How),
}

impl Implementation for Fake<'_> {
    fn run(&self, inputs: &[Tensor], how: How) -> Result<Vec<Tensor>, Failure> {
        let outputs = interp::run(self.graph, inputs, Mode::Native).map_err(|e| Failure::Failed(e.to_string()))?;
        Ok(outputs
            .into_iter()
            .map(|t| {
                let mut data = t.to_f64();
                (self.change)(&mut data, &how);
                Tensor::from_f64(t.dtype(), t.shape(), &data)
            })
            .collect())
    }

    fn is_thread_invariant(&self) -> bool {
        true
    }
}

fn unchanged(_: &mut [f64], _: &How) {}

fn options() -> ValidateOptions {
    ValidateOptions { seeds: 2, repeats: 8, ..ValidateOptions::default() }
}

fn suite(graph: &Graph, weight_inputs: &[bool]) -> Result<Suite, Refusal> {
    let shapes = [graph.clone()];
    let subject = Subject { shapes: &shapes, weight_inputs, hints: &[], given: &[], captured: &[] };
    Suite::prepare(&subject, &Fake { graph, change: &unchanged }, &options())
}

const LINEAR: &str = "graph @linear(%x: f32[24, 96], %w: f32[96, 40]) -> (f32[24, 40]) {
  %0 = matmul(%x, %w) : f32[24, 40]
  %1 = relu(%0) : f32[24, 40]
  return %1
}";

const SOFTMAX: &str = "graph @rows(%x: f32[24, 96], %b: f32[96]) -> (f32[24, 96]) {
  %0 = add(%x, %b) : f32[24, 96]
  %1 = softmax(%0) {axis = 1} : f32[24, 96]
  return %1
}";

#[test]
fn the_baseline_passes_its_own_suite() {
    for (text, weights) in [(LINEAR, [false, true]), (SOFTMAX, [false, true])] {
        let graph = parse(text).unwrap();
        let suite = suite(&graph, &weights).unwrap_or_else(|r| panic!("{r:?}"));
        let report = suite.check(&Fake { graph: &graph, change: &unchanged }).unwrap_or_else(|r| panic!("{r:?}"));
        assert!(report.random_cases >= 14 && report.special_cases >= 4, "{report}");
        assert!(report.mutants_rejected >= 5, "{report}");
        assert_eq!(report.notes, Vec::<String>::new());
        let linear = text == LINEAR;
        assert_eq!((report.exact_cases > 0, report.homogeneous_inputs), (linear, usize::from(linear)));
        assert!(report.outputs[0].bound_used.is_some());
    }
}

fn reason(text: &str, change: &dyn Fn(&mut [f64], &How)) -> Reason {
    let graph = parse(text).unwrap();
    let suite = suite(&graph, &[false, true]).unwrap_or_else(|r| panic!("{r:?}"));
    suite.check(&Fake { graph: &graph, change }).unwrap_err().reason
}

#[test]
fn wrong_results_are_told_apart() {
    assert_eq!(reason(SOFTMAX, &|y, _| y.fill(0.0)), Reason::RmseBudget);
    assert_eq!(reason(SOFTMAX, &|y, _| y.rotate_left(1)), Reason::RmseBudget);
    assert_eq!(reason(SOFTMAX, &|y, _| y[5] *= 1.0 + 1e-3), Reason::RmseBudget);
    assert_eq!(reason(LINEAR, &|y, _| y[5] = f64::NAN), Reason::NonFiniteMask);
    let half = |y: &mut [f64], _: &How| y.iter_mut().for_each(|v| *v = half::f16::from_f64(*v).to_f64());
    assert_eq!(reason(LINEAR, &half), Reason::AccumulationPrecision);
}

#[test]
fn circumstances_that_matter_are_seen() {
    let calls = Cell::new(0);
    let drifting = |y: &mut [f64], _: &How| {
        calls.set(calls.get() + 1);
        y[3] += if calls.get() % 2 == 0 { 1e-7 } else { 0.0 };
    };
    assert_eq!(reason(SOFTMAX, &drifting), Reason::NotRepeatable);
    assert_eq!(reason(SOFTMAX, &|y, how| y[3] = f64::from(how.fill)), Reason::UninitializedOutput);
    assert_eq!(reason(SOFTMAX, &|y, how| y[3] += 1e-7 * how.threads as f64), Reason::ThreadDependent);
}

#[test]
fn drift_after_the_first_calls_is_seen() {
    let calls = Cell::new(0);
    let late = |y: &mut [f64], _: &How| {
        calls.set(calls.get() + 1);
        if calls.get() == 20 {
            y[0] += 0.5;
        }
    };
    assert_eq!(reason(SOFTMAX, &late), Reason::RmseBudget);
}

#[test]
fn constants_added_to_a_linear_region_are_seen() {
    // Far below any error budget; exact zero stays zero.
    let nudge = |y: &mut [f64], _: &How| y.iter_mut().for_each(|v| *v = if *v > 1.0 { *v + 1.2e-7 } else { *v });
    let found = reason(LINEAR, &nudge);
    assert!(matches!(found, Reason::Homogeneity | Reason::ExactMismatch), "{found:?}");
}

#[test]
fn a_wrong_baseline_is_our_fault() {
    let graph = parse(
        "graph @g(%x: f32[8, 4]) -> (i64[8]) {
           %0 = argmax(%x) {axis = 1, keep_dims = false, select_last = false} : i64[8]
           return %0
         }",
    )
    .unwrap();
    let shapes = [graph.clone()];
    let subject = Subject { shapes: &shapes, weight_inputs: &[], hints: &[], given: &[], captured: &[] };
    let wrong = |y: &mut [f64], _: &How| y[0] += 1.0;
    let refusal = Suite::prepare(&subject, &Fake { graph: &graph, change: &wrong }, &options()).err().unwrap();
    assert_eq!(refusal.reason, Reason::BaselineFailed);
}

#[test]
fn discrete_outputs_are_compared_bitwise() {
    let graph = parse(
        "graph @g(%x: f32[8, 4], %i: i64[3]) -> (f32[3, 4], bool[8, 4]) {
           %0 = gather(%x, %i) {axis = 0} : f32[3, 4]
           %1 = isnan(%x) : bool[8, 4]
           return %0, %1
         }",
    )
    .unwrap();
    let suite = suite(&graph, &[]).unwrap_or_else(|r| panic!("{r:?}"));
    assert!(suite.check(&Fake { graph: &graph, change: &unchanged }).is_ok());
    let nudge = |y: &mut [f64], _: &How| y[0] *= 1.0 + 1e-7;
    assert_eq!(suite.check(&Fake { graph: &graph, change: &nudge }).unwrap_err().reason, Reason::ExactMismatch);
}

#[test]
fn a_blind_test_set_is_said_to_be_one() {
    // Given inputs make every output equal in every case: nothing tells a constant from the real thing... except that such a
    // constant is then no mutant; an output that is zero but for one lost element is.
    let graph = parse(
        "graph @g(%x: f16[64, 4096]) -> (f16[64]) {
           %0 = reduce_mean(%x) {axes = [1], keep_dims = false} : f16[64]
           return %0
         }",
    )
    .unwrap();
    let suite = suite(&graph, &[]).unwrap_or_else(|r| panic!("{r:?}"));
    let report = suite.check(&Fake { graph: &graph, change: &unchanged }).unwrap_or_else(|r| panic!("{r:?}"));
    assert!(report.mutants_rejected >= 4);
}

#[test]
fn captured_inputs_and_given_weights_are_used() {
    let graph = parse(LINEAR).unwrap();
    let given = Tensor::from_slice(&[96, 40], &[0.25f32; 96 * 40]);
    let captured = vec![vec![Tensor::from_slice(&[24, 96], &[3f32; 24 * 96]), given.clone()]];
    let shapes = [graph.clone()];
    let given = [None, Some(given)];
    let subject =
        Subject { shapes: &shapes, weight_inputs: &[false, true], hints: &[], given: &given, captured: &captured };
    let suite = Suite::prepare(&subject, &Fake { graph: &graph, change: &unchanged }, &options())
        .unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(suite.typical_inputs()[1], captured[0][1]);
    let plain = suite.check(&Fake { graph: &graph, change: &unchanged }).unwrap();
    assert!(plain.random_cases >= 15);
}
