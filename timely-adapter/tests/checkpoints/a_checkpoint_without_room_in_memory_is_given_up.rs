//! Memory has no room for what beginning or writing a checkpoint takes: the checkpoint is given up, the job says why,
//! and the run goes on; once there is memory the next one is committed. It ended the run before.

use alluvium::config::{ByteSize, Helpers};
use alluvium::time::nanos;
use alluvium::{Elements, Error, Heap, MIB, StoreConfig, Time, Windows, process};
use alluvium_timely::{Counting, JobCheckpoints, KeyBy, Rolling, Spec, Turn, Windowing, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::vec::{Input, Map};

const NUMBERS: i64 = 1000;

#[test]
fn a_checkpoint_without_room_is_given_up_and_the_next_is_committed() {
    given_up_without_room(false);
}

#[test]
fn a_checkpoint_without_room_to_begin_is_given_up_and_the_next_is_committed() {
    given_up_without_room(true);
}

/// Memory is taken before the stores are sealed, where lists need some for that, or after it.
fn given_up_without_room(to_begin: bool) {
    let place = tempfile::tempdir().unwrap();
    let store = StoreConfig {
        directory: Some(place.path().into()),
        memory: ByteSize(4 * MIB),
        layout: Heap::new().into(),
        helpers: Helpers::Inline,
        ..StoreConfig::default()
    };
    let run = execute(timely::Config::process(1), store.into(), move |worker, state| {
        let probe = ProbeHandle::new();
        let input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<i64>();
            let keyed = rows.clone().key_by(state, |row| row % 10);
            let counts = keyed.rolling(Spec::new("counts"), Counting)?;
            let count =
                process(|_: &i64, _, rows: &mut dyn Elements<i64>, emit: &mut dyn FnMut(_)| {
                    let mut count = 0;
                    while rows.next()?.is_some() {
                        count += 1;
                    }
                    emit(count);
                    Ok(())
                });
            let keyed = rows.key_by(state, |row| row % 10);
            let kept = keyed.window(Windows::tumbling(nanos(100)), |row: &i64| Time(*row));
            let kept = kept.holistic(Spec::new("kept"), count)?.results;
            counts.map(drop).concat(kept.map(drop)).probe_with(&probe);
            Ok::<_, Error>(input)
        })?;
        let mut job = JobCheckpoints::new(state, probe)?;
        let mut input = job.input(input);
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
            let turn = job.turn(next == NUMBERS)?;
            match turn {
                Turn::Go if next < NUMBERS && may_send => {
                    input.send(Time(next), next)?;
                    next += 1;
                    input.advance_to(Time(next))?;
                }
                Turn::Go | Turn::Wait => {}
                Turn::Until(until) => input.advance_to(until)?,
                Turn::Seal { .. } => {
                    let take_all = || {
                        let memory = state.store().stats()?.memory;
                        state.store().reserve(memory.limit - memory.used, "all there is")
                    };
                    if given_up.is_none() && to_begin {
                        taken = Some(take_all()?);
                    }
                    job.seal(&[next as u64])?;
                    if given_up.is_none() && !to_begin {
                        taken = Some(take_all()?);
                    }
                }
                Turn::End(_) => break,
            }
            state.step(worker)?;
        }
        let why = given_up.expect("the first one has no room");
        assert!(why.contains(" 0 are free"), "{why}");
        assert!(job.abandoned().is_none(), "{:?}", job.abandoned());
        Ok(job.committed().map(|committed| committed.until))
    });
    let committed = run.unwrap().pop().flatten();
    assert!(committed.is_some_and(|until| until.0 >= NUMBERS / 2), "{committed:?}");
}
