//! The hash index: extendible hashing over small segments of cache-line buckets.
//!
//! An entry is 9 bytes: a 16-bit tag, 7 more bits of the hash, and an [`Address`]. There is one
//! entry per key, so liveness is a probe and a delete removes the entry. A directory maps
//! the top bits of the hash to a segment; a segment that has no room for an entry is split in two,
//! which moves at most one segment's entries and touches no record.
//!
//! What it keeps true: every entry stands in its home bucket or up to [`DISTANCE_MAX`] after it,
//! and the home is marked if any stands after it. Entries that find no room even after a split
//! (only with a hash that repeats its 31 bits) stand in a list that is searched in order.

mod bucket;
mod by_prefix;
mod growing;
mod needs;
mod segments_unsafe;
mod shrinking;
mod tags_unsafe;
#[cfg(test)]
mod tests;

use alluvium_pagestore::{Account, Helper, MemoryKind, Result, rounded};
use std::cell::Cell;
use std::rc::Rc;

use bucket::{DISTANCE_MAX, EXTRA_BITS, IndexBucket, IndexEntry};
use growing::segment_bytes;
use segments_unsafe::{IndexSegment, Segments};

use super::address::Address;
use super::pool_unsafe::PiecePool;

/// The 31 bits of a key's hash that the index works with: from the top a 23-bit prefix that
/// chooses the segment and tells entries apart, then 8 bits that choose the bucket, then a 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHash(pub u32);

impl IndexHash {
    /// Creates the index's hash from a key's hash and its place among the hashes of the owned key
    /// groups. The place excludes the bits that all owned hashes share, which the exchange between
    /// workers has used up.
    #[inline(always)]
    pub fn of(hash: u64, place: u64) -> IndexHash {
        Self::new((place >> (64 - PREFIX_BITS)) as u32, hash as u32 & 0xff)
    }

    #[inline(always)]
    fn new(prefix: u32, bucket: u32) -> IndexHash {
        IndexHash(prefix << 9 | bucket << 1)
    }

    #[inline(always)]
    fn tag(self) -> u16 {
        (self.0 >> 9) as u16
    }

    /// The home bucket, to be taken modulo.
    #[inline(always)]
    fn bucket(self) -> usize {
        (self.0 >> 1) as usize
    }

    #[inline(always)]
    fn extra(self) -> u8 {
        (self.0 >> 25) as u8
    }
}

/// Bits of the prefix, and so the deepest a split can go.
pub const PREFIX_BITS: u32 = 16 + EXTRA_BITS;

/// The position of an entry, valid until the index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    segment: u32,
    bucket: u16,
    /// Slot of the bucket, or the place in the list of strays.
    slot: u32,
    stray: bool,
}

/// The index of one table.
#[derive(Debug)]
pub struct Index {
    account: Rc<Account>,
    segments: Segments,
    /// Memory for more segments.
    pool: PiecePool,
    buckets: usize,
    strays: Vec<(IndexHash, Address)>,
    len: u64,
    /// Entries of records on storage.
    stored: u64,
    /// Entries that are going to be there, as far as anybody has told.
    expected: u64,
    /// The prefix to which siblings were last looked at.
    looked_to: u32,
    /// Segments that were looked at for one that had to be split, since two were joined; whether all were; and the entries
    /// that have gone since that began.
    looked_in_vain: usize,
    all_in_vain: bool,
    gone: u64,
    /// Segments that were looked at, and pairs that became one.
    #[cfg(test)]
    looked_at: u64,
    joins: u64,
    /// Bits in which all hashes may be alike, from the top, beside what an even split allows.
    alike: u32,
    splits: u64,
    /// Bytes booked for everything but the segments themselves.
    booked_tables: u64,
    /// Bytes that growing leaves to pages and values.
    floor_bytes: u64,
    /// Whether it was last refused for what pages and values need.
    is_held_back: Cell<bool>,
    /// Whether that was for what other states hold.
    is_held_by_others: Cell<bool>,
    /// Bytes that it is not to pass, and what it wanted to have when it was last refused for that.
    held_at: u64,
    /// Whether it has other states give up pages only, and leaves them filters of runs and what is saved up for moves.
    asks_for_pages: bool,
    wanted_beyond: Cell<Option<u64>>,
}

impl Index {
    /// Creates an empty index with segments of `buckets` (a power of two from 8 to 256). With a
    /// helper, memory for many segments is touched ahead.
    pub fn new(account: Rc<Account>, buckets: usize, helper: Option<Helper>) -> Result<Index> {
        assert!(buckets.is_power_of_two() && (8..=256).contains(&buckets), "{buckets} buckets");
        account.reserve(MemoryKind::Index, Self::memory_bytes_min(buckets), "the index")?;
        let layout = Segments::layout(buckets);
        let mut pool = PiecePool::new(layout, account.clone(), MemoryKind::Index, helper);
        let mut index = Index {
            account,
            segments: Segments::new(buckets, &mut pool),
            pool,
            buckets,
            strays: Vec::new(),
            len: 0,
            stored: 0,
            expected: 0,
            looked_to: 0,
            looked_in_vain: 0,
            all_in_vain: false,
            gone: 0,
            #[cfg(test)]
            looked_at: 0,
            joins: 0,
            alike: 0,
            splits: 0,
            booked_tables: Self::memory_bytes_min(buckets) - segment_bytes(buckets),
            floor_bytes: 0,
            is_held_back: Cell::new(false),
            is_held_by_others: Cell::new(false),
            held_at: u64::MAX,
            asks_for_pages: false,
            wanted_beyond: Cell::new(None),
        };
        index.book_tables();
        Ok(index)
    }

    /// Returns the least memory that an index with such segments opens with.
    pub fn memory_bytes_min(buckets: usize) -> u64 {
        segment_bytes(buckets)
            + [size_of::<IndexSegment>(), 8, 4]
                .map(|bytes| rounded(bytes) as u64)
                .iter()
                .sum::<u64>()
    }

    /// Reserves on another account from now on. The caller has moved the present reservation there.
    pub fn book_on(&mut self, account: &Rc<Account>) {
        self.account = account.clone();
        self.pool.book_on(account);
    }

    /// Returns the number of entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of entries whose records are only on storage.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of segments split so far.
    pub fn splits(&self) -> u64 {
        self.splits
    }

    /// Hints the processor to load the bucket of `hash`.
    #[inline]
    pub fn prefetch(&self, hash: IndexHash) {
        crate::support::prefetch_unsafe::prefetch(self.segments.bucket_of(hash.0, hash.bucket()));
    }

    /// Returns the first entry of this hash that `is_it` accepts. `is_it` sees every entry whose
    /// bits agree; at most one is the key's.
    #[inline(always)]
    pub fn find(
        &self,
        hash: IndexHash,
        mut is_it: impl FnMut(Address) -> bool,
    ) -> Option<(Position, Address)> {
        let bucket = self.segments.bucket_of(hash.0, hash.bucket());
        if let Some((slot, address)) = find_in(bucket, hash, 0, &mut is_it) {
            let (segment, home) = (self.segment_of(hash), self.home(hash) as u16);
            let position = Position { segment, bucket: home, slot, stray: false };
            return Some((position, address));
        }
        if !bucket.overflowed() {
            return None;
        }
        self.find_elsewhere(hash, self.home(hash), &mut is_it)
    }

    /// Returns whether `is_it` accepts an entry in the home bucket that leads to memory, by its
    /// slot. Two to ten of a hundred keys are outside their home bucket.
    #[inline(always)]
    pub fn any_at_home(&self, hash: IndexHash, mut is_it: impl FnMut(u64) -> bool) -> bool {
        let bucket = self.segments.bucket_of(hash.0, hash.bucket());
        let mut matches = bucket.matches(hash.tag());
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize;
            matches &= matches - 1;
            if bucket.memory_if(slot, hash.extra(), 0).is_some_and(&mut is_it) {
                return true;
            }
        }
        false
    }

    /// Returns whether `is_it` accepts an entry that leads to memory, by its slot.
    #[inline(always)]
    pub fn any_in_memory(&self, hash: IndexHash, mut is_it: impl FnMut(u64) -> bool) -> bool {
        if self.any_at_home(hash, &mut is_it) {
            return true;
        }
        if !self.segments.bucket_of(hash.0, hash.bucket()).overflowed() {
            return false;
        }
        let mut is_it = |address: Address| address.is_memory() && is_it(address.0);
        self.find_elsewhere(hash, self.home(hash), &mut is_it).is_some()
    }

    /// Goes on after the home bucket. Compiled once: an indirect call per entry whose bits agree.
    #[inline(never)]
    fn find_elsewhere(
        &self,
        hash: IndexHash,
        home: usize,
        mut is_it: &mut dyn FnMut(Address) -> bool,
    ) -> Option<(Position, Address)> {
        let number = self.segment_of(hash);
        let buckets = self.segments.buckets(number);
        for distance in 1..=DISTANCE_MAX {
            let at = (home + distance) & (self.buckets - 1);
            if let Some((slot, address)) = find_in(&buckets[at], hash, distance, &mut is_it) {
                let position = Position { segment: number, bucket: at as u16, slot, stray: false };
                return Some((position, address));
            }
        }
        let strays = self.strays.iter().enumerate();
        let of_hash = strays.filter(|(_, (stray, _))| *stray == hash);
        let (slot, address) =
            of_hash.map(|(i, (_, address))| (i, *address)).find(|a| is_it(a.1))?;
        let (bucket, slot) = (home as u16, slot as u32);
        Some((Position { segment: number, bucket, slot, stray: true }, address))
    }

    /// Changes the address of an entry.
    #[inline]
    pub fn set(&mut self, at: Position, address: Address) {
        self.stored += u64::from(!address.is_memory());
        self.stored -= u64::from(!self.address(at).is_memory());
        if at.stray {
            self.strays[at.slot as usize].1 = address;
        } else {
            self.segments.buckets_mut(at.segment)[at.bucket as usize]
                .set_address(at.slot as usize, address);
        }
    }

    #[inline]
    fn address(&self, at: Position) -> Address {
        if at.stray {
            return self.strays[at.slot as usize].1;
        }
        self.segments.buckets(at.segment)[at.bucket as usize].entry(at.slot as usize).address
    }

    /// Replaces the address `old` of an entry by `new`, and returns whether there was one.
    #[inline]
    pub fn replace(&mut self, hash: IndexHash, old: Address, new: Address) -> bool {
        match self.find(hash, |address| address == old) {
            Some((at, _)) => {
                self.set(at, new);
                true
            }
            None => false,
        }
    }

    /// Inserts an entry. [`prepare`](Index::prepare) must have found room.
    pub fn insert(&mut self, hash: IndexHash, address: Address) {
        self.len += 1;
        self.stored += u64::from(!address.is_memory());
        self.place(hash, address);
    }

    /// Removes an entry.
    pub fn remove(&mut self, at: Position) {
        self.len -= 1;
        self.gone += 1;
        self.stored -= u64::from(!self.address(at).is_memory());
        let home = if at.stray {
            self.strays.swap_remove(at.slot as usize);
            at.bucket as usize
        } else {
            let buckets = self.segments.buckets_mut(at.segment);
            let bucket = &mut buckets[at.bucket as usize];
            let distance = bucket.entry(at.slot as usize).distance as usize;
            bucket.clear(at.slot as usize);
            if distance == 0 {
                return;
            }
            (at.bucket as usize).wrapping_sub(distance) & (self.buckets - 1)
        };
        self.refresh_mark(at.segment, home);
    }

    /// Calls `visit` with every entry from prefix `from` on of the segment that holds it, and returns the
    /// first prefix after that segment; `None` after the last one. Segments may be split and joined between calls: an
    /// entry that stays is seen exactly once.
    pub fn visit(&self, from: u32, mut visit: impl FnMut(Address)) -> Option<u32> {
        self.visit_prefixes(from, u32::MAX, |_, address| visit(address)).1
    }

    /// Continues for another index, whose memory may still exist.
    pub fn go_on_from(&mut self, before: &Index) {
        self.expected = before.expected;
        self.pool.go_on_from(&before.pool);
    }

    /// Removes all entries and frees the memory.
    pub fn clear(&mut self) {
        while self.drop_one() {}
    }

    /// Removes all entries and frees one segment. Returns whether there was one to free.
    pub fn drop_one(&mut self) -> bool {
        if self.len > 0 || self.segments.bits() > 0 || self.strays.capacity() > 0 {
            self.segments.leave_all();
            self.strays = Vec::new();
            (self.len, self.stored) = (0, 0);
            (self.looked_in_vain, self.all_in_vain, self.gone) = (0, false, 0);
        }
        let is_dropped = self.segments.drop_last();
        if is_dropped {
            self.account.release(MemoryKind::Index, segment_bytes(self.buckets));
        }
        self.book_tables();
        is_dropped
    }

    /// Entries that stand in no segment.
    #[cfg(test)]
    pub fn strays(&self) -> usize {
        self.strays.len()
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    #[inline(always)]
    fn home(&self, hash: IndexHash) -> usize {
        hash.bucket() & (self.buckets - 1)
    }

    #[inline(always)]
    fn segment_of(&self, hash: IndexHash) -> u32 {
        self.segments.number_of(hash.0)
    }

    /// Bucket and slot where an entry of this hash would go.
    #[inline]
    fn vacancy(&self, hash: IndexHash) -> Option<(usize, usize, usize)> {
        let buckets = self.segments.buckets(self.segment_of(hash));
        let home = self.home(hash);
        (0..=DISTANCE_MAX).find_map(|distance| {
            let at = (home + distance) & (self.buckets - 1);
            buckets[at].vacant().map(|slot| (distance, at, slot))
        })
    }

    fn place(&mut self, hash: IndexHash, address: Address) {
        let home = self.home(hash);
        let number = self.segment_of(hash);
        let vacancy = self.vacancy(hash);
        let buckets = self.segments.buckets_mut(number);
        match vacancy {
            Some((distance, at, slot)) => {
                let (tag, extra) = (hash.tag(), hash.extra());
                buckets[at].put(slot, IndexEntry { address, tag, extra, distance: distance as u8 });
                if distance > 0 {
                    buckets[home].set_overflowed(true);
                }
            }
            None => {
                assert!(self.strays.len() < self.strays.capacity(), "no insert without prepare");
                self.strays.push((hash, address));
                buckets[home].set_overflowed(true);
            }
        }
    }

    /// Sets a home's mark to what is true.
    fn refresh_mark(&mut self, number: u32, home: usize) {
        let stray = self
            .strays
            .iter()
            .any(|(hash, _)| self.segment_of(*hash) == number && self.home(*hash) == home);
        let mask = self.buckets - 1;
        let buckets = self.segments.buckets_mut(number);
        let elsewhere = stray
            || (1..=DISTANCE_MAX).any(|distance| {
                let mut found = false;
                buckets[(home + distance) & mask]
                    .for_each(|_, entry| found |= entry.distance as usize == distance);
                found
            });
        buckets[home].set_overflowed(elsewhere);
    }
}

/// The entry of a bucket, `distance` after its home, for which `is_it` says so.
#[inline(always)]
fn find_in(
    bucket: &IndexBucket,
    hash: IndexHash,
    distance: usize,
    is_it: &mut impl FnMut(Address) -> bool,
) -> Option<(u32, Address)> {
    let mut matches = bucket.matches(hash.tag());
    while matches != 0 {
        let slot = matches.trailing_zeros();
        matches &= matches - 1;
        // An entry that strayed here from another bucket is not of this hash.
        if let Some(address) = bucket.address_if(slot as usize, hash.extra(), distance) {
            if is_it(address) {
                return Some((slot, address));
            }
        }
    }
    None
}

impl Drop for Index {
    fn drop(&mut self) {
        let segments = self.segments.len() as u64 * segment_bytes(self.buckets);
        self.account.release(MemoryKind::Index, segments + self.booked_tables);
    }
}
