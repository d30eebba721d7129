//! `checkpoint`: what checkpoints cost while counters are updated, how much they write, and how fast
//! they are restored.
//!
//! All counters are loaded, twice: checkpoints are taken of one store, in turns with stretches of updates
//! of the other, which never has any. Each checkpoint is sealed after a stretch of updates, and advanced
//! between batches of more of them until it is durable, which gives the rates between checkpoints and while
//! one is taken; they are told beside the rates without, just before and after. What single
//! checkpoints write is measured with nothing beside: a share of the counters is changed, each once,
//! and a checkpoint is taken. Then the same shares are all that changes, also while checkpoints are
//! taken. At the end the store is opened anew, and what it holds is compared with
//! counts kept beside. `--copies` adds other states of as many records, exported, restored by key
//! groups and imported.

mod by_churn;
mod rates;

use std::time::{Duration, Instant};

use alluvium::{Map, Store};
use quanta::Clock;

use super::clock_unsafe::thread_time;
use super::copies::copies;
use super::state::State;
use crate::args::CheckpointArgs;
use crate::report::{BesideCheckpoints, Latencies, Progress, Report, Spread, noise_floor};
use crate::workload::{Distribution, Keys};
use crate::{Error, Result};
use rates::{Begin, Rate, row};

/// Updates in a batch.
const BATCH: usize = 64;
/// Bytes of a key and its counter.
const RECORD_BYTES: f64 = 16.0;
/// Seed of the key stream.
const SEED: u64 = 42;
/// Counters compared one by one at the end.
const COMPARED: u64 = 100_000;

/// Measures, prints tables of medians and spread, and compares what is restored.
///
/// The report's latencies are those of the calls that seal; its rate is that of the updates while
/// checkpoints were taken, by the clock.
///
/// # Errors
/// Also if what is restored is not what was there at the last checkpoint.
pub fn checkpoint(args: &CheckpointArgs) -> Result<Report> {
    let mut run = Run::load(args, State::open(&args.state)?)?;
    let mut without = Run::load(args, State::open_beside(&args.state)?)?;
    let mut report = Report::new("checkpoint", &args.state.layout.name);
    let taken = run.take_checkpoints(&mut without, &mut report)?;
    let beside = rates::beside(&taken.without, &taken.between, &taken.during);
    taken.print(&beside);
    report.beside_checkpoints = Some(beside);
    run.written(&args.churn)?;
    run.by_churn(&mut without, &args.churn)?;
    compare(&mut without.map, &without.model)?;
    run.state.describe(&mut report)?;
    // Restoring has the machine for itself.
    drop(without);
    report.noise_floor_ns = Some(noise_floor(Duration::from_millis(50)));
    report.set_checksum(run.restore()?);
    if args.copies {
        copies(args)?;
    }
    Ok(report)
}

/// A store whose counters are updated.
struct Run<'a> {
    args: &'a CheckpointArgs,
    // Dropped before the store, whose directory goes then.
    map: Map<u64, u64>,
    state: State,
    /// What each counter is.
    model: Vec<u32>,
    keys: Keys,
    batch: Vec<u64>,
}

/// What was measured of the checkpoints, one entry each.
#[derive(Default)]
struct Taken {
    /// Rates of updates of the other store, and one more at the end.
    without: Vec<Rate>,
    /// Rates of updates before it was sealed, and while it was taken.
    between: Vec<Rate>,
    during: Vec<Rate>,
    /// Seconds: the call that seals, the longest share, until durable, and the longest call that
    /// confirms.
    seal: Vec<f64>,
    share: Vec<f64>,
    durable: Vec<f64>,
    confirm: Vec<f64>,
}

impl<'a> Run<'a> {
    fn load(args: &'a CheckpointArgs, state: State) -> Result<Self> {
        let map = state.store.map::<u64, u64>("counts").open()?;
        let keys = Keys::new(args.records, Distribution::Uniform, SEED);
        let model = vec![0; args.records as usize];
        let mut run = Self { args, map, state, model, keys, batch: Vec::with_capacity(BATCH) };
        let progress = Progress::new("load", args.records);
        for start in (0..args.records).step_by(BATCH) {
            let end = args.records.min(start + BATCH as u64);
            run.update(start..end)?;
            progress.set(end);
        }
        Ok(run)
    }

    fn update(&mut self, ids: impl Iterator<Item = u64>) -> Result<()> {
        self.batch.clear();
        self.batch.extend(ids);
        for &id in &self.batch {
            self.model[id as usize] += 1;
        }
        let updated = self.map.update_batch(&self.batch, |id| id, |_| 0, |_, count| *count += 1);
        updated.map_err(|e| Error::Store(e.into()))
    }

    /// One batch of random counters.
    fn update_some(&mut self) -> Result<()> {
        let ids: [u64; BATCH] = std::array::from_fn(|_| self.keys.next().expect("without end"));
        self.update(ids.into_iter())
    }

    /// The rate of updates over the stretch between two checkpoints.
    fn stretch(&mut self) -> Result<Rate> {
        let (begin, batches) = (Begin::now(), self.args.ops.div_ceil(BATCH as u64));
        (0..batches).try_for_each(|_| self.update_some())?;
        Ok(begin.rate(batches * BATCH as u64).0)
    }

    fn take_checkpoints(&mut self, without: &mut Self, report: &mut Report) -> Result<Taken> {
        let (mut taken, mut latencies, clock) = (Taken::default(), Latencies::new(), Clock::new());
        let (mut all, mut seconds) = (0, 0.0);
        // The first one writes everything: it is measured by its bytes below, not here.
        self.state.store.checkpoint(0)?;
        let progress = Progress::new("checkpoints", self.args.checkpoints);
        for number in 1..=self.args.checkpoints {
            taken.without.push(without.stretch()?);
            taken.between.push(self.stretch()?);
            let begin = Instant::now();
            let mut seal = self.state.store.seal(number)?;
            let paused = begin.elapsed();
            latencies.record(u64::try_from(paused.as_nanos()).unwrap_or(u64::MAX));
            taken.seal.push(paused.as_secs_f64());
            let (begin, mut ops, mut longest) = (Begin::now(), 0, 0);
            loop {
                self.update_some()?;
                ops += BATCH as u64;
                // The system's clock would take as long as two updates.
                let share = clock.raw();
                let durable = seal.advance()?;
                longest = longest.max(clock.raw() - share);
                if durable {
                    break;
                }
            }
            let (rate, took) = begin.rate(ops);
            let (took, longest) = (took.as_secs_f64(), clock.delta(0, longest));
            taken.during.push(rate);
            taken.durable.push(took);
            taken.share.push(longest.as_secs_f64());
            let mut longest = Duration::ZERO;
            loop {
                let call = Instant::now();
                let confirmed = seal.confirm_step()?;
                longest = longest.max(call.elapsed());
                if confirmed.is_some() {
                    break;
                }
                self.update_some()?;
            }
            taken.confirm.push(longest.as_secs_f64());
            (all, seconds) = (all + ops, seconds + took);
            progress.set(number);
        }
        taken.without.push(without.stretch()?);
        report.set_rate(all, seconds);
        report.latency_ns = Some(latencies.percentiles());
        report.latencies = Some(latencies);
        Ok(taken)
    }

    /// What a checkpoint writes if a share of the counters, in percent, was changed since the last.
    fn written(&mut self, churn: &[f64]) -> Result<()> {
        println!(
            "| changed, % | changed | bytes written | per changed record | of 1.5 x 16 + 32 |"
        );
        println!("|--|--|--|--|--|");
        for &percent in churn {
            let records = self.args.records;
            let changed = share(records, percent);
            self.state.store.checkpoint(0)?;
            let before = self.state.store.stats()?.io.bytes_written;
            self.change_each(changed)?;
            self.state.store.checkpoint(0)?;
            let bytes = self.state.store.stats()?.io.bytes_written - before;
            let each = bytes as f64 / changed as f64;
            let of = each / (1.5 * RECORD_BYTES + 32.0);
            println!("| {percent} | {changed} | {bytes} | {each:.1} | {of:.2} |");
        }
        Ok(())
    }

    /// Changes so many counters, all over them, each once.
    fn change_each(&mut self, changed: u64) -> Result<()> {
        let records = self.args.records;
        for start in (0..changed).step_by(BATCH) {
            let end = changed.min(start + BATCH as u64);
            self.update((start..end).map(|n| spread(n, changed, records)))?;
        }
        Ok(())
    }

    /// Opens the store anew and compares; gives the digest of all counts.
    fn restore(self) -> Result<u64> {
        let Self { args, state, map, model, .. } = self;
        let directory = state.directory().to_owned();
        let before: u64 = model.iter().map(|&count| u64::from(count)).sum();
        drop(map);
        let temporary = state.close();
        let open = || {
            let layout = args.state.layout.layout.clone();
            Store::builder(&directory).memory(args.state.memory.0).layout(layout).open()
        };
        let (begin, processor) = (Instant::now(), thread_time());
        let store = open()?;
        let mut map = store.map::<u64, u64>("counts").open()?;
        let (seconds, processor) = (begin.elapsed().as_secs_f64(), thread_time() - processor);
        let read = store.stats()?.io.bytes_read;
        compare(&mut map, &model)?;
        let rate = args.records as f64 / seconds;
        println!(
            "restored {} records in {seconds:.3} s: {rate:.0} records/s, {:.0} MB/s read, {:.0} % \
             of it processor time of the opening thread",
            args.records,
            read as f64 / seconds / 1e6,
            processor.as_secs_f64() / seconds * 100.0
        );
        drop((map, store, temporary));
        Ok(before)
    }
}

impl Taken {
    fn print(&self, beside: &BesideCheckpoints) {
        println!("| what | median | least | most |");
        println!("|--|--|--|--|");
        rates::print(beside);
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        row("call that seals, us", 1e6, of(&self.seal));
        row("longest share of the rest, us", 1e6, of(&self.share));
        row("until durable, ms", 1e3, of(&self.durable));
        row("longest call that confirms, us", 1e6, of(&self.confirm));
    }
}

/// What counters there are: as many as there should be, and of those that are looked at each as it should be.
fn compare(map: &mut Map<u64, u64>, model: &[u32]) -> Result<()> {
    let (found, records) = (map.len()?, model.len() as u64);
    if found != records {
        return Err(Error::Wrong(format!("there are {found} counters of {records}")));
    }
    let step = (records / COMPARED).max(1);
    for id in (0..records).step_by(step as usize) {
        let found = map.get(&id)?.as_deref().copied();
        let expected = u64::from(model[id as usize]);
        if found != Some(expected) {
            let what = format!("counter {id} is {found:?}, it should be {expected}");
            return Err(Error::Wrong(what));
        }
    }
    Ok(())
}

/// How many of the records so many percent are, at least one.
fn share(records: u64, percent: f64) -> u64 {
    ((records as f64 * percent / 100.0) as u64).clamp(1, records)
}

/// The `n`th of `changed` counters that are spread over all `records`.
fn spread(n: u64, changed: u64, records: u64) -> u64 {
    (u128::from(n) * u128::from(records) / u128::from(changed)) as u64
}

/// Percents of a list such as `0.1,1,10`.
///
/// # Errors
/// Names the one that is not above 0 and at most 100.
pub fn percents(text: &str) -> Result<Vec<f64>> {
    let percent = |part: &str| match part.trim().parse() {
        Ok(percent @ 0.0..=100.0) if percent > 0.0 => Ok(percent),
        _ => {
            let what = format!("{part:?} is not a percentage above 0 and at most 100");
            Err(Error::Usage(what))
        }
    };
    text.split(',').map(percent).collect()
}
