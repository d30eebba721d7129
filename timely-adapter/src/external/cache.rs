//! A bounded cache of what an external table has said.
//!
//! What it keeps true: it never takes more than the bytes it was made with, all of which are booked
//! before; an entry is never seen after its time to live, nor after it was removed, nor in another stay of its
//! key group than it was put in. When there is no
//! room a clock hand looks for an entry that nobody has read since it last passed.

use std::time::{Duration, Instant};

use alluvium::Key;
use alluvium::types::{HeapSize, rounded};
use hashbrown::HashTable;

/// Answers by key.
pub(super) struct Cache<K, V> {
    entries: Vec<CacheEntry<K, V>>,
    /// Numbers of entries by hash. Half full at most, so that it never grows.
    index: HashTable<u32>,
    hand: usize,
    heap_bytes: usize,
    heap_bytes_max: usize,
    ttl: Duration,
}

struct CacheEntry<K, V> {
    key: K,
    value: Option<V>,
    since: Instant,
    /// How often the key's group had moved.
    stay: u32,
    is_used: bool,
}

/// The index's share of an entry: a number and a control byte, of which at most 2 / 9 are taken.
const INDEX_BYTES: usize = 24;
/// Of an index without entries.
const INDEX_BYTES_MIN: usize = 128;

impl<K: Key, V: HeapSize> Cache<K, V> {
    /// A cache that takes no more than `bytes`.
    pub(super) fn new(bytes: usize, ttl: Duration) -> Self {
        let heap_bytes_max = if K::NO_HEAP && V::NO_HEAP { 0 } else { bytes / 2 };
        let for_entries = (bytes - heap_bytes_max).saturating_sub(INDEX_BYTES_MIN);
        let most = for_entries / (size_of::<CacheEntry<K, V>>() + INDEX_BYTES);
        let most = most.min(u32::MAX as usize - 1);
        Self {
            entries: Vec::with_capacity(most),
            index: HashTable::with_capacity(most * 2),
            hand: 0,
            heap_bytes: 0,
            heap_bytes_max,
            ttl,
        }
    }

    /// The value of `key` that was put in during this stay of its group, if that was not too long before `now`.
    pub(super) fn get(&mut self, key: &K, stay: u32, now: Instant) -> Option<Option<&V>> {
        let number = *self.index.find(key.key_hash(), |&n| self.entries[n as usize].key == *key)?;
        let CacheEntry { since, stay: put_in, .. } = self.entries[number as usize];
        if now.saturating_duration_since(since) >= self.ttl || put_in != stay {
            self.remove(key);
            return None;
        }
        let entry = &mut self.entries[number as usize];
        entry.is_used = true;
        Some(entry.value.as_ref())
    }

    /// Puts in what the table has for `key` in this stay, unless there is no room for it at all.
    pub(super) fn put(&mut self, (key, stay): (K, u32), value: Option<V>, now: Instant) {
        self.remove(&key);
        let heap = heap_bytes(&key, &value);
        if self.entries.capacity() == 0 || heap > self.heap_bytes_max {
            return;
        }
        while self.entries.len() == self.entries.capacity()
            || self.heap_bytes + heap > self.heap_bytes_max
        {
            self.evict();
        }
        let number = self.entries.len() as u32;
        self.heap_bytes += heap;
        let hash = key.key_hash();
        self.entries.push(CacheEntry { key, value, since: now, stay, is_used: false });
        let entries = &self.entries;
        self.index.insert_unique(hash, number, |&n| entries[n as usize].key.key_hash());
    }

    /// Forgets `key`.
    pub(super) fn remove(&mut self, key: &K) {
        let entries = &self.entries;
        let found = self.index.find_entry(key.key_hash(), |&n| entries[n as usize].key == *key);
        let Ok(found) = found else { return };
        let (number, _) = found.remove();
        let gone = self.entries.swap_remove(number as usize);
        self.heap_bytes -= heap_bytes(&gone.key, &gone.value);
        let last = self.entries.len() as u32;
        if let Some(moved) = self.entries.get(number as usize) {
            let place = self.index.find_mut(moved.key.key_hash(), |&n| n == last);
            *place.expect("each entry has its number in the index") = number;
        }
    }

    /// Removes one entry. Ends, as each entry that the hand passes is not used afterwards.
    fn evict(&mut self) {
        loop {
            self.hand = if self.hand < self.entries.len() { self.hand } else { 0 };
            let Some(entry) = self.entries.get_mut(self.hand) else { return };
            if !std::mem::take(&mut entry.is_used) {
                let key = entry.key.clone();
                return self.remove(&key);
            }
            self.hand += 1;
        }
    }
}

fn heap_bytes<K: HeapSize, V: HeapSize>(key: &K, value: &Option<V>) -> usize {
    rounded(key.heap_bytes()) + value.as_ref().map_or(0, |value| rounded(value.heap_bytes()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Steps of a random number.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        *state >> 33
    }

    /// A map without a bound beside it: what the cache has is what was put last, and not too old.
    fn against_a_map(keys: u64, bytes: usize) -> (u64, u64) {
        let begin = Instant::now();
        let ttl = Duration::from_millis(50);
        let mut cache = Cache::<String, String>::new(bytes, ttl);
        let mut model = BTreeMap::<u64, (Option<String>, Instant)>::new();
        let (mut random, mut hits, mut misses) = (keys, 0, 0);
        for step in 0..20_000u64 {
            let now = begin + Duration::from_micros(step * 100);
            let number = next(&mut random) % keys;
            let key = format!("the key number {number}");
            match next(&mut random) % 4 {
                0 => {
                    let size = (next(&mut random) % 40) as usize;
                    let value = (size > 4).then(|| "v".repeat(size));
                    cache.put((key, 0), value.clone(), now);
                    model.insert(number, (value, now));
                }
                1 if step % 5 == 0 => {
                    cache.remove(&key);
                    model.remove(&number);
                }
                _ => {
                    let expected = model.get(&number).filter(|(_, at)| now - *at < ttl);
                    match cache.get(&key, 0, now) {
                        Some(found) => {
                            let (value, _) = expected.expect("nothing that is over or was removed");
                            assert_eq!(found, value.as_ref());
                            hits += 1;
                        }
                        None => misses += u64::from(expected.is_some()),
                    }
                }
            }
            assert!(cache.heap_bytes <= cache.heap_bytes_max);
            let heap: usize = cache.entries.iter().map(|e| heap_bytes(&e.key, &e.value)).sum();
            assert_eq!((heap, cache.entries.len()), (cache.heap_bytes, cache.index.len()));
            let table = cache.entries.capacity() * size_of::<CacheEntry<String, String>>();
            assert!(table + cache.index.allocation_size() + cache.heap_bytes_max <= bytes);
        }
        (hits, misses)
    }

    #[test]
    fn what_is_cached_is_what_was_put_last_within_its_bytes() {
        // Room for all keys, for some, and for none.
        let (hits, misses) = against_a_map(30, 64 << 10);
        assert!(hits > 0 && misses == 0);
        let (hits, misses) = against_a_map(200, 8 << 10);
        assert!(hits > 0 && misses > 0);
        let (hits, misses) = against_a_map(200, 64);
        assert!(hits == 0 && misses > 0);
    }

    #[test]
    fn what_is_read_again_and_again_stays() {
        let mut cache = Cache::<u64, u64>::new(8 << 10, Duration::from_secs(60));
        let (now, places) = (Instant::now(), cache.entries.capacity() as u64);
        assert!(places > 50, "{places}");
        for key in 0..places * 20 {
            cache.put((key, 0), Some(key), now);
            if key > 0 {
                assert_eq!(cache.get(&0, 0, now), Some(Some(&0)), "{key}");
            }
        }
    }

    #[test]
    fn what_was_put_in_another_stay_is_not_there() {
        let mut cache = Cache::<u64, u64>::new(8 << 10, Duration::from_secs(60));
        let now = Instant::now();
        cache.put((7, 0), Some(1), now);
        assert_eq!(cache.get(&7, 2, now), None);
        assert_eq!(cache.get(&7, 0, now), None, "it is gone");
        cache.put((7, 2), Some(3), now);
        assert_eq!(cache.get(&7, 2, now), Some(Some(&3)));
    }
}
