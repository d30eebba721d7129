//! Options of `nexmark`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use alluvium::AnyLayout;
use alluvium::types::hash_bytes;
use clap::Args;

use super::window::span;
use super::{ClusterArgs, Layout, ReportArgs, StateArgs, StreamArgs, layout_named};
use crate::queries::SideTable;
use crate::run::ClockKind;
use crate::{Error, Result};

/// `nexmark`: a query over a generated or given stream.
#[derive(Args, Clone, Debug)]
pub struct NexmarkArgs {
    /// Which query, such as q4
    #[arg(long, value_name = "Q")]
    pub query: String,
    /// Where state lives
    #[command(flatten)]
    pub state: StateArgs,
    /// Events to feed; with --input all there are unless given
    #[arg(long, value_name = "N", required_unless_present = "input")]
    pub events: Option<u64>,
    /// The generated stream; without effect with --input
    #[command(flatten)]
    pub stream: StreamArgs,
    /// Feed R events per second and measure latency from when each is due; as fast as possible
    /// unless given
    #[arg(long, value_name = "R")]
    pub rate: Option<u64>,
    /// Which clock tells when events arrive, for a query in processing time: position unless given
    #[arg(long, value_name = "C")]
    pub clock: Option<ClockKind>,
    /// Timely workers of each process
    #[arg(long, value_name = "W", default_value_t = 1,
          value_parser = workers)]
    pub workers: usize,
    /// The processes
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Read person.csv, auction.csv and bid.csv from this directory
    #[arg(long, value_name = "DIR")]
    pub input: Option<PathBuf>,
    /// Read the side input of q13 from this file: CSV with the columns key and value, both integers
    /// (keys 0 to 9999, each with itself as its value, unless given)
    #[arg(long, value_name = "FILE")]
    pub side_input: Option<PathBuf>,
    /// Lay one state out otherwise, such as bids/windows=heap; may be given several times
    #[arg(long, value_name = "STATE=L", value_parser = placement)]
    pub place: Vec<Placement>,
    /// Keep the states of q3, and of q4 to q8 of the testbed, on an engine of bytes such as hashbrown instead:
    /// one for each state, with --memory divided
    #[arg(long, value_name = "E", conflicts_with_all = ["place", "restore"])]
    pub engine: Option<String>,
    /// With --engine: one engine for all states of a worker
    #[arg(long, requires = "engine")]
    pub monolithic: bool,
    /// Write the partitions of q10 to this directory, which is empty or not there (partitions in the
    /// directory of the state unless given)
    #[arg(long, value_name = "DIR")]
    pub partitions: Option<PathBuf>,
    /// Make a checkpoint of all state in DIR once N events were fed
    #[arg(long, value_name = "N")]
    pub checkpoint_at: Option<u64>,
    /// Make a checkpoint of all state in DIR each time so long after the one before, such as 10s; a
    /// later run in DIR goes on from the last
    #[arg(long, value_name = "SPAN", value_parser = duration)]
    pub checkpoint_every: Option<Duration>,
    /// Make a checkpoint of all state in DIR each time N events further
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every_events: Option<u64>,
    /// Go on from the last checkpoint in this directory, and in it, with the options of the run that
    /// made it; the numbers of workers and processes may be others
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub restore: Option<PathBuf>,
    /// Write the rows of the result at the end to this file as CSV
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Write every change of the result to this file as CSV
    #[arg(long, value_name = "FILE")]
    pub changes: Option<PathBuf>,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

/// A state that has a layout of its own.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The state's name.
    pub state: String,
    /// Its layout.
    pub layout: Layout,
}

impl NexmarkArgs {
    /// The states that have a layout of their own.
    pub fn placements(&self) -> BTreeMap<String, AnyLayout> {
        let of = |Placement { state, layout }: &Placement| (state.clone(), layout.layout.clone());
        self.place.iter().map(of).collect()
    }

    /// The side input of the queries that have one.
    pub fn side_table(&self) -> SideTable {
        self.side_input.clone().map_or(SideTable::Generated, SideTable::File)
    }

    /// Where state lives, if that is given.
    pub fn directory(&self) -> Option<&Path> {
        self.restore.as_deref().or(self.state.dir.as_deref())
    }

    /// Whether checkpoints are asked for.
    pub fn has_checkpoints(&self) -> bool {
        let every = self.checkpoint_every.is_some() || self.checkpoint_every_events.is_some();
        every || self.checkpoint_at.is_some()
    }

    /// Whether the changes of the result are kept for a later run, or taken over from one before.
    pub fn keeps_changes(&self, is_restored: bool) -> bool {
        let wanted = self.results.is_some() || self.changes.is_some();
        wanted && (self.has_checkpoints() || is_restored)
    }

    /// A digest of the options that all processes of a run need to have in common, not negative.
    /// Files may be in other places on other machines.
    pub fn common_digest(&self) -> i64 {
        let Self { query, events, stream, rate, clock, workers, checkpoint_at, .. } = self;
        let engine = (&self.engine, self.monolithic);
        let every = (&self.checkpoint_every, &self.checkpoint_every_events);
        let place = self.restore.is_some();
        let files = [&self.input, &self.side_input, &self.results, &self.changes, &self.partitions];
        let files = files.map(Option::is_some);
        let text = format!(
            "{query} {events:?} {stream:?} {rate:?} {clock:?} {workers} {checkpoint_at:?} {every:?} \
             {place} {files:?} {engine:?}"
        );
        (hash_bytes(text.as_bytes()) >> 1).cast_signed()
    }
}

/// `STATE=LAYOUT`.
fn placement(text: &str) -> Result<Placement> {
    let Some((state, layout)) = text.split_once('=').filter(|(state, _)| !state.is_empty()) else {
        return Err(Error::Usage(format!("{text:?} is not a state and its layout, STATE=L")));
    };
    Ok(Placement { state: state.to_owned(), layout: layout_named(layout)? })
}

fn duration(text: &str) -> Result<Duration> {
    Ok(Duration::from_nanos(span(text)?.unsigned_abs()))
}

fn workers(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(workers @ 1..=1_024) => Ok(workers),
        _ => Err(Error::Usage(format!("{text:?} is not a number of workers in 1..=1024"))),
    }
}
