//! From the forms in which exporters spell composites to the composites.
//!
//! Every rule is a pattern with one root, whose inside nothing else uses ([`Matcher::closed`]), and side conditions on
//! axes, dtypes, shapes and numbers. Raising changes where results are rounded (`rounding`), never what they mean; what
//! that takes is told in each file.
//!
//! [`Matcher::closed`]: crate::matching::Matcher::closed

mod attention;
mod gelu;
mod group_norm;
mod heads;
mod layer_norm;
mod mask;
mod narrow;
mod rms_norm;
mod rotary;
mod silu;
mod softmax;
mod standardized;

use forge_ir::{Exactness, Graph, InferError, Op, Patch, Value};

use crate::{Context, OptionSpec, PassError, Rule, rules};

pub const ABOUT: &str = "recognise composites (softmax, norms, gelu, silu, attention, rotary) in primitive ops";

pub const OPTIONS: &[OptionSpec] = &[OptionSpec { name: "only", about: "one rule by name", default: "all rules" }];

/// Every rule, in the order in which they are tried at a node.
pub const RULES: &[Rule] = &[
    Rule { name: "softmax", about: "exp(x - max x) / sum of it, along one axis", apply: softmax::softmax },
    Rule {
        name: "log_softmax",
        about: "x - max x - log(sum(exp(x - max x))); not log(softmax), which is -inf earlier",
        apply: softmax::log_softmax,
    },
    Rule {
        name: "layer_norm",
        about: "(x - mean) / sqrt(variance + epsilon) * scale (+ bias) over the last axes",
        apply: layer_norm::layer_norm,
    },
    Rule {
        name: "rms_norm",
        about: "x / sqrt(mean(x^2) + epsilon) * scale over the last axes, also computed in f32 for half types",
        apply: rms_norm::rms_norm,
    },
    Rule {
        name: "group_norm",
        about: "a norm of [N, groups, rest] without parameters between reshapes, then scale and bias a channel",
        apply: group_norm::group_norm,
    },
    Rule {
        name: "gelu",
        about: "x/2 * (1 + erf(x/sqrt 2)) or its tanh form, in any order of the factors",
        apply: gelu::gelu,
    },
    Rule { name: "silu", about: "x * sigmoid(x), x / (1 + exp(-x))", apply: silu::silu },
    Rule {
        name: "rotary",
        about: "x*cos + rotate_half(x)*sin with cos and sin equal in both halves",
        apply: rotary::rotary,
    },
    Rule {
        name: "attention",
        about: "softmax(scale q k^T + mask) v, scale on either side, with or without the guard of fully masked rows",
        apply: attention::attention,
    },
    Rule {
        name: "shared_heads",
        about: "attention of keys and values that are repeated a group of heads: attention of the originals",
        apply: heads::shared_heads,
    },
    Rule {
        name: "causal",
        about: "attention with a constant mask that bars exactly the later keys: causal",
        apply: mask::causal,
    },
    Rule {
        name: "narrow",
        about: "f16(op(f32(x), ..)) = op(x, ..): float ops compute in f32 and round once",
        apply: narrow::narrow,
    },
];

/// # Errors
/// If `only` names no rule, or a rewrite does not type.
pub fn run(graph: &Graph, context: &Context) -> Result<Vec<Patch>, PassError> {
    rules::run(RULES, graph, context)
}

/// Replaces `root` by `op` on `operands`.
fn rounding(graph: &Graph, root: Value, op: Op, operands: &[Value], why: &str) -> Result<Option<Patch>, InferError> {
    Patch::replace_with_op(graph, root, op, operands, why, Exactness::Rounding).map(Some)
}
