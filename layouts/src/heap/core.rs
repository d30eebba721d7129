//! A heap table whose records' types are erased: all of it but the record path. Compiled once.

use alluvium_pagestore::{
    BlobWriter, Error, ErrorKind, ImagePart, MemoryKind, PlacedAt, Result, StateImage,
};

use super::copies::CheckpointCopies;
use super::group_unsafe::BLOCK_ENTRIES_MAX;
use super::growing_unsafe::EXPECTED_BLOCKS_MAX;
use super::raw_table_unsafe::{EntryPosition, RawTable};
use super::reading::TableReading;
use super::walk::TableWalk;
use crate::checkpoint::{Remembered, WriterSizes, at_once};
use crate::contract::expiry::ExpiryPass;
use crate::contract::table::{CheckpointOutcome, Cursor, StateContext, TableStats};
use crate::contract::upkeep::Upkeep;
use crate::heap::hash_range::HashRange;
use crate::heap::lent::check_not_overdrawn;
use crate::heap::record_position::RecordPosition;
use crate::restore::full_image::{kept_for_one, kept_free, sizes_of, sizes_of_values};
use crate::restore::left_runs::LeftRuns;
use crate::support::first_panic::FirstPanic;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::oversize::Oversize;
use crate::support::record_type_unsafe::{RecordRef, RecordType};

/// Entries that are copied for a checkpoint are no longer: some hundreds of them are copied at a time.
const COPIED_BYTES_MAX: usize = 64;
/// Groups that a step of a pass for what has expired looks at.
const EXPIRY_GROUPS: usize = 4;

/// Whether the records of a heap table can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Stored,
    Volatile,
}

/// A heap table of records of any types.
#[derive(Debug)]
pub(crate) struct HeapCore {
    pub(super) context: StateContext,
    pub(super) table: RawTable,
    durability: Durability,
    /// So many keys are to come into the empty table.
    pub(super) expected: u64,
    /// The checkpoint being taken.
    pub(super) reading: Option<Box<TableReading>>,
    /// Whether changes concern it, at most.
    pub(super) reads: bool,
    /// What checkpoints that were given up have left: goes a part at a time.
    pub(super) left_over: Vec<TableReading>,
    /// What checkpoints have.
    pub(super) remembered: Remembered,
    left_runs: LeftRuns,
    pub(super) codec_calls: u64,
    /// Entries looked at for those of some hashes.
    pub(super) sought: u64,
    pub(super) oversize: Oversize,
    /// What writes leave free for the next checkpoint, and for opening it.
    kept: u64,
    /// Whether what was there before is there, and writes leave room for a checkpoint.
    is_open: bool,
}

fn table_of(context: &StateContext, record_type: &'static RecordType) -> RawTable {
    let range = HashRange::of(&context.owned, context.key_groups);
    let table = RawTable::new(record_type, context.account.clone(), range);
    table.expect_few_of(context.key_groups)
}

impl HeapCore {
    /// An empty one.
    pub fn new(
        context: StateContext,
        record_type: &'static RecordType,
        durability: Durability,
    ) -> DroppedHere<Self> {
        DroppedHere::new(Self {
            remembered: Remembered::new(&context),
            left_runs: LeftRuns::none(context.account.clone()),
            oversize: Oversize::new(&context.name, context.max_value_bytes),
            table: table_of(&context, record_type),
            context,
            durability,
            expected: 0,
            reading: None,
            reads: false,
            left_over: Vec::new(),
            codec_calls: 0,
            sought: 0,
            kept: 0,
            is_open: false,
        })
    }

    pub(super) fn empty_table(&self) -> RawTable {
        table_of(&self.context, self.table.record_type())
    }

    /// Whether a checkpoint copies entries ahead: short ones that own no heap.
    pub(super) fn is_copied(&self) -> bool {
        let record_type = self.table.record_type();
        record_type.is_plain() && record_type.layout().size() <= COPIED_BYTES_MAX
    }

    /// How a checkpoint is written, if there can be one.
    pub(super) fn sizes(&self) -> Result<WriterSizes> {
        if self.durability == Durability::Volatile {
            let message = "volatile heap state cannot be part of a checkpoint";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with("state", &self.context.name));
        }
        Ok(self.sizes_of(self.table.len(), self.longest_bytes()))
    }

    /// Bytes of the longest archive, as far as is known.
    fn longest_bytes(&self) -> u64 {
        let entry = self.table.record_type().layout().size() as u64;
        (2 * entry + self.oversize.noted_bytes()).min(self.context.max_value_bytes)
    }

    /// Sizes for so many records, whose archives have so many bytes if they own heap.
    fn sizes_of(&self, records: u64, archive: u64) -> WriterSizes {
        let record_type = self.table.record_type();
        match record_type.is_plain() {
            true => sizes_of(&self.context, records, Some(record_type.layout().size())),
            false => sizes_of_values(&self.context, records, archive),
        }
    }

    /// From now on it is noted how long values are.
    pub fn note_longest(&mut self) {
        if self.context.segments.is_some() && !self.table.record_type().is_plain() {
            self.oversize.keep_room_in(&self.context.account, 1);
        }
    }

    /// All that was there before is there: writes from now on leave room for a checkpoint.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if there is none for that of a new table.
    pub fn keep_free(&mut self) -> Result<()> {
        self.is_open = true;
        self.keep_free_for(self.table.capacity());
        match self.table.capacity() {
            0 => self.context.account.ensure(self.kept, "a checkpoint"),
            _ => Ok(()),
        }
    }

    /// Of a table of one plain entry: the growth of other states leaves what its checkpoint takes.
    pub fn leave_free_for_one(&self) {
        let stored = self.durability == Durability::Stored && self.context.segments.is_some();
        if stored {
            let writing = kept_for_one(&self.sizes_of(1, 0)) + self.copies_for(1);
            let growth = self.table.growth_bytes(0);
            self.context.account.keep_free(writing + growth, 0);
        }
    }

    /// From now on writes leave free what a checkpoint of so many entries takes. Writes of other states leave that too,
    /// with the longest values seen so far.
    fn keep_free_for(&mut self, entries: u64) {
        self.kept = self.kept.max(self.kept_for(entries));
        if self.kept > 0 {
            let values = 2 * self.table.record_type().layout().size() as u64;
            self.context.account.keep_free(self.taken_by(entries, values), 0);
        }
    }

    /// The least that copies of so many entries take.
    fn copies_for(&self, entries: u64) -> u64 {
        match self.is_copied() {
            true => CheckpointCopies::least_bytes(self.table.record_type(), entries),
            false => 0,
        }
    }

    /// What a checkpoint of so many entries takes, or reading it.
    pub(super) fn kept_for(&self, entries: u64) -> u64 {
        if self.durability == Durability::Volatile || self.context.segments.is_none() {
            return 0;
        }
        let is_plain = self.table.record_type().is_plain();
        // A closure may make a value longer that has as much room.
        let value = if is_plain { 0 } else { self.context.max_value_bytes };
        self.taken_by(entries, value) + value
    }

    /// What a checkpoint of so many entries takes, or reading it, with archives of so many bytes if they own heap.
    fn taken_by(&self, entries: u64, archive: u64) -> u64 {
        let is_plain = self.table.record_type().is_plain();
        let sizes = self.sizes_of(if is_plain { entries } else { u64::MAX }, archive);
        kept_free(&self.context, &sizes) + self.copies_for(entries)
    }

    /// The entries of an image are going to be put into the empty table.
    pub fn begin_restore(&mut self, image: &StateImage) {
        if self.expected > 0 {
            // Whoever opens a state waits for all of its entries.
            self.table.expect(self.expected, u64::MAX);
            self.expected = 0;
        }
        if self.remembered.begin_restoring(image) {
            self.table.note_places();
        }
    }

    /// An entry that owns so much heap has come from storage.
    pub fn found(&mut self, heap_bytes: u64) {
        self.codec_calls += 1;
        self.oversize.found(heap_bytes);
    }

    /// The entry that was put last was restored from there. `None` if its key had been put before.
    pub fn restored(&mut self, spot: Option<EntryPosition>, at: PlacedAt) {
        if let Some(spot) = spot
            && self.table.notes_places()
        {
            self.table.mark_restored(spot, RecordPosition::of(at.segment, at.grain));
        }
        self.look_for_lost_places();
    }

    /// All entries of an image were put.
    pub fn end_restore(&mut self, image: &StateImage) {
        // Records are counted as they are found.
        self.remembered.end_restoring(image, 0);
        if self.table.len() != image.entries || !self.remembered.is_on() {
            // Another build's: what is dead in it is not known.
            self.give_up_marks();
        }
    }

    /// An error of reading sorted runs: one for want of memory says what an image has.
    pub fn too_large(&self, error: Error, image: &StateImage) -> Error {
        if error.kind() != ErrorKind::OverBudget {
            return error;
        }
        let (there, all) = (self.table.len(), image.entries);
        let what = format!(
            "a heap has no room for what a hybrid log had in sorted runs (see cold-runs): {there} of {all} entries are in \
             memory. Give it more memory, or open it as a hybrid log"
        );
        Error::new(ErrorKind::OverBudget, what).caused_by(error).with("state", &self.context.name)
    }

    /// All entries of an image were put, of which this part is in sorted runs: the table needs them no more.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are not as many as the image says, and none can have expired.
    pub fn has_restored(&mut self, part: &ImagePart, image: &StateImage) -> Result<()> {
        let (there, all) = (self.table.len(), image.entries);
        if part.touched.is_none() && there != all {
            let what = format!("{there} entries in segments and sorted runs, {all} expected");
            return Err(Error::new(ErrorKind::Corrupt, what).with("state", &self.context.name));
        }
        self.left_runs.add(part)
    }

    /// What a write leaves free now: a checkpoint that is being taken has its part of it.
    #[inline]
    pub fn kept(&self) -> u64 {
        if self.reading.is_some() { 0 } else { self.kept }
    }

    /// Writes are refused while values have outgrown the memory, or have too little to grow beside what other states keep.
    #[inline]
    pub fn check_not_overdrawn(&mut self) -> Result<()> {
        let account = &self.context.account;
        // The usual case, which asks nobody.
        let kept = self.kept.max(self.left_by_growth());
        if account.available() > kept { Ok(()) } else { self.check_slowly() }
    }

    /// What is free before a closure makes a value longer, so that enough is left to others.
    #[inline]
    fn left_by_growth(&self) -> u64 {
        match self.context.account.left_to_others() {
            0 => 0,
            left => left + self.context.max_value_bytes,
        }
    }

    #[cold]
    #[inline(never)]
    fn check_slowly(&mut self) -> Result<()> {
        loop {
            let kept = self.kept().max(self.left_by_growth());
            match check_not_overdrawn(&self.context.account, kept) {
                // Memory that nothing visible needs.
                Err(_) if self.drop_all_left() || self.give_up_marks() => {}
                checked => return checked,
            }
        }
    }

    /// Drops what checkpoints that were given up have left; says whether there was something.
    pub(super) fn drop_all_left(&mut self) -> bool {
        let is_some = self.drop_some_left();
        while self.drop_some_left() {}
        is_some
    }

    /// Bytes of values of a table that was cleared, which a checkpoint reads still.
    pub(super) fn values_left(&self) -> u64 {
        self.reading
            .as_deref()
            .into_iter()
            .chain(&self.left_over)
            .map(TableReading::values_left)
            .sum()
    }

    /// Does what takes memory; while there is too little, what checkpoints hold or remember is given up.
    pub(super) fn with_room<R>(
        &mut self,
        take: &mut dyn FnMut(&mut Self) -> Result<R>,
    ) -> Result<R> {
        loop {
            match take(self) {
                Err(error) if !self.give_way() => return Err(error),
                Err(_) => {}
                taken => return taken,
            }
        }
    }

    /// Gives up what checkpoints that were given up have left, or what one still reads of a table that was cleared, or what
    /// is remembered of checkpoints, for which one that needs that is read to its end before; says whether there was any.
    fn give_way(&mut self) -> bool {
        if self.drop_all_left() {
            return true;
        }
        if self.values_left() > 0 {
            self.read_rest();
            return self.values_left() == 0;
        }
        if self.give_up_marks() {
            return true;
        }
        if self.table.notes_places() {
            self.read_rest();
        }
        self.give_up_marks()
    }

    /// Whether another entry that owns so much heap has room as it is.
    #[inline]
    pub fn has_room(&self, hash: u64, heap_bytes: u64) -> bool {
        let account = &self.context.account;
        self.table.has_room(hash)
            && account.available() > self.kept + heap_bytes
            && (heap_bytes == 0
                || heap_bytes <= self.oversize.noted_bytes()
                    && account.available() > account.left_to_others() + heap_bytes)
    }

    /// Makes room for one more entry that owns so much; changes nothing visible.
    #[cold]
    #[inline(never)]
    pub fn make_room(&mut self, hash: u64, heap_bytes: u64) -> Result<()> {
        if self.reads {
            // Entries that move are marked as those of before the barrier.
            self.plan_capture();
        }
        let expected = std::mem::take(&mut self.expected);
        if expected > 0 && self.reading.is_none() {
            self.table.expect(expected, EXPECTED_BLOCKS_MAX);
        }
        self.with_room(&mut |core| {
            // Step by step: a split that moves no entry is followed by others, which leave as much free.
            while !core.table.has_room(hash) {
                if core.is_open {
                    let grown = core.table.capacity() + BLOCK_ENTRIES_MAX;
                    core.keep_free_for(grown);
                }
                let more = heap_bytes + core.table.growth_bytes(hash);
                core.context.account.ensure_left(more, "a new entry")?;
                let needed = more + core.kept();
                core.context.account.ensure(needed, "a new entry")?;
                core.table.grow_step(hash)?;
            }
            if heap_bytes > 0 {
                core.context.account.ensure_left(heap_bytes, "a new entry")?;
            }
            core.context.account.ensure(heap_bytes + core.kept(), "a new entry")?;
            core.oversize.note(heap_bytes);
            Ok(())
        })
    }

    /// Makes room for a value to own so much more.
    #[cold]
    #[inline(never)]
    pub fn make_room_for_value(&mut self, more: u64) -> Result<()> {
        let needed = more + self.kept();
        let ensure = |core: &mut Self| {
            core.context.account.ensure_left(more, "a larger value")?;
            core.context.account.ensure(needed, "a larger value")
        };
        self.with_room(&mut { ensure })
    }

    /// An entry was removed, whose record was there.
    pub(super) fn note_dead(&mut self, place: RecordPosition) {
        if place != RecordPosition::NONE {
            self.remembered.note_dead(place);
        }
    }

    /// Removes the entry at a spot, and drops it.
    pub(super) fn remove_at(&mut self, spot: EntryPosition, hash: u64) {
        self.note_change(spot);
        let Some(entry) = self.table.entry(spot) else { return };
        let heap = entry.heap_bytes();
        // The drop may panic, and then the entry is gone, too.
        self.note_dead(self.table.place(spot));
        self.context.account.release(MemoryKind::Values, heap);
        self.table.drop_entry(spot, hash);
    }

    pub fn clear(&mut self) {
        self.leave();
        self.oversize.forget();
    }

    /// Visits about so many entries from `cursor` on, all of a block together.
    pub fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(RecordRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut visited = 0;
        while !cursor.done && visited < fuel.max(1) {
            let (index, after) = self.table.part_at(cursor.position);
            for entry in index.into_iter().flat_map(|index| self.table.entries_at(index)) {
                visit(entry)?;
                visited += 1;
            }
            visited += 1;
            cursor.go_on(after);
        }
        Ok(())
    }

    /// Goes on with a pass that removes what has expired.
    pub fn expire<V>(
        &mut self,
        pass: &mut ExpiryPass<V>,
        fuel: usize,
        has_expired: &mut dyn FnMut(&mut ExpiryPass<V>, RecordRef<'_>) -> bool,
    ) {
        if self.is_reading() {
            // What is removed while a checkpoint is taken would be copied for it.
            return;
        }
        let mut cursor = pass.cursor;
        pass.removed += self.expire_step(&mut cursor, fuel, &mut |entry| has_expired(pass, entry));
        pass.cursor = cursor;
    }

    fn expire_step(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        has_expired: &mut dyn FnMut(RecordRef<'_>) -> bool,
    ) -> u64 {
        let mut walk = TableWalk::at(cursor.position, cursor.version, self.table.moved());
        let (mut looked, mut removed) = (0, 0);
        while looked < fuel.max(1) {
            let Some(run) = walk.next(&self.table, EXPIRY_GROUPS) else { break };
            looked += RawTable::slots_of_groups(run.groups.len()) / 2;
            for group in run.groups {
                for spot in self.table.spots(run.index, group) {
                    let entry = self.table.entry(spot).expect("it has one");
                    if has_expired(entry) {
                        let hash = entry.hash();
                        self.remove_at(spot, hash);
                        removed += 1;
                    }
                }
            }
        }
        (cursor.position, cursor.version) = walk.position();
        cursor.done = walk.place.is_none();
        removed
    }

    /// Returns its [`Upkeep`]. Never inlined: where a `dyn` is made, the code that drops the value is compiled.
    #[inline(never)]
    pub fn as_upkeep(&self) -> &dyn Upkeep {
        self
    }

    /// Does the same, mutable.
    #[inline(never)]
    pub fn as_upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self
    }
}

impl Upkeep for HeapCore {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.context.helper.drive();
        Ok((0..work).take_while(|_| self.drop_some_left()).count())
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let before = self.context.account.used();
        self.drop_all_left();
        if before - self.context.account.used() < bytes {
            self.give_up_marks();
        }
        Ok(before - self.context.account.used())
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let account = &self.context.account;
        (account.used(), account.limit())
    }

    fn kept_bytes(&self) -> u64 {
        self.kept
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture().map(|()| None)
    }

    fn pace_checkpoint(&mut self, pace: crate::contract::table::Pace) {
        self.pace_capture(pace);
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture(blobs).map_err(|error| error.with("state", &self.context.name))
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_capture(outcome);
        if outcome == CheckpointOutcome::Committed {
            self.left_runs.remove(self.context.segments.as_ref());
        }
    }

    fn stats(&self) -> TableStats {
        let live_keys = self.table.len();
        let values = self.context.account.used_for(MemoryKind::Values) - self.values_left();
        let entry_bytes = self.table.record_type().layout().size() as u64;
        let mut stats = TableStats {
            live_keys,
            live_bytes: live_keys * entry_bytes + values,
            codec_calls: self.codec_calls,
            sought: self.sought,
            oversized: self.oversize.told(),
            ..TableStats::default()
        };
        self.remembered.describe(&mut stats);
        stats
    }
}

impl Drop for HeapCore {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        panic.catch(|| self.reading = None);
        panic.catch(|| self.left_over = Vec::new());
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
        panic.resume();
    }
}
