//! Appends elements to many slices of an append log in little memory, folds every slice, and checks every answer.
//!
//! `cargo run --release -p alluvium-layouts --example many_slices -- ELEMENTS SLICES MIB SPREAD`: so many elements of 32
//! bytes, in a directory for temporary files. Event time goes from the first slice to the last; each element is late by up
//! to SPREAD slices. With SPREAD as large as SLICES the elements come in any order.

use std::time::Instant;

use alluvium_layouts::{
    AppendLog, AppendLogLists, Cursor, Lists, ListsLayout, StateContext, Upkeep,
};
use alluvium_pagestore::io::{IoOptions, open_device};
use alluvium_pagestore::{Account, ErrorKind, Helper, MIB, Result, SegmentStore, Time, hash_word};

type Element = [u64; 4];
type Log = AppendLogLists<u64, Element>;

/// Event time between two slices.
const WIDTH: i64 = 1_000;
/// Keys of a slice.
const KEYS: u64 = 50;

fn open(place: &std::path::Path, mib: u64) -> Result<(Log, std::rc::Rc<Account>)> {
    let account = Account::below(&Account::root(mib * MIB), "events", u64::MAX);
    let context = StateContext {
        name: "events".into(),
        account: account.clone(),
        segments: Some(SegmentStore::new(open_device(place, &IoOptions::default())?, 1)),
        helper: Helper::thread()?,
        max_value_bytes: 4096,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    Ok((
        ListsLayout::<u64, Element>::open_lists(&AppendLog::new().packs_slices(true), context)?,
        account,
    ))
}

/// The slice of an element.
fn slice_of(nth: u64, (elements, slices, spread): (u64, u64, u64)) -> u64 {
    let newest = (u128::from(nth) * u128::from(slices) / u128::from(elements)) as u64;
    let late = hash_word(nth) % spread.max(1);
    (newest + slices - late) % slices
}

fn rate(calls: u64, start: Instant) -> f64 {
    calls as f64 / start.elapsed().as_secs_f64()
}

/// What is checked of a slice: the sum of its elements, each mixed with its number.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Sum {
    count: u64,
    mixed: u64,
}

impl Sum {
    fn add(&mut self, key: u64, element: &Element) {
        self.count += 1;
        self.mixed = self.mixed.wrapping_add(hash_word(element[0] ^ key << 50));
    }
}

fn key_of(nth: u64) -> u64 {
    hash_word(nth ^ 0x5eed) % KEYS
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u64>().expect("a number"));
    let mut argument = |default| arguments.next().unwrap_or(default);
    let (elements, slices, mib) = (argument(60_000), argument(3_000), argument(2));
    let shape = (elements, slices, argument(100));
    let place = tempfile::tempdir().expect("a directory for temporary files");
    let (mut log, account) = open(place.path(), mib)?;
    log.fold_at_once(WIDTH.into());
    let mut wanted = vec![Sum::default(); slices as usize];
    let (start, tenth) = (Instant::now(), (elements / 10).max(1));
    for nth in 0..elements {
        let (slice, key) = (slice_of(nth, shape), key_of(nth));
        let element = [nth; 4];
        // What is not written in time is refused, and can be appended again.
        while let Err(refused) = log.append(Time(slice as i64 * WIDTH), &key, element) {
            let is_late = refused.error.kind() == ErrorKind::Backpressure;
            assert!(is_late, "{nth}: {}", refused.error);
            println!("append: element {nth} was refused, and is appended again: {}", refused.error);
        }
        wanted[slice as usize].add(key, &element);
        if (nth + 1) % tenth == 0 {
            println!("append: {} of {elements}, {:.0}/s", nth + 1, rate(nth + 1, start));
        }
    }
    assert_eq!(log.len(), elements);
    let stats = log.stats();
    let each = |bytes: u64| bytes as f64 / elements as f64;
    println!(
        "{:.0} bytes on storage and {:.0} bytes written for each element; {} calls waited",
        each(stats.disk_bytes),
        each(stats.flushed_bytes),
        stats.stalls
    );
    fold_all(&mut log, &wanted)?;
    let (used, peak) = (account.used(), account.stats().peak);
    assert!(peak <= mib * MIB, "{peak} bytes were booked");
    println!("{used} bytes of memory are booked, {peak} were at most");
    Ok(())
}

/// Folds each slice, checks it, and purges it.
fn fold_all(log: &mut Log, wanted: &[Sum]) -> Result<()> {
    let (start, slices) = (Instant::now(), wanted.len() as u64);
    for (nth, wanted) in wanted.iter().enumerate() {
        let (time, mut cursor, mut found) =
            (Time(nth as i64 * WIDTH), Cursor::default(), Sum::default());
        while !cursor.done {
            log.fold(time..time.plus(1), &mut cursor, 1_000, &mut |key, list| {
                let mut last = None;
                while let Some(element) = list.next()? {
                    assert!(last < Some(element[0]), "in order of arrival");
                    last = Some(element[0]);
                    found.add(*key, element);
                }
                Ok(())
            })?;
        }
        assert_eq!(found, *wanted, "slice {nth}");
        log.purge(time.plus(1), usize::MAX)?;
        if (nth as u64 + 1) % (slices / 10).max(1) == 0 {
            println!("fold: {} of {slices}, {:.0} slices/s", nth + 1, rate(nth as u64 + 1, start));
        }
    }
    assert_eq!(log.len(), 0);
    Ok(())
}
