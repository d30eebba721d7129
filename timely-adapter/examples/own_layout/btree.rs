// A layout of one's own: a state in a `BTreeMap`, by the hashes of its keys.
//
// What it keeps true: each entry is booked before it is put. A key group is a range of hashes, so its entries
// stand together and can move. A checkpoint writes all entries.
//
// The book includes this file, so its header is no doc comment.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use alluvium::backend::{
    BlobWriter, ByHash, CheckpointOutcome, Cursor, EntryCodec, Error, ErrorKind, Images, Key,
    Layout, Lookup, MemoryKind, Peek, Rejected, Result, State, StateContext, StateImage, Table,
    TableStats, Upkeep, VisitRun, description_of, read_entries, write_entries,
};

/// Keeps a state in a `BTreeMap`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BTree;

/// An open [`BTree`].
pub struct BTreeTable<K, V> {
    context: StateContext,
    /// Entries by the hash of their key: several where hashes collide.
    entries: BTreeMap<u64, Vec<(K, V)>>,
    len: u64,
    images: Images,
}

impl<K: Key, V: State> Layout<K, V> for BTree {
    type Table = BTreeTable<K, V>;

    fn name(&self) -> &'static str {
        "btree"
    }

    fn value_description(&self) -> String {
        description_of::<V>()
    }

    fn codec(&self) -> Option<EntryCodec<K, V>> {
        Some(EntryCodec::new())
    }

    fn open(&self, mut context: StateContext) -> Result<Self::Table> {
        let restored = context.restored.take();
        let (entries, images) = Default::default();
        let mut table = BTreeTable { context, entries, len: 0, images };
        if let Some((image, blobs)) = restored {
            read_entries(&table.context.clone(), &image, &blobs, |key, value| {
                table.put(key, value).map(drop).map_err(Error::from)
            })?;
            table.images.restored(&image);
        }
        Ok(table)
    }
}

/// Memory of an entry: its places in the map, which may be three times as large as what is in use, a block of
/// its own, and what key and value own.
fn bytes_of<K: State, V: State>(key: &K, value: &V) -> u64 {
    let places = 3 * size_of::<(u64, Vec<(K, V)>)>();
    let block = 2 * size_of::<(K, V)>() + 16;
    (places + block + key.heap_bytes() + value.heap_bytes()) as u64
}

/// A value lent to a closure. What the closure changed is booked when this is dropped, also by a panic.
struct Lent<'a, K: State, V: State> {
    entry: &'a mut (K, V),
    before: u64,
    context: &'a StateContext,
}

impl<K: State, V: State> Drop for Lent<'_, K, V> {
    fn drop(&mut self) {
        let after = bytes_of(&self.entry.0, &self.entry.1);
        self.context.account.adjust(MemoryKind::Values, self.before, after);
    }
}

impl<K: Key, V: State> BTreeTable<K, V> {
    fn find<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        let entries = self.entries.get(&key.key_hash())?;
        entries.iter().find(|(known, _)| key.is(known)).map(|(_, value)| value)
    }

    fn lend<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Option<Lent<'_, K, V>> {
        let entries = self.entries.get_mut(&key.key_hash())?;
        let entry = entries.iter_mut().find(|(known, _)| key.is(known))?;
        Some(Lent { before: bytes_of(&entry.0, &entry.1), entry, context: &self.context })
    }

    /// Refuses a value that is too large, and books what `key` and `value` take.
    fn book(&self, key: &K, value: &V) -> Result<()> {
        let (owned, most) =
            ((key.heap_bytes() + value.heap_bytes()) as u64, self.context.max_value_bytes);
        if owned > most {
            let message =
                format!("a value and its key own {owned} bytes of heap, max_value is {most}");
            return Err(
                Error::new(ErrorKind::ValueTooLarge, message).with("state", &self.context.name)
            );
        }
        self.context.account.reserve(MemoryKind::Values, bytes_of(key, value), "an entry")
    }

    /// Closures have made values larger than the memory allows: nothing is written until some are removed.
    fn check_not_overdrawn(&self) -> Result<()> {
        self.context.account.ensure(0, "a write")?;
        match self.context.account.is_overdrawn() {
            true => Err(self.context.account.over_budget(1, "a write")),
            false => Ok(()),
        }
    }

    fn remove_entry<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Option<(K, V)> {
        let hash = key.key_hash();
        let entries = self.entries.get_mut(&hash)?;
        let at = entries.iter().position(|(known, _)| key.is(known))?;
        let (known, value) = entries.swap_remove(at);
        if entries.is_empty() {
            self.entries.remove(&hash);
        }
        self.len -= 1;
        self.context.account.release(MemoryKind::Values, bytes_of(&known, &value));
        Some((known, value))
    }

    /// Visits the entries with these hashes from `cursor` on, about `fuel` of them, all of one hash in one call.
    fn visit(
        &self,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        mut fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let has_begun = cursor.version == 1;
        let from = if has_begun { cursor.position } else { *hashes.start() };
        for (hash, entries) in self.entries.range(from..=*hashes.end()) {
            if fuel == 0 {
                *cursor = Cursor { position: *hash, version: 1, done: false };
                return Ok(());
            }
            entries.iter().try_for_each(|(key, value)| visit(key, value))?;
            fuel = fuel.saturating_sub(entries.len());
        }
        cursor.done = true;
        Ok(())
    }
}

impl<K: Key, V: State> Table<K, V> for BTreeTable<K, V> {
    fn len(&self) -> u64 {
        self.len
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        Ok(self.find(key))
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        self.find(key).map_or(Peek::Absent, Peek::Resident)
    }

    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.check_not_overdrawn()?;
        if self.find(key).is_none() {
            self.put(key.to_owned(), init())?;
        }
        let lent = self.lend(key).expect("it was put");
        Ok(change(&mut lent.entry.1))
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.check_not_overdrawn()?;
        Ok(self.lend(key).map(|lent| change(&mut lent.entry.1)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        if let Err(error) = self.book(&key, &value) {
            return Err(Rejected::new(error, (key, value)));
        }
        let was_there = self.remove_entry(&key).is_some();
        self.entries
            .entry(key.key_hash())
            .or_insert_with(|| Vec::with_capacity(1))
            .push((key, value));
        self.len += 1;
        Ok(was_there)
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        Ok(self.remove_entry(key).map(|(_, value)| value))
    }

    fn clear(&mut self) -> Result<()> {
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
        self.len = 0;
        self.entries.clear();
        Ok(())
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        self.visit(&(0..=u64::MAX), cursor, fuel, visit)
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        Some(self)
    }
}

impl<K: Key, V: State> ByHash<K, V> for BTreeTable<K, V> {
    fn is_fast_in_order(&self) -> bool {
        true
    }

    fn visit_hashes(
        &mut self,
        (): (),
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, V>,
    ) -> Result<()> {
        self.visit(hashes, cursor, fuel, &mut |key, value| {
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
        let mut removed = 0;
        while removed < fuel {
            let Some(hash) = self.entries.range(hashes.clone()).next().map(|(hash, _)| *hash)
            else {
                cursor.done = true;
                break;
            };
            let entries = self.entries.remove(&hash).unwrap_or_default();
            let bytes = entries.iter().map(|(key, value)| bytes_of(key, value)).sum();
            self.context.account.release(MemoryKind::Values, bytes);
            removed += entries.len();
            self.len -= entries.len() as u64;
        }
        Ok(removed)
    }
}

impl<K: Key, V: State> Upkeep for BTreeTable<K, V> {
    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        let entries = self.entries.values().flatten().map(|(key, value)| (key, value));
        let image = write_entries(&self.context, entries)?;
        self.images.taken(&image);
        Ok(image)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.images.decide(outcome, self.context.segments.as_ref());
    }

    fn stats(&self) -> TableStats {
        let live_bytes = self.context.account.used_for(MemoryKind::Values);
        let mut stats = TableStats { live_keys: self.len, live_bytes, ..TableStats::default() };
        self.images.describe(&mut stats);
        stats
    }
}

impl<K, V> Drop for BTreeTable<K, V> {
    fn drop(&mut self) {
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
