//! Memory has no room for what writing a checkpoint takes: the checkpoint is given up, the job says why, and the
//! run goes on; once there is memory the next one is committed. It ended the run before.

use alluvium::{ByteSize, Error, Heap, Helpers, MIB, StoreConfig, Time};
use alluvium_timely::{Counting, JobCheckpoints, KeyBy, Rolling, Spec, Turn, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;

const NUMBERS: i64 = 1000;

#[test]
fn a_checkpoint_without_room_is_given_up_and_the_next_is_committed() {
    let place = tempfile::tempdir().unwrap();
    let store = StoreConfig {
        directory: Some(place.path().into()),
        memory: ByteSize(4 * MIB),
        layout: Heap::new().into(),
        helpers: Helpers::Inline,
        ..StoreConfig::default()
    };
    let run = execute(timely::Config::process(1), store.into(), |worker, state| {
        let probe = ProbeHandle::new();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<i64>();
            rows.key_by(state, |row| row % 10)
                .rolling(Spec::new("counts"), Counting)?
                .probe_with(&probe);
            Ok::<_, Error>(input)
        })?;
        let mut job = JobCheckpoints::new(state, probe)?;
        let (mut next, mut taken) = (0, None);
        let (mut given_up, mut is_asked) = (None, false);
        loop {
            if !is_asked && next == NUMBERS / 2 {
                job.request();
                is_asked = true;
            }
            if let (Some(why), true) = (job.abandoned(), taken.is_some()) {
                // Nothing was committed. Memory is given back, and another one is asked for.
                assert!(job.committed().is_none());
                given_up = Some(why.to_owned());
                taken = None;
                job.request();
            }
            // The last numbers come when the second one is there: the run goes on with both.
            let may_send = next < NUMBERS / 2
                || next < NUMBERS - 1 && given_up.is_some()
                || job.committed().is_some();
            let turn = job.turn(Time(next), next == NUMBERS)?;
            match turn {
                Turn::Go if next < NUMBERS && may_send => {
                    input.send(next);
                    next += 1;
                    input.advance_to(next.max(*input.time()));
                }
                Turn::Go | Turn::Wait => {}
                Turn::Until(Time(until)) => input.advance_to(until),
                Turn::Seal => {
                    job.seal(&[next as u64])?;
                    if given_up.is_none() {
                        let memory = state.store().stats()?.memory;
                        let free = memory.limit - memory.used;
                        taken = Some(state.store().reserve(free, "all there is")?);
                    }
                }
                Turn::End(_) => break,
            }
            state.step(worker)?;
        }
        let why = given_up.expect("the first one has no room");
        assert!(why.contains("checkpoint") && why.contains("0 are free"), "{why}");
        assert!(job.abandoned().is_none(), "{:?}", job.abandoned());
        Ok(job.committed().map(|committed| committed.until))
    });
    let committed = run.unwrap().pop().flatten();
    assert!(committed.is_some_and(|until| until.0 >= NUMBERS / 2), "{committed:?}");
}
