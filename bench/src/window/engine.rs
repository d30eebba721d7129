//! The seam between a stream of events and whoever answers questions of its windows.

use alluvium::Time;

use super::Answer;
use crate::Result;

/// What happened, to whom, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub time: Time,
    /// Whose windows it is in.
    pub key: u64,
    /// The number that is ranked or counted.
    pub value: i64,
}

/// Events in order of arrival.
pub trait EventStream {
    /// The next event, `None` at the end.
    ///
    /// # Errors
    /// Says what in the input is wrong; the stream is not to be used further.
    fn next_event(&mut self) -> Result<Option<Event>>;

    /// No event still to come from this stream has an earlier time.
    fn watermark(&self) -> Time;
}

/// Keeps windows and answers the question of each, once, when it is over.
///
/// A tumbling or sliding window [start, end) is over when W >= end, a session when W > its end, as
/// an event at its end still belongs to it.
pub trait Engine {
    /// Takes events, none of which is before the watermark.
    ///
    /// # Errors
    /// The store's.
    fn push(&mut self, events: &[Event]) -> Result<()>;

    /// Moves the watermark on and tells answers of the windows that are over now, in any order;
    /// says whether that were all. Otherwise, to be called again with the same watermark, before
    /// anything else.
    ///
    /// # Errors
    /// The store's.
    fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) -> Result<bool>;
}
