//! Stores on a simulated device, and a clock that is set by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use alluvium::config::Helpers;
use alluvium::io::Simulated;
use alluvium::time::Clock;
use alluvium::{AnyLayout, Heap, HybridLog, KIB, MIB, Store, StoreBuilder, Time};

/// A clock that tells what it was set to.
#[derive(Clone, Debug, Default)]
pub struct HandClock(Arc<AtomicI64>);

impl HandClock {
    pub fn set(&self, to: i64) {
        self.0.store(to, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

/// A hybrid log of pages of 8 records and segments of a few pages.
pub fn tiny() -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB)
}

/// Layouts, and a memory that some of them must leave.
pub fn layouts() -> [(AnyLayout, u64); 6] {
    [
        (Heap::new().into(), MIB),
        (HybridLog::new().into(), 8 * MIB),
        (tiny().into(), 256 * KIB),
        (tiny().hash_bits(1).cooling_percent(60).into(), 400 * KIB),
        // Records move to sorted runs.
        (tiny().cold_entries(64).into(), 640 * KIB),
        (tiny().cold_entries(32).hash_bits(6).into(), 640 * KIB),
    ]
}

/// Those of them whose keys do not all have one hash: for many keys.
pub fn layouts_by_hash() -> impl Iterator<Item = (AnyLayout, u64)> {
    layouts().into_iter().take(3)
}

/// A store on a device, whose background work runs on the calling thread.
pub fn builder(device: &Simulated, memory: u64, clock: &HandClock) -> StoreBuilder {
    Store::in_memory()
        .memory(memory)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .clock(Arc::new(clock.clone()))
        .device(Arc::new(device.clone()))
}

/// Ticks until nothing is left to do.
pub fn tick_until_idle(store: &Store) {
    for ticks in 0.. {
        if store.tick(5000).unwrap() == 0 {
            return;
        }
        assert!(ticks < 100_000, "never idle");
    }
}
