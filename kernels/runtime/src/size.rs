//! Size expressions of a plan: integer arithmetic over symbols that input shapes bind.
//!
//! The text form is the compiler's own for dimensions: `N*384 + 1`, `floordiv(N + 1, 2)`, `max(N, 1)`. It is parsed once, at
//! load; evaluation walks a small tree with checked arithmetic.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values of symbols: `batch -> 1`, `seq -> 128`.
pub type Symbols = BTreeMap<String, i64>;

/// Parentheses and calls may nest this deep, so that no plan file can overflow the stack.
const MAX_DEPTH: usize = 128;

/// A size: a constant or an expression over symbols. In JSON an integer or a string.
///
/// ```
/// use forge_runtime::size::{Size, Symbols};
/// let size = Size::parse("floordiv(N*2 + 1, 3)").unwrap();
/// assert_eq!(size.eval(&Symbols::from([("N".to_owned(), 4)])), Ok(3));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Size(Repr);

#[derive(Clone, PartialEq, Eq)]
enum Repr {
    Constant(i64),
    Expression { text: Arc<str>, node: Arc<Node> },
}

/// Sums and products are flat, so that the depth of the tree is that of the parentheses.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Constant(i64),
    Symbol(Box<str>),
    /// (negated, term)
    Sum(Vec<(bool, Node)>),
    Product(Vec<Node>),
    Call(Function, Box<[Node; 2]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    FloorDiv,
    Mod,
    Max,
    Min,
}

/// Why a size has no text form or no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("size '{text}': expected {expected} at offset {offset}")]
    Syntax { text: String, offset: usize, expected: &'static str },
    #[error("size '{size}' needs a value for symbol '{symbol}', which no input binds")]
    Unbound { size: String, symbol: String },
    #[error("size '{size}' overflows 64 bits")]
    Overflow { size: String },
    #[error("size '{size}' divides by zero")]
    DivisionByZero { size: String },
}

/// [`SizeError`] without the text of the size, which only the root knows.
enum Failure {
    Unbound(String),
    Overflow,
    DivisionByZero,
}

impl From<i64> for Size {
    fn from(value: i64) -> Size {
        Size(Repr::Constant(value))
    }
}

impl Size {
    /// Parses `N*384 + 1`, `floordiv(N, 2)`, `max(N, 1)`, `mod(N, 8)`, `12`.
    ///
    /// # Errors
    /// [`SizeError::Syntax`], with the byte offset of the first character that does not fit.
    pub fn parse(text: &str) -> Result<Size, SizeError> {
        let mut parser = Parser { text: text.as_bytes(), at: 0, depth: 0 };
        let failed = |(offset, expected)| SizeError::Syntax { text: text.to_owned(), offset, expected };
        let node = parser.sum().map_err(failed)?;
        parser.skip_space();
        if parser.at != text.len() {
            return Err(failed((parser.at, "the end of the size")));
        }
        // An expression without symbols that has a value is that value.
        Ok(match node.eval(&Symbols::new()) {
            Ok(value) => Size::from(value),
            Err(_) => Size(Repr::Expression { text: text.into(), node: Arc::new(node) }),
        })
    }

    #[must_use]
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Constant(value) => Some(value),
            Repr::Expression { .. } => None,
        }
    }

    /// The symbol's name if the size is exactly one symbol.
    #[must_use]
    pub fn as_symbol(&self) -> Option<&str> {
        match &self.0 {
            Repr::Expression { node, .. } => match &**node {
                Node::Symbol(name) => Some(name),
                _ => None,
            },
            Repr::Constant(_) => None,
        }
    }

    /// Adds every symbol that the size names to `into`.
    pub fn symbols(&self, into: &mut BTreeSet<String>) {
        if let Repr::Expression { node, .. } = &self.0 {
            node.symbols(into);
        }
    }

    /// The value under `symbols`. Division and modulus round down, as Python's.
    ///
    /// # Errors
    /// An unbound symbol, a zero divisor, or an intermediate value beyond 64 bits.
    pub fn eval(&self, symbols: &Symbols) -> Result<i64, SizeError> {
        match &self.0 {
            Repr::Constant(value) => Ok(*value),
            Repr::Expression { text, node } => node.eval(symbols).map_err(|failure| {
                let size = text.to_string();
                match failure {
                    Failure::Unbound(symbol) => SizeError::Unbound { size, symbol },
                    Failure::Overflow => SizeError::Overflow { size },
                    Failure::DivisionByZero => SizeError::DivisionByZero { size },
                }
            }),
        }
    }
}

impl Node {
    fn eval(&self, symbols: &Symbols) -> Result<i64, Failure> {
        match self {
            Node::Constant(value) => Ok(*value),
            Node::Symbol(name) => symbols.get(&**name).copied().ok_or_else(|| Failure::Unbound(name.to_string())),
            Node::Sum(terms) => terms.iter().try_fold(0i64, |sum, (negated, term)| {
                let term = term.eval(symbols)?;
                let sum = if *negated { sum.checked_sub(term) } else { sum.checked_add(term) };
                sum.ok_or(Failure::Overflow)
            }),
            Node::Product(factors) => factors
                .iter()
                .try_fold(1i64, |product, factor| product.checked_mul(factor.eval(symbols)?).ok_or(Failure::Overflow)),
            Node::Call(function, arguments) => {
                let [a, b] = &**arguments;
                function.apply(a.eval(symbols)?, b.eval(symbols)?)
            }
        }
    }

    fn symbols(&self, into: &mut BTreeSet<String>) {
        match self {
            Node::Constant(_) => {}
            Node::Symbol(name) => {
                into.insert(name.to_string());
            }
            Node::Sum(terms) => terms.iter().for_each(|(_, term)| term.symbols(into)),
            Node::Product(factors) => factors.iter().for_each(|factor| factor.symbols(into)),
            Node::Call(_, arguments) => arguments.iter().for_each(|argument| argument.symbols(into)),
        }
    }
}

impl Function {
    fn apply(self, a: i64, b: i64) -> Result<i64, Failure> {
        match self {
            Function::Max => Ok(a.max(b)),
            Function::Min => Ok(a.min(b)),
            Function::FloorDiv | Function::Mod if b == 0 => Err(Failure::DivisionByZero),
            Function::FloorDiv => {
                let quotient = a.checked_div(b).ok_or(Failure::Overflow)?;
                let inexact = a.wrapping_rem(b) != 0;
                Ok(quotient - i64::from(inexact && (a < 0) != (b < 0)))
            }
            Function::Mod => {
                let remainder = a.wrapping_rem(b);
                Ok(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
            }
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Constant(value) => write!(f, "{value}"),
            Repr::Expression { text, .. } => f.write_str(text),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Repr::Constant(value) => serializer.serialize_i64(*value),
            Repr::Expression { text, .. } => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 64-bit integer or a size expression")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Size, E> {
                Ok(Size::from(value))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Size, E> {
                i64::try_from(value).map(Size::from).map_err(E::custom)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                Size::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Recursive descent: `sum = ['-'] product {('+'|'-') product}`, `product = factor {'*' factor}`,
/// `factor = number | symbol | function '(' sum ',' sum ')' | '(' sum ')'`.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

type Parsed<T> = Result<T, (usize, &'static str)>;

impl Parser<'_> {
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

    fn expect(&mut self, byte: u8, name: &'static str) -> Parsed<()> {
        if self.eat(byte) { Ok(()) } else { Err((self.at, name)) }
    }

    fn sum(&mut self) -> Parsed<Node> {
        if self.depth == MAX_DEPTH {
            return Err((self.at, "shallower nesting"));
        }
        self.depth += 1;
        let negated = self.eat(b'-');
        let mut terms = vec![(negated, self.product()?)];
        loop {
            if self.eat(b'+') {
                terms.push((false, self.product()?));
            } else if self.eat(b'-') {
                terms.push((true, self.product()?));
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(match (terms.pop(), terms.is_empty()) {
            (Some((false, only)), true) => only,
            (last, _) => {
                terms.extend(last);
                Node::Sum(terms)
            }
        })
    }

    fn product(&mut self) -> Parsed<Node> {
        let first = self.factor()?;
        if !self.eat(b'*') {
            return Ok(first);
        }
        let mut factors = vec![first, self.factor()?];
        while self.eat(b'*') {
            factors.push(self.factor()?);
        }
        Ok(Node::Product(factors))
    }

    fn factor(&mut self) -> Parsed<Node> {
        if self.eat(b'(') {
            let inner = self.sum()?;
            self.expect(b')', "')'")?;
            return Ok(inner);
        }
        let start = self.at;
        let rest = self.text.get(start..).unwrap_or_default();
        let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')).count();
        let word = std::str::from_utf8(&rest[..length]).map_err(|_| (start, "a number or a symbol"))?;
        self.at += length;
        match word.as_bytes().first() {
            None | Some(b'.') => return Err((start, "a number or a symbol")),
            Some(b'0'..=b'9') => {
                return word.parse::<i64>().map(Node::Constant).map_err(|_| (start, "a 64-bit integer"));
            }
            Some(_) => {}
        }
        let function = match word {
            "floordiv" => Function::FloorDiv,
            "mod" => Function::Mod,
            "max" => Function::Max,
            "min" => Function::Min,
            _ => return Ok(Node::Symbol(word.into())),
        };
        // A symbol may bear a function's name, as long as it is not called.
        if !self.eat(b'(') {
            return Ok(Node::Symbol(word.into()));
        }
        let a = self.sum()?;
        self.expect(b',', "','")?;
        let b = self.sum()?;
        self.expect(b')', "')'")?;
        Ok(Node::Call(function, Box::new([a, b])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, symbols: &[(&str, i64)]) -> Result<i64, SizeError> {
        let symbols = symbols.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Size::parse(text)?.eval(&symbols)
    }

    #[test]
    fn evaluates_the_grammar() {
        let bound = [("N", 5), ("batch.size", 3), ("mod", 7)];
        for (text, want) in [
            ("12", 12),
            ("-N + 4", -1),
            ("N*384 - batch.size*2 + 1", 1915),
            ("(N + 1)*(N - 1)", 24),
            ("N - (2 - 1) - 1", 3),
            ("floordiv(N + 1, 2)*3", 9),
            ("max(N, 9) + min(N, 9)", 14),
            ("mod(mod, N)", 2),
            ("  N  ", 5),
        ] {
            assert_eq!(value(text, &bound), Ok(want), "{text}");
        }
    }

    #[test]
    fn division_rounds_down() {
        for (a, b, quotient, remainder) in
            [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -3, -2, 0)]
        {
            let bound = [("a", a), ("b", b)];
            assert_eq!(value("floordiv(a, b)", &bound), Ok(quotient), "{a} // {b}");
            assert_eq!(value("mod(a, b)", &bound), Ok(remainder), "{a} % {b}");
        }
        assert_eq!(value("mod(a, b)", &[("a", i64::MIN), ("b", -1)]), Ok(0));
    }

    #[test]
    fn failures_are_named() {
        let size = "N*9223372036854775807".to_owned();
        assert_eq!(value(&size, &[("N", 2)]), Err(SizeError::Overflow { size: size.clone() }));
        assert_eq!(value("N + 1", &[]), Err(SizeError::Unbound { size: "N + 1".into(), symbol: "N".into() }));
        let size = "floordiv(4, N)".to_owned();
        assert_eq!(value(&size, &[("N", 0)]), Err(SizeError::DivisionByZero { size: size.clone() }));
        assert!(value("floordiv(N, 0)", &[("N", 1)]).is_err());
        let bound = [("a", i64::MIN), ("b", -1)];
        assert_eq!(value("floordiv(a, b)", &bound), Err(SizeError::Overflow { size: "floordiv(a, b)".into() }));
    }

    #[test]
    fn malformed_text_is_refused_with_its_place() {
        for (text, at) in
            [("", 0), ("N +", 3), ("N 2", 2), ("3x", 0), (".a", 0), ("max(N)", 5), ("(N", 2), ("é", 0), ("N*-1", 2)]
        {
            match Size::parse(text) {
                Err(SizeError::Syntax { offset, .. }) => assert_eq!(offset, at, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(Size::parse(&"(".repeat(1_000_000)).is_err());
        let long = vec!["N"; 100_000].join(" + ");
        assert_eq!(value(&long, &[("N", 1)]), Ok(100_000));
    }

    #[test]
    fn json_is_an_integer_or_a_string() {
        let sizes: Vec<Size> = serde_json::from_str(r#"[3, "N*2", "2*3", -1]"#).unwrap();
        assert_eq!(sizes[0].as_const(), Some(3));
        assert_eq!(sizes[2].as_const(), Some(6));
        assert_eq!(Size::parse("N").unwrap().as_symbol(), Some("N"));
        assert_eq!(sizes[1].as_symbol(), None);
        assert_eq!(serde_json::to_string(&sizes).unwrap(), r#"[3,"N*2",6,-1]"#);
        assert!(serde_json::from_str::<Size>("1.5").is_err());
        assert!(serde_json::from_str::<Size>("18446744073709551615").is_err());
        let mut names = BTreeSet::new();
        Size::parse("floordiv(A, B) + C*A").unwrap().symbols(&mut names);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["A", "B", "C"]);
    }
}
