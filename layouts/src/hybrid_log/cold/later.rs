//! A log that has no cold tier yet, and gets one once its index takes too much of the memory.
//!
//! Until then nothing is booked for the tier and no call asks for it. The index is *held* at some bytes: the split that
//! would pass them is refused, which is met where memory is short. There it is looked how much the index may have beside a
//! tier. If it has less, it is held there from then on; if it has come so far, the tier begins, while there is memory for
//! its work.

use std::sync::Arc;

use alluvium_pagestore::io::Waker;

use super::paying::begins_at;
use super::{Cold, PAYLOAD_MAX};
use crate::contract::table::StateContext;
use crate::hybrid_log::log::Log;

/// The index is looked at for the first time when it has one part in so many of the memory.
const FIRST_SHARE: u64 = 8;
/// Where there is no memory for a tier it is looked again when the index has grown by one part in so many.
const AGAIN_SHARE: u64 = 16;

/// What a tier is made of.
#[derive(Debug)]
pub struct Later {
    context: StateContext,
    waker: Option<Arc<Waker>>,
}

impl Later {
    /// Wakes somebody at the end of each read of the tier that is started ahead.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.waker = Some(waker);
    }
}

impl Log {
    /// Has the log get a tier once its index takes too much, if it is to and can have one.
    pub fn may_get_cold(&mut self, context: &StateContext) {
        let may = self.sizes.cold_runs_later && self.cold.is_none() && context.segments.is_some();
        // Longer records stay in the log.
        let (is_plain, bytes) = (self.record_type.is_plain(), self.record_type.layout().size());
        let may = may && !(is_plain && bytes > PAYLOAD_MAX);
        if may && Cold::check(context, &self.sizes).is_ok() {
            let context = StateContext { restored: None, ..context.clone() };
            self.later = Some(Box::new(Later { context, waker: None }));
            self.hold_index();
        }
    }

    /// Goes on for a log that was cleared.
    pub fn may_get_cold_as(&mut self, old: &mut Log) {
        self.later = old.later.take();
        if self.later.is_some() {
            self.hold_index();
        }
    }

    fn hold_index(&mut self) {
        self.index.hold_at(self.account.limit() / FIRST_SHARE);
    }

    /// The log never gets a tier.
    pub fn gets_no_cold(&mut self) {
        self.later = None;
        self.index.hold_at(u64::MAX);
    }

    /// Looks at an index that was refused a split since it is held. Says whether it has that much now.
    pub(in crate::hybrid_log) fn look_at_index(&mut self) -> bool {
        let Some(wanted) = self.index.wanted_beyond().filter(|_| self.later.is_some()) else {
            return false;
        };
        let later = self.later.take().expect("asked before");
        let opening_bytes = Cold::opening_bytes(&later.context);
        let cold = match self.account.available() >= opening_bytes {
            true => Cold::new(&later.context, self.record_type, &self.sizes),
            false => None,
        };
        // What the index may have beside the tier's work depends on that.
        let is_made = cold.is_some();
        self.cold = cold.map(Box::new);
        let most = self.index_bytes_max();
        if !is_made || wanted <= begins_at(most) {
            self.cold = None;
            self.later = Some(later);
            self.index.hold_at(wanted.max(begins_at(most)));
        } else if !self.has_room_for_work() {
            // It was opened with a larger index, or others have the memory.
            self.cold = None;
            self.later = Some(later);
            self.index.hold_at(wanted + wanted / AGAIN_SHARE);
        } else {
            self.index.hold_at(u64::MAX);
            if let (Some(cold), Some(waker)) = (&mut self.cold, later.waker) {
                cold.wake_with(waker);
            }
        }
        true
    }
}
