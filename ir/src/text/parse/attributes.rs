//! Attributes and literals.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::Attr;

use super::{MAX_TERMS, Parsed, Parser};
use crate::text::lexer::{Span, TokenKind};
use crate::text::literal::{Literal, LiteralKind};

impl<'a> Parser<'a> {
    pub(super) fn literal(&mut self) -> Parsed<Literal<'a>> {
        let start = self.span().start;
        let negative = self.eat('-');
        let kind = match *self.kind() {
            TokenKind::Number(digits) => LiteralKind::Number(digits),
            TokenKind::Hex(digits) => LiteralKind::Bits(digits),
            TokenKind::Ident(word @ ("true" | "false" | "inf" | "nan")) => LiteralKind::Word(word),
            _ => return Err(self.unexpected("a number, true or false")),
        };
        let span = Span { start, end: self.span().end };
        self.advance();
        Ok(Literal { negative, kind, span })
    }

    pub(super) fn attribute(&mut self) -> Parsed<(String, Attr, Span)> {
        let span = self.span();
        let name = self.ident("an attribute")?.to_owned();
        if !self.eat('=') {
            return Ok((name, Attr::Bool(true), span));
        }
        let attr = if self.eat('[') { self.attr_list()? } else { self.attr_scalar()?.0 };
        Ok((name, attr, span))
    }

    /// A list of the narrowest kind that holds all elements: integers, floats, dims.
    fn attr_list(&mut self) -> Parsed<Attr> {
        let start = self.span();
        let items = self.list(']', Self::attr_scalar)?;
        if items.iter().all(|(a, _)| matches!(a, Attr::Int(_))) {
            let ints = items.iter().filter_map(|(a, _)| if let Attr::Int(v) = a { Some(*v) } else { None });
            return Ok(Attr::Ints(ints.collect()));
        }
        let as_float = |a: &Attr| match a {
            Attr::Float(v) => Some(*v),
            Attr::Int(v) => Some(*v as f64),
            _ => None,
        };
        if let Some(floats) = items.iter().map(|(a, _)| as_float(a)).collect() {
            return Ok(Attr::Floats(floats));
        }
        let as_dim = |a: &Attr| match a {
            Attr::Int(v) => Some(Dim::from(*v)),
            Attr::Dim(dim) => Some(dim.clone()),
            Attr::DType(dtype) => Some(Dim::symbol(dtype.name())),
            Attr::Str(name) => Some(Dim::symbol(name)),
            _ => None,
        };
        let terms = items.iter().fold(1usize, |acc, (_, terms)| acc.saturating_mul(*terms));
        match items.iter().map(|(a, _)| as_dim(a)).collect() {
            Some(_) if terms > MAX_TERMS => Err(self.error(start, "these dimensions are too complex")),
            Some(dims) => Ok(Attr::Dims(dims)),
            None => Err(self.error(start, "a list holds integers, floats or dimensions, one kind of them")),
        }
    }

    /// An attribute that is not a list, and the number of terms if it is a dim.
    fn attr_scalar(&mut self) -> Parsed<(Attr, usize)> {
        let signed = self.kind() == &TokenKind::Punct('-');
        let float = match if signed { self.second() } else { self.kind() } {
            TokenKind::Number(digits) => digits.contains(['.', 'e', 'E']),
            TokenKind::Hex(_) | TokenKind::Ident("inf" | "nan") => true,
            _ => false,
        };
        if float {
            let literal = self.literal()?;
            let value = literal.to_f64().map_err(|message| self.error(literal.span, message))?;
            return Ok((Attr::Float(value), 1));
        }
        let plain = !matches!(self.second(), TokenKind::Punct('*' | '+' | '-'));
        match self.kind() {
            TokenKind::Ident(word @ ("true" | "false")) => {
                let value = *word == "true";
                self.advance();
                Ok((Attr::Bool(value), 1))
            }
            TokenKind::Text(text) if plain => {
                let text = text.clone();
                self.advance();
                Ok((Attr::Str(text), 1))
            }
            TokenKind::Ident(word) if plain && DType::from_name(word).is_some() => {
                let attr = DType::from_name(word).map_or(Attr::Bool(false), Attr::DType);
                self.advance();
                Ok((attr, 1))
            }
            _ => {
                let (dim, terms) = self.dim()?;
                Ok((dim.as_const().map_or(Attr::Dim(dim), Attr::Int), terms))
            }
        }
    }
}
