//! What restoring makes of the index.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Helper, KIB, MIB, SegmentStore, StateImage, hash_word,
};

use super::{HybridLog, HybridLogTable};
use crate::contract::table::{CheckpointOutcome, Layout, StateContext, Table};
use crate::contract::upkeep::Upkeep;

type Log = HybridLogTable<u64, u64>;

fn open(segments: &SegmentStore, store: &Rc<Account>, image: Option<&StateImage>) -> Log {
    let context = StateContext {
        name: "log".into(),
        account: Account::below(store, "log", u64::MAX),
        segments: Some(segments.clone()),
        helper: Helper::inline(),
        max_value_bytes: 4 * KIB,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: image.map(|image| (image.clone(), BlobReader::new(segments.shared_device()))),
    };
    Layout::<u64, u64>::open(&HybridLog::new().cold_runs(false), context).unwrap()
}

/// The segments have the records in the order of the puts. 89,000 of two million keys filled the list of what has no room
/// in the index, and the state was not opened again.
#[test]
fn keys_that_came_in_the_order_of_their_hashes_have_room_in_the_index_again() {
    let keys = 100_000;
    let mut in_order: Vec<u64> = (0..keys).collect();
    in_order.sort_unstable_by_key(|key| hash_word(*key));
    let segments = SegmentStore::new(Arc::new(Simulated::new(1, Faults::none())), 1);
    let fill = |is_told: bool| {
        let store = Account::root(8 * MIB);
        let mut log = open(&segments, &store, None);
        if is_told {
            log.expect(keys);
        }
        in_order.iter().for_each(|key| assert!(!log.put(*key, *key).unwrap()));
        log
    };
    let strays = fill(false).core.log.index.strays();
    assert!(strays > 1000, "without a word of how many come: {strays}");
    let mut log = fill(true);
    let mut blobs = BlobWriter::new(segments.shared_device(), 1, 4096);
    let mut image = log.begin_checkpoint(&mut blobs).unwrap();
    while image.is_none() {
        image = log.continue_checkpoint(&mut blobs).unwrap();
    }
    blobs.finish().unwrap();
    log.checkpointed(CheckpointOutcome::Committed);
    drop(log);
    let store = Account::root(8 * MIB);
    let mut log = open(&segments, &store, image.as_ref());
    let strays = log.core.log.index.strays();
    assert!(strays < 200, "{strays}");
    for key in (0..keys + 50).step_by(7) {
        assert_eq!(log.get(&key).unwrap().copied(), (key < keys).then_some(key));
    }
}
