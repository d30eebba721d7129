//! What decoded blocks take is booked before they are decoded: a read that has little memory is refused, or stays in it.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, Cursor, Lists, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, Key, MemoryKind, State, Time};

use crate::common::{Ground, read};

fn ground(memory: u64) -> Ground {
    Ground::new(Some(Arc::new(Simulated::new(5, Faults::none()))), memory, false)
}

/// Folds some buckets where others leave so many bytes, and says how many elements were told; none if that is refused.
fn fold_in<K: Key, E: State>(
    lists: &mut impl Lists<K, E>,
    account: &Rc<Account>,
    left: u64,
) -> Option<u64> {
    let taken = account.available() - left;
    account.reserve(MemoryKind::Buffers, taken, "others").unwrap();
    let (mut cursor, mut count) = (Cursor::default(), 0);
    let mut folded = Ok(());
    while !cursor.done && folded.is_ok() {
        folded = lists.fold(Time(1)..Time(4), &mut cursor, 10, &mut |_, list| {
            while list.next()?.is_some() {
                count += 1;
            }
            Ok(())
        });
    }
    account.release(MemoryKind::Buffers, taken);
    let (peak, limit) = (account.stats().peak, account.limit());
    assert!(peak <= limit, "{left} bytes left: {peak} of {limit}");
    match folded {
        Ok(()) => Some(count),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
            None
        }
    }
}

/// Folds in more and more memory: refused at first, and from some bytes on all is told.
fn fold_in_more_and_more<K: Key, E: State>(
    lists: &mut impl Lists<K, E>,
    account: &Rc<Account>,
    (step, count): (u64, u64),
) -> u64 {
    let told: Vec<Option<u64>> = (1..60).map(|n| fold_in(lists, account, n * step)).collect();
    let refused = told.iter().take_while(|told| told.is_none()).count();
    println!("read in {} bytes", (refused as u64 + 1) * step);
    assert!(refused > 0 && refused < told.len(), "{told:?}");
    assert!(told[refused..].iter().all(|told| *told == Some(count)), "{told:?}");
    (refused as u64 + 1) * step
}

/// A block that is longer than blocks are by default takes seven times its bytes once it is decoded.
#[test]
fn long_blocks_of_short_strings_are_read_in_the_memory_that_they_take() {
    let (mut ground, layout) = (ground(8 << 20), AppendLog::new().block(256 << 10).runs_max(100));
    let (mut lists, account) = ground.open::<u64, String, _>(&layout).unwrap();
    let (runs, each) = (2, 10_000);
    for _ in 0..runs {
        for n in 0..each {
            lists.append(Time(1), &(n % 40), "abc".to_owned()).unwrap();
        }
        lists.reclaim(u64::MAX).unwrap();
        while lists.tick(100).unwrap() > 0 {}
    }
    let needed = fold_in_more_and_more(&mut lists, &account, (24 << 10, runs * each));
    // A block of each is there at once.
    assert!(needed > runs * (224 << 10), "{needed}");
    drop(lists);
    assert_eq!(account.used(), 0);
}

/// The same of lists of one short element.
#[test]
fn long_blocks_of_short_lists_are_read_in_the_memory_that_they_take() {
    let (mut ground, layout) = (ground(8 << 20), AppendLog::new().block(256 << 10).runs_max(100));
    let (mut lists, account) = ground.open::<u64, u8, _>(&layout).unwrap();
    let (runs, each) = (2, 15_000);
    for run in 0..runs {
        for n in 0..each {
            lists.append(Time(1), &(run * each + n), 1).unwrap();
        }
        lists.reclaim(u64::MAX).unwrap();
        while lists.tick(100).unwrap() > 0 {}
    }
    let needed = fold_in_more_and_more(&mut lists, &account, (32 << 10, runs * each));
    assert!(needed > runs * (400 << 10), "{needed}");
    drop(lists);
    assert_eq!(account.used(), 0);
}

/// A packed slice that is read part by part: one record is decoded at a time.
#[test]
fn parts_of_slices_of_short_strings_are_read_in_the_memory_that_they_take() {
    let (mut ground, layout) = (ground(4 << 20), AppendLog::new().pack_all());
    let (mut lists, account) = ground.open::<u64, String, _>(&layout).unwrap();
    let (slices, rounds, each) = (3, 20, 1_000);
    for _ in 0..rounds {
        for n in 0..slices * each {
            lists.append(Time((1 + n % slices) as i64), &7, "abc".to_owned()).unwrap();
        }
        lists.reclaim(u64::MAX).unwrap();
    }
    fold_in_more_and_more(&mut lists, &account, (16 << 10, slices * rounds * each));
    assert_eq!(read(&mut lists, Time(1), &7).unwrap().len() as u64, rounds * each);
    drop(lists);
    assert_eq!(account.used(), 0);
}

/// An element that takes much more than on storage is booked as a whole before what follows it is decoded.
#[test]
fn a_long_list_of_short_strings_is_booked_while_it_is_decoded() {
    let (mut ground, layout) = (ground(1 << 20), AppendLog::new().block(512).runs_max(100));
    let (mut lists, account) = ground.open::<u64, Vec<String>, _>(&layout).unwrap();
    for _ in 0..200 {
        // Eight times as long as a block is in memory, as long as one is on storage.
        lists.append(Time(1), &7, vec!["abc".to_owned(); 65]).unwrap();
    }
    lists.reclaim(u64::MAX).unwrap();
    while lists.tick(100).unwrap() > 0 {}
    fold_in_more_and_more(&mut lists, &account, (1 << 10, 200));
    drop(lists);
    assert_eq!(account.used(), 0);
}
