//! Values that closures made larger than `max_value` are visited, rewritten, exported, moved and touched as long as
//! twice their size fits, and within the budget; what cannot be is refused by state and key.

use std::collections::BTreeMap;
use std::path::Path;

use alluvium::backend::Cursor;
use alluvium::config::Helpers;
use alluvium::io::{DirectIo, EngineChoice, IoOptions};
use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, AppendLog, Error, ErrorKind, Heap, HybridLog, KIB, KeyHash,
    List, MIB, Map, State, Store, StoreBuilder, Time, Ttl, WindowSegments, Windows,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::counting::{alone, held, most_held};
use crate::dice::{Dice, times};

const MEMORY: u64 = 64 * MIB;
const LARGE: usize = 12 << 20;
/// What the store may hold beside its budget, and directories of segments.
const BESIDE: isize = 768 << 10;

fn builder(place: &Path) -> StoreBuilder {
    let io = IoOptions {
        engine: EngineChoice::Threads,
        threads: 1,
        direct: DirectIo::Off,
        ..IoOptions::default()
    };
    let builder = Store::builder(place).memory(MEMORY).max_value(256 * KIB).io(io);
    builder.helpers(Helpers::Inline).retain(1).space_amplification(1.5)
}

fn layouts() -> [AnyLayout; 2] {
    [Heap::new().into(), HybridLog::new().into()]
}

fn map_of(store: &Store, layout: &AnyLayout) -> Map<u64, Vec<u8>> {
    store.map("m").layout(layout.clone()).open().unwrap()
}

/// The most that is held while `call` runs stays within the budget.
fn within<R>(before: isize, what: &str, call: impl FnOnce() -> R) -> R {
    let (most, result) = most_held(call);
    let real = most - before;
    assert!(real <= MEMORY as isize + BESIDE, "{what}: {real} bytes were held");
    result
}

fn is(value: &[u8], key: u64) -> bool {
    let expected = if key == 9 { LARGE } else { 50_000 };
    value.len() == expected && value[0] == key as u8 && value[value.len() - 1] == key as u8
}

#[test]
fn they_are_visited_and_rewritten_within_the_budget() {
    let _alone = alone();
    for layout in layouts() {
        let place = tempfile::tempdir().unwrap();
        let before = held();
        let store = builder(place.path()).open().unwrap();
        let mut map = map_of(&store, &layout);
        for key in 0..300 {
            map.put(key, vec![key as u8; 50_000]).unwrap();
            if key == 9 {
                map.update(&9, Vec::new, |v| *v = vec![9; LARGE]).unwrap();
            }
        }
        store.checkpoint(0).unwrap();
        drop((map, store));
        let store = builder(place.path()).open().unwrap();
        let mut map = map_of(&store, &layout);
        let count = |map: &mut Map<u64, Vec<u8>>| {
            let mut seen = 0;
            map.for_each(|key, value| {
                assert!(is(value, *key), "{key}: {} bytes", value.len());
                seen += 1;
                Ok(())
            })
            .unwrap();
            seen
        };
        assert_eq!(within(before, "all", || count(&mut map)), 300);
        let mut seen = 0;
        within(before, "a scan", || {
            let mut cursor = Cursor::default();
            while !cursor.done {
                let scanned = map.scan(&mut cursor, 3, |key, value| {
                    assert!(is(value, *key));
                    seen += 1;
                    Ok(())
                });
                scanned.unwrap();
            }
        });
        assert_eq!(seen, 300);
        // The large one stays where it is on storage while all about it dies.
        for round in 1..12 {
            within(before, "a round", || {
                for key in (0..300).filter(|key| *key != 9) {
                    map.update(&key, Vec::new, |v| v[1] = round as u8).unwrap();
                }
                store.checkpoint(round).unwrap();
                while store.tick(1 << 20).unwrap() > 0 {}
            });
        }
        let table = store.stats().unwrap().state("m").unwrap().table;
        let live = LARGE as u64 + 299 * 50_000;
        assert!(table.disk_bytes <= 5 * live / 2, "{} bytes for {live}", table.disk_bytes);
        assert_eq!(within(before, "all again", || count(&mut map)), 300);
        assert!(store.stats().unwrap().memory.peak <= MEMORY);
        drop((map, store));
        let store = builder(place.path()).open().unwrap();
        let mut map = map_of(&store, &layout);
        assert_eq!(count(&mut map), 300);
    }
}

#[test]
fn they_are_exported_and_refused_by_name_where_they_are_brought() {
    let _alone = alone();
    for layout in layouts() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let before = held();
        let store = builder(place.path()).memory(96 * MIB).open().unwrap();
        let mut map = map_of(&store, &layout);
        (0..50).for_each(|key| _ = map.put(key, vec![key as u8; 50_000]).unwrap());
        map.update(&9, Vec::new, |v| *v = vec![9; LARGE]).unwrap();
        store.checkpoint(0).unwrap();
        let mut file = Vec::with_capacity(32 << 20);
        let caller = file.capacity() as isize;
        within(before + caller + 32 * MIB as isize, "an export", || {
            store.export(&mut file).unwrap()
        });
        let to = builder(other.path()).open().unwrap();
        let mut there = map_of(&to, &layout);
        let refused = to.import(&file[..]).unwrap_err();
        is_too_large(&refused, "m", "9");
        assert!(there.get(&9).unwrap().is_none());
        drop((there, to));
        // A store that takes such values takes all of them.
        let to = builder(other.path()).memory(160 * MIB).max_value(16 * MIB).open().unwrap();
        there = map_of(&to, &layout);
        assert_eq!(to.import(&file[..]).unwrap().taken, 50);
        for key in 0..50 {
            assert!(there.read(&key, |v| is(v.unwrap(), key)).unwrap());
        }
        to.checkpoint(1).unwrap();
    }
}

#[track_caller]
fn is_too_large(error: &Error, state: &str, key: &str) {
    assert_eq!(error.kind(), ErrorKind::ValueTooLarge, "{error}");
    assert_eq!(error.context("state"), Some(state), "{error}");
    let named =
        error.context("key") == Some(key) || error.to_string().contains(&format!("key {key}"));
    assert!(named, "{error}");
}

/// A group with a value that is too large for the other store stays where it is, until the value is taken.
#[test]
fn they_move_to_stores_that_take_them() {
    let _alone = alone();
    for layout in layouts() {
        for is_taken in [true, false] {
            let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let before = held();
            let group = KeyGroup::of(9u64.key_hash(), 8);
            let next = (group.0 + 1) % 8;
            let from = builder(place.path()).key_groups(8).owned_groups(group.0..group.0 + 1);
            let from = from.open().unwrap();
            let max = if is_taken { 16 * MIB } else { 256 * KIB };
            let to = builder(other.path()).memory(160 * MIB).max_value(max);
            let to = to.key_groups(8).owned_groups(next..next + 1).open().unwrap();
            let (left, right) = (from.mover("u").unwrap(), to.mover("u").unwrap());
            let open = |store: &Store, mover| -> Map<u64, Vec<u8>> {
                store.map("m").layout(layout.clone()).moved_by(mover).open().unwrap()
            };
            let (mut map, mut there) = (open(&from, &left), open(&to, &right));
            for key in (0..400u64).filter(|key| KeyGroup::of(key.key_hash(), 8) == group) {
                map.put(key, vec![key as u8; 50_000]).unwrap();
            }
            map.update(&9, Vec::new, |v| *v = vec![9; LARGE]).unwrap();
            from.checkpoint(0).unwrap();
            let mut rest = left.begin(group).unwrap();
            let mut refused = None;
            while refused.is_none() {
                let chunk = within(before, "a chunk", || left.next_chunk(&mut rest, 64 << 10));
                let Some(chunk) = chunk.unwrap() else { break };
                refused = right.install(&chunk).err();
            }
            if is_taken {
                assert!(refused.is_none(), "{refused:?}");
                while !left.forget(group, 1000).unwrap() {}
                assert!(there.read(&9, |v| is(v.unwrap(), 9)).unwrap());
                to.checkpoint(1).unwrap();
                continue;
            }
            is_too_large(&refused.unwrap(), "m", "9");
            left.keep(group).unwrap();
            while !right.forget(group, 1000).unwrap() {}
            assert!(map.read(&9, |v| is(v.unwrap(), 9)).unwrap());
            assert_eq!(map.take(&9).unwrap().map(|v| v.len()), Some(LARGE));
            let mut rest = left.begin(group).unwrap();
            while let Some(chunk) = left.next_chunk(&mut rest, 64 << 10).unwrap() {
                right.install(&chunk).unwrap();
            }
            while !left.forget(group, 1000).unwrap() {}
            from.checkpoint(1).unwrap();
        }
    }
}

/// Reads that touch an entry work for one that is too large, and keep it from being over; it is replaced and taken.
#[test]
fn they_are_touched_by_reads() {
    let _alone = alone();
    for layout in layouts() {
        for is_reopened in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let open = |store: &Store| {
                let ttl = Ttl::event_time(nanos(10)).refreshed_by_reads();
                let open = store.expiring_map::<u64, Vec<u8>>("e").layout(layout.clone());
                open.open(ttl).unwrap()
            };
            let mut store = builder(place.path()).open().unwrap();
            let mut map = open(&store);
            map.put(1, vec![1]).unwrap();
            map.update(&9, Vec::new, |v| *v = vec![9; LARGE]).unwrap();
            if is_reopened {
                store.checkpoint(0).unwrap();
                drop((map, store));
                store = builder(place.path()).open().unwrap();
                map = open(&store);
            }
            for time in [5, 12, 20] {
                map.advance(Time(time)).unwrap();
                assert!(map.read(&9, |v| is(v.unwrap(), 9)).unwrap(), "{time}");
                assert_eq!(map.get(&9).unwrap().map(|v| v.len()), Some(LARGE));
                assert!(map.contains(&9).unwrap());
            }
            assert!(!map.contains(&1).unwrap(), "not read since 0");
            let never = |_: &mut Vec<u8>| panic!("a value that is too large was changed");
            is_too_large(&map.update(&9, Vec::new, never).unwrap_err(), "e", "9");
            match is_reopened {
                true => assert!(map.put(9, vec![3]).unwrap()),
                false => assert_eq!(map.take(&9).unwrap().map(|v| v.len()), Some(LARGE)),
            }
            store.checkpoint(1).unwrap();
            map.advance(Time(40)).unwrap();
            assert!(map.get(&9).unwrap().is_none());
        }
    }
}

/// Elements and values that a state has from when `max_value` was larger are read, merged and written again.
#[test]
fn they_are_there_when_max_value_becomes_smaller() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let mut model: BTreeMap<u64, Vec<(usize, u8)>> = BTreeMap::new();
    let max = |round: u64| if round == 0 { 4 * MIB } else { 16 * KIB };
    for round in 0..4u64 {
        let before = held();
        let store = builder(place.path()).memory(80 * MIB).max_value(max(round)).open().unwrap();
        let open = store.list::<u64, Vec<u8>>("l").layout(AppendLog::new());
        let mut list = open.open().unwrap();
        let (most, ()) = most_held(|| {
            for nth in 0..60u64 {
                let size = if nth % 8 == 0 { max(round) - 100 } else { 5000 } as usize;
                list.append(&(nth % 7), vec![nth as u8; size]).unwrap();
                model.entry(nth % 7).or_default().push((size, nth as u8));
            }
            for (key, known) in &model {
                let mut seen = Vec::new();
                let see = |v: &Vec<u8>| {
                    seen.push((v.len(), v[0]));
                    Ok(())
                };
                list.read(key, see).unwrap();
                assert_eq!(seen, *known, "round {round}, key {key}");
            }
            store.checkpoint(round).unwrap();
            while store.tick(1 << 20).unwrap() > 0 {}
        });
        let real = most - before;
        assert!(real <= 80 * MIB as isize + BESIDE, "round {round}: {real} bytes were held");
    }
}

/// As many bytes when it is stored, and four in memory.
#[derive(Clone, Debug, PartialEq, State)]
#[state(serde)]
struct Wide(u32);

impl Serialize for Wide {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&vec![7u8; self.0 as usize])
    }
}

struct Bytes;

impl serde::de::Visitor<'_> for Bytes {
    type Value = Wide;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Wide, E> {
        Ok(Wide(bytes.len() as u32))
    }
}

impl<'de> Deserialize<'de> for Wide {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(Bytes)
    }
}

const WIDE: Wide = Wide(40 << 20);

/// An archive that is much longer than its value is met when it is encoded, and told by state and key, until the value
/// is gone; one that a record has room for is kept.
#[test]
fn a_longer_archive_than_a_record_is_told_by_its_key() {
    let _alone = alone();
    for layout in layouts() {
        let place = tempfile::tempdir().unwrap();
        let open = |store: &Store| -> Map<u64, Wide> {
            store.map("m").layout(layout.clone()).open().unwrap()
        };
        let store = builder(place.path()).open().unwrap();
        let mut map = open(&store);
        (0..100).for_each(|key| _ = map.put(key, Wide(key as u32)).unwrap());
        map.put(5, Wide(3 << 20)).unwrap();
        store.checkpoint(0).unwrap();
        map.put(9, WIDE).unwrap();
        for _ in 0..2 {
            is_too_large(&store.checkpoint(1).unwrap_err(), "m", "9");
        }
        map.update(&8, || Wide(0), |v| v.0 += 1).unwrap();
        assert_eq!(map.take(&9).unwrap(), Some(WIDE));
        store.checkpoint(2).unwrap();
        drop((map, store));
        let store = builder(place.path()).open().unwrap();
        let mut map = open(&store);
        assert_eq!(map.len().unwrap(), 99);
        assert_eq!(map.get(&5).unwrap().as_deref(), Some(&Wide(3 << 20)));
        assert_eq!(map.get(&8).unwrap().as_deref(), Some(&Wide(9)));
    }
    for is_log in [false, true] {
        let layout: AnyLayout = if is_log { AppendLog::new().into() } else { Heap::new().into() };
        let place = tempfile::tempdir().unwrap();
        let store = builder(place.path()).open().unwrap();
        let mut list: List<u64, Wide> = store.list("l").layout(layout.clone()).open().unwrap();
        list.append(&3, Wide(1)).unwrap();
        if is_log {
            // Each has room in a record, and all together have none.
            (0..50).for_each(|nth| list.append(&(nth % 3), Wide(1 << 20)).unwrap());
            store.checkpoint(3).unwrap();
            drop((list, store));
            let store = builder(place.path()).open().unwrap();
            let mut list: List<u64, Wide> = store.list("l").layout(layout).open().unwrap();
            assert_eq!(list.to_vec(&1).unwrap(), vec![Wide(1 << 20); 17]);
            assert_eq!(list.len().unwrap(), 51);
            list.append(&9, WIDE).unwrap();
            is_too_large(&store.checkpoint(4).unwrap_err(), "l", "9");
            continue;
        }
        list.append(&9, WIDE).unwrap();
        for _ in 0..2 {
            is_too_large(&store.checkpoint(1).unwrap_err(), "l", "9");
        }
        list.clear(&9).unwrap();
        store.checkpoint(2).unwrap();
    }
}

/// Keeps all bytes.
#[derive(Clone, Copy)]
struct Append;

impl Aggregate<Vec<u8>> for Append {
    type Acc = Vec<u8>;
    type Out = (usize, u64);

    fn init(&self) -> Vec<u8> {
        Vec::new()
    }

    fn add(&self, acc: &mut Vec<u8>, element: &Vec<u8>) {
        acc.extend(element);
    }

    fn merge(&self, acc: &mut Vec<u8>, later: &Vec<u8>) {
        acc.extend(later);
    }

    fn out(&self, acc: &Vec<u8>) -> Option<(usize, u64)> {
        Some((acc.len(), acc.iter().map(|byte| u64::from(*byte)).sum()))
    }
}

/// Windows and lists of values around `max_value`, which is another one at each open: checkpoint, drop, reopen,
/// compare. What is refused is refused by name, and what is accepted is there.
#[test]
fn windows_and_lists_are_opened_with_another_max_value() {
    let _alone = alone();
    let (rounds, first) = (times("ALLUVIUM_VALUE_ROUNDS", 2), times("ALLUVIUM_SEED", 1));
    for seed in first..first + rounds {
        for kind in 0..4 {
            reopened_with_another_max_value(seed, kind);
        }
    }
}

enum Kept {
    Log(List<u64, Vec<u8>>),
    Segments(Aggregated<u64, Vec<u8>, Append, WindowSegments>),
    Panes(Aggregated<u64, Vec<u8>, Append, AnyLayout>),
}

fn open_kept(store: &Store, kind: u64) -> alluvium::Result<Kept> {
    let panes = || store.aggregated::<u64, Vec<u8>, Append>("s");
    Ok(match kind {
        0 => Kept::Log(store.list("s").layout(AppendLog::new().into()).open()?),
        1 => {
            let open = panes().layout(WindowSegments::new());
            Kept::Segments(open.open(Windows::tumbling(nanos(10)), Append)?)
        }
        kind => {
            let open = panes().layout(layouts()[kind as usize - 2].clone());
            Kept::Panes(open.open(Windows::tumbling(nanos(10)), Append)?)
        }
    })
}

type Fired = BTreeMap<(i64, u64), (usize, u64)>;

fn add<L: alluvium::backend::WindowLayout<u64, Vec<u8>>>(
    windows: &mut Aggregated<u64, Vec<u8>, Append, L>,
    event: (u64, Time, Vec<u8>),
) -> alluvium::Result<()> {
    let sent = windows.watermark();
    windows.add_batch(sent, &mut vec![event], &mut |_| (), &mut |_, _, _, _| ())
}

fn fire<L: alluvium::backend::WindowLayout<u64, Vec<u8>>>(
    windows: &mut Aggregated<u64, Vec<u8>, Append, L>,
    to: i64,
) -> alluvium::Result<Fired> {
    let mut fired = Fired::new();
    windows.advance_all(Time(to), &mut |key, window, result, diff| {
        assert_eq!(diff, 1);
        fired.insert((window.start.0, *key), result);
    })?;
    Ok(fired)
}

fn is_lack(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OverBudget | ErrorKind::Overtaken)
}

fn reopened_with_another_max_value(seed: u64, kind: u64) {
    let mut dice = Dice(seed * 8 + kind);
    let largest = 256 * KIB;
    // Each is a sixteenth of the memory or less, as by default.
    let memory = largest * (24 + dice.below(24)) + 512 * KIB;
    let place = tempfile::tempdir().unwrap();
    let (mut lists, mut fired_before) = (BTreeMap::<u64, Vec<(usize, u64)>>::new(), 0);
    let mut panes = Fired::new();
    for round in 0..5u64 {
        let max = [4 * KIB, 32 * KIB, largest][dice.below(3) as usize];
        let what = format!("seed {seed}, kind {kind}, round {round}, max {max}");
        let before = held();
        let (most, ()) = most_held(|| {
            let store = builder(place.path()).memory(memory).max_value(max).open().unwrap();
            let mut kept = open_kept(&store, kind).unwrap_or_else(|e| panic!("{what}: {e}"));
            let base = round as i64 * 100;
            for _ in 0..40 {
                let key = dice.below(6);
                let size = match dice.below(3) {
                    0 => dice.below(500) + 1,
                    1 => max - 64 - dice.below(64),
                    _ => max / 2 + dice.below(max),
                } as usize;
                let (time, fill) = (base + dice.below(30) as i64, dice.below(256));
                let (element, sum) = (vec![fill as u8; size], fill * size as u64);
                let added = match &mut kept {
                    Kept::Log(list) => list.append(&key, element).map_err(Error::from),
                    Kept::Segments(windows) => add(windows, (key, Time(time), element)),
                    Kept::Panes(windows) => add(windows, (key, Time(time), element)),
                };
                match added {
                    Ok(()) if kind == 0 => lists.entry(key).or_default().push((size, sum)),
                    Ok(()) => {
                        let known = panes.entry((time / 10 * 10, key)).or_default();
                        *known = (known.0 + size, known.1 + sum);
                    }
                    Err(error) => {
                        let kinds = [ErrorKind::ValueTooLarge, ErrorKind::OverBudget];
                        assert!(kinds.contains(&error.kind()), "{what}: {error}");
                    }
                }
            }
            match store.checkpoint(round) {
                // Of values that closures made larger there is room for twice the size, or they have to go.
                Err(error) if store.stats().unwrap().total().oversized > 0 => {
                    assert!(is_lack(&error), "{what}: {error}");
                }
                taken => _ = taken.unwrap_or_else(|e| panic!("{what}: {e}")),
            }
            if let Kept::Log(list) = &mut kept {
                for (key, known) in &lists {
                    let mut seen = Vec::new();
                    let see = |v: &Vec<u8>| {
                        seen.push((v.len(), v.iter().map(|byte| u64::from(*byte)).sum()));
                        Ok(())
                    };
                    list.read(key, see).unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(seen, *known, "{what}, key {key}");
                }
            }
            // Those of the round before, which were read from a checkpoint; all, if this one has no room.
            let mut to = base;
            loop {
                let fired = match &mut kept {
                    Kept::Log(_) => Ok(Fired::new()),
                    Kept::Segments(windows) => fire(windows, to),
                    Kept::Panes(windows) => fire(windows, to),
                };
                let fired = fired.unwrap_or_else(|e| panic!("{what}: {e}"));
                let due = panes.range((fired_before, 0)..(to, 0)).map(|(at, sum)| (*at, *sum));
                assert_eq!(fired, due.collect(), "{what}");
                fired_before = to;
                while store.tick(1 << 20).unwrap() > 0 {}
                match store.checkpoint(round + 100) {
                    Err(error) if to == base && store.stats().unwrap().total().oversized > 0 => {
                        assert!(is_lack(&error), "{what}: {error}");
                        to = base + 100;
                    }
                    taken => {
                        taken.unwrap_or_else(|e| panic!("{what}: {e}"));
                        break;
                    }
                }
            }
        });
        let real = most - before;
        let limit = memory as isize + 2 * largest as isize + BESIDE;
        assert!(real <= limit, "{what}: {real} of {limit} bytes");
    }
}
