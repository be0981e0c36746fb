//! The walk over a model: names to entries, functions and subgraphs inlined, every refusal collected.

use std::collections::{HashMap, HashSet};

use forge_ir::{BinaryOp, DType, Dim, Graph, Loc, Op, Tensor, TensorType, Value};

use super::attributes::Attributes;
use super::lower::{Call, Entry, EntryId, Refusal};
use super::ops::{self, Resolution};
use super::order::order;
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto};
use super::shapes::Known;
use super::tensors::TensorReader;
use crate::frontend::{Assumption, Fault};

/// Constants of at most this many elements are literals of the graph; larger ones are weights.
const MAX_CONSTANT: usize = 64;
/// Function calls within function bodies.
const MAX_CALL_DEPTH: usize = 32;
/// Nodes after inlining; a file of a few kilobytes can otherwise ask for any number of them.
const MAX_NODES: usize = 1 << 17;

/// Opset version by domain; the standard domain is "".
#[derive(Clone, Debug, Default)]
pub(super) struct Opsets(HashMap<String, i64>);

impl Opsets {
    pub(super) fn new(imports: &[OperatorSetIdProto]) -> Opsets {
        Opsets(imports.iter().map(|o| (standard(&o.domain).to_owned(), o.version)).collect())
    }

    pub(super) fn version(&self, domain: &str) -> Option<i64> {
        self.0.get(standard(domain)).copied()
    }
}

/// "ai.onnx" is the long name of the standard domain.
pub(super) fn standard(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// What a name stands for.
#[derive(Clone, Copy)]
enum Binding {
    Entry(EntryId),
    /// The producer was refused; what depends on it says nothing new.
    Poisoned,
}

/// Names in sight.
#[derive(Clone, Default)]
pub(super) struct Scope {
    bindings: HashMap<String, Binding>,
    reads: HashSet<String>,
}

impl Scope {
    /// Whether some node or graph output reads this name.
    pub(super) fn is_read(&self, name: &str) -> bool {
        self.reads.contains(name)
    }

    pub(super) fn bind(&mut self, name: &str, id: EntryId) {
        self.bindings.insert(name.to_owned(), Binding::Entry(id));
    }

    pub(super) fn poison(&mut self, name: &str) {
        self.bindings.insert(name.to_owned(), Binding::Poisoned);
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.bindings.contains_key(name)
    }

    pub(super) fn mark_read(&mut self, name: &str) {
        self.reads.insert(name.to_owned());
    }

    /// `Err(())` if the name's producer was refused; `Ok(None)` if there is no such name.
    pub(super) fn lookup(&self, name: &str) -> Result<Option<EntryId>, ()> {
        match self.bindings.get(name) {
            Some(Binding::Entry(id)) => Ok(Some(*id)),
            Some(Binding::Poisoned) => Err(()),
            None => Ok(None),
        }
    }
}

type FunctionKey = (String, String, String);

/// The state of one import.
pub(super) struct Importer<'m> {
    pub(super) graph: Graph,
    pub(super) entries: Vec<Entry>,
    pub(super) faults: Vec<Fault>,
    pub(super) assumptions: Vec<Assumption>,
    pub(super) reader: TensorReader,
    functions: HashMap<FunctionKey, &'m FunctionProto>,
    calls: Vec<FunctionKey>,
    weight_names: HashSet<String>,
    node_count: usize,
}

impl<'m> Importer<'m> {
    pub(super) fn new(name: &str, functions: &'m [FunctionProto], reader: TensorReader) -> Importer<'m> {
        let mut faults = Vec::new();
        let mut by_key = HashMap::new();
        for function in functions {
            let key = (standard(&function.domain).to_owned(), function.name.clone(), function.overload.clone());
            if by_key.insert(key, function).is_some() {
                faults.push(Fault::Graph {
                    message: format!("function '{}::{}' is defined twice", function.domain, function.name),
                    help: "give the functions distinct names or overloads".into(),
                });
            }
        }
        Importer {
            graph: Graph::new(name),
            entries: Vec::new(),
            faults,
            assumptions: Vec::new(),
            reader,
            functions: by_key,
            calls: Vec::new(),
            weight_names: HashSet::new(),
            node_count: 0,
        }
    }

    pub(super) fn add_entry(&mut self, entry: Entry) -> EntryId {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Adds an entry for a value that is in the graph.
    pub(super) fn add_value(&mut self, name: &str, value: Value) -> EntryId {
        let ty = self.graph.ty(value).clone();
        let name = name.to_owned();
        self.add_entry(Entry { name, ty, value: Some(value), tensor: None, known: None })
    }

    /// Binds an initialiser. A bad one is a fault and its name is poisoned.
    pub(super) fn initializer(&mut self, proto: &TensorProto, scope: &mut Scope) {
        match self.reader.read(proto, &proto.name) {
            Ok(contents) => {
                let ty = TensorType::new(contents.dtype, contents.shape.iter().map(|d| Dim::from(*d)).collect());
                let name = proto.name.clone();
                let value = contents.tensor.is_none().then(|| {
                    let unique = self.unique_weight_name(&name);
                    self.graph.add_leaf(Op::Weight { name: unique, data: None }, ty.clone())
                });
                let entry = Entry { name, ty, value, tensor: contents.tensor, known: None };
                let id = self.add_entry(entry);
                scope.bind(&proto.name, id);
            }
            Err(fault) => {
                self.faults.push(fault);
                scope.poison(&proto.name);
            }
        }
    }

    /// The value of an entry in the graph, made on first use.
    pub(super) fn materialize(&mut self, id: EntryId) -> Result<Value, Refusal> {
        let entry = &self.entries[id];
        if let Some(value) = entry.value {
            return Ok(value);
        }
        let value = if let Some(tensor) = entry.constant() {
            if tensor.numel() <= MAX_CONSTANT {
                self.graph.add_constant(tensor)
            } else {
                let name = entry.name.clone();
                let unique = self.unique_weight_name(&name);
                self.graph.add_weight(&unique, tensor)
            }
        } else if let Some(known) = entry.known.clone() {
            let loc = Loc::name(&entry.name);
            self.emit_known(&known, &loc)?
        } else {
            return Err(Refusal::invalid(format!("'{}' has no value", entry.name)));
        };
        self.entries[id].value = Some(value);
        Ok(value)
    }

    fn unique_weight_name(&mut self, name: &str) -> String {
        let base = if name.is_empty() { "constant" } else { name };
        let mut unique = base.to_owned();
        let mut suffix = 1;
        while !self.weight_names.insert(unique.clone()) {
            unique = format!("{base}.{suffix}");
            suffix += 1;
        }
        unique
    }

    /// Graph ops that compute symbolic elements.
    fn emit_known(&mut self, known: &Known, loc: &Loc) -> Result<Value, Refusal> {
        if known.elements.len() > MAX_CONSTANT {
            return Err(Refusal::unsupported(
                format!("a tensor of {} elements computed from symbolic dims is used as data", known.elements.len()),
                "fix the symbolic dims with shape bindings",
            ));
        }
        let mut parts = Vec::new();
        for element in &known.elements {
            let scalar = match element.numerator().as_const() {
                Some(value) => self.graph.add_constant(Tensor::scalar(value)),
                None => self.graph.add(Op::DimValue { dim: element.numerator().clone() }, &[], loc.clone())?,
            };
            parts.push(match known.shape.as_slice() {
                [] => scalar,
                _ => self.graph.add(Op::Reshape { shape: vec![Dim::from(1)] }, &[scalar], loc.clone())?,
            });
        }
        let mut value = match parts.as_slice() {
            [one] => *one,
            [] => return Ok(self.graph.add_constant(Tensor::from_i64(known.dtype, &known.shape, &[]))),
            _ => self.graph.add(Op::Concat { axis: 0 }, &parts, loc.clone())?,
        };
        if known.dtype != DType::I64 {
            value = self.graph.add(Op::Cast { to: known.dtype }, &[value], loc.clone())?;
        }
        if known.elements.iter().any(|e| e.denominator() != 1) {
            let values: Vec<f64> = known.elements.iter().map(|e| e.denominator() as f64).collect();
            let shape: &[usize] = if known.shape.is_empty() { &[] } else { &[values.len()] };
            let denominators = self.graph.add_constant(Tensor::from_f64(known.dtype, shape, &values));
            value = self.graph.add(Op::Binary(BinaryOp::Div), &[value, denominators], loc.clone())?;
        }
        if known.shape.len() > 1 {
            let shape = known.shape.iter().map(|d| Dim::from(*d)).collect();
            value = self.graph.add(Op::Reshape { shape }, &[value], loc.clone())?;
        }
        Ok(value)
    }

    /// The symbolic elements of an entry, read off its data on first use.
    pub(super) fn known(&mut self, id: EntryId) -> Option<Known> {
        if self.entries[id].known.is_none() {
            self.entries[id].known = Known::from_tensor(self.entries[id].tensor.as_ref()?);
        }
        self.entries[id].known.clone()
    }

    /// As [`Importer::known`], also of what constants compute. For parameters, not for tracking.
    pub(super) fn known_or_computed(&mut self, id: EntryId) -> Option<Known> {
        self.known(id).or_else(|| Known::from_tensor(&self.constant(id)?))
    }

    /// The data of an entry, if they are known before the model runs.
    pub(super) fn constant(&mut self, id: EntryId) -> Option<Tensor> {
        let entry = &self.entries[id];
        if let Some(tensor) = entry.constant() {
            return Some(tensor);
        }
        let tensor = super::evaluate::evaluate(&self.graph, entry.value?)?;
        self.entries[id].tensor = Some(tensor.clone());
        Some(tensor)
    }

    /// Lowers a node list into the graph; what cannot be lowered becomes faults.
    pub(super) fn run(&mut self, nodes: &[NodeProto], scope: &mut Scope, opsets: &Opsets, prefix: &Loc) {
        let order = order(nodes, |name| scope.contains(name));
        let mut broken: HashSet<usize> = HashSet::new();
        for (name, first, second) in order.repeated {
            let other = first.map_or_else(
                || "is already a graph input, an initialiser or a value of the graph around it".to_owned(),
                |first| format!("is already an output of {}", describe(&nodes[first], first, prefix)),
            );
            let node = describe(&nodes[second], second, prefix);
            self.faults.push(Fault::Graph {
                message: format!("{node}: its output '{name}' {other}"),
                help: "each name must be defined once: rename one of the two".into(),
            });
            broken.insert(second);
        }
        for (index, name) in order.undefined {
            self.faults.push(Fault::Graph {
                message: format!(
                    "{}: its input '{name}' is not defined anywhere",
                    describe(&nodes[index], index, prefix)
                ),
                help: "the model is incomplete: export it again, or add the missing node, input or initialiser".into(),
            });
            broken.insert(index);
        }
        if let Some(first) = order.cyclic.first() {
            let names: Vec<String> = order.cyclic.iter().take(4).map(|i| describe(&nodes[*i], *i, prefix)).collect();
            let more = if order.cyclic.len() > names.len() { ", .." } else { "" };
            self.faults.push(Fault::Graph {
                message: format!("the graph has a cycle: {}{more} depend on themselves", names.join(", ")),
                help: format!(
                    "an ONNX graph has no cycles: check what feeds {}",
                    describe(&nodes[*first], *first, prefix)
                ),
            });
            for index in order.cyclic {
                for name in &nodes[index].output {
                    scope.poison(name);
                }
            }
        }
        scope.reads.extend(order.reads);
        for index in order.indices {
            let node = &nodes[index];
            self.node_count += 1;
            if self.node_count == MAX_NODES {
                self.faults.push(Fault::Graph {
                    message: format!("the model has more than {MAX_NODES} nodes once its functions are inlined"),
                    help: "export a smaller model, or parts of it".into(),
                });
            }
            let failed = broken.contains(&index) || self.node_count >= MAX_NODES;
            let results = if failed { Err(Refusal::Recorded) } else { self.node(node, scope, opsets, prefix) };
            let results = results.unwrap_or_else(|refusal| {
                self.record(refusal, describe(node, index, prefix));
                Vec::new()
            });
            for (slot, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                match results.get(slot).copied().flatten() {
                    Some(id) => scope.bind(name, id),
                    None => scope.poison(name),
                }
            }
        }
    }

    fn record(&mut self, refusal: Refusal, node: String) {
        match refusal {
            Refusal::Node { message, help } => self.faults.push(Fault::Node { node, message, help }),
            Refusal::DataDependent { what } => self.faults.push(Fault::DataDependent { node, what }),
            Refusal::Operator { operator, detail, help } => {
                // One line an operator: a model of a thousand unknown nodes is one fact.
                let seen =
                    self.faults.iter().any(|f| matches!(f, Fault::Operator { operator: o, .. } if *o == operator));
                if !seen {
                    self.faults.push(Fault::Operator { node, operator, detail, help });
                }
            }
            Refusal::Recorded => {}
        }
    }

    /// Lowers one node; the result lists its outputs.
    fn node(
        &mut self,
        node: &NodeProto,
        scope: &Scope,
        opsets: &Opsets,
        prefix: &Loc,
    ) -> Result<Vec<Option<EntryId>>, Refusal> {
        let mut poisoned = false;
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            inputs.push(match scope.lookup(name) {
                Ok(found) => found,
                Err(()) => {
                    poisoned = true;
                    None
                }
            });
        }
        let key = (standard(&node.domain).to_owned(), node.op_type.clone(), node.overload.clone());
        if let Some(function) = self.functions.get(&key).copied() {
            return if poisoned { Err(Refusal::Recorded) } else { self.call(function, key, node, &inputs, prefix) };
        }
        let domain = standard(&node.domain);
        let Some(version) = opsets.version(domain) else {
            return Err(ops::no_opset(node));
        };
        let lower = match ops::resolve(domain, &node.op_type, version) {
            Resolution::Supported(supported) => supported.lower,
            Resolution::Refused(refusal) => return Err(refusal),
        };
        if poisoned {
            return Err(Refusal::Recorded);
        }
        // Trailing empty names are absent inputs.
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        let mut call = Call {
            importer: self,
            node,
            scope,
            opsets,
            attributes: Attributes::new(node),
            version,
            loc: location(node, prefix),
            inputs,
            results: Vec::new(),
        };
        if ops::track::track(&mut call)? {
            return Ok(call.results);
        }
        lower(&mut call)?;
        if let Some(name) = call.attributes.unread().first() {
            return Err(Refusal::unsupported(
                format!("attribute '{name}' is not known at opset {version}"),
                "remove the attribute, or export the model at an opset that has it",
            ));
        }
        Ok(call.results)
    }

    /// Inlines a call of a model-local function.
    fn call(
        &mut self,
        function: &FunctionProto,
        key: FunctionKey,
        node: &NodeProto,
        inputs: &[Option<EntryId>],
        prefix: &Loc,
    ) -> Result<Vec<Option<EntryId>>, Refusal> {
        if self.calls.contains(&key) || self.calls.len() >= MAX_CALL_DEPTH {
            return Err(Refusal::invalid(format!(
                "function '{}' calls itself, directly or through others",
                function.name
            )));
        }
        if inputs.len() > function.input.len() || node.output.len() > function.output.len() {
            return Err(Refusal::invalid(format!(
                "function '{}' takes {} inputs and gives {} outputs, the call has {} and {}",
                function.name,
                function.input.len(),
                function.output.len(),
                inputs.len(),
                node.output.len()
            )));
        }
        let mut given: HashMap<&str, &AttributeProto> =
            function.attribute_proto.iter().map(|a| (a.name.as_str(), a)).collect();
        given.extend(node.attribute.iter().map(|a| (a.name.as_str(), a)));
        let body: Vec<NodeProto> = function.node.iter().map(|n| with_attributes(n, &given)).collect();
        let mut scope = Scope::default();
        // An input that the call leaves out is an absent input wherever the body passes it on.
        let mut absent: HashSet<&str> = HashSet::new();
        for (index, name) in function.input.iter().enumerate() {
            match inputs.get(index).copied().flatten() {
                Some(id) => scope.bind(name, id),
                None => {
                    absent.insert(name);
                }
            }
        }
        let body: Vec<NodeProto> = if absent.is_empty() {
            body
        } else {
            body.into_iter()
                .map(|mut inner| {
                    inner.input.iter_mut().filter(|name| absent.contains(name.as_str())).for_each(String::clear);
                    inner
                })
                .collect()
        };
        for name in &function.output {
            scope.mark_read(name);
        }
        let opsets = Opsets::new(&function.opset_import);
        let before = self.faults.len();
        self.calls.push(key);
        self.run(&body, &mut scope, &opsets, &location(node, prefix));
        self.calls.pop();
        let mut results = Vec::with_capacity(function.output.len());
        for name in &function.output {
            results.push(match scope.lookup(name) {
                Ok(Some(id)) => Some(id),
                Ok(None) => {
                    return Err(Refusal::invalid(format!(
                        "function '{}' does not define its output '{name}'",
                        function.name
                    )));
                }
                Err(()) => None,
            });
        }
        if self.faults.len() > before { Err(Refusal::Recorded) } else { Ok(results) }
    }

    /// Inlines a subgraph that reads `outer`; gives its outputs.
    pub(super) fn subgraph(
        &mut self,
        graph: &GraphProto,
        outer: &Scope,
        opsets: &Opsets,
        prefix: &Loc,
    ) -> Result<Vec<EntryId>, Refusal> {
        let mut scope = outer.clone();
        let before = self.faults.len();
        for tensor in &graph.initializer {
            self.initializer(tensor, &mut scope);
        }
        for output in &graph.output {
            scope.mark_read(&output.name);
        }
        self.run(&graph.node, &mut scope, opsets, prefix);
        if self.faults.len() > before {
            return Err(Refusal::Recorded);
        }
        let outputs = graph.output.iter().map(|output| match scope.lookup(&output.name) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => Err(Refusal::invalid(format!("its subgraph does not define its output '{}'", output.name))),
            Err(()) => Err(Refusal::Recorded),
        });
        outputs.collect()
    }
}

/// A body node with references to the call's attributes resolved; an attribute that the call leaves out is left out.
fn with_attributes(node: &NodeProto, given: &HashMap<&str, &AttributeProto>) -> NodeProto {
    let mut node = node.clone();
    let list = std::mem::take(&mut node.attribute);
    for mut attribute in list {
        if !attribute.ref_attr_name.is_empty() {
            if let Some(actual) = given.get(attribute.ref_attr_name.as_str()) {
                node.attribute.push(AttributeProto { name: attribute.name, ..(*actual).clone() });
            }
            continue;
        }
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            graph.node = graph.node.iter().map(|n| with_attributes(n, given)).collect();
        }
        node.attribute.push(attribute);
    }
    node
}

/// How messages name a node.
fn describe(node: &NodeProto, index: usize, prefix: &Loc) -> String {
    let within = if prefix.0.is_empty() { String::new() } else { format!(" in '{}'", prefix.0.join("/")) };
    if node.name.is_empty() {
        let output = node.output.iter().find(|o| !o.is_empty()).map(|o| format!(" -> '{o}'")).unwrap_or_default();
        format!("node #{index} ({}{output}){within}", node.op_type)
    } else {
        format!("node '{}' ({}){within}", node.name, node.op_type)
    }
}

/// The module scope that the exporter recorded, then the node's name; within a call, after the call's own.
fn location(node: &NodeProto, prefix: &Loc) -> Loc {
    let mut names = prefix.0.clone();
    if let Some(scope) = module_scope(node)
        && names.last() != Some(&scope)
    {
        names.push(scope);
    }
    if !node.name.is_empty() {
        names.push(node.name.clone());
    }
    Loc(names)
}

/// The innermost module path in torch's `name_scopes`, a printed Python list: `['', 'encoder.layer.0', 'node_7']`,
/// whose last element is the node itself.
fn module_scope(node: &NodeProto) -> Option<String> {
    let entry = node.metadata_props.iter().find(|e| e.key == "pkg.torch.onnx.name_scopes")?;
    let list = entry.value.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut scopes: Vec<&str> = list.split(',').map(|s| s.trim().trim_matches(['\'', '"'])).collect();
    scopes.pop();
    scopes.into_iter().rev().find(|s| !s.is_empty() && !s.contains(['/', '\\'])).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{location, module_scope};
    use crate::frontend::onnx::proto::{NodeProto, StringStringEntryProto};
    use forge_ir::Loc;

    #[test]
    fn module_scopes_come_from_torch_metadata() {
        let entry = |value: &str| NodeProto {
            name: "node_add".into(),
            metadata_props: vec![StringStringEntryProto {
                key: "pkg.torch.onnx.name_scopes".into(),
                value: value.into(),
            }],
            ..NodeProto::default()
        };
        let node = entry("['', 'encoder', 'encoder.layer.0', 'add_3']");
        assert_eq!(module_scope(&node).as_deref(), Some("encoder.layer.0"));
        assert_eq!(location(&node, &Loc::default()), Loc(vec!["encoder.layer.0".into(), "node_add".into()]));
        assert_eq!(module_scope(&entry("['', 'add_3']")), None);
        assert_eq!(module_scope(&entry("nonsense")), None);
        assert_eq!(module_scope(&entry("['/home/me/model.py', 'x']")), None, "paths stay out of graphs");
    }
}
