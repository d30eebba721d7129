//! However many checkpoints are taken, the files stay few and the bytes a key stay what they are.
//!
//! What this catches: a checkpoint of a few keys that leaves a small segment for ever, so that files
//! and their padding add up.

use std::sync::Arc;
use std::time::Duration;

use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, IoOptions, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, AppendLog, Counting, Heap, HybridLog, MIB, Store, Time, WindowSegments, Windows,
};

/// New keys between two checkpoints.
const NEW: u64 = 50;

fn store(device: &Simulated, memory: u64) -> Store {
    Store::in_memory()
        .memory(memory)
        .retain(1)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap()
}

fn number(variable: &str, usual: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(usual, |number| number.parse().expect("a number"))
}

fn checkpoints() -> u64 {
    number("ALLUVIUM_CHECKPOINTS", 1000)
}

/// Takes a checkpoint at once, or in steps with ticks between them.
fn checkpoint(store: &Store, at: u64, in_steps: bool) {
    if !in_steps {
        store.checkpoint(at).unwrap();
        return;
    }
    let mut seal = store.seal(at).unwrap();
    while !seal.advance().unwrap() {
        store.tick(256).unwrap();
    }
    seal.confirm().unwrap();
    store.tick(8192).unwrap();
}

/// Adds keys and takes checkpoints; the files that there were at most are few.
fn run(device: &Simulated, store: &Store, in_steps: bool, mut add: impl FnMut(u64)) {
    let mut most = 0;
    for round in 0..checkpoints() {
        (round * NEW..(round + 1) * NEW).for_each(&mut add);
        checkpoint(store, round, in_steps);
        most = most.max(device.list().unwrap().len());
    }
    let (keys, files) = (checkpoints() * NEW, device.list().unwrap().len());
    let [held, written] = [device.used_bytes(), device.stats().bytes_written].map(|b| b / keys);
    let state = &store.stats().unwrap().states[0];
    println!(
        "{} {}: {files} files, {most} at most; {held} bytes a key, {written} written",
        state.primitive, state.layout
    );
    assert!(most <= 200, "{most} files");
}

/// Time that this thread was on a processor, whatever else the machine did; 0 if the system does not tell.
fn processor_time() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// A map of plain records; those on storage take 34 bytes, as `sizing.md` says. Gives how many were in sorted runs.
fn maps(layout: AnyLayout, memory: u64, in_steps: bool) -> u64 {
    let device = Simulated::new(1, Faults::none());
    let at = store(&device, memory);
    let mut map = at.map::<u64, u64>("m").layout(layout.clone()).open().unwrap();
    run(&device, &at, in_steps, |key| assert!(!map.put(key, key).unwrap()));
    let in_runs = map.stats().unwrap().runs.keys;
    // A log of 1 MiB with runs has some segments whose records have all moved.
    let moved = if in_runs > 0 { MIB / 2 } else { 0 };
    let bytes = device.used_bytes().saturating_sub(moved) / (checkpoints() * NEW);
    assert!(bytes <= 2 * 34, "{bytes} bytes a key");
    drop((map, at));
    let start = (std::time::Instant::now(), processor_time());
    let at = store(&device, memory);
    let mut map = at.map::<u64, u64>("m").layout(layout).open().unwrap();
    let took = (start.0.elapsed(), processor_time().saturating_sub(start.1));
    println!("opened in {:?}, {:?} of them on a processor", took.0, took.1);
    for key in 0..checkpoints() * NEW {
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&key));
    }
    in_runs
}

#[test]
fn of_a_hybrid_log_in_memory() {
    maps(HybridLog::new().into(), 64 * MIB, false);
    maps(HybridLog::new().into(), 64 * MIB, true);
}

/// Memory stays as it is, however many keys there are: most of them are in sorted runs, whose files checkpoints name.
#[test]
fn of_a_hybrid_log_with_sorted_runs() {
    for in_steps in [false, true] {
        let layout = HybridLog::new().cold_runs(true);
        let cold = maps(layout.into(), MIB, in_steps);
        let keys = checkpoints() * NEW;
        // What an index entry of 11 bytes at least is there for.
        assert!(cold + MIB / 2 / 11 > keys && cold > 0, "{cold} of {keys} keys are in runs");
    }
}

/// The segments to be merged are on storage, and each checkpoint interrupts that.
#[test]
fn of_a_hybrid_log_on_storage() {
    let memory = 2 * MIB * checkpoints().div_ceil(1000);
    maps(HybridLog::new().into(), memory, false);
    maps(HybridLog::new().into(), memory, true);
}

#[test]
fn of_a_map_on_the_heap() {
    maps(Heap::new().into(), 64 * MIB, false);
}

#[test]
fn of_lists() {
    for layout in [AnyLayout::from(AppendLog::new()), Heap::new().into()] {
        let device = Simulated::new(1, Faults::none());
        let at = store(&device, 64 * MIB);
        let mut lists = at.list::<u64, u64>("l").layout(layout.clone()).open().unwrap();
        run(&device, &at, false, |key| lists.append(&key, key).unwrap());
    }
}

/// A list is cleared of which most is on storage if its layout spills, or lists one after the other: it is dead
/// at once, and its bytes go after some checkpoints. `ALLUVIUM_CLEARED_MB` is how much that is, 25 unless it is set.
fn cleared(layout: &AnyLayout, memory: u64, keys: u64) {
    let device = Simulated::new(1, Faults::none());
    let open = || {
        let at = store(&device, memory);
        let lists = at.list::<u64, [u64; 8]>("l").layout(layout.clone()).open().unwrap();
        (at, lists)
    };
    let (mut at, mut lists) = open();
    let full_min = number("ALLUVIUM_CLEARED_MB", 25) * 1_000_000;
    for n in 0..full_min / size_of::<[u64; 8]>() as u64 {
        lists.append(&(n % keys), [n; 8]).unwrap();
    }
    lists.append(&100, [7; 8]).unwrap();
    at.checkpoint(0).unwrap();
    let full = device.used_bytes();
    assert!(full > full_min, "{full} bytes");
    for key in 0..keys {
        lists.clear(&key).unwrap();
    }
    let live = lists.stats().unwrap().live_disk_bytes;
    assert!(live < full / 10, "{layout:?}: {live} of {full} bytes are said to be live");
    for round in 1..8 {
        if round == 2 {
            // Whoever opens it knows too what is cut off.
            drop((lists, at));
            (at, lists) = open();
        }
        lists.append(&100, [7; 8]).unwrap();
        at.checkpoint(round).unwrap();
        while at.tick(1000).unwrap() > 0 {}
    }
    let left = device.used_bytes();
    println!("{keys} lists of {full} bytes: {live} live when cleared, {left} left");
    assert!(left < full / 10, "{layout:?}: {left} of {full} bytes are left");
    let (of_100, of_0) = (lists.to_vec(&100).unwrap(), lists.to_vec(&0).unwrap());
    assert_eq!((of_100, of_0), (vec![[7; 8]; 8], vec![]));
}

#[test]
fn what_is_cleared_is_dead() {
    for keys in [1, 8] {
        cleared(&AppendLog::new().into(), 4 * MIB, keys);
    }
}

#[test]
fn what_is_cleared_on_the_heap_is_dead() {
    cleared(&Heap::new().into(), 128 * MIB, 8);
}

/// Descriptors of an engine, and of what other tests open for a moment.
const OTHERS: usize = 24;

/// A store in a directory has far more files than it may have open.
#[test]
#[cfg(target_os = "linux")]
fn a_store_works_with_few_descriptors() {
    let place = tempfile::tempdir().unwrap();
    let most = 4;
    let open = || {
        let io = IoOptions { open_files_max: Some(most), ..IoOptions::default() };
        let at = Store::builder(place.path()).memory(4 * MIB).retain(40).io(io).open().unwrap();
        let layout = HybridLog::new().memory(MIB);
        let map = at.map::<u64, [u64; 4]>("m").layout(layout).open().unwrap();
        let layout = AppendLog::new().memory(256 << 10);
        let lists = at.list::<u64, u64>("l").layout(layout).open().unwrap();
        (at, map, lists)
    };
    let open_now = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_now();
    let bound = before + most + OTHERS;
    let (mut at, mut map, mut lists) = open();
    let (rounds, mut files) = (120, 0);
    for round in 0..rounds {
        for key in round * NEW..(round + 1) * NEW {
            assert!(!map.put(key, [key; 4]).unwrap());
            lists.append(&(key % 100), key).unwrap();
        }
        at.checkpoint(round).unwrap();
        assert!(open_now() <= bound, "{} of {before}, round {round}", open_now());
        files = files.max(std::fs::read_dir(place.path()).unwrap().count());
        if round == rounds / 2 {
            drop((map, lists, at));
            (at, map, lists) = open();
        }
    }
    assert!(files > 3 * (most + OTHERS), "{files} files are few");
    drop((map, lists, at));
    let (_at, mut map, mut lists) = open();
    for key in 0..rounds * NEW {
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&[key; 4]));
    }
    for key in 0..100 {
        let expected: Vec<_> = (key..rounds * NEW).step_by(100).collect();
        assert_eq!(lists.to_vec(&key).unwrap(), expected, "{key}");
    }
    assert!(open_now() <= bound, "{} of {before}", open_now());
}

#[test]
fn of_timers() {
    let device = Simulated::new(1, Faults::none());
    let at = store(&device, 64 * MIB);
    let mut timers = at.timers::<u64>("t").unwrap();
    run(&device, &at, false, |key| assert!(timers.set(key, Time(key as i64)).unwrap()));
}

#[test]
fn of_windows() {
    let device = Simulated::new(1, Faults::none());
    let at = store(&device, 64 * MIB);
    let windows = at.aggregated::<u64, (), _>("w").layout(WindowSegments::new());
    let mut windows = windows.open(Windows::tumbling(nanos(1 << 40)), Counting).unwrap();
    run(&device, &at, false, |key| {
        let mut batch = vec![(key, Time(1), ())];
        windows.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    });
}
