//! A thread pool for loops that last microseconds.
//!
//! The caller publishes a job by bumping an epoch; workers spin for a while between jobs, so that back-to-back steps find
//! them awake, then park. A worker *joins* a job by counting itself into the state word, which works only while the job is
//! open; the caller closes it when no chunk is left and waits for those that joined. So a worker that the system hasn't
//! scheduled never holds up a job, and a sleeping one costs the caller at most one wake-up.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker looks for the next job before it parks: longer than the gap between two steps of a plan.
const SPIN: Duration = Duration::from_micros(40);
/// Chunks handed to each thread, for balance; more would cost more atomic operations.
const CHUNKS_PER_THREAD: usize = 4;

/// A loop body: `(begin, end, thread_index)`, `thread_index < threads()`, unique among concurrent calls of one job.
type Body<'a> = dyn Fn(usize, usize, usize) + Sync + 'a;

/// `threads - 1` workers and the calling thread.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs: the pool runs one job at a time.
    caller: Mutex<()>,
}

/// On its own cache lines, so that the counters don't slow each other.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// `epoch << 32 | OPEN? | joined workers`.
    state: Line<AtomicU64>,
    /// Next chunk to hand out.
    next: Line<AtomicUsize>,
    job: UnsafeCell<Option<Job>>,
    parked: Vec<Line<Parker>>,
    stopping: AtomicBool,
    started: AtomicUsize,
    /// What a worker's loop body panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the caller that holds `Pool::caller`, while the job is closed and nobody has joined, and
// read only by workers that joined; the state word's acquire/release operations order the two. The rest is Sync.
unsafe impl Sync for Shared {}
// SAFETY: the job's pointer is only followed between joining and leaving, while the caller keeps its target alive.
unsafe impl Send for Shared {}

struct Parker {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    grid: usize,
    chunk: usize,
    chunks: usize,
    /// Workers worth waking; others may join too if they are awake.
    helpers: usize,
}

const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

fn epoch_of(state: u64) -> u32 {
    (state >> 32) as u32
}

impl Pool {
    /// A pool of `threads` threads, the caller included; 0 means one for each available core. If the system refuses a
    /// thread, the pool is smaller.
    #[must_use]
    pub fn new(threads: usize) -> Pool {
        let threads = resolve(threads);
        let idle = || Line(Parker { asleep: AtomicBool::new(false), thread: Mutex::new(None) });
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            parked: (1..threads).map(|_| idle()).collect(),
            stopping: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        let mut workers = Vec::with_capacity(threads - 1);
        for index in 0..threads - 1 {
            let worker = Arc::clone(&shared);
            match thread::Builder::new().name(format!("forge-{}", index + 1)).spawn(move || worker.work(index)) {
                Ok(handle) => {
                    *lock(&shared.parked[index].0.thread) = Some(handle.thread().clone());
                    workers.push(handle);
                }
                Err(_) => break,
            }
        }
        // The first job shall find them all, and thread start-up allocates.
        while shared.started.load(Ordering::Acquire) < workers.len() {
            thread::yield_now();
        }
        Pool { shared, workers, caller: Mutex::new(()) }
    }

    /// The process's pool of that size, shared by all who hold it; started when the first asks.
    #[must_use]
    pub fn shared(threads: usize) -> Arc<Pool> {
        static POOLS: Mutex<Vec<(usize, Weak<Pool>)>> = Mutex::new(Vec::new());
        let threads = resolve(threads);
        let mut pools = lock(&POOLS);
        pools.retain(|(_, pool)| pool.strong_count() > 0);
        if let Some(pool) = pools.iter().find(|(size, _)| *size == threads).and_then(|(_, pool)| pool.upgrade()) {
            return pool;
        }
        let pool = Arc::new(Pool::new(threads));
        pools.push((threads, Arc::downgrade(&pool)));
        pool
    }

    /// Threads that may run a job, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(begin, end, thread_index)` for disjoint ranges that cover `[0, grid)`, and returns when all are done.
    /// Ranges are handed out dynamically, none smaller than `grain` but the last. What fits one range, and every job of a
    /// one-thread pool, runs on the calling thread as index 0. Jobs of several callers run one after another.
    ///
    /// Allocates nothing. `body` must not call `run` on the same pool.
    ///
    /// # Panics
    /// With the panic of `body`, once all threads have left it.
    pub fn run(&self, grid: usize, grain: usize, body: &(dyn Fn(usize, usize, usize) + Sync)) {
        if grid == 0 {
            return;
        }
        let chunk = grid.div_ceil(self.threads() * CHUNKS_PER_THREAD).max(grain).max(1);
        let chunks = grid.div_ceil(chunk);
        if chunks == 1 || self.workers.is_empty() {
            body(0, grid, 0);
            return;
        }
        let _one_job = lock(&self.caller);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is followed by workers that joined, and this function doesn't
        // return or unwind before all of them have left (`Close`).
        let body_ptr =
            unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(std::ptr::from_ref(body)) };
        let helpers = self.workers.len().min(chunks - 1);
        let job = Job { body: body_ptr, grid, chunk, chunks, helpers };
        shared.next.0.store(0, Ordering::Relaxed);
        // SAFETY: this thread holds `caller`, the last job is closed and all have left it, so nobody reads `job` now.
        unsafe { *shared.job.get() = Some(job) };
        let epoch = epoch_of(shared.state.0.load(Ordering::Relaxed)).wrapping_add(1);
        // SeqCst against `Shared::wait`: either a worker going to sleep sees this job, or we see that it sleeps.
        shared.state.0.store((u64::from(epoch) << 32) | OPEN, Ordering::SeqCst);
        {
            let _close = Close(shared);
            shared.wake(0, helpers);
            shared.take_chunks(&job, body, 0);
        }
        let panic = lock(&shared.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for index in 0..self.workers.len() {
            self.shared.unpark(index);
        }
        for worker in self.workers.drain(..) {
            // A worker catches what its jobs panic with, so it only ends by returning.
            let _ = worker.join();
        }
    }
}

/// Ends a job when the caller leaves it, also by panic: no worker may join any more, and those that did have left.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        if thread::panicking() {
            shared.next.0.store(usize::MAX / 2, Ordering::Relaxed);
        }
        let mut joined = shared.state.0.fetch_and(!OPEN, Ordering::AcqRel) & JOINED;
        let mut spins = 0u32;
        while joined != 0 {
            spins += 1;
            // With more threads than cores, the one that we wait for may need this core.
            if spins < 2000 {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
            joined = shared.state.0.load(Ordering::Acquire) & JOINED;
        }
        if thread::panicking() {
            // The caller's own panic is on its way; a worker's must not surface in the next job.
            lock(&shared.panic).take();
        }
    }
}

impl Shared {
    /// The life of worker `index` (thread index + 1 of its jobs).
    fn work(&self, index: usize) {
        self.started.fetch_add(1, Ordering::Release);
        let mut seen = 0u32;
        while let Some(state) = self.wait(index, seen) {
            seen = epoch_of(state);
            if !self.join(state) {
                continue;
            }
            // SAFETY: this worker joined an open job, so the caller wrote `job` before and keeps it until we leave.
            let job = unsafe { *self.job.get() };
            if let Some(job) = job {
                self.wake(2 * (index + 1), job.helpers);
                // SAFETY: as above; the caller keeps `body` alive until we leave.
                let body = unsafe { &*job.body };
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.take_chunks(&job, body, index + 1))) {
                    self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
                    lock(&self.panic).get_or_insert(payload);
                }
            }
            self.state.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// The state word once it shows an open job other than `seen`; `None` when the pool stops.
    fn wait(&self, index: usize, seen: u32) -> Option<u64> {
        let fresh = |state: u64| state & OPEN != 0 && epoch_of(state) != seen;
        let mut deadline: Option<Instant> = None;
        loop {
            for _ in 0..64 {
                let state = self.state.0.load(Ordering::Acquire);
                if fresh(state) {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            if self.stopping.load(Ordering::Relaxed) {
                return None;
            }
            let now = Instant::now();
            if now < *deadline.get_or_insert(now + SPIN) {
                continue;
            }
            let asleep = &self.parked[index].0.asleep;
            asleep.store(true, Ordering::SeqCst);
            while asleep.load(Ordering::SeqCst) {
                if fresh(self.state.0.load(Ordering::SeqCst)) || self.stopping.load(Ordering::SeqCst) {
                    break;
                }
                thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
            deadline = None;
        }
    }

    /// Counts this worker into the job that `state` shows, unless it has been closed meanwhile.
    fn join(&self, mut state: u64) -> bool {
        let epoch = epoch_of(state);
        while state & OPEN != 0 && epoch_of(state) == epoch {
            match self.state.0.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    fn take_chunks(&self, job: &Job, body: &Body<'_>, thread_index: usize) {
        loop {
            let at = self.next.0.fetch_add(1, Ordering::Relaxed);
            if at >= job.chunks {
                return;
            }
            let begin = at * job.chunk;
            body(begin, job.grid.min(begin.saturating_add(job.chunk)), thread_index);
        }
    }

    /// Wakes workers `first` and `first + 1`, each of which wakes two more: a tree, so that no thread pays for all.
    fn wake(&self, first: usize, helpers: usize) {
        for index in first..helpers.min(first + 2) {
            if self.parked[index].0.asleep.load(Ordering::SeqCst) {
                self.unpark(index);
            }
        }
    }

    fn unpark(&self, index: usize) {
        self.parked[index].0.asleep.store(false, Ordering::SeqCst);
        if let Some(thread) = &*lock(&self.parked[index].0.thread) {
            thread.unpark();
        }
    }
}

fn resolve(threads: usize) -> usize {
    if threads == 0 { thread::available_parallelism().map_or(1, usize::from) } else { threads }
}

/// The data behind these locks is valid at every point, so a panic elsewhere doesn't spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn covers(pool: &Pool, grid: usize, grain: usize) {
        let hits: Vec<AtomicU32> = (0..grid).map(|_| AtomicU32::new(0)).collect();
        let busy: Vec<AtomicBool> = (0..pool.threads()).map(|_| AtomicBool::new(false)).collect();
        pool.run(grid, grain, &|begin, end, thread| {
            assert!(!busy[thread].swap(true, Ordering::SeqCst), "thread index {thread} used twice at once");
            assert!(begin < end && end <= grid);
            assert!(end - begin >= grain.min(grid) || end == grid, "{begin}..{end} is below grain {grain}");
            for hit in &hits[begin..end] {
                hit.fetch_add(1, Ordering::Relaxed);
            }
            busy[thread].store(false, Ordering::SeqCst);
        });
        assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1), "grid {grid}, grain {grain}");
    }

    #[test]
    fn every_index_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for grid in [0, 1, 2, 7, 64, 1000, 4097] {
                for grain in [0, 1, 5, 100, 100_000] {
                    covers(&pool, grid, grain);
                }
            }
        }
    }

    #[test]
    fn jobs_follow_each_other_and_pauses() {
        let pool = Pool::new(4);
        for round in 0..3 {
            for _ in 0..2000 {
                covers(&pool, 16, 1);
            }
            // Long enough for the workers to park.
            thread::sleep(Duration::from_millis(2 * round));
        }
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = Pool::new(3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| covers(&pool, 100, 1)));
            }
        });
    }

    #[test]
    fn workers_take_part() {
        let pool = Pool::new(2);
        let used = [AtomicBool::new(false), AtomicBool::new(false)];
        let started = Instant::now();
        // A chunk that waits for the other thread: finishes only if both run.
        while !(used[0].load(Ordering::SeqCst) && used[1].load(Ordering::SeqCst)) {
            assert!(started.elapsed() < Duration::from_secs(30), "the worker never joined");
            pool.run(8, 1, &|_, _, thread| {
                used[thread].store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for culprit in 0..20usize {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, 1, &|begin, end, _| {
                    if (begin..end).contains(&culprit) {
                        panic!("index {culprit}");
                    }
                });
            }));
            let payload = outcome.expect_err("the panic was lost");
            assert_eq!(payload.downcast_ref::<String>(), Some(&format!("index {culprit}")));
            covers(&pool, 50, 1);
        }
    }

    #[test]
    fn pools_of_one_size_are_shared() {
        let pool = Pool::shared(5);
        assert!(Arc::ptr_eq(&pool, &Pool::shared(5)));
        assert!(!Arc::ptr_eq(&pool, &Pool::shared(6)));
    }
}
