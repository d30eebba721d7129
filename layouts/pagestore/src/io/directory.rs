//! The directory of a real device: names, lock and direct I/O.
//!
//! The engines differ in how bytes move; everything else about files is the same and lives here.
//! Direct I/O is tried once when the directory is opened. Where the file system refuses it, files
//! are buffered, and the engines drop what they read or synced from the page cache
//! ([`drop_from_cache`]), so that the cache is no hidden memory budget.

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::stats::Counters;
use super::{FileHandle, OpenFile};
use crate::{Error, ErrorKind, Result};

/// Name of the lock file; never listed.
const LOCK_NAME: &str = "LOCK";

/// Whether files bypass the operating system's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectIo {
    /// Bypass it where the file system allows, else use buffered files.
    #[default]
    Auto,
    /// Bypass it, and fail to open a directory whose file system refuses.
    On,
    /// Use buffered files.
    Off,
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    handle: File,
    /// Whether files are opened for direct I/O.
    direct: bool,
    /// Whether files are opened only to be read.
    read_only: bool,
    /// Why direct I/O is not used although it was asked for.
    pub(super) direct_refused: Option<String>,
    pub(super) counters: Arc<Counters>,
}

impl Directory {
    /// Opens `path`, creating it and its parents durably where they are missing.
    pub(super) fn open(path: &Path, direct: DirectIo) -> Result<Self> {
        create_durably(path)?;
        let handle =
            File::open(path).map_err(|e| Error::io("open directory", path.display(), e))?;
        let (direct, direct_refused) = match (direct, probe_direct(path)) {
            (DirectIo::Off, _) => (false, None),
            (_, Ok(())) => (true, None),
            (DirectIo::Auto, Err(refusal)) => (false, Some(format!("no direct I/O: {refusal}"))),
            (DirectIo::On, Err(refusal)) => {
                let message = "the file system refuses direct I/O, which the options ask for";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with("directory", path.display())
                    .caused_by(refusal));
            }
        };
        let counters = Arc::new(Counters::default());
        let (path, read_only) = (path.to_owned(), false);
        Ok(Self { path, handle, direct, read_only, direct_refused, counters })
    }

    /// Opens `path`, which must exist, only to read what is there: nothing is created in it.
    pub(super) fn open_to_read(path: &Path, direct: DirectIo) -> Result<Self> {
        let handle =
            File::open(path).map_err(|e| Error::io("open directory", path.display(), e))?;
        let (path, direct, read_only) = (path.to_owned(), direct != DirectIo::Off, true);
        let counters = Arc::new(Counters::default());
        Ok(Self { path, handle, direct, read_only, direct_refused: None, counters })
    }

    /// Whether files are opened for direct I/O.
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Creates a file that must not exist.
    pub(super) fn create(&self, name: &str) -> Result<FileHandle> {
        self.open_with(name, "create", OpenOptions::new().read(true).write(true).create_new(true))
    }

    /// Opens a file that must exist.
    pub(super) fn open_file(&self, name: &str) -> Result<FileHandle> {
        self.open_with(name, "open", OpenOptions::new().read(true).write(!self.read_only))
    }

    fn open_with(&self, name: &str, what: &str, options: &mut OpenOptions) -> Result<FileHandle> {
        self.counters.count_directory_operation();
        let path = self.path_of(name)?;
        let (file, direct) = open_direct_or_buffered(&path, options, self.direct)
            .map_err(|e| Error::io(what, path.display(), e))?;
        Ok(FileHandle(Arc::new(OpenFile {
            name: name.into(),
            file: Some(file),
            number: 0,
            direct,
        })))
    }

    /// Length of a file of this device.
    pub(super) fn len(&self, file: &FileHandle) -> Result<u64> {
        end_of(file).map_err(|e| Error::io("measure", file.name(), e))
    }

    /// Renames a file, replacing `target`.
    pub(super) fn rename(&self, source: &str, target: &str) -> Result<()> {
        self.counters.count_directory_operation();
        let (source, target) = (self.path_of(source)?, self.path_of(target)?);
        std::fs::rename(&source, &target)
            .map_err(|e| Error::io("rename", source.display(), e).with("target", target.display()))
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.counters.count_directory_operation();
        let path = self.path_of(name)?;
        std::fs::remove_file(&path).map_err(|e| Error::io("remove", path.display(), e))
    }

    /// Makes all changes of names survive a crash.
    pub(super) fn sync(&self) -> Result<()> {
        self.counters.count_directory_operation();
        self.handle.sync_all().map_err(|e| Error::io("sync directory", self.path.display(), e))
    }

    /// Names of all files but the lock.
    pub(super) fn list(&self) -> Result<Vec<String>> {
        let failed = |e| Error::io("list directory", self.path.display(), e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().into_string()
                && entry.file_type().map_err(failed)?.is_file()
                && check_name(&name).is_ok()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Takes the lock until the guard is dropped. The file stays; only the lock on it counts.
    pub(super) fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        Ok(Box::new(take_lock(&self.path)?))
    }

    /// Keeps writers out until the guard is dropped, and no other readers. Where no store has ever
    /// taken the lock, as in a copy of a directory, there is nothing to hold.
    pub(super) fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        let path = self.path.join(LOCK_NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Box::new(())),
            Err(e) => return Err(Error::io("lock", path.display(), e)),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Box::new(LockGuard(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(held_by_another(&self.path, file)),
            Err(e) => Err(Error::io("lock", path.display(), e.into())),
        }
    }

    fn path_of(&self, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        Ok(self.path.join(name))
    }
}

/// Takes the lock of the directory at `path` until the guard is dropped, creating the directory
/// where it is missing. For a directory that holds those of several stores: it is not theirs.
///
/// # Errors
/// [`ErrorKind::Locked`], naming the holder, if another process or another place in this one has
/// the lock.
pub fn lock_directory(path: &Path) -> Result<Box<dyn Send + Sync>> {
    create_durably(path)?;
    Ok(Box::new(take_lock(path)?))
}

fn take_lock(directory: &Path) -> Result<LockGuard> {
    let path = directory.join(LOCK_NAME);
    let failed = |e: std::io::Error| Error::io("lock", path.display(), e);
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(held_by_another(directory, file)),
        Err(e) => return Err(failed(e.into())),
    }
    file.set_len(0).map_err(failed)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
    Ok(LockGuard(file))
}

/// The error for a lock that is taken, with the holder's words.
fn held_by_another(directory: &Path, mut lock: File) -> Error {
    let mut holder = String::new();
    let _ = lock.read_to_string(&mut holder);
    let holder = match holder.trim() {
        "" => "another process".to_owned(),
        pid if pid == std::process::id().to_string() => "this process".to_owned(),
        pid => format!("process {pid}"),
    };
    Error::new(ErrorKind::Locked, format!("the directory is in use by {holder}"))
        .with("directory", directory.display())
}

/// A held lock.
#[derive(Debug)]
struct LockGuard(File);

impl Drop for LockGuard {
    /// Closing is not enough: a child process that another thread is just starting has a copy of
    /// the descriptor until it runs its own program, and the copy would keep the lock.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Refuses names that are not plain file names, and those the device keeps for itself.
pub(super) fn check_name(name: &str) -> Result<()> {
    let reserved = name == LOCK_NAME || name.starts_with('.');
    if name.is_empty() || reserved || name.contains(['/', '\\', '\0']) {
        let message = format!("{name:?} is not a name the device can give a file");
        return Err(Error::new(ErrorKind::Input, message));
    }
    Ok(())
}

/// Current length of the file behind `handle`.
pub(super) fn end_of(handle: &FileHandle) -> std::io::Result<u64> {
    system_file(handle)?.metadata().map(|m| m.len())
}

/// The operating system's file behind `handle`; an error for a handle of a simulated device.
pub(super) fn system_file(handle: &FileHandle) -> std::io::Result<&File> {
    handle.0.file.as_ref().ok_or_else(|| std::io::Error::other("the file is of another device"))
}

/// Forgets the cached pages of a range (`bytes` 0: to the end); a hint, so failure is no error.
/// Pages that are not yet on storage stay.
#[cfg(target_os = "linux")]
pub(super) fn drop_from_cache(file: &File, offset: u64, bytes: u64) {
    let bytes = std::num::NonZeroU64::new(bytes);
    let _ = rustix::fs::fadvise(file, offset, bytes, rustix::fs::Advice::DontNeed);
}

/// Without `fadvise` the cache is the operating system's to manage.
#[cfg(not(target_os = "linux"))]
pub(super) fn drop_from_cache(_: &File, _: u64, _: u64) {}

/// Creates `path` and its missing parents, and syncs what names them.
fn create_durably(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_durably(parent)?;
    match std::fs::create_dir(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists || !path.is_dir() => {
            return Err(Error::io("create directory", path.display(), e));
        }
        _ => {}
    }
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(|e| Error::io("sync directory", parent.display(), e))
}

/// Opens `path` for direct I/O if `direct` and the file allows it, else buffered and without
/// read-ahead, since what is read will be dropped from the cache.
#[cfg(target_os = "linux")]
fn open_direct_or_buffered(
    path: &Path,
    options: &mut OpenOptions,
    direct: bool,
) -> std::io::Result<(File, bool)> {
    use std::os::unix::fs::OpenOptionsExt;
    if direct {
        match options.clone().custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path) {
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {}
            opened => return opened.map(|file| (file, true)),
        }
    }
    let file = options.open(path)?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    Ok((file, false))
}

/// Elsewhere all files are buffered.
#[cfg(not(target_os = "linux"))]
fn open_direct_or_buffered(
    path: &Path,
    options: &mut OpenOptions,
    _direct: bool,
) -> std::io::Result<(File, bool)> {
    options.open(path).map(|file| (file, false))
}

/// Moves one block through a file that is gone again afterwards.
#[cfg(target_os = "linux")]
fn probe_direct(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let name = format!(".probe-{}-{}", std::process::id(), PROBES.fetch_add(1, Relaxed));
    let path = directory.join(name);
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(&path);
    // Some file systems create the file and then refuse to open it.
    let _ = std::fs::remove_file(&path);
    let file = opened?;
    let mut block = super::IoBuffer::zeroed(super::BLOCK_BYTES);
    file.write_all_at(block.as_slice(), 0)?;
    file.read_exact_at(block.as_mut_slice(), 0)
}

/// Direct I/O is Linux only.
#[cfg(not(target_os = "linux"))]
fn probe_direct(_: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "LOCK", ".hidden", "a\0b"] {
            assert_eq!(check_name(name).unwrap_err().kind(), ErrorKind::Input, "{name:?}");
        }
        for name in ["MANIFEST", "seg-1", "a.tmp"] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn missing_parents_are_created_and_a_file_in_the_way_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b/c");
        Directory::open(&deep, DirectIo::Auto).unwrap();
        assert!(deep.is_dir());
        std::fs::write(place.path().join("file"), b"x").unwrap();
        assert!(Directory::open(&place.path().join("file"), DirectIo::Auto).is_err());
    }

    /// Reopening a store failed now and then while the program was starting other processes.
    #[test]
    fn a_copy_of_the_lock_s_descriptor_does_not_keep_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::open(place.path(), DirectIo::Auto).unwrap();
        let guard = take_lock(&directory.path).unwrap();
        let _copy = guard.0.try_clone().unwrap();
        assert!(take_lock(&directory.path).is_err());
        drop(guard);
        take_lock(&directory.path).unwrap();
    }

    #[test]
    fn readers_keep_writers_out_and_not_each_other() {
        let place = tempfile::tempdir().unwrap();
        let reader = || Directory::open_to_read(place.path(), DirectIo::Auto).unwrap();
        drop(reader().lock_to_read().unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "nothing is created");
        let directory = Directory::open(place.path(), DirectIo::Auto).unwrap();
        let writer = directory.lock().unwrap();
        let error = reader().lock_to_read().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        drop(writer);
        let readers = [reader().lock_to_read().unwrap(), reader().lock_to_read().unwrap()];
        assert_eq!(directory.lock().map(drop).unwrap_err().kind(), ErrorKind::Locked);
        drop(readers);
        directory.lock().unwrap();
        let missing = place.path().join("missing");
        let error = Directory::open_to_read(&missing, DirectIo::Auto).map(drop).unwrap_err();
        assert_eq!((error.kind(), missing.exists()), (ErrorKind::Missing, false));
    }

    #[test]
    fn probing_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        Directory::open(place.path(), DirectIo::Auto).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
