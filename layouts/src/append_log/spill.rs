//! Making room: what is on storage already is dropped, what is not is frozen and written, the
//! buckets that are due last first.
//!
//! A write begins while a quarter of the memory is free, so that appends go on beside it; a call
//! waits only when that is used up too. What could not be written stays in memory, and is tried
//! again by the next call that needs memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result, Time};

use super::bucket::AppendBucket;
use super::core::ListsCore;
use super::frozen::{BookedByKind, FrozenBucket};
use super::jobs::ListJobOutcome;
use super::packed::{PACKED, is_plain};
use super::run::{ListRun, RUN_BYTES, StoredRun};
use crate::checkpoint::files_of;
use crate::contract::table::TableStats;
use crate::trace_event;

/// Most runs that are written together.
const BATCH_RUNS_MAX: usize = 256;

impl ListsCore {
    /// Takes the helper's answers.
    pub(super) fn poll(&mut self) -> Result<()> {
        while let Some(answer) = self.jobs.poll() {
            self.take(answer);
        }
        self.merge_crowded();
        self.step_packed();
        Ok(())
    }

    pub(super) fn take(&mut self, answer: ListJobOutcome) {
        match answer {
            ListJobOutcome::Written { .. }
            | ListJobOutcome::Merged(_)
            | ListJobOutcome::ReadAhead { .. } => {
                self.kept = None;
            }
            _ => self.keeps_less(),
        }
        match answer {
            ListJobOutcome::Written { runs, result: Ok(stored) } => {
                self.writing -= 1;
                // All, before any is looked for: a file is of several, of which the first may be gone.
                stored.iter().for_each(|run| self.files.add(files_of(&run.files)));
                for ((time, number), stored) in runs.into_iter().zip(stored) {
                    self.stats.pages_flushed += 1;
                    self.stats.codec_calls += stored.blocks.len() as u64;
                    self.stats.flushed_bytes += stored.bytes();
                    self.install((time, number), stored);
                }
            }
            ListJobOutcome::Written { runs, result: Err(error) } => {
                self.writing -= 1;
                for (time, number) in runs {
                    self.not_captured((time, number));
                    if let Some(run) = self.run_mut(time, number) {
                        run.busy = false;
                    }
                }
                let (state, why) = (self.context.name.as_str(), error.message());
                trace_event!(WARN, "runs could not be written", state = state, error = why);
                self.failed = Some(error);
            }
            ListJobOutcome::Reaped(booked) => {
                self.reaping -= booked.total();
                self.release(booked);
            }
            ListJobOutcome::ReadAhead { run, booked, result } => {
                self.take_read_ahead(run, booked, result);
            }
            ListJobOutcome::Merged(merging) => self.take_merging(*merging),
            ListJobOutcome::Packed { runs, result } => {
                self.left_bytes = 0;
                self.take_packed(runs, result);
            }
            ListJobOutcome::Synced(result) => self.take_synced(result),
            ListJobOutcome::Removed => {}
        }
    }

    /// A run was written, to files that are known.
    fn install(&mut self, (time, number): (Time, u64), stored: StoredRun) {
        let stored = Arc::new(stored);
        self.captured((time, number), &stored);
        match self.run_mut(time, number) {
            Some(run) => {
                run.busy = false;
                let bytes = stored.memory_bytes();
                run.stored = Some(stored);
                self.may_be_clean = true;
                self.account.charge(MemoryKind::Tables, bytes);
                self.crowded.insert(time);
            }
            // Purged while it was written.
            None => self.remove_files(&stored),
        }
    }

    /// Forgets a stored run, and has its files removed if nobody else needs them.
    pub(super) fn remove_files(&mut self, stored: &StoredRun) {
        let useless = self.files.release(files_of(&stored.files));
        if !useless.is_empty() {
            self.jobs.remove(useless.into_iter().map(|(id, _)| id).collect());
        }
    }

    pub(super) fn release(&self, booked: BookedByKind) {
        self.account.release(MemoryKind::Index, booked.index);
        self.account.release(MemoryKind::Pages, booked.pages);
        self.account.release(MemoryKind::Values, booked.values);
        self.account.release(MemoryKind::Tables, booked.tables);
    }

    /// Has lists dropped; what is booked for them is released when they are.
    pub(super) fn reap<T: Send + 'static>(&mut self, lists: T, booked: BookedByKind) {
        self.reaping += booked.total();
        self.jobs.reap(lists, booked);
    }

    /// Begins to write, or drops what is written, if memory is getting short. Does not wait.
    pub(super) fn spill_ahead(&mut self) {
        let wanted = self.sizes.want_free;
        if self.source.is_none() || self.account.available() + self.reaping >= wanted {
            return;
        }
        self.drop_clean(wanted);
        let is_short = self.account.available() + self.reaping < wanted;
        if is_short && self.writing == 0 && !self.has_only_left() {
            self.write_step();
        }
    }

    /// Sees to it that `bytes` are free, and what writing takes. May wait for storage.
    pub(super) fn make_room(&mut self, bytes: u64, what: &str) -> Result<()> {
        self.make_room_for((bytes, false), what)
    }

    /// [`make_room`](ListsCore::make_room) for who reads: what is saved up for merges is lent before merges are waited for.
    pub(super) fn make_room_to_read(&mut self, bytes: u64, what: &str) -> Result<()> {
        self.make_room_for((bytes, true), what)
    }

    fn make_room_for(&mut self, wanted: (u64, bool), what: &str) -> Result<()> {
        let made = self.free_some(wanted, what);
        if let Some(packed) = &mut self.packed {
            packed.end_lending();
        }
        made
    }

    fn free_some(&mut self, (bytes, is_read): (u64, bool), what: &str) -> Result<()> {
        let (start, wanted) = (Instant::now(), bytes.saturating_add(self.sizes.slack));
        let mut others_were_asked = false;
        self.failed = None;
        self.book_left();
        loop {
            self.poll()?;
            if self.account.available() >= wanted {
                return Ok(());
            }
            if let Some(error) = self.failed.take() {
                return Err(error.with("state", &self.context.name));
            }
            self.drop_clean(wanted);
            let idle = self.writing == 0 && self.reaping == 0;
            if idle && !self.write_step() && self.jobs.pending() == 0 {
                if self.waits_for_merges() {
                    if self.wait_for_merges(is_read.then_some(bytes)) {
                        return Ok(());
                    }
                    // Other states may have pages to give, or there is enough but for the slack.
                    if !others_were_asked && self.account.ensure(bytes, what).is_ok() {
                        return Ok(());
                    }
                    others_were_asked = true;
                } else if self.packed.as_mut().is_some_and(|packed| packed.lend()) {
                    continue;
                } else {
                    return self.account.ensure(bytes, what);
                }
            }
            if start.elapsed() > self.sizes.patience {
                let message = format!("{what} needs {bytes} bytes, and storage has not freed them");
                let error = Error::new(ErrorKind::Backpressure, message);
                return Err(error.with("state", &self.context.name));
            }
            self.stats.stalls += 1;
            // Merges of levels are no jobs: they were waited for above.
            if (self.jobs.pending() > 0 || !self.waits_for_merges())
                && let Some(answer) = self.jobs.wait()
            {
                self.take(answer);
            }
        }
    }

    /// Drops what is in memory and on storage, and what was read ahead, until `wanted` bytes are
    /// free or will be; of the last buckets first.
    fn drop_clean(&mut self, wanted: u64) {
        if !self.may_be_clean {
            return;
        }
        self.may_be_clean = false;
        let mut found = Vec::new();
        let mut free = self.account.available() + self.reaping;
        for bucket in self.buckets.values_mut().rev() {
            let is_clean = |run: &&mut ListRun| run.stored.is_some() && run.number != PACKED;
            for run in bucket.runs.iter_mut().rev().filter(is_clean) {
                if free >= wanted {
                    self.may_be_clean = true;
                    break;
                }
                if let Some(cached) = run.cached.take() {
                    free += cached.bytes;
                    found.push((None, Some(cached)));
                }
                if let Some(frozen) = run.memory.take() {
                    free += frozen.booked.total();
                    found.push((Some(frozen), None));
                }
            }
        }
        for (frozen, cached) in found {
            if let Some(cached) = cached {
                self.drop_cached(cached);
            }
            if let Some(frozen) = frozen {
                let booked = frozen.booked;
                self.reap(frozen, booked);
            }
        }
    }

    /// Has something written, what could not be before or the lists of the last buckets. Says
    /// whether there was anything.
    fn write_step(&mut self) -> bool {
        if self.source.is_none() {
            return false;
        }
        self.left_bytes = 0;
        loop {
            let batch = self.unwritten();
            if batch.is_empty() {
                break;
            }
            // Of what is left to be packed later nothing is begun; it is not found again until then.
            if self.write(batch) {
                return true;
            }
        }
        self.begin_packing_to_write();
        let batch = self.freeze_last(self.sizes.batch_bytes);
        let is_begun = self.write(batch);
        if !is_begun && self.waits_for_merges() {
            self.left_bytes = self.elastic_bytes();
        }
        is_begun
    }

    /// Whether all that could be written has to wait for merges of levels, and little has come since that was looked at.
    fn has_only_left(&self) -> bool {
        self.waits_for_merges() && self.elastic_bytes() < self.left_bytes + self.growth_bytes()
    }

    /// Has frozen runs written. Says whether any of them are now: small ones may have to wait until levels are merged.
    pub(super) fn write(&mut self, batch: Vec<Arc<FrozenBucket>>) -> bool {
        if batch.is_empty() {
            return false;
        }
        for frozen in &batch {
            // What a checkpoint keeps of a purged bucket is no run of the lists any more.
            if let Some(run) = self.run_mut(frozen.bucket, frozen.number) {
                run.busy = true;
            }
        }
        let mut is_begun = false;
        for batch in self.by_barrier(batch) {
            let (small, others) = self.split_packable(batch);
            is_begun |= !small.is_empty();
            if !small.is_empty() {
                self.pack(small);
            }
            let others = self.leave_plenty(others);
            if !others.is_empty() {
                is_begun = true;
                self.writing += 1;
                self.jobs.write(self.list_type, others, self.sizes.block_bytes);
            }
        }
        is_begun
    }

    /// Leaves frozen runs that are more than are written together to be written later.
    fn leave_plenty(&mut self, batch: Vec<Arc<FrozenBucket>>) -> Vec<Arc<FrozenBucket>> {
        let mut count = 0;
        let is_written = |frozen: &Arc<FrozenBucket>| {
            count += 1;
            let run = self.run_mut(frozen.bucket, frozen.number).filter(|_| count > BATCH_RUNS_MAX);
            run.map(|run| run.busy = false).is_none()
        };
        batch.into_iter().filter(is_written).collect()
    }

    /// What was frozen before the barrier of a checkpoint is not written to the same files as what was after it.
    fn by_barrier(&self, batch: Vec<Arc<FrozenBucket>>) -> Vec<Vec<Arc<FrozenBucket>>> {
        let barrier = self.checkpoint.as_ref().map_or(u64::MAX, |checkpoint| checkpoint.epoch());
        let (before, after): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|frozen| frozen.number <= barrier);
        [before, after].into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// Runs that are nowhere but in memory and are not being written, but for those that are to wait for merges.
    pub(super) fn unwritten(&mut self) -> Vec<Arc<FrozenBucket>> {
        #[cfg(test)]
        {
            self.looked_for_unwritten += 1;
        }
        let mut batch = self.orphans();
        let are_left = self.waits_for_merges();
        let imported = if are_left { self.imported() } else { BTreeSet::new() };
        let own = self.buckets.values().flat_map(|bucket| {
            // What cannot be packed any more waits for nothing.
            let waits = are_left && is_plain(bucket) && !imported.contains(&bucket.time);
            bucket.runs.iter().map(move |run| (run, waits))
        });
        let all = own.chain(self.graves.values().flatten().map(|run| (run, false)));
        let waiting =
            all.filter(|(run, waits)| run.stored.is_none() && !run.busy && !(*waits && run.waits));
        // Where small ones are left, one look is to be enough: of the others as many are written as are together.
        let most = if are_left { usize::MAX } else { BATCH_RUNS_MAX };
        batch.extend(waiting.filter_map(|(run, _)| run.memory.clone()).take(most));
        batch
    }

    /// Freezes the lists of the last buckets, about `bytes` of them. Small ones are left that would have to wait for merges.
    fn freeze_last(&mut self, bytes: u64) -> Vec<Arc<FrozenBucket>> {
        let are_left = self.waits_for_merges();
        let (number, mut batch, mut total) = (self.epoch + 1, Vec::new(), 0);
        let (small, packed_bytes, packed_runs) = self.batch_to_pack();
        let has_room_for = self.runs_with_room();
        for bucket in self.buckets.values_mut().rev().filter(|bucket| bucket.elements > 0) {
            let live = bucket.live_bytes();
            if are_left && live <= small && would_wait(bucket) {
                continue;
            }
            let is_full = total >= bytes || batch.len() >= BATCH_RUNS_MAX;
            if is_full && (live > small || total >= packed_bytes || batch.len() >= packed_runs)
                || batch.len() >= has_room_for
            {
                break;
            }
            total += live;
            batch.push(freeze(bucket, number));
            self.account.charge(MemoryKind::Tables, RUN_BYTES);
        }
        if batch.is_empty() && are_left {
            batch = self.freeze_unpackable(number);
        }
        if !batch.is_empty() {
            (self.epoch, self.kept) = (number, None);
        }
        batch
    }

    /// Freezes small buckets that could not be packed, so that they need not wait.
    fn freeze_unpackable(&mut self, number: u64) -> Vec<Arc<FrozenBucket>> {
        let times = self.small_unpackable(BATCH_RUNS_MAX.min(self.runs_with_room()));
        self.account.charge(MemoryKind::Tables, times.len() as u64 * RUN_BYTES);
        let mut frozen = Vec::with_capacity(times.len());
        for time in times {
            let bucket = self.buckets.get_mut(&time);
            frozen.extend(bucket.map(|bucket| freeze(bucket, number)));
        }
        frozen
    }

    /// For so many more runs there is memory; some may always be frozen, which is in what is kept from appends.
    fn runs_with_room(&self) -> usize {
        usize::try_from(self.account.available() / RUN_BYTES).unwrap_or(usize::MAX).max(16)
    }

    /// Freezes all lists, without any of them written.
    pub(super) fn freeze_all(&mut self) {
        self.kept = None;
        let number = self.epoch + 1;
        for bucket in self.buckets.values_mut().filter(|bucket| bucket.elements > 0) {
            freeze(bucket, number);
            self.account.charge(MemoryKind::Tables, RUN_BYTES);
        }
        self.epoch = number;
    }

    /// Gives memory up to other states.
    pub(super) fn give_up(&mut self, bytes: u64) -> Result<u64> {
        let (before, start) = (self.account.used(), Instant::now());
        self.failed = None;
        if let Some(packed) = &mut self.packed {
            packed.forget_ahead();
        }
        loop {
            self.poll()?;
            let given = before.saturating_sub(self.account.used());
            if given >= bytes {
                return Ok(given);
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            self.drop_clean(self.account.available().saturating_add(bytes - given));
            let idle = self.writing == 0 && self.reaping == 0;
            if idle && !self.write_step() && self.jobs.pending() == 0 {
                return Ok(before.saturating_sub(self.account.used()));
            }
            if start.elapsed() > self.sizes.patience {
                return Ok(given);
            }
            if let Some(answer) = self.jobs.wait() {
                self.take(answer);
            }
        }
    }

    /// Background work.
    pub(super) fn background_work(&mut self, work: usize) -> Result<usize> {
        let mut done = 0;
        if let Some(packed) = &mut self.packed {
            packed.has_counted();
        }
        while done < work && self.jobs.drive() {
            done += 1;
        }
        let pending = self.jobs.pending();
        self.poll()?;
        self.book_left();
        done += pending.saturating_sub(self.jobs.pending());
        self.resume = self.resume.take().filter(|_| done == 0);
        Ok(done)
    }

    pub(super) fn statistics(&self) -> TableStats {
        let heads: u64 = self.buckets.values().map(|bucket| bucket.live.len()).sum();
        let (pages, values) = (MemoryKind::Pages, MemoryKind::Values);
        let own = self.buckets.values().flat_map(|bucket| &bucket.runs);
        let runs = || own.clone().chain(self.graves.values().flatten());
        let stored = runs().filter(|run| run.memory.is_none() && run.number != PACKED);
        let stored = stored.filter_map(|run| run.stored.as_ref()).map(|stored| stored.bytes());
        let in_memory = self.account.used_for(pages) + self.account.used_for(values);
        let mut stats = TableStats {
            live_keys: heads + runs().map(|run| run.keys).sum::<u64>(),
            live_bytes: in_memory + stored.sum::<u64>(),
            ..self.stats
        };
        let (all, used) = self.files.bytes();
        stats.disk_bytes += all;
        stats.live_disk_bytes += used;
        if let Some(packed) = &self.packed {
            packed.describe(&mut stats);
        }
        let cut: u64 = self.buckets.values().map(|bucket| bucket.cut_bytes()).sum();
        stats.live_disk_bytes = stats.live_disk_bytes.saturating_sub(cut);
        stats
    }
}

/// Freezes the lists of a bucket as its newest run.
fn freeze(bucket: &mut AppendBucket, number: u64) -> Arc<FrozenBucket> {
    let (elements, keys) = (bucket.elements, bucket.live.len());
    let frozen = Arc::new(bucket.freeze(number));
    bucket.runs.push(ListRun::in_memory(number, (elements, keys), frozen.clone()));
    frozen
}

/// Whether lists of a bucket would be packed, if they are small: it has no run of its own, but for one that waits for that.
fn would_wait(bucket: &AppendBucket) -> bool {
    let mut own = bucket.runs.iter().filter(|run| run.number != PACKED);
    is_plain(bucket) && own.all(|run| run.waits && run.stored.is_none())
}
