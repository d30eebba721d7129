//! The timers that come next, of timers that are in a map.
//!
//! All pending timers are in the map; those before a *bound* are here too, in order. They are found by a pass over the
//! map, in steps: it shows its timers in any order, and the first ones for which there is room stay. If there is no room
//! for one more, the last ones go, and the bound comes down.
//!
//! What it keeps true: each timer of the map that may fire and comes before the bound is here. While a pass is under way so
//! is each that was set, or that the pass has shown, before the bound that it is going to leave. The bound is a timer, so
//! that those of one time can be divided. Nothing is kept that was not booked before.

use std::rc::Rc;

use alluvium_layouts::Cursor;
use alluvium_pagestore::{Account, Key, MemoryKind, Result, Time};

use super::pending::PendingTimer;
use crate::api::sorted_blocks::SortedBlocks;

/// The share of memory that they may take; less of little memory, which is mostly what each state takes.
const SHARE: u64 = 4;
const LITTLE_SHARE: u64 = 8;
const LITTLE_MEMORY: u64 = 16 << 20;
/// Blocks that there is always memory for, with a table of them.
const BLOCKS_MIN: u64 = 4;
/// What is booked at once, as a part of what is booked already.
const AHEAD_SHARE: u64 = 4;

/// Up to where the timers of the map are known, in their order.
#[derive(Clone, Debug)]
enum Bound<T> {
    /// Those before this time.
    BeforeTime(Time),
    /// Those before this one, which is on the heap.
    Before(Rc<T>),
    /// All.
    All,
}

impl<K: Key + Ord, N: Key + Ord> Bound<PendingTimer<K, N>> {
    /// None of them.
    const NOTHING: Self = Self::BeforeTime(Time::MIN);

    fn has(&self, timer: &PendingTimer<K, N>) -> bool {
        match self {
            Self::BeforeTime(time) => timer.at < *time,
            Self::Before(bound) => *timer < **bound,
            Self::All => true,
        }
    }

    /// The first time that others may have than those it has.
    fn time(&self) -> Option<Time> {
        match self {
            Self::BeforeTime(time) => Some(*time),
            Self::Before(bound) => Some(bound.at),
            Self::All => None,
        }
    }

    /// Comes down to a timer, if it was later.
    fn lower_to(&mut self, timer: &Rc<PendingTimer<K, N>>) {
        if self.has(timer) {
            *self = Self::Before(timer.clone());
        }
    }

    /// Comes down to a time, if it was later.
    fn lower_to_time(&mut self, time: Time) {
        if self.time().is_none_or(|own| own >= time) {
            *self = Self::BeforeTime(time);
        }
    }

    /// The timer that it is, if it is one.
    fn timer(&self) -> Option<&Rc<PendingTimer<K, N>>> {
        match self {
            Self::Before(timer) => Some(timer),
            Self::BeforeTime(_) | Self::All => None,
        }
    }
}

/// What is known of the next timer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is the first one here, and due.
    Due,
    /// None is due.
    NoneDue,
    /// Which it is has to be found in the map.
    Unknown,
}

/// A pass over the map.
#[derive(Debug)]
struct TimersPass<T> {
    cursor: Cursor,
    /// The bound that holds when it is over.
    bound: Bound<T>,
    /// What would have to be booked for a timer that had no room where there was no other: the last such.
    refused: Option<u64>,
}

/// How often timers were looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PassCounts {
    /// Passes that were begun.
    pub(super) passes: u64,
    /// Timers that they looked at.
    pub(super) looked_at: u64,
}

/// The timers that come next.
#[derive(Debug)]
pub(super) struct NextTimers<K: Key + Ord, N: Key + Ord> {
    timers: SortedBlocks<PendingTimer<K, N>>,
    bound: Bound<PendingTimer<K, N>>,
    pass: Option<TimersPass<PendingTimer<K, N>>>,
    counts: PassCounts,
    /// The state of the map, by [number](NextTimers::refresh), that they were found in.
    found_in: (u64, u64),
    /// Whether a change has begun and has not ended, as a user's order has panicked.
    is_in_change: bool,
    /// Heap that `timers` own.
    heap: u64,
    account: Rc<Account>,
    booked: u64,
    least: u64,
    most: u64,
    /// As `most`; what was booked when memory was refused, until the next pass.
    limit: u64,
}

impl<K: Key + Ord, N: Key + Ord> NextTimers<K, N> {
    /// Knows none of the timers of a map, or all, if that is empty.
    ///
    /// # Errors
    /// If there is no memory for the least that it takes.
    pub(super) fn open(account: Rc<Account>, is_empty: bool) -> Result<Self> {
        let timers: SortedBlocks<PendingTimer<K, N>> = SortedBlocks::new();
        let least = timers.growth_bytes() * BLOCKS_MIN + Self::BOUNDS_BYTES;
        account.reserve(MemoryKind::Buffers, least, "the next timers")?;
        let memory = account.limit();
        let share = if memory < LITTLE_MEMORY { LITTLE_SHARE } else { SHARE };
        let most = (memory / share).max(least);
        Ok(Self {
            timers,
            bound: if is_empty { Bound::All } else { Bound::NOTHING },
            pass: None,
            counts: PassCounts::default(),
            found_in: (0, 0),
            is_in_change: false,
            heap: 0,
            account,
            booked: least,
            least,
            most,
            limit: most,
        })
    }

    /// Takes so many bytes at most, whatever memory there is, and as many as it takes at least: for tests.
    pub(super) fn take_most(&mut self, bytes: u64) {
        self.most = bytes.max(self.least);
        self.limit = self.most;
    }

    /// Forgets all, if the map is not in the state that is numbered so: timers have come or gone otherwise than by calls.
    pub(super) fn refresh(&mut self, number: (u64, u64)) {
        if self.found_in != number || self.is_in_change {
            self.forget();
            self.found_in = number;
        }
    }

    fn forget(&mut self) {
        self.timers = SortedBlocks::new();
        (self.bound, self.pass, self.heap) = (Bound::NOTHING, None, 0);
        self.is_in_change = false;
        self.give_back();
    }

    /// The map is empty.
    pub(super) fn know_all(&mut self) {
        (self.bound, self.pass) = (Bound::All, None);
    }

    pub(super) fn len(&self) -> u64 {
        self.timers.len() as u64
    }

    pub(super) fn booked_bytes(&self) -> u64 {
        self.booked
    }

    pub(super) fn counts(&self) -> PassCounts {
        self.counts
    }

    /// The first timer, if it is known to be the first of all.
    pub(super) fn first(&self) -> Option<&PendingTimer<K, N>> {
        self.timers.first().filter(|first| self.bound.has(first))
    }

    /// What is known of timers before `until`, or of any.
    pub(super) fn known(&self, until: Option<Time>) -> Known {
        let is_due = |at: Time| until.is_none_or(|until| at < until);
        match (self.first(), self.bound.time()) {
            (Some(first), _) if is_due(first.at) => Known::Due,
            (None, Some(time)) if is_due(time) => Known::Unknown,
            _ => Known::NoneDue,
        }
    }

    /// A time that no pending timer comes before; none if there is no timer.
    pub(super) fn earliest(&self) -> Option<Time> {
        self.first().map(|first| first.at).or(self.bound.time())
    }

    /// Whether a timer is before the bound, or before the one that a pass is going to leave.
    fn wants(&self, timer: &PendingTimer<K, N>) -> bool {
        self.bound.has(timer) || self.pass.as_ref().is_some_and(|pass| pass.bound.has(timer))
    }

    /// Whether a timer that is about to be set, or was found, has to be [inserted](NextTimers::insert). Then there is room for
    /// it: if there was none, the last ones go.
    pub(super) fn admits(&mut self, timer: &PendingTimer<K, N>) -> bool {
        self.is_in_change = true;
        let is_admitted = loop {
            if !self.wants(timer) {
                break false;
            }
            let needed = self.bytes_with(timer.owned_bytes());
            if self.book(needed) {
                break true;
            }
            match self.timers.pop_last() {
                Some(last) => self.let_go(last),
                None if self.give_up_bounds(timer.at) => {}
                None => self.refuse(timer.at, needed),
            }
        };
        self.is_in_change = false;
        is_admitted
    }

    /// Adds a timer that was admitted.
    pub(super) fn insert(&mut self, timer: PendingTimer<K, N>) {
        let heap = timer.owned_bytes();
        if self.timers.insert(timer) {
            self.heap += heap;
        }
    }

    /// The last timer is kept no longer.
    fn let_go(&mut self, last: PendingTimer<K, N>) {
        self.heap -= last.owned_bytes();
        let last = Rc::new(last);
        self.bound.lower_to(&last);
        if let Some(pass) = &mut self.pass {
            pass.bound.lower_to(&last);
        }
    }

    /// Lets bounds that are timers after this time come down to their times, so that they own nothing. Returns whether there
    /// were any.
    fn give_up_bounds(&mut self, at: Time) -> bool {
        let other = self.pass.as_mut().map(|pass| &mut pass.bound);
        let mut is_any = false;
        for bound in [Some(&mut self.bound), other].into_iter().flatten() {
            let time = bound.timer().map(|timer| timer.at).filter(|time| *time > at);
            time.into_iter().for_each(|time| *bound = Bound::BeforeTime(time));
            is_any |= time.is_some();
        }
        is_any
    }

    /// A timer of this time, for which so much would have to be booked, has no room though there is no other.
    fn refuse(&mut self, at: Time, needed: u64) {
        if let Some(pass) = &mut self.pass {
            pass.bound.lower_to_time(at);
            pass.refused = Some(needed);
        }
        self.bound.lower_to_time(at);
    }

    /// Removes a timer, if it is here.
    pub(super) fn remove(&mut self, timer: &PendingTimer<K, N>) {
        if let Some(known) = self.timers.remove(timer) {
            self.heap -= known.owned_bytes();
            self.give_back();
        }
    }

    /// Removes the first one.
    pub(super) fn pop(&mut self) -> Option<PendingTimer<K, N>> {
        let first = self.timers.pop_first()?;
        self.heap -= first.owned_bytes();
        self.give_back();
        Some(first)
    }
}

/// Passes over the map.
impl<K: Key + Ord, N: Key + Ord> NextTimers<K, N> {
    /// Before a step of a pass, which is begun if none is under way: books memory for as many timers as it may be shown, as
    /// far as there is some. The map gives none up while it is scanned. Returns where the step begins.
    pub(super) fn begin_step(&mut self, count: usize) -> Cursor {
        if self.pass.is_none() {
            self.counts.passes += 1;
            self.limit = self.most;
            let (cursor, bound, refused) = (Cursor::default(), Bound::All, None);
            self.pass = Some(TimersPass { cursor, bound, refused });
        }
        let bytes = (count * size_of::<PendingTimer<K, N>>() * 3 / 2) as u64;
        self.book(self.bytes_with(bytes).min(self.limit));
        self.pass.as_ref().map(|pass| pass.cursor).unwrap_or_default()
    }

    /// A pass looks at a timer, which may fire or not.
    pub(super) fn look_at(&mut self, timer: &PendingTimer<K, N>, may_fire: impl FnOnce() -> bool) {
        self.counts.looked_at += 1;
        if !self.bound.has(timer) && self.wants(timer) && may_fire() && self.admits(timer) {
            self.insert(timer.clone());
        }
    }

    /// A step of a pass has ended there.
    ///
    /// # Errors
    /// If there is no memory for a single timer.
    pub(super) fn end_step(&mut self, cursor: Cursor) -> Result<()> {
        let Some(pass) = self.pass.take() else { return Ok(()) };
        if !cursor.done {
            self.pass = Some(TimersPass { cursor, ..pass });
            return Ok(());
        }
        self.bound = pass.bound;
        match pass.refused {
            Some(needed) if self.timers.len() == 0 => self.book_all(needed),
            _ => Ok(()),
        }
    }
}

/// Memory.
impl<K: Key + Ord, N: Key + Ord> NextTimers<K, N> {
    /// What two bounds take without what they own.
    const BOUNDS_BYTES: u64 = 2 * size_of::<(PendingTimer<K, N>, [usize; 2])>() as u64;

    /// Bytes of the timers and one more, which owns so much, and of bounds.
    fn bytes_with(&self, heap: u64) -> u64 {
        let bound = self.bound.timer();
        let other = self.pass.as_ref().and_then(|pass| pass.bound.timer());
        let other = other.filter(|other| bound.is_none_or(|bound| !Rc::ptr_eq(bound, other)));
        let owned: u64 = bound.into_iter().chain(other).map(|timer| timer.owned_bytes()).sum();
        let blocks = self.timers.memory_bytes() + self.timers.growth_bytes();
        blocks + self.heap + heap + Self::BOUNDS_BYTES + owned
    }

    /// Books so many bytes in all, or some more, if it may have them and there is memory that is needed for nothing else.
    fn book(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.booked);
        if more == 0 {
            return true;
        }
        if bytes > self.limit {
            return false;
        }
        let ahead = more.max(self.booked / AHEAD_SHARE).min(self.limit - self.booked);
        let booked = [ahead, more].into_iter().find(|bytes| {
            let is_free = self.account.ensure_left(*bytes, "the next timers").is_ok();
            is_free && self.account.try_reserve(MemoryKind::Buffers, *bytes)
        });
        match booked {
            Some(bytes) => self.booked += bytes,
            None => self.limit = self.booked,
        }
        booked.is_some()
    }

    /// Books so many bytes in all, for a timer that comes first and takes more than the others may.
    fn book_all(&mut self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.booked);
        self.account.reserve(MemoryKind::Buffers, more, "the next timer")?;
        self.booked += more;
        Ok(())
    }

    /// Gives memory up to the map, which was refused some: the last half of the timers goes, and no more memory is taken until
    /// the next pass. Returns whether there was any beyond the least.
    pub(super) fn give_way(&mut self) -> bool {
        if self.booked <= self.least {
            return false;
        }
        self.is_in_change = true;
        for _ in 0..self.timers.len() / 2 {
            self.timers.pop_last().into_iter().for_each(|last| self.let_go(last));
        }
        self.is_in_change = false;
        self.timers.pack();
        let keeps = self.bytes_with(0).max(self.least);
        if keeps >= self.booked {
            return false;
        }
        self.account.release(MemoryKind::Buffers, self.booked - keeps);
        (self.booked, self.limit) = (keeps, keeps);
        true
    }

    /// Gives up what is booked beyond twice of what is needed.
    fn give_back(&mut self) {
        let keeps = (self.bytes_with(0) * 2).max(self.least);
        if self.booked / 2 > keeps {
            self.account.release(MemoryKind::Buffers, self.booked - keeps);
            self.booked = keeps;
        }
    }
}

impl<K: Key + Ord, N: Key + Ord> Drop for NextTimers<K, N> {
    fn drop(&mut self) {
        self.timers = SortedBlocks::new();
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
