//! Merges adjacent axes that every value of an elementwise/reduction region treats alike, so that loops are few and long:
//! `f32[8, 128, 384]` with a bias `f32[384]` becomes `f32[1024, 384]`.

use std::collections::HashMap;

use forge_ir::{Dim, Graph, Op, OpClass, TensorType, Value};

/// The region over merged axes, with every buffer's element order kept; `None` if it holds ops whose axes cannot be merged.
#[must_use]
pub fn collapse(graph: &Graph) -> Option<Graph> {
    let axes = Axes::of(graph)?;
    // Groups of axes; unit axes of the domain vanish.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for axis in (0..axes.domain.len()).filter(|a| !axes.domain[*a].is_one()) {
        let joins = groups.last().and_then(|g| g.last()).is_some_and(|last| {
            axes.reduced[*last] == axes.reduced[axis] && axes.spans.values().all(|s| s[*last] == s[axis])
        });
        match groups.last_mut() {
            Some(group) if joins => group.push(axis),
            _ => groups.push(vec![axis]),
        }
    }
    axes.merge(graph, &groups)
}

/// The region with each of `groups` (contiguous, covering every axis of the domain) merged into one axis; `None` if some value
/// spans a group in part.
#[must_use]
pub fn merge_groups(graph: &Graph, groups: &[Vec<usize>]) -> Option<Graph> {
    let axes = Axes::of(graph)?;
    let uniform = groups.iter().all(|group| {
        let wide: Vec<usize> = group.iter().copied().filter(|a| !axes.domain[*a].is_one()).collect();
        wide.windows(2)
            .all(|w| axes.reduced[w[0]] == axes.reduced[w[1]] && axes.spans.values().all(|s| s[w[0]] == s[w[1]]))
    });
    if uniform { axes.merge(graph, groups) } else { None }
}

/// How the values of an elementwise/reduction region use the axes of its domain.
struct Axes {
    domain: Vec<Dim>,
    /// Whether an axis is reduced over.
    reduced: Vec<bool>,
    /// Which axes each value spans (it is 1 on the rest).
    spans: HashMap<Value, Vec<bool>>,
}

impl Axes {
    fn of(graph: &Graph) -> Option<Axes> {
        let order = graph.topological();
        let domain = domain_shape(graph)?;
        let rank = domain.len();
        let mut reduced = vec![false; rank];
        let mut spans: HashMap<Value, Vec<bool>> = HashMap::new();
        for node in &order {
            let value = Value { node: *node, port: 0 };
            match graph.op(*node) {
                Op::Input { .. }
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Compare(_)
                | Op::Select
                | Op::Cast { .. }
                | Op::Broadcast { .. } => {}
                Op::Constant { .. } => {}
                Op::Reduce { axes, keep_dims, .. } => {
                    let operand = graph.operands(*node)[0];
                    if graph.ty(operand).shape != domain {
                        return None;
                    }
                    for axis in axes {
                        *reduced.get_mut(*axis)? = true;
                    }
                    // Without kept dims, consumers would align differently: only as a result of the region.
                    if !keep_dims {
                        if !graph.users(*node).is_empty() {
                            return None;
                        }
                        continue;
                    }
                }
                _ => return None,
            }
            spans.insert(value, span(&graph.ty(value).shape, &domain)?);
        }
        for node in &order {
            if let Op::Reduce { axes, .. } = graph.op(*node) {
                // All reductions over one set of axes.
                if (0..rank).any(|a| reduced[a] != axes.contains(&a)) {
                    return None;
                }
            }
        }
        Some(Axes { domain, reduced, spans })
    }

    fn merge(&self, graph: &Graph, groups: &[Vec<usize>]) -> Option<Graph> {
        let merged = |value: Value| -> Vec<Dim> {
            let span = &self.spans[&value];
            let extent = |g: &Vec<usize>| {
                if g.iter().any(|a| span[*a]) { Dim::product(g.iter().map(|a| &self.domain[*a])) } else { Dim::from(1) }
            };
            groups.iter().map(extent).collect()
        };
        let mut out = Graph::new(graph.name());
        let mut map: HashMap<Value, Value> = HashMap::new();
        for node in graph.inputs() {
            let value = Value { node: *node, port: 0 };
            let ty = TensorType::new(graph.ty(value).dtype, merged(value));
            map.insert(value, out.add_input(graph.input_name(*node), ty));
        }
        for node in graph.topological() {
            let value = Value { node, port: 0 };
            let op = graph.op(node);
            let new = match op {
                Op::Input { .. } => continue,
                Op::Constant { value: data } => {
                    let shape: Option<Vec<usize>> =
                        merged(value).iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
                    out.add_constant(data.reshaped(&shape?)?)
                }
                _ => {
                    let operands: Vec<Value> = graph.operands(node).iter().map(|v| map[v]).collect();
                    let op = match op {
                        Op::Broadcast { .. } => Op::Broadcast { shape: merged(value) },
                        Op::Reduce { op, keep_dims, .. } => Op::Reduce {
                            op: *op,
                            axes: (0..groups.len()).filter(|g| groups[*g].iter().any(|a| self.reduced[*a])).collect(),
                            keep_dims: *keep_dims,
                        },
                        other => other.clone(),
                    };
                    // A reduction over unit axes only has nothing left to reduce: keep the plain form.
                    if matches!(&op, Op::Reduce { axes, .. } if axes.is_empty()) {
                        return None;
                    }
                    out.add(op, &operands, graph.node(node).loc.clone()).ok()?
                }
            };
            map.insert(value, new);
        }
        out.set_outputs(graph.outputs().iter().map(|(name, v)| (name.clone(), map[v])).collect());
        Some(out)
    }
}

/// The shape that every value broadcasts to: the largest-rank broadcast of all results; `None` if there is no single one.
fn domain_shape(graph: &Graph) -> Option<Vec<Dim>> {
    let mut domain: Vec<Dim> = Vec::new();
    for node in graph.node_ids() {
        if graph.op(node).class() == OpClass::Leaf && !matches!(graph.op(node), Op::Input { .. }) {
            continue;
        }
        let shape = &graph.node(node).outputs.first()?.shape;
        let wider = shape.len().max(domain.len());
        let at = |s: &[Dim], i: usize| -> Dim {
            (i + s.len()).checked_sub(wider).and_then(|j| s.get(j)).cloned().unwrap_or_else(|| Dim::from(1))
        };
        if let Op::Reduce { keep_dims: false, .. } = graph.op(node) {
            continue;
        }
        domain = (0..wider)
            .map(|i| {
                let (a, b) = (at(&domain, i), at(shape, i));
                if a.is_one() {
                    Some(b)
                } else if b.is_one() || a == b {
                    Some(a)
                } else {
                    None
                }
            })
            .collect::<Option<Vec<Dim>>>()?;
    }
    Some(domain)
}

fn span(shape: &[Dim], domain: &[Dim]) -> Option<Vec<bool>> {
    let skip = domain.len().checked_sub(shape.len())?;
    let mut out = vec![false; domain.len()];
    for (i, dim) in shape.iter().enumerate() {
        if *dim == domain[skip + i] {
            out[skip + i] = !dim.is_one();
        } else if !dim.is_one() {
            return None;
        }
    }
    Some(out)
}
