//! Look-ups in a heap table: typed and inlined as far as the first window of tags, compiled once beyond it.
//!
//! A look-up is a load from the directory, a comparison of 16 tags, and one of keys. A batch looks at the tags of its
//! hashes first and prefetches the entries ([`SlotHint`]), then compares keys.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::group_unsafe::{BlockPointer, BlockShape, SLOTS, tag_of};
use super::raw_table_unsafe::{EntryPosition, RawTable, slots_of};
use crate::support::prefetch_unsafe::prefetch;
use crate::support::record_type_unsafe::{NativeEntry, RecordRef};

/// A native entry, found by a look-up.
pub(crate) struct FoundEntry<K, V> {
    pub entry: NonNull<NativeEntry<K, V>>,
    slot: FoundSlot,
}

/// Its slot: in a block at an index of the directory, with `first` groups of the chain before the block.
#[derive(Clone, Copy)]
struct FoundSlot {
    index: usize,
    block: BlockPointer,
    first: usize,
    slot: usize,
}

impl FoundSlot {
    fn spot(self) -> EntryPosition {
        EntryPosition::new(self.index, self.first + self.slot / SLOTS, self.slot % SLOTS)
    }
}

impl<K, V> FoundEntry<K, V> {
    #[inline(always)]
    pub fn spot(&self) -> EntryPosition {
        self.slot.spot()
    }
}

/// A hint: the slot that a [look-up ahead](RawTable::look_ahead) has found. May be outdated or wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotHint(u16);

// SAFETY: in all of these, a block was made by this table, with its shape, and `groups()` groups; groups are taken below
// that number, slots below `SLOTS`.
impl RawTable {
    /// Finds the entry with this hash that `is` it. Cost: two cache lines of a large table, beside the key's own.
    ///
    /// # Safety
    /// The table is of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub unsafe fn probe<K, V>(
        &self,
        hash: u64,
        is: impl FnMut(&NativeEntry<K, V>) -> bool,
    ) -> Option<FoundEntry<K, V>> {
        let (index, block) = self.first_block_ahead::<K, V>(hash)?;
        // SAFETY: the block is the one of the hash; the types are the caller's promise.
        unsafe { self.probe_in((index, block), hash, is) }
    }

    /// Does the same from the first block at the index of the hash on.
    ///
    /// # Safety
    /// The table is of these types, and has this block there.
    #[inline(always)]
    // SAFETY: types and block are the caller's promise.
    pub(super) unsafe fn probe_in<K, V>(
        &self,
        (index, block): (usize, BlockPointer),
        hash: u64,
        mut is: impl FnMut(&NativeEntry<K, V>) -> bool,
    ) -> Option<FoundEntry<K, V>> {
        let shape = const { BlockShape::of(Layout::new::<NativeEntry<K, V>>()) };
        let window = hash as usize & self.last();
        // SAFETY: as said above; a slot with a tag has an entry of these types.
        unsafe {
            let mut found = block.window(window).matches(tag_of(hash));
            while found != 0 {
                let slot = (window + found.trailing_zeros() as usize) & self.last();
                let entry = block.entry(shape, slot).cast::<NativeEntry<K, V>>();
                if is(entry.as_ref()) {
                    return Some(FoundEntry {
                        entry,
                        slot: FoundSlot { index, block, first: 0, slot },
                    });
                }
                found &= found - 1;
            }
            if block.is_passed(window) { self.probe_further(hash, &mut is) } else { None }
        }
    }

    /// Finds an entry in any window. Few are not in the first.
    ///
    /// # Safety
    /// The table is of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    unsafe fn probe_further<K, V>(
        &self,
        hash: u64,
        is: &mut impl FnMut(&NativeEntry<K, V>) -> bool,
    ) -> Option<FoundEntry<K, V>> {
        // SAFETY: the search gives entries of the table, which are of these types.
        let slot = self
            .search(hash, &mut |entry| is(unsafe { entry.cast::<NativeEntry<K, V>>().as_ref() }))?;
        // SAFETY: the slot has an entry.
        Some(FoundEntry { entry: unsafe { slot.block.entry(self.shape, slot.slot) }.cast(), slot })
    }

    /// Finds the first slot with the tag of a hash whose entry `is` it, window by window. Compiled once: a look-up that
    /// comes here makes an indirect call per entry with the tag.
    #[inline(never)]
    fn search(&self, hash: u64, is: &mut dyn FnMut(NonNull<u8>) -> bool) -> Option<FoundSlot> {
        let index = self.index_of(hash);
        let (mut block, mut first) = (*self.directory.get(index)?, 0);
        loop {
            let mut window = hash as usize & self.last();
            for _ in 0..=self.mask() {
                // SAFETY: as said above.
                for found in slots_of(unsafe { block.window(window) }.matches(tag_of(hash))) {
                    let slot = (window + found) & self.last();
                    // SAFETY: as said above; a slot with a tag has an entry.
                    if is(unsafe { block.entry(self.shape, slot) }) {
                        return Some(FoundSlot { index, block, first, slot });
                    }
                }
                // SAFETY: as said above.
                if !unsafe { block.is_passed(window) } {
                    return None;
                }
                window = (window + SLOTS) & self.last();
            }
            // SAFETY: as said above.
            block = unsafe { block.head() }.next?;
            first += self.groups();
        }
    }

    /// Iterates over the entries with the tag of a hash that stand where it may, each once, from the window with this
    /// number on, and tells in which window each is. Cost: that of one look-up that finds nothing.
    pub fn alike_from(
        &self,
        hash: u64,
        mut number: usize,
    ) -> impl Iterator<Item = (usize, RecordRef<'_>)> {
        let (tag, begin) = (tag_of(hash), hash as usize & self.last());
        let first = self.directory.get(self.index_of(hash));
        let mut block = first.and_then(|first| self.chain(*first).nth(number / self.groups()));
        let (mut windows, mut found) = (number & self.mask(), None);
        let mut window = (begin + windows * SLOTS) & self.last();
        std::iter::from_fn(move || {
            loop {
                let at = block?;
                // SAFETY: as said above.
                let left: &mut u16 =
                    found.get_or_insert_with(|| unsafe { at.window(window).matches(tag) });
                if *left != 0 {
                    let slot = (window + left.trailing_zeros() as usize) & self.last();
                    *left &= *left - 1;
                    // SAFETY: as said above; a slot with a tag has an entry, and `self` is borrowed.
                    return Some((number, unsafe { self.record((at, slot)) }));
                }
                // SAFETY: as said above.
                let (is_passed, next) = unsafe { (at.is_passed(window), at.head().next) };
                if !is_passed {
                    block = None;
                    return None;
                }
                (number, windows, found) = (number + 1, windows + 1, None);
                window = (window + SLOTS) & self.last();
                if windows > self.mask() {
                    (block, window, windows) = (next, begin, 0);
                }
            }
        })
    }

    /// Returns whether an entry is already marked as changed since the last barrier.
    ///
    /// # Safety
    /// The entry was found in this table, and no entry has moved since.
    #[inline(always)]
    // SAFETY: what was found is the caller's promise.
    pub unsafe fn has_changed<K, V>(&self, found: &FoundEntry<K, V>) -> bool {
        let FoundSlot { block, slot, .. } = found.slot;
        // SAFETY: the block is where it was.
        unsafe { block.has_changed(self.last() + 1, slot, self.epoch) }
    }

    /// Prefetches the entry that a look-up of a hash compares first, and returns its slot. For a change, also prefetches
    /// its bits.
    ///
    /// # Safety
    /// The table is of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub unsafe fn look_ahead_native<K, V>(&self, hash: u64, changes: bool) -> SlotHint {
        self.look_ahead_in(
            const { BlockShape::of(Layout::new::<NativeEntry<K, V>>()) },
            hash,
            changes,
        )
    }

    /// Does the same in a table of any types, for a change.
    pub fn look_ahead(&self, hash: u64) -> SlotHint {
        self.look_ahead_in(self.shape, hash, true)
    }

    #[inline(always)]
    fn look_ahead_in(&self, shape: BlockShape, hash: u64, changes: bool) -> SlotHint {
        let Some(block) = self.directory.get(self.index_of(hash)) else {
            return SlotHint::default();
        };
        let window = hash as usize & self.last();
        // SAFETY: as said above; both callers know the shape.
        unsafe {
            let found = block.window(window).matches(tag_of(hash));
            let slot = (window + found.trailing_zeros() as usize) & self.last();
            prefetch(block.address(shape, slot));
            if changes {
                prefetch(std::ptr::from_ref(block.head()));
                prefetch(block.bits_at(self.last() + 1, slot / SLOTS).as_ptr());
            }
            SlotHint(slot as u16)
        }
    }

    /// Finds the entry with this hash that `is` it, at the hinted slot first. If it is elsewhere, costs more than
    /// [`probe`](Self::probe).
    ///
    /// # Safety
    /// The table is of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub unsafe fn probe_near<K, V>(
        &self,
        hash: u64,
        near: SlotHint,
        mut is: impl FnMut(&NativeEntry<K, V>) -> bool,
    ) -> Option<FoundEntry<K, V>> {
        let shape = const { BlockShape::of(Layout::new::<NativeEntry<K, V>>()) };
        let index = self.index_of(hash);
        let (block, slot) = (*self.directory.get(index)?, usize::from(near.0) & self.last());
        // SAFETY: as said above; a slot with a tag has an entry of these types, also if others moved since.
        unsafe {
            if block.has_tag(slot, tag_of(hash)) {
                let entry = block.entry(shape, slot).cast::<NativeEntry<K, V>>();
                if is(entry.as_ref()) {
                    return Some(FoundEntry {
                        entry,
                        slot: FoundSlot { index, block, first: 0, slot },
                    });
                }
            }
            self.probe_further(hash, &mut is)
        }
    }

    /// Returns the entry at the hinted slot, if it has the tag of a hash.
    ///
    /// # Safety
    /// The table is of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's promise.
    pub unsafe fn near<K, V>(
        &self,
        hash: u64,
        near: SlotHint,
    ) -> Option<NonNull<NativeEntry<K, V>>> {
        let shape = const { BlockShape::of(Layout::new::<NativeEntry<K, V>>()) };
        let block = *self.directory.get(self.index_of(hash))?;
        let slot = usize::from(near.0) & self.last();
        // SAFETY: as said above; a slot with a tag has an entry of these types.
        unsafe { block.has_tag(slot, tag_of(hash)).then(|| block.entry(shape, slot).cast()) }
    }

    /// Finds the entry with this hash that `is` it.
    pub fn find(
        &self,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) -> Option<EntryPosition> {
        let is = &mut |entry: NonNull<u8>| {
            // SAFETY: the search gives entries of the table, which stay while `self` is borrowed.
            is(unsafe { RecordRef::new(self.record_type, entry.as_ptr()) })
        };
        self.search(hash, is).map(FoundSlot::spot)
    }

    /// Does the same, and prefetches the slot where the window of the hash begins, in a table of these types.
    #[inline(always)]
    pub(super) fn first_block_ahead<K, V>(&self, hash: u64) -> Option<(usize, BlockPointer)> {
        let (index, block) = self.first_block(hash)?;
        // Most entries are near the start of their window: do not wait for the tags.
        let shape = const { BlockShape::of(Layout::new::<NativeEntry<K, V>>()) };
        prefetch(block.address(shape, hash as usize & self.last()));
        Some((index, block))
    }
}
