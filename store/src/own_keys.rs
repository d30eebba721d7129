//! Keys that a store refuses, because their key groups are another store's.
//!
//! What it keeps true: a state that keeps to its store's own keys can be restored by key groups into any
//! number of stores. Key groups that move are told apart in `moving`.

use std::ops::Range;

use alluvium_pagestore::{Error, ErrorKind, KeyGroup, Result};

/// The key groups whose keys a state may be given.
#[derive(Clone, Debug)]
pub(crate) struct OwnKeys {
    pub(crate) owned: Range<u16>,
    pub(crate) groups: u16,
}

impl OwnKeys {
    /// Refuses a key with this hash if its group is another store's.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`], naming the group.
    #[inline]
    pub(crate) fn check(&self, hash: u64) -> Result<()> {
        let group = KeyGroup::of(hash, self.groups).0;
        if self.owned.contains(&group) { Ok(()) } else { Err(self.refuse(group)) }
    }

    #[cold]
    fn refuse(&self, group: u16) -> Error {
        let Range { start, end } = self.owned;
        let message = format!(
            "a key of key group {group} cannot be here: this store has the groups {start}..{end}; \
             keys of an operator's state are those of its rows"
        );
        Error::new(ErrorKind::Mismatch, message)
    }
}
