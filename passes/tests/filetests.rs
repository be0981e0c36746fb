//! One test a file of `fixtures/passes/*.forge`: graphs, the pipeline to run on them, and what it makes of them.
//!
//! ```text
//! // passes: simplify,raise{only=gelu}
//! graph @g(..) -> (..) { .. }
//! // ----
//! graph @g(..) -> (..) { .. }
//! ```
//!
//! The expectation is exact; `FORGE_BLESS=1` rewrites it. Every rewrite is also proven: the reference interpreter runs
//! both graphs on random inputs, in f64, and bit for bit at the declared precision if the run claims to be exact.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use forge_ir::arbitrary::{Random, random_tensor};
use forge_ir::{DType, Exactness, Graph, NodeId, Op, Tensor, interp, parse_module};
use forge_passes::{Context, Manager, Pipeline, Settings};
use libtest_mimic::{Arguments, Failed, Trial};

const SEPARATOR: &str = "// ----\n";

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/passes");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder of filetests exists")
        .map(|entry| entry.expect("its entries can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "forge"))
        .collect();
    files.sort();
    let trials = files
        .into_iter()
        .map(|path| {
            let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            Trial::test(name, move || check(&path))
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn check(path: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(path)?;
    let (input, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
    let pipeline: Pipeline = input
        .lines()
        .find_map(|line| line.strip_prefix("// passes: "))
        .ok_or("the file has no line '// passes: ..'")?
        .parse()
        .map_err(|e| format!("{e}"))?;
    let file = path.display().to_string();
    let graphs = parse_module(input).map_err(|e| e.render(&file))?;
    let mut found = String::new();
    for graph in &graphs {
        let mut result = graph.clone();
        let settings = Settings { verify_each: true, ..Settings::default() };
        let report = Manager::new(Context::default())
            .with_settings(settings)
            .run(&mut result, &pipeline)
            .map_err(|e| format!("@{}: {e}", graph.name()))?;
        graph.verify().map_err(|faults| format!("the input @{} is broken: {faults}", graph.name()))?;
        prove(graph, &result, report.exactness()).map_err(|e| format!("@{}: {e}\n{result}", graph.name()))?;
        let _ = writeln!(found, "{result}");
    }
    let found = format!("{}\n", found.trim_end());
    if found == expected {
        return Ok(());
    }
    if std::env::var_os("FORGE_BLESS").is_some() {
        std::fs::write(path, format!("{}\n{SEPARATOR}{found}", input.trim_end()))?;
        return Ok(());
    }
    Err(format!("{}\nFORGE_BLESS=1 accepts this.", difference(expected, &found)).into())
}

/// Lines of both, those that differ marked.
fn difference(expected: &str, found: &str) -> String {
    let (expected, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let mut out = String::new();
    for at in 0..expected.len().max(found.len()) {
        match (expected.get(at), found.get(at)) {
            (Some(a), Some(b)) if a == b => _ = writeln!(out, "  {a}"),
            (a, b) => {
                a.iter().for_each(|a| _ = writeln!(out, "- {a}"));
                b.iter().for_each(|b| _ = writeln!(out, "+ {b}"));
            }
        }
    }
    out
}

/// Runs both graphs on the same random inputs.
fn prove(before: &Graph, after: &Graph, exactness: Exactness) -> Result<(), String> {
    for seed in 0..4u64 {
        let mut random = Random::new(seed);
        // Sizes of 2 and up, different for different symbols, so that no axis passes for another.
        let bindings: BTreeMap<String, i64> = before
            .symbols()
            .into_iter()
            .enumerate()
            .map(|(i, symbol)| (symbol, 2 + i as i64 + (seed % 2) as i64))
            .collect();
        let special = exactness == Exactness::Exact && seed == 3;
        let inputs: Vec<Tensor> =
            before.inputs().iter().map(|n| sample(&mut random, before, *n, &bindings, special)).collect();
        let (before, after) = (with_weights(before)?, with_weights(after)?);
        // Numbers in the text are rounded to their dtype, and stand for what they are roundings of.
        let rounding = before.node_ids().filter_map(|n| before.node(n).outputs[0].dtype.epsilon()).fold(0.0, f64::max);
        compare(&before, &after, &inputs, interp::Mode::F64, 40.0 * rounding.min(1e-4))?;
        if exactness == Exactness::Exact {
            compare(&before, &after, &inputs, interp::Mode::Native, 0.0)?;
        }
    }
    Ok(())
}

fn sample(random: &mut Random, graph: &Graph, node: NodeId, bindings: &BTreeMap<String, i64>, special: bool) -> Tensor {
    let ty = graph.node(node).outputs[0].substitute(bindings);
    let shape = ty.const_shape().expect("every symbol is bound");
    random_tensor(random, ty.dtype, &shape, special)
}

/// Weights of random data that depend on their names alone, so that both graphs have the same.
fn with_weights(graph: &Graph) -> Result<Graph, String> {
    let types: BTreeMap<String, (DType, Vec<usize>)> = graph
        .node_ids()
        .filter_map(|id| match graph.op(id) {
            Op::Weight { name, .. } => {
                let ty = &graph.node(id).outputs[0];
                Some((name.clone(), (ty.dtype, ty.const_shape()?)))
            }
            _ => None,
        })
        .collect();
    graph
        .bind_weights(&|name| {
            let (dtype, shape) = types.get(name)?;
            let seed = name.bytes().fold(17u64, |acc, b| acc.wrapping_mul(31).wrapping_add(u64::from(b)));
            Some(random_tensor(&mut Random::new(seed), *dtype, shape, false))
        })
        .map_err(|e| e.to_string())
}

fn compare(before: &Graph, after: &Graph, inputs: &[Tensor], mode: interp::Mode, tolerance: f64) -> Result<(), String> {
    let wanted = interp::run(before, inputs, mode).map_err(|e| format!("the input does not run: {e}"))?;
    let found = interp::run(after, inputs, mode).map_err(|e| format!("the result does not run: {e}"))?;
    for ((wanted, found), (name, _)) in wanted.iter().zip(&found).zip(before.outputs()) {
        if wanted.ty() != found.ty() {
            return Err(format!("output '{name}' is {} instead of {}", found.ty(), wanted.ty()));
        }
        for (at, (w, f)) in wanted.to_f64().into_iter().zip(found.to_f64()).enumerate() {
            let same = w.to_bits() == f.to_bits() || (w.is_nan() && f.is_nan());
            let near = tolerance > 0.0 && w.is_finite() && (w - f).abs() <= tolerance * (1.0 + w.abs());
            if !same && !near {
                return Err(format!("output '{name}'[{at}] is {f} instead of {w} ({mode:?})"));
            }
        }
    }
    Ok(())
}
