//! Parts that are made for entries that are to come, so that none of these has to move meanwhile.

use hashbrown::HashTable;

use super::parts::Part;
use super::{PART_ENTRIES_MAX, SplitTable, rounded, table_bytes};

/// Entries that parts are expected to have, at most: of evenly spread hashes few parts get so many more
/// that they are split.
const EXPECTED_MAX: u64 = 96;

impl<T> SplitTable<T> {
    /// Makes the parts of an empty table for so many entries, whose hashes are spread evenly over all places. Says
    /// whether there was anything to do, and memory for it; if not, parts are made as entries come.
    pub fn expect(&mut self, entries: u64) -> bool {
        let depth = entries.div_ceil(EXPECTED_MAX).next_power_of_two().trailing_zeros();
        let count = 1u64 << depth;
        let part_bytes = size_of::<Part<T>>() as u64 + table_bytes::<T>(PART_ENTRIES_MAX * 8 / 7);
        let needed = count * (size_of::<u32>() as u64 + part_bytes) + 1024;
        let is_new = self.parts.all.is_empty();
        if !is_new || entries <= EXPECTED_MAX || self.account.available() < needed {
            return false;
        }
        let part = |_| Part { depth, entries: HashTable::with_capacity(PART_ENTRIES_MAX) };
        self.parts.all = (0..count).map(part).collect();
        self.parts.directory = (0..count as u32).collect();
        self.parts.depth = depth;
        let entries = rounded(self.parts.all[0].entries.allocation_size()) as u64;
        self.book(count * entries + self.tables_bytes());
        true
    }
}
