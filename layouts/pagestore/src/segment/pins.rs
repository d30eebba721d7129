//! Which files checkpoints need, and which of them nobody else does.
//!
//! Owners of files remove them without knowing of checkpoints; what is pinned goes with its last
//! pin. Helpers remove files too, hence the lock; no record's path comes here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::FileName;

/// How many checkpoints name each file, in the order of names.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<Vec<PinnedFile>>);

#[derive(Debug)]
struct PinnedFile {
    name: FileName,
    pins: u32,
    /// Of no use but for the checkpoints that name it.
    is_doomed: bool,
}

/// Names that memory is taken for at a time.
const MORE: usize = 16;
/// Names that it is kept for beyond those that there are.
const SPARE_MAX: usize = 4 * MORE;

fn find(named: &[PinnedFile], name: &FileName) -> Result<usize, usize> {
    named.binary_search_by(|pinned| pinned.name.cmp(name))
}

impl Pins {
    /// Bytes that a pinned file takes.
    pub(super) const BYTES_EACH: u64 = size_of::<PinnedFile>() as u64;

    fn named(&self) -> MutexGuard<'_, Vec<PinnedFile>> {
        // Every change is whole: what panicked elsewhere left nothing half done here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more checkpoint names these files. Cost: O(log files) for each; O(files) for one that none named before, unless it
    /// is the newest.
    pub(super) fn pin(&self, names: impl Iterator<Item = FileName>) {
        let mut named = self.named();
        for name in names {
            match find(&named, &name) {
                Ok(at) => named[at].pins += 1,
                Err(at) => {
                    if named.len() == named.capacity() {
                        named.reserve_exact(MORE);
                    }
                    named.insert(at, PinnedFile { name, pins: 1, is_doomed: false });
                }
            }
        }
    }

    /// One checkpoint less names these files: gives those to be removed. Cost: O(log files) for each, and once O(files).
    pub(super) fn unpin(&self, names: impl Iterator<Item = FileName>) -> Vec<FileName> {
        let mut named = self.named();
        let (mut free, mut some_go) = (Vec::new(), false);
        for name in names {
            let Ok(at) = find(&named, &name) else { continue };
            let pinned = &mut named[at];
            // One that is named more often than it was pinned is gone once.
            if pinned.pins == 0 {
                continue;
            }
            pinned.pins -= 1;
            if pinned.pins == 0 {
                some_go = true;
                free.extend(pinned.is_doomed.then_some(name));
            }
        }
        if some_go {
            named.retain(|pinned| pinned.pins > 0);
            if named.capacity() - named.len() > SPARE_MAX {
                let most = named.len() + MORE;
                named.shrink_to(most);
            }
        }
        free
    }

    /// The owner of a file needs it no more. Says whether it stays, because it is pinned.
    pub(super) fn doom(&self, name: &FileName) -> bool {
        let mut named = self.named();
        match find(&named, name) {
            Ok(at) => {
                named[at].is_doomed = true;
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_when_its_owner_and_every_checkpoint_have_let_it_go() {
        let (pins, name) = (Pins::default(), |name: &str| FileName::from(name));
        let names = |names: &[&str]| -> Vec<FileName> { names.iter().map(|n| name(n)).collect() };
        let pin = |of: &[&str]| pins.pin(names(of).into_iter());
        let unpin = |of: &[&str]| pins.unpin(names(of).into_iter());
        assert!(!pins.doom(&name("a")), "nobody named it");
        pin(&["a", "b"]);
        pin(&["b", "c"]);
        assert!(pins.doom(&name("a")) && pins.doom(&name("b")));
        assert_eq!(unpin(&["a", "b"]), names(&["a"]), "the other still names b");
        assert!(!pins.doom(&name("a")), "its number of pins is forgotten");
        assert_eq!(unpin(&["b", "c"]), names(&["b"]), "the owner of c needs it");
        assert!(unpin(&["x"]).is_empty());
    }
}
