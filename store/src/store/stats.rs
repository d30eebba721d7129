//! What a store holds and has done, for programs (serde) and for people (a table).
//!
//! Counters are kept where the work is done, in plain cells and fields; a reading collects them.

use std::fmt;

use alluvium_layouts::{RunStats, TableStats};
use alluvium_pagestore::io::IoStats;
use alluvium_pagestore::{AccountStats, GIB, KIB, MEMORY_KINDS, MIB};
use serde::{Deserialize, Serialize};

use crate::cells::recording::TraceStats;
use crate::store::crowded::{enough, is_crowded};

/// What a store holds and has done since it was opened; read by [`Store::stats`](crate::Store::stats).
///
/// `{}` prints a table with a line per state and their total.
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut counts = store.map::<u64, u64>("counts").open()?;
/// counts.put(7, 1)?;
/// let stats = store.stats()?;
/// println!("{stats}");
/// assert!(stats.memory.peak <= 16 * MIB);
/// assert_eq!(stats.state("counts").unwrap().table.live_keys, 1);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStats {
    /// The budget: memory of the states and of the store itself.
    pub memory: AccountStats,
    /// The device's counters; zero without a directory.
    pub io: IoStats,
    /// The open states, in the order of opening.
    pub states: Vec<StateStats>,
    /// The last compaction error of each state. It affects no write, and compaction retries.
    pub compaction_errors: Vec<(String, String)>,
    /// Memory that no eviction frees, including the minimum of each state.
    #[serde(default)]
    pub fixed_bytes: u64,
    /// Memory that the growth of states leaves free for the next checkpoint and for opening again. Not reserved.
    #[serde(default)]
    pub left_free_bytes: u64,
    /// Traces that are recorded, or were since the store was opened.
    #[serde(default)]
    pub traces: Vec<TraceStats>,
}

/// Gauges and counters of one state since it was opened.
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut counts = store.map::<u64, u64>("counts").open()?;
/// counts.put(7, 1)?;
/// let stats = store.stats()?;
/// for state in &stats.states {
///     println!("{} in {}: {} bytes", state.name, state.layout, state.memory.used);
/// }
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StateStats {
    /// Its name.
    pub name: String,
    /// Its kind: `map`, `count`, `value`, `timers`.
    pub primitive: String,
    /// Its layout.
    pub layout: String,
    /// Its part of the budget.
    pub memory: AccountStats,
    /// Counters and gauges of its layout.
    pub table: TableStats,
}

impl StoreStats {
    /// Returns the sum over all states.
    pub fn total(&self) -> TableStats {
        let mut sum = TableStats::default();
        for state in &self.states {
            sum.add(&state.table);
        }
        sum
    }

    /// Returns whether [`CROWDED_PERCENT`](crate::config::CROWDED_PERCENT) of the memory hold what no
    /// eviction frees. Soon there is no room for more keys, or hardly any for values.
    pub fn is_crowded(&self) -> bool {
        self.memory.limit > 0 && is_crowded((self.fixed_bytes, self.memory.limit))
    }

    /// Returns the open state of this name.
    pub fn state(&self, name: &str) -> Option<&StateStats> {
        self.states.iter().find(|state| state.name == name)
    }
}

impl fmt::Display for StoreStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.memory;
        let [used, limit, peak] = [memory.used, memory.limit, memory.peak].map(Short);
        writeln!(f, "memory: {used} of {limit}, at most {peak}")?;
        if self.is_crowded() {
            let (fixed, enough) = (Short(self.fixed_bytes), enough(self.fixed_bytes));
            writeln!(f, "of that {fixed} cannot be evicted: a memory of {enough} would do")?;
        }
        let heads = "state layout keys memory peak index pages values buffers tables calls hits \
                     cold ahead flushed disk dead amp";
        let mut rows = vec![heads.split_whitespace().map(String::from).collect()];
        rows.extend(self.states.iter().map(|s| row(&s.name, &s.layout, &s.memory, &s.table)));
        rows.push(row("total", "", memory, &self.total()));
        write_aligned(f, &rows)?;
        for state in self.states.iter().filter(|state| state.table.runs.runs > 0) {
            write_runs(f, &state.name, &state.table.runs)?;
        }
        let io = &self.io;
        let [read, written] = [io.bytes_read, io.bytes_written].map(Short);
        write!(f, "io: {} reads of {read}, {} writes of {written}, ", io.reads, io.writes)?;
        writeln!(f, "{} syncs, {} errors", io.syncs, io.errors)?;
        for (state, error) in &self.compaction_errors {
            writeln!(f, "compaction of {state}: {error}")?;
        }
        for trace in &self.traces {
            writeln!(f, "{trace}")?;
        }
        Ok(())
    }
}

/// One line of a state that has sorted runs.
fn write_runs(f: &mut fmt::Formatter<'_>, state: &str, runs: &RunStats) -> fmt::Result {
    let RunStats { keys, runs: count, levels, reads, false_reads, guide_reads, failed, .. } = runs;
    let [disk, guides] = [runs.bytes, runs.guide_bytes].map(Short);
    write!(f, "runs of {state}: {keys} keys in {count} runs, {levels} levels, {disk}; ")?;
    write!(f, "{guides} of filters in memory; {reads} reads, {false_reads} for nothing, ")?;
    write!(f, "{guide_reads} of filters")?;
    if let Some(times) = runs.write_amplification() {
        write!(f, "; {times:.2} bytes written for each that moved")?;
    }
    if *failed > 0 {
        write!(f, "; {failed} steps failed")?;
    }
    writeln!(f)
}

/// One line of the table, in the order of its heads.
fn row(name: &str, layout: &str, memory: &AccountStats, table: &TableStats) -> Vec<String> {
    let bytes = |bytes: u64| Short(bytes).to_string();
    let mut row = vec![name.to_owned(), layout.to_owned(), table.live_keys.to_string()];
    row.extend([memory.used, memory.peak].map(bytes));
    row.extend(MEMORY_KINDS.map(|kind| bytes(memory.used_for(kind))));
    row.push(table.calls.to_string());
    row.push(table.hit_rate().map_or("-".into(), |rate| format!("{:.2}%", rate * 100.0)));
    row.extend([table.cold_reads, table.fetches].map(|reads| reads.to_string()));
    row.extend([table.flushed_bytes, table.disk_bytes, table.dead_disk_bytes()].map(bytes));
    row.push(table.space_amplification().map_or("-".into(), |times| format!("{times:.2}")));
    row
}

/// Writes rows in columns: the first two to the left, numbers to the right.
fn write_aligned(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => write!(f, "{cell:width$}")?,
                1 => write!(f, "  {cell:width$}")?,
                _ => write!(f, "  {cell:>width$}")?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Bytes with a decimal and the largest unit of which there is one.
struct Short(u64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit {
                return write!(f, "{:.1}{name}", self.0 as f64 / unit as f64);
            }
        }
        write!(f, "{}B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_short() {
        let texts =
            [0, 1023, 1024, 1536, 3 * MIB, 5 * GIB / 2].map(|bytes| Short(bytes).to_string());
        assert_eq!(texts, ["0B", "1023B", "1.0KiB", "1.5KiB", "3.0MiB", "2.5GiB"]);
    }

    #[test]
    fn a_state_with_runs_has_a_line_of_them() {
        struct Line(RunStats);
        impl fmt::Display for Line {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_runs(f, "seen", &self.0)
            }
        }
        let mut runs = RunStats {
            keys: 900,
            runs: 5,
            levels: 3,
            bytes: 64 * KIB,
            guide_bytes: 2 * KIB,
            reads: 70,
            false_reads: 2,
            guide_reads: 1,
            ..RunStats::default()
        };
        let text = "runs of seen: 900 keys in 5 runs, 3 levels, 64.0KiB; 2.0KiB of filters in \
                    memory; 70 reads, 2 for nothing, 1 of filters";
        assert_eq!(Line(runs).to_string(), format!("{text}\n"));
        (runs.moved_bytes, runs.merged_bytes, runs.failed) = (100, 250, 4);
        let more = "; 3.50 bytes written for each that moved; 4 steps failed\n";
        assert_eq!(Line(runs).to_string(), format!("{text}{more}"));
        assert!((runs.memory_per_key().unwrap() - 2048.0 / 900.0).abs() < 1e-9);
    }

    #[test]
    fn the_table_says_what_the_fields_say() {
        let by_kind = [1, 2, 3, 4, 5].map(|n| n * KIB);
        let memory = AccountStats { limit: MIB, used: 15 * KIB, peak: 20 * KIB, by_kind };
        let table = TableStats {
            live_keys: 7,
            calls: 400,
            cold_reads: 100,
            fetches: 60,
            flushed_bytes: 2 * MIB,
            disk_bytes: 3 * MIB,
            live_disk_bytes: 2 * MIB,
            ..TableStats::default()
        };
        let state = |name: &str, table| StateStats {
            name: name.into(),
            primitive: "map".into(),
            layout: "hybrid-log".into(),
            memory,
            table,
        };
        let io = IoStats { reads: 3, bytes_read: 12 * KIB, ..IoStats::default() };
        let stats = StoreStats {
            memory,
            io,
            states: vec![state("a", table), state("people", TableStats::default())],
            compaction_errors: vec![("a".into(), "no room".into())],
            fixed_bytes: 3 * KIB,
            left_free_bytes: 0,
            traces: Vec::new(),
        };
        let text = stats.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(text.lines().next().unwrap(), "memory: 15.0KiB of 1.0MiB, at most 20.0KiB");
        let numbers = "7 15.0KiB 20.0KiB 1.0KiB 2.0KiB 3.0KiB 4.0KiB 5.0KiB 400 75.00% 100 60 2.0MiB \
                       3.0MiB 1.0MiB 1.50";
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        assert_eq!(lines[2], [&["a", "hybrid-log"], &numbers[..]].concat());
        assert_eq!(lines[3][..3], ["people", "hybrid-log", "0"]);
        assert_eq!(lines[3][10..], ["0", "-", "0", "0", "0B", "0B", "0B", "-"]);
        assert_eq!(lines[4], [&["total"], &numbers[..]].concat());
        assert_eq!(lines[1].len(), lines[2].len(), "a head for each column");
        assert!(text.contains("io: 3 reads of 12.0KiB, 0 writes of 0B, 0 syncs, 0 errors"));
        assert!(text.ends_with("compaction of a: no room\n"));
        let width = text.lines().nth(1).unwrap().len();
        assert!(text.lines().skip(1).take(4).all(|line| line.len() == width), "{text}");
    }
}
