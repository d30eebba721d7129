//! Wakes a thread that sleeps until reads have ended, once for many reads.
//!
//! Completions go through a channel; the [`Waker`] beside it announces them. A completion is in the
//! channel before [`wake`](Waker::wake) is called, and the sleeper calls [`rearm`](Waker::rearm)
//! before it reads the channel. Both do one read-modify-write on one flag, and the later one sees
//! the earlier. Either `wake` finds the flag down and wakes, or `rearm` follows it and the sleeper
//! finds the completion in the channel. No completion is missed, and the sleeper is woken at most
//! once between two reads of the channel.

use std::fmt;

// The standard library's; in `tests/hand_over_in_all_orders.rs` loom's, which tries all orders of their steps.
use super::{AtomicBool, Ordering};

/// Wakes a sleeper from any thread.
pub struct Waker {
    /// Whether the sleeper was woken since it last looked.
    woken: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Waker {
    /// Creates a waker that calls `wake`, which must be quick and must not panic.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { woken: AtomicBool::new(false), wake: Box::new(wake) }
    }

    /// Wakes the sleeper, unless it was woken since it last called [`rearm`](Waker::rearm).
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Prepares the next wake-up. The sleeper calls it before it reads the channel.
    pub fn rearm(&self) {
        self.woken.swap(false, Ordering::AcqRel);
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").field("woken", &self.woken).finish_non_exhaustive()
    }
}
