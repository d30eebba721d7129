//! Restoring by key groups and canonical files carry values with their times.

use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{ExpiringMap, Heap, KIB, MIB, Result, Store, Time, Ttl};

use crate::common::{HandClock, builder, tiny};

const TTL: i64 = 1000;

fn entries(map: &mut ExpiringMap<u64, u64>) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    map.for_each(|key, value| {
        all.push((*key, *value));
        Ok(())
    })?;
    all.sort_unstable();
    Ok(all)
}

/// Keys up to 600 by 3 times: the first third is over at 1000, the second at 1500, the last at 2500.
fn fill(map: &mut ExpiringMap<u64, u64>) {
    for (third, at) in [0, 500, 1500].into_iter().enumerate() {
        map.advance(Time(at)).unwrap();
        for key in third as u64 * 200..(third as u64 + 1) * 200 {
            map.put(key, key * 2).unwrap();
        }
    }
}

fn exported(store: &Store) -> Vec<u8> {
    let mut file = Vec::new();
    store.export(&mut file).unwrap();
    file
}

#[test]
fn a_file_has_what_is_not_over_whenever_that_was_removed() {
    let clock = HandClock::default();
    let ttl = Ttl::event_time(nanos(TTL));
    let device = Simulated::new(1, Faults::none());
    let store = builder(&device, 512 * KIB, &clock).layout(tiny()).open().unwrap();
    let mut map = store.expiring_map::<u64, u64>("m").open(ttl).unwrap();
    fill(&mut map);
    map.advance(Time(1499)).unwrap();
    let file = exported(&store);
    store.tick(100_000).unwrap();
    assert_eq!(exported(&store), file, "what is over is in no file");

    let other = builder(&Simulated::new(2, Faults::none()), MIB, &clock);
    let other = other.layout(Heap::new()).open().unwrap();
    let mut there = other.expiring_map::<u64, u64>("m").open(ttl).unwrap();
    other.import(&file[..]).unwrap();
    assert_eq!(there.time(), Time(1500));
    assert_eq!(entries(&mut there).unwrap(), entries(&mut map).unwrap());
    assert_eq!(exported(&other), file);
    for (to, left) in [(1501, 200), (2499, 200), (2500, 0)] {
        there.advance(Time(to)).unwrap();
        assert_eq!(entries(&mut there).unwrap().len(), left, "at {to}");
    }
}

#[test]
fn stores_are_made_of_the_key_groups_of_others_with_the_later_time() {
    let ttl = Ttl::event_time(nanos(TTL));
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (name, groups, to) in [("a", 0..100, 1500), ("b", 100..256, 2400)] {
        let store =
            Store::builder(at(name)).owned_groups(groups.clone()).memory(MIB).open().unwrap();
        let mut map = store.expiring_map::<u64, u64>("m").layout(tiny()).open(ttl).unwrap();
        for (third, at) in [0, 500, 1500].into_iter().enumerate() {
            map.advance(Time(at)).unwrap();
            for key in third as u64 * 200..(third as u64 + 1) * 200 {
                let hash = alluvium::KeyHash::key_hash(&key);
                if groups.contains(&alluvium::moving::KeyGroup::of(hash, 256).0) {
                    map.put(key, key).unwrap();
                }
            }
        }
        map.advance(Time(to)).unwrap();
        store.checkpoint(1).unwrap();
    }
    let sources = [(at("a"), None), (at("b"), None)];
    let store = Store::builder(at("c")).memory(MIB).restore_from(sources).open().unwrap();
    let mut map = store.expiring_map::<u64, u64>("m").layout(Heap::new()).open(ttl).unwrap();
    assert_eq!(map.time(), Time(2400), "what is over in one of them is over here");
    let expected: Vec<_> = (400..600).map(|key| (key, key)).collect();
    let mut all = Vec::new();
    map.for_each(|key, value| {
        all.push((*key, *value));
        Ok(())
    })
    .unwrap();
    all.sort_unstable();
    assert_eq!(all, expected);
    store.checkpoint(1).unwrap();
    map.advance(Time(2500)).unwrap();
    assert!(!map.contains(&401).unwrap());
}
