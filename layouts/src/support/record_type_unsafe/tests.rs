//! Records of odd sizes and alignments, with and without drop glue, and types whose functions panic.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Empty;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct Wide(u8);

/// Clones and drops a record of these types in memory for exactly one.
fn clones_and_drops<K, V>(key: K, value: V)
where
    K: Clone + Send + Sync + PartialEq + std::fmt::Debug + 'static,
    V: Clone + Send + Sync + PartialEq + std::fmt::Debug + 'static,
{
    let types = in_memory::of::<K, V>();
    assert_eq!(types.layout(), Layout::new::<NativeEntry<K, V>>());
    assert_eq!(types.needs_drop(), std::mem::needs_drop::<(K, V)>());
    assert!(types.is::<K, V>() && !types.is::<V, Option<K>>());
    let source = NativeEntry { key: key.clone(), value: value.clone() };
    let mut target = std::mem::MaybeUninit::<NativeEntry<K, V>>::uninit();
    // SAFETY: the source is there, the target has room for an entry and is dropped once.
    unsafe {
        let source = RecordRef::new(types, (&raw const source).cast());
        assert_eq!(source.native::<K, V>(), (&key, &value));
        types.clone_into(source, target.as_mut_ptr().cast());
        let copy = RecordRef::new(types, target.as_ptr().cast());
        assert_eq!(copy.native::<K, V>(), (&key, &value));
        types.drop_entry(target.as_mut_ptr().cast());
    }
}

#[test]
fn records_of_all_sizes_and_alignments_are_cloned_and_dropped() {
    clones_and_drops(Empty, Empty);
    clones_and_drops(1u8, Empty);
    clones_and_drops(Empty, [1u8; 3]);
    clones_and_drops([1u8; 3], 7u64);
    clones_and_drops(7u128, 1u8);
    clones_and_drops([3u64; 8], [1u8; 16]);
    clones_and_drops(1u8, Wide(3));
    clones_and_drops(Wide(3), String::from("value"));
    clones_and_drops(String::from("key"), vec![1u64, 2]);
    let shared = Arc::new(5u64);
    clones_and_drops(shared.clone(), vec![shared.clone(); 3]);
    assert_eq!(Arc::strong_count(&shared), 1, "each is dropped once");
}

#[test]
fn a_state_is_hashed_measured_named_encoded_and_decoded() {
    let types = RecordType::of::<String, Vec<u64>>();
    let entry = NativeEntry { key: String::from("a key"), value: vec![1u64, 2, 3] };
    // SAFETY: the entry is there as long as the reference to it is.
    let record = unsafe { RecordRef::new(types, (&raw const entry).cast()) };
    assert!(!types.is_plain() && types.needs_drop());
    assert_eq!(record.hash(), alluvium_pagestore::KeyHash::key_hash(&entry.key));
    assert_eq!(record.heap_bytes(), heap_of(&entry.key, &entry.value));
    assert!(record.heap_bytes() >= 29 && record.key_text().contains("a key"));
    let touched = ErasedTouched::new::<String, Vec<u64>>(|value| Time(value[0] as i64));
    assert_eq!(touched.of(record), Time(1));
    let mut encoded = rkyv::util::AlignedVec::new();
    codec::encode(&mut encoded, &entry.key, &entry.value).unwrap();
    let mut shown = Vec::new();
    types
        .decode(&encoded, &mut |record| {
            let (key, value) = record.get::<String, Vec<u64>>();
            shown.push((key.clone(), value.clone()));
            Ok(())
        })
        .unwrap();
    assert_eq!(shown, [(entry.key.clone(), entry.value.clone())]);
    let damaged = types.decode(&encoded[..encoded.len() / 2], &mut |_| unreachable!());
    assert!(damaged.is_err());
    assert!(RecordType::of::<u64, [u64; 3]>().is_plain());
}

#[test]
fn a_record_of_other_types_is_refused() {
    let entry = NativeEntry { key: 1u64, value: 2u64 };
    let types = RecordType::of::<u64, u64>();
    // SAFETY: the entry is there as long as the reference to it is.
    let record = unsafe { RecordRef::new(types, (&raw const entry).cast()) };
    assert_eq!(record.get::<u64, u64>(), (&1, &2));
    assert!(catch_unwind(AssertUnwindSafe(|| record.get::<u64, i64>())).is_err());
    let touched = ErasedTouched::new::<u64, i64>(|_| Time::MIN);
    assert!(catch_unwind(AssertUnwindSafe(|| touched.of(record))).is_err());
}

thread_local! {
    /// Values that were dropped.
    static DROPPED: Rc<Cell<u32>> = Rc::default();
}

/// Panics when it is cloned, or dropped, as it says.
#[derive(PartialEq, Debug)]
struct Fragile {
    in_clone: bool,
    in_drop: bool,
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        assert!(!self.in_clone, "planned");
        Self { ..*self }
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        DROPPED.with(|dropped| dropped.set(dropped.get() + 1));
        assert!(!self.in_drop || std::thread::panicking(), "planned");
    }
}

#[test]
fn a_panic_of_a_clone_or_a_drop_leaves_every_record_dropped_once() {
    let types = in_memory::of::<String, Fragile>();
    for (in_clone, in_drop) in [(false, false), (true, false), (false, true)] {
        DROPPED.with(|dropped| dropped.set(0));
        let entry = NativeEntry { key: String::from("key"), value: Fragile { in_clone, in_drop } };
        let mut entry = std::mem::ManuallyDrop::new(entry);
        let mut target = std::mem::MaybeUninit::<NativeEntry<String, Fragile>>::uninit();
        let cloned = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the source is there, and the target has room for an entry.
            unsafe {
                let source = RecordRef::new(types, (&raw const *entry).cast());
                types.clone_into(source, target.as_mut_ptr().cast());
            }
        }));
        assert_eq!(cloned.is_err(), in_clone);
        if !in_clone {
            // SAFETY: it was cloned into, and is dropped here only.
            let drop_it = || unsafe { types.drop_entry(target.as_mut_ptr().cast()) };
            assert_eq!(catch_unwind(AssertUnwindSafe(drop_it)).is_err(), in_drop);
        }
        // SAFETY: the source is dropped here only.
        let drop_it = || unsafe { types.drop_entry((&raw mut *entry).cast()) };
        assert_eq!(catch_unwind(AssertUnwindSafe(drop_it)).is_err(), in_drop);
        assert_eq!(DROPPED.with(|dropped| dropped.get()), if in_clone { 1 } else { 2 });
    }
}

/// Decoded records are dropped, moved into memory that has none, and moved over another one.
fn moves<K, V>(key: K, value: V)
where
    K: Clone + Send + Sync + PartialEq + std::fmt::Debug + 'static,
    V: Clone + Send + Sync + PartialEq + std::fmt::Debug + 'static,
{
    let types = in_memory::of::<K, V>();
    let made =
        || std::mem::ManuallyDrop::new(NativeEntry { key: key.clone(), value: value.clone() });
    let mut target = std::mem::MaybeUninit::<NativeEntry<K, V>>::uninit();
    let (mut dropped, mut first, mut second) = (made(), made(), made());
    // SAFETY: each entry is given away once; the target has room for one, has one from the first move on, and is dropped
    // once.
    unsafe {
        let decoded = |entry: *mut u8| DecodedRecord(RecordRef::new(types, entry));
        drop(decoded((&raw mut dropped).cast::<u8>()));
        decoded((&raw mut first).cast::<u8>()).move_to(target.as_mut_ptr().cast());
        assert_eq!(
            (&target.assume_init_ref().key, &target.assume_init_ref().value),
            (&key, &value)
        );
        decoded((&raw mut second).cast::<u8>()).move_over(target.as_mut_ptr().cast());
        assert_eq!(
            (&target.assume_init_ref().key, &target.assume_init_ref().value),
            (&key, &value)
        );
        types.drop_entry(target.as_mut_ptr().cast());
    }
}

#[test]
fn decoded_records_of_all_sizes_are_moved_and_dropped_once() {
    moves(Empty, Empty);
    moves([1u8; 3], 7u64);
    moves(7u128, 1u8);
    moves(1u8, Wide(3));
    moves(Wide(3), String::from("value"));
    let shared = Arc::new(5u64);
    moves(shared.clone(), vec![shared.clone(); 3]);
    assert_eq!(Arc::strong_count(&shared), 1, "each is dropped once");
}

#[test]
fn a_record_whose_drop_panics_is_exchanged_before() {
    let types = in_memory::of::<u64, Fragile>();
    let made = |key: u64, in_drop| {
        std::mem::ManuallyDrop::new(NativeEntry {
            key,
            value: Fragile { in_clone: false, in_drop },
        })
    };
    let (mut old, mut new) = (made(1, true), made(2, false));
    DROPPED.with(|dropped| dropped.set(0));
    let target = (&raw mut old).cast::<u8>();
    let moved = catch_unwind(AssertUnwindSafe(|| {
        let new = (&raw mut new).cast::<u8>();
        // SAFETY: the new entry is given away here only, and the target has one.
        unsafe { DecodedRecord(RecordRef::new(types, new)).move_over(target) };
    }));
    assert!(moved.is_err(), "the old one panics");
    assert_eq!((DROPPED.with(|dropped| dropped.get()), old.key), (1, 2));
    // SAFETY: the target is dropped here only.
    unsafe { types.drop_entry(target) };
    assert_eq!(DROPPED.with(|dropped| dropped.get()), 2);
}

#[test]
fn a_record_that_nobody_takes_is_dropped_and_an_error_is_told() {
    let types = RecordType::of::<String, Vec<u64>>();
    let (key, value) = (String::from("a key"), vec![1u64, 2, 3]);
    let mut encoded = rkyv::util::AlignedVec::new();
    codec::encode(&mut encoded, &key, &value).unwrap();
    let mut kept = std::mem::MaybeUninit::<NativeEntry<String, Vec<u64>>>::uninit();
    let take = &mut |decoded: DecodedRecord<'_>| -> Result<()> {
        // SAFETY: there is room for an entry of these types.
        unsafe { decoded.move_to(kept.as_mut_ptr().cast()) };
        Ok(())
    };
    types.decode_to_take(&encoded, take).unwrap();
    // SAFETY: it was moved there just now.
    let kept = unsafe { kept.assume_init() };
    assert_eq!((kept.key, kept.value), (key, value));
    let full = alluvium_pagestore::Error::new(alluvium_pagestore::ErrorKind::OverBudget, "full");
    let mut full = Some(full);
    let refused = types.decode_to_take(&encoded, &mut |_| Err(full.take().expect("asked once")));
    assert_eq!(refused.unwrap_err().kind(), alluvium_pagestore::ErrorKind::OverBudget);
}
