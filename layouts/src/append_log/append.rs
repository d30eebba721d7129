//! The record path: an element comes to the end of its key's list, alone or in a batch.
//!
//! Per element: a bucket, a look-up in its table, and a write behind the last element. Of many
//! lists, these are three lines that the cache does not have, each of which leads to the next. A
//! batch looks a group of elements up before it appends the first of them, so that their misses
//! overlap.

use alluvium_pagestore::{ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State, Time};

use super::bucket::{BUCKET_BYTES, Bucket, hash_of_head};
use super::chain_unsafe::Chain;
use super::frozen::Head;
use super::table::AppendLogLists;
use crate::heap::split_table::Spot;

/// Elements of a batch that are looked up before the first of them is appended.
const GROUP: usize = 32;
/// Lists of a bucket from which on that pays: fewer are in the cache.
const LISTS_AHEAD: u64 = 1024;
/// More than a new key and the growth of a table take, unless they are large.
const NEW_BYTES: u64 = 64 << 10;
/// While memory is plentiful: how much is to stay free, and the most heap of an element and its key.
#[derive(Clone, Copy)]
struct Plenty {
    want_free: u64,
    max_bytes: u64,
}

/// Times that a call makes room before it gives up.
const ROUNDS_MAX: usize = 16;

/// What was found of an element before it is appended: the hash of its key, and where its list
/// probably is.
type Found = (u64, Option<Spot>);

impl<K: Key, E: State> Bucket<K, E> {
    /// Appends an element while memory is plentiful, so that nothing else needs to be looked at.
    /// Otherwise it comes back.
    #[inline(always)]
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, spot): Found,
        key: &Q,
        element: E,
        plenty: Plenty,
    ) -> std::result::Result<(), E> {
        let heap = heap_of(&element);
        let head = match spot.and_then(|spot| self.live.at_mut(spot)) {
            Some(head) if key.is(&head.key) => Some(head),
            _ => self.live.find_mut(hash, |head| key.is(&head.key)),
        };
        let Some(head) = head else {
            return self.append_first((hash, key), element, plenty);
        };
        if !(K::NO_HEAP && E::NO_HEAP) && head.key.heap_bytes() as u64 + heap > plenty.max_bytes {
            return Err(element);
        }
        if !head.chain.has_room() {
            let missing = self.arena.missing(head.chain.next_capacity());
            if self.account.available() < missing + heap + plenty.want_free {
                return Err(element);
            }
            Self::grow(&mut self.arena, &self.account, &mut head.chain);
        }
        if heap > 0 {
            if self.account.available() < heap {
                return Err(element);
            }
            self.values += heap;
            self.account.charge(MemoryKind::Values, heap);
        }
        head.chain.push(element);
        self.elements += 1;
        Ok(())
    }

    /// The same with the first element of a key.
    fn append_first<Q: Lookup<K> + ?Sized>(
        &mut self,
        (hash, key): (u64, &Q),
        element: E,
        plenty: Plenty,
    ) -> std::result::Result<(), E> {
        let heap = heap_of(&element);
        let missing = self.arena.missing(Chain::<E>::default().next_capacity());
        if self.account.available() < plenty.want_free + heap + NEW_BYTES + missing {
            return Err(element);
        }
        let key = key.to_owned();
        if !(K::NO_HEAP && E::NO_HEAP) && key.heap_bytes() as u64 + heap > plenty.max_bytes {
            return Err(element);
        }
        let make = || Head { key, chain: Chain::default() };
        let Ok(head) = self.live.insert(hash, hash_of_head, make) else { return Err(element) };
        Self::grow(&mut self.arena, &self.account, &mut head.chain);
        head.chain.push(element);
        let key_heap = if K::NO_HEAP { 0 } else { head.key.heap_bytes() as u64 };
        self.values += key_heap + heap;
        self.elements += 1;
        self.account.charge(MemoryKind::Values, key_heap + heap);
        Ok(())
    }
}

#[inline(always)]
fn heap_of<E: State>(element: &E) -> u64 {
    if E::NO_HEAP { 0 } else { element.heap_bytes() as u64 }
}

impl<K: Key, E: State> AppendLogLists<K, E> {
    /// Appends an element of which this was found.
    #[inline]
    pub(super) fn append_found<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        found: Found,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let (mut element, plenty) = (element, self.plenty());
        loop {
            if let Some(at) = self.buckets.get_mut(&bucket) {
                match at.append(found, key, element, plenty) {
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
    pub(super) fn append_all(&mut self, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
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
    fn append_group<'f>(
        &mut self,
        group: &mut impl Iterator<Item = &'f Found>,
        rest: &mut impl Iterator<Item = (K, Time, E)>,
    ) -> Option<(Time, Found, K, E)> {
        let plenty = self.plenty();
        let mut at: Option<&mut Bucket<K, E>> = None;
        for found in group {
            let (key, bucket, element) = rest.next()?;
            if at.as_ref().is_none_or(|at| at.time != bucket) {
                at = self.buckets.get_mut(&bucket);
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
    fn look_ahead<'f>(&self, batch: &[(K, Time, E)], found: &'f mut [Found; GROUP]) -> &'f [Found] {
        let (mut known, mut bucket) = (Time::MIN, None);
        for (n, ((key, time, _), found)) in batch.iter().zip(&mut *found).enumerate() {
            if n == 0 || *time != known {
                let many = |bucket: &&Bucket<K, E>| bucket.live.len() >= LISTS_AHEAD;
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
                head.chain.prefetch_append();
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
        if !(K::NO_HEAP && E::NO_HEAP) {
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
        let found = bucket.live.find_mut(hash, |head| key.is(&head.key));
        let (chunk, key_heap) = match &found {
            Some(head) if head.chain.has_room() => (0, 0),
            Some(head) => (bucket.arena.missing(head.chain.next_capacity()), 0),
            None => {
                let key_heap = if K::NO_HEAP { 0 } else { key.to_owned().heap_bytes() as u64 };
                (bucket.arena.missing(Chain::<E>::default().next_capacity()), key_heap)
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
            Bucket::<K, E>::grow(&mut bucket.arena, &account, &mut head.chain);
        }
        account.charge(MemoryKind::Values, key_heap);
        bucket.values += key_heap;
        Ok(())
    }
}
