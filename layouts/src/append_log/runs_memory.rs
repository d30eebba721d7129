//! What appends leave: to reading lists, to the next checkpoint, and to opening it.
//!
//! What is in memory can be written and dropped, so that it counts as free here. What it keeps true: if all of it were
//! on storage, the runs of each bucket, or of as many buckets as are [folded at once](ListsCore::fold_at_once),
//! could be read, and a checkpoint could name them. Where that would not be so any more an append is refused, unless
//! merging runs helps.

use std::time::Instant;

use alluvium_pagestore::{ErrorKind, MemoryKind, Result, Time};

use super::bucket::{AppendBucket, BUCKET_BYTES};
use super::core::ListsCore;
use super::list_checkpoint::NAMED_BYTES;
use super::packed::{PackedRoom, SlidingMax};
use super::run::{RUN_BYTES, StoredRun};

/// What is known of a block, and named by a checkpoint.
const BLOCK_NOTED_BYTES: u64 = 2 * size_of::<super::run::BlockAt>() as u64;
/// What a checkpoint notes beside names and its catalog.
const NOTED_BYTES: u64 = 1024;
/// What is likely to be known of a run that is not written yet.
pub(super) const DESCRIBED_BYTES: u64 = 448;

/// What reading and naming the runs of a bucket takes.
#[derive(Clone, Copy, Debug, Default)]
struct BucketRunsMemory {
    reading: u64,
    once: u64,
    naming: u64,
    tables: u64,
    elastic: u64,
}

/// What reading and naming all runs takes.
#[derive(Clone, Copy, Debug)]
pub struct ListRunsMemory {
    reading: u64,
    naming: u64,
    /// Reading, if each bucket had elements in memory.
    reading_most: u64,
    /// What becomes known of runs that are not written yet.
    tables: u64,
    /// What buckets take beside elements that are to be packed, which is free then.
    elastic: u64,
    /// What each bucket's elements in memory may become takes.
    each: u64,
    /// What buckets that began since take once they are packed and loaded.
    begun: u64,
    /// What lists in memory took when it was counted.
    counted: u64,
    /// Whether less may be kept now: something has come since, or gone.
    is_more: bool,
}

impl ListsCore {
    /// Buckets whose times are less than this apart are read together.
    pub(super) fn fold_at_once(&mut self, span: i128) {
        self.span = span.max(1);
        if let Some(packed) = &mut self.packed {
            packed.count_loaded(self.span);
        }
        self.kept = None;
    }

    /// Makes sure that what is accepted can be read and named, with so many bytes more of it in a bucket.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if it cannot.
    pub(super) fn check_kept(&mut self, time: Time, needed: u64) -> Result<()> {
        if self.source.is_none() {
            return Ok(());
        }
        // Pages of others go first.
        let _checked_below = self.account.ensure_left(needed, "an element");
        loop {
            let counted = self.kept_now().counted;
            if self.elastic_bytes() > counted + self.growth_bytes() {
                self.kept = None;
                self.kept_now();
            }
            let elastic = self.elastic_bytes() + self.kept_now().elastic;
            let room = self.account.available() + elastic;
            let left = self.account.left_to_others();
            let most = needed + self.run_bytes() + self.free_for_plenty().max(left);
            if room >= most {
                return Ok(());
            }
            let mut kept = self.kept_now();
            if self.is_first(time) {
                self.begin_run(&mut kept, time);
            }
            let wanted = needed + self.wanted(&kept).max(left);
            let elastic = self.elastic_bytes() + kept.elastic;
            if self.account.available() + elastic >= wanted {
                return Ok(());
            }
            if self.kept.is_some_and(|kept| kept.is_more) {
                self.kept = None;
                continue;
            }
            if !self.packs() && self.begin_packing() {
                continue;
            }
            if !self.merge_for_room()? && !self.write_for_room(wanted)? {
                // Other states may have pages to give.
                let what = "an element, and reading what is there,";
                return self.account.ensure(wanted - elastic.min(wanted), what);
            }
        }
    }

    /// What is kept may be less than what is known of it.
    pub(super) fn keeps_less(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.is_more = true;
        }
    }

    /// Whether the next element of a bucket is the only one in memory.
    pub(super) fn is_first(&self, time: Time) -> bool {
        self.buckets.get(&time).is_none_or(|bucket| bucket.elements == 0)
    }

    /// A bucket has its first element in memory.
    pub(super) fn has_first(&mut self, time: Time) {
        if let Some(mut kept) = self.kept.take() {
            self.begin_run(&mut kept, time);
            self.tell_kept(&kept);
            self.kept = Some(kept);
        }
    }

    /// Has other states leave what is kept, also when there is as much more as there is before it is counted again.
    fn tell_kept(&self, kept: &ListRunsMemory) {
        if self.source.is_some() {
            let elastic = self.elastic_bytes() + self.growth_bytes();
            let blocks = elastic.div_ceil(self.sizes.block_bytes as u64) * BLOCK_NOTED_BYTES;
            let (reading, held) = (kept.tables + kept.reading, kept.naming + blocks);
            let writing = self.catalog_bytes() + NOTED_BYTES;
            self.account.keep_free(writing.max(reading.saturating_sub(held)), held);
        }
    }

    fn begin_run(&mut self, kept: &mut ListRunsMemory, time: Time) {
        self.sum_packed();
        kept.is_more = true;
        if !self.is_read_alone(time) {
            kept.reading_most += self.run_bytes();
        }
        if self.begins_packable(time, kept.begun) {
            kept.begun += self.begun_bytes();
            kept.naming += NAMED_BYTES + RUN_BYTES;
            kept.elastic += BUCKET_BYTES;
            return;
        }
        let one = self.run_bytes();
        // It may be of those that take most together.
        kept.reading += one;
        kept.reading_most = kept.reading_most.max(kept.reading);
        kept.naming += NAMED_BYTES + RUN_BYTES + 2 * DESCRIBED_BYTES;
        kept.tables += RUN_BYTES + DESCRIBED_BYTES;
    }

    /// Whether what is kept is there, and so much more.
    pub(super) fn has_kept(&mut self, more: u64) -> bool {
        self.spare_bytes() >= i128::from(more)
    }

    /// What is kept with so many bytes more to be named, and for one more run to be read.
    pub(super) fn kept_with(&mut self, named: u64) -> u64 {
        let mut kept = self.kept_now();
        kept.naming = kept.naming.saturating_add(named);
        kept.reading += self.run_bytes();
        self.wanted(&kept)
    }

    fn wanted(&self, kept: &ListRunsMemory) -> u64 {
        // Where the blocks of what is in memory will be is known, and named, for each.
        let blocks = self.elastic_bytes() / self.sizes.block_bytes as u64 * BLOCK_NOTED_BYTES;
        blocks + (kept.tables + kept.reading).max(kept.naming + self.catalog_bytes() + NOTED_BYTES)
    }

    /// So many bytes have to be free for elements that nobody looks at one by one: as much as what they may become needs
    /// that is in memory now, and a little more.
    pub(super) fn free_for_plenty(&self) -> u64 {
        let Some(kept) = &self.kept else { return u64::MAX / 4 };
        let more = self.buckets.len() as u64 * kept.each;
        more + (kept.tables + kept.reading_most)
            .max(kept.naming + self.catalog_bytes() + NOTED_BYTES)
    }

    /// What lists in memory take, which is free once they are written.
    pub(super) fn elastic_bytes(&self) -> u64 {
        // Not the index, of which notes are a part.
        let kinds = [MemoryKind::Pages, MemoryKind::Values];
        kinds.into_iter().map(|kind| self.account.used_for(kind)).sum()
    }

    /// After so much more of lists in memory it is counted again what they may become.
    pub(super) fn growth_bytes(&self) -> u64 {
        self.account.limit() / 64
    }

    /// Whether a bucket is read without any other that is in memory.
    fn is_read_alone(&self, time: Time) -> bool {
        self.buckets.range(self.together_with(time)).all(|(other, _)| *other == time)
    }

    /// What reading a run takes that is not written yet.
    pub(super) fn run_bytes(&self) -> u64 {
        // A block is a little longer than the values in it.
        let block = self.sizes.block_bytes + self.sizes.block_bytes / 7;
        let decoded = self.list_type.decoded_bytes_max(block as u64, self.sizes.block_bytes);
        self.sizes.window_bytes as u64 + decoded
    }

    /// What reading a run takes at least.
    pub(super) fn least_to_read(&self, run: &StoredRun) -> u64 {
        run.reading_bytes_min(self.list_type, self.sizes.block_bytes)
    }

    /// What is kept, counted if runs have changed. Cost: O(runs) then.
    pub(super) fn kept_now(&mut self) -> ListRunsMemory {
        if let Some(kept) = self.kept {
            return kept;
        }
        let freed = self.freed_by_all();
        let each = self.buckets.iter().zip(freed);
        let all: Vec<(Time, BucketRunsMemory)> =
            each.map(|((time, bucket), freed)| (*time, self.runs_in(bucket, freed))).collect();
        let (mut from, mut sum, mut reading, mut reading_most) = (0, 0, 0, 0);
        let mut once_most = SlidingMax::default();
        for (at, (time, runs)) in all.iter().enumerate() {
            sum += runs.reading;
            // The buckets from this one on are read together with it.
            while i128::from(time.0) - i128::from(all[from].0.0) >= self.span {
                sum -= all[from].1.reading;
                from += 1;
            }
            once_most.push(at, runs.once);
            let (together, once) = (at + 1 - from, once_most.from(from));
            reading = reading.max(sum + once);
            reading_most = reading_most.max(sum + once + together as u64 * self.run_bytes());
        }
        let naming: u64 = all.iter().map(|(_, runs)| runs.naming).sum();
        let tables = all.iter().map(|(_, runs)| runs.tables).sum();
        let elastic: u64 = all.iter().map(|(_, runs)| runs.elastic).sum();
        // What is packed is read beside that, and named.
        let packed = self.packed.as_ref();
        let (loaded, loading) = packed.map_or((0, 0), |packed| packed.reading_bytes());
        let named = packed.map_or(0, |packed| packed.naming_bytes());
        let elastic = elastic + packed.map_or(0, |packed| packed.merging_bytes());
        let kept = ListRunsMemory {
            reading: loaded + reading.max(loading),
            naming: naming + named,
            reading_most: loaded + reading_most.max(loading),
            tables,
            elastic,
            begun: 0,
            each: NAMED_BYTES + RUN_BYTES + if self.packs() { 0 } else { 2 * DESCRIBED_BYTES },
            counted: self.elastic_bytes(),
            is_more: false,
        };
        if let Some(packed) = &mut self.packed {
            packed.has_counted();
        }
        self.kept = Some(kept);
        self.tell_kept(&kept);
        kept
    }

    /// Of each bucket what is free once it is packed, if it will be: if small ones are packed, and it and all that may be
    /// packed and is read together with it have room.
    fn freed_by_all(&mut self) -> Vec<Option<u64>> {
        self.sum_packed();
        let Some(packed) = self.packed.as_ref().filter(|packed| packed.is_on()) else {
            return vec![None; self.buckets.len()];
        };
        let each = self.buckets.iter().map(|(time, bucket)| (*time, self.freed_by_packing(bucket)));
        let each: Vec<(Time, Option<(u64, u64)>)> = each.collect();
        let (mut start, mut end) = (0, 0);
        let (mut near, mut freed) = (0, Vec::with_capacity(each.len()));
        let loaded = |at: usize| each[at].1.map_or(0, |(_, loaded)| loaded);
        let apart = |a: Time, b: Time| i128::from(b.0) - i128::from(a.0);
        let mut room = PackedRoom::of(packed);
        for (at, (time, one)) in each.iter().enumerate() {
            while end < each.len() && apart(*time, each[end].0) < self.span {
                near += loaded(end);
                end += 1;
            }
            while apart(each[start].0, *time) >= self.span {
                near -= loaded(start);
                start += 1;
            }
            let others = near - loaded(at);
            // They may grow until they are counted again.
            let others = if others > 0 { others + 2 * self.growth_bytes() } else { 0 };
            let has_room =
                |_: &(u64, u64)| room.has(self.together_with(*time), (*time, loaded(at)), others);
            freed.push(one.filter(has_room).map(|(freed, _)| freed));
        }
        let mut before = 0;
        for (bucket, (_, one)) in self.buckets.values_mut().zip(&each) {
            (bucket.loaded_before, bucket.loaded) = (before, one.map_or(0, |(_, loaded)| loaded));
            before += bucket.loaded;
        }
        freed
    }

    fn runs_in(&self, bucket: &AppendBucket, freed: Option<u64>) -> BucketRunsMemory {
        let mut all = BucketRunsMemory::default();
        let mut add = |stored: Option<&StoredRun>| {
            all.naming += NAMED_BYTES;
            match stored {
                Some(run) => {
                    all.naming += run.memory_bytes();
                    all.reading += self.least_to_read(run);
                    all.once = all.once.max(run.reading_bytes_once());
                }
                None => {
                    all.naming += 2 * DESCRIBED_BYTES;
                    all.tables += DESCRIBED_BYTES;
                    all.reading += self.run_bytes();
                }
            }
        };
        if let Some(elastic) = freed {
            all.naming += 2 * NAMED_BYTES + RUN_BYTES;
            all.elastic += elastic;
            return all;
        }
        bucket.runs.iter().for_each(|run| add(run.stored.as_deref()));
        if bucket.elements > 0 {
            add(None);
            all.naming += RUN_BYTES;
            all.tables += RUN_BYTES;
        }
        all
    }

    /// Merges runs that else would not be, and says whether there are fewer now.
    ///
    /// # Errors
    /// Those of merging and of storage.
    #[cold]
    fn merge_for_room(&mut self) -> Result<bool> {
        let count = |lists: &Self| lists.buckets.values().map(|b| b.runs.len()).sum::<usize>();
        // What is free once it is written is not free yet.
        if let Err(error) = self.make_room(self.account.limit() / 8, "merging runs")
            && error.kind() != ErrorKind::OverBudget
        {
            return Err(error);
        }
        let (before, since) = (count(self), Instant::now());
        if let Some(packed) = &mut self.packed {
            packed.catch_up();
        }
        self.is_tight = true;
        if !self.merging {
            self.merge_what_takes_most();
        }
        while self.merging && since.elapsed() < self.sizes.patience {
            if let Some(answer) = self.jobs.wait() {
                self.take(answer);
            }
        }
        self.is_tight = false;
        self.poll()?;
        Ok(count(self) < before)
    }

    /// Writes lists and drops them, as what is kept for a run that is not written is more than what one takes that is: until
    /// what is `wanted` is free, if it can be. Says whether less is in memory now, or more is free beside what is kept. Nothing
    /// is done where small buckets may be packed: little is kept for those, and what is written before is not packed.
    ///
    /// # Errors
    /// Those of storage.
    #[cold]
    fn write_for_room(&mut self, wanted: u64) -> Result<bool> {
        if self.may_pack() {
            return Ok(false);
        }
        let (before, spare) = (self.unwritten_bytes(), self.spare_bytes());
        let free = self.account.available();
        let missing = wanted.saturating_sub(free + self.elastic_bytes());
        // Many slices at once: whoever appends to new ones asks again soon.
        let more = missing.max(self.account.limit() / 16);
        if let Err(error) = self.make_room(free.saturating_add(more), "writing lists")
            && error.kind() != ErrorKind::OverBudget
        {
            return Err(error);
        }
        self.kept = None;
        Ok(self.unwritten_bytes() < before || self.spare_bytes() > spare)
    }

    /// Whether slices may be packed, now or later.
    pub(super) fn may_pack(&self) -> bool {
        self.packed.is_some() && self.sizes.packs_slices
    }

    /// What is free beside what is kept; less than nothing, if that is not all there.
    fn spare_bytes(&mut self) -> i128 {
        let kept = self.kept_now();
        let room = self.account.available() + self.elastic_bytes() + kept.elastic;
        i128::from(room) - i128::from(self.wanted(&kept))
    }

    /// What lists in memory and their heads take.
    fn unwritten_bytes(&self) -> u64 {
        self.elastic_bytes() + self.account.used_for(MemoryKind::Index)
    }

    /// Begins to merge runs of the bucket whose runs take most to read, of those that can be merged.
    fn merge_what_takes_most(&mut self) {
        let several = self.buckets.iter().filter(|(_, bucket)| bucket.runs.len() > 1);
        let mut all: Vec<_> =
            several.map(|(time, bucket)| (self.runs_in(bucket, None).reading, *time)).collect();
        all.sort_unstable_by_key(|most| std::cmp::Reverse(*most));
        for (_, time) in all {
            if let Some(whole) = self.is_crowded(time)
                && let Some((group, bytes)) = self.choose(time, whole)
                && self.begin_merge(time, group, bytes)
            {
                return;
            }
        }
    }
}
