//! Heap state in the order of its hashes: for state whose key groups come and go.
//!
//! A [split table](crate::split_table) instead of one hash table: a key group is a range of its parts,
//! so that it is found without a look at the others. All else is as with one hash table: nothing is ever on storage but
//! checkpoints, which write what has changed. A call takes up to twice as long; an insert never moves more than one part.

use std::rc::Rc;

use alluvium_pagestore::{Account, Key, Lookup, MemoryKind, Rejected, Result, State};

use crate::by_hash::ByHash;
use crate::heap::{HeapTable, Stored};
use crate::heap_entries::{Entries, hash_of};
use crate::heap_marks::{EntryMarks, Place};
use crate::lent::Lent;
use crate::split_marks::Moving;
use crate::split_table::SplitTable;
use crate::table::{Cursor, Peek, StateContext, Table};

/// What a [`Heap`](crate::Heap) layout opens whose key groups are to come and go.
pub type SplitHeapTable<K, V> = HeapTable<K, V, Stored, SplitTable<(K, V)>>;

pub(super) fn heap_of<K: Key, V: State>(key: &K, value: &V) -> u64 {
    (key.heap_bytes() + value.heap_bytes()) as u64
}

impl<K: Key, V: State> SplitHeapTable<K, V> {
    /// Opens the table, restoring what the context says.
    pub(crate) fn open(mut context: StateContext) -> Result<Self> {
        let restored = context.restored.take();
        let mut table = Self::new(context);
        if let Some((image, blobs)) = restored {
            table.restore(&image, &blobs, Self::put_at)?;
        }
        table.keep_free();
        Ok(table)
    }

    pub(super) fn account(&self) -> &Rc<Account> {
        &self.context.account
    }

    /// Does what takes memory; while there is too little, what checkpoints hold or remember is given up.
    fn with_room<R>(&mut self, mut take: impl FnMut(&mut Self) -> Result<R>) -> Result<R> {
        loop {
            match take(self) {
                Err(error) if !self.give_way() => return Err(error),
                Err(_) => {}
                taken => return taken,
            }
        }
    }

    /// Gives up what checkpoints that were given up have left, or what one still reads of a table that was cleared, or what
    /// is remembered of checkpoints, for which one that needs that is read to its end before; says whether there was any.
    #[cold]
    fn give_way(&mut self) -> bool {
        if self.drop_all_left() {
            return true;
        }
        if self.values_left() > 0 {
            self.read_rest();
            return self.values_left() == 0;
        }
        if self.give_up_marks() {
            return true;
        }
        if self.marks.is_on() {
            self.read_rest();
        }
        self.give_up_marks()
    }

    /// The part for another entry with this hash, which has room for it.
    fn make_room(&mut self, hash: u64) -> Result<usize> {
        self.with_room(|table| {
            let Self { entries, marks, moved, .. } = table;
            let made = entries.make_room(hash, hash_of, &mut Moving::new(marks, moved));
            if table.marks.take_lost() {
                table.marks_are_lost();
            }
            made
        })
    }

    /// Puts an entry; says whether the key was there before, and its bucket.
    fn put_at(&mut self, key: K, value: V) -> std::result::Result<(bool, usize), Rejected<(K, V)>> {
        let (hash, bytes) = (key.key_hash(), heap_of(&key, &value));
        if self.reads {
            self.keep(hash, &key, true);
        }
        if let Some(bucket) = self.entries.find_bucket(hash, |(k, _)| *k == key) {
            let (_, known) = self.entries.get_bucket(bucket).expect("found above");
            let before = heap_of(&key, known);
            let more = match bytes > before {
                true => bytes - before + self.kept(),
                false => 0,
            };
            let fits = |table: &mut Self| table.account().ensure(more, "a larger value");
            if let Err(error) = self.with_room(fits) {
                return Err(Rejected::new(error, (key, value)));
            }
            self.marks.change(bucket);
            self.account().adjust(MemoryKind::Values, before, bytes);
            let (_, known) = self.entries.get_bucket_mut(bucket).expect("found above");
            drop(std::mem::replace(known, value));
            return Ok((true, bucket));
        }
        let needed = bytes + self.kept() + self.entries.growth_bytes(hash);
        let reserve = |table: &mut Self| {
            table.account().ensure(needed, "a new entry")?;
            table.account().charge(MemoryKind::Values, bytes);
            Ok(())
        };
        if let Err(error) = self.with_room(reserve) {
            return Err(Rejected::new(error, (key, value)));
        }
        match self.make_room(hash) {
            Ok(part) => Ok((false, self.add(part, hash, (key, value)))),
            Err(error) => {
                self.account().release(MemoryKind::Values, bytes);
                Err(Rejected::new(error, (key, value)))
            }
        }
    }

    /// Adds an entry for which room was made; in which bucket.
    fn add(&mut self, part: usize, hash: u64, entry: (K, V)) -> usize {
        let (bucket, _) = self.entries.add(part, hash, entry, hash_of);
        self.marks.add(bucket);
        if self.marks.take_lost() {
            self.marks_are_lost();
        }
        bucket
    }

    /// Removes the entry in a bucket, with this hash.
    pub(super) fn remove_at(&mut self, bucket: usize, hash: u64) -> Option<(K, V)> {
        if self.reads {
            let key = self.entries.get_bucket(bucket)?.0.clone();
            self.keep(hash, &key, false);
        }
        let place = self.marks.remove(bucket);
        if place != Place::NONE {
            self.files.note_dead(place);
        }
        let (key, value) = self.entries.remove_at(bucket)?;
        self.account().release(MemoryKind::Values, heap_of(&key, &value));
        Some((key, value))
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
        self.check_not_overdrawn()?;
        let hash = key.key_hash();
        if self.reads {
            self.keep(hash, key, true);
        }
        let account = self.context.account.clone();
        if let Some((bucket, entry)) = self.entries.find_with_bucket(hash, |(k, _)| key.is(k)) {
            let lent = Lent::<K, V, Stored>::new(entry, &account, &mut self.oversize)?;
            self.marks.change(bucket);
            return Ok(change(&mut lent.entry.1));
        }
        let key = key.to_owned();
        if !K::NONE {
            self.oversize.check(&key, key.heap_bytes() as u64)?;
            let bytes = self.entries.growth_bytes(hash) + key.heap_bytes() as u64 + self.kept();
            self.with_room(|_| account.ensure(bytes, "a new key"))?;
        }
        let part = self.make_room(hash)?;
        let bucket = self.add(part, hash, (key, init()));
        let entry = self.entries.get_bucket_mut(bucket).expect("added above");
        // What the closure has made is here already, as what it makes of a value is.
        let lent = Lent::<K, V, Stored>::new_made(entry, &account, &mut self.oversize);
        Ok(change(&mut lent.entry.1))
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.check_not_overdrawn()?;
        let hash = key.key_hash();
        if self.reads {
            self.keep(hash, key, false);
        }
        let account = self.context.account.clone();
        let found = self.entries.find_with_bucket(hash, |(k, _)| key.is(k));
        let Some((bucket, entry)) = found else { return Ok(None) };
        let lent = Lent::<K, V, Stored>::new(entry, &account, &mut self.oversize)?;
        self.marks.change(bucket);
        Ok(Some(change(&mut lent.entry.1)))
    }

    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let hash = key.key_hash();
        if self.reads {
            self.keep(hash, key, false);
        }
        let account = self.context.account.clone();
        let found = self.entries.find_with_bucket(hash, |(k, _)| key.is(k));
        let Some((bucket, entry)) = found else { return Ok(None) };
        self.marks.change(bucket);
        let lent = Lent::<K, V, Stored>::new_of_any_size(entry, &account, &mut self.oversize);
        Ok(Some(change(&mut lent.entry.1)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        if let Err(error) = self.oversize.check(&key, heap_of(&key, &value)) {
            return Err(Rejected::new(error, (key, value)));
        }
        self.put_at(key, value).map(|(was_there, _)| was_there)
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let hash = key.key_hash();
        let Some(bucket) = self.entries.find_bucket(hash, |(k, _)| key.is(k)) else {
            return Ok(None);
        };
        Ok(self.remove_at(bucket, hash).map(|(_, value)| value))
    }

    fn clear(&mut self) -> Result<()> {
        if !self.leave() {
            self.entries = Entries::empty(&self.context);
            let values = self.account().used_for(MemoryKind::Values) - self.values_left();
            self.account().release(MemoryKind::Values, values);
        }
        self.moved += 1;
        self.oversize.forget();
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
