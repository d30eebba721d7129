//! An operator's closure that writes under a key which is not its rows' own fails when it does, on any number
//! of workers, and not when the job goes on with another one.
//!
//! What this catches: a key that is taken as its group is the worker's; one that is taken as it was a row's in
//! another call; a row's own that is refused.

use std::time::Duration;

use alluvium::time::nanos;
use alluvium::{Error, ErrorKind, Map, Result, StoreConfig, Time};
use alluvium_timely::{Context, KeyBy, MoveGroup, OperatorState, Spec, Stateful, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;

/// What the operator does for a row.
type Write<S> = fn(&mut S, u64, &mut Context<'_, i64, u64, ()>) -> Result<()>;

/// Runs an operator that writes with `write` for each row, on so many workers.
fn run<S: 'static>(
    workers: usize,
    spec: fn() -> Spec,
    open: fn(&OperatorState<'_>) -> Result<S>,
    write: Write<S>,
) -> Result<()> {
    let config = timely::Config::process(workers);
    execute(config, StoreConfig::default().into(), move |worker, state| {
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<u64>();
            rows.key_by(state, |row| *row).stateful(
                spec(),
                open,
                move |states, rows, context| {
                    while let Some((_, row)) = rows.last() {
                        write(states, *row, context)?;
                        rows.pop();
                    }
                    Ok(())
                },
                |_, due, _| {
                    due.clear();
                    Ok(())
                },
            )?;
            Ok::<_, Error>(input)
        })?;
        // 0 is no row's.
        (1..200).for_each(|row| input.send(row));
        input.close();
        while worker.has_dataflows() {
            state.step_or_nap(worker, Duration::from_millis(1))?;
        }
        Ok(())
    })
    .map(drop)
}

/// Each write by a key of its row, by 0, and by 0 where that is allowed.
fn check<S: 'static>(
    what: &str,
    open: fn(&OperatorState<'_>) -> Result<S>,
    own: Write<S>,
    zero: Write<S>,
) {
    let spec = || Spec::new("operator");
    run(2, spec, open, own).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let error = run(2, spec, open, zero).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: {error:?}");
    let text = error.to_string();
    assert!(text.contains("cannot be here") && text.contains("operator"), "{what}: {text}");
    // One worker has all groups; it may be two later.
    let error = run(1, spec, open, zero).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: {error:?}");
    assert!(error.to_string().contains("none of the rows"), "{what}: {error}");
    // Whoever says so may keep any.
    let any = || Spec::new("operator").any_keys();
    run(2, any, open, zero).unwrap_or_else(|error| panic!("{what}: {error:?}"));
}

#[test]
fn states_and_timers_of_an_operator_take_the_keys_of_its_rows() {
    check(
        "map",
        |states| states.map::<u64, u64>("map"),
        |map, row, _| map.update(&row, || 0, |value| *value += 1),
        |map, _, _| map.update(&0, || 0, |value| *value += 1),
    );
    check(
        "count",
        |states| states.count::<u64>("count"),
        |count, row, _| count.add(&row, 1).map(drop),
        |count, _, _| count.add(&0, 1).map(drop),
    );
    check(
        "list",
        |states| states.list::<u64, u64>("list"),
        |list, row, _| Ok(list.append(&row, 1)?),
        |list, row, _| Ok(list.append(&0, row)?),
    );
    check(
        "time map",
        |states| states.time_map::<u64, u64>("times", nanos(10)),
        |times, row, _| Ok(times.insert(&row, Time(1), 1)?),
        |times, row, _| Ok(times.insert(&0, Time(1), row)?),
    );
    check(
        "timers",
        |states| states.value::<u64>("value"),
        |_, row, context| context.set_timer(row, Time(5)),
        |_, _, context| context.set_timer(0, Time(5)),
    );
}

/// Sends rows to an operator, one a call; its closures are called with the keys at hand, and with what they
/// note. Gives the error of the run.
fn one_by_one<S: 'static>(
    spec: Spec,
    open: fn(&OperatorState<'_>) -> Result<S>,
    rows: Write<S>,
    due: Write<S>,
    moves: bool,
) -> Result<()> {
    execute(timely::Config::thread(), StoreConfig::default().into(), move |worker, state| {
        let probe = ProbeHandle::new();
        let mut input = worker.dataflow::<i64, _, _>(|scope| {
            let (input, stream) = scope.new_input::<u64>();
            let (control, told) = scope.new_input::<MoveGroup>();
            drop(control);
            let rows = move |states: &mut S,
                             batch: &mut Vec<(u64, u64)>,
                             context: &mut Context<'_, i64, u64, ()>| {
                while let Some((key, _)) = batch.last() {
                    rows(states, *key, context)?;
                    batch.pop();
                }
                Ok(())
            };
            let due = move |states: &mut S,
                            timers: &mut Vec<(Time, u64)>,
                            context: &mut Context<'_, i64, u64, ()>| {
                while let Some((_, key)) = timers.last() {
                    due(states, *key, context)?;
                    timers.pop();
                }
                Ok(())
            };
            let keyed = stream.key_by(state, |row| *row);
            let changes = match moves {
                true => keyed.migratable(told).stateful(spec.clone(), open, rows, due)?,
                false => keyed.stateful(spec.clone(), open, rows, due)?,
            };
            changes.probe_with(&probe);
            Ok::<_, Error>(input)
        })?;
        for row in 1..20 {
            input.advance_to(row as i64);
            input.send(row);
            input.advance_to(row as i64 + 1);
            state.run_until(worker, || !probe.less_than(&(row as i64 + 1)))?;
        }
        input.close();
        state.run_until(worker, || probe.done())
    })
    .map(drop)
}

#[test]
fn a_key_is_a_rows_in_the_call_with_that_row_only() {
    let open = |states: &OperatorState<'_>| states.map::<u64, u64>("map");
    let (own, before): (Write<_>, Write<_>) = (
        |map: &mut Map<u64, u64>, key, context| {
            context.set_timer(key, Time(100))?;
            map.update(&key, || 0, |value| *value += 1)
        },
        |map: &mut Map<u64, u64>, key: u64, _| {
            map.update(&(key.max(2) - 1), || 0, |value| *value += 1)
        },
    );
    let spec = || Spec::new("operator");
    let due: Write<_> =
        |map: &mut Map<u64, u64>, key, _| map.update(&key, || 0, |value| *value += 1);
    let foreign: Write<_> = |map: &mut Map<u64, u64>, _, _| map.update(&77, || 0, |_| ());
    for moves in [false, true] {
        one_by_one(spec(), open, own, due, moves).unwrap();
        for (rows, due) in [(before, due), (own, foreign)] {
            let error = one_by_one(spec(), open, rows, due, moves).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.to_string().contains("operator/map"), "{error}");
            one_by_one(spec().any_keys(), open, rows, due, moves).unwrap();
        }
    }
}
