//! What is known of a key's elements on storage beside that they are in its bucket's runs: that
//! older ones were cleared, or that some were moved here from another bucket.
//!
//! Runs are never changed. A *cut* hides those before it from a key, as a [gap](crate::support::gaps) does from all
//! keys between two hashes; an *import* shows those of another bucket, with their ranks shifted, so that they
//! stand before what the key had here.

use alluvium_pagestore::{HeapSize, Time, rounded};

use super::bucket::Bucket;
use super::frozen::LIVE;
use super::key_unsafe::{KeyRef, OwnedKey};
use crate::heap::snapshot::Entry;

/// Elements in runs of another bucket that belong to a key here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Import {
    pub source: Time,
    /// Numbers of the first and the last run.
    pub runs: (u64, u64),
    /// Added to their ranks.
    pub delta: i64,
}

/// What is to be known of one key of a bucket.
#[derive(Clone, Debug)]
pub struct Note {
    pub key: OwnedKey,
    /// Runs of this bucket with a lower number are not the key's any more.
    pub cut: u64,
    /// No element of the key has a lower rank.
    pub low: i64,
    pub imports: Vec<Import>,
}

impl Note {
    /// Bytes that it owns.
    pub fn heap_bytes(&self) -> u64 {
        (self.key.heap_bytes() + rounded(self.imports.capacity() * size_of::<Import>())) as u64
    }
}

impl Entry<OwnedKey> for Note {
    fn key(&self) -> &OwnedKey {
        &self.key
    }

    fn owned_bytes(&self) -> u64 {
        self.heap_bytes()
    }
}

/// Whose the elements of a key in some runs are.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub source: Time,
    pub runs: (u64, u64),
    /// The number, among the buckets that are read, of the one they belong to.
    pub owner: usize,
    pub delta: i64,
}

/// Adds what `key` sees in the bucket with the number `owner`.
pub fn views(bucket: &Bucket, owner: usize, hash: u64, key: KeyRef<'_>, out: &mut Vec<View>) {
    let note = bucket.note(hash, key);
    let cut = bucket.first_run(hash, note);
    let imports = note.map_or(&[][..], |note| &note.imports);
    out.extend(imports.iter().map(|import| View {
        source: import.source,
        runs: import.runs,
        owner,
        delta: import.delta,
    }));
    out.push(View { source: bucket.time, runs: (cut, LIVE), owner, delta: 0 });
}

/// Whose the elements of this run are, and what is added to their ranks.
pub fn resolve(views: &[View], (bucket, number): (Time, u64)) -> Option<(usize, i64)> {
    let view = views
        .iter()
        .find(|view| view.source == bucket && view.runs.0 <= number && number <= view.runs.1)?;
    Some((view.owner, view.delta))
}
