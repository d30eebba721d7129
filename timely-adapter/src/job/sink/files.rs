//! A sink of files, one for each worker and checkpoint.
//!
//! A file is `worker-W-K.open` while rows come, `part-N-W.pending` when the worker has sealed it for
//! checkpoint N, and `part-N-W` once that has committed. The name is all that says what a file is, so
//! that any worker of any later run can tell. `pending` files are durable, name included.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind as IoKind, Write};
use std::path::{Path, PathBuf};

use alluvium::{Error, ErrorKind, Result};

use super::{Sink, SinkWork};
use crate::job::worker::WorkerState;

const PENDING: &str = ".pending";
const OPEN: &str = ".open";

/// Bytes that are gathered before they are written.
const BUFFER: usize = 64 << 10;

/// Writes rows into files of a directory. `encode` appends a row's bytes, with a separator of your
/// choice.
///
/// All workers share the directory; several machines must mount it. A worker writes at most one
/// file per checkpoint, or more after aborted checkpoints. [`committed_files`] lists the files
/// whose rows count. The example `exactly_once` of this crate is a whole job.
pub struct FileSink<E> {
    directory: PathBuf,
    worker: usize,
    encode: E,
    bytes: Vec<u8>,
    open: Option<OpenPart>,
    /// Files that this run has made.
    made: u64,
    /// Parts whose checkpoints are not committed.
    sealed: Vec<PartFile>,
}

struct OpenPart {
    path: PathBuf,
    file: BufWriter<File>,
}

/// A file of the rows of one worker before one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartFile {
    number: u64,
    worker: usize,
    /// Of those that were sealed for the same checkpoint.
    nth: usize,
}

/// A file whose rows count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommittedFile {
    /// Number of the job checkpoint that contains its rows.
    pub number: u64,
    /// The worker that wrote it.
    pub worker: usize,
    /// Its path.
    pub path: PathBuf,
}

/// Lists the files of a [`FileSink`]'s directory whose rows count, ordered by checkpoint and
/// worker.
///
/// They never change. If a run ends between a commit and the renaming, the next run renames: then
/// files of the last checkpoint appear late.
///
/// # Errors
/// The directory cannot be read.
pub fn committed_files(directory: impl AsRef<Path>) -> Result<Vec<CommittedFile>> {
    let directory = directory.as_ref();
    let mut parts = Vec::new();
    each_name(directory, |name| {
        parts.extend(PartFile::of(name));
        Ok(())
    })?;
    parts.sort_unstable();
    let file = |part: PartFile| {
        let path = directory.join(part.name());
        CommittedFile { number: part.number, worker: part.worker, path }
    };
    Ok(parts.into_iter().map(file).collect())
}

impl PartFile {
    fn name(&self) -> String {
        let Self { number, worker, nth } = self;
        match nth {
            0 => format!("part-{number:08}-{worker}"),
            _ => format!("part-{number:08}-{worker}-{nth}"),
        }
    }

    fn pending(&self) -> String {
        self.name() + PENDING
    }

    /// The part of a name that [`name`](PartFile::name) gives.
    fn of(name: &str) -> Option<Self> {
        let mut numbers = name.strip_prefix("part-")?.split('-');
        let (number, worker) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let nth = numbers.next().map_or(Some(0), |nth| nth.parse().ok())?;
        let part = Self { number, worker, nth };
        (part.name() == name).then_some(part)
    }
}

impl<E> FileSink<E> {
    /// Makes this worker's sink in `directory`, which is created if it is missing.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(state: &WorkerState, directory: impl AsRef<Path>, encode: E) -> Result<Self> {
        let directory = directory.as_ref();
        let failed = |error| Error::io("create directory", directory.display(), error);
        let absolute = std::path::absolute(directory).map_err(failed)?;
        let is_new = !absolute.exists();
        fs::create_dir_all(&absolute).map_err(failed)?;
        if let Some(parent) = absolute.parent().filter(|_| is_new) {
            sync_directory(parent)?;
        }
        let (bytes, sealed) = (Vec::new(), Vec::new());
        let (directory, worker) = (absolute, state.index());
        Ok(Self { directory, worker, encode, bytes, open: None, made: 0, sealed })
    }

    /// The file that rows go to.
    fn file(&mut self) -> Result<&mut OpenPart> {
        if self.open.is_none() {
            let path = self.directory.join(format!("worker-{}-{}{OPEN}", self.worker, self.made));
            let made = File::create(&path);
            let file = made.map_err(|error| Error::io("create", path.display(), error))?;
            self.made += 1;
            self.open = Some(OpenPart { path, file: BufWriter::with_capacity(BUFFER, file) });
        }
        Ok(self.open.as_mut().expect("it was just made"))
    }
}

impl<D, E: Fn(&D, &mut Vec<u8>) + 'static> Sink<D> for FileSink<E> {
    fn restore(&mut self, committed: u64) -> Result<()> {
        let directory = self.directory.clone();
        each_name(&directory, |name| {
            if name.ends_with(OPEN) && name.starts_with("worker-") {
                return remove(&directory.join(name));
            }
            let pending = name.strip_suffix(PENDING);
            match (PartFile::of(pending.unwrap_or(name)), pending) {
                (Some(part), Some(_)) if part.number <= committed => show(&directory, &part),
                (Some(_), Some(_)) => remove(&directory.join(name)),
                (Some(part), None) if part.number > committed => {
                    let message = format!(
                        "the sink shows rows of checkpoint {}, and the job goes on from {committed}",
                        part.number
                    );
                    let error = Error::new(ErrorKind::Mismatch, message);
                    Err(error.with("file", directory.join(name).display()))
                }
                _ => Ok(()),
            }
        })?;
        sync_directory(&directory)
    }

    fn write(&mut self, row: &D) -> Result<()> {
        self.bytes.clear();
        (self.encode)(row, &mut self.bytes);
        let bytes = std::mem::take(&mut self.bytes);
        let open = self.file()?;
        let written = open.file.write_all(&bytes);
        let failed = |error| Error::io("write", open.path.display(), error);
        written.map_err(failed)?;
        self.bytes = bytes;
        Ok(())
    }

    fn seal(&mut self, number: u64) -> Result<SinkWork> {
        let Some(OpenPart { path, file }) = self.open.take() else {
            return Ok(Box::new(|| Ok(())));
        };
        let flushed = file.into_inner().map_err(|error| error.into_error());
        let file = flushed.map_err(|error| Error::io("write", path.display(), error))?;
        let nth = self.sealed.iter().filter(|part| part.number == number).count();
        let part = PartFile { number, worker: self.worker, nth };
        let (directory, pending) = (self.directory.clone(), self.directory.join(part.pending()));
        self.sealed.push(part);
        Ok(Box::new(move || {
            file.sync_all().map_err(|error| Error::io("sync", path.display(), error))?;
            fs::rename(&path, &pending)
                .map_err(|error| Error::io("rename", path.display(), error))?;
            sync_directory(&directory)
        }))
    }

    fn commit(&mut self, number: u64) -> Result<SinkWork> {
        let directory = self.directory.clone();
        let parts = std::mem::take(&mut self.sealed);
        let (parts, later) = parts.into_iter().partition(|part| part.number <= number);
        self.sealed = later;
        let parts: Vec<PartFile> = parts;
        Ok(Box::new(move || {
            if parts.is_empty() {
                return Ok(());
            }
            parts.iter().try_for_each(|part| show(&directory, part))?;
            sync_directory(&directory)
        }))
    }
}

impl<E> fmt::Debug for FileSink<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, worker, sealed, .. } = self;
        f.debug_struct("FileSink")
            .field("directory", directory)
            .field("worker", worker)
            .field("sealed", sealed)
            .finish_non_exhaustive()
    }
}

impl<E> Drop for FileSink<E> {
    fn drop(&mut self) {
        // If it stays, the next run removes it.
        if let Some(open) = self.open.take() {
            let _ = remove(&open.path);
        }
    }
}

/// Makes a pending part visible, or finds that another worker has.
fn show(directory: &Path, part: &PartFile) -> Result<()> {
    let (pending, shown) = (directory.join(part.pending()), directory.join(part.name()));
    match fs::rename(&pending, &shown) {
        Err(error) if error.kind() == IoKind::NotFound && shown.exists() => Ok(()),
        done => done.map_err(|error| Error::io("rename", pending.display(), error)),
    }
}

/// Removes a file, or finds that another worker has.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == IoKind::NotFound => Ok(()),
        done => done.map_err(|error| Error::io("remove", path.display(), error)),
    }
}

/// Calls `each` with the names of a directory that are text.
fn each_name(directory: &Path, mut each: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let failed = |error| Error::io("read directory", directory.display(), error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if let Some(name) = OsStr::to_str(&name) {
            each(name)?;
        }
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|opened| opened.sync_all());
    synced.map_err(|error| Error::io("sync directory", directory.display(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_none_of_ours() {
        for part in [
            PartFile { number: 1, worker: 0, nth: 0 },
            PartFile { number: 123_456_789_012, worker: 17, nth: 3 },
        ] {
            assert_eq!(PartFile::of(&part.name()), Some(part.clone()));
            assert_eq!(PartFile::of(&part.pending()), None);
        }
        for name in ["part-1-0", "part-00000001-0-0", "part-00000001", "part-00000001-0-1-1", "x"] {
            assert_eq!(PartFile::of(name), None, "{name}");
        }
    }

    #[test]
    fn a_restore_shows_what_is_committed_and_cuts_the_rest_back() {
        let place = tempfile::tempdir().unwrap();
        let sink = || FileSink {
            directory: place.path().to_owned(),
            worker: 2,
            encode: |row: &u8, out: &mut Vec<u8>| out.push(*row),
            bytes: Vec::new(),
            open: None,
            made: 0,
            sealed: Vec::new(),
        };
        let mut run = sink();
        run.restore(0).unwrap();
        let seal = |run: &mut FileSink<_>, row: u8, number| {
            run.write(&row).unwrap();
            Sink::<u8>::seal(run, number).unwrap()().unwrap();
        };
        seal(&mut run, b'a', 1);
        Sink::<u8>::commit(&mut run, 1).unwrap()().unwrap();
        // Given up once, then committed, but the run ends before it is shown.
        seal(&mut run, b'b', 2);
        seal(&mut run, b'c', 2);
        seal(&mut run, b'd', 3);
        run.write(&b'e').unwrap();
        // As a crash leaves it.
        std::mem::forget(run);
        let shown = || {
            let files = committed_files(place.path()).unwrap();
            let read = |file: &CommittedFile| (file.number, fs::read(&file.path).unwrap());
            files.iter().map(read).collect::<Vec<_>>()
        };
        assert_eq!(shown(), [(1, b"a".to_vec())]);
        let restored = [(1, b"a".to_vec()), (2, b"b".to_vec()), (2, b"c".to_vec())];
        for _ in 0..2 {
            Sink::<u8>::restore(&mut sink(), 2).unwrap();
            assert_eq!(shown(), restored);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3, "nothing else is left");
        }
        let error = Sink::<u8>::restore(&mut sink(), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("shows rows of checkpoint 2"), "{error}");
        assert_eq!(shown(), restored);
    }
}
