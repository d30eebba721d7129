//! Exports live records as lines of JSON.
//!
//! The form of a record depends on the primitive and on the layout that wrote it: [`plain`] records
//! of a key and a value, and [`cold`] ones in sorted runs; [`lists`] in runs, and [`packed`] ones in
//! sorted runs; [`panes`] in window segments. All go through [`LimitedWriter`], which counts them, stops at
//! the limit and never hides undecodable records. [`reader`] reads all records, or only the sound
//! ones to salvage.

mod cold;
mod hot;
mod levels;
mod lists;
mod packed;
mod panes;
mod plain;
mod reader;
mod sink;

use std::io::Write;

use alluvium_pagestore::{Error, ErrorKind, Result};

use crate::checkpoints::{ListedCheckpoints, StateAt};
use crate::directory::ClosedDirectory;
use reader::DirectoryReader;
pub use sink::ExportSummary;
use sink::LimitedWriter;

/// Options of [`export`](fn@export).
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Exports the checkpoint with this number instead of the newest.
    pub checkpoint: Option<u64>,
    /// Exports only this state.
    pub state: Option<String>,
    /// Writes at most this many lines.
    pub limit: Option<u64>,
    /// Skips damage and [reports](ExportSummary::damage) it. If the manifest or the newest checkpoint is
    /// damaged, exports the newest readable checkpoint.
    pub salvage: bool,
}

/// Writes the live records of a checkpoint to `out`, one line each.
///
/// # Errors
/// [`ErrorKind::UnknownState`] for an unknown state, [`ErrorKind::Missing`] without a checkpoint,
/// [`ErrorKind::Corrupt`] at the first damage unless it is salvaged. Lines written before an error
/// are correct.
pub fn export(
    directory: &ClosedDirectory,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<ExportSummary> {
    let found = ListedCheckpoints::read(directory);
    let reader = DirectoryReader::new(directory, options.salvage);
    let checkpoint = match options.salvage {
        true => {
            let (checkpoint, damage) = found.salvage(options.checkpoint, directory)?;
            damage.iter().for_each(|error| reader.tell(error, None));
            checkpoint
        }
        false => found.choose(options.checkpoint, directory)?,
    };
    let wanted =
        |state: &StateAt<'_>| options.state.as_deref().is_none_or(|name| name == state.name());
    let states: Vec<_> = checkpoint.states().filter(wanted).collect();
    if let (Some(name), true) = (&options.state, states.is_empty()) {
        let names: Vec<_> = checkpoint.states().map(|state| state.name()).collect();
        let what = format!("no such state; there are: {}", names.join(", "));
        return Err(Error::new(ErrorKind::UnknownState, what).with("state", name));
    }
    let mut sink = LimitedWriter::new(out, options.limit);
    for state in states {
        if sink.is_full() {
            break;
        }
        match export_state(&reader, state, &mut sink) {
            // What is live is not known; other states are not affected.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                sink.skip(state.name(), error.message());
            }
            // What tells which records are live is damaged.
            Err(error) if options.salvage && is_damage(&error) => {
                reader.tell(&error, Some(state.name()));
            }
            done => done.map_err(|error| error.with("state", state.name()))?,
        }
    }
    let mut exported = sink.finish()?;
    (exported.checkpoint, exported.damage) = (checkpoint.number(), reader.into_damage());
    Ok(exported)
}

fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Missing | ErrorKind::FormatVersion)
}

fn export_state(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    sink: &mut LimitedWriter<'_>,
) -> Result<()> {
    let is_list =
        matches!(state.primitive(), "list" | "lists") || state.primitive().starts_with("time-map");
    match (state.layout(), state.primitive()) {
        ("append-log", _) if is_list => lists::export(reader, state, sink),
        ("window-segments", "panes") => panes::export(reader, state, sink),
        // Other layouts keep lists and panes under keys of slice and key.
        (_, _) if is_list => {
            plain::export_sliced(reader, state, &format!("Vec<{}>", state.value()), sink)
        }
        (_, "panes") => plain::export_sliced(reader, state, state.value(), sink),
        _ => plain::export(reader, state, sink),
    }
}
