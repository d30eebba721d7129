//! What is on its way out of memory: how far the frame is whose records are redirected to storage, and how many
//! frames the helper has or could not write.

/// Frames with the helper at once.
pub(super) const FROZEN_MAX: usize = 4;

pub(super) struct Eviction {
    /// The clean frame whose slots are being redirected, and the next slot.
    under_way: Option<(u32, u32)>,
    /// Frames, and frames of copies, with the helper.
    frozen: usize,
    /// Frames that could not be written.
    failed: usize,
    /// Whether a caller waits for a frame, so that those that are written leave.
    is_freeing: bool,
    /// Free memory below which frames are on their way out.
    want_free: u64,
}

impl Eviction {
    pub fn new(want_free: u64) -> Self {
        Self { under_way: None, frozen: 0, failed: 0, is_freeing: false, want_free }
    }

    /// The frame that is being left and its next slot.
    pub fn under_way(&self) -> Option<(u32, u32)> {
        self.under_way
    }

    /// Whether a frame is the one that is being left.
    pub fn is_of(&self, number: u32) -> bool {
        self.under_way.is_some_and(|(evicted, _)| evicted == number)
    }

    /// The slots of a frame before this one are being left.
    pub fn left_before(&self, number: u32) -> u32 {
        self.under_way.filter(|(evicted, _)| *evicted == number).map_or(0, |(_, next)| next)
    }

    /// The slots of a frame before this one are left.
    pub fn leave_before(&mut self, number: u32, slot: u32) {
        self.under_way = Some((number, slot));
    }

    /// No frame is being left.
    pub fn end(&mut self) {
        self.under_way = None;
    }

    /// Frames with the helper.
    pub fn frozen(&self) -> usize {
        self.frozen
    }

    /// Whether the helper may have another one.
    pub fn may_freeze(&self) -> bool {
        self.frozen < FROZEN_MAX
    }

    /// The helper has another one.
    pub fn freeze(&mut self) {
        self.frozen += 1;
    }

    /// One is back.
    pub fn thaw(&mut self) {
        self.frozen -= 1;
    }

    pub fn failed(&self) -> usize {
        self.failed
    }

    /// A frame could not be written, or is to be written again.
    pub fn fail(&mut self) {
        self.failed += 1;
    }

    /// One of those is written again, or left.
    pub fn retry(&mut self) {
        self.failed -= 1;
    }

    #[inline(always)]
    pub fn want_free(&self) -> u64 {
        self.want_free
    }

    pub fn is_freeing(&self) -> bool {
        self.is_freeing
    }

    pub fn set_freeing(&mut self, is_freeing: bool) {
        self.is_freeing = is_freeing;
    }
}
