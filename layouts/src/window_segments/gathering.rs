//! What a fold gathers of a range of places before it is visited: each key once, with its sum.
//!
//! Keys stand in the order in which they came first, which depends on the tables they came from and
//! on nothing else: a fold whose visit failed gathers the same range again and goes on behind what
//! was visited. The memory stays for the next range and comes out of what is kept for folds; heap
//! of sums is booked while they are here.

use std::any::Any;

use alluvium_pagestore::{Account, Key, MemoryKind, State, rounded};
use hashbrown::HashTable;

use crate::contract::panes::Merge;

/// Keys there is room for at first.
const KEYS_MIN: usize = 128;
/// Keys there is room for at the most: all of it stays in a second-level cache.
const KEYS_MAX: usize = 8192;

/// The hash for the index, which looks at its highest and lowest bits: not those that all keys of a range share.
#[inline(always)]
fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// Where sums stand, by spread hashes. What adds to it is compiled once.
struct SumIndex(HashTable<u32>);

impl SumIndex {
    fn new() -> Self {
        Self(HashTable::new())
    }

    #[inline(never)]
    fn insert(&mut self, hash: u64, at: u32, hash_of: &dyn Fn(u32) -> u64) {
        self.0.insert_unique(hash, at, |at| hash_of(*at));
    }

    #[inline(never)]
    fn reserve(&mut self, keys: usize, hash_of: &dyn Fn(u32) -> u64) {
        self.0.reserve(keys - self.0.len(), |at| hash_of(*at));
    }
}

/// Keys and sums of a range of places.
pub struct GatheredSums<K, A> {
    sums: Vec<(K, A)>,
    /// Where the sum of a key stands.
    index: SumIndex,
    /// The most keys that the memory for folds allows.
    keys_max: usize,
    /// Booked for the heap of what is here.
    heap_bytes: u64,
}

/// A [`GatheredSums`] whose types are erased.
pub trait ErasedGathering: 'static {
    /// Whether there is memory for any.
    fn has_room(&self) -> bool;

    /// Forgets what is here and gives the memory up.
    fn give_up(&mut self, account: &Account);

    /// The gathering itself.
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<K: Key, A: State> ErasedGathering for GatheredSums<K, A> {
    fn has_room(&self) -> bool {
        self.keys_max > 0
    }

    fn give_up(&mut self, account: &Account) {
        self.clear(account);
        (self.sums, self.index) = (Vec::new(), SumIndex::new());
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl<K: Key, A: State> GatheredSums<K, A> {
    const PLAIN: bool = K::NO_HEAP && A::NO_HEAP;

    /// Nothing yet, and no memory taken; it will take `bytes` at the most.
    pub fn within(bytes: u64) -> Self {
        let fits = |keys: &usize| Self::bytes_of(*keys) + Self::bytes_of(*keys / 2) <= bytes;
        let sizes = std::iter::successors(Some(KEYS_MAX), |keys| Some(keys / 2));
        let keys_max = sizes.take_while(|keys| *keys >= KEYS_MIN).find(fits).unwrap_or(0);
        Self { sums: Vec::new(), index: SumIndex::new(), keys_max, heap_bytes: 0 }
    }

    /// Keys there is room for at the most.
    pub fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Memory for so many keys, a power of two.
    fn bytes_of(keys: usize) -> u64 {
        let index = 2 * keys * (size_of::<u32>() + 1) + 64;
        (rounded(keys * size_of::<(K, A)>()) + rounded(index)) as u64
    }

    /// Forgets what is here and keeps the memory.
    pub fn clear(&mut self, account: &Account) {
        self.index.0.clear();
        self.sums.clear();
        account.release(MemoryKind::Values, std::mem::take(&mut self.heap_bytes));
    }

    /// Adds what `key` has in the next part. Says whether there was room; if not, what is here is
    /// of no use any more.
    #[inline]
    pub fn add(
        &mut self,
        (hash, key, value): (u64, &K, &A),
        merge: &Merge<A>,
        account: &Account,
    ) -> bool {
        let Self { sums, index, heap_bytes, .. } = self;
        let Some(at) = index.0.find(spread(hash), |at| sums[*at as usize].0 == *key) else {
            return self.begin(hash, key, value, account);
        };
        let sum = &mut sums[*at as usize].1;
        if Self::PLAIN {
            merge(sum, value);
            return true;
        }
        // Memory for a sum that grows is kept for reading; it is booked here once it is known.
        let before = sum.heap_bytes() as u64;
        merge(sum, value);
        let after = sum.heap_bytes() as u64;
        if after <= before {
            account.release(MemoryKind::Values, before - after);
            *heap_bytes -= before - after;
            return true;
        }
        let fits = account.try_reserve(MemoryKind::Values, after - before);
        *heap_bytes += if fits { after - before } else { 0 };
        fits
    }

    fn begin(&mut self, hash: u64, key: &K, value: &A, account: &Account) -> bool {
        if self.sums.len() == self.sums.capacity() && !self.grow() {
            return false;
        }
        if !Self::PLAIN {
            let heap = (key.heap_bytes() + value.heap_bytes()) as u64;
            if !account.try_reserve(MemoryKind::Values, heap) {
                return false;
            }
            self.heap_bytes += heap;
        }
        let entry = (key.clone(), value.clone());
        let Self { sums, index, .. } = self;
        let hash_of = |at: u32| spread(sums[at as usize].0.key_hash());
        index.insert(spread(hash), sums.len() as u32, &hash_of);
        sums.push(entry);
        true
    }

    #[cold]
    fn grow(&mut self) -> bool {
        let keys = (2 * self.sums.len()).max(KEYS_MIN);
        if keys > self.keys_max {
            return false;
        }
        let Self { sums, index, .. } = self;
        sums.reserve_exact(keys - sums.len());
        index.reserve(keys, &|at| spread(sums[at as usize].0.key_hash()));
        true
    }

    /// Puts what is here into an order, to be visited next.
    pub fn sort_by(&mut self, order: impl Fn(&K) -> u64) {
        self.index.0.clear();
        self.sums.sort_unstable_by_key(|(key, _)| order(key));
    }

    /// Hands out what is here but the first `skipped`. If `visit` fails, says with how many of all
    /// it was done before.
    pub fn visit<E>(
        &mut self,
        skipped: usize,
        account: &Account,
        visit: &mut dyn FnMut(&K, A) -> Result<(), E>,
    ) -> Result<(), (usize, E)> {
        let Self { sums, heap_bytes, .. } = self;
        let mut done = Ok(());
        for (n, (key, sum)) in sums.drain(..).enumerate().skip(skipped) {
            if !Self::PLAIN {
                // A clone may own less than what it was made of.
                let heap = ((key.heap_bytes() + sum.heap_bytes()) as u64).min(*heap_bytes);
                account.release(MemoryKind::Values, heap);
                *heap_bytes -= heap;
            }
            if let Err(error) = visit(&key, sum) {
                done = Err((n, error));
                break;
            }
        }
        self.clear(account);
        done
    }
}
