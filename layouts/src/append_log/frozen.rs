//! The lists of a bucket in memory, taken out of it to be written: read by the owner and by the
//! helper at once, never changed.

use alluvium_pagestore::{Key, KeyHash, Time};

use super::chain_unsafe::Chain;
use crate::heap::split_table::{FrozenTable, HashRange};

/// A key and its elements in memory, those after all others.
#[derive(Debug)]
pub struct Head<K> {
    pub key: K,
    pub chain: Chain,
}

/// Elements that stand before others of their key which are on storage.
#[derive(Debug)]
pub struct Early<K> {
    pub key: K,
    pub rank: i64,
    pub chain: Chain,
}

/// Elements of one key that stand together in memory.
#[derive(Debug)]
pub struct Piece<'a, K> {
    /// Where the key stands.
    pub place: u64,
    /// The bucket it was appended to, and the number of its run; [`LIVE`] if it is in none.
    pub source: (Time, u64),
    pub key: &'a K,
    pub rank: i64,
    /// `None` for a key that may have elements elsewhere.
    pub chain: Option<&'a Chain>,
}

impl<K> Clone for Piece<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Piece<'_, K> {}

/// The run number of what is in no run yet.
pub const LIVE: u64 = u64::MAX;

/// Bytes by the kinds they are booked as.
#[derive(Clone, Copy, Debug, Default)]
pub struct Booked {
    pub index: u64,
    pub pages: u64,
    pub values: u64,
    pub tables: u64,
}

impl Booked {
    pub fn total(&self) -> u64 {
        self.index + self.pages + self.values + self.tables
    }
}

/// The lists of a bucket in memory that belong to one run.
#[derive(Debug)]
pub struct Frozen<K> {
    pub heads: FrozenTable<Head<K>>,
    pub early: FrozenTable<Early<K>>,
    pub bucket: Time,
    pub number: u64,
    pub range: HashRange,
    pub booked: Booked,
}

impl<K: Key> Frozen<K> {
    /// Adds the pieces from `place` on, up to an end that it may bring nearer, in no order.
    pub fn collect<'a>(&'a self, place: u64, end: &mut Option<u64>, out: &mut Vec<Piece<'a, K>>) {
        let source = (self.bucket, self.number);
        let (heads, heads_end) = self.heads.part_at(place);
        out.extend(heads.map(|head| head.piece(self.range, source)));
        let (early, early_end) = self.early.part_at(place);
        out.extend(early.map(|early| early.piece(self.range, source)));
        *end = sooner(*end, sooner(heads_end, early_end));
    }

    /// Adds the pieces of one key.
    pub fn find<'a>(&'a self, hash: u64, is: impl Fn(&K) -> bool, out: &mut Vec<Piece<'a, K>>) {
        let source = (self.bucket, self.number);
        let early = self.early.part_at(self.range.place(hash)).0.filter(|early| is(&early.key));
        out.extend(early.map(|early| early.piece(self.range, source)));
        let head = self.heads.find(hash, |head| is(&head.key));
        out.extend(head.map(|head| head.piece(self.range, source)));
    }

    /// Visits the pieces that have elements, in the order of their places; of a key those of a
    /// lower rank first.
    pub fn for_each<'a, Error>(
        &'a self,
        visit: impl FnMut(Piece<'a, K>) -> Result<(), Error>,
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

impl<K> Piece<'_, K> {
    /// Whether it stands between two places and can have elements.
    pub fn is_within(&self, start: u64, end: Option<u64>) -> bool {
        let inside = self.place >= start && end.is_none_or(|end| self.place < end);
        inside && self.chain.is_none_or(|chain| chain.len() > 0)
    }
}

impl<K: KeyHash> Head<K> {
    /// The head as a piece.
    pub fn piece(&self, range: HashRange, source: (Time, u64)) -> Piece<'_, K> {
        Piece {
            place: range.place(self.key.key_hash()),
            source,
            key: &self.key,
            rank: rank_of(source.1),
            chain: Some(&self.chain),
        }
    }
}

impl<K: KeyHash> Early<K> {
    /// The elements as a piece.
    pub fn piece(&self, range: HashRange, source: (Time, u64)) -> Piece<'_, K> {
        Piece {
            place: range.place(self.key.key_hash()),
            source,
            key: &self.key,
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
