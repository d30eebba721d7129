//! The command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::programs::Programs;
use crate::runner::Runner;
use crate::{Error, Result};
use crate::{birte, hotstorage, nexmark};

/// Published experiments as named suites, each with one report. A run that was interrupted goes on
/// when the same command is given again.
#[derive(Parser)]
#[command(name = "suite", version)]
struct Cli {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// Nexmark q0 to q22 and q101 to q106 on heap, one monolithic hybrid log, and layouts that fit
    Nexmark(NexmarkArgs),
    /// COUNT and RANK on each store, Nexmark q3 to q8 monolithic and workload-aware, rates and workers
    Hotstorage20(HotStorageArgs),
    /// q3 to q8 on plain maps and with managed state; q3 larger than memory beside more workers
    Birte19(BirteArgs),
    /// All suites, each in a directory of its own in --out
    All(AllArgs),
}

/// What all suites have.
#[derive(Args, Clone, Debug)]
struct Common {
    /// Directory of the report and of what was measured
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A small size, one round
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// A size that only shows that everything runs and agrees: its figures say nothing
    #[arg(long)]
    smoke: bool,
    /// Rounds, in turns (3, or 1 with --quick or --smoke, unless given)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// A run is cut after so many seconds (twice those of its stream and 2 minutes, 600 at least, unless
    /// given)
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Directory of alluvium-bench and alluvium-gadget (that of this program unless given)
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// The program of the stores with native builds (bench/peers/target/release/alluvium-peers
    /// unless given)
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct NexmarkArgs {
    #[command(flatten)]
    common: Common,
    /// Queries, separated by commas (all unless given)
    #[arg(long, value_delimiter = ',')]
    queries: Vec<String>,
    /// Events of a run (1,000,000; with --quick 200,000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events: Option<u64>,
    /// Auctions open at a time
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    in_flight: u64,
    /// Memory for state
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: String,
    /// Workers of a run
    #[arg(long, value_name = "W", default_value_t = 1)]
    workers: usize,
}

#[derive(Args, Clone, Debug)]
struct HotStorageArgs {
    #[command(flatten)]
    common: Common,
    /// As published: 10 minutes a run
    #[arg(long, conflicts_with_all = ["quick", "smoke"])]
    full: bool,
    /// Lengths of windows and the time between two, in seconds, beside the published 30/1 and 30/30
    /// (10/1,60/1,60/10; 10/1 with --quick, none with --smoke)
    #[arg(long, value_delimiter = ',', value_name = "L/S", value_parser = window)]
    windows: Vec<(u64, u64)>,
    /// Memory of each store
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: String,
    /// Numbers of workers of Fig. 5b (1 to twice the cores)
    #[arg(long, value_delimiter = ',', value_name = "W")]
    workers: Vec<usize>,
}

#[derive(Args, Clone, Debug)]
struct BirteArgs {
    #[command(flatten)]
    common: Common,
    /// Events a second
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Memory that has room for all state
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: String,
    /// Memory of the run whose state is larger (an eighth of the state on the heap unless given)
    #[arg(long, value_name = "SIZE")]
    small: Option<String>,
    /// Numbers of workers, and of processes, whose state is in memory
    #[arg(long, value_delimiter = ',', value_name = "W", default_values_t = [2, 4])]
    workers: Vec<usize>,
}

#[derive(Args, Clone, Debug)]
struct AllArgs {
    #[command(flatten)]
    common: Common,
}

/// A run may take so long, at least.
const LIMIT_SECONDS_MIN: f64 = 600.0;

/// A length and a slide in seconds, as milliseconds.
fn window(text: &str) -> Result<(u64, u64)> {
    let bad =
        || Error::new(format!("{text:?} is not a length and a slide in seconds, such as 30/1"));
    let (length, slide) = text.split_once('/').ok_or_else(bad)?;
    let ms = |text: &str| match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok((seconds * 1e3).round() as u64),
        _ => Err(bad()),
    };
    let (length, slide) = (ms(length)?, ms(slide)?);
    if slide > length { Err(bad()) } else { Ok((length, slide)) }
}

impl Common {
    /// The same in a directory within.
    fn within(&self, name: &str) -> Self {
        Common { out: self.out.join(name), ..self.clone() }
    }

    fn rounds(&self) -> usize {
        let default = if self.quick || self.smoke { 1 } else { 3 };
        self.rounds.map_or(default, usize::from)
    }

    /// One of three sizes.
    fn size<T>(&self, full: T, quick: T, smoke: T) -> T {
        match () {
            () if self.smoke => smoke,
            () if self.quick => quick,
            () => full,
        }
    }

    fn done(&self) {
        println!("Report: {0}/report.md and {0}/report.html", self.out.display());
    }

    fn programs(&self) -> Result<Programs> {
        Programs::find(self.bin.as_deref(), self.peers.as_deref())
    }

    /// How long a run may take whose stream has so many seconds: a rate that cannot be kept takes longer.
    fn limit(&self, seconds: f64) -> Duration {
        let usual = (2.0 * seconds + 120.0).max(LIMIT_SECONDS_MIN);
        self.limit.map_or(Duration::from_secs_f64(usual), Duration::from_secs)
    }

    /// Begins a suite of streams of so many seconds.
    fn runner(&self, suite: &str, seconds: f64) -> Result<Runner> {
        Runner::begin(&self.out, suite, self.limit(seconds))
    }
}

/// Runs the suite that the command line names.
pub fn main() -> ExitCode {
    match execute(Cli::parse().suite) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "suite: {error}");
            ExitCode::from(if matches!(error, Error::Interrupted) { 130 } else { 1 })
        }
    }
}

fn execute(suite: Suite) -> Result<()> {
    match suite {
        Suite::Nexmark(args) => args.run(),
        Suite::Hotstorage20(args) => args.run(),
        Suite::Birte19(args) => args.run(),
        Suite::All(args) => args.run(),
    }
}

impl NexmarkArgs {
    fn run(self) -> Result<()> {
        let NexmarkArgs { common, queries, in_flight, memory, workers, .. } = self;
        let all = || nexmark::QUERIES.map(String::from).to_vec();
        let options = nexmark::Options {
            queries: if queries.is_empty() { all() } else { queries },
            events: self.events.unwrap_or(common.size(1_000_000, 200_000, 3_000)),
            in_flight,
            memory,
            workers,
            rounds: common.rounds(),
            repeats: common.size(true, true, false),
        };
        let programs = common.programs()?;
        let mut runner = common.runner("nexmark", 0.0)?;
        nexmark::run(&options, &programs, &mut runner, &common.out)?;
        common.done();
        Ok(())
    }
}

impl HotStorageArgs {
    fn run(self) -> Result<()> {
        let (options, common) = (self.options(), self.common);
        let programs = common.programs()?;
        let mut runner = common.runner("hotstorage20", options.seconds)?;
        hotstorage::run(&options, &programs, &mut runner, &common.out)?;
        common.done();
        Ok(())
    }
}

impl HotStorageArgs {
    fn options(&self) -> hotstorage::Options {
        let common = &self.common;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let few = vec![(10_000, 1_000)];
        let many = vec![(10_000, 1_000), (60_000, 1_000), (60_000, 10_000)];
        let swept = common.size(many, few, vec![]);
        let seconds = if self.full { 600.0 } else { common.size(60.0, 20.0, 0.4) };
        hotstorage::Options {
            seconds,
            query_seconds: common.size(seconds, 10.0, 0.4),
            slower: common.size(1, 1, 20),
            windows: if self.windows.is_empty() { swept } else { self.windows.clone() },
            memory: self.memory.clone(),
            rounds: common.rounds(),
            rates: common.size(
                vec![0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0],
                vec![0.5, 2.0, 4.0, 8.0],
                vec![1.5],
            ),
            workers: match self.workers.is_empty() {
                true => common.size((1..=2 * cores).collect(), vec![1, 2 * cores], vec![2]),
                false => self.workers.clone(),
            },
        }
    }
}

impl BirteArgs {
    fn run(self) -> Result<()> {
        let BirteArgs { common, rate, memory, small, workers } = self;
        let options = birte::Options {
            seconds: common.size(60.0, 20.0, 0.5),
            rate: rate.unwrap_or(common.size(400_000, 200_000, 20_000)),
            memory,
            small,
            workers: if common.smoke { vec![2] } else { workers },
            rounds: common.rounds(),
        };
        let programs = common.programs()?;
        let mut runner = common.runner("birte19", options.seconds)?;
        birte::run(&options, &programs, &mut runner, &common.out)?;
        common.done();
        Ok(())
    }
}

impl AllArgs {
    /// Every suite is run, also after one that failed.
    fn run(self) -> Result<()> {
        let out = |name: &str| {
            let out = self.common.within(name);
            let (quick, smoke) = (out.quick, out.smoke);
            let mut words =
                vec![name.to_owned(), "--out".to_owned(), out.out.display().to_string()];
            words.extend(quick.then(|| "--quick".to_owned()));
            words.extend(smoke.then(|| "--smoke".to_owned()));
            words.extend(out.rounds.iter().flat_map(|n| ["--rounds".to_owned(), n.to_string()]));
            words.extend(out.limit.iter().flat_map(|n| ["--limit".to_owned(), n.to_string()]));
            for (option, path) in [("--bin", &out.bin), ("--peers", &out.peers)] {
                let path = path.iter().map(|path| path.display().to_string());
                words.extend(path.flat_map(|path| [option.to_owned(), path]));
            }
            words
        };
        let mut failed = Vec::new();
        for name in ["nexmark", "hotstorage20", "birte19"] {
            let line = ["suite".to_owned()].into_iter().chain(out(name));
            let cli = Cli::try_parse_from(line).map_err(|error| Error::new(error.to_string()))?;
            match execute(cli.suite) {
                Ok(()) => {}
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => failed.push(format!("{name}: {error}")),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Error::Wrong(failed.join("\n"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hotstorage20(options: &str) -> HotStorageArgs {
        let line = format!("suite hotstorage20 --out x {options}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().suite {
            Suite::Hotstorage20(args) => args,
            _ => panic!("another suite"),
        }
    }

    #[test]
    fn no_run_of_any_size_is_cut_before_its_stream_ends() {
        for size in ["--full", "", "--quick", "--smoke"] {
            let args = hotstorage20(size);
            let (options, limit) = (args.options(), args.common.limit(args.options().seconds));
            // The program itself ends a run that takes half as long again.
            let least = 1.5 * options.seconds.max(options.query_seconds) + 60.0;
            assert!(limit.as_secs_f64() > least, "{size}: {limit:?}");
        }
        assert_eq!(hotstorage20("--full").options().seconds, 600.0);
        let args = hotstorage20("--full --limit 7");
        assert_eq!(args.common.limit(600.0), Duration::from_secs(7));
    }

    #[test]
    fn windows_are_swept_as_given_or_in_sizes_with_figures() {
        assert_eq!(hotstorage20("--windows 5/0.5").options().windows, [(5_000, 500)]);
        assert_eq!(hotstorage20("").options().windows.len(), 3);
        assert_eq!(hotstorage20("--quick").options().windows, [(10_000, 1_000)]);
        assert!(hotstorage20("--smoke").options().windows.is_empty());
        let cli =
            |windows: &str| Cli::try_parse_from(["suite", "hotstorage20", "--out", "x", windows]);
        assert!(cli("--windows=1/2").is_err() && cli("--windows=ten/1").is_err());
    }
}
