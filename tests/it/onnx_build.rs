//! Small ONNX models, built field by field.

use bytes::Bytes;
use forge_cc::frontend::onnx::proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto, attribute_type,
};
use forge_cc::frontend::{ImportError, Imported, Options, load_bytes};
use prost::Message;

/// A model of `nodes` from `inputs` to `outputs`, all f32 unless their type says otherwise.
pub(crate) fn model(
    opset: i64,
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: &[&str],
    initializers: Vec<TensorProto>,
) -> ModelProto {
    ModelProto {
        ir_version: 10,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: opset }],
        graph: Some(GraphProto {
            name: "test".into(),
            node: nodes,
            input: inputs,
            output: outputs.iter().map(|name| ValueInfoProto { name: (*name).into(), r#type: None }).collect(),
            initializer: initializers,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

pub(crate) fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op_type.into(),
        name: format!("/{op_type}"),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: outputs.iter().map(|s| (*s).into()).collect(),
        ..NodeProto::default()
    }
}

pub(crate) fn with_ints(mut node: NodeProto, name: &str, ints: &[i64]) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: name.into(),
        ints: ints.to_vec(),
        r#type: attribute_type::INTS,
        ..AttributeProto::default()
    });
    node
}

pub(crate) fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: name.into(),
        i: Some(value),
        r#type: attribute_type::INT,
        ..AttributeProto::default()
    });
    node
}

/// `dims`: numbers or names.
pub(crate) fn input(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| DimensionProto {
        value: match text.parse() {
            Ok(value) => Some(DimensionValue::Value(value)),
            Err(_) if text.is_empty() => None,
            Err(_) => Some(DimensionValue::Param((*text).into())),
        },
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type, shape: Some(shape) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) }
}

pub(crate) fn f32s(name: &str, dims: &[i64], data: &[f32]) -> TensorProto {
    let raw: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    raw_tensor(name, 1, dims, raw)
}

pub(crate) fn i64s(name: &str, dims: &[i64], data: &[i64]) -> TensorProto {
    let raw: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    raw_tensor(name, 7, dims, raw)
}

pub(crate) fn raw_tensor(name: &str, data_type: i32, dims: &[i64], raw: Vec<u8>) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type,
        dims: dims.to_vec(),
        raw_data: Some(Bytes::from(raw)),
        ..TensorProto::default()
    }
}

pub(crate) fn import(model: &ModelProto) -> Result<Imported, ImportError> {
    import_with(model, &Options::default())
}

pub(crate) fn import_with(model: &ModelProto, options: &Options) -> Result<Imported, ImportError> {
    load_bytes(std::path::Path::new("test.onnx"), Bytes::from(model.encode_to_vec()), options)
}
