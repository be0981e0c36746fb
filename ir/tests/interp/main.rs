//! The interpreter against values worked out by hand, its own decompositions, and itself in the other mode.

mod composite;
mod contract;
mod elementwise;
mod graph;
mod index;
mod reduce;
mod view;
mod window;

use forge_ir::interp::{self, EvalError, Mode};
use forge_ir::{DType, Op, Tensor, TensorType, infer};

/// Evaluates an op with the result types that `infer` gives.
fn try_eval(op: &Op, operands: &[Tensor], mode: Mode) -> Result<Vec<Tensor>, EvalError> {
    let types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
    let results = infer(op, &types.iter().collect::<Vec<_>>())?;
    interp::eval_op(op, operands, &results, mode)
}

/// The first result; in native mode.
fn eval(op: &Op, operands: &[Tensor]) -> Tensor {
    try_eval(op, operands, Mode::Native).unwrap().remove(0)
}

/// The first result; floats carried as f64.
fn eval_f64(op: &Op, operands: &[Tensor]) -> Tensor {
    try_eval(op, operands, Mode::F64).unwrap().remove(0)
}

fn f32s(shape: &[usize], data: &[f32]) -> Tensor {
    Tensor::from_slice(shape, data)
}

fn i64s(shape: &[usize], data: &[i64]) -> Tensor {
    Tensor::from_slice(shape, data)
}

fn bools(shape: &[usize], data: &[bool]) -> Tensor {
    Tensor::from_slice(shape, data)
}

/// Equal bit for bit, except that every NaN equals every other.
#[track_caller]
fn assert_same(got: &Tensor, want: &Tensor) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()));
    if want.dtype().is_float() {
        for (i, (g, w)) in got.to_f64().iter().zip(want.to_f64()).enumerate() {
            assert!(g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(), "element {i}: got {g}, want {w}");
        }
    } else {
        assert_eq!(got.to_i64(), want.to_i64());
    }
}

/// Within `tolerance` of the largest magnitude expected, NaN where NaN is expected.
#[track_caller]
fn assert_close(got: &Tensor, want: &[f64], tolerance: f64) {
    let got = got.to_f64();
    assert_eq!(got.len(), want.len());
    let scale = want.iter().filter(|v| v.is_finite()).fold(1e-30f64, |acc, v| acc.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let fits = if w.is_finite() { (g - w).abs() <= tolerance * scale } else { g.is_nan() && w.is_nan() || g == w };
        assert!(fits, "element {i}: got {g}, want {w}");
    }
}

/// Pseudo-random values in [-1, 1), the same for the same seed (a linear congruential generator, Knuth's constants).
fn random(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let data: Vec<f64> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect();
    Tensor::from_f64(DType::F64, shape, &data)
}
