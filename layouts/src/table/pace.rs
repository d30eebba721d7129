//! How far a stream has come while a checkpoint of its state is taken.

/// What a table is told before each share of a checkpoint, see
/// [`Upkeep::pace_checkpoint`](crate::Upkeep::pace_checkpoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Keys read or written since the last share. With none of them the stream stands still, and waits for
    /// nothing.
    pub calls: u64,
    /// How much is over of the time that the checkpoint may take, in parts of [`WHOLE`](Pace::WHOLE). From
    /// there on it follows nothing any more.
    pub gone: u64,
}

impl Pace {
    /// All of the time that a checkpoint may take.
    pub const WHOLE: u64 = 1 << 32;
    /// A checkpoint may take this part of what lies between its barrier and the one before.
    const SHARE_OF_INTERVAL: u64 = 2;
    /// One that does not follow the stream.
    pub const AT_ONCE: Self = Self { calls: 0, gone: Self::WHOLE };

    /// How much is over of the time of a checkpoint: so much has passed since its barrier, in any unit, and
    /// so much had since the one before.
    #[must_use]
    pub fn gone_of(passed: u64, interval: u64) -> u64 {
        let whole = u128::from(passed) * u128::from(Self::WHOLE * Self::SHARE_OF_INTERVAL);
        let gone = whole.checked_div(interval.into()).unwrap_or(Self::WHOLE.into());
        gone.min(Self::WHOLE.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_interval_is_all_of_the_time() {
        assert_eq!(Pace::gone_of(0, 100), 0);
        assert_eq!(Pace::gone_of(25, 100), Pace::WHOLE / 2);
        assert_eq!(Pace::gone_of(50, 100), Pace::WHOLE);
        assert_eq!(Pace::gone_of(u64::MAX, 1), Pace::WHOLE);
        assert_eq!(Pace::gone_of(u64::MAX / 4, u64::MAX), Pace::WHOLE / 2 - 1);
        assert_eq!(Pace::gone_of(1, 1 << 33), 1, "each of many calls counts");
        assert_eq!(Pace::gone_of(0, 0), Pace::WHOLE, "nothing has passed between two barriers");
    }
}
