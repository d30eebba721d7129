//! Passes over the records of segments, with as much memory for reading ahead as can be had.

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    Account, Error, ErrorKind, FooterEntry, LiveSet, Liveness, MemoryKind, PassVisitor,
    PassedRecord, Result, SegmentImage, SegmentInfo, SegmentPass, SegmentStore, fingerprint,
};

use crate::contract::table::StateContext;

/// The least of a buffer: below, one request hardly takes longer than the next.
const AHEAD_BYTES_MIN: u64 = 16 << 10;
/// The most: what a device reads at its full speed.
const AHEAD_BYTES_MAX: u64 = 1 << 20;
/// A buffer is so small a part of what is free: the rest is for what is read.
const AHEAD_SHARE: u64 = 128;

/// With less free than so many buffers, one that comes back is given up: the records of those that are being read,
/// as values in memory, are to find room.
const KEPT_FREE: u64 = 32;

/// Shows what a visitor is to see, with memory to read ahead that is booked, if there is enough; it is given up as
/// what is visited fills the memory. What is booked is given back when this is dropped.
struct ReadsAhead<'a> {
    account: &'a Account,
    buffer_bytes: usize,
    /// Of the buffers that there are.
    booked: u64,
    visitor: &'a mut dyn PassVisitor,
}

impl<'a> ReadsAhead<'a> {
    fn book(account: &'a Account, visitor: &'a mut dyn PassVisitor) -> Self {
        let block = BLOCK_BYTES as u64;
        let share = (account.available() / AHEAD_SHARE).min(AHEAD_BYTES_MAX) / block * block;
        let mut this = Self { account, buffer_bytes: 0, booked: 0, visitor };
        let bytes = SegmentPass::ahead_bytes(share as usize);
        if share >= AHEAD_BYTES_MIN && account.try_reserve(MemoryKind::Buffers, bytes) {
            (this.buffer_bytes, this.booked) = (share as usize, bytes);
        }
        this
    }
}

impl PassVisitor for ReadsAhead<'_> {
    fn begin(&mut self, nth: usize) -> Result<()> {
        self.visitor.begin(nth)
    }

    fn soon(&mut self, entry: &FooterEntry) {
        self.visitor.soon(entry);
    }

    fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()> {
        self.visitor.record(entry, record)
    }

    fn end(&mut self, nth: usize) -> Result<()> {
        self.visitor.end(nth)
    }

    fn keeps_buffer(&mut self) -> bool {
        let bytes = self.buffer_bytes as u64;
        let keeps = self.account.available() >= KEPT_FREE * bytes;
        if !keeps {
            self.account.release(MemoryKind::Buffers, bytes);
            self.booked -= bytes;
        }
        keeps
    }
}

impl Drop for ReadsAhead<'_> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

/// Shows `visitor` the records of `count` segments, which `open` opens one by one. The window, and the
/// footer of an image, are the caller's to book.
pub(crate) fn pass_over(
    (store, state): (&SegmentStore, u64),
    account: &Account,
    window_bytes: usize,
    count: usize,
    open: &mut dyn FnMut(usize) -> Result<SegmentInfo>,
    visitor: &mut dyn PassVisitor,
) -> Result<()> {
    // Dropped after the pass, whose memory it is.
    let mut ahead = ReadsAhead::book(account, visitor);
    let mut pass = SegmentPass::new(store.clone(), state, window_bytes, ahead.buffer_bytes);
    pass.run(count, open, &mut ahead)
}

/// Receives a live record: the number of its segment, what the footer tells of it, and its reader.
pub(crate) type VisitLive<'v> =
    &'v mut dyn FnMut(usize, &FooterEntry, &mut PassedRecord<'_>) -> Result<()>;

/// Shows the records of segments that are live, and counts them.
struct LiveRecords<'p, 'v> {
    context: &'p StateContext,
    segments: &'p [SegmentImage],
    liveness: &'p Liveness,
    /// Of the segment at hand: those that are live, unless all are, and how many there were so far.
    live: Option<LiveSet>,
    found: u64,
    nth: usize,
    visit: VisitLive<'v>,
}

impl PassVisitor for LiveRecords<'_, '_> {
    fn begin(&mut self, nth: usize) -> Result<()> {
        // The one before first: there is room for one.
        self.live = None;
        self.live = self.liveness.of(&self.segments[nth])?;
        (self.found, self.nth) = (0, nth);
        Ok(())
    }

    fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()> {
        if self.live.as_ref().is_some_and(|live| !live.contains(entry.grain)) {
            return Ok(());
        }
        self.found += 1;
        (self.visit)(self.nth, entry, record)
    }

    fn end(&mut self, nth: usize) -> Result<()> {
        let segment = &self.segments[nth];
        let (found, expected) = (self.found, segment.live_records);
        if found == expected {
            return Ok(());
        }
        let message = format!("{found} live records in a segment, {expected} expected");
        let error = Error::new(ErrorKind::Corrupt, message).with("state", &self.context.name);
        Err(error.with("file", segment.id.file_name()))
    }
}

/// Shows the live records of segments, one after the other, through a window of so many bytes.
///
/// # Errors
/// Those of `visit` and of reading; [`ErrorKind::Corrupt`] if they are not as many as the image says.
pub(crate) fn pass_over_live(
    context: &StateContext,
    (store, window): (&SegmentStore, usize),
    segments: &[SegmentImage],
    liveness: &Liveness,
    visit: VisitLive<'_>,
) -> Result<()> {
    let mut records =
        LiveRecords { context, segments, liveness, live: None, found: 0, nth: 0, visit };
    let state = fingerprint(&context.name);
    let mut open = |nth: usize| segments[nth].open(store);
    let (account, count) = (&context.account, segments.len());
    pass_over((store, state), account, window, count, &mut open, &mut records)
}
