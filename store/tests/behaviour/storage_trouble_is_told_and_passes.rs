//! Storage that is late, full, stuck or failing: each call happens or fails with an error that
//! names file and place and changes nothing; what was readable stays readable; when the cause is
//! gone the store works, and what it then checkpoints is durable.
//!
//! What this catches: completions taken for another read's, buffers lost on errors, a page taken
//! for written that is not, a failed sync followed by one that succeeds and covers nothing, a
//! full disk filled further by files of failed checkpoints, old errors told again and again.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Dice, assert_equal, entries, patiently, tiny};
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Fault, Faults, Simulated};
use alluvium::{AnyLayout, Error, ErrorKind, Heap, KIB, Map, State, Store};

const MEMORY: u64 = 256 * KIB;
/// Keys of a history.
const KEYS: u64 = 1500;
/// Those of one whose small values would have room in memory otherwise: some are on storage only.
const KEYS_COLD: u64 = 2000;

fn layouts() -> [(&'static str, AnyLayout); 2] {
    [("heap", Heap::new().into()), ("tiny log", tiny().into())]
}

trait Value: State + PartialEq + std::fmt::Debug {
    fn new(n: u64) -> Self;
}

impl Value for u64 {
    fn new(n: u64) -> Self {
        n
    }
}

impl Value for Vec<String> {
    fn new(n: u64) -> Self {
        vec![format!("number {n}").repeat(n as usize % 5); n as usize % 4]
    }
}

fn open<V: Value>(
    device: &Simulated,
    layout: &AnyLayout,
    helpers: Helpers,
) -> (Store, Map<u64, V>) {
    let store = Store::in_memory()
        .memory(if matches!(layout, AnyLayout::Heap(_)) { 16 * MEMORY } else { MEMORY })
        .max_value(4 * KIB)
        .layout(layout.clone())
        .helpers(helpers)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let map = store.map("m").open().unwrap();
    (store, map)
}

/// Applies random calls to both; what fails must have changed nothing, and goes to `failed`.
struct Driver<V: Value> {
    store: Store,
    map: Map<u64, V>,
    model: BTreeMap<u64, V>,
    /// The model at each position a checkpoint was asked for; the first is the empty store.
    versions: Vec<BTreeMap<u64, V>>,
    /// The first version that a reopen may find: that of the last checkpoint that succeeded.
    committed: usize,
    dice: Dice,
}

impl<V: Value> Driver<V> {
    fn new(device: &Simulated, layout: &AnyLayout, helpers: Helpers, seed: u64) -> Self {
        let (store, map) = open(device, layout, helpers);
        store.checkpoint(0).unwrap();
        let versions = vec![BTreeMap::new()];
        Self { store, map, model: BTreeMap::new(), versions, committed: 0, dice: Dice(seed) }
    }

    fn call(&mut self, keys: u64) -> Result<(), Error> {
        let (key, n) = (self.dice.below(keys), self.dice.next() >> 32);
        let batch: Vec<u64> = (0..100).map(|_| self.dice.below(keys)).collect();
        match self.dice.below(40) {
            0..=13 => match self.map.put(key, V::new(n)) {
                Ok(known) => {
                    assert_eq!(known, self.model.insert(key, V::new(n)).is_some());
                }
                Err(rejected) => {
                    assert_eq!(rejected.value, (key, V::new(n)), "the value comes back");
                    return Err(rejected.error);
                }
            },
            14..=19 => {
                self.map.update(&key, || V::new(1), |value| *value = V::new(n))?;
                self.model.insert(key, V::new(n));
            }
            20..=24 => {
                let found = self.map.take(&key)?;
                assert_eq!(found, self.model.remove(&key));
            }
            25..=32 => assert_eq!(self.map.get(&key)?.as_deref(), self.model.get(&key)),
            33..=34 => {
                let done =
                    self.map.update_batch(&batch, |k| k, |_| V::new(1), |_, v| *v = V::new(n));
                let applied = done.as_ref().map_or_else(|error| error.applied, |()| batch.len());
                for key in &batch[..applied] {
                    self.model.insert(*key, V::new(n));
                }
                done?;
            }
            35..=36 => {
                let model = &self.model;
                self.map.read_batch(&batch, |k| k, |k, v| assert_eq!(v, model.get(k)))?;
            }
            37 => {
                let model = &self.model;
                let mut seen = 0;
                self.map.for_each(|key, value| {
                    assert_eq!(Some(value), model.get(key));
                    seen += 1;
                    Ok(())
                })?;
                assert_eq!(seen, model.len());
            }
            38 => drop(self.store.tick(50)?),
            _ if self.dice.below(4) == 0 => {
                self.versions.push(self.model.clone());
                self.store.checkpoint(self.versions.len() as u64 - 1)?;
                self.committed = self.versions.len() - 1;
            }
            _ => assert_eq!(self.map.len()?, self.model.len() as u64),
        }
        Ok(())
    }

    /// A crash now leaves the last checkpoint that succeeded, or one that failed since.
    fn assert_durable(&self, device: &Simulated, layout: &AnyLayout, when: &str) {
        for policy in [CrashPolicy::Nothing, CrashPolicy::Everything] {
            let image = device.crash(policy);
            let (store, mut map) = open::<V>(&image, layout, Helpers::Inline);
            let position = store.restored_position().expect("a checkpoint") as usize;
            let when = format!("{when}, {policy:?}: checkpoint {position}");
            assert!(position >= self.committed, "{when} of {}", self.committed);
            assert_equal(&mut map, &self.versions[position], &when);
        }
    }
}

/// Runs calls under `faults`, then without: at least `failures_min` calls fail, with one of `kinds`.
fn survive<V: Value>(
    name: &str,
    layout: &AnyLayout,
    faults: Faults,
    kinds: &[ErrorKind],
    failures_min: u64,
    keys: u64,
) {
    let seeds = if common::long() { 40 } else { 2 };
    for (seed, helpers) in (1..=seeds).flat_map(|s| [(s, Helpers::Inline), (s, Helpers::Thread)]) {
        println!("{name}, {layout:?}, seed {seed}, {helpers:?}");
        let device = Simulated::new(seed, Faults::none());
        let mut driver = Driver::<V>::new(&device, layout, helpers, seed);
        let mut failures = 0;
        for round in 0..4 {
            device.set_faults(faults);
            for _ in 0..400 {
                if let Err(error) = driver.call(keys) {
                    assert!(kinds.contains(&error.kind()), "{error:?}");
                    let named = error.context("state").is_some() || error.context("file").is_some();
                    assert!(named || error.message().contains("directory"), "{error:?}");
                    failures += 1;
                }
            }
            device.set_faults(Faults { latency_max: faults.latency_max, ..Faults::none() });
            device.drain();
            let when = format!("{name}, seed {seed}, round {round}");
            // Errors of background work that are still to be told are told once.
            if let Err(error) = driver.store.tick(10) {
                assert!(kinds.contains(&error.kind()), "{error:?}");
            }
            assert_equal(&mut driver.map, &driver.model, &when);
            driver.assert_durable(&device, layout, &when);
            driver.versions.push(driver.model.clone());
            let number = driver.versions.len() as u64 - 1;
            if let Err(error) = driver.store.checkpoint(number) {
                // The helper's thread had not told of its last failure when the store was ticked.
                assert!(kinds.contains(&error.kind()), "{error:?}");
                assert!(matches!(helpers, Helpers::Thread), "{error:?}");
                driver.store.checkpoint(number).unwrap();
            }
            driver.committed = driver.versions.len() - 1;
            driver.assert_durable(&device, layout, &when);
        }
        println!("{failures} calls failed");
        assert!(failures >= failures_min, "{failures}");
    }
}

/// Reads and writes end after many other calls, in another order.
#[test]
fn late_completions_change_no_answer() {
    for (name, layout) in layouts() {
        for latency_max in [2, 500] {
            survive::<u64>(name, &layout, Faults::late(latency_max), &[], 0, KEYS);
        }
    }
    survive::<Vec<String>>("owning", &tiny().into(), Faults::late(100), &[], 0, KEYS);
}

#[test]
fn failing_and_flipped_reads_are_told_and_pass() {
    let faults =
        Faults { latency_max: 5, read_errors: 0.05, flipped_reads: 0.05, ..Faults::none() };
    let kinds = [ErrorKind::Io, ErrorKind::Corrupt];
    for (name, layout) in &layouts()[1..] {
        survive::<u64>(name, layout, faults, &kinds, 10, KEYS_COLD);
    }
    survive::<Vec<String>>("owning", &tiny().into(), faults, &kinds, 10, KEYS);
}

#[test]
fn failing_writes_syncs_and_directories_are_told_and_pass() {
    let faults = Faults {
        latency_max: 3,
        write_errors: 0.1,
        sync_errors: 0.2,
        directory_errors: 0.05,
        ..Faults::none()
    };
    for (name, layout) in layouts() {
        survive::<u64>(name, &layout, faults, &[ErrorKind::Io], 3, KEYS);
    }
    survive::<Vec<String>>("owning", &tiny().into(), faults, &[ErrorKind::Io], 3, KEYS);
}

/// A flipped bit may lie beside the record; a lost read may leave the right bytes of an earlier one.
fn may_pass(fault: Fault) -> bool {
    matches!(fault, Fault::FlippedBit { .. } | Fault::Lost)
}

/// Each cold read of each kind of call fails once: the error names the file and the place, and
/// the same call succeeds when it is made again.
#[test]
fn a_read_error_names_the_place_and_the_call_can_be_made_again() {
    let layout: AnyLayout = tiny().page_records(32).segment(64 * KIB).into();
    let device = Simulated::new(9, Faults::none());
    let (store, mut map) = open::<u64>(&device, &layout, Helpers::Inline);
    let mut model = BTreeMap::new();
    for key in 0..5000 {
        map.put(key, key).unwrap();
        model.insert(key, key);
    }
    let cold: Vec<u64> = (0..5000).filter(|key| map.peek(key).unwrap().is_none()).collect();
    assert!(cold.len() > 900, "{} keys are cold", cold.len());
    let mut cold = cold.into_iter();
    type Call = fn(&mut Map<u64, u64>, &[u64]) -> Result<(), Error>;
    let calls: [(&str, Call); 8] = [
        ("get", |map, keys| map.get(&keys[0]).map(|found| assert_eq!(*found.unwrap(), keys[0]))),
        ("update", |map, keys| map.update(&keys[0], || 0, |value| assert_eq!(*value, keys[0]))),
        ("modify", |map, keys| map.modify(&keys[0], |_| ()).map(Option::unwrap)),
        ("put", |map, keys| {
            assert!(map.put(keys[0], keys[0])?);
            Ok(())
        }),
        ("take", |map, keys| {
            assert_eq!(map.take(&keys[0])?, Some(keys[0]));
            map.put(keys[0], keys[0])?;
            Ok(())
        }),
        ("read_batch", |map, keys| {
            Ok(map.read_batch(keys, |k| k, |key, value| assert_eq!(value, Some(key)))?)
        }),
        ("update_batch", |map, keys| {
            Ok(map.update_batch(keys, |k| k, |_| 0, |key, value| assert_eq!(value, key))?)
        }),
        ("scan", |map, _| {
            map.for_each(|key, value| {
                assert_eq!(key, value);
                Ok(())
            })
        }),
    ];
    let faults = [
        (Fault::Error, ErrorKind::Io),
        (Fault::FlippedBit { bit: 12345 }, ErrorKind::Corrupt),
        (Fault::Lost, ErrorKind::Corrupt),
        (Fault::Misdirected { offset: 0 }, ErrorKind::Corrupt),
    ];
    for (name, call) in calls {
        for nth in [1, 2, 5] {
            if nth > 1 && !name.ends_with("batch") && name != "scan" {
                continue;
            }
            for (fault, kind) in faults {
                let keys: Vec<u64> =
                    cold.by_ref().take(if name.ends_with("batch") { 30 } else { 1 }).collect();
                // Many bits are flipped, one by one, until it hurts.
                let mut told = None;
                for bit in 0..200 {
                    let fault = match fault {
                        Fault::FlippedBit { .. } => Fault::FlippedBit { bit: bit * 167 },
                        other => other,
                    };
                    device.on_nth_read(nth, fault);
                    match call(&mut map, &keys) {
                        Ok(()) => {
                            assert!(may_pass(fault), "{name} {fault:?}")
                        }
                        Err(error) => {
                            told = Some(error);
                            break;
                        }
                    }
                    if !matches!(name, "scan" | "get" | "read_batch") {
                        break; // The keys are in memory now.
                    }
                }
                let Some(error) = told else {
                    assert!(may_pass(fault), "{name}: {fault:?}");
                    continue;
                };
                assert_eq!(error.kind(), kind, "{name}: {error:?}");
                assert!(error.context("file").unwrap().starts_with("seg-"), "{name}: {error:?}");
                let place: u64 = error.context("offset").unwrap().parse().unwrap();
                assert!(place > 0, "{name}: {error:?}");
                call(&mut map, &keys).unwrap_or_else(|e| panic!("{name} again: {e}"));
            }
        }
    }
    assert_equal(&mut map, &model, "after all");
    store.checkpoint(1).unwrap();
    drop((store, map));
    let (_store, mut map) = open::<u64>(&device, &layout, Helpers::Inline);
    assert_equal(&mut map, &model, "reopened");
}

/// Writes over known keys until the disk is full, a few times.
fn full_disk_while_flushing<V: Value>(layout: &AnyLayout) {
    for helpers in [Helpers::Inline, Helpers::Thread] {
        let device = Simulated::new(2, Faults::none());
        let (store, mut map) = open::<V>(&device, layout, helpers);
        let mut model = BTreeMap::new();
        for key in 0..4000 {
            map.put(key, V::new(key)).unwrap();
            model.insert(key, V::new(key));
        }
        let mut n = 0;
        for round in 0..3 {
            device.set_capacity_bytes(Some(device.used_bytes() / 2 + 20 * KIB * round));
            let rejected = loop {
                n += 1;
                match map.put(n * 7 % 4000, V::new(n)) {
                    Ok(_) => drop(model.insert(n * 7 % 4000, V::new(n))),
                    Err(rejected) => break rejected,
                }
                assert!(n < 200_000, "the disk is not full");
            };
            assert_eq!(rejected.error.kind(), ErrorKind::DiskFull, "{:?}", rejected.error);
            assert!(rejected.error.context("file").is_some(), "{:?}", rejected.error);
            assert_eq!(rejected.value, (n * 7 % 4000, V::new(n)));
            // Nothing is lost and everything can be read, again and again.
            for _ in 0..2 {
                // Known limitation: a value that owns heap may need a page's memory to be read into.
                let lacks_room = |error: &Error| !V::NO_HEAP && error.kind() == ErrorKind::DiskFull;
                match entries(&mut map) {
                    Ok(found) => assert_eq!(found, model, "round {round}, full"),
                    Err(error) => assert!(lacks_room(&error), "{error:?}"),
                }
                for (key, value) in &model {
                    match map.get(key) {
                        Ok(found) => assert_eq!(found.as_deref(), Some(value), "round {round}"),
                        Err(error) => assert!(lacks_room(&error), "{error:?}"),
                    }
                }
            }
            for key in (0..4000).step_by(70) {
                match map.take(&key) {
                    Ok(found) => assert_eq!(found, model.remove(&key)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::DiskFull, "{error:?}"),
                }
            }
            // Tables and the buffers of a scan are booked whether they fit or not.
            let peak = store.stats().unwrap().memory.peak;
            assert!(peak <= MEMORY + 8 * KIB, "{peak} of {MEMORY}");
            device.set_capacity_bytes(None);
            // At most one call is told of what failed before; a thread may be at one more page.
            let _ = store.tick(10);
            let mut late = 0;
            for _ in 0..500 {
                n += 1;
                while let Err(rejected) = map.put(n % 4000, V::new(n)) {
                    late += 1;
                    let error = rejected.error;
                    let is_full = error.kind() == ErrorKind::DiskFull;
                    assert!(helpers == Helpers::Thread && late == 1 && is_full, "{error:?}");
                }
                model.insert(n % 4000, V::new(n));
            }
            assert_equal(&mut map, &model, &format!("round {round}, space is back"));
        }
        store.checkpoint(1).unwrap();
        let (_store, mut map) = open::<V>(&device.crash(CrashPolicy::Nothing), layout, helpers);
        assert_equal(&mut map, &model, "reopened");
    }
}

#[test]
fn a_full_disk_while_pages_are_written_loses_nothing() {
    full_disk_while_flushing::<u64>(&tiny().into());
}

#[test]
fn a_full_disk_while_values_that_own_heap_are_written_loses_nothing() {
    full_disk_while_flushing::<Vec<String>>(&tiny().into());
}

/// Space for ever more of a checkpoint: each that does not fit leaves the old one, and no more
/// bytes on the disk than before once it is given up.
#[test]
fn a_full_disk_during_a_checkpoint_leaves_the_old_one() {
    for (name, layout) in layouts() {
        let device = Simulated::new(3, Faults::none());
        let (store, mut map) = open::<u64>(&device, &layout, Helpers::Inline);
        let mut model = BTreeMap::new();
        for key in 0..600 {
            map.put(key, key).unwrap();
            model.insert(key, key);
        }
        store.checkpoint(1).unwrap();
        let old = model.clone();
        for key in 0..600 {
            if key % 3 == 0 {
                map.remove(&key).unwrap();
                model.remove(&key);
            } else {
                map.put(key, key + 1).unwrap();
                model.insert(key, key + 1);
            }
        }
        let mut refused = 0;
        let base = device.used_bytes();
        let mut space = 0;
        loop {
            device.set_capacity_bytes(Some(base + space));
            match store.checkpoint(2) {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind(), ErrorKind::DiskFull, "{name}: {error:?}"),
            }
            refused += 1;
            assert_equal(&mut map, &model, &format!("{name}, {space} bytes"));
            for policy in [CrashPolicy::Nothing, CrashPolicy::Everything] {
                let (store, mut map) = open(&device.crash(policy), &layout, Helpers::Inline);
                assert_eq!(store.restored_position(), Some(1), "{name}, {policy:?}");
                assert_equal(&mut map, &old, &format!("{name}, {space} bytes, {policy:?}"));
            }
            if name == "heap" {
                assert_eq!(device.used_bytes(), base, "what failed fills the disk");
            }
            space += match (common::long(), name) {
                (true, _) => 512,
                (false, "heap") => 4096,
                (false, _) => 16 * KIB,
            };
            assert!(space < 1 << 20, "{name}: no space is enough");
        }
        println!("{name}: {refused} checkpoints were refused");
        assert!(refused >= 2, "{name}: {refused}");
        drop((store, map));
        let (store, mut map) = open(&device.crash(CrashPolicy::Nothing), &layout, Helpers::Inline);
        assert_eq!(store.restored_position(), Some(2), "{name}");
        assert_equal(&mut map, &model, name);
    }
}

/// A sync that failed covers nothing, and one after it does not make up for it.
#[test]
fn a_failed_sync_is_not_forgotten() {
    for (name, layout) in layouts() {
        for nth in 1..8 {
            let device = Simulated::new(nth, Faults::none());
            let (store, mut map) = open::<u64>(&device, &layout, Helpers::Inline);
            let mut model = BTreeMap::new();
            for key in 0..2000 {
                map.put(key, key).unwrap();
                model.insert(key, key);
            }
            store.checkpoint(1).unwrap();
            device.on_nth_sync(nth, Fault::Error);
            for key in 0..400 {
                // A sync may also be that of a segment that is full.
                while map.put(key, key + 1).is_err() {}
                model.insert(key, key + 1);
            }
            let mut tries = 0;
            while let Err(error) = store.checkpoint(2) {
                assert_eq!(error.kind(), ErrorKind::Io, "{name}: {error:?}");
                tries += 1;
                assert!(tries < 3, "{name}: {error:?}");
            }
            let image = device.crash(CrashPolicy::Nothing);
            let (store, mut map) = open::<u64>(&image, &layout, Helpers::Inline);
            assert_eq!(store.restored_position(), Some(2));
            assert_equal(&mut map, &model, &format!("{name}, sync {nth}, {tries} failed"));
        }
    }
}

/// A write that does not end: memory takes what it can, then calls wait for it.
#[test]
fn a_stuck_write_holds_calls_up_until_it_ends() {
    let device = Simulated::new(4, Faults::none());
    let (store, mut map) = open::<u64>(&device, &tiny().into(), Helpers::Thread);
    let mut model = BTreeMap::new();
    for key in 0..500 {
        map.put(key, key).unwrap();
        model.insert(key, key);
    }
    let stalls = || store.stats().unwrap().total().stalls;
    let mut calls = 0;
    // A caller that has no core for so long does not come to wait: then once more.
    for _ in 0..20 {
        device.on_nth_write(1, Fault::Stuck);
        let freed = device.clone();
        let other = std::thread::spawn(move || {
            // Only once a write is stuck and the caller is likely to wait for it.
            while freed.stuck() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(200));
            freed.release_stuck();
            freed.drain();
        });
        let end = calls + 6000;
        while !other.is_finished() || calls < end {
            map.put(calls % 3000, calls).unwrap();
            model.insert(calls % 3000, calls);
            calls += 1;
        }
        other.join().unwrap();
        if stalls() > 0 {
            break;
        }
    }
    assert!(stalls() > 0);
    let peak = store.stats().unwrap().memory.peak;
    assert!(peak <= MEMORY + 8 * KIB, "{peak} of {MEMORY}");
    assert_equal(&mut map, &model, "after the wait");
}

/// The same for longer than a call waits: it fails, nothing is lost, and it works again.
#[test]
fn storage_that_does_not_answer_is_backpressure() {
    let device = Simulated::new(4, Faults::none());
    let layout = "kind = 'hybrid-log'\npage-records = 8\nsegment = '16KiB'\nqueue-depth = 4\npatience-ms = 300";
    let layout: AnyLayout = toml::from_str(layout).unwrap();
    let same = tiny().patience(Duration::from_millis(300));
    assert_eq!(layout, AnyLayout::from(same));
    let (store, mut map) = open::<u64>(&device, &layout, Helpers::Thread);
    let mut model = BTreeMap::new();
    device.on_nth_write(1, Fault::Stuck);
    let mut key = 0;
    let (rejected, waited) = loop {
        let start = Instant::now();
        match map.put(key % 4000, key) {
            Ok(_) => drop(model.insert(key % 4000, key)),
            Err(rejected) => break (rejected, start.elapsed()),
        }
        key += 1;
    };
    assert!(waited >= Duration::from_millis(300) && waited < Duration::from_secs(60), "{waited:?}");
    assert!(rejected.error.to_string().contains("for 300ms"), "{:?}", rejected.error);
    assert_eq!(rejected.error.kind(), ErrorKind::Backpressure, "{:?}", rejected.error);
    assert_eq!(rejected.value, (key % 4000, key));
    assert!(store.stats().unwrap().memory.peak <= MEMORY + 8 * KIB);
    assert_equal(&mut map, &model, "while storage does not answer");
    device.release_stuck();
    device.drain();
    for key in key..key + 3000 {
        patiently(|| map.put(key % 4000, key).map_err(|rejected| rejected.error));
        model.insert(key % 4000, key);
    }
    assert_equal(&mut map, &model, "storage answers");
    patiently(|| store.checkpoint(1));
}

/// A heap state meets storage only at checkpoints: nothing else may notice.
#[test]
fn a_dead_device_leaves_heap_state_usable() {
    let device = Simulated::new(6, Faults::none());
    let (store, mut map) = open::<u64>(&device, &Heap::new().into(), Helpers::Inline);
    map.put(1, 1).unwrap();
    device.fail_after(0);
    assert_eq!(store.checkpoint(1).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(store.checkpoint(2).unwrap_err().kind(), ErrorKind::Io);
    map.put(2, 2).unwrap();
    assert_eq!(entries(&mut map).unwrap(), [(1, 1), (2, 2)].into());
}
