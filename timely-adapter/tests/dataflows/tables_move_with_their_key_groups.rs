//! Rows, changes and table of a look-up move between workers as one: each row is answered by the worker that
//! has its key group, where the table's part of it is, and sees what was told before it.
//!
//! What this catches: a key that is asked for by two workers, or where its part of the table is not; a row that
//! is answered twice or never; a value from the cache of an earlier stay; a part that follows before the rows
//! of the worker before it have come out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{self, Consolidated};
use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::{Error, ErrorKind, Heap, HybridLog, KeyHash, MIB, Result, StoreConfig};
use alluvium_timely::{
    External, KeyBy, LookupExternal, LookupJoin, MoveGroup, NodeConfig, OnThread, Spec, Told,
    WorkerOverrides,
};
use serde::{Deserialize, Serialize};
use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::OkErr;

const GROUPS: u16 = 16;
const KEYS: u64 = 60;

/// What comes: rows and changes of a key, and moves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Event {
    Row(u64, u64),
    /// The key's value is this from now on.
    Change(u64, u64),
    Move(MoveGroup),
}

/// The key, the row and the value found.
type Found = (u64, u64, Option<u64>);

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Batches of changes, and of rows with moves of groups: some to and fro.
fn batches(seed: u64, workers: usize) -> Vec<(i64, Vec<Event>)> {
    let (mut random, mut row) = (seed, 0);
    let batch = |time: i64| {
        let mut events = Vec::new();
        if time % 2 == 0 {
            let keys: BTreeSet<u64> = (0..20).map(|_| next(&mut random) % KEYS).collect();
            events.extend(keys.into_iter().map(|key| Event::Change(key, time as u64 + 1)));
        } else {
            for _ in 0..80 {
                events.push(Event::Row(next(&mut random) % KEYS, row));
                row += 1;
            }
        }
        for _ in 0..next(&mut random) % 5 {
            let group = KeyGroup((next(&mut random) % u64::from(GROUPS)) as u16);
            events.push(Event::Move(MoveGroup {
                group,
                to: (next(&mut random) % workers as u64) as u32,
            }));
        }
        (time, events)
    };
    (0..24).map(batch).collect()
}

type Of<'scope, D> = StreamVec<'scope, i64, D>;
/// Rows, changes and moves.
type Divided<'scope> = (Of<'scope, (u64, u64)>, Of<'scope, (u64, u64)>, Of<'scope, MoveGroup>);

fn divided(events: Of<'_, Event>) -> Divided<'_> {
    let (rows, others): (Of<'_, (u64, u64)>, Of<'_, Event>) = events.ok_err(|event| match event {
        Event::Row(key, row) => Ok((key, row)),
        other => Err(other),
    });
    let (changes, moves) = others.ok_err(|event| match event {
        Event::Change(key, value) => Ok((key, value)),
        Event::Move(to) => Err(to),
        Event::Row(..) => unreachable!("taken out before"),
    });
    (rows, changes, moves)
}

/// What rows find: all changes of the batches before theirs.
fn expected(batches: &[(i64, Vec<Event>)]) -> Consolidated<Found> {
    let (mut table, mut found) = (BTreeMap::new(), Consolidated::new());
    for event in batches.iter().flat_map(|(_, events)| events) {
        match event {
            Event::Change(key, value) => drop(table.insert(*key, *value)),
            Event::Row(key, row) => {
                *found.entry((*key, *row, table.get(key).copied())).or_default() += 1;
            }
            Event::Move(_) => {}
        }
    }
    found
}

/// A table in parts, one for each worker.
#[derive(Debug)]
struct World {
    values: BTreeMap<u64, u64>,
    /// Where each key group is, and which are on their way.
    at: Vec<usize>,
    on_their_way: BTreeSet<u16>,
    followed: u64,
    wrong: Vec<String>,
}

fn group_of(key: u64) -> u16 {
    KeyGroup::of(key.key_hash(), GROUPS).0
}

/// The table as worker `worker` asks it.
fn part(world: &Arc<Mutex<World>>, worker: usize) -> Result<OnThread<u64, u64>> {
    let (asked, moved) = (world.clone(), world.clone());
    let mut calls = worker as u64;
    OnThread::following(
        "part",
        4,
        move |keys: &[u64], values: &mut Vec<Result<Option<u64>>>| {
            std::thread::sleep(Duration::from_micros(50));
            let mut world = asked.lock().unwrap();
            for key in keys {
                let group = group_of(*key);
                let at = world.at[usize::from(group)];
                if at != worker || world.on_their_way.contains(&group) {
                    world.wrong.push(format!("worker {worker} asks for {key}, which is at {at}"));
                }
                values.push(Ok(world.values.get(key).copied()));
            }
        },
        move |KeyGroup(group), groups| {
            assert_eq!(groups, GROUPS);
            calls += 1;
            let mut world = moved.lock().unwrap();
            if !world.on_their_way.insert(group) {
                world.wrong.push(format!("group {group} follows to two workers"));
            }
            drop(world);
            std::thread::sleep(Duration::from_micros(calls % 3 * 150));
            let mut world = moved.lock().unwrap();
            world.on_their_way.remove(&group);
            if calls % 5 == 0 {
                return Err(Error::new(ErrorKind::Io, "not now"));
            }
            world.at[usize::from(group)] = worker;
            world.followed += 1;
            Ok(())
        },
    )
}

fn node() -> NodeConfig {
    let memory = ByteSize(32 * MIB);
    StoreConfig { memory, key_groups: GROUPS, ..StoreConfig::default() }.into()
}

#[test]
fn an_external_tables_parts_follow_the_key_groups() {
    let mut followed = 0;
    for (seed, cache) in (1..=8).flat_map(|seed| [(seed, None), (seed, Some(1 << 20))]) {
        let workers = 1 + seed as usize % 3;
        let batches = batches(seed, workers);
        let world = Arc::new(Mutex::new(World {
            values: BTreeMap::new(),
            at: vec![0; usize::from(GROUPS)],
            on_their_way: BTreeSet::new(),
            followed: 0,
            wrong: Vec::new(),
        }));
        let table = world.clone();
        let overrides = WorkerOverrides::default();
        let expected = expected(&batches);
        let found = common::run(workers, node(), overrides, batches, move |events, state| {
            let (rows, changes, moves) = divided(events);
            let external = External::new("table").parked_max(40).asked_max(9);
            let external = match cache {
                Some(bytes) => external.cache(bytes, Duration::from_secs(60)),
                None => external,
            };
            let changed = table.clone();
            rows.key_by(state, |row: &(u64, u64)| row.0).migratable(moves).lookup_external_told(
                changes.key_by(state, |change: &(u64, u64)| change.0),
                part(&table, state.index())?,
                external,
                // The table first.
                move |(key, value)| {
                    changed.lock().unwrap().values.insert(*key, *value);
                    Told::Changed
                },
                |key, row, value: Option<&u64>| Some((*key, row.1, value.copied())),
            )
        });
        let context = format!("seed {seed}, {workers} workers, cache {cache:?}");
        assert_eq!(found.unwrap(), expected, "{context}");
        let world = world.lock().unwrap();
        assert!(world.wrong.is_empty(), "{context}: {:?}", world.wrong);
        followed += world.followed - u64::from(GROUPS);
    }
    assert!(followed > 200, "{followed} moves");
}

#[test]
fn a_table_of_state_moves_with_the_rows_that_look_it_up() {
    for seed in 1..=6 {
        for is_log in [false, true] {
            let workers = 1 + seed as usize % 3;
            let batches = batches(seed, workers);
            let expected = expected(&batches);
            let mut node = node();
            node.store.layout = match is_log {
                true => HybridLog::new().into(),
                false => Heap::new().into(),
            };
            let overrides = WorkerOverrides::default();
            let found = common::run(workers, node, overrides, batches, |events, state| {
                let (rows, changes, moves) = divided(events);
                rows.key_by(state, |row: &(u64, u64)| row.0).migratable(moves).lookup_join(
                    changes.key_by(state, |change: &(u64, u64)| change.0),
                    Spec::new("table"),
                    |change| Some(change.1),
                    |key, row, value| Some((*key, row.1, value.copied())),
                )
            });
            assert_eq!(found.unwrap(), expected, "seed {seed}, {workers} workers, log {is_log}");
        }
    }
}

#[test]
fn a_part_that_cannot_follow_ends_the_run() {
    for (kind, patience) in [(ErrorKind::Mismatch, None), (ErrorKind::Io, Some(Duration::ZERO))] {
        let overrides = WorkerOverrides::default();
        let failed = common::run(2, node(), overrides, batches(1, 2), move |events, state| {
            let (rows, _, moves) = divided(events);
            let table = OnThread::following(
                "part",
                4,
                |keys: &[u64], values: &mut Vec<_>| {
                    values.extend(keys.iter().map(|_| Ok(Some(1u64))))
                },
                move |_, _| Err(Error::new(kind, "it stays where it is")),
            )?;
            rows.key_by(state, |row: &(u64, u64)| row.0).migratable(moves).lookup_external(
                table,
                External::new("table").patience(patience),
                |key, row, value: Option<&u64>| Some((*key, row.1, value.copied())),
            )
        });
        let failed = failed.unwrap_err();
        assert_eq!(failed.kind(), kind, "{failed}");
    }
}
