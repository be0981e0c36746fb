//! Binding symbols: unifying the shapes of actual inputs with the types that a graph declares.

use std::collections::{BTreeMap, BTreeSet};

use super::error::EvalError;
use crate::dim::{Bindings, Dim};
use crate::graph::{Graph, Value};
use crate::tensor::Tensor;

/// Values of the symbols in `graph`'s input types, from the shapes of `inputs` (in call order).
///
/// A dim that is a linear expression of one yet unknown symbol (`N`, `N*2 + 1`) binds it; every dim is then checked.
/// Symbols that no input determines stay unbound. Dtypes are not looked at.
///
/// # Errors
/// On a wrong number of inputs, a wrong rank, or the first axis that contradicts its declaration; the message names the
/// input, the axis, and where the expected value comes from.
///
/// ```
/// use forge_ir::{DType, Dim, Graph, Tensor, TensorType, interp};
/// let mut graph = Graph::new("g");
/// graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("N"), Dim::from(2i64)]));
/// let bound = interp::bind_inputs(&graph, &[Tensor::from_slice(&[3, 2], &[0f32; 6])]).unwrap();
/// assert_eq!(bound["N"], 3);
/// ```
pub fn bind_inputs(graph: &Graph, inputs: &[Tensor]) -> Result<Bindings, EvalError> {
    bind_nested(graph, inputs, &Bindings::new())
}

/// As [`bind_inputs`]; `outer` gives the symbols that the inputs leave open (a fused body inside its graph).
pub(super) fn bind_nested(graph: &Graph, inputs: &[Tensor], outer: &Bindings) -> Result<Bindings, EvalError> {
    let nodes = graph.inputs();
    if nodes.len() != inputs.len() {
        return Err(EvalError::InputCount { graph: graph.name().to_owned(), expected: nodes.len(), got: inputs.len() });
    }
    let mut facts = Vec::new();
    for (index, (node, tensor)) in nodes.iter().zip(inputs).enumerate() {
        let ty = graph.ty(Value { node: *node, port: 0 });
        let name = graph.input_name(*node);
        if ty.rank() != tensor.shape().len() {
            return Err(EvalError::InputRank {
                index,
                name: name.to_owned(),
                declared: ty.to_string(),
                expected: ty.rank(),
                got: tensor.shape().len(),
            });
        }
        for (axis, (dim, size)) in ty.shape.iter().zip(tensor.shape()).enumerate() {
            facts.push(Fact { index, name, axis, dim, size: *size });
        }
    }

    let mut bindings = Bindings::new();
    let mut origin: BTreeMap<String, String> = BTreeMap::new();
    // Each round binds at least one symbol or ends.
    loop {
        let mut progress = false;
        for fact in &facts {
            if let Some((symbol, value)) = fact.solve(&bindings) {
                origin.insert(symbol.clone(), format!("input {} '{}' axis {}", fact.index, fact.name, fact.axis));
                bindings.insert(symbol, value);
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    for (symbol, value) in outer {
        bindings.entry(symbol.clone()).or_insert(*value);
    }
    for fact in &facts {
        match fact.dim.eval(&bindings) {
            Some(value) if i64::try_from(fact.size) == Ok(value) => {}
            Some(value) => {
                return Err(EvalError::InputDim {
                    index: fact.index,
                    name: fact.name.to_owned(),
                    axis: fact.axis,
                    expected: fact.expectation(value, &origin),
                    got: fact.size,
                });
            }
            // An open symbol may go unused; a use of it is refused where it is needed.
            None => {}
        }
    }
    Ok(bindings)
}

/// One axis of one input.
struct Fact<'a> {
    index: usize,
    name: &'a str,
    axis: usize,
    dim: &'a Dim,
    size: usize,
}

impl Fact<'_> {
    /// The only unknown symbol of a linear dim, and the value that makes the dim equal to the size.
    fn solve(&self, bindings: &Bindings) -> Option<(String, i64)> {
        let dim = self.dim.substitute(bindings);
        let mut symbols = BTreeSet::new();
        dim.symbols(&mut symbols);
        if symbols.len() != 1 {
            return None;
        }
        let symbol = symbols.pop_first()?;
        let size = i64::try_from(self.size).ok()?;
        let at = |value: i64| dim.eval(&Bindings::from([(symbol.clone(), value)]));
        // Linear in its symbol, or the check below fails and the symbol stays open.
        let (zero, one) = (at(0)?, at(1)?);
        let slope = one.checked_sub(zero)?;
        let rise = size.checked_sub(zero)?;
        if slope == 0 || rise % slope != 0 {
            return None;
        }
        let value = rise / slope;
        (value >= 0 && at(value) == Some(size) && at(2)?.checked_sub(one)? == slope).then_some((symbol, value))
    }

    fn expectation(&self, value: i64, origin: &BTreeMap<String, String>) -> String {
        let mut symbols = BTreeSet::new();
        self.dim.symbols(&mut symbols);
        let sources: Vec<String> =
            symbols.iter().filter_map(|s| origin.get(s).map(|o| format!("{s} from {o}"))).collect();
        if sources.is_empty() { value.to_string() } else { format!("{} = {value} ({})", self.dim, sources.join(", ")) }
    }
}
