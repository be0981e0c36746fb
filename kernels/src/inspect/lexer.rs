//! C++ source to tokens, as much as the scan needs: comments and literals out, every token with its line.

/// One token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Word(String),
    /// The content of a string literal.
    Text(String),
    /// A number or character literal.
    Literal,
    Sign(char),
    /// A preprocessor directive: the whole line after `#`, comments out.
    Directive(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) token: Token,
    pub(super) line: usize,
}

/// Why a source has no tokens: (line, sentence).
pub(super) type LexError = (usize, &'static str);

pub(super) fn tokens(source: &str) -> Result<Vec<At>, LexError> {
    let text: Vec<char> = source.chars().collect();
    let mut lexer = Lexer { text: &text, at: 0, line: 1, fresh_line: true, out: Vec::new() };
    lexer.run()?;
    Ok(lexer.out)
}

struct Lexer<'a> {
    text: &'a [char],
    at: usize,
    line: usize,
    /// Only blanks so far on this line.
    fresh_line: bool,
    out: Vec<At>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.text.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn step(&mut self) -> char {
        let c = self.peek(0);
        self.at += 1;
        if c == '\n' {
            self.line += 1;
            self.fresh_line = true;
        }
        c
    }

    fn ended(&self) -> bool {
        self.at >= self.text.len()
    }

    fn push(&mut self, token: Token, line: usize) {
        self.out.push(At { token, line });
        self.fresh_line = false;
    }

    fn run(&mut self) -> Result<(), LexError> {
        while !self.ended() {
            let line = self.line;
            match self.peek(0) {
                c if c.is_whitespace() => {
                    self.step();
                }
                '/' if matches!(self.peek(1), '/' | '*') => self.comment()?,
                '#' if self.fresh_line => {
                    let text = self.directive()?;
                    self.out.push(At { token: Token::Directive(text), line });
                    self.fresh_line = true;
                }
                '"' => {
                    let text = self.quoted('"')?;
                    self.push(Token::Text(text), line);
                }
                '\'' => {
                    self.quoted('\'')?;
                    self.push(Token::Literal, line);
                }
                c if c.is_ascii_digit() || (c == '.' && self.peek(1).is_ascii_digit()) => {
                    self.number();
                    self.push(Token::Literal, line);
                }
                c if c.is_ascii_alphabetic() || c == '_' => {
                    let word = self.word();
                    if self.peek(0) == '"' && word.ends_with('R') {
                        return Err((line, "raw string literals are not admitted"));
                    }
                    self.push(Token::Word(word), line);
                }
                // Spliced lines hide directives and comments from a reader.
                '\\' => return Err((line, "a backslash outside a literal or a macro definition is not admitted")),
                '%' if self.peek(1) == ':' => return Err((line, "digraphs are not admitted")),
                '<' if self.peek(1) == '%' => return Err((line, "digraphs are not admitted")),
                '?' if self.peek(1) == '?' => return Err((line, "trigraphs are not admitted")),
                c if c.is_ascii_graphic() => {
                    self.step();
                    self.push(Token::Sign(c), line);
                }
                _ => return Err((line, "a character that is not ASCII, outside comments and strings")),
            }
        }
        Ok(())
    }

    fn comment(&mut self) -> Result<(), LexError> {
        let line = self.line;
        let block = self.peek(1) == '*';
        self.step();
        self.step();
        loop {
            if self.ended() {
                return if block { Err((line, "a comment does not end")) } else { Ok(()) };
            }
            match (block, self.peek(0), self.peek(1)) {
                (true, '*', '/') => {
                    self.step();
                    self.step();
                    return Ok(());
                }
                (false, '\\', '\n') => {
                    return Err((self.line, "a comment that continues on the next line is not admitted"));
                }
                (false, '\n', _) => return Ok(()),
                _ => {
                    self.step();
                }
            }
        }
    }

    fn quoted(&mut self, end: char) -> Result<String, LexError> {
        let line = self.line;
        self.step();
        let mut text = String::new();
        loop {
            match self.peek(0) {
                _ if self.ended() => return Err((line, "a literal does not end")),
                '\n' => return Err((line, "a literal does not end on its line")),
                '\\' => {
                    self.step();
                    if self.peek(0) == '\n' {
                        return Err((line, "a literal does not end on its line"));
                    }
                    text.push(self.step());
                }
                c if c == end => {
                    self.step();
                    return Ok(text);
                }
                _ => text.push(self.step()),
            }
        }
    }

    fn number(&mut self) {
        // 1e-5f, 0x1p+3, 1'000'000
        loop {
            let c = self.peek(0);
            let exponent = matches!(c, 'e' | 'E' | 'p' | 'P') && matches!(self.peek(1), '+' | '-');
            if exponent {
                self.step();
                self.step();
            } else if c.is_ascii_alphanumeric()
                || matches!(c, '.' | '_')
                || (c == '\'' && self.peek(1).is_ascii_alphanumeric())
            {
                self.step();
            } else {
                return;
            }
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while self.peek(0).is_ascii_alphanumeric() || self.peek(0) == '_' {
            word.push(self.step());
        }
        word
    }

    /// The directive's text; a definition may continue over lines.
    fn directive(&mut self) -> Result<String, LexError> {
        let mut text = String::new();
        self.step();
        while !self.ended() && self.peek(0) != '\n' {
            match (self.peek(0), self.peek(1)) {
                ('\\', '\n') => {
                    self.step();
                    self.step();
                    text.push(' ');
                }
                ('/', '/') => self.comment()?,
                ('/', '*') => {
                    self.comment()?;
                    text.push(' ');
                }
                _ => text.push(self.step()),
            }
        }
        Ok(text)
    }
}
