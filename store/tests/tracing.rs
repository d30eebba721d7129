//! What is told to `tracing` (on in tests) of a store that flushes, evicts, checkpoints and
//! restores, and that calls on records tell nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{HybridLog, KIB, MIB, Map, Store};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Fields = BTreeMap<String, String>;

/// Keeps what it is told: the names of spans and the messages of events, with their fields.
#[derive(Clone, Default)]
struct Told {
    all: Arc<Mutex<Vec<(String, Fields)>>>,
    spans: Arc<AtomicU64>,
    open: Arc<AtomicU64>,
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl Subscriber for Told {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "alluvium"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        span.record(&mut Collect(&mut fields));
        self.all.lock().unwrap().push((span.metadata().name().into(), fields));
        Id::from_u64(self.spans.fetch_add(1, Relaxed) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        let message = fields.remove("message").unwrap();
        self.all.lock().unwrap().push((message, fields));
    }
    fn enter(&self, _: &Id) {
        self.open.fetch_add(1, Relaxed);
    }
    fn exit(&self, _: &Id) {
        self.open.fetch_sub(1, Relaxed);
    }
}

impl Told {
    fn take(&self) -> Vec<(String, Fields)> {
        assert_eq!(self.open.load(Relaxed), 0, "every span has ended");
        std::mem::take(&mut *self.all.lock().unwrap())
    }
}

fn sum(told: &[(String, Fields)], what: &str, field: &str) -> u64 {
    let of = |fields: &Fields| fields[field].parse::<u64>().unwrap();
    told.iter().filter(|(name, _)| name == what).map(|(_, fields)| of(fields)).sum()
}

fn count(told: &[(String, Fields)], what: &str) -> u64 {
    told.iter().filter(|(name, _)| name == what).count() as u64
}

fn layout() -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB)
}

fn open(device: &Arc<Simulated>) -> Store {
    Store::in_memory()
        .memory(2 * MIB)
        .layout(layout())
        .helpers(Helpers::Inline)
        .device(device.clone())
        .open()
        .unwrap()
}

/// Of 40,000 keys the index fills more than 80 % of the memory.
#[test]
fn crowded_memory_is_told_once_with_what_would_do() {
    let told = Told::default();
    tracing::subscriber::with_default(told.clone(), || {
        let store = open(&Arc::new(Simulated::new(1, Faults::none())));
        // Where records move to sorted runs the index leaves room for more.
        let log = layout().cold_runs(false);
        let mut map: Map<u64, u64> = store.map("m").layout(log.into()).open().unwrap();
        for key in 0..40_000 {
            map.put(key, key).unwrap();
        }
        for key in 0..40_000 {
            map.update(&key, || 0, |value| *value += 1).unwrap();
            store.tick(10).unwrap();
        }
        let seen = told.take();
        let of_store = "the store's memory is crowded by what cannot be evicted";
        let of_state = "a state's memory is crowded by what cannot be evicted";
        for warning in [of_store, of_state] {
            assert_eq!(count(&seen, warning), 1, "{warning}");
            assert_eq!(sum(&seen, warning, "memory"), 2 * MIB);
            assert!(sum(&seen, warning, "bytes") * 10 >= 2 * MIB * 8);
        }
        let (_, fields) = seen.iter().find(|(name, _)| name == of_state).unwrap();
        assert_eq!(fields["state"], "m");
        assert!(store.stats().unwrap().is_crowded());
    });
}

#[test]
fn rare_things_are_told_and_records_are_not() {
    let told = Told::default();
    let device = Arc::new(Simulated::new(1, Faults::none()));
    tracing::subscriber::with_default(told.clone(), || {
        let store = open(&device);
        let mut map: Map<u64, [u64; 8]> = store.map("m").open().unwrap();
        for key in 0..20_000 {
            map.put(key, [key; 8]).unwrap();
        }
        while store.tick(100).unwrap() > 0 {}
        let (seen, stats) = (told.take(), map.stats().unwrap());
        assert!(stats.pages_flushed > 100, "{stats:?}");
        assert_eq!(sum(&seen, "page written", "bytes"), stats.flushed_bytes);
        assert_eq!(count(&seen, "flush"), stats.pages_flushed);
        assert_eq!(count(&seen, "index split"), stats.splits);
        assert!(count(&seen, "page evicted") > 100);
        let states: BTreeSet<_> =
            seen.iter().filter_map(|(_, fields)| fields.get("state")).collect();
        assert_eq!(states, [&"m".to_owned()].into());

        // Records that are changed where they are tell nothing.
        let resident = 19_999;
        for _ in 0..1000 {
            map.update(&resident, || [0; 8], |value| value[0] += 1).unwrap();
        }
        assert_eq!(told.take(), []);

        store.checkpoint(7).unwrap();
        let seen = told.take();
        let seal = seen.iter().find(|(name, _)| name == "seal").unwrap();
        assert_eq!((&*seal.1["number"], &*seal.1["position"]), ("1", "7"));
        let ends = ["state", "checkpoint sealed", "checkpoint committed"];
        assert_eq!(ends.map(|what| count(&seen, what)), [1; 3]);

        drop((map, store));
        let store = open(&device);
        let _map: Map<u64, [u64; 8]> = store.map("m").open().unwrap();
        let _new: Map<u64, u64> = store.map("new").open().unwrap();
        let opened: Vec<_> = told.take().into_iter().filter(|(name, _)| name == "open").collect();
        let restored: Vec<_> =
            opened.iter().map(|(_, f)| (f["state"].as_str(), f["restored"].as_str())).collect();
        assert_eq!(restored, [("m", "true"), ("new", "false")]);
    });
}
