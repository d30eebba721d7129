//! What memory a hybrid log wants for a number of keys: the sums by which an open log books, for one that has so many.

use alluvium_pagestore::{Key, RECORD_HEADER_BYTES, State};

use super::cold::{ColdTier, PAYLOAD_MAX};
use super::config::{FRAMES_MIN, HybridLog, LogSizes};
use super::core::fixed_bytes;
use super::index::Index;
use super::log::WANT_FREE_MIN;
use super::stored::StoredSegments;
use crate::contract::needs::{ContextOf, ExpectedKeys, HotPlacement, MemoryNeeds, MemoryParts};
use crate::contract::table::StateContext;
use crate::support::record_type_unsafe::RecordType;

/// Bytes of a record's entry in a footer.
const FOOTER_BYTES: u64 = 16;
/// A record on storage is padded to as many bytes.
const GRAIN_BYTES: u64 = 16;

impl HybridLog {
    /// Says what memory a log with these options wants for so many keys. None: no memory is enough. `context_of` gives
    /// each memory that is tried. Cost: some milliseconds.
    pub fn memory_for<K: Key, V: State>(
        &self,
        keys: &ExpectedKeys,
        context_of: ContextOf<'_>,
    ) -> Option<MemoryNeeds> {
        memory_for(self, RecordType::of::<K, V>(), keys, context_of)
    }
}

fn memory_for(
    layout: &HybridLog,
    record_type: &'static RecordType,
    keys: &ExpectedKeys,
    context_of: ContextOf<'_>,
) -> Option<MemoryNeeds> {
    let mut asked = RequestedLog { layout, record_type, keys, index: Vec::new() };
    MemoryNeeds::find(context_of, &mut |context, hot| asked.parts_in(context, hot))
}

/// A log that is asked for.
struct RequestedLog<'a> {
    layout: &'a HybridLog,
    record_type: &'static RecordType,
    keys: &'a ExpectedKeys,
    /// Bytes of an index of so many entries, in segments of so many buckets, that were found before.
    index: Vec<(u64, usize, u64)>,
}

impl RequestedLog<'_> {
    fn parts_in(&mut self, context: &StateContext, hot: HotPlacement) -> Option<MemoryParts> {
        let (memory, stored) = (context.account.available_to_open(), context.segments.is_some());
        let layout = self.layout;
        let sizes = layout.sizes(self.record_type, memory, context.max_value_bytes, stored).ok()?;
        let alone = self.alone((memory, stored), &sizes, hot);
        let may_move = sizes.cold_runs || sizes.cold_runs_later && self.may_begin(context, &sizes);
        if !may_move || !stored || alone.total() <= memory && !self.moves(context, &sizes) {
            return Some(alone);
        }
        self.with_runs(context, &sizes, hot)
    }

    /// Whether records move by themselves where the index of all keys takes too much.
    fn may_begin(&self, context: &StateContext, sizes: &LogSizes) -> bool {
        let are_short = ColdTier::may_hold(self.record_type) && self.payload_bytes() <= PAYLOAD_MAX;
        let has_memory = context.account.limit() >= sizes.cold_runs_from;
        are_short && has_memory && !self.keys.expire && ColdTier::check(context, sizes).is_ok()
    }

    /// A log that has an entry of the index for each key.
    fn alone(
        &mut self,
        (memory, stored): (u64, bool),
        sizes: &LogSizes,
        hot: HotPlacement,
    ) -> MemoryParts {
        let ExpectedKeys { hot: hot_keys, .. } = *self.keys;
        let all = self.keys.all();
        let index = self.index_of(all, sizes);
        let (segments, index) =
            (self.segments_of(all, sizes), index + Index::growth_bytes(index, sizes.buckets));
        let in_memory = match (stored, hot) {
            (false, _) => self.pages_of(all, sizes),
            (true, HotPlacement::InMemory) => {
                self.pages_of(hot_keys, sizes) + want_free(memory, sizes)
            }
            (true, HotPlacement::Anywhere) => 0,
        };
        let floor = sizes.floor_bytes(if stored { segments } else { 0 });
        MemoryParts {
            index,
            records: in_memory.max(floor),
            directories: if stored { segments } else { 0 },
            buffers: fixed_bytes() + sizes.buffer_bytes(stored) + sizes.tables_bytes,
            ..MemoryParts::default()
        }
    }

    /// A log whose cold keys are in runs.
    fn with_runs(
        &mut self,
        context: &StateContext,
        sizes: &LogSizes,
        hot: HotPlacement,
    ) -> Option<MemoryParts> {
        let (memory, expire) = (context.account.available_to_open(), self.keys.expire);
        ColdTier::check(context, sizes).ok()?;
        let cold = ColdTier::new(context, self.record_type, sizes)?;
        let part = self.index_part(context, sizes, &cold);
        let of_hot = self.index_of(self.keys.hot, sizes);
        if of_hot > part.begins_at {
            return None;
        }
        // As many as the index has an entry for are in the log.
        let all = self.keys.all();
        let in_log = |index: u64, of_all: u64| {
            (u128::from(all) * u128::from(index) / u128::from(of_all.max(1))) as u64
        };
        let of_all = self.index_of(all, sizes);
        let runs =
            cold.runs_of(all - in_log(part.begins_at, of_all).min(all), self.payload_bytes());
        // The index leaves what directories take more than is kept for them, down to what records that move need.
        let moving = cold.batch_records() + FRAMES_MIN * u64::from(sizes.slots);
        let least = self.index_of(self.keys.hot.max(moving), sizes) / 7 * 8;
        let index = part.most.saturating_sub(runs.directories).max(least.min(part.most));
        let in_log = in_log(index - index / 8, of_all);
        let segments = self.segments_of(in_log.max(self.keys.hot).min(all), sizes);
        let floor = sizes.floor_bytes(segments);
        let (records, filters) = match hot {
            HotPlacement::InMemory => {
                (self.pages_of(self.keys.hot, sizes) + want_free(memory, sizes), runs.guides)
            }
            HotPlacement::Anywhere => (0, 0),
        };
        Some(MemoryParts {
            index,
            records: records.max(floor),
            filters,
            directories: segments + runs.directories,
            buffers: fixed_bytes()
                + sizes.buffer_bytes(true)
                + sizes.tables_bytes
                + cold.counts_bytes(expire),
            work: cold.kept_for_work(),
        })
    }

    /// Whether records move, since the index of all keys takes too much.
    fn moves(&mut self, context: &StateContext, sizes: &LogSizes) -> bool {
        let Some(cold) = ColdTier::new(context, self.record_type, sizes) else { return false };
        // The table of segments may have some of it.
        let index = self.index_of(self.keys.all(), sizes);
        index + index / 8 > self.index_part(context, sizes, &cold).begins_at
    }

    fn index_part(
        &self,
        context: &StateContext,
        sizes: &LogSizes,
        cold: &ColdTier,
    ) -> super::cold::IndexPart {
        let beside = fixed_bytes()
            + sizes.buffer_bytes(true)
            + sizes.tables_bytes
            + StoredSegments::tables_bytes_min()
            + cold.counts_bytes(self.keys.expire)
            + cold.kept_for_work();
        ColdTier::index_part(context.account.limit(), beside, sizes.floor_bytes(0))
    }

    fn index_of(&mut self, entries: u64, sizes: &LogSizes) -> u64 {
        let known = |&&(of, buckets, _): &&_| of == entries && buckets == sizes.buckets;
        if let Some((_, _, bytes)) = self.index.iter().find(known) {
            return *bytes;
        }
        let bytes = Index::bytes_for(entries, sizes.buckets);
        self.index.push((entries, sizes.buckets, bytes));
        bytes
    }

    /// Bytes of an encoded record. What owns heap is about as long encoded.
    fn payload_bytes(&self) -> usize {
        self.record_type.layout().size() + self.keys.owned_bytes as usize
    }

    /// The table of the segments that so many records fill.
    fn segments_of(&self, records: u64, sizes: &LogSizes) -> u64 {
        let record = (RECORD_HEADER_BYTES + self.payload_bytes()) as u64;
        let record = record.next_multiple_of(GRAIN_BYTES) + FOOTER_BYTES;
        let bytes = records.saturating_mul(record);
        StoredSegments::tables_bytes_min()
            + StoredSegments::tables_bytes_of(bytes, sizes.segment_bytes)
    }

    /// Pages of so many records, and the heap that they own.
    fn pages_of(&self, records: u64, sizes: &LogSizes) -> u64 {
        let pages = records.div_ceil(sizes.slots.into()) * sizes.frame_bytes;
        pages + records.saturating_mul(self.keys.owned_bytes)
    }
}

/// What the log wants to be free, so that no page leaves.
fn want_free(memory: u64, sizes: &LogSizes) -> u64 {
    sizes.headroom_bytes + (2 * sizes.frame_bytes).max(memory / 32).max(WANT_FREE_MIN)
}
