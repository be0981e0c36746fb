//! Scalar semantics: NaN, signed zeros, integer division, casts, rounding to half types.

use forge_ir::interp::Mode;
use forge_ir::{BinaryOp, CompareOp, DType, GeluApproximate, Op, Tensor, UnaryOp};

use crate::{assert_close, assert_same, bools, eval, eval_f64, f32s, i64s, random, try_eval};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn relu_keeps_nan() {
    assert_same(&eval(&Op::Unary(UnaryOp::Relu), &[f32s(&[3], &[NAN, -1.0, 2.0])]), &f32s(&[3], &[NAN, 0.0, 2.0]));
    assert_same(&eval(&Op::Unary(UnaryOp::Relu), &[i64s(&[2], &[-5, 5])]), &i64s(&[2], &[0, 5]));
}

#[test]
fn clip_by_min_and_max_keeps_nan() {
    // One NaN row, bounds per column.
    let x = f32s(&[2, 2], &[NAN, NAN, -9.0, 9.0]);
    let low = eval(&Op::Binary(BinaryOp::Max), &[x, f32s(&[2], &[-1.0, -2.0])]);
    let clipped = eval(&Op::Binary(BinaryOp::Min), &[low, f32s(&[2], &[1.0, 2.0])]);
    assert_same(&clipped, &f32s(&[2, 2], &[NAN, NAN, -1.0, 2.0]));
}

#[test]
fn min_and_max_order_zeros_and_keep_nan_on_either_side() {
    let (a, b) = (f32s(&[4], &[NAN, 1.0, 0.0, -0.0]), f32s(&[4], &[1.0, NAN, -0.0, 0.0]));
    let max = eval(&Op::Binary(BinaryOp::Max), &[a.clone(), b.clone()]);
    assert_same(&max, &f32s(&[4], &[NAN, NAN, 0.0, 0.0]));
    assert_same(&eval(&Op::Binary(BinaryOp::Min), &[a, b]), &f32s(&[4], &[NAN, NAN, -0.0, -0.0]));
}

#[test]
fn integer_division_truncates() {
    let (a, b) = (i64s(&[4], &[8, -8, 7, -7]), i64s(&[4], &[-3, 3, -2, 2]));
    let pair = [a, b];
    assert_same(&eval(&Op::Binary(BinaryOp::Div), &pair), &i64s(&[4], &[-2, -2, -3, -3]));
    assert_same(&eval(&Op::Binary(BinaryOp::Rem), &pair), &i64s(&[4], &[2, -2, 1, -1]));
    assert_same(&eval(&Op::Binary(BinaryOp::Mod), &pair), &i64s(&[4], &[-1, 1, -1, 1]));
}

#[test]
fn floor_division_by_mod_gives_floor_and_ceil_idioms() {
    // floor(a / b) = (a - a mod b) / b, exact in integers; ceil(a / b) = -floor(-a / b).
    let floor_divide = |a: Tensor, b: Tensor| {
        let modulus = eval(&Op::Binary(BinaryOp::Mod), &[a.clone(), b.clone()]);
        eval(&Op::Binary(BinaryOp::Div), &[eval(&Op::Binary(BinaryOp::Sub), &[a, modulus]), b])
    };
    let floored = floor_divide(i64s(&[4], &[8, -8, 7, -7]), i64s(&[4], &[-3, 3, -2, 2]));
    assert_same(&floored, &i64s(&[4], &[-3, -3, -4, -4]));
    let negated = eval(&Op::Unary(UnaryOp::Neg), &[i64s(&[3], &[3, 7, 10])]);
    let ceiled = eval(&Op::Unary(UnaryOp::Neg), &[floor_divide(negated, i64s(&[], &[3]))]);
    assert_same(&ceiled, &i64s(&[3], &[1, 3, 4]));
}

#[test]
fn integer_division_by_zero_and_overflow() {
    let (a, b) = (i64s(&[3], &[5, i64::MIN, 0]), i64s(&[3], &[0, -1, 0]));
    assert_same(&eval(&Op::Binary(BinaryOp::Div), &[a.clone(), b.clone()]), &i64s(&[3], &[0, i64::MIN, 0]));
    assert_same(&eval(&Op::Binary(BinaryOp::Rem), &[a.clone(), b.clone()]), &i64s(&[3], &[0, 0, 0]));
    assert_same(&eval(&Op::Binary(BinaryOp::Mod), &[a, b]), &i64s(&[3], &[0, 0, 0]));
    let small = Tensor::from_slice(&[2], &[100i8, -128]);
    let sum = eval(&Op::Binary(BinaryOp::Add), &[small.clone(), Tensor::from_slice(&[2], &[100i8, -1])]);
    assert_same(&sum, &Tensor::from_slice(&[2], &[-56i8, 127]));
    assert_same(
        &eval(&Op::Unary(UnaryOp::Neg), std::slice::from_ref(&small)),
        &Tensor::from_slice(&[2], &[-100i8, -128]),
    );
    let big = Tensor::from_slice(&[2], &[u64::MAX, 1 << 63]);
    let half = eval(&Op::Binary(BinaryOp::Div), &[big.clone(), Tensor::from_slice(&[], &[2u64])]);
    assert_same(&half, &Tensor::from_slice(&[2], &[u64::MAX / 2, 1 << 62]));
    let greater = eval(&Op::Compare(CompareOp::Gt), &[big, Tensor::from_slice(&[], &[1u64])]);
    assert_same(&greater, &bools(&[2], &[true, true]));
}

#[test]
fn shifts_and_bitwise() {
    let a = Tensor::from_slice(&[3], &[0x81u8, 0xFF, 1]);
    let b = Tensor::from_slice(&[3], &[1u8, 8, 7]);
    assert_same(&eval(&Op::Binary(BinaryOp::Shl), &[a.clone(), b.clone()]), &Tensor::from_slice(&[3], &[2u8, 0, 128]));
    assert_same(&eval(&Op::Binary(BinaryOp::Shr), &[a.clone(), b.clone()]), &Tensor::from_slice(&[3], &[0x40u8, 0, 0]));
    assert_same(&eval(&Op::Binary(BinaryOp::Xor), &[a.clone(), b]), &Tensor::from_slice(&[3], &[0x80u8, 0xF7, 6]));
    assert_same(&eval(&Op::Unary(UnaryOp::Not), &[a]), &Tensor::from_slice(&[3], &[0x7Eu8, 0, 0xFE]));
    let (t, f) = (bools(&[2], &[true, true]), bools(&[2], &[true, false]));
    assert_same(&eval(&Op::Binary(BinaryOp::And), &[t.clone(), f.clone()]), &f);
    assert_same(&eval(&Op::Unary(UnaryOp::Not), &[t]), &bools(&[2], &[false, false]));
}

#[test]
fn comparisons_with_nan() {
    let (a, b) = (f32s(&[3], &[NAN, NAN, 1.0]), f32s(&[3], &[NAN, 1.0, NAN]));
    for op in CompareOp::ALL {
        let got = eval(&Op::Compare(*op), &[a.clone(), b.clone()]);
        assert_same(&got, &bools(&[3], &[*op == CompareOp::Ne; 3]));
    }
}

#[test]
fn rounding_and_signs() {
    let x = f32s(&[6], &[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]);
    assert_same(&eval(&Op::Unary(UnaryOp::Round), &[x]), &f32s(&[6], &[-2.0, -2.0, -0.0, 0.0, 2.0, 2.0]));
    let x = f32s(&[5], &[NAN, -0.0, 3.0, -INF, 0.0]);
    assert_same(&eval(&Op::Unary(UnaryOp::Sign), std::slice::from_ref(&x)), &f32s(&[5], &[NAN, 0.0, 1.0, -1.0, 0.0]));
    assert_same(
        &eval(&Op::Unary(UnaryOp::IsNan), std::slice::from_ref(&x)),
        &bools(&[5], &[true, false, false, false, false]),
    );
    assert_same(&eval(&Op::Unary(UnaryOp::IsInf), &[x]), &bools(&[5], &[false, false, false, true, false]));
    let fmod = [f32s(&[4], &[-7.5, 7.5, -6.0, 5.0]), f32s(&[4], &[2.0, -2.0, 3.0, 0.0])];
    assert_same(&eval(&Op::Binary(BinaryOp::Rem), &fmod), &f32s(&[4], &[-1.5, 1.5, -0.0, NAN]));
    assert_same(&eval(&Op::Binary(BinaryOp::Mod), &fmod), &f32s(&[4], &[0.5, -0.5, 0.0, NAN]));
}

#[test]
fn casts_truncate_saturate_and_wrap() {
    let x = f32s(&[6], &[-1.9, 1.9, NAN, 300.0, -300.0, INF]);
    let to = |to| Op::Cast { to };
    assert_same(
        &eval(&to(DType::I8), std::slice::from_ref(&x)),
        &Tensor::from_slice(&[6], &[-1i8, 1, 0, 127, -128, 127]),
    );
    assert_same(&eval(&to(DType::U8), std::slice::from_ref(&x)), &Tensor::from_slice(&[6], &[0u8, 1, 0, 255, 0, 255]));
    assert_same(&eval(&to(DType::Bool), std::slice::from_ref(&x)), &bools(&[6], &[true; 6]));
    assert_same(&eval(&to(DType::I64), &[x]), &i64s(&[6], &[-1, 1, 0, 300, -300, i64::MAX]));
    assert_same(&eval(&to(DType::I8), &[i64s(&[2], &[200, -129])]), &Tensor::from_slice(&[2], &[-56i8, 127]));
    assert_same(&eval(&to(DType::Bool), &[f32s(&[2], &[0.5, -0.0])]), &bools(&[2], &[true, false]));
    assert_same(&eval(&to(DType::F32), &[bools(&[2], &[true, false])]), &f32s(&[2], &[1.0, 0.0]));
    // 2^24 + 1 is halfway between f32s; 2^60 + 2^36 + 1 just above halfway: one rounding each.
    let integers = [(1i64 << 24) + 1, (1 << 60) + (1 << 36) + 1];
    assert_same(&eval(&to(DType::F32), &[i64s(&[2], &integers)]), &f32s(&[2], &[16_777_216.0, integers[1] as f32]));
    assert_same(&eval(&to(DType::BF16), &[i64s(&[1], &[257])]), &Tensor::from_f64(DType::BF16, &[1], &[256.0]));
}

#[test]
fn float_casts_are_the_identity_under_f64() {
    let x = random(&[100], 1);
    let down = eval_f64(&Op::Cast { to: DType::F16 }, std::slice::from_ref(&x));
    assert_same(&down, &x);
    assert_same(&eval_f64(&Op::Cast { to: DType::I32 }, &[f32s(&[1], &[-3.7])]), &Tensor::from_slice(&[1], &[-3i32]));
    let widened = eval_f64(&Op::Cast { to: DType::BF16 }, &[i64s(&[1], &[257])]);
    assert_same(&widened, &Tensor::from_slice(&[1], &[257f64]));
}

#[test]
fn half_types_round_once() {
    let half = |values: &[f64]| Tensor::from_f64(DType::F16, &[values.len()], values);
    // 2048 + 1 is a tie in f16 (spacing 2), to even: 2048. 2050 + 1 ties to 2052.
    let sum = eval(&Op::Binary(BinaryOp::Add), &[half(&[2048.0, 2050.0, 60000.0]), half(&[1.0, 1.0, 60000.0])]);
    assert_same(&sum, &half(&[2048.0, 2052.0, f64::INFINITY]));
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let x = Tensor::from_f64(dtype, &[4096], &random(&[4096], 5).to_f64());
        let wide = eval_f64(&Op::Unary(UnaryOp::Exp), std::slice::from_ref(&x)).to_f64();
        assert_same(&eval(&Op::Unary(UnaryOp::Exp), &[x]), &Tensor::from_f64(dtype, &[4096], &wide));
    }
}

#[test]
fn transcendentals_at_the_ends() {
    let x = f32s(&[4], &[-INF, INF, NAN, 0.0]);
    let unary = |op| eval(&Op::Unary(op), std::slice::from_ref(&x));
    assert_same(&unary(UnaryOp::Exp), &f32s(&[4], &[0.0, INF, NAN, 1.0]));
    assert_same(&unary(UnaryOp::Sigmoid), &f32s(&[4], &[0.0, 1.0, NAN, 0.5]));
    assert_same(&unary(UnaryOp::Tanh), &f32s(&[4], &[-1.0, 1.0, NAN, 0.0]));
    assert_same(&unary(UnaryOp::Erf), &f32s(&[4], &[-1.0, 1.0, NAN, 0.0]));
    assert_same(&unary(UnaryOp::Softplus), &f32s(&[4], &[0.0, INF, NAN, 2f32.ln()]));
    assert_same(&unary(UnaryOp::Sqrt), &f32s(&[4], &[NAN, INF, NAN, 0.0]));
    assert_same(&unary(UnaryOp::Rsqrt), &f32s(&[4], &[NAN, 0.0, NAN, INF]));
    assert_same(&unary(UnaryOp::Log), &f32s(&[4], &[NAN, INF, NAN, -INF]));
    let gelu = eval(&Op::Gelu { approximate: GeluApproximate::None }, &[f32s(&[3], &[NAN, INF, 0.0])]);
    assert_same(&gelu, &f32s(&[3], &[NAN, INF, 0.0]));
}

#[test]
fn known_digits_in_f64() {
    let at = |op, x: f64| eval_f64(&Op::Unary(op), &[Tensor::scalar(x)]).to_f64()[0];
    // Reference digits from mpmath.
    for (op, x, want) in [
        (UnaryOp::Asinh, 0.5, 0.481_211_825_059_603_45),
        (UnaryOp::Acosh, 2.0, 1.316_957_896_924_816_7),
        (UnaryOp::Atanh, 0.5, 0.549_306_144_334_054_8),
        (UnaryOp::Sinh, 1.0, 1.175_201_193_643_801_5),
        (UnaryOp::Cosh, 1.0, 1.543_080_634_815_243_7),
        (UnaryOp::Tanh, 0.5, 0.462_117_157_260_009_76),
        (UnaryOp::Erf, -1.0, -0.842_700_792_949_714_9),
        (UnaryOp::Sigmoid, -2.0, 0.119_202_922_022_117_57),
        (UnaryOp::Softplus, 1.0, 1.313_261_687_518_222_8),
        (UnaryOp::Atan, 2.0, 1.107_148_717_794_090_5),
        (UnaryOp::Asin, 0.5, std::f64::consts::FRAC_PI_6),
        (UnaryOp::Acos, 0.5, 1.047_197_551_196_597_7),
        (UnaryOp::Tan, 1.0, 1.557_407_724_654_902_2),
    ] {
        assert!((at(op, x) / want - 1.0).abs() < 4e-16, "{op:?}({x}) = {}, want {want}", at(op, x));
    }
    let tanh_gelu = eval_f64(&Op::Gelu { approximate: GeluApproximate::Tanh }, &[Tensor::scalar(1f64)]);
    assert_close(&tanh_gelu, &[0.841_191_990_608_276_7], 1e-15);
    assert_close(&eval_f64(&Op::Silu, &[Tensor::scalar(1f64)]), &[0.731_058_578_630_004_9], 1e-15);
}

#[test]
fn select_broadcasts_all_three() {
    let condition = bools(&[2, 1], &[true, false]);
    let got = eval(&Op::Select, &[condition, f32s(&[3], &[1.0, 2.0, 3.0]), f32s(&[], &[NAN])]);
    assert_same(&got, &f32s(&[2, 3], &[1.0, 2.0, 3.0, NAN, NAN, NAN]));
}

#[test]
fn empty_operands_give_empty_results() {
    let empty = f32s(&[0, 3], &[]);
    assert_same(&eval(&Op::Binary(BinaryOp::Add), &[empty.clone(), f32s(&[3], &[1.0; 3])]), &empty);
    assert_same(&eval(&Op::Unary(UnaryOp::Exp), std::slice::from_ref(&empty)), &empty);
    assert!(try_eval(&Op::Binary(BinaryOp::Add), &[empty, f32s(&[2], &[0.0; 2])], Mode::Native).is_err());
}
