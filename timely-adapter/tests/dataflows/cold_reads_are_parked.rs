//! State that is mostly on storage: rows whose keys have to be read wait, others go on, and the
//! results are those of state in memory, whatever the device does.
//!
//! What this catches: rows of a key that overtake each other, a timer that overtakes a row, a time
//! that is let go while a row of it waits, a wake-up that is lost, a worker that spins or blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::{AnyLayout, Heap, HybridLog, KIB, Map, Result, StoreConfig, Time};
use alluvium_timely::{
    Changes, Counting, Fault, Join, KeyBy, Parked, Rolling, Spec, Stateful, WorkerOverrides,
    WorkerState,
};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle, StreamVec};
use timely::worker::Worker;

use crate::common;

const KEYS: u64 = 3000;
const MEMORY: u64 = 448 * KIB;

/// The times of a key's rows as text; each row is emitted with its place among its key's rows; a
/// timer per row, at the next multiple of 16, emits how many rows its key has had before it.
fn logged<'s>(
    rows: StreamVec<'s, i64, (u64, u64)>,
    state: &WorkerState,
    spec: Spec,
) -> Result<Changes<'s, i64, (u64, String)>> {
    rows.key_by(state, |row| row.0).stateful(
        spec,
        |states| states.map::<u64, String>("seen"),
        |seen: &mut Map<u64, String>, rows, context| {
            let time = *context.time();
            let mut out = Vec::new();
            let done = seen.update_batch(
                rows,
                |row| &row.0,
                |_| String::new(),
                |(key, _), text| {
                    text.push_str(&format!("{time},"));
                    out.push((*key, format!("{} rows", text.matches(',').count())));
                },
            );
            for row in out {
                context.set_timer(row.0, Time((time / 16 + 1) * 16))?;
                context.emit(row, 1);
            }
            done.map_err(|error| error.leave_rest(rows))
        },
        |seen, due, context| {
            while let Some(&(Time(at), key)) = due.last() {
                let before = |text: &str| {
                    let times = text.split_terminator(',').map(|time| time.parse::<i64>());
                    times.filter(|time| time.as_ref().is_ok_and(|&time| time < at)).count()
                };
                let count = seen.read(&key, |text| text.map_or(0, |text| before(text)))?;
                context.emit((key, format!("{count} by {at}")), 1);
                due.pop();
            }
            Ok(())
        },
    )
}

/// Steps of rows: each key once to load, then keys by chance.
fn steps(seed: u64) -> Vec<(i64, Vec<(u64, u64)>)> {
    let load = (0..KEYS).map(|key| (key, 0)).collect::<Vec<_>>();
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let mut steps: Vec<_> = load.chunks(100).map(<[_]>::to_vec).collect();
    steps.extend((1..=40).map(|n| (0..50).map(|_| (next(KEYS), n)).collect()));
    (0..).zip(steps).map(|(time, rows)| (2 * time, rows)).collect()
}

fn logged_in_memory(steps: Vec<(i64, Vec<(u64, u64)>)>) -> common::Consolidated<(u64, String)> {
    let node = StoreConfig { layout: AnyLayout::from(Heap::new()), ..StoreConfig::default() };
    common::run(1, node.into(), WorkerOverrides::default(), steps, |rows, state| {
        logged(rows, state, Spec::new("log"))
    })
    .unwrap()
}

#[test]
fn results_are_those_of_state_in_memory_on_real_storage() {
    for workers in 1..=3 {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            directory: Some(directory.path().into()),
            memory: ByteSize(2 * MEMORY * workers as u64),
            max_value: Some(ByteSize(4 * KIB)),
            layout: HybridLog::new().page_records(8).queue_depth(8).segment(16 * KIB).into(),
            ..StoreConfig::default()
        };
        let overrides = WorkerOverrides::default;
        let log =
            common::run(workers, config.clone().into(), overrides(), steps(7), |rows, state| {
                logged(rows, state, Spec::new("log"))
            });
        assert!(log.unwrap() == logged_in_memory(steps(7)), "{workers} workers");
        let rolling = |config: StoreConfig| {
            common::run(workers, config.into(), overrides(), steps(8), |rows, state| {
                rows.key_by(state, |row| row.0).rolling(Spec::new("count"), Counting)
            })
        };
        assert!(rolling(config.clone()).unwrap() == rolling(StoreConfig::default()).unwrap());
        let join = |config: StoreConfig| {
            common::run(workers, config.into(), overrides(), steps(9), |rows, state| {
                let odd = rows.clone().key_by(state, |row| row.0 / 2);
                rows.key_by(state, |row| row.0 / 3)
                    .join(odd, Spec::new("join"), |key, a, b| (*key, *a, *b))
            })
        };
        assert!(join(config).unwrap() == join(StoreConfig::default()).unwrap());
    }
}

type Sums = Rc<RefCell<BTreeMap<(u64, String), i64>>>;

/// A dataflow that is driven by hand.
struct Driven {
    input: Option<InputHandleVec<i64, (u64, u64)>>,
    probe: ProbeHandle<i64>,
    sums: Sums,
    /// Rows in the order in which they came out.
    order: Rc<RefCell<Vec<(u64, String)>>>,
}

fn driven(worker: &mut Worker, state: &WorkerState, spec: Spec) -> Driven {
    let (sums, order) = (Sums::default(), Rc::<RefCell<Vec<_>>>::default());
    let (sink, list) = (sums.clone(), order.clone());
    let probe = ProbeHandle::new();
    let input = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input();
        logged(rows, state, spec)
            .unwrap()
            .inspect(move |(row, _, diff)| {
                *sink.borrow_mut().entry(row.clone()).or_default() += diff;
                list.borrow_mut().push(row.clone());
            })
            .probe_with(&probe);
        input
    });
    Driven { input: Some(input), probe, sums, order }
}

impl Driven {
    fn send(&mut self, time: i64, rows: &[(u64, u64)]) {
        let input = self.input.as_mut().unwrap();
        input.advance_to(time);
        rows.iter().for_each(|&row| input.send(row));
        input.advance_to(time + 1);
    }

    /// Sends steps and lets each be done.
    fn feed(&mut self, worker: &mut Worker, device: &Simulated, steps: &[(i64, Vec<(u64, u64)>)]) {
        for (time, rows) in steps {
            self.send(*time, rows);
            while self.probe.less_equal(time) {
                device.drive();
                worker.step();
            }
        }
    }

    fn came(&self, key: u64) -> Vec<String> {
        let order = self.order.borrow();
        order.iter().filter(|row| row.0 == key).map(|row| row.1.clone()).collect()
    }
}

fn step(worker: &mut Worker, times: usize) {
    for _ in 0..times {
        worker.step();
    }
}

fn parked(state: &WorkerState) -> Parked {
    state.parked()[0].1
}

#[test]
fn late_reads_change_no_result() {
    for seed in 0..10 {
        let device = Simulated::new(seed, Faults::late(9));
        let driver = device.clone();
        let (sums, most) = common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
            let mut driven = driven(worker, state, Spec::new("log").parked_max(3 + seed as usize));
            let steps = steps(seed);
            // All at once: what cannot be taken is staged.
            driven.feed(worker, &driver, &steps[..30]);
            for (time, rows) in &steps[30..] {
                driven.send(*time, rows);
                worker.step();
            }
            drop(driven.input.take());
            while !driven.probe.done() {
                driver.drive();
                worker.step();
                assert_eq!(state.fault().map(ToString::to_string), None, "seed {seed}");
            }
            (driven.sums.take(), parked(state).most)
        });
        assert!(sums == logged_in_memory(steps(seed)), "seed {seed}");
        assert_eq!(most, 3 + seed as usize, "seed {seed}: as many wait as may");
    }
}

#[test]
fn a_stuck_read_holds_up_its_key_and_the_frontier_only() {
    let device = Simulated::new(3, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let mut driven = driven(worker, state, Spec::new("log"));
        driven.feed(worker, device, &steps(3)[..30]);
        driven.input.as_mut().unwrap().advance_to(112);
        step(worker, 20);
        // Loaded first, and not touched since: only storage has it.
        let key = 5;
        driven.order.borrow_mut().clear();
        device.on_nth_read(1, alluvium::io::Fault::Stuck);
        driven.send(112, &[(key, 1), (KEYS - 1, 1)]);
        driven.send(113, &[(key, 2), (key + 1, 1)]);
        driven.send(130, &[(key, 3)]);
        step(worker, 50);
        assert_eq!((device.stuck(), parked(state).now), (1, 3));
        assert_eq!(driven.came(key), [""; 0], "nothing of the key, and not its timer");
        // The timers of other keys fire: their own rows are done.
        assert_eq!(driven.came(key + 1), ["2 rows", "2 by 128"]);
        assert_eq!(driven.came(KEYS - 1), ["2 rows", "2 by 128"]);
        assert!(driven.probe.less_equal(&112) && !driven.probe.less_than(&112));
        device.release_stuck();
        device.drive();
        step(worker, 50);
        assert_eq!(driven.came(key), ["2 rows", "3 rows", "3 by 128", "4 rows"]);
        assert!(!driven.probe.less_than(&131));
        assert_eq!(parked(state).now, 0);
    });
}

/// What a row asks for.
const SETS: u64 = 10_000;
const WITHDRAWS: u64 = 20_000;

#[test]
fn rows_that_wait_may_set_and_withdraw_timers_that_are_due() {
    let device = Simulated::new(3, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let fired = Rc::<RefCell<Vec<(u64, i64, i64)>>>::default();
        let (sink, probe) = (fired.clone(), ProbeHandle::new());
        let mut input: InputHandleVec<i64, (u64, u64)> = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input();
            rows.key_by(state, |row: &(u64, u64)| row.0)
                .stateful(
                    Spec::new("timed"),
                    |states| states.map::<u64, [u64; 8]>("rows"),
                    |map: &mut Map<u64, [u64; 8]>, rows, context| {
                        while let Some(&(key, (_, what))) = rows.last() {
                            map.update(&key, || [0; 8], |row| row[0] += 1)?;
                            let at = |base| Time((what - base) as i64);
                            if what >= WITHDRAWS {
                                assert!(context.cancel_timer(key, at(WITHDRAWS)), "it is set");
                            } else if what >= SETS {
                                context.set_timer(key, at(SETS))?;
                            }
                            rows.pop();
                        }
                        Ok(())
                    },
                    |_, due, context| {
                        for (Time(at), key) in due.drain(..) {
                            context.emit((key, at), 1);
                        }
                        Ok(())
                    },
                )
                .unwrap()
                .inspect(move |((key, at), time, _)| sink.borrow_mut().push((*key, *at, *time)))
                .probe_with(&probe);
            input
        });
        let mut send = |time: i64, rows: &[(u64, u64)]| {
            input.advance_to(time);
            rows.iter().for_each(|&row| input.send(row));
            input.advance_to(time + 1);
        };
        send(0, &(0..2).map(|key| (key, SETS + 200)).collect::<Vec<_>>());
        for time in 1..60 {
            send(time, &(0..50).map(|n| (time as u64 * 50 + n, 0)).collect::<Vec<_>>());
            while probe.less_equal(&time) {
                device.drive();
                worker.step();
            }
        }
        // All of these wait for the reads of their keys, and the timers at 200 for them.
        (1..=2).for_each(|nth| device.on_nth_read(nth, alluvium::io::Fault::Stuck));
        send(100, &[(0, SETS + 190), (0, SETS + 200), (1, WITHDRAWS + 200), (1, SETS + 210)]);
        send(300, &[(0, 0)]);
        step(worker, 50);
        assert!(parked(state).now >= 4, "{:?}", parked(state));
        assert_eq!(*fired.borrow(), [], "nothing is in memory");
        assert!(!probe.less_than(&100) && probe.less_equal(&100));
        device.release_stuck();
        while probe.less_equal(&300) {
            device.drive();
            worker.step();
        }
        let mut fired = fired.take();
        fired.sort_by_key(|(key, ..)| *key);
        // Each once, those of a key in order, at the time of the earliest of all.
        let expected = [(0, 190, 190), (0, 200, 190), (1, 210, 190)];
        assert_eq!(fired, expected);
        assert_eq!(parked(state).now, 0);
    });
}

/// As many timers may wait as there are buffers to read with. When those reads have ended and their timers
/// are about to fire, the next finds the buffers still taken: no end of a read wakes anybody for it.
#[test]
fn timers_of_more_keys_than_there_are_buffers_all_fire() {
    let device = Simulated::new(9, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let fired = Rc::<RefCell<Vec<(u64, u64)>>>::default();
        let (sink, probe) = (fired.clone(), ProbeHandle::new());
        let mut input: InputHandleVec<i64, (u64, u64)> = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input();
            rows.key_by(state, |row: &(u64, u64)| row.0)
                .stateful(
                    Spec::new("timed").parked_max(3),
                    |states| states.map::<u64, [u64; 8]>("rows"),
                    |map: &mut Map<u64, [u64; 8]>, rows, context| {
                        while let Some(&(key, (_, at))) = rows.last() {
                            map.update(&key, || [0; 8], |row| row[0] += key)?;
                            if at > 0 {
                                context.set_timer(key, Time(at as i64))?;
                            }
                            rows.pop();
                        }
                        Ok(())
                    },
                    |map, due, context| {
                        while let Some(&(_, key)) = due.last() {
                            let sum = map.read(&key, |row| row.map_or(0, |row| row[0]))?;
                            context.emit((key, sum), 1);
                            due.pop();
                        }
                        Ok(())
                    },
                )
                .unwrap()
                .inspect(move |(row, _, _)| sink.borrow_mut().push(*row))
                .probe_with(&probe);
            input
        });
        for time in 0..60 {
            input.advance_to(time);
            let keys = 50 * time as u64..50 * time as u64 + 50;
            keys.for_each(|key| input.send((key, if key < 8 { 100 } else { 0 })));
            input.advance_to(time + 1);
            while probe.less_equal(&time) {
                device.drive();
                worker.step();
            }
        }
        // The first eight are on storage only, and their timers are due at once.
        input.advance_to(101);
        for _ in 0..50 {
            device.drive();
            worker.step();
        }
        let mut fired = fired.take();
        fired.sort_unstable();
        assert_eq!(fired, (0..8).map(|key| (key, key)).collect::<Vec<_>>(), "{:?}", parked(state));
        assert_eq!((parked(state).now, parked(state).most), (0, 3));
        assert!(!probe.less_than(&101));
    });
}

#[test]
fn with_too_many_waiting_no_more_input_is_taken() {
    let device = Simulated::new(4, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let mut driven = driven(worker, state, Spec::new("log").parked_max(5));
        driven.feed(worker, device, &steps(4)[..30]);
        // As many as are read at a time; further records wait for a buffer.
        for nth in 1..=3 {
            device.on_nth_read(nth, alluvium::io::Fault::Stuck);
        }
        let rows: Vec<(u64, u64)> = (0..200).map(|key| (key, 1)).collect();
        let before = driven.order.borrow().len();
        for (time, rows) in (60..).zip(rows.chunks(10)) {
            driven.send(time, rows);
            worker.step();
        }
        step(worker, 50);
        assert_eq!(parked(state).now, 5);
        assert!(parked(state).staged > 0);
        assert_eq!(driven.order.borrow().len(), before, "the first five rows were all cold");
        while driven.probe.less_than(&80) {
            device.release_stuck();
            device.drive();
            worker.step();
        }
        assert_eq!(parked(state).most, 5);
        for key in 0..200 {
            assert!(driven.came(key).contains(&"2 rows".to_owned()), "{key}");
        }
    });
}

#[test]
fn a_worker_with_nothing_but_reads_to_wait_for_sleeps() {
    let device = Simulated::new(5, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let mut driven = driven(worker, state, Spec::new("log"));
        driven.feed(worker, device, &steps(5)[..30]);
        device.on_nth_read(1, alluvium::io::Fault::Stuck);
        driven.send(60, &[(9, 1)]);
        while parked(state).now == 0 {
            worker.step();
        }
        let later = device.clone();
        let releaser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            later.release_stuck();
            later.drive();
        });
        let mut steps = 0;
        while driven.probe.less_than(&61) {
            worker.step_or_park(None);
            steps += 1;
        }
        releaser.join().unwrap();
        assert!(steps < 100, "{steps} steps: it did not sleep");
        assert_eq!(driven.came(9), ["1 rows", "1 by 16", "2 rows"]);
    });
}

#[test]
fn a_read_that_fails_ends_the_run_and_says_where() {
    let device = Simulated::new(6, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::WAIT, move |worker, state| {
        let device = &scripted;
        let mut driven = driven(worker, state, Spec::new("log"));
        driven.feed(worker, device, &steps(6)[..30]);
        device.on_nth_read(1, alluvium::io::Fault::Error);
        driven.send(60, &[(9, 1), (KEYS - 1, 1)]);
        driven.send(61, &[(KEYS - 1, 2)]);
        step(worker, 50);
        let fault = state.fault().expect("a fault");
        for (name, value) in [("operator", "log"), ("state", "log/seen"), ("worker", "0")] {
            assert_eq!(fault.context(name), Some(value), "{fault}");
        }
        assert!(fault.context("file").is_some() && fault.context("offset").is_some(), "{fault}");
        assert!(driven.probe.less_equal(&60) && !driven.probe.less_than(&60));
        assert!(state.abandon_if_failed(worker).is_err());
    });
}

#[test]
fn a_full_disk_is_waited_out() {
    let device = Simulated::new(7, Faults::none());
    let scripted = device.clone();
    let sums = common::on_device(&device, MEMORY, Fault::WAIT, move |worker, state| {
        let device = &scripted;
        let mut driven = driven(worker, state, Spec::new("log"));
        let steps = steps(7);
        driven.feed(worker, device, &steps[..10]);
        device.set_capacity_bytes(Some(device.used_bytes()));
        for (time, rows) in &steps[10..] {
            driven.send(*time, rows);
            worker.step();
        }
        while state.waiting().is_empty() {
            assert_eq!(state.fault().map(ToString::to_string), None);
            worker.step_or_park(Some(Duration::from_millis(1)));
        }
        assert_eq!(state.waiting()[0].0, "log");
        assert!(state.waiting()[0].1.contains("full"), "{:?}", state.waiting());
        for _ in 0..5 {
            worker.step_or_park(Some(Duration::from_millis(5)));
        }
        assert!(driven.probe.less_than(&(2 * steps.len() as i64)));
        device.set_capacity_bytes(None);
        drop(driven.input.take());
        while !driven.probe.done() {
            assert_eq!(state.fault().map(ToString::to_string), None);
            worker.step_or_park(Some(Duration::from_millis(10)));
        }
        assert!(state.waiting().is_empty() && !state.has_failed());
        driven.sums.take()
    });
    assert!(sums == logged_in_memory(steps(7)));
}

#[test]
fn a_full_disk_ends_the_run_if_the_policy_says_so() {
    let device = Simulated::new(8, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let mut driven = driven(worker, state, Spec::new("log"));
        let steps = steps(8);
        driven.feed(worker, device, &steps[..10]);
        device.set_capacity_bytes(Some(device.used_bytes()));
        for (time, rows) in &steps[10..] {
            driven.send(*time, rows);
            worker.step();
        }
        while !state.has_failed() {
            worker.step();
        }
        assert!(state.abandon_if_failed(worker).is_err());
    });
}
