//! Live records as lines of JSON.
//!
//! What a record is depends on the primitive and on the layout that wrote it: [`plain`] records of a
//! key and a value, [`lists`] in runs, [`panes`] in window segments. All go through [`Sink`], which
//! counts them, stops at the limit and never hides what could not be decoded.

mod lists;
mod panes;
mod plain;
mod sink;

use std::io::Write;

use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, ImageInfo, RecordBytes, Result, WholeSegment,
};

use crate::checkpoints::{Checkpoints, SegmentAt, StateAt};
use crate::directory::ClosedDirectory;
pub use sink::Exported;
use sink::Sink;

/// What to export.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Of the checkpoint with this number instead of the newest.
    pub checkpoint: Option<u64>,
    /// Only this state.
    pub state: Option<String>,
    /// At most so many lines.
    pub limit: Option<u64>,
}

/// Writes the live records of a checkpoint to `out`, a line each.
///
/// # Errors
/// [`ErrorKind::UnknownState`] for a state that is not there, [`ErrorKind::Missing`] without a
/// checkpoint, [`ErrorKind::Corrupt`] at the first damage: what was written before is right.
pub fn export(
    directory: &ClosedDirectory,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<Exported> {
    let checkpoint = Checkpoints::read(directory).choose(options.checkpoint, directory)?;
    let wanted =
        |state: &StateAt<'_>| options.state.as_deref().is_none_or(|name| name == state.name());
    let states: Vec<_> = checkpoint.states().filter(wanted).collect();
    if let (Some(name), true) = (&options.state, states.is_empty()) {
        let names: Vec<_> = checkpoint.states().map(|state| state.name()).collect();
        let what = format!("no such state; there are: {}", names.join(", "));
        return Err(Error::new(ErrorKind::UnknownState, what).with("state", name));
    }
    let mut sink = Sink::new(out, options.limit);
    for state in states {
        if sink.is_full() {
            break;
        }
        match export_state(directory, state, &mut sink) {
            // What is live is not known; other states are not affected.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                sink.skip(state.name(), error.message());
            }
            done => done.map_err(|error| error.with("state", state.name()))?,
        }
    }
    sink.finish()
}

fn export_state(
    directory: &ClosedDirectory,
    state: StateAt<'_>,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let is_list =
        matches!(state.primitive(), "list" | "lists") || state.primitive().starts_with("time-map");
    match (state.layout(), state.primitive()) {
        ("append-log", _) if is_list => lists::export(directory, state, sink),
        ("window-segments", "panes") => panes::export(directory, state, sink),
        // Other layouts keep lists and panes under keys of slice and key.
        (_, _) if is_list => {
            plain::export_sliced(directory, state, &format!("Vec<{}>", state.value()), sink)
        }
        (_, "panes") => plain::export_sliced(directory, state, state.value(), sink),
        _ => plain::export(directory, state, sink),
    }
}

/// Calls `visit` with each live record of a segment, in file order, until it says that it has
/// enough. Gives whether it had.
fn for_each(
    directory: &ClosedDirectory,
    state: StateAt<'_>,
    segment: SegmentAt<'_>,
    visit: &mut dyn FnMut(&FooterEntry, RecordBytes<'_>) -> Result<bool>,
) -> Result<bool> {
    let (info, live) = (segment.open(directory)?, segment.live()?);
    let bytes = directory.map(&segment.file_name())?;
    let mut whole = WholeSegment::open(&info, state.fingerprint(), &bytes);
    if let Some(error) = whole.take_damage().into_iter().next() {
        return Err(error);
    }
    let images: Vec<ImageInfo> = whole.images().to_vec();
    for image in &images {
        for entry in whole.footer(image)?.iter().filter(|entry| live.contains(entry.grain)) {
            if visit(entry, whole.record(image, entry)?)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
