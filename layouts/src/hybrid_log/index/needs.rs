//! What an index of so many entries takes: found by filling one.

use std::rc::Rc;

use alluvium_pagestore::{Account, hash_word};

use super::{Index, IndexHash};
use crate::hybrid_log::address::{Address, StoredAt};

/// An index of as many entries is filled, or of up to twice as many.
const FILLED: u64 = 1 << 15;

impl Index {
    /// Bytes that an index with segments of `buckets` takes for so many entries of evenly spread hashes. Segments split
    /// alike at each doubling of the entries: so no more than [`FILLED`] entries twice over are tried, in up to 1.4 MiB
    /// that are on no account. Cost: some 100 ns an entry that is tried.
    pub fn bytes_for(entries: u64, buckets: usize) -> u64 {
        let halvings = (entries / FILLED).checked_ilog2().unwrap_or(0);
        let account = Account::root(1 << 40);
        let mut index = Self::new(Rc::clone(&account), buckets, None).expect("there is memory");
        for entry in 0..entries >> halvings {
            let hash = hash_word(entry);
            let hash = IndexHash::of(hash, hash);
            index.prepare(hash).expect("there is memory, and few hashes are alike");
            index.insert(hash, Address::stored(StoredAt { segment: 0, grain: 0 }));
        }
        account.used() << halvings
    }

    /// Bytes that have to be free for the next split: a segment, and a directory of twice the length.
    pub fn growth_bytes(index_bytes: u64, buckets: usize) -> u64 {
        Self::memory_bytes_min(buckets) + index_bytes / 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "573,000 entries")]
    fn an_index_of_many_takes_what_one_of_fewer_says() {
        for (buckets, entries) in [(8, 3_000), (8, 70_000), (64, 200_000), (256, 300_000)] {
            let account = Account::root(1 << 40);
            let mut index = Index::new(account.clone(), buckets, None).unwrap();
            for entry in 0..entries {
                let hash = hash_word(hash_word(entry + 77));
                let hash = IndexHash::of(hash, hash);
                index.prepare(hash).unwrap();
                index.insert(hash, Address::stored(StoredAt { segment: 0, grain: 0 }));
            }
            let (said, used) = (Index::bytes_for(entries, buckets), account.used());
            assert!(said.abs_diff(used) * 10 <= used, "{said} {used} of {entries}");
        }
    }
}
