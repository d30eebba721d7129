//! Many small slices cost storage and little memory: what a state of some megabytes has to take of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, CheckpointOutcome, Cursor, Lists, Upkeep};
use alluvium_pagestore::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium_pagestore::{ErrorKind, Key, State, Time};

use crate::common::{Dice, Ground, folded, read};

fn ground(memory: u64) -> (Ground, Simulated) {
    let device = Simulated::new(5, Faults::none());
    (Ground::new(Some(Arc::new(device.clone())), memory, false), device)
}

fn packing() -> AppendLog {
    AppendLog::new().packs_slices(true)
}

/// The lists of one bucket.
fn fold<K: Key + Ord, E: State>(lists: &mut impl Lists<K, E>, bucket: Time) -> BTreeMap<K, Vec<E>> {
    folded(lists, bucket..bucket.plus(1), 100).unwrap()
}

#[test]
fn a_value_a_second_is_taken_for_a_day_in_eight_mebibytes() {
    let memory = 8 << 20;
    let (mut ground, _) = ground(memory);
    let (mut lists, account) = ground.open::<u64, [u64; 4], _>(&packing()).unwrap();
    lists.fold_at_once(1_000);
    let seconds = 86_400;
    for second in 0..seconds {
        let time = Time(second * 1_000);
        lists.append(time, &7, [second as u64; 4]).unwrap_or_else(|refused| {
            panic!("{second}: {}", refused.error);
        });
    }
    assert!(account.stats().peak <= memory, "{account:?}");
    let stats = lists.stats();
    assert!(stats.disk_bytes <= 700 * seconds as u64, "{stats:?}");
    assert_eq!(lists.len(), seconds as u64);
    ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
    for second in (0..seconds).step_by(997) {
        let found = fold(&mut lists, Time(second * 1_000));
        assert_eq!(found, BTreeMap::from([(7, vec![[second as u64; 4]])]), "{second}");
    }
    let mut next = lists.next_bucket(Time::MIN);
    for second in 0..seconds {
        assert_eq!(next, Some(Time(second * 1_000)));
        next = lists.next_bucket(Time(second * 1_000 + 1));
    }
    assert_eq!(next, None);
    lists.purge(Time(seconds / 2 * 1_000), usize::MAX).unwrap();
    assert_eq!(lists.len(), seconds as u64 / 2);
    drop(lists);
    assert_eq!(account.used(), 0);
    let (mut lists, _) = ground.open::<u64, [u64; 4], _>(&packing()).unwrap();
    assert_eq!(lists.len(), seconds as u64);
    let last = fold(&mut lists, Time((seconds - 1) * 1_000));
    assert_eq!(last[&7], [[seconds as u64 - 1; 4]]);
    lists.purge(Time::MAX, usize::MAX).unwrap();
    while lists.tick(1_000).unwrap() > 0 {}
    assert_eq!(lists.len(), 0);
}

#[test]
fn forty_slices_in_turns_take_any_number_of_strings_in_two_mebibytes() {
    let memory = 2 << 20;
    let (mut ground, _) = ground(memory);
    let (mut lists, account) = ground.open::<u64, String, _>(&packing()).unwrap();
    lists.fold_at_once(1_000);
    for n in 0..200_000u64 {
        let time = Time((n % 40) as i64 * 1_000);
        lists.append(time, &(n % 97), format!("{n:012}")).unwrap_or_else(|refused| {
            panic!("{n}: {}", refused.error);
        });
    }
    assert!(account.stats().peak <= memory, "{account:?}");
    for slice in 0..40u64 {
        let found = fold(&mut lists, Time(slice as i64 * 1_000));
        let mut wanted: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for n in (slice..200_000).step_by(40) {
            wanted.entry(n % 97).or_default().push(format!("{n:012}"));
        }
        assert!(found == wanted, "{slice}");
    }
}

#[test]
fn a_list_of_a_hundred_thousand_is_read_in_two_mebibytes() {
    let memory = 2 << 20;
    let (mut ground, _) = ground(memory);
    let (mut lists, account) = ground.open::<u64, [u64; 4], _>(&packing()).unwrap();
    for n in 0..100_000u64 {
        lists.append(Time(1), &7, [n; 4]).unwrap();
    }
    let list = read(&mut lists, Time(1), &7).unwrap();
    assert!(list.into_iter().eq((0..100_000).map(|n| [n; 4])));
    assert!(account.stats().peak <= memory, "{account:?}");
}

#[test]
fn sessions_of_many_keys_move_in_one_mebibyte() {
    let memory = 1 << 20;
    let (mut ground, _) = ground(memory);
    let (mut lists, account) = ground.open::<u64, [u64; 4], _>(&packing()).unwrap();
    let (keys, rounds) = (20_000, 3);
    let at = |key: u64, round: u64| Time((key * 10 + round * 1_000_000) as i64);
    for round in 0..rounds {
        for key in 0..keys {
            if round > 0 {
                lists.relocate(at(key, round - 1), at(key, round), &key).unwrap_or_else(|error| {
                    panic!("{round} {key}: {error}");
                });
            }
            lists.append(at(key, round), &key, [round; 4]).unwrap_or_else(|refused| {
                panic!("{round} {key}: {}", refused.error);
            });
        }
    }
    assert!(account.stats().peak <= memory, "{account:?}");
    for key in (0..keys).step_by(37) {
        let found = fold(&mut lists, at(key, rounds - 1));
        assert_eq!(found, BTreeMap::from([(key, vec![[0; 4], [1; 4], [2; 4]])]), "{key}");
        lists.clear_key(at(key, rounds - 1), &key).unwrap();
        assert!(read(&mut lists, at(key, rounds - 1), &key).unwrap().is_empty());
    }
}

/// Everything at once, against a map, with checkpoints that are opened again.
#[test]
fn many_small_slices_answer_like_a_map() {
    for seed in 0..4 {
        let memory = 1 << 20;
        let (mut ground, _) = ground(memory);
        ground.threads = seed % 2 == 1;
        // That has merges in small parts, too.
        let layout = if seed % 3 == 0 { packing() } else { AppendLog::new().pack_all() };
        let (mut lists, mut account) = ground.open::<u64, u64, _>(&layout).unwrap();
        let mut model: BTreeMap<Time, BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
        let mut committed = model.clone();
        let mut dice = Dice(seed);
        let (slices, keys) = (3_000, 3);
        let mut low = 0;
        for n in 0..40_000u64 {
            let time = Time((low + dice.below(slices)) as i64 * 10);
            let key = dice.below(keys);
            match dice.below(100) {
                0..80 => {
                    lists.append(time, &key, n).unwrap();
                    model.entry(time).or_default().entry(key).or_default().push(n);
                }
                80..90 => {
                    let found = fold(&mut lists, time);
                    assert_eq!(found, model.get(&time).cloned().unwrap_or_default(), "{seed} {n}");
                }
                90..93 => {
                    let found = read(&mut lists, time, &key).unwrap();
                    let wanted = model.get(&time).and_then(|lists| lists.get(&key));
                    assert_eq!(found, wanted.cloned().unwrap_or_default(), "{seed} {n}");
                }
                93..95 => {
                    lists.clear_key(time, &key).unwrap();
                    model.entry(time).or_default().remove(&key);
                    model.retain(|_, lists| !lists.is_empty());
                }
                95..97 => {
                    let to = Time(time.0 + 10);
                    lists.relocate(time, to, &key).unwrap();
                    if let Some(mut moved) = model.entry(time).or_default().remove(&key) {
                        let there = model.entry(to).or_default().entry(key).or_default();
                        moved.append(there);
                        *there = moved;
                    }
                    model.retain(|_, lists| !lists.is_empty());
                }
                97..99 => {
                    let found = folded(&mut lists, time..Time(time.0 + 50), 7).unwrap();
                    let mut wanted: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
                    for lists in model.range(time..Time(time.0 + 50)).map(|(_, lists)| lists) {
                        for (key, list) in lists {
                            wanted.entry(*key).or_default().extend(list);
                        }
                    }
                    assert_eq!(found, wanted, "{seed} {n}");
                }
                _ if dice.below(4) == 0 => {
                    low += dice.below(40);
                    let before = Time(low as i64 * 10);
                    lists.purge(before, usize::MAX).unwrap();
                    model = model.split_off(&before);
                }
                _ if dice.below(4) == 0 => {
                    let outcome = match dice.below(3) {
                        0 => CheckpointOutcome::Abandoned,
                        _ => CheckpointOutcome::Committed,
                    };
                    ground.checkpoint(&mut lists, outcome).unwrap();
                    if outcome == CheckpointOutcome::Committed {
                        committed = model.clone();
                        let (mut beside, _) = ground.open_beside::<u64, u64, _>(&layout).unwrap();
                        for (time, lists) in committed.range(time..).take(20) {
                            assert_eq!(fold(&mut beside, *time), *lists, "{seed} {n}");
                        }
                    }
                }
                _ if dice.below(20) == 0 => {
                    drop(lists);
                    assert_eq!(account.used(), 0);
                    (lists, account) = ground.open(&layout).unwrap();
                    model = committed.clone();
                }
                _ => {
                    // A bucket whose lists are gone may stay for a while.
                    let next = model.range(time..).next().map(|(time, _)| *time);
                    let told = lists.next_bucket(time);
                    let is_early = told.is_some_and(|told| next.is_none_or(|next| told <= next));
                    assert!(is_early || told == next, "{seed} {n}: {told:?} for {next:?}");
                }
            }
            assert!(account.used() <= memory, "{account:?}");
        }
        for (time, wanted) in &model {
            assert_eq!(fold(&mut lists, *time), *wanted, "{seed}");
        }
    }
}

/// A fold that goes on while what it folds leaves memory.
#[test]
fn what_is_packed_between_two_steps_of_a_fold_is_not_left_out() {
    let (mut ground, _) = ground(1 << 20);
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
    (0..50).for_each(|key| lists.append(Time(1), &key, key).unwrap());
    let mut taken = ground.begin(&mut lists).unwrap();
    let (mut cursor, mut found, mut is_taken) = (Cursor::default(), BTreeMap::new(), false);
    while !cursor.done {
        is_taken = is_taken || ground.advance(&mut lists, &mut taken).unwrap();
        lists
            .fold(Time(1)..Time(2), &mut cursor, 1, &mut |key, list| {
                assert_eq!(found.insert(*key, list.next()?.copied()), None);
                Ok(())
            })
            .unwrap();
    }
    assert!(found.into_iter().eq((0..50).map(|key| (key, Some(key)))));
}

/// A fold of a window of many slices loads some of them in each call, whatever is done in between.
#[test]
fn one_call_of_a_fold_loads_a_bounded_part_of_its_window() {
    let slices = 1_500;
    for (interrupted, beside) in [(false, false), (true, false), (true, true), (false, true)] {
        let (mut ground, _) = ground(64 << 20);
        let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
        lists.fold_at_once(slices as i128);
        let mut wanted: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for slice in 0..slices {
            for n in 0..3 {
                let (key, element) = ((slice + n) % 11, slice * 3 + n);
                lists.append(Time(slice as i64), &key, element).unwrap();
                wanted.entry(key).or_default().push(element);
            }
        }
        lists.reclaim(u64::MAX).unwrap();
        let (mut cursor, mut found) = (Cursor::default(), BTreeMap::<u64, Vec<u64>>::new());
        let (mut calls, mut most) = (0, 0);
        while !cursor.done {
            let before = lists.stats().cold_reads;
            let window = Time(0)..Time(slices as i64);
            let fold = lists.fold(window, &mut cursor, usize::MAX, &mut |key, list| {
                while let Some(element) = list.next()? {
                    found.entry(*key).or_default().push(*element);
                }
                Ok(())
            });
            fold.unwrap();
            (calls, most) = (calls + 1, most.max(lists.stats().cold_reads - before));
            assert!(calls < 40, "a fold that is interrupted comes to its end");
            if interrupted {
                // Of another key each time, so that it looks for room.
                lists.append(Time(slices as i64), &(100 + calls), 0).unwrap();
            }
            if beside {
                // Another fold, of a slice that is packed or of one that is not there.
                let slice = calls as i64 % 2 * 2 * slices as i64 + 7;
                let (mut one, mut told) = (Cursor::default(), 0);
                while !one.done {
                    let window = Time(slice)..Time(slice + 1);
                    let fold = lists.fold(window, &mut one, usize::MAX, &mut |_, list| {
                        while list.next()?.is_some() {
                            told += 1;
                        }
                        Ok(())
                    });
                    fold.unwrap();
                }
                assert_eq!(told, if slice < slices as i64 { 3 } else { 0 });
            }
        }
        assert_eq!(found, wanted);
        let is_alone = !interrupted && !beside;
        assert!(calls > if is_alone { 5 } else { 2 }, "{calls} calls");
        assert!(!is_alone || most == 1, "{most} passes over the levels in one call");
    }
}

/// Slices that are folded one after the other are read some at a time, and what comes to them meanwhile is not left out.
#[test]
fn slices_that_are_folded_in_order_are_read_ahead() {
    let (slices, memory) = (2_000, 4 << 20);
    let (mut ground, _) = ground(memory);
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
    let mut wanted: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for n in 0..slices * 3 {
        lists.append(Time(n % slices), &7, n as u64).unwrap();
        wanted.entry(n % slices).or_default().push(n as u64);
    }
    lists.reclaim(u64::MAX).unwrap();
    let before = lists.stats().cold_reads;
    for slice in 0..slices {
        if slice % 100 == 50 {
            // To one that was read ahead, in memory first and then packed.
            for (late, packs) in [(slice + 1, false), (slice + 2, true)] {
                lists.append(Time(late), &7, late as u64).unwrap();
                wanted.entry(late).or_default().push(late as u64);
                if packs {
                    lists.reclaim(u64::MAX).unwrap();
                }
            }
        }
        if slice % 100 == 75 {
            lists.clear_key(Time(slice + 1), &7).unwrap();
            wanted.entry(slice + 1).or_default().clear();
        }
        let found = fold(&mut lists, Time(slice)).remove(&7).unwrap_or_default();
        assert_eq!(found, wanted[&slice], "slice {slice}");
        if slice % 3 == 0 {
            lists.purge(Time(slice + 1), usize::MAX).unwrap();
        }
    }
    let reads = lists.stats().cold_reads - before;
    assert!(reads < slices as u64 / 8, "{reads} passes over the levels for {slices} slices");
    assert!(account.stats().peak <= memory, "{account:?}");
}

/// Late data comes to one slice again and again.
#[test]
fn a_slice_that_is_packed_often_is_cleared_and_moved() {
    let memory = 1 << 20;
    let (mut ground, _) = ground(memory);
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
    for round in 0..60 {
        (0..100).for_each(|n| lists.append(Time(1), &(round * 100 + n), n).unwrap());
        lists.reclaim(u64::MAX).unwrap();
    }
    lists.clear_key(Time(1), &7).unwrap();
    lists.relocate(Time(1), Time(2), &8).unwrap();
    assert!(read(&mut lists, Time(1), &7).unwrap().is_empty());
    assert_eq!(read(&mut lists, Time(2), &8).unwrap(), [8]);
    assert_eq!(fold(&mut lists, Time(1)).len(), 5_998);
    assert!(account.stats().peak <= memory, "{account:?}");
}

/// What is accepted of a window of many slices can be folded at once, however it was written.
#[test]
fn a_window_of_many_slices_is_folded_in_the_memory_that_took_it() {
    for (memory, slices, lists_each, each) in [(4 << 20, 64, 6, 200), (4 << 20, 400, 1, 300)] {
        let (mut ground, _) = ground(memory);
        let (mut lists, account) =
            ground.open::<u64, [u64; 4], _>(&AppendLog::new().pack_all()).unwrap();
        lists.fold_at_once(slices as i128);
        let mut accepted = 0;
        'all: for slice in 0..slices {
            for n in 0..lists_each * each {
                match lists.append(Time(slice), &(n % lists_each), [n; 4]) {
                    Ok(()) => accepted += 1,
                    Err(refused) if refused.error.kind() == ErrorKind::OverBudget => break 'all,
                    Err(refused) => panic!("{}", refused.error),
                }
            }
            if slice % 50 == 49 {
                ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
            }
        }
        ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
        lists.reclaim(u64::MAX).unwrap();
        let found = folded(&mut lists, Time(0)..Time(slices), 1_000).unwrap();
        assert_eq!(found.values().map(Vec::len).sum::<usize>(), accepted);
        assert!(account.stats().peak <= memory, "{account:?}");
    }
}

/// A sync of packed slices that fails while other calls go on has the checkpoint fail, or is made again.
#[test]
fn a_checkpoint_names_no_packed_slice_that_was_not_synced() {
    for nth in 1..8 {
        let (mut ground, device) = ground(1 << 20);
        let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
        let (mut model, mut serial) = (BTreeMap::<Time, Vec<u64>>::new(), 0);
        let mut append = |lists: &mut _, model: &mut BTreeMap<Time, Vec<u64>>| {
            serial += 1;
            let time = Time(serial as i64 % 5);
            Lists::append(lists, time, &7u64, serial).unwrap();
            model.entry(time).or_default().push(serial);
        };
        (0..100).for_each(|_| append(&mut lists, &mut model));
        device.on_nth_sync(nth, Fault::Error);
        let then = loop {
            let (then, mut taken) = (model.clone(), ground.begin(&mut lists).unwrap());
            let done = loop {
                match ground.advance(&mut lists, &mut taken) {
                    Ok(false) => {
                        append(&mut lists, &mut model);
                        lists.tick(1).unwrap();
                        let _ = lists.reclaim(1 << 10);
                    }
                    done => break done,
                }
            };
            if done.is_ok() {
                ground.decide(&mut lists, taken, CheckpointOutcome::Committed).unwrap();
                break then;
            }
            ground.decide(&mut lists, taken, CheckpointOutcome::Abandoned).unwrap();
        };
        device.sync_directory().unwrap();
        drop(lists);
        let mut ground = ground.on(Arc::new(device.crash(CrashPolicy::Nothing)));
        let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
        for (time, wanted) in then {
            assert_eq!(read(&mut lists, time, &7).unwrap(), wanted, "sync {nth}");
        }
    }
}
