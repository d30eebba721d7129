//! Windows go on as what they were stored as, or as what keeps their answers right; anything else is
//! refused, naming both: at opening, restoring, import and moving alike. So are time-ordered maps of
//! another width, and windows and maps in a layout that does not read what is stored.
//!
//! What this catches: state of one kind of windows read as another; results that are lost, doubled or
//! not taken back when the way to emit changes; a directory of before that opens no more.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::{KeyGroup, Source};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AnyLayout, AppendLog, Counting, Elements, Emit, Error, ErrorKind, Heap, HybridLog,
    KIB, KeyHash, MIB, Result, Store, Time, Window, WindowSegments, Windows, process,
};
use alluvium_pagestore::{CheckpointImage, Manifest};

use crate::dice::Dice;

const GROUPS: u16 = 8;

type Counts = Aggregated<u64, (), Counting>;

fn on(device: &Simulated) -> alluvium::StoreBuilder {
    let store = Store::in_memory().memory(8 * MIB).max_value(4 * KIB).key_groups(GROUPS);
    store.helpers(Helpers::Inline).device(Arc::new(device.clone()))
}

fn device() -> Simulated {
    Simulated::new(1, Faults::none())
}

fn add(counts: &mut Counts, sent: i64, at: &[i64]) {
    let mut batch: Vec<_> = at.iter().map(|at| (1, Time(*at), ())).collect();
    counts.add_batch(Time(sent), &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
}

/// Results so far, added up.
type Sums = BTreeMap<(i64, i64), i64>;

fn advance(counts: &mut Counts, to: i64, sums: &mut Sums) {
    let mut note = |_: &u64, window: Window, count: i64, diff: i64| {
        *sums.entry((window.start.0, window.end.0)).or_default() += count * diff;
    };
    while !counts.advance(Time(to), 1000, &mut note).unwrap().done {}
    sums.retain(|_, sum| *sum != 0);
}

/// A checkpoint of four events in these windows.
fn stored(windows: Windows) -> Simulated {
    let device = device();
    let store = on(&device).open().unwrap();
    let mut counts = store.aggregated("w").open(windows, Counting).unwrap();
    add(&mut counts, i64::MIN, &[5, 15, 15, 18]);
    store.checkpoint(1).unwrap();
    device
}

fn refused(error: Error, names: [&str; 2]) {
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    let text = error.to_string();
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn windows_of_another_length_are_refused_and_the_stored_ones_answer() {
    let device = stored(Windows::tumbling(nanos(10)));
    let store = on(&device).open().unwrap();
    let error = store.aggregated::<u64, (), _>("w").open(Windows::tumbling(nanos(7)), Counting);
    refused(error.unwrap_err(), ["windows of 10 ns every 10 ns", "windows of 7 ns every 7 ns"]);
    assert_eq!(store.stats().unwrap().states.len(), 0, "nothing of it is open");
    let mut counts = store.aggregated("w").open(Windows::tumbling(nanos(10)), Counting).unwrap();
    let mut sums = Sums::new();
    advance(&mut counts, i64::MAX, &mut sums);
    assert_eq!(sums, Sums::from([((0, 10), 1), ((10, 20), 3)]));
}

/// Windows, what they may not become, and what they may.
fn cases() -> Vec<(Windows, Vec<Windows>, Vec<Windows>)> {
    let (hop, gap) = (Windows::sliding(nanos(10), nanos(5)), Windows::session(nanos(10)));
    let (watermark, early) = (Emit::OnWatermark, Emit::Early(nanos(3)));
    vec![
        (
            hop,
            vec![
                Windows::sliding(nanos(15), nanos(5)),
                Windows::sliding(nanos(10), nanos(2)),
                hop.offset(nanos(1)),
                hop.lateness(nanos(1)),
                gap,
            ],
            vec![hop, hop.offset(nanos(25)), hop.emit(watermark), hop.emit(early)],
        ),
        (
            hop.lateness(nanos(4)),
            vec![hop, hop.lateness(nanos(3)), hop.lateness(nanos(5)), hop.emit(watermark)],
            vec![hop.lateness(nanos(4)).emit(watermark), hop.lateness(nanos(4)).emit(early)],
        ),
        (
            hop.lateness(nanos(4)).emit(watermark),
            vec![hop, hop.lateness(nanos(4)), hop.lateness(nanos(4)).emit(early)],
            vec![hop.lateness(nanos(4)).emit(watermark).offset(nanos(5))],
        ),
        (
            hop.emit(watermark),
            vec![hop.emit(watermark).lateness(nanos(1))],
            vec![hop, hop.emit(early)],
        ),
        (
            hop.emit(early),
            vec![hop, hop.emit(watermark)],
            vec![hop.emit(Emit::Early(nanos(1))), hop.emit(Emit::Early(nanos(100)))],
        ),
        (
            gap,
            vec![Windows::session(nanos(11)), gap.lateness(nanos(1)), gap.emit(early), hop],
            vec![gap, gap.offset(nanos(3)), gap.emit(watermark)],
        ),
        (
            gap.lateness(nanos(4)),
            vec![gap, gap.lateness(nanos(5)), gap.lateness(nanos(4)).emit(watermark)],
            vec![gap.lateness(nanos(4))],
        ),
        (gap.emit(watermark), vec![gap.emit(early)], vec![gap]),
        (gap.emit(early), vec![gap, gap.emit(watermark)], vec![gap.emit(Emit::Early(nanos(9)))]),
    ]
}

#[test]
fn what_may_change_and_what_may_not_is_as_the_book_says() {
    for (before, refusals, allowed) in cases() {
        let device = stored(before);
        for other in refusals {
            let store = on(&device).open().unwrap();
            let error = store.aggregated::<u64, (), _>("w").open(other, Counting).unwrap_err();
            refused(error, [&before.to_string(), &other.to_string()]);
        }
        for other in allowed {
            let store = on(&device).open().unwrap();
            let opened = store.aggregated::<u64, (), _>("w").open(other, Counting);
            assert!(opened.is_ok(), "{before} as {other}: {}", opened.unwrap_err());
        }
    }
}

#[test]
fn windows_that_keep_their_events_are_refused_alike() {
    let count = |_: &u64, _, events: &mut dyn Elements<u8>, emit: &mut dyn FnMut(u64)| {
        let mut count = 0;
        while events.next()?.is_some() {
            count += 1;
        }
        emit(count);
        Ok(())
    };
    let device = device();
    let store = on(&device).open().unwrap();
    let windows = store.holistic("w").open(Windows::session(nanos(10)), process(count)).unwrap();
    store.checkpoint(1).unwrap();
    drop((windows, store));
    for other in [Windows::session(nanos(9)), Windows::tumbling(nanos(10))] {
        let store = on(&device).open().unwrap();
        let error = store.holistic("w").open(other, process(count)).unwrap_err();
        refused(error, [&Windows::session(nanos(10)).to_string(), &other.to_string()]);
    }
}

#[test]
fn restored_imported_and_moved_state_keeps_its_definition() {
    let (tens, sevens) = (Windows::tumbling(nanos(10)), Windows::tumbling(nanos(7)));
    let names = [tens.to_string(), sevens.to_string()];
    let names = [&*names[0], &*names[1]];
    let from = stored(tens);
    // Of another store.
    let source = Source::device(Arc::new(from.clone()));
    let store = on(&device()).restore_from([source]).open().unwrap();
    let error = store.aggregated::<u64, (), _>("w").open(sevens, Counting).unwrap_err();
    refused(error, names);
    drop(store);
    // Of two stores that were of different windows.
    let half = |windows, groups: std::ops::Range<u16>| {
        let device = device();
        let store = on(&device).owned_groups(groups).open().unwrap();
        let counts: Counts = store.aggregated("w").open(windows, Counting).unwrap();
        store.checkpoint(1).unwrap();
        drop((counts, store));
        Source::device(Arc::new(device))
    };
    let sources = [half(tens, 0..4), half(sevens, 4..8)];
    refused(on(&device()).restore_from(sources).open().unwrap_err(), names);
    // Of a canonical file.
    let mut file = Vec::new();
    let store = on(&from).open().unwrap();
    let counts: Counts = store.aggregated("w").open(tens, Counting).unwrap();
    store.export(&mut file).unwrap();
    drop((counts, store));
    let store = on(&device()).open().unwrap();
    let counts: Counts = store.aggregated("w").open(sevens, Counting).unwrap();
    refused(store.import(&file[..]).unwrap_err(), names);
    drop((counts, store));
    // Of a store whose key groups come.
    let unit = |groups: std::ops::Range<u16>, windows: Windows| {
        let store = Store::in_memory().key_groups(GROUPS).owned_groups(groups).open().unwrap();
        let mover = store.mover("unit").unwrap();
        let counts: Counts =
            store.aggregated("w").moved_by(&mover).open(windows, Counting).unwrap();
        (store, mover, counts)
    };
    let (_left, giving, _counts) = unit(0..GROUPS - 1, tens);
    let (_right, taking, _others) = unit(GROUPS - 1..GROUPS, sevens);
    let mut rest = giving.begin(KeyGroup::of(7u64.key_hash(), GROUPS - 1)).unwrap();
    let chunk = giving.next_chunk(&mut rest, 4096).unwrap().unwrap();
    refused(taking.install(&chunk).unwrap_err(), names);
}

#[test]
fn a_checkpoint_without_definitions_opens_unchecked_and_the_next_has_them() {
    let device = stored(Windows::tumbling(nanos(10)));
    let (mut image, _) = CheckpointImage::load(&device, 1, None).unwrap();
    let recorded = image.states.iter_mut().filter_map(|state| state.definition.take()).count();
    assert_eq!(recorded, 1, "of its progress");
    device.remove(&alluvium_pagestore::checkpoint_name(1)).unwrap();
    let file = image.write(&device).unwrap();
    Manifest { checkpoints: vec![file] }.commit(&device).unwrap();
    let open = |windows| -> Result<()> {
        let store = on(&device).open()?;
        let counts: Counts = store.aggregated("w").open(windows, Counting)?;
        store.checkpoint(2)?;
        drop(counts);
        Ok(())
    };
    open(Windows::tumbling(nanos(10))).unwrap();
    refused(open(Windows::tumbling(nanos(20))).unwrap_err(), ["of 10 ns", "of 20 ns"]);
}

#[test]
fn layouts_that_do_not_read_what_is_stored_are_refused_by_name() {
    let layouts: [(&str, AnyLayout); 3] = [
        ("heap", Heap::new().into()),
        ("hybrid-log", HybridLog::new().into()),
        ("window-segments", WindowSegments::new().into()),
    ];
    for (before, layout) in &layouts {
        for (after, other) in &layouts {
            let device = device();
            let store = on(&device).layout(layout.clone()).open().unwrap();
            let mut counts =
                store.aggregated("w").open(Windows::tumbling(nanos(10)), Counting).unwrap();
            add(&mut counts, i64::MIN, &[5, 15, 15, 18]);
            store.checkpoint(1).unwrap();
            drop((counts, store));
            let store = on(&device).layout(other.clone()).open().unwrap();
            let opened = store.aggregated("w").open(Windows::tumbling(nanos(10)), Counting);
            if before != after && [before, after].contains(&&"window-segments") {
                refused(opened.unwrap_err(), [before, after]);
                continue;
            }
            let mut sums = Sums::new();
            advance(&mut opened.unwrap(), i64::MAX, &mut sums);
            assert_eq!(sums, Sums::from([((0, 10), 1), ((10, 20), 3)]), "{before} as {after}");
        }
    }
    let lists: [(&str, AnyLayout); 2] =
        [("heap", Heap::new().into()), ("append-log", AppendLog::new().into())];
    for (before, layout) in &lists {
        let device = device();
        let store = on(&device).layout(layout.clone()).open().unwrap();
        let mut map = store.time_map::<u64, u64>("m").open(nanos(10)).unwrap();
        map.insert(&1, Time(5), 7).unwrap();
        store.checkpoint(1).unwrap();
        drop((map, store));
        for (after, other) in &lists {
            let store = on(&device).layout(other.clone()).open().unwrap();
            let error = store.time_map::<u64, u64>("m").open(nanos(11)).unwrap_err();
            refused(error, ["slices of 10 ns", "slices of 11 ns"]);
            match store.time_map::<u64, u64>("m").open(nanos(10)) {
                Ok(map) => assert_eq!((before, map.len().unwrap()), (after, 1)),
                Err(error) => refused(error, [before, after]),
            }
        }
    }
}

#[test]
fn a_map_by_time_is_refused_under_another_definition() {
    let device = device();
    let open = |store: &Store, definition: Option<&str>| {
        let mut map = store.time_map::<u64, u64>("m");
        if let Some(definition) = definition {
            map = map.defined_as(definition);
        }
        map.open(nanos(10)).map(drop)
    };
    // What was stored without one is not checked, and has one from then on.
    for definition in [None, Some("0 to 5 ns apart")] {
        let store = on(&device).open().unwrap();
        open(&store, definition).unwrap();
        store.checkpoint(1).unwrap();
    }
    let store = on(&device).open().unwrap();
    let error = open(&store, Some("-5 to 0 ns apart")).unwrap_err();
    refused(error, ["0 to 5 ns apart", "-5 to 0 ns apart"]);
    refused(open(&store, None).unwrap_err(), ["0 to 5 ns apart", "none"]);
    open(&store, Some("0 to 5 ns apart")).unwrap();
}

/// Random events and watermarks; between them the windows are opened again as what they may become.
/// They add up to what windows tell that stay what they are.
#[test]
fn allowed_changes_keep_the_answers() {
    let emits = [Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(4)), Emit::Early(nanos(9))];
    let (mut changed, mut kept) = (0, 0);
    for seed in 0..crate::dice::times("ALLUVIUM_SEEDS", 150) {
        let mut dice = Dice(seed);
        let slide = 1 + dice.below(6) as i64;
        let length = slide * (1 + dice.below(3) as i64);
        let shape =
            [Windows::sliding(nanos(length), nanos(slide)), Windows::session(nanos(length))];
        let lateness = [0, dice.below(20) as i64][dice.below(2) as usize];
        let twin = shape[dice.below(2) as usize].lateness(nanos(lateness));
        let mut windows = twin.emit(emits[dice.below(4) as usize]);
        let device = device();
        let mut store = on(&device).open().unwrap();
        let mut counts: Counts = store.aggregated("w").open(windows, Counting).unwrap();
        let undisturbed = Store::in_memory().open().unwrap();
        let mut twin: Counts = undisturbed.aggregated("w").open(twin, Counting).unwrap();
        let (mut sums, mut expected, mut watermark) = (Sums::new(), Sums::new(), 0);
        for step in 0..80u64 {
            match dice.below(8) {
                0..5 => {
                    let at = watermark + dice.below(50) as i64 - 30;
                    for (windows, sums) in [(&mut counts, &mut sums), (&mut twin, &mut expected)] {
                        let mut batch = vec![(1, Time(at), ())];
                        let mut note = |_: &u64, window: Window, count: i64, diff: i64| {
                            *sums.entry((window.start.0, window.end.0)).or_default() +=
                                count * diff;
                        };
                        let late = &mut |_| {};
                        windows.add_batch(Time(watermark), &mut batch, late, &mut note).unwrap();
                    }
                }
                5..7 => {
                    watermark += dice.below(12) as i64;
                    advance(&mut counts, watermark, &mut sums);
                    advance(&mut twin, watermark, &mut expected);
                }
                _ => {
                    store.checkpoint(step).unwrap();
                    drop((counts, store));
                    store = on(&device).open().unwrap();
                    let other = windows.emit(emits[dice.below(4) as usize]);
                    counts = match store.aggregated("w").open(other, Counting) {
                        Ok(counts) => {
                            changed += u64::from(windows != other);
                            windows = other;
                            counts
                        }
                        Err(error) => {
                            kept += 1;
                            assert_eq!(error.kind(), ErrorKind::Mismatch, "seed {seed}: {error}");
                            store.aggregated("w").open(windows, Counting).unwrap()
                        }
                    };
                    // What was there before the events of a watermark is not known after an open.
                    watermark += 1;
                    advance(&mut counts, watermark, &mut sums);
                    advance(&mut twin, watermark, &mut expected);
                }
            }
        }
        advance(&mut counts, i64::MAX, &mut sums);
        advance(&mut twin, i64::MAX, &mut expected);
        assert_eq!(sums, expected, "seed {seed}, at last {windows}");
    }
    assert!(changed > 0 && kept > 0, "{changed} changes, {kept} refused");
}
