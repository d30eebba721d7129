//! Ephemerality: how many keys live at a time, how much they take, and how long keys are used.

use crate::trace::{Entry, Op};

/// Accesses between two samples of the working set.
pub const SAMPLE: usize = 100;

/// Keys and bytes that live: written, and not deleted since.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Working {
    /// The number of keys after every hundredth access.
    pub samples: Vec<u32>,
    /// The most keys at a time.
    pub keys_max: u64,
    /// The most bytes of values at a time, as merges append.
    pub bytes_max: u64,
    /// Keys at the end.
    pub keys_left: u64,
}

impl Working {
    /// That of accesses to `keys` keys.
    pub fn of(entries: &[Entry], keys: usize) -> Self {
        let (mut sizes, mut working) = (vec![u32::MAX; keys], Working::default());
        let (mut live, mut bytes) = (0u64, 0u64);
        for (number, entry) in entries.iter().enumerate() {
            let size = &mut sizes[entry.key as usize];
            let before = if *size == u32::MAX { 0 } else { *size };
            match entry.op() {
                Op::Put | Op::Merge => {
                    live += u64::from(*size == u32::MAX);
                    let kept = if entry.op() == Op::Merge { before } else { 0 };
                    *size = kept.saturating_add(entry.bytes()).min(u32::MAX - 1);
                    bytes = bytes - u64::from(before) + u64::from(*size);
                }
                Op::Delete if *size != u32::MAX => {
                    (live, bytes, *size) = (live - 1, bytes - u64::from(before), u32::MAX);
                }
                _ => {}
            }
            working.keys_max = working.keys_max.max(live);
            working.bytes_max = working.bytes_max.max(bytes);
            if (number + 1) % SAMPLE == 0 {
                working.samples.push(live as u32);
            }
        }
        working.keys_left = live;
        working
    }

    /// The mean of the samples.
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.samples.iter().map(|live| u64::from(*live)).sum();
        sum as f64 / self.samples.len().max(1) as f64
    }

    /// Access numbers and keys for a plot: the largest of each of at most `points` parts.
    pub fn curve(&self, points: usize) -> Vec<(u64, u64)> {
        let part = self.samples.len().div_ceil(points).max(1);
        let largest = |(number, part_of): (usize, &[u32])| {
            let end = number * part + part_of.len();
            ((end * SAMPLE) as u64, u64::from(part_of.iter().copied().max().unwrap_or(0)))
        };
        self.samples.chunks(part).enumerate().map(largest).collect()
    }
}

/// Steps from the first to the last access of each key, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes(Vec<u32>);

impl Lifetimes {
    /// Computes them from accesses to `keys` keys.
    pub fn of(accessed: impl Iterator<Item = u32>, keys: usize) -> Self {
        let mut ends = vec![(u32::MAX, 0u32); keys];
        for (key, number) in accessed.zip(0..) {
            let (first, last) = &mut ends[key as usize];
            (*first, *last) = ((*first).min(number), number);
        }
        let accessed = ends.iter().filter(|(first, _)| *first != u32::MAX);
        let mut steps: Vec<u32> = accessed.map(|(first, last)| last - first).collect();
        steps.sort_unstable();
        Lifetimes(steps)
    }

    /// The number that a share of the keys does not pass.
    pub fn at(&self, share: f64) -> u64 {
        let place = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(place.max(1) - 1).map_or(0, |steps| u64::from(*steps))
    }

    /// The share of keys that were accessed once.
    pub fn once(&self) -> f64 {
        self.0.partition_point(|steps| *steps == 0) as f64 / self.0.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::random::Random;

    #[test]
    fn working_sets_and_lifetimes_are_those_of_maps() {
        for seed in 1..6 {
            let (mut random, keys) = (Random::new(seed), 200);
            let entries: Vec<Entry> = (0..20_000)
                .map(|_| {
                    let op = Op::ALL[random.below(6) as usize];
                    Entry::new(0, op, random.below(keys) as u32, random.below(50) as u32)
                })
                .collect();
            let found = Working::of(&entries, keys as usize);
            let (mut values, mut bytes_max, mut keys_max) = (HashMap::new(), 0u64, 0);
            let mut ends: HashMap<u32, (usize, usize)> = HashMap::new();
            for (number, entry) in entries.iter().enumerate() {
                match entry.op() {
                    Op::Put => drop(values.insert(entry.key, entry.bytes())),
                    Op::Merge => *values.entry(entry.key).or_insert(0) += entry.bytes(),
                    Op::Delete => drop(values.remove(&entry.key)),
                    _ => {}
                }
                bytes_max = bytes_max.max(values.values().map(|size| u64::from(*size)).sum());
                keys_max = keys_max.max(values.len() as u64);
                if (number + 1) % SAMPLE == 0 {
                    assert_eq!(found.samples[number / SAMPLE], values.len() as u32);
                }
                ends.entry(entry.key).or_insert((number, number)).1 = number;
            }
            assert_eq!((found.keys_max, found.bytes_max), (keys_max, bytes_max));
            let mut steps: Vec<_> = ends.values().map(|(from, to)| (to - from) as u64).collect();
            steps.sort_unstable();
            let lifetimes = Lifetimes::of(entries.iter().map(|entry| entry.key), keys as usize);
            assert_eq!(lifetimes.at(1.0), *steps.last().unwrap());
            assert_eq!(lifetimes.at(0.5), steps[steps.len().div_ceil(2) - 1]);
        }
    }

    #[test]
    fn curves_keep_the_largest() {
        let samples = vec![1, 5, 2, 3, 4, 4, 9];
        let working = Working { samples, ..Working::default() };
        assert_eq!(working.curve(3), [(300, 5), (600, 4), (700, 9)]);
        assert_eq!(working.curve(100).len(), 7);
    }
}
