//! The directories of workers' stores: what they are called, where to look for them, and how those
//! go that nobody needs any more.
//!
//! Each time the key groups are divided anew, because there are other workers or a process has other
//! ones, the stores are made anew, beside those before them: `worker-2` becomes `worker-2.1`. What
//! the job's record names is not touched by that; what it does not name is left over. It leaves to
//! others when the record names something else.
//!
//! A name is given twice if a run has committed nothing under it. What that run has left to a helper when it
//! ended, because storage did nothing, is done by name, whoever has made the directory: so none is removed
//! whose lock is held.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use alluvium::checkpoints::checkpoint_of_file;
use alluvium::io::{DirectoryLock, lock_directory};
use alluvium::{Error, ErrorKind, Result};

/// Files removed in one step, or directories looked into.
const STEP: usize = 8;

/// The name of worker `index`'s directory inside its process's, once the key groups were divided
/// anew `division` times.
pub(crate) fn name_of(index: usize, division: u64) -> String {
    match division {
        0 => format!("worker-{index}"),
        _ => format!("worker-{index}.{division}"),
    }
}

/// Whether [`name_of`] gives this name.
fn is_name(name: &str) -> bool {
    let Some(numbers) = name.strip_prefix("worker-") else { return false };
    let (index, division) = numbers.split_once('.').unwrap_or((numbers, "0"));
    let numbers = (index.parse(), division.parse());
    matches!(numbers, (Ok(index), Ok(division)) if name_of(index, division) == name)
}

/// The way from one directory to another, both absolute and without links; empty if they are the
/// same. A tree of directories that is moved as a whole keeps the ways inside of it.
pub(crate) fn way(from: &Path, to: &Path) -> Option<String> {
    let (mut from, mut to) = (from.components().peekable(), to.components().peekable());
    while from.peek().is_some() && from.peek() == to.peek() {
        from.next();
        to.next();
    }
    let up = from.map(|_| Component::ParentDir);
    up.chain(to).collect::<PathBuf>().to_str().map(str::to_owned)
}

/// Where a [`way`] leads to.
pub(crate) fn along(from: &Path, way: &str) -> PathBuf {
    let mut path = from.to_owned();
    for part in Path::new(way).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

/// The directories of workers in that of a process, but for those to `keep`.
pub(crate) fn leftovers(process: &Path, keep: &BTreeSet<String>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(process).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let is_left = name.to_str().is_some_and(|name| is_name(name) && !keep.contains(name));
        is_left && entry.file_type().is_ok_and(|kind| kind.is_dir())
    });
    ours.map(|entry| entry.path()).collect()
}

/// Checkpoints of the workers' stores in a process's directory that have a file, as words; none if there are none.
/// What the job's record would say of them is not known.
pub(crate) fn checkpoints_there(process: &Path) -> Option<String> {
    let mut stores = leftovers(process, &BTreeSet::new());
    stores.sort();
    let told: Vec<String> = stores.iter().filter_map(|store| checkpoints_of(store)).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// The name of a store's directory, and the numbers of its checkpoints.
fn checkpoints_of(store: &Path) -> Option<String> {
    let entries = std::fs::read_dir(store).ok()?.flatten();
    let number = |name: std::ffi::OsString| checkpoint_of_file(name.to_str()?);
    let mut numbers: Vec<u64> = entries.filter_map(|entry| number(entry.file_name())).collect();
    numbers.sort_unstable();
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let name = store.file_name()?.to_str()?;
    (!numbers.is_empty()).then(|| format!("{name} has {}", numbers.join(", ")))
}

/// The directories that the workers `workers` have after that many divisions.
pub(crate) fn names_of(workers: Range<usize>, division: u64) -> BTreeSet<String> {
    workers.map(|index| name_of(index, division)).collect()
}

/// Removes a directory of stores that a run before this one has not come to commit.
///
/// # Errors
/// [`ErrorKind::Locked`] if somebody still works there; the operating system's. A new store cannot be made
/// there.
pub(crate) fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    let _lock = lock_directory(directory)?;
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", directory.display(), error))
        }
        _ => Ok(()),
    }
}

/// Directories on their way out, a few files at a time. What cannot be removed stays, and is tried
/// again when a run begins.
#[derive(Default)]
pub(crate) struct Removal {
    directories: Vec<PathBuf>,
    /// Of the directory `emptied`.
    files: Vec<PathBuf>,
    emptied: Option<PathBuf>,
    /// Of the directories, or of processes that have no part in the run.
    locks: Vec<DirectoryLock>,
}

impl Removal {
    pub(crate) fn of(directories: Vec<PathBuf>) -> Self {
        Self { directories, ..Self::default() }
    }

    /// Of directories that nobody works in any more.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if somebody does: it may come to commit what the job's record does not name yet.
    pub(crate) fn of_idle(directories: Vec<PathBuf>) -> Result<Self> {
        let mut locks = Vec::new();
        for directory in &directories {
            match lock_directory(directory) {
                Err(error) if error.kind() == ErrorKind::Locked => return Err(error),
                lock => locks.extend(lock),
            }
        }
        Ok(Self { directories, locks, ..Self::default() })
    }

    /// Adds a directory of a process that has no part in the run, unless that process has one in
    /// another.
    pub(crate) fn add_elsewhere(&mut self, process: &Path, directory: &str) {
        let path = process.join(directory);
        if is_name(directory) && path.is_dir() {
            // Two directories of one process: it is locked already.
            let is_locked = self.directories.iter().any(|other| other.parent() == Some(process));
            let lock = (!is_locked).then(|| lock_directory(process));
            if let Some(Ok(lock)) = lock {
                self.locks.push(lock);
                self.directories.push(path);
            } else if is_locked {
                self.directories.push(path);
            }
        }
    }

    /// Removes some files, and says whether all is done. Cost: a few calls of the operating system.
    pub(crate) fn step(&mut self) -> bool {
        for _ in 0..STEP {
            if let Some(file) = self.files.pop() {
                let _ = std::fs::remove_file(file);
                continue;
            }
            if let Some(empty) = self.emptied.take() {
                let _ = std::fs::remove_dir(empty);
            }
            let Some(next) = self.directories.pop() else {
                self.locks.clear();
                return true;
            };
            let files = std::fs::read_dir(&next).into_iter().flatten().flatten();
            self.files = files.map(|file| file.path()).collect();
            self.emptied = Some(next);
        }
        false
    }

    pub(crate) fn finish(mut self) {
        while !self.step() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_lead_where_they_were_taken_from() {
        for (from, to, expected) in [
            ("/a/b", "/a/b", ""),
            ("/a/b", "/a/c", "../c"),
            ("/a/b", "/a/b/c/d", "c/d"),
            ("/a/b/c", "/d", "../../../d"),
            ("/", "/d", "d"),
        ] {
            let way = way(Path::new(from), Path::new(to)).unwrap();
            assert_eq!(way, expected);
            assert_eq!(along(Path::new(from), &way), Path::new(to));
        }
        assert_eq!(along(Path::new("/x/y/b"), "../c"), Path::new("/x/y/c"), "moved as a whole");
    }

    #[test]
    fn only_directories_of_workers_go_and_only_those_that_are_not_kept() {
        let place = tempfile::tempdir().unwrap();
        let names = [
            "worker-0",
            "worker-1",
            "worker-1.1",
            "worker-12.30",
            "worker-",
            "worker-01",
            "worker-1.0",
            "worker-1.x",
            "worker-2.1.1",
            "workers",
            "states",
        ];
        for name in names {
            std::fs::create_dir(place.path().join(name)).unwrap();
            for file in 0..2 * STEP {
                std::fs::write(place.path().join(name).join(file.to_string()), b"x").unwrap();
            }
        }
        std::fs::write(place.path().join("worker-7"), b"a file").unwrap();
        let mut removal = Removal::of(leftovers(place.path(), &names_of(1..2, 0)));
        let mut steps = 1;
        while !removal.step() {
            steps += 1;
        }
        assert!(steps > 3, "it goes in steps");
        let left = names.map(|name| place.path().join(name).exists());
        let expected = names.map(|n| !["worker-0", "worker-1.1", "worker-12.30"].contains(&n));
        assert_eq!(left, expected);
        assert!(place.path().join("worker-7").exists());
    }

    #[test]
    fn directories_of_a_process_that_runs_stay() {
        let place = tempfile::tempdir().unwrap();
        for name in ["worker-1", "worker-2"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        let try_both = || {
            let mut removal = Removal::default();
            removal.add_elsewhere(place.path(), "worker-1");
            removal.add_elsewhere(place.path(), "worker-2");
            removal.add_elsewhere(place.path(), "worker-3");
            removal.add_elsewhere(place.path(), "../else");
            removal.finish();
            ["worker-1", "worker-2"].map(|name| place.path().join(name).exists())
        };
        let lock = lock_directory(place.path()).unwrap();
        assert_eq!(try_both(), [true, true]);
        drop(lock);
        assert_eq!(try_both(), [false, false]);
        assert!(!place.path().join("worker-3").exists());
    }
}
