//! Copies of records for a checkpoint, made ahead of the helper so that the stream goes on changing the
//! records where they are.
//!
//! What is due in one frame after the other is copied into one frame of copies until that is full: each
//! is written as one image, whose last block would be padded for every frame otherwise.
//!
//! What it keeps true:
//! - The copies of one frame stand together, in one frame of copies; the frames that are in it are linked
//!   from the first to the last, in the order of their copies.
//! - A frame of which copies are on their way stays, empty or not; it is not frozen and not copied again.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_pagestore::{MemoryKind, Result};

use super::{Log, SealProgress};
use crate::hybrid_log::flush::WrittenSlots;
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::frames_unsafe::NO_FRAME;

/// A frame of copies, and the frames that its records are in.
pub struct CopyFrame {
    pub frame: Frame,
    pub first: u32,
    last: u32,
}

/// Copies of a checkpoint on their way to the helper: next to be written, and what has room for more.
pub(super) struct CopyQueue {
    queue: VecDeque<CopyFrame>,
    /// The first so many of them are of a checkpoint that was given up.
    stale: usize,
    open: Option<CopyFrame>,
}

impl CopyQueue {
    /// None; room for so many.
    pub fn new(most: usize) -> Self {
        Self { queue: VecDeque::with_capacity(most), stale: 0, open: None }
    }

    /// Frames of copies that are full.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are no copies, and nothing that has room for more.
    pub fn is_none(&self) -> bool {
        self.queue.is_empty() && self.open.is_none()
    }

    pub fn next(&self) -> Option<&CopyFrame> {
        self.queue.front()
    }

    /// The frame of copies that was being filled is to be written; says whether there was one.
    pub fn close(&mut self) -> bool {
        let open = self.open.take();
        let was_open = open.is_some();
        self.queue.extend(open);
        was_open
    }

    /// All of them are of a checkpoint that was given up.
    pub fn give_up(&mut self) {
        self.close();
        self.stale = self.queue.len();
    }

    fn take_stale(&mut self) -> Option<CopyFrame> {
        self.stale = self.stale.checked_sub(1)?;
        self.queue.pop_front()
    }

    pub fn clear(&mut self) {
        (self.open, self.stale) = (None, 0);
        self.queue.clear();
    }
}

impl Log {
    /// Copies what is due in a frame; says whether a frame was made for that, and `None` if it could not: not without
    /// memory.
    pub(super) fn copy_due(&mut self, number: u32) -> Option<bool> {
        let due = self.due_of(number);
        let has_room = |copies: &CopyFrame| copies.frame.used() + due <= copies.frame.slots();
        if self.copies.open.as_ref().is_some_and(|copies| !has_room(copies)) {
            self.copies.close();
        }
        let (open, mut is_new) = (self.copies.open.take(), false);
        let mut copies = open.or_else(|| {
            is_new = self.ring.spares() == 0;
            let (first, last) = (NO_FRAME, NO_FRAME);
            self.frame_to_copy_to().map(|frame| CopyFrame { frame, first, last })
        })?;
        let epoch = self.frames.epoch();
        let frame = self.frames.state_mut(number).frame.as_mut().expect("a frame in use");
        // Cloning runs user code. What cannot be cloned is written where it is.
        let copied = catch_unwind(AssertUnwindSafe(|| frame.copy_due(&mut copies.frame, epoch)));
        if copied.is_err() {
            copies.frame.forget_behind();
        } else {
            self.frames.await_copies(number);
            match copies.last {
                NO_FRAME => copies.first = number,
                last => self.frames.state_mut(last).next_copied = number,
            }
            copies.last = number;
        }
        match copies.last {
            NO_FRAME => self.drop_copies(copies.frame),
            _ => self.copies.open = Some(copies),
        }
        copied.is_ok().then_some(is_new)
    }

    /// An empty frame for copies, if memory is not short.
    fn frame_to_copy_to(&mut self) -> Option<Frame> {
        let bytes = self.sizes.frame_bytes;
        let is_full = self.copies.len() + self.eviction.frozen() >= self.sizes.copies_max;
        if is_full || self.account.available() < self.eviction.want_free() + bytes {
            return None;
        }
        if let Some(frame) = self.ring.take_spare() {
            return Some(frame);
        }
        let is_booked = self.account.try_reserve(MemoryKind::Pages, bytes);
        is_booked.then(|| Frame::new(self.record_type, self.sizes.slots, self.pool.take()))
    }

    /// Gives the next copies to the helper, if there are some.
    pub(super) fn give_copies(&mut self) -> bool {
        // The last of them are not waited for, and nothing overtakes them.
        let is_last = self.is_short() || !self.is_next_due();
        if self.copies.len() == 0 && is_last {
            self.copies.close();
        }
        let Some(copies) = self.copies.queue.pop_front() else { return false };
        self.eviction.freeze();
        self.stats.pages_flushed += 1;
        self.flusher.as_mut().expect("a stored log").flush_copies(copies);
        true
    }

    /// Copies were written, or could not be.
    pub(super) fn take_copies(&mut self, copies: CopyFrame, result: Result<Vec<WrittenSlots>>) {
        self.eviction.thaw();
        match self.page_written(copies.first, result) {
            Ok(parts) => {
                self.settle_copies(&copies, &parts);
                self.end_copies(copies);
            }
            Err(error) => {
                self.page_failed(error);
                if self.barrier.sealing() == SealProgress::Freezing {
                    self.copies.queue.push_front(copies);
                    return;
                }
                self.barrier.page_failed();
                self.end_copies(copies);
            }
        }
    }

    /// Copies are in a segment: what has not been touched since has its place there.
    fn settle_copies(&mut self, copies: &CopyFrame, parts: &[(u32, Range<u32>)]) {
        let (mut number, mut from, epoch) = (copies.first, 0, self.frames.epoch());
        while number != NO_FRAME {
            let of = from..copies.frame.end_of_copies(from);
            from = of.end;
            for (segment, slots) in parts {
                let of = of.start.max(slots.start)..of.end.min(slots.end);
                if of.is_empty() {
                    continue;
                }
                let stored = self.stored.as_mut().expect("a flusher has a store");
                stored.has_frame(*segment, number);
                // Those that have died since are of the next checkpoint's list.
                let since = |grain| (grain, false);
                let frame = self.frames.copied(number);
                let died = frame.settle_copies(&copies.frame, of, (*segment, epoch)).map(since);
                stored.records_died_in(*segment, died);
            }
            number = self.frames.state(number).next_copied;
        }
        assert_eq!(from, copies.frame.used(), "every copy is one of a frame's");
    }

    /// Copies have been written, or are not going to be.
    pub(super) fn end_copies(&mut self, copies: CopyFrame) {
        let mut number = copies.first;
        self.stats.checkpoint_looks += u64::from(copies.frame.slots());
        while number != NO_FRAME {
            let next = self.frames.end_copies(number);
            let state = self.frames.state(number);
            let is_empty = state.frame.as_ref().is_some_and(|frame| frame.used() == 0);
            if is_empty && !self.ring.is_fill(number) {
                self.retire(number);
            } else {
                self.frames.shorten(number);
            }
            number = next;
        }
        self.drop_copies(copies.frame);
    }

    /// Drops a frame of copies of a checkpoint that was given up, if there is one; they stand before the others.
    pub(super) fn end_stale_copies(&mut self) -> bool {
        let Some(copies) = self.copies.take_stale() else { return false };
        self.end_copies(copies);
        true
    }

    fn drop_copies(&mut self, mut frame: Frame) {
        frame.clear();
        self.keep_or_drop(frame);
    }
}
