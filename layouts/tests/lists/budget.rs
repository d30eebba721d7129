//! Lists that do not fit memory are folded in it, and what is read ahead is counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, Cursor, Lists, Upkeep};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{ErrorKind, MemoryKind, Time};

use crate::common::{Dice, Ground, folded, read};

const MEMORY: u64 = 512 << 10;

fn ground() -> (Ground, Simulated) {
    let device = Simulated::new(5, Faults::none());
    (Ground::new(Some(Arc::new(device.clone())), MEMORY, false), device)
}

/// Appends `elements` of 8 bytes to some keys of a bucket, in turn.
fn fill(lists: &mut impl Lists<u64, u64>, bucket: Time, keys: u64, elements: u64) {
    for n in 0..elements {
        lists.append(bucket, &(n % keys), n).unwrap();
    }
}

#[test]
fn a_window_of_four_times_the_memory_is_folded_in_it() {
    for keys in [1, 3_000] {
        let (mut ground, device) = ground();
        let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
        let elements = 4 * MEMORY / 8;
        fill(&mut lists, Time(1), keys, elements);
        assert!(account.stats().peak <= MEMORY, "{account:?}");
        let before = device.stats().bytes_read;
        let (mut cursor, mut seen, mut visited) = (Cursor::default(), 0, 0);
        while !cursor.done {
            lists
                .fold(Time(0)..Time(2), &mut cursor, 1_000, &mut |key, list| {
                    let mut next = *key;
                    while let Some(element) = list.next()? {
                        assert_eq!(*element, next);
                        next += keys;
                        seen += 1;
                    }
                    visited += 1;
                    assert!(account.used() <= MEMORY, "{account:?}");
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!((seen, visited), (elements, keys));
        assert!(account.stats().peak <= MEMORY, "{account:?}");
        // Each block is read once, but windows are small here, and what one cuts is read twice.
        let disk = lists.stats().disk_bytes;
        let read = device.stats().bytes_read - before;
        assert!(read <= disk * 3 / 2, "{read} bytes read of {disk}");
        assert!(disk >= 3 * MEMORY, "{disk} bytes on storage");
        drop(lists);
        assert_eq!(account.used(), 0);
    }
}

#[test]
fn what_is_written_is_hardly_more_than_what_was_appended() {
    let (mut ground, _) = ground();
    let layout = AppendLog::new().runs_max(1_000);
    let (mut lists, _) = ground.open::<u64, u64, _>(&layout).unwrap();
    fill(&mut lists, Time(1), 40, 400_000);
    let stats = lists.stats();
    assert!(stats.pages_flushed > 3, "{stats:?}");
    // The elements, and a fiftieth for keys, ranks, headers and padding.
    assert!(stats.disk_bytes <= 400_000 * 8 * 11 / 10, "{stats:?}");
}

#[test]
fn a_window_that_is_only_folded_is_written_once_however_many_runs_it_has() {
    let memory = 8 << 20;
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), memory, false);
    let (mut lists, account) = ground.open::<u64, [u64; 16], _>(&AppendLog::new()).unwrap();
    let (keys, elements) = (300, 500_000);
    for n in 0..elements {
        lists.append(Time(1), &(n % keys), [n; 16]).unwrap();
    }
    while lists.tick(100).unwrap() > 0 {}
    let stats = lists.stats();
    assert!(stats.pages_flushed > 10 && stats.rewritten == 0, "{stats:?}");
    assert!(stats.flushed_bytes <= elements * 128 * 11 / 10, "{stats:?}");
    let (mut cursor, mut count) = (Cursor::default(), 0);
    while !cursor.done {
        let visit = &mut |key: &u64, list: &mut dyn alluvium_layouts::Elements<[u64; 16]>| {
            let mut next = *key;
            while let Some([n, ..]) = list.next()? {
                assert_eq!(*n, next);
                (next, count) = (next + keys, count + 1);
            }
            Ok(())
        };
        lists.fold(Time(1)..Time(2), &mut cursor, 5_000, visit).unwrap();
    }
    assert_eq!(count, elements);
    assert!(account.stats().peak <= memory, "{account:?}");
    // Who asks for single lists meets fewer runs soon.
    let before = lists.stats().cold_reads;
    assert_eq!(read(&mut lists, Time(1), &3).unwrap().len(), 1_667);
    let many = lists.stats().cold_reads - before;
    for _ in 0..200 {
        lists.tick(100).unwrap();
    }
    assert!(lists.stats().rewritten > 0);
    let before = lists.stats().cold_reads;
    assert_eq!(read(&mut lists, Time(1), &3).unwrap().len(), 1_667);
    assert!(lists.stats().cold_reads - before < many, "{many} reads before");
}

/// Of a short list a block of each run is read; a window of each run is read only where the list is as long.
#[test]
fn a_list_that_is_read_alone_costs_no_more_than_its_blocks() {
    const BLOCK: u64 = 4 << 10;
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device.clone())), 8 << 20, false);
    let layout = AppendLog::new().block(BLOCK);
    let (mut lists, _) = ground.open::<u64, u64, _>(&layout).unwrap();
    let (keys, long, runs) = (20_000, 7, 3);
    for run in 0..runs {
        for key in 0..keys {
            lists.append(Time(1), &key, run).unwrap();
        }
        (0..20_000).for_each(|n| lists.append(Time(1), &long, n).unwrap());
        lists.reclaim(u64::MAX).unwrap();
    }
    let mut bytes_read = |key: u64, wanted: usize| {
        let before = device.stats().bytes_read;
        assert_eq!(read(&mut lists, Time(1), &key).unwrap().len(), wanted);
        device.stats().bytes_read - before
    };
    let short = bytes_read(11, runs as usize);
    // A block may begin and end inside pages of storage, and the key may be the first of the next one.
    assert!(short <= runs * 3 * BLOCK, "{short} bytes for a list of {runs}");
    let elements = runs as usize * 20_001;
    let all = bytes_read(long, elements);
    assert!(all <= elements as u64 * 8 * 3 / 2, "{all} bytes for a list of {elements}");
}

#[test]
fn what_is_due_last_is_spilled_first() {
    let (mut ground, _) = ground();
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    for n in 0..55_000 {
        lists.append(Time(1 + n as i64 % 10), &(n % 100), n).unwrap();
    }
    assert!(lists.stats().pages_flushed > 0);
    let before = lists.stats().cold_reads;
    folded(&mut lists, Time(1)..Time(2), 100).unwrap();
    assert_eq!(lists.stats().cold_reads, before, "the first bucket is in memory");
    folded(&mut lists, Time(10)..Time(11), 100).unwrap();
    assert!(lists.stats().cold_reads > before, "the last is not");
}

#[test]
fn what_is_read_ahead_is_not_read_again_and_what_nobody_needed_is_counted() {
    let (mut ground, device) = ground();
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    for bucket in 1..=4 {
        fill(&mut lists, Time(bucket), 50, 4_000);
    }
    lists.reclaim(u64::MAX).unwrap();
    assert_eq!(lists.stats().prefetched_bytes, 0);
    lists.prefetch(Time(3)).unwrap();
    while lists.tick(10).unwrap() > 0 {}
    let stats = lists.stats();
    assert!(stats.prefetched_bytes >= 2 * 4_000 * 8, "{stats:?}");
    let before = device.stats().bytes_read;
    let one = folded(&mut lists, Time(1)..Time(2), 100).unwrap();
    assert_eq!(one.values().map(Vec::len).sum::<usize>(), 4_000);
    assert_eq!(device.stats().bytes_read, before);
    while !lists.purge(Time(3), 100).unwrap() {}
    let stats = lists.stats();
    let half = stats.prefetched_bytes / 2;
    assert!(stats.prefetch_wasted_bytes.abs_diff(half) < half / 8, "{stats:?}");
    assert!(account.stats().peak <= MEMORY);
}

#[test]
fn cleared_lists_do_not_come_back_and_leave_storage_when_runs_are_merged() {
    let (mut ground, _) = ground();
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut dice = Dice(3);
    let mut appended = 0;
    for n in 0..400_000 {
        let key = dice.below(500);
        if dice.below(60) == 0 {
            lists.clear_key(Time::MAX, &key).unwrap();
            model.remove(&key);
        } else {
            lists.append(Time::MAX, &key, n).unwrap();
            model.entry(key).or_default().push(n);
            appended += 8;
        }
        assert!(account.used() <= MEMORY, "{account:?}");
    }
    while lists.tick(100).unwrap() > 0 {}
    let stats = lists.stats();
    assert!(stats.rewritten > 0 && stats.flushed_bytes > appended / 2, "{stats:?}");
    let live: usize = model.values().map(|list| list.len() * 8).sum();
    assert!(stats.disk_bytes < appended / 2, "{stats:?}, {live} live of {appended}");
    for key in 0..500 {
        let wanted = model.get(&key).cloned().unwrap_or_default();
        assert_eq!(read(&mut lists, Time::MAX, &key).unwrap(), wanted);
    }
}

/// Elements that merges have written anew when there is nothing more to do.
fn rewritten(lists: &mut impl Lists<u64, u64>) -> u64 {
    let (mut ticks, mut idle) = (0, 0);
    // A tick may only begin something.
    while idle < 3 {
        idle = if lists.tick(100).unwrap() > 0 { 0 } else { idle + 1 };
        ticks += 1;
        assert!(ticks < 1_000, "it merges and merges: {:?}", lists.stats());
    }
    lists.stats().rewritten
}

/// Lists of more keys than a bucket may have notes, on storage.
fn spilled(lists: &mut impl Lists<u64, u64>, bucket: Time, keys: u64) {
    for n in 0..2 {
        (0..keys).for_each(|key| lists.append(bucket, &key, n).unwrap());
        lists.reclaim(u64::MAX).unwrap();
    }
}

/// What was cleared since the last run of a bucket was made is noted with a number that no run of it has
/// yet. Merging left such notes, and began anew because of them, until the bucket got another run.
#[test]
fn many_lists_that_were_just_cleared_are_merged_away_once() {
    const KEYS: u64 = 6_000;
    const MANY: u64 = 4 << 20;
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), MANY, false);
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    spilled(&mut lists, Time(1), KEYS);
    (0..KEYS - 1_000).for_each(|key| lists.clear_key(Time(1), &key).unwrap());
    assert_eq!(read(&mut lists, Time(1), &(KEYS - 1)).unwrap(), [0, 1]);
    // Each merge writes what is left.
    assert!(rewritten(&mut lists) <= 2 * 2 * KEYS);
    let (len, notes) = (lists.len(), account.used_for(MemoryKind::Index));
    println!("{len} elements, {notes} bytes of notes");
    assert!(len < 2 * 4_000 && notes < MANY / 4, "{len} elements: {account:?}");
    for key in (0..KEYS).step_by(37) {
        let wanted = if key < KEYS - 1_000 { vec![] } else { vec![0, 1] };
        assert_eq!(read(&mut lists, Time(1), &key).unwrap(), wanted, "{key}");
    }
}

/// Their notes alone would take more than the memory. No block of a run has one list only, so no clearing cuts one off.
#[test]
fn short_lists_that_are_cleared_one_by_one_leave_few_notes() {
    const KEYS: u64 = 20_000;
    let (mut ground, _) = ground();
    let (mut lists, account) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    spilled(&mut lists, Time(1), KEYS);
    let mut notes = 0;
    for key in 0..KEYS {
        lists.clear_key(Time(1), &key).unwrap();
        notes = notes.max(account.used_for(MemoryKind::Index));
        if key % 997 == 0 {
            assert!(read(&mut lists, Time(1), &key).unwrap().is_empty(), "{key}");
            let later = (key + KEYS) / 2;
            let wanted: &[u64] = if later > key { &[0, 1] } else { &[] };
            assert_eq!(read(&mut lists, Time(1), &later).unwrap(), wanted, "{later}");
        }
    }
    assert!(account.stats().peak <= MEMORY, "{account:?}");
    assert!(notes <= MEMORY / 4, "{notes} bytes of notes");
    // Written anew with each share of the memory that notes have filled, not with each list.
    let rewritten = lists.stats().rewritten;
    assert!(rewritten > 0 && rewritten < 2 * KEYS * 80, "{rewritten}");
}

/// In memory that would hold the notes of all lists, each merge drops a share of what is left: four times as many lists are
/// not written more often, each on average, than a quarter of them.
#[test]
fn short_lists_that_are_cleared_in_much_memory_are_written_a_few_times() {
    for keys in [20_000, 80_000] {
        let device = Simulated::new(5, Faults::none());
        let mut ground = Ground::new(Some(Arc::new(device)), 64 << 20, false);
        let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
        spilled(&mut lists, Time(1), keys);
        (0..keys).for_each(|key| lists.clear_key(Time(1), &key).unwrap());
        let rewritten = rewritten(&mut lists);
        println!("{keys} lists: {rewritten} elements written again");
        assert!(rewritten > 0 && rewritten <= 8 * 2 * keys, "{keys}: {rewritten}");
    }
}

/// A list is cleared while the helper merges: its note has to outlive the merge, which has read it.
#[test]
fn lists_that_are_cleared_while_runs_are_merged_do_not_come_back() {
    const KEYS: u64 = 6_000;
    for meanwhile in 0..12 {
        let device = Simulated::new(5, Faults::none());
        let mut ground = Ground::new(Some(Arc::new(device)), 4 << 20, false);
        let (mut lists, _) = ground.open::<u64, [u64; 16], _>(&AppendLog::new()).unwrap();
        for n in 0..2 {
            (0..KEYS).for_each(|key| lists.append(Time(1), &key, [n; 16]).unwrap());
            lists.reclaim(u64::MAX).unwrap();
        }
        (0..KEYS - 1_500).for_each(|key| lists.clear_key(Time(1), &key).unwrap());
        lists.stream(Time(1), &(KEYS - 1), &mut |_| Ok(())).unwrap();
        (0..meanwhile).for_each(|_| assert!(lists.tick(1).is_ok()));
        (KEYS - 1_500..KEYS - 500).for_each(|key| lists.clear_key(Time(1), &key).unwrap());
        (0..200).for_each(|_| assert!(lists.tick(100).is_ok()));
        for key in (0..KEYS).step_by(61) {
            let wanted = if key < KEYS - 500 { 0 } else { 2 };
            assert_eq!(read(&mut lists, Time(1), &key).unwrap().len(), wanted, "{key}");
        }
    }
}

/// Notes that say where lists have come from are not dropped by merging, however often that is done.
#[test]
fn many_lists_that_have_moved_do_not_have_their_new_bucket_merged_again_and_again() {
    const KEYS: u64 = 6_000;
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), 8 << 20, false);
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new()).unwrap();
    spilled(&mut lists, Time(1), KEYS);
    spilled(&mut lists, Time(2), 100);
    (0..KEYS).for_each(|key| lists.relocate(Time(1), Time(2), &key).unwrap());
    assert_eq!(read(&mut lists, Time(2), &7).unwrap(), [0, 1, 0, 1]);
    assert!(rewritten(&mut lists) <= 2 * 100);
    for key in (0..KEYS).step_by(37) {
        let wanted = if key < 100 { vec![0, 1, 0, 1] } else { vec![0, 1] };
        assert_eq!(read(&mut lists, Time(2), &key).unwrap(), wanted, "{key}");
    }
}

#[test]
fn without_storage_the_budget_is_named_and_nothing_is_lost() {
    let mut ground = Ground::new(None, 256 << 10, false);
    let (mut lists, account) = ground.open::<u64, String, _>(&AppendLog::new()).unwrap();
    let mut model = Vec::new();
    let refused = loop {
        let word = "word ".repeat(1 + model.len() % 30);
        match lists.append(Time::MAX, &(model.len() as u64 % 70), word.clone()) {
            Ok(()) => model.push(word),
            Err(rejected) => {
                assert_eq!(rejected.value, word);
                break rejected.error;
            }
        }
    };
    assert_eq!(refused.kind(), ErrorKind::OverBudget);
    assert!(account.used() > 200 << 10 && account.stats().peak <= 256 << 10, "{account:?}");
    for key in 0..70 {
        let wanted: Vec<_> = model.iter().skip(key).step_by(70).cloned().collect();
        assert_eq!(read(&mut lists, Time::MAX, &(key as u64)).unwrap(), wanted);
    }
    lists.clear_key(Time::MAX, &3).unwrap();
    lists.append(Time::MAX, &3, "room again".into()).unwrap();
}

/// Short strings take seven times their bytes once they are decoded: a fold that has just the memory that it asks for
/// does not pass it.
#[test]
fn a_fold_of_many_runs_of_short_strings_stays_in_its_memory() {
    let (mut ground, _) = ground();
    let layout = AppendLog::new().runs_max(100);
    let (mut lists, account) = ground.open::<u64, String, _>(&layout).unwrap();
    let (runs, keys, each) = (8, 40, 40);
    for _ in 0..runs {
        for n in 0..keys * each {
            lists.append(Time(1), &(n % keys), "abc".to_owned()).unwrap();
        }
        lists.reclaim(u64::MAX).unwrap();
        while lists.tick(100).unwrap() > 0 {}
    }
    let mut fold = |left: u64| {
        let taken = account.available() - left;
        account.reserve(MemoryKind::Buffers, taken, "others").unwrap();
        let (mut cursor, mut count) = (Cursor::default(), 0);
        let visit = &mut |_: &u64, list: &mut dyn alluvium_layouts::Elements<String>| {
            while let Some(word) = list.next()? {
                assert_eq!(word, "abc");
                count += 1;
            }
            Ok(())
        };
        let mut folded = Ok(());
        while !cursor.done && folded.is_ok() {
            folded = lists.fold(Time(1)..Time(2), &mut cursor, 10, visit);
        }
        account.release(MemoryKind::Buffers, taken);
        assert!(account.stats().peak <= MEMORY, "{left} bytes left: {account:?}");
        match folded {
            Ok(()) => assert_eq!(count, runs * keys * each),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}"),
        }
        cursor.done
    };
    let done: Vec<bool> = (4..60).map(|n| fold(n * 4096)).collect();
    assert!(done.is_sorted() && !done[0] && done[done.len() - 1], "{done:?}");
    drop(lists);
    assert_eq!(account.used(), 0);
}

/// A packed record of short strings has no more of them than a block of a run has.
#[test]
fn packed_records_of_short_strings_are_cut_by_what_they_take_in_memory() {
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), 1 << 20, false);
    let (mut lists, account) = ground.open::<u64, String, _>(&AppendLog::new().pack_all()).unwrap();
    let (slices, elements) = (30, 200);
    for slice in 0..slices {
        for _ in 0..elements {
            lists.append(Time(slice), &7, "abc".to_owned()).unwrap();
        }
    }
    lists.reclaim(u64::MAX).unwrap();
    // They are 11 KB a slice in memory, and 1.6 KB on storage; a block has 3.5 KB. Parts of a list count.
    let records = lists.stats().live_keys;
    assert!(records >= slices as u64 * 4, "{records} records");
    for slice in 0..slices {
        assert_eq!(read(&mut lists, Time(slice), &7).unwrap().len(), elements);
    }
    assert!(account.stats().peak <= 1 << 20, "{account:?}");
}
