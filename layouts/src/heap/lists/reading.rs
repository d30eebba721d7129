//! What a checkpoint of lists on the heap has still to read, and where that goes.
//!
//! Buckets are read one after the other, part by part in the order of hashes. Of each list what has come is written, and
//! what has to be written with it (see `heap/lists/records.rs`). A list that grows before it was read is *noted*: how many
//! elements it had, which are the first of it. One that is cleared is handed over as it is; of one that
//! moves what is to be written is copied. What is noted of a part is written after it, a record at a time, and so are lists
//! that the batch had no room for.
//!
//! What it keeps true:
//! - Each list of the barrier is written once, in order of its elements; a note tells of what is not there any more.
//! - A bucket that is purged stays until it was read; the memory it holds is booked as before.
//! - What was purged before the barrier, and stands there still, is not in the image: it is dropped by the first shares,
//!   a part with each.
//! - Records that are written anew are dead for this checkpoint; those whose list goes meanwhile, for the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use alluvium_pagestore::{Account, HeapSize, Key, Lookup, MemoryKind, Result, State, Time};

use crate::checkpoint::Recording;
use crate::heap::entry_table_unsafe::KeyedEntry;
use crate::heap::hash_range::HashRange;
use crate::heap::lists::records::{ListDelta, ListRecord, ListRecords};
use crate::heap::lists::{HeapList, ListBucket, add_record, drop_part};
use crate::heap::record_position::RecordPosition;
use crate::heap::snapshot::Snapshot;
use crate::restore::full_image::name_large;
use crate::support::booked::Booked;
use crate::support::by_time_unsafe::ByTime;

/// Most elements of a list in one record.
pub(crate) const RECORD_ELEMENTS: usize = 1024;

/// What is to be read still.
#[derive(Debug)]
pub(crate) struct ListsReading<K, E> {
    pub range: HashRange,
    /// The buckets of the barrier.
    pub times: Vec<Time>,
    /// Of these, the one that is read next.
    pub next: usize,
    /// Buckets that were purged and are not read.
    pub gone: ByTime<ListBucket<K, E>>,
    /// Buckets that were purged before the barrier, to be dropped.
    pub purged: Vec<ListBucket<K, E>>,
    /// Bytes after which a record ends.
    pub record_bytes: usize,
    /// What is left is read in one call: nothing is noted for later.
    pub at_once: bool,
    pub booked: Booked,
}

/// What is read.
pub(crate) struct ListBuckets<'a, K, E> {
    pub buckets: &'a mut ByTime<ListBucket<K, E>>,
    /// Buckets to be dropped, of which nobody reads more.
    pub purged: &'a mut Vec<ListBucket<K, E>>,
}

/// What is to be read of a bucket still. Its notes tell of lists that have changed since the barrier.
#[derive(Debug)]
pub struct UnreadBucket<K, E> {
    pub(crate) of: Snapshot<ListNote<K, E>>,
    /// Notes of the parts before this place are written.
    pub written: u64,
}

/// Elements of a list that are to be written: of the list itself, if it is where it was.
#[derive(Debug)]
pub(crate) struct ListNote<K, E> {
    pub key: K,
    pub from: usize,
    pub until: usize,
    /// Records before these that are kept.
    pub keeps: usize,
    /// Elements that were kept, and the number of the first.
    pub left: Option<(usize, Vec<E>)>,
    /// Records that are written anew are noted as dead.
    pub has_begun: bool,
    /// The list is not there any more.
    pub is_gone: bool,
}

impl<K: Key, E: 'static> KeyedEntry for ListNote<K, E> {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}

impl<K: Key, E: State> UnreadBucket<K, E> {
    pub fn new(account: &Rc<Account>, range: HashRange) -> Self {
        Self { of: Snapshot::new(account, range), written: 0 }
    }

    /// Whether a list has to be noted before it changes.
    pub fn wants<Q: Lookup<K> + ?Sized>(&self, hash: u64, key: &Q) -> bool {
        self.of.wants(hash, |note| key.is(&note.key))
    }

    /// Notes what is to be written of a list of `len` elements; says whether there was room.
    pub fn note(&mut self, hash: u64, key: K, len: usize, due: ListDelta) -> bool {
        let bytes = key.heap_bytes() as u64;
        let ListDelta { from, keeps } = due;
        let (has_begun, is_gone) = (false, false);
        let make = || ListNote { key, from, until: len, keeps, left: None, has_begun, is_gone };
        self.of.keep(hash, bytes, make)
    }

    /// The key of a note that is to be written now, if there is one.
    fn noted(&mut self) -> Option<K> {
        let Snapshot { next, kept, range, .. } = &self.of;
        let is_due = |place: u64| next.is_none_or(|next| place < next);
        let mut place = Some(self.written).filter(|place| is_due(*place));
        while let Some(at) = place {
            let (part, after) = kept.part_at(at);
            let is_it = |note: &&ListNote<K, E>| is_due(range.place(note.hash_of_key()));
            if let Some(note) = part.iter().find(is_it) {
                return Some(note.key.clone());
            }
            place = after.filter(|after| is_due(*after));
            self.written = place.or(*next).unwrap_or(u64::MAX);
        }
        None
    }

    fn forget(&mut self, hash: u64, key: &K) {
        let Some(note) = self.of.kept.remove(hash, |note| note.key == *key) else { return };
        let bytes = note.heap_bytes();
        drop(note);
        self.of.booked.give_some_back(bytes);
    }

    /// Of a checkpoint that was given up: drops a part of the notes; says whether there was one. What panics when it is
    /// dropped does so for nobody.
    pub fn drop_step(&mut self) -> bool {
        let Some(part) = self.of.kept.take_part() else { return false };
        for note in part {
            let bytes = note.heap_bytes();
            let _panic = catch_unwind(AssertUnwindSafe(|| drop(note)));
            self.of.booked.give_some_back(bytes);
        }
        true
    }
}

impl<K: Key, E: State> ListNote<K, E> {
    fn heap_bytes(&self) -> u64 {
        let left = self.left.as_ref().map_or(0, |(_, left)| left.heap_bytes());
        (self.key.heap_bytes() + left) as u64
    }
}

impl<K: Key, E: State> ListsReading<K, E> {
    /// Due elements of a list, and the records that are kept, of this epoch; by slot, what is `anew` is due.
    pub fn due(&self, list: &HeapList<K, E>, epoch: u32, anew: &[bool]) -> ListDelta {
        ListDelta::of(&list.elements, list.records.of(epoch), anew, self.record_bytes)
    }

    /// Begins to write what is due of a list behind the records that it keeps: the others are dead.
    fn begin_list(
        &mut self,
        (records, values): (&mut ListRecords, &mut u64),
        keeps: usize,
        to: &mut Recording<'_>,
    ) -> Result<()> {
        let before = records.memory_bytes();
        let outdated = records.split_off(to.epoch(), keeps);
        let after = records.memory_bytes();
        self.booked.account().adjust(MemoryKind::Values, before, after);
        *values = *values + after - before;
        outdated.iter().try_for_each(|record| to.outdate(record.place))
    }

    /// Writes a record of a part or all of what is due of a list; with no place if that cannot be remembered.
    fn write(&self, key: (Time, &K), due: &[E], to: &mut Recording<'_>) -> Result<ListRecord> {
        let part = &due[..record_elements(due, self.record_bytes)];
        let key = (key.0, key.1.clone());
        let written = to.write(&key, &part.to_vec(), RecordPosition::NONE);
        let place = written.map_err(|error| name_large(error, &key.1))?;
        Ok(ListRecord { place, elements: part.len() as u32 })
    }

    /// A list remembers a record. Without room for that, the next checkpoint is full.
    fn remember(
        &self,
        (records, values): (&mut ListRecords, &mut u64),
        record: ListRecord,
        to: &mut Recording<'_>,
    ) {
        let is_known = record.place != RecordPosition::NONE
            && add_record(self.booked.account(), values, records, (to.epoch(), record));
        if !is_known {
            to.break_off();
        }
    }

    /// Reads some lists, or what was noted of one; says whether there was anything.
    pub fn read_part(
        &mut self,
        source: ListBuckets<'_, K, E>,
        to: &mut Recording<'_>,
    ) -> Result<bool> {
        let ListBuckets { buckets, purged } = source;
        if !self.purged.is_empty() {
            return self.drop_some_purged(to).map(|()| true);
        }
        let Some(&time) = self.times.get(self.next) else { return Ok(false) };
        let mut gone = self.gone.remove(time);
        let bucket = gone.as_mut().or_else(|| buckets.get_mut(time));
        let read = match bucket {
            Some(bucket) => self.read_bucket(time, bucket, to),
            None => Ok(false),
        };
        let has_more = matches!(read, Ok(true));
        match gone {
            Some(gone) if has_more => {
                self.gone.insert(time, gone);
            }
            Some(gone) => purged.push(gone),
            None => {}
        }
        self.next += usize::from(!has_more);
        read.map(|_| true)
    }

    /// Drops a part of what was purged before the barrier: its records are not live in this checkpoint.
    fn drop_some_purged(&mut self, to: &mut Recording<'_>) -> Result<()> {
        let Self { purged, booked, .. } = self;
        let mut noted = Ok(());
        drop_part(purged, booked.account(), to.epoch(), &mut |place| {
            let this = to.outdate(place);
            if noted.is_ok() {
                noted = this;
            }
        });
        noted
    }

    /// Reads a part of a bucket, or what was noted of a list; says whether there was anything.
    fn read_bucket(
        &mut self,
        time: Time,
        bucket: &mut ListBucket<K, E>,
        to: &mut Recording<'_>,
    ) -> Result<bool> {
        let ListBucket { lists, captured: slot, values, .. } = bucket;
        let Some(captured) = slot else { return Ok(false) };
        if let Some(key) = captured.noted() {
            let hash = key.key_hash();
            let note =
                captured.of.kept.find_mut(hash, |note| note.key == key).expect("found above");
            let mut there = match note.is_gone {
                true => None,
                false => lists.find_mut(hash, |list| list.key == key),
            };
            if !std::mem::replace(&mut note.has_begun, true)
                && let Some(list) = &mut there
            {
                let kept = list.records.of(to.epoch()).iter().take(note.keeps);
                kept.for_each(|record| to.keep(record.place));
                if note.from < note.until {
                    self.begin_list((&mut list.records, values), note.keeps, to)?;
                }
            }
            if note.from < note.until {
                let due = match (&note.left, &there) {
                    (Some((first, left)), _) => &left[note.from - first..note.until - first],
                    (None, Some(list)) => &list.elements[note.from..note.until],
                    (None, None) => unreachable!("it is there or was kept"),
                };
                let record = self.write((time, &key), due, to)?;
                note.from += record.elements as usize;
                match &mut there {
                    Some(list) => self.remember((&mut list.records, values), record, to),
                    None => to.note_dead(record.place),
                }
                let has_more = there.is_some_and(|list| list.elements.len() > note.until);
                if note.from == note.until && has_more {
                    to.count_change();
                }
            }
            if note.from == note.until {
                captured.forget(hash, &key);
            }
            return Ok(true);
        }
        let Some(next) = captured.of.next else {
            *slot = None;
            return Ok(false);
        };
        let (part, end) = lists.part_at_mut(next);
        for list in part {
            let hash = list.hash_of_key();
            let is_new = self.range.place(hash) >= next;
            if !is_new || captured.of.kept.find(hash, |note| note.key == list.key).is_some() {
                continue;
            }
            let due = self.due(list, to.epoch(), to.anew());
            let len = list.elements.len();
            let rest = &list.elements[due.from..];
            if !rest.is_empty() {
                let is_short = record_elements(rest, self.record_bytes) == rest.len();
                let goes_now = self.at_once || (is_short && to.has_room());
                if !goes_now && captured.note(hash, list.key.clone(), len, due) {
                    continue;
                }
                self.begin_list((&mut list.records, values), due.keeps, to)?;
            }
            let kept = list.records.of(to.epoch()).iter();
            kept.for_each(|record| to.keep(record.place));
            let mut from = due.from;
            while from < len {
                let record = self.write((time, &list.key), &list.elements[from..], to)?;
                self.remember((&mut list.records, values), record, to);
                from += record.elements as usize;
            }
        }
        captured.of.next = end;
        Ok(true)
    }
}

impl<K, E> ListsReading<K, E> {
    /// Takes the buckets out that were purged.
    pub fn take_gone(&mut self) -> impl Iterator<Item = ListBucket<K, E>> + use<K, E> {
        let mut gone = std::mem::take(&mut self.gone);
        let gone = std::iter::from_fn(move || gone.pop_first().map(|(_, bucket)| bucket));
        gone.chain(std::mem::take(&mut self.purged))
    }
}

impl<K, E> Drop for ListsReading<K, E> {
    fn drop(&mut self) {
        self.take_gone().for_each(|bucket| bucket.release(self.booked.account()));
    }
}

/// How many of these elements make a record: one at least, if there is one.
pub(crate) fn record_elements<E: State>(list: &[E], bytes_max: usize) -> usize {
    let most = list.len().min(RECORD_ELEMENTS);
    if E::NO_HEAP {
        return most.min((bytes_max / size_of::<E>().max(1)).max(1));
    }
    let mut bytes = 0;
    let fits = |element: &&E| {
        let has_room = bytes < bytes_max;
        bytes += size_of::<E>() + element.heap_bytes();
        has_room
    };
    list[..most].iter().take_while(fits).count()
}
