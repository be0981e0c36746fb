//! Arena planning: which buffers are alive at which step, and where in one block of memory each can lie.

use crate::memory::{ALIGNMENT, align_up};

/// The steps, both inclusive, between which a buffer's bytes matter.
///
/// Both ends are inclusive so that what a step reads and what it writes are alive together and never share bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub first: usize,
    pub last: usize,
}

impl Life {
    #[must_use]
    pub fn overlaps(self, other: Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    #[must_use]
    pub fn contains(self, step: usize) -> bool {
        self.first <= step && step <= self.last
    }
}

/// What a step touches, as root buffers (aliases resolved).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
}

/// The life of each of `buffers` root buffers over `steps`: first write to last access. A buffer in `kept` (read after the
/// last step) lives to the end. `None` for a buffer that no step touches.
#[must_use]
pub fn lifetimes(buffers: usize, steps: &[Access], kept: &[usize]) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; buffers];
    for (step, access) in steps.iter().enumerate() {
        for &buffer in access.reads.iter().chain(&access.writes) {
            if let Some(life) = lives.get_mut(buffer) {
                *life = Some(Life { first: life.map_or(step, |life| life.first), last: step });
            }
        }
    }
    for &buffer in kept {
        if let Some(Some(life)) = lives.get_mut(buffer) {
            life.last = steps.len();
        }
    }
    lives
}

/// One block to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub life: Life,
    pub bytes: usize,
}

/// Where blocks lie, and how many bytes hold them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// One offset a block, a multiple of [`ALIGNMENT`].
    pub offsets: Vec<usize>,
    pub bytes: usize,
}

/// Places blocks so that no two that are alive at the same step share a byte: largest first, each into the smallest gap
/// that fits between the blocks that it meets in time ("greedy by size", Pisarchyk and Lee 2020, arXiv:2001.03288).
///
/// O(n^2) in the number of blocks. `None` if the offsets would overflow.
#[must_use]
pub fn place(blocks: &[Block]) -> Option<Placement> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Ties by index, so that equal plans have equal layouts.
    order.sort_by_key(|&at| (std::cmp::Reverse(blocks[at].bytes), at));
    let mut offsets = vec![0usize; blocks.len()];
    let mut end = 0usize;
    // (offset, end, life) of blocks placed so far, by offset.
    let mut placed: Vec<(usize, usize, Life)> = Vec::with_capacity(blocks.len());
    for at in order {
        let Block { life, bytes } = blocks[at];
        let bytes = align_up(bytes)?;
        if bytes == 0 {
            continue;
        }
        let mut free_from = 0usize;
        let mut best: Option<(usize, usize)> = None;
        for &(offset, block_end, _) in placed.iter().filter(|(_, _, other)| other.overlaps(life)) {
            if offset > free_from {
                let gap = offset - free_from;
                if gap >= bytes && best.is_none_or(|(size, _)| gap < size) {
                    best = Some((gap, free_from));
                }
            }
            free_from = free_from.max(block_end);
        }
        let offset = best.map_or(free_from, |(_, offset)| offset);
        let block_end = offset.checked_add(bytes)?;
        offsets[at] = offset;
        end = end.max(block_end);
        let slot = placed.partition_point(|(other, _, _)| *other <= offset);
        placed.insert(slot, (offset, block_end, life));
    }
    debug_assert!(offsets.iter().all(|offset| offset % ALIGNMENT == 0));
    Some(Placement { offsets, bytes: end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn access(reads: &[usize], writes: &[usize]) -> Access {
        Access { reads: reads.to_vec(), writes: writes.to_vec() }
    }

    #[test]
    fn life_is_first_write_to_last_read() {
        let steps = [access(&[], &[0]), access(&[0], &[1]), access(&[1], &[2]), access(&[1, 2], &[3])];
        let lives = lifetimes(5, &steps, &[3]);
        let life = |first, last| Some(Life { first, last });
        assert_eq!(lives, [life(0, 1), life(1, 3), life(2, 3), life(3, 4), None]);
    }

    #[test]
    fn a_chain_needs_two_blocks() {
        let blocks: Vec<Block> =
            (0..10).map(|at| Block { life: Life { first: at, last: at + 1 }, bytes: 100 }).collect();
        assert_eq!(place(&blocks).unwrap().bytes, 256);
    }

    #[test]
    fn a_small_block_takes_the_tightest_gap() {
        let block = |first, last, bytes| Block { life: Life { first, last }, bytes };
        // At step 1 only blocks 1 and 3 remain, with gaps of 512 and 256 bytes below them.
        let blocks = [block(0, 0, 512), block(0, 1, 448), block(0, 0, 200), block(0, 1, 199), block(1, 1, 190)];
        let placement = place(&blocks).unwrap();
        assert_eq!(placement.offsets, [0, 512, 960, 1216, 960]);
        assert_eq!(placement.bytes, 1472);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let life = Life { first: 0, last: 0 };
        assert_eq!(place(&[Block { life, bytes: usize::MAX }]), None);
        assert_eq!(place(&[Block { life, bytes: usize::MAX / 2 }; 3]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn simultaneous_blocks_are_disjoint(
            specs in proptest::collection::vec((0usize..20, 0usize..6, 0usize..5000), 0..40)
        ) {
            let blocks: Vec<Block> = specs
                .iter()
                .map(|&(first, length, bytes)| Block { life: Life { first, last: first + length }, bytes })
                .collect();
            let placement = place(&blocks).unwrap();
            for (i, a) in blocks.iter().enumerate() {
                let a_at = placement.offsets[i];
                prop_assert_eq!(a_at % ALIGNMENT, 0);
                prop_assert!(a_at + a.bytes <= placement.bytes);
                for (j, b) in blocks.iter().enumerate().skip(i + 1) {
                    let b_at = placement.offsets[j];
                    let apart = a_at + a.bytes <= b_at || b_at + b.bytes <= a_at;
                    prop_assert!(apart || !a.life.overlaps(b.life) || a.bytes == 0 || b.bytes == 0);
                }
            }
            let sum: usize = blocks.iter().map(|block| block.bytes.next_multiple_of(ALIGNMENT)).sum();
            prop_assert!(placement.bytes <= sum);
            // And never below what is alive at one step.
            let live = |step| -> usize {
                blocks.iter().filter(|block| block.life.contains(step)).map(|block| block.bytes).sum()
            };
            prop_assert!(placement.bytes >= (0..26).map(live).max().unwrap_or(0));
        }
    }
}
