//! Options of one step of a pipeline: `{max=3, only=gelu}`.

use std::fmt;

use crate::PassError;

/// Names and values as written; a bare name is `true`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options(Vec<(String, String)>);

impl Options {
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Options {
        self.0.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The value as a number.
    ///
    /// # Errors
    /// If it is something else.
    pub fn number(&self, name: &str) -> Result<Option<usize>, PassError> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| PassError::Option {
                    option: name.to_owned(),
                    expected: "a number".into(),
                    found: text.to_owned(),
                })
            })
            .transpose()
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let options: Vec<String> =
            self.0.iter().map(|(n, v)| if v == "true" { n.clone() } else { format!("{n}={v}") }).collect();
        write!(f, "{{{}}}", options.join(","))
    }
}
