//! A checkpoint of lists that is given up leaves what it has noted of lists, and holds of buckets that were purged, to
//! later calls.
//!
//! What this catches: a call that takes as long as that is much, which is counted as the memory of tables and values that
//! it gives back; and memory that does not come back, or elements that do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_layouts::{AppendLog, CheckpointOutcome, Heap, Lists, ListsLayout, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, KIB, MIB, MemoryKind, Time};

use crate::common::{Ground, read};

/// The most that one call may give back: a part has 112 lists or notes at most.
const GIVEN_MAX: u64 = 64 * KIB;
/// The helper is waited for so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn key(n: u64) -> String {
    format!("{n:30}")
}

/// Bytes of tables, and of what lists and notes own. Buffers may be booked for what is never made.
fn held_bytes(account: &Account) -> u64 {
    account.used_for(MemoryKind::Index) + account.used_for(MemoryKind::Values)
}

/// Gives up a checkpoint that has noted so many lists, holds as many that were purged, and has read none of them; gives the
/// calls that it took until all was given back.
fn give_up<L: ListsLayout<String, String>>(layout: &L, count: u64, threads: bool) -> usize {
    let (_, without) = play(layout, count, threads, None);
    let (calls, left) = play(layout, count, threads, Some(without));
    assert!(left <= without, "{left} bytes are left, {without} without a checkpoint");
    calls
}

/// The same, or without that checkpoint; gives the bytes that are left, too, when all is purged. After a checkpoint so
/// many are waited for.
fn play<L: ListsLayout<String, String>>(
    layout: &L,
    count: u64,
    threads: bool,
    awaited: Option<u64>,
) -> (usize, u64) {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let mut ground = Ground::new(Some(device), 256 * MIB, threads);
    let (mut lists, account) = ground.open::<String, String, _>(layout).unwrap();
    let append = |lists: &mut L::Lists, time: i64, n: u64| {
        lists.append(Time(time), &key(n), key(n)).unwrap();
    };
    for n in 0..count {
        append(&mut lists, 0, n);
        append(&mut lists, 1, n);
    }
    // Who is cleared behind a checkpoint leaves a note, which is another one when it is cleared again.
    ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
    let clear_all = |lists: &mut L::Lists| {
        for n in 0..count {
            append(lists, 1, n);
            lists.clear_key(Time(1), &key(n)).unwrap();
            append(lists, 1, n);
        }
    };
    clear_all(&mut lists);
    settled(&ground, &mut lists, &account, None);
    let sealing = awaited.map(|_| ground.begin(&mut lists).unwrap());
    clear_all(&mut lists);
    while !lists.purge(Time(1), usize::MAX).unwrap() {}
    let held = held_bytes(&account);
    if let Some(sealing) = sealing {
        ground.decide(&mut lists, sealing, CheckpointOutcome::Abandoned).unwrap();
    }
    let given = held - held_bytes(&account).min(held);
    assert!(
        given <= GIVEN_MAX,
        "{given} bytes of {count} lists are given back when it is given up"
    );
    let mut calls = 0;
    loop {
        let before = held_bytes(&account);
        let done = lists.tick(1).unwrap();
        let given = before - held_bytes(&account).min(before);
        if done == 0 {
            break;
        }
        calls += 1;
        // What the helper has dropped comes back together.
        assert!(threads || given <= GIVEN_MAX, "{given} bytes of {count} lists in a call");
    }
    for n in (0..count).step_by(37) {
        assert_eq!(read(&mut lists, Time(1), &key(n)).unwrap(), [key(n)]);
        assert!(read(&mut lists, Time(0), &key(n)).unwrap().is_empty());
    }
    ground.checkpoint(&mut lists, CheckpointOutcome::Committed).unwrap();
    let (mut restored, _) = ground.open_beside::<String, String, _>(layout).unwrap();
    for n in (0..count).step_by(41) {
        assert_eq!(read(&mut restored, Time(1), &key(n)).unwrap(), [key(n)]);
    }
    while !lists.purge(Time(2), usize::MAX).unwrap() {}
    settled(&ground, &mut lists, &account, awaited);
    (calls, held_bytes(&account))
}

/// Waits until the helper has done what it was given: until so little is held, if that is known, or nothing changes.
fn settled(ground: &Ground, lists: &mut impl Upkeep, account: &Account, awaited: Option<u64>) {
    let (mut used, mut same, begin) = (account.used(), 0, Instant::now());
    let is_over = |same| match awaited {
        Some(held) => held_bytes(account) <= held || begin.elapsed() > PATIENCE,
        None => same == 100,
    };
    while !is_over(same) {
        // What a call finds done may be more work for the helper.
        ground.wait_for_helper();
        lists.tick(10).unwrap();
        same = if account.used() == used { same + 1 } else { 0 };
        used = account.used();
    }
}

#[test]
fn by_lists_on_the_heap() {
    let calls = [1_000, 30_000].map(|count| give_up(&Heap::new(), count, false));
    assert!(calls[1] > 10 * calls[0], "{calls:?}");
}

#[test]
fn by_the_helper_of_an_append_log() {
    for count in [1_000, 30_000] {
        give_up(&AppendLog::new(), count, true);
    }
}
