//! The tables and figures of the paper.

use std::cell::OnceCell;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::Result;
use crate::args::{bytes, columns};
use crate::engine::Kind;
use crate::paper::Paper;
use crate::rows::Columns;

/// A paper whose tables and figures are made.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// A New Benchmark Harness for Systematic and Robust Evaluation of Streaming State Stores
    Gadget,
}

/// Which paper, on which data.
#[derive(Args, Debug)]
pub struct PaperArgs {
    /// The paper
    which: Which,
    /// Directory of paper.md and paper.html
    #[arg(long)]
    out: PathBuf,
    /// 100,000 events and 100,000 accesses on each engine, instead of 1 million and 2 million
    #[arg(long)]
    quick: bool,
    /// The stream of all operators but joins, and the right one of joins: FILE:KEY:TIME
    #[arg(long, value_parser = columns)]
    tasks: Option<Columns>,
    /// The left stream of joins: FILE:KEY:TIME:TYPE
    #[arg(long, value_parser = columns, requires = "tasks")]
    jobs: Option<Columns>,
    /// Engines, separated by commas; default: all
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Memory of an engine
    #[arg(long, default_value = "256MiB")]
    memory: String,
    /// Seconds after which a replay is cut
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// A directory of traces that bench/flink made, to compare ours with
    #[arg(long)]
    flink: Option<PathBuf>,
    /// Only write the events for bench/flink into --out
    #[arg(long, conflicts_with = "flink")]
    events_only: bool,
}

pub(super) fn paper(args: &PaperArgs, kinds: &[Kind]) -> Result<()> {
    let Which::Gadget = args.which;
    for name in &args.engines {
        super::replay::kind_of(name, kinds)?;
    }
    let (events, accesses) = if args.quick { (100_000, 100_000) } else { (1_000_000, 2_000_000) };
    let paper = Paper {
        tasks: args.tasks.clone(),
        jobs: args.jobs.clone(),
        events,
        accesses,
        engines: args.engines.clone(),
        memory_bytes: bytes("--memory", &args.memory)?,
        seconds: args.seconds,
        flink: args.flink.clone(),
        rows: OnceCell::new(),
    };
    if args.events_only {
        return paper.write_events(&args.out);
    }
    paper.write(&args.out, kinds)
}
