//! The log stream `store`, read back by a dataflow of each worker: every event says what the store
//! said at that moment, the last one says that it is the last, and without a reader nothing is
//! logged.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium_timely::{
    Counting, KeyBy, NodeConfig, Rolling, STORE_LOG, Spec, StoreEvent, StoreEventBuilder,
    WorkerState, install,
};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::capture::{EventLink, Replay};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::logging::BatchLogger;

type Batch = Vec<(Duration, StoreEvent)>;

/// What a worker saw: the events, and what it read from the store itself when it logged.
#[derive(Default)]
struct Seen {
    events: Vec<(Duration, StoreEvent)>,
    own: Vec<StoreEvent>,
}

#[test]
fn events_are_what_the_store_says() {
    const WORKERS: usize = 2;
    const ROWS: u64 = 1000;
    let mut config = timely::Config::process(WORKERS);
    install(&mut config, NodeConfig::default()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let guards = timely::execute(config, move |worker| {
        let link: Rc<EventLink<Duration, Batch>> = Rc::new(EventLink::new());
        let mut batches = BatchLogger::new(link.clone());
        worker.log_register().unwrap().insert::<StoreEventBuilder, _>(
            STORE_LOG,
            move |at, data| {
                batches.publish_batch(at, data);
            },
        );
        let events = Rc::new(std::cell::RefCell::new(Vec::new()));
        let read = ProbeHandle::new();
        worker.dataflow::<Duration, _, _>(|scope| {
            let events = events.clone();
            Some(link)
                .replay_into(scope)
                .inspect(move |event: &(Duration, StoreEvent)| {
                    events.borrow_mut().push(event.clone());
                })
                .probe_with(&read);
        });

        let state = WorkerState::new(worker, Default::default()).unwrap();
        assert!(!state.log_stats(), "nobody has asked for it");
        assert!(state.log_stats_every(worker, Duration::ZERO));
        let probe = ProbeHandle::new();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<u64>();
            rows.key_by(&state, |row: &u64| row % 100)
                .rolling(Spec::new("counts"), Counting)
                .unwrap()
                .probe_with(&probe);
            input
        });
        let own = |end| {
            let stats = state.store().stats().unwrap();
            StoreEvent { worker: state.index(), end, stats }
        };
        let mut told = Vec::new();
        for time in 1..=4 {
            if worker.index() == 0 {
                (0..ROWS / 4).for_each(|row| input.send(row));
            }
            input.advance_to(time);
            while probe.less_than(&time) {
                worker.step();
            }
            told.push(own(false));
            assert!(state.log_stats_if_due(), "the interval is none");
        }
        // From now on only the end is due.
        state.log_stats_every(worker, Duration::from_secs(1 << 30));
        assert!(!state.log_stats_if_due());
        told.push(own(true));
        input.close();
        while !probe.done() {
            worker.step();
        }
        drop(state);
        // The operators let go of the state when their dataflow ends; then the log is closed.
        while worker.installed_dataflows().len() > 1 {
            worker.step();
        }
        worker.log_register().unwrap().remove(STORE_LOG);
        while !read.done() {
            worker.step();
        }
        sink.lock().unwrap().push(Seen { events: events.take(), own: told });
    });
    for guard in guards.unwrap().join() {
        guard.unwrap();
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), WORKERS);
    let mut calls = 0;
    for Seen { events, own } in seen {
        assert!(events.is_sorted_by_key(|(at, _)| *at));
        let events: Vec<StoreEvent> = events.into_iter().map(|(_, event)| event).collect();
        assert_eq!(events, own);
        calls += events.last().unwrap().stats.total().calls;
        let json = serde_json::to_string(&events).unwrap();
        assert_eq!(serde_json::from_str::<Vec<StoreEvent>>(&json).unwrap(), own);
    }
    assert_eq!(calls, ROWS, "each row was counted by the worker that owns it");
}

#[test]
fn without_a_reader_nothing_is_logged() {
    let mut config = timely::Config::process(1);
    install(&mut config, NodeConfig::default()).unwrap();
    let guards = timely::execute(config, |worker| {
        let state = WorkerState::new(worker, Default::default()).unwrap();
        let bound = state.log_stats_every(worker, Duration::ZERO);
        (bound, state.log_stats_if_due(), state.log_stats())
    });
    for guard in guards.unwrap().join() {
        assert_eq!(guard.unwrap(), (false, false, false));
    }
}
