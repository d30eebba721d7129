//! Batches on the heap: groups of keys whose memory accesses overlap.
//!
//! A table that is larger than the cache misses it twice for a key, at a group's head and at the entry. Both are brought
//! near for a whole group of keys before the first is looked at; what tells that an entry has changed stands beside the
//! tags. Each key is hashed once.

use alluvium_pagestore::{Key, Lookup, Result};

use super::{HeapTable, Kind};
use crate::contract::table::BatchError;

/// Keys of a group.
pub(crate) const GROUP: usize = 64;
/// Of a smaller table nothing has to be brought near: it is in the cache.
pub(crate) const NEAR_BYTES: u64 = 1 << 20;

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// The hashes of the next group of keys, whose entries are brought near.
    #[inline]
    fn hashes<'a, Q: Lookup<K> + ?Sized + 'a>(
        &self,
        keys: impl Iterator<Item = &'a Q>,
        hashes: &mut [u64; GROUP],
    ) -> usize {
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = key.key_hash();
            count += 1;
        }
        if self.core.table.memory_bytes() > NEAR_BYTES {
            // Not compared: probably the key's, and nobody waits for it.
            hashes[..count].iter().for_each(|hash| self.core.look_ahead(*hash));
        }
        count
    }

    pub(crate) fn put_all(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        let (mut rest, mut hashes) = (batch.drain(..), [0; GROUP]);
        loop {
            let count = self.hashes(rest.as_slice().iter().map(|entry| &entry.0), &mut hashes);
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
            self.hashes(items.iter().map(&key), &mut hashes);
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
            self.hashes(items.iter().map(&key), &mut hashes);
            for (item, hash) in items.iter().zip(&hashes) {
                let found = self.core.find(*hash, |known| key(item).is(known));
                read(item, found.map(|entry| &entry.value));
            }
        }
    }
}
