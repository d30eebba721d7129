//! Meetings: points that all workers come to, each with a number to say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A meeting that a worker has arrived at.
#[derive(Debug)]
#[must_use = "a meeting is for waiting until all workers are there"]
pub struct Meeting {
    pub(super) number: u64,
}

/// What all workers said at a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Met {
    /// The greatest number.
    pub max: i64,
    /// The sum, which wraps around.
    pub sum: i64,
}

impl Met {
    /// What it is before anyone has said anything.
    const NOBODY: Self = Self { max: i64::MIN, sum: 0 };

    fn add(&mut self, other: Met) {
        self.max = self.max.max(other.max);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// The meetings of a process that are not past, by number.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    open: BTreeMap<u64, Tally>,
}

/// Who has come to one meeting.
#[derive(Debug)]
struct Tally {
    workers_here: usize,
    here: Met,
    /// Processes of which all workers have come.
    processes: usize,
    all: Met,
}

impl Meetings {
    /// Adds a worker of this process, which has `threads` of them; gives what they said when it
    /// is the last.
    pub(super) fn arrive(&mut self, number: u64, said: i64, threads: usize) -> Option<Met> {
        let tally = self.tally(number);
        tally.workers_here += 1;
        tally.here.add(Met { max: said, sum: said });
        if tally.workers_here < threads {
            return None;
        }
        let here = tally.here;
        tally.come(here);
        // Who has arrived here has left the meeting before this one.
        self.open.retain(|&open, _| open >= number);
        Some(here)
    }

    /// Adds all workers of another process.
    pub(super) fn met_elsewhere(&mut self, number: u64, met: Met) {
        self.tally(number).come(met);
    }

    /// What was said at a meeting of `processes`, if all have come.
    pub(super) fn met(&self, number: u64, processes: usize) -> Option<Met> {
        let tally = self.open.get(&number)?;
        (tally.processes == processes).then_some(tally.all)
    }

    fn tally(&mut self, number: u64) -> &mut Tally {
        self.open.entry(number).or_insert(Tally {
            workers_here: 0,
            here: Met::NOBODY,
            processes: 0,
            all: Met::NOBODY,
        })
    }
}

impl Tally {
    fn come(&mut self, met: Met) {
        self.processes += 1;
        self.all.add(met);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meeting_is_complete_when_all_workers_of_all_processes_have_come() {
        let mut meetings = Meetings::default();
        // Another process may be there first.
        meetings.met_elsewhere(1, Met { max: 9, sum: 4 });
        assert_eq!(meetings.arrive(1, -5, 2), None);
        assert_eq!(meetings.met(1, 2), None);
        assert_eq!(meetings.arrive(1, 3, 2), Some(Met { max: 3, sum: -2 }));
        assert_eq!(meetings.met(1, 2), Some(Met { max: 9, sum: 2 }));
        assert_eq!(meetings.met(1, 3), None);
    }

    #[test]
    fn past_meetings_are_forgotten_and_sums_wrap() {
        let mut meetings = Meetings::default();
        for number in 1..=1_000 {
            assert_eq!(meetings.arrive(number, i64::MAX, 2), None);
            assert!(meetings.met(number - 1, 1).is_some() || number == 1, "who is late may ask");
            let met = meetings.arrive(number, i64::MAX, 2);
            assert_eq!(met, Some(Met { max: i64::MAX, sum: -2 }));
        }
        assert_eq!(meetings.open.len(), 1);
    }
}
