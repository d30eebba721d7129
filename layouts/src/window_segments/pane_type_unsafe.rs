//! What code that is compiled once knows of the keys and accumulators of window segments, and of removed keys.
//!
//! Why it is sound: a [`PaneType`] is made in this file only, of one type of keys and one of accumulators. Its functions
//! take records of these types, which they compare by their record types.

use std::ptr::NonNull;

use alluvium_pagestore::out_of_line_unsafe::DroppedHere;
use alluvium_pagestore::{Key, Result, State, Time, codec};

use crate::append_log::{ListType, ListsCore, TypedLists};
use crate::heap::record_table_unsafe::RecordTable;
use crate::support::key_unsafe::{KeyRef, KeyType, OwnedKey, key_type};
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// The types of panes, erased.
#[derive(Debug)]
pub struct PaneType {
    key: KeyType,
    /// Of a key and its accumulator.
    record: &'static RecordType,
    /// Of a *cut*: a key that was removed, and the number of the first part that counts.
    cut: &'static RecordType,
    /// From a cut to that number.
    before_at: usize,
    is_cut_of: fn(&[u8], RecordRef<'_>) -> Result<bool>,
    /// Of lists of accumulators by slice and key.
    lists: &'static ListType,
    append: fn(&mut DroppedHere<ListsCore>, Time, RecordRef<'_>) -> Result<()>,
}

/// Makes the [`PaneType`] of two types.
struct PaneTypeOf<K, A>(std::marker::PhantomData<(K, A)>);

impl<K: Key, A: State> PaneTypeOf<K, A> {
    const TYPE: PaneType = PaneType {
        key: key_type::<K>(),
        record: RecordType::of::<K, A>(),
        cut: RecordType::of::<K, u64>(),
        before_at: std::mem::offset_of!(NativeEntry<K, u64>, value),
        is_cut_of: Self::is_cut_of,
        lists: ListType::of::<K, A>(),
        append: Self::append,
    };

    fn append(
        lists: &mut DroppedHere<ListsCore>,
        slice: Time,
        record: RecordRef<'_>,
    ) -> Result<()> {
        let (key, accumulator) = record.get::<K, A>();
        let lists = TypedLists::<K, A>::of(lists);
        let appended = lists.append_found(slice, (record.hash(), None), key, accumulator.clone());
        appended.map_err(|rejected| rejected.error)
    }

    fn is_cut_of(payload: &[u8], cut: RecordRef<'_>) -> Result<bool> {
        let key = codec::decode_key::<K, A>(payload)?;
        Ok(*cut.get::<K, u64>().0 == key)
    }
}

impl PaneType {
    /// That of keys `K` and accumulators `A`.
    pub fn of<K: Key, A: State>() -> &'static Self {
        const { &PaneTypeOf::<K, A>::TYPE }
    }

    /// Returns the type of a key and its accumulator.
    pub fn record(&self) -> &'static RecordType {
        self.record
    }

    /// Returns the type of a removed key.
    pub fn cut(&self) -> &'static RecordType {
        self.cut
    }

    /// Returns whether neither keys nor accumulators ever own heap.
    pub fn is_plain(&self) -> bool {
        self.record.is_plain()
    }

    /// Returns the type of lists of accumulators by slice and key.
    pub fn lists(&self) -> &'static ListType {
        self.lists
    }

    /// Appends a copy of an accumulator to the list of its key in a slice.
    ///
    /// # Errors
    /// Those of the log.
    ///
    /// # Panics
    /// If the record or the lists are of other types.
    pub fn append(
        &self,
        lists: &mut DroppedHere<ListsCore>,
        slice: Time,
        record: RecordRef<'_>,
    ) -> Result<()> {
        (self.append)(lists, slice, record)
    }

    /// Returns the bytes of a key and its accumulator.
    pub fn record_bytes(&self) -> usize {
        self.record.layout().size()
    }

    /// Returns the key of a record or of a cut.
    ///
    /// # Panics
    /// If it is of other types.
    pub fn key_of<'a>(&self, record: RecordRef<'a>) -> KeyRef<'a> {
        let of = record.record_type();
        assert!(of.is_like(self.record) || of.is_like(self.cut), "a record of other types");
        // SAFETY: it has a key of this type at the front, while the record is borrowed.
        unsafe { KeyRef::at(self.key, record.as_ptr()) }
    }

    /// Returns whether a record on storage has the key of a cut. Cost: the key is decoded.
    ///
    /// # Errors
    /// If it does not decode.
    pub fn is_cut_of(&self, payload: &[u8], cut: RecordRef<'_>) -> Result<bool> {
        (self.is_cut_of)(payload, cut)
    }

    /// Returns the number of the first part that counts of a removed key.
    ///
    /// # Panics
    /// If it is no cut.
    pub fn before(&self, cut: RecordRef<'_>) -> u64 {
        assert!(cut.record_type().is_like(self.cut), "no cut of these types");
        // SAFETY: the number of a cut is there.
        unsafe { cut.as_ptr().add(self.before_at).cast::<u64>().read() }
    }

    /// Changes that number of a key, if the key was removed.
    ///
    /// # Panics
    /// If it is no table of cuts.
    pub fn set_before(
        &self,
        cuts: &mut RecordTable,
        (hash, key): (u64, KeyRef<'_>),
        before: u64,
    ) -> bool {
        assert!(cuts.record_type().is_like(self.cut), "no cuts of these types");
        let is_it = &mut |cut: RecordRef<'_>| self.key_of(cut) == key;
        let Some(cut): Option<NonNull<u8>> = cuts.find_memory(hash, is_it) else { return false };
        // SAFETY: the number of a cut is there, and nobody else reaches it.
        unsafe { cut.add(self.before_at).cast::<u64>().write(before) };
        true
    }

    /// Adds a removed key to those of its slice, which do not have it. Returns the heap that it owns.
    ///
    /// # Errors
    /// If there is no memory for the table.
    ///
    /// # Panics
    /// If it is no table of cuts, or the key is of another type.
    pub fn add_cut(
        &self,
        cuts: &mut RecordTable,
        (hash, key): (u64, OwnedKey),
        before: u64,
    ) -> Result<u64> {
        assert!(cuts.record_type().is_like(self.cut), "no cuts of these types");
        assert!(key.get().is_of(self.key), "a key of another type");
        // SAFETY: a key of its type, which has this hash, and the number, are all of a cut.
        let cut = unsafe {
            cuts.insert(hash, |cut| {
                key.move_to(cut);
                cut.add(self.before_at).cast::<u64>().write(before);
            })?
        };
        Ok(cut.heap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use alluvium_pagestore::Account;

    use super::*;
    use crate::heap::hash_range::HashRange;

    fn cuts_of(types: &PaneType) -> RecordTable {
        RecordTable::new(types.cut(), Account::root(1 << 20), HashRange::of(&(0..256), 256))
    }

    #[test]
    fn a_cut_is_a_key_and_a_number_whatever_the_key_is() {
        fn is<K: Key + Clone>(keys: [K; 3]) {
            let types = PaneType::of::<K, u64>();
            let mut cuts = cuts_of(types);
            for (key, before) in keys[..2].iter().zip(1..) {
                let of = (key.key_hash(), KeyRef::of(key));
                assert!(!types.set_before(&mut cuts, of, 7));
                let owned = (of.0, of.1.to_owned());
                let heap = types.add_cut(&mut cuts, owned, before).unwrap();
                assert_eq!(heap, key.heap_bytes() as u64);
            }
            for (key, before) in keys.iter().zip(1..) {
                let of = (key.key_hash(), KeyRef::of(key));
                let is_it = &mut |cut: RecordRef<'_>| types.key_of(cut) == of.1;
                let found = cuts.find(of.0, is_it).map(|cut| types.before(cut));
                assert_eq!(found, (before < 3).then_some(before));
                assert_eq!(types.set_before(&mut cuts, of, before + 10), before < 3);
            }
            let (mut place, mut sum) = (Some(0), 0);
            while let Some(at) = place {
                let (part, next) = cuts.part_at(at);
                (place, sum) = (next, sum + part.iter().map(|cut| types.before(cut)).sum::<u64>());
            }
            assert_eq!(sum, 11 + 12);
        }
        is([1u8, 2, 3]);
        is([1u64, 2, 3]);
        is(["a".to_string(), "a longer one that owns heap".to_string(), String::new()]);
        is([(1u64, "b".to_string()), (1, "c".to_string()), (2, "b".to_string())]);
    }

    #[test]
    #[should_panic(expected = "a record of other types")]
    fn a_record_of_other_panes_has_no_key_here() {
        let (types, other) = (PaneType::of::<u64, u64>(), PaneType::of::<i64, u64>());
        let mut cuts = cuts_of(other);
        other.add_cut(&mut cuts, (1, KeyRef::of(&1i64).to_owned()), 1).unwrap();
        types.key_of(cuts.part_at(0).0.iter().next().unwrap());
    }

    #[test]
    #[should_panic(expected = "a key of another type")]
    fn a_key_of_another_type_is_not_cut() {
        let types = PaneType::of::<u64, u64>();
        let _ = types.add_cut(&mut cuts_of(types), (1, KeyRef::of(&1i64).to_owned()), 1);
    }
}
