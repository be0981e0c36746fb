//! Values as C++ expressions: the generic lowering of every op that is a function from an index to a value.
//!
//! [`Emitter::value`] writes the statements that compute one element of a value at an index and returns the expression that holds
//! it. Statements go to the outermost scope in which their index is known, so what does not depend on the inner loop is computed
//! outside it.

use std::collections::HashMap;
use std::fmt::Write as _;

use forge_ir::{CompareOp, DType, Dim, Graph, Op, OpClass, Tensor, UnaryOp, Value};

use super::Unsupported;
use super::cpp;

/// One index expression and the innermost scope whose variables it uses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Index {
    pub text: String,
    pub depth: usize,
}

impl Index {
    #[must_use]
    pub fn zero() -> Index {
        Index { text: "0".into(), depth: 0 }
    }

    #[must_use]
    pub fn new(text: impl Into<String>, depth: usize) -> Index {
        Index { text: text.into(), depth }
    }

    fn is_zero(&self) -> bool {
        self.text == "0"
    }

    /// `self * extent + other`, simplified for the common constants.
    fn times_plus(&self, extent: &Dim, other: &Index) -> Index {
        let depth = self.depth.max(other.depth);
        let scaled = match extent.as_const() {
            Some(1) => self.text.clone(),
            _ if self.is_zero() => "0".into(),
            _ => format!("{} * {}", self.text, cpp::dim(extent)),
        };
        match (scaled.as_str(), other.text.as_str()) {
            (_, "0") => Index { text: scaled, depth },
            ("0", _) => Index { text: other.text.clone(), depth },
            _ => Index { text: format!("({scaled} + {})", other.text), depth },
        }
    }
}

struct Scope {
    lines: Vec<String>,
    cache: HashMap<(Value, Vec<Index>), String>,
}

/// Where a value comes from when the emitter reaches it.
#[derive(Clone)]
pub enum Binding {
    /// A kernel parameter, indexed by the value's own shape, row-major.
    Buffer(String),
    /// An expression valid in scope `depth`, only at this index.
    Register { text: String, depth: usize, index: Vec<Index> },
}

/// Emits the values of one region.
pub struct Emitter<'a> {
    graph: &'a Graph,
    bindings: HashMap<Value, Binding>,
    scopes: Vec<Scope>,
    counter: usize,
}

impl<'a> Emitter<'a> {
    #[must_use]
    pub fn new(graph: &'a Graph) -> Emitter<'a> {
        let mut emitter = Emitter { graph, bindings: HashMap::new(), scopes: Vec::new(), counter: 0 };
        emitter.push_scope();
        emitter
    }

    pub fn bind(&mut self, value: Value, binding: Binding) {
        self.bindings.insert(value, binding);
    }

    pub fn unbind(&mut self, value: Value) {
        self.bindings.remove(&value);
    }

    pub fn push_scope(&mut self) {
        self.scopes.push(Scope { lines: Vec::new(), cache: HashMap::new() });
    }

    /// Leaves the innermost scope and returns its statements.
    pub fn pop_scope(&mut self) -> Vec<String> {
        self.scopes.pop().map(|s| s.lines).unwrap_or_default()
    }

    #[must_use]
    pub fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    /// Adds a raw statement to the scope at `depth`.
    pub fn line(&mut self, depth: usize, text: impl Into<String>) {
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.lines.push(text.into());
        }
    }

    #[must_use]
    pub fn fresh(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}{}", self.counter)
    }

    fn shape(&self, value: Value) -> &'a [Dim] {
        &self.graph.ty(value).shape
    }

    fn dtype(&self, value: Value) -> DType {
        self.graph.ty(value).dtype
    }

    /// The element of `value` at `index` (one per axis), as an expression of its register type.
    ///
    /// # Errors
    /// If an op on the way is not a function from index to value, or a register-bound value is needed elsewhere than where it
    /// was computed.
    pub fn value(&mut self, value: Value, index: &[Index]) -> Result<String, Unsupported> {
        let index: Vec<Index> = self
            .shape(value)
            .iter()
            .zip(index)
            .map(|(dim, ix)| if dim.is_one() { Index::zero() } else { ix.clone() })
            .collect();
        if let Some(binding) = self.bindings.get(&value).cloned() {
            match binding {
                Binding::Buffer(name) => return Ok(self.load(value, &name, &index)),
                Binding::Register { text, index: at, .. } => {
                    return if at == index {
                        Ok(text)
                    } else {
                        Err(Unsupported::new(format!(
                            "a staged {} is needed at another index than its own",
                            self.graph.op(value.node).name()
                        )))
                    };
                }
            }
        }
        let depth = self.depth_of(value, &index);
        let key = (value, index.clone());
        // A cached expression is visible from its own scope inwards; nested conditionals see the outer ones.
        for scope in self.scopes.iter().take(depth + 1) {
            if let Some(text) = scope.cache.get(&key) {
                return Ok(text.clone());
            }
        }
        let text = self.compute(value, &index)?;
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.cache.insert(key, text.clone());
        }
        Ok(text)
    }

    /// The scope in which `value` at `index` is computed: the innermost variable it uses, or a register it reads.
    fn depth_of(&self, value: Value, index: &[Index]) -> usize {
        let mut depth = index.iter().map(|ix| ix.depth).max().unwrap_or(0);
        let mut stack = vec![value];
        let mut seen = std::collections::HashSet::new();
        while let Some(v) = stack.pop() {
            if !seen.insert(v.node) {
                continue;
            }
            if let Some(binding) = self.bindings.get(&v) {
                if let Binding::Register { depth: d, .. } = binding {
                    depth = depth.max(*d);
                }
                continue;
            }
            if needs_block(self.graph.op(v.node)) {
                // Its statements stand in the innermost block, so its name is known only there.
                return self.depth();
            }
            stack.extend(self.graph.operands(v.node));
        }
        depth.min(self.depth())
    }

    fn declare(&mut self, depth: usize, dtype: DType, expression: &str) -> String {
        let name = self.fresh("v");
        self.line(depth, format!("const {} {name} = {expression};", cpp::register_type(dtype)));
        name
    }

    fn load(&mut self, value: Value, buffer: &str, index: &[Index]) -> String {
        let offset = self.linear(self.shape(value), index);
        let key = (value, index.to_vec());
        for scope in self.scopes.iter().take(offset.depth + 1) {
            if let Some(text) = scope.cache.get(&key) {
                return text.clone();
            }
        }
        let depth = offset.depth.min(self.depth());
        let dtype = self.dtype(value);
        let expression = match dtype {
            DType::Bool => format!("{buffer}[{}] != 0", offset.text),
            _ => format!("{buffer}[{}]", offset.text),
        };
        let name = self.declare(depth, dtype, &expression);
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.cache.insert(key, name.clone());
        }
        name
    }

    /// Row-major offset of `index` in `shape`.
    #[must_use]
    pub fn linear(&self, shape: &[Dim], index: &[Index]) -> Index {
        let mut acc = Index::zero();
        for (dim, ix) in shape.iter().zip(index) {
            acc = acc.times_plus(dim, ix);
        }
        acc
    }

    fn compute(&mut self, value: Value, index: &[Index]) -> Result<String, Unsupported> {
        let node = self.graph.node(value.node);
        let operands = self.graph.operands(value.node);
        let dtype = self.dtype(value);
        let depth = self.depth_of(value, index);
        match &node.op {
            Op::Constant { value: tensor } => self.constant(tensor, index, depth),
            Op::Iota { dtype, .. } => {
                let ix = index.first().cloned().unwrap_or_else(Index::zero);
                Ok(self.declare(depth, *dtype, &format!("{}({})", cpp::register_type(*dtype), ix.text)))
            }
            Op::DimValue { dim } => Ok(self.declare(0, DType::I64, &format!("int64_t{{{}}}", cpp::dim(dim)))),
            Op::Unary(op) => {
                let x = self.broadcast(operands[0], value, index)?;
                let expression = unary(*op, self.dtype(operands[0]), &x);
                Ok(self.rounded(depth, dtype, &expression))
            }
            Op::Binary(op) => {
                let constant_exponent = self.scalar_constant(operands[1]);
                let a = self.broadcast(operands[0], value, index)?;
                let expression = match (op, constant_exponent) {
                    (forge_ir::BinaryOp::Pow, Some(2.0)) if dtype.is_float() => format!("{a} * {a}"),
                    (forge_ir::BinaryOp::Pow, Some(3.0)) if dtype.is_float() => format!("{a} * {a} * {a}"),
                    _ => {
                        let b = self.broadcast(operands[1], value, index)?;
                        super::cpp_ops::binary(*op, dtype, &a, &b)
                    }
                };
                Ok(self.rounded(depth, dtype, &expression))
            }
            Op::Compare(op) => {
                let a = self.broadcast(operands[0], value, index)?;
                let b = self.broadcast(operands[1], value, index)?;
                let sign = match op {
                    CompareOp::Eq => "==",
                    CompareOp::Ne => "!=",
                    CompareOp::Lt => "<",
                    CompareOp::Le => "<=",
                    CompareOp::Gt => ">",
                    CompareOp::Ge => ">=",
                };
                Ok(self.declare(depth, DType::Bool, &format!("{a} {sign} {b}")))
            }
            Op::Select => {
                let c = self.broadcast(operands[0], value, index)?;
                let a = self.broadcast(operands[1], value, index)?;
                let b = self.broadcast(operands[2], value, index)?;
                Ok(self.declare(depth, dtype, &format!("{c} ? {a} : {b}")))
            }
            Op::Cast { to } => {
                let x = self.broadcast(operands[0], value, index)?;
                let expression = super::cpp_ops::cast(self.dtype(operands[0]), *to, &x);
                Ok(self.rounded(depth, *to, &expression))
            }
            Op::Reshape { .. } => {
                let mapped = self.reshape_index(self.shape(value), self.shape(operands[0]), index);
                self.value(operands[0], &mapped)
            }
            Op::Transpose { perm } => {
                let mut mapped = vec![Index::zero(); perm.len()];
                for (i, axis) in perm.iter().enumerate() {
                    if let (Some(slot), Some(ix)) = (mapped.get_mut(*axis), index.get(i)) {
                        *slot = ix.clone();
                    }
                }
                self.value(operands[0], &mapped)
            }
            Op::Broadcast { .. } => self.broadcast(operands[0], value, index),
            Op::Slice { starts, steps, .. } => {
                let mapped: Vec<Index> = index
                    .iter()
                    .zip(starts.iter().zip(steps))
                    .map(|(ix, (start, step))| {
                        let scaled = match step {
                            1 => ix.text.clone(),
                            _ if ix.is_zero() => "0".into(),
                            _ => format!("{} * {step}", ix.text),
                        };
                        let text = match start.as_const() {
                            Some(0) => scaled,
                            _ if scaled == "0" => cpp::dim(start),
                            _ => format!("({} + {scaled})", cpp::dim(start)),
                        };
                        Index { text, depth: ix.depth }
                    })
                    .collect();
                self.value(operands[0], &mapped)
            }
            _ => super::nested::compute(self, value, index, depth),
        }
    }

    /// Half types round after every op, as the unfused graph does.
    pub(super) fn rounded(&mut self, depth: usize, dtype: DType, expression: &str) -> String {
        match dtype {
            DType::F16 => self.declare(depth, dtype, &format!("forge::round_to_half({expression})")),
            DType::BF16 => self.declare(depth, dtype, &format!("forge::round_to_bfloat16({expression})")),
            _ => self.declare(depth, dtype, expression),
        }
    }

    fn scalar_constant(&self, value: Value) -> Option<f64> {
        match self.graph.op(value.node) {
            Op::Constant { value } if value.numel() == 1 => value.to_f64().first().copied(),
            _ => None,
        }
    }

    fn constant(&mut self, tensor: &Tensor, index: &[Index], depth: usize) -> Result<String, Unsupported> {
        let literals: Vec<String> = match tensor.to_i64() {
            Some(values) => values.iter().map(|v| cpp::int_literal(tensor.dtype(), *v)).collect(),
            None => tensor.to_f64().iter().map(|v| cpp::float_literal(tensor.dtype(), *v)).collect(),
        };
        match literals.as_slice() {
            [] => Err(Unsupported::new("an element of an empty constant is asked for")),
            // Equal everywhere: no table.
            [first, rest @ ..] if rest.iter().all(|l| l == first) => Ok(first.clone()),
            _ => {
                let shape: Vec<Dim> = tensor.shape().iter().map(|d| Dim::from(*d)).collect();
                let offset = self.linear(&shape, index);
                let table = self.fresh("table");
                let ty = cpp::register_type(tensor.dtype());
                self.line(0, format!("static const {ty} {table}[] = {{{}}};", literals.join(", ")));
                Ok(self.declare(depth, tensor.dtype(), &format!("{table}[{}]", offset.text)))
            }
        }
    }

    /// The element of `operand` that numpy broadcasting pairs with `index` of `result`.
    pub(super) fn broadcast(&mut self, operand: Value, result: Value, index: &[Index]) -> Result<String, Unsupported> {
        let skip = self.shape(result).len() - self.shape(operand).len().min(self.shape(result).len());
        let mapped: Vec<Index> = index.iter().skip(skip).cloned().collect();
        self.value(operand, &mapped)
    }

    /// The operand index of a reshape: axes with equal leading products map one to one, the rest through a linear offset.
    pub(crate) fn reshape_index(&mut self, result: &[Dim], operand: &[Dim], index: &[Index]) -> Vec<Index> {
        let mut mapped = Vec::with_capacity(operand.len());
        let (mut r, mut o) = (0, 0);
        while o < operand.len() {
            // The smallest groups of axes with equal products.
            let (r_start, o_start) = (r, o);
            let mut r_product = result.get(r).cloned().unwrap_or_else(|| Dim::from(1));
            let mut o_product = operand[o].clone();
            r = (r + 1).min(result.len());
            o += 1;
            while r_product != o_product && (r < result.len() || o < operand.len()) {
                let grow_result = match (r_product.as_const(), o_product.as_const()) {
                    (Some(a), Some(b)) => a < b && r < result.len(),
                    // Symbolic: grow whichever the other is a multiple of.
                    _ => r < result.len() && (o >= operand.len() || o_product.div_exact(&r_product).is_some()),
                };
                if grow_result {
                    r_product = r_product * result[r].clone();
                    r += 1;
                } else if o < operand.len() {
                    o_product = o_product * operand[o].clone();
                    o += 1;
                } else {
                    r_product = r_product * result[r].clone();
                    r += 1;
                }
            }
            // Trailing ones of the result belong to the last group.
            if o == operand.len() {
                r = result.len();
            }
            let offset = self.linear(&result[r_start..r], &index[r_start.min(index.len())..r.min(index.len())]);
            self.delinear(&operand[o_start..o], &offset, &mut mapped);
        }
        mapped
    }

    /// Splits a linear offset into an index of `shape`.
    pub(super) fn delinear(&mut self, shape: &[Dim], offset: &Index, out: &mut Vec<Index>) {
        let wide: Vec<usize> = (0..shape.len()).filter(|i| !shape[*i].is_one()).collect();
        if wide.len() <= 1 {
            out.extend((0..shape.len()).map(|i| if wide.contains(&i) { offset.clone() } else { Index::zero() }));
            return;
        }
        let depth = offset.depth.min(self.depth());
        let name = self.fresh("o");
        self.line(depth, format!("const int64_t {name} = {};", offset.text));
        for (i, dim) in shape.iter().enumerate() {
            if dim.is_one() {
                out.push(Index::zero());
                continue;
            }
            let stride = Dim::product(&shape[i + 1..]);
            let quotient = if stride.is_one() { name.clone() } else { format!("{name} / {}", cpp::dim(&stride)) };
            let text = if wide.first() == Some(&i) {
                format!("({quotient})")
            } else {
                format!("({quotient} % {})", cpp::dim(dim))
            };
            out.push(Index { text, depth });
        }
    }

    /// Statements of a nested block: `body` runs in a new innermost scope; its lines are returned indented.
    pub(super) fn nested(
        &mut self,
        body: impl FnOnce(&mut Self, usize) -> Result<(), Unsupported>,
    ) -> Result<Vec<String>, Unsupported> {
        self.push_scope();
        let depth = self.depth();
        let result = body(self, depth);
        let lines = self.pop_scope();
        result.map(|()| lines.into_iter().map(|l| format!("  {l}")).collect())
    }

    pub(super) fn graph(&self) -> &'a Graph {
        self.graph
    }
}

/// Whether an op's element takes statements with control flow, which are never hoisted.
fn needs_block(op: &Op) -> bool {
    matches!(
        op,
        Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::CumSum { .. }
            | Op::MatMul { .. }
            | Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::Pool { .. }
    )
}

/// Joins statements under an indentation.
#[must_use]
pub fn indent(lines: &[String], by: usize) -> String {
    let mut out = String::new();
    for line in lines {
        let _ = writeln!(out, "{:by$}{line}", "");
    }
    out
}

/// Whether computing an element costs more than a few cycles.
#[must_use]
pub fn is_costly(op: &Op) -> bool {
    match op {
        Op::Unary(unary) => !matches!(
            unary,
            UnaryOp::Neg
                | UnaryOp::Abs
                | UnaryOp::Relu
                | UnaryOp::Not
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Round
        ),
        Op::Binary(binary) => {
            matches!(binary, forge_ir::BinaryOp::Div | forge_ir::BinaryOp::Pow | forge_ir::BinaryOp::Mod)
        }
        other => !matches!(other.class(), OpClass::Elementwise | OpClass::View | OpClass::Leaf),
    }
}

fn unary(op: UnaryOp, dtype: DType, x: &str) -> String {
    super::cpp_ops::unary(op, dtype, x)
}
