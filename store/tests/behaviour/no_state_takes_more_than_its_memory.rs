//! The bound on memory is exact: whatever a state does, checkpoints in steps and exports included, no
//! more is ever booked than the store has. Each history is played in many sizes of memory that differ
//! by little, so that what is short by a few bytes is short somewhere.
//!
//! What this catches: a charge that nobody has made room for, or whose room something else has taken
//! meanwhile. No closure of a user is in here that makes a value larger: that is told afterwards.
//!
//! `ALLUVIUM_LONG` tries all sizes, 16 bytes apart.

use std::sync::Arc;

use alluvium::checkpoints::Seal;
use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, AppendLog, Counting, Error, ErrorKind, Heap, HybridLog, KIB, List, Map, Result,
    Store, Time, Timers, WindowSegments, Windows,
};

use crate::common::{self, Dice};

/// One seeded call.
type Call = Box<dyn FnMut(&mut Dice) -> Result<()>>;

fn word(n: u64, most: u64) -> String {
    format!("{n:05}").repeat(1 + (n % most) as usize)
}

/// A map of values that own heap; nothing is scanned unless `scans`.
fn map<L>(store: &Store, layout: L, scans: bool) -> Result<Call>
where
    L: alluvium::Layout<String, Vec<u64>>,
{
    let mut map: Map<String, Vec<u64>, L> = store.map("state").layout(layout).open()?;
    Ok(Box::new(move |dice| {
        let (key, n) = (word(dice.below(600), 40), dice.below(400));
        match dice.below(60) {
            0..=39 => map.put(key, vec![n; n as usize]).map(drop).map_err(Error::from),
            40..=49 => map.remove(&key).map(drop),
            50..=57 => map.get(&key).map(drop),
            58 if scans => map.for_each(|_, _| Ok(())),
            _ if dice.below(6) == 0 => map.clear(),
            _ => Ok(()),
        }
    }))
}

fn list(store: &Store, layout: impl Into<AnyLayout>) -> Result<Call> {
    let mut list: List<String, String> = store.list("state").layout(layout.into()).open()?;
    Ok(Box::new(move |dice| {
        let (key, n) = (word(dice.below(60), 60), dice.below(2000));
        match dice.below(60) {
            0..=54 => list.append(&key, word(n, 200)).map_err(Error::from),
            55..=57 => list.clear(&key),
            58 => list.to_vec(&key).map(drop),
            _ => list.for_each(|_, _| Ok(())),
        }
    }))
}

fn timers(store: &Store) -> Result<Call> {
    let mut timers: Timers<String, String> = store.timers_in("state")?;
    Ok(Box::new(move |dice| {
        let (at, key) = (Time(dice.below(500) as i64), word(dice.below(3000), 150));
        match dice.below(40) {
            0..=33 => timers.set_in(key, at, word(at.0 as u64, 60)).map(drop),
            34..=36 => {
                timers.cancel_in(key, at, word(at.0 as u64, 60));
                Ok(())
            }
            _ => {
                timers.pop_first();
                Ok(())
            }
        }
    }))
}

/// Stored timers, with passes over all of them.
fn stored_timers(store: &Store) -> Result<Call> {
    let builder = store.stored_timers::<String, String>("state").layout(Heap::new());
    let mut timers = builder.open()?;
    Ok(Box::new(move |dice| {
        let (at, key) = (Time(dice.below(500) as i64), word(dice.below(3000), 150));
        match dice.below(40) {
            0..=29 => timers.set_in(key, at, word(at.0 as u64, 60)).map(drop),
            30..=32 => timers.cancel_in(key, at, word(at.0 as u64, 60)).map(drop),
            _ => timers.pop_first().map(drop),
        }
    }))
}

fn windows(store: &Store, layout: impl Into<AnyLayout>) -> Result<Call> {
    let windows = Windows::sliding(nanos(8), nanos(2));
    let builder = store.aggregated::<String, (), Counting>("state").layout(layout.into());
    let mut counts = builder.open(windows, Counting)?;
    let mut now = 0;
    Ok(Box::new(move |dice| {
        if dice.below(30) == 0 {
            now += 2;
            counts.advance(Time(now), 100_000, &mut |_, _, _, _| {}).map(drop)
        } else {
            let mut batch: Vec<_> = (0..4)
                .map(|_| (word(dice.below(4000), 200), Time(now + dice.below(9) as i64), ()))
                .collect();
            counts.add_batch(Time(now), &mut batch, &mut |_| {}, &mut |_, _, _, _| {})
        }
    }))
}

/// What was refused for want of memory, and checkpoints that were taken.
#[derive(Debug, Default)]
struct Seen {
    refused: u64,
    taken: u64,
    exported: u64,
}

fn play(
    memory: u64,
    calls: u64,
    open: &dyn Fn(&Store) -> Result<Call>,
    (when, is_exported): (&str, bool),
    seen: &mut Seen,
) {
    let is_short = |error: &Error| {
        use ErrorKind::{Backpressure, OverBudget, Overtaken};
        matches!(error.kind(), OverBudget | Backpressure | Overtaken)
            || error.message().contains("windows are being fired")
    };
    let store = Store::in_memory()
        .memory(memory)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(Simulated::new(memory, Faults::none())))
        .open()
        .unwrap();
    let mut call = open(&store).unwrap_or_else(|error| panic!("{when}: {error}"));
    let mut dice = Dice(memory);
    let mut seal: Option<Seal> = None;
    for n in 0..calls {
        let mut note = |what: &str, result: Result<()>| {
            let memory = store.stats().unwrap().memory;
            assert!(memory.peak <= memory.limit, "{when}, call {n}, {what}: {memory:?}");
            if let Err(error) = result {
                assert!(is_short(&error), "{when}, call {n}, {what}: {error:?}");
                seen.refused += 1;
                return false;
            }
            true
        };
        note("a call", call(&mut dice));
        seal = match seal {
            None if n % 60 == 20 => {
                let begun = store.seal(n);
                let seal = begun.map_err(|error| note("sealing", Err(error))).ok();
                note("sealing", Ok(()));
                seal
            }
            None => None,
            Some(mut sealing) => {
                let done = sealing.confirm_step();
                match done {
                    Ok(Some(_)) => {
                        seen.taken += 1;
                        None
                    }
                    Ok(None) => Some(sealing),
                    Err(error) => {
                        note("a checkpoint", Err(error));
                        None
                    }
                }
            }
        };
        note("a step of a checkpoint", Ok(()));
    }
    drop(seal);
    if !is_exported {
        return;
    }
    let exported = store.export(&mut std::io::sink());
    let memory = store.stats().unwrap().memory;
    assert!(memory.peak <= memory.limit, "{when}, export: {memory:?}");
    match exported {
        Ok(_) => seen.exported += 1,
        Err(error) => assert!(is_short(&error), "{when}, export: {error:?}"),
    }
}

fn try_sizes(name: &str, from: u64, calls: u64, open: &dyn Fn(&Store) -> Result<Call>) {
    let step = if common::long() { 16 } else { 16 * 23 };
    let mut seen = Seen::default();
    for memory in (from..from + 8 * KIB).step_by(step) {
        let when = format!("{name} in {memory} bytes");
        play(memory, calls, open, (&when, name != "hybrid log"), &mut seen);
    }
    println!("{name}: {seen:?}");
    let never_short = name == "hybrid log" || name == "append log";
    assert!((seen.refused > 20 || never_short) && seen.taken > 10, "{name}: {seen:?}");
}

#[test]
fn tables_on_the_heap_stay_within_the_budget() {
    try_sizes("heap", 200 * KIB, 700, &|store| map(store, Heap::new(), true));
}

#[test]
fn lists_stay_within_the_budget() {
    try_sizes("heap", 260 * KIB, 700, &|store| list(store, Heap::new()));
    try_sizes("append log", 320 * KIB, 900, &|store| list(store, AppendLog::new()));
}

#[test]
fn timers_stay_within_the_budget() {
    try_sizes("timers", 200 * KIB, 700, &timers);
}

#[test]
fn stored_timers_and_the_next_ones_stay_within_the_budget() {
    try_sizes("stored timers", 200 * KIB, 700, &stored_timers);
}

#[test]
fn windows_stay_within_the_budget() {
    try_sizes("window segments", 500 * KIB, 400, &|store| windows(store, WindowSegments::new()));
    try_sizes("heap", 320 * KIB, 400, &|store| windows(store, Heap::new()));
}

/// Of a log, scans and exports are left out: they book what they gather whether it fits or not, so that
/// what is in memory can be read while storage takes nothing.
#[test]
fn a_hybrid_log_stays_within_the_budget() {
    let layout = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    try_sizes("hybrid log", 400 * KIB, 700, &|store| map(store, layout.clone(), false));
}
