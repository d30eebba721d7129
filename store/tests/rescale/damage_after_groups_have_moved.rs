//! Bits flipped in all files of two stores between which key groups have moved: maps, counters, timers,
//! windows on storage with gaps where groups were, entries that expire, and a group that is not removed in
//! full. What is read is right, or the error says which file is damaged.
//!
//! What this catches: a part of what a checkpoint says of groups, gaps or times that no checksum covers; an
//! entry of a group that has gone and is served again.
//!
//! By default some bits of some files; `ALLUVIUM_LONG=1` takes a bit of each byte.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::moving::{KeyGroup, Mover, Standing};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AnyLayout, Count, Counting, Error, ErrorKind, ExpiringMap, HybridLog, KIB, KeyHash,
    MIB, Map, Result, Store, Time, Timers, Ttl, WindowSegments, Windows,
};

use crate::dice::Dice;
use crate::job::{GROUPS, builder, owned};

const KEYS: u64 = 1200;
/// Windows that each key has an event in.
const WINDOWS: i64 = 14;

struct States {
    store: Store,
    mover: Mover,
    map: Map<u64, u64>,
    counts: Count<u64>,
    timers: Timers<u64>,
    expiring: ExpiringMap<u64, u64>,
    windows: Aggregated<u64, (), Counting>,
}

fn open(at: usize, device: &Simulated) -> Result<States> {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    let layout: AnyLayout = log.memory(160 * KIB).into();
    let store = builder(&layout)
        .memory(4 * MIB)
        .max_value(KIB)
        .owned_groups(owned(at, 2))
        .device(Arc::new(device.clone()))
        .open()?;
    let mover = store.mover("unit")?;
    let segments = WindowSegments::new().memory(256 * KIB);
    Ok(States {
        map: store.map("map").moved_by(&mover).open()?,
        counts: store.count("counts").moved_by(&mover).open()?,
        timers: store.timers_moved_by(&mover, "timers")?,
        expiring: store
            .expiring_map("expiring")
            .moved_by(&mover)
            .open(Ttl::event_time(nanos(50)))?,
        windows: {
            let windows = store.aggregated("windows").layout(segments.into()).moved_by(&mover);
            windows.open(Windows::tumbling(nanos(10)), Counting)?
        },
        mover,
        store,
    })
}

fn group_of(key: u64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), GROUPS)
}

/// Moves a group, and removes it where it was: all of it, or not.
fn bring(states: &[States; 2], group: KeyGroup, from: usize, all: bool) {
    let (old, new) = (&states[from], &states[1 - from]);
    let mut rest = old.mover.begin(group).unwrap();
    while let Some(chunk) = old.mover.next_chunk(&mut rest, 4 << 10).unwrap() {
        new.mover.install(&chunk).unwrap();
    }
    while !old.mover.forget(group, 1).unwrap() && all {}
}

/// Two devices, and which groups each has.
fn sample() -> ([Simulated; 2], [BTreeSet<u16>; 2]) {
    let devices = [1, 2].map(|seed| Simulated::new(seed, Faults::none()));
    let mut states = [0, 1].map(|at| open(at, &devices[at]).unwrap());
    for at in 0..2 {
        let here = |key: &u64| owned(at, 2).contains(&group_of(*key).0);
        let states = &mut states[at];
        states.expiring.advance(Time(100)).unwrap();
        for key in (0..KEYS).filter(here) {
            states.map.put(key, key).unwrap();
            states.counts.add(&key, key as i64).unwrap();
            states.timers.set(key, Time(key as i64)).unwrap();
            states.expiring.put(key, key).unwrap();
            let mut events = (0..WINDOWS).map(|nth| (key, Time(10 * nth), ())).collect();
            let never = &mut |late| panic!("{late:?} is late");
            states.windows.add_batch(Time(0), &mut events, never, &mut |_, _, _, _| ()).unwrap();
        }
    }
    for states in &states {
        // Windows have runs, which the groups leave gaps in.
        let stats = states.store.stats().unwrap().states;
        let mut panes = stats.iter().filter(|state| state.primitive == "panes");
        assert!(panes.any(|state| state.table.live_disk_bytes > 0), "{stats:?}");
    }
    for states in &states {
        states.store.checkpoint(1).unwrap();
    }
    let mut has = [0, 1].map(|at| owned(at, 2).collect::<BTreeSet<_>>());
    for (group, from, all) in [(1, 0, true), (4, 0, true), (8, 1, true), (2, 0, false)] {
        bring(&states, KeyGroup(group), from, all);
        assert!(has[from].remove(&group) && has[1 - from].insert(group));
    }
    assert_eq!(states[0].mover.standing(KeyGroup(2)).unwrap(), Standing::Going);
    for states in &states {
        states.store.checkpoint(2).unwrap();
    }
    drop(states);
    (devices.map(|device| device.crash(CrashPolicy::Everything)), has)
}

/// All states have what they should, or cannot be read.
fn compare(mut states: States, has: &BTreeSet<u16>, when: &str) -> Vec<Error> {
    let keys = || (0..KEYS).filter(|key| has.contains(&group_of(*key).0));
    let mut errors = Vec::new();
    // What is left of groups that have gone is removed first.
    for group in (0..GROUPS).map(KeyGroup) {
        while states.mover.standing(group).unwrap() == Standing::Going {
            if let Err(error) = states.mover.forget(group, 100) {
                return vec![error];
            }
        }
    }
    let mut found = BTreeMap::new();
    let read = states.map.for_each(|key, value| {
        found.insert(*key, *value);
        Ok(())
    });
    match read {
        Ok(()) => assert_eq!(found, keys().map(|key| (key, key)).collect(), "{when}"),
        Err(error) => errors.push(error),
    }
    for key in keys() {
        for (what, got) in [
            ("map", states.map.get(&key).map(|value| value.as_deref().copied())),
            ("expiring", states.expiring.get(&key).map(|value| value.as_deref().copied())),
            ("counts", states.counts.get(&key).map(|count| Some(count as u64))),
        ] {
            match got {
                Ok(got) => assert_eq!(got, Some(key), "{when}: {what}"),
                Err(error) => errors.push(error),
            }
        }
    }
    let due: BTreeSet<_> = std::iter::from_fn(|| states.timers.pop_due(Time(KEYS as i64)))
        .map(|(_, key)| key)
        .collect();
    assert_eq!(due, keys().collect(), "{when}");
    let mut counts: BTreeMap<u64, i64> = BTreeMap::new();
    let mut count = |key: &u64, _, count: i64, _| *counts.entry(*key).or_default() += count;
    loop {
        match states.windows.advance(Time(i64::MAX), 1000, &mut count) {
            Ok(advanced) if advanced.done => {
                assert_eq!(counts, keys().map(|key| (key, WINDOWS)).collect(), "{when}");
                return errors;
            }
            Ok(_) => {}
            Err(error) => {
                errors.push(error);
                return errors;
            }
        }
    }
}

#[test]
fn flipped_bits_are_found_or_harmless_after_groups_have_moved() {
    let long = std::env::var_os("ALLUVIUM_LONG").is_some();
    let (devices, has) = sample();
    let mut dice = Dice(3);
    let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (at, (device, has)) in devices.iter().zip(&has).enumerate() {
        let copy = || device.crash(CrashPolicy::Everything);
        assert!(compare(open(at, &copy()).unwrap(), has, "undamaged").is_empty());
        for file in device.list().unwrap() {
            let bytes = device.bytes(&file).unwrap();
            let offsets: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            // Of the many segments some.
            if file.starts_with("seg-") && !long && dice.below(8) > 0 {
                continue;
            }
            let share = if long { 1 } else { (offsets.len() / 2).max(1) };
            let first = dice.below(share as u64) as usize;
            for offset in offsets.into_iter().skip(first).step_by(share) {
                let bit = dice.below(8) as u32;
                let when = format!("{file} of store {at}, byte {offset}, bit {bit}");
                let copy = copy();
                copy.corrupt(&file, offset as u64, bit).unwrap();
                let errors = match open(at, &copy) {
                    Ok(states) => compare(states, has, &when),
                    Err(error) => vec![error],
                };
                for error in &errors {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
                    assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                    assert_eq!(error.context("file"), Some(&*file), "{when}: {error:?}");
                }
                let kind = file.split('-').next().expect("a first part").to_owned();
                let (refused, harmless) = seen.entry(kind).or_default();
                *if errors.is_empty() { harmless } else { refused } += 1;
            }
        }
    }
    println!("refused and harmless, by kind of file: {seen:?}");
    for kind in ["MANIFEST", "checkpoint", "seg"] {
        assert!(seen.get(kind).is_some_and(|(refused, _)| *refused > 0), "{kind}: {seen:?}");
    }
}
