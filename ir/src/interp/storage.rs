//! Typed access to tensor bytes, and rounding.
//!
//! What is computed element by element is computed in a wide type, f64 for floats and i128 for integers and bool, and
//! stored once ([`floats`], [`integers`] and back); what sums, in a [`Real`]: f64, or f32 for f32, f16 and bf16. Ops are
//! thereby compiled for two types and not for thirteen.

use std::borrow::Cow;

use bytemuck::Pod;
use bytes::Bytes;
use half::{bf16, f16};

use super::error::EvalError;
use super::strided::map1;
use crate::dtype::DType;
use crate::tensor::{Tensor, round_to_odd};

// `Tensor` is little-endian; reading it in place needs a little-endian machine.
const _: () = assert!(cfg!(target_endian = "little"));

/// What an op must produce: the dtype it is stored in (f64 for every float under `Mode::F64`) and the shape.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Want {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

impl Want {
    pub(super) fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The elements of a tensor in place when they are aligned. `T` must have the size of the dtype.
pub(super) fn view<T: Pod>(tensor: &Tensor) -> Cow<'_, [T]> {
    debug_assert_eq!(size_of::<T>(), tensor.dtype().size());
    match bytemuck::try_cast_slice(tensor.bytes()) {
        Ok(slice) => Cow::Borrowed(slice),
        // A mapped file may hold a tensor at any offset.
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(tensor.bytes())),
    }
}

struct Owned<T>(Vec<T>);

impl<T: Pod> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// A tensor that takes over `data`.
///
/// # Errors
/// If `data` is not of that shape: a bug in an op, reported rather than hidden.
pub(super) fn tensor<T: Pod + Send + Sync>(dtype: DType, shape: &[usize], data: Vec<T>) -> Result<Tensor, EvalError> {
    let got = data.len();
    Tensor::new(dtype, shape.to_vec(), Bytes::from_owner(Owned(data))).ok_or_else(|| EvalError::ResultType {
        op: "tensor",
        expected: format!("{dtype}{shape:?}"),
        got: format!("{got} elements of {} bytes", size_of::<T>()),
    })
}

/// How one element is stored and computed.
trait Scalar {
    type Store: Pod + Send + Sync;
    type Wide: Pod + Send + Sync;
    fn decode(stored: Self::Store) -> Self::Wide;
    /// Rounds once to nearest even (floats) or wraps (integers); bool is `!= 0`.
    fn encode(wide: Self::Wide) -> Self::Store;
}

macro_rules! integer_scalar {
    ($($t:ty),*) => {$(
        impl Scalar for $t {
            type Store = $t;
            type Wide = i128;
            fn decode(stored: $t) -> i128 {
                i128::from(stored)
            }
            fn encode(wide: i128) -> $t {
                wide as $t
            }
        }
    )*};
}
integer_scalar!(u8, u16, u32, u64, i8, i16, i32, i64);

impl Scalar for bool {
    type Store = u8;
    type Wide = i128;
    fn decode(stored: u8) -> i128 {
        i128::from(stored != 0)
    }
    fn encode(wide: i128) -> u8 {
        u8::from(wide != 0)
    }
}

impl Scalar for f16 {
    type Store = f16;
    type Wide = f64;
    fn decode(stored: f16) -> f64 {
        stored.to_f64()
    }
    fn encode(wide: f64) -> f16 {
        f16::from_f32(round_to_odd(wide))
    }
}

impl Scalar for bf16 {
    type Store = bf16;
    type Wide = f64;
    fn decode(stored: bf16) -> f64 {
        stored.to_f64()
    }
    fn encode(wide: f64) -> bf16 {
        bf16::from_f32(round_to_odd(wide))
    }
}

impl Scalar for f32 {
    type Store = f32;
    type Wide = f64;
    fn decode(stored: f32) -> f64 {
        f64::from(stored)
    }
    fn encode(wide: f64) -> f32 {
        wide as f32
    }
}

impl Scalar for f64 {
    type Store = f64;
    type Wide = f64;
    fn decode(stored: f64) -> f64 {
        stored
    }
    fn encode(wide: f64) -> f64 {
        wide
    }
}

/// An integer as f64 with an inexact result forced odd (see [`round_to_odd`]).
pub(super) fn integer_to_odd(value: i128) -> f64 {
    let magnitude = value.unsigned_abs();
    let lost = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> lost;
    let sticky = u128::from(kept << lost != magnitude);
    let wide = ((kept | sticky) << lost) as f64;
    if value < 0 { -wide } else { wide }
}

/// Runs `$body` with `$T` an unsigned type as wide as the dtype: for ops that move elements and never look at them.
macro_rules! with_bits {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}

/// Runs `$body` with `$C` the type that sums of a float dtype run in.
macro_rules! with_real {
    ($dtype:expr, $C:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $C = f64;
                $body
            }
            _ => {
                type $C = f32;
                $body
            }
        }
    };
}

pub(super) use {with_bits, with_real};

fn decode_all<S: Scalar>(tensor: &Tensor) -> Vec<S::Wide> {
    map1(&view::<S::Store>(tensor), S::decode)
}

fn encode_all<S: Scalar>(want: &Want, wide: &[S::Wide]) -> Result<Tensor, EvalError> {
    tensor(want.dtype, &want.shape, map1(wide, S::encode))
}

/// The elements of a float tensor in f64; in place when they are that.
pub(super) fn floats(tensor: &Tensor) -> Cow<'_, [f64]> {
    match tensor.dtype() {
        DType::F64 => view(tensor),
        DType::F32 => Cow::Owned(decode_all::<f32>(tensor)),
        DType::F16 => Cow::Owned(decode_all::<f16>(tensor)),
        DType::BF16 => Cow::Owned(decode_all::<bf16>(tensor)),
        _ => Cow::Owned(integers(tensor).into_iter().map(|v| v as f64).collect()),
    }
}

/// The elements of an integer or bool tensor in i128. Floats truncate.
pub(super) fn integers(tensor: &Tensor) -> Vec<i128> {
    match tensor.dtype() {
        DType::Bool => decode_all::<bool>(tensor),
        DType::U8 => decode_all::<u8>(tensor),
        DType::U16 => decode_all::<u16>(tensor),
        DType::U32 => decode_all::<u32>(tensor),
        DType::U64 => decode_all::<u64>(tensor),
        DType::I8 => decode_all::<i8>(tensor),
        DType::I16 => decode_all::<i16>(tensor),
        DType::I32 => decode_all::<i32>(tensor),
        DType::I64 => decode_all::<i64>(tensor),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => floats(tensor).iter().map(|v| *v as i128).collect(),
    }
}

/// Rounds once to `want.dtype`, a float.
pub(super) fn store_floats(want: &Want, wide: Vec<f64>) -> Result<Tensor, EvalError> {
    match want.dtype {
        DType::F16 => encode_all::<f16>(want, &wide),
        DType::BF16 => encode_all::<bf16>(want, &wide),
        DType::F32 => encode_all::<f32>(want, &wide),
        _ => tensor(DType::F64, &want.shape, wide),
    }
}

/// Wraps to `want.dtype`, an integer; bool is `!= 0`.
pub(super) fn store_integers(want: &Want, wide: &[i128]) -> Result<Tensor, EvalError> {
    match want.dtype {
        DType::U8 => encode_all::<u8>(want, wide),
        DType::U16 => encode_all::<u16>(want, wide),
        DType::U32 => encode_all::<u32>(want, wide),
        DType::U64 => encode_all::<u64>(want, wide),
        DType::I8 => encode_all::<i8>(want, wide),
        DType::I16 => encode_all::<i16>(want, wide),
        DType::I32 => encode_all::<i32>(want, wide),
        DType::I64 => encode_all::<i64>(want, wide),
        _ => encode_all::<bool>(want, wide),
    }
}

/// Index operands as i64 (u64 beyond i64 saturates, and is out of range for every axis anyway).
pub(super) fn indices(tensor: &Tensor) -> Vec<i64> {
    integers(tensor).into_iter().map(|v| i64::try_from(v).unwrap_or(i64::MAX)).collect()
}

/// A float tensor in f64: the representation of every float under `Mode::F64`. Others are returned as they are.
pub(super) fn to_f64(tensor: &Tensor) -> Result<Tensor, EvalError> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 | DType::F32 => self::tensor(DType::F64, tensor.shape(), floats(tensor).into_owned()),
        _ => Ok(tensor.clone()),
    }
}

/// A type that sums run in.
pub(super) trait Real:
    Pod
    + Send
    + Sync
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;
    fn wide(self) -> f64;
    fn narrow(wide: f64) -> Self;
    /// Elements of any dtype in this type; in place when the dtype is this type.
    fn load(tensor: &Tensor) -> Cow<'_, [Self]>;
    /// Rounds once to `want.dtype`, a float.
    fn store(want: &Want, data: Vec<Self>) -> Result<Tensor, EvalError>;

    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
    /// IEEE 754-2019 maximum: NaN if either is.
    fn maximum(self, other: Self) -> Self {
        if self.is_nan() || self > other { self } else { other }
    }
    /// `exp` to less than one unit in the last place.
    fn exp(self) -> Self {
        Self::narrow(libm::exp(self.wide()))
    }
    fn log(self) -> Self {
        Self::narrow(libm::log(self.wide()))
    }
}

macro_rules! real {
    ($t:ident, $own:ident) => {
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const INFINITY: $t = $t::INFINITY;
            const NEG_INFINITY: $t = $t::NEG_INFINITY;
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn narrow(wide: f64) -> $t {
                wide as $t
            }
            fn load(tensor: &Tensor) -> Cow<'_, [$t]> {
                match tensor.dtype() {
                    DType::$own => view(tensor),
                    _ => Cow::Owned(map1(&floats(tensor), |v| v as $t)),
                }
            }
            fn store(want: &Want, data: Vec<$t>) -> Result<Tensor, EvalError> {
                if want.dtype == DType::$own {
                    return tensor(want.dtype, &want.shape, data);
                }
                store_floats(want, map1(&data, f64::from))
            }
        }
    };
}
real!(f32, F32);
real!(f64, F64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_once() {
        // 1 + 2^-11 is the tie between 1 and 1 + 2^-10; the smallest excess must round up, in f64 as in f32.
        let tie = 1.0 + 2f64.powi(-11);
        assert_eq!(f16::encode(tie), f16::ONE);
        assert_eq!(f16::encode(tie + 2f64.powi(-40)).to_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(f16::encode(tie - 2f64.powi(-40)), f16::ONE);
        assert_eq!(f16::encode(65519.999).to_f64(), 65504.0);
        assert_eq!(f16::encode(65520.0), f16::INFINITY);
        assert_eq!(bf16::encode(1.0 + 2f64.powi(-8) + 2f64.powi(-45)).to_f64(), 1.0 + 2f64.powi(-7));
        assert_eq!(f16::encode(-1e-300).to_bits(), 0x8000);
        assert_eq!(f16::encode(2f64.powi(-25)).to_bits(), 0);
        assert_eq!(f16::encode(2f64.powi(-25) * (1.0 + 1e-12)).to_bits(), 1);
        assert!(f16::encode(f64::NAN).is_nan());
    }

    #[test]
    fn integers_round_once() {
        // Halfway between two f32s, plus one: 2^60 + 2^36 + 1.
        let value = (1i128 << 60) + (1 << 36) + 1;
        assert_eq!(integer_to_odd(value) as f32, (value as f32));
        assert_eq!(integer_to_odd(-5), -5.0);
        assert_eq!(integer_to_odd(0), 0.0);
        assert_eq!(integer_to_odd(i128::from(u64::MAX)) as f32, u64::MAX as f32);
    }

    #[test]
    fn unaligned_bytes_are_read() {
        let bytes = Bytes::from(vec![9u8, 1, 0, 0, 0, 2, 0, 0, 0]).slice(1..);
        let tensor = Tensor::new(DType::I32, vec![2], bytes).unwrap();
        assert_eq!(view::<i32>(&tensor).as_ref(), [1, 2]);
    }
}
