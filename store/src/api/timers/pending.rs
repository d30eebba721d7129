//! A pending timer as the key of a map.
//!
//! What it keeps true: it is in the key group of its key, as the top 16 bits of a hash choose the group. The other bits
//! tell the timers of one key apart: an index that looks at few bits finds many of them under one hash.

use alluvium_derive::State;
use alluvium_pagestore::{HeapSize, KeyHash, Time, combine};

/// Bits of a hash that say nothing of the key group.
const BELOW_GROUPS: u64 = u64::MAX >> 16;

/// A pending timer: what a [layout](crate::Layout) of [`StoredTimers`](super::StoredTimers) has as
/// a key. Ordered by time, then key, then namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[state(crate = alluvium_pagestore)]
pub struct PendingTimer<K, N> {
    /// When it is due.
    pub at: Time,
    /// Its key.
    pub key: K,
    /// What tells timers of a key and time apart.
    pub namespace: N,
}

impl<K: KeyHash, N: KeyHash> KeyHash for PendingTimer<K, N> {
    fn key_hash(&self) -> u64 {
        let of_key = self.key.key_hash();
        let of_all = combine(combine(of_key, self.at.key_hash()), self.namespace.key_hash());
        of_key & !BELOW_GROUPS | of_all & BELOW_GROUPS
    }
}

impl<K: HeapSize, N: HeapSize> PendingTimer<K, N> {
    /// Heap that it owns.
    pub(super) fn owned_bytes(&self) -> u64 {
        self.heap_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::{KeyGroup, description_of};

    /// Part of the format.
    #[test]
    fn hashes_are_pinned() {
        let timer = PendingTimer { at: Time(7), key: 0u64, namespace: () };
        let of_all = combine(combine(0u64.key_hash(), 7i64.key_hash()), ().key_hash());
        assert_eq!(timer.key_hash() >> 48, 0xab24);
        assert_eq!(timer.key_hash() << 16, of_all << 16);
        let described = description_of::<PendingTimer<u64, ()>>();
        assert_eq!(described, "PendingTimer@1{at:Time,key:u64,namespace:(),}");
    }

    #[test]
    fn a_timer_is_in_the_key_group_of_its_key_and_apart_from_the_others_of_that() {
        for key in 0..200u64 {
            let timer = |n: i64| PendingTimer { at: Time(n / 4), key, namespace: n as u32 % 4 };
            let mut hashes: Vec<_> = (0..100).map(|n| timer(n).key_hash()).collect();
            for groups in [1, 7, 12, 256, 1000, u16::MAX] {
                let of_key = KeyGroup::of(key.key_hash(), groups);
                assert!(hashes.iter().all(|hash| KeyGroup::of(*hash, groups) == of_key));
            }
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 100);
        }
    }
}
