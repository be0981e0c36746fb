//! The verifier: what must hold of a graph, checked independently of the code that keeps it so.
//!
//! Every pass runs between two of these checks in tests, and every graph that comes from outside passes one, so a
//! fault is reported with all others at once and with the name of its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::graph::{Graph, Loc, NodeId, Value};
use crate::infer::{InferError, infer};
use crate::op::Op;
use crate::tensor::{Tensor, TensorType};

/// One thing wrong with a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// The node, its mnemonic and its provenance; `None` if the fault is the graph's.
    pub place: Option<(NodeId, &'static str, Loc)>,
    pub problem: Problem,
}

/// What can be wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Problem {
    #[error("operand slots are {slots:?}, expected 0 and up without gaps")]
    OperandSlots { slots: Vec<u16> },
    #[error("operand {slot} is {value:?}, which does not exist")]
    DanglingOperand { slot: u16, value: Value },
    #[error("is on a cycle, or depends on one")]
    Cycle,
    #[error("does not type: {0}")]
    Untyped(InferError),
    #[error("{found} results, expected {expected}")]
    ResultCount { found: usize, expected: usize },
    #[error("result {port} is of type {found}, inferred is {inferred}")]
    ResultType { port: usize, found: TensorType, inferred: TensorType },
    #[error("axis {axis} of type {ty} is negative")]
    NegativeDim { axis: usize, ty: TensorType },
    #[error("{what} is of type {data}, the node of type {ty}")]
    DataType { what: &'static str, data: TensorType, ty: TensorType },
    #[error("weight '{name}' has another type or other data elsewhere in the graph")]
    WeightConflict { name: String },
    #[error("input '{name}' is not in the graph's input list")]
    UnlistedInput { name: String },
    #[error("the input list holds {node:?}, which is not an input node of the graph")]
    NotAnInput { node: NodeId },
    #[error("the input list holds {node:?} twice")]
    RepeatedInput { node: NodeId },
    #[error("two inputs are named '{name}'")]
    DuplicateInput { name: String },
    #[error("two outputs are named '{name}'")]
    DuplicateOutput { name: String },
    #[error("output '{name}' is {value:?}, which does not exist")]
    MissingOutput { name: String, value: Value },
    #[error("in the body: {0}")]
    Body(Box<Fault>),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((node, op, loc)) = &self.place {
            write!(f, "{node:?} ({op}")?;
            for name in &loc.0 {
                write!(f, ", {name:?}")?;
            }
            f.write_str("): ")?;
        }
        write!(f, "{}", self.problem)
    }
}

/// Everything that is wrong with a graph; never empty. Prints one fault a line.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    pub graph: String,
    pub list: Vec<Fault>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph @{} is malformed:", self.graph)?;
        self.list.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for Faults {}

impl Graph {
    /// Checks that the graph is well-formed: operands exist in gapless slots, no cycle, every result type is the
    /// inferred one, data fit the type of their leaf, names are unique, outputs exist, and all of it in the bodies of
    /// fused calls. O(V + E) plus the comparison of weights that share a name.
    ///
    /// # Errors
    /// All faults, by node id, those of the graph as a whole last.
    pub fn verify(&self) -> Result<(), Faults> {
        let mut list = Vec::new();
        let sorted: BTreeSet<NodeId> = self.topological().into_iter().collect();
        for node in self.node_ids() {
            let place = Some((node, self.op(node).name(), self.node(node).loc.clone()));
            let mut report = |problem| list.push(Fault { place: place.clone(), problem });
            if !sorted.contains(&node) {
                report(Problem::Cycle);
            }
            check_node(self, node, &mut report);
        }
        check_weights(self, &mut list);
        let mut report = |problem| list.push(Fault { place: None, problem });
        check_interface(self, &mut report);
        if list.is_empty() { Ok(()) } else { Err(Faults { graph: self.name().to_owned(), list }) }
    }
}

fn check_node(graph: &Graph, id: NodeId, report: &mut dyn FnMut(Problem)) {
    let node = graph.node(id);
    let operands = graph.operand_slots(id);
    let mut sound = true;
    if operands.iter().enumerate().any(|(at, (slot, _))| at != *slot as usize) {
        report(Problem::OperandSlots { slots: operands.iter().map(|(slot, _)| *slot).collect() });
        sound = false;
    }
    for (slot, value) in &operands {
        if !graph.has(*value) {
            report(Problem::DanglingOperand { slot: *slot, value: *value });
            sound = false;
        }
    }
    for ty in &node.outputs {
        if let Some(axis) = ty.shape.iter().position(|dim| dim.as_const().is_some_and(|c| c < 0)) {
            report(Problem::NegativeDim { axis, ty: ty.clone() });
        }
    }
    if node.outputs.len() != node.op.output_count() {
        report(Problem::ResultCount { found: node.outputs.len(), expected: node.op.output_count() });
        sound = false;
    }
    if let Op::Fused(fused) = &node.op
        && let Err(faults) = fused.body.verify()
    {
        faults.list.into_iter().for_each(|fault| report(Problem::Body(Box::new(fault))));
        // Inference reads the body's types.
        sound = false;
    }
    if !sound {
        return;
    }
    let types: Vec<&TensorType> = operands.iter().map(|(_, value)| graph.ty(*value)).collect();
    match &node.op {
        Op::Input { .. } | Op::Weight { data: None, .. } => {
            if !operands.is_empty() {
                let message = format!("{} operands, expected 0", operands.len());
                report(Problem::Untyped(InferError { op: node.op.name(), message }));
            }
        }
        op => match infer(op, &types) {
            Err(error) => report(Problem::Untyped(error)),
            Ok(inferred) => {
                for (port, (found, inferred)) in node.outputs.iter().zip(inferred).enumerate() {
                    if *found == inferred {
                        continue;
                    }
                    let (found, what) = (found.clone(), leaf_data(op));
                    report(match what {
                        Some(what) => Problem::DataType { what, data: inferred, ty: found },
                        None => Problem::ResultType { port, found, inferred },
                    });
                }
            }
        },
    }
}

fn leaf_data(op: &Op) -> Option<&'static str> {
    match op {
        Op::Weight { .. } => Some("the data"),
        Op::Constant { .. } => Some("the value"),
        _ => None,
    }
}

/// A name stands for one tensor: weights are stored and bound by name.
fn check_weights(graph: &Graph, list: &mut Vec<Fault>) {
    let mut first: BTreeMap<&str, (&[TensorType], Option<&Tensor>)> = BTreeMap::new();
    for id in graph.node_ids() {
        let node = graph.node(id);
        let Op::Weight { name, data } = &node.op else { continue };
        let Some((types, known)) = first.get_mut(name.as_str()) else {
            first.insert(name, (&node.outputs, data.as_ref()));
            continue;
        };
        let data_agree = match (*known, data) {
            (Some(a), Some(b)) => a.bytes().as_ptr() == b.bytes().as_ptr() || a.bytes() == b.bytes(),
            _ => true,
        };
        if *types != node.outputs.as_slice() || !data_agree {
            list.push(Fault {
                place: Some((id, node.op.name(), node.loc.clone())),
                problem: Problem::WeightConflict { name: name.clone() },
            });
        }
        *known = known.or(data.as_ref());
    }
}

fn check_interface(graph: &Graph, report: &mut dyn FnMut(Problem)) {
    let (mut listed, mut names) = (BTreeSet::new(), BTreeSet::new());
    for node in graph.inputs() {
        if !listed.insert(*node) {
            report(Problem::RepeatedInput { node: *node });
            continue;
        }
        let name = match graph.contains(*node).then(|| graph.op(*node)) {
            Some(Op::Input { name }) => name,
            _ => {
                report(Problem::NotAnInput { node: *node });
                continue;
            }
        };
        if !names.insert(name) {
            report(Problem::DuplicateInput { name: name.clone() });
        }
    }
    for node in graph.node_ids() {
        if let Op::Input { name } = graph.op(node)
            && !listed.contains(&node)
        {
            report(Problem::UnlistedInput { name: name.clone() });
        }
    }
    let mut names = BTreeSet::new();
    for (name, value) in graph.outputs() {
        // Outputs may go without a name, as in short text forms.
        if !name.is_empty() && !names.insert(name) {
            report(Problem::DuplicateOutput { name: name.clone() });
        }
        if !graph.has(*value) {
            report(Problem::MissingOutput { name: name.clone(), value: *value });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::Node;
    use crate::op::{BinaryOp, Fused, UnaryOp};

    fn f32(shape: &[i64]) -> TensorType {
        TensorType::fixed(DType::F32, shape)
    }

    fn leaf(op: Op, outputs: Vec<TensorType>) -> Node {
        Node { op, outputs, loc: Loc::default() }
    }

    /// x, relu(x) = y -> y
    fn relu() -> (Graph, Value, Value) {
        let mut graph = Graph::new("g");
        let x = graph.add_input("x", f32(&[4]));
        let y = graph.add(Op::Unary(UnaryOp::Relu), &[x], Loc::name("/relu")).unwrap();
        graph.set_outputs(vec![("y".into(), y)]);
        (graph, x, y)
    }

    #[track_caller]
    fn faults(graph: &Graph) -> Vec<String> {
        graph.verify().unwrap_err().list.iter().map(Fault::to_string).collect()
    }

    #[test]
    fn a_well_formed_graph_has_no_faults() {
        let (mut graph, x, y) = relu();
        let w = graph.add_weight("w", Tensor::from_slice(&[4], &[0f32; 4]));
        graph.add(Op::Binary(BinaryOp::Add), &[x, w], Loc::default()).unwrap();
        graph.add_leaf(Op::Weight { name: "w".into(), data: None }, f32(&[4]));
        assert_eq!(graph.verify(), Ok(()));
        let fused = Op::Fused(Arc::new(Fused { body: graph.clone(), kernel: String::new() }));
        graph.add(fused, &[y], Loc::default()).unwrap();
        assert_eq!(graph.verify(), Ok(()));
        graph.set_outputs(vec![(String::new(), x), (String::new(), y)]);
        assert_eq!(graph.verify(), Ok(()));
    }

    #[test]
    fn all_faults_come_at_once_with_their_places() {
        let (mut graph, x, y) = relu();
        graph.node_mut(y.node).outputs = vec![f32(&[5])];
        graph.set_outputs(vec![("y".into(), y), ("y".into(), Value { node: x.node, port: 3 })]);
        let faults = graph.verify().unwrap_err();
        assert_eq!(
            faults.to_string(),
            "graph @g is malformed:\
             \n  n1 (relu, \"/relu\"): result 0 is of type f32[5], inferred is f32[4]\
             \n  two outputs are named 'y'\
             \n  output 'y' is Value { node: n0, port: 3 }, which does not exist"
        );
    }

    #[test]
    fn operands_are_counted_and_exist() {
        let (mut graph, x, y) = relu();
        graph.connect(x, y.node, 1);
        assert_eq!(faults(&graph), ["n1 (relu, \"/relu\"): does not type: relu: 2 operands, expected 1"]);
        let (mut graph, x, y) = relu();
        graph.connect(x, y.node, 2);
        assert_eq!(faults(&graph), ["n1 (relu, \"/relu\"): operand slots are [0, 2], expected 0 and up without gaps"]);
        let (mut graph, x, y) = relu();
        graph.redirect(y.node, 0, Value { node: x.node, port: 1 });
        assert_eq!(
            faults(&graph),
            ["n1 (relu, \"/relu\"): operand 0 is Value { node: n0, port: 1 }, which does not exist"]
        );
        let (mut graph, x, y) = relu();
        graph.connect(y, x.node, 0);
        let list = faults(&graph);
        assert_eq!(list[0], "n0 (input): is on a cycle, or depends on one");
        assert_eq!(list[1], "n0 (input): does not type: input: 1 operands, expected 0");
        assert_eq!(list[2], "n1 (relu, \"/relu\"): is on a cycle, or depends on one");
    }

    #[test]
    fn results_are_counted() {
        let (mut graph, _, y) = relu();
        graph.node_mut(y.node).outputs.push(f32(&[4]));
        assert_eq!(faults(&graph), ["n1 (relu, \"/relu\"): 2 results, expected 1"]);
    }

    #[test]
    fn data_fit_their_leaf() {
        let (mut graph, ..) = relu();
        let value = Tensor::from_slice(&[2], &[1f32, 2.0]);
        graph.push(leaf(Op::Constant { value: value.clone() }, vec![f32(&[1, 2])]));
        graph.push(leaf(Op::Weight { name: "w".into(), data: Some(value) }, vec![f32(&[3])]));
        graph.push(leaf(Op::Weight { name: "v".into(), data: None }, vec![f32(&[-3])]));
        assert_eq!(
            faults(&graph),
            [
                "n2 (constant): the value is of type f32[2], the node of type f32[1, 2]",
                "n3 (weight): the data is of type f32[2], the node of type f32[3]",
                "n4 (weight): axis 0 of type f32[-3] is negative",
            ]
        );
    }

    #[test]
    fn a_weight_name_stands_for_one_tensor() {
        let (mut graph, ..) = relu();
        graph.add_leaf(Op::Weight { name: "w".into(), data: None }, f32(&[1]));
        graph.add_weight("w", Tensor::from_slice(&[1], &[1f32]));
        graph.add_weight("w", Tensor::from_slice(&[1], &[1f32]));
        assert_eq!(graph.verify(), Ok(()));
        graph.add_weight("w", Tensor::from_slice(&[1], &[2f32]));
        graph.add_leaf(Op::Weight { name: "w".into(), data: None }, f32(&[2]));
        assert_eq!(
            faults(&graph),
            [
                "n5 (weight): weight 'w' has another type or other data elsewhere in the graph",
                "n6 (weight): weight 'w' has another type or other data elsewhere in the graph",
            ]
        );
    }

    #[test]
    fn inputs_are_listed_once_by_distinct_names() {
        let (mut graph, ..) = relu();
        graph.add_input("x", f32(&[1]));
        graph.push(leaf(Op::Input { name: "z".into() }, vec![f32(&[1])]));
        assert_eq!(faults(&graph), ["two inputs are named 'x'", "input 'z' is not in the graph's input list"]);
        let (mut graph, x, _) = relu();
        graph.remove(x.node);
        assert!(
            faults(&graph).contains(&"the input list holds n0, which is not an input node of the graph".to_owned())
        );
    }

    #[test]
    fn bodies_are_verified() {
        let (mut body, _, y) = relu();
        body.node_mut(y.node).outputs = vec![f32(&[5])];
        let (mut graph, x, _) = relu();
        let fused = Op::Fused(Arc::new(Fused { body, kernel: String::new() }));
        graph.add(fused, &[x], Loc::name("call")).unwrap();
        assert_eq!(
            faults(&graph),
            ["n2 (fused, \"call\"): in the body: \
             n1 (relu, \"/relu\"): result 0 is of type f32[5], inferred is f32[4]"]
        );
    }
}
