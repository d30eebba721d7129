//! The sets of keys of a table that has its entries already, as one that was opened from a checkpoint.

use alluvium_pagestore::{Key, Result, State, Time};

use super::TablePanes;
use crate::contract::table::{Cursor, Table};
use crate::heap::GROUP;

impl<K: Key, A: State, T: Table<(Time, K), A>> TablePanes<K, A, T> {
    /// Fills the sets of keys, of which there are none, from the table. Reads all of it.
    pub(super) fn find_slices(&mut self) -> Result<()> {
        let mut cursor = Cursor::default();
        let mut found = Vec::new();
        while !cursor.done {
            let visit = &mut |(slice, key): &(Time, K), _: &A| {
                found.push((*slice, key.key_hash(), key.clone()));
                Ok(())
            };
            self.table.scan(&mut cursor, GROUP, visit)?;
            self.keys.look_ahead(found.iter().map(|(slice, hash, _)| (*slice, *hash)));
            for (slice, hash, key) in found.drain(..) {
                self.keys.add(slice, (hash, &key), self.table.innermost_mut())?;
            }
        }
        Ok(())
    }
}
