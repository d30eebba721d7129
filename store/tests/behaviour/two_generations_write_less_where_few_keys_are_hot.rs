//! Of 20,000 keys a twentieth takes 95 % of the updates, and memory has no room even for these: a log of two generations
//! answers as one of one does, and writes fewer bytes.
//!
//! What this catches: copies that go to the segment that is being written after all, and what is hot among what was copied.

use std::sync::Arc;

use crate::common::{self, Dice};
use alluvium::io::{Faults, Simulated};
use alluvium::{HybridLog, KIB, Map};

type Record = [u64; 30];

const KEYS: u64 = 20_000;
const HOT: u64 = KEYS / 20;
const UPDATES: u64 = 150_000;

/// Records copied, and bytes written, by one of two halves of a history, the other of which it settles in.
fn written(generations: u32, memory: u64) -> (u64, u64) {
    let device = Simulated::new(1, Faults::none());
    let layout = HybridLog::new().page(32 * KIB).generations(generations);
    let store = common::open_on(Arc::new(device), layout, memory).unwrap();
    let mut map: Map<u64, Record> = store.map("m").open().unwrap();
    let mut model = vec![0; KEYS as usize];
    (0..KEYS).for_each(|key| assert!(!map.put(key, [0; 30]).unwrap()));
    let (mut dice, mut before, mut most) = (Dice(7), store.stats().unwrap(), 0.0f64);
    for n in 0..2 * UPDATES {
        if n == UPDATES {
            before = store.stats().unwrap();
        }
        let rank = match dice.below(100) {
            0..95 => dice.below(HOT),
            _ => HOT + dice.below(KEYS - HOT),
        };
        // Those that are hot are no neighbours.
        let key = rank * 7919 % KEYS;
        map.update(&key, || unreachable!(), |record| record[3] = n).unwrap();
        model[key as usize] = n;
        if n >= UPDATES && n % 1000 == 0 {
            let total = store.stats().unwrap().total();
            most = most.max(total.space_amplification().unwrap());
        }
    }
    for (key, n) in (0..).zip(model) {
        assert_eq!(map.get(&key).unwrap().map(|record| record[3]), Some(n), "{key}");
    }
    let after = store.stats().unwrap();
    let copied = after.total().rewritten - before.total().rewritten;
    let bytes = after.io.since(&before.io).bytes_written;
    println!(
        "{generations} of {memory} bytes: {bytes} bytes written, {copied} records copied, space {most:.2}"
    );
    // The limit, and what is open.
    assert!(most < 1.5 + 0.1 * f64::from(generations), "{generations}: {most}");
    (copied, bytes)
}

#[test]
fn what_is_copied_is_not_copied_again_with_what_is_hot() {
    let ((copied_by_one, by_one), (copied_by_two, by_two)) =
        (written(1, 700 * KIB), written(2, 700 * KIB));
    assert!(10 * copied_by_two < 6 * copied_by_one, "{copied_by_two} of {copied_by_one}");
    assert!(5 * by_two < 4 * by_one, "{by_two} of {by_one}");
}
