//! The commands that have to do with trace files.

mod advise;
mod characterize;
mod hotstorage;
mod paper;
mod replay;
mod ycsb;

use clap::{Args, Subcommand};
use serde::Serialize;

use std::path::Path;

use crate::engine::Kind;
use crate::trace::{Reading, Recording};
use crate::{Error, Result};

pub(crate) use replay::{TraceFile, record_file};

/// What is done with trace files.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Runs an operator and makes each access at once on an engine; prints JSON
    Online(Box<replay::OnlineArgs>),
    /// Replays a trace file on an engine, and checks every value; prints JSON
    Replay(Box<replay::ReplayArgs>),
    /// Says what the accesses of a trace file look like
    Characterize(Box<characterize::CharacterizeArgs>),
    /// Tables and figures of a paper, each with what the paper says and the data used
    Paper(Box<paper::PaperArgs>),
    /// Which layout and how much memory the state of a trace wants
    Advise(Box<advise::AdviseArgs>),
    /// COUNT and RANK of the HotStorage'20 paper on one engine, each record at its time; prints JSON
    #[command(name = "hotstorage")]
    HotStorage(Box<hotstorage::HotStorageArgs>),
    /// YCSB's workloads as trace files, and how near they come to a trace
    Ycsb(Box<ycsb::YcsbArgs>),
}

/// Does what a command says, with these engines.
pub(crate) fn execute(command: Command, kinds: &[Kind]) -> Result<()> {
    match command {
        Command::Online(args) => replay::online(&args, kinds),
        Command::Replay(args) => replay::replay(&args, kinds),
        Command::Characterize(args) => characterize::characterize(&args),
        Command::Advise(args) => advise::advise(&args, kinds),
        Command::Paper(args) => paper::paper(&args, kinds),
        Command::HotStorage(args) => hotstorage::hotstorage(&args, kinds),
        Command::Ycsb(args) => ycsb::ycsb(&args),
    }
}

/// How trace files are read.
#[derive(Args, Clone, Copy, Debug)]
pub struct ReadArgs {
    /// Count bad lines and go on, instead of failing at the first
    #[arg(long)]
    skip_bad: bool,
    /// Bytes of a put or merge whose line does not say, as in YCSB's logs
    #[arg(long, default_value_t = 256)]
    value_bytes: u32,
}

impl ReadArgs {
    fn read(&self, path: &Path) -> Result<Recording> {
        let ReadArgs { skip_bad, value_bytes } = *self;
        if value_bytes >= crate::trace::BYTES_MAX {
            let most = crate::trace::BYTES_MAX - 1;
            return Err(Error::Usage(format!("--value-bytes {value_bytes}: {most} is the most")));
        }
        let recording = Recording::read(path, &Reading { skip_bad, value_bytes })?;
        match recording.entries().is_empty() {
            true => Err(Error::Usage(format!("{}: there is no access in it", path.display()))),
            false => Ok(recording),
        }
    }
}

fn print(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value).map_err(Error::engine)?);
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::io(path, "write", error))
}
