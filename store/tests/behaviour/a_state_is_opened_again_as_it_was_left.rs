//! When the handle of a state is dropped, its name is free: the next handle finds the state as the last one
//! left it, also what no checkpoint has, and checkpoints that are taken in between have it.
//!
//! What this catches: a name that stays taken; contents as of the last checkpoint, or twice; parts of windows
//! that are left behind by one handle and begun anew by the next; a state without a handle that is missing
//! in a checkpoint; a state that is opened again as another one.
//!
//! The model is a twin in a store of its own, whose handle is never dropped but with the store.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::moving::{KeyGroup, Standing};
use alluvium::time::nanos;
use alluvium::{
    AppendLog, Counting, Elements, ErrorKind, Heap, HybridLog, KIB, MIB, Result, Store, Time, Ttl,
    Window, WindowSegments, Windows, process,
};

use crate::common::{Dice, times, tiny};

const KEYS: u64 = 300;

fn on(device: &Simulated) -> Store {
    let store = Store::in_memory().memory(8 * MIB).max_value(4 * KIB).key_groups(8);
    store.helpers(Helpers::Inline).device(Arc::new(device.clone())).open().unwrap()
}

fn log() -> HybridLog {
    tiny().memory(256 * KIB)
}

fn lists() -> AppendLog {
    AppendLog::new().memory(160 * KIB).block(KIB).segment(32 * KIB)
}

/// A store, a state in it, and what came out of that.
struct Side<H> {
    device: Simulated,
    store: Store,
    handle: Option<H>,
    out: Vec<String>,
}

/// How far a history is.
struct Now {
    /// Of the watermark, and of event time.
    time: i64,
}

/// Runs a random history on a state that lets go of its handle and on its twin.
fn agree<H>(
    name: &str,
    open: impl Fn(&Store) -> Result<H>,
    write: impl Fn(&mut H, &mut Dice, &Now, &mut Vec<String>),
    see: impl Fn(&mut H, &mut Vec<String>),
) {
    for seed in 1..=times("ALLUVIUM_SEEDS", 2) {
        let side = || {
            let device = Simulated::new(seed, Faults::none());
            let store = on(&device);
            let handle = Some(open(&store).unwrap());
            Side { device, store, handle, out: Vec::new() }
        };
        let (mut one, mut twin) = (side(), side());
        let (mut dice, mut now) = (Dice(seed), Now { time: 1_000 });
        for step in 0..60 {
            let when = format!("{name}, seed {seed}, step {step}");
            let (does, chance) = (dice.below(10), dice.below(u64::MAX));
            for side in [&mut one, &mut twin] {
                let handle = side.handle.as_mut().unwrap();
                for _ in 0..20 {
                    // Both roll the same dice.
                    write(handle, &mut Dice(chance), &now, &mut side.out);
                }
                write(handle, &mut Dice(chance.rotate_left(9)), &now, &mut side.out);
            }
            now.time += dice.below(40) as i64;
            let lets_go = does < 6;
            let (checkpoints, restores) = (does % 2 == 1, does % 3 == 2);
            if lets_go {
                one.handle = None;
            }
            for side in [&mut one, &mut twin] {
                if checkpoints {
                    side.store.checkpoint(step).unwrap();
                }
                if checkpoints && restores {
                    side.handle = None;
                    side.store = {
                        drop(std::mem::replace(
                            &mut side.store,
                            Store::in_memory().open().unwrap(),
                        ));
                        on(&side.device)
                    };
                    side.handle = Some(open(&side.store).unwrap());
                }
            }
            if one.handle.is_none() {
                one.store.tick(100).unwrap();
                one.handle = Some(open(&one.store).unwrap());
            }
            let error = open(&one.store).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InUse, "{when}: {error}");
            for side in [&mut one, &mut twin] {
                see(side.handle.as_mut().unwrap(), &mut side.out);
                // Keys of one window come out in no order.
                side.out.sort_unstable();
            }
            assert_eq!(one.out, twin.out, "{when}");
            assert!(step < 3 || !one.out.is_empty(), "{when}: nothing is compared");
            one.out.clear();
            twin.out.clear();
        }
    }
}

#[test]
fn maps_counters_and_values() {
    agree(
        "map",
        |store| store.map::<u64, Vec<u8>>("map").layout(log()).open(),
        |map, dice, _, _| {
            let (key, bytes) = (dice.below(KEYS), dice.below(200) as usize);
            match dice.below(5) {
                0 => map.remove(&key).unwrap(),
                _ => map.put(key, vec![key as u8; bytes]).unwrap(),
            };
        },
        |map, out| {
            for key in 0..KEYS {
                map.read(&key, |value| out.push(format!("{key} {:?}", value.map(Vec::len))))
                    .unwrap();
            }
        },
    );
    agree(
        "counters on the heap",
        |store| store.count::<u64>("count").layout(Heap::new()).open(),
        |count, dice, _, _| {
            count.add(&dice.below(KEYS), 1).unwrap();
        },
        |count, out| out.extend((0..KEYS).map(|key| count.get(&key).unwrap().to_string())),
    );
    agree(
        "value",
        |store| store.value::<u64>("value").open(),
        |value, dice, _, _| value.set(dice.below(1_000)).unwrap(),
        |value, out| out.push(format!("{:?}", value.get().unwrap().as_deref())),
    );
}

#[test]
fn lists_maps_by_time_and_timers() {
    agree(
        "list",
        |store| store.list::<u64, u64>("list").layout(lists()).open(),
        |list, dice, _, _| match dice.below(20) {
            0 => list.clear(&dice.below(KEYS)).unwrap(),
            _ => list.append(&dice.below(KEYS), dice.below(1 << 40)).unwrap(),
        },
        |list, out| {
            out.extend((0..KEYS).map(|key| format!("{key} {:?}", list.to_vec(&key).unwrap())));
        },
    );
    agree(
        "time map",
        |store| store.time_map::<u64, u64>("near").layout(lists()).open(nanos(50)),
        |map, dice, now, _| {
            let at = Time(now.time + dice.below(200) as i64);
            map.insert(&dice.below(KEYS), at, dice.below(1 << 40)).unwrap();
            if dice.below(8) == 0 {
                while !map.purge(Time(now.time), 100).unwrap() {}
            }
        },
        |map, out| {
            for key in 0..KEYS {
                let mut all = Vec::new();
                map.range(&key, Time::MIN..Time::MAX, |at, value| {
                    all.push((at.0, *value));
                    Ok(())
                })
                .unwrap();
                out.push(format!("{key} {all:?}"));
            }
        },
    );
    agree(
        "timers",
        |store| store.timers::<u64>("timers"),
        |timers, dice, now, out| {
            let at = Time(now.time + dice.below(100) as i64);
            timers.set(dice.below(KEYS), at).unwrap();
            timers.cancel(dice.below(KEYS), at);
            if dice.below(8) == 0 {
                while let Some(due) = timers.pop_due(Time(now.time)) {
                    out.push(format!("{due:?}"));
                }
            }
        },
        |timers, out| out.push(format!("{} {:?}", timers.len(), timers.next_time())),
    );
}

#[test]
fn entries_that_expire() {
    agree(
        "expiring map",
        |store| {
            let map = store.expiring_map::<u64, u64>("recent").layout(log());
            map.open(Ttl::event_time(nanos(60)).refreshed_by_reads())
        },
        |map, dice, now, _| {
            map.advance(Time(now.time)).unwrap();
            map.put(dice.below(KEYS), dice.below(1 << 40)).unwrap();
            drop(map.get(&dice.below(KEYS)).unwrap());
        },
        |map, out| {
            let mut all = Vec::new();
            map.for_each(|key, value| {
                all.push((*key, *value));
                Ok(())
            })
            .unwrap();
            all.sort_unstable();
            out.push(format!("{:?} {all:?}", map.time()));
        },
    );
}

fn told<R: std::fmt::Debug>(out: &mut Vec<String>) -> impl FnMut(&u64, Window, R, i64) {
    |key, window, row, diff| {
        out.push(format!("{key} {}..{} {row:?} {diff}", window.start.0, window.end.0));
    }
}

#[test]
fn windows() {
    // With totals, with stacks, and with what was told.
    for windows in [
        Windows::sliding(nanos(120), nanos(20)),
        Windows::tumbling(nanos(50)).lateness(nanos(40)),
        Windows::session(nanos(15)),
        Windows::session(nanos(15)).lateness(nanos(30)).emit(alluvium::Emit::OnWatermark),
        Windows::sliding(nanos(60), nanos(20)).emit(alluvium::Emit::Early(nanos(10))),
    ] {
        let late_by = 60;
        let panes = WindowSegments::new().memory(MIB);
        agree(
            &format!("folded {windows}"),
            |store| store.aggregated("windows").layout(panes.clone()).open(windows, Counting),
            |state, dice, now, out| {
                let at = now.time + dice.below(100) as i64 - dice.below(late_by + 1) as i64;
                let mut batch = vec![(dice.below(20), Time(at), ())];
                let sent = Time(now.time);
                state.add_batch(sent, &mut batch, &mut |_| {}, &mut told(out)).unwrap();
                if dice.below(10) == 0 {
                    state.advance_all(Time(now.time), &mut told(out)).unwrap();
                }
            },
            |state, out| {
                state.advance_all(Time(state.watermark().0), &mut told(out)).unwrap();
                out.push(format!("{:?}", state.watermark()));
            },
        );
        agree(
            &format!("kept {windows}"),
            |store| {
                let all = |_: &u64,
                           _: Window,
                           elements: &mut dyn Elements<u64>,
                           emit: &mut dyn FnMut(Vec<u64>)| {
                    let mut all = Vec::new();
                    loop {
                        let chunk = elements.next_chunk()?;
                        if chunk.is_empty() {
                            emit(all);
                            return Ok(());
                        }
                        all.extend_from_slice(chunk);
                    }
                };
                store.holistic::<u64, u64>("windows").open(windows, process(all))
            },
            |state, dice, now, out| {
                let at = now.time + dice.below(100) as i64 - dice.below(late_by + 1) as i64;
                let mut batch = vec![(dice.below(20), Time(at), dice.below(1_000))];
                let sent = Time(now.time);
                state.add_batch(sent, &mut batch, &mut |_| {}, &mut told(out)).unwrap();
                if dice.below(10) == 0 {
                    state.advance_all(Time(now.time), &mut told(out)).unwrap();
                }
            },
            |state, out| {
                state.advance_all(Time(state.watermark().0), &mut told(out)).unwrap();
                out.push(format!("{:?}", state.watermark()));
            },
        );
    }
}

#[test]
fn another_state_is_refused_by_name() {
    let store = on(&Simulated::new(1, Faults::none()));
    let mut map = store.map::<u64, u64>("map").layout(log()).open().unwrap();
    map.put(1, 2).unwrap();
    drop(map);
    let kind = |opened: Result<()>, words: &str| {
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.context("state").is_some(), "{error}");
    };
    kind(store.map::<u64, i64>("map").layout(log()).open().map(drop), "value type");
    kind(store.map::<u32, u64>("map").layout(log()).open().map(drop), "key type");
    kind(store.list::<u64, u64>("map").open().map(drop), "primitive");
    kind(store.map::<u64, u64>("map").layout(Heap::new()).open().map(drop), "layout");
    let mover = store.mover("unit").unwrap();
    let moved = store.map::<u64, u64>("map").layout(log()).moved_by(&mover).open();
    kind(moved.map(drop), "key groups");
    // It is what it was.
    let mut map = store.map::<u64, u64>("map").layout(log()).open().unwrap();
    assert_eq!(map.get(&1).unwrap().as_deref(), Some(&2));

    let near = |definition: &str| {
        store.time_map::<u64, u64>("near").defined_as(definition).open(nanos(10))
    };
    near("one").unwrap().insert(&1, Time(1), 1).unwrap();
    kind(near("two").map(drop), "one");
    near("one").unwrap();

    let open = |windows| store.aggregated::<u64, (), _>("windows").open(windows, Counting);
    let mut windows = open(Windows::tumbling(nanos(10))).unwrap();
    windows.advance_all(Time(100), &mut |_, _, _, _| {}).unwrap();
    drop(windows);
    kind(open(Windows::tumbling(nanos(20))).map(drop), "windows of 10 ns");
    // Windows that a checkpoint may be gone on with, a handle may too.
    let mut windows =
        open(Windows::tumbling(nanos(10)).emit(alluvium::Emit::Early(nanos(5)))).unwrap();
    assert_eq!(windows.watermark(), Time(100));
    let mut rows = 0;
    let mut batch = vec![(1, Time(101), ())];
    windows.add_batch(Time(100), &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
    windows.advance_all(Time(106), &mut |_, _, _, _| rows += 1).unwrap();
    assert_eq!(rows, 1, "an early result");
    drop(windows);
    kind(open(Windows::tumbling(nanos(10))).map(drop), "early");
}

#[test]
fn a_time_to_live_may_be_another_one() {
    let store = on(&Simulated::new(1, Faults::none()));
    let open = |live| store.expiring_map::<u64, u64>("recent").open(Ttl::event_time(nanos(live)));
    let mut map = open(10).unwrap();
    map.advance(Time(100)).unwrap();
    map.put(1, 1).unwrap();
    map.advance(Time(105)).unwrap();
    map.put(2, 2).unwrap();
    map.advance(Time(111)).unwrap();
    drop(map);
    let mut map = open(50).unwrap();
    assert_eq!(map.ttl(), Ttl::event_time(nanos(50)));
    map.advance(Time(154)).unwrap();
    // What was over stays so.
    assert_eq!(map.get(&1).unwrap().as_deref(), None);
    assert_eq!(map.get(&2).unwrap().as_deref(), Some(&2));
    map.advance(Time(155)).unwrap();
    assert_eq!(map.get(&2).unwrap().as_deref(), None);
}

#[test]
fn what_was_opened_and_never_used_is_nothing() {
    let store = on(&Simulated::new(1, Faults::none()));
    // As a build does that fails at its second state.
    let build = |value: &str, width| -> Result<()> {
        match value {
            "u64" => drop(store.map::<u64, u64>("a").open()?),
            _ => drop(store.map::<u64, i64>("a").open()?),
        }
        drop(store.time_map::<u64, u64>("b").open(nanos(width))?);
        drop(store.aggregated::<u64, (), _>("c").open(Windows::tumbling(nanos(width)), Counting)?);
        Ok(())
    };
    assert_eq!(build("u64", 0).unwrap_err().kind(), ErrorKind::Config);
    build("i64", 7).unwrap();
    build("u64", 8).unwrap();
    // A checkpoint has them: from now on they are what they are.
    store.checkpoint(1).unwrap();
    assert_eq!(build("i64", 8).unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(build("u64", 7).unwrap_err().kind(), ErrorKind::Mismatch);
    build("u64", 8).unwrap();
}

#[test]
fn a_checkpoint_that_was_begun_before_has_the_state_as_it_was_then() {
    let device = Simulated::new(1, Faults::none());
    let store = on(&device);
    let open = |store: &Store| store.map::<u64, u64>("map").layout(log()).open();
    let mut map = open(&store).unwrap();
    for key in 0..2_000 {
        map.put(key, key).unwrap();
    }
    let mut seal = store.seal(1).unwrap();
    drop(map);
    seal.advance().unwrap();
    let mut map = open(&store).unwrap();
    for key in 0..2_000 {
        map.put(key, key + 1).unwrap();
    }
    drop(map);
    seal.confirm().unwrap();
    let mut map = open(&store).unwrap();
    assert_eq!(map.get(&1_999).unwrap().as_deref(), Some(&2_000));
    drop((map, store));
    let mut map = open(&on(&device)).unwrap();
    for key in 0..2_000 {
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&key));
    }
}

#[test]
fn windows_whose_handle_goes_while_they_fire_are_as_of_their_checkpoint() {
    let device = Simulated::new(1, Faults::none());
    let store = on(&device);
    let open = |store: &Store| {
        store.aggregated::<u64, (), _>("windows").open(Windows::tumbling(nanos(10)), Counting)
    };
    let mut windows = open(&store).unwrap();
    let mut batch: Vec<_> = (0..100).map(|key| (key, Time(1), ())).collect();
    windows.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
    store.checkpoint(1).unwrap();
    let advanced = windows.advance(Time(20), 10, &mut |_, _, _, _| {}).unwrap();
    assert!(!advanced.done);
    drop(windows);
    let error = open(&store).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("while windows fired"), "{error}");
    assert_eq!(store.checkpoint(2).unwrap_err().kind(), ErrorKind::InUse);
    drop(store);
    let mut windows = open(&on(&device)).unwrap();
    let mut rows = 0;
    windows.advance_all(Time(20), &mut |_, _, _, _| rows += 1).unwrap();
    assert_eq!(rows, 100);
}

#[test]
fn key_groups_are_where_they_were() {
    let open = |owned| {
        let store = Store::in_memory().memory(8 * MIB).key_groups(8).owned_groups(owned);
        store.open().unwrap()
    };
    let (left, right) = (open(0..4), open(4..8));
    let states = |store: &Store| {
        let mover = store.mover("unit").unwrap();
        let map = store.map::<u64, u64>("map").moved_by(&mover).open().unwrap();
        let timers = store.timers_moved_by::<u64, ()>(&mover, "timers").unwrap();
        (mover, map, timers)
    };
    let group = |key: &u64| KeyGroup::of(alluvium::KeyHash::key_hash(key), 8);
    let (mut from, to) = (states(&left), states(&right));
    let mine: Vec<u64> = (0..400).filter(|key| group(key).0 < 4).collect();
    for key in &mine {
        from.1.put(*key, *key).unwrap();
        from.2.set(*key, Time(*key as i64)).unwrap();
    }
    let ship = |from: &alluvium::moving::Mover, to: &alluvium::moving::Mover, group| {
        let mut rest = from.begin(group).unwrap();
        while let Some(chunk) = from.next_chunk(&mut rest, 1 << 10).unwrap() {
            to.install(&chunk).unwrap();
        }
        while !from.forget(group, 1_000).unwrap() {}
    };
    ship(&from.0, &to.0, KeyGroup(0));
    assert_eq!(left.mover("unit").unwrap_err().kind(), ErrorKind::InUse);
    drop((from, to));
    let (mut from, mut to) = (states(&left), states(&right));
    assert_eq!(from.0.standing(KeyGroup(0)).unwrap(), Standing::Away);
    assert_eq!(to.0.standing(KeyGroup(0)).unwrap(), Standing::Here);
    for key in &mine {
        let (here, there) =
            if group(key).0 == 0 { (&mut to, &mut from) } else { (&mut from, &mut to) };
        assert_eq!(here.1.get(key).unwrap().as_deref(), Some(key));
        assert!(here.2.cancel(*key, Time(*key as i64)));
        assert!(here.2.set(*key, Time(*key as i64)).unwrap());
        assert_eq!(there.1.put(*key, 0).unwrap_err().error.kind(), ErrorKind::Mismatch);
    }
    // And back, by movers that have been there twice.
    ship(&to.0, &from.0, KeyGroup(0));
    assert_eq!((from.1.len().unwrap(), to.1.len().unwrap()), (mine.len() as u64, 0));
    assert_eq!((from.2.len(), to.2.len()), (mine.len() as u64, 0));
}

/// An event that is too late for a session of its own joins what was there before the watermark, and not what
/// came with it: the next handle knows that too.
#[test]
fn sessions_know_what_was_there_before_the_watermark() {
    for is_dropped in [false, true] {
        let store = on(&Simulated::new(1, Faults::none()));
        let open =
            || store.aggregated::<u64, (), _>("s").open(Windows::session(nanos(10)), Counting);
        let mut kept = Some(open().unwrap());
        kept.as_mut().unwrap().advance_all(Time(15), &mut |_, _, _, _| {}).unwrap();
        let mut late = Vec::new();
        for at in [6, -2] {
            let mut batch = vec![(1, Time(at), ())];
            let tell = &mut |event: alluvium::windows::Late<u64, ()>| late.push(event.at.0);
            let sessions = kept.as_mut().unwrap();
            sessions.add_batch(Time(15), &mut batch, tell, &mut |_, _, _, _| {}).unwrap();
            if is_dropped {
                drop(kept.take());
                kept = Some(open().unwrap());
            }
        }
        assert_eq!(late, [-2], "dropped: {is_dropped}");
    }
}
