//! A checkpoint between two runs: pending timers and state are those of the first run.

use std::path::Path;
use std::sync::{Arc, Mutex};

use alluvium::config::ByteSize;
use alluvium::{MIB, StoreConfig, Time};
use alluvium_timely::{KeyBy, Spec, Stateful, WorkerState, install};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};

/// Sends `rows` (key, alarm) at time 0 and leaves at time `until`, with a checkpoint there.
fn run(directory: &Path, rows: Vec<(u64, i64)>, until: i64) -> Vec<(u64, i64, i64)> {
    let mut config = timely::Config::process(2);
    let memory = ByteSize(8 * MIB);
    let directory = Some(directory.to_owned());
    install(&mut config, StoreConfig { directory, memory, ..StoreConfig::default() }.into())
        .unwrap();
    let fired = Arc::new(Mutex::new(Vec::new()));
    let sink = fired.clone();
    let guards = timely::execute(config, move |worker| {
        let state = WorkerState::new(worker, Default::default()).unwrap();
        let probe = ProbeHandle::new();
        let sink = sink.clone();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, stream) = scope.new_input::<(u64, i64)>();
            stream
                .key_by(&state, |row: &(u64, i64)| row.0)
                .stateful(
                    Spec::new("alarms"),
                    |states| states.map::<u64, i64>("rows"),
                    |map, rows, context| {
                        for (key, (_, at)) in rows.drain(..) {
                            map.put(key, at)?;
                            context.set_timer(key, Time(at))?;
                        }
                        Ok(())
                    },
                    |map, due, context| {
                        for (at, key) in due {
                            let kept = map.take(key)?.expect("the row of the timer");
                            context.emit_at(*at, (*key, kept), 1);
                        }
                        Ok(())
                    },
                )
                .unwrap()
                .inspect(move |((key, kept), time, _)| {
                    sink.lock().unwrap().push((*key, *kept, *time));
                })
                .probe_with(&probe);
            input
        });
        if worker.index() == 0 {
            rows.iter().for_each(|row| input.send(*row));
        }
        input.advance_to(until);
        while probe.less_than(&until) {
            worker.step();
        }
        state.store().checkpoint(until.cast_unsigned()).unwrap();
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
    });
    for result in guards.unwrap().join() {
        result.unwrap();
    }
    let mut fired = std::mem::take(&mut *fired.lock().unwrap());
    fired.sort_unstable();
    fired
}

#[test]
fn a_restart_fires_what_was_pending_once() {
    let directory = tempfile::tempdir().unwrap();
    let rows = (0..100).map(|key| (key, key as i64 * 10)).collect();
    let expected = |keys: std::ops::Range<u64>| -> Vec<_> {
        keys.map(|key| (key, key as i64 * 10, key as i64 * 10)).collect()
    };
    assert_eq!(run(directory.path(), rows, 300), expected(0..30));
    assert_eq!(run(directory.path(), vec![], 700), expected(30..70));
    assert_eq!(run(directory.path(), vec![], 5_000), expected(70..100));
}
