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

use alluvium_pagestore::{
    Account, Error, ErrorKind, Key, Lookup, MemoryKind, Result, SegmentInfo, StateImage,
    fingerprint,
};
use hashbrown::HashTable;

use crate::heap::{HeapTable, Kind};
use crate::paced::Paced;
use crate::split_table::{HashRange, SplitTable};

/// Buckets read between two looks at the room in the batch.
const BUCKETS: usize = 64;
/// Bytes that are left free beside what is kept.
const FREE_BYTES: u64 = 4 << 10;

/// A checkpoint being taken.
#[derive(Debug)]
pub struct HeapCapture<K, V> {
    account: Rc<Account>,
    /// At the barrier.
    entries: u64,
    /// Buckets before this one are read.
    next: usize,
    /// The buckets that are to be read, if entries have moved since the barrier.
    due: Option<Vec<u64>>,
    /// Keys that have changed, and what they had; `None` if they were not there.
    kept: SplitTable<(K, Option<V>)>,
    /// The table, once it was cleared.
    left: Option<Left<K, V>>,
    step: Step,
    own: Option<Paced>,
    /// Booked as buffers.
    booked: u64,
    lost: bool,
}

/// A table that was cleared, and what is booked for it.
#[derive(Debug)]
struct Left<K, V> {
    table: HashTable<(K, V)>,
    index: u64,
    values: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Reading,
    /// What was kept is written.
    Keeping,
    Ending,
}

impl<K, V> HeapCapture<K, V> {
    fn is_due(&self, bucket: usize) -> bool {
        let due = |due: &Vec<u64>| due[bucket / 64] >> (bucket % 64) & 1 == 1;
        bucket >= self.next && self.due.as_ref().is_none_or(due)
    }

    /// Whether changes of the table in use concern it.
    pub(super) fn is_reading(&self) -> bool {
        self.step == Step::Reading && self.left.is_none() && !self.lost
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

    /// Bytes of values that a cleared table has still.
    pub fn values_left(&self) -> u64 {
        self.left.as_ref().map_or(0, |left| left.values)
    }
}

impl<K, V> Drop for HeapCapture<K, V> {
    fn drop(&mut self) {
        self.drop_left();
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

impl<K: Key, V: 'static, M: Kind<K, V>> HeapTable<K, V, M> {
    /// Everything in the table now is of the checkpoint. Cost: O(1).
    pub(super) fn begin_capture(&mut self) -> Result<()> {
        M::pace(&self.context)?;
        self.context.segment_store()?;
        let range = HashRange::of(&self.context.owned, self.context.key_groups);
        let account = self.context.account.clone();
        self.capture = Some(Box::new(HeapCapture {
            entries: self.entries.len() as u64,
            next: 0,
            due: None,
            kept: SplitTable::new(account.clone(), range),
            left: None,
            step: Step::Reading,
            own: None,
            booked: 0,
            lost: false,
            account,
        }));
        Ok(())
    }

    /// Takes a checkpoint in one call.
    pub(super) fn take_at_once(&mut self) -> Result<StateImage> {
        self.begin_capture()?;
        loop {
            match self.continue_capture() {
                Ok(Some(image)) => return Ok(image),
                Ok(None) => {
                    if let Some(own) = self.capture.as_mut().and_then(|c| c.own.as_mut()) {
                        own.pause();
                    }
                }
                Err(error) => {
                    self.capture = None;
                    return Err(error);
                }
            }
        }
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn continue_capture(&mut self) -> Result<Option<StateImage>> {
        let stepped = self.step();
        stepped.map_err(|error| error.with("state", &self.context.name))
    }

    fn step(&mut self) -> Result<Option<StateImage>> {
        let ready = self.own()?.is_ready()?;
        let capture = self.capture.as_mut().expect("its writer is there");
        if capture.lost {
            let message = "a checkpoint had to be written at once, which failed; begin it again";
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        if !ready {
            return Ok(None);
        }
        if capture.step == Step::Ending {
            let sealed = self.own()?.take_sealed();
            let capture = self.capture.take().expect("its writer is there");
            let segments = sealed.iter().map(SegmentInfo::all_live).collect();
            let image = StateImage { entries: capture.entries, segments, ..StateImage::default() };
            self.codec_calls += image.entries;
            self.images.taken(&image);
            return Ok(Some(image));
        }
        while self.own()?.has_room() {
            if !self.read_part()? {
                self.own()?.submit_end();
                self.capture.as_mut().expect("its writer is there").step = Step::Ending;
                return Ok(None);
            }
        }
        self.own()?.submit();
        Ok(None)
    }

    /// The checkpoint's writer, made when it is needed.
    fn own(&mut self) -> Result<&mut Paced> {
        let Some(capture) = &mut self.capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        if capture.own.is_none() {
            let pace = M::pace(&self.context)?;
            let bytes = pace.memory_bytes();
            self.context.account.ensure(bytes, "a checkpoint's buffer")?;
            capture.book(bytes);
            let (helper, store) = (self.context.helper.clone(), self.context.segment_store()?);
            let state = fingerprint(&self.context.name);
            capture.own = Some(Paced::new(helper, store.clone(), state, pace));
        }
        Ok(capture.own.as_mut().expect("made above"))
    }

    /// Reads some buckets, or some of what was kept; says whether there were any.
    fn read_part(&mut self) -> Result<bool> {
        let capture = &mut **self.capture.as_mut().expect("a checkpoint is taken");
        if capture.step == Step::Reading {
            let table = capture.left.as_ref().map_or(&self.entries, |left| &left.table);
            let end = table.num_buckets().min(capture.next + BUCKETS);
            for bucket in capture.next..end {
                let entry = if capture.is_due(bucket) { table.get_bucket(bucket) } else { None };
                let Some(entry) = entry else { continue };
                let hash = entry.0.key_hash();
                if capture.kept.find(hash, |kept| kept.0 == entry.0).is_none() {
                    M::push(capture.own.as_mut().expect("made before"), &entry.0, &entry.1)?;
                }
            }
            capture.next = end;
            if end == table.num_buckets() {
                capture.drop_left();
                capture.due = None;
                capture.step = Step::Keeping;
            }
            return Ok(true);
        }
        let Some(part) = capture.kept.take_part() else { return Ok(false) };
        for (key, before) in part {
            if let Some(before) = before {
                M::push(capture.own.as_mut().expect("made before"), &key, &before)?;
            }
        }
        Ok(true)
    }

    /// Keeps what a key has, which is about to change; or that it has nothing, if it is added.
    #[cold]
    #[inline(never)]
    pub(super) fn keep<Q: Lookup<K> + ?Sized>(&mut self, hash: u64, key: &Q, adds: bool) {
        let Some(capture) = self.capture.as_mut().filter(|capture| capture.is_reading()) else {
            return;
        };
        let bucket = self.entries.find_bucket_index(hash, |(known, _)| key.is(known));
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
        let mut read = || -> Result<()> {
            self.own()?.wait()?;
            while self.capture.as_ref().is_some_and(|c| c.step == Step::Reading) {
                self.read_part()?;
            }
            Ok(())
        };
        if read().is_err() {
            if let Some(capture) = &mut self.capture {
                capture.lost = true;
                capture.drop_left();
            }
        }
    }

    /// Moves the entries to a table twice as large, if a checkpoint is reading them, and says whether
    /// it did. What that takes is booked.
    pub(super) fn grow_captured(&mut self) -> bool {
        if !self.capture.as_ref().is_some_and(|capture| capture.is_reading()) {
            return false;
        }
        let buckets = (self.entries.num_buckets() * 2).max(16);
        let bits = (buckets / 8 + 64) as u64;
        if self.context.account.available() < bits + FREE_BYTES {
            self.read_rest();
            return false;
        }
        let capture = self.capture.as_mut().expect("looked at above");
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
        capture.left = Some(Left { table, index, values });
        true
    }
}
