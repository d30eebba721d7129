//! Files of runs that checkpoints name: they stay, although merges have no use for them any more.

use alluvium_pagestore::SegmentStore;

use crate::contract::table::CheckpointOutcome;

/// The names of files of runs that the last checkpoint has, and those of one that is not decided. Each is pinned once for
/// each.
#[derive(Debug, Default)]
pub struct NamedRuns {
    committed: Vec<String>,
    taken: Vec<String>,
}

impl NamedRuns {
    /// The state was restored from a checkpoint that names these.
    pub fn restored(&mut self, store: &SegmentStore, names: Vec<String>) {
        store.pin(names.iter().map(String::as_str));
        self.committed = names;
    }

    /// A checkpoint that is being taken names these.
    pub fn taken(&mut self, store: &SegmentStore, names: Vec<String>) {
        store.pin(names.iter().map(String::as_str));
        self.taken.extend(names);
    }

    /// What became of it. Those that are named no more go, if their owner has let them go.
    pub fn decide(&mut self, store: &SegmentStore, outcome: CheckpointOutcome) {
        let taken = std::mem::take(&mut self.taken);
        let free = match outcome {
            CheckpointOutcome::Committed => std::mem::replace(&mut self.committed, taken),
            CheckpointOutcome::Abandoned => taken,
            CheckpointOutcome::Unknown => {
                self.committed.extend(taken);
                return;
            }
        };
        store.unpin(free.iter().map(String::as_str));
    }

    /// Takes over what another one has named, of a state that was cleared.
    pub fn append(&mut self, mut other: Self) {
        self.committed.append(&mut other.committed);
        self.taken.append(&mut other.taken);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use alluvium_pagestore::io::{Device, Faults, Simulated};

    #[test]
    fn files_stay_as_long_as_a_checkpoint_may_name_them() {
        let device = Simulated::new(1, Faults::none());
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        let place = |names: &[&str]| names.iter().for_each(|name| device.place(name, b"x"));
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        place(&["a", "b", "c", "d"]);
        let mut named = NamedRuns::default();
        named.restored(&store, owned(&["a", "b"]));
        named.taken(&store, owned(&["b", "c"]));
        for name in ["a", "b", "c", "d"] {
            store.remove_file(name).unwrap();
        }
        assert_eq!(device.list().unwrap(), ["a", "b", "c"]);
        named.decide(&store, CheckpointOutcome::Unknown);
        assert_eq!(device.list().unwrap(), ["a", "b", "c"]);
        place(&["e"]);
        named.taken(&store, owned(&["c", "e"]));
        store.remove_file("e").unwrap();
        named.decide(&store, CheckpointOutcome::Abandoned);
        assert_eq!(device.list().unwrap(), ["a", "b", "c"]);
        named.taken(&store, owned(&["c"]));
        named.decide(&store, CheckpointOutcome::Committed);
        assert_eq!(device.list().unwrap(), ["c"]);
    }
}
