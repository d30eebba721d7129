//! The record path: updates in place, look-ups through the parts of a slice, removals.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use alluvium_pagestore::io::IoBuffer;
use alluvium_pagestore::{
    Account, BlobWriter, Error, ErrorKind, Key, Lookup, MEMORY_KINDS, MemoryKind, Result,
    SegmentWriter, State, StateImage, Time, codec, fingerprint,
};

use super::background::{Background, Storage};
use super::capture::Capture;
use super::config::{Sizes, TABLE_FILES, WindowSegments};
use super::cuts::Cuts;
use super::files::{Files, NAME_BYTES};
use super::fold::Fold;
use super::fund::Fund;
use super::gathering::Gathering;
use super::merging::Merging;
use super::prefetch::Ahead;
use super::slice::Slice;
use super::slots::RECENT;
use super::tables::{TableGroups, ToldTables};
use crate::checkpoint::at_once;
use crate::contract::by_hash::ByHash;
use crate::contract::panes::{Merge, Panes, PanesLayout, Run};
use crate::contract::table::{BatchError, CheckpointOutcome, Cursor, StateContext, TableStats};
use crate::contract::upkeep::Upkeep;
use crate::heap::hash_range::HashRange;
use crate::support::oversize::Oversize;
use crate::support::patient_reads::PatientReads;

/// Open [`WindowSegments`].
pub struct SegmentPanes<K, A> {
    pub(super) context: StateContext,
    pub(super) account: Rc<Account>,
    pub(super) sizes: Sizes,
    pub(super) range: HashRange,
    pub(super) merge: Merge<A>,
    pub(super) slots: Vec<Option<Slice<K, A>>>,
    pub(super) vacant: Vec<u32>,
    pub(super) by_time: BTreeMap<Time, u32>,
    /// The slice that was updated or read last, and where it is; `u32::MAX` if nowhere.
    pub(super) last: (Time, u32),
    pub(super) recent: Box<[(Time, u32); RECENT]>,
    pub(super) background: Background<K, A>,
    pub(super) files: Files,
    /// Slices that are purged and in their slots still.
    pub(super) purged: VecDeque<BTreeMap<Time, u32>>,
    /// Entries of the slice that was purged last, as far as they were in its table in use.
    pub(super) entries_likely: u64,
    /// Those that were taken out, with what is left of them.
    pub(super) dying: VecDeque<Slice<K, A>>,
    /// Cuts without a part that they apply to, to be dropped.
    pub(super) forgotten: VecDeque<Cuts<K>>,
    pub(super) ahead: Ahead,
    /// Where a fold that ran out of fuel goes on.
    pub(super) folding: Option<Fold>,
    /// What a fold in memory gathers.
    pub(super) gathering: Gathering<K, A>,
    /// Changes whenever parts of slices move between memory and storage.
    pub(super) arrangement: u64,
    /// Job numbers given so far.
    pub(super) jobs: u64,
    /// The job that writes a table; 0 if there is none.
    pub(super) writing: u64,
    /// The merge that is under way.
    pub(super) merging: Option<Merging>,
    /// Booked for the tables of runs that are about to be written.
    pub(super) reserve_bytes: u64,
    /// Whether the last run could not be written.
    pub(super) failing: bool,
    /// Whether a checkpoint is being read.
    pub(super) is_restoring: bool,
    /// Memory for the next checkpoint.
    pub(super) fund: Fund,
    /// Empty while a read that was left has it.
    pub(super) read_buffer: IoBuffer,
    /// How the owner reads runs; `None` without storage.
    pub(super) reads: Option<PatientReads>,
    /// The checkpoint being taken, or not decided yet.
    pub(super) capture: Option<Box<Capture<K, A>>>,
    /// Tables that the last checkpoint has.
    pub(super) groups: TableGroups,
    pub(super) stats: TableStats,
    pub(super) oversize: Oversize,
}

impl<K: Key, A: State> PanesLayout<K, A> for WindowSegments {
    type Panes = SegmentPanes<K, A>;

    fn name(&self) -> &'static str {
        super::LAYOUT
    }

    fn memory_limit(&self) -> Option<u64> {
        self.limit()
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes> {
        SegmentPanes::open(self, context, merge)
    }
}

/// A value lent to a user's closure; books the change of its heap when dropped, also by a panic.
struct Lent<'a, K: Key, A: State> {
    entry: &'a mut (K, A),
    before: u64,
    heap_bytes: &'a mut u64,
    account: &'a Account,
    oversize: &'a mut Oversize,
}

impl<'a, K: Key, A: State> Lent<'a, K, A> {
    #[inline(always)]
    fn new(
        entry: &'a mut (K, A),
        heap_bytes: &'a mut u64,
        account: &'a Account,
        oversize: &'a mut Oversize,
    ) -> Result<Self> {
        let before = if A::NO_HEAP { 0 } else { entry.1.heap_bytes() as u64 };
        if !A::NO_HEAP && oversize.is_seen() {
            oversize.check(&entry.0, entry.0.heap_bytes() as u64 + before)?;
        }
        Ok(Self { entry, before, heap_bytes, account, oversize })
    }
}

impl<K: Key, A: State> Drop for Lent<'_, K, A> {
    #[inline(always)]
    fn drop(&mut self) {
        if !A::NO_HEAP {
            let after = self.entry.1.heap_bytes() as u64;
            if after != self.before {
                *self.heap_bytes = *self.heap_bytes + after - self.before;
                self.account.adjust(MemoryKind::Values, self.before, after);
                if after > self.before {
                    let key = &self.entry.0;
                    self.oversize.grown(key, key.heap_bytes() as u64 + after);
                }
            }
        }
    }
}

impl<K: Key, A: State> SegmentPanes<K, A> {
    pub(super) const PLAIN: bool = K::NO_HEAP && A::NO_HEAP;

    fn open(layout: &WindowSegments, mut context: StateContext, merge: Merge<A>) -> Result<Self> {
        let account = context.account.clone();
        let stored = context.segments.is_some();
        // What is there already may be larger than what may come.
        let most = Oversize::most_of(context.max_value_bytes, context.longest_record());
        let sizes = layout.sizes::<K, A>(account.available_to_open(), most, stored)?;
        let image = if stored { sizes.image_bytes } else { 0 };
        account.reserve(
            MemoryKind::Buffers,
            sizes.buffer_bytes(image),
            "the buffers of window segments",
        )?;
        let tables = sizes.reserve_bytes + size_of::<[(Time, u32); RECENT]>() as u64;
        account.reserve(MemoryKind::Tables, tables, "the table of a run")?;
        let storage = context.segments.clone().map(|store| {
            let state = fingerprint(&context.name);
            let writer =
                SegmentWriter::new(store.clone(), state, sizes.chunk_bytes, sizes.segment_bytes);
            Storage { store, writer: Arc::new(Mutex::new(writer)) }
        });
        let store = context.segments.as_ref();
        let reads = store.map(|store| PatientReads::new(store, sizes.patience, account.clone()));
        let restored = context.restored.take();
        let mut panes = Self {
            range: HashRange::of(&context.owned, context.key_groups),
            background: Background::new(context.helper.clone(), storage),
            files: Files::new(account.clone()),
            fund: Fund::new(account.clone()),
            groups: TableGroups::new(account.clone()),
            oversize: Oversize::new(&context.name, context.max_value_bytes),
            context,
            account,
            sizes,
            merge,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_time: BTreeMap::new(),
            last: (Time::MIN, u32::MAX),
            recent: Box::new([(Time::MIN, u32::MAX); RECENT]),
            purged: VecDeque::new(),
            entries_likely: 0,
            dying: VecDeque::new(),
            forgotten: VecDeque::new(),
            ahead: Ahead::default(),
            folding: None,
            gathering: Gathering::within(sizes.fold_bytes),
            arrangement: 0,
            jobs: 0,
            writing: 0,
            merging: None,
            reserve_bytes: sizes.reserve_bytes,
            failing: false,
            is_restoring: true,
            read_buffer: IoBuffer::zeroed(image as usize),
            reads,
            capture: None,
            stats: TableStats::default(),
        };
        if let Some((image, _)) = restored {
            panes.restore(&image)?;
        }
        panes.is_restoring = false;
        panes.fund.came(panes.by_time.len() as u64 * ToldTables::TABLE_BYTES);
        if panes.background.storage.is_some() {
            // Restoring has used this memory for its own buffers.
            let bytes = panes.sizes.checkpoint_bytes();
            panes.make_room(bytes, "the buffers of checkpoints")?;
            panes.files.expect(TABLE_FILES);
            panes.fund.came(bytes - TABLE_FILES as u64 * NAME_BYTES);
            panes.fund.want_slack(panes.sizes.slack_bytes());
        }
        Ok(panes)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn make_headroom(&mut self) -> Result<()> {
        self.make_room(self.sizes.headroom_bytes, "a value")
    }

    /// Puts a new key into a slice and applies `change` to what `init` gives.
    #[inline(never)]
    fn insert<R>(
        &mut self,
        slice: Time,
        hash: u64,
        key: impl FnOnce() -> K,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        // What is restored had room before, and each run takes more.
        if self.account.available() < self.sizes.low_water_bytes && !self.is_restoring {
            self.spill_ahead();
        }
        let slot = self.begin_slice(slice)?;
        self.make_room_for_key(slice, slot, hash)?;
        let found = self.slots[slot].as_mut().expect("begun above");
        let entry = found.active.insert(hash, || (key(), init()))?;
        let heap =
            if Self::PLAIN { 0 } else { (entry.0.heap_bytes() + entry.1.heap_bytes()) as u64 };
        found.heap_bytes += heap;
        self.account.charge(MemoryKind::Values, heap);
        self.oversize.grown(&entry.0, heap);
        let before = if A::NO_HEAP { 0 } else { entry.1.heap_bytes() as u64 };
        let (account, oversize) = (&*self.account, &mut self.oversize);
        let heap_bytes = &mut found.heap_bytes;
        let lent = Lent { entry, before, heap_bytes, account, oversize };
        Ok(change(&mut lent.entry.1))
    }

    /// Makes room for a new key in a slice, which was begun: in its table first, then for the value, so that the table
    /// does not grow into what is kept free for that.
    fn make_room_for_key(&mut self, slice: Time, slot: usize, hash: u64) -> Result<()> {
        let mut wanted = 4 << 10;
        loop {
            let made = self.slice_at_mut(slot).active.make_room(hash);
            let made = match made {
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    wanted *= 2;
                    let room = self.account.available() + wanted / 2;
                    self.make_room(room, "a hash table").map(|()| false)
                }
                Err(error) => return Err(error),
                Ok(()) if Self::PLAIN => return Ok(()),
                Ok(()) => self.make_room(self.sizes.headroom_bytes, "a value").map(|()| true),
            };
            match made {
                // To make room, the table may have been taken to be written.
                Ok(true) if self.slice_at(slot).active.has_room(hash) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    self.end_if_empty(slice);
                    return Err(error);
                }
            }
        }
    }

    /// Adds what `key` has in one part to what it has in those before.
    pub(super) fn add(merge: &Merge<A>, sum: &mut Option<A>, more: std::borrow::Cow<'_, A>) {
        match sum {
            Some(sum) => merge(sum, &more),
            None => *sum = Some(more.into_owned()),
        }
    }

    /// Adds what a run has of `key`.
    fn add_from_run(
        &mut self,
        slot: usize,
        run: usize,
        hash: u64,
        is: impl Fn(&K) -> bool,
        sum: &mut Option<A>,
    ) -> Result<()> {
        let stored = &self.slots[slot].as_ref().expect("a slice in use").runs[run];
        let mut number = stored.run.image_of(hash);
        let (merge, stats) = (&self.merge, &mut self.stats);
        let mut add = |image: &alluvium_pagestore::Image| -> Result<bool> {
            for record in image.first_from(hash)..image.len() {
                if image.entry(record).hash != hash {
                    return Ok(false);
                }
                let (key, value) = codec::decode::<K, A>(image.record(record)?.payload)?;
                stats.codec_calls += 1;
                if is(&key) {
                    Self::add(merge, sum, std::borrow::Cow::Owned(value));
                }
            }
            Ok(true)
        };
        let mut cold = 0;
        while stored.run.images.get(number).is_some_and(|image| image.first <= hash) {
            let on = match stored.resident(number) {
                Some(image) => add(image)?,
                None => {
                    let reads = self.reads.as_ref().expect("a run on storage");
                    cold += 1;
                    let at = stored.run.images[number];
                    let more = at.bytes().saturating_sub(self.read_buffer.capacity() as u64);
                    self.account.reserve(MemoryKind::Buffers, more, "a long image")?;
                    let buffer = std::mem::replace(&mut self.read_buffer, IoBuffer::empty());
                    let done = stored.run.read(reads.store(), number, buffer).and_then(|image| {
                        let on = add(&image)?;
                        self.read_buffer = image.into_buffer();
                        Ok(on)
                    });
                    self.account.release(MemoryKind::Buffers, more);
                    let usual = self.sizes.image_bytes;
                    if reads.left_bytes() > 0 {
                        // It is booked as this one's, but for what it is longer.
                        reads.book(reads.left_bytes().saturating_sub(usual));
                    } else if self.read_buffer.capacity() as u64 != usual {
                        self.read_buffer = IoBuffer::zeroed(usual as usize);
                    }
                    done?
                }
            };
            if !on {
                break;
            }
            number += 1;
        }
        self.stats.cold_reads += cold;
        Ok(())
    }
}

impl<K: Key, A: State> Panes<K, A> for SegmentPanes<K, A> {
    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        let hash = key.key_hash();
        if !Self::PLAIN && self.account.available() < self.sizes.headroom_bytes {
            self.make_headroom()?;
        }
        if let Some(slot) = self.slot_of(slice) {
            if self.slice_at(slot).is_watched() {
                self.keep(slot, hash, key);
            }
            let found = self.slots[slot].as_mut().expect("a slice in use");
            if let Some(entry) = found.active.find_mut(hash, |(known, _)| key.is(known)) {
                let (heap_bytes, oversize) = (&mut found.heap_bytes, &mut self.oversize);
                let lent = Lent::new(entry, heap_bytes, &self.account, oversize)?;
                return Ok(change(&mut lent.entry.1));
            }
        }
        if !K::NO_HEAP {
            let key = key.to_owned();
            self.oversize.check(&key, key.heap_bytes() as u64)?;
            return self.insert(slice, hash, || key, init, change);
        }
        self.insert(slice, hash, || key.to_owned(), init, change)
    }

    // Items of one slice, one after the other, take the short way.
    #[inline]
    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        place: impl Fn(&T) -> (Time, &Q),
        mut init: impl FnMut(&T) -> A,
        mut change: impl FnMut(&T, &mut A),
    ) -> std::result::Result<(), BatchError> {
        let mut applied = 0;
        while applied < batch.len() {
            if Self::PLAIN {
                applied += self.update_plain(&batch[applied..], &place, &mut init, &mut change);
            }
            let Some(item) = batch.get(applied) else { break };
            let (slice, key) = place(item);
            self.update(slice, key, || init(item), |acc| change(item, acc))
                .map_err(|error| BatchError { applied, error })?;
            applied += 1;
        }
        Ok(())
    }

    #[inline]
    fn update_run<'a, B>(
        &mut self,
        slice: Time,
        run: &mut Run<'a, K, B>,
        init: impl Fn() -> A,
        change: impl Fn(&mut A, &B),
    ) -> std::result::Result<(), (Error, &'a K, &'a B)> {
        let mut next = run.next();
        while let Some((key, with)) = next {
            if Self::PLAIN {
                next = self.update_plain_run(slice, (key, with), run, &init, &change);
                if next.is_none_or(|(next, _)| !std::ptr::eq(next, key)) {
                    continue;
                }
            }
            self.update(slice, key, &init, |acc| change(acc, with))
                .map_err(|error| (error, key, with))?;
            next = run.next();
        }
        Ok(())
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>> {
        self.settle();
        let Some(slot) = self.slot_of(slice) else { return Ok(None) };
        let hash = key.key_hash();
        let first = self.slice_at(slot).first_part_of(hash, |known| key.is(known));
        let mut sum = None;
        if !self.slice_at(slot).runs.is_empty() {
            self.wait_for_left()?;
        }
        for run in 0..self.slice_at(slot).runs.len() {
            if self.slice_at(slot).runs[run].run.number >= first {
                self.add_from_run(slot, run, hash, |known| key.is(known), &mut sum)?;
            }
        }
        let found = self.slots[slot].as_ref().expect("a slice in use");
        if let Some(part) = found.frozen.as_ref().filter(|part| part.number >= first) {
            if let Some((_, value)) = part.table.find(hash, |(known, _)| key.is(known)) {
                Self::add(&self.merge, &mut sum, std::borrow::Cow::Borrowed(value));
            }
        }
        if let Some((_, value)) = found.active.find(hash, |(known, _)| key.is(known)) {
            Self::add(&self.merge, &mut sum, std::borrow::Cow::Borrowed(value));
        }
        Ok(sum)
    }

    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()> {
        let Some(slot) = self.slot_of(slice) else { return Ok(()) };
        let hash = key.key_hash();
        if self.slice_at(slot).is_watched() {
            self.keep(slot, hash, key);
        }
        if self.slice_at(slot).has_older_parts() {
            // Before the cut is made, so that nothing is half removed.
            self.make_room((16 << 10) + self.sizes.headroom_bytes, "a removed key")?;
            let found = self.slots[slot].as_mut().expect("a slice in use");
            let at = (&self.account, self.range);
            found.cut(hash, |known| key.is(known), || key.to_owned(), at)?;
        }
        let found = self.slots[slot].as_mut().expect("a slice in use");
        if let Some((key, value)) = found.active.remove(hash, |(known, _)| key.is(known)) {
            let heap = (key.heap_bytes() + value.heap_bytes()) as u64;
            found.heap_bytes -= heap;
            self.account.release(MemoryKind::Values, heap);
        }
        self.end_if_empty(slice);
        Ok(())
    }

    fn next_slice(&self, from: Time) -> Option<Time> {
        self.by_time.range(from..).next().map(|(slice, _)| *slice)
    }

    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        self.fold_slices(slices, cursor, fuel, visit)
    }

    #[inline]
    fn visit(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: impl FnMut(Run<'_, K, A>),
    ) -> Result<()> {
        self.visit_slices(slices, cursor, fuel, visit)
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        Some(self)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        self.purge_slices(before, fuel)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.read_ahead(until);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.slices().map(Slice::len).sum()
    }
}

impl<K: Key, A: State> Upkeep for SegmentPanes<K, A> {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.work_in_background(work)
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        self.give_up_memory(bytes)
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let fixed = match self.reads.is_some() {
            true => self.account.fixed_bytes(),
            false => self.account.used(),
        };
        (fixed, self.account.limit())
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture().map(|()| None)
    }

    fn continue_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture()
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_checkpoint(outcome);
    }

    fn stats(&self) -> TableStats {
        self.describe()
    }
}

impl<K, A> Drop for SegmentPanes<K, A> {
    fn drop(&mut self) {
        if let Some(reads) =
            self.reads.as_ref().filter(|_| !self.background.jobs.helper().is_left_alone())
        {
            reads.wait_to_close();
        }
        // Tables give back what they take; all that is left on the account is the rest.
        self.capture = None;
        self.slots.clear();
        self.dying.clear();
        self.forgotten.clear();
        for kind in MEMORY_KINDS {
            self.account.release(kind, self.account.used_for(kind));
        }
    }
}
