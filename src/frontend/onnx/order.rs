//! The order in which a node list can be evaluated, and what is wrong with its names.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::proto::{GraphProto, NodeProto};

/// An evaluation order of a node list.
pub(super) struct Order {
    /// Indices, each after its producers; by position where free. Nodes on a cycle, or behind one, are left out.
    pub(super) indices: Vec<usize>,
    /// Nodes on a cycle or behind one.
    pub(super) cyclic: Vec<usize>,
    /// (node, name): inputs that nothing defines.
    pub(super) undefined: Vec<(usize, String)>,
    /// (name, first node, second node): outputs that two nodes define, or (name, None, node) if the name was defined
    /// outside the list.
    pub(super) repeated: Vec<(String, Option<usize>, usize)>,
    /// Every name that a node (or a subgraph in one) reads.
    pub(super) reads: HashSet<String>,
}

/// Orders `nodes`; `defined` tells names that exist before the first of them.
pub(super) fn order(nodes: &[NodeProto], defined: impl Fn(&str) -> bool) -> Order {
    let mut producers: HashMap<&str, usize> = HashMap::new();
    let mut repeated = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|n| !n.is_empty()) {
            if defined(name) {
                repeated.push((name.clone(), None, index));
            } else if let Some(first) = producers.get(name.as_str()) {
                repeated.push((name.clone(), Some(*first), index));
            } else {
                producers.insert(name, index);
            }
        }
    }
    let mut undefined = Vec::new();
    let mut reads = HashSet::new();
    let mut waiting: Vec<usize> = vec![0; nodes.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let mut sources = HashSet::new();
        for name in names_read(node) {
            match producers.get(name) {
                Some(producer) => {
                    sources.insert(*producer);
                }
                None if defined(name) => {}
                None => undefined.push((index, name.to_owned())),
            }
            if !reads.contains(name) {
                reads.insert(name.to_owned());
            }
        }
        waiting[index] = sources.len();
        for source in sources {
            users[source].push(index);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        waiting.iter().enumerate().filter(|(_, count)| **count == 0).map(|(i, _)| Reverse(i)).collect();
    let mut indices = Vec::with_capacity(nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        indices.push(index);
        for user in &users[index] {
            waiting[*user] -= 1;
            if waiting[*user] == 0 {
                ready.push(Reverse(*user));
            }
        }
    }
    let cyclic = (0..nodes.len()).filter(|i| waiting[*i] > 0).collect();
    Order { indices, cyclic, undefined, repeated, reads }
}

/// Names that a node reads from the scope around it: its inputs, and what its subgraphs do not define themselves.
fn names_read(node: &NodeProto) -> Vec<&str> {
    let mut names: Vec<&str> = node.input.iter().map(String::as_str).filter(|n| !n.is_empty()).collect();
    for graph in node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        names.extend(free_names(graph));
    }
    names
}

fn free_names(graph: &GraphProto) -> Vec<&str> {
    let mut own: HashSet<&str> = graph.input.iter().map(|v| v.name.as_str()).collect();
    own.extend(graph.initializer.iter().map(|t| t.name.as_str()));
    own.extend(graph.node.iter().flat_map(|n| n.output.iter().map(String::as_str)));
    let read = graph.node.iter().flat_map(names_read);
    let returned = graph.output.iter().map(|v| v.name.as_str());
    read.chain(returned).filter(|name| !own.contains(name)).collect()
}
