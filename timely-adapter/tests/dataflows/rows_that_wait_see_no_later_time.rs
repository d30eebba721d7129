//! Rows that wait, for a read or behind a full disk, are applied in their order and at their time.
//!
//! What this catches: time of the state that passes a row while it waits, rows of one sender that overtake
//! each other, rows held back that nobody sees, work for each row that grows with what waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium::io::{Device, Fault as DeviceFault, Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{ExpiringMap, KIB, List, Map, StoreConfig, Ttl};
use alluvium_timely::{
    Counting, Fault, KeyBy, Rolling, Spec, Stateful, WorkerOverrides, WorkerState, install,
};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::generic::source;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};

use crate::common;

const MEMORY: u64 = 384 * KIB;
const TTL: i64 = 100;

/// The entry of key 0 is on storage, and its row at 90 comes before its time is over. Rows of other keys
/// at 150 do not wait, and must not make it go before.
#[test]
fn an_entry_is_not_over_for_a_row_that_waits_for_its_read() {
    for is_slow in [false, true] {
        let device = Simulated::new(11, Faults::none());
        let scripted = device.clone();
        common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
            let device = &scripted;
            let counts = Rc::<RefCell<BTreeMap<(i64, u64), u64>>>::default();
            let (sink, probe) = (counts.clone(), ProbeHandle::new());
            let mut input = worker.dataflow::<i64, _, _>(|scope| {
                let (input, rows) = scope.new_input::<u64>();
                rows.key_by(state, |key| *key)
                    .stateful(
                        Spec::new("seen"),
                        |states| {
                            states
                                .expiring_map::<u64, [u64; 8]>("seen", Ttl::event_time(nanos(TTL)))
                        },
                        |seen: &mut ExpiringMap<u64, [u64; 8]>, rows, context| {
                            seen.advance(context.watermark())?;
                            while let Some(&(key, _)) = rows.last() {
                                let count = |row: &mut [u64; 8]| {
                                    row[0] += 1;
                                    row[0]
                                };
                                let count = seen.update(&key, || [0; 8], count)?;
                                context.emit((key, count), 1);
                                rows.pop();
                            }
                            Ok(())
                        },
                        |_, _, _| Ok(()),
                    )
                    .unwrap()
                    .inspect(move |((key, count), time, _)| {
                        sink.borrow_mut().insert((*time, *key), *count);
                    })
                    .probe_with(&probe);
                input
            });
            for time in 0..60 {
                input.advance_to(time);
                (0..50).for_each(|n| input.send(50 * time as u64 + n));
                input.advance_to(time + 1);
                while probe.less_equal(&time) {
                    device.drive();
                    worker.step();
                }
            }
            if is_slow {
                device.on_nth_read(1, DeviceFault::Stuck);
            }
            input.advance_to(90);
            input.send(0);
            input.advance_to(91);
            for _ in 0..50 {
                device.drive();
                worker.step();
            }
            assert_eq!(probe.less_equal(&90), is_slow, "it waits");
            // A key that is in memory, when the watermark has come to its time.
            input.advance_to(150);
            for _ in 0..5 {
                worker.step();
            }
            input.send(2_999);
            input.advance_to(151);
            for _ in 0..50 {
                device.drive();
                worker.step();
            }
            assert!(counts.borrow().contains_key(&(150, 2_999)), "rows of other keys go on");
            device.release_stuck();
            while probe.less_equal(&150) {
                device.drive();
                worker.step();
            }
            let counts = counts.borrow();
            assert_eq!(counts[&(90, 0)], 2, "slow: {is_slow}");
        });
    }
}

/// Batches of three times in turns, all in one schedule: grouped by time they would not keep their order.
/// What the operator gets is looked at in the operator, as Timely's own group by time.
#[test]
fn rows_of_one_sender_are_applied_in_order() {
    let mut config = timely::Config::thread();
    install(&mut config, StoreConfig::default().into()).unwrap();
    let guards = timely::execute(config, |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        let seen = Rc::<RefCell<BTreeMap<u64, Vec<u64>>>>::default();
        let sink = seen.clone();
        worker.dataflow::<i64, _, _>(|scope| {
            type Batches = CapacityContainerBuilder<Vec<(u64, u64)>>;
            let rows = source::<_, Batches, _, _>(scope, "rows", |first, _| {
                let mut first = Some(first);
                move |output| {
                    let Some(first) = first.take() else { return };
                    for n in 0..120 {
                        let right = first.delayed(&(n as i64 * 7 % 3));
                        let rows = (0..3).map(|at| (at % 2, 3 * n + at));
                        output.session(&right).give_iterator(rows);
                    }
                }
            });
            rows.key_by(&state, |row| row.0)
                .stateful(
                    Spec::new("seen"),
                    |states| states.list::<u64, u64>("rows"),
                    move |rows: &mut List<u64, u64>, batch, context| {
                        for (key, (_, n)) in batch.drain(..) {
                            rows.append(&key, n)?;
                            sink.borrow_mut().entry(key).or_default().push(n);
                            context.emit((), 1);
                        }
                        Ok(())
                    },
                    |_, _, _| Ok(()),
                )
                .unwrap();
        });
        while worker.step() {}
        for (key, rows) in seen.borrow().iter() {
            let expected: Vec<_> = (0..360).filter(|n| n % 3 % 2 == *key).collect();
            assert_eq!(*rows, expected, "of key {key}");
        }
        assert_eq!(seen.borrow().len(), 2);
    });
    guards.unwrap().join().into_iter().for_each(|ended| ended.unwrap());
}

/// Rows of a key that is in memory, each at a time of its own, behind as many reads as may be waited for;
/// one more of these is let go at a time, so that the operator is scheduled again and again. Work for each
/// row that grew with the rows behind it made this take minutes.
#[test]
fn many_rows_in_line_are_taken_in_order() {
    let rows: i64 = if std::env::var_os("ALLUVIUM_LONG").is_some() { 200_000 } else { 40_000 };
    let device = Simulated::new(12, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::STOP, move |worker, state| {
        let device = &scripted;
        let (probe, seen) = (ProbeHandle::new(), Rc::new(RefCell::new(Vec::new())));
        let sink = seen.clone();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<u64>();
            rows.key_by(state, |key| *key)
                .stateful(
                    Spec::new("seen").parked_max(2),
                    |states| states.map::<u64, [u64; 8]>("seen"),
                    move |seen: &mut Map<u64, [u64; 8]>, rows, context| {
                        while let Some(&(key, _)) = rows.last() {
                            assert!(context.watermark().0 <= *context.time());
                            seen.update(&key, || [0; 8], |row| row[0] += 1)?;
                            sink.borrow_mut().push((*context.time(), key));
                            rows.pop();
                        }
                        context.emit((), 1);
                        Ok(())
                    },
                    |_, _, _| Ok(()),
                )
                .unwrap()
                .probe_with(&probe);
            input
        });
        for time in 0..60 {
            input.advance_to(time);
            (0..50).for_each(|n| input.send(50 * time as u64 + n));
            input.advance_to(time + 1);
            while probe.less_equal(&time) {
                device.drive();
                worker.step();
            }
        }
        seen.borrow_mut().clear();
        // Every hundredth row waits for a read.
        let key_of = |n: i64| if n % 100 == 0 { n as u64 / 100 % 2_000 } else { 2_999 };
        (1..=2).for_each(|nth| device.on_nth_read(nth, DeviceFault::Stuck));
        for n in 0..rows {
            input.advance_to(100 + n);
            input.send(key_of(n));
        }
        input.advance_to(100 + rows);
        for _ in 0..5 {
            worker.step();
        }
        let staged = || state.parked().iter().map(|(_, parked)| parked.staged).sum::<usize>();
        assert!(staged() > rows as usize / 2, "{} in line", staged());
        let begin = std::time::Instant::now();
        device.release_stuck();
        while probe.less_than(&(100 + rows)) {
            device.drive();
            worker.step();
        }
        println!("{rows} rows in line, {} ms", begin.elapsed().as_millis());
        let seen = seen.borrow();
        let warm: Vec<_> = seen.iter().filter(|(_, key)| *key == 2_999).collect();
        assert!(warm.is_sorted() && seen.len() == rows as usize);
        assert_eq!(staged(), 0);
    });
}

/// An operator that parks nothing: all rows that a full disk holds back are staged, and shown.
#[test]
fn rows_behind_a_full_disk_are_shown() {
    let device = Simulated::new(13, Faults::none());
    let scripted = device.clone();
    common::on_device(&device, MEMORY, Fault::WAIT, move |worker, state| {
        let device = &scripted;
        let (probe, total) = (ProbeHandle::new(), Rc::new(RefCell::new(0)));
        let sink = total.clone();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<u64>();
            rows.key_by(state, |key| *key)
                .rolling(Spec::new("counts").parked_max(0), Counting)
                .unwrap()
                .inspect(move |(_, _, diff)| *sink.borrow_mut() += diff)
                .probe_with(&probe);
            input
        });
        device.set_capacity_bytes(Some(64 * KIB));
        let mut next = 0;
        while state.waiting().is_empty() {
            input.advance_to(next as i64);
            (0..100).for_each(|n| input.send(100 * next + n));
            next += 1;
            input.advance_to(next as i64);
            device.drive();
            worker.step();
            assert!(next < 10_000, "the disk is never full");
        }
        let shown = || state.parked().into_iter().find(|(id, _)| id == "counts").unwrap().1;
        let before = shown().staged;
        assert!(before > 0, "{:?}", shown());
        for _ in 0..10 {
            input.send(100 * next);
            next += 1;
            input.advance_to(next as i64);
            worker.step();
        }
        assert!(shown().staged >= 10, "{:?}", shown());
        device.set_capacity_bytes(None);
        while probe.less_than(&(next as i64)) {
            device.drive();
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
        }
        assert_eq!(shown().staged, 0);
        assert!(*total.borrow() > 0);
    });
}
