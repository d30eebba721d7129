//! Lists on the plain heap: per bucket a hash table of vectors, the honest baseline.
//!
//! Nothing is ever on storage but checkpoints, which are full. A vector is booked before it grows,
//! twice for a moment, as its elements move; what they own, when they come. A table that grows
//! rehashes all of its bucket at once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use alluvium_pagestore::{
    BlobWriter, Error, HeapSize, Key, Lookup, MemoryKind, Rejected, Result, State, StateImage,
    Time, rounded,
};
use hashbrown::HashTable;

use crate::full_image::{Images, read_entries, write_each};
use crate::heap::Heap;
use crate::lists::{Elements, Lists, ListsLayout, span};
use crate::table::{CheckpointOutcome, Cursor, Layout, StateContext, TableStats};

/// Elements of a list's first vector.
const CAPACITY_FIRST: usize = 4;
/// Bytes booked for a bucket without lists.
const BUCKET_BYTES: u64 = 256;
/// Most elements of a list in one record of a checkpoint.
const RECORD_ELEMENTS: usize = 1024;

/// Open lists of [`Heap`].
#[derive(Debug)]
pub struct HeapLists<K, E> {
    context: StateContext,
    buckets: BTreeMap<Time, Bucket<K, E>>,
    /// Buckets that were purged, to be dropped.
    purged: Vec<Bucket<K, E>>,
    len: u64,
    images: Images,
    codec_calls: u64,
}

#[derive(Debug)]
struct Bucket<K, E> {
    lists: HashTable<(K, Vec<E>)>,
    elements: u64,
    /// Bytes booked for the table.
    index: u64,
    /// Bytes booked for keys and vectors.
    values: u64,
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
        let mut lists = HeapLists {
            context,
            buckets: BTreeMap::new(),
            purged: Vec::new(),
            len: 0,
            images: Images::default(),
            codec_calls: 0,
        };
        if let Some((image, blobs)) = restored {
            let context = lists.context.clone();
            read_entries::<(Time, K), Vec<E>>(
                &context,
                &image,
                &blobs,
                |(time, key), elements| {
                    lists.codec_calls += 1;
                    elements.into_iter().try_for_each(|element| {
                        lists.append(time, &key, element).map_err(Error::from)
                    })
                },
            )?;
            lists.images.restored(&image);
        }
        Ok(lists)
    }
}

impl<K: Key, E: State> HeapLists<K, E> {
    /// Makes room for one more element of a key, and books it.
    fn make_room<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        (hash, key): (u64, &Q),
        heap: u64,
    ) -> Result<()> {
        let account = &self.context.account;
        let bucket = match self.buckets.entry(time) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                account.reserve(MemoryKind::Tables, BUCKET_BYTES, "a bucket")?;
                entry.insert(Bucket { lists: HashTable::new(), elements: 0, index: 0, values: 0 })
            }
        };
        if bucket.lists.find(hash, |(k, _)| key.is(k)).is_none() {
            let key = key.to_owned();
            let key_bytes = key.heap_bytes() as u64;
            if bucket.lists.len() == bucket.lists.capacity() {
                let buckets = (bucket.lists.num_buckets() * 2).max(16);
                let grown = (buckets * (size_of::<(K, Vec<E>)>() + 1) + 64) as u64;
                account.ensure(grown + key_bytes, "the hash table")?;
                account.charge(MemoryKind::Index, grown);
                bucket.lists.reserve(1, |(key, _)| key.key_hash());
                let actual = bucket.lists.allocation_size() as u64;
                account.adjust(MemoryKind::Index, bucket.index + grown, actual);
                bucket.index = actual;
            }
            account.reserve(MemoryKind::Values, key_bytes, "a key")?;
            bucket.values += key_bytes;
            bucket.lists.insert_unique(hash, (key, Vec::new()), |(k, _)| k.key_hash());
        }
        let found = bucket.lists.find_mut(hash, |(k, _)| key.is(k));
        let list = &mut found.expect("inserted above").1;
        if list.len() == list.capacity() {
            let wanted = (2 * list.len()).max(CAPACITY_FIRST);
            let new = rounded(wanted * size_of::<E>()) as u64;
            let old = rounded(list.capacity() * size_of::<E>()) as u64;
            account.ensure(new + heap, "a longer list")?;
            account.charge(MemoryKind::Values, new);
            list.reserve_exact(wanted - list.len());
            account.release(MemoryKind::Values, old);
            bucket.values = bucket.values + new - old;
        }
        account.reserve(MemoryKind::Values, heap, "an element")?;
        bucket.values += heap;
        Ok(())
    }

    /// Takes a list out, and its bucket if that was the last one.
    fn take<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        hash: u64,
        key: &Q,
    ) -> Option<(K, Vec<E>)> {
        let bucket = self.buckets.get_mut(&time)?;
        let entry = bucket.lists.find_entry(hash, |(k, _)| key.is(k)).ok()?;
        let (key, list) = entry.remove().0;
        let bytes = list_bytes(&key, &list);
        self.context.account.release(MemoryKind::Values, bytes);
        bucket.values -= bytes;
        bucket.elements -= list.len() as u64;
        self.len -= list.len() as u64;
        self.drop_if_vacant(time);
        Some((key, list))
    }

    /// Takes out what was made for an element that did not come.
    fn drop_if_empty<Q: Lookup<K> + ?Sized>(&mut self, time: Time, hash: u64, key: &Q) {
        let list = self.buckets.get(&time).and_then(|b| b.lists.find(hash, |(k, _)| key.is(k)));
        if list.is_some_and(|(_, list)| list.is_empty()) {
            self.take(time, hash, key);
        }
        self.drop_if_vacant(time);
    }

    fn drop_if_vacant(&mut self, time: Time) {
        if self.buckets.get(&time).is_some_and(|bucket| bucket.elements == 0) {
            let bucket = self.buckets.remove(&time).expect("looked up above");
            self.release(&bucket);
        }
    }

    fn release(&self, bucket: &Bucket<K, E>) {
        self.context.account.release(MemoryKind::Index, bucket.index);
        self.context.account.release(MemoryKind::Values, bucket.values);
        self.context.account.release(MemoryKind::Tables, BUCKET_BYTES);
    }
}

/// Bytes that a list and its key own.
fn list_bytes<K: Key, E: State>(key: &K, list: &Vec<E>) -> u64 {
    (key.heap_bytes() + list.heap_bytes()) as u64
}

impl<K: Key, E: State> Lists<K, E> for HeapLists<K, E> {
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let hash = key.key_hash();
        let heap = if E::NONE { 0 } else { element.heap_bytes() as u64 };
        if let Err(error) = self.make_room(bucket, (hash, key), heap) {
            self.drop_if_empty(bucket, hash, key);
            return Err(Rejected::new(error, element));
        }
        let at = self.buckets.get_mut(&bucket).expect("room was made");
        let list = at.lists.find_mut(hash, |(k, _)| key.is(k)).expect("room was made");
        list.1.push(element);
        at.elements += 1;
        self.len += 1;
        Ok(())
    }

    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        let bucket = self.buckets.get(&bucket);
        let found = bucket.and_then(|b| b.lists.find(key.key_hash(), |(k, _)| key.is(k)));
        let Some((_, list)) = found.filter(|(_, list)| !list.is_empty()) else { return Ok(()) };
        visit(&mut Listed(list.iter()))
    }

    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()> {
        self.take(bucket, key.key_hash(), key);
        Ok(())
    }

    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()> {
        let hash = key.key_hash();
        let source = self.buckets.get(&from);
        let found = source.and_then(|b| b.lists.find(hash, |(k, _)| key.is(k)));
        let Some((_, moved)) = found.filter(|_| from != to) else { return Ok(()) };
        let target = self.buckets.get(&to);
        let known = target.and_then(|b| b.lists.find(hash, |(k, _)| key.is(k)));
        let joined = known.map_or(0, |(_, list)| list.len()) + moved.len();
        let bytes = rounded(joined * size_of::<E>()) as u64;
        // The joined vector while both are there, then the place of a new key.
        self.context.account.ensure(2 * bytes, "a list that moves")?;
        if let Err(error) = self.make_room(to, (hash, key), 0) {
            self.drop_if_empty(to, hash, key);
            return Err(error);
        }
        let (key, mut list) = self.take(from, hash, key).expect("looked up above");
        let target = self.buckets.get_mut(&to).expect("room was made");
        let later = target.lists.find_mut(hash, |(k, _)| *k == key).expect("room was made");
        let before = list_bytes(&key, &later.1);
        let (more, fresh) = (list.len() as u64, later.1.is_empty());
        if !fresh {
            list.reserve_exact(later.1.len());
            list.append(&mut later.1);
        }
        later.1 = list;
        let after = list_bytes(&key, &later.1);
        self.context.account.adjust(MemoryKind::Values, before, after);
        target.values = target.values - before + after;
        target.elements += more;
        self.len += more;
        Ok(())
    }

    fn next_bucket(&self, from: Time) -> Option<Time> {
        self.buckets.range(from..).next().map(|(time, _)| *time)
    }

    /// The cursor's version is the number of the bucket among `buckets`, its position one in the
    /// bucket's table. A key is visited with the first bucket that has it.
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
            let number = cursor.version as usize;
            let Some(bucket) = folded.get(number) else {
                cursor.done = true;
                break;
            };
            if cursor.position == bucket.lists.num_buckets() as u64 {
                (cursor.version, cursor.position) = (cursor.version + 1, 0);
                continue;
            }
            spent += 1;
            if let Some((key, list)) = bucket.lists.get_bucket(cursor.position as usize) {
                let hash = key.key_hash();
                let list_in = |b: &&Bucket<K, E>| b.lists.find(hash, |(k, _)| k == key).is_some();
                if !folded[..number].iter().any(list_in) {
                    let later = folded[number + 1..].iter();
                    let later = later.filter_map(|b| b.lists.find(hash, |(k, _)| k == key));
                    let lists: Vec<_> = later.map(|(_, list)| list).collect();
                    let mut all = Joined { lists: lists.into_iter(), list: list.iter(), told: 0 };
                    visit(key, &mut all)?;
                    spent += all.told;
                }
            }
            cursor.position += 1;
        }
        Ok(())
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        let rest = self.buckets.split_off(&before);
        for bucket in std::mem::replace(&mut self.buckets, rest).into_values() {
            self.len -= bucket.elements;
            self.purged.push(bucket);
        }
        let mut spent = 0;
        while spent < fuel.max(1) as u64 {
            let Some(bucket) = self.purged.pop() else { break };
            self.release(&bucket);
            spent += bucket.elements;
        }
        Ok(self.purged.is_empty())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        let image = write_each::<(Time, K), Vec<E>>(&self.context, |write| {
            for (time, bucket) in &self.buckets {
                for (key, list) in &bucket.lists {
                    // What is copied at a time is small, unless a key or an element is large.
                    for part in list.chunks(RECORD_ELEMENTS) {
                        write(&(*time, key.clone()), &part.to_vec())?;
                    }
                }
            }
            Ok(())
        })?;
        self.codec_calls += image.entries;
        self.images.taken(&image);
        Ok(image)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.images.decide(outcome, self.context.segments.as_ref());
    }

    fn stats(&self) -> TableStats {
        let mut stats = TableStats {
            live_keys: self.buckets.values().map(|bucket| bucket.lists.len() as u64).sum(),
            live_bytes: self.context.account.used_for(MemoryKind::Values),
            codec_calls: self.codec_calls,
            ..TableStats::default()
        };
        self.images.describe(&mut stats);
        stats
    }
}

/// Elements of one list.
struct Listed<'a, E>(std::slice::Iter<'a, E>);

impl<E> Elements<E> for Listed<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        Ok(self.0.next())
    }
}

/// Elements of several lists, and how many were told.
struct Joined<'a, E> {
    lists: std::vec::IntoIter<&'a Vec<E>>,
    list: std::slice::Iter<'a, E>,
    told: usize,
}

impl<E> Elements<E> for Joined<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        loop {
            if let Some(element) = self.list.next() {
                self.told += 1;
                return Ok(Some(element));
            }
            match self.lists.next() {
                Some(list) => self.list = list.iter(),
                None => return Ok(None),
            }
        }
    }
}

impl<K, E> Drop for HeapLists<K, E> {
    fn drop(&mut self) {
        for kind in [MemoryKind::Index, MemoryKind::Values, MemoryKind::Tables] {
            self.context.account.release(kind, self.context.account.used_for(kind));
        }
    }
}
