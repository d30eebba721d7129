//! Meetings: points that all workers come to, each with a number to say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A meeting that a worker has reached.
#[derive(Debug)]
#[must_use = "a meeting is for waiting until all workers are there"]
pub struct Meeting {
    pub(super) number: u64,
}

/// The numbers of all workers at a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The greatest number.
    pub max: i64,
    /// The sum, which wraps around.
    pub sum: i64,
}

/// What one worker says at a meeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorkerSaid {
    /// The worker's index.
    pub(super) worker: usize,
    pub(super) number: i64,
    /// What it has to say beside the number; mostly nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
}

/// The meetings of a process that are not past, by number.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    open: BTreeMap<u64, MeetingTally>,
}

/// Who has come to one meeting.
#[derive(Debug, Default)]
struct MeetingTally {
    /// Of this process.
    here: Vec<WorkerSaid>,
    /// Processes of which all workers have come.
    processes: usize,
    /// What their workers have said.
    all: Vec<WorkerSaid>,
}

impl Meetings {
    /// Adds a worker of this process, which has `threads` of them; gives what they said when it
    /// is the last.
    pub(super) fn arrive(
        &mut self,
        number: u64,
        said: WorkerSaid,
        threads: usize,
    ) -> Option<Vec<WorkerSaid>> {
        let tally = self.open.entry(number).or_default();
        tally.here.push(said);
        if tally.here.len() < threads {
            return None;
        }
        let here = std::mem::take(&mut tally.here);
        tally.come(here.clone());
        // Who has arrived here has left the meeting before this one.
        self.open.retain(|&open, _| open >= number);
        Some(here)
    }

    /// Adds all workers of another process.
    pub(super) fn met_elsewhere(&mut self, number: u64, said: Vec<WorkerSaid>) {
        self.open.entry(number).or_default().come(said);
    }

    /// A worker that has come to a meeting with this number or a later one, if any has.
    pub(super) fn waits_from(&self, number: u64) -> Option<usize> {
        let mut said = self.open.range(number..).flat_map(|(_, tally)| &tally.here);
        said.next().map(|said| said.worker).or_else(|| {
            let all = self.open.range(number..).flat_map(|(_, tally)| &tally.all);
            all.map(|said| said.worker).next()
        })
    }

    /// What was said at a meeting of `processes`, ordered by worker, if all have come.
    pub(super) fn said(&self, number: u64, processes: usize) -> Option<&[WorkerSaid]> {
        let tally = self.open.get(&number)?;
        (tally.processes == processes).then_some(&tally.all)
    }
}

impl MeetingTally {
    fn come(&mut self, said: Vec<WorkerSaid>) {
        self.processes += 1;
        self.all.extend(said);
        self.all.sort_by_key(|said| said.worker);
    }
}

impl Met {
    pub(super) fn of(said: &[WorkerSaid]) -> Self {
        let max = said.iter().map(|said| said.number).max().unwrap_or(i64::MIN);
        let sum = said.iter().fold(0i64, |sum, said| sum.wrapping_add(said.number));
        Self { max, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(worker: usize, number: i64) -> WorkerSaid {
        WorkerSaid { worker, number, note: format!("of {worker}") }
    }

    #[test]
    fn a_meeting_is_complete_when_all_workers_of_all_processes_have_come() {
        let mut meetings = Meetings::default();
        // Another process may be there first, and the last worker before the first.
        meetings.met_elsewhere(1, vec![said(2, 9), said(3, -5)]);
        assert_eq!(meetings.arrive(1, said(1, -5), 2), None);
        assert_eq!(meetings.said(1, 2), None);
        assert_eq!(meetings.arrive(1, said(0, 3), 2), Some(vec![said(1, -5), said(0, 3)]));
        let all = [said(0, 3), said(1, -5), said(2, 9), said(3, -5)];
        assert_eq!(meetings.said(1, 2), Some(&all[..]));
        assert_eq!(Met::of(&all), Met { max: 9, sum: 2 });
        assert_eq!(meetings.said(1, 3), None);
    }

    #[test]
    fn past_meetings_are_forgotten_and_sums_wrap() {
        let mut meetings = Meetings::default();
        for number in 1..=1_000 {
            assert_eq!(meetings.arrive(number, said(0, i64::MAX), 2), None);
            assert!(meetings.said(number - 1, 1).is_some() || number == 1, "who is late may ask");
            assert!(meetings.arrive(number, said(1, i64::MAX), 2).is_some());
            let met = Met::of(meetings.said(number, 1).unwrap());
            assert_eq!(met, Met { max: i64::MAX, sum: -2 });
        }
        assert_eq!(meetings.open.len(), 1);
    }
}
