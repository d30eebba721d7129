//! Timers on storage: all are in a map, whose layout is chosen like that of any other, and those that come
//! next are in memory too, in their order.
//!
//! What it keeps true: what is pending is what the map has. A call changes the map first, so that after an error
//! nothing has changed; what is in memory can be found again in the map.

use std::fmt;
use std::rc::Rc;

use alluvium_layouts::{Cursor, Layout, TableStats};
use alluvium_pagestore::{Account, Error, ErrorKind, Key, Result, Time};

use super::next::{Known, NextTimers};
use super::pending::PendingTimer;
use crate::api::map::Map;
use crate::api::own_keys::OwnKeys;
use crate::backend::any_layout::AnyLayout;
use crate::durability::moving::Groups;

/// Timers of the map that one call looks at, about.
const LOOKED: usize = 1024;

/// What [`StoredTimers::pop_due`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due<T> {
    /// This timer is due, and no longer pending.
    Timer(T),
    /// Timers may be due. The call has looked through a part of the state for the next ones, or made
    /// room in memory: call again.
    Searching,
    /// No timer is due.
    None,
}

impl<T> Due<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Due<U> {
        match self {
            Due::Timer(timer) => Due::Timer(change(timer)),
            Due::Searching => Due::Searching,
            Due::None => Due::None,
        }
    }
}

/// What [`StoredTimers`] hold and have done.
#[derive(Clone, Debug)]
pub struct StoredTimersStats {
    /// Pending timers.
    pub pending: u64,
    /// Of these, the next ones: they are in memory, in order, beside what the layout has in memory.
    pub next: u64,
    /// Memory reserved for the next ones.
    pub next_bytes: u64,
    /// Passes over all timers that have looked for the next ones.
    pub passes: u64,
    /// Timers that these have looked at.
    pub looked_at: u64,
    /// What the layout tells.
    pub table: TableStats,
}

/// Pending timers whose number storage bounds, not memory. Open them with
/// [`Store::stored_timers`](crate::Store::stored_timers).
///
/// They fire in the same order as [`Timers`](crate::Timers): by time, then key, then namespace.
/// All are keys of a map in any [layout](crate::Layout), a hybrid log by default. The next ones are
/// in memory too, in order, in up to a quarter of it (an eighth below 16 MiB). Once these have
/// fired, a pass over all timers finds the next ones. Each call of [`pop_due`](Self::pop_due) does a
/// bounded step of it and answers [`Due::Searching`].
///
/// Cost: `set`, `cancel` and firing are each a write of the map, which may read from storage.
/// Timers of which memory holds one in n take about n passes until all have fired. Calls become
/// slower for a key with many thousands of timers, as the index tells these apart by 15 bits of
/// their hash at most.
///
/// ```
/// use alluvium::states::Due;
/// use alluvium::{MIB, Store, Time};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut timers = store.stored_timers::<u64, ()>("timeouts").open()?;
/// timers.set(7, Time(100))?;
/// timers.set(8, Time(50))?;
/// timers.cancel(8, Time(50))?;
/// loop {
///     match timers.pop_due(Time(101))? {
///         Due::Timer((at, key)) => assert_eq!((at, key), (Time(100), 7)),
///         Due::Searching => {} // an operator could do something else first
///         Due::None => break,
///     }
/// }
/// # Ok::<(), alluvium::Error>(())
/// ```
///
/// # Errors of calls
///
/// After an error nothing has changed. Those of [a write of a map](crate::Map#errors-of-calls).
/// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) from a search if memory has no room for
/// a single timer.
pub struct StoredTimers<
    K: Key + Ord,
    N: Key + Ord = (),
    L: Layout<PendingTimer<K, N>, ()> = AnyLayout,
> {
    map: Map<PendingTimer<K, N>, (), L>,
    next: NextTimers<K, N>,
    /// The keys that it takes, if these are not all.
    own: Option<OwnKeys>,
}

impl<K: Key + Ord, N: Key + Ord, L: Layout<PendingTimer<K, N>, ()>> fmt::Debug
    for StoredTimers<K, N, L>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredTimers({})", self.name())
    }
}

impl<K: Key + Ord, L: Layout<PendingTimer<K, ()>, ()>> StoredTimers<K, (), L> {
    /// Sets a timer for `key` at `at` and returns whether it is new. A timer before the watermark
    /// is due at once. A timer at the watermark is due when the watermark has passed it.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn set(&mut self, key: K, at: Time) -> Result<bool> {
        self.set_in(key, at, ())
    }

    /// Cancels a timer and returns whether there was one.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn cancel(&mut self, key: K, at: Time) -> Result<bool> {
        self.cancel_in(key, at, ())
    }

    /// Removes and returns the earliest due timer: one before `watermark`. Timers of equal time
    /// come in key order. A timer at [`Time::MAX`] is never due. Looks at some 1,000 timers at most
    /// to find the next ones.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn pop_due(&mut self, watermark: Time) -> Result<Due<(Time, K)>> {
        let due = self.pop(Some(watermark))?;
        Ok(due.map(|PendingTimer { at, key, .. }| (at, key)))
    }
}

impl<K: Key + Ord, N: Key + Ord, L: Layout<PendingTimer<K, N>, ()>> StoredTimers<K, N, L> {
    /// Timers that are in a map, for these keys only.
    ///
    /// # Errors
    /// If there is no memory for a few timers.
    pub(crate) fn new(
        map: Map<PendingTimer<K, N>, (), L>,
        account: Rc<Account>,
        own: Option<OwnKeys>,
    ) -> Result<Self> {
        let next = NextTimers::open(account, map.is_empty()?)?;
        let mut timers = Self { map, next, own };
        timers.refresh();
        Ok(timers)
    }

    /// Returns the state's name.
    pub fn name(&self) -> &str {
        self.map.name()
    }

    /// Sets a timer for `key` in `namespace` at `at` and returns whether it is new.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn set_in(&mut self, key: K, at: Time, namespace: N) -> Result<bool> {
        if let Some(own) = &self.own {
            own.check(key.key_hash()).map_err(|error| error.with("state", self.map.name()))?;
        }
        let mut timer = PendingTimer { at, key, namespace };
        loop {
            let next = self.next.admits(&timer).then(|| timer.clone());
            match self.map.put(timer, ()) {
                Ok(was_there) => {
                    next.filter(|_| !was_there).into_iter().for_each(|it| self.next.insert(it));
                    return Ok(!was_there);
                }
                Err(rejected) if lacks_memory(&rejected.error) && self.next.give_way() => {
                    timer = rejected.value.0;
                }
                Err(rejected) => return Err(rejected.error),
            }
        }
    }

    /// Cancels a timer of a namespace and returns whether there was one.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn cancel_in(&mut self, key: K, at: Time, namespace: N) -> Result<bool> {
        let timer = PendingTimer { at, key, namespace };
        let was_there = loop {
            match self.map.remove(&timer) {
                Err(error) if lacks_memory(&error) && self.next.give_way() => {}
                removed => break removed?,
            }
        };
        if was_there {
            self.next.remove(&timer);
        }
        Ok(was_there)
    }

    /// Does the same as `pop_due`, with namespaces. Timers of equal time come in the order of keys,
    /// then of namespaces.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn pop_due_in(&mut self, watermark: Time) -> Result<Due<(Time, K, N)>> {
        let due = self.pop(Some(watermark))?;
        Ok(due.map(|PendingTimer { at, key, namespace }| (at, key, namespace)))
    }

    /// Removes and returns the earliest timer, due or not, also at [`Time::MAX`]; otherwise as
    /// `pop_due`.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls).
    pub fn pop_first(&mut self) -> Result<Due<(Time, K, N)>> {
        let due = self.pop(None)?;
        Ok(due.map(|PendingTimer { at, key, namespace }| (at, key, namespace)))
    }

    /// Removes up to `fuel` timers before `before` without firing them. Returns whether none is
    /// left. Cost: O(fuel), and one step of a pass.
    ///
    /// # Errors
    /// Those of [any call](StoredTimers#errors-of-calls). Timers before the failed one are removed.
    pub fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        for _ in 0..fuel.max(1) {
            match self.pop(Some(before))? {
                Due::Timer(_) => {}
                Due::Searching => return Ok(false),
                Due::None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Visits about `fuel` pending timers from `cursor` on, in unspecified order; the cursor tells
    /// when all were visited. Visits each timer that is pending from the first step to the last
    /// exactly once. To cancel all timers of a key or namespace, cancel those that a step has
    /// visited after it.
    ///
    /// # Errors
    /// Those of [a read](crate::Map#errors-of-calls) and of `visit`.
    pub fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        mut visit: impl FnMut(Time, &K, &N) -> Result<()>,
    ) -> Result<()> {
        self.map.scan(cursor, fuel, |timer, ()| visit(timer.at, &timer.key, &timer.namespace))
    }

    /// Returns a time before which no timer is due, and `None` if there is none. It is that of the
    /// earliest timer, unless this is not known yet. Reads nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state.
    pub fn next_time(&mut self) -> Result<Option<Time>> {
        self.refresh();
        Ok(if self.map.is_empty()? { None } else { self.next.earliest() })
    }

    /// Returns the number of pending timers. Those of a key group that moves count where its entries
    /// are.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state.
    pub fn len(&self) -> Result<u64> {
        self.map.len()
    }

    /// Returns whether no timer is pending.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state.
    pub fn is_empty(&self) -> Result<bool> {
        self.map.is_empty()
    }

    /// Returns counters and gauges.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of this state.
    pub fn stats(&self) -> Result<StoredTimersStats> {
        let counts = self.next.counts();
        Ok(StoredTimersStats {
            pending: self.map.len()?,
            next: self.next.len(),
            next_bytes: self.next.booked_bytes(),
            passes: counts.passes,
            looked_at: counts.looked_at,
            table: self.map.stats()?,
        })
    }

    /// Returns whether a panic of the key's order has left the state unfit for checkpoints.
    pub fn is_poisoned(&self) -> bool {
        self.map.is_poisoned()
    }

    /// Allows checkpoints again after such a panic.
    pub fn clear_poison(&mut self) {
        self.map.clear_poison();
    }

    /// Keeps so many bytes of the next timers, whatever memory there is: for tests.
    #[doc(hidden)]
    pub fn keep_next_in(&mut self, bytes: u64) {
        self.next.take_most(bytes);
    }

    /// Removes and returns the first timer before `until`, or of all, or goes on looking for it.
    fn pop(&mut self, until: Option<Time>) -> Result<Due<PendingTimer<K, N>>> {
        self.refresh();
        if self.next.known(until) == Known::Unknown {
            self.search()?;
        }
        match (self.next.known(until), self.next.first()) {
            (Known::Due, Some(first)) => {
                let was_there = match self.map.remove(first) {
                    Err(error) if lacks_memory(&error) && self.next.give_way() => {
                        return Ok(Due::Searching);
                    }
                    removed => removed?,
                };
                debug_assert!(was_there, "a timer that comes next is pending");
                let timer = self.next.pop().filter(|_| was_there);
                Ok(timer.map_or(Due::Searching, Due::Timer))
            }
            (Known::Unknown, _) => Ok(Due::Searching),
            (Known::Due | Known::NoneDue, _) => Ok(Due::None),
        }
    }

    /// Goes on with a pass over the map, which it begins if none is under way.
    fn search(&mut self) -> Result<()> {
        let Self { map, next, .. } = self;
        if map.is_empty()? {
            next.know_all();
            return Ok(());
        }
        let groups = map.cell().shared_groups();
        let mut cursor = next.begin_step(LOOKED);
        let scanned = map.scan(&mut cursor, LOOKED, |timer, ()| {
            let may_fire = || may_fire(groups.as_deref(), timer);
            next.look_at(timer, may_fire);
            Ok(())
        });
        // After an error the next call looks at what this one has looked at once more.
        scanned?;
        next.end_step(cursor).map_err(|error| error.with("state", map.name()))
    }

    /// Forgets what is known if timers have come or gone otherwise than by calls.
    fn refresh(&mut self) {
        let core = self.map.cell();
        let moves = core.groups().map_or(0, Groups::settlements);
        self.next.refresh((moves, core.imports()));
    }
}

/// Whether memory that the next timers give up may help.
fn lacks_memory(error: &Error) -> bool {
    error.kind() == ErrorKind::OverBudget
}

/// Whether a timer's key group is here, and is not being given away.
fn may_fire<K: Key, N: Key>(groups: Option<&Groups>, timer: &PendingTimer<K, N>) -> bool {
    groups.is_none_or(|groups| groups.check(timer.key.key_hash()).is_ok())
}
