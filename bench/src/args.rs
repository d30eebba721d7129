//! Options of `alluvium-bench`, in groups that its subcommands share.

use std::path::PathBuf;

use clap::Args;

use crate::Size;
use crate::nexmark::Config;

/// Which stream of Nexmark events.
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
    /// Events in the stream
    #[arg(long, value_name = "N")]
    pub events: u64,
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

/// Where state lives and how much memory it may take.
#[derive(Args, Clone, Debug)]
pub struct StateArgs {
    /// Memory that state may take, such as 256MiB
    #[arg(long, value_name = "SIZE")]
    pub memory: Size,
    /// Directory for state that does not fit (a temporary one unless given)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
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
