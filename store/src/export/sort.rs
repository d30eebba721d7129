//! Sorting entries that may not fit into memory: sorted runs in segments of the store, then merged.
//!
//! What it keeps true: entries come out by hash, then key, then order, and those alike in all of
//! them in the order in which they came in. All memory is booked; all files are removed at the end,
//! also by an error, or by the next open.

use std::cmp::Ordering;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, Error, ErrorKind, FooterEntry, MemoryKind, Result, SegmentDirectory, SegmentInfo,
    SegmentReader, SegmentStore, SegmentWriter, fingerprint,
};

use super::{Entry, Visit};

/// The least memory to sort in, and the most that is asked for.
const MEMORY_MIN: u64 = 96 << 10;
const MEMORY_MAX: u64 = 256 << 20;
/// Of the memory, what the places of entries take.
const PLACES_SHARE: u64 = 4;
/// Most of the window that a run is read through.
const WINDOW_BYTES_MAX: u64 = 256 << 10;
/// Buffer that runs are written with, and the least window that one is read through.
const CHUNK_BYTES: usize = 16 << 10;
/// Records of a page of a run.
const PAGE_RECORDS: usize = 256;
/// Bytes after which a page or a segment of a run ends.
const PAGE_BYTES: u64 = 128 << 10;
const SEGMENT_BYTES: u64 = 8 << 20;
/// Header of an entry in memory and in runs: order, length of the key.
const HEADER_BYTES: usize = 12;

/// Collects entries, then gives them sorted.
pub(super) struct Sorter {
    account: Rc<Account>,
    booked: u64,
    segments: Option<SegmentStore>,
    bytes: Vec<u8>,
    /// Hash, first byte, end.
    places: Vec<(u64, usize, usize)>,
    /// Bytes of entries that a run begins after.
    room: usize,
    entries: u64,
    /// Sorted runs, in the order in which they were made.
    runs: Vec<Vec<SegmentInfo>>,
}

impl Sorter {
    pub(super) fn begin(root: &Rc<Account>, segments: Option<SegmentStore>) -> Result<Self> {
        let account = Account::below(root, "export", u64::MAX);
        let mut memory = (root.limit() / 8).clamp(MEMORY_MIN, MEMORY_MAX);
        while let Err(error) = account.reserve(MemoryKind::Buffers, memory, "sorting an export") {
            if memory == MEMORY_MIN {
                return Err(error);
            }
            memory = (memory / 2).max(MEMORY_MIN);
        }
        // A run is written while its entries are in memory.
        let writer = SegmentWriter::memory_bytes(CHUNK_BYTES, PAGE_RECORDS, 0);
        let rest = memory - if segments.is_some() { writer } else { 0 };
        let places = rest / PLACES_SHARE / size_of::<(u64, usize, usize)>() as u64;
        let room = (rest - rest / PLACES_SHARE) as usize;
        Ok(Self {
            account,
            booked: memory,
            segments,
            bytes: Vec::with_capacity(room),
            places: Vec::with_capacity(places as usize),
            room,
            entries: 0,
            runs: Vec::new(),
        })
    }

    /// Takes one entry in.
    pub(super) fn push(&mut self, entry: Entry<'_>) -> Result<()> {
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
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&entry.order.to_le_bytes());
        self.bytes.extend_from_slice(&(entry.key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(entry.key);
        self.bytes.extend_from_slice(entry.value);
        self.places.push((entry.hash, start, self.bytes.len()));
        self.entries += 1;
        Ok(())
    }

    /// How many there are.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        // Where the bytes stand is the order in which they came.
        self.places.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| {
                let entries = (unpack(a.0, &bytes[a.1..a.2]), unpack(b.0, &bytes[b.1..b.2]));
                by_key(&entries.0, &entries.1).then(a.1.cmp(&b.1))
            })
        });
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
        let (bytes, places) = (&self.bytes, &self.places);
        let run = write_run(&store, |write| {
            places.iter().try_for_each(|(hash, start, end)| write(*hash, &bytes[*start..*end]))
        })?;
        self.runs.push(run);
        self.places.clear();
        self.bytes.clear();
        if self.bytes.capacity() > 2 * self.room {
            self.bytes = Vec::with_capacity(self.room);
        }
        Ok(())
    }

    /// Gives all entries in order.
    pub(super) fn finish(mut self, visit: Visit<'_>) -> Result<()> {
        if self.runs.is_empty() {
            self.sort();
            let (bytes, places) = (&self.bytes, &self.places);
            return places
                .iter()
                .try_for_each(|(hash, start, end)| visit(unpack(*hash, &bytes[*start..*end])));
        }
        self.spill()?;
        (self.bytes, self.places) = (Vec::new(), Vec::new());
        let store = self.segments.clone().expect("runs are in a store");
        loop {
            let most = self.runs.iter().map(|run| reading_bytes(run)).max().unwrap_or(1);
            let writer = SegmentWriter::memory_bytes(CHUNK_BYTES, PAGE_RECORDS, 0);
            let at_once = (self.booked.saturating_sub(writer) / most).max(2) as usize;
            if self.runs.len() <= at_once {
                break;
            }
            // The oldest first, and the run they make before those that are left: order of arrival.
            let merged = write_run(&store, |write| {
                merge(&store, &self.runs[..at_once], &self.account, &mut |hash, entry| {
                    write(hash, entry)
                })
            })?;
            let old: Vec<_> = self.runs.splice(..at_once, [merged]).collect();
            remove(&store, old.iter().flatten());
        }
        merge(&store, &self.runs, &self.account, &mut |hash, entry| visit(unpack(hash, entry)))
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        if let Some(store) = &self.segments {
            remove(store, self.runs.iter().flatten());
        }
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

fn remove<'a>(store: &SegmentStore, segments: impl Iterator<Item = &'a SegmentInfo>) {
    for segment in segments {
        // One that cannot be removed now is removed at the next open.
        let _ = store.remove(segment.id);
    }
}

fn unpack(hash: u64, bytes: &[u8]) -> Entry<'_> {
    let (header, rest) = bytes.split_at(HEADER_BYTES);
    let order = i64::from_le_bytes(header[..8].try_into().expect("eight"));
    let key = u32::from_le_bytes(header[8..].try_into().expect("four")) as usize;
    Entry { hash, order, key: &rest[..key], value: &rest[key..] }
}

fn by_key(a: &Entry<'_>, b: &Entry<'_>) -> Ordering {
    (a.hash, a.key, a.order).cmp(&(b.hash, b.key, b.order))
}

/// The state whose segments runs are.
fn state() -> u64 {
    fingerprint("a run of an export")
}

type Write<'w> = &'w mut dyn FnMut(u64, &[u8]) -> Result<()>;

fn write_run(
    store: &SegmentStore,
    entries: impl FnOnce(Write<'_>) -> Result<()>,
) -> Result<Vec<SegmentInfo>> {
    let mut writer = SegmentWriter::new(store.clone(), state(), CHUNK_BYTES, SEGMENT_BYTES);
    let written = entries(&mut |hash, entry| {
        if writer.page_records() == 0 {
            writer.begin_page()?;
        }
        writer.push_encoded(hash, entry)?;
        let full = writer.page_records() as usize >= PAGE_RECORDS;
        if full || writer.page_bytes() >= PAGE_BYTES {
            writer.finish_page()?;
        }
        Ok(())
    });
    let written = written.and_then(|()| {
        if writer.page_records() > 0 {
            writer.finish_page()?;
        }
        writer.seal()
    });
    let sealed = writer.take_sealed();
    if let Err(error) = written {
        writer.abandon();
        remove(store, sealed.iter());
        return Err(error);
    }
    Ok(sealed)
}

/// Memory for reading a run: a window, an image's footer, the directory, and the entry at hand.
fn reading_bytes(run: &[SegmentInfo]) -> u64 {
    let longest = run.iter().map(|segment| segment.max_record_bytes).max().unwrap_or(0);
    let images = run.iter().map(|segment| segment.bytes / 4096 + 1).max().unwrap_or(0);
    let window = (CHUNK_BYTES as u64).max(longest + 8192);
    window + longest + (PAGE_RECORDS * size_of::<FooterEntry>()) as u64 + images.min(512) * 48
}

/// Gives the entries of several runs in order.
fn merge(
    store: &SegmentStore,
    runs: &[Vec<SegmentInfo>],
    account: &Account,
    visit: Write<'_>,
) -> Result<()> {
    // Two runs are merged whatever they take: what two of the largest entries need beyond the memory
    // for sorting is booked here.
    let needed: u64 = runs.iter().map(|run| reading_bytes(run)).sum();
    let more = needed.saturating_sub(account.used_for(MemoryKind::Buffers));
    account.reserve(MemoryKind::Buffers, more, "merging an export")?;
    let merged = (|| {
        let spare = account.used_for(MemoryKind::Buffers).saturating_sub(needed) / 2;
        let window = (spare / runs.len() as u64).clamp(CHUNK_BYTES as u64, WINDOW_BYTES_MAX);
        let open = |run| RunReader::open(store, run, window as usize / 4096 * 4096);
        let mut readers = runs.iter().map(|run| open(run)).collect::<Result<Vec<_>>>()?;
        loop {
            let heads = readers.iter().enumerate().filter_map(|(n, run)| Some((n, run.head()?)));
            // The first of equal ones: runs stand in the order in which they were made.
            let Some((least, _)) = heads.min_by(|(_, a), (_, b)| by_key(a, b)) else {
                return Ok(());
            };
            let run = &mut readers[least];
            visit(run.hash, &run.entry)?;
            run.step()?;
        }
    })();
    account.release(MemoryKind::Buffers, more);
    merged
}

/// A run that is read from front to back.
struct RunReader<'r> {
    reader: SegmentReader,
    segments: std::slice::Iter<'r, SegmentInfo>,
    directory: Option<SegmentDirectory>,
    image: usize,
    entries: Vec<FooterEntry>,
    next: usize,
    hash: u64,
    /// The entry at hand; nothing at the end.
    entry: Vec<u8>,
}

impl<'r> RunReader<'r> {
    fn open(store: &SegmentStore, run: &'r [SegmentInfo], window: usize) -> Result<Self> {
        let mut reader = Self {
            reader: SegmentReader::new(store.clone(), state(), window),
            segments: run.iter(),
            directory: None,
            image: 0,
            entries: Vec::new(),
            next: 0,
            hash: 0,
            entry: Vec::new(),
        };
        reader.step()?;
        Ok(reader)
    }

    fn head(&self) -> Option<Entry<'_>> {
        (!self.entry.is_empty()).then(|| unpack(self.hash, &self.entry))
    }

    fn step(&mut self) -> Result<()> {
        self.entry.clear();
        loop {
            if let (Some(at), Some(directory)) = (self.entries.get(self.next), &self.directory) {
                self.next += 1;
                let record = self.reader.record(&directory.info, at)?;
                if record.payload.len() < HEADER_BYTES {
                    let message = "an entry of a sorted run is cut short";
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                self.hash = at.hash;
                self.entry.extend_from_slice(record.payload);
                return Ok(());
            }
            match &self.directory {
                Some(directory) if self.image < directory.images().len() => {
                    let image = &directory.images()[self.image];
                    self.reader.footer(directory, image, &mut self.entries)?;
                    (self.image, self.next) = (self.image + 1, 0);
                }
                _ => {
                    let Some(segment) = self.segments.next() else { return Ok(()) };
                    self.directory = Some(self.reader.open(segment)?);
                    self.entries.clear();
                    (self.image, self.next) = (0, 0);
                }
            }
        }
    }
}
