//! Timers: requests to be called for a key when event time reaches a point.
//!
//! Kept in memory in time order, part of every checkpoint. A set: the same time, key and namespace
//! twice is once. A namespace tells timers of one key apart, such as those of its windows; without
//! one it is `()` and takes nothing.

mod capture;
mod set;

use std::cell::RefCell;
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Images, Part, StateContext, TableStats, read_entries};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, Key, KeyGroup, MemoryKind, Result, State, StateImage,
    Time,
};

use crate::export::{Entry, Visit, check_hash};
use crate::moving::{Groups, Place};
use crate::state_cell::Hooks;
use capture::Capture;
use set::{Timer, TimerSet};

/// Pending timers. Open them with [`Store::timers`](crate::Store::timers), with namespaces by
/// [`Store::timers_in`](crate::Store::timers_in).
#[derive(Debug)]
pub struct Timers<K: Key + Ord, N: State + Ord = ()> {
    shared: Rc<TimersCell<K, N>>,
}

/// How far [`Timers::purge_where`] has come; start with `Sweep::default()`.
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
    /// The checkpoint being taken, or not decided yet.
    capture: Option<Capture<K, N>>,
    images: Images,
    codec_calls: u64,
}

impl<K: Key + Ord, N: State + Ord> Pending<K, N> {
    fn insert(&mut self, timer: Timer<K, N>) -> Result<bool> {
        let account = &self.context.account;
        let (heap, growth) = (heap_of(&timer), self.timers.growth_bytes(&timer));
        account.ensure(heap + growth, "a timer")?;
        let noted = self.prepare(&timer, heap + growth).then(|| timer.clone());
        let account = &self.context.account;
        let before = self.timers.memory_bytes();
        let new = self.timers.insert(timer);
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        if new {
            account.charge(MemoryKind::Values, heap);
            self.note(noted, true);
        }
        Ok(new)
    }

    /// Before a timer comes, which is about to take so many bytes, or goes; says whether a checkpoint is
    /// to be told.
    fn prepare(&mut self, timer: &Timer<K, N>, taking: u64) -> bool {
        let timers = &self.timers;
        let wants = |capture: &&mut Capture<K, N>| capture.wants(timers, timer);
        let Some(capture) = self.capture.as_mut().filter(wants) else { return false };
        capture.prepare(&self.context, timers, timer, taking);
        capture.wants(timers, timer)
    }

    fn note(&mut self, timer: Option<Timer<K, N>>, has_come: bool) {
        if let (Some(capture), Some(timer)) = (&mut self.capture, timer) {
            capture.note(timer, has_come);
        }
    }

    fn remove(&mut self, timer: &Timer<K, N>) -> bool {
        let is_noted = self.prepare(timer, 0);
        let before = self.timers.memory_bytes();
        let Some(known) = self.timers.remove(timer) else { return false };
        // What was kept may own more than what is equal to it.
        self.removed(before, &known);
        self.note(is_noted.then_some(known), false);
        true
    }

    fn pop(&mut self) -> Option<Timer<K, N>> {
        let first = self.capture.as_ref().and(self.timers.first()).cloned();
        let noted = first.filter(|first| self.prepare(first, 0));
        let before = self.timers.memory_bytes();
        let timer = self.timers.pop_first()?;
        self.removed(before, &timer);
        self.note(noted, false);
        Some(timer)
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
        let mut pending = Pending {
            context: context.clone(),
            timers,
            capture: None,
            images: Images::default(),
            codec_calls: 0,
        };
        if let Some((image, blobs)) = restored {
            read_entries::<(Time, K), N>(&context, &image, &blobs, |at, namespace| {
                pending.codec_calls += 1;
                pending.insert((at, namespace)).map(drop)
            })?;
            pending.images.restored(&image);
        }
        Ok(Rc::new(Self(RefCell::new(pending))))
    }

    /// Adds the timers that another store's checkpoint has of keys that are wanted.
    pub(crate) fn take(&self, part: &Part) -> Result<()> {
        let mut pending = self.enter()?;
        part.for_each_entry(
            |(_, key): &(Time, K)| key.key_hash(),
            |at, namespace: N| {
                pending.codec_calls += 1;
                pending.insert((at, namespace)).map(drop)
            },
        )
    }
}

impl<K: Key + Ord> Timers<K> {
    /// Asks for `key` at `at`; says whether that was new. At or before the watermark it is due at
    /// once. Cost: O(log n).
    pub fn set(&mut self, at: Time, key: K) -> Result<bool> {
        self.set_in(at, key, ())
    }

    /// Withdraws a timer and says whether there was one.
    pub fn cancel(&mut self, at: Time, key: K) -> bool {
        self.cancel_in(at, key, ())
    }

    /// Removes and returns the earliest timer that is due: one before `watermark`, which says
    /// that nothing earlier is still to come. Equal times come in key order. A timer set while
    /// firing is due at once if its time is. One at [`Time::MAX`], the end of time, is never due.
    pub fn pop_due(&mut self, watermark: Time) -> Option<(Time, K)> {
        self.pop_due_in(watermark).map(|(at, key, ())| (at, key))
    }
}

impl<K: Key + Ord, N: State + Ord> Timers<K, N> {
    pub(crate) fn new(shared: Rc<TimersCell<K, N>>) -> Self {
        Self { shared }
    }

    /// Asks for `key` in `namespace` at `at`; says whether that was new. Cost: O(log n).
    pub fn set_in(&mut self, at: Time, key: K, namespace: N) -> Result<bool> {
        let mut pending = self.shared.0.borrow_mut();
        pending.timers.groups().map_or(Ok(()), |groups| groups.check(key.key_hash()))?;
        pending.insert(((at, key), namespace))
    }

    /// Withdraws a timer of a namespace and says whether there was one. One whose key group is being
    /// moved stays.
    pub fn cancel_in(&mut self, at: Time, key: K, namespace: N) -> bool {
        let mut pending = self.shared.0.borrow_mut();
        let stays = |groups: &Groups| groups.check(key.key_hash()).is_err();
        if pending.timers.groups().is_some_and(stays) {
            return false;
        }
        pending.remove(&((at, key), namespace))
    }

    /// As `pop_due`, with the namespace; equal times come in the order of keys, then of
    /// namespaces.
    pub fn pop_due_in(&mut self, watermark: Time) -> Option<(Time, K, N)> {
        let mut pending = self.shared.0.borrow_mut();
        if pending.timers.first()?.0.0 >= watermark {
            return None;
        }
        pending.pop().map(|((at, key), namespace)| (at, key, namespace))
    }

    /// Removes and returns the earliest timer, due or not: what drains them all, those at
    /// [`Time::MAX`] too.
    pub fn pop_first(&mut self) -> Option<(Time, K, N)> {
        let timer = self.shared.0.borrow_mut().pop();
        timer.map(|((at, key), namespace)| (at, key, namespace))
    }

    /// Removes up to `fuel` timers before `before`, which do not fire, and says whether none is
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

    /// Looks at up to `fuel` timers from where `sweep` is and removes those that are `doomed`:
    /// all of a key, or all of a namespace. Timers that are set meanwhile may or may not be looked
    /// at. Cost: O(log n) for each that is looked at; all of them are, as they are in order of time.
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

    /// The time of the earliest timer.
    pub fn next_time(&self) -> Option<Time> {
        self.shared.0.borrow().timers.first().map(|((at, _), _)| *at)
    }

    /// Timers pending.
    pub fn len(&self) -> u64 {
        self.shared.0.borrow().timers.len() as u64
    }

    /// Whether no timer is pending.
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

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.begin_checkpoint(blobs)?;
        loop {
            if let Some(image) = self.continue_checkpoint(blobs)? {
                return Ok(image);
            }
            self.enter()?.capture.iter_mut().for_each(Capture::pause);
        }
    }

    fn begin_checkpoint(&self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        let pending = &mut *self.enter()?;
        pending.capture = Some(Capture::begin(&pending.context, &pending.timers)?);
        Ok(None)
    }

    fn continue_checkpoint(&self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        let pending = &mut *self.enter()?;
        let Some(capture) = &mut pending.capture else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        let advanced = capture.advance(&pending.context, &pending.timers);
        let image = advanced.map_err(|e| e.with("state", &pending.context.name))?;
        if let Some(image) = &image {
            pending.capture = None;
            pending.codec_calls += image.entries;
            pending.images.taken(image);
        }
        Ok(image)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        // No call of a user's is ever inside.
        if let Ok(mut pending) = self.enter() {
            pending.capture = None;
            let segments = pending.context.segments.clone();
            pending.images.decide(outcome, segments.as_ref());
        }
    }

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

    fn extract(
        &self,
        group: KeyGroup,
        at: &mut Place,
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

    fn forget(&self, group: KeyGroup, at: &mut Place, fuel: usize) -> Result<()> {
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

    fn tick(&self, _: usize) -> Result<usize> {
        Ok(0)
    }

    fn stats(&self) -> Result<TableStats> {
        let pending = self.enter()?;
        let mut stats = TableStats {
            live_keys: pending.timers.len() as u64,
            live_bytes: pending.context.account.used_for(MemoryKind::Values),
            codec_calls: pending.codec_calls,
            ..TableStats::default()
        };
        pending.images.describe(&mut stats);
        Ok(stats)
    }
}

impl<K: Key + Ord, N: State + Ord> Drop for Pending<K, N> {
    fn drop(&mut self) {
        self.capture = None;
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
