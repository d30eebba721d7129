//! A state of own keys only takes a key if and only if the store owns its key group, whatever the primitive,
//! the call and the layout; so its checkpoint can be restored by key groups.
//!
//! What this catches: a call that writes without looking at the key; a restore that finds a key which no
//! store takes over.

use std::sync::Arc;

use alluvium::moving::Source;
use alluvium::time::nanos;
use alluvium::{Counting, Error, ErrorKind, Result, Time, Ttl, Windows};

use crate::dice::Dice;
use crate::job::{GROUPS, builder, layouts, owned};
use crate::moving_job::{device, group_of};

/// What a write gave, and whether its key is the store's.
fn check(result: Result<()>, is_own: bool, what: &str) {
    match result {
        Ok(()) => assert!(is_own, "{what}: a key of another store was taken"),
        Err(error) => {
            assert!(!is_own, "{what}: {error}");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: {error}");
            assert!(error.to_string().contains("cannot be here"), "{what}: {error}");
            assert!(error.context("state").is_some(), "{what}: {error}");
        }
    }
}

#[test]
fn keys_are_taken_if_their_groups_are_the_stores() {
    const STORES: usize = 3;
    for (name, layout) in layouts() {
        let devices: Vec<_> = (0..STORES as u64).map(device).collect();
        for (at, device) in devices.iter().enumerate() {
            let (groups, mut dice) = (owned(at, STORES), Dice(at as u64));
            let store = builder(&layout)
                .owned_groups(groups.clone())
                .device(Arc::new(device.clone()))
                .open()
                .unwrap();
            let mut map = store.map::<u64, u64>("map").own_keys_only().open().unwrap();
            let mut count = store.count::<u64>("count").own_keys_only().open().unwrap();
            let mut list = store.list::<u64, u64>("list").own_keys_only().open().unwrap();
            let mut times =
                store.time_map::<u64, u64>("times").own_keys_only().open(nanos(10)).unwrap();
            let mut timers = store.timers_of_own_keys::<u64>("timers").unwrap();
            let expiring = store.expiring_map::<u64, u64>("expiring").own_keys_only();
            let mut expiring = expiring.open(Ttl::event_time(nanos(100))).unwrap();
            let windows = store.aggregated::<u64, (), _>("windows").own_keys_only();
            let mut windows = windows.open(Windows::tumbling(nanos(10)), Counting).unwrap();
            // One value per store, whatever its groups.
            let mut value = store.value::<u64>("value").own_keys_only().open().unwrap();
            value.set(at as u64).unwrap();
            let mut taken = 0;
            for _ in 0..300 {
                let key = dice.below(1000);
                let is_own = groups.contains(&group_of(key).0);
                taken += u64::from(is_own);
                let all: Vec<(&str, Result<()>)> = vec![
                    ("put", map.put(key, 1).map(drop).map_err(Error::from)),
                    ("update", map.update(&key, || 0, |value| *value += 1)),
                    ("modify", map.modify(&key, |value| *value += 1).map(drop)),
                    (
                        "batch",
                        map.update_batch(&[key], |key| key, |_| 0, |_, value| *value += 1)
                            .map_err(|failed| failed.error),
                    ),
                    ("load", map.load([(key, 5)]).map(drop).map_err(Error::from)),
                    ("count", count.add(&key, 1).map(drop)),
                    ("append", list.append(&key, 1).map_err(Error::from)),
                    ("append batch", list.append_batch(&mut vec![(key, 2)])),
                    ("insert", times.insert(&key, Time(5), 1).map_err(Error::from)),
                    ("set", timers.set(key, Time(key as i64)).map(drop)),
                    ("expiring", expiring.update(&key, || 0, |value| *value += 1)),
                    (
                        "events",
                        windows.add_batch(
                            Time::MIN,
                            &mut vec![(key, Time(1), ())],
                            &mut |_| {},
                            &mut |_, _, _, _| {},
                        ),
                    ),
                ];
                for (call, result) in all {
                    check(result, is_own, &format!("{name}, store {at}, {call}"));
                }
                // Reading is harmless.
                assert_eq!(map.get(&key).unwrap().is_some(), is_own, "{name}");
            }
            assert!((50..250).contains(&taken), "{name}: {taken} of 300");
            store.checkpoint(1).unwrap();
        }
        let sources = devices.iter().map(|device| Source::device(Arc::new(device.clone())));
        let all = builder(&layout)
            .owned_groups(0..GROUPS)
            .device(Arc::new(device(70)))
            .restore_from(sources)
            .open()
            .unwrap();
        let mut map = all.map::<u64, u64>("map").open().unwrap();
        let mut groups = [false; GROUPS as usize];
        map.for_each(|key, _| {
            groups[usize::from(group_of(*key).0)] = true;
            Ok(())
        })
        .unwrap();
        assert!(groups.iter().all(|is_there| *is_there), "{name}");
        assert!(all.timers::<u64>("timers").unwrap().len() > 100, "{name}");
    }
}
