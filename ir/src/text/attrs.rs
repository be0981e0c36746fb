//! The attributes of every op, in both directions, from one table.
//!
//! Ops whose payload is not attributes (input, weight, constant, a fused body) have syntax of their own in
//! `print.rs` and `parse.rs`.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{
    ArgOp, Attr, BinaryOp, CompareOp, GeluApproximate, Op, PadMode, PoolKind, ReduceOp, ResizeCoordinates, ResizeMode,
    ResizeRounding, ScatterReduce, UnaryOp, Window,
};

use super::error::nearest;

/// Why a name and attributes are not an op.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttrError {
    #[error("unknown op '{name}'")]
    UnknownOp { name: String, suggestion: Option<&'static str> },
    #[error("'{op}' needs attribute '{attr}'")]
    Missing { op: String, attr: &'static str, expected: &'static str },
    #[error("'{op}' has no attribute '{attr}'")]
    Unknown { op: String, attr: String, suggestion: Option<&'static str> },
    #[error("attribute '{attr}' of '{op}' takes {expected}")]
    Kind { op: String, attr: &'static str, expected: String },
}

impl AttrError {
    /// The attribute that is at fault, if one that was written is.
    pub(super) fn attr(&self) -> Option<&str> {
        match self {
            AttrError::UnknownOp { .. } | AttrError::Missing { .. } => None,
            AttrError::Unknown { attr, .. } => Some(attr),
            AttrError::Kind { attr, .. } => Some(attr),
        }
    }

    pub(super) fn help(&self) -> Option<String> {
        match self {
            AttrError::UnknownOp { suggestion: Some(name), .. } | AttrError::Unknown { suggestion: Some(name), .. } => {
                Some(format!("did you mean '{name}'?"))
            }
            AttrError::Missing { attr, expected, .. } => Some(format!("write {{{attr} = ..}} with {expected}")),
            _ => None,
        }
    }
}

type Attributes = Vec<(&'static str, Attr)>;

/// A Rust type that stores one attribute (or, for [`Window`], several).
trait Field: Sized {
    fn write(&self, name: &'static str, out: &mut Attributes);
    fn read(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, AttrError>;
}

struct Reader<'a> {
    op: &'a str,
    attrs: Vec<&'a (String, Attr)>,
    known: Vec<&'static str>,
}

impl Reader<'_> {
    fn optional<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        convert: impl Fn(&Attr) -> Option<T>,
    ) -> Result<Option<T>, AttrError> {
        self.known.push(name);
        let Some(at) = self.attrs.iter().position(|(n, _)| n == name) else {
            return Ok(None);
        };
        let attr = self.attrs.remove(at);
        match convert(&attr.1) {
            Some(value) => Ok(Some(value)),
            None => Err(AttrError::Kind { op: self.op.to_owned(), attr: name, expected: expected.to_owned() }),
        }
    }

    fn required<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        convert: impl Fn(&Attr) -> Option<T>,
    ) -> Result<T, AttrError> {
        if let Some(value) = self.optional(name, expected, convert)? {
            return Ok(value);
        }
        let op = self.op.to_owned();
        // A misspelt name is both missing and unknown; the spelling is what to say.
        match nearest(name, self.attrs.iter().map(|(n, _)| n.as_str())) {
            Some(attr) => Err(AttrError::Unknown { op, attr: attr.to_owned(), suggestion: Some(name) }),
            None => Err(AttrError::Missing { op, attr: name, expected }),
        }
    }

    fn finish(self) -> Result<(), AttrError> {
        match self.attrs.first() {
            None => Ok(()),
            Some((attr, _)) => Err(AttrError::Unknown {
                op: self.op.to_owned(),
                attr: attr.clone(),
                suggestion: nearest(attr, self.known),
            }),
        }
    }
}

impl Field for bool {
    fn write(&self, name: &'static str, out: &mut Attributes) {
        out.push((name, Attr::Bool(*self)));
    }
    /// Absent means false: a set flag is printed as its bare name, an unset one not at all.
    fn read(name: &'static str, reader: &mut Reader<'_>) -> Result<bool, AttrError> {
        let flag = reader.optional(name, "true or false", |a| match a {
            Attr::Bool(flag) => Some(*flag),
            _ => None,
        })?;
        Ok(flag.unwrap_or(false))
    }
}

/// A field that is one required attribute: how it is written, how it is read.
macro_rules! field {
    ($type:ty, $expected:literal, $write:expr, $read:expr) => {
        impl Field for $type {
            fn write(&self, name: &'static str, out: &mut Attributes) {
                let write: fn(&$type) -> Attr = $write;
                out.push((name, write(self)));
            }
            fn read(name: &'static str, reader: &mut Reader<'_>) -> Result<$type, AttrError> {
                let read: fn(&Attr) -> Option<$type> = $read;
                reader.required(name, $expected, read)
            }
        }
    };
}

// An attribute is read by what the op wants: the text `[1, 2]` is integers, floats or dims, and a dim symbol may be
// called `f32`.
fn as_dim(attr: &Attr) -> Option<Dim> {
    match attr {
        Attr::Int(value) => Some(Dim::from(*value)),
        Attr::Dim(dim) => Some(dim.clone()),
        Attr::DType(dtype) => Some(Dim::symbol(dtype.name())),
        Attr::Str(name) => Some(Dim::symbol(name)),
        _ => None,
    }
}

fn to_index(value: i64) -> Option<usize> {
    usize::try_from(value).ok()
}

field!(i64, "an integer", |v| Attr::Int(*v), |a| match a {
    Attr::Int(value) => Some(*value),
    _ => None,
});
field!(usize, "a non-negative integer", |v| Attr::Int(*v as i64), |a| match a {
    Attr::Int(value) => to_index(*value),
    _ => None,
});
field!(f64, "a number", |v| Attr::Float(*v), |a| match a {
    Attr::Float(value) => Some(*value),
    Attr::Int(value) => Some(*value as f64),
    _ => None,
});
field!(Dim, "a dimension", |v| Attr::Dim(v.clone()), as_dim);
field!(DType, "a dtype, such as f32", |v| Attr::DType(*v), |a| match a {
    Attr::DType(dtype) => Some(*dtype),
    _ => None,
});
field!(Vec<i64>, "a list of integers", |v| Attr::Ints(v.clone()), |a| match a {
    Attr::Ints(values) => Some(values.clone()),
    _ => None,
});
field!(
    Vec<usize>,
    "a list of non-negative integers",
    |v| Attr::Ints(v.iter().map(|x| *x as i64).collect()),
    |a| match a {
        Attr::Ints(values) => values.iter().map(|v| to_index(*v)).collect(),
        _ => None,
    }
);
field!(Vec<f64>, "a list of numbers", |v| Attr::Floats(v.clone()), |a| match a {
    Attr::Floats(values) => Some(values.clone()),
    Attr::Ints(values) => Some(values.iter().map(|v| *v as f64).collect()),
    _ => None,
});
field!(Vec<Dim>, "a list of dimensions", |v| Attr::Dims(v.clone()), |a| match a {
    Attr::Dims(dims) => Some(dims.clone()),
    Attr::Ints(values) => Some(values.iter().map(|v| Dim::from(*v)).collect()),
    _ => None,
});

macro_rules! named_field {
    ($($type:ty),* $(,)?) => {$(
        impl Field for $type {
            fn write(&self, name: &'static str, out: &mut Attributes) {
                out.push((name, Attr::Str(self.name().to_owned())));
            }
            fn read(name: &'static str, reader: &mut Reader<'_>) -> Result<$type, AttrError> {
                let op = reader.op.to_owned();
                let text = reader.required(name, "a quoted name", |a| match a {
                    Attr::Str(text) => Some(text.clone()),
                    _ => None,
                })?;
                <$type>::from_name(&text).ok_or_else(|| {
                    let names: Vec<String> = <$type>::ALL.iter().map(|v| format!("\"{}\"", v.name())).collect();
                    AttrError::Kind { op, attr: name, expected: names.join(", ") }
                })
            }
        }
    )*};
}
named_field!(PadMode, PoolKind, ScatterReduce, GeluApproximate, ResizeMode, ResizeCoordinates, ResizeRounding);

impl Field for Window {
    fn write(&self, _: &'static str, out: &mut Attributes) {
        self.strides.write("strides", out);
        self.pads_begin.write("pads_begin", out);
        self.pads_end.write("pads_end", out);
        self.dilations.write("dilations", out);
    }
    fn read(_: &'static str, reader: &mut Reader<'_>) -> Result<Window, AttrError> {
        Ok(Window {
            strides: Field::read("strides", reader)?,
            pads_begin: Field::read("pads_begin", reader)?,
            pads_end: Field::read("pads_end", reader)?,
            dilations: Field::read("dilations", reader)?,
        })
    }
}

/// Makes both directions from one list of variants and their fields; ops that a table of fields can't say stay as arms.
macro_rules! attribute_table {
    ($($text:literal = $variant:ident { $($field:ident),* },)*) => {
        const TABLE_NAMES: &[&str] = &[$($text),*];

        impl Op {
            /// Name and value of every attribute, in the order in which they are printed.
            ///
            /// The payload of a weight (name, data), a constant and a fused body are not attributes.
            #[must_use]
            pub fn attributes(&self) -> Vec<(&'static str, Attr)> {
                #[allow(unused_mut, reason = "variants without fields")]
                match self {
                    $(Op::$variant { $($field),* } => {
                        let mut out = Attributes::new();
                        $($field.write(stringify!($field), &mut out);)*
                        out
                    })*
                    Op::Reduce { op: _, axes, keep_dims } => {
                        let mut out = Attributes::new();
                        axes.write("axes", &mut out);
                        keep_dims.write("keep_dims", &mut out);
                        out
                    }
                    Op::ArgReduce { op: _, axis, keep_dims, select_last } => {
                        let mut out = Attributes::new();
                        axis.write("axis", &mut out);
                        keep_dims.write("keep_dims", &mut out);
                        select_last.write("select_last", &mut out);
                        out
                    }
                    Op::Fused(fused) => vec![("kernel", Attr::Str(fused.kernel.clone()))],
                    Op::Input { .. } | Op::Weight { .. } | Op::Constant { .. } => Attributes::new(),
                    Op::Unary(_) | Op::Binary(_) | Op::Compare(_) => Attributes::new(),
                }
            }

            /// The op of this name with these attributes: the inverse of [`Op::name`] and [`Op::attributes`] for every
            /// op that is made of them alone (all but input, weight, constant and fused).
            ///
            /// # Errors
            /// If the name is of no such op, or attributes are missing, unknown or of the wrong kind.
            pub fn from_parts(name: &str, attrs: &[(String, Attr)]) -> Result<Op, AttrError> {
                let mut reader = Reader { op: name, attrs: attrs.iter().collect(), known: Vec::new() };
                let op = match name {
                    $($text => Op::$variant { $($field: Field::read(stringify!($field), &mut reader)?),* },)*
                    _ => named_op(name, &mut reader)?,
                };
                reader.finish()?;
                Ok(op)
            }
        }
    };
}

attribute_table! {
    "iota" = Iota { len, dtype },
    "dim_value" = DimValue { dim },
    "select" = Select {},
    "cast" = Cast { to },
    "cumsum" = CumSum { axis, exclusive, reverse },
    "reshape" = Reshape { shape },
    "transpose" = Transpose { perm },
    "broadcast" = Broadcast { shape },
    "slice" = Slice { starts, steps, sizes },
    "pad" = Pad { mode, before, after },
    "concat" = Concat { axis },
    "gather" = Gather { axis },
    "gather_elements" = GatherElements { axis },
    "gather_nd" = GatherNd { batch_dims },
    "scatter_elements" = ScatterElements { axis, reduce },
    "scatter_nd" = ScatterNd { reduce },
    "top_k" = TopK { axis, k, largest },
    "matmul" = MatMul { trans_a, trans_b },
    "conv" = Conv { window, groups },
    "conv_transpose" = ConvTranspose { window, groups, output_padding },
    "pool" = Pool { kind, kernel, window, ceil_mode, count_include_pad },
    "resize" = Resize { mode, coordinates, rounding, cubic_coeff, scales, sizes },
    "softmax" = Softmax { axis },
    "log_softmax" = LogSoftmax { axis },
    "layer_norm" = LayerNorm { axis, epsilon },
    "rms_norm" = RmsNorm { axis, epsilon },
    "group_norm" = GroupNorm { groups, epsilon },
    "batch_norm" = BatchNorm { epsilon },
    "gelu" = Gelu { approximate },
    "silu" = Silu {},
    "attention" = Attention { scale, causal, causal_offset, masked_rows_zero },
    "rotary" = Rotary { interleaved },
}

/// Ops whose name says more than the variant.
fn named_op(name: &str, reader: &mut Reader<'_>) -> Result<Op, AttrError> {
    if let Some(op) = UnaryOp::from_name(name) {
        return Ok(Op::Unary(op));
    }
    if let Some(op) = BinaryOp::from_name(name) {
        return Ok(Op::Binary(op));
    }
    if let Some(op) = CompareOp::from_name(name) {
        return Ok(Op::Compare(op));
    }
    if let Some(op) = ArgOp::from_name(name) {
        return Ok(Op::ArgReduce {
            op,
            axis: Field::read("axis", reader)?,
            keep_dims: Field::read("keep_dims", reader)?,
            select_last: Field::read("select_last", reader)?,
        });
    }
    if let Some(op) = name.strip_prefix("reduce_").and_then(ReduceOp::from_name) {
        return Ok(Op::Reduce { op, axes: Field::read("axes", reader)?, keep_dims: Field::read("keep_dims", reader)? });
    }
    Err(AttrError::UnknownOp { name: name.to_owned(), suggestion: nearest(name, op_names()) })
}

/// Every op name that can be written, for listings and suggestions.
pub fn op_names() -> Vec<&'static str> {
    let mut names = vec!["weight", "constant", "fused"];
    names.extend(TABLE_NAMES);
    names.extend(UnaryOp::ALL.iter().map(|op| op.name()));
    names.extend(BinaryOp::ALL.iter().map(|op| op.name()));
    names.extend(CompareOp::ALL.iter().map(|op| op.name()));
    names.extend(ArgOp::ALL.iter().map(|op| op.name()));
    names.extend(ReduceOp::ALL.iter().map(|op| Op::Reduce { op: *op, axes: Vec::new(), keep_dims: false }.name()));
    names
}
