//! `max_value` holds in every layout and every call, keys included; what a closure made larger is
//! told, changes no more, and is checkpointed and read as long as twice its size fits.

use std::path::Path;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{DirectIo, EngineChoice, Faults, IoOptions, Simulated};
use alluvium::time::nanos;
use alluvium::{
    Aggregate, AnyLayout, AppendLog, Error, ErrorKind, Heap, HybridLog, KIB, List, MIB, Map, Store,
    StoreBuilder, Time, WindowSegments, Windows,
};

use crate::counting::{alone, held};
use crate::dice::{Dice, times};

const MAX: u64 = 4 * KIB;

fn in_memory(memory: u64, max_value: u64) -> Store {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::in_memory().memory(memory).max_value(max_value).device(device);
    builder.helpers(Helpers::Inline).open().unwrap()
}

fn builder(place: &Path, memory: u64, max_value: u64) -> StoreBuilder {
    let io = IoOptions {
        engine: EngineChoice::Threads,
        threads: 2,
        direct: DirectIo::Off,
        ..IoOptions::default()
    };
    let builder = Store::builder(place).memory(memory).max_value(max_value);
    builder.helpers(Helpers::Inline).io(io)
}

fn layouts() -> [AnyLayout; 2] {
    [Heap::new().into(), HybridLog::new().into()]
}

fn bytes(n: u64) -> Vec<u8> {
    (0..n).map(|at| (at % 251) as u8).collect()
}

/// The error names what is too large, and the key.
#[track_caller]
fn is_too_large(error: &Error, state: &str, key: &str) {
    assert_eq!(error.kind(), ErrorKind::ValueTooLarge, "{error}");
    assert_eq!(error.context("state"), Some(state), "{error}");
    assert_eq!(error.context("key"), Some(key), "{error}");
}

#[test]
fn every_call_that_brings_a_larger_value_or_key_is_refused() {
    let long = "k".repeat(2 * MAX as usize);
    let named = format!("{:?}...", "k".repeat(64));
    for (number, layout) in layouts().into_iter().enumerate() {
        let store = in_memory(8 * MIB, MAX);
        let mover = store.mover("moving").unwrap();
        let maps = [
            store.map::<u64, Vec<u8>>("m").layout(layout.clone()).open().unwrap(),
            store.map::<u64, Vec<u8>>("n").layout(layout.clone()).moved_by(&mover).open().unwrap(),
        ];
        for mut map in maps {
            let state = map.name().to_owned();
            map.put(7, bytes(MAX - 100)).unwrap();
            let refused = map.put(7, bytes(MAX + 1)).unwrap_err();
            is_too_large(&refused.error, &state, "7");
            assert_eq!(refused.value, (7, bytes(MAX + 1)));
            is_too_large(&map.put(8, bytes(MAX + 1)).unwrap_err().error, &state, "8");
            let batch = vec![(1, vec![]), (2, bytes(MAX + 1)), (3, vec![])];
            let rejected = map.load(batch).unwrap_err();
            is_too_large(&rejected.error, &state, "2");
            assert_eq!((rejected.value.len(), map.len().unwrap()), (2, 2), "{number}");
            assert_eq!(map.get(&7).unwrap().as_deref(), Some(&bytes(MAX - 100)));
        }
        let mut keyed = store.map::<String, u64>("keyed").layout(layout.clone()).open().unwrap();
        is_too_large(&keyed.put(long.clone(), 1).unwrap_err().error, "keyed", &named);
        let never = || panic!("the value of a key that is too long was made");
        is_too_large(&keyed.update(&*long, never, |_| ()).unwrap_err(), "keyed", &named);
        let batch = [String::from("a"), long.clone()];
        let failed = keyed.update_batch(&batch, |key| key, |_| 0, |_, n| *n += 1).unwrap_err();
        assert_eq!(failed.applied, 1);
        is_too_large(&failed.error, "keyed", &named);
        assert_eq!(keyed.len().unwrap(), 1);
    }
    let store = in_memory(8 * MIB, MAX);
    fn lists(store: &Store) -> [List<String, Vec<u8>>; 2] {
        let list = |name: &str| store.list::<String, Vec<u8>>(name);
        [
            list("heap").layout(AnyLayout::from(Heap::new())).open().unwrap(),
            list("log").open().unwrap(),
        ]
    }
    for mut list in lists(&store) {
        let state = list.name().to_owned();
        list.append("a", bytes(MAX - 200)).unwrap();
        let refused = list.append("a", bytes(MAX + 1)).unwrap_err();
        is_too_large(&refused.error, &state, "\"a\"");
        assert_eq!(refused.value, bytes(MAX + 1));
        is_too_large(&list.append(&*long, vec![]).unwrap_err().error, &state, &named);
        let mut batch = vec![("b".into(), vec![]), ("c".into(), bytes(MAX)), ("d".into(), vec![])];
        is_too_large(&list.append_batch(&mut batch).unwrap_err(), &state, "\"c\"");
        assert_eq!(batch.len(), 2);
        assert_eq!(list.len().unwrap(), 2);
    }
    let mut timers = store.timers::<String>("t").unwrap();
    is_too_large(&timers.set(long.clone(), Time(1)).unwrap_err(), "t", &named);
    assert!(timers.is_empty());
}

/// Keeps all bytes.
#[derive(Clone, Copy)]
struct Append;

impl Aggregate<Vec<u8>> for Append {
    type Acc = Vec<u8>;
    type Out = usize;

    fn init(&self) -> Vec<u8> {
        Vec::new()
    }

    fn add(&self, acc: &mut Vec<u8>, element: &Vec<u8>) {
        acc.extend(element);
    }

    fn merge(&self, acc: &mut Vec<u8>, later: &Vec<u8>) {
        acc.extend(later);
    }

    fn out(&self, acc: &Vec<u8>) -> Option<usize> {
        Some(acc.len())
    }
}

fn oversized(store: &Store, state: &str) -> u64 {
    store.stats().unwrap().state(state).unwrap().table.oversized
}

#[test]
fn a_value_that_a_closure_made_too_large_is_told_and_changes_no_more() {
    for layout in layouts() {
        let store = in_memory(8 * MIB, MAX);
        let mover = store.mover("moving").unwrap();
        let maps: [Map<u64, Vec<u8>>; 2] = [
            store.map("m").layout(layout.clone()).open().unwrap(),
            store.map("n").layout(layout.clone()).moved_by(&mover).open().unwrap(),
        ];
        for mut map in maps {
            let state = map.name().to_owned();
            map.update(&1, Vec::new, |v| v.extend(bytes(MAX / 4))).unwrap();
            assert_eq!(oversized(&store, &state), 0);
            map.update(&1, Vec::new, |v| *v = bytes(3 * MAX)).unwrap();
            assert_eq!(oversized(&store, &state), 1, "told at once");
            let never = |_: &mut Vec<u8>| panic!("a value that is too large was changed");
            is_too_large(&map.update(&1, Vec::new, never).unwrap_err(), &state, "1");
            is_too_large(&map.modify(&1, never).unwrap_err(), &state, "1");
            let batch = [2u64, 1, 3];
            let change = |key: &u64, v: &mut Vec<u8>| {
                assert_ne!(*key, 1);
                v.push(1);
            };
            let failed = map.update_batch(&batch, |key| key, |_| vec![], change).unwrap_err();
            assert_eq!(failed.applied, 1);
            is_too_large(&failed.error, &state, "1");
            // Made so by the closure for a new key.
            map.update(&4, || bytes(2 * MAX), |_| ()).unwrap();
            assert_eq!(oversized(&store, &state), 2);
            is_too_large(&map.update(&4, Vec::new, never).unwrap_err(), &state, "4");
            // What is not too large goes on, and so does what was, once it is replaced or taken.
            map.update(&2, Vec::new, |v| v.push(2)).unwrap();
            assert!(map.put(1, vec![5]).unwrap());
            map.update(&1, Vec::new, |v| v.push(6)).unwrap();
            assert_eq!(map.take(&4).unwrap().map(|v| v.len()), Some(2 * MAX as usize));
            map.update(&4, Vec::new, |v| v.push(7)).unwrap();
            assert_eq!(map.get(&1).unwrap().as_deref(), Some(&vec![5, 6]));
            assert_eq!(oversized(&store, &state), 2);
        }
    }
    for layout in [AnyLayout::from(Heap::new()), AnyLayout::from(HybridLog::new())] {
        let store = in_memory(8 * MIB, MAX);
        let open = store.aggregated::<u64, Vec<u8>, Append>("w").layout(layout);
        accumulators(&store, |events| {
            let mut windows = open.open(Windows::tumbling(nanos(10)), Append).unwrap();
            windows_take(&mut windows, events)
        });
    }
    let store = in_memory(8 * MIB, MAX);
    let open = store.aggregated::<u64, Vec<u8>, Append>("w").layout(WindowSegments::new());
    accumulators(&store, |events| {
        let mut windows = open.open(Windows::tumbling(nanos(10)), Append).unwrap();
        windows_take(&mut windows, events)
    });
}

fn windows_take<L: alluvium::backend::WindowLayout<u64, Vec<u8>>>(
    windows: &mut alluvium::Aggregated<u64, Vec<u8>, Append, L>,
    events: Vec<(u64, Time, Vec<u8>)>,
) -> Vec<alluvium::Result<()>> {
    let add = |event| {
        let mut batch = vec![event];
        windows.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ())
    };
    events.into_iter().map(add).collect()
}

fn accumulators(
    store: &Store,
    take: impl FnOnce(Vec<(u64, Time, Vec<u8>)>) -> Vec<alluvium::Result<()>>,
) {
    let events = vec![
        (5, Time(1), bytes(MAX / 2)),
        (5, Time(2), bytes(MAX)),
        (5, Time(3), bytes(1)),
        (6, Time(3), bytes(1)),
    ];
    let taken = take(events);
    assert!(taken[0].is_ok() && taken[1].is_ok() && taken[3].is_ok(), "{taken:?}");
    let refused = taken[2].as_ref().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ValueTooLarge, "{refused}");
    assert!(refused.context("key").is_some_and(|key| key.contains('5')), "{refused}");
    assert_eq!(store.stats().unwrap().total().oversized, 1);
}

#[test]
fn max_value_is_what_the_format_takes_at_most() {
    let store = |max_value| Store::in_memory().memory(128 * MIB).max_value(max_value).open();
    store(31 * MIB).unwrap();
    let refused = store(33 * MIB).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("max_value"), "{refused}");
}

/// What the store may hold beside its budget: see `real_memory_stays_within_the_budget`.
const BESIDE_BYTES: isize = 256 << 10;

#[test]
fn a_value_of_33_mib_fails_checkpoints_by_name_until_it_is_gone() {
    let _alone = alone();
    for layout in layouts() {
        for way in 0..3 {
            let place = tempfile::tempdir().unwrap();
            let open = || builder(place.path(), 160 * MIB, MIB).layout(layout.clone()).open();
            let store = open().unwrap();
            let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
            (0..50).for_each(|key| _ = map.put(key, vec![key as u8; 1000]).unwrap());
            store.checkpoint(0).unwrap();
            map.update(&9, Vec::new, |v| *v = vec![1; 33 << 20]).unwrap();
            for _ in 0..2 {
                let refused = store.checkpoint(1).unwrap_err();
                let text = refused.to_string();
                assert!(text.contains("state m") && text.contains("key 9"), "{text}");
                // The others go on.
                map.update(&8, Vec::new, |v| v.push(1)).unwrap();
            }
            match way {
                0 => assert_eq!(map.take(&9).unwrap().map(|v| v.len()), Some(33 << 20)),
                1 => assert!(map.remove(&9).unwrap()),
                _ => assert!(map.put(9, vec![3]).unwrap()),
            }
            store.checkpoint(2).unwrap();
            drop((map, store));
            let store = open().unwrap();
            let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
            assert_eq!(map.len().unwrap(), if way < 2 { 49 } else { 50 });
            assert_eq!(map.get(&8).unwrap().map(|v| v.len()), Some(1002));
            let known = map.get(&9).unwrap().map(|v| v.clone());
            assert_eq!(known, (way == 2).then(|| vec![3]));
        }
    }
}

#[test]
fn a_larger_value_is_checkpointed_and_read_within_the_budget_if_twice_its_size_fits() {
    let _alone = alone();
    for layout in layouts() {
        let place = tempfile::tempdir().unwrap();
        let memory = 64 * MIB;
        let before = held();
        let within = |what: &str, own: isize| {
            let real = held() - before - own;
            let most = memory as isize + MIB as isize + BESIDE_BYTES;
            assert!(real <= most, "{what}: {real} bytes are held");
        };
        let open = || builder(place.path(), memory, MIB).layout(layout.clone()).open().unwrap();
        let store = open();
        let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
        (0..200).for_each(|key| _ = map.put(key, vec![key as u8; 50_000]).unwrap());
        map.update(&9, Vec::new, |v| *v = vec![7; 20 << 20]).unwrap();
        store.checkpoint(1).unwrap();
        within("a checkpoint", 0);
        drop((map, store));
        for round in 0..2 {
            let store = open();
            let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
            within("reopening", 0);
            let read = |map: &mut Map<u64, Vec<u8>>, key: u64| {
                map.read(&key, |v| v.map(|v| (v.len(), v[v.len() - 1]))).unwrap()
            };
            assert_eq!(read(&mut map, 9), Some((20 << 20, 7)));
            within("a read", 0);
            let never = |_: &mut Vec<u8>| panic!("a value that is too large was changed");
            is_too_large(&map.update(&9, Vec::new, never).unwrap_err(), "m", "9");
            (0..200)
                .filter(|key| *key != 9)
                .for_each(|key| assert_eq!(read(&mut map, key), Some((50_000, key as u8))));
            map.update(&8, Vec::new, |v| *v = vec![8; 50_000]).unwrap();
            store.checkpoint(2 + round).unwrap();
            within("another checkpoint", 0);
        }
        let store = open();
        let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
        let taken = map.take(&9).unwrap().unwrap();
        within("taking", taken.len() as isize);
        assert!(taken == vec![7; 20 << 20]);
        store.checkpoint(9).unwrap();
    }
}

/// Values whose sum is many times what a segment takes, all in a page, each within `max_value`.
#[test]
fn pages_that_are_longer_than_a_segment_are_written_in_parts() {
    let _alone = alone();
    for layout in layouts() {
        let place = tempfile::tempdir().unwrap();
        let open = || builder(place.path(), 256 * MIB, 12 * MIB).layout(layout.clone()).open();
        let store = open().unwrap();
        let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
        (0..9).for_each(|key| _ = map.put(key, vec![]).unwrap());
        for key in 0..9 {
            map.update(&key, Vec::new, |v| *v = vec![key as u8; 11 << 20]).unwrap();
        }
        store.checkpoint(1).unwrap();
        map.update(&3, Vec::new, |v| v[0] = 100).unwrap();
        store.checkpoint(2).unwrap();
        drop((map, store));
        let store = open().unwrap();
        let mut map: Map<u64, Vec<u8>> = store.map("m").open().unwrap();
        for key in 0..9 {
            let ends = map.read(&key, |v| v.map(|v| (v.len(), v[0], v[1]))).unwrap();
            let first = if key == 3 { 100 } else { key as u8 };
            assert_eq!(ends, Some((11 << 20, first, key as u8)));
        }
    }
}

/// Values around the limits in small budgets: checkpoint, drop, reopen, compare.
#[test]
fn values_around_the_limit_come_back_within_the_budget() {
    let _alone = alone();
    let (rounds, first) = (times("ALLUVIUM_VALUE_ROUNDS", 3), times("ALLUVIUM_SEED", 1));
    for seed in first..first + rounds {
        for kind in 0..5 {
            println!("seed {seed}, kind {kind}");
            around_the_limit(seed, kind);
        }
    }
}

enum Kept {
    Map(Map<u64, Vec<u8>>),
    List(List<u64, Vec<u8>>),
    Log(List<u64, Vec<u8>, AppendLog>),
}

fn open_kept(store: &Store, kind: u64) -> alluvium::Result<Kept> {
    let heap = AnyLayout::from(Heap::new());
    Ok(match kind {
        0 => Kept::Map(store.map("s").layout(heap).open()?),
        1 => Kept::Map(store.map("s").layout(AnyLayout::from(HybridLog::new())).open()?),
        2 => Kept::Map(store.map("s").moved_by(&store.mover("u")?).layout(heap).open()?),
        3 => Kept::List(store.list("s").layout(heap).open()?),
        _ => Kept::Log(store.list("s").layout(AppendLog::new()).open()?),
    })
}

fn around_the_limit(seed: u64, kind: u64) {
    let mut dice = Dice(seed * 8 + kind);
    let max = [4 * KIB, 16 * KIB, 64 * KIB][dice.below(3) as usize];
    // No less than what `max_value` is a sixteenth of, as it is by default.
    let memory = max * (16 + dice.below(40)) + 256 * KIB;
    let place = tempfile::tempdir().unwrap();
    let mut model: Vec<Vec<(u64, u8)>> = vec![Vec::new(); 40];
    let before = held();
    let check = |what: &str| {
        let real = (held() - before) as i64;
        let most = (memory + 2 * max) as i64 + BESIDE_BYTES as i64;
        assert!(real <= most, "seed {seed}, kind {kind}, {what}: {real} of {memory} bytes");
    };
    for round in 0..4 {
        let store = builder(place.path(), memory, max).open().unwrap();
        let opened = open_kept(&store, kind);
        let mut kept = opened.unwrap_or_else(|e| panic!("seed {seed}, kind {kind}, {round}: {e}"));
        check("reopening");
        compare(&mut kept, &model, &format!("seed {seed}, kind {kind}, round {round}"));
        check("reading");
        for _ in 0..60 {
            let (key, fill) = (dice.below(40), dice.below(256) as u8);
            let size = match dice.below(4) {
                0 => dice.below(100) + 1,
                1 => max - 64 - dice.below(64),
                2 => max - dice.below(max / 2) - 64,
                _ => max + 1 + dice.below(max),
            };
            let known = &mut model[key as usize];
            match &mut kept {
                Kept::Map(map) if dice.below(3) == 0 => {
                    let taken = map.take(&key).unwrap();
                    let taken = taken.map(|v| (v.len() as u64, v[0]));
                    assert_eq!(taken, known.pop());
                }
                Kept::Map(map) if dice.below(2) == 0 && size <= max => {
                    let there = known.first().copied();
                    match map.update(&key, Vec::new, |v| *v = vec![fill; size as usize]) {
                        Ok(()) => *known = vec![(size, fill)],
                        Err(e) => {
                            let is_large = e.kind() == ErrorKind::ValueTooLarge;
                            assert!(!is_large || there.is_some_and(|(n, _)| n + 8 > max), "{e}");
                        }
                    }
                }
                Kept::Map(map) => match map.put(key, vec![fill; size as usize]) {
                    Ok(_) => {
                        assert!(size <= max);
                        *known = vec![(size, fill)];
                    }
                    Err(e) => assert_kind(&e.error, size > max),
                },
                Kept::List(list) => match list.append(&key, vec![fill; size as usize]) {
                    Ok(()) => known.push((size, fill)),
                    Err(e) => assert_kind(&e.error, size > max),
                },
                Kept::Log(list) => match list.append(&key, vec![fill; size as usize]) {
                    Ok(()) => known.push((size, fill)),
                    Err(e) => assert_kind(&e.error, size > max),
                },
            }
            check("a call");
        }
        compare(&mut kept, &model, &format!("seed {seed}, kind {kind}, round {round}, again"));
        check("reading again");
        let taken = store.checkpoint(round as u64);
        taken.unwrap_or_else(|e| panic!("seed {seed}, kind {kind}, round {round}: {e}"));
        check("a checkpoint");
    }
}

#[track_caller]
fn assert_kind(error: &Error, is_large: bool) {
    let expected = if is_large { ErrorKind::ValueTooLarge } else { ErrorKind::OverBudget };
    assert_eq!(error.kind(), expected, "{error}");
}

fn compare(kept: &mut Kept, model: &[Vec<(u64, u8)>], what: &str) {
    for (key, known) in (0..).zip(model) {
        let mut seen = Vec::new();
        let mut see = |v: &Vec<u8>| {
            assert!(v.iter().all(|byte| *byte == v[0]));
            seen.push((v.len() as u64, v[0]));
            Ok(())
        };
        let read = match kept {
            Kept::Map(map) => map.read(&key, |v| v.map_or(Ok(()), &mut see)).and_then(|r| r),
            Kept::List(list) => list.read(&key, see).map(drop),
            Kept::Log(list) => list.read(&key, see).map(drop),
        };
        read.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(seen, *known, "{what}, key {key}");
    }
}
