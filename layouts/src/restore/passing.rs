//! Passes over the records of segments, with as much memory for reading ahead as can be had.

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    Account, FooterEntry, MemoryKind, PassVisitor, PassedRecord, Result, SegmentInfo, SegmentPass,
    SegmentStore,
};

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
