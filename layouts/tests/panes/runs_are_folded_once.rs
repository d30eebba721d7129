//! A fold looks at each part once, whatever their sizes, and at each key once, whatever fails.

use std::collections::BTreeMap;

use alluvium_layouts::{Cursor, Panes, Upkeep, WindowSegments};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{Error, ErrorKind, KIB, MIB, Time};

use super::common::{Items, Model, Place, fold, put};

type Plain = (u64, u64);

/// A small slice, a large one and a middling one, all written; and one in memory.
fn unequal_slices(panes: &mut impl Panes<u64, Plain>) -> Model {
    let mut model = Model::default();
    for (slice, keys) in [(0, 300), (1, 20_000), (2, 900), (3, 2)] {
        for key in 0..keys {
            put::<Plain>(panes, slice, key * 13, 1).unwrap();
            model.update(slice, key * 13, 1);
        }
        if slice < 3 {
            panes.reclaim(16 << 20).unwrap();
        }
    }
    model
}

#[test]
fn each_stored_byte_is_read_at_most_once() {
    let (mut place, device) = Place::simulated(8 * MIB, 3);
    let mut panes = place.open::<Plain, _>(&WindowSegments::new().image(16 * KIB));
    let model = unequal_slices(&mut panes);
    let stored = panes.stats();
    assert_eq!(stored.codec_calls, 300 + 20_000 + 900, "all but the last slice is stored");
    let before = device.stats();
    let (mut cursor, mut found, mut calls) = (Cursor::default(), BTreeMap::new(), 0u64);
    while !cursor.done {
        let visit = &mut |key: &u64, sum| {
            assert_eq!(found.insert(*key, sum), None);
            Ok(())
        };
        panes.fold(Time(0)..Time(4), &mut cursor, 100, visit).unwrap();
        // Later slices may be written to meanwhile.
        put::<Plain>(&mut panes, 10, calls % 50, 1).unwrap();
        calls += 1;
    }
    assert_eq!(found, model.fold::<Plain>(0..4));
    assert!(calls > 100, "{calls} calls");
    let (read, stats) = (device.stats().bytes_read - before.bytes_read, panes.stats());
    assert!(read <= stored.live_disk_bytes, "{read} of {} bytes", stored.live_disk_bytes);
    assert_eq!(stats.codec_calls - stored.codec_calls, 21_200, "each record is decoded once");
    assert_eq!(stats.cold_reads - stored.cold_reads, stored.pages_flushed);
}

#[test]
fn a_fold_goes_on_where_a_visit_failed() {
    for (limit, spilled) in [(8 * MIB, false), (8 * MIB, true)] {
        let (mut place, _) = Place::simulated(limit, 5);
        let mut panes = place.open::<Plain, _>(&WindowSegments::new());
        let mut model = Model::default();
        for key in 0..2000 {
            put::<Plain>(&mut panes, 0, key, 1).unwrap();
            model.update(0, key, 1);
        }
        if spilled {
            panes.reclaim(MIB).unwrap();
            put::<Plain>(&mut panes, 0, 17, 2).unwrap();
            model.update(0, 17, 2);
        }
        let (mut cursor, mut found, mut tries, mut failures) =
            (Cursor::default(), BTreeMap::new(), 0, 0);
        while !cursor.done {
            let visit = &mut |key: &u64, sum| {
                tries += 1;
                if tries % 7 == 0 {
                    return Err(Error::new(ErrorKind::Input, "planned"));
                }
                assert_eq!(found.insert(*key, sum), None, "key {key} comes twice");
                Ok(())
            };
            if panes.fold(Time(0)..Time(1), &mut cursor, 90, visit).is_err() {
                failures += 1;
            }
        }
        assert_eq!(found, model.fold::<Plain>(0..1));
        assert!(failures > 200, "{failures} failures");
    }
}

#[test]
fn what_is_in_memory_is_never_encoded_and_a_record_is_written_once() {
    let (mut place, device) = Place::simulated(8 * MIB, 5);
    let mut panes = place.open::<Items, _>(&WindowSegments::new());
    // A window of 30 slices, slid by one: each record goes to one slice.
    let mut visits = 0;
    for second in 0..60i64 {
        for key in 0..100 {
            put::<Items>(&mut panes, second, key, second as u32).unwrap();
        }
        assert!(panes.len() <= 3100);
        let found = fold::<Items>(&mut panes, second - 29..second + 1, 1000).unwrap();
        visits += found.values().map(Vec::len).sum::<usize>();
        panes.purge(Time(second - 29), 1000).unwrap();
    }
    assert_eq!(visits, (1..=30).sum::<usize>() * 100 + 30 * 30 * 100);
    let (stats, io) = (panes.stats(), device.stats());
    assert_eq!((stats.codec_calls, stats.flushed_bytes, stats.cold_reads), (0, 0, 0));
    assert_eq!((io.bytes_written, io.bytes_read), (0, 0));
}

/// Reads ahead until nothing more comes.
fn read_all_ahead(panes: &mut impl Panes<u64, Plain>, until: i64) {
    for _ in 0..500 {
        panes.prefetch(Time(until)).unwrap();
        panes.tick(1).unwrap();
    }
}

#[test]
fn what_was_read_ahead_is_not_read_again_and_counts_as_useful() {
    let (mut place, device) = Place::simulated(8 * MIB, 3);
    let mut panes = place.open::<Plain, _>(&WindowSegments::new().image(16 * KIB));
    let model = unequal_slices(&mut panes);
    read_all_ahead(&mut panes, 2);
    let before = (device.stats().bytes_read, panes.stats());
    for _ in 0..3 {
        assert_eq!(fold::<Plain>(&mut panes, 0..2, 500).unwrap(), model.fold::<Plain>(0..2));
    }
    let after = (device.stats().bytes_read, panes.stats());
    assert_eq!((after.0, after.1.cold_reads), (before.0, before.1.cold_reads));
    // One slice was read ahead and used, the other is read ahead in vain.
    read_all_ahead(&mut panes, 3);
    let used = place.account.used();
    panes.purge(Time(3), 100_000).unwrap();
    let stats = panes.stats();
    assert!(before.1.prefetched_bytes > MIB, "{stats:?}");
    let wasted = stats.prefetched_bytes - after.1.prefetched_bytes;
    assert!(wasted > 32 * KIB, "{stats:?}");
    assert_eq!(stats.prefetch_wasted_bytes, wasted);
    assert!(place.account.used() + after.1.prefetched_bytes <= used);
}

#[test]
fn a_slice_written_in_a_thousand_pieces_is_read_as_one() {
    let (mut place, device) = Place::simulated(512 * KIB, 3);
    let layout = WindowSegments::new().image(8 * KIB).runs_max(4);
    let mut panes = place.open::<Items, _>(&layout);
    let mut model = Model::default();
    for piece in 0..1000 {
        for n in 0..10 {
            let key = u64::from(piece * 7 + n) % 500;
            put::<Items>(&mut panes, 0, key, piece).unwrap();
            model.update(0, key, piece);
        }
        panes.reclaim(1 << 20).unwrap();
    }
    super::common::settle::<Items, _>(&mut panes, |_| place.segment_files().len() < 32);
    assert_eq!(fold::<Items>(&mut panes, 0..1, 64).unwrap(), model.fold::<Items>(0..1));
    // Each byte is written again once per level: log(1000) to the base of 4.
    let (written, stored) = (panes.stats().flushed_bytes, panes.stats().live_disk_bytes);
    println!("{written} bytes written, {stored} stored, {:?}", device.stats());
    assert_eq!(panes.get(Time(0), &7).unwrap(), model.get::<Items>(0, 7));
}
