//! Text to tokens. Newlines are not tokens; the parser asks for the line of a token where lines matter.

use std::collections::BTreeMap;

use super::error::ParseError;

/// Byte range in the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// How a value is called in the text: `%7`, or `%x` (which `%"x"` is another spelling of).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ValueName {
    Number(u32),
    Name(String),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum TokenKind<'a> {
    Ident(&'a str),
    /// Decimal, unsigned: `12`, `1.5`, `1e-5`.
    Number(&'a str),
    /// The digits after `0x`.
    Hex(&'a str),
    Text(String),
    /// `%name`
    Value(ValueName),
    /// `@name`
    Symbol(String),
    Punct(char),
    Arrow,
    End,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind<'a>,
    pub(crate) span: Span,
    /// 1-based.
    pub(crate) line: usize,
}

/// `// loc: "a", "b"` at the end of a line.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LocComment {
    pub(crate) names: Vec<String>,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) struct Lexed<'a> {
    /// Ends with one `End`.
    pub(crate) tokens: Vec<Token<'a>>,
    /// By line.
    pub(crate) locs: BTreeMap<usize, LocComment>,
}

/// `[A-Za-z_][A-Za-z0-9_.]*`: what needs no quotes as an op, attribute, symbol or value name.
pub(crate) fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(starts_identifier) && bytes.all(continues_identifier)
}

fn starts_identifier(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

fn continues_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'
}

pub(crate) fn lex(source: &str) -> Result<Lexed<'_>, ParseError> {
    let mut lexer = Lexer { source, at: 0, line: 1 };
    let mut out = Lexed { tokens: Vec::new(), locs: BTreeMap::new() };
    loop {
        lexer.skip_blank(&mut out.locs)?;
        let (start, line) = (lexer.at, lexer.line);
        let kind = lexer.token()?;
        let done = kind == TokenKind::End;
        out.tokens.push(Token { kind, span: Span { start, end: lexer.at }, line });
        if done {
            return Ok(out);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn peek(&self) -> Option<u8> {
        self.source.as_bytes().get(self.at).copied()
    }

    fn peek_second(&self) -> Option<u8> {
        self.source.as_bytes().get(self.at + 1).copied()
    }

    fn error(&self, start: usize, message: impl Into<String>) -> ParseError {
        let end = self.at.max(start + 1);
        ParseError::new(self.source, Span { start, end }, message)
    }

    /// Bytes matching `accept`, all ASCII, so slicing is at character boundaries.
    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&accept) {
            self.at += 1;
        }
        self.source.get(start..self.at).unwrap_or_default()
    }

    fn skip_blank(&mut self, locs: &mut BTreeMap<usize, LocComment>) -> Result<(), ParseError> {
        loop {
            match self.peek() {
                Some(b'\n') => {
                    self.line += 1;
                    self.at += 1;
                }
                Some(b' ' | b'\t' | b'\r') => self.at += 1,
                Some(b'/') if self.peek_second() == Some(b'/') => self.comment(locs)?,
                _ => return Ok(()),
            }
        }
    }

    fn comment(&mut self, locs: &mut BTreeMap<usize, LocComment>) -> Result<(), ParseError> {
        let start = self.at;
        self.at += 2;
        self.take_while(|b| b == b' ');
        if self.source.get(self.at..).is_some_and(|rest| rest.starts_with("loc:")) {
            self.at += 4;
            let mut names = Vec::new();
            loop {
                self.take_while(|b| b == b' ' || b == b'\t');
                if self.peek() != Some(b'"') {
                    return Err(self.error(self.at, "expected a quoted name in a loc comment"));
                }
                names.push(self.text()?);
                self.take_while(|b| b == b' ' || b == b'\t' || b == b'\r');
                match self.peek() {
                    Some(b',') => self.at += 1,
                    None | Some(b'\n') => break,
                    _ => return Err(self.error(self.at, "expected ',' or the end of the line in a loc comment")),
                }
            }
            locs.insert(self.line, LocComment { names, span: Span { start, end: self.at } });
        } else {
            self.take_while(|b| b != b'\n');
        }
        Ok(())
    }

    fn token(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let start = self.at;
        let Some(byte) = self.peek() else {
            return Ok(TokenKind::End);
        };
        match byte {
            b'"' => Ok(TokenKind::Text(self.text()?)),
            b'%' => {
                self.at += 1;
                self.value_name(start).map(TokenKind::Value)
            }
            b'@' => {
                self.at += 1;
                match self.peek() {
                    Some(b'"') => Ok(TokenKind::Symbol(self.text()?)),
                    Some(b) if starts_identifier(b) => {
                        Ok(TokenKind::Symbol(self.take_while(continues_identifier).to_owned()))
                    }
                    _ => Err(self.error(start, "expected a name after '@'")),
                }
            }
            b'-' if self.peek_second() == Some(b'>') => {
                self.at += 2;
                Ok(TokenKind::Arrow)
            }
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b',' | b':' | b'=' | b'#' | b'*' | b'+' | b'-' => {
                self.at += 1;
                Ok(TokenKind::Punct(char::from(byte)))
            }
            b if starts_identifier(b) => Ok(TokenKind::Ident(self.take_while(continues_identifier))),
            b if b.is_ascii_digit() => self.number(),
            _ => {
                let found = self.source.get(self.at..).and_then(|s| s.chars().next()).unwrap_or('\u{fffd}');
                self.at += found.len_utf8();
                Err(self.error(start, format!("unexpected character {found:?}")))
            }
        }
    }

    fn value_name(&mut self, start: usize) -> Result<ValueName, ParseError> {
        match self.peek() {
            Some(b'"') => Ok(ValueName::Name(self.text()?)),
            Some(b) if starts_identifier(b) => Ok(ValueName::Name(self.take_while(continues_identifier).to_owned())),
            Some(b) if b.is_ascii_digit() => {
                let digits = self.take_while(|b| b.is_ascii_digit());
                digits.parse().map(ValueName::Number).map_err(|_| self.error(start, "value number out of range"))
            }
            _ => Err(self.error(start, "expected a name or a number after '%'")),
        }
    }

    fn number(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let start = self.at;
        if self.peek() == Some(b'0') && self.peek_second() == Some(b'x') {
            self.at += 2;
            let digits = self.take_while(|b| b.is_ascii_hexdigit());
            if digits.is_empty() || self.peek().is_some_and(continues_identifier) {
                return Err(self.error(start, "malformed hexadecimal number"));
            }
            return Ok(TokenKind::Hex(digits));
        }
        self.take_while(|b| b.is_ascii_digit());
        if self.peek() == Some(b'.') && self.peek_second().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
            self.take_while(|b| b.is_ascii_digit());
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.take_while(|b| b.is_ascii_digit()).is_empty() {
                return Err(self.error(start, "malformed number: no digits in the exponent"));
            }
        }
        if self.peek().is_some_and(continues_identifier) {
            self.take_while(continues_identifier);
            return Err(self.error(start, "malformed number"));
        }
        Ok(TokenKind::Number(self.source.get(start..self.at).unwrap_or_default()))
    }

    /// A quoted string on one line; `self.at` is at the opening quote.
    fn text(&mut self) -> Result<String, ParseError> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = self.source.get(self.at..).unwrap_or_default();
            let Some(c) = rest.chars().next().filter(|c| *c != '\n') else {
                return Err(self.error(start, "unterminated string"));
            };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape()?),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, ParseError> {
        let start = self.at.saturating_sub(1);
        let escaped = self.peek();
        self.at += usize::from(escaped.is_some_and(|b| b.is_ascii()));
        match escaped {
            Some(b'n') => Ok('\n'),
            Some(b'r') => Ok('\r'),
            Some(b't') => Ok('\t'),
            Some(b'"') => Ok('"'),
            Some(b'\\') => Ok('\\'),
            Some(b'u') if self.peek() == Some(b'{') => {
                self.at += 1;
                let digits = self.take_while(|b| b.is_ascii_hexdigit());
                let c = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                match c {
                    Some(c) if self.peek() == Some(b'}') => {
                        self.at += 1;
                        Ok(c)
                    }
                    _ => Err(self.error(start, "malformed \\u{..} escape")),
                }
            }
            _ => Err(self.error(start, "unknown escape; known are \\n \\r \\t \\\" \\\\ \\u{..}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_loc_comments() {
        let lexed = lex("%5#1 %\"a b\" @x -> -1.5e-3 0x7f // loc: \"a\", \"b\\n\"\n// plain\n").unwrap();
        let kinds: Vec<_> = lexed.tokens.iter().map(|t| t.kind.clone()).collect();
        assert_eq!(
            kinds,
            [
                TokenKind::Value(ValueName::Number(5)),
                TokenKind::Punct('#'),
                TokenKind::Number("1"),
                TokenKind::Value(ValueName::Name("a b".into())),
                TokenKind::Symbol("x".into()),
                TokenKind::Arrow,
                TokenKind::Punct('-'),
                TokenKind::Number("1.5e-3"),
                TokenKind::Hex("7f"),
                TokenKind::End,
            ]
        );
        assert_eq!(lexed.locs[&1].names, ["a", "b\n"]);
    }

    #[test]
    fn malformed_tokens_say_so() {
        for (text, message) in [
            ("12abc", "malformed number"),
            ("1e", "no digits in the exponent"),
            ("\"abc", "unterminated string"),
            ("\"\\q\"", "unknown escape"),
            ("\"\\u{d800}\"", "malformed \\u{..} escape"),
            ("% ", "after '%'"),
            ("// loc: a", "quoted name"),
            ("é", "unexpected character 'é'"),
        ] {
            let error = lex(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
        }
    }
}
