//! What cannot be seen from outside the log.

mod checkpoints;
mod clearing;
mod memory;

use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, BlobWriter, Helper, KIB, SegmentStore, State};

use crate::contract::table::{Layout, StateContext};
use crate::hybrid_log::{HybridLog, HybridLogTable};

const MAX_VALUE: u64 = 4 * KIB;

fn open<V: State>(layout: &HybridLog, store: &Rc<Account>, stored: bool) -> HybridLogTable<u64, V> {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let context = StateContext {
        name: "log".into(),
        account: Account::below(store, "log", u64::MAX),
        segments: stored.then(|| SegmentStore::new(device, 1)),
        helper: Helper::inline(),
        max_value_bytes: MAX_VALUE,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    Layout::<u64, V>::open(layout, context).unwrap()
}

fn text(key: u64, bytes: u64) -> String {
    format!("{key:0width$}", width = bytes as usize)
}

fn blobs_of<V: State>(table: &HybridLogTable<u64, V>, number: u64) -> BlobWriter {
    let segments = table.core.context.segments.as_ref().unwrap();
    BlobWriter::new(segments.shared_device(), number, 4096)
}
