//! Two digests of a graph: of everything that it says, and of what it computes.

use std::collections::HashMap;
use std::fmt;

use crate::graph::{Graph, NodeId, Value};
use crate::op::{Attr, Op};
use crate::tensor::TensorType;
use crate::text::type_text;

/// 256 bits of blake3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 12 hex digits: enough to tell the regions of one model apart in a listing.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(12);
        text
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Graph {
    /// Digest of all that `==` compares: names, locs, ops, types, wiring, constants and weight data. Equal graphs have
    /// equal digests; node ids and metadata do not enter.
    #[must_use]
    pub fn content_hash(&self) -> Digest {
        let mut hasher = Hasher::new(Mode::Content);
        hasher.text(self.name());
        let order = self.reading_order();
        let positions: HashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        hasher.number(self.inputs().len());
        hasher.number(order.len());
        for id in &order {
            hasher.node(self, *id, &positions);
            hasher.list(&self.node(*id).loc.0, |h, name| h.text(name));
        }
        hasher.list(self.outputs(), |h, (name, value)| {
            h.text(name);
            h.value(*value, &positions);
        });
        hasher.finish()
    }

    /// Digest of the computation: ops, attributes, types, constants, operand order and sharing, with values numbered by
    /// a walk from the outputs. Node ids, insertion order, names of the graph, its inputs, outputs and weights, locs,
    /// and the data of weights do not enter, nor do ops that no output needs. So equal layers have equal digests.
    #[must_use]
    pub fn canonical_hash(&self) -> Digest {
        let order = self.canonical_order();
        let mut hasher = Hasher::new(Mode::Canonical);
        let positions: HashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        hasher.number(self.inputs().len());
        hasher.number(order.len());
        for id in &order {
            hasher.node(self, *id, &positions);
        }
        hasher.list(self.outputs(), |h, (_, value)| h.value(*value, &positions));
        hasher.finish()
    }

    /// Inputs in call order, then what the outputs need: depth first from the first output, operands before users, in
    /// slot order. The same for every way of numbering and inserting the nodes. O(V + E).
    fn canonical_order(&self) -> Vec<NodeId> {
        let mut order = self.inputs().to_vec();
        let mut seen: std::collections::HashSet<NodeId> = order.iter().copied().collect();
        for (_, output) in self.outputs() {
            // (node, its operands still to visit, last first): explicit, as graphs are deeper than the stack.
            let mut stack = Vec::new();
            if seen.insert(output.node) {
                stack.push((output.node, self.pending_operands(output.node)));
            }
            while let Some((node, pending)) = stack.last_mut() {
                match pending.pop() {
                    Some(operand) if seen.insert(operand) => {
                        stack.push((operand, self.pending_operands(operand)));
                    }
                    Some(_) => {}
                    None => {
                        order.push(*node);
                        stack.pop();
                    }
                }
            }
        }
        order
    }

    fn pending_operands(&self, node: NodeId) -> Vec<NodeId> {
        self.operands(node).iter().rev().map(|v| v.node).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Content,
    Canonical,
}

/// Every item is tagged or counted, so that no two sequences of items give the same bytes.
struct Hasher {
    state: blake3::Hasher,
    mode: Mode,
}

impl Hasher {
    fn new(mode: Mode) -> Hasher {
        let context = match mode {
            Mode::Content => "forge-ir graph content, version 1",
            Mode::Canonical => "forge-ir graph computation, version 1",
        };
        Hasher { state: blake3::Hasher::new_derive_key(context), mode }
    }

    fn finish(&self) -> Digest {
        Digest(*self.state.finalize().as_bytes())
    }

    fn number(&mut self, number: usize) {
        self.state.update(&(number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.state.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Hasher, &T)) {
        self.number(items.len());
        for item in items {
            each(self, item);
        }
    }

    fn ty(&mut self, ty: &TensorType) {
        self.text(&type_text(ty));
    }

    fn value(&mut self, value: Value, positions: &HashMap<NodeId, usize>) {
        self.number(positions.get(&value.node).copied().unwrap_or(usize::MAX));
        self.number(usize::from(value.port));
    }

    fn node(&mut self, graph: &Graph, id: NodeId, positions: &HashMap<NodeId, usize>) {
        let node = graph.node(id);
        self.op(&node.op);
        self.list(&node.outputs, Hasher::ty);
        self.list(&graph.operands(id), |h, value| h.value(*value, positions));
    }

    fn op(&mut self, op: &Op) {
        self.text(op.name());
        let attributes = op.attributes();
        self.list(&attributes, |h, (name, attr)| {
            h.text(name);
            h.attr(attr);
        });
        let content = self.mode == Mode::Content;
        match op {
            Op::Input { name } if content => self.text(name),
            Op::Weight { name, data } if content => {
                self.text(name);
                self.number(usize::from(data.is_some()));
                if let Some(data) = data {
                    self.bytes(data.bytes());
                }
            }
            // Dtype and shape are in the result type.
            Op::Constant { value } => self.bytes(value.bytes()),
            Op::Fused(fused) => {
                let body = if content { fused.body.content_hash() } else { fused.body.canonical_hash() };
                self.bytes(body.bytes());
            }
            _ => {}
        }
    }

    fn attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Bool(value) => self.tagged(b'b', &[u8::from(*value)]),
            Attr::Int(value) => self.tagged(b'i', &value.to_le_bytes()),
            Attr::Float(value) => self.tagged(b'f', &value.to_bits().to_le_bytes()),
            Attr::Str(text) => self.tagged(b's', text.as_bytes()),
            Attr::Ints(values) => {
                self.tagged(b'I', &[]);
                self.list(values, |h, v| h.tagged(b'i', &v.to_le_bytes()));
            }
            Attr::Floats(values) => {
                self.tagged(b'F', &[]);
                self.list(values, |h, v| h.tagged(b'f', &v.to_bits().to_le_bytes()));
            }
            Attr::Dim(dim) => self.tagged(b'd', crate::text::dim_text(dim).as_bytes()),
            Attr::Dims(dims) => {
                self.tagged(b'D', &[]);
                self.list(dims, |h, d| h.tagged(b'd', crate::text::dim_text(d).as_bytes()));
            }
            Attr::DType(dtype) => self.tagged(b't', dtype.name().as_bytes()),
        }
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.state.update(&[tag]);
        self.bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::arbitrary::{random_graph, shuffled};
    use crate::op::{Attr, Op};
    use crate::{Graph, parse};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

        #[test]
        fn canonical_hash_ignores_the_order_of_insertion(seed: u64, size in 1usize..24) {
            let graph = random_graph(seed, size);
            prop_assert_eq!(graph.canonical_hash(), shuffled(&graph, seed ^ 1).canonical_hash());
        }

        /// Any attribute of any op that an output needs.
        #[test]
        fn canonical_hash_sees_every_attribute(seed: u64, size in 1usize..24) {
            let graph = random_graph(seed, size);
            let needed = graph.canonical_order();
            for id in needed {
                let op = graph.op(id);
                if matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } | Op::Fused(_)) {
                    continue;
                }
                let attributes = op.attributes();
                for at in 0..attributes.len() {
                    let mut changed: Vec<(String, Attr)> =
                        attributes.iter().map(|(n, a)| ((*n).to_owned(), a.clone())).collect();
                    changed[at].1 = other(&changed[at].1);
                    // The other name may be of no such set; then there is nothing to compare.
                    let Ok(changed) = Op::from_parts(op.name(), &changed) else { continue };
                    let mut copy = graph.clone();
                    copy.node_mut(id).op = changed;
                    prop_assert_ne!(graph.canonical_hash(), copy.canonical_hash());
                    prop_assert_ne!(graph.content_hash(), copy.content_hash());
                }
            }
        }
    }

    /// For names, one of the same set, or of none.
    const OTHER_NAMES: [(&str, &str); 6] = [
        ("none", "tanh"),
        ("max", "average"),
        ("average", "max"),
        ("constant", "edge"),
        ("nearest", "linear"),
        ("half_pixel", "asymmetric"),
    ];

    fn other(attr: &Attr) -> Attr {
        match attr {
            Attr::Bool(v) => Attr::Bool(!v),
            Attr::Int(v) => Attr::Int(v + 1),
            Attr::Float(v) => Attr::Float(v + 1.0),
            Attr::Str(text) => {
                Attr::Str(OTHER_NAMES.iter().find(|(name, _)| name == text).map_or("none", |(_, o)| o).into())
            }
            Attr::Ints(v) => Attr::Ints(v.iter().map(|x| x + 1).chain([0]).collect()),
            Attr::Floats(v) => Attr::Floats(v.iter().map(|x| x + 1.0).chain([0.5]).collect()),
            Attr::Dim(d) => Attr::Dim(d.clone() + crate::Dim::symbol("M")),
            Attr::Dims(d) => Attr::Dims(d.iter().cloned().chain([crate::Dim::symbol("M")]).collect()),
            Attr::DType(d) => Attr::DType(if *d == crate::DType::F64 { crate::DType::F32 } else { crate::DType::F64 }),
        }
    }

    fn graph(text: &str) -> Graph {
        parse(text).unwrap_or_else(|e| panic!("{}", e.render("test.forge")))
    }

    fn layer(name: &str, input: &str, weight: &str, body: &str) -> Graph {
        graph(&format!(
            "graph @{name}(%{input}: f32[N, 4]) -> (f32[N, 4]) {{\n  %a = weight @\"{weight}.a\" : f32[4, 4]\n  \
             %b = weight @\"{weight}.b\" : f32[4, 4]\n  {body}\n  return %y\n}}"
        ))
    }

    #[test]
    fn equal_layers_hash_equal_and_unequal_ones_do_not() {
        let one = layer("layer0", "x", "l.0", "%0 = matmul(%x, %a) // loc: \"a\"\n  %y = matmul(%0, %b)");
        let two = layer("layer1", "h", "l.1", "%0 = matmul(%h, %a)\n  %1 = exp(%0)\n  %y = matmul(%0, %b)");
        assert_eq!(one.canonical_hash(), two.canonical_hash(), "dead code and names do not matter");
        assert_ne!(one.content_hash(), two.content_hash());
        for body in [
            // One weight twice is not two weights of one type.
            "%0 = matmul(%x, %a)\n  %y = matmul(%0, %a)",
            "%0 = matmul(%x, %a)\n  %y = matmul(%b, %0)",
            "%0 = matmul(%x, %a) {trans_b}\n  %y = matmul(%0, %b)",
        ] {
            let other = graph(&format!(
                "graph @l(%x: f32[4, 4]) -> (f32[4, 4]) {{\n  %a = weight @\"a\" : f32[4, 4]\n  \
                 %b = weight @\"b\" : f32[4, 4]\n  {body}\n  return %y\n}}"
            ));
            let same = graph(
                "graph @l(%x: f32[4, 4]) -> (f32[4, 4]) {\n  %a = weight @\"a\" : f32[4, 4]\n  \
                 %b = weight @\"b\" : f32[4, 4]\n  %0 = matmul(%x, %a)\n  %y = matmul(%0, %b)\n  return %y\n}",
            );
            assert_ne!(other.canonical_hash(), same.canonical_hash(), "{body}");
        }
    }

    #[test]
    fn operand_order_constants_and_symbols_matter() {
        let of = |line: &str, dim: &str| {
            graph(&format!("graph @g(%x: f32[{dim}], %z: f32[{dim}]) -> (f32[{dim}]) {{\n  {line}\n  return %y\n}}"))
                .canonical_hash()
        };
        assert_ne!(of("%y = sub(%x, %z)", "N"), of("%y = sub(%z, %x)", "N"));
        assert_ne!(of("%y = sub(%x, %z)", "N"), of("%y = sub(%x, %z)", "M"));
        let scaled = |c: &str| of(&format!("%c = constant {c} : f32[]\n  %y = mul(%x, %c)"), "N");
        assert_ne!(scaled("0.0"), scaled("-0.0"));
        assert_eq!(scaled("0.5"), scaled("5e-1"));
        assert_eq!(of("%y = sub(%x, %z)", "N").to_string().len(), 64);
        assert_eq!(of("%y = sub(%x, %z)", "N").short().len(), 12);
    }
}
