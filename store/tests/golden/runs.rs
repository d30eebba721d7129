//! A directory whose states have sorted runs: a hybrid log with several levels and tombstones, one whose entries expire,
//! and packed slices of an append log.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, AppendLog, ExpiringMap, Heap, HybridLog, KIB, MIB, Map, Result, Store, StoreBuilder,
    Time, TimeMap, Ttl,
};
use alluvium_pagestore::{CheckpointImage, RUNS};

use crate::clock::Standing;
use crate::files::{load, place, read_directory};
use crate::make::{keep, tell};
use crate::states::Lines;
use crate::{assert_lines, builder};

/// The fixture, in the folder of the format that had it first, and its name there.
const FIXTURE: &str = "format-5/runs";
const NAME: &str = "runs";
const KEYS: u64 = 2500;
const SLICES: i64 = 200;
const PURGED: i64 = 20;
const LIFE: u64 = 1700;

/// A value that fills memory and is mostly zeros, which the fixture leaves out.
type Long = [u64; 40];

fn long(value: u64) -> Long {
    let mut long = [0; 40];
    long[0] = value;
    long
}

struct Cold {
    store: Store,
    map: Map<u64, Long>,
    seen: ExpiringMap<u64, Long>,
    times: TimeMap<u64, u64>,
}

/// A log that keeps few keys in memory.
fn log() -> AnyLayout {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).memory(500 * KIB);
    log.cold_entries(100).into()
}

impl Cold {
    fn open(builder: StoreBuilder, maps: AnyLayout) -> Result<Self> {
        let builder = builder.clock(Arc::new(Standing)).memory(8 * MIB).max_value(KIB);
        let store = builder.helpers(Helpers::Inline).retain(1).open()?;
        let lists = AnyLayout::from(AppendLog::new().memory(MIB).packs_slices(true));
        let ttl = Ttl::event_time(nanos(LIFE as i64));
        let seen = store.expiring_map("seen").layout(maps.clone()).open(ttl)?;
        let times = store.time_map("times").layout(lists).open(nanos(10))?;
        let map = store.map("map").layout(maps).open()?;
        Ok(Self { store, map, seen, times })
    }

    /// All that is there.
    fn lines(&mut self) -> Result<Lines> {
        let mut model = Model::default();
        self.map.for_each(|key, value| {
            assert!(model.map.insert(*key, *value).is_none(), "{key} twice");
            Ok(())
        })?;
        self.seen.for_each(|key, value| {
            assert!(model.seen.insert(*key, *value).is_none(), "{key} twice");
            Ok(())
        })?;
        for key in 0..3 {
            let times = model.times.entry(key).or_default();
            self.times.range(&key, Time(0)..Time(SLICES * 10), |at, value| {
                times.push((at.0, *value));
                Ok(())
            })?;
        }
        Ok(model.lines())
    }
}

/// What the states should have.
#[derive(Default)]
struct Model {
    map: BTreeMap<u64, Long>,
    seen: BTreeMap<u64, Long>,
    times: BTreeMap<u64, Vec<(i64, u64)>>,
}

impl Model {
    fn lines(&self) -> Lines {
        let mut lines = Lines::new();
        for (name, map) in [("map", &self.map), ("seen", &self.seen)] {
            for (key, value) in map {
                assert_eq!(*value, long(value[0]), "{name}: {key}");
                lines.push(format!("{name}: {key} = {}", value[0]));
            }
        }
        lines.extend(self.times.iter().map(|(key, all)| format!("times: {key} = {all:?}")));
        lines
    }
}

/// A history of both.
fn play(cold: &mut Cold, model: &mut Model) {
    for key in 0..KEYS {
        let value = long(key * 5);
        cold.map.put(key, value).map_err(|rejected| rejected.error).unwrap();
        model.map.insert(key, value);
        cold.seen.advance(Time(key as i64)).unwrap();
        cold.seen.put(key, long(key * 3)).map_err(|rejected| rejected.error).unwrap();
        model.seen.insert(key, long(key * 3));
    }
    model.seen.retain(|key, _| *key + LIFE >= KEYS);
    for key in (0..KEYS).step_by(7) {
        assert!(cold.map.remove(&key).unwrap());
        model.map.remove(&key);
    }
    for key in (1..KEYS).step_by(11) {
        let value = long(key + 1);
        cold.map.put(key, value).map_err(|rejected| rejected.error).unwrap();
        model.map.insert(key, value);
    }
    for nth in 0..(SLICES * 4) as u64 {
        let (key, at) = (nth % 3, nth as i64 * 10 / 4);
        cold.times.insert(&key, Time(at), nth).map_err(|rejected| rejected.error).unwrap();
        if at >= PURGED * 10 {
            model.times.entry(key).or_default().push((at, nth));
        }
    }
    while !cold.times.purge(Time(PURGED * 10), 100).unwrap() {}
}

#[test]
#[ignore = "makes a fixture, which is kept as it is"]
fn makes_the_fixture_of_runs() {
    let made = std::panic::catch_unwind(|| load(FIXTURE)).is_ok();
    assert!(!made, "the fixture is there: it stays as it is");
    let directory = tempfile::tempdir().unwrap();
    let mut cold = Cold::open(builder(directory.path()), log()).unwrap();
    let mut model = Model::default();
    play(&mut cold, &mut model);
    assert_eq!(cold.lines().unwrap(), model.lines());
    cold.store.checkpoint(10).unwrap();
    drop(cold);
    // Removes what no checkpoint names.
    drop(Cold::open(builder(directory.path()), log()).unwrap());
    tell(NAME, &model.lines());
    keep(NAME, &read_directory(directory.path()));
}

#[test]
fn sorted_runs_are_read_value_for_value() {
    for maps in [log(), HybridLog::new().memory(2 * MIB).into(), Heap::new().into()] {
        let directory = tempfile::tempdir().unwrap();
        place(FIXTURE, directory.path());
        let mut cold = Cold::open(builder(directory.path()), maps.clone()).unwrap();
        assert_eq!(cold.store.restored_position(), Some(10));
        assert_lines(&cold.lines().unwrap(), FIXTURE);
        cold.store.checkpoint(11).unwrap();
        drop(cold);
        let mut cold = Cold::open(builder(directory.path()), maps).unwrap();
        assert_lines(&cold.lines().unwrap(), FIXTURE);
    }
}

/// The fixture has what it is kept for.
#[test]
fn the_fixture_has_levels_tombstones_and_packed_slices() {
    let files = load(FIXTURE);
    let (name, bytes) = files.iter().find(|(name, _)| name.starts_with("checkpoint-")).unwrap();
    let image = CheckpointImage::parse(name, bytes).unwrap();
    for state in ["map", "seen", "times"] {
        let state = image.states.iter().find(|one| one.name == state).unwrap();
        let part = state.image.parts.iter().find(|part| part.layout == RUNS);
        let part = part.unwrap_or_else(|| panic!("{} has no runs", state.name));
        assert!(part.level_keys > 0, "{part:?}");
        if state.name == "map" {
            let marked: u64 = part.levels.iter().flatten().map(|run| run.marked).sum();
            assert!(part.levels.len() > 1 && marked > 0, "{part:?}");
        }
        if state.name == "seen" {
            assert!(part.touched.as_ref().is_some_and(|told| told.expired_before > Time::MIN));
        }
    }
}
