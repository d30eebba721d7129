//! A state that the job has no more is dropped by its name, without its type: the next checkpoint is
//! without it, older ones that are retained have it, and its files go with the last of these.
//!
//! What this catches: a part that is left of windows or of entries that expire; files that nobody
//! names and nobody removes; a file removed that a retained checkpoint needs; what was dropped
//! coming back when its name is used again.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::Source;
use alluvium::time::nanos;
use alluvium::{
    AppendLog, Counting, Elements, ErrorKind, HybridLog, KIB, MIB, Store, StoreBuilder, Time, Ttl,
    WindowSegments, Windows, process,
};
use alluvium_pagestore::{CheckpointImage, MANIFEST, Manifest, checkpoint_name};

const KEYS: u64 = 2000;

fn on(device: &Simulated) -> StoreBuilder {
    let store = Store::in_memory().memory(16 * MIB).max_value(4 * KIB).retain(2);
    store.helpers(Helpers::Inline).device(Arc::new(device.clone()))
}

fn log() -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).memory(256 * KIB)
}

/// A checkpoint of a state of each kind.
fn filled() -> Simulated {
    let device = Simulated::new(1, Faults::none());
    let store = on(&device).open().unwrap();
    let count = |_: &u64, _, _: &mut dyn Elements<u64>, emit: &mut dyn FnMut(u64)| {
        emit(1);
        Ok(())
    };
    let mut stays = store.map::<u64, u64>("stays").layout(log()).open().unwrap();
    let mut map = store.map::<u64, u64>("map").layout(log()).open().unwrap();
    let append = AppendLog::new().memory(160 * KIB).block(KIB).segment(32 * KIB);
    let mut list = store.list::<u64, u64>("list").layout(append.clone()).open().unwrap();
    let panes = WindowSegments::new().memory(2 * MIB);
    let counts = store.aggregated("windows").layout(panes);
    let mut counts = counts.open(Windows::sliding(nanos(100), nanos(10)), Counting).unwrap();
    let mut sessions = store.holistic("sessions").open(Windows::session(nanos(10)), process(count));
    let sessions = sessions.as_mut().unwrap();
    let recent = store.expiring_map::<u64, u64>("recent").layout(log());
    let mut recent = recent.open(Ttl::event_time(nanos(10))).unwrap();
    let mut timers = store.timers::<u64>("timers").unwrap();
    for key in 0..KEYS {
        stays.put(key, key).unwrap();
        map.put(key, key).unwrap();
        list.append(&key, key).unwrap();
        let mut batch = vec![(key, Time(key as i64), ())];
        counts.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
        let mut batch = vec![(key, Time(key as i64), key)];
        sessions.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
        recent.put(key, key).unwrap();
        timers.set(key, Time(key as i64)).unwrap();
    }
    store.checkpoint(1).unwrap();
    device
}

const DROPPED: [&str; 6] = ["map", "list", "windows", "sessions", "recent", "timers"];

fn names(image: &CheckpointImage) -> Vec<&str> {
    image.states.iter().map(|state| &*state.name).collect()
}

/// The newest checkpoint of the directory; nothing is there that no retained one names.
fn newest(device: &Simulated) -> CheckpointImage {
    let manifest = Manifest::load(device).unwrap().unwrap();
    let images = manifest.checkpoints.iter();
    let images = images.map(|file| CheckpointImage::load(device, file.number, None).unwrap().0);
    let images: Vec<_> = images.collect();
    let mut needed = BTreeSet::from([MANIFEST.to_owned()]);
    for image in &images {
        needed.extend(image.files());
        needed.insert(checkpoint_name(image.number));
    }
    let there: BTreeSet<_> = device.list().unwrap().into_iter().collect();
    assert_eq!(there, needed);
    images.into_iter().next_back().unwrap()
}

#[test]
fn its_parts_go_with_it_and_its_files_with_the_last_checkpoint_that_has_it() {
    let device = filled();
    let with_all = newest(&device).files().collect::<BTreeSet<_>>().len();
    let store = on(&device).open().unwrap();
    let mut stays = store.map::<u64, u64>("stays").layout(log()).open().unwrap();
    for (name, kind) in [
        ("stays", ErrorKind::InUse),
        ("none", ErrorKind::UnknownState),
        ("windows/progress", ErrorKind::Config),
        ("sessions/timers", ErrorKind::Config),
        ("recent/time", ErrorKind::Config),
    ] {
        let error = store.drop_state(name).unwrap_err();
        assert_eq!((error.kind(), error.context("state")), (kind, Some(name)), "{error}");
    }
    for name in DROPPED {
        store.drop_state(name).unwrap();
        let error = store.drop_state(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownState, "{name} twice");
    }
    store.export(&mut Vec::new()).unwrap();
    store.checkpoint(2).unwrap();
    assert_eq!(names(&newest(&device)), ["stays"]);
    drop((stays, store));
    // The older one has all.
    let store = on(&device).restore(1).open().unwrap();
    let mut map = store.map::<u64, u64>("map").layout(log()).open().unwrap();
    assert_eq!(map.get(&7).unwrap().as_deref(), Some(&7));
    let counts = store.aggregated::<u64, (), _>("windows").layout(WindowSegments::new());
    counts.open(Windows::sliding(nanos(100), nanos(10)), Counting).unwrap();
    drop((map, store));
    // Until it is dropped.
    let store = on(&device).restore(2).open().unwrap();
    stays = store.map::<u64, u64>("stays").layout(log()).open().unwrap();
    for position in 3..5 {
        store.checkpoint(position).unwrap();
    }
    let files = newest(&device).files().collect::<BTreeSet<_>>().len();
    assert!(2 * files < with_all, "{files} of {with_all} files");
    assert_eq!(stays.len().unwrap(), KEYS);
}

#[test]
fn its_name_is_free_at_once() {
    let device = filled();
    let store = on(&device).open().unwrap();
    store.drop_state("map").unwrap();
    let mut map = store.map::<String, String>("map").open().unwrap();
    assert!(map.is_empty().unwrap());
    map.put("a".into(), "b".into()).unwrap();
    assert_eq!(store.drop_state("map").unwrap_err().kind(), ErrorKind::InUse);
    store.checkpoint(2).unwrap();
    store.checkpoint(3).unwrap();
    drop((map, store));
    let store = on(&device).open().unwrap();
    let mut map = store.map::<String, String>("map").open().unwrap();
    assert_eq!(map.get("a").unwrap().as_deref().map(String::as_str), Some("b"));
    assert_eq!(names(&newest(&device)).len(), 15);
}

#[test]
fn a_crash_before_the_next_checkpoint_brings_it_back() {
    let device = filled();
    let store = on(&device).open().unwrap();
    store.drop_state("map").unwrap();
    drop(store);
    let store = on(&device).open().unwrap();
    assert_eq!(store.map::<u64, u64>("map").layout(log()).open().unwrap().len().unwrap(), KEYS);
}

#[test]
fn a_checkpoint_that_was_begun_before_has_it() {
    let device = filled();
    let store = on(&device).open().unwrap();
    let seal = store.seal(2).unwrap();
    store.drop_state("map").unwrap();
    seal.confirm().unwrap();
    assert!(names(&newest(&device)).contains(&"map"));
    let aborted = store.seal(3).unwrap();
    aborted.abort();
    store.checkpoint(4).unwrap();
    assert!(!names(&newest(&device)).contains(&"map"));
    store.checkpoint(5).unwrap();
    newest(&device);
}

#[test]
fn a_store_that_is_made_of_others_drops_what_they_have() {
    let device = filled();
    let target = Simulated::new(2, Faults::none());
    let store = on(&target).restore_from([Source::device(Arc::new(device))]).open().unwrap();
    for name in DROPPED {
        store.drop_state(name).unwrap();
    }
    let mut map = store.map::<u8, u8>("map").open().unwrap();
    assert!(map.is_empty().unwrap(), "its name is free");
    map.put(1, 1).unwrap();
    let stays = store.map::<u64, u64>("stays").layout(log()).open().unwrap();
    store.checkpoint(1).unwrap();
    drop((map, stays, store));
    assert_eq!(names(&newest(&target)), ["map", "stays"]);
}
