//! The ring of frames: those in use by age, the one that is filled, and empty ones.
//!
//! What it keeps true: a number is in use, or vacant, or was never given; the sealed frames, which are past being
//! mutable or cooling, are the oldest.

use std::collections::VecDeque;

use crate::hybrid_log::frame_unsafe::Frame;

pub(super) struct FrameRing {
    /// Frames in use, oldest first.
    order: VecDeque<u32>,
    /// The first so many of them are sealed.
    sealed: usize,
    /// New records go there.
    fill: Option<u32>,
    /// Mutable frames with unused slots.
    sparse: Vec<u32>,
    vacant_numbers: Vec<u32>,
    /// Empty frames.
    spares: Vec<Frame>,
}

impl FrameRing {
    /// No frames; room for the most that there can be.
    pub fn new(frames_max: usize, spares_max: usize) -> Self {
        Self {
            order: VecDeque::with_capacity(frames_max),
            sealed: 0,
            fill: None,
            sparse: Vec::with_capacity(frames_max / 4 + 1),
            vacant_numbers: Vec::with_capacity(frames_max),
            spares: Vec::with_capacity(spares_max),
        }
    }

    /// Frames in use.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn sealed(&self) -> usize {
        self.sealed
    }

    pub fn oldest(&self) -> Option<u32> {
        self.order.front().copied()
    }

    /// The oldest frame that is not sealed.
    pub fn next_unsealed(&self) -> Option<u32> {
        self.order.get(self.sealed).copied()
    }

    /// Seals the oldest frame that is not.
    pub fn seal_next(&mut self) {
        self.sealed += 1;
        debug_assert!(self.sealed <= self.order.len());
    }

    pub fn sealed_frames(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().take(self.sealed).copied()
    }

    pub fn unsealed_frames(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.range(self.sealed..).copied()
    }

    /// A vacant number for another frame, if there is one.
    pub fn take_number(&mut self) -> Option<u32> {
        self.vacant_numbers.pop()
    }

    /// A new frame is filled from now on.
    pub fn add(&mut self, number: u32) {
        self.order.push_back(number);
        self.fill = Some(number);
    }

    /// Takes a frame out of use. Its number is vacant.
    pub fn remove(&mut self, number: u32) {
        self.take_out(number);
        self.leave_fill(number);
        self.vacant_numbers.push(number);
    }

    /// A frame is the youngest, and not sealed.
    pub fn renew(&mut self, number: u32) {
        self.take_out(number);
        self.order.push_back(number);
    }

    fn take_out(&mut self, number: u32) {
        let at = self.order.iter().position(|&n| n == number).expect("a frame in order");
        self.order.remove(at);
        self.sealed -= usize::from(at < self.sealed);
    }

    /// The frame that is filled.
    #[inline(always)]
    pub fn fill(&self) -> Option<u32> {
        self.fill
    }

    pub fn is_fill(&self, number: u32) -> bool {
        self.fill == Some(number)
    }

    /// Goes on filling a frame with unused slots.
    pub fn fill_again(&mut self, number: u32) {
        self.fill = Some(number);
    }

    /// A frame is not filled any more.
    pub fn leave_fill(&mut self, number: u32) {
        self.fill.take_if(|fill| *fill == number);
    }

    /// No frame that is there is filled any more.
    pub fn leave_all(&mut self) {
        self.fill = None;
        self.sparse.clear();
    }

    /// A frame has so many unused slots that it is worth it to fill them.
    pub fn offer(&mut self, number: u32) {
        if self.sparse.len() < self.sparse.capacity() {
            self.sparse.push(number);
        }
    }

    /// A frame that was offered.
    pub fn take_offered(&mut self) -> Option<u32> {
        self.sparse.pop()
    }

    /// Empty frames.
    pub fn spares(&self) -> usize {
        self.spares.len()
    }

    pub fn take_spare(&mut self) -> Option<Frame> {
        self.spares.pop()
    }

    pub fn keep_spare(&mut self, frame: Frame) {
        self.spares.push(frame);
    }

    pub fn drop_spares(&mut self) {
        self.spares.clear();
    }
}
