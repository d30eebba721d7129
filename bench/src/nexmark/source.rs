//! Where events come from, for whoever feeds them to a query.

use super::generator::Generator;
use super::model::Record;
use alluvium::Time;

use crate::Result;

/// One worker's share of a stream of events.
pub trait EventSource {
    /// The next event, `None` at the end.
    ///
    /// # Errors
    /// Says what in the input is wrong; the source is not to be used further.
    fn next_record(&mut self) -> Result<Option<Record>>;

    /// No event still to come from this source has an earlier time.
    fn watermark(&self) -> Time;
}

impl EventSource for Generator {
    fn next_record(&mut self) -> Result<Option<Record>> {
        Ok(self.next())
    }

    fn watermark(&self) -> Time {
        Generator::watermark(self)
    }
}

/// The beginning of a stream.
#[derive(Clone, Debug)]
pub struct Bounded<S> {
    source: S,
    events: u64,
    ended: bool,
}

impl<S: EventSource> Bounded<S> {
    /// The events of `source` with ordinals below `events`.
    pub fn new(source: S, events: u64) -> Self {
        Bounded { source, events, ended: false }
    }
}

impl<S: EventSource> EventSource for Bounded<S> {
    fn next_record(&mut self) -> Result<Option<Record>> {
        if !self.ended {
            match self.source.next_record()? {
                Some(record) if record.ordinal < self.events => return Ok(Some(record)),
                _ => self.ended = true,
            }
        }
        Ok(None)
    }

    fn watermark(&self) -> Time {
        if self.ended { Time::MAX } else { self.source.watermark() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexmark::{Config, Stride};

    #[test]
    fn a_bounded_stream_ends_with_the_last_watermark() {
        let share = Generator::new(Config::default(), Stride::of_worker(1, 2)).unwrap();
        let mut bounded = Bounded::new(share, 5);
        let mut ordinals = Vec::new();
        while let Some(record) = bounded.next_record().unwrap() {
            assert!(bounded.watermark() < Time::MAX);
            ordinals.push(record.ordinal);
        }
        assert_eq!(ordinals, [1, 3]);
        assert_eq!(bounded.watermark(), Time::MAX);
        assert!(bounded.next_record().unwrap().is_none());
    }
}
