//! A state that is cleared gives its memory back step by step, and leaves the checkpoint being taken what it needs.

use std::fmt::Debug;

use alluvium_pagestore::{Account, ErrorKind, Helper, KIB, MIB, MemoryKind, State};

use super::{blobs_of, open, text};
use crate::contract::table::{CheckpointOutcome, Pace, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::log::QUANTUM;
use crate::hybrid_log::{HybridLog, HybridLogTable};
use crate::support::booked::Booked;

/// Begins a checkpoint of 8000 records after one that was confirmed and 3000 changes, and clears the table after some
/// shares, with so much memory left for others; gives how it ended.
fn cleared_after(shares: usize, free_bytes: u64) -> Option<ErrorKind> {
    let store = Account::root(4 * MIB);
    let mut table = open::<u64>(&HybridLog::new().page_records(32), &store, true);
    let empty = store.used();
    for key in 0..8000 {
        assert!(!table.put(key, key).unwrap());
    }
    table.checkpoint(&mut blobs_of(&table, 1)).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    // There is room to note 2048.
    for key in 0..3000 {
        table.update(&key, || unreachable!(), |value| *value += 1).unwrap();
    }
    let mut blobs = blobs_of(&table, 2);
    let mut image = table.begin_checkpoint(&mut blobs).unwrap();
    for _ in 0..shares {
        if image.is_none() {
            image = table.continue_checkpoint(&mut blobs).unwrap();
        }
    }
    let others = store.available().saturating_sub(free_bytes);
    store.charge(MemoryKind::Values, others);
    let before = table.stats();
    Table::clear(&mut table).unwrap();
    let after = table.stats();
    assert_eq!(before.pages_flushed, after.pages_flushed, "nothing is written for it");
    store.release(MemoryKind::Values, others);
    assert!(!table.put(7, 7).unwrap());
    let ended = loop {
        match image.map_or_else(|| table.continue_checkpoint(&mut blobs), |i| Ok(Some(i))) {
            Ok(None) => image = None,
            ended => break ended,
        }
        // The same again: it is the new log's.
        Table::clear(&mut table).unwrap();
        assert!(!table.put(7, 70).unwrap());
        assert!(store.used() <= 4 * MIB, "{store:?}");
    };
    let outcome = match &ended {
        Ok(image) => {
            let image = image.as_ref().unwrap();
            let live = image.segments().map(|segment| segment.live_records).sum::<u64>();
            assert_eq!((image.entries, live), (8000, 8000), "after {shares} shares");
            CheckpointOutcome::Committed
        }
        Err(_) => CheckpointOutcome::Abandoned,
    };
    table.checkpointed(outcome);
    assert_eq!(table.len(), 1);
    let again = table.checkpoint(&mut blobs_of(&table, 3)).unwrap();
    assert_eq!((again.entries, again.segments().count()), (1, 1), "after {shares} shares");
    table.checkpointed(CheckpointOutcome::Committed);
    for _ in 0..200 {
        table.tick(64).unwrap();
    }
    let (now, spare) = (table.stats(), 5 * table.core.log.sizes.frame_bytes + 64 * KIB);
    assert!(now.pages_flushed >= after.pages_flushed && now.splits >= after.splits, "{now:?}");
    assert!(store.used() <= empty + spare, "{} and {empty} when it was empty", store.used());
    ended.err().map(|error| error.kind())
}

#[test]
fn a_state_that_is_cleared_is_handed_over_to_the_checkpoint_being_taken() {
    for shares in (0..200).step_by(9) {
        assert_eq!(cleared_after(shares, u64::MAX), None, "after {shares} shares");
    }
}

#[test]
fn without_memory_for_another_log_it_ends_the_checkpoint_unless_that_has_all_of_it() {
    let ended = (0..200).step_by(9).map(|shares| cleared_after(shares, 16 * KIB));
    let (overtaken, whole): (Vec<_>, Vec<_>) = ended.partition(Option::is_some);
    assert!(overtaken.iter().all(|kind| *kind == Some(ErrorKind::Overtaken)), "{overtaken:?}");
    let (whole, overtaken) = (whole.len(), overtaken.len());
    assert!(whole > 0 && overtaken > 3, "{whole} whole, {overtaken} overtaken");
}

/// Bytes of parts: pages, what values own, and segments of the index.
fn parts_bytes(store: &Account) -> u64 {
    let kinds = [MemoryKind::Pages, MemoryKind::Values, MemoryKind::Index];
    kinds.map(|kind| store.used_for(kind)).iter().sum()
}

/// Bytes that a share gives back at most: a part, and the memory of an empty page with it.
fn share_bytes<V: State>(table: &HybridLogTable<u64, V>) -> u64 {
    // Values of a page own at most four times as much as it takes, and the last one some more.
    let (page, value) = (table.core.log.sizes.frame_bytes, table.core.context.max_value_bytes);
    u64::from(QUANTUM) * (6 * page + value + 32 * KIB)
}

/// Clears so many keys, and gives the calls that it took until all of it was given back.
fn clear_and_tick<V: State + Debug>(keys: u64, stored: bool, value: impl Fn(u64) -> V) -> usize {
    let store = Account::root(64 * MIB);
    let mut table = open::<V>(&HybridLog::new().page(4 * KIB), &store, stored);
    let empty = store.used();
    for key in 0..keys {
        assert!(!table.put(key, value(key)).unwrap());
    }
    let before = parts_bytes(&store);
    Table::clear(&mut table).unwrap();
    assert_eq!((table.len(), table.get(&7).unwrap().is_some()), (0, false));
    assert!(parts_bytes(&store) >= before, "the call drops nothing, of {keys} keys");
    let (most, mut calls) = (share_bytes(&table), 0);
    while table.tick(1).unwrap() > 0 {
        calls += 1;
        assert!(calls < 100_000, "it does not end");
    }
    let spare = 5 * table.core.log.sizes.frame_bytes;
    assert!(store.used() <= empty + spare, "{} and {empty} when it was empty", store.used());
    assert!(!table.put(7, value(7)).unwrap());
    assert!(calls as u64 * most >= before, "{calls} calls gave {before} bytes back");
    calls
}

#[test]
fn clearing_drops_nothing_in_the_call_whatever_there_is() {
    for stored in [false, true] {
        let calls = [4_000, 64_000].map(|keys| clear_and_tick(keys, stored, |key| key));
        assert!(calls[1] > 10 * calls[0], "{calls:?}");
        let calls = [4_000, 40_000].map(|keys| clear_and_tick(keys, stored, |key| text(key, 200)));
        assert!(calls[1] > 6 * calls[0], "{calls:?}");
    }
}

/// Gives the most that was booked beside parts, for logs that are not dropped yet, in percent of what one takes.
fn clear_again_and_again<V: State + Debug>(keys: u64, value: impl Fn(u64) -> V) -> u64 {
    let store = Account::root(64 * MIB);
    let mut table = open::<V>(&HybridLog::new().page(4 * KIB), &store, true);
    let fixed = |store: &Account| store.used() - parts_bytes(store);
    let (one, share) = (fixed(&store), share_bytes(&table));
    let mut most = 0;
    for (round, keys) in std::iter::once(keys).chain((0..60).map(|n| 3_000 >> (n % 5))).enumerate()
    {
        for key in 0..keys {
            let before = parts_bytes(&store);
            assert!(!table.put(key, value(key)).unwrap());
            let after = parts_bytes(&store);
            assert!(before <= after + share, "{before} and {after} at {key} of round {round}");
        }
        let before = parts_bytes(&store);
        Table::clear(&mut table).unwrap();
        let after = parts_bytes(&store);
        assert!(before <= after + share, "{before} and {after} after round {round}");
        most = most.max(100 * fixed(&store) / one);
    }
    // By then the stream has paid for all of them.
    assert!(parts_bytes(&store) < 2 * MIB, "{store:?}");
    most
}

#[test]
fn a_state_that_is_cleared_again_soon_drops_a_share_with_each_call_and_keeps_few_logs() {
    for keys in [6_000, 60_000] {
        let logs = clear_again_and_again(keys, |key| key);
        assert!((120..=400).contains(&logs), "{logs} % of a log after {keys} keys");
        let logs = clear_again_and_again(keys / 2, |key| text(key, 200));
        assert!((120..=400).contains(&logs), "{logs} % of a log after {} keys", keys / 2);
    }
}

/// A state that fills its memory, or is several times as large.
#[test]
fn without_memory_for_another_log_as_much_as_that_takes_is_dropped() {
    for (stored, memory, keys) in [
        (false, 2 * MIB, u64::MAX),
        (false, 16 * MIB, u64::MAX),
        (true, 2 * MIB, 60_000),
        (true, 2 * MIB, 120_000),
    ] {
        let store = Account::root(memory);
        let mut table = open::<[u64; 4]>(&HybridLog::new().page(4 * KIB), &store, stored);
        let fill = |table: &mut HybridLogTable<u64, [u64; 4]>| {
            let full = (0..keys).find(|key| match table.put(*key, [*key; 4]) {
                Ok(was_there) => was_there,
                Err(rejected) => {
                    assert_eq!(rejected.error.kind(), ErrorKind::OverBudget);
                    true
                }
            });
            full.unwrap_or(keys)
        };
        let filled = fill(&mut table);
        assert!(filled > 5_000, "{filled} keys");
        let (before, least) = (parts_bytes(&store), table.core.log.sizes.memory_bytes_min(stored));
        Table::clear(&mut table).unwrap();
        let given = before.saturating_sub(parts_bytes(&store));
        assert!(given <= least + 64 * KIB, "{given} bytes, where another log takes {least}");
        assert!(table.is_empty() && store.used() <= memory);
        // What comes has its memory.
        assert_eq!(fill(&mut table), filled, "in {memory} bytes");
        assert_eq!(table.get(&(filled - 1)).unwrap(), Some(&[filled - 1; 4]));
    }
}

#[test]
fn a_state_is_cleared_whatever_pages_it_has_beside_others_that_take_the_rest() {
    for (page, memory) in [(16 * KIB, 8 * MIB), (16 * KIB, 32 * MIB), (64 * KIB, 32 * MIB)] {
        for (pages, left) in (8..40).flat_map(|pages| [(pages, 0), (pages, 3)]) {
            let store = Account::root(memory);
            let others = Account::below(&store, "others", u64::MAX);
            let mut table = open::<u64>(&HybridLog::new().page(page), &store, true);
            let frame = table.core.log.sizes.frame_bytes;
            let mut keys = 0..;
            while table.core.log.account.used_for(MemoryKind::Pages) < pages * frame {
                let key = keys.next().unwrap();
                table.put(key, key).unwrap();
            }
            others.charge(MemoryKind::Values, store.available().saturating_sub(left * frame));
            let taken = others.used();
            Table::clear(&mut table).unwrap();
            while table.tick(1).unwrap() > 0 {}
            assert!(!table.put(7, 7).unwrap(), "{pages} pages of {page}, {left} left");
            assert_eq!(table.len(), 1);
            drop(table);
            assert_eq!(store.used(), taken, "{pages} pages of {page}, {left} left");
        }
    }
}

/// What a checkpoint has no need of is dropped while the helper tells it; if that is lost, it is not to be written again
/// of what is left.
#[test]
fn what_was_cleared_goes_on_being_dropped_if_its_checkpoint_is_lost() {
    let mut lost = 0;
    for before in [0, 1, 300, 3_000, 9_000] {
        let (memory, keys) = (MIB, 36_000);
        let store = Account::root(memory);
        let mut table = open::<[u64; 2]>(&HybridLog::new(), &store, true);
        (0..keys).for_each(|key| assert!(!table.put(key, [key; 2]).unwrap()));
        table.checkpoint(&mut blobs_of(&table, 1)).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        (0..keys).step_by(7).for_each(|key| assert!(table.put(key, [key + 1; 2]).unwrap()));
        let mut blobs = blobs_of(&table, 2);
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        while table.core.needs_more() {
            table.pace_checkpoint(Pace::AT_ONCE);
            assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none());
        }
        // Helpers that go take what they were given with them.
        table.core.context.helper = Helper::inline();
        assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none());
        table.core.context.helper = Helper::inline();
        table.clear().unwrap();
        (0..before).for_each(|key| assert!(!table.put(key, [7; 2]).unwrap()));
        lost += u64::from(table.continue_checkpoint(&mut blobs).is_err());
        for key in before..keys {
            assert!(!table.put(key, [7; 2]).unwrap());
            assert!(store.used() <= memory, "{store:?}");
        }
        table.checkpointed(CheckpointOutcome::Abandoned);
        (0..keys).step_by(97).for_each(|key| assert_eq!(table.get(&key).unwrap(), Some(&[7; 2])));
    }
    assert_eq!(lost, 5);
}

/// A rewrite was copying a long record when the state was cleared. What is booked for the copy is not the cleared log's.
#[test]
fn a_copy_that_was_given_up_is_booked_once_whatever_is_cleared() {
    let store = Account::root(8 * MIB);
    let layout = HybridLog::new().segment(64 * KIB);
    let mut table = open::<String>(&layout, &store, true);
    let account = table.core.context.account.clone();
    let empty = account.used_for(MemoryKind::Buffers);
    let fill = |table: &mut HybridLogTable<u64, String>| {
        for key in 0..4000 {
            table.put(key, text(key, 450)).unwrap();
        }
    };
    for clears in 1..4 {
        let helper = table.core.context.helper.clone();
        let booked = Booked::buffers(account.clone(), 64 * KIB);
        table.core.rewriter.leave_copy(&helper, booked);
        for _ in 0..clears {
            fill(&mut table);
            table.clear().unwrap();
        }
        while table.core.release_step() {}
        // The copies end.
        while helper.drive() {}
        table.core.give_up_rewrite();
        assert_eq!(account.used_for(MemoryKind::Buffers), empty, "{clears} times cleared");
    }
    let booked = Booked::buffers(account.clone(), 64 * KIB);
    let helper = table.core.context.helper.clone();
    table.core.rewriter.leave_copy(&helper, booked);
    drop(table);
    assert_eq!(store.used(), 0, "and when it is dropped");
}
