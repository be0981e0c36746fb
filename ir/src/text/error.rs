//! What a reader of a bad `.forge` file is told.

use std::fmt;

use super::lexer::Span;

/// Why text is not a graph: where, what, and what to write instead.
///
/// `Display` is one line (`3:8: unknown op 'matmull'`); [`ParseError::render`] shows the source line with a caret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// 1-based.
    pub line: usize,
    /// 1-based, in characters.
    pub column: usize,
    pub message: String,
    /// What was expected there, or the close name that was probably meant.
    pub help: Option<String>,
    source_line: String,
    width: usize,
}

impl ParseError {
    pub(super) fn new(source: &str, span: Span, message: impl Into<String>) -> ParseError {
        let start = floor_char(source, span.start);
        let end = floor_char(source, span.end).max(start);
        let (before, after) = source.split_at(start);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let head = before.get(line_start..).unwrap_or_default();
        let tail = after.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let spanned = source.get(start..end).unwrap_or_default().split('\n').next().unwrap_or_default();
        ParseError {
            line: before.matches('\n').count() + 1,
            column: head.chars().count() + 1,
            message: message.into(),
            help: None,
            source_line: format!("{head}{tail}"),
            width: spanned.chars().count().max(1),
        }
    }

    pub(super) fn with_help(mut self, help: impl Into<String>) -> ParseError {
        self.help = Some(help.into());
        self
    }

    pub(super) fn with_suggestion(self, suggestion: Option<&str>) -> ParseError {
        match suggestion {
            Some(name) => self.with_help(format!("did you mean '{name}'?")),
            None => self,
        }
    }

    /// The error with the source line and a caret under the place; `file` names the source.
    #[must_use]
    pub fn render(&self, file: &str) -> String {
        const SHOWN: usize = 120;
        let gutter = self.line.to_string().len();
        // A generated line may be megabytes long (a literal): show a window around the place.
        let chars: Vec<char> = self.source_line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let at = self.column - 1;
        let from = if chars.len() > SHOWN { at.saturating_sub(SHOWN / 2) } else { 0 };
        let shown: String = chars.iter().skip(from).take(SHOWN).collect();
        let carets = "^".repeat(self.width.min(SHOWN.saturating_sub(at - from)).max(1));
        let mut out = format!(
            "error: {}\n{:gutter$}--> {file}:{}:{}\n{:gutter$} |\n{} | {}\n{:gutter$} | {}{carets}\n",
            self.message,
            "",
            self.line,
            self.column,
            "",
            self.line,
            shown.trim_end(),
            "",
            " ".repeat(at - from),
        );
        if let Some(help) = &self.help {
            out.push_str(&format!("{:gutter$} = help: {help}\n", ""));
        }
        out
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ParseError {}

fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The candidate nearest to `name` by edit distance, if near enough to be a slip of the pen.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: Vec<char> = name.chars().take(64).collect();
    let limit = (name.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|c| (edit_distance(&name, &c.chars().take(64).collect::<Vec<_>>()), c))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, c)| c)
}

/// Levenshtein distance in two rows.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let replace = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replace.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_a_slip_not_a_guess() {
        assert_eq!(nearest("matmull", ["matmul", "max", "mul"]), Some("matmul"));
        assert_eq!(nearest("redce_sum", ["reduce_sum", "reduce_max"]), Some("reduce_sum"));
        assert_eq!(nearest("zebra", ["matmul", "max", "mul"]), None);
        assert_eq!(edit_distance(&['a', 'b'], &['b', 'a']), 2);
        assert_eq!(edit_distance(&[], &['b', 'a']), 2);
    }
}
