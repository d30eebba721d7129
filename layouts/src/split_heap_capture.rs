//! Taking a checkpoint of a [split heap table](crate::split_heap) while it changes.
//!
//! At the barrier nothing is copied. The table is read part by part, in the order of hashes, and who
//! changes an entry that was not read yet keeps the old one: see [`Snapshot`]. Every entry is written.
//! A table that is cleared is read to its end before it is dropped.

use std::rc::Rc;

use alluvium_pagestore::{
    Account, Key, Lookup, MemoryKind, Result, SegmentInfo, State, StateImage,
};

use crate::full_image::pace;
use crate::paced::Paced;
use crate::snapshot::Snapshot;
use crate::split_heap::{SplitHeapTable, hash_of};
use crate::split_table::SplitTable;
use crate::stepped::{InSteps, Stepped};
use crate::table::StateContext;

/// A checkpoint being taken.
#[derive(Debug)]
pub struct SplitCapture<K: Key, V: State> {
    stepped: Stepped,
    /// At the barrier.
    entries: u64,
    reading: Reading<K, V>,
}

/// What is to be read still.
#[derive(Debug)]
struct Reading<K: Key, V: State> {
    account: Rc<Account>,
    snapshot: Snapshot<K, (K, V)>,
    /// The table, once it was cleared, and the bytes of its values.
    left: Option<(SplitTable<(K, V)>, u64)>,
}

impl<K: Key, V: State> SplitCapture<K, V> {
    /// Whether changes of the table in use concern it.
    fn is_reading(&self) -> bool {
        let Reading { snapshot, left, .. } = &self.reading;
        snapshot.next().is_some() && left.is_none() && !self.stepped.is_lost()
    }

    /// Bytes of values that a cleared table has still.
    pub fn values_left(&self) -> u64 {
        self.reading.left.as_ref().map_or(0, |(_, values)| *values)
    }
}

impl<K: Key, V: State> Reading<K, V> {
    /// Reads a part of the `table`, or of what was kept; says whether there was one.
    fn read_part(&mut self, table: &SplitTable<(K, V)>, own: &mut Paced) -> Result<bool> {
        let push = |entry: &(K, V)| own.push(hash_of(entry), &entry.0, &entry.1);
        let Some(place) = self.snapshot.next() else { return self.snapshot.take_kept(push) };
        let table = self.left.as_ref().map_or(table, |(left, _)| left);
        let (part, end) = table.part_at(place);
        self.snapshot.take(part, end, push)?;
        if end.is_none() {
            self.drop_left();
        }
        Ok(true)
    }

    fn drop_left(&mut self) {
        if let Some((table, values)) = self.left.take() {
            drop(table);
            self.account.release(MemoryKind::Values, values);
        }
    }
}

impl<K: Key, V: State> Drop for Reading<K, V> {
    fn drop(&mut self) {
        self.drop_left();
    }
}

impl<K: Key, V: State> InSteps for SplitHeapTable<K, V> {
    fn context(&self) -> &StateContext {
        &self.context
    }

    /// Cost: O(1).
    fn begin_capture(&mut self) -> Result<()> {
        let account = self.context.account.clone();
        let snapshot = Snapshot::new(&account, self.range);
        self.capture = Some(Box::new(SplitCapture {
            stepped: Stepped::new(&self.context)?,
            entries: self.entries.len(),
            reading: Reading { account, snapshot, left: None },
        }));
        Ok(())
    }

    fn stepped(&mut self) -> Option<&mut Stepped> {
        self.capture.as_mut().map(|capture| &mut capture.stepped)
    }

    fn share(&mut self) -> Result<Option<(Vec<SegmentInfo>, u64)>> {
        let Some(capture) = &mut self.capture else { return Ok(None) };
        let SplitCapture { stepped, entries, reading } = &mut **capture;
        let read = |own: &mut Paced| reading.read_part(&self.entries, own);
        let sealed = stepped.step(&self.context, pace::<K, V>(&self.context), read)?;
        Ok(sealed.map(|sealed| (sealed, *entries)))
    }

    fn end_capture(&mut self) {
        self.capture = None;
    }

    fn taken(&mut self, image: &StateImage) {
        self.codec_calls += image.entries;
        self.images.taken(image);
    }
}

impl<K: Key, V: State> SplitHeapTable<K, V> {
    /// Keeps what a key has, which is about to change; or that it has nothing, if it is added.
    #[cold]
    #[inline(never)]
    pub(super) fn keep<Q: Lookup<K> + ?Sized>(&mut self, hash: u64, key: &Q, adds: bool) {
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            return;
        };
        let snapshot = &mut capture.reading.snapshot;
        if !snapshot.wants(hash, key) {
            return;
        }
        let before = self.entries.find(hash, |(known, _)| key.is(known));
        if (before.is_some() || adds) && !snapshot.keep(hash, key, before) {
            self.read_rest();
        }
    }

    /// Keeps the entry that is about to be removed by its hash.
    pub(super) fn keep_of_hash(&mut self, hash: u64) {
        if self.capture.as_ref().is_some_and(|capture| capture.is_reading()) {
            let found = self.entries.find(hash, |entry| hash_of(entry) == hash);
            if let Some(key) = found.map(|(key, _)| key.clone()) {
                self.keep(hash, &key, false);
            }
        }
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    pub(super) fn read_rest(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        let (SplitCapture { stepped, reading, .. }, table) = (&mut **capture, &self.entries);
        stepped.read_rest(&self.context, pace::<K, V>(&self.context), |own| {
            Ok(reading.snapshot.next().is_some() && reading.read_part(table, own)?)
        });
        if stepped.is_lost() {
            reading.snapshot.lose();
            reading.drop_left();
        }
    }

    /// The table was cleared: gives it to the checkpoint that reads it, with what its values take, or
    /// back.
    pub(super) fn leave(
        &mut self,
        table: SplitTable<(K, V)>,
        values: u64,
    ) -> Option<SplitTable<(K, V)>> {
        match self.capture.as_mut().filter(|capture| capture.is_reading()) {
            Some(capture) => {
                capture.reading.left = Some((table, values));
                None
            }
            None => Some(table),
        }
    }
}
