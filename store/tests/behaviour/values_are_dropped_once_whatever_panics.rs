//! Trap 7: a value is dropped twice, or never, or read half written, when it is moved out, cloned
//! from a page that is being written, handed to the reaper, or when a user's closure panics. Every
//! instance of the value has an id; those that live are known.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::common::{Dice, quiet_about_planned_panics, tick_until, times};
use alluvium::backend::Cursor;
use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::types::{HeapSize, Schema};
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store};
use rkyv::rancor::Fallible;
use rkyv::{Archive, Deserialize, Place, Serialize};

#[derive(Archive, Serialize, Deserialize)]
#[rkyv(crate = rkyv)]
struct Plain {
    number: u64,
    text: String,
}

/// A value whose instances are counted.
struct Counted {
    id: u64,
    plain: Plain,
}

static NEXT: AtomicU64 = AtomicU64::new(1);
static LIVE: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
static DOUBLE: AtomicBool = AtomicBool::new(false);
static CLONE_PANICS: AtomicBool = AtomicBool::new(false);
static CLONES_PANICKED: AtomicU64 = AtomicU64::new(0);

/// One history at a time: instances are counted for the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    quiet_about_planned_panics();
    let alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    *LIVE.lock().unwrap() = Some(HashSet::new());
    DOUBLE.store(false, Ordering::SeqCst);
    alone
}

fn live() -> usize {
    LIVE.lock().unwrap().as_ref().unwrap().len()
}

impl Counted {
    fn new(number: u64, text: String) -> Self {
        let id = NEXT.fetch_add(1, Ordering::SeqCst);
        LIVE.lock().unwrap().as_mut().unwrap().insert(id);
        Self { id, plain: Plain { number, text } }
    }

    fn of(number: u64) -> Self {
        Self::new(number, text(number))
    }

    /// Changes it so that it is the value of another number.
    fn become_number(&mut self, number: u64) {
        self.plain.number = number;
        self.plain.text = text(number);
    }

    /// The number, checked against the text.
    fn number(&self) -> u64 {
        assert_eq!(self.plain.text, text(self.plain.number), "a torn value");
        let known = LIVE.lock().unwrap().as_ref().unwrap().contains(&self.id);
        assert!(known, "a dead value");
        self.plain.number
    }
}

fn text(number: u64) -> String {
    format!("{number:0width$}", width = number as usize % 60)
}

impl Drop for Counted {
    fn drop(&mut self) {
        let known = LIVE.lock().unwrap().as_mut().unwrap().remove(&self.id);
        if !known {
            DOUBLE.store(true, Ordering::SeqCst);
        }
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        if CLONE_PANICS.load(Ordering::SeqCst) {
            CLONES_PANICKED.fetch_add(1, Ordering::SeqCst);
            panic!("planned: clone");
        }
        Self::new(self.plain.number, self.plain.text.clone())
    }
}

impl HeapSize for Counted {
    const NO_HEAP: bool = false;
    fn heap_bytes(&self) -> usize {
        self.plain.text.heap_bytes()
    }
}

impl Schema for Counted {
    fn describe(out: &mut String) {
        out.push_str("Counted");
    }
}

impl Archive for Counted {
    type Archived = ArchivedPlain;
    type Resolver = PlainResolver;
    fn resolve(&self, resolver: Self::Resolver, out: Place<Self::Archived>) {
        self.plain.resolve(resolver, out);
    }
}

impl<S: Fallible + ?Sized> Serialize<S> for Counted
where
    Plain: Serialize<S>,
{
    fn serialize(&self, serializer: &mut S) -> Result<Self::Resolver, S::Error> {
        self.plain.serialize(serializer)
    }
}

impl<D: Fallible + ?Sized> Deserialize<Counted, D> for ArchivedPlain
where
    ArchivedPlain: Deserialize<Plain, D>,
{
    fn deserialize(&self, deserializer: &mut D) -> Result<Counted, D::Error> {
        let plain: Plain = self.deserialize(deserializer)?;
        Ok(Counted::new(plain.number, plain.text))
    }
}

/// What a call gives; `None` if it panicked as planned.
fn caught<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            assert!(text.as_ref().is_some_and(|t| t.starts_with("planned")), "{text:?}");
            None
        }
    }
}

/// A history in which a quarter of all closures, and some clones, panic.
struct History {
    map: Map<u64, Counted>,
    model: RefCell<BTreeMap<u64, u64>>,
    random: Dice,
    /// Panics by kind: init, change, modify, restored, batch, read batch, scan, take.
    panicked: [u64; 8],
}

const KEYS: u64 = 900;

impl History {
    fn expect(&self, key: u64, value: Option<&Counted>) {
        let number = value.map(Counted::number);
        assert_eq!(number, self.model.borrow().get(&key).copied(), "key {key}");
    }

    fn some_keys(&mut self) -> Vec<u64> {
        (0..1 + self.random.below(130)).map(|_| self.random.below(KEYS)).collect()
    }

    /// One call; says whether a closure that may leave a value half changed has panicked.
    fn step(&mut self, what: u64) -> bool {
        let (key, number) = (self.random.below(KEYS), self.random.below(1 << 40));
        let fails = self.random.below(4) == 0;
        let some = self.some_keys();
        let last = self.random.below(some.len() as u64);
        let (count, poisons) = (Cell::new(0), Cell::new(false));
        let model = &self.model;
        let map = &mut self.map;
        let fail = |what: &str| {
            if fails {
                poisons.set(true);
                panic!("planned: {what}");
            }
        };
        let made = |key: u64, number: u64| {
            assert_eq!(model.borrow_mut().insert(key, number), None, "{key} is made again");
            Counted::of(number)
        };
        let changed = |value: &mut Counted, key: u64, number: u64| {
            let was = model.borrow_mut().insert(key, number);
            assert_eq!(Some(value.number()), was, "key {key}");
            value.become_number(number);
        };
        let (kind, done) = match what {
            0..4 => {
                let init = || {
                    fail("init");
                    made(key, number)
                };
                let change = |v: &mut Counted| changed(v, key, number ^ 1);
                (0, caught(|| map.update(&key, init, change).unwrap()).is_some())
            }
            4..6 => {
                let change = |v: &mut Counted| {
                    changed(v, key, number);
                    fail("change");
                };
                let init = || made(key, number ^ 1);
                (1, caught(|| map.update(&key, init, change).unwrap()).is_some())
            }
            6 => {
                let change = |v: &mut Counted| {
                    changed(v, key, number);
                    fail("modify");
                };
                (2, caught(|| map.modify(&key, change).unwrap()).is_some())
            }
            7 => {
                let change = |v: &mut Counted| {
                    v.become_number(number);
                    fail("modify or restore");
                };
                let done = caught(|| map.modify_or_restore(&key, change).unwrap());
                if let Some(found) = done {
                    assert_eq!(found.is_some(), model.borrow().contains_key(&key));
                    model.borrow_mut().entry(key).and_modify(|n| *n = number);
                }
                (3, done.is_some())
            }
            8..10 => {
                let change = |k: &u64, v: &mut Counted| {
                    changed(v, *k, number ^ k);
                    count.set(count.get() + 1);
                    if count.get() > last {
                        fail("batch");
                    }
                };
                let init = |k: &u64| made(*k, number);
                (4, caught(|| map.update_batch(&some, |k| k, init, change).unwrap()).is_some())
            }
            10 => {
                let read = |k: &u64, v: Option<&Counted>| {
                    assert_eq!(v.map(Counted::number), model.borrow().get(k).copied());
                    count.set(count.get() + 1);
                    if count.get() > last {
                        fail("read batch");
                    }
                };
                (5, caught(|| map.read_batch(&some, |k| k, read).unwrap()).is_some())
            }
            11 => {
                let visit = |k: &u64, v: &Counted| {
                    assert_eq!(Some(&v.number()), model.borrow().get(k));
                    fail("scan");
                    Ok(())
                };
                let mut cursor = Cursor::default();
                (6, caught(|| map.scan(&mut cursor, 100, visit).unwrap()).is_some())
            }
            12..14 => {
                let known = map.put(key, Counted::of(number));
                let known = known.unwrap_or_else(|e| panic!("{}", e.error));
                assert_eq!(known, model.borrow_mut().insert(key, number).is_some());
                return false;
            }
            14 => {
                let done = caught(|| map.take(&key).unwrap());
                if let Some(taken) = &done {
                    let number = taken.as_ref().map(Counted::number);
                    assert_eq!(number, model.borrow_mut().remove(&key));
                }
                (7, done.is_some())
            }
            _ => {
                let read = |v: Option<&Counted>| {
                    assert_eq!(v.map(Counted::number), model.borrow().get(&key).copied());
                    assert!(!fails, "planned: read");
                };
                assert_eq!(caught(|| map.read(&key, read).unwrap()).is_none(), fails);
                return false;
            }
        };
        self.panicked[kind] += u64::from(!done);
        poisons.get()
    }

    fn run(&mut self, store: &Store, stored: bool) {
        for op in 0..times("ALLUVIUM_OPS", 5000) {
            let what = self.random.below(16);
            CLONE_PANICS.store(self.random.below(8) == 0, Ordering::SeqCst);
            let before = store.stats().unwrap();
            let poisons = match catch_unwind(AssertUnwindSafe(|| self.step(what))) {
                Ok(poisons) => poisons,
                Err(_) => panic!("in call {op} ({what}): {before:?}"),
            };
            CLONE_PANICS.store(false, Ordering::SeqCst);
            let when = format!("after call {op} ({what})");
            assert!(!DOUBLE.load(Ordering::SeqCst), "a value was dropped twice {when}");
            assert!(self.map.is_poisoned() || !poisons, "not poisoned {when}");
            let len = self.map.len().unwrap();
            assert_eq!(len, self.model.borrow().len() as u64, "{when}");
            if stored && (self.map.is_poisoned() || op % 100 == 0) {
                match store.checkpoint(op) {
                    Ok(checkpoint) => assert_eq!(checkpoint.entries, len),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
                        assert!(self.map.is_poisoned());
                    }
                }
            }
            self.map.clear_poison();
            assert!(!self.map.is_poisoned());
            if !stored {
                assert_eq!(live() as u64, len, "{when}");
            }
            if op % 500 == 0 {
                for key in 0..KEYS {
                    let value = self.map.take(&key).unwrap();
                    self.expect(key, value.as_ref());
                    if let Some(value) = value {
                        self.map.put(key, value).unwrap_or_else(|e| panic!("{}", e.error));
                    }
                }
            }
        }
    }
}

fn run(name: &str, layout: AnyLayout, memory: u64, stored: bool, helpers: Helpers, seed: u64) {
    println!("{name}");
    let random = Dice(seed);
    let builder = Store::in_memory().memory(memory).max_value(4 * KIB).helpers(helpers);
    let device = Arc::new(Simulated::new(seed, Faults::late(2)));
    let builder = if stored { builder.device(device) } else { builder };
    let store = builder.layout(layout).open().unwrap();
    let map = store.map("m").open().unwrap();
    let clones = CLONES_PANICKED.load(Ordering::SeqCst);
    let mut history = History { map, model: RefCell::default(), random, panicked: [0; 8] };
    history.run(&store, stored);
    let History { mut map, panicked, .. } = history;
    let clones = CLONES_PANICKED.load(Ordering::SeqCst) - clones;
    let stats = map.stats().unwrap();
    println!("{panicked:?} panics, {clones} of clones; {stats:?}");
    assert!(panicked[..7].iter().all(|&n| n > 2), "{panicked:?}");
    if stored {
        assert!(stats.cold_reads > 100 && stats.moves > 100, "{stats:?}");
        // A helper thread may be done before a record that it writes is changed.
        let inline = helpers == Helpers::Inline;
        assert!(!inline || stats.clones > 10 && clones > 10, "{clones} {panicked:?} {stats:?}");
    }
    map.clear().unwrap();
    tick_until(&store, |memory| (live(), memory.by_kind[2]) == (0, 0));
    for key in 0..500 {
        map.update(&key, || Counted::of(key), |v| v.become_number(key + 1)).unwrap();
    }
    drop((map, store));
    assert_eq!(live(), 0, "values live after the store is closed");
    assert!(!DOUBLE.load(Ordering::SeqCst), "a value was dropped twice");
}

fn tiny() -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(3).segment(16 * KIB)
}

#[test]
fn on_the_heap() {
    let _alone = alone();
    run("heap", Heap::new().into(), MIB, false, Helpers::Inline, times("ALLUVIUM_SEED", 1));
}

#[test]
fn in_a_hybrid_log_in_memory() {
    let _alone = alone();
    run("log, memory", tiny().into(), 2 * MIB, false, Helpers::Inline, times("ALLUVIUM_SEED", 2));
}

#[test]
fn in_a_hybrid_log_on_storage() {
    let _alone = alone();
    for (layout, seed) in [(tiny(), 3), (tiny().hash_bits(4), 4), (tiny().cooling_percent(50), 5)] {
        let seed = times("ALLUVIUM_SEED", seed);
        run("log, inline", layout.into(), 256 * KIB, true, Helpers::Inline, seed);
    }
}

#[test]
fn in_a_hybrid_log_with_a_helper_thread() {
    let _alone = alone();
    run("log, thread", tiny().into(), 256 * KIB, true, Helpers::Thread, times("ALLUVIUM_SEED", 6));
}
