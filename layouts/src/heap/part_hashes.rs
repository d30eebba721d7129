//! Hashes of the entries of a part of a table: all of them, or the least, each once, in memory of one size.

use alluvium_pagestore::rounded;

use super::raw_table_unsafe::RawTable;
use crate::support::record_type_unsafe::RecordRef;

/// Most hashes that are kept.
const KEPT_MAX: usize = 128;

/// Hashes that are added, and then the least of them.
pub(crate) struct LeastHashes {
    /// The first `len` are there; those that were kept are sorted.
    all: [u64; 2 * KEPT_MAX],
    len: usize,
    /// The greatest that is kept, if greater ones were left out.
    greatest: Option<u64>,
}

impl LeastHashes {
    pub fn new() -> Self {
        Self { all: [0; 2 * KEPT_MAX], len: 0, greatest: None }
    }

    /// One hash alone.
    pub fn of(hash: u64) -> Self {
        let mut one = Self::new();
        one.add(hash);
        one
    }

    /// Adds one. Cost: now and then the rest is sorted.
    pub fn add(&mut self, hash: u64) {
        // Those of a chain of blocks are mostly the same one.
        if self.as_slice().last() == Some(&hash)
            || self.greatest.is_some_and(|greatest| hash > greatest)
        {
            return;
        }
        if self.len == self.all.len() {
            self.settle();
        }
        self.all[self.len] = hash;
        self.len += 1;
    }

    /// All were added. Returns the greatest that is kept, if there are greater ones.
    pub fn end(&mut self) -> Option<u64> {
        self.settle();
        self.greatest
    }

    pub fn as_slice(&self) -> &[u64] {
        &self.all[..self.len]
    }

    /// Sorts them, and leaves out what is there twice, and the greatest.
    fn settle(&mut self) {
        self.all[..self.len].sort_unstable();
        let mut kept = 0;
        for n in 0..self.len {
            if kept == 0 || self.all[n] != self.all[kept - 1] {
                self.all[kept] = self.all[n];
                kept += 1;
            }
        }
        self.len = kept.min(KEPT_MAX);
        if kept > KEPT_MAX {
            self.greatest = self.as_slice().last().copied();
        }
    }
}

impl RawTable {
    /// Returns the hashes of entries from `place` to `last`, those of the part at `place`, sorted; and the place of the
    /// next part, if that is not after `last`. The caller books what they take: see
    /// [`hashes_bytes`](Self::hashes_bytes).
    pub fn hashes_at(&self, place: u64, last: u64) -> (Vec<u64>, Option<u64>) {
        let (index, next) = self.part_at(place);
        let mut hashes = Vec::with_capacity(index.map_or(0, |index| self.len_at(index)));
        let is_asked = |hash: &u64| (place..=last).contains(&self.range.place(*hash));
        let entries = index.into_iter().flat_map(|index| self.entries_at(index));
        hashes.extend(entries.map(RecordRef::hash).filter(is_asked));
        hashes.sort_unstable();
        (hashes, next.filter(|next| *next <= last))
    }

    /// Finds the hashes of entries from `place` to `last`, the least of those of the part at `place`, each once. Returns the
    /// place to go on at, if that is not after `last`. Cost: a look at each entry of the part.
    pub fn least_hashes(&self, place: u64, last: u64, found: &mut LeastHashes) -> Option<u64> {
        let (index, next) = self.part_at(place);
        let is_asked = |hash: &u64| (place..=last).contains(&self.range.place(*hash));
        let entries = index.into_iter().flat_map(|index| self.entries_at(index));
        entries.map(RecordRef::hash).filter(is_asked).for_each(|hash| found.add(hash));
        let next = match found.end() {
            Some(greatest) => self.range.place(greatest).checked_add(1 << self.range.same_bits()),
            None => next,
        };
        next.filter(|next| *next <= last)
    }

    /// Returns the memory of the hashes of the part at `place`.
    pub fn hashes_bytes(&self, place: u64) -> u64 {
        let index = self.part_at(place).0;
        rounded(index.map_or(0, |index| self.len_at(index)) * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use alluvium_pagestore::hash_word;

    use super::*;

    #[test]
    fn the_least_are_those_of_a_sorted_set() {
        for (count, alike) in
            [(0, 1), (1, 1), (128, 1), (129, 1), (3000, 1), (3000, 40), (5000, 5000)]
        {
            let hashes = (0..count).map(|n| hash_word(n / alike) >> 7);
            let (mut least, mut all) = (LeastHashes::new(), BTreeSet::new());
            for hash in hashes {
                least.add(hash);
                all.insert(hash);
            }
            let greatest = least.end();
            let wanted: Vec<u64> = all.iter().copied().take(KEPT_MAX).collect();
            assert_eq!(least.as_slice(), wanted, "{count} hashes, {alike} alike");
            assert_eq!(greatest, wanted.last().copied().filter(|_| all.len() > KEPT_MAX));
        }
    }
}
