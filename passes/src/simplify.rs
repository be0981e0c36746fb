//! Local rewrites that leave the results bit for bit as they are, but for those marked otherwise.

mod arithmetic;
mod contract;
mod views;

use forge_ir::{Graph, Patch};

use crate::{Context, OptionSpec, PassError, Rule, rules};

pub const ABOUT: &str = "cancel views, casts and identities; fold transposes and reshapes into matmuls";

pub const OPTIONS: &[OptionSpec] = &[OptionSpec { name: "only", about: "one rule by name", default: "all rules" }];

/// Every rule, in the order in which they are tried at a node.
pub const RULES: &[Rule] = &[
    Rule {
        name: "identity_view",
        about: "a reshape, transpose, broadcast, slice, pad or concat that changes nothing: x",
        apply: views::identity,
    },
    Rule { name: "view_of_view", about: "reshape, transpose, broadcast or slice twice: once", apply: views::of_view },
    Rule {
        name: "split_above_transpose",
        about: "reshape(transpose(x)) = transpose(reshape(x)) if the reshape only splits axes",
        apply: views::split_above_transpose,
    },
    Rule {
        name: "squeeze_above_transpose",
        about: "reshape(transpose(x)) = transpose(reshape(x)) if the reshape only drops axes of 1",
        apply: views::squeeze_above_transpose,
    },
    Rule {
        name: "implied_broadcast",
        about: "op(broadcast(x), y) = op(x, y) for an elementwise op that broadcasts by itself",
        apply: views::implied_broadcast,
    },
    Rule {
        name: "gather_of_one",
        about: "gather(x, constant scalar) = reshape(slice(x)); the index is in range or stays",
        apply: views::gather_of_one,
    },
    Rule {
        name: "empty_reduce",
        about: "max, min or prod over no axes, and any reduction of integers: x; a float sum starts at 0.0, so -0.0 turns",
        apply: arithmetic::empty_reduce,
    },
    Rule {
        name: "cast_chain",
        about: "cast(cast(x)) = cast(x) if the inner cast loses nothing; a cast to the same dtype: x",
        apply: arithmetic::cast_chain,
    },
    Rule { name: "involution", about: "neg(neg(x)) = x, not(not(x)) = x", apply: arithmetic::involution },
    Rule {
        name: "idempotent",
        about: "f(f(x)) = f(x) for relu, abs, sign, floor, ceil, round",
        apply: arithmetic::idempotent,
    },
    Rule {
        name: "neutral_operand",
        about: "x*1, x/1, x - 0, x + (-0.0), pow(x, 1), and x + 0 of integers: x; not x + 0.0, which turns -0.0 to 0.0",
        apply: arithmetic::neutral_operand,
    },
    Rule {
        name: "add_of_neg",
        about: "x + neg(y) = x - y, x - neg(y) = x + y: IEEE subtraction is addition of the negative",
        apply: arithmetic::add_of_neg,
    },
    Rule {
        name: "known_select",
        about: "select(true, a, b) = a, select(false, a, b) = b, select(c, a, a) = a",
        apply: arithmetic::known_select,
    },
    Rule {
        name: "square",
        about: "pow(x, 2) = x*x (rounding); not pow(x, 0.5), which differs from sqrt at -0.0 and -inf",
        apply: arithmetic::square,
    },
    Rule {
        name: "reciprocal_sqrt",
        about: "1/sqrt(x) and reciprocal(sqrt(x)) = rsqrt(x) (rounding)",
        apply: arithmetic::reciprocal_sqrt,
    },
    Rule {
        name: "transpose_into_matmul",
        about: "matmul(transpose(x), y) = matmul(x, y) with the flag of that side turned over",
        apply: contract::transpose_into_matmul,
    },
    Rule {
        name: "matmul_at_full_rank",
        about: "reshape(matmul(reshape(x), w) + b) = matmul(x, w) + b: a linear layer on rows, told in x's own rank",
        apply: contract::matmul_at_full_rank,
    },
];

/// # Errors
/// If `only` names no rule, or a rewrite does not type.
pub fn run(graph: &Graph, context: &Context) -> Result<Vec<Patch>, PassError> {
    rules::run(RULES, graph, context)
}
