//! What is known of a key's elements on storage beside that they are in its bucket's runs: that
//! older ones were cleared, or that some were moved here from another bucket.
//!
//! Runs are never changed. A *cut* hides those before it from a key, as a [gap](crate::support::gaps) does from all
//! keys between two hashes; an *import* shows those of another bucket, with their ranks shifted, so that they
//! stand before what the key had here.

use alluvium_pagestore::{Account, HeapSize, KeyHash, Result, Time, rounded};

use super::bucket::AppendBucket;
use super::frozen::LIVE;
use super::key_unsafe::{KeyRef, OwnedKey};
use crate::heap::entry_table_unsafe::{EntryTable, KeyedEntry};
use crate::heap::snapshot::Snapshot;

/// Less than a note that could not be kept takes.
const KEPT_BYTES: u64 = 4 << 10;

/// Elements in runs of another bucket that belong to a key here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedRuns {
    pub source: Time,
    /// Numbers of the first and the last run.
    pub runs: (u64, u64),
    /// Added to their ranks.
    pub delta: i64,
}

/// What is to be known of one key of a bucket.
#[derive(Clone, Debug)]
pub struct KeyNote {
    pub key: OwnedKey,
    /// Runs of this bucket with a lower number are not the key's any more.
    pub cut: u64,
    /// No element of the key has a lower rank.
    pub low: i64,
    pub imports: Vec<ImportedRuns>,
}

impl KeyNote {
    /// Bytes that it owns.
    pub fn heap_bytes(&self) -> u64 {
        (self.key.heap_bytes() + rounded(self.imports.capacity() * size_of::<ImportedRuns>()))
            as u64
    }
}

/// What was noted of a key at a barrier, of which something else is noted since.
#[derive(Debug)]
pub struct KeptNote {
    pub key: OwnedKey,
    pub before: Option<KeyNote>,
}

impl KeyedEntry for KeptNote {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}

impl Snapshot<KeptNote> {
    /// Gives some of the notes of the barrier that were not taken yet to `take`; says whether there are more. They are in
    /// this table now, unless they have changed.
    ///
    /// # Errors
    /// Those of `take`; [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if one could not be kept.
    pub fn take_some(
        &mut self,
        notes: &EntryTable<KeyNote>,
        account: &Account,
        take: &mut dyn FnMut(&KeyNote) -> Result<()>,
    ) -> Result<bool> {
        if self.is_lost() {
            let what = "what a checkpoint keeps of notes that change";
            return Err(account.over_budget(KEPT_BYTES, what));
        }
        let Some(place) = self.next else {
            return self.take_kept(|kept| kept.before.iter().try_for_each(&mut *take));
        };
        let (part, end) = notes.part_at(place);
        let notes = part.iter().map(|note| (note.key.key_hash(), note));
        self.take(notes, end, |kept, note| kept.key == note.key, take)?;
        Ok(true)
    }
}

/// Whose the elements of a key in some runs are.
#[derive(Clone, Copy, Debug)]
pub struct OwnedRuns {
    pub source: Time,
    pub runs: (u64, u64),
    /// The number, among the buckets that are read, of the one they belong to.
    pub owner: usize,
    pub delta: i64,
}

/// Adds what `key` sees in the bucket with the number `owner`.
pub fn views(
    bucket: &AppendBucket,
    owner: usize,
    hash: u64,
    key: KeyRef<'_>,
    out: &mut Vec<OwnedRuns>,
) {
    let note = bucket.note(hash, key);
    let cut = bucket.first_run(hash, note);
    let imports = note.map_or(&[][..], |note| &note.imports);
    out.extend(imports.iter().map(|import| OwnedRuns {
        source: import.source,
        runs: import.runs,
        owner,
        delta: import.delta,
    }));
    out.push(OwnedRuns { source: bucket.time, runs: (cut, LIVE), owner, delta: 0 });
}

/// Whose the elements of this run are, and what is added to their ranks.
pub fn resolve(views: &[OwnedRuns], (bucket, number): (Time, u64)) -> Option<(usize, i64)> {
    let view = views
        .iter()
        .find(|view| view.source == bucket && view.runs.0 <= number && number <= view.runs.1)?;
    Some((view.owner, view.delta))
}
