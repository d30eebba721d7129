//! Moves beside the checkpoints of the job: none begins at the time at which the job stops for one, or
//! after it.
//!
//! A move at the very time at which all inputs stand could begin as soon as nothing before that is under
//! way, which is when the workers seal their stores. Of two workers one would have sealed before the
//! group left, and the other after it had come: two checkpoints would have it, or none.
//!
//! What it keeps true: from when a worker has said at which time it can stop, until all workers have
//! sealed, no move that it has not begun begins here at that time or later. Moves that have begun are
//! before the time that it says.

use std::cell::{Cell, RefCell};

use alluvium::Time;
use timely::scheduling::Activator;

/// When moves may begin on a worker.
#[derive(Debug, Default)]
pub(crate) struct MoveBarrier {
    /// Moves at this time or later do not begin.
    stops_at: Cell<Option<Time>>,
    /// The latest move that has begun here.
    begun: Cell<Option<Time>>,
    /// Of all routers.
    routers: RefCell<Vec<Activator>>,
}

impl MoveBarrier {
    /// Adds a router, to be woken when moves may begin again.
    pub(super) fn attach(&self, router: Activator) {
        self.routers.borrow_mut().push(router);
    }

    /// Says whether a move at this time may begin, and notes that it does.
    pub(super) fn begin(&self, time: Time) -> bool {
        if self.stops_at.get().is_some_and(|stops_at| time >= stops_at) {
            return false;
        }
        self.begun.set(self.begun.get().max(Some(time)));
        true
    }

    /// The earliest time, from `least` on, that is after each move that has begun here.
    pub(crate) fn after_moves(&self, least: Time) -> Time {
        let after = self.begun.get().map(|begun| Time(begun.0.saturating_add(1)));
        after.map_or(least, |after| after.max(least))
    }

    /// The job may stop at this time for a checkpoint, or does.
    pub(crate) fn stop_at(&self, time: Time) {
        self.stops_at.set(Some(time));
        // It may be later than what was said before: moves before it begin.
        self.wake();
    }

    /// All workers have sealed, or there is no checkpoint.
    pub(crate) fn lift(&self) {
        if self.stops_at.take().is_some() {
            self.wake();
        }
    }

    fn wake(&self) {
        self.routers.borrow().iter().for_each(Activator::activate);
    }
}
