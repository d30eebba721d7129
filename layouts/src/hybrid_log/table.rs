//! The hybrid log as a table: keys to values.
//!
//! Every call follows one pattern: hash, look in memory, and only if that does not settle it make
//! room, look again (making room moves records) and read storage. A changed record that is not in
//! a mutable frame moves to the fill frame: its value is moved, or cloned while its page is being
//! written. One that a checkpoint is yet to have is cloned there too.

mod handed_over;
mod reaching;

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{
    Account, BlobRef, BlobWriter, ByteSize, EntryCodec, Error, ErrorKind, HeapSize, Key, Lookup,
    MemoryKind, Rejected, Result, Rewrite, SegmentStore, State, StateImage, Time, description_of,
};

use self::handed_over::HandedOver;
use self::reaching::Found;
pub(super) use self::reaching::TOO_LARGE;
use super::address::{Address, StoredAt};
use super::batches::GROUP;
use super::capture::{Capture, Late};
use super::config::{FRAMES_MIN, HybridLog};
use super::expiring::Expiry;
use super::index::{IndexHash, Position};
use super::log::{Located, Log, NOWHERE, QUANTUM, heap_of};
use super::passing::Booked;
use super::rewriter::Rewriter;
use super::stored::{Read, Stored};
use crate::by_hash::ByHash;
use crate::expiry::{ExpiryPass, Touched};
use crate::fetch::{Fetch, Ticket};
use crate::oversize::Oversize;
use crate::table::{
    BatchError, CheckpointOutcome, Cursor, Layout, Pace, Peek, StateContext, Table, TableStats,
};
use crate::upkeep::Upkeep;

/// An open [`HybridLog`].
pub struct HybridLogTable<K: Key, V: State> {
    /// A pass of which reads were left, and what is booked for it; before the log, whose account that is.
    pub(super) left_pass: Option<(SegmentStore, Booked)>,
    /// What was there before the state was cleared, until it is dropped; before the log, below whose account its own is.
    handed_over: Option<Rc<RefCell<HandedOver<K, V>>>>,
    pub(super) log: Log<K, V>,
    pub(super) context: StateContext,
    pub(super) rewriter: Rewriter,
    /// The checkpoint being taken, or not decided yet.
    pub(super) capture: Option<Box<Capture>>,
    /// Where the last checkpoint has the records that have died.
    pub(super) known_deaths: Vec<BlobRef>,
    /// What nobody waits for.
    pub(super) late: Late,
    /// What a read has found to be longer than memory has room for, twice over: to be made free.
    lacking: u64,
    /// How entries expire, if they do.
    pub(super) expiry: Option<Expiry<V>>,
    /// The value that the last cold `get` read, unless a write came after it.
    scratch: Option<Scratch<K, V>>,
    /// Hashes of keys that were read from storage lately: read again, they move to memory.
    touched: Box<[u32]>,
    /// The reads of one group of a batch.
    pub(super) group: Box<[Option<Read>]>,
    /// Whether there are any.
    pub(super) group_reads: bool,
    /// Whether it was handed over and is being dropped: no checkpoint can have more of it.
    is_let_go: bool,
}

struct Scratch<K, V> {
    key: K,
    value: V,
    heap: u64,
}

/// Entries of the filter of keys read lately.
const TOUCHED: usize = 1024;

/// The error for a log that does not fit beside the states that are open, with what would do: they take more in more
/// memory, too.
fn beside_others(error: Error, account: &Account, is_plain: bool) -> Error {
    let kept = account.kept_and_not_booked();
    if error.kind() != ErrorKind::OverBudget || kept == 0 {
        return error;
    }
    let limit = account.limit();
    // By default max_value grows with the memory.
    let (enough, or) = match is_plain {
        true => (limit.saturating_add(limit / 2), ""),
        false => (limit.saturating_mul(4), ", or a smaller max_value"),
    };
    let message = format!(
        "{}; {kept} more are kept for the pages of other states: a memory of {} would do{or}",
        error.message(),
        ByteSize(enough).short()
    );
    Error::new(ErrorKind::OverBudget, message).with("state", account.name())
}

/// What the table takes beside its log.
fn fixed_bytes() -> u64 {
    (TOUCHED * 4 + GROUP * size_of::<Option<Read>>()) as u64
}

impl<K: Key, V: State> fmt::Debug for HybridLogTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, account) = (self.log.index.len(), &self.log.account);
        write!(f, "HybridLogTable({}: {keys} keys, {account:?})", self.context.name)
    }
}

impl<K: Key, V: State> Layout<K, V> for HybridLog {
    type Table = HybridLogTable<K, V>;

    fn name(&self) -> &'static str {
        "hybrid-log"
    }

    fn value_description(&self) -> String {
        description_of::<V>()
    }

    fn codec(&self) -> Option<EntryCodec<K, V>> {
        Some(EntryCodec::new())
    }

    fn memory_limit(&self) -> Option<u64> {
        self.limit()
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        HybridLogTable::open(self, context)
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    fn open(layout: &HybridLog, mut context: StateContext) -> Result<Self> {
        let account = context.account.clone();
        // Pages of logs that are open are not there for this one, also while they have none.
        let (free, stored) = (account.available_to_open(), context.segments.is_some());
        let sizes = layout.sizes::<K, V>(free, context.max_value_bytes, stored);
        let sizes = sizes.map_err(|error| beside_others(error, &account, K::NONE && V::NONE))?;
        let buffers = fixed_bytes() + sizes.buffer_bytes(stored);
        let mut index =
            super::index::Index::new(account.clone(), sizes.buckets, Some(context.helper.clone()))?;
        if context.movable {
            index.expect_few_of(context.key_groups);
        }
        account.reserve(MemoryKind::Buffers, buffers, "the hybrid log's buffers")?;
        if stored {
            account.keep_for_pages(sizes.pages_bytes_min());
        }
        let log = Log::open(&context, sizes, index);
        let restored = context.restored.take();
        let mut table = Self {
            left_pass: None,
            handed_over: None,
            log,
            context,
            rewriter: Rewriter::default(),
            capture: None,
            known_deaths: Vec::new(),
            late: Late::default(),
            lacking: 0,
            expiry: None,
            scratch: None,
            touched: vec![0; TOUCHED].into_boxed_slice(),
            group: (0..GROUP).map(|_| None).collect(),
            group_reads: false,
            is_let_go: false,
        };
        if let Some((image, blobs)) = restored {
            table.restore(&image, &blobs)?;
        }
        Ok(table)
    }

    #[inline(always)]
    pub(super) fn hash<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> IndexHash {
        self.log.index_hash(key.key_hash())
    }

    /// Forgets the value that the last cold `get` lent.
    #[inline(always)]
    fn drop_scratch(&mut self) {
        if self.scratch.is_some() {
            self.forget_scratch();
        }
    }

    #[cold]
    pub(super) fn forget_scratch(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            self.log.account.release(MemoryKind::Values, scratch.heap);
        }
    }

    /// Puts a new key.
    fn insert(&mut self, hash: IndexHash, key: K, value: V, to: (u32, u32)) {
        self.log.put(to, key, value);
        self.log.index.insert(hash, self.log.address_of(to.0, to.1));
    }

    /// Applies a user's closure to the value in a slot and books what its heap has become, also
    /// if it panics.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`] for a value that is too large already; the closure did not run.
    #[inline(always)]
    fn change<R>(
        &mut self,
        (number, slot): (u32, u32),
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        if !V::NONE && self.log.oversize.is_seen() {
            let (key, value) = self.log.frame(number).get(slot).expect("a used slot");
            self.log.oversize.check(key, heap_of(key, value))?;
        }
        Ok(self.change_unchecked((number, slot), change))
    }

    /// [`change`](HybridLogTable::change) of a value that a closure has just made.
    #[inline(always)]
    fn change_unchecked<R>(
        &mut self,
        (number, slot): (u32, u32),
        change: impl FnOnce(&mut V) -> R,
    ) -> R {
        let (key, value, frame_heap) = self.log.frames.entry_and_heap(number, slot);
        if V::NONE {
            return change(value);
        }
        let before = value.heap_bytes() as u64;
        let (account, oversize) = (&self.log.account, &mut self.log.oversize);
        let lent = Lent { key, value, before, frame_heap, account, oversize };
        change(lent.value)
    }

    /// A new key, with a value that a closure is about to make.
    fn new_key<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<K> {
        let key = key.to_owned();
        self.log.oversize.check(&key, key.heap_bytes() as u64)?;
        Ok(key)
    }

    #[inline(never)]
    fn update_hashed<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        hash: IndexHash,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
        ahead: &mut Option<Read>,
    ) -> Result<R> {
        if !V::NONE && self.log.account.available() < self.log.sizes.headroom_bytes {
            self.log.make_headroom()?;
        }
        // Of values without heap whoever calls this has looked for a short cut.
        let owned = match V::NONE {
            true => self.own_slowly(hash, key, ahead)?,
            false => self.own(hash, key, ahead)?,
        };
        if let Some(slot) = owned {
            return self.change(slot, change);
        }
        let key = self.new_key(key)?;
        let to = self.log.make_room(hash)?;
        let value = init();
        if !V::NONE {
            self.log.oversize.grown(&key, heap_of(&key, &value));
        }
        self.insert(hash, key, value, to);
        Ok(self.change_unchecked(to, change))
    }
}

/// A value lent to a user's closure; books the change of its heap when dropped, also by a panic, and
/// tells if it is too large then.
struct Lent<'a, K: Key, V: HeapSize> {
    key: &'a K,
    value: &'a mut V,
    before: u64,
    frame_heap: &'a mut u64,
    account: &'a Account,
    oversize: &'a mut Oversize,
}

impl<K: Key, V: HeapSize> Drop for Lent<'_, K, V> {
    fn drop(&mut self) {
        let after = self.value.heap_bytes() as u64;
        if after != self.before {
            *self.frame_heap = *self.frame_heap + after - self.before;
            self.account.adjust(MemoryKind::Values, self.before, after);
            if after > self.before {
                self.oversize.grown(self.key, self.key.heap_bytes() as u64 + after);
            }
        }
    }
}

impl<K: Key, V: State> Table<K, V> for HybridLogTable<K, V> {
    fn len(&self) -> u64 {
        self.log.index.len()
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        let hash = self.hash(key);
        let found = self.find(hash, key, &mut None)?;
        Ok(self.found(found))
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        let hash = self.hash(key);
        let found = match self.log.locate(hash, key) {
            Located::Absent => return Peek::Absent,
            Located::Resident { number, slot, .. } => Found::Slot(number, slot),
            Located::Cold if self.scratch.as_ref().is_some_and(|s| key.is(&s.key)) => {
                Found::Scratch
            }
            Located::Cold => return Peek::Unknown,
        };
        self.found(found).map_or(Peek::Absent, Peek::Resident)
    }

    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.drop_scratch();
        let hash = self.hash(key);
        if V::NONE {
            if let Some(value) = self.log.find_value(hash, key) {
                return Ok(change(value));
            }
        }
        self.update_hashed(hash, key, init, change, &mut None)
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.drop_scratch();
        if !V::NONE {
            self.log.make_headroom()?;
        }
        let slot = self.own(self.hash(key), key, &mut None)?;
        slot.map(|slot| self.change(slot, change)).transpose()
    }

    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.drop_scratch();
        let hash = self.hash(key);
        if let Located::Resident { number, slot, .. } = self.log.locate(hash, key) {
            if self.log.is_in_place(number, slot) {
                self.change_in_place(number, slot);
                return Ok(Some(self.change_unchecked((number, slot), change)));
            }
            if self.log.oversize.is_seen() {
                // A record that a checkpoint still needs is copied.
                let (k, v) = self.log.frame(number).get(slot).expect("an indexed slot");
                self.log.make_free((heap_of(k, v), "a copy of a value for a checkpoint"))?;
            }
        }
        if !V::NONE {
            self.log.make_headroom()?;
        }
        let slot = self.own(hash, key, &mut None)?;
        Ok(slot.map(|slot| self.change_unchecked(slot, change)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        self.drop_scratch();
        let hash = self.hash::<K>(&key);
        match self.put_checked(hash, &key, &value) {
            Ok(Put::Over(number, slot)) => {
                let (old, frame_heap) = self.log.frames.value_and_heap(number, slot);
                let (before, after) = (old.heap_bytes() as u64, value.heap_bytes() as u64);
                let old = std::mem::replace(old, value);
                *frame_heap = *frame_heap + after - before;
                self.log.account.adjust(MemoryKind::Values, before, after);
                drop(old);
                Ok(true)
            }
            Ok(Put::Instead(at, to, old)) => {
                self.log.put(to, key, value);
                self.log.index.set(at, self.log.address_of(to.0, to.1));
                // Dropping runs user code, which may panic: only now.
                drop(old);
                Ok(true)
            }
            Ok(Put::New(to)) => {
                self.insert(hash, key, value, to);
                Ok(false)
            }
            Err(error) => Err(Rejected::new(error, (key, value))),
        }
    }

    fn expect(&mut self, keys: u64) {
        self.log.index.expect(keys);
    }

    fn put_batch(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        let mut rest = batch.drain(..);
        let mut hinted = 0;
        while let Some((key, value)) = rest.next() {
            if hinted == 0 {
                // New keys need their bucket and nothing else.
                let next = &rest.as_slice()[..rest.len().min(GROUP)];
                next.iter().for_each(|(key, _)| self.log.index.prefetch(self.hash::<K>(key)));
                hinted = next.len() + 1;
            }
            hinted -= 1;
            if let Err(rejected) = self.put(key, value) {
                let left = std::iter::once(rejected.value).chain(rest).collect();
                *batch = left;
                return Err(rejected.error);
            }
        }
        Ok(())
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        self.drop_scratch();
        let hash = self.hash(key);
        match self.log.locate(hash, key) {
            Located::Absent => Ok(None),
            Located::Resident { at, number, slot } => {
                let (_, value) = match self.log.is_kept(number, slot) {
                    true => self.log.copy(number, slot),
                    false => self.log.take(number, slot),
                };
                self.log.index.remove(at);
                Ok(Some(value))
            }
            Located::Cold => {
                self.log.make_headroom()?;
                let Some((at, place, _, value)) = self.read_cold_in_room(hash, key, None)? else {
                    return Ok(None);
                };
                self.log.stored.as_mut().expect("a store").record_died(place);
                self.log.index.remove(at);
                Ok(Some(value))
            }
        }
    }

    fn clear(&mut self) -> Result<()> {
        self.drop_scratch();
        self.give_up_rewrite();
        if self.needs_more() || !self.log.is_little() {
            if self.hand_over() {
                return Ok(());
            }
            self.log.wait_for_all()?;
            self.overtake_capture();
            // It has become less.
            if self.hand_over() {
                return Ok(());
            }
        }
        self.log.clear()
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        self.guarded(visit, |table, visit| table.scan_entries(cursor, fuel, visit))
    }

    fn visit_all(&mut self, visit: &mut dyn FnMut(&K, &V) -> Result<()>) -> Result<()> {
        self.guarded(visit, |table, visit| table.visit_where_they_are(visit))
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        if self.knows_hashes() { Some(self) } else { None }
    }

    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut init: impl FnMut(&T) -> V,
        mut change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        self.drop_scratch();
        self.in_groups(batch, &key, |table, item, (hash, likely), read| {
            if V::NONE {
                if let Some(value) = table.log.frames.value_at(likely, |k| key(item).is(k)) {
                    change(item, value);
                    return Ok(());
                }
                // The first change of a record that is on storage.
                if let Some(value) = table.log.freshen_at(likely, |k| key(item).is(k)) {
                    change(item, value);
                    return Ok(());
                }
                // Without a short cut to where it is likely to be there is hardly one elsewhere.
                if likely == NOWHERE || table.log.frames.is_short(likely) {
                    if let Some(value) = table.log.find_value(hash, key(item)) {
                        change(item, value);
                        return Ok(());
                    }
                }
            }
            table.update_hashed(hash, key(item), || init(item), |v| change(item, v), read)
        })
    }

    fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        self.in_groups(batch, &key, |table, item, (hash, _), ahead| {
            let found = table.find(hash, key(item), ahead)?;
            read(item, table.found(found));
            Ok(())
        })
    }

    fn has_storage(&self) -> bool {
        self.log.stored.is_some()
    }

    fn is_resident(&self) -> bool {
        self.log.stored.as_ref().is_none_or(|stored| stored.live_records() == 0)
    }

    fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Fetch {
        let hash = self.hash(key);
        if !matches!(self.log.locate(hash, key), Located::Cold)
            || self.scratch.as_ref().is_some_and(|scratch| key.is(&scratch.key))
        {
            return Fetch::Ready;
        }
        let Some((_, place)) = self.log.candidate(hash, 0) else { return Fetch::Ready };
        self.log.stored.as_mut().expect("a stored record has a store").fetch(place)
    }

    fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        if let Some(stored) = &mut self.log.stored {
            stored.fetched(tell);
        }
    }

    fn release(&mut self, ticket: Ticket) {
        if let Some(stored) = &mut self.log.stored {
            stored.release_fetch(ticket);
        }
    }

    fn wake_with(&mut self, waker: Arc<Waker>) {
        if let Some(stored) = &mut self.log.stored {
            stored.wake_with(waker);
        }
    }

    fn stamp_with(&mut self, touched: Touched<V>, now: Time) {
        self.begin_expiring(touched, now);
    }

    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        self.expire_to(pass.to);
        // While a checkpoint is taken nothing is removed that nobody asks for.
        if !self.is_capturing() {
            self.expire_in_memory(pass, fuel);
        }
        Ok(())
    }
}

impl<K: Key, V: State> Upkeep for HybridLogTable<K, V> {
    fn tick(&mut self, work: usize) -> Result<usize> {
        self.context.helper.drive();
        let mut done = 0;
        while self.let_go_of_some() {
            done += QUANTUM as usize;
            if done >= work / 2 {
                break;
            }
        }
        self.settle_pass();
        if !self.is_capturing() {
            // What is lost is looked at by the next checkpoint.
            let _ = self.take_late(false);
        }
        self.log.poll()?;
        // Half of the work at most: the rest is for the segments.
        while done < work / 2 && !self.is_capturing() && self.log.carry_next_over() {
            done += QUANTUM as usize;
        }
        while done < work / 2 && self.log.is_short() {
            self.log.relieve()?;
            self.context.helper.drive();
            done += QUANTUM as usize;
        }
        Ok(done.min(work))
    }

    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let beside = self.reclaim_handed_over(bytes);
        let given = *beside.as_ref().unwrap_or(&0);
        if given >= bytes {
            return Ok(given);
        }
        // What storage refuses there may be had here without it.
        match self.log.give_memory_up(bytes - given)? {
            0 => beside,
            more => Ok(given + more),
        }
    }

    fn rewriter(&mut self) -> Option<&mut dyn Rewrite> {
        self.log.stored.is_some().then_some(self as &mut dyn Rewrite)
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let (sizes, account) = (&self.log.sizes, &self.log.account);
        let least = FRAMES_MIN * sizes.frame_bytes + sizes.headroom_bytes;
        let fixed = match self.log.stored.is_some() {
            true => account.fixed_bytes() + least,
            false => account.used(),
        };
        (fixed, account.limit())
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.take_at_once(blobs)
    }

    fn begin_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.begin_capture(blobs).map(|()| None)
    }

    fn pace_checkpoint(&mut self, pace: Pace) {
        self.pace_log(pace);
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.continue_capture(blobs)
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.decide_capture(outcome);
    }

    fn stats(&self) -> TableStats {
        let log = &self.log;
        let live_keys = log.index.len();
        let (disk_bytes, stored_keys, stored_bytes) = log
            .stored
            .as_ref()
            .map_or((0, 0, 0), |s| (s.bytes(), s.live_records(), s.live_bytes()));
        let resident = live_keys.saturating_sub(stored_keys);
        let slot = super::frame_unsafe::Frame::<K, V>::SLOT_BYTES as u64;
        let values =
            log.account.used_for(MemoryKind::Values) - self.handed_over_for(MemoryKind::Values);
        let mut stats = TableStats {
            live_keys,
            live_bytes: resident * slot + values + stored_bytes,
            disk_bytes,
            fetches: log.stored.as_ref().map_or(0, Stored::fetches),
            live_disk_bytes: stored_bytes,
            unstored_bytes: log.unstored_bytes(),
            splits: log.index.splits() + log.stats.splits,
            oversized: self.log.oversize.told(),
            ..log.stats
        };
        stats.add(&self.stats_handed_over());
        stats
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Runs a scan. A panic of `visit` goes on once the reads under way have ended and their memory is
    /// given back.
    pub(super) fn guarded(
        &mut self,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
        scan: impl FnOnce(&mut Self, &mut dyn FnMut(&K, &V) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        self.clear_group();
        let mut panicked = None;
        let mut guarded = |key: &K, value: &V| {
            catch_unwind(AssertUnwindSafe(|| visit(key, value))).unwrap_or_else(|panic| {
                panicked = Some(panic);
                Err(Error::new(ErrorKind::Poisoned, "the closure of a scan panicked"))
            })
        };
        let scanned = scan(self, &mut guarded);
        match panicked {
            Some(panic) => resume_unwind(panic),
            None => scanned,
        }
    }
}

/// How a value is put.
enum Put<K, V> {
    /// Over the old value in this slot.
    Over(u32, u32),
    /// Into this slot, instead of a record elsewhere, which was taken out of there.
    Instead(Position, (u32, u32), Option<(K, V)>),
    /// Into this slot; the key is new.
    New((u32, u32)),
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Where a value may be too large, one that replaces it and is smaller needs no room: it may be
    /// what the memory is lacking.
    fn put_over_larger(&mut self, hash: IndexHash, key: &K, value: &V) -> Option<Put<K, V>> {
        if !self.log.oversize.is_seen() {
            return None;
        }
        let Located::Resident { number, slot, .. } = self.log.locate(hash, key) else {
            return None;
        };
        let (_, known) = self.log.frame(number).get(slot)?;
        if known.heap_bytes() < value.heap_bytes() || !self.log.is_in_place(number, slot) {
            return None;
        }
        self.log.freshen(number, slot);
        Some(Put::Over(number, slot))
    }

    /// Everything about a put that can fail: afterwards the old record, if it is not where the new
    /// one goes, is gone.
    fn put_checked(&mut self, hash: IndexHash, key: &K, value: &V) -> Result<Put<K, V>> {
        self.log.oversize.check(key, heap_of(key, value))?;
        match self.put_into_room(hash, key, value) {
            Err(error) if !self.make_lacking()? => Err(error),
            Err(_) => self.put_into_room(hash, key, value),
            put => put,
        }
    }

    fn put_into_room(&mut self, hash: IndexHash, key: &K, value: &V) -> Result<Put<K, V>> {
        if let Some(over) = self.put_over_larger(hash, key, value) {
            return Ok(over);
        }
        if !(K::NONE && V::NONE) {
            self.log.make_headroom()?;
        }
        if let Located::Resident { number, slot, .. } = self.log.locate(hash, key) {
            if self.log.is_in_place(number, slot) {
                self.log.freshen(number, slot);
                return Ok(Put::Over(number, slot));
            }
        }
        if matches!(self.log.locate(hash, key), Located::Absent) {
            return Ok(Put::New(self.log.make_room(hash)?));
        }
        let to = self.log.make_room_to_move()?;
        match self.log.locate(hash, key) {
            Located::Absent => Ok(Put::New(self.log.make_room(hash)?)),
            Located::Resident { number, slot, .. } if self.log.is_in_place(number, slot) => {
                self.log.freshen(number, slot);
                Ok(Put::Over(number, slot))
            }
            Located::Resident { at, number, slot } if self.log.is_kept(number, slot) => {
                self.log.leave_for_dead(number, slot);
                Ok(Put::Instead(at, to, None))
            }
            Located::Resident { at, number, slot } => {
                Ok(Put::Instead(at, to, Some(self.log.take(number, slot))))
            }
            Located::Cold => match self.read_cold(hash, key, None)? {
                Some((at, place, k, v)) => {
                    self.log.stored.as_mut().expect("a store").record_died(place);
                    Ok(Put::Instead(at, to, Some((k, v))))
                }
                None => Ok(Put::New(self.log.make_room(hash)?)),
            },
        }
    }
}

/// The address of a record of a segment.
pub(super) fn stored_address(segment: u32, grain: u32) -> Address {
    Address::stored(StoredAt { segment, grain })
}
