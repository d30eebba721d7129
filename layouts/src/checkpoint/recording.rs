//! Where a layout's records go during a checkpoint: into the batch being filled, or beside the
//! writer. Also reports the records that stay, have changed or have died.

use alluvium_pagestore::{Error, ErrorKind, Key, PlacedAt, Result, State};

use super::ledger::HeapFiles;
use super::naming::Naming;
use super::writer::BatchWriter;
use crate::heap::record_position::RecordPosition;
use crate::support::record_type_unsafe::RecordRef;

/// Takes the records of a checkpoint.
#[derive(Debug)]
pub struct Recording<'a> {
    /// The batch being filled; none beside the writer.
    pub(super) own: Option<&'a mut BatchWriter>,
    pub(super) naming: &'a mut Naming,
    pub(super) files: &'a mut HeapFiles,
    pub(super) epoch: u32,
    pub(super) changed: &'a mut u64,
}

impl Recording<'_> {
    /// Returns whether another record fits without waiting for the helper.
    pub fn has_room(&mut self) -> bool {
        self.batch().has_room()
    }

    /// The batch being filled.
    ///
    /// # Panics
    /// If entries are read beside the writer.
    pub(crate) fn batch(&mut self) -> &mut BatchWriter {
        self.own.as_deref_mut().expect("a batch is being filled")
    }

    /// The same without the batch: entries are read beside the writer.
    pub(crate) fn without_batch(&mut self) -> Recording<'_> {
        let Self { naming, files, epoch, changed, .. } = self;
        Recording { own: None, naming, files, epoch: *epoch, changed }
    }

    /// Whether there is a batch.
    pub(crate) fn has_batch(&self) -> bool {
        self.own.is_some()
    }

    /// Writes a record whose place is told by [`place_of`](Recording::place_of).
    ///
    /// # Errors
    /// Those of encoding and of writing.
    pub(crate) fn write_record(&mut self, record: RecordRef<'_>) -> Result<PlacedAt> {
        self.count_encoded();
        self.batch().place_record(record)
    }

    /// A record is on its way to the batches.
    pub(crate) fn count_encoded(&mut self) {
        self.naming.encoded += 1;
    }

    /// The place of a record that was written; none if there is no slot for its segment.
    pub(crate) fn place_of(&mut self, at: PlacedAt) -> RecordPosition {
        let slots = &mut self.naming.slots;
        while slots.len() <= at.segment as usize {
            let Some(slot) = self.files.new_slot() else { return RecordPosition::NONE };
            slots.push(slot);
        }
        RecordPosition::of(slots[at.segment as usize], at.grain)
    }

    /// Whether a record is in a segment that is written anew.
    #[inline]
    pub(crate) fn is_anew(&self, place: RecordPosition) -> bool {
        self.naming.is_anew(place)
    }

    /// Whether nothing is remembered of a checkpoint before.
    pub(crate) fn is_first(&self) -> bool {
        self.naming.is_first
    }

    /// Returns whether the checkpoint must [write](Recording::write) an entry at this place.
    /// Otherwise the entry [stays](Recording::keep).
    pub fn is_due(&self, place: RecordPosition) -> bool {
        self.naming.is_due(place)
    }

    /// Writes an entry whose last record is at `before`. Returns its new place, or [`RecordPosition::NONE`]
    /// if there is no memory to remember it.
    ///
    /// # Errors
    /// Those of encoding and of writing.
    pub fn write<K: Key, V: State>(
        &mut self,
        key: &K,
        value: &V,
        before: RecordPosition,
    ) -> Result<RecordPosition> {
        let at = self.batch().place(key.key_hash(), key, value)?;
        self.count_encoded();
        self.outdate(before)?;
        Ok(self.place_of(at))
    }

    /// Notes that an entry present at the barrier stays at this place.
    pub fn keep(&mut self, place: RecordPosition) {
        self.naming.sets.insert_at(place);
    }

    /// Notes that the entry [written](Recording::write) at this place was removed since the
    /// barrier.
    pub fn note_dead(&mut self, place: RecordPosition) {
        self.files.note_dead(place);
    }

    /// A record is not live in this checkpoint: it has a newer one, or its entry was gone before
    /// the barrier.
    ///
    /// # Errors
    /// [`ErrorKind::Overtaken`] if there is no room to note it: the checkpoint is lost, and the next one is full.
    #[inline]
    pub(crate) fn outdate(&mut self, place: RecordPosition) -> Result<()> {
        if self.files.outdate(place, &mut self.naming.dead) {
            return Ok(());
        }
        let message =
            "no memory is left to note which records are dead; begin the checkpoint again";
        Err(Error::new(ErrorKind::Overtaken, message))
    }

    /// By slot, whether what is live in a segment is written anew. Empty if no segment is.
    pub(crate) fn anew(&self) -> &[bool] {
        &self.naming.anew
    }

    /// Whether places of this epoch count.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The state cannot remember a place: the next checkpoint writes all.
    pub(crate) fn break_off(&mut self) {
        self.files.break_off();
    }

    /// An entry has changed since the barrier.
    pub(crate) fn count_change(&mut self) {
        *self.changed += 1;
    }
}
