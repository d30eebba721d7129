//! A device that stops answering while a checkpoint is sealed, confirmed or given up, or its store is
//! closed, at each write, sync, creation, renaming, removal and directory sync there is: calls end, with an
//! error that says so, states can be used meanwhile, nothing is lost, and all goes on when the device does.
//!
//! What this catches: a wait without an end, files of an attempt that stay, a manifest that goes back, a
//! checkpoint that cannot be taken any more after one that was given up, a directory that is free while
//! somebody writes to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium::checkpoints::Seal;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AppendLog, Counting, ErrorKind, Heap, KIB, List, MIB, Map, Result, Store, Time,
    WindowSegments, Windows,
};

use crate::common::watchdog::Watchdog;
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
    windows: Aggregated<u64, u64, Counting>,
    heap_model: BTreeMap<u64, u64>,
    log_model: BTreeMap<u64, u64>,
}

fn open(device: &Simulated, helpers: Helpers) -> States {
    open_with(device, helpers, PATIENCE)
}

fn open_with(device: &Simulated, helpers: Helpers, patience: Duration) -> States {
    let store = Store::in_memory()
        .memory(4 * MIB)
        .max_value(KIB)
        .helpers(helpers)
        .patience(patience)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let log = common::tiny().memory(256 * KIB).patience(patience);
    let append = AppendLog::new().memory(400 * KIB).patience(patience);
    let segments = WindowSegments::new().memory(400 * KIB).patience(patience);
    let tumbling = Windows::tumbling(nanos(10));
    let mut states = States {
        heap: store.map("heap").layout(Heap::new().into()).open().unwrap(),
        log: store.map("log").layout(log.into()).open().unwrap(),
        list: store.list("list").layout(append.into()).open().unwrap(),
        windows: {
            let state = store.aggregated("windows").layout(segments.into());
            state.open(tumbling, Counting).unwrap()
        },
        heap_model: BTreeMap::new(),
        log_model: BTreeMap::new(),
        store,
    };
    states.heap_model = common::entries(&mut states.heap).unwrap();
    states.log_model = common::entries(&mut states.log).unwrap();
    states
}

impl States {
    /// Changes all keys, of the log a third: its checkpoint says which records have died.
    fn put(&mut self, round: u64) {
        for key in 0..60 {
            self.heap.put(key, round).unwrap();
            self.heap_model.insert(key, round);
            if round == 1 || key % 3 == round % 3 {
                self.log.put(key, round).unwrap();
                self.log_model.insert(key, round);
            }
            self.list.append(&key, round).unwrap();
            let never = &mut |late| panic!("{late:?} is late");
            let event = &mut vec![(key, Time(5), round)];
            self.windows.add_batch(Time(0), event, never, &mut |_, _, _, _| ()).unwrap();
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
        while seal.confirm_step().unwrap_or_else(|error| panic!("{when}: {error:?}")).is_none() {
            assert!(since.elapsed() < FOR_EVER, "{when}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Maps are as their models say; each list has the rounds up to the last.
    fn check(&mut self, rounds: &[u64], when: &str) {
        assert_equal(&mut self.heap, &self.heap_model, when);
        assert_equal(&mut self.log, &self.log_model, when);
        for key in 0..60 {
            assert_eq!(self.list.to_vec(&key).unwrap(), rounds, "{when}");
        }
    }

    /// The same of those that were restored, whose windows are fired.
    fn check_restored(mut self, rounds: &[u64], when: &str) {
        for key in 0..60 {
            let last = rounds.iter().rev().find(|round| **round == 1 || key % 3 == **round % 3);
            assert_eq!(self.log_model.get(&key), last, "{when}: {key}");
            assert_eq!(self.heap_model.get(&key), rounds.last(), "{when}: {key}");
        }
        self.check(rounds, when);
        let mut counts = BTreeMap::new();
        let mut count = |key: &u64, _, count: i64, _| {
            counts.insert(*key, count);
        };
        while !self.windows.advance(Time(100), 1000, &mut count).unwrap().done {}
        let all = (0..60).map(|key| (key, rounds.len() as i64));
        assert_eq!(counts, all.collect(), "{when}");
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
    /// It is dropped, and the store is closed.
    Close,
}

/// What a device stops at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    Write,
    Sync,
    /// Creating, opening, renaming and removing a file, and syncing the directory.
    Directory,
}

impl Aim {
    /// Lets the device go wrong at the next operation of the kind but some.
    fn go_wrong(self, device: &Simulated, nth: u64, fault: Fault) {
        match self {
            Self::Write => device.on_nth_write(nth, fault),
            Self::Sync => device.on_nth_sync(nth, fault),
            Self::Directory => device.on_nth_directory_operation(nth, fault),
        }
    }
}

/// Advances it until it is confirmed or the device is stuck.
fn until_stuck(device: &Simulated, seal: &mut Seal, states: &mut States) -> Result<bool> {
    let since = Instant::now();
    loop {
        if seal.confirm_step()?.is_some() {
            return Ok(true);
        }
        if device.stuck() > 0 {
            return Ok(false);
        }
        assert_eq!(states.heap.get(&7)?.as_deref(), states.heap_model.get(&7));
        assert!(since.elapsed() < FOR_EVER);
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn a_device_that_stops_at_any_step_of_a_checkpoint_is_given_up_and_taken_up_again() {
    let (mut held_up, mut told) = (0, 0);
    for way in [Way::Confirm, Way::GiveUp, Way::GoOn, Way::Close] {
        for aim in [Aim::Write, Aim::Sync, Aim::Directory] {
            for nth in 1.. {
                let when = format!("{way:?}, {aim:?} {nth}");
                let device = Simulated::new(nth, Faults::none());
                let mut states = open(&device, Helpers::Thread);
                states.put(1);
                states.take(1, &when);
                states.put(2);
                aim.go_wrong(&device, nth, Fault::Stuck);
                let _watchdog = Watchdog::of(&device, &when);
                let mut seal = states.store.seal(2).unwrap();
                if until_stuck(&device, &mut seal, &mut states).unwrap() {
                    // It has not so many, but for what is removed when it is confirmed.
                    assert!(nth > 3, "{when}");
                    device.release_stuck();
                    break;
                }
                held_up += 1;
                match way {
                    Way::Confirm => {
                        let error = seal.confirm().unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}");
                        let says = error.to_string().contains(&format!("{PATIENCE:?}"));
                        assert!(says, "{when}: {error}");
                        told += 1;
                    }
                    Way::GiveUp => drop(seal),
                    Way::GoOn => go_on(&device, seal, &mut states, &when),
                    Way::Close => {
                        drop(seal);
                        close(&device, states, &when);
                        continue;
                    }
                }
                if way != Way::GoOn {
                    states.put(3);
                    states.check(&[1, 2, 3], &when);
                    device.release_stuck();
                    device.drain();
                }
                // The one before, or the one that was held up while it was confirmed.
                let found = open(&device.crash(CrashPolicy::Everything), Helpers::Inline);
                let position = found.store.restored_position().unwrap();
                assert!(position == 1 && way != Way::GoOn || position == 2, "{when}: {position}");
                found.check_restored(&[1, 2][..position as usize], &when);
                states.put(4);
                states.take(4, &when);
                states.check(&[1, 2, 3, 4], &when);
                drop(states);
                let found = open(&device.crash(CrashPolicy::Nothing), Helpers::Inline);
                assert_eq!(found.store.restored_position(), Some(4), "{when}");
                found.check_restored(&[1, 2, 3, 4], &when);
            }
        }
    }
    println!("held up {held_up} times, told {told} times");
    assert!(held_up > 80 && told > 20, "{held_up} {told}");
}

/// The stream goes on, and then the device does.
fn go_on(device: &Simulated, mut seal: Seal, states: &mut States, when: &str) {
    let since = Instant::now();
    for _ in 0..20 {
        assert_eq!(seal.confirm_step().unwrap(), None, "{when}");
    }
    states.put(3);
    device.release_stuck();
    device.drain();
    while seal.confirm_step().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(50));
        assert!(since.elapsed() < FOR_EVER, "{when}");
    }
}

/// Closing ends and says that it is not all done; the directory is free when it is.
fn close(device: &Simulated, states: States, when: &str) {
    let error = states.store.clone().close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}");
    drop(states);
    let locked = device.lock().map(drop).unwrap_err();
    assert_eq!(locked.kind(), ErrorKind::Locked, "{when}");
    device.release_stuck();
    device.drain();
    while device.lock().is_err() {
        std::thread::sleep(Duration::from_micros(50));
    }
    let found = open(device, Helpers::Inline);
    let position = found.store.restored_position().unwrap();
    found.check_restored(&[1, 2][..position as usize], when);
}

/// A store that is dropped waits no longer than one that is closed.
#[test]
fn a_store_that_is_dropped_while_a_file_is_removed_leaves_it_to_its_helper() {
    let device = Simulated::new(1, Faults::none());
    let mut states = open(&device, Helpers::Thread);
    states.put(1);
    states.take(1, "first");
    device.place("none-of-ours", b"x");
    let (helped, waits) = std::sync::mpsc::channel();
    let other = device.clone();
    device.on_nth_directory_operation(1, Fault::Stuck);
    let aside = states.store.aside("a removal", move || {
        other.remove("none-of-ours")?;
        helped.send(()).unwrap();
        Ok(())
    });
    let _watchdog = Watchdog::of(&device, "a removal");
    // Let go on before the helper comes to it, it would be stuck for good.
    while device.stuck() == 0 {
        std::thread::yield_now();
    }
    drop((aside, states));
    assert_eq!(device.lock().map(drop).unwrap_err().kind(), ErrorKind::Locked);
    device.release_stuck();
    waits.recv().unwrap();
    while device.lock().is_err() {
        std::thread::sleep(Duration::from_micros(50));
    }
    assert!(!device.list().unwrap().contains(&"none-of-ours".to_owned()));
}

/// Each step of confirming fails once: the checkpoint before stays, or the one that is confirmed is
/// there, and the next one can be taken.
#[test]
fn an_error_at_each_step_of_confirming_leaves_one_of_the_two() {
    // Nothing is stuck here, and a loaded machine is slow.
    let open_inline = |device: &Simulated| open_with(device, Helpers::Inline, FOR_EVER);
    let (mut failed, mut was_new, mut reopened) = (0, 0, 0);
    for fault in [Fault::Error, Fault::DiskFull] {
        for aim in [Aim::Write, Aim::Sync, Aim::Directory] {
            for nth in 1.. {
                let when = format!("{fault:?} at {aim:?} {nth}");
                let device = Simulated::new(nth, Faults::none());
                let mut states = open_inline(&device);
                states.put(1);
                states.store.checkpoint(1).unwrap();
                states.put(2);
                let mut seal = states.store.seal(2).unwrap();
                while !seal.advance().unwrap() {}
                aim.go_wrong(&device, nth, fault);
                let confirmed = seal.confirm();
                let is_confirmed = confirmed.is_ok();
                if let Err(error) = confirmed {
                    failed += 1;
                    let kinds = [ErrorKind::Io, ErrorKind::DiskFull];
                    assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                }
                let crashed = device.crash(CrashPolicy::Everything);
                let found = open_inline(&crashed);
                let position = found.store.restored_position().unwrap();
                assert!(position == 2 || !is_confirmed && position == 1, "{when}: {position}");
                was_new += u64::from(position == 2 && !is_confirmed);
                found.check_restored(&[1, 2][..position as usize], &when);
                // What is opened then does not go away with a crash.
                if !is_confirmed && nth % 2 == 0 {
                    drop(states);
                    device.forget_scripts();
                    let opened = open_inline(&device).store.restored_position();
                    assert_eq!(opened, Some(position), "{when}");
                    let found = open_inline(&device.crash(CrashPolicy::Nothing));
                    assert_eq!(found.store.restored_position(), opened, "{when}");
                    found.check_restored(&[1, 2][..position as usize], &when);
                    reopened += 1;
                    continue;
                }
                states.put(3);
                // What was planned may still be ahead.
                if let Err(error) = states.store.checkpoint(3) {
                    assert!(is_confirmed, "{when}: {error:?}");
                    states.store.checkpoint(3).unwrap();
                }
                states.check(&[1, 2, 3], &when);
                drop(states);
                let found = open_inline(&device.crash(CrashPolicy::Nothing));
                assert_eq!(found.store.restored_position(), Some(3), "{when}");
                found.check_restored(&[1, 2, 3], &when);
                if is_confirmed && nth > 8 {
                    break;
                }
            }
        }
    }
    println!("{failed} failed, of which {was_new} had been confirmed");
    assert!(failed >= 8 && was_new >= 1 && reopened >= 4, "{failed} {was_new} {reopened}");
}
