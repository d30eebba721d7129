//! A sorted set in blocks of fixed size: what timers are kept in.
//!
//! Memory is a number of whole blocks, so that it is known exactly; ascending inserts fill blocks
//! to the brim, random ones to about two thirds. A B-tree's nodes cannot be counted from outside,
//! and their bound is twice what they usually take.

use std::collections::VecDeque;

use alluvium_pagestore::rounded;

/// Items per block. An insert moves half of them at most.
const BLOCK_ITEMS: usize = 64;

/// A sorted set.
#[derive(Debug)]
pub(crate) struct SortedBlocks<T> {
    blocks: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T: Ord> SortedBlocks<T> {
    pub(crate) fn new() -> Self {
        Self { blocks: VecDeque::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all blocks and of the table of blocks.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let table = rounded(self.blocks.capacity() * size_of::<VecDeque<T>>());
        (self.blocks.len() * Self::block_bytes() + table) as u64
    }

    /// The most that one insert can add to [`memory_bytes`](SortedBlocks::memory_bytes).
    pub(crate) fn growth_bytes(&self) -> u64 {
        let full = self.blocks.len() == self.blocks.capacity();
        let table =
            if full { (self.blocks.capacity() + 4) * 2 * size_of::<VecDeque<T>>() } else { 0 };
        (Self::block_bytes() + rounded(table)) as u64
    }

    fn block_bytes() -> usize {
        rounded(BLOCK_ITEMS * size_of::<T>())
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.blocks.front()?.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }

    /// The block that has `item`, if any has.
    fn block_of(&self, item: &T) -> usize {
        let after = self.blocks.partition_point(|block| block.front().is_some_and(|f| f <= item));
        after.saturating_sub(1)
    }

    /// Adds `item` and says whether it was new. Cost: O(log n) and a move of half a block.
    pub(crate) fn insert(&mut self, item: T) -> bool {
        if self.blocks.is_empty() {
            self.blocks.push_back(VecDeque::with_capacity(BLOCK_ITEMS));
        }
        let mut at = self.block_of(&item);
        let Err(mut place) = self.blocks[at].binary_search(&item) else { return false };
        if self.blocks[at].len() == BLOCK_ITEMS {
            let mut next = VecDeque::with_capacity(BLOCK_ITEMS);
            let last = at + 1 == self.blocks.len() && place == BLOCK_ITEMS;
            if !last {
                next.extend(self.blocks[at].drain(BLOCK_ITEMS / 2..));
            }
            self.blocks.insert(at + 1, next);
            if place >= self.blocks[at].len() {
                place -= self.blocks[at].len();
                at += 1;
            }
        }
        self.blocks[at].insert(place, item);
        self.len += 1;
        true
    }

    /// The smallest item above `item`. Cost: O(log n).
    pub(crate) fn after(&self, item: &T) -> Option<&T> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.block_of(item);
        let place = self.blocks[at].partition_point(|known| known <= item);
        self.blocks[at].get(place).or_else(|| self.blocks.get(at + 1)?.front())
    }

    /// Removes and returns what is equal to `item`, if it is there.
    pub(crate) fn remove(&mut self, item: &T) -> Option<T> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.block_of(item);
        let place = self.blocks[at].binary_search(item).ok()?;
        let removed = self.blocks[at].remove(place);
        self.len -= 1;
        self.tidy(at);
        removed
    }

    /// Removes and returns the smallest item.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let item = self.blocks.front_mut()?.pop_front()?;
        self.len -= 1;
        if self.blocks[0].is_empty() {
            self.blocks.pop_front();
        }
        Some(item)
    }

    /// Drops an empty block, and joins one with the next if half a block holds both.
    fn tidy(&mut self, at: usize) {
        if self.blocks[at].is_empty() {
            self.blocks.remove(at);
        } else if let Some(next) = self.blocks.get(at + 1) {
            if self.blocks[at].len() + next.len() <= BLOCK_ITEMS / 2 {
                let next = self.blocks.remove(at + 1).expect("looked at above");
                self.blocks[at].extend(next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((0u32..3000, 0..4u8), 0..4000)) {
            let (mut blocks, mut model) = (SortedBlocks::new(), BTreeSet::new());
            for (item, what) in steps {
                let (before, growth) = (blocks.memory_bytes(), blocks.growth_bytes());
                match what {
                    0 => prop_assert_eq!(blocks.remove(&item), model.take(&item)),
                    1 if item % 4 == 0 => prop_assert_eq!(blocks.pop_first(), model.pop_first()),
                    _ => prop_assert_eq!(blocks.insert(item), model.insert(item)),
                }
                prop_assert!(blocks.memory_bytes() <= before + growth);
                prop_assert_eq!(blocks.first(), model.first());
                prop_assert_eq!(blocks.after(&item), model.range(item + 1..).next());
                prop_assert_eq!(blocks.len(), model.len());
            }
            prop_assert!(blocks.iter().eq(model.iter()));
        }
    }

    #[test]
    fn ascending_inserts_fill_blocks() {
        let mut blocks = SortedBlocks::new();
        for item in 0..100_000u128 {
            assert!(blocks.insert(item));
        }
        assert!(blocks.memory_bytes() < 100_000 * 17, "{} bytes", blocks.memory_bytes());
    }
}
