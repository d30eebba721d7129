//! A made-up stream: equal for equal parameters on every machine.

use alluvium::Time;

use super::{Event, EventStream};
use crate::workload::{Distribution, Keys};
use crate::{Error, Result};

/// Distinct values; some are frequent.
const VALUES: u64 = 1_000;
const VALUE_DISTRIBUTION: Distribution = Distribution::Zipf { theta: 0.99 };

/// Events in order of time, at a constant rate from 1970 on.
#[derive(Clone, Debug)]
pub struct Synthetic {
    keys: Keys,
    values: Keys,
    rate: u64,
    events: u64,
    next: u64,
}

impl Synthetic {
    /// `events` events, `rate` in a second of event time, of `keys` keys.
    ///
    /// # Errors
    /// There are no keys, or the rate is 0 or above one a nanosecond.
    pub fn new(
        events: u64,
        rate: u64,
        keys: u64,
        distribution: Distribution,
        seed: u64,
    ) -> Result<Self> {
        if keys == 0 {
            return Err(Error::Usage("a stream needs a key at least".to_owned()));
        }
        if rate == 0 || rate > 1_000_000_000 {
            return Err(Error::Usage(format!("rate {rate} is not in 1..=1000000000 events/s")));
        }
        let values = Keys::new(VALUES, VALUE_DISTRIBUTION, seed ^ 1);
        Ok(Synthetic { keys: Keys::new(keys, distribution, seed), values, rate, events, next: 0 })
    }

    fn time_of(&self, number: u64) -> Time {
        let (seconds, rest) = (number / self.rate, number % self.rate);
        let nanos = seconds.saturating_mul(1_000_000_000) + rest * 1_000_000_000 / self.rate;
        Time(i64::try_from(nanos).unwrap_or(i64::MAX))
    }
}

impl EventStream for Synthetic {
    fn next_event(&mut self) -> Result<Option<Event>> {
        if self.next == self.events {
            return Ok(None);
        }
        let time = self.time_of(self.next);
        self.next += 1;
        let (key, value) = (self.keys.next(), self.values.next());
        let (Some(key), Some(value)) = (key, value) else { return Ok(None) };
        // Values are below VALUES.
        Ok(Some(Event { time, key, value: value.cast_signed() }))
    }

    fn watermark(&self) -> Time {
        if self.next == self.events { Time::MAX } else { self.time_of(self.next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut stream: Synthetic) -> Vec<Event> {
        std::iter::from_fn(|| stream.next_event().unwrap()).collect()
    }

    #[test]
    fn equal_seeds_make_equal_streams_at_the_rate() {
        let make = |seed| Synthetic::new(3_001, 1_000, 50, Distribution::Uniform, seed).unwrap();
        let events = all(make(1));
        assert_eq!(events, all(make(1)));
        assert_ne!(events, all(make(2)));
        assert_eq!(events.len(), 3_001);
        assert_eq!(events[3_000].time, Time(3_000_000_000));
        assert!(events.iter().all(|event| event.key < 50 && (0..1_000).contains(&event.value)));
    }

    #[test]
    fn the_watermark_is_the_time_of_the_next_event_and_then_the_end() {
        let mut stream = Synthetic::new(2, 1_000, 1, Distribution::Uniform, 0).unwrap();
        assert_eq!(stream.watermark(), Time(0));
        stream.next_event().unwrap();
        assert_eq!(stream.watermark(), Time(1_000_000));
        stream.next_event().unwrap();
        assert_eq!(stream.watermark(), Time::MAX);
        assert_eq!(stream.next_event().unwrap(), None);
    }
}
