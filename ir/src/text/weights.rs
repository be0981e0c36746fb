//! Giving a parsed graph its weights, and taking them away.

use std::sync::Arc;

use crate::graph::{Graph, NodeId};
use crate::op::{Fused, Op};
use crate::tensor::{Tensor, TensorType};

use super::print::type_text;

/// Why weights do not fit a graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WeightError {
    #[error("no data for weight \"{name}\"")]
    Missing { name: String },
    #[error("weight \"{name}\" is {}, the data are {}", type_text(expected), type_text(found))]
    Type { name: String, expected: TensorType, found: TensorType },
}

impl Graph {
    /// A copy whose weights have the data that `lookup` gives for their names, in fused bodies too. A weight that
    /// `lookup` does not know keeps the data that it has.
    ///
    /// # Errors
    /// If a weight is left without data, or data are of another type.
    pub fn bind_weights(&self, lookup: &dyn Fn(&str) -> Option<Tensor>) -> Result<Graph, WeightError> {
        self.map_weights(&|name, ty, data| {
            let found = lookup(name).or_else(|| data.cloned());
            let found = found.ok_or_else(|| WeightError::Missing { name: name.to_owned() })?;
            if found.ty() == *ty {
                Ok(Some(found))
            } else {
                Err(WeightError::Type { name: name.to_owned(), expected: ty.clone(), found: found.ty() })
            }
        })
    }

    /// A copy whose weights have no data: what printing and parsing leaves of a graph.
    #[must_use]
    pub fn without_weight_data(&self) -> Graph {
        // The mapping can't fail, so neither can the whole.
        self.map_weights(&|_, _, _| Ok(None)).unwrap_or_else(|_| self.clone())
    }

    fn map_weights(&self, map: &WeightMap<'_>) -> Result<Graph, WeightError> {
        let mut graph = self.clone();
        let ids: Vec<NodeId> = graph.node_ids().collect();
        for id in ids {
            let node = graph.node(id);
            let op = match (&node.op, node.outputs.first()) {
                (Op::Weight { name, data }, Some(ty)) => {
                    Op::Weight { name: name.clone(), data: map(name, ty, data.as_ref())? }
                }
                (Op::Fused(fused), _) => {
                    let body = fused.body.map_weights(map)?;
                    Op::Fused(Arc::new(Fused { body, kernel: fused.kernel.clone() }))
                }
                _ => continue,
            };
            graph.node_mut(id).op = op;
        }
        Ok(graph)
    }
}

/// New data of a weight from its name, type and present data.
type WeightMap<'a> = dyn Fn(&str, &TensorType, Option<&Tensor>) -> Result<Option<Tensor>, WeightError> + 'a;
