//! Merging runs into one, in steps.
//!
//! Records come out in the order of hash and order. Records that are equal in both make a *group*, the newest first, and
//! a [`Judge`] says which of them stay. A group that has no room in the scratch memory stays whole: whoever reads takes
//! the newest of a key, so that more than one is never wrong.
//!
//! What it takes in memory is told before it is made: cursors, a writer of one partition, and the scratch for a group.
//! The runs that are merged stay as they are, so that a merge can be given up at any time and begun again. Where the
//! device fails, the next step goes on from there.

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Error, ErrorKind, Result, SegmentStore};

use super::chunk::{self, ALIGNMENT, RecordView};
use super::cursor::RunChain;
use super::directory::RunInfo;
use super::unsynced::UnsyncedRun;
use super::writer::{RunSizes, RunWriter};

/// Says what of equal records stays.
pub trait Judge {
    /// `group` has all records of one hash and order among the runs that are merged, the newest first. Sets what is
    /// not to stay to `false`; all stay if it does nothing.
    ///
    /// # Errors
    /// Whatever it finds wrong; the merge fails with it.
    fn judge(&mut self, group: &[RecordView<'_>], stays: &mut [bool]) -> Result<()>;
}

/// Records of one hash and order that are judged together, for each level.
pub(super) const GROUP_RECORDS: usize = 64;

/// What a merge works with, beside the sizes of the runs that it writes.
#[derive(Clone, Copy, Debug)]
pub struct MergeSizes {
    /// The runs that it writes.
    pub runs: RunSizes,
    /// Bytes that are read at once from each run.
    pub read_bytes: usize,
    /// Whether half as many are, and the next half is read ahead.
    pub reads_ahead: bool,
    /// Bytes of records of one hash and order that are judged; more of them stay as they are.
    pub group_bytes: usize,
    /// How many of them are judged, in the same way.
    pub group_records: usize,
}

impl MergeSizes {
    /// Sizes of a merge of these levels, which has room for a group of the longest record of each.
    pub fn of(runs: RunSizes, read_bytes: usize, levels: &[&[RunInfo]]) -> Self {
        let longest = |level: &&[RunInfo]| level.iter().map(|run| run.longest_chunk as usize).max();
        let group_bytes = levels.iter().filter_map(longest).sum();
        let group_records = GROUP_RECORDS * levels.len();
        Self { runs, read_bytes, reads_ahead: false, group_bytes, group_records }
    }

    /// Bytes that the list of a group takes for each level, beside payloads.
    pub fn group_bytes_each() -> u64 {
        EqualRecords::memory_bytes(0, GROUP_RECORDS)
    }

    /// Bytes that a merge of these levels takes.
    pub fn memory_bytes(&self, levels: &[&[RunInfo]]) -> u64 {
        let cursors = levels.iter().map(|runs| RunChain::memory_bytes(runs, self.read_bytes));
        let group = EqualRecords::memory_bytes(self.group_bytes, self.group_records);
        self.runs.memory_bytes() + cursors.sum::<u64>() + group
    }
}

/// A record in the scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedRecord {
    mark: u32,
    start: usize,
    length: usize,
}

/// Records of one hash and order, copied.
#[derive(Debug)]
pub(super) struct EqualRecords {
    hash: u64,
    order: Vec<u8>,
    payloads: AlignedVec,
    records: Vec<CopiedRecord>,
    /// Which of them stay. Those behind the end of the list do.
    stays: Vec<bool>,
}

impl EqualRecords {
    /// Scratch of so many bytes, for so many records.
    pub(super) fn new(bytes: usize, records: usize) -> Self {
        Self {
            hash: 0,
            order: Vec::with_capacity(RunSizes::ORDER_BYTES_MAX),
            payloads: AlignedVec::with_capacity(bytes),
            records: Vec::with_capacity(records),
            stays: Vec::with_capacity(records),
        }
    }

    /// Bytes of scratch of so many bytes for so many records, and of the list by which they are shown.
    pub(super) fn memory_bytes(bytes: usize, records: usize) -> u64 {
        let each = size_of::<CopiedRecord>() + size_of::<bool>() + size_of::<RecordView<'_>>();
        (bytes + records * each + RunSizes::ORDER_BYTES_MAX) as u64
    }

    pub(super) fn begin(&mut self, first: &RecordView<'_>) {
        self.hash = first.hash;
        self.order.clear();
        self.order.extend_from_slice(first.order);
        self.payloads.clear();
        self.records.clear();
        self.stays.clear();
    }

    pub(super) fn has_key_of(&self, record: &RecordView<'_>) -> bool {
        (record.hash, record.order) == (self.hash, self.order.as_slice())
    }

    /// Copies a record if there is room, and says whether there was.
    pub(super) fn take(&mut self, record: &RecordView<'_>) -> bool {
        let start = self.payloads.len().next_multiple_of(ALIGNMENT);
        let length = record.payload.len();
        let has_room = start + length <= self.payloads.capacity()
            && self.records.len() < self.records.capacity();
        if has_room {
            self.payloads.resize(start, 0);
            self.payloads.extend_from_slice(record.payload);
            self.records.push(CopiedRecord { mark: record.mark, start, length });
        }
        has_room
    }

    /// All of its records, the newest first.
    pub(super) fn all(&self) -> Vec<RecordView<'_>> {
        self.records.iter().map(|kept| self.record(kept)).collect()
    }

    /// Has a judge say which of its records stay.
    fn judge(&mut self, judge: &mut dyn Judge) -> Result<()> {
        let mut stays = std::mem::take(&mut self.stays);
        stays.clear();
        stays.resize(self.records.len(), true);
        let judged = match &self.records[..] {
            // Nearly all groups: no list of records is made.
            [only] => judge.judge(&[self.record(only)], &mut stays),
            _ => judge.judge(&self.all(), &mut stays),
        };
        self.stays = stays;
        judged
    }

    /// Writes those that stay. So many were looked at before.
    fn write(&self, written: &mut usize, writer: &mut RunWriter) -> Result<()> {
        while let Some(kept) = self.records.get(*written) {
            if self.stays.get(*written) != Some(&false) {
                writer.push(self.record(kept))?;
            }
            *written += 1;
        }
        Ok(())
    }

    pub(super) fn record(&self, kept: &CopiedRecord) -> RecordView<'_> {
        let payload = &self.payloads[kept.start..kept.start + kept.length];
        RecordView { hash: self.hash, mark: kept.mark, order: &self.order, payload }
    }
}

/// Which part of levels a merge takes. It ends with all records of a hash.
#[derive(Clone, Copy, Debug)]
pub struct MergePart {
    /// The first hash.
    pub from: u64,
    /// It ends when so many bytes of records were looked at.
    pub bytes: u64,
    /// Or when so many partitions are written; another one ends with it.
    pub partitions: u64,
}

impl MergePart {
    /// All of them.
    pub const ALL: Self = Self { from: 0, bytes: u64::MAX, partitions: u64::MAX };
}

/// A merge under way. Belongs to whoever steps it, a helper's thread for instance.
#[derive(Debug)]
pub struct RunMerge {
    /// The newest first.
    sources: Vec<RunChain>,
    writer: RunWriter,
    group: EqualRecords,
    /// How far the group has come that is merged, if one is.
    open: Option<OpenGroup>,
    /// Whether the device failed in the step before.
    is_interrupted: bool,
    is_done: bool,
    has_failed: bool,
    /// After so many bytes of records, or so many partitions, it ends with their last hash.
    left_bytes: u64,
    partitions_max: u64,
    /// The first hash that it has left.
    next_hash: Option<u64>,
}

/// How far a group has come.
#[derive(Clone, Copy, Debug)]
struct OpenGroup {
    /// The source whose records come next.
    source: usize,
    /// Records that were taken or passed on, in bytes.
    bytes: u64,
    /// Whether it has no room, and stays whole.
    is_too_long: bool,
    is_judged: bool,
    /// Records of the scratch that were written, or go.
    written: usize,
}

impl RunMerge {
    /// A merge of levels, the newest first, each of runs in order whose hashes do not overlap. Takes
    /// [`MergeSizes::memory_bytes`]. Reads the beginning of each.
    ///
    /// # Errors
    /// Those of opening a [`SortedRunCursor`](super::SortedRunCursor) and of making a [`RunWriter`].
    pub fn new(
        store: &SegmentStore,
        state: u64,
        levels: &[&[RunInfo]],
        sizes: MergeSizes,
    ) -> Result<Self> {
        Self::of_part((store, state), levels, sizes, MergePart::ALL)
    }

    /// [`new`](RunMerge::new) of a part.
    ///
    /// # Errors
    /// As for `new`.
    pub fn of_part(
        (store, state): (&SegmentStore, u64),
        levels: &[&[RunInfo]],
        sizes: MergeSizes,
        part: MergePart,
    ) -> Result<Self> {
        let at_once = (sizes.read_bytes, sizes.reads_ahead);
        let open = |runs: &&[RunInfo]| RunChain::open_at(store, runs, at_once, part.from);
        let sources = levels.iter().map(open);
        let sources = sources.collect::<Result<_>>()?;
        let writer = RunWriter::new(store.clone(), state, sizes.runs)?;
        let group = EqualRecords::new(sizes.group_bytes, sizes.group_records);
        Ok(Self {
            sources,
            writer,
            group,
            open: None,
            is_interrupted: false,
            is_done: false,
            has_failed: false,
            left_bytes: part.bytes,
            partitions_max: part.partitions,
            next_hash: None,
        })
    }

    /// Merges until about `fuel` bytes of records were looked at, and says whether all were. A group is merged as a
    /// whole, and so is what a partition ends with.
    ///
    /// # Errors
    /// Those of the device, of damaged runs, of the judge, of a record that is longer than the sizes say. The runs that it
    /// was to merge are as they were. If the merge [`can_go_on`](RunMerge::can_go_on), the next step tries again what
    /// failed; else it can only be abandoned.
    pub fn step(&mut self, fuel: u64, judge: &mut dyn Judge) -> Result<bool> {
        if self.has_failed {
            return Err(Error::new(ErrorKind::Io, "the merge has failed before"));
        }
        // A judge that panics leaves a group that is read and not written.
        self.has_failed = true;
        let done = self.go_on(fuel, judge);
        self.is_interrupted = done.is_err();
        self.has_failed = done.as_ref().is_err_and(|error| !is_of_device(error));
        self.has_failed |= self.writer.has_failed();
        done
    }

    /// Whether a step that has failed can be tried again.
    pub fn can_go_on(&self) -> bool {
        !self.has_failed
    }

    fn go_on(&mut self, fuel: u64, judge: &mut dyn Judge) -> Result<bool> {
        if self.is_interrupted {
            // One that has failed looks as if it were at its end.
            self.sources.iter_mut().try_for_each(RunChain::go_on)?;
        }
        let mut spent = 0;
        while spent < fuel && !self.is_done {
            if let Some(bytes) = self.merge_alone(judge)? {
                spent += bytes;
                self.left_bytes = self.left_bytes.saturating_sub(bytes);
                continue;
            }
            match self.open.or_else(|| self.begin_group()) {
                Some(open) => {
                    let bytes = self.merge_group(open, judge)?;
                    spent += bytes;
                    self.left_bytes = self.left_bytes.saturating_sub(bytes);
                }
                None => {
                    self.writer.finish()?;
                    self.is_done = true;
                }
            }
        }
        Ok(self.is_done)
    }

    /// Merges the record that comes first, if it is a group of its own: no level has another one of its hash. Gives its
    /// bytes; none where that cannot be told without a read. Nearly all records are merged so, without a copy of their own:
    /// some 40 ns each, beside checksums and filters.
    fn merge_alone(&mut self, judge: &mut dyn Judge) -> Result<Option<u64>> {
        if self.open.is_some() || self.is_enough() {
            return Ok(None);
        }
        let Some(first) = only_first_of(&self.sources) else { return Ok(None) };
        let Some((record, next)) = self.sources[first].peek_alone() else { return Ok(None) };
        let bytes = chunk::record_bytes(record.order.len(), record.payload.len()) as u64;
        let mut stays = [true];
        judge.judge(&[record], &mut stays)?;
        if stays[0] {
            // Where this fails the record is judged and pushed again.
            self.writer.push(record)?;
        }
        self.group.hash = record.hash;
        self.sources[first].go_to(next);
        Ok(Some(bytes))
    }

    /// Whether the part ends with the hash that was merged last.
    fn is_enough(&self) -> bool {
        self.left_bytes == 0 || self.writer.partitions() >= self.partitions_max
    }

    /// Begins the group that comes first, if there is one, and the part is not over.
    fn begin_group(&mut self) -> Option<OpenGroup> {
        let source = first_of(&self.sources)?;
        let first = self.sources[source].peek().expect("it has the first record");
        if self.is_enough() && first.hash != self.group.hash {
            self.next_hash = Some(first.hash);
            return None;
        }
        self.group.begin(&first);
        let (is_too_long, is_judged) = (false, false);
        Some(OpenGroup { source, bytes: 0, is_too_long, is_judged, written: 0 })
    }

    /// Merges a group from where it has come to. Gives the bytes of its records.
    fn merge_group(&mut self, mut open: OpenGroup, judge: &mut dyn Judge) -> Result<u64> {
        let merged = self.gather(&mut open).and_then(|()| {
            if !open.is_too_long && !open.is_judged {
                self.group.judge(judge)?;
                open.is_judged = true;
            }
            self.group.write(&mut open.written, &mut self.writer)
        });
        self.open = merged.is_err().then_some(open);
        merged.map(|()| open.bytes)
    }

    /// Copies the records of the group. Writes them, if they have no room.
    fn gather(&mut self, open: &mut OpenGroup) -> Result<()> {
        let Self { sources, writer, group, .. } = self;
        while let Some(source) = sources.get_mut(open.source) {
            let has_hash = source.hash() == Some(group.hash);
            let record = if has_hash { source.peek() } else { None };
            let Some(record) = record.filter(|record| group.has_key_of(record)) else {
                open.source += 1;
                continue;
            };
            let bytes = chunk::record_bytes(record.order.len(), record.payload.len()) as u64;
            open.is_too_long = open.is_too_long || !group.take(&record);
            if open.is_too_long {
                group.write(&mut open.written, writer)?;
                writer.push(record)?;
            }
            open.bytes += bytes;
            source.advance()?;
        }
        Ok(())
    }

    /// Runs that were sealed since the last call, in order.
    pub fn take_sealed(&mut self) -> Vec<RunInfo> {
        self.writer.take_sealed()
    }

    /// The files of these that the merge does not sync.
    pub fn take_unsynced(&mut self) -> Vec<UnsyncedRun> {
        self.writer.take_unsynced()
    }

    /// The first hash that it has left, if it has ended before the last.
    pub fn next_hash(&self) -> Option<u64> {
        self.next_hash
    }

    /// What building filters and fences took, in nanoseconds.
    pub fn built_nanos(&self) -> u64 {
        self.writer.built_nanos()
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.sources.iter().map(RunChain::read_bytes).sum()
    }

    /// Removes what was written and not taken.
    ///
    /// # Errors
    /// Those of removing, after which files are left over until the next open.
    pub fn abandon(self) -> Result<()> {
        self.writer.abandon()
    }
}

/// The source that has the record which comes first, if no other one has a record of its hash.
#[inline]
fn only_first_of(sources: &[RunChain]) -> Option<usize> {
    // Without branches: which source is next nobody can foretell.
    let (mut least, mut first, mut is_only) = (u64::MAX, 0, false);
    for (nth, source) in sources.iter().enumerate() {
        // One that is at its end looks like one with the last hash, which the general way takes.
        let hash = source.hash().unwrap_or(u64::MAX);
        let (is_less, is_equal) = (hash < least, hash == least);
        first = if is_less { nth } else { first };
        is_only = is_less | (is_only & !is_equal);
        least = if is_less { hash } else { least };
    }
    is_only.then_some(first)
}

/// The newest source that has the record which comes first.
pub(super) fn first_of(sources: &[RunChain]) -> Option<usize> {
    let order_of = |nth: usize| sources[nth].peek().map(|record| record.order);
    let mut first: Option<(u64, usize)> = None;
    for (nth, source) in sources.iter().enumerate() {
        let Some(hash) = source.hash() else { continue };
        let is_first = |(least, of): (u64, usize)| {
            hash < least || hash == least && order_of(nth) < order_of(of)
        };
        if first.is_none_or(is_first) {
            first = Some((hash, nth));
        }
    }
    first.map(|(_, nth)| nth)
}

/// Whether the device may do the next time what it failed to do.
pub(crate) fn is_of_device(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Backpressure)
}
