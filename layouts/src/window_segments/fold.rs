//! Folding slices: all their parts walked side by side in the order of places, each key once.
//!
//! A fold reads each image once, and holds one image per run. It keeps its sources between two calls. If parts of
//! slices move meanwhile, or others need the memory, it opens the sources again at the place that it had reached.
//! Slices that are all in memory need no order: they are folded [in memory](super::fold_memory).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{ErrorKind, Key, MemoryKind, Result, State, Time};

use super::core::SegmentsCore;
use super::source::{PartCursor, ReadCounts};
use super::table::SegmentPanes;
use crate::contract::table::Cursor;
use crate::support::patient_reads::PatientReads;

/// A fold between two calls.
#[derive(Debug)]
pub struct Fold {
    slices: Range<Time>,
    /// Whether the fold is over a range of hashes only: keys outside it may change between two calls.
    is_of_hashes: bool,
    /// The first place that was not visited.
    position: u64,
    arrangement: u64,
    sources: Vec<PartCursor>,
    /// The source that is next, by place and then by age.
    order: BinaryHeap<Reverse<(u64, u32)>>,
    bytes: u64,
}

impl Fold {
    /// Bytes booked for it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<K: Key, A: State> SegmentPanes<K, A> {
    pub(super) fn fold_slices(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        if cursor.done || slices.start >= slices.end {
            cursor.done = true;
            return Ok(());
        }
        self.core.settle();
        // A merge, or reads that calls gave up waiting for, may have the memory kept for folds.
        self.core.wait_for_left()?;
        if self.fold_in_memory(&slices, cursor, fuel, visit)? {
            return Ok(());
        }
        if cursor.version != 0 {
            return Err(self.core.cannot_go_on());
        }
        // A fold that went by source continues so, and does not ask other states for memory again.
        let goes_on = self.core.goes_by_source(cursor.position);
        let all = (&slices, u64::MAX);
        if goes_on && self.fold_by_source(all, cursor, fuel, visit)? {
            return Ok(());
        }
        let mut fold = match self.core.resume_unless_packed(&slices, cursor.position, false) {
            Ok(Some(fold)) => fold,
            Ok(None) => return self.fold_packed(all, cursor, fuel, visit),
            Err(refused) if refused.kind() == ErrorKind::OverBudget => {
                let folded = self.fold_by_source(all, cursor, fuel, visit)?;
                return if folded { Ok(()) } else { Err(refused) };
            }
            Err(error) => return Err(error),
        };
        self.core.by_source = None;
        let done = self.walk(&mut fold, u64::MAX, cursor, fuel, visit);
        self.core.leave_fold(fold, done.is_ok() && !cursor.done);
        done
    }

    /// Visits keys up to the place `last` until the fuel is spent.
    pub(super) fn walk(
        &mut self,
        fold: &mut Fold,
        last: u64,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        let (core, merge): (&SegmentsCore, _) = (&self.core, &self.merge);
        let (slots, range) = (&core.slots, core.range);
        let store = core.reads.as_ref().map(PatientReads::store);
        let mut reads = ReadCounts::default();
        // The keys at one place, which share a hash, each with its accumulator so far.
        let mut group: Vec<(Cow<'_, K>, A)> = Vec::new();
        let mut visit_next = |fold: &mut Fold, place: u64| -> Result<usize> {
            let mut looked_at = 0;
            while let Some(mut top) = fold.order.peek_mut().filter(|top| top.0.0 == place) {
                let source = &mut fold.sources[top.0.1 as usize];
                let taken = source.take(slots, range, store, &mut reads)?;
                looked_at += 1;
                if let Some((key, value)) = taken {
                    let slice = slots[source.slot].as_ref().expect("a slice in use");
                    let first = match source.number {
                        u64::MAX => 0,
                        _ => slice.first_part_of(core.types, range.hash(place), &mut |cut| {
                            *cut.get::<K, u64>().0 == *key
                        }),
                    };
                    match group.iter_mut().find(|(known, _)| *known == key) {
                        _ if source.number < first => {}
                        Some((_, sum)) => merge(sum, &value),
                        None => group.push((key, value.into_owned())),
                    }
                }
                match source.place(slots, range) {
                    Some(place) => top.0.0 = place,
                    None => drop(PeekMut::pop(top)),
                }
            }
            group.drain(..).try_for_each(|(key, sum)| visit(&key, sum))?;
            Ok(looked_at)
        };
        let mut walked = Ok(());
        let next_place = |fold: &Fold| {
            let next = fold.order.peek().map(|top| top.0.0);
            next.filter(|place| *place <= last)
        };
        let mut next = next_place(fold);
        let mut spent = 0;
        while let Some(place) = next.filter(|_| spent < fuel.max(1)) {
            cursor.position = place;
            match visit_next(fold, place) {
                Ok(looked_at) => spent += looked_at,
                Err(error) => {
                    walked = Err(error);
                    break;
                }
            }
            next = next_place(fold);
        }
        self.core.stats.cold_reads += reads.images;
        self.core.stats.codec_calls += reads.records;
        walked?;
        match next {
            Some(place) => (cursor.position, fold.position) = (place, place),
            None => cursor.done = true,
        }
        Ok(())
    }
}

impl SegmentsCore {
    /// Waits until the device has ended the reads that calls gave up waiting for, so that it holds no more images. The
    /// memory kept for folds is free then.
    pub(super) fn wait_for_left(&mut self) -> Result<()> {
        self.wait_for_lent()?;
        let waited = match &self.reads {
            Some(reads) if reads.left_bytes() > 0 => reads.wait(),
            _ => Ok(()),
        };
        self.book_left();
        waited.map_err(|error| error.with("state", &self.context.name))
    }

    /// Books the images that the device holds for reads that were given up. The memory kept for folds serves first, as no
    /// fold begins before those reads have ended.
    pub(super) fn book_left(&mut self) {
        let Some(reads) = &self.reads else { return };
        let (left, usual) = (reads.left_bytes(), self.sizes.image_bytes);
        let mut own = 0;
        if left > 0 && self.folding.is_none() && !self.has_lent() {
            self.gathering.give_up(&self.account);
            own = self.sizes.fold_bytes;
        }
        if self.read_buffer.capacity() == 0 {
            match left {
                0 => self.read_buffer = IoBuffer::zeroed(usual as usize),
                _ => own += usual,
            }
        }
        reads.book(left.saturating_sub(own));
    }

    /// Keeps a fold for the next call, or gives it up.
    pub(super) fn leave_fold(&mut self, fold: Fold, goes_on: bool) {
        match goes_on {
            true => self.folding = Some(fold),
            false => {
                let bytes = fold.bytes;
                drop(fold);
                self.account.release(MemoryKind::Buffers, bytes);
                self.book_left();
            }
        }
    }

    /// The fold that was left at `position`, or one that starts there.
    fn resume(&mut self, slices: Range<Time>, position: u64, is_of_hashes: bool) -> Result<Fold> {
        if let Some(mut fold) = self.folding.take() {
            let same = (&fold.slices, fold.position, fold.is_of_hashes)
                == (&slices, position, is_of_hashes);
            if same && fold.arrangement == self.arrangement {
                if is_of_hashes {
                    self.renew_tables(&mut fold);
                }
                return Ok(fold);
            }
            self.account.release(MemoryKind::Buffers, fold.bytes);
        }
        // The fold takes the memory kept for folds first.
        self.gathering.give_up(&self.account);
        let bytes = loop {
            let bytes = self.fold_bytes(&slices);
            match self.make_room(bytes, "folding slices") {
                // Making room moves parts to storage, which takes more.
                Ok(()) if self.fold_bytes(&slices) <= bytes => break bytes,
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    // Making room may have merged runs.
                    if self.fold_bytes(&slices) >= bytes && !self.merge_for_fold(&slices)? {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        self.account.charge(MemoryKind::Buffers, bytes);
        let begun = self.begin_fold(slices, position, is_of_hashes, bytes);
        if begun.is_err() {
            self.account.release(MemoryKind::Buffers, bytes);
            self.book_left();
        }
        begun
    }

    /// [`resume`](SegmentsCore::resume)s a fold of slices, unless some of them are packed, also while room is made.
    pub(super) fn resume_unless_packed(
        &mut self,
        slices: &Range<Time>,
        position: u64,
        is_of_hashes: bool,
    ) -> Result<Option<Fold>> {
        if self.has_packed(slices) {
            return Ok(None);
        }
        let fold = self.resume(slices.clone(), position, is_of_hashes)?;
        if !self.has_packed(slices) {
            return Ok(Some(fold));
        }
        self.leave_fold(fold, false);
        Ok(None)
    }

    /// Forgets a fold that was left.
    pub(super) fn drop_fold(&mut self) {
        if let Some(fold) = self.folding.take() {
            self.account.release(MemoryKind::Buffers, fold.bytes);
        }
    }

    /// Memory for the sources of a fold, beside what is kept for folds.
    fn fold_bytes(&self, slices: &Range<Time>) -> u64 {
        let of_slice = |slot: usize| {
            let found = self.slice_at(slot);
            let runs = found.runs.iter().map(|stored| stored.run.image_bytes_max());
            let runs: u64 = runs.map(PartCursor::run_bytes).sum();
            runs + (1 + u64::from(found.frozen.is_some())) * PartCursor::table_bytes()
        };
        let slots = self.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize);
        slots.map(of_slice).sum::<u64>().saturating_sub(self.sizes.fold_bytes)
    }

    fn begin_fold(
        &mut self,
        slices: Range<Time>,
        position: u64,
        is_of_hashes: bool,
        bytes: u64,
    ) -> Result<Fold> {
        let (mut sources, mut reads) = (Vec::new(), ReadCounts::default());
        let (slots, range) = (&self.slots, self.range);
        let store = self.reads.as_ref().map(PatientReads::store);
        for &slot in self.by_time.range(slices.clone()).map(|(_, slot)| slot) {
            let slot = slot as usize;
            let found = slots[slot].as_ref().expect("a slice in use");
            for run in 0..found.runs.len() {
                let store = store.expect("a run on storage");
                let source =
                    PartCursor::of_run(slots, slot, run, position, range, store, &mut reads);
                sources.push(source?);
            }
            if let Some(part) = &found.frozen {
                sources.push(PartCursor::of_table(slots, slot, Some(part.number), position, range));
            }
            if !found.active.is_empty() {
                sources.push(PartCursor::of_table(slots, slot, None, position, range));
            }
        }
        let order = self.order_of(&sources);
        self.stats.cold_reads += reads.images;
        let arrangement = self.arrangement;
        Ok(Fold { slices, is_of_hashes, position, arrangement, sources, order, bytes })
    }

    fn order_of(&self, sources: &[PartCursor]) -> BinaryHeap<Reverse<(u64, u32)>> {
        let heads = sources.iter().zip(0..).filter_map(|(source, n)| {
            source.place(&self.slots, self.range).map(|place| Reverse((place, n)))
        });
        heads.collect()
    }

    /// Opens the sources of the tables in use again: new entries of other keys may have moved the entries of this fold.
    fn renew_tables(&self, fold: &mut Fold) {
        for source in fold.sources.iter_mut().filter(|source| source.number == u64::MAX) {
            let (slots, slot) = (&self.slots, source.slot);
            *source = PartCursor::of_table(slots, slot, None, fold.position, self.range);
        }
        fold.order = self.order_of(&fold.sources);
    }
}
