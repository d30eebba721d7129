//! Appends and reads of lists against a hash table of vectors, all in memory: one by one and in
//! batches, the two sides in turns on the same work, answers compared. Prints medians and spread, of
//! the thread's time on a processor: other work on the machine is counted only by what it evicts.
//!
//! `cargo bench -p alluvium-layouts --bench append -- [keys] [elements a key] [rounds]`

mod common;

use std::hint::black_box;
use std::time::Instant;

use alluvium_layouts::{AppendLog, Cursor, Lists, ListsLayout};
use alluvium_pagestore::{Account, Helper, Time, hash_word};
use common::{Rounds, context};
use hashbrown::HashMap;

const BUCKET: Time = Time(1);
const BATCH: u64 = 1024;

type Map = HashMap<u64, Vec<u64>, foldhash::fast::FixedState>;

fn lists() -> impl Lists<u64, u64> {
    let account = Account::below(&Account::root(8 << 30), "append", u64::MAX);
    let context = context(account, None, Helper::thread().expect("a thread"));
    AppendLog::new().open_lists(context).expect("room")
}

/// Nanoseconds per element of what was done.
#[derive(Default)]
struct Times {
    appends: Rounds,
    batches: Rounds,
    reads: Rounds,
}

/// Runs and times.
fn timed<R>(elements: u64, times: &mut Rounds, run: impl FnOnce() -> R) -> R {
    let (start, wall) = (on_processor_ns(), Instant::now());
    let result = run();
    let wall_ns = wall.elapsed().as_nanos() as f64;
    let spent = on_processor_ns().zip(start).map_or(wall_ns, |(end, start)| end - start);
    times.add(spent / elements as f64);
    result
}

/// Time that this thread has had a processor, where the operating system tells.
fn on_processor_ns() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

fn fold(lists: &mut impl Lists<u64, u64>) -> u64 {
    let (mut cursor, mut sum) = (Cursor::default(), 0u64);
    while !cursor.done {
        lists
            .fold(BUCKET..Time(2), &mut cursor, 1 << 20, &mut |key, list| {
                loop {
                    let chunk = list.next_chunk()?;
                    if chunk.is_empty() {
                        return Ok(());
                    }
                    sum = chunk.iter().fold(sum, |sum, element| sum.wrapping_add(element ^ key));
                }
            })
            .expect("memory is read");
    }
    sum
}

fn sum_of(map: &Map) -> u64 {
    let mut sum = 0u64;
    for (key, list) in map {
        for element in list {
            sum = sum.wrapping_add(element ^ key);
        }
    }
    sum
}

fn ours(elements: u64, key: impl Fn(u64) -> u64, times: &mut Times) -> [u64; 2] {
    let one_by_one = {
        let mut lists = lists();
        timed(elements, &mut times.appends, || {
            for n in 0..elements {
                lists.append(BUCKET, &key(n), n).expect("room");
            }
        });
        timed(elements, &mut times.reads, || fold(&mut lists))
    };
    let mut lists = lists();
    let mut batch = Vec::with_capacity(BATCH as usize);
    timed(elements, &mut times.batches, || {
        for first in (0..elements).step_by(BATCH as usize) {
            batch.extend((first..elements.min(first + BATCH)).map(|n| (key(n), BUCKET, n)));
            lists.append_batch(&mut batch).expect("room");
        }
    });
    [one_by_one, fold(&mut lists)]
}

fn theirs(elements: u64, key: impl Fn(u64) -> u64, times: &mut Times) -> [u64; 2] {
    let one_by_one = {
        let mut map = Map::default();
        timed(elements, &mut times.appends, || {
            for n in 0..elements {
                map.entry(key(n)).or_default().push(n);
            }
        });
        timed(elements, &mut times.reads, || sum_of(&map))
    };
    let mut map = Map::default();
    let mut batch = Vec::with_capacity(BATCH as usize);
    timed(elements, &mut times.batches, || {
        for first in (0..elements).step_by(BATCH as usize) {
            batch.extend((first..elements.min(first + BATCH)).map(|n| (key(n), BUCKET, n)));
            for (key, _, n) in batch.drain(..) {
                map.entry(key).or_default().push(n);
            }
        }
    });
    [one_by_one, sum_of(&map)]
}

fn tell(what: &str, ours: &Rounds, theirs: &Rounds) {
    let ratio = theirs.median() / ours.median();
    println!("  {what}: {ours:.1} ns, HashMap<_, Vec<_>> {theirs:.1} ns: {ratio:.2}x");
}

fn main() {
    let args: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let shapes = match args[..] {
        [keys, each, ..] => vec![(keys, each)],
        _ => vec![(1_000_000, 40), (10_000, 1_000), (4_000_000, 4)],
    };
    for (keys, each) in shapes {
        let key = |n: u64| hash_word(n) % keys;
        let (mut a, mut b) = (Times::default(), Times::default());
        for _ in 0..args.get(2).copied().unwrap_or(5) {
            let sums = ours(keys * each, key, &mut a);
            assert_eq!(black_box(sums), black_box(theirs(keys * each, key, &mut b)));
        }
        println!("{keys} keys of {each} elements");
        tell("append", &a.appends, &b.appends);
        tell("batch ", &a.batches, &b.batches);
        tell("read  ", &a.reads, &b.reads);
    }
}
