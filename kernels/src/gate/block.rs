//! Caller memory for a plan: a block of bytes at a chosen alignment, with canaries on both sides.

/// Bytes of canary on each side.
const MARGIN: usize = 4096;
const CANARY: u8 = 0xc3;
/// What tensors of frameworks have.
const ALIGNMENT: usize = 64;

/// How a block's address is aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alignment {
    /// To a cache line.
    Line,
    /// To one element of this many bytes and no better: all that a plan may assume.
    Element(usize),
}

/// Bytes in the middle of canaries.
pub(super) struct Block {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Block {
    /// `length` bytes, each `fill`.
    pub(super) fn filled(length: usize, fill: u8, alignment: Alignment) -> Block {
        let memory = vec![CANARY; length + 2 * MARGIN + 2 * ALIGNMENT];
        let address = memory.as_ptr().addr() + MARGIN;
        let mut start = MARGIN + address.next_multiple_of(ALIGNMENT) - address;
        if let Alignment::Element(size) = alignment {
            start += size;
        }
        let mut block = Block { memory, start, length };
        block.bytes_mut().fill(fill);
        block
    }

    pub(super) fn holding(bytes: &[u8], alignment: Alignment) -> Block {
        let mut block = Block::filled(bytes.len(), 0, alignment);
        block.bytes_mut().copy_from_slice(bytes);
        block
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }

    /// Offset, relative to the block, of a canary that changed.
    pub(super) fn damage(&self) -> Option<isize> {
        let end = self.start + self.length;
        let changed = |at: &usize| self.memory[*at] != CANARY;
        let at = (0..self.start).rev().find(changed).or_else(|| (end..self.memory.len()).find(changed))?;
        Some(at as isize - self.start as isize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_as_asked() {
        for length in [0, 1, 100] {
            assert_eq!(Block::filled(length, 1, Alignment::Line).bytes().as_ptr().addr() % 64, 0);
            let block = Block::holding(&vec![7; length], Alignment::Element(4));
            assert_eq!(block.bytes().as_ptr().addr() % 64, 4);
            assert_eq!(block.bytes(), vec![7; length]);
            assert_eq!(block.damage(), None);
        }
    }

    #[test]
    fn damage_is_found_on_both_sides() {
        for offset in [-1isize, -4096, 8, 4000] {
            let mut block = Block::filled(8, 0, Alignment::Line);
            let at = block.start.checked_add_signed(offset).unwrap();
            block.memory[at] ^= 1;
            assert_eq!(block.damage(), Some(offset));
        }
    }
}
