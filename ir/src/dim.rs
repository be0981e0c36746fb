//! Symbolic dimensions: integer polynomials over named symbols, kept in a canonical form so that equal expressions
//! compare equal (`N*12*32 == 384*N`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Values for symbols: `batch -> 1`, `seq -> 128`.
pub type Bindings = BTreeMap<String, i64>;

/// A dimension: a constant or a canonical polynomial over symbols and opaque integer functions of dims.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Const(i64),
    // Never constant: `Dim::from_terms` normalises.
    Poly(Arc<Terms>),
}

/// Monomial (sorted atoms, repeated for powers; empty = the constant term) -> non-zero coefficient.
type Terms = BTreeMap<Vec<Atom>, i64>;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Arc<str>),
    FloorDiv(Dim, Dim),
    Mod(Dim, Dim),
    Max(Dim, Dim),
    Min(Dim, Dim),
}

/// One step of [`Dim::fold`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DimStep<'a, T> {
    Const(i64),
    Symbol(&'a str),
    Add(T, T),
    Mul(T, T),
    FloorDiv(T, T),
    Mod(T, T),
    Max(T, T),
    Min(T, T),
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim(Repr::Const(value))
    }
}

impl From<i32> for Dim {
    fn from(value: i32) -> Dim {
        Dim::from(i64::from(value))
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim(Repr::Const(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl Dim {
    #[must_use]
    pub fn symbol(name: &str) -> Dim {
        Dim::atom(Atom::Symbol(name.into()))
    }

    #[must_use]
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => None,
        }
    }

    /// The symbol's name if the dim is exactly one symbol.
    #[must_use]
    pub fn as_symbol(&self) -> Option<&str> {
        let Repr::Poly(terms) = &self.0 else {
            return None;
        };
        match terms.iter().next() {
            Some((atoms, 1)) if terms.len() == 1 && atoms.len() == 1 => match &atoms[0] {
                Atom::Symbol(name) => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    #[must_use]
    pub fn is_one(&self) -> bool {
        self.as_const() == Some(1)
    }

    /// Floor division, as Python's `//`. Exact divisions of polynomials by constants or by a common factor simplify.
    #[must_use]
    pub fn floor_div(&self, by: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), by.as_const())
            && b != 0
        {
            return Dim::from(a.wrapping_div_euclid(b).wrapping_sub(i64::from(b < 0 && a.wrapping_rem_euclid(b) != 0)));
        }
        if by.is_one() {
            return self.clone();
        }
        if let Some(q) = self.div_exact(by) {
            return q;
        }
        Dim::atom(Atom::FloorDiv(self.clone(), by.clone()))
    }

    /// `self / by` when the quotient is provably exact: every term is divisible by a single-term divisor.
    #[must_use]
    pub fn div_exact(&self, by: &Dim) -> Option<Dim> {
        if self == by && by.as_const() != Some(0) {
            return Some(Dim::from(1));
        }
        let divisor = by.terms();
        if divisor.len() != 1 {
            // A polynomial divisor: accept only the constant-multiple case.
            return None;
        }
        let (d_atoms, d_coeff) = divisor.iter().next()?;
        let mut out = Terms::new();
        for (atoms, coeff) in self.terms() {
            if coeff.wrapping_rem(*d_coeff) != 0 {
                return None;
            }
            let mut rest = atoms.clone();
            for atom in d_atoms {
                let at = rest.iter().position(|a| a == atom)?;
                rest.remove(at);
            }
            out.insert(rest, coeff.wrapping_div(*d_coeff));
        }
        Some(Dim::from_terms(out))
    }

    /// Floor modulus, as Python's `%`.
    #[must_use]
    pub fn modulo(&self, by: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), by.as_const())
            && b != 0
        {
            let quotient = Dim::from(a).floor_div(&Dim::from(b)).as_const().unwrap_or(0);
            return Dim::from(a.wrapping_sub(b.wrapping_mul(quotient)));
        }
        if self.div_exact(by).is_some() {
            return Dim::from(0);
        }
        Dim::atom(Atom::Mod(self.clone(), by.clone()))
    }

    #[must_use]
    pub fn maximum(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::from(a.max(b)),
            _ if self == other => self.clone(),
            _ => {
                let (a, b) = if self <= other { (self, other) } else { (other, self) };
                Dim::atom(Atom::Max(a.clone(), b.clone()))
            }
        }
    }

    #[must_use]
    pub fn minimum(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::from(a.min(b)),
            _ if self == other => self.clone(),
            _ => {
                let (a, b) = if self <= other { (self, other) } else { (other, self) };
                Dim::atom(Atom::Min(a.clone(), b.clone()))
            }
        }
    }

    /// Ceiling division by a positive dim: `(self + by - 1) // by`.
    #[must_use]
    pub fn ceil_div(&self, by: &Dim) -> Dim {
        (self.clone() + by.clone() - Dim::from(1)).floor_div(by)
    }

    /// The value under `bindings`; `None` if a symbol is unbound, a divisor is zero, or the arithmetic overflows.
    #[must_use]
    pub fn eval(&self, bindings: &Bindings) -> Option<i64> {
        let terms = match &self.0 {
            Repr::Const(c) => return Some(*c),
            Repr::Poly(terms) => terms,
        };
        let mut sum = 0i64;
        for (atoms, coeff) in terms.iter() {
            let mut product = *coeff;
            for atom in atoms {
                product = product.checked_mul(atom.eval(bindings)?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// Replaces bound symbols by their values and simplifies.
    #[must_use]
    pub fn substitute(&self, bindings: &Bindings) -> Dim {
        self.rewrite(&|name| bindings.get(name).map(|v| Dim::from(*v)))
    }

    /// Replaces symbols by dims and simplifies.
    #[must_use]
    pub fn rewrite(&self, map: &dyn Fn(&str) -> Option<Dim>) -> Dim {
        let Repr::Poly(terms) = &self.0 else {
            return self.clone();
        };
        let mut sum = Dim::from(0);
        for (atoms, coeff) in terms.iter() {
            let mut product = Dim::from(*coeff);
            for atom in atoms {
                let factor = match atom {
                    Atom::Symbol(name) => map(name).unwrap_or_else(|| Dim::symbol(name)),
                    Atom::FloorDiv(a, b) => a.rewrite(map).floor_div(&b.rewrite(map)),
                    Atom::Mod(a, b) => a.rewrite(map).modulo(&b.rewrite(map)),
                    Atom::Max(a, b) => a.rewrite(map).maximum(&b.rewrite(map)),
                    Atom::Min(a, b) => a.rewrite(map).minimum(&b.rewrite(map)),
                };
                product = product * factor;
            }
            sum = sum + product;
        }
        sum
    }

    /// Adds every symbol named in this dim to `into`.
    pub fn symbols(&self, into: &mut BTreeSet<String>) {
        let Repr::Poly(terms) = &self.0 else { return };
        for atom in terms.keys().flatten() {
            match atom {
                Atom::Symbol(name) => {
                    into.insert(name.to_string());
                }
                Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                    a.symbols(into);
                    b.symbols(into);
                }
            }
        }
    }

    /// A value that the dim never goes below, given that every symbol is at least 1; `None` where none is known.
    #[must_use]
    pub fn lower_bound(&self) -> Option<i64> {
        let terms = match &self.0 {
            Repr::Const(c) => return Some(*c),
            Repr::Poly(terms) => terms,
        };
        let mut sum = 0i64;
        for (atoms, coeff) in terms.iter() {
            let mut product = *coeff;
            for atom in atoms {
                // A negative term is lowest where its atoms are highest.
                let bound = if *coeff < 0 { atom.upper_bound() } else { atom.lower_bound() };
                product = product.checked_mul(bound.filter(|b| *b >= 0)?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// The product of `dims`; 1 for none.
    #[must_use]
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
        dims.into_iter().fold(Dim::from(1), |acc, d| acc * d.clone())
    }

    /// Parses the form that `Display` prints: `batch*384 + 1`, `floordiv(N, 2)`, `max(N, 1)`.
    ///
    /// # Errors
    /// The byte offset of the first character that does not fit, and what was expected there.
    pub fn parse(text: &str) -> Result<Dim, (usize, &'static str)> {
        let mut parser = DimParser { text: text.as_bytes(), at: 0 };
        let dim = parser.sum()?;
        parser.skip_space();
        if parser.at == text.len() { Ok(dim) } else { Err((parser.at, "end of dimension")) }
    }

    /// Renders the dim as a C-like expression; `symbol` renders each symbol, functions become calls of
    /// `floordiv`, `mod`, `max`, `min`.
    #[must_use]
    pub fn render(&self, symbol: &dyn Fn(&str) -> String) -> String {
        let terms = match &self.0 {
            Repr::Const(c) => return c.to_string(),
            Repr::Poly(terms) => terms,
        };
        // Highest monomials first, the constant last, as people write them.
        let mut out = String::new();
        for (atoms, coeff) in terms.iter().rev() {
            let magnitude = coeff.unsigned_abs();
            if out.is_empty() {
                if *coeff < 0 {
                    out.push('-');
                }
            } else {
                out.push_str(if *coeff < 0 { " - " } else { " + " });
            }
            let mut factors: Vec<String> = atoms.iter().map(|a| a.render(symbol)).collect();
            if magnitude != 1 || factors.is_empty() {
                factors.push(magnitude.to_string());
            }
            out.push_str(&factors.join("*"));
        }
        out
    }

    /// Computes the dim bottom-up in another domain: `step` sees constants and symbols first, then their combinations.
    pub fn fold<T>(&self, step: &mut dyn FnMut(DimStep<'_, T>) -> T) -> T {
        let terms = match &self.0 {
            Repr::Const(c) => return step(DimStep::Const(*c)),
            Repr::Poly(terms) => terms,
        };
        let mut sum: Option<T> = None;
        for (atoms, coeff) in terms.iter().rev() {
            let mut product = (*coeff != 1 || atoms.is_empty()).then(|| step(DimStep::Const(*coeff)));
            for atom in atoms {
                let factor = match atom {
                    Atom::Symbol(name) => step(DimStep::Symbol(name)),
                    Atom::FloorDiv(a, b) => {
                        let (a, b) = (a.fold(step), b.fold(step));
                        step(DimStep::FloorDiv(a, b))
                    }
                    Atom::Mod(a, b) => {
                        let (a, b) = (a.fold(step), b.fold(step));
                        step(DimStep::Mod(a, b))
                    }
                    Atom::Max(a, b) => {
                        let (a, b) = (a.fold(step), b.fold(step));
                        step(DimStep::Max(a, b))
                    }
                    Atom::Min(a, b) => {
                        let (a, b) = (a.fold(step), b.fold(step));
                        step(DimStep::Min(a, b))
                    }
                };
                product = Some(match product {
                    Some(product) => step(DimStep::Mul(product, factor)),
                    None => factor,
                });
            }
            if let Some(term) = product {
                sum = Some(match sum {
                    Some(sum) => step(DimStep::Add(sum, term)),
                    None => term,
                });
            }
        }
        match sum {
            Some(sum) => sum,
            None => step(DimStep::Const(0)),
        }
    }

    fn atom(atom: Atom) -> Dim {
        Dim(Repr::Poly(Arc::new(Terms::from([(vec![atom], 1)]))))
    }

    fn terms(&self) -> Terms {
        match &self.0 {
            Repr::Const(0) => Terms::new(),
            Repr::Const(c) => Terms::from([(Vec::new(), *c)]),
            Repr::Poly(terms) => (**terms).clone(),
        }
    }

    fn from_terms(mut terms: Terms) -> Dim {
        terms.retain(|_, c| *c != 0);
        match terms.len() {
            0 => Dim::from(0),
            1 if terms.contains_key(&Vec::new()) => Dim::from(terms[&Vec::new()]),
            _ => Dim(Repr::Poly(Arc::new(terms))),
        }
    }
}

impl Atom {
    fn eval(&self, bindings: &Bindings) -> Option<i64> {
        match self {
            Atom::Symbol(name) => bindings.get(&**name).copied(),
            Atom::FloorDiv(a, b) => Dim::from(a.eval(bindings)?).floor_div(&Dim::from(b.eval(bindings)?)).as_const(),
            Atom::Mod(a, b) => Dim::from(a.eval(bindings)?).modulo(&Dim::from(b.eval(bindings)?)).as_const(),
            Atom::Max(a, b) => Some(a.eval(bindings)?.max(b.eval(bindings)?)),
            Atom::Min(a, b) => Some(a.eval(bindings)?.min(b.eval(bindings)?)),
        }
    }

    fn lower_bound(&self) -> Option<i64> {
        match self {
            Atom::Symbol(_) => Some(1),
            Atom::FloorDiv(a, b) => {
                let (a, least) = (a.lower_bound()?, b.lower_bound()?);
                match b.as_const() {
                    Some(b) if b > 0 => Some(a.div_euclid(b)),
                    _ => (a >= 0 && least >= 1).then_some(0),
                }
            }
            Atom::Mod(_, b) => (b.lower_bound()? >= 1).then_some(0),
            Atom::Max(a, b) => a.lower_bound().max(b.lower_bound()),
            Atom::Min(a, b) => Some(a.lower_bound()?.min(b.lower_bound()?)),
        }
    }

    fn upper_bound(&self) -> Option<i64> {
        match self {
            Atom::Mod(_, b) => b.as_const().filter(|b| *b > 0).map(|b| b - 1),
            Atom::Min(a, b) => match (a.as_const(), b.as_const()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            Atom::Symbol(_) | Atom::FloorDiv(..) | Atom::Max(..) => None,
        }
    }

    fn render(&self, symbol: &dyn Fn(&str) -> String) -> String {
        let call = |name: &str, a: &Dim, b: &Dim| format!("{name}({}, {})", a.render(symbol), b.render(symbol));
        match self {
            Atom::Symbol(name) => symbol(name),
            Atom::FloorDiv(a, b) => call("floordiv", a, b),
            Atom::Mod(a, b) => call("mod", a, b),
            Atom::Max(a, b) => call("max", a, b),
            Atom::Min(a, b) => call("min", a, b),
        }
    }
}

impl Add for Dim {
    type Output = Dim;
    fn add(self, other: Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Dim::from(a.wrapping_add(b));
        }
        let mut terms = self.terms();
        for (atoms, coeff) in other.terms() {
            let sum = terms.entry(atoms).or_insert(0);
            *sum = sum.wrapping_add(coeff);
        }
        Dim::from_terms(terms)
    }
}

impl Sub for Dim {
    type Output = Dim;
    fn sub(self, other: Dim) -> Dim {
        self + other * Dim::from(-1)
    }
}

impl Mul for Dim {
    type Output = Dim;
    fn mul(self, other: Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Dim::from(a.wrapping_mul(b));
        }
        let mut out = Terms::new();
        for (a_atoms, a) in self.terms() {
            for (b_atoms, b) in other.terms() {
                let mut atoms: Vec<Atom> = a_atoms.iter().chain(&b_atoms).cloned().collect();
                atoms.sort();
                let sum = out.entry(atoms).or_insert(0);
                *sum = sum.wrapping_add(a.wrapping_mul(b));
            }
        }
        Dim::from_terms(out)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&str::to_owned))
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Dim {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_const() {
            Some(c) => serializer.serialize_i64(c),
            None => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Dim, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(n) => Ok(Dim::from(n)),
            Form::Text(text) => Dim::parse(&text).map_err(|(at, want)| {
                serde::de::Error::custom(format!("dimension '{text}': expected {want} at offset {at}"))
            }),
        }
    }
}

struct DimParser<'a> {
    text: &'a [u8],
    at: usize,
}

impl DimParser<'_> {
    fn skip_space(&mut self) {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip_space();
        let hit = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(hit);
        hit
    }

    fn sum(&mut self) -> Result<Dim, (usize, &'static str)> {
        let negative = self.eat(b'-');
        let mut acc = self.product()?;
        if negative {
            acc = acc * Dim::from(-1);
        }
        loop {
            if self.eat(b'+') {
                acc = acc + self.product()?;
            } else if self.eat(b'-') {
                acc = acc - self.product()?;
            } else {
                return Ok(acc);
            }
        }
    }

    fn product(&mut self) -> Result<Dim, (usize, &'static str)> {
        let mut acc = self.factor()?;
        while self.eat(b'*') {
            acc = acc * self.factor()?;
        }
        Ok(acc)
    }

    fn factor(&mut self) -> Result<Dim, (usize, &'static str)> {
        self.skip_space();
        if self.eat(b'(') {
            let inner = self.sum()?;
            return if self.eat(b')') { Ok(inner) } else { Err((self.at, "')'")) };
        }
        let start = self.at;
        while self.text.get(self.at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'.') {
            self.at += 1;
        }
        let word = std::str::from_utf8(&self.text[start..self.at]).map_err(|_| (start, "a dimension"))?;
        if word.is_empty() {
            return Err((start, "a number or a symbol"));
        }
        if word.as_bytes()[0].is_ascii_digit() {
            return word.parse::<i64>().map(Dim::from).map_err(|_| (start, "a 64-bit integer"));
        }
        let function: fn(&Dim, &Dim) -> Dim = match word {
            "floordiv" => Dim::floor_div,
            "mod" => Dim::modulo,
            "max" => Dim::maximum,
            "min" => Dim::minimum,
            _ => return Ok(Dim::symbol(word)),
        };
        if !self.eat(b'(') {
            return Ok(Dim::symbol(word));
        }
        let a = self.sum()?;
        if !self.eat(b',') {
            return Err((self.at, "','"));
        }
        let b = self.sum()?;
        if !self.eat(b')') {
            return Err((self.at, "')'"));
        }
        Ok(function(&a, &b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_are_equal() {
        let n = || Dim::symbol("N");
        assert_eq!(n() * Dim::from(12) * Dim::from(32), Dim::from(384) * n());
        assert_eq!((n() * Dim::from(384)).floor_div(&Dim::from(384)), n());
        assert_eq!((n() + Dim::from(1)) * (n() - Dim::from(1)), n() * n() - Dim::from(1));
        assert_eq!(n() - n(), Dim::from(0));
        assert_eq!((n() * Dim::symbol("S")).floor_div(&Dim::symbol("S")), n());
    }

    #[test]
    fn prints_and_parses_back() {
        for text in ["7", "N", "N*384", "M*N*2 + N - 1", "-N + 4", "floordiv(N + 1, 2)*3", "max(N, 1)", "mod(N, 8)"] {
            let dim = Dim::parse(text).unwrap();
            assert_eq!(Dim::parse(&dim.to_string()).unwrap(), dim, "{text} -> {dim}");
        }
    }

    #[test]
    fn floor_division_is_pythons() {
        for (a, b, q, m) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -3, -2, 0)] {
            assert_eq!(Dim::from(a as i64).floor_div(&Dim::from(b as i64)).as_const(), Some(q), "{a} // {b}");
            assert_eq!(Dim::from(a as i64).modulo(&Dim::from(b as i64)).as_const(), Some(m), "{a} % {b}");
        }
    }

    #[test]
    fn evaluates_under_bindings() {
        let dim = Dim::parse("floordiv(N*2 + 1, 3)").unwrap();
        assert_eq!(dim.eval(&Bindings::from([("N".into(), 4)])), Some(3));
        assert_eq!(dim.eval(&Bindings::new()), None);
        assert_eq!(dim.substitute(&Bindings::from([("N".into(), 4)])), Dim::from(3));
    }

    #[test]
    fn lower_bounds_take_symbols_as_positive() {
        let bound = |text: &str| Dim::parse(text).unwrap().lower_bound();
        assert_eq!(bound("3*N + 2"), Some(5));
        assert_eq!(bound("N - 1"), Some(0));
        assert_eq!(bound("4 - N"), None);
        assert_eq!(bound("4 - mod(N, 4)"), Some(1));
        assert_eq!(bound("floordiv(N, 2)"), Some(0));
        assert_eq!(bound("max(N, 7)"), Some(7));
        assert_eq!(bound("5 - min(N, 3)"), Some(2));
        assert_eq!(bound("-2"), Some(-2));
    }

    #[test]
    fn folds_bottom_up() {
        let dim = Dim::parse("3*N + floordiv(N*M + 1, 2) - 4").unwrap();
        let bindings = Bindings::from([("N".into(), 5), ("M".into(), 2)]);
        let value = dim.fold::<i64>(&mut |step| match step {
            DimStep::Const(c) => c,
            DimStep::Symbol(name) => bindings[name],
            DimStep::Add(a, b) => a + b,
            DimStep::Mul(a, b) => a * b,
            DimStep::FloorDiv(a, b) => a.div_euclid(b),
            DimStep::Mod(a, b) => a.rem_euclid(b),
            DimStep::Max(a, b) => a.max(b),
            DimStep::Min(a, b) => a.min(b),
        });
        assert_eq!(Some(value), dim.eval(&bindings));
    }
}
