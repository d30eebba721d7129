//! A backend of a user's own: a `BTreeMap` behind the public traits, with nothing of ours but what
//! `alluvium` exports. It books what its values own, and takes full checkpoints.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use alluvium::backend::{
    BlobWriter, ByHash, CheckpointOutcome, Cursor, Images, Peek, Rejected, StateContext,
    StateImage, Table, Upkeep, VisitRun, read_entries, write_entries,
};
use alluvium::states::Lookup;
use alluvium::stats::{MemoryKind, TableStats};
use alluvium::types::EntryCodec;
use alluvium::{Error, Key, Layout, Result, State};

/// Keeps a state in a `BTreeMap`.
#[derive(Clone, Copy, Debug)]
pub struct BTree;

/// Refuses writes of this thread, by their number.
#[allow(dead_code, reason = "shared with programs that refuse nothing")]
pub mod refusals {
    use std::cell::Cell;
    use std::ops::Range;

    use alluvium::{Error, ErrorKind, Result};

    thread_local! {
        static WRITES: Cell<u64> = const { Cell::new(0) };
        static REFUSED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }

    /// Counts anew, and refuses the writes with these numbers.
    pub fn refuse(writes: Range<u64>) {
        WRITES.set(0);
        REFUSED.set((writes.start, writes.end));
    }

    /// How many writes were tried.
    pub fn tried() -> u64 {
        WRITES.get()
    }

    /// A write is tried.
    pub fn write() -> Result<()> {
        let number = WRITES.replace(WRITES.get() + 1);
        let (start, end) = REFUSED.get();
        match (start..end).contains(&number) {
            true => Err(Error::new(ErrorKind::OverBudget, "a planned refusal")),
            false => Ok(()),
        }
    }
}

/// An open [`BTree`].
pub struct BTreeTable<K, V> {
    context: StateContext,
    entries: BTreeMap<K, V>,
    images: Images,
}

fn bytes<K: State, V: State>(key: &K, value: &V) -> u64 {
    (2 * size_of::<(K, V)>() + key.heap_bytes() + value.heap_bytes()) as u64
}

impl<K: Key + Ord, V: State> Layout<K, V> for BTree {
    type Table = BTreeTable<K, V>;

    fn name(&self) -> &'static str {
        "btree"
    }

    fn value_description(&self) -> String {
        alluvium::types::description_of::<V>()
    }

    fn codec(&self) -> Option<EntryCodec<K, V>> {
        Some(EntryCodec::new())
    }

    fn open(&self, mut context: StateContext) -> Result<Self::Table> {
        let restored = context.restored.take();
        let mut table = BTreeTable { context, entries: BTreeMap::new(), images: Images::default() };
        if let Some((image, blobs)) = restored {
            read_entries(&table.context.clone(), &image, &blobs, |key, value| {
                table.put(key, value).map(drop).map_err(Error::from)
            })?;
            table.images.restored(&image);
        }
        Ok(table)
    }
}

impl<K: Key + Ord, V: State> BTreeTable<K, V> {
    fn remove_entry(&mut self, key: &K) -> Option<V> {
        let (key, value) = self.entries.remove_entry(key)?;
        self.context.account.release(MemoryKind::Values, bytes(&key, &value));
        Some(value)
    }

    fn changed<R>(&mut self, key: &K, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let value = self.entries.get_mut(key)?;
        let before = bytes(key, value);
        let result = change(value);
        self.context.account.adjust(MemoryKind::Values, before, bytes(key, value));
        Some(result)
    }
}

impl<K: Key + Ord, V: State> Table<K, V> for BTreeTable<K, V> {
    fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        Ok(self.entries.get(&key.to_owned()))
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        self.entries.get(&key.to_owned()).map_or(Peek::Absent, Peek::Resident)
    }

    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        let key = key.to_owned();
        match self.entries.contains_key(&key) {
            true => refusals::write()?,
            false => drop(self.put(key.clone(), init()).map_err(Error::from)?),
        }
        Ok(self.changed(&key, change).expect("put above"))
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        refusals::write()?;
        Ok(self.changed(&key.to_owned(), change))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        let new = bytes(&key, &value);
        let account = &self.context.account;
        let room =
            refusals::write().and_then(|()| account.reserve(MemoryKind::Values, new, "an entry"));
        if let Err(error) = room {
            return Err(Rejected::new(error, (key, value)));
        }
        let known = self.remove_entry(&key).is_some();
        self.entries.insert(key, value);
        Ok(known)
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        refusals::write()?;
        Ok(self.remove_entry(&key.to_owned()))
    }

    fn clear(&mut self) -> Result<()> {
        self.entries.clear();
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
        Ok(())
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        _: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        cursor.done = true;
        self.entries.iter().try_for_each(|(key, value)| visit(key, value))
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        Some(self)
    }
}

/// The entries with these hashes in the order of hashes.
pub fn of_hashes<'a, K: Key, V: 'a>(
    entries: impl Iterator<Item = (&'a K, &'a V)>,
    hashes: &RangeInclusive<u64>,
) -> Vec<(u64, &'a K, &'a V)> {
    let hashed = entries.map(|(key, value)| (key.key_hash(), key, value));
    let mut found: Vec<_> = hashed.filter(|(hash, ..)| hashes.contains(hash)).collect();
    found.sort_by_key(|(hash, ..)| *hash);
    found
}

/// Visits the entries with these hashes from `cursor` on, about `fuel` of them, all of one hash in one call.
pub fn visit_hashes<'a, K: Key, V: 'a>(
    entries: impl Iterator<Item = (&'a K, &'a V)>,
    hashes: &RangeInclusive<u64>,
    cursor: &mut Cursor,
    fuel: usize,
    visit: &mut dyn FnMut(&K, &V) -> Result<()>,
) -> Result<()> {
    let has_begun = cursor.version == 1;
    let from = if has_begun { cursor.position } else { *hashes.start() };
    let (mut spent, mut last) = (0, None);
    for (hash, key, value) in of_hashes(entries, &(from..=*hashes.end())) {
        if last != Some(hash) {
            *cursor = Cursor { position: hash, version: 1, done: false };
            if spent >= fuel.max(1) {
                return Ok(());
            }
        }
        visit(key, value)?;
        (spent, last) = (spent + 1, Some(hash));
    }
    cursor.done = true;
    Ok(())
}

impl<K: Key + Ord, V: State> ByHash<K, V> for BTreeTable<K, V> {
    fn visit_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, V>,
    ) -> Result<()> {
        visit_hashes(self.entries.iter(), hashes, cursor, fuel, &mut |key, value| {
            visit(key, 0, std::slice::from_ref(value))
        })
    }

    fn remove_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        let found = of_hashes(self.entries.iter(), hashes);
        cursor.done = found.len() <= fuel.max(1);
        let keys: Vec<K> =
            found.into_iter().take(fuel.max(1)).map(|(_, key, _)| key.clone()).collect();
        keys.iter().for_each(|key| drop(self.remove_entry(key)));
        Ok(keys.len())
    }
}

impl<K: Key + Ord, V: State> Upkeep for BTreeTable<K, V> {
    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        let image = write_entries(&self.context, self.entries.iter())?;
        self.images.taken(&image);
        Ok(image)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.images.decide(outcome, self.context.segments.as_ref());
    }

    fn stats(&self) -> TableStats {
        let live_bytes = self.context.account.used_for(MemoryKind::Values);
        TableStats { live_keys: self.len(), live_bytes, ..TableStats::default() }
    }
}
