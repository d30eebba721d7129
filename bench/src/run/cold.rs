//! `cold`: state far larger than memory, whose cold keys cost storage and next to no memory.
//!
//! Counters are loaded into a hybrid log with sorted runs, read, looked for in vain, and updated, in batches; then the
//! store takes a checkpoint and is opened again. All answers are checked as they come, and at the end all records are
//! counted and compared with what they must be. Beside the reads the device is read as often by itself: at random, a
//! block at a time, from the store's files, by as many threads as a batch has keys.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stderr};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alluvium::io::{BLOCK_BYTES, IoBuffer};
use alluvium::stats::{RunTimes, TableStats};
use alluvium::{HybridLog, Map};

use super::state::{State, temporary_dir};
use crate::args::{ColdArgs, Layout, StateArgs};
use crate::report::{Progress, Report, peak_rss_bytes};
use crate::workload::{Distribution, Keys};
use crate::{Error, Result};

/// Seven numbers: with the key 64 bytes. The last one counts updates.
type Value = [u64; 7];

/// Calls between two looks at the progress.
const STRETCH: u64 = 1 << 16;
/// Parts of so many calls have lines of progress.
const LINES_MIN: u64 = 1_000_000;
/// Seeds of the keys that are read, looked for in vain, and updated.
const SEEDS: [u64; 3] = [1, 2, 3];

fn value(key: u64, updates: u64) -> Value {
    [key, key, key, key, key, key, updates]
}

/// Does all of it.
///
/// # Errors
/// Those of the store, and any answer that is wrong.
pub fn cold(args: &ColdArgs) -> Result<Report> {
    let temporary = if args.dir.is_none() { Some(temporary_dir()?) } else { None };
    let dir = temporary.as_ref().map(|dir| dir.path().to_owned()).or(args.dir.clone());
    let layout = Layout { name: "hybrid-log".to_owned(), layout: HybridLog::new().into() };
    let (memory, max_value) = (args.memory, None);
    let state = StateArgs { layout, cold_runs: true, memory, max_value, dir };
    println!("{} keys of 64 bytes in {}", args.keys, args.memory);
    let mut report = Report::new("cold", &state.layout.name);
    let checked = Run::open(&state, args)?.all(&mut report)?;
    let seconds = Instant::now();
    let again = Run::open(&state, args)?;
    let opened = seconds.elapsed();
    again.recount(opened, checked, &mut report)?;
    report.memory.peak_rss = peak_rss_bytes();
    Ok(report)
}

/// The open store, and what is asked of it.
struct Run<'a> {
    args: &'a ColdArgs,
    map: Map<u64, Value>,
    state: State,
}

impl<'a> Run<'a> {
    fn open(state: &StateArgs, args: &'a ColdArgs) -> Result<Self> {
        let state = State::open(state)?;
        let map = state.store.map("cold").open()?;
        Ok(Self { args, map, state })
    }

    /// From the load to the checkpoint. Returns the updates that were made.
    fn all(mut self, report: &mut Report) -> Result<u64> {
        let (keys, ops, size) = (self.args.keys, self.args.ops, self.args.batch as usize);
        let singly = self.args.puts.unwrap_or(keys / 10);
        if singly > keys {
            return Err(Error::Wrong(format!("{singly} puts are more than {keys} keys")));
        }
        let begin = Instant::now();
        let load = self.part("load", keys - singly, |map, calls, progress| {
            let tell = |key: &u64| progress.tell(*key);
            let entries = (0..calls).inspect(tell).map(|key| (key, value(key, 0)));
            map.load(entries).map(drop).map_err(|rejected| rejected.error.into())
        })?;
        self.part("put", singly, |map, calls, progress| {
            (keys - singly..keys).try_for_each(|key| {
                progress.tell(key - (keys - singly));
                let known = map.put(key, value(key, 0)).map_err(|rejected| rejected.error)?;
                let new = || Error::Wrong(format!("{key} of {calls} new keys was known"));
                if known { Err(new()) } else { Ok(()) }
            })
        })?;
        println!("load and put: {:.2} s", begin.elapsed().as_secs_f64());
        self.state.describe(report)?;
        self.tell_storage()?;
        report.set_rate(keys - singly, load.as_secs_f64());
        let reads = self.reads("read", ops, SEEDS[0], &|key| (key, Some(value(key, 0))))?;
        self.device_reads(ops, reads)?;
        self.reads("absent", ops, SEEDS[1], &|key| (keys + key, None))?;
        self.part("update", ops, |map, calls, progress| {
            updates(map, (keys, size), calls, progress)
        })?;
        let begin = Instant::now();
        self.state.store.checkpoint(1)?;
        println!("checkpoint: {:.2} s", begin.elapsed().as_secs_f64());
        self.tell_storage()?;
        Ok(ops)
    }

    /// Runs one part; tells its rate, and what it read of runs.
    fn part(
        &mut self,
        what: &'static str,
        calls: u64,
        run: impl FnOnce(&mut Map<u64, Value>, u64, &Told) -> Result<()>,
    ) -> Result<Duration> {
        let before = self.map.stats()?;
        let (progress, begin) = (Told::new(what, calls), Instant::now());
        run(&mut self.map, calls, &progress)?;
        let took = begin.elapsed();
        drop(progress);
        let after = self.map.stats()?;
        print_part(what, calls, took, &before, &after);
        if self.args.shares {
            print_shares(took, &before, &after);
        }
        Ok(took)
    }

    /// Tells the bytes of the store's files.
    fn tell_storage(&self) -> Result<()> {
        let files = files_of(self.state.directory())?;
        let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        println!("storage: {:.2} GB in {} files", bytes as f64 / 1e9, files.len());
        Ok(())
    }

    /// Reads keys in batches, each of which has to be what `expected` says of what was drawn.
    fn reads(
        &mut self,
        what: &'static str,
        ops: u64,
        seed: u64,
        expected: &dyn Fn(u64) -> (u64, Option<Value>),
    ) -> Result<Duration> {
        let (keys, batch) = (self.args.keys, self.args.batch as usize);
        self.part(what, ops, |map, calls, progress| {
            let mut drawn = Keys::new(keys, Distribution::Uniform, seed);
            let (mut asked, mut done) = (Vec::with_capacity(batch), 0);
            while done < calls {
                asked.clear();
                asked.extend(drawn.by_ref().take(batch.min((calls - done) as usize)).map(expected));
                let mut wrong = None;
                let read = map.read_batch(
                    &asked,
                    |(key, _)| key,
                    |(key, expected), found| {
                        if found != expected.as_ref() {
                            wrong = Some((*key, found.copied()));
                        }
                    },
                );
                read.map_err(alluvium::Error::from)?;
                if let Some((key, found)) = wrong {
                    return Err(Error::Wrong(format!("the record of {key} is {found:?}")));
                }
                done += asked.len() as u64;
                progress.tell_after(done, asked.len() as u64);
            }
            Ok(())
        })
    }

    /// As many reads of the device as keys were read in this time.
    fn device_reads(&self, reads: u64, took: Duration) -> Result<()> {
        let (rate, is_direct) = device_rate(self.state.directory(), self.args.batch, reads)?;
        let ours = reads as f64 / took.as_secs_f64();
        let through = if is_direct { "" } else { ", through the page cache" };
        println!(
            "device: {rate:.0} random reads of {BLOCK_BYTES} bytes a second, {} at once{through}; \
             keys were read at {:.0} % of that",
            self.args.batch,
            100.0 * ours / rate
        );
        Ok(())
    }

    /// Counts all records of a store that was opened again.
    fn recount(mut self, opened: Duration, updates: u64, report: &mut Report) -> Result<()> {
        let stats = self.map.stats()?;
        println!("opened again: {:.2} s, {} keys", opened.as_secs_f64(), stats.live_keys);
        let (keys, mut found, mut sum, mut counted) = (self.args.keys, 0u64, 0u64, 0u64);
        self.part("recount", keys, |map, _, progress| {
            map.for_each(|key, known| {
                if *known != value(*key, known[6]) || *key >= keys {
                    let message = format!("the record of {key} is {known:?}");
                    return Err(alluvium::Error::new(alluvium::ErrorKind::Corrupt, message));
                }
                (found, sum, counted) = (found + 1, sum.wrapping_add(*key), counted + known[6]);
                progress.tell(found);
                Ok(())
            })
            .map_err(Error::from)
        })?;
        let all = (0..keys).fold(0u64, u64::wrapping_add);
        if (found, sum, counted) != (keys, all, updates) {
            return Err(Error::Wrong(format!(
                "{found} records of {keys}, their keys add up to {sum} instead of {all}, \
                 {counted} updates of {updates}"
            )));
        }
        report.set_checksum(sum.wrapping_add(counted));
        Ok(())
    }
}

fn updates(
    map: &mut Map<u64, Value>,
    (keys, size): (u64, usize),
    calls: u64,
    progress: &Told,
) -> Result<()> {
    let mut drawn = Keys::new(keys, Distribution::Uniform, SEEDS[2]);
    let (mut batch, mut done, mut missing) = (Vec::new(), 0, 0u64);
    while done < calls {
        batch.clear();
        batch.extend(drawn.by_ref().take(size.min((calls - done) as usize)));
        let init = |key: &u64| {
            missing += 1;
            value(*key, 0)
        };
        let updated = map.update_batch(&batch, |key| key, init, |_, value| value[6] += 1);
        updated.map_err(alluvium::Error::from)?;
        done += batch.len() as u64;
        progress.tell_after(done, batch.len() as u64);
    }
    if missing > 0 { Err(Error::Wrong(format!("{missing} keys were new"))) } else { Ok(()) }
}

fn print_part(what: &str, calls: u64, took: Duration, before: &TableStats, after: &TableStats) {
    let (runs, since) = (&after.runs, &before.runs);
    let each = |bytes: u64| bytes as f64 / runs.keys.max(1) as f64;
    println!(
        "{what}: {calls} in {:.1} s, {:.0}/s, {:.4} reads of records and {:.4} of filters each, {} \
         calls waited",
        took.as_secs_f64(),
        calls as f64 / took.as_secs_f64().max(1e-9),
        (runs.reads - since.reads) as f64 / calls.max(1) as f64,
        (runs.guide_reads - since.guide_reads) as f64 / calls.max(1) as f64,
        after.stalls - before.stalls,
    );
    println!(
        "  {} of {} keys in {} runs of {} levels, {:.2} bytes of memory each and {:.3} of \
         directories; {:.2} bytes written for each that moved",
        runs.keys,
        after.live_keys,
        runs.runs,
        runs.levels,
        each(runs.guide_bytes),
        each(runs.directory_bytes),
        runs.write_amplification().unwrap_or(0.0),
    );
}

/// Tells what moves, merges and waits took: of the calls' thread as a part of the time, and of the helper.
fn print_shares(took: Duration, before: &TableStats, after: &TableStats) {
    let (before, after) = (&before.runs.times, &after.runs.times);
    let share = |of: fn(&RunTimes) -> u64| {
        let nanos = of(after) - of(before);
        nanos as f64 / took.as_nanos().max(1) as f64
    };
    println!(
        "  of the time, calls: {:.3} copied records, {:.3} wrote, {:.3} removed entries, \
         {:.3} merged, {:.3} waited for the helper",
        share(|times| times.gathering),
        share(|times| times.writing),
        share(|times| times.leaving),
        share(|times| times.merging),
        share(|times| times.waiting),
    );
    println!(
        "  the helper: {:.3} merged; filters were built in {:.3} by both",
        share(|times| times.helper_merging),
        share(|times| times.building),
    );
}

/// A progress bar that is told of calls one by one; without a terminal a line for each tenth of many calls.
struct Told {
    bar: Progress,
    what: &'static str,
    calls: u64,
    begin: Instant,
    /// Tenths that were told.
    tenths: Cell<u64>,
}

impl Told {
    fn new(what: &'static str, calls: u64) -> Self {
        let (bar, begin) = (Progress::new(what, calls), Instant::now());
        Self { bar, what, calls, begin, tenths: Cell::new(0) }
    }

    fn tell(&self, done: u64) {
        if done.is_multiple_of(STRETCH) {
            self.set(done);
        }
    }

    /// Of several calls that were done together.
    fn tell_after(&self, done: u64, together: u64) {
        if done % STRETCH < together {
            self.set(done);
        }
    }

    fn set(&self, done: u64) {
        self.bar.set(done);
        let tenths = 10 * done / self.calls.max(1);
        if self.calls >= LINES_MIN && tenths > self.tenths.get() && !stderr().is_terminal() {
            self.tenths.set(tenths);
            let rate = done as f64 / self.begin.elapsed().as_secs_f64().max(1e-9);
            eprintln!("{}: {done} of {}, {rate:.0}/s", self.what, self.calls);
        }
    }
}

/// The files of a directory and their bytes.
fn files_of(dir: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let listed = std::fs::read_dir(dir).map_err(|source| Error::io(dir, "list", source))?;
    let mut files = Vec::new();
    for entry in listed {
        let path = entry.map_err(|source| Error::io(dir, "list", source))?.path();
        let bytes = path.metadata().map_or(0, |found| found.len());
        files.push((path, bytes));
    }
    Ok(files)
}

/// Random reads of one block a second, from the files in a directory, so many at once. Also whether they bypassed the
/// page cache.
fn device_rate(dir: &Path, at_once: u64, reads: u64) -> Result<(f64, bool)> {
    let (mut opened, mut is_direct) = (Vec::new(), true);
    for (path, bytes) in files_of(dir)? {
        let blocks = bytes / BLOCK_BYTES as u64;
        if blocks == 0 {
            continue;
        }
        let (file, direct) = open_directly(&path)?;
        is_direct &= direct;
        opened.push((file, path, blocks));
    }
    let blocks: u64 = opened.iter().map(|(_, _, blocks)| blocks).sum();
    if blocks == 0 {
        return Err(Error::Wrong("the store has written nothing".to_owned()));
    }
    let each = reads.div_ceil(at_once);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|nth| {
                let (opened, drawn) = (&opened, Keys::new(blocks, Distribution::Uniform, nth));
                scope.spawn(move || read_blocks(opened, drawn.take(each as usize)))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    Ok(((each * at_once) as f64 / begin.elapsed().as_secs_f64().max(1e-9), is_direct))
}

/// Opens a file so that reads bypass the page cache, if the file system allows that.
fn open_directly(path: &Path) -> Result<(File, bool)> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    match direct {
        Ok(file) => Ok((file, true)),
        Err(_) => {
            let file = File::open(path).map_err(|source| Error::io(path, "open", source))?;
            Ok((file, false))
        }
    }
}

fn read_blocks(files: &[(File, PathBuf, u64)], blocks: impl Iterator<Item = u64>) -> Result<()> {
    let mut buffer = IoBuffer::zeroed(BLOCK_BYTES);
    for mut block in blocks {
        let (file, path, _) = files
            .iter()
            .find(|(_, _, blocks)| {
                let is_here = block < *blocks;
                block -= if is_here { 0 } else { *blocks };
                is_here
            })
            .expect("a block of one of the files");
        file.read_exact_at(buffer.as_mut_slice(), block * BLOCK_BYTES as u64)
            .map_err(|source| Error::io(path, "read", source))?;
    }
    Ok(())
}
