//! A call with known shapes allocates nothing: counted by the global allocator, over all threads.

mod kernels;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use forge_runtime::{Executable, Options};
use kernels::{as_bytes, as_bytes_mut, mixed_plan, mixed_reference, mixed_weights, values, write_folder};
use serde_json::json;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_second_call_allocates_nothing() {
    let mut plan = mixed_plan();
    // The GEMM library allocates its packing buffers; a kernel in its place leaves only what is ours.
    plan["steps"][2] = kernels::kernel("reverse_rows", &[6], &[7], &json!([3]), &json!("N"), &json!(12));
    let folder = write_folder(&plan, &[("w", &mixed_weights())]);
    for threads in [1, 2, 4] {
        let executable =
            Executable::load(folder.path(), "plan.json", Options { threads, ..Options::default() }).unwrap();
        for rows in [3usize, 5000] {
            let (x, y, shape) = (values(rows * 4, 1), values(rows * 4, 2), [rows as i64, 4]);
            let mut outputs =
                [vec![0f32; rows], vec![0f32; rows * 4], vec![0f32; rows * 4], vec![0f32; 12], vec![0f32; rows]];
            let mut blocks = outputs.each_mut().map(|output| as_bytes_mut(output));
            let inputs = [(as_bytes(&x), &shape[..]), (as_bytes(&y), &shape[..])];
            let mut call = || {
                let before = ALLOCATIONS.load(Ordering::SeqCst);
                executable.run(&inputs, &mut blocks).unwrap();
                ALLOCATIONS.load(Ordering::SeqCst) - before
            };
            assert!(call() > 0, "the counter does not count");
            for repeat in 0..50 {
                assert_eq!(call(), 0, "{threads} threads, {rows} rows, repeat {repeat}");
            }
            assert_eq!(outputs[1..4], mixed_reference(&x, &y, &mixed_weights())[1..4]);
        }
    }
}
