//! Passes over the records of segments, with as much memory for reading ahead as can be had.

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    Account, MemoryKind, PassVisitor, Result, SegmentInfo, SegmentPass, SegmentStore,
};

/// The least of a buffer: below, one request hardly takes longer than the next.
const AHEAD_BYTES_MIN: u64 = 16 << 10;
/// The most: what a device reads at its full speed.
const AHEAD_BYTES_MAX: u64 = 1 << 20;
/// A buffer is so small a part of what is free: the rest is for what is read.
const AHEAD_SHARE: u64 = 128;

/// Bytes of each buffer to read ahead with, which are booked; 0 if memory is too short for that. What
/// was booked is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Ahead<'a> {
    account: &'a Account,
    pub bytes: usize,
}

impl<'a> Ahead<'a> {
    pub fn book(account: &'a Account) -> Self {
        let block = BLOCK_BYTES as u64;
        let share = (account.available() / AHEAD_SHARE).min(AHEAD_BYTES_MAX) / block * block;
        let bytes = share as usize;
        let booked = share >= AHEAD_BYTES_MIN
            && account.try_reserve(MemoryKind::Buffers, SegmentPass::ahead_bytes(bytes));
        Self { account, bytes: if booked { bytes } else { 0 } }
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, SegmentPass::ahead_bytes(self.bytes));
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
    visitor: &mut impl PassVisitor,
) -> Result<()> {
    // Dropped after the pass, whose memory it is.
    let ahead = Ahead::book(account);
    SegmentPass::new(store.clone(), state, window_bytes, ahead.bytes).run(count, open, visitor)
}
