//! Random graphs: whatever `infer` accepts evaluates, and a graph means what its definitions mean.

use crate::arbitrary::{Random, random_graph, random_tensor};
use crate::dim::Bindings;
use crate::graph::{Graph, Value};
use crate::interp::{EvalError, Mode, run, run_all};
use crate::tensor::Tensor;

fn inputs(graph: &Graph, random: &mut Random, size: i64) -> Vec<Tensor> {
    let bindings: Bindings = graph.symbols().into_iter().map(|symbol| (symbol, size)).collect();
    let inputs = graph.inputs().iter().map(|node| {
        let ty = graph.ty(Value { node: *node, port: 0 }).substitute(&bindings);
        let shape = ty.const_shape().expect("every symbol is bound");
        random_tensor(random, ty.dtype, &shape, true)
    });
    inputs.collect()
}

/// Weights of random graphs may lack data; they get some.
fn with_data(graph: &Graph, random: &mut Random) -> Graph {
    let mut graph = graph.clone();
    let ids: Vec<_> = graph.node_ids().collect();
    for id in ids {
        let ty = graph.node(id).outputs.first().cloned();
        if let (crate::op::Op::Weight { data: data @ None, .. }, Some(ty)) = (&mut graph.node_mut(id).op, ty) {
            *data = ty.const_shape().map(|shape| random_tensor(random, ty.dtype, &shape, true));
        }
    }
    graph
}

#[test]
fn random_graphs_evaluate() {
    let mut evaluated = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let graph = with_data(&random_graph(seed, 25), &mut random);
        for size in [1, 2, 3] {
            let inputs = inputs(&graph, &mut random, size);
            for mode in [Mode::Native, Mode::F64] {
                match run(&graph, &inputs, mode) {
                    Ok(outputs) => {
                        evaluated += 1;
                        for ((_, value), output) in graph.outputs().iter().zip(&outputs) {
                            assert_eq!(output.dtype(), mode.carried(graph.ty(*value).dtype));
                        }
                        let all = run_all(&graph, &inputs, mode).map(|all| all.len());
                        assert!(all.is_ok_and(|count| count >= graph.node_count()), "seed {seed}");
                    }
                    // Weights with symbolic shapes cannot be given data here, and a symbol may occur in no input.
                    Err(error) => {
                        assert!(
                            matches!(error.root(), EvalError::UnboundWeight { .. } | EvalError::UnboundDim { .. }),
                            "seed {seed}: {error}"
                        );
                    }
                }
            }
        }
    }
    assert!(evaluated > 1000, "only {evaluated} evaluations");
}

#[test]
fn random_graphs_mean_what_their_definitions_mean() {
    let mut compared = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let graph = with_data(&random_graph(seed, 15), &mut random);
        let definition = graph.decompose_all().expect("a well-typed graph decomposes");
        let inputs = inputs(&graph, &mut random, 2);
        let (Ok(got), Ok(want)) = (run(&graph, &inputs, Mode::F64), run(&definition, &inputs, Mode::F64)) else {
            continue;
        };
        for ((name, value), (got, want)) in graph.outputs().iter().zip(got.iter().zip(&want)) {
            assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()));
            // Constants of a definition below f64 are rounded to f32. Discontinuous ops may turn a last-bit difference into another integer; floats alone are compared.
            let scale = want.to_f64().iter().filter(|v| v.is_finite()).fold(1.0f64, |acc, v| acc.max(v.abs()));
            for (g, w) in got.to_f64().iter().zip(want.to_f64()) {
                let same = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan() || (g - w).abs() <= 1e-5 * scale;
                assert!(same || !got.dtype().is_float(), "seed {seed}, '{name}' {}: {g} against {w}", graph.ty(*value));
            }
            compared += 1;
        }
    }
    assert!(compared > 200, "only {compared} outputs compared");
}
