//! Ranges of hashes whose keys were removed from parts that are not changed any more: what a key group
//! leaves behind that has moved away.
//!
//! A cut says of one key which parts do not count; a gap says it of all keys between two hashes, without
//! a look at them. It goes when no part is left that it hides something of.

use std::ops::RangeInclusive;

use alluvium_pagestore::{Account, MemoryKind, Result};

/// Bytes booked for a gap: twice, for the vector that grows.
pub const GAP_BYTES: u64 = 2 * size_of::<HashGap>() as u64;

/// Hashes from one to another, of whose keys parts before `before` have nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashGap {
    pub first: u64,
    pub last: u64,
    pub before: u64,
}

/// The gaps in some parts.
#[derive(Clone, Debug, Default)]
pub struct Gaps(Vec<HashGap>);

impl Gaps {
    /// The first part that counts of a key with this hash.
    #[inline]
    pub fn first_part(&self, hash: u64) -> u64 {
        let of = self.0.iter().filter(|gap| (gap.first..=gap.last).contains(&hash));
        of.map(|gap| gap.before).max().unwrap_or(0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &HashGap> {
        self.0.iter()
    }

    /// Bytes booked for them.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64 * GAP_BYTES
    }

    /// Hides what parts before `before` have of keys with these hashes.
    ///
    /// # Errors
    /// If there is no memory for it; nothing has changed then.
    pub fn leave(
        &mut self,
        hashes: &RangeInclusive<u64>,
        before: u64,
        account: &Account,
    ) -> Result<()> {
        let (first, last) = (*hashes.start(), *hashes.end());
        match self.0.iter_mut().find(|gap| (gap.first, gap.last) == (first, last)) {
            Some(gap) => gap.before = before,
            None => self.put(HashGap { first, last, before }, account)?,
        }
        Ok(())
    }

    /// Adds one that a catalog tells.
    ///
    /// # Errors
    /// As for [`leave`](Gaps::leave).
    pub fn put(&mut self, gap: HashGap, account: &Account) -> Result<()> {
        account.reserve(MemoryKind::Tables, GAP_BYTES, "a range of removed keys")?;
        self.0.push(gap);
        Ok(())
    }

    /// Drops those that only tell of parts before `part`.
    pub fn close_before(&mut self, part: u64, account: &Account) {
        let before = self.bytes();
        self.0.retain(|gap| gap.before > part);
        account.release(MemoryKind::Tables, before - self.bytes());
    }

    /// Drops all of them.
    pub fn close(&mut self, account: &Account) {
        account.release(MemoryKind::Tables, self.bytes());
        self.0 = Vec::new();
    }
}

impl FromIterator<HashGap> for Gaps {
    fn from_iter<I: IntoIterator<Item = HashGap>>(gaps: I) -> Self {
        Self(gaps.into_iter().collect())
    }
}
