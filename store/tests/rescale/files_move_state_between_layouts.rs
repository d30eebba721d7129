//! A canonical file has the contents and nothing else: equal states give equal bytes, whatever they
//! are kept in, went through or have as memory; what is imported is what was exported.

use alluvium::time::nanos;
use alluvium::{
    AnyLayout, Counting, ErrorKind, Heap, HybridLog, KIB, MIB, Map, SECOND, Store, Time,
    WindowSegments, Windows,
};

use crate::dice::Dice;
use crate::job::{Job, Model, builder, layouts};

fn export(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.export(&mut bytes).unwrap();
    bytes
}

fn exports(job: &Job) -> Vec<Vec<u8>> {
    job.workers.iter().map(|worker| export(&worker.store)).collect()
}

fn lived(job: &mut Job, seed: u64) -> Model {
    let (mut model, mut dice) = (Model::default(), Dice(seed));
    for _ in 0..3 {
        job.change(&mut model, &mut dice, 500);
        job.stream(&mut dice, 80);
    }
    model
}

#[test]
fn the_same_history_gives_the_same_bytes_in_all_layouts() {
    let mut first: Option<Vec<Vec<u8>>> = None;
    for (name, layout) in layouts() {
        let mut job = Job::new(2, &layout);
        lived(&mut job, 5);
        let bytes = exports(&job);
        assert!(bytes.iter().all(|bytes| bytes.len() > 20_000), "{name}");
        // Neither a checkpoint nor an export changes anything.
        job.workers[0].store.checkpoint(1).unwrap();
        assert!(exports(&job) == bytes, "{name}: again");
        assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "{name}");
    }
}

#[test]
fn two_to_three_to_two_gives_the_same_bytes() {
    for (name, layout) in layouts() {
        let mut job = Job::new(2, &layout);
        lived(&mut job, 7);
        let before = exports(&job);
        let job = job.rescaled(3, &Heap::new().into()).rescaled(2, &layout);
        assert!(exports(&job) == before, "{name}");
    }
}

#[test]
fn what_is_imported_is_what_was_exported() {
    let layouts = layouts();
    for (n, (name, from)) in layouts.iter().enumerate() {
        let into = &layouts[(n + 1) % layouts.len()].1;
        let mut job = Job::new(1, from);
        let model = lived(&mut job, 11);
        let bytes = export(&job.workers[0].store);
        let mut other = Job::new(3, into);
        let mut taken = 0;
        for worker in &other.workers {
            let imported = worker.store.import(&bytes[..]).unwrap();
            taken += imported.taken;
            assert!(imported.passed_over > 0, "{name}");
        }
        assert!(taken > 1000);
        assert_eq!(other.read(), model.in_order(), "{name}");
        // Several files into one store.
        let parts = exports(&other);
        let whole = Job::new(1, from);
        for part in &parts {
            whole.workers[0].store.import(&part[..]).unwrap();
        }
        assert!(export(&whole.workers[0].store) == bytes, "{name}");
    }
}

fn large(layout: impl Into<AnyLayout>, memory: u64) -> (Store, Map<u64, Vec<u8>>) {
    let device = alluvium::io::Simulated::new(1, alluvium::io::Faults::none());
    let store =
        builder(&layout.into()).memory(memory).device(std::sync::Arc::new(device)).open().unwrap();
    let mut map = store.map("large").open().unwrap();
    let mut dice = Dice(3);
    for key in 0..3000u64 {
        let value = vec![key as u8; dice.below(if key == 77 { 4000 } else { 2500 }) as usize];
        map.put(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), value).unwrap();
    }
    (store, map)
}

#[test]
fn what_stands_in_order_is_exported_in_parts_with_the_same_bytes() {
    fn filled<L: alluvium::Layout<String, Vec<u8>>>(memory: u64, layout: L) -> (Vec<u8>, u64) {
        let device = alluvium::io::Simulated::new(1, alluvium::io::Faults::none());
        let device = std::sync::Arc::new(device);
        let store = Store::in_memory().memory(memory).device(device).open().unwrap();
        let mut map = store.map::<String, Vec<u8>>("m").layout(layout).open().unwrap();
        let mut dice = Dice(9);
        for key in 0..6000u64 {
            // A few that are more than all memory for a part.
            let longest = if key % 1000 == 7 { 150_000 } else { 200 };
            let value = vec![key as u8; dice.below(longest) as usize];
            map.put(format!("{key} {}", "x".repeat(key as usize % 30)), value).unwrap();
        }
        let before = store.stats().unwrap().io.bytes_written;
        let bytes = export(&store);
        let stats = store.stats().unwrap();
        assert!(stats.memory.peak <= stats.memory.limit, "{:?}", stats.memory);
        (bytes, stats.io.bytes_written - before)
    }
    let (sorted, _) = filled(64 * MIB, Heap::new());
    let (log, written) = filled(64 * MIB, HybridLog::new());
    assert!(log == sorted);
    // Nothing was collected in files, but for the entries that are longer than a part.
    assert!(written < 4 << 20, "{written} of {}", sorted.len());
    let (small, _) = filled(9 * MIB, HybridLog::new());
    assert!(small == sorted);
}

#[test]
fn windows_in_memory_are_exported_in_parts_with_the_same_bytes() {
    fn filled(memory: u64, layout: impl Into<AnyLayout>, slices: i64) -> (Vec<u8>, u64, u64) {
        let device = alluvium::io::Simulated::new(1, alluvium::io::Faults::none());
        let device = std::sync::Arc::new(device);
        let store = Store::in_memory().memory(memory).device(device).layout(layout.into());
        let store = store.open().unwrap();
        let windows = store.aggregated::<String, u64, _>("w");
        let mut windows = windows.open(Windows::tumbling(nanos(SECOND)), Counting).unwrap();
        let mut dice = Dice(9);
        for event in 0..60_000u64 {
            let time = Time(dice.below(slices as u64) as i64 * SECOND);
            let key = format!("{} {}", dice.below(20_000), "x".repeat(event as usize % 3));
            let mut batch = vec![(key, time, event)];
            windows.add_batch(Time(0), &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
        }
        let before = store.stats().unwrap().io;
        let bytes = export(&store);
        assert!(export(&store) == bytes, "an export changes nothing");
        let stats = store.stats().unwrap();
        assert!(stats.memory.peak <= stats.memory.limit, "{:?}", stats.memory);
        let io = stats.io.since(&before);
        (bytes, io.bytes_read, io.bytes_written)
    }
    for slices in [1, 5, 60] {
        let (heap, _, written) = filled(32 * MIB, Heap::new(), slices);
        assert!(heap.len() > MIB as usize);
        assert!(slices > 32 || written == 0, "{written} bytes were written for parts");
        let (segments, _, written) = filled(32 * MIB, WindowSegments::new(), slices);
        assert!(segments == heap, "{slices} slices");
        assert!(slices > 32 || written == 0, "{written} bytes were written for parts");
        let (log, ..) = filled(32 * MIB, HybridLog::new(), slices);
        assert!(log == heap, "{slices} slices in a hybrid log");
        // What is on storage is sorted as a whole.
        let (spilled, read, written) = filled(1536 * KIB, WindowSegments::new(), slices);
        assert!(spilled == heap, "{slices} slices on storage");
        assert!(read > 0 && written > 0, "nothing was on storage");
    }
}

#[test]
fn state_larger_than_memory_is_sorted_through_files_that_are_gone_afterwards() {
    let (all, _map) = large(Heap::new(), 64 * MIB);
    let bytes = export(&all);
    assert!(bytes.len() > 3 << 20);
    let layout = HybridLog::new().page_records(8).queue_depth(4).segment(64 * KIB);
    let (small, _small_map) = large(layout, 768 * KIB);
    let before = small.stats().unwrap();
    let mut sorted = Vec::new();
    small.export(&mut sorted).unwrap();
    assert!(sorted == bytes);
    let after = small.stats().unwrap();
    assert!(after.memory.peak <= after.memory.limit, "{:?}", after.memory);
    assert!(after.memory.used <= before.memory.limit);
    // What was sorted through files was written to the device.
    assert!(after.io.bytes_written - before.io.bytes_written > 3 << 20);
    let store = Store::in_memory().memory(64 * MIB).layout(Heap::new()).open().unwrap();
    let map = store.map::<u64, Vec<u8>>("large").open().unwrap();
    assert_eq!(store.import(&sorted[..]).unwrap().taken, 3000);
    assert_eq!(map.len().unwrap(), 3000);
}

#[test]
fn a_file_that_is_damaged_or_of_other_states_is_refused() {
    let fresh = || {
        let store = Store::in_memory().layout(Heap::new()).open().unwrap();
        let map = store.map::<u64, u32>("map").open().unwrap();
        (store, map)
    };
    let (store, mut map) = fresh();
    for key in 0..20u64 {
        map.put(key, key as u32 * 7).unwrap();
    }
    let mut bytes = Vec::new();
    let exported = store.export(&mut bytes).unwrap();
    assert_eq!((exported.states, exported.entries), (1, 20));
    for at in 0..bytes.len() {
        for bit in [1u8, 128] {
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            let (store, mut map) = fresh();
            let error = store.import(&damaged[..]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
            map.for_each(|key, value| {
                assert_eq!(*value, *key as u32 * 7);
                Ok(())
            })
            .unwrap();
        }
        let error = fresh().0.import(&bytes[..at]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io), "{at}: {error}");
    }
    let none = Store::in_memory().open().unwrap();
    let error = none.import(&bytes[..]).unwrap_err();
    assert_eq!((error.kind(), error.context("state")), (ErrorKind::UnknownState, Some("map")));
    let other = Store::in_memory().open().unwrap();
    let _map = other.map::<u64, String>("map").open().unwrap();
    let error = other.import(&bytes[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.message().contains("u32") && error.message().contains("String"), "{error}");
}
