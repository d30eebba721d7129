//! An operator whose key groups move between workers gives what it gives without moves, and leaves the
//! same state.
//!
//! What this catches: rows applied where their group is not, or before it has come; rows, timers or
//! entries lost, doubled or left behind by a move, by one back, by several under way at a time; times
//! that end before a group has arrived; dataflows that never end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, Counting, Heap, HybridLog, KIB, MIB, Store, StoreConfig, Time, Ttl, Windows,
};
use alluvium_timely::{
    Changes, KeyBy, MoveGroup, NodeConfig, OperatorState, Rolling, Spec, Stateful, WorkerOverrides,
    WorkerState, execute, execute_with,
};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};

use crate::common::Consolidated;

pub const GROUPS: u16 = 16;
pub const STEPS: i64 = 26;
pub const NAP: Duration = Duration::from_millis(1);
/// Time between two steps.
pub const TICK: i64 = 10_000;

type Row = (u64, i64);
type Result<T> = alluvium::Result<T>;

/// Seeded chance.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 += 1;
        alluvium::types::hash_word(alluvium::types::hash_word(self.0)) % limit
    }
}

#[derive(Clone)]
struct Case {
    workers: usize,
    layout: AnyLayout,
    memory: u64,
    /// By time.
    moves: Vec<(i64, MoveGroup)>,
    /// How far the control stream is ahead.
    ahead: i64,
    seed: u64,
    on_device: bool,
}

impl Case {
    fn rows(&self, step: i64) -> Vec<Row> {
        let mut dice = Dice(self.seed << 32 | step.cast_unsigned() << 16);
        // Alarms come soon or late, no two at one time: one of a key that waits for a read is set anew by
        // a row that waits before it.
        let row = |n| (dice.below(700), (step + 1 + dice.below(30) as i64) * TICK + step * 150 + n);
        (0..150).map(row).collect()
    }
}

/// Moves of random groups to random workers, and in the end all of them home if asked.
pub fn moves(seed: u64, workers: usize, count: u64, home: bool) -> Vec<(i64, MoveGroup)> {
    let mut dice = Dice(seed << 40);
    let mut moves: Vec<_> = (0..count)
        .map(|_| {
            let group = KeyGroup(dice.below(u64::from(GROUPS)) as u16);
            let to = dice.below(workers as u64) as u32;
            ((1 + dice.below(STEPS as u64 - 4) as i64) * TICK, MoveGroup { group, to })
        })
        .collect();
    if home {
        let back = (0..GROUPS).map(|group| MoveGroup {
            group: KeyGroup(group),
            to: KeyGroup(group).owner(GROUPS, workers) as u32,
        });
        moves.extend(back.map(|one| ((STEPS - 1) * TICK, one)));
    }
    moves
}

struct Outcome {
    changes: Consolidated<(u64, i64)>,
    /// All workers' states, as a canonical file.
    file: Vec<u8>,
    /// At each worker.
    entries: Vec<u64>,
    cold_reads: u64,
    /// Workers that have the groups in the end that they had at first.
    at_home: usize,
}

/// Runs the case with what `build` makes of it; `open` opens the same states.
fn run(
    case: &Case,
    build: impl for<'s> Fn(
        StreamVec<'s, i64, Row>,
        StreamVec<'s, i64, MoveGroup>,
        &WorkerState,
    ) -> Result<Changes<'s, i64, (u64, i64)>>
    + Send
    + Sync
    + 'static,
    open: impl Fn(&Store) -> Result<Vec<Box<dyn std::any::Any>>>,
) -> Outcome {
    let store = StoreConfig {
        memory: ByteSize(case.memory * case.workers as u64),
        max_value: Some(ByteSize(4 * KIB)),
        key_groups: GROUPS,
        layout: case.layout.clone(),
        ..StoreConfig::default()
    };
    let files = Arc::new(Mutex::new(Vec::<(Vec<u8>, u64, u64, bool)>::new()));
    let (given, taken) = (case.clone(), files.clone());
    let (on_device, config) = (case.on_device, timely::Config::process(case.workers));
    let overrides = move |index| {
        let device = || Arc::new(Simulated::new(index as u64, Faults::none())) as Arc<dyn Device>;
        WorkerOverrides { device: on_device.then(device), ..Default::default() }
    };
    let results = execute_with(config, NodeConfig::from(store), overrides, {
        move |worker, state| {
            let case = &given;
            let sums: Rc<RefCell<Consolidated<(u64, i64)>>> = Rc::default();
            let sink = sums.clone();
            let probe = ProbeHandle::new();
            let (mut rows, mut control) = worker.dataflow::<i64, _, _>(|scope| {
                let (rows, stream) = scope.new_input::<Row>();
                let (control, told) = scope.new_input::<MoveGroup>();
                build(stream, told, state)?
                    .inspect(move |(row, _, diff)| {
                        *sink.borrow_mut().entry(*row).or_default() += diff;
                    })
                    .probe_with(&probe);
                Ok::<_, alluvium::Error>((rows, control))
            })?;
            let mut told = case.moves.clone();
            told.sort_by_key(|(time, _)| *time);
            let mut told = told.into_iter().enumerate().peekable();
            rows.advance_to(0);
            for step in 0..STEPS {
                while let Some((n, (time, one))) =
                    told.next_if(|(_, (at, _))| *at <= (step + case.ahead) * TICK)
                {
                    control.advance_to(time);
                    // Any worker may tell it.
                    if n % worker.peers() == worker.index() {
                        control.send(one);
                    }
                }
                for row in case.rows(step).iter().skip(worker.index()).step_by(worker.peers()) {
                    rows.send(*row);
                }
                rows.advance_to((step + 1) * TICK);
                control.advance_to(((step + 1 + case.ahead) * TICK).max(*control.time()));
                // Some steps are under way at a time.
                while probe.less_than(&((step - 2) * TICK)) {
                    state.step_or_nap(worker, NAP)?;
                }
            }
            rows.close();
            control.close();
            while !worker.installed_dataflows().is_empty() {
                state.step_or_nap(worker, NAP)?;
            }
            let mut file = Vec::new();
            let exported = state.store().export(&mut file)?;
            let states = state.store().stats()?.states;
            let cold_reads = states.iter().map(|state| state.table.cold_reads).sum();
            assert_eq!(state.store().checkpoint(1).is_ok(), case.on_device);
            let at_home = state.store().moved_units()?.is_empty();
            taken.lock().unwrap().push((file, exported.entries, cold_reads, at_home));
            Ok(sums.take())
        }
    })
    .unwrap();
    let mut sums = Consolidated::new();
    for (row, diff) in results.into_iter().flatten() {
        *sums.entry(row).or_default() += diff;
    }
    sums.retain(|_, diff| *diff != 0);
    let all = Store::in_memory().key_groups(GROUPS).open().unwrap();
    let states = open(&all).unwrap();
    let (mut entries, mut cold_reads, mut at_home) = (Vec::new(), 0, 0);
    for (file, count, reads, is_at_home) in files.lock().unwrap().iter() {
        at_home += usize::from(*is_at_home);
        entries.push(*count);
        cold_reads += reads;
        if !states.is_empty() {
            all.import(&file[..]).unwrap();
        }
    }
    let mut file = Vec::new();
    let exported = all.export(&mut file).unwrap();
    let is_each_once = exported.entries == entries.iter().sum::<u64>();
    assert!(states.is_empty() || is_each_once, "a key is at two workers");
    Outcome { changes: sums, file, entries, cold_reads, at_home }
}

fn rolling(case: &Case) -> Outcome {
    run(
        case,
        |rows, control, state| {
            let counts = rows
                .key_by(state, |row: &Row| row.0)
                .migratable(control)
                .rolling(Spec::new("counts"), Counting)?;
            Ok(counts)
        },
        |all| {
            Ok(vec![
                Box::new(all.map::<u64, i64>("counts/groups").open()?),
                Box::new(all.timers::<u64>("counts/timers")?),
            ])
        },
    )
}

/// How often a key was seen, in entries that expire after the run.
fn visits(case: &Case) -> Outcome {
    run(
        case,
        |rows, control, state| {
            rows.key_by(state, |row: &Row| row.0).migratable(control).stateful(
                Spec::new("visits"),
                |states| states.expiring_map::<u64, i64>("seen", Ttl::event_time(nanos(1 << 60))),
                |seen, rows, context| {
                    seen.advance(Time(*context.time()))?;
                    while let Some((key, _)) = rows.first().copied() {
                        let count = seen.update(
                            &key,
                            || 0,
                            |count| {
                                *count += 1;
                                *count
                            },
                        )?;
                        context.emit((key, count), 1);
                        rows.remove(0);
                    }
                    Ok(())
                },
                |_, _, _| Ok(()),
            )
        },
        // An entry was touched at the time of its worker, so that files are not the same.
        |_| Ok(Vec::new()),
    )
}

/// An alarm gives the sum of the rows of its key before it.
fn alarms(case: &Case) -> Outcome {
    run(
        case,
        |rows, control, state| {
            rows.key_by(state, |row: &Row| row.0).migratable(control).stateful(
                Spec::new("alarms"),
                |states| Ok((states.map::<u64, Vec<i64>>("rows")?, states.count::<u64>("fired")?)),
                // What an error leaves in the vectors comes again: an item is taken out when it is done.
                |(map, _), rows, context| {
                    while let Some((key, (_, at))) = rows.first().copied() {
                        let now = context.time() * 1000 + at % 1000;
                        map.update(&key, || vec![0; 60], |all| all.push(now))?;
                        context.set_timer(key, Time(at))?;
                        rows.remove(0);
                    }
                    Ok(())
                },
                |(map, fired), due, context| {
                    while let Some((at, key)) = due.first().copied() {
                        // Only what came before the alarm: later rows may be there already, or not.
                        let sum = map.modify(&key, |all| {
                            all.sort_unstable();
                            let before = |row: &&i64| **row / 1000 < at.0;
                            all.iter().filter(before).sum::<i64>()
                        })?;
                        let sum = sum.expect("a key with an alarm has rows");
                        fired.add(&key, 1)?;
                        context.emit_at(at, (key, sum), 1);
                        due.remove(0);
                    }
                    Ok(())
                },
            )
        },
        |all| {
            Ok(vec![
                Box::new(all.map::<u64, Vec<i64>>("alarms/rows").open()?),
                Box::new(all.count::<u64>("alarms/fired").open()?),
                Box::new(all.timers::<u64>("alarms/timers")?),
            ])
        },
    )
}

/// The same with rows in lists.
fn alarms_of_lists(case: &Case) -> Outcome {
    run(
        case,
        |rows, control, state| {
            rows.key_by(state, |row: &Row| row.0).migratable(control).stateful(
                Spec::new("alarms"),
                |states| states.list::<u64, Vec<i64>>("rows"),
                |lists, rows, context| {
                    while let Some((key, (_, at))) = rows.first().copied() {
                        let now = context.time() * 1000 + at % 1000;
                        lists.append(&key, vec![now; 40]).map_err(alluvium::Error::from)?;
                        context.set_timer(key, Time(at))?;
                        rows.remove(0);
                    }
                    Ok(())
                },
                |lists, due, context| {
                    while let Some((at, key)) = due.first().copied() {
                        let sum = lists.fold_with(&key, 0, |sum, row| {
                            assert_eq!(*row, vec![row[0]; 40]);
                            sum + if row[0] / 1000 < at.0 { row[0] } else { 0 }
                        })?;
                        context.emit_at(at, (key, sum), 1);
                        due.remove(0);
                    }
                    Ok(())
                },
            )
        },
        // Rows of one time come from several workers in any order, so that files are not the same.
        |_| Ok(Vec::new()),
    )
}

/// An alarm gives the sum of the rows of its key in the time before it; what is before that of all alarms to
/// come is dropped all the time, while groups are on their way, too.
fn alarms_of_time_maps(case: &Case) -> Outcome {
    const LOOK_BACK: i64 = 8 * TICK;
    run(
        case,
        |rows, control, state| {
            rows.key_by(state, |row: &Row| row.0).migratable(control).stateful(
                Spec::new("alarms"),
                |states| states.time_map::<u64, i64>("rows", nanos(TICK)),
                |map, rows, context| {
                    while let Some((key, (_, at))) = rows.first().copied() {
                        map.insert(&key, Time(*context.time()), at)
                            .map_err(alluvium::Error::from)?;
                        context.set_timer(key, Time(at))?;
                        rows.remove(0);
                    }
                    Ok(())
                },
                |map, due, context| {
                    while let Some((at, key)) = due.first().copied() {
                        let (from, mut sum) = (Time(at.0 - LOOK_BACK), 0);
                        map.purge(from, 100)?;
                        map.range(&key, from..at, |_, alarm| {
                            sum += alarm;
                            Ok(())
                        })?;
                        context.emit_at(at, (key, sum), 1);
                        due.remove(0);
                    }
                    // All that were before the last alarm's time, and what a move has left.
                    assert!(map.len()? < 6 * 150 * (LOOK_BACK / TICK + 30) as u64);
                    Ok(())
                },
            )
        },
        // What was not dropped yet depends on who has what.
        |_| Ok(Vec::new()),
    )
}

fn layouts() -> Vec<(&'static str, AnyLayout, u64, bool)> {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(64 * KIB);
    vec![
        ("heap", Heap::new().into(), 16 * MIB, false),
        ("hybrid log", log.memory(256 * KIB).into(), MIB, true),
    ]
}

/// The case without moves, and with them.
fn compare(name: &str, run: impl Fn(&Case) -> Outcome) {
    for (layout_name, layout, memory, on_device) in &layouts() {
        for workers in [2, 3] {
            for seed in 0..2u64 {
                // Reading takes its time: once for each number of workers.
                if *on_device && (seed + workers as u64) % 2 == 1 {
                    continue;
                }
                let case = |moves| Case {
                    workers,
                    layout: layout.clone(),
                    memory: *memory,
                    moves,
                    ahead: seed.cast_signed() * 7,
                    seed,
                    on_device: *on_device,
                };
                let when = format!("{name}, {layout_name}, {workers} workers, seed {seed}");
                let still = run(&case(Vec::new()));
                assert!(still.changes.len() > 400, "{when}: {} results", still.changes.len());
                let moved = run(&case(moves(seed, workers, 30, seed == 1)));
                assert!(moved.changes == still.changes, "{when}: other results");
                assert!(moved.file == still.file, "{when}: other states");
                let cold = *on_device && name == "alarms";
                assert!(!cold || moved.cold_reads > 100, "{when}: {} reads", moved.cold_reads);
                assert_eq!(still.at_home, workers, "{when}");
                assert_eq!(moved.at_home == workers, seed == 1, "{when}: {}", moved.at_home);
                // What is dropped, and when, depends on the alarms that a worker has.
                if name == "time-ordered maps" {
                    continue;
                }
                // Away, entries are elsewhere; back, they are where they were.
                let (mut before, mut after) = (still.entries, moved.entries);
                before.sort_unstable();
                after.sort_unstable();
                assert_eq!(before == after, seed == 1, "{when}: {before:?} and {after:?}");
            }
        }
    }
}

#[test]
fn counts_are_the_same_wherever_groups_are() {
    compare("counts", rolling);
}

#[test]
fn entries_that_expire_are_the_same_wherever_groups_are() {
    compare("visits", visits);
}

#[test]
fn alarms_ring_once_wherever_groups_are() {
    compare("alarms", alarms);
}

#[test]
fn lists_are_the_same_wherever_groups_are() {
    compare("lists", alarms_of_lists);
}

#[test]
fn time_ordered_maps_are_the_same_wherever_groups_are() {
    compare("time-ordered maps", alarms_of_time_maps);
}

/// All groups to one worker at one time, and all to the other later: the first has nothing then.
#[test]
fn a_worker_can_give_all_it_has() {
    let all =
        |time, to| (0..GROUPS).map(move |group| (time, MoveGroup { group: KeyGroup(group), to }));
    let moves: Vec<_> = all(5 * TICK, 0).chain(all(9 * TICK, 1)).collect();
    let case = Case {
        workers: 2,
        layout: Heap::new().into(),
        memory: 4 * MIB,
        moves,
        ahead: 0,
        seed: 3,
        on_device: false,
    };
    let moved = rolling(&case);
    assert_eq!(moved.entries.iter().min(), Some(&0));
    let still = rolling(&Case { moves: Vec::new(), ..case });
    assert!(moved.changes == still.changes && moved.file == still.file);
}

type Open = fn(&OperatorState<'_>) -> Result<()>;

/// A move to a worker that there is not, and states that cannot move.
#[test]
fn what_cannot_move_is_refused_by_name() {
    let node = || StoreConfig { key_groups: GROUPS, ..StoreConfig::default() };
    let refused = execute(timely::Config::process(2), NodeConfig::from(node()), |worker, state| {
        let mut control = worker.dataflow::<i64, _, _>(|scope| {
            let (rows, stream) = scope.new_input::<Row>();
            let (control, told) = scope.new_input::<MoveGroup>();
            let keyed = stream.key_by(state, |row: &Row| row.0).migratable(told);
            drop((rows, keyed.rolling(Spec::new("counts"), Counting)?));
            Ok::<_, alluvium::Error>(control)
        })?;
        control.send(MoveGroup { group: KeyGroup(1), to: 2 });
        control.close();
        state.run_until(worker, || false)
    });
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("key group 1 cannot move to worker 2"), "{error}");
    let opens: [(&str, Open); 1] = [("windows cannot move between workers", |states| {
        states.aggregated::<u64, u64, _>("rows", Windows::tumbling(nanos(10)), Counting).map(drop)
    })];
    for (words, open) in opens {
        let refused = execute(timely::Config::process(1), NodeConfig::from(node()), {
            move |worker, state| {
                worker.dataflow::<i64, _, _>(|scope| {
                    let (_, stream) = scope.new_input::<Row>();
                    let (_, told) = scope.new_input::<MoveGroup>();
                    stream.key_by(state, |row: &Row| row.0).migratable(told).stateful(
                        Spec::new("kept"),
                        open,
                        |_, rows, context| {
                            rows.drain(..).for_each(|(_, row)| context.emit(row, 1));
                            Ok(())
                        },
                        |_, _, _| Ok(()),
                    )?;
                    Ok::<_, alluvium::Error>(())
                })
            }
        });
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
