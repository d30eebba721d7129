//! One worker's share of the events, with the next one at hand.

use alluvium::Time;

use super::clock::Clock;
use super::position::{Done, Restored};
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
    /// What the runs before this one have fed.
    done: Done,
    /// The time of the checkpoint that the run goes on from: nothing that is not done is before it.
    begin: Time,
}

impl Feed {
    /// The share of worker `index` of `peers`, without the events that are done. What a run goes on
    /// from was taken at the time `begin`.
    pub(super) fn open(
        args: &NexmarkArgs,
        index: usize,
        peers: usize,
        restored: Option<&Restored>,
        begin: Time,
        clock: Option<Clock>,
    ) -> Result<Self> {
        let stride = Stride::of_worker(index, peers);
        let events = args.events.unwrap_or(u64::MAX);
        let source: Box<dyn EventSource> = match &args.input {
            Some(dir) => Box::new(Bounded::new(CsvStream::open(dir, stride)?, events)),
            None => {
                let mut generator = Generator::new(args.stream.config(args.rate), stride)?;
                generator.seek(restored.map_or(0, |restored| restored.next));
                Box::new(Bounded::new(generator, events))
            }
        };
        let done = restored.map(|restored| restored.done.clone()).unwrap_or_default();
        let mut feed = Self { source, next: None, watermark: begin, clock, done, begin };
        feed.advance()?;
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

    /// Puts the next event off until a time, if it comes when it is taken.
    pub(super) fn put_off(&mut self, until: Time) {
        if self.clock.as_mut().is_some_and(|clock| clock.puts_off(until)) {
            self.watermark = self.watermark.max(until);
        }
    }

    /// Takes the next event.
    pub(super) fn take(&mut self) -> Result<Option<Record>> {
        let taken = self.next.take();
        self.advance()?;
        Ok(taken)
    }

    /// Comes to the next event that is not done.
    fn advance(&mut self) -> Result<()> {
        let mut watermark = self.source.watermark();
        self.next = self.source.next_record()?;
        while self.next.as_ref().is_some_and(|record| self.done.has(record.ordinal)) {
            watermark = self.source.watermark();
            self.next = self.source.next_record()?;
        }
        let watermark = match (&mut self.clock, &self.next) {
            (Some(clock), Some(next)) => clock.at(next.ordinal),
            (Some(_), None) => self.watermark,
            (None, _) => watermark,
        };
        self.watermark = watermark.max(self.begin);
        Ok(())
    }

    /// What the runs before this one have fed.
    pub(super) fn done(&self) -> &Done {
        &self.done
    }
}
