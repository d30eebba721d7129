//! A checkpoint restored by its number is a branch: an open goes on from it, and every other checkpoint
//! that is whole can still be restored, until the next one is confirmed.
//!
//! What this catches: sound checkpoints removed by restoring a damaged one in a directory that has lost
//! its manifest; a later unconfirmed checkpoint removed by restoring an earlier one; a plain open after a
//! crash that goes on from a future that was given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::checkpoints::Seal;
use alluvium::io::{CrashPolicy, Device, Simulated};
use alluvium::{AnyLayout, ErrorKind, List, Map, Result, Store};

use crate::dice::Dice;
use crate::job::builder;
use crate::moving_job::{device, layouts, of_lists};

const KEYS: u64 = 300;

type Model = BTreeMap<u64, Vec<u8>>;

struct Opened {
    store: Store,
    map: Map<u64, Vec<u8>>,
    list: List<u64, u8>,
}

fn open(device: &Simulated, layout: &AnyLayout, restore: Option<u64>) -> Result<Opened> {
    let builder = builder(layout).device(Arc::new(device.clone())).retain(3);
    let store = match restore {
        Some(number) => builder.restore(number),
        None => builder,
    };
    let store = store.open()?;
    let map = store.map("map").open()?;
    let list = store.list("list").layout(of_lists(layout)).open()?;
    Ok(Opened { store, map, list })
}

impl Opened {
    fn change(&mut self, model: &mut Model, dice: &mut Dice) {
        for _ in 0..200 {
            let (key, n) = (dice.below(KEYS), dice.next());
            let value = model.entry(key).or_default();
            value.extend((0..1 + n % 40).map(|at| (n >> (at % 8)) as u8));
            self.map.put(key, value.clone()).unwrap();
            let kept = self.list.to_vec(&key).unwrap().len();
            value[kept..].iter().for_each(|byte| self.list.append(&key, *byte).unwrap());
        }
    }

    fn check(&mut self, model: &Model, when: &str) {
        for key in 0..KEYS {
            let found = self.map.get(&key).unwrap().map(|value| value.clone());
            assert_eq!(found.as_ref(), model.get(&key), "{when}: key {key}");
            let listed = self.list.to_vec(&key).unwrap();
            assert_eq!(listed, found.unwrap_or_default(), "{when}: list {key}");
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.store.checkpoints().iter().map(|all| all.checkpoint.number).collect()
    }
}

/// Whatever was not synced is lost.
fn crash(device: &Simulated) -> Simulated {
    device.crash(CrashPolicy::Nothing)
}

/// Checkpoints 1, 2 and 3, and what each holds.
fn three(layout: &AnyLayout) -> (Simulated, BTreeMap<u64, Model>) {
    let device = device(5);
    let mut opened = open(&device, layout, None).unwrap();
    let (mut model, mut dice, mut models) = (Model::default(), Dice(9), BTreeMap::new());
    for number in 1..=3 {
        opened.change(&mut model, &mut dice);
        assert_eq!(opened.store.checkpoint(number).unwrap().number, number);
        models.insert(number, model.clone());
    }
    (device, models)
}

#[test]
fn a_damaged_checkpoint_of_a_directory_without_a_manifest_takes_no_other_along() {
    for (name, layout) in layouts() {
        let (device, models) = three(&layout);
        let device = crash(&device);
        device.remove("MANIFEST").unwrap();
        let names = |device: &Simulated| -> BTreeSet<String> {
            device.list().unwrap().into_iter().collect()
        };
        // Segments that came with the third, and its file.
        let segments = |device: &Simulated| {
            let all = names(device).into_iter();
            all.filter(|name| name.starts_with("seg-")).collect::<Vec<_>>()
        };
        let (mut refused, file) = (0, "checkpoint-0000000000000003".to_owned());
        for damaged in segments(&device).into_iter().rev().take(3).chain([file]) {
            let (device, when) = (crash(&device), format!("{name}, {damaged}"));
            let mut bytes = device.bytes(&damaged).unwrap();
            bytes.iter_mut().skip(80).for_each(|byte| *byte ^= 4);
            device.place(&damaged, &bytes);
            let before = names(&device);
            let is_sound = |opened: Opened| {
                let mut opened = opened;
                (0..KEYS)
                    .all(|key| opened.map.get(&key).is_ok() && opened.list.to_vec(&key).is_ok())
            };
            refused += u64::from(!open(&device, &layout, Some(3)).is_ok_and(is_sound));
            let left = names(&device);
            assert!(before.is_subset(&left), "{when}: {:?}", before.difference(&left));
            // An open without a number removes none either.
            let _ = open(&device, &layout, None);
            for number in [2, 1, 2] {
                let when = format!("{when}, checkpoint {number}");
                match open(&device, &layout, Some(number)) {
                    Ok(mut opened) if is_undamaged(&device, number, &damaged) => {
                        opened.check(&models[&number], &when);
                    }
                    Err(error) if is_undamaged(&device, number, &damaged) => {
                        panic!("{when}: {error:?}");
                    }
                    _ => {}
                }
            }
        }
        assert!(refused > 1, "{name}: {refused}");
    }
}

/// Whether the checkpoint needs nothing of this file.
fn is_undamaged(device: &Simulated, number: u64, file: &str) -> bool {
    let name = format!("checkpoint-{number:016x}");
    let bytes = device.bytes(&name).unwrap();
    let image = alluvium_pagestore::CheckpointImage::parse(&name, &bytes).unwrap();
    name != file && image.files().all(|needed| needed != file)
}

#[test]
fn an_earlier_unconfirmed_checkpoint_leaves_the_later_one() {
    for (name, layout) in layouts() {
        let device = device(3);
        let (mut model, mut dice) = (Model::default(), Dice(21));
        let mut models = BTreeMap::new();
        // Two runs end when their checkpoints are durable, and nobody has confirmed these.
        let mut opened = open(&device, &layout, None).unwrap();
        opened.change(&mut model, &mut dice);
        opened.store.checkpoint(1).unwrap();
        models.insert(1, model.clone());
        for number in 2..=3 {
            opened.change(&mut model, &mut dice);
            let mut seal = opened.store.seal(number).unwrap();
            while !seal.advance().unwrap() {}
            assert_eq!(Seal::number(&seal), number);
            seal.keep();
            models.insert(number, model.clone());
        }
        drop(opened);
        let device = crash(&device);
        for (restore, found) in
            [(Some(2), 2), (Some(3), 3), (Some(1), 1), (Some(2), 2), (None, 2), (Some(3), 3)]
        {
            let when = format!("{name}, restored {restore:?}");
            let mut opened = open(&device, &layout, restore).unwrap();
            opened.check(&models[&found], &when);
            assert_eq!(opened.numbers(), [1, 2, 3], "{when}");
            opened.change(&mut models[&found].clone(), &mut dice);
        }
        // The next checkpoint decides.
        let mut opened = open(&device, &layout, Some(2)).unwrap();
        let mut model = models[&2].clone();
        opened.change(&mut model, &mut dice);
        assert_eq!(opened.store.checkpoint(9).unwrap().number, 4, "{name}");
        assert_eq!(opened.numbers(), [1, 2, 4], "{name}");
        drop(opened);
        let error = open(&device, &layout, Some(3)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
        let mut opened = open(&device, &layout, None).unwrap();
        opened.check(&model, name);
        assert_eq!(opened.store.leftovers(), 0, "{name}");
    }
}

#[test]
fn an_open_goes_on_in_the_branch_that_was_restored_last() {
    for (name, layout) in layouts() {
        let (device, models) = three(&layout);
        let mut dice = Dice(33);
        let mut device = crash(&device);
        let mut last = 3;
        for round in 0..12 {
            let restore = [None, Some(1), Some(2), Some(3)][dice.below(4) as usize];
            last = restore.unwrap_or(last);
            let when = format!("{name}, round {round}, restored {restore:?}");
            let mut opened = open(&device, &layout, restore).unwrap();
            opened.check(&models[&last], &when);
            assert_eq!(opened.store.restored_position(), Some(last), "{when}");
            assert_eq!(opened.numbers(), [1, 2, 3], "{when}");
            opened.change(&mut models[&last].clone(), &mut dice);
            device = crash(&device);
        }
        let mut opened = open(&device, &layout, Some(1)).unwrap();
        let mut model = models[&1].clone();
        opened.change(&mut model, &mut dice);
        opened.store.checkpoint(4).unwrap();
        assert_eq!(opened.numbers(), [1, 4], "{name}: what came after the first is no past of it");
        let mut opened = open(&crash(&device), &layout, None).unwrap();
        opened.check(&model, name);
        assert_eq!(opened.numbers(), [1, 4], "{name}");
    }
}
