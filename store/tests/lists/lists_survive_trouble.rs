//! Lists through a store: checkpoints and reopening, a crash at every step of the device, a full
//! disk, damaged files, another layout, several states under one budget.
//!
//! What this catches: a checkpoint that does not name a run it needs, or one removed too early;
//! elements that come back after they were cleared; a full disk that loses what was appended or
//! never clears; damaged bytes that are served.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::backend::ListsLayout;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::{AppendLog, ErrorKind, Heap, KIB, List, Result, Store};

type Model = BTreeMap<u64, Vec<u64>>;

fn open(device: &Simulated, memory: u64) -> Result<Store> {
    Store::in_memory()
        .memory(memory)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

/// Some appends, clears and drains on both.
fn change<L: ListsLayout<u64, u64>>(
    lists: &mut List<u64, u64, L>,
    model: &mut Model,
    seed: &mut u64,
    count: u64,
) -> Result<()> {
    for _ in 0..count {
        let (key, n) = (random(seed) % 50, random(seed));
        match random(seed) % 1500 {
            0 => {
                lists.clear(&key)?;
                model.remove(&key);
            }
            1 => assert_eq!(lists.drain(&key)?, model.remove(&key).unwrap_or_default()),
            _ => {
                lists.append(&key, n)?;
                model.entry(key).or_default().push(n);
            }
        }
    }
    Ok(())
}

fn assert_equal<L: ListsLayout<u64, u64>>(
    lists: &mut List<u64, u64, L>,
    model: &Model,
    when: &str,
) {
    let mut found = Model::new();
    lists
        .for_each(|key, element| {
            found.entry(*key).or_default().push(*element);
            Ok(())
        })
        .unwrap();
    assert!(found == *model, "{when}");
    for key in 0..50 {
        let wanted = model.get(&key).cloned().unwrap_or_default();
        assert_eq!(lists.to_vec(&key).unwrap(), wanted, "{when}: {key}");
    }
}

#[test]
fn lists_come_back_from_a_checkpoint_on_each_layout() {
    fn history<L: ListsLayout<u64, u64>>(layout: &L, memory: u64) {
        let device = Simulated::new(3, Faults::late(2));
        let (mut model, mut seed) = (Model::new(), 9);
        for checkpoint in 1..=5 {
            let store = open(&device, memory).unwrap();
            let mut lists = store.list::<u64, u64>("lists").layout(layout.clone()).open().unwrap();
            assert_equal(&mut lists, &model, "reopened");
            change(&mut lists, &mut model, &mut seed, 20_000).unwrap();
            store.checkpoint(checkpoint).unwrap();
            assert_equal(&mut lists, &model, "after a checkpoint");
            let mut later = model.clone();
            change(&mut lists, &mut later, &mut seed, 300).unwrap();
            assert_equal(&mut lists, &later, "later");
            store.checkpoint(checkpoint).unwrap();
            model = later;
        }
    }
    history(&AppendLog::new(), 700 * KIB);
    history(&Heap::new(), 64 << 20);
}

#[test]
fn a_crash_leaves_this_checkpoint_or_the_one_before() {
    let run = |crash_at: Option<u64>| {
        let device = Simulated::new(7, Faults::late(2));
        let (mut model, mut seed) = (Model::new(), 4);
        let store = open(&device, 400 * KIB).unwrap();
        let mut lists = store.list::<u64, u64>("lists").open().unwrap();
        change(&mut lists, &mut model, &mut seed, 30_000).unwrap();
        store.checkpoint(1).unwrap();
        let first = model.clone();
        let start = device.steps();
        if let Some(step) = crash_at {
            device.fail_after(step);
        }
        let second = change(&mut lists, &mut model, &mut seed, 30_000)
            .and_then(|()| store.checkpoint(2).map(drop));
        drop((lists, store));
        (device.clone(), [first, model], device.steps() - start, second.is_ok())
    };
    let (_, _, steps, finished) = run(None);
    assert!(finished && steps > 20, "{steps}");
    for step in 0..steps {
        let (device, models, _, finished) = run(Some(step));
        let policies =
            [CrashPolicy::Nothing, CrashPolicy::Everything, CrashPolicy::Subset { seed: step }];
        for policy in policies {
            let after = device.crash(policy);
            let store = open(&after, 400 * KIB).unwrap();
            let position = store.restored_position().expect("a checkpoint was there");
            assert!(position == 2 || !finished, "step {step}");
            let mut lists = store.list::<u64, u64>("lists").open().unwrap();
            let when = format!("step {step}, {policy:?}, checkpoint {position}");
            assert_equal(&mut lists, &models[position as usize - 1], &when);
        }
    }
}

#[test]
fn a_full_disk_is_told_and_passes() {
    let device = Simulated::new(1, Faults::none());
    let store = open(&device, 400 * KIB).unwrap();
    let mut lists = store.list::<u64, u64>("lists").open().unwrap();
    let mut model = Model::new();
    device.set_capacity_bytes(Some(300 * KIB));
    let mut n = 0;
    let refused = loop {
        match lists.append(&(n % 50), n) {
            Ok(()) => model.entry(n % 50).or_default().push(n),
            Err(rejected) => {
                assert_eq!(rejected.value, n);
                break rejected.error;
            }
        }
        n += 1;
    };
    assert_eq!(refused.kind(), ErrorKind::DiskFull, "{refused}");
    assert!(n > 50_000, "{n}");
    assert_eq!(store.checkpoint(1).unwrap_err().kind(), ErrorKind::DiskFull);
    assert_equal(&mut lists, &model, "full");
    device.set_capacity_bytes(None);
    for n in n..n + 50_000 {
        lists.append(&(n % 50), n).unwrap();
        model.entry(n % 50).or_default().push(n);
    }
    assert_equal(&mut lists, &model, "not full any more");
    store.checkpoint(2).unwrap();
    drop((lists, store));
    let store = open(&device, 400 * KIB).unwrap();
    assert_equal(&mut store.list::<u64, u64>("lists").open().unwrap(), &model, "reopened");
}

#[test]
fn damaged_runs_are_told_by_file_and_offset_and_never_served() {
    let device = Simulated::new(2, Faults::none());
    let store = open(&device, 400 * KIB).unwrap();
    let mut lists = store.list::<u64, u64>("lists").open().unwrap();
    let (mut model, mut seed) = (Model::new(), 6);
    change(&mut lists, &mut model, &mut seed, 30_000).unwrap();
    store.checkpoint(1).unwrap();
    drop((lists, store));
    let names = device.list().unwrap().into_iter().filter(|name| name.starts_with("seg-"));
    let (mut told, mut intact) = (0, 0);
    for name in names {
        let bytes = device.bytes(&name).unwrap().len() as u64;
        for at in 0..40 {
            let offset = at * bytes / 40 + (at * 7) % 13;
            let after = device.crash(CrashPolicy::Everything);
            after.corrupt(&name, offset, (at % 8) as u32).unwrap();
            let store = open(&after, 400 * KIB).unwrap();
            let read = store.list::<u64, u64>("lists").open().and_then(|mut lists| {
                for key in 0..50 {
                    let list = lists.to_vec(&key)?;
                    assert_eq!(list, model.get(&key).cloned().unwrap_or_default());
                }
                Ok(())
            });
            match read {
                // Padding, of which small files have much.
                Ok(()) => intact += u32::from(bytes > 64 * KIB),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert_eq!(error.context("file"), Some(&*name), "{error}");
                    assert!(error.context("offset").is_some(), "{error}");
                    told += 1;
                }
            }
        }
    }
    assert!(told > 30 && told > 5 * intact, "{told} of {} told", told + intact);
}

#[test]
fn another_layout_is_refused_by_name() {
    let device = Simulated::new(2, Faults::none());
    let store = open(&device, 4 << 20).unwrap();
    store.list::<u64, u64>("lists").open().unwrap().append(&1, 1).unwrap();
    store.checkpoint(1).unwrap();
    drop(store);
    let store = open(&device, 4 << 20).unwrap();
    let refused = store.list::<u64, u64>("lists").layout(Heap::new()).open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch);
    assert!(refused.message().contains("append-log") && refused.message().contains("heap"));
    let refused = store.list::<u64, u32>("lists").open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch);
    assert_eq!(store.list::<u64, u64>("lists").open().unwrap().to_vec(&1).unwrap(), [1]);
}

#[test]
fn lists_give_memory_up_to_other_states() {
    let device = Simulated::new(2, Faults::none());
    let store = open(&device, 1024 * KIB).unwrap();
    let mut lists = store.list::<u64, u64>("lists").open().unwrap();
    let (mut model, mut seed) = (Model::new(), 6);
    change(&mut lists, &mut model, &mut seed, 50_000).unwrap();
    let mut map = store.map::<u64, u64>("map").layout(Heap::new()).open().unwrap();
    let flushed = || store.stats().unwrap().state("lists").unwrap().table.pages_flushed;
    let mut n = 0;
    while flushed() == 0 {
        // All of it fits, with what lists give up.
        assert!(n < 28_000, "{}", store.stats().unwrap());
        (n..n + 500).for_each(|n| assert!(!map.put(n, n).unwrap()));
        n += 500;
    }
    let stats = store.stats().unwrap();
    assert!(stats.memory.peak <= 1024 * KIB, "{stats}");
    assert_equal(&mut lists, &model, "after it gave memory up");
}

#[test]
fn batches_and_folds_do_what_single_calls_do() {
    let store = Store::in_memory().open().unwrap();
    let mut lists = store.list::<String, u64>("lists").open().unwrap();
    let mut batch: Vec<_> = (0..100).map(|n| (format!("key {}", n % 7), n)).collect();
    lists.append_batch(&mut batch).unwrap();
    assert!(batch.is_empty());
    let wanted: Vec<u64> = (0..100).filter(|n| n % 7 == 3).collect();
    assert_eq!(lists.to_vec("key 3").unwrap(), wanted);
    let sum = lists.fold_with("key 3", 0, |sum, n| sum + n).unwrap();
    assert_eq!(sum, wanted.iter().sum::<u64>());
    assert_eq!(lists.len().unwrap(), 100);
    let inner = lists.read("key 3", |_| store.stats().map(drop)).unwrap_err();
    assert_eq!(inner.kind(), ErrorKind::InUse);
}
