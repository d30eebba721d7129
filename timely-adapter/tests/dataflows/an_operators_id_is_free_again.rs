//! An operator's id is taken once the operator is built, and not by a build that fails.

use std::cell::RefCell;
use std::rc::Rc;

use alluvium::{Error, ErrorKind, Map, StoreConfig};
use alluvium_timely::{
    Counting, KeyBy, Rolling, Spec, Stateful, WorkerOverrides, WorkerState, install,
};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

type Seen = Rc<RefCell<Vec<i64>>>;

fn counted(
    worker: &mut Worker,
    state: &WorkerState,
) -> alluvium::Result<(InputHandleVec<i64, u64>, ProbeHandle<i64>, Seen)> {
    let (probe, seen) = (ProbeHandle::new(), Seen::default());
    let sink = seen.clone();
    let input = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<u64>();
        rows.key_by(state, |row| *row)
            .rolling(Spec::new("counts"), Counting)?
            .inspect(move |((_, count), _, diff)| {
                if *diff > 0 {
                    sink.borrow_mut().push(*count);
                }
            })
            .probe_with(&probe);
        Ok::<_, Error>(input)
    })?;
    Ok((input, probe, seen))
}

#[test]
fn after_a_failed_build() {
    let mut config = timely::Config::thread();
    install(&mut config, StoreConfig::default().into()).unwrap();
    let guards = timely::execute(config, |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        // A build that fails.
        let failed = worker.dataflow::<i64, _, _>(|scope| {
            let (_, rows) = scope.new_input::<u64>();
            rows.key_by(&state, |row| *row)
                .stateful(
                    Spec::new("counts"),
                    |_| Err::<Map<u64, u64>, _>(Error::new(ErrorKind::Input, "no luck")),
                    |_, _, _| Ok(()),
                    |_, _, _| Ok(()),
                )
                .map(|changes: alluvium_timely::Changes<'_, i64, u64>| drop(changes))
        });
        assert!(failed.unwrap_err().to_string().contains("no luck"));
        let (mut input, probe, seen) = counted(worker, &state).unwrap();
        // While it is there, there is no other.
        let error = counted(worker, &state).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        assert_eq!(error.context("operator"), Some("counts"));
        input.send(7);
        input.close();
        while !probe.done() {
            worker.step();
        }
        assert_eq!(*seen.borrow(), [1]);
    });
    guards.unwrap().join().into_iter().for_each(|ended| ended.unwrap());
}
