//! Storage that fails: errors that say what failed, nothing wrong, nothing lost.

use alluvium_layouts::{Panes, Upkeep, WindowSegments};
use alluvium_pagestore::io::{Fault, Faults};
use alluvium_pagestore::{ErrorKind, KIB, MIB, Time};

use super::common::{Items, Model, Place, Random, fold, put};

fn layout() -> WindowSegments {
    WindowSegments::new().image(8 * KIB).runs_max(3)
}

#[test]
fn a_full_disk_is_told_and_when_there_is_room_everything_goes_on() {
    for seed in 0..4 {
        let (mut place, device) = Place::simulated(256 * KIB, seed);
        let mut panes = place.open::<Items, _>(&layout());
        device.set_capacity_bytes(Some(200 * KIB));
        let (mut model, mut random) = (Model::default(), Random(seed << 32));
        let (mut refused, mut item) = (0, 0);
        while item < 20_000 {
            item += 1;
            let (slice, key) = (random.below(4) as i64, random.below(1200));
            match put::<Items>(&mut panes, slice, key, item) {
                Ok(()) => model.update(slice, key, item),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
                    assert_eq!(error.context("state"), Some("panes"), "{error:?}");
                    refused += 1;
                    if refused == 5 {
                        // Nothing is lost while the disk is full.
                        for key in 0..1200 {
                            let found = panes.get(Time(1), &key).unwrap();
                            assert_eq!(found, model.get::<Items>(1, key));
                        }
                    }
                    if refused == 20 {
                        device.set_capacity_bytes(None);
                    }
                }
            }
            assert!(place.account.used() <= 256 * KIB);
        }
        assert_eq!(refused, 20, "the device was full, and then it was not");
        let found = fold::<Items>(&mut panes, 0..4, 100).unwrap();
        assert_eq!(found, model.fold::<Items>(0..4));
        assert!(place.checkpoint::<Items>(&mut panes).unwrap().segments().next().is_some());
    }
}

#[test]
fn writes_that_fail_leave_everything_as_it_was() {
    for fault in [Fault::Error, Fault::Torn { bytes: 512 }] {
        for nth in 1..40 {
            let (mut place, device) = Place::simulated(256 * KIB, nth);
            let mut panes = place.open::<Items, _>(&layout());
            let mut model = Model::default();
            device.on_nth_write(nth, fault);
            let mut failed = 0;
            for item in 0..4000 {
                let (slice, key) = (i64::from(item % 3), u64::from(item) * 17 % 900);
                if put::<Items>(&mut panes, slice, key, item).is_ok() {
                    model.update(slice, key, item);
                } else {
                    failed += 1;
                }
            }
            assert!(failed <= 1, "{failed} calls failed");
            match fold::<Items>(&mut panes, 0..3, 100) {
                Ok(found) => assert_eq!(found, model.fold::<Items>(0..3)),
                // What the device tore and said it had written.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}

#[test]
fn a_read_that_fails_is_told_and_the_next_one_goes_on() {
    let (mut place, device) = Place::simulated(8 * MIB, 1);
    let mut panes = place.open::<Items, _>(&layout());
    let mut model = Model::default();
    for item in 0..4000 {
        put::<Items>(&mut panes, 0, u64::from(item % 1000), item).unwrap();
        model.update(0, u64::from(item % 1000), item);
    }
    panes.reclaim(16 * MIB).unwrap();
    for nth in 1..6 {
        // What was read ahead is forgotten.
        panes.reclaim(16 * MIB).unwrap();
        device.on_nth_read(nth, Fault::Error);
        let error = fold::<Items>(&mut panes, 0..1, 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(fold::<Items>(&mut panes, 0..1, 100).unwrap(), model.fold::<Items>(0..1));
        device.on_nth_read(1, Fault::Error);
        assert_eq!(panes.get(Time(0), &5).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(panes.get(Time(0), &5).unwrap(), model.get::<Items>(0, 5));
        // One that was read ahead is read again when it is needed.
        device.on_nth_read(1, Fault::Error);
        panes.prefetch(Time(9)).unwrap();
        for _ in 0..50 {
            panes.tick(1).unwrap();
        }
        assert_eq!(fold::<Items>(&mut panes, 0..1, 100).unwrap(), model.fold::<Items>(0..1));
    }
}

/// Flips a bit in every place of the stored runs, one at a time.
#[test]
fn damaged_runs_are_never_served() {
    let (mut place, device) = Place::simulated(8 * MIB, 1);
    let mut panes = place.open::<Items, _>(&layout());
    let mut model = Model::default();
    for item in 0..600 {
        put::<Items>(&mut panes, 0, u64::from(item % 300), item).unwrap();
        model.update(0, u64::from(item % 300), item);
    }
    panes.reclaim(16 * MIB).unwrap();
    let name = place.segment_files()[0].clone();
    let bytes = device.bytes(&name).unwrap().len() as u64;
    let (mut damaged, mut unharmed) = (0, 0);
    for offset in (4096..bytes).step_by(37) {
        let bit = (offset % 8) as u32;
        device.corrupt(&name, offset, bit).unwrap();
        match fold::<Items>(&mut panes, 0..1, 1000) {
            // The zeros between records, and what only opening reads.
            Ok(found) => {
                assert_eq!(found, model.fold::<Items>(0..1));
                unharmed += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert_eq!(error.context("file"), Some(&name[..]), "{error:?}");
                assert!(error.context("offset").is_some(), "{error:?}");
                damaged += 1;
            }
        }
        device.corrupt(&name, offset, bit).unwrap();
    }
    println!("{damaged} told, {unharmed} of no effect");
    assert!(damaged > unharmed);
    assert_eq!(fold::<Items>(&mut panes, 0..1, 1000).unwrap(), model.fold::<Items>(0..1));
}

#[test]
fn damaged_checkpoints_are_refused_when_they_are_opened_or_read() {
    let (mut place, device) = Place::simulated(8 * MIB, 1);
    let mut panes = place.open::<Items, _>(&layout());
    let mut model = Model::default();
    for item in 0..900 {
        put::<Items>(&mut panes, 0, u64::from(item % 300), item).unwrap();
        model.update(0, u64::from(item % 300), item);
        if item == 600 {
            panes.reclaim(16 * MIB).unwrap();
        }
    }
    panes.remove(Time(0), &7).unwrap();
    model.0.remove(&(0, 7));
    place.checkpoint::<Items>(&mut panes).unwrap();
    drop(panes);
    let mut told = 0;
    for name in place.segment_files() {
        let bytes = device.bytes(&name).unwrap().len() as u64;
        for offset in (0..bytes).step_by(211) {
            device.corrupt(&name, offset, 3).unwrap();
            let found = place
                .try_open::<Items, _>(&layout())
                .and_then(|mut panes| fold::<Items>(&mut panes, 0..1, 1000));
            match found {
                Ok(found) => assert_eq!(found, model.fold::<Items>(0..1)),
                Err(error) => {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    told += 1;
                }
            }
            assert_eq!(place.account.used(), 0, "what failed gives everything back");
            device.corrupt(&name, offset, 3).unwrap();
        }
    }
    assert!(told > 20, "{told}");
    // The catalog comes last, what is in memory before it, runs first.
    for name in place.segment_files() {
        let bytes = device.bytes(&name).unwrap();
        device.truncate(&name, 8192).unwrap();
        let cut = place
            .try_open::<Items, _>(&layout())
            .and_then(|mut panes| fold::<Items>(&mut panes, 0..1, 1000));
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
        device.place(&name, &bytes);
    }
}

#[test]
fn a_device_that_errs_now_and_then_makes_nothing_wrong() {
    for seed in 0..6 {
        let faults = Faults {
            latency_max: 5,
            write_errors: 0.02,
            read_errors: 0.02,
            sync_errors: 0.02,
            ..Faults::none()
        };
        let (mut place, device) = Place::simulated(384 * KIB, seed);
        let mut panes = place.open::<Items, _>(&layout());
        device.set_faults(faults);
        let (mut model, mut random, mut errors) = (Model::default(), Random(seed << 40), 0);
        for item in 0..8000 {
            let (slice, key) = (random.below(5) as i64, random.below(600));
            if item % 500 == 0 {
                panes.prefetch(Time(5)).unwrap();
                match fold::<Items>(&mut panes, 0..5, 200) {
                    Ok(found) => assert_eq!(found, model.fold::<Items>(0..5)),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        errors += 1;
                    }
                }
            }
            match put::<Items>(&mut panes, slice, key, item) {
                Ok(()) => model.update(slice, key, item),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    errors += 1;
                }
            }
            assert!(place.account.used() <= 384 * KIB);
        }
        assert!(errors > 0, "nothing was tried");
        device.set_faults(Faults::none());
        let found = fold::<Items>(&mut panes, 0..5, 200).unwrap();
        assert_eq!(found, model.fold::<Items>(0..5));
    }
}
