//! The operators: one table, resolved by domain, name and opset version.
//!
//! An entry names the opsets whose rules its lowering follows; the lowering looks at the version where they differ. A
//! lowering either gives IR values that mean what the operator means, or refuses with a reason. To add an operator, add
//! an entry here and a function in the module of its kind.

mod activation;
mod attention;
mod constant;
mod contract;
mod einsum;
mod elementwise;
mod index;
mod microsoft;
mod norm;
mod quantize;
mod recurrent;
mod reduce;
mod resize;
mod slice;
pub(super) mod track;
mod view;
mod window;

use std::fmt;

use forge_ir::{ArgOp, BinaryOp, CompareOp, ReduceOp, UnaryOp};

use super::import::standard;
use super::lower::{Call, Lowered, Refusal};
use super::proto::NodeProto;

/// The oldest standard opset that we read.
pub const FIRST_OPSET: i64 = 7;
/// The newest standard opset that we read.
pub const LAST_OPSET: i64 = 26;

/// One operator that the importer takes.
pub struct Supported {
    /// "" is the standard domain.
    pub domain: &'static str,
    pub op_type: &'static str,
    /// Opset versions of the domain.
    pub first: i64,
    pub last: i64,
    /// Limits, for the table in the documentation; empty if there are none.
    pub note: &'static str,
    pub(super) lower: fn(&mut Call<'_, '_>) -> Lowered,
}

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain = if self.domain.is_empty() { "ai.onnx" } else { self.domain };
        write!(f, "{domain}::{} {}-{}", self.op_type, self.first, self.last)?;
        if !self.note.is_empty() {
            write!(f, " ({})", self.note)?;
        }
        Ok(())
    }
}

const fn op(op_type: &'static str, first: i64, lower: fn(&mut Call<'_, '_>) -> Lowered) -> Supported {
    noted(op_type, first, "", lower)
}

const fn noted(
    op_type: &'static str,
    first: i64,
    note: &'static str,
    lower: fn(&mut Call<'_, '_>) -> Lowered,
) -> Supported {
    Supported { domain: "", op_type, first, last: LAST_OPSET, note, lower }
}

const fn contrib(op_type: &'static str, note: &'static str, lower: fn(&mut Call<'_, '_>) -> Lowered) -> Supported {
    Supported { domain: "com.microsoft", op_type, first: 1, last: 1, note, lower }
}

/// Every operator that the importer takes, by domain and name.
pub static SUPPORTED: &[Supported] = &[
    op("Abs", 7, |c| elementwise::unary(c, UnaryOp::Abs)),
    op("Acos", 7, |c| elementwise::unary(c, UnaryOp::Acos)),
    op("Acosh", 9, |c| elementwise::unary(c, UnaryOp::Acosh)),
    op("Add", 7, |c| elementwise::binary(c, BinaryOp::Add)),
    op("And", 7, |c| elementwise::binary(c, BinaryOp::And)),
    op("ArgMax", 7, |c| reduce::arg(c, ArgOp::Max)),
    op("ArgMin", 7, |c| reduce::arg(c, ArgOp::Min)),
    op("Asin", 7, |c| elementwise::unary(c, UnaryOp::Asin)),
    op("Asinh", 9, |c| elementwise::unary(c, UnaryOp::Asinh)),
    op("Atan", 7, |c| elementwise::unary(c, UnaryOp::Atan)),
    op("Atanh", 9, |c| elementwise::unary(c, UnaryOp::Atanh)),
    noted("Attention", 23, "no qk_matmul_output, no nonpad_kv_seqlen", attention::attention),
    op("AveragePool", 7, window::average_pool),
    noted("BatchNormalization", 7, "inference only", norm::batch),
    op("BitShift", 11, elementwise::bit_shift),
    op("BitwiseAnd", 18, |c| elementwise::binary(c, BinaryOp::And)),
    op("BitwiseNot", 18, |c| elementwise::unary(c, UnaryOp::Not)),
    op("BitwiseOr", 18, |c| elementwise::binary(c, BinaryOp::Or)),
    op("BitwiseXor", 18, |c| elementwise::binary(c, BinaryOp::Xor)),
    noted("Cast", 7, "no strings, no 4- or 8-bit floats", elementwise::cast),
    op("CastLike", 15, elementwise::cast_like),
    op("Ceil", 7, |c| elementwise::unary(c, UnaryOp::Ceil)),
    op("Celu", 12, activation::celu),
    noted("CenterCropPad", 18, "fixed sizes only", slice::center_crop_pad),
    op("Clip", 6, elementwise::clip),
    op("Concat", 7, view::concat),
    noted("Constant", 7, "dense numbers only", constant::constant),
    op("ConstantOfShape", 9, constant::constant_of_shape),
    op("Conv", 7, contract::conv),
    op("ConvInteger", 10, quantize::conv_integer),
    noted("ConvTranspose", 7, "auto_pad with fixed sizes only", contract::conv_transpose),
    op("Cos", 7, |c| elementwise::unary(c, UnaryOp::Cos)),
    op("Cosh", 9, |c| elementwise::unary(c, UnaryOp::Cosh)),
    op("CumSum", 11, reduce::cum_sum),
    op("DepthToSpace", 7, view::depth_to_space),
    noted("DequantizeLinear", 10, "per tensor and per axis", quantize::dequantize_linear),
    op("Div", 7, |c| elementwise::binary(c, BinaryOp::Div)),
    noted("Dropout", 7, "inference only", view::dropout),
    op("DynamicQuantizeLinear", 11, quantize::dynamic_quantize_linear),
    op("Einsum", 12, einsum::einsum),
    op("Elu", 7, activation::elu),
    op("Equal", 7, |c| elementwise::compare(c, CompareOp::Eq)),
    op("Erf", 9, |c| elementwise::unary(c, UnaryOp::Erf)),
    op("Exp", 7, |c| elementwise::unary(c, UnaryOp::Exp)),
    op("Expand", 8, view::expand),
    op("EyeLike", 9, constant::eye_like),
    op("Flatten", 7, view::flatten),
    op("Floor", 7, |c| elementwise::unary(c, UnaryOp::Floor)),
    op("Gather", 7, index::gather),
    op("GatherElements", 11, index::gather_elements),
    op("GatherND", 11, index::gather_nd),
    op("Gelu", 20, activation::gelu),
    op("Gemm", 7, contract::gemm),
    op("GlobalAveragePool", 7, |c| window::global_pool(c, ReduceOp::Mean)),
    op("GlobalMaxPool", 7, |c| window::global_pool(c, ReduceOp::Max)),
    op("Greater", 7, |c| elementwise::compare(c, CompareOp::Gt)),
    op("GreaterOrEqual", 12, |c| elementwise::compare(c, CompareOp::Ge)),
    op("GroupNormalization", 18, norm::group),
    op("HardSigmoid", 7, activation::hard_sigmoid),
    op("HardSwish", 14, activation::hard_swish),
    op("Hardmax", 7, reduce::hardmax),
    op("Identity", 7, view::identity),
    noted("If", 7, "condition known at import", constant::if_),
    op("InstanceNormalization", 7, norm::instance),
    op("IsInf", 10, elementwise::is_inf),
    op("IsNaN", 9, |c| elementwise::unary(c, UnaryOp::IsNan)),
    op("LRN", 7, norm::local_response),
    noted("LSTM", 7, "fixed sequence length, default activations, no peepholes", recurrent::lstm),
    op("LayerNormalization", 17, norm::layer),
    op("LeakyRelu", 7, activation::leaky_relu),
    op("Less", 7, |c| elementwise::compare(c, CompareOp::Lt)),
    op("LessOrEqual", 12, |c| elementwise::compare(c, CompareOp::Le)),
    op("Log", 7, |c| elementwise::unary(c, UnaryOp::Log)),
    op("LogSoftmax", 7, |c| reduce::softmax(c, true)),
    op("LpNormalization", 7, norm::lp),
    op("LpPool", 7, window::lp_pool),
    op("MatMul", 7, contract::matmul),
    op("MatMulInteger", 10, quantize::matmul_integer),
    op("Max", 7, |c| elementwise::variadic(c, BinaryOp::Max)),
    noted("MaxPool", 7, "no Indices output", window::max_pool),
    op("Mean", 7, elementwise::mean),
    op("MeanVarianceNormalization", 9, norm::mean_variance),
    op("Min", 7, |c| elementwise::variadic(c, BinaryOp::Min)),
    op("Mish", 18, activation::mish),
    op("Mod", 10, elementwise::modulo),
    op("Mul", 7, |c| elementwise::binary(c, BinaryOp::Mul)),
    op("Neg", 7, |c| elementwise::unary(c, UnaryOp::Neg)),
    noted("NonZero", 9, "of constants", index::non_zero),
    op("Not", 7, |c| elementwise::unary(c, UnaryOp::Not)),
    op("OneHot", 9, index::one_hot),
    op("Or", 7, |c| elementwise::binary(c, BinaryOp::Or)),
    op("PRelu", 7, activation::p_relu),
    op("Pad", 7, slice::pad),
    op("Pow", 7, elementwise::pow),
    noted("QLinearConv", 10, "per tensor and per channel", quantize::q_linear_conv),
    noted("QLinearMatMul", 10, "per tensor and per column", quantize::q_linear_matmul),
    noted("QuantizeLinear", 10, "per tensor and per axis", quantize::quantize_linear),
    op("RMSNormalization", 23, norm::rms),
    op("Range", 11, constant::range),
    op("Reciprocal", 7, |c| elementwise::unary(c, UnaryOp::Reciprocal)),
    op("ReduceL1", 7, |c| reduce::reduce(c, reduce::Kind::L1)),
    op("ReduceL2", 7, |c| reduce::reduce(c, reduce::Kind::L2)),
    op("ReduceLogSum", 7, |c| reduce::reduce(c, reduce::Kind::LogSum)),
    op("ReduceLogSumExp", 7, |c| reduce::reduce(c, reduce::Kind::LogSumExp)),
    op("ReduceMax", 7, |c| reduce::reduce(c, reduce::Kind::Plain(ReduceOp::Max))),
    op("ReduceMean", 7, |c| reduce::reduce(c, reduce::Kind::Plain(ReduceOp::Mean))),
    op("ReduceMin", 7, |c| reduce::reduce(c, reduce::Kind::Plain(ReduceOp::Min))),
    op("ReduceProd", 7, |c| reduce::reduce(c, reduce::Kind::Plain(ReduceOp::Prod))),
    op("ReduceSum", 7, |c| reduce::reduce(c, reduce::Kind::Plain(ReduceOp::Sum))),
    op("ReduceSumSquare", 7, |c| reduce::reduce(c, reduce::Kind::SumSquare)),
    op("Relu", 7, |c| elementwise::unary(c, UnaryOp::Relu)),
    noted("Reshape", 7, "target known at import", view::reshape),
    noted("Resize", 10, "no antialias, no tf_crop_and_resize", resize::resize),
    op("RotaryEmbedding", 23, attention::rotary_embedding),
    op("Round", 11, |c| elementwise::unary(c, UnaryOp::Round)),
    noted("Scatter", 9, "until opset 10", index::scatter_elements),
    op("ScatterElements", 11, index::scatter_elements),
    op("ScatterND", 11, index::scatter_nd),
    op("Selu", 7, activation::selu),
    op("Shape", 7, constant::shape),
    op("Shrink", 9, activation::shrink),
    op("Sigmoid", 7, |c| elementwise::unary(c, UnaryOp::Sigmoid)),
    op("Sign", 9, |c| elementwise::unary(c, UnaryOp::Sign)),
    op("Sin", 7, |c| elementwise::unary(c, UnaryOp::Sin)),
    op("Sinh", 9, |c| elementwise::unary(c, UnaryOp::Sinh)),
    op("Size", 7, constant::size),
    noted("Slice", 7, "bounds known at import", slice::slice),
    op("Softmax", 7, |c| reduce::softmax(c, false)),
    op("Softplus", 7, |c| elementwise::unary(c, UnaryOp::Softplus)),
    op("Softsign", 7, activation::softsign),
    op("SpaceToDepth", 7, view::space_to_depth),
    op("Split", 7, view::split),
    op("Sqrt", 7, |c| elementwise::unary(c, UnaryOp::Sqrt)),
    op("Squeeze", 7, view::squeeze),
    op("Sub", 7, |c| elementwise::binary(c, BinaryOp::Sub)),
    op("Sum", 7, |c| elementwise::variadic(c, BinaryOp::Add)),
    op("Swish", 24, activation::swish),
    op("Tan", 7, |c| elementwise::unary(c, UnaryOp::Tan)),
    op("Tanh", 7, |c| elementwise::unary(c, UnaryOp::Tanh)),
    op("ThresholdedRelu", 10, activation::thresholded_relu),
    op("Tile", 7, view::tile),
    noted("TopK", 7, "k known at import", index::top_k),
    op("Transpose", 7, view::transpose),
    op("Trilu", 14, index::trilu),
    op("Unsqueeze", 7, view::unsqueeze),
    noted("Upsample", 7, "until opset 9", resize::upsample),
    op("Where", 9, elementwise::select),
    op("Xor", 7, |c| elementwise::binary(c, BinaryOp::Xor)),
    contrib("BiasGelu", "", microsoft::bias_gelu),
    contrib("FastGelu", "", microsoft::fast_gelu),
    contrib("FusedMatMul", "no transBatch", microsoft::fused_matmul),
    contrib("Gelu", "", microsoft::gelu),
    contrib("QuickGelu", "", microsoft::quick_gelu),
    contrib("SimplifiedLayerNormalization", "", norm::rms),
    Supported {
        domain: "",
        op_type: "SimplifiedLayerNormalization",
        first: FIRST_OPSET,
        last: LAST_OPSET,
        note: "ONNX Runtime's, in the standard domain",
        lower: norm::rms,
    },
    contrib("SkipLayerNormalization", "", microsoft::skip_layer_norm),
    contrib("SkipSimplifiedLayerNormalization", "", microsoft::skip_rms_norm),
];

/// Why some operators have no place here, for a better message than "unknown".
const REFUSED: &[(&str, &str)] = &[
    ("Bernoulli", RANDOM),
    ("Compress", DATA),
    ("GRU", RECURRENT),
    ("Loop", CONTROL),
    ("Multinomial", RANDOM),
    ("NonMaxSuppression", "leave it out of the exported model, and apply it to the model's outputs"),
    ("RNN", RECURRENT),
    ("RandomNormal", RANDOM),
    ("RandomNormalLike", RANDOM),
    ("RandomUniform", RANDOM),
    ("RandomUniformLike", RANDOM),
    ("Scan", CONTROL),
    ("SequenceMap", CONTROL),
    ("Unique", DATA),
];

const DATA: &str = "the shape of its result depends on data: leave it out of the exported part, or replace it with a \
                    masked operation of fixed shape";
const RANDOM: &str = "a compiled model is a function of its inputs: pass the random numbers in as one of them";
const CONTROL: &str = "export the model with its loops unrolled, or export the loop's body";
const RECURRENT: &str = "export the recurrence unrolled, or leave this layer to PyTorch";

/// What the table says of an operator.
pub(super) enum Resolution {
    Supported(&'static Supported),
    Refused(Refusal),
}

/// Looks an operator up; `domain` is "" for the standard one.
pub(super) fn resolve(domain: &str, op_type: &str, version: i64) -> Resolution {
    let named: Vec<&Supported> = SUPPORTED.iter().filter(|s| s.domain == domain && s.op_type == op_type).collect();
    if let Some(hit) = named.iter().find(|s| (s.first..=s.last).contains(&version)) {
        return Resolution::Supported(hit);
    }
    let name = if domain.is_empty() { "ai.onnx" } else { domain };
    let operator = format!("{name}::{op_type} (opset {version})");
    let (detail, help) = if let Some(known) = named.first() {
        (
            format!(" at this opset: we know it at opsets {} to {}", known.first, known.last),
            format!(
                "export the model with opset_version=23, or convert it: \
                 `onnx.version_converter.convert_version(model, {})`",
                23.clamp(known.first, known.last)
            ),
        )
    } else if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| domain.is_empty() && *refused == op_type) {
        (String::new(), (*why).to_owned())
    } else if domain.is_empty() {
        (String::new(), "rewrite this part of the model in other operators, or leave it out of the export".to_owned())
    } else {
        (
            String::new(),
            format!(
                "'{domain}' is not a domain of the ONNX standard: define the operator as a model-local function, or \
                 export the model without it"
            ),
        )
    };
    Resolution::Refused(Refusal::Operator { operator, detail, help })
}

/// The refusal of a node whose domain the model does not import.
pub(super) fn no_opset(node: &NodeProto) -> Refusal {
    let domain = if standard(&node.domain).is_empty() { "ai.onnx" } else { &node.domain };
    Refusal::Operator {
        operator: format!("{domain}::{}", node.op_type),
        detail: format!(": the model does not import an opset of domain '{domain}'"),
        help: "add the domain to the model's opset_import, or define the operator as a model-local function".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{REFUSED, Resolution, SUPPORTED, resolve};

    #[test]
    fn the_table_is_sorted_and_has_no_doubles() {
        let keys: Vec<(&str, &str)> = SUPPORTED.iter().map(|s| (s.domain, s.op_type)).collect();
        let mut distinct = keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), keys.len());
        assert!(REFUSED.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(REFUSED.iter().all(|(name, _)| keys.iter().all(|(_, op)| op != name)));
    }

    #[test]
    fn the_domain_decides() {
        assert!(matches!(resolve("", "Relu", 20), Resolution::Supported(_)));
        for (domain, op, version) in [("my.ns", "Relu", 1), ("", "Relu", 6), ("", "Gelu", 19), ("", "Unique", 20)] {
            assert!(matches!(resolve(domain, op, version), Resolution::Refused(_)), "{domain}::{op} {version}");
        }
    }
}
