//! What a checkpoint of a heap table has still to read, and where that goes.
//!
//! The table is [walked over](super::walk). What is due is told by the table's [marks](super::marks_unsafe), and by the
//! segments that are written anew. Short entries that own no heap are [copied](super::copies), others encoded at once.
//!
//! What it keeps true: an entry that was read or kept is on its way, and has no place on storage, until it has its new
//! one. Until then it counts as one that the next checkpoint is to write, if this one is given up.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, PlacedAt, Result};

use super::copies::{CheckpointCopies, name_large};
use super::raw_table_unsafe::{EntryPosition, RawTable, slots_of};
use super::records_unsafe::RecordCopies;
use super::walk::{GroupSpan, TableWalk};
use crate::checkpoint::{LeftSets, Recording, Remembered, overtaken};
use crate::heap::record_position::RecordPosition;
use crate::support::booked::Booked;
use crate::support::first_panic::FirstPanic;
use crate::support::record_type_unsafe::{RecordRef, RecordType};

/// Entries that are kept together, and about their bytes.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 4 << 10;
/// Groups that are read together.
const GROUPS: usize = 8;
/// What an entry that is read alone costs, in slots that are read in order: it is not in the cache.
const SPARSE_COST: u64 = 4;
/// Copies of which the helper tells where they are: their entries are brought near so many before it is remembered.
const COPIES_AHEAD: usize = 16;

/// What is to be read still.
#[derive(Debug)]
pub(super) struct TableReading {
    record_type: &'static RecordType,
    walk: TableWalk,
    /// The table is read.
    pub is_read: bool,
    /// What was kept is read, too.
    pub is_done: bool,
    /// Entries that changed before they were read, as they were.
    kept: VecDeque<RecordCopies>,
    pub copies: CheckpointCopies,
    /// The table, once it was cleared.
    pub left: Option<ClearedTable>,
    /// Entries that are to be written, at most.
    pub records: u64,
    /// Whether each entry has to be looked at, and not only those with a bit: some are written anew, or sets are made.
    pub looks_at_each: bool,
    /// Of a checkpoint that was given up.
    pub sets: Option<LeftSets>,
    /// For what was kept.
    booked: Booked,
    pub follow: FollowedStream,
}

/// What the stream has earned the checkpoint: what it does not follow has no bound.
#[derive(Debug, Default)]
pub(super) struct FollowedStream {
    pub gone: u64,
    /// Buckets to be looked at.
    pub looks: Option<u64>,
    /// Calls, of which writing a record takes some.
    pub calls: Option<u64>,
}

/// A table that was cleared, and what is booked for its values.
#[derive(Debug)]
pub(super) struct ClearedTable {
    pub table: RawTable,
    pub values: u64,
}

impl TableReading {
    /// Of all entries.
    pub fn of_all(table: &RawTable, account: Rc<Account>) -> Self {
        let (record_type, records) = (table.record_type(), table.len());
        Self {
            record_type,
            walk: TableWalk::new(),
            is_read: false,
            is_done: false,
            kept: VecDeque::new(),
            copies: CheckpointCopies::new(record_type, account.clone(), records),
            left: None,
            records,
            looks_at_each: false,
            sets: None,
            booked: Booked::buffers(account, 0),
            follow: FollowedStream::default(),
        }
    }

    /// Bytes of values that the table still has, once it was cleared.
    pub fn values_left(&self) -> u64 {
        self.left.as_ref().map_or(0, |left| left.values)
    }

    /// Whether an entry is to be read.
    pub fn is_due(&self, table: &mut RawTable, spot: EntryPosition, of: &Remembered) -> bool {
        table.is_captured(spot) || self.looks_at_each && of.is_anew(table.place(spot))
    }

    /// Whether each entry has to be looked at, and not only those with a bit.
    fn looks_at_each(&self, table: &RawTable) -> bool {
        table.takes_all() || self.looks_at_each
    }

    /// Passes over blocks of which no bit is set, `most` of them at most, but not over the last one; says how many.
    pub fn pass_clear(&mut self, table: &RawTable, most: u64) -> u64 {
        if self.is_read || self.left.is_some() || self.looks_at_each(table) {
            return 0;
        }
        (0..most).take_while(|_| self.walk.pass_clear(table)).count() as u64
    }

    /// The groups that are read next.
    fn next_run(&self, table: &RawTable) -> Option<GroupSpan> {
        let mut walk = self.walk;
        walk.next(self.left.as_ref().map_or(table, |left| &left.table), GROUPS)
    }

    /// What reading the next part is worth, in slots that are read in order.
    pub fn cost(&mut self, table: &mut RawTable) -> u64 {
        let Some(run) = self.next_run(table).filter(|_| !self.is_read) else { return KEPT as u64 };
        let all = RawTable::slots_of_groups(run.groups.len()) as u64;
        if self.left.is_some() || self.looks_at_each(table) {
            return all;
        }
        let dirty = table.dirty(run.index);
        let mut cost = 1;
        for group in run.groups {
            if table.is_dirty_in(dirty, group) {
                let due = table.captured(run.index, group).count_ones();
                cost += 1 + SPARSE_COST * u64::from(due);
            }
        }
        all.min(cost)
    }

    /// Copies for which there has to be room before the next part is read.
    pub fn room(&self, table: &RawTable) -> usize {
        match self.next_run(table) {
            Some(run) if !self.is_read => RawTable::slots_of_groups(run.groups.len()),
            _ => KEPT,
        }
    }

    /// Keeps an entry that is due and about to change; says whether there was room.
    pub fn keep(&mut self, table: &RawTable, spot: EntryPosition) -> bool {
        let Some(record) = table.entry(spot) else { return true };
        let capacity = (KEPT_BYTES / self.record_type.layout().size().max(1)).clamp(1, KEPT);
        let is_full = self.kept.back().is_none_or(|kept| kept.len() == kept.capacity());
        let chunk = RecordCopies::memory_bytes(self.record_type, capacity) as u64 + 64;
        let more = if is_full { chunk } else { 0 };
        let bytes = more + record.heap_bytes();
        if self.booked.account().available() < bytes + self.copies.leaves {
            return false;
        }
        self.booked.charge(bytes);
        if is_full {
            self.kept.push_back(RecordCopies::with_capacity(self.record_type, capacity));
        }
        let kept = self.kept.back_mut().expect("made above");
        kept.push(record.hash(), record);
        true
    }

    /// Takes out some of what was kept; and how much is to be unbooked once it is dropped.
    fn take_kept(&mut self) -> Option<(RecordCopies, u64)> {
        let kept = self.kept.pop_front()?;
        let heap: u64 = (0..kept.len()).map(|nth| kept.get(nth).1.heap_bytes()).sum();
        let chunk = RecordCopies::memory_bytes(self.record_type, kept.capacity()) as u64 + 64;
        // A clone that panicked was booked, and is not there.
        Some((kept, (heap + chunk).min(self.booked.bytes())))
    }

    /// Of a checkpoint that was given up: drops a bounded part of what it has kept; says whether there was something. Values
    /// that panic when they are dropped do so for nobody.
    pub fn drop_step(&mut self) -> bool {
        let had_set = self.sets.as_mut().is_some_and(LeftSets::drop_one);
        if had_set || self.sets.take().is_some() || self.copies.drop_one() {
            return true;
        }
        if let Some((kept, bytes)) = self.take_kept() {
            drop(catch_unwind(AssertUnwindSafe(|| drop(kept))));
            self.booked.give_some_back(bytes);
            return true;
        }
        let Some(ClearedTable { table, .. }) = &mut self.left else { return false };
        if !table.drop_step(&mut FirstPanic::default()) {
            self.drop_left();
        }
        true
    }

    /// Drops the table that was cleared.
    pub fn drop_left(&mut self) {
        if let Some(ClearedTable { table, values }) = self.left.take() {
            // The drop may panic.
            self.booked.account().release(MemoryKind::Values, values);
            drop(table);
        }
    }

    /// Reads the next groups of the table, or some of what was kept, into the writer's batch, or as copies if there is
    /// none; there is [room](TableReading::room) for them. Says whether there were any.
    pub fn read_part(&mut self, table: &mut RawTable, to: &mut Recording<'_>) -> Result<bool> {
        if self.is_read {
            self.is_done = !self.read_kept(table, to)?;
            return Ok(!self.is_done);
        }
        let read = match self.left.take() {
            None => self.read_groups(table, to),
            Some(mut left) => {
                let of = &mut left.table;
                // If code of the user panics, the table goes later, in parts.
                let read = catch_unwind(AssertUnwindSafe(|| self.read_groups(of, to)));
                self.left = Some(left);
                read.unwrap_or_else(|payload| resume_unwind(payload))
            }
        };
        if self.is_read {
            self.drop_left();
        }
        read.map(|()| true)
    }

    fn read_groups(&mut self, table: &mut RawTable, to: &mut Recording<'_>) -> Result<()> {
        let run = self.walk.next(table, GROUPS);
        self.is_read = self.walk.place.is_none();
        let Some(GroupSpan { index, groups }) = run else { return Ok(()) };
        let looks_at_each = self.looks_at_each(table);
        let dirty = table.dirty(index);
        let is_looked_at =
            |table: &RawTable, group| looks_at_each || table.is_dirty_in(dirty, group);
        for group in groups.clone().filter(|group| is_looked_at(table, *group)) {
            table.look_ahead_at_group(index, group, looks_at_each);
        }
        for group in groups {
            if !is_looked_at(table, group) {
                continue;
            }
            let captured = table.captured(index, group);
            let slots = match looks_at_each {
                true => table.occupied_slots(index, group),
                false => captured,
            };
            for slot in slots_of(slots) {
                let spot = EntryPosition::new(index, group, slot);
                if captured >> slot & 1 == 1 || to.is_anew(table.place(spot)) {
                    self.take(spot, table, to)?;
                } else {
                    to.keep(table.place(spot));
                }
            }
            table.clean(index, group);
        }
        if !to.is_first() && !table.notes_places() {
            // Lost for want of memory: which records of before are outdated is not known any more.
            return Err(overtaken());
        }
        Ok(())
    }

    /// Takes an entry.
    fn take(
        &mut self,
        spot: EntryPosition,
        table: &mut RawTable,
        to: &mut Recording<'_>,
    ) -> Result<()> {
        let Some(record) = table.entry(spot) else { return Ok(()) };
        if !to.has_batch() {
            // Hash and clone may panic, and then nothing has changed.
            self.copies.push(record.hash(), record);
            to.count_encoded();
            table.owe(spot);
            return outdate(spot, RecordPosition::NONE, table, to);
        }
        let at = to.write_record(record).map_err(|error| name_large(error, record))?;
        let newer = place_of(at, table, to);
        outdate(spot, newer, table, to)?;
        table.settle(spot);
        Ok(())
    }

    /// Takes a short entry that is due and about to change, before it is its turn: there is [room](CheckpointCopies::has_room_left)
    /// for it.
    pub fn take_early(
        &mut self,
        spot: EntryPosition,
        table: &mut RawTable,
        to: &mut Recording<'_>,
    ) -> Result<()> {
        let Some(record) = table.entry(spot) else { return Ok(()) };
        // Hash and clone may panic, and then nothing has changed.
        self.copies.push(record.hash(), record);
        to.count_encoded();
        // It has no record until its copy is written.
        table.mark_changed(spot);
        outdate(spot, RecordPosition::NONE, table, to)
    }

    fn read_kept(&mut self, table: &mut RawTable, to: &mut Recording<'_>) -> Result<bool> {
        let Some((kept, bytes)) = self.take_kept() else { return Ok(false) };
        for nth in 0..kept.len() {
            let (note, record) = kept.get(nth);
            if !to.has_batch() {
                to.count_encoded();
                self.copies.push(note.hash, record);
                continue;
            }
            let at = to.write_record(record).map_err(|error| name_large(error, record))?;
            let place = place_of(at, table, to);
            arrive(note.hash, record, place, table, to);
        }
        drop(kept);
        self.booked.give_some_back(bytes);
        Ok(true)
    }

    /// Takes back the chunk that the helper has written, and has the table remember where its records are.
    pub fn settle(&mut self, table: &mut RawTable, to: &mut Recording<'_>) -> Result<()> {
        let Some(chunk) = self.copies.take_written()? else { return Ok(()) };
        // Of a table that was cleared nothing is remembered.
        let len = if table.notes_places() { chunk.len() } else { 0 };
        for nth in 0..len {
            if nth + COPIES_AHEAD < len {
                table.look_ahead(chunk.get(nth + COPIES_AHEAD).0.hash);
            }
            let (note, record) = chunk.get(nth);
            let place = place_of(note.at, table, to);
            arrive(note.hash, record, place, table, to);
        }
        self.copies.give_back(chunk);
        Ok(())
    }
}

/// An entry that was on its way has its record, there. It may be gone, or have changed.
fn arrive(
    hash: u64,
    record: RecordRef<'_>,
    place: RecordPosition,
    table: &mut RawTable,
    to: &mut Recording<'_>,
) {
    let spot = table.find(hash, &mut |entry| entry.has_key_of(record));
    match spot {
        Some(spot) if table.notes_places() => {
            table.set_place(spot, place);
            table.settle(spot);
        }
        _ => to.note_dead(place),
    }
}

/// The place of a record that was written, for a table that remembers it.
fn place_of(at: PlacedAt, table: &RawTable, to: &mut Recording<'_>) -> RecordPosition {
    if table.notes_places() { to.place_of(at) } else { RecordPosition::NONE }
}

/// An entry has a newer record, there, or is on its way.
pub(super) fn outdate(
    spot: EntryPosition,
    newer: RecordPosition,
    table: &mut RawTable,
    to: &mut Recording<'_>,
) -> Result<()> {
    let older = table.place(spot);
    table.set_place(spot, newer);
    to.outdate(older)
}

impl Drop for TableReading {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        panic.catch(|| self.drop_left());
        while let Some(kept) = self.kept.pop_front() {
            panic.catch(|| drop(kept));
        }
        panic.resume();
    }
}
