//! Sums elements in many slices of window segments in little memory, folds every slice, and checks every answer.
//!
//! `cargo run --release -p alluvium-layouts --example window_slices -- ELEMENTS SLICES MIB SPREAD KEYS`: so many elements,
//! each added to the sum of one of so many keys, in a directory for temporary files. Event time goes from the first slice
//! to the last; each element is late by up to SPREAD slices. With SPREAD as large as SLICES they come in any order. If an
//! element is refused it says which, and what slices take.

mod common;
#[path = "common/slices.rs"]
mod slices;

use std::rc::Rc;
use std::time::Instant;

use alluvium_layouts::{
    Cursor, HasUpkeep, Merge, Panes, PanesLayout, SegmentPanes, WindowSegments,
};
use alluvium_pagestore::{Account, ErrorKind, MIB, Result, Time, hash_word};

use common::rate;
use slices::{WIDTH, slice_of};

type Sums = SegmentPanes<u64, [u64; 2]>;

/// A count, and a sum that tells which elements were counted.
fn add(sum: &mut [u64; 2], more: &[u64; 2]) {
    *sum = [sum[0] + more[0], sum[1].wrapping_add(more[1])];
}

fn main() -> Result<()> {
    let [elements, slices, mib, spread, keys] = common::numbers([60_000, 10_000, 4, 100, 4]);
    let keys = keys.max(1);
    let place = tempfile::tempdir().expect("a directory for temporary files");
    let (context, account) = common::context("sums", place.path(), mib)?;
    let merge: Merge<[u64; 2]> = Rc::new(add);
    let mut sums: Sums = WindowSegments::new().open_panes(context, merge)?;
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
