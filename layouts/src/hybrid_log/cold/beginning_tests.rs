//! What a tier that begins by itself costs where it is of little use, or has no memory: by count of pages and reads.

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, KIB, MIB, MemoryKind};

use super::tests::{open, open_with};
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, [u64; 6]>;

/// Pages that went to storage for the next new keys.
fn pages_for(log: &mut Log, keys: std::ops::Range<u64>) -> u64 {
    let before = log.stats().pages_flushed;
    keys.for_each(|key| assert!(!log.put(key, [key; 6]).unwrap()));
    log.stats().pages_flushed - before
}

#[test]
fn a_tier_whose_work_has_no_memory_evicts_no_pages_for_it() {
    let pages = [true, false].map(|is_automatic| {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(8 * MIB));
        let layout = HybridLog::new();
        let mut log: Log = match is_automatic {
            true => open(&layout.cold_runs_automatic(), &device, &store),
            false => open(&layout.cold_runs(false), &device, &store),
        };
        // The same index in both, of which some is in runs in one.
        let keys = if is_automatic { 300_000 } else { 180_000 };
        pages_for(&mut log, 0..keys);
        assert_eq!(log.stats().runs.moved > 0, is_automatic);
        // Another state takes all but the index and a quarter.
        let other = Account::below(&store, "heap", u64::MAX);
        let taken = 3 * (store.limit() / 4) - store.used_for(MemoryKind::Index);
        println!("an index of {}, {taken} taken", store.used_for(MemoryKind::Index));
        log.reclaim(taken.saturating_sub(store.available())).unwrap();
        other.charge(MemoryKind::Values, taken.min(store.available()));
        // What it gave up comes back as far as it can.
        pages_for(&mut log, keys..keys + 2000);
        pages_for(&mut log, keys + 2000..keys + 6000)
    });
    println!("{pages:?}");
    assert!(
        pages[1] > 0 && pages[0] <= 2 * pages[1] + 8,
        "{pages:?} pages with a tier, and without"
    );
}

#[test]
fn a_tier_to_which_no_record_can_move_goes_again() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
    let open = |layout: HybridLog| open_with::<u64, Vec<u8>>(&layout, 16 * KIB, &device, &store);
    let mut log = open(HybridLog::new().cold_runs_automatic());
    let (mut had_one, mut keys) = (false, 0);
    while log.put(keys, vec![keys as u8; 9000]).is_ok() {
        keys += 1;
        had_one |= log.core.log.cold.is_some();
        assert!(keys < 60_000, "the index is never full");
    }
    assert!(had_one && log.core.log.cold.is_none(), "{:?}", log.stats());
    let [reads, records] = [device.stats().reads, keys];
    drop(log);
    let mut other = open(HybridLog::new().cold_runs(false));
    let refused = (0..60_000).find(|key| other.put(*key, vec![*key as u8; 9000]).is_err());
    let without = refused.expect("the index is full");
    assert!(without <= records + records / 20, "{records} keys, {without} without a tier");
    assert!(50 * reads < records, "{reads} reads for {records} records");
}

#[test]
fn a_log_whose_records_are_all_in_memory_gets_no_tier() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(8 * MIB));
    let layout = HybridLog::new().cold_runs_automatic();
    let mut log: HybridLogTable<u64, u8> = open(&layout, &device, &store);
    let (mut key, mut most) = (0, 0);
    while log.stats().pages_flushed == 0 {
        log.put(key, 0).unwrap();
        key += 1;
        most = most.max(100 * store.used_for(MemoryKind::Index) / store.limit());
        assert!(log.core.log.cold.is_none(), "after {key} keys");
    }
    println!("{key} keys, an index of {most} %");
    assert!(most > 30, "the index is a large part: {most} %");
}

#[test]
fn an_index_that_is_dropped_after_clear_begins_no_tier() {
    for keys in (14_000..32_000).step_by(1500) {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
        let mut log: Log = open(&HybridLog::new().cold_runs_automatic(), &device, &store);
        pages_for(&mut log, 0..keys);
        let had_one = log.core.log.cold.is_some();
        log.clear().unwrap();
        pages_for(&mut log, 0..1000);
        assert_eq!(log.core.log.cold.is_some(), had_one, "{keys} keys");
        assert_eq!(log.stats().runs.keys, 0, "{keys} keys");
        let wants = log.core.log.cold.as_ref().is_some_and(|cold| cold.wants_move);
        assert!(!wants, "{keys} keys: a thousand are to move");
    }
}

#[test]
fn what_cannot_be_given_up_does_not_jump_with_each_move() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(4 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
    let (mut before, mut jumps, mut moved) = (log.fixed_bytes().0, 0, 0);
    for key in 0..250_000 {
        log.put(key, [key; 6]).unwrap();
        let fixed = log.fixed_bytes().0;
        jumps += u64::from(fixed.abs_diff(before) > store.limit() / 20);
        moved += u64::from(log.core.log.cold.as_ref().is_some_and(|cold| cold.is_working()));
        before = fixed;
    }
    assert!(moved > 1000, "{moved} calls found a move or merge under way");
    assert_eq!(jumps, 0);
}

#[test]
fn a_visit_while_the_index_forgets_what_has_moved_reads_runs_in_order() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(4 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
    let is_leaving = |log: &Log| {
        let moving = log.core.log.cold.as_ref().and_then(|cold| cold.moving.as_ref());
        moving.is_some_and(|moving| moving.is_leaving())
    };
    let mut keys = 0;
    while !is_leaving(&log) || keys < 100_000 {
        log.put(keys, [keys; 6]).unwrap();
        keys += 1;
    }
    let (before, mut seen) = (device.stats().reads, vec![false; keys as usize]);
    log.visit_all(&mut |key, value| {
        assert_eq!(value, &[*key; 6]);
        assert!(!std::mem::replace(&mut seen[*key as usize], true), "{key} twice");
        Ok(())
    })
    .unwrap();
    assert!(seen.iter().all(|seen| *seen) && log.len() == keys);
    let reads = device.stats().reads - before;
    assert!(50 * reads < keys, "{reads} reads for {keys} keys");
}

#[test]
fn a_visit_while_a_level_is_written_shows_each_key_once_beside_tombstones() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
    let is_writing = |log: &Log| {
        let Some(cold) = &log.core.log.cold else { return false };
        let moving = cold.moving.as_ref();
        let writes = moving.is_some_and(|moving| !moving.is_gathering() && !moving.is_leaving());
        writes && !cold.buried.is_empty() && !cold.going.is_empty()
    };
    let (mut next, mut deleted, mut visits) = (0, 0, 0);
    while visits < 3 {
        log.put(next, [next; 6]).unwrap();
        next += 1;
        if next > 40_000 && next % 2 == 0 {
            assert_eq!(log.take(&deleted).unwrap(), Some([deleted; 6]));
            deleted += 1;
        }
        assert!(next < 400_000, "{visits} visits");
        if next % 10 != 0 || !is_writing(&log) {
            continue;
        }
        visits += 1;
        let mut seen = vec![false; next as usize];
        log.visit_all(&mut |key, value| {
            assert_eq!(value, &[*key; 6]);
            assert!(!std::mem::replace(&mut seen[*key as usize], true), "{key} twice");
            Ok(())
        })
        .unwrap();
        assert_eq!(log.len(), next - deleted);
        for (key, seen) in (0..).zip(seen) {
            assert_eq!(seen, key >= deleted, "{key} of {deleted}..{next}");
        }
        assert!(store.used() <= store.limit());
    }
}

#[test]
fn a_visit_of_all_reads_segments_and_runs_in_order() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(4 * MIB));
    let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
    let keys = 300_000;
    for key in 0..keys {
        log.put(key, [key; 6]).unwrap();
    }
    // Some move up and leave dead copies.
    for key in (0..keys).step_by(41) {
        log.update(&key, || [0; 6], |value| value[1] = 7).unwrap();
    }
    let stats = log.stats();
    let on_storage = stats.runs.keys + log.core.log.index.stored();
    assert!(stats.runs.keys > 100_000 && log.core.log.index.stored() > 20_000, "{stats:?}");
    let (before, mut seen) = (device.stats().reads, vec![false; keys as usize]);
    log.visit_all(&mut |key, value| {
        let wanted = if key % 41 == 0 { 7 } else { *key };
        assert_eq!((value[0], value[1]), (*key, wanted));
        assert!(!std::mem::replace(&mut seen[*key as usize], true), "{key} twice");
        Ok(())
    })
    .unwrap();
    assert!(seen.iter().all(|seen| *seen));
    let reads = device.stats().reads - before;
    assert!(20 * reads < on_storage, "{reads} reads for {on_storage} records on storage");
    assert!(store.used() <= store.limit());
}

#[test]
fn a_move_reads_each_segment_about_once() {
    for memory in [MIB, 4 * MIB, 16 * MIB] {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(memory));
        let mut log: Log = open(&HybridLog::new().cold_runs(true), &device, &store);
        let gathered = |log: &Log| {
            let moving = log.core.log.cold.as_ref().and_then(|cold| cold.moving.as_ref());
            moving.map_or(Some(0), |moving| moving.gathered())
        };
        let (mut read, mut records, mut key) = (0, 0, 0);
        loop {
            let before = device.stats().bytes_read;
            log.put(key, [key; 6]).unwrap();
            key += 1;
            // No record is read by itself before the first level is there.
            let Some(now) = gathered(&log) else { break };
            (records, read) = (now as u64, read + device.stats().bytes_read - before);
        }
        // A record takes 80 bytes with its header, and 16 in the footer.
        assert!(records > 1000 && read < 2 * records * 96, "{memory}: {read} for {records}");
    }
}

/// What a look at long values for some that could move costs.
#[test]
fn among_long_values_no_put_reads_much_and_as_many_are_taken_as_without_a_tier() {
    let fill = |layout: HybridLog| {
        let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
        let mut log = open_with::<u64, Vec<u8>>(&layout, 16 * KIB, &device, &store);
        let (mut keys, mut most, mut refused) = (0, 0, None);
        while refused.is_none() {
            let before = device.stats().bytes_read;
            let bytes = if keys % 20 == 0 { 20 } else { 9000 };
            refused = log.put(keys, vec![keys as u8; bytes]).err();
            most = most.max(device.stats().bytes_read - before);
            keys += u64::from(refused.is_none());
            assert!(keys < 60_000, "the index is never full");
        }
        (keys, most, device.stats().reads)
    };
    let without = fill(HybridLog::new().cold_runs(false));
    let with = fill(HybridLog::new().cold_runs_automatic());
    println!("{with:?}, {without:?} without: keys, the most bytes that a put read, reads");
    assert!(without.0 <= with.0 + with.0 / 20, "{with:?}, {without:?}");
    assert!(with.1 <= MIB && 2 * with.2 < with.0, "{with:?}, {without:?}");
}

/// Where what is left on storage cannot move, a put that is refused does not look at all of it again.
#[test]
fn puts_that_are_refused_read_little_where_nothing_on_storage_can_move() {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(MIB));
    let layout = HybridLog::new().cold_runs_automatic();
    let mut log = open_with::<u64, Vec<u8>>(&layout, 16 * KIB, &device, &store);
    let (mut keys, mut refused, mut reads) = (0, 0, Vec::new());
    while refused < 100 {
        let before = device.stats().reads;
        // Half of them move.
        let bytes = if keys % 2 == 0 { 100 } else { 9000 };
        let put = log.put(keys, vec![keys as u8; bytes]);
        keys += 1;
        if put.is_err() {
            refused += 1;
            reads.push(device.stats().reads - before);
        }
        assert!(keys < 100_000, "{:?}", log.stats());
    }
    reads.sort_unstable();
    println!("{keys} keys, {:?}, reads of refused puts: {reads:?}", log.stats().runs);
    assert!(log.stats().runs.moved > 0);
    let most = reads[90];
    assert!(most <= 8, "{reads:?}");
}
