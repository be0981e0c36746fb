//! Literals, printed exact and as short as reading them back exactly allows.

use half::{bf16, f16};

use crate::dtype::DType;
use crate::tensor::{Element, Tensor};

use super::lexer::Span;

/// A literal as written; what it means depends on the dtype that it is read as.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Literal<'a> {
    pub(super) negative: bool,
    pub(super) kind: LiteralKind<'a>,
    pub(super) span: Span,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum LiteralKind<'a> {
    Number(&'a str),
    /// Digits of the bit pattern of a float.
    Bits(&'a str),
    /// `true`, `false`, `inf`, `nan`.
    Word(&'a str),
}

/// The shortest text that reads back as `value`; NaNs other than the canonical one as bits.
pub(super) fn f64_text(value: f64) -> String {
    if value.is_nan() && value.to_bits() != f64::NAN.to_bits() {
        return format!("0x{:016x}", value.to_bits());
    }
    plain_float(format!("{value:?}"))
}

fn f32_text(value: f32) -> String {
    if value.is_nan() && value.to_bits() != f32::NAN.to_bits() {
        return format!("0x{:08x}", value.to_bits());
    }
    plain_float(format!("{value:?}"))
}

/// `narrow` takes a decimal through f32, whose conversions to f16 and bf16 round to nearest even on every machine.
fn half_text(value: f32, bits: u16, canonical_nan: u16, narrow: impl Fn(f32) -> u16) -> String {
    if value.is_nan() {
        return if bits == canonical_nan { "nan".into() } else { format!("0x{bits:04x}") };
    }
    // Five significant digits tell any two 16-bit floats apart.
    for digits in 0..5 {
        let text = format!("{value:.digits$e}");
        if let Ok(short) = text.parse::<f64>()
            && narrow(short as f32) == bits
        {
            return plain_float(format!("{short:?}"));
        }
    }
    f32_text(value)
}

fn plain_float(debug: String) -> String {
    if debug == "NaN" { "nan".into() } else { debug }
}

/// One text per element, in row-major order.
pub(super) fn element_texts(tensor: &Tensor) -> Vec<String> {
    fn each<T: Element>(tensor: &Tensor, text: impl Fn(T) -> String) -> Vec<String> {
        tensor.bytes().chunks_exact(tensor.dtype().size()).map(|c| text(T::read_le(c))).collect()
    }
    match tensor.dtype() {
        DType::Bool => each::<bool>(tensor, |v| v.to_string()),
        DType::U8 => each::<u8>(tensor, |v| v.to_string()),
        DType::U16 => each::<u16>(tensor, |v| v.to_string()),
        DType::U32 => each::<u32>(tensor, |v| v.to_string()),
        DType::U64 => each::<u64>(tensor, |v| v.to_string()),
        DType::I8 => each::<i8>(tensor, |v| v.to_string()),
        DType::I16 => each::<i16>(tensor, |v| v.to_string()),
        DType::I32 => each::<i32>(tensor, |v| v.to_string()),
        DType::I64 => each::<i64>(tensor, |v| v.to_string()),
        DType::F16 => each::<f16>(tensor, |v| {
            half_text(v.to_f32(), v.to_bits(), f16::NAN.to_bits(), |x| f16::from_f32(x).to_bits())
        }),
        DType::BF16 => each::<bf16>(tensor, |v| {
            half_text(v.to_f32(), v.to_bits(), bf16::NAN.to_bits(), |x| bf16::from_f32(x).to_bits())
        }),
        DType::F32 => each::<f32>(tensor, f32_text),
        DType::F64 => each::<f64>(tensor, f64_text),
    }
}

impl Literal<'_> {
    /// The literal as an f64 (attributes).
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn to_f64(&self) -> Result<f64, String> {
        let magnitude = match self.kind {
            LiteralKind::Number(digits) => finite(digits.parse::<f64>().ok(), DType::F64)?,
            LiteralKind::Bits(digits) => f64::from_bits(self.bits(digits, 64)?),
            LiteralKind::Word("inf") => f64::INFINITY,
            LiteralKind::Word("nan") => f64::NAN,
            LiteralKind::Word(word) => return Err(format!("'{word}' is not a number")),
        };
        Ok(if self.negative { -magnitude } else { magnitude })
    }

    /// Appends the element to `out`, little-endian.
    ///
    /// # Errors
    /// If the literal is not exactly a value of `dtype` (an integer out of range, a float that overflows).
    pub(super) fn write(&self, dtype: DType, out: &mut Vec<u8>) -> Result<(), String> {
        match dtype {
            DType::Bool => match self.kind {
                LiteralKind::Word("true") if !self.negative => out.push(1),
                LiteralKind::Word("false") if !self.negative => out.push(0),
                _ => return Err("expected true or false".into()),
            },
            DType::F16 => self.half_bits(dtype, f16::NAN.to_bits(), |x| f16::from_f32(x).to_bits())?.write_le(out),
            DType::BF16 => self.half_bits(dtype, bf16::NAN.to_bits(), |x| bf16::from_f32(x).to_bits())?.write_le(out),
            DType::F32 => {
                let magnitude = match self.kind {
                    LiteralKind::Number(digits) => {
                        let value = digits.parse::<f32>().ok().filter(|v| v.is_finite());
                        value.ok_or_else(|| format!("out of range for {dtype}"))?
                    }
                    LiteralKind::Bits(digits) => f32::from_bits(self.bits(digits, 32)? as u32),
                    LiteralKind::Word("inf") => f32::INFINITY,
                    LiteralKind::Word("nan") => f32::NAN,
                    LiteralKind::Word(_) => return Err(format!("expected a number for {dtype}")),
                };
                (if self.negative { -magnitude } else { magnitude }).write_le(out);
            }
            DType::F64 => self.to_f64()?.write_le(out),
            _ => {
                let LiteralKind::Number(digits) = self.kind else {
                    return Err(format!("expected an integer for {dtype}"));
                };
                let magnitude: i128 = digits.parse().map_err(|_| format!("expected an integer for {dtype}"))?;
                let value = if self.negative { -magnitude } else { magnitude };
                let bits = 8 * dtype.size();
                let (low, high) = if dtype.is_signed() {
                    (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
                } else {
                    (0, (1i128 << bits) - 1)
                };
                if value < low || value > high {
                    return Err(format!("out of range for {dtype}"));
                }
                out.extend(value.to_le_bytes().into_iter().take(dtype.size()));
            }
        }
        Ok(())
    }

    fn half_bits(&self, dtype: DType, nan: u16, narrow: impl Fn(f32) -> u16) -> Result<u16, String> {
        let magnitude = match self.kind {
            LiteralKind::Number(digits) => {
                let bits = narrow(finite(digits.parse::<f64>().ok(), dtype)? as f32);
                if bits == narrow(f32::INFINITY) {
                    return Err(format!("out of range for {dtype}"));
                }
                bits
            }
            LiteralKind::Bits(digits) => self.bits(digits, 16)? as u16,
            LiteralKind::Word("inf") => narrow(f32::INFINITY),
            LiteralKind::Word("nan") => nan,
            LiteralKind::Word(_) => return Err(format!("expected a number for {dtype}")),
        };
        Ok(if self.negative { magnitude ^ 0x8000 } else { magnitude })
    }

    fn bits(&self, digits: &str, width: u32) -> Result<u64, String> {
        let bits = u64::from_str_radix(digits, 16).ok().filter(|v| width == 64 || v >> width == 0);
        match bits {
            Some(bits) if !self.negative => Ok(bits),
            Some(_) => Err("a bit pattern takes no sign".into()),
            None => Err(format!("the bit pattern does not fit in {width} bits")),
        }
    }
}

fn finite(value: Option<f64>, dtype: DType) -> Result<f64, String> {
    value.filter(|v| v.is_finite()).ok_or_else(|| format!("out of range for {dtype}"))
}
