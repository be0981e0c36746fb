//! C++ spelling of the elementwise ops.

use forge_ir::{BinaryOp, DType, UnaryOp};

use super::cpp::{float_literal, register_type};

/// An expression of register type for `op(x)`.
pub(super) fn unary(op: UnaryOp, dtype: DType, x: &str) -> String {
    let std = |name: &str| format!("std::{name}({x})");
    let ours = |name: &str| format!("forge::{name}({x})");
    let one = float_literal(dtype, 1.0);
    if !dtype.is_float() {
        let ty = register_type(dtype);
        return match op {
            UnaryOp::Neg => format!("forge::wrapping_neg<{ty}>({x})"),
            UnaryOp::Abs if dtype.is_signed() => format!("({x} < 0 ? forge::wrapping_neg<{ty}>({x}) : {x})"),
            UnaryOp::Sign => format!("forge::sign<{ty}>({x})"),
            UnaryOp::Relu => format!("forge::relu<{ty}>({x})"),
            UnaryOp::Not if dtype == DType::Bool => format!("!{x}"),
            UnaryOp::Not => format!("{ty}(~{x})"),
            UnaryOp::IsNan | UnaryOp::IsInf => "false".into(),
            // abs of an unsigned, floor/ceil/round of an integer: itself. Inference refuses the rest.
            _ => x.to_owned(),
        };
    }
    match op {
        UnaryOp::Neg => format!("-{x}"),
        UnaryOp::Abs => std("fabs"),
        UnaryOp::Sign => ours("sign"),
        UnaryOp::Floor => std("floor"),
        UnaryOp::Ceil => std("ceil"),
        UnaryOp::Round => std("rint"),
        UnaryOp::Sqrt => std("sqrt"),
        UnaryOp::Rsqrt => format!("{one} / std::sqrt({x})"),
        UnaryOp::Reciprocal => format!("{one} / {x}"),
        UnaryOp::Exp => ours("exp"),
        UnaryOp::Log => std("log"),
        UnaryOp::Sin => std("sin"),
        UnaryOp::Cos => std("cos"),
        UnaryOp::Tan => std("tan"),
        UnaryOp::Asin => std("asin"),
        UnaryOp::Acos => std("acos"),
        UnaryOp::Atan => std("atan"),
        UnaryOp::Sinh => std("sinh"),
        UnaryOp::Cosh => std("cosh"),
        UnaryOp::Tanh => ours("tanh"),
        UnaryOp::Asinh => std("asinh"),
        UnaryOp::Acosh => std("acosh"),
        UnaryOp::Atanh => std("atanh"),
        UnaryOp::Erf => ours("erf"),
        UnaryOp::Sigmoid => ours("sigmoid"),
        UnaryOp::Relu => ours("relu"),
        UnaryOp::Softplus => ours("softplus"),
        UnaryOp::Not => format!("!({x})"),
        UnaryOp::IsNan => format!("{x} != {x}"),
        UnaryOp::IsInf => format!("std::fabs({x}) == std::numeric_limits<{}>::infinity()", register_type(dtype)),
    }
}

/// An expression of register type for `op(a, b)`.
pub(super) fn binary(op: BinaryOp, dtype: DType, a: &str, b: &str) -> String {
    let ty = register_type(dtype);
    let call = |name: &str| format!("forge::{name}<{ty}>({a}, {b})");
    let infix = |sign: &str| format!("{a} {sign} {b}");
    if dtype == DType::Bool {
        return match op {
            BinaryOp::And | BinaryOp::Mul | BinaryOp::Min => infix("&&"),
            BinaryOp::Or | BinaryOp::Add | BinaryOp::Max => infix("||"),
            _ => infix("!="),
        };
    }
    if dtype.is_float() {
        return match op {
            BinaryOp::Add => infix("+"),
            BinaryOp::Sub => infix("-"),
            BinaryOp::Mul => infix("*"),
            BinaryOp::Div => infix("/"),
            BinaryOp::Rem => format!("std::fmod({a}, {b})"),
            BinaryOp::Mod => call("float_mod"),
            BinaryOp::Pow => format!("std::pow({a}, {b})"),
            BinaryOp::Min => call("minimum"),
            BinaryOp::Max => call("maximum"),
            // Inference admits no float here.
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => infix("&"),
        };
    }
    match op {
        BinaryOp::Add => call("wrapping_add"),
        BinaryOp::Sub => call("wrapping_sub"),
        BinaryOp::Mul => call("wrapping_mul"),
        BinaryOp::Div => call("int_div"),
        BinaryOp::Rem => call("int_rem"),
        BinaryOp::Mod => call("int_mod"),
        BinaryOp::Pow => call("int_pow"),
        BinaryOp::Min => call("minimum"),
        BinaryOp::Max => call("maximum"),
        BinaryOp::And => format!("{ty}({a} & {b})"),
        BinaryOp::Or => format!("{ty}({a} | {b})"),
        BinaryOp::Xor => format!("{ty}({a} ^ {b})"),
        BinaryOp::Shl => call("shift_left"),
        BinaryOp::Shr => call("shift_right"),
    }
}

/// An expression of `to`'s register type for a cast of `x`.
pub(super) fn cast(from: DType, to: DType, x: &str) -> String {
    let ty = register_type(to);
    if to == DType::Bool {
        return format!("{x} != 0");
    }
    if from.is_float() && to.is_int() {
        return format!("forge::float_to_int<{ty}>({x})");
    }
    format!("{ty}({x})")
}
