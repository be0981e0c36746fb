//! The names and nodes of one graph or function under construction.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use forge_ir::{DType, Dim, DimStep, Graph, Loc, Op, Tensor, TensorType, Value};

use super::{FUNCTION_DOMAIN, Functions, OnnxError};
use crate::frontend::onnx::proto::{
    AttributeProto, NodeProto, StringStringEntryProto, TensorProto, attribute_type, data_type,
};

/// Where nodes go: functions have no initialisers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Graph,
    Function,
}

pub(super) struct Scope {
    place: Place,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) initializers: Vec<TensorProto>,
    names: HashSet<String>,
    node_names: HashSet<String>,
    /// Dims that exist as i64 tensors of shape [1].
    dims: HashMap<Dim, String>,
    /// (input, axis, multiple): `symbol = Shape(input)[axis] / multiple`.
    sources: BTreeMap<String, (String, usize, i64)>,
    /// In functions: symbols that come in as inputs, with the input's name.
    passed: Vec<(String, String)>,
    constants: HashMap<(DType, Vec<usize>, Bytes), String>,
    loc: Loc,
}

impl Scope {
    pub(super) fn new(place: Place) -> Scope {
        Scope {
            place,
            nodes: Vec::new(),
            initializers: Vec::new(),
            names: HashSet::new(),
            node_names: HashSet::new(),
            dims: HashMap::new(),
            sources: BTreeMap::new(),
            passed: Vec::new(),
            constants: HashMap::new(),
            loc: Loc::default(),
        }
    }

    pub(super) fn reserve(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    /// `base`, or `base.1`, ..: a name that nothing has yet.
    pub(super) fn fresh(&mut self, base: &str) -> String {
        unique(&mut self.names, if base.is_empty() { "value" } else { base })
    }

    /// Notes which symbols the shapes of inputs give.
    pub(super) fn add_symbol_sources(&mut self, inputs: &[String], types: &[TensorType]) {
        for (name, ty) in inputs.iter().zip(types) {
            for (axis, dim) in ty.shape.iter().enumerate() {
                let mut symbols = BTreeSet::new();
                dim.symbols(&mut symbols);
                // One symbol times a number; more than one symbol has no single answer.
                let Some(symbol) = symbols.pop_first().filter(|_| symbols.is_empty()) else { continue };
                let multiple = dim.div_exact(&Dim::symbol(&symbol)).and_then(|m| m.as_const());
                let Some(multiple) = multiple.filter(|m| *m > 0) else { continue };
                let better = self.sources.get(&symbol).is_none_or(|(_, _, old)| multiple < *old);
                if better {
                    self.sources.insert(symbol, (name.clone(), axis, multiple));
                }
            }
        }
    }

    pub(super) fn passed_symbols(&self) -> Vec<(String, String)> {
        self.passed.clone()
    }

    /// Emits `graph` on `inputs`; its outputs get the `wanted` names, or any.
    pub(super) fn graph(
        &mut self,
        graph: &Graph,
        inputs: &[String],
        wanted: Option<&[String]>,
        functions: &mut Functions,
    ) -> Result<Vec<String>, OnnxError> {
        let mut names: HashMap<Value, String> = HashMap::new();
        for (id, name) in graph.inputs().iter().zip(inputs) {
            names.insert(Value { node: *id, port: 0 }, name.clone());
        }
        // The first output that a computed value is, names it; others copy it.
        let mut named: HashMap<Value, String> = HashMap::new();
        for ((_, value), name) in graph.outputs().iter().zip(wanted.unwrap_or_default()) {
            if !names.contains_key(value) && !is_stored(graph.op(value.node)) {
                named.entry(*value).or_insert_with(|| name.clone());
            }
        }
        for id in graph.topological() {
            let node = graph.node(id);
            match &node.op {
                Op::Input { .. } => {}
                Op::Weight { name, data } => {
                    let data = data.as_ref().ok_or_else(|| OnnxError::NoData { name: name.clone() })?;
                    let stored = self.weight(name, data);
                    names.insert(Value { node: id, port: 0 }, stored);
                }
                Op::Constant { value } => {
                    let stored = self.constant(value);
                    names.insert(Value { node: id, port: 0 }, stored);
                }
                op => {
                    let outer = self.enter(&node.loc);
                    let operands: Vec<String> = graph.operands(id).iter().map(|v| names[v].clone()).collect();
                    let types: Vec<TensorType> = graph.operands(id).iter().map(|v| graph.ty(*v).clone()).collect();
                    let mut results = Vec::new();
                    for value in graph.results(id) {
                        results.push(match named.get(&value) {
                            Some(name) => name.clone(),
                            None => self.fresh(&format!("v{}", id.index())),
                        });
                    }
                    self.operator(op, &operands, &types, &node.outputs, &results, functions)?;
                    names.extend(graph.results(id).zip(results));
                    self.loc = outer;
                }
            }
        }
        let mut outputs = Vec::new();
        for (index, (_, value)) in graph.outputs().iter().enumerate() {
            let name = names[value].clone();
            match wanted.and_then(|w| w.get(index)).filter(|w| **w != name) {
                Some(wanted) => {
                    self.emit("Identity", &[&name], Vec::new(), &[wanted]);
                    outputs.push(wanted.clone());
                }
                None => outputs.push(name),
            }
        }
        Ok(outputs)
    }

    /// Nodes emitted next come from `loc`; gives the place before. Definitions have no place of their own.
    fn enter(&mut self, loc: &Loc) -> Loc {
        if loc.0.is_empty() { self.loc.clone() } else { std::mem::replace(&mut self.loc, loc.clone()) }
    }

    // Nodes.

    pub(super) fn emit(&mut self, op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>, outputs: &[&str]) {
        self.emit_in("", op_type, inputs, attributes, outputs);
    }

    fn emit_in(
        &mut self,
        domain: &str,
        op_type: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
        outputs: &[&str],
    ) {
        let own = self.loc.0.last().map_or_else(|| op_type.to_owned(), Clone::clone);
        let name = unique(&mut self.node_names, &own);
        let mut metadata_props = Vec::new();
        if self.loc.0.len() > 1 {
            // As torch's exporter writes it, so that a reader of either finds the modules.
            let mut scopes: Vec<String> = vec!["''".into()];
            scopes.extend(self.loc.0.iter().map(|scope| format!("'{}'", scope.replace(['\'', '\\'], "_"))));
            let value = format!("[{}]", scopes.join(", "));
            metadata_props.push(StringStringEntryProto { key: "pkg.torch.onnx.name_scopes".into(), value });
        }
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: outputs.iter().map(|s| (*s).to_owned()).collect(),
            name,
            op_type: op_type.to_owned(),
            domain: domain.to_owned(),
            attribute: attributes,
            metadata_props,
            ..NodeProto::default()
        });
    }

    /// A node with one result of a new name.
    pub(super) fn value(&mut self, op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let name = self.fresh(&op_type.to_lowercase());
        self.emit(op_type, inputs, attributes, &[&name]);
        name
    }

    /// The call of a fused body.
    pub(super) fn call(
        &mut self,
        body: &Graph,
        operands: &[String],
        results: &[String],
        functions: &mut Functions,
    ) -> Result<(), OnnxError> {
        let index = functions.of(body)?;
        let name = functions.list[index].proto.name.clone();
        let symbols = functions.list[index].symbols.clone();
        let mut inputs: Vec<String> = operands.to_vec();
        for symbol in symbols {
            inputs.push(self.dim(&Dim::symbol(&symbol))?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let results: Vec<&str> = results.iter().map(String::as_str).collect();
        self.emit_in(FUNCTION_DOMAIN, &name, &inputs, Vec::new(), &results);
        Ok(())
    }

    // Constants.

    fn weight(&mut self, name: &str, data: &Tensor) -> String {
        let name = self.fresh(name);
        self.store(&name, data);
        name
    }

    /// A constant tensor; equal ones are one.
    pub(super) fn constant(&mut self, value: &Tensor) -> String {
        let key = (value.dtype(), value.shape().to_vec(), value.bytes().clone());
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.fresh("constant");
        self.store(&name, value);
        self.constants.insert(key, name.clone());
        name
    }

    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        self.constant(&Tensor::from_slice(&[values.len()], values))
    }

    pub(super) fn scalar(&mut self, value: f64, dtype: DType) -> String {
        self.constant(&Tensor::from_f64(dtype, &[], &[value]))
    }

    fn store(&mut self, name: &str, data: &Tensor) {
        let tensor = TensorProto {
            name: name.to_owned(),
            dims: data.shape().iter().map(|d| *d as i64).collect(),
            data_type: data_type::from_dtype(data.dtype()),
            raw_data: Some(data.bytes().clone()),
            ..TensorProto::default()
        };
        match self.place {
            Place::Graph => self.initializers.push(tensor),
            Place::Function => {
                let attribute = AttributeProto {
                    name: "value".into(),
                    t: Some(tensor),
                    r#type: attribute_type::TENSOR,
                    ..AttributeProto::default()
                };
                self.emit("Constant", &[], vec![attribute], &[name]);
            }
        }
    }

    // Dims.

    /// A dim as an i64 tensor of shape [1].
    pub(super) fn dim(&mut self, dim: &Dim) -> Result<String, OnnxError> {
        if let Some(name) = self.dims.get(dim) {
            return Ok(name.clone());
        }
        let (_, name) = dim.fold(&mut |step| self.dim_step(step))?;
        self.dims.insert(dim.clone(), name.clone());
        Ok(name)
    }

    /// The dim that a step makes, and its tensor.
    fn dim_step(&mut self, step: DimStep<'_, Result<(Dim, String), OnnxError>>) -> Result<(Dim, String), OnnxError> {
        let (dim, op_type, (a, b)) = match step {
            DimStep::Const(value) => return Ok((Dim::from(value), self.ints(&[value]))),
            DimStep::Symbol(symbol) => return Ok((Dim::symbol(symbol), self.symbol(symbol)?)),
            DimStep::Add(a, b) => both(a, b, "Add", |a, b| a.clone() + b.clone())?,
            DimStep::Mul(a, b) => both(a, b, "Mul", |a, b| a.clone() * b.clone())?,
            DimStep::Max(a, b) => both(a, b, "Max", Dim::maximum)?,
            DimStep::Min(a, b) => both(a, b, "Min", Dim::minimum)?,
            DimStep::Mod(a, b) => both(a, b, "Mod", Dim::modulo)?,
            DimStep::FloorDiv(a, b) => {
                let ((numerator, mut a), (divisor, b)) = (a?, b?);
                // Div truncates. Where that is not the floor, take the modulus off first: then division is exact.
                if numerator.lower_bound().is_none_or(|low| low < 0) {
                    let rest = self.value("Mod", &[&a, &b], Vec::new());
                    a = self.value("Sub", &[&a, &rest], Vec::new());
                }
                (numerator.floor_div(&divisor), "Div", (a, b))
            }
        };
        if let Some(name) = self.dims.get(&dim) {
            return Ok((dim, name.clone()));
        }
        let name = self.value(op_type, &[&a, &b], Vec::new());
        self.dims.insert(dim.clone(), name.clone());
        Ok((dim, name))
    }

    fn symbol(&mut self, symbol: &str) -> Result<String, OnnxError> {
        let key = Dim::symbol(symbol);
        if let Some(name) = self.dims.get(&key) {
            return Ok(name.clone());
        }
        let name = if let Some((input, axis, multiple)) = self.sources.get(symbol).cloned() {
            let axis = axis as i64;
            let size = self.value("Shape", &[&input], vec![int("start", axis), int("end", axis + 1)]);
            if multiple == 1 {
                size
            } else {
                let multiple = self.ints(&[multiple]);
                self.value("Div", &[&size, &multiple], Vec::new())
            }
        } else if self.place == Place::Function {
            let input = self.fresh(&format!("dim_{symbol}"));
            self.passed.push((symbol.to_owned(), input.clone()));
            input
        } else {
            return Err(OnnxError::Symbol { symbol: symbol.to_owned() });
        };
        self.dims.insert(key, name.clone());
        Ok(name)
    }

    /// Dims as one i64 vector.
    pub(super) fn dims(&mut self, dims: &[Dim]) -> Result<String, OnnxError> {
        let constants: Option<Vec<i64>> = dims.iter().map(Dim::as_const).collect();
        if let Some(constants) = constants {
            return Ok(self.ints(&constants));
        }
        let mut parts = Vec::new();
        for dim in dims {
            parts.push(self.dim(dim)?);
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(match parts.as_slice() {
            [one] => (*one).to_owned(),
            _ => self.value("Concat", &parts, vec![int("axis", 0)]),
        })
    }
}

type Step = Result<(Dim, String), OnnxError>;

fn both(
    a: Step,
    b: Step,
    op_type: &'static str,
    combine: impl Fn(&Dim, &Dim) -> Dim,
) -> Result<(Dim, &'static str, (String, String)), OnnxError> {
    let ((a_dim, a), (b_dim, b)) = (a?, b?);
    Ok((combine(&a_dim, &b_dim), op_type, (a, b)))
}

/// Ops that become names of stored data, which cannot be outputs themselves.
fn is_stored(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. })
}

fn unique(names: &mut HashSet<String>, base: &str) -> String {
    let mut name = base.to_owned();
    let mut suffix = 1;
    while !names.insert(name.clone()) {
        name = format!("{base}.{suffix}");
        suffix += 1;
    }
    name
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i: Some(value), r#type: attribute_type::INT, ..AttributeProto::default() }
}

pub(super) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: values.to_vec(),
        r#type: attribute_type::INTS,
        ..AttributeProto::default()
    }
}

pub(super) fn float(name: &str, value: f64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        f: Some(value as f32),
        r#type: attribute_type::FLOAT,
        ..AttributeProto::default()
    }
}

pub(super) fn string(name: &str, value: &str) -> AttributeProto {
    let s = Some(Bytes::copy_from_slice(value.as_bytes()));
    AttributeProto { name: name.into(), s, r#type: attribute_type::STRING, ..AttributeProto::default() }
}
