//! A cache of file descriptors for the whole process.
//!
//! An unused file keeps no descriptor. The next request reopens it by name in the directory's
//! handle, and checks that it is the same file. Storage therefore bounds the number of a store's
//! files, not the process's limit of open files.
//!
//! Invariants:
//! - A request in progress holds its descriptor: nothing closes it meanwhile.
//! - A file with unsynced writes stays open. The kernel reports a failed write-back only to
//!   descriptors that were open at the time, and closing the last could lose the error.
//! - A file whose name was removed or replaced stays open until its last handle is dropped, because
//!   it cannot be reopened.
//! - More than [`limit`] files are open only because of these rules or of requests in progress.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::OpenFile;
use super::directory::{FileId, id_of, open_direct_or_buffered};
use super::stats::Counters;
use crate::{Error, ErrorKind, FileName, Result, rounded};

/// Of the process's limit of open files, stores use one in so many unless an option says otherwise.
const PART_OF_LIMIT: u64 = 4;

/// Least and most open files where no option says otherwise.
const OPEN_MIN: u64 = 16;
const OPEN_MAX: u64 = 16 << 10;

/// Open files that are closed when the process has no descriptor left: one in so many, and one at
/// least.
const GIVEN_UP: usize = 4;

/// Files that may be open at once; 0: not known yet.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// The files that are open.
static OPEN: Mutex<EvictionClock> =
    Mutex::new(EvictionClock { places: Vec::new(), free: Vec::new(), hand: 0 });

/// The files that all stores of the process have open at once, but for those that must stay open.
pub(super) fn limit() -> usize {
    match LIMIT.load(Ordering::Relaxed) {
        0 => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            let most = limit.current.map_or(OPEN_MAX, |most| most / PART_OF_LIMIT);
            most.clamp(OPEN_MIN, OPEN_MAX) as usize
        }
        most => most,
    }
}

/// Lets all stores of the process have so many files open at once, from now on.
pub(super) fn set_limit(most: usize) {
    LIMIT.store(most.max(1), Ordering::Relaxed);
}

/// A file of a directory, open or not.
#[derive(Debug)]
pub(crate) struct Descriptor {
    names: Arc<OpenNames>,
    id: FileId,
    /// How it is opened again.
    flags: OFlags,
    direct: bool,
    now: Mutex<DescriptorState>,
    /// Whether it was used since the clock's hand passed it last.
    used: AtomicBool,
    /// Writes that were accepted and that ended, and how many of them a sync covers.
    written: AtomicU64,
    synced: AtomicU64,
}

#[derive(Debug)]
struct DescriptorState {
    /// Its name, which may have changed since it was opened.
    name: FileName,
    /// The open file, and its place in the ring of those that are open.
    file: Option<(Arc<File>, usize)>,
    /// It has no name any more.
    stays: bool,
}

impl Descriptor {
    /// A file that was just opened by this name.
    pub(super) fn new(
        names: &Arc<OpenNames>,
        name: &str,
        (file, direct): (File, bool),
        flags: OFlags,
    ) -> std::result::Result<Arc<Self>, Errno> {
        let (id, name) = (id_of(&rustix::fs::fstat(&file)?), FileName::from(name));
        let descriptor = Arc::new(Self {
            names: names.clone(),
            id,
            flags: flags.difference(OFlags::CREATE | OFlags::EXCL),
            direct,
            now: Mutex::new(DescriptorState { name: name.clone(), file: None, stays: false }),
            used: AtomicBool::new(true),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        });
        names.files().add(name, Arc::downgrade(&descriptor));
        let place = enter(&descriptor);
        descriptor.now().file = Some((Arc::new(file), place));
        Ok(descriptor)
    }

    fn now(&self) -> MutexGuard<'_, DescriptorState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open file, opened again if need be. Cost: a lock that nobody else wants; to open again,
    /// three system calls.
    ///
    /// # Errors
    /// Those of opening a file; one for a name that another file has now.
    pub(super) fn file(self: &Arc<Self>) -> std::io::Result<Arc<File>> {
        self.used.store(true, Ordering::Relaxed);
        let mut now = self.now();
        self.open(&mut now)
    }

    fn open(self: &Arc<Self>, now: &mut DescriptorState) -> std::io::Result<Arc<File>> {
        if let Some((file, _)) = &now.file {
            return Ok(file.clone());
        }
        self.names.counters.count_directory_operation();
        let name = now.name.to_string();
        let open =
            || open_direct_or_buffered(&self.names.directory, &name, self.flags, self.direct);
        let (file, _) = with_descriptors(open)?;
        if id_of(&rustix::fs::fstat(&file)?) != self.id {
            return Err(std::io::Error::other("another file has its name now"));
        }
        let file = Arc::new(file);
        now.file = Some((file.clone(), enter(self)));
        Ok(file)
    }

    /// A write was accepted, or has ended.
    pub(super) fn note_write(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// For a sync that is accepted: what it covers if it succeeds.
    pub(super) fn writes(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// A sync has covered so many writes.
    pub(super) fn note_sync(&self, writes: u64) {
        self.synced.fetch_max(writes, Ordering::AcqRel);
    }

    fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
    }

    /// Closes the file, if it may be closed. The caller has its place.
    fn give_up(&self) -> bool {
        let mut now = match self.now.try_lock() {
            Ok(now) => now,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let is_idle = now.file.as_ref().is_some_and(|(file, _)| Arc::strong_count(file) == 1);
        let may_close = is_idle && !now.stays && self.is_synced();
        if may_close {
            now.file = None;
        }
        may_close
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let now = self.now.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, place)) = now.file.take() {
            clock().leave(place);
        }
        self.names.files().forget_dropped(&now.name);
    }
}

/// The files of a directory that handles are held of, by their names.
#[derive(Debug)]
pub(super) struct OpenNames {
    directory: Arc<File>,
    counters: Arc<Counters>,
    files: Mutex<NamedDescriptors>,
}

/// Files in the order of their names, of which some have several.
#[derive(Debug, Default)]
struct NamedDescriptors(Vec<(FileName, Weak<Descriptor>)>);

/// Names that memory is taken for at a time.
const MORE_NAMES: usize = 16;
/// Names that it is kept for beyond those that there are.
const SPARE_NAMES_MAX: usize = 4 * MORE_NAMES;

impl NamedDescriptors {
    fn range_of(&self, name: &FileName) -> Range<usize> {
        let from = self.0.partition_point(|(of, _)| of < name);
        let count = self.0[from..].iter().take_while(|(of, _)| of == name).count();
        from..from + count
    }

    /// Cost: O(files), if it is not the newest.
    fn add(&mut self, name: FileName, file: Weak<Descriptor>) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(MORE_NAMES);
        }
        let at = self.range_of(&name).end;
        self.0.insert(at, (name, file));
    }

    fn held(&self, name: &FileName) -> Vec<Arc<Descriptor>> {
        self.0[self.range_of(name)].iter().filter_map(|(_, file)| file.upgrade()).collect()
    }

    fn remove(&mut self, name: &FileName) -> Vec<Weak<Descriptor>> {
        let range = self.range_of(name);
        let removed = self.0.drain(range).map(|(_, file)| file).collect();
        if self.0.capacity() - self.0.len() > SPARE_NAMES_MAX {
            self.0.shrink_to(self.0.len() + MORE_NAMES);
        }
        removed
    }

    fn forget_dropped(&mut self, name: &FileName) {
        for file in self.remove(name).into_iter().filter(|file| file.strong_count() > 0) {
            self.add(name.clone(), file);
        }
    }
}

/// Bytes that an open file takes, with its handle.
pub(super) const OPEN_FILE_BYTES: u64 = (rounded(2 * COUNT + size_of::<OpenFile>())
    + rounded(2 * COUNT + size_of::<Descriptor>())
    + rounded(2 * COUNT + size_of::<File>())
    + size_of::<(FileName, Weak<Descriptor>)>()
    + 2 * size_of::<Option<Weak<Descriptor>>>()) as u64;
/// An [`Arc`] has two counts before what it shares.
const COUNT: usize = size_of::<usize>();

impl OpenNames {
    pub(super) fn new(directory: Arc<File>, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { directory, counters, files: Mutex::default() })
    }

    fn files(&self) -> MutexGuard<'_, NamedDescriptors> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what takes a name from its file, or gives it to another (`source`) if it succeeds.
    /// Files with handles that lose their names are open before that, and stay so.
    pub(super) fn change<T>(
        &self,
        lost: &str,
        source: Option<&str>,
        change: impl FnOnce() -> std::result::Result<T, Errno>,
    ) -> std::io::Result<T> {
        let (mut leaving, mut moving) = (Vec::new(), Vec::new());
        let (lost, source) = (&FileName::from(lost), source.map(FileName::from));
        let source = source.as_ref();
        // What is dropped here looks for its name: after the lock on names is given back.
        let mut files = self.files();
        if source != Some(lost) {
            leaving = files.held(lost);
            moving = source.map_or_else(Vec::new, |source| files.held(source));
        }
        // Nobody opens one of them by its old name meanwhile.
        let mut left: Vec<_> = leaving.iter().map(|file| (file, file.now())).collect();
        let mut moved: Vec<_> = moving.iter().map(|file| file.now()).collect();
        for (file, now) in &mut left {
            file.open(now)?;
        }
        let done = change()?;
        for (_, now) in &mut left {
            now.stays = true;
        }
        for now in &mut moved {
            now.name.clone_from(lost);
        }
        drop((left, moved));
        if source != Some(lost) {
            files.remove(lost);
            for moved in source.map_or_else(Vec::new, |source| files.remove(source)) {
                files.add(lost.clone(), moved);
            }
        }
        drop(files);
        drop((leaving, moving));
        Ok(done)
    }
}

/// Open files in a ring, of which the hand closes those that were not used since it passed them.
struct EvictionClock {
    places: Vec<Option<Weak<Descriptor>>>,
    free: Vec<usize>,
    hand: usize,
}

fn clock() -> MutexGuard<'static, EvictionClock> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an open file its place, and closes another one if there are too many.
fn enter(descriptor: &Arc<Descriptor>) -> usize {
    let mut looked_at = Vec::new();
    let mut clock = clock();
    let too_many = (clock.open() + 1).saturating_sub(limit());
    clock.close(too_many, &mut looked_at);
    let place = clock.enter(Arc::downgrade(descriptor));
    // What is dropped here takes the lock.
    drop(clock);
    place
}

/// Opens a file; if no descriptor is left, once more after some were closed.
pub(super) fn with_descriptors<T>(
    open: impl Fn() -> std::result::Result<T, Errno>,
) -> std::result::Result<T, Errno> {
    let is_worth_it = |e: &Errno| matches!(*e, Errno::MFILE | Errno::NFILE) && close_step();
    match open() {
        Err(e) if is_worth_it(&e) => open(),
        opened => opened,
    }
}

/// Closes some files so that others can be opened; says whether there were any.
fn close_step() -> bool {
    let mut looked_at = Vec::new();
    let mut clock = clock();
    let open = clock.open();
    clock.close((open / GIVEN_UP).max(1), &mut looked_at);
    let were_any = clock.open() < open;
    drop(clock);
    were_any
}

impl EvictionClock {
    fn open(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn enter(&mut self, file: Weak<Descriptor>) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(file);
                place
            }
            None => {
                self.places.push(Some(file));
                self.places.len() - 1
            }
        }
    }

    fn leave(&mut self, place: usize) {
        self.places[place] = None;
        self.free.push(place);
        if self.open() == 0 {
            (self.places, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// Closes so many files, if as many may be closed. Those that were looked at are to be dropped
    /// without the lock. Cost: O(1) for each, unless most of them must stay open.
    fn close(&mut self, count: usize, looked_at: &mut Vec<Arc<Descriptor>>) {
        let (mut left, most) = (count, 2 * self.places.len());
        for _ in 0..most {
            if left == 0 || self.open() == 0 {
                return;
            }
            self.hand = (self.hand + 1) % self.places.len();
            // One that is being dropped is about to leave.
            let file = self.places[self.hand].as_ref().and_then(Weak::upgrade);
            let Some(file) = file else { continue };
            if !file.used.swap(false, Ordering::Relaxed) && file.give_up() {
                self.leave(self.hand);
                left -= 1;
            }
            looked_at.push(file);
        }
    }
}

/// The error for a handle of another device.
pub(super) fn of_another_device() -> std::io::Error {
    std::io::Error::other("the file is of another device")
}

/// Refuses a limit of 0.
pub(super) fn checked(most: Option<usize>) -> Result<()> {
    match most {
        Some(0) => {
            Err(Error::new(ErrorKind::Config, "open_files_max is 0, but at least 1 is needed"))
        }
        most => {
            most.into_iter().for_each(set_limit);
            Ok(())
        }
    }
}
