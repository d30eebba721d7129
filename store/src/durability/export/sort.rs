//! Sorting entries that may not fit into memory: sorted runs in segments of the store, then merged.
//!
//! What it keeps true: entries come out by hash, then key, then order, and those alike in all of
//! them in the order in which they came in. All memory is booked; all files are removed at the end,
//! also by an error, or by the next open.

use std::cmp::Ordering;
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, Result, SegmentStore};

use super::runs::{SpillRun, SpillSizes, merge, remove};
use super::{CanonicalEntry, VisitCanonical};

/// The least memory to sort in, and the most that is asked for.
const MEMORY_MIN: u64 = 96 << 10;
const MEMORY_MAX: u64 = 1 << 30;
/// Of the memory, what the places of entries take.
const PLACES_SHARE: u64 = 3;
/// Entries whose bytes are brought near at once: each misses the cache otherwise.
const NEAR: usize = 32;
/// Entries of a part, before anything is known of their length, and at the most.
const AT_FIRST: usize = 64;
const AT_ONCE_MAX: u64 = 4096;
/// Header of an entry in memory and in runs: order, length of the key, length of the value.
pub(super) const HEADER_BYTES: usize = 16;

/// An entry in memory: its hash, and where its bytes begin.
type EntryPlace = (u64, usize);

/// Collects entries, then gives them sorted.
pub(super) struct Sorter {
    account: Rc<Account>,
    booked: u64,
    segments: Option<SegmentStore>,
    sizes: SpillSizes,
    bytes: Vec<u8>,
    places: Vec<EntryPlace>,
    /// Bytes of entries that a run begins after.
    room: usize,
    entries: u64,
    /// Bytes of all entries so far.
    taken_bytes: u64,
    /// Sorted runs, in the order in which they were made.
    runs: Vec<SpillRun>,
}

impl Sorter {
    /// A sorter in an eighth of the memory, or in what of that can be had.
    pub(super) fn begin(root: &Rc<Account>, segments: Option<SegmentStore>) -> Result<Self> {
        Self::within(root, segments, (root.limit() / 8).clamp(MEMORY_MIN, MEMORY_MAX))
    }

    /// A sorter in so much memory, or in what of that can be had.
    pub(super) fn within(
        root: &Rc<Account>,
        segments: Option<SegmentStore>,
        memory: u64,
    ) -> Result<Self> {
        let account = Account::below(root, "export", u64::MAX);
        let mut memory = memory.max(MEMORY_MIN);
        while let Err(error) = account.reserve(MemoryKind::Buffers, memory, "sorting an export") {
            if memory == MEMORY_MIN {
                return Err(error);
            }
            memory = (memory / 2).max(MEMORY_MIN);
        }
        // A run is written while its entries are in memory.
        let sizes = SpillSizes::of(memory);
        let rest = memory - if segments.is_some() { sizes.writing_bytes() } else { 0 };
        let places = rest / PLACES_SHARE / size_of::<EntryPlace>() as u64;
        let room = (rest - rest / PLACES_SHARE) as usize;
        Ok(Self {
            account,
            booked: memory,
            segments,
            sizes,
            bytes: Vec::with_capacity(room),
            places: Vec::with_capacity(places as usize),
            room,
            entries: 0,
            taken_bytes: 0,
            runs: Vec::new(),
        })
    }

    /// Takes one entry in.
    pub(super) fn push(&mut self, entry: CanonicalEntry<'_>) -> Result<()> {
        let header = header(&entry)?;
        let needed = HEADER_BYTES + entry.key.len() + entry.value.len();
        let is_full = self.bytes.len() + needed > self.bytes.capacity()
            || self.places.len() == self.places.capacity();
        if is_full {
            self.spill()?;
        }
        if needed > self.bytes.capacity() {
            // One that is larger than all the memory for them has memory of its own.
            let more = needed as u64;
            self.account.reserve(MemoryKind::Buffers, more, "an entry of an export")?;
            self.booked += more;
            self.bytes.reserve_exact(needed);
        }
        self.places.push((entry.hash, self.bytes.len()));
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(entry.key);
        self.bytes.extend_from_slice(entry.value);
        self.entries += 1;
        self.taken_bytes += needed as u64;
        Ok(())
    }

    /// How many there are.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        // By hash first: it tells nearly all keys apart, and is at hand. Where the bytes stand is the
        // order in which they came.
        self.places.sort_unstable();
        for alike in self.places.chunk_by_mut(|a, b| a.0 == b.0) {
            if alike.len() > 1 {
                alike.sort_by(|a, b| by_key(&unpack(a.0, bytes, a.1), &unpack(b.0, bytes, b.1)));
            }
        }
    }

    fn forget(&mut self) {
        self.places.clear();
        self.bytes.clear();
        if self.bytes.capacity() > 2 * self.room {
            self.bytes = Vec::with_capacity(self.room);
        }
    }

    /// Writes what is in memory as a run.
    fn spill(&mut self) -> Result<()> {
        if self.places.is_empty() {
            return Ok(());
        }
        let Some(store) = self.segments.clone() else {
            let what = "sorting an export without a directory";
            return Err(self.account.over_budget(2 * self.bytes.capacity() as u64, what));
        };
        self.sort();
        let run =
            SpillRun::write(&store, self.sizes, |write| give(&self.bytes, &self.places, write))?;
        self.runs.push(run);
        self.forget();
        Ok(())
    }

    /// Gives all entries in order, and forgets them. Entries may come in parts, all of one before all
    /// of the next.
    pub(super) fn give_part(&mut self, visit: VisitCanonical<'_>) -> Result<()> {
        if self.runs.is_empty() {
            self.sort();
            let given = give(&self.bytes, &self.places, visit);
            self.forget();
            return given;
        }
        self.spill()?;
        // Their memory is for reading now.
        let places = self.places.capacity();
        (self.bytes, self.places) = (Vec::new(), Vec::new());
        let store = self.segments.clone().expect("runs are in a store");
        loop {
            let most = self.runs.iter().map(SpillRun::reading_bytes).max().unwrap_or(1);
            let memory = self.booked.saturating_sub(self.sizes.writing_bytes());
            let at_once = (memory / most).max(2) as usize;
            if self.runs.len() <= at_once {
                break;
            }
            // The oldest first, and the run they make before those that are left: order of arrival.
            let merged = SpillRun::write(&store, self.sizes, |write| {
                merge(&store, &self.runs[..at_once], &self.account, write)
            })?;
            let old: Vec<_> = self.runs.splice(..at_once, [merged]).collect();
            remove(&store, &old);
        }
        merge(&store, &self.runs, &self.account, visit)?;
        remove(&store, &std::mem::take(&mut self.runs));
        (self.bytes, self.places) = (Vec::with_capacity(self.room), Vec::with_capacity(places));
        Ok(())
    }

    /// About so many entries like those so far are half of what there is memory for.
    pub(super) fn entries_at_once(&self) -> usize {
        if self.entries == 0 {
            return AT_FIRST;
        }
        let each = (self.taken_bytes / self.entries).max(1);
        (self.room as u64 / 2 / each).clamp(1, AT_ONCE_MAX) as usize
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        if let Some(store) = &self.segments {
            remove(store, &self.runs);
        }
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

/// Gives entries in memory in the order of their places.
fn give(bytes: &[u8], places: &[EntryPlace], visit: VisitCanonical<'_>) -> Result<()> {
    let mut near = 0u8;
    for places in places.chunks(NEAR) {
        for (_, at) in places {
            near ^= bytes[*at];
        }
        // What was read is of no use, but for having been read.
        std::hint::black_box(near);
        for (hash, at) in places {
            visit(unpack(*hash, bytes, *at))?;
        }
    }
    Ok(())
}

/// What stands in front of an entry's key and value.
///
/// # Errors
/// Those of [`CanonicalEntry::lengths`].
pub(super) fn header(entry: &CanonicalEntry<'_>) -> Result<[u8; HEADER_BYTES]> {
    let [key, value] = entry.lengths()?;
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&entry.order.to_le_bytes());
    header[8..12].copy_from_slice(&key.to_le_bytes());
    header[12..].copy_from_slice(&value.to_le_bytes());
    Ok(header)
}

/// The entry that begins at `at`.
pub(super) fn unpack(hash: u64, bytes: &[u8], at: usize) -> CanonicalEntry<'_> {
    let (header, rest) = bytes[at..].split_at(HEADER_BYTES);
    let order = i64::from_le_bytes(header[..8].try_into().expect("eight"));
    let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
    let (key, value) = (u32_at(8) as usize, u32_at(12) as usize);
    CanonicalEntry { hash, order, key: &rest[..key], value: &rest[key..key + value] }
}

pub(super) fn by_key(a: &CanonicalEntry<'_>, b: &CanonicalEntry<'_>) -> Ordering {
    (a.hash, a.key, a.order).cmp(&(b.hash, b.key, b.order))
}
