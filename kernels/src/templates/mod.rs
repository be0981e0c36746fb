//! Parameterised kernels: each template looks at a region and, where it applies, offers a space of candidates.

pub mod attention;
pub mod conv;
pub mod epilogue;
pub mod matmul;
pub mod rowwise;

use std::collections::BTreeMap;

use forge_ir::{Graph, Value};

use crate::candidate::{Candidate, Dialect, LaunchPlan, Origin, Slot};
use crate::codegen::Unsupported;
use crate::codegen::cpp::{PRELUDE, Parameter};
use crate::generic::rename_symbols;

/// A region as templates see it.
#[derive(Clone, Copy)]
pub struct Spec<'a> {
    pub region: &'a Graph,
    /// Which inputs are weights at every occurrence, so that they may be packed at load.
    pub weight_inputs: &'a [bool],
}

/// One dimension of a template's space: a name and its values, the most promising first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    pub name: &'static str,
    pub values: Vec<String>,
}

/// A point of a template's space.
pub type Parameters = BTreeMap<String, String>;

/// A family of kernels.
pub struct Template {
    pub name: &'static str,
    /// One line, for `--help` and reports.
    pub about: &'static str,
    /// The space for a region; an error says why the template does not apply.
    pub space: fn(&Spec<'_>) -> Result<Vec<Axis>, Unsupported>,
    /// The kernel at a point of the space.
    pub instantiate: fn(&Spec<'_>, &Parameters) -> Result<Candidate, Unsupported>,
}

/// Every template. Adding one is one entry and one file.
pub const TEMPLATES: &[Template] = &[
    Template {
        name: "matmul_epilogue",
        about: "matrix product with a packed weight, everything elementwise after it applied to the tile in registers",
        space: matmul::space,
        instantiate: matmul::instantiate,
    },
    Template {
        name: "conv_epilogue",
        about: "2-d convolution as an implicit product over packed weights, bias, residual and activation on the tile",
        space: conv::space,
        instantiate: conv::instantiate,
    },
    Template {
        name: "attention",
        about: "attention of one head block at a time, scores never leaving the cache, views of q, k, v and result folded in",
        space: attention::space,
        instantiate: attention::instantiate,
    },
    Template {
        name: "rowwise",
        about: "elementwise, views, gathers, norms, softmax and reductions as one pass over rows",
        space: rowwise::space,
        instantiate: rowwise::instantiate,
    },
];

/// The first value of every axis.
#[must_use]
pub fn default_point(space: &[Axis]) -> Parameters {
    space.iter().filter_map(|a| Some((a.name.to_owned(), a.values.first()?.clone()))).collect()
}

/// Number of points of a space.
#[must_use]
pub fn size(space: &[Axis]) -> usize {
    space.iter().map(|a| a.values.len()).product()
}

/// The `index`-th point, the first axis varying slowest; point 0 is the default.
#[must_use]
pub fn point(space: &[Axis], index: usize) -> Parameters {
    let mut rest = index;
    let mut out = Parameters::new();
    for axis in space.iter().rev() {
        let count = axis.values.len().max(1);
        if let Some(value) = axis.values.get(rest % count) {
            out.insert(axis.name.to_owned(), value.clone());
        }
        rest /= count;
    }
    out
}

fn axis(name: &'static str, values: &[i64]) -> Axis {
    Axis { name, values: values.iter().map(ToString::to_string).collect() }
}

fn number(parameters: &Parameters, name: &str) -> Result<i64, Unsupported> {
    parameters
        .get(name)
        .and_then(|v| v.parse().ok())
        .ok_or_else(|| Unsupported::new(format!("parameter '{name}' is missing or not a number")))
}

fn candidate(template: &str, source: &str, launch: LaunchPlan, parameters: &Parameters) -> Candidate {
    let mut candidate = Candidate {
        dialect: Dialect::Cpp,
        source: format!("{PRELUDE}{source}"),
        launch,
        origin: Origin {
            proposer: "template".into(),
            strategy: template.into(),
            parameters: parameters.clone(),
            parent: None,
        },
    };
    rename_symbols(&mut candidate);
    candidate
}

/// `in0..`, then `out0..`, in the order of the region.
fn region_parameters(region: &Graph) -> Vec<Parameter> {
    let inputs = region.inputs().iter().enumerate().map(|(i, node)| Parameter {
        name: format!("in{i}"),
        dtype: region.ty(Value { node: *node, port: 0 }).dtype,
        write: false,
    });
    let outputs = region.outputs().iter().enumerate().map(|(i, (_, value))| Parameter {
        name: format!("out{i}"),
        dtype: region.ty(*value).dtype,
        write: true,
    });
    inputs.chain(outputs).collect()
}

fn region_slots(region: &Graph) -> (Vec<Slot>, Vec<Slot>) {
    ((0..region.inputs().len()).map(Slot::Input).collect(), (0..region.outputs().len()).map(Slot::Output).collect())
}

/// The one node of the region that `wanted` holds for.
fn anchor(region: &Graph, what: &str, wanted: fn(&forge_ir::Op) -> bool) -> Result<forge_ir::NodeId, Unsupported> {
    let mut found = region.topological().into_iter().filter(|n| wanted(region.op(*n)));
    match (found.next(), found.next()) {
        (Some(node), None) => Ok(node),
        (None, _) => Err(Unsupported::new(format!("no {what} in the region"))),
        (Some(_), Some(_)) => Err(Unsupported::new(format!("more than one {what} in the region"))),
    }
}
