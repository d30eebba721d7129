//! Timers: requests to be called for a key when event time reaches a point.
//!
//! Kept in memory in time order, part of every checkpoint, which writes those that have come since the last one. A
//! set: the same time, key and namespace twice is once. A namespace tells timers of one key apart, such as those of its
//! windows; without one it is `()` and takes nothing.

mod capture;
mod contents;
mod places;
mod set;
mod table;

use std::cell::RefMut;

use alluvium_pagestore::{Key, Result, State, Time};

use crate::api::own_keys::{OwnKeys, RowKeys};
use crate::cells::held::Held;
use crate::durability::moving::Groups;
pub(crate) use contents::TimersCell;
use set::Timer;
pub(crate) use table::TimerTable;

/// Pending timers. Open them with [`Store::timers`](crate::Store::timers), with namespaces by
/// [`Store::timers_in`](crate::Store::timers_in).
///
/// ```
/// use alluvium::{MIB, Store, Time};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut timers = store.timers::<u64>("timeouts")?;
/// timers.set(7, Time(100))?;
/// timers.set(8, Time(50))?;
/// timers.cancel(8, Time(50));
/// assert_eq!(timers.pop_due(Time(100)), None); // due when the watermark passes it
/// assert_eq!(timers.pop_due(Time(101)), Some((Time(100), 7)));
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct Timers<K: Key + Ord, N: State + Ord = ()> {
    shared: Held<TimersCell<K, N>>,
}

/// Position of [`Timers::purge_where`]; start with `Sweep::default()`.
#[derive(Debug)]
pub struct Sweep<K, N = ()> {
    after: Option<Timer<K, N>>,
    /// Whether every timer was looked at.
    pub done: bool,
}

impl<K, N> Default for Sweep<K, N> {
    fn default() -> Self {
        Self { after: None, done: false }
    }
}

impl<K: Key + Ord> Timers<K> {
    /// Sets a timer for `key` at `at` and returns whether it is new. A timer before the watermark
    /// is due at once. A timer at the watermark is due when the watermark has passed it. Cost:
    /// O(log n).
    pub fn set(&mut self, key: K, at: Time) -> Result<bool> {
        self.set_in(key, at, ())
    }

    /// Cancels a timer and returns whether there was one.
    pub fn cancel(&mut self, key: K, at: Time) -> bool {
        self.cancel_in(key, at, ())
    }

    /// Removes and returns the earliest due timer: one before `watermark`. Timers of equal time
    /// come in key order. A timer that you set while firing is due at once if its time is before
    /// the watermark. A timer at [`Time::MAX`] is never due.
    pub fn pop_due(&mut self, watermark: Time) -> Option<(Time, K)> {
        self.pop_due_in(watermark).map(|(at, key, ())| (at, key))
    }
}

impl<K: Key + Ord, N: State + Ord> Timers<K, N> {
    pub(crate) fn new(shared: Held<TimersCell<K, N>>) -> Self {
        Self { shared }
    }

    /// The timers, for one call.
    fn table(&self) -> RefMut<'_, TimerTable<K, N>> {
        // The store uses them between calls only, and no closure of theirs has this handle too.
        self.shared.enter().expect("timers are used by one call at a time")
    }

    /// Refuses to set timers for keys that are none of the rows at hand; see
    /// [`StateBuilder::keys_of`](crate::states::StateBuilder::keys_of).
    #[must_use]
    pub fn keys_of(self, rows: &RowKeys) -> Self {
        let own = self.shared.own().cloned().unwrap_or_default();
        self.keeping_to(Some(OwnKeys { rows: Some(rows.clone()), ..own }))
    }

    /// Takes no other keys from now on.
    pub(crate) fn keeping_to(self, own: Option<OwnKeys>) -> Self {
        Self { shared: self.shared.keeping_to(own) }
    }

    /// Sets a timer for `key` in `namespace` at `at` and returns whether it is new. Cost: O(log n).
    pub fn set_in(&mut self, key: K, at: Time, namespace: N) -> Result<bool> {
        let mut table = self.table();
        table.check(self.shared.own(), &key)?;
        table.insert(((at, key), namespace))
    }

    /// Cancels a timer of a namespace and returns whether there was one. Does nothing while its key
    /// group moves.
    pub fn cancel_in(&mut self, key: K, at: Time, namespace: N) -> bool {
        let mut table = self.table();
        let stays = |groups: &Groups| groups.check(key.key_hash()).is_err();
        if table.timers.groups().is_some_and(stays) {
            return false;
        }
        table.remove(&((at, key), namespace))
    }

    /// Does the same as `pop_due`, with namespaces. Timers of equal time come in the order of keys,
    /// then of namespaces.
    pub fn pop_due_in(&mut self, watermark: Time) -> Option<(Time, K, N)> {
        let mut table = self.table();
        if table.timers.first()?.0.0 >= watermark {
            return None;
        }
        table.pop().map(|((at, key), namespace)| (at, key, namespace))
    }

    /// Removes and returns the earliest timer, due or not, also at [`Time::MAX`].
    pub fn pop_first(&mut self) -> Option<(Time, K, N)> {
        let timer = self.table().pop();
        timer.map(|((at, key), namespace)| (at, key, namespace))
    }

    /// Removes up to `fuel` timers before `before` without firing them. Returns whether none is
    /// left. Cost: O(fuel).
    pub fn purge(&mut self, before: Time, fuel: usize) -> bool {
        let mut table = self.table();
        for _ in 0..fuel.max(1) {
            if table.timers.first().is_none_or(|timer| timer.0.0 >= before) {
                return true;
            }
            table.pop();
        }
        table.timers.first().is_none_or(|timer| timer.0.0 >= before)
    }

    /// Inspects up to `fuel` timers from `sweep` on and removes those that are `doomed`, such as
    /// all timers of a key. It may miss timers that are set meanwhile. Cost: O(log n) per inspected
    /// timer; a whole sweep inspects every timer, as they are ordered by time.
    pub fn purge_where(
        &mut self,
        sweep: &mut Sweep<K, N>,
        fuel: usize,
        mut doomed: impl FnMut(Time, &K, &N) -> bool,
    ) {
        let mut table = self.table();
        for _ in 0..fuel.max(1) {
            let next = table.timers.sweep(sweep.after.as_ref());
            let Some(timer) = next.cloned() else {
                sweep.done = true;
                return;
            };
            if doomed(timer.0.0, &timer.0.1, &timer.1) {
                table.remove(&timer);
            }
            sweep.after = Some(timer);
        }
    }

    /// Returns the time of the earliest timer.
    pub fn next_time(&self) -> Option<Time> {
        self.table().timers.first().map(|((at, _), _)| *at)
    }

    /// Returns the number of pending timers.
    pub fn len(&self) -> u64 {
        self.table().timers.len() as u64
    }

    /// Returns whether no timer is table.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
