//! Firing windows of 10 K keys that count their events, beside hash maps that do the same: tumbling, and
//! sliding over 30 slices, whose totals are kept from one window to the next. Results are compared.
//!
//! `cargo bench -p alluvium --bench firing`

use std::collections::VecDeque;
use std::hash::BuildHasherDefault;
use std::hint::black_box;
use std::time::{Duration, Instant};

use alluvium::{Counting, KeyHash, MIB, Store, Time, WindowSegments, Windows};

const KEYS: u64 = 10_000;
const WINDOWS: i64 = 400;
const WARM_UP: i64 = 60;
const SECOND: i64 = 1_000_000_000;

/// The hash that the store uses, so that both sides hash alike.
#[derive(Default)]
struct Same(u64);

impl std::hash::Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word.key_hash();
    }
}

type Map = hashbrown::HashMap<u64, u64, BuildHasherDefault<Same>>;

/// Times of the calls that fire, and what they answered.
#[derive(Default)]
struct Fired {
    micros: Vec<f64>,
    push_nanos: Vec<f64>,
    sum: u64,
    rows: u64,
}

impl Fired {
    fn row(&mut self, key: u64, end: i64, count: u64) {
        self.rows += 1;
        self.sum = self.sum.wrapping_add((key ^ end as u64).wrapping_mul(count | 1));
    }

    fn took(&mut self, push: Duration, fire: Duration) {
        self.push_nanos.push(push.as_nanos() as f64 / KEYS as f64);
        self.micros.push(fire.as_nanos() as f64 / 1e3);
    }

    fn say(&mut self, what: &str) {
        let warm = WARM_UP as usize;
        let quartiles = |times: &mut Vec<f64>| {
            let times = &mut times[warm..];
            times.sort_by(f64::total_cmp);
            [times[times.len() / 4], times[times.len() / 2], times[times.len() * 3 / 4]]
        };
        let [low, middle, high] = quartiles(&mut self.micros);
        let [_, push, _] = quartiles(&mut self.push_nanos);
        println!(
            "  {what:<18} fires in {middle:.0} us [{low:.0} to {high:.0}], an event {push:.1} ns"
        );
    }
}

/// The events of a window or slice: each key once, in another order each time.
fn events(second: i64) -> impl Iterator<Item = u64> {
    let start = (second as u64).wrapping_mul(7_919);
    (0..KEYS).map(move |n| (start + n.wrapping_mul(6_007)) % KEYS)
}

fn ours(windows: Windows) -> Fired {
    let store = Store::in_memory().memory(256 * MIB).open().expect("a store");
    let counts = store.aggregated::<u64, (), Counting>("counts").layout(WindowSegments::new());
    let mut counts = counts.open(windows, Counting).expect("windows");
    let mut fired = Fired::default();
    let mut batch = Vec::new();
    for second in 0..WINDOWS {
        let start = Instant::now();
        let mut events = events(second).peekable();
        while events.peek().is_some() {
            batch.extend(events.by_ref().take(256).map(|key| (key, Time(second * SECOND), ())));
            let late = &mut |_| unreachable!("none is late");
            let out = &mut |_: &u64, _, _, _| unreachable!("none has fired");
            counts.add_batch(Time(second * SECOND), &mut batch, late, out).expect("room");
        }
        let pushed = Instant::now();
        counts
            .advance_all(Time((second + 1) * SECOND), &mut |key, window, count, _| {
                fired.row(*key, window.end.0, black_box(count as u64));
            })
            .expect("it fires");
        fired.took(pushed - start, pushed.elapsed());
    }
    fired
}

fn map_tumbling() -> Fired {
    let (mut fired, mut map) = (Fired::default(), Map::default());
    for second in 0..WINDOWS {
        let start = Instant::now();
        events(second).for_each(|key| *map.entry(key).or_default() += 1);
        let pushed = Instant::now();
        map.drain().for_each(|(key, count)| {
            fired.row(key, (second + 1) * SECOND, black_box(count));
        });
        fired.took(pushed - start, pushed.elapsed());
    }
    fired
}

fn map_sliding(slices: usize) -> Fired {
    let (mut fired, mut totals, mut parts) = (Fired::default(), Map::default(), VecDeque::new());
    for second in 0..WINDOWS {
        let start = Instant::now();
        let mut part = Map::default();
        events(second).for_each(|key| *part.entry(key).or_default() += 1);
        let pushed = Instant::now();
        part.iter().for_each(|(key, count)| *totals.entry(*key).or_default() += count);
        parts.push_back(part);
        if parts.len() > slices {
            for (key, count) in parts.pop_front().expect("there are some") {
                *totals.get_mut(&key).expect("it came") -= count;
            }
        }
        totals.iter().filter(|(_, count)| **count > 0).for_each(|(key, count)| {
            fired.row(*key, (second + 1) * SECOND, black_box(*count));
        });
        fired.took(pushed - start, pushed.elapsed());
    }
    fired
}

fn beside(what: &str, windows: Windows, map: impl Fn() -> Fired) {
    println!("{what}, {KEYS} keys");
    for _ in 0..3 {
        let (mut ours, mut map) = (ours(windows), map());
        ours.say("window segments");
        map.say("hashbrown");
        assert_eq!((ours.rows, ours.sum), (map.rows, map.sum), "results differ");
    }
}

fn main() {
    let second = Duration::from_secs(1);
    beside("tumbling 1 s", Windows::tumbling(second), map_tumbling);
    let sliding = Windows::sliding(30 * second, second);
    beside("sliding 30 s by 1 s", sliding, || map_sliding(30));
}
