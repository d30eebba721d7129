//! An operator's id is taken as long as the operator is there: it is free again after a build that fails,
//! and after its dataflow has ended. The next operator finds the states as the last one left them.
//!
//! What this catches: a state that stays open without an operator; what is as of the last checkpoint, or not
//! in the next one; key groups that the next operator looks for where they were at the begin of the run.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{Error, ErrorKind, MIB, Map, StoreConfig, Time, Ttl, Windows};
use alluvium_timely::{
    Counting, Fired, KeyBy, MoveGroup, OperatorState, Rolling, Spec, Stateful, Windowing,
    WorkerOverrides, WorkerState, execute, install,
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

#[test]
fn after_a_failed_build_that_had_opened_states() {
    let mut config = timely::Config::thread();
    install(&mut config, StoreConfig::default().into()).unwrap();
    let guards = timely::execute(config, |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        let build = |worker: &mut Worker, width| {
            worker.dataflow::<i64, _, _>(|scope| {
                let (input, rows) = scope.new_input::<u64>();
                let changes = rows.key_by(&state, |row| *row).stateful(
                    Spec::new("counts"),
                    |states| {
                        Ok((
                            states.map::<u64, u64>("map")?,
                            states.time_map::<u64, u64>("near", nanos(width))?,
                        ))
                    },
                    |(map, near), rows, context| {
                        for (key, row) in rows.drain(..) {
                            let count = map.update(
                                &key,
                                || 0,
                                |count| {
                                    *count += 1;
                                    *count
                                },
                            )?;
                            near.insert(&key, Time(1), row).map_err(Error::from)?;
                            context.emit(count, 1);
                        }
                        Ok(())
                    },
                    |_, _, _| Ok(()),
                )?;
                drop::<alluvium_timely::Changes<'_, i64, u64>>(changes);
                Ok::<_, Error>(input)
            })
        };
        for _ in 0..2 {
            assert_eq!(build(worker, 0).map(drop).unwrap_err().kind(), ErrorKind::Config);
        }
        build(worker, 5).unwrap();
    });
    guards.unwrap().join().into_iter().for_each(|ended| ended.unwrap());
}

/// All states that an operator may have.
struct States {
    map: Map<u64, u64>,
    count: alluvium::Count<u64>,
    value: alluvium::Value<u64>,
    list: alluvium::List<u64, u64>,
    near: alluvium::TimeMap<u64, u64>,
    recent: alluvium::ExpiringMap<u64, u64>,
    folded: alluvium::Aggregated<u64, (), Counting>,
}

fn open(states: &OperatorState<'_>) -> alluvium::Result<States> {
    Ok(States {
        map: states.map("map")?,
        count: states.count("count")?,
        value: states.value("value")?,
        list: states.list("list")?,
        near: states.time_map("near", nanos(10))?,
        recent: states.expiring_map("recent", Ttl::event_time(nanos(1_000)))?,
        folded: states.aggregated("folded", Windows::tumbling(nanos(1_000)), Counting)?,
    })
}

/// What each state knew of a key before a row: how often it had come.
type Known = Vec<u64>;

/// What the states knew of all keys, and the timers that fired.
type Came = (Vec<Known>, Vec<i64>);

/// Runs a dataflow in which each key comes once at `time`; gives what the states knew of it, and the timers
/// that fired.
fn come(worker: &mut Worker, state: &WorkerState, time: i64, keys: u64) -> Came {
    let (seen, fired) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    let (seeing, firing) = (seen.clone(), fired.clone());
    let probe = ProbeHandle::new();
    let mut input = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<u64>();
        rows.key_by(state, |row| *row)
            .stateful(
                Spec::new("all"),
                open,
                move |states, rows, context| {
                    for (key, _) in rows.drain(..) {
                        let at = Time(*context.time());
                        states.recent.advance(at)?;
                        let mut known = vec![states.map.get(&key)?.map_or(0, |count| *count)];
                        known.push(states.count.get(&key)?.cast_unsigned());
                        known.push(states.list.to_vec(&key)?.len() as u64);
                        known.push(states.near.range(&key, Time::MIN..Time::MAX, |_, _| Ok(()))?);
                        known.push(states.recent.get(&key)?.map_or(0, |count| *count));
                        known.push(states.value.get()?.map_or(0, |count| *count) / keys);
                        seeing.borrow_mut().push(known);
                        // Far off: it fires at the end.
                        context.set_timer(key, Time(1_000_000 + at.0))?;
                        states.map.update(&key, || 0, |count| *count += 1)?;
                        states.count.add(&key, 1)?;
                        states.list.append(&key, key).map_err(Error::from)?;
                        states.near.insert(&key, at, key).map_err(Error::from)?;
                        states.recent.update(&key, || 0, |count| *count += 1)?;
                        states.value.update(|| 0, |count| *count += 1)?;
                        let mut event = vec![(key, Time(10), ())];
                        let late = &mut |_| panic!("nothing is late");
                        states.folded.add_batch(
                            Time::MIN,
                            &mut event,
                            late,
                            &mut |_, _, _, _| {},
                        )?;
                    }
                    Ok(())
                },
                move |states, timers, _| {
                    firing.borrow_mut().extend(timers.drain(..).map(|(at, _)| at.0));
                    let mut sums = Vec::new();
                    let told = &mut |_: &u64, _, count, _| sums.push(count);
                    states.folded.advance_all(Time::MAX, told)?;
                    firing.borrow_mut().extend(sums.iter().map(|sum| -sum));
                    Ok(())
                },
            )
            .unwrap()
            .inspect(|_: &((), i64, i64)| ())
            .probe_with(&probe);
        input
    });
    input.advance_to(time);
    (0..keys).for_each(|key| input.send(key));
    input.advance_to(time + 1);
    while probe.less_than(&(time + 1)) {
        worker.step();
    }
    if time < 900 {
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
    } else {
        input.close();
        while !probe.done() {
            worker.step();
        }
    }
    let (mut seen, mut fired) = (seen.take(), fired.take());
    seen.sort();
    fired.sort();
    (seen, fired)
}

fn config(directory: Option<&Path>) -> timely::Config {
    let mut config = timely::Config::thread();
    let directory = directory.map(Into::into);
    let store = StoreConfig { directory, memory: ByteSize(64 * MIB), ..StoreConfig::default() };
    install(&mut config, store.into()).unwrap();
    config
}

#[test]
fn after_its_dataflow_has_ended_with_every_state_as_it_was() {
    const KEYS: u64 = 500;
    let directory = tempfile::tempdir().unwrap();
    let known = |times: u64| (vec![vec![times; 6]; KEYS as usize], Vec::new());
    let run = |job: fn(&mut Worker, &WorkerState) -> Vec<Came>| {
        let guards = timely::execute(config(Some(directory.path())), move |worker| {
            let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
            job(worker, &state)
        });
        guards.unwrap().join().pop().unwrap().unwrap()
    };
    let all = run(|worker, state| {
        let first = come(worker, state, 100, KEYS);
        // Without an operator, the checkpoint has its states.
        state.store().checkpoint(1).unwrap();
        let second = come(worker, state, 101, KEYS);
        vec![first, second, come(worker, state, 102, KEYS)]
    });
    assert_eq!(all, [known(0), known(1), known(2)]);
    // As of the checkpoint, and on.
    let all = run(|worker, state| {
        let all = (0..2).map(|n| come(worker, state, 200 + n, KEYS)).collect();
        state.store().checkpoint(2).unwrap();
        all
    });
    assert_eq!(all, [known(1), known(2)]);
    // The last one ends, with all timers and windows of those before it.
    let all = run(|worker, state| vec![come(worker, state, 900, KEYS)]);
    let of = |time: i64| std::iter::repeat_n(1_000_000 + time, KEYS as usize);
    let fired = std::iter::repeat_n(-4, KEYS as usize);
    let fired: Vec<_> = fired.chain(of(100)).chain(of(200)).chain(of(201)).chain(of(900)).collect();
    assert_eq!(all, [(known(3).0, fired)]);
}

#[test]
fn windows_go_on_where_the_last_operator_was() {
    let guards = timely::execute(config(None), |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        let told = Rc::new(RefCell::new(Vec::new()));
        for run in 0..3 {
            let (telling, probe) = (told.clone(), ProbeHandle::new());
            let mut input = worker.dataflow::<i64, _, _>(|scope| {
                let (input, rows) = scope.new_input::<(u64, i64)>();
                let Fired { results, late } = rows
                    .key_by(&state, |row: &(u64, i64)| row.0)
                    .window(Windows::tumbling(nanos(100)), |row: &(u64, i64)| Time(row.1))
                    .aggregate(Spec::new("windows"), Counting)
                    .unwrap();
                late.inspect(|late| panic!("{late:?}"));
                results
                    .inspect(move |((_, window, count), _, _)| {
                        telling.borrow_mut().push((window.end.0, *count));
                    })
                    .probe_with(&probe);
                input
            });
            input.advance_to(run * 30);
            (0..10).for_each(|key| input.send((key, run * 30 + 5)));
            let until = run * 30 + 25;
            input.advance_to(until);
            while probe.less_than(&until) {
                worker.step();
            }
            if run < 2 {
                for dataflow in worker.installed_dataflows() {
                    worker.drop_dataflow(dataflow);
                }
            }
            drop(input);
        }
        while worker.step() {}
        assert_eq!(*told.borrow(), [(100, 3); 10]);
    });
    guards.unwrap().join().into_iter().for_each(|ended| ended.unwrap());
}

#[test]
fn key_groups_are_where_the_last_operator_has_moved_them() {
    const GROUPS: u16 = 8;
    let store = StoreConfig { key_groups: GROUPS, ..StoreConfig::default() };
    let counts = Arc::new(Mutex::new(Vec::new()));
    let all = counts.clone();
    let ended = execute(timely::Config::process(2), store.into(), move |worker, state| {
        for run in 0..3_i64 {
            let (sink, probe) = (all.clone(), ProbeHandle::new());
            let index = worker.index();
            let (mut input, mut control) = worker.dataflow::<i64, _, _>(|scope| {
                let (input, rows) = scope.new_input::<u64>();
                let (control, told) = scope.new_input::<MoveGroup>();
                rows.key_by(state, |row| *row)
                    .migratable(told)
                    .rolling(Spec::new("counts"), Counting)?
                    .inspect(move |((key, count), _, diff)| {
                        if *diff > 0 {
                            sink.lock().unwrap().push((run, index, *key, *count));
                        }
                    })
                    .probe_with(&probe);
                Ok::<_, Error>((input, control))
            })?;
            if index == 0 {
                (0..100).for_each(|key| input.send(key));
                // All groups to the worker whose turn it is.
                control.advance_to(10);
                let to = (run % 2) as u32;
                (0..GROUPS)
                    .for_each(|group| control.send(MoveGroup { group: KeyGroup(group), to }));
            }
            control.close();
            input.close();
            state.run_until(worker, || probe.done())?;
            // Its operators are gone.
            while worker.step() {}
            state.meet(worker, 0)?;
        }
        Ok(())
    });
    ended.unwrap();
    let counts = std::mem::take(&mut *counts.lock().unwrap());
    assert_eq!(counts.len(), 300);
    for (run, worker, key, count) in counts {
        assert_eq!(count, run + 1, "key {key} in run {run}");
        // In the second run all are where the first has moved them.
        assert!(run == 0 || worker as i64 == (run - 1) % 2, "key {key} in run {run} at {worker}");
    }
}
