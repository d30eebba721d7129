//! A tree takes no more than it is said to take, however it came to be: its first entry takes a whole node, and
//! removals leave nodes half full.

use std::collections::BTreeMap;
use std::hint::black_box;

use alluvium::Time;
use alluvium_layouts::{ByTime, tree_bytes};

use crate::counting::{alone, held_here};
use crate::dice::Dice;

type Values = ByTime<[u64; 3]>;

/// Compares what this thread holds since then with what is said of so many entries.
fn check(before: isize, said: u64, len: usize, what: &str) {
    let (held, said) = (held_here() - before, said as isize);
    assert!(held <= said, "{what}: {len} entries take {held} bytes, not {said}");
    assert!(len > 0 || held == 0, "{what}: {held} bytes are held for nothing");
}

fn put(values: &mut Values, time: i64) {
    *values.get_or_insert(Time(time), || Ok([0; 3])).unwrap() = [time as u64; 3];
}

#[test]
fn values_by_time_that_come_in_order_or_not_and_go() {
    let _alone = alone();
    for len in (1..=60).chain([500, 3000]) {
        let before = held_here();
        let (mut upwards, mut downwards) = (Values::new(), Values::new());
        for time in 0..len as i64 {
            put(&mut upwards, time);
            check(before, Values::memory_bytes(upwards.len()), upwards.len(), "upwards");
        }
        let with_one = held_here();
        for time in (0..len as i64).rev() {
            put(&mut downwards, time);
            check(with_one, Values::memory_bytes(downwards.len()), downwards.len(), "downwards");
        }
        while downwards.pop_first().is_some() {
            check(with_one, Values::memory_bytes(downwards.len()), downwards.len(), "emptied");
        }
        // Every second goes, then every fourth: nodes are as empty as they may be.
        for step in [2, 3, 5] {
            for time in (0..len as i64).step_by(step) {
                upwards.remove(Time(time));
                check(before, Values::memory_bytes(upwards.len()), upwards.len(), "thinned");
            }
        }
        while upwards.pop_before(Time::MAX).is_some() {
            check(
                before,
                Values::memory_bytes(upwards.len()),
                upwards.len(),
                "thinned and emptied",
            );
        }
    }
}

/// Entries come and go by chance; the number of them goes up and down.
fn by_chance<K: Ord, V>(make: impl Fn(u64) -> (K, V), what: &str) {
    let mut dice = Dice(11);
    let before = held_here();
    let mut tree = BTreeMap::new();
    for step in 0..20_000u64 {
        let (key, value) = make(dice.below(400));
        match dice.below(100) < 20 + 60 * (step / 2000 % 2) {
            true => drop(tree.insert(key, value)),
            false => drop(tree.remove(&key)),
        }
        if tree.is_empty() {
            tree = BTreeMap::new();
        }
        check(before, tree_bytes::<K, V>(tree.len()), tree.len(), what);
    }
    black_box(tree);
}

#[test]
fn trees_of_any_entries() {
    let _alone = alone();
    by_chance(|n| (n, Some(Time(n as i64))), "numbers");
    by_chance(|n| (n as u8 as u16, ()), "small keys");
    by_chance(|n| ((n as u8, n as u16), n as u128), "aligned values");
    by_chance(|n| ([n; 9], [n as u8; 3]), "long keys");
}
