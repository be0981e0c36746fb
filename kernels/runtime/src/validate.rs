//! What a plan must satisfy before any of it runs, and what follows from it: roots of aliases, accesses, lifetimes.
//!
//! Everything after this module may rely on these facts; a plan file is outside data until it has passed here.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use crate::arena::{Access, Life, lifetimes};
use crate::error::RuntimeError;
use crate::plan::{BufferId, GemmStep, KernelStep, PLAN_VERSION, Plan, Port, Step, Storage};
use crate::size::Size;

/// The target that this runtime executes.
pub const TARGET: &str = "cpu";

/// The steps that run at load, or those that run on each call.
#[derive(Debug)]
pub(crate) struct Phase {
    /// What its steps are called in errors.
    pub(crate) name: &'static str,
    pub(crate) at_load: bool,
    /// Roots that each step touches.
    pub(crate) accesses: Vec<Access>,
    /// Of every root that the steps write.
    pub(crate) lives: Vec<Option<Life>>,
}

/// Facts about a valid plan, by buffer index.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The buffer whose bytes each buffer names; itself unless it is an alias.
    pub(crate) roots: Vec<usize>,
    pub(crate) prepare: Phase,
    pub(crate) call: Phase,
}

fn malformed<T>(what: String) -> Result<T, RuntimeError> {
    Err(RuntimeError::Malformed(what))
}

/// Bytes of one element; `None` for a dtype that plans don't have.
pub(crate) fn element_bytes(dtype: &str) -> Option<usize> {
    match dtype {
        "bool" | "u8" | "i8" => Some(1),
        "u16" | "i16" | "f16" | "bf16" => Some(2),
        "u32" | "i32" | "f32" => Some(4),
        "u64" | "i64" | "f64" => Some(8),
        _ => None,
    }
}

/// Checks everything that can be checked without input shapes.
///
/// # Errors
/// The first thing that is wrong, by name and number.
pub(crate) fn validate(plan: &Plan) -> Result<Facts, RuntimeError> {
    if plan.version != PLAN_VERSION {
        return Err(RuntimeError::Version { found: plan.version, supported: PLAN_VERSION });
    }
    if plan.target != TARGET {
        return Err(RuntimeError::Target { found: plan.target.clone(), supported: TARGET });
    }
    let roots = roots(plan)?;
    check_ports(plan, &roots)?;
    check_buffers(plan)?;
    for module in &plan.modules {
        check_module_path(&module.file)?;
    }
    check_symbols(plan)?;
    let checker = Checker { plan, roots: &roots };
    let prepare = checker.phase(true, &plan.prepare, &[])?;
    let call = checker.phase(false, &plan.steps, &prepare.lives)?;
    Ok(Facts { roots, prepare, call })
}

fn roots(plan: &Plan) -> Result<Vec<usize>, RuntimeError> {
    let mut roots = Vec::with_capacity(plan.buffers.len());
    for start in 0..plan.buffers.len() {
        let mut at = start;
        let mut hops = 0;
        while let Some(Storage::Alias { of }) = plan.buffers.get(at).map(|buffer| &buffer.storage) {
            at = of.0 as usize;
            hops += 1;
            if hops > plan.buffers.len() {
                return malformed(format!("buffer {start} is an alias of itself"));
            }
        }
        if at >= plan.buffers.len() {
            return malformed(format!("buffer {start} is an alias of buffer {at}, which does not exist"));
        }
        roots.push(at);
    }
    Ok(roots)
}

fn check_ports(plan: &Plan, roots: &[usize]) -> Result<(), RuntimeError> {
    let root_of = |kind: &str, port: &Port| {
        if element_bytes(&port.dtype).is_none() {
            return malformed(format!("{kind} '{}' has unknown dtype '{}'", port.name, port.dtype));
        }
        match roots.get(port.buffer.0 as usize) {
            Some(root) => Ok(*root),
            None => malformed(format!("{kind} '{}' names buffer {}, which does not exist", port.name, port.buffer.0)),
        }
    };
    for (index, port) in plan.inputs.iter().enumerate() {
        root_of("input", port)?;
        if !matches!(plan.buffers[port.buffer.0 as usize].storage, Storage::Input { index: i } if i as usize == index) {
            return malformed(format!(
                "buffer {} of input '{}' is not stored as input {index}",
                port.buffer.0, port.name
            ));
        }
    }
    for port in &plan.outputs {
        root_of("output", port)?;
    }
    let mut taken = BTreeSet::new();
    for (at, buffer) in plan.buffers.iter().enumerate() {
        let (kind, index, fits) = match &buffer.storage {
            Storage::Input { index } => {
                ("input", *index, plan.inputs.get(*index as usize).is_some_and(|port| port.buffer.0 as usize == at))
            }
            Storage::Output { index } => {
                let port = plan.outputs.get(*index as usize);
                ("output", *index, port.is_some_and(|port| roots[port.buffer.0 as usize] == at))
            }
            _ => continue,
        };
        if !fits {
            return malformed(format!("buffer {at} is stored as {kind} {index}, which is not a port of that buffer"));
        }
        if !taken.insert((kind, index)) {
            return malformed(format!("two buffers are stored as {kind} {index}"));
        }
    }
    Ok(())
}

fn check_buffers(plan: &Plan) -> Result<(), RuntimeError> {
    for (at, buffer) in plan.buffers.iter().enumerate() {
        let constant = buffer.bytes.as_const();
        if constant.is_some_and(|bytes| bytes < 0) {
            return malformed(format!("buffer {at} has {} bytes", buffer.bytes));
        }
        if matches!(buffer.storage, Storage::Weight { .. } | Storage::Prepared) && constant.is_none() {
            return malformed(format!(
                "buffer {at} is filled at load, but its size '{}' depends on inputs",
                buffer.bytes
            ));
        }
    }
    Ok(())
}

/// A module lies inside the plan's folder, so that the folder can be moved and nothing else is loaded.
fn check_module_path(file: &str) -> Result<(), RuntimeError> {
    let path = Path::new(file);
    let inside = !file.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    if inside { Ok(()) } else { malformed(format!("module '{file}' is not a path inside the plan's folder")) }
}

fn sizes_of(step: &Step) -> Vec<&Size> {
    match step {
        Step::Kernel(kernel) => kernel.sizes.iter().chain([&kernel.grid, &kernel.grain, &kernel.scratch]).collect(),
        Step::Gemm(gemm) => {
            let matrices = [&gemm.a, &gemm.b, &gemm.c];
            let strides = matrices
                .into_iter()
                .flat_map(|matrix| matrix.batch_strides.iter().chain([&matrix.row_stride, &matrix.column_stride]));
            gemm.batch.iter().chain([&gemm.m, &gemm.n, &gemm.k]).chain(strides).collect()
        }
        Step::Copy { .. } => Vec::new(),
    }
}

/// Every symbol is a whole dimension of some input; steps that run at load name none.
fn check_symbols(plan: &Plan) -> Result<(), RuntimeError> {
    let bound: BTreeSet<&str> = plan.inputs.iter().flat_map(|port| &port.shape).filter_map(Size::as_symbol).collect();
    let ports = plan.inputs.iter().chain(&plan.outputs).flat_map(|port| &port.shape);
    let buffers = plan.buffers.iter().map(|buffer| &buffer.bytes);
    let steps = plan.steps.iter().flat_map(sizes_of);
    for size in ports.chain(buffers).chain(steps) {
        let mut symbols = BTreeSet::new();
        size.symbols(&mut symbols);
        if let Some(symbol) = symbols.iter().find(|symbol| !bound.contains(symbol.as_str())) {
            return malformed(format!("size '{size}' names symbol '{symbol}', which is no dimension of an input"));
        }
    }
    match plan.prepare.iter().flat_map(sizes_of).find(|size| size.as_const().is_none()) {
        Some(size) => malformed(format!("size '{size}' of a prepare step is not constant")),
        None => Ok(()),
    }
}

struct Checker<'a> {
    plan: &'a Plan,
    roots: &'a [usize],
}

impl Checker<'_> {
    /// Checks `steps`, before which the roots with a life in `ready` hold prepared bytes.
    fn phase(&self, at_load: bool, steps: &[Step], ready: &[Option<Life>]) -> Result<Phase, RuntimeError> {
        let name = if at_load { "prepare step" } else { "step" };
        let mut written = BTreeSet::new();
        let mut accesses = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let at = || format!("{name} {index} ({})", label(step));
            let access = self.access(step, &at)?;
            for &root in &access.reads {
                let (readable, what) = match &self.plan.buffers[root].storage {
                    Storage::Weight { .. } => (true, ""),
                    Storage::Input { .. } => (!at_load, "belongs to a call"),
                    Storage::Prepared if at_load => (written.contains(&root), "has not been written yet"),
                    Storage::Prepared => (ready.get(root).is_some_and(Option::is_some), "is never prepared"),
                    _ => (written.contains(&root), "has not been written yet"),
                };
                if !readable {
                    return malformed(format!("{} reads buffer {root}, which {what}", at()));
                }
            }
            for (position, &root) in access.writes.iter().enumerate() {
                let writable = match &self.plan.buffers[root].storage {
                    Storage::Prepared => at_load,
                    Storage::Arena | Storage::Output { .. } => !at_load,
                    _ => false,
                };
                if !writable {
                    return malformed(format!("{} writes buffer {root}, which is read only there", at()));
                }
                if access.reads.contains(&root) || access.writes[..position].contains(&root) {
                    return malformed(format!("{} uses buffer {root} twice, and writes it", at()));
                }
                written.insert(root);
            }
            accesses.push(access);
        }
        let mut kept: Vec<usize> = written.iter().copied().filter(|_| at_load).collect();
        if !at_load {
            for port in &self.plan.outputs {
                let root = self.roots[port.buffer.0 as usize];
                let filled = match &self.plan.buffers[root].storage {
                    Storage::Arena | Storage::Output { .. } => written.contains(&root),
                    Storage::Prepared => ready.get(root).is_some_and(Option::is_some),
                    _ => true,
                };
                if !filled {
                    return malformed(format!("no step writes output '{}'", port.name));
                }
                kept.push(root);
            }
        }
        let mut lives = lifetimes(self.plan.buffers.len(), &accesses, &kept);
        for (root, life) in lives.iter_mut().enumerate() {
            if !written.contains(&root) {
                *life = None;
            }
        }
        Ok(Phase { name, at_load, accesses, lives })
    }

    fn access(&self, step: &Step, at: &dyn Fn() -> String) -> Result<Access, RuntimeError> {
        let (reads, writes) = match step {
            Step::Kernel(kernel) => {
                self.check_kernel(kernel, at)?;
                (kernel.reads.clone(), kernel.writes.clone())
            }
            Step::Gemm(gemm) => {
                check_gemm(gemm, at)?;
                (vec![gemm.a.buffer, gemm.b.buffer], vec![gemm.c.buffer])
            }
            Step::Copy { from, to } => (vec![*from], vec![*to]),
        };
        let resolve = |ids: Vec<BufferId>| -> Result<Vec<usize>, RuntimeError> {
            let root = |id: BufferId| match self.roots.get(id.0 as usize) {
                Some(root) => Ok(*root),
                None => malformed(format!("{} names buffer {}, which does not exist", at(), id.0)),
            };
            ids.into_iter().map(root).collect()
        };
        Ok(Access { reads: resolve(reads)?, writes: resolve(writes)? })
    }

    fn check_kernel(&self, kernel: &KernelStep, at: &dyn Fn() -> String) -> Result<(), RuntimeError> {
        if kernel.module as usize >= self.plan.modules.len() {
            return malformed(format!("{} names module {}, which does not exist", at(), kernel.module));
        }
        if kernel.symbol.is_empty() || kernel.symbol.contains('\0') {
            return malformed(format!("{} has no valid symbol", at()));
        }
        for (name, size) in [("grid", &kernel.grid), ("scratch", &kernel.scratch)] {
            if size.as_const().is_some_and(|value| value < 0) {
                return malformed(format!("{} has a negative {name}", at()));
            }
        }
        Ok(())
    }
}

fn check_gemm(gemm: &GemmStep, at: &dyn Fn() -> String) -> Result<(), RuntimeError> {
    if !matches!(gemm.dtype.as_str(), "f32" | "f64") {
        return malformed(format!("{} multiplies dtype '{}'", at(), gemm.dtype));
    }
    for (name, matrix) in [("a", &gemm.a), ("b", &gemm.b), ("c", &gemm.c)] {
        if matrix.batch_strides.len() != gemm.batch.len() {
            return malformed(format!(
                "{}: {name} has {} batch strides for {} batch axes",
                at(),
                matrix.batch_strides.len(),
                gemm.batch.len()
            ));
        }
    }
    Ok(())
}

/// What a step is called in errors and profiles.
pub(crate) fn label(step: &Step) -> &str {
    match step {
        Step::Kernel(kernel) => &kernel.label,
        Step::Gemm(gemm) => &gemm.label,
        Step::Copy { .. } => "copy",
    }
}
