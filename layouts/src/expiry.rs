//! Removing what has expired from a table that nobody asks for it.
//!
//! Each value knows when it was touched last; what was touched last before some time has expired.
//! Whether an expired entry is seen is the caller's business, who looks at the time whenever it looks
//! at a value. A [pass](ExpiryPass) over a table takes those out that nobody will look at again, some
//! entries with each call.

use alluvium_pagestore::{ErrorKind, Key, Result, Time};

use crate::table::{Cursor, Table};

/// Tells when a value was touched last.
pub type Touched<V> = fn(&V) -> Time;

/// A pass over a table that removes what has expired, and what it has come to know.
#[derive(Debug)]
pub struct ExpiryPass<V> {
    /// When a value was touched last.
    pub touched: Touched<V>,
    /// What was touched last before this has expired. [`Time::MIN`]: nothing.
    pub to: Time,
    /// How far it is, in a meaning private to the layout.
    pub cursor: Cursor,
    /// The least of the times of what it has left.
    pub least: Time,
    /// Whether it has seen all that was there throughout; if not, another pass finds the rest.
    pub is_whole: bool,
    /// Entries that it has looked at.
    pub looked: u64,
    /// Entries that it has removed.
    pub removed: u64,
}

impl<V> ExpiryPass<V> {
    /// The beginning of a pass.
    pub fn new(touched: Touched<V>, to: Time) -> Self {
        let (cursor, least) = (Cursor::default(), Time::MAX);
        Self { touched, to, cursor, least, is_whole: true, looked: 0, removed: 0 }
    }

    /// Looks at a value: whether its entry is to be removed.
    #[inline]
    pub fn has_expired(&mut self, value: &V) -> bool {
        let touched = (self.touched)(value);
        self.looked += 1;
        if touched < self.to {
            return true;
        }
        self.least = self.least.min(touched);
        false
    }
}

/// [`Table::expire`] by what every table can do.
pub(crate) fn by_scan<K: Key, V, T: Table<K, V> + ?Sized>(
    table: &mut T,
    pass: &mut ExpiryPass<V>,
    fuel: usize,
) -> Result<()> {
    let (mut cursor, mut expired) = (pass.cursor, Vec::new());
    let scanned = table.scan(&mut cursor, fuel, &mut |key: &K, value| {
        if pass.has_expired(value) {
            expired.push(key.clone());
        }
        Ok(())
    });
    match scanned {
        Ok(()) => pass.cursor = cursor,
        // The scan cannot go on after a change: from the start again.
        Err(error) if error.kind() == ErrorKind::InUse && pass.cursor.position > 0 => {
            (pass.cursor, pass.is_whole) = (Cursor::default(), false);
        }
        Err(error) => return Err(error),
    }
    for key in expired {
        pass.removed += u64::from(table.remove::<K>(&key)?);
    }
    Ok(())
}
