//! Advice for a trace, the calibration that it goes by, and its check.

use std::path::PathBuf;

use clap::Args;

use super::{ReadArgs, write};
use crate::advice::{Calibration, Checked, Memory, advise as advise_for, check};
use crate::args::bytes;
use crate::engine::Kind;
use crate::{Error, Result};

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
    /// Measure all candidates on eleven operators and YCSB, and compare the advised ones with the best
    #[arg(long)]
    check: bool,
    /// Check with a quarter of each trace's state as memory, instead of --memory
    #[arg(long, requires = "check")]
    beyond: bool,
    /// About how many accesses each trace of --check has
    #[arg(long, default_value_t = 200_000)]
    accesses: usize,
    #[command(flatten)]
    read: ReadArgs,
}

pub(super) fn advise(args: &AdviseArgs, kinds: &[Kind]) -> Result<()> {
    let memory = bytes("--memory", &args.memory)?;
    if args.calibrate {
        let measured = Calibration::measure(kinds, &std::env::temp_dir())?;
        let text = serde_json::to_string_pretty(&measured).map_err(Error::engine)?;
        write(&args.calibration, &text)?;
    }
    let calibration = Calibration::read(&args.calibration)?;
    if let Some(trace) = &args.trace {
        let recording = args.read.read(trace)?;
        print!("{}", advise_for(&recording, memory, &calibration)?.text(&calibration));
    }
    if args.check {
        let mut tell = |line: &str| println!("{line}");
        let memory = if args.beyond { Memory::Quarter } else { Memory::Bytes(memory) };
        let Checked { traces, beyond, too_small } =
            check(&calibration, kinds, args.accesses, memory, &mut tell)?;
        let measured = traces - too_small;
        println!("{beyond} of {measured} beyond 1.15; {too_small} have too little state");
    }
    Ok(())
}
