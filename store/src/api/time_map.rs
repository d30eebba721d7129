//! A map ordered by time inside each key: for joins of what is near in time.
//!
//! Built on lists: a bucket is a slice of event time of one width, an element is a time and a value.
//! A list is in order of arrival; what is read of a slice is sorted, which is done when it is read
//! and costs nothing if it came in order. Slices are dropped whole.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use alluvium_layouts::{Lists, ListsLayout, Upkeep};
use alluvium_pagestore::{
    Account, Error, ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State, Time, count_nanos,
};

use crate::backend::any_layout::AnyLayout;
use crate::cells::ListsCell;
use crate::cells::cell_handle::CellHandle;
use crate::cells::recording::{Access, Recorder};
use crate::store::StateBuilder;

/// The primitive of [`TimeMap`].
#[derive(Debug)]
pub struct TimeMapOf<K, V>(PhantomData<(K, V)>);

/// Values by key and time; a key may have several values of one time, in order of insertion. Open
/// one with [`Store::time_map`](crate::Store::time_map).
///
/// ```
/// use std::time::Duration;
///
/// use alluvium::{MIB, Store, Time};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// // In slices of a second, each of which is purged at once.
/// let mut bids = store.time_map::<u64, i64>("bids").open(Duration::from_secs(1))?;
/// for (at, price) in [(10, 30), (20, 12), (30, 45)] {
///     bids.insert(&7, Time(at), price)?;
/// }
/// let mut found = Vec::new();
/// bids.range(&7, Time(15)..Time(31), |at, price| {
///     found.push((at, *price));
///     Ok(())
/// })?;
/// assert_eq!(found, [(Time(20), 12), (Time(30), 45)]);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct TimeMap<K: Key, V: State, L: ListsLayout<K, (Time, V)> = AnyLayout> {
    cell: CellHandle<ListsCell<K, (Time, V), L::Lists>>,
    account: Rc<Account>,
    width: i64,
    /// Slices before this one are over, and are dropped when no key group is on its way any more.
    owed: Option<Time>,
}

impl<K: Key, V: State, L: ListsLayout<K, (Time, V)>> fmt::Debug for TimeMap<K, V, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeMap({})", self.cell.name())
    }
}

impl<K: Key, V: State, L: ListsLayout<K, (Time, V)>> StateBuilder<'_, TimeMapOf<K, V>, L> {
    /// Opens the map and restores it from the last checkpoint. `width` is the length of a slice:
    /// the unit that is dropped whole, and that a read sorts. Choose about the length of your
    /// ranges.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a width of 0, or of 292 years or more. [`ErrorKind::Mismatch`] if
    /// the stored width differs. Those of [`Store::map`](crate::Store::map).
    pub fn open(self, width: Duration) -> Result<TimeMap<K, V, L>> {
        let (store, name) = (self.store(), self.name());
        let Some(width @ 1..) = count_nanos(width) else {
            let message = format!("the slices of a time-ordered map are {width:?} wide");
            return Err(Error::new(ErrorKind::Config, message).with("state", name));
        };
        let primitive = format!("time-map in slices of {width} ns");
        let cell = store.open_lists_as(
            (&primitive, self.definition()),
            name,
            self.chosen_layout(),
            self.mover(),
        )?;
        let cell = cell.keeping_to(self.own_keys()).watching();
        let account = store.account_of(name)?;
        Ok(TimeMap { cell, account, width, owed: None })
    }
}

impl<K: Key, V: State, L: ListsLayout<K, (Time, V)>> TimeMap<K, V, L> {
    /// Adds a value of `key` at `at`. Never reads storage. An error returns the value.
    ///
    /// # Errors
    /// As for [`List::append`](crate::List::append).
    pub fn insert<Q: Lookup<K> + ?Sized>(
        &mut self,
        key: &Q,
        at: Time,
        value: V,
    ) -> std::result::Result<(), Rejected<V>> {
        if self.cell.is_watched() {
            return self.insert_watched(key, at, value);
        }
        self.give(key, at, value)
    }

    /// [`insert`](TimeMap::insert) into a state whose calls are looked at. It goes another way, so that others
    /// keep nothing for it.
    #[inline(never)]
    fn insert_watched<Q: Lookup<K> + ?Sized>(
        &self,
        key: &Q,
        at: Time,
        value: V,
    ) -> std::result::Result<(), Rejected<V>> {
        let recorder = match self.cell.check_hash(key.key_hash()) {
            Ok(recorder) => recorder,
            Err(error) => return Err(Rejected::new(error, value)),
        };
        let bytes = recorder.map_or(0, |_| (size_of::<(Time, V)>() + value.heap_bytes()) as u64);
        self.give(key, at, value)?;
        if let Some(recorder) = recorder {
            recorder.record(Access::Merge, key, Some(self.slice_of(at)), bytes);
        }
        Ok(())
    }

    #[inline]
    fn give<Q: Lookup<K> + ?Sized>(
        &self,
        key: &Q,
        at: Time,
        value: V,
    ) -> std::result::Result<(), Rejected<V>> {
        let slice = self.slice_of(at);
        // The state may be in use: then the value has not been given to anybody yet.
        let mut value = Some((at, value));
        let appended =
            self.cell.run(1, |lists| lists.append(slice, key, value.take().expect("given once")));
        match (appended, value) {
            (Ok(Ok(())), _) => Ok(()),
            (Ok(Err(Rejected { error, value: (_, value), .. })), _) => {
                Err(Rejected::new(error, value))
            }
            (Err(error), Some((_, value))) => Err(Rejected::new(error, value)),
            (Err(_), None) => unreachable!("a state that is not in use takes the value"),
        }
    }

    /// Visits the values of `key` at times in `times`, in order of time, and returns their number.
    /// A range that ends at [`Time::MAX`] includes the end of time. Cost: reading the key's values
    /// in all slices that `times` touches, one slice in memory at a time. If the values of a slice
    /// do not fit in memory, they are read again for each part of the slice that does.
    ///
    /// # Errors
    /// Those of storage and of `visit`. [`ErrorKind::OverBudget`] if memory has no room for a part of
    /// some size: 1/64 of it. [`ErrorKind::InUse`](crate::ErrorKind::InUse) if `visit` uses another handle of the
    /// state, and the values of one time do not fit in memory.
    pub fn range<Q: Lookup<K> + ?Sized>(
        &mut self,
        key: &Q,
        times: Range<Time>,
        mut visit: impl FnMut(Time, &V) -> Result<()>,
    ) -> Result<u64> {
        let mut visited = 0;
        let mut from = self.slice_of(times.start).max(self.owed.unwrap_or(Time::MIN));
        while let Some(slice) = self.next_slice(from)?.filter(|slice| *slice < times.end) {
            visited += self.visit_slice(slice, key, &times, &mut visit)?;
            match slice.0.checked_add(1) {
                Some(after) => from = Time(after),
                None => break,
            }
        }
        Ok(visited)
    }

    /// Visits what `key` has in a slice at times in `times`, as much at a time as memory has room for.
    fn visit_slice<Q: Lookup<K> + ?Sized>(
        &self,
        slice: Time,
        key: &Q,
        times: &Range<Time>,
        visit: &mut dyn FnMut(Time, &V) -> Result<()>,
    ) -> Result<u64> {
        let (mut visited, mut times, mut calls) = (0, times.clone(), 1);
        let mut has_asked = false;
        loop {
            let found = match self.read(slice, key, &times, calls) {
                Err(error) if error.kind() == ErrorKind::OverBudget && !has_asked => {
                    (has_asked, calls) = (true, 0);
                    self.ask_for_room()?;
                    continue;
                }
                found => found?,
            };
            calls = 0;
            visited += found.values.len() as u64;
            found.values.iter().try_for_each(|(at, value)| visit(*at, value))?;
            let Some(rest) = found.until else { return Ok(visited) };
            times.start = rest;
            let is_empty = found.values.is_empty();
            drop(found);
            if is_empty {
                // Those of one time have no room. They are in the order that is wanted.
                visited += self.visit_time(slice, key, rest, visit)?;
                match rest.0.checked_add(1) {
                    Some(after) => times.start = Time(after),
                    None => return Ok(visited),
                }
            }
            // What is read in parts is read less often with more room.
            if !std::mem::replace(&mut has_asked, true) {
                self.ask_for_room()?;
            }
        }
    }

    /// Has the state make room for what is read in parts, if it can.
    fn ask_for_room(&self) -> Result<()> {
        let wanted = self.account.limit() / PARTS_SHARE;
        match self.cell.run(0, |lists| lists.reclaim(wanted))? {
            Err(error) if error.kind() != ErrorKind::OverBudget => Err(error),
            _ => Ok(()),
        }
    }

    /// Visits what `key` has in a slice at one time, where it is.
    fn visit_time<Q: Lookup<K> + ?Sized>(
        &self,
        slice: Time,
        key: &Q,
        time: Time,
        visit: &mut dyn FnMut(Time, &V) -> Result<()>,
    ) -> Result<u64> {
        let mut visited = 0;
        self.cell.run(0, |lists| {
            lists.read(slice, key, &mut |(at, value)| {
                if *at != time {
                    return Ok(());
                }
                visited += 1;
                visit(*at, value)
            })
        })??;
        Ok(visited)
    }

    /// Removes the values of `key` at times in `times`. Both ends must be ends of slices: multiples
    /// of the width, [`Time::MIN`], or [`Time::MAX`], which includes the end of time.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] for other ends; then nothing is removed. Those of storage; then the
    /// slices before the failed one are removed.
    pub fn remove_range<Q: Lookup<K> + ?Sized>(
        &mut self,
        key: &Q,
        times: Range<Time>,
    ) -> Result<()> {
        for end in [times.start, times.end] {
            if end != Time::MAX && self.slice_of(end) != end {
                let message = format!("{} is not the end of a slice of {} ns", end.0, self.width);
                return Err(Error::new(ErrorKind::Input, message).with("state", self.cell.name()));
            }
        }
        let recorder = self.cell.check(|| key.key_hash())?;
        let mut from = times.start;
        while let Some(slice) = self.next_slice(from)?.filter(|slice| *slice < times.end) {
            self.cell.run(1, |lists| lists.clear_key(slice, key))??;
            if let Some(recorder) = recorder {
                recorder.record(Access::Delete, key, Some(slice), 0);
            }
            from = slice.plus(1);
        }
        Ok(())
    }

    /// Drops the slices that end at or before `before`: about `fuel` values' worth of memory per
    /// call. Returns whether it is done. All of them are invisible from the first call on.
    ///
    /// While a key group moves between this store and [another](crate::moving::Mover), this drops nothing
    /// and returns `true`. Purged values stay invisible, also if they arrive or are inserted
    /// meanwhile. They take memory, count in [`len`](TimeMap::len) and are part of checkpoints
    /// until the first call after the move.
    ///
    /// # Errors
    /// Those of storage.
    pub fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        let slice = if before == Time::MAX { before } else { self.slice_of(before) };
        let slice = slice.max(self.owed.unwrap_or(Time::MIN));
        if self.cell.groups().is_some_and(|groups| groups.is_any_under_way()) {
            self.owed = Some(slice);
            return Ok(true);
        }
        if let Some(recorder) = self.cell.recorder() {
            recorder.record_purge(slice);
        }
        let done = self.cell.run(0, |lists| lists.purge(slice, fuel))??;
        self.owed = None;
        Ok(done)
    }

    /// Announces that values before `until` will be read soon.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state, and those of storage.
    pub fn prefetch(&mut self, until: Time) -> Result<()> {
        self.cell.run(0, |lists| lists.prefetch(until))?
    }

    /// Returns the number of values, in memory and on storage.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state.
    pub fn len(&self) -> Result<u64> {
        Ok(self.cell.enter()?.len())
    }

    /// Returns whether there is no value.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Returns whether a closure has panicked in this state since it was opened or last cleared.
    pub fn is_poisoned(&self) -> bool {
        self.cell.is_poisoned()
    }

    /// Allows checkpoints again after a closure has panicked.
    pub fn clear_poison(&mut self) {
        self.cell.clear_poison();
    }

    /// Where the slice begins that has `at`; the first one begins where time does, and the last has the
    /// end of time.
    fn slice_of(&self, at: Time) -> Time {
        let begins = at.0.div_euclid(self.width).saturating_mul(self.width);
        Time(begins.min(Time::MAX.0 - 1))
    }

    fn next_slice(&self, from: Time) -> Result<Option<Time>> {
        Ok(self.cell.enter()?.next_bucket(from))
    }

    /// What `key` has in a slice at times in `times`, in order of time; the first of it, if memory has no room for all.
    fn read<Q: Lookup<K> + ?Sized>(
        &self,
        slice: Time,
        key: &Q,
        times: &Range<Time>,
        calls: usize,
    ) -> Result<BookedValues<V>> {
        let mut found = BookedValues::new(self.account.clone());
        let record = |recorder: &Recorder| {
            if calls > 0 {
                recorder.record(Access::Get, key, Some(slice), 0);
            }
        };
        self.cell.run_to_read(calls, record, |lists| {
            lists.read(slice, key, &mut |(at, value)| {
                if has(times, *at) { found.push(*at, value) } else { Ok(()) }
            })
        })??;
        found.sort();
        Ok(found)
    }
}

/// What is read in parts has one part in so many of the memory made free for it.
const PARTS_SHARE: u64 = 4;
/// One part in so many of the memory is left to what reads.
const READING_SHARE: u64 = 16;
/// What is read in parts has one part in so many of the memory for each at least.
const PART_SHARE_MIN: u64 = 64;

/// Whether a range of times has `at`: the end of time stands for all that is still to come.
fn has(times: &Range<Time>, at: Time) -> bool {
    times.contains(&at) || (at == Time::MAX && times.end == at && times.start <= at)
}

/// Values that were read, booked: all, or as many of the first as memory has room for.
struct BookedValues<V> {
    values: Vec<(Time, V)>,
    bytes: u64,
    account: Rc<Account>,
    /// The last time of `values`.
    last: Time,
    /// Values of this time and later had no room.
    until: Option<Time>,
}

impl<V: State> BookedValues<V> {
    fn new(account: Rc<Account>) -> Self {
        Self { values: Vec::new(), bytes: 0, account, last: Time::MIN, until: None }
    }

    fn push(&mut self, at: Time, value: &V) -> Result<()> {
        loop {
            if self.until.is_some_and(|until| at >= until) {
                return Ok(());
            }
            match self.reserve(value.heap_bytes() as u64) {
                Ok(()) => break,
                // Parts that are too small would be too many.
                Err(error) if self.bytes < self.account.limit() / PART_SHARE_MIN => {
                    return Err(error);
                }
                Err(_) => self.give_up_last(at),
            }
        }
        self.last = self.last.max(at);
        self.values.push((at, value.clone()));
        Ok(())
    }

    /// Books one value more, which owns so much.
    fn reserve(&mut self, heap: u64) -> Result<()> {
        let (len, each) = (self.values.len() as u64, size_of::<(Time, V)>() as u64);
        // A vector that doubles has both for a moment, and sorting takes half as much again.
        let growth =
            if self.values.len() == self.values.capacity() { len.max(4) * each * 5 / 2 } else { 0 };
        let (more, left) = (growth + heap, self.account.limit() / READING_SHARE);
        let what = "what a key has in a slice";
        // A large part leaves room to who reads. That others give some up is tried before.
        let is_large = self.bytes >= self.account.limit() / PART_SHARE_MIN;
        self.account.ensure(if is_large && more > 0 { more + left } else { more }, what)?;
        self.account.reserve(MemoryKind::Buffers, more, what)?;
        self.bytes += more;
        Ok(())
    }

    /// Gives up the values of the last times, half of them or those of one time, or else those after the last time,
    /// which `at` is one of.
    fn give_up_last(&mut self, at: Time) {
        if at > self.last {
            self.until = Some(self.last.plus(1));
            return;
        }
        self.sort();
        let first = self.values[0].0;
        let mut cut = self.values[self.values.len() / 2].0;
        if cut == first {
            let later = self.values.iter().map(|(at, _)| *at).find(|at| *at > first);
            cut = later.unwrap_or(first);
        }
        let keep = self.values.partition_point(|(at, _)| *at < cut);
        let heap: u64 = self.values.drain(keep..).map(|(_, value)| value.heap_bytes() as u64).sum();
        self.account.release(MemoryKind::Buffers, heap);
        self.bytes -= heap;
        self.until = Some(cut);
        self.last = self.values.last().map_or(Time::MIN, |(at, _)| *at);
    }

    /// Keeps the order of insertion; does nothing to what is in order.
    fn sort(&mut self) {
        self.values.sort_by_key(|(at, _)| *at);
    }
}

impl<V> Drop for BookedValues<V> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.bytes);
    }
}
