//! What follows a product or convolution in a region, as code on one tile row.

use std::collections::HashMap;

use forge_ir::{Dim, Graph, NodeId, Op, OpClass, Value};

use crate::codegen::Unsupported;
use crate::codegen::collapse::merge_groups;
use crate::codegen::cpp;
use crate::codegen::emit::{Binding, Emitter, Index};
use crate::codegen::rowwise::attribute_dims;

/// The elementwise part of a region after its anchor: a graph whose last input is the anchor's result.
pub(super) struct Epilogue {
    graph: Graph,
    /// Region input behind each input of `graph`, the anchor's result excepted.
    inputs: Vec<usize>,
}

impl Epilogue {
    /// Cuts the region at `anchor`, whose operands must all be region inputs.
    pub(super) fn cut(region: &Graph, anchor: NodeId) -> Result<Epilogue, Unsupported> {
        let mut graph = Graph::new("epilogue");
        let mut map: HashMap<Value, Value> = HashMap::new();
        let mut inputs = Vec::new();
        let product = Value { node: anchor, port: 0 };
        for node in region.topological() {
            let value = Value { node, port: 0 };
            let op = region.op(node);
            if node == anchor {
                continue;
            }
            match op {
                // Inputs of the anchor alone do not reach the epilogue.
                Op::Input { name } if region.users(node).iter().any(|u| *u != anchor) => {
                    let position = region.inputs().iter().position(|i| *i == node).unwrap_or(0);
                    inputs.push(position);
                    map.insert(value, graph.add_input(name, region.ty(value).clone()));
                }
                Op::Constant { value: data } if region.users(node).iter().any(|u| *u != anchor) => {
                    map.insert(value, graph.add_constant(data.clone()));
                }
                _ => {}
            }
        }
        map.insert(product, graph.add_input("product", region.ty(product).clone()));
        for node in region.topological() {
            let op = region.op(node);
            if node == anchor || op.class() == OpClass::Leaf {
                if !matches!(op, Op::Input { .. } | Op::Constant { .. }) && node != anchor {
                    return Err(Unsupported::new(format!("{} beside the anchor", op.name())));
                }
                continue;
            }
            if !matches!(op.class(), OpClass::Elementwise) && !matches!(op, Op::Broadcast { .. }) {
                return Err(Unsupported::new(format!("{} after the anchor is not elementwise", op.name())));
            }
            let operands: Option<Vec<Value>> = region.operands(node).iter().map(|v| map.get(v).copied()).collect();
            let operands = operands.ok_or_else(|| Unsupported::new("an operand that the epilogue cannot see"))?;
            let new = graph
                .add(op.clone(), &operands, region.node(node).loc.clone())
                .map_err(|e| Unsupported::new(e.to_string()))?;
            map.insert(Value { node, port: 0 }, new);
        }
        let shape = &region.ty(product).shape;
        let mut outputs = Vec::new();
        for (name, value) in region.outputs() {
            if region.ty(*value).shape != *shape {
                return Err(Unsupported::new("an output of another shape than the anchor's result"));
            }
            outputs.push((name.clone(), map[value]));
        }
        graph.set_outputs(outputs);
        Ok(Epilogue { graph, inputs })
    }

    /// The epilogue with the anchor's axes merged into these groups; `None` if an operand spans a group in part.
    pub(super) fn merged(&self, groups: &[Vec<usize>]) -> Option<Epilogue> {
        Some(Epilogue { graph: merge_groups(&self.graph, groups)?, inputs: self.inputs.clone() })
    }

    /// Shape of the anchor's result, as merged.
    pub(super) fn shape(&self) -> Vec<Dim> {
        let product = self.graph.inputs().last().map(|n| Value { node: *n, port: 0 });
        product.map(|v| self.graph.ty(v).shape.clone()).unwrap_or_default()
    }

    /// Every symbol or dim that the code below names.
    pub(super) fn dims(&self) -> Vec<Dim> {
        let types = self.graph.node_ids().flat_map(|n| self.graph.node(n).outputs.clone());
        types.flat_map(|t| t.shape).chain(attribute_dims(&self.graph)).collect()
    }

    /// Statements that apply the epilogue to one tile row: `acc[j]` holds the product at `(row_index.., column + j)` for
    /// j < `count`. Outputs are written to `out{i}`.
    pub(super) fn row_code(
        &self,
        row_index: &[Index],
        column: &str,
        count: &str,
        acc: &str,
    ) -> Result<Vec<String>, Unsupported> {
        let mut emitter = Emitter::new(&self.graph);
        let (product, others) =
            self.graph.inputs().split_last().ok_or_else(|| Unsupported::new("an epilogue without a product"))?;
        for (node, position) in others.iter().zip(&self.inputs) {
            emitter.bind(Value { node: *node, port: 0 }, Binding::Buffer(format!("in{position}")));
        }
        emitter.push_scope();
        let mut index: Vec<Index> = row_index.to_vec();
        index.push(Index::new(format!("({column} + j)"), 1));
        let product = Value { node: *product, port: 0 };
        let shape = self.graph.ty(product).shape.clone();
        let at = |shape: &[Dim]| -> Vec<Index> {
            shape.iter().zip(&index).map(|(d, ix)| if d.is_one() { Index::zero() } else { ix.clone() }).collect()
        };
        emitter.bind(product, Binding::Register { text: format!("{acc}[j]"), depth: 1, index: at(&shape) });
        for (i, (_, value)) in self.graph.outputs().iter().enumerate() {
            let text = emitter.value(*value, &at(&shape))?;
            let offset = emitter.linear(&shape, &at(&shape));
            emitter.line(1, format!("out{i}[{}] = {text};", offset.text));
        }
        let body = emitter.pop_scope();
        let mut lines = emitter.pop_scope();
        if !body.iter().any(|l| l.trim_start().starts_with("for (")) {
            lines.push("#pragma omp simd".into());
        }
        lines.push(format!("for (int64_t j = 0; j < {count}; ++j) {{"));
        lines.extend(body.into_iter().map(|l| format!("  {l}")));
        lines.push("}".into());
        Ok(lines)
    }
}

/// An index expression split over `shape` by plain division, for rows that could not be merged.
pub(super) fn split_row(row: &str, shape: &[Dim]) -> Vec<Index> {
    let first_wide = shape.iter().position(|d| !d.is_one());
    shape
        .iter()
        .enumerate()
        .map(|(i, dim)| {
            if dim.is_one() {
                return Index::zero();
            }
            let stride = Dim::product(&shape[i + 1..]);
            let quotient = if stride.is_one() { row.to_owned() } else { format!("{row} / {}", cpp::dim(&stride)) };
            if first_wide == Some(i) {
                Index::new(format!("({quotient})"), 0)
            } else {
                Index::new(format!("({quotient} % {})", cpp::dim(dim)), 0)
            }
        })
        .collect()
}
