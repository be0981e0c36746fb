//! Checks that a step keeps to its buffers: canary bands around what it may write, hashes of what it may only read.

use crate::arena::Life;
use crate::memory::ALIGNMENT;

/// Bytes of canary on each side of a guarded buffer.
pub(crate) const BAND: usize = 4 * ALIGNMENT;
/// What poisoned memory holds: NaN in every float format, -1 in every integer one.
pub(crate) const POISON: u8 = 0xff;
const CANARY: u8 = 0xa5;

/// A buffer of `bytes` at `start` with bands around it, within `end - BAND`.
pub(crate) struct Guarded {
    pub(crate) root: usize,
    pub(crate) life: Life,
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
}

/// Bytes that a guarded buffer takes; `None` on overflow.
pub(crate) fn guarded_bytes(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(2 * BAND)
}

/// The band before `start`, and the one from `start + bytes` on, to a whole band beyond the padding.
fn bands(start: *mut u8, bytes: usize) -> [(*mut u8, usize); 2] {
    let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
    [(start.wrapping_sub(BAND), BAND), (start.wrapping_add(bytes), padding + BAND)]
}

/// Writes the canaries around `bytes` bytes at `start`.
///
/// # Safety
/// `start - BAND` begins a block of `guarded_bytes(bytes)` bytes, valid for writes.
pub(crate) unsafe fn arm(start: *mut u8, bytes: usize) {
    for (band, length) in bands(start, bytes) {
        // SAFETY: both bands lie within the block.
        unsafe { std::ptr::write_bytes(band, CANARY, length) };
    }
}

/// Offset, relative to `start`, of the first canary byte that has changed since [`arm`].
///
/// # Safety
/// As [`arm`], for reads of initialised bytes.
pub(crate) unsafe fn damage(start: *mut u8, bytes: usize) -> Option<isize> {
    bands(start, bytes).into_iter().find_map(|(band, length)| {
        // SAFETY: the band lies within the block, which `arm` has written.
        let band_bytes = unsafe { std::slice::from_raw_parts(band, length) };
        let at = band_bytes.iter().position(|byte| *byte != CANARY)?;
        Some((band.addr() + at) as isize - start.addr() as isize)
    })
}

/// A hash that any changed byte changes; not against adversaries.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    // Odd, from the golden ratio; each round is a bijection of the state.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1u64, 2, 3, 4];
    let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    let tail = rest.iter().fold(rest.len() as u64, |hash, byte| mix(hash, u64::from(*byte)));
    lanes.into_iter().fold(tail, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn damage_is_found_where_it_is() {
        for bytes in [0usize, 1, 64, 100] {
            let memory = Memory::new(guarded_bytes(bytes).unwrap()).unwrap();
            let start = memory.address().wrapping_add(BAND);
            for offset in [-(BAND as isize), -1, bytes as isize, (bytes + 70) as isize] {
                // SAFETY: the block has `guarded_bytes(bytes)` bytes from `start - BAND`.
                unsafe {
                    arm(start, bytes);
                    assert_eq!(damage(start, bytes), None);
                    *start.offset(offset) = 0;
                    assert_eq!(damage(start, bytes), Some(offset));
                }
            }
        }
    }

    #[test]
    fn every_byte_counts() {
        for length in [0usize, 1, 8, 31, 32, 33, 100] {
            let mut bytes = vec![7u8; length];
            let before = fingerprint(&bytes);
            for at in 0..length {
                bytes[at] ^= 1;
                assert_ne!(fingerprint(&bytes), before, "byte {at} of {length}");
                bytes[at] ^= 1;
            }
            bytes.push(7);
            assert_ne!(fingerprint(&bytes), before);
        }
    }
}
