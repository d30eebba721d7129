//! Random histories give the same answers on every layout, in little memory and in much, as a
//! `BTreeMap` does.
//!
//! What this catches: elements lost, doubled or out of order when lists are spilled, moved to other
//! buckets, cleared, purged, written by a checkpoint and restored; keys of equal hashes mixed up;
//! memory above the budget, or not given back.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, CheckpointOutcome, Heap, Lists, ListsLayout, Upkeep};
use alluvium_pagestore::io::{Faults, IoOptions, Simulated, open_device};
use alluvium_pagestore::{Key, State, Time};

use crate::common::{Dice, Ground, Model, Sealing, folded, folded_model, read};
use crate::groups::{Meanwhile, fold_group, hashes_of, remove_group};

/// A kind of history.
struct Kind {
    steps: u64,
    keys: u64,
    /// Buckets in use at once.
    buckets: u64,
    checkpoints: bool,
    /// Key groups that come and go; 0 if none do.
    groups: u16,
}

/// Compares, and names the first list that differs.
fn assert_equal<K: Ord + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
    found: &BTreeMap<K, Vec<E>>,
    wanted: &BTreeMap<K, Vec<E>>,
    when: &str,
) {
    for (key, list) in wanted {
        assert_eq!(found.get(key), Some(list), "{when}: {key:?}");
    }
    assert_eq!(found.len(), wanted.len(), "{when}");
}

fn history<
    K: Key + Ord + std::fmt::Debug,
    E: State + PartialEq + std::fmt::Debug,
    L: ListsLayout<K, E>,
>(
    layout: &L,
    ground: &mut Ground,
    kind: &Kind,
    seed: u64,
    key: fn(u64) -> K,
    element: fn(u64) -> E,
) {
    let mut dice = Dice(seed);
    let (mut lists, mut account) = ground.open(layout).unwrap();
    let mut model: Model<K, E> = BTreeMap::new();
    let mut committed = (model.clone(), 0);
    let mut sealing: Option<(Sealing, Model<K, E>, u64)> = None;
    let mut first = 0;
    let mut in_steps = 0;
    let mut serial = 0;
    for step in 0..kind.steps {
        let at = |dice: &mut Dice, first: u64| match dice.below(kind.buckets + 1) {
            0 => Time::MAX,
            n => Time((first + n) as i64),
        };
        let (time, k) = (at(&mut dice, first), key(dice.below(kind.keys)));
        let when = format!("seed {seed}, step {step}");
        match dice.below(100) {
            0..=69 => {
                if dice.below(20) == 0 {
                    // Several lists at once.
                    let mut batch = Vec::new();
                    for _ in 0..dice.below(24) {
                        serial += 1;
                        let (time, k) = (at(&mut dice, first), key(dice.below(kind.keys)));
                        batch.push((k.clone(), time, element(serial)));
                        model.entry((time, k)).or_default().push(element(serial));
                    }
                    lists.append_batch(&mut batch).unwrap();
                    assert!(batch.is_empty(), "{when}");
                    continue;
                }
                let count = if dice.below(20) == 0 { dice.below(200) } else { 1 + dice.below(3) };
                for _ in 0..count {
                    serial += 1;
                    lists.append(time, &k, element(serial)).unwrap();
                    model.entry((time, k.clone())).or_default().push(element(serial));
                }
            }
            70..=78 => {
                let wanted = model.get(&(time, k.clone())).cloned().unwrap_or_default();
                assert_eq!(read(&mut lists, time, &k).unwrap(), wanted, "{when}");
            }
            79..=82 => {
                lists.clear_key(time, &k).unwrap();
                model.remove(&(time, k));
            }
            83..=89 => {
                let to = at(&mut dice, first);
                if to > time {
                    lists.relocate(time, to, &k).unwrap();
                    if let Some(mut moved) = model.remove(&(time, k.clone())) {
                        let later = model.entry((to, k)).or_default();
                        moved.append(later);
                        *later = moved;
                    }
                }
            }
            90..=92 => {
                let end = at(&mut dice, first);
                let range = time.min(end)..time.max(end);
                let fuel = 1 + dice.below(300) as usize;
                let found = folded(&mut lists, range.clone(), fuel).unwrap();
                assert_equal(&found, &folded_model(&model, &range), &format!("{when}: {range:?}"));
            }
            93 => {
                first += dice.below(2);
                let before = Time(first as i64 + 1);
                model.retain(|(time, _), _| *time >= before);
                let mut done = lists.purge(before, 50).unwrap();
                for _ in 0..10_000 {
                    if done {
                        break;
                    }
                    std::thread::yield_now();
                    done = lists.purge(before, 50).unwrap();
                }
                assert!(lists.next_bucket(Time::MIN).is_none_or(|time| time >= before));
            }
            94 => {
                lists.tick(5).unwrap();
            }
            95 => {
                lists.prefetch(Time((first + dice.below(kind.buckets)) as i64)).unwrap();
            }
            96 if dice.below(4) == 0 => {
                lists.reclaim(1 + dice.below(200_000)).unwrap();
            }
            97 if kind.checkpoints && sealing.is_none() && dice.below(8) == 0 => {
                sealing = Some((ground.begin(&mut lists).unwrap(), model.clone(), first));
            }
            97 if kind.checkpoints && sealing.is_none() && dice.below(8) == 0 => {
                let outcome = match dice.below(4) {
                    0 => CheckpointOutcome::Abandoned,
                    _ => CheckpointOutcome::Committed,
                };
                ground.checkpoint(&mut lists, outcome).unwrap();
                if outcome == CheckpointOutcome::Committed {
                    committed = (model.clone(), first);
                }
            }
            98 if kind.checkpoints && dice.below(8) == 0 => {
                drop((lists, sealing.take()));
                assert_eq!(account.used(), 0, "{when}");
                (model, first) = committed.clone();
                (lists, account) = ground.open(layout).unwrap();
            }
            99 if kind.groups > 0 => {
                let group = dice.below(u64::from(kind.groups)) as u16;
                let hashes = hashes_of(group, kind.groups);
                let mut others = Dice(dice.next());
                let mut change = |lists: &mut L::Lists, model: &mut Model<K, E>| {
                    for _ in 0..others.below(40) {
                        serial += 1;
                        let (time, k) = (at(&mut others, first), key(others.below(kind.keys)));
                        if !hashes.contains(&k.key_hash()) {
                            lists.append(time, &k, element(serial)).unwrap();
                            model.entry((time, k)).or_default().push(element(serial));
                        }
                    }
                };
                let meanwhile: Meanwhile<'_, K, E, L::Lists> = &mut change;
                fold_group(&mut lists, &mut model, (time, &hashes), &mut dice, meanwhile, &when);
                if dice.below(2) == 0 {
                    let asked = (time, &hashes, if seed % 3 < 2 { 3 } else { 0 });
                    remove_group(&mut lists, &mut model, asked, &mut dice, meanwhile);
                }
            }
            _ => {}
        }
        if let Some((mut taken, then, then_first)) = sealing.take() {
            let outcome = match dice.below(60) {
                0 => CheckpointOutcome::Abandoned,
                _ => CheckpointOutcome::Committed,
            };
            if outcome == CheckpointOutcome::Abandoned {
                ground.decide(&mut lists, taken, outcome).unwrap();
            } else if dice.below(3) > 0 && ground.advance(&mut lists, &mut taken).unwrap() {
                ground.decide(&mut lists, taken, outcome).unwrap();
                committed = (then, then_first);
                in_steps += 1;
            } else {
                sealing = Some((taken, then, then_first));
            }
        }
        assert!(account.used() <= ground.memory, "{when}: {account:?}");
        let elements: usize = model.values().map(Vec::len).sum();
        assert!(lists.len() >= elements as u64, "{when}");
        let next = model.iter().find(|(_, list)| !list.is_empty()).map(|((time, _), _)| *time);
        let told = lists.next_bucket(Time::MIN);
        assert!(told.is_none_or(|told| next.is_none_or(|next| told <= next)), "{when}");
        assert!(next.is_none() || told.is_some(), "{when}");
    }
    if kind.checkpoints {
        // One more, of which something may be done.
        println!("seed {seed}: {in_steps} checkpoints in steps");
        let last = sealing.take().map(|(taken, then, _)| (taken, then));
        let (mut taken, then) =
            last.unwrap_or_else(|| (ground.begin(&mut lists).unwrap(), model.clone()));
        while !ground.advance(&mut lists, &mut taken).unwrap() {
            serial += 1;
            let (time, k) = (Time(first as i64 + 1), key(serial % kind.keys));
            lists.append(time, &k, element(serial)).unwrap();
        }
        ground.decide(&mut lists, taken, CheckpointOutcome::Committed).unwrap();
        drop(lists);
        assert_eq!(account.used(), 0, "seed {seed}: {account:?}");
        (lists, account) = ground.open(layout).unwrap();
        model = then;
    }
    let all = Time::MIN..Time::MAX;
    let found = folded(&mut lists, all.clone(), 100).unwrap();
    assert_equal(&found, &folded_model(&model, &all), "at the end");
    for ((time, k), wanted) in &model {
        assert_eq!(read(&mut lists, *time, k).unwrap(), *wanted, "seed {seed}, {time:?}");
    }
    drop(lists);
    assert_eq!(account.used(), 0, "seed {seed}: {account:?}");
}

fn simulated(seed: u64) -> Ground {
    let device = Simulated::new(seed, Faults::late(2));
    // Packing takes some memory.
    let memory = if seed % 3 < 2 { 1 << 20 } else { 768 << 10 };
    Ground::new(Some(Arc::new(device)), memory, seed % 2 == 0)
}

const KIND: Kind = Kind {
    steps: if cfg!(miri) { 60 } else { 3_000 },
    keys: 60,
    buckets: 5,
    checkpoints: true,
    groups: 0,
};

/// An append log that packs whatever it can, and reads it at once or in parts; only what it has to; or nothing.
fn packing(seed: u64) -> AppendLog {
    match seed % 4 {
        0 => AppendLog::new().pack_all(),
        1 => AppendLog::new().pack_all_in_parts(),
        2 => AppendLog::new(),
        _ => AppendLog::new().packs_slices(false),
    }
}

fn words(n: u64) -> String {
    format!("{n} ").repeat(1 + n as usize % 5)
}

#[test]
fn heap_in_memory_and_with_checkpoints() {
    for seed in 0..4 {
        let mut ground = Ground::new(None, 64 << 20, false);
        let kind = Kind { checkpoints: false, ..KIND };
        history(&Heap::new(), &mut ground, &kind, seed, |k| k, |e| e);
        let mut ground = simulated(seed);
        ground.memory = 64 << 20;
        history(&Heap::new(), &mut ground, &KIND, seed, words, words);
    }
}

#[test]
fn append_log_in_memory() {
    for seed in 0..6 {
        let mut ground = Ground::new(None, 64 << 20, seed % 2 == 0);
        let kind = Kind { checkpoints: false, ..KIND };
        history(&AppendLog::new(), &mut ground, &kind, seed, |k| k, |e| e);
        history(&AppendLog::new(), &mut ground, &kind, seed, words, words);
    }
}

#[test]
fn append_log_in_little_memory_on_a_simulated_device() {
    for seed in 0..12 {
        history(&packing(seed), &mut simulated(seed), &KIND, seed, |k| k, |e| e);
    }
}

#[test]
fn append_log_of_values_with_heap_in_little_memory() {
    // Odd seeds have a helper inline: one with a thread has Miri wait for it.
    for seed in if cfg!(miri) { 1..2 } else { 0..8 } {
        let kind = Kind { steps: KIND.steps.min(2_000), ..KIND };
        history(&packing(seed), &mut simulated(seed), &kind, seed, words, words);
    }
}

/// An element that begins with a line of the cache.
#[derive(Clone, Debug, PartialEq, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
#[repr(align(64))]
struct Lined(u64);

#[test]
fn append_log_of_elements_of_any_size_in_little_memory() {
    fn plays<K: Key + Ord + std::fmt::Debug, E: State + PartialEq + std::fmt::Debug>(
        key: fn(u64) -> K,
        element: fn(u64) -> E,
    ) {
        for seed in 0..2 {
            let kind = Kind { steps: KIND.steps.min(1_500), ..KIND };
            history(&packing(seed), &mut simulated(seed), &kind, seed, key, element);
            let mut ground = simulated(seed);
            ground.movable = true;
            history(&packing(seed), &mut ground, &leaving(kind), seed, key, element);
        }
    }
    // Keys are elsewhere than elements: not each pair of their types is compiled.
    plays(|k| k, |_| ());
    plays(words, |n| n as u8);
    plays(|k| k, |n| [n as u8; 3]);
    plays(words, |n| (n, -(n as i64)));
    plays(|k| k, |n| [n; 8]);
    plays(words, Lined);
    plays(|k| k, |n| (n as u8, words(n)));
    plays(words, |n| vec![n; n as usize % 5]);
}

#[test]
fn append_log_in_little_memory_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let device = open_device(directory.path(), &IoOptions::default()).unwrap();
    let mut ground = Ground::new(Some(device), 1 << 20, true);
    history(&packing(78), &mut ground, &KIND, 77, |k| k, |e| e);
}

/// A key whose hash is that of few.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Colliding(u64);

impl alluvium_pagestore::KeyHash for Colliding {
    fn key_hash(&self) -> u64 {
        alluvium_pagestore::hash_word(self.0 % 7)
    }
}

#[test]
fn keys_of_equal_hashes_never_mix() {
    for seed in 0..6 {
        history(&packing(seed), &mut simulated(seed), &KIND, seed, Colliding, |e| e);
    }
}

/// The kind of history in which key groups leave buckets.
fn leaving(kind: Kind) -> Kind {
    Kind { groups: 4, ..kind }
}

#[test]
fn key_groups_leave_lists_on_the_heap() {
    for seed in 0..4 {
        let mut ground = simulated(seed);
        (ground.memory, ground.movable) = (64 << 20, true);
        history(&Heap::new(), &mut ground, &leaving(KIND), seed, words, words);
        let mut ground = simulated(seed);
        (ground.memory, ground.movable) = (64 << 20, true);
        history(&Heap::new(), &mut ground, &leaving(KIND), seed, Colliding, |e| e);
    }
}

#[test]
fn key_groups_leave_an_append_log() {
    for seed in 0..8 {
        let mut ground = simulated(seed);
        ground.movable = true;
        history(&packing(seed), &mut ground, &leaving(KIND), seed, |k| k, |e| e);
        let mut ground = simulated(seed);
        ground.movable = true;
        let kind = Kind { steps: 2_000, ..leaving(KIND) };
        history(&packing(seed), &mut ground, &kind, seed, words, words);
        let mut ground = simulated(seed);
        ground.movable = true;
        history(&packing(seed), &mut ground, &leaving(KIND), seed, Colliding, |e| e);
    }
}
