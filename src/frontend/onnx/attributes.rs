//! Typed access to a node's attributes, with a record of which ones the lowering understood.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::lower::Refusal;
use super::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, attribute_type};

/// The attributes of one node. Reading one marks it as understood; [`Attributes::unread`] names the rest, which the
/// importer refuses rather than ignores.
pub(super) struct Attributes<'a> {
    list: &'a [AttributeProto],
    read: RefCell<BTreeSet<&'a str>>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(node: &'a NodeProto) -> Attributes<'a> {
        Attributes { list: &node.attribute, read: RefCell::new(BTreeSet::new()) }
    }

    fn find(&self, name: &str) -> Option<&'a AttributeProto> {
        let found = self.list.iter().find(|a| a.name == name)?;
        self.read.borrow_mut().insert(&found.name);
        Some(found)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Marks attributes that do not change the results of the first output.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.find(name);
        }
    }

    /// Names that no one asked for.
    pub(super) fn unread(&self) -> Vec<&'a str> {
        let read = self.read.borrow();
        self.list.iter().map(|a| a.name.as_str()).filter(|name| !read.contains(name)).collect()
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        self.typed(name, attribute_type::INT, "an integer", |a| a.i)
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute that stands for a flag.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.int_or(name, 0)? != 0)
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f64>, Refusal> {
        self.typed(name, attribute_type::FLOAT, "a float", |a| a.f.map(shortest))
    }

    pub(super) fn float_or(&self, name: &str, default: f64) -> Result<f64, Refusal> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Refusal> {
        self.typed(name, attribute_type::INTS, "a list of integers", |a| Some(a.ints.clone()))
    }

    pub(super) fn floats(&self, name: &str) -> Result<Option<Vec<f64>>, Refusal> {
        let widen = |a: &AttributeProto| Some(a.floats.iter().map(|f| shortest(*f)).collect());
        self.typed(name, attribute_type::FLOATS, "a list of floats", widen)
    }

    pub(super) fn string(&self, name: &str) -> Result<Option<String>, Refusal> {
        let decode = |a: &AttributeProto| String::from_utf8(a.s.as_deref()?.to_vec()).ok();
        self.typed(name, attribute_type::STRING, "a string", decode)
    }

    pub(super) fn string_or(&self, name: &str, default: &str) -> Result<String, Refusal> {
        Ok(self.string(name)?.unwrap_or_else(|| default.to_owned()))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Option<&'a TensorProto>, Refusal> {
        self.typed(name, attribute_type::TENSOR, "a tensor", |a| a.t.as_ref())
    }

    pub(super) fn graph(&self, name: &str) -> Result<Option<&'a GraphProto>, Refusal> {
        self.typed(name, attribute_type::GRAPH, "a graph", |a| a.g.as_ref())
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: i32,
        expected_name: &str,
        get: impl Fn(&'a AttributeProto) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(attribute) = self.find(name) else { return Ok(None) };
        // Type 0: files older than IR version 2 leave it out.
        let value = (attribute.r#type == expected || attribute.r#type == 0).then(|| get(attribute)).flatten();
        value.map(Some).ok_or_else(|| Refusal::invalid(format!("attribute '{name}' should be {expected_name}")))
    }
}

/// The decimal number that an f32 attribute was written as: 1e-5 and not 1.00000001e-5, so that f64 evaluation means
/// what the model's author wrote.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::shortest;

    #[test]
    fn attributes_keep_their_decimal_value() {
        assert_eq!(shortest(1e-5), 1e-5);
        assert_eq!(shortest(0.2), 0.2);
        assert!(shortest(f32::NAN).is_nan());
        assert_eq!(shortest(f32::NEG_INFINITY), f64::NEG_INFINITY);
        assert_eq!(shortest(f32::MAX) as f32, f32::MAX);
    }
}
