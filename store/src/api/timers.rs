//! Timers: requests to be called for a key when event time reaches a point.
//!
//! Kept in memory in time order, part of every checkpoint, which writes those that have come since the last one. A
//! set: the same time, key and namespace twice is once. A namespace tells timers of one key apart, such as those of its
//! windows; without one it is `()` and takes nothing.

mod checkpoint;
mod contents;
mod next;
mod pending;
mod places;
mod set;
mod stored;
mod table;

use std::cell::RefMut;
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, MemoryKind, Result, State, Time};

use crate::api::own_keys::{OwnKeys, RowKeys};
use crate::cells::cell_handle::CellHandle;
use crate::durability::moving::Groups;
pub(crate) use contents::TimersCell;
pub use pending::PendingTimer;
use set::Timer;
pub use stored::{Due, StoredTimers, StoredTimersStats};
pub(crate) use table::TimerTable;

/// Pending timers, in memory. Open them with [`Store::timers`](crate::Store::timers), with namespaces by
/// [`Store::timers_in`](crate::Store::timers_in). [`StoredTimers`] may be more than memory has room
/// for.
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
    shared: CellHandle<TimersCell<K, N>>,
}

/// Memory that is booked for timers which are about to be set.
#[derive(Debug)]
pub(crate) struct TimerMemory {
    account: Rc<Account>,
    bytes: u64,
}

impl Drop for TimerMemory {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.bytes);
    }
}

/// The share of memory from which on timers that can be made again are too many, while less than the other share is
/// free. In little memory it is less: what every state takes is most of that.
const SHARE: u64 = 4;
const LITTLE_SHARE: u64 = 16;
const LITTLE_MEMORY: u64 = 16 << 20;
const SHORT_SHARE: u64 = 4;
/// What a few blocks of timers take, and some thousand timers.
const ROOM_BYTES: (u64, u64) = (8 << 10, 128 << 10);

fn share_of(memory: u64) -> u64 {
    memory / if memory < LITTLE_MEMORY { LITTLE_SHARE } else { SHARE }
}

/// How often the key group that has the last timer is looked for when some are let go.
const LOOKS: usize = 8;

/// So many are never too many: each key group that has some takes a block for them.
const FEW: usize = 1024;

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
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) if memory has no room.
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) while the key's group moves,
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) for a key of another store.
    pub fn set(&mut self, key: K, at: Time) -> Result<bool> {
        self.set_in(key, at, ())
    }

    /// Cancels a timer and returns whether there was one. Does nothing, and returns `false`, while
    /// its key group moves.
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
    pub(crate) fn new(shared: CellHandle<TimersCell<K, N>>) -> Self {
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
    ///
    /// # Errors
    /// As for [`set`](Timers::set).
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

    /// Removes up to so many timers from the end, but none of the first one's time. Returns the earliest time of those
    /// that are gone, if some are; none is left that is later. Cost: O(count log n), and up to eight looks at each key
    /// group.
    pub(crate) fn let_last_go(&mut self, count: usize) -> Option<Time> {
        let mut table = self.table();
        let first = table.timers.first()?.0.0;
        let mut left = count.min(table.timers.len() / 4 + 1);
        let mut gone = None;
        for _ in 0..LOOKS {
            let Some((group, others)) = table.timers.group_of_last() else { break };
            // As many as are later than all of other groups.
            let goes = |at: Time| at > first && others.is_none_or(|other| at >= other);
            let is_first = gone;
            while left > 0 {
                let last = table.timers.last_of(group).filter(|last| goes(last.0.0)).cloned();
                let Some(last) = last else { break };
                table.remove(&last);
                (gone, left) = (Some(last.0.0), left - 1);
            }
            if left == 0 || gone == is_first {
                break;
            }
        }
        gone
    }

    /// Whether they take more than their share of the memory, and that is short. A block that is filled in part counts as
    /// what is in it: each key group has one.
    pub(crate) fn are_too_many(&self) -> bool {
        let table = self.table();
        let account = &table.context.account;
        let bytes = table.timers.len() * (size_of::<Timer<K, N>>() + size_of::<u32>()) * 3 / 2;
        table.timers.len() > FEW
            && bytes as u64 > share_of(account.limit())
            && account.available() < account.limit() / SHORT_SHARE
    }

    /// Books what they lack of their share, as far as others give it up and some thousand timers take it: whoever sets them
    /// while a state is in use that could give some drops it before.
    ///
    /// # Errors
    /// If there is no memory for a few timers.
    pub(crate) fn book_room(&self) -> Result<TimerMemory> {
        let (account, taken) = {
            let table = self.table();
            (table.context.account.clone(), table.timers_bytes())
        };
        let lacking = share_of(account.limit()).saturating_sub(taken);
        let mut bytes = lacking.clamp(ROOM_BYTES.0, ROOM_BYTES.1);
        while let Err(error) = account.reserve(MemoryKind::Buffers, bytes, "timers") {
            if bytes == ROOM_BYTES.0 {
                return Err(error);
            }
            bytes = (bytes / 2).max(ROOM_BYTES.0);
        }
        Ok(TimerMemory { account, bytes })
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

    /// Returns whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
