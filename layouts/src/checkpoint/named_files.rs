//! Which files the checkpoints of a state name: for layouts whose files stay as they were written, and are named again.
//!
//! What it keeps true: a file is named as long as the checkpoint that is restored on open may be one that names it. If
//! nobody can say whether a checkpoint was committed, the files of both are named until one is.

use std::collections::BTreeSet;

use alluvium_pagestore::SegmentId;

use crate::contract::table::CheckpointOutcome;

/// The files of the checkpoint that is restored on open, and of the one being taken.
#[derive(Debug, Default)]
pub(crate) struct NamedFiles {
    /// Of several checkpoints if nobody can tell which of them is restored.
    committed: BTreeSet<SegmentId>,
    taken: BTreeSet<SegmentId>,
}

impl NamedFiles {
    /// Whether a checkpoint names a file.
    pub fn has(&self, id: SegmentId) -> bool {
        self.committed.contains(&id) || self.taken.contains(&id)
    }

    /// Names, of each checkpoint.
    pub fn len(&self) -> usize {
        self.committed.len() + self.taken.len()
    }

    /// The state was restored from a checkpoint that names these.
    pub fn restored(&mut self, files: impl Iterator<Item = SegmentId>) {
        self.committed = files.collect();
    }

    /// The checkpoint being taken names these, and no others so far.
    pub fn take(&mut self, files: impl Iterator<Item = SegmentId>) {
        self.taken = files.collect();
    }

    /// The checkpoint being taken names these too.
    pub fn add(&mut self, files: impl Iterator<Item = SegmentId>) {
        self.taken.extend(files);
    }

    /// The checkpoint that was taken is or is not the one that is restored.
    pub fn decide(&mut self, outcome: CheckpointOutcome) {
        let taken = std::mem::take(&mut self.taken);
        match outcome {
            CheckpointOutcome::Committed => self.committed = taken,
            CheckpointOutcome::Abandoned => {}
            CheckpointOutcome::Unknown => self.committed.extend(taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(files: &NamedFiles) -> Vec<u64> {
        (0..10).filter(|id| files.has(SegmentId(*id))).collect()
    }

    fn ids(ids: &[u64]) -> impl Iterator<Item = SegmentId> {
        ids.iter().map(|id| SegmentId(*id))
    }

    #[test]
    fn a_file_is_named_until_no_checkpoint_that_may_be_restored_names_it() {
        let mut files = NamedFiles::default();
        files.restored(ids(&[1, 2]));
        files.take(ids(&[2, 3]));
        files.add(ids(&[4]));
        assert_eq!((named(&files), files.len()), (vec![1, 2, 3, 4], 5));
        files.decide(CheckpointOutcome::Abandoned);
        assert_eq!(named(&files), [1, 2]);
        files.take(ids(&[2, 5]));
        files.decide(CheckpointOutcome::Unknown);
        assert_eq!(named(&files), [1, 2, 5]);
        // Before another one is committed, that may be either of the two.
        files.take(ids(&[6]));
        assert_eq!(named(&files), [1, 2, 5, 6]);
        files.decide(CheckpointOutcome::Committed);
        assert_eq!((named(&files), files.len()), (vec![6], 1));
    }
}
