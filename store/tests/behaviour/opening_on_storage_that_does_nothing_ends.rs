//! A device that does not end a read while a store is opened, or its states are, from its own directory or from
//! others', or while states are exported and sorted through files: the call ends with `Backpressure` that
//! names the file, nothing is removed, and a second try, in a new store, has all there was.
//!
//! What this catches: a wait without an end; a checkpoint that is taken for unreadable, or for none, since its
//! file was not read in time; memory that the device still has and nobody books; files of an export that
//! stay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium::moving::Source;
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AppendLog, Counting, Error, ErrorKind, Heap, KIB, List, MIB, Map, Result, Store,
    Time, Timers, WindowSegments, Windows,
};

use crate::common::watchdog::Watchdog;
use crate::common::{self, assert_equal, patiently, unless_stuck};

/// Also how long writing may take: longer than it does on a busy machine.
const PATIENCE: Duration = Duration::from_millis(60);
const KEYS: u64 = 100;

struct States {
    store: Store,
    heap: Map<u64, u64>,
    log: Map<u64, Vec<u8>>,
    list: List<u64, u64>,
    windows: Aggregated<u64, u64, Counting>,
    timers: Timers<u64>,
}

fn open_store(device: &Simulated, sources: &[Simulated]) -> Result<Store> {
    let mut builder = Store::in_memory()
        .memory(4 * MIB)
        .max_value(KIB)
        .helpers(Helpers::Thread)
        .patience(PATIENCE)
        .device(Arc::new(device.clone()));
    if !sources.is_empty() {
        let source = |device: &Simulated| Source::device(Arc::new(device.clone()));
        builder = builder.restore_from(sources.iter().map(source));
    }
    builder.open()
}

fn open_states(store: Store) -> Result<States> {
    // What a layout is configured to wait is for its own calls.
    let log = common::tiny().memory(256 * KIB);
    let append = AppendLog::new().memory(400 * KIB);
    let segments = WindowSegments::new().memory(400 * KIB);
    let windows = store.aggregated("windows").layout(segments.into());
    Ok(States {
        heap: store.map("heap").layout(Heap::new().into()).open()?,
        log: store.map("log").layout(log.into()).open()?,
        list: store.list("list").layout(append.into()).open()?,
        windows: windows.open(Windows::tumbling(nanos(10)), Counting)?,
        timers: store.timers("timers")?,
        store,
    })
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; 900]
}

/// Changes some in each of two rounds, so that checkpoints have sets of live records and lists of deaths.
fn write(device: &Simulated) {
    let mut states = open_states(open_store(device, &[]).unwrap()).unwrap();
    for round in 0..2 {
        for key in 0..KEYS {
            states.heap.put(key, key + round).unwrap();
            let is_due = round == 0 || key % 3 == 0;
            while is_due && states.log.put(key, value(key + round)).is_err() {}
            while states.list.append(&key, key + round).is_err() {}
            if round == 0 {
                states.timers.set(key, Time(key as i64)).unwrap();
            }
            let mut event = vec![(key, Time(5), key)];
            let never = &mut |late| panic!("{late:?} is late");
            while !event.is_empty() {
                let _busy =
                    states.windows.add_batch(Time(0), &mut event, never, &mut |_, _, _, _| ());
            }
        }
        while let Err(error) = states.store.checkpoint(round + 1) {
            assert_eq!(error.kind(), ErrorKind::Backpressure, "{error:?}");
        }
    }
    patiently(|| states.store.clone().close());
    drop(states);
    drop(when_free(|| device.lock()).unwrap());
}

impl States {
    fn check(mut self, when: &str) {
        let heap: BTreeMap<_, _> = (0..KEYS).map(|key| (key, key + 1)).collect();
        assert_equal(&mut self.heap, &heap, when);
        let log = (0..KEYS).map(|key| (key, value(key + u64::from(key % 3 == 0))));
        assert_equal(&mut self.log, &log.collect::<BTreeMap<_, _>>(), when);
        for key in 0..KEYS {
            assert_eq!(self.list.to_vec(&key).unwrap(), [key, key + 1], "{when}");
        }
        assert_eq!(self.timers.len(), KEYS, "{when}");
        let mut counts = BTreeMap::new();
        let mut count = |key: &u64, _, count: i64, _| {
            counts.insert(*key, count);
        };
        while !self.windows.advance(Time(100), 1000, &mut count).unwrap().done {}
        assert_eq!(counts, (0..KEYS).map(|key| (key, 2)).collect(), "{when}");
    }
}

fn names(device: &Simulated) -> Vec<String> {
    let mut names = device.list().unwrap();
    names.sort_unstable();
    names
}

fn assert_names_a_file(error: &Error, names: &[String], when: &str) {
    assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}");
    let file = error.context("file").unwrap_or_else(|| panic!("{when}: {error:?}"));
    assert!(names.iter().any(|name| name == file), "{when}: {error:?}");
}

/// Opens again: the lock is held until the helper of the store that could not be opened, or was left alone
/// when it was closed, has ended.
fn when_free<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match open() {
            Err(error) if error.kind() == ErrorKind::Locked => std::thread::yield_now(),
            opened => return opened,
        }
    }
}

/// Opens all at a device whose `nth` read does not end; says whether it has so many.
fn open_with_stuck(written: &Simulated, nth: u64, from: Option<&Simulated>) -> bool {
    let when = format!("read {nth}, {}", if from.is_some() { "from others" } else { "own" });
    let device = written.crash(CrashPolicy::Everything);
    let stuck = from.map_or_else(|| device.clone(), |from| from.crash(CrashPolicy::Everything));
    let sources: Vec<_> = from.map(|_| stuck.clone()).into_iter().collect();
    let before = names(&stuck);
    let _watchdog = Watchdog::of(&stuck, &when);
    stuck.on_nth_read(nth, Fault::Stuck);
    match open_store(&device, &sources).and_then(open_states) {
        // What a state reads ahead without waiting may be what is stuck.
        Ok(_) if stuck.stuck() == 0 => return false,
        Ok(states) => {
            stuck.release_stuck();
            stuck.drain();
            states.check(&when);
            return true;
        }
        Err(error) => assert_names_a_file(&error, &before, &when),
    }
    assert_eq!(names(&stuck), before, "{when}");
    stuck.release_stuck();
    stuck.drain();
    let found = when_free(|| open_store(&device, &sources).and_then(open_states));
    found.unwrap_or_else(|error| panic!("{when}: {error:?}")).check(&when);
    true
}

/// All of the first, which are of the most kinds, and some of those of the states.
fn next_after(read: u64) -> u64 {
    if read < 12 { 1 } else { 3 }
}

#[test]
fn a_store_and_its_states() {
    let device = Simulated::new(1, Faults::none());
    write(&device);
    let mut reads = 1;
    while open_with_stuck(&device, reads, None) {
        reads += next_after(reads);
    }
    println!("{reads} reads");
    assert!(reads > 20, "{reads} reads");
}

#[test]
fn a_store_that_is_restored_from_others() {
    let device = Simulated::new(1, Faults::none());
    write(&device);
    let empty = Simulated::new(2, Faults::none());
    let mut reads = 1;
    while open_with_stuck(&empty, reads, Some(&device)) {
        reads += next_after(reads);
    }
    println!("{reads} reads");
    assert!(reads > 10, "{reads} reads");
}

/// A checkpoint whose file does not come in time is neither lost nor the sign of a directory without any.
#[test]
fn a_directory_that_has_lost_its_manifest_is_not_taken_for_a_new_one() {
    let device = Simulated::new(1, Faults::none());
    write(&device);
    device.remove(alluvium_pagestore::MANIFEST).unwrap();
    let before = names(&device);
    let _watchdog = Watchdog::of(&device, "no manifest");
    device.on_nth_read(1, Fault::Stuck);
    let error = open_store(&device, &[]).map(drop).unwrap_err();
    assert_names_a_file(&error, &before, "no manifest");
    device.release_stuck();
    device.drain();
    assert_eq!(names(&device), before);
    let error = when_free(|| open_store(&device, &[])).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
}

/// Of a store that stays open the memory of a read that was given up is booked until it ends.
#[test]
fn a_state_that_could_not_be_opened_is_opened_again() {
    let device = Simulated::new(1, Faults::none());
    write(&device);
    let _watchdog = Watchdog::of(&device, "again");
    let store = open_store(&device, &[]).unwrap();
    let open = || -> Result<Map<u64, u64>> { store.map("heap").layout(Heap::new().into()).open() };
    let before = store.stats().unwrap().memory;
    device.on_nth_read(1, Fault::Stuck);
    let error = open().unwrap_err();
    assert_names_a_file(&error, &names(&device), "heap");
    assert_eq!(error.context("state"), Some("heap"), "{error:?}");
    assert!(store.stats().unwrap().memory.used > before.used);
    assert_eq!(open().unwrap_err().kind(), ErrorKind::Backpressure);
    device.release_stuck();
    store.tick(1).unwrap();
    assert_eq!(store.stats().unwrap().memory.used, before.used);
    assert_eq!(open().unwrap().len().unwrap(), KEYS);
}

#[test]
fn an_export_that_is_sorted_through_files() {
    let device = Simulated::new(1, Faults::none());
    let store = Store::in_memory()
        .memory(2 * MIB)
        .max_value(KIB)
        .helpers(Helpers::Thread)
        .patience(PATIENCE)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let layout = common::tiny().memory(512 * KIB).patience(PATIENCE);
    let mut map: Map<u64, Vec<u8>> = store.map("map").layout(layout.into()).open().unwrap();
    for key in 0..2000 {
        while map.put(key, value(key)).is_err() {}
    }
    while store.checkpoint(1).is_err() {}
    let export = || {
        let mut out = Vec::new();
        store.export(&mut out).map(|_| out)
    };
    let expected = unless_stuck(&device, export).unwrap();
    let _watchdog = Watchdog::of(&device, "export");
    let (mut reads, mut writes) = (0, 0);
    for nth in (1..).step_by(7) {
        let (before, memory) = (names(&device), store.stats().unwrap().memory.used);
        for is_write in [false, true] {
            let when = format!("{} {nth}", if is_write { "write" } else { "read" });
            match is_write {
                true => device.on_nth_write(nth, Fault::Stuck),
                false => device.on_nth_read(nth, Fault::Stuck),
            }
            let done = unless_stuck(&device, export);
            if device.stuck() > 0 {
                let error = done.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}");
                if is_write {
                    writes += 1
                } else {
                    reads += 1
                }
                assert!(store.stats().unwrap().memory.used <= 2 * MIB, "{when}");
                assert_eq!(map.len().unwrap(), 2000, "{when}");
            } else {
                assert!(done.unwrap() == expected, "{when}");
            }
            device.forget_scripts();
            device.release_stuck();
            device.drain();
        }
        assert!(unless_stuck(&device, export).unwrap() == expected, "{nth}");
        store.tick(1).unwrap();
        assert!(store.stats().unwrap().memory.used <= memory + 64 * KIB, "{nth}");
        // The helper removes what is of no use.
        while names(&device).len() > before.len() {
            store.tick(1).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        if nth > 40 {
            break;
        }
    }
    println!("{reads} reads, {writes} writes");
    assert!(reads > 2 && writes > 2, "{reads} reads, {writes} writes");
}
