//! A graph and the implementations chosen for its fused nodes, assembled into one plan.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use forge_ir::{Dim, Graph, Loc, NodeId, Op, OpClass, Tensor, TensorType, Value};
use forge_runtime::plan::{
    Buffer, BufferId, GemmStep, KernelStep, Matrix, Module, PLAN_VERSION, Plan, Port, Step, Storage,
};
use forge_runtime::size::Size;

use crate::candidate::{Candidate, Launch, LaunchPlan, MatrixSlot, Slot};
use crate::codegen::{Unsupported, cpp::PRELUDE};
use crate::generic::{Lowered, lower_op};

/// Constants up to this many elements are literals in generated code.
const INLINE_ELEMENTS: usize = 64;
/// Generic kernels per module: enough to share the prelude's parsing, few enough to build in parallel.
const KERNELS_PER_MODULE: usize = 12;

/// A plan, the sources of its modules (one each, in order; the plan's `file`s are still empty) and its weights.
#[derive(Clone, Debug)]
pub struct Assembled {
    pub plan: Plan,
    pub sources: Vec<String>,
    pub weights: BTreeMap<String, Tensor>,
}

#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    #[error("{op} at {location} has no lowering: {why}")]
    NoLowering { op: String, location: String, why: Unsupported },
    #[error("weight '{0}' has no data; bind the model's weights before building a plan")]
    MissingData(String),
    #[error("the candidate's launch plan names {0}, which the region does not have")]
    BadSlot(String),
    #[error("the candidate prepares from input {0}, which is not a weight")]
    PrepareFromActivation(usize),
    #[error("a size does not fit the plan: {0}")]
    Size(String),
}

/// Assembles a whole graph. `implementation` gives the candidate for a fused node; without one its body runs op by op.
///
/// # Errors
/// If an op has no lowering, a weight has no data, or a candidate does not fit its node.
pub fn assemble(
    graph: &Graph,
    implementation: &dyn Fn(NodeId) -> Option<Candidate>,
) -> Result<Assembled, AssembleError> {
    let mut builder = Builder::new(graph.name());
    let inputs = builder.inputs(graph, &[])?;
    builder.graph(graph, &inputs, implementation)?;
    Ok(builder.finish())
}

/// Assembles a region alone with one candidate. Inputs flagged in `weight_inputs` become weights `in{i}` without data (the
/// caller supplies them), the rest plan inputs.
///
/// # Errors
/// If the candidate does not fit the region.
pub fn assemble_candidate(
    region: &Graph,
    weight_inputs: &[bool],
    candidate: &Candidate,
) -> Result<Assembled, AssembleError> {
    let mut builder = Builder::new(region.name());
    let inputs = builder.inputs(region, weight_inputs)?;
    let mut outputs = Vec::new();
    for (index, (name, value)) in region.outputs().iter().enumerate() {
        let buffer = builder.buffer(region.ty(*value), Storage::Output { index: index as u32 })?;
        builder.plan.outputs.push(port(name, region.ty(*value), buffer)?);
        outputs.push(buffer);
    }
    builder.place(candidate, &inputs, &outputs, region.name(), false)?;
    Ok(builder.finish())
}

/// The region run op by op, with the same interface as [`assemble_candidate`]: the baseline of a comparison.
///
/// # Errors
/// If an op has no lowering.
pub fn assemble_baseline(region: &Graph, weight_inputs: &[bool]) -> Result<Assembled, AssembleError> {
    let mut builder = Builder::new(region.name());
    let inputs = builder.inputs(region, weight_inputs)?;
    builder.graph(region, &inputs, &|_| None)?;
    Ok(builder.finish())
}

/// The value that a chain of reshapes views.
fn view_root(graph: &Graph, value: Value) -> Value {
    let mut root = value;
    while let Op::Reshape { .. } = graph.op(root.node) {
        match graph.operands(root.node).first() {
            Some(operand) => root = *operand,
            None => break,
        }
    }
    root
}

fn size(dim: &Dim) -> Result<Size, AssembleError> {
    Size::parse(&dim.to_string()).map_err(|e| AssembleError::Size(e.to_string()))
}

fn sizes(dims: &[Dim]) -> Result<Vec<Size>, AssembleError> {
    dims.iter().map(size).collect()
}

fn port(name: &str, ty: &TensorType, buffer: BufferId) -> Result<Port, AssembleError> {
    Ok(Port { name: name.to_owned(), dtype: ty.dtype.name().to_owned(), shape: sizes(&ty.shape)?, buffer })
}

struct Builder {
    plan: Plan,
    /// Sources of candidates, one module each.
    sources: Vec<String>,
    /// Generic kernels (prelude stripped), by content; grouped into modules at the end.
    generic: Vec<String>,
    generic_index: HashMap<String, usize>,
    weights: BTreeMap<String, Tensor>,
}

/// Marks a step's module as an index into the generic kernels until `finish` groups them.
const GENERIC: u32 = 1 << 31;

impl Builder {
    fn new(name: &str) -> Builder {
        let plan = Plan {
            version: PLAN_VERSION,
            name: name.to_owned(),
            target: "cpu".into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            buffers: Vec::new(),
            modules: Vec::new(),
            prepare: Vec::new(),
            steps: Vec::new(),
        };
        Builder {
            plan,
            sources: Vec::new(),
            generic: Vec::new(),
            generic_index: HashMap::new(),
            weights: BTreeMap::new(),
        }
    }

    /// The buffers of the graph's inputs: weights `in{i}` where flagged, else plan inputs.
    fn inputs(&mut self, graph: &Graph, weight_inputs: &[bool]) -> Result<Vec<BufferId>, AssembleError> {
        let mut buffers = Vec::new();
        for (i, node) in graph.inputs().iter().enumerate() {
            let ty = graph.ty(Value { node: *node, port: 0 });
            buffers.push(if weight_inputs.get(i).copied().unwrap_or(false) {
                self.buffer(ty, Storage::Weight { name: format!("in{i}") })?
            } else {
                let index = self.plan.inputs.len() as u32;
                let buffer = self.buffer(ty, Storage::Input { index })?;
                self.plan.inputs.push(port(graph.input_name(*node), ty, buffer)?);
                buffer
            });
        }
        Ok(buffers)
    }

    /// The whole graph: every op lowered, results in the plan's outputs.
    fn graph(
        &mut self,
        graph: &Graph,
        inputs: &[BufferId],
        implementation: &dyn Fn(NodeId) -> Option<Candidate>,
    ) -> Result<(), AssembleError> {
        let values = graph.inputs().iter().map(|node| Value { node: *node, port: 0 });
        let mut bound: HashMap<Value, BufferId> = values.zip(inputs.iter().copied()).collect();
        let mut results = Vec::new();
        for (index, (name, value)) in graph.outputs().iter().enumerate() {
            let buffer = self.buffer(graph.ty(*value), Storage::Output { index: index as u32 })?;
            self.plan.outputs.push(port(name, graph.ty(*value), buffer)?);
            results.push((*value, buffer));
        }
        self.lower_into(graph, &mut bound, &results, implementation)
    }

    /// Lowers a graph so that these values end in these buffers: computed there where nothing else claims the value behind them,
    /// copied otherwise.
    fn lower_into(
        &mut self,
        graph: &Graph,
        bound: &mut HashMap<Value, BufferId>,
        results: &[(Value, BufferId)],
        implementation: &dyn Fn(NodeId) -> Option<Candidate>,
    ) -> Result<(), AssembleError> {
        let mut copies = Vec::new();
        for (value, buffer) in results {
            let root = view_root(graph, *value);
            if graph.op(root.node).class() != OpClass::Leaf && !bound.contains_key(&root) {
                bound.insert(root, *buffer);
                bound.insert(*value, *buffer);
            } else {
                copies.push((*value, *buffer));
            }
        }
        self.lower(graph, bound, implementation)?;
        for (value, to) in copies {
            self.plan.steps.push(Step::Copy { from: bound[&value], to });
        }
        Ok(())
    }

    fn buffer(&mut self, ty: &TensorType, storage: Storage) -> Result<BufferId, AssembleError> {
        self.raw_buffer(&(ty.numel() * Dim::from(ty.dtype.size())), storage)
    }

    fn raw_buffer(&mut self, bytes: &Dim, storage: Storage) -> Result<BufferId, AssembleError> {
        let id = BufferId(self.plan.buffers.len() as u32);
        self.plan.buffers.push(Buffer { bytes: size(bytes)?, storage });
        Ok(id)
    }

    /// Lowers every node; `bound` holds the buffers of inputs and of results that must land in a given place.
    fn lower(
        &mut self,
        graph: &Graph,
        bound: &mut HashMap<Value, BufferId>,
        implementation: &dyn Fn(NodeId) -> Option<Candidate>,
    ) -> Result<(), AssembleError> {
        for node in graph.topological() {
            let op = graph.op(node);
            let location = || {
                let loc = &graph.node(node).loc.0;
                loc.last().cloned().unwrap_or_else(|| format!("{node:?}"))
            };
            let first = Value { node, port: 0 };
            match op {
                Op::Input { .. } => continue,
                Op::Weight { name, data } => {
                    let data = data.as_ref().ok_or_else(|| AssembleError::MissingData(name.clone()))?;
                    self.weights.insert(name.clone(), data.clone());
                    let buffer = self.buffer(graph.ty(first), Storage::Weight { name: name.clone() })?;
                    bound.insert(first, buffer);
                    continue;
                }
                Op::Constant { value } => {
                    // Literal in kernels; a buffer only where one is read as such.
                    if graph.is_output(first) || graph.users(node).iter().any(|u| !inlines(graph, *u, value)) {
                        let name = format!("constant.{}", self.weights.len());
                        self.weights.insert(name.clone(), value.clone());
                        let buffer = self.buffer(graph.ty(first), Storage::Weight { name })?;
                        bound.insert(first, buffer);
                    }
                    continue;
                }
                _ => {}
            }
            if let Some(candidate) = implementation(node) {
                let inputs: Vec<BufferId> = graph.operands(node).iter().map(|v| bound[v]).collect();
                let mut outputs = Vec::new();
                for value in graph.results(node) {
                    outputs.push(self.result(graph, value, bound)?);
                }
                self.place(&candidate, &inputs, &outputs, &location(), false)?;
                continue;
            }
            let (region, operands) = one_op_region(graph, node);
            let lowered = lower_op(&region).map_err(|why| AssembleError::NoLowering {
                op: op.name().to_owned(),
                location: location(),
                why,
            })?;
            let inputs: Vec<BufferId> = operands.iter().map(|v| bound[v]).collect();
            match lowered {
                Lowered::Alias => {
                    if let Entry::Vacant(entry) = bound.entry(first) {
                        entry.insert(self.buffer(graph.ty(first), Storage::Alias { of: inputs[0] })?);
                    }
                }
                Lowered::Launches(candidate) => {
                    let mut outputs = Vec::new();
                    for value in graph.results(node) {
                        outputs.push(self.result(graph, value, bound)?);
                    }
                    let label = format!("{} {}", op.name(), location());
                    self.place(&candidate, &inputs, &outputs, &label, true)?;
                }
                Lowered::Decomposed(definition) => {
                    let mut inner: HashMap<Value, BufferId> = definition
                        .inputs()
                        .iter()
                        .map(|n| Value { node: *n, port: 0 })
                        .zip(graph.operands(node).iter().map(|v| bound[v]))
                        .collect();
                    let mut results = Vec::new();
                    for ((_, value), result) in definition.outputs().iter().zip(graph.results(node)) {
                        results.push((*value, self.result(graph, result, bound)?));
                    }
                    self.lower_into(&definition, &mut inner, &results, &|_| None)?;
                }
            }
        }
        Ok(())
    }

    /// The buffer of a result: where it must land, else a new one in the arena.
    fn result(
        &mut self,
        graph: &Graph,
        value: Value,
        bound: &mut HashMap<Value, BufferId>,
    ) -> Result<BufferId, AssembleError> {
        if let Some(buffer) = bound.get(&value) {
            return Ok(*buffer);
        }
        let buffer = self.buffer(graph.ty(value), Storage::Arena)?;
        bound.insert(value, buffer);
        Ok(buffer)
    }

    /// Appends a candidate's launches over these buffers.
    fn place(
        &mut self,
        candidate: &Candidate,
        inputs: &[BufferId],
        outputs: &[BufferId],
        label: &str,
        generic: bool,
    ) -> Result<(), AssembleError> {
        let LaunchPlan { temporaries, packed, prepare, launches } = &candidate.launch;
        let mut temporary_buffers = Vec::new();
        for bytes in temporaries {
            temporary_buffers.push(self.raw_buffer(bytes, Storage::Arena)?);
        }
        let mut packed_buffers = Vec::new();
        for bytes in packed {
            packed_buffers.push(self.raw_buffer(bytes, Storage::Prepared)?);
        }
        let module = if candidate.source.is_empty() { 0 } else { self.module(&candidate.source, generic) };
        for (launch, preparing) in prepare.iter().map(|l| (l, true)).chain(launches.iter().map(|l| (l, false))) {
            let resolve = |slot: &Slot| -> Result<BufferId, AssembleError> {
                let found = match slot {
                    Slot::Input(i) => inputs.get(*i),
                    Slot::Output(i) => outputs.get(*i),
                    Slot::Temporary(i) => temporary_buffers.get(*i),
                    Slot::Packed(i) => packed_buffers.get(*i),
                };
                let id = *found.ok_or_else(|| AssembleError::BadSlot(format!("{slot:?}")))?;
                if let (true, Slot::Input(i)) = (preparing, slot) {
                    let weight = matches!(
                        self.plan.buffers.get(id.0 as usize).map(|b| &b.storage),
                        Some(Storage::Weight { .. })
                    );
                    if !weight {
                        return Err(AssembleError::PrepareFromActivation(*i));
                    }
                }
                Ok(id)
            };
            let step = step(launch, &resolve, module, label)?;
            if preparing {
                self.plan.prepare.push(step);
            } else {
                self.plan.steps.push(step);
            }
        }
        Ok(())
    }

    fn module(&mut self, source: &str, generic: bool) -> u32 {
        if generic {
            let index = *self.generic_index.entry(source.to_owned()).or_insert_with(|| {
                self.generic.push(source.strip_prefix(PRELUDE).unwrap_or(source).to_owned());
                self.generic.len() - 1
            });
            return GENERIC | index as u32;
        }
        let found = self.sources.iter().position(|s| s == source);
        found.unwrap_or_else(|| {
            self.sources.push(source.to_owned());
            self.sources.len() - 1
        }) as u32
    }

    fn finish(mut self) -> Assembled {
        let first_generic = self.sources.len() as u32;
        for chunk in self.generic.chunks(KERNELS_PER_MODULE) {
            self.sources.push(format!("{PRELUDE}{}", chunk.join("\n")));
        }
        for step in self.plan.prepare.iter_mut().chain(&mut self.plan.steps) {
            if let Step::Kernel(kernel) = step
                && kernel.module & GENERIC != 0
            {
                kernel.module = first_generic + (kernel.module & !GENERIC) / KERNELS_PER_MODULE as u32;
            }
        }
        self.plan.modules = self.sources.iter().map(|_| Module { file: String::new(), hash: String::new() }).collect();
        Assembled { plan: self.plan, sources: self.sources, weights: self.weights }
    }
}

fn step(
    launch: &Launch,
    resolve: &dyn Fn(&Slot) -> Result<BufferId, AssembleError>,
    module: u32,
    label: &str,
) -> Result<Step, AssembleError> {
    let matrix = |m: &MatrixSlot| -> Result<Matrix, AssembleError> {
        Ok(Matrix {
            buffer: resolve(&m.slot)?,
            row_stride: size(&m.row_stride)?,
            column_stride: size(&m.column_stride)?,
            batch_strides: sizes(&m.batch_strides)?,
        })
    };
    Ok(match launch {
        Launch::Kernel { symbol, reads, writes, sizes: kernel_sizes, grid, grain, scratch } => {
            Step::Kernel(KernelStep {
                module,
                symbol: symbol.clone(),
                reads: reads.iter().map(resolve).collect::<Result<_, _>>()?,
                writes: writes.iter().map(resolve).collect::<Result<_, _>>()?,
                sizes: sizes(kernel_sizes)?,
                grid: size(grid)?,
                grain: size(grain)?,
                scratch: size(scratch)?,
                label: label.to_owned(),
            })
        }
        Launch::Gemm { dtype, m, n, k, batch, a, b, c } => Step::Gemm(GemmStep {
            dtype: dtype.clone(),
            m: size(m)?,
            n: size(n)?,
            k: size(k)?,
            batch: sizes(batch)?,
            a: matrix(a)?,
            b: matrix(b)?,
            c: matrix(c)?,
            label: label.to_owned(),
        }),
        Launch::Copy { from, to } => Step::Copy { from: resolve(from)?, to: resolve(to)? },
    })
}

/// Whether `user` takes this constant as a literal rather than as a buffer.
fn inlines(graph: &Graph, user: NodeId, value: &Tensor) -> bool {
    value.numel() <= INLINE_ELEMENTS
        && value.numel() > 0
        && matches!(graph.op(user).class(), OpClass::Elementwise | OpClass::Reduce | OpClass::View | OpClass::Index)
        && !matches!(
            graph.op(user),
            Op::Reshape { .. } | Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::TopK { .. }
        )
}

/// The node alone: literal constants inside, every other operand an input. Returns the operands behind the inputs.
fn one_op_region(graph: &Graph, node: NodeId) -> (Graph, Vec<Value>) {
    let mut region = Graph::new(graph.op(node).name());
    let mut outer: Vec<Value> = Vec::new();
    let mut inner: HashMap<Value, Value> = HashMap::new();
    let mut operands = Vec::new();
    for operand in graph.operands(node) {
        let value = match inner.get(&operand) {
            Some(value) => *value,
            None => {
                let value = match graph.op(operand.node) {
                    Op::Constant { value } if inlines(graph, node, value) => region.add_constant(value.clone()),
                    _ => {
                        outer.push(operand);
                        region.add_input(&format!("in{}", outer.len() - 1), graph.ty(operand).clone())
                    }
                };
                inner.insert(operand, value);
                value
            }
        };
        operands.push(value);
    }
    // The op was typed in `graph` with the same operand types.
    if let Ok(new) = region.add_node(graph.op(node).clone(), &operands, Loc::default()) {
        let outputs = region.results(new).enumerate().map(|(i, v)| (format!("out{i}"), v)).collect();
        region.set_outputs(outputs);
    }
    (region, outer)
}
