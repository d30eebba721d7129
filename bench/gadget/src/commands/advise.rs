//! Advice for a trace, the calibration that it goes by, and its check.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{ReadArgs, write};
use crate::advice::{Calibration, Checked, Memory, Row, advise as advise_for, check};
use crate::args::bytes;
use crate::engine::Kind;
use crate::{Error, Result};

/// Where the state of checked traces is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// In memory
    Memory,
    /// Four times the memory
    Beyond,
}

/// What a check found.
#[derive(Debug, Default, Serialize)]
struct Found {
    accesses: usize,
    memory: Option<Checked>,
    beyond: Option<Checked>,
}

impl Found {
    fn of(&mut self, place: Where) -> &mut Checked {
        let of = if place == Where::Memory { &mut self.memory } else { &mut self.beyond };
        of.get_or_insert_default()
    }

    fn write(&self, path: &Path) -> Result<()> {
        write(path, &serde_json::to_string_pretty(self).map_err(Error::engine)?)
    }
}

/// A trace and the memory for its state.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// The trace
    #[arg(long, required_unless_present_any = ["check", "calibrate"])]
    trace: Option<PathBuf>,
    /// Memory for the state
    #[arg(long, default_value = "256MiB")]
    memory: String,
    /// The file of measured costs
    #[arg(long)]
    calibration: PathBuf,
    /// Measure the costs anew, and write them to that file
    #[arg(long)]
    calibrate: bool,
    /// How often each of them is measured; the median counts
    #[arg(long, default_value_t = 3, requires = "calibrate", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Measure all candidates on eleven operators and YCSB, and compare the advised ones with the best: in
    /// --memory, and with a quarter of each trace's state as memory
    #[arg(long)]
    check: bool,
    /// Check only one of both
    #[arg(long, requires = "check")]
    only: Option<Where>,
    /// About how many accesses each trace of --check has
    #[arg(long, default_value_t = 200_000)]
    accesses: usize,
    /// Write what --check found to a file
    #[arg(long, requires = "check")]
    json: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

pub(super) fn advise(args: &AdviseArgs, kinds: &[Kind]) -> Result<()> {
    let memory = bytes("--memory", &args.memory)?;
    if args.calibrate {
        let measured =
            Calibration::measure(kinds, usize::from(args.rounds), &std::env::temp_dir())?;
        let text = serde_json::to_string_pretty(&measured).map_err(Error::engine)?;
        write(&args.calibration, &text)?;
    }
    let calibration = Calibration::read(&args.calibration)?;
    if let Some(trace) = &args.trace {
        let recording = args.read.read(trace)?;
        print!("{}", advise_for(&recording, memory, &calibration)?.text(&calibration));
    }
    if args.check { check_all(args, kinds, memory, &calibration) } else { Ok(()) }
}

/// Checks in memory and beyond it, and says of each where the bound is not met.
fn check_all(
    args: &AdviseArgs,
    kinds: &[Kind],
    memory_bytes: u64,
    calibration: &Calibration,
) -> Result<()> {
    let accesses = args.accesses;
    let mut found = Found { accesses, ..Found::default() };
    let beyond = (Where::Beyond, Memory::Quarter, "With a quarter of the state as memory:");
    for (place, memory, title) in
        [(Where::Memory, Memory::Bytes(memory_bytes), "In memory:"), beyond]
    {
        if args.only.is_some_and(|only| only != place) {
            continue;
        }
        println!("{title}");
        let mut tell = |row: Row| {
            println!("{}", row.text());
            found.of(place).rows.push(row);
            // A run that is cut leaves what it has found.
            args.json.as_ref().map_or(Ok(()), |path| found.write(path))
        };
        check(calibration, kinds, accesses, memory, &mut tell)?;
        println!("{}", found.of(place).text());
    }
    Ok(())
}
