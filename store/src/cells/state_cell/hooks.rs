//! What the store does with a state, and how a [cell](StateCell) does it: each call is that of a cell whose types
//! are erased.

use alluvium_layouts::{CheckpointOutcome, TableStats};
use alluvium_pagestore::{BlobWriter, KeyGroup, ReclaimScope, Result, StateImage, Time};

use super::erased::AnyCell;
use super::{CellContents, StateCell};
use crate::cells::pacing::Stream;
use crate::durability::export::{CanonicalEntry, ImportEntries, Parts, VisitCanonical, each};
use crate::durability::moving::{EntryArrival, GroupCursor};
use crate::store::not_encoded;

/// What the store does with a state, whatever its types are, beside what the three other traits say: memory, work
/// between calls, statistics.
pub(crate) trait Hooks: Movable {
    fn poisoned(&self) -> bool;
    /// Keys that calls have read or written so far.
    fn calls(&self) -> u64 {
        0
    }
    fn tick(&self, work: usize) -> Result<usize>;
    /// Ends the merging of small segments: a checkpoint is going to be waited for.
    fn finish_merging(&self) -> Result<()> {
        Ok(())
    }
    fn stats(&self) -> Result<TableStats>;
    /// Whether the state is as if it had just been opened for the first time.
    fn is_unused(&self) -> Result<bool> {
        self.stats().map(|stats| stats.live_keys == 0)
    }
    /// Memory that no eviction frees, and the most that the state may hold; 0 while it is in use.
    fn fixed_bytes(&self) -> (u64, u64) {
        (0, u64::MAX)
    }
    /// Memory that its writes leave free for its next checkpoint, and do not book; 0 while it is in use.
    fn kept_bytes(&self) -> u64 {
        0
    }
    /// Gives memory up to other states, of what they ask for, unless this one is in use; says how much.
    fn reclaim(&self, _asked: ReclaimScope, _bytes: u64) -> Result<u64> {
        Ok(0)
    }
    fn compaction_error(&self) -> Option<String> {
        None
    }
}

/// Checkpoints of a state.
pub(crate) trait Durable {
    /// Makes the state durable as of now.
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage>;
    /// Begins to; the image, if that is all.
    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }
    /// Before a share: how far the stream is.
    fn pace_checkpoint(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
    /// A bounded share of what was begun; the image at the end.
    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }
    /// Tells what became of the last one.
    fn checkpointed(&self, outcome: CheckpointOutcome);
    /// What a build has to know to go on with the state as it is now, beside its definition.
    fn need(&self) -> Option<&'static str> {
        None
    }
}

/// Entries of a state that go out to files and come in from them, encoded.
pub(crate) trait Portable: Durable {
    /// Gives all entries, encoded, in any order.
    fn export(&self, visit: VisitCanonical<'_>) -> Result<()>;
    /// Whether entries had best be taken in parts.
    fn has_parts(&self) -> Result<bool> {
        Ok(false)
    }
    /// [`export`](Portable::export) of a state that has parts.
    fn export_in_parts(&self, _: &mut dyn Parts) -> Result<()> {
        Err(not_encoded("exported in parts"))
    }
    /// About so many keys will be imported.
    fn expect(&self, keys: u64) -> Result<()> {
        let _ = keys;
        Ok(())
    }
    /// Puts one entry, which was exported.
    fn import(&self, entry: CanonicalEntry<'_>) -> Result<()>;
    /// Puts entries, which were exported: all, or those before one that cannot be put.
    fn import_all(&self, entries: &mut dyn ImportEntries) -> Result<()> {
        each(entries, &mut |entry| self.import(entry))
    }
}

/// Key groups of a state that come and go.
pub(crate) trait Movable: Portable {
    /// Gives about `fuel` entries of a key group from a place on, encoded.
    fn extract(
        &self,
        _: KeyGroup,
        _: &mut GroupCursor,
        _: usize,
        _: VisitCanonical<'_>,
    ) -> Result<()> {
        Err(not_encoded("moved by key groups"))
    }
    /// Puts one entry that another store has extracted of a key group which is not here yet. After an
    /// error it is called again with the same `arriving`.
    fn install(&self, entry: CanonicalEntry<'_>, arriving: &mut EntryArrival) -> Result<()> {
        let _ = arriving;
        self.import(entry)
    }
    /// Entries that were touched last before this are over for good, if they expire.
    fn over(&self) -> Option<Time> {
        None
    }
    /// Whether a key group may come or go as the state is now.
    fn may_move(&self) -> Result<()> {
        Ok(())
    }
    /// Removes about `fuel` entries of a key group from a place on.
    fn forget(&self, _: KeyGroup, _: &mut GroupCursor, _: usize) -> Result<()> {
        Err(not_encoded("moved by key groups"))
    }
    /// Timers of the key group may fire, or may not.
    fn wake(&self, _: KeyGroup, _: bool) {}
}

impl<C: CellContents> StateCell<C> {
    fn erased(&self) -> &AnyCell {
        self
    }
}

impl<C: CellContents> Hooks for StateCell<C> {
    fn poisoned(&self) -> bool {
        self.is_poisoned()
    }

    fn calls(&self) -> u64 {
        self.all_calls()
    }

    fn tick(&self, work: usize) -> Result<usize> {
        self.erased().tick(work)
    }

    fn finish_merging(&self) -> Result<()> {
        self.erased().finish_merging()
    }

    fn stats(&self) -> Result<TableStats> {
        self.erased().stats()
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        self.erased().fixed_bytes()
    }

    fn kept_bytes(&self) -> u64 {
        self.erased().kept_bytes()
    }

    fn reclaim(&self, asked: ReclaimScope, bytes: u64) -> Result<u64> {
        self.erased().reclaim(asked, bytes)
    }

    fn compaction_error(&self) -> Option<String> {
        self.erased().compaction_error()
    }
}

impl<C: CellContents> Durable for StateCell<C> {
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.erased().checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.erased().begin_checkpoint(blobs)
    }

    fn pace_checkpoint(&self, stream: Stream) -> Result<()> {
        self.erased().pace_checkpoint(stream)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.erased().continue_checkpoint(blobs)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.erased().checkpointed(outcome);
    }
}

impl<C: CellContents> Portable for StateCell<C> {
    fn export(&self, visit: VisitCanonical<'_>) -> Result<()> {
        self.erased().export(visit)
    }

    fn has_parts(&self) -> Result<bool> {
        self.erased().has_parts()
    }

    fn export_in_parts(&self, parts: &mut dyn Parts) -> Result<()> {
        self.erased().export_in_parts(parts)
    }

    fn expect(&self, entries: u64) -> Result<()> {
        self.erased().expect(entries)
    }

    fn import(&self, entry: CanonicalEntry<'_>) -> Result<()> {
        self.note_import();
        self.erased().import(entry)
    }

    fn import_all(&self, entries: &mut dyn ImportEntries) -> Result<()> {
        self.note_import();
        C::import_all(self, entries)
    }
}

impl<C: CellContents> Movable for StateCell<C> {
    fn extract(
        &self,
        group: KeyGroup,
        at: &mut GroupCursor,
        fuel: usize,
        visit: VisitCanonical<'_>,
    ) -> Result<()> {
        self.erased().extract(group, at, fuel, visit)
    }

    fn install(&self, entry: CanonicalEntry<'_>, arriving: &mut EntryArrival) -> Result<()> {
        self.erased().install(entry, arriving)
    }

    fn forget(&self, group: KeyGroup, at: &mut GroupCursor, fuel: usize) -> Result<()> {
        self.erased().forget(group, at, fuel)
    }

    fn wake(&self, group: KeyGroup, awake: bool) {
        self.erased().wake(group, awake);
    }
}
