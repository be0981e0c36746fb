//! Rewrites as values: the only way in which a graph that is in use changes.
//!
//! A [`Patch`] is data: a pass makes it without touching the graph, a search logs it, and [`Graph::apply`] either
//! applies all of it or changes nothing. The model is tract's `ModelPatch`.

mod builder;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use builder::PatchBuilder;

use crate::graph::{Graph, Loc, Node, NodeId, Value};
use crate::infer::{InferError, compatible, infer};
use crate::op::Op;
use crate::tensor::TensorType;

/// What a rewrite may change in the numbers, least first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// Bit for bit the same results.
    Exact,
    /// The same real-valued function at the same precision, rounded in other places.
    Rounding,
    /// Another precision (a narrower dtype, an approximation).
    Precision,
}

impl Exactness {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Exactness::Exact => "exact",
            Exactness::Rounding => "rounding",
            Exactness::Precision => "precision",
        }
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rewrite of one graph.
///
/// ```
/// use forge_ir::{DType, Exactness, Graph, Loc, Op, Patch, TensorType, UnaryOp};
/// let mut graph = Graph::new("twice");
/// let x = graph.add_input("x", TensorType::fixed(DType::F32, &[4]));
/// let y = graph.add(Op::Unary(UnaryOp::Neg), &[x], Loc::default()).unwrap();
/// let z = graph.add(Op::Unary(UnaryOp::Neg), &[y], Loc::default()).unwrap();
/// graph.set_outputs(vec![("z".into(), z)]);
/// graph.apply(&Patch::replace_with_value(&graph, z, x, "neg(neg(x)) = x")).unwrap();
/// assert_eq!((graph.node_count(), graph.outputs()[0].1), (1, x));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Patch {
    /// The nodes to add; its inputs stand for `taps`.
    pub body: Graph,
    /// Old values that feed the body's inputs, in order. They are read as they were before the patch: a tap that is
    /// itself replaced keeps its old producer.
    pub taps: Vec<Value>,
    /// Old value -> index of the body output that takes over all its uses, graph outputs included.
    pub replaces: Vec<(Value, usize)>,
    /// Nodes that must be gone afterwards, beyond those that die because their results are replaced.
    pub erase: Vec<NodeId>,
    /// The reason, for logs and dumps.
    pub why: String,
    pub exactness: Exactness,
}

/// Why a patch does not fit a graph. The graph is as it was.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PatchError {
    /// The usual reason: another patch, applied since this one was made, removed the node.
    #[error("{value:?} is not a value of the graph")]
    MissingValue { value: Value },
    #[error("{node:?} is not a node of the graph")]
    MissingNode { node: NodeId },
    #[error("{taps} taps for {inputs} body inputs")]
    TapCount { taps: usize, inputs: usize },
    #[error("body output {index} of {count} does not exist")]
    MissingOutput { index: usize, count: usize },
    #[error("{value:?} is replaced twice")]
    ReplacedTwice { value: Value },
    #[error("tap {value:?} of type {tap} feeds body input '{input}' of type {expected}")]
    TapType { value: Value, tap: TensorType, input: String, expected: TensorType },
    #[error("{value:?} of type {old} would be replaced by a value of type {new}")]
    ReplacedType { value: Value, old: TensorType, new: TensorType },
    #[error("the replacement of {value:?} would depend on itself")]
    Cycle { value: Value },
    #[error("graph input '{name}' can't be erased")]
    ErasesInput { name: String },
    #[error("{node:?} ({op}) can't be erased: it is still used")]
    StillUsed { node: NodeId, op: &'static str },
    #[error("with the types of the replacement, {node:?} would not type: {source}")]
    Retype { node: NodeId, source: InferError },
}

impl Graph {
    /// Applies a patch: inlines its body, redirects the uses of what it replaces, and removes the nodes that this
    /// leaves without a use (from the replaced and erased ones on; graph inputs stay).
    ///
    /// Replacement types must agree up to symbols; where they are not identical, the types of everything downstream are
    /// inferred again. New nodes carry the provenance of the nodes that they replace. Costs O(V + E) for the cycle
    /// check, else only what the patch touches.
    ///
    /// # Errors
    /// If the patch does not fit; the graph is then unchanged.
    pub fn apply(&mut self, patch: &Patch) -> Result<(), PatchError> {
        let plan = Application::check(self, patch)?;
        if plan.types_are_identical {
            plan.commit(self);
            return Ok(());
        }
        // Rare: a symbol met a constant. Work on a copy, because retyping may fail halfway.
        let mut copy = self.clone();
        plan.commit(&mut copy);
        copy.retype()?;
        *self = copy;
        Ok(())
    }

    /// Infers every result type again, from the leaves on.
    fn retype(&mut self) -> Result<(), PatchError> {
        for node in self.topological() {
            if states_its_type(self.op(node)) {
                continue;
            }
            let operands = self.operands(node);
            let types: Vec<&TensorType> = operands.iter().map(|value| self.ty(*value)).collect();
            let outputs = infer(self.op(node), &types).map_err(|source| PatchError::Retype { node, source })?;
            self.node_mut(node).outputs = outputs;
        }
        Ok(())
    }
}

/// Leaves whose type the graph states.
fn states_its_type(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. })
}

/// A checked patch: committing it can't fail.
struct Application<'p> {
    patch: &'p Patch,
    /// Body nodes that the replacements reach, in topological order, inputs left out.
    live_body: Vec<NodeId>,
    /// Every user of a replaced value, as of before.
    redirects: Vec<(NodeId, usize, Value)>,
    gone: BTreeSet<NodeId>,
    types_are_identical: bool,
}

impl<'p> Application<'p> {
    fn check(graph: &Graph, patch: &'p Patch) -> Result<Application<'p>, PatchError> {
        check_names(graph, patch)?;
        let types_are_identical = check_types(graph, patch)?;
        let reaches: Vec<BTreeSet<NodeId>> = patch
            .replaces
            .iter()
            .map(|(_, index)| ancestors(&patch.body, patch.body.outputs()[*index].1.node))
            .collect();
        check_acyclic(graph, patch, &reaches)?;
        let live: BTreeSet<NodeId> = reaches.into_iter().flatten().collect();
        let gone = check_erasures(graph, patch, &live)?;
        let inputs: BTreeSet<NodeId> = patch.body.inputs().iter().copied().collect();
        let live_body =
            patch.body.topological().into_iter().filter(|n| live.contains(n) && !inputs.contains(n)).collect();
        let redirects = patch
            .replaces
            .iter()
            .flat_map(|(old, _)| graph.uses(*old).into_iter().map(|(user, slot)| (user, slot, *old)))
            .collect();
        Ok(Application { patch, live_body, redirects, gone, types_are_identical })
    }

    fn commit(&self, graph: &mut Graph) {
        let Patch { body, taps, replaces, erase, .. } = self.patch;
        let replaced: BTreeSet<NodeId> =
            replaces.iter().map(|(old, _)| old.node).chain(erase.iter().copied()).collect();
        let loc = replaced.iter().fold(Loc::default(), |loc, node| loc.merged(&graph.node(*node).loc));

        let mut new_values: BTreeMap<Value, Value> = BTreeMap::new();
        for (input, tap) in body.inputs().iter().zip(taps) {
            new_values.insert(Value { node: *input, port: 0 }, *tap);
        }
        for id in &self.live_body {
            let Node { op, outputs, loc: own } = body.node(*id).clone();
            let node = graph.push(Node { op, outputs, loc: loc.merged(&own) });
            for (slot, operand) in body.operands(*id).iter().enumerate() {
                graph.connect(new_values[operand], node, slot);
            }
            for value in body.results(*id) {
                new_values.insert(value, Value { node, port: value.port });
            }
        }

        let replacement: BTreeMap<Value, Value> =
            replaces.iter().map(|(old, index)| (*old, new_values[&body.outputs()[*index].1])).collect();
        for (user, slot, old) in &self.redirects {
            graph.redirect(*user, *slot, replacement[old]);
        }
        graph.redirect_outputs(&|value| replacement.get(&value).copied().unwrap_or(value));
        for node in &self.gone {
            graph.remove(*node);
        }
    }
}

/// Everything that the patch names exists, once.
fn check_names(graph: &Graph, patch: &Patch) -> Result<(), PatchError> {
    let (taps, inputs) = (patch.taps.len(), patch.body.inputs().len());
    if taps != inputs {
        return Err(PatchError::TapCount { taps, inputs });
    }
    let mut seen = BTreeSet::new();
    for (value, index) in &patch.replaces {
        let count = patch.body.outputs().len();
        if *index >= count {
            return Err(PatchError::MissingOutput { index: *index, count });
        }
        if !seen.insert(*value) {
            return Err(PatchError::ReplacedTwice { value: *value });
        }
    }
    for value in patch.taps.iter().chain(&seen) {
        if !graph.has(*value) {
            return Err(PatchError::MissingValue { value: *value });
        }
    }
    for node in &patch.erase {
        if !graph.contains(*node) {
            return Err(PatchError::MissingNode { node: *node });
        }
        if let Op::Input { name } = graph.op(*node) {
            return Err(PatchError::ErasesInput { name: name.clone() });
        }
    }
    Ok(())
}

/// Types agree up to symbols; the result says whether they are identical.
fn check_types(graph: &Graph, patch: &Patch) -> Result<bool, PatchError> {
    let mut identical = true;
    for (tap, input) in patch.taps.iter().zip(patch.body.inputs()) {
        let (have, expected) = (graph.ty(*tap), patch.body.ty(Value { node: *input, port: 0 }));
        identical &= have == expected;
        if !compatible(have, expected) {
            return Err(PatchError::TapType {
                value: *tap,
                tap: have.clone(),
                input: patch.body.input_name(*input).to_owned(),
                expected: expected.clone(),
            });
        }
    }
    for (value, index) in &patch.replaces {
        let (old, new) = (graph.ty(*value), patch.body.ty(patch.body.outputs()[*index].1));
        identical &= old == new;
        if !compatible(old, new) {
            return Err(PatchError::ReplacedType { value: *value, old: old.clone(), new: new.clone() });
        }
    }
    Ok(identical)
}

/// `node` and everything that it depends on.
fn ancestors(graph: &Graph, node: NodeId) -> BTreeSet<NodeId> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![node];
    while let Some(node) = pending.pop() {
        if seen.insert(node) {
            pending.extend(graph.operands(node).iter().map(|value| value.node));
        }
    }
    seen
}

/// Graph and body are acyclic, so a new cycle runs through redirected uses: from the users of a replaced value, along
/// edges that stay, to a tap of a replacement, and so on back to the first.
fn check_acyclic(graph: &Graph, patch: &Patch, reaches: &[BTreeSet<NodeId>]) -> Result<(), PatchError> {
    let replaced: BTreeSet<Value> = patch.replaces.iter().map(|(value, _)| *value).collect();
    // Per replacement: the old nodes whose results it reads.
    let taps: Vec<BTreeSet<NodeId>> = reaches
        .iter()
        .map(|body| {
            let inputs = patch.body.inputs().iter().zip(&patch.taps);
            inputs.filter(|(input, _)| body.contains(input)).map(|(_, tap)| tap.node).collect()
        })
        .collect();
    if taps.iter().all(BTreeSet::is_empty) {
        return Ok(());
    }
    // leads_to[i] holds j if a user of what i replaces feeds a tap of replacement j.
    let leads_to: Vec<Vec<usize>> = patch
        .replaces
        .iter()
        .map(|(old, _)| {
            let mut reached = vec![false; graph.id_bound()];
            let mut pending: Vec<NodeId> = graph.uses(*old).iter().map(|(user, _)| *user).collect();
            while let Some(node) = pending.pop() {
                if std::mem::replace(&mut reached[node.index()], true) {
                    continue;
                }
                for value in graph.results(node).filter(|value| !replaced.contains(value)) {
                    pending.extend(graph.uses(value).iter().map(|(user, _)| *user));
                }
            }
            (0..taps.len()).filter(|j| taps[*j].iter().any(|tap| reached[tap.index()])).collect()
        })
        .collect();
    for (start, (value, _)) in patch.replaces.iter().enumerate() {
        let mut seen = vec![false; leads_to.len()];
        let mut pending = leads_to[start].clone();
        while let Some(next) = pending.pop() {
            if next == start {
                return Err(PatchError::Cycle { value: *value });
            }
            if !std::mem::replace(&mut seen[next], true) {
                pending.extend(&leads_to[next]);
            }
        }
    }
    Ok(())
}

/// The nodes that the patch removes: those it erases, and those that it leaves without a use.
fn check_erasures(graph: &Graph, patch: &Patch, live_body: &BTreeSet<NodeId>) -> Result<BTreeSet<NodeId>, PatchError> {
    let replaced: BTreeSet<Value> = patch.replaces.iter().map(|(value, _)| *value).collect();
    let inputs = patch.body.inputs().iter().zip(&patch.taps);
    let tapped: BTreeSet<NodeId> = inputs.filter(|(i, _)| live_body.contains(i)).map(|(_, tap)| tap.node).collect();
    let unused = |node: NodeId, gone: &BTreeSet<NodeId>| {
        !tapped.contains(&node)
            && graph
                .results(node)
                .filter(|value| !replaced.contains(value))
                .all(|value| !graph.is_output(value) && graph.uses(value).iter().all(|(user, _)| gone.contains(user)))
    };
    let mut gone: BTreeSet<NodeId> = patch.erase.iter().copied().collect();
    let mut pending: Vec<NodeId> = replaced.iter().map(|value| value.node).collect();
    pending.extend(gone.iter().flat_map(|node| graph.operands(*node)).map(|value| value.node));
    while let Some(node) = pending.pop() {
        if gone.contains(&node) || matches!(graph.op(node), Op::Input { .. }) || !unused(node, &gone) {
            continue;
        }
        gone.insert(node);
        pending.extend(graph.operands(node).iter().map(|value| value.node));
    }
    match patch.erase.iter().find(|node| !unused(**node, &gone)) {
        Some(node) => Err(PatchError::StillUsed { node: *node, op: graph.op(*node).name() }),
        None => Ok(gone),
    }
}
