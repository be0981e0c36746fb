//! From an assembled graph to something that runs: modules compiled (in parallel, cached), the plan pointed at them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use forge_runtime::exec::{Executable, Options};
use forge_runtime::plan::{Module, Plan};

use crate::assemble::Assembled;
use crate::compile::{Cache, CompileError, Compiler, Object};

/// A plan whose modules are files of the cache folder.
#[derive(Clone, Debug)]
pub struct Built {
    pub plan: Plan,
    /// One per module of the plan, in order.
    pub objects: Vec<Object>,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Runtime(#[from] forge_runtime::RuntimeError),
}

/// Compiles every module of `assembled`.
///
/// # Errors
/// The first module that does not compile.
pub fn build(assembled: &Assembled, compiler: &Compiler, cache: &Cache) -> Result<Built, CompileError> {
    let sources = &assembled.sources;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(sources.len().max(1));
    let next = AtomicUsize::new(0);
    let mut compiled: Vec<(usize, Result<Object, CompileError>)> = std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(source) = sources.get(at) else { return done };
                done.push((at, compiler.compile(source, cache)));
            }
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().flat_map(|h| h.join().unwrap_or_default()).collect()
    });
    compiled.sort_by_key(|(at, _)| *at);
    let objects = compiled.into_iter().map(|(_, object)| object).collect::<Result<Vec<Object>, CompileError>>()?;
    let mut plan = assembled.plan.clone();
    plan.modules = objects.iter().map(|o| Module { file: o.file(), hash: o.hash.clone() }).collect();
    Ok(Built { plan, objects })
}

/// Compiles and loads in one step; weights come from `assembled`.
///
/// # Errors
/// If a module does not compile or the plan does not load.
pub fn load(
    assembled: &Assembled,
    compiler: &Compiler,
    cache: &Cache,
    options: Options,
) -> Result<Arc<Executable>, BuildError> {
    let built = build(assembled, compiler, cache)?;
    let weights: HashMap<String, Bytes> =
        assembled.weights.iter().map(|(name, tensor)| (name.clone(), tensor.bytes().clone())).collect();
    Ok(Executable::new(built.plan, &weights, cache.folder(), options)?)
}
