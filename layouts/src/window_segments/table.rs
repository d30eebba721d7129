//! The record path: updates in place, look-ups through the parts of a slice, removals.

use std::borrow::Cow;
use std::ops::Range;

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{
    Account, Error, Image, Key, Lookup, MemoryKind, Result, State, Time, codec,
};

use super::config::WindowSegments;
use super::core::SegmentsCore;
use super::gathering::GatheredSums;
use super::pane_type_unsafe::PaneType;
use super::typed_unsafe::{ChangingTable, TypedSegments};
use crate::append_log::NativeList;
use crate::contract::by_hash::ByHash;
use crate::contract::lists::Elements;
use crate::contract::panes::{Merge, PaneRun, Panes, PanesLayout};
use crate::contract::table::{BatchError, Cursor, StateContext};
use crate::contract::upkeep::{HasUpkeep, Upkeep};
use crate::support::key_unsafe::KeyRef;
use crate::support::oversize::Oversize;
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, heap_of};

/// Open [`WindowSegments`].
pub struct SegmentPanes<K, A> {
    pub(super) core: TypedSegments<K, A>,
    pub(super) merge: Merge<A>,
}

impl<K: Key, A: State> PanesLayout<K, A> for WindowSegments {
    type Panes = SegmentPanes<K, A>;

    fn name(&self) -> &'static str {
        super::LAYOUT
    }

    fn memory_limit(&self) -> Option<u64> {
        self.limit()
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes> {
        SegmentPanes::open(self, context, merge)
    }
}

/// A value lent to a user's closure; books the change of its heap when dropped, also by a panic.
struct LentAccumulator<'a, K: Key, A: State> {
    entry: &'a mut NativeEntry<K, A>,
    before: u64,
    heap_bytes: &'a mut u64,
    account: &'a Account,
    oversize: &'a mut Oversize,
}

impl<'a, K: Key, A: State> LentAccumulator<'a, K, A> {
    #[inline(always)]
    fn new(
        entry: &'a mut NativeEntry<K, A>,
        heap_bytes: &'a mut u64,
        account: &'a Account,
        oversize: &'a mut Oversize,
    ) -> Result<Self> {
        let before = if A::NO_HEAP { 0 } else { entry.value.heap_bytes() as u64 };
        if !A::NO_HEAP && oversize.is_seen() {
            oversize.check(&entry.key, entry.key.heap_bytes() as u64 + before)?;
        }
        Ok(Self { entry, before, heap_bytes, account, oversize })
    }
}

impl<K: Key, A: State> Drop for LentAccumulator<'_, K, A> {
    #[inline(always)]
    fn drop(&mut self) {
        if !A::NO_HEAP {
            let after = self.entry.value.heap_bytes() as u64;
            if after != self.before {
                *self.heap_bytes = *self.heap_bytes + after - self.before;
                self.account.adjust(MemoryKind::Values, self.before, after);
                if after > self.before {
                    let key = &self.entry.key;
                    self.oversize.grown(key, key.heap_bytes() as u64 + after);
                }
            }
        }
    }
}

impl<K: Key, A: State> TypedSegments<K, A> {
    pub(super) const PLAIN: bool = K::NO_HEAP && A::NO_HEAP;

    /// Puts a new key into a slice and applies `change` to what `init` gives.
    #[inline(never)]
    fn insert<R>(
        &mut self,
        slice: Time,
        hash: u64,
        key: impl FnOnce() -> K,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        let slot = self.slot_with_room(slice, hash)?;
        let ChangingTable { table, heap_bytes, account, oversize } = self.changing(slot);
        let entry = table.insert(hash, || NativeEntry { key: key(), value: init() })?;
        let heap = heap_of(&entry.key, &entry.value);
        *heap_bytes += heap;
        account.charge(MemoryKind::Values, heap);
        oversize.grown(&entry.key, heap);
        let before = if A::NO_HEAP { 0 } else { entry.value.heap_bytes() as u64 };
        let lent = LentAccumulator { entry, before, heap_bytes, account, oversize };
        Ok(change(&mut lent.entry.value))
    }

    /// As [`Panes::update`].
    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        let hash = key.key_hash();
        if !Self::PLAIN && self.account.available() < self.sizes.headroom_bytes {
            self.make_headroom()?;
        }
        if let Some(slot) = self.slot_of(slice) {
            if self.slice_at(slot).is_watched() {
                self.keep_before(slot, hash, key);
            }
            let ChangingTable { table, heap_bytes, account, oversize } = self.changing(slot);
            if let Some(entry) = table.find_mut(hash, |entry| key.is(&entry.key)) {
                let lent = LentAccumulator::new(entry, heap_bytes, account, oversize)?;
                return Ok(change(&mut lent.entry.value));
            }
        }
        if !K::NO_HEAP {
            let key = key.to_owned();
            self.oversize.check(&key, key.heap_bytes() as u64)?;
            return self.insert(slice, hash, || key, init, change);
        }
        self.insert(slice, hash, || key.to_owned(), init, change)
    }

    /// Does the same with indirect calls: the long way of items that mostly take a short one. Compiled once, not for
    /// each caller.
    #[inline(never)]
    fn update_erased<Q: Lookup<K> + ?Sized>(
        &mut self,
        slice: Time,
        key: &Q,
        init: &mut dyn FnMut() -> A,
        change: &mut dyn FnMut(&mut A),
    ) -> Result<()> {
        self.update(slice, key, init, change)
    }

    /// What the slice has of a key is about to change.
    #[cold]
    #[inline(never)]
    fn keep_before<Q: Lookup<K> + ?Sized>(&mut self, slot: usize, hash: u64, key: &Q) {
        if self.wants(slot, hash, &mut |kept| key.is(kept.native::<K>())) {
            let key = key.to_owned();
            self.keep(slot, hash, KeyRef::of(&key));
        }
    }
}

impl<K: Key, A: State> SegmentPanes<K, A> {
    fn open(layout: &WindowSegments, context: StateContext, merge: Merge<A>) -> Result<Self> {
        let put = &mut |core: &mut SegmentsCore, slice, payload: &[u8]| {
            let (key, value) = codec::decode::<K, A>(payload)?;
            TypedSegments::<K, A>::of(core).update(slice, &key, || value, |_| ())
        };
        let gathering = |bytes| Box::new(GatheredSums::<K, A>::within(bytes)) as Box<_>;
        let core = SegmentsCore::open(layout, context, PaneType::of::<K, A>(), gathering, put)?;
        Ok(Self { core: TypedSegments::new(core), merge })
    }

    /// Adds what `key` has in one part to what it has in those before.
    pub(super) fn add(merge: &Merge<A>, sum: &mut Option<A>, more: Cow<'_, A>) {
        match sum {
            Some(sum) => merge(sum, &more),
            None => *sum = Some(more.into_owned()),
        }
    }

    /// Adds what the log of small slices has of `key`.
    #[cold]
    fn add_from_log<Q: Lookup<K> + ?Sized>(
        &mut self,
        slice: Time,
        key: &Q,
        sum: &mut Option<A>,
    ) -> Result<()> {
        let merge = &self.merge;
        let Some(lists) = self.core.log_of(slice) else { return Ok(()) };
        lists.stream(slice, KeyRef::of(&key.to_owned()), &mut |list| {
            let mut list = NativeList::<A>::new(list);
            while let Some(more) = list.next()? {
                Self::add(merge, sum, Cow::Borrowed(more));
            }
            Ok(())
        })
    }

    /// Adds what a run has of `key`.
    fn add_from_run(
        &mut self,
        slot: usize,
        run: usize,
        hash: u64,
        is: impl Fn(&K) -> bool,
        sum: &mut Option<A>,
    ) -> Result<()> {
        let SegmentsCore { slots, stats, reads, account, sizes, read_buffer, .. } = &mut *self.core;
        let stored = &slots[slot].as_ref().expect("a slice in use").runs[run];
        let mut number = stored.run.image_of(hash);
        let merge = &self.merge;
        let mut add = |image: &Image| -> Result<bool> {
            for record in image.first_from(hash)..image.len() {
                if image.entry(record).hash != hash {
                    return Ok(false);
                }
                let (key, value) = codec::decode::<K, A>(image.record(record)?.payload)?;
                stats.codec_calls += 1;
                if is(&key) {
                    Self::add(merge, sum, Cow::Owned(value));
                }
            }
            Ok(true)
        };
        let mut cold = 0;
        while stored.run.images.get(number).is_some_and(|image| image.first <= hash) {
            let on = match stored.resident(number) {
                Some(image) => add(image)?,
                None => {
                    let reads = reads.as_ref().expect("a run on storage");
                    cold += 1;
                    let at = stored.run.images[number];
                    let more = at.bytes().saturating_sub(read_buffer.capacity() as u64);
                    account.reserve(MemoryKind::Buffers, more, "a long image")?;
                    let buffer = std::mem::replace(read_buffer, IoBuffer::empty());
                    let done = stored.run.read(reads.store(), number, buffer).and_then(|image| {
                        let on = add(&image)?;
                        *read_buffer = image.into_buffer();
                        Ok(on)
                    });
                    account.release(MemoryKind::Buffers, more);
                    let usual = sizes.image_bytes;
                    if reads.left_bytes() > 0 {
                        // It is booked as this one's, but for what it is longer.
                        reads.book(reads.left_bytes().saturating_sub(usual));
                    } else if read_buffer.capacity() as u64 != usual {
                        *read_buffer = IoBuffer::zeroed(usual as usize);
                    }
                    done?
                }
            };
            if !on {
                break;
            }
            number += 1;
        }
        stats.cold_reads += cold;
        Ok(())
    }
}

impl<K: Key, A: State> Panes<K, A> for SegmentPanes<K, A> {
    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        self.core.update(slice, key, init, change)
    }

    // Items of one slice, one after the other, take the short way.
    #[inline]
    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        place: impl Fn(&T) -> (Time, &Q),
        mut init: impl FnMut(&T) -> A,
        mut change: impl FnMut(&T, &mut A),
    ) -> std::result::Result<(), BatchError> {
        let mut applied = 0;
        while applied < batch.len() {
            if TypedSegments::<K, A>::PLAIN {
                applied +=
                    self.core.update_plain(&batch[applied..], &place, &mut init, &mut change);
            }
            let Some(item) = batch.get(applied) else { break };
            let (slice, key) = place(item);
            let (mut init, mut change) = (|| init(item), |acc: &mut A| change(item, acc));
            let done = match TypedSegments::<K, A>::PLAIN {
                true => self.core.update_erased(slice, key, &mut init, &mut change),
                false => self.core.update(slice, key, init, change),
            };
            done.map_err(|error| BatchError { applied, error })?;
            applied += 1;
        }
        Ok(())
    }

    #[inline]
    fn update_run<'a, B>(
        &mut self,
        slice: Time,
        run: &mut PaneRun<'a, K, B>,
        init: impl Fn() -> A,
        change: impl Fn(&mut A, &B),
    ) -> std::result::Result<(), (Error, &'a K, &'a B)> {
        let mut next = run.next();
        while let Some((key, with)) = next {
            if TypedSegments::<K, A>::PLAIN {
                next = self.core.update_plain_run(slice, (key, with), run, &init, &change);
                if next.is_none_or(|(next, _)| !std::ptr::eq(next, key)) {
                    continue;
                }
            }
            let mut change = |acc: &mut A| change(acc, with);
            let done = match TypedSegments::<K, A>::PLAIN {
                true => self.core.update_erased(slice, key, &mut &init, &mut change),
                false => self.core.update(slice, key, &init, change),
            };
            done.map_err(|error| (error, key, with))?;
            next = run.next();
        }
        Ok(())
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>> {
        self.core.settle();
        let mut sum = None;
        if self.core.packed.is_some() {
            self.add_from_log(slice, key, &mut sum)?;
        }
        let Some(slot) = self.core.slot_of(slice) else { return Ok(sum) };
        let (hash, types) = (key.key_hash(), self.core.types);
        let is_cut = &mut |cut: RecordRef<'_>| key.is(cut.get::<K, u64>().0);
        let first = self.core.slice_at(slot).first_part_of(types, hash, is_cut);
        if !self.core.slice_at(slot).runs.is_empty() {
            self.core.wait_for_left()?;
        }
        for run in 0..self.core.slice_at(slot).runs.len() {
            if self.core.slice_at(slot).runs[run].run.number >= first {
                self.add_from_run(slot, run, hash, |known| key.is(known), &mut sum)?;
            }
        }
        let found = self.core.slice_at(slot);
        let is_it = |entry: &NativeEntry<K, A>| key.is(&entry.key);
        if let Some(part) = found.frozen.as_ref().filter(|part| part.number >= first) {
            if let Some(entry) = part.table.native::<K, A>().find(hash, is_it) {
                Self::add(&self.merge, &mut sum, Cow::Borrowed(&entry.value));
            }
        }
        if let Some(entry) = self.core.active(slot).find(hash, is_it) {
            Self::add(&self.merge, &mut sum, Cow::Borrowed(&entry.value));
        }
        Ok(sum)
    }

    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()> {
        if self.core.log_of(slice).is_some() {
            // Nothing is half removed.
            self.core.make_room_to_cut(slice)?;
            self.core.remove_packed(slice, KeyRef::of(&key.to_owned()))?;
        }
        let Some(slot) = self.core.slot_of(slice) else { return Ok(()) };
        let hash = key.key_hash();
        if self.core.slice_at(slot).is_watched() {
            self.core.keep_before(slot, hash, key);
        }
        if self.core.slice_at(slot).has_older_parts() {
            let key = key.to_owned();
            self.core.cut(slot, hash, KeyRef::of(&key))?;
        }
        let is_it = &mut |known: RecordRef<'_>| key.is(known.get::<K, A>().0);
        self.core.take_from_table(slot, hash, is_it);
        self.core.end_if_empty(slice);
        Ok(())
    }

    fn next_slice(&self, from: Time) -> Option<Time> {
        self.core.next_slice(from)
    }

    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        self.fold_slices(slices, cursor, fuel, visit)
    }

    #[inline]
    fn visit(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: impl FnMut(PaneRun<'_, K, A>),
    ) -> Result<()> {
        self.visit_slices(slices, cursor, fuel, visit)
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        Some(self)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        self.core.purge_slices(before, fuel)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.core.read_ahead(until);
        self.core.packed.as_mut().map_or(Ok(()), |packed| packed.lists.prefetch(until))
    }

    fn len(&self) -> u64 {
        self.core.len()
    }
}

impl<K: Key, A: State> HasUpkeep for SegmentPanes<K, A> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.core.as_upkeep()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.core.as_upkeep_mut()
    }
}
