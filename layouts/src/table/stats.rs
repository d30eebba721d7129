//! What a table, lists or panes count, and what follows from that.

use serde::{Deserialize, Serialize};

/// Counters and gauges of a table since it was opened. Counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStats {
    /// Keys present.
    pub live_keys: u64,
    /// Bytes of live records: native slots and values' heap in memory, encoded on storage.
    pub live_bytes: u64,
    /// Bytes of segment files, live or not.
    pub disk_bytes: u64,
    /// Of these, what live records take, estimated per segment by their number. Of a full
    /// checkpoint all are live.
    pub live_disk_bytes: u64,
    /// Estimated bytes that live records which are in memory alone would take there, where a layout
    /// keeps single records on storage.
    pub unstored_bytes: u64,
    /// Keys that calls read or wrote, peeks and scans not among them. Counted by the store for all
    /// layouts alike: a table leaves it 0.
    pub calls: u64,
    /// Values encoded or decoded.
    pub codec_calls: u64,
    /// Records read from storage for a key that was asked for.
    pub cold_reads: u64,
    /// Records that were read ahead of the call that needed them, by [`Table::fetch`](crate::Table::fetch).
    pub fetches: u64,
    /// Cold reads that found another key.
    pub false_cold_reads: u64,
    /// Pages handed to helper threads to be written.
    pub pages_flushed: u64,
    /// Bytes of pages that were written, or of full checkpoints.
    pub flushed_bytes: u64,
    /// Pages begun.
    pub pages_begun: u64,
    /// Index segments split.
    pub splits: u64,
    /// Records moved inside memory, by moving the value.
    pub moves: u64,
    /// Values cloned because their page was being written.
    pub clones: u64,
    /// Records copied to a new segment because most of the old one was dead; of a hybrid log with two
    /// generations, all that went to the old one.
    pub rewritten: u64,
    /// Entries that were removed because they had expired.
    pub expired: u64,
    /// Entries in memory that were looked at to find those.
    pub expiry_looks: u64,
    /// Entries that were looked at to find those of some hashes, these among them.
    pub sought: u64,
    /// Slots, entries and notes of deaths that checkpoints of hybrid logs looked at, or that were looked at after one was
    /// given up; notes of deaths that those of heap maps added to sets.
    pub checkpoint_looks: u64,
    /// Times a closure made a value larger than `max_value`.
    #[serde(default)]
    pub oversized: u64,
    /// Times a call waited for storage to free memory.
    pub stalls: u64,
    /// Bytes read back in the background before they were asked for.
    pub prefetched_bytes: u64,
    /// Of these, bytes that were dropped again without having been used.
    pub prefetch_wasted_bytes: u64,
}

impl TableStats {
    /// Adds another table's numbers to this one's.
    pub fn add(&mut self, other: &TableStats) {
        self.live_keys += other.live_keys;
        self.live_bytes += other.live_bytes;
        self.disk_bytes += other.disk_bytes;
        self.live_disk_bytes += other.live_disk_bytes;
        self.unstored_bytes += other.unstored_bytes;
        self.calls += other.calls;
        self.codec_calls += other.codec_calls;
        self.cold_reads += other.cold_reads;
        self.fetches += other.fetches;
        self.false_cold_reads += other.false_cold_reads;
        self.pages_flushed += other.pages_flushed;
        self.flushed_bytes += other.flushed_bytes;
        self.pages_begun += other.pages_begun;
        self.splits += other.splits;
        self.moves += other.moves;
        self.clones += other.clones;
        self.rewritten += other.rewritten;
        self.expired += other.expired;
        self.expiry_looks += other.expiry_looks;
        self.sought += other.sought;
        self.checkpoint_looks += other.checkpoint_looks;
        self.oversized += other.oversized;
        self.stalls += other.stalls;
        self.prefetched_bytes += other.prefetched_bytes;
        self.prefetch_wasted_bytes += other.prefetch_wasted_bytes;
    }

    /// Calls that memory answered: all but the cold reads.
    pub fn hits(&self) -> u64 {
        self.calls.saturating_sub(self.cold_reads)
    }

    /// The part of the calls that memory answered; `None` before the first call.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.hits() as f64 / self.calls as f64)
    }

    /// Bytes of segment files that no live record takes.
    pub fn dead_disk_bytes(&self) -> u64 {
        self.disk_bytes.saturating_sub(self.live_disk_bytes)
    }

    /// Bytes of segment files per byte of live state, what is in memory alone included; `None` if
    /// nothing there is live. Compaction bounds it.
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
        let fields = serde_json::to_value(TableStats::default()).unwrap();
        let names = fields.as_object().unwrap().keys();
        let numbered = names.zip(1u64..).map(|(name, n)| (name.clone(), n.into())).collect();
        let stats: TableStats =
            serde_json::from_value(serde_json::Value::Object(numbered)).unwrap();
        let mut sum = stats;
        sum.add(&stats);
        let (once, twice) =
            (serde_json::to_value(stats).unwrap(), serde_json::to_value(sum).unwrap());
        for (name, n) in once.as_object().unwrap() {
            assert_eq!(twice[name], n.as_u64().unwrap() * 2, "{name}");
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
