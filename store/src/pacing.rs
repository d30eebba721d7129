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

    /// The next share is given after so many calls.
    pub(crate) fn pace(&self, calls: u64, stream: Stream) -> Pace {
        let since = calls - self.paced.replace(calls);
        let by_calls = Pace::gone_of(calls - self.began.get(), self.interval.get());
        // While other states are called this one does not stand still: it follows at the least pace.
        let calls = since.max(u64::from(stream.moves));
        Pace { calls, gone: by_calls.max(stream.by_clock) }
    }
}

/// The stream of a store while a checkpoint of it is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// How much is [gone](Pace::gone) of the time that the checkpoint may take, by the clock.
    pub(crate) by_clock: u64,
    /// Whether there were calls of any state since the last share of any.
    pub(crate) moves: bool,
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
        let at = |by_clock| Stream { by_clock, moves: true };
        assert_eq!(pacing.pace(600, at(0)), Pace { calls: 100, gone: half });
        assert_eq!(
            pacing.pace(610, at(half + 9)),
            Pace { calls: 10, gone: half + 9 },
            "by the clock"
        );
        assert_eq!(pacing.pace(720, at(0)), Pace { calls: 110, gone: Pace::WHOLE });
        pacing.begin(720);
        assert_eq!(pacing.pace(723, at(0)).calls, 3, "shares of the one before do not count");
        assert_eq!(pacing.pace(723, at(0)).calls, 1, "other states are called");
        let stands = Stream { by_clock: 0, moves: false };
        assert_eq!(pacing.pace(723, stands).calls, 0, "whoever waits waits for no stream");
    }
}
