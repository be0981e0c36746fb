//! Work split over threads.
//!
//! There is one loop over indices, with a dynamic body: each generic use of rayon compiles to thousands of lines, and the
//! interpreter has dozens of uses. Tasks are coarse, so that the call costs nothing.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// Elements per task where a task could be any number of them.
pub(super) const CHUNK: usize = 16 * 1024;

/// Runs `work` on every index below `count`.
fn for_each_index(count: usize, work: &(dyn Fn(usize) + Sync)) {
    if count <= 1 {
        (0..count).for_each(work);
    } else {
        (0..count).into_par_iter().for_each(work);
    }
}

/// Runs `work(i, chunk)` on chunk i of `size` elements (the last may be shorter). Nothing to do if either is empty.
pub(super) fn for_each_chunk<U: Send>(out: &mut [U], size: usize, work: &(dyn Fn(usize, &mut [U]) + Sync)) {
    if size == 0 || out.is_empty() {
        return;
    }
    if out.len() <= size {
        return work(0, out);
    }
    // Each chunk is taken once, so that the locks are never waited for.
    let chunks: Vec<Mutex<&mut [U]>> = out.chunks_mut(size).map(Mutex::new).collect();
    for_each_index(chunks.len(), &|i| {
        work(i, &mut chunks[i].lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// `f` of every index below `count`; `work` elements of work each decide how many indices make a task.
pub(super) fn collect<U: Send + Clone + Default>(count: usize, work: usize, f: &(dyn Fn(usize) -> U + Sync)) -> Vec<U> {
    let mut out = vec![U::default(); count];
    let size = (CHUNK / work.max(1)).max(1);
    for_each_chunk(&mut out, size, &|chunk, out| {
        for (i, out) in out.iter_mut().enumerate() {
            *out = f(chunk * size + i);
        }
    });
    out
}
