//! Reads of runs that run ahead of the calls which need them: tickets, their memory, and devices that fail or do nothing.

use std::collections::BTreeMap;

use alluvium_pagestore::io::{Device, Fault, Faults, Simulated};
use alluvium_pagestore::{Account, MIB, MemoryKind};

use super::tests::{Dice, open};
use crate::contract::fetch::{Fetch, Ticket};
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

type Log = HybridLogTable<u64, u64>;

/// Asks for all keys until each is ready, and says how many reads were under way together at most.
fn fetch_all(table: &mut Log, keys: &[u64]) -> usize {
    let (mut waiting, mut most): (BTreeMap<Ticket, u64>, _) = (BTreeMap::new(), 0);
    let mut open: Vec<u64> = keys.to_vec();
    for _ in 0..100_000 {
        let mut left = Vec::new();
        let mut is_busy = false;
        for key in std::mem::take(&mut open) {
            match if is_busy { Fetch::Busy } else { table.fetch(&key) } {
                Fetch::Ready => {}
                Fetch::Pending(ticket) => drop(waiting.insert(ticket, key)),
                Fetch::Busy => {
                    is_busy = true;
                    left.push(key);
                }
            }
        }
        most = most.max(waiting.len());
        table.fetched(&mut |ticket| left.extend(waiting.remove(&ticket)));
        if is_busy && waiting.is_empty() {
            // Calls leave slots for others.
            return most;
        }
        open = left;
        if open.is_empty() && waiting.is_empty() {
            return most;
        }
    }
    panic!("reads never end");
}

fn filled(memory: u64, keys: u64, device: &Simulated) -> (Log, std::rc::Rc<Account>) {
    let store = Account::root(memory);
    let layout = HybridLog::new().cold_runs(true).queue_depth(17);
    let mut table: Log = open(&layout, device, &store);
    for key in 0..keys {
        table.put(key, key * 3).unwrap();
    }
    assert!(table.stats().runs.keys > keys / 4);
    (table, store)
}

#[test]
fn a_call_for_a_key_that_was_fetched_reads_nothing() {
    let device = Simulated::new(1, Faults::late(3));
    let (mut table, store) = filled(8 * MIB, 400_000, &device);
    let buffers = store.used_for(MemoryKind::Buffers);
    let (mut dice, mut overlapped, mut asked) = (Dice(1), 0, 0);
    for _ in 0..300 {
        let keys: Vec<u64> = (0..8).map(|_| dice.below(400_000)).collect();
        overlapped = overlapped.max(fetch_all(&mut table, &keys));
        assert!(store.used() <= 8 * MIB);
        let before = device.stats().reads;
        for key in &keys {
            assert_eq!(table.get(key).unwrap().copied(), Some(key * 3));
        }
        asked += device.stats().reads - before;
        // Of keys that are not there a filter may be wrong.
        let absent: Vec<u64> = (0..8).map(|_| dice.below(1 << 30) + 500_000).collect();
        fetch_all(&mut table, &absent);
        assert!(absent.iter().all(|key| table.get(key).unwrap().is_none()));
    }
    let stats = table.stats();
    println!("{asked} reads that were not ahead, {} that were, {stats:?}", stats.fetches);
    assert!(overlapped > 4 && stats.fetches > 1000, "{overlapped}, {stats:?}");
    assert!(
        asked < 30,
        "{asked} of 2400 calls have read: two keys of one slot, or the rest of a record"
    );
    let left = store.used_for(MemoryKind::Buffers) - buffers;
    assert!(left < 8192, "{left} bytes of reads that are over");
    drop(table);
    assert_eq!(store.used(), 0);
}

#[test]
fn a_read_that_is_released_gives_its_memory_back_when_it_has_ended() {
    let device = Simulated::new(2, Faults::none());
    let (mut table, store) = filled(8 * MIB, 400_000, &device);
    let pending = |table: &mut Log, from: u64| {
        (from..400_000).find_map(|key| match table.fetch(&key) {
            Fetch::Pending(ticket) => Some((key, ticket)),
            _ => None,
        })
    };
    let used = store.used_for(MemoryKind::Buffers);
    // Before it has ended, and after.
    device.on_nth_read(1, Fault::Stuck);
    let (key, ticket) = pending(&mut table, 1000).unwrap();
    assert!(store.used_for(MemoryKind::Buffers) > used);
    assert_eq!(table.fetch(&key), Fetch::Pending(ticket));
    // The call does not wait for it.
    assert_eq!(table.get(&key).unwrap().copied(), Some(key * 3));
    table.release(ticket);
    let used_by_device = store.used_for(MemoryKind::Buffers);
    device.release_stuck();
    table.fetched(&mut |ticket| panic!("{ticket:?} was released"));
    assert!(store.used_for(MemoryKind::Buffers) < used_by_device);
    let (_, ticket) = pending(&mut table, key + 1).unwrap();
    let mut told = Vec::new();
    table.fetched(&mut |ticket| told.push(ticket));
    assert_eq!(told, [ticket]);
    table.fetched(&mut |ticket| panic!("{ticket:?} was told"));
    table.release(ticket);
    table.release(ticket);
    assert!(store.used_for(MemoryKind::Buffers) < used + 8192);
    // One that fails is read again by the call.
    device.on_nth_read(1, Fault::Error);
    let (key, ticket) = pending(&mut table, key + 500).unwrap();
    table.fetched(&mut |told| assert_eq!(told, ticket));
    assert_eq!(table.fetch(&key), Fetch::Ready);
    assert_eq!(table.get(&key).unwrap().copied(), Some(key * 3));
    // A read is told also if its state was cleared meanwhile, or the call came before its end.
    let (cleared, ticket) = pending(&mut table, key + 1).unwrap();
    let (early, second) = pending(&mut table, cleared + 1).unwrap();
    assert_eq!(table.get(&early).unwrap().copied(), Some(early * 3));
    table.clear().unwrap();
    let mut told = Vec::new();
    table.fetched(&mut |ticket| told.push(ticket));
    assert!(told.len() == 2 && [ticket, second].iter().all(|read| told.contains(read)));
    assert_eq!(table.get(&cleared).unwrap(), None);
    // What a merge has that began meanwhile is no read's: it leaves with what was cleared.
    for _ in 0..10_000 {
        if store.used_for(MemoryKind::Buffers) < used + 8192 {
            break;
        }
        table.tick(64).unwrap();
    }
    assert!(store.used_for(MemoryKind::Buffers) < used + 8192, "the call has used what was read");
    drop(table);
    assert_eq!(store.used(), 0);
}

#[test]
fn in_little_memory_guides_are_read_ahead_too_or_left_to_the_call() {
    let device = Simulated::new(3, Faults::late(2));
    let (mut table, store) = filled(MIB, 150_000, &device);
    let mut dice = Dice(3);
    for round in 0..2000 {
        let keys: Vec<u64> = (0..4).map(|_| dice.below(160_000)).collect();
        fetch_all(&mut table, &keys);
        for key in keys {
            let known = (key < 150_000).then_some(key * 3);
            match round % 4 {
                0 => assert_eq!(table.modify(&key, |value| *value).unwrap(), known),
                1 if key % 64 == 0 => {
                    assert_eq!(table.take(&key).unwrap(), known);
                    assert!(!table.put(key, key * 3).unwrap());
                    if known.is_none() {
                        table.take(&key).unwrap();
                    }
                }
                _ => assert_eq!(table.get(&key).unwrap().copied(), known),
            }
            assert!(store.used() <= MIB, "{store:?}");
        }
    }
    drop(table);
    assert_eq!(store.used(), 0);
}
