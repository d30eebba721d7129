//! Look-ups in tables that change and in tables that are shared, against maps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{self, Consolidated};
use crate::own_layout::BTree;
use alluvium::config::ByteSize;
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, Layout, MIB, Result, StoreConfig};
use alluvium_timely::{KeyBy, LookupJoin, NodeConfig, Spec, TableLoader, WorkerOverrides, execute};
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::core::OkErr;

/// A key and what is done with it.
type Event = (u64, Deed);

/// A look-up by a row of this number; or the key's new value, or that it has none.
type Deed = std::result::Result<u64, Option<i64>>;

/// What a look-up gives: the key, the row and the value found.
type Found = (u64, u64, Option<i64>);

fn node(layout: impl Into<AnyLayout>) -> NodeConfig {
    StoreConfig { layout: layout.into(), memory: ByteSize(8 * MIB), ..Default::default() }.into()
}

/// Looks up in a table that the events make; `is_outer` says what becomes of rows without a value.
fn look_up(
    workers: usize,
    node: NodeConfig,
    batches: Vec<(u64, Vec<Event>)>,
    is_outer: bool,
) -> Result<Consolidated<Found>> {
    look_up_in(|| Spec::new("latest"), workers, node, batches, is_outer)
}

fn look_up_in<L: Layout<u64, i64>>(
    spec: impl Fn() -> Spec<L> + Send + Sync + 'static,
    workers: usize,
    node: NodeConfig,
    batches: Vec<(u64, Vec<Event>)>,
    is_outer: bool,
) -> Result<Consolidated<Found>> {
    let overrides = WorkerOverrides::default();
    common::run(workers, node, overrides, batches, move |events, state| {
        let (rows, updates) = events.ok_err(|(key, deed): Event| match deed {
            Ok(row) => Ok((key, row)),
            Err(value) => Err((key, value)),
        });
        let updates = updates.key_by(state, |update: &(u64, Option<i64>)| update.0);
        rows.key_by(state, |row: &(u64, u64)| row.0).lookup_join(
            updates,
            spec(),
            |update| update.1,
            move |key, row, value| {
                (is_outer || value.is_some()).then(|| (*key, row.1, value.copied()))
            },
        )
    })
}

/// The same from a map, the updates of a batch before its rows.
fn oracle(batches: &[(u64, Vec<Event>)], is_outer: bool) -> Consolidated<Found> {
    let (mut table, mut found) = (BTreeMap::new(), Consolidated::new());
    for (_, batch) in batches {
        for (key, deed) in batch {
            match deed {
                Err(Some(value)) => drop(table.insert(*key, *value)),
                Err(None) => drop(table.remove(key)),
                Ok(_) => {}
            }
        }
        for (key, deed) in batch {
            let (Ok(row), value) = (deed, table.get(key).copied()) else { continue };
            if is_outer || value.is_some() {
                *found.entry((*key, *row, value)).or_default() += 1;
            }
        }
    }
    found
}

/// Steps of a random number; the seed is the first state.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Batches that each have updates of different keys or rows, never both.
fn batches(seed: u64, keys: u64) -> Vec<(u64, Vec<Event>)> {
    let mut random = seed;
    let mut batches = Vec::new();
    for time in 0..16 {
        let size = next(&mut random) % 300;
        let mut batch = BTreeMap::new();
        let mut rows = Vec::new();
        for row in 0..size {
            let key = next(&mut random) % keys;
            if time % 2 == 1 {
                rows.push((key, Ok(time * 1_000 + row)));
            } else {
                let value = next(&mut random) as i64;
                batch.insert(key, Err((value % 4 != 0).then_some(value)));
            }
        }
        rows.extend(batch);
        batches.push((time, rows));
    }
    batches
}

#[test]
fn rows_find_what_updates_before_them_left() {
    for workers in 1..=3 {
        for (seed, keys) in [(1, 10), (2, 500)] {
            for is_outer in [false, true] {
                let batches = batches(seed, keys);
                let expected = oracle(&batches, is_outer);
                let context = format!("{workers} workers, seed {seed}, outer {is_outer}");
                assert!(expected.keys().any(|(_, _, value)| value.is_some()), "{context}");
                let users = || Spec::new("latest").layout(BTree);
                let users =
                    look_up_in(users, workers, node(Heap::new()), batches.clone(), is_outer);
                assert_eq!(users.unwrap(), expected, "{context}");
                let heap = look_up(workers, node(Heap::new()), batches.clone(), is_outer);
                assert_eq!(heap.unwrap(), expected, "{context}");
                let log = look_up(workers, node(HybridLog::new()), batches, is_outer);
                assert_eq!(log.unwrap(), expected, "{context}");
            }
        }
    }
}

/// Most of the table is on storage, so that updates and rows wait for reads, behind each other.
#[test]
fn a_table_on_storage_is_seen_as_one_in_memory() {
    for workers in 1..=3 {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            directory: Some(directory.path().into()),
            memory: ByteSize(384 * KIB * workers as u64),
            max_value: Some(ByteSize(4 * KIB)),
            layout: HybridLog::new().page_records(8).queue_depth(8).segment(16 * KIB).into(),
            ..StoreConfig::default()
        };
        let (mut random, keys) = (7, 3_000 * workers as u64);
        // All keys, then of each batch half of it updates, half of it rows of other keys.
        let mut batches = vec![(0, (0..keys).map(|key| (key, Err(Some(1)))).collect::<Vec<_>>())];
        for time in 1..12 {
            let mut batch = BTreeMap::new();
            for _ in 0..600 {
                let key = next(&mut random) % keys;
                let value = (key % 5 != 0).then_some(next(&mut random) as i64);
                let row = next(&mut random);
                batch.insert(key, if row % 2 == 0 { Ok(row) } else { Err(value) });
            }
            batches.push((time, batch.into_iter().collect()));
        }
        let expected = oracle(&batches, true);
        let (reads, seen) = (Arc::new(AtomicUsize::new(0)), batches.len());
        let count = reads.clone();
        let overrides = WorkerOverrides::default();
        let found =
            common::run(workers, config.into(), overrides, batches, move |events, state| {
                let (store, count) = (state.clone(), count.clone());
                let (rows, updates) = events.ok_err(|(key, deed): Event| match deed {
                    Ok(row) => Ok((key, row)),
                    Err(value) => Err((key, value)),
                });
                let updates = updates.key_by(state, |update: &(u64, Option<i64>)| update.0);
                let found = rows.key_by(state, |row: &(u64, u64)| row.0).lookup_join(
                    updates,
                    Spec::new("latest"),
                    |update| update.1.map(|value| (value, "long ".repeat(40))),
                    |key, row, value| Some((*key, row.1, value.map(|(value, _)| *value))),
                )?;
                Ok(found.inspect(move |_| {
                    let reads = store.store().stats().map_or(0, |stats| stats.io.reads);
                    count.fetch_max(reads as usize, Ordering::Relaxed);
                }))
            });
        assert_eq!(found.unwrap(), expected, "{workers} workers, {seen} batches");
        assert!(reads.load(Ordering::Relaxed) > 0, "nothing was on storage");
    }
}

#[test]
fn of_what_arrives_together_updates_come_first_and_in_order() {
    // One worker sends all of a batch before it steps.
    let batches = vec![
        (0, vec![(1, Ok(0)), (1, Err(Some(5))), (1, Err(Some(6))), (2, Ok(1))]),
        (1, vec![(1, Err(None)), (1, Err(Some(7))), (2, Err(Some(8))), (2, Err(None)), (2, Ok(2))]),
        (2, vec![(1, Ok(3))]),
    ];
    let expected = oracle(&batches, true);
    let rows: Vec<_> = expected.keys().copied().collect();
    assert_eq!(rows, [(1, 0, Some(6)), (1, 3, Some(7)), (2, 1, None), (2, 2, None)]);
    assert_eq!(look_up(1, node(Heap::new()), batches, true).unwrap(), expected);
}

#[test]
fn a_table_that_does_not_fit_ends_the_run() {
    let updates = |time| (0..500).map(|key| (time * 500 + key, Err(Some(1)))).collect();
    let batches: Vec<_> = (0..50).map(|time| (time, updates(time))).collect();
    for workers in 1..=3 {
        let small = node(Heap::new().memory(16 * KIB));
        let error = look_up(workers, small, batches.clone(), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    }
}

/// The squares of even numbers.
fn squares(loader: &mut TableLoader<u64, i64>) -> Result<()> {
    loader.extend((0..1_000).map(|n| (2 * n, (4 * n * n) as i64)))
}

#[test]
fn a_shared_table_is_loaded_once_and_found_by_all_workers() {
    for workers in 1..=3 {
        for is_outer in [false, true] {
            let loads = Arc::new(AtomicUsize::new(0));
            let count = loads.clone();
            let needed = ByteSize(TableLoader::<u64, i64>::bytes_for(1_000));
            let node = node(Heap::new()).table("squares", needed, move |loader| {
                count.fetch_add(1, Ordering::Relaxed);
                squares(loader)
            });
            let batches = vec![(0u64, (0..3_000).collect()), (1, (500..1_000u64).collect())];
            let overrides = WorkerOverrides::default();
            let found = common::run(workers, node, overrides, batches, move |rows, state| {
                let table = state.table::<u64, i64>("squares")?;
                let keyed = rows.key_by(state, |row: &u64| row / 2);
                Ok(keyed.lookup_join_shared(&table, move |key, row, square| {
                    (is_outer || square.is_some()).then(|| (*row, *key, square.copied()))
                }))
            });
            let mut expected = Consolidated::new();
            for row in (0..3_000u64).chain(500..1_000) {
                let key = row / 2;
                let square = (key % 2 == 0 && key < 2_000).then(|| (key * key) as i64);
                if is_outer || square.is_some() {
                    *expected.entry((row, key, square)).or_default() += 1;
                }
            }
            assert_eq!(found.unwrap(), expected, "{workers} workers, outer {is_outer}");
            assert_eq!(loads.load(Ordering::Relaxed), 1);
        }
    }
}

#[test]
fn shared_tables_are_taken_off_the_memory_once() {
    let node = node(Heap::new()).table("squares", ByteSize(MIB), squares).table(
        "others",
        ByteSize(MIB),
        squares,
    );
    let limits = execute(timely::Config::process(3), node, |_, state| {
        let [one, two] = ["squares", "others"].map(|name| state.table::<u64, i64>(name));
        assert_eq!((one?.get(&4), two?.get(&5)), (Some(&16), None));
        Ok(state.store().stats()?.memory.limit)
    });
    assert_eq!(limits.unwrap(), [2 * MIB; 3]);
}

#[test]
fn shared_tables_that_cannot_be_had_are_refused_by_name() {
    let run = |node: NodeConfig| {
        let outcome = execute(timely::Config::process(3), node, |_, state| {
            state.table::<u64, i64>("squares").map(drop)
        });
        let error = outcome.unwrap_err();
        (error.kind(), error.to_string())
    };
    let table = |memory| node(Heap::new()).table("squares", ByteSize(memory), squares);
    for (node, kind, text) in [
        (node(Heap::new()), ErrorKind::UnknownState, "no shared table \"squares\""),
        (
            table(9 * MIB),
            ErrorKind::OverBudget,
            "shared table \"squares\" needs 9437184 of the node's 8388608 bytes, of which 8388608 \
             are left, and 3 workers need 16384 each",
        ),
        (table(8 * MIB - 40_000), ErrorKind::OverBudget, "3 workers need 16384 each"),
        (table(MIB).table("squares", ByteSize(1), squares), ErrorKind::Config, "two shared tables"),
        (table(20_000), ErrorKind::OverBudget, "shared table \"squares\" needs"),
        (
            node(Heap::new()).table("squares", ByteSize(MIB), |loader| loader.insert(1u8, true)),
            ErrorKind::Mismatch,
            "has bool by u8, not i64 by u64",
        ),
        (
            node(Heap::new()).table("squares", ByteSize(MIB), |_: &mut TableLoader<u64, i64>| {
                Err(alluvium::Error::new(ErrorKind::Missing, "squares.csv is not there"))
            }),
            ErrorKind::Missing,
            "squares.csv is not there",
        ),
    ] {
        let (found, message) = run(node);
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(text), "{message}");
    }
}
