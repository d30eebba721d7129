//! Progress of the stream while a checkpoint of its state runs.

/// A share is worth at least so many calls.
const CALLS_MIN: u64 = 64;
/// Progress since the last step of a checkpoint, passed to
/// [`Upkeep::pace_checkpoint`](crate::Upkeep::pace_checkpoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Keys read or written since the last step. At 0 the stream is idle, and the checkpoint writes
    /// without waiting for it.
    pub calls: u64,
    /// Fraction of the checkpoint's time budget that has elapsed, in units of
    /// 1/[`WHOLE`](Pace::WHOLE). At `WHOLE` the checkpoint no longer follows the stream.
    pub gone: u64,
}

impl Pace {
    /// The whole time budget of a checkpoint.
    pub const WHOLE: u64 = 1 << 32;
    /// Divisor of the interval between two barriers that gives a checkpoint's time budget.
    const SHARE_OF_INTERVAL: u64 = 2;
    /// A pace that does not follow the stream.
    pub const AT_ONCE: Self = Self { calls: 0, gone: Self::WHOLE };

    /// Returns the elapsed fraction of a checkpoint's time budget. `passed` is the time since its
    /// barrier and `interval` the time between that barrier and the previous one, in the same unit.
    #[must_use]
    pub fn gone_of(passed: u64, interval: u64) -> u64 {
        let whole = u128::from(passed) * u128::from(Self::WHOLE * Self::SHARE_OF_INTERVAL);
        let gone = whole.checked_div(interval.into()).unwrap_or(Self::WHOLE.into());
        gone.min(Self::WHOLE.into()) as u64
    }

    /// What the stream has earned the checkpoint since the last share, when so much was `gone`;
    /// `None` if the checkpoint does not follow the stream now.
    pub(crate) fn earned(self, gone: &mut u64) -> Option<EarnedShare> {
        let since = self.gone - std::mem::replace(gone, self.gone).min(self.gone);
        let follows = self.calls > 0 && self.gone < Self::WHOLE;
        follows.then(|| EarnedShare { calls: self.calls.max(CALLS_MIN), gone: since })
    }
}

/// What a share of a checkpoint is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarnedShare {
    calls: u64,
    gone: u64,
}

impl EarnedShare {
    /// What there is of a `credit` with this, `most` at most: so much for `each` call, or as large
    /// a part of `all` as is over of the time, whichever says more.
    pub(crate) fn add(self, credit: Option<u64>, each: u64, all: u64, most: u64) -> Option<u64> {
        let by_time = u128::from(all) * u128::from(self.gone) / u128::from(Pace::WHOLE);
        let more = self.calls.saturating_mul(each).max(by_time as u64);
        Some(credit.unwrap_or(0).saturating_add(more).min(most))
    }
}

/// Takes what something costs from a `credit`, if there is as much, and says whether there was.
/// Where there is none to be had, nothing costs anything.
pub(crate) fn pay(credit: &mut Option<u64>, cost: u64) -> bool {
    let left = credit.map_or(Some(None), |credit| credit.checked_sub(cost).map(Some));
    *credit = left.unwrap_or(*credit);
    left.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_earned_by_calls_or_by_time() {
        let mut gone = 0;
        let mut share = |calls, at| Pace { calls, gone: at }.earned(&mut gone);
        let half = Pace::WHOLE / 2;
        let by_calls = share(100, 0).unwrap();
        assert_eq!(by_calls.add(Some(7), 4, 1000, 10_000), Some(407));
        assert_eq!(by_calls.add(None, 4, 1000, 300), Some(300), "no more than is told");
        assert_eq!(share(1, half).unwrap().add(None, 4, 1000, 10_000), Some(500), "by time");
        assert_eq!(share(1, half).unwrap().add(None, 4, 1000, 10_000), Some(256), "64 at least");
        assert_eq!(share(0, half), None, "the stream stands still");
        assert_eq!(share(1, Pace::WHOLE), None, "its time is over");
        let mut credit = Some(10);
        assert!(pay(&mut credit, 4) && !pay(&mut credit, 7) && credit == Some(6));
        assert!(pay(&mut None, u64::MAX));
    }

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
