//! A checkpoint's entry for one sorted run: a file of records in the order of their hashes.
//!
//! `docs/format.md` has the bytes of the file.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{FileKind, FileName};

/// The id of a run, of the same numbers as those of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId(pub u64);

impl RunId {
    /// Returns the name of its file.
    pub fn file_name(self) -> String {
        self.name().to_string()
    }

    /// Returns the run whose file has this name.
    pub fn of_file(name: &str) -> Option<RunId> {
        FileKind::Run.number_in(name).map(RunId)
    }

    /// Returns the name of its file, as it is kept.
    pub fn name(self) -> FileName {
        FileName::numbered(FileKind::Run, self.0)
    }
}

/// A sealed run, as a checkpoint names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Its id.
    pub id: RunId,
    /// Bytes of its file.
    pub bytes: u64,
    /// Its records.
    pub records: u64,
    /// Those that have a mark.
    pub marked: u64,
    /// The hash of its first record.
    pub first_hash: u64,
    /// The hash of its last record.
    pub last_hash: u64,
    /// Partitions.
    pub partitions: u32,
    /// Bytes of its fences and filters.
    pub guide_bytes: u64,
    /// Bytes of its longest guide.
    pub longest_guide: u32,
    /// Bytes of its longest chunk.
    pub longest_chunk: u32,
    /// Bytes of what stands after the hash in its order.
    pub order_bytes: u32,
    /// Checksum of its directory, which has those of its partitions: it tells runs of one id apart.
    pub digest: u32,
    /// Its cuts: ranges of hashes, first and last, whose records do not count any more. In order, and apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<(u64, u64)>,
}

impl RunInfo {
    /// Returns whether a record of this hash does not count.
    #[inline]
    pub fn is_cut(&self, hash: u64) -> bool {
        !self.cuts.is_empty() && self.cut_of(hash).is_some()
    }

    /// Returns the last hash of the cut that has this one.
    pub fn cut_of(&self, hash: u64) -> Option<u64> {
        let at = self.cuts.partition_point(|(_, last)| *last < hash);
        self.cuts.get(at).filter(|(first, _)| *first <= hash).map(|(_, last)| *last)
    }

    /// Whether no record of it counts.
    pub fn is_cut_whole(&self) -> bool {
        self.cut_of(self.first_hash).is_some_and(|last| last >= self.last_hash)
    }

    /// Whether none of its records whose hash is in a range counts.
    pub fn is_cut_within(&self, hashes: &RangeInclusive<u64>) -> bool {
        let (first, last) =
            (self.first_hash.max(*hashes.start()), self.last_hash.min(*hashes.end()));
        first > last || self.cut_of(first).is_some_and(|end| end >= last)
    }

    /// Cuts the hashes from the first to the last, as far as it may have them. Cost: O(cuts).
    pub fn cut(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first.max(self.first_hash), last.min(self.last_hash));
        if first > last {
            return;
        }
        // Those that touch it become one with it.
        let from = self.cuts.partition_point(|(_, end)| end.saturating_add(1) < first);
        let to = self.cuts.partition_point(|(begin, _)| *begin <= last.saturating_add(1));
        if from < to {
            first = first.min(self.cuts[from].0);
            last = last.max(self.cuts[to - 1].1);
        }
        self.cuts.splice(from..to, [(first, last)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first_hash: u64, last_hash: u64) -> RunInfo {
        RunInfo {
            id: RunId(1),
            bytes: 0,
            records: 9,
            marked: 0,
            first_hash,
            last_hash,
            partitions: 1,
            guide_bytes: 0,
            longest_guide: 0,
            longest_chunk: 0,
            order_bytes: 0,
            digest: 0,
            cuts: Vec::new(),
        }
    }

    #[test]
    fn cuts_are_the_hashes_that_were_cut() {
        let mut dice = 5u64;
        for _ in 0..500 {
            let (mut run, mut model) = (run(10, 60), [false; 64]);
            for _ in 0..8 {
                dice = crate::hash_word(dice);
                let (first, length) = (dice % 64, dice >> 32 & 15);
                let last = if length == 15 { u64::MAX } else { first + length };
                run.cut(first, last);
                (first..=last.min(63)).for_each(|hash| model[hash as usize] = true);
                let all: Vec<u64> = run.cuts.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert!(all.is_sorted() && run.cuts.windows(2).all(|two| two[0].1 + 1 < two[1].0));
                for hash in 10..=60u64 {
                    assert_eq!(run.is_cut(hash), model[hash as usize], "{hash} of {:?}", run.cuts);
                }
                assert_eq!(run.is_cut_whole(), model[10..=60].iter().all(|cut| *cut));
                let (from, to) = (dice >> 40 & 63, dice >> 48 & 63);
                let is_cut = (from.max(10)..=to.min(60)).all(|hash| model[hash as usize]);
                assert_eq!(run.is_cut_within(&(from..=to)), is_cut, "{from} to {to}");
            }
        }
        let mut all = run(0, u64::MAX);
        all.cut(0, u64::MAX);
        all.cut(7, 9);
        assert!(all.is_cut_whole() && all.cuts == [(0, u64::MAX)]);
    }

    #[test]
    fn a_run_without_cuts_is_written_as_before() {
        let text = serde_json::to_string(&run(1, 2)).unwrap();
        assert!(!text.contains("cuts"));
        assert_eq!(serde_json::from_str::<RunInfo>(&text).unwrap(), run(1, 2));
    }
}
