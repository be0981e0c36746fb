//! Types and dims.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::tensor::TensorType;

use super::{MAX_TERMS, Parsed, Parser};
use crate::text::error::nearest;
use crate::text::lexer::TokenKind;
use crate::text::print::dtype_names;

impl Parser<'_> {
    pub(super) fn ty(&mut self) -> Parsed<TensorType> {
        let name = match *self.kind() {
            TokenKind::Ident(name) => name,
            _ => return Err(self.unexpected("a type, such as f32[N, 4]")),
        };
        let Some(dtype) = DType::from_name(name) else {
            let error = self.unexpected("a dtype");
            return Err(match nearest(name, dtype_names()) {
                Some(near) => error.with_suggestion(Some(near)),
                None => error.with_help(format!("the dtypes are {}", dtype_names().collect::<Vec<_>>().join(", "))),
            });
        };
        self.advance();
        let span = self.span();
        self.expect('[')?;
        let mut terms = 1usize;
        let shape = self.list(']', |p| {
            let (dim, count) = p.dim()?;
            terms = terms.saturating_mul(count);
            Ok(dim)
        })?;
        if terms > MAX_TERMS {
            return Err(self.error(span, "these dimensions are too complex"));
        }
        Ok(TensorType { dtype, shape })
    }

    /// A dim and the number of its terms: `N*2 - 1`, `floordiv(N, 2)`, `"odd name" + 1`. No parentheses: canonical
    /// dims have none.
    pub(super) fn dim(&mut self) -> Parsed<(Dim, usize)> {
        let mut negative = self.eat('-');
        let mut sum = Dim::from(0);
        let mut terms = 0usize;
        loop {
            let product = self.dim_product(negative)?;
            sum = sum + product;
            terms += 1;
            negative = match self.kind() {
                TokenKind::Punct('+') => false,
                TokenKind::Punct('-') => true,
                _ => return Ok((sum, terms)),
            };
            self.advance();
            if terms >= MAX_TERMS {
                return Err(self.error(self.span(), "this dimension is too complex"));
            }
        }
    }

    fn dim_product(&mut self, negative: bool) -> Parsed<Dim> {
        let mut product = Dim::from(if negative { -1 } else { 1 });
        let mut factors = 0usize;
        loop {
            product = product * self.dim_factor(negative)?;
            factors += 1;
            if !self.eat('*') {
                return Ok(product);
            }
            if factors >= MAX_TERMS {
                return Err(self.error(self.span(), "this dimension is too complex"));
            }
        }
    }

    fn dim_factor(&mut self, negative: bool) -> Parsed<Dim> {
        let factor = match self.kind() {
            TokenKind::Number(digits) => match digits.parse::<u64>() {
                Ok(value) if i64::try_from(value).is_ok() => Dim::from(value as i64),
                // The magnitude of i64::MIN; negated by the wrapping product.
                Ok(value) if negative && value == 1 << 63 => Dim::from(i64::MIN),
                _ => return Err(self.unexpected("a 64-bit integer")),
            },
            TokenKind::Text(name) => Dim::symbol(name),
            TokenKind::Ident(name) => {
                let name = *name;
                let function: Option<fn(&Dim, &Dim) -> Dim> = match name {
                    "floordiv" => Some(Dim::floor_div),
                    "mod" => Some(Dim::modulo),
                    "max" => Some(Dim::maximum),
                    "min" => Some(Dim::minimum),
                    _ => None,
                };
                match function {
                    Some(function) if self.second() == &TokenKind::Punct('(') => {
                        self.advance();
                        self.advance();
                        return self.deeper(|p| {
                            let (a, _) = p.dim()?;
                            p.expect(',')?;
                            let (b, _) = p.dim()?;
                            p.expect(')')?;
                            Ok(function(&a, &b))
                        });
                    }
                    _ => Dim::symbol(name),
                }
            }
            _ => return Err(self.unexpected("a dimension")),
        };
        self.advance();
        Ok(factor)
    }
}
