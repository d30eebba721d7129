//! Removes expired entries that no call asks for.
//!
//! Each value records when it was last touched. It has expired if that was before a given time.
//! Callers check the time whenever they read a value, and hide expired entries. A
//! [pass](ExpiryPass) over a table removes entries that no call reads again, some with each step.

use alluvium_pagestore::{ErrorKind, Key, Result, Time};

use crate::contract::table::{Cursor, Table};

/// Returns when a value was last touched.
pub type Touched<V> = fn(&V) -> Time;

/// A pass over a table that removes expired entries, and its results.
#[derive(Debug)]
pub struct ExpiryPass<V> {
    /// Returns when a value was last touched.
    pub touched: Touched<V>,
    /// Entries last touched before this time have expired. [`Time::MIN`] expires nothing.
    pub to: Time,
    /// Position of the pass. The layout defines its meaning.
    pub cursor: Cursor,
    /// The earliest time of the entries that the pass kept.
    pub least: Time,
    /// Whether the pass has seen every entry that was present throughout. If not, another pass
    /// finds the rest.
    pub is_whole: bool,
    /// Entries examined.
    pub looked: u64,
    /// Entries removed.
    pub removed: u64,
}

impl<V> ExpiryPass<V> {
    /// Creates a pass that removes entries last touched before `to`.
    pub fn new(touched: Touched<V>, to: Time) -> Self {
        let (cursor, least) = (Cursor::default(), Time::MAX);
        Self { touched, to, cursor, least, is_whole: true, looked: 0, removed: 0 }
    }

    /// Examines a value and returns whether its entry has expired.
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
