//! When small buckets are packed: from the time on when memory is short and many of them are in it, and as long as
//! something is packed. Nothing is kept for it before and after: a state that has no small buckets does not know of it.

use alluvium_pagestore::Account;

use super::{BUCKETS_SHARE, PackedState, is_plain};
use crate::append_log::bucket::{AppendBucket, BUCKET_BYTES};
use crate::append_log::core::ListsCore;
use crate::append_log::run::RUN_BYTES;

/// Small buckets may take one part in so many of the memory before they are packed for a checkpoint, while memory is not
/// short.
const PLENTY_SHARE: u64 = 16;
/// Once buckets would take more than one part in so many of the memory with runs of their own, larger ones are packed too:
/// those that take up to one part in so many of the memory.
const PLENTY_OF_LARGE_SHARE: u64 = 16;
const LARGE_SHARE: u64 = 8;
/// One part in so many of the memory is to be free beside what is kept when packing ends: else it would begin again soon.
const END_SHARE: u64 = 16;

/// Whether so many buckets with runs of their own take more than a part of the memory.
fn are_many(buckets: usize, share: u64, account: &Account) -> bool {
    buckets as u64 * (BUCKET_BYTES + RUN_BYTES) > account.limit() / share
}

impl ListsCore {
    /// Whether small buckets are packed.
    pub(in crate::append_log) fn packs(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.writes)
    }

    /// Begins to pack small buckets if memory is short and there are many of them, and memory for it. Says whether they are
    /// packed. Cost: O(buckets) if they were not.
    pub(in crate::append_log) fn begin_packing(&mut self) -> bool {
        self.begin_from(BUCKETS_SHARE)
    }

    /// Begins if small buckets take more than a part of the memory.
    fn begin_from(&mut self, share: u64) -> bool {
        let are_large = are_many(self.buckets.len(), PLENTY_OF_LARGE_SHARE, &self.account);
        let Some(packed) = self.packed.as_mut().filter(|_| self.sizes.packs_slices) else {
            return false;
        };
        if are_large && !packed.packs_large {
            packed.packs_large = true;
            self.kept = None;
        }
        if packed.writes {
            return true;
        }
        // What is restored is merged, and has memory kept for reading it anyway.
        let has_packed = !packed.directory.is_empty();
        let begins = has_packed || self.has_many_small(share);
        let packed = self.packed.as_mut().expect("looked at above");
        if !begins {
            packed.lacks_memory = false;
            return false;
        }
        packed.lacks_memory = !packed.take_memory();
        if packed.lacks_memory {
            return false;
        }
        // What was accepted for runs of its own is to be read in what is left.
        self.kept = None;
        if has_packed || self.has_kept(0) {
            return true;
        }
        self.packed.as_mut().expect("looked at above").give_memory_back();
        self.kept = None;
        false
    }

    /// [`begin_packing`](ListsCore::begin_packing) for lists that are going to be written. While memory is plentiful they may
    /// stay in it, but not too many of them: a bucket that has a run of its own is not packed any more.
    pub(in crate::append_log) fn begin_packing_to_write(&mut self) -> bool {
        let is_short = self.account.available() + self.reaping < self.sizes.want_free;
        self.begin_from(if is_short { BUCKETS_SHARE } else { PLENTY_SHARE })
    }

    /// Gives the memory for packing back, once nothing is packed and few buckets are to be. Cost: O(buckets) if nothing is
    /// packed.
    pub(in crate::append_log) fn end_packing(&mut self) {
        let Some(packed) = self.packed.as_mut().filter(|packed| packed.may_end) else { return };
        packed.may_end = false;
        if !packed.is_idle() || self.sizes.packs_from_the_start {
            return;
        }
        // If it cannot end it is tried again when memory has changed.
        packed.tried_to_end = packed.account.available();
        if self.has_many_small(2 * BUCKETS_SHARE) {
            return;
        }
        // What is in memory is to be read once it has runs of its own.
        self.packed.as_mut().expect("looked at above").writes = false;
        self.kept = None;
        let has_kept = self.has_kept(self.account.limit() / END_SHARE);
        let packed = self.packed.as_mut().expect("looked at above");
        match has_kept {
            true => packed.give_memory_back(),
            false => packed.writes = true,
        }
        self.kept = None;
        if !has_kept {
            self.kept_now();
            self.packed.as_mut().expect("looked at above").may_end = false;
        }
    }

    /// Whether so many buckets are small, of which some can be packed, that with runs of their own they take more than a part
    /// of the memory.
    pub(super) fn has_many_small(&self, share: u64) -> bool {
        if !self.sizes.packs_all && !are_many(self.buckets.len(), share, &self.account) {
            return false;
        }
        let small_bytes = self.packed.as_ref().map_or(0, |packed| packed.packable_bytes());
        let element = self.pieces.elements.layout().size() as u64;
        let (mut small, mut stored) = (0, 0);
        for bucket in self.buckets.values() {
            if self.freed_by_packing(bucket).is_some() {
                small += 1;
            } else if is_small_with_runs(bucket, (small_bytes, element)) {
                stored += 1;
            }
        }
        let are_many = are_many(small + stored, share, &self.account);
        small > 0 && (self.sizes.packs_all || are_many)
    }
}

/// Whether a bucket that has runs of its own would be small without them. In memory its lists take about twice as much as on
/// storage, and its elements at least what they are. Cost: O(runs), and as many blocks as a small bucket may have.
fn is_small_with_runs(bucket: &AppendBucket, (small_bytes, element): (u64, u64)) -> bool {
    let stored = bucket.runs.iter().filter_map(|run| run.stored.as_ref());
    let mut blocks =
        stored.flat_map(|stored| &stored.blocks).map(|block| u64::from(block.record.len));
    let unwritten = bucket.runs.iter().filter(|run| run.stored.is_none());
    let unwritten = unwritten.filter_map(|run| run.memory.as_ref()).map(|run| run.booked.total());
    let in_memory = bucket.live_bytes() + unwritten.sum::<u64>();
    let most = small_bytes.saturating_sub(in_memory);
    let stored = bucket.runs.iter().filter(|run| run.stored.is_some());
    let are_few = stored.map(|run| run.elements).sum::<u64>() * element <= most;
    let has_room = |sum: u64, bytes: u64| Some(sum + bytes).filter(|sum| *sum <= most / 2);
    are_few && is_plain(bucket) && !bucket.runs.is_empty() && blocks.try_fold(0, has_room).is_some()
}

impl ListsCore {
    /// Takes the memory for packing while there is some, as whoever opened the log knows that many small slices come.
    pub(in crate::append_log) fn pack_from_the_start(&mut self) {
        if let Some(packed) = self.packed.as_mut().filter(|packed| !packed.writes) {
            packed.lacks_memory = !packed.take_memory();
        }
    }

    /// Takes what writing packed slices takes, whether there is that much or not, for a log that is only asked what it
    /// wants. Says how much.
    pub(in crate::append_log) fn packs_from_now_on(&mut self) -> u64 {
        let Some(packed) = &mut self.packed else { return 0 };
        packed.writes = true;
        self.kept = None;
        packed.runs.memory_bytes()
    }
}

impl PackedState {
    /// Up to how many bytes in memory a bucket is packed where there are many.
    pub(in crate::append_log) fn packable_bytes_of_many(&self) -> u64 {
        self.small_bytes.max(self.account.limit() / LARGE_SHARE)
    }

    /// Whether nothing is packed, being packed or loaded.
    fn is_idle(&self) -> bool {
        self.writes
            && self.directory.is_empty()
            && self.going.is_empty()
            && self.loaded.is_empty()
            && !self.is_lent
    }

    /// Up to how many bytes in memory a bucket is packed.
    pub(super) fn packable_bytes(&self) -> u64 {
        match self.packs_large {
            true => self.small_bytes.max(self.account.limit() / LARGE_SHARE),
            false => self.small_bytes,
        }
    }

    /// Whether packing could not begin for lack of memory that is there now.
    pub(super) fn may_begin(&self) -> bool {
        self.lacks_memory && self.has_memory_to_begin()
    }

    fn has_memory_to_begin(&self) -> bool {
        let bytes = self.runs.memory_bytes() + self.merge_bytes();
        self.account.available() >= bytes + self.account.limit() / 64
    }

    /// Takes the memory for writing and merging. Says whether there is some.
    fn take_memory(&mut self) -> bool {
        let is_there = self.has_memory_to_begin();
        if is_there {
            self.writer_memory.charge(self.runs.memory_bytes());
            self.purse.charge(self.merge_bytes());
            self.writes = true;
        }
        is_there
    }

    fn give_memory_back(&mut self) {
        if self.directory.is_empty() {
            // Files that cannot be removed are left over until the next open.
            let _ = self.levels.clear();
            self.ahead.give_up();
        }
        self.levels.give_up();
        self.writer_memory.give_back();
        self.purse.give_back();
        (self.writes, self.packs_large) = (false, false);
    }
}
