//! The command `alluvium`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use alluvium_inspect::{ClosedDirectory, ExportOptions, export, inspect, verify};
use alluvium_pagestore::{Error, Result};
use clap::{Args, Parser, Subcommand};

/// Inspects the directory of a store that is not running.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  alluvium inspect state
  alluvium verify state && echo sound
  alluvium export state --state best-bid --limit 10"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List checkpoints, states and files
    #[command(after_help = "Examples:
  alluvium inspect state
  alluvium inspect state --json | jq '.states[] | {name, dead_bytes}'

`pins` are bytes of files that only this checkpoint names. `garbage` are bytes of records that are
dead for the newest checkpoint.")]
    Inspect {
        #[command(flatten)]
        place: DirectoryArgs,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Check every checksum of every file that a checkpoint names; exit with 1 on damage
    #[command(after_help = "Example:
  alluvium verify state

Tells each damaged place, with file and offset, not only the first.")]
    Verify {
        #[command(flatten)]
        place: DirectoryArgs,
    },
    /// Write the live records of a checkpoint, by default the newest, as one line of JSON each
    #[command(after_help = "Examples:
  alluvium export state --state best-bid > best-bid.jsonl
  alluvium export state --checkpoint 41 --limit 5
  alluvium export state --salvage > sound.jsonl 2> lost.txt

Lines are {\"state\":…,\"key\":…,\"value\":…}. Types that cannot be decoded (by serde, or unknown) are
{\"type\":…,\"hex\":…}. Lists and windows come in pieces: see the chapter on errors in the book.")]
    Export {
        #[command(flatten)]
        place: DirectoryArgs,
        /// Export this checkpoint instead of the newest
        #[arg(long, value_name = "NUMBER")]
        checkpoint: Option<u64>,
        /// Export only this state
        #[arg(long, value_name = "NAME")]
        state: Option<String>,
        /// Write at most this many lines
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Skip damage: write sound records, report the rest, and exit with 1 if anything is
        /// damaged
        #[arg(long)]
        salvage: bool,
    },
}

#[derive(Args)]
struct DirectoryArgs {
    /// The store's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "alluvium: {error}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Inspect { place, json } => {
            let summary = inspect(&ClosedDirectory::open(&place.directory)?)?;
            match json {
                true => print(
                    &serde_json::to_string_pretty(&summary)
                        .map_err(|error| Error::io("write", "the summary", error.into()))?,
                ),
                false => print(summary.to_string().trim_end()),
            }
        }
        Command::Verify { place } => {
            let verified = verify(&ClosedDirectory::open(&place.directory)?)?;
            print(verified.to_string().trim_end())?;
            return Ok(if verified.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Export { place, checkpoint, state, limit, salvage } => {
            let directory = ClosedDirectory::open(&place.directory)?;
            let mut out = std::io::BufWriter::new(std::io::stdout().lock());
            let options = ExportOptions { checkpoint, state, limit, salvage };
            let done = export(&directory, &options, &mut out)?;
            for (state, (records, why)) in &done.undecoded {
                let line = format!("alluvium: {records} records of {state} are as bytes: {why}");
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            for (state, why) in &done.skipped {
                let _ = writeln!(
                    std::io::stderr(),
                    "alluvium: {state} is not exported, or not all of it: {why}"
                );
            }
            if salvage {
                let line = format!("alluvium: the lines are of checkpoint {}", done.checkpoint);
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            for damage in &done.damage {
                let _ = writeln!(std::io::stderr(), "alluvium: not exported: {damage}");
            }
            if !done.skipped.is_empty() || !done.damage.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
            Ok(())
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a text and a line's end; that nobody reads it is no error.
fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("write", "the output", error))
        }
        _ => Ok(()),
    }
}
