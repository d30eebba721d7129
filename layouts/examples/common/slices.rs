//! Elements that come in order of event time, but for some that are late.

use alluvium_pagestore::hash_word;

/// Event time between two slices.
pub const WIDTH: i64 = 1_000;

/// The slice of an element: late by up to `spread` slices.
pub fn slice_of(nth: u64, (elements, slices, spread): (u64, u64, u64)) -> u64 {
    let newest = (u128::from(nth) * u128::from(slices) / u128::from(elements)) as u64;
    let late = hash_word(nth) % spread.max(1);
    (newest + slices - late) % slices
}
