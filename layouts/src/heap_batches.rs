//! Batches on the heap: groups of keys whose memory accesses overlap.
//!
//! A hash table that is larger than the cache misses it twice for a key, at its control bytes and at its
//! entry. Both are brought near for a whole group before its first key is looked at; before a change the bit that
//! says whether the entry has changed is, too, and what a checkpoint that is taken has to know. Each key is hashed
//! once.

use alluvium_pagestore::{Key, Lookup, Result};

use crate::heap::{HeapTable, Kind};
use crate::heap_entries::Entries;
use crate::heap_marks::EntryMarks;
use crate::table::BatchError;

/// Keys of a group.
pub(crate) const GROUP: usize = 64;
/// Of a smaller table nothing has to be brought near: it is in the cache.
pub(crate) const NEAR_BYTES: u64 = 1 << 20;

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// The hashes of the next group of keys, whose entries are brought near, and if they are going to change what
    /// tells of that.
    #[inline]
    fn hashes<'a, Q: Lookup<K> + ?Sized + 'a>(
        &self,
        keys: impl Iterator<Item = &'a Q>,
        hashes: &mut [u64; GROUP],
        they_change: bool,
    ) -> usize {
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = key.key_hash();
            count += 1;
        }
        if self.table_bytes > NEAR_BYTES {
            // Not compared: probably the key's, and nobody waits for it.
            let place = |hash: &u64| self.entries.find_bucket_index(*hash, |_| true);
            for at in hashes[..count].iter().filter_map(place) {
                Entries::<K, V>::look_ahead(&self.entries, at);
                if they_change {
                    self.marks.look_ahead(at);
                }
            }
            if they_change && self.reads {
                self.look_ahead_of_capture(&hashes[..count]);
            }
        }
        count
    }

    /// Brings near what the checkpoint that is taken has to know of these keys before they change.
    #[inline(never)]
    fn look_ahead_of_capture(&self, hashes: &[u64]) {
        let mut buckets = [None; GROUP];
        for (bucket, hash) in buckets.iter_mut().zip(hashes) {
            *bucket = self.entries.find_bucket_index(*hash, |_| true);
            bucket.iter().for_each(|bucket| self.marks.look_ahead_at_captured(*bucket));
        }
        for bucket in buckets.into_iter().flatten() {
            if self.marks.is_captured(bucket) {
                self.marks.look_ahead_at_record(bucket);
            }
        }
    }

    pub(crate) fn put_all(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        let (mut rest, mut hashes) = (batch.drain(..), [0; GROUP]);
        loop {
            let count =
                self.hashes(rest.as_slice().iter().map(|entry| &entry.0), &mut hashes, true);
            if count == 0 {
                return Ok(());
            }
            for hash in &hashes[..count] {
                let (key, value) = rest.next().expect("hashed above");
                if let Err(rejected) = self.put_hashed(*hash, key, value) {
                    let left = std::iter::once(rejected.value).chain(rest).collect();
                    *batch = left;
                    return Err(rejected.error);
                }
            }
        }
    }

    pub(crate) fn update_all<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut init: impl FnMut(&T) -> V,
        mut change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        let mut hashes = [0; GROUP];
        for (nth, items) in batch.chunks(GROUP).enumerate() {
            self.hashes(items.iter().map(&key), &mut hashes, true);
            for (i, (item, hash)) in items.iter().zip(&hashes).enumerate() {
                let change = |value: &mut V| change(item, value);
                let updated = self.update_hashed(*hash, key(item), || init(item), change);
                updated.map_err(|error| BatchError { applied: nth * GROUP + i, error })?;
            }
        }
        Ok(())
    }

    pub(crate) fn read_all<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut read: impl FnMut(&T, Option<&V>),
    ) {
        let mut hashes = [0; GROUP];
        for items in batch.chunks(GROUP) {
            self.hashes(items.iter().map(&key), &mut hashes, false);
            for (item, hash) in items.iter().zip(&hashes) {
                let found = self.entries.find(*hash, |(k, _)| key(item).is(k));
                read(item, found.map(|(_, value)| value));
            }
        }
    }
}
