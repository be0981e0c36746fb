//! Views, pads and concatenation.

use forge_ir::interp::{EvalError, Mode};
use forge_ir::{DType, Dim, Op, PadMode, Tensor};

use crate::{assert_same, bools, eval, f32s, i64s, try_eval};

fn dims(values: &[i64]) -> Vec<Dim> {
    values.iter().map(|v| Dim::from(*v)).collect()
}

fn slice(starts: &[i64], steps: &[i64], sizes: &[i64]) -> Op {
    Op::Slice { starts: dims(starts), steps: steps.to_vec(), sizes: dims(sizes) }
}

#[test]
fn slices_go_backwards() {
    let x = i64s(&[10], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // 9:0:-1 stops before 0.
    assert_same(&eval(&slice(&[9], &[-1], &[9]), std::slice::from_ref(&x)), &i64s(&[9], &[9, 8, 7, 6, 5, 4, 3, 2, 1]));
    assert_same(&eval(&slice(&[8], &[-3], &[3]), std::slice::from_ref(&x)), &i64s(&[3], &[8, 5, 2]));
    assert_same(&eval(&slice(&[0], &[1], &[0]), std::slice::from_ref(&x)), &i64s(&[0], &[]));
    // A start that matters to no element.
    assert_same(&eval(&slice(&[10], &[1], &[0]), &[x]), &i64s(&[0], &[]));
    let x = i64s(&[2, 3], &[0, 1, 2, 3, 4, 5]);
    assert_same(&eval(&slice(&[1, 2], &[-1, -2], &[2, 2]), std::slice::from_ref(&x)), &i64s(&[2, 2], &[5, 3, 2, 0]));
    assert_same(&eval(&slice(&[1, 0], &[i64::MAX, 1], &[1, 2]), &[x]), &i64s(&[1, 2], &[3, 4]));
}

#[test]
fn transposes_and_broadcasts() {
    let x = i64s(&[2, 3], &[0, 1, 2, 3, 4, 5]);
    assert_same(
        &eval(&Op::Transpose { perm: vec![1, 0] }, std::slice::from_ref(&x)),
        &i64s(&[3, 2], &[0, 3, 1, 4, 2, 5]),
    );
    let cube = i64s(&[2, 1, 3], &[0, 1, 2, 3, 4, 5]);
    let turned = eval(&Op::Transpose { perm: vec![2, 0, 1] }, std::slice::from_ref(&cube));
    assert_same(&turned, &i64s(&[3, 2, 1], &[0, 3, 1, 4, 2, 5]));
    let wide = eval(&Op::Broadcast { shape: dims(&[2, 2, 3]) }, &[cube]);
    assert_same(&wide, &i64s(&[2, 2, 3], &[0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]));
    assert_same(&eval(&Op::Broadcast { shape: dims(&[0, 3]) }, &[i64s(&[1, 3], &[1, 2, 3])]), &i64s(&[0, 3], &[]));
    assert_same(&eval(&Op::Broadcast { shape: dims(&[2]) }, &[bools(&[], &[true])]), &bools(&[2], &[true, true]));
    assert_same(&eval(&Op::Reshape { shape: dims(&[3, 2]) }, &[x]), &i64s(&[3, 2], &[0, 1, 2, 3, 4, 5]));
}

fn pad(mode: PadMode, before: &[i64], after: &[i64]) -> Op {
    Op::Pad { mode, before: dims(before), after: dims(after) }
}

#[test]
fn pads() {
    let x = f32s(&[1, 3], &[1.0, 2.0, 3.0]);
    let constant = eval(&pad(PadMode::Constant, &[1, 1], &[0, 2]), &[x.clone(), Tensor::scalar(9f32)]);
    assert_same(&constant, &f32s(&[2, 6], &[9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 9.0, 9.0]));
    let zeros = eval(&pad(PadMode::Constant, &[0, 1], &[0, 0]), std::slice::from_ref(&x));
    assert_same(&zeros, &f32s(&[1, 4], &[0.0, 1.0, 2.0, 3.0]));
    let reflected = eval(&pad(PadMode::Reflect, &[0, 2], &[0, 2]), std::slice::from_ref(&x));
    assert_same(&reflected, &f32s(&[1, 7], &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]));
    let edged = eval(&pad(PadMode::Edge, &[1, 2], &[0, 1]), &[x]);
    assert_same(&edged, &f32s(&[2, 6], &[1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0]));
    let from_nothing = eval(&pad(PadMode::Constant, &[1], &[1]), &[f32s(&[0], &[]), Tensor::scalar(7f32)]);
    assert_same(&from_nothing, &f32s(&[2], &[7.0, 7.0]));
    assert_same(&eval(&pad(PadMode::Edge, &[], &[]), &[Tensor::scalar(5f32)]), &Tensor::scalar(5f32));
    // A pad value in f16 reaches an f64 evaluation widened.
    let half = Tensor::from_f64(DType::F16, &[1], &[1.0]);
    let wide =
        try_eval(&pad(PadMode::Constant, &[1], &[0]), &[half, Tensor::from_f64(DType::F16, &[], &[0.5])], Mode::F64);
    assert_same(&wide.unwrap()[0], &Tensor::from_slice(&[2], &[0.5f64, 1.0]));
}

#[test]
fn concatenations() {
    let (a, b) = (i64s(&[2, 1], &[1, 2]), i64s(&[2, 2], &[3, 4, 5, 6]));
    let empty = i64s(&[2, 0], &[]);
    assert_same(&eval(&Op::Concat { axis: 1 }, &[a, empty, b]), &i64s(&[2, 3], &[1, 3, 4, 2, 5, 6]));
    assert_same(&eval(&Op::Concat { axis: 0 }, &[i64s(&[1], &[1]), i64s(&[2], &[2, 3])]), &i64s(&[3], &[1, 2, 3]));
}

#[test]
fn leaves() {
    assert_same(&eval(&Op::Iota { len: Dim::from(3i64), dtype: DType::F32 }, &[]), &f32s(&[3], &[0.0, 1.0, 2.0]));
    assert_same(&eval(&Op::Iota { len: Dim::from(0i64), dtype: DType::I64 }, &[]), &i64s(&[0], &[]));
    assert_same(&eval(&Op::DimValue { dim: Dim::from(7i64) }, &[]), &i64s(&[], &[7]));
    let open = try_eval(&Op::DimValue { dim: Dim::symbol("N") }, &[], Mode::Native);
    assert_eq!(open.unwrap_err(), EvalError::UnboundDim { dim: Dim::symbol("N") });
}
