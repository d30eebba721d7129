//! A directory that no store has open: its lock and its files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alluvium_pagestore::io::{Device, DirectIo, EngineChoice, IoOptions, open_device};
use alluvium_pagestore::{Error, ErrorKind, Result, SegmentStore};

use crate::map_unsafe::Mapped;

/// A closed store's directory. No store can open it while this lives.
pub struct ClosedDirectory {
    path: PathBuf,
    device: Arc<dyn Device>,
    _lock: Box<dyn Send + Sync>,
}

impl ClosedDirectory {
    /// Takes the lock of the directory. Writes nothing else.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if a store has it open, [`ErrorKind::Missing`] if it does not exist,
    /// [`ErrorKind::Input`] if it contains the directories of several stores.
    pub fn open(path: &Path) -> Result<Self> {
        let refused =
            |kind, what: &str| Err(Error::new(kind, what).with("directory", path.display()));
        if !path.is_dir() {
            return refused(ErrorKind::Missing, "there is no such directory");
        }
        if let Some(workers) = directories_of_workers(path)? {
            let what = format!("this directory holds several stores, name one of them: {workers}");
            return refused(ErrorKind::Input, &what);
        }
        let options = IoOptions {
            engine: EngineChoice::Threads,
            direct: DirectIo::Off,
            threads: 1,
            ..IoOptions::default()
        };
        let device = open_device(path, &options)?;
        let lock = device.lock().map_err(|error| match error.kind() {
            ErrorKind::Locked => {
                let what = "the store is open elsewhere; only a closed one can be looked into";
                Error::new(ErrorKind::Locked, what).caused_by(error)
            }
            _ => error,
        })?;
        Ok(Self { path: path.to_owned(), device, _lock: lock })
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a device that reads the files without mapping them.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns a segment store over [`device`](ClosedDirectory::device).
    pub fn segments(&self) -> SegmentStore {
        SegmentStore::new(self.device.clone(), u64::MAX)
    }

    /// Returns the names and lengths of all files except the lock, by name.
    pub fn files(&self) -> Result<Vec<(String, u64)>> {
        let mut names = self.device.list()?;
        names.sort();
        let length = |name: String| {
            let path = self.path.join(&name);
            let length = path.metadata().map_err(|e| Error::io("measure", path.display(), e))?;
            Ok((name, length.len()))
        };
        names.into_iter().map(length).collect()
    }

    /// Maps a file into memory.
    pub fn map(&self, name: &str) -> Result<Mapped> {
        // A manifest that lies must not lead out of the directory.
        if name.contains('/') || name == ".." {
            return Err(
                Error::new(ErrorKind::Corrupt, "this is no name of a file").with("file", name)
            );
        }
        let failed = |e| Error::io("open", name, e);
        let file = File::open(self.path.join(name)).map_err(failed)?;
        Mapped::new(&file).map_err(|e| Error::io("map", name, e))
    }
}

impl std::fmt::Debug for ClosedDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClosedDirectory").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The directories of a process's workers, if this is that of a process.
fn directories_of_workers(path: &Path) -> Result<Option<String>> {
    let failed = |e| Error::io("list directory", path.display(), e);
    let mut workers = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("worker-") && entry.path().is_dir() {
            workers.push(name);
        }
    }
    workers.sort();
    Ok((!workers.is_empty()).then(|| workers.join(", ")))
}
