//! Window segments in memory: updates of slices, firing a window, purging it, beside hash maps that
//! do the same. Each figure is the median of five rounds, with the shortest and the longest; what
//! both sides summed up is compared.
//!
//! `cargo bench -p alluvium-layouts --bench window_segments -- update` (or `fold`, or `purge`; all
//! without a name)

mod common;

use std::hint::black_box;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_layouts::{Cursor, Panes, PanesLayout, SegmentPanes, WindowSegments};
use alluvium_pagestore::{Account, Helper, Time, hash_word};
use common::{Rounds, context};

type Segments = SegmentPanes<u64, u64>;
type Map = hashbrown::HashMap<u64, u64, foldhash::fast::RandomState>;

const ROUNDS: usize = 5;
const UPDATES: u64 = 2_000_000;
/// Slices of the spread, and how many keys each has at the most.
const SLICES: u64 = 60;
const SPREAD_KEYS: u64 = 20_000;

fn open(helper: &Helper) -> Segments {
    let context = context(Account::root(4 << 30), None, helper.clone());
    WindowSegments::new().open_panes(context, Rc::new(|a: &mut u64, b: &u64| *a += b)).unwrap()
}

/// Prints the rounds of `work` as nanoseconds per item.
fn measure(what: &str, items: u64, mut work: impl FnMut()) {
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        work();
        rounds.add(start.elapsed().as_nanos() as f64 / items as f64);
    }
    let all_ms = rounds.median() * items as f64 / 1e6;
    println!("  {what:<34} {rounds:.1} ns, {all_ms:.3} ms in all");
}

fn add(panes: &mut Segments, slice: i64, key: u64) {
    panes.update(Time(slice), &key, || 0, |sum| *sum += 1).unwrap();
}

/// The sum of all that a fold visits, with so much fuel per call.
fn fold(panes: &mut Segments, slices: Range<i64>, fuel: usize) -> u64 {
    let (mut cursor, mut sum) = (Cursor::default(), 0);
    while !cursor.done {
        let slices = Time(slices.start)..Time(slices.end);
        let visit = &mut |key: &u64, value: u64| {
            sum += value ^ key;
            Ok(())
        };
        panes.fold(slices, &mut cursor, fuel, visit).unwrap();
    }
    sum
}

fn updates(keys: u64) {
    let helper = Helper::inline();
    let work: Vec<(Time, u64)> = (0..UPDATES).map(|n| (Time(0), hash_word(n) % keys)).collect();
    println!("updates of one slice of {keys} keys");
    let (mut map, mut one, mut batched) = (Map::default(), open(&helper), open(&helper));
    for key in 0..keys {
        *map.entry(key).or_default() += 1;
        add(&mut one, 0, key);
        add(&mut batched, 0, key);
    }
    measure("hashbrown", UPDATES, || {
        work.iter().for_each(|(_, key)| *map.entry(*key).or_default() += 1);
    });
    measure("one by one", UPDATES, || {
        work.iter().for_each(|(slice, key)| add(&mut one, slice.0, *key));
    });
    measure("in batches of 256", UPDATES, || {
        for batch in work.chunks(256) {
            batched.update_batch(batch, |(s, k)| (*s, k), |_| 0, |_, sum| *sum += 1).unwrap();
        }
    });
    let sum = map.iter().map(|(key, value)| value ^ key).fold(0, u64::wrapping_add);
    assert_eq!((fold(&mut one, 0..1, 4096), fold(&mut batched, 0..1, 4096)), (sum, sum));
}

/// Updates that go to many slices, in runs of so many that go to the same.
fn spread(run: u64) {
    let helper = Helper::inline();
    let place = |n: u64| (Time((n / run % SLICES) as i64), hash_word(n) % SPREAD_KEYS);
    let work: Vec<(Time, u64)> = (0..UPDATES).map(place).collect();
    println!("updates of {SLICES} slices of {SPREAD_KEYS} keys, {run} of a slice after each other");
    let mut maps: Vec<Map> = (0..SLICES).map(|_| Map::default()).collect();
    let (mut one, mut batched) = (open(&helper), open(&helper));
    for n in 0..SLICES * SPREAD_KEYS {
        let (slice, key) = (n % SLICES, n / SLICES);
        *maps[slice as usize].entry(key).or_default() += 1;
        add(&mut one, slice as i64, key);
        add(&mut batched, slice as i64, key);
    }
    measure("hashbrown, a map per slice", UPDATES, || {
        for (slice, key) in &work {
            *maps[slice.0 as usize].entry(*key).or_default() += 1;
        }
    });
    measure("one by one", UPDATES, || {
        work.iter().for_each(|(slice, key)| add(&mut one, slice.0, *key));
    });
    measure("in batches of 256", UPDATES, || {
        for batch in work.chunks(256) {
            batched.update_batch(batch, |(s, k)| (*s, k), |_| 0, |_, sum| *sum += 1).unwrap();
        }
    });
    let sums = maps.iter().flatten().map(|(key, value)| value ^ key).fold(0, u64::wrapping_add);
    for panes in [&mut one, &mut batched] {
        let slices = 0..SLICES as i64;
        let sum = slices.map(|slice| fold(panes, slice..slice + 1, 4096));
        assert_eq!(sum.fold(0, u64::wrapping_add), sums);
    }
}

fn folds(slices: u64, keys: u64) {
    let helper = Helper::inline();
    let mut maps: Vec<Map> = (0..slices).map(|_| Map::default()).collect();
    let mut panes = open(&helper);
    for n in 0..slices * keys {
        let (slice, key) = (n % slices, hash_word(n / slices));
        maps[slice as usize].insert(key, 1);
        add(&mut panes, slice as i64, key);
    }
    println!("a fold of {slices} slices of {keys} keys");
    let mut expected = 0u64;
    measure("hashbrown, a map per slice", slices * keys, || {
        expected = if let [map] = &maps[..] {
            map.iter().map(|(key, value)| value ^ key).fold(0, u64::wrapping_add)
        } else {
            let mut sums = Map::default();
            for (key, value) in maps.iter().flatten() {
                *sums.entry(*key).or_default() += value;
            }
            sums.iter().map(|(key, value)| value ^ key).fold(0, u64::wrapping_add)
        };
        black_box(expected);
    });
    for fuel in [256, 4096, 65_536] {
        let mut sum = 0;
        measure(&format!("with fuel {fuel}"), slices * keys, || {
            sum = fold(&mut panes, 0..slices as i64, fuel);
        });
        assert_eq!(sum, expected);
    }
}

fn purges(name: &str, helper: &Helper, slices: u64, entries: u64, fuel: usize) {
    println!("purging {slices} slices of {entries} entries {name}, {fuel} a call");
    for _ in 0..ROUNDS {
        let mut panes = open(helper);
        (0..slices * entries).for_each(|n| add(&mut panes, (n % slices) as i64, n / slices));
        let (mut calls, start) = (Vec::new(), Instant::now());
        loop {
            let call = Instant::now();
            let done = panes.purge(Time(slices as i64), fuel).unwrap();
            calls.push(call.elapsed());
            if done {
                break;
            }
        }
        let (total, count) = (start.elapsed(), calls.len());
        let at = calls.iter().enumerate().max_by_key(|(_, time)| **time).unwrap().0;
        let longest = calls[at];
        calls.sort();
        let usual: Duration = calls[count * 99 / 100];
        println!(
            "  {total:?} in {count} calls; 99 in 100 within {usual:?}, the longest (number {at}) {longest:?}"
        );
    }
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    if is_asked("update") {
        updates(10_000);
        updates(1_000_000);
        spread(1);
        spread(7);
    }
    if is_asked("fold") {
        folds(1, 10_000);
        folds(2, 10_000);
        folds(30, 10_000);
        folds(60, 100);
        folds(4, 500_000);
    }
    if is_asked("purge") {
        purges("handed over", &Helper::thread().unwrap(), 1, 1_000_000, 256);
        purges("without a helper", &Helper::inline(), 1, 1_000_000, 256);
        purges("without a helper", &Helper::inline(), 10_000, 10, 256);
    }
}
