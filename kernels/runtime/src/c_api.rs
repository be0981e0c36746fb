//! The C ABI of the shared library, which the generated loader calls. Declared in `include/forge_runtime.h`.
//!
//! Every function but [`forge_last_error`] and [`forge_abi_version`] returns a [`Status`]; the text of the last failure on a
//! thread is kept for it. No panic crosses this boundary.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::error::{RuntimeError, Status};
use crate::exec::{Executable, Options};
use crate::instance::Call;

/// Bumped on any change that a loader written for an older header would trip over.
pub const ABI_VERSION: i32 = 1;

/// An open plan.
pub struct Handle {
    executable: Arc<Executable>,
    /// Where each input's dimensions begin among all inputs' dimensions; one more for the end.
    dim_offsets: Vec<usize>,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry point: failures and panics become a status and a message.
fn enter(body: impl FnOnce() -> Result<(), RuntimeError>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let error = match outcome {
        Ok(Ok(())) => return Status::Ok as i32,
        Ok(Err(error)) => error,
        Err(payload) => RuntimeError::Panic(panic_text(&*payload)),
    };
    let text: Vec<u8> = error.to_string().into_bytes().into_iter().filter(|byte| *byte != 0).collect();
    // The text has no NUL; at thread exit the slot may be gone already.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    error.status() as i32
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without text").to_owned()
}

fn argument<T>(what: &str) -> Result<T, RuntimeError> {
    Err(RuntimeError::Argument(what.to_owned()))
}

/// The ABI version of this library; a loader checks it against its header's `FORGE_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn forge_abi_version() -> i32 {
    ABI_VERSION
}

/// The text of the last failure on this thread; empty if there was none. Valid until the next failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn forge_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Loads the plan `plan_file` of folder `dir` and stores a handle in `*handle`, or null on failure. `threads` of 0 means one
/// for each core.
///
/// # Safety
/// `dir` and `plan_file` are null or NUL-terminated; `handle` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forge_open(
    dir: *const c_char,
    plan_file: *const c_char,
    threads: i32,
    handle: *mut *mut Handle,
) -> i32 {
    enter(|| {
        if handle.is_null() {
            return argument("handle is null");
        }
        // SAFETY: not null, so valid for a write by the caller's promise.
        unsafe { *handle = std::ptr::null_mut() };
        // SAFETY: the caller's promise.
        let (dir, plan_file) = unsafe { (text("dir", dir)?, text("plan_file", plan_file)?) };
        let Ok(threads) = usize::try_from(threads) else {
            return argument("threads is negative");
        };
        let options = Options { threads, ..Options::default() };
        let executable = Executable::load(Path::new(dir), plan_file, options)?;
        let mut dim_offsets = vec![0];
        let mut end = 0;
        for port in &executable.plan().inputs {
            end += port.shape.len();
            dim_offsets.push(end);
        }
        let opened = Box::into_raw(Box::new(Handle { executable, dim_offsets }));
        // SAFETY: as above.
        unsafe { *handle = opened };
        Ok(())
    })
}

/// Writes the shapes of all outputs, one after another, to `out_dims`, which has room for `capacity` dimensions. `dims` has
/// the shapes of the `n_inputs` inputs, one after another, `ranks` their ranks.
///
/// # Safety
/// `handle` is null or open; `ranks` is null or has `n_inputs` elements, `dims` null or as many as the ranks add up to,
/// `out_dims` null or room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forge_output_shapes(
    handle: *const Handle,
    n_inputs: i32,
    ranks: *const i32,
    dims: *const i64,
    out_dims: *mut i64,
    capacity: i64,
) -> i32 {
    enter(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { opened(handle)? };
        let expected = handle.executable.plan().inputs.len();
        let got = usize::try_from(n_inputs).unwrap_or(0);
        if got != expected {
            return Err(RuntimeError::Count { kind: "inputs", expected, got });
        }
        // SAFETY: the caller's promise, for as many inputs as the plan has.
        let dims = unsafe { handle.dims(ranks, dims)? };
        let shapes = handle.executable.output_shapes_of(&|index| handle.shape(dims, index))?;
        let flat: Vec<i64> = shapes.into_iter().flatten().collect();
        if usize::try_from(capacity).unwrap_or(0) < flat.len() {
            return argument(&format!("the outputs have {} dimensions, out_dims has room for {capacity}", flat.len()));
        }
        if out_dims.is_null() && !flat.is_empty() {
            return argument("out_dims is null");
        }
        for (at, dim) in flat.into_iter().enumerate() {
            // SAFETY: `at` is below `capacity`.
            unsafe { *out_dims.add(at) = dim };
        }
        Ok(())
    })
}

/// Runs the plan. `inputs` and `outputs` have the address of each input and output, dense and row-major; an empty one may be
/// null. `ranks` and `dims` as for [`forge_output_shapes`].
///
/// # Safety
/// `handle` is null or open. `inputs` and `ranks` have as many elements as the plan has inputs, `outputs` as many as it has
/// outputs, `dims` as many as the ranks add up to. Each input is valid for reads and each output for writes of as many bytes
/// as its shape and dtype have; outputs overlap nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forge_run(
    handle: *const Handle,
    inputs: *const *const c_void,
    ranks: *const i32,
    dims: *const i64,
    outputs: *const *mut c_void,
) -> i32 {
    enter(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { opened(handle)? };
        // SAFETY: as above.
        let dims = unsafe { handle.dims(ranks, dims)? };
        let plan = handle.executable.plan();
        if inputs.is_null() && !plan.inputs.is_empty() {
            return argument("inputs is null");
        }
        if outputs.is_null() && !plan.outputs.is_empty() {
            return argument("outputs is null");
        }
        let call = Call {
            // SAFETY: asked only for inputs that the plan has.
            input: |index: usize| unsafe { *inputs.add(index) }.cast::<u8>(),
            // SAFETY: asked only for outputs that the plan has.
            output: |index: usize| unsafe { *outputs.add(index) }.cast::<u8>(),
        };
        // SAFETY: the caller's promise.
        unsafe { handle.executable.run_call(&|index| handle.shape(dims, index), &call) }
    })
}

/// Closes a handle; null is accepted. No call on the handle may be under way or follow.
///
/// # Safety
/// `handle` is null or came from [`forge_open`] and has not been closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forge_close(handle: *mut Handle) -> i32 {
    enter(|| {
        if !handle.is_null() {
            // SAFETY: it came from `Box::into_raw` and is closed once.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    })
}

/// # Safety
/// `handle` is null or open, and stays so for `'a`.
unsafe fn opened<'a>(handle: *const Handle) -> Result<&'a Handle, RuntimeError> {
    // SAFETY: the caller's promise.
    match unsafe { handle.as_ref() } {
        Some(handle) => Ok(handle),
        None => argument("handle is null"),
    }
}

/// # Safety
/// `text` is null or NUL-terminated, and stays so for `'a`.
unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, RuntimeError> {
    if text.is_null() {
        return argument(&format!("{name} is null"));
    }
    // SAFETY: not null, so NUL-terminated by the caller's promise.
    match unsafe { CStr::from_ptr(text) }.to_str() {
        Ok(text) => Ok(text),
        Err(_) => argument(&format!("{name} is not UTF-8")),
    }
}

impl Handle {
    /// The dimensions of all inputs, once the ranks are those of the plan.
    ///
    /// # Safety
    /// `ranks` is null or has one element an input; `dims` is null or has as many as they add up to.
    unsafe fn dims<'a>(&self, ranks: *const i32, dims: *const i64) -> Result<&'a [i64], RuntimeError> {
        let inputs = &self.executable.plan().inputs;
        if ranks.is_null() && !inputs.is_empty() {
            return argument("ranks is null");
        }
        for (index, port) in inputs.iter().enumerate() {
            // SAFETY: `index` is below the number of inputs.
            let rank = unsafe { *ranks.add(index) };
            let Ok(got) = usize::try_from(rank) else {
                return argument(&format!("the rank of input '{}' is negative", port.name));
            };
            if got != port.shape.len() {
                return Err(RuntimeError::Rank { input: port.name.clone(), expected: port.shape.len(), got });
            }
        }
        let count = self.dim_offsets.last().copied().unwrap_or(0);
        if count == 0 {
            return Ok(&[]);
        }
        if dims.is_null() {
            return argument("dims is null");
        }
        // SAFETY: the ranks add up to `count`, and the caller promises as many dimensions.
        Ok(unsafe { std::slice::from_raw_parts(dims, count) })
    }

    fn shape<'a>(&self, dims: &'a [i64], index: usize) -> &'a [i64] {
        let range = self.dim_offsets.get(index).zip(self.dim_offsets.get(index + 1));
        range.and_then(|(begin, end)| dims.get(*begin..*end)).unwrap_or_default()
    }
}
