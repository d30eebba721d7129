//! The numbers of `Store::stats` against numbers counted elsewhere: calls by the caller, reads and
//! bytes by the device, hits by what a peek finds, and the budget's parts against each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::{Dice, open_on, tiny};
use crate::hand_on::hand_on;
use alluvium::io::{Device, Faults, FileHandle, IoStats, Operation, Request, Simulated};
use alluvium::stats::StoreStats;
use alluvium::{AnyLayout, Heap, KIB, MIB, Map, Result, Store, Time};

/// A device that counts the requests it is given, by itself.
#[derive(Debug)]
struct Counted {
    inner: Simulated,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    segment_bytes: AtomicU64,
    other_bytes: AtomicU64,
    syncs: AtomicU64,
}

impl Counted {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Simulated::new(1, Faults::none()),
            reads: 0.into(),
            bytes_read: 0.into(),
            writes: 0.into(),
            segment_bytes: 0.into(),
            other_bytes: 0.into(),
            syncs: 0.into(),
        })
    }

    /// Bytes of all segment files.
    fn segment_file_bytes(&self) -> u64 {
        let files = self.inner.list().unwrap();
        let segments = files.iter().filter(|file| file.starts_with("seg-"));
        segments.map(|file| self.inner.bytes(file).unwrap().len() as u64).sum()
    }
}

impl Device for Counted {
    hand_on!(inner: engine, stats, create, open, len, drive, rename, remove, sync_directory, list, lock);

    fn submit(&self, request: Request) {
        let bytes = request.buffer.as_slice().len() as u64;
        match request.operation {
            Operation::Read { .. } => {
                self.reads.fetch_add(1, Relaxed);
                self.bytes_read.fetch_add(bytes, Relaxed);
            }
            Operation::Write { .. } => {
                self.writes.fetch_add(1, Relaxed);
                let segment = request.file.name().starts_with("seg-");
                let kind = if segment { &self.segment_bytes } else { &self.other_bytes };
                kind.fetch_add(bytes, Relaxed);
            }
            Operation::Sync => {
                self.syncs.fetch_add(1, Relaxed);
            }
        }
        self.inner.submit(request);
    }
}

fn stats(store: &Store) -> StoreStats {
    store.stats().unwrap()
}

#[test]
fn calls_are_the_keys_that_were_asked_for() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny())] {
        let device = Arc::new(Simulated::new(1, Faults::late(3)));
        let store = open_on(device, layout, 512 * KIB).unwrap();
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        let mut count = store.count::<u64>("c").open().unwrap();
        let (mut dice, mut calls, mut counted) = (Dice(3), 0, 0);
        for _ in 0..3000 {
            let key = dice.below(500);
            let some: Vec<u64> = (0..dice.below(150)).collect();
            calls += 1;
            match dice.below(13) {
                0 => map.update(&key, || 0, |v| *v += 1).unwrap(),
                1 => drop(map.modify(&key, |v| *v += 1).unwrap()),
                2 => drop(map.put(key, 1).unwrap()),
                3 => drop(map.take(&key).unwrap()),
                4 => drop(map.remove(&key).unwrap()),
                5 => drop(map.get(&key).unwrap()),
                6 => map.read(&key, |_| ()).unwrap(),
                7 => drop(map.contains(&key).unwrap()),
                8 => {
                    map.update_batch(&some, |k| k, |_| 0, |_, v| *v += 1).unwrap();
                    calls = calls + some.len() as u64 - 1;
                }
                9 => {
                    map.read_batch(&some, |k| k, |_, _| ()).unwrap();
                    calls = calls + some.len() as u64 - 1;
                }
                10 => {
                    count.add(&key, 1).unwrap();
                    (calls, counted) = (calls - 1, counted + 1);
                }
                11 => {
                    map.for_each(|_, _| Ok(())).unwrap();
                    calls -= 1;
                }
                _ => {
                    drop(map.peek(&key).unwrap());
                    calls -= 1;
                }
            }
            assert_eq!(map.stats().unwrap().calls, calls);
        }
        let stats = stats(&store);
        let of = |name: &str| stats.state(name).unwrap().table.calls;
        assert_eq!((of("m"), of("c"), stats.total().calls), (calls, counted, calls + counted));
    }
}

#[test]
fn hits_are_what_memory_has_and_cold_reads_what_the_device_reads() {
    let device = Counted::new();
    // Reads of sorted runs, and of moves to them, are counted apart.
    let store = open_on(device.clone(), tiny().cold_runs(false), MIB).unwrap();
    let mut map: Map<u64, [u64; 4]> = store.map("m").open().unwrap();
    for key in 0..20_000 {
        map.put(key, [key; 4]).unwrap();
    }
    while store.tick(100).unwrap() > 0 {}
    let before = (stats(&store), device.reads.load(Relaxed));
    let earlier = before.0.total();
    assert_eq!(earlier.cold_reads, earlier.false_cold_reads, "new keys are no reason to read");
    let (mut resident, mut asked) = (0, 0);
    for key in (0..20_000).step_by(7) {
        resident += u64::from(map.peek(&key).unwrap().is_some());
        assert_eq!(map.read(&key, |value| value.copied()).unwrap(), Some([key; 4]));
        asked += 1;
    }
    let (after, read) = (stats(&store), device.reads.load(Relaxed) - before.1);
    let table = after.total();
    assert_eq!(table.cold_reads - earlier.cold_reads, read);
    assert_eq!(table.calls - earlier.calls, asked);
    // A record whose hash is that of another key is read as well.
    let falsely = table.false_cold_reads - earlier.false_cold_reads;
    assert_eq!(table.hits() - earlier.hits() + falsely, resident);
    assert!(resident > 100 && read > 1000, "{resident} {read}");
    let rate = (20_000 + resident - table.false_cold_reads) as f64 / (20_000 + asked) as f64;
    assert!((table.hit_rate().unwrap() - rate).abs() < 1e-9);
}

#[test]
fn bytes_are_those_of_the_device_and_of_its_files() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny())] {
        let log = matches!(layout, AnyLayout::HybridLog(_));
        let device = Counted::new();
        let store = open_on(device.clone(), layout, MIB).unwrap();
        let mut map: Map<u64, u64> = store.map("m").open().unwrap();
        let mut timers = store.timers::<u64>("t").unwrap();
        for key in 0..6000 {
            map.put(key, key).unwrap();
            timers.set(key, Time(key.cast_signed())).unwrap();
        }
        for position in 0..2 {
            store.checkpoint(position).unwrap();
        }
        let (stats, total) = (stats(&store), stats(&store).total());
        assert_eq!(total.disk_bytes, device.segment_file_bytes());
        assert!(total.live_disk_bytes <= total.disk_bytes);
        assert_eq!(total.dead_disk_bytes(), total.disk_bytes - total.live_disk_bytes);
        // Pages are what segments consist of, but for headers, directories and tails.
        let written = device.segment_bytes.load(Relaxed);
        let pages = total.flushed_bytes;
        assert!(pages <= written && pages > written / 2, "{pages} of {written}");
        let io = stats.io;
        let all = written + device.other_bytes.load(Relaxed);
        assert_eq!((io.writes, io.bytes_written), (device.writes.load(Relaxed), all));
        let read = (device.reads.load(Relaxed), device.bytes_read.load(Relaxed));
        assert_eq!((io.reads, io.bytes_read, io.errors), (read.0, read.1, 0));
        assert_eq!(io.syncs, device.syncs.load(Relaxed));

        if log {
            // A fifth of the keys goes: the same number of records in every segment, and too few to
            // rewrite one.
            let before = map.stats().unwrap();
            assert!(before.space_amplification().unwrap() < 1.01, "{before:?}");
            for key in (0..6000).step_by(5) {
                map.remove(&key).unwrap();
            }
            let after = map.stats().unwrap();
            let share = after.live_disk_bytes as f64 / before.live_disk_bytes as f64;
            assert!((0.77..0.83).contains(&share), "{share}: {after:?}");
            assert_eq!(after.live_keys, 4800);
        }
    }
}

#[test]
fn the_parts_of_the_budget_add_up() {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let store = open_on(device, tiny(), MIB).unwrap();
    let own = stats(&store).memory;
    let mut log: Map<u64, Vec<String>> = store.map("log").open().unwrap();
    let mut heap = store.map::<String, u64>("heap").layout(Heap::new()).open().unwrap();
    let mut timers = store.timers::<u64>("timers").unwrap();
    for n in 0..1000u64 {
        log.update(&n, Vec::new, |rows| rows.push("row ".repeat(n as usize % 9))).unwrap();
        heap.put(format!("key {n}"), n).unwrap();
        timers.set(n, Time(n.cast_signed())).unwrap();
    }
    let stats = stats(&store);
    let sum = |of: &dyn Fn(&alluvium::stats::AccountStats) -> u64| {
        of(&own) + stats.states.iter().map(|state| of(&state.memory)).sum::<u64>()
    };
    assert_eq!(sum(&|memory| memory.used), stats.memory.used);
    for kind in alluvium::stats::MEMORY_KINDS {
        assert_eq!(sum(&|memory| memory.used_for(kind)), stats.memory.used_for(kind), "{kind:?}");
    }
    assert_eq!(stats.memory.by_kind.iter().sum::<u64>(), stats.memory.used);
    assert!(stats.states.iter().all(|s| s.memory.peak >= s.memory.used && s.memory.used > 0));
    let told: Vec<_> = stats
        .states
        .iter()
        .map(|s| (s.name.as_str(), s.primitive.as_str(), s.layout.as_str(), s.table.live_keys))
        .collect();
    let expected = [
        ("log", "map", "hybrid-log", 1000),
        ("heap", "map", "heap", 1000),
        ("timers", "timers", "timers", 1000),
    ];
    assert_eq!(told, expected);
}

#[test]
fn statistics_are_read_back_and_printed() {
    let store = Store::in_memory().memory(MIB).layout(Heap::new()).open().unwrap();
    store.count::<u64>("clicks").open().unwrap().add(&1, 1).unwrap();
    let stats = stats(&store);
    let json = serde_json::to_string(&stats).unwrap();
    assert_eq!(serde_json::from_str::<StoreStats>(&json).unwrap(), stats);
    assert!(json.contains("\"index\":"), "{json}");
    let text = stats.to_string();
    for word in ["clicks", "heap", "total", "100.00%", "1.0MiB"] {
        assert!(text.contains(word), "{text}");
    }
}
