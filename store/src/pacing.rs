//! How far the stream of a state has come while a checkpoint of it is taken.

use std::cell::Cell;

use alluvium_layouts::Pace;

/// Counts of keys that were read or written, at moments of checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// When the last one was given a share.
    paced: Cell<u64>,
    /// When it began, and how many there were since the one before began.
    began: Cell<u64>,
    interval: Cell<u64>,
}

impl Pacing {
    /// A checkpoint begins after so many calls.
    pub(crate) fn begin(&self, calls: u64) {
        self.interval.set(calls - self.began.replace(calls));
        self.paced.set(calls);
    }

    /// The next share is given after so many calls; so much is [gone](Pace::gone) of the time that the
    /// checkpoint may take, by the clock. With none it does not follow the stream.
    pub(crate) fn pace(&self, calls: u64, gone: Option<u64>) -> Pace {
        let since = calls - self.paced.replace(calls);
        gone.map_or(Pace::AT_ONCE, |by_clock| {
            let by_calls = Pace::gone_of(calls - self.began.get(), self.interval.get());
            Pace { calls: since, gone: by_calls.max(by_clock) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_lies_between_two_checkpoints_is_all_of_the_time() {
        let pacing = Pacing::default();
        pacing.begin(100);
        pacing.begin(500);
        let half = Pace::WHOLE / 2;
        assert_eq!(pacing.pace(600, Some(0)), Pace { calls: 100, gone: half });
        assert_eq!(
            pacing.pace(600, Some(half + 1)),
            Pace { calls: 0, gone: half + 1 },
            "by the clock"
        );
        assert_eq!(pacing.pace(650, None), Pace::AT_ONCE);
        assert_eq!(pacing.pace(720, Some(0)), Pace { calls: 70, gone: Pace::WHOLE });
        pacing.begin(720);
        assert_eq!(pacing.pace(721, Some(0)).calls, 1, "shares of the one before do not count");
    }
}
