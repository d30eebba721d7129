//! Levels of packed slices are merged on the helper's thread, not on that of the appends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::ThreadId;

use alluvium_layouts::{AppendLog, Lists, Upkeep};
use alluvium_pagestore::io::{Device, Faults, FileHandle, IoStats, Operation, Request, Simulated};
use alluvium_pagestore::{Result, Time};

use crate::common::{Ground, folded};
use crate::hand_on::hand_on;

/// A device that tells who reads.
#[derive(Debug)]
struct Watched {
    inner: Simulated,
    owner: ThreadId,
    read_by_owner: AtomicU64,
    read_by_others: AtomicU64,
}

impl Device for Watched {
    hand_on!(inner: engine, stats, create, open, len, drive, rename, remove, sync_directory, list, lock);

    fn submit(&self, request: Request) {
        if matches!(request.operation, Operation::Read { .. }) {
            let is_owner = std::thread::current().id() == self.owner;
            let read = if is_owner { &self.read_by_owner } else { &self.read_by_others };
            read.fetch_add(request.buffer.as_slice().len() as u64, Relaxed);
        }
        self.inner.submit(request);
    }
}

#[test]
fn appends_read_little_while_levels_are_merged() {
    let memory = 2 << 20;
    let device = Arc::new(Watched {
        inner: Simulated::new(5, Faults::none()),
        owner: std::thread::current().id(),
        read_by_owner: 0.into(),
        read_by_others: 0.into(),
    });
    let mut ground = Ground::new(Some(device.clone()), memory, true);
    let (mut lists, account) =
        ground.open::<u64, u64, _>(&AppendLog::new().packs_slices(true)).unwrap();
    let (slices, elements) = (4_000, 60_000);
    let slice_of = |n: u64| n * 7_919 % slices;
    for n in 0..elements {
        lists.append(Time(slice_of(n) as i64), &7, n).unwrap();
    }
    // Some hundred batches are packed: with more than some levels appends wait for merges. The owner reads where the blocks
    // of a new level are.
    let written = lists.stats().flushed_bytes;
    let read = [&device.read_by_owner, &device.read_by_others].map(|read| read.load(Relaxed));
    assert!(read[1] > 0, "levels were merged");
    assert!(read[0] <= written / 4, "{read:?} bytes read by the owner and by others, {written}");
    assert!(account.stats().peak <= memory, "{account:?}");
    for slice in (0..slices).step_by(61) {
        let time = Time(slice as i64);
        let found = folded(&mut lists, time..time.plus(1), 100).unwrap();
        assert!(found[&7].iter().copied().eq((0..elements).filter(|n| slice_of(*n) == slice)));
    }
    lists.purge(Time::MAX, usize::MAX).unwrap();
    while lists.tick(1_000).unwrap() > 0 {}
    drop(lists);
    assert_eq!(account.used(), 0);
}
