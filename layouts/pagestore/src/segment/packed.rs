//! Grains of a segment's records, packed: what checkpoints list of records that have died is mostly
//! this.

use super::format::{GRAIN_BYTES, SEGMENT_BYTES_MAX};

/// Bits that say where a record starts in a segment, in grains.
pub const GRAIN_BITS: u32 = SEGMENT_BYTES_MAX.ilog2() - GRAIN_BYTES.ilog2();

/// Bits of a gap in one byte; the eighth says that more follow.
const GAP_BITS: u32 = 7;
/// Bytes that a gap takes at most.
const GAP_BYTES_MAX: usize = GRAIN_BITS.div_ceil(GAP_BITS) as usize;

/// Bytes that `grains`, which are in order, take packed: one to three each.
pub fn packed_len(grains: impl Iterator<Item = u32>) -> usize {
    gaps(grains).map(|gap| (gap.max(1).ilog2() / GAP_BITS + 1) as usize).sum()
}

/// Appends `grains`, which are in order, to `bytes`: each as its gap from the one before (the first
/// from 0), seven bits to a byte, the lowest first.
pub fn pack(grains: impl Iterator<Item = u32>, bytes: &mut Vec<u8>) {
    for mut gap in gaps(grains) {
        while gap >> GAP_BITS != 0 {
            bytes.push(gap as u8 | 1 << GAP_BITS);
            gap >>= GAP_BITS;
        }
        bytes.push(gap as u8);
    }
}

/// Packed grains of one segment, from several lists: of each its length, and its bytes.
#[derive(Debug, Default)]
pub struct PackedGrains(Vec<u8>);

impl PackedGrains {
    /// Adds a list, and says whether these bytes are `count` grains.
    pub fn add(&mut self, list: &[u8], count: u32) -> bool {
        let (mut rest, mut grain, mut found) = (list, 0, 0);
        while let Some((gap, after)) = next_gap(rest) {
            (grain, rest) = (grain + gap, after);
            if grain >> GRAIN_BITS != 0 {
                return false;
            }
            found += 1;
        }
        let is_list = rest.is_empty() && found == count;
        if is_list {
            self.begin_list(list.len());
            self.0.extend_from_slice(list);
        }
        is_list
    }

    /// Adds a list from before they were packed, of four bytes for each grain; says whether they
    /// are in order.
    pub fn add_words(&mut self, words: &[u8]) -> bool {
        let grains = || words.chunks_exact(4).map(word);
        let is_list = grains().is_sorted() && grains().all(|grain| grain >> GRAIN_BITS == 0);
        if is_list {
            self.begin_list(packed_len(grains()));
            pack(grains(), &mut self.0);
        }
        is_list
    }

    fn begin_list(&mut self, len: usize) {
        self.0.extend_from_slice(&(len as u32).to_le_bytes());
    }

    /// The grains of all lists, in the order of each.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let mut rest = &self.0[..];
        let lists = std::iter::from_fn(move || {
            let (len, after) = rest.split_at_checked(4)?;
            let list;
            (list, rest) = after.split_at(word(len) as usize);
            Some(list)
        });
        lists.flat_map(|mut list| {
            let mut grain = 0;
            std::iter::from_fn(move || {
                let gap;
                (gap, list) = next_gap(list)?;
                grain += gap;
                Some(grain)
            })
        })
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn gaps(grains: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    let mut before = 0;
    grains.map(move |grain| grain - std::mem::replace(&mut before, grain))
}

/// The first gap of `bytes`, and what follows it.
fn next_gap(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut gap = 0;
    for (at, &byte) in bytes.iter().enumerate().take(GAP_BYTES_MAX) {
        gap |= u32::from(byte & !(1 << GAP_BITS)) << (GAP_BITS * at as u32);
        if byte >> GAP_BITS == 0 {
            return Some((gap, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u32 = (1 << GRAIN_BITS) - 1;

    fn packed(grains: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(grains.iter().copied(), &mut bytes);
        assert_eq!(bytes.len(), packed_len(grains.iter().copied()), "{grains:?}");
        bytes
    }

    #[test]
    fn what_was_packed_is_read() {
        let bounds = [0, 0, 1, 127, 128, 254, 16_384, 32_769, 2_000_000, 2_000_000, LAST];
        let (mut read, mut expected) = (PackedGrains::default(), Vec::new());
        for len in 0..=bounds.len() {
            let grains = &bounds[..len];
            let bytes = packed(grains);
            assert!(bytes.len() <= GAP_BYTES_MAX * len);
            assert!(read.add(&bytes, len as u32), "{grains:?}");
            let words: Vec<u8> = grains.iter().flat_map(|grain| grain.to_le_bytes()).collect();
            assert!(read.add_words(&words), "{grains:?}");
            expected.extend([grains, grains].concat());
            assert_eq!(read.iter().collect::<Vec<_>>(), expected);
        }
        // One in a thousand of records that take two grains each.
        let sparse: Vec<u32> = (0..1000).map(|n| n * 2000 + n % 97).collect();
        assert!(packed(&sparse).len() <= 2 * sparse.len());
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = packed(&[3, 700, LAST]);
        let mut read = PackedGrains::default();
        for count in [0, 2, 4] {
            assert!(!read.add(&bytes, count));
        }
        assert!(!read.add(&bytes[..bytes.len() - 1], 3), "cut short");
        assert!(!read.add(&[0x80; 9], 1), "a gap without an end");
        assert!(!read.add(&[&bytes[..], &[1]].concat(), 4), "beyond every segment");
        assert!(!read.add_words(&[2u32, 1].map(u32::to_le_bytes).concat()), "not in order");
        assert!(!read.add_words(&[0, LAST + 1].map(u32::to_le_bytes).concat()), "beyond");
        assert_eq!(read.iter().count(), 0, "nothing of them was kept");
    }
}
