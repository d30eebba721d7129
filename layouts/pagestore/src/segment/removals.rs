//! Files that a helper removes, so that nobody else waits for that.
//!
//! What it keeps true: a file that could not be removed is tried again with the next one. What a
//! crash or the store's end leaves of them, the next open removes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::remove_file;
use crate::io::Device;
use crate::{FileName, Result, WeakHelper};

/// What was given to a helper to be removed.
#[derive(Debug)]
pub(super) struct Removals {
    helper: WeakHelper,
    /// Those that could not be removed.
    left: Arc<Mutex<Vec<FileName>>>,
}

fn lock(left: &Mutex<Vec<FileName>>) -> MutexGuard<'_, Vec<FileName>> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Removals {
    /// Nothing yet.
    pub(super) fn by(helper: WeakHelper) -> Self {
        Self { helper, left: Arc::default() }
    }

    /// Has a file removed. The helper itself does it at once, and is told how that went.
    pub(super) fn remove(&self, device: &Arc<dyn Device>, name: &FileName) -> Result<()> {
        if self.helper.is_here() {
            return remove_file(&**device, &name.to_string());
        }
        let (left, device, name) = (self.left.clone(), device.clone(), name.clone());
        let again = self.helper.submit(move || {
            let mut names = std::mem::take(&mut *lock(&left));
            names.push(name);
            names.retain(|name| remove_file(&*device, &name.to_string()).is_err());
            lock(&left).append(&mut names);
        });
        // The helper is gone: the store is being closed.
        again.into_iter().for_each(|job| job());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Fault, Faults, Simulated};
    use crate::{Helper, SegmentStore};

    #[test]
    fn what_could_not_be_removed_goes_with_the_next() {
        let device = Simulated::new(1, Faults::none());
        let helper = Helper::thread().unwrap();
        let store = SegmentStore::new(Arc::new(device.clone()), 1).removing_by(&helper);
        for name in ["a", "b", "c"] {
            device.place(name, b"x");
        }
        device.on_nth_directory_operation(1, Fault::Error);
        store.remove_file("a").unwrap();
        store.remove_file("none of this name").unwrap();
        store.remove_file("b").unwrap();
        drop(helper);
        assert_eq!(device.list().unwrap(), ["c"]);
        // The last handle of the helper is gone.
        store.remove_file("c").unwrap();
        assert!(device.list().unwrap().is_empty());
    }

    #[test]
    fn the_helper_itself_removes_at_once_and_is_told_of_errors() {
        let device = Simulated::new(1, Faults::none());
        let helper = Helper::thread().unwrap();
        let store = SegmentStore::new(Arc::new(device.clone()), 1).removing_by(&helper);
        device.place("a", b"x");
        device.on_nth_directory_operation(1, Fault::Error);
        let (reply, answer) = crate::channel::unbounded();
        let of_helper = store.clone();
        helper.submit(move || {
            let first = of_helper.remove_file("a").is_err();
            let second = of_helper.remove_file("a").is_ok();
            reply.send((first, second, of_helper.device().list().unwrap().len())).unwrap();
        });
        assert_eq!(answer.recv(), Ok((true, true, 0)));
    }
}
