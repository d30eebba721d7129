//! Folding slices with memory for one of their parts: each is walked after the other.
//!
//! A [fold](super::fold) walks all parts side by side, with an image in memory of each run. Where memory
//! has no room for so many, a range of places is [gathered](super::gathering) from one part after the
//! other, and then visited in the order of places. An image is read again for each range that it has
//! records of. Ranges are as long as what is kept for folds allows.

use std::ops::Range;

use alluvium_pagestore::{ErrorKind, Key, Result, State, Time};

use super::core::SegmentsCore;
use super::gathering::GatheredSums;
use super::source::{PartCursor, ReadCounts};
use super::table::SegmentPanes;
use crate::append_log::NativeList;
use crate::contract::lists::Elements;
use crate::contract::table::Cursor;
use crate::support::booked::Booked;
use crate::support::patient_reads::PatientReads;

/// A fold that went by source, as far as the next call has to know.
#[derive(Clone, Copy, Debug)]
pub struct BySource {
    /// Where parts of slices were.
    arrangement: u64,
    /// Bits of places that tell ranges apart of which each has room.
    depth: u32,
}

/// What is gathered from one place to another: entries, and the parts that they are of.
struct GatheredParts {
    first: u64,
    last: u64,
    entries: usize,
    parts: usize,
}

/// Elements of the log that one of its steps looks at.
const LOG_FUEL: usize = 1024;

/// A part of a slice: its slot, and which of its parts that is.
#[derive(Clone, Copy)]
enum SlicePart {
    Run(usize, usize),
    /// A table that is being written, with its number, or the one in use.
    Table(usize, Option<u64>),
}

impl<K: Key, A: State> SegmentPanes<K, A> {
    /// Goes on with a fold of slices of which some are packed.
    #[cold]
    pub(super) fn fold_packed(
        &mut self,
        all: (&Range<Time>, u64),
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        if self.fold_by_source(all, cursor, fuel, visit)? {
            return Ok(());
        }
        let bytes = self.core.largest_source_bytes(all.0).max(self.core.sizes.fold_bytes);
        Err(self.core.account.over_budget(bytes, "folding slices"))
    }

    /// Goes on with a fold for which there is no room, up to a last place; says whether there was room for this.
    #[cold]
    pub(super) fn fold_by_source(
        &mut self,
        (slices, end): (&Range<Time>, u64),
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<bool> {
        let known = self.core.by_source.take().filter(|_| cursor.position > 0);
        if !self.core.gathering.has_room() {
            return Ok(false);
        }
        // Both take what is kept for folds.
        self.core.drop_fold();
        let bytes = self.core.largest_source_bytes(slices);
        match self.core.make_room(bytes, "folding slices") {
            // Making room moves parts to storage.
            Ok(()) if self.core.largest_source_bytes(slices) <= bytes => {}
            Err(error) if error.kind() != ErrorKind::OverBudget => return Err(error),
            _ => return Ok(false),
        }
        let account = self.core.account.clone();
        let booked = Booked::buffers(account.clone(), bytes);
        let least = self.depth_by_source(slices);
        let mut depth = known.map_or(least, |known| known.depth.max(least));
        let folded = self.gather_by_source((slices, end), (&mut depth, least), cursor, fuel, visit);
        self.core.gathering.give_up(&account);
        drop(booked);
        self.core.book_left();
        let arrangement = self.core.arrangement;
        let goes_on = matches!(folded, Ok(true)) && !cursor.done;
        self.core.by_source = goes_on.then_some(BySource { arrangement, depth });
        folded
    }

    /// Gathers and visits ranges of places until the fuel is spent; says whether they had room.
    fn gather_by_source(
        &mut self,
        (slices, end): (&Range<Time>, u64),
        (depth, least): (&mut u32, u32),
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<bool> {
        let mut spent = 0;
        while !cursor.done && spent < fuel.max(1) {
            let first = cursor.position;
            let last = (first | u64::MAX.unbounded_shr(*depth)).min(end);
            let Some(gathered) = self.gather_places(slices, first, last)? else {
                if first == last {
                    return Ok(false);
                }
                *depth += 1;
                continue;
            };
            // Each part is looked at, and an image of most of the runs is read.
            spent += gathered.entries.max(gathered.parts).max(1);
            if gathered.entries < gathered.parts {
                *depth = least.max(depth.saturating_sub(1));
            }
            self.visit_gathered(cursor, visit)?;
            match last.checked_add(1).filter(|place| *place <= end) {
                Some(place) => cursor.position = place,
                None => cursor.done = true,
            }
        }
        Ok(true)
    }

    /// Bits of places that tell ranges apart of which each, going by the largest slice, has room.
    fn depth_by_source(&mut self, slices: &Range<Time>) -> u32 {
        let slots = self.core.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize);
        let most = slots.map(|slot| self.core.slice_at(slot).len()).max().unwrap_or(0);
        let gathering = self.core.gathering.as_any().downcast_mut::<GatheredSums<K, A>>();
        let keys = gathering.expect("sums of these types").keys_max() as u64;
        most.div_ceil(keys.max(1)).max(1).next_power_of_two().ilog2()
    }

    /// Gathers what the slices have from one place to another, and says how many entries of how many parts that was; none
    /// if there was no room.
    fn gather_places(
        &mut self,
        slices: &Range<Time>,
        first: u64,
        last: u64,
    ) -> Result<Option<GatheredParts>> {
        let mut of = GatheredParts { first, last, entries: 0, parts: 0 };
        let (mut from, mut fits) = (Some(slices.start), Ok(true));
        self.clear_gathered();
        while let Ok(true) = fits
            && let Some(slice) = from.and_then(|from| self.core.next_slice(from))
            && slice < slices.end
        {
            fits = self.gather_slice(slice, &mut of);
            from = slice.0.checked_add(1).map(Time);
        }
        if !matches!(fits, Ok(true)) {
            self.clear_gathered();
        }
        fits.map(|fits| fits.then_some(of))
    }

    fn clear_gathered(&mut self) {
        let SegmentsCore { gathering, account, .. } = &mut *self.core;
        let gathering = gathering.as_any().downcast_mut::<GatheredSums<K, A>>();
        gathering.expect("sums of these types").clear(account);
    }

    /// Gathers what a slice has, the oldest part first. Says whether there was room.
    fn gather_slice(&mut self, slice: Time, of: &mut GatheredParts) -> Result<bool> {
        if !self.gather_packed(slice, of)? {
            return Ok(false);
        }
        let Some(slot) = self.core.by_time.get(&slice).map(|slot| *slot as usize) else {
            return Ok(true);
        };
        for part in self.core.parts_of(slot) {
            of.parts += 1;
            if !self.gather_part(part, of)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gathers what the log has of a slice. Says whether there was room.
    fn gather_packed(&mut self, slice: Time, of: &mut GatheredParts) -> Result<bool> {
        let (core, merge): (&mut SegmentsCore, _) = (&mut self.core, &self.merge);
        let SegmentsCore { packed, range, gathering, account, .. } = core;
        let Some(packed) = packed.as_mut().filter(|packed| packed.has(slice)) else {
            return Ok(true);
        };
        let gathering = gathering.as_any().downcast_mut::<GatheredSums<K, A>>();
        let gathering = gathering.expect("sums of these types");
        of.parts += 1;
        let (mut cursor, mut fits) = (Cursor { position: of.first, ..Cursor::default() }, true);
        while !cursor.done && cursor.position <= of.last {
            let slices = slice..slice.plus(1);
            let folded = packed.lists.fold(slices, &mut cursor, LOG_FUEL, &mut |key, list| {
                let (hash, key) = (key.key_hash(), key.native::<K>());
                if range.place(hash) > of.last {
                    return Ok(());
                }
                let mut list = NativeList::<A>::new(list);
                while let Some(sum) = list.next()? {
                    of.entries += 1;
                    if !gathering.add((hash, key, sum), merge, account) {
                        fits = false;
                        return Err(account.over_budget(0, "the sums of a range"));
                    }
                }
                Ok(())
            });
            if !fits {
                return Ok(false);
            }
            folded?;
        }
        Ok(true)
    }

    /// Gathers what a part here has. Says whether there was room.
    fn gather_part(&mut self, part: SlicePart, of: &mut GatheredParts) -> Result<bool> {
        let mut counts = ReadCounts::default();
        let gathered = self.gather_counted(part, of, &mut counts);
        self.core.stats.cold_reads += counts.images;
        self.core.stats.codec_calls += counts.records;
        gathered
    }

    fn gather_counted(
        &mut self,
        part: SlicePart,
        of: &mut GatheredParts,
        counts: &mut ReadCounts,
    ) -> Result<bool> {
        let (core, merge): (&mut SegmentsCore, _) = (&mut self.core, &self.merge);
        let SegmentsCore { slots, range, gathering, account, types, reads, .. } = core;
        let gathering = gathering.as_any().downcast_mut::<GatheredSums<K, A>>();
        let gathering = gathering.expect("sums of these types");
        let (store, range) = (reads.as_ref().map(PatientReads::store), *range);
        let mut source = match part {
            SlicePart::Run(slot, run) => {
                let store = store.expect("a run on storage");
                PartCursor::of_run(slots, slot, run, of.first, range, store, counts)?
            }
            SlicePart::Table(slot, number) => {
                PartCursor::of_table(slots, slot, number, of.first, range)
            }
        };
        while let Some(place) = source.place(slots, range).filter(|place| *place <= of.last) {
            let taken = source.take::<K, A>(slots, range, store, counts)?;
            of.entries += 1;
            let Some((key, value)) = taken else { continue };
            let slice = slots[source.slot].as_ref().expect("a slice in use");
            let from = match source.number {
                u64::MAX => 0,
                _ => slice.first_part_of(types, range.hash(place), &mut |cut| {
                    *cut.get::<K, u64>().0 == *key
                }),
            };
            let is_cut = source.number < from;
            if !is_cut && !gathering.add((range.hash(place), &key, &value), merge, account) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Visits what was gathered in the order of places. After an error the cursor has the place where that was.
    fn visit_gathered(
        &mut self,
        cursor: &mut Cursor,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        let SegmentsCore { range, gathering, account, .. } = &mut *self.core;
        let gathering = gathering.as_any().downcast_mut::<GatheredSums<K, A>>();
        let gathering = gathering.expect("sums of these types");
        gathering.sort_by(|key| range.place(key.key_hash()));
        let visited = gathering.visit(0, account, &mut |key, sum| {
            cursor.position = range.place(key.key_hash());
            visit(key, sum)
        });
        visited.map_err(|(_, error)| error)
    }
}

impl SegmentsCore {
    /// Whether a fold from this place on went by source, and nothing has moved since.
    pub(super) fn goes_by_source(&self, position: u64) -> bool {
        position > 0 && self.by_source.is_some_and(|last| last.arrangement == self.arrangement)
    }

    /// The parts of a slice, the oldest first, but for what is packed.
    fn parts_of(&self, slot: usize) -> Vec<SlicePart> {
        let found = self.slice_at(slot);
        let runs = (0..found.runs.len()).map(|run| SlicePart::Run(slot, run));
        let frozen = found.frozen.as_ref().map(|part| SlicePart::Table(slot, Some(part.number)));
        let active = (!found.active.is_empty()).then_some(SlicePart::Table(slot, None));
        runs.chain(frozen).chain(active).collect()
    }

    /// Memory for the largest part of these slices that is walked, and for the list of those of one slice.
    fn largest_source_bytes(&self, slices: &Range<Time>) -> u64 {
        let (mut largest, mut parts) = (PartCursor::table_bytes(), 0u64);
        for slot in self.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize) {
            let runs = &self.slice_at(slot).runs;
            let of_runs =
                runs.iter().map(|stored| PartCursor::run_bytes(stored.run.image_bytes_max()));
            largest = of_runs.fold(largest, u64::max);
            parts = parts.max(runs.len() as u64 + 2);
        }
        largest + 2 * parts * size_of::<SlicePart>() as u64
    }
}
