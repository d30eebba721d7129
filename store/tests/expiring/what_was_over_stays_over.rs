//! An entry that was over is not seen again, whatever the time to live becomes: whether it was removed
//! or not, after a restart, in a store made of others, and where its key group goes.
//!
//! What this catches: what is over computed anew, by a time to live under which it is not.

use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::moving::{KeyGroup, Source};
use alluvium::time::nanos;
use alluvium::{AnyLayout, ExpiringMap, KeyHash, MIB, Store, Time, Ttl};

use crate::common::{HandClock, builder, layouts, layouts_by_hash, tiny};
use crate::dice::{Dice, times};
use crate::model::Model;

#[test]
fn a_longer_time_to_live_brings_nothing_back() {
    for (layout, memory) in layouts_by_hash() {
        let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
        let open = |live| {
            let store = builder(&device, 4 * memory, &clock).layout(layout.clone());
            let store = store.open().unwrap();
            let map =
                store.expiring_map::<u64, u64>("m").open(Ttl::event_time(nanos(live))).unwrap();
            (store, map)
        };
        let (store, mut map) = open(10);
        map.advance(Time(0)).unwrap();
        for key in 0..10_000 {
            map.put(key, key).unwrap();
        }
        // No write comes after it, so that no sweep has removed all.
        map.advance(Time(10)).unwrap();
        assert!(!map.contains(&7).unwrap());
        store.checkpoint(1).unwrap();
        drop((map, store));
        let (_store, mut map) = open(1000);
        let there = (0..10_000).filter(|key| map.contains(key).unwrap()).count();
        assert_eq!(there, 0, "{layout:?}");
        map.put(7, 8).unwrap();
        map.advance(Time(1009)).unwrap();
        assert_eq!(
            map.get(&7).unwrap().as_deref(),
            Some(&8),
            "what comes now lives as long as now"
        );
    }
}

#[test]
fn nor_does_a_store_that_is_made_of_others_or_takes_their_key_groups() {
    const GROUPS: u16 = 4;
    let clock = HandClock::default();
    let on = |device: &Simulated| builder(device, MIB, &clock).layout(tiny()).key_groups(GROUPS);
    let fill = |map: &mut ExpiringMap<u64, u64>| {
        map.advance(Time(0)).unwrap();
        let put = (0..300).filter(|key| map.put(*key, *key).is_ok()).count();
        map.advance(Time(5)).unwrap();
        map.put(1000, 1).map_err(|error| error.error).unwrap();
        map.advance(Time(10)).unwrap();
        put
    };
    let device = Simulated::new(1, Faults::none());
    let store = on(&device).open().unwrap();
    let mut map = store.expiring_map::<u64, u64>("m").open(Ttl::event_time(nanos(10))).unwrap();
    assert_eq!(fill(&mut map), 300);
    store.checkpoint(1).unwrap();
    drop((map, store));
    let source = Source::device(Arc::new(device));
    let store = on(&Simulated::new(2, Faults::none())).restore_from([source]).open().unwrap();
    let mut map = store.expiring_map::<u64, u64>("m").open(Ttl::event_time(nanos(1000))).unwrap();
    let there: Vec<_> = (0..1001).filter(|key| map.contains(key).unwrap()).collect();
    assert_eq!(there, [1000]);
    drop((map, store));

    let group = KeyGroup::of(1000u64.key_hash(), GROUPS);
    let all = Store::in_memory().key_groups(GROUPS).open().unwrap();
    let from = all.mover("unit").unwrap();
    let map = all.expiring_map::<u64, u64>("m").layout(AnyLayout::from(tiny())).moved_by(&from);
    fill(&mut map.open(Ttl::event_time(nanos(10))).unwrap());
    let others = if group.0 == 0 { 1..GROUPS } else { 0..group.0 };
    let there = Store::in_memory().key_groups(GROUPS).owned_groups(others).open().unwrap();
    let to = there.mover("unit").unwrap();
    let moved = there.expiring_map::<u64, u64>("m").layout(AnyLayout::from(tiny())).moved_by(&to);
    let mut moved = moved.open(Ttl::event_time(nanos(1000))).unwrap();
    let own = (0..300).find(|key| moved.put(*key, 1).is_ok()).unwrap();
    let mut rest = from.begin(group).unwrap();
    while let Some(chunk) = from.next_chunk(&mut rest, 4096).unwrap() {
        to.install(&chunk).unwrap();
    }
    assert_eq!(moved.time(), Time(10));
    let here: Vec<_> = (0..1001).filter(|key| moved.contains(key).unwrap()).collect();
    assert_eq!(here, [1000], "{own} was touched at no later time than what is over there");
}

/// Random histories with another time to live after each restart, beside the definition.
#[test]
fn whatever_the_time_to_live_becomes_the_model_agrees() {
    for seed in 0..times("ALLUVIUM_SEEDS", 40) {
        let mut dice = Dice(seed);
        let layouts = layouts();
        let (layout, memory) = &layouts[dice.below(layouts.len() as u64) as usize];
        let by_clock = dice.below(2) == 0;
        let kind = if by_clock { Ttl::processing_time } else { Ttl::event_time };
        let (device, clock) = (Simulated::new(seed, Faults::none()), HandClock::default());
        let open = |live| {
            let store = builder(&device, 2 * memory, &clock).layout(layout.clone());
            let store = store.open().unwrap();
            let map = store.expiring_map::<u64, u64>("m").open(kind(nanos(live))).unwrap();
            (store, map)
        };
        let mut now = 0;
        let mut model = Model::new(kind(nanos(20)), false);
        let (mut store, mut map) = open(20);
        if by_clock {
            model.advance(0);
        }
        for step in 0..300 {
            let key = dice.below(40);
            match dice.below(12) {
                0..5 => assert_eq!(map.put(key, step).unwrap(), model.put(key, step)),
                5..8 => {
                    now += dice.below(9) as i64;
                    clock.set(now);
                    if !by_clock {
                        map.advance(Time(now)).unwrap();
                    }
                    model.advance(now);
                }
                8..11 => assert_eq!(map.get(&key).unwrap().as_deref(), model.get(key)),
                _ => {
                    store.checkpoint(step).unwrap();
                    drop((map, store));
                    let live = 1 + dice.below(60) as i64;
                    model.live(live);
                    (store, map) = open(live);
                }
            }
            if dice.below(20) == 0 {
                store.tick(500).unwrap();
            }
        }
        let all = model.all();
        for key in 0..40 {
            assert_eq!(map.get(&key).unwrap().as_deref(), all.get(&key), "seed {seed}, {key}");
        }
    }
}
