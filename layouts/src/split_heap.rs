//! Heap state in the order of its hashes: for state whose key groups come and go.
//!
//! A [split table](crate::split_table) instead of one hash table: a key group is a range of its parts,
//! so that it is found without a look at the others. Nothing is ever on storage but checkpoints, which
//! are full and taken in steps (see `split_heap_capture.rs`). A call takes up to twice as long as on a
//! hash table; an insert never moves more than one part.

use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobWriter, Error, Key, Lookup, MemoryKind, Rejected, Result, State, StateImage,
};

use crate::by_hash::ByHash;
use crate::full_image::{Images, read_entries};
use crate::heap::Stored;
use crate::lent::{Lent, check_not_overdrawn};
use crate::split_heap_capture::SplitCapture;
use crate::split_table::{HashRange, PART_ENTRIES_MAX, SplitTable};
use crate::stepped::InSteps;
use crate::table::{CheckpointOutcome, Cursor, Peek, StateContext, Table, TableStats};
use crate::upkeep::Upkeep;

/// What a [`Heap`](crate::Heap) layout opens whose key groups are to come and go.
#[derive(Debug)]
pub struct SplitHeapTable<K: Key, V: State> {
    pub(super) context: StateContext,
    pub(super) range: HashRange,
    pub(super) entries: SplitTable<(K, V)>,
    /// The checkpoint being taken.
    pub(super) capture: Option<Box<SplitCapture<K, V>>>,
    pub(super) images: Images,
    pub(super) codec_calls: u64,
    /// Entries looked at for those of some hashes.
    pub(super) sought: u64,
}

pub(super) fn heap_of<K: Key, V: State>(key: &K, value: &V) -> u64 {
    (key.heap_bytes() + value.heap_bytes()) as u64
}

pub(super) fn hash_of<K: Key, V>(entry: &(K, V)) -> u64 {
    entry.0.key_hash()
}

fn empty<K, V>(context: &StateContext, range: HashRange) -> SplitTable<(K, V)> {
    SplitTable::new(context.account.clone(), range).expect_few_of(context.key_groups)
}

impl<K: Key, V: State> SplitHeapTable<K, V> {
    /// Opens the table, restoring what the context says.
    pub fn open(mut context: StateContext) -> Result<Self> {
        let range = HashRange::of(&context.owned, context.key_groups);
        let restored = context.restored.take();
        let entries = empty(&context, range);
        let images = Images::default();
        let (capture, codec_calls, sought) = (None, 0, 0);
        let mut table = Self { context, range, entries, capture, images, codec_calls, sought };
        if let Some((image, blobs)) = restored {
            read_entries(&table.context.clone(), &image, &blobs, |key, value| {
                table.codec_calls += 1;
                table.put(key, value).map(drop).map_err(Error::from)
            })?;
            table.images.restored(&image);
        }
        Ok(table)
    }

    pub(super) fn account(&self) -> &Rc<Account> {
        &self.context.account
    }

    /// Sees to it that what a checkpoint still reads of a table that was cleared is not in the way of
    /// an insert that owns `heap`.
    fn make_way(&mut self, heap: u64) {
        if self.values_left() > 0 {
            let part = 2 * PART_ENTRIES_MAX * (size_of::<(K, V)>() + 1);
            if self.account().available() < part as u64 + heap {
                self.read_rest();
            }
        }
    }

    /// Bytes of values of a table that was cleared, which a checkpoint reads still.
    fn values_left(&self) -> u64 {
        self.capture.as_ref().map_or(0, |capture| capture.values_left())
    }
}

impl<K: Key, V: State> Table<K, V> for SplitHeapTable<K, V> {
    fn len(&self) -> u64 {
        self.entries.len()
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        Ok(self.entries.find(key.key_hash(), |(k, _)| key.is(k)).map(|(_, value)| value))
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        match self.entries.find(key.key_hash(), |(k, _)| key.is(k)) {
            Some((_, value)) => Peek::Resident(value),
            None => Peek::Absent,
        }
    }

    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        check_not_overdrawn(self.account())?;
        let hash = key.key_hash();
        if self.capture.is_some() {
            self.keep(hash, key, true);
            self.make_way(0);
        }
        let account = self.context.account.clone();
        if let Some(entry) = self.entries.find_mut(hash, |(k, _)| key.is(k)) {
            return Ok(change(&mut Lent::<K, V, Stored>::new(entry, &account).entry.1));
        }
        let key = key.to_owned();
        if !K::NONE {
            let key_bytes = key.heap_bytes() as u64;
            account.ensure(self.entries.growth_bytes(hash) + key_bytes, "a new key")?;
        }
        let entry = self.entries.insert(hash, hash_of, || (key, init()))?;
        // What the closure has made is here already, as what it makes of a value is.
        account.charge(MemoryKind::Values, heap_of(&entry.0, &entry.1));
        Ok(change(&mut Lent::<K, V, Stored>::new(entry, &account).entry.1))
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        check_not_overdrawn(self.account())?;
        let hash = key.key_hash();
        if self.capture.is_some() {
            self.keep(hash, key, false);
        }
        let account = self.context.account.clone();
        let found = self.entries.find_mut(hash, |(k, _)| key.is(k));
        Ok(found.map(|entry| change(&mut Lent::<K, V, Stored>::new(entry, &account).entry.1)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        let hash = key.key_hash();
        let bytes = heap_of(&key, &value);
        if self.capture.is_some() {
            self.keep(hash, &key, true);
            self.make_way(bytes);
        }
        let account = self.context.account.clone();
        if let Some(entry) = self.entries.find_mut(hash, |(k, _)| *k == key) {
            let before = heap_of(&entry.0, &entry.1);
            let after = heap_of(&entry.0, &value);
            if let Err(error) = account.ensure(after.saturating_sub(before), "a larger value") {
                return Err(Rejected::new(error, (key, value)));
            }
            account.adjust(MemoryKind::Values, before, after);
            drop(std::mem::replace(&mut entry.1, value));
            return Ok(true);
        }
        if let Err(error) = account.reserve(MemoryKind::Values, bytes, "a new entry") {
            return Err(Rejected::new(error, (key, value)));
        }
        let mut entry = Some((key, value));
        let make = || entry.take().expect("made once");
        if let Err(error) = self.entries.insert(hash, hash_of, make).map(drop) {
            account.release(MemoryKind::Values, bytes);
            return Err(Rejected::new(error, entry.expect("nothing was inserted")));
        }
        Ok(false)
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let hash = key.key_hash();
        if self.capture.is_some() {
            self.keep(hash, key, false);
        }
        let found = self.entries.remove(hash, |(k, _)| key.is(k));
        Ok(found.map(|(key, value)| {
            self.account().release(MemoryKind::Values, heap_of(&key, &value));
            value
        }))
    }

    fn clear(&mut self) -> Result<()> {
        let account = self.context.account.clone();
        let values = account.used_for(MemoryKind::Values) - self.values_left();
        let old = std::mem::replace(&mut self.entries, empty(&self.context, self.range));
        let Some(old) = self.leave(old, values) else { return Ok(()) };
        drop(old);
        account.release(MemoryKind::Values, values);
        Ok(())
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let mut visited = 0;
        while !cursor.done && visited < fuel.max(1) {
            let (part, after) = self.entries.table_at(cursor.position);
            for (key, value) in part.into_iter().flatten() {
                visit(key, value)?;
                visited += 1;
            }
            visited += 1;
            match after {
                Some(place) => cursor.position = place,
                None => cursor.done = true,
            }
        }
        Ok(())
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        Some(self)
    }
}

impl<K: Key, V: State> Upkeep for SplitHeapTable<K, V> {
    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        self.take_at_once()
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture().map(|()| None)
    }

    fn continue_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture()
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.capture = None;
        self.images.decide(outcome, self.context.segments.as_ref());
    }

    fn stats(&self) -> TableStats {
        let live_keys = self.entries.len();
        let values = self.account().used_for(MemoryKind::Values) - self.values_left();
        let mut stats = TableStats {
            live_keys,
            live_bytes: live_keys * size_of::<(K, V)>() as u64 + values,
            codec_calls: self.codec_calls,
            sought: self.sought,
            ..TableStats::default()
        };
        self.images.describe(&mut stats);
        stats
    }
}

impl<K: Key, V: State> Drop for SplitHeapTable<K, V> {
    fn drop(&mut self) {
        self.capture = None;
        let account = self.account();
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
