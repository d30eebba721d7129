//! Memory and storage come back though nobody asks for what is over: by ticks alone, by writes alone,
//! in bounded steps, and of what is on storage without a read of it.

use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{AnyLayout, ExpiringMap, Heap, HybridLog, KIB, MIB, Store, Time, Ttl};

use crate::common::{HandClock, builder, layouts_by_hash, tick_until_idle, tiny};
use crate::dice::Dice;

const TTL: i64 = 80_000;

fn open(
    device: &Simulated,
    layout: &AnyLayout,
    memory: u64,
) -> (Store, ExpiringMap<u64, [u64; 4]>) {
    let clock = HandClock::default();
    let store = builder(device, memory, &clock).layout(layout.clone()).open().unwrap();
    let map = store.expiring_map("m").open(Ttl::event_time(nanos(TTL))).unwrap();
    (store, map)
}

/// Writes `keys` keys, one in each unit of time from `from` on.
fn fill(map: &mut ExpiringMap<u64, [u64; 4]>, from: i64, keys: u64) {
    for key in 0..keys {
        map.advance(Time(from + key as i64)).unwrap();
        map.put(key, [key; 4]).unwrap();
    }
}

#[test]
fn by_ticks_alone() {
    for (layout, memory) in layouts_by_hash() {
        let device = Simulated::new(1, Faults::none());
        let (store, mut map) = open(&device, &layout, memory);
        fill(&mut map, 0, 4000);
        store.checkpoint(1).unwrap();
        map.advance(Time(4000 + TTL)).unwrap();
        let before = map.stats().unwrap();
        tick_until_idle(&store);
        let after = map.stats().unwrap();
        assert_eq!((map.len().unwrap(), after.expired), (0, 4000), "{layout:?}");
        // What was on storage was found there by the segments' times, not by reading records.
        assert_eq!(after.cold_reads, before.cold_reads, "{layout:?}");
        assert_eq!(after.rewritten, before.rewritten, "{layout:?}");
        assert!(after.expiry_looks <= 4000 + before.expiry_looks, "{layout:?}: {after:?}");
        assert_eq!(after.live_bytes, 0, "{layout:?}");
        // The last checkpoint names the segments; the next does not.
        store.checkpoint(2).unwrap();
        tick_until_idle(&store);
        assert_eq!(map.stats().unwrap().disk_bytes, 0, "{layout:?}");
        assert_eq!(store.stats().unwrap().compaction_errors, []);
    }
}

#[test]
fn of_segments_that_a_restart_has_restored_too() {
    let layouts = [tiny().into(), AnyLayout::from(Heap::new())];
    for first in layouts {
        let device = Simulated::new(1, Faults::none());
        let (store, mut map) = open(&device, &first, MIB);
        fill(&mut map, 0, 3000);
        store.checkpoint(1).unwrap();
        drop((map, store));
        // Also what another layout has written, which notes no times: it is as old as the checkpoint.
        let (store, mut map) = open(&device, &tiny().into(), 256 * KIB);
        let is_noted = first != AnyLayout::from(Heap::new());
        map.advance(Time(1500 + TTL)).unwrap();
        tick_until_idle(&store);
        let left = map.len().unwrap();
        assert!(if is_noted { (1499..2200).contains(&left) } else { left == 3000 }, "{left}");
        store.checkpoint(2).unwrap();
        drop((map, store));
        let (store, mut map) = open(&device, &tiny().into(), 256 * KIB);
        map.advance(Time(3000 + TTL)).unwrap();
        tick_until_idle(&store);
        let stats = map.stats().unwrap();
        assert_eq!((map.len().unwrap(), stats.cold_reads, stats.codec_calls), (0, 0, 0));
    }
}

/// A stream of new keys, each touched once: what is held stays near what is live.
#[test]
fn by_writes_alone() {
    const LIVE: u64 = 3000;
    let live = LIVE as i64;
    let kinds: [(AnyLayout, u64, f64); 3] = [
        (Heap::new().into(), 2 * MIB, 1.5),
        (HybridLog::new().into(), 8 * MIB, 1.5),
        // On storage a segment goes as a whole, and what is pinned or open stays a while.
        (tiny().into(), 256 * KIB, 2.0),
    ];
    for (layout, memory, most) in kinds {
        let device = Simulated::new(1, Faults::none());
        let store = builder(&device, memory, &HandClock::default()).layout(layout.clone());
        let store = store.open().unwrap();
        let map = store.expiring_map::<u64, [u64; 4]>("m");
        let mut map = map.open(Ttl::event_time(nanos(live))).unwrap();
        let (mut longest, mut on_disk) = (0, 0);
        for key in 0..8 * LIVE {
            map.advance(Time(key as i64)).unwrap();
            map.put(key, [key; 4]).unwrap();
            longest = longest.max(map.len().unwrap());
            if key % 100 == 0 {
                on_disk = on_disk.max(map.stats().unwrap().disk_bytes);
            }
        }
        let ratio = longest as f64 / LIVE as f64;
        println!(
            "{layout:?}: at most {ratio:.2} of what is live, {} KiB on storage",
            on_disk >> 10
        );
        assert!(ratio <= most, "{layout:?}: {ratio}");
        tick_until_idle(&store);
        let stats = map.stats().unwrap();
        assert_eq!(stats.expired + map.len().unwrap(), 8 * LIVE);
        assert_eq!(stats.rewritten, 0, "segments of what comes in the order of time die whole");
        // Eight passes per time to live, of what is in memory.
        let looks = stats.expiry_looks as f64 / (8 * LIVE) as f64;
        assert!(looks <= 1.5 * 8.0, "{layout:?}: {looks} looks per write");
    }
}

/// What is touched again and again lies in segments beside what is not: these are never over as a
/// whole, but when they are rewritten, what is over is left out.
#[test]
fn rewriting_leaves_out_what_is_over() {
    let device = Simulated::new(1, Faults::none());
    let layout = HybridLog::new().page_records(32).segment(64 * KIB).into();
    let (store, mut map) = open(&device, &layout, 272 * KIB);
    fill(&mut map, 0, 6000);
    let (mut dice, mut touched) = (Dice(3), vec![0; 6000]);
    let mut touch = |map: &mut ExpiringMap<u64, [u64; 4]>, times: u64| {
        let now = map.time().0;
        for _ in 0..times {
            let key = dice.below(6000);
            if key % 8 != 0 {
                map.put(key, [key; 4]).unwrap();
                touched[key as usize] = now;
            }
        }
    };
    for at in [TTL / 4, TTL / 2, 3 * TTL / 4] {
        map.advance(Time(at)).unwrap();
        touch(&mut map, 8000);
    }
    let before = map.stats().unwrap();
    assert!(before.rewritten > 500 && before.expired == 0, "{before:?}");
    map.advance(Time(6000 + TTL)).unwrap();
    touch(&mut map, 12_000);
    tick_until_idle(&store);
    let stats = map.stats().unwrap();
    assert!(stats.rewritten > before.rewritten, "{stats:?}");
    assert!(stats.expired > 300, "{stats:?}");
    let mut seen = Vec::new();
    map.for_each(|key, value| {
        assert_eq!(value[0], *key);
        seen.push(*key);
        Ok(())
    })
    .unwrap();
    seen.sort_unstable();
    let there = |key: &u64| touched[*key as usize] > 6000;
    assert_eq!(seen, (0..6000).filter(there).collect::<Vec<_>>());
}

#[test]
fn no_write_looks_at_more_than_its_share() {
    for (layout, memory) in layouts_by_hash() {
        let device = Simulated::new(1, Faults::none());
        let (store, mut map) = open(&device, &layout, memory);
        fill(&mut map, 0, 4000);
        map.advance(Time(4000 + TTL)).unwrap();
        let mut before = map.stats().unwrap().expiry_looks;
        for key in 5000..7000 {
            map.put(key, [0; 4]).unwrap();
            let looks = map.stats().unwrap().expiry_looks;
            assert!(looks - before <= 2 * 64 * 8, "{layout:?}: {}", looks - before);
            before = looks;
        }
        for fuel in [1, 10, 100] {
            store.tick(fuel).unwrap();
            let looks = map.stats().unwrap().expiry_looks;
            assert!(looks - before <= 2 * fuel as u64, "{layout:?}: {}", looks - before);
            before = looks;
        }
    }
}

#[test]
fn states_without_a_time_to_live_are_not_looked_at() {
    let device = Simulated::new(1, Faults::none());
    let store = builder(&device, 256 * KIB, &HandClock::default()).layout(tiny()).open().unwrap();
    let mut map = store.map::<u64, [u64; 4]>("m").open().unwrap();
    for key in 0..4000 {
        map.put(key, [key; 4]).unwrap();
    }
    tick_until_idle(&store);
    let stats = map.stats().unwrap();
    assert_eq!((stats.expired, stats.expiry_looks), (0, 0));
    assert_eq!(map.len().unwrap(), 4000);
}
