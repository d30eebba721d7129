//! Timers on storage: a set of (time, key, namespace), fired in order, whatever the layout, the memory and
//! the number of the next ones that are in memory; over checkpoints, restarts and trouble of the device.
//!
//! What this catches: a timer that a pass misses because it was set, cancelled or moved to storage while the pass went on; one
//! that fires twice, or out of order; one that is lost where the next ones have no room; failed calls that
//! have changed something; memory that is taken without being booked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use alluvium::backend::Cursor;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::moving::RowKeys;
use alluvium::states::{Due, StoredTimers};
use alluvium::stats::StoredTimersStats;
use alluvium::{AnyLayout, ErrorKind, Heap, KIB, KeyHash, MIB, Result, Store, Time};

use crate::common::{Dice, Standing, durable_layouts, times, tiny};

type Stored = StoredTimers<u64, String>;
type Pending = BTreeSet<(Time, u64, String)>;

/// A store on a device, with its timers; of the next ones as few as can be are in memory, or as many as
/// may.
fn open(device: &Simulated, layout: &AnyLayout, memory: u64, few: bool) -> (Store, Stored) {
    let store = Store::in_memory()
        .clock(Arc::new(Standing))
        .memory(memory)
        .max_value(KIB)
        .layout(layout.clone())
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let mut timers = store.stored_timers("t").open().unwrap();
    if few {
        timers.keep_next_in(0);
    }
    (store, timers)
}

/// All layouts, with memory in which the logs must evict, and a number of steps.
fn layouts() -> Vec<(&'static str, AnyLayout, u64, u64)> {
    let mut all: Vec<_> = durable_layouts()
        .into_iter()
        .map(|(name, layout)| match name {
            "heap" => (name, layout, 4 * MIB, 12_000),
            // Each call looks at all timers.
            "tiny log, constant hash" => (name, layout, MIB, 1_500),
            _ => (name, layout, 640 * KIB, 12_000),
        })
        .collect();
    all.push(("tiny log, runs", tiny().cold_entries(16).into(), MIB, 12_000));
    all
}

/// Pops until it is known whether a timer is due.
fn next_due(timers: &mut Stored, watermark: Time) -> Result<Option<(Time, u64, String)>> {
    loop {
        match timers.pop_due_in(watermark)? {
            Due::Timer(timer) => return Ok(Some(timer)),
            Due::Searching => {}
            Due::None => return Ok(None),
        }
    }
}

/// All that are left, in order.
fn drain(timers: &mut Stored) -> Vec<(Time, u64, String)> {
    let mut all = Vec::new();
    loop {
        match timers.pop_first().unwrap() {
            Due::Timer(timer) => all.push(timer),
            Due::Searching => {}
            Due::None => return all,
        }
    }
}

/// Fires the first that is due, if it is known.
fn fire(timers: &mut Stored, model: &mut Pending, watermark: Time) -> Result<()> {
    match timers.pop_due_in(watermark)? {
        Due::Timer(fired) => {
            assert!(fired.0 < watermark);
            assert_eq!(model.pop_first(), Some(fired));
        }
        Due::Searching => {
            let next = timers.next_time()?;
            let first = model.first().expect("an empty set needs no search").0;
            assert!(next.is_some_and(|next| next <= first), "{next:?} {first:?}");
        }
        Due::None => assert!(model.first().is_none_or(|first| first.0 >= watermark)),
    }
    Ok(())
}

/// Makes a call on both; one that fails has changed nothing.
fn change(timers: &mut Stored, model: &mut Pending, dice: &mut Dice, now: i64) -> Result<()> {
    let timer = (Time(now + dice.below(400) as i64), dice.below(60), format!("{}", dice.below(5)));
    match dice.below(40) {
        0..25 => {
            let is_new = timers.set_in(timer.1, timer.0, timer.2.clone())?;
            assert_eq!(is_new, model.insert(timer));
        }
        25..31 => {
            let was_there = timers.cancel_in(timer.1, timer.0, timer.2.clone())?;
            assert_eq!(was_there, model.remove(&timer));
        }
        31..37 => {
            let watermark = Time(now + dice.below(200) as i64);
            for _ in 0..=dice.below(5) {
                fire(timers, model, watermark)?;
            }
        }
        37 => {
            let before = Time(now + dice.below(30) as i64);
            let mut is_done = false;
            while !is_done {
                is_done = timers.purge(before, 1)?;
                if timers.len()? < model.len() as u64 {
                    assert!(model.pop_first().is_some_and(|timer| timer.0 < before));
                }
            }
            assert!(model.first().is_none_or(|timer| timer.0 >= before));
        }
        38 if dice.below(20) == 0 => {
            // All of a key.
            let (mut cursor, mut doomed) = (Cursor::default(), Vec::new());
            while !cursor.done {
                timers.scan(&mut cursor, 50, |at, key, namespace| {
                    let is_doomed = *key == timer.1;
                    doomed.extend(is_doomed.then(|| (*key, at, namespace.clone())));
                    Ok(())
                })?;
                for (key, at, namespace) in doomed.drain(..) {
                    assert!(timers.cancel_in(key, at, namespace.clone())?);
                    assert!(model.remove(&(at, key, namespace)));
                }
            }
        }
        _ => {}
    }
    assert_eq!(timers.len()?, model.len() as u64);
    Ok(())
}

#[test]
fn timers_in_any_layout_are_an_ordered_set() {
    let mut searched = 0;
    for (name, layout, memory, steps) in layouts() {
        for few in [true, false] {
            let device = Simulated::new(1, Faults::none());
            let (mut store, mut timers) = open(&device, &layout, memory, few);
            let (mut model, mut dice) = (Pending::new(), Dice(7));
            for step in 1..=steps {
                change(&mut timers, &mut model, &mut dice, step as i64 / 20).unwrap();
                if step % (steps / 4) == 0 {
                    searched += timers.stats().unwrap().passes;
                    store.checkpoint(step).unwrap();
                    drop((timers, store));
                    (store, timers) = open(&device, &layout, memory, few);
                    assert_eq!(timers.len().unwrap(), model.len() as u64, "{name}");
                }
            }
            assert!(model.len() > 60, "{name}: {} timers", model.len());
            assert_eq!(next_due(&mut timers, Time::MIN).unwrap(), None);
            assert_eq!(timers.next_time().unwrap().is_some(), !model.is_empty());
            assert!(drain(&mut timers).into_iter().eq(model), "{name}, few {few}");
            assert_eq!(timers.next_time().unwrap(), None);
            let memory = store.stats().unwrap().memory;
            assert!(memory.peak <= memory.limit, "{name}: {memory:?}");
        }
    }
    assert!(searched > 40, "{searched} passes");
}

/// Also at both ends of time, where those at the end are never due.
#[test]
fn a_timer_at_the_watermark_waits_until_that_has_passed_it() {
    let store = Store::in_memory().memory(16 * MIB).open().unwrap();
    let mut timers = store.stored_timers::<u64, ()>("t").open().unwrap();
    for at in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1] {
        assert!(timers.set(1, Time(at)).unwrap() && !timers.set(1, Time(at)).unwrap());
        assert_eq!(timers.next_time().unwrap(), Some(Time(at)));
        assert_eq!(timers.pop_due(Time(at)).unwrap(), Due::None, "at {at}");
        assert_eq!(timers.pop_due(Time(at + 1)).unwrap(), Due::Timer((Time(at), 1)));
        assert!(timers.set(1, Time(at)).unwrap() && timers.cancel(1, Time(at)).unwrap());
        assert!(!timers.cancel(1, Time(at)).unwrap());
    }
    assert!(timers.set(1, Time::MAX).unwrap());
    assert_eq!(timers.pop_due(Time::MAX).unwrap(), Due::None);
    assert!(timers.purge(Time::MAX, 10).unwrap());
    assert_eq!(timers.pop_first().unwrap(), Due::Timer((Time::MAX, 1, ())));
    assert_eq!(timers.pop_first().unwrap(), Due::None);
}

/// `ALLUVIUM_TIMERS` says how many there are, in a directory; what they take is printed.
#[test]
fn timers_for_which_memory_has_no_room_fire_in_order() {
    const MEMORY: u64 = MIB;
    let count = times("ALLUVIUM_TIMERS", 50_000);
    let timer = |n: u64| (Time((n.key_hash() % 5_000) as i64), n);
    {
        let store = Store::in_memory().memory(MEMORY).open().unwrap();
        let mut in_memory = store.timers::<u64>("t").unwrap();
        let mut all = (0..count).map(timer);
        let refused = all.find_map(|(at, key)| in_memory.set(key, at).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::OverBudget));
    }
    let directory = tempfile::tempdir().unwrap();
    let builder = match std::env::var("ALLUVIUM_TIMERS") {
        Ok(_) => Store::builder(directory.path()),
        Err(_) => Store::in_memory().device(Arc::new(Simulated::new(1, Faults::none()))),
    };
    let store = builder.memory(MEMORY).open().unwrap();
    let since = Instant::now();
    let mut timers = store.stored_timers::<u64, ()>("t").open().unwrap();
    let mut model: BTreeSet<_> = (0..count).map(timer).collect();
    for n in 0..count {
        let (at, key) = timer(n);
        assert!(timers.set(key, at).unwrap());
    }
    let disk_bytes = timers.stats().unwrap().table.disk_bytes;
    println!("{count} timers set in {:.1?}, {disk_bytes} bytes on storage", since.elapsed());
    for n in (0..count).step_by(7) {
        let (at, key) = timer(n);
        assert!(!timers.set(key, at).unwrap() && timers.cancel(key, at).unwrap());
        model.remove(&(at, key));
    }
    let stats = timers.stats().unwrap();
    assert_eq!(stats.pending, model.len() as u64);
    assert!(stats.next * 5 < stats.pending && stats.next_bytes <= MEMORY / 8, "{stats:?}");
    // What is set while they fire comes in its turn.
    let (since, mut fired) = (Instant::now(), 0);
    for watermark in (500..=5_000).step_by(500) {
        loop {
            match timers.pop_due(Time(watermark)).unwrap() {
                Due::Timer((at, key)) => {
                    assert_eq!(model.pop_first(), Some((at, key)));
                    fired += 1;
                    let again = (Time(at.0 + 777), key);
                    if key % 5 == 0 && again.0.0 < 5_000 {
                        assert_eq!(timers.set(key, again.0).unwrap(), model.insert(again));
                    }
                }
                Due::Searching => {}
                Due::None => break,
            }
        }
        assert!(model.first().is_none_or(|first| first.0 >= Time(watermark)));
    }
    assert!(model.is_empty() && timers.is_empty().unwrap());
    let stats = timers.stats().unwrap();
    let StoredTimersStats { passes, looked_at, .. } = stats;
    println!("{fired} fired in {:.1?}, {passes} passes over {looked_at}", since.elapsed());
    assert!(passes > 5 && looked_at > 2 * count, "{stats:?}");
    assert!(stats.table.cold_reads > 100, "{stats:?}");
    let memory = store.stats().unwrap().memory;
    assert!(memory.peak <= memory.limit, "{memory:?}");
}

/// All are in one key group, and few bits of their hashes tell them apart.
#[test]
fn timers_of_one_key_fire_in_order() {
    let store = Store::in_memory().memory(4 * MIB).open().unwrap();
    let mut timers = store.stored_timers::<(), u64>("t").open().unwrap();
    let timer = |n: u64| (Time((n.key_hash() % 1_000) as i64), n);
    let mut model: BTreeSet<_> = (0..20_000).map(timer).collect();
    let since = Instant::now();
    for (at, namespace) in (0..20_000).map(timer) {
        assert!(timers.set_in((), at, namespace).unwrap());
    }
    println!("20000 timers of one key set in {:.1?}", since.elapsed());
    loop {
        match timers.pop_due_in(Time(1_000)).unwrap() {
            Due::Timer((at, (), namespace)) => {
                assert_eq!(model.pop_first(), Some((at, namespace)));
            }
            Due::Searching => {}
            Due::None => break,
        }
    }
    assert!(model.is_empty());
    println!("they have fired after {:.1?}", since.elapsed());
}

#[test]
fn a_checkpoint_has_the_timers_of_its_barrier_whatever_happens_while_it_is_taken() {
    for seed in 0..6 {
        let (few, mut dice) = (seed % 2 == 0, Dice(seed));
        let device = Simulated::new(seed, Faults::late(3));
        let layout = tiny().into();
        let (store, mut timers) = open(&device, &layout, MIB, few);
        let (mut model, mut steps) = (Pending::new(), 0);
        for round in 0..4 {
            for _ in 0..dice.below(2000) {
                change(&mut timers, &mut model, &mut dice, 0).unwrap();
            }
            let barrier = model.clone();
            let mut seal = store.seal(round).unwrap();
            while !seal.advance().unwrap() {
                steps += 1;
                for _ in 0..dice.below(40) {
                    change(&mut timers, &mut model, &mut dice, 0).unwrap();
                }
            }
            seal.confirm().unwrap();
            let image = device.crash(CrashPolicy::Nothing);
            let (_store, mut restored) = open(&image, &layout, MIB, !few);
            let found = drain(&mut restored);
            assert!(found.into_iter().eq(barrier), "seed {seed}, round {round}");
        }
        assert!(steps > 4, "{steps} steps");
    }
}

#[test]
fn a_call_that_fails_changes_nothing_and_can_be_made_again() {
    for (seed, few) in [(1, true), (2, false), (3, true)] {
        let device = Simulated::new(seed, Faults::none());
        let (_store, mut timers) = open(&device, &tiny().into(), 768 * KIB, few);
        let (mut model, mut dice, mut failed) = (Pending::new(), Dice(seed), 0);
        for n in 0..6_000 {
            let timer = (Time(400 + n % 90), n as u64, "far".to_owned());
            assert!(timers.set_in(timer.1, timer.0, timer.2.clone()).unwrap());
            model.insert(timer);
        }
        for _ in 0..4 {
            device.set_faults(Faults {
                read_errors: 0.003,
                flipped_reads: 0.003,
                ..Faults::none()
            });
            for _ in 0..1_500 {
                if let Err(error) = change(&mut timers, &mut model, &mut dice, 0) {
                    let kinds = [ErrorKind::Io, ErrorKind::Corrupt];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    failed += 1;
                }
            }
            // Each watermark is tried until it is done.
            let watermark = Time(dice.below(450) as i64);
            loop {
                match timers.pop_due_in(watermark) {
                    Ok(Due::Timer(timer)) => assert_eq!(model.pop_first(), Some(timer)),
                    Ok(Due::Searching) => {}
                    Ok(Due::None) => break,
                    Err(_) => failed += 1,
                }
            }
            assert!(model.first().is_none_or(|first| first.0 >= watermark));
            device.set_faults(Faults::none());
        }
        assert!(failed > 5, "{failed} calls failed");
        assert!(drain(&mut timers).into_iter().eq(model), "seed {seed}");
    }
}

/// Timers that come into an open state are found, also before those that were known.
#[test]
fn imported_timers_fire_with_the_others() {
    let device = || Simulated::new(1, Faults::none());
    let (from, mut timers) = open(&device(), &tiny().into(), MIB, false);
    let mut model = Pending::new();
    for n in 0..3_000 {
        let timer = (Time(n as i64 % 70), n, "a".to_owned());
        timers.set_in(timer.1, timer.0, timer.2.clone()).unwrap();
        model.insert(timer);
    }
    let mut file = Vec::new();
    from.export(&mut file).unwrap();
    let (to, mut timers) = open(&device(), &Heap::new().into(), 4 * MIB, false);
    timers.set_in(5, Time(30), "b".into()).unwrap();
    model.insert((Time(30), 5, "b".into()));
    assert_eq!(timers.next_time().unwrap(), Some(Time(30)));
    to.import(&file[..]).unwrap();
    assert_eq!(next_due(&mut timers, Time(1)).unwrap(), model.pop_first());
    let mut again = Vec::new();
    timers.set_in(0, Time(0), "a".into()).unwrap();
    timers.cancel_in(5, Time(30), "b".into()).unwrap();
    to.export(&mut again).unwrap();
    assert_eq!(again, file, "a canonical file is the same from any layout");
    timers.cancel_in(0, Time(0), "a".into()).unwrap();
    model.remove(&(Time(30), 5, "b".into()));
    assert!(drain(&mut timers).into_iter().eq(model));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Store::builder(directory.path()).memory(16 * MIB).open().unwrap();
    {
        let store = open();
        let mut timers = store.stored_timers::<u64, u8>("t").open().unwrap();
        timers.set_in(1, Time(5), 7).unwrap();
        let twice = store.stored_timers::<u64, u8>("t").open().unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::InUse, "{twice}");
        store.timers::<u64>("in memory").unwrap().set(1, Time(5)).unwrap();
        store.checkpoint(1).unwrap();
    }
    let store = open();
    let refused = [
        (store.timers_in::<u64, u8>("t").map(drop), "stored-timers"),
        (store.stored_timers::<u64, ()>("t").open().map(drop), "PendingTimer"),
        (store.map::<u64, u8>("t").open().map(drop), "stored-timers"),
        (store.stored_timers::<u64, ()>("in memory").open().map(drop), "primitive is timers"),
    ];
    for (refused, words) in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // In another layout it is the same state.
    let explained = store.stored_timers::<u64, u8>("t").explain();
    assert_eq!((explained.auto, explained.what), ("hybrid-log", "timers"));
    let fits = explained.layouts.iter().filter(|fit| fit.fits).map(|fit| fit.layout);
    assert_eq!(fits.collect::<Vec<_>>(), ["heap", "hybrid-log"], "{explained}");
    let rows = RowKeys::new();
    let timers = store.stored_timers::<u64, u8>("t").layout(Heap::new()).keys_of(&rows);
    let mut timers = timers.open().unwrap();
    rows.begin([1u64, 3].iter().map(KeyHash::key_hash));
    let stranger = timers.set_in(2, Time(1), 0).unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::Mismatch);
    assert_eq!(stranger.context("state"), Some("t"), "{stranger}");
    assert!(timers.set_in(3, Time(1), 0).unwrap());
    rows.end(false, true);
    // Few timers are found in one step.
    assert_eq!(timers.pop_due_in(Time(9)).unwrap(), Due::Timer((Time(1), 3, 0)));
    assert_eq!(timers.pop_due_in(Time(9)).unwrap(), Due::Timer((Time(5), 1, 7)));
    assert_eq!(timers.pop_due_in(Time(9)).unwrap(), Due::None);
}
