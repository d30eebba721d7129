//! The event generator: seeded arrival processes, keys, sizes, disorder, one or two streams.
//!
//! Several generators run beside each other, each with numbers of its own, and are merged by time;
//! two streams share one event time. Nothing but the configuration decides what comes out.

use crate::event::{Arrival, Event, Side, Stream, Watermarks};
use crate::random::{Amount, KeyDraw, KeyShape, Random};
use crate::{Error, Result};

/// What is generated.
#[derive(Clone, Debug)]
pub struct Generator {
    /// Events in all.
    pub events: usize,
    /// Distinct keys.
    pub keys: u64,
    /// How often each key comes.
    pub shape: KeyShape,
    /// Units of event time between two events of one generator.
    pub gap: Amount,
    /// Bytes of an event in a state that keeps it, at least 16.
    pub size: Amount,
    /// Percentage of events that arrive late.
    pub delayed_percent: f64,
    /// A delayed event arrives 1 to so many units late.
    pub delay: i64,
    /// When watermarks come.
    pub watermarks: Watermarks,
    /// Generators beside each other, per stream.
    pub generators: usize,
    /// Percentage of events that are of the right stream, for joins; 0 for one stream.
    pub right_percent: f64,
    /// Percentage of the left stream's events that finish their key.
    pub finish_percent: f64,
    /// The seed of everything.
    pub seed: u64,
}

impl Default for Generator {
    fn default() -> Self {
        Generator {
            events: 100_000,
            keys: 1000,
            shape: KeyShape::Zipf(0.99),
            gap: Amount::Exponential(0.1),
            size: Amount::Constant(16.0),
            delayed_percent: 0.0,
            delay: 3,
            watermarks: Watermarks::Every(1),
            generators: 1,
            right_percent: 0.0,
            finish_percent: 10.0,
            seed: 42,
        }
    }
}

impl Generator {
    /// Says which number makes no sense, if one does not.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the option.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: &str| Err(Error::Usage(message.to_owned()));
        let percents = [self.delayed_percent, self.right_percent, self.finish_percent];
        match () {
            () if self.events == 0 => refuse("--events 0: there must be an event"),
            () if self.events > u32::MAX as usize / 64 => {
                refuse("--events: at most 67 million, as accesses are numbered by 32 bits")
            }
            () if self.generators == 0 => refuse("--generators 0: there must be one"),
            () if percents.iter().any(|percent| !(0.0..=100.0).contains(percent)) => {
                refuse("--late, --right and --finish are percentages, from 0 to 100")
            }
            () if self.delay < 1 => refuse("--delay: 1 is the least"),
            () if self.watermarks == Watermarks::Events(0) => {
                refuse("--watermark 0events: 1 is the least")
            }
            () if matches!(self.watermarks, Watermarks::Every(..=0)) => {
                refuse("--watermark: 1 unit is the least")
            }
            () => Ok(()),
        }
    }

    /// Generates the stream.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check), and of reading the file of an empirical distribution.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream::of(self.arrivals()?, self.watermarks))
    }

    fn arrivals(&self) -> Result<Vec<Arrival>> {
        self.check()?;
        let keys = KeyDraw::new(&self.shape, self.keys)?;
        let right = (self.events as f64 * self.right_percent / 100.0).round() as usize;
        let mut arrivals = Vec::with_capacity(self.events);
        for (side, events) in [(Side::Left, self.events - right), (Side::Right, right)] {
            for generator in 0..self.generators {
                let share = events / self.generators;
                let rest = usize::from(generator < events % self.generators);
                let number = (generator * 2 + side as usize) as u64;
                let random = Random::new(alluvium::types::combine(self.seed, number));
                // Both streams last as long: the one with fewer events has longer gaps.
                let longer = self.events as f64 / events.max(1) as f64 * self.generators as f64;
                self.run(random, keys.clone(), side, share + rest, longer, &mut arrivals);
            }
        }
        Ok(arrivals)
    }

    fn run(
        &self,
        mut random: Random,
        mut keys: KeyDraw,
        side: Side,
        events: usize,
        longer: f64,
        to: &mut Vec<Arrival>,
    ) {
        let mut clock = 0.0;
        for _ in 0..events {
            clock += self.gap.draw(&mut random) * longer;
            let time = clock as i64;
            let delayed = random.unit() * 100.0 < self.delayed_percent;
            let delay = if delayed { 1 + random.below(self.delay as u64) as i64 } else { 0 };
            let finishes = side == Side::Left && random.unit() * 100.0 < self.finish_percent;
            let event = Event {
                key: keys.draw(&mut random),
                time,
                amount: random.below(1000) as u32 + 1,
                bytes: self.size.draw(&mut random).clamp(16.0, 65_535.0) as u16,
                side,
                finishes,
            };
            to.push(Arrival { at: time + delay, event });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_stream_and_another_seed_another() {
        let generator = Generator { generators: 3, right_percent: 30.0, ..Generator::default() };
        let stream = generator.stream().unwrap();
        assert_eq!(stream, generator.stream().unwrap());
        // Pinned: a change of the generator must not go unseen.
        assert_eq!(stream.digest(), 0xefaf_d1a2_5521_010e, "{:#x}", stream.digest());
        let other = Generator { seed: 43, ..generator.clone() }.stream().unwrap();
        assert_ne!(stream.digest(), other.digest());
        let right = stream.events.iter().filter(|event| event.side == Side::Right).count();
        assert_eq!((stream.events.len(), right), (100_000, 30_000));
    }

    #[test]
    fn generators_beside_each_other_and_both_streams_take_as_long_as_one() {
        let end = |generators, right_percent| {
            let generator = Generator { generators, right_percent, ..Generator::default() };
            let events = generator.stream().unwrap().events;
            let last =
                |side| events.iter().filter(|event| event.side == side).map(|e| e.time).max();
            (last(Side::Left).unwrap(), last(Side::Right))
        };
        // 100,000 events a tenth of a unit apart.
        assert!(end(1, 0.0).0.abs_diff(10_000) < 200);
        assert!(end(8, 0.0).0.abs_diff(10_000) < 600);
        let (left, right) = end(2, 10.0);
        assert!(left.abs_diff(10_000) < 400 && right.unwrap().abs_diff(10_000) < 800);
    }

    #[test]
    fn delayed_events_come_after_their_time_and_no_later_than_told() {
        let generator = Generator { delayed_percent: 20.0, delay: 5, ..Generator::default() };
        let arrivals = generator.arrivals().unwrap();
        let late: Vec<_> =
            arrivals.iter().map(|a| a.at - a.event.time).filter(|d| *d > 0).collect();
        assert!(late.len().abs_diff(20_000) < 600 && late.iter().max() == Some(&5));
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_with_their_option() {
        let usual = Generator::default;
        for (option, generator) in [
            ("--events", Generator { events: 0, ..usual() }),
            ("--keys", Generator { keys: 0, ..usual() }),
            ("--generators", Generator { generators: 0, ..usual() }),
            ("--right", Generator { right_percent: 101.0, ..usual() }),
            ("--delay", Generator { delay: 0, ..usual() }),
            ("--watermark", Generator { watermarks: Watermarks::Events(0), ..usual() }),
        ] {
            let error = generator.stream().unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
