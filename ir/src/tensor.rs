//! Tensor types and tensor values.

use std::fmt;

use bytes::Bytes;

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;

/// dtype + shape. Layout is not part of the type: values are dense, row-major.
#[derive(Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<Dim>,
}

impl TensorType {
    #[must_use]
    pub fn new(dtype: DType, shape: Vec<Dim>) -> TensorType {
        TensorType { dtype, shape }
    }

    /// A type of constant shape.
    #[must_use]
    pub fn fixed(dtype: DType, shape: &[i64]) -> TensorType {
        TensorType { dtype, shape: shape.iter().map(|d| Dim::from(*d)).collect() }
    }

    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements as a dim; 1 for a scalar.
    #[must_use]
    pub fn numel(&self) -> Dim {
        Dim::product(&self.shape)
    }

    /// The shape if every dim is a constant that fits.
    #[must_use]
    pub fn const_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
    }

    #[must_use]
    pub fn substitute(&self, bindings: &Bindings) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.iter().map(|d| d.substitute(bindings)).collect() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.shape.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

/// A dense, row-major, little-endian tensor. Cloning shares the bytes (a mapped file or one allocation).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Tensor {
    /// `None` if the byte length is not `product(shape) * dtype.size()`, or that product overflows.
    #[must_use]
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: impl Into<Bytes>) -> Option<Tensor> {
        let bytes = bytes.into();
        let numel = shape.iter().try_fold(1usize, |acc, d| acc.checked_mul(*d))?;
        (numel.checked_mul(dtype.size())? == bytes.len()).then_some(Tensor { dtype, shape, bytes })
    }

    /// A tensor of `T`s.
    ///
    /// # Panics
    /// If `data.len()` is not the product of `shape`: a bug in the caller, never a property of outside data.
    #[must_use]
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Tensor {
        assert_eq!(
            shape.iter().product::<usize>(),
            data.len(),
            "shape {shape:?} does not hold {} elements",
            data.len()
        );
        let mut bytes = Vec::with_capacity(size_of_val(data));
        for value in data {
            value.write_le(&mut bytes);
        }
        Tensor { dtype: T::DTYPE, shape: shape.to_vec(), bytes: bytes.into() }
    }

    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value])
    }

    /// Values given as f64, rounded once to `dtype` (to nearest even; integers saturate, bool is `!= 0`).
    #[must_use]
    pub fn from_f64(dtype: DType, shape: &[usize], data: &[f64]) -> Tensor {
        let mut bytes = Vec::with_capacity(data.len() * dtype.size());
        for v in data {
            match dtype {
                DType::Bool => bytes.push(u8::from(*v != 0.0)),
                DType::U8 => (*v as u8).write_le(&mut bytes),
                DType::U16 => (*v as u16).write_le(&mut bytes),
                DType::U32 => (*v as u32).write_le(&mut bytes),
                DType::U64 => (*v as u64).write_le(&mut bytes),
                DType::I8 => (*v as i8).write_le(&mut bytes),
                DType::I16 => (*v as i16).write_le(&mut bytes),
                DType::I32 => (*v as i32).write_le(&mut bytes),
                DType::I64 => (*v as i64).write_le(&mut bytes),
                DType::F16 => half::f16::from_f32(round_to_odd(*v)).write_le(&mut bytes),
                DType::BF16 => half::bf16::from_f32(round_to_odd(*v)).write_le(&mut bytes),
                DType::F32 => (*v as f32).write_le(&mut bytes),
                DType::F64 => v.write_le(&mut bytes),
            }
        }
        assert_eq!(
            shape.iter().product::<usize>(),
            data.len(),
            "shape {shape:?} does not hold {} elements",
            data.len()
        );
        Tensor { dtype, shape: shape.to_vec(), bytes: bytes.into() }
    }

    /// Values given as i64, cast to `dtype` (integers wrap, bool is `!= 0`, floats round once).
    #[must_use]
    pub fn from_i64(dtype: DType, shape: &[usize], data: &[i64]) -> Tensor {
        if dtype.is_float() {
            let wide: Vec<f64> = data.iter().map(|v| *v as f64).collect();
            return Tensor::from_f64(dtype, shape, &wide);
        }
        let mut bytes = Vec::with_capacity(data.len() * dtype.size());
        for v in data {
            if dtype == DType::Bool {
                bytes.push(u8::from(*v != 0));
            } else {
                bytes.extend_from_slice(&v.to_le_bytes()[..dtype.size()]);
            }
        }
        assert_eq!(
            shape.iter().product::<usize>(),
            data.len(),
            "shape {shape:?} does not hold {} elements",
            data.len()
        );
        Tensor { dtype, shape: shape.to_vec(), bytes: bytes.into() }
    }

    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    #[must_use]
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    #[must_use]
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.iter().map(|d| Dim::from(*d)).collect() }
    }

    /// The same bytes under another shape; `None` if the element counts differ.
    #[must_use]
    pub fn reshaped(&self, shape: &[usize]) -> Option<Tensor> {
        Tensor::new(self.dtype, shape.to_vec(), self.bytes.clone())
    }

    /// The elements as `T`s; `None` if the dtype is another.
    #[must_use]
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        (T::DTYPE == self.dtype).then(|| self.bytes.chunks_exact(self.dtype.size()).map(T::read_le).collect())
    }

    /// The elements widened to f64 (exact for all but 64-bit integers beyond 2^53).
    #[must_use]
    pub fn to_f64(&self) -> Vec<f64> {
        fn widen<T: Element>(t: &Tensor, f: impl Fn(T) -> f64) -> Vec<f64> {
            t.bytes.chunks_exact(t.dtype.size()).map(|c| f(T::read_le(c))).collect()
        }
        match self.dtype {
            DType::Bool => widen::<bool>(self, |v| f64::from(u8::from(v))),
            DType::U8 => widen::<u8>(self, f64::from),
            DType::U16 => widen::<u16>(self, f64::from),
            DType::U32 => widen::<u32>(self, f64::from),
            DType::U64 => widen::<u64>(self, |v| v as f64),
            DType::I8 => widen::<i8>(self, f64::from),
            DType::I16 => widen::<i16>(self, f64::from),
            DType::I32 => widen::<i32>(self, f64::from),
            DType::I64 => widen::<i64>(self, |v| v as f64),
            DType::F16 => widen::<half::f16>(self, half::f16::to_f64),
            DType::BF16 => widen::<half::bf16>(self, half::bf16::to_f64),
            DType::F32 => widen::<f32>(self, f64::from),
            DType::F64 => widen::<f64>(self, |v| v),
        }
    }

    /// The elements as i64; `None` for floats.
    #[must_use]
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        fn widen<T: Element>(t: &Tensor, f: impl Fn(T) -> i64) -> Option<Vec<i64>> {
            Some(t.bytes.chunks_exact(t.dtype.size()).map(|c| f(T::read_le(c))).collect())
        }
        match self.dtype {
            DType::Bool => widen::<bool>(self, i64::from),
            DType::U8 => widen::<u8>(self, i64::from),
            DType::U16 => widen::<u16>(self, i64::from),
            DType::U32 => widen::<u32>(self, i64::from),
            DType::U64 => widen::<u64>(self, |v| v as i64),
            DType::I8 => widen::<i8>(self, i64::from),
            DType::I16 => widen::<i16>(self, i64::from),
            DType::I32 => widen::<i32>(self, i64::from),
            DType::I64 => widen::<i64>(self, |v| v),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => None,
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {} bytes)", self.ty(), self.bytes.len())
    }
}

/// f64 to f32 with an inexact result forced odd: a second rounding, to a format with at most 22 bits, is then the
/// rounding of the f64 (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). `half` converts from
/// f64 by dropping the low 32 bits first, which moves values just above a tie.
pub(crate) fn round_to_odd(wide: f64) -> f32 {
    let near = wide as f32;
    if !near.is_finite() || f64::from(near) == wide || near.to_bits() & 1 == 1 {
        // An overflow to infinity is one in the narrower format too.
        return near;
    }
    // The inexact value lies between `near` (even) and its odd neighbour toward the value.
    let away = f64::from(near).abs() < wide.abs();
    f32::from_bits(if near == 0.0 || away { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

/// A Rust type that stores one element of a [`DType`].
pub trait Element: Copy {
    const DTYPE: DType;
    fn write_le(&self, out: &mut Vec<u8>);
    /// `bytes` holds exactly one element.
    fn read_le(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($t:ty => $d:ident),* $(,)?) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn write_le(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn read_le(bytes: &[u8]) -> Self {
                let mut raw = [0; std::mem::size_of::<$t>()];
                raw.copy_from_slice(bytes);
                <$t>::from_le_bytes(raw)
            }
        }
    )*};
}
element!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
         half::f16 => F16, half::bf16 => BF16, f32 => F32, f64 => F64);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write_le(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn read_le(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|b| *b != 0)
    }
}
