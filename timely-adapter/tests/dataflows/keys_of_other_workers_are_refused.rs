//! An operator's closure that writes under a key which is not its rows' own fails when it does, on any
//! worker that has not the key's group, and not when the job goes on with another number of workers.

use std::time::Duration;

use alluvium::{Error, ErrorKind, Result, StoreConfig, Time, nanos};
use alluvium_timely::{Context, KeyBy, OperatorState, Spec, Stateful, execute};
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
        (0..200).for_each(|row| input.send(row));
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
    // One worker has all keys; and whoever says so may keep any.
    run(1, spec, open, zero).unwrap_or_else(|error| panic!("{what}: {error:?}"));
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
