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

/// The first events of a generated stream.
#[derive(Clone, Debug)]
pub struct Bounded {
    generator: Generator,
    events: u64,
}

impl Bounded {
    /// The events of `generator` with ordinals below `events`.
    pub fn new(generator: Generator, events: u64) -> Self {
        Bounded { generator, events }
    }
}

impl EventSource for Bounded {
    fn next_record(&mut self) -> Result<Option<Record>> {
        if self.generator.ordinal() >= self.events {
            return Ok(None);
        }
        Ok(self.generator.next())
    }

    fn watermark(&self) -> Time {
        match self.generator.ordinal() < self.events {
            true => self.generator.watermark(),
            false => Time::MAX,
        }
    }
}
