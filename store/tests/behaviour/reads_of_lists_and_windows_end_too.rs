//! A device that does not end a read of a list in an append log, or of a window in window segments: the call
//! ends with `Backpressure` that names the file, and has changed nothing; what is in memory can be used;
//! memory stays within its bound; and when the device goes on the call can be made again.
//!
//! What this catches: a wait without an end; the buffer of a read that was left, given back to the budget before
//! the device is done with it, or never; a fold that goes on elsewhere than it stood; windows
//! that fire twice or not at all; rows that come out of a function twice, because it gave them before
//! it had read all of its list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium::config::Helpers;
use alluvium::io::{Fault, Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AnyLayout, AppendLog, Counting, Elements, Error, ErrorKind, Holistic, KIB, List,
    MIB, Process, Result, Store, Time, Window, WindowSegments, Windows,
};

use crate::common::watchdog::Watchdog;
use crate::common::{patiently, unless_stuck};

/// Also how long writing may take: longer than it does on a busy machine.
const PATIENCE: Duration = Duration::from_millis(200);
const MEMORY: u64 = 4 * MIB;
const STATE: u64 = 256 * KIB;
const KEYS: u64 = 400;
/// Reads that the owner is to leave, of each kind of call, and how many are tried: some are the helper's.
const LEFT: u32 = 4;
const NTH_MAX: u64 = 40;

fn store_on(device: &Simulated) -> Store {
    Store::in_memory()
        .memory(MEMORY)
        .max_value(4 * KIB)
        .helpers(Helpers::Thread)
        .patience(PATIENCE)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap()
}

/// It waits for a file, or for the helper, whose read may be what is stuck.
fn assert_waits(error: &Error, when: &str) {
    assert_eq!(error.kind(), ErrorKind::Backpressure, "{when}: {error:?}");
}

fn check_memory(store: &Store, state: &str, when: &str) {
    let stats = store.stats().unwrap();
    let found = stats.states.iter().find(|found| found.name == state).unwrap();
    assert!(found.memory.peak <= STATE && stats.memory.peak <= MEMORY, "{when}: {stats:?}");
}

/// Bytes booked for buffers of a state.
fn buffers(store: &Store, state: &str) -> u64 {
    let stats = store.stats().unwrap();
    let found = stats.states.iter().find(|found| found.name == state).unwrap();
    found.memory.by_kind[alluvium_pagestore::MemoryKind::Buffers as usize]
}

struct Lists {
    store: Store,
    list: List<u64, Vec<u8>>,
    model: BTreeMap<u64, Vec<Vec<u8>>>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Read,
    Drain,
    Visit,
}

impl Lists {
    fn open(device: &Simulated) -> Self {
        let store = store_on(device);
        let layout = AppendLog::new().memory(STATE).patience(PATIENCE);
        let list = store.list("lists").layout(layout.into()).open().unwrap();
        let mut lists = Self { store, list, model: BTreeMap::new() };
        for round in 0..30 {
            (0..KEYS).for_each(|key| lists.append(key, round));
        }
        lists
    }

    fn append(&mut self, key: u64, round: u64) {
        let element = vec![(key + round) as u8; (key * 7 + round) as usize % 90];
        patiently(|| self.list.append(&key, element.clone()).map_err(|r| r.error));
        self.model.entry(key).or_default().push(element);
    }

    fn make(&mut self, call: Call, keys: &[u64]) -> Result<()> {
        let Self { list, model, .. } = self;
        if let Call::Visit = call {
            let mut seen = BTreeMap::<u64, Vec<Vec<u8>>>::new();
            list.for_each(|key, element| {
                seen.entry(*key).or_default().push(element.clone());
                Ok(())
            })?;
            assert!(seen == *model, "what was visited");
            return Ok(());
        }
        for key in keys {
            match call {
                Call::Read => assert_eq!(Some(&list.to_vec(key)?), model.get(key), "{key}"),
                Call::Drain => {
                    assert_eq!(list.drain(key)?, model.remove(key).unwrap_or_default(), "{key}");
                }
                Call::Visit => unreachable!("made above"),
            }
        }
        Ok(())
    }
}

#[test]
fn lists_in_an_append_log() {
    for call in [Call::Read, Call::Drain, Call::Visit] {
        let mut left = 0;
        for nth in 1..=NTH_MAX {
            if left == LEFT {
                break;
            }
            let when = format!("{call:?}, read {nth}");
            let device = Simulated::new(nth, Faults::none());
            let mut lists = Lists::open(&device);
            let _watchdog = Watchdog::of(&device, &when);
            let before = {
                patiently(|| lists.make(Call::Read, &[1]));
                buffers(&lists.store, "lists")
            };
            let keys: Vec<_> = (0..8).map(|n| (nth * 31 + n * 13) % KEYS).collect();
            device.on_nth_read(nth, Fault::Stuck);
            let done = unless_stuck(&device, || lists.make(call, &keys));
            device.forget_scripts();
            let is_left = device.stuck() > 0;
            if let Err(error) = done {
                assert!(is_left, "{when}: {error:?}");
                assert_waits(&error, &when);
                // Its memory is the device's; lists in memory grow meanwhile. Else it is the helper's read.
                if error.context("file").is_some() {
                    left += 1;
                    assert!(buffers(&lists.store, "lists") > before, "{when}");
                    (0..20).for_each(|key| lists.append(key, 99));
                    assert_waits(&lists.make(Call::Visit, &[]).unwrap_err(), &when);
                }
                check_memory(&lists.store, "lists", &when);
            }
            device.release_stuck();
            patiently(|| lists.make(call, &keys));
            patiently(|| lists.make(Call::Visit, &[]));
            check_memory(&lists.store, "lists", &when);
            patiently(|| lists.store.tick(10));
        }
        assert!(left == LEFT, "{call:?}: {left} reads were left");
    }
}

type Results = BTreeMap<(i64, u64), i64>;

struct Counts {
    store: Store,
    windows: Aggregated<u64, u64, Counting>,
    model: Results,
    fired: Results,
}

impl Counts {
    fn open(device: &Simulated) -> Self {
        let store = store_on(device);
        let layout = WindowSegments::new().memory(STATE).patience(PATIENCE);
        let state = store.aggregated("windows").layout(layout.into());
        let windows = state.open(Windows::tumbling(nanos(10)), Counting).unwrap();
        let mut counts = Self { store, windows, model: Results::new(), fired: Results::new() };
        for round in 0..12 {
            (0..3000).for_each(|n| counts.add(round % 4, n));
        }
        counts
    }

    fn add(&mut self, window: i64, key: u64) {
        let never = &mut |late| panic!("{late:?} is late");
        let mut event = vec![(key, Time(window * 10 + 5), key)];
        while !event.is_empty() {
            let added = self.windows.add_batch(Time(0), &mut event, never, &mut |_, _, _, _| ());
            if let Err(error) = added {
                assert_eq!(error.kind(), ErrorKind::Backpressure, "{error:?}");
            }
        }
        *self.model.entry((window, key)).or_default() += 1;
    }

    /// Fires windows before a time, some keys at a time.
    fn advance(&mut self, to: i64) -> Result<()> {
        let fired = &mut self.fired;
        let mut tell = |key: &u64, window: alluvium::Window, count: i64, _| {
            let known = fired.insert((window.start.0 / 10, *key), count);
            assert!(known.is_none(), "{key} fired twice");
        };
        while !self.windows.advance(Time(to), 500, &mut tell)?.done {}
        Ok(())
    }
}

#[test]
fn windows_in_window_segments() {
    let mut left = 0;
    for nth in 1..=NTH_MAX {
        if left == LEFT {
            break;
        }
        let when = format!("read {nth}");
        let device = Simulated::new(nth, Faults::none());
        let mut counts = Counts::open(&device);
        let _watchdog = Watchdog::of(&device, &when);
        device.on_nth_read(nth, Fault::Stuck);
        let done = unless_stuck(&device, || counts.advance(30));
        device.forget_scripts();
        let is_left = device.stuck() > 0;
        if let Err(error) = done {
            assert!(is_left, "{when}: {error:?}");
            assert_waits(&error, &when);
            // Else it is the helper's read: what it makes room for waits, other things need not.
            if error.context("file").is_some() {
                left += 1;
                (0..20).for_each(|key| counts.add(3, key));
                assert_waits(&counts.advance(30).unwrap_err(), &when);
            }
            check_memory(&counts.store, "windows", &when);
        }
        device.release_stuck();
        patiently(|| counts.advance(40));
        assert!(counts.fired == counts.model, "{when}");
        check_memory(&counts.store, "windows", &when);
        patiently(|| counts.store.tick(10));
    }
    assert!(left == LEFT, "{left} reads were left");
}

/// Gives a row for each event as soon as it has read that.
struct Each;

impl Process<u64, (u64, Vec<u8>)> for Each {
    type Row = u64;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        events: &mut dyn Elements<(u64, Vec<u8>)>,
        emit: &mut dyn FnMut(u64),
    ) -> Result<()> {
        while let Some((number, _)) = events.next()? {
            emit(*number);
        }
        Ok(())
    }
}

const EVENTS: u64 = 150;

/// Windows of four keys, the list of each of which takes several reads.
struct Rows {
    store: Store,
    windows: Holistic<u64, (u64, Vec<u8>), Each, AnyLayout>,
    given: BTreeMap<u64, Vec<u64>>,
}

impl Rows {
    fn open(device: &Simulated, windows: Windows) -> Self {
        let store = store_on(device);
        let layout = AppendLog::new().memory(STATE).patience(PATIENCE);
        let state = store.holistic("events").layout(layout.into());
        let mut windows = state.open(windows, Each).unwrap();
        let never = &mut |late| panic!("{late:?} is late");
        for number in 0..EVENTS {
            let event = |key| (key, Time(number as i64 % 10), (number, vec![key as u8; 1000]));
            let mut events: Vec<_> = (0..4).map(event).collect();
            patiently(|| windows.add_batch(Time(0), &mut events, never, &mut |_, _, _, _| ()));
        }
        Self { store, windows, given: BTreeMap::new() }
    }

    fn advance(&mut self) -> Result<()> {
        let given = &mut self.given;
        let give = &mut |key: &u64, _, number, _| given.entry(*key).or_default().push(number);
        self.windows.advance_all(Time(100), give)
    }
}

fn rows_of_a_function_that_gives_them_as_it_reads(windows: Windows) {
    let (mut left, mut within) = (0, 0);
    for nth in 1..=NTH_MAX {
        let when = format!("{windows:?}, read {nth}");
        let device = Simulated::new(nth, Faults::none());
        let mut rows = Rows::open(&device, windows);
        let _watchdog = Watchdog::of(&device, &when);
        device.on_nth_read(nth, Fault::Stuck);
        let done = unless_stuck(&device, || rows.advance());
        device.forget_scripts();
        let Err(error) = done else {
            if device.stuck() == 0 {
                // There are no more.
                break;
            }
            // The helper's, which nobody waits for.
            device.release_stuck();
            patiently(|| rows.store.tick(10));
            continue;
        };
        assert_waits(&error, &when);
        left += 1;
        let some = rows.given.values().any(|rows| !(rows.len() as u64).is_multiple_of(EVENTS));
        within += u32::from(some);
        device.release_stuck();
        patiently(|| rows.advance());
        for (key, numbers) in &rows.given {
            assert!(numbers.iter().copied().eq(0..EVENTS), "{when}: key {key}: {numbers:?}");
        }
        assert_eq!(rows.given.len(), 4, "{when}");
        patiently(|| rows.store.tick(10));
        if left >= LEFT && within >= 2 {
            break;
        }
    }
    assert!(within >= 2, "{windows:?}: {within} of {left} reads were left within a list");
}

#[test]
fn rows_of_tumbling_windows() {
    rows_of_a_function_that_gives_them_as_it_reads(Windows::tumbling(nanos(10)));
}

#[test]
fn rows_of_sessions() {
    rows_of_a_function_that_gives_them_as_it_reads(Windows::session(nanos(20)));
}
