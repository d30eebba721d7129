//! What a log reads and writes for each operation, by the part of the memory that its index may have.

use std::fmt;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, MIB};

use super::tests::{Dice, open};
use crate::contract::table::Table;
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::HybridLog;

/// Keys of which all are asked for alike, or by Zipf's law with an exponent of 0.99.
struct Keys {
    count: u64,
    /// Of Zipf: for each key, the sum of what the keys up to it are asked for.
    sums: Vec<f64>,
}

impl Keys {
    fn new(count: u64, is_zipf: bool) -> Self {
        let mut sum = 0.0;
        let sums = (1..=if is_zipf { count } else { 0 }).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Self { sums: sums.collect(), count }
    }

    fn any(&self, dice: &mut Dice) -> u64 {
        let Some(all) = self.sums.last() else { return dice.below(self.count) };
        let at = dice.below(1 << 52) as f64 / (1u64 << 52) as f64 * all;
        self.sums.partition_point(|sum| *sum < at) as u64
    }
}

/// What was counted of each operation, and what memory had in the end.
struct Counted {
    reads: f64,
    written_bytes: f64,
    stalls: u64,
    index_share: f64,
    guide_share: f64,
    percent: u64,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, guides) = (100.0 * self.index_share, 100.0 * self.guide_share);
        let (reads, bytes, stalls) = (self.reads, self.written_bytes, self.stalls);
        write!(f, "{reads:.2} reads, {bytes:.0} bytes written, {stalls} stalls; ")?;
        write!(f, "index {index:.0} % of {} %, guides {guides:.0} %", self.percent)
    }
}

/// Half of the operations read and half change one of so many times the keys that memory has room for.
fn count<const WORDS: usize>(
    memory: u64,
    (times, is_zipf): (u64, bool),
    layout: &HybridLog,
) -> Counted {
    let (device, store) = (Simulated::new(1, Faults::none()), Account::root(memory));
    let mut table = open::<u64, [u64; WORDS]>(layout, &device, &store);
    // A key takes its slot and an entry of the index.
    let held = memory / (16 + 8 * WORDS as u64 + 16);
    let (keys, mut dice) = (Keys::new(times * held, is_zipf), Dice(times));
    (0..keys.count).for_each(|key| _ = table.put(key, [key; WORDS]).unwrap());
    let ops = keys.count.max(100_000);
    let mut before = (device.stats(), table.stats());
    for step in 0..2 * ops {
        if step == ops {
            before = (device.stats(), table.stats());
        }
        let key = keys.any(&mut dice);
        match dice.below(2) {
            0 => assert!(table.get(&key).unwrap().is_some(), "{key}"),
            _ => assert!(table.modify(&key, |value| value[0] = step).unwrap().is_some(), "{key}"),
        }
        assert!(store.used() <= memory);
    }
    let (io, stats) = (device.stats().since(&before.0), table.stats());
    let log = &table.core.log;
    Counted {
        reads: io.reads as f64 / ops as f64,
        written_bytes: io.bytes_written as f64 / ops as f64,
        stalls: stats.stalls - before.1.stalls,
        index_share: log.index_bytes() as f64 / memory as f64,
        guide_share: stats.runs.guide_bytes as f64 / memory as f64,
        percent: log.cold.as_ref().unwrap().share.percent(),
    }
}

/// Where filters have no room beside an index of half of the memory, most look-ups read several: the index gives memory to
/// them.
#[test]
fn the_index_gives_memory_to_filters_that_are_read() {
    let layout = HybridLog::new().cold_runs(true);
    let judged = count::<7>(2 * MIB, (5, false), &layout);
    let fixed = count::<7>(2 * MIB, (5, false), &layout.index_percent(50));
    println!("{judged}; beside {fixed}");
    assert!(judged.reads < 0.6 * fixed.reads && judged.percent < 50);
    assert!(judged.written_bytes < 1.5 * fixed.written_bytes);
}

fn print_table<const WORDS: usize>(memory: u64, rows: &[(bool, u64)], shares: &[u64]) {
    let layout = HybridLog::new().cold_runs(true);
    let fixed =
        shares.iter().map(|percent| (Some(percent), layout.clone().index_percent(*percent)));
    let layouts: Vec<_> = fixed.chain([(None, layout.clone())]).collect();
    for &(is_zipf, times) in rows {
        for (told, layout) in &layouts {
            let counted = count::<WORDS>(memory, (times, is_zipf), layout);
            println!("{} bytes, Zipf {is_zipf}, {times}x, {told:?}: {counted}", 8 * WORDS + 8);
        }
    }
}

/// By Zipf's law or not, and how many times the keys that memory has room for.
const ROWS: [(bool, u64); 6] =
    [(false, 2), (false, 5), (false, 10), (true, 2), (true, 5), (true, 10)];

#[test]
#[ignore = "prints a table, for minutes"]
fn what_records_of_16_bytes_read_by_the_share_of_the_index() {
    print_table::<1>(2 * MIB, &ROWS, &[20, 35, 50]);
}

#[test]
#[ignore = "prints a table, for minutes"]
fn what_records_of_64_bytes_read_by_the_share_of_the_index() {
    print_table::<7>(2 * MIB, &ROWS, &[20, 35, 50]);
}

#[test]
#[ignore = "prints a table, for minutes"]
fn what_records_of_64_bytes_read_in_more_memory() {
    print_table::<7>(32 * MIB, &[(true, 4), (true, 10)], &[12, 20, 35, 50]);
}
