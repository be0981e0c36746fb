//! Scalar functions in f64 and in integers (i128, wide enough that only the store wraps).
//!
//! Transcendental functions come from `libm` (the musl and FreeBSD algorithms, error below one unit in the last place),
//! so that the oracle gives the same bits on every platform.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use crate::op::{BinaryOp, CompareOp, GeluApproximate, UnaryOp};

/// The float function of an op whose result is a float; `None` for the ops with a bool result and `not`.
pub(super) fn unary(op: UnaryOp) -> Option<fn(f64) -> f64> {
    Some(match op {
        UnaryOp::Neg => |x| -x,
        UnaryOp::Abs => f64::abs,
        UnaryOp::Sign => sign,
        UnaryOp::Floor => f64::floor,
        UnaryOp::Ceil => f64::ceil,
        UnaryOp::Round => f64::round_ties_even,
        UnaryOp::Sqrt => f64::sqrt,
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        UnaryOp::Reciprocal => |x| 1.0 / x,
        UnaryOp::Exp => libm::exp,
        UnaryOp::Log => libm::log,
        UnaryOp::Sin => libm::sin,
        UnaryOp::Cos => libm::cos,
        UnaryOp::Tan => libm::tan,
        UnaryOp::Asin => libm::asin,
        UnaryOp::Acos => libm::acos,
        UnaryOp::Atan => libm::atan,
        UnaryOp::Sinh => libm::sinh,
        UnaryOp::Cosh => libm::cosh,
        UnaryOp::Tanh => libm::tanh,
        UnaryOp::Asinh => libm::asinh,
        UnaryOp::Acosh => libm::acosh,
        UnaryOp::Atanh => libm::atanh,
        UnaryOp::Erf => libm::erf,
        UnaryOp::Sigmoid => sigmoid,
        UnaryOp::Relu => |x| maximum(x, 0.0),
        UnaryOp::Softplus => softplus,
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => return None,
    })
}

/// The integer function of an op; `None` where an integer operand has no meaning.
pub(super) fn unary_integer(op: UnaryOp) -> Option<fn(i128) -> i128> {
    Some(match op {
        UnaryOp::Neg => |x| -x,
        UnaryOp::Abs => i128::abs,
        UnaryOp::Sign => i128::signum,
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => |x| x,
        UnaryOp::Relu => |x| x.max(0),
        UnaryOp::Not => |x| !x,
        UnaryOp::IsNan | UnaryOp::IsInf => |_| 0,
        _ => return None,
    })
}

/// The float function of an op; `None` for the bitwise ones.
pub(super) fn binary(op: BinaryOp) -> Option<fn(f64, f64) -> f64> {
    Some(match op {
        BinaryOp::Add => |a, b| a + b,
        BinaryOp::Sub => |a, b| a - b,
        BinaryOp::Mul => |a, b| a * b,
        BinaryOp::Div => |a, b| a / b,
        BinaryOp::Rem => |a, b| a % b,
        BinaryOp::Mod => modulo,
        BinaryOp::Pow => libm::pow,
        BinaryOp::Min => minimum,
        BinaryOp::Max => maximum,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => return None,
    })
}

/// The integer function of an op; the store wraps. `bits` is the width of the dtype.
///
/// Division, remainder and modulus by zero give 0, as does zero to a negative power. A shift by the width or more (or by
/// a negative count) shifts everything out.
pub(super) fn binary_integer(op: BinaryOp, bits: u32) -> impl Fn(i128, i128) -> i128 + Copy {
    move |a, b| match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div => a.checked_div(b).unwrap_or(0),
        BinaryOp::Rem => a.checked_rem(b).unwrap_or(0),
        BinaryOp::Mod => match a.checked_rem(b).unwrap_or(0) {
            0 => 0,
            r if (r < 0) == (b < 0) => r,
            r => r + b,
        },
        BinaryOp::Pow => integer_power(a, b),
        BinaryOp::Min => a.min(b),
        BinaryOp::Max => a.max(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => match u32::try_from(b) {
            Ok(count) if count < bits => a << count,
            _ => 0,
        },
        BinaryOp::Shr => match u32::try_from(b) {
            Ok(count) if count < bits => a >> count,
            _ => -i128::from(a < 0),
        },
    }
}

pub(super) fn compare<T: PartialOrd>(op: CompareOp) -> fn(T, T) -> bool {
    match op {
        CompareOp::Eq => |a, b| a == b,
        CompareOp::Ne => |a, b| a != b,
        CompareOp::Lt => |a, b| a < b,
        CompareOp::Le => |a, b| a <= b,
        CompareOp::Gt => |a, b| a > b,
        CompareOp::Ge => |a, b| a >= b,
    }
}

/// IEEE 754-2019 maximum: NaN if either is NaN, +0 above -0.
pub(super) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b {
        a
    } else if a == b && b == 0.0 {
        // +0 unless both are -0.
        a + b
    } else {
        b
    }
}

/// IEEE 754-2019 minimum.
pub(super) fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

/// NaN for NaN, 0 for either zero.
fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x + 0.0
    }
}

/// Python's `%`: the sign of the divisor, a zero result included.
fn modulo(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r == 0.0 {
        r.copysign(b)
    } else if (r < 0.0) == (b < 0.0) || r.is_nan() {
        r
    } else {
        r + b
    }
}

/// Exact modulo 2^64; the store wraps to narrower types.
fn integer_power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1i128, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}

/// 1 / (1 + e^-x), without overflow on either side.
pub(super) fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        let e = libm::exp(x);
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + libm::exp(-x))
    }
}

/// log(1 + e^x), without overflow.
fn softplus(x: f64) -> f64 {
    maximum(x, 0.0) + libm::log1p(libm::exp(-x.abs()))
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub(super) fn gelu(approximate: GeluApproximate) -> fn(f64) -> f64 {
    match approximate {
        // x * Phi(x); erfc instead of 1 + erf keeps the tail's digits.
        GeluApproximate::None => |x| 0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2),
        GeluApproximate::Tanh => |x| {
            let scale = 0.5 * SQRT_2 * FRAC_2_SQRT_PI;
            0.5 * x * (1.0 + libm::tanh(scale * (x + 0.044715 * x * x * x)))
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values() {
        assert!(maximum(f64::NAN, 1.0).is_nan() && maximum(1.0, f64::NAN).is_nan());
        assert!(minimum(f64::NAN, 1.0).is_nan() && minimum(1.0, f64::NAN).is_nan());
        assert!(maximum(-0.0, 0.0).is_sign_positive() && maximum(0.0, -0.0).is_sign_positive());
        assert!(minimum(-0.0, 0.0).is_sign_negative() && minimum(0.0, -0.0).is_sign_negative());
        assert_eq!((modulo(-7.0, 3.0), modulo(7.0, -3.0), modulo(-7.0, -3.0)), (2.0, -2.0, -1.0));
        assert!(modulo(-3.0, 3.0).is_sign_positive() && modulo(1.0, 0.0).is_nan());
        assert_eq!(modulo(-1.0, f64::INFINITY), f64::INFINITY);
        assert!(sign(f64::NAN).is_nan() && sign(-0.0) == 0.0 && sign(-3.0) == -1.0);
        assert_eq!((sigmoid(-1e4), sigmoid(1e4), sigmoid(0.0)), (0.0, 1.0, 0.5));
        assert_eq!((softplus(-1e4), softplus(1e4)), (0.0, 1e4));
        assert!(softplus(f64::NAN).is_nan() && sigmoid(f64::NAN).is_nan());
    }

    #[test]
    fn erf_and_gelu_digits() {
        // erf(0.5), erf(2) and gelu(1), gelu(-6) to 17 digits (mpmath).
        assert!((libm::erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-15);
        assert!((libm::erf(2.0) - 0.995_322_265_018_952_7).abs() < 1e-15);
        let gelu = gelu(GeluApproximate::None);
        assert!((gelu(1.0) - 0.841_344_746_068_542_9).abs() < 1e-15);
        assert!((gelu(-6.0) / -5.919_525_870_226_188_4e-9 - 1.0).abs() < 1e-13);
    }

    #[test]
    fn integer_edges() {
        let op = |op| binary_integer(op, 64);
        assert_eq!(op(BinaryOp::Div)(7, 0), 0);
        assert_eq!(op(BinaryOp::Div)(i128::from(i64::MIN), -1) as i64, i64::MIN);
        assert_eq!((op(BinaryOp::Div)(-7, 2), op(BinaryOp::Rem)(-7, 2), op(BinaryOp::Mod)(-7, 2)), (-3, -1, 1));
        assert_eq!((op(BinaryOp::Mod)(7, -2), op(BinaryOp::Mod)(5, 0), op(BinaryOp::Rem)(5, 0)), (-1, 0, 0));
        assert_eq!((op(BinaryOp::Pow)(3, 5), op(BinaryOp::Pow)(2, -1), op(BinaryOp::Pow)(-1, -3)), (243, 0, -1));
        assert_eq!(op(BinaryOp::Pow)(7, 99) as i64, 7i64.wrapping_pow(99));
        assert_eq!((op(BinaryOp::Shl)(1, 64), op(BinaryOp::Shr)(-8, 1), op(BinaryOp::Shr)(-8, 70)), (0, -4, -1));
    }
}
