//! Reading what is packed: it becomes a run of its bucket, all of whose blocks are in memory, for as long as it is read.
//!
//! Neighbouring slices are read by one pass over the levels, some of them at a time. A fold loads so much in one call and
//! goes on with the next; whoever had to begin anew, as something else was done in between, may load twice as much in each,
//! up to what was enough once.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Error, ErrorKind, FooterEntry, MemoryKind, Result, Time};

use super::packing::loaded_bytes;
use super::{LOADED_BYTES, PACKED, PackedSlice, hash_of, is_loaded, number_in, place_in, time_of};
use crate::append_log::core::ListsCore;
use crate::append_log::run::{BlockAt, CachedBlocks, ListRun, RUN_BYTES, StoredRun};
use crate::contract::lists::span;
use crate::runs::{scan, scan_bytes};
use crate::support::booked::Booked;

/// Bytes that are loaded at a time: one part in so many of the memory, within these limits, or one slice.
const STEP_SHARE: u64 = 64;
const STEP_BYTES_MIN: u64 = 32 << 10;
const STEP_BYTES_MAX: u64 = 512 << 10;
/// Slices that are loaded at a time.
const STEP_SLICES: usize = 256;

/// A packed slice, and what is known of it.
pub(super) type KnownSlice = (Time, PackedSlice);

/// The records of a slice, in the order of places and ranks.
#[derive(Debug, Default)]
pub(super) struct SliceRecords {
    pub blocks: Vec<BlockAt>,
    pub payloads: Vec<AlignedVec>,
    pub bytes: u64,
    pub elements: u64,
}

/// Bytes of records between the slices that are read that one pass goes over.
const PASSED_BYTES_MAX: u64 = 64 << 10;

/// Folds that are remembered while they go on.
const FOLDS: usize = 4;

/// A fold that loads slices.
#[derive(Clone, Debug)]
struct LoadingFold {
    buckets: Range<Time>,
    /// Steps of one call.
    steps: usize,
    /// Whether all of its slices were loaded.
    is_done: bool,
    /// Whether so many steps are enough for all of them.
    is_enough: bool,
}

/// Folds that have slices to load, now or once they begin anew.
#[derive(Debug, Default)]
pub(super) struct LoadingFolds {
    /// The last of them last.
    folds: [Option<LoadingFold>; FOLDS],
    /// Whether the last call was one of the last of them, and goes on to load.
    goes_on: bool,
}

impl LoadingFolds {
    /// Steps of the next call of this fold, which is not remembered any more: as many as in the last one if what that has
    /// loaded is there, or if they were enough, or else twice as many. And whether that call goes on.
    fn steps_of(&mut self, buckets: &Range<Time>, is_there: bool) -> (usize, bool) {
        let goes_on = std::mem::take(&mut self.goes_on) && is_there;
        let Some((at, fold)) = self.take(buckets) else { return (1, false) };
        let goes_on = goes_on && at == FOLDS - 1;
        (if goes_on || fold.is_enough { fold.steps } else { 2 * fold.steps }, goes_on)
    }

    fn take(&mut self, buckets: &Range<Time>) -> Option<(usize, LoadingFold)> {
        let is_it =
            |fold: &Option<LoadingFold>| fold.as_ref().is_some_and(|fold| fold.buckets == *buckets);
        let at = self.folds.iter().rposition(is_it)?;
        Some((at, self.folds[at].take()?))
    }

    /// Remembers a fold that goes on. With too many of them one is forgotten: the oldest that has loaded all of its
    /// slices, or else the oldest.
    fn remember(&mut self, fold: LoadingFold) {
        self.folds.sort_by_key(|fold| fold.as_ref().map_or(0, |fold| 2 - u8::from(fold.is_done)));
        self.folds[0] = Some(fold);
        self.folds.rotate_left(1);
    }

    /// The fold is done.
    pub fn forget(&mut self, buckets: &Range<Time>) {
        self.take(buckets);
    }
}

impl ListsCore {
    /// Loads what is packed of these slices and is not loaded: of all keys, or of those at one place. Says whether there was
    /// anything.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if there is no memory.
    pub(in crate::append_log) fn load_packed(
        &mut self,
        times: &[Time],
        of_place: Option<u64>,
    ) -> Result<bool> {
        let mut any = false;
        while self.load_step(times, of_place)? {
            any = true;
        }
        Ok(any)
    }

    /// Loads some of the packed slices that a fold of these buckets reads, and says whether all of them are loaded now.
    ///
    /// # Errors
    /// As for [`load_packed`](ListsCore::load_packed).
    pub(in crate::append_log) fn load_some(
        &mut self,
        buckets: &Range<Time>,
        times: &[Time],
    ) -> Result<bool> {
        let Some(packed) = self.packed.as_mut() else { return Ok(true) };
        let (steps, goes_on) = packed.loading.steps_of(buckets, !packed.loaded.is_empty());
        let (mut taken, mut loaded) = (0, Ok(true));
        while taken < steps && matches!(loaded, Ok(true)) {
            loaded = self.load_step(times, None);
            taken += usize::from(matches!(loaded, Ok(true)));
        }
        let is_done = loaded.is_ok() && times.iter().all(|time| self.to_load(*time).is_none());
        if !is_done || taken > 0 {
            let loading = &mut self.packed.as_mut().expect("looked at above").loading;
            // What is loaded goes as soon as something else is done, and the fold loads it again.
            let (buckets, is_enough) = (buckets.clone(), is_done && !goes_on);
            loading.remember(LoadingFold { buckets, steps, is_done, is_enough });
            // After an error too: what was loaded may be gone when the next call comes.
            loading.goes_on = !is_done && loaded.is_ok();
        }
        loaded.map(|_| is_done)
    }

    /// Whether a slice is loaded as a whole, and not read part by part.
    pub(super) fn is_loaded_whole(&self, slice: PackedSlice) -> bool {
        let packed = self.packed.as_ref();
        packed.is_some_and(|packed| packed.directory.loaded(slice.bytes) == slice.bytes)
    }

    fn to_load(&self, time: Time) -> Option<PackedSlice> {
        let packed = self.packed.as_ref().filter(|packed| !packed.loaded.contains(&time))?;
        packed.directory.get(time)
    }

    /// Loads the next of these slices that are not loaded. Says whether there were any.
    fn load_step(&mut self, times: &[Time], of_place: Option<u64>) -> Result<bool> {
        let limit = self.account.limit() / STEP_SHARE;
        let (most, mut bytes) = (limit.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX), 0);
        let missing = times.iter().filter_map(|time| Some((*time, self.to_load(*time)?)));
        let some = missing.take(STEP_SLICES).take_while(|(_, slice)| {
            let is_first = bytes == 0;
            bytes += slice.bytes + LOADED_BYTES;
            is_first || bytes <= most
        });
        let mut some: Vec<KnownSlice> = some.collect();
        let is_whole = |(_, slice): &KnownSlice| self.is_loaded_whole(*slice);
        match some.iter().position(|known| !is_whole(known)) {
            Some(0) => {
                self.make_room_to_read(LOADED_BYTES, "reading packed slices")?;
                // Unless that packed more of it.
                if self.to_load(some[0].0) == Some(some[0].1) {
                    self.install_loaded(some[0], None)?;
                }
                return Ok(true);
            }
            Some(at) => some.truncate(at),
            None if some.is_empty() => return Ok(false),
            None => {}
        }
        if of_place.is_none() && self.load_ahead(&some)? {
            return Ok(true);
        }
        let more = some.len() as u64 * LOADED_BYTES;
        let followers = self.followers(&some, of_place);
        let all = [&some[..], &followers[..]].concat();
        let read = match self.read_packed(&all, more, of_place) {
            // Whatever is wrong with those that follow is told when they are read.
            Err(_) if !followers.is_empty() => self.read_packed(&some, more, of_place),
            read => read,
        };
        // Unless more of them was packed while memory was made free: then they are looked at again.
        for (known, records) in read?.into_iter().flatten() {
            match some.iter().any(|(time, _)| *time == known.0) {
                true => self.install_loaded(known, Some(records))?,
                false => {
                    let packed = self.packed.as_mut().expect("it was read");
                    packed.ahead.put(known, records, &packed.account);
                }
            }
        }
        Ok(true)
    }

    /// The slices that are read ahead with these.
    fn followers(&mut self, loaded: &[KnownSlice], of_place: Option<u64>) -> Vec<KnownSlice> {
        let Some(packed) = self.packed.as_mut().filter(|_| of_place.is_none()) else {
            return Vec::new();
        };
        let mut all = packed.ahead.followers(loaded, &packed.directory, &packed.account);
        let count = all.iter().take_while(|(time, _)| !packed.loaded.contains(time)).count();
        all.truncate(count);
        all
    }

    /// Loads the first of these slices that were read ahead. Says whether there were any.
    fn load_ahead(&mut self, slices: &[KnownSlice]) -> Result<bool> {
        let mut any = false;
        for known in slices {
            let packed = self.packed.as_mut().expect("a slice is packed");
            let Some((records, booked)) = packed.ahead.take(*known) else { break };
            packed.ahead.has_loaded(known.0);
            any = true;
            self.make_room_to_read(LOADED_BYTES, "reading packed slices")?;
            drop(booked);
            // Unless more of it was packed meanwhile.
            if self.to_load(known.0) == Some(known.1) {
                self.install_loaded(*known, Some(records))?;
            }
        }
        Ok(any)
    }

    /// A slice becomes a run of its bucket, with its records in memory, or none if it is read part by part.
    fn install_loaded(
        &mut self,
        (time, slice): KnownSlice,
        records: Option<SliceRecords>,
    ) -> Result<()> {
        if !self.buckets.contains_key(&time) {
            let bucket = self.new_bucket((time, slice.since))?;
            self.add_bucket(bucket);
        }
        let is_whole = records.is_some();
        let SliceRecords { mut blocks, payloads, bytes, .. } = records.unwrap_or_default();
        blocks.shrink_to_fit();
        let stored = StoredRun { files: Vec::new(), blocks };
        self.account.charge(MemoryKind::Tables, stored.memory_bytes() + RUN_BYTES);
        self.account.charge(MemoryKind::Buffers, bytes);
        let cached =
            is_whole.then(|| CachedBlocks { blocks: Arc::new(payloads), bytes, used: true });
        // Busy: nobody merges it or drops it from memory.
        let run = ListRun { busy: true, cached, ..ListRun::on_storage(PACKED, (0, 0), stored) };
        let bucket = self.buckets.get_mut(&time).expect("there or made");
        bucket.runs.insert(0, run);
        self.packed.as_mut().expect("it was read").loaded.insert(time);
        Ok(())
    }

    /// Reads the records of neighbouring slices, in order, for which memory is made free, and for so much more; those at one
    /// place, if one is told. Of slices that are far apart only the first are read. None: what is packed of the slices has
    /// changed meanwhile.
    pub(super) fn read_packed(
        &mut self,
        slices: &[KnownSlice],
        more: u64,
        of_place: Option<u64>,
    ) -> Result<Option<Vec<(KnownSlice, SliceRecords)>>> {
        let packed = self.packed.as_ref().expect("a slice is packed");
        let hashes = hash_of(slices[0].0)..=hash_of(slices[slices.len() - 1].0);
        let scan = scan_bytes(&packed.levels.infos_within(&hashes), packed.read_bytes);
        let all: u64 = slices.iter().map(|(_, slice)| slice.bytes).sum();
        self.make_room_to_read(scan + all + more, "reading packed slices")?;
        match slices.iter().all(|(time, slice)| self.to_load(*time) == Some(*slice)) {
            true => self.scan_packed(slices, of_place).map(Some),
            false => Ok(None),
        }
    }

    fn scan_packed(
        &mut self,
        slices: &[KnownSlice],
        of_place: Option<u64>,
    ) -> Result<Vec<(KnownSlice, SliceRecords)>> {
        if let Some(reads) = &self.reads {
            let waited = reads.wait();
            self.book_left();
            waited?;
        }
        let packed = self.packed.as_ref().expect("a slice is packed");
        let (range, read_bytes) = (self.range, packed.read_bytes);
        let hashes = hash_of(slices[0].0)..=hash_of(slices[slices.len() - 1].0);
        let levels = packed.levels.infos_within(&hashes);
        let all: u64 = slices.iter().map(|(_, slice)| slice.bytes).sum();
        let booked = Booked::buffers(self.account.clone(), scan_bytes(&levels, read_bytes) + all);
        let mut found: Vec<(KnownSlice, SliceRecords)> =
            slices.iter().map(|known| (*known, SliceRecords::default())).collect();
        let (mut at, mut passed) = (0, 0);
        let levels = (&packed.store, &levels[..]);
        let scanned = scan(levels, &hashes, read_bytes, &mut |group| {
            let time = time_of(group[0].hash);
            while found.get(at).is_some_and(|((here, _), _)| *here < time) {
                at += 1;
            }
            let Some(((here, slice), records)) = found.get_mut(at) else { return Ok(false) };
            if *here != time {
                passed += group.iter().map(|record| record.payload.len() as u64).sum::<u64>();
                return Ok(passed <= PASSED_BYTES_MAX);
            }
            for record in group.iter().filter(|record| number_in(record.order) >= slice.since) {
                records.elements += u64::from(record.mark);
                let place = place_in(record.order);
                if of_place.is_some_and(|wanted| wanted != place) {
                    continue;
                }
                let mut payload = AlignedVec::with_capacity(record.payload.len());
                payload.extend_from_slice(record.payload);
                let (hash, len) = (range.hash(place), record.payload.len() as u32);
                let record = FooterEntry { hash, grain: 0, len };
                records.blocks.push(BlockAt { file: 0, record });
                records.bytes += loaded_bytes(payload.len());
                records.payloads.push(payload);
            }
            Ok(true)
        });
        drop(booked);
        self.book_left();
        scanned.map_err(|error| error.with("state", &self.context.name))?;
        self.stats.cold_reads += 1;
        if passed > PASSED_BYTES_MAX {
            // The slices before the next one are complete.
            found.truncate(at);
        }
        let wrong = found.iter().find(|((_, slice), records)| records.elements != slice.elements);
        if let Some(((time, slice), records)) = wrong {
            let (found, told) = (records.elements, slice.elements);
            let what = format!("a packed slice has {found} elements in runs, {told} are told");
            let error = Error::new(ErrorKind::Corrupt, what);
            return Err(error.with("state", &self.context.name).with("slice", time.0));
        }
        Ok(found)
    }

    /// Unloads a slice.
    pub(super) fn unload(&mut self, time: Time) {
        let Some(packed) = self.packed.as_mut() else { return };
        packed.loaded.remove(&time);
        let Some(bucket) = self.buckets.get_mut(&time) else { return };
        let at = bucket.runs.iter().position(is_loaded);
        if let Some(run) = at.map(|at| bucket.runs.remove(at)) {
            self.drop_run(run);
        }
        self.drop_if_vacant(time);
    }

    /// Whether a fold goes on to load slices.
    pub(in crate::append_log) fn is_loading(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.loading.goes_on)
    }

    /// Unloads the slices that are not among some buckets.
    pub(in crate::append_log) fn unload_others(&mut self, buckets: &Range<Time>) {
        let loaded = self.packed.iter().flat_map(|packed| &packed.loaded);
        let others = loaded.filter(|time| !span(buckets).contains(time));
        for time in others.copied().collect::<Vec<_>>() {
            self.unload(time);
        }
    }

    /// Unloads all slices.
    pub(in crate::append_log) fn unload_all(&mut self) {
        let loaded =
            self.packed.as_mut().map_or(Default::default(), |p| std::mem::take(&mut p.loaded));
        for time in loaded {
            self.unload(time);
        }
    }

    /// Forgets the fold that goes on, which anything else ends.
    #[inline]
    pub(in crate::append_log) fn leave_fold(&mut self) {
        self.resume = None;
        if self.packed.as_ref().is_some_and(|packed| !packed.loaded.is_empty()) {
            self.unload_all();
        }
    }
}
