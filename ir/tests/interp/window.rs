//! Pools and resizes, with values from the PyTorch and ONNX definitions.

use forge_ir::interp::Resize;
use forge_ir::{DType, Dim, Op, PoolKind, ResizeCoordinates, ResizeMode, ResizeRounding, Tensor, Window};

use crate::{assert_close, assert_same, eval, f32s};

fn pool(kind: PoolKind, kernel: i64, stride: i64, pad: i64, ceil_mode: bool, count_include_pad: bool) -> Op {
    let window =
        Window { strides: vec![stride; 2], pads_begin: vec![pad; 2], pads_end: vec![pad; 2], dilations: vec![1; 2] };
    Op::Pool { kind, kernel: vec![kernel; 2], window, ceil_mode, count_include_pad }
}

fn ramp(side: usize) -> Tensor {
    let data: Vec<f32> = (0..side * side).map(|v| v as f32 + 1.0).collect();
    f32s(&[1, 1, side, side], &data)
}

#[test]
fn averages_with_ceil_mode_and_padding() {
    // 4x4 ramp, k3 s2 p1 ceil: the third window starts at 3 and reaches 1 beyond the padding, which never counts.
    let included = eval(&pool(PoolKind::Average, 3, 2, 1, true, true), &[ramp(4)]);
    let want = [
        (1.0 + 2.0 + 5.0 + 6.0) / 9.0,
        (2.0 + 3.0 + 4.0 + 6.0 + 7.0 + 8.0) / 9.0,
        (4.0 + 8.0) / 6.0,
        (5.0 + 6.0 + 9.0 + 10.0 + 13.0 + 14.0) / 9.0,
        (6.0 + 7.0 + 8.0 + 10.0 + 11.0 + 12.0 + 14.0 + 15.0 + 16.0) / 9.0,
        (8.0 + 12.0 + 16.0) / 6.0,
        (13.0 + 14.0) / 6.0,
        (14.0 + 15.0 + 16.0) / 6.0,
        16.0 / 4.0,
    ];
    assert_eq!(included.shape(), [1, 1, 3, 3]);
    assert_close(&included, &want, 1e-7);
    let excluded = eval(&pool(PoolKind::Average, 3, 2, 1, true, false), &[ramp(4)]);
    assert_close(&excluded, &[3.5, 5.0, 6.0, 9.5, 11.0, 12.0, 13.5, 15.0, 16.0], 1e-7);
}

#[test]
fn a_last_window_in_the_padding_is_dropped() {
    // 2x2, k3 s3 p1 ceil: a second window would start at 2, in the right padding.
    let got = eval(&pool(PoolKind::Average, 3, 3, 1, true, false), &[ramp(2)]);
    assert_same(&got, &f32s(&[1, 1, 1, 1], &[2.5]));
    let got = eval(&pool(PoolKind::Average, 3, 3, 1, true, true), &[ramp(2)]);
    assert_close(&got, &[10.0 / 9.0], 1e-7);
}

#[test]
fn maxima_ignore_padding_and_keep_nan() {
    let x = f32s(&[1, 1, 2, 2], &[-1.0, -2.0, -3.0, -4.0]);
    let got = eval(&pool(PoolKind::Max, 2, 1, 1, false, false), &[x]);
    assert_same(&got, &f32s(&[1, 1, 3, 3], &[-1.0, -1.0, -2.0, -1.0, -1.0, -2.0, -3.0, -3.0, -4.0]));
    let x = f32s(&[1, 1, 2, 2], &[f32::NAN, 1.0, 2.0, 3.0]);
    assert!(eval(&pool(PoolKind::Max, 2, 1, 0, false, false), &[x]).to_f64()[0].is_nan());
    let bytes = Tensor::from_slice(&[1, 1, 2, 2], &[1u8, 200, 3, 4]);
    assert_same(
        &eval(&pool(PoolKind::Max, 2, 2, 0, false, false), &[bytes]),
        &Tensor::from_slice(&[1, 1, 1, 1], &[200u8]),
    );
}

#[test]
fn dilated_one_dimensional_pool() {
    let window = Window { strides: vec![1], pads_begin: vec![0], pads_end: vec![0], dilations: vec![2] };
    let op = Op::Pool { kind: PoolKind::Max, kernel: vec![2], window, ceil_mode: false, count_include_pad: false };
    let got = eval(&op, &[f32s(&[1, 2, 4], &[1.0, 9.0, 3.0, 4.0, 8.0, 1.0, 2.0, 3.0])]);
    assert_same(&got, &f32s(&[1, 2, 2], &[3.0, 9.0, 8.0, 3.0]));
}

fn resize_op(
    mode: ResizeMode,
    coordinates: ResizeCoordinates,
    rounding: ResizeRounding,
    scales: &[f64],
    sizes: &[i64],
) -> Op {
    let sizes = sizes.iter().map(|s| Dim::from(*s)).collect();
    Op::Resize { mode, coordinates, rounding, cubic_coeff: -0.75, scales: scales.to_vec(), sizes }
}

#[test]
fn bilinear_to_one_pixel_depends_on_the_coordinates() {
    let x = ramp(4);
    let resize = |coordinates| {
        let rounding = ResizeRounding::RoundPreferFloor;
        eval(
            &resize_op(ResizeMode::Linear, coordinates, rounding, &[1.0, 1.0, 0.25, 0.25], &[1, 1, 1, 1]),
            std::slice::from_ref(&x),
        )
    };
    // The centre of the image, against its first pixel.
    assert_close(&resize(ResizeCoordinates::HalfPixel), &[8.5], 1e-7);
    assert_close(&resize(ResizeCoordinates::PytorchHalfPixel), &[1.0], 1e-7);
    assert_close(&resize(ResizeCoordinates::AlignCorners), &[1.0], 1e-7);
    assert_close(&resize(ResizeCoordinates::Asymmetric), &[1.0], 1e-7);
}

#[test]
fn nearest_26_to_64_follows_the_exact_ratio() {
    let x: Vec<f32> = (0..26).map(|v| v as f32).collect();
    // A scale as an f32 carries it: ties must still be those of 26/64.
    let scale = f64::from(64f32 / 26f32);
    for (rounding, tie) in [
        (ResizeRounding::RoundPreferFloor, 6.0),
        (ResizeRounding::RoundPreferCeil, 7.0),
        (ResizeRounding::Floor, 6.0),
        (ResizeRounding::Ceil, 7.0),
    ] {
        let op = resize_op(ResizeMode::Nearest, ResizeCoordinates::Asymmetric, rounding, &[scale], &[64]);
        let got = eval(&op, &[f32s(&[26], &x)]).to_f64();
        // 16 * 26 / 64 = 6.5.
        assert_eq!(got[16], tie, "{rounding:?}");
        let floor: Vec<f64> = (0..64).map(|i| f64::from(i * 26 / 64)).collect();
        assert!(rounding != ResizeRounding::Floor || got == floor);
    }
}

#[test]
fn a_fractional_scale_is_not_the_size_ratio() {
    // 3 * 2.5 = 7.5, so 7 columns: coordinates use 2.5, not 7/3.
    let op = resize_op(ResizeMode::Nearest, ResizeCoordinates::Asymmetric, ResizeRounding::Floor, &[2.5], &[7]);
    assert_same(&eval(&op, &[f32s(&[3], &[0.0, 1.0, 2.0])]), &f32s(&[7], &[0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0]));
    let linear = resize_op(ResizeMode::Linear, ResizeCoordinates::HalfPixel, ResizeRounding::Floor, &[2.5], &[7]);
    let want: Vec<f64> = (0..7).map(|i| ((f64::from(i) + 0.5) / 2.5 - 0.5).clamp(0.0, 2.0)).collect();
    assert_close(&eval(&linear, &[f32s(&[3], &[0.0, 1.0, 2.0])]), &want, 1e-7);
    let symmetric =
        resize_op(ResizeMode::Linear, ResizeCoordinates::HalfPixelSymmetric, ResizeRounding::Floor, &[2.5], &[7]);
    let shift = 1.5 * (1.0 - 7.0 / 7.5);
    let want: Vec<f64> = (0..7).map(|i| (shift + (f64::from(i) + 0.5) / 2.5 - 0.5).clamp(0.0, 2.0)).collect();
    assert_close(&eval(&symmetric, &[f32s(&[3], &[0.0, 1.0, 2.0])]), &want, 1e-7);
}

#[test]
fn cubic_weights_sum_to_one_and_reproduce_a_line() {
    let resize = Resize {
        mode: ResizeMode::Cubic,
        coordinates: ResizeCoordinates::HalfPixel,
        rounding: ResizeRounding::Floor,
        cubic_coeff: -0.5,
    };
    for (i, taps) in resize.taps(16, 40, 2.5).iter().enumerate() {
        let total: f64 = taps.iter().map(|(_, w)| w).sum();
        assert!((total - 1.0).abs() < 1e-12);
        let x = (i as f64 + 0.5) / 2.5 - 0.5;
        // With a = -1/2 cubic convolution is exact on lines, away from the clamped border.
        if (1.0..14.0).contains(&x) {
            let line: f64 = taps.iter().map(|(at, w)| *at as f64 * w).sum();
            assert!((line - x).abs() < 1e-12, "{i}: {line} against {x}");
        }
    }
}

#[test]
fn resize_of_nothing_and_of_bytes() {
    let op = resize_op(ResizeMode::Nearest, ResizeCoordinates::HalfPixel, ResizeRounding::Floor, &[1.0, 2.0], &[0, 4]);
    assert_eq!(eval(&op, &[f32s(&[0, 2], &[])]).shape(), [0, 4]);
    let op =
        resize_op(ResizeMode::Nearest, ResizeCoordinates::HalfPixel, ResizeRounding::RoundPreferFloor, &[2.0], &[4]);
    let got = eval(&op, &[Tensor::from_slice(&[2], &[7u8, 9])]);
    assert_same(&got, &Tensor::from_slice(&[4], &[7u8, 7, 9, 9]));
    assert_eq!(got.dtype(), DType::U8);
}
