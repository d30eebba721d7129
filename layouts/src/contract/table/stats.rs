//! Counters of a table, of lists or of panes, and figures computed from them.

use serde::{Deserialize, Serialize};

/// Adds fields of one value to those of another.
macro_rules! add_each {
    ($to:ident, $from:ident: $($field:ident),*) => {
        $($to.$field += $from.$field;)*
    };
}

/// What a hybrid log has in [sorted runs](crate::HybridLog::cold_runs), and has done for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStats {
    /// Keys that are in runs and nowhere else.
    pub keys: u64,
    /// Records in runs: those keys, older copies of others, and tombstones.
    pub records: u64,
    /// Runs.
    pub runs: u64,
    /// Levels of runs. A key that is not in memory may be looked for in each.
    pub levels: u64,
    /// Bytes of files of runs.
    pub bytes: u64,
    /// Bytes of filters and fences in memory.
    pub guide_bytes: u64,
    /// Bytes of fences among these.
    pub fence_bytes: u64,
    /// Bytes of directories in memory.
    pub directory_bytes: u64,
    /// Records that moved from the log to runs.
    pub moved: u64,
    /// Bytes of files that moves wrote.
    pub moved_bytes: u64,
    /// Bytes of files that merges wrote.
    pub merged_bytes: u64,
    /// Reads of records.
    pub reads: u64,
    /// Reads of records that found none of the hash: the filter was wrong.
    pub false_reads: u64,
    /// Reads of filters and fences that memory had no room for.
    pub guide_reads: u64,
    /// Steps of moves and merges that failed, and are made again.
    pub failed: u64,
    /// What moves and merges took.
    pub times: RunTimes,
}

/// Nanoseconds that moves to sorted runs and their merges took: on the owner's thread, and on a helper's. Waits for the
/// device are part of them. They differ between two tables that do the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunTimes {
    /// Steps that copied records.
    pub gathering: u64,
    /// Steps that wrote records.
    pub writing: u64,
    /// Steps that removed index entries.
    pub leaving: u64,
    /// Steps that merged without a helper.
    pub merging: u64,
    /// Waits of calls for a helper that merges.
    pub waiting: u64,
    /// Shares in which a helper merged, of merges that ended.
    pub helper_merging: u64,
    /// Of writing and merging on both threads, filters and fences that were built.
    pub building: u64,
}

impl RunTimes {
    fn add(&mut self, other: &RunTimes) {
        add_each!(self, other:
            gathering, writing, leaving, merging, waiting, helper_merging, building
        );
    }
}

impl RunStats {
    fn add(&mut self, other: &RunStats) {
        add_each!(self, other:
            keys, records, runs, levels, bytes, guide_bytes, fence_bytes, directory_bytes, moved,
            moved_bytes, merged_bytes, reads, false_reads, guide_reads, failed
        );
        self.times.add(&other.times);
    }

    /// Returns bytes of filters and fences in memory per key that is in runs alone; `None` without such keys.
    pub fn memory_per_key(&self) -> Option<f64> {
        (self.keys > 0).then(|| self.guide_bytes as f64 / self.keys as f64)
    }

    /// Returns bytes that moves and merges wrote per byte that moved; `None` if nothing has.
    pub fn write_amplification(&self) -> Option<f64> {
        let written = (self.moved_bytes + self.merged_bytes) as f64;
        (self.moved_bytes > 0).then(|| written / self.moved_bytes as f64)
    }
}

/// Counters and gauges of a table since it was opened. Counters never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStats {
    /// Keys present now.
    pub live_keys: u64,
    /// Bytes of live records: native slots and values' heap in memory, encoded bytes on storage.
    pub live_bytes: u64,
    /// Bytes of segment files, with dead records.
    pub disk_bytes: u64,
    /// Bytes of these that live records take, estimated per segment from their number. All bytes of
    /// a full checkpoint are live.
    pub live_disk_bytes: u64,
    /// Estimated bytes on storage that the live records which are only in memory would take. Only
    /// layouts that store single records report it.
    pub unstored_bytes: u64,
    /// Keys that calls read or wrote, without peeks and scans. The store counts them; a table
    /// leaves this 0.
    pub calls: u64,
    /// Values encoded or decoded.
    pub codec_calls: u64,
    /// Records read from storage because a call needed them.
    pub cold_reads: u64,
    /// Records that [`Table::fetch`](crate::Table::fetch) read ahead of a call.
    pub fetches: u64,
    /// Cold reads that found the record of another key.
    pub false_cold_reads: u64,
    /// Pages handed to helper threads for writing.
    pub pages_flushed: u64,
    /// Bytes written of pages, or of full checkpoints.
    pub flushed_bytes: u64,
    /// Pages started.
    pub pages_begun: u64,
    /// Splits of index segments.
    pub splits: u64,
    /// Pairs of index segments that became one.
    #[serde(default)]
    pub joins: u64,
    /// Records moved within memory.
    pub moves: u64,
    /// Values cloned because their page was being written.
    pub clones: u64,
    /// Records copied to a new segment because most of the old segment was dead. On a hybrid log
    /// with two generations: all records copied to the old generation.
    pub rewritten: u64,
    /// Expired entries removed.
    pub expired: u64,
    /// Entries in memory examined in search of expired ones.
    pub expiry_looks: u64,
    /// Entries examined in search of those in a range of hashes, including the ones found.
    pub sought: u64,
    /// On a hybrid log: slots, entries and notes of deaths that checkpoints examined, or that were
    /// examined after one was given up. On the heap: notes of deaths that checkpoints added to live
    /// sets.
    pub checkpoint_looks: u64,
    /// Times that a closure made a value larger than `max_value`.
    #[serde(default)]
    pub oversized: u64,
    /// Times that a call waited for storage to free memory.
    pub stalls: u64,
    /// Bytes prefetched in the background.
    pub prefetched_bytes: u64,
    /// Prefetched bytes that were dropped unused.
    pub prefetch_wasted_bytes: u64,
    /// Sorted runs of a hybrid log.
    #[serde(default)]
    pub runs: RunStats,
}

impl TableStats {
    /// Adds the numbers of another table.
    pub fn add(&mut self, other: &TableStats) {
        add_each!(self, other:
            live_keys, live_bytes, disk_bytes, live_disk_bytes, unstored_bytes, calls, codec_calls,
            cold_reads, fetches, false_cold_reads, pages_flushed, flushed_bytes, pages_begun,
            splits, joins, moves, clones, rewritten, expired, expiry_looks, sought,
            checkpoint_looks, oversized, stalls, prefetched_bytes, prefetch_wasted_bytes
        );
        self.runs.add(&other.runs);
    }

    /// Returns the number of calls answered from memory: all but the cold reads.
    pub fn hits(&self) -> u64 {
        self.calls.saturating_sub(self.cold_reads)
    }

    /// Returns the fraction of calls answered from memory; `None` before the first call.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.hits() as f64 / self.calls as f64)
    }

    /// Returns the bytes of segment files that live records do not take.
    pub fn dead_disk_bytes(&self) -> u64 {
        self.disk_bytes.saturating_sub(self.live_disk_bytes)
    }

    /// Returns bytes of segment files per byte of live state. Live state includes records that are
    /// only in memory. Returns `None` if no record on storage is live. Compaction bounds this
    /// number.
    pub fn space_amplification(&self) -> Option<f64> {
        let state_bytes = self.live_disk_bytes + self.unstored_bytes;
        (self.live_disk_bytes > 0).then(|| self.disk_bytes as f64 / state_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever fields there are: each is a number, and each is added.
    #[test]
    fn adding_adds_every_field() {
        let mut fields = serde_json::to_value(TableStats::default()).unwrap();
        let mut next = 0u64;
        for_each_number(&mut fields, &mut |_, n| {
            next += 1;
            *n = next.into();
        });
        let stats: TableStats = serde_json::from_value(fields).unwrap();
        let mut sum = stats;
        sum.add(&stats);
        let (mut once, mut twice) =
            (serde_json::to_value(stats).unwrap(), serde_json::to_value(sum).unwrap());
        let mut doubled = Vec::new();
        for_each_number(&mut once, &mut |name, n| {
            doubled.push((name.to_owned(), n.as_u64().unwrap() * 2));
        });
        let mut added = Vec::new();
        for_each_number(&mut twice, &mut |name, n| {
            added.push((name.to_owned(), n.as_u64().unwrap()));
        });
        assert_eq!(doubled, added);
        assert_eq!(doubled.len() as u64, next);
    }

    /// Shows each number, also those of the parts, with its name.
    fn for_each_number(
        value: &mut serde_json::Value,
        visit: &mut dyn FnMut(&str, &mut serde_json::Value),
    ) {
        for (name, field) in value.as_object_mut().unwrap() {
            match field.is_object() {
                true => for_each_number(field, visit),
                false => visit(name, field),
            }
        }
    }

    #[test]
    fn rates_are_of_what_there_is() {
        let none = TableStats::default();
        assert_eq!((none.hit_rate(), none.space_amplification()), (None, None));
        let some = TableStats {
            calls: 8,
            cold_reads: 2,
            disk_bytes: 90,
            live_disk_bytes: 60,
            ..TableStats::default()
        };
        assert_eq!((some.hits(), some.hit_rate()), (6, Some(0.75)));
        assert_eq!((some.dead_disk_bytes(), some.space_amplification()), (30, Some(1.5)));
    }
}
