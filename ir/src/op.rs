//! The closed set of operations.
//!
//! Conventions, for every op: values are dense and row-major; elementwise ops broadcast as numpy does; axes are
//! non-negative; a float op computes in [`DType::compute_type`] and rounds once to its result dtype. NaN passes
//! through `min`, `max`, `relu` as IEEE 754-2019 `minimum`/`maximum`.

use std::sync::Arc;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::tensor::Tensor;

/// Defines a fieldless enum with its text names: one table per closed set.
macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum $name { $($(#[$vmeta])* $variant),* }
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// The name in text form.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
            #[must_use]
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }
    };
}

named_enum! {
    /// One operand, elementwise. Result dtype = operand dtype, except `isnan`/`isinf` (bool).
    UnaryOp {
        Neg = "neg", Abs = "abs", Sign = "sign", Floor = "floor", Ceil = "ceil",
        /// To nearest, ties to even.
        Round = "round",
        Sqrt = "sqrt", Rsqrt = "rsqrt", Reciprocal = "reciprocal", Exp = "exp", Log = "log",
        Sin = "sin", Cos = "cos", Tan = "tan", Asin = "asin", Acos = "acos", Atan = "atan",
        Sinh = "sinh", Cosh = "cosh", Tanh = "tanh", Asinh = "asinh", Acosh = "acosh", Atanh = "atanh",
        Erf = "erf", Sigmoid = "sigmoid", Relu = "relu", Softplus = "softplus",
        /// Logical not of a bool; bitwise not of an integer.
        Not = "not",
        IsNan = "isnan",
        /// Either infinity.
        IsInf = "isinf",
    }
}

named_enum! {
    /// Two operands of one dtype, elementwise with broadcasting.
    BinaryOp {
        Add = "add", Sub = "sub", Mul = "mul",
        /// IEEE division; integers truncate toward zero and wrap (x / 0 = 0 for integers; so are their `rem` and `mod`).
        Div = "div",
        /// Remainder with the sign of the dividend (C `%`, `fmod`).
        Rem = "rem",
        /// Modulus with the sign of the divisor (Python `%`).
        Mod = "mod",
        /// Integers wrap; a negative integer power truncates (2^-1 = 0, 0^-1 = 0).
        Pow = "pow",
        /// NaN if either operand is NaN.
        Min = "min",
        /// NaN if either operand is NaN.
        Max = "max",
        /// Logical for bool, bitwise for integers.
        And = "and", Or = "or", Xor = "xor",
        /// Shifting by the width of the dtype or more, or by a negative count, leaves 0 (`shr` of a negative: -1).
        Shl = "shl", Shr = "shr",
    }
}

named_enum! {
    /// Two operands of one dtype, elementwise with broadcasting, result bool. Comparisons with NaN are false, `ne` true.
    CompareOp { Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge" }
}

named_enum! {
    /// Reduction over axes. Empty sums are 0, products 1, means NaN, max/min the lowest/highest value of the dtype
    /// (floats: -inf/inf). Max and min are NaN if any element is; integer sums and products wrap.
    ReduceOp { Sum = "sum", Mean = "mean", Max = "max", Min = "min", Prod = "prod" }
}

named_enum! {
    ArgOp { Max = "argmax", Min = "argmin" }
}

named_enum! {
    PadMode { Constant = "constant", Reflect = "reflect", Edge = "edge" }
}

named_enum! {
    PoolKind { Max = "max", Average = "average" }
}

named_enum! {
    /// How a scatter combines an update with what is there.
    ScatterReduce { None = "none", Add = "add", Mul = "mul", Max = "max", Min = "min" }
}

named_enum! {
    GeluApproximate { None = "none", Tanh = "tanh" }
}

named_enum! {
    ResizeMode { Nearest = "nearest", Linear = "linear", Cubic = "cubic" }
}

named_enum! {
    /// ONNX Resize `coordinate_transformation_mode`.
    ResizeCoordinates {
        HalfPixel = "half_pixel", PytorchHalfPixel = "pytorch_half_pixel", AlignCorners = "align_corners",
        Asymmetric = "asymmetric", HalfPixelSymmetric = "half_pixel_symmetric",
    }
}

named_enum! {
    /// ONNX Resize `nearest_mode`.
    ResizeRounding {
        RoundPreferFloor = "round_prefer_floor", RoundPreferCeil = "round_prefer_ceil", Floor = "floor", Ceil = "ceil",
    }
}

/// Spatial window of a convolution or pool; one entry per spatial axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Window {
    pub strides: Vec<i64>,
    pub pads_begin: Vec<i64>,
    pub pads_end: Vec<i64>,
    pub dilations: Vec<i64>,
}

/// A fused call: a region with an implementation attached. The body stays the definition.
#[derive(Clone, PartialEq, Debug)]
pub struct Fused {
    /// Inputs of the body, in order, are the operands; its outputs the results.
    pub body: Graph,
    /// Content address of the accepted kernel; empty while none is attached.
    pub kernel: String,
}

/// An operation. Operands are listed in the doc of each variant; `?` marks optional trailing ones.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    // Leaves (no operands).
    /// A graph input.
    Input { name: String },
    /// A named parameter. `data` is `None` after parsing text, until weights are bound.
    Weight { name: String, data: Option<Tensor> },
    /// A literal, printed whole in text form; large data belong in `Weight`.
    Constant { value: Tensor },
    /// `[0, 1, .., len-1]`, rank 1, of an integer or float dtype.
    Iota { len: Dim, dtype: DType },
    /// The value of a dim as an i64 scalar.
    DimValue { dim: Dim },

    // Elementwise.
    /// (x)
    Unary(UnaryOp),
    /// (a, b)
    Binary(BinaryOp),
    /// (a, b) -> bool
    Compare(CompareOp),
    /// (condition: bool, then, else)
    Select,
    /// (x). Float to integer truncates toward zero and saturates, NaN becomes 0; to bool is `!= 0`.
    Cast { to: DType },

    // Reductions and scans.
    /// (x). `axes` sorted, distinct.
    Reduce { op: ReduceOp, axes: Vec<usize>, keep_dims: bool },
    /// (x) -> i64 index along `axis` of the first (or last) extreme; NaN counts as the extreme.
    ArgReduce { op: ArgOp, axis: usize, keep_dims: bool, select_last: bool },
    /// (x)
    CumSum { axis: usize, exclusive: bool, reverse: bool },

    // Views: no arithmetic, bitwise exact.
    /// (x). Same element count, row-major order kept.
    Reshape { shape: Vec<Dim> },
    /// (x). Result axis i is operand axis `perm[i]`.
    Transpose { perm: Vec<usize> },
    /// (x). numpy broadcast of x to `shape` (rank of `shape` >= rank of x).
    Broadcast { shape: Vec<Dim> },
    /// (x). All vectors have x's rank; result element i along an axis is operand element `start + i*step`, always in
    /// bounds; result shape is `sizes`.
    Slice { starts: Vec<Dim>, steps: Vec<i64>, sizes: Vec<Dim> },
    /// (x, value?) value: scalar, default 0. Pads are non-negative.
    Pad { mode: PadMode, before: Vec<Dim>, after: Vec<Dim> },
    /// (x0, x1, ..) of one dtype, at least one.
    Concat { axis: usize },

    // Indexing. Index dtype i32 or i64; negative indices count from the end.
    /// (x, indices). Result shape: x.shape[..axis] ++ indices.shape ++ x.shape[axis+1..].
    Gather { axis: usize },
    /// (x, indices) of one rank.
    GatherElements { axis: usize },
    /// (x, indices)
    GatherNd { batch_dims: usize },
    /// (x, indices, updates) of one rank. Updates apply in row-major order: of equal indices the last wins.
    ScatterElements { axis: usize, reduce: ScatterReduce },
    /// (x, indices, updates)
    ScatterNd { reduce: ScatterReduce },
    /// (x) -> (values, indices: i64). Sorted; ties: lower index first. NaN is greater than every number.
    TopK { axis: usize, k: Dim, largest: bool },

    // Contractions.
    /// (a: [.., M, K], b: [.., K, N]) -> [.., M, N]; leading axes broadcast; ranks >= 2. `trans_*` swaps that operand's last two
    /// axes. Float operands accumulate in f32 at least.
    MatMul { trans_a: bool, trans_b: bool },
    /// (x: [N, C, spatial..], w: [M, C/groups, kernel..], bias: [M]?)
    Conv { window: Window, groups: i64 },
    /// (x: [N, C, spatial..], w: [C, M/groups, kernel..], bias: [M]?)
    ConvTranspose { window: Window, groups: i64, output_padding: Vec<i64> },

    // Windows.
    /// (x: [N, C, spatial..]). Padding never wins a max; `count_include_pad` is for averages.
    Pool { kind: PoolKind, kernel: Vec<i64>, window: Window, ceil_mode: bool, count_include_pad: bool },
    /// (x). `sizes` is the result shape; `scales` the factors used for coordinates, one per axis. Cubic uses
    /// `cubic_coeff`.
    Resize {
        mode: ResizeMode,
        coordinates: ResizeCoordinates,
        rounding: ResizeRounding,
        cubic_coeff: f64,
        scales: Vec<f64>,
        sizes: Vec<Dim>,
    },

    // Composites: each has a `decompose()`, its definition in smaller ops.
    /// (x). A row of all -inf gives NaN, as in the primitive form.
    Softmax { axis: usize },
    /// (x)
    LogSoftmax { axis: usize },
    /// (x, scale, bias?) normalised over axes `axis..`; scale and bias have shape x.shape[axis..].
    LayerNorm { axis: usize, epsilon: f64 },
    /// (x, scale) normalised over axes `axis..`; scale has shape x.shape[axis..].
    RmsNorm { axis: usize, epsilon: f64 },
    /// (x: [N, C, ..], scale: [C], bias: [C])
    GroupNorm { groups: i64, epsilon: f64 },
    /// (x: [N, C, ..], scale: [C], bias: [C], mean: [C], variance: [C])
    BatchNorm { epsilon: f64 },
    /// (x)
    Gelu { approximate: GeluApproximate },
    /// (x) x * sigmoid(x)
    Silu,
    /// (q: [B, H, L, D], k: [B, Hkv, S, D], v: [B, Hkv, S, Dv], mask?: broadcasts to [B, H, L, S]) -> [B, H, L, Dv].
    /// H is a multiple of Hkv. Scores are `scale * q k^T`; a bool mask admits where true, a float mask is added;
    /// `causal` admits key j for query i when j <= i + S - L for `causal_offset`=true (bottom-right), else j <= i.
    /// A row that admits no key (bool mask or causal) gives 0 when `masked_rows_zero`, else NaN; with S = 0
    /// the result is 0, an empty sum.
    Attention { scale: f64, causal: bool, causal_offset: bool, masked_rows_zero: bool },
    /// (x: [.., D], cos: [.., D/2], sin: [.., D/2])
    /// Applies rotary embedding to the last axis: halves (or pairs when `interleaved`) rotated by (cos, sin), which have
    /// last dim D/2 and broadcast against x's leading axes.
    Rotary { interleaved: bool },

    /// (operands of the body's inputs)
    Fused(Arc<Fused>),
}

/// An attribute value in text form.
#[derive(Clone, PartialEq, Debug)]
pub enum Attr {
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Dim(Dim),
    Dims(Vec<Dim>),
    DType(DType),
}

/// What an op is, coarsely: what passes and cost models ask for first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpClass {
    Leaf,
    Elementwise,
    Reduce,
    Scan,
    View,
    Index,
    Contract,
    Window,
    Composite,
    Fused,
}

impl Op {
    /// The mnemonic in text form. Reductions are `reduce_sum`, ..; the rest is one word per variant.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Weight { .. } => "weight",
            Op::Constant { .. } => "constant",
            Op::Iota { .. } => "iota",
            Op::DimValue { .. } => "dim_value",
            Op::Unary(op) => op.name(),
            Op::Binary(op) => op.name(),
            Op::Compare(op) => op.name(),
            Op::Select => "select",
            Op::Cast { .. } => "cast",
            Op::Reduce { op, .. } => match op {
                ReduceOp::Sum => "reduce_sum",
                ReduceOp::Mean => "reduce_mean",
                ReduceOp::Max => "reduce_max",
                ReduceOp::Min => "reduce_min",
                ReduceOp::Prod => "reduce_prod",
            },
            Op::ArgReduce { op, .. } => op.name(),
            Op::CumSum { .. } => "cumsum",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Broadcast { .. } => "broadcast",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Gather { .. } => "gather",
            Op::GatherElements { .. } => "gather_elements",
            Op::GatherNd { .. } => "gather_nd",
            Op::ScatterElements { .. } => "scatter_elements",
            Op::ScatterNd { .. } => "scatter_nd",
            Op::TopK { .. } => "top_k",
            Op::MatMul { .. } => "matmul",
            Op::Conv { .. } => "conv",
            Op::ConvTranspose { .. } => "conv_transpose",
            Op::Pool { .. } => "pool",
            Op::Resize { .. } => "resize",
            Op::Softmax { .. } => "softmax",
            Op::LogSoftmax { .. } => "log_softmax",
            Op::LayerNorm { .. } => "layer_norm",
            Op::RmsNorm { .. } => "rms_norm",
            Op::GroupNorm { .. } => "group_norm",
            Op::BatchNorm { .. } => "batch_norm",
            Op::Gelu { .. } => "gelu",
            Op::Silu => "silu",
            Op::Attention { .. } => "attention",
            Op::Rotary { .. } => "rotary",
            Op::Fused(_) => "fused",
        }
    }

    #[must_use]
    pub fn class(&self) -> OpClass {
        match self {
            Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } | Op::Iota { .. } | Op::DimValue { .. } => {
                OpClass::Leaf
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast { .. } => OpClass::Elementwise,
            Op::Reduce { .. } | Op::ArgReduce { .. } => OpClass::Reduce,
            Op::CumSum { .. } => OpClass::Scan,
            Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Broadcast { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. } => OpClass::View,
            Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::TopK { .. } => OpClass::Index,
            Op::MatMul { .. } | Op::Conv { .. } | Op::ConvTranspose { .. } => OpClass::Contract,
            Op::Pool { .. } | Op::Resize { .. } => OpClass::Window,
            Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::GroupNorm { .. }
            | Op::BatchNorm { .. }
            | Op::Gelu { .. }
            | Op::Silu
            | Op::Attention { .. }
            | Op::Rotary { .. } => OpClass::Composite,
            Op::Fused(_) => OpClass::Fused,
        }
    }

    /// Number of results.
    #[must_use]
    pub fn output_count(&self) -> usize {
        match self {
            Op::TopK { .. } => 2,
            Op::Fused(fused) => fused.body.outputs().len(),
            _ => 1,
        }
    }
}

impl Op {
    /// The op with every dim in its attributes mapped; of a fused call, those of its body ([`Graph::map_dims`]).
    #[must_use]
    pub fn map_dims(&self, map: &dyn Fn(&Dim) -> Dim) -> Op {
        let all = |dims: &[Dim]| -> Vec<Dim> { dims.iter().map(map).collect() };
        match self {
            Op::Iota { len, dtype } => Op::Iota { len: map(len), dtype: *dtype },
            Op::DimValue { dim } => Op::DimValue { dim: map(dim) },
            Op::Reshape { shape } => Op::Reshape { shape: all(shape) },
            Op::Broadcast { shape } => Op::Broadcast { shape: all(shape) },
            Op::Slice { starts, steps, sizes } => {
                Op::Slice { starts: all(starts), steps: steps.clone(), sizes: all(sizes) }
            }
            Op::Pad { mode, before, after } => Op::Pad { mode: *mode, before: all(before), after: all(after) },
            Op::TopK { axis, k, largest } => Op::TopK { axis: *axis, k: map(k), largest: *largest },
            Op::Resize { mode, coordinates, rounding, cubic_coeff, scales, sizes } => Op::Resize {
                mode: *mode,
                coordinates: *coordinates,
                rounding: *rounding,
                cubic_coeff: *cubic_coeff,
                scales: scales.clone(),
                sizes: all(sizes),
            },
            Op::Fused(fused) => {
                Op::Fused(Arc::new(Fused { body: fused.body.map_dims(map), kernel: fused.kernel.clone() }))
            }
            other => other.clone(),
        }
    }
}
