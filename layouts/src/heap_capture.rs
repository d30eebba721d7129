//! Taking a checkpoint of a heap table while it changes.
//!
//! At the barrier nothing is copied. The table is read in steps, bucket by bucket, and the helper
//! writes what was read; who changes an entry that was not read yet keeps the old one, who adds a key
//! notes that it is new. Every entry is written: nothing of an earlier checkpoint is used again.
//!
//! What it keeps true:
//! - What was read and what was kept are together the entries of the barrier, each once.
//! - A table that grows meanwhile knows which of its entries are still to be read: a bit for each
//!   bucket. One that is cleared is read to its end before it is dropped.

use std::rc::Rc;

use alluvium_pagestore::{Account, Key, Lookup, MemoryKind, Result, SegmentInfo, StateImage};
use hashbrown::HashTable;

use crate::heap::{HeapTable, Kind};
use crate::paced::Paced;
use crate::split_table::{HashRange, SplitTable};
use crate::stepped::{InSteps, Stepped};
use crate::table::StateContext;

/// Buckets read between two looks at the room in the batch.
const BUCKETS: usize = 64;
/// Bytes that are left free beside what is kept.
const FREE_BYTES: u64 = 4 << 10;

/// A checkpoint being taken.
#[derive(Debug)]
pub struct HeapCapture<K, V> {
    stepped: Stepped,
    /// At the barrier.
    entries: u64,
    reading: Reading<K, V>,
}

/// What is to be read still.
#[derive(Debug)]
struct Reading<K, V> {
    account: Rc<Account>,
    /// Buckets before this one are read.
    next: usize,
    /// The buckets that are to be read, if entries have moved since the barrier.
    due: Option<Vec<u64>>,
    /// The table is read; what was kept is written.
    is_read: bool,
    /// Keys that have changed, and what they had; `None` if they were not there.
    kept: SplitTable<(K, Option<V>)>,
    /// The table, once it was cleared.
    left: Option<Left<K, V>>,
    /// Booked as buffers.
    booked: u64,
}

/// A table that was cleared, and what is booked for it.
#[derive(Debug)]
struct Left<K, V> {
    table: HashTable<(K, V)>,
    index: u64,
    values: u64,
}

impl<K, V> HeapCapture<K, V> {
    /// Whether changes of the table in use concern it.
    pub(super) fn is_reading(&self) -> bool {
        !self.reading.is_read && self.reading.left.is_none() && !self.stepped.is_lost()
    }

    /// Bytes of values that a cleared table has still.
    pub fn values_left(&self) -> u64 {
        self.reading.left.as_ref().map_or(0, |left| left.values)
    }
}

impl<K, V> Reading<K, V> {
    fn is_due(&self, bucket: usize) -> bool {
        let due = |due: &Vec<u64>| due[bucket / 64] >> (bucket % 64) & 1 == 1;
        bucket >= self.next && self.due.as_ref().is_none_or(due)
    }

    fn book(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Buffers, bytes);
        self.booked += bytes;
    }

    /// Drops the table that was cleared.
    fn drop_left(&mut self) {
        if let Some(Left { table, index, values }) = self.left.take() {
            drop(table);
            self.account.release(MemoryKind::Index, index);
            self.account.release(MemoryKind::Values, values);
        }
    }
}

impl<K, V> Drop for Reading<K, V> {
    fn drop(&mut self) {
        self.drop_left();
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

impl<K: Key, V: 'static> Reading<K, V> {
    /// Reads some buckets of the `entries`, or some of what was kept; says whether there were any.
    fn read_part<M: Kind<K, V>>(
        &mut self,
        entries: &HashTable<(K, V)>,
        own: &mut Paced,
    ) -> Result<bool> {
        if !self.is_read {
            let table = self.left.as_ref().map_or(entries, |left| &left.table);
            let end = table.num_buckets().min(self.next + BUCKETS);
            for bucket in self.next..end {
                let entry = if self.is_due(bucket) { table.get_bucket(bucket) } else { None };
                let Some(entry) = entry else { continue };
                if self.kept.find(entry.0.key_hash(), |kept| kept.0 == entry.0).is_none() {
                    M::push(own, &entry.0, &entry.1)?;
                }
            }
            self.next = end;
            if end == table.num_buckets() {
                self.drop_left();
                self.due = None;
                self.is_read = true;
            }
            return Ok(true);
        }
        let Some(part) = self.kept.take_part() else { return Ok(false) };
        for (key, before) in part {
            before.iter().try_for_each(|before| M::push(own, &key, before))?;
        }
        Ok(true)
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>> InSteps for HeapTable<K, V, M> {
    fn context(&self) -> &StateContext {
        &self.context
    }

    /// Cost: O(1).
    fn begin_capture(&mut self) -> Result<()> {
        M::pace(&self.context)?;
        let range = HashRange::of(&self.context.owned, self.context.key_groups);
        let account = self.context.account.clone();
        self.capture = Some(Box::new(HeapCapture {
            stepped: Stepped::new(&self.context)?,
            entries: self.entries.len() as u64,
            reading: Reading {
                next: 0,
                due: None,
                is_read: false,
                kept: SplitTable::new(account.clone(), range),
                left: None,
                booked: 0,
                account,
            },
        }));
        Ok(())
    }

    fn stepped(&mut self) -> Option<&mut Stepped> {
        self.capture.as_mut().map(|capture| &mut capture.stepped)
    }

    fn share(&mut self) -> Result<Option<(Vec<SegmentInfo>, u64)>> {
        let pace = M::pace(&self.context)?;
        let Some(capture) = &mut self.capture else { return Ok(None) };
        let HeapCapture { stepped, entries, reading } = &mut **capture;
        let read = |own: &mut Paced| reading.read_part::<M>(&self.entries, own);
        let sealed = stepped.step(&self.context, pace, read)?;
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

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// Keeps what a key has, which is about to change; or that it has nothing, if it is added.
    #[cold]
    #[inline(never)]
    pub(super) fn keep<Q: Lookup<K> + ?Sized>(&mut self, hash: u64, key: &Q, adds: bool) {
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            return;
        };
        let bucket = self.entries.find_bucket_index(hash, |(known, _)| key.is(known));
        let capture = &mut capture.reading;
        let wanted = match bucket {
            Some(bucket) => capture.is_due(bucket),
            // Once entries have moved, those that are to be read are known.
            None => adds && capture.due.is_none(),
        };
        if !wanted || capture.kept.find(hash, |kept| key.is(&kept.0)).is_some() {
            return;
        }
        let entry = bucket.and_then(|bucket| self.entries.get_bucket(bucket));
        let before = entry.and_then(|(_, value)| M::copy(value));
        let key = key.to_owned();
        let bytes = match &before {
            Some(value) => M::heap_bytes(&key, value),
            None => key.heap_bytes() as u64,
        };
        let room = capture.account.available() >= bytes + FREE_BYTES;
        if room {
            capture.book(bytes);
        }
        let made =
            room && capture.kept.insert(hash, |kept| kept.0.key_hash(), || (key, before)).is_ok();
        if !made {
            return self.read_rest();
        }
        if let (Some(due), Some(bucket)) = (&mut capture.due, bucket) {
            // What comes to its place is not to be read.
            due[bucket / 64] &= !(1 << (bucket % 64));
        }
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    pub(super) fn read_rest(&mut self) {
        let (Some(capture), Ok(pace)) = (&mut self.capture, M::pace(&self.context)) else { return };
        let (HeapCapture { stepped, reading, .. }, table) = (&mut **capture, &self.entries);
        stepped.read_rest(&self.context, pace, |own| {
            Ok(!reading.is_read && reading.read_part::<M>(table, own)?)
        });
        if stepped.is_lost() {
            reading.drop_left();
        }
    }

    /// Moves the entries to a table twice as large, if a checkpoint is reading them, and says whether
    /// it did. What that takes is booked, and as much left as is needed `beside` it.
    pub(super) fn grow_captured(&mut self, beside: u64) -> bool {
        if !self.capture.as_ref().is_some_and(|capture| capture.is_reading()) {
            return false;
        }
        let buckets = (self.entries.num_buckets() * 2).max(16);
        let bits = (buckets / 8 + 64) as u64;
        if self.context.account.available() < beside + bits + FREE_BYTES {
            self.read_rest();
            return false;
        }
        let capture = &mut self.capture.as_mut().expect("looked at above").reading;
        capture.book(bits);
        let mut grown = HashTable::with_capacity((2 * self.entries.len()).max(8));
        let mut due = vec![0u64; grown.num_buckets().div_ceil(64)];
        let mut old = std::mem::take(&mut self.entries);
        for bucket in 0..old.num_buckets() {
            let Ok(entry) = old.get_bucket_entry(bucket) else { continue };
            let entry = entry.remove().0;
            let hash = entry.0.key_hash();
            let is_due = capture.is_due(bucket)
                && capture.kept.find(hash, |kept| kept.0 == entry.0).is_none();
            let place = grown.insert_unique(hash, entry, |(key, _)| key.key_hash()).bucket_index();
            if is_due {
                due[place / 64] |= 1 << (place % 64);
            }
        }
        self.entries = grown;
        capture.next = 0;
        capture.due = Some(due);
        true
    }

    /// The table is cleared: says whether a checkpoint takes it, with what is booked for it.
    pub(super) fn leave(&mut self) -> bool {
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            return false;
        };
        let values = self.context.account.used_for(MemoryKind::Values);
        let table = std::mem::take(&mut self.entries);
        let index = std::mem::take(&mut self.table_bytes);
        capture.reading.left = Some(Left { table, index, values });
        true
    }
}
