//! A plan with its modules compiled, and running it on tensors.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forge_ir::{DType, Tensor};
use forge_runtime::plan::{Plan, Step, Storage};
use forge_runtime::{Executable, Options, RuntimeError};

use super::block::{Alignment, Block};
use crate::assemble::Assembled;
use crate::build;
use crate::compile::{Cache, CompileError, Compiler};
use crate::object;
use crate::validate::{Failure, How, Implementation};
use crate::verdict::{Evidence, Reason, Stage, Verdict};

/// Why a plan has no modules.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// What [`object::Facts::check`] found.
    #[error("{0}")]
    Object(String),
}

impl From<BuildError> for Verdict {
    fn from(error: BuildError) -> Verdict {
        let (stage, reason) = match &error {
            BuildError::Compile(CompileError::Timeout(_)) => (Stage::Compile, Reason::Timeout),
            BuildError::Compile(CompileError::NulByte) => (Stage::Compile, Reason::Forbidden),
            BuildError::Compile(CompileError::Refused { .. }) => (Stage::Compile, Reason::CompileFailed),
            BuildError::Compile(_) => (Stage::Compile, Reason::WorkerFailed),
            BuildError::Object(_) => (Stage::Load, Reason::ForbiddenSymbol),
        };
        let mut evidence = Evidence { summary: error.to_string(), ..Evidence::default() };
        if let BuildError::Compile(CompileError::Refused { log, line }) = error {
            evidence.summary = line.map(|(n, text)| format!("line {n}: `{}`", text.trim())).unwrap_or_default();
            evidence.detail = log;
        }
        Verdict::Rejected { stage, reason, evidence }
    }
}

/// Compiles a plan's modules and looks at what they ask for, before anything of them is loaded.
pub(super) fn examined(assembled: &Assembled, compiler: &Compiler, cache: &Cache) -> Result<Plan, BuildError> {
    let built = build::build(assembled, compiler, cache)?;
    for object in &built.objects {
        let bytes = std::fs::read(&object.path)
            .map_err(|source| CompileError::Io { doing: format!("cannot read {}", object.path.display()), source })?;
        object::read(&bytes).map_err(|e| e.to_string()).and_then(|f| f.check()).map_err(BuildError::Object)?;
    }
    Ok(built.plan)
}

/// Executables kept per plan: plain, checked, and other thread counts of one set of weights.
const KEPT: usize = 6;

/// A plan that can be run on any inputs of its region, weights among them.
pub(super) struct Built {
    plan: Plan,
    folder: PathBuf,
    /// Data that the plan brings itself.
    weights: BTreeMap<String, Tensor>,
    weight_inputs: Vec<bool>,
    loaded: Mutex<Vec<Loaded>>,
}

struct Loaded {
    /// Kept, so that the same address means the same data.
    weights: Vec<Tensor>,
    options: Options,
    executable: Arc<Executable>,
}

impl Built {
    pub(super) fn new(plan: Plan, cache: &Cache, weights: BTreeMap<String, Tensor>, weight_inputs: &[bool]) -> Built {
        Built {
            plan,
            folder: cache.folder().to_owned(),
            weights,
            weight_inputs: weight_inputs.to_vec(),
            loaded: Mutex::default(),
        }
    }

    fn is_weight(&self, input: usize) -> bool {
        self.weight_inputs.get(input).copied().unwrap_or(false)
    }

    /// Loads the plan with the weights among `inputs`; a copy of its own.
    pub(super) fn load(&self, inputs: &[Tensor], options: Options) -> Result<Arc<Executable>, RuntimeError> {
        let mut weights: HashMap<String, Bytes> =
            self.weights.iter().map(|(name, tensor)| (name.clone(), tensor.bytes().clone())).collect();
        for (i, tensor) in inputs.iter().enumerate().filter(|(i, _)| self.is_weight(*i)) {
            weights.insert(format!("in{i}"), tensor.bytes().clone());
        }
        Executable::new(self.plan.clone(), &weights, &self.folder, options)
    }

    fn executable(&self, inputs: &[Tensor], options: Options) -> Result<Arc<Executable>, RuntimeError> {
        let weights: Vec<Tensor> =
            inputs.iter().enumerate().filter(|(i, _)| self.is_weight(*i)).map(|(_, t)| t.clone()).collect();
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let same_data = |a: &Tensor, b: &Tensor| a.bytes().as_ptr() == b.bytes().as_ptr() && a.ty() == b.ty();
        let found = loaded.iter().find(|l| {
            l.options == options
                && l.weights.len() == weights.len()
                && l.weights.iter().zip(&weights).all(|(a, b)| same_data(a, b))
        });
        if let Some(found) = found {
            return Ok(Arc::clone(&found.executable));
        }
        let executable = self.load(inputs, options)?;
        if loaded.len() >= KEPT {
            loaded.remove(0);
        }
        loaded.push(Loaded { weights, options, executable: Arc::clone(&executable) });
        Ok(executable)
    }

    /// Ready to be timed on these inputs: an executable and memory of its own.
    pub(super) fn timed(&self, inputs: &[Tensor], threads: usize) -> Result<Timed, RuntimeError> {
        let executable = self.load(inputs, Options { threads, ..Options::default() })?;
        Timed::new(self, executable, inputs, Alignment::Line, 0)
    }

    fn failure(&self, error: RuntimeError) -> Failure {
        let text = error.to_string();
        match error {
            RuntimeError::Guard { what, .. } => {
                let changed =
                    what.strip_prefix("changed buffer ").and_then(|w| w.split(',').next()?.parse::<usize>().ok());
                let storage = changed.and_then(|b| self.plan.buffers.get(b)).map(|b| &b.storage);
                match storage {
                    Some(Storage::Input { .. } | Storage::Weight { .. }) => Failure::InputModified(text),
                    _ => Failure::OutOfBounds(text),
                }
            }
            RuntimeError::Axis { .. } | RuntimeError::Rank { .. } | RuntimeError::Size { .. } => Failure::Refused(text),
            _ => Failure::Failed(text),
        }
    }
}

impl Implementation for Built {
    fn run(&self, inputs: &[Tensor], how: How) -> Result<Vec<Tensor>, Failure> {
        let options = Options { threads: how.threads, poison: how.checked, guard: how.checked };
        let executable = self.executable(inputs, options).map_err(|e| self.failure(e))?;
        // Element-aligned memory, where it is looked at closely.
        let element = |size: usize| if how.checked { Alignment::Element(size) } else { Alignment::Line };
        let mut call = Timed::with(self, executable, inputs, &element, how.fill).map_err(|e| self.failure(e))?;
        call.run_once().map_err(|e| self.failure(e))?;
        if let Some((port, offset)) = call.outputs.iter().enumerate().find_map(|(i, b)| Some((i, b.damage()?))) {
            let name = self.plan.outputs.get(port).map_or("", |p| &p.name);
            return Err(Failure::OutOfBounds(format!(
                "byte {offset} of output '{name}', beyond its end or before its start"
            )));
        }
        if how.checked {
            let activations = inputs.iter().enumerate().filter(|(i, _)| !self.is_weight(*i));
            if let Some((_, (i, _))) =
                call.inputs.iter().zip(activations).find(|(b, (_, t))| b.bytes() != &t.bytes()[..])
            {
                return Err(Failure::InputModified(format!("input {i}")));
            }
        }
        call.tensors().ok_or_else(|| Failure::Failed("an output has a dtype or shape that no tensor has".into()))
    }

    fn is_thread_invariant(&self) -> bool {
        // The library may cut a product's inner axis by threads; generated kernels see ranges of their grid only.
        !self.plan.steps.iter().any(|step| matches!(step, Step::Gemm(_)))
    }
}

/// An executable with inputs and outputs bound.
pub(super) struct Timed {
    executable: Arc<Executable>,
    inputs: Vec<Block>,
    input_shapes: Vec<Vec<i64>>,
    outputs: Vec<Block>,
    output_types: Vec<(Option<DType>, Vec<usize>)>,
}

impl Timed {
    fn new(
        built: &Built,
        executable: Arc<Executable>,
        inputs: &[Tensor],
        alignment: Alignment,
        fill: u8,
    ) -> Result<Timed, RuntimeError> {
        Timed::with(built, executable, inputs, &|_| alignment, fill)
    }

    fn with(
        built: &Built,
        executable: Arc<Executable>,
        inputs: &[Tensor],
        alignment: &dyn Fn(usize) -> Alignment,
        fill: u8,
    ) -> Result<Timed, RuntimeError> {
        let activations: Vec<&Tensor> =
            inputs.iter().enumerate().filter(|(i, _)| !built.is_weight(*i)).map(|(_, t)| t).collect();
        let input_shapes: Vec<Vec<i64>> =
            activations.iter().map(|t| t.shape().iter().map(|d| *d as i64).collect()).collect();
        let shapes: Vec<&[i64]> = input_shapes.iter().map(Vec::as_slice).collect();
        let output_shapes = executable.output_shapes(&shapes)?;
        let output_types: Vec<(Option<DType>, Vec<usize>)> = executable
            .plan()
            .outputs
            .iter()
            .zip(&output_shapes)
            .map(|(port, shape)| {
                (DType::from_name(&port.dtype), shape.iter().map(|d| usize::try_from(*d).unwrap_or(0)).collect())
            })
            .collect();
        let outputs = output_types
            .iter()
            .map(|(dtype, shape)| {
                let size = dtype.map_or(1, DType::size);
                Block::filled(shape.iter().product::<usize>() * size, fill, alignment(size))
            })
            .collect();
        Ok(Timed {
            executable,
            inputs: activations.iter().map(|t| Block::holding(t.bytes(), alignment(t.dtype().size()))).collect(),
            input_shapes,
            outputs,
            output_types,
        })
    }

    pub(super) fn run_once(&mut self) -> Result<(), RuntimeError> {
        let inputs: Vec<(&[u8], &[i64])> =
            self.inputs.iter().zip(&self.input_shapes).map(|(b, s)| (b.bytes(), s.as_slice())).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Block::bytes_mut).collect();
        self.executable.run(&inputs, &mut outputs)
    }

    /// What the last run left.
    pub(super) fn tensors(&self) -> Option<Vec<Tensor>> {
        self.outputs
            .iter()
            .zip(&self.output_types)
            .map(|(block, (dtype, shape))| Tensor::new((*dtype)?, shape.clone(), block.bytes().to_vec()))
            .collect()
    }
}
