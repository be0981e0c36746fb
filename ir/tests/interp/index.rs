//! Gathers, scatters and top-k.

use forge_ir::interp::{EvalError, Mode};
use forge_ir::{Dim, Op, ScatterReduce, Tensor};

use crate::{assert_same, eval, f32s, i64s, try_eval};

#[test]
fn negative_indices_count_from_the_end() {
    let shape = i64s(&[4], &[1, 3, 224, 225]);
    assert_same(&eval(&Op::Gather { axis: 0 }, &[shape.clone(), i64s(&[1], &[-1])]), &i64s(&[1], &[225]));
    assert_same(&eval(&Op::Gather { axis: 0 }, &[shape.clone(), i64s(&[], &[-4])]), &i64s(&[], &[1]));
    for index in [4, -5, i64::MIN, i64::MAX] {
        let error = try_eval(&Op::Gather { axis: 0 }, &[shape.clone(), i64s(&[], &[index])], Mode::Native).unwrap_err();
        assert_eq!(error, EvalError::IndexOutOfRange { op: "gather", index, axis: 0, size: 4 });
    }
    let narrow = Tensor::from_slice(&[2], &[-1i32, 0]);
    assert_same(&eval(&Op::Gather { axis: 0 }, &[shape, narrow]), &i64s(&[2], &[225, 1]));
}

#[test]
fn gathers_along_every_axis() {
    let x = i64s(&[2, 3], &[0, 1, 2, 3, 4, 5]);
    let at = i64s(&[2, 2], &[0, 1, 1, 0]);
    let rows = eval(&Op::Gather { axis: 0 }, &[x.clone(), at.clone()]);
    assert_same(&rows, &i64s(&[2, 2, 3], &[0, 1, 2, 3, 4, 5, 3, 4, 5, 0, 1, 2]));
    let columns = eval(&Op::Gather { axis: 1 }, &[x, at]);
    assert_same(&columns, &i64s(&[2, 2, 2], &[0, 1, 1, 0, 3, 4, 4, 3]));
    // A zero-sized axis beside the gathered one.
    let empty = f32s(&[1, 5, 0], &[]);
    assert_same(&eval(&Op::Gather { axis: 1 }, &[empty.clone(), i64s(&[], &[0])]), &f32s(&[1, 0], &[]));
    assert_same(&eval(&Op::Gather { axis: 2 }, &[empty.clone(), i64s(&[0], &[])]), &f32s(&[1, 5, 0], &[]));
    assert!(try_eval(&Op::Gather { axis: 2 }, &[empty, i64s(&[], &[0])], Mode::Native).is_err());
}

#[test]
fn gather_elements_and_nd() {
    let x = i64s(&[2, 3], &[0, 1, 2, 3, 4, 5]);
    let picked = eval(&Op::GatherElements { axis: 1 }, &[x.clone(), i64s(&[2, 2], &[2, 0, -1, 1])]);
    assert_same(&picked, &i64s(&[2, 2], &[2, 0, 5, 4]));
    // Fewer rows of indices than of data.
    assert_same(&eval(&Op::GatherElements { axis: 1 }, &[x.clone(), i64s(&[1, 1], &[1])]), &i64s(&[1, 1], &[1]));
    assert_same(
        &eval(&Op::GatherElements { axis: 0 }, &[x.clone(), i64s(&[1, 3], &[1, 0, -1])]),
        &i64s(&[1, 3], &[3, 1, 5]),
    );
    let elements = eval(&Op::GatherNd { batch_dims: 0 }, &[x.clone(), i64s(&[2, 2], &[0, -1, 1, 0])]);
    assert_same(&elements, &i64s(&[2], &[2, 3]));
    let rows = eval(&Op::GatherNd { batch_dims: 0 }, &[x.clone(), i64s(&[1, 1], &[-1])]);
    assert_same(&rows, &i64s(&[1, 3], &[3, 4, 5]));
    let batched = eval(&Op::GatherNd { batch_dims: 1 }, &[x.clone(), i64s(&[2, 1], &[2, 0])]);
    assert_same(&batched, &i64s(&[2], &[2, 3]));
    let error = try_eval(&Op::GatherNd { batch_dims: 0 }, &[x, i64s(&[1, 2], &[0, 3])], Mode::Native).unwrap_err();
    assert_eq!(error, EvalError::IndexOutOfRange { op: "gather_nd", index: 3, axis: 1, size: 3 });
}

#[test]
fn scatters_apply_updates_in_order() {
    let x = f32s(&[4], &[1.0, 2.0, 3.0, 4.0]);
    let (at, updates) = (i64s(&[3], &[1, -1, 1]), f32s(&[3], &[10.0, 20.0, 30.0]));
    let scatter = |reduce| eval(&Op::ScatterElements { axis: 0, reduce }, &[x.clone(), at.clone(), updates.clone()]);
    assert_same(&scatter(ScatterReduce::None), &f32s(&[4], &[1.0, 30.0, 3.0, 20.0]));
    assert_same(&scatter(ScatterReduce::Add), &f32s(&[4], &[1.0, 42.0, 3.0, 24.0]));
    assert_same(&scatter(ScatterReduce::Mul), &f32s(&[4], &[1.0, 600.0, 3.0, 80.0]));
    assert_same(&scatter(ScatterReduce::Max), &f32s(&[4], &[1.0, 30.0, 3.0, 20.0]));
    assert_same(&scatter(ScatterReduce::Min), &f32s(&[4], &[1.0, 2.0, 3.0, 4.0]));
    let nan = eval(
        &Op::ScatterElements { axis: 0, reduce: ScatterReduce::Max },
        &[x, i64s(&[1], &[0]), f32s(&[1], &[f32::NAN])],
    );
    assert_same(&nan, &f32s(&[4], &[f32::NAN, 2.0, 3.0, 4.0]));
}

#[test]
fn scatter_nd_writes_slices() {
    let x = i64s(&[3, 2], &[0; 6]);
    let updates = i64s(&[2, 2], &[1, 2, 3, 4]);
    let rows =
        eval(&Op::ScatterNd { reduce: ScatterReduce::None }, &[x.clone(), i64s(&[2, 1], &[2, 0]), updates.clone()]);
    assert_same(&rows, &i64s(&[3, 2], &[3, 4, 0, 0, 1, 2]));
    let twice = eval(&Op::ScatterNd { reduce: ScatterReduce::Add }, &[x.clone(), i64s(&[2, 1], &[1, -2]), updates]);
    assert_same(&twice, &i64s(&[3, 2], &[0, 0, 4, 6, 0, 0]));
    let one =
        eval(&Op::ScatterNd { reduce: ScatterReduce::Min }, &[x.clone(), i64s(&[1, 2], &[0, 1]), i64s(&[1], &[-3])]);
    assert_same(&one, &i64s(&[3, 2], &[0, -3, 0, 0, 0, 0]));
    let nothing =
        eval(&Op::ScatterNd { reduce: ScatterReduce::None }, &[x.clone(), i64s(&[0, 2], &[]), i64s(&[0], &[])]);
    assert_same(&nothing, &x);
}

#[test]
fn top_k_orders_ties_and_nan() {
    let x = f32s(&[2, 4], &[1.0, 3.0, 3.0, 2.0, f32::NAN, -1.0, f32::INFINITY, f32::NAN]);
    let top = |k: i64, largest| {
        try_eval(&Op::TopK { axis: 1, k: Dim::from(k), largest }, std::slice::from_ref(&x), Mode::Native).unwrap()
    };
    let largest = top(3, true);
    assert_same(&largest[0], &f32s(&[2, 3], &[3.0, 3.0, 2.0, f32::NAN, f32::NAN, f32::INFINITY]));
    assert_same(&largest[1], &i64s(&[2, 3], &[1, 2, 3, 0, 3, 2]));
    let smallest = top(3, false);
    assert_same(&smallest[0], &f32s(&[2, 3], &[1.0, 2.0, 3.0, -1.0, f32::INFINITY, f32::NAN]));
    assert_same(&smallest[1], &i64s(&[2, 3], &[0, 3, 1, 1, 2, 0]));
    assert_same(&top(0, true)[1], &i64s(&[2, 0], &[]));
    let outer = try_eval(
        &Op::TopK { axis: 0, k: Dim::from(1i64), largest: true },
        &[i64s(&[2, 2], &[1, 4, 3, 2])],
        Mode::Native,
    );
    assert_same(&outer.as_ref().unwrap()[0], &i64s(&[1, 2], &[3, 4]));
    assert_same(&outer.unwrap()[1], &i64s(&[1, 2], &[1, 0]));
}
