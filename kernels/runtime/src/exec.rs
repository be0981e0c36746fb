//! Loading a plan, and running it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::RuntimeError;
use crate::instance::{Call, Checks, Instance, Parts};
use crate::modules::{KernelFunction, Modules};
use crate::plan::{Plan, Port};
use crate::pool::Pool;
use crate::program::count;
use crate::size::{Size, Symbols};
use crate::validate::{Facts, element_bytes, label, validate};
use crate::weights::{self, Source, Weight};

/// Sets of input shapes whose instances are kept.
const KEPT_SHAPES: usize = 8;

/// How to execute a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads of a call, the calling one included; 0 for one on each core. Executables with equal counts share a pool.
    pub threads: usize,
    /// Fill the arena, scratch and outputs with 0xFF (NaN) before they are first written in a call, so that what a kernel
    /// forgets to write, or reads unwritten, shows.
    pub poison: bool,
    /// Put canaries around every buffer of the arena, output and scratch, and check them after each step, as well as that
    /// the step changed nothing but what it writes. Slow: meant for validation.
    pub guard: bool,
}

/// The nanoseconds that a step took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The step's label; `copy` for copies, `return NAME` for an output that is another buffer.
    pub label: String,
    pub nanoseconds: u64,
}

/// A loaded plan. Calls from several threads are safe; their steps take turns on the pool.
pub struct Executable {
    plan: Plan,
    facts: Facts,
    functions: Vec<Option<KernelFunction>>,
    /// Addresses of weights and prepared buffers, by buffer.
    loaded: Vec<Option<*mut u8>>,
    pool: Arc<Pool>,
    checks: Checks,
    cache: Mutex<Cache>,
    // What the addresses and functions above point into.
    _weights: Vec<Option<Weight>>,
    _prepared: Instance,
    _modules: Modules,
}

// SAFETY: `loaded` points into weights and prepared buffers, which live as long as the executable and are not written after
// loading; the functions are of libraries that it keeps; the rest is Send and Sync, instances behind a lock.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// Idle instances by input shapes, least recently used first out.
#[derive(Default)]
struct Cache {
    entries: Vec<Entry>,
    clock: u64,
}

struct Entry {
    shapes: Box<[Box<[i64]>]>,
    idle: Vec<Instance>,
    used: u64,
}

impl Executable {
    /// Reads the plan `plan_file` in `folder`, maps its `weights.safetensors`, opens its kernel modules, and runs its
    /// prepare steps.
    ///
    /// # Errors
    /// Anything that is missing, malformed or doesn't fit together, by name.
    pub fn load(folder: &Path, plan_file: &str, options: Options) -> Result<Arc<Executable>, RuntimeError> {
        let path = folder.join(plan_file);
        let text = std::fs::read(&path).map_err(|source| RuntimeError::Io { path: path.clone(), source })?;
        let plan = serde_json::from_slice(&text)
            .map_err(|error| RuntimeError::Syntax { path: path.clone(), reason: error.to_string() })?;
        Executable::assemble(plan, &Source::Folder(folder), folder, options)
    }

    /// As [`Executable::load`], from a plan and weights in memory; only modules are read from `folder`.
    ///
    /// # Errors
    /// As [`Executable::load`].
    pub fn new(
        plan: Plan,
        weights: &HashMap<String, Bytes>,
        folder: &Path,
        options: Options,
    ) -> Result<Arc<Executable>, RuntimeError> {
        Executable::assemble(plan, &Source::Memory(weights), folder, options)
    }

    fn assemble(
        plan: Plan,
        source: &Source<'_>,
        folder: &Path,
        options: Options,
    ) -> Result<Arc<Executable>, RuntimeError> {
        let facts = validate(&plan)?;
        // Absolute, so that the system's library search path has no say in which module is opened.
        let absolute =
            std::path::absolute(folder).map_err(|source| RuntimeError::Io { path: folder.to_owned(), source })?;
        let weights = weights::load(&plan, source)?;
        let modules = Modules::open(&plan, &absolute)?;
        let functions = modules.resolve(&plan.steps)?;
        let pool = Pool::shared(options.threads);
        let checks = Checks { poison: options.poison, guard: options.guard };
        let address = |weight: &Weight| weight.address().cast_mut();
        let mut loaded: Vec<Option<*mut u8>> = weights.iter().map(|weight| weight.as_ref().map(address)).collect();
        let parts = Parts { plan: &plan, facts: &facts, loaded: &loaded, threads: pool.threads(), checks };
        let at_load = modules.resolve(&plan.prepare)?;
        let mut prepared = Instance::new(&parts, &facts.prepare, &plan.prepare, &at_load, &Symbols::new())?;
        let nothing = Call { input: |_| std::ptr::null(), output: |_| std::ptr::null_mut() };
        // SAFETY: prepare steps touch weights and prepared buffers only (`validate`), so no address of a call is used;
        // kernels are trusted as the plan is.
        unsafe { prepared.run(&pool, &facts.prepare, &plan.prepare, &nothing, None)? };
        for (root, address) in prepared.placed() {
            if let Some(slot) = loaded.get_mut(root) {
                *slot = Some(address);
            }
        }
        Ok(Arc::new(Executable {
            plan,
            facts,
            functions,
            loaded,
            pool,
            checks,
            cache: Mutex::default(),
            _weights: weights,
            _prepared: prepared,
            _modules: modules,
        }))
    }

    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Threads of a call, the calling one included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The shape of each output for these input shapes.
    ///
    /// # Errors
    /// Shapes that the plan doesn't accept: which input and axis, what was expected and what came.
    pub fn output_shapes(&self, shapes: &[&[i64]]) -> Result<Vec<Vec<i64>>, RuntimeError> {
        check_count("inputs", self.plan.inputs.len(), shapes.len())?;
        self.output_shapes_of(&|index| shapes[index])
    }

    pub(crate) fn output_shapes_of<'s>(
        &self,
        shape_of: &dyn Fn(usize) -> &'s [i64],
    ) -> Result<Vec<Vec<i64>>, RuntimeError> {
        let symbols = self.bind(shape_of)?;
        let shape = |port: &Port| {
            let extent = |size: &Size| {
                let at = || format!("shape of output '{}'", port.name);
                count(size, &symbols, &at).map(|extent| extent as i64)
            };
            port.shape.iter().map(extent).collect()
        };
        self.plan.outputs.iter().map(shape).collect()
    }

    /// Bytes of arena that a call with these input shapes uses.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn arena_bytes(&self, shapes: &[&[i64]]) -> Result<usize, RuntimeError> {
        check_count("inputs", self.plan.inputs.len(), shapes.len())?;
        let shape_of = |index: usize| shapes[index];
        let instance = self.checkout(&shape_of)?;
        let bytes = instance.arena_bytes();
        self.give_back(instance, &shape_of);
        Ok(bytes)
    }

    /// Runs the plan: each input as (bytes, shape), each output as its bytes, dense and row-major. A call with shapes that
    /// one of the last few calls had allocates nothing outside of the GEMM library.
    ///
    /// # Errors
    /// Shapes that the plan doesn't accept, blocks of other lengths or alignment than the plan's, no memory, or, with
    /// [`Options::guard`], the step that broke its contract.
    pub fn run(&self, inputs: &[(&[u8], &[i64])], outputs: &mut [&mut [u8]]) -> Result<(), RuntimeError> {
        let instance = self.run_slices(inputs, outputs, None)?;
        self.give_back(instance, &|index| inputs[index].1);
        Ok(())
    }

    /// As [`Executable::run`], and how long each step took.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_profiled(
        &self,
        inputs: &[(&[u8], &[i64])],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<StepTime>, RuntimeError> {
        let mut times = Vec::with_capacity(self.plan.steps.len() + self.plan.outputs.len());
        let instance = self.run_slices(inputs, outputs, Some(&mut times))?;
        let steps = self.plan.steps.iter().map(|step| label(step).to_owned());
        let name = |output: usize| self.plan.outputs.get(output).map_or("", |port| &port.name);
        let returns = instance.returned_outputs().map(|output| format!("return {}", name(output)));
        let named = steps.chain(returns).zip(times);
        let profile = named.map(|(label, nanoseconds)| StepTime { label, nanoseconds }).collect();
        self.give_back(instance, &|index| inputs[index].1);
        Ok(profile)
    }

    /// Checks the blocks, runs, and returns the instance that ran.
    fn run_slices(
        &self,
        inputs: &[(&[u8], &[i64])],
        outputs: &mut [&mut [u8]],
        times: Option<&mut Vec<u64>>,
    ) -> Result<Instance, RuntimeError> {
        check_count("inputs", self.plan.inputs.len(), inputs.len())?;
        check_count("outputs", self.plan.outputs.len(), outputs.len())?;
        let mut instance = self.checkout(&|index| inputs[index].1)?;
        for (port, ((bytes, _), expected)) in self.plan.inputs.iter().zip(inputs.iter().zip(&instance.input_bytes)) {
            check_block("input", port, bytes, *expected)?;
        }
        for (port, (bytes, expected)) in self.plan.outputs.iter().zip(outputs.iter().zip(&instance.output_bytes)) {
            check_block("output", port, bytes, *expected)?;
        }
        let first = outputs.as_mut_ptr();
        let call = Call {
            input: |index: usize| inputs[index].0.as_ptr(),
            // SAFETY: `index` is that of an output of the plan, of which there are as many as `outputs` has elements, and
            // `outputs` is borrowed exclusively until the call is over.
            output: |index: usize| unsafe { (*first.add(index)).as_mut_ptr() },
        };
        // SAFETY: lengths and alignments were checked above; `&mut` slices overlap nothing.
        unsafe { instance.run(&self.pool, &self.facts.call, &self.plan.steps, &call, times)? };
        Ok(instance)
    }

    /// Runs the plan on raw memory: each input as (address, shape), each output's address.
    ///
    /// # Errors
    /// As [`Executable::run`], except that lengths can't be checked; a null address is accepted for an empty block.
    ///
    /// # Safety
    /// Each input is valid for reads, and each output for writes, of as many bytes as its shape and dtype have, aligned to
    /// the dtype. No output overlaps another block.
    pub unsafe fn run_raw(&self, inputs: &[(*const u8, &[i64])], outputs: &[*mut u8]) -> Result<(), RuntimeError> {
        check_count("inputs", self.plan.inputs.len(), inputs.len())?;
        check_count("outputs", self.plan.outputs.len(), outputs.len())?;
        let call = Call { input: |index: usize| inputs[index].0, output: |index: usize| outputs[index] };
        // SAFETY: the caller's promise.
        unsafe { self.run_call(&|index| inputs[index].1, &call) }
    }

    /// # Safety
    /// As [`Executable::run_raw`], for the shapes and addresses that the functions give for each input and output.
    pub(crate) unsafe fn run_call<'s, I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8>(
        &self,
        shape_of: &dyn Fn(usize) -> &'s [i64],
        call: &Call<I, O>,
    ) -> Result<(), RuntimeError> {
        let mut instance = self.checkout(shape_of)?;
        for (index, (port, bytes)) in self.plan.inputs.iter().zip(&instance.input_bytes).enumerate() {
            check_address("input", port, (call.input)(index), *bytes)?;
        }
        for (index, (port, bytes)) in self.plan.outputs.iter().zip(&instance.output_bytes).enumerate() {
            check_address("output", port, (call.output)(index), *bytes)?;
        }
        // SAFETY: the caller's promise.
        unsafe { instance.run(&self.pool, &self.facts.call, &self.plan.steps, call, None)? };
        self.give_back(instance, shape_of);
        Ok(())
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // Entries are whole at every point, so a panic elsewhere doesn't spoil them.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle instance for these shapes, or a new one.
    fn checkout<'s>(&self, shape_of: &dyn Fn(usize) -> &'s [i64]) -> Result<Instance, RuntimeError> {
        if let Some(instance) = self.cache().find(shape_of).and_then(|entry| entry.idle.pop()) {
            return Ok(instance);
        }
        let symbols = self.bind(shape_of)?;
        let parts = Parts {
            plan: &self.plan,
            facts: &self.facts,
            loaded: &self.loaded,
            threads: self.pool.threads(),
            checks: self.checks,
        };
        Instance::new(&parts, &self.facts.call, &self.plan.steps, &self.functions, &symbols)
    }

    fn give_back<'s>(&self, instance: Instance, shape_of: &dyn Fn(usize) -> &'s [i64]) {
        let mut cache = self.cache();
        if let Some(entry) = cache.find(shape_of) {
            entry.idle.push(instance);
            return;
        }
        let shapes = (0..self.plan.inputs.len()).map(|index| shape_of(index).into()).collect();
        let evicted = cache.insert(shapes, instance);
        drop(cache);
        // Freeing an arena takes time that other callers needn't wait for.
        drop(evicted);
    }

    /// The symbols that these input shapes bind.
    fn bind<'s>(&self, shape_of: &dyn Fn(usize) -> &'s [i64]) -> Result<Symbols, RuntimeError> {
        let mut symbols = Symbols::new();
        for (index, port) in self.plan.inputs.iter().enumerate() {
            let shape = shape_of(index);
            if shape.len() != port.shape.len() {
                let (expected, got) = (port.shape.len(), shape.len());
                return Err(RuntimeError::Rank { input: port.name.clone(), expected, got });
            }
            for (axis, (size, &got)) in port.shape.iter().zip(shape).enumerate() {
                let wrong = |expected: String| RuntimeError::Axis { input: port.name.clone(), axis, expected, got };
                if got < 0 {
                    return Err(wrong("a size of at least 0".into()));
                }
                let Some(symbol) = size.as_symbol() else { continue };
                match symbols.get(symbol) {
                    Some(bound) if *bound != got => return Err(wrong(format!("{symbol} = {bound}"))),
                    Some(_) => {}
                    None => {
                        symbols.insert(symbol.to_owned(), got);
                    }
                }
            }
        }
        for (index, port) in self.plan.inputs.iter().enumerate() {
            for (axis, (size, &got)) in port.shape.iter().zip(shape_of(index)).enumerate() {
                let at = || format!("input '{}' axis {axis}", port.name);
                let value = size.eval(&symbols).map_err(|source| RuntimeError::Size { at: at(), source })?;
                if value != got {
                    let constant = size.as_const().is_some();
                    let expected = if constant { value.to_string() } else { format!("{size} = {value}") };
                    return Err(RuntimeError::Axis { input: port.name.clone(), axis, expected, got });
                }
            }
        }
        Ok(symbols)
    }
}

impl Cache {
    fn find<'s>(&mut self, shape_of: &dyn Fn(usize) -> &'s [i64]) -> Option<&mut Entry> {
        self.clock += 1;
        let same =
            |entry: &&mut Entry| entry.shapes.iter().enumerate().all(|(index, shape)| **shape == *shape_of(index));
        let entry = self.entries.iter_mut().find(same)?;
        entry.used = self.clock;
        Some(entry)
    }

    /// Adds an entry; returns the least recently used one if there were too many.
    fn insert(&mut self, shapes: Box<[Box<[i64]>]>, instance: Instance) -> Option<Entry> {
        let oldest = (0..self.entries.len()).min_by_key(|at| self.entries[*at].used);
        let evicted = oldest.filter(|_| self.entries.len() >= KEPT_SHAPES).map(|at| self.entries.swap_remove(at));
        self.entries.push(Entry { shapes, idle: vec![instance], used: self.clock });
        evicted
    }
}

fn check_count(kind: &'static str, expected: usize, got: usize) -> Result<(), RuntimeError> {
    if expected == got { Ok(()) } else { Err(RuntimeError::Count { kind, expected, got }) }
}

fn check_block(kind: &'static str, port: &Port, bytes: &[u8], expected: usize) -> Result<(), RuntimeError> {
    if bytes.len() != expected {
        return Err(RuntimeError::Length { kind, name: port.name.clone(), expected, got: bytes.len() });
    }
    check_address(kind, port, bytes.as_ptr(), expected)
}

fn check_address(kind: &'static str, port: &Port, address: *const u8, bytes: usize) -> Result<(), RuntimeError> {
    let alignment = element_bytes(&port.dtype).unwrap_or(1);
    if bytes > 0 && address.is_null() {
        return Err(RuntimeError::Argument(format!("{kind} '{}' is null", port.name)));
    }
    if bytes > 0 && !address.addr().is_multiple_of(alignment) {
        return Err(RuntimeError::Alignment { kind, name: port.name.clone(), alignment });
    }
    Ok(())
}
