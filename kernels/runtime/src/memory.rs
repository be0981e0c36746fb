//! Aligned blocks of raw memory, which kernels write through pointers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::RuntimeError;

/// Of every buffer that the runtime allocates: a cache line and a 512-bit vector.
pub const ALIGNMENT: usize = 64;

/// `bytes` rounded up to [`ALIGNMENT`]; `None` on overflow.
#[must_use]
pub fn align_up(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// A zero-initialised, [`ALIGNMENT`]-aligned block that owns its bytes. Accessed through raw pointers only, because kernels
/// on several threads write disjoint parts of it.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Memory` owns plain bytes; it hands out raw pointers, whose users answer for races.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives nothing but the address.
unsafe impl Sync for Memory {}

impl Memory {
    /// Large blocks come straight from the system as zero pages, so that zeroing costs nothing until they are touched.
    pub(crate) fn new(bytes: usize) -> Result<Memory, RuntimeError> {
        // An empty block still needs an address that a kernel may be given.
        let layout = align_up(bytes.max(1))
            .and_then(|size| Layout::from_size_align(size, ALIGNMENT).ok())
            .ok_or(RuntimeError::OutOfMemory { bytes })?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Ok(Memory { start, layout }),
            None => Err(RuntimeError::OutOfMemory { bytes }),
        }
    }

    /// An aligned copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> Result<Memory, RuntimeError> {
        let memory = Memory::new(bytes.len())?;
        // SAFETY: the fresh block is at least as long as `bytes` and disjoint from it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.address(), bytes.len()) };
        Ok(memory)
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// In bytes, padding included.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
