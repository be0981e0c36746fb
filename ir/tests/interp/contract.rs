//! Matrix products and convolutions against their definitions, written as plain sums here.

use forge_ir::interp::Mode;
use forge_ir::{DType, Op, Tensor, Window};

use crate::{assert_close, assert_same, eval, eval_f64, f32s, i64s, random, try_eval};

fn matmul(trans_a: bool, trans_b: bool) -> Op {
    Op::MatMul { trans_a, trans_b }
}

#[test]
fn small_products() {
    let a = i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let b = i64s(&[3, 2], &[1, 0, 0, 1, 1, 1]);
    assert_same(&eval(&matmul(false, false), &[a.clone(), b.clone()]), &i64s(&[2, 2], &[4, 5, 10, 11]));
    assert_same(&eval(&matmul(true, false), &[b.clone(), b.clone()]), &i64s(&[2, 2], &[2, 1, 1, 2]));
    assert_same(&eval(&matmul(false, true), &[a.clone(), a.clone()]), &i64s(&[2, 2], &[14, 32, 32, 77]));
    assert_same(&eval(&matmul(true, true), &[a.clone(), b]), &i64s(&[3, 3], &[1, 4, 5, 2, 5, 7, 3, 6, 9]));
    let wrapped =
        eval(&matmul(false, false), &[Tensor::from_slice(&[1, 1], &[100i8]), Tensor::from_slice(&[1, 1], &[3i8])]);
    assert_same(&wrapped, &Tensor::from_slice(&[1, 1], &[44i8]));
}

#[test]
fn no_terms_no_rows() {
    let none = eval(&matmul(false, false), &[f32s(&[2, 0], &[]), f32s(&[0, 3], &[])]);
    assert_same(&none, &f32s(&[2, 3], &[0.0; 6]));
    assert_same(&eval(&matmul(false, false), &[f32s(&[0, 2], &[]), f32s(&[2, 3], &[1.0; 6])]), &f32s(&[0, 3], &[]));
    assert_same(
        &eval(&matmul(false, false), &[f32s(&[0, 2, 2], &[]), f32s(&[2, 2], &[1.0; 4])]),
        &f32s(&[0, 2, 2], &[]),
    );
}

#[test]
fn batches_broadcast() {
    let (a, b) = (random(&[2, 1, 3, 5], 1), random(&[4, 5, 2], 2));
    let got = eval(&matmul(false, false), &[a.clone(), b.clone()]);
    assert_eq!(got.shape(), [2, 4, 3, 2]);
    let (x, y) = (a.to_f64(), b.to_f64());
    let mut want = Vec::new();
    for p in 0..2 {
        for q in 0..4 {
            for i in 0..3 {
                for j in 0..2 {
                    want.push((0..5).map(|k| x[(p * 3 + i) * 5 + k] * y[(q * 5 + k) * 2 + j]).sum::<f64>());
                }
            }
        }
    }
    assert_close(&got, &want, 1e-14);
    // One b for all of a's batches, and the reverse.
    let shared = eval(&matmul(false, true), &[random(&[3, 2, 4], 3), random(&[1, 6, 4], 4)]);
    let transposed = eval(&Op::Transpose { perm: vec![0, 2, 1] }, &[random(&[1, 6, 4], 4)]);
    assert_close(&shared, &eval(&matmul(false, false), &[random(&[3, 2, 4], 3), transposed]).to_f64(), 1e-14);
    assert_eq!(eval(&matmul(false, false), &[random(&[2, 4], 3), random(&[5, 4, 6], 4)]).shape(), [5, 2, 6]);
}

#[test]
fn nan_times_zero_is_not_skipped() {
    let got = eval(&matmul(false, false), &[f32s(&[1, 2], &[0.0, 1.0]), f32s(&[2, 1], &[f32::INFINITY, 1.0])]);
    assert!(got.to_f64()[0].is_nan());
}

#[test]
fn halves_accumulate_wider() {
    // 4096 terms of 1 stay exact: in f16 the sum would stick at 2048.
    let ones = Tensor::from_f64(DType::F16, &[1, 4096], &vec![1.0; 4096]);
    let got = eval(&matmul(false, true), &[ones.clone(), ones]);
    assert_same(&got, &Tensor::from_f64(DType::F16, &[1, 1], &[4096.0]));
}

/// The definition, over any number of spatial axes: every product of a weight with the input element it lies over.
fn for_each_product(
    window: &Window,
    groups: usize,
    input: &[usize],
    weight: &[usize],
    output: &[usize],
    mut visit: impl FnMut(usize, usize, usize),
) {
    let flat = |index: &[usize], shape: &[usize]| index.iter().zip(shape).fold(0, |acc, (i, d)| acc * d + i);
    let all = |shape: &[usize]| -> Vec<Vec<usize>> {
        let mut indices = vec![vec![]];
        for d in shape {
            indices = indices.iter().flat_map(|i| (0..*d).map(move |v| [i.as_slice(), &[v]].concat())).collect();
        }
        indices
    };
    let group_out = output[1] / groups;
    for o in all(output) {
        for t in all(&weight[1..]) {
            let mut source = vec![o[0], o[1] / group_out * weight[1] + t[0]];
            let mut inside = true;
            for axis in 0..o.len() - 2 {
                let at = o[axis + 2] as i64 * window.strides[axis] + t[axis + 1] as i64 * window.dilations[axis]
                    - window.pads_begin[axis];
                inside &= (0..input[axis + 2] as i64).contains(&at);
                source.push(at.max(0) as usize);
            }
            if inside {
                let w = [&o[1..2], t.as_slice()].concat();
                visit(flat(&o, output), flat(&source, input), flat(&w, weight));
            }
        }
    }
}

fn windows() -> Vec<(Window, usize, Vec<usize>, Vec<usize>)> {
    let window = |strides: &[i64], begin: &[i64], end: &[i64], dilations: &[i64]| Window {
        strides: strides.to_vec(),
        pads_begin: begin.to_vec(),
        pads_end: end.to_vec(),
        dilations: dilations.to_vec(),
    };
    // (window, groups, x, w)
    vec![
        (window(&[1], &[0], &[0], &[1]), 1, vec![2, 3, 7], vec![4, 3, 3]),
        (window(&[2], &[2], &[1], &[2]), 3, vec![1, 6, 11], vec![3, 2, 3]),
        (window(&[1, 1], &[0, 0], &[0, 0], &[1, 1]), 1, vec![2, 3, 4, 5], vec![2, 3, 1, 1]),
        (window(&[2, 1], &[1, 2], &[1, 0], &[1, 2]), 2, vec![2, 4, 6, 7], vec![6, 2, 3, 2]),
        (window(&[3, 3], &[0, 0], &[0, 0], &[1, 1]), 4, vec![1, 4, 10, 9], vec![4, 1, 2, 3]),
        (window(&[1, 2, 1], &[1, 0, 1], &[0, 1, 1], &[1, 1, 2]), 1, vec![1, 2, 3, 4, 5], vec![3, 2, 2, 2, 2]),
        (window(&[1, 1], &[1, 1], &[1, 1], &[1, 1]), 1, vec![1, 1, 40, 40], vec![1, 1, 3, 3]),
    ]
}

#[test]
fn convolutions_follow_the_definition() {
    for (window, groups, x_shape, w_shape) in windows() {
        let (x, w, bias) = (random(&x_shape, 7), random(&w_shape, 8), random(&w_shape[..1], 9));
        let op = Op::Conv { window: window.clone(), groups: groups as i64 };
        let got = eval(&op, &[x.clone(), w.clone(), bias.clone()]);
        let (x_data, w_data, bias_data) = (x.to_f64(), w.to_f64(), bias.to_f64());
        let plane: usize = got.shape()[2..].iter().product();
        let mut want: Vec<f64> = (0..got.numel()).map(|i| bias_data[i / plane % w_shape[0]]).collect();
        for_each_product(&window, groups, &x_shape, &w_shape, got.shape(), |o, i, t| want[o] += x_data[i] * w_data[t]);
        assert_close(&got, &want, 1e-13);
        // In f32 it agrees to f32 rounding.
        let narrow = [&x, &w, &bias].map(|t| Tensor::from_f64(DType::F32, t.shape(), &t.to_f64()));
        assert_close(&eval(&op, &narrow), &want, 1e-5);
        assert_close(&eval_f64(&op, &narrow), &want, 1e-6);
    }
}

/// A transposed convolution is the adjoint of the convolution with the same weights: <conv(x), y> = <x, conv^T(y)>.
#[test]
fn transposed_convolutions_are_adjoint() {
    for (window, groups, x_shape, w_shape) in windows() {
        let w = random(&w_shape, 8);
        let forward = Op::Conv { window: window.clone(), groups: groups as i64 };
        let x = random(&x_shape, 7);
        let conv = eval(&forward, &[x.clone(), w.clone()]);
        // What a stride skips at the far end comes back as output padding.
        let output_padding = (0..x_shape.len() - 2)
            .map(|a| {
                let reach = window.dilations[a] * (w_shape[a + 2] as i64 - 1) + 1;
                (x_shape[a + 2] as i64 + window.pads_begin[a] + window.pads_end[a] - reach) % window.strides[a]
            })
            .collect();
        let backward = Op::ConvTranspose { window: window.clone(), groups: groups as i64, output_padding };
        let y = random(conv.shape(), 11);
        let back = eval(&backward, &[y.clone(), w.clone()]);
        assert_eq!(back.shape(), x.shape());
        let dot = |a: &Tensor, b: &Tensor| a.to_f64().iter().zip(b.to_f64()).map(|(p, q)| p * q).sum::<f64>();
        assert!((dot(&conv, &y) - dot(&x, &back)).abs() < 1e-11, "{window:?}");
        let mut want = vec![0.0; back.numel()];
        let (y_data, w_data) = (y.to_f64(), w.to_f64());
        for_each_product(&window, groups, &x_shape, &w_shape, conv.shape(), |o, i, t| want[i] += y_data[o] * w_data[t]);
        assert_close(&back, &want, 1e-13);
    }
}

#[test]
fn transposed_bias_and_empty_batch() {
    let window = Window { strides: vec![2], pads_begin: vec![0], pads_end: vec![0], dilations: vec![1] };
    let op = Op::ConvTranspose { window: window.clone(), groups: 1, output_padding: vec![0] };
    let got = eval(&op, &[f32s(&[1, 1, 2], &[1.0, 2.0]), f32s(&[1, 1, 3], &[1.0, 10.0, 100.0]), f32s(&[1], &[0.5])]);
    assert_same(&got, &f32s(&[1, 1, 5], &[1.5, 10.5, 102.5, 20.5, 200.5]));
    let conv = Op::Conv { window, groups: 1 };
    let empty = eval(&conv, &[f32s(&[0, 1, 5], &[]), f32s(&[2, 1, 3], &[0.0; 6])]);
    assert_eq!(empty.shape(), [0, 2, 2]);
    assert!(try_eval(&conv, &[f32s(&[1, 1, 2], &[0.0; 2]), f32s(&[1, 1, 3], &[0.0; 3])], Mode::Native).is_err());
    // No channels: only the bias is left.
    let padded = Window { strides: vec![1], pads_begin: vec![1], pads_end: vec![1], dilations: vec![1] };
    let none = eval(
        &Op::Conv { window: padded, groups: 1 },
        &[f32s(&[1, 0, 1], &[]), f32s(&[1, 0, 1], &[]), f32s(&[1], &[4.0])],
    );
    assert_same(&none, &f32s(&[1, 1, 3], &[4.0; 3]));
}
