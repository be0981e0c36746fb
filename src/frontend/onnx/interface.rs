//! Graph inputs: their types, the symbols in them, and the values that the caller binds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use forge_ir::{Bindings, Dim, TensorType};

use super::proto::{DimensionValue, TensorTypeProto, TypeValue, ValueInfoProto, data_type};
use crate::frontend::Fault;

/// Larger dims are taken for damage: no device holds such a tensor.
const MAX_DIM: i64 = 1 << 40;
/// What exporters write for "dynamic", which is not one dim wherever it stands.
const UNNAMED: [&str; 6] = ["", "?", "*", "-1", "None", "unk"];
/// Words that the text form of dims gives a meaning.
const RESERVED: [&str; 4] = ["floordiv", "mod", "max", "min"];

/// Types of the inputs, in order; `None` where a fault was recorded.
pub(super) fn inputs(
    inputs: &[&ValueInfoProto],
    bindings: &Bindings,
    faults: &mut Vec<Fault>,
) -> Vec<Option<TensorType>> {
    let mut symbols = Symbols::default();
    let tensors: Vec<Option<&TensorTypeProto>> = inputs
        .iter()
        .map(|input| match tensor_type(input) {
            Ok(ty) => Some(ty),
            Err(fault) => {
                faults.push(fault);
                None
            }
        })
        .collect();
    // Plain names first, so that an expression over them (`2*batch`) is one.
    for dim in tensors.iter().flatten().flat_map(|t| t.shape.iter().flat_map(|s| &s.dim)) {
        if let Some(DimensionValue::Param(param)) = &dim.value
            && !UNNAMED.contains(&param.trim())
        {
            symbols.declare(param);
        }
    }
    let mut types: Vec<Option<TensorType>> = Vec::new();
    for (input, tensor) in inputs.iter().zip(&tensors) {
        types.push(tensor.and_then(|tensor| match typed(input, tensor, &mut symbols) {
            Ok(ty) => Some(ty),
            Err(fault) => {
                faults.push(fault);
                None
            }
        }));
    }
    let resolved = resolve(bindings, inputs, &types, &symbols, faults);
    types.into_iter().map(|ty| ty.map(|ty| ty.substitute(&resolved))).collect()
}

fn input_fault(input: &ValueInfoProto, message: impl Into<String>, help: &str) -> Fault {
    Fault::Interface { side: "input", name: input.name.clone(), message: message.into(), help: help.into() }
}

fn tensor_type(input: &ValueInfoProto) -> Result<&TensorTypeProto, Fault> {
    let fault = |message: &str, help: &str| Err(input_fault(input, message, help));
    let flat = "export the model with plain tensor inputs";
    match input.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(tensor)) => Ok(tensor),
        Some(TypeValue::Sequence(_)) => fault("is a sequence, not a tensor", flat),
        Some(TypeValue::Map(_)) => fault("is a map, not a tensor", flat),
        Some(TypeValue::SparseTensor(_)) => fault("is a sparse tensor, not a dense one", flat),
        Some(TypeValue::Optional(_)) => fault("is optional", flat),
        None => fault("has no type", "the model is incomplete: export it again"),
    }
}

fn typed(input: &ValueInfoProto, tensor: &TensorTypeProto, symbols: &mut Symbols) -> Result<TensorType, Fault> {
    if input.name.is_empty() {
        return Err(input_fault(input, "has no name", "name every graph input"));
    }
    let Some(dtype) = data_type::to_dtype(tensor.elem_type) else {
        return Err(input_fault(
            input,
            format!("element type {} is not supported", data_type::name(tensor.elem_type)),
            "export the model with inputs of bool, integer, f16, bf16, f32 or f64",
        ));
    };
    let Some(shape) = &tensor.shape else {
        return Err(input_fault(
            input,
            "has no shape, not even a rank",
            "export the model with example inputs, or set the input's shape with `onnx.helper.make_tensor_value_info`",
        ));
    };
    let mut dims = Vec::with_capacity(shape.dim.len());
    for (axis, dim) in shape.dim.iter().enumerate() {
        dims.push(match &dim.value {
            Some(DimensionValue::Value(value)) if (0..=MAX_DIM).contains(value) => Dim::from(*value),
            // Some exporters write a dynamic dim as -1.
            Some(DimensionValue::Value(-1)) | None => symbols.fresh(&input.name, axis),
            Some(DimensionValue::Value(value)) => {
                return Err(input_fault(
                    input,
                    format!("dim {axis} is {value}"),
                    "a dimension is a name or a number from 0 to 2^40: export the model again",
                ));
            }
            Some(DimensionValue::Param(param)) if UNNAMED.contains(&param.trim()) => symbols.fresh(&input.name, axis),
            Some(DimensionValue::Param(param)) => symbols.dim(param),
        });
    }
    Ok(TensorType::new(dtype, dims))
}

/// Identifiers for the names that a model gives its dims.
#[derive(Default)]
struct Symbols {
    /// As written in the file -> identifier.
    plain: HashMap<String, String>,
    /// Expressions over plain names, and names that had to be altered.
    other: BTreeMap<String, Dim>,
    taken: BTreeSet<String>,
}

impl Symbols {
    /// Notes `param` if it is a name that can stay as it is.
    fn declare(&mut self, param: &str) {
        let name = param.trim();
        let mut chars = name.chars();
        let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if starts && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') && !RESERVED.contains(&name) {
            self.plain.insert(param.to_owned(), name.to_owned());
            self.taken.insert(name.to_owned());
        }
    }

    fn dim(&mut self, param: &str) -> Dim {
        if let Some(name) = self.plain.get(param) {
            return Dim::symbol(name);
        }
        if let Some(dim) = self.other.get(param) {
            return dim.clone();
        }
        let dim = self.expression(param).unwrap_or_else(|| Dim::symbol(&self.unique(param)));
        self.other.insert(param.to_owned(), dim.clone());
        dim
    }

    /// `param` as arithmetic over plain names, if it is that.
    fn expression(&self, param: &str) -> Option<Dim> {
        // Bounded, as is the depth of the parser's recursion with it.
        let dim = (param.len() <= 256).then(|| Dim::parse(param).ok())??;
        let mut names = BTreeSet::new();
        dim.symbols(&mut names);
        let known = !names.is_empty() && names.iter().all(|n| self.plain.values().any(|p| p == n));
        known.then_some(dim)
    }

    fn fresh(&mut self, input: &str, axis: usize) -> Dim {
        Dim::symbol(&self.unique(&format!("{input}_dim{axis}")))
    }

    /// An identifier close to `text` that no other dim has.
    fn unique(&mut self, text: &str) -> String {
        let base = sanitized(text);
        let mut name = base.clone();
        let mut suffix = 2;
        while RESERVED.contains(&name.as_str()) || !self.taken.insert(name.clone()) {
            name = format!("{base}_{suffix}");
            suffix += 1;
        }
        name
    }
}

/// Letters, digits and underscores, not starting with a digit.
fn sanitized(text: &str) -> String {
    let mut out: String = text.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, 'd');
    }
    out.truncate(64);
    out
}

/// Values by symbol, from bindings by symbol, by the file's own name for it, or by input axis.
fn resolve(
    bindings: &Bindings,
    inputs: &[&ValueInfoProto],
    types: &[Option<TensorType>],
    symbols: &Symbols,
    faults: &mut Vec<Fault>,
) -> Bindings {
    let mut axes: BTreeMap<String, Dim> = BTreeMap::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for (input, ty) in inputs.iter().zip(types) {
        for (axis, dim) in ty.iter().flat_map(|t| t.shape.iter().enumerate()) {
            axes.insert(sanitized(&format!("{}_dim{axis}", input.name)), dim.clone());
            dim.symbols(&mut known);
        }
    }
    let mut resolved = Bindings::new();
    for (name, value) in bindings {
        let fault = |message: String, help: String| Fault::Binding { name: name.clone(), value: *value, message, help };
        let dim = if known.contains(name) {
            Dim::symbol(name)
        } else if let Some(dim) = symbols.other.get(name).or_else(|| axes.get(name)) {
            dim.clone()
        } else {
            let list: Vec<&str> = known.iter().map(String::as_str).collect();
            let help = if list.is_empty() {
                "all dims of this model are fixed: export it with dynamic shapes, or drop the binding".to_owned()
            } else {
                format!("the model's symbolic dims are: {}", list.join(", "))
            };
            faults.push(fault("the model has no such dim".into(), help));
            continue;
        };
        if !(1..=MAX_DIM).contains(value) {
            faults.push(fault("a dim is at least 1 and at most 2^40".into(), "give a positive size".into()));
            continue;
        }
        match (dim.as_const(), dim.as_symbol()) {
            (Some(fixed), _) if fixed == *value => {}
            (Some(fixed), _) => faults.push(fault(
                format!("this dim is fixed to {fixed} in the model"),
                "export the model with this dim dynamic, or drop the binding".into(),
            )),
            (None, Some(symbol)) => {
                if let Some(other) = resolved.insert(symbol.to_owned(), *value).filter(|other| other != value) {
                    faults.push(fault(
                        format!("'{symbol}' is also bound to {other}"),
                        "bind each dim to one value".into(),
                    ));
                }
            }
            (None, None) => {
                faults.push(fault(format!("this dim is computed: {dim}"), "bind the symbols in it instead".into()));
            }
        }
    }
    resolved
}
