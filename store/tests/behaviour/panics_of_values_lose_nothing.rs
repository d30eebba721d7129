//! User code that the helper runs may panic: a value's `Serialize` while its page is written, a
//! value's `Drop` while its page is recycled; and so may the `Drop` of a value that is put over. Calls that need the page on storage are told; nothing
//! is lost, memory is counted to the byte, and when the cause is gone the store works.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::common::{entries, open_on, quiet_about_planned_panics, tick_until, tiny};
use alluvium::backend::Cursor;
use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::types::{HeapSize, Schema};
use alluvium::{ErrorKind, KIB, Map, Store};
use rkyv::rancor::Fallible;
use rkyv::{Archive, Deserialize, Place, Serialize};

#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[rkyv(crate = rkyv)]
struct Plain(String);

/// A value that owns heap and panics as asked.
#[derive(Clone, Debug, PartialEq)]
struct Touchy(Plain);

/// The text whose encoding panics.
const BAD: &str = "this is the bad one";

static ENCODING_PANICS: AtomicBool = AtomicBool::new(false);
static DROP_PANICS: AtomicBool = AtomicBool::new(false);
static CALLERS_DROP_PANICS: AtomicBool = AtomicBool::new(false);
static PANICS: AtomicU64 = AtomicU64::new(0);
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    quiet_about_planned_panics();
    ALONE.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl Touchy {
    fn of(number: u64) -> Self {
        let text = if number % 1000 == 7 { BAD.into() } else { format!("{number:030}") };
        Touchy(Plain(text))
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        // Only where it is planned: the test's own values are dropped in peace.
        if CALLERS_DROP_PANICS.swap(false, Ordering::SeqCst) {
            PANICS.fetch_add(1, Ordering::SeqCst);
            panic!("planned: drop");
        }
        let helper = std::thread::current().name() == Some("alluvium-helper");
        if helper && DROP_PANICS.load(Ordering::SeqCst) && self.0.0.ends_with(['1', '2']) {
            PANICS.fetch_add(1, Ordering::SeqCst);
            panic!("planned: drop");
        }
    }
}

impl HeapSize for Touchy {
    const NO_HEAP: bool = false;
    fn heap_bytes(&self) -> usize {
        self.0.0.heap_bytes()
    }
}

impl Schema for Touchy {
    fn describe(out: &mut String) {
        out.push_str("Touchy");
    }
}

impl Archive for Touchy {
    type Archived = ArchivedPlain;
    type Resolver = PlainResolver;
    fn resolve(&self, resolver: Self::Resolver, out: Place<Self::Archived>) {
        self.0.resolve(resolver, out);
    }
}

impl<S: Fallible + ?Sized> Serialize<S> for Touchy
where
    Plain: Serialize<S>,
{
    fn serialize(&self, serializer: &mut S) -> Result<Self::Resolver, S::Error> {
        if ENCODING_PANICS.load(Ordering::SeqCst) && self.0.0 == BAD {
            PANICS.fetch_add(1, Ordering::SeqCst);
            panic!("planned: encode");
        }
        self.0.serialize(serializer)
    }
}

impl<D: Fallible + ?Sized> Deserialize<Touchy, D> for ArchivedPlain
where
    ArchivedPlain: Deserialize<Plain, D>,
{
    fn deserialize(&self, deserializer: &mut D) -> Result<Touchy, D::Error> {
        Ok(Touchy(self.deserialize(deserializer)?))
    }
}

fn open(device: &Simulated, helpers: Helpers) -> (Store, Map<u64, Touchy>) {
    let store = Store::in_memory()
        .memory(384 * KIB)
        .max_value(4 * KIB)
        .layout(tiny())
        .helpers(helpers)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let map = store.map("m").open().unwrap();
    (store, map)
}

#[test]
fn a_value_that_panics_when_it_is_encoded() {
    let _alone = alone();
    for helpers in [Helpers::Thread, Helpers::Inline] {
        let device = Simulated::new(1, Faults::none());
        let (store, mut map) = open(&device, helpers);
        let mut model = BTreeMap::new();
        ENCODING_PANICS.store(true, Ordering::SeqCst);
        let before = PANICS.load(Ordering::SeqCst);
        let mut told = 0;
        for key in 0..6000 {
            match map.put(key, Touchy::of(key)) {
                Ok(known) => {
                    assert!(!known);
                    model.insert(key, Touchy::of(key));
                }
                Err(rejected) => {
                    let error = rejected.error;
                    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error:?}");
                    assert_eq!(error.context("state"), Some("m"), "{error:?}");
                    let text = error.to_string();
                    assert!(text.contains("panicked while a page was encoded"), "{text}");
                    assert_eq!(rejected.value, (key, Touchy::of(key)));
                    told += 1;
                }
            }
        }
        println!("{helpers:?}: {told} calls were told, {} keys are in", model.len());
        assert!(told > 0 && PANICS.load(Ordering::SeqCst) > before);
        let refused = store.checkpoint(1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
        for (key, value) in &model {
            match map.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(value)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Poisoned, "{error:?}"),
            }
        }
        ENCODING_PANICS.store(false, Ordering::SeqCst);
        // At most one call is told of what failed before; a thread may be at one more page.
        let _ = store.tick(10);
        let mut late = 0;
        for key in 6000..8000 {
            let known = loop {
                match map.put(key, Touchy::of(key)) {
                    Ok(known) => break known,
                    Err(rejected) => {
                        late += 1;
                        let error = rejected.error;
                        let is_told = error.kind() == ErrorKind::Poisoned;
                        assert!(helpers == Helpers::Thread && late == 1 && is_told, "{error:?}");
                    }
                }
            };
            assert!(!known);
            model.insert(key, Touchy::of(key));
        }
        assert_eq!(entries(&mut map).unwrap(), model);
        store.checkpoint(2).unwrap();
        drop((store, map));
        let (_store, mut map) = open(&device, helpers);
        assert_eq!(entries(&mut map).unwrap(), model);
    }
}

/// The old value of a put, wherever its page is, panics when it is dropped: the new one is there.
#[test]
fn an_old_value_that_panics_when_another_takes_its_place() {
    let _alone = alone();
    let device = Simulated::new(3, Faults::none());
    let (store, mut map) = open(&device, Helpers::Inline);
    for key in 0..3000 {
        assert!(!map.put(key, Touchy::of(key)).unwrap());
    }
    let before = PANICS.load(Ordering::SeqCst);
    for key in (0..3000).rev() {
        CALLERS_DROP_PANICS.store(true, Ordering::SeqCst);
        let put = catch_unwind(AssertUnwindSafe(|| map.put(key, Touchy::of(key + 10_000))));
        CALLERS_DROP_PANICS.store(false, Ordering::SeqCst);
        assert!(put.is_err() || put.unwrap().unwrap());
        map.clear_poison();
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&Touchy::of(key + 10_000)));
    }
    assert!(PANICS.load(Ordering::SeqCst) > before + 100);
    let model: BTreeMap<_, _> = (0..3000).map(|key| (key, Touchy::of(key + 10_000))).collect();
    assert_eq!(entries(&mut map).unwrap(), model);
    assert_eq!(map.len().unwrap(), 3000);
    store.checkpoint(1).unwrap();
    drop((store, map));
    let (_store, mut map) = open(&device, Helpers::Inline);
    assert_eq!(entries(&mut map).unwrap(), model);
}

/// A value that a scan has read from storage panics when it is dropped, while others are being read: these
/// are taken for no others afterwards, and their buffers are there again.
#[test]
fn a_value_that_panics_while_a_scan_reads_others() {
    let _alone = alone();
    let device = Simulated::new(4, Faults::none());
    let (store, mut map) = open(&device, Helpers::Inline);
    let model: BTreeMap<_, _> = (0..3000).map(|key| (key, Touchy::of(key))).collect();
    for (key, value) in &model {
        assert!(!map.put(*key, value.clone()).unwrap());
    }
    store.checkpoint(1).unwrap();
    device.set_faults(Faults::late(20));
    let mut panicked = 0;
    for round in 0..60 {
        let mut cursor = Cursor::default();
        let mut seen = 0;
        let scanned = catch_unwind(AssertUnwindSafe(|| {
            map.scan(&mut cursor, 3000, |key, value| {
                assert_eq!(model.get(key), Some(value));
                seen += 1;
                CALLERS_DROP_PANICS.store(seen > 40 * round, Ordering::SeqCst);
                Ok(())
            })
        }));
        CALLERS_DROP_PANICS.store(false, Ordering::SeqCst);
        panicked += u64::from(scanned.is_err());
        map.clear_poison();
        for key in (round..3000).step_by(501) {
            assert_eq!(map.get(&key).unwrap().as_deref(), model.get(&key), "round {round}");
        }
    }
    assert!(panicked > 30, "{panicked} panicked");
    assert_eq!(entries(&mut map).unwrap(), model);
}

#[test]
fn values_that_panic_when_they_are_dropped() {
    let _alone = alone();
    let device = Simulated::new(2, Faults::none());
    let (store, mut map) = open(&device, Helpers::Thread);
    DROP_PANICS.store(true, Ordering::SeqCst);
    let before = PANICS.load(Ordering::SeqCst);
    for key in 0..4000 {
        assert!(!map.put(key, Touchy::of(key)).unwrap());
    }
    assert_eq!(store.checkpoint(1).unwrap().entries, 4000);
    for key in (0..4000).step_by(3) {
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&Touchy::of(key)));
    }
    assert!(PANICS.load(Ordering::SeqCst) > before + 100);
    map.clear().unwrap();
    tick_until(&store, |memory| memory.by_kind[2] == 0);
    DROP_PANICS.store(false, Ordering::SeqCst);
    for key in 0..3000 {
        assert!(!map.put(key, Touchy::of(key)).unwrap());
    }
    store.checkpoint(2).unwrap();
    drop((store, map));
    let store = open_on(Arc::new(device), tiny(), 256 * KIB).unwrap();
    let mut map: Map<u64, Touchy> = store.map("m").open().unwrap();
    assert_eq!(entries(&mut map).unwrap().len(), 3000);
}
