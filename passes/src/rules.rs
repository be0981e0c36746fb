//! Passes that are tables of local rules.

use forge_ir::{Graph, InferError, NodeId, Patch};

use crate::{Context, PassError};

/// A rewrite with one root.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub name: &'static str,
    /// The equation, and why it holds or when it does not.
    pub about: &'static str,
    /// A patch that replaces a result of the node, if the rule matches there.
    pub apply: fn(&Graph, NodeId) -> Result<Option<Patch>, InferError>,
}

/// The first rule that matches at each node, in topological order; `only` names one rule.
pub(crate) fn run(rules: &[Rule], graph: &Graph, context: &Context) -> Result<Vec<Patch>, PassError> {
    let only = context.options.get("only");
    if let Some(name) = only
        && rules.iter().all(|rule| rule.name != name)
    {
        let expected = rules.iter().map(|rule| rule.name).collect::<Vec<_>>().join(", ");
        return Err(PassError::Option { option: "only".into(), expected, found: name.to_owned() });
    }
    let mut patches = Vec::new();
    for node in graph.topological() {
        for rule in rules.iter().filter(|rule| only.is_none_or(|name| rule.name == name)) {
            if let Some(patch) = (rule.apply)(graph, node)? {
                patches.push(patch);
                break;
            }
        }
    }
    Ok(patches)
}
