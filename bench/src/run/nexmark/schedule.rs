//! When checkpoints are asked for.

use std::time::{Duration, Instant};

use crate::args::NexmarkArgs;

/// When the first worker asks for checkpoints; the others ask for none.
pub(super) struct Schedule {
    /// Once, when an event with this ordinal or a later one is next, or none.
    at: Option<u64>,
    every_events: Option<u64>,
    every: Option<Duration>,
    /// The ordinal that was next when one was asked for last.
    asked_at: u64,
    asked: Instant,
}

impl Schedule {
    /// For the run that `args` ask for, from the event `begin` on.
    pub(super) fn new(args: &NexmarkArgs, is_first: bool, restored: Option<u64>) -> Self {
        Self {
            at: args.checkpoint_at.filter(|_| is_first && restored.is_none()),
            every_events: args.checkpoint_every_events.filter(|_| is_first),
            every: args.checkpoint_every.filter(|_| is_first),
            asked_at: restored.unwrap_or(0),
            asked: Instant::now(),
        }
    }

    /// Whether one is to be asked for now, with `next` being the ordinal of the next event.
    pub(super) fn is_due(&mut self, next: Option<u64>) -> bool {
        let is_reached = self.at.is_some_and(|at| next.is_none_or(|next| next >= at));
        let since = next.map_or(0, |next| next.saturating_sub(self.asked_at));
        let enough = self.every_events.is_some_and(|every| since >= every);
        let long = next.is_some() && self.every.is_some_and(|every| self.asked.elapsed() >= every);
        let is_due = is_reached || enough || long;
        if is_due {
            self.at = self.at.filter(|_| !is_reached);
            self.asked_at = next.unwrap_or(self.asked_at);
            self.asked = Instant::now();
        }
        is_due
    }
}
