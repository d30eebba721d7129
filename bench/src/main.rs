//! The command line of Alluvium's workloads.

use std::process::ExitCode;

use alluvium_bench::args::{GenArgs, ReplayArgs, ReportArgs, RmwArgs};
use alluvium_bench::report::Report;
use alluvium_bench::{Result, run};
use clap::{Parser, Subcommand};

/// Workloads for Alluvium, with their figures.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate Nexmark events and nothing else
    Gen(GenArgs),
    /// Read-modify-write of keys from a distribution
    Rmw(RmwArgs),
    /// Replay the history of a git repository and check the result
    Replay(ReplayArgs),
}

fn main() -> ExitCode {
    match execute(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alluvium-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Gen(args) => finish(&run::generate(&args)?, &args.report),
        Command::Rmw(args) => finish(&run::rmw(&args)?, &args.report),
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
