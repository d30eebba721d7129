//! What slices took is given back when they are purged: memory, files, and in bounded steps.

use alluvium_layouts::{Heap, HybridLog, Panes, PanesLayout, Upkeep, WindowSegments};
use alluvium_pagestore::{ErrorKind, KIB, MIB, MemoryKind, Time};

use super::common::{Accumulator, Items, Model, Place, fold, purge, put, settle};

type Plain = (u64, u64);

/// Fills slices, purges them, and looks at what is left.
fn purge_gives_back<A: Accumulator, L: PanesLayout<u64, A>>(layout: &L, mut place: Place) {
    let mut panes = place.open::<A, L>(layout);
    let floor = place.account.used();
    for round in 0..2 {
        for item in 0..30_000u32 {
            let slice = i64::from(item / 5000);
            put::<A>(&mut panes, slice, u64::from(item * 7 % 4001), item).unwrap();
        }
        assert!(place.account.used() > floor && panes.len() > 0);
        purge::<A>(&mut panes, 6, 500);
        assert_eq!((panes.len(), panes.next_slice(Time::MIN)), (0, None), "round {round}");
        settle::<A, _>(&mut panes, |panes| {
            place.account.used() <= floor && panes.stats().disk_bytes == 0
        });
        assert_eq!(place.segment_files(), Vec::<String>::new());
    }
}

#[test]
fn purging_gives_memory_and_disk_back() {
    let tiny = WindowSegments::new().image(8 * KIB);
    let simulated = |kib| Place::simulated(kib * KIB, 1).0;
    purge_gives_back::<Plain, _>(&tiny, simulated(512));
    purge_gives_back::<Items, _>(&tiny, simulated(640));
    purge_gives_back::<Plain, _>(&tiny, simulated(16 << 10));
    let directory = tempfile::tempdir().unwrap();
    purge_gives_back::<Items, _>(&tiny, Place::real(640 * KIB, directory.path()));
}

#[test]
fn a_purge_does_as_much_as_its_fuel_says() {
    let entries = 200_000u64;
    let mut place = Place::in_memory(64 * MIB);
    let mut panes = place.open::<Plain, _>(&WindowSegments::new());
    (0..entries).for_each(|key| put::<Plain>(&mut panes, 0, key, 1).unwrap());
    let (fuel, mut calls, mut long, mut used) = (100, 0, 0, place.account.used());
    let entry_bytes = used / entries;
    loop {
        let done = panes.purge(Time(1), fuel).unwrap();
        assert_eq!((panes.len(), panes.next_slice(Time::MIN)), (0, None), "gone at once");
        let now = place.account.used();
        // A part that was begun is ended; the last of them gives the directory back, too.
        if used - now > (fuel as u64 + 2 * 112) * 2 * entry_bytes {
            assert!(used - now < 256 * KIB, "call {calls} gave {} bytes back", used - now);
            long += 1;
        }
        (used, calls) = (now, calls + 1);
        if done {
            break;
        }
    }
    assert!(calls > entries / 400 && long <= 1, "{calls} calls, {long} of them long");
}

#[test]
fn a_helper_thread_takes_a_purged_table_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut place = Place::real(64 * MIB, directory.path());
    let mut panes = place.open::<Items, _>(&WindowSegments::new());
    let floor = place.account.used();
    (0..50_000).for_each(|key| put::<Items>(&mut panes, 0, key, 1).unwrap());
    // The table, and the slice.
    assert!(!panes.purge(Time(1), 1).unwrap());
    assert!(panes.purge(Time(1), 1).unwrap());
    assert!(place.account.used() >= floor);
    settle::<Items, _>(&mut panes, |_| place.account.used() == floor);
}

#[test]
fn a_purged_slice_can_begin_anew_at_once() {
    fn begin_anew<L: PanesLayout<u64, Items>>(layout: &L, mut place: Place) {
        let mut panes = place.open::<Items, L>(layout);
        let mut model = Model::default();
        for round in 0..5 {
            for key in 0..3000 {
                put::<Items>(&mut panes, key as i64 % 3, key, round).unwrap();
                model.update(key as i64 % 3, key, round);
            }
            panes.purge(Time(2), 1).unwrap();
            model.purge(2);
            let found = fold::<Items>(&mut panes, 0..3, 100).unwrap();
            assert_eq!(found, model.fold::<Items>(0..3), "round {round}");
        }
    }
    begin_anew(&Heap::new(), Place::in_memory(16 * MIB));
    begin_anew(&HybridLog::new(), Place::in_memory(16 * MIB));
    begin_anew(&WindowSegments::new(), Place::in_memory(16 * MIB));
    begin_anew(&WindowSegments::new(), Place::simulated(256 * KIB, 7).0);
}

#[test]
fn memory_stays_within_its_limit_when_nobody_ticks() {
    for (kib, seed) in [(256, 1), (320, 2), (512, 3)] {
        let (mut place, _) = Place::simulated(kib * KIB, seed);
        let mut panes = place.open::<Items, _>(&WindowSegments::new().image(8 * KIB));
        let mut model = Model::default();
        for item in 0..20_000u32 {
            let (slice, key) = (i64::from(item / 4000), u64::from(item) * 31 % 1500);
            put::<Items>(&mut panes, slice, key, item).unwrap();
            model.update(slice, key, item);
            assert!(place.account.used() <= kib * KIB, "{:?}", place.account);
        }
        let stats = panes.stats();
        assert!(stats.stalls > 0 && stats.flushed_bytes > 0, "{stats:?}");
        for slice in 0..5 {
            let found = fold::<Items>(&mut panes, slice..slice + 1, 300).unwrap();
            assert_eq!(found, model.fold::<Items>(slice..slice + 1));
            assert!(place.account.used() <= kib * KIB, "{:?}", place.account);
        }
        // What is in flight is given back with the rest.
        drop(panes);
        assert_eq!(place.account.used(), 0);
    }
}

#[test]
fn without_storage_what_does_not_fit_is_refused_by_name_and_the_rest_stays() {
    let mut place = Place::in_memory(128 * KIB);
    let mut panes = place.open::<Plain, _>(&WindowSegments::new());
    let mut key = 0;
    let error = loop {
        match put::<Plain>(&mut panes, (key % 3) as i64, key, 1) {
            Ok(()) => key += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert_eq!(error.context("state"), Some("panes"));
    assert!(key > 500, "{key} keys");
    assert_eq!(panes.len(), key);
    assert_eq!(fold::<Plain>(&mut panes, 0..3, 50).unwrap().len() as u64, key);
    purge::<Plain>(&mut panes, 1, 100);
    put::<Plain>(&mut panes, 1, 7777, 1).unwrap();
}

#[test]
fn too_little_memory_to_open_names_the_number() {
    let (mut place, _) = Place::simulated(48 * KIB, 1);
    let error = match place.try_open::<Plain, _>(&WindowSegments::new()) {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("bytes to open, 49152 are free"), "{error}");
}

#[test]
fn reclaiming_gives_up_memory_by_writing_slices() {
    let (mut place, _) = Place::simulated(4 * MIB, 1);
    let mut panes = place.open::<Plain, _>(&WindowSegments::new());
    let mut model = Model::default();
    for item in 0..40_000 {
        let (slice, key) = (i64::from(item % 4), u64::from(item / 4));
        put::<Plain>(&mut panes, slice, key, item).unwrap();
        model.update(slice, key, item);
    }
    let before = place.account.used_for(MemoryKind::Index);
    let given = panes.reclaim(before / 2).unwrap();
    assert!(given >= before / 2, "{given} of {before} bytes");
    assert_eq!(fold::<Plain>(&mut panes, 0..4, 1000).unwrap(), model.fold::<Plain>(0..4));
}

#[test]
fn purged_slices_that_wait_to_be_given_back_are_not_seen_and_can_begin_anew() {
    for kib in [1536, 16 << 10] {
        let (mut place, _) = Place::simulated(kib * KIB, 5);
        let mut panes = place.open::<Items, _>(&WindowSegments::new().image(8 * KIB));
        let mut model = Model::default();
        let floor = place.account.used();
        for round in 0..4u32 {
            for item in 0..9000u32 {
                let (slice, key) = (i64::from(item % 300), u64::from(item / 300));
                put::<Items>(&mut panes, slice, key, item + round).unwrap();
                model.update(slice, key, item + round);
            }
            let before = 250 + i64::from(round);
            let used = place.account.used();
            assert!(!panes.purge(Time(before), 10).unwrap());
            assert!(place.account.used() > floor + (used - floor) / 4, "little by little");
            model.purge(before);
            assert_eq!(panes.next_slice(Time::MIN), Some(Time(before)));
            assert_eq!(panes.get(Time(before - 1), &3).unwrap(), None);
            put::<Items>(&mut panes, before - 1, 3, 77).unwrap();
            model.update(before - 1, 3, 77);
            if round == 1 {
                place.checkpoint::<Items>(&mut panes).unwrap();
                drop(panes);
                assert_eq!(place.account.used(), 0);
                panes = place.open(&WindowSegments::new().image(8 * KIB));
            }
            let found = fold::<Items>(&mut panes, i64::MIN..i64::MAX, 500).unwrap();
            assert_eq!(found, model.fold::<Items>(i64::MIN..i64::MAX), "round {round}");
        }
        purge::<Items>(&mut panes, 300, 50);
        assert_eq!((panes.len(), panes.next_slice(Time::MIN)), (0, None));
        settle::<Items, _>(&mut panes, |_| place.account.used() <= floor + (32 << 10));
        drop(panes);
        assert_eq!(place.account.used(), 0);
    }
}
