//! Checkpoints: sealed at a point between two operations, confirmed or aborted, retained, restored.
//!
//! Here is what there is of them; how one is taken is in `seal`, what an open finds in `recover`.
//!
//! What it keeps true:
//! - The manifest lists only checkpoints whose file, and every file that names, is durable.
//! - A file that a listed checkpoint names, or one that is being sealed, is not removed: it is
//!   pinned. Whoever owns a file removes it without regard to checkpoints.
//! - A number is given to one checkpoint only, also when that fails: its files may be half there.

mod recover;
mod seal;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::{
    BlobWriter, CheckpointFile, CheckpointImage, Error, ErrorKind, FileName, Manifest, Result,
    SegmentStore, SortedSet, StateImage, StateManifest, Time, checkpoint_name,
};

use alluvium_pagestore::mailbox::{Mailbox, RecvTimeoutError};

use crate::cells::pacing::Shares;
use crate::cells::state_cell::Hooks;
use crate::store::{Dropped, StoreCore};

pub(crate) use recover::{damaged_manifest, whole_checkpoints};
pub use seal::Seal;

/// Between two looks whether the helper has answered.
pub(crate) const MOMENT: Duration = Duration::from_micros(100);

/// A completed checkpoint; see [`Store::checkpoint`](crate::Store::checkpoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number, from 1.
    pub number: u64,
    /// The position given by the caller.
    pub position: u64,
    /// Keys in it, over all states.
    pub entries: u64,
}

/// A checkpoint that can be restored, and the storage that it occupies.
///
/// ```
/// use alluvium::{MIB, Store};
///
/// # let place = tempfile::tempdir().unwrap();
/// # let directory = place.path();
/// let store = Store::builder(directory).memory(16 * MIB).retain(2).open()?;
/// let mut words = store.count::<String>("words").open()?;
/// for position in [10, 20, 30] {
///     words.add("be", 1)?;
///     store.checkpoint(position)?;
/// }
/// let kept: Vec<_> = store.checkpoints().iter().map(|kept| kept.checkpoint.position).collect();
/// assert_eq!(kept, [20, 30]);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedCheckpoint {
    /// Its number, position and entries.
    pub checkpoint: Checkpoint,
    /// Bytes of the segments it names.
    pub bytes: u64,
    /// Bytes of segments that no other retained checkpoint names. Removing an older checkpoint
    /// frees them; those of the newest are mostly in use.
    pub pinned_bytes: u64,
}

/// The checkpoints of a directory, and the one being sealed.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Those that the manifest lists, the oldest first.
    retained: Vec<Retained>,
    /// Those that stay, however many are retained.
    held: SortedSet<u64>,
    /// What states that are opened are restored from.
    base: Option<Arc<CheckpointImage>>,
    /// No number up to this is given again.
    last: u64,
    sealing: Option<SealingCheckpoint>,
    /// When the last one began, by the store's clock.
    sealed_at: Option<Time>,
}

struct Retained {
    file: CheckpointFile,
    image: Arc<CheckpointImage>,
}

struct SealingCheckpoint {
    number: u64,
    position: u64,
    /// When it began, and nanoseconds since the one before: none for the first.
    began: Time,
    interval: u64,
    blobs: BlobWriter,
    /// The states of the checkpoint, until the image has them.
    parts: Vec<SealedState>,
    /// Which of them has the next share.
    turn: usize,
    shares: Shares,
    /// States that it does not carry over, as they were dropped.
    without: Dropped,
    /// What it says, from when all states have given their part.
    image: Option<Arc<CheckpointImage>>,
    /// The helper makes it durable.
    preparing: Option<Mailbox<Result<CheckpointFile>>>,
    /// Durable, with its file.
    prepared: Option<Retained>,
}

/// A state of a checkpoint.
struct SealedState {
    manifest: StateManifest,
    /// While it has no image yet.
    taking: Option<Rc<dyn Hooks>>,
    /// It waits for memory that another one has until it is done.
    waits: bool,
    /// It was refused memory: the next time it takes the last resort.
    was_refused: bool,
    /// Why, until it has gone on.
    refusal: Option<Error>,
}

impl SealingCheckpoint {
    fn add(
        &mut self,
        manifest: StateManifest,
        hooks: Option<Rc<dyn Hooks>>,
        segments: &SegmentStore,
    ) {
        if hooks.is_none() {
            pin(segments, &manifest);
        }
        let (waits, was_refused) = (false, false);
        let refusal = None;
        self.parts.push(SealedState { manifest, taking: hooks, waits, was_refused, refusal });
    }

    /// The state whose turn it is: those that are not whole in turn, and those that wait for memory once no other is
    /// left, or once one is whole. While memory is short the one that had the last share goes on, as each has something
    /// that others need.
    fn next_part(&mut self, is_short: bool) -> Option<usize> {
        let is_taken = |part: &SealedState| part.taking.is_some();
        if !self.parts.iter().any(|part| is_taken(part) && !part.waits) {
            self.parts.iter_mut().for_each(|part| part.waits = false);
        }
        let from = self.turn.saturating_sub(usize::from(is_short)).min(self.parts.len());
        let mut next = (from..self.parts.len()).chain(0..from);
        let next = next.find(|&at| is_taken(&self.parts[at]) && !self.parts[at].waits)?;
        self.turn = next + 1;
        Some(next)
    }

    /// Whether a state other than this one is being taken and does not wait.
    fn has_others(&self, than: usize) -> bool {
        let parts = self.parts.iter().enumerate();
        parts.filter(|(at, _)| *at != than).any(|(_, part)| part.taking.is_some() && !part.waits)
    }

    /// Removes what was made, or has the helper do that when it is done with it.
    fn give_up(self, segments: &SegmentStore, inner: &StoreCore) {
        let whole = self.parts.iter().filter(|part| part.taking.is_none());
        let told = self.image.iter().flat_map(|image| &image.states);
        for state in whole.map(|part| &part.manifest).chain(told) {
            segments.unpin(pinned_by(state).into_iter());
        }
        // Jobs that states have under way end with their next block.
        self.blobs.close();
        let (blobs, number, store) = (self.blobs, self.number, segments.clone());
        let remove = move || {
            blobs.abandon();
            // One that cannot be removed now is removed at the next open.
            let _ = store.remove_file(&checkpoint_name(number));
        };
        if !inner.helper.is_inline() {
            return inner.helper.submit(remove);
        }
        if let Some(answer) = &self.preparing {
            while let Err(RecvTimeoutError::Timeout) = answer.recv_timeout(MOMENT) {
                inner.drive();
            }
        }
        remove();
    }
}

/// Pins the files of a state.
fn pin(segments: &SegmentStore, state: &StateManifest) {
    segments.pin(pinned_by(state).into_iter());
}

/// The files of a state, each once.
fn pinned_by(state: &StateManifest) -> SortedSet<FileName> {
    SortedSet::of(state.file_names())
}

pub(crate) fn entries_of(image: &CheckpointImage) -> u64 {
    image.states.iter().map(|state| state.image.entries).sum()
}

impl Checkpoints {
    /// See [`Store::hold_checkpoint`](crate::Store::hold_checkpoint).
    pub(crate) fn hold(&mut self, number: u64) -> Result<()> {
        let sealed = self.sealing.as_ref().and_then(|sealing| sealing.prepared.as_ref());
        let mut all = self.retained.iter().chain(sealed);
        if !all.any(|retained| retained.file.number == number) {
            let there = self.retained.iter().map(|retained| retained.file.number.to_string());
            let there = there.collect::<Vec<_>>().join(", ");
            let message = format!("there is no checkpoint {number} to hold");
            let error = Error::new(ErrorKind::Missing, message);
            return Err(error.with("can be restored", there));
        }
        self.held.insert(number);
        Ok(())
    }

    /// Whether a checkpoint is being taken.
    pub(crate) fn is_sealing(&self) -> bool {
        self.sealing.is_some()
    }

    pub(crate) fn release(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// What the manifest lists once `new` is confirmed, if it lists as many as `retain`, and those that
    /// are held.
    fn list_with(&self, new: CheckpointFile, retain: usize) -> Manifest {
        // Those that came after the one this store was opened from are not its past.
        let base = self.base.as_ref().map_or(0, |base| base.number);
        let files = self.retained.iter().map(|retained| retained.file);
        let is_held = |file: &CheckpointFile| self.held.contains(&file.number);
        let past = files.filter(|file| file.number <= base || is_held(file));
        let mut checkpoints: Vec<_> = past.collect();
        let mut surplus = (checkpoints.len() + 1).saturating_sub(retain);
        checkpoints.retain(|file| {
            let goes = surplus > 0 && !is_held(file);
            surplus -= usize::from(goes);
            !goes
        });
        checkpoints.push(new);
        Manifest { checkpoints }
    }

    /// Drops the checkpoints that the manifest does not list any more.
    fn drop_unlisted(&mut self, manifest: &Manifest, segments: &SegmentStore) {
        self.retained.retain(|Retained { file, image }| {
            let listed = manifest.checkpoints.contains(file);
            if !listed {
                for state in &image.states {
                    segments.unpin(pinned_by(state).into_iter());
                }
                // One that cannot be removed now is removed at the next open.
                let _ = segments.remove_file(&checkpoint_name(file.number));
            }
            listed
        });
    }

    /// What states that are opened are restored from: the last checkpoint.
    pub(crate) fn base(&self) -> Option<&Arc<CheckpointImage>> {
        self.base.as_ref()
    }

    /// What each retained checkpoint keeps on storage.
    pub(crate) fn describe(&self) -> Vec<RetainedCheckpoint> {
        // Segments and runs have ids of one sequence.
        let mut named: BTreeMap<u64, u32> = BTreeMap::new();
        let files = |image: &CheckpointImage| {
            let images = || image.states.iter().map(|state| &state.image);
            let segments = images().flat_map(StateImage::segments).map(|one| (one.id.0, one.bytes));
            let runs = images().flat_map(StateImage::runs).map(|one| (one.id.0, one.bytes));
            segments.chain(runs).collect::<Vec<_>>()
        };
        for Retained { image, .. } in &self.retained {
            files(image).iter().for_each(|(id, _)| *named.entry(*id).or_default() += 1);
        }
        let describe = |Retained { image, .. }: &Retained| {
            let (number, position) = (image.number, image.position);
            let checkpoint = Checkpoint { number, position, entries: entries_of(image) };
            let all = files(image);
            let only = all.iter().filter(|(id, _)| named[id] == 1);
            let pinned_bytes = only.map(|(_, bytes)| bytes).sum();
            let bytes = all.iter().map(|(_, bytes)| bytes).sum();
            RetainedCheckpoint { checkpoint, bytes, pinned_bytes }
        };
        self.retained.iter().map(describe).collect()
    }
}
