//! Resize as ONNX defines it (no antialias, no exclude_outside): interpolation along one axis at a time.

use bytemuck::Pod;

use super::error::EvalError;
use super::parallel::for_each_chunk;
use super::storage::{Real, Want, tensor, view, with_bits, with_real};
use super::strided::AxisSplit;
use crate::dtype::DType;
use crate::op::{ResizeCoordinates, ResizeMode, ResizeRounding};
use crate::tensor::Tensor;

/// What one result position along an axis reads: (input position, weight) pairs. Weights sum to 1.
pub type Taps = Vec<(usize, f64)>;

/// The attributes of `Op::Resize` that hold for every axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Resize {
    pub mode: ResizeMode,
    pub coordinates: ResizeCoordinates,
    pub rounding: ResizeRounding,
    pub cubic_coeff: f64,
}

impl Resize {
    /// The taps of every result position along an axis of `from` elements resized to `to`: the definition that
    /// generated kernels share (as tables, or as the formula it is).
    ///
    /// Where `scale` is the ratio `to / from` to f32 precision, coordinates use that ratio exactly: a scale that went
    /// through f32 would otherwise move ties.
    ///
    /// ```
    /// use forge_ir::{ResizeCoordinates, ResizeMode, ResizeRounding, interp::Resize};
    /// let resize = Resize {
    ///     mode: ResizeMode::Linear,
    ///     coordinates: ResizeCoordinates::HalfPixel,
    ///     rounding: ResizeRounding::Floor,
    ///     cubic_coeff: -0.75,
    /// };
    /// assert_eq!(resize.taps(4, 1, 0.25), [vec![(1, 0.5), (2, 0.5)]]);
    /// ```
    #[must_use]
    pub fn taps(&self, from: usize, to: usize, scale: f64) -> Vec<Taps> {
        if from == 0 {
            return vec![Taps::new(); to];
        }
        let last = from as i64 - 1;
        let at = |c: i64| c.clamp(0, last) as usize;
        (0..to)
            .map(|position| {
                let x = self.coordinate(from as f64, to as f64, scale, position as f64);
                match self.mode {
                    ResizeMode::Nearest => {
                        let nearest = match self.rounding {
                            ResizeRounding::RoundPreferFloor => (x - 0.5).ceil(),
                            ResizeRounding::RoundPreferCeil => (x + 0.5).floor(),
                            ResizeRounding::Floor => x.floor(),
                            ResizeRounding::Ceil => x.ceil(),
                        };
                        vec![(at(nearest as i64), 1.0)]
                    }
                    ResizeMode::Linear => {
                        let low = x.floor();
                        let fraction = x - low;
                        merged([(at(low as i64), 1.0 - fraction), (at(low as i64 + 1), fraction)])
                    }
                    ResizeMode::Cubic => {
                        let low = x.floor();
                        let weights = cubic_weights(x - low, self.cubic_coeff);
                        merged(std::array::from_fn::<_, 4, _>(|i| (at(low as i64 + i as i64 - 1), weights[i])))
                    }
                }
            })
            .collect()
    }

    /// The input coordinate of a result position.
    fn coordinate(&self, from: f64, to: f64, scale: f64, x: f64) -> f64 {
        let exact = ((to / from) / scale - 1.0).abs() < 1e-6;
        let unscale = |x: f64| if exact { x * from / to } else { x / scale };
        // (x + 0.5) / scale - 0.5 over one common divisor, so that ties are exact.
        let half_pixel =
            |x: f64| if exact { ((2.0 * x + 1.0) * from - to) / (2.0 * to) } else { (x + 0.5) / scale - 0.5 };
        match self.coordinates {
            ResizeCoordinates::HalfPixel => half_pixel(x),
            ResizeCoordinates::PytorchHalfPixel => {
                if to > 1.0 {
                    half_pixel(x)
                } else {
                    0.0
                }
            }
            ResizeCoordinates::AlignCorners => {
                if to > 1.0 {
                    x * (from - 1.0) / (to - 1.0)
                } else {
                    0.0
                }
            }
            ResizeCoordinates::Asymmetric => unscale(x),
            ResizeCoordinates::HalfPixelSymmetric => {
                let adjustment = if exact { 1.0 } else { to / (scale * from) };
                from / 2.0 * (1.0 - adjustment) + half_pixel(x)
            }
        }
    }
}

/// Taps without zero weights, equal positions added up.
fn merged<const N: usize>(pairs: [(usize, f64); N]) -> Taps {
    let mut taps = Taps::new();
    for (at, weight) in pairs {
        match taps.iter_mut().find(|(i, _)| *i == at) {
            Some((_, sum)) => *sum += weight,
            None => taps.push((at, weight)),
        }
    }
    taps.retain(|(_, weight)| *weight != 0.0);
    taps
}

/// Keys' cubic convolution, taps at -1, 0, 1, 2 (Keys 1981; `a` is the free coefficient).
fn cubic_weights(t: f64, a: f64) -> [f64; 4] {
    let near = |d: f64| ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
    let far = |d: f64| ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
    [far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)]
}

pub(super) fn resize(resize: Resize, scales: &[f64], x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    if let Some(axis) = x.shape().iter().position(|d| *d == 0).filter(|_| want.numel() > 0) {
        return Err(EvalError::unsupported("resize", format!("axis {axis} is empty")));
    }
    // An axis that neither grows nor shrinks reads itself.
    let axes: Vec<(usize, Vec<Taps>)> = (0..x.shape().len())
        .filter(|axis| x.shape()[*axis] != want.shape[*axis] || scales[*axis] != 1.0)
        .map(|axis| (axis, resize.taps(x.shape()[axis], want.shape[axis], scales[axis])))
        .collect();
    if resize.mode == ResizeMode::Nearest {
        return with_bits!(x.dtype(), T => {
            let picked = along_axes(&axes, x.shape(), view::<T>(x).into_owned(), |taps, at| {
                taps.first().map_or_else(Default::default, |(i, _)| at(*i))
            });
            tensor(want.dtype, &want.shape, picked)
        });
    }
    if !x.dtype().is_float() {
        return Err(EvalError::unsupported("resize", format!("cannot interpolate {}", x.dtype())));
    }
    with_real!(x.dtype(), C => {
        C::store(want, along_axes(&axes, x.shape(), C::load(x).into_owned(), |taps, at| {
            taps.iter().fold(C::ZERO, |acc, (i, weight)| acc + at(*i) * C::narrow(*weight))
        }))
    })
}

fn along_axes<T: Pod + Send + Sync>(
    axes: &[(usize, Vec<Taps>)],
    shape: &[usize],
    mut data: Vec<T>,
    blend: impl Fn(&Taps, &dyn Fn(usize) -> T) -> T + Sync,
) -> Vec<T> {
    let mut shape = shape.to_vec();
    for (axis, taps) in axes {
        let AxisSplit { outer, len, inner } = AxisSplit::new(&shape, *axis);
        let mut resized = vec![T::zeroed(); outer * taps.len() * inner];
        for_each_chunk(&mut resized, taps.len() * inner, &|o, out| {
            for (taps, row) in taps.iter().zip(out.chunks_mut(inner)) {
                for (j, out) in row.iter_mut().enumerate() {
                    *out = blend(taps, &|i| data[(o * len + i) * inner + j]);
                }
            }
        });
        data = resized;
        shape[*axis] = taps.len();
    }
    data
}
