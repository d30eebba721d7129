//! What a tier of so many keys takes in memory, without records.

use super::paying::{begins_at, index_share};
use super::share::INDEX_PERCENT_MAX;
use super::touches::Touches;
use super::{ColdTier, PAYLOAD_MAX, WIDE_SHARE};
use crate::runs::{RunSizes, RunsMemory, SHARE};

/// What the index may have beside a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexPart {
    /// The most bytes, which it comes to have where keys move.
    pub most: u64,
    /// Bytes with which records begin to move.
    pub begins_at: u64,
}

impl ColdTier {
    /// Memory of runs of so many keys, of which updates have left as many dead copies as there are at most.
    pub fn runs_of(&self, keys: u64, payload_bytes: usize) -> RunsMemory {
        let payload_bytes = payload_bytes.min(PAYLOAD_MAX);
        let oldest = RunSizes { is_wide: false, ..self.work.runs }.in_memory(keys, payload_bytes);
        // Once the oldest has that share of the memory, no level is written with wide filters.
        let has_room = WIDE_SHARE * oldest.guides <= self.work.memory;
        let sizes = RunSizes { is_wide: self.work.runs.is_wide && has_room, ..self.work.runs };
        let above = sizes.in_memory((keys as f64 * SHARE) as u64, payload_bytes);
        RunsMemory {
            guides: oldest.guides + above.guides,
            directories: oldest.directories + above.directories,
        }
    }

    /// Memory that moves, merges and tombstones take.
    pub fn kept_for_work(&self) -> u64 {
        self.wanted_bytes() + self.graves_lacking()
    }

    /// Records that move at once.
    pub fn batch_records(&self) -> u64 {
        self.work.batch_records as u64
    }

    /// Memory of counts, and of what counts of expiring entries take too.
    pub fn counts_bytes(&self, expire: bool) -> u64 {
        let touches = if expire { Touches::memory_bytes(self.live.groups()) } else { 0 };
        self.live.bytes() + self.levels.fetch_bytes() + touches
    }

    /// What the index may have of so many bytes, beside so many.
    pub fn index_part(limit: u64, beside: u64, floor: u64) -> IndexPart {
        let (most, _) = index_share(limit, beside, floor, INDEX_PERCENT_MAX);
        IndexPart { most, begins_at: begins_at(most) }
    }
}
