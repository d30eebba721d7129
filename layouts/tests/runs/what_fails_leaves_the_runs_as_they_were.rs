//! A merge that fails, or that a crash ends, leaves the runs that it was to merge; one that has ended is whole.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium_layouts::runs_internals::{RecordView, RunInfo, RunSizes, RunWriter, verify};
use alluvium_pagestore::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium_pagestore::{ErrorKind, SegmentStore};

use crate::common::*;
use crate::dice::Dice;

struct Levels {
    device: Simulated,
    store: SegmentStore,
    records: Vec<Vec<Owned>>,
    runs: Vec<Vec<RunInfo>>,
}

fn levels(seed: u64) -> Levels {
    let mut dice = Dice(seed);
    let device = device(seed);
    let store = store(&device);
    let records: Vec<_> = (0..3).map(|_| level(&mut dice, 500, 600, 64, 0)).collect();
    let runs = records.iter().map(|one| write(&store, small(), one).unwrap()).collect();
    device.sync_directory().unwrap();
    Levels { device, store, records, runs }
}

fn all(store: &SegmentStore, runs: &[RunInfo]) -> Vec<Owned> {
    let mut found = Vec::new();
    for info in runs {
        verify(store, info).unwrap();
        let mut cursor =
            alluvium_layouts::runs_internals::SortedRunCursor::open(store.clone(), info, 4096)
                .unwrap();
        while let Some(record) = cursor.peek() {
            found.push(Owned::of(&record));
            cursor.advance().unwrap();
        }
    }
    found
}

fn check_sources(store: &SegmentStore, levels: &Levels) {
    for (records, runs) in levels.records.iter().zip(&levels.runs) {
        assert!(all(store, runs) == *records);
    }
}

#[test]
fn on_a_full_device_merging_stops_and_reading_goes_on() {
    let levels = levels(1);
    let used = levels.device.used_bytes();
    let mut full = 0;
    for more in (0..400).step_by(7) {
        levels.device.set_capacity_bytes(Some(used + more * 4096));
        match merge(&levels.store, small(), &levels.runs, true, 50_000) {
            Ok(merged) => {
                for info in merged {
                    levels.store.remove_file(&info.id.file_name()).unwrap();
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
                full += 1;
            }
        }
        assert_eq!(levels.device.used_bytes(), used, "nothing is left over");
    }
    assert!((5..55).contains(&full), "{full}");
    check_sources(&levels.store, &levels);
}

/// Merges while the nth call of a kind fails, and once more if that failed. Says whether it did.
fn fails_at(levels: &Levels, kind: u32, nth: u64, wanted: &[Owned]) -> bool {
    match kind {
        0 => levels.device.on_nth_read(nth, Fault::Error),
        1 => levels.device.on_nth_write(nth, Fault::Error),
        2 => levels.device.on_nth_sync(nth, Fault::Error),
        _ => levels.device.on_nth_directory_operation(nth, Fault::Error),
    }
    let merged = merge(&levels.store, small(), &levels.runs, true, 20_000);
    levels.device.forget_scripts();
    let has_failed = merged.is_err();
    let merged = merged.unwrap_or_else(|error| {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        merge(&levels.store, small(), &levels.runs, true, 20_000).unwrap()
    });
    assert!(all(&levels.store, &merged) == wanted, "call {nth} of kind {kind}");
    for info in merged {
        levels.store.remove_file(&info.id.file_name()).unwrap();
    }
    has_failed
}

#[test]
fn each_call_of_a_merge_fails_once() {
    let levels = levels(2);
    let wanted = expected(&levels.records, true);
    for kind in 0..4 {
        let failed = (1..).take_while(|nth| fails_at(&levels, kind, *nth, &wanted)).count();
        assert!(failed > 1, "calls of kind {kind}: {failed}");
    }
    check_sources(&levels.store, &levels);
}

/// Merges while the nth call of a kind fails, and goes on with the merge. Says whether a step failed.
fn goes_on_after(
    levels: &Levels,
    sizes: RunSizes,
    (kind, nth): (u32, u64),
    wanted: &[Owned],
) -> bool {
    match kind {
        0 => levels.device.on_nth_read(nth, Fault::Error),
        1 => levels.device.on_nth_write(nth, Fault::Error),
        _ => levels.device.on_nth_directory_operation(nth, Fault::Error),
    }
    // To begin a merge reads too: one that has not begun is not gone on with.
    let merged = merge_again(&levels.store, sizes, &levels.runs, true, 3_000);
    levels.device.forget_scripts();
    let Ok((merged, failed)) = merged else { return true };
    assert!(all(&levels.store, &merged) == wanted, "call {nth} of kind {kind}");
    for info in merged {
        levels.store.remove_file(&info.id.file_name()).unwrap();
    }
    failed > 0
}

#[test]
fn a_merge_goes_on_after_each_call_that_fails() {
    let levels = levels(2);
    let wanted = expected(&levels.records, true);
    for (kind, sizes) in (0..3).flat_map(|kind| [(kind, small()), (kind, twofold())]) {
        let fails = |nth: &u64| goes_on_after(&levels, sizes, (kind, *nth), &wanted);
        let failed = (1..).take_while(fails).count();
        assert!(failed > 1, "calls of kind {kind}: {failed}");
    }
    check_sources(&levels.store, &levels);
}

#[test]
fn a_merge_ends_where_each_tenth_call_fails() {
    let levels = levels(5);
    let wanted = expected(&levels.records, true);
    let faults =
        Faults { read_errors: 0.1, write_errors: 0.1, directory_errors: 0.1, ..Faults::none() };
    let mut failed = 0;
    for nth in 0..40 {
        levels.device.set_faults(faults);
        let (merged, times) = loop {
            let mut sizes = if nth % 2 == 0 { small() } else { twofold() };
            sizes.syncs = false;
            if let Ok(merged) = merge_again(&levels.store, sizes, &levels.runs, true, 3_000) {
                break merged;
            }
        };
        levels.device.set_faults(Faults::none());
        failed += times;
        assert!(all(&levels.store, &merged) == wanted);
        for info in merged {
            levels.store.remove_file(&info.id.file_name()).unwrap();
        }
    }
    assert!(failed > 40, "{failed}");
    check_sources(&levels.store, &levels);
}

#[test]
fn storage_that_lies_in_a_merge_is_found_when_the_run_is_verified_or_read() {
    let mut found = 0;
    for nth in 0..40 {
        let levels = levels(3);
        let mut dice = Dice(nth);
        let fault = match nth % 4 {
            0 => Fault::Lost,
            1 => Fault::Torn { bytes: 512 },
            2 => Fault::FlippedBit { bit: dice.next() },
            _ => Fault::Misdirected { offset: 4096 * dice.below(20) },
        };
        levels.device.on_nth_write(nth / 2, fault);
        let merged = merge(&levels.store, small(), &levels.runs, true, u64::MAX).unwrap();
        let is_good = merged.iter().all(|info| verify(&levels.store, info).is_ok());
        found += usize::from(!is_good);
        if is_good {
            assert!(all(&levels.store, &merged) == expected(&levels.records, true), "{nth}");
        }
    }
    assert!(found > 10, "{found}");
}

#[test]
fn a_crash_at_any_step_leaves_the_sources_and_each_run_that_was_told() {
    let crashes: usize = (4..9).map(crash_at_each_step).sum();
    assert!(crashes > 40, "{crashes}");
}

/// Merges, and looks at what a crash leaves at each step. Says how many steps there were.
fn crash_at_each_step(seed: u64) -> usize {
    let levels = levels(seed);
    let images = Arc::new(Mutex::new(Vec::new()));
    let kept = images.clone();
    let mut seed = seed;
    levels.device.watch(move |moment| {
        seed += 1;
        let policies = [
            CrashPolicy::Nothing,
            CrashPolicy::Everything,
            CrashPolicy::Prefix { seed },
            CrashPolicy::Subset { seed },
            CrashPolicy::Torn { seed },
        ];
        let policy = policies[seed as usize % 5];
        kept.lock().unwrap().push(moment.crash(policy));
    });
    let merged = merge(&levels.store, small(), &levels.runs, true, 30_000).unwrap();
    let images = std::mem::take(&mut *images.lock().unwrap());
    images.iter().for_each(|image| check_sources(&store(image), &levels));
    levels.device.sync_directory().unwrap();
    let after = levels.device.crash(CrashPolicy::Nothing);
    assert!(all(&store(&after), &merged) == expected(&levels.records, true));
    images.len()
}

#[test]
fn a_writer_that_is_abandoned_waits_for_its_write_no_longer_than_its_owner() {
    let device = device(1);
    let patient = store(&device).patient(Duration::from_millis(50));
    device.on_nth_write(1, Fault::Stuck);
    let mut writer = RunWriter::new(patient.clone(), STATE, twofold()).unwrap();
    // More than half of its buffer, and less than all.
    for hash in 0..600 {
        writer.push(RecordView { hash, mark: 0, order: &[], payload: &[7; 64] }).unwrap();
    }
    assert!(writer.open_bytes() > 0 && patient.left_bytes() == 0);
    writer.abandon().unwrap();
    assert_eq!(patient.left_bytes(), 48 << 10, "the device has the half that it was given");
    device.release_stuck();
    patient.wait_for_left().unwrap();
    assert_eq!(patient.left_bytes(), 0);
}
