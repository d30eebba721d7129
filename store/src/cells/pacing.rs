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

/// A share of a checkpoint is not worth it for fewer calls: to ask for one takes as long as some.
const CALLS_PER_SHARE: u64 = 256;
/// Whoever asks more often than after so many calls is given one each time.
const CALLS_PER_ASK: u64 = 32;

/// One in so many shares that are asked for is given while there is nothing to do but to wait for storage.
const ASKS_PER_LOOK: u64 = 4;

/// When the last share of a checkpoint was given, whichever state's.
#[derive(Debug)]
pub(crate) struct Shares {
    /// After so many calls of all states.
    calls: u64,
    /// How many were asked for since.
    asked: u64,
    /// As many of the next that are asked for come too early, if the calls go on as they did.
    early: u64,
}

impl Shares {
    /// None yet, after so many calls.
    pub(crate) fn none(calls: u64) -> Self {
        Self { calls, asked: 0, early: 0 }
    }

    /// Whether another one is asked for too early for anybody to count calls: that takes as long as one of them.
    pub(crate) fn is_early(&mut self) -> bool {
        let is_early = self.early > 0;
        self.early -= u64::from(is_early);
        self.asked += u64::from(is_early);
        is_early
    }

    /// There is nothing to do but to wait for storage, after so many calls: whoever asks often, in a stream that moves,
    /// comes too early with the next few.
    pub(crate) fn rest(&mut self, calls: u64) {
        let since = calls.saturating_sub(std::mem::replace(&mut self.calls, calls));
        self.early = if (1..=CALLS_PER_SHARE).contains(&since) { ASKS_PER_LOOK - 1 } else { 0 };
    }

    /// Another one is asked for after so many calls: says, if it is to be given, whether there were some since the
    /// last one. A stream that stands still waits for nothing, nor does one whose memory is short.
    pub(crate) fn next(&mut self, calls: u64, is_short: bool) -> Option<bool> {
        let since = calls.saturating_sub(self.calls);
        self.asked += 1;
        if since >= CALLS_PER_ASK * self.asked && since < CALLS_PER_SHARE {
            if is_short {
                return Some(true);
            }
            let left = (CALLS_PER_SHARE - since) * self.asked;
            self.early = (left / since).saturating_sub(1);
            return None;
        }
        *self = Self::none(calls);
        Some(since > 0)
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
    fn a_share_is_given_for_enough_calls_or_to_whoever_asks_often() {
        let mut shares = Shares::none(1000);
        assert_eq!(shares.next(1000, false), Some(false), "the stream stands still");
        let mut ask = |calls| if shares.is_early() { None } else { shares.next(calls, false) };
        let batches: Vec<_> = (1..=8).map(|nth| ask(1000 + 64 * nth)).collect();
        let given = [None, None, None, Some(true)];
        assert_eq!(batches, [given, given].concat());
        assert_eq!(ask(1512 + 100), None);
        assert_eq!(
            (0..8).take_while(|_| ask(1612).is_none()).count(),
            3,
            "the stream stands still"
        );
        shares = Shares::none(1512);
        assert!((1513..1600).all(|calls| shares.next(calls, false) == Some(true)));
        assert_eq!(shares.next(1599 + 255, false), None);
        let asked = (0..8).take_while(|_| shares.next(1599 + 255, false).is_none()).count();
        assert_eq!(asked, 6, "whoever waits has it soon");
    }

    #[test]
    fn who_waits_for_storage_is_early_only_if_the_stream_moves_and_he_asks_often() {
        let mut shares = Shares::none(1000);
        let mut early_after = |calls| {
            shares.rest(calls);
            (0..10).take_while(|_| shares.is_early()).count()
        };
        assert_eq!(early_after(1000), 0, "the stream stands still");
        assert_eq!(early_after(1064), 3);
        assert_eq!(early_after(1064 + 256), 3, "four batches of 64");
        assert_eq!(early_after(2000), 0, "seldom asked for");
    }

    #[test]
    fn half_of_what_lies_between_two_checkpoints_is_all_of_the_time() {
        let pacing = Pacing::default();
        pacing.begin(100);
        pacing.begin(500);
        let half = Pace::WHOLE / 2;
        let at = |by_clock| Stream { by_clock, moves: true };
        assert_eq!(pacing.pace(600, at(0)), Pace { calls: 100, gone: half });
        assert_eq!(
            pacing.pace(602, at(half + half / 9)),
            Pace { calls: 2, gone: half + half / 9 },
            "by the clock"
        );
        assert_eq!(pacing.pace(720, at(0)), Pace { calls: 118, gone: Pace::WHOLE });
        pacing.begin(720);
        assert_eq!(pacing.pace(723, at(0)).calls, 3, "shares of the one before do not count");
        assert_eq!(pacing.pace(723, at(0)).calls, 1, "other states are called");
        let stands = Stream { by_clock: 0, moves: false };
        assert_eq!(pacing.pace(723, stands).calls, 0, "whoever waits waits for no stream");
    }
}
