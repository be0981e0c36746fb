//! The only place that names tract.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forge_ir::{DType, Graph};
use prost::Message;
use tract_onnx::prelude::*;

use super::OracleError;
use crate::emit::onnx_model::to_model;

/// Writes the graph as ONNX, has tract read it, and runs it. Symbols are bound already.
pub(super) fn run(graph: &Graph, inputs: &[forge_ir::Tensor]) -> Result<Vec<forge_ir::Tensor>, OracleError> {
    let bytes = to_model(graph)?.encode_to_vec();
    // tract asserts where it could return an error; a question must not end the process that asks.
    match catch_unwind(AssertUnwindSafe(|| evaluate(&bytes, inputs))) {
        Ok(Ok(outputs)) => Ok(outputs),
        Ok(Err(error)) => Err(OracleError::Tract(format!("{error:#}"))),
        Err(_) => Err(OracleError::Tract("it panicked".into())),
    }
}

fn evaluate(bytes: &[u8], inputs: &[forge_ir::Tensor]) -> TractResult<Vec<forge_ir::Tensor>> {
    let proto = tract_onnx::pb::ModelProto::decode(bytes)?;
    let model = onnx().model_for_proto_model(&proto)?.into_optimized()?.into_runnable()?;
    let inputs =
        inputs.iter().map(|input| Ok(to_tract(input)?.into_tvalue())).collect::<TractResult<TVec<TValue>>>()?;
    model.run(inputs)?.iter().map(|value| from_tract(value)).collect()
}

fn to_tract(tensor: &forge_ir::Tensor) -> TractResult<Tensor> {
    let shape = tensor.shape();
    match tensor.dtype() {
        DType::I64 => Tensor::from_shape(shape, &tensor.to_vec::<i64>().unwrap_or_default()),
        DType::Bool => Tensor::from_shape(shape, &tensor.to_vec::<bool>().unwrap_or_default()),
        // No other dtype is in scope; what is not f32 gives no elements, which `from_shape` refuses.
        _ => Tensor::from_shape(shape, &tensor.to_vec::<f32>().unwrap_or_default()),
    }
}

fn from_tract(tensor: &Tensor) -> TractResult<forge_ir::Tensor> {
    // tract types sizes as TDim where we have i64.
    let tensor = match tensor.datum_type() {
        DatumType::TDim => tensor.cast_to_dt(DatumType::I64)?.into_owned(),
        _ => tensor.clone(),
    };
    let dtype = match tensor.datum_type() {
        DatumType::F32 => DType::F32,
        DatumType::I64 => DType::I64,
        DatumType::Bool => DType::Bool,
        other => return Err(TractError::msg(format!("a result of {other:?}"))),
    };
    let bytes = tensor.try_as_plain_ram()?.as_bytes().to_vec();
    forge_ir::Tensor::new(dtype, tensor.shape().to_vec(), bytes)
        .ok_or_else(|| TractError::msg("a result of another size than its shape"))
}
