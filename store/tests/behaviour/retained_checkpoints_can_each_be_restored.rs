//! Several checkpoints are kept, each whole: whatever came after one, it can be restored by number
//! while it is retained, and after it no file of it is left. What was sealed but not confirmed can be
//! restored by number too, and by that only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::{self, Dice, assert_equal};
use alluvium::checkpoints::Seal;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium::{AnyLayout, ErrorKind, KIB, Map, Result, Store, StoreBuilder, Time, Timers};

type Model = (BTreeMap<u64, Vec<u8>>, BTreeSet<(Time, u64)>);

struct Kept {
    store: Store,
    map: Map<u64, Vec<u8>>,
    timers: Timers<u64>,
}

fn builder(device: &Simulated, layout: &AnyLayout, retain: usize) -> StoreBuilder {
    Store::in_memory()
        .memory(512 * KIB)
        .max_value(4 * KIB)
        .layout(layout.clone())
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .retain(retain)
}

impl Kept {
    fn open(builder: StoreBuilder) -> Result<Self> {
        let store = builder.open()?;
        Ok(Self { map: store.map("map").open()?, timers: store.timers("timers")?, store })
    }

    fn change(&mut self, model: &mut Model, dice: &mut Dice, count: usize) {
        for _ in 0..count {
            let (key, n) = (dice.below(400), dice.next());
            match n % 4 {
                0 => {
                    self.map.remove(&key).unwrap();
                    model.0.remove(&key);
                }
                1 => {
                    let timer = (Time(n as i64 % 100), key);
                    assert_eq!(self.timers.set(timer.1, timer.0).unwrap(), model.1.insert(timer));
                }
                _ => {
                    let value = vec![key as u8; n as usize % 300];
                    self.map.put(key, value.clone()).unwrap();
                    model.0.insert(key, value);
                }
            }
        }
        self.store.tick(200).unwrap();
    }

    fn assert_equal(&mut self, model: &Model, when: &str) {
        assert_equal(&mut self.map, &model.0, when);
        let fired: Vec<_> = std::iter::from_fn(|| self.timers.pop_due(Time(100))).collect();
        assert!(fired.into_iter().eq(model.1.iter().copied()), "{when}: timers");
    }
}

fn seal_in_full(store: &Store, position: u64) -> Seal {
    let mut seal = store.seal(position).unwrap();
    while !seal.advance().unwrap() {}
    seal
}

fn files(device: &Simulated) -> BTreeSet<String> {
    device.list().unwrap().into_iter().collect()
}

#[test]
fn each_of_the_last_three_is_what_the_model_was() {
    for (name, layout) in common::durable_layouts() {
        let device = Simulated::new(7, Faults::late(2));
        let mut kept = Kept::open(builder(&device, &layout, 3)).unwrap();
        let (mut model, mut dice) = (Model::default(), Dice(11));
        let mut models = Vec::new();
        for round in 1..=8u64 {
            kept.change(&mut model, &mut dice, 300);
            assert_eq!(kept.store.checkpoint(round * 10).unwrap().number, round);
            models.push(model.clone());
            let retained = kept.store.checkpoints();
            let numbers: Vec<_> = retained.iter().map(|r| r.checkpoint.number).collect();
            assert_eq!(numbers, (round.max(3) - 2..=round).collect::<Vec<_>>(), "{name}");
            assert!(retained.iter().all(|r| r.pinned_bytes <= r.bytes && r.bytes > 0), "{name}");
        }
        assert!(kept.store.checkpoints()[0].pinned_bytes > 0, "{name}: nothing was replaced");
        // What comes after the last is lost in the crash, and hurts none of them.
        kept.change(&mut model, &mut dice, 2000);
        let crashed = device.crash(CrashPolicy::Everything);
        drop(kept);
        for number in 1..=8u64 {
            let image = crashed.crash(CrashPolicy::Everything);
            let opened = Kept::open(builder(&image, &layout, 3).restore(number));
            let when = format!("{name}, checkpoint {number}");
            if number < 6 {
                let error = opened.map(|_| ()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Missing, "{when}");
                assert!(error.to_string().contains("6, 7, 8"), "{when}: {error}");
                continue;
            }
            let mut opened = opened.unwrap();
            assert_eq!(opened.store.restored_position(), Some(number * 10), "{when}");
            let mut model = models[number as usize - 1].clone();
            // Life goes on from there: what came later is no past of it.
            opened.change(&mut model, &mut dice, 50);
            assert_eq!(opened.store.checkpoint(99).unwrap().number, 9, "{when}");
            let numbers: Vec<_> =
                opened.store.checkpoints().iter().map(|r| r.checkpoint.number).collect();
            let left: Vec<_> = (6..=number).chain([9]).rev().take(3).collect();
            assert_eq!(numbers, left.into_iter().rev().collect::<Vec<_>>(), "{when}");
            opened.assert_equal(&model, &when);
            drop(opened);
            let mut again = Kept::open(builder(&image, &layout, 3)).unwrap();
            assert_eq!(again.store.leftovers(), 0, "{when}");
            again.assert_equal(&model, &when);
        }
    }
}

#[test]
fn files_go_with_the_last_checkpoint_that_names_them() {
    for (name, layout) in common::durable_layouts() {
        let device = Simulated::new(3, Faults::none());
        let mut kept = Kept::open(builder(&device, &layout, 4)).unwrap();
        let (mut model, mut dice) = (Model::default(), Dice(5));
        for round in 0..4 {
            kept.change(&mut model, &mut dice, 300);
            kept.store.checkpoint(round).unwrap();
        }
        drop(kept);
        // Also of checkpoints that were there when the store was opened.
        let mut kept = Kept::open(builder(&device, &layout, 1)).unwrap();
        assert_eq!((kept.store.leftovers(), kept.store.checkpoints().len()), (0, 4), "{name}");
        kept.store.checkpoint(4).unwrap();
        let retained = kept.store.checkpoints();
        assert_eq!(retained.len(), 1, "{name}");
        assert_eq!(retained[0].bytes, retained[0].pinned_bytes, "{name}");
        let left = files(&device);
        kept.assert_equal(&model, name);
        drop(kept);
        let kept = Kept::open(builder(&device, &layout, 1)).unwrap();
        assert_eq!(kept.store.leftovers(), 0, "{name}: {left:?}");
    }
}

#[test]
fn what_is_sealed_and_not_confirmed_is_restored_by_its_number_only() {
    for (name, layout) in common::durable_layouts() {
        let device = Simulated::new(9, Faults::late(2));
        let mut kept = Kept::open(builder(&device, &layout, 1)).unwrap();
        let (mut model, mut dice) = (Model::default(), Dice(17));
        kept.change(&mut model, &mut dice, 300);
        kept.store.checkpoint(1).unwrap();
        let first = model.clone();
        kept.change(&mut model, &mut dice, 300);
        let seal = seal_in_full(&kept.store, 2);
        let sealed = model.clone();
        // The stream goes on before the decision.
        kept.change(&mut model, &mut dice, 600);
        let undecided = device.crash(CrashPolicy::Nothing);
        assert_eq!(kept.store.seal(3).unwrap_err().kind(), ErrorKind::InUse, "{name}");
        let number = seal.number();
        let confirmed = seal.confirm().unwrap();
        assert_eq!((confirmed.number, confirmed.position), (number, 2), "{name}");
        let decided = device.crash(CrashPolicy::Nothing);
        for (device, restore, expected) in [
            (undecided.crash(CrashPolicy::Nothing), None, &first),
            (undecided.crash(CrashPolicy::Nothing), Some(number), &sealed),
            (undecided.crash(CrashPolicy::Nothing), Some(1), &first),
            (decided.crash(CrashPolicy::Nothing), None, &sealed),
        ] {
            let mut builder = builder(&device, &layout, 1);
            if let Some(number) = restore {
                builder = builder.restore(number);
            }
            let when = format!("{name}, asked for {restore:?}");
            Kept::open(builder)
                .unwrap_or_else(|e| panic!("{when}: {e}"))
                .assert_equal(expected, &when);
            // What was restored is what an open finds from now on, unless it was not asked for.
            let again = Kept::open(self::builder(&device, &layout, 1)).unwrap();
            let position = if std::ptr::eq(expected, &sealed) { 2 } else { 1 };
            assert_eq!(again.store.restored_position(), Some(position), "{when}");
        }
    }
}

#[test]
fn one_that_is_kept_outlives_a_store_that_cannot_confirm_it_or_is_not_told() {
    for (name, layout) in common::durable_layouts() {
        for is_told in [false, true] {
            let device = Simulated::new(13, Faults::none());
            let mut kept = Kept::open(builder(&device, &layout, 2)).unwrap();
            let (mut model, mut dice) = (Model::default(), Dice(37));
            kept.change(&mut model, &mut dice, 300);
            kept.store.checkpoint(1).unwrap();
            let first = model.clone();
            kept.change(&mut model, &mut dice, 300);
            let mut seal = seal_in_full(&kept.store, 2);
            let (number, sealed) = (seal.number(), model.clone());
            kept.change(&mut model, &mut dice, 300);
            seal.keep();
            if is_told {
                device.on_nth_write(1, Fault::Error);
                seal.confirm().unwrap_err();
            } else {
                drop(seal);
            }
            // The store's life goes on, and its files are not taken for garbage.
            kept.change(&mut model, &mut dice, 600);
            drop(kept);
            for (restore, expected) in [(number, &sealed), (1, &first)] {
                let image = device.crash(CrashPolicy::Nothing);
                let when = format!("{name}, told: {is_told}, asked for {restore}");
                let opened = Kept::open(builder(&image, &layout, 2).restore(restore));
                opened.unwrap_or_else(|e| panic!("{when}: {e}")).assert_equal(expected, &when);
            }
            // Until another one takes its place.
            let mut kept = Kept::open(builder(&device, &layout, 1).restore(number)).unwrap();
            kept.store.checkpoint(3).unwrap();
            kept.assert_equal(&sealed, name);
        }
    }
}

#[test]
fn an_aborted_one_leaves_nothing() {
    for (name, layout) in common::durable_layouts() {
        let device = Simulated::new(2, Faults::late(1));
        let mut kept = Kept::open(builder(&device, &layout, 1)).unwrap();
        let (mut model, mut dice) = (Model::default(), Dice(23));
        for round in 0..6u64 {
            kept.change(&mut model, &mut dice, 200);
            let mut seal = kept.store.seal(round).unwrap();
            let steps = dice.below(4);
            for _ in 0..steps {
                seal.advance().unwrap();
            }
            kept.change(&mut model, &mut dice, 100);
            drop(seal);
            kept.change(&mut model, &mut dice, 100);
            assert!(kept.store.checkpoints().is_empty());
            let left = files(&device);
            let of_it = |file: &&String| file.starts_with("checkpoint") || file.starts_with("live");
            assert_eq!(left.iter().find(of_it), None, "{name}");
        }
        kept.store.checkpoint(1).unwrap();
        // Segments that have died go while there is time.
        while kept.store.tick(1000).unwrap() > 0 {}
        kept.assert_equal(&model, name);
        drop(kept);
        let mut kept = Kept::open(builder(&device, &layout, 1)).unwrap();
        assert_eq!(kept.store.leftovers(), 0, "{name}");
        kept.assert_equal(&model, name);
    }
}

#[test]
fn if_the_newest_is_damaged_its_name_is_told_and_the_one_before_is_there() {
    for (name, layout) in common::durable_layouts() {
        let device = Simulated::new(4, Faults::none());
        let mut kept = Kept::open(builder(&device, &layout, 2)).unwrap();
        let (mut model, mut dice) = (Model::default(), Dice(29));
        kept.change(&mut model, &mut dice, 300);
        kept.store.checkpoint(1).unwrap();
        let first = model.clone();
        kept.change(&mut model, &mut dice, 300);
        kept.store.checkpoint(2).unwrap();
        drop(kept);
        let file =
            files(&device).into_iter().rfind(|file| file.starts_with("checkpoint-")).unwrap();
        let mut bytes = device.bytes(&file).unwrap();
        bytes[100] ^= 4;
        device.place(&file, &bytes);
        let before = files(&device);
        let error = Kept::open(builder(&device, &layout, 2)).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        assert_eq!(error.context("file"), Some(&*file), "{name}");
        assert_eq!(error.context("can be restored"), Some("1"), "{name}");
        let mut kept = Kept::open(builder(&device, &layout, 2).restore(1)).unwrap();
        assert_eq!(files(&device), before, "{name}: nothing is removed while one cannot be read");
        let mut model = first;
        kept.change(&mut model, &mut dice, 100);
        assert_eq!(kept.store.checkpoint(3).unwrap().number, 3, "{name}");
        kept.assert_equal(&model, name);
        drop(kept);
        Kept::open(builder(&device, &layout, 2)).unwrap().assert_equal(&model, name);
    }
}

#[test]
fn the_stream_goes_on_while_one_is_confirmed() {
    for (name, layout) in common::durable_layouts() {
        for dropped in [false, true] {
            let device = Simulated::new(3, Faults::late(2));
            let mut kept = Kept::open(builder(&device, &layout, 2)).unwrap();
            let (mut model, mut dice) = (Model::default(), Dice(5));
            kept.change(&mut model, &mut dice, 300);
            let mut seal = kept.store.seal(1).unwrap();
            let sealed = model.clone();
            let mut confirmed = None;
            while match dropped {
                true => !seal.advance().unwrap(),
                false => confirmed.is_none(),
            } {
                kept.change(&mut model, &mut dice, 5);
                if !dropped {
                    confirmed = seal.confirm_step().unwrap();
                }
            }
            if dropped {
                // The manifest is on its way.
                assert_eq!(seal.confirm_step().unwrap(), None, "{name}");
                kept.change(&mut model, &mut dice, 5);
            } else {
                assert_eq!(confirmed.unwrap().position, 1, "{name}");
                assert_eq!(seal.confirm_step().unwrap_err().kind(), ErrorKind::Config, "{name}");
            }
            drop(seal);
            let image = device.crash(CrashPolicy::Nothing);
            let mut again = Kept::open(builder(&image, &layout, 2)).unwrap();
            assert_eq!(again.store.restored_position(), Some(1), "{name}, dropped {dropped}");
            again.assert_equal(&sealed, name);
            // The next one can be taken.
            kept.store.checkpoint(2).unwrap();
        }
    }
}
