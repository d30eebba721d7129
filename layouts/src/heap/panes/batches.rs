//! Groups of keys in panes that are kept in a table: the accesses to the sets of keys overlap, and those
//! to the table.
//!
//! What it keeps true: a key is in the set of its slice if the table has its accumulator, whatever
//! fails, and whoever panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use alluvium_pagestore::{Key, Lookup, Result, State, Time};

use super::TablePanes;
use super::keys::PlacedKey;
use crate::contract::panes::Panes;
use crate::contract::table::{BatchError, Cursor, Table};
use crate::heap::GROUP;

/// A key of the table.
pub(super) struct HashedKey<K> {
    entry: (Time, K),
    /// Of the key alone.
    hash: u64,
    /// The number of its item in the group.
    nth: usize,
}

impl<K: Key, A: State, T: Table<(Time, K), A>> TablePanes<K, A, T> {
    /// Updates up to [`GROUP`] accumulators. What is not applied, because of an error, leaves no key
    /// behind.
    pub(super) fn update_group<U, Q: Lookup<K> + ?Sized>(
        &mut self,
        items: &[U],
        place: &impl Fn(&U) -> (Time, &Q),
        init: &mut impl FnMut(&U) -> A,
        change: &mut impl FnMut(&U, &mut A),
    ) -> std::result::Result<(), BatchError> {
        // What keys own is booked one by one, when they are in their sets.
        if !(K::NO_HEAP && self.keys.has_group(self.table.innermost_mut())) {
            return self.update_each(items, place, init, change);
        }
        let mut entries = std::mem::take(&mut self.keys.group);
        entries.reserve_exact(GROUP);
        let owned = |(nth, item)| {
            let (slice, key): (Time, &Q) = place(item);
            HashedKey { hash: key.key_hash(), entry: (slice, key.to_owned()), nth }
        };
        entries.extend(items.iter().enumerate().map(owned));
        let updated =
            self.update_entries(&entries, &mut |nth| init(&items[nth]), &mut |nth, acc| {
                change(&items[nth], acc);
            });
        entries.clear();
        self.keys.group = entries;
        updated
    }

    /// One by one, where there is no memory for more.
    fn update_each<U, Q: Lookup<K> + ?Sized>(
        &mut self,
        items: &[U],
        place: &impl Fn(&U) -> (Time, &Q),
        init: &mut impl FnMut(&U) -> A,
        change: &mut impl FnMut(&U, &mut A),
    ) -> std::result::Result<(), BatchError> {
        for (applied, item) in items.iter().enumerate() {
            let (slice, key) = place(item);
            let updated = self.update(slice, key, || init(item), |acc| change(item, acc));
            updated.map_err(|error| BatchError { applied, error })?;
        }
        Ok(())
    }

    /// Updates the accumulators of these entries, which are items of the group by their numbers. Compiled once for all
    /// items: it makes an indirect call for each.
    #[inline(never)]
    fn update_entries(
        &mut self,
        entries: &[HashedKey<K>],
        init: &mut dyn FnMut(usize) -> A,
        change: &mut dyn FnMut(usize, &mut A),
    ) -> std::result::Result<(), BatchError> {
        self.keys.look_ahead(entries.iter().map(|item| (item.entry.0, item.hash)));
        // Bits of those whose keys are new in their sets.
        let (mut new, mut known, mut failed) = (0u64, 0, Ok(()));
        for HashedKey { entry: (slice, key), hash, nth } in entries {
            match self.add_new_key(*slice, (*hash, key)) {
                Ok(is_new) => new |= u64::from(is_new) << nth,
                Err(error) => {
                    failed = Err(BatchError { applied: *nth, error });
                    break;
                }
            }
            known += 1;
        }
        let mut applied = 0;
        let update = || {
            self.table.update_batch(
                &entries[..known],
                |item| &item.entry,
                |item| init(item.nth),
                |item, acc| {
                    change(item.nth, acc);
                    applied = item.nth + 1;
                },
            )
        };
        let updated = catch_unwind(AssertUnwindSafe(update));
        let unused = entries[..known].iter().skip(applied);
        for HashedKey { entry: (slice, key), .. } in unused.filter(|item| new >> item.nth & 1 == 1)
        {
            self.keys.remove(*slice, key);
        }
        updated.unwrap_or_else(|panic| resume_unwind(panic)).and(failed)
    }

    /// [Adds](super::keys::PaneKeys::add) a key to a slice that may have been purged.
    pub(super) fn add_new_key(&mut self, slice: Time, key: (u64, &K)) -> Result<bool> {
        if !self.keys.are_buried() {
            // A slice that begins anew must not be taken for what is left of the old one.
            self.bury(Some(slice), usize::MAX)?;
        }
        self.keys.add(slice, key, self.table.innermost_mut())
    }

    /// Visits keys that have something in one slice only, about `fuel` of them, and says how many. The
    /// cursor is where it went on, or failed.
    pub(super) fn visit_alone(
        &mut self,
        keys: &[PlacedKey<K>],
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<usize> {
        let now = &keys[..fuel.min(keys.len())];
        let mut visited = Ok(());
        let read = self.table.read_batch(
            now,
            |placed| &placed.entry,
            |placed, value| {
                if visited.is_ok() {
                    cursor.position = placed.place;
                    // A key whose `init` panicked is in its set only.
                    visited = value.map_or(Ok(()), |value| visit(&placed.entry.1, value.clone()));
                }
            },
        );
        visited?;
        if let Err(BatchError { applied, error }) = read {
            cursor.position = now[applied].place;
            return Err(error);
        }
        if let Some(next) = keys.get(now.len()) {
            cursor.position = next.place;
        }
        Ok(now.len())
    }
}
