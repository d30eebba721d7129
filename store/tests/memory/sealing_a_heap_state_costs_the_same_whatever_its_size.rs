//! The call that seals a heap state asks for no more memory, and gives back no more, if the state is a hundred times as
//! large; nor does it encode anything or write. The same for the call that gives a checkpoint up.
//!
//! What this catches: a barrier that makes, copies, clears or frees something per entry, the first time, when few or all
//! entries have changed, and after a checkpoint that was given up; giving one up that drops all that it has kept.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{Heap, List, MIB, Map, State, Store, Time, Timers};

use crate::counting::{alone, asked, held_here};

/// What one call that seals does.
#[derive(Debug, PartialEq)]
struct Sealed {
    /// Allocations asked for, and bytes held more after it than before.
    asked: u64,
    held: isize,
    codec_calls: u64,
    steps: u64,
}

/// A state on the heap.
enum Kept {
    Map(Map<u64, u64>),
    List(List<u64, u64>),
    Timers(Timers<u64>, Store),
}

impl Kept {
    /// Changes what a key has, which may come.
    fn change(&mut self, key: u64) {
        match self {
            Self::Map(map) => map.update(&key, || key, |value| *value += 1).unwrap(),
            Self::List(list) => list.append(&key, key).map_err(|rejected| rejected.error).unwrap(),
            Self::Timers(timers, _) => {
                // One that is there goes, and comes again.
                timers.cancel(key, Time(7));
                assert!(timers.set(key, Time(7)).unwrap());
            }
        }
    }

    fn codec_calls(&self) -> u64 {
        let stats = match self {
            Self::Map(map) => map.stats(),
            Self::List(list) => list.stats(),
            Self::Timers(_, store) => Ok(store.stats().unwrap().total()),
        };
        stats.unwrap().codec_calls
    }
}

type Open = fn(&Store) -> Kept;

/// The calls that seal a state of so many entries, with its checkpoints between them.
fn seals(open: Open, keys: u64) -> Vec<Sealed> {
    let device = Simulated::new(1, Faults::late(2));
    let store = Store::in_memory().memory(256 * MIB).device(Arc::new(device.clone()));
    let store = store.helpers(Helpers::Inline).open().unwrap();
    let mut state = open(&store);
    (0..keys).for_each(|key| state.change(key));
    let mut sealed = Vec::new();
    // How many parts of a hundred change before each, and how many steps it is given before it is given up.
    let rounds = [
        (0, None),
        (1, None),
        (100, None),
        (10, Some(0)),
        (10, Some(2)),
        (100, Some(3)),
        (1, None),
        (100, None),
    ];
    for (number, (changed, steps)) in rounds.into_iter().enumerate() {
        (0..keys * changed / 100).for_each(|key| state.change(key));
        let before = (held_here(), asked(), state.codec_calls(), device.steps());
        let mut seal = store.seal(number as u64).unwrap();
        let (asked, held) = (asked() - before.1, held_here() - before.0);
        let (codec_calls, steps_done) = (state.codec_calls() - before.2, device.steps() - before.3);
        sealed.push(Sealed { asked, held, codec_calls, steps: steps_done });
        match steps {
            Some(steps) => {
                for _ in 0..steps {
                    assert!(!seal.advance().unwrap());
                }
                seal.abort();
            }
            None => {
                while !seal.advance().unwrap() {}
                seal.confirm().unwrap();
            }
        }
    }
    sealed
}

#[test]
fn sealing_a_heap_state_costs_the_same_whatever_its_size() {
    let _alone = alone();
    let states: [(&str, Open); 3] = [
        ("map", |store| Kept::Map(store.map("m").layout(Heap::new().into()).open().unwrap())),
        ("list", |store| Kept::List(store.list("m").layout(Heap::new().into()).open().unwrap())),
        ("timers", |store| Kept::Timers(store.timers("t").unwrap(), store.clone())),
    ];
    for (name, open) in states {
        the_same(name, seals(open, 2_000), seals(open, 200_000));
    }
}

fn the_same(name: &str, few: Vec<Sealed>, many: Vec<Sealed>) {
    for (round, (few, many)) in few.iter().zip(&many).enumerate() {
        assert_eq!(few, many, "{name}: seal {round}");
        assert_eq!((many.codec_calls, many.steps), (0, 0), "{name}: seal {round}");
    }
}

/// What the call that gives a checkpoint up does, while it has kept or copied most of so many entries: allocations, and
/// bytes that the allocator and the store's account have more after it than before. Copies are not the allocator's.
fn gives_up<V: State + std::fmt::Debug>(
    keys: u64,
    value: impl Fn(u64) -> V,
) -> Vec<(u64, isize, isize)> {
    let device = Simulated::new(1, Faults::late(2));
    let store = Store::in_memory().memory(256 * MIB).device(Arc::new(device));
    let store = store.helpers(Helpers::Inline).open().unwrap();
    let mut map: Map<u64, V> = store.map("m").layout(Heap::new().into()).open().unwrap();
    (0..keys).for_each(|key| {
        let _ = map.put(key, value(key)).unwrap();
    });
    store.checkpoint(0).unwrap();
    let used = || store.stats().unwrap().memory.used as isize;
    let mut given_up = Vec::new();
    for round in 1..4u64 {
        (0..keys).for_each(|key| {
            let _ = map.put(key, value(key)).unwrap();
        });
        let mut seal = store.seal(round).unwrap();
        for share in 0..round {
            assert!(!seal.advance().unwrap());
            // What has not been read yet is kept, and what was written dies.
            let changed = (share..keys).step_by(2);
            changed.for_each(|key| {
                let _ = map.put(key, value(key)).unwrap();
            });
            (share..keys).step_by(9).for_each(|key| {
                let _ = map.remove(&key).unwrap();
            });
        }
        let (used_before, held_before, asked_before) = (used(), held_here(), asked());
        seal.abort();
        let (asked, held) = (asked() - asked_before, held_here() - held_before);
        given_up.push((asked, held, used() - used_before));
    }
    let after = (held_here(), used());
    while store.tick(64).unwrap() > 0 {}
    println!("{keys}: {} held and {} used less", after.0 - held_here(), after.1 - used());
    assert!(used() < after.1, "what was kept, or copied, goes");
    store.checkpoint(4).unwrap();
    given_up
}

#[test]
fn giving_a_checkpoint_of_a_heap_state_up_costs_the_same_whatever_its_size() {
    let _alone = alone();
    let cases = [gives_up(2_000, |key| key), gives_up(2_000, |key| key.to_string())];
    let many = [gives_up(32_000, |key| key), gives_up(32_000, |key| key.to_string())];
    // Some segments are removed, and buffers are of a few sizes.
    for (round, (few, many)) in cases.iter().flatten().zip(many.iter().flatten()).enumerate() {
        assert!(many.0 <= few.0 + 32, "{round}: asked {few:?} {many:?}");
        assert!((many.1 - few.1).unsigned_abs() < 256 << 10, "{round}: held {few:?} {many:?}");
        assert!((many.2 - few.2).unsigned_abs() < 256 << 10, "{round}: used {few:?} {many:?}");
    }
    println!("{cases:?} {many:?}");
}
