//! An operator's state with a time to live: rows that come again within ten units of time are dropped,
//! on any number of workers, and one that comes later is new.

use crate::common;

use alluvium::Ttl;
use alluvium::time::nanos;
use alluvium_timely::{EventTime, KeyBy, NodeConfig, Spec, Stateful, WorkerOverrides};

const TTL: i64 = 10;

fn first_of_each(workers: usize, batches: Vec<(i64, Vec<(u64, i64)>)>) -> Vec<(u64, i64)> {
    let found = common::run(
        workers,
        NodeConfig::default(),
        WorkerOverrides::default(),
        batches,
        |rows, state| {
            rows.key_by(state, |row: &(u64, i64)| row.0).stateful(
                Spec::new("distinct"),
                |states| states.expiring_map::<u64, ()>("seen", Ttl::event_time(nanos(TTL))),
                |seen, rows, context| {
                    // A batch has one time, and those of a key come in order.
                    seen.advance(context.time().time())?;
                    for (key, row) in rows.drain(..) {
                        if !seen.contains(&key)? {
                            seen.put(key, ())?;
                            context.emit(row, 1);
                        }
                    }
                    Ok(())
                },
                |_, _, _| Ok(()),
            )
        },
    );
    found.unwrap().into_keys().collect()
}

#[test]
fn rows_that_come_again_too_soon_are_dropped() {
    let times = [0, 3, 9, 10, 12, 19, 20, 21, 500];
    let batches = times.map(|at| (at, (0..50).map(|key| (key, at)).collect()));
    for workers in 1..=2 {
        let found = first_of_each(workers, batches.to_vec());
        let expected = (0..50).flat_map(|key| [0, 10, 20, 500].map(|at| (key, at)));
        assert_eq!(found, expected.collect::<Vec<_>>(), "{workers} workers");
    }
}
