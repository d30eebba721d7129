//! The figures of a trace file.

use std::path::PathBuf;

use clap::Args;

use super::{ReadArgs, write};
use crate::args::InputArgs;
use crate::characterize::{Characterization, page};
use crate::operator::Name;
use crate::{Error, Result};

/// A trace file, and what it is compared with.
#[derive(Args, Debug)]
pub struct CharacterizeArgs {
    /// The file
    #[arg(long)]
    trace: PathBuf,
    /// Compare with the input of this operator: --input, or what the generator's options give
    #[arg(long)]
    operator: Option<Name>,
    /// Compare with another trace file
    #[arg(long)]
    with: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write table and plots as one HTML file
    #[arg(long)]
    html: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    input: InputArgs,
}

pub(super) fn characterize(args: &CharacterizeArgs) -> Result<()> {
    let recording = args.read.read(&args.trace)?;
    let stream = args.operator.map(|operator| args.input.stream(operator)).transpose()?;
    let name = args.trace.display().to_string();
    let mut figures = Characterization::of(&name, &recording, stream.as_ref());
    if let Some(with) = &args.with {
        figures.compare(&recording, &with.display().to_string(), &args.read.read(with)?);
    }
    print!("{}", figures.text());
    if recording.skipped() > 0 {
        println!("  {} bad lines were left out", recording.skipped());
    }
    if recording.missing() > 0 {
        println!("  {} accesses are missing: the store had no room for them", recording.missing());
    }
    if let Some(json) = &args.json {
        write(json, &serde_json::to_string_pretty(&figures).map_err(Error::engine)?)?;
    }
    match &args.html {
        Some(html) => write(html, &page(&name, &[figures])),
        None => Ok(()),
    }
}
