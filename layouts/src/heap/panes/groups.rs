//! Panes in a table by ranges of hashes: found in the sets of keys.

use std::ops::RangeInclusive;
use std::slice::from_ref;

use alluvium_pagestore::{Key, Result, State, Time};

use super::TablePanes;
use super::keys::PlacedKey;
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::panes::Panes;
use crate::contract::table::{Cursor, Table};

impl<K: Key, A: State, T: Table<(Time, K), A>> ByHash<K, A, Time> for TablePanes<K, A, T> {
    fn is_fast_in_order(&self) -> bool {
        self.table.is_resident()
    }

    fn visit_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, A>,
    ) -> Result<()> {
        let (first, last) =
            (self.keys.range.place(*hashes.start()), self.keys.range.place(*hashes.end()));
        let mut spent = 0;
        while !cursor.done && self.keys.slices.has(slice) {
            let (keys, next) = self.keys.at(slice, cursor.position.max(first), last);
            if keys.len() <= fuel.max(1).saturating_sub(spent) {
                spent += self.visit_alone(&keys, cursor, keys.len(), &mut |key, value| {
                    visit(key, 0, from_ref(&value))
                })?;
            } else {
                for PlacedKey { place, entry } in keys {
                    // Keys of one place come together.
                    if spent >= fuel.max(1) && place != cursor.position {
                        cursor.position = place;
                        return Ok(());
                    }
                    cursor.position = place;
                    spent += 1;
                    if let Some(value) = self.table.get(&entry)? {
                        visit(&entry.1, 0, from_ref(value))?;
                    }
                }
            }
            cursor.go_on(next.filter(|next| *next <= last));
        }
        cursor.done |= !self.keys.slices.has(slice);
        Ok(())
    }

    fn remove_hashes(
        &mut self,
        slice: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        let (first, last) =
            (self.keys.range.place(*hashes.start()), self.keys.range.place(*hashes.end()));
        let mut removed = 0;
        while !cursor.done && self.keys.slices.has(slice) {
            let (keys, next) = self.keys.at(slice, cursor.position.max(first), last);
            for PlacedKey { place, entry } in keys {
                cursor.position = place;
                if removed >= fuel.max(1) {
                    return Ok(removed);
                }
                removed += 1;
                self.remove(slice, &entry.1)?;
            }
            cursor.go_on(next.filter(|next| *next <= last));
        }
        cursor.done |= !self.keys.slices.has(slice);
        Ok(removed)
    }
}
