//! Inputs that are admitted no more than a bound allows, and idle ones that hold nobody back.
//!
//! What this catches: queues that grow with the backlog, a gate that lets nothing through for
//! ever, an idle input that stops the watermark or that moves it past rows still to come, a worker
//! that spins while it has nothing to do.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use alluvium::time::nanos;
use alluvium::{StoreConfig, Time, Ttl};
use alluvium_timely::{
    Counting, Gate, GatedSource, KeyBy, Rolling, Spec, Stateful, Watermarks, WorkerOverrides,
    WorkerState, install,
};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::{Concat, Inspect, Probe};
use timely::worker::Worker;

fn each_worker<R: Send + 'static>(
    workers: usize,
    work: impl Fn(&mut Worker, &WorkerState) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let mut config = timely::Config::process(workers);
    install(&mut config, StoreConfig::default().into()).unwrap();
    let guards = timely::execute(config, move |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        work(worker, &state)
    });
    guards.unwrap().join().into_iter().map(Result::unwrap).collect()
}

/// Longer than anything takes, on whatever machine.
const FOR_EVER: Duration = Duration::from_secs(90);

type Seen = Rc<RefCell<Vec<(i64, u64)>>>;

/// A source of numbers that are counted by their last digit.
fn counted(
    worker: &mut Worker,
    state: &WorkerState,
    gate: impl Fn(Gate<i64>) -> Gate<i64>,
) -> (GatedSource<i64, u64>, ProbeHandle<i64>, Seen) {
    let watermarks = Watermarks::new(worker);
    let (probe, seen) = (ProbeHandle::new(), Seen::default());
    let sink = seen.clone();
    let gate = gate(Gate::new(probe.clone()));
    let source = worker.dataflow::<i64, _, _>(|scope| {
        let (source, rows) = GatedSource::new(scope, &watermarks, gate);
        rows.key_by(state, |n: &u64| n % 10)
            .rolling(Spec::new("digits"), Counting)
            .unwrap()
            .inspect(move |((digit, _), time, _)| sink.borrow_mut().push((*time, *digit)))
            .probe_with(&probe);
        source
    });
    (source, probe, seen)
}

#[test]
fn what_is_under_way_is_bounded_in_bytes_and_in_time() {
    for workers in 1..=2 {
        each_worker(workers, |worker, state| {
            let bounds = |gate: Gate<i64>| gate.bytes_max(800).ahead_max(40);
            let (mut source, probe, seen) = counted(worker, state, bounds);
            let mut most = 0;
            for n in 0..10_000u64 {
                // The other worker may have to wait for a core; this one does not keep it busy.
                let since = Instant::now();
                while !source.admits() {
                    worker.step_or_park(Some(Duration::from_millis(1)));
                    assert!(since.elapsed() < FOR_EVER, "nothing is admitted any more");
                }
                let time = *source.time();
                let ahead = probe.with_frontier(|done| time - done.first().map_or(time, |&t| t));
                most = most.max(ahead);
                source.send(n, 8).unwrap();
                if n % 10 == 9 {
                    source.advance_to(Time(n as i64)).unwrap();
                }
            }
            drop(source);
            while worker.step_or_park(None) {}
            // The bound, and one step of time more: what is asked is whether to send at a time.
            assert!((11..=50).contains(&most), "{most}");
            assert!(!seen.borrow().is_empty() && probe.done());
        });
    }
}

/// A source that is let send little at a time is far behind one that is not, and holds the time back for
/// its rows: none of them finds an entry gone that was there at its time.
#[test]
fn rows_of_a_source_that_is_held_back_see_no_later_time() {
    const TTL: i64 = 100;
    const ROUND: i64 = TTL / 4;
    for workers in 1..=2 {
        let counts = each_worker(workers, move |worker, state| {
            let watermarks = Watermarks::new(worker);
            let (probe, counts) = (ProbeHandle::new(), Rc::new(RefCell::new(Vec::new())));
            let sink = counts.clone();
            let (mut slow, mut fast) = worker.dataflow::<i64, _, _>(|scope| {
                let gate = || Gate::new(probe.clone());
                let (slow, some) = GatedSource::new(scope, &watermarks, gate().bytes_max(8));
                let (fast, others) = GatedSource::new(scope, &watermarks, gate());
                some.concat(others)
                    .key_by(state, |row: &(u64, u64)| row.0)
                    .stateful(
                        Spec::new("recent"),
                        |states| {
                            states.expiring_map::<u64, u64>("recent", Ttl::event_time(nanos(TTL)))
                        },
                        move |recent, rows, context| {
                            assert!(context.watermark().0 <= *context.time());
                            recent.advance(context.watermark())?;
                            for (key, (_, number)) in rows.drain(..) {
                                let count = recent.update(
                                    &key,
                                    || 0,
                                    |count| {
                                        *count += 1;
                                        *count
                                    },
                                )?;
                                sink.borrow_mut().push((key, number, count));
                            }
                            Ok(())
                        },
                        |_, _, _| Ok(()),
                    )
                    .unwrap()
                    .inspect(|_: &((), i64, i64)| ())
                    .probe_with(&probe);
                (slow, fast)
            });
            let index = worker.index() as u64;
            let keys = |from: u64| from + 10 * index;
            // The fast one is done, and far ahead, before the slow one has sent much.
            for number in 0..50 {
                fast.send((keys(1_000), number), 8).unwrap();
                fast.advance_to(Time(1_000 * (number as i64 + 1))).unwrap();
            }
            if worker.index() == 1 {
                fast.declare_idle();
            }
            for number in 0..60 {
                for key in 0..3 {
                    let since = Instant::now();
                    while !slow.admits() {
                        worker.step_or_park(Some(Duration::from_millis(1)));
                        assert!(since.elapsed() < FOR_EVER, "nothing is admitted any more");
                    }
                    slow.send((keys(key), number), 8).unwrap();
                    // What is sent is done when the source is past it. The time by which an entry was touched may be that
                    // of another worker, which is up to a round behind: two rounds are less than the time to live.
                    slow.advance_to(Time(number as i64 * ROUND + key as i64 + 1)).unwrap();
                }
                slow.advance_to(Time((number as i64 + 1) * ROUND)).unwrap();
            }
            drop((slow, fast, watermarks));
            while worker.step_or_park(None) {}
            assert!(probe.done());
            counts.take()
        });
        let counts: Vec<_> = counts.into_iter().flatten().collect();
        assert_eq!(counts.len(), workers * (50 + 3 * 60));
        for (key, number, count) in counts {
            if key < 1_000 {
                assert_eq!(count, number + 1, "row {number} of {key}, {workers} workers");
            }
        }
    }
}

#[test]
fn a_bound_below_one_row_slows_but_does_not_stop() {
    each_worker(1, |worker, state| {
        let (mut source, probe, seen) = counted(worker, state, |gate| gate.bytes_max(1));
        for n in 0..100 {
            while !source.admits() {
                worker.step();
            }
            source.send(n, 8).unwrap();
            source.advance_to(Time(n as i64 + 1)).unwrap();
        }
        drop(source);
        while worker.step_or_park(None) {}
        assert!(probe.done());
        assert_eq!(seen.borrow().len(), 10 + 90 * 2);
    });
}

#[test]
fn an_idle_input_lets_the_watermark_pass_and_can_come_back() {
    let was_carried = AtomicBool::new(false);
    each_worker(2, move |worker, state| {
        let (mut source, probe, seen) = counted(worker, state, |gate| gate);
        if worker.index() == 0 {
            for n in 0..50 {
                source.send(n, 8).unwrap();
                source.advance_to(Time(n as i64 + 1)).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                worker.step();
            }
            // Who is idle carries nobody.
            while !was_carried.load(Ordering::Relaxed) {
                worker.step_or_park(Some(Duration::from_millis(1)));
            }
            // Told at once, whatever was told before.
            source.declare_idle();
        } else {
            source.declare_idle();
            while !source.is_idle() || *source.time() < 20 {
                worker.step_or_park(Some(Duration::from_millis(1)));
                source.keep_up();
            }
            was_carried.store(true, Ordering::Relaxed);
            // It was carried along, not past what the other may still send.
            assert!(*source.time() <= 50);
            let time = *source.time();
            source.send(3, 8).unwrap();
            assert!(!source.is_idle());
            source.advance_to(Time(time + 1)).unwrap();
            worker.step();
            source.keep_up();
            assert_eq!(*source.time(), time + 1, "it is not idle any more");
            assert!(probe.less_equal(&(time + 1)));
        }
        drop(source);
        while worker.step_or_park(None) {}
        assert!(probe.done());
        seen.borrow().len()
    });
}

#[test]
fn nobody_is_carried_along_when_all_are_idle_and_a_closed_input_holds_nobody() {
    each_worker(2, |worker, state| {
        let (mut source, probe, _) = counted(worker, state, |gate| gate);
        if worker.index() == 0 {
            drop(source);
            while worker.step_or_park(None) {}
            assert!(probe.done());
            return;
        }
        source.advance_to(Time(7)).unwrap();
        source.declare_idle();
        for _ in 0..100 {
            worker.step();
            source.keep_up();
        }
        assert_eq!(*source.time(), 7);
        while probe.less_than(&7) {
            worker.step();
        }
        drop(source);
        while worker.step_or_park(None) {}
    });
}

/// What the other one said last has to be heard although it does nothing more, open or closed.
#[test]
fn an_idle_input_is_carried_to_where_a_quiet_one_is() {
    for closes in [false, true] {
        let is_there = AtomicBool::new(false);
        each_worker(2, move |worker, state| {
            let (mut source, probe, _) = counted(worker, state, |gate| gate);
            if worker.index() == 0 {
                // Both within the time in which others are told once.
                source.advance_to(Time(50)).unwrap();
                worker.step();
                source.advance_to(Time(100)).unwrap();
                let mut open = Some(source);
                if closes {
                    open = None;
                }
                while !is_there.load(Ordering::Relaxed) {
                    worker.step_or_park(Some(Duration::from_millis(1)));
                }
                drop(open);
            } else {
                source.declare_idle();
                let since = Instant::now();
                while probe.less_than(&100) {
                    worker.step_or_park(Some(Duration::from_millis(1)));
                    source.keep_up();
                    let at = source.time();
                    assert!(since.elapsed() < FOR_EVER, "closes: {closes}, it stays at {at}");
                }
                assert_eq!(*source.time(), 100);
                is_there.store(true, Ordering::Relaxed);
                drop(source);
            }
            while worker.step_or_park(None) {}
        });
    }
}

#[test]
fn a_worker_with_nothing_to_do_sleeps() {
    each_worker(2, |worker, state| {
        let (mut source, probe, _) = counted(worker, state, |gate| gate);
        source.send(1, 8).unwrap();
        source.advance_to(Time(1)).unwrap();
        while probe.less_than(&1) {
            worker.step_or_park(None);
        }
        let later = Instant::now() + Duration::from_millis(200);
        let mut steps = 0;
        while Instant::now() < later {
            worker.step_or_park(Some(later - Instant::now()));
            steps += 1;
        }
        // Some for progress that was still under way; spinning would make hundreds of thousands.
        assert!(steps < 100, "{steps}");
    });
}
