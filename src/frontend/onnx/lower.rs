//! What the lowering of one operator sees: its node, its inputs in whichever form they are known, and the graph under
//! construction.

use forge_ir::{BinaryOp, CompareOp, DType, Dim, GeluApproximate, InferError, Loc, Op, ReduceOp, Tensor, TensorType};
use forge_ir::{UnaryOp, Value};

use super::attributes::Attributes;
use super::import::{Importer, Opsets, Scope};
use super::proto::{NodeProto, TensorProto};
use super::shapes::Known;
use crate::frontend::Assumption;

/// Why a node could not be lowered; the importer adds where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The node breaks a rule of its operator, or uses a corner that we do not support.
    Node { message: String, help: String },
    /// A parameter that must be known at import is computed from data.
    DataDependent { what: String },
    /// The operator is not in the table, or not at this version.
    Operator { operator: String, detail: String, help: String },
    /// Faults inside a subgraph or function body, already recorded.
    Recorded,
}

impl Refusal {
    /// The model is wrong.
    pub(super) fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::Node {
            message: message.into(),
            help: "the model breaks the rules of this operator: check it with `onnx.checker.check_model(path, \
                   full_check=True)` and export it again"
                .into(),
        }
    }

    /// The model is right, but we do not support this use.
    pub(super) fn unsupported(message: impl Into<String>, help: impl Into<String>) -> Refusal {
        Refusal::Node { message: message.into(), help: help.into() }
    }

    pub(super) fn data_dependent(what: impl Into<String>) -> Refusal {
        Refusal::DataDependent { what: what.into() }
    }
}

impl From<InferError> for Refusal {
    fn from(error: InferError) -> Refusal {
        Refusal::invalid(error.to_string())
    }
}

pub(super) type Lowered = Result<(), Refusal>;

/// Index of an entry of the importer.
pub(super) type EntryId = usize;

/// What one ONNX value is known as. At least one of the forms is present.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) ty: TensorType,
    /// In the graph; made on first use for the other forms.
    pub(super) value: Option<Value>,
    /// Constant data.
    pub(super) tensor: Option<Tensor>,
    /// Symbolic elements.
    pub(super) known: Option<Known>,
}

/// One node being lowered.
pub(super) struct Call<'c, 'm> {
    pub(super) importer: &'c mut Importer<'m>,
    pub(super) node: &'c NodeProto,
    pub(super) scope: &'c Scope,
    pub(super) opsets: &'c Opsets,
    pub(super) attributes: Attributes<'c>,
    /// Opset version that the node's domain is imported at.
    pub(super) version: i64,
    pub(super) loc: Loc,
    pub(super) inputs: Vec<Option<EntryId>>,
    pub(super) results: Vec<Option<EntryId>>,
}

impl Call<'_, '_> {
    // Inputs.

    pub(super) fn has_input(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(Option::is_some)
    }

    pub(super) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    pub(super) fn entry_id(&self, index: usize) -> Result<EntryId, Refusal> {
        let missing = || Refusal::invalid(format!("input {index} is missing"));
        self.inputs.get(index).copied().flatten().ok_or_else(missing)
    }

    /// A required input as a value of the graph.
    pub(super) fn input(&mut self, index: usize) -> Result<Value, Refusal> {
        let id = self.entry_id(index)?;
        self.importer.materialize(id)
    }

    /// An optional input as a value of the graph.
    pub(super) fn optional(&mut self, index: usize) -> Result<Option<Value>, Refusal> {
        if self.has_input(index) { self.input(index).map(Some) } else { Ok(None) }
    }

    /// All inputs, none of them optional.
    pub(super) fn all_inputs(&mut self) -> Result<Vec<Value>, Refusal> {
        if self.inputs.is_empty() {
            return Err(Refusal::invalid("it has no inputs"));
        }
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// The type of a required input.
    pub(super) fn input_type(&self, index: usize) -> Result<TensorType, Refusal> {
        let id = self.entry_id(index)?;
        Ok(self.importer.entries[id].ty.clone())
    }

    /// The symbolic elements of an input, where they are known.
    pub(super) fn known(&mut self, index: usize) -> Option<Known> {
        let id = self.inputs.get(index).copied().flatten()?;
        self.importer.known(id)
    }

    /// The elements of an integer parameter as dims.
    pub(super) fn dims(&mut self, index: usize, what: &str) -> Result<Vec<Dim>, Refusal> {
        let id = self.entry_id(index)?;
        let known = self.importer.known_or_computed(id).ok_or_else(|| Refusal::data_dependent(what))?;
        known.dims().ok_or_else(|| Refusal::invalid(format!("{what} is not of integers")))
    }

    /// The elements of an integer parameter that must be constant.
    pub(super) fn ints(&mut self, index: usize, what: &str) -> Result<Vec<i64>, Refusal> {
        let dims = self.dims(index, what)?;
        let consts: Option<Vec<i64>> = dims.iter().map(Dim::as_const).collect();
        consts.ok_or_else(|| {
            let list: Vec<String> = dims.iter().map(Dim::to_string).collect();
            Refusal::unsupported(
                format!("{what} depends on symbolic dims ([{}])", list.join(", ")),
                bind_symbols(&dims.iter().collect::<Vec<_>>()),
            )
        })
    }

    /// One constant integer, of any rank.
    pub(super) fn int(&mut self, index: usize, what: &str) -> Result<i64, Refusal> {
        match self.ints(index, what)?.as_slice() {
            [one] => Ok(*one),
            more => Err(Refusal::invalid(format!("{what} should be one number, but has {} elements", more.len()))),
        }
    }

    /// The data of a constant input of any dtype.
    pub(super) fn constant(&mut self, index: usize) -> Result<Option<Tensor>, Refusal> {
        let id = self.entry_id(index)?;
        Ok(self.importer.constant(id))
    }

    /// The elements of a constant float parameter.
    pub(super) fn floats(&mut self, index: usize, what: &str) -> Result<Vec<f64>, Refusal> {
        let tensor = self.constant(index)?.ok_or_else(|| Refusal::data_dependent(what))?;
        Ok(tensor.to_f64())
    }

    /// `axes` as attribute before `since`, as input 1 from then on. `None`: absent.
    pub(super) fn axes(&mut self, since: i64) -> Result<Option<Vec<i64>>, Refusal> {
        if self.version < since {
            return self.attributes.ints("axes");
        }
        if self.attributes.has("axes") {
            return Err(Refusal::invalid(format!("'axes' is an input, not an attribute, since opset {since}")));
        }
        if self.has_input(1) { self.ints(1, "the list of axes").map(Some) } else { Ok(None) }
    }

    pub(super) fn read_tensor(&mut self, proto: &TensorProto) -> Result<Option<Tensor>, Refusal> {
        let name = self.node.output.first().cloned().unwrap_or_default();
        match self.importer.reader.read(proto, &name) {
            Ok(contents) => Ok(contents.tensor),
            Err(fault) => {
                self.importer.faults.push(fault);
                Err(Refusal::Recorded)
            }
        }
    }

    // Outputs.

    pub(super) fn output_used(&self, index: usize) -> bool {
        self.node.output.get(index).is_some_and(|name| !name.is_empty() && self.scope.is_read(name))
    }

    /// Refuses outputs other than the first that something reads.
    pub(super) fn only_first_output(&self, names: &[&str]) -> Lowered {
        for (index, name) in names.iter().enumerate() {
            if self.output_used(index + 1) {
                return Err(Refusal::unsupported(
                    format!("its output {} ({name}) is used, which is not supported", index + 1),
                    format!("export the model so that '{name}' of this operator is not needed"),
                ));
            }
        }
        Ok(())
    }

    fn set_result(&mut self, index: usize, id: EntryId) {
        if self.results.len() <= index {
            self.results.resize(index + 1, None);
        }
        self.results[index] = Some(id);
    }

    fn output_name(&self, index: usize) -> String {
        self.node.output.get(index).cloned().unwrap_or_default()
    }

    /// Sets an output to a value of the graph.
    pub(super) fn output(&mut self, index: usize, value: Value) -> Lowered {
        let ty = self.importer.graph.ty(value).clone();
        let name = self.output_name(index);
        let entry = Entry { name, ty, value: Some(value), tensor: None, known: None };
        let id = self.importer.add_entry(entry);
        self.set_result(index, id);
        Ok(())
    }

    /// Sets an output to what an input (or another entry) already is.
    pub(super) fn output_alias(&mut self, index: usize, id: EntryId) -> Lowered {
        self.set_result(index, id);
        Ok(())
    }

    /// Sets an output to symbolic elements.
    pub(super) fn output_known(&mut self, index: usize, known: Known) -> Lowered {
        let ty = TensorType::new(known.dtype, known.shape.iter().map(|d| Dim::from(*d)).collect());
        let name = self.output_name(index);
        let tensor = known.to_tensor();
        let entry = Entry { name, ty, value: None, tensor, known: Some(known) };
        let id = self.importer.add_entry(entry);
        self.set_result(index, id);
        Ok(())
    }

    /// Sets an output to constant data.
    pub(super) fn output_tensor(&mut self, index: usize, tensor: Tensor) -> Lowered {
        let name = self.output_name(index);
        let entry = Entry { name, ty: tensor.ty(), value: None, tensor: Some(tensor), known: None };
        let id = self.importer.add_entry(entry);
        self.set_result(index, id);
        Ok(())
    }

    /// Records what the lowering takes for granted about symbolic dims.
    pub(super) fn assume(&mut self, condition: String) {
        let node = self.loc.0.join("/");
        let assumption = Assumption { condition, node };
        if self.importer.assumptions.iter().all(|a| a.condition != assumption.condition) {
            self.importer.assumptions.push(assumption);
        }
    }

    // Building.

    pub(super) fn ty(&self, value: Value) -> TensorType {
        self.importer.graph.ty(value).clone()
    }

    pub(super) fn shape(&self, value: Value) -> Vec<Dim> {
        self.importer.graph.ty(value).shape.clone()
    }

    pub(super) fn dtype(&self, value: Value) -> DType {
        self.importer.graph.ty(value).dtype
    }

    pub(super) fn rank(&self, value: Value) -> usize {
        self.importer.graph.ty(value).rank()
    }

    pub(super) fn emit(&mut self, op: Op, operands: &[Value]) -> Result<Value, Refusal> {
        Ok(self.importer.graph.add(op, operands, self.loc.clone())?)
    }

    /// A node with several results.
    pub(super) fn emit_many(&mut self, op: Op, operands: &[Value]) -> Result<Vec<Value>, Refusal> {
        let node = self.importer.graph.add_node(op, operands, self.loc.clone())?;
        Ok(self.importer.graph.results(node).collect())
    }

    /// A scalar constant of `dtype`.
    pub(super) fn scalar(&mut self, value: f64, dtype: DType) -> Value {
        self.importer.graph.add_constant(Tensor::from_f64(dtype, &[], &[value]))
    }

    pub(super) fn tensor(&mut self, tensor: Tensor) -> Value {
        self.importer.graph.add_constant(tensor)
    }

    pub(super) fn unary(&mut self, op: UnaryOp, x: Value) -> Result<Value, Refusal> {
        self.emit(Op::Unary(op), &[x])
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<Value, Refusal> {
        self.emit(Op::Binary(op), &[a, b])
    }

    /// `x op constant`, the constant a scalar of x's dtype.
    pub(super) fn with_scalar(&mut self, op: BinaryOp, x: Value, constant: f64) -> Result<Value, Refusal> {
        let dtype = self.dtype(x);
        let constant = self.scalar(constant, dtype);
        self.binary(op, x, constant)
    }

    pub(super) fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Result<Value, Refusal> {
        self.emit(Op::Compare(op), &[a, b])
    }

    pub(super) fn compare_scalar(&mut self, op: CompareOp, x: Value, constant: f64) -> Result<Value, Refusal> {
        let dtype = self.dtype(x);
        let constant = self.scalar(constant, dtype);
        self.compare(op, x, constant)
    }

    pub(super) fn select(&mut self, condition: Value, then: Value, otherwise: Value) -> Result<Value, Refusal> {
        self.emit(Op::Select, &[condition, then, otherwise])
    }

    /// Nothing is emitted if `x` already has the dtype.
    pub(super) fn cast(&mut self, x: Value, to: DType) -> Result<Value, Refusal> {
        if self.dtype(x) == to { Ok(x) } else { self.emit(Op::Cast { to }, &[x]) }
    }

    /// Nothing is emitted if `x` already has the shape.
    pub(super) fn reshape(&mut self, x: Value, shape: Vec<Dim>) -> Result<Value, Refusal> {
        if self.importer.graph.ty(x).shape == shape { Ok(x) } else { self.emit(Op::Reshape { shape }, &[x]) }
    }

    pub(super) fn transpose(&mut self, x: Value, perm: Vec<usize>) -> Result<Value, Refusal> {
        if perm.iter().enumerate().all(|(i, p)| i == *p) && perm.len() == self.rank(x) {
            return Ok(x);
        }
        self.emit(Op::Transpose { perm }, &[x])
    }

    /// Nothing is emitted if `x` already has the shape.
    pub(super) fn broadcast(&mut self, x: Value, shape: Vec<Dim>) -> Result<Value, Refusal> {
        if self.importer.graph.ty(x).shape == shape { Ok(x) } else { self.emit(Op::Broadcast { shape }, &[x]) }
    }

    /// `len` elements of one axis from `start`, the rest whole.
    pub(super) fn slice_axis(&mut self, x: Value, axis: usize, start: Dim, len: Dim) -> Result<Value, Refusal> {
        let mut sizes = self.shape(x);
        let mut starts = vec![Dim::from(0); sizes.len()];
        match (sizes.get_mut(axis), starts.get_mut(axis)) {
            (Some(size), Some(at)) => {
                *size = len;
                *at = start;
            }
            _ => return Err(Refusal::invalid(format!("axis {axis} is out of range"))),
        }
        let steps = vec![1; sizes.len()];
        self.emit(Op::Slice { starts, steps, sizes }, &[x])
    }

    pub(super) fn concat(&mut self, parts: &[Value], axis: usize) -> Result<Value, Refusal> {
        match parts {
            [one] => Ok(*one),
            _ => self.emit(Op::Concat { axis }, parts),
        }
    }

    /// Nothing is emitted for no axes.
    pub(super) fn reduce(&mut self, op: ReduceOp, x: Value, axes: &[usize], keep: bool) -> Result<Value, Refusal> {
        if axes.is_empty() {
            return Ok(x);
        }
        self.emit(Op::Reduce { op, axes: axes.to_vec(), keep_dims: keep }, &[x])
    }

    pub(super) fn matmul(&mut self, a: Value, b: Value) -> Result<Value, Refusal> {
        self.emit(Op::MatMul { trans_a: false, trans_b: false }, &[a, b])
    }

    pub(super) fn gelu(&mut self, x: Value, approximate: GeluApproximate) -> Result<Value, Refusal> {
        self.emit(Op::Gelu { approximate }, &[x])
    }
}

impl Entry {
    /// Constant data, from either constant form.
    pub(super) fn constant(&self) -> Option<Tensor> {
        self.tensor.clone().or_else(|| self.known.as_ref()?.to_tensor())
    }
}

/// `axis` of a tensor of `rank` axes, negatives counted from the end.
pub(super) fn normalize_axis(axis: i64, rank: usize) -> Result<usize, Refusal> {
    super::shapes::wrap_index(axis, rank)
        .ok_or_else(|| Refusal::invalid(format!("axis {axis} is out of range for a tensor of {rank} axes")))
}

/// Several axes, sorted; repeats are refused.
pub(super) fn normalize_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, Refusal> {
    let mut out = axes.iter().map(|a| normalize_axis(*a, rank)).collect::<Result<Vec<usize>, Refusal>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        return Err(Refusal::invalid(format!("axes {axes:?} name an axis twice")));
    }
    Ok(out)
}

/// A dim that must be constant here.
pub(super) fn fixed(dim: &Dim, what: &str) -> Result<i64, Refusal> {
    dim.as_const().ok_or_else(|| {
        Refusal::unsupported(
            format!("{what} must be fixed, but is {dim}"),
            format!("{}, or export the model with this dimension static", bind_symbols(&[dim])),
        )
    })
}

/// Advice to bind the symbols of `dims`.
pub(super) fn bind_symbols(dims: &[&Dim]) -> String {
    let mut symbols = std::collections::BTreeSet::new();
    dims.iter().for_each(|dim| dim.symbols(&mut symbols));
    let list: Vec<String> = symbols.into_iter().map(|s| format!("'{s}'")).collect();
    format!("give {} a value with a shape binding", list.join(" and "))
}
