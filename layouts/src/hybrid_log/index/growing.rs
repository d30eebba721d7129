//! How the index grows: a segment is split in two, and what that takes is booked before.
//!
//! What it keeps true: an insert splits one segment at most, and a split that does not fit the budget has
//! changed nothing.

use alluvium_pagestore::{ByteSize, Error, ErrorKind, MemoryKind, ReclaimScope, Result, rounded};

use super::bucket::{DISTANCE_MAX, IndexBucket, IndexEntry, SLOTS};
use super::segments_unsafe::{IndexSegment, Segments};
use super::{Index, IndexHash, PREFIX_BITS};
use crate::hybrid_log::Address;

/// Entries beyond this with all hash bits alike are refused.
const STRAYS_MAX: usize = 1 << 16;

impl Index {
    /// Makes sure that one entry of this hash can be inserted: splits at most one segment.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if the split does not fit the budget; nothing has changed then.
    pub fn prepare(&mut self, hash: IndexHash) -> Result<()> {
        if self.vacancy(hash).is_some() {
            return Ok(());
        }
        if self.may_split(hash) {
            self.split(self.segment_of(hash))?;
            if self.vacancy(hash).is_some() {
                return Ok(());
            }
        }
        if self.strays.len() < self.strays.capacity() {
            return Ok(());
        }
        if self.strays.len() >= STRAYS_MAX {
            let message = format!("{STRAYS_MAX} keys share all 31 hash bits of the index");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // In small steps: with hashes this bad, memory is worth more than time.
        let capacity = self.strays.capacity() + self.strays.capacity() / 8 + 4;
        let bytes = rounded(capacity * size_of::<(IndexHash, Address)>()) as u64;
        self.reserve(bytes)?;
        self.strays.reserve_exact(capacity - self.strays.len());
        self.account.release(MemoryKind::Index, bytes);
        self.book_tables();
        Ok(())
    }

    /// Whether an entry of this hash has room without a split.
    pub fn has_room_for(&self, hash: IndexHash) -> bool {
        self.vacancy(hash).is_some()
    }

    /// So many entries are going to be there.
    pub fn expect(&mut self, entries: u64) {
        self.expected = self.expected.max(entries);
    }

    /// So many keys are there that have no entry.
    pub fn expect_as_well(&mut self, keys: u64) {
        self.expected = self.expected.max(self.len + keys);
    }

    /// Whether splitting the segment of a hash can be of use. Hashes that are all alike in their top
    /// bits would deepen the directory without end: a segment is split only while it is not deeper
    /// than three levels below an even split, of the keys that are expected if there are more. Keys
    /// that come in the order of their hashes need that: all so far are alike in their top bits. So
    /// are all of a few key groups. And only if an entry leaves the buckets of this hash so: those
    /// of the same hash never do.
    fn may_split(&self, hash: IndexHash) -> bool {
        let number = self.segment_of(hash);
        let even = self.len.max(self.expected) / (self.buckets * SLOTS) as u64 + 1;
        let may = |depth: u32| depth < PREFIX_BITS && 1 << depth <= even << (3 + self.alike);
        let buckets = self.segments.buckets(number);
        may(self.segments.shape(number).0)
            && (0..=DISTANCE_MAX).any(|distance| {
                let mut leaves = false;
                buckets[(self.home(hash) + distance) & (self.buckets - 1)].for_each(|_, entry| {
                    leaves |= may(bits_alike(entry.prefix(), hash.prefix()));
                });
                leaves
            })
    }

    /// Splits one segment by the next bit of its entries' prefixes.
    fn split(&mut self, number: u32) -> Result<()> {
        let (depth, _) = self.segments.shape(number);
        let (segment, tables) = (segment_bytes(self.buckets), self.tables_growth(depth));
        self.reserve(segment + tables)?;
        self.account.release(MemoryKind::Index, tables);
        let (upper, old) = self.segments.split(number, &mut self.pool);
        self.splits += 1;
        crate::trace_event!(TRACE, "index split", segment = number);
        // Each half holds a subset of what stood in the old segment, so that every entry can keep
        // its bucket; then entries are pulled towards their homes.
        let homes = self.buckets - 1;
        for (at, bucket) in old.iter().enumerate() {
            bucket.for_each(|slot, entry| {
                let home = at.wrapping_sub(entry.distance as usize) & homes;
                let half = self.segment_of(IndexHash::new(entry.prefix(), home as u32));
                self.segments.buckets_mut(half)[at].put(slot, entry);
            });
        }
        self.segments.recycle(old);
        settle(self.segments.buckets_mut(number));
        settle(self.segments.buckets_mut(upper));
        let mut kept = std::mem::take(&mut self.strays);
        let mut i = 0;
        while i < kept.len() {
            let (hash, address) = kept[i];
            let of_split = self.segment_of(hash) == number || self.segment_of(hash) == upper;
            if of_split && self.vacancy(hash).is_some() {
                kept.swap_remove(i);
                self.place(hash, address);
            } else {
                if of_split {
                    let (segment, home) = (self.segment_of(hash), self.home(hash));
                    self.segments.buckets_mut(segment)[home].set_overflowed(true);
                }
                i += 1;
            }
        }
        self.strays = kept;
        self.book_tables();
        Ok(())
    }

    /// Bytes that splitting a segment of this depth may add to the tables, while old and new
    /// ones are both there.
    fn tables_growth(&self, depth: u32) -> u64 {
        let mut bytes = 0;
        if depth == self.segments.bits() {
            let (entries, _) = self.segments.directory();
            bytes +=
                Segments::ENTRY_BYTES.iter().map(|each| rounded(entries * 2 * each)).sum::<usize>();
        }
        if self.segments.len() == self.segments.capacity() {
            bytes += rounded(self.segments.capacity() * 2 * size_of::<IndexSegment>());
        }
        bytes as u64
    }

    /// Books `bytes`, unless they do not fit or would leave less than the floor to pages.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let account = &self.account;
        let wanted = account.used_for(MemoryKind::Index) + bytes;
        self.wanted_beyond.set((wanted > self.held_at).then_some(wanted));
        if wanted > self.held_at {
            let message = format!("the index is held at {} bytes", self.held_at);
            return Err(Error::new(ErrorKind::OverBudget, message).with("state", account.name()));
        }
        let elastic = account.used_for(MemoryKind::Pages) + account.used_for(MemoryKind::Values);
        let (fixed, floor) = (account.used() - elastic, self.floor_bytes);
        // What other states keep is theirs, where room can be made in another way.
        let is_bounded = self.asks_for_pages && self.held_at == u64::MAX;
        let limit = if is_bounded { account.attainable() } else { account.limit() };
        let free = limit.saturating_sub(fixed + floor);
        self.is_held_back.set(bytes > free);
        let fits = bytes <= account.limit().saturating_sub(fixed + floor);
        self.is_held_by_others.set(bytes > free && fits);
        if bytes > free {
            // Twice as many keys, with what is there beside the index and what pages need.
            let index = account.used_for(MemoryKind::Index);
            let enough = (fixed + index + floor + bytes).next_multiple_of(1024);
            let [index, whole, enough] = [index, limit, enough].map(|n| ByteSize(n).short());
            let keys = self.len;
            let message = format!(
                "index needs {bytes} of {limit} bytes, {free} are free beside the {floor} that pages \
                 need; the index of {keys} keys fills {index} of {whole}: {enough} would do"
            );
            return Err(Error::new(ErrorKind::OverBudget, message).with("state", account.name()));
        }
        let left = account.left_to_others();
        if self.asks_for_pages && !account.ensure_of(ReclaimScope::Pages, bytes + left) {
            return Err(account.over_budget(bytes, "index"));
        }
        account.ensure_left(bytes, "index")?;
        account.reserve(MemoryKind::Index, bytes, "index")
    }

    /// Whether it was last refused for what is neither pages nor values, so that none of these are in its way.
    pub fn is_held_back(&self) -> bool {
        self.is_held_back.get()
    }

    /// Whether that was for what other states hold.
    pub fn is_held_by_others(&self) -> bool {
        self.is_held_by_others.get()
    }

    /// Sets the bytes that it is not to pass, until it is looked how many it may have.
    pub fn hold_at(&mut self, bytes: u64) {
        self.held_at = bytes;
        self.wanted_beyond.set(None);
    }

    /// Sets whether it leaves other states what they would have to make again. Its owner can make room in another way.
    pub fn ask_for_pages(&mut self, only: bool) {
        self.asks_for_pages = only;
    }

    /// Whether it does.
    pub fn asks_for_pages(&self) -> bool {
        self.asks_for_pages
    }

    /// What it wanted to have when it was last refused, if that was for being held.
    pub fn wanted_beyond(&self) -> Option<u64> {
        self.wanted_beyond.get()
    }

    /// Sets what the index must leave to pages and values.
    pub fn set_floor(&mut self, bytes: u64) {
        self.floor_bytes = bytes;
    }

    /// Books what the tables beside the segments take now.
    pub(super) fn book_tables(&mut self) {
        let (_, [homes, numbers]) = self.segments.directory();
        let [home, number] = Segments::ENTRY_BYTES;
        let now = (rounded(self.segments.capacity() * size_of::<IndexSegment>())
            + segment_bytes(self.buckets) as usize
            + rounded(homes * home)
            + rounded(numbers * number)
            + rounded(self.strays.capacity() * size_of::<(IndexHash, Address)>()))
            as u64;
        self.account.adjust(MemoryKind::Index, self.booked_tables, now);
        self.booked_tables = now;
    }
}

/// Bits from the top in which two prefixes are alike: a split of a segment of that depth puts them apart.
fn bits_alike(one: u32, other: u32) -> u32 {
    (one ^ other).leading_zeros() + PREFIX_BITS - u32::BITS
}

/// Bytes booked per segment: its buckets, and what aligning them to cache lines costs.
pub(super) fn segment_bytes(buckets: usize) -> u64 {
    rounded(buckets * size_of::<IndexBucket>() + 64) as u64
}

/// Pulls entries towards their homes and sets the homes' marks.
fn settle(buckets: &mut [IndexBucket]) {
    let mask = buckets.len() - 1;
    for at in 0..buckets.len() {
        let mut used = buckets[at].used();
        while used != 0 {
            let slot = used.trailing_zeros() as usize;
            used &= used - 1;
            let entry = buckets[at].entry(slot);
            let home = at.wrapping_sub(entry.distance as usize) & mask;
            let nearer = (0..entry.distance).find_map(|distance| {
                let to = (home + distance as usize) & mask;
                buckets[to].vacant().map(|vacant| (distance, to, vacant))
            });
            if let Some((distance, to, vacant)) = nearer {
                buckets[at].clear(slot);
                buckets[to].put(vacant, IndexEntry { distance, ..entry });
            }
        }
    }
    for at in 0..buckets.len() {
        let mut homes = [None; 7];
        buckets[at].for_each(|slot, entry| {
            let home = at.wrapping_sub(entry.distance as usize) & mask;
            homes[slot] = (entry.distance > 0).then_some(home);
        });
        for home in homes.into_iter().flatten() {
            buckets[home].set_overflowed(true);
        }
    }
}
