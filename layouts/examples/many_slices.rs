//! Appends elements to many slices of an append log in little memory, folds every slice, and checks every answer.
//!
//! `cargo run --release -p alluvium-layouts --example many_slices -- ELEMENTS SLICES MIB SPREAD`: so many elements of 32
//! bytes, in a directory for temporary files. Event time goes from the first slice to the last; each element is late by up
//! to SPREAD slices. With SPREAD as large as SLICES the elements come in any order.

mod common;
#[path = "common/slices.rs"]
mod slices;

use std::time::Instant;

use alluvium_layouts::{AppendLog, AppendLogLists, Cursor, Lists, ListsLayout, Upkeep};
use alluvium_pagestore::{ErrorKind, MIB, Result, Time, hash_word};

use common::rate;
use slices::{WIDTH, slice_of};

type Element = [u64; 4];
type Log = AppendLogLists<u64, Element>;

/// Keys of a slice.
const KEYS: u64 = 50;

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
    let [elements, slices, mib, spread] = common::numbers([60_000, 3_000, 2, 100]);
    let shape = (elements, slices, spread);
    let place = tempfile::tempdir().expect("a directory for temporary files");
    let (context, account) = common::context("events", place.path(), mib)?;
    let layout = AppendLog::new().packs_slices(true);
    let mut log: Log = ListsLayout::<u64, Element>::open_lists(&layout, context)?;
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
