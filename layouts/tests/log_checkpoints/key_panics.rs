//! Keys that panic while they are hashed, as a page leaves memory for a set of live records: the share has an error, and
//! the checkpoint goes on from there.
//!
//! What this catches: a checkpoint that such a panic ends, or what it booked and nobody gives back.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, HybridLog, HybridLogTable, Layout, Pace, StateContext, Table, Upkeep,
};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobWriter, Error, ErrorKind, Helper, KIB, KeyHash, MemoryKind, SegmentStore,
    hash_word,
};
use std::rc::Rc;

use crate::log::idle;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Touchy(u64);

thread_local! {
    /// One hash in so many panics, on the owner's thread.
    static EVERY: Cell<u64> = const { Cell::new(0) };
    static HASHED: Cell<u64> = const { Cell::new(0) };
    static PANICKED: Cell<u64> = const { Cell::new(0) };
}

impl KeyHash for Touchy {
    fn key_hash(&self) -> u64 {
        HASHED.set(HASHED.get() + 1);
        if EVERY.get() > 0 && HASHED.get() % EVERY.get() == 0 {
            PANICKED.set(PANICKED.get() + 1);
            panic!("planned: hash");
        }
        hash_word(self.0)
    }
}

type Value = [u64; 30];
type Log = HybridLogTable<Touchy, Value>;

fn open(segments: &SegmentStore, memory: u64) -> Result<(Log, Rc<Account>), Error> {
    let account = Account::below(&Account::root(memory), "log", u64::MAX);
    let context = StateContext {
        name: "log".into(),
        account: account.clone(),
        segments: Some(segments.clone()),
        // Which pages leave is to hang on nothing but the shares.
        helper: Helper::inline(),
        max_value_bytes: 512,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    Ok((Layout::<Touchy, Value>::open(&HybridLog::new().queue_depth(1), context)?, account))
}

/// One share, while one hash in so many panics.
fn share(table: &mut Log, blobs: &mut BlobWriter, every: u64) -> Option<u64> {
    table.pace_checkpoint(Pace::AT_ONCE);
    EVERY.set(every);
    let image = table.continue_checkpoint(blobs);
    EVERY.set(0);
    match image {
        Ok(image) => image.map(|image| image.entries),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Poisoned, "{error:?}");
            None
        }
    }
}

#[test]
fn a_key_that_panics_while_a_page_leaves_memory_is_an_error_of_the_share() {
    let device = Simulated::new(1, Faults::none());
    let segments = SegmentStore::new(Arc::new(device), 1);
    let mut memory = 16 * KIB;
    while open(&segments, memory).is_err() {
        memory += KIB;
    }
    let keys = 2000;
    let (mut table, account) = open(&segments, memory + 40 * keys).unwrap();
    let booked = idle(&account);
    let mut model = BTreeMap::new();
    for number in 1..=4 {
        // Half of what segments have dies.
        for key in (0..keys).filter(|key| number == 1 || key % 2 == number % 2) {
            table.put(Touchy(key), [number; 30]).unwrap();
            model.insert(key, [number; 30]);
        }
        let mut blobs = BlobWriter::new(segments.shared_device(), number, 4096);
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        // Others have all that is free: sets have to have it from pages.
        let others = account.available();
        account.charge(MemoryKind::Index, others);
        let mut shares = 0;
        let entries = loop {
            shares += 1;
            // The first keys that leave panic, a few times, so that it ends.
            let every = u64::from(PANICKED.get() < 5 * number);
            if let Some(entries) = share(&mut table, &mut blobs, every) {
                break entries;
            }
            assert!(shares < 1_000_000, "it never ends");
        };
        account.release(MemoryKind::Index, others);
        assert_eq!(entries, keys);
        table.checkpointed(CheckpointOutcome::Committed);
        assert_eq!(idle(&account), booked, "memory of checkpoint {number}");
    }
    println!("{} panics", PANICKED.get());
    assert!(PANICKED.get() >= 5, "{}", PANICKED.get());
    for (key, value) in model {
        assert_eq!(table.get(&Touchy(key)).unwrap(), Some(&value));
    }
}
