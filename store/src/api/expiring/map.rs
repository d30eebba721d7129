//! A value per key that expires.

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_layouts::{BatchError, Cursor, Fetch, Layout, Peek, Table, TableStats, Ticket};
use alluvium_pagestore::{Error, ErrorKind, Key, Lookup, Rejected, Result, Time};

use super::lifetime::{CallTime, Lifetime};
use super::{Timed, Ttl};
use crate::api::fetcher::Fetcher;
use crate::api::map::Map;
use crate::backend::any_layout::AnyLayout;
use crate::cells::cell_handle::CellHandle;
use crate::cells::state_cell::ValueRef;

/// Type parameter of a [`StateBuilder`](crate::states::StateBuilder) for [`ExpiringMap`].
#[derive(Debug)]
pub struct ExpiringMapOf<K, V>(PhantomData<(K, V)>);

/// A [`Map`] whose entries expire some time after they were last touched. Open one with
/// [`Store::expiring_map`](crate::Store::expiring_map); [`Ttl`] sets the time.
///
/// No call sees an expired entry. The store removes it by itself: from memory an eighth of its time
/// to live later, in bounded steps of writes and [`tick`](crate::Store::tick); from storage when
/// its whole segment has expired, or is rewritten. Errors, panics and costs are those of a map;
/// each key takes 8 bytes more. In processing time, calls fail with [`ErrorKind::Input`] and change
/// nothing while the clock is further ahead of the state's time than
/// [`StoreConfig::time_jump_max_ms`](crate::StoreConfig::time_jump_max_ms).
///
/// ```
/// use std::time::Duration;
///
/// use alluvium::{MIB, Store, Time, Ttl};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let ttl = Ttl::event_time(Duration::from_secs(60));
/// let mut seen = store.expiring_map::<u64, u32>("seen").open(ttl)?;
/// seen.advance(Time(0))?;
/// seen.put(7, 1)?;
/// seen.advance(Time(59_000_000_000))?;
/// assert!(seen.contains(&7)?);
/// seen.advance(Time(61_000_000_000))?;
/// assert!(!seen.contains(&7)?);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct ExpiringMap<K: Key, V: 'static, L: Layout<K, Timed<V>> = AnyLayout> {
    map: Map<K, Timed<V>, L>,
    lifetime: CellHandle<Lifetime>,
}

impl<K: Key, V: 'static, L: Layout<K, Timed<V>>> fmt::Debug for ExpiringMap<K, V, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExpiringMap({})", self.name())
    }
}

/// The value, if it has not expired.
#[inline]
fn seen<V>(timed: Option<&Timed<V>>, moment: CallTime) -> Option<&V> {
    timed.filter(|timed| timed.touched >= moment.over).map(|timed| &timed.value)
}

impl<V> Timed<V> {
    #[inline]
    fn touch(&mut self, moment: CallTime) {
        // What another store wrote may be of a later time than this one has seen.
        self.touched = self.touched.max(moment.now);
    }

    /// The value for a call that writes; none if it is over.
    #[inline]
    fn seen_to_write(&mut self, moment: CallTime) -> Option<&mut V> {
        if self.touched < moment.over {
            return None;
        }
        self.touch(moment);
        Some(&mut self.value)
    }
}

impl<K: Key, V: 'static, L: Layout<K, Timed<V>>> ExpiringMap<K, V, L> {
    pub(crate) fn new(map: Map<K, Timed<V>, L>, lifetime: CellHandle<Lifetime>) -> Self {
        Self { map, lifetime }
    }

    /// Returns the state's name.
    pub fn name(&self) -> &str {
        self.map.name()
    }

    /// Returns the time to live.
    pub fn ttl(&self) -> Ttl {
        self.lifetime.ttl()
    }

    /// Returns the state's time: the greatest it was advanced to or, in processing time, that its
    /// clock has shown. [`Time::MIN`] before the first.
    pub fn time(&self) -> Time {
        self.lifetime.moment().unwrap_or_else(|_| self.lifetime.known()).now
    }

    /// Advances a state in event time: to a watermark, or to the time of each record. An earlier
    /// time than the greatest so far changes nothing. Entries that expire at `to` are invisible
    /// from now on. Cost: O(1), and now and then a step of removing expired entries, as for a
    /// write.
    ///
    /// With watermarks, an entry lives its time to live from the watermark at its write, however
    /// far ahead its record was. With the times of records this is the stream time of Kafka
    /// Streams.
    ///
    /// # Errors
    /// [`ErrorKind::Input`], without a change, for a time further ahead than
    /// [`StoreConfig::time_jump_max_ms`](crate::StoreConfig::time_jump_max_ms), and for one in the
    /// last year of time, where sums overflow. [`Time::MAX`], the end, is accepted.
    /// [`ErrorKind::Unsupported`] in processing time. [`ErrorKind::InUse`] while a value is
    /// borrowed.
    pub fn advance(&mut self, to: Time) -> Result<()> {
        if self.ttl().by_clock {
            let message = "a state in processing time takes its time from the store's clock";
            return Err(Error::new(ErrorKind::Unsupported, message).with("state", self.name()));
        }
        self.lifetime.advance(to)?;
        self.map.cell().enter_to_write(1).map(drop)
    }

    /// Returns the number of keys that are present, and of those that have expired and are not removed
    /// yet. Cost: O(1).
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn len(&self) -> Result<u64> {
        self.map.len()
    }

    /// Returns whether [`len`](ExpiringMap::len) is 0.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn is_empty(&self) -> Result<bool> {
        self.map.is_empty()
    }

    fn by_reads(&self) -> bool {
        self.ttl().by_reads
    }

    /// Returns the value of `key`; see [`Map::get`].
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<ValueRef<'_, V>>> {
        let moment = self.lifetime.moment()?;
        if !self.by_reads() {
            return Ok(self.map.get(key)?.and_then(|found| unwrapped(found, moment)));
        }
        if !self.touch(key, moment)? {
            return Ok(None);
        }
        Ok(self.map.find(key)?.and_then(|found| unwrapped(found, moment)))
    }

    /// Touches an entry that is there; says whether it is.
    fn touch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q, moment: CallTime) -> Result<bool> {
        let touched = self.map.touch(key, |timed| timed.seen_to_write(moment).is_some())?;
        Ok(touched == Some(true))
    }

    /// Calls `read` with the value of `key`; see [`Map::read`].
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    #[inline]
    pub fn read<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        read: impl FnOnce(Option<&V>) -> R,
    ) -> Result<R> {
        let moment = self.lifetime.moment()?;
        if !self.by_reads() {
            return self.map.read(key, |timed| read(seen(timed, moment)));
        }
        let mut read = Some(read);
        let done = self.map.touch(key, |timed| {
            let value = timed.seen_to_write(moment)?;
            read.take().map(|read| read(Some(value)))
        })?;
        Ok(match (done.flatten(), read) {
            (Some(result), _) => result,
            (None, Some(read)) => read(None),
            (None, None) => unreachable!("a read that was made has a result"),
        })
    }

    /// Returns the value of `key` if it is in memory; see [`Map::peek`]. Never touches the entry.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<Option<ValueRef<'_, V>>> {
        let moment = self.lifetime.moment()?;
        Ok(self.map.peek(key)?.and_then(|found| unwrapped(found, moment)))
    }

    /// Returns whether `key` is present; a read.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn contains<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        self.read(key, |value| value.is_some())
    }

    /// Applies `change` to the value of `key` in place: a read-modify-write. Inserts `init()` first
    /// if the key is absent or expired. Touches the entry.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    #[inline]
    pub fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        let (moment, lifetime) = (self.lifetime.moment()?, &*self.lifetime);
        let init = Cell::new(Some(init));
        let new = || (init.take().expect("an entry is begun once"))();
        self.map.update(
            key,
            || Timed { touched: moment.now, value: new() },
            |timed| change(begun_anew(timed, moment, lifetime, new)),
        )
    }

    /// Applies `change` to the value of `key` in place, if the key is present and has not expired.
    /// Touches the entry.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    #[inline]
    pub fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let moment = self.lifetime.moment()?;
        let done = self.map.modify(key, |timed| timed.seen_to_write(moment).map(change))?;
        Ok(done.flatten())
    }

    /// Applies `change` as [`modify`](ExpiringMap::modify) does, and puts a clone of the old value
    /// back if `change` panics.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn modify_or_restore<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>>
    where
        V: Clone,
    {
        let moment = self.lifetime.moment()?;
        let change = |timed: &mut Timed<V>| timed.seen_to_write(moment).map(change);
        Ok(self.map.modify_or_restore(key, change)?.flatten())
    }

    /// Sets the value of `key`, touches the entry and returns whether the key was present. An error
    /// returns key and value. Cost: a map's put and a look-up in memory.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        let seen = self.lifetime.moment();
        let seen = seen.and_then(|moment| Ok((moment, self.is_seen(&key, moment)?)));
        let (moment, was_seen) = match seen {
            Ok(seen) => seen,
            Err(error) => return Err(Rejected::new(error, (key, value))),
        };
        match self.map.put(key, Timed { touched: moment.now, value }) {
            Ok(was_there) => {
                self.count_removed(was_there && !was_seen);
                Ok(was_seen)
            }
            Err(Rejected { error, value: (key, timed) }) => {
                Err(Rejected::new(error, (key, timed.value)))
            }
        }
    }

    /// Whether `key` is there. A record that is on storage only is brought to memory, where a put of
    /// the key, which would have read it too, finds it.
    fn is_seen(&mut self, key: &K, moment: CallTime) -> Result<bool> {
        match self.map.cell().look()?.peek::<K>(key) {
            Peek::Resident(timed) => return Ok(timed.touched >= moment.over),
            Peek::Absent => return Ok(false),
            Peek::Unknown => {}
        }
        let seen = self.map.touch::<K, _>(key, |timed| timed.touched >= moment.over)?;
        Ok(seen == Some(true))
    }

    fn count_removed(&self, is_one: bool) {
        let removed = &self.lifetime.removed;
        removed.set(removed.get() + u64::from(is_one));
    }

    /// Removes `key` and returns its value, unless it has expired.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let moment = self.lifetime.moment()?;
        let Some(timed) = self.map.take(key)? else { return Ok(None) };
        let is_over = timed.touched < moment.over;
        self.count_removed(is_over);
        Ok((!is_over).then_some(timed.value))
    }

    /// Removes `key` and returns whether it was present.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn remove<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<bool> {
        Ok(self.take(key)?.is_some())
    }

    /// Removes all keys, as [`Map::clear`](crate::Map::clear) does.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn clear(&mut self) -> Result<()> {
        self.map.clear()
    }

    /// Does [`update`](ExpiringMap::update) for each item of `batch`, all at one time; see
    /// [`Map::update_batch`].
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    #[inline]
    pub fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        init: impl FnMut(&T) -> V,
        mut change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        let lifetime = &*self.lifetime;
        let moment = lifetime.moment().map_err(|error| BatchError { applied: 0, error })?;
        let init = RefCell::new(init);
        let new = |item: &T| (init.borrow_mut())(item);
        self.map.update_batch(
            batch,
            key,
            |item| Timed { touched: moment.now, value: new(item) },
            |item, timed| change(item, begun_anew(timed, moment, lifetime, || new(item))),
        )
    }

    /// Calls `read` with the value of each item's key, in order. Accesses overlap, unless reads
    /// touch entries.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        if !self.by_reads() {
            let moment =
                self.lifetime.moment().map_err(|error| BatchError { applied: 0, error })?;
            return self.map.read_batch(batch, key, |item, timed| read(item, seen(timed, moment)));
        }
        for (applied, item) in batch.iter().enumerate() {
            self.read(key(item), |value| read(item, value))
                .map_err(|error| BatchError { applied, error })?;
        }
        Ok(())
    }

    /// Starts reading the value of `key`; see [`Map::fetch`]. Never touches the entry.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Fetch> {
        self.map.fetch(key)
    }

    /// Reports the tickets of reads that have ended since the last call, each once.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn fetched(&mut self, tell: impl FnMut(Ticket)) -> Result<()> {
        self.map.fetched(tell)
    }

    /// Cancels a read. Does nothing if a call has used its data.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn release(&mut self, ticket: Ticket) -> Result<()> {
        self.map.release(ticket)
    }

    /// Returns a handle to the state's reads, for code that drives the owner of this handle.
    pub fn fetcher(&self) -> Rc<dyn Fetcher<K>> {
        self.map.fetcher()
    }

    /// Visits the entries that have not expired; see [`Map::scan`]. Never touches them.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        mut visit: impl FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let moment = self.lifetime.moment()?;
        self.map.scan(cursor, fuel, |key, timed| match seen(Some(timed), moment) {
            Some(value) => visit(key, value),
            None => Ok(()),
        })
    }

    /// Visits all entries that have not expired, in unspecified order. Never touches them.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn for_each(&mut self, mut visit: impl FnMut(&K, &V) -> Result<()>) -> Result<()> {
        let mut cursor = Cursor::default();
        while !cursor.done {
            self.scan(&mut cursor, 4096, &mut visit)?;
        }
        Ok(())
    }

    /// Puts all entries in order and touches each now; see [`Map::load`].
    ///
    /// # Errors
    /// Those of [`Map::load`].
    pub fn load(
        &mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> std::result::Result<u64, Rejected<Vec<(K, V)>>> {
        let touched = match self.lifetime.moment() {
            Ok(moment) => moment.now,
            Err(error) => return Err(Rejected::new(error, entries.into_iter().collect())),
        };
        let timed = entries.into_iter().map(|(key, value)| (key, Timed { touched, value }));
        self.map.load(timed).map_err(|Rejected { error, value }| {
            Rejected::new(error, value.into_iter().map(|(key, timed)| (key, timed.value)).collect())
        })
    }

    /// Returns counters and gauges.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](Map#errors-of-calls).
    pub fn stats(&self) -> Result<TableStats> {
        self.map.stats()
    }

    /// Returns whether a closure has panicked in this state since it was opened or last cleared.
    pub fn is_poisoned(&self) -> bool {
        self.map.is_poisoned()
    }

    /// Declares the values correct again after a panic.
    pub fn clear_poison(&mut self) {
        self.map.clear_poison();
    }
}

/// The value of an entry that is written to, begun anew if it was over.
#[inline]
fn begun_anew<'a, V>(
    timed: &'a mut Timed<V>,
    moment: CallTime,
    lifetime: &Lifetime,
    new: impl FnOnce() -> V,
) -> &'a mut V {
    if timed.touched < moment.over {
        timed.value = new();
        lifetime.removed.set(lifetime.removed.get() + 1);
    }
    timed.touch(moment);
    &mut timed.value
}

fn unwrapped<V>(found: ValueRef<'_, Timed<V>>, moment: CallTime) -> Option<ValueRef<'_, V>> {
    let value = Ref::filter_map(found.0, |timed| seen(Some(timed), moment));
    value.ok().map(ValueRef)
}
