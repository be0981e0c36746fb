//! Each IR op in operators of the standard.

use forge_ir::{
    ArgOp, BinaryOp, CompareOp, DType, Dim, GeluApproximate, Op, PadMode, PoolKind, ReduceOp, ScatterReduce,
    TensorType, UnaryOp, Window,
};

use super::scope::{Scope, float, int, ints, string};
use super::{Functions, OnnxError};
use crate::frontend::onnx::proto::{AttributeProto, data_type};

/// One op being written.
struct Written<'a> {
    op: &'a Op,
    operands: Vec<&'a str>,
    types: &'a [TensorType],
    results: &'a [TensorType],
    /// Names of the results.
    names: Vec<&'a str>,
}

impl Written<'_> {
    fn unsupported<T>(&self, message: impl Into<String>) -> Result<T, OnnxError> {
        Err(OnnxError::Op { op: self.op.name(), message: message.into() })
    }

    fn shape(&self) -> &[Dim] {
        &self.types[0].shape
    }

    fn dtype(&self) -> DType {
        self.types[0].dtype
    }
}

impl Scope {
    /// Emits `op`, whose results are to have the names `results`.
    pub(super) fn operator(
        &mut self,
        op: &Op,
        operands: &[String],
        types: &[TensorType],
        result_types: &[TensorType],
        results: &[String],
        functions: &mut Functions,
    ) -> Result<(), OnnxError> {
        if let Op::Fused(fused) = op {
            return self.call(&fused.body, operands, results, functions);
        }
        let call = Written {
            op,
            operands: operands.iter().map(String::as_str).collect(),
            types,
            results: result_types,
            names: results.iter().map(String::as_str).collect(),
        };
        match op {
            Op::Softmax { axis } => self.plain(&call, "Softmax", vec![int("axis", *axis as i64)]),
            Op::LogSoftmax { axis } => self.plain(&call, "LogSoftmax", vec![int("axis", *axis as i64)]),
            Op::LayerNorm { axis, epsilon } => {
                self.plain(&call, "LayerNormalization", vec![int("axis", *axis as i64), float("epsilon", *epsilon)]);
            }
            Op::BatchNorm { epsilon } => self.plain(&call, "BatchNormalization", vec![float("epsilon", *epsilon)]),
            Op::Gelu { approximate } => {
                let name = match approximate {
                    GeluApproximate::None => "none",
                    GeluApproximate::Tanh => "tanh",
                };
                self.plain(&call, "Gelu", vec![string("approximate", name)]);
            }
            Op::RmsNorm { .. } | Op::GroupNorm { .. } | Op::Silu | Op::Attention { .. } | Op::Rotary { .. } => {
                let Some(definition) = op.decompose(types) else {
                    return call.unsupported("its operands do not fit its definition");
                };
                return self.graph(&definition, operands, Some(results), functions).map(|_| ());
            }
            _ => return self.primitive(&call),
        }
        Ok(())
    }

    /// One node on the operands as they are.
    fn plain(&mut self, call: &Written<'_>, op_type: &str, attributes: Vec<AttributeProto>) {
        self.emit(op_type, &call.operands, attributes, &call.names);
    }

    /// One node on the first operand and further inputs.
    fn with(&mut self, call: &Written<'_>, op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>) {
        let mut all = vec![call.operands[0]];
        all.extend(inputs);
        self.emit(op_type, &all, attributes, &call.names);
    }

    fn cast(&mut self, x: &str, to: DType) -> String {
        self.value("Cast", &[x], vec![int("to", i64::from(data_type::from_dtype(to)))])
    }

    fn primitive(&mut self, call: &Written<'_>) -> Result<(), OnnxError> {
        match call.op {
            Op::Iota { len, dtype } => self.iota(call, len, *dtype)?,
            Op::DimValue { dim } => {
                let dim = self.dim(dim)?;
                self.emit("Squeeze", &[&dim], Vec::new(), &call.names);
            }
            Op::Unary(op) => self.unary(call, *op),
            Op::Binary(op) => self.binary(call, *op),
            Op::Compare(op) => self.compare(call, *op),
            Op::Select => self.select(call),
            Op::Cast { to } => self.plain(call, "Cast", vec![int("to", i64::from(data_type::from_dtype(*to)))]),
            Op::Reduce { op, axes, keep_dims } => {
                let op_type = match op {
                    ReduceOp::Sum => "ReduceSum",
                    ReduceOp::Mean => "ReduceMean",
                    ReduceOp::Max => "ReduceMax",
                    ReduceOp::Min => "ReduceMin",
                    ReduceOp::Prod => "ReduceProd",
                };
                if axes.is_empty() {
                    self.plain(call, "Identity", Vec::new());
                } else {
                    let axes: Vec<i64> = axes.iter().map(|a| *a as i64).collect();
                    let axes = self.ints(&axes);
                    self.with(call, op_type, &[&axes], vec![int("keepdims", i64::from(*keep_dims))]);
                }
            }
            Op::ArgReduce { op, axis, keep_dims, select_last } => {
                let op_type = match op {
                    ArgOp::Max => "ArgMax",
                    ArgOp::Min => "ArgMin",
                };
                let attributes = vec![
                    int("axis", *axis as i64),
                    int("keepdims", i64::from(*keep_dims)),
                    int("select_last_index", i64::from(*select_last)),
                ];
                self.plain(call, op_type, attributes);
            }
            Op::CumSum { axis, exclusive, reverse } => {
                let axis = self.scalar(*axis as f64, DType::I64);
                let attributes = vec![int("exclusive", i64::from(*exclusive)), int("reverse", i64::from(*reverse))];
                self.with(call, "CumSum", &[&axis], attributes);
            }
            Op::Reshape { shape } => self.reshape(call, shape)?,
            Op::Transpose { perm } => {
                let perm: Vec<i64> = perm.iter().map(|p| *p as i64).collect();
                // A scalar's empty list would read as an absent attribute.
                let attributes = if perm.is_empty() { Vec::new() } else { vec![ints("perm", &perm)] };
                self.plain(call, "Transpose", attributes);
            }
            Op::Broadcast { shape } => {
                let shape = self.dims(shape)?;
                self.with(call, "Expand", &[&shape], Vec::new());
            }
            Op::Slice { starts, steps, sizes } => self.slice(call, starts, steps, sizes)?,
            Op::Pad { mode, before, after } => {
                let pads = self.dims(&[before.as_slice(), after].concat())?;
                let mode = match mode {
                    PadMode::Constant => "constant",
                    PadMode::Reflect => "reflect",
                    PadMode::Edge => "edge",
                };
                let mut inputs = vec![call.operands[0], &pads];
                inputs.extend(call.operands.get(1));
                self.emit("Pad", &inputs, vec![string("mode", mode)], &call.names);
            }
            Op::Concat { axis } => self.plain(call, "Concat", vec![int("axis", *axis as i64)]),
            Op::Gather { axis } => self.plain(call, "Gather", vec![int("axis", *axis as i64)]),
            Op::GatherElements { axis } => self.plain(call, "GatherElements", vec![int("axis", *axis as i64)]),
            Op::GatherNd { batch_dims } => {
                self.gather_nd(call, *batch_dims);
            }
            Op::ScatterElements { axis, reduce } => {
                let attributes = vec![int("axis", *axis as i64), string("reduction", reduction(*reduce))];
                self.plain(call, "ScatterElements", attributes);
            }
            Op::ScatterNd { reduce } => {
                let indices = self.cast_index(call.operands[1], call.types[1].dtype);
                let inputs = [call.operands[0], &indices, call.operands[2]];
                self.emit("ScatterND", &inputs, vec![string("reduction", reduction(*reduce))], &call.names);
            }
            Op::TopK { axis, k, largest } => {
                let k = self.dim(k)?;
                let attributes = vec![int("axis", *axis as i64), int("largest", i64::from(*largest)), int("sorted", 1)];
                self.with(call, "TopK", &[&k], attributes);
            }
            Op::MatMul { trans_a, trans_b } => self.matmul(call, *trans_a, *trans_b),
            Op::Conv { window, groups } => {
                let mut attributes = windowed(window);
                attributes.push(int("group", *groups));
                self.plain(call, "Conv", attributes);
            }
            Op::ConvTranspose { window, groups, output_padding } => {
                let mut attributes = windowed(window);
                attributes.extend([int("group", *groups), ints("output_padding", output_padding)]);
                self.plain(call, "ConvTranspose", attributes);
            }
            Op::Pool { kind, kernel, window, ceil_mode, count_include_pad } => {
                let mut attributes = windowed(window);
                let ceil_mode = *ceil_mode && !rounds_down(call, kernel, window);
                attributes.extend([ints("kernel_shape", kernel), int("ceil_mode", i64::from(ceil_mode))]);
                let op_type = match kind {
                    PoolKind::Max => "MaxPool",
                    PoolKind::Average => {
                        attributes.push(int("count_include_pad", i64::from(*count_include_pad)));
                        "AveragePool"
                    }
                };
                self.plain(call, op_type, attributes);
            }
            Op::Resize { .. } => self.resize(call)?,
            other => return call.unsupported(format!("'{}' is no operation", other.name())),
        }
        Ok(())
    }

    fn iota(&mut self, call: &Written<'_>, len: &Dim, dtype: DType) -> Result<(), OnnxError> {
        let len = self.dim(len)?;
        let len = self.value("Squeeze", &[&len], Vec::new());
        let (zero, one) = (self.scalar(0.0, DType::I64), self.scalar(1.0, DType::I64));
        if dtype == DType::I64 {
            self.emit("Range", &[&zero, &len, &one], Vec::new(), &call.names);
        } else {
            let range = self.value("Range", &[&zero, &len, &one], Vec::new());
            let to = int("to", i64::from(data_type::from_dtype(dtype)));
            self.emit("Cast", &[&range], vec![to], &call.names);
        }
        Ok(())
    }

    /// `Where`; for bools, which runtimes leave out of it, `(c and a) or (not c and b)`.
    fn select(&mut self, call: &Written<'_>) {
        if call.results[0].dtype != DType::Bool {
            return self.plain(call, "Where", Vec::new());
        }
        let (condition, then, otherwise) = (call.operands[0], call.operands[1], call.operands[2]);
        let taken = self.value("And", &[condition, then], Vec::new());
        let opposite = self.value("Not", &[condition], Vec::new());
        let left = self.value("And", &[&opposite, otherwise], Vec::new());
        self.emit("Or", &[&taken, &left], Vec::new(), &call.names);
    }

    fn unary(&mut self, call: &Written<'_>, op: UnaryOp) {
        let op_type = match op {
            UnaryOp::Neg => "Neg",
            UnaryOp::Abs => "Abs",
            UnaryOp::Sign => "Sign",
            UnaryOp::Floor => "Floor",
            UnaryOp::Ceil => "Ceil",
            UnaryOp::Round => "Round",
            UnaryOp::Sqrt => "Sqrt",
            UnaryOp::Rsqrt => {
                let root = self.value("Sqrt", &call.operands, Vec::new());
                return self.emit("Reciprocal", &[&root], Vec::new(), &call.names);
            }
            UnaryOp::Reciprocal => "Reciprocal",
            UnaryOp::Exp => "Exp",
            UnaryOp::Log => "Log",
            UnaryOp::Sin => "Sin",
            UnaryOp::Cos => "Cos",
            UnaryOp::Tan => "Tan",
            UnaryOp::Asin => "Asin",
            UnaryOp::Acos => "Acos",
            UnaryOp::Atan => "Atan",
            UnaryOp::Sinh => "Sinh",
            UnaryOp::Cosh => "Cosh",
            UnaryOp::Tanh => "Tanh",
            UnaryOp::Asinh => "Asinh",
            UnaryOp::Acosh => "Acosh",
            UnaryOp::Atanh => "Atanh",
            UnaryOp::Erf => "Erf",
            UnaryOp::Sigmoid => "Sigmoid",
            UnaryOp::Relu => "Relu",
            UnaryOp::Softplus => "Softplus",
            UnaryOp::Not if call.dtype() == DType::Bool => "Not",
            UnaryOp::Not => "BitwiseNot",
            UnaryOp::IsNan => "IsNaN",
            UnaryOp::IsInf => "IsInf",
        };
        self.plain(call, op_type, Vec::new());
    }

    fn binary(&mut self, call: &Written<'_>, op: BinaryOp) {
        let (a, b) = (call.operands[0], call.operands[1]);
        let is_bool = call.dtype() == DType::Bool;
        let op_type = match op {
            BinaryOp::Add => "Add",
            BinaryOp::Sub => "Sub",
            BinaryOp::Mul => "Mul",
            BinaryOp::Div => "Div",
            BinaryOp::Pow => "Pow",
            BinaryOp::Min => "Min",
            BinaryOp::Max => "Max",
            BinaryOp::And if is_bool => "And",
            BinaryOp::Or if is_bool => "Or",
            BinaryOp::Xor if is_bool => "Xor",
            BinaryOp::And => "BitwiseAnd",
            BinaryOp::Or => "BitwiseOr",
            BinaryOp::Xor => "BitwiseXor",
            BinaryOp::Rem => return self.plain(call, "Mod", vec![int("fmod", 1)]),
            BinaryOp::Mod if !call.dtype().is_float() => "Mod",
            BinaryOp::Mod => {
                // Python's modulus of floats: the remainder, moved by the divisor where their signs differ.
                let rest = self.value("Mod", &[a, b], vec![int("fmod", 1)]);
                let zero = self.scalar(0.0, call.dtype());
                let (rest_below, divisor_below) =
                    (self.value("Less", &[&rest, &zero], Vec::new()), self.value("Less", &[b, &zero], Vec::new()));
                let differ = self.value("Xor", &[&rest_below, &divisor_below], Vec::new());
                let none = self.value("Equal", &[&rest, &zero], Vec::new());
                let some = self.value("Not", &[&none], Vec::new());
                let moves = self.value("And", &[&differ, &some], Vec::new());
                let moved = self.value("Add", &[&rest, b], Vec::new());
                return self.emit("Where", &[&moves, &moved, &rest], Vec::new(), &call.names);
            }
            BinaryOp::Shl | BinaryOp::Shr => return self.shift(call, op),
        };
        self.plain(call, op_type, Vec::new());
    }

    /// BitShift takes unsigned integers only. A signed left shift is one of the same bits; a signed right shift is a
    /// floor division by a power of two.
    fn shift(&mut self, call: &Written<'_>, op: BinaryOp) {
        let direction = string("direction", if op == BinaryOp::Shl { "LEFT" } else { "RIGHT" });
        let unsigned = match call.dtype() {
            DType::I8 => DType::U8,
            DType::I16 => DType::U16,
            DType::I32 => DType::U32,
            DType::I64 => DType::U64,
            _ => return self.plain(call, "BitShift", vec![direction]),
        };
        let (a, b) = (call.operands[0], call.operands[1]);
        let amount = self.cast(b, unsigned);
        if op == BinaryOp::Shl {
            let bits = self.cast(a, unsigned);
            let shifted = self.value("BitShift", &[&bits, &amount], vec![direction]);
            let to = int("to", i64::from(data_type::from_dtype(call.dtype())));
            return self.emit("Cast", &[&shifted], vec![to], &call.names);
        }
        let one = self.scalar(1.0, unsigned);
        let power = self.value("BitShift", &[&one, &amount], vec![string("direction", "LEFT")]);
        let power = self.cast(&power, call.dtype());
        let rest = self.value("Mod", &[a, &power], Vec::new());
        let whole = self.value("Sub", &[a, &rest], Vec::new());
        self.emit("Div", &[&whole, &power], Vec::new(), &call.names);
    }

    fn compare(&mut self, call: &Written<'_>, op: CompareOp) {
        let op_type = match op {
            CompareOp::Eq => "Equal",
            CompareOp::Ne => {
                let equal = self.value("Equal", &call.operands, Vec::new());
                return self.emit("Not", &[&equal], Vec::new(), &call.names);
            }
            CompareOp::Lt => "Less",
            CompareOp::Le => "LessOrEqual",
            CompareOp::Gt => "Greater",
            CompareOp::Ge => "GreaterOrEqual",
        };
        self.plain(call, op_type, Vec::new());
    }

    fn reshape(&mut self, call: &Written<'_>, shape: &[Dim]) -> Result<(), OnnxError> {
        let symbolic = shape.iter().filter(|d| d.as_const().is_none()).count();
        let has_zero = shape.iter().any(|d| d.as_const() == Some(0));
        let target = if symbolic == 1 && !has_zero {
            // The one symbolic dim is what is left.
            let values: Vec<i64> = shape.iter().map(|d| d.as_const().unwrap_or(-1)).collect();
            self.ints(&values)
        } else {
            self.dims(shape)?
        };
        let attributes = if has_zero { vec![int("allowzero", 1)] } else { Vec::new() };
        self.with(call, "Reshape", &[&target], attributes);
        Ok(())
    }

    fn slice(&mut self, call: &Written<'_>, starts: &[Dim], steps: &[i64], sizes: &[Dim]) -> Result<(), OnnxError> {
        let axes: Vec<usize> = (0..starts.len())
            .filter(|a| starts[*a].as_const() != Some(0) || steps[*a] != 1 || sizes[*a] != call.shape()[*a])
            .collect();
        if axes.is_empty() {
            self.plain(call, "Identity", Vec::new());
            return Ok(());
        }
        let mut ends = Vec::new();
        for axis in &axes {
            let end = starts[*axis].clone() + sizes[*axis].clone() * Dim::from(steps[*axis]);
            // Walking backwards past the first element ends before it, at what would read as an index from the end.
            let reaches_front = steps[*axis] < 0 && end.lower_bound().is_none_or(|low| low < 0);
            ends.push(match end.as_const() {
                Some(_) if reaches_front => self.ints(&[i64::MIN + 1]),
                Some(end) => self.ints(&[end]),
                None if reaches_front => {
                    let end = self.dim(&end)?;
                    let (zero, front) = (self.ints(&[0]), self.ints(&[i64::MIN + 1]));
                    let past = self.value("Less", &[&end, &zero], Vec::new());
                    self.value("Where", &[&past, &front, &end], Vec::new())
                }
                None => self.dim(&end)?,
            });
        }
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        let ends = match ends.as_slice() {
            [one] => (*one).to_owned(),
            _ => self.value("Concat", &ends, vec![int("axis", 0)]),
        };
        let chosen: Vec<Dim> = axes.iter().map(|a| starts[*a].clone()).collect();
        let starts = self.dims(&chosen)?;
        let steps: Vec<i64> = axes.iter().map(|a| steps[*a]).collect();
        let steps = self.ints(&steps);
        let axes: Vec<i64> = axes.iter().map(|a| *a as i64).collect();
        let axes = self.ints(&axes);
        self.with(call, "Slice", &[&starts, &ends, &axes, &steps], Vec::new());
        Ok(())
    }

    /// GatherND and ScatterND take i64 indices only.
    fn cast_index(&mut self, indices: &str, dtype: DType) -> String {
        if dtype == DType::I64 { indices.to_owned() } else { self.cast(indices, DType::I64) }
    }

    fn gather_nd(&mut self, call: &Written<'_>, batch_dims: usize) {
        let indices = self.cast_index(call.operands[1], call.types[1].dtype);
        self.with(call, "GatherND", &[&indices], vec![int("batch_dims", batch_dims as i64)]);
    }

    /// MatMul does not transpose; Gemm does, for float matrices.
    fn matmul(&mut self, call: &Written<'_>, trans_a: bool, trans_b: bool) {
        let matrices = call.types.iter().all(|ty| ty.rank() == 2) && call.dtype().is_float();
        if matrices && (trans_a || trans_b) {
            let attributes = vec![int("transA", i64::from(trans_a)), int("transB", i64::from(trans_b))];
            return self.plain(call, "Gemm", attributes);
        }
        let mut operands: Vec<String> = Vec::new();
        for (index, transposed) in [trans_a, trans_b].into_iter().enumerate() {
            let rank = call.types[index].rank();
            operands.push(if transposed {
                let mut perm: Vec<i64> = (0..rank as i64).collect();
                perm.swap(rank - 2, rank - 1);
                self.value("Transpose", &[call.operands[index]], vec![ints("perm", &perm)])
            } else {
                call.operands[index].to_owned()
            });
        }
        self.emit("MatMul", &[&operands[0], &operands[1]], Vec::new(), &call.names);
    }

    fn resize(&mut self, call: &Written<'_>) -> Result<(), OnnxError> {
        let Op::Resize { mode, coordinates, rounding, cubic_coeff, scales, sizes } = call.op else {
            return call.unsupported("is no resize");
        };
        let attributes = vec![
            string("mode", mode.name()),
            string("coordinate_transformation_mode", coordinates.name()),
            string("nearest_mode", rounding.name()),
            float("cubic_coeff_a", *cubic_coeff),
        ];
        // Readers compute the one of (scales, sizes) that is not given; it must come out as ours, whether they
        // multiply in f32 or in f64.
        let axes = || call.shape().iter().zip(sizes).zip(scales);
        let by_scales = axes().all(|((dim, size), scale)| match (dim.as_const(), size.as_const()) {
            (Some(dim), Some(size)) => {
                let narrow = (dim as f32 * *scale as f32).floor() as i64;
                let wide = (dim as f64 * f64::from(*scale as f32)).floor() as i64;
                narrow == size && wide == size && f64::from(*scale as f32) == *scale
            }
            (None, None) => f64::from(*scale as f32) == *scale,
            _ => false,
        });
        let by_sizes = axes().all(|((dim, size), scale)| {
            let ratio = match (dim.as_const(), size.as_const()) {
                (Some(dim), Some(size)) => Some(size as f64 / dim as f64),
                _ => size.div_exact(dim).and_then(|r| r.as_const()).map(|r| r as f64),
            };
            ratio.is_some_and(|ratio| (ratio - scale).abs() <= 1e-6 * scale)
        });
        if by_scales {
            let values: Vec<f32> = scales.iter().map(|s| *s as f32).collect();
            let scales = self.constant(&forge_ir::Tensor::from_slice(&[values.len()], &values));
            self.emit("Resize", &[call.operands[0], "", &scales], attributes, &call.names);
        } else if by_sizes {
            let sizes = self.dims(sizes)?;
            self.emit("Resize", &[call.operands[0], "", "", &sizes], attributes, &call.names);
        } else {
            return call.unsupported(format!("sizes of {} do not follow from scales {scales:?}", call.results[0]));
        }
        Ok(())
    }
}

/// Whether every axis has as many windows as without `ceil_mode`. Before opset 22 shape inference did not drop a last
/// window that lies in padding, so it must not be asked to count it.
fn rounds_down(call: &Written<'_>, kernel: &[i64], window: &Window) -> bool {
    let spatial = |ty: &TensorType| -> Option<Vec<i64>> { ty.shape.get(2..)?.iter().map(Dim::as_const).collect() };
    let (Some(sizes), Some(counts)) = (spatial(&call.types[0]), spatial(&call.results[0])) else { return false };
    (0..kernel.len()).all(|axis| {
        let reach = window.dilations[axis] * (kernel[axis] - 1) + 1;
        let free = sizes[axis] + window.pads_begin[axis] + window.pads_end[axis] - reach;
        counts[axis] == free.div_euclid(window.strides[axis]) + 1
    })
}

fn reduction(reduce: ScatterReduce) -> &'static str {
    match reduce {
        ScatterReduce::None => "none",
        ScatterReduce::Add => "add",
        ScatterReduce::Mul => "mul",
        ScatterReduce::Max => "max",
        ScatterReduce::Min => "min",
    }
}

fn windowed(window: &Window) -> Vec<AttributeProto> {
    vec![
        ints("strides", &window.strides),
        ints("dilations", &window.dilations),
        ints("pads", &[window.pads_begin.as_slice(), &window.pads_end].concat()),
    ]
}
