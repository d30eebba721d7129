//! Lists of a store.

use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Lists, TableStats, for_each_list};
use alluvium_pagestore::{
    BlobWriter, Encoded, Key, KeyGroup, Result, State, StateImage, Time, codec,
};

use super::{Shared, each_of_group};
use crate::export::{Entry, Visit, check_hash};
use crate::held::Grouped;
use crate::moving::{Arriving, Groups, Place, in_order};
use crate::pacing::Stream;
use crate::state_cell::{Hooks, Lock};

/// [`Lists`] of a store.
#[derive(Debug)]
pub(crate) struct ListsCell<K, E, L>(pub(crate) Shared<L>, PhantomData<(K, E)>);

impl<K: Key, V: State, T: Lists<K, V>> ListsCell<K, V, T> {
    pub(crate) fn new(name: &str, inner: T, lock: Option<Lock>) -> Self {
        Self(Shared::new(name, inner, lock), PhantomData)
    }

    /// The same for lists whose key groups move.
    pub(crate) fn in_groups(self, groups: Option<Rc<Groups>>) -> Self {
        Self(Shared { groups, ..self.0 }, self.1)
    }
}

impl<K, E, L> Grouped for ListsCell<K, E, L> {
    fn name(&self) -> &str {
        self.0.name()
    }

    #[inline]
    fn groups(&self) -> Option<&Groups> {
        self.0.groups()
    }
}

impl<K: Key, V: State, T: Lists<K, V>> Hooks for ListsCell<K, V, T> {
    fn poisoned(&self) -> bool {
        self.0.poisoned.get()
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.0.checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.0.begin_checkpoint(blobs)
    }

    fn calls(&self) -> u64 {
        self.0.calls.get()
    }

    fn pace_checkpoint(&self, stream: Stream) -> Result<()> {
        self.0.pace_checkpoint(stream)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.0.continue_checkpoint(blobs)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.0.checkpointed(outcome);
    }

    fn tick(&self, work: usize) -> Result<usize> {
        self.0.tick(work)
    }

    fn reclaim(&self, bytes: u64) -> Result<u64> {
        self.0.reclaim(bytes, |inner| inner.purge(Time::MAX, 1))
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        self.0.fixed_bytes()
    }

    fn stats(&self) -> Result<TableStats> {
        self.0.stats()
    }

    /// Gives elements of a key group in runs, bucket by bucket: each run with how many elements of its
    /// list come before it.
    fn extract(
        &self,
        group: KeyGroup,
        at: &mut Place,
        fuel: usize,
        visit: Visit<'_>,
    ) -> Result<()> {
        let hashes = self.0.hashes_of(group);
        let (mut encoded, lists) = (Encoded::default(), &mut *self.0.enter()?);
        at.is_exact = true;
        each_of_group(at, fuel, lists, T::next_bucket, |lists, bucket, cursor, fuel| {
            let (lists, mut count) = (in_order(lists.by_hash())?, 0);
            lists.visit_hashes(bucket, &hashes, cursor, fuel, &mut |key, from, run| {
                count += run.len();
                encoded.set(key, &(from, run.to_vec()))?;
                visit(Entry::of(key.key_hash(), bucket.0, &encoded))
            })?;
            Ok(count)
        })
    }

    fn forget(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
        let hashes = self.0.hashes_of(group);
        let lists = &mut *self.0.enter()?;
        each_of_group(at, fuel, lists, T::next_bucket, |lists, bucket, cursor, fuel| {
            in_order(lists.by_hash())?.remove_hashes(bucket, &hashes, cursor, fuel)
        })
    }

    /// Appends a run, the first of a list in the place of what may be there of it.
    fn install(&self, entry: Entry<'_>, arriving: &mut Arriving) -> Result<()> {
        let (key, (from, run)) = Encoded::get::<K, (u64, Vec<V>)>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        let (bucket, mut lists) = (Time(entry.order), self.0.enter_for(1)?);
        if arriving.is_anew && from == 0 && arriving.done == 0 {
            lists.clear_key(bucket, &key)?;
        }
        for element in run.into_iter().skip(arriving.done) {
            lists.append(bucket, &key, element)?;
            arriving.done += 1;
        }
        Ok(())
    }

    fn export(&self, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        for_each_list(&mut *self.0.enter()?, &mut |bucket, key: &K, elements| {
            codec::encode_one(&mut encoded.key, key)?;
            while let Some(element) = elements.next()? {
                codec::encode_one(&mut encoded.value, element)?;
                visit(Entry::of(key.key_hash(), bucket.0, &encoded))?;
            }
            Ok(())
        })
    }

    fn import(&self, entry: Entry<'_>) -> Result<()> {
        let (key, element) = Encoded::get::<K, V>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        Ok(self.0.enter()?.append(Time(entry.order), &key, element)?)
    }
}
