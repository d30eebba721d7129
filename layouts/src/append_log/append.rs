//! The record path: an element comes to the end of its key's list, alone or in a batch.
//!
//! Per element: a bucket, a look-up in its table, and a write behind the last element. Of many
//! lists, these are three lines that the cache does not have, each of which leads to the next. A
//! batch looks a group of elements up before it appends the first of them, so that their misses
//! overlap.

use std::alloc::Layout;

use alluvium_pagestore::{ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State, Time};

use super::bucket::{AppendBucket, BUCKET_BYTES};
use super::chain_unsafe::ElementChain;
use super::core::ListsCore;
use super::heads_unsafe::ReadHeads;
use super::key_unsafe::KeyRef;
use super::typed_unsafe::{PlentifulMemory, ProbedKey, TypedBucket, TypedLists, heap_of};

/// Elements of a batch that are looked up before the first of them is appended.
const GROUP: usize = 32;
/// Lists of a bucket from which on that pays: fewer are in the cache.
const LISTS_AHEAD: u64 = 1024;
/// Times that a call makes room before it gives up.
const ROUNDS_MAX: usize = 16;

impl<K: Key, E: State> TypedLists<K, E> {
    /// Appends an element of which this was found.
    #[inline]
    pub fn append_found<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        found: ProbedKey,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let (mut element, plenty) = (element, self.plenty());
        loop {
            let (mut buckets, elements) = self.parts();
            if let Some(mut at) = buckets.get_mut(bucket) {
                match at.append(found, key, element, plenty) {
                    Ok(()) => {
                        *elements += 1;
                        return Ok(());
                    }
                    Err(back) => element = back,
                }
            }
            if let Err(error) = self.prepare_list(bucket, (found.0, key), heap_of(&element)) {
                return Err(Rejected::new(error, element));
            }
        }
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
        group: &mut impl Iterator<Item = &'f ProbedKey>,
        rest: &mut impl Iterator<Item = (K, Time, E)>,
    ) -> Option<(Time, ProbedKey, K, E)> {
        let plenty = self.plenty();
        let (mut buckets, elements) = self.parts();
        let mut at: Option<TypedBucket<'_, K, E>> = None;
        for found in group {
            let (key, bucket, element) = rest.next()?;
            if at.as_ref().is_none_or(|at| at.time() != bucket) {
                at = buckets.get_mut(bucket);
            }
            let refused = match &mut at {
                Some(at) => at.append(*found, &key, element, plenty).err(),
                None => Some(element),
            };
            match refused {
                None => *elements += 1,
                Some(element) => return Some((bucket, *found, key, element)),
            }
        }
        None
    }

    /// Looks the first elements of a batch up, and has their lists fetched into the cache.
    #[inline]
    fn look_ahead<'f>(
        &self,
        batch: &[(K, Time, E)],
        found: &'f mut [ProbedKey; GROUP],
    ) -> &'f [ProbedKey] {
        let (mut known, mut heads) = (Time::MIN, None);
        for (n, ((key, time, _), found)) in batch.iter().zip(&mut *found).enumerate() {
            if n == 0 || *time != known {
                let many = |heads: &ReadHeads<'_, K>| heads.len() >= LISTS_AHEAD;
                (known, heads) = (*time, self.heads(time).filter(many));
            }
            let hash = key.key_hash();
            *found = (hash, heads.map(|heads| heads.look_ahead(hash)));
        }
        for ((_, time, _), (hash, near)) in batch.iter().zip(&*found) {
            let Some(near) = near else { continue };
            if *time != known {
                (known, heads) = (*time, self.heads(time));
            }
            if let Some(chain) = heads.and_then(|heads| heads.at(*hash, *near)) {
                chain.prefetch_append(Layout::new::<E>());
            }
        }
        &found[..batch.len().min(GROUP)]
    }

    /// Makes room for one more element of `key`.
    #[cold]
    #[inline(never)]
    fn prepare_list<Q: Lookup<K> + ?Sized>(
        &mut self,
        time: Time,
        (hash, key): (u64, &Q),
        heap: u64,
    ) -> Result<()> {
        let key = key.to_owned();
        if !self.list_type.is_plain {
            self.oversize.check(&key, key.heap_bytes() as u64 + heap)?;
        }
        self.prepare(time, (hash, KeyRef::of(&key)), heap)
    }
}

impl ListsCore {
    fn plenty(&self) -> PlentifulMemory {
        let kept = if self.source.is_some() { self.free_for_plenty() } else { 0 };
        let want_free = self.sizes.want_free.max(kept).max(self.account.left_to_others());
        PlentifulMemory { want_free, max_bytes: self.oversize.max_bytes() }
    }

    /// Makes room for one more element: a bucket, a head with a chunk, and its heap.
    fn prepare(&mut self, time: Time, (hash, key): (u64, KeyRef<'_>), heap: u64) -> Result<()> {
        self.leave_fold();
        self.poll()?;
        self.pay_for_merges();
        self.spill_ahead();
        self.check_kept(time, heap)?;
        let is_first = self.is_first(time);
        for _ in 0..ROUNDS_MAX {
            match self.try_prepare(time, (hash, key), heap) {
                Ok(()) => {
                    if is_first {
                        self.has_first(time);
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
    fn try_prepare(
        &mut self,
        time: Time,
        (hash, key): (u64, KeyRef<'_>),
        heap: u64,
    ) -> std::result::Result<(), u64> {
        let account = self.account.clone();
        if !self.buckets.contains_key(&time) {
            let bucket = self.new_bucket((time, self.epoch + 1)).map_err(|_| 2 * BUCKET_BYTES)?;
            self.add_bucket(bucket);
        }
        let bucket = self.buckets.get_mut(&time).expect("there or made");
        let element = bucket.arena.elements().layout();
        let missing =
            |chain: &ElementChain| bucket.arena.missing(element, chain.next_capacity(element));
        let found = bucket.live.find(hash, key).map(|(_, chain)| chain);
        let (chunk, key_heap) = match found {
            Some(chain) if chain.has_room() => (0, 0),
            Some(chain) => (missing(chain), 0),
            None => (missing(&ElementChain::default()), key.heap_bytes()),
        };
        let needed = chunk + key_heap + heap;
        if account.available() < needed + self.sizes.read_slack {
            return Err(needed);
        }
        if found.is_none() {
            // What it needs is free when the table has grown, or the head is not there.
            account.charge(MemoryKind::Pages, needed);
            let inserted = bucket.live.insert(hash, key);
            account.release(MemoryKind::Pages, needed);
            let key_heap = inserted.map_err(|_| needed + self.sizes.want_free.min(64 << 10))?;
            account.charge(MemoryKind::Values, key_heap);
            bucket.values += key_heap;
        }
        let chain = bucket.live.chain_mut(hash, key).expect("there or made");
        if !chain.has_room() {
            AppendBucket::grow(element, &mut bucket.arena, &account, chain);
        }
        Ok(())
    }
}
