//! Folding slices that are all in memory: no order is needed, each key is looked up instead.
//!
//! The table of a slice folded alone is visited as it stands. Of several slices a range of places
//! is gathered, all slices after each other, and then visited; ranges are as long as fuel and cache
//! allow, and not much shorter than a part of each table, which is looked at whole.
//!
//! Only a visit can fail halfway through a range. The cursor then has where the range begins and
//! how much of it was visited, which holds as long as its slices stay in memory as they are.

use std::ops::Range;

use alluvium_pagestore::{Account, Error, ErrorKind, Key, Result, State, Time};

use super::core::SegmentsCore;
use super::gathering::GatheredSums;
use super::slice::Slice;
use super::table::SegmentPanes;
use crate::contract::panes::{Merge, PaneRun};
use crate::contract::table::Cursor;
use crate::heap::entry_part_unsafe::EntryPart;
use crate::heap::entry_table_unsafe::{PART_ENTRIES_MAX, PartSpan};
use crate::heap::hash_range::HashRange;
use crate::support::record_type_unsafe::NativeEntry;

/// Accumulators that are gathered at once, unless there are very many slices.
const GATHERED_MAX: u64 = 8192;
/// A range with fewer accumulators than this is not made shorter.
const GATHERED_MIN: u64 = 32;

/// What came of visiting a part: an error, and how many of its entries were visited before.
type VisitOutcome = std::result::Result<(), (u64, Error)>;

/// What slices have in memory.
struct Extent {
    tables: u64,
    accumulators: u64,
}

/// A range of places that begins where a prefix of `depth` bits ends, or inside of one.
#[derive(Clone, Copy)]
struct PlaceRange {
    first: u64,
    last: u64,
    depth: u32,
}

impl PlaceRange {
    fn from(first: u64, depth: u32) -> Self {
        Self { first, last: first | u64::MAX.unbounded_shr(depth), depth }
    }
}

impl<K: Key, A: State> SegmentPanes<K, A> {
    /// As `fold_slices`. What stands in one table in memory is lent as it stands.
    pub(super) fn visit_slices(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        mut visit: impl FnMut(PaneRun<'_, K, A>),
    ) -> Result<()> {
        if self.core.is_one_table(&slices, cursor)? {
            return self.visit_table(&slices, cursor, fuel, |part, visited| {
                let mut entries = part.iter();
                entries.by_ref().take(visited as usize).for_each(|_| ());
                visit(PaneRun::of_table(entries));
                Ok(())
            });
        }
        self.fold_slices(slices, cursor, fuel, &mut |key, acc| {
            visit(PaneRun::of_one(key, &acc));
            Ok(())
        })
    }

    /// Folds if all of the slices is in memory and there is memory to do it here; says whether.
    pub(super) fn fold_in_memory(
        &mut self,
        slices: &Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<bool> {
        let Some(extent) = self.core.extent_in_memory(slices) else { return Ok(false) };
        match extent.tables {
            0 => cursor.done = true,
            1 => self.visit_table(slices, cursor, fuel, |part, visited| {
                visit_part(part, visited, visit)
            })?,
            _ => return self.gather(slices, extent, cursor, fuel, visit),
        }
        Ok(true)
    }

    /// Visits the parts of the only table that has entries. `visit` gets how many of its part were visited
    /// before; its error comes with how many are now.
    fn visit_table(
        &self,
        slices: &Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        mut visit: impl FnMut(EntryPart<'_, NativeEntry<K, A>>, u64) -> VisitOutcome,
    ) -> Result<()> {
        let core: &SegmentsCore = &self.core;
        let mut slots = core.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize);
        let has_any = |slot: &usize| core.slice_at(*slot).len() > 0;
        let found = core.slice_at(slots.find(has_any).expect("a table with entries"));
        let frozen = found.frozen.as_ref().filter(|_| found.active.is_empty());
        let table = frozen.map_or(&found.active, |part| &**part.table).native::<K, A>();
        let mut spent = 0;
        while !cursor.done && spent < fuel.max(1) {
            let (part, next) = table.part_at(cursor.position);
            // What comes next is on its way while this is visited.
            next.into_iter().for_each(|next| table.fetch_part(next));
            let visited = std::mem::take(&mut cursor.version);
            visit(part, visited).map_err(|(n, error)| {
                cursor.version = n;
                error
            })?;
            spent += part.len().max(1);
            cursor.go_on(next);
        }
        Ok(())
    }

    /// Gathers and visits ranges of places until the fuel is spent; says whether it could.
    fn gather(
        &mut self,
        slices: &Range<Time>,
        extent: Extent,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<bool> {
        if !self.core.gathering.has_room() {
            return Ok(false);
        }
        // Both take what is kept for folds.
        self.core.drop_fold();
        let (core, merge): (&mut SegmentsCore, _) = (&mut self.core, &self.merge);
        let SegmentsCore { slots, by_time, range, gathering, account, .. } = core;
        let gathering = gathering.as_any().downcast_mut::<GatheredSums<K, A>>();
        let gathering = gathering.expect("sums of these types");
        let slices = || by_time.range(slices.clone()).map(|(_, slot)| &slots[*slot as usize]);
        let at_least = extent.tables * PART_ENTRIES_MAX as u64;
        let wanted = (fuel as u64).clamp(at_least, GATHERED_MAX.max(at_least));
        let mut depth = extent.accumulators.div_ceil(wanted).next_power_of_two().ilog2();
        let mut spent = 0;
        while !cursor.done && spent < fuel.max(1) {
            let (visited, begun) = (cursor.version as u32 as usize, cursor.version >> 32);
            let begun = u32::try_from(begun).ok().and_then(|begun| begun.checked_sub(1));
            let places = PlaceRange::from(cursor.position, begun.unwrap_or(depth));
            gathering.clear(account);
            let (mut fits, mut looked_at) = (true, 0);
            for slice in slices() {
                let slice = slice.as_ref().expect("a slice in use");
                fits = add_slice(gathering, slice, places, *range, merge, account, &mut looked_at);
                if !fits {
                    break;
                }
            }
            if !fits {
                gathering.clear(account);
                if begun.is_some() || extent.accumulators.unbounded_shr(depth) < GATHERED_MIN {
                    return Ok(false);
                }
                depth += 1;
                continue;
            }
            spent += looked_at;
            cursor.version = 0;
            if let Err((n, error)) = gathering.visit(visited, account, visit) {
                if n > 0 {
                    cursor.version = u64::from(places.depth + 1) << 32 | n as u64;
                }
                return Err(error);
            }
            cursor.go_on(places.last.checked_add(1));
        }
        Ok(true)
    }
}

impl SegmentsCore {
    /// Whether there is more of a fold, and all of it stands in one table in memory.
    fn is_one_table(&mut self, slices: &Range<Time>, cursor: &Cursor) -> Result<bool> {
        if cursor.done || slices.start >= slices.end {
            return Ok(false);
        }
        self.settle();
        // As before any fold.
        self.wait_for_left()?;
        Ok(self.extent_in_memory(slices).is_some_and(|extent| extent.tables == 1))
    }

    /// What the slices have, if that is all in memory and nothing of it was removed.
    fn extent_in_memory(&self, slices: &Range<Time>) -> Option<Extent> {
        if self.has_packed(slices) {
            return None;
        }
        let mut extent = Extent { tables: 0, accumulators: 0 };
        for slot in self.by_time.range(slices.clone()).map(|(_, slot)| *slot as usize) {
            let found = self.slice_at(slot);
            if !found.runs.is_empty() || !found.cuts.is_empty() || !found.gaps.is_empty() {
                return None;
            }
            let frozen = found.frozen.as_ref().map_or(0, |part| part.table.len());
            extent.tables += u64::from(frozen > 0) + u64::from(!found.active.is_empty());
            extent.accumulators += frozen + found.active.len();
        }
        Some(extent)
    }

    /// The error of a fold that cannot go on inside the range where a visit failed.
    pub(super) fn cannot_go_on(&self) -> Error {
        let message = "a visit of this fold failed, and its slices have moved to storage since, or \
             memory ran out: start the fold again";
        Error::new(ErrorKind::Unsupported, message).with("state", &self.context.name)
    }
}

/// Visits the entries of a part but the first `visited`; an error comes with how many were before.
fn visit_part<K, A: Clone>(
    part: EntryPart<'_, NativeEntry<K, A>>,
    visited: u64,
    visit: &mut dyn FnMut(&K, A) -> Result<()>,
) -> VisitOutcome {
    let mut entries = part.iter();
    entries.by_ref().take(visited as usize).for_each(|_| ());
    for (n, entry) in (visited..).zip(entries) {
        visit(&entry.key, entry.value.clone()).map_err(|error| (n, error))?;
    }
    Ok(())
}

/// Adds what a slice has at the given places; says whether there was room.
fn add_slice<K: Key, A: State>(
    gathering: &mut GatheredSums<K, A>,
    slice: &Slice,
    places: PlaceRange,
    range: HashRange,
    merge: &Merge<A>,
    account: &Account,
    looked_at: &mut usize,
) -> bool {
    let mut add = |span: PartSpan<'_, NativeEntry<K, A>>| {
        let is_whole = span.first >= places.first && span.last <= places.last;
        *looked_at += span.part.len();
        span.part.iter().all(|NativeEntry { key, value }| {
            let hash = key.key_hash();
            let is_here = is_whole || (places.first..=places.last).contains(&range.place(hash));
            !is_here || gathering.add((hash, key, value), merge, account)
        })
    };
    let asked = places.first..=places.last;
    let frozen = slice.frozen.as_ref().map(|part| part.table.native::<K, A>());
    let frozen = frozen.map(|table| table.spans(asked.clone()));
    let active = slice.active.native::<K, A>();
    frozen.into_iter().flatten().all(&mut add) && active.spans(asked).all(add)
}
