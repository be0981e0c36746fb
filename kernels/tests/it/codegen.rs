//! Every lowering against the interpreter in f64: the generic one op by op, and each template at several points of its space.

use std::collections::BTreeMap;

use forge_ir::interp::{self, Mode};
use forge_ir::{Bindings, DType, Graph, Tensor, Value};
use forge_kernels::assemble::{Assembled, assemble_baseline, assemble_candidate};
use forge_kernels::build;
use forge_kernels::compile::{Cache, Compiler};
use forge_kernels::templates::{self, Spec, TEMPLATES};
use forge_runtime::Options;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Error budget relative to the largest reference magnitude, per dtype.
fn budget(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 4e-6,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    }
}

fn random_inputs(graph: &Graph, seed: u64, index_limit: i64) -> Vec<Tensor> {
    let mut rng = StdRng::seed_from_u64(seed);
    graph
        .inputs()
        .iter()
        .map(|node| {
            let ty = graph.ty(Value { node: *node, port: 0 });
            let shape = ty.const_shape().expect("test regions have constant shapes");
            let count: usize = shape.iter().product();
            if ty.dtype.is_float() {
                let values: Vec<f64> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
                Tensor::from_f64(ty.dtype, &shape, &values)
            } else {
                let high = if ty.dtype == DType::Bool { 2 } else { index_limit };
                let values: Vec<i64> = (0..count).map(|_| rng.random_range(0..high)).collect();
                Tensor::from_i64(ty.dtype, &shape, &values)
            }
        })
        .collect()
}

struct Bench {
    compiler: Compiler,
    cache: Cache,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        Bench { compiler: Compiler::detect().unwrap(), cache: Cache::new(folder.path()), _folder: folder }
    }

    /// Runs a plan whose weights are the flagged inputs; every output as f64.
    fn run(&self, graph: &Graph, mut assembled: Assembled, weight_inputs: &[bool], inputs: &[Tensor]) -> Vec<Vec<f64>> {
        let mut arguments: Vec<(&[u8], Vec<i64>)> = Vec::new();
        let mut weights = BTreeMap::new();
        for (i, tensor) in inputs.iter().enumerate() {
            if weight_inputs[i] {
                weights.insert(format!("in{i}"), tensor.clone());
            } else {
                arguments.push((tensor.bytes(), tensor.shape().iter().map(|d| *d as i64).collect()));
            }
        }
        assembled.weights.extend(weights);
        let options = Options { threads: 2, poison: true, guard: true };
        let executable =
            build::load(&assembled, &self.compiler, &self.cache, options).unwrap_or_else(|e| panic!("{e}"));
        let types: Vec<_> = graph.outputs().iter().map(|(_, v)| graph.ty(*v).clone()).collect();
        let mut outputs: Vec<Vec<u8>> = types
            .iter()
            .map(|t| vec![0xAA; t.const_shape().unwrap().iter().product::<usize>() * t.dtype.size()])
            .collect();
        let arguments: Vec<(&[u8], &[i64])> = arguments.iter().map(|(b, s)| (*b, s.as_slice())).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        executable.run(&arguments, &mut slices).unwrap();
        types
            .iter()
            .zip(outputs)
            .map(|(t, bytes)| Tensor::new(t.dtype, t.const_shape().unwrap(), bytes).unwrap().to_f64())
            .collect()
    }
}

fn compare(what: &str, graph: &Graph, got: &[Vec<f64>], want: &[Tensor]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let dtype = graph.ty(graph.outputs()[i].1).dtype;
        let want = want.to_f64();
        let scale = want.iter().filter(|v| v.is_finite()).fold(1e-30f64, |a, v| a.max(v.abs()));
        for (at, (g, w)) in got.iter().zip(&want).enumerate() {
            let same = (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= budget(dtype) * scale;
            assert!(same, "{what}: output {i} at {at}: got {g}, want {w} (scale {scale})");
        }
    }
}

/// Checks the baseline lowering and every applicable template on a region in text form.
fn check(text: &str, weights: &[usize]) -> Vec<&'static str> {
    let graph = forge_ir::text::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let graph = graph.specialize(&Bindings::new()).unwrap();
    let bench = Bench::new();
    let inputs = random_inputs(&graph, 7, 3);
    let want = interp::run(&graph, &inputs, Mode::F64).unwrap();
    let weight_inputs: Vec<bool> = (0..inputs.len()).map(|i| weights.contains(&i)).collect();
    let baseline = assemble_baseline(&graph, &weight_inputs).unwrap();
    compare("baseline", &graph, &bench.run(&graph, baseline, &weight_inputs, &inputs), &want);
    let spec = Spec { region: &graph, weight_inputs: &weight_inputs };
    let mut applied = Vec::new();
    for template in TEMPLATES {
        let Ok(space) = (template.space)(&spec) else { continue };
        applied.push(template.name);
        let size = templates::size(&space);
        for index in [0, size / 2, size - 1] {
            let point = templates::point(&space, index);
            let candidate = (template.instantiate)(&spec, &point).unwrap_or_else(|e| panic!("{}: {e}", template.name));
            let assembled = assemble_candidate(&graph, &weight_inputs, &candidate).unwrap();
            let got = bench.run(&graph, assembled, &weight_inputs, &inputs);
            compare(&candidate.title(), &graph, &got, &want);
        }
    }
    applied
}

#[test]
fn linear_with_bias_and_gelu() {
    let applied = check(
        "graph @linear(%x: f32[2, 19, 40], %w: f32[40, 70], %b: f32[70], %r: f32[2, 19, 70]) -> (f32[2, 19, 70]) {
  %0 = matmul(%x, %w) {trans_a = false, trans_b = false} : f32[2, 19, 70]
  %1 = add(%b, %0) : f32[2, 19, 70]
  %2 = gelu(%1) {approximate = \"none\"} : f32[2, 19, 70]
  %3 = add(%2, %r) : f32[2, 19, 70]
  return %3
}",
        &[1, 2],
    );
    assert_eq!(applied, ["matmul_epilogue"]);
}

#[test]
fn linear_with_a_transposed_weight() {
    let applied = check(
        "graph @linear(%x: f32[5, 24], %w: f32[10, 24]) -> (f32[5, 10]) {
  %0 = matmul(%x, %w) {trans_a = false, trans_b = true} : f32[5, 10]
  %1 = relu(%0) : f32[5, 10]
  return %1
}",
        &[1],
    );
    assert_eq!(applied, ["matmul_epilogue"]);
}

#[test]
fn layer_norm_with_residual() {
    let applied = check(
        "graph @norm(%x: f32[3, 7, 48], %r: f32[3, 7, 48], %g: f32[48], %b: f32[48]) -> (f32[3, 7, 48]) {
  %0 = add(%x, %r) : f32[3, 7, 48]
  %1 = layer_norm(%0, %g, %b) {axis = 2, epsilon = 1e-5} : f32[3, 7, 48]
  return %1
}",
        &[2, 3],
    );
    assert_eq!(applied, ["rowwise"]);
}

#[test]
fn softmax_over_a_masked_row() {
    let applied = check(
        "graph @softmax(%x: f32[2, 3, 5, 33], %m: f32[2, 1, 1, 33]) -> (f32[2, 3, 5, 33]) {
  %0 = add(%x, %m) : f32[2, 3, 5, 33]
  %1 = softmax(%0) {axis = 3} : f32[2, 3, 5, 33]
  return %1
}",
        &[],
    );
    assert_eq!(applied, ["rowwise"]);
}

#[test]
fn embedding_sum_and_norm() {
    let applied = check(
        "graph @embed(%t: f32[3, 16], %ids: i64[2, 5], %p: f32[1, 5, 16], %g: f32[16], %b: f32[16]) -> (f32[2, 5, 16]) {
  %0 = gather(%t, %ids) {axis = 0} : f32[2, 5, 16]
  %1 = add(%0, %p) : f32[2, 5, 16]
  %2 = layer_norm(%1, %g, %b) {axis = 2, epsilon = 1e-12} : f32[2, 5, 16]
  return %2
}",
        &[0, 3, 4],
    );
    assert_eq!(applied, ["rowwise"]);
}

#[test]
fn attention_with_views_and_a_mask() {
    let applied = check(
        "graph @attention(%q: f32[2, 9, 24], %k: f32[2, 13, 24], %v: f32[2, 13, 24], %m: f32[2, 1, 1, 13]) -> (f32[2, 9, 24]) {
  %0 = reshape(%q) {shape = [2, 9, 3, 8]} : f32[2, 9, 3, 8]
  %1 = transpose(%0) {perm = [0, 2, 1, 3]} : f32[2, 3, 9, 8]
  %2 = reshape(%k) {shape = [2, 13, 3, 8]} : f32[2, 13, 3, 8]
  %3 = transpose(%2) {perm = [0, 2, 1, 3]} : f32[2, 3, 13, 8]
  %4 = reshape(%v) {shape = [2, 13, 3, 8]} : f32[2, 13, 3, 8]
  %5 = transpose(%4) {perm = [0, 2, 1, 3]} : f32[2, 3, 13, 8]
  %6 = attention(%1, %3, %5, %m) {scale = 0.35, causal = false, causal_offset = false, masked_rows_zero = false} : f32[2, 3, 9, 8]
  %7 = transpose(%6) {perm = [0, 2, 1, 3]} : f32[2, 9, 3, 8]
  %8 = reshape(%7) {shape = [2, 9, 24]} : f32[2, 9, 24]
  return %8
}",
        &[],
    );
    assert_eq!(applied, ["attention"]);
}

#[test]
fn causal_attention_with_grouped_queries_and_dead_rows() {
    let applied = check(
        "graph @attention(%q: f32[1, 4, 6, 8], %k: f32[1, 2, 5, 8], %v: f32[1, 2, 5, 40], %m: bool[6, 5]) -> (f32[1, 4, 6, 40]) {
  %0 = attention(%q, %k, %v, %m) {scale = 0.5, causal = true, causal_offset = true, masked_rows_zero = true} : f32[1, 4, 6, 40]
  return %0
}",
        &[],
    );
    assert_eq!(applied, ["attention"]);
}

#[test]
fn convolution_with_residual_and_relu() {
    for (stride, pad, out) in [(1, 1, 9), (2, 1, 5), (1, 0, 7)] {
        let applied = check(
            &format!(
                "graph @conv(%x: f32[2, 5, 9, 9], %w: f32[11, 5, 3, 3], %b: f32[11], %r: f32[2, 11, {out}, {out}]) -> (f32[2, 11, {out}, {out}]) {{
  %0 = conv(%x, %w, %b) {{strides = [{stride}, {stride}], pads_begin = [{pad}, {pad}], pads_end = [{pad}, {pad}], dilations = [1, 1], groups = 1}} : f32[2, 11, {out}, {out}]
  %1 = add(%0, %r) : f32[2, 11, {out}, {out}]
  %2 = relu(%1) : f32[2, 11, {out}, {out}]
  return %2
}}"
            ),
            &[1, 2],
        );
        assert_eq!(applied, ["conv_epilogue"]);
    }
}
