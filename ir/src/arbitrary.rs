//! Random well-typed graphs for tests, of this crate and (feature `testing`) of others: a function of a seed and a size.
//!
//! Every class of op occurs; shapes are small, some dims are the symbols `N` and `S` (any positive binding is valid).
//! Index operands are constants in range, so that the graphs can be evaluated.

mod makers;

use std::collections::HashMap;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, Loc, NodeId, Value};
use crate::op::*;
use crate::tensor::{Tensor, TensorType};

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is positive.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// In [-2, 2), with few digits.
    pub fn small(&mut self) -> f64 {
        self.below(64) as f64 / 16.0 - 2.0
    }
}

/// A tensor of small values; floats have now and then -0.0, an infinity or a NaN if `special`.
pub fn random_tensor(random: &mut Random, dtype: DType, shape: &[usize], special: bool) -> Tensor {
    let numel: usize = shape.iter().product();
    let values: Vec<f64> = (0..numel)
        .map(|_| match random.below(100) {
            0 if special => f64::NAN,
            1 if special => f64::INFINITY,
            2 if special => f64::NEG_INFINITY,
            3 => -0.0,
            _ if dtype.is_float() => random.small(),
            _ if dtype.is_signed() => random.below(7) as f64 - 3.0,
            _ => random.below(4) as f64,
        })
        .collect();
    Tensor::from_f64(dtype, shape, &values)
}

/// A well-typed graph of about `size` ops. The same seed and size give the same graph.
#[must_use]
pub fn random_graph(seed: u64, size: usize) -> Graph {
    Generator::run(Random::new(seed), size, 2)
}

/// `graph` with its nodes inserted in another topological order, so that ids and reading order differ.
///
/// # Panics
/// If the graph is not well typed.
#[must_use]
pub fn shuffled(graph: &Graph, seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut out = Graph::new(graph.name());
    out.metadata.clone_from(&graph.metadata);
    let mut map = HashMap::new();
    let mut waiting: Vec<NodeId> = graph.node_ids().filter(|n| !graph.inputs().contains(n)).collect();
    // Some leaves may come before the inputs.
    let mut inputs = graph.inputs().iter();
    let mut next_input = inputs.next();
    while !waiting.is_empty() || next_input.is_some() {
        if let Some(id) = next_input
            && (waiting.is_empty() || random.chance(50))
        {
            let value = Value { node: *id, port: 0 };
            map.insert(value, out.add_input(graph.input_name(*id), graph.ty(value).clone()));
            next_input = inputs.next();
            continue;
        }
        let ready: Vec<usize> =
            (0..waiting.len()).filter(|at| graph.operands(waiting[*at]).iter().all(|v| map.contains_key(v))).collect();
        if ready.is_empty() {
            let id = next_input.expect("an acyclic graph has a ready node or an input");
            let value = Value { node: *id, port: 0 };
            map.insert(value, out.add_input(graph.input_name(*id), graph.ty(value).clone()));
            next_input = inputs.next();
            continue;
        }
        let id = waiting.remove(*random.of(&ready));
        let node = graph.node(id);
        let operands: Vec<Value> = graph.operands(id).iter().map(|v| map[v]).collect();
        let new = match &node.op {
            Op::Weight { .. } | Op::Constant { .. } => out.add_leaf(node.op.clone(), node.outputs[0].clone()).node,
            op => out.add_node(op.clone(), &operands, node.loc.clone()).expect("the graph is well typed"),
        };
        for value in graph.results(id) {
            map.insert(value, Value { node: new, port: value.port });
        }
    }
    out.set_outputs(graph.outputs().iter().map(|(name, v)| (name.clone(), map[v])).collect());
    out
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];
/// Names that need quoting, and some that do not.
const NAMES: [&str; 6] = ["fc.weight", "onnx::MatMul_470", "a b", "naïve \"name\"", "0", "layer"];

type Maker = fn(&mut Generator) -> Option<NodeId>;

/// One maker per kind of op; each builds the operands that it lacks.
const MAKERS: &[Maker] = &[
    Generator::leaf,
    Generator::unary,
    Generator::unary,
    Generator::binary,
    Generator::binary,
    Generator::binary,
    Generator::compare,
    Generator::select,
    Generator::cast,
    Generator::reduce,
    Generator::arg_reduce,
    Generator::cum_sum,
    Generator::reshape,
    Generator::transpose,
    Generator::broadcast,
    Generator::slice,
    Generator::pad,
    Generator::concat,
    Generator::gather,
    Generator::gather_elements,
    Generator::gather_nd,
    Generator::scatter_elements,
    Generator::scatter_nd,
    Generator::top_k,
    Generator::matmul,
    Generator::matmul,
    Generator::conv,
    Generator::conv_transpose,
    Generator::pool,
    Generator::resize,
    Generator::softmax,
    Generator::norm,
    Generator::channel_norm,
    Generator::activation,
    Generator::attention,
    Generator::rotary,
    Generator::fused,
];

struct Generator {
    random: Random,
    graph: Graph,
    values: Vec<Value>,
    /// Levels of fused bodies that may still be nested.
    nesting: usize,
}

impl Generator {
    fn run(mut random: Random, size: usize, nesting: usize) -> Graph {
        let name = if random.chance(80) { "main" } else { "a graph: \"quoted\"" };
        let mut g = Generator { random, graph: Graph::new(name), values: Vec::new(), nesting };
        if g.random.chance(30) {
            g.graph.metadata.insert("producer".into(), "pytorch 2.11".into());
        }
        // Every symbol is a dim of an input, so that inputs bind it.
        g.input(TensorType::new(DType::F32, vec![Dim::symbol("N"), Dim::symbol("S")]));
        for _ in 0..size.max(1) {
            let maker = *g.random.of(MAKERS);
            if let Some(node) = maker(&mut g) {
                g.graph.node_mut(node).loc = g.loc();
                g.values.extend(g.graph.results(node));
            }
        }
        let dead: Vec<Value> = g.values.iter().copied().filter(|v| g.graph.uses(*v).is_empty()).collect();
        let mut outputs = Vec::new();
        for (i, value) in dead.iter().enumerate() {
            // A little dead code is part of the game.
            if i + 1 == dead.len() || g.random.chance(85) {
                outputs.push((format!("out.{i}"), *value));
            }
        }
        if g.random.chance(20)
            && let Some(first) = g.values.first()
        {
            outputs.push(("again and again".into(), *first));
        }
        g.graph.set_outputs(outputs);
        g.graph
    }

    fn loc(&mut self) -> Loc {
        match self.random.below(4) {
            0 => Loc::name("/encoder/layer.0/Add"),
            1 if self.random.chance(20) => Loc(vec!["a \"b\"\n".into(), "model.py:31".into()]),
            _ => Loc::default(),
        }
    }

    fn add(&mut self, op: Op, operands: &[Value]) -> Option<NodeId> {
        match self.graph.add_node(op, operands, Loc::default()) {
            Ok(node) => Some(node),
            Err(error) => panic!("the generator made an ill-typed op: {error}"),
        }
    }

    // Parts.

    fn size(&mut self) -> usize {
        1 + self.random.below(4)
    }

    fn dim(&mut self) -> Dim {
        match self.random.below(6) {
            0 => Dim::symbol("N"),
            1 => Dim::symbol("S"),
            _ => Dim::from(self.size()),
        }
    }

    fn shape(&mut self, rank: usize) -> Vec<Dim> {
        (0..rank).map(|_| self.dim()).collect()
    }

    fn fixed(&mut self, rank: usize) -> Vec<Dim> {
        (0..rank).map(|_| Dim::from(self.size())).collect()
    }

    fn dtype(&mut self) -> DType {
        if self.random.chance(60) { DType::F32 } else { *self.random.of(&DType::ALL) }
    }

    fn float(&mut self) -> DType {
        if self.random.chance(60) { DType::F32 } else { *self.random.of(&FLOATS) }
    }

    fn numeric(&mut self) -> DType {
        Some(self.dtype()).filter(|d| *d != DType::Bool).unwrap_or(DType::I32)
    }

    fn input(&mut self, ty: TensorType) -> Value {
        let count = self.graph.inputs().len();
        let name = if self.random.chance(10) { format!("input {count}") } else { format!("x{count}") };
        let value = self.graph.add_input(&name, ty);
        self.values.push(value);
        value
    }

    /// A value there is that fits, else `None`.
    fn pick(&mut self, fits: impl Fn(&TensorType) -> bool) -> Option<Value> {
        let fitting: Vec<Value> = self.values.iter().copied().filter(|v| fits(self.graph.ty(*v))).collect();
        if fitting.is_empty() { None } else { Some(*self.random.of(&fitting)) }
    }

    /// A value of exactly this type: one there is, or a new input, weight or constant.
    fn operand(&mut self, dtype: DType, shape: &[Dim]) -> Value {
        let ty = TensorType::new(dtype, shape.to_vec());
        if self.random.chance(60)
            && let Some(value) = self.pick(|t| *t == ty)
        {
            return value;
        }
        let Some(fixed) = ty.const_shape() else { return self.input(ty) };
        let value = match self.random.below(3) {
            0 => self.input(ty),
            1 => {
                let special = self.random.chance(10);
                let data = random_tensor(&mut self.random, dtype, &fixed, special);
                let name = *self.random.of(&NAMES);
                let name = format!("{name}{}", self.random.below(1_000_000));
                self.graph.add_weight(&name, data)
            }
            _ => {
                let value = self.constant_data(dtype, &fixed);
                self.graph.add_constant(value)
            }
        };
        if !self.values.contains(&value) {
            self.values.push(value);
        }
        value
    }

    fn constant_data(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let special = self.random.chance(10);
        let tensor = random_tensor(&mut self.random, dtype, shape, special);
        if dtype == DType::Bool || !self.random.chance(5) {
            return tensor;
        }
        // Any bits at all: NaN payloads, subnormals, extreme integers.
        let bytes: Vec<u8> = (0..tensor.bytes().len()).map(|_| self.random.bits() as u8).collect();
        Tensor::new(dtype, shape.to_vec(), bytes).unwrap_or(tensor)
    }

    /// An existing value that fits, or a new operand of a random shape of that rank.
    fn some(&mut self, dtype: DType, rank: usize) -> Value {
        match self.pick(|t| t.dtype == dtype && t.rank() == rank) {
            Some(value) => value,
            None => {
                let shape = self.shape(rank);
                self.operand(dtype, &shape)
            }
        }
    }

    fn rank(&mut self, low: usize, high: usize) -> usize {
        low + self.random.below(high - low + 1)
    }

    fn ty(&self, value: Value) -> TensorType {
        self.graph.ty(value).clone()
    }

    /// `shape` as an operand may have it under broadcasting: leading axes dropped, some axes 1.
    fn broadcastable(&mut self, shape: &[Dim]) -> Vec<Dim> {
        let dropped = if self.random.chance(30) { self.random.below(shape.len() + 1) } else { 0 };
        let one = |random: &mut Random, d: &Dim| if random.chance(20) { Dim::from(1) } else { d.clone() };
        shape.iter().skip(dropped).map(|d| one(&mut self.random, d)).collect()
    }

    /// A constant of indices that are in range for `bound`, or 0 and -1 if that is not constant.
    fn indices(&mut self, bound: &Dim, shape: &[usize]) -> Value {
        let numel: usize = shape.iter().product();
        let low = bound.as_const().unwrap_or(1);
        let values: Vec<i64> = (0..numel).map(|_| self.random.below(2 * low as usize) as i64 - low).collect();
        let dtype = if self.random.chance(70) { DType::I64 } else { DType::I32 };
        self.graph.add_constant(Tensor::from_i64(dtype, shape, &values))
    }
}
