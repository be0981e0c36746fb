//! Dead code elimination.

use forge_ir::{Graph, Patch};

use crate::{Context, PassError};

pub const ABOUT: &str = "remove ops that no output needs (graph inputs stay)";

/// One patch that erases every dead node.
///
/// # Errors
/// None.
pub fn run(graph: &Graph, _: &Context) -> Result<Vec<Patch>, PassError> {
    let dead = graph.dead_nodes();
    if dead.is_empty() {
        return Ok(Vec::new());
    }
    let why = format!("{} dead", dead.len());
    Ok(vec![Patch::erase(dead, &why)])
}
