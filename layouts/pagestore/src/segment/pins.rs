//! Which files checkpoints need, and which of them nobody else does.
//!
//! Owners of files remove them without knowing of checkpoints; what is pinned goes with its last
//! pin. Helpers remove files too, hence the lock; no record's path comes here.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many checkpoints name each file.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<PinnedNames>);

#[derive(Debug, Default)]
struct PinnedNames {
    by: HashMap<String, u32>,
    /// Of no use but for the checkpoints that name them.
    doomed: HashSet<String>,
}

impl Pins {
    fn named(&self) -> MutexGuard<'_, PinnedNames> {
        // Every change is whole: what panicked elsewhere left nothing half done here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more checkpoint names these files.
    pub(super) fn pin<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut named = self.named();
        for name in names {
            *named.by.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// One checkpoint less names these files: gives those to be removed.
    pub(super) fn unpin<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let named = &mut *self.named();
        let mut free = Vec::new();
        for name in names {
            let Some(pins) = named.by.get_mut(name) else { continue };
            *pins -= 1;
            if *pins == 0 {
                named.by.remove(name);
                free.extend(named.doomed.take(name));
            }
        }
        free
    }

    /// The owner of a file needs it no more. Says whether it stays, because it is pinned.
    pub(super) fn doom(&self, name: &str) -> bool {
        let named = &mut *self.named();
        let pinned = named.by.contains_key(name);
        if pinned {
            named.doomed.insert(name.to_owned());
        }
        pinned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_when_its_owner_and_every_checkpoint_have_let_it_go() {
        let pins = Pins::default();
        assert!(!pins.doom("a"), "nobody named it");
        pins.pin(["a", "b"].into_iter());
        pins.pin(["b", "c"].into_iter());
        assert!(pins.doom("a") && pins.doom("b"));
        assert_eq!(pins.unpin(["a", "b"].into_iter()), ["a"], "the other still names b");
        assert!(!pins.doom("a"), "its number of pins is forgotten");
        assert_eq!(pins.unpin(["b", "c"].into_iter()), ["b"], "the owner of c needs it");
        assert!(pins.unpin(["x"].into_iter()).is_empty());
    }
}
