//! Sums elements in many slices of window segments in little memory, folds every slice, and checks every answer.
//!
//! `cargo run --release -p alluvium-layouts --example window_slices -- ELEMENTS SLICES MIB SPREAD KEYS`: so many elements,
//! each added to the sum of one of so many keys, in a directory for temporary files. Event time goes from the first slice
//! to the last; each element is late by up to SPREAD slices. With SPREAD as large as SLICES they come in any order. If an
//! element is refused it says which, and what slices take.

use std::rc::Rc;
use std::time::Instant;

use alluvium_layouts::{
    Cursor, HasUpkeep, Merge, Panes, PanesLayout, SegmentPanes, StateContext, WindowSegments,
};
use alluvium_pagestore::io::{IoOptions, open_device};
use alluvium_pagestore::{Account, ErrorKind, Helper, MIB, Result, SegmentStore, Time, hash_word};

type Sums = SegmentPanes<u64, [u64; 2]>;

/// Event time between two slices.
const WIDTH: i64 = 1_000;

fn open(place: &std::path::Path, mib: u64) -> Result<(Sums, Rc<Account>)> {
    let account = Account::below(&Account::root(mib * MIB), "sums", u64::MAX);
    let context = StateContext {
        name: "sums".into(),
        account: account.clone(),
        segments: Some(SegmentStore::new(open_device(place, &IoOptions::default())?, 1)),
        helper: Helper::thread()?,
        max_value_bytes: 4096,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    let merge: Merge<[u64; 2]> = Rc::new(add);
    Ok((WindowSegments::new().open_panes(context, merge)?, account))
}

/// A count, and a sum that tells which elements were counted.
fn add(sum: &mut [u64; 2], more: &[u64; 2]) {
    *sum = [sum[0] + more[0], sum[1].wrapping_add(more[1])];
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

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u64>().expect("a number"));
    let mut argument = |default| arguments.next().unwrap_or(default);
    let (elements, slices, mib) = (argument(60_000), argument(10_000), argument(4));
    let (spread, keys) = (argument(100), argument(4).max(1));
    let place = tempfile::tempdir().expect("a directory for temporary files");
    let (mut sums, account) = open(place.path(), mib)?;
    let mut wanted = vec![[0; 2]; (slices * keys) as usize];
    let (start, tenth) = (Instant::now(), (elements / 10).max(1));
    for nth in 0..elements {
        let slice = slice_of(nth, (elements, slices, spread));
        let key = hash_word(nth ^ 0x5eed) % keys;
        let one = [1, hash_word(nth)];
        let time = Time(slice as i64 * WIDTH);
        // What is not written in time is refused, and can be added again.
        while let Err(refused) = sums.update(time, &key, || [0; 2], |sum| add(sum, &one)) {
            println!("element {nth} is refused: {refused}");
            if refused.kind() != ErrorKind::Backpressure {
                return tell(&sums, &account, &wanted, keys);
            }
        }
        add(&mut wanted[(slice * keys + key) as usize], &one);
        if (nth + 1) % tenth == 0 {
            println!("add: {} of {elements}, {:.0}/s", nth + 1, rate(nth + 1, start));
        }
    }
    tell(&sums, &account, &wanted, keys)?;
    fold_all(&mut sums, &wanted, keys)?;
    let (used, peak) = (account.used(), account.stats().peak);
    assert!(peak <= mib * MIB, "{peak} bytes were booked");
    println!("{used} bytes of memory are booked, {peak} were at most");
    Ok(())
}

/// Tells what slices take.
fn tell(sums: &Sums, account: &Account, wanted: &[[u64; 2]], keys: u64) -> Result<()> {
    let stats = sums.upkeep().stats();
    let slices = wanted.chunks(keys as usize).filter(|slice| slice.iter().any(|sum| sum[0] > 0));
    let slices = slices.count().max(1) as f64;
    println!(
        "{slices} slices: {:.0} bytes of memory, {:.0} on storage and {:.0} written for each; {} calls waited",
        account.used() as f64 / slices,
        stats.disk_bytes as f64 / slices,
        stats.flushed_bytes as f64 / slices,
        stats.stalls
    );
    Ok(())
}

/// Folds each slice, checks it, and purges it.
fn fold_all(sums: &mut Sums, wanted: &[[u64; 2]], keys: u64) -> Result<()> {
    let (start, slices) = (Instant::now(), wanted.len() as u64 / keys);
    for (nth, wanted) in wanted.chunks(keys as usize).enumerate() {
        let time = Time(nth as i64 * WIDTH);
        let (mut cursor, mut found) = (Cursor::default(), vec![[0; 2]; keys as usize]);
        while !cursor.done {
            sums.fold(time..time.plus(1), &mut cursor, 1_000, &mut |key, sum| {
                assert_eq!(found[*key as usize], [0; 2], "a key is visited once");
                found[*key as usize] = sum;
                Ok(())
            })?;
        }
        assert_eq!(found, wanted, "slice {nth}");
        while !sums.purge(time.plus(1), usize::MAX)? {}
        if (nth as u64 + 1) % (slices / 10).max(1) == 0 {
            println!("fold: {} of {slices}, {:.0} slices/s", nth + 1, rate(nth as u64 + 1, start));
        }
    }
    assert_eq!(sums.len(), 0);
    Ok(())
}
