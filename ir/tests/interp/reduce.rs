//! Reductions, arg reductions and running sums.

use forge_ir::interp::Mode;
use forge_ir::{ArgOp, DType, Op, ReduceOp, Tensor};

use crate::{assert_close, assert_same, eval, eval_f64, f32s, i64s, random, try_eval};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn reduce(op: ReduceOp, axes: &[usize], keep_dims: bool) -> Op {
    Op::Reduce { op, axes: axes.to_vec(), keep_dims }
}

#[test]
fn every_axis_set_of_a_small_tensor() {
    let x = i64s(&[2, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let sum = |axes: &[usize]| eval(&reduce(ReduceOp::Sum, axes, false), std::slice::from_ref(&x));
    assert_same(&sum(&[0]), &i64s(&[2, 3], &[8, 10, 12, 14, 16, 18]));
    assert_same(&sum(&[1]), &i64s(&[2, 3], &[5, 7, 9, 17, 19, 21]));
    assert_same(&sum(&[2]), &i64s(&[2, 2], &[6, 15, 24, 33]));
    assert_same(&sum(&[0, 2]), &i64s(&[2], &[30, 48]));
    assert_same(&sum(&[0, 1, 2]), &i64s(&[], &[78]));
    assert_same(&sum(&[]), &x);
    let kept = eval(&reduce(ReduceOp::Max, &[1], true), std::slice::from_ref(&x));
    assert_same(&kept, &i64s(&[2, 1, 3], &[4, 5, 6, 10, 11, 12]));
    let product = eval(&reduce(ReduceOp::Prod, &[0, 1], false), &[x]);
    assert_same(&product, &i64s(&[3], &[4 * 7 * 10, 2 * 5 * 8 * 11, 3 * 6 * 9 * 12]));
}

#[test]
fn empty_reductions() {
    let x = f32s(&[2, 0], &[]);
    for (op, want) in [
        (ReduceOp::Sum, 0.0),
        (ReduceOp::Prod, 1.0),
        (ReduceOp::Mean, NAN),
        (ReduceOp::Max, -INF),
        (ReduceOp::Min, INF),
    ] {
        assert_same(&eval(&reduce(op, &[1], false), std::slice::from_ref(&x)), &f32s(&[2], &[want; 2]));
        assert_same(&eval(&reduce(op, &[0], false), std::slice::from_ref(&x)), &f32s(&[0], &[]));
    }
    let integers = i64s(&[0], &[]);
    assert_same(&eval(&reduce(ReduceOp::Max, &[0], false), std::slice::from_ref(&integers)), &i64s(&[], &[i64::MIN]));
    assert_same(&eval(&reduce(ReduceOp::Min, &[0], false), &[integers]), &i64s(&[], &[i64::MAX]));
    let bytes = Tensor::from_slice::<u8>(&[0], &[]);
    assert_same(&eval(&reduce(ReduceOp::Max, &[0], false), &[bytes]), &Tensor::scalar(0u8));
}

#[test]
fn extremes_propagate_nan() {
    let x = f32s(&[2, 3], &[1.0, NAN, 2.0, 3.0, -INF, 4.0]);
    let max = eval(&reduce(ReduceOp::Max, &[1], false), std::slice::from_ref(&x));
    assert_same(&max, &f32s(&[2], &[NAN, 4.0]));
    assert_same(&eval(&reduce(ReduceOp::Min, &[1], false), &[x]), &f32s(&[2], &[NAN, -INF]));
}

#[test]
fn half_sums_overflow_only_at_the_end() {
    // True sum 70091 (tinygrad 11705): infinite in f16, and finite where floats are carried as f64.
    let mut values = vec![1000.0; 70];
    values.push(91.0);
    let x = Tensor::from_f64(DType::F16, &[71], &values);
    let sum = reduce(ReduceOp::Sum, &[0], false);
    assert_same(&eval(&sum, std::slice::from_ref(&x)), &Tensor::from_f64(DType::F16, &[], &[f64::INFINITY]));
    assert_same(&eval_f64(&sum, std::slice::from_ref(&x)), &Tensor::scalar(70091f64));
    // The mean passes through the same sum, in f32: it is finite.
    let mean = eval(&reduce(ReduceOp::Mean, &[0], false), &[x]);
    assert_same(&mean, &Tensor::from_f64(DType::F16, &[], &[70091.0 / 71.0]));
}

#[test]
fn long_sums_stay_accurate_in_f32() {
    let count = 1_000_003;
    let x = Tensor::from_f64(DType::F32, &[count], &vec![0.1; count]);
    let sum = eval(&reduce(ReduceOp::Sum, &[0], false), &[x]).to_f64()[0];
    let want = count as f64 * f64::from(0.1f32);
    assert!((sum / want - 1.0).abs() < 1e-6, "{sum} against {want}");
}

#[test]
fn integer_sums_wrap() {
    let x = Tensor::from_slice(&[3], &[i32::MAX, 1, 1]);
    assert_same(&eval(&reduce(ReduceOp::Sum, &[0], false), &[x]), &Tensor::scalar(i32::MIN + 1));
}

fn arg(op: ArgOp, axis: usize, select_last: bool) -> Op {
    Op::ArgReduce { op, axis, keep_dims: false, select_last }
}

#[test]
fn arg_reductions_choose_ends_and_nan() {
    let x = f32s(&[2, 5], &[1.0, 3.0, 0.0, 3.0, 0.0, 1.0, NAN, 5.0, NAN, 0.0]);
    let at = |op, axis, last| eval(&arg(op, axis, last), std::slice::from_ref(&x));
    assert_same(&at(ArgOp::Max, 1, false), &i64s(&[2], &[1, 1]));
    assert_same(&at(ArgOp::Max, 1, true), &i64s(&[2], &[3, 3]));
    assert_same(&at(ArgOp::Min, 1, false), &i64s(&[2], &[2, 1]));
    assert_same(&at(ArgOp::Min, 1, true), &i64s(&[2], &[4, 3]));
    assert_same(&at(ArgOp::Max, 0, false), &i64s(&[5], &[0, 1, 1, 1, 0]));
    assert_same(&at(ArgOp::Max, 0, true), &i64s(&[5], &[1, 1, 1, 1, 1]));
    assert!(try_eval(&arg(ArgOp::Max, 0, false), &[f32s(&[0, 2], &[])], Mode::Native).is_err());
    let signed = Tensor::from_slice(&[3], &[200u8, 255, 3]);
    assert_same(&eval(&arg(ArgOp::Max, 0, false), &[signed]), &i64s(&[], &[1]));
}

#[test]
fn running_sums() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let scan = |axis, exclusive, reverse| eval(&Op::CumSum { axis, exclusive, reverse }, std::slice::from_ref(&x));
    assert_same(&scan(1, false, false), &f32s(&[2, 3], &[1.0, 3.0, 6.0, 4.0, 9.0, 15.0]));
    assert_same(&scan(1, true, false), &f32s(&[2, 3], &[0.0, 1.0, 3.0, 0.0, 4.0, 9.0]));
    assert_same(&scan(1, false, true), &f32s(&[2, 3], &[6.0, 5.0, 3.0, 15.0, 11.0, 6.0]));
    assert_same(&scan(1, true, true), &f32s(&[2, 3], &[5.0, 3.0, 0.0, 11.0, 6.0, 0.0]));
    assert_same(&scan(0, false, false), &f32s(&[2, 3], &[1.0, 2.0, 3.0, 5.0, 7.0, 9.0]));
    let empty = f32s(&[0, 3], &[]);
    assert_same(&eval(&Op::CumSum { axis: 0, exclusive: false, reverse: false }, std::slice::from_ref(&empty)), &empty);
}

#[test]
fn modes_agree_up_to_rounding() {
    let x = random(&[17, 300], 3);
    let narrow = Tensor::from_f64(DType::F32, &[17, 300], &x.to_f64());
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min] {
        for axes in [[0], [1]] {
            let want = eval_f64(&reduce(op, &axes, false), std::slice::from_ref(&narrow)).to_f64();
            assert_close(&eval(&reduce(op, &axes, false), std::slice::from_ref(&narrow)), &want, 1e-6);
        }
    }
}
