//! What a store records of its own calls is read, characterized, replayed on engines and advised for.

use std::time::Duration;

use alluvium::config::TraceOptions;
use alluvium::{Counting, MIB, SECOND, Store, Time, Windows};
use alluvium_gadget::characterize::Characterization;
use alluvium_gadget::engine::{BTree, Open, built_in};
use alluvium_gadget::measure::{Stopwatch, Timing};
use alluvium_gadget::trace::{Op, Player, Reading, Recording, expect, stand_in};

const SLICES: i64 = 20;
const KEYS: u64 = 50;

/// A job of windows: each key has two events in each second.
fn recorded(directory: &std::path::Path) -> Recording {
    let options = TraceOptions::to(directory);
    let store = Store::in_memory().memory(16 * MIB).trace(options).open().unwrap();
    let windows = Windows::tumbling(Duration::from_secs(1));
    let mut counts = store.aggregated("counts").open(windows, Counting).unwrap();
    for slice in 0..SLICES {
        let at = |half: i64| Time(slice * SECOND + half * SECOND / 2);
        let events = |half| (0..KEYS).map(move |key| (key, at(half), ()));
        let mut batch: Vec<_> = events(0).chain(events(1)).collect();
        counts.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
        let until = Time((slice + 1) * SECOND);
        while !counts.advance(until, 64, &mut |_, _, _, _| {}).unwrap().done {}
    }
    assert_eq!(store.stats().unwrap().traces.len(), 1);
    drop((counts, store));
    Recording::read(&directory.join("counts.trace"), &Reading::default()).unwrap()
}

#[test]
fn windows_of_a_store() {
    let place = tempfile::tempdir().unwrap();
    let recording = recorded(place.path());
    assert_eq!((recording.missing(), recording.unit_us()), (0, Some(1000)));
    // An update is a get and a put, a window that fires a get, and its purge a delete.
    let figures = Characterization::of("counts", &recording, None);
    let slices = SLICES as u64;
    let count = |op: Op| figures.operations.get(op.text()).copied().unwrap_or(0);
    assert_eq!(count(Op::Put), 2 * KEYS * slices);
    assert_eq!(count(Op::Get), 3 * KEYS * slices);
    assert_eq!(count(Op::Delete), KEYS * slices);
    assert_eq!((figures.keys, figures.working_set.keys_left), (KEYS * slices, 0));
    assert!(figures.working_set.keys_max <= 2 * KEYS, "{}", figures.working_set.keys_max);

    let expected = expect(&recording).unwrap();
    let watch = || {
        let most = Duration::from_secs(60);
        Stopwatch::start(Timing { most, sample: 16, rate: None, warm_up: 0 })
    };
    let mut digests = Vec::new();
    let done = Player::play(&recording, &expected, &mut BTree::default(), None, &mut watch());
    digests.push(done.unwrap().digest);
    for kind in built_in().iter().filter(|kind| kind.name == "ours-hybrid-log") {
        let (operator, options) = stand_in(&recording);
        let directory = place.path().join(kind.name);
        std::fs::create_dir_all(&directory).unwrap();
        let open = Open { directory, memory_bytes: 64 << 20, operator, options, events: 1000 };
        let mut engine = kind.open(&open).unwrap();
        let done = Player::play(&recording, &expected, &mut *engine, None, &mut watch());
        digests.push(done.unwrap().digest);
    }
    assert_eq!(digests, [expected.digest; 2]);
}
