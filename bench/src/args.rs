//! Options of `alluvium-bench`, in groups that its subcommands share.

mod nexmark;
mod window;

use std::path::PathBuf;
use std::time::Duration;

use alluvium::AnyLayout;
use alluvium::config::ByteSize;
use alluvium_timely::DEFAULT_CONNECT_WITHIN;
use clap::Args;
use timely::CommunicationConfig;

use crate::nexmark::Config;
use crate::peers::Peer;
use crate::run::percents;
use crate::workload::{Distribution, RecordShape};
use crate::{Error, Result};

pub use nexmark::NexmarkArgs;
pub use window::WindowArgs;

/// Which stream of Nexmark events.
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
    /// Auctions open at a time; state grows with it
    #[arg(long, value_name = "N", default_value_t = Config::IN_FLIGHT)]
    pub in_flight: u64,
    /// Chooses one of the possible streams
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl StreamArgs {
    /// The generator's configuration at `rate` events per second of event time.
    pub fn config(&self, rate: Option<u64>) -> Config {
        Config {
            seed: self.seed,
            in_flight: self.in_flight,
            rate: rate.unwrap_or(Config::RATE),
            ..Config::default()
        }
    }
}

/// A layout and its name on the command line and in reports.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The name.
    pub name: String,
    /// The layout, with its default options.
    pub layout: AnyLayout,
}

fn layout_named(name: &str) -> Result<Layout> {
    let layout = AnyLayout::named(name).ok_or_else(|| {
        Error::Usage(format!("there is no layout {name:?}, but {}", AnyLayout::NAMES.join(", ")))
    })?;
    Ok(Layout { name: name.to_owned(), layout })
}

/// Where state lives and how much memory it may take.
#[derive(Args, Clone, Debug)]
pub struct StateArgs {
    /// How state is laid out
    #[arg(long, value_name = "L", default_value = AnyLayout::NAMES[0], value_parser = layout_named)]
    pub layout: Layout,
    /// Keep keys that stay cold in sorted runs, with no index entry (hybrid-log only)
    #[arg(long)]
    pub cold_runs: bool,
    /// Memory that state may take, such as 256MiB
    #[arg(long, value_name = "SIZE")]
    pub memory: ByteSize,
    /// The most that a value may own, such as 1MiB (a sixteenth of the memory, 1MiB at most, unless
    /// given)
    #[arg(long, value_name = "SIZE")]
    pub max_value: Option<ByteSize>,
    /// Directory for state that does not fit (a temporary one unless given)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// The processes of a run.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Processes of the run, each started by hand, with the same options but for --process and --dir
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub processes: u16,
    /// Which of them this one is, from 0
    #[arg(long, short = 'p', value_name = "I", default_value_t = 0)]
    pub process: u16,
    /// Addresses of the processes as host:port, one per line (localhost:2101 and on unless given)
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// How many seconds to wait for the other processes
    #[arg(long, value_name = "S", default_value_t = DEFAULT_CONNECT_WITHIN.as_secs())]
    pub connect_within: u64,
}

impl ClusterArgs {
    /// Timely's configuration with this number of workers in each process.
    ///
    /// # Errors
    /// The file of addresses cannot be read or has too few; there is no such process.
    pub fn config(&self, threads: usize) -> Result<timely::Config> {
        let (processes, process) = (usize::from(self.processes), usize::from(self.process));
        if process >= processes {
            let message =
                format!("--process is {process}, of {processes} processes counted from 0");
            return Err(Error::Usage(message));
        }
        let mut config = timely::Config::process(threads);
        if processes > 1 {
            let (addresses, report) = (self.addresses(processes)?, false);
            config.communication = CommunicationConfig::Cluster {
                threads,
                process,
                addresses,
                report,
                zerocopy: false,
            };
        }
        Ok(config)
    }

    /// How long to wait for the other processes.
    pub fn connect_within(&self) -> Duration {
        Duration::from_secs(self.connect_within)
    }

    fn addresses(&self, processes: usize) -> Result<Vec<String>> {
        let Some(path) = &self.hostfile else {
            return Ok((0..processes).map(|n| format!("localhost:{}", 2_101 + n)).collect());
        };
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::io(path, "read", source))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let addresses: Vec<_> = lines.take(processes).map(str::to_owned).collect();
        if addresses.len() < processes {
            let (found, path) = (addresses.len(), path.display());
            let message = format!("{path} has {found} addresses for {processes} processes");
            return Err(Error::Usage(message));
        }
        Ok(addresses)
    }
}

/// Where the figures go.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `gen`: the speed and the checksum of the event generator alone.
#[derive(Args, Clone, Debug)]
pub struct GenArgs {
    /// Events to generate
    #[arg(long, value_name = "N")]
    pub events: u64,
    /// The stream
    #[command(flatten)]
    pub stream: StreamArgs,
    /// Events per second of event time
    #[arg(long, value_name = "R", default_value_t = Config::RATE)]
    pub rate: u64,
    /// Shuffle events within groups of this size
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub group: u64,
    /// Also render every string
    #[arg(long)]
    pub strings: bool,
    /// Write person.csv, auction.csv and bid.csv to this directory
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `rmw`: read-modify-write of keys from a distribution.
#[derive(Args, Clone, Debug)]
pub struct RmwArgs {
    /// Keys there are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// uniform, or zipf:THETA such as zipf:0.99
    #[arg(long, value_name = "D", default_value_t = Distribution::Uniform)]
    pub dist: Distribution,
    /// Bytes of a record (16, 64, 128, 256), or strings
    #[arg(long, value_name = "R", default_value_t = RecordShape::Bytes(16))]
    pub record: RecordShape,
    /// Operations
    #[arg(long, value_name = "M")]
    pub ops: u64,
    /// Operations in a batch; 1 does them singly
    #[arg(long, value_name = "G", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,
    /// Make the next key depend on the value before it, so that no two operations overlap
    #[arg(long, conflicts_with = "batch")]
    pub dependent: bool,
    /// Do the same work on this as well: hashbrown, rocksdb, or uncompacted: the same layout,
    /// whose segments are never rewritten
    #[arg(long, value_name = "PEER")]
    pub vs: Option<Peer>,
    /// Do the operations in that many rounds, in turns with the peer
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Do so many operations before those that are counted, so that what is used often is in memory
    #[arg(long, value_name = "M", default_value_t = 0)]
    pub warm_up: u64,
    /// Load the keys that many times; of each insert the shortest time counts
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub loads: u64,
    /// Time one single operation of N for the latencies
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub sample: u64,
    /// Where state lives
    #[command(flatten)]
    pub state: StateArgs,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `cold`: counters of 64 bytes, far more than memory holds, in a hybrid log with sorted runs.
#[derive(Args, Clone, Debug)]
pub struct ColdArgs {
    /// Keys to load, a tenth of them one by one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10..))]
    pub keys: u64,
    /// Keys to read, to look for in vain, and to update
    #[arg(long, value_name = "M", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// Keys in a batch, and threads that read the device
    #[arg(long, value_name = "G", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub batch: u64,
    /// Memory that state may take, such as 1GiB
    #[arg(long, value_name = "SIZE")]
    pub memory: ByteSize,
    /// Tell what moves, merges and waits took of each part's time
    #[arg(long)]
    pub shares: bool,
    /// Put so many new keys one by one after the load, instead of a tenth of all
    #[arg(long, value_name = "N")]
    pub puts: Option<u64>,
    /// Directory for the state (a temporary one unless given)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `adapter`: counting keys straight on state, by hand in Timely, and with the adapter; or a query
/// straight on its state and in its dataflow.
#[derive(Args, Clone, Debug)]
pub struct AdapterArgs {
    /// Count so many keys
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
          required_unless_present = "query", requires = "ops", conflicts_with = "query")]
    pub keys: Option<u64>,
    /// uniform, or zipf:THETA such as zipf:0.99
    #[arg(long, value_name = "D", default_value_t = Distribution::Uniform)]
    pub dist: Distribution,
    /// Rows to count after the load
    #[arg(long, value_name = "M", conflicts_with = "query")]
    pub ops: Option<u64>,
    /// Run this Nexmark query: q4 or q20
    #[arg(long, value_name = "Q", requires = "events")]
    pub query: Option<String>,
    /// Events of the query: half of them to build its state up, half to be measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..),
          requires = "query")]
    pub events: Option<u64>,
    /// The query's events
    #[command(flatten)]
    pub stream: StreamArgs,
    /// In that many rounds, in turns
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Where state lives; the memory is that of each way
    #[command(flatten)]
    pub state: StateArgs,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `checkpoint`: counters updated while checkpoints are taken, in turns with a second store that has none.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// Counters there are, of 16 bytes with their keys
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub records: u64,
    /// Updates of random counters before each checkpoint
    #[arg(long, value_name = "M", default_value_t = 20_000_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// Checkpoints to take
    #[arg(long, value_name = "C", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoints: u64,
    /// Percentages of the counters to change before a checkpoint whose bytes are counted
    #[arg(long, value_name = "P,P,...", default_value = "0.1,1,10", value_parser = percents)]
    pub churn: std::vec::Vec<f64>,
    /// Then also export, restore by key groups and import a map, lists and windows of as many
    /// records, in each of their layouts
    #[arg(long)]
    pub copies: bool,
    /// Where state lives
    #[command(flatten)]
    pub state: StateArgs,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

/// `replay`: the history of a git repository, checked against git.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// A history made earlier, FILE.csv.xz
    #[arg(long, value_name = "FILE", required_unless_present = "git", conflicts_with = "git")]
    pub input: Option<PathBuf>,
    /// A repository on this machine, whose history is made now and whose files are the answer
    #[arg(long, value_name = "DIR")]
    pub git: Option<PathBuf>,
    /// Replay that many events; all unless given
    #[arg(long, value_name = "EVENTS", conflicts_with = "git")]
    pub upto: Option<u64>,
    /// Write what is left to this file, as path, tab, value
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// Where state lives
    #[command(flatten)]
    pub state: StateArgs,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser, Debug)]
    enum Command {
        Nexmark(Box<NexmarkArgs>),
        Rmw(RmwArgs),
        Replay(ReplayArgs),
        Adapter(AdapterArgs),
        Checkpoint(CheckpointArgs),
        Gen(GenArgs),
    }

    fn parse(line: &str) -> std::result::Result<Command, String> {
        let words = std::iter::once("alluvium-bench").chain(line.split(' '));
        Command::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn the_promised_options_are_there() {
        Command::command().debug_assert();
        for line in [
            "nexmark --query q4 --layout heap --memory 256MiB --events 10 --in-flight 5 --rate 9 \
             --workers 2 --input d --results r --changes c --dir d --json j",
            "nexmark --query q3 --memory 64KiB --input d",
            "nexmark --query q3 --memory 64KiB --events 9 --dir d --checkpoint-every 10s",
            "nexmark --query q3 --memory 64KiB --events 9 --restore d --checkpoint-every-events 5",
            "rmw --keys 10 --dist zipf:0.99 --record strings --ops 5 --layout heap --memory 1GiB \
             --batch 64 --vs hashbrown --rounds 3 --loads 2 --sample 8",
            "rmw --keys 10 --ops 5 --memory 1GiB --dependent",
            "replay --input f.csv.xz --upto 7 --layout heap --memory 4MiB --dump f.tsv",
            "replay --git d --memory 4MiB",
            "adapter --keys 10 --dist zipf:0.99 --ops 5 --rounds 2 --layout heap --memory 1MiB",
            "adapter --query q4 --events 10 --in-flight 5 --rounds 2 --memory 1MiB",
            "gen --events 5",
            "checkpoint --records 10 --ops 5 --checkpoints 3 --churn 0.1,100 --memory 1MiB --dir d \
             --copies",
        ] {
            parse(&line.replace("  ", "")).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn what_is_unknown_or_out_of_range_is_refused_in_words() {
        for (line, expected) in [
            ("nexmark --query q4 --memory 1MiB --events 1 --layout tree", "no layout \"tree\""),
            ("nexmark --query q4 --memory 1MB --events 1", "64KiB"),
            ("nexmark --query q4 --memory 1MiB", "--events"),
            ("nexmark --query q4 --memory 1MiB --events 1 --checkpoint-every 3", "like 30s"),
            ("nexmark --query q4 --memory 1MiB --events 1 --dir d --restore d", "--restore"),
            ("nexmark --query q4 --memory 1MiB --events 1 --workers 0", "workers"),
            ("rmw --keys 0 --ops 1 --memory 1MiB", "--keys"),
            ("rmw --keys 1 --ops 1 --memory 1MiB --dist normal", "zipf:0.99"),
            ("rmw --keys 1 --ops 1 --memory 1MiB --record 17", "strings"),
            ("rmw --keys 1 --ops 1 --memory 1MiB --vs other", "hashbrown"),
            ("rmw --keys 1 --ops 1 --memory 1MiB --dependent --batch 2", "--batch"),
            ("replay --memory 1MiB", "--input"),
            ("checkpoint --records 5 --memory 1MiB --churn 1,0", "above 0 and at most 100"),
            ("adapter --memory 1MiB", "--keys"),
            ("adapter --memory 1MiB --keys 5", "--ops"),
            ("adapter --memory 1MiB --query q4", "--events"),
            ("adapter --memory 1MiB --query q4 --events 9 --keys 5 --ops 5", "--keys"),
            ("replay --memory 1MiB --input f --git d", "--git"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
