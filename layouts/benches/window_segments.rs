//! Window segments in memory: updates of a slice, firing a window, purging it. Best of some rounds.
//!
//! `cargo bench -p alluvium-layouts --bench window_segments`

use std::collections::BTreeMap;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_layouts::{Cursor, Panes, PanesLayout, SegmentPanes, StateContext, WindowSegments};
use alluvium_pagestore::{Account, Helper, Time, hash_word};

type Segments = SegmentPanes<u64, u64>;

fn open(helper: &Helper) -> Segments {
    let context = StateContext {
        name: "bench".into(),
        account: Account::root(4 << 30),
        segments: None,
        helper: helper.clone(),
        max_value_bytes: 1 << 20,
        key_groups: 256,
        owned: 0..256,
        restored: None,
    };
    WindowSegments::new().open_panes(context, Rc::new(|a: &mut u64, b: &u64| *a += b)).unwrap()
}

/// The shortest of some rounds.
fn best(rounds: usize, mut round: impl FnMut() -> Duration) -> Duration {
    (0..rounds).map(|_| round()).min().expect("a round")
}

fn add(panes: &mut Segments, slice: i64, key: u64) {
    panes.update(Time(slice), &key, || 0, |sum| *sum += 1).unwrap();
}

fn fold(panes: &mut Segments, slices: std::ops::Range<i64>) -> u64 {
    let (mut cursor, mut sum) = (Cursor::default(), 0);
    while !cursor.done {
        let slices = Time(slices.start)..Time(slices.end);
        let visit = &mut |_: &u64, value: u64| {
            sum += value;
            Ok(())
        };
        panes.fold(slices, &mut cursor, 4096, visit).unwrap();
    }
    sum
}

fn place(key: &u64) -> (Time, &u64) {
    (Time(0), key)
}

fn per(total: Duration, n: u64) -> f64 {
    total.as_nanos() as f64 / n as f64
}

fn main() {
    let helper = Helper::thread().unwrap();
    for keys in [10_000u64, 1_000_000] {
        let updates = 4_000_000u64;
        let key = |n: u64| hash_word(n) % keys;
        let map = best(3, || {
            let mut map = hashbrown::HashMap::<u64, u64, foldhash::fast::RandomState>::default();
            (0..keys).for_each(|key| *map.entry(key).or_default() += 1);
            let start = Instant::now();
            (0..updates).for_each(|n| *map.entry(key(n)).or_default() += 1);
            start.elapsed()
        });
        let mut panes = open(&helper);
        (0..keys).for_each(|key| add(&mut panes, 0, key));
        let single = best(3, || {
            let start = Instant::now();
            (0..updates).for_each(|n| add(&mut panes, 0, key(n)));
            start.elapsed()
        });
        let batch: Vec<u64> = (0..updates).map(key).collect();
        let batched = best(3, || {
            let start = Instant::now();
            for batch in batch.chunks(256) {
                panes.update_batch(batch, place, |_| 0, |_, sum| *sum += 1).unwrap();
            }
            start.elapsed()
        });
        let many = best(2, || {
            let mut panes = open(&helper);
            (0..60 * keys.min(20_000)).for_each(|n| add(&mut panes, n as i64 % 60, n / 60));
            let start = Instant::now();
            (0..updates).for_each(|n| add(&mut panes, (n / 7 % 60) as i64, key(n) % 20_000));
            start.elapsed()
        });
        println!(
            "{keys} keys: hashbrown {:.1} ns, one slice {:.1} ns, in batches {:.1} ns, 60 slices {:.1} ns",
            per(map, updates),
            per(single, updates),
            per(batched, updates),
            per(many, updates)
        );
    }

    let mut panes = open(&helper);
    (0..10_000).for_each(|key| add(&mut panes, 0, key));
    let fire = best(50, || {
        let start = Instant::now();
        black_box(fold(&mut panes, 0..1));
        start.elapsed()
    });
    let map: hashbrown::HashMap<u64, u64, foldhash::fast::RandomState> =
        (0..10_000).map(|key| (key, key)).collect();
    let iterate = best(50, || {
        let start = Instant::now();
        black_box(map.iter().map(|(_, value)| black_box(*value)).sum::<u64>());
        start.elapsed()
    });
    println!("firing 10 K keys: one slice {fire:?}, iterating a hash map {iterate:?}");

    let mut panes = open(&helper);
    for slice in 0..30 {
        (0..10_000).for_each(|key| add(&mut panes, slice, key));
    }
    let fire = best(10, || {
        let start = Instant::now();
        black_box(fold(&mut panes, 0..30));
        start.elapsed()
    });
    let tree = best(3, || {
        let start = Instant::now();
        let mut sums = BTreeMap::<u64, u64>::new();
        (0..30).for_each(|_| (0..10_000).for_each(|key| *sums.entry(key).or_default() += 1));
        black_box(sums.len());
        start.elapsed()
    });
    println!(
        "firing 10 K keys of 30 slices: {fire:?}, {:.1} ns an accumulator; a tree {tree:?}",
        per(fire, 300_000)
    );

    for (name, helper, fuel) in
        [("handed over", helper, 256), ("without a helper, 256 a call", Helper::inline(), 256)]
    {
        let mut panes = open(&helper);
        (0..1_000_000).for_each(|key| add(&mut panes, 0, key));
        let (mut longest, mut calls, start) = (Duration::ZERO, 0, Instant::now());
        loop {
            let call = Instant::now();
            let done = panes.purge(Time(1), fuel).unwrap();
            longest = longest.max(call.elapsed());
            calls += 1;
            if done {
                break;
            }
        }
        println!(
            "purging 1 M entries {name}: {:?} in {calls} calls, the longest {longest:?}",
            start.elapsed()
        );
    }
}
