//! Rows that an operator has not taken yet, in order of arrival, and the times that wait.
//!
//! What it keeps true: taking a row costs the same however many wait. The rights to emit are a few
//! capabilities that reach all waiting times, not one a time: Timely looks at each that is held whenever
//! one goes. They follow what waits once an eighth of it has been taken.

use std::collections::{BTreeMap, VecDeque};

use timely::dataflow::operators::{Capability, CapabilitySet};
use timely::progress::Timestamp;
use timely::progress::frontier::Antichain;

/// How many items wait at each time.
#[derive(Debug)]
pub(crate) struct Times<T>(BTreeMap<T, usize>);

impl<T: Ord + Clone> Times<T> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn add(&mut self, time: &T) {
        match self.0.get_mut(time) {
            Some(count) => *count += 1,
            None => drop(self.0.insert(time.clone(), 1)),
        }
    }

    /// Forgets one of the items at `time`.
    pub(crate) fn remove(&mut self, time: &T) {
        match self.0.get_mut(time) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.0.remove(time)),
        }
    }

    pub(crate) fn least(&self) -> Option<&T> {
        self.0.first_key_value().map(|(time, _)| time)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Batches of rows that wait to be taken.
pub(crate) struct Staged<T: Timestamp, R> {
    batches: VecDeque<(T, Vec<R>)>,
    times: Times<T>,
    /// Of times before or at all that wait.
    rights: CapabilitySet<T>,
    /// Batches taken since the rights were moved on.
    taken: usize,
}

/// A part of what waits is taken before the rights follow.
const PART: usize = 8;

impl<T: Timestamp, R> Staged<T, R> {
    pub(crate) fn new() -> Self {
        let (batches, times) = (VecDeque::new(), Times::new());
        Self { batches, times, rights: CapabilitySet::new(), taken: 0 }
    }

    /// Batches that wait.
    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// The least time that waits.
    pub(crate) fn least(&self) -> Option<&T> {
        self.times.least()
    }

    pub(crate) fn push_back(&mut self, right: Capability<T>, rows: Vec<R>) {
        self.times.add(right.time());
        self.batches.push_back((right.time().clone(), rows));
        self.rights.insert(right);
    }

    /// Puts the rest of a batch back.
    pub(crate) fn push_front(&mut self, right: Capability<T>, rows: Vec<R>) {
        self.times.add(right.time());
        self.batches.push_front((right.time().clone(), rows));
        self.rights.insert(right);
    }

    pub(crate) fn pop_front(&mut self) -> Option<(Capability<T>, Vec<R>)> {
        let (time, rows) = self.batches.pop_front()?;
        self.times.remove(&time);
        self.taken += 1;
        Some((self.rights.delayed(&time), rows))
    }

    /// Lets go of times that nothing waits at any more, after some were taken. Cost: now and then that of
    /// a look at each time that waits.
    pub(crate) fn settle(&mut self) {
        if self.batches.is_empty() {
            self.rights = CapabilitySet::new();
            self.taken = 0;
        } else if self.taken * PART >= self.times.0.len() {
            let mut least = Antichain::new();
            for time in self.times.0.keys() {
                least.insert(time.clone());
            }
            self.rights.downgrade(least.iter());
            self.taken = 0;
        }
    }

    /// Drops all that waits, and hands out the rights to emit at its times.
    pub(crate) fn clear(&mut self, mut each: impl FnMut(Capability<T>)) {
        self.batches.clear();
        self.times.clear();
        self.taken = 0;
        let rights = std::mem::replace(&mut self.rights, CapabilitySet::new());
        rights.iter().for_each(|right| each(right.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use timely::container::CapacityContainerBuilder;
    use timely::dataflow::ProbeHandle;
    use timely::dataflow::operators::Probe;
    use timely::dataflow::operators::generic::source;

    use super::*;

    #[test]
    fn times_know_the_least_whatever_comes_and_goes() {
        let mut times = Times::new();
        for time in [5, 3, 3, 9] {
            times.add(&time);
        }
        for (gone, least) in [(5, Some(3)), (3, Some(3)), (3, Some(9)), (9, None)] {
            times.remove(&gone);
            assert_eq!(times.least().copied(), least);
        }
    }

    /// What a probe sees of an operator that stages batches at `times` and takes one a schedule.
    fn seen_of(times: Vec<u64>) -> Vec<(usize, Vec<u64>)> {
        timely::execute_directly(move |worker| {
            let probe = ProbeHandle::new();
            let left = Rc::new(Cell::new(times.len()));
            let shown = left.clone();
            worker.dataflow::<u64, _, _>(|scope| {
                source::<_, CapacityContainerBuilder<Vec<()>>, _, _>(
                    scope,
                    "staging",
                    |first, info| {
                        let activator = scope.activator_for(info.address);
                        let mut staged = Staged::new();
                        for time in &times {
                            staged.push_back(first.delayed(time), vec![()]);
                        }
                        drop(first);
                        let mut due = times.into_iter();
                        move |_| {
                            let taken = staged.pop_front();
                            staged.settle();
                            if let Some((right, _)) = taken {
                                assert_eq!(Some(*right.time()), due.next());
                                activator.activate();
                            }
                            shown.set(staged.len());
                        }
                    },
                )
                .probe_with(&probe);
            });
            let mut seen = Vec::new();
            while worker.step() {
                seen.push((left.get(), probe.with_frontier(|frontier| frontier.to_vec())));
            }
            seen
        })
    }

    #[test]
    fn what_waits_is_held_and_what_was_taken_is_let_go() {
        let times: Vec<u64> = (0..200).map(|n| n * 7_919 % 200).collect();
        let seen = seen_of(times.clone());
        for (left, frontier) in &seen {
            let waits = times[200 - left..].iter().min();
            let Some(at) = frontier.first() else { continue };
            assert!(waits.is_none_or(|least| at <= least), "{at} with {left} left");
        }
        assert!(seen.iter().any(|(left, frontier)| *left > 0 && frontier[0] > 0));
        assert_eq!(seen.last().map(|(left, _)| *left), Some(0));
    }
}
