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
mod segments_unsafe;
mod tags_unsafe;

use alluvium_pagestore::{Account, Error, ErrorKind, Helper, MemoryKind, Result, rounded};
use std::rc::Rc;

use bucket::{Bucket, DISTANCE_MAX, EXTRA_BITS, Entry};
use segments_unsafe::{Segment, Segments};

use super::address::Address;
use super::pool_unsafe::Pool;

/// The 31 bits of a key's hash that the index works with: from the top a 23-bit prefix that
/// chooses the segment and tells entries apart, then 8 bits that choose the bucket, then a 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHash(pub u32);

impl IndexHash {
    /// From a key's hash and its place among the hashes of the owned key groups: the bits that
    /// all of their hashes share are what the exchange between workers used up.
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
const PREFIX_BITS: u32 = 16 + EXTRA_BITS;
/// Entries beyond this with all hash bits alike are refused.
const STRAYS_MAX: usize = 1 << 16;

/// Where an entry is; valid until the index changes.
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
    pool: Pool,
    buckets: usize,
    strays: Vec<(IndexHash, Address)>,
    len: u64,
    /// Entries that are going to be there, as far as anybody has told.
    expected: u64,
    /// Bits in which all hashes may be alike, from the top, beside what an even split allows.
    alike: u32,
    splits: u64,
    /// Bytes booked for everything but the segments themselves.
    booked_tables: u64,
    /// Bytes that growing leaves to pages and values.
    floor_bytes: u64,
}

impl Index {
    /// An empty index with segments of `buckets` (a power of two up to 256). With a helper, memory
    /// for many segments is touched ahead.
    pub fn new(account: Rc<Account>, buckets: usize, helper: Option<Helper>) -> Result<Index> {
        assert!(buckets.is_power_of_two() && (8..=256).contains(&buckets), "{buckets} buckets");
        account.reserve(MemoryKind::Index, Self::memory_bytes_min(buckets), "the index")?;
        let layout = Segments::layout(buckets);
        let mut pool = Pool::new(layout, account.clone(), MemoryKind::Index, helper);
        let mut index = Index {
            account,
            segments: Segments::new(buckets, &mut pool),
            pool,
            buckets,
            strays: Vec::new(),
            len: 0,
            expected: 0,
            alike: 0,
            splits: 0,
            booked_tables: Self::memory_bytes_min(buckets) - segment_bytes(buckets),
            floor_bytes: 0,
        };
        index.book_tables();
        Ok(index)
    }

    /// The least memory an index with such segments opens with.
    pub fn memory_bytes_min(buckets: usize) -> u64 {
        segment_bytes(buckets)
            + [size_of::<Segment>(), 8, 4].map(|bytes| rounded(bytes) as u64).iter().sum::<u64>()
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Segments split so far.
    pub fn splits(&self) -> u64 {
        self.splits
    }

    /// Hints the processor to load the bucket of `hash`.
    #[inline]
    pub fn prefetch(&self, hash: IndexHash) {
        crate::prefetch_unsafe::prefetch(self.segments.bucket_of(hash.0, hash.bucket()));
    }

    /// The first entry of this hash for which `is_it` says so. `is_it` sees every entry whose
    /// bits agree, of which at most one is the key's.
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
        self.find_elsewhere(hash, self.home(hash), is_it)
    }

    /// [`find`](Index::find) among the entries of the home bucket that lead to memory, by the slots
    /// they lead to; says whether there is one. Of a hundred keys, two to ten stand elsewhere.
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

    /// [`find`](Index::find) among the entries that lead to memory, by the slots they lead to; says
    /// whether there is one.
    #[inline(always)]
    pub fn any_in_memory(&self, hash: IndexHash, mut is_it: impl FnMut(u64) -> bool) -> bool {
        if self.any_at_home(hash, &mut is_it) {
            return true;
        }
        if !self.segments.bucket_of(hash.0, hash.bucket()).overflowed() {
            return false;
        }
        let is_it = |address: Address| address.is_memory() && is_it(address.0);
        self.find_elsewhere(hash, self.home(hash), is_it).is_some()
    }

    /// Goes on after the home bucket.
    #[inline(never)]
    fn find_elsewhere(
        &self,
        hash: IndexHash,
        home: usize,
        mut is_it: impl FnMut(Address) -> bool,
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
        if at.stray {
            self.strays[at.slot as usize].1 = address;
        } else {
            self.segments.buckets_mut(at.segment)[at.bucket as usize]
                .set_address(at.slot as usize, address);
        }
    }

    /// Changes the address of the entry that has `old`, if there still is one; says whether.
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

    /// Makes sure that one entry of this hash can be inserted: splits at most one segment.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if the split does not fit the budget; nothing has changed then.
    pub fn prepare(&mut self, hash: IndexHash) -> Result<()> {
        if self.vacancy(hash).is_some() {
            return Ok(());
        }
        if self.may_split(self.segment_of(hash)) {
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

    /// So many entries are going to be there.
    pub fn expect(&mut self, entries: u64) {
        self.expected = entries;
    }

    /// Inserts an entry after [`prepare`](Index::prepare) has said that there is room.
    pub fn insert(&mut self, hash: IndexHash, address: Address) {
        self.len += 1;
        self.place(hash, address);
    }

    /// Removes an entry.
    pub fn remove(&mut self, at: Position) {
        self.len -= 1;
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

    /// Whether splitting a segment can be of use. Hashes that are all alike in their top bits
    /// would deepen the directory without end: a segment is split only while it is not deeper
    /// than three levels below an even split, of the keys that are expected if there are less. Keys
    /// that come in the order of their hashes need that: all so far are alike in their top bits. So
    /// are all of a few key groups.
    fn may_split(&self, number: u32) -> bool {
        let (depth, _) = self.segments.shape(number);
        let even = self.len.max(self.expected) / (self.buckets * bucket::SLOTS) as u64 + 1;
        depth < PREFIX_BITS && 1 << depth <= even << (3 + self.alike)
    }

    /// Calls `visit` with every entry of the segment that holds prefix `from`, and returns the
    /// first prefix after that segment; `None` after the last one. Segments split between calls
    /// are visited in full: an entry that stays is seen exactly once.
    pub fn visit(&self, from: u32, mut visit: impl FnMut(Address)) -> Option<u32> {
        let number = self.segment_of(IndexHash::new(from, 0));
        // A split behind the cursor leaves nothing to skip: segments only get smaller.
        for bucket in self.segments.buckets(number) {
            bucket.for_each(|_, entry| visit(entry.address));
        }
        for &(hash, address) in &self.strays {
            if self.segment_of(hash) == number {
                visit(address);
            }
        }
        let (depth, prefix) = self.segments.shape(number);
        let end = (u64::from(prefix) + 1) << (PREFIX_BITS - depth);
        (end < 1 << PREFIX_BITS).then_some(end as u32)
    }

    /// Removes all entries and gives the memory back.
    pub fn clear(&mut self) {
        let bytes = segment_bytes(self.buckets);
        let dropped = self.segments.len() as u64 - 1;
        self.segments.clear();
        self.strays = Vec::new();
        self.len = 0;
        self.account.release(MemoryKind::Index, dropped * bytes);
        self.book_tables();
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
                buckets[at].put(slot, Entry { address, tag, extra, distance: distance as u8 });
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
            bytes += rounded(self.segments.capacity() * 2 * size_of::<Segment>());
        }
        bytes as u64
    }

    /// Books `bytes`, unless they do not fit or would leave less than the floor to pages.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let account = &self.account;
        let elastic = account.used_for(MemoryKind::Pages) + account.used_for(MemoryKind::Values);
        if account.used() - elastic + bytes + self.floor_bytes > account.limit() {
            return Err(account.over_budget(bytes, "index"));
        }
        account.reserve(MemoryKind::Index, bytes, "index")
    }

    /// Sets what the index must leave to pages and values.
    pub fn set_floor(&mut self, bytes: u64) {
        self.floor_bytes = bytes;
    }

    /// Books what the tables beside the segments take now.
    fn book_tables(&mut self) {
        let (_, [homes, numbers]) = self.segments.directory();
        let [home, number] = Segments::ENTRY_BYTES;
        let now = (rounded(self.segments.capacity() * size_of::<Segment>())
            + segment_bytes(self.buckets) as usize
            + rounded(homes * home)
            + rounded(numbers * number)
            + rounded(self.strays.capacity() * size_of::<(IndexHash, Address)>()))
            as u64;
        self.account.adjust(MemoryKind::Index, self.booked_tables, now);
        self.booked_tables = now;
    }
}

/// Bytes booked per segment: its buckets, and what aligning them to cache lines costs.
fn segment_bytes(buckets: usize) -> u64 {
    rounded(buckets * size_of::<Bucket>() + 64) as u64
}

/// The entry of a bucket, `distance` after its home, for which `is_it` says so.
#[inline(always)]
fn find_in(
    bucket: &Bucket,
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

/// Pulls entries towards their homes and sets the homes' marks.
fn settle(buckets: &mut [Bucket]) {
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
                buckets[to].put(vacant, Entry { distance, ..entry });
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn index(buckets: usize) -> Index {
        Index::new(Account::root(1 << 30), buckets, None).unwrap()
    }

    fn hash(key: u64) -> IndexHash {
        let hash = alluvium_pagestore::hash_word(key);
        IndexHash::of(hash, hash)
    }

    /// What is imported comes so: the first of four million keys were all taken for alike, and kept
    /// in a list until that was full.
    #[test]
    fn keys_in_the_order_of_their_hashes_are_no_strays_if_they_are_expected() {
        let keys = 60_000u64;
        let mut hashes: Vec<u64> = (0..keys).map(alluvium_pagestore::hash_word).collect();
        hashes.sort_unstable();
        let most_strays = |expected: u64| {
            let mut index = index(8);
            index.expect(expected);
            let mut most = 0;
            for (n, hash) in hashes.iter().enumerate() {
                let hash = IndexHash::of(*hash, *hash);
                index.prepare(hash).unwrap();
                index.insert(hash, Address(n as u64));
                most = most.max(index.strays.len());
            }
            for (n, hash) in hashes.iter().enumerate() {
                let hash = IndexHash::of(*hash, *hash);
                assert!(index.find(hash, |a| a == Address(n as u64)).is_some());
            }
            most
        };
        let (expected, not) = (most_strays(keys), most_strays(0));
        assert!(expected < 1000 && not > 10 * expected, "{expected} and {not} strays");
    }

    /// Every entry is found, nothing else is, and a visit sees each once.
    fn check(index: &Index, model: &BTreeMap<u64, (IndexHash, u64)>) {
        for (hash, address) in model.values() {
            assert!(index.find(*hash, |a| a == Address(*address)).is_some(), "{hash:?}");
        }
        let mut seen = Vec::new();
        let mut from = Some(0);
        while let Some(prefix) = from {
            from = index.visit(prefix, |address| seen.push(address.0));
        }
        seen.sort_unstable();
        let mut expected: Vec<_> = model.values().map(|(_, address)| *address).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
        assert_eq!(index.len(), model.len() as u64);
    }

    fn grow(index: &mut Index, keys: u64, hash: impl Fn(u64) -> IndexHash) {
        let mut model = BTreeMap::new();
        for key in 0..keys {
            let splits = index.splits();
            index.prepare(hash(key)).unwrap();
            assert!(index.splits() - splits <= 1, "an insert splits one segment at most");
            index.insert(hash(key), Address(key));
            model.insert(key, (hash(key), key));
            if index.splits() != splits && keys < 5000 {
                check(index, &model);
            }
        }
        check(index, &model);
        for key in (0..keys).step_by(2) {
            let (at, _) = index.find(hash(key), |a| a == Address(key)).unwrap();
            index.remove(at);
            model.remove(&key);
        }
        check(index, &model);
    }

    #[test]
    fn entries_survive_growth_whatever_the_parameters() {
        for buckets in [8, 16, 256] {
            grow(&mut index(buckets), if cfg!(miri) { 70 } else { 4000 }, hash);
        }
        if !cfg!(miri) {
            grow(&mut index(256), 300_000, hash);
        }
    }

    #[test]
    fn hashes_that_collide_are_kept_apart_by_address() {
        let keys = if cfg!(miri) { 40 } else { 500 };
        grow(&mut index(8), keys, |_| IndexHash(0x1234_5678));
        grow(&mut index(8), keys, |key| IndexHash((key as u32 & 1) << 31));
        grow(&mut index(8), keys, |key| IndexHash((key as u32 & 1) << 9));
    }

    #[test]
    #[cfg_attr(miri, ignore = "a million keys")]
    fn an_index_costs_11_to_21_bytes_a_key() {
        let mut index = index(256);
        let mut worst: f64 = 0.0;
        for key in 0..1_000_000 {
            index.prepare(hash(key)).unwrap();
            index.insert(hash(key), Address(key));
            if key > 200_000 {
                worst = worst.max(index.account.used() as f64 / key as f64);
            }
        }
        let bytes = index.account.used() as f64 / 1e6;
        println!("{bytes:.1} bytes a key at 1 M keys, {worst:.1} at worst");
        assert!(worst < 22.0, "{bytes} {worst}");
    }

    #[test]
    fn a_split_that_does_not_fit_the_budget_changes_nothing() {
        let account = Account::root(Index::memory_bytes_min(16) + 1000);
        let mut index = Index::new(account, 16, None).unwrap();
        let mut model = BTreeMap::new();
        for key in 0..400 {
            if let Err(refused) = index.prepare(hash(key)) {
                assert_eq!(refused.kind(), ErrorKind::OverBudget);
                assert!(refused.to_string().starts_with("index needs "), "{refused}");
                check(&index, &model);
                return;
            }
            index.insert(hash(key), Address(key));
            model.insert(key, (hash(key), key));
        }
        panic!("16 buckets hold no 400 entries");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
        #[test]
        fn random_histories_match_a_map(
            steps in prop::collection::vec(
                (0u64..400, 0..3u8),
                1..if cfg!(miri) { 80 } else { 1500 },
            ),
        ) {
            let mut index = index(8);
            let mut model = BTreeMap::new();
            for (key, what) in steps {
                let found = index.find(hash(key), |a| a == Address(key));
                prop_assert_eq!(found.is_some(), model.contains_key(&key));
                match (what, found) {
                    (0, Some((at, _))) => {
                        index.remove(at);
                        model.remove(&key);
                    }
                    (_, None) => {
                        index.prepare(hash(key)).unwrap();
                        index.insert(hash(key), Address(key));
                        model.insert(key, (hash(key), key));
                    }
                    _ => {}
                }
            }
            check(&index, &model);
        }
    }
}
