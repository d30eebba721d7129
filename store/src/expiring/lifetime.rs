//! The time of a state whose entries expire: the greatest it has seen, part of every checkpoint.
//!
//! What it keeps true: the time never goes back, whatever the clock or the caller says, and not by a
//! restart either; so an entry that was over is over for good. And nothing is over before a whole
//! time to live has passed since the time was first known: what was written before that, when the
//! state had no time to give it, counts from there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, Heap, HeapTable, Layout, Part, StateContext, Table, TableStats, Upkeep,
};
use alluvium_pagestore::{BlobWriter, Encoded, KeyGroup, KeyHash, Result, StateImage, Time};

use super::ttl::{Clock, Ttl};
use crate::export::{Entry, Visit};
use crate::moving::Place;
use crate::state_cell::Hooks;

/// The greatest time that was seen, and the first.
pub(crate) type Record = (Time, Time);

/// What one call needs to know of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// What is touched now is touched at this time.
    pub now: Time,
    /// What was touched last before this is over.
    pub over: Time,
}

/// The time of one state.
#[derive(Debug)]
pub(crate) struct Lifetime {
    ttl: Ttl,
    /// Of processing time.
    clock: Option<Arc<dyn Clock>>,
    time: Cell<Time>,
    since: Cell<Time>,
    over: Cell<Time>,
    /// Entries that were removed because they were over, and those looked at for that.
    pub(crate) removed: Cell<u64>,
    pub(crate) looked: Cell<u64>,
    key_groups: u16,
    table: RefCell<HeapTable<(), Record>>,
}

impl Lifetime {
    pub(crate) fn open(ttl: Ttl, clock: Arc<dyn Clock>, context: StateContext) -> Result<Rc<Self>> {
        let key_groups = context.key_groups;
        let mut table: HeapTable<(), Record> = Heap::new().open(context)?;
        let (time, since) = table.get(&())?.copied().unwrap_or((Time::MIN, Time::MIN));
        let lifetime = Self {
            ttl,
            clock: ttl.by_clock.then_some(clock),
            time: Cell::new(time),
            since: Cell::new(since),
            over: Cell::new(Time::MIN),
            removed: Cell::new(0),
            looked: Cell::new(0),
            key_groups,
            table: RefCell::new(table),
        };
        lifetime.refresh();
        lifetime.moment();
        Ok(Rc::new(lifetime))
    }

    pub(crate) fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// What a call made now has to know. Reads the clock, if there is one.
    #[inline]
    pub(crate) fn moment(&self) -> Moment {
        if let Some(clock) = &self.clock {
            self.advance(clock.now());
        }
        Moment { now: self.time.get(), over: self.over.get() }
    }

    /// The time is `to`, unless it was later already.
    #[inline]
    pub(crate) fn advance(&self, to: Time) {
        if to > self.time.get() {
            if self.time.get() == Time::MIN {
                self.since.set(to);
            }
            self.time.set(to);
            self.refresh();
        }
    }

    /// Finds out anew what is over.
    fn refresh(&self) {
        self.over.set(over(self.time.get(), self.since.get(), self.ttl.nanos));
    }

    /// Joins what another store's checkpoint says, of which this store takes keys over.
    pub(crate) fn take(&self, part: &Part) -> Result<()> {
        part.for_each_of_all(|(), record: Record| {
            self.join(record);
            Ok(())
        })
    }

    /// Goes on from this record too. What was over there is over here: the later time holds.
    fn join(&self, (time, since): Record) {
        if since > Time::MIN {
            let here = self.since.get();
            self.since.set(if here == Time::MIN { since } else { here.min(since) });
        }
        self.time.set(self.time.get().max(time));
        self.refresh();
    }

    fn record(&self) -> Record {
        self.moment();
        (self.time.get(), self.since.get())
    }
}

/// What was touched last before this time is over at `time`, which was first known as `since`: that
/// is `touched + nanos <= time`, exactly, also at the ends of time.
fn over(time: Time, since: Time, nanos: i64) -> Time {
    let is_known = since.0.checked_add(nanos).is_some_and(|first| first <= time.0);
    match time.0.checked_sub(nanos) {
        Some(last) if is_known && time > Time::MIN => Time(last + 1),
        _ => Time::MIN,
    }
}

impl Hooks for Lifetime {
    fn poisoned(&self) -> bool {
        false
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        let mut table = self.table.borrow_mut();
        table.put((), self.record())?;
        table.checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let mut table = self.table.borrow_mut();
        table.put((), self.record())?;
        table.begin_checkpoint(blobs)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.table.borrow_mut().continue_checkpoint(blobs)
    }

    fn export(&self, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        encoded.set(&(), &self.record())?;
        visit(Entry::of(().key_hash(), 0, &encoded))
    }

    fn import(&self, entry: Entry<'_>) -> Result<()> {
        let ((), record) = Encoded::get::<(), Record>(entry.key, entry.value)?;
        self.join(record);
        Ok(())
    }

    fn extract(&self, group: KeyGroup, at: &mut Place, _: usize, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        encoded.set(&(), &self.record())?;
        // It is not a key's: it goes with each group, under a hash of that.
        let hash = *group.hashes(self.key_groups).start();
        visit(Entry::of(hash, 0, &encoded))?;
        at.cursor.done = true;
        Ok(())
    }

    fn forget(&self, _: KeyGroup, at: &mut Place, _: usize) -> Result<()> {
        at.cursor.done = true;
        Ok(())
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.table.borrow_mut().checkpointed(outcome);
    }

    fn tick(&self, _: usize) -> Result<usize> {
        Ok(0)
    }

    fn stats(&self) -> Result<TableStats> {
        Ok(self.table.borrow().stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in numbers that cannot overflow.
    fn is_over(touched: i64, time: i64, since: i64, nanos: i64) -> bool {
        let lived = |from: i64| i128::from(time) - i128::from(from) >= i128::from(nanos);
        time != i64::MIN && lived(touched) && lived(since)
    }

    #[test]
    fn what_is_over_is_exact_to_the_ends_of_time() {
        let ends = [i64::MIN, i64::MIN + 1, i64::MIN + 9, -10, -1, 0, 1, 10, i64::MAX - 9];
        let ends: Vec<i64> = ends.into_iter().chain([i64::MAX - 1, i64::MAX]).collect();
        for &time in &ends {
            for &since in ends.iter().filter(|since| **since <= time) {
                for nanos in [1, 2, 9, 10, 11, i64::MAX - 1, i64::MAX] {
                    let over = over(Time(time), Time(since), nanos);
                    for &touched in ends.iter().filter(|touched| **touched <= time) {
                        assert_eq!(
                            Time(touched) < over,
                            is_over(touched, time, since, nanos),
                            "{touched} at {time} since {since}, {nanos} ns"
                        );
                    }
                }
            }
        }
    }
}
