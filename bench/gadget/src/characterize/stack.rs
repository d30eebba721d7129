//! Stack distances: how many other keys were accessed since the last access to the same key.
//!
//! The keys' last accesses are bits of an array in the order of time. A distance is the number of
//! bits behind the key's own, found by a Fenwick tree over words of 64 bits: O(log keys) an access.
//! When the array is full it is packed, which moves each key once for as many accesses. Memory is
//! at most 21 bytes a key that was accessed, and as much again while it is packed.

/// A key that was not accessed.
const NONE: u32 = u32::MAX;
/// The least places of the array.
const PLACES_MIN: usize = 1 << 12;

/// An LRU stack that tells positions.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    /// The place of each key.
    last: Vec<u32>,
    /// The key of each place.
    owner: Vec<u32>,
    bits: Vec<u64>,
    /// Fenwick tree of the number of bits of each word.
    tree: Vec<u32>,
    next: usize,
    live: u32,
}

impl Stack {
    /// Puts `key` on top. Returns how many others were accessed since its last access, or `None`
    /// if this is its first.
    pub fn access(&mut self, key: u32) -> Option<u32> {
        let distance = self.remove(key);
        if self.next == self.owner.len() {
            self.pack();
        }
        if self.last.len() <= key as usize {
            self.last.resize(key as usize + 1, NONE);
        }
        self.last[key as usize] = self.next as u32;
        self.owner[self.next] = key;
        self.bits[self.next / 64] |= 1 << (self.next % 64);
        self.add(self.next / 64, 1);
        (self.next, self.live) = (self.next + 1, self.live + 1);
        distance
    }

    /// Takes `key` out. Returns its position, if it was there.
    pub fn remove(&mut self, key: u32) -> Option<u32> {
        let place = *self.last.get(key as usize).filter(|place| **place != NONE)? as usize;
        let distance = self.live - self.up_to(place);
        self.last[key as usize] = NONE;
        self.bits[place / 64] &= !(1 << (place % 64));
        self.add(place / 64, u32::MAX);
        self.live -= 1;
        Some(distance)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        let words = self.last.capacity() + self.owner.capacity() + self.tree.capacity();
        (words * 4 + self.bits.capacity() * 8) as u64
    }

    /// Adds to a word's number; `u32::MAX` takes one away.
    fn add(&mut self, word: usize, count: u32) {
        let mut at = word + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }

    /// The number of bits up to `place`, its own included.
    fn up_to(&self, place: usize) -> u32 {
        let mask = u64::MAX >> (63 - place % 64);
        let (mut count, mut at) = ((self.bits[place / 64] & mask).count_ones(), place / 64);
        while at > 0 {
            count += self.tree[at];
            at -= at & at.wrapping_neg();
        }
        count
    }

    /// Moves the keys together, and makes as much room again.
    fn pack(&mut self) {
        let places = (2 * self.live as usize).next_multiple_of(64).max(PLACES_MIN);
        let mut owner = Vec::with_capacity(places);
        for (place, key) in self.owner.iter().enumerate() {
            if self.bits[place / 64] >> (place % 64) & 1 == 1 {
                self.last[*key as usize] = owner.len() as u32;
                owner.push(*key);
            }
        }
        self.next = owner.len();
        owner.resize(places, NONE);
        self.owner = owner;
        self.bits = vec![0; places / 64];
        (0..self.next).for_each(|place| self.bits[place / 64] |= 1 << (place % 64));
        self.tree = vec![0; places / 64 + 1];
        for word in 0..places / 64 {
            self.tree[word + 1] += self.bits[word].count_ones();
            let parent = word + 1 + ((word + 1) & (word + 1).wrapping_neg());
            if parent < self.tree.len() {
                self.tree[parent] += self.tree[word + 1];
            }
        }
    }
}

/// How often each distance came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    /// First accesses.
    pub first: u64,
    counts: Vec<u64>,
}

impl Distances {
    /// Computes the stack distances of a sequence of keys.
    pub fn of(keys: impl Iterator<Item = u32>) -> Self {
        let (mut stack, mut distances) = (Stack::default(), Distances::default());
        keys.for_each(|key| distances.add(stack.access(key)));
        distances
    }

    /// Takes one more.
    pub fn add(&mut self, distance: Option<u32>) {
        let Some(distance) = distance else {
            self.first += 1;
            return;
        };
        if self.counts.len() <= distance as usize {
            self.counts.resize(distance as usize + 1, 0);
        }
        self.counts[distance as usize] += 1;
    }

    /// Accesses that were not the first.
    pub fn again(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The mean, without first accesses.
    pub fn mean(&self) -> f64 {
        let sum: u128 =
            self.counts.iter().zip(0u128..).map(|(n, distance)| u128::from(*n) * distance).sum();
        sum as f64 / self.again().max(1) as f64
    }

    /// The distance that a share of all, first accesses left out, does not pass.
    pub fn at(&self, share: f64) -> u64 {
        let (wanted, mut seen) = ((share * self.again() as f64).ceil() as u64, 0);
        let place = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        place.unwrap_or(0) as u64
    }

    /// The share of accesses that an LRU cache of each size, ascending, does not have.
    pub fn miss_ratios(&self, sizes: &[u64]) -> Vec<f64> {
        let total = (self.first + self.again()).max(1) as f64;
        let (mut hits, mut at) = (0, 0);
        let ratio = |size: &u64| {
            let end = (*size as usize).min(self.counts.len());
            hits += self.counts[at.min(end)..end].iter().sum::<u64>();
            at = at.max(end);
            1.0 - hits as f64 / total
        };
        sizes.iter().map(ratio).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A list, searched and moved to the front.
    fn slow(keys: &[u32]) -> Vec<Option<u32>> {
        let mut list: Vec<u32> = Vec::new();
        let mut access = |key: &u32| {
            let at = list.iter().position(|other| other == key);
            at.iter().for_each(|at| {
                list.remove(*at);
            });
            list.insert(0, *key);
            at.map(|at| at as u32)
        };
        keys.iter().map(&mut access).collect()
    }

    #[test]
    fn distances_are_those_of_a_list() {
        for (seed, keys, accesses) in [(1, 5, 3000), (2, 300, 20_000), (3, 9000, 30_000)] {
            let mut random = Random::new(seed);
            let mut key = || (random.below(keys) * random.below(keys) / keys) as u32;
            let trace: Vec<u32> = (0..accesses).map(|_| key()).collect();
            let mut stack = Stack::default();
            let found: Vec<_> = trace.iter().map(|key| stack.access(*key)).collect();
            assert_eq!(found, slow(&trace), "seed {seed}");
        }
    }

    #[test]
    fn a_key_that_was_taken_out_is_new_again() {
        let mut stack = Stack::default();
        for key in 0..10_000 {
            stack.access(key);
        }
        assert_eq!(stack.remove(9_990), Some(9));
        assert_eq!((stack.access(9_989), stack.access(9_990)), (Some(9), None));
        assert_eq!(stack.remove(77_777), None);
    }

    #[test]
    fn figures_of_a_trace_computed_by_hand() {
        // a b a c b a: a after 1, b after 2 (a, c), a after 2 (c, b).
        let distances = Distances::of([0, 1, 0, 2, 1, 0].into_iter());
        assert_eq!((distances.first, distances.again()), (3, 3));
        assert_eq!((distances.mean(), distances.at(0.3), distances.at(1.0)), (5.0 / 3.0, 1, 2));
        let ratios = distances.miss_ratios(&[0, 1, 2, 3, 9]);
        assert_eq!(ratios, [1.0, 1.0, 1.0 - 1.0 / 6.0, 0.5, 0.5]);
    }
}
