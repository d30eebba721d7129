//! Values that a replay writes, and the digest of all that it reads.

use std::hash::{BuildHasher, Hasher};

use alluvium::types::{combine, hash_word};
use foldhash::fast::FixedState;

/// Puts the value that line `number` writes into `to`: no two lines write the same.
pub(crate) fn fill(to: &mut Vec<u8>, number: u64, bytes: u32) {
    let word = hash_word(number).to_le_bytes();
    to.clear();
    to.resize(bytes as usize, 0);
    let (words, rest) = to.as_chunks_mut::<8>();
    words.iter_mut().for_each(|place| *place = word);
    rest.copy_from_slice(&word[..rest.len()]);
}

/// A digest of a value; 0 stands for none.
pub(crate) fn digest_of(value: Option<&[u8]>) -> u64 {
    let Some(value) = value else { return 0 };
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(value);
    hasher.write_usize(value.len());
    hasher.finish() | 1
}

/// A digest of what a range visits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visited(pub(super) u64);

impl Visited {
    pub(super) fn new() -> Self {
        Visited(1)
    }

    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        self.0 = combine(combine(self.0, digest_of(Some(key))), digest_of(Some(value)));
    }
}
