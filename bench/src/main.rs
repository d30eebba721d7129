//! The command line of Alluvium's workloads.

use std::io::Write;
use std::process::ExitCode;

use alluvium_bench::args::{
    AdapterArgs, CheckpointArgs, ColdArgs, GenArgs, NexmarkArgs, ReplayArgs, ReportArgs, RmwArgs,
    WindowArgs,
};
use alluvium_bench::report::Report;
use alluvium_bench::run::Scale;
use alluvium_bench::{Result, run};
use clap::{Parser, Subcommand};

/// Workloads for Alluvium, with their figures. Without a command: the main job. It runs Nexmark q3
/// and q4 with state that fits and with four times the memory, answers two questions of windows
/// beside hashbrown maps, compares the results, and takes about a minute on 2 cores.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The main job in a size that only shows that it works
    #[arg(long)]
    smoke: bool,
    /// The main job with larger state and all rounds, which takes many minutes
    #[arg(long, conflicts_with = "smoke")]
    full: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Generate Nexmark events and nothing else
    Gen(GenArgs),
    /// A Nexmark query over generated or given events
    Nexmark(Box<NexmarkArgs>),
    /// Read-modify-write of keys from a distribution
    Rmw(RmwArgs),
    /// State far larger than memory: load, reads, updates, a checkpoint, opening again
    Cold(ColdArgs),
    /// What the Timely adapter costs beside an operator by hand and beside the state alone
    Adapter(AdapterArgs),
    /// A question of each window of a stream, answered by our windows, by what others would use, or both
    Window(WindowArgs),
    /// What checkpoints cost while state changes, how much they write, how fast they are restored
    Checkpoint(CheckpointArgs),
    /// Replay the history of a git repository and check the result
    Replay(ReplayArgs),
}

fn main() -> ExitCode {
    match execute(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece: threads of a process that has lost another may be talking as well.
            let line = format!("alluvium-bench: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> Result<()> {
    let Some(command) = cli.command else {
        return run::main_job(match () {
            () if cli.smoke => Scale::SMOKE,
            () if cli.full => Scale::FULL,
            () => Scale::DEFAULT,
        });
    };
    match command {
        Command::Gen(args) => finish(&run::generate(&args)?, &args.report),
        Command::Nexmark(args) => finish(&run::nexmark(&args)?, &args.report),
        Command::Rmw(args) => finish(&run::rmw(&args)?, &args.report),
        Command::Cold(args) => finish(&run::cold(&args)?, &args.report),
        Command::Adapter(args) => finish(&run::adapter(&args)?, &args.report),
        Command::Window(args) => finish(&run::window(&args)?, &args.report),
        Command::Checkpoint(args) => finish(&run::checkpoint(&args)?, &args.report),
        Command::Replay(args) => finish(&run::replay(&args)?, &args.report),
    }
}

/// Says on one line what came out, and writes the whole report if asked to.
fn finish(report: &Report, args: &ReportArgs) -> Result<()> {
    println!(
        "{} on {}: {} ops in {:.3} s, {:.0} ops/s, checksum {}",
        report.workload,
        report.layout,
        report.ops,
        report.seconds,
        report.ops_per_s,
        report.checksum
    );
    args.json.as_deref().map_or(Ok(()), |path| report.write_json(path))
}
