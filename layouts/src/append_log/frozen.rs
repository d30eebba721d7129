//! The lists of a bucket in memory, taken out of it to be written: read by the owner and by the
//! helper at once, never changed.

use alluvium_pagestore::{KeyHash, Time};

use super::chain_unsafe::ElementChain;
use super::heads_unsafe::FrozenHeads;
use super::key_unsafe::{KeyRef, OwnedKey};
use crate::heap::entry_table_unsafe::FrozenTable;
use crate::heap::hash_range::HashRange;

/// Elements that stand before others of their key which are on storage.
#[derive(Debug)]
pub struct EarlyElements {
    pub key: OwnedKey,
    pub rank: i64,
    pub chain: ElementChain,
}

/// Elements of one key that stand together in memory.
#[derive(Clone, Copy, Debug)]
pub struct FrozenElements<'a> {
    /// Where the key stands.
    pub place: u64,
    /// The bucket it was appended to, and the number of its run; [`LIVE`] if it is in none.
    pub source: (Time, u64),
    pub key: KeyRef<'a>,
    pub rank: i64,
    /// `None` for a key that may have elements elsewhere.
    pub chain: Option<&'a ElementChain>,
}

/// The run number of what is in no run yet.
pub const LIVE: u64 = u64::MAX;

/// Bytes by the kinds they are booked as.
#[derive(Clone, Copy, Debug, Default)]
pub struct BookedByKind {
    pub index: u64,
    pub pages: u64,
    pub values: u64,
    pub tables: u64,
}

impl BookedByKind {
    pub fn total(&self) -> u64 {
        self.index + self.pages + self.values + self.tables
    }
}

/// The lists of a bucket in memory that belong to one run.
#[derive(Debug)]
pub struct FrozenBucket {
    pub heads: FrozenHeads,
    pub early: FrozenTable<EarlyElements>,
    pub bucket: Time,
    pub number: u64,
    pub range: HashRange,
    pub booked: BookedByKind,
}

impl FrozenBucket {
    /// Adds the pieces from `place` on, up to an end that it may bring nearer, in no order.
    pub fn collect<'a>(
        &'a self,
        place: u64,
        end: &mut Option<u64>,
        out: &mut Vec<FrozenElements<'a>>,
    ) {
        let source = (self.bucket, self.number);
        let heads_end = self.heads.visit_part(place, &mut |hash, key, chain| {
            out.push(FrozenElements::of_head((self.range.place(hash), source), key, chain));
        });
        let (early, early_end) = self.early.part_at(place);
        out.extend(early.iter().map(|early| early.piece(self.range, source)));
        *end = sooner(*end, sooner(heads_end, early_end));
    }

    /// Adds the pieces of one key.
    pub fn find<'a>(&'a self, hash: u64, key: KeyRef<'_>, out: &mut Vec<FrozenElements<'a>>) {
        let source = (self.bucket, self.number);
        let place = self.range.place(hash);
        let early = self.early.part_at(place).0.iter().filter(|early| early.key.get() == key);
        out.extend(early.map(|early| early.piece(self.range, source)));
        let head = self.heads.find(hash, key);
        out.extend(head.map(|(key, chain)| FrozenElements::of_head((place, source), key, chain)));
    }

    /// Visits the pieces that have elements, in the order of their places; of a key those of a
    /// lower rank first.
    pub fn for_each<'a, Error>(
        &'a self,
        visit: impl FnMut(FrozenElements<'a>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut visit = visit;
        let (mut from, mut pieces) = (Some(0), Vec::new());
        while let Some(place) = from {
            let mut end = None;
            self.collect(place, &mut end, &mut pieces);
            pieces.retain(|piece| piece.is_within(place, end));
            pieces.sort_unstable_by_key(|piece| (piece.place, piece.rank));
            pieces.drain(..).try_for_each(&mut visit)?;
            from = end;
        }
        Ok(())
    }
}

impl<'a> FrozenElements<'a> {
    /// Of a head, which stands at this place.
    pub fn of_head(
        (place, source): (u64, (Time, u64)),
        key: KeyRef<'a>,
        chain: &'a ElementChain,
    ) -> Self {
        Self { place, source, key, rank: rank_of(source.1), chain: Some(chain) }
    }

    /// Whether it stands between two places and can have elements.
    pub fn is_within(&self, start: u64, end: Option<u64>) -> bool {
        let inside = self.place >= start && end.is_none_or(|end| self.place < end);
        inside && self.chain.is_none_or(|chain| chain.len() > 0)
    }
}

impl EarlyElements {
    /// The elements as a piece.
    pub fn piece(&self, range: HashRange, source: (Time, u64)) -> FrozenElements<'_> {
        FrozenElements {
            place: range.place(self.key.key_hash()),
            source,
            key: self.key.get(),
            rank: self.rank,
            chain: Some(&self.chain),
        }
    }
}

/// The rank of what was appended before the run of this number was made, after the one before.
pub fn rank_of(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The nearer of two ends.
pub fn sooner(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
