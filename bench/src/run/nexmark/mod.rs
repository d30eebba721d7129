//! `nexmark`: a query over generated or given events, on Timely workers.
//!
//! Each worker feeds its share of the events, those with every so manieth ordinal, and owns its
//! share of the keys. Closed loop: events are sent as fast as they are taken, a bounded number of
//! them ahead of the result, as Timely's own queues are unbounded; the latency of an event is that
//! of the batch it was sent with. Open loop (`--rate`): an event is due when its ordinal says, and
//! its latency counts from then, however late it was sent.
//!
//! The figures end with the result of the last event; state is measured there, before the input is
//! closed, which makes all of it that is bound to time go.
//!
//! The checksum is the sum of the digests of all changes, which is that of the result.
//!
//! Checkpoints (`--checkpoint-every` and the like) are of all workers, asked for by the first. A run
//! in the same directory goes on from the last one, checksum and results included, with any number of
//! workers and processes: what a worker has fed is in its part of the checkpoint, and so are its share
//! of the checksum and the length of the [`ledger`] of changes.
//!
//! A query with partitions (q10) writes each to files of its own while it runs; see [`partitions`].
//! Checkpoints do not include files, so such a query has none.
//!
//! With `--processes` this is one process of several, each started with the same options but for its
//! number and its directory. The figures are those of its own workers, the checksum is that of all;
//! the first process writes the result.

mod clock;
mod feed;
mod ledger;
mod output;
mod partitions;
mod position;
mod query;
mod schedule;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alluvium::StoreConfig;
use alluvium::stats::StoreStats;
use alluvium_gadget::by_bytes::{CodecTime, Plan};
use alluvium_gadget::engine::{Kind, built_in};
use alluvium_gadget::measure::System;
use alluvium_gadget::operator::{Name, Options};
use alluvium_gadget::run::no_such_engine;
use alluvium_timely::execute;

use super::state::{dir_beside, temporary_dir};
use crate::args::NexmarkArgs;
use crate::input::CsvStream;
use crate::nexmark::Stride;
use crate::queries::{ForQuery, NAMES, Query, parts, plan, with_query};
use crate::report::{
    Io, Latencies, Memory, Pauses, Report, StateFigures, noise_floor, peak_rss_bytes,
};
use crate::{Error, Result};
use query::ErasedQuery;
use worker::Part;

pub use clock::ClockKind;

pub(super) use worker::{AHEAD_BYTES, BATCH};

/// Runs the query; `--engine` names an engine without a native build.
///
/// # Errors
/// The first error of any worker: input, state or output.
pub fn nexmark(args: &NexmarkArgs) -> Result<Report> {
    nexmark_on(args, &built_in())
}

/// Runs the query; `--engine` names one of these.
///
/// # Errors
/// As [`nexmark`].
pub fn nexmark_on(args: &NexmarkArgs, kinds: &[Kind]) -> Result<Report> {
    let unknown = || {
        let message = format!("there is no query {:?}, but {}", args.query, NAMES.join(", "));
        Err(Error::Usage(message))
    };
    let Some(engine) = &args.engine else {
        return with_query(&args.query, Run(args)).unwrap_or_else(unknown);
    };
    let name = format!("{}-on-bytes", args.query);
    if !NAMES.contains(&&name[..]) {
        let message = format!("{} has no form on an engine of bytes", args.query);
        return Err(Error::Usage(message));
    }
    let kind = kinds.iter().find(|kind| kind.name == engine);
    let kind = kind.ok_or_else(|| no_such_engine(engine, kinds))?.clone();
    kind.check(Name::Aggregation, &Options::default(), args.state.memory.0)?;
    let directory = dir_beside(&args.state)?;
    let codec = Arc::new(CodecTime::default());
    plan(Plan {
        kind,
        directory: directory.path().to_owned(),
        memory_bytes: args.state.memory.0 / args.workers.max(1) as u64,
        is_monolithic: args.monolithic,
        parts: parts(&args.query),
        keys: usize::try_from(args.events.unwrap_or(1 << 20) / 8).unwrap_or(1 << 20),
        codec: codec.clone(),
    })?;
    let before = System::now().processor;
    let mut report = with_query(&name, Run(args)).unwrap_or_else(unknown)?;
    report.processor_s = Some((System::now().processor.saturating_sub(before)).as_secs_f64());
    report.layout.clone_from(engine);
    report.codec_calls = codec.calls();
    report.codec_s = Some(codec.ns() as f64 / 1e9);
    Ok(report)
}

struct Run<'a>(&'a NexmarkArgs);

impl ForQuery for Run<'_> {
    type Output = Result<Report>;

    fn run<Q: Query>(self) -> Result<Report> {
        run(ErasedQuery::of::<Q>(), self.0)
    }
}

fn run(query: &'static ErasedQuery, args: &NexmarkArgs) -> Result<Report> {
    if args.clock.is_some() && !query.is_in_processing_time {
        let message = format!("{} is in event time and has no --clock", query.name);
        return Err(Error::Usage(message));
    }
    // What is wrong with the input is better said before workers are started.
    if let Some(dir) = &args.input {
        CsvStream::open(dir, Stride::ALL)?;
    } else {
        args.stream.config(args.rate).schedule()?;
    }
    if let Some(why) = query.no_checkpoints
        && (args.has_checkpoints() || args.restore.is_some())
    {
        return Err(Error::Usage(format!("{} {why} and has no checkpoints", query.name)));
    }
    if args.has_checkpoints() && args.directory().is_none() {
        let message = "checkpoints need a directory: give --dir, or --restore to go on in it";
        return Err(Error::Usage(message.to_owned()));
    }
    // The record is in the first process's; another may have had none so far.
    let is_first = args.cluster.process == 0;
    if let Some(dir) = args.restore.as_ref().filter(|dir| is_first && !dir.is_dir()) {
        return Err(Error::Usage(format!("there is no directory {} to go on in", dir.display())));
    }
    let temporary = match args.directory() {
        Some(_) => None,
        None => Some(temporary_dir()?),
    };
    let directory = temporary.as_ref().map(|dir| dir.path().to_owned());
    let directory = args.directory().map(PathBuf::from).or(directory);
    let partitions = partition_directory(query, args, directory.as_deref())?;
    let store = StoreConfig {
        directory,
        memory: args.state.memory,
        max_value: args.state.max_value,
        layout: args.state.layout.layout.clone(),
        states: args.placements(),
        ..StoreConfig::default()
    };
    let node = (query.tables)(store.into(), &args.side_table())?;
    let node = node.connect_within(args.cluster.connect_within());
    let job = NexmarkArgs { partitions, ..args.clone() };
    let parts = execute(args.cluster.config(args.workers)?, node, move |timely, state| {
        Ok(worker::work(query, timely, state, &job)?)
    })?;
    Ok(report(query.name, args, &parts))
}

/// Where the partitions of a query go, if it has any.
fn partition_directory(
    query: &ErasedQuery,
    args: &NexmarkArgs,
    directory: Option<&Path>,
) -> Result<Option<PathBuf>> {
    if query.partition_columns == 0 {
        return match &args.partitions {
            None => Ok(None),
            Some(_) => Err(Error::Usage(format!("{} has no --partitions", query.name))),
        };
    }
    let beside = || directory.map(|directory| directory.join("partitions"));
    let root = args.partitions.clone().or_else(beside);
    root.iter().try_for_each(|root| partitions::check_empty(root))?;
    Ok(root)
}

/// Adds what a worker says of its states.
fn add_states(all: &mut Vec<StateFigures>, stats: &StoreStats) {
    for state in &stats.states {
        let (keys, bytes) = (state.table.live_keys, state.table.live_bytes);
        match all.iter_mut().find(|known| known.name == state.name) {
            Some(known) => {
                known.live_keys += keys;
                known.live_bytes += bytes;
            }
            None => all.push(StateFigures {
                name: state.name.clone(),
                layout: state.layout.clone(),
                live_keys: keys,
                live_bytes: bytes,
            }),
        }
    }
}

fn report(query: &str, args: &NexmarkArgs, parts: &[Part]) -> Report {
    let mut report = Report::new(format!("nexmark-{query}"), &args.state.layout.name);
    report.workers = args.workers;
    let (mut ops, mut seconds, mut checksum) = (0, 0f64, 0);
    let mut pauses: Option<Pauses> = None;
    let mut latencies = Latencies::new();
    let Report { memory, io, codec_calls, states, .. } = &mut report;
    for part in parts {
        ops += part.ops;
        seconds = seconds.max(part.seconds);
        checksum = part.checksum;
        if args.has_checkpoints() {
            pauses.get_or_insert_default().merge(part.pauses);
        }
        latencies.merge(&part.latencies);
        add_states(states, &part.live);
        let total = part.live.total();
        *memory = Memory {
            budget: memory.budget + part.end.memory.limit,
            peak_tracked: memory.peak_tracked + part.end.memory.peak,
            peak_rss: 0,
            live_bytes: memory.live_bytes + total.live_bytes,
            live_keys: memory.live_keys + total.live_keys,
        };
        *io = Io {
            bytes_written: io.bytes_written + part.live.io.bytes_written + part.partition_bytes,
            bytes_read: io.bytes_read + part.live.io.bytes_read,
            reads: io.reads + part.live.io.reads,
            flushes: io.flushes + total.pages_flushed,
            bytes_prefetched: io.bytes_prefetched + total.prefetched_bytes,
            bytes_prefetched_in_vain: io.bytes_prefetched_in_vain + total.prefetch_wasted_bytes,
            ..Io::default()
        };
        *codec_calls += total.codec_calls;
    }
    memory.peak_rss = peak_rss_bytes();
    report.set_rate(ops, seconds);
    report.set_checksum(checksum);
    report.checkpoints = pauses;
    report.latency_ns = Some(latencies.percentiles());
    if args.rate.is_some() {
        report.ccdf_ns = latencies.curve();
    }
    report.latencies = Some(latencies);
    report.noise_floor_ns = Some(noise_floor(Duration::from_millis(50)));
    report
}
