//! `rmw`: read-modify-write of keys from a distribution, on a layout and on a peer.
//!
//! The keys are loaded, in the order of their ids; then come the operations, in rounds that the
//! store and the peer take in turns, each with the same keys. With `--warm-up`, operations that are
//! not counted come first. Keys are drawn ahead of what is timed, a stretch of them at a time. At
//! the end all records of both must be the same.
//!
//! A clock reading costs 8.5 ns, and an operation that is timed on its own overlaps no other. So
//! the rounds, whose median is the rate, time single operations only as a whole; afterwards there
//! are more operations, of which one in `--sample` is timed. A batch is timed in the rounds: each
//! of its operations takes as long as the batch. The load is timed insert by insert, from the end
//! of one to the end of the next; its rate includes the clock.

use std::time::Duration;

use alluvium_gadget::measure::fenced;
use quanta::Clock;

use super::clock_unsafe::thread_time;
use super::state::State;
use crate::args::{RmwArgs, StateArgs};
use crate::peers::{Engine, Hashbrown, Ours, Peer, Record, Said};
use crate::report::{
    Latencies, Percentiles, Progress, Report, noise_floor, peak_rss_bytes, spread,
};
use crate::workload::{Keys, RecordShape};
use crate::{Error, Result};

/// Keys drawn at a time.
const STRETCH: u64 = 1 << 16;
/// At most so many operations are timed singly.
const SAMPLES_MAX: u64 = 100_000;
/// Seed of the key stream.
const SEED: u64 = 42;

/// Does the operations, on the peer as well if there is one.
///
/// Prints a table of medians and spread. The checksum is that of all records at the end.
///
/// # Errors
/// Also if the records of the two are not the same.
pub fn rmw(args: &RmwArgs) -> Result<Report> {
    match args.record {
        RecordShape::Bytes(64) => run::<[u64; 7]>(args),
        RecordShape::Bytes(128) => run::<[u64; 15]>(args),
        RecordShape::Bytes(256) => run::<[u64; 31]>(args),
        RecordShape::Bytes(_) => run::<u64>(args),
        RecordShape::Strings => run::<Vec<String>>(args),
    }
}

fn run<V: Record>(args: &RmwArgs) -> Result<Report> {
    match args.vs {
        None => turns::<V, Hashbrown<V>>(args, None::<fn() -> Result<Hashbrown<V>>>),
        Some(Peer::Hashbrown) => turns::<V, _>(args, Some(|| Ok(Hashbrown::default()))),
        Some(Peer::RocksDb) => against_rocksdb::<V>(args),
        Some(Peer::Uncompacted) => turns::<V, _>(args, Some(|| Uncompacted::open(&args.state))),
    }
}

/// Our own store whose segments are never rewritten.
struct Uncompacted<V: Record> {
    engine: Ours<V>,
    _state: State,
}

impl<V: Record> Uncompacted<V> {
    fn open(args: &StateArgs) -> Result<Self> {
        let state = State::open_uncompacted(args)?;
        Ok(Self { engine: Ours(state.store.map("rmw").open()?), _state: state })
    }
}

impl<V: Record> Engine<V> for Uncompacted<V> {
    #[inline]
    fn load(&mut self, key: u64) -> Result<()> {
        self.engine.load(key)
    }

    #[inline(always)]
    fn update(&mut self, key: u64) -> Said {
        self.engine.update(key)
    }

    #[inline]
    fn update_batch(&mut self, keys: &[u64]) -> Result<()> {
        self.engine.update_batch(keys)
    }

    fn checksum(&mut self) -> Result<(u64, u64)> {
        self.engine.checksum()
    }
}

#[cfg(feature = "rocksdb")]
fn against_rocksdb<V: Record>(args: &RmwArgs) -> Result<Report> {
    let dir = super::state::dir_beside(&args.state)?;
    let mut opened = 0;
    turns::<V, _>(
        args,
        Some(|| {
            opened += 1;
            let path = dir.path().join(opened.to_string());
            crate::peers::RocksDb::open(&path, args.state.memory.0)
        }),
    )
}

#[cfg(not(feature = "rocksdb"))]
// The signature of the one that compares.
#[allow(clippy::extra_unused_type_parameters)]
fn against_rocksdb<V: Record>(_: &RmwArgs) -> Result<Report> {
    Err(Error::Usage("this program was built without the feature rocksdb".to_owned()))
}

/// The whole run. `peer` makes an empty one.
fn turns<V: Record, P: Engine<V>>(
    args: &RmwArgs,
    mut peer: Option<impl FnMut() -> Result<P>>,
) -> Result<Report> {
    let mut our_load = Load::default();
    let mut ours = None;
    for _ in 0..args.loads {
        // The last one's memory and directory first.
        drop(ours.take());
        let state = State::open(&args.state)?;
        let mut engine = Ours::<V>(state.store.map("rmw").open()?);
        our_load.run(args, &mut engine)?;
        ours = Some((engine, state));
    }
    let (mut engine, state) = ours.expect("loaded at least once");
    let mut our = Side { load: our_load, ..Side::new(&args.state.layout.name, args) };
    let mut their = None;
    if let Some(open) = &mut peer {
        let name = args.vs.map_or(String::new(), |peer| peer.to_string());
        let (mut side, mut opened) = (Side::new(&name, args), None);
        for _ in 0..args.loads {
            drop(opened.take());
            let mut engine = open()?;
            side.load.run(args, &mut engine)?;
            opened = Some(engine);
        }
        their = opened.map(|engine| (engine, side));
    }
    our.warm_up(args, &mut engine)?;
    if let Some((engine, side)) = &mut their {
        side.warm_up(args, engine)?;
    }
    let progress = Progress::new("rmw", args.rounds);
    for round in 0..args.rounds {
        let ops = args.ops / args.rounds + u64::from(round < args.ops % args.rounds);
        our.round(args, &mut engine, ops)?;
        if let Some((engine, side)) = &mut their {
            side.round(args, engine, ops)?;
        }
        progress.set(round + 1);
    }
    drop(progress);
    if args.batch == 1 {
        our.sample(args, &mut engine)?;
        if let Some((engine, side)) = &mut their {
            side.sample(args, engine)?;
        }
    }
    let mut report = Report::new("rmw", &args.state.layout.name);
    // Before the checksum, which reads everything.
    state.describe(&mut report)?;
    our.report(args, &mut report);
    let found = engine.checksum()?;
    report.set_checksum(found.0);
    let floor = noise_floor(Duration::from_millis(500));
    report.noise_floor_ns = Some(floor);
    print_table(args, &our, their.as_ref().map(|(_, side)| side), floor);
    if found.1 != args.keys {
        return Err(Error::Wrong(format!("{} keys are left of {}", found.1, args.keys)));
    }
    if let Some((mut engine, side)) = their {
        let expected = engine.checksum()?;
        if found != expected {
            let (name, (sum, count)) = (&side.name, expected);
            return Err(Error::Wrong(format!(
                "the records differ: checksum {:016x} of {} keys, {name} has {sum:016x} of {count}",
                found.0, found.1
            )));
        }
        report.set_versus(&side.name, side.rate().1, Some(side.latencies.percentiles()));
    }
    report.memory.peak_rss = peak_rss_bytes();
    Ok(report)
}

/// One of the two and what was measured of it.
struct Side {
    name: String,
    keys: Keys,
    load: Load,
    /// Operations per second of each round.
    rates: Vec<f64>,
    /// Processor time per operation in each round, in nanoseconds.
    cpu_ns: Vec<f64>,
    latencies: Latencies,
    clock: Clock,
    stretch: Vec<u64>,
}

impl Side {
    fn new(name: &str, args: &RmwArgs) -> Side {
        Side {
            name: name.to_owned(),
            keys: Keys::new(args.keys, args.dist, SEED),
            load: Load::default(),
            rates: Vec::new(),
            cpu_ns: Vec::new(),
            latencies: Latencies::new(),
            clock: Clock::new(),
            stretch: Vec::with_capacity(STRETCH as usize),
        }
    }

    /// The next stretch of keys, of `left` operations that are still to do.
    fn draw(&mut self, left: u64) {
        self.stretch.clear();
        self.stretch.extend(self.keys.by_ref().take(left.min(STRETCH) as usize));
    }

    /// Operations that are not counted. They are checked at the end as all others are.
    fn warm_up<V: Record>(&mut self, args: &RmwArgs, engine: &mut impl Engine<V>) -> Result<()> {
        if args.warm_up > 0 {
            self.round(args, engine, args.warm_up)?;
            self.rates.clear();
            self.cpu_ns.clear();
            self.latencies = Latencies::new();
        }
        Ok(())
    }

    fn round<V: Record>(
        &mut self,
        args: &RmwArgs,
        engine: &mut impl Engine<V>,
        ops: u64,
    ) -> Result<()> {
        let (mut left, mut wall, mut cpu) = (ops, Duration::ZERO, Duration::ZERO);
        while left > 0 {
            self.draw(left);
            let cpu_begin = thread_time();
            let begin = self.clock.raw();
            match (args.batch, args.dependent) {
                (1, false) => singly(engine, &self.stretch)?,
                (1, true) => dependently(engine, &self.stretch)?,
                (batch, _) => {
                    let mut before = begin;
                    for keys in self.stretch.chunks(batch as usize) {
                        engine.update_batch(keys)?;
                        let now = self.clock.raw();
                        let ns = self.clock.delta_as_nanos(before, now);
                        self.latencies.record_n(ns, keys.len() as u64);
                        before = now;
                    }
                }
            }
            wall += self.clock.delta(begin, self.clock.raw());
            cpu += thread_time() - cpu_begin;
            left -= self.stretch.len() as u64;
        }
        self.rates.push(ops as f64 / wall.as_secs_f64().max(1e-9));
        self.cpu_ns.push(cpu.as_secs_f64() * 1e9 / ops.max(1) as f64);
        Ok(())
    }

    /// More operations, some of which are timed.
    fn sample<V: Record>(&mut self, args: &RmwArgs, engine: &mut impl Engine<V>) -> Result<()> {
        let mut left = args.ops.min(args.sample.saturating_mul(SAMPLES_MAX));
        while left > 0 {
            self.draw(left);
            for keys in self.stretch.chunks(args.sample as usize) {
                let before = fenced(&self.clock);
                engine.update(keys[0]).map_err(|error| *error)?;
                self.latencies.record(self.clock.delta_as_nanos(before, fenced(&self.clock)));
                singly(engine, &keys[1..])?;
            }
            left -= self.stretch.len() as u64;
        }
        Ok(())
    }

    /// The least, the median and the most operations per second.
    fn rate(&self) -> (f64, f64, f64) {
        spread(self.rates.iter().copied())
    }

    fn report(&self, args: &RmwArgs, report: &mut Report) {
        report.set_rate(args.ops, args.ops as f64 / self.rate().1);
        report.latency_ns = Some(self.latencies.percentiles());
    }
}

#[inline(never)]
fn singly<V: Record>(engine: &mut impl Engine<V>, keys: &[u64]) -> Result<()> {
    keys.iter().try_for_each(|&key| engine.update(key).map(drop)).map_err(|error| *error)
}

/// The same keys, but which one is next is known only when the value before it is: the top bit
/// of what [`Record::touch`] says is never set, which neither compiler nor processor know.
#[inline(never)]
fn dependently<V: Record>(engine: &mut impl Engine<V>, keys: &[u64]) -> Result<()> {
    let mut before = 0u64;
    for &key in keys {
        before = engine.update(key.wrapping_add(before >> 63)).map_err(|error| *error)?;
    }
    Ok(())
}

/// The loading of all keys, once or several times.
#[derive(Default)]
struct Load {
    rates: Vec<f64>,
    /// Of each insert the shortest time of all loads so far, if there is more than one load.
    shortest_ns: Vec<u32>,
    latencies: Latencies,
}

impl Load {
    fn run<V: Record>(&mut self, args: &RmwArgs, engine: &mut impl Engine<V>) -> Result<()> {
        let clock = Clock::new();
        let progress = Progress::new("load", args.keys);
        self.latencies = Latencies::new();
        let mut times = Vec::with_capacity(STRETCH as usize);
        let (mut total, mut first) = (Duration::ZERO, 0);
        while first < args.keys {
            let end = args.keys.min(first + STRETCH);
            times.clear();
            let begin = clock.raw();
            let mut before = begin;
            for key in first..end {
                engine.load(key)?;
                let now = clock.raw();
                times.push(now - before);
                before = now;
            }
            total += clock.delta(begin, before);
            for (key, &ticks) in (first..end).zip(&times) {
                let ns = clock.delta_as_nanos(0, ticks);
                let ns = self.shortest(args, key, ns);
                self.latencies.record(ns);
            }
            first = end;
            progress.set(first);
        }
        self.rates.push(args.keys as f64 / total.as_secs_f64().max(1e-9));
        Ok(())
    }

    fn shortest(&mut self, args: &RmwArgs, key: u64, ns: u64) -> u64 {
        if args.loads == 1 {
            return ns;
        }
        if self.shortest_ns.len() as u64 <= key {
            self.shortest_ns.push(u32::MAX);
        }
        let shortest = &mut self.shortest_ns[key as usize];
        *shortest = (*shortest).min(u32::try_from(ns).unwrap_or(u32::MAX));
        u64::from(*shortest)
    }
}

fn print_table(args: &RmwArgs, our: &Side, their: Option<&Side>, floor: Percentiles) {
    let how = match (args.batch, args.dependent) {
        (1, false) => "single".to_owned(),
        (1, true) => "dependent".to_owned(),
        (batch, _) => format!("batch {batch}"),
    };
    let (keys, record, dist) = (args.keys, args.record, args.dist);
    println!("{keys} keys, records of {record}, {dist}, {how}, {} rounds", args.rounds);
    println!(
        "{:<12} {:>12} {:>12} {:>12} {:>8} {:>8} {:>8} {:>9} {:>10} {:>11}",
        "", "ops/s median", "least", "most", "cpu ns", "p50 ns", "p99", "p99.9", "p99.99", "max"
    );
    let line = |name: &str, rates: &[f64], cpu_ns: &[f64], latencies: &Latencies| {
        let (least, median, most) = spread(rates.iter().copied());
        let cpu_ns = if cpu_ns.is_empty() { 0.0 } else { spread(cpu_ns.iter().copied()).1 };
        let columns = columns(latencies.percentiles());
        println!("{name:<12} {median:>12.0} {least:>12.0} {most:>12.0} {cpu_ns:>8.1} {columns}");
    };
    for side in std::iter::once(our).chain(their) {
        line(&side.name, &side.rates, &side.cpu_ns, &side.latencies);
        line("  its load", &side.load.rates, &[], &side.load.latencies);
    }
    println!("{:<12} {:>47} {}", "noise floor", "", columns(floor));
    if let Some(their) = their {
        let (least, median, most) =
            spread(our.rates.iter().zip(&their.rates).map(|(our, their)| our / their));
        let cpu = spread(their.cpu_ns.iter().zip(&our.cpu_ns).map(|(their, our)| their / our));
        let max = |side: &Side| side.load.latencies.percentiles().max.max(1) as f64;
        println!(
            "ratio round by round: {median:.3} ({least:.3} to {most:.3}); by processor time {:.3} \
             ({:.3} to {:.3}); longest insert 1/{:.1}",
            cpu.1,
            cpu.0,
            cpu.2,
            max(their) / max(our),
        );
    }
}

fn columns(p: Percentiles) -> String {
    format!("{:>8} {:>8} {:>9} {:>10} {:>11}", p.p50, p.p99, p.p99_9, p.p99_99, p.max)
}
