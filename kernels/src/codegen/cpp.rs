//! C++ spelling: types, literals, dims, the kernel frame.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use forge_ir::{DType, Dim};

/// The type as stored in a buffer.
#[must_use]
pub fn storage_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "uint8_t",
        DType::U16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::F16 => "forge::half",
        DType::BF16 => "forge::bfloat16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// The type in which a value is held in registers.
#[must_use]
pub fn register_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::F16 | DType::BF16 => "float",
        other => storage_type(other),
    }
}

/// A floating literal of register type for `dtype`, exact.
#[must_use]
pub fn float_literal(dtype: DType, value: f64) -> String {
    let suffix = if dtype == DType::F64 { "" } else { "f" };
    if value.is_nan() {
        return format!("std::numeric_limits<{}>::quiet_NaN()", register_type(dtype));
    }
    if value.is_infinite() {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("({sign}std::numeric_limits<{}>::infinity())", register_type(dtype));
    }
    let text = if dtype == DType::F64 { format!("{value:?}") } else { format!("{:?}", value as f32) };
    if value.is_sign_negative() { format!("({text}{suffix})") } else { format!("{text}{suffix}") }
}

/// An integer literal of register type for `dtype`.
#[must_use]
pub fn int_literal(dtype: DType, value: i64) -> String {
    match dtype {
        DType::Bool => if value != 0 { "true" } else { "false" }.to_owned(),
        _ if value == i64::MIN => "INT64_MIN".to_owned(),
        DType::I64 => format!("INT64_C({value})"),
        DType::U64 => format!("UINT64_C({})", value as u64),
        _ if value < 0 => format!("({}({value}))", storage_type(dtype)),
        _ => format!("{}({value})", storage_type(dtype)),
    }
}

/// A dim as an int64 expression; symbols are locals `s_NAME`.
#[must_use]
pub fn dim(dim: &Dim) -> String {
    match dim.as_const() {
        Some(c) => format!("{c}"),
        None => format!("({})", dim.render(&symbol)),
    }
}

/// The local variable that holds a symbol.
#[must_use]
pub fn symbol(name: &str) -> String {
    format!("s_{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"))
}

/// The symbols that a kernel takes as `sizes`, in order.
#[must_use]
pub fn symbols_of<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Vec<String> {
    let mut symbols = BTreeSet::new();
    for dim in dims {
        dim.symbols(&mut symbols);
    }
    symbols.into_iter().collect()
}

/// A buffer parameter of a kernel.
pub struct Parameter {
    pub name: String,
    pub dtype: DType,
    pub write: bool,
}

/// Wraps a body into an `extern "C"` kernel of the runtime's signature. The body sees the parameters by name (typed, restrict),
/// symbols, `begin`, `end` and `scratch`.
#[must_use]
pub fn kernel(comment: &str, name: &str, parameters: &[Parameter], symbols: &[String], body: &str) -> String {
    let mut out = String::new();
    for line in comment.lines() {
        let _ = writeln!(out, "// {line}");
    }
    let _ = writeln!(
        out,
        "extern \"C\" void {name}(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void* scratch) {{"
    );
    for (i, parameter) in parameters.iter().enumerate() {
        let constness = if parameter.write { "" } else { "const " };
        let ty = storage_type(parameter.dtype);
        let _ = writeln!(
            out,
            "  {constness}{ty}* __restrict {} = static_cast<{constness}{ty}*>(buffers[{i}]);",
            parameter.name
        );
    }
    for (i, name) in symbols.iter().enumerate() {
        let _ = writeln!(out, "  const int64_t {} = sizes[{i}];", symbol(name));
    }
    out.push_str("  (void)buffers; (void)sizes; (void)begin; (void)end; (void)scratch;\n");
    out.push_str(body);
    out.push_str("}\n");
    out
}

/// What every generated file starts with.
pub const PRELUDE: &str = "#include \"forge_cpu.hpp\"\n\n";
