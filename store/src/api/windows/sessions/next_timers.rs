//! The timers of sessions that come next.
//!
//! A session's set says for when its timer is set, so a timer can be made again. All timers are in memory until they
//! take too much of it. Then the last ones are let go, and from then on those after a *bound* are not kept. When the
//! watermark comes to the bound, a pass over all sets brings in those that come next, as many as there is room for, and
//! moves the bound. It goes in steps with fuel, and begins ahead of that time once few timers are left.
//!
//! What it keeps true: the timer of each session that comes before the bound is in memory; others may be too. The
//! bound is in each checkpoint. While a pass is under way, what is set for a time that it brings in is kept as well: the
//! pass may be past that set.
//!
//! Cost: n sessions whose timers have room for m at a time take n / m passes of n reads until all have fired, of those
//! that are left each time. Timers of one time are not divided: there must be room for them.

use alluvium_layouts::Cursor;
use alluvium_pagestore::{ErrorKind, Key, Result, Time};

use super::super::progress::ProgressCell;
use super::SessionSets;
use crate::api::timers::Timers;

/// Timers that are let go together.
const LET_GO: usize = 256;
/// Sets that a step of a pass looks at, about, at least and at most.
const LOOKED: (usize, usize) = (64, 1024);

/// The timers that come next.
#[derive(Debug)]
pub(super) struct NextTimers<K: Key + Ord> {
    timers: Timers<K>,
    pass: Option<TimersPass>,
    /// A pass begins ahead of time when fewer timers are left: a part of what the last one left, and none if that did not
    /// move the bound.
    few: u64,
    /// The most that are kept, whatever memory there is.
    most: Option<usize>,
}

/// A pass over the sets.
#[derive(Clone, Copy, Debug)]
struct TimersPass {
    cursor: Cursor,
    /// The bound that holds when it is over.
    bound: Option<Time>,
    /// Records of other stores that had come when it began: their sets may have come where it has been.
    came: u64,
}

/// Whether a time comes before a bound.
fn is_before(at: Time, bound: Option<Time>) -> bool {
    bound.is_none_or(|bound| at < bound)
}

impl<K: Key + Ord> NextTimers<K> {
    pub(super) fn new(timers: Timers<K>) -> Self {
        Self { timers, pass: None, few: 0, most: None }
    }

    /// Keeps so many, whatever memory there is, and of the first one's time all: for tests.
    pub(super) fn keep_most(&mut self, most: usize) {
        self.most = Some(most);
    }

    fn are_too_many(&self) -> bool {
        self.timers.are_too_many() || self.most.is_some_and(|most| self.timers.len() > most as u64)
    }

    /// Sets a timer, if it comes next.
    ///
    /// # Errors
    /// If it is among the first ones and memory has no room.
    pub(super) fn set(&mut self, progress: &ProgressCell, key: &K, at: Time) -> Result<()> {
        let is_passed = |pass: &TimersPass| is_before(at, pass.bound);
        while is_before(at, progress.timers_bound()) || self.pass.as_ref().is_some_and(is_passed) {
            let error = match self.timers.set(key.clone(), at) {
                Ok(_) if self.are_too_many() => {
                    self.let_last_go(progress);
                    return Ok(());
                }
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if error.kind() != ErrorKind::OverBudget || !self.let_last_go(progress) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Cancels a timer, if it is in memory.
    pub(super) fn cancel(&mut self, key: K, at: Time) {
        self.timers.cancel(key, at);
    }

    /// Removes and returns the first timer before `watermark`, or the first one of all at the end of time; none if it
    /// is not known which that is.
    pub(super) fn pop(&mut self, progress: &ProgressCell, watermark: Time) -> Option<(Time, K)> {
        if !is_before(self.timers.next_time()?, progress.timers_bound()) {
            return None;
        }
        match watermark {
            Time::MAX => self.timers.pop_first().map(|(at, key, ())| (at, key)),
            _ => self.timers.pop_due(watermark),
        }
    }

    /// Whether timers before `watermark` may lack.
    pub(super) fn lack(&self, progress: &ProgressCell, watermark: Time) -> bool {
        progress.timers_bound().is_some_and(|bound| bound < watermark || watermark == Time::MAX)
    }

    /// Whether timers lack that come later, and it is time to bring them in.
    pub(super) fn are_few(&self, progress: &ProgressCell) -> bool {
        let are_few = self.pass.is_some() || self.timers.len() < self.few;
        progress.timers_bound().is_some() && are_few
    }

    /// Goes on with a pass over the sets, which it begins if none is under way, with about as much fuel. Returns what
    /// is left of that.
    ///
    /// # Errors
    /// Those of reading; if there is no memory for the first timers. The next call begins anew.
    /// [`ErrorKind::InUse`] while a key group is on its way.
    pub(super) fn bring_in<P, E>(
        &mut self,
        progress: &ProgressCell,
        sets: &mut (dyn SessionSets<K, P, E> + 'static),
        fuel: usize,
    ) -> Result<usize> {
        progress.check_none_moves("its timers are found when the other store has it")?;
        let came = progress.records_that_came();
        let pass = self.pass.filter(|pass| pass.came == came);
        let mut cursor = pass.map(|pass| pass.cursor).unwrap_or_default();
        if pass.is_none() {
            self.pass = Some(TimersPass { cursor, bound: None, came });
        }
        let (known, mut looked) = (progress.timers_bound(), 1);
        // The sets give no memory up while they are scanned.
        let mut room = self.timers.book_room().map(Some).inspect_err(|_| self.give_up())?;
        let scanned = sets.scan(&mut cursor, fuel.clamp(LOOKED.0, LOOKED.1), &mut |key, set| {
            room = None;
            looked += set.iter().len().max(1);
            if !progress.has_key(key) {
                // It has left, and is not removed yet.
                return Ok(());
            }
            let armed = set.iter().map(|session| session.2.0);
            let mut lacking = armed.filter(|at| !is_before(*at, known));
            lacking.try_for_each(|at| self.set(progress, key, at))
        });
        drop(room);
        let pass = self.pass.take();
        scanned.inspect_err(|_| self.give_up())?;
        match pass {
            Some(pass) if cursor.done => {
                let has_moved = is_before(known.unwrap_or(Time::MAX), pass.bound);
                self.few = if has_moved { self.timers.len() / 4 } else { 0 };
                progress.set_timers_bound(pass.bound);
            }
            pass => self.pass = pass.map(|pass| TimersPass { cursor, ..pass }),
        }
        Ok(fuel.saturating_sub(looked))
    }

    /// The next pass begins anew, once it is needed.
    fn give_up(&mut self) {
        (self.pass, self.few) = (None, 0);
    }

    /// Lets the last timers go, but none of the time of the first one. Says whether there were any. A key group that is
    /// on its way keeps its timers: the other store knows the bound of when it set out.
    fn let_last_go(&mut self, progress: &ProgressCell) -> bool {
        if progress.is_moving() {
            return false;
        }
        let Some(gone) = self.timers.let_last_go(LET_GO) else { return false };
        if progress.timers_bound().is_none() {
            self.few = self.timers.len() / 4;
        }
        let earlier = |bound: Option<Time>| Some(bound.map_or(gone, |bound| bound.min(gone)));
        progress.set_timers_bound(earlier(progress.timers_bound()));
        if let Some(pass) = &mut self.pass {
            pass.bound = earlier(pass.bound);
        }
        true
    }
}
