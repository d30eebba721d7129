//! Where slices are: each in a slot, found by the tree of slices, by what is remembered of it, or,
//! if it is the slice that was used last, by that alone.
//!
//! What it keeps true: a slot that is remembered is that of its slice; the table of slots and the tree
//! are booked by slice.

use alluvium_pagestore::{MemoryKind, Result, Time, hash_word};

use super::core::SegmentsCore;
use super::slice::Slice;
use super::slice_checkpoint::SLICE_SHARE_BYTES;
use super::tables::CatalogTables;
use crate::support::tree_bytes::tree_bytes;

/// Slices whose places are remembered, beside the tree of all: a power of two.
pub(super) const RECENT: usize = 256;
/// A slice is made for at most so many entries at once: 128 parts, which take some 40 us.
const EXPECTED_MAX: u64 = 12_288;
/// A slice is made for more than one entry if so many times that memory is free.
const EXPECTED_SHARE: u64 = 8;
/// Bytes of an entry of the tree of slices: the first one takes a whole node.
const TREE_BYTES: u64 = tree_bytes::<Time, u32>(1);

impl SegmentsCore {
    /// Where a slice is, if it is there.
    #[inline]
    pub(super) fn slot_of(&mut self, slice: Time) -> Option<usize> {
        if self.last.0 == slice && self.last.1 != u32::MAX {
            return Some(self.last.1 as usize);
        }
        self.find_slot(slice)
    }

    #[inline(never)]
    fn find_slot(&mut self, slice: Time) -> Option<usize> {
        let recent = &mut self.recent[recent_of(slice)];
        if recent.0 != slice || recent.1 == u32::MAX {
            *recent = (slice, *self.by_time.get(&slice)?);
        }
        self.last = *recent;
        Some(recent.1 as usize)
    }

    #[inline]
    pub(super) fn slice_at(&self, slot: usize) -> &Slice {
        self.slots[slot].as_ref().expect("a slice in use")
    }

    #[inline]
    pub(super) fn slice_at_mut(&mut self, slot: usize) -> &mut Slice {
        self.slots[slot].as_mut().expect("a slice in use")
    }

    /// Bytes that a slice takes beside its parts.
    pub(super) const SLICE_BYTES: u64 = 2 * size_of::<Option<Slice>>() as u64 + TREE_BYTES;

    /// The slice, made if it is not there.
    pub(super) fn begin_slice(&mut self, slice: Time) -> Result<usize> {
        if let Some(slot) = self.slot_of(slice) {
            return Ok(slot);
        }
        self.open_log_in_time();
        if self.sizes.packs_all {
            self.pack_all();
        }
        // A table of slices that doubles has both for a moment.
        let growth =
            if self.slots.len() == self.slots.capacity() { self.slots.len() as u64 } else { 0 };
        let bytes = Self::SLICE_BYTES;
        let growth = growth * size_of::<Option<Slice>>() as u64;
        let share = self.slice_share_bytes();
        self.make_room_to_stay(bytes + growth + share, "a slice")?;
        self.account.charge(MemoryKind::Tables, bytes);
        self.fund.add(share);
        let mut new = Slice::new(self.types, &self.account, self.range);
        match self.context.movable {
            true => new.active = new.active.expect_few_of(self.context.key_groups),
            false => self.expect_as_many(&mut new),
        }
        let slot = match self.vacant.pop() {
            Some(slot) => slot,
            None => {
                if self.slots.len() == self.slots.capacity() {
                    // A vector takes four at first otherwise.
                    self.slots.reserve_exact(self.slots.len().max(1));
                }
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.slots[slot as usize] = Some(new);
        self.by_time.insert(slice, slot);
        Ok(slot as usize)
    }

    /// Makes a new slice's table for as many entries as the slice had that was purged last: entries then do
    /// not move while the table grows.
    fn expect_as_many(&self, new: &mut Slice) {
        let entries = self.entries_likely.min(EXPECTED_MAX);
        let likely = entries * 2 * self.types.record_bytes() as u64;
        if self.account.available() / EXPECTED_SHARE > likely {
            new.active.expect(entries);
        }
    }

    /// What is booked for checkpoints when a slice comes: while one is read, the catalog has the rest.
    fn slice_share_bytes(&self) -> u64 {
        SLICE_SHARE_BYTES - if self.is_restoring { CatalogTables::TABLE_BYTES } else { 0 }
    }

    /// Takes a slice out, with all that it has.
    pub(super) fn end_slice(&mut self, slice: Time) -> Option<Slice> {
        let slot = self.by_time.remove(&slice)?;
        self.recent[recent_of(slice)].1 = u32::MAX;
        self.last.1 = u32::MAX;
        self.vacate(slot)
    }

    /// Takes what is in a slot out.
    pub(super) fn vacate(&mut self, slot: u32) -> Option<Slice> {
        self.vacant.push(slot);
        self.slots[slot as usize].take()
    }

    /// Forgets where slices are, all but the tree.
    pub(super) fn forget_places(&mut self) {
        self.recent.fill((Time::MIN, u32::MAX));
        self.last.1 = u32::MAX;
    }

    /// The slices, but those that are purged.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.by_time.values().map(|slot| self.slice_at(*slot as usize))
    }

    /// Returns the first slice from a time on. Never inlined, so that the walk is compiled once.
    #[inline(never)]
    pub(super) fn next_slice(&self, from: Time) -> Option<Time> {
        let own = self.by_time.range(from..).next().map(|(slice, _)| *slice);
        let packed = self.packed.as_ref().and_then(|packed| packed.lists.next_bucket(from));
        own.into_iter().chain(packed).min()
    }

    /// Counts the entries of all slices, as [`Slice::len`].
    #[inline(never)]
    pub(super) fn len(&self) -> u64 {
        let packed = self.packed.as_ref().map_or(0, |packed| packed.lists.len());
        self.slices().map(Slice::len).sum::<u64>() + packed
    }

    /// Ends a slice without anything in it.
    pub(super) fn end_if_empty(&mut self, slice: Time) {
        let Some(slot) = self.slot_of(slice) else { return };
        let found = self.slice_at(slot);
        if found.active.is_empty() && !found.has_older_parts() {
            if let Some(ended) = self.end_slice(slice) {
                self.retire(ended);
            }
            self.bury(64);
        }
    }
}

/// Where a slice is remembered.
#[inline(always)]
fn recent_of(slice: Time) -> usize {
    (hash_word(slice.0 as u64) >> (u64::BITS - RECENT.ilog2())) as usize
}
