//! Timers: requests to be called for a key when event time reaches a point.
//!
//! Kept in memory in time order, part of every checkpoint, which writes those that have come since the last one. A
//! set: the same time, key and namespace twice is once. A namespace tells timers of one key apart, such as those of its
//! windows; without one it is `()` and takes nothing.

mod capture;
mod places;
mod set;

use std::cell::RefCell;
use std::rc::Rc;

use alluvium_layouts::{
    CheckpointOutcome, Oversize, Part, Place, Remembered, StateContext, TableStats,
};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, Key, KeyGroup, MemoryKind, Result, State, StateImage,
    Time,
};

use crate::api::own_keys::{OwnKeys, RowKeys};
use crate::cells::held::Held;
use crate::cells::state_cell::{Durable, Hooks, Movable, Portable};
use crate::durability::export::{Entry, Visit, check_hash};
use crate::durability::moving::{self, Groups};
use capture::Capture;
use set::{Timer, TimerSet};

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

#[derive(Debug)]
pub(crate) struct TimersCell<K: Key + Ord, N: State + Ord>(RefCell<Pending<K, N>>);

#[derive(Debug)]
struct Pending<K: Key + Ord, N: State + Ord> {
    context: StateContext,
    timers: TimerSet<K, N>,
    /// The checkpoint being taken.
    capture: Option<Capture<K, N>>,
    /// Those that were given up and have kept something.
    given_up: Vec<Capture<K, N>>,
    /// What checkpoints have.
    remembered: Remembered,
    codec_calls: u64,
    oversize: Oversize,
}

impl<K: Key + Ord, N: State + Ord> Pending<K, N> {
    /// Refuses a key whose group is on its way, or elsewhere, and one that is none of its `own`.
    fn check(&self, own: Option<&OwnKeys>, key: &K) -> Result<()> {
        let groups = self.timers.groups();
        if groups.is_none() && own.is_none() {
            return Ok(());
        }
        let hash = key.key_hash();
        let of_groups = groups.map_or(Ok(()), |groups| groups.check(hash));
        let checked = of_groups.and_then(|()| own.map_or(Ok(()), |own| own.check(hash)));
        checked.map_err(|error| error.with("state", &self.context.name))
    }

    fn insert(&mut self, timer: Timer<K, N>) -> Result<bool> {
        self.oversize.check(&timer.0.1, heap_of(&timer))?;
        self.insert_at(timer, Place::NONE)
    }

    /// Inserts a timer whose record is at this place.
    fn insert_at(&mut self, timer: Timer<K, N>, place: Place) -> Result<bool> {
        let (heap, growth) = (heap_of(&timer), self.timers.growth_bytes(&timer));
        self.ensure(heap + growth)?;
        let is_wanted = self.capture_wants(Some(&timer));
        let is_told = is_wanted && self.prepare(heap, heap + growth);
        if is_wanted {
            // What it took for that may have been left for this.
            self.ensure(heap + growth)?;
        }
        let told = is_told.then(|| timer.clone());
        let before = self.timers.memory_bytes();
        let new = self.timers.insert(timer, (place, self.remembered.epoch()));
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        if new {
            account.charge(MemoryKind::Values, heap);
            if let (Some(capture), Some(timer)) = (&mut self.capture, told) {
                capture.come(timer);
            }
        }
        Ok(new)
    }

    /// [`insert_at`](Pending::insert_at) while a store is opened. What several checkpoints wrote, or stores, does not come in order and
    /// leaves blocks half full, which may have been full: where memory lacks they are filled.
    fn restore(&mut self, timer: Timer<K, N>, place: Place) -> Result<()> {
        let needed = heap_of(&timer) + self.timers.growth_bytes(&timer);
        let account = &self.context.account;
        if account.ensure(needed, "a timer").is_err() {
            self.pack();
        }
        self.insert_at(timer, place).map(drop)
    }

    fn pack(&mut self) {
        let before = self.timers.memory_bytes();
        self.timers.pack();
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
    }

    /// Sees to it that so many bytes are free.
    fn ensure(&mut self, bytes: u64) -> Result<()> {
        self.drop_left_for(bytes);
        let account = &self.context.account;
        let ensured = account.ensure(bytes, "a timer");
        if ensured.is_err() && self.remembered.make_way() {
            return account.ensure(bytes, "a timer");
        }
        ensured
    }

    /// Whether the checkpoint being taken wants to be told when a timer comes or goes.
    #[inline]
    fn capture_wants(&self, timer: Option<&Timer<K, N>>) -> bool {
        match (&self.capture, timer) {
            (Some(capture), Some(timer)) => capture.wants(&self.timers, timer),
            _ => false,
        }
    }

    /// Before a timer that owns so many bytes comes, which is about to take so many, or goes; says whether the checkpoint
    /// is to be told still.
    fn prepare(&mut self, heap: u64, taking: u64) -> bool {
        let needed = self.capture.as_ref().map_or(0, |capture| capture.needed((heap, taking)));
        self.drop_left_for(needed);
        let Self { capture, timers, remembered, .. } = self;
        let told = capture.as_mut().map(|it| it.prepare(timers, remembered, (heap, taking)));
        told.unwrap_or(false)
    }

    fn remove(&mut self, timer: &Timer<K, N>) -> bool {
        let is_told = self.capture_wants(Some(timer)) && self.prepare(heap_of(timer), 0);
        let before = self.timers.memory_bytes();
        let removed = self.timers.remove(timer, self.remembered.epoch());
        // What was kept may own more than what is equal to it.
        let Some((known, place)) = removed else { return false };
        self.removed(before, &known);
        self.let_go(&known, place, is_told);
        true
    }

    fn pop(&mut self) -> Option<Timer<K, N>> {
        let first = self.timers.first();
        let is_told = self.capture_wants(first) && {
            let heap = first.map_or(0, heap_of);
            self.prepare(heap, 0)
        };
        let before = self.timers.memory_bytes();
        let (timer, place) = self.timers.pop_first(self.remembered.epoch())?;
        self.removed(before, &timer);
        self.let_go(&timer, place, is_told);
        Some(timer)
    }

    /// A timer has gone, whose record was at this place.
    fn let_go(&mut self, timer: &Timer<K, N>, place: Place, is_told: bool) {
        match self.capture.as_mut().filter(|_| is_told) {
            Some(capture) => capture.go(timer, place, &mut self.remembered),
            None => self.remembered.note_dead(place),
        }
    }

    /// Gives up the checkpoint that is being taken, if there is one; what it has kept goes
    /// [later](Pending::drop_some_left).
    fn give_up_capture(&mut self) {
        self.given_up.extend(self.capture.take().filter(Capture::has_kept));
    }

    /// Drops a part of what checkpoints that were given up have kept; says whether there was something.
    fn drop_some_left(&mut self) -> bool {
        let Some(capture) = self.given_up.last_mut() else { return false };
        let is_some = capture.drop_step();
        if !capture.has_kept() {
            self.given_up.pop();
        }
        is_some
    }

    /// Drops of that as much as it takes for so many bytes to be free.
    #[inline]
    fn drop_left_for(&mut self, bytes: u64) {
        while !self.given_up.is_empty() && self.context.account.available() < bytes {
            self.drop_some_left();
        }
    }

    /// Books what is left after a timer was removed from `before` bytes of timers.
    fn removed(&self, before: u64, timer: &Timer<K, N>) {
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        account.release(MemoryKind::Values, heap_of(timer));
    }
}

fn heap_of<K: Key, N: State>(((_, key), namespace): &Timer<K, N>) -> u64 {
    (key.heap_bytes() + namespace.heap_bytes()) as u64
}

impl<K: Key + Ord, N: State + Ord> TimersCell<K, N> {
    pub(crate) fn open(mut context: StateContext, groups: Option<Rc<Groups>>) -> Result<Rc<Self>> {
        let restored = context.restored.take();
        let timers = TimerSet::new(groups);
        context.account.reserve(MemoryKind::Values, timers.memory_bytes(), "timers")?;
        let remembered = Remembered::new(&context);
        let (capture, given_up, codec_calls) = (None, Vec::new(), 0);
        let oversize = Oversize::new(&context.name, context.max_value_bytes);
        let mut pending =
            Pending { context, timers, capture, given_up, remembered, codec_calls, oversize };
        if let Some((image, blobs)) = restored {
            let mut remembered = Remembered::new(&pending.context);
            remembered.restore::<(Time, K), N>(&image, &blobs, |at, namespace, place| {
                pending.restore((at, namespace), place)
            })?;
            pending.remembered = remembered;
            pending.pack();
        }
        pending.remembered.keep_room::<(Time, K), N>()?;
        Ok(Rc::new(Self(RefCell::new(pending))))
    }

    /// Adds the timers that another store's checkpoint has of keys that are wanted.
    pub(crate) fn take(&self, part: &Part) -> Result<()> {
        let mut pending = self.enter()?;
        part.for_each_entry(
            |(_, key): &(Time, K)| key.key_hash(),
            |at, namespace: N| {
                pending.codec_calls += 1;
                pending.restore((at, namespace), Place::NONE)
            },
        )
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
        let mut pending = self.shared.0.borrow_mut();
        pending.check(self.shared.own(), &key)?;
        pending.insert(((at, key), namespace))
    }

    /// Cancels a timer of a namespace and returns whether there was one. Does nothing while its key
    /// group moves.
    pub fn cancel_in(&mut self, key: K, at: Time, namespace: N) -> bool {
        let mut pending = self.shared.0.borrow_mut();
        let stays = |groups: &Groups| groups.check(key.key_hash()).is_err();
        if pending.timers.groups().is_some_and(stays) {
            return false;
        }
        pending.remove(&((at, key), namespace))
    }

    /// Does the same as `pop_due`, with namespaces. Timers of equal time come in the order of keys,
    /// then of namespaces.
    pub fn pop_due_in(&mut self, watermark: Time) -> Option<(Time, K, N)> {
        let mut pending = self.shared.0.borrow_mut();
        if pending.timers.first()?.0.0 >= watermark {
            return None;
        }
        pending.pop().map(|((at, key), namespace)| (at, key, namespace))
    }

    /// Removes and returns the earliest timer, due or not, also at [`Time::MAX`].
    pub fn pop_first(&mut self) -> Option<(Time, K, N)> {
        let timer = self.shared.0.borrow_mut().pop();
        timer.map(|((at, key), namespace)| (at, key, namespace))
    }

    /// Removes up to `fuel` timers before `before` without firing them. Returns whether none is
    /// left. Cost: O(fuel).
    pub fn purge(&mut self, before: Time, fuel: usize) -> bool {
        let mut pending = self.shared.0.borrow_mut();
        for _ in 0..fuel.max(1) {
            if pending.timers.first().is_none_or(|timer| timer.0.0 >= before) {
                return true;
            }
            pending.pop();
        }
        pending.timers.first().is_none_or(|timer| timer.0.0 >= before)
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
        let mut pending = self.shared.0.borrow_mut();
        for _ in 0..fuel.max(1) {
            let next = pending.timers.sweep(sweep.after.as_ref());
            let Some(timer) = next.cloned() else {
                sweep.done = true;
                return;
            };
            if doomed(timer.0.0, &timer.0.1, &timer.1) {
                pending.remove(&timer);
            }
            sweep.after = Some(timer);
        }
    }

    /// Returns the time of the earliest timer.
    pub fn next_time(&self) -> Option<Time> {
        self.shared.0.borrow().timers.first().map(|((at, _), _)| *at)
    }

    /// Returns the number of pending timers.
    pub fn len(&self) -> u64 {
        self.shared.0.borrow().timers.len() as u64
    }

    /// Returns whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Key + Ord, N: State + Ord> TimersCell<K, N> {
    fn enter(&self) -> Result<std::cell::RefMut<'_, Pending<K, N>>> {
        self.0.try_borrow_mut().map_err(|_| Error::new(ErrorKind::InUse, "the timers are in use"))
    }
}

impl<K: Key + Ord, N: State + Ord> Hooks for TimersCell<K, N> {
    fn poisoned(&self) -> bool {
        false
    }

    fn tick(&self, work: usize) -> Result<usize> {
        let mut pending = self.enter()?;
        Ok((0..work).take_while(|_| pending.drop_some_left()).count())
    }

    /// What checkpoints that were given up have kept, and what is noted for the next one, which writes all timers then.
    fn reclaim(&self, bytes: u64) -> Result<u64> {
        let Ok(mut pending) = self.enter() else { return Ok(0) };
        let before = pending.context.account.used();
        let given = |pending: &Pending<K, N>| before - pending.context.account.used();
        while given(&pending) < bytes && pending.drop_some_left() {}
        if given(&pending) < bytes {
            pending.remembered.make_way();
        }
        Ok(given(&pending))
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        let account = |pending: &Pending<K, N>| {
            (pending.context.account.used(), pending.context.account.limit())
        };
        self.0.try_borrow().map_or((0, u64::MAX), |pending| account(&pending))
    }

    fn stats(&self) -> Result<TableStats> {
        let pending = self.enter()?;
        let mut stats = TableStats {
            live_keys: pending.timers.len() as u64,
            live_bytes: pending.context.account.used_for(MemoryKind::Values),
            codec_calls: pending.codec_calls,
            ..TableStats::default()
        };
        pending.remembered.describe(&mut stats);
        Ok(stats)
    }
}

impl<K: Key + Ord, N: State + Ord> Durable for TimersCell<K, N> {
    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.begin_checkpoint(blobs)?;
        loop {
            if let Some(image) = self.continue_checkpoint(blobs)? {
                return Ok(image);
            }
            self.enter()?.remembered.pause();
        }
    }

    fn begin_checkpoint(&self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        let mut pending = self.enter()?;
        pending.drop_some_left();
        pending.give_up_capture();
        let Pending { context, timers, capture, remembered, .. } = &mut *pending;
        let (account, entries) = (context.account.clone(), timers.len() as u64);
        remembered.begin::<(Time, K), N>(entries, account.used_for(MemoryKind::Values))?;
        *capture = Some(Capture::begin(account));
        Ok(None)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let mut pending = self.enter()?;
        pending.drop_some_left();
        let Pending { context, timers, capture, remembered, .. } = &mut *pending;
        let Some(capturing) = capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        remembered.plan();
        capturing.begin_share();
        let epoch = remembered.epoch();
        let image = remembered.step(blobs, |to| capturing.read(timers, epoch, to));
        if let Ok(Some(_)) = &image {
            *capture = None;
        }
        image.map_err(|error| error.with("state", &context.name))
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        // No call of a user's is ever inside.
        if let Ok(mut pending) = self.enter() {
            pending.give_up_capture();
            pending.remembered.decide(outcome);
        }
    }
}

impl<K: Key + Ord, N: State + Ord> Portable for TimersCell<K, N> {
    fn export(&self, visit: Visit<'_>) -> Result<()> {
        let (pending, mut encoded) = (self.enter()?, Encoded::default());
        pending.timers.iter().try_for_each(|((at, key), namespace)| {
            encoded.set(key, namespace)?;
            visit(Entry::of(key.key_hash(), at.0, &encoded))
        })
    }

    fn import(&self, entry: Entry<'_>) -> Result<()> {
        let (key, namespace) = Encoded::get::<K, N>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        self.enter()?.insert(((Time(entry.order), key), namespace)).map(drop)
    }
}

impl<K: Key + Ord, N: State + Ord> Movable for TimersCell<K, N> {
    fn extract(
        &self,
        group: KeyGroup,
        at: &mut moving::Place,
        fuel: usize,
        visit: Visit<'_>,
    ) -> Result<()> {
        let (pending, mut encoded) = (self.enter()?, Encoded::default());
        for _ in 0..fuel.max(1) {
            let after = at.after.as_ref().and_then(|last| last.downcast_ref::<Timer<K, N>>());
            let Some(timer) = pending.timers.next_of(group, after) else {
                at.cursor.done = true;
                break;
            };
            let ((time, key), namespace) = timer;
            encoded.set(key, namespace)?;
            visit(Entry::of(key.key_hash(), time.0, &encoded))?;
            at.after = Some(Rc::new(timer.clone()));
        }
        Ok(())
    }

    fn forget(&self, group: KeyGroup, at: &mut moving::Place, fuel: usize) -> Result<()> {
        let mut pending = self.enter()?;
        for _ in 0..fuel.max(1) {
            let Some(timer) = pending.timers.next_of(group, None).cloned() else {
                at.cursor.done = true;
                break;
            };
            pending.remove(&timer);
        }
        Ok(())
    }

    fn wake(&self, group: KeyGroup, awake: bool) {
        // No call of a user's is ever inside.
        let mut pending = self.0.borrow_mut();
        let before = pending.timers.memory_bytes();
        pending.timers.wake(group, awake);
        let account = &pending.context.account;
        account.adjust(MemoryKind::Values, before, pending.timers.memory_bytes());
    }
}

impl<K: Key + Ord, N: State + Ord> Drop for Pending<K, N> {
    fn drop(&mut self) {
        (self.capture, self.given_up) = (None, Vec::new());
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
