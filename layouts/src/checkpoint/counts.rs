//! How many records of a segment are live, and of how many dead ones checkpoints or notes tell: now, and as it was at
//! the last barrier.
//!
//! A barrier touches no segment. With the first change after it, a segment keeps the numbers of before.
//!
//! What it keeps true: the numbers of before are those of the barrier, whatever has changed since, and however checkpoints
//! end. So a checkpoint that is given up leaves nothing to be put back.

/// The two numbers of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveCount {
    pub live: u32,
    /// Dead records of which it is known, or noted, which they are. A heap's ledger, which knows it of all or of none, counts
    /// all of them.
    pub known_dead: u32,
}

impl LiveCount {
    /// A record has died, and it is noted which.
    #[inline]
    pub fn die(&mut self) {
        (self.live, self.known_dead) = (self.live - 1, self.known_dead + 1);
    }

    /// Whether it is known of so many records which are dead.
    pub fn is_all_of(self, records: u64) -> bool {
        u64::from(self.live) + u64::from(self.known_dead) == records
    }

    fn unknown_of(self, records: u64) -> u32 {
        records as u32 - self.live - self.known_dead
    }
}

/// A segment's numbers, now and before. The owner counts barriers, and tells how many there were: its *epoch*.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentCounts {
    now: LiveCount,
    /// The epoch in which they have changed, and what they were when it began.
    epoch: u32,
    before: LiveCount,
}

impl SegmentCounts {
    /// A segment of the checkpoint that was restored: it is known which records are dead. More live records than there are
    /// are refused by whoever reads the segment.
    pub fn restored(records: u64, live: u64) -> Self {
        let known_dead = records.saturating_sub(live) as u32;
        let now = LiveCount { live: live as u32, known_dead };
        Self { now, ..Self::default() }
    }

    /// A segment that was written for the checkpoint of an epoch, of whose records so many have died since the barrier.
    pub fn written(records: u64, died: u64, epoch: u32) -> Self {
        let now = LiveCount { live: (records - died) as u32, known_dead: died as u32 };
        Self { now, epoch, before: LiveCount { live: records as u32, known_dead: 0 } }
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> LiveCount {
        self.now
    }

    /// At the last barrier.
    pub fn before(&self, epoch: u32) -> LiveCount {
        if self.epoch == epoch { self.before } else { self.now }
    }

    /// The numbers, to be changed by what comes after the last barrier.
    #[inline]
    pub fn since(&mut self, epoch: u32) -> &mut LiveCount {
        if self.epoch != epoch {
            (self.epoch, self.before) = (epoch, self.now);
        }
        &mut self.now
    }

    /// Records of the last barrier's checkpoint were written: so many are live, if nothing that was before has changed since.
    pub fn add_written(&mut self, live: u32, epoch: u32) {
        self.now.live += live;
        if self.epoch == epoch {
            self.before.live += live;
        }
    }

    /// So many records had died before the last barrier, of which so many are noted.
    pub fn died_before(&mut self, died: u32, noted: u32, epoch: u32) {
        self.since(epoch);
        for count in [&mut self.now, &mut self.before] {
            (count.live, count.known_dead) = (count.live - died, count.known_dead + noted);
        }
    }

    /// It is known now which of so many records were dead at the last barrier.
    pub fn know_before(&mut self, records: u64, epoch: u32) {
        let unknown = self.before(epoch).unknown_of(records);
        self.now.known_dead += unknown;
        if self.epoch == epoch {
            self.before.known_dead += unknown;
        }
    }

    /// What was noted of one record is lost.
    pub fn lose_one(&mut self) {
        self.now.known_dead -= 1;
    }

    /// What was noted is lost.
    pub fn lose_all(&mut self) {
        (self.now.known_dead, self.before.known_dead) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_a_barrier_stays_as_it_was() {
        let mut counts = SegmentCounts::restored(10, 8);
        assert_eq!(counts.before(1), LiveCount { live: 8, known_dead: 2 });
        counts.since(1).live -= 3;
        assert_eq!((counts.before(1).live, counts.now().live), (8, 5));
        assert_eq!((counts.before(1).unknown_of(10), counts.now().unknown_of(10)), (0, 3));
        // One of those before has a newer record in the checkpoint, and of it is noted.
        counts.died_before(1, 1, 1);
        assert_eq!(counts.before(1), LiveCount { live: 7, known_dead: 3 });
        // The next barrier, whatever became of that checkpoint.
        assert_eq!(counts.before(2), counts.now());
        assert_eq!(counts.now(), LiveCount { live: 4, known_dead: 3 });
        counts.know_before(10, 2);
        counts.since(2).live -= 1;
        assert_eq!((counts.before(2).unknown_of(10), counts.now().unknown_of(10)), (0, 1));
        // A set tells of those before that barrier only.
        counts.since(3).live -= 1;
        counts.know_before(10, 3);
        assert_eq!((counts.before(3).unknown_of(10), counts.now().unknown_of(10)), (0, 1));
        counts.lose_all();
        assert_eq!(counts.before(3).unknown_of(10), 7);
    }

    #[test]
    fn what_is_written_after_a_barrier_is_of_before() {
        let mut counts = SegmentCounts::default();
        counts.add_written(5, 1);
        counts.since(1).live -= 1;
        counts.add_written(2, 1);
        assert_eq!((counts.before(1).live, counts.now().live), (7, 6));
        let counts = SegmentCounts::written(7, 1, 1);
        assert_eq!((counts.before(1).live, counts.now().live), (7, 6));
        assert_eq!(counts.before(2), LiveCount { live: 6, known_dead: 1 });
    }
}
