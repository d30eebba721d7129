//! Random reads by each engine at several depths: the numbers behind the choice of an engine.
//!
//! One caller keeps a fixed number of requests in flight on a file of 1 GiB, direct where the
//! file system allows. An iteration is one read; criterion's throughput is reads per second.

use alluvium_pagestore::io::{
    BLOCK_BYTES, Device, EngineChoice, IoBuffer, IoOptions, Operation, Request, open_device,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 1 << 30;
const CHUNK_BYTES: usize = 1 << 20;

/// Writes the file once; all engines read the same.
fn prepare(directory: &Path) {
    let options = IoOptions { engine: EngineChoice::Threads, ..IoOptions::default() };
    let device = open_device(directory, &options).unwrap();
    let file = device.create("data").unwrap();
    for offset in (0..FILE_BYTES).step_by(CHUNK_BYTES) {
        let buffer = IoBuffer::zeroed(CHUNK_BYTES);
        let operation = Operation::Write { offset };
        alluvium_pagestore::io::run_blocking(&*device, &file, operation, buffer).1.unwrap();
    }
    alluvium_pagestore::io::run_blocking(&*device, &file, Operation::Sync, IoBuffer::empty())
        .1
        .unwrap();
}

/// Reads `count` random blocks with `depth` in flight.
fn reads(device: &dyn Device, depth: usize, count: u64) -> Duration {
    let file = device.open("data").unwrap();
    let (reply, completions) = alluvium_pagestore::channel::unbounded();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = |buffer| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let offset = random % (FILE_BYTES / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
        let (file, operation) = (file.clone(), Operation::Read { offset });
        Request { file, operation, buffer, token: 0, reply: reply.clone().into() }
    };
    let mut batch: Vec<Request> =
        (0..count.min(depth as u64)).map(|_| next(IoBuffer::zeroed(BLOCK_BYTES))).collect();
    let start = Instant::now();
    let (mut submitted, mut ended) = (batch.len() as u64, 0);
    device.submit_all(&mut batch);
    while ended < count {
        let done = completions.recv().unwrap();
        for done in std::iter::once(done).chain(completions.try_iter()) {
            done.result.unwrap();
            ended += 1;
            if submitted < count {
                submitted += 1;
                batch.push(next(done.buffer));
            }
        }
        device.submit_all(&mut batch);
    }
    start.elapsed()
}

fn random_reads(criterion: &mut Criterion) {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    prepare(place.path());
    let mut group = criterion.benchmark_group("random_4k_reads");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    for depth in [1, 16, 64] {
        for engine in [EngineChoice::Uring, EngineChoice::Threads] {
            // As many helpers as requests, so that both engines keep the device as busy.
            let options = IoOptions { engine, threads: depth, ..IoOptions::default() };
            let Ok(device) = open_device(place.path(), &options) else { continue };
            let name = format!("{}/depth {depth}", device.engine());
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|count| reads(&*device, depth, count));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, random_reads);
criterion_main!(benches);
