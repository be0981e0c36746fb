//! The first line of defence: a scan of a candidate's source for what no kernel needs.
//!
//! It reads text, so it can be fooled; it is there to give an honest author (a language model, mostly) a precise answer early.
//! What it misses is stopped by what follows: the compiled module's imports and state ([`crate::object`]), then the worker
//! process ([`crate::worker`]), then the gate ([`crate::validate`]).
//!
//! The rule: a kernel is a function of its operands. It includes the device headers and a few standard ones, defines functions,
//! types and constants, and does nothing else at namespace scope.

mod lexer;
mod names;

use std::fmt;

use lexer::{At, Token};
use names::{ATTRIBUTES, COMMON_WORDS, INCLUDES, NAME_PREFIXES, NAMES, PRAGMAS};

/// What is wrong with a source, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub line: usize,
    pub kind: Forbidden,
    /// The word, header or construct.
    pub what: String,
}

/// The kinds of constructs that a candidate may not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forbidden {
    /// Text that is not plain C++ tokens.
    Text,
    Include,
    Directive,
    /// A name of the operating system, of threads, clocks, allocation or control flow that leaves the function.
    Name,
    Attribute,
    /// A variable that outlives a call, or a declaration of something defined elsewhere.
    State,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { line, kind, what } = self;
        write!(f, "line {line}: ")?;
        match kind {
            Forbidden::Text => write!(f, "{what}"),
            Forbidden::Include => write!(f, "#include {what} is not admitted; admitted are {}", admitted_includes()),
            Forbidden::Directive => write!(f, "the directive `#{what}` is not admitted"),
            Forbidden::Name => write!(f, "`{what}` is not admitted in a kernel"),
            Forbidden::Attribute => write!(f, "the attribute `{what}` is not admitted"),
            Forbidden::State => write!(f, "{what}: a kernel keeps no state and defines all that it calls"),
        }
    }
}

fn admitted_includes() -> String {
    INCLUDES.join(", ")
}

/// Scans a candidate's source.
///
/// # Errors
/// The first construct that a kernel may not hold.
///
/// ```
/// use forge_kernels::inspect::{Forbidden, inspect};
/// assert!(inspect("#include \"forge_cpu.hpp\"\nextern \"C\" void f(void* const*) {}\n").is_ok());
/// assert_eq!(inspect("#include <cstdio>\n").unwrap_err().kind, Forbidden::Include);
/// ```
pub fn inspect(source: &str) -> Result<(), Finding> {
    if source.contains('\0') {
        return Err(finding(1, Forbidden::Text, "the source holds a NUL byte"));
    }
    let tokens = lexer::tokens(source).map_err(|(line, what)| finding(line, Forbidden::Text, what))?;
    let mut code = Vec::new();
    for at in tokens {
        match &at.token {
            Token::Directive(text) => directive(text, at.line)?,
            _ => code.push(at),
        }
    }
    names(&code)?;
    attributes(&code)?;
    statics(&code)?;
    declarations(&code)
}

fn finding(line: usize, kind: Forbidden, what: impl Into<String>) -> Finding {
    Finding { line, kind, what: what.into() }
}

fn directive(text: &str, line: usize) -> Result<(), Finding> {
    let text = text.trim();
    let (name, rest) = text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()));
    let rest = rest.trim();
    match name {
        "include" if INCLUDES.contains(&rest) => Ok(()),
        "include" => Err(finding(line, Forbidden::Include, rest)),
        "define" => {
            if rest.contains("##") {
                return Err(finding(line, Forbidden::Directive, "define with ## (a name that no reader sees)"));
            }
            let body = lexer::tokens(rest).map_err(|(_, what)| finding(line, Forbidden::Text, what))?;
            let body: Vec<At> = body.into_iter().map(|at| At { line, ..at }).collect();
            names(&body)?;
            attributes(&body)?;
            statics(&body)
        }
        "pragma" if PRAGMAS.iter().any(|p| rest.starts_with(p)) => Ok(()),
        "if" | "ifdef" | "ifndef" | "elif" | "else" | "endif" | "undef" | "error" | "" => Ok(()),
        _ => Err(finding(line, Forbidden::Directive, text)),
    }
}

fn word(at: &At) -> Option<&str> {
    match &at.token {
        Token::Word(word) => Some(word),
        _ => None,
    }
}

fn is_sign(at: Option<&At>, sign: char) -> bool {
    at.is_some_and(|a| a.token == Token::Sign(sign))
}

fn names(code: &[At]) -> Result<(), Finding> {
    for (i, at) in code.iter().enumerate() {
        let Some(name) = word(at) else { continue };
        let qualified = i.checked_sub(1).is_some_and(|before| is_sign(code.get(before), ':'));
        let used = qualified || is_sign(code.get(i + 1), '(') || is_sign(code.get(i + 1), '<');
        if COMMON_WORDS.contains(&name) && !used {
            continue;
        }
        if NAMES.contains(&name) || NAME_PREFIXES.iter().any(|p| name.starts_with(p)) {
            return Err(finding(at.line, Forbidden::Name, name));
        }
    }
    Ok(())
}

/// Admits known names only, in `__attribute__((..))`, `[[..]]` and `__declspec(..)`.
fn attributes(code: &[At]) -> Result<(), Finding> {
    for (i, at) in code.iter().enumerate() {
        let gnu = matches!(word(at), Some("__attribute__" | "__attribute" | "__declspec"));
        let standard = is_sign(Some(at), '[') && is_sign(code.get(i + 1), '[');
        if !gnu && !standard {
            continue;
        }
        let (open, close) = if gnu { ('(', ')') } else { ('[', ']') };
        let mut depth = 0usize;
        for inner in code.iter().skip(i + usize::from(gnu)) {
            match &inner.token {
                Token::Sign(c) if *c == open => depth += 1,
                Token::Sign(c) if *c == close => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
                // Arguments (of vector_size, aligned) are expressions; only the attribute's own depth holds names.
                Token::Word(name) if depth == 2 => {
                    let bare = name.trim_matches('_');
                    if !ATTRIBUTES.contains(&bare) {
                        return Err(finding(inner.line, Forbidden::Attribute, name.clone()));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// `static` is for constants and functions.
fn statics(code: &[At]) -> Result<(), Finding> {
    for (i, at) in code.iter().enumerate().filter(|(_, at)| word(at) == Some("static")) {
        let rest = &code[i + 1..];
        let stop =
            rest.iter().position(|a| matches!(a.token, Token::Sign('(' | '=' | ';' | '{'))).unwrap_or(rest.len());
        let head = &rest[..stop];
        let has = |name: &str| head.iter().any(|a| word(a) == Some(name));
        let pointer = head.iter().any(|a| matches!(a.token, Token::Sign('*' | '&')));
        let constant = has("constexpr") || (has("const") && !pointer);
        let function = is_sign(rest.get(stop), '(') && defines_function(&rest[stop..]);
        if !constant && !function {
            return Err(finding(at.line, Forbidden::State, "a `static` variable that is not constant"));
        }
    }
    Ok(())
}

/// Whether a parameter list (or an attribute's parentheses before one) is followed by a body.
fn defines_function(from_parenthesis: &[At]) -> bool {
    let mut depth = 0usize;
    for at in from_parenthesis {
        match at.token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth = depth.saturating_sub(1),
            Token::Sign('{') if depth == 0 => return true,
            Token::Sign(';' | '=') if depth == 0 => return false,
            _ => {}
        }
    }
    // A macro's body may end before the function's does.
    true
}

/// Walks the declarations at namespace scope: types, functions with bodies and constants may stand there.
fn declarations(code: &[At]) -> Result<(), Finding> {
    let mut start = 0;
    while start < code.len() {
        let at = &code[start];
        // A closed namespace, or a stray semicolon.
        if matches!(at.token, Token::Sign('}' | ';')) {
            start += 1;
            continue;
        }
        let rest = &code[start..];
        if let Some(inside) = opens_scope(rest) {
            start += inside;
            continue;
        }
        let (length, body) = declaration(rest);
        let head = &rest[..length];
        if !body && !is_harmless(head) {
            let what = head.iter().take(6).map(spelled).collect::<Vec<_>>().join(" ");
            return Err(finding(at.line, Forbidden::State, format!("`{what} ..` at namespace scope")));
        }
        start += length;
    }
    // Inside functions, `extern` names what is defined elsewhere.
    for (i, at) in code.iter().enumerate().filter(|(_, at)| word(at) == Some("extern")) {
        if !matches!(code.get(i + 1).map(|a| &a.token), Some(Token::Text(language)) if language == "C") {
            return Err(finding(at.line, Forbidden::State, "`extern` without \"C\""));
        }
    }
    Ok(())
}

/// The length of `namespace x {` or `extern "C" {`.
fn opens_scope(code: &[At]) -> Option<usize> {
    match (code.first().map(|a| &a.token)?, code.get(1).map(|a| &a.token)) {
        (Token::Word(w), Some(Token::Text(_))) if w == "extern" && is_sign(code.get(2), '{') => Some(3),
        (Token::Word(w), Some(Token::Sign('{'))) if w == "namespace" => Some(2),
        (Token::Word(w), Some(Token::Word(_))) if w == "namespace" => {
            let brace = code.iter().position(|a| matches!(a.token, Token::Sign('{' | '=' | ';')))?;
            is_sign(code.get(brace), '{').then_some(brace + 1)
        }
        _ => None,
    }
}

/// The length of one declaration, and whether it is a function with a body.
fn declaration(code: &[At]) -> (usize, bool) {
    let (mut braces, mut parentheses) = (0usize, 0usize);
    let mut saw_parameters = false;
    let mut saw_equals = false;
    for (i, at) in code.iter().enumerate() {
        match at.token {
            Token::Sign('(') => parentheses += 1,
            Token::Sign(')') => {
                parentheses = parentheses.saturating_sub(1);
                saw_parameters |= parentheses == 0 && braces == 0;
            }
            Token::Sign('=') if braces == 0 && parentheses == 0 => saw_equals = true,
            Token::Sign('{') => braces += 1,
            Token::Sign('}') => {
                braces = braces.saturating_sub(1);
                if braces == 0 && parentheses == 0 && saw_parameters && !saw_equals && !is_type_definition(code) {
                    return (i + 1, true);
                }
            }
            Token::Sign(';') if braces == 0 && parentheses == 0 => return (i + 1, false),
            _ => {}
        }
    }
    (code.len(), false)
}

fn is_type_definition(code: &[At]) -> bool {
    // `struct alignas(64) X {`, but not `struct X f(..) {`: the first sign after the head words decides.
    let first =
        code.iter().filter_map(word).find(|w| !matches!(*w, "template" | "typename" | "class" | "int" | "bool"));
    let head = code.first().and_then(word);
    let keyword = |w: &str| matches!(w, "struct" | "class" | "union" | "enum");
    if !head.is_some_and(keyword) && !first.is_some_and(keyword) {
        return false;
    }
    let name_end = code.iter().position(|a| matches!(a.token, Token::Sign('{' | ':')));
    let parameters = code.iter().position(|a| is_sign(Some(a), '('));
    match (name_end, parameters) {
        (Some(brace), Some(open)) => brace < open || code.iter().take(open).any(|a| word(a) == Some("alignas")),
        (Some(_), None) => true,
        _ => false,
    }
}

/// A declaration that ends in `;` and leaves nothing writable behind.
fn is_harmless(head: &[At]) -> bool {
    let words: Vec<&str> = head.iter().filter_map(word).collect();
    // A language linkage in front changes nothing.
    let words = words.strip_prefix(&["extern"]).unwrap_or(&words);
    match words.first() {
        Some(&"using" | &"typedef" | &"static_assert") => return true,
        Some(&"namespace") => return true,
        _ => {}
    }
    if is_type_definition(head) {
        // Nothing may be declared between the closing brace and the semicolon.
        let last = head.len().checked_sub(2).and_then(|i| head.get(i));
        return is_sign(last, '}');
    }
    if matches!(words, ["struct" | "class" | "union", _]) {
        return true;
    }
    if words.contains(&"constexpr") {
        return true;
    }
    let initialiser = head.iter().position(|a| matches!(a.token, Token::Sign('=' | '{'))).unwrap_or(head.len());
    let constant = head[..initialiser].iter().any(|a| word(a) == Some("const"));
    let indirect = head[..initialiser].iter().any(|a| matches!(a.token, Token::Sign('*' | '&' | '(')));
    constant && !indirect
}

fn spelled(at: &At) -> String {
    match &at.token {
        Token::Word(word) => word.clone(),
        Token::Text(text) => format!("{text:?}"),
        Token::Literal => "..".into(),
        Token::Sign(c) => c.to_string(),
        Token::Directive(text) => format!("#{text}"),
    }
}

#[cfg(test)]
mod tests;
