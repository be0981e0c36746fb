//! Composites: delicate values, and each against its decomposition.

use forge_ir::interp::{self, Mode};
use forge_ir::{DType, GeluApproximate, Op, Tensor, TensorType, UnaryOp};

use crate::{assert_close, assert_same, bools, eval, eval_f64, f32s, random, try_eval};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn softmax_of_extreme_rows() {
    let x = f32s(&[4, 2], &[-INF, -INF, 0.0, -INF, 1e30, 1e30, NAN, 0.0]);
    let got = eval(&Op::Softmax { axis: 1 }, std::slice::from_ref(&x));
    assert_same(&got, &f32s(&[4, 2], &[NAN, NAN, 1.0, 0.0, 0.5, 0.5, NAN, NAN]));
    let log = eval(&Op::LogSoftmax { axis: 1 }, &[x]);
    let half = -(2f32.ln());
    assert_same(&log, &f32s(&[4, 2], &[NAN, NAN, 0.0, -INF, half, half, NAN, NAN]));
    let columns = eval(&Op::Softmax { axis: 0 }, &[f32s(&[2, 2], &[0.0, 1.0, 0.0, 1.0])]);
    assert_same(&columns, &f32s(&[2, 2], &[0.5; 4]));
    assert_same(&eval(&Op::Softmax { axis: 1 }, &[f32s(&[2, 0], &[])]), &f32s(&[2, 0], &[]));
}

#[test]
fn layer_norm_of_huge_equal_values_is_finite() {
    let op = Op::LayerNorm { axis: 1, epsilon: 1e-5 };
    let operands = [f32s(&[1, 8], &[8.5e37; 8]), f32s(&[8], &[1.0; 8]), f32s(&[8], &[0.25; 8])];
    assert_same(&eval(&op, &operands), &f32s(&[1, 8], &[0.25; 8]));
}

#[test]
fn layer_norm_in_f16_does_not_overflow_in_its_squares() {
    let x: Vec<f64> = random(&[4, 64], 3).to_f64().iter().map(|v| v * 600.0).collect();
    let x = Tensor::from_f64(DType::F16, &[4, 64], &x);
    let (scale, bias) =
        (Tensor::from_f64(DType::F16, &[64], &[1.0; 64]), Tensor::from_f64(DType::F16, &[64], &[0.0; 64]));
    let op = Op::LayerNorm { axis: 1, epsilon: 1e-5 };
    let exact = eval_f64(&op, &[x.clone(), scale.clone(), bias.clone()]);
    assert_close(&eval(&op, &[x, scale, bias]), &exact.to_f64(), 5e-4);
}

#[test]
fn norms_by_hand() {
    let x = f32s(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let deviation = 1.25f64.sqrt();
    let layer = eval_f64(&Op::LayerNorm { axis: 1, epsilon: 0.0 }, &[x.clone(), f32s(&[4], &[2.0; 4])]);
    assert_close(&layer, &[-1.5, -0.5, 0.5, 1.5].map(|v| 2.0 * v / deviation), 1e-14);
    let rms = eval_f64(&Op::RmsNorm { axis: 1, epsilon: 0.5 }, &[x.clone(), f32s(&[4], &[1.0, 1.0, 1.0, 3.0])]);
    let root = 8f64.sqrt();
    assert_close(&rms, &[1.0 / root, 2.0 / root, 3.0 / root, 12.0 / root], 1e-14);
    // Two groups of one channel pair each over one position: (1, 2) and (3, 4) are each -1, 1.
    let image = f32s(&[1, 4, 1], &[1.0, 2.0, 3.0, 4.0]);
    let parameters = [f32s(&[4], &[1.0, 1.0, 1.0, 2.0]), f32s(&[4], &[0.0, 0.0, 0.0, 1.0])];
    let [scale, bias] = parameters;
    let group = eval_f64(&Op::GroupNorm { groups: 2, epsilon: 0.0 }, &[image.clone(), scale.clone(), bias.clone()]);
    assert_close(&group, &[-1.0, 1.0, -1.0, 3.0], 1e-14);
    let (mean, variance) = (f32s(&[4], &[1.0, 1.0, 1.0, 2.0]), f32s(&[4], &[4.0, 1.0, 4.0, 0.25]));
    let batch = eval_f64(&Op::BatchNorm { epsilon: 0.0 }, &[image, scale, bias, mean, variance]);
    assert_close(&batch, &[0.0, 1.0, 1.0, 9.0], 1e-14);
}

fn attention(causal: bool, causal_offset: bool, masked_rows_zero: bool) -> Op {
    Op::Attention { scale: 0.25, causal, causal_offset, masked_rows_zero }
}

fn qkv(heads: usize, kv_heads: usize, rows: usize, keys: usize) -> [Tensor; 3] {
    [random(&[2, heads, rows, 16], 1), random(&[2, kv_heads, keys, 16], 2), random(&[2, kv_heads, keys, 8], 3)]
}

#[test]
fn attention_follows_the_definition() {
    for (heads, kv_heads, rows, keys) in [(4, 4, 8, 8), (4, 2, 3, 7), (6, 1, 5, 2)] {
        let [q, k, v] = qkv(heads, kv_heads, rows, keys);
        for (causal, offset) in [(false, false), (true, false), (true, true)] {
            let got = eval(&attention(causal, offset, true), &[q.clone(), k.clone(), v.clone()]);
            let (qd, kd, vd) = (q.to_f64(), k.to_f64(), v.to_f64());
            let mut want = Vec::new();
            for b in 0..2 {
                for h in 0..heads {
                    let kv = b * kv_heads + h / (heads / kv_heads);
                    for i in 0..rows {
                        let shift = if offset { keys as i64 - rows as i64 } else { 0 };
                        let admitted: Vec<usize> =
                            (0..keys).filter(|j| !causal || *j as i64 <= i as i64 + shift).collect();
                        let weight = |j: usize| -> f64 {
                            let q = &qd[((b * heads + h) * rows + i) * 16..][..16];
                            let k = &kd[(kv * keys + j) * 16..][..16];
                            (0.25 * q.iter().zip(k).map(|(x, y)| x * y).sum::<f64>()).exp()
                        };
                        let total: f64 = admitted.iter().map(|j| weight(*j)).sum();
                        for d in 0..8 {
                            let sum: f64 = admitted.iter().map(|j| weight(*j) * vd[(kv * keys + j) * 8 + d]).sum();
                            want.push(if admitted.is_empty() { 0.0 } else { sum / total });
                        }
                    }
                }
            }
            assert_close(&got, &want, 1e-13);
        }
    }
}

#[test]
fn fully_masked_rows_are_zero_or_nan() {
    // Two batches, four heads, one all-false row (2).
    let [q, k, v] = qkv(4, 4, 8, 8);
    let mask: Vec<bool> = (0..64).map(|i| i / 8 != 2 && i % 5 != 0).collect();
    let operands = [q, k, v, bools(&[8, 8], &mask)];
    let zero = eval(&attention(false, false, true), &operands).to_f64();
    let nan = eval(&attention(false, false, false), &operands).to_f64();
    for (i, (z, n)) in zero.iter().zip(&nan).enumerate() {
        if i / 8 % 8 == 2 {
            assert!(*z == 0.0 && n.is_nan());
        } else {
            assert!(z.is_finite() && z == n && *z != 0.0);
        }
    }
}

#[test]
fn a_masked_key_changes_nothing_and_an_infinite_value_is_zeroed_with_its_row() {
    let [q, k, v] = qkv(2, 2, 1, 3);
    // Keys 1 and 2 masked: attention is v[0].
    let mask = bools(&[1, 3], &[true, false, false]);
    let got = eval(&attention(false, false, true), &[q.clone(), k.clone(), v.clone(), mask]).to_f64();
    let values = v.to_f64();
    for (i, g) in got.iter().enumerate() {
        assert_eq!(*g, values[i / 8 * 24 + i % 8]);
    }
    let infinite = Tensor::from_f64(DType::F64, v.shape(), &vec![f64::INFINITY; v.numel()]);
    let none = bools(&[1, 3], &[false; 3]);
    let got = eval(&attention(false, false, true), &[q, k, infinite, none]);
    assert!(got.to_f64().iter().all(|v| *v == 0.0));
}

#[test]
fn float_masks_are_added() {
    let [q, k, v] = qkv(2, 1, 4, 4);
    let bool_mask: Vec<bool> = (0..16).map(|i| i % 3 != 0).collect();
    let float_mask: Vec<f64> = bool_mask.iter().map(|m| if *m { 0.0 } else { f64::NEG_INFINITY }).collect();
    let float_mask = Tensor::from_f64(DType::F64, &[1, 1, 4, 4], &float_mask);
    let op = attention(false, false, true);
    let with_float = eval(&op, &[q.clone(), k.clone(), v.clone(), float_mask]);
    let with_bool = eval(&op, &[q.clone(), k.clone(), v.clone(), bools(&[4, 4], &bool_mask)]);
    assert_same(&with_float, &with_bool);
    // A row of -inf in a float mask is a softmax of -inf: NaN, not zero.
    let all = Tensor::from_f64(DType::F64, &[1, 1, 1, 4], &[f64::NEG_INFINITY; 4]);
    assert!(eval(&op, &[q, k, v, all]).to_f64().iter().all(|v| v.is_nan()));
}

#[test]
fn attention_without_keys_or_queries() {
    let none = eval(&attention(false, false, true), &qkv(2, 2, 3, 0));
    assert_eq!(none.shape(), [2, 2, 3, 8]);
    assert!(none.to_f64().iter().all(|v| *v == 0.0));
    assert_same(&eval(&attention(true, true, false), &qkv(2, 2, 3, 0)), &none);
    assert_eq!(eval(&attention(true, true, true), &qkv(2, 2, 0, 5)).shape(), [2, 2, 0, 8]);
}

#[test]
fn a_single_query_sees_all_keys_bottom_right_and_one_top_left() {
    let [q, k, v] = qkv(1, 1, 1, 5);
    let all = eval(&attention(false, false, true), &[q.clone(), k.clone(), v.clone()]);
    assert_same(&eval(&attention(true, true, true), &[q.clone(), k.clone(), v.clone()]), &all);
    let first = eval(&attention(true, false, true), &[q, k, v.clone()]).to_f64();
    assert_eq!(first[..8], v.to_f64()[..8]);
}

#[test]
fn rotary_turns_pairs() {
    // Two positions, D = 4: angles 0 and 90 degrees.
    let (cos, sin) = (f32s(&[2, 2], &[1.0, 0.0, 0.0, 1.0]), f32s(&[2, 2], &[0.0, 1.0, 1.0, 0.0]));
    let x = f32s(&[1, 2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let halves = eval(&Op::Rotary { interleaved: false }, &[x.clone(), cos.clone(), sin.clone()]);
    assert_same(&halves, &f32s(&[1, 2, 4], &[1.0, -4.0, 3.0, 2.0, -7.0, 6.0, 5.0, 8.0]));
    let pairs = eval(&Op::Rotary { interleaved: true }, &[x, cos, sin]);
    assert_same(&pairs, &f32s(&[1, 2, 4], &[1.0, 2.0, -4.0, 3.0, -6.0, 5.0, 7.0, 8.0]));
}

#[test]
fn native_composites_are_within_a_few_roundings() {
    let x = Tensor::from_f64(DType::F32, &[6, 40], &random(&[6, 40], 1).to_f64());
    let (scale, bias) = (
        Tensor::from_f64(DType::F32, &[40], &random(&[40], 2).to_f64()),
        Tensor::from_f64(DType::F32, &[40], &random(&[40], 3).to_f64()),
    );
    for (op, operands) in [
        (Op::Softmax { axis: 1 }, vec![x.clone()]),
        (Op::LogSoftmax { axis: 0 }, vec![x.clone()]),
        (Op::LayerNorm { axis: 1, epsilon: 1e-5 }, vec![x.clone(), scale.clone(), bias.clone()]),
        (Op::RmsNorm { axis: 1, epsilon: 1e-5 }, vec![x.clone(), scale.clone()]),
        (Op::GroupNorm { groups: 8, epsilon: 1e-5 }, vec![x.clone(), scale.clone(), bias.clone()]),
    ] {
        let exact = try_eval(&op, &operands, Mode::F64).unwrap().remove(0).to_f64();
        assert_close(&eval(&op, &operands), &exact, 1e-6);
    }
}

/// Evaluates the op itself and its decomposition, floats as f64.
#[track_caller]
fn agrees_with_its_definition(op: &Op, operands: &[Tensor]) {
    let types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
    let body = op.decompose(&types).unwrap().decompose_all().unwrap();
    let want = interp::run(&body, operands, Mode::F64).unwrap();
    // Constants of a definition are of its compute dtype: below f64 they are rounded to f32.
    let tolerance = if operands[0].dtype() == DType::F64 { 1e-13 } else { 2e-7 };
    assert_close(&eval_f64(op, operands), &want[0].to_f64(), tolerance);
}

#[test]
fn rowwise_composites_are_their_definitions() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let random = |shape: &[usize], seed| Tensor::from_f64(dtype, shape, &random(shape, seed).to_f64());
        let x = random(&[3, 4, 6], 1);
        for axis in 0..3 {
            agrees_with_its_definition(&Op::Softmax { axis }, std::slice::from_ref(&x));
            agrees_with_its_definition(&Op::LogSoftmax { axis }, std::slice::from_ref(&x));
            let scale = random(&x.shape()[axis..], 2);
            let bias = random(&x.shape()[axis..], 3);
            let norm = Op::LayerNorm { axis, epsilon: 1e-5 };
            agrees_with_its_definition(&norm, &[x.clone(), scale.clone(), bias]);
            agrees_with_its_definition(&norm, &[x.clone(), scale.clone()]);
            agrees_with_its_definition(&Op::RmsNorm { axis, epsilon: 1e-6 }, &[x.clone(), scale]);
        }
        for shape in [vec![2, 6, 3, 2], vec![2, 6, 5], vec![3, 6]] {
            let x = random(&shape, 4);
            let channel = |seed| random(&[6], seed);
            for groups in [1, 2, 3, 6] {
                agrees_with_its_definition(
                    &Op::GroupNorm { groups, epsilon: 1e-5 },
                    &[x.clone(), channel(5), channel(6)],
                );
            }
            let variance = eval(&Op::Unary(UnaryOp::Abs), &[channel(8)]);
            let operands = [x, channel(5), channel(6), channel(7), variance];
            agrees_with_its_definition(&Op::BatchNorm { epsilon: 1e-3 }, &operands);
        }
        let wide: Vec<f64> = (-60..=60).map(|v| f64::from(v) / 8.0).collect();
        let wide = Tensor::from_f64(dtype, &[wide.len()], &wide);
        for approximate in [GeluApproximate::None, GeluApproximate::Tanh] {
            agrees_with_its_definition(&Op::Gelu { approximate }, std::slice::from_ref(&wide));
        }
        agrees_with_its_definition(&Op::Silu, &[wide]);
        let (cos, sin) = (random(&[4, 3], 9), random(&[1, 3], 10));
        for interleaved in [false, true] {
            agrees_with_its_definition(&Op::Rotary { interleaved }, &[x.clone(), cos.clone(), sin.clone()]);
        }
    }
}

#[test]
fn non_finite_operands_take_the_same_way_through_definitions() {
    let x = f32s(&[5, 3], &[-INF, -INF, -INF, 1.0, -INF, 2.0, NAN, 1.0, 2.0, INF, 1.0, 2.0, 0.0, -0.0, 1.0]);
    let scale = f32s(&[3], &[1.0, 2.0, 3.0]);
    agrees_with_its_definition(&Op::Softmax { axis: 1 }, std::slice::from_ref(&x));
    agrees_with_its_definition(&Op::LogSoftmax { axis: 1 }, std::slice::from_ref(&x));
    agrees_with_its_definition(&Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &[x.clone(), scale.clone()]);
    agrees_with_its_definition(&Op::RmsNorm { axis: 1, epsilon: 1e-5 }, &[x.clone(), scale]);
    agrees_with_its_definition(&Op::Silu, std::slice::from_ref(&x));
    agrees_with_its_definition(&Op::Gelu { approximate: GeluApproximate::None }, std::slice::from_ref(&x));
    agrees_with_its_definition(&Op::Gelu { approximate: GeluApproximate::Tanh }, &[x]);
    agrees_with_its_definition(&Op::Softmax { axis: 1 }, &[f32s(&[2, 0], &[])]);
    agrees_with_its_definition(&Op::Softmax { axis: 0 }, &[f32s(&[2, 0], &[])]);
}

#[test]
fn attention_is_its_definition_under_every_mask() {
    for (heads, kv_heads, rows, keys) in [(4, 4, 5, 5), (4, 2, 3, 6), (4, 1, 6, 3), (2, 2, 1, 4), (2, 1, 2, 0)] {
        let [q, k, v] = qkv(heads, kv_heads, rows, keys);
        // Row 1 admits nothing.
        let bits: Vec<bool> = (0..rows * keys).map(|i| i / keys.max(1) != 1 && i % 4 != 3).collect();
        let infinities: Vec<f64> = bits.iter().map(|b| if *b { 0.5 } else { f64::NEG_INFINITY }).collect();
        let per_batch: Vec<bool> = (0..2 * keys).map(|i| i % 3 != 0).collect();
        let masks = [
            None,
            Some(bools(&[rows, keys], &bits)),
            Some(bools(&[2, 1, 1, keys], &per_batch)),
            Some(Tensor::from_f64(DType::F64, &[1, rows, keys], &infinities)),
            Some(random(&[2, heads, rows, keys], 4)),
            Some(random(&[], 5)),
        ];
        for mask in masks {
            let operands: Vec<Tensor> = [q.clone(), k.clone(), v.clone()].into_iter().chain(mask).collect();
            for flags in 0..8 {
                let op = attention(flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
                agrees_with_its_definition(&op, &operands);
            }
        }
    }
}
