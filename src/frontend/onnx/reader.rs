//! From the bytes of a model file to a graph.

use std::collections::HashSet;
use std::path::Path;

use bytes::Bytes;
use forge_ir::{Graph, Loc, Op, OpClass, Value};
use prost::Message;

use super::import::{Importer, Opsets, Scope};
use super::interface;
use super::lower::Refusal;
use super::proto::{GraphProto, ModelProto, TypeValue, data_type};
use super::tensors::TensorReader;
use crate::frontend::{Fault, FileKind, ImportError, Imported, Options};

/// Decodes and imports a model. `path` is where external data are looked up, and what errors name.
pub(crate) fn import(path: &Path, bytes: Bytes, options: &Options) -> Result<Imported, ImportError> {
    let model = ModelProto::decode(bytes).map_err(|error| ImportError::Damaged {
        path: path.to_owned(),
        detail: format!("it ends early or its bytes do not decode ({error})"),
    })?;
    let Some(graph) = &model.graph else {
        return Err(ImportError::Format { path: path.to_owned(), found: FileKind::MaybeOnnx });
    };
    if model.opset_import.is_empty() && graph.node.is_empty() && graph.input.is_empty() && graph.output.is_empty() {
        return Err(ImportError::Format { path: path.to_owned(), found: FileKind::MaybeOnnx });
    }
    let (graph, assumptions, faults) = build(path, &model, graph, options);
    if faults.is_empty() {
        Ok(Imported { graph, assumptions })
    } else {
        Err(ImportError::Model { path: path.to_owned(), faults })
    }
}

fn build(
    path: &Path,
    model: &ModelProto,
    graph: &GraphProto,
    options: &Options,
) -> (Graph, Vec<crate::frontend::Assumption>, Vec<Fault>) {
    let name = if graph.name.is_empty() { "main" } else { &graph.name };
    let reader = TensorReader::new(path, options.structure_only);
    let mut importer = Importer::new(&identifier(name), &model.functions, reader);
    let mut scope = Scope::default();
    let opsets = Opsets::new(&model.opset_import);
    describe_model(&mut importer.graph, model);

    let mut names = HashSet::new();
    for tensor in &graph.initializer {
        if tensor.name.is_empty() {
            importer.faults.push(Fault::Graph {
                message: "an initialiser has no name".into(),
                help: "name every initialiser: nothing can use one without a name".into(),
            });
        } else if names.insert(tensor.name.as_str()) {
            importer.initializer(tensor, &mut scope);
        } else {
            importer.faults.push(Fault::Graph {
                message: format!("initialiser '{}' is defined twice", tensor.name),
                help: "each name must be defined once: rename one of the two".into(),
            });
        }
    }
    for sparse in &graph.sparse_initializer {
        importer.faults.push(Fault::Tensor {
            name: sparse.values.as_ref().map(|v| v.name.clone()).unwrap_or_default(),
            message: "sparse initialisers are not supported".into(),
            help: "store the tensor densely: `onnx.numpy_helper.from_array(dense)`".into(),
        });
    }

    // Before IR version 4 initialisers were inputs too; their data are defaults, which we take.
    let inputs: Vec<_> = graph.input.iter().filter(|input| !names.contains(input.name.as_str())).collect();
    let typed = interface::inputs(&inputs, &options.shape, &mut importer.faults);
    let mut seen = HashSet::new();
    for (input, ty) in inputs.iter().zip(typed) {
        if !seen.insert(input.name.as_str()) {
            importer.faults.push(Fault::Interface {
                side: "input",
                name: input.name.clone(),
                message: "is listed twice".into(),
                help: "each name must be defined once: rename one of the two".into(),
            });
            continue;
        }
        // An untyped input was reported; the rest of the graph is still checked for operators.
        match ty {
            Some(ty) => {
                let value = importer.graph.add_input(&input.name, ty);
                let id = importer.add_value(&input.name, value);
                scope.bind(&input.name, id);
            }
            None => scope.poison(&input.name),
        }
    }

    for output in &graph.output {
        scope.mark_read(&output.name);
    }
    importer.run(&graph.node, &mut scope, &opsets, &Loc::default());
    outputs(graph, &scope, &mut importer);
    if !importer.assumptions.is_empty() {
        let list: Vec<&str> = importer.assumptions.iter().map(|a| a.condition.as_str()).collect();
        importer.graph.metadata.insert("assumes".into(), list.join("; "));
    }
    let mut faults = importer.faults;
    let graph = match without_dead_nodes(&importer.graph) {
        Ok(graph) => graph,
        Err(error) => {
            faults.push(Fault::Graph {
                message: error.to_string(),
                help: "report this model: the graph was typed before".into(),
            });
            importer.graph
        }
    };
    (graph, importer.assumptions, faults)
}

/// Names of graphs are identifiers in text form.
fn identifier(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

fn describe_model(graph: &mut Graph, model: &ModelProto) {
    let producer = format!("{} {}", model.producer_name, model.producer_version);
    if !producer.trim().is_empty() {
        graph.metadata.insert("producer".into(), producer.trim().to_owned());
    }
    let opsets: Vec<String> = model
        .opset_import
        .iter()
        .map(|o| format!("{}:{}", if o.domain.is_empty() { "ai.onnx" } else { &o.domain }, o.version))
        .collect();
    graph.metadata.insert("opset".into(), opsets.join(", "));
}

fn outputs(graph: &GraphProto, scope: &Scope, importer: &mut Importer<'_>) {
    let mut results: Vec<(String, Value)> = Vec::new();
    if graph.output.is_empty() {
        importer.faults.push(Fault::Graph {
            message: "the graph has no outputs".into(),
            help: "export a model that returns something".into(),
        });
    }
    for output in &graph.output {
        let fault = |message: String, help: &str| Fault::Interface {
            side: "output",
            name: output.name.clone(),
            message,
            help: help.to_owned(),
        };
        let id = match scope.lookup(&output.name) {
            Ok(Some(id)) => id,
            // What refused its producer is in the list already.
            Err(()) => continue,
            Ok(None) => {
                let message = "is not defined by any node, input or initialiser".to_owned();
                importer.faults.push(fault(message, "the model is incomplete: export it again"));
                continue;
            }
        };
        if results.iter().any(|(name, _)| *name == output.name) {
            importer.faults.push(fault("is listed twice".into(), "remove one of the two"));
            continue;
        }
        let found = importer.entries[id].ty.dtype;
        if let Some(TypeValue::Tensor(declared)) = output.r#type.as_ref().and_then(|t| t.value.as_ref())
            && declared.elem_type != 0
            && declared.elem_type != data_type::from_dtype(found)
        {
            importer.faults.push(fault(
                format!(
                    "is declared as {}, but the graph computes {}",
                    data_type::name(declared.elem_type),
                    data_type::name(data_type::from_dtype(found))
                ),
                "the model is inconsistent: check it with `onnx.checker.check_model(path, full_check=True)`",
            ));
            continue;
        }
        match importer.materialize(id) {
            Ok(value) => results.push((output.name.clone(), value)),
            Err(Refusal::Node { message, help }) => importer.faults.push(fault(message, &help)),
            Err(_) => {}
        }
    }
    importer.graph.set_outputs(results);
}

/// The graph without what no output depends on: shape arithmetic that turned into attributes, and unused weights.
/// Inputs stay.
fn without_dead_nodes(graph: &Graph) -> Result<Graph, forge_ir::InferError> {
    let mut live = vec![false; graph.id_bound()];
    let mut pending: Vec<_> = graph.outputs().iter().map(|(_, v)| v.node).collect();
    while let Some(node) = pending.pop() {
        if !std::mem::replace(&mut live[node.index()], true) {
            pending.extend(graph.operands(node).into_iter().map(|v| v.node));
        }
    }
    let is_live = |id: forge_ir::NodeId| live[id.index()] || matches!(graph.op(id), Op::Input { .. });
    if graph.node_ids().all(is_live) {
        return Ok(graph.clone());
    }
    let mut out = Graph::new(graph.name());
    out.metadata.clone_from(&graph.metadata);
    let mut map = std::collections::HashMap::new();
    for node in graph.inputs() {
        let value = Value { node: *node, port: 0 };
        map.insert(value, out.add_input(graph.input_name(*node), graph.ty(value).clone()));
    }
    for id in graph.topological() {
        let node = graph.node(id);
        if !is_live(id) || matches!(node.op, Op::Input { .. }) {
            continue;
        }
        let new = if node.op.class() == OpClass::Leaf && !matches!(node.op, Op::DimValue { .. } | Op::Iota { .. }) {
            out.add_leaf(node.op.clone(), node.outputs[0].clone()).node
        } else {
            let operands: Vec<Value> = graph.operands(id).iter().map(|v| map[v]).collect();
            out.add_node(node.op.clone(), &operands, node.loc.clone())?
        };
        for value in graph.results(id) {
            map.insert(value, Value { node: new, port: value.port });
        }
    }
    out.set_outputs(graph.outputs().iter().map(|(name, v)| (name.clone(), map[v])).collect());
    Ok(out)
}
