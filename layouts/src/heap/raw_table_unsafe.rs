//! A hash table of records whose types are erased, in the order of the prefixes of its hashes.
//!
//! A directory leads from a prefix of the hash to a [block](super::group_unsafe), which has all entries of that prefix.
//! A block that is full is split in two by the next bit, and half of its entries move. So an insert never moves more
//! than the entries of a block, a key group is a range of blocks, and a walk in the order of hashes keeps its place
//! whatever is inserted, removed or split meanwhile. A table of few entries is one block, which doubles. Where too many
//! hashes agree to be split, further blocks hang behind the first.
//!
//! A look-up is typed and inlined (`probing_unsafe.rs`). All else is compiled once: growing is in `growing_unsafe.rs`,
//! taking apart in `dropping_unsafe.rs`, bits and places for checkpoints in `marks_unsafe.rs`.
//!
//! What it keeps true:
//! - Each block is reached from exactly the directory's places of its prefix, and all have `groups()` groups.
//! - `passed` of a window is not 0 while an entry is behind it.
//! - All memory of the table is booked.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind};

use super::group_unsafe::{BlockPointer, BlockShape, GroupBits, SLOTS, entries_max_of};
use crate::heap::hash_range::HashRange;
use crate::heap::record_position::RecordPosition;
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// Position of an entry until entries move: index in the directory, group in its chain of blocks, slot in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPosition {
    pub(super) index: u32,
    pub(super) group: u32,
    pub(super) slot: u32,
}

impl EntryPosition {
    pub(super) fn new(index: usize, group: usize, slot: usize) -> Self {
        Self { index: index as u32, group: group as u32, slot: slot as u32 }
    }
}

/// A block, and a slot of it.
pub(super) type BlockSlot = (BlockPointer, usize);

/// The table.
pub(crate) struct RawTable {
    pub(super) record_type: &'static RecordType,
    /// None of a table that was [detached](RawTable::detach).
    account: Option<Rc<Account>>,
    pub(super) shape: BlockShape,
    pub(super) range: HashRange,
    /// Bits that the hash, less the lowest of the range, is shifted to give an index of the directory.
    shift: u32,
    /// Slots of a block less one; at least those of a group.
    last: u32,
    /// Slots that a block has.
    slots: u32,
    pub(super) directory: Vec<BlockPointer>,
    /// What is left of the directory of a table that is being taken apart.
    #[expect(
        clippy::box_collection,
        reason = "hardly any table has one, and each has room for it"
    )]
    pub(super) leaving: Option<Box<Vec<BlockPointer>>>,
    /// Number of prefixes with blocks.
    pub(super) blocks: u32,
    pub(super) len: u64,
    /// Bits in which all hashes may agree: the directory may be longer by as many.
    pub(super) alike: u32,
    pub(super) booked: u64,
    /// Counts moves of entries within a prefix.
    pub(super) moved: u64,
    /// Bits that are set, and the number of the last barrier.
    pub(super) marked: u64,
    pub(super) epoch: u32,
    /// Whether the checkpoint of the last barrier reads all entries.
    pub(super) takes_all: bool,
    /// Whether places are noted, and whether they were lost since the last [question](RawTable::take_lost).
    pub(super) has_places: bool,
    pub(super) is_lost: bool,
}

impl std::fmt::Debug for RawTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawTable({} entries, {} blocks)", self.len, self.blocks)
    }
}

/// Iterates over the bits that are set.
pub(super) fn slots_of(mut word: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = word.trailing_zeros() as usize;
        let is_some = word != 0;
        word &= word.wrapping_sub(1);
        is_some.then_some(slot)
    })
}

// SAFETY: in all of these, a block was made by this table, with its shape, and `groups()` groups; groups are taken below
// that number, slots below `SLOTS`. No two references to one head are there at once.
impl RawTable {
    /// Makes an empty table, which takes no memory.
    pub fn new(record_type: &'static RecordType, account: Rc<Account>, range: HashRange) -> Self {
        let mut table = Self::detached(record_type, range);
        table.account = Some(account);
        table
    }

    /// Makes an empty table without an account, which cannot grow.
    fn detached(record_type: &'static RecordType, range: HashRange) -> Self {
        Self {
            record_type,
            account: None,
            shape: BlockShape::of(record_type.layout()),
            range,
            shift: 0,
            last: 0,
            slots: 0,
            directory: Vec::new(),
            leaving: None,
            blocks: 0,
            len: 0,
            alike: 0,
            booked: 0,
            moved: 0,
            marked: 0,
            epoch: 0,
            takes_all: false,
            has_places: false,
            is_lost: false,
        }
    }

    #[inline(always)]
    pub fn record_type(&self) -> &'static RecordType {
        self.record_type
    }

    /// Limits the number of groups of a block.
    pub fn with_groups_max(mut self, groups_max: usize) -> Self {
        debug_assert!(self.directory.is_empty() && groups_max.is_power_of_two());
        self.shape = self.shape.with_groups_max(groups_max);
        self
    }

    /// Returns the account of the table.
    ///
    /// # Panics
    /// If the table was detached.
    pub(super) fn account(&self) -> &Rc<Account> {
        self.account.as_ref().expect("a table with an account")
    }

    /// Takes all entries out, as a table that can only be read and dropped, also on another thread. Its memory stays
    /// booked: see [`memory_bytes`](RawTable::memory_bytes). Cost: O(1).
    pub fn detach(&mut self) -> Self {
        let empty = Self::new(self.record_type, self.account().clone(), self.range);
        let mut empty = empty.with_groups_max(self.shape.groups_max());
        empty.alike = self.alike;
        let mut taken = std::mem::replace(self, empty);
        taken.account = None;
        taken
    }

    /// Returns the number of entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn range(&self) -> HashRange {
        self.range
    }

    /// Returns the number of slots, without those of chained blocks.
    pub fn slots(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.slots)
    }

    /// Returns the number of entries of full blocks, without chained ones.
    pub fn capacity(&self) -> u64 {
        u64::from(self.blocks) * self.entries_max() as u64
    }

    /// Returns the bytes booked for the table.
    pub fn memory_bytes(&self) -> u64 {
        self.booked
    }

    /// Returns how often entries have moved within a prefix.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns a number that is another one once an entry has moved.
    pub fn moves(&self) -> u64 {
        self.moved + u64::from(self.blocks)
    }

    /// Returns the index of a hash in the directory: the highest bits of its [place](HashRange::place). Out of range if
    /// the table is empty.
    #[inline(always)]
    pub(super) fn index_of(&self, hash: u64) -> usize {
        // A hash that the table does not own, such as that of a record about the state itself, gets some index too.
        let last = self.directory.len().wrapping_sub(1);
        (hash.wrapping_sub(self.range.first_hash()) >> self.shift) as usize & last
    }

    /// Returns the length of the directory's prefixes, in bits.
    pub(super) fn depth(&self) -> u32 {
        self.directory.len().trailing_zeros()
    }

    /// Sets the number of slots of a block.
    pub(super) fn set_slots(&mut self, slots: usize) {
        self.last = (slots.max(SLOTS) - 1) as u32;
        self.slots = slots as u32;
    }

    /// Follows a change of the directory's length.
    pub(super) fn set_shift(&mut self) {
        self.shift = u64::BITS - self.range.same_bits() - self.depth();
    }

    pub(super) fn book(&mut self, bytes: u64) {
        if let Some(account) = &self.account {
            account.adjust(MemoryKind::Index, self.booked, bytes);
        }
        self.booked = bytes;
    }

    /// Returns the block of a spot and the group in it, whether or not the slot has an entry.
    #[inline]
    pub(super) fn resolve(&self, spot: EntryPosition) -> Option<(BlockPointer, usize)> {
        let mut block = *self.directory.get(spot.index as usize)?;
        let mut group = spot.group as usize;
        while group > self.mask() {
            // SAFETY: as said above.
            block = unsafe { block.head() }.next?;
            group -= self.groups();
        }
        Some((block, group))
    }

    /// Returns the slot of a spot, if it has an entry.
    #[inline]
    pub(super) fn occupied(&self, spot: EntryPosition) -> Option<BlockSlot> {
        let (block, group) = self.resolve(spot)?;
        let slot = group * SLOTS + spot.slot as usize;
        // SAFETY: as said above.
        let has = (spot.slot as usize) < SLOTS && unsafe { block.has(slot) };
        has.then_some((block, slot))
    }

    /// Returns the entry of a slot.
    ///
    /// # Safety
    /// The slot has one, and nobody changes it during `'a`.
    // SAFETY: the slot is the caller's promise.
    #[inline]
    pub(super) unsafe fn record<'a>(&self, (block, slot): BlockSlot) -> RecordRef<'a> {
        // SAFETY: as said above.
        unsafe {
            let entry = block.entry(self.shape, slot);
            RecordRef::new(self.record_type, entry.as_ptr())
        }
    }

    /// Returns the entry at a spot.
    #[inline]
    pub fn entry(&self, spot: EntryPosition) -> Option<RecordRef<'_>> {
        let at = self.occupied(spot)?;
        // SAFETY: the slot has an entry, and `self` is borrowed.
        Some(unsafe { self.record(at) })
    }

    /// Returns the memory of the entry at a spot.
    pub fn entry_mut(&mut self, spot: EntryPosition) -> Option<NonNull<u8>> {
        let (block, slot) = self.occupied(spot)?;
        // SAFETY: as said above.
        Some(unsafe { block.entry(self.shape, slot) })
    }

    /// Takes a slot for a new entry, which is marked as changed. [Room was made](RawTable::make_room) for it.
    ///
    /// # Safety
    /// The caller writes an entry of the table's types with this hash there before anything else happens.
    ///
    /// # Panics
    /// Without room.
    // SAFETY: the entry is the caller's promise.
    pub unsafe fn claim(&mut self, hash: u64) -> (NonNull<u8>, EntryPosition) {
        let index = self.index_of(hash);
        let ((block, slot), first) = self.claim_in(self.directory[index], hash);
        self.len += 1;
        self.mark_added((block, slot));
        // SAFETY: as said above.
        let entry = unsafe { block.entry(self.shape, slot) };
        (entry, EntryPosition::new(index, first + slot / SLOTS, slot % SLOTS))
    }

    /// Returns the index of a hash in the directory, and the first block there.
    #[inline(always)]
    pub(super) fn first_block(&self, hash: u64) -> Option<(usize, BlockPointer)> {
        let index = self.index_of(hash);
        Some((index, *self.directory.get(index)?))
    }

    /// Returns an empty slot of the window of a hash in its first block, if the block has room.
    #[inline(always)]
    pub(super) fn empty_slot(&self, block: BlockPointer, hash: u64) -> Option<usize> {
        let window = hash as usize & self.last();
        // SAFETY: as said above.
        let (len, empty) = unsafe { (block.head().len, block.window(window).matches(0)) };
        let has_room = empty != 0 && usize::from(len) < self.entries_max();
        has_room.then(|| (window + empty.trailing_zeros() as usize) & self.last())
    }

    /// Takes an [empty slot](RawTable::empty_slot) for a new entry of a table whose bits and places nobody reads.
    ///
    /// # Safety
    /// The table is of these types, the block is the first one of the hash, and nothing has happened since it had the
    /// slot. The caller writes an entry with this hash there before anything else happens.
    #[inline(always)]
    // SAFETY: types, block and slot are the caller's promise.
    pub(super) unsafe fn claim_empty<K, V>(
        &mut self,
        (block, slot): BlockSlot,
        hash: u64,
    ) -> NonNull<NativeEntry<K, V>> {
        let shape = const { BlockShape::of(Layout::new::<NativeEntry<K, V>>()) };
        self.len += 1;
        // SAFETY: as said above.
        unsafe {
            block.take(slot, hash);
            block.entry(shape, slot).cast()
        }
    }

    /// Takes a slot in the first block of a chain that has room. Also returns how many groups are before that block.
    pub(super) fn claim_in(&self, mut block: BlockPointer, hash: u64) -> (BlockSlot, usize) {
        let mut first = 0;
        // SAFETY: as said above.
        unsafe {
            while usize::from(block.head().len) >= self.entries_max() {
                block.pass_all();
                block = block.head().next.expect("room was made");
                first += self.groups();
            }
            ((block, block.fill(hash)), first)
        }
    }

    /// Removes the entry at a spot. Returns its memory, valid until the next call, and the place of its record.
    ///
    /// # Safety
    /// The caller reads or drops the entry before anything else happens.
    // SAFETY: the entry is the caller's.
    pub unsafe fn remove(
        &mut self,
        spot: EntryPosition,
        hash: u64,
    ) -> Option<(NonNull<u8>, RecordPosition)> {
        let at = self.occupied(spot)?;
        let place = self.unmark(at);
        self.vacate(spot.index as usize, at, hash);
        self.len -= 1;
        // SAFETY: as said above.
        Some((unsafe { at.0.entry(self.shape, at.1) }, place))
    }

    /// Removes and drops the entry at a spot. Returns the place of its record.
    pub fn drop_entry(&mut self, spot: EntryPosition, hash: u64) -> Option<RecordPosition> {
        // SAFETY: it is dropped at once.
        unsafe {
            let (entry, place) = self.remove(spot, hash)?;
            self.record_type.drop_entry(entry.as_ptr());
            Some(place)
        }
    }

    /// Empties a slot of a block in the chain at `index`.
    pub(super) fn vacate(&mut self, index: usize, (block, slot): BlockSlot, hash: u64) {
        let mut passed = self.directory[index];
        // SAFETY: as said above.
        unsafe {
            while passed != block {
                passed.unpass_all();
                passed = passed.head().next.expect("the block hangs there");
            }
            block.vacate(slot, hash);
        }
    }

    /// Returns the index of a place of the hashes, and the place where the next prefix begins: `None` after the last.
    /// Both are `None` in an empty table. A walk begins at 0.
    pub fn part_at(&self, place: u64) -> (Option<usize>, Option<u64>) {
        if self.directory.is_empty() {
            return (None, None);
        }
        let index = (place >> (u64::BITS - self.depth())) as usize;
        let depth = self.depth_at(index);
        let size = if depth == 0 { 0 } else { 1u64 << (u64::BITS - depth) };
        let end = if depth == 0 { None } else { (place & !(size - 1)).checked_add(size) };
        (Some(index), end)
    }

    /// Iterates over the places where parts begin, in order.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(0), |place| self.part_at(*place).1)
    }

    /// Iterates over a chain of blocks of this table, each of which is there until it was returned, and may be freed then.
    pub(super) fn chain(
        &self,
        first: BlockPointer,
    ) -> impl Iterator<Item = BlockPointer> + Clone + use<> {
        let mut next = Some(first);
        std::iter::from_fn(move || {
            let block = next?;
            // SAFETY: as said above.
            next = unsafe { block.head() }.next;
            Some(block)
        })
    }

    /// Counts the entries of a chain of blocks of this table.
    pub(super) fn chain_len(&self, first: BlockPointer) -> usize {
        // SAFETY: as said above.
        self.chain(first).map(|block| usize::from(unsafe { block.head() }.len)).sum()
    }

    /// Iterates over the slots of a block of this table that have an entry. It stays meanwhile.
    pub(super) fn slots_in(&self, block: BlockPointer) -> impl Iterator<Item = usize> + use<> {
        (0..=self.mask()).flat_map(move |group| {
            // SAFETY: as said above; the tags are read here.
            slots_of(unsafe { block.occupied(group) }).map(move |slot| group * SLOTS + slot)
        })
    }

    /// Counts the groups at an index of the directory.
    pub fn groups_at(&self, index: usize) -> usize {
        self.chain(self.directory[index]).count() * self.groups()
    }

    /// Counts the entries at an index of the directory.
    pub fn len_at(&self, index: usize) -> usize {
        self.chain_len(self.directory[index])
    }

    /// Iterates over the entries of a group at an index.
    pub fn spots(&self, index: usize, group: usize) -> impl Iterator<Item = EntryPosition> + use<> {
        let slots = slots_of(self.occupied_slots(index, group));
        slots.map(move |slot| EntryPosition::new(index, group, slot))
    }

    /// Iterates over the entries at an index, in no order.
    pub fn entries_at(&self, index: usize) -> impl Iterator<Item = RecordRef<'_>> {
        let (mut next, mut group, mut left) = (Some(self.directory[index]), 0, 0u16);
        std::iter::from_fn(move || {
            while left == 0 {
                if group > self.mask() {
                    // SAFETY: as said above.
                    (next, group) = (unsafe { next?.head() }.next, 0);
                }
                // SAFETY: as said above.
                left = unsafe { next?.occupied(group) };
                group += 1;
            }
            let slot = (group - 1) * SLOTS + left.trailing_zeros() as usize;
            left &= left - 1;
            // SAFETY: as said above; a slot with a tag has an entry, and `self` is borrowed.
            Some(unsafe { self.record((next?, slot)) })
        })
    }

    /// Returns the number of groups of a block.
    #[inline(always)]
    pub(super) fn groups(&self) -> usize {
        self.mask() + 1
    }

    /// Returns the number of slots of a block.
    pub(super) fn block_slots(&self) -> usize {
        self.slots as usize
    }

    /// Returns the number of entries of a full block.
    #[inline]
    pub(super) fn entries_max(&self) -> usize {
        entries_max_of(self.slots as usize)
    }

    /// Returns the number of groups of a block less one.
    #[inline(always)]
    pub(super) fn mask(&self) -> usize {
        self.last as usize / SLOTS
    }

    /// Returns the number of slots of a block less one.
    #[inline(always)]
    pub(super) fn last(&self) -> usize {
        self.last as usize
    }

    /// Returns the first block at an index of the directory.
    #[inline]
    pub(super) fn block_at(&self, index: usize) -> BlockPointer {
        self.directory[index]
    }

    /// Returns the bits of the prefix that all hashes at an index share.
    #[inline]
    pub(super) fn depth_at(&self, index: usize) -> u32 {
        // SAFETY: as said above.
        u32::from(unsafe { self.directory[index].head() }.depth)
    }

    /// Returns the bits of a group.
    pub(super) fn bits_mut(&mut self, (block, group): (BlockPointer, usize)) -> &mut GroupBits {
        // SAFETY: as said above; the table is borrowed as long.
        unsafe { block.bits_mut(group) }
    }
}
