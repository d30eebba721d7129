//! One worker's share of the events, with the next one at hand.

use alluvium::Time;

use super::clock::Clock;
use crate::Result;
use crate::args::NexmarkArgs;
use crate::input::CsvStream;
use crate::nexmark::{Bounded, EventSource, Generator, Record, Stride};

/// A source of events that knows its next one.
pub(super) struct Feed {
    source: Box<dyn EventSource>,
    next: Option<Record>,
    /// No event from `next` on is before it; in processing time when that arrives.
    watermark: Time,
    /// Of processing time.
    clock: Option<Clock>,
}

impl Feed {
    /// The share of worker `index` of `peers`, from the event `position` on.
    pub(super) fn open(
        args: &NexmarkArgs,
        index: usize,
        peers: usize,
        position: u64,
        clock: Option<Clock>,
    ) -> Result<Self> {
        let stride = Stride::of_worker(index, peers);
        let events = args.events.unwrap_or(u64::MAX);
        let source: Box<dyn EventSource> = match &args.input {
            Some(dir) => Box::new(Bounded::new(CsvStream::open(dir, stride)?, events)),
            None => {
                let mut generator = Generator::new(args.stream.config(args.rate), stride)?;
                generator.seek(position);
                Box::new(Bounded::new(generator, events))
            }
        };
        let mut feed = Self { source, next: None, watermark: Time::MIN, clock };
        feed.advance()?;
        while feed.next.as_ref().is_some_and(|record| record.ordinal < position) {
            feed.advance()?;
        }
        Ok(feed)
    }

    /// The ordinal of the next event.
    pub(super) fn ordinal(&self) -> Option<u64> {
        self.next.as_ref().map(|record| record.ordinal)
    }

    /// No event still to be taken is before this.
    pub(super) fn watermark(&self) -> Time {
        self.watermark
    }

    /// Whether time is when events arrive.
    pub(super) fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Takes the next event.
    pub(super) fn take(&mut self) -> Result<Option<Record>> {
        let taken = self.next.take();
        self.advance()?;
        Ok(taken)
    }

    fn advance(&mut self) -> Result<()> {
        let watermark = self.source.watermark();
        self.next = self.source.next_record()?;
        self.watermark = match (&mut self.clock, &self.next) {
            (Some(clock), Some(next)) => clock.at(next.ordinal),
            (Some(_), None) => self.watermark,
            (None, _) => watermark,
        };
        Ok(())
    }
}
