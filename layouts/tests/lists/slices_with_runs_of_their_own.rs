//! How many slices with a run each a small memory takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, CheckpointOutcome, Lists, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{ErrorKind, Time};

use crate::common::{Ground, folded, read};

/// What is kept free for a slice that is not written is more than what one takes that is. So slices are written before one
/// is refused, though half of the memory is free.
#[test]
fn slices_are_written_before_one_is_refused() {
    for threads in [false, true] {
        let memory = 1 << 20;
        let device = Arc::new(Simulated::new(5, Faults::none()));
        let mut ground = Ground::new(Some(device), memory, threads);
        let layout = AppendLog::new().packs_slices(false);
        let (mut lists, account) = ground.open::<u64, u64, _>(&layout).unwrap();
        let fill = |lists: &mut _, from: i64| {
            for slice in from.. {
                let appended = Lists::<u64, u64>::append(lists, Time(slice), &7, slice as u64);
                if let Err(refused) = appended {
                    assert_eq!(refused.error.kind(), ErrorKind::OverBudget, "{}", refused.error);
                    return slice;
                }
            }
            unreachable!("memory is bounded")
        };
        let slices = fill(&mut lists, 0);
        // Without that 371 were taken.
        println!("{slices} slices, {} bytes written", lists.stats().flushed_bytes);
        assert!(slices > 500, "{slices}");
        let one = |slice: i64| BTreeMap::from([(7, vec![slice as u64])]);
        for slice in 0..slices {
            let found = folded(&mut lists, Time(slice)..Time(slice + 1), 100).unwrap();
            assert_eq!(found, one(slice), "{slice}");
            assert_eq!(read(&mut lists, Time(slice), &7).unwrap(), [slice as u64]);
        }
        ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
        assert!(account.stats().peak <= memory, "{account:?}");
        drop(lists);
        let (mut lists, account) = ground.open::<u64, u64, _>(&layout).unwrap();
        assert_eq!(lists.len(), slices as u64);
        for slice in 0..slices {
            let found = folded(&mut lists, Time(slice)..Time(slice + 1), 100).unwrap();
            assert_eq!(found, one(slice), "{slice}");
        }
        // Where some have gone others come.
        lists.purge(Time(100), usize::MAX).unwrap();
        // What was dropped is free once the helper has done that, and its answers were taken in.
        ground.wait_for_helper();
        while lists.tick(1_000).unwrap() > 0 {}
        let more = fill(&mut lists, slices);
        assert!(more >= slices + 90, "{more} of {slices}");
        for slice in (100..more).step_by(7) {
            let found = folded(&mut lists, Time(slice)..Time(slice + 1), 100).unwrap();
            assert_eq!(found, one(slice), "{slice}");
        }
        assert!(account.stats().peak <= memory, "{account:?}");
    }
}
