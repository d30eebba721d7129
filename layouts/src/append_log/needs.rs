//! What memory an append log wants for a number of slices: the sums by which an open log books, for one that has so many.

use alluvium_pagestore::{Key, SegmentInfo, State, Time, rounded};

use super::arena_unsafe;
use super::block::ListType;
use super::bucket::BUCKET_BYTES;
use super::chain_unsafe::{ElementChain, next_capacity};
use super::config::AppendLog;
use super::core::ListsCore;
use super::jobs::ENTRY_BYTES;
use super::list_checkpoint::NAMED_BYTES;
use super::packed::{PackedSlice, SliceDirectory};
use super::run::{BlockAt, RUN_BYTES};
use super::runs_memory::DESCRIBED_BYTES;
use crate::contract::needs::{ContextOf, ExpectedSlices, HotPlacement, MemoryNeeds, MemoryParts};
use crate::contract::table::StateContext;

/// A table of heads has at least so many bytes, and up to so many times those of its heads, in tenths.
const HEADS_BYTES_MIN: u64 = 320;
const HEADS_TENTHS: u64 = 24;
/// The pieces of an arena have at least so many bytes, and up to half as many more than their chunks, as each is half as
/// long as those before.
const PIECES_BYTES_MIN: u64 = 336;
/// Slices whose lines of the directory are made to see what they take.
const SAMPLE: u64 = 1024;
/// Event time between two of them: a second.
const WIDTH: i64 = 1_000_000_000;
/// More than this is too much for any memory.
const MOST: u128 = 1 << 50;
/// Chunks of a list that is longer are as long as the last one.
const LONG: u64 = 4096;
/// What is kept free for a bucket that is not written.
const UNWRITTEN_BYTES: u64 = NAMED_BYTES + RUN_BYTES + 2 * DESCRIBED_BYTES;

impl AppendLog {
    /// Says what memory an append log with these options wants for so many slices. None: no memory is enough. `context_of`
    /// gives each memory that is tried. Cost: some milliseconds.
    pub fn memory_for<K: Key, E: State>(
        &self,
        slices: &ExpectedSlices,
        context_of: ContextOf<'_>,
    ) -> Option<MemoryNeeds> {
        memory_for(self, ListType::of::<K, E>(), slices, context_of)
    }
}

fn memory_for(
    layout: &AppendLog,
    list_type: &'static ListType,
    slices: &ExpectedSlices,
    context_of: ContextOf<'_>,
) -> Option<MemoryNeeds> {
    if all_bytes_max(list_type, slices).is_none_or(|bytes| bytes > MOST) {
        return None;
    }
    let asked = RequestedLists { slices, slice: SliceNeeds::of(list_type, slices) };
    MemoryNeeds::find(context_of, &mut |context, hot| {
        let before = context.account.used();
        let mut lists = ListsCore::open(layout, list_type, context.clone()).ok()?;
        let opened = context.account.used() - before;
        let parts = asked.parts_in(&mut lists, context, hot);
        Some(MemoryParts { buffers: parts.buffers + opened, ..parts })
    })
}

/// More than all slices take, each figure by itself too. None: more than can be told.
fn all_bytes_max(list_type: &ListType, slices: &ExpectedSlices) -> Option<u128> {
    let ExpectedSlices { slices, lists, elements, owned_bytes } = *slices;
    let element = list_type.elements.layout().size() as u128;
    let key = list_type.heads.key().layout().size() as u128;
    let of_elements = u128::from(elements).checked_mul(4 * (element + 1))?;
    let list = of_elements.checked_add(u128::from(owned_bytes) + 1024 + 8 * key)?;
    let slice = list.checked_mul(u128::from(lists.max(1)))?.checked_add(4096)?;
    slice.checked_mul(u128::from(slices.max(1)))
}

/// What one slice takes.
#[derive(Clone, Copy, Debug)]
struct SliceNeeds {
    elements: u64,
    /// Its lists in memory, without the bucket.
    in_memory: u64,
    /// The part of that which is free once they are written.
    elastic: u64,
    /// The same as they count where blocks are cut.
    counted: u64,
}

impl SliceNeeds {
    fn of(list_type: &ListType, slices: &ExpectedSlices) -> Self {
        let ExpectedSlices { lists, elements, owned_bytes, .. } = *slices;
        let element = list_type.elements.layout();
        let (mut room, mut last, mut chunks) = (0, 0, 0);
        let bytes = |capacity| arena_unsafe::layout(element, capacity).size() as u64;
        while room < elements.min(LONG) {
            last = next_capacity(element, room, last);
            room += u64::from(last);
            chunks += bytes(last);
        }
        if room < elements {
            chunks += (elements - room).div_ceil(u64::from(last)) * bytes(last);
        }
        let key = list_type.heads.key().layout().size() as u64;
        let heads = lists * (key + size_of::<ElementChain>() as u64) * HEADS_TENTHS / 10;
        let elastic = (lists * chunks * 3 / 2).max(PIECES_BYTES_MIN) + lists * owned_bytes;
        let counted = key + ENTRY_BYTES as u64 + elements * element.size() as u64 + owned_bytes;
        Self {
            elements: lists * elements,
            in_memory: heads.max(HEADS_BYTES_MIN) + elastic,
            elastic,
            counted: lists * counted,
        }
    }
}

/// An append log that is asked for.
struct RequestedLists<'a> {
    slices: &'a ExpectedSlices,
    slice: SliceNeeds,
}

impl RequestedLists<'_> {
    fn parts_in(
        &self,
        lists: &mut ListsCore,
        context: &StateContext,
        hot: HotPlacement,
    ) -> MemoryParts {
        let (slices, one) = (self.slices.slices, BUCKET_BYTES + self.slice.in_memory);
        let (is_stored, memory) = (context.segments.is_some(), context.account.limit());
        let is_packed = self.is_packed(lists, memory);
        if hot == HotPlacement::InMemory || !is_stored {
            // Writing begins while a part of the memory is free. What is not written is kept room for too.
            let kept = match is_packed {
                true => 0,
                false => lists.kept_with((slices + 1) * UNWRITTEN_BYTES) + lists.run_bytes(),
            };
            let kept = kept.saturating_sub(slices * self.slice.elastic);
            let work = if is_stored { lists.sizes.want_free.max(kept) } else { 0 };
            // One more, as it comes before others are written.
            return MemoryParts { records: (slices + 1) * one, work, ..MemoryParts::default() };
        }
        let mut parts = match is_packed {
            true => self.packed(lists, slices),
            false => self.in_runs(lists, slices, memory),
        };
        // A slice that comes, of which parts are written if it is long.
        let comes = one.min(lists.sizes.batch_bytes);
        parts.work = parts.work.max(lists.sizes.read_slack + lists.sizes.slack) + comes;
        parts
    }

    /// Whether slices of that many are packed.
    fn is_packed(&self, lists: &ListsCore, memory: u64) -> bool {
        let packable = lists.packed.as_ref().map_or(0, |packed| packed.packable_bytes_of_many());
        let own_runs = self.slices.slices.saturating_mul(BUCKET_BYTES + RUN_BYTES);
        lists.sizes.packs_slices && self.slice.in_memory <= packable && own_runs > memory / 64
    }

    fn packed(&self, lists: &mut ListsCore, slices: u64) -> MemoryParts {
        let directory = self.directory_bytes(slices);
        let writer = lists.packs_from_now_on();
        MemoryParts {
            directories: directory,
            buffers: writer,
            work: lists.kept_with(directory),
            ..MemoryParts::default()
        }
    }

    /// The directory of so many packed slices.
    fn directory_bytes(&self, slices: u64) -> u64 {
        let mut sample = SliceDirectory::default();
        for nth in 0..slices.min(SAMPLE) {
            let (elements, bytes) = (self.slice.elements, self.slice.counted);
            let slice = PackedSlice { elements, bytes, since: 1 + nth / 64 };
            sample.add(Time(nth as i64 * WIDTH), slice);
        }
        let bytes = u128::from(sample.memory_bytes()) * u128::from(slices);
        (bytes / u128::from(sample.len().max(1))) as u64
    }

    /// Slices that have a run of their own each. Where nothing is packed all are written before one is refused; else some are
    /// in memory, as long as three fourths of it have room for them.
    fn in_runs(&self, lists: &mut ListsCore, slices: u64, memory: u64) -> MemoryParts {
        let one = BUCKET_BYTES + self.slice.in_memory;
        let most = memory.saturating_sub(lists.sizes.want_free) / one;
        let unwritten = if lists.may_pack() { slices.min(most) } else { 0 };
        let written = slices - unwritten;
        let blocks = self.slice.counted.div_ceil(lists.sizes.block_bytes as u64);
        let described = rounded(blocks as usize * size_of::<BlockAt>())
            + rounded(size_of::<SegmentInfo>() + 64);
        let described = described as u64;
        let each = BUCKET_BYTES + RUN_BYTES + described;
        MemoryParts {
            records: unwritten * (one - self.slice.elastic),
            directories: written * each,
            work: lists
                .kept_with(written * (NAMED_BYTES + described) + unwritten * UNWRITTEN_BYTES),
            ..MemoryParts::default()
        }
    }
}
