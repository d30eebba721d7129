//! A warning before memory is full of what no eviction frees: indexes, tables, buffers, and state that is
//! all in memory.

use std::cell::Cell;

use alluvium_layouts::trace_event;
use alluvium_pagestore::ByteSize;

/// Percentage of unevictable memory from which on there is a warning.
pub const CROWDED_PERCENT: u64 = 80;

/// Whether so much of so much memory is crowded.
pub(crate) fn is_crowded((fixed, limit): (u64, u64)) -> bool {
    u128::from(fixed) * 100 >= u128::from(limit) * u128::from(CROWDED_PERCENT)
}

/// What would do, so that it is no more than half full.
pub(crate) fn enough(fixed: u64) -> String {
    ByteSize(fixed.saturating_mul(2).next_multiple_of(1024)).short()
}

/// Whether there was a warning, so that there is one each time that memory becomes crowded.
#[derive(Debug, Default)]
pub(crate) struct CrowdedWarning(Cell<bool>);

impl CrowdedWarning {
    /// Warns if the memory of the state has become crowded; without a name, that of the store.
    #[inline]
    pub fn watch(&self, state: Option<&str>, of: (u64, u64)) {
        if is_crowded(of) != self.0.get() {
            self.turn(state, of);
        }
    }

    #[cold]
    fn turn(&self, state: Option<&str>, (fixed, limit): (u64, u64)) {
        self.0.set(!self.0.get());
        if !self.0.get() {
            return;
        }
        let would_do = enough(fixed);
        let would_do = would_do.as_str();
        match state {
            Some(state) => trace_event!(
                WARN,
                "a state's memory is crowded by what cannot be evicted",
                state = state,
                bytes = fixed,
                memory = limit,
                would_do = would_do,
            ),
            None => trace_event!(
                WARN,
                "the store's memory is crowded by what cannot be evicted",
                bytes = fixed,
                memory = limit,
                would_do = would_do,
            ),
        }
    }
}

/// The least memory of a store with one [`HybridLog`](crate::HybridLog) of plain values in a directory.
pub const HYBRID_LOG_BYTES_MIN: u64 = 88 << 10;
/// The same with one [`AppendLog`](crate::AppendLog).
pub const APPEND_LOG_BYTES_MIN: u64 = 158 << 10;
/// The same with a map on the [`Heap`](crate::Heap).
pub const HEAP_BYTES_MIN: u64 = 51 << 10;
/// The same with windows whose accumulators are in [`WindowSegments`](crate::WindowSegments).
pub const WINDOW_SEGMENTS_BYTES_MIN: u64 = 200 << 10;

/// How many [`HybridLog`](crate::HybridLog)s fit a budget in a directory: bytes of the budget, logs
/// of plain values, and logs of values that own heap with the default `max_value`. Opening more
/// fails. Keys also take memory of the index.
pub const HYBRID_LOGS_BY_MEMORY: [(u64, u64, u64); 6] = [
    (256 << 10, 3, 2),
    (1 << 20, 8, 4),
    (4 << 20, 15, 5),
    (16 << 20, 24, 6),
    (64 << 20, 53, 23),
    (256 << 20, 114, 66),
];
