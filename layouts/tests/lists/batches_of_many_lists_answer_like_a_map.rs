//! Batches over more lists than a cache has, which are looked up before they are appended to.
//!
//! What this catches: an element that comes to another list than its key's, or out of order, because
//! what was looked up has moved since: a list that is new, a part of the table that was split, lists
//! that were cleared, frozen or written meanwhile; keys of equal hashes; what does not come back of a
//! batch that is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, Lists, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{ErrorKind, Key, Time};

use crate::common::{Dice, Ground, Model, folded, folded_model, read};

/// Batches with clears and freezes between them, of lists in two buckets.
fn history<K: Key + Ord + std::fmt::Debug>(memory: u64, seed: u64, key: impl Fn(u64) -> K) {
    let device = Simulated::new(seed, Faults::late(2));
    let mut ground = Ground::new(Some(Arc::new(device)), memory, seed % 2 == 0);
    let (mut lists, account) = ground.open::<K, u64, _>(&AppendLog::new()).unwrap();
    let (mut model, mut dice, mut serial) = (Model::<K, u64>::new(), Dice(seed), 0);
    let mut keys = 2_000;
    for step in 0..250 {
        // New ones come all the time.
        keys += dice.below(60);
        let mut batch = Vec::new();
        let same = dice.below(4) == 0;
        for _ in 0..dice.below(400) {
            serial += 1;
            let time = Time(if same { 1 } else { 1 + dice.below(2) as i64 });
            // The same key often comes again at once.
            let known = batch.last().filter(|_| dice.below(8) == 0);
            let k = known.map_or_else(|| key(dice.below(keys)), |(k, ..): &(K, _, _)| k.clone());
            batch.push((k.clone(), time, serial));
            model.entry((time, k)).or_default().push(serial);
        }
        lists.append_batch(&mut batch).unwrap();
        assert!(batch.is_empty());
        assert!(account.used() <= memory, "seed {seed}, step {step}: {account:?}");
        let (time, k) = (Time(1 + dice.below(2) as i64), key(dice.below(keys)));
        match dice.below(48) {
            0..=15 => {
                lists.clear_key(time, &k).unwrap();
                model.remove(&(time, k));
            }
            16..=31 => {
                let wanted = model.get(&(time, k.clone())).cloned().unwrap_or_default();
                assert_eq!(read(&mut lists, time, &k).unwrap(), wanted, "seed {seed}, step {step}");
            }
            32 => drop(lists.reclaim(1 << 20).unwrap()),
            _ => {}
        }
    }
    for time in 1..=2 {
        let range = Time(time)..Time(time + 1);
        let found = folded(&mut lists, range.clone(), 500).unwrap();
        assert!(found == folded_model(&model, &range), "seed {seed}, bucket {time}");
    }
    drop(lists);
    assert_eq!(account.used(), 0);
}

#[test]
fn in_much_memory_and_in_little() {
    for seed in 0..3 {
        history(64 << 20, seed, |n| n);
        history(1 << 20, seed, |n| n);
        history(64 << 20, seed, |n| format!("key {n}"));
    }
}

/// A key whose hash others have too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Sharing(u64);

impl alluvium_pagestore::KeyHash for Sharing {
    fn key_hash(&self) -> u64 {
        alluvium_pagestore::hash_word(self.0 / 3)
    }
}

#[test]
fn of_keys_that_share_their_hashes() {
    for seed in 0..2 {
        history(64 << 20, seed, Sharing);
    }
}

#[test]
fn what_a_refused_batch_has_not_appended_comes_back_in_order() {
    let mut ground = Ground::new(None, 512 << 10, false);
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    let (mut model, mut serial) = (BTreeMap::<u64, Vec<u64>>::new(), 0);
    let (left, error) = loop {
        let mut batch: Vec<_> = (0..300)
            .map(|_| {
                serial += 1;
                (serial * 7919 % 6_000, Time(1), serial)
            })
            .collect();
        let all = batch.clone();
        let done = lists.append_batch(&mut batch);
        for (key, _, n) in &all[..all.len() - batch.len()] {
            model.entry(*key).or_default().push(*n);
        }
        assert_eq!(batch, all[all.len() - batch.len()..]);
        if let Err(error) = done {
            break (batch, error);
        }
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(!left.is_empty() && account.stats().peak <= 512 << 10, "{account:?}");
    assert_eq!(folded(&mut lists, Time(1)..Time(2), 100).unwrap(), model);
}
