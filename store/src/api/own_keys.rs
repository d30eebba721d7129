//! Keys that a state refuses: those whose key groups are another store's, and in an operator those that are
//! none of its rows'.
//!
//! What it keeps true: a state that keeps to its store's own keys can be restored by key groups into any
//! number of stores. Key groups that move are told apart in `moving`.
//!
//! A write by a row's key is compared with the row at hand and those beside it, as rows are mostly written
//! in order; only if that fails are the rows indexed, once for each call of the closure.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use alluvium_pagestore::{Error, ErrorKind, KeyGroup, Result};

/// The keys that a state may be given.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnKeys {
    /// Of these key groups, of so many.
    pub(crate) groups: Option<(Range<u16>, u16)>,
    /// Of the rows at hand.
    pub(crate) rows: Option<RowKeys>,
}

impl OwnKeys {
    /// Itself, unless it has all keys.
    pub(crate) fn if_any(self) -> Option<Self> {
        (self.groups.is_some() || self.rows.is_some()).then_some(self)
    }

    /// Refuses a key with this hash if its group is another store's, or if it is none of the rows'.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`], naming the group.
    #[inline]
    pub(crate) fn check(&self, hash: u64) -> Result<()> {
        self.check_all(std::iter::once(hash))
    }

    /// [`check`](OwnKeys::check) of several keys.
    #[inline]
    pub(crate) fn check_all(&self, mut hashes: impl Iterator<Item = u64>) -> Result<()> {
        let check_group = |hash: u64| {
            let Some((owned, groups)) = &self.groups else { return Ok(()) };
            let group = KeyGroup::of(hash, *groups).0;
            if owned.contains(&group) { Ok(()) } else { Err(refuse(group, owned)) }
        };
        let Some(rows) = &self.rows else { return hashes.try_for_each(check_group) };
        let rows = &mut *rows.0.borrow_mut();
        hashes.try_for_each(|hash| {
            check_group(hash)?;
            if rows.has(hash) { Ok(()) } else { Err(not_of_rows()) }
        })
    }
}

#[cold]
fn refuse(group: u16, Range { start, end }: &Range<u16>) -> Error {
    let message = format!(
        "a key of key group {group} cannot be here: this store has the groups {start}..{end}; \
         keys of an operator's state are those of its rows"
    );
    Error::new(ErrorKind::Mismatch, message)
}

#[cold]
fn not_of_rows() -> Error {
    let message = "a key that is none of the rows at hand cannot be here: keys of an operator's state are \
                   those of its rows, which another number of workers would divide otherwise";
    Error::new(ErrorKind::Mismatch, message)
}

/// The keys of the rows that an operator's closure gets. States [opened with
/// them](crate::states::StateBuilder::keys_of) refuse writes of other keys during the call. Cheap to clone.
#[derive(Clone, Default)]
pub struct RowKeys(Rc<RefCell<BatchRows>>);

#[derive(Default)]
struct BatchRows {
    /// Whether a closure is being called.
    is_called: bool,
    /// The hashes of their keys, in order.
    hashes: Vec<u64>,
    /// The row that was written last.
    at: usize,
    /// Places in `hashes` by hash, once that was needed in this call; [`NONE`] where there is none.
    index: Vec<u32>,
    is_indexed: bool,
    /// Keys of calls that failed, by kind of call: what is left to do of these may be done by a later one.
    failed: [Vec<u64>; 2],
}

const NONE: u32 = u32::MAX;

impl RowKeys {
    /// Makes an empty set: until the first call, any key may be written.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a call with rows whose keys have these hashes. Cost: about that of computing the
    /// hashes.
    pub fn begin(&self, hashes: impl Iterator<Item = u64>) {
        let rows = &mut *self.0.borrow_mut();
        rows.hashes.clear();
        rows.hashes.extend(hashes);
        rows.failed.iter().for_each(|failed| rows.hashes.extend(failed));
        // Before the first.
        (rows.is_called, rows.is_indexed, rows.at) = (true, false, usize::MAX);
    }

    /// Ends the call. After an error its keys may still be written, until a call of the same kind
    /// (of two) succeeds.
    pub fn end(&self, is_second_kind: bool, has_succeeded: bool) {
        let rows = &mut *self.0.borrow_mut();
        rows.is_called = false;
        let failed = &mut rows.failed[usize::from(is_second_kind)];
        if has_succeeded {
            failed.clear();
        } else {
            failed.clone_from(&rows.hashes);
            failed.sort_unstable();
            failed.dedup();
        }
    }
}

impl BatchRows {
    /// Whether a key of this hash may be written. Cost: that of a comparison where rows are written in
    /// their order, or in the opposite one; else that of a look-up.
    #[inline]
    fn has(&mut self, hash: u64) -> bool {
        let next = self.at.wrapping_add(1);
        if self.hashes.get(next) == Some(&hash) {
            self.at = next;
            return true;
        }
        self.has_elsewhere(hash)
    }

    #[inline(never)]
    fn has_elsewhere(&mut self, hash: u64) -> bool {
        if !self.is_called {
            return true;
        }
        for near in [self.at, self.at.wrapping_sub(1)] {
            if self.hashes.get(near) == Some(&hash) {
                self.at = near;
                return true;
            }
        }
        self.find(hash)
    }

    fn find(&mut self, hash: u64) -> bool {
        if !self.is_indexed {
            self.index_all();
        }
        let mask = self.index.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let place = self.index[slot];
            match self.hashes.get(place as usize) {
                Some(found) if *found == hash => {
                    self.at = place as usize;
                    return true;
                }
                Some(_) => slot = (slot + 1) & mask,
                None => return false,
            }
        }
    }

    /// At most half full, so that a search ends.
    fn index_all(&mut self) {
        let slots = (2 * self.hashes.len()).next_power_of_two().max(2);
        self.index.clear();
        self.index.resize(slots, NONE);
        for (place, hash) in (0..).zip(&self.hashes) {
            let mut slot = *hash as usize & (slots - 1);
            while let Some(there) = self.hashes.get(self.index[slot] as usize)
                && there != hash
            {
                slot = (slot + 1) & (slots - 1);
            }
            self.index[slot] = place;
        }
        self.is_indexed = true;
    }
}

impl fmt::Debug for RowKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowKeys({} at hand)", self.0.borrow().hashes.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use alluvium_pagestore::hash_word;

    use super::*;

    fn has(keys: &RowKeys, hash: u64) -> bool {
        let own = OwnKeys { groups: None, rows: Some(keys.clone()) };
        own.check(hash).is_ok()
    }

    #[test]
    fn keys_are_taken_if_and_only_if_they_are_at_hand() {
        let mut chance = 1;
        let mut below = |limit: u64| {
            chance = hash_word(chance + 1);
            chance % limit
        };
        let keys = RowKeys::new();
        assert!(has(&keys, 7), "nothing is called yet");
        let mut failed = [BTreeSet::new(), BTreeSet::new()];
        for _ in 0..300 {
            let (count, spread) = (below(80), 1 + below(60));
            // Also hashes that end alike, and 0 and the greatest.
            let hash = |n: u64| match n {
                0 => 0,
                1 => u64::MAX,
                n => (n << 32) | (n % 3),
            };
            let rows: Vec<u64> = (0..count).map(|_| hash(below(spread))).collect();
            keys.begin(rows.iter().copied());
            let mut all: BTreeSet<u64> = rows.iter().copied().collect();
            all.extend(failed.iter().flatten());
            match below(3) {
                0 => assert!(rows.iter().all(|hash| has(&keys, *hash))),
                1 => assert!(rows.iter().rev().all(|hash| has(&keys, *hash))),
                _ => {}
            }
            for _ in 0..100 {
                let hash = hash(below(2 * spread));
                assert_eq!(has(&keys, hash), all.contains(&hash), "{hash} of {all:?}");
            }
            let (second, succeeded) = (below(2) == 1, below(3) > 0);
            keys.end(second, succeeded);
            failed[usize::from(second)] = if succeeded { BTreeSet::new() } else { all };
            assert!(has(&keys, 12_345), "between two calls");
        }
    }
}
