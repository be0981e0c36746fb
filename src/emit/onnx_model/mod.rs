//! Graphs as ONNX models that any ONNX tool runs.
//!
//! Every op becomes operators of the standard at opset [`OPSET`]; composites without one there are written out in their
//! definition. A fused call becomes a call of a model-local function whose body is the original subgraph, so that a
//! tool that knows nothing of the kernel computes what it computes. Symbolic dims become shape arithmetic on the
//! inputs.

mod operators;
mod scope;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forge_ir::{Digest, Dim, Graph, InferError, Op, TensorType};
use prost::Message;

use crate::frontend::onnx::proto::{
    DimensionProto, DimensionValue, FunctionProto, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto, data_type,
};
use scope::{Place, Scope};

use super::weights::WeightsLayout;

/// The standard's version that is written: old enough for every tool, new enough for `Gelu` and `LayerNormalization`.
pub const OPSET: i64 = 20;
/// Of files at [`OPSET`].
const IR_VERSION: i64 = 9;
/// The domain of fused functions.
pub const FUNCTION_DOMAIN: &str = "forge";
/// Weights beyond this go into a file of their own: protobuf ends at 2 GiB.
const MAX_INLINE_BYTES: usize = 1 << 30;
/// Smaller tensors stay in the model: readers infer shapes from some of them.
const MIN_EXTERNAL_BYTES: usize = 1024;
/// External tensors start on pages, so that they can be mapped.
const EXTERNAL_ALIGNMENT: usize = 4096;

/// Why a graph has no ONNX form.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{op}: {message}")]
    Op { op: &'static str, message: String },
    #[error("weight '{name}' has no data")]
    NoData { name: String },
    #[error("no input has '{symbol}' as one of its dims, so a model cannot compute it")]
    Symbol { symbol: String },
    #[error(transparent)]
    Infer(#[from] InferError),
}

/// The graph as a model.
///
/// # Errors
/// If a weight has no data, an op has no counterpart for its dtype, or a symbol is no dim of an input.
pub fn to_model(graph: &Graph) -> Result<ModelProto, OnnxError> {
    let mut functions = Functions::default();
    let mut scope = Scope::new(Place::Graph);
    // Names that others see are taken first, so that no intermediate value gets them.
    let inputs: Vec<String> = graph.inputs().iter().map(|id| graph.input_name(*id).to_owned()).collect();
    for name in inputs.iter().chain(graph.outputs().iter().map(|(name, _)| name)) {
        scope.reserve(name);
    }
    let types: Vec<TensorType> = graph.inputs().iter().map(|id| graph.node(*id).outputs[0].clone()).collect();
    scope.add_symbol_sources(&inputs, &types);
    let wanted: Vec<String> = graph.outputs().iter().map(|(name, _)| name.clone()).collect();
    scope.graph(graph, &inputs, Some(&wanted), &mut functions)?;

    let outputs = graph.outputs().iter().map(|(name, value)| value_info(name, graph.ty(*value))).collect();
    let mut opset_import = vec![OperatorSetIdProto { domain: String::new(), version: OPSET }];
    if !functions.list.is_empty() {
        opset_import.push(OperatorSetIdProto { domain: FUNCTION_DOMAIN.into(), version: 1 });
    }
    let entry = |(key, value): (&String, &String)| StringStringEntryProto { key: key.clone(), value: value.clone() };
    Ok(ModelProto {
        ir_version: IR_VERSION,
        producer_name: "forge-cc".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        opset_import,
        metadata_props: graph.metadata.iter().map(entry).collect(),
        functions: functions.list.into_iter().map(|f| f.proto).collect(),
        graph: Some(GraphProto {
            name: graph.name().to_owned(),
            node: scope.nodes,
            input: inputs.iter().zip(&types).map(|(name, ty)| value_info(name, ty)).collect(),
            output: outputs,
            initializer: scope.initializers,
            ..GraphProto::default()
        }),
    })
}

/// The graph as a model whose larger weights lie in `file`, a weights file beside the model, where `layout` puts them.
///
/// # Errors
/// As [`to_model`].
pub fn to_model_beside(graph: &Graph, file: &str, layout: &WeightsLayout<'_>) -> Result<ModelProto, OnnxError> {
    let mut model = to_model(graph)?;
    let weights: HashMap<&str, &Bytes> = graph
        .node_ids()
        .filter_map(|id| match graph.op(id) {
            Op::Weight { name, data: Some(data) } => Some((name.as_str(), data.bytes())),
            _ => None,
        })
        .collect();
    for tensor in model.graph.iter_mut().flat_map(|g| &mut g.initializer) {
        // An initialiser that had to be renamed may have the name of another weight: its bytes tell.
        let own = weights.get(tensor.name.as_str()).copied();
        let Some((offset, length)) = layout.place(&tensor.name).filter(|_| own == tensor.raw_data.as_ref()) else {
            continue;
        };
        if length >= MIN_EXTERNAL_BYTES && length == raw_bytes(tensor) {
            tensor.raw_data = None;
            set_external(tensor, file, offset, length);
        }
    }
    Ok(model)
}

/// Writes the graph as `path`; weights of more than a gibibyte go into `path` with `.data` appended.
///
/// # Errors
/// As [`to_model`], and if a file cannot be written.
pub fn write(graph: &Graph, path: &Path) -> Result<(), OnnxError> {
    let mut model = to_model(graph)?;
    let fault = |path: &Path| {
        let path = path.to_owned();
        move |source| OnnxError::Io { path, source }
    };
    let inline: usize = model.graph.iter().flat_map(|g| &g.initializer).map(raw_bytes).sum();
    if inline > MAX_INLINE_BYTES {
        let mut data = path.as_os_str().to_owned();
        data.push(".data");
        let data = PathBuf::from(data);
        externalize(&mut model, &data).map_err(fault(&data))?;
    }
    fs::write(path, model.encode_to_vec()).map_err(fault(path))
}

fn raw_bytes(tensor: &TensorProto) -> usize {
    tensor.raw_data.as_ref().map_or(0, Bytes::len)
}

/// Moves the data of every initialiser of a page or more into the file `data`.
fn externalize(model: &mut ModelProto, data: &Path) -> io::Result<()> {
    let location = data.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut file = BufWriter::new(File::create(data)?);
    let mut at = 0usize;
    for tensor in model.graph.iter_mut().flat_map(|g| &mut g.initializer) {
        if raw_bytes(tensor) < EXTERNAL_ALIGNMENT {
            continue;
        }
        let Some(raw) = tensor.raw_data.take() else { continue };
        let start = at.next_multiple_of(EXTERNAL_ALIGNMENT);
        file.write_all(&vec![0; start - at])?;
        file.write_all(&raw)?;
        at = start + raw.len();
        set_external(tensor, &location, start, raw.len());
    }
    file.flush()
}

fn set_external(tensor: &mut TensorProto, location: &str, offset: usize, length: usize) {
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    tensor.data_location = 1;
    tensor.external_data = vec![
        entry("location", location.to_owned()),
        entry("offset", offset.to_string()),
        entry("length", length.to_string()),
    ];
}

/// The functions of a model; equal bodies are one function.
#[derive(Default)]
struct Functions {
    list: Vec<Function>,
}

struct Function {
    key: Digest,
    proto: FunctionProto,
    /// Symbols that no input of the body has as a dim; the call passes their values after the operands.
    symbols: Vec<String>,
}

impl Functions {
    /// The index of the function for `body`.
    fn of(&mut self, body: &Graph) -> Result<usize, OnnxError> {
        // Equal layers differ in provenance only; data of weights count where a body has any.
        let has_weights = body.node_ids().any(|id| matches!(body.op(id), Op::Weight { .. }));
        let key = if has_weights { body.content_hash() } else { body.canonical_hash() };
        if let Some(found) = self.list.iter().position(|f| f.key == key) {
            return Ok(found);
        }
        let mut scope = Scope::new(Place::Function);
        let mut inputs = Vec::new();
        for id in body.inputs() {
            inputs.push(scope.fresh(body.input_name(*id)));
        }
        let types: Vec<TensorType> = body.inputs().iter().map(|id| body.node(*id).outputs[0].clone()).collect();
        scope.add_symbol_sources(&inputs, &types);
        let mut outputs = Vec::new();
        for (name, _) in body.outputs() {
            outputs.push(scope.fresh(name));
        }
        scope.graph(body, &inputs, Some(&outputs), self)?;
        let symbols = scope.passed_symbols();
        inputs.extend(symbols.iter().map(|(_, input)| input.clone()));
        let mut opset_import = vec![OperatorSetIdProto { domain: String::new(), version: OPSET }];
        if scope.nodes.iter().any(|n| n.domain == FUNCTION_DOMAIN) {
            opset_import.push(OperatorSetIdProto { domain: FUNCTION_DOMAIN.into(), version: 1 });
        }
        let proto = FunctionProto {
            name: format!("fused_{}", self.list.len()),
            domain: FUNCTION_DOMAIN.into(),
            input: inputs,
            output: outputs,
            node: scope.nodes,
            opset_import,
            ..FunctionProto::default()
        };
        let symbols = symbols.into_iter().map(|(symbol, _)| symbol).collect();
        self.list.push(Function { key, proto, symbols });
        Ok(self.list.len() - 1)
    }
}

fn value_info(name: &str, ty: &TensorType) -> ValueInfoProto {
    let dim = |dim: &Dim| DimensionProto {
        value: Some(match dim.as_const() {
            Some(size) => DimensionValue::Value(size),
            None => DimensionValue::Param(dim.to_string()),
        }),
    };
    let shape = TensorShapeProto { dim: ty.shape.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: data_type::from_dtype(ty.dtype), shape: Some(shape) };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forge_ir::interp::{Mode, run};
    use forge_ir::{BinaryOp, DType, Dim, Graph, Loc, Op, Tensor, TensorType};
    use prost::Message;

    use super::super::weights::WeightsLayout;
    use super::to_model_beside;
    use crate::frontend::{Options, load};

    #[test]
    fn weights_are_read_out_of_the_weights_file() {
        let mut graph = Graph::new("two");
        let x = graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("n"), Dim::from(512)]));
        let data: Vec<f32> = (0..512).map(|i| i as f32).collect();
        let mut sum = x;
        for (name, tensor) in [
            ("large", Tensor::from_slice(&[512], &data)),
            ("small", Tensor::from_slice(&[1], &[0.5f32])),
            // The name that a second "large" would be given, so that only the data tell them apart.
            ("large.1", Tensor::from_slice(&[512], &data[..].iter().map(|v| v * 2.0).collect::<Vec<f32>>())),
        ] {
            let weight = graph.add_weight(name, tensor);
            sum = graph.add(Op::Binary(BinaryOp::Add), &[sum, weight], Loc::default()).unwrap();
        }
        graph.set_outputs(vec![("y".into(), sum)]);
        let weights: Vec<(String, Tensor)> = graph
            .node_ids()
            .filter_map(|id| match graph.op(id) {
                Op::Weight { name, data } => Some((name.clone(), data.clone()?)),
                _ => None,
            })
            .collect();
        let layout = WeightsLayout::new(&weights).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut file = fs::File::create(folder.path().join("weights.safetensors")).unwrap();
        layout.write(&mut file).unwrap();
        let model = to_model_beside(&graph, "weights.safetensors", &layout).unwrap();
        let external = |name: &str| {
            let tensors = &model.graph.as_ref().unwrap().initializer;
            tensors.iter().find(|t| t.name == name).unwrap().data_location == 1
        };
        assert!(external("large") && external("large.1") && !external("small"));
        let path = folder.path().join("model.onnx");
        fs::write(&path, model.encode_to_vec()).unwrap();
        let again = load(&path, &Options::default()).unwrap().graph;
        let input = [Tensor::from_f64(DType::F32, &[2, 512], &vec![1.0; 1024])];
        assert_eq!(run(&again, &input, Mode::Native).unwrap(), run(&graph, &input, Mode::Native).unwrap());
    }
}
