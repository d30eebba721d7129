//! `stateful`: managed timers, with one capability however many are pending.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::common;

use alluvium::Time;
use alluvium_timely::{KeyBy, NodeConfig, Spec, Stateful, WorkerOverrides};
use timely::dataflow::operators::Inspect;

/// Rows (key, time of its timer); each timer emits its time, key and the watermark it saw.
fn fire(workers: usize, batches: Vec<(i64, Vec<(u64, i64)>)>) -> Vec<(i64, u64, i64)> {
    let found = common::run(
        workers,
        NodeConfig::default(),
        WorkerOverrides::default(),
        batches,
        |rows, state| {
            rows.key_by(state, |row: &(u64, i64)| row.0).stateful(
                Spec::new("alarms"),
                |states| states.count::<u64>("calls"),
                |_, rows, context| {
                    for (key, (_, at)) in rows.drain(..) {
                        context.set_timer(key, Time(at))?;
                    }
                    Ok(())
                },
                |calls, due, context| {
                    for (at, key) in due {
                        assert_eq!(calls.add(key, 1)?, 1, "{key} is called again");
                        assert!(*at < context.watermark());
                        let watermark = context.watermark().0;
                        context.emit_at(*at, (at.0, *key, watermark), 1);
                    }
                    Ok(())
                },
            )
        },
    );
    found.unwrap().into_keys().collect()
}

#[test]
fn a_timer_waits_until_no_event_of_its_time_can_come() {
    let batches = vec![
        (0, vec![(1, 10), (2, 20), (2, 20)]),
        (10, vec![(3, 11)]),
        (11, vec![(4, 5)]),
        (20, vec![(5, 30), (6, i64::MAX)]),
    ];
    for workers in 1..=3 {
        let found = fire(workers, batches.clone());
        let fired: Vec<_> = found.iter().map(|(at, key, _)| (*at, *key)).collect();
        assert_eq!(fired, [(5, 4), (10, 1), (11, 3), (20, 2), (30, 5)], "{workers} workers");
        assert_eq!(found.last().map(|last| last.2), Some(i64::MAX));
    }
}

/// With a capability for each timer, what is scheduled 2,000 times would go through 200,000 of them each time.
#[test]
fn many_pending_timers_fire_when_they_are_due() {
    let pending = (0..200_000).map(|key| (key, 1 << 40)).collect();
    let mut batches = vec![(0, pending)];
    batches.extend((1..2_000).map(|step| (step, vec![])));
    assert_eq!(fire(1, batches).len(), 200_000);
}

/// Timers that set themselves again at the end of input: other operators have their turns meanwhile, and
/// see what came of them. Whatever was due before rows came has fired before they are applied.
#[test]
fn timers_that_set_themselves_again_take_turns_with_the_rest_of_the_worker() {
    const LAST: i64 = 200_000;
    let fired = Arc::new(AtomicI64::new(0));
    let most = Arc::new(AtomicI64::new(0));
    let (counted, seen_most) = (fired.clone(), most.clone());
    let found = common::run(
        1,
        NodeConfig::default(),
        WorkerOverrides::default(),
        vec![(0, vec![(1u64, 1i64)]), (LAST / 2, vec![(2, LAST)])],
        move |rows, state| {
            let (count, seen) = (counted.clone(), Cell::new(0));
            let fired = counted.clone();
            let most = seen_most.clone();
            let told = rows.key_by(state, |row: &(u64, i64)| row.0).stateful(
                Spec::new("alarms"),
                |states| states.count::<u64>("calls"),
                move |_, rows, context| {
                    for (key, (_, at)) in rows.drain(..) {
                        let before = fired.load(Ordering::Relaxed);
                        assert!(key == 1 || before >= LAST / 2 - 1, "{before} timers before it");
                        context.set_timer(key, Time(at))?;
                    }
                    Ok(())
                },
                move |_, due, context| {
                    for (at, key) in due.drain(..) {
                        count.fetch_add(1, Ordering::Relaxed);
                        context.emit_at(at, key, 1);
                        if at.0 < LAST {
                            context.set_timer(key, at.plus(1))?;
                        }
                    }
                    Ok(())
                },
            )?;
            let fired = counted.clone();
            Ok(told.inspect(move |_| {
                let now = fired.load(Ordering::Relaxed);
                most.fetch_max(now - seen.replace(now), Ordering::Relaxed);
            }))
        },
    );
    assert_eq!(found.unwrap(), [(1, LAST), (2, 1)].into_iter().collect());
    assert_eq!(fired.load(Ordering::Relaxed), LAST + 1);
    let most = most.load(Ordering::Relaxed);
    assert!(most < LAST / 4, "{most} timers fired while others waited");
}
