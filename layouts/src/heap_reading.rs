//! What a checkpoint of a heap table has still to read, and where that goes.
//!
//! The table is read [stretch by stretch](crate::heap_entries). What is due is told by the table's [marks](crate::heap_marks), by the segments that
//! are written anew, or it is all; once entries have moved, a bit for each bucket tells it. Short entries that own no heap are
//! [copied](crate::heap_copies), others encoded at once.
//!
//! What it keeps true: an entry that was read or kept is on its way, and has no place on storage, until it has its new
//! one. Until then it counts as one that the next checkpoint is to write, if this one is given up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, MemoryKind, PlacedAt, Result};

use crate::checkpoint::HeapFiles;
use crate::checkpoint::Naming;
use crate::checkpoint::Paced;
use crate::heap::Kind;
use crate::heap_copies::Copies;
use crate::heap_entries::{Entries, Stretch};
use crate::heap_marks::{EntryMarks, Place};
use crate::split_table::{HashRange, SplitTable};

/// Entries that are kept together are not more, but for those of one hash.
const KEPT: usize = 256;
/// What is to be read is brought near so many stretches before it is.
const STRETCHES_AHEAD: usize = 3;
/// What an entry that is read alone costs, in buckets that are read in order: it is not in the cache.
const SPARSE_COST: u64 = 4;
/// Copies of which the helper tells where they are: their entries are brought near so many before it is remembered.
const COPIES_AHEAD: usize = 16;

/// What is to be read still.
#[derive(Debug)]
pub(super) struct Reading<K, V, S: Entries<K, V>> {
    account: Rc<Account>,
    /// The stretch that is read next.
    pub next: u64,
    /// The stretch that is brought near next; it may be behind.
    ahead: Option<u64>,
    /// Whether all entries of the barrier are to be read.
    pub reads_all: bool,
    /// The buckets that are to be read, if entries have moved since the barrier.
    pub due: Option<Vec<u64>>,
    /// The table is read.
    pub is_read: bool,
    /// What was kept is read, too.
    pub is_done: bool,
    /// Keys that have changed, and what they had; `None` if they were not there.
    pub kept: SplitTable<(K, Option<V>)>,
    pub copies: Copies<K, V>,
    /// The table, once it was cleared, and how many of its buckets are emptied since that is not wanted any more.
    pub left: Option<Left<S, S::Marks>>,
    dropped: usize,
    /// Booked as buffers.
    booked: u64,
    /// Entries that are to be written, at most.
    pub records: u64,
    /// Entries with records in segments that are written anew are to be read too.
    pub naming: Naming,
    /// Records that were given to be written.
    pub encoded: u64,
}

/// A table that was cleared, what was remembered of it, and what is booked for it.
#[derive(Debug)]
pub(super) struct Left<S, R> {
    pub table: S,
    pub marks: R,
    /// Beside what the table has booked itself.
    pub index: u64,
    pub values: u64,
}

/// What a table remembers of its checkpoints.
pub(super) struct Memory<'a, R> {
    pub marks: &'a mut R,
    pub files: &'a mut HeapFiles,
}

/// A table, and how often entries have moved there.
pub(super) struct Source<'a, S> {
    pub entries: &'a S,
    pub moved: u64,
}

impl<K, V, S: Entries<K, V>> Reading<K, V, S> {
    /// Of all entries.
    pub fn of_all(account: Rc<Account>, range: HashRange, records: u64) -> Self {
        Self {
            next: 0,
            ahead: None,
            reads_all: true,
            due: None,
            is_read: false,
            is_done: false,
            kept: SplitTable::new(account.clone(), range),
            copies: Copies::new(account.clone(), records),
            left: None,
            dropped: 0,
            booked: 0,
            records,
            naming: Naming::first(account.clone()),
            encoded: 0,
            account,
        }
    }

    /// Whether bits tell what is to be read.
    pub fn has_bits(&self) -> bool {
        self.due.is_some() || !self.reads_all
    }

    /// Whether the entry with this hash, in a bucket, is to be read. Its word is merged.
    pub fn is_due(&self, entries: &S, (bucket, hash): (usize, u64), marks: &S::Marks) -> bool {
        !entries.is_passed(bucket, hash, self.next) && self.is_due_of_next(bucket, marks)
    }

    /// Whether the entry in a bucket that was not passed is to be read. Its word is merged.
    fn is_due_of_next(&self, bucket: usize, marks: &S::Marks) -> bool {
        if let Some(due) = &self.due {
            return due[bucket / 64] >> (bucket % 64) & 1 == 1;
        }
        let is_anew = || !self.naming.anew.is_empty() && self.naming.is_anew(marks.place(bucket));
        self.reads_all || marks.is_captured(bucket) || is_anew()
    }

    /// Whether a key that is added has to be noted as one that the checkpoint does not have.
    pub fn wants_new(&self) -> bool {
        !self.has_bits()
    }

    /// An entry in a bucket is kept: what comes to its place is not to be read.
    pub fn pass(&mut self, bucket: usize, marks: &mut S::Marks) {
        if let Some(due) = &mut self.due {
            due[bucket / 64] &= !(1 << (bucket % 64));
        }
        marks.settle(bucket);
    }

    /// Whether each bucket has to be looked at, and not only those with a bit.
    fn looks_at_each(&self) -> bool {
        let needs_places = !self.naming.anew.is_empty() || !self.naming.sets.is_empty();
        self.reads_all || self.due.is_some() || needs_places
    }

    /// Passes over stretches of which no bit is set, `most` of them at most, but not over the last one; says how many.
    pub fn pass_clear(&mut self, entries: &S, marks: &mut S::Marks, most: u64) -> u64 {
        if self.is_read || self.left.is_some() || self.looks_at_each() {
            return 0;
        }
        for passed in 0..most {
            let Stretch { mut buckets, after } = entries.stretch(self.next);
            let mut is_clear = || {
                buckets.by_ref().step_by(64).all(|bucket| {
                    marks.merge(bucket);
                    marks.captured_word(bucket) == 0
                })
            };
            match after {
                Some(next) if is_clear() => self.next = next,
                _ => return passed,
            }
            self.look_ahead(entries, marks);
        }
        most
    }

    /// Brings the entries near that are read soon, and their places.
    fn look_ahead(&mut self, entries: &S, marks: &S::Marks) {
        let from = self.ahead.take().filter(|ahead| *ahead > self.next);
        let stretches = if from.is_some() { 1 } else { STRETCHES_AHEAD };
        let mut next = Some(from.unwrap_or(self.next));
        for _ in 0..stretches {
            let Some(Stretch { buckets, after }) = next.map(|next| entries.stretch(next)) else {
                return;
            };
            for first in buckets.clone().step_by(64) {
                // Of a word that is not merged yet some bits may be missing: they are read without this.
                let mut word = marks.captured_word(first);
                while word != 0 {
                    let bucket = first + word.trailing_zeros() as usize;
                    if bucket >= buckets.end {
                        break;
                    }
                    word &= word - 1;
                    entries.look_ahead(bucket);
                    marks.look_ahead_at_record(bucket);
                }
            }
            next = after;
        }
        self.ahead = next;
    }

    /// What reading the next part is worth, in buckets that are read in order.
    pub fn cost(&self, entries: &S, marks: &S::Marks) -> u64 {
        if self.is_read {
            return KEPT as u64;
        }
        let buckets = self.stretch(entries).buckets;
        let all = buckets.len() as u64;
        if self.left.is_some() || self.looks_at_each() {
            return all;
        }
        let due =
            buckets.step_by(64).map(|first| u64::from(marks.captured_word(first).count_ones()));
        all.min(1 + SPARSE_COST * due.sum::<u64>())
    }

    /// Copies for which there has to be room before the next part is read.
    pub fn room(&self, entries: &S) -> usize {
        if self.is_read { KEPT } else { self.stretch(entries).buckets.len().min(KEPT) }
    }

    /// The part of the table that is read next.
    fn stretch(&self, entries: &S) -> Stretch {
        self.left.as_ref().map_or(entries, |left| &left.table).stretch(self.next)
    }

    pub fn book(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Buffers, bytes);
        self.booked += bytes;
    }

    /// Of a checkpoint that was given up: drops a bounded part of what it has kept; says whether there was something. Values
    /// that panic when they are dropped do so for nobody.
    pub fn drop_some(&mut self) -> bool {
        if self.copies.drop_one() || self.naming.sets.drop_one() {
            return true;
        }
        let guarded = |act: &mut dyn FnMut()| drop(catch_unwind(AssertUnwindSafe(act)));
        if let Some(part) = self.kept.take_part() {
            let mut part = Some(part);
            guarded(&mut || drop(part.take()));
            return true;
        }
        let Some(Left { table, .. }) = &mut self.left else { return false };
        let mut drop_it = |entry: (K, V)| {
            let mut entry = Some(entry);
            guarded(&mut || drop(entry.take()));
        };
        if !table.drop_some(&mut self.dropped, &mut drop_it) {
            self.drop_left();
        }
        true
    }

    /// Drops the table that was cleared.
    pub fn drop_left(&mut self) {
        if let Some(Left { table, index, values, .. }) = self.left.take() {
            drop(table);
            self.account.release(MemoryKind::Index, index);
            self.account.release(MemoryKind::Values, values);
        }
    }

    /// The place of a record that was written, for a table that remembers it.
    fn place_of(&mut self, at: PlacedAt, memory: &mut Memory<'_, S::Marks>) -> Place {
        if !memory.marks.is_on() {
            return Place::NONE;
        }
        self.naming.place_of(at, memory.files)
    }

    /// The entry in a bucket has a newer record, there, or is on its way.
    #[inline]
    pub fn outdate(
        &mut self,
        bucket: usize,
        newer: Place,
        memory: &mut Memory<'_, S::Marks>,
    ) -> Result<()> {
        let older = memory.marks.take(bucket);
        memory.marks.set_place(bucket, newer);
        self.naming.outdate(older, memory.files)
    }
}

impl<K, V, S: Entries<K, V>> Drop for Reading<K, V, S> {
    fn drop(&mut self) {
        self.drop_left();
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

impl<K: Key, V: 'static, S: Entries<K, V>> Reading<K, V, S> {
    /// Reads the next stretch of the table, or some of what was kept, into the writer's batch, or as copies if there is
    /// none; there is [room](Reading::room) for them. Says whether there were any.
    pub fn read_part<M: Kind<K, V>>(
        &mut self,
        source: Source<'_, S>,
        memory: Memory<'_, S::Marks>,
        own: Option<&mut Paced>,
    ) -> Result<bool> {
        if self.is_read {
            self.is_done = !self.read_kept::<M>(source.entries, memory, own)?;
            return Ok(!self.is_done);
        }
        let read = match self.left.take() {
            None => self.read_buckets::<M>(source.entries, memory, own),
            Some(mut left) => {
                let Left { table, marks, .. } = &mut left;
                let memory = Memory { marks, files: memory.files };
                let read = self.read_buckets::<M>(table, memory, own);
                self.left = Some(left);
                read
            }
        };
        if self.is_read {
            self.drop_left();
            self.due = None;
        }
        read.map(|()| true)
    }

    fn read_buckets<M: Kind<K, V>>(
        &mut self,
        table: &S,
        mut memory: Memory<'_, S::Marks>,
        mut own: Option<&mut Paced>,
    ) -> Result<()> {
        let Stretch { buckets, after } = table.stretch(self.next);
        let looks_at_each = self.looks_at_each();
        if !looks_at_each {
            self.look_ahead(table, memory.marks);
        }
        for first in buckets.clone().step_by(64) {
            memory.marks.merge(first);
            let mut word = if looks_at_each { u64::MAX } else { memory.marks.captured_word(first) };
            while word != 0 {
                let bucket = first + word.trailing_zeros() as usize;
                if bucket >= buckets.end {
                    break;
                }
                word &= word - 1;
                if !self.is_due_of_next(bucket, memory.marks) {
                    self.naming.sets.insert_at(memory.marks.place(bucket));
                    continue;
                }
                let Some((key, value)) = table.entry(bucket) else { continue };
                // Where there are bits, they are of what was not kept.
                let is_kept = |kept: &(K, Option<V>)| kept.0 == *key;
                if self.has_bits() || self.kept.find(key.key_hash(), is_kept).is_none() {
                    self.take::<M>(bucket, (key, value), &mut memory, own.as_deref_mut())?;
                }
            }
        }
        match after {
            Some(next) => self.next = next,
            None => self.is_read = true,
        }
        Ok(())
    }

    /// Takes the entry in a bucket.
    fn take<M: Kind<K, V>>(
        &mut self,
        bucket: usize,
        (key, value): (&K, &V),
        memory: &mut Memory<'_, S::Marks>,
        own: Option<&mut Paced>,
    ) -> Result<()> {
        let Some(own) = own else {
            // Both may panic, and then nothing has changed.
            let (key, copy) = (key.clone(), M::copy(value).expect("what is stored can be copied"));
            self.encoded += 1;
            memory.marks.owe(bucket);
            self.outdate(bucket, Place::NONE, memory)?;
            self.copies.push(Some(bucket), key, copy);
            return Ok(());
        };
        self.encoded += 1;
        let at = M::push(own, key, value)?;
        let newer = self.place_of(at, memory);
        self.outdate(bucket, newer, memory)?;
        memory.marks.settle(bucket);
        Ok(())
    }

    /// Takes a short entry that is due and about to change, before it is its turn: there is [room](Copies::has_room_left) for
    /// it, and a bit that says that it was taken.
    pub fn take_early<M: Kind<K, V>>(
        &mut self,
        bucket: usize,
        (key, value): &(K, V),
        memory: &mut Memory<'_, S::Marks>,
    ) -> Result<()> {
        // Both may panic, and then nothing has changed.
        let (key, copy) = (key.clone(), M::copy(value).expect("what is stored can be copied"));
        self.encoded += 1;
        self.pass(bucket, memory.marks);
        // It has no record until its copy is written.
        memory.marks.change(bucket);
        self.outdate(bucket, Place::NONE, memory)?;
        self.copies.push(Some(bucket), key, copy);
        Ok(())
    }

    fn read_kept<M: Kind<K, V>>(
        &mut self,
        entries: &S,
        mut memory: Memory<'_, S::Marks>,
        mut own: Option<&mut Paced>,
    ) -> Result<bool> {
        let Some(part) = self.kept.take_part() else { return Ok(false) };
        for (key, before) in part {
            let Some(before) = before else { continue };
            self.encoded += 1;
            let Some(own) = &mut own else {
                self.copies.push(None, key, before);
                continue;
            };
            let at = M::push(own, &key, &before)?;
            let place = self.place_of(at, &mut memory);
            let bucket = entries.bucket(key.key_hash(), |(known, _)| *known == key);
            self.arrive(bucket, place, &mut memory);
        }
        Ok(true)
    }

    /// An entry that was on its way has its record, there. It may be gone, or have changed.
    fn arrive(&mut self, bucket: Option<usize>, place: Place, memory: &mut Memory<'_, S::Marks>) {
        match bucket {
            Some(bucket) if memory.marks.is_on() => {
                memory.marks.set_place(bucket, place);
                memory.marks.settle(bucket);
            }
            _ => memory.files.note_dead(place),
        }
    }

    /// Takes back the chunk that the helper has written, and has the table remember where its records are.
    pub fn settle(
        &mut self,
        source: &Source<'_, S>,
        mut memory: Memory<'_, S::Marks>,
    ) -> Result<()> {
        let Some(chunk) = self.copies.take_written()? else { return Ok(()) };
        // Of a table that was cleared nothing is remembered.
        let copied = if memory.marks.is_on() { &chunk.entries[..] } else { &[] };
        for (nth, copied) in copied.iter().enumerate() {
            let later = chunk.entries.get(nth + COPIES_AHEAD);
            if let Some(bucket) = later.and_then(|later| chunk.bucket_of(later, source.moved)) {
                source.entries.look_ahead(bucket);
                memory.marks.look_ahead_at_record(bucket);
            }
            let place = self.place_of(copied.at, &mut memory);
            let is_it = |(key, _): &(K, V)| *key == copied.key;
            let bucket = match chunk.bucket_of(copied, source.moved) {
                Some(bucket) => source.entries.entry(bucket).is_some_and(is_it).then_some(bucket),
                None => source.entries.bucket(copied.key.key_hash(), is_it),
            };
            self.arrive(bucket, place, &mut memory);
        }
        self.copies.give_back(chunk);
        Ok(())
    }
}
