//! Which windows an event is in.

use alluvium::Time;

use crate::{Error, Result};

/// How a stream is cut into windows; spans are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// [start, start + length), with starts at the multiples of `slide`, before 1970 as well.
    /// Tumbling if both are equal. Windows without events have no answers.
    Aligned {
        /// How long each is.
        length: i64,
        /// How far apart they begin.
        slide: i64,
    },
    /// Stretches of a key's events each of which comes `gap` after the one before it or sooner;
    /// they end `gap` after their last event.
    Sessions {
        /// The longest pause within one.
        gap: i64,
    },
}

impl Windows {
    /// Windows of `length`, one every `slide`.
    ///
    /// # Errors
    /// A span is not above 0, or the slide is longer than the length, so that events would be in
    /// no window.
    pub fn aligned(length: i64, slide: i64) -> Result<Self> {
        if slide <= 0 || slide > length {
            let message = format!("windows of {length} ns cannot begin every {slide} ns");
            return Err(Error::Usage(message));
        }
        Ok(Windows::Aligned { length, slide })
    }

    /// Sessions that end after a pause of `gap`.
    ///
    /// # Errors
    /// The gap is not above 0.
    pub fn sessions(gap: i64) -> Result<Self> {
        match gap {
            1.. => Ok(Windows::Sessions { gap }),
            _ => Err(Error::Usage(format!("{gap} ns are no pause"))),
        }
    }
}

/// Starts of the aligned windows that hold `at`, last first.
pub(super) fn starts(at: Time, length: i64, slide: i64) -> impl Iterator<Item = Time> {
    let last = at.0 - at.0.rem_euclid(slide);
    // `last` is not after `at`, so all starts after `at - length` count.
    let earlier = std::iter::successors(Some(last), move |start| start.checked_sub(slide));
    earlier.take_while(move |start| at.0 - start < length).map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_in_the_windows_that_hold_it() {
        let of = |at, length, slide| {
            starts(Time(at), length, slide).map(|start| start.0).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 10, 10), [0]);
        assert_eq!(of(9, 10, 10), [0]);
        assert_eq!(of(10, 10, 10), [10]);
        assert_eq!(of(-1, 10, 10), [-10]);
        assert_eq!(of(5, 10, 2), [4, 2, 0, -2, -4]);
        assert_eq!(of(4, 10, 2), [4, 2, 0, -2, -4]);
        assert_eq!(of(7, 10, 4), [4, 0]);
        assert_eq!(of(9, 10, 4), [8, 4, 0]);
    }

    #[test]
    fn windows_that_lose_events_are_refused() {
        assert!(Windows::aligned(10, 11).is_err());
        assert!(Windows::aligned(10, 0).is_err());
        assert!(Windows::sessions(0).is_err());
        assert!(Windows::aligned(10, 10).is_ok());
    }
}
