//! Batches on the heap: groups of keys whose memory accesses overlap.
//!
//! A table that is larger than the cache misses it twice for a key, at its tag and at the entry. All keys of a group are
//! hashed, and their tags compared, before the first entry is looked at. The slot that was found is remembered: tags are
//! not compared again.

use alluvium_pagestore::{Key, Lookup, Result};

use super::probing_unsafe::SlotHint;
use super::{HeapKind, HeapTable, LentEntry};
use crate::contract::table::BatchError;

/// Keys of a group.
pub(crate) const GROUP: usize = 64;
/// Keys of a smaller table need not be looked for ahead where nothing is remembered of it: it is in the cache.
pub(crate) const NEAR_BYTES: u64 = 1 << 20;

/// The hashes of a group of keys, and where their entries probably are.
struct ProbedGroup {
    hashes: [u64; GROUP],
    near: [SlotHint; GROUP],
}

impl ProbedGroup {
    fn new() -> Self {
        Self { hashes: [0; GROUP], near: [SlotHint::default(); GROUP] }
    }

    /// Of so many keys.
    #[inline]
    fn of(&self, count: usize) -> impl Iterator<Item = (u64, SlotHint)> {
        self.hashes[..count].iter().copied().zip(self.near[..count].iter().copied())
    }
}

impl<K: Key, V: 'static, M: HeapKind<K, V>> HeapTable<K, V, M> {
    /// Looks for the next group of keys, whose entries are brought near; how many they are.
    #[inline]
    fn look_ahead<'a, Q: Lookup<K> + ?Sized + 'a>(
        &self,
        keys: impl Iterator<Item = &'a Q>,
        ahead: &mut ProbedGroup,
        changes: bool,
    ) -> usize {
        let mut count = 0;
        for (hash, key) in ahead.hashes.iter_mut().zip(keys) {
            *hash = key.key_hash();
            count += 1;
        }
        for (near, hash) in ahead.near.iter_mut().zip(&ahead.hashes[..count]) {
            // Not compared: probably the key's, and nobody waits for it.
            *near = self.core.look_ahead(*hash, changes);
        }
        count
    }

    pub(crate) fn put_all(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        let (mut rest, mut ahead) = (batch.drain(..), ProbedGroup::new());
        loop {
            let count =
                self.look_ahead(rest.as_slice().iter().map(|entry| &entry.0), &mut ahead, true);
            if count == 0 {
                return Ok(());
            }
            for (hash, near) in ahead.of(count) {
                let (key, value) = rest.next().expect("hashed above");
                if let Err(rejected) = self.put_hashed(hash, Some(near), key, value) {
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
        let mut ahead = ProbedGroup::new();
        for (nth, items) in batch.chunks(GROUP).enumerate() {
            let count = self.look_ahead(items.iter().map(&key), &mut ahead, true);
            for (i, (item, at)) in items.iter().zip(ahead.of(count)).enumerate() {
                let change = |value: &mut V| change(item, value);
                let updated = self.update_near(at, key(item), || init(item), change);
                updated.map_err(|error| BatchError { applied: nth * GROUP + i, error })?;
            }
        }
        Ok(())
    }

    #[inline]
    fn update_near<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, near): (u64, SlotHint),
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V),
    ) -> Result<()> {
        self.check_writable()?;
        let found = self.core.change_near(hash, near, |known| key.is(known));
        if let Some((entry, account, oversize)) = found {
            let lent = LentEntry::<K, V, M>::new(entry, account, oversize)?;
            change(&mut lent.entry.value);
            return Ok(());
        }
        self.insert_hashed(hash, key.to_owned(), init, change)
    }

    pub(crate) fn read_all<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut read: impl FnMut(&T, Option<&V>),
    ) {
        let mut ahead = ProbedGroup::new();
        for items in batch.chunks(GROUP) {
            let count = self.look_ahead(items.iter().map(&key), &mut ahead, false);
            for (item, (hash, near)) in items.iter().zip(ahead.of(count)) {
                let found = self.core.find_near(hash, near, |known| key(item).is(known));
                read(item, found.map(|entry| &entry.value));
            }
        }
    }
}
