//! The files of a state, and what refers to each: one count for all layouts.
//!
//! A state *uses* a file: runs of an append log and of window segments do. Checkpoints *name* it: the one that is restored
//! on open, and the one being taken. Of heap tables, the cold tier and packed slices only names are counted here; a hybrid
//! log notes them with its segments.
//!
//! What it keeps true: a file stays while it is used, and while the checkpoint that is restored on open may be one that names
//! it. If nobody can say whether a checkpoint was committed, the files of both are named until one is.

use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, ImagePart, MemoryKind, RunId, SegmentId, SegmentInfo, SegmentStore, StateImage,
};

use crate::contract::table::CheckpointOutcome;

/// Which checkpoints name a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamedBy {
    /// The one that is restored on open, or one of several if nobody can tell which that is.
    pub committed: bool,
    /// The one being taken.
    pub taken: bool,
}

impl NamedBy {
    /// Whether one does.
    pub fn is_any(self) -> bool {
        self.committed || self.taken
    }

    /// The checkpoint that was taken is or is not the one that is restored.
    pub fn decide(&mut self, outcome: CheckpointOutcome) {
        let taken = std::mem::take(&mut self.taken);
        match outcome {
            CheckpointOutcome::Committed => self.committed = taken,
            CheckpointOutcome::Abandoned => {}
            CheckpointOutcome::Unknown => self.committed |= taken,
        }
    }
}

/// A file and its bytes.
pub(crate) type FileBytes<N = SegmentId> = (N, u64);

#[derive(Debug)]
struct NamedFile {
    bytes: u64,
    uses: u32,
    named: NamedBy,
}

/// Files by their names.
#[derive(Debug)]
pub(crate) struct FilesByName<N = SegmentId> {
    all: BTreeMap<N, NamedFile>,
    booking: Option<FilesBooking>,
}

/// What is booked for files: so many bytes for each, and for as many as are expected.
#[derive(Debug)]
struct FilesBooking {
    account: Rc<Account>,
    bytes_each: u64,
    expected: usize,
    bytes: u64,
}

impl<N> Default for FilesByName<N> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), booking: None }
    }
}

impl<N: Ord + Clone> FilesByName<N> {
    /// None, for each of which so many bytes are booked.
    pub fn booked(account: Rc<Account>, bytes_each: u64) -> Self {
        let booking = FilesBooking { account, bytes_each, expected: 0, bytes: 0 };
        Self { booking: Some(booking), ..Self::default() }
    }

    /// Books so many files in any case, and so many less; the caller has made room for them.
    pub fn expect(&mut self, more: usize, less: usize) {
        self.booking
            .iter_mut()
            .for_each(|booking| booking.expected = booking.expected + more - less);
        self.book();
    }

    fn book(&mut self) {
        let Some(FilesBooking { account, bytes_each, expected, bytes }) = &mut self.booking else {
            return;
        };
        let files = self.all.len().max(*expected) as u64;
        let before = std::mem::replace(bytes, files * *bytes_each);
        account.adjust(MemoryKind::Tables, before, *bytes);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all files, and of those that are used.
    pub fn bytes(&self) -> (u64, u64) {
        let all = self.all.values().map(|file| file.bytes).sum();
        let used = self.all.values().filter(|file| file.uses > 0);
        (all, used.map(|file| file.bytes).sum())
    }

    fn change(
        &mut self,
        files: impl Iterator<Item = FileBytes<N>>,
        change: impl Fn(&mut NamedFile),
    ) {
        for (name, bytes) in files {
            let none = NamedFile { bytes, uses: 0, named: NamedBy::default() };
            change(self.all.entry(name).or_insert(none));
        }
        self.book();
    }

    /// Files are used once more each.
    pub fn add(&mut self, files: impl Iterator<Item = FileBytes<N>>) {
        self.change(files, |file| file.uses += 1);
    }

    /// Files are used once less each. Gives those that nothing refers to.
    ///
    /// # Panics
    /// If one was not used.
    pub fn release(&mut self, files: impl Iterator<Item = FileBytes<N>>) -> Vec<FileBytes<N>> {
        let mut free = Vec::new();
        for (name, bytes) in files {
            let file = self.all.get_mut(&name).filter(|file| file.uses > 0).expect("a used file");
            file.uses -= 1;
            if file.uses == 0 && !file.named.is_any() {
                self.all.remove(&name);
                free.push((name, bytes));
            }
        }
        self.book();
        free
    }

    /// The state was restored from a checkpoint that names these.
    pub fn restored(&mut self, files: impl Iterator<Item = FileBytes<N>>) {
        self.change(files, |file| file.named.committed = true);
    }

    /// The checkpoint being taken names these too.
    pub fn name(&mut self, files: impl Iterator<Item = FileBytes<N>>) {
        self.change(files, |file| file.named.taken = true);
    }

    /// The checkpoint being taken names these, and no others so far.
    pub fn take(&mut self, files: impl Iterator<Item = FileBytes<N>>) {
        self.all.values_mut().for_each(|file| file.named.taken = false);
        self.name(files);
    }

    /// It names those that are used, and no others so far.
    pub fn take_used(&mut self) {
        self.all.values_mut().for_each(|file| file.named.taken = file.uses > 0);
    }

    /// The checkpoint that was taken is or is not the one that is restored. Gives the files that nothing refers to.
    pub fn decide(&mut self, outcome: CheckpointOutcome) -> Vec<FileBytes<N>> {
        let mut free = Vec::new();
        self.all.retain(|name, file| {
            file.named.decide(outcome);
            let is_needed = file.uses > 0 || file.named.is_any();
            if !is_needed {
                free.push((name.clone(), file.bytes));
            }
            is_needed
        });
        self.book();
        free
    }
}

/// The files of segments.
pub(crate) fn files_of(segments: &[SegmentInfo]) -> impl Iterator<Item = FileBytes> + '_ {
    segments.iter().map(|segment| (segment.id, segment.bytes))
}

/// The files of the segments of an image.
pub(crate) fn files_of_image(image: &StateImage) -> impl Iterator<Item = FileBytes> + '_ {
    image.segments().map(|segment| (segment.id, segment.bytes))
}

/// Files of runs that checkpoints name. Each is pinned: it stays when its owner removes it, until no checkpoint names it.
#[derive(Debug, Default)]
pub(crate) struct PinnedRuns(FilesByName<RunId>);

impl PinnedRuns {
    /// Whether no checkpoint names any.
    pub fn is_empty(&self) -> bool {
        self.0.all.is_empty()
    }

    /// The state was restored from a checkpoint that names the runs of a part.
    pub fn restored(&mut self, store: &SegmentStore, part: &ImagePart) {
        let runs = part.levels.iter().flatten();
        self.restored_from(store, runs.map(|run| run.id));
    }

    fn restored_from(&mut self, store: &SegmentStore, runs: impl Iterator<Item = RunId>) {
        for run in runs {
            self.pin(store, run);
            self.0.restored([(run, 0)].into_iter());
        }
    }

    /// The checkpoint being taken names these too.
    pub fn name(&mut self, store: &SegmentStore, runs: impl IntoIterator<Item = RunId>) {
        for run in runs {
            self.pin(store, run);
            self.0.name([(run, 0)].into_iter());
        }
    }

    /// Pins a run, once.
    fn pin(&self, store: &SegmentStore, run: RunId) {
        if !self.0.all.contains_key(&run) {
            store.pin([run.name()].into_iter());
        }
    }

    /// What became of the checkpoint. Those that are named no more go, if their owner has removed them.
    pub fn decide(&mut self, store: &SegmentStore, outcome: CheckpointOutcome) {
        let free = self.0.decide(outcome);
        store.unpin(free.iter().map(|(run, _)| run.name()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use alluvium_pagestore::io::{Device, Faults, Simulated};

    use super::*;

    fn all(files: &FilesByName<u64>) -> Vec<u64> {
        files.all.keys().copied().collect()
    }

    fn of(names: &[u64]) -> impl Iterator<Item = (u64, u64)> {
        names.iter().map(|name| (*name, 10 * name))
    }

    #[test]
    fn a_file_stays_until_no_checkpoint_that_may_be_restored_names_it() {
        let mut files = FilesByName::default();
        files.restored(of(&[1, 2]));
        files.take(of(&[2, 3]));
        files.name(of(&[4]));
        assert_eq!((all(&files), files.bytes()), (vec![1, 2, 3, 4], (100, 0)));
        assert_eq!(files.decide(CheckpointOutcome::Abandoned), [(3, 30), (4, 40)]);
        files.take(of(&[2, 5]));
        assert_eq!(files.decide(CheckpointOutcome::Unknown), []);
        // Before another one is committed, that may be either of the two.
        files.take(of(&[6]));
        assert_eq!(all(&files), [1, 2, 5, 6]);
        assert_eq!(files.decide(CheckpointOutcome::Committed), [(1, 10), (2, 20), (5, 50)]);
    }

    #[test]
    fn a_file_stays_while_it_is_used() {
        let mut files = FilesByName::default();
        files.add(of(&[1, 1, 2, 3]));
        assert_eq!(files.release(of(&[1, 3])), [(3, 30)]);
        files.take_used();
        assert_eq!(files.release(of(&[1, 2])), []);
        assert_eq!((all(&files), files.bytes()), (vec![1, 2], (30, 0)));
        // What it names in the end is less than what was there when it began.
        files.take(of(&[2]));
        assert_eq!(files.decide(CheckpointOutcome::Committed), [(1, 10)]);
        files.add(of(&[2]));
        assert_eq!(files.decide(CheckpointOutcome::Committed), []);
        assert_eq!(files.release(of(&[2])), [(2, 20)]);
    }

    /// The oracle has the names of each checkpoint, and of each use, in sets.
    #[test]
    fn files_go_with_the_last_of_what_refers_to_them() {
        let mut next = 1u64;
        let mut random = |below: u64| {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (next >> 33) % below
        };
        let account = Account::root(1 << 20);
        let (mut files, mut uses) = (FilesByName::booked(account.clone(), 64), Vec::new());
        files.expect(5, 2);
        let (mut committed, mut taken, mut there) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for _ in 0..20_000 {
            let (mut gone, name) = (Vec::new(), random(12));
            match random(8) {
                0 | 1 => {
                    files.add(of(&[name]));
                    uses.push(name);
                }
                2 | 3 if !uses.is_empty() => {
                    let name = uses.swap_remove(random(uses.len() as u64) as usize);
                    gone = files.release(of(&[name]));
                }
                4 => {
                    files.name(of(&[name]));
                    taken.insert(name);
                }
                5 => {
                    files.take_used();
                    taken = uses.iter().copied().collect();
                }
                6 => {
                    files.take(of(&[name]));
                    taken = BTreeSet::from([name]);
                }
                _ => {
                    let taken = std::mem::take(&mut taken);
                    let outcome = match random(3) {
                        0 => CheckpointOutcome::Abandoned,
                        1 => {
                            committed = taken;
                            CheckpointOutcome::Committed
                        }
                        _ => {
                            committed.extend(taken);
                            CheckpointOutcome::Unknown
                        }
                    };
                    gone = files.decide(outcome);
                }
            }
            let needed = || uses.iter().chain(&committed).chain(&taken).copied();
            there.extend(needed());
            for (name, bytes) in gone {
                assert!(bytes == 10 * name && needed().all(|other| other != name));
                assert!(there.remove(&name), "{name} goes twice");
            }
            // What the checkpoint being taken has named, and names no more, goes when it is decided.
            assert_eq!(all(&files), there.iter().copied().collect::<Vec<_>>());
            assert_eq!(account.used(), 64 * there.len().max(3) as u64);
            assert_eq!(files.bytes().0, there.iter().map(|name| 10 * name).sum::<u64>());
        }
    }

    #[test]
    fn pinned_files_stay_as_long_as_a_checkpoint_may_name_them() {
        let device = Simulated::new(1, Faults::none());
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        let name = |run: &u64| RunId(*run).file_name();
        let place = |runs: &[u64]| runs.iter().for_each(|run| device.place(&name(run), b"x"));
        let runs = |runs: &[u64]| runs.iter().copied().map(RunId).collect::<Vec<_>>().into_iter();
        let there = || device.list().unwrap();
        let names = |runs: &[u64]| runs.iter().map(name).collect::<Vec<_>>();
        place(&[1, 2, 3, 4]);
        let mut named = PinnedRuns::default();
        named.restored_from(&store, runs(&[1, 2]));
        named.name(&store, runs(&[2, 3]));
        for run in 1..=4 {
            store.remove_file(&name(&run)).unwrap();
        }
        assert_eq!(there(), names(&[1, 2, 3]));
        named.decide(&store, CheckpointOutcome::Unknown);
        assert_eq!(there(), names(&[1, 2, 3]));
        place(&[5]);
        named.name(&store, runs(&[3, 5]));
        store.remove_file(&name(&5)).unwrap();
        named.decide(&store, CheckpointOutcome::Abandoned);
        assert_eq!(there(), names(&[1, 2, 3]));
        named.name(&store, runs(&[3]));
        named.decide(&store, CheckpointOutcome::Committed);
        assert_eq!(there(), names(&[3]));
    }
}
