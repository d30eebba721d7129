//! How a heap table grows: its only block doubles, or a block is split by the next bit of its hashes.
//!
//! What it keeps true:
//! - All hashes are computed before the first entry moves: a hash that panics leaves the table as it was.
//! - Bits and places move with their entries.
//! - No call moves more than the entries of a block, or of a chain of blocks whose hashes agree in too many bits.

use alluvium_pagestore::{MemoryKind, Result, rounded};

use super::entry_table_unsafe::PART_ENTRIES_MAX;
use super::group_unsafe::{BlockPointer, BlockShape, GROUPS_MAX, SLOTS, SLOTS_MIN, entries_max};
use super::raw_table_unsafe::{BlockSlot, RawTable, slots_of};
use crate::support::booked::Booked;

/// Most places of the directory per block. Entries whose hashes agree in more bits get chained blocks.
const DIRECTORY_SHARE: usize = 16;
/// The same of tables whose blocks have few groups: they may be filled in the order of their hashes, as totals of windows and
/// what is restored are, and then the first prefixes have all entries. Places take no more memory than such a block.
const DIRECTORY_SHARE_OF_FEW: usize = 256;
const GROUPS_FEW: usize = 8;
/// Most doublings of that for state that may have few of many key groups.
const ALIKE_MAX: u32 = 8;

/// Entries that a part is expected to have, at most: of evenly spread hashes few parts get so many more that they are
/// split.
const EXPECTED_MAX: u64 = 96;

/// Most blocks that a call makes for expected entries: a millisecond's work.
pub(super) const EXPECTED_BLOCKS_MAX: u64 = 256;

/// The hashes of a block's entries, by slot.
type Hashes = [u64; GROUPS_MAX * SLOTS];

// SAFETY: in all of these, a block was made by this table, with its shape, and `groups()` groups; groups are taken below
// that number, slots below `SLOTS`. No two references to one head are there at once.
impl RawTable {
    /// Allows all entries to be of one of `groups` key groups.
    pub fn expect_few_of(mut self, groups: u16) -> Self {
        self.alike = (u16::BITS - groups.saturating_sub(1).leading_zeros()).min(ALIKE_MAX);
        self
    }

    /// Returns whether there is room for an entry with this hash.
    #[inline]
    pub fn has_room(&self, hash: u64) -> bool {
        let mut next = self.directory.get(self.index_of(hash)).copied();
        while let Some(block) = next {
            // SAFETY: as said above.
            let head = unsafe { block.head() };
            if usize::from(head.len) < self.entries_max() {
                return true;
            }
            next = head.next;
        }
        false
    }

    /// Makes room for an entry with this hash.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget); no entry is lost then.
    #[inline]
    pub fn make_room(&mut self, hash: u64) -> Result<()> {
        if self.has_room(hash) { Ok(()) } else { self.grow(hash) }
    }

    /// Returns the memory that making room for an entry takes. It takes more only if a split leaves all entries in one
    /// half.
    pub fn growth_bytes(&self, hash: u64) -> u64 {
        if self.has_room(hash) {
            return 0;
        }
        let Some(first) = self.directory.get(self.index_of(hash)) else {
            return self.shape.block_bytes(SLOTS_MIN)
                + rounded(2 * size_of::<BlockPointer>()) as u64;
        };
        let slots = (2 * self.block_slots()).min(self.shape.slots_max());
        // SAFETY: as said above.
        let depth = u32::from(unsafe { first.head() }.depth);
        let has_places = self.hanging_places(*first);
        let places = if has_places { BlockShape::places_bytes(slots.div_ceil(SLOTS)) } else { 0 };
        let doubles = self.block_slots() == self.shape.slots_max() && depth == self.depth();
        let directory = if doubles { 2 * size_of_val(&*self.directory) } else { 0 };
        self.shape.block_bytes(slots) + places + rounded(directory) as u64
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, hash: u64) -> Result<()> {
        while !self.has_room(hash) {
            self.grow_step(hash)?;
        }
        Ok(())
    }

    /// Makes or splits a block, so that there is room for an entry with this hash, unless all entries went to one half.
    /// Takes [so much](RawTable::growth_bytes) at most.
    ///
    /// # Errors
    /// As for [`make_room`](RawTable::make_room).
    pub fn grow_step(&mut self, hash: u64) -> Result<()> {
        if self.directory.is_empty() {
            self.begin(SLOTS_MIN, 0)
        } else {
            let index = self.index_of(hash);
            // SAFETY: as said above.
            let depth = u32::from(unsafe { self.directory[index].head() }.depth);
            let share = match self.shape.groups_max() <= GROUPS_FEW {
                true => DIRECTORY_SHARE_OF_FEW.max(DIRECTORY_SHARE << self.alike),
                false => DIRECTORY_SHARE << self.alike,
            };
            let directory_max = share * self.blocks as usize;
            if self.block_slots() < self.shape.slots_max() {
                self.double()
            } else if depth < self.depth() || self.directory.len() < directory_max {
                self.split(hash, depth + 1)
            } else {
                self.hang(index)
            }
        }
    }

    /// Makes the first blocks, of `slots` slots, for prefixes of `depth` bits.
    fn begin(&mut self, slots: usize, depth: u32) -> Result<()> {
        // With one bit at least, a shift is less than 64.
        let (places, blocks) = ((1usize << depth).max(2), 1 << depth);
        let bytes = rounded(places * size_of::<BlockPointer>()) as u64;
        let block_bytes = self.shape.block_bytes(slots);
        self.account().ensure(blocks as u64 * block_bytes + bytes, "a hash table")?;
        assert!(self.leaving.is_none(), "a table that is being taken apart does not grow");
        let mut directory = Vec::with_capacity(places);
        self.set_slots(slots);
        for _ in 0..blocks {
            directory.push(self.new_block(depth));
        }
        directory.resize(places, directory[0]);
        (self.directory, self.blocks) = (directory, blocks as u32);
        self.set_shift();
        self.book(self.booked + bytes);
        Ok(())
    }

    /// Makes a block, for which there is room.
    fn new_block(&mut self, depth: u32) -> BlockPointer {
        let slots = self.block_slots();
        let block = BlockPointer::new(self.shape, slots, depth, self.epoch);
        self.book(self.booked + self.shape.block_bytes(slots));
        block
    }

    /// Makes the blocks of an empty table that `entries` entries with evenly spread hashes are going to fill, `blocks_max`
    /// at most. Makes none if they take more than half of the free memory. Cost: in the number of blocks.
    pub fn expect(&mut self, entries: u64, blocks_max: u64) {
        let groups = self.shape.groups_max();
        let blocks = (entries / entries_max(groups) as u64).min(blocks_max);
        if !self.directory.is_empty() || blocks < 2 {
            return;
        }
        self.expect_prefixes(blocks.ilog2());
    }

    /// Makes the parts of an empty table for so many entries, whose hashes are spread evenly. Returns whether there was
    /// anything to do, and memory for it; if not, parts are made as entries come.
    pub fn expect_parts(&mut self, entries: u64) -> bool {
        let depth = entries.div_ceil(EXPECTED_MAX).next_power_of_two().ilog2();
        entries > EXPECTED_MAX && self.expect_prefixes(depth)
    }

    /// Makes parts of an empty table for entries that come in the order of their evenly spread hashes, at most as many as
    /// they are going to fill.
    pub fn expect_parts_in_order(&mut self, entries: u64) {
        let parts = entries / PART_ENTRIES_MAX as u64;
        if parts > 1 {
            self.expect_prefixes(parts.ilog2());
        }
    }

    /// Makes a block for each prefix of `depth` bits of an empty table. Makes none if they take more than half of the
    /// free memory. Returns whether it did. Cost: in the number of blocks.
    pub fn expect_prefixes(&mut self, depth: u32) -> bool {
        let slots = self.shape.slots_max();
        let bytes = (self.shape.block_bytes(slots) + 8).saturating_mul(1 << depth.min(40));
        // Without the memory they are made as entries come.
        self.directory.is_empty()
            && bytes <= self.account().available() / 2
            && self.begin(slots, depth).is_ok()
    }

    /// Moves the entries of the only block to a block of twice as many slots.
    fn double(&mut self) -> Result<()> {
        debug_assert!(self.blocks == 1, "only the first block grows");
        let (old, slots) = (self.directory[0], self.block_slots());
        // SAFETY: as said above.
        let (has_places, depth) = unsafe { (old.has_places(), old.head().depth.into()) };
        let places =
            if has_places { BlockShape::places_bytes((2 * slots).div_ceil(SLOTS)) } else { 0 };
        let bytes = self.shape.block_bytes(2 * slots) + places;
        self.account().ensure(bytes, "a hash table")?;
        let hashes = self.hashes_of(old);
        let moving = self.moving_of(old, &hashes, &|_| true);
        self.set_slots(2 * slots);
        let new = self.new_blocks(1, depth, has_places);
        for (slot, hash) in moving {
            self.move_entry((old, slot), new, hash);
        }
        self.moved += 1;
        self.directory.fill(new);
        self.free_block(old, slots);
        Ok(())
    }

    /// Returns the hashes of a block's entries.
    fn hashes_of(&self, block: BlockPointer) -> Hashes {
        let mut hashes = [0; GROUPS_MAX * SLOTS];
        for slot in self.slots_in(block) {
            // SAFETY: as said above; a slot with a tag has an entry.
            hashes[slot] = unsafe { self.record((block, slot)) }.hash();
        }
        hashes
    }

    /// Returns whether any block of a chain notes places.
    fn hanging_places(&self, first: BlockPointer) -> bool {
        // SAFETY: as said above.
        self.chain(first).any(|block| unsafe { block.has_places() })
    }

    /// Returns the hashes of the later blocks of a chain, and their booking. Usually there are none.
    fn hashes_behind(&self, first: BlockPointer) -> Result<(Vec<Hashes>, Booked)> {
        let count = self.chain(first).count() - 1;
        let bytes = rounded(count * size_of::<Hashes>()) as u64;
        let account = self.account().clone();
        let booked = Booked::reserve(account, MemoryKind::Buffers, bytes, "a hash table")?;
        let mut hashes = Vec::with_capacity(count);
        hashes.extend(self.chain(first).skip(1).map(|block| self.hashes_of(block)));
        Ok((hashes, booked))
    }

    /// Iterates over the slots of a block whose entries are to move, with their hashes. Those of one hash come in the
    /// order of a look-up, and stay in it where they move to: a walk over them may go on after a table has grown. So
    /// what was put before its first window, as nothing was free behind it, comes last.
    fn moving_of<'a>(
        &self,
        block: BlockPointer,
        hashes: &'a Hashes,
        moves: &'a dyn Fn(u64) -> bool,
    ) -> impl Iterator<Item = (usize, u64)> + use<'a> {
        let (mask, last) = (self.mask(), self.last());
        let of_group = move |group, is_before: bool| {
            // SAFETY: as said above.
            let slots = slots_of(unsafe { block.occupied(group) });
            let all = slots.map(move |slot| (group * SLOTS + slot, hashes[group * SLOTS + slot]));
            let is_now = move |slot, hash| (slot < hash as usize & last) == is_before;
            all.filter(move |(slot, hash)| is_now(*slot, *hash) && moves(*hash))
        };
        let of = move |is_before| (0..=mask).flat_map(move |group| of_group(group, is_before));
        of(false).chain(of(true))
    }

    /// Splits a chain of blocks by one more bit of their hashes.
    fn split(&mut self, hash: u64, depth: u32) -> Result<()> {
        let (range, lower) = (self.range, self.directory[self.index_of(hash)]);
        let is_upper = |hash: u64| range.place(hash) << (depth - 1) >> 63 == 1;
        let (first, (behind, _booked)) = (self.hashes_of(lower), self.hashes_behind(lower)?);
        let hashed = self.chain(lower).zip(std::iter::once(&first).chain(&behind));
        let count = |(block, hashes)| self.moving_of(block, hashes, &is_upper).count();
        let upper_len: usize = hashed.clone().map(count).sum();
        let blocks = upper_len.div_ceil(self.entries_max()).max(1);
        let has_places = self.hanging_places(lower);
        self.ensure_blocks(blocks, has_places, depth)?;
        if depth > self.depth() {
            self.double_directory();
        }
        let upper = self.new_blocks(blocks, depth, has_places);
        self.blocks += 1;
        let index = self.index_of(hash);
        for (block, hashes) in hashed {
            for (slot, hash) in self.moving_of(block, hashes, &is_upper) {
                self.move_entry((block, slot), upper, hash);
                self.vacate(index, (block, slot), hash);
            }
        }
        self.deepen(lower, depth);
        let longer = self.depth() - depth;
        let first = (index >> longer | 1) << longer;
        self.directory[first..first + (1 << longer)].fill(upper);
        Ok(())
    }

    fn double_directory(&mut self) {
        let before = rounded(size_of_val(&*self.directory)) as u64;
        self.directory = self.directory.iter().flat_map(|block| [*block, *block]).collect();
        self.set_shift();
        let after = rounded(size_of_val(&*self.directory)) as u64;
        self.book(self.booked - before + after);
    }

    fn ensure_blocks(&self, blocks: usize, has_places: bool, depth: u32) -> Result<()> {
        let groups = self.groups();
        let places = if has_places { BlockShape::places_bytes(groups) } else { 0 };
        let directory = if depth > self.depth() { 2 * self.directory.len() } else { 0 };
        let bytes = blocks as u64 * (self.shape.block_bytes(self.block_slots()) + places)
            + rounded(directory * size_of::<BlockPointer>()) as u64;
        self.account().ensure(bytes, "a hash table")
    }

    /// Makes a chain of blocks, for which there is room.
    fn new_blocks(&mut self, blocks: usize, depth: u32, has_places: bool) -> BlockPointer {
        let mut next = None;
        for _ in 0..blocks {
            let block = self.new_block(depth);
            if has_places {
                self.book(self.booked + BlockShape::places_bytes(self.groups()));
                // SAFETY: as said above.
                unsafe { block.make_places() };
            }
            // SAFETY: as said above.
            unsafe { block.head_mut() }.next = next;
            next = Some(block);
        }
        next.expect("one at least")
    }

    /// Sets a longer prefix for a chain of blocks, and frees empty blocks at its end.
    fn deepen(&mut self, first: BlockPointer, depth: u32) {
        let (mut next, mut last_used) = (Some(first), first);
        while let Some(block) = next {
            // SAFETY: as said above.
            let head = unsafe { block.head_mut() };
            head.depth = depth as u8;
            next = head.next;
            if head.len > 0 {
                last_used = block;
            }
        }
        // SAFETY: as said above.
        let mut next = unsafe { last_used.head_mut() }.next.take();
        while let Some(block) = next {
            // SAFETY: as said above.
            next = unsafe { block.head() }.next;
            self.free_block(block, self.block_slots());
        }
    }

    /// Adds a block to the chain at an index.
    fn hang(&mut self, index: usize) -> Result<()> {
        let last = self.chain(self.directory[index]).last().expect("one at least");
        // SAFETY: as said above.
        unsafe {
            self.ensure_blocks(1, last.has_places(), 0)?;
            let block = self.new_blocks(1, last.head().depth.into(), last.has_places());
            last.head_mut().next = Some(block);
        }
        Ok(())
    }

    /// Copies an entry to another chain of blocks, with its bits and place. The caller empties the old slot.
    fn move_entry(&mut self, from: BlockSlot, to: BlockPointer, hash: u64) {
        let mark = self.lift(from);
        let (to, _) = self.claim_in(to, hash);
        // SAFETY: as said above; the slots are two, of entries of this size.
        unsafe {
            let source = from.0.entry(self.shape, from.1);
            let target = to.0.entry(self.shape, to.1);
            target.copy_from_nonoverlapping(source, self.record_type.layout().size());
        }
        self.put(to, mark);
    }
}
