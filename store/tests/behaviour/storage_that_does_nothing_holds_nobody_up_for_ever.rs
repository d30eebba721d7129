//! A device that stops answering while a checkpoint is sealed, confirmed or given up, at each write
//! and sync there is: calls end, with an error that says so, states can be used meanwhile, nothing is
//! lost, and all goes on when the device does.
//!
//! What this catches: a wait without an end, files of an attempt that stay, a manifest that goes back, a
//! checkpoint that cannot be taken any more after one that was given up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium::io::{CrashPolicy, Fault, Faults, Simulated};
use alluvium::{AppendLog, ErrorKind, Heap, Helpers, KIB, List, MIB, Map, Result, Seal, Store};

use crate::common::{self, assert_equal};

/// How long a device may do nothing.
const PATIENCE: Duration = Duration::from_millis(60);

/// Longer than anything takes that does end.
const FOR_EVER: Duration = Duration::from_secs(60);

struct States {
    store: Store,
    heap: Map<u64, u64>,
    log: Map<u64, u64>,
    list: List<u64, u64>,
    model: BTreeMap<u64, u64>,
}

fn open(device: &Simulated, helpers: Helpers) -> States {
    let store = Store::in_memory()
        .memory(4 * MIB)
        .max_value(KIB)
        .helpers(helpers)
        .patience(PATIENCE)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let log = common::tiny().memory(256 * KIB).patience(PATIENCE);
    let append = AppendLog::new().memory(400 * KIB);
    let mut states = States {
        heap: store.map("heap").layout(Heap::new().into()).open().unwrap(),
        log: store.map("log").layout(log.into()).open().unwrap(),
        list: store.list("list").layout(append.into()).open().unwrap(),
        model: BTreeMap::new(),
        store,
    };
    states.model = common::entries(&mut states.heap).unwrap();
    states
}

impl States {
    fn put(&mut self, round: u64) {
        for key in 0..60 {
            self.heap.put(key, round).unwrap();
            self.log.put(key, round).unwrap();
            self.list.append(&key, round).unwrap();
            self.model.insert(key, round);
        }
    }

    /// Takes a checkpoint, however long the device, or a thread, lets it wait.
    fn take(&mut self, position: u64, when: &str) {
        let since = Instant::now();
        let mut seal = loop {
            // What a frame waits for may take longer than the patience.
            match self.store.seal(position) {
                Ok(seal) => break seal,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}")
                }
            }
            assert!(since.elapsed() < FOR_EVER, "{when}");
        };
        while seal.confirm_some().unwrap_or_else(|error| panic!("{when}: {error:?}")).is_none() {
            assert!(since.elapsed() < FOR_EVER, "{when}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// All states agree; each list has the rounds up to the last.
    fn check(&mut self, rounds: &[u64], when: &str) {
        assert_equal(&mut self.heap, &self.model, when);
        assert_equal(&mut self.log, &self.model, when);
        for key in 0..60 {
            assert_eq!(self.list.to_vec(&key).unwrap(), rounds, "{when}");
        }
    }
}

/// What is done with a checkpoint that a device holds up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// It is waited for, and given up by the call that waits.
    Confirm,
    /// It is dropped.
    GiveUp,
    /// The stream goes on until the device does.
    GoOn,
}

/// Advances it until it is confirmed or the device is stuck.
fn until_stuck(device: &Simulated, seal: &mut Seal, states: &mut States) -> Result<bool> {
    let since = Instant::now();
    loop {
        if seal.confirm_some()?.is_some() {
            return Ok(true);
        }
        if device.stuck() > 0 {
            return Ok(false);
        }
        assert_eq!(states.heap.get(&7)?.as_deref(), states.model.get(&7));
        assert!(since.elapsed() < FOR_EVER);
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn a_device_that_stops_at_any_write_or_sync_of_a_checkpoint_is_given_up_and_taken_up_again() {
    let (mut held_up, mut told) = (0, 0);
    for way in [Way::Confirm, Way::GiveUp, Way::GoOn] {
        for is_sync in [false, true] {
            for nth in 1.. {
                let when = format!("{way:?}, sync: {is_sync}, number {nth}");
                let device = Simulated::new(nth, Faults::none());
                let mut states = open(&device, Helpers::Thread);
                states.put(1);
                states.take(1, &when);
                states.put(2);
                match is_sync {
                    false => device.on_nth_write(nth, Fault::Stuck),
                    true => device.on_nth_sync(nth, Fault::Stuck),
                }
                let since = Instant::now();
                let mut seal = states.store.seal(2).unwrap();
                let confirmed = until_stuck(&device, &mut seal, &mut states).unwrap();
                if confirmed {
                    // It has not so many.
                    assert!(nth > 3, "{when}");
                    break;
                }
                held_up += 1;
                match way {
                    Way::Confirm => {
                        let error = seal.confirm().unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}");
                        assert!(
                            error.to_string().contains(&format!("{PATIENCE:?}")),
                            "{when}: {error}"
                        );
                        told += 1;
                    }
                    Way::GiveUp => drop(seal),
                    Way::GoOn => {
                        for _ in 0..20 {
                            assert_eq!(seal.confirm_some().unwrap(), None, "{when}");
                        }
                        states.put(3);
                        device.release_stuck();
                        device.drain();
                        while seal.confirm_some().unwrap().is_none() {
                            std::thread::sleep(Duration::from_micros(50));
                            assert!(since.elapsed() < FOR_EVER, "{when}");
                        }
                    }
                }
                assert!(since.elapsed() < FOR_EVER, "{when}");
                if way != Way::GoOn {
                    states.put(3);
                    states.check(&[1, 2, 3], &when);
                    device.release_stuck();
                    device.drain();
                }
                // The one before, or the one that was held up while it was confirmed.
                let crashed = device.crash(CrashPolicy::Everything);
                let mut found = open(&crashed, Helpers::Inline);
                let position = found.store.restored_position().unwrap();
                assert!(position == 1 && way != Way::GoOn || position == 2, "{when}: {position}");
                found.check(&[1, 2][..position as usize], &when);
                drop(found);
                states.put(4);
                states.take(4, &when);
                states.check(&[1, 2, 3, 4], &when);
                drop(states);
                let crashed = device.crash(CrashPolicy::Nothing);
                let mut found = open(&crashed, Helpers::Inline);
                assert_eq!(found.store.restored_position(), Some(4), "{when}");
                found.check(&[1, 2, 3, 4], &when);
            }
        }
    }
    println!("held up {held_up} times, told {told} times");
    assert!(held_up > 30 && told > 10, "{held_up} {told}");
}

/// Each step of confirming fails once: the checkpoint before stays, or the one that is confirmed is
/// there, and the next one can be taken.
#[test]
fn an_error_at_each_step_of_confirming_leaves_one_of_the_two() {
    let (mut failed, mut was_new) = (0, 0);
    for fault in [Fault::Error, Fault::DiskFull] {
        for aim in 0..3 {
            for nth in 1.. {
                let when = format!("{fault:?} at {aim}, number {nth}");
                let device = Simulated::new(nth, Faults::none());
                let mut states = open(&device, Helpers::Inline);
                states.put(1);
                states.store.checkpoint(1).unwrap();
                states.put(2);
                let mut seal = states.store.seal(2).unwrap();
                while !seal.advance().unwrap() {}
                match aim {
                    0 => device.on_nth_write(nth, fault),
                    1 => device.on_nth_sync(nth, fault),
                    _ => device.on_nth_directory_operation(nth, fault),
                }
                let confirmed = seal.confirm();
                let is_confirmed = confirmed.is_ok();
                if let Err(error) = confirmed {
                    failed += 1;
                    let kinds = [ErrorKind::Io, ErrorKind::DiskFull];
                    assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                }
                let crashed = device.crash(CrashPolicy::Everything);
                let mut found = open(&crashed, Helpers::Inline);
                let position = found.store.restored_position().unwrap();
                assert!(position == 2 || !is_confirmed && position == 1, "{when}: {position}");
                was_new += u64::from(position == 2 && !is_confirmed);
                found.check(&[1, 2][..position as usize], &when);
                drop(found);
                states.put(3);
                // What was planned may still be ahead.
                if let Err(error) = states.store.checkpoint(3) {
                    assert!(is_confirmed, "{when}: {error:?}");
                    states.store.checkpoint(3).unwrap();
                }
                states.check(&[1, 2, 3], &when);
                drop(states);
                let mut found = open(&device.crash(CrashPolicy::Nothing), Helpers::Inline);
                assert_eq!(found.store.restored_position(), Some(3), "{when}");
                found.check(&[1, 2, 3], &when);
                if is_confirmed && nth > 8 {
                    break;
                }
            }
        }
    }
    println!("{failed} failed, of which {was_new} had been confirmed");
    assert!(failed >= 8 && was_new >= 1, "{failed} {was_new}");
}
