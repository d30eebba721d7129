//! A sorted set in blocks of fixed size: what timers are kept in.
//!
//! Memory is a number of whole blocks, so that it is known exactly; ascending inserts fill blocks
//! to the brim, random ones to about two thirds. A B-tree's nodes cannot be counted from outside,
//! and their bound is twice what they usually take.
//!
//! Beside its items a block can have [notes](Notes) of them, which go where the items go.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use alluvium_pagestore::rounded;

/// Items per block. An insert moves half of them at most.
pub(crate) const BLOCK_ITEMS: usize = 64;

/// What is noted of the items of a block, by their numbers: of [`BLOCK_ITEMS`] at most.
pub(crate) trait Notes: Sized {
    /// Of an empty block.
    fn new() -> Self;
    /// Bytes that they take.
    fn bytes() -> usize;
    /// An item comes, of which nothing is noted.
    fn insert(&mut self, at: usize);
    /// So many items go.
    fn remove(&mut self, at: usize, count: usize);
    /// So many items of another block come behind all that are here, from `at` on.
    fn take(&mut self, at: usize, other: &mut Self, from: usize, count: usize);
}

/// Nothing is noted.
impl Notes for () {
    fn new() {}
    fn bytes() -> usize {
        0
    }
    fn insert(&mut self, _: usize) {}
    fn remove(&mut self, _: usize, _: usize) {}
    fn take(&mut self, _: usize, (): &mut Self, _: usize, _: usize) {}
}

/// A sorted set.
#[derive(Debug)]
pub(crate) struct SortedBlocks<T, N = ()> {
    blocks: VecDeque<SortedBlock<T, N>>,
    len: usize,
}

#[derive(Debug)]
struct SortedBlock<T, N> {
    items: VecDeque<T>,
    notes: N,
}

impl<T, N: Notes> SortedBlock<T, N> {
    fn new() -> Self {
        Self { items: VecDeque::with_capacity(BLOCK_ITEMS), notes: N::new() }
    }

    /// Takes as many of the first items of the next block as there is room for.
    fn fill_from(&mut self, next: &mut Self) {
        let count = next.items.len().min(BLOCK_ITEMS - self.items.len());
        self.notes.take(self.items.len(), &mut next.notes, 0, count);
        self.items.extend(next.items.drain(..count));
    }
}

impl<T: Ord, N: Notes> SortedBlocks<T, N> {
    pub(crate) fn new() -> Self {
        Self { blocks: VecDeque::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all blocks and of the table of blocks.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let table = rounded(self.blocks.capacity() * size_of::<SortedBlock<T, N>>());
        (self.blocks.len() * Self::block_bytes() + table) as u64
    }

    /// The most that one insert can add to [`memory_bytes`](SortedBlocks::memory_bytes).
    pub(crate) fn growth_bytes(&self) -> u64 {
        let full = self.blocks.len() == self.blocks.capacity();
        let table = if full {
            (self.blocks.capacity() + 4) * 2 * size_of::<SortedBlock<T, N>>()
        } else {
            0
        };
        (Self::block_bytes() + rounded(table)) as u64
    }

    fn block_bytes() -> usize {
        rounded(BLOCK_ITEMS * size_of::<T>()) + N::bytes()
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.blocks.front()?.items.front()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.blocks.back()?.items.back()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flat_map(|block| &block.items)
    }

    /// The block that has `item`, if any has.
    fn block_of(&self, item: &T) -> usize {
        let is_before = |block: &SortedBlock<T, N>| block.items.front().is_some_and(|f| f <= item);
        self.blocks.partition_point(is_before).saturating_sub(1)
    }

    /// Adds `item` and says whether it was new. Cost: O(log n) and a move of half a block.
    pub(crate) fn insert(&mut self, item: T) -> bool {
        self.insert_noted(item, |_, _| {})
    }

    /// [`insert`](SortedBlocks::insert) that shows, if it is new, what is noted of its block, and its number there.
    pub(crate) fn insert_noted(&mut self, item: T, note: impl FnOnce(&mut N, usize)) -> bool {
        if self.blocks.is_empty() {
            self.blocks.push_back(SortedBlock::new());
        }
        let mut at = self.block_of(&item);
        let Err(mut place) = self.blocks[at].items.binary_search(&item) else { return false };
        if self.blocks[at].items.len() == BLOCK_ITEMS {
            let last = at + 1 == self.blocks.len() && place == BLOCK_ITEMS;
            let mut next = SortedBlock::<T, N>::new();
            if !last {
                let block = &mut self.blocks[at];
                next.items.extend(block.items.drain(BLOCK_ITEMS / 2..));
                next.notes.take(0, &mut block.notes, BLOCK_ITEMS / 2, BLOCK_ITEMS / 2);
            }
            self.blocks.insert(at + 1, next);
            if place >= self.blocks[at].items.len() {
                place -= self.blocks[at].items.len();
                at += 1;
            }
        }
        let block = &mut self.blocks[at];
        block.items.insert(place, item);
        block.notes.insert(place);
        note(&mut block.notes, place);
        self.len += 1;
        true
    }

    /// Where the smallest item above `item` is, if there is one: a block, and a number in it.
    fn above(&self, item: &T) -> Option<(usize, usize)> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.block_of(item);
        let items = &self.blocks[at].items;
        let place = items.partition_point(|known| known <= item);
        match place < items.len() {
            true => Some((at, place)),
            false => (at + 1 < self.blocks.len()).then_some((at + 1, 0)),
        }
    }

    /// The smallest item above `item`. Cost: O(log n).
    pub(crate) fn after(&self, item: &T) -> Option<&T> {
        let (block, place) = self.above(item)?;
        self.blocks[block].items.get(place)
    }

    /// Shows the items above `item`, or all, in their order, with what is noted of their block and their number
    /// there, until `see` breaks. Cost: O(log n), and the items that are shown.
    pub(crate) fn scan<B>(
        &mut self,
        item: Option<&T>,
        mut see: impl FnMut(&T, &mut N, usize) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let from = item.map_or(Some((0, 0)), |item| self.above(item));
        let Some((first, mut place)) = from else { return ControlFlow::Continue(()) };
        for block in self.blocks.iter_mut().skip(first) {
            for (at, item) in block.items.iter().enumerate().skip(place) {
                see(item, &mut block.notes, at)?;
            }
            place = 0;
        }
        ControlFlow::Continue(())
    }

    /// Takes the last block out, with its items in their order.
    pub(crate) fn take_block(&mut self) -> Option<impl Iterator<Item = T> + use<T, N>> {
        let block = self.blocks.pop_back()?;
        self.len -= block.items.len();
        if self.blocks.is_empty() {
            self.blocks = VecDeque::new();
        }
        Some(block.items.into_iter())
    }

    /// Removes and returns what is equal to `item`, if it is there.
    pub(crate) fn remove(&mut self, item: &T) -> Option<T> {
        self.remove_noted(item, |_, _| {}).map(|(item, ())| item)
    }

    /// [`remove`](SortedBlocks::remove) that shows, before, what is noted of its block, and its number there.
    pub(crate) fn remove_noted<R>(
        &mut self,
        item: &T,
        note: impl FnOnce(&mut N, usize) -> R,
    ) -> Option<(T, R)> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.block_of(item);
        let place = self.blocks[at].items.binary_search(item).ok()?;
        Some(self.take(at, place, note))
    }

    /// Removes and returns the smallest item.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        self.pop_first_noted(|_, _| {}).map(|(item, ())| item)
    }

    /// [`pop_first`](SortedBlocks::pop_first) that shows, before, what is noted of its block, and its number there.
    pub(crate) fn pop_first_noted<R>(
        &mut self,
        note: impl FnOnce(&mut N, usize) -> R,
    ) -> Option<(T, R)> {
        let block = self.blocks.front_mut()?;
        let noted = note(&mut block.notes, 0);
        let item = block.items.pop_front()?;
        block.notes.remove(0, 1);
        self.len -= 1;
        if block.items.is_empty() {
            self.blocks.pop_front();
        }
        Some((item, noted))
    }

    /// Removes and returns the largest item.
    pub(crate) fn pop_last(&mut self) -> Option<T> {
        let block = self.blocks.back_mut()?;
        let item = block.items.pop_back()?;
        block.notes.remove(block.items.len(), 1);
        self.len -= 1;
        if block.items.is_empty() {
            self.blocks.pop_back();
        }
        Some(item)
    }

    fn take<R>(
        &mut self,
        at: usize,
        place: usize,
        note: impl FnOnce(&mut N, usize) -> R,
    ) -> (T, R) {
        let block = &mut self.blocks[at];
        let noted = note(&mut block.notes, place);
        let item = block.items.remove(place).expect("it is there");
        block.notes.remove(place, 1);
        self.len -= 1;
        self.tidy(at);
        (item, noted)
    }

    /// Drops an empty block, and joins one with the next if half a block holds both.
    fn tidy(&mut self, at: usize) {
        if self.blocks[at].items.is_empty() {
            self.blocks.remove(at);
        } else if let Some(next) = self.blocks.get(at + 1) {
            if self.blocks[at].items.len() + next.items.len() <= BLOCK_ITEMS / 2 {
                let mut next = self.blocks.remove(at + 1).expect("looked at above");
                self.blocks[at].fill_from(&mut next);
            }
        }
    }

    /// Fills all blocks to the brim but the last: the least memory, also of the table of blocks. Cost: O(n).
    pub(crate) fn pack(&mut self) {
        let blocks = self.blocks.make_contiguous();
        let mut to = 0;
        for from in 1..blocks.len() {
            let (before, rest) = blocks.split_at_mut(from);
            before[to].fill_from(&mut rest[0]);
            if !rest[0].items.is_empty() {
                to += 1;
                if to < from {
                    before[to].fill_from(&mut rest[0]);
                }
            }
        }
        self.blocks.truncate(to + 1);
        self.blocks.shrink_to(self.blocks.len().next_power_of_two());
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
            let (mut blocks, mut model) = (SortedBlocks::<_>::new(), BTreeSet::new());
            for (item, what) in steps {
                let (before, growth) = (blocks.memory_bytes(), blocks.growth_bytes());
                match what {
                    0 => prop_assert_eq!(blocks.remove(&item), model.take(&item)),
                    2 if item % 500 == 0 => {
                        blocks.pack();
                        let full = model.len().div_ceil(BLOCK_ITEMS);
                        prop_assert!(blocks.blocks.len() <= full.max(1));
                    }
                    1 if item % 4 == 0 => prop_assert_eq!(blocks.pop_first(), model.pop_first()),
                    1 if item % 4 == 1 => prop_assert_eq!(blocks.pop_last(), model.pop_last()),
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
        let mut blocks = SortedBlocks::<_>::new();
        for item in 0..100_000u128 {
            assert!(blocks.insert(item));
        }
        assert!(blocks.memory_bytes() < 100_000 * 17, "{} bytes", blocks.memory_bytes());
    }

    #[test]
    fn packed_they_take_no_more_than_what_came_in_order() {
        const COUNT: u32 = 33_000;
        let (mut in_order, mut others) = (SortedBlocks::<u32>::new(), SortedBlocks::<u32>::new());
        (0..COUNT).for_each(|item| assert!(in_order.insert(2 * item)));
        (0..4 * COUNT).for_each(|item| assert!(others.insert(item)));
        let gone = (0..4 * COUNT).filter(|item| item % 2 == 1 || *item >= 2 * COUNT);
        gone.for_each(|item| assert!(others.remove(&item).is_some()));
        assert!(others.memory_bytes() > in_order.memory_bytes());
        others.pack();
        assert!(others.memory_bytes() <= in_order.memory_bytes());
        assert!(others.iter().eq(in_order.iter()));
    }
}
