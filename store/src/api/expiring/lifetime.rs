//! The time of a state whose entries expire: the greatest it has seen, part of every checkpoint.
//!
//! What it keeps true: the time never goes back, whatever the clock or the caller says, and not by a
//! restart either; so an entry that was over is over for good, also if the time to live becomes longer.
//! One reading moves the time no farther than the configuration allows, whoever tells it: else a wrong
//! clock, or a sum that overflowed, would end all entries for good. And nothing is over before a whole
//! time to live has passed since the time was first known: what was written before that, when the
//! state had no time to give it, counts from there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, ForeignState, Heap, HeapTable, Layout, StateContext, Table, TableStats,
    Upkeep,
};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, KeyGroup, KeyHash, Result, StateImage, Time,
};

use super::ttl::{Clock, Ttl};
use crate::cells::state_cell::{Durable, Hooks, Movable, Portable};
use crate::durability::export::{CanonicalEntry, VisitCanonical};
use crate::durability::moving::{EntryArrival, GroupCursor};

/// The greatest time that was seen, and the first.
pub(crate) type TimesSeen = (Time, Time);

/// What one call needs to know of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    /// What is touched now is touched at this time.
    pub now: Time,
    /// What was touched last before this is over.
    pub over: Time,
}

/// What the time of a state goes by.
#[derive(Debug)]
pub(crate) struct TtlRules {
    pub(crate) ttl: Ttl,
    /// The time to live, in nanoseconds.
    pub(crate) nanos: i64,
    /// Of processing time.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// Nanoseconds by which the time may move at once.
    pub(crate) jump_max: u64,
    /// What was touched before this was over already.
    pub(crate) over: Time,
}

/// Times from here on are those of sums that overflowed, but for the end of time: the last year.
const NEAR_THE_END: Time = Time(i64::MAX - 365 * 24 * 3600 * 1_000_000_000);

/// The time of one state.
#[derive(Debug)]
pub(crate) struct Lifetime {
    /// Of the state whose time it is.
    name: String,
    ttl: Cell<Ttl>,
    nanos: Cell<i64>,
    /// Of processing time.
    clock: Option<Arc<dyn Clock>>,
    jump_max: u64,
    time: Cell<Time>,
    since: Cell<Time>,
    over: Cell<Time>,
    /// Entries that were removed because they were over, and those looked at for that.
    pub(crate) removed: Cell<u64>,
    pub(crate) looked: Cell<u64>,
    key_groups: u16,
    table: RefCell<HeapTable<(), TimesSeen>>,
}

impl Lifetime {
    pub(crate) fn open(name: &str, rules: TtlRules, context: StateContext) -> Result<Rc<Self>> {
        let key_groups = context.key_groups;
        let mut table: HeapTable<(), TimesSeen> = Heap::new().open(context)?;
        let (time, since) = table.get(&())?.copied().unwrap_or((Time::MIN, Time::MIN));
        let lifetime = Self {
            name: name.into(),
            ttl: Cell::new(rules.ttl),
            nanos: Cell::new(rules.nanos),
            clock: rules.clock,
            jump_max: rules.jump_max,
            time: Cell::new(time),
            since: Cell::new(since),
            over: Cell::new(rules.over),
            removed: Cell::new(0),
            looked: Cell::new(0),
            key_groups,
            table: RefCell::new(table),
        };
        lifetime.refresh();
        lifetime.moment()?;
        Ok(Rc::new(lifetime))
    }

    #[inline]
    pub(crate) fn ttl(&self) -> Ttl {
        self.ttl.get()
    }

    /// Goes on for a new handle, with a time to live by the same time as before.
    ///
    /// # Errors
    /// Those of one that cannot be.
    pub(crate) fn go_on(&self, ttl: Ttl) -> Result<()> {
        self.nanos.set(ttl.nanos()?);
        self.ttl.set(ttl);
        self.refresh();
        Ok(())
    }

    /// The time to live, in nanoseconds.
    pub(crate) fn nanos(&self) -> i64 {
        self.nanos.get()
    }

    /// What a call made now has to know. Reads the clock, if there is one.
    ///
    /// # Errors
    /// Those of a clock that has jumped too far; the time stands still.
    #[inline]
    pub(crate) fn moment(&self) -> Result<CallTime> {
        if let Some(clock) = &self.clock {
            self.advance(clock.now())?;
        }
        Ok(self.known())
    }

    /// The same as far as it is known, without a look at the clock.
    #[inline]
    pub(crate) fn known(&self) -> CallTime {
        CallTime { now: self.time.get(), over: self.over.get() }
    }

    /// The time is `to`, unless it was later already.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] for a time that is too far ahead to be believed.
    #[inline]
    pub(crate) fn advance(&self, to: Time) -> Result<()> {
        if to > self.time.get() {
            self.check(to)?;
            if self.time.get() == Time::MIN {
                self.since.set(to);
            }
            self.time.set(to);
            self.refresh();
        }
        Ok(())
    }

    /// Refuses a time after that of the state which is too far ahead to be believed.
    #[inline]
    fn check(&self, to: Time) -> Result<()> {
        let time = self.time.get();
        let jumps = time > Time::MIN && to.0.abs_diff(time.0) > self.jump_max;
        match jumps || to >= NEAR_THE_END {
            // The end of time is told, not read.
            true if to < Time::MAX || self.clock.is_some() => Err(self.not_believed(to)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn not_believed(&self, to: Time) -> Error {
        let (time, most) = (self.time.get(), self.jump_max / 1_000_000);
        let whose = if self.clock.is_some() { "the clock" } else { "what it is told" };
        let message = match (to >= NEAR_THE_END, time) {
            (true, _) => format!(
                "{whose} is at {}, in the last year of time, as a sum that overflowed is; the end of \
                 time is Time::MAX",
                to.0
            ),
            (false, Time(time)) => format!(
                "{whose} is at {}, {} ms ahead of the state's time {time}; time_jump_max_ms is {most}",
                to.0,
                to.0.abs_diff(time) / 1_000_000
            ),
        };
        Error::new(ErrorKind::Input, message).with("state", &self.name)
    }

    /// Finds out anew what is over. What was over stays over, also by a longer time to live.
    fn refresh(&self) {
        let over = over(self.time.get(), self.since.get(), self.nanos.get());
        self.over.set(over.max(self.over.get()));
    }

    /// Joins what another store's checkpoint says, of which this store takes keys over.
    pub(crate) fn take(&self, part: &ForeignState) -> Result<()> {
        part.for_each_of_all(|(), record: TimesSeen| self.join(record))
    }

    /// Goes on from this record too. What was over there is over here: the later time holds.
    ///
    /// # Errors
    /// Those of a time that is too far ahead to be believed.
    fn join(&self, (time, since): TimesSeen) -> Result<()> {
        if time > self.time.get() {
            self.check(time)?;
        }
        if since > Time::MIN {
            let here = self.since.get();
            self.since.set(if here == Time::MIN { since } else { here.min(since) });
        }
        self.time.set(self.time.get().max(time));
        self.refresh();
        Ok(())
    }

    fn record(&self) -> TimesSeen {
        // A clock that is not believed has not moved the time.
        let _ = self.moment();
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

    fn tick(&self, _: usize) -> Result<usize> {
        Ok(0)
    }

    fn stats(&self) -> Result<TableStats> {
        Ok(self.table.borrow().stats())
    }

    fn is_unused(&self) -> Result<bool> {
        Ok(self.time.get() == Time::MIN)
    }
}

impl Durable for Lifetime {
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

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.table.borrow_mut().checkpointed(outcome);
    }
}

impl Portable for Lifetime {
    fn export(&self, visit: VisitCanonical<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        encoded.set(&(), &self.record())?;
        visit(CanonicalEntry::of(().key_hash(), 0, &encoded))
    }

    fn import(&self, entry: CanonicalEntry<'_>) -> Result<()> {
        let ((), record) = Encoded::get::<(), TimesSeen>(entry.key, entry.value)?;
        self.join(record)
    }
}

impl Movable for Lifetime {
    fn over(&self) -> Option<Time> {
        // A clock that is not believed has not moved the time.
        let _ = self.moment();
        Some(self.over.get()).filter(|over| *over > Time::MIN)
    }

    /// As [`import`](Portable::import), with what is over where it comes from.
    fn install(&self, entry: CanonicalEntry<'_>, _: &mut EntryArrival) -> Result<()> {
        let ((), (record, over)) = Encoded::get::<(), (TimesSeen, Time)>(entry.key, entry.value)?;
        self.join(record)?;
        self.over.set(over.max(self.over.get()));
        Ok(())
    }

    fn extract(
        &self,
        group: KeyGroup,
        at: &mut GroupCursor,
        _: usize,
        visit: VisitCanonical<'_>,
    ) -> Result<()> {
        let mut encoded = Encoded::default();
        let record = self.record();
        encoded.set(&(), &(record, self.over.get()))?;
        // It is not a key's: it goes with each group, under a hash of that.
        let hash = *group.hashes(self.key_groups).start();
        visit(CanonicalEntry::of(hash, 0, &encoded))?;
        at.cursor.done = true;
        Ok(())
    }

    fn forget(&self, _: KeyGroup, at: &mut GroupCursor, _: usize) -> Result<()> {
        at.cursor.done = true;
        Ok(())
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
