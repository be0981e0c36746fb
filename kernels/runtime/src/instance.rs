//! A plan for one set of input shapes: its program, arena and scratch. One call at a time uses an instance.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::arena::{Block, Life, Placement, place};
use crate::error::RuntimeError;
use crate::guard::{BAND, Guarded, POISON, arm, damage, fingerprint, guarded_bytes};
use crate::memory::{Memory, align_up};
use crate::modules::KernelFunction;
use crate::plan::{Plan, Port, Step, Storage};
use crate::pool::Pool;
use crate::program::{Place, Program, Scratch, Sources, copy, count};
use crate::size::Symbols;
use crate::validate::{Facts, Phase, element_bytes, label};

/// Whether and how a run is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) poison: bool,
    pub(crate) guard: bool,
}

/// What an instance is built from.
pub(crate) struct Parts<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) facts: &'a Facts,
    /// Addresses of weights and prepared buffers, by buffer.
    pub(crate) loaded: &'a [Option<*mut u8>],
    pub(crate) threads: usize,
    pub(crate) checks: Checks,
}

pub(crate) struct Instance {
    /// Bytes of each input and output of a call; none at load.
    pub(crate) input_bytes: Vec<usize>,
    pub(crate) output_bytes: Vec<usize>,
    program: Program,
    arena: Memory,
    scratch: Scratch,
    /// Root buffers in the arena.
    placed: Vec<Guarded>,
    /// Outputs that steps don't write in place: (output, where its bytes are).
    returns: Vec<(usize, Place)>,
    checks: Checks,
    /// With `checks.guard`, what each step must leave alone: (root, place, bytes).
    untouched: Vec<Vec<(usize, Place, usize)>>,
}

// SAFETY: an instance owns its arena and scratch, and its other addresses are of memory that the executable keeps; it is
// used by one thread at a time, which need not be the one that built it.
unsafe impl Send for Instance {}

/// The caller's addresses in one call, by input and output.
pub(crate) struct Call<I, O> {
    pub(crate) input: I,
    pub(crate) output: O,
}

impl<I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8> Call<I, O> {
    fn address(&self, place: Place) -> *mut u8 {
        match place {
            Place::Fixed(address) => address,
            Place::Input(index) => (self.input)(index).cast_mut(),
            Place::Output(index) => (self.output)(index),
        }
    }
}

impl Instance {
    /// Resolves `steps` (those of `phase`) under `symbols` and allocates what they need.
    pub(crate) fn new(
        parts: &Parts<'_>,
        phase: &Phase,
        steps: &[Step],
        functions: &[Option<KernelFunction>],
        symbols: &Symbols,
    ) -> Result<Instance, RuntimeError> {
        let Parts { plan, facts, loaded, threads, checks } = *parts;
        let bytes = buffer_bytes(plan, facts, phase, symbols)?;
        let owned = |root: usize| match plan.buffers[root].storage {
            Storage::Arena | Storage::Prepared => true,
            // So that there is room for canaries, guarded outputs are written here first.
            Storage::Output { .. } => checks.guard,
            _ => false,
        };
        let lives = phase.lives.iter().enumerate().filter_map(|(root, life)| Some((root, (*life)?)));
        let lives: Vec<(usize, Life)> = lives.filter(|(root, _)| owned(*root)).collect();
        let Placement { offsets, bytes: arena_bytes } = arrange(&lives, &bytes, checks.guard)?;
        let arena = Memory::new(arena_bytes)?;
        let band = if checks.guard { BAND } else { 0 };
        let placed: Vec<Guarded> = lives
            .iter()
            .zip(offsets)
            .map(|(&(root, life), offset)| Guarded {
                root,
                life,
                start: arena.address().wrapping_add(offset + band),
                bytes: bytes[root],
            })
            .collect();
        let places = places(plan, facts, loaded, &placed, arena.address());
        let sources = Sources { phase: phase.name, steps, functions, symbols, places: &places, bytes: &bytes, threads };
        let program = Program::build(&sources)?;
        let scratch = scratch(program.scratch_bytes(), threads, checks.guard)?;
        let untouched = if checks.guard { untouched(phase, &placed, &places, &bytes) } else { Vec::new() };
        let port_bytes = |ports: &[Port]| {
            ports.iter().filter(|_| !phase.at_load).map(|port| bytes[port.buffer.0 as usize]).collect()
        };
        let returns = plan.outputs.iter().enumerate().filter_map(|(index, port)| {
            let place = places[port.buffer.0 as usize];
            (!phase.at_load && place != Place::Output(index)).then_some((index, place))
        });
        Ok(Instance {
            input_bytes: port_bytes(&plan.inputs),
            output_bytes: port_bytes(&plan.outputs),
            returns: returns.collect(),
            program,
            arena,
            scratch,
            placed,
            checks,
            untouched,
        })
    }

    /// Root buffers in the arena and their addresses, valid while the instance lives.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (usize, *mut u8)> {
        self.placed.iter().map(|placed| (placed.root, placed.start))
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Runs all steps, then copies outputs that are other buffers. `times`, if given, gets the nanoseconds of each step and
    /// then of each such copy.
    ///
    /// # Errors
    /// With guards, the first step that broke its contract.
    ///
    /// # Safety
    /// The addresses of `call` are valid for `input_bytes` reads and `output_bytes` writes, aligned for their dtypes;
    /// outputs overlap nothing; the plan's kernels keep to their contract (checked runs survive small breaches).
    pub(crate) unsafe fn run<I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8>(
        &mut self,
        pool: &Pool,
        phase: &Phase,
        steps: &[Step],
        call: &Call<I, O>,
        mut times: Option<&mut Vec<u64>>,
    ) -> Result<(), RuntimeError> {
        self.program.bind(&call.input, &call.output);
        let checked = self.checks != Checks::default();
        if self.checks.poison {
            // SAFETY: the arena is ours, outputs are the caller's promise.
            unsafe { self.poison_all(call) };
        }
        let mut timed = |work: &mut dyn FnMut()| match &mut times {
            None => work(),
            Some(times) => {
                let start = Instant::now();
                work();
                times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
        };
        for index in 0..self.program.len() {
            let before = if checked { self.before_step(index, call) } else { Vec::new() };
            // SAFETY: `bind` filled in the caller's addresses; the plan is valid (`validate`), so reads and writes are
            // disjoint; scratch was sized for the program and this pool.
            timed(&mut || unsafe { self.program.run_step(index, pool, &self.scratch) });
            if checked {
                let at = || format!("{} {index} ({})", phase.name, steps.get(index).map_or("", label));
                self.after_step(index, call, &before).map_err(|what| RuntimeError::Guard { at: at(), what })?;
            }
        }
        for &(output, place) in &self.returns {
            let (from, to) = (call.address(place), (call.output)(output));
            // SAFETY: `from` holds the output's bytes (equal sizes, `buffer_bytes`); outputs overlap nothing.
            timed(&mut || unsafe { copy(pool, from, to, self.output_bytes[output]) });
        }
        Ok(())
    }

    /// Names of the copies after the last step, in order.
    pub(crate) fn returned_outputs(&self) -> impl Iterator<Item = usize> {
        self.returns.iter().map(|(output, _)| *output)
    }

    /// # Safety
    /// As [`Instance::run`].
    unsafe fn poison_all<I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8>(&self, call: &Call<I, O>) {
        // SAFETY: the whole arena is ours, and no step runs now.
        unsafe { std::ptr::write_bytes(self.arena.address(), POISON, self.arena.len()) };
        for (index, bytes) in self.output_bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::write_bytes((call.output)(index), POISON, *bytes) };
        }
    }

    /// Prepares the memory that step `index` may write for the first time, and remembers what it must leave alone.
    fn before_step<I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8>(
        &self,
        index: usize,
        call: &Call<I, O>,
    ) -> Vec<u64> {
        let scratch_bytes = self.program.step_scratch(index);
        let born = self.placed.iter().filter(|placed| placed.life.first == index);
        let blocks = born.map(|placed| (placed.start, placed.bytes));
        for (start, bytes) in blocks.chain(self.scratch.starts().map(|start| (start, scratch_bytes))) {
            if self.checks.poison {
                // SAFETY: the block is in our arena or scratch, and no step runs now.
                unsafe { std::ptr::write_bytes(start, POISON, bytes) };
            }
            if self.checks.guard {
                // SAFETY: with guards, blocks are laid out with `guarded_bytes` (`arrange`, `scratch`).
                unsafe { arm(start, bytes) };
            }
        }
        self.fingerprints(index, call)
    }

    fn fingerprints<I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8>(
        &self,
        index: usize,
        call: &Call<I, O>,
    ) -> Vec<u64> {
        let hash = |&(_, place, bytes): &(usize, Place, usize)| {
            // An empty block may be null.
            if bytes == 0 {
                return 0;
            }
            // SAFETY: the place holds `bytes` initialised bytes: the arena is zeroed at first, the rest is the caller's
            // promise or loaded. No step runs now.
            fingerprint(unsafe { std::slice::from_raw_parts(call.address(place), bytes) })
        };
        self.untouched.get(index).map(|places| places.iter().map(hash).collect()).unwrap_or_default()
    }

    fn after_step<I: Fn(usize) -> *const u8, O: Fn(usize) -> *mut u8>(
        &self,
        index: usize,
        call: &Call<I, O>,
        before: &[u64],
    ) -> Result<(), String> {
        if !self.checks.guard {
            return Ok(());
        }
        let scratch_bytes = self.program.step_scratch(index);
        let alive = self.placed.iter().filter(|placed| placed.life.contains(index));
        let buffers = alive.map(|placed| (placed.start, placed.bytes, format!("buffer {}", placed.root)));
        let scratch = self.scratch.starts().map(|start| (start, scratch_bytes, "its scratch".to_owned()));
        for (start, bytes, name) in buffers.chain(scratch) {
            // SAFETY: the bands were written by `before_step`, of this step or the one that the buffer's life began with.
            if let Some(offset) = unsafe { damage(start, bytes) } {
                return Err(format!("wrote out of bounds: at byte {offset} of {name}, which has {bytes} bytes"));
            }
        }
        let after = self.fingerprints(index, call);
        match before.iter().zip(&after).position(|(before, after)| before != after) {
            Some(at) => Err(format!("changed buffer {}, which it does not write", self.untouched[index][at].0)),
            None => Ok(()),
        }
    }
}

/// The value of every buffer's size, once it is known that aliases and ports agree with them.
fn buffer_bytes(plan: &Plan, facts: &Facts, phase: &Phase, symbols: &Symbols) -> Result<Vec<usize>, RuntimeError> {
    let mut bytes = Vec::with_capacity(plan.buffers.len());
    for (at, buffer) in plan.buffers.iter().enumerate() {
        // What depends on inputs isn't touched at load.
        let skipped = phase.at_load && buffer.bytes.as_const().is_none();
        bytes.push(if skipped { 0 } else { count(&buffer.bytes, symbols, &|| format!("buffer {at}"))? });
    }
    if phase.at_load {
        return Ok(bytes);
    }
    for (at, root) in facts.roots.iter().enumerate() {
        if bytes[at] != bytes[*root] {
            let what =
                format!("buffer {at} has {} bytes, but is an alias of buffer {root} of {}", bytes[at], bytes[*root]);
            return Err(RuntimeError::Malformed(what));
        }
    }
    for port in plan.inputs.iter().chain(&plan.outputs) {
        let mut expected = element_bytes(&port.dtype);
        for size in &port.shape {
            let extent = count(size, symbols, &|| format!("shape of '{}'", port.name))?;
            expected = expected.and_then(|bytes| bytes.checked_mul(extent));
        }
        let held = bytes[port.buffer.0 as usize];
        if expected != Some(held) {
            let what =
                format!("'{}' of {} {:?} does not fill its buffer of {held} bytes", port.name, port.dtype, port.shape);
            return Err(RuntimeError::Malformed(what));
        }
    }
    Ok(bytes)
}

fn arrange(lives: &[(usize, Life)], bytes: &[usize], guard: bool) -> Result<Placement, RuntimeError> {
    let block = |&(root, life): &(usize, Life)| {
        let needed = if guard { guarded_bytes(bytes[root]) } else { align_up(bytes[root]) };
        needed.map(|bytes| Block { life, bytes })
    };
    let blocks: Option<Vec<Block>> = lives.iter().map(block).collect();
    blocks.and_then(|blocks| place(&blocks)).ok_or(RuntimeError::OutOfMemory { bytes: usize::MAX })
}

fn places(plan: &Plan, facts: &Facts, loaded: &[Option<*mut u8>], placed: &[Guarded], nowhere: *mut u8) -> Vec<Place> {
    let mut own: Vec<Place> = Vec::with_capacity(plan.buffers.len());
    for (at, buffer) in plan.buffers.iter().enumerate() {
        own.push(match (&buffer.storage, loaded.get(at).copied().flatten()) {
            (_, Some(address)) => Place::Fixed(address),
            (Storage::Input { index }, _) => Place::Input(*index as usize),
            (Storage::Output { index }, _) => Place::Output(*index as usize),
            // Placed below, or never touched by a step.
            _ => Place::Fixed(nowhere),
        });
    }
    for block in placed {
        own[block.root] = Place::Fixed(block.start);
    }
    facts.roots.iter().map(|root| own[*root]).collect()
}

fn scratch(bytes: usize, threads: usize, guard: bool) -> Result<Scratch, RuntimeError> {
    let stride = if guard { guarded_bytes(bytes) } else { align_up(bytes) };
    let total = stride.and_then(|stride| stride.checked_mul(threads));
    let (Some(stride), Some(total)) = (stride, total) else {
        return Err(RuntimeError::OutOfMemory { bytes });
    };
    Ok(Scratch { memory: Memory::new(total)?, stride, offset: if guard { BAND } else { 0 }, threads })
}

fn untouched(phase: &Phase, placed: &[Guarded], places: &[Place], bytes: &[usize]) -> Vec<Vec<(usize, Place, usize)>> {
    let of_step = |(index, access): (usize, &crate::arena::Access)| {
        let alive = placed.iter().filter(|placed| placed.life.contains(index)).map(|placed| placed.root);
        let mut roots: BTreeSet<usize> = access.reads.iter().copied().chain(alive).collect();
        access.writes.iter().for_each(|root| {
            roots.remove(root);
        });
        roots.into_iter().map(|root| (root, places[root], bytes[root])).collect()
    };
    phase.accesses.iter().enumerate().map(of_step).collect()
}
