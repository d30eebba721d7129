//! Keys that were removed from older parts of a slice, each with the number of the first part that counts.
//!
//! Most slices have none and keep a pointer for them. What the table, the box around it and the keys take is booked;
//! who drops cuts [takes parts](Cuts::take_part) until there are none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, MemoryKind, Result};

use super::writing::Cut;
use crate::heap::entry_table_unsafe::{EntryTable, Keyed};
use crate::heap::hash_range::HashRange;

impl<K: Key> Keyed for Cut<K> {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}

/// Removed keys of a slice.
pub struct Cuts<K>(Option<Box<CutTable<K>>>);

struct CutTable<K> {
    table: EntryTable<Cut<K>>,
    /// Heap that the keys own.
    heap_bytes: u64,
}

impl<K> Default for Cuts<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K> Cuts<K> {
    /// Bytes of the box around the table.
    const BOX_BYTES: u64 = size_of::<CutTable<K>>() as u64 + 16;

    /// Returns the number of keys.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |cuts| cuts.table.len())
    }

    /// Returns whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds the cut of a key.
    pub fn find(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<&Cut<K>> {
        self.0.as_ref()?.table.find(hash, |cut| is(&cut.key))
    }

    /// Finds the cut of a key, to be changed.
    pub fn find_mut(&mut self, hash: u64, is: impl Fn(&K) -> bool) -> Option<&mut Cut<K>> {
        self.0.as_mut()?.table.find_mut(hash, |cut| is(&cut.key))
    }

    /// Returns the cuts of the part at `place`, in no order, and where the next part begins.
    pub fn part_at(&self, place: u64) -> (impl Iterator<Item = &Cut<K>>, Option<u64>) {
        let (part, next) = match &self.0 {
            Some(cuts) => {
                let (part, next) = cuts.table.part_at(place);
                (Some(part), next)
            }
            None => (None, None),
        };
        (part.into_iter().flatten(), next)
    }

    /// Takes all cuts out, if there is anything to drop.
    pub fn take(&mut self) -> Option<Self> {
        self.0.take().map(|cuts| Self(Some(cuts)))
    }
}

impl<K: Key> Cuts<K> {
    /// Takes a part of the cuts out, drops it and gives back what it takes. Returns how many they were; `None` if there
    /// is nothing left.
    pub fn take_part(&mut self, account: &Account) -> Option<usize> {
        let cuts = self.0.as_mut()?;
        let Some(part) = cuts.table.take_part() else {
            self.0 = None;
            account.release(MemoryKind::Tables, Self::BOX_BYTES);
            return Some(0);
        };
        let mut count = 0;
        for cut in part {
            let heap = cut.key.heap_bytes() as u64;
            // What panics here panics for nobody: the call is about other keys.
            let _panic = catch_unwind(AssertUnwindSafe(|| drop(cut)));
            cuts.heap_bytes -= heap;
            account.release(MemoryKind::Values, heap);
            count += 1;
        }
        Some(count)
    }

    /// Adds the cut of a key that has none. The caller has made room for a value, of which a key is a part.
    ///
    /// # Errors
    /// If there is no memory for the table.
    pub fn add(
        &mut self,
        hash: u64,
        cut: impl FnOnce() -> Cut<K>,
        (account, range): (&Rc<Account>, HashRange),
    ) -> Result<()> {
        if self.0.is_none() {
            account.reserve(MemoryKind::Tables, Self::BOX_BYTES, "a removed key")?;
            let table = EntryTable::new(account.clone(), range);
            self.0 = Some(Box::new(CutTable { table, heap_bytes: 0 }));
        }
        let cuts = self.0.as_mut().expect("made above");
        let heap = cuts.table.insert(hash, cut)?.key.heap_bytes() as u64;
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
    fn cuts_are_booked_until_they_are_taken_part_by_part() {
        let (account, range) = (Account::root(1 << 20), HashRange::of(&(0..256), 256));
        let mut cuts = Cuts::<String>::default();
        assert!(cuts.is_empty() && cuts.take_part(&account).is_none());
        for n in 0..1000 {
            let key = n.to_string();
            let make = || Cut { key: key.clone(), before: n };
            cuts.add(key.key_hash(), make, (&account, range)).unwrap();
        }
        let find = |n: u64| cuts.find(n.to_string().key_hash(), |key| *key == n.to_string());
        assert!((0..1000).all(|n| find(n).is_some_and(|cut| cut.before == n)));
        let (mut place, mut seen) = (Some(0), 0);
        while let Some(at) = place {
            let (part, next) = cuts.part_at(at);
            (seen, place) = (seen + part.count(), next);
        }
        assert_eq!((seen, cuts.len()), (1000, 1000));
        let counts: Vec<usize> = std::iter::from_fn(|| cuts.take_part(&account)).collect();
        assert!(counts.len() > 5 && counts.iter().sum::<usize>() == 1000);
        assert_eq!((account.used(), cuts.len()), (0, 0));
        // Without room for the table nothing is left of it.
        let small = Account::root(300);
        let made = cuts.add(1, || Cut { key: String::new(), before: 1 }, (&small, range));
        assert!(made.is_err() && cuts.is_empty());
        while cuts.take_part(&small).is_some() {}
        assert_eq!(small.used(), 0);
    }
}
