//! A checkpoint of a table on the heap has all of its barrier or is lost, also if memory is short or code of the user
//! panics; the next one has all again.
//!
//! What this catches: a checkpoint that goes on without what it could not note or read; records that are counted twice
//! or not at all after a panic; memory that stays booked after one.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_layouts::{CheckpointOutcome, Cursor, Heap, Layout, Table, Upkeep};
use alluvium_pagestore::{BlobWriter, ErrorKind, KeyHash, MemoryKind, hash_word};

use crate::heap_checkpoints_write_what_has_changed::{Ground, Word};

const KEYS: u64 = 20_000;

fn commit(table: &mut impl Upkeep, blobs: &mut BlobWriter) -> u64 {
    let image = table.checkpoint(blobs).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    image.entries
}

fn assert_lost(table: &mut impl Upkeep, blobs: &mut BlobWriter) {
    let error = loop {
        match table.continue_checkpoint(blobs) {
            Ok(image) => assert!(image.is_none(), "it has not all of its barrier"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Overtaken, "{error}");
    table.checkpointed(CheckpointOutcome::Abandoned);
}

/// Memory for the places of records is short while a checkpoint that needs them is read to its end in one call.
#[test]
fn places_that_are_lost_while_the_rest_is_read_lose_the_checkpoint() {
    places_lost::<Heap>();
}

fn places_lost<L: Layout<u64, String> + Default>() {
    let mut ground = Ground::<L, String>::new(7, 64 << 20);
    let account = ground.account.clone();
    let mut table = L::default().open(ground.context(&account, None)).unwrap();
    let quarter = |nth: u64| (0..KEYS).filter(move |key| key.key_hash() >> 62 == nth);
    for key in 0..KEYS {
        table.put(key, String::of(key)).unwrap();
    }
    quarter(1).for_each(|key| assert!(table.take(&key).unwrap().is_some()));
    commit(&mut table, &mut ground.blobs());
    // Blocks that were empty have no places; those before them fill the first batch.
    quarter(1).for_each(|key| assert!(!table.put(key, String::of(key)).unwrap()));
    for key in quarter(0).chain(quarter(3)) {
        table.modify(&key, String::modify).unwrap().unwrap();
    }
    let mut blobs = ground.blobs();
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none());
    // Others have all that is free: neither can an entry be kept, nor can places be made.
    let others = account.available();
    account.charge(MemoryKind::Index, others);
    assert!(table.take(&quarter(3).next().unwrap()).unwrap().is_some());
    account.release(MemoryKind::Index, others);
    assert_lost(&mut table, &mut blobs);
    assert_eq!(commit(&mut table, &mut ground.blobs()), KEYS - 1);
    drop(table);
    assert_eq!(account.used(), 0);
}

thread_local! {
    /// Whether the next hash of a key, or drop of a value, panics.
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Touchy(u64);

impl KeyHash for Touchy {
    fn key_hash(&self) -> u64 {
        assert!(!PANICS.replace(false), "planned");
        hash_word(self.0)
    }
}

#[test]
fn a_panic_in_a_share_loses_the_checkpoint() {
    for is_cleared in [false, true] {
        panics_in_a_share::<Heap, String>(is_cleared);
        panics_in_a_share::<Heap, u64>(is_cleared);
    }
}

fn panics_in_a_share<L, V: Word>(is_cleared: bool)
where
    L: Layout<Touchy, V> + Layout<u64, V> + Default,
{
    let mut ground = Ground::<L, V>::new(3, 64 << 20);
    let account = ground.account.clone();
    let open = |ground: &Ground<L, V>, image| {
        Layout::<Touchy, V>::open(&L::default(), ground.context(&account, image)).unwrap()
    };
    let (mut table, mut model) = (open(&ground, None), BTreeMap::new());
    for key in 0..KEYS {
        table.put(Touchy(key), V::of(key)).unwrap();
        model.insert(Touchy(key), V::of(key));
    }
    commit(&mut table, &mut ground.blobs());
    for (key, value) in &mut model {
        table.modify(key, V::modify).unwrap().unwrap();
        value.modify();
    }
    let mut blobs = ground.blobs();
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none());
    if is_cleared {
        table.clear().unwrap();
        model.clear();
    }
    PANICS.set(true);
    while PANICS.get() {
        let share = || table.continue_checkpoint(&mut blobs);
        let shared = catch_unwind(AssertUnwindSafe(share));
        assert_eq!(PANICS.get(), matches!(shared, Ok(Ok(None))), "{shared:?}");
    }
    assert_lost(&mut table, &mut blobs);
    while table.tick(1).unwrap() > 0 {}
    assert!(!is_cleared || account.used_for(MemoryKind::Values) == 0, "of a table that is gone");
    let image = table.checkpoint(&mut ground.blobs()).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    let mut restored = open(&ground, Some(image.clone()));
    assert_eq!(image.entries, model.len() as u64);
    assert!(model.iter().all(|(key, value)| restored.get(key).unwrap() == Some(value)));
    drop((table, restored));
    assert_eq!(account.used(), 0);
}

#[derive(Clone, Debug, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Fragile(String);

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || !PANICS.replace(false), "planned");
    }
}

/// Values that panic when they are dropped as their key groups leave are gone for the next checkpoint, too.
#[test]
fn a_value_that_panics_as_it_is_removed_is_dead() {
    let mut ground = Ground::<Heap, String>::new(5, 64 << 20);
    let account = ground.account.clone();
    let layout = Heap::default();
    let mut table = Layout::<u64, Fragile>::open(&layout, ground.context(&account, None)).unwrap();
    for key in 0..KEYS {
        table.put(key, Fragile(String::of(key))).unwrap();
    }
    commit(&mut table, &mut ground.blobs());
    let buffers = account.used_for(MemoryKind::Buffers);
    let (hashes, mut cursor, mut panics) = (0..=u64::MAX / 4, Cursor::default(), 0);
    while !cursor.done {
        let by_hash = table.by_hash().unwrap();
        PANICS.set(panics < 20);
        let remove = || by_hash.remove_hashes((), &hashes, &mut cursor, 50);
        panics += u64::from(catch_unwind(AssertUnwindSafe(remove)).is_err());
        PANICS.set(false);
        assert_eq!(account.used_for(MemoryKind::Buffers), buffers);
    }
    let left = (0..KEYS).filter(|key| !hashes.contains(&key.key_hash())).count() as u64;
    assert_eq!((panics, table.len()), (20, left));
    assert_eq!(commit(&mut table, &mut ground.blobs()), left);
    drop(table);
    assert_eq!(account.used(), 0);
}

/// A visitor that panics gives the memory of its step back.
#[test]
fn a_visitor_that_panics_keeps_no_memory() {
    let ground = Ground::<Heap, u64>::new(5, 64 << 20);
    let account = ground.account.clone();
    let layout = Heap::default();
    let mut table = Layout::<u64, u64>::open(&layout, ground.context(&account, None)).unwrap();
    (0..KEYS).for_each(|key| assert!(!table.put(key, key).unwrap()));
    let (used, mut cursor) = (account.used(), Cursor::default());
    let by_hash = table.by_hash().unwrap();
    let visit = || {
        by_hash.visit_hashes((), &(0..=u64::MAX), &mut cursor, 50, &mut |_, _, _| panic!("planned"))
    };
    assert!(catch_unwind(AssertUnwindSafe(visit)).is_err());
    assert_eq!(account.used(), used);
}
