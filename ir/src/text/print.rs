//! Graphs to text. Deterministic: the order is [`Graph::topological`] with the inputs first.

use std::collections::HashMap;
use std::fmt::{self, Write};

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, Loc, NodeId, Value};
use crate::op::{Attr, Op};
use crate::tensor::{Tensor, TensorType};

use super::lexer::is_identifier;
use super::literal::{element_texts, f64_text};

/// Longest header on one line.
const HEADER_WIDTH: usize = 120;

impl Graph {
    /// The graph in text form; [`parse`](super::parse) reads it back, less the data of weights.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        write_graph(self, 0, &mut out);
        out.push('\n');
        out
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// `"text"` with escapes.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn identifier_or_quoted(text: &str) -> String {
    if is_identifier(text) { text.to_owned() } else { quoted(text) }
}

/// A dim in text form. Symbols that would read as something else are quoted.
pub(crate) fn dim_text(dim: &Dim) -> String {
    dim.render(&|symbol| {
        let reserved = matches!(symbol, "inf" | "nan" | "true" | "false");
        if is_identifier(symbol) && !reserved { symbol.to_owned() } else { quoted(symbol) }
    })
}

/// A type in text form: `f32[N, 768]`.
pub(crate) fn type_text(ty: &TensorType) -> String {
    format!("{}[{}]", ty.dtype, list(&ty.shape, dim_text))
}

fn types_text(types: &[TensorType]) -> String {
    match types {
        [one] => type_text(one),
        many => format!("({})", list(many, type_text)),
    }
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn attr_text(attr: &Attr) -> String {
    match attr {
        Attr::Bool(value) => value.to_string(),
        Attr::Int(value) => value.to_string(),
        Attr::Float(value) => f64_text(*value),
        Attr::Str(text) => quoted(text),
        Attr::Ints(values) => format!("[{}]", list(values, i64::to_string)),
        Attr::Floats(values) => format!("[{}]", list(values, |v| f64_text(*v))),
        Attr::Dim(dim) => dim_text(dim),
        Attr::Dims(dims) => format!("[{}]", list(dims, dim_text)),
        Attr::DType(dtype) => dtype.to_string(),
    }
}

fn constant_text(value: &Tensor) -> String {
    let elements = element_texts(value).join(", ");
    if value.shape().is_empty() { elements } else { format!("[{elements}]") }
}

fn loc_text(loc: &Loc) -> String {
    if loc.0.is_empty() { String::new() } else { format!("  // loc: {}", list(&loc.0, |name| quoted(name))) }
}

/// What each node's results are called within one graph.
struct Names<'a> {
    graph: &'a Graph,
    names: HashMap<NodeId, String>,
}

impl<'a> Names<'a> {
    fn new(graph: &'a Graph, order: &[NodeId]) -> Names<'a> {
        let own_name = |node: NodeId| match graph.op(node) {
            Op::Input { name } | Op::Weight { name, .. } => Some(name.as_str()),
            _ => None,
        };
        let mut count: HashMap<&str, usize> = HashMap::new();
        for name in order.iter().filter_map(|n| own_name(*n)) {
            *count.entry(name).or_default() += 1;
        }
        let mut names = HashMap::new();
        let mut next = 0usize;
        for node in order {
            let name = match own_name(*node) {
                Some(name) if count.get(name) == Some(&1) => format!("%{}", identifier_or_quoted(name)),
                _ => {
                    next += 1;
                    format!("%{}", next - 1)
                }
            };
            names.insert(*node, name);
        }
        Names { graph, names }
    }

    fn node(&self, node: NodeId) -> &str {
        self.names.get(&node).map_or("", String::as_str)
    }

    fn value(&self, value: Value) -> String {
        if self.graph.node(value.node).outputs.len() == 1 {
            self.node(value.node).to_owned()
        } else {
            format!("{}#{}", self.node(value.node), value.port)
        }
    }

    fn values(&self, values: &[Value]) -> String {
        list(values, |v| self.value(*v))
    }
}

/// Writes `graph @name(..) -> (..) { .. }`, no newline at the end; the first line is not indented.
fn write_graph(graph: &Graph, indent: usize, out: &mut String) {
    let order = graph.reading_order();
    let names = Names::new(graph, &order);
    let pad = " ".repeat(indent + 2);
    write_header(graph, &names, &pad, out);
    for (key, value) in &graph.metadata {
        let _ = writeln!(out, "{pad}metadata {} = {}", quoted(key), quoted(value));
    }
    for node in order {
        if matches!(graph.op(node), Op::Input { .. }) {
            continue;
        }
        out.push_str(&pad);
        write_node(graph, &names, node, indent, out);
        out.push('\n');
    }
    let results: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let _ = writeln!(out, "{}", format!("{pad}return {}", names.values(&results)).trim_end());
    let _ = write!(out, "{}}}", " ".repeat(indent));
}

fn write_header(graph: &Graph, names: &Names<'_>, pad: &str, out: &mut String) {
    let inputs: Vec<(String, String)> = graph
        .inputs()
        .iter()
        .map(|node| {
            let shown = names.node(*node);
            let input = graph.node(*node);
            // A numbered input (its name is not unique) states the name.
            let own = if shown.as_bytes().get(1).is_some_and(u8::is_ascii_digit) {
                format!(" @{}", quoted(graph.input_name(*node)))
            } else {
                String::new()
            };
            (format!("{shown}{own}: {}", types_text(&input.outputs)), loc_text(&input.loc))
        })
        .collect();
    let outputs = list(graph.outputs(), |(name, value)| {
        let ty = type_text(graph.ty(*value));
        if name.is_empty() { ty } else { format!("{}: {ty}", identifier_or_quoted(name)) }
    });
    let head = format!("graph @{}(", identifier_or_quoted(graph.name()));
    let one_line = format!("{head}{}) -> ({outputs}) {{", list(&inputs, |(text, _)| text.clone()));
    if inputs.is_empty() || (one_line.len() <= HEADER_WIDTH && inputs.iter().all(|(_, loc)| loc.is_empty())) {
        out.push_str(&one_line);
        out.push('\n');
        return;
    }
    let _ = writeln!(out, "{head}");
    for (input, loc) in &inputs {
        let _ = writeln!(out, "{pad}{input},{loc}");
    }
    let _ = writeln!(out, "{}) -> ({outputs}) {{", &pad[2..]);
}

fn write_node(graph: &Graph, names: &Names<'_>, id: NodeId, indent: usize, out: &mut String) {
    let node = graph.node(id);
    out.push_str(names.node(id));
    if node.outputs.len() != 1 {
        let _ = write!(out, ":{}", node.outputs.len());
    }
    let _ = write!(out, " = {}", node.op.name());
    match &node.op {
        Op::Weight { name, .. } => {
            let _ = write!(out, " @{}", quoted(name));
        }
        Op::Constant { value } => {
            let _ = write!(out, " {}", constant_text(value));
        }
        op => {
            let operands = graph.operands(id);
            if !matches!(op, Op::Iota { .. } | Op::DimValue { .. }) {
                let _ = write!(out, "({})", names.values(&operands));
            }
            write_attributes(op, out);
            if let Op::Fused(fused) = op {
                out.push(' ');
                write_graph(&fused.body, indent + 2, out);
            }
        }
    }
    let _ = write!(out, " : {}{}", types_text(&node.outputs), loc_text(&node.loc));
}

/// ` {axis = 1, keep_dims}`: flags by their name when set and not at all when unset.
fn write_attributes(op: &Op, out: &mut String) {
    let shown: Vec<String> = op
        .attributes()
        .into_iter()
        .filter_map(|(name, attr)| match attr {
            Attr::Bool(false) => None,
            Attr::Bool(true) => Some(name.to_owned()),
            // No kernel attached yet.
            Attr::Str(text) if text.is_empty() && name == "kernel" => None,
            attr => Some(format!("{name} = {}", attr_text(&attr))),
        })
        .collect();
    if !shown.is_empty() {
        let _ = write!(out, " {{{}}}", shown.join(", "));
    }
}

/// Names of dtypes as they are written, for suggestions.
pub(super) fn dtype_names() -> impl Iterator<Item = &'static str> {
    DType::ALL.into_iter().map(DType::name)
}
