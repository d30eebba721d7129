//! The record path: an element comes to the end of its key's list, alone or in a batch.
//!
//! Per element: a bucket, a look-up in its table, and a write behind the last element. Of many
//! lists, these are three lines that the cache does not have, each of which leads to the next. A
//! batch looks a group of elements up before it appends the first of them, so that their misses
//! overlap.

use std::alloc::Layout;

use alluvium_pagestore::{ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State, Time};

use super::bucket::{BUCKET_BYTES, Bucket, hash_of_head};
use super::chain_unsafe::Chain;
use super::core::ListsCore;
use super::frozen::Head;
use super::typed_unsafe::{Found, Plenty, TypedBucket, heap_of};

/// Elements of a batch that are looked up before the first of them is appended.
const GROUP: usize = 32;
/// Lists of a bucket from which on that pays: fewer are in the cache.
const LISTS_AHEAD: u64 = 1024;
/// Times that a call makes room before it gives up.
const ROUNDS_MAX: usize = 16;

impl<K: Key> ListsCore<K> {
    /// Appends an element of which this was found.
    #[inline]
    pub(super) fn append_found<E: State, Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        found: Found,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let (mut element, plenty) = (element, self.plenty());
        loop {
            if let Some(at) = self.buckets.get_mut(&bucket) {
                match at.typed::<E>().append(found, key, element, plenty) {
                    Ok(()) => {
                        self.elements += 1;
                        return Ok(());
                    }
                    Err(back) => element = back,
                }
            }
            if let Err(error) = self.prepare(bucket, (found.0, key), heap_of(&element)) {
                return Err(Rejected::new(error, element));
            }
        }
    }

    fn plenty(&self) -> Plenty {
        let kept = if self.source.is_some() { self.free_for_plenty() } else { 0 };
        let want_free = self.sizes.want_free.max(kept);
        Plenty { want_free, max_bytes: self.oversize.max_bytes() }
    }

    /// Appends all of a batch, or leaves what it could not in it.
    pub(super) fn append_all<E: State>(&mut self, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
        let mut found = [(0, None); GROUP];
        let mut rest = batch.drain(..);
        loop {
            let group = self.look_ahead(rest.as_slice(), &mut found);
            if group.is_empty() {
                return Ok(());
            }
            let mut group = group.iter();
            while let Some((bucket, found, key, element)) = self.append_group(&mut group, &mut rest)
            {
                if let Err(rejected) = self.append_found(bucket, found, &key, element) {
                    let left = std::iter::once((key, bucket, rejected.value)).chain(rest);
                    let left = left.collect();
                    *batch = left;
                    return Err(rejected.error);
                }
            }
        }
    }

    /// Appends the elements of a group of which these were found, up to one that needs more to be
    /// looked at: that is returned.
    #[inline]
    fn append_group<'f, E: State>(
        &mut self,
        group: &mut impl Iterator<Item = &'f Found>,
        rest: &mut impl Iterator<Item = (K, Time, E)>,
    ) -> Option<(Time, Found, K, E)> {
        let plenty = self.plenty();
        let mut at: Option<TypedBucket<'_, K, E>> = None;
        for found in group {
            let (key, bucket, element) = rest.next()?;
            if at.as_ref().is_none_or(|at| at.time() != bucket) {
                at = self.buckets.get_mut(&bucket).map(Bucket::typed);
            }
            let refused = match &mut at {
                Some(at) => at.append(*found, &key, element, plenty).err(),
                None => Some(element),
            };
            match refused {
                None => self.elements += 1,
                Some(element) => return Some((bucket, *found, key, element)),
            }
        }
        None
    }

    /// Looks the first elements of a batch up, and has their lists fetched into the cache.
    #[inline]
    fn look_ahead<'f, E: State>(
        &self,
        batch: &[(K, Time, E)],
        found: &'f mut [Found; GROUP],
    ) -> &'f [Found] {
        let (mut known, mut bucket) = (Time::MIN, None);
        for (n, ((key, time, _), found)) in batch.iter().zip(&mut *found).enumerate() {
            if n == 0 || *time != known {
                let many = |bucket: &&Bucket<K>| bucket.live.len() >= LISTS_AHEAD;
                (known, bucket) = (*time, self.buckets.get(time).filter(many));
            }
            let hash = key.key_hash();
            *found = (hash, bucket.and_then(|bucket| bucket.live.look_ahead(hash)));
        }
        for ((_, time, _), (_, spot)) in batch.iter().zip(&*found) {
            let Some(spot) = spot else { continue };
            if *time != known {
                (known, bucket) = (*time, self.buckets.get(time));
            }
            if let Some(head) = bucket.and_then(|bucket| bucket.live.at(*spot)) {
                head.chain.prefetch_append(Layout::new::<E>());
            }
        }
        &found[..batch.len().min(GROUP)]
    }

    /// Makes room for one more element of `key`: a bucket, a head with a chunk, and its heap.
    #[cold]
    #[inline(never)]
    fn prepare<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        (hash, key): (u64, &Q),
        heap: u64,
    ) -> Result<()> {
        if !self.blocks.is_plain {
            let key = key.to_owned();
            self.oversize.check(&key, key.heap_bytes() as u64 + heap)?;
        }
        self.resume = None;
        self.poll()?;
        self.spill_ahead();
        self.check_kept(time, heap)?;
        let is_first = self.is_first(time);
        for _ in 0..ROUNDS_MAX {
            match self.try_prepare(time, (hash, key), heap) {
                Ok(()) => {
                    if is_first {
                        self.has_first();
                    }
                    return Ok(());
                }
                Err(needed) => {
                    let (slack, memory) = (self.sizes.read_slack, self.account.limit());
                    let made = self.make_room(needed + slack, "an element");
                    let made = made.map_err(|error| match error.kind() {
                        ErrorKind::OverBudget => error
                            .with("element", needed)
                            .with("kept free for reads", format_args!("{slack} of {memory}")),
                        _ => error,
                    });
                    if made.is_err() {
                        self.drop_if_vacant(time);
                        return made;
                    }
                }
            }
        }
        self.drop_if_vacant(time);
        Err(self.account.over_budget(heap, "an element"))
    }

    /// Makes room in the memory there is, or says about how much is needed.
    fn try_prepare<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        (hash, key): (u64, &Q),
        heap: u64,
    ) -> std::result::Result<(), u64> {
        let account = self.account.clone();
        let bucket = match self.buckets.entry(time) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let (name, piece) = ((time, self.epoch + 1), self.pieces.clone());
                let bucket = Bucket::new(name, self.tables, piece, &account);
                entry.insert(bucket.map_err(|_| 2 * BUCKET_BYTES)?)
            }
        };
        let element = bucket.arena.elements().layout();
        let missing = |chain: &Chain| bucket.arena.missing(element, chain.next_capacity(element));
        let found = bucket.live.find_mut(hash, |head| key.is(&head.key));
        let (chunk, key_heap) = match &found {
            Some(head) if head.chain.has_room() => (0, 0),
            Some(head) => (missing(&head.chain), 0),
            None => {
                let key_heap = if K::NO_HEAP { 0 } else { key.to_owned().heap_bytes() as u64 };
                (missing(&Chain::default()), key_heap)
            }
        };
        let needed = chunk + key_heap + heap;
        if account.available() < needed + self.sizes.read_slack {
            return Err(needed);
        }
        let head = match found {
            Some(head) => head,
            None => {
                // What it needs is free when the table has grown, or the head is not there.
                account.charge(MemoryKind::Pages, needed);
                let make = || Head { key: key.to_owned(), chain: Default::default() };
                let inserted = bucket.live.insert(hash, hash_of_head, make);
                account.release(MemoryKind::Pages, needed);
                inserted.map_err(|_| needed + self.sizes.want_free.min(64 << 10))?
            }
        };
        if !head.chain.has_room() {
            Bucket::<K>::grow(element, &mut bucket.arena, &account, &mut head.chain);
        }
        account.charge(MemoryKind::Values, key_heap);
        bucket.values += key_heap;
        Ok(())
    }
}
