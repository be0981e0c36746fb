//! Composites computed wide between casts: `f16(op(f32(x), ..))`.
//!
//! By the convention of the IR a float op on f16 or bf16 computes in f32 and rounds once, which is exactly what the
//! casts say. (Intermediates inside a composite are never rounded to its dtype.)

use forge_ir::{DType, Exactness, Graph, InferError, NodeId, OpClass, Patch, Value};

use crate::matching::Matcher;

pub(super) fn narrow(graph: &Graph, node: NodeId) -> Result<Option<Patch>, InferError> {
    let root = Value { node, port: 0 };
    let mut m = Matcher::new(graph);
    let Some((wide, dtype)) = m.cast(root) else { return Ok(None) };
    if !matches!(dtype, DType::F16 | DType::BF16) || graph.ty(wide).dtype != DType::F32 {
        return Ok(None);
    }
    let op = graph.op(wide.node);
    if op.class() != OpClass::Composite {
        return Ok(None);
    }
    let operands = m.op(wide, |_, operands| {
        operands
            .iter()
            .map(|operand| match graph.ty(*operand).dtype {
                DType::F32 => {
                    let (x, _) = Matcher::new(graph).cast(*operand)?;
                    (graph.ty(x).dtype == dtype).then_some(x)
                }
                // A bool mask.
                _ => Some(*operand),
            })
            .collect::<Option<Vec<Value>>>()
    });
    match operands {
        Some(operands) if m.closed(root) => {
            let why = format!("{} of {dtype}", op.name());
            Patch::replace_with_op(graph, root, op.clone(), &operands, &why, Exactness::Exact).map(Some)
        }
        _ => Ok(None),
    }
}
