//! Lists by the hashes of their keys: as key groups come and go.
//!
//! What this catches: elements of a group that are missed, doubled or out of order because tables were
//! split, or lists written, merged or moved to other buckets, between two steps, or because a visit failed;
//! lists of other groups that are seen or removed; removing that reads, or lets come back what was
//! removed; steps that look at the whole bucket, or tell a long list at once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, ByHash, Cursor, Heap, Lists, ListsLayout, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Error, ErrorKind, Key, KeyGroup, KeyHash, State, Time};

use crate::common::{Dice, Ground, Model, read};

/// Lists by ranges of hashes.
pub fn in_order<K: Key, E>(lists: &mut impl Lists<K, E>) -> &mut dyn ByHash<K, E, Time> {
    lists.by_hash().expect("lists in the order of hashes")
}

/// What happens to lists between two steps.
pub type Meanwhile<'m, K, E, L> = &'m mut dyn FnMut(&mut L, &mut Model<K, E>);

pub fn hashes_of(group: u16, groups: u16) -> RangeInclusive<u64> {
    KeyGroup(group).hashes(groups)
}

/// Reads a group in a bucket, in steps and with visits that fail, and compares.
pub fn fold_group<K, E, L>(
    lists: &mut L,
    model: &mut Model<K, E>,
    (bucket, hashes): (Time, &RangeInclusive<u64>),
    dice: &mut Dice,
    meanwhile: Meanwhile<'_, K, E, L>,
    when: &str,
) where
    K: Key + Ord + std::fmt::Debug,
    E: State + PartialEq + std::fmt::Debug,
    L: Lists<K, E>,
{
    let mut found: BTreeMap<K, Vec<E>> = BTreeMap::new();
    let (mut cursor, mut tries) = (Cursor::default(), 0);
    while !cursor.done {
        let fuel = 1 + dice.below(80) as usize;
        let mut told = 0;
        let step = in_order(lists).visit_hashes(
            bucket,
            hashes,
            &mut cursor,
            fuel,
            &mut |key, from, run| {
                if dice.below(12) == 0 {
                    return Err(Error::new(ErrorKind::Backpressure, "no more"));
                }
                assert!(!run.is_empty() && hashes.contains(&key.key_hash()), "{when}");
                let list = found.entry(key.clone()).or_default();
                assert_eq!(from, list.len() as u64, "{when}: {key:?}");
                list.extend_from_slice(run);
                told += run.len();
                Ok(())
            },
        );
        assert!(told <= fuel, "{when}: {told} told with a fuel of {fuel}");
        match step {
            Err(error) if error.kind() == ErrorKind::Backpressure => {}
            Err(error) if error.kind() == ErrorKind::OverBudget && tries < 1000 => {
                tries += 1;
                lists.tick(100).unwrap();
                std::thread::yield_now();
            }
            step => step.unwrap(),
        }
        if dice.below(4) == 0 {
            meanwhile(lists, model);
        }
    }
    let wanted = |((at, key), list): (&(Time, K), &Vec<E>)| {
        let is_asked = *at == bucket && hashes.contains(&key.key_hash()) && !list.is_empty();
        is_asked.then(|| (key.clone(), list.clone()))
    };
    let wanted: BTreeMap<K, Vec<E>> = model.iter().filter_map(wanted).collect();
    for (key, list) in &wanted {
        assert_eq!(found.get(key), Some(list), "{when}: {key:?} in {bucket:?}");
    }
    assert_eq!(found.len(), wanted.len(), "{when}");
}

/// Removes a group from a bucket, in steps, of which each makes so many reads at most: what is packed is read.
pub fn remove_group<K: Key + Ord, E: State, L: Lists<K, E>>(
    lists: &mut L,
    model: &mut Model<K, E>,
    (bucket, hashes, reads_most): (Time, &RangeInclusive<u64>, u64),
    dice: &mut Dice,
    meanwhile: Meanwhile<'_, K, E, L>,
) {
    let mut cursor = Cursor::default();
    while !cursor.done {
        let fuel = 1 + dice.below(80) as usize;
        let reads = lists.stats().cold_reads;
        in_order(lists).remove_hashes(bucket, hashes, &mut cursor, fuel).unwrap();
        assert!(lists.stats().cold_reads - reads <= reads_most, "removing reads");
        if dice.below(3) == 0 {
            meanwhile(lists, model);
        }
    }
    model.retain(|(at, key), _| *at != bucket || !hashes.contains(&key.key_hash()));
}

const GROUPS: u16 = 64;

/// A group of many costs about its part, wherever its lists are.
fn share_looked_at<L: ListsLayout<u64, u64>>(layout: &L, memory: u64, stored: bool) -> f64 {
    let device = Simulated::new(3, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), memory, false);
    ground.movable = true;
    let (mut lists, _) = ground.open::<u64, u64, _>(layout).unwrap();
    let (keys, mut found, mut most) = (100_000, 0, 0);
    for key in 0..keys {
        lists.append(Time(1), &key, key).unwrap();
        lists.append(Time(1), &key, key + 1).unwrap();
    }
    if stored {
        lists.reclaim(u64::MAX).unwrap();
    }
    for group in 0..GROUPS {
        let (before, mut cursor) = (lists.stats().sought, Cursor::default());
        while !cursor.done {
            let hashes = hashes_of(group, GROUPS);
            in_order(&mut lists)
                .visit_hashes(Time(1), &hashes, &mut cursor, usize::MAX, &mut |key, from, run| {
                    found += run.len() as u64;
                    run.iter().zip(from..).for_each(|(one, n)| assert_eq!(*one, key + n));
                    Ok(())
                })
                .unwrap();
        }
        most = most.max(lists.stats().sought - before);
    }
    assert_eq!(found, 2 * keys);
    most as f64 / keys as f64
}

#[test]
fn a_group_of_64_costs_a_64th() {
    for (layout, memory, stored) in
        [(AppendLog::new(), 64 << 20, false), (AppendLog::new().block(1 << 10), 64 << 20, true)]
    {
        let share = share_looked_at(&layout, memory, stored);
        assert!(
            share > 0.9 / f64::from(GROUPS) && share < 1.6 / f64::from(GROUPS),
            "{share}, stored: {stored}"
        );
    }
}

/// What a bucket has of one group, after another one has left it and come back.
#[test]
fn a_group_that_has_left_comes_back_alone() {
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), 1 << 20, false);
    ground.movable = true;
    let (mut lists, _) = ground.open::<u64, Vec<u64>, _>(&AppendLog::new()).unwrap();
    let mut model = Model::new();
    let mut dice = Dice(1);
    let append = |lists: &mut _, model: &mut Model<u64, Vec<u64>>, n: u64| {
        for key in 0..400 {
            let element = vec![n; 1 + (key % 20) as usize];
            Lists::<u64, _>::append(lists, Time::MAX, &key, element.clone()).unwrap();
            model.entry((Time::MAX, key)).or_default().push(element);
        }
    };
    for round in 0..12 {
        (0..20).for_each(|n| append(&mut lists, &mut model, round * 100 + n));
        let hashes = hashes_of((round % 4) as u16, 4);
        let asked = (Time::MAX, &hashes, 0);
        remove_group(&mut lists, &mut model, asked, &mut dice, &mut |_, _| {});
        lists.reclaim(u64::MAX).unwrap();
        (0..50).for_each(|_| assert!(lists.tick(10).is_ok()));
        for (key, list) in (0..400).map(|key| (key, model.get(&(Time::MAX, key)))) {
            let wanted = list.cloned().unwrap_or_default();
            assert_eq!(read(&mut lists, Time::MAX, &key).unwrap(), wanted, "round {round}, {key}");
        }
    }
    assert!(lists.stats().rewritten > 0, "runs were merged");
}

/// A long list is told in parts, and goes on where it was left, in memory and on storage.
#[test]
fn a_long_list_is_read_once_however_little_fuel_there_is() {
    const LEN: u64 = 200_000;
    let device = Simulated::new(7, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), 1 << 20, false);
    ground.movable = true;
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    for n in 0..LEN {
        lists.append(Time::MAX, &7, n).unwrap();
    }
    let hash = 7u64.key_hash();
    let (mut cursor, mut next) = (Cursor::default(), 0);
    let before = lists.stats().codec_calls;
    while !cursor.done {
        in_order(&mut lists)
            .visit_hashes(Time::MAX, &(hash..=hash), &mut cursor, 50, &mut |_, from, run| {
                assert_eq!((from, run[0]), (next, next));
                next += run.len() as u64;
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(next, LEN);
    // Its blocks are read once to see that nothing else is there, and once to be told.
    let blocks = lists.stats().codec_calls - before;
    assert!(blocks > 100 && blocks < 8 * LEN / 2000 * 2, "{blocks} blocks were decoded");
}

#[test]
fn lists_on_the_heap_stay_in_their_buckets_while_others_leave() {
    let mut ground = Ground::new(None, 64 << 20, false);
    ground.movable = true;
    let (mut lists, account) = ground.open::<u64, u64, _>(&Heap::new()).unwrap();
    for (time, key) in (0..10).flat_map(|time| (0..50).map(move |key| (time, key))) {
        lists.append(Time(time), &key, key).unwrap();
    }
    // All of the first buckets leave while a fold is in a later one.
    let (mut cursor, mut found) = (Cursor::default(), 0);
    let mut step = |lists: &mut <Heap as ListsLayout<u64, u64>>::Lists, cursor: &mut Cursor| {
        lists
            .fold(Time(0)..Time(10), cursor, 7, &mut |key, elements| {
                while let Some(element) = elements.next()? {
                    assert_eq!(element, key);
                    found += 1;
                }
                Ok(())
            })
            .unwrap();
    };
    while lists.next_bucket(Time::MIN) < Some(Time(5)) {
        step(&mut lists, &mut cursor);
        let time = lists.next_bucket(Time::MIN).unwrap();
        let mut all = Cursor::default();
        in_order(&mut lists).remove_hashes(time, &(0..=u64::MAX), &mut all, usize::MAX).unwrap();
        assert!(all.done);
    }
    while !cursor.done {
        step(&mut lists, &mut cursor);
    }
    assert!(found >= 5 * 50, "{found} were found of those that have stayed");
    lists.purge(Time::MAX, usize::MAX).unwrap();
    drop(lists);
    assert_eq!(account.used(), 0);
}
