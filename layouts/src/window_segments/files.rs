//! The files of one state: how many bytes they take, and when they may go.
//!
//! A file that a checkpoint names stays until another checkpoint is the one that is restored; it is
//! removed then if nothing else needs it.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, SegmentId};

use crate::checkpoint::NamedFiles;
use crate::contract::table::CheckpointOutcome;

/// Bytes booked per file that a checkpoint names, and per file that is of no use but named.
pub const NAME_BYTES: u64 = 64;

/// A file and its bytes.
pub type FileBytes = (SegmentId, u64);

/// What is known of the files.
#[derive(Debug)]
pub struct Files {
    account: Rc<Account>,
    /// Bytes of all that were not removed yet.
    pub bytes: u64,
    named: NamedFiles,
    /// Written for checkpoints only: the one that is restored, and the one being taken.
    committed_only: Vec<FileBytes>,
    taken_only: Vec<FileBytes>,
    /// Of no use but for the checkpoints that name them.
    useless: Vec<FileBytes>,
    /// Names that are booked in any case: those that checkpoints will use for runs that are there.
    expected: usize,
    booked: u64,
}

impl Files {
    /// No files.
    pub fn new(account: Rc<Account>) -> Self {
        Self {
            account,
            bytes: 0,
            named: NamedFiles::default(),
            committed_only: Vec::new(),
            taken_only: Vec::new(),
            useless: Vec::new(),
            expected: 0,
            booked: 0,
        }
    }

    /// Books so many names for checkpoints to come; the caller has made room for them.
    pub fn expect(&mut self, names: usize) {
        self.expected += names;
        self.book();
    }

    /// They are not expected any more.
    pub fn unexpect(&mut self, names: usize) {
        self.expected -= names;
        self.book();
    }

    /// Files are of no use any more: gives those that may be removed now.
    pub fn let_go(&mut self, files: impl Iterator<Item = FileBytes>) -> Vec<FileBytes> {
        let (kept, free): (Vec<_>, Vec<_>) = files.partition(|(id, _)| self.named.has(*id));
        self.useless.extend(kept);
        self.book();
        free
    }

    /// A checkpoint names `all`, of which `only` were written for it.
    pub fn take(&mut self, all: impl Iterator<Item = SegmentId>, only: Vec<FileBytes>) {
        self.named.take(all);
        self.taken_only = only;
        self.book();
    }

    /// The checkpoint that is being taken names these too.
    pub fn name(&mut self, files: impl Iterator<Item = SegmentId>) {
        self.named.add(files);
        self.book();
    }

    /// The checkpoint is or is not the one that is restored: gives the files that may be removed.
    pub fn decide(&mut self, outcome: CheckpointOutcome) -> Vec<FileBytes> {
        let only = std::mem::take(&mut self.taken_only);
        self.named.decide(outcome);
        match outcome {
            CheckpointOutcome::Committed => {
                self.useless.append(&mut self.committed_only);
                self.committed_only = only;
            }
            CheckpointOutcome::Abandoned => self.useless.extend(only),
            CheckpointOutcome::Unknown => self.committed_only.extend(only),
        }
        let useless = std::mem::take(&mut self.useless);
        self.let_go(useless.into_iter())
    }

    fn book(&mut self) {
        let names = self.named.len() + self.useless.len();
        let names = names + self.committed_only.len() + self.taken_only.len();
        let booked = names.max(self.expected) as u64 * NAME_BYTES;
        self.account.adjust(MemoryKind::Tables, self.booked, booked);
        self.booked = booked;
    }
}
