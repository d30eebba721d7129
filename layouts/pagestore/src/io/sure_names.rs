//! A device whose names survive a failed sync of the directory.
//!
//! After a failed sync of the directory, the names of new files are *doubtful*: a later successful
//! sync does not cover them. Before the next sync, this device renames each such file aside and
//! back. Names given by a rename are excluded, since another file may have had the name before: the
//! caller repeats such a rename with a new file, as [`Framed`](crate::Framed) does.
//!
//! Invariants: a successful sync of the directory covers the names of all files created before it.
//! Only a crash ever exposes the name aside. No listed checkpoint names a file with a doubtful
//! name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::{Device, FileHandle, IoStats, Request};
use crate::{ErrorKind, FileName, Result};

/// The temporary name of a file that is renamed aside. Opening a store removes a file that a crash
/// left under it.
pub const ASIDE: &str = "aside.new";

/// A device that renames files with doubtful names.
#[derive(Debug)]
pub struct SureNames {
    device: Arc<dyn Device>,
    names: Mutex<UnsyncedNames>,
    /// Held to write while a sync begins or names are made again, to read while a name changes.
    changing: RwLock<()>,
    /// One sync at a time.
    syncing: Mutex<()>,
}

#[derive(Debug, Default)]
struct UnsyncedNames {
    /// Files created that no good sync covers yet, and how many syncs had begun before.
    created: BTreeMap<FileName, u64>,
    begun: u64,
    /// Names that were there when this sync began are doubtful.
    failed: u64,
    /// The file that has the name [`ASIDE`].
    aside: Option<FileName>,
}

impl SureNames {
    /// Wraps `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            names: Mutex::default(),
            changing: RwLock::default(),
            syncing: Mutex::default(),
        }
    }

    fn names(&self) -> MutexGuard<'_, UnsyncedNames> {
        // A panic of the device leaves names that are there or not, like an error of it.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a name while no other thread makes names again. `name` may be aside: the change is
    /// told the name that the file has.
    fn change<T>(&self, name: &str, change: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let _no_sync_begins = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        let is_aside = self.names().aside.as_ref() == Some(&name.into());
        change(if is_aside { ASIDE } else { name })
    }

    /// Makes the names again that a failed sync should have covered.
    fn make_again(&self) -> Result<()> {
        let _nothing_changes = self.changing.write().unwrap_or_else(PoisonError::into_inner);
        self.come_back()?;
        let doubtful = |names: &UnsyncedNames| {
            let first = names.created.iter().find(|(_, begun)| **begun < names.failed);
            first.map(|(name, _)| name.clone())
        };
        while let Some(name) = {
            let names = self.names();
            doubtful(&names)
        } {
            match self.device.rename(&name.to_string(), ASIDE) {
                Ok(()) => self.names().aside = Some(name),
                Err(error) if error.kind() == ErrorKind::Missing => {
                    self.names().created.remove(&name);
                }
                Err(error) => return Err(error),
            }
            self.come_back()?;
        }
        Ok(())
    }

    /// Gives the file that is aside, if there is one, its name again.
    fn come_back(&self) -> Result<()> {
        let Some(name) = self.names().aside.clone() else { return Ok(()) };
        self.device.rename(ASIDE, &name.to_string())?;
        let names = &mut *self.names();
        names.aside = None;
        names.created.insert(name, names.begun);
        Ok(())
    }
}

impl Device for SureNames {
    fn engine(&self) -> &'static str {
        self.device.engine()
    }

    fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    fn fallback_reason(&self) -> Option<String> {
        self.device.fallback_reason()
    }

    fn stats(&self) -> IoStats {
        self.device.stats()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        self.change(name, |_| {
            let file = self.device.create(name)?;
            let names = &mut *self.names();
            let name = FileName::from(name);
            // The one that was aside is not wanted any more.
            names.aside.take_if(|aside| *aside == name);
            names.created.insert(name, names.begun);
            Ok(file)
        })
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        match self.device.open(name) {
            Err(error) if error.kind() == ErrorKind::Missing && self.is_new(name) => {
                self.change(name, |name| self.device.open(name))
            }
            opened => opened,
        }
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        self.device.len(file)
    }

    fn submit(&self, request: Request) {
        self.device.submit(request);
    }

    fn submit_own(&self, request: Request) {
        self.device.submit_own(request);
    }

    fn wait_own(&self, most: Duration) -> bool {
        self.device.wait_own(most)
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        self.device.submit_all(requests);
    }

    fn drive(&self) {
        self.device.drive();
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        self.change(source, |from| {
            self.device.rename(from, target)?;
            let (names, changed) = (&mut *self.names(), [source, target].map(FileName::from));
            for name in &changed {
                names.created.remove(name);
                names.aside.take_if(|aside| *aside == *name);
            }
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.change(name, |found| {
            self.device.remove(found)?;
            let (names, name) = (&mut *self.names(), FileName::from(name));
            names.created.remove(&name);
            names.aside.take_if(|aside| *aside == name);
            Ok(())
        })
    }

    fn sync_directory(&self) -> Result<()> {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_again()?;
        let this = {
            let _nothing_changes = self.changing.write().unwrap_or_else(PoisonError::into_inner);
            let names = &mut *self.names();
            names.begun += 1;
            names.begun
        };
        let synced = self.device.sync_directory();
        let names = &mut *self.names();
        match synced {
            Ok(()) => names.created.retain(|_, begun| *begun >= this),
            Err(_) => names.failed = this,
        }
        synced
    }

    fn list(&self) -> Result<Vec<String>> {
        self.device.list()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.device.lock()
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        self.device.lock_to_read()
    }
}

impl SureNames {
    /// Whether no good sync covers the file's name yet.
    fn is_new(&self, name: &str) -> bool {
        self.names().created.contains_key(&name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CrashPolicy, Fault, Faults, Simulated};
    use super::*;

    #[test]
    fn names_that_a_failed_sync_has_lost_are_made_again() {
        let device = Simulated::new(1, Faults::none());
        let sure = SureNames::new(Arc::new(device.clone()));
        sure.create("old").unwrap();
        sure.sync_directory().unwrap();
        for name in ["a", "b", "removed", "renamed"] {
            sure.create(name).unwrap();
        }
        device.on_nth_directory_operation(1, Fault::Error);
        sure.sync_directory().unwrap_err();
        sure.remove("removed").unwrap();
        sure.rename("renamed", "target").unwrap();
        // The first of two renames fails, then the second: files are found meanwhile.
        for nth in [1, 2] {
            device.on_nth_directory_operation(nth, Fault::Error);
            sure.sync_directory().unwrap_err();
            sure.open("a").unwrap();
        }
        sure.create("later").unwrap();
        sure.sync_directory().unwrap();
        let left = device.crash(CrashPolicy::Nothing).list().unwrap();
        assert_eq!(left, ["a", "b", "later", "old", "target"]);
    }

    #[test]
    fn a_file_that_is_aside_is_removed_renamed_and_replaced_by_its_name() {
        for what in ["remove", "rename", "create"] {
            let device = Simulated::new(1, Faults::none());
            let sure = SureNames::new(Arc::new(device.clone()));
            sure.create("a").unwrap();
            device.on_nth_directory_operation(1, Fault::Error);
            sure.sync_directory().unwrap_err();
            device.on_nth_directory_operation(2, Fault::Error);
            sure.sync_directory().unwrap_err();
            assert_eq!(device.list().unwrap(), [ASIDE]);
            let left: &[&str] = match what {
                "remove" => sure.remove("a").map(|()| &[][..]),
                "rename" => sure.rename("a", "b").map(|()| &["b"][..]),
                // What is left aside goes with the next open.
                _ => sure.create("a").map(|_| &["a", ASIDE][..]),
            }
            .unwrap();
            sure.sync_directory().unwrap();
            assert_eq!(device.crash(CrashPolicy::Nothing).list().unwrap(), left, "{what}");
        }
    }

    #[test]
    fn without_trouble_nothing_is_done_twice() {
        let device = Simulated::new(1, Faults::none());
        let sure = SureNames::new(Arc::new(device.clone()));
        sure.create("a").unwrap();
        sure.sync_directory().unwrap();
        sure.sync_directory().unwrap();
        assert_eq!(device.steps(), 3);
    }
}
