//! The file of a trace, as the thread writes it.
//!
//! What it keeps true: a file ends with a whole line whatever a write did, and says where accesses are
//! missing. A write that fails loses its chunk and nothing else; the next one is tried all the same.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use alluvium_pagestore::channel::Sender;
use alluvium_pagestore::{Error, Result};

use super::options::{TraceOptions, TraceStats};

/// Takes lines, all or none.
pub(super) trait LineSink: Send {
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;
}

/// A file of whole lines.
struct LineFile {
    file: File,
    at: u64,
}

impl LineSink for LineFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(lines, self.at) {
            Ok(()) => {
                self.at += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                // If this fails too, the next write covers what is there.
                let _ = self.file.set_len(self.at);
                Err(error)
            }
        }
    }
}

/// What the store sees of a trace.
#[derive(Debug, Default)]
pub(super) struct TraceProgress {
    state: String,
    file: PathBuf,
    written: AtomicU64,
    missing: AtomicU64,
    error: Mutex<Option<String>>,
}

impl TraceProgress {
    pub(super) fn stats(&self) -> TraceStats {
        TraceStats {
            state: self.state.clone(),
            file: self.file.clone(),
            written: self.written.load(Ordering::Relaxed),
            missing: self.missing.load(Ordering::Relaxed),
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// The file of a trace, shared with the thread.
#[derive(Clone)]
pub(super) struct TraceFile(Arc<Mutex<TraceWriter>>);

struct TraceWriter {
    sink: Box<dyn LineSink>,
    progress: Arc<TraceProgress>,
    /// Accesses since the last line that are missing.
    missing: u64,
}

impl TraceFile {
    /// Makes the file of a state.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn create(
        options: &TraceOptions,
        state: &str,
    ) -> Result<(Self, Arc<TraceProgress>)> {
        let name: String = state.chars().map(letter).collect();
        let mut number = 0;
        let (path, file) = loop {
            let more = if number == 0 { String::new() } else { format!("-{number}") };
            let path = options.directory.join(format!("{name}{more}.trace"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(Error::io("make a trace", path.display(), error)),
            }
        };
        let lines = LineFile { file, at: 0 };
        Ok(Self::of(Box::new(lines), head(options, state).as_bytes(), state, path))
    }

    /// A file of which `head` is the beginning.
    pub(super) fn of(
        mut sink: Box<dyn LineSink>,
        head: &[u8],
        state: &str,
        file: PathBuf,
    ) -> (Self, Arc<TraceProgress>) {
        let progress = TraceProgress { state: state.into(), file, ..TraceProgress::default() };
        let progress = Arc::new(progress);
        // What it says can be done without.
        let _ = sink.append(head);
        let writing = TraceWriter { sink, progress: progress.clone(), missing: 0 };
        (Self(Arc::new(Mutex::new(writing))), progress)
    }
}

/// A character of a state's name in a file's.
fn letter(letter: char) -> char {
    if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' }
}

fn head(options: &TraceOptions, state: &str) -> String {
    let keys = if options.hash_keys { "hashes of keys" } else { "keys" };
    let state: String = state.chars().filter(|letter| !letter.is_control()).collect();
    format!("# state {state}: {keys}, {} of them\n# unit-us 1000\n", options.sample)
}

impl fmt::Debug for TraceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceFile")
    }
}

/// A chunk for the thread.
pub(super) struct FullChunk {
    pub(super) file: TraceFile,
    pub(super) chunk: Vec<u8>,
    /// Its lines.
    pub(super) count: u64,
    /// Accesses before it for which there was no room.
    pub(super) missing: u64,
    /// Who gets the empty chunk.
    pub(super) back: Option<Sender<Vec<u8>>>,
}

impl FullChunk {
    /// Writes the chunk and gives it back.
    pub(super) fn write(self) {
        let Self { file, mut chunk, count, missing, back } = self;
        file.0.lock().unwrap_or_else(PoisonError::into_inner).write(&chunk, count, missing);
        chunk.clear();
        if let Some(back) = back {
            let _ = back.send(chunk);
        }
    }
}

impl TraceWriter {
    fn write(&mut self, chunk: &[u8], count: u64, missing: u64) {
        self.miss(missing);
        let written = self.say_what_is_missing().and_then(|()| self.sink.append(chunk));
        let error = match written {
            Ok(()) => {
                self.progress.written.fetch_add(count, Ordering::Relaxed);
                None
            }
            Err(error) => {
                self.miss(count);
                Some(Error::io("write a trace", self.progress.file.display(), error).to_string())
            }
        };
        *self.progress.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn miss(&mut self, accesses: u64) {
        self.missing += accesses;
        self.progress.missing.fetch_add(accesses, Ordering::Relaxed);
    }

    fn say_what_is_missing(&mut self) -> io::Result<()> {
        if self.missing > 0 {
            let line = format!("# {} accesses are missing here\n", self.missing);
            self.sink.append(line.as_bytes())?;
            self.missing = 0;
        }
        Ok(())
    }
}
