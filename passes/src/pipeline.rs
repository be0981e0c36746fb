//! Pipelines as text: `simplify,fold{max_bytes=4096},cse,raise{only=gelu},dce`.

use std::fmt;
use std::str::FromStr;

use crate::registry::{COMMON_OPTIONS, Pass, pass};
use crate::{Options, PASSES};

/// Canonicalisation and raising. Simplifying comes before raising, which then has few spellings to know, and after it,
/// to absorb the views that a raised op no longer needs.
pub const DEFAULT_PIPELINE: &str = "simplify,fold,simplify,cse,raise,simplify,fold,cse,dce";

/// One pass with its options.
#[derive(Clone, Debug)]
pub struct Step {
    pub pass: &'static Pass,
    pub options: Options,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.pass.name, self.options)
    }
}

/// Passes in order. Prints as it parses.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    pub steps: Vec<Step>,
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        f.write_str(&steps.join(","))
    }
}

/// Why text is not a pipeline.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PipelineError {
    #[error("no pass is called '{name}'; there are {known}")]
    UnknownPass { name: String, known: String },
    #[error("pass '{pass}' has no option '{option}'; it has {known}")]
    UnknownOption { pass: &'static str, option: String, known: String },
    #[error("expected {expected} at character {at} of the pipeline '{text}'")]
    Syntax { text: String, at: usize, expected: &'static str },
}

impl FromStr for Pipeline {
    type Err = PipelineError;

    fn from_str(text: &str) -> Result<Pipeline, PipelineError> {
        let mut reader = Reader { text, rest: text };
        let mut steps = Vec::new();
        reader.skip_space();
        while !reader.rest.is_empty() {
            if !steps.is_empty() {
                reader.expect(',', "','")?;
            }
            steps.push(reader.step()?);
            reader.skip_space();
        }
        Ok(Pipeline { steps })
    }
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn error(&self, expected: &'static str) -> PipelineError {
        let at = self.text.len() - self.rest.len();
        let at = self.text.get(..at).map_or(0, |head| head.chars().count()) + 1;
        PipelineError::Syntax { text: self.text.to_owned(), at, expected }
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char, expected: &'static str) -> Result<(), PipelineError> {
        if self.eat(c) { Ok(()) } else { Err(self.error(expected)) }
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, PipelineError> {
        self.skip_space();
        let end =
            self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-.+".contains(c))).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return Err(self.error(expected));
        }
        self.rest = rest;
        Ok(word)
    }

    fn step(&mut self) -> Result<Step, PipelineError> {
        let name = self.word("the name of a pass")?;
        let Some(pass) = pass(name) else {
            let known = PASSES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
            return Err(PipelineError::UnknownPass { name: name.to_owned(), known });
        };
        let mut options = Options::default();
        if self.eat('{') {
            while !self.eat('}') {
                if options != Options::default() {
                    self.expect(',', "',' or '}'")?;
                }
                let name = self.word("the name of an option")?;
                let value = if self.eat('=') { self.word("a value")? } else { "true" };
                options = options.with(name, value);
            }
        }
        let known = || pass.options.iter().chain(COMMON_OPTIONS).map(|o| o.name);
        if let Some(option) = options.names().find(|name| known().all(|k| k != *name)) {
            let known = known().collect::<Vec<_>>().join(", ");
            return Err(PipelineError::UnknownOption { pass: pass.name, option: option.to_owned(), known });
        }
        Ok(Step { pass, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_it_parses() {
        for text in ["", "cse", "cse,dce{max=3}", "simplify,raise{only=gelu,max=1},dce"] {
            assert_eq!(text.parse::<Pipeline>().unwrap().to_string(), text);
        }
        assert_eq!(" cse , dce { max = 3 } ".parse::<Pipeline>().unwrap().to_string(), "cse,dce{max=3}");
        assert!(DEFAULT_PIPELINE.parse::<Pipeline>().is_ok());
    }

    #[test]
    fn errors_name_what_there_is() {
        for (text, message) in [
            ("csee", "no pass is called 'csee'; there are cse, dce, fold, raise, simplify"),
            ("cse{min=1}", "pass 'cse' has no option 'min'; it has max"),
            ("cse,", "expected the name of a pass at character 5"),
            ("cse dce", "expected ',' at character 5"),
            ("cse{max=}", "expected a value at character 9"),
            ("cse{max", "expected ',' or '}' at character 8"),
        ] {
            let error = text.parse::<Pipeline>().unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
