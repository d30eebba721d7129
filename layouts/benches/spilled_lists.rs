//! Lists of many times the memory, of large elements, so that storage is the limit: how near to what the
//! device takes and gives one after the other are appending all of it, and reading it back once. Both
//! sides in turns, the sum of what was read checked. Prints medians and spread.
//!
//! `cargo bench -p alluvium-layouts --bench spilled_lists -- DIRECTORY [MiB] [MiB of memory] [rounds]`

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use alluvium_layouts::{AppendLog, Cursor, Lists, ListsLayout};
use alluvium_pagestore::io::{
    Device, IoBuffer, Operation, ThreadPool, ThreadPoolOptions, run_blocking,
};
use alluvium_pagestore::{Account, Helper, SegmentStore, Time, hash_word};
use common::{Rounds, context};

const BUCKET: Time = Time(1);
const KEYS: u64 = 10_000;
/// Elements of a batch.
const BATCH: u64 = 256;
/// Bytes of a write or read one after the other.
const STEP_BYTES: u64 = 4 << 20;

type Element = [u64; 32];

/// MB/s of each round.
#[derive(Default)]
struct Rates {
    spilled: Rounds,
    written: Rounds,
    folded: Rounds,
    read: Rounds,
}

fn rate(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / since.elapsed().as_secs_f64() / 1e6
}

fn ours(directory: &Path, elements: u64, memory: u64, rates: &mut Rates) {
    let device: Arc<dyn Device> =
        Arc::new(ThreadPool::new(directory, ThreadPoolOptions::default()).expect("a directory"));
    let account = Account::below(&Account::root(memory), "spilled", u64::MAX);
    let segments = SegmentStore::new(device.clone(), 1);
    let context = context(account, Some(segments), Helper::thread().expect("a thread"));
    let mut lists = AppendLog::new().open_lists(context).expect("room");
    let start = Instant::now();
    let mut batch = Vec::with_capacity(BATCH as usize);
    let mut expected = 0u64;
    for first in (0..elements).step_by(BATCH as usize) {
        for n in first..elements.min(first + BATCH) {
            let key = hash_word(n) % KEYS;
            expected = expected.wrapping_add(n ^ key);
            batch.push((key, BUCKET, [n; 32]));
        }
        lists.append_batch(&mut batch).expect("storage takes it");
    }
    rates.spilled.add(rate(device.stats().bytes_written, start));
    let start = Instant::now();
    let (mut cursor, mut sum) = (Cursor::default(), 0u64);
    while !cursor.done {
        lists
            .fold(BUCKET..Time(2), &mut cursor, 1 << 16, &mut |key, list| {
                loop {
                    let chunk: &[Element] = list.next_chunk()?;
                    if chunk.is_empty() {
                        return Ok(());
                    }
                    sum = chunk.iter().fold(sum, |sum, element| sum.wrapping_add(element[7] ^ key));
                }
            })
            .expect("storage gives it back");
    }
    rates.folded.add(rate(device.stats().bytes_read, start));
    assert_eq!(sum, expected);
}

fn one_after_the_other(directory: &Path, bytes: u64, rates: &mut Rates) {
    let device = ThreadPool::new(directory, ThreadPoolOptions::default()).expect("a directory");
    let file = device.create("one-after-the-other").expect("a file");
    let mut buffer = IoBuffer::zeroed(STEP_BYTES as usize);
    let mut run = |operation| {
        let empty = std::mem::replace(&mut buffer, IoBuffer::empty());
        let (back, result) = run_blocking(&device, &file, operation, empty);
        result.expect("the device works");
        buffer = back;
    };
    let start = Instant::now();
    for offset in (0..bytes).step_by(STEP_BYTES as usize) {
        run(Operation::Write { offset });
    }
    run(Operation::Sync);
    rates.written.add(rate(bytes, start));
    let start = Instant::now();
    for offset in (0..bytes).step_by(STEP_BYTES as usize) {
        run(Operation::Read { offset });
    }
    rates.read.add(rate(bytes, start));
    device.remove("one-after-the-other").expect("a file");
}

fn tell(what: &str, ours: &Rounds, device: &Rounds) {
    let ratio = ours.median() / device.median();
    println!("{what}: {ours:.0} MB/s; one after the other {device:.0}: {ratio:.2}x");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number =
        |n: usize, default: u64| args.get(n).map_or(default, |arg| arg.parse().expect("a number"));
    let parent = args.first().map_or(std::env::temp_dir(), |directory| directory.into());
    let (bytes, memory, rounds) = (number(1, 2048) << 20, number(2, 64) << 20, number(3, 3));
    let mut rates = Rates::default();
    for round in 0..rounds {
        let directory = parent.join(format!("spilled-lists-{}-{round}", std::process::id()));
        std::fs::create_dir(&directory).expect("a new directory");
        ours(&directory, bytes / size_of::<Element>() as u64, memory, &mut rates);
        one_after_the_other(&directory, bytes, &mut rates);
        std::fs::remove_dir_all(&directory).expect("a directory of ours");
    }
    println!("{} MiB of elements of 256 bytes in {} MiB", bytes >> 20, memory >> 20);
    tell("appending", &rates.spilled, &rates.written);
    tell("reading back", &rates.folded, &rates.read);
}
