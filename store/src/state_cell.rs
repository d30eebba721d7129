//! One state's table, shared between its handle and the store's maintenance hooks.
//!
//! The handle owns the record path; the store needs the table only between calls. A `RefCell`
//! keeps the two apart: whoever comes while the other is inside gets an error naming the state.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_compaction::{Compactor, SpacePolicy};
use alluvium_layouts::{CheckpointOutcome, Cursor, Table, TableStats, trace_event};
use alluvium_pagestore::{
    BlobWriter, Encoded, EntryCodec, Error, ErrorKind, Key, KeyGroup, PATIENT_FUEL, Result,
    StateImage, Time,
};

use crate::batch::Batch;
use crate::crowded::Crowded;
use crate::expiring::Sweeping;
use crate::export::{Entries, Entry, Parts, Visit, check_hash, each, in_batches};
use crate::held::Grouped;
use crate::moving::{Arriving, Groups, Place, in_order};
use crate::pacing::{Pacing, Stream};
use crate::store::not_encoded;

/// A table, its name, and whether a user's closure panicked in it.
#[derive(Debug)]
pub(crate) struct StateCell<K, V, T> {
    pub(crate) name: String,
    table: RefCell<T>,
    poisoned: Cell<bool>,
    /// Writes since compaction was last given fuel.
    writes: Cell<usize>,
    /// Writes before those, and keys read.
    calls: Cell<u64>,
    pacing: Pacing,
    /// Fuel for writes that compaction could not use yet, because it waited for its helper.
    owed: Cell<usize>,
    compactor: RefCell<Compactor>,
    crowded: Crowded,
    /// The last error of compaction; writes go on without it.
    compaction_error: RefCell<Option<Error>>,
    /// What became of a checkpoint while a value was borrowed.
    outcome: Cell<Option<CheckpointOutcome>>,
    /// How entries become bytes, if the layout says.
    codec: Option<EntryCodec<K, V>>,
    /// How entries are removed that are over, if they expire.
    sweeping: Option<Box<Sweeping<V>>>,
    /// Where its key groups are, if they move.
    groups: Option<Rc<Groups>>,
    /// Declared last, so that the table's helpers are done with the directory before it is free.
    _lock: Option<Lock>,
}

/// The lock of a store's directory, shared by all that write to it; its helper is one of them.
#[derive(Clone)]
pub(crate) struct Lock(pub(crate) Arc<dyn Send + Sync>);

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Compaction gets fuel after so many writes.
const WRITES_PER_SHARE: usize = 64;
/// Fuel per write: records looked at or moved. About 6 hold space amplification at 2 and at 1.5.
const FUEL_PER_WRITE: usize = 8;

/// No more fuel is owed to compaction than this.
const OWED_FUEL_MAX: usize = 16 * PATIENT_FUEL;

/// Fuel for merging small segments before a checkpoint that is waited for: some 10 ms at most. And how often it
/// waits for a helper that does not answer.
const MERGE_FUEL_MAX: usize = 64 * PATIENT_FUEL;
const WAITS_MAX: u32 = 8;

/// Marks the state when dropped, that is when a user's closure unwinds past it.
pub(crate) struct Mark<'a>(&'a Cell<bool>);

impl<'a> Mark<'a> {
    pub(crate) fn new(poisoned: &'a Cell<bool>) -> Self {
        Self(poisoned)
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl<K: Key, V: 'static, T: Table<K, V>> StateCell<K, V, T> {
    pub(crate) fn new(
        name: &str,
        table: T,
        codec: Option<EntryCodec<K, V>>,
        lock: Option<Lock>,
    ) -> Self {
        Self {
            name: name.into(),
            table: RefCell::new(table),
            poisoned: Cell::new(false),
            writes: Cell::new(0),
            calls: Cell::new(0),
            pacing: Pacing::default(),
            owed: Cell::new(0),
            compactor: RefCell::default(),
            crowded: Crowded::default(),
            compaction_error: RefCell::default(),
            outcome: Cell::new(None),
            codec,
            sweeping: None,
            groups: None,
            _lock: lock,
        }
    }

    /// With this bound of space on storage.
    pub(crate) fn compacting(self, policy: SpacePolicy) -> Self {
        Self { compactor: RefCell::new(Compactor::new(policy)), ..self }
    }

    /// The state of entries that expire.
    pub(crate) fn sweeping(self, sweeping: Option<Sweeping<V>>) -> Self {
        Self { sweeping: sweeping.map(Box::new), ..self }
    }

    /// The same for a state whose key groups move.
    pub(crate) fn in_groups(self, groups: Option<Rc<Groups>>) -> Self {
        Self { groups, ..self }
    }

    /// The table, for a call that writes `writes` records: now and then compaction gets its share.
    #[inline]
    pub(crate) fn enter_to_write(&self, writes: usize) -> Result<RefMut<'_, T>> {
        let mut table = self.enter()?;
        let pending = self.writes.get() + writes;
        if pending >= WRITES_PER_SHARE {
            self.writes.set(0);
            self.calls.set(self.calls.get() + pending as u64);
            self.pay(&mut table, pending);
        } else {
            self.writes.set(pending);
        }
        Ok(table)
    }

    /// Gives compaction the fuel for some writes, unless it rests, and what it could not use before. If writers are
    /// faster than the helper that moves records, what is owed grows until the step is a patient
    /// one and they wait: otherwise space would grow without a bound.
    #[inline(never)]
    fn pay(&self, table: &mut T, writes: usize) {
        self.crowded.watch(Some(&self.name), table.fixed_bytes());
        let fuel = writes * FUEL_PER_WRITE;
        if self.sweeping.is_some() {
            self.sweep(table, fuel, false);
        }
        if self.compactor.borrow_mut().rests(writes) {
            return;
        }
        let owed = self.owed.get();
        let total = owed + fuel;
        let now = if owed >= PATIENT_FUEL { total } else { total.min(PATIENT_FUEL - 1) };
        let done = self.compact(table, now);
        let more = self.compactor.borrow().rewriting().is_some();
        self.owed.set(if more { (total - done.min(total)).min(OWED_FUEL_MAX) } else { 0 });
    }

    /// Ends the merging of small segments that is under way, within bounds. What could not be done goes on
    /// with the next writes.
    #[inline(never)]
    fn finish_merging(&self, table: &mut T) {
        let (mut left, mut in_vain) = (MERGE_FUEL_MAX, 0);
        while left > 0 && in_vain < WAITS_MAX && self.compactor.borrow().is_merging() {
            let done = self.compact(table, left.min(2 * PATIENT_FUEL));
            in_vain = if done > 1 { 0 } else { in_vain + 1 };
            left -= done.min(left);
        }
    }

    /// Looks for entries that are over. Errors are kept for statistics: they concern no write, and
    /// the next share tries again.
    #[inline(never)]
    fn sweep(&self, table: &mut T, fuel: usize, idle: bool) -> usize {
        let Some(sweeping) = &self.sweeping else { return 0 };
        sweeping.step(table, fuel, idle).unwrap_or_else(|error| {
            self.compaction_error.replace(Some(error));
            0
        })
    }

    /// Gives compaction fuel. Its errors are kept for statistics: they concern no write, and the
    /// next share tries again.
    #[inline(never)]
    fn compact(&self, table: &mut T, fuel: usize) -> usize {
        let Some(target) = table.rewriter() else { return 0 };
        let mut compactor = self.compactor.borrow_mut();
        match compactor.tick(target, fuel) {
            Ok(spent) if !spent.idle || compactor.rewriting().is_some() => spent.fuel.max(1),
            // To look and find nothing to do is no work: who ticks until all is done must end.
            Ok(spent) => spent.rewritten + spent.unlinked,
            Err(error) => {
                let (state, why) = (self.name.as_str(), &error);
                trace_event!(WARN, "compaction failed", state = state, error = why.message());
                if let (ErrorKind::Corrupt, Some(segment)) = (error.kind(), compactor.rewriting()) {
                    compactor.park(segment);
                }
                self.compaction_error.replace(Some(error));
                0
            }
        }
    }

    /// The table, for a call that reads `keys` keys.
    #[inline]
    pub(crate) fn enter_to_read(&self, keys: usize) -> Result<RefMut<'_, T>> {
        let table = self.enter()?;
        self.calls.set(self.calls.get() + keys as u64);
        Ok(table)
    }

    /// The table, for one call.
    #[inline]
    pub(crate) fn enter(&self) -> Result<RefMut<'_, T>> {
        self.table.try_borrow_mut().map_err(|_| self.in_use())
    }

    /// The table, shared.
    #[inline]
    pub(crate) fn look(&self) -> Result<Ref<'_, T>> {
        self.table.try_borrow().map_err(|_| self.in_use())
    }

    /// Runs a call that writes `writes` records and runs user code; a panic in it poisons the
    /// state.
    #[inline]
    pub(crate) fn run<R>(&self, writes: usize, call: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut table = self.enter_to_write(writes)?;
        let mark = Mark(&self.poisoned);
        let result = call(&mut table);
        std::mem::forget(mark);
        Ok(result)
    }

    /// [`run`](StateCell::run) for a call that only reads, `keys` keys.
    #[inline]
    pub(crate) fn run_to_read<R>(&self, keys: usize, call: impl FnOnce(&mut T) -> R) -> Result<R> {
        let mut table = self.enter_to_read(keys)?;
        let mark = Mark(&self.poisoned);
        let result = call(&mut table);
        std::mem::forget(mark);
        Ok(result)
    }

    /// Keys that were read or written.
    fn all_calls(&self) -> u64 {
        self.calls.get() + self.writes.get() as u64
    }

    /// Counters and gauges, the calls among them.
    pub(crate) fn statistics(&self) -> Result<TableStats> {
        let (calls, stats) = (self.all_calls(), self.enter()?.stats());
        let (expired, expiry_looks) = self.sweeping.as_ref().map_or((0, 0), |s| s.counts());
        Ok(TableStats { calls, expired: stats.expired + expired, expiry_looks, ..stats })
    }

    #[cold]
    fn in_use(&self) -> Error {
        let message = "the state is in use: a value of it is borrowed, or its own closure calls it";
        Error::new(ErrorKind::InUse, message).with("state", &self.name)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get()
    }

    pub(crate) fn clear_poison(&self) {
        self.poisoned.set(false);
    }
}

impl<K, V, T> Grouped for StateCell<K, V, T> {
    fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn groups(&self) -> Option<&Groups> {
        self.groups.as_deref()
    }
}

/// What the store does with a state whatever its types are.
pub(crate) trait Hooks {
    fn poisoned(&self) -> bool;
    /// Makes the state durable as of now.
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage>;
    /// Begins to; the image, if that is all.
    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }
    /// Keys that calls have read or written so far.
    fn calls(&self) -> u64 {
        0
    }
    /// Before a share: how far the stream is.
    fn pace_checkpoint(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
    /// A bounded share of what was begun; the image at the end.
    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.checkpoint(blobs).map(Some)
    }
    /// Tells what became of the last one.
    fn checkpointed(&self, outcome: CheckpointOutcome);
    /// Gives all entries, encoded, in any order.
    fn export(&self, visit: Visit<'_>) -> Result<()>;
    /// Whether entries had best be taken in parts.
    fn has_parts(&self) -> Result<bool> {
        Ok(false)
    }
    /// [`export`](Hooks::export) of a state that has parts.
    fn export_in_parts(&self, _: &mut dyn Parts) -> Result<()> {
        Err(not_encoded("exported in parts"))
    }
    /// About so many keys will be imported.
    fn expect(&self, keys: u64) -> Result<()> {
        let _ = keys;
        Ok(())
    }
    /// Puts one entry, which was exported.
    fn import(&self, entry: Entry<'_>) -> Result<()>;
    /// Puts entries, which were exported: all, or those before one that cannot be put.
    fn import_all(&self, entries: &mut dyn Entries) -> Result<()> {
        each(entries, |entry| self.import(entry))
    }
    /// Gives about `fuel` entries of a key group from a place on, encoded.
    fn extract(&self, _: KeyGroup, _: &mut Place, _: usize, _: Visit<'_>) -> Result<()> {
        Err(not_encoded("moved by key groups"))
    }
    /// Puts one entry that another store has extracted of a key group which is not here yet. After an
    /// error it is called again with the same `arriving`.
    fn install(&self, entry: Entry<'_>, arriving: &mut Arriving) -> Result<()> {
        let _ = arriving;
        self.import(entry)
    }
    /// Entries that were touched last before this are over for good, if they expire.
    fn over(&self) -> Option<Time> {
        None
    }
    /// Whether a key group may come or go as the state is now.
    fn may_move(&self) -> Result<()> {
        Ok(())
    }
    /// Removes about `fuel` entries of a key group from a place on.
    fn forget(&self, _: KeyGroup, _: &mut Place, _: usize) -> Result<()> {
        Err(not_encoded("moved by key groups"))
    }
    /// Timers of the key group may fire, or may not.
    fn wake(&self, _: KeyGroup, _: bool) {}
    fn tick(&self, work: usize) -> Result<usize>;
    /// Ends the merging of small segments: a checkpoint is going to be waited for.
    fn finish_merging(&self) -> Result<()> {
        Ok(())
    }
    fn stats(&self) -> Result<TableStats>;
    /// Whether the state is as if it had just been opened for the first time.
    fn is_unused(&self) -> Result<bool> {
        self.stats().map(|stats| stats.live_keys == 0)
    }
    /// Memory that no eviction frees, and the most that the state may hold; 0 while it is in use.
    fn fixed_bytes(&self) -> (u64, u64) {
        (0, u64::MAX)
    }
    /// Gives memory up to other states, unless this one is in use; says how much.
    fn reclaim(&self, bytes: u64) -> Result<u64> {
        let _ = bytes;
        Ok(0)
    }
    fn compaction_error(&self) -> Option<String> {
        None
    }
}

impl<K: Key, V: 'static, T: Table<K, V>> Hooks for StateCell<K, V, T> {
    fn poisoned(&self) -> bool {
        self.is_poisoned()
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.enter()?.checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let mut table = self.enter()?;
        if let Some(outcome) = self.outcome.take() {
            table.checkpointed(outcome);
        }
        self.pacing.begin(self.all_calls());
        table.begin_checkpoint(blobs)
    }

    fn calls(&self) -> u64 {
        self.all_calls()
    }

    fn pace_checkpoint(&self, stream: Stream) -> Result<()> {
        let mut table = self.enter()?;
        table.pace_checkpoint(self.pacing.pace(self.all_calls(), stream));
        Ok(())
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.enter()?.continue_checkpoint(blobs)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.compactor.borrow_mut().look_again();
        match self.enter() {
            Ok(mut table) => {
                if let Some(before) = self.outcome.take() {
                    table.checkpointed(before);
                }
                table.checkpointed(outcome);
            }
            // One that could not be told yet is of the checkpoint that the table has taken; this one is of
            // another, which it has not begun.
            Err(_) if self.outcome.get().is_some() => {}
            Err(_) => self.outcome.set(Some(outcome)),
        }
    }

    fn export(&self, visit: Visit<'_>) -> Result<()> {
        let codec = self.codec.ok_or_else(|| not_encoded("exported"))?;
        let mut encoded = Encoded::default();
        let mut table = self.enter()?;
        // What is over may or may not be there still.
        let is_over = self.sweeping.as_ref().map(|sweeping| sweeping.is_over());
        table.visit_all(&mut |key, value| {
            if is_over.as_ref().is_some_and(|is_over| is_over(value)) {
                return Ok(());
            }
            codec.encode(&mut encoded, key, value)?;
            visit(Entry::of(key.key_hash(), 0, &encoded))
        })
    }

    fn has_parts(&self) -> Result<bool> {
        // How many are over, and left out, is not known before.
        let is_exact = self.sweeping.is_none() && self.codec.is_some();
        Ok(is_exact && self.enter()?.by_hash().is_some_and(|table| table.is_fast_in_order()))
    }

    fn export_in_parts(&self, parts: &mut dyn Parts) -> Result<()> {
        let codec = self.codec.ok_or_else(|| not_encoded("exported"))?;
        let (mut cursor, mut encoded) = (Cursor::default(), Encoded::default());
        let mut table = self.enter()?;
        parts.begin(table.len())?;
        let table = in_order(table.by_hash())?;
        while !cursor.done {
            let fuel = parts.fuel();
            table.visit_hashes((), &(0..=u64::MAX), &mut cursor, fuel, &mut |key, _, values| {
                values.iter().try_for_each(|value| {
                    codec.encode(&mut encoded, key, value)?;
                    parts.entry(Entry::of(key.key_hash(), 0, &encoded))
                })
            })?;
            parts.end()?;
        }
        Ok(())
    }

    fn expect(&self, keys: u64) -> Result<()> {
        let mut table = self.enter()?;
        let there = table.len();
        table.expect(there.saturating_add(keys));
        Ok(())
    }

    fn import(&self, entry: Entry<'_>) -> Result<()> {
        let codec = self.codec.ok_or_else(|| not_encoded("imported"))?;
        let (key, value) = decode(&codec, entry)?;
        if let Some(sweeping) = &self.sweeping {
            sweeping.saw(&value)?;
        }
        self.enter_to_write(1)?.put(key, value)?;
        Ok(())
    }

    fn import_all(&self, entries: &mut dyn Entries) -> Result<()> {
        let codec = self.codec.ok_or_else(|| not_encoded("imported"))?;
        let decode = |entry: Entry<'_>| {
            let pair = decode(&codec, entry)?;
            if let Some(sweeping) = &self.sweeping {
                sweeping.saw(&pair.1)?;
            }
            Ok(pair)
        };
        let put = |batch: &mut Batch<(K, V)>| {
            self.enter_to_write(batch.items.len())?.put_batch(&mut batch.items)
        };
        in_batches(entries, decode, put, |entry| self.import(entry))
    }

    fn extract(
        &self,
        group: KeyGroup,
        at: &mut Place,
        fuel: usize,
        visit: Visit<'_>,
    ) -> Result<()> {
        let codec = self.codec.ok_or_else(|| not_encoded("moved by key groups"))?;
        let hashes = Groups::hashes_of(self.groups(), group);
        let mut encoded = Encoded::default();
        // What is over may or may not be there still.
        let is_over = self.sweeping.as_ref().map(|sweeping| sweeping.is_over());
        let mut table = self.enter()?;
        let table = in_order(table.by_hash())?;
        table.visit_hashes((), &hashes, &mut at.cursor, fuel, &mut |key, _, values| {
            let is_over = |value: &V| is_over.as_ref().is_some_and(|is_over| is_over(value));
            values.iter().filter(|value| !is_over(value)).try_for_each(|value| {
                codec.encode(&mut encoded, key, value)?;
                visit(Entry::of(key.key_hash(), 0, &encoded))
            })
        })
    }

    fn forget(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
        let hashes = Groups::hashes_of(self.groups(), group);
        let mut table = self.enter()?;
        in_order(table.by_hash())?.remove_hashes((), &hashes, &mut at.cursor, fuel).map(drop)
    }

    fn tick(&self, work: usize) -> Result<usize> {
        let mut table = self.enter()?;
        let mut done = table.tick(work)?;
        done += self.sweep(&mut table, work - done.min(work), true);
        Ok(done + self.compact(&mut table, work - done.min(work)))
    }

    fn finish_merging(&self) -> Result<()> {
        if self.compactor.borrow().is_merging() {
            let mut table = self.enter()?;
            StateCell::finish_merging(self, &mut table);
        }
        Ok(())
    }

    fn reclaim(&self, bytes: u64) -> Result<u64> {
        match self.table.try_borrow_mut() {
            Ok(mut table) => table.reclaim(bytes).map_err(|e| e.with("state", &self.name)),
            Err(_) => Ok(0),
        }
    }

    fn compaction_error(&self) -> Option<String> {
        self.compaction_error.borrow().as_ref().map(ToString::to_string)
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        self.table.try_borrow().map_or((0, u64::MAX), |table| table.fixed_bytes())
    }

    fn stats(&self) -> Result<TableStats> {
        self.statistics()
    }
}

fn decode<K: Key, V: 'static>(codec: &EntryCodec<K, V>, entry: Entry<'_>) -> Result<(K, V)> {
    let (key, value) = codec.decode(entry.key, entry.value)?;
    check_hash(entry.hash, key.key_hash())?;
    Ok((key, value))
}

/// A value borrowed from a state. The state can be used again once it is dropped.
#[derive(Debug)]
pub struct ValueRef<'a, V>(pub(crate) Ref<'a, V>);

impl<V> Deref for ValueRef<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.0
    }
}
