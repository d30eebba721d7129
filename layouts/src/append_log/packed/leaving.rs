//! Which buckets are packed, and what becomes of them: they leave memory when the level is there that has their lists.
//!
//! What it keeps true: a run counts in one place only. What was noted of a bucket while its run was packed, by a clearing,
//! a move or an import, has the run stay: what the level has of it does not count then.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use alluvium_pagestore::{Result, Time};

use super::packing::{PackOrder, PackedRuns};
use super::slices::PackedSlice;
use super::{
    GOING_BYTES, LoadingMemory, PACKED, PACKED_RUNS_MAX, PackedRoom, PackingBatch, REST, is_plain,
};
use crate::append_log::bucket::{AppendBucket, BUCKET_BYTES};
use crate::append_log::core::ListsCore;
use crate::append_log::frozen::FrozenBucket;
use crate::append_log::jobs::RunName;
use crate::append_log::run::RUN_BYTES;
use crate::support::booked::Booked;
use crate::trace_event;

impl ListsCore {
    /// Whether something of a bucket is packed.
    pub(in crate::append_log) fn is_packed(&self, time: Time) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.has(time))
    }

    /// Of frozen lists those that are to be packed, in the order of their slices, and the others. Takes the memory for it.
    pub(in crate::append_log) fn split_packable(
        &mut self,
        batch: Vec<Arc<FrozenBucket>>,
    ) -> (Vec<Arc<FrozenBucket>>, Vec<Arc<FrozenBucket>>) {
        let Some(packed) = self.packed.as_mut() else { return (Vec::new(), batch) };
        if packed.rest > 0 && !packed.levels.is_behind() {
            packed.rest -= 1;
        }
        if packed.rest > 0 || !self.begin_packing_to_write() {
            return (Vec::new(), batch);
        }
        self.sum_packed();
        let mut batch = batch;
        batch.sort_by_key(|frozen| (frozen.bucket, frozen.number));
        let packed = self.packed.as_ref().expect("looked at above");
        let (imported, mut room) = (self.imported(), PackedRoom::of(packed));
        let mut taken = LoadingMemory::default();
        let (small, mut others): (Vec<_>, Vec<_>) = batch.into_iter().partition(|frozen| {
            let (time, loaded) = (frozen.bucket, packed.loaded_most(frozen.booked.total()));
            let together = self.together_with(time);
            let is_packable = self.is_packable(frozen, &imported)
                && room.has(together.clone(), (time, loaded), taken.within(&together));
            if is_packable {
                taken.push(time, loaded);
            }
            is_packable
        });
        if small.is_empty() {
            return (small, others);
        }
        if !self.waits_for_merges() {
            self.packed.as_mut().expect("looked at above").comes_another();
        }
        if self.waits_for_merges() {
            return (Vec::new(), self.leave_small(small, others));
        }
        let packed = self.packed.as_mut().expect("looked at above");
        // Levels are not to become more and more, as they would if they cannot be merged.
        if packed.has_too_many_levels() {
            others.extend(small);
            return (Vec::new(), others);
        }
        let memory = Booked::buffers(packed.account.clone(), small.len() as u64 * GOING_BYTES);
        packed.going.push_back(PackingBatch { coming: taken, _memory: memory });
        (small, others)
    }

    /// Leaves small buckets to be packed when some levels are merged. Returns the others.
    fn leave_small(
        &mut self,
        small: Vec<Arc<FrozenBucket>>,
        mut others: Vec<Arc<FrozenBucket>>,
    ) -> Vec<Arc<FrozenBucket>> {
        let most = self.packed.as_ref().map_or(0, |packed| packed.small_bytes);
        for frozen in small {
            if frozen.booked.total() > most {
                others.push(frozen);
                continue;
            }
            match self.run_mut(frozen.bucket, frozen.number) {
                Some(run) => (run.busy, run.waits) = (false, true),
                None => others.push(frozen),
            }
        }
        others
    }

    /// Whether small buckets wait for levels to be merged.
    pub(in crate::append_log) fn waits_for_merges(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| {
            let is_merging = packed.levels.merging_bytes() > 0 && packed.rest == 0;
            packed.writes && is_merging && packed.has_too_many_levels()
        })
    }

    /// An append does a step of a merge if levels are many.
    pub(in crate::append_log) fn pay_for_merges(&mut self) {
        let Some(packed) = &mut self.packed else { return };
        let levels = packed.levels.len();
        let paid = packed.pay();
        if packed.levels.len() < levels {
            self.keeps_less();
        }
        self.stats.stalls += u64::from(paid);
    }

    /// Some of the small buckets with elements in memory and no run of their own which cannot be packed: others import from
    /// them, or those that are read with them leave no room. Cost: O(buckets).
    pub(in crate::append_log) fn small_unpackable(&mut self, most: usize) -> Vec<Time> {
        self.sum_packed();
        let Some(packed) = self.packed.as_ref() else { return Vec::new() };
        let (imported, mut room) = (self.imported(), PackedRoom::of(packed));
        let small = self.buckets.values().filter(|bucket| {
            let live = bucket.live_bytes();
            let is_small = bucket.elements > 0 && live <= packed.small_bytes;
            is_small && bucket.runs.iter().all(|run| run.number == PACKED)
        });
        let stays = small.filter(|bucket| {
            let more = (bucket.time, packed.loaded_most(bucket.live_bytes()));
            imported.contains(&bucket.time) || !room.has(self.together_with(bucket.time), more, 0)
        });
        stays.map(|bucket| bucket.time).take(most).collect()
    }

    /// Waits a moment for merges. Who reads so many bytes is lent before what is saved up for them: says whether these are
    /// free now.
    pub(in crate::append_log) fn wait_for_merges(&mut self, read_bytes: Option<u64>) -> bool {
        let Some(packed) = &mut self.packed else { return false };
        if let Some(bytes) = read_bytes {
            packed.lend_saved();
            if packed.account.available() >= bytes {
                return true;
            }
        }
        // One that fails is told of by the next call, and is not waited for.
        let _ = packed.step(true);
        false
    }

    /// Sums what packed slices take, if that has changed.
    pub(in crate::append_log) fn sum_packed(&mut self) {
        if let Some(packed) = &mut self.packed {
            packed.sum();
        }
    }

    /// Bytes of a small bucket, and up to how many bytes and runs are frozen together of small ones, where these are
    /// packed: what is to be free in memory, and as many runs as a fourth of what is free has room for.
    pub(in crate::append_log) fn batch_to_pack(&self) -> (u64, u64, usize) {
        let Some(packed) = self.packed.as_ref().filter(|_| self.packs()) else { return (0, 0, 0) };
        let runs = self.account.available() / 4 / RUN_BYTES;
        // Larger ones do not wait for merges.
        let waits = self.waits_for_merges();
        let small = if waits { packed.small_bytes } else { packed.packable_bytes() };
        (small, self.sizes.want_free, (runs as usize).min(PACKED_RUNS_MAX))
    }

    /// The buckets that others import from.
    pub(in crate::append_log) fn imported(&self) -> BTreeSet<Time> {
        self.buckets.values().flat_map(|bucket| bucket.sources.keys().copied()).collect()
    }

    /// What a bucket takes beside its elements, which is free once it is packed, and what it takes once it is loaded. None,
    /// if not all of it is small, or something is noted of it.
    pub(in crate::append_log) fn freed_by_packing(
        &self,
        bucket: &AppendBucket,
    ) -> Option<(u64, u64)> {
        let packed = self.packed.as_ref().filter(|packed| packed.rest == 0 && is_plain(bucket))?;
        let (index, bytes) = match &bucket.runs[..] {
            [] => (0, 0),
            [run] if run.stored.is_none() => {
                let is_refused = packed.refused.contains(&(bucket.time, run.number));
                let booked = run.memory.as_ref().filter(|_| !is_refused)?.booked;
                (booked.index + RUN_BYTES, booked.total())
            }
            _ => return None,
        };
        let live = bucket.live_bytes();
        let is_small = bytes.max(live) <= packed.packable_bytes();
        let freed = BUCKET_BYTES + index + bucket.live.memory_bytes();
        is_small.then(|| (freed, packed.loaded_most(bytes + live)))
    }

    /// Whether the first element of a bucket is of a bucket that will be packed, whatever is packed before.
    /// Buckets that came since all were counted take so much once they are loaded. Cost: O(log(buckets)).
    pub(in crate::append_log) fn begins_packable(&self, time: Time, begun: u64) -> bool {
        if !self.packs() || self.buckets.get(&time).is_some_and(|bucket| !bucket.runs.is_empty()) {
            return false;
        }
        let together = self.together_with(time);
        let near = self.near_in_memory(&together, time, begun);
        let Some(packed) = &self.packed else { return false };
        let one = packed.loaded_most(BUCKET_BYTES);
        PackedRoom::of(packed).has(together, (time, one), near)
    }

    /// What a bucket that begins takes once it is packed and loaded.
    pub(in crate::append_log) fn begun_bytes(&self) -> u64 {
        self.packed.as_ref().map_or(0, |packed| packed.loaded_most(BUCKET_BYTES))
    }

    /// What the buckets in memory that are read together with one take once they are loaded, as they were counted last;
    /// with what they may have grown since, and what buckets take that came since.
    fn near_in_memory(&self, together: &RangeInclusive<Time>, time: Time, begun: u64) -> u64 {
        let mut all = self.buckets.range(together.clone());
        let (first, last) = (all.next(), all.next_back());
        let (Some((at, first)), last) = (first, last.or(first)) else { return 0 };
        let last = last.map_or(first, |(_, last)| last);
        if *at == time && last.time == time {
            return self.freed_by_packing(first).map_or(0, |(_, loaded)| loaded);
        }
        let counted = (last.loaded_before + last.loaded).saturating_sub(first.loaded_before);
        counted + begun + 2 * self.growth_bytes()
    }

    /// The slices that may be read together with one.
    pub(in crate::append_log) fn together_with(&self, time: Time) -> RangeInclusive<Time> {
        let span = i64::try_from(self.span - 1).unwrap_or(i64::MAX);
        Time(time.0.saturating_sub(span))..=Time(time.0.saturating_add(span))
    }

    fn is_packable(&self, frozen: &FrozenBucket, imported: &BTreeSet<Time>) -> bool {
        let (Some(packed), time) = (&self.packed, frozen.bucket) else { return false };
        let Some(bucket) = self.buckets.get(&time) else { return false };
        let own = bucket.runs.iter().find(|run| run.number != PACKED);
        frozen.booked.total() <= packed.packable_bytes()
            && !packed.refused.contains(&(time, frozen.number))
            && own.is_some_and(|run| run.number == frozen.number)
            && is_plain(bucket)
            && !imported.contains(&time)
    }

    /// Has small buckets packed.
    pub(in crate::append_log) fn pack(&mut self, batch: Vec<Arc<FrozenBucket>>) {
        let packed = self.packed.as_ref().expect("what is packable was looked at");
        let order = PackOrder {
            list_type: self.list_type,
            runs: batch,
            sizes: packed.runs,
            cut_bytes: self.sizes.block_bytes as u64,
            store: self.context.segments.clone().expect("there is storage"),
            state: packed.state,
        };
        self.writing += 1;
        self.jobs.pack(order);
    }

    /// A batch was packed, or could not be: then its buckets get runs of their own.
    pub(in crate::append_log) fn take_packed(
        &mut self,
        runs: Vec<RunName>,
        result: Result<PackedRuns>,
    ) {
        self.writing -= 1;
        if let Some(packed) = &mut self.packed {
            // Batches come back in the order in which they went.
            packed.going.pop_front();
        }
        let installed = result.and_then(|level| self.install_level(level));
        let packed = self.packed.as_mut().expect("who packs has it");
        match installed {
            Ok(slices) => {
                let imported = self.imported();
                let all = runs.into_iter().zip(slices);
                let installed: Vec<(Time, PackedSlice)> = all
                    .filter_map(|(name, slice)| self.install_packed(name, slice, &imported))
                    .collect();
                let packed = self.packed.as_mut().expect("who packs has it");
                packed.directory.add_all(&installed);
                packed.book_directory();
                for (time, _) in installed {
                    self.drop_if_vacant(time);
                }
            }
            Err(error) => {
                packed.rest = REST;
                self.kept = None;
                for name in runs {
                    self.not_captured(name);
                    if let Some(run) = self.run_mut(name.0, name.1) {
                        run.busy = false;
                    }
                }
                let (state, why) = (self.context.name.as_str(), error.message());
                trace_event!(WARN, "slices could not be packed", state = state, error = why);
            }
        }
    }

    /// A level was written: it is there, and a checkpoint that waits for some of it names it.
    fn install_level(&mut self, level: PackedRuns) -> Result<Vec<PackedSlice>> {
        let packed = self.packed.as_mut().expect("who packs has it");
        let PackedRuns { sealed, unsynced, slices } = level;
        let is_named = self
            .checkpoint
            .as_ref()
            .is_some_and(|checkpoint| slices.iter().any(|(name, _)| checkpoint.waits_for(name)));
        if !sealed.is_empty()
            && let Err(error) = packed.levels.add_unsynced(&sealed, &unsynced)
        {
            packed.remove_runs(&sealed);
            return Err(error);
        }
        packed.has_chunks_of(&sealed);
        self.stats.flushed_bytes += sealed.iter().map(|run| run.bytes).sum::<u64>();
        self.stats.pages_flushed += slices.len() as u64;
        if is_named
            && let Some(at_barrier) = self.checkpoint.as_mut().and_then(|c| c.packed.as_mut())
        {
            at_barrier.add_level(packed, sealed, unsynced);
        }
        Ok(slices.into_iter().map(|(_, slice)| slice).collect())
    }

    /// What a bucket had frozen is packed: it leaves memory, unless something was noted of it meanwhile. Returns what the
    /// directory gets then.
    fn install_packed(
        &mut self,
        name: RunName,
        slice: PackedSlice,
        imported: &BTreeSet<Time>,
    ) -> Option<(Time, PackedSlice)> {
        let (time, number) = name;
        let is_free = self.captured_packed(name, slice)
            && !imported.contains(&time)
            && self.buckets.get(&time).is_some_and(|bucket| is_plain(bucket));
        let bucket = self.buckets.get_mut(&time).filter(|_| is_free);
        let left = bucket.and_then(|bucket| {
            // What is packed is older than all runs: a slice that was moved out meanwhile is one of them.
            let at = bucket.runs.iter().position(|run| run.number != PACKED)?;
            (bucket.runs[at].number == number).then(|| bucket.runs.remove(at))
        });
        let Some(run) = left else {
            self.refuse_packed(name);
            return None;
        };
        let slice = PackedSlice { elements: run.elements, ..slice };
        self.elements += run.elements;
        let packed = self.packed.as_mut().expect("who packs has it");
        let is_loaded = packed.loaded.contains(&time);
        // A fold that goes on may have seen it in memory.
        self.resume = None;
        self.drop_run(run);
        if is_loaded {
            // It has more now than was loaded.
            self.unload(time);
        }
        Some((time, slice))
    }

    /// What is packed of a run does not count. If the run is there still, it becomes one of its own.
    fn refuse_packed(&mut self, name: RunName) {
        if let Some(run) = self.run_mut(name.0, name.1) {
            (run.busy, run.waits) = (false, false);
            self.packed.as_mut().expect("who packs has it").refused.insert(name);
            self.kept = None;
        }
        self.not_captured(name);
    }

    /// Does a step of a merge of levels, if one is due.
    pub(in crate::append_log) fn step_packed(&mut self) {
        let Some(packed) = self.packed.as_ref() else { return };
        if packed.may_end {
            self.end_packing();
        } else if !packed.writes && (!packed.directory.is_empty() || packed.may_begin()) {
            self.begin_packing();
        }
        let Some(packed) = self.packed.as_mut() else { return };
        let levels = packed.levels.len();
        let stepped = packed.step(false);
        if packed.levels.len() < levels {
            // What reading all levels takes is less now.
            self.keeps_less();
        }
        if let Err(error) = stepped {
            let (state, why) = (self.context.name.as_str(), error.message());
            trace_event!(WARN, "packed slices could not be merged", state = state, error = why);
        }
    }
}
