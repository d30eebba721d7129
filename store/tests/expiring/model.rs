//! The oracle: an ordered map of values and times, and the definition in numbers that cannot overflow.

use std::collections::{BTreeMap, BTreeSet};

use alluvium::Ttl;

/// Entries by key, each with when it was touched last.
#[derive(Clone, Debug)]
pub struct Model<V> {
    entries: BTreeMap<u64, (i64, V)>,
    /// The greatest time so far and the first; none before that.
    pub times: Option<(i64, i64)>,
    nanos: i64,
    by_reads: bool,
    /// Keys whose entries were over under an earlier time to live.
    gone: BTreeSet<u64>,
}

impl<V: Clone> Model<V> {
    pub fn new(ttl: Ttl, by_reads: bool) -> Self {
        Self {
            entries: BTreeMap::new(),
            times: None,
            nanos: ttl.duration().as_nanos() as i64,
            by_reads,
            gone: BTreeSet::new(),
        }
    }

    pub fn advance(&mut self, to: i64) {
        if to == i64::MIN {
            return;
        }
        self.times = Some(self.times.map_or((to, to), |(time, since)| (time.max(to), since)));
    }

    /// From now on entries live so long; those that are over stay over.
    pub fn live(&mut self, nanos: i64) {
        let gone: Vec<_> =
            self.entries.keys().copied().filter(|key| self.get(*key).is_none()).collect();
        self.gone.extend(gone);
        self.nanos = nanos;
    }

    pub fn time(&self) -> i64 {
        self.times.map_or(i64::MIN, |(time, _)| time)
    }

    fn is_over(&self, touched: i64) -> bool {
        let Some((time, since)) = self.times else { return false };
        i128::from(time) - i128::from(touched.max(since)) >= i128::from(self.nanos)
    }

    pub fn get(&self, key: u64) -> Option<&V> {
        let (touched, value) = self.entries.get(&key)?;
        (!self.is_over(*touched) && !self.gone.contains(&key)).then_some(value)
    }

    /// A read, which may touch the entry.
    pub fn read(&mut self, key: u64) -> Option<&V> {
        let (by_reads, time) = (self.by_reads, self.time());
        self.get(key)?;
        let (touched, value) = self.entries.get_mut(&key)?;
        if by_reads {
            *touched = time;
        }
        Some(value)
    }

    pub fn put(&mut self, key: u64, value: V) -> bool {
        let was_there = self.get(key).is_some();
        self.entries.insert(key, (self.time(), value));
        self.gone.remove(&key);
        was_there
    }

    pub fn update(&mut self, key: u64, init: impl FnOnce() -> V, change: impl FnOnce(&mut V)) {
        let mut value = self.get(key).cloned().unwrap_or_else(init);
        change(&mut value);
        self.put(key, value);
    }

    pub fn modify(&mut self, key: u64, change: impl FnOnce(&mut V)) -> bool {
        let Some(mut value) = self.get(key).cloned() else { return false };
        change(&mut value);
        self.put(key, value)
    }

    pub fn take(&mut self, key: u64) -> Option<V> {
        let value = self.get(key).cloned();
        self.entries.remove(&key);
        value
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// What is seen.
    pub fn all(&self) -> BTreeMap<u64, V> {
        let seen = self.entries.keys().filter_map(|key| Some((*key, self.get(*key)?.clone())));
        seen.collect()
    }
}
