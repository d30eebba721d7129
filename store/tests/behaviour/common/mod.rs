//! What several test files share: seeded chance, tiny layouts, and [`history`].

pub mod btree_layout;
mod clock;
mod dice;
pub mod history;
pub mod watchdog;

use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use alluvium::config::Helpers;
use alluvium::io::{Device, Simulated};
use alluvium::stats::AccountStats;
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, Key, Map, Result, State, Store};

pub use clock::Standing;
pub use dice::{Dice, times};

/// Keeps panics that a test plans out of its output.
pub fn quiet_about_planned_panics() {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.to_string().contains("planned") {
                usual(info);
            }
        }));
    });
}

/// A hybrid log of pages of 8 records and segments of a few pages.
pub fn tiny() -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB)
}

/// The layouts of the durability tests, by name, and a memory in which the log must evict.
pub fn durable_layouts() -> Vec<(&'static str, AnyLayout)> {
    vec![
        ("heap", Heap::new().into()),
        ("tiny log", tiny().into()),
        ("tiny log, constant hash", tiny().hash_bits(0).cooling_percent(60).into()),
        ("tiny log, two generations", tiny().generations(2).into()),
    ]
}

/// Opens a store on `device` whose background work runs on the calling thread.
pub fn open_on(
    device: Arc<dyn Device>,
    layout: impl Into<AnyLayout>,
    memory: u64,
) -> Result<Store> {
    Store::in_memory()
        .memory(memory)
        .max_value(4 * KIB)
        .layout(layout)
        .helpers(Helpers::Inline)
        .device(device)
        // Only the newest checkpoint: each file that is there counts.
        .retain(1)
        .open()
}

/// Does background work until the store's memory is as it should be.
pub fn tick_until(store: &Store, is_so: impl Fn(&AccountStats) -> bool) {
    let mut memory = store.stats().unwrap().memory;
    let since = Instant::now();
    while since.elapsed() < FOR_EVER {
        if is_so(&memory) {
            return;
        }
        if store.tick(100).unwrap() == 0 {
            // The helper may have something.
            std::thread::sleep(Duration::from_millis(1));
        }
        memory = store.stats().unwrap().memory;
    }
    panic!("{memory:?}");
}

/// Longer than anything takes that ends.
const FOR_EVER: Duration = Duration::from_secs(60);

/// Makes a call until storage is quick enough for it: a helper that waits for a core looks like storage that
/// does nothing.
pub fn patiently<R>(call: impl FnMut() -> Result<R>) -> R {
    again_while(|| true, call).unwrap_or_else(|error| panic!("{error:?}"))
}

/// The same while nothing of the device is stuck: what then cannot be done is told.
pub fn unless_stuck<R>(device: &Simulated, call: impl FnMut() -> Result<R>) -> Result<R> {
    again_while(|| device.stuck() == 0, call)
}

fn again_while<R>(passes: impl Fn() -> bool, mut call: impl FnMut() -> Result<R>) -> Result<R> {
    let since = Instant::now();
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Backpressure && passes() => {
                assert!(since.elapsed() < FOR_EVER, "{error:?}");
            }
            done => return done,
        }
    }
}

/// All entries of a map; every key once.
pub fn entries<K: Key + Ord, V: State>(map: &mut Map<K, V>) -> Result<BTreeMap<K, V>> {
    let mut seen = BTreeMap::new();
    map.for_each(|key, value| {
        assert!(seen.insert(key.clone(), value.clone()).is_none(), "a key is visited twice");
        Ok(())
    })?;
    Ok(seen)
}

/// Get, scan and length agree with the model and with each other.
pub fn assert_equal<K, V>(map: &mut Map<K, V>, model: &BTreeMap<K, V>, when: &str)
where
    K: Key + Ord + std::fmt::Debug,
    V: State + PartialEq + std::fmt::Debug,
{
    assert_eq!(map.len().unwrap(), model.len() as u64, "{when}");
    assert_eq!(&entries(map).unwrap(), model, "{when}");
    for (key, value) in model {
        assert_eq!(map.get(key).unwrap().as_deref(), Some(value), "{when}: {key:?}");
    }
}

/// Whether the long versions of tests are asked for: `ALLUVIUM_LONG=1 cargo test -p alluvium`.
pub fn long() -> bool {
    std::env::var_os("ALLUVIUM_LONG").is_some()
}
