//! What a checkpoint that was given up has left in frames, and how that goes.
//!
//! To give one up takes the same few steps whatever the log holds: it leaves records that are fresh since epochs before,
//! entries that are marked as dead and stay for a helper that does not come, and copies that nobody writes. The
//! first are right as they are: the next checkpoint is to have them. The others go a frame at a time: by whoever comes to
//! a frame and minds, or with each page that is begun and while there is nothing else to do.
//!
//! What it keeps true:
//! - A mark of a death tells only whether its epoch was an odd one: in a frame that is being written, or of which a
//!   checkpoint is to have more, there are none of an epoch that was given up.
//! - No two epochs since which records are fresh have one number.

use super::Log;
use crate::hybrid_log::frames_unsafe::FrameStage;

/// Frames that are looked at with each page that is begun.
const FRAMES_PER_PAGE: usize = 2;

impl Log {
    /// Drops what is marked as dead in a frame since a checkpoint that was given up; says whether there was
    /// something. It may be left empty, and out of use.
    pub(super) fn drop_given_up(&mut self, number: u32) -> bool {
        let (state, given_up) = (self.frames.state(number), self.barrier.given_up());
        // Marks in a frame that is or was being written are its page's.
        if state.epoch >= given_up || matches!(state.stage, FrameStage::Frozen | FrameStage::Clean)
        {
            return false;
        }
        let is_marked = state.dead > 0;
        self.frames.state_mut(number).epoch = given_up;
        if is_marked {
            self.drop_dead(number);
        }
        self.frames.shorten(number);
        is_marked
    }

    /// Goes on with ridding frames of what the last checkpoint that was given up has left: a few of them.
    pub(super) fn carry_some_over(&mut self) {
        for _ in 0..FRAMES_PER_PAGE {
            if self.barrier.carrying().is_some() {
                self.carry_next_over();
            }
        }
    }

    /// The same for one frame; says whether there was one.
    pub fn carry_next_over(&mut self) -> bool {
        if self.end_stale_copies() {
            return true;
        }
        let Some(number) = self.barrier.carrying() else { return false };
        if number as usize == self.frames.count() {
            // None has been begun since that would have an epoch before.
            self.barrier.stop_carrying();
            self.barrier.is_carried();
            return false;
        }
        if self.stage(number) == FrameStage::Frozen {
            // If it cannot be written it is as it was.
            return false;
        }
        self.barrier.carry_on();
        self.carry_over(number);
        true
    }

    fn carry_over(&mut self, number: u32) {
        let epoch = self.frames.epoch();
        self.drop_given_up(number);
        let Some(frame) = &self.frames.state(number).frame else { return };
        if frame.due(epoch) > 0 {
            self.stats.checkpoint_looks += u64::from(frame.slots());
            self.frame_mut(number).carry_over(epoch);
            self.frames.shorten(number);
        }
    }

    /// All at once: numbers of epochs come again.
    #[cold]
    pub(super) fn carry_all_over(&mut self) {
        while self.end_stale_copies() {}
        for number in 0..self.frames.count() as u32 {
            self.carry_over(number);
        }
        self.barrier.is_carried();
    }
}
