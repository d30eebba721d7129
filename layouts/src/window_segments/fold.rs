//! Folding slices: all their parts walked side by side in the order of places, each key once.
//!
//! What one fold reads of storage it reads once, with one image in memory per run. Between the calls
//! of a fold its sources stay as they are; if parts of slices move meanwhile, or memory is needed,
//! they are made anew from the place that was reached. Slices that are all in memory need no order: they
//! are folded [in memory](super::fold_memory).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

use alluvium_pagestore::{ErrorKind, Key, MemoryKind, Result, State, Time};

use super::source::{Reads, Source};
use super::table::SegmentPanes;
use crate::table::Cursor;

/// A fold between two calls.
#[derive(Debug)]
pub struct Fold {
    slices: Range<Time>,
    /// The first place that was not visited.
    position: u64,
    arrangement: u64,
    sources: Vec<Source>,
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
        self.settle();
        if self.fold_in_memory(&slices, cursor, fuel, visit)? {
            return Ok(());
        }
        if cursor.version != 0 {
            return Err(self.cannot_go_on());
        }
        let mut fold = self.resume(slices, cursor.position)?;
        let done = self.walk(&mut fold, cursor, fuel, visit);
        if done.is_ok() && !cursor.done {
            self.folding = Some(fold);
        } else {
            self.account.release(MemoryKind::Buffers, fold.bytes);
        }
        done
    }

    /// The fold that was left at `position`, or one that starts there.
    fn resume(&mut self, slices: Range<Time>, position: u64) -> Result<Fold> {
        if let Some(fold) = self.folding.take() {
            let same = fold.slices == slices && fold.position == position;
            if same && fold.arrangement == self.arrangement {
                return Ok(fold);
            }
            self.account.release(MemoryKind::Buffers, fold.bytes);
        }
        // What is kept for folds serves first.
        self.gathering.give_up(&self.account);
        let bytes = loop {
            let bytes = self.fold_bytes(&slices);
            match self.make_room(bytes, "folding slices") {
                // Making room moves parts to storage, which takes more.
                Ok(()) if self.fold_bytes(&slices) <= bytes => break bytes,
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    // Runs may have been made one while room was made.
                    if self.fold_bytes(&slices) >= bytes && !self.merge_for_fold(&slices)? {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        self.account.charge(MemoryKind::Buffers, bytes);
        let begun = self.begin_fold(slices, position, bytes);
        if begun.is_err() {
            self.account.release(MemoryKind::Buffers, bytes);
        }
        begun
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
            let runs: u64 = runs.map(Source::run_bytes).sum();
            runs + (1 + u64::from(found.frozen.is_some())) * Source::table_bytes()
        };
        let slots = self.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize);
        slots.map(of_slice).sum::<u64>().saturating_sub(self.sizes.fold_bytes)
    }

    fn begin_fold(&mut self, slices: Range<Time>, position: u64, bytes: u64) -> Result<Fold> {
        let (mut sources, mut reads) = (Vec::new(), Reads::default());
        let (slots, range) = (&self.slots, self.range);
        let store = self.background.storage.as_ref().map(|storage| &storage.store);
        for &slot in self.by_time.range(slices.clone()).map(|(_, slot)| slot) {
            let slot = slot as usize;
            let found = slots[slot].as_ref().expect("a slice in use");
            for run in 0..found.runs.len() {
                let store = store.expect("a run on storage");
                let source = Source::of_run(slots, slot, run, position, range, store, &mut reads);
                sources.push(source?);
            }
            if let Some(part) = &found.frozen {
                sources.push(Source::of_table(slots, slot, Some(part.number), position, range));
            }
            if !found.active.is_empty() {
                sources.push(Source::of_table(slots, slot, None, position, range));
            }
        }
        let heads = sources
            .iter()
            .zip(0..)
            .filter_map(|(source, n)| source.place(slots, range).map(|place| Reverse((place, n))));
        let order = heads.collect();
        self.stats.cold_reads += reads.images;
        let arrangement = self.arrangement;
        Ok(Fold { slices, position, arrangement, sources, order, bytes })
    }

    /// Visits keys until the fuel is spent.
    fn walk(
        &mut self,
        fold: &mut Fold,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        let (slots, range, merge) = (&self.slots, self.range, &self.merge);
        let store = self.background.storage.as_ref().map(|storage| &storage.store);
        let mut reads = Reads::default();
        // Keys whose hashes are the same, each with what it has so far.
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
                        _ => slice.first_part_of(range.hash(place), |cut| *cut == *key),
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
        let mut next = fold.order.peek().map(|top| top.0.0);
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
            next = fold.order.peek().map(|top| top.0.0);
        }
        self.stats.cold_reads += reads.images;
        self.stats.codec_calls += reads.records;
        walked?;
        match next {
            Some(place) => (cursor.position, fold.position) = (place, place),
            None => cursor.done = true,
        }
        Ok(())
    }
}
