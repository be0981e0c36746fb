//! Unary, binary, compare, select and cast.
//!
//! Floats are computed in f64 and rounded once to the result dtype. For `+ - * /` and `sqrt` on f32, f16 and bf16 that is
//! bit for bit what f32 arithmetic rounded once gives (Figueroa 1995: a second rounding is harmless from 2p+2 bits up).

use bytemuck::Pod;

use super::error::EvalError;
use super::math;
use super::storage::{
    Scalar, Want, Wide, integer_to_odd, tensor, view, widen, with_bits, with_float, with_integer, with_scalar,
};
use super::strided::{Walk, broadcast_strides, map1, map2};
use crate::dtype::DType;
use crate::op::{BinaryOp, CompareOp, GeluApproximate, UnaryOp};
use crate::tensor::Tensor;

pub(super) fn unary(op: UnaryOp, x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    if x.dtype().is_float() {
        return match op {
            UnaryOp::IsNan => float_test(x, want, f64::is_nan),
            UnaryOp::IsInf => float_test(x, want, f64::is_infinite),
            _ => match math::unary(op) {
                Some(f) => float_map(x, want, f),
                None => Err(EvalError::unsupported(op.name(), format!("no meaning for {}", x.dtype()))),
            },
        };
    }
    if x.dtype() == DType::Bool && op == UnaryOp::Not {
        return tensor(want.dtype, &want.shape, map1(&view::<u8>(x), |v| u8::from(v == 0)));
    }
    let Some(f) = math::unary_integer(op) else {
        return Err(EvalError::unsupported(op.name(), format!("no meaning for {}", x.dtype())));
    };
    if want.dtype == DType::Bool && x.dtype() != DType::Bool {
        return tensor(want.dtype, &want.shape, vec![0u8; want.numel()]);
    }
    with_integer!(x.dtype(), S => {
        tensor(want.dtype, &want.shape, map1(&view::<<S as Scalar>::Store>(x), |v| S::encode(f(S::decode(v)))))
    })
}

pub(super) fn gelu(approximate: GeluApproximate, x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    float_map(x, want, math::gelu(approximate))
}

pub(super) fn silu(x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    float_map(x, want, math::silu)
}

fn float_map(x: &Tensor, want: &Want, f: fn(f64) -> f64) -> Result<Tensor, EvalError> {
    with_float!(x.dtype(), S => {
        tensor(want.dtype, &want.shape, map1(&view::<<S as Scalar>::Store>(x), |v| S::encode(f(S::decode(v)))))
    })
}

fn float_test(x: &Tensor, want: &Want, f: fn(f64) -> bool) -> Result<Tensor, EvalError> {
    with_float!(x.dtype(), S => {
        tensor(want.dtype, &want.shape, map1(&view::<<S as Scalar>::Store>(x), |v| u8::from(f(S::decode(v)))))
    })
}

pub(super) fn binary(op: BinaryOp, a: &Tensor, b: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    if a.dtype().is_float() {
        return with_float!(a.dtype(), S => match op {
            // The four that matter are compiled in; the rest go through a pointer.
            BinaryOp::Add => zip::<S, S>(a, b, want, |x, y| x + y),
            BinaryOp::Sub => zip::<S, S>(a, b, want, |x, y| x - y),
            BinaryOp::Mul => zip::<S, S>(a, b, want, |x, y| x * y),
            BinaryOp::Div => zip::<S, S>(a, b, want, |x, y| x / y),
            _ => match math::binary(op) {
                Some(f) => zip::<S, S>(a, b, want, f),
                None => Err(EvalError::unsupported(op.name(), format!("no meaning for {}", a.dtype()))),
            },
        });
    }
    let bits = 8 * a.dtype().size() as u32;
    with_integer!(a.dtype(), S => zip::<S, S>(a, b, want, math::binary_integer(op, bits)))
}

pub(super) fn compare(op: CompareOp, a: &Tensor, b: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    with_scalar!(a.dtype(), S => {
        let f = math::compare::<<S as Scalar>::Wide>(op);
        let data = map2(
            &want.shape,
            (&view::<<S as Scalar>::Store>(a), a.shape()),
            (&view::<<S as Scalar>::Store>(b), b.shape()),
            |x, y| u8::from(f(S::decode(x), S::decode(y))),
        );
        tensor(want.dtype, &want.shape, data)
    })
}

fn zip<S: Scalar, U: Scalar<Wide = S::Wide>>(
    a: &Tensor,
    b: &Tensor,
    want: &Want,
    f: impl Fn(S::Wide, S::Wide) -> S::Wide + Sync,
) -> Result<Tensor, EvalError> {
    let data = map2(&want.shape, (&view::<S::Store>(a), a.shape()), (&view::<S::Store>(b), b.shape()), |x, y| {
        U::encode(f(S::decode(x), S::decode(y)))
    });
    tensor(want.dtype, &want.shape, data)
}

pub(super) fn select(condition: &Tensor, then: &Tensor, other: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    fn pick<T: Pod + Send + Sync>(c: &Tensor, t: &Tensor, e: &Tensor, shape: &[usize]) -> Vec<T> {
        let (bits, then, other) = (view::<u8>(c), view::<T>(t), view::<T>(e));
        let walk = Walk::new(shape, &[c, t, e].map(|x| broadcast_strides(x.shape(), shape)));
        let steps = walk.inner().map(|s| s as usize);
        walk.fill(|out, bases| {
            let bases = bases.map(|b| b as usize);
            for (i, out) in out.iter_mut().enumerate() {
                let at: [usize; 3] = std::array::from_fn(|n| bases[n] + i * steps[n]);
                *out = if bits[at[0]] != 0 { then[at[1]] } else { other[at[2]] };
            }
        })
    }
    with_bits!(then.dtype(), T => tensor(want.dtype, &want.shape, pick::<T>(condition, then, other, &want.shape)))
}

/// Float to integer truncates toward zero and saturates, NaN is 0; integer to integer wraps; to bool is `!= 0`.
pub(super) fn cast(x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    if x.dtype() == want.dtype {
        return Ok(x.clone());
    }
    match (widen(x), want.dtype) {
        (Wide::Float(values), DType::Bool) => tensor(want.dtype, &want.shape, map1(&values, |v| u8::from(v != 0.0))),
        (Wide::Float(values), to) if to.is_float() => {
            with_float!(to, S => tensor(to, &want.shape, map1(&values, S::encode)))
        }
        (Wide::Float(values), to) => {
            let (low, high) = integer_range(to);
            // `as` saturates at the ends of i128 and maps NaN to 0.
            with_integer!(to, S => tensor(to, &want.shape, map1(&values, |v| S::encode((v as i128).clamp(low, high)))))
        }
        (Wide::Integer(values), to) if to.is_float() => with_float!(to, S => {
            let data: Vec<<S as Scalar>::Store> = values
                .iter()
                .map(|v| S::encode(if to == DType::F64 { *v as f64 } else { integer_to_odd(*v) }))
                .collect();
            tensor(to, &want.shape, data)
        }),
        (Wide::Integer(values), to) => with_integer!(to, S => {
            let data: Vec<<S as Scalar>::Store> = values.iter().map(|v| S::encode(*v)).collect();
            tensor(to, &want.shape, data)
        }),
    }
}

/// Lowest and highest value of an integer dtype.
pub(super) fn integer_range(dtype: DType) -> (i128, i128) {
    let bits = 8 * dtype.size() as u32;
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed() => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}
