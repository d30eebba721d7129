//! A device that does not end a read: the call that needs it ends with `Backpressure`, and has changed
//! nothing; others go on; memory stays within its bound; and when the device goes on, so does all.
//!
//! What this catches: a wait without an end, a buffer that is given to another read while the device may
//! write to it, or is lost, or not counted; the end of a read that was left, taken for that of another; a call that
//! has half of its effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium::config::Helpers;
use alluvium::io::{Device, Fault, Faults, Simulated};
use alluvium::stats::MemoryKind;
use alluvium::{ErrorKind, KIB, MIB, Map, Result, Store};

use crate::common::watchdog::Watchdog;
use crate::common::{self, patiently, unless_stuck};

/// Also how long a write may take: longer than it does on a busy machine.
const PATIENCE: Duration = Duration::from_millis(300);
const KEYS: u64 = 3000;
const MEMORY: u64 = 4 * MIB;
const LOG: u64 = 256 * KIB;

struct States {
    store: Store,
    map: Map<u64, Vec<u8>>,
    model: BTreeMap<u64, Vec<u8>>,
}

/// Values of up to two blocks: of the longest a part is read first, and then the rest.
fn value(key: u64, round: u64) -> Vec<u8> {
    let length = if key.is_multiple_of(40) { 7000 } else { key % 120 };
    vec![(key + round) as u8; length as usize]
}

fn open(device: &Simulated) -> States {
    let store = Store::in_memory()
        .memory(MEMORY)
        .max_value(8 * KIB)
        .helpers(Helpers::Thread)
        .patience(PATIENCE)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let log = common::tiny().memory(LOG).patience(PATIENCE);
    let mut map = store.map("map").layout(log.into()).open().unwrap();
    let mut model = BTreeMap::new();
    for key in 0..KEYS {
        // The storage may be slower than its patience where a machine is busy.
        while map.put(key, value(key, 0)).map_err(|r| assert_waits(&r.error)).is_err() {}
        model.insert(key, value(key, 0));
    }
    States { store, map, model }
}

fn assert_waits(error: &alluvium::Error) {
    assert_eq!(error.kind(), ErrorKind::Backpressure, "{error:?}");
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Get,
    Update,
    Take,
    Remove,
    UpdateBatch,
    Visit,
}

impl States {
    /// Makes the call for some keys, which must have no effect if it fails, or that of those before it.
    fn make(&mut self, call: Call, keys: &[u64], round: u64) -> Result<()> {
        let Self { map, model, .. } = self;
        if let Call::UpdateBatch = call {
            let change = |key: &u64, value: &mut Vec<u8>| *value = self::value(*key, round);
            let done = map.update_batch(keys, |key| key, |_| Vec::new(), change);
            let applied = done.as_ref().err().map_or(keys.len(), |error| error.applied);
            for key in &keys[..applied] {
                model.insert(*key, value(*key, round));
            }
            return done.map_err(|error| error.error);
        }
        if let Call::Visit = call {
            let mut seen = BTreeMap::new();
            map.for_each(|key, value| {
                assert!(seen.insert(*key, value.clone()).is_none(), "{key} twice");
                Ok(())
            })?;
            assert!(seen == *model, "what was visited");
            return Ok(());
        }
        for key in keys {
            match call {
                Call::Get => {
                    assert_eq!(map.get(key)?.as_deref(), model.get(key), "{key}");
                }
                Call::Update => {
                    map.update(key, Vec::new, |now| *now = value(*key, round))?;
                    model.insert(*key, value(*key, round));
                }
                Call::Take => {
                    assert_eq!(map.take(key)?, model.get(key).cloned(), "{key}");
                    model.remove(key);
                }
                Call::Remove => {
                    assert_eq!(map.remove(key)?, model.contains_key(key), "{key}");
                    model.remove(key);
                }
                Call::UpdateBatch | Call::Visit => unreachable!("made above"),
            }
        }
        Ok(())
    }

    fn stalls(&self) -> u64 {
        self.map.stats().unwrap().stalls
    }

    /// All entries and each key agree with the model. A read may wait for a page that the helper writes.
    fn check_all(&mut self, when: &str) {
        assert_eq!(self.map.len().unwrap(), self.model.len() as u64, "{when}");
        patiently(|| self.make(Call::Visit, &[], 0));
        for key in 0..KEYS {
            patiently(|| self.make(Call::Get, &[key], 0));
        }
    }

    fn check_memory(&self, when: &str) {
        let stats = self.store.stats().unwrap();
        let log = &stats.states[0].memory;
        assert!(log.peak <= LOG && stats.memory.peak <= MEMORY, "{when}: {stats:?}");
    }
}

#[test]
fn a_read_that_does_not_end_is_left_and_all_goes_on() {
    let mut left = 0;
    for call in [Call::Get, Call::Update, Call::Take, Call::Remove, Call::UpdateBatch, Call::Visit]
    {
        let device = Simulated::new(call as u64, Faults::none());
        let mut states = open(&device);
        for nth in 1..=6 {
            let when = format!("{call:?}, read {nth}");
            let _watchdog = Watchdog::of(&device, &when);
            // Long records among them.
            let keys: Vec<_> = (0..60).map(|n| (nth * 331 + n * 20) % KEYS).collect();
            device.on_nth_read(nth, Fault::Stuck);
            // It may also wait for a page that the helper writes.
            let done = unless_stuck(&device, || states.make(call, &keys, nth));
            let is_left = device.stuck() > 0;
            // What a batch has not got with others it reads again by itself.
            let is_batch = matches!(call, Call::UpdateBatch);
            assert!(done.is_err() == is_left || is_batch && is_left, "{when}: {done:?}");
            device.forget_scripts();
            if let Err(error) = done {
                assert_waits(&error);
                left += 1;
                // Others are read meanwhile, with the buffers that are left; of the long ones one at a time.
                let others: Vec<_> = (0..40).map(|n| (nth * 17 + 1 + 41 * n) % KEYS).collect();
                let short: Vec<_> = others.into_iter().filter(|key| key % 40 > 0).collect();
                patiently(|| states.make(Call::Get, &short, 0));
                assert!(device.stuck() > 0, "{when}");
            }
            device.release_stuck();
            patiently(|| states.make(call, &keys, nth + 100));
            states.check_memory(&when);
        }
        device.release_stuck();
        states.check_all(&format!("{call:?}"));
    }
    assert!(left > 20, "{left} reads were left");
}

#[test]
fn reads_that_take_all_buffers_with_them_give_them_back() {
    let device = Simulated::new(7, Faults::none());
    let mut states = open(&device);
    for round in 0..3 {
        let when = format!("round {round}");
        let _watchdog = Watchdog::of(&device, &when);
        let (mut failed, mut key) = (0, 0);
        // There are four buffers; whoever finds none waits for one.
        while failed < 8 {
            key = (key + 7) % KEYS;
            device.on_nth_read(1, Fault::Stuck);
            match states.make(Call::Get, &[key], 0) {
                Ok(()) => {}
                Err(error) => {
                    assert_waits(&error);
                    failed += 1;
                }
            }
            device.forget_scripts();
        }
        assert!((1..=5).contains(&device.stuck()), "{when}: {} are stuck", device.stuck());
        // All that a call may do beside reading still works, and it does not read for ever.
        assert_waits(&states.make(Call::Visit, &[], 0).unwrap_err());
        states.check_memory(&when);
        device.release_stuck();
        states.check_all(&when);
        states.check_memory(&when);
    }
}

/// A record that is read for the second time is to move to memory. If it does not come the call ends: it
/// neither reads again nor has waited for room before.
#[test]
fn a_second_read_of_a_record_waits_once() {
    let device = Simulated::new(8, Faults::none());
    let mut states = open(&device);
    let _watchdog = Watchdog::of(&device, "second reads");
    let reads = || device.stats().reads;
    let mut ended = 0;
    for key in (1..KEYS).step_by(97).filter(|key| key % 40 > 0) {
        let before = reads();
        patiently(|| states.make(Call::Get, &[key], 0));
        if reads() == before {
            continue;
        }
        // What the last call has read is at hand; another record's read takes its place.
        while states.make(Call::Get, &[(key + 1500) % KEYS], 0).is_err() {}
        let before = (reads(), states.stalls());
        device.on_nth_read(1, Fault::Stuck);
        let got = states.make(Call::Get, &[key], 0);
        if device.stuck() > 0 {
            assert_waits(&got.unwrap_err());
            assert_eq!((reads(), states.stalls()), before, "{key}");
            ended += 1;
        }
        device.forget_scripts();
        device.release_stuck();
        patiently(|| states.make(Call::Get, &[key], 0));
    }
    assert!(ended > 10, "{ended} ended");
    states.check_memory("second reads");
}

/// All records are visited in the order of storage, many with a read. What a pass that was given up has read
/// into stays booked until its reads end.
#[test]
fn a_pass_over_all_segments_is_left_with_its_memory() {
    let device = Simulated::new(9, Faults::none());
    let store = Store::in_memory()
        .memory(8 * MIB)
        .max_value(4 * KIB)
        .helpers(Helpers::Thread)
        .patience(PATIENCE)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let layout = common::tiny().memory(2 * MIB).patience(PATIENCE);
    let mut map: Map<u64, Vec<u8>> = store.map("map").layout(layout.into()).open().unwrap();
    let mut model = BTreeMap::new();
    for key in 0..8000 {
        let value = vec![key as u8; 600];
        while map.put(key, value.clone()).map_err(|r| assert_waits(&r.error)).is_err() {}
        model.insert(key, value);
    }
    while let Err(error) = store.checkpoint(1) {
        assert_waits(&error);
    }
    let mut visit = || {
        let mut seen = 0;
        map.for_each(|key, value| {
            assert_eq!(model.get(key), Some(value), "{key}");
            seen += 1;
            Ok(())
        })
        .map(|()| seen)
    };
    assert_eq!(visit().unwrap(), 8000);
    let buffers = || {
        let stats = store.stats().unwrap();
        assert!(stats.memory.peak <= 8 * MIB, "{stats:?}");
        stats.states[0].memory.by_kind[MemoryKind::Buffers as usize]
    };
    let before = buffers();
    for nth in 1..=8 {
        let when = format!("read {nth}");
        let _watchdog = Watchdog::of(&device, &when);
        device.on_nth_read(nth * 5, Fault::Stuck);
        let error = visit().unwrap_err();
        assert_waits(&error);
        assert!(error.context("file").is_some(), "{when}: {error:?}");
        assert!(buffers() > before, "{when}");
        assert_waits(&visit().unwrap_err());
        device.forget_scripts();
        device.release_stuck();
        assert_eq!(visit().unwrap(), 8000, "{when}");
        store.tick(1).unwrap();
        assert_eq!(buffers(), before, "{when}");
    }
}
