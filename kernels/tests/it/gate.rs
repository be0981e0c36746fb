//! The gate on kernels that are right: every template's, on regions as models have them. They may be slow, never wrong.

use forge_ir::{Bindings, parse};
use forge_kernels::compile::Cache;
use forge_kernels::gate::{Bench, GateOptions, Task};
use forge_kernels::measure::MeasureOptions;
use forge_kernels::templates::{self, Spec, TEMPLATES};
use forge_kernels::validate::ValidateOptions;
use forge_kernels::verdict::{Reason, Stage, Verdict};

fn bench() -> Bench {
    Bench::detect(Cache::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/gate"))).unwrap()
}

fn options() -> GateOptions {
    let validate = ValidateOptions { seeds: 2, repeats: 8, prepare_seconds: 5.0, ..ValidateOptions::default() };
    let measure = MeasureOptions { budget_seconds: 0.5, ..MeasureOptions::default() };
    GateOptions { validate, measure }.with_threads(2)
}

/// Right: accepted, or rejected for its speed alone. Gives what was tested.
fn right(verdict: &Verdict) -> forge_kernels::verdict::ErrorReport {
    match verdict {
        Verdict::Accepted { errors, .. } => errors.clone(),
        Verdict::Rejected { reason: Reason::NotFaster, evidence, .. } => evidence.errors.clone().unwrap(),
        _ => panic!("{verdict}\n{verdict:?}"),
    }
}

/// Puts the first, middle and last point of every template that applies to the gate.
fn check(text: &str, weights: &[usize]) -> Vec<&'static str> {
    let region = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let weight_inputs: Vec<bool> = (0..region.inputs().len()).map(|i| weights.contains(&i)).collect();
    let spec = Spec { region: &region, weight_inputs: &weight_inputs };
    let bindings = Bindings::from([("N".to_owned(), 20)]);
    let options = options();
    let mut bench = bench();
    let mut applied = Vec::new();
    for template in TEMPLATES {
        let Ok(space) = (template.space)(&spec) else { continue };
        let size = templates::size(&space);
        for index in [0, size / 2, size - 1] {
            let Ok(candidate) = (template.instantiate)(&spec, &templates::point(&space, index)) else { continue };
            let task = Task {
                region: &region,
                bindings: &bindings,
                weight_inputs: &weight_inputs,
                candidate: &candidate,
                baseline: None,
                hints: &[],
                given: &[],
                captured: &[],
                options: &options,
            };
            let mut stages = Vec::new();
            let errors = right(&bench.evaluate(&task, &mut |stage| stages.push(stage)));
            assert!(errors.random_cases > 0 && errors.mutants_rejected > 0, "{errors}");
            assert_eq!(stages.first(), Some(&Stage::Inspect));
            assert_eq!(stages.last(), Some(&Stage::Measure));
            applied.push(template.name);
        }
    }
    applied.dedup();
    applied
}

#[test]
fn products_with_epilogues() {
    let applied = check(
        "graph @linear(%x: f32[N, 96], %w: f32[96, 70], %b: f32[70]) -> (f32[N, 70]) {
           %0 = matmul(%x, %w) {trans_a = false, trans_b = false}
           %1 = add(%0, %b)
           %2 = gelu(%1) {approximate = \"none\"}
           return %2
         }",
        &[1, 2],
    );
    assert!(applied.contains(&"matmul_epilogue"));
}

#[test]
fn norms_and_softmax() {
    check(
        "graph @norm(%x: f32[N, 130], %r: f32[N, 130], %s: f32[130], %b: f32[130]) -> (f32[N, 130]) {
           %0 = add(%x, %r)
           %1 = layer_norm(%0, %s, %b) {axis = 1, epsilon = 1e-5}
           return %1
         }",
        &[2, 3],
    );
    check(
        "graph @masked(%x: f32[2, 3, 20, 33], %m: bool[20, 33]) -> (f32[2, 3, 20, 33]) {
           %c = constant 0.125 : f32[]
           %n = constant -inf : f32[]
           %0 = mul(%x, %c)
           %1 = select(%m, %0, %n)
           %2 = softmax(%1) {axis = 3}
           return %2
         }",
        &[],
    );
}

#[test]
fn attention() {
    let applied = check(
        "graph @attention(%q: f32[2, 4, 20, 16], %k: f32[2, 2, 20, 16], %v: f32[2, 2, 20, 16]) -> (f32[2, 4, 20, 16]) {
           %0 = attention(%q, %k, %v) {scale = 0.25, causal = true, causal_offset = false, masked_rows_zero = false}
           return %0
         }",
        &[],
    );
    assert!(applied.contains(&"attention"));
    // Rows without a key, by mask and by causality; scores of minus infinity that are admitted all the same.
    for (causal, masked_rows_zero) in [(true, true), (false, true), (true, false)] {
        let text = format!(
            "graph @masked(%q: f32[1, 2, 24, 16], %k: f32[1, 2, 17, 16], %v: f32[1, 2, 17, 16], %m: bool[24, 17]) -> (f32[1, 2, 24, 16]) {{
               %0 = attention(%q, %k, %v, %m) {{scale = 0.25, causal = {causal}, causal_offset = true, masked_rows_zero = {masked_rows_zero}}}
               return %0
             }}"
        );
        assert!(check(&text, &[]).contains(&"attention"));
        let unmasked = text.replace(", %m: bool[24, 17]", "").replace(", %m)", ")");
        assert!(check(&unmasked, &[]).contains(&"attention"));
        check(&unmasked.replace("causal_offset = true", "causal_offset = false"), &[]);
    }
}

#[test]
fn attention_behind_views() {
    let applied = check(
        "graph @g(%x: f32[2, 16, 144]) -> (f32[2, 16, 48]) {
           %a = slice(%x) {starts = [0, 0, 0], steps = [1, 1, 1], sizes = [2, 16, 48]}
           %b = reshape(%a) {shape = [2, 16, 3, 16]}
           %q = transpose(%b) {perm = [0, 2, 1, 3]}
           %c = slice(%x) {starts = [0, 0, 48], steps = [1, 1, 1], sizes = [2, 16, 48]}
           %d = reshape(%c) {shape = [2, 16, 3, 16]}
           %k = transpose(%d) {perm = [0, 2, 1, 3]}
           %e = slice(%x) {starts = [0, 0, 96], steps = [1, 1, 1], sizes = [2, 16, 48]}
           %f = reshape(%e) {shape = [2, 16, 3, 16]}
           %v = transpose(%f) {perm = [0, 2, 1, 3]}
           %0 = attention(%q, %k, %v) {scale = 0.25, causal = true, causal_offset = false, masked_rows_zero = true}
           %1 = transpose(%0) {perm = [0, 2, 1, 3]}
           %2 = reshape(%1) {shape = [2, 16, 48]}
           return %2
         }",
        &[],
    );
    assert!(applied.contains(&"attention"));
}

#[test]
fn convolutions() {
    let applied = check(
        "graph @conv(%x: f32[N, 8, 13, 13], %w: f32[12, 8, 3, 3], %b: f32[12]) -> (f32[N, 12, 13, 13]) {
           %0 = conv(%x, %w, %b) {strides = [1, 1], pads_begin = [1, 1], pads_end = [1, 1], dilations = [1, 1], groups = 1}
           %1 = relu(%0)
           return %1
         }",
        &[1, 2],
    );
    assert!(applied.contains(&"conv_epilogue"));
}

#[test]
fn gathers_halves_and_several_outputs() {
    check(
        "graph @embed(%t: f32[50, 64], %i: i64[2, 9], %p: f32[9, 64]) -> (f32[2, 9, 64]) {
           %0 = gather(%t, %i) {axis = 0}
           %1 = add(%0, %p)
           return %1
         }",
        &[0, 2],
    );
    check(
        "graph @half(%x: f16[24, 128], %s: f16[128]) -> (f16[24, 128]) {
           %0 = rms_norm(%x, %s) {axis = 1, epsilon = 1e-5}
           %1 = silu(%0)
           return %1
         }",
        &[1],
    );
    check(
        "graph @two(%x: f32[24, 100], %y: f32[24, 100]) -> (f32[24, 100], bool[24, 100]) {
           %0 = mul(%x, %y)
           %1 = lt(%0, %y)
           return %0, %1
         }",
        &[],
    );
}
