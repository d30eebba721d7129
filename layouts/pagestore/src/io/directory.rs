//! The directory of a real device: names, lock and direct I/O.
//!
//! The engines differ only in how bytes move; everything else about files is here. Names are looked
//! up in the open directory, whatever happens to its path or to the process's working directory.
//! Opening a directory tries direct I/O once. If the file system refuses it, files are buffered,
//! and the engines drop data they read or synced from the page cache ([`drop_from_cache`]): the
//! cache must not become a hidden memory budget.

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::descriptors::{Descriptor, OpenNames, of_another_device, with_descriptors};
use super::stats::Counters;
use super::{FileHandle, OpenFile};
use crate::process::ProcessId;
use crate::{Error, ErrorKind, Result};

/// Name of the lock file; never listed.
const LOCK_NAME: &str = "LOCK";

/// Whether files bypass the operating system's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectIo {
    /// Bypass it if the file system allows, else use buffered files.
    #[default]
    Auto,
    /// Bypass it. Opening a directory fails if its file system refuses.
    On,
    /// Use buffered files.
    Off,
}

/// Whether files are opened for direct I/O.
#[derive(Clone, Debug, Default)]
enum Direct {
    Yes,
    #[default]
    No,
    /// The file system refuses it, in these words.
    Refused(String),
    /// Nobody knows: it could not be tried, for another reason. The next file is another try.
    Untried(String),
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    /// What it was opened by, for messages.
    path: PathBuf,
    handle: Arc<File>,
    process: ProcessId,
    /// The lock file whose lock is held.
    held: Mutex<Option<FileId>>,
    /// Whether files are opened for direct I/O.
    direct: Mutex<Direct>,
    /// Whether files are opened only to be read.
    read_only: bool,
    pub(super) counters: Arc<Counters>,
    /// Of files that handles are held of.
    names: Arc<OpenNames>,
}

impl Directory {
    /// Opens `path`, creating it and its parents durably where they are missing.
    pub(super) fn open(path: &Path, direct: DirectIo) -> Result<Self> {
        create_durably(path)?;
        let handle = open_directory(path)?;
        let tried = match direct {
            DirectIo::Off => Direct::No,
            DirectIo::Auto | DirectIo::On => match probe_direct(&handle) {
                Ok(()) => Direct::Yes,
                Err(refusal) if direct == DirectIo::Auto => Direct::after(&refusal),
                Err(refusal) if is_refusal(&refusal) => {
                    let message = "the file system refuses direct I/O, which the options ask for";
                    return Err(Error::new(ErrorKind::Unsupported, message)
                        .with("directory", path.display())
                        .caused_by(refusal));
                }
                Err(e) => return Err(Error::io("try direct I/O", path.display(), e)),
            },
        };
        Ok(Self::of(path, handle, tried, false))
    }

    /// Opens `path`, which must exist, only to read what is there: nothing is created in it.
    pub(super) fn open_to_read(path: &Path, direct: DirectIo) -> Result<Self> {
        let direct = if direct == DirectIo::Off { Direct::No } else { Direct::Yes };
        Ok(Self::of(path, open_directory(path)?, direct, true))
    }

    fn of(path: &Path, handle: File, direct: Direct, read_only: bool) -> Self {
        let (path, handle, process) = (path.to_owned(), Arc::new(handle), ProcessId::this());
        let (direct, held) = (Mutex::new(direct), Mutex::default());
        let counters = Arc::<Counters>::default();
        let names = OpenNames::new(handle.clone(), counters.clone());
        Self { path, handle, process, held, direct, read_only, counters, names }
    }

    /// The process that opened it.
    pub(super) fn process(&self) -> ProcessId {
        self.process
    }

    /// Whether files are opened for direct I/O.
    pub(super) fn is_direct(&self) -> bool {
        matches!(*self.direct(), Direct::Yes)
    }

    /// Why direct I/O is not used although it was asked for.
    pub(super) fn direct_refused(&self) -> Option<String> {
        match &*self.direct() {
            Direct::Yes | Direct::No => None,
            Direct::Refused(why) => Some(format!("no direct I/O: {why}")),
            Direct::Untried(why) => {
                Some(format!("no direct I/O yet, it could not be tried: {why}"))
            }
        }
    }

    fn direct(&self) -> MutexGuard<'_, Direct> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next file is opened for direct I/O. Tries it if that was not possible before.
    fn try_direct(&self) -> bool {
        let mut direct = self.direct();
        if matches!(*direct, Direct::Untried(_)) {
            *direct =
                probe_direct(&self.handle).map_or_else(|e| Direct::after(&e), |()| Direct::Yes);
        }
        matches!(*direct, Direct::Yes)
    }

    /// Creates a file that must not exist.
    pub(super) fn create(&self, name: &str) -> Result<FileHandle> {
        self.check()?;
        self.open_with(name, "create", OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a file that must exist.
    pub(super) fn open_file(&self, name: &str) -> Result<FileHandle> {
        let access = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        self.open_with(name, "open", access)
    }

    fn open_with(&self, name: &str, what: &str, flags: OFlags) -> Result<FileHandle> {
        self.counters.count_directory_operation();
        check_name(name)?;
        let tried = self.try_direct();
        let opened = with_descriptors(|| open_direct_or_buffered(&self.handle, name, flags, tried))
            .and_then(|opened| {
                let direct = opened.1;
                Ok((Descriptor::new(&self.names, name, opened, flags)?, direct))
            });
        let (descriptor, direct) = opened.map_err(|e| self.failed(what, name, e.into()))?;
        let (name, descriptor) = (name.into(), Some(descriptor));
        Ok(FileHandle(Arc::new(OpenFile { name, descriptor, number: 0, direct })))
    }

    /// Length of a file of this device.
    pub(super) fn len(&self, file: &FileHandle) -> Result<u64> {
        end_of(file).map_err(|e| Error::io("measure", file.name(), e))
    }

    /// Renames a file, replacing `target`.
    pub(super) fn rename(&self, source: &str, target: &str) -> Result<()> {
        self.counters.count_directory_operation();
        self.check()?;
        check_name(source)?;
        check_name(target)?;
        let rename = || rustix::fs::renameat(&*self.handle, source, &*self.handle, target);
        self.names
            .change(target, Some(source), rename)
            .map_err(|e| self.failed("rename", source, e).with("target", target))
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.counters.count_directory_operation();
        self.check()?;
        check_name(name)?;
        let unlink = || rustix::fs::unlinkat(&*self.handle, name, AtFlags::empty());
        self.names.change(name, None, unlink).map_err(|e| self.failed("remove", name, e))
    }

    /// Makes all changes of names survive a crash.
    pub(super) fn sync(&self) -> Result<()> {
        self.counters.count_directory_operation();
        self.process.check()?;
        self.handle.sync_all().map_err(|e| Error::io("sync directory", self.path.display(), e))
    }

    /// Names of all files but the lock.
    pub(super) fn list(&self) -> Result<Vec<String>> {
        let failed = |e: Errno| Error::io("list directory", self.path.display(), e.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&*self.handle).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && check_name(name).is_ok()
                && self.is_file(name, entry.file_type()).map_err(failed)?
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Whether an entry is a file. Some file systems only say so when they are asked for it.
    fn is_file(&self, name: &str, kind: FileType) -> std::result::Result<bool, Errno> {
        if kind != FileType::Unknown {
            return Ok(kind.is_file());
        }
        match rustix::fs::statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It was removed meanwhile.
            Err(Errno::NOENT) => Ok(false),
            found => found.map(|stat| FileType::from_raw_mode(stat.st_mode).is_file()),
        }
    }

    /// Takes the lock until the guard is dropped. The file stays; only the lock on it counts.
    pub(super) fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        let guard = take_lock(self.handle.clone(), &self.path)?;
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard.id);
        Ok(Box::new(guard))
    }

    /// Whether names may be changed: by the process that opened the directory, and if it took the
    /// lock, with the lock file that it has locked. Cost: two system calls.
    fn check(&self) -> Result<()> {
        self.process.check()?;
        let held = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.map_or(Ok(()), |held| check_lock(&self.handle, &self.path, held))
    }

    /// Keeps writers out until the guard is dropped, and no other readers. Where no store has ever
    /// taken the lock, as in a copy of a directory, there is nothing to hold.
    pub(super) fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        let failed = |e: Errno| self.failed("lock", LOCK_NAME, e.into());
        let file = match open_at(&self.handle, LOCK_NAME, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Box::new(())),
            Err(e) => return Err(failed(e)),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Box::new(LockedFile { file, process: ProcessId::this() })),
            Err(Errno::WOULDBLOCK) => Err(held_by_another(&self.path, file)),
            Err(e) => Err(failed(e)),
        }
    }

    fn failed(&self, what: &str, name: &str, error: std::io::Error) -> Error {
        Error::io(what, self.path.join(name).display(), error)
    }
}

impl Direct {
    /// What is known after a try that failed.
    fn after(failure: &std::io::Error) -> Self {
        match is_refusal(failure) {
            true => Self::Refused(failure.to_string()),
            false => Self::Untried(failure.to_string()),
        }
    }
}

/// Whether this is how a file system refuses direct I/O, and not trouble that may pass.
fn is_refusal(error: &std::io::Error) -> bool {
    let codes = [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS];
    error.kind() == std::io::ErrorKind::Unsupported
        || codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// Which file it is, whatever its name.
pub(super) type FileId = (u64, u64);

#[expect(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub(super) fn id_of(stat: &Stat) -> FileId {
    (stat.st_dev as u64, stat.st_ino as u64)
}

/// Opens a directory.
fn open_directory(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
        .map(File::from)
        .map_err(|e| Error::io("open directory", path.display(), e.into()))
}

/// Opens a file of a directory.
fn open_at(directory: &File, name: &str, flags: OFlags) -> std::result::Result<File, Errno> {
    let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o666));
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, mode)).map(File::from)
}

/// Takes the lock of the directory at `path` until the guard is dropped. Creates the directory if
/// it is missing. For a directory that contains the directories of several stores, whose own locks
/// are separate.
///
/// # Errors
/// [`ErrorKind::Locked`], which names the holder, if another process or another place in this one
/// has the lock.
pub fn lock_directory(path: &Path) -> Result<DirectoryLock> {
    create_durably(path)?;
    take_lock(Arc::new(open_directory(path)?), path)
}

/// Of a lock file that was replaced while its lock was taken, the next is tried; so often.
const LOCK_TRIES: u32 = 8;

fn take_lock(directory: Arc<File>, path: &Path) -> Result<DirectoryLock> {
    let failed = |e: std::io::Error| Error::io("lock", path.join(LOCK_NAME).display(), e);
    let mut gone = None;
    for _ in 0..LOCK_TRIES {
        let mut file = open_at(&directory, LOCK_NAME, OFlags::RDWR | OFlags::CREATE)
            .map_err(|e| failed(e.into()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(held_by_another(path, file)),
            Err(e) => return Err(failed(e.into())),
        }
        let id = id_of(&rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?);
        if let Err(error) = check_lock(&directory, path, id) {
            gone = Some(error);
            continue;
        }
        file.set_len(0).map_err(failed)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        let (path, held) = (path.to_owned(), LockedFile { file, process: ProcessId::this() });
        return Ok(DirectoryLock { directory, path, id, _held: held });
    }
    Err(gone.unwrap_or_else(|| failed(Errno::AGAIN.into())))
}

/// Whether the file [`LOCK_NAME`] of a directory is the one whose lock is held.
fn check_lock(directory: &File, path: &Path, held: FileId) -> Result<()> {
    let gone = |what: &str| {
        let message = format!(
            "the lock file was {what} since it was locked, so that another process may have the \
             directory: end one of the two and open the store again"
        );
        Err(Error::new(ErrorKind::Locked, message)
            .with("file", LOCK_NAME)
            .with("directory", path.display()))
    };
    match rustix::fs::statat(directory, LOCK_NAME, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if id_of(&found) == held => Ok(()),
        Ok(_) => gone("replaced"),
        Err(Errno::NOENT) => gone("removed"),
        Err(e) => Err(Error::io("look at", path.join(LOCK_NAME).display(), e.into())),
    }
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

/// The lock of a directory, held until this is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    directory: Arc<File>,
    path: PathBuf,
    id: FileId,
    _held: LockedFile,
}

impl DirectoryLock {
    /// Checks that the directory's `LOCK` file is still the one that was locked.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if the file was removed or replaced: another process may have the
    /// directory too.
    pub fn check(&self) -> Result<()> {
        check_lock(&self.directory, &self.path, self.id)
    }
}

/// A locked file.
#[derive(Debug)]
struct LockedFile {
    file: File,
    process: ProcessId,
}

impl Drop for LockedFile {
    /// Closing is not enough: a child process that another thread is just starting has a copy of
    /// the descriptor until it runs its own program, and the copy would keep the lock. A forked
    /// child only closes its copy: the lock is its parent's.
    fn drop(&mut self) {
        if self.process.is_this() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Refuses names that are not plain file names, and those the device keeps for itself.
pub(crate) fn check_name(name: &str) -> Result<()> {
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

/// The operating system's file behind `handle`, open as long as the result is held; an error for a
/// handle of a simulated device.
pub(super) fn system_file(handle: &FileHandle) -> std::io::Result<Arc<File>> {
    handle.0.descriptor.as_ref().ok_or_else(of_another_device)?.file()
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

/// Creates `path` and its missing parents, and syncs what names them; also of a directory that was
/// there, as nobody knows whether its name is durable.
fn create_durably(path: &Path) -> Result<()> {
    if path.is_dir() {
        return sync_parent(path, true);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        create_durably(parent)?;
    }
    match std::fs::create_dir(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists || !path.is_dir() => {
            return Err(Error::io("create directory", path.display(), e));
        }
        _ => {}
    }
    sync_parent(path, false).inspect_err(|_| {
        // A later sync does not cover the name: whoever tries again makes it again.
        let _ = std::fs::remove_dir(path);
    })
}

/// Makes the name of a directory durable. Of one that `existed`, the parent may be closed to us.
fn sync_parent(path: &Path, existed: bool) -> Result<()> {
    let failed = |e: std::io::Error| Error::io("sync the parent of", path.display(), e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match open_at(&open_directory(path)?, "..", flags) {
        Err(Errno::ACCESS | Errno::PERM) if existed => Ok(()),
        Err(e) => Err(failed(e.into())),
        Ok(parent) => parent.sync_all().map_err(failed),
    }
}

/// Opens a file for direct I/O if `direct` and the file allows it, else buffered and without
/// read-ahead, since what is read will be dropped from the cache.
#[cfg(target_os = "linux")]
pub(super) fn open_direct_or_buffered(
    directory: &File,
    name: &str,
    flags: OFlags,
    direct: bool,
) -> std::result::Result<(File, bool), Errno> {
    let mut flags = flags;
    if direct {
        match open_at(directory, name, flags | OFlags::DIRECT) {
            // Some file systems create the file and then refuse to open it.
            Err(Errno::INVAL) => flags -= OFlags::EXCL,
            opened => return opened.map(|file| (file, true)),
        }
    }
    let file = open_at(directory, name, flags)?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    Ok((file, false))
}

/// Elsewhere all files are buffered.
#[cfg(not(target_os = "linux"))]
pub(super) fn open_direct_or_buffered(
    directory: &File,
    name: &str,
    flags: OFlags,
    _direct: bool,
) -> std::result::Result<(File, bool), Errno> {
    open_at(directory, name, flags).map(|file| (file, false))
}

/// Moves one block through a file that is gone again afterwards.
#[cfg(target_os = "linux")]
fn probe_direct(directory: &File) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let name = format!(".probe-{}-{}", std::process::id(), PROBES.fetch_add(1, Relaxed));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT;
    let opened = open_at(directory, &name, flags);
    // Some file systems create the file and then refuse to open it.
    let _ = rustix::fs::unlinkat(directory, &name, AtFlags::empty());
    let file = opened?;
    let mut block = super::IoBuffer::zeroed(super::BLOCK_BYTES);
    file.write_all_at(block.as_slice(), 0)?;
    file.read_exact_at(block.as_mut_slice(), 0)
}

/// Direct I/O is Linux only.
#[cfg(not(target_os = "linux"))]
fn probe_direct(_: &File) -> std::io::Result<()> {
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
        let guard = lock_directory(&directory.path).unwrap();
        let _copy = guard._held.file.try_clone().unwrap();
        assert!(directory.lock().is_err());
        drop(guard);
        directory.lock().unwrap();
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
