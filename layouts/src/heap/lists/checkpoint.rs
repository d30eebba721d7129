//! Taking a checkpoint of lists on the heap while they change.
//!
//! At the barrier nothing is copied, and no key is looked at. Buckets are [read](crate::heap::lists::reading) in steps, and
//! who changes a list that was not read yet notes what is to be written of it; segments of before are named again, as those
//! of tables are: see [`Remembered`](crate::Remembered).
//!
//! What it keeps true:
//! - The image has of each list of the barrier its elements, once, in order of segments and then of records.
//! - If there is no room for a note or a copy, or memory is needed that a purged bucket holds, all that
//!   is left is read and written at once; if that fails, the checkpoint does.

use alluvium_pagestore::{
    BlobWriter, HeapSize, Key, Lookup, MemoryKind, Result, State, StateImage, Time, rounded,
};

use crate::checkpoint::{FREE_BYTES, InSteps, WriterSizes};
use crate::heap::lists::reading::{ListBuckets, ListsReading, UnreadBucket};
use crate::heap::lists::records::{ListDelta, ListRecords};
use crate::heap::lists::{HeapLists, ListBucket};
use crate::heap::segment_bytes;
use crate::restore::full_image::{kept_free, kept_to_read, sizes, writing_bytes};
use crate::support::booked::Booked;
use crate::support::by_time_unsafe::ByTime;
use crate::support::out_of_line_unsafe::OutOfLine;

/// Bytes booked for a bucket at the barrier: what is to be read of it, and its time.
pub(super) const CAPTURED_BYTES: u64 = 336;
const _: () = assert!(
    (rounded(size_of::<UnreadBucket<(), ()>>()) + 2 * size_of::<Time>()) as u64 <= CAPTURED_BYTES
);

impl<K: Key, E: State> InSteps for HeapLists<K, E> {
    fn pause(&mut self) -> Result<()> {
        self.remembered.pause();
        Ok(())
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// Cost: that of the buckets.
    pub(crate) fn begin_capture(&mut self) -> Result<()> {
        self.context.segment_store()?;
        self.leave_capture();
        drop(self.remembered.give_up());
        let account = self.context.account.clone();
        let values = self.buckets.values().map(|bucket| bucket.values).sum();
        let sizes = WriterSizes { segment_bytes: segment_bytes(values), ..self.sizes_now() };
        let is_empty = self.is_empty();
        // A record is copied before it is encoded.
        let copied = if is_empty { 0 } else { sizes.value_bytes };
        let bytes = self.buckets.len() as u64 * CAPTURED_BYTES + copied;
        let (kind, what) = (MemoryKind::Buffers, "a checkpoint's buckets");
        let booked = Booked::reserve(account.clone(), kind, bytes, what)?;
        let range = self.range;
        self.buckets.for_each_mut(&mut |bucket| {
            bucket.captured = Some(Box::new(UnreadBucket::new(&account, range)));
        });
        self.reading = Some(OutOfLine::new(Box::new(ListsReading {
            range: self.range,
            times: self.buckets.times(),
            next: 0,
            gone: ByTime::new(),
            purged: std::mem::take(&mut self.purged),
            record_bytes: record_bytes(&sizes),
            at_once: false,
            booked,
        })));
        self.remembered.begin_at(None, sizes)?;
        if is_empty {
            self.remembered.write_nothing();
        }
        Ok(())
    }

    /// Does a bounded share; the image at the end.
    pub(crate) fn continue_capture(&mut self, blobs: &BlobWriter) -> Result<Option<StateImage>> {
        self.remembered.plan();
        self.drop_some_left();
        let Self { buckets, purged, remembered, reading, .. } = self;
        let image = remembered.step(blobs, |to| match reading {
            Some(reading) => reading.read_part(ListBuckets { buckets, purged }, to),
            None => Ok(false),
        })?;
        if image.is_some() {
            self.reading = None;
            self.buckets.for_each_mut(&mut |bucket| bucket.captured = None);
        }
        Ok(image)
    }

    /// Nothing is read any more for the checkpoint that is being taken, if one is. Cost: in the number of buckets; what it
    /// has noted, and holds of buckets that were purged, goes [later](HeapLists::drop_some_left).
    pub(crate) fn leave_capture(&mut self) {
        if let Some(mut reading) = self.reading.take() {
            self.leave_all(&mut reading);
        }
    }

    /// Whether a checkpoint has nothing to write, and nothing of before to drop.
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.len() == 0 && self.purged.is_empty()
    }

    /// How lists are written with the memory that is free now.
    fn sizes_now(&self) -> WriterSizes {
        let longest = self.oversize.noted_bytes();
        let sizes = Self::with_records(self.sizes(), longest);
        let wanted = writing_bytes(&sizes) + sizes.value_bytes;
        let is_there = self.context.account.available() >= wanted;
        if is_there { sizes } else { Self::with_records(self.sizes().least(), longest) }
    }

    fn sizes(&self) -> WriterSizes {
        sizes::<(Time, K), Vec<E>>(&self.context, u64::MAX)
    }

    /// With room for records of lists, and for an element that owns so much.
    fn with_records(sizes: WriterSizes, element: u64) -> WriterSizes {
        let element = if E::NO_HEAP { 0 } else { element };
        WriterSizes { value_bytes: record_bytes(&sizes) as u64 + element + 256, ..sizes }
    }

    /// What has to stay free, so that the lists can be checkpointed and be read again, with elements that own so much; not
    /// for buckets.
    pub(super) fn kept_free(&self, element: u64) -> u64 {
        if self.context.segments.is_none() {
            return 0;
        }
        let sizes = Self::with_records(self.sizes().least(), element);
        // A record is copied before it is encoded. One of before may have been written with more memory.
        let longest = Self::with_records(self.sizes(), element).value_bytes;
        (kept_free(&self.context, &sizes) + sizes.value_bytes)
            .max(kept_to_read(&self.context, longest))
    }

    /// A list is about to change: notes what it has, if it was not read.
    #[cold]
    #[inline(never)]
    pub(crate) fn note<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, hash: u64, key: &Q) {
        self.remembered.plan();
        let Some(reading) = &self.reading else { return };
        let Some(ListBucket { lists, captured: Some(captured), .. }) = self.buckets.get_mut(bucket)
        else {
            return;
        };
        if captured.wants(hash, key) {
            let list = lists.find(hash, |list| key.is(&list.key));
            let (epoch, anew) = (self.remembered.epoch(), self.remembered.anew());
            let due =
                list.map_or(ListDelta { from: 0, keeps: 0 }, |list| reading.due(list, epoch, anew));
            let len = list.map_or(0, |list| list.elements.len());
            if !captured.note(hash, key.to_owned(), len, due) {
                self.read_rest();
            }
        }
    }

    /// A list is gone, or all of it moves, after it was [noted](HeapLists::note): its records are not live any more.
    /// Those that the checkpoint writes anew are dead in it.
    pub(crate) fn let_go(&mut self, bucket: Time, hash: u64, key: &K, records: &ListRecords) {
        let mut live = records.of(self.remembered.epoch());
        let captured = self.buckets.get_mut(bucket).and_then(|b| b.captured.as_mut());
        let note = captured.and_then(|it| it.of.kept.find_mut(hash, |note| note.key == *key));
        if let Some(note) = note.filter(|note| !note.is_gone)
            && self.reading.is_some()
        {
            note.is_gone = true;
            let is_due = note.from < note.until;
            if !std::mem::replace(&mut note.has_begun, true) && is_due {
                let (kept, outdated) = live.split_at(note.keeps.min(live.len()));
                live = kept;
                outdated.iter().for_each(|record| self.remembered.outdate(record.place));
            }
        }
        live.iter().for_each(|record| self.remembered.note_dead(record.place));
    }

    /// A list was taken out of its bucket, and [noted](HeapLists::note) before: it is kept, if it is to
    /// be written.
    pub(crate) fn keep(&mut self, bucket: Time, hash: u64, key: &K, list: Vec<E>) {
        let captured = self.buckets.get_mut(bucket).and_then(|b| b.captured.as_mut());
        let Some(captured) = captured else { return };
        let note = captured.of.kept.find_mut(hash, |note| note.key == *key);
        if let Some(note) = note.filter(|note| note.left.is_none() && note.from < note.until) {
            // What was booked for it in the bucket was given back when it was taken out.
            let bytes = list.heap_bytes() as u64;
            note.left = Some((0, list));
            captured.of.booked.charge(bytes);
        }
    }

    /// A list is about to move, or to get elements before those it has: copies what is to be written.
    pub(crate) fn keep_copy<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, hash: u64, key: &Q) {
        self.note(bucket, hash, key);
        let Some(ListBucket { lists, captured: Some(captured), .. }) = self.buckets.get_mut(bucket)
        else {
            return;
        };
        let note = captured.of.kept.find_mut(hash, |note| key.is(&note.key));
        let note = note.filter(|note| note.left.is_none() && note.from < note.until);
        let list = lists.find(hash, |list| key.is(&list.key));
        let (Some(note), Some(list)) = (note, list) else { return };
        let due = &list.elements[note.from..note.until];
        let owned: usize = if E::NO_HEAP { 0 } else { due.iter().map(E::heap_bytes).sum() };
        let most = (rounded(size_of_val(due)) + owned) as u64;
        if captured.of.booked.account().available() < most + FREE_BYTES {
            return self.read_rest();
        }
        let copy = due.to_vec();
        let bytes = copy.heap_bytes() as u64;
        note.left = Some((note.from, copy));
        captured.of.booked.charge(bytes);
    }

    /// A bucket is gone: gives it to the checkpoint that has not read it, or back.
    pub(crate) fn leave(
        &mut self,
        time: Time,
        bucket: ListBucket<K, E>,
    ) -> Option<ListBucket<K, E>> {
        match &mut self.reading {
            Some(reading) if bucket.captured.is_some() => {
                reading.gone.insert(time, bucket);
                None
            }
            _ => Some(bucket),
        }
    }

    /// Drops a part of what checkpoints that were given up have left, has what another holds of purged buckets read, and
    /// given back, or gives up what is noted of dead records; says whether there was any.
    pub(crate) fn make_way(&mut self) -> bool {
        if self.drop_some_left() {
            return true;
        }
        let holds =
            |reading: &ListsReading<K, E>| !reading.gone.is_empty() || !reading.purged.is_empty();
        if self.reading.as_ref().is_some_and(|reading| holds(reading)) {
            self.read_rest();
            return true;
        }
        self.remembered.make_way()
    }

    /// Reads all that is not read yet and has it written, at once. If that fails, the checkpoint
    /// does.
    #[cold]
    fn read_rest(&mut self) {
        let Self { buckets, purged, remembered, reading, .. } = self;
        let Some(reading) = reading else { return };
        reading.at_once = true;
        remembered.read_rest(|to| reading.read_part(ListBuckets { buckets, purged }, to));
        if remembered.is_lost()
            && let Some(mut reading) = self.reading.take()
        {
            self.leave_all(&mut reading);
            self.reading = Some(reading);
        }
    }

    /// Nothing is read any more of what is noted, and of buckets that were purged.
    fn leave_all(&mut self, reading: &mut ListsReading<K, E>) {
        for mut bucket in reading.take_gone() {
            self.notes_left.extend(bucket.captured.take().map(|captured| *captured));
            self.purged.push(bucket);
        }
        let notes_left = &mut self.notes_left;
        self.buckets.for_each_mut(&mut |bucket| {
            notes_left.extend(bucket.captured.take().map(|captured| *captured));
        });
        self.notes_left.retain(|captured| !captured.of.kept.is_empty());
    }

    /// Drops a part of what checkpoints that were given up have left; says whether there was something.
    pub(crate) fn drop_some_left(&mut self) -> bool {
        if let Some(captured) = self.notes_left.last_mut() {
            if !captured.drop_step() {
                self.notes_left.pop();
            }
            return true;
        }
        self.drop_some_purged().is_some()
    }
}

/// Bytes after which a record ends: some of them fit into a batch.
fn record_bytes(sizes: &WriterSizes) -> usize {
    sizes.batch_bytes / 4
}
