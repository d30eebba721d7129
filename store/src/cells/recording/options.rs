//! What is recorded, and what became of it.

use std::fmt;
use std::path::PathBuf;

use alluvium_pagestore::{ByteSize, Error, ErrorKind, KIB, Result};
use serde::{Deserialize, Serialize};

use super::recorder::CHUNK_BYTES;

/// Default of [`TraceOptions::buffer`].
pub const TRACE_BUFFER_BYTES: u64 = 256 * KIB;

/// Default of [`TraceOptions::wait_ms`].
pub const TRACE_WAIT_MS: u64 = 10;

/// Records the calls on maps, counters, values, lists and time-ordered maps, and on the parts of
/// windows: a file per state, one access a line (`t OP key bytes`). `alluvium-gadget` replays and
/// characterizes such files, and advises a layout; see `docs/src/traces.md`.
///
/// `t` is in milliseconds since the store was opened. `bytes` are those that a value takes in
/// memory. An update is a `get` and a `put`, an append is a `merge`. Calls that fail are not
/// recorded. `docs/src/traces.md` has what a recorded call costs. The lines of a batch of updates
/// have each value as the whole batch left it; other batches are done item by item.
///
/// ```
/// use alluvium::{MIB, Store};
/// use alluvium::config::TraceOptions;
///
/// let place = tempfile::tempdir().unwrap();
/// let options = TraceOptions::to(place.path());
/// let store = Store::in_memory().memory(16 * MIB).trace(options).open()?;
/// let mut counts = store.map::<u64, u64>("counts").open()?;
/// counts.update(&7, || 0, |count| *count += 1)?;
/// drop((counts, store));
/// let trace = std::fs::read_to_string(place.path().join("counts.trace")).unwrap();
/// assert!(trace.ends_with(" put 7 8\n"), "{trace}");
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct TraceOptions {
    /// Directory of the files, which is created. A file has the state's name and `.trace`; if there
    /// is one, a number too.
    pub directory: PathBuf,
    /// States to record, each with its parts (`name/...`). Default: all.
    pub states: Vec<String>,
    /// Writes hashes instead of keys. Keys of types that have no text are always hashed. Default:
    /// no.
    pub hash_keys: bool,
    /// Fraction of keys to record, chosen by their hashes: all calls on a chosen key are there.
    /// Default: 1.
    pub sample: f64,
    /// Memory for each state's lines until they are written, booked when the state is opened.
    /// Default: [`TRACE_BUFFER_BYTES`].
    pub buffer: ByteSize,
    /// Milliseconds that a call waits when the buffer is full. Then calls are counted instead of
    /// recorded until there is room. Default: [`TRACE_WAIT_MS`].
    pub wait_ms: u64,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            directory: PathBuf::new(),
            states: Vec::new(),
            hash_keys: false,
            sample: 1.0,
            buffer: ByteSize(TRACE_BUFFER_BYTES),
            wait_ms: TRACE_WAIT_MS,
        }
    }
}

impl TraceOptions {
    /// Records all calls in files of this directory.
    pub fn to(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let bad = |message: String| Err(Error::new(ErrorKind::Config, message));
        if self.directory.as_os_str().is_empty() {
            return bad("trace has no directory".into());
        }
        if !(self.sample > 0.0 && self.sample <= 1.0) {
            return bad(format!("trace samples {}; it must be above 0 and at most 1", self.sample));
        }
        let least = ByteSize(2 * CHUNK_BYTES as u64);
        if self.buffer.0 < least.0 {
            return bad(format!("trace has a buffer of {}; the least is {least}", self.buffer));
        }
        Ok(())
    }

    /// Whether a state of this name is recorded.
    pub(super) fn takes(&self, state: &str) -> bool {
        let is_of = |name: &String| {
            state
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // What was told of windows, and events that came late, are no calls of the stream.
        let is_kept = state.ends_with("/told") || state.ends_with("/late");
        !is_kept && (self.states.is_empty() || self.states.iter().any(is_of))
    }
}

/// What became of the [trace](TraceOptions) of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStats {
    /// The state.
    pub state: String,
    /// The file.
    pub file: PathBuf,
    /// Accesses in the file.
    pub written: u64,
    /// Accesses that the file lacks: there was no room for them, or they could not be written.
    pub missing: u64,
    /// Why the last chunk was not written. A later one that is written clears it.
    pub error: Option<String>,
}

impl fmt::Display for TraceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, file, written, missing, error } = self;
        write!(
            f,
            "trace of {state}: {written} accesses, {missing} missing, in {}",
            file.display()
        )?;
        error.iter().try_for_each(|error| write!(f, "; {error}"))
    }
}
