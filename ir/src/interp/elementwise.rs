//! Unary, binary, compare, select and cast.
//!
//! Floats are computed in f64 and rounded once to the result dtype. For `+ - * /` and `sqrt` on f32, f16 and bf16 that is
//! bit for bit what f32 arithmetic rounded once gives (Figueroa 1995: a second rounding is harmless from 2p+2 bits up).

use bytemuck::Pod;

use super::error::EvalError;
use super::math;
use super::storage::{Want, floats, integer_to_odd, integers, store_floats, store_integers, tensor, view, with_bits};
use super::strided::{Walk, broadcast_strides, map1, map2};
use crate::dtype::DType;
use crate::op::{BinaryOp, CompareOp, GeluApproximate, UnaryOp};
use crate::tensor::Tensor;

pub(super) fn unary(op: UnaryOp, x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let meaningless = || EvalError::unsupported(op.name(), format!("no meaning for {}", x.dtype()));
    if x.dtype().is_float() {
        return match op {
            UnaryOp::IsNan => float_test(x, want, f64::is_nan),
            UnaryOp::IsInf => float_test(x, want, f64::is_infinite),
            _ => float_map(x, want, math::unary(op).ok_or_else(meaningless)?),
        };
    }
    if x.dtype() == DType::Bool && op == UnaryOp::Not {
        return tensor(want.dtype, &want.shape, map1(&view::<u8>(x), |v| u8::from(v == 0)));
    }
    store_integers(want, &map1(&integers(x), math::unary_integer(op).ok_or_else(meaningless)?))
}

pub(super) fn gelu(approximate: GeluApproximate, x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    float_map(x, want, math::gelu(approximate))
}

pub(super) fn silu(x: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    float_map(x, want, math::silu)
}

fn float_map(x: &Tensor, want: &Want, f: fn(f64) -> f64) -> Result<Tensor, EvalError> {
    store_floats(want, map1(&floats(x), f))
}

fn float_test(x: &Tensor, want: &Want, f: fn(f64) -> bool) -> Result<Tensor, EvalError> {
    tensor(want.dtype, &want.shape, map1(&floats(x), |v| u8::from(f(v))))
}

pub(super) fn binary(op: BinaryOp, a: &Tensor, b: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    if !a.dtype().is_float() {
        let f = math::binary_integer(op, 8 * a.dtype().size() as u32);
        return store_integers(want, &map2(&want.shape, (&integers(a), a.shape()), (&integers(b), b.shape()), f));
    }
    let (x, y) = (floats(a), floats(b));
    let (x, y) = ((&*x, a.shape()), (&*y, b.shape()));
    let shape = &want.shape;
    // The four that matter are compiled in; the rest go through a pointer.
    let data = match op {
        BinaryOp::Add => map2(shape, x, y, |a: f64, b: f64| a + b),
        BinaryOp::Sub => map2(shape, x, y, |a: f64, b: f64| a - b),
        BinaryOp::Mul => map2(shape, x, y, |a: f64, b: f64| a * b),
        BinaryOp::Div => map2(shape, x, y, |a: f64, b: f64| a / b),
        _ => match math::binary(op) {
            Some(f) => map2(shape, x, y, f),
            None => return Err(EvalError::unsupported(op.name(), format!("no meaning for {}", a.dtype()))),
        },
    };
    store_floats(want, data)
}

pub(super) fn compare(op: CompareOp, a: &Tensor, b: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    let bits = if a.dtype().is_float() {
        let f = math::compare::<f64>(op);
        map2(&want.shape, (&floats(a), a.shape()), (&floats(b), b.shape()), |x, y| u8::from(f(x, y)))
    } else {
        let f = math::compare::<i128>(op);
        map2(&want.shape, (&integers(a), a.shape()), (&integers(b), b.shape()), |x, y| u8::from(f(x, y)))
    };
    tensor(want.dtype, &want.shape, bits)
}

pub(super) fn select(condition: &Tensor, then: &Tensor, other: &Tensor, want: &Want) -> Result<Tensor, EvalError> {
    fn pick<T: Pod + Send + Sync>(c: &Tensor, t: &Tensor, e: &Tensor, shape: &[usize]) -> Vec<T> {
        let (bits, then, other) = (view::<u8>(c), view::<T>(t), view::<T>(e));
        let walk = Walk::new(shape, &[c, t, e].map(|x| broadcast_strides(x.shape(), shape)));
        let steps = walk.inner().map(|s| s as usize);
        walk.fill(&|out, bases| {
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
    let to = want.dtype;
    match (x.dtype().is_float(), to.is_float()) {
        _ if x.dtype() == to => Ok(x.clone()),
        (true, true) => store_floats(want, floats(x).into_owned()),
        (true, false) if to == DType::Bool => float_test(x, want, |v| v != 0.0),
        (true, false) => {
            let (low, high) = integer_range(to);
            // `as` saturates at the ends of i128 and maps NaN to 0.
            store_integers(want, &map1(&floats(x), |v| (v as i128).clamp(low, high)))
        }
        // Rounded to odd, so that the store to a narrower float is the only rounding.
        (false, true) if to != DType::F64 => store_floats(want, map1(&integers(x), integer_to_odd)),
        (false, true) => store_floats(want, map1(&integers(x), |v| v as f64)),
        (false, false) => store_integers(want, &integers(x)),
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
