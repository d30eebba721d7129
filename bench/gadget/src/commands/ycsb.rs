//! YCSB's workloads as trace files, and beside a trace.

use std::path::PathBuf;

use clap::Args;

use super::{ReadArgs, print, write};
use crate::trace::Writer;
use crate::ycsb::{Requests, Workload, closest, fitted};
use crate::{Error, Result};

/// A workload to write, or a trace to compare with.
#[derive(Args, Debug)]
pub struct YcsbArgs {
    /// The core workload: A, B, C, D or F
    #[arg(long, default_value = "A")]
    workload: String,
    /// Keys; default 1,000
    #[arg(long)]
    records: Option<u64>,
    /// Requests; default 2,000,000
    #[arg(long)]
    operations: Option<u64>,
    /// Which keys: uniform, zipfian, hotspot, sequential, exponential, latest
    #[arg(long)]
    requests: Option<Requests>,
    /// Bytes of a key
    #[arg(long)]
    key_bytes: Option<usize>,
    /// Seed
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Take all numbers from this trace instead; without --out compare the six distributions with it
    #[arg(long, conflicts_with_all = ["records", "operations", "key_bytes"])]
    fit: Option<PathBuf>,
    /// Leave out the puts that load the keys
    #[arg(long)]
    no_load: bool,
    /// Write the trace here; compressed if its name ends in .zst
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write the comparison as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

pub(super) fn ycsb(args: &YcsbArgs) -> Result<()> {
    let Some(fit) = &args.fit else {
        let workload = args.core()?;
        return args.write(&workload);
    };
    let recording = args.read.read(fit)?;
    if args.out.is_some() {
        return args.write(&fitted(&recording, args.requests.unwrap_or(Requests::Zipfian)));
    }
    let rows = closest(&recording)?;
    match &args.json {
        Some(json) => {
            write(json, &serde_json::to_string_pretty(&rows).map_err(Error::engine)?)?;
        }
        None => print(&rows)?,
    }
    Ok(())
}

impl YcsbArgs {
    fn core(&self) -> Result<Workload> {
        let core = Workload::core(&self.workload)?;
        Ok(Workload {
            requests: self.requests.unwrap_or(core.requests),
            records: self.records.unwrap_or(core.records),
            operations: self.operations.unwrap_or(core.operations),
            key_bytes: self.key_bytes.unwrap_or(core.key_bytes),
            value_bytes: self.read.value_bytes,
            seed: self.seed,
            ..core
        })
    }

    fn write(&self, workload: &Workload) -> Result<()> {
        let Some(out) = &self.out else {
            return Err(Error::Usage("--out is missing: where the trace is written".to_owned()));
        };
        let mut writer = Writer::new(out, false)?;
        let mut lines = 0u64;
        workload.run(!self.no_load, &mut |line| {
            lines += 1;
            writer.line(line)
        })?;
        writer.finish()?;
        println!("{lines} accesses in {}", out.display());
        Ok(())
    }
}
