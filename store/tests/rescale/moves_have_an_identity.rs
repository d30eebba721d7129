//! Chunks of two moves are never put together, whatever was opened anew in between; and a unit has the
//! groups that its checkpoint says, whichever of its states is opened first.
//!
//! What this catches: moves that are told apart by a counter which begins anew with each run; a group that
//! counts as arrived though another move brought it; a state that is new in the unit and takes keys of
//! groups that are elsewhere.

use std::sync::Arc;

use alluvium::io::{CrashPolicy, Simulated};
use alluvium::moving::{KeyGroup, Mover, Source, Standing};
use alluvium::{AnyLayout, Count, ErrorKind, Map, Result, Store};
use alluvium_pagestore::{CheckpointImage, Manifest};

use crate::job::{GROUPS, builder, owned};
use crate::moving_job::{CHUNK, WORKERS, Worker, device, group_of, layouts, open};

fn keys_of(group: KeyGroup) -> impl Iterator<Item = u64> {
    (0..4000).filter(move |key| group_of(*key) == group)
}

fn put_all(worker: &mut Worker, group: KeyGroup, byte: u8) {
    for key in keys_of(group) {
        worker.map.put(key, vec![byte; 40]).unwrap();
        worker.lists.append(&key, vec![byte; 40]).unwrap();
    }
}

/// The first byte of each key's value, and how many elements its list has.
fn read(worker: &mut Worker, group: KeyGroup) -> Vec<(Option<u8>, usize)> {
    let read = |key| {
        let value = worker.map.get(&key).unwrap().map(|value| value[0]);
        (value, worker.lists.to_vec(&key).unwrap().len())
    };
    keys_of(group).map(read).collect()
}

/// Sends all that is left; says whether the other has it.
fn send(from: &Worker, to: &Worker, group: KeyGroup) -> Result<()> {
    let mut rest = from.mover.begin(group)?;
    while let Some(chunk) = from.mover.next_chunk(&mut rest, CHUNK)? {
        to.mover.install(&chunk)?;
    }
    Ok(())
}

#[test]
fn a_move_of_a_source_that_was_opened_again_is_another_move() {
    for (name, layout) in layouts() {
        let group = KeyGroup(1);
        for chunks in [1, 2, usize::MAX] {
            let when = format!("{name}, {chunks} chunks");
            let device_of_source = device(3);
            let mut source = open(&layout, 0, WORKERS, &device_of_source).unwrap();
            let mut target = open(&layout, 1, WORKERS, &device(4)).unwrap();
            put_all(&mut source, group, 1);
            source.store.checkpoint(1).unwrap();
            let mut rest = source.mover.begin(group).unwrap();
            let mut arrived = false;
            for _ in 0..chunks {
                let Some(chunk) = source.mover.next_chunk(&mut rest, CHUNK).unwrap() else { break };
                arrived = target.mover.install(&chunk).unwrap().1;
            }
            assert_eq!(arrived, chunks == usize::MAX, "{when}");
            // The source goes down, and on from its checkpoint: it has the group, and changes it.
            drop(source);
            let crashed = device_of_source.crash(CrashPolicy::Nothing);
            let mut source = open(&layout, 0, WORKERS, &crashed).unwrap();
            put_all(&mut source, group, 2);
            let error = send(&source, &target, group).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{when}: {error}");
            let words = if arrived { "is here already" } else { "arrived in part by another move" };
            assert!(error.to_string().contains(words), "{when}: {error}");
            assert_eq!(source.mover.standing(group).unwrap(), Standing::Leaving, "{when}");
            let expected: Vec<_> = keys_of(group).map(|_| (Some(2), 2)).collect();
            assert!(read(&mut source, group) == expected, "{when}: nothing is lost");
            if !arrived {
                while !target.mover.forget(group, 50).unwrap() {}
                send(&source, &target, group).unwrap();
                while !source.mover.forget(group, 50).unwrap() {}
                assert!(read(&mut target, group) == expected, "{when}: old and new are mixed");
            }
        }
    }
}

/// A store whose unit has one state more than before, opened first or last.
struct Grown {
    store: Store,
    mover: Mover,
    added: Count<u64>,
    map: Map<u64, Vec<u8>>,
}

fn grown(layout: &AnyLayout, at: u64, device: &Simulated, put: Option<u64>) -> Result<Grown> {
    let store = builder(layout)
        .owned_groups(owned(at as usize, WORKERS as usize))
        .device(Arc::new(device.clone()))
        .open()?;
    let mover = store.mover("unit")?;
    let mut added = store.count("added").moved_by(&mover).open()?;
    if let Some(key) = put {
        added.add(&key, 1)?;
    }
    let map = store.map("map").moved_by(&mover).open()?;
    Ok(Grown { store, mover, added, map })
}

/// Two stores of maps; group 2 of the first has moved to the second.
fn moved(layout: &AnyLayout) -> [Simulated; 2] {
    let devices = [1, 2].map(device);
    let opened = [0, 1].map(|at: u64| {
        let device = Arc::new(devices[at as usize].clone());
        let groups = owned(at as usize, WORKERS as usize);
        let store = builder(layout).owned_groups(groups).device(device).open().unwrap();
        let mover = store.mover("unit").unwrap();
        let map: Map<u64, Vec<u8>> = store.map("map").moved_by(&mover).open().unwrap();
        (store, mover, map)
    });
    let [(here, from, mut map), (there, to, _)] = opened;
    for key in keys_of(KeyGroup(2)) {
        map.put(key, vec![1; 30]).unwrap();
    }
    let mut rest = from.begin(KeyGroup(2)).unwrap();
    while let Some(chunk) = from.next_chunk(&mut rest, CHUNK).unwrap() {
        to.install(&chunk).unwrap();
    }
    while !from.forget(KeyGroup(2), 50).unwrap() {}
    assert!([here, there].iter().all(|store| store.checkpoint(1).is_ok()));
    devices
}

#[test]
fn a_new_state_that_is_opened_first_has_the_groups_of_the_others() {
    for (name, layout) in layouts() {
        let devices = moved(&layout);
        let of_group = |group| keys_of(KeyGroup(group)).next().unwrap();
        let (gone, kept) = (of_group(2), of_group(1));
        let error = grown(&layout, 0, &devices[0], Some(gone)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{name}: {error}");
        assert!(error.to_string().contains("is not in this store"), "{name}: {error}");
        let mut here = grown(&layout, 0, &devices[0], Some(kept)).unwrap();
        let mut there = grown(&layout, 1, &devices[1], Some(gone)).unwrap();
        assert_eq!(there.mover.standing(KeyGroup(2)).unwrap(), Standing::Here, "{name}");
        assert_eq!(there.map.get(&gone).unwrap().as_deref().map(Vec::len), Some(30), "{name}");
        here.added.add(&gone, 1).unwrap_err();
        there.added.add(&kept, 1).unwrap_err();
        // The next checkpoints can be restored by groups.
        assert!([&here.store, &there.store].iter().all(|store| store.checkpoint(2).is_ok()));
        drop((here, there));
        let third = device(7);
        drop(open_third(&layout, &third));
        let sources = devices.iter().chain([&third]);
        let sources = sources.map(|device| Source::device(Arc::new(device.clone())));
        let all = builder(&layout)
            .device(Arc::new(device(8)))
            .owned_groups(0..GROUPS)
            .restore_from(sources)
            .open()
            .unwrap();
        let mut added = all.count::<u64>("added").open().unwrap();
        let map = all.map::<u64, Vec<u8>>("map").open().unwrap();
        assert_eq!((added.get(&gone).unwrap(), added.get(&kept).unwrap()), (1, 1), "{name}");
        assert_eq!(map.len().unwrap(), keys_of(KeyGroup(2)).count() as u64, "{name}");
    }
}

/// The third store has nothing, and a checkpoint of that.
fn open_third(layout: &AnyLayout, device: &Simulated) -> Grown {
    let third = grown(layout, 2, device, None).unwrap();
    third.store.checkpoint(2).unwrap();
    third
}

/// A checkpoint of a build that did not say which unit a state is of.
#[test]
fn a_new_state_that_was_written_before_the_groups_were_known_is_refused() {
    for (name, layout) in layouts() {
        let devices = moved(&layout);
        let (mut image, _) = CheckpointImage::load(&devices[0], 1, None).unwrap();
        image.number = 2;
        image.states.iter_mut().for_each(|state| state.unit = None);
        let file = image.write(&devices[0]).unwrap();
        Manifest { checkpoints: vec![file] }.commit(&devices[0]).unwrap();
        let gone = keys_of(KeyGroup(2)).next().unwrap();
        let error = grown(&layout, 0, &devices[0], Some(gone)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{name}: {error}");
        assert!(error.to_string().contains("added was written to before"), "{name}: {error}");
        // Untouched until the others are open, it is as they are.
        let mut opened = grown(&layout, 0, &devices[0], None).unwrap();
        assert_eq!(opened.added.add(&gone, 1).unwrap_err().kind(), ErrorKind::Mismatch, "{name}");
    }
}
