//! Lists on the plain heap: a hash table of vectors per bucket.
//!
//! Only checkpoints are on storage. They run in steps and write what has come since the last one
//! (`heap/lists/checkpoint.rs`, `heap/lists/reading.rs`, and `heap/lists/records.rs` for what a list
//! remembers of them). A vector reserves memory before it grows, twice for a moment while its
//! elements move; the heap of elements is reserved on arrival. The table grows part by part.

mod bucket;
pub(crate) mod checkpoint;
mod elements;
pub(crate) mod groups;
pub(crate) mod reading;
pub(crate) mod records;

use std::ops::Range;

use alluvium_pagestore::{
    BlobReader, BlobWriter, Error, ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State,
    StateImage, Time, rounded,
};

use crate::checkpoint::{Remembered, at_once};
use crate::contract::by_hash::ByHash;
use crate::contract::lists::{Elements, Lists, ListsLayout, span};
use crate::contract::table::{CheckpointOutcome, Cursor, Layout, StateContext, TableStats};
use crate::contract::upkeep::Upkeep;
use crate::heap::Heap;
use crate::heap::entry_table_unsafe::EntryTable;
use crate::heap::hash_range::HashRange;
use crate::heap::lists::bucket::{BUCKET_BYTES, list_bytes};
pub(crate) use crate::heap::lists::bucket::{HeapList, ListBucket, add_record, drop_part};
use crate::heap::lists::checkpoint::CAPTURED_BYTES;
use crate::heap::lists::elements::JoinedElements;
use crate::heap::lists::groups::LastVisit;
use crate::heap::lists::reading::{ListsReading, UnreadBucket};
use crate::heap::lists::records::{ListRecord, ListRecords};
use crate::heap::record_position::RecordPosition;
use crate::restore::full_image::read_placed;
use crate::support::by_time_unsafe::ByTime;
use crate::support::out_of_line_unsafe::{DroppedHere, OutOfLine};
use crate::support::oversize::Oversize;

/// Elements of a list's first vector.
const CAPACITY_FIRST: usize = 4;

/// Open lists of [`Heap`].
#[derive(Debug)]
pub struct HeapLists<K, E> {
    pub(crate) context: StateContext,
    pub(crate) range: HashRange,
    pub(crate) buckets: ByTime<ListBucket<K, E>>,
    /// Buckets that were purged, to be dropped.
    pub(crate) purged: Vec<ListBucket<K, E>>,
    /// What checkpoints that were given up have noted, to be dropped.
    pub(crate) notes_left: Vec<UnreadBucket<K, E>>,
    len: u64,
    /// Where lists of one hash were visited last.
    visited: Option<LastVisit>,
    /// What the checkpoint being taken has to read still.
    pub(crate) reading: Option<OutOfLine<Box<ListsReading<K, E>>>>,
    /// What checkpoints have. Lists that have got elements since the last barrier count as changed.
    pub(crate) remembered: DroppedHere<Remembered>,
    oversize: Oversize,
    /// What appends leave free for the next checkpoint, and for opening it, beside that of buckets.
    kept: u64,
    /// What other states leave of it, beside the longest elements there are.
    told: u64,
}

impl<K: Key, E: State> ListsLayout<K, E> for Heap {
    type Lists = HeapLists<K, E>;

    fn name(&self) -> &'static str {
        "heap"
    }

    fn memory_limit(&self) -> Option<u64> {
        Layout::<K, E>::memory_limit(self)
    }

    fn open_lists(&self, mut context: StateContext) -> Result<Self::Lists> {
        let restored = context.restored.take();
        let is_new = restored.is_none();
        let mut lists = OutOfLine::new(HeapLists {
            range: HashRange::of(&context.owned, context.key_groups),
            remembered: DroppedHere::new(Remembered::new(&context)),
            // What a checkpoint has is there, whatever the limit is now.
            oversize: Oversize::new(&context.name, u64::MAX),
            kept: 0,
            told: 0,
            context,
            buckets: ByTime::new(),
            purged: Vec::new(),
            notes_left: Vec::new(),
            len: 0,
            visited: None,
            reading: None,
        });
        if !E::NO_HEAP && lists.context.segments.is_some() {
            // A record is copied before it is encoded.
            let account = lists.context.account.clone();
            lists.oversize.keep_room_in(&account, 2);
        }
        if let Some((image, blobs)) = restored {
            lists.restore(&image, &blobs)?;
        }
        let most = lists.context.max_value_bytes;
        lists.oversize.limit_to(most);
        lists.kept = lists.kept_free(most);
        lists.told = lists.kept_free(0);
        lists.tell_kept();
        if is_new {
            lists.context.account.ensure(lists.kept, "a checkpoint")?;
        }
        Ok(lists.into_inner())
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// Puts all records of an image into the empty lists, which remember where they are.
    fn restore(&mut self, image: &StateImage, blobs: &BlobReader) -> Result<()> {
        let remembers = self.remembered.begin_restoring(image);
        let (context, mut records) = (self.context.clone(), 0);
        read_placed(&context, image, blobs, |at, (time, key): (Time, K), elements: Vec<E>| {
            records += 1;
            let count = elements.len() as u32;
            elements
                .into_iter()
                .try_for_each(|element| self.append(time, &key, element).map_err(Error::from))?;
            let place = RecordPosition::of(at.segment, at.grain);
            if count > 0 && remembers {
                self.remember(time, &key, ListRecord { place, elements: count });
            }
            Ok(())
        })?;
        self.remembered.end_restoring(image, records);
        Ok(())
    }

    /// A record of a list is there. Without memory for that, the next checkpoint is full.
    fn remember(&mut self, time: Time, key: &K, record: ListRecord) {
        let Some(bucket) = self.buckets.get_mut(time) else { return };
        let list = bucket.lists.find_mut(key.key_hash(), |list| list.key == *key);
        let Some(list) = list else { return };
        let (account, epoch) = (&self.context.account, self.remembered.epoch());
        if !add_record(account, &mut bucket.values, &mut list.records, (epoch, record)) {
            self.remembered.break_off();
        }
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// What the next checkpoint takes, or reading it.
    fn kept_now(&self) -> u64 {
        self.kept + self.buckets.len() as u64 * CAPTURED_BYTES
    }

    /// Has other states leave what is kept; of lists without elements next to nothing is written.
    fn tell_kept(&self) {
        let captured = self.buckets.len() as u64 * CAPTURED_BYTES;
        if self.is_empty() || self.kept == 0 {
            self.context.account.keep_free(0, 0);
        } else {
            self.context.account.keep_free(self.told, captured);
        }
    }

    /// Makes room for one more element of a key, and books it: the count of its bucket's elements,
    /// and its list.
    fn make_room<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        (hash, key): (u64, &Q),
        heap: u64,
    ) -> Result<(&mut u64, &mut HeapList<K, E>)> {
        // A checkpoint that is being taken has its part of what is kept.
        let kept = if self.reading.is_some() { 0 } else { self.kept_now() };
        let account = &self.context.account;
        let kept = kept.max(account.left_to_others());
        let (told, buckets) = (self.told, self.buckets.len() as u64 + 1);
        let bucket = self.buckets.get_or_insert(time, || {
            account.ensure(kept + BUCKET_BYTES, "a bucket")?;
            account.charge(MemoryKind::Tables, BUCKET_BYTES);
            if told > 0 {
                account.keep_free(told, buckets * CAPTURED_BYTES);
            }
            let few_of = self.context.movable.then_some(self.context.key_groups);
            let lists = EntryTable::maybe_few_of(account.clone(), self.range, few_of);
            Ok(ListBucket { lists, elements: 0, values: 0, captured: None })
        })?;
        let ListBucket { lists, elements, values, .. } = bucket;
        if lists.find(hash, |list| key.is(&list.key)).is_none() {
            let key = key.to_owned();
            let key_bytes = key.heap_bytes() as u64;
            account.ensure(kept + key_bytes + lists.growth_bytes(hash), "a key")?;
            account.charge(MemoryKind::Values, key_bytes);
            let make = || HeapList { key, elements: Vec::new(), records: ListRecords::None };
            if let Err(error) = lists.insert(hash, make).map(drop) {
                account.release(MemoryKind::Values, key_bytes);
                return Err(error);
            }
            *values += key_bytes;
        }
        let found = lists.find_mut(hash, |list| key.is(&list.key)).expect("inserted above");
        if !(K::NO_HEAP && E::NO_HEAP) {
            let owned = found.key.heap_bytes() as u64 + heap;
            self.oversize.check(&found.key, owned)?;
            self.oversize.note(owned);
        }
        let list = &mut found.elements;
        if list.len() == list.capacity() {
            let wanted = (2 * list.len()).max(CAPACITY_FIRST);
            let new = rounded(wanted * size_of::<E>()) as u64;
            let old = rounded(list.capacity() * size_of::<E>()) as u64;
            account.ensure(new + heap + kept, "a longer list")?;
            account.charge(MemoryKind::Values, new);
            list.reserve_exact(wanted - list.len());
            account.release(MemoryKind::Values, old);
            *values = *values + new - old;
        }
        account.ensure(heap + kept, "an element")?;
        account.charge(MemoryKind::Values, heap);
        *values += heap;
        Ok((elements, found))
    }

    /// Takes a list out. Its records are not live any more.
    fn take<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        hash: u64,
        key: &Q,
    ) -> Option<(K, Vec<E>)> {
        let bucket = self.buckets.get_mut(time)?;
        let HeapList { key, elements, records } =
            bucket.lists.remove(hash, |list| key.is(&list.key))?;
        let bytes = list_bytes(&key, &elements) + records.memory_bytes();
        bucket.values -= bytes;
        bucket.elements -= elements.len() as u64;
        self.len -= elements.len() as u64;
        self.let_go(time, hash, &key, &records);
        // Only now: notes of what has died must not take what a checkpoint keeps of the list.
        self.context.account.release(MemoryKind::Values, bytes);
        Some((key, elements))
    }

    /// Removes a list; its bucket stays.
    pub(crate) fn clear_list<Q: Lookup<K> + ?Sized>(&mut self, time: Time, hash: u64, key: &Q) {
        if self.reading.is_some() {
            self.note(time, hash, key);
        }
        if let Some((key, list)) = self.take(time, hash, key) {
            self.keep(time, hash, &key, list);
        }
    }

    /// Drops a bucket, of which no checkpoint reads anything. Its records are not live any more.
    pub(crate) fn release(&mut self, bucket: ListBucket<K, E>) {
        let remembered = &mut self.remembered;
        bucket.for_each_record(remembered.epoch(), &mut |place| remembered.note_dead(place));
        bucket.release(&self.context.account);
    }

    /// Drops a part of what was purged and no checkpoint reads: its records are not live any more.
    /// Gives how many elements that were, if there was something.
    pub(crate) fn drop_some_purged(&mut self) -> Option<u64> {
        let Self { purged, remembered, context, .. } = self;
        let epoch = remembered.epoch();
        drop_part(purged, &context.account, epoch, &mut |place| remembered.note_dead(place))
    }

    /// Gives back the table of a bucket in which there is nothing, which stays.
    pub(crate) fn empty_if_vacant(&mut self, time: Time) {
        let found = self.buckets.get_mut(time);
        if let Some(bucket) = found.filter(|bucket| bucket.elements == 0)
            && bucket.captured.is_none()
        {
            while bucket.lists.take_part().is_some() {}
        }
    }

    /// Takes out what was made for an element that did not come.
    fn drop_if_empty<Q: Lookup<K> + ?Sized>(&mut self, time: Time, hash: u64, key: &Q) {
        let found = self.buckets.get(time);
        let found = found.and_then(|b| b.lists.find(hash, |list| key.is(&list.key)));
        if found.is_some_and(|list| list.elements.is_empty()) {
            self.take(time, hash, key);
        }
        self.drop_if_vacant(time);
    }

    fn drop_if_vacant(&mut self, time: Time) {
        if self.buckets.get(time).is_some_and(|bucket| bucket.elements == 0) {
            let bucket = self.buckets.remove(time).expect("looked up above");
            if let Some(bucket) = self.leave(time, bucket) {
                self.release(bucket);
            }
            self.tell_kept();
        }
    }
}

impl<K: Key, E: State> Lists<K, E> for HeapLists<K, E> {
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let hash = key.key_hash();
        let heap = if E::NO_HEAP { 0 } else { element.heap_bytes() as u64 };
        if self.reading.is_some() {
            self.note(bucket, hash, key);
        }
        let epoch = self.remembered.epoch();
        let is_first = loop {
            match self.make_room(bucket, (hash, key), heap) {
                Ok((count, HeapList { elements, records, .. })) => {
                    let is_first = elements.len() == records.elements(epoch);
                    elements.push(element);
                    *count += 1;
                    break is_first;
                }
                Err(error) => {
                    self.drop_if_empty(bucket, hash, key);
                    if error.kind() == ErrorKind::ValueTooLarge || !self.make_way() {
                        return Err(Rejected::new(error, element));
                    }
                }
            }
        };
        self.len += 1;
        if is_first {
            self.remembered.count_change();
        }
        Ok(())
    }

    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        let bucket = self.buckets.get(bucket);
        let found = bucket.and_then(|b| b.lists.find(key.key_hash(), |list| key.is(&list.key)));
        let Some(list) = found.filter(|list| !list.elements.is_empty()) else { return Ok(()) };
        visit(&mut JoinedElements::new(&list.elements, Vec::new()))
    }

    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()> {
        self.clear_list(bucket, key.key_hash(), key);
        self.drop_if_vacant(bucket);
        Ok(())
    }

    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()> {
        let hash = key.key_hash();
        let list_in = |lists: &Self, time: Time| {
            let bucket = lists.buckets.get(time);
            let found = bucket.and_then(|b| b.lists.find(hash, |list| key.is(&list.key)));
            found.map(|list| list.elements.len())
        };
        let Some(moved) = list_in(self, from).filter(|_| from != to) else { return Ok(()) };
        let joined = list_in(self, to).unwrap_or(0) + moved;
        if self.reading.is_some() {
            self.keep_copy(from, hash, key);
            self.keep_copy(to, hash, key);
        }
        let bytes = rounded(joined * size_of::<E>()) as u64;
        loop {
            // The joined vector while both are there, then the place of a new key.
            let ensured = self.context.account.ensure(2 * bytes, "a list that moves");
            match ensured.and_then(|()| self.make_room(to, (hash, key), 0).map(drop)) {
                Ok(()) => break,
                Err(error) => {
                    self.drop_if_empty(to, hash, key);
                    if !self.make_way() {
                        return Err(error);
                    }
                }
            }
        }
        let (key, mut list) = self.take(from, hash, key).expect("looked up above");
        let target = self.buckets.get_mut(to).expect("room was made");
        let later = target.lists.find_mut(hash, |list| list.key == key).expect("room was made");
        let records = std::mem::take(&mut later.records);
        let before = list_bytes(&key, &later.elements) + records.memory_bytes();
        let more = list.len() as u64;
        if !later.elements.is_empty() {
            list.reserve_exact(later.elements.len());
            list.append(&mut later.elements);
        }
        later.elements = list;
        let after = list_bytes(&key, &later.elements);
        self.context.account.adjust(MemoryKind::Values, before, after);
        target.values = target.values - before + after;
        target.elements += more;
        self.len += more;
        // All elements stand elsewhere now.
        self.remembered.count_change();
        self.let_go(to, hash, &key, &records);
        self.drop_if_vacant(from);
        Ok(())
    }

    fn next_bucket(&self, from: Time) -> Option<Time> {
        let mut with_elements =
            self.buckets.range_from(from).filter(|(_, bucket)| bucket.elements > 0);
        with_elements.next().map(|(time, _)| time)
    }

    /// The cursor's version is the number of the bucket among `buckets` and, in its lower half, a
    /// place in the part of its table that is at the position. A key is visited with the first
    /// bucket that has it.
    fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        let folded: Vec<_> = self.buckets.range(span(&buckets)).map(|(_, b)| b).collect();
        let (mut spent, fuel) = (0, fuel.max(1));
        while spent < fuel && !cursor.done {
            let number = (cursor.version >> 32) as usize;
            let Some(bucket) = folded.get(number) else {
                cursor.done = true;
                break;
            };
            let (part, after) = bucket.lists.part_at(cursor.position);
            let place = cursor.version as u32 as usize;
            if place >= part.slots() {
                match after {
                    Some(after) => {
                        (cursor.version, cursor.position) = ((number as u64) << 32, after);
                    }
                    None => (cursor.version, cursor.position) = ((number as u64 + 1) << 32, 0),
                }
                continue;
            }
            spent += 1;
            if let Some(HeapList { key, elements, .. }) = part.get(place) {
                let hash = key.key_hash();
                let has =
                    |b: &&ListBucket<K, E>| b.lists.find(hash, |list| list.key == *key).is_some();
                if !folded[..number].iter().any(has) {
                    let later = folded[number + 1..].iter();
                    let later = later.filter_map(|b| b.lists.find(hash, |list| list.key == *key));
                    let later = later.map(|list| &list.elements).collect();
                    let mut all = JoinedElements::new(elements, later);
                    visit(key, &mut all)?;
                    spent += all.told;
                }
            }
            cursor.version += 1;
        }
        Ok(())
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, E, Time>> {
        Some(self)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        // What dies from here on is not dead for a checkpoint that was begun.
        self.remembered.plan();
        while let Some((time, bucket)) = self.buckets.pop_before(before) {
            self.len -= bucket.elements;
            let bucket = self.leave(time, bucket);
            self.purged.extend(bucket);
        }
        let mut spent = 0;
        while spent < fuel.max(1) as u64 {
            let Some(dropped) = self.drop_some_purged() else { break };
            spent += dropped.max(1);
        }
        self.tell_kept();
        Ok(self.purged.is_empty())
    }

    fn len(&self) -> u64 {
        self.len
    }
}

impl<K: Key, E: State> Upkeep for HeapLists<K, E> {
    fn tick(&mut self, work: usize) -> Result<usize> {
        Ok((0..work).take_while(|_| self.drop_some_left()).count())
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let before = self.context.account.used();
        // What is noted of what has died takes some.
        let given = |lists: &Self| before.saturating_sub(lists.context.account.used());
        while given(self) < bytes && self.drop_some_left() {}
        Ok(given(self))
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let account = &self.context.account;
        (account.used(), account.limit())
    }

    fn kept_bytes(&self) -> u64 {
        self.kept_now()
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture().map(|()| None)
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture(blobs).map_err(|error| error.with("state", &self.context.name))
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.leave_capture();
        self.remembered.decide(outcome);
    }

    fn stats(&self) -> TableStats {
        let mut stats = TableStats {
            live_keys: self.buckets.values().map(|bucket| bucket.lists.len()).sum(),
            live_bytes: self.buckets.values().map(|bucket| bucket.values).sum(),
            ..TableStats::default()
        };
        self.remembered.describe(&mut stats);
        stats
    }
}

impl<K, E> Drop for HeapLists<K, E> {
    fn drop(&mut self) {
        self.reading = None;
        // Tables, and the list of segments, give back what they have booked themselves.
        let account = &self.context.account;
        let buckets = (self.buckets.len() + self.purged.len()) as u64;
        account.release(MemoryKind::Tables, buckets * BUCKET_BYTES);
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
