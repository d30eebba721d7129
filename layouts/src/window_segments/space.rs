//! Memory that gets short: which slice is written, and what is waited for.
//!
//! With less than an eighth of the memory free, the slice that is read last is written in the
//! background; one at a time, so that what waits is bounded. A call that finds no room waits for
//! that, then has the next one written. What could not be written stays as it is, readable, and is
//! written first when memory is needed again; the call that needed it has the error.

use std::sync::Arc;
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result};

use super::background::SliceJobOutcome;
use super::core::SegmentsCore;
use super::run::SliceRun;
use super::slice::{CachedRun, UnwrittenTable};
use super::writing::WrittenRun;
use crate::checkpoint::{FileBytes, files_of};
use crate::contract::table::TableStats;
use crate::contract::upkeep::Upkeep;
use crate::trace_event;

/// A table is written if it takes more than so many quarters of the least that is booked for a run.
const GAIN: u64 = 5;

impl SegmentsCore {
    /// Takes in what the helper has done, without waiting.
    #[inline]
    pub(super) fn settle(&mut self) {
        while let Some(answer) = self.background.jobs.poll() {
            let _told_when_it_matters = self.apply(answer);
        }
        self.settle_reads();
    }

    /// Makes sure that `bytes` can be booked.
    pub(super) fn make_room(&mut self, bytes: u64, what: &str) -> Result<()> {
        // What needs nothing, as a fold within what is kept for it, does not wait for slack.
        if bytes == 0 || self.account.available() >= bytes && self.fund.has_slack() {
            return Ok(());
        }
        self.make_room_by_writing(bytes, what)
    }

    /// [`make_room`](SegmentsCore::make_room) for what stays, which leaves other states what they keep free.
    pub(super) fn make_room_to_stay(&mut self, bytes: u64, what: &str) -> Result<()> {
        let account = self.account.clone();
        if account.ensure_left(bytes, what).is_ok() {
            return self.make_room(bytes, what);
        }
        self.make_room(bytes + account.left_to_others(), what)
    }

    #[cold]
    fn make_room_by_writing(&mut self, bytes: u64, what: &str) -> Result<()> {
        let mut since: Option<Instant> = None;
        self.book_left();
        loop {
            self.settle();
            self.fund.fill_slack();
            if self.account.available() >= bytes && self.fund.has_slack() {
                return Ok(());
            }
            if self.give_up_what_was_read(bytes) || self.bury(1024) < 1024 {
                continue;
            }
            if self.move_small(bytes)? {
                continue;
            }
            let more = self.spill()?;
            if !more && self.background.jobs.pending() == 0 && !self.is_reading() {
                return self
                    .account
                    .ensure(bytes.max(1), what)
                    .map_err(|e| e.with("state", &self.context.name));
            }
            let since = since.get_or_insert_with(|| {
                self.stats.stalls += 1;
                Instant::now()
            });
            if since.elapsed() > self.sizes.patience {
                let message = format!("{what} waits for slices that are being written");
                return Err(
                    Error::new(ErrorKind::Backpressure, message).with("state", &self.context.name)
                );
            }
            if let Some(answer) = self.background.wait() {
                self.apply(answer)?;
            }
        }
    }

    /// Has a slice written in the background, now that memory gets short.
    #[cold]
    pub(super) fn spill_ahead(&mut self) {
        self.settle();
        // A checkpoint reads the tables; it is not hurried before the memory is used up.
        let is_short = self.account.available() < self.sizes.low_water_bytes;
        if is_short && !self.failing && !self.is_captured() {
            // What fails here is met by the call that needs the memory.
            if !matches!(self.move_ahead(), Ok(true)) {
                let _ = self.spill();
            }
        }
    }

    /// Books what it takes to write and to read the largest value, if a closure has made one too large.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] naming its key.
    pub(super) fn book_longest(&mut self) -> Result<()> {
        let Some((bytes, key)) = self.oversize.longest() else { return Ok(()) };
        let more = bytes.saturating_sub(self.sizes.value_bytes);
        let what = "the archive of a value that is larger than max_value";
        self.account
            .reserve(MemoryKind::Buffers, 2 * more, what)
            .map_err(|e| e.with("state", &self.context.name).with("key", key))?;
        self.sizes.writer_bytes += more;
        self.sizes.read_value_bytes += more;
        self.sizes.value_bytes += more;
        Ok(())
    }

    /// Has the slice written that is read last, and says whether one is being written.
    pub(super) fn spill(&mut self) -> Result<bool> {
        if self.background.storage.is_none() {
            return Ok(false);
        }
        if self.writing != 0 {
            return Ok(true);
        }
        let Some(slot) = self.slot_to_write() else { return Ok(false) };
        let found = self.slice_at(slot);
        let is_frozen = found.frozen.is_some();
        let records = found.frozen.as_ref().map_or(found.active.len(), |part| part.table.len());
        let native = found.frozen.as_ref().map_or(found.active_bytes(), |p| p.table.memory_bytes());
        // A record's header, footer entry and archive, if that is twice the native form.
        let bytes = 2 * native + 48 * records;
        let (image, segment) = (self.sizes.image_bytes, self.sizes.segment_bytes);
        let needed = SliceRun::booked_bytes_of(records, bytes, image, segment);
        self.fill_reserve();
        if self.reserve_bytes < needed.min(self.sizes.reserve_bytes) {
            return Ok(false);
        }
        // A short run takes as much as the few entries of a block do: memory would fill with runs.
        if !is_frozen && native <= SliceRun::booked_bytes_min() / 4 * GAIN {
            return Ok(false);
        }
        self.book_longest()?;
        let found = self.slots[slot].as_mut().expect("a slice in use");
        if found.captured.is_some() {
            self.read_rest();
        }
        let found = self.slots[slot].as_mut().expect("a slice in use");
        self.jobs += 1;
        let job = self.jobs;
        if found.frozen.is_none() {
            let table = Arc::new(found.active.freeze());
            let number = found.next_number;
            found.next_number += 1;
            found.heap_bytes = 0;
            found.in_group = None;
            found.frozen = Some(UnwrittenTable { number, job: 0, table });
            self.arrangement += 1;
        }
        let part = found.frozen.as_mut().expect("frozen above");
        part.job = job;
        self.writing = job;
        trace_event!(DEBUG, "slice spilled", state = self.context.name, entries = part.table.len());
        self.background.write(job, part.table.clone(), self.sizes);
        Ok(true)
    }

    /// One that could not be written; else the last that takes its share of the memory; else the
    /// one that takes most.
    fn slot_to_write(&self) -> Option<usize> {
        let mut most = (0, None);
        let mut pick = None;
        for &slot in self.by_time.values().rev() {
            let found = self.slice_at(slot as usize);
            match &found.frozen {
                Some(part) if part.job == 0 => return Some(slot as usize),
                Some(_) => continue,
                None => {}
            }
            let bytes = if !found.active.is_empty() { found.active_bytes() } else { 0 };
            if pick.is_none() && bytes >= self.sizes.spill_bytes_min {
                pick = Some(slot as usize);
            }
            if bytes > most.0 {
                most = (bytes, Some(slot as usize));
            }
        }
        pick.or(most.1)
    }

    /// Takes in one answer.
    ///
    /// # Errors
    /// That of a run that could not be written; everything is as it was then.
    pub(super) fn apply(&mut self, answer: SliceJobOutcome) -> Result<()> {
        match answer {
            SliceJobOutcome::Dropped { table_bytes, heap_bytes } => {
                self.account.release(MemoryKind::Index, table_bytes);
                self.account.release(MemoryKind::Values, heap_bytes);
                self.fill_reserve();
            }
            SliceJobOutcome::Removed { bytes } => self.disk_bytes -= bytes,
            SliceJobOutcome::Merged { job, result } => self.merged(job, result),
            SliceJobOutcome::Written { job, table, result } => {
                self.writing = 0;
                self.failing = result.is_err();
                let slot = self.slots.iter().position(|slice| {
                    let part = slice.as_ref().and_then(|slice| slice.frozen.as_ref());
                    part.is_some_and(|part| part.job == job)
                });
                let state = self.context.name.clone();
                let written = match (result, slot) {
                    (Ok(written), _) => written,
                    (Err(_), Some(slot)) if !self.is_seen(slot) => {
                        // The slice was purged meanwhile.
                        self.was_dropped(&table);
                        drop(self.slice_at_mut(slot).frozen.take());
                        self.background.drop_table(table);
                        return Ok(());
                    }
                    (Err(error), Some(slot)) => {
                        self.was_not_written(&table, &error);
                        let part = self.slice_at_mut(slot).frozen.as_mut();
                        part.expect("found by it").job = 0;
                        return Err(error.with("state", state));
                    }
                    (Err(_), None) => {
                        self.was_dropped(&table);
                        self.background.drop_table(table);
                        return Ok(());
                    }
                };
                let is_held = self.was_written(&table, &written);
                self.disk_bytes += sum(&written);
                self.stats.codec_calls += written.records;
                self.stats.pages_flushed += written.images.len() as u64;
                self.stats.flushed_bytes += sum(&written);
                if let Some(slot) = slot {
                    let part = self.slice_at_mut(slot).frozen.take().expect("found by it");
                    drop(part.table);
                    let run = Arc::new(run_of(part.number, 0, written));
                    self.book_run_from_reserve(&run);
                    self.slice_at_mut(slot).runs.push(CachedRun::new(run));
                    self.arrangement += 1;
                    self.merge_runs(slot);
                } else {
                    // The slice was purged meanwhile.
                    if is_held {
                        let run = run_of(0, 0, written);
                        self.book_run_from_reserve(&run);
                        let free = self.run_went(&run);
                        assert!(free.is_empty(), "a checkpoint names what it holds");
                    } else {
                        self.remove_files(&written);
                    }
                }
                self.background.drop_table(table);
            }
        }
        Ok(())
    }

    /// Whether the slice in a slot is not purged.
    fn is_seen(&self, slot: usize) -> bool {
        self.by_time.values().any(|known| *known as usize == slot)
    }

    /// Reserves again what the tables of runs have taken of the reserve, as far as memory allows.
    fn fill_reserve(&mut self) {
        let missing = self.sizes.reserve_bytes.saturating_sub(self.reserve_bytes);
        let free = self.account.available().saturating_sub(self.account.left_to_others());
        let more = missing.min(free);
        self.account.charge(MemoryKind::Tables, more);
        self.reserve_bytes += more;
    }

    /// A run is there: its table, and a checkpoint's share of it.
    pub(super) fn book_run(&mut self, run: &SliceRun) {
        self.account.charge(MemoryKind::Tables, run.memory_bytes());
        self.fund.add(run.share_bytes());
        self.files.expect(run.names(), 0);
        self.files.add(files_of(&run.segments));
    }

    /// A run has gone: gives those of its files that may be removed now.
    pub(super) fn run_went(&mut self, run: &SliceRun) -> Vec<FileBytes> {
        self.account.release(MemoryKind::Tables, run.memory_bytes());
        self.fund.remove(run.share_bytes());
        self.files.expect(0, run.names());
        self.files.release(files_of(&run.segments))
    }

    /// The same, of what was reserved for it. The reserve is of the longest there can be, and full again before the next
    /// run is there: a table that was written goes before another is.
    fn book_run_from_reserve(&mut self, run: &SliceRun) {
        let reserved = run.booked_bytes().min(self.reserve_bytes);
        self.reserve_bytes -= reserved;
        self.account.release(MemoryKind::Tables, reserved);
        self.book_run(run);
    }

    /// Has what was written and is of no use removed.
    pub(super) fn remove_files(&mut self, written: &WrittenRun) {
        self.background.remove(files_of(&written.segments).collect());
    }

    /// Waits a moment for the helper.
    pub(super) fn wait_once(&mut self) -> Result<()> {
        match self.background.wait() {
            Some(answer) => self.apply(answer),
            None => Ok(()),
        }
    }

    /// Gives up about `bytes` for another state: what was read ahead, then slices.
    pub(super) fn give_up_memory(&mut self, bytes: u64) -> Result<u64> {
        let before = self.account.used();
        let given = |panes: &Self| before.saturating_sub(panes.account.used());
        let since = Instant::now();
        while given(self) < bytes && since.elapsed() < self.sizes.patience {
            self.settle();
            let wanted = self.account.available() + bytes - given(self).min(bytes);
            if self.give_up_what_was_read(wanted) || self.bury(1024) < 1024 {
                continue;
            }
            if self.move_small(wanted)? {
                continue;
            }
            if !self.spill()? && self.background.jobs.pending() == 0 {
                break;
            }
            self.wait_once()?;
        }
        Ok(given(self))
    }

    /// Does what an inline helper is to do, and what was purged.
    pub(super) fn work_in_background(&mut self, work: usize) -> Result<usize> {
        let left = self.bury(work);
        let mut done = work - left;
        while done < work && self.background.jobs.helper().drive() {
            done += 1;
        }
        self.settle();
        self.book_left();
        self.go_on_reading();
        if let Some(packed) = self.packed.as_mut() {
            done += packed.lists.tick(work - done)?;
            self.close_idle_log();
        }
        Ok(done)
    }

    pub(super) fn describe(&self) -> TableStats {
        let slices = || self.slices();
        let len = slices().map(super::slice::Slice::len).sum();
        let memory: u64 = slices().map(super::slice::Slice::active_bytes).sum();
        let runs = slices().flat_map(|slice| &slice.runs);
        let stored: u64 = runs.map(|stored| stored.run.bytes()).sum();
        let mut stats = TableStats {
            live_keys: len,
            live_bytes: memory + stored,
            disk_bytes: self.disk_bytes,
            live_disk_bytes: stored,
            oversized: self.oversize.told(),
            ..self.stats
        };
        if let Some(packed) = &self.packed {
            stats.add(&packed.lists.stats());
        }
        stats
    }
}

/// A run of what was written.
pub(super) fn run_of(number: u64, level: u32, written: WrittenRun) -> SliceRun {
    let WrittenRun { segments, images, records, .. } = written;
    SliceRun { number, level, segments, images, records }
}

pub(super) fn sum(written: &WrittenRun) -> u64 {
    written.segments.iter().map(|segment| segment.bytes).sum()
}
