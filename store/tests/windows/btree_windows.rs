//! Panes and lists in a `BTreeMap`, behind the public traits: a backend of a user's own for windowed
//! state, and the slow, obvious form that ours are compared with.

use std::collections::BTreeMap;
use std::ops::{Bound, Range, RangeInclusive};

use alluvium::backend::{
    BlobWriter, ByHash, CheckpointOutcome, Cursor, HolisticLayout, Images, Lists, ListsLayout,
    Merge, Panes, PanesLayout, Rejected, StateContext, StateImage, Upkeep, VisitRun, WindowLayout,
    read_entries, write_entries,
};
use alluvium::states::Lookup;
use alluvium::stats::{MemoryKind, TableStats};
use alluvium::{Elements, Error, Key, Result, State, Time};

use crate::btree_layout::{BTree, of_hashes, refusals, visit_hashes};

/// `BTreeMap`s of accumulators or lists by time and key.
pub struct BTreeWindows<K, V> {
    context: StateContext,
    entries: BTreeMap<(Time, K), V>,
    images: Images,
}

fn bytes<K: State, V: State>(key: &(Time, K), value: &V) -> u64 {
    (2 * size_of::<(Time, K, V)>() + key.1.heap_bytes() + value.heap_bytes()) as u64
}

impl<K: Key + Ord, V: State> BTreeWindows<K, V> {
    fn open(mut context: StateContext) -> Result<Self> {
        let restored = context.restored.take();
        let mut this = Self { context, entries: BTreeMap::new(), images: Images::default() };
        if let Some((image, blobs)) = restored {
            read_entries(&this.context.clone(), &image, &blobs, |key, value| {
                this.context.account.reserve(
                    MemoryKind::Values,
                    bytes(&key, &value),
                    "an entry",
                )?;
                this.entries.insert(key, value);
                Ok(())
            })?;
            this.images.restored(&image);
        }
        Ok(this)
    }

    fn update<R>(
        &mut self,
        place: (Time, K),
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        refusals::write()?;
        let account = &self.context.account;
        if !self.entries.contains_key(&place) {
            let value = init();
            account.reserve(MemoryKind::Values, bytes(&place, &value), "an entry")?;
            self.entries.insert(place.clone(), value);
        }
        let value = self.entries.get_mut(&place).expect("put above");
        let before = bytes(&place, value);
        let result = change(value);
        account.adjust(MemoryKind::Values, before, bytes(&place, value));
        Ok(result)
    }

    fn remove(&mut self, place: &(Time, K)) -> Option<V> {
        let value = self.entries.remove(place)?;
        self.context.account.release(MemoryKind::Values, bytes(place, &value));
        Some(value)
    }

    fn next(&self, from: Time) -> Option<Time> {
        self.entries.keys().map(|(at, _)| *at).find(|at| *at >= from)
    }

    /// The keys with entries at some times, from one on.
    fn keys(&self, times: &Range<Time>, from: u64) -> Vec<K> {
        let within = self.entries.keys().filter(|(at, _)| times.contains(at));
        let keys: std::collections::BTreeSet<K> = within.map(|(_, key)| key.clone()).collect();
        keys.into_iter().skip(from as usize).collect()
    }

    fn drop_before(&mut self, before: Time, fuel: usize) -> bool {
        let old = self.entries.keys().take_while(|(at, _)| *at < before).cloned();
        // All at once, as what is dropped may not be seen afterwards.
        let old: Vec<_> = old.collect();
        let _ = fuel;
        old.iter().for_each(|place| drop(self.remove(place)));
        true
    }

    /// The entries of one time.
    fn at(&self, time: Time) -> impl Iterator<Item = (&K, &V)> {
        let all = self.entries.iter().filter(move |((at, _), _)| *at == time);
        all.map(|((_, key), value)| (key, value))
    }

    fn remove_hashes(
        &mut self,
        time: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> usize {
        let found = of_hashes(self.at(time), hashes);
        cursor.done = found.len() <= fuel.max(1);
        let keys: Vec<K> =
            found.into_iter().take(fuel.max(1)).map(|(_, key, _)| key.clone()).collect();
        keys.iter().for_each(|key| drop(self.remove(&(time, key.clone()))));
        keys.len()
    }

    fn checkpoint(&mut self) -> Result<StateImage> {
        let image = write_entries(&self.context, self.entries.iter())?;
        self.images.taken(&image);
        Ok(image)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.images.decide(outcome, self.context.segments.as_ref());
    }

    fn stats(&self) -> TableStats {
        let live_bytes = self.context.account.used_for(MemoryKind::Values);
        TableStats { live_keys: self.entries.len() as u64, live_bytes, ..TableStats::default() }
    }
}

/// Panes in a `BTreeMap`.
pub struct BTreePanes<K, A> {
    inner: BTreeWindows<K, A>,
    merge: Merge<A>,
}

impl<K: Key + Ord, A: State> PanesLayout<K, A> for BTree {
    type Panes = BTreePanes<K, A>;

    fn name(&self) -> &'static str {
        "btree"
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<BTreePanes<K, A>> {
        Ok(BTreePanes { inner: BTreeWindows::open(context)?, merge })
    }
}

impl<K: Key + Ord, A: State> Panes<K, A> for BTreePanes<K, A> {
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        self.inner.update((slice, key.to_owned()), init, change)
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>> {
        Ok(self.inner.entries.get(&(slice, key.to_owned())).cloned())
    }

    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()> {
        refusals::write()?;
        self.inner.remove(&(slice, key.to_owned()));
        Ok(())
    }

    fn next_slice(&self, from: Time) -> Option<Time> {
        self.inner.next(from)
    }

    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        let keys = self.inner.keys(&slices, cursor.position);
        cursor.done = keys.len() <= fuel;
        for key in keys.into_iter().take(fuel) {
            let mut whole: Option<A> = None;
            for (_, acc) in
                self.inner.entries.iter().filter(|((at, k), _)| slices.contains(at) && *k == key)
            {
                match &mut whole {
                    None => whole = Some(acc.clone()),
                    Some(whole) => (self.merge)(whole, acc),
                }
            }
            visit(&key, whole.expect("the key has an entry"))?;
            cursor.position += 1;
        }
        Ok(())
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        Ok(self.inner.drop_before(before, fuel))
    }

    fn len(&self) -> u64 {
        self.inner.entries.len() as u64
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        Some(self)
    }
}

impl<K: Key + Ord, A: State> ByHash<K, A, Time> for BTreePanes<K, A> {
    fn visit_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, A>,
    ) -> Result<()> {
        visit_hashes(self.inner.at(slice), hashes, cursor, fuel, &mut |key, acc| {
            visit(key, 0, std::slice::from_ref(acc))
        })
    }

    fn remove_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        Ok(self.inner.remove_hashes(slice, hashes, cursor, fuel))
    }
}

impl<K: Key + Ord, A: State> Upkeep for BTreePanes<K, A> {
    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        self.inner.checkpoint()
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.inner.checkpointed(outcome);
    }

    fn stats(&self) -> TableStats {
        self.inner.stats()
    }
}

/// Lists in a `BTreeMap`.
pub struct BTreeLists<K, E>(BTreeWindows<K, Vec<E>>);

impl<K: Key + Ord, E: State> ListsLayout<K, E> for BTree {
    type Lists = BTreeLists<K, E>;

    fn name(&self) -> &'static str {
        "btree"
    }

    fn open_lists(&self, context: StateContext) -> Result<BTreeLists<K, E>> {
        Ok(BTreeLists(BTreeWindows::open(context)?))
    }
}

/// The elements of some lists, one list after the other.
struct Several<'a, E>(Box<dyn Iterator<Item = &'a E> + 'a>);

impl<E> Elements<E> for Several<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        Ok(self.0.next())
    }
}

impl<K: Key + Ord, E: State> Lists<K, E> for BTreeLists<K, E> {
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let kept = element.clone();
        let place = (bucket, key.to_owned());
        let done = self.0.update(place, Vec::new, |list| list.push(element));
        done.map_err(|error: Error| Rejected::new(error, kept))
    }

    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        match self.0.entries.get(&(bucket, key.to_owned())) {
            Some(list) => visit(&mut Several(Box::new(list.iter()))),
            None => Ok(()),
        }
    }

    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()> {
        refusals::write()?;
        self.0.remove(&(bucket, key.to_owned()));
        Ok(())
    }

    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()> {
        let (from, to) = ((from, key.to_owned()), (to, key.to_owned()));
        let Some(mut list) = self.0.entries.get(&from).cloned() else { return Ok(()) };
        // The new one first, which may be refused.
        self.0.update(to, Vec::new, |there| {
            list.append(there);
            *there = list;
        })?;
        self.0.remove(&from);
        Ok(())
    }

    fn next_bucket(&self, from: Time) -> Option<Time> {
        self.0.next(from)
    }

    fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        let keys = self.0.keys(&buckets, cursor.position);
        cursor.done = keys.len() <= fuel;
        for key in keys.into_iter().take(fuel) {
            let lists = self
                .0
                .entries
                .range((Bound::Included((buckets.start, key.clone())), Bound::Unbounded));
            let own = lists.filter(|((at, k), _)| buckets.contains(at) && *k == key);
            visit(&key, &mut Several(Box::new(own.flat_map(|(_, list)| list))))?;
            cursor.position += 1;
        }
        Ok(())
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        Ok(self.0.drop_before(before, fuel))
    }

    fn len(&self) -> u64 {
        self.0.entries.values().map(|list| list.len() as u64).sum()
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, E, Time>> {
        Some(self)
    }
}

impl<K: Key + Ord, E: State> ByHash<K, E, Time> for BTreeLists<K, E> {
    fn visit_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, E>,
    ) -> Result<()> {
        visit_hashes(self.0.at(bucket), hashes, cursor, fuel, &mut |key, list| visit(key, 0, list))
    }

    fn remove_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        Ok(self.0.remove_hashes(bucket, hashes, cursor, fuel))
    }
}

impl<K: Key + Ord, E: State> Upkeep for BTreeLists<K, E> {
    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        self.0.checkpoint()
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.0.checkpointed(outcome);
    }

    fn stats(&self) -> TableStats {
        self.0.stats()
    }
}

impl<K: Key + Ord, A: State> WindowLayout<K, A> for BTree {
    type Panes = BTree;
    type Sessions = BTree;

    fn panes(&self) -> BTree {
        BTree
    }

    fn sessions(&self) -> BTree {
        BTree
    }
}

impl<K: Key + Ord, E: State> HolisticLayout<K, E> for BTree {
    type Lists = BTree;
    type Sessions = BTree;

    fn lists(&self) -> BTree {
        BTree
    }

    fn sessions(&self) -> BTree {
        BTree
    }
}
