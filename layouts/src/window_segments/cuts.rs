//! Keys that were removed from older parts of a slice, each with the number of the first part that counts.
//!
//! Most slices have none and keep a pointer for them. What the table, the box around it and the keys take is booked;
//! who drops cuts [takes parts](SliceCuts::drop_part) until there are none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, Result};

use super::pane_type_unsafe::PaneType;
use crate::heap::hash_range::HashRange;
use crate::heap::record_table_unsafe::RecordTable;
use crate::support::key_unsafe::{KeyRef, OwnedKey};
use crate::support::record_type_unsafe::RecordRef;

/// Removed keys of a slice.
#[derive(Default)]
pub struct SliceCuts(Option<Box<CutTable>>);

struct CutTable {
    table: RecordTable,
    /// Heap that the keys own.
    heap_bytes: u64,
}

impl SliceCuts {
    /// Bytes of the box around the table.
    const BOX_BYTES: u64 = size_of::<CutTable>() as u64 + 16;

    /// Returns the number of keys.
    pub fn len(&self) -> u64 {
        self.table().map_or(0, |table| table.len())
    }

    /// Returns whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds the cut of a key.
    pub fn find(
        &self,
        hash: u64,
        is: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) -> Option<RecordRef<'_>> {
        self.table()?.find(hash, is)
    }

    /// Returns the table of cuts, if there is one.
    pub fn table(&self) -> Option<&RecordTable> {
        self.0.as_ref().map(|cuts| &cuts.table)
    }

    /// Iterates over all cuts, part by part.
    pub fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        let tables = self.table().into_iter();
        let parts = tables.flat_map(|table| table.places().map(|place| table.part_at(place).0));
        parts.flat_map(|part| part.iter())
    }

    /// Takes all cuts out, if there is anything to drop.
    pub fn take(&mut self) -> Option<Self> {
        self.0.take().map(|cuts| Self(Some(cuts)))
    }

    /// Takes a part of the cuts out, drops it and gives back what it takes. Returns how many they were; `None` if there
    /// is nothing left.
    pub fn drop_part(&mut self, account: &Account) -> Option<usize> {
        let CutTable { table, heap_bytes } = &mut **self.0.as_mut()?;
        let mut count = 0;
        // What panics here panics for nobody: the call is about other keys.
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            table.drop_part(|cuts, heap| {
                count = cuts;
                let heap = heap.min(*heap_bytes);
                *heap_bytes -= heap;
                account.release(MemoryKind::Values, heap);
            })
        }));
        if matches!(dropped, Ok(false)) {
            // Of keys that could not be measured.
            account.release(MemoryKind::Values, *heap_bytes);
            self.0 = None;
            account.release(MemoryKind::Tables, Self::BOX_BYTES);
        }
        Some(count)
    }

    /// Has a key count from the part `before` on. The caller has made room for a value, of which a key is a part.
    ///
    /// # Errors
    /// If there is no memory for the table.
    pub fn put(
        &mut self,
        types: &'static PaneType,
        (hash, key): (u64, KeyRef<'_>),
        before: u64,
        (account, range): (&Rc<Account>, HashRange),
    ) -> Result<()> {
        if let Some(cuts) = &mut self.0
            && types.set_before(&mut cuts.table, (hash, key), before)
        {
            return Ok(());
        }
        let key: OwnedKey = key.to_owned();
        if self.0.is_none() {
            account.reserve(MemoryKind::Tables, Self::BOX_BYTES, "a removed key")?;
            let table = RecordTable::new(types.cut(), account.clone(), range);
            self.0 = Some(Box::new(CutTable { table, heap_bytes: 0 }));
        }
        let cuts = self.0.as_mut().expect("made above");
        let heap = types.add_cut(&mut cuts.table, (hash, key), before)?;
        account.charge(MemoryKind::Values, heap);
        cuts.heap_bytes += heap;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alluvium_pagestore::KeyHash;

    use super::*;

    #[test]
    fn cuts_are_booked_until_they_are_dropped_part_by_part() {
        let (account, range) = (Account::root(1 << 20), HashRange::of(&(0..256), 256));
        let types = PaneType::of::<String, u64>();
        let mut cuts = SliceCuts::default();
        assert!(cuts.is_empty() && cuts.drop_part(&account).is_none());
        for n in 0..1000 {
            let key = n.to_string();
            let of = (key.key_hash(), KeyRef::of(&key));
            cuts.put(types, of, 7, (&account, range)).unwrap();
            cuts.put(types, of, n, (&account, range)).unwrap();
        }
        let find = |n: u64| {
            let key = n.to_string();
            cuts.find(key.key_hash(), &mut |cut| types.key_of(cut) == KeyRef::of(&key))
        };
        assert!((0..1000).all(|n| find(n).is_some_and(|cut| types.before(cut) == n)));
        assert_eq!((cuts.iter().count(), cuts.len()), (1000, 1000));
        let counts: Vec<usize> = std::iter::from_fn(|| cuts.drop_part(&account)).collect();
        assert!(counts.len() > 5 && counts.iter().sum::<usize>() == 1000);
        assert_eq!((account.used(), cuts.len()), (0, 0));
        // Without room for the table nothing is left of it.
        let small = Account::root(300);
        let key = String::new();
        let made = cuts.put(types, (1, KeyRef::of(&key)), 1, (&small, range));
        assert!(made.is_err() && cuts.is_empty());
        while cuts.drop_part(&small).is_some() {}
        assert_eq!(small.used(), 0);
    }
}
