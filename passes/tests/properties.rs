//! What every pass owes to every graph: the same results, a valid graph, an end.

use std::collections::BTreeMap;

use forge_ir::arbitrary::{Random, random_graph, random_tensor};
use forge_ir::{Exactness, Graph, Op, OpClass, Tensor, interp};
use forge_passes::{
    Context, DEFAULT_PIPELINE, Manager, Observer, PASSES, PassRun, Pipeline, PrintAfter, Report, Settings,
};

fn run(graph: &Graph, pipeline: &str) -> (Graph, Report) {
    let mut result = graph.clone();
    let settings = Settings { verify_each: true, ..Settings::default() };
    let report = Manager::new(Context::default())
        .with_settings(settings)
        .run(&mut result, &pipeline.parse().unwrap())
        .unwrap_or_else(|e| panic!("{pipeline}: {e}\n{graph}"));
    (result, report)
}

fn inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let mut random = Random::new(seed);
    let bindings = BTreeMap::from([("N".to_owned(), 2 + (seed % 2) as i64), ("S".to_owned(), 4)]);
    let types = graph.inputs().iter().map(|n| graph.node(*n).outputs[0].substitute(&bindings));
    types.map(|ty| random_tensor(&mut random, ty.dtype, &ty.const_shape().unwrap(), seed.is_multiple_of(3))).collect()
}

fn same(before: &Graph, after: &Graph, inputs: &[Tensor], mode: interp::Mode, tolerance: f64) -> Result<(), String> {
    let wanted = interp::run(before, inputs, mode).map_err(|e| e.to_string())?;
    let found = interp::run(after, inputs, mode).map_err(|e| e.to_string())?;
    for (w, f) in wanted.iter().zip(&found) {
        if w.ty() != f.ty() {
            return Err(format!("{} became {}", w.ty(), f.ty()));
        }
        for (a, b) in w.to_f64().into_iter().zip(f.to_f64()) {
            let equal = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let near = tolerance > 0.0 && a.is_finite() && (a - b).abs() <= tolerance * (1.0 + a.abs());
            if !equal && !near {
                return Err(format!("{a} became {b}"));
            }
        }
    }
    Ok(())
}

/// Passes that claim to be exact, bit for bit, on graphs with NaN, infinities and -0.0 in them.
#[test]
fn exact_runs_keep_every_bit() {
    let mut rewrites = 0;
    for seed in 0..400 {
        let graph = random_graph(seed, 18);
        for pass in PASSES {
            let (result, report) = run(&graph, pass.name);
            if report.exactness() == Exactness::Exact && report.rewrites() > 0 {
                rewrites += report.rewrites();
                let inputs = inputs(&graph, seed);
                same(&graph, &result, &inputs, interp::Mode::Native, 0.0)
                    .unwrap_or_else(|e| panic!("{} of seed {seed}: {e}\n{graph}\n{result}", pass.name));
            }
        }
    }
    assert!(rewrites > 1000, "{rewrites}");
}

/// The definitions of composites become the composites again, and mean the same.
#[test]
fn definitions_are_raised() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..300 {
        let graph = random_graph(seed, 14);
        let defined = graph.decompose_all().unwrap();
        let (result, _) = run(&defined, "simplify,raise,simplify,raise,dce");
        let composites = |g: &Graph| g.node_ids().filter(|n| g.op(*n).class() == OpClass::Composite).count();
        before += composites(&graph);
        after += composites(&result);
        let inputs: Vec<Tensor> = inputs(&graph, 3 * seed + 1);
        // Numbers of half types are rounded in the definitions, and comparisons may then turn: floats that come of
        // floats alone are compared, in the common dtype.
        let plain = graph.node_ids().all(|n| {
            let smooth =
                matches!(graph.op(n).class(), OpClass::Leaf | OpClass::Composite | OpClass::View | OpClass::Fused)
                    || matches!(graph.op(n), Op::MatMul { .. });
            smooth && graph.node(n).outputs.iter().all(|t| t.dtype.size() >= 4)
        });
        if plain {
            same(&graph, &result, &inputs, interp::Mode::F64, 1e-4)
                .unwrap_or_else(|e| panic!("{e}\n{graph}\n{result}"));
        }
        same(&defined, &result, &inputs, interp::Mode::F64, 2e-2)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{defined}\n{result}"));
    }
    // Batch norms, interleaved rotary and attention with shared heads or a mask of its own are not raised.
    assert!(after * 10 > before * 6, "{after} of {before}");
}

#[test]
fn the_default_pipeline_ends_and_repeats_nothing() {
    for seed in 0..200 {
        let graph = random_graph(seed, 24);
        let (once, _) = run(&graph, DEFAULT_PIPELINE);
        let (twice, report) = run(&once, DEFAULT_PIPELINE);
        assert!(once == twice, "{} more rewrites of seed {seed}\n{once}\n{twice}", report.rewrites());
    }
}

fn example() -> Graph {
    forge_ir::parse(
        "graph @g(%x: f32[N]) -> (f32[N]) {
           %0 = neg(%x)
           %1 = neg(%0)
           %2 = sigmoid(%1)
           %3 = mul(%1, %2)
           %4 = neg(%3)
           %5 = neg(%4)
           return %5
         }",
    )
    .unwrap()
}

#[derive(Default)]
struct Recorder {
    patches: Vec<String>,
    passes: Vec<(String, usize)>,
}

impl Observer for Recorder {
    fn after_patch(&mut self, pass: &'static str, patch: &forge_ir::Patch, _: &Graph) {
        self.patches.push(format!("{pass}: {}", patch.why));
    }
    fn after_pass(&mut self, run: &PassRun, _: &Graph) {
        self.passes.push((run.step.clone(), run.applied));
    }
}

#[test]
fn observers_see_every_patch_and_pass() {
    let mut recorder = Recorder::default();
    let mut printed = PrintAfter { passes: vec!["raise".into()], out: Vec::new() };
    let mut graph = example();
    let report = Manager::new(Context::default())
        .with_observer(&mut recorder)
        .with_observer(&mut printed)
        .run(&mut graph, &"simplify,raise,dce".parse().unwrap())
        .unwrap();
    assert_eq!(recorder.patches, ["simplify: neg of neg", "simplify: neg of neg", "raise: silu"]);
    assert_eq!(recorder.passes, [("simplify".into(), 2), ("raise".into(), 1), ("dce".into(), 0)]);
    assert_eq!(report.exactness(), Exactness::Rounding);
    assert_eq!((report.passes[0].ops_before, report.passes[2].ops_after), (6, 1));
    let printed = String::from_utf8(printed.out).unwrap();
    assert!(printed.starts_with("// after raise: 1 patches\ngraph @g("), "{printed}");
    assert!(forge_ir::parse(&printed).is_ok());
    assert_eq!(report.to_string().lines().count(), 4);
}

#[test]
fn limits_stop_a_run() {
    let stopped = |settings: Settings| {
        let mut graph = example();
        let pipeline: Pipeline = "simplify,raise,dce".parse().unwrap();
        let report = Manager::new(Context::default()).with_settings(settings).run(&mut graph, &pipeline).unwrap();
        (report.rewrites(), report.passes.len(), report.stopped)
    };
    assert_eq!(stopped(Settings::default()), (3, 3, false));
    assert_eq!(stopped(Settings { max_rewrites: Some(1), ..Settings::default() }), (1, 1, true));
    assert_eq!(stopped(Settings { max_rewrites: Some(0), ..Settings::default() }), (0, 1, true));
    assert_eq!(stopped(Settings { stop_after: Some("raise".into()), ..Settings::default() }), (3, 2, true));
}

#[test]
fn bad_options_are_errors() {
    for (pipeline, message) in [
        ("dce{max=many}", "in pass 'dce': option 'max' takes a number, not 'many'"),
        ("raise{only=gelo}", "option 'only' takes softmax"),
    ] {
        let mut graph = example();
        let error = Manager::new(Context::default()).run(&mut graph, &pipeline.parse().unwrap()).unwrap_err();
        let error = match &error {
            forge_passes::PassError::In { .. } => error.to_string(),
            other => panic!("{other}"),
        };
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn the_listing_names_every_pass_and_rule() {
    insta::assert_snapshot!(forge_passes::registry::listing());
}

/// Exporters keep masks and rotary tables among the weights; text has no data for those, so they are bound here.
#[test]
fn tables_among_the_weights_are_known() {
    let graph = forge_ir::parse(
        "graph @g(%q: f32[1, 2, 2, 4], %k: f32[1, 2, 2, 4], %v: f32[1, 2, 2, 4]) -> (f32[1, 2, 2, 4]) {
           %cos = weight @\"cos\" : f32[2, 4]
           %sin = weight @\"sin\" : f32[2, 4]
           %mask = weight @\"mask\" : f32[1, 1, 2, 2]
           %zero = constant 0.0 : f32[]
           %a = slice(%q) {starts = [0, 0, 0, 0], steps = [1, 1, 1, 1], sizes = [1, 2, 2, 2]}
           %b = slice(%q) {starts = [0, 0, 0, 2], steps = [1, 1, 1, 1], sizes = [1, 2, 2, 2]}
           %0 = neg(%b)
           %1 = concat(%0, %a) {axis = 3}
           %2 = mul(%1, %sin)
           %3 = mul(%q, %cos)
           %4 = add(%3, %2)
           %5 = matmul(%4, %k) {trans_b}
           %6 = add(%5, %mask)
           %7 = softmax(%6) {axis = 3}
           %8 = isnan(%7)
           %9 = select(%8, %zero, %7)
           %10 = matmul(%9, %v)
           return %10
         }",
    )
    .unwrap();
    let table = |name: &str, mask: [f32; 4]| match name {
        "mask" => Some(Tensor::from_slice(&[1, 1, 2, 2], &mask)),
        "cos" => Some(Tensor::from_slice(&[2, 4], &[1.0f32, 1.0, 1.0, 1.0, 0.5, 0.7, 0.5, 0.7])),
        _ => Some(Tensor::from_slice(&[2, 4], &[0.0f32, 0.0, 0.0, 0.0, 0.8, 0.6, 0.8, 0.6])),
    };
    let infinity = f32::INFINITY;
    for (mask, wanted) in [
        ([0.0, f32::MIN, 0.0, 0.0], "attention(%0, %k, %v) {scale = 1.0, causal}"),
        ([0.0, -infinity, 0.0, 0.0], "attention(%0, %k, %v) {scale = 1.0, causal, masked_rows_zero}"),
        ([0.0, -1.0, 0.5, 0.0], "attention(%0, %k, %v, %mask) {scale = 1.0}"),
        ([-infinity, -infinity, 0.0, 0.0], "attention(%0, %k, %v, %\"mask == 0\") {scale = 1.0, masked_rows_zero}"),
        // Not a bool, and a row that may be all -inf.
        ([-infinity, -infinity, 1.0, 0.0], "isnan("),
    ] {
        let bound = graph.bind_weights(&|name| table(name, mask)).unwrap();
        let (result, _) = run(&bound, "raise,simplify,cse,dce");
        let text = result.to_text();
        assert!(text.contains("rotary(%q, %\"cos[..half]\", %\"sin[..half]\")"), "{text}");
        assert!(text.contains(wanted), "{wanted}\n{text}");
        same(&bound, &result, &inputs(&bound, 1), interp::Mode::F64, 1e-6).unwrap();
    }
}
