//! A state call that fails ends the run with its error on every worker: no panic, no hang, and
//! no probe that says results of the failed time are complete.

use crate::common;
use alluvium::{AnyLayout, ErrorKind, Heap, KIB, Result, StoreConfig, Time};
use alluvium_timely::{
    Counting, Join, KeyBy, NodeConfig, Rolling, Spec, Stateful, WorkerOverrides, WorkerState,
    install,
};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;

fn small_node() -> NodeConfig {
    let layout = AnyLayout::from(Heap::new().memory(16 * KIB));
    StoreConfig { layout, ..StoreConfig::default() }.into()
}

fn batches() -> Vec<(i64, Vec<u64>)> {
    (0..50).map(|step| (step, (0..100).map(|n| step as u64 * 100 + n).collect())).collect()
}

#[test]
fn every_operator_reports_what_it_could_not_keep() {
    for workers in 1..=3 {
        let rolling = common::run(
            workers,
            small_node(),
            WorkerOverrides::default(),
            batches(),
            |rows, state| rows.key_by(state, |row| *row).rolling(Spec::new("op"), Counting),
        );
        let join = common::run(
            workers,
            small_node(),
            WorkerOverrides::default(),
            batches(),
            |rows, state| {
                let other = rows.clone().key_by(state, |row| *row);
                rows.key_by(state, |row| *row).join(other, Spec::new("op"), |key, _, _| (*key, 0))
            },
        );
        let stateful = common::run(
            workers,
            small_node(),
            WorkerOverrides::default(),
            batches(),
            |rows, state| {
                rows.key_by(state, |row| *row).stateful(
                    Spec::new("op"),
                    |states| states.map::<u64, u64>("rows"),
                    |_, rows, context| {
                        for (key, _) in rows.drain(..) {
                            context.set_timer(key, Time(40))?;
                        }
                        Ok(())
                    },
                    |map, due, context| {
                        for (_, key) in due {
                            map.put(*key, *key)?;
                            context.emit((*key, 0i64), 1);
                        }
                        Ok(())
                    },
                )
            },
        );
        for error in [rolling, join, stateful].map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::OverBudget, "{workers} workers: {error}");
        }
    }
}

#[test]
fn no_probe_passes_the_failed_time() {
    let mut config = timely::Config::process(1);
    install(&mut config, small_node()).unwrap();
    let guards = timely::execute(config, |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        let probe = ProbeHandle::new();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<u64>();
            rows.key_by(&state, |row| *row)
                .rolling(Spec::new("op"), Counting)
                .unwrap()
                .probe_with(&probe);
            input
        });
        let mut failed_at = None;
        for (time, rows) in batches() {
            input.advance_to(time);
            rows.into_iter().for_each(|row| input.send(row));
            input.advance_to(time + 1);
            for _ in 0..10 {
                worker.step();
            }
            if state.has_failed() {
                failed_at.get_or_insert(time);
            }
        }
        input.close();
        for _ in 0..100 {
            worker.step();
        }
        let failed_at = failed_at.expect("16 KiB are too little");
        assert!(probe.less_equal(&failed_at) && !probe.less_than(&failed_at));
        assert!(state.fault().is_some());
        assert!(state.abandon_if_failed(worker).is_err());
        assert!(!worker.has_dataflows());
    });
    for result in guards.unwrap().join() {
        result.unwrap();
    }
}
