//! Removing entries that are over, a little with each write.
//!
//! A pass over what is in memory begins whenever the time has moved by an eighth of the time to live,
//! and goes on with writes and ticks. So an entry that nobody asks for is gone an eighth of the time
//! to live after it was over, plus the time of a pass; and all passes together look at an entry eight
//! times per time to live, whatever the number of writes. Segments on storage are the layout's, and
//! the compactor's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use alluvium_layouts::{Cursor, ExpiryPass, Touched};
use alluvium_pagestore::{Result, Time};

use super::lifetime::Lifetime;

/// Passes in a time to live.
const PASSES: i64 = 8;

/// How the entries of one table are removed when they are over.
#[derive(Debug)]
pub(crate) struct Sweeping {
    lifetime: Rc<Lifetime>,
    /// The pass under way.
    pass: RefCell<Option<SweepPass>>,
    /// What the last pass, or the one under way, was for.
    swept_to: Cell<Time>,
    /// Whether it may have missed some.
    again: Cell<bool>,
}

/// An [`ExpiryPass`] between two steps, whatever the values are.
#[derive(Debug)]
pub(crate) struct SweepPass {
    to: Time,
    pub(crate) cursor: Cursor,
    least: Time,
    is_whole: bool,
    looked: u64,
    removed: u64,
}

impl SweepPass {
    fn of<V>(pass: &ExpiryPass<V>) -> Self {
        let &ExpiryPass { to, cursor, least, is_whole, looked, removed, .. } = pass;
        Self { to, cursor, least, is_whole, looked, removed }
    }

    fn new(to: Time) -> Self {
        let (cursor, least) = (Cursor::default(), Time::MAX);
        Self { to, cursor, least, is_whole: true, looked: 0, removed: 0 }
    }

    /// Goes on with it over values that were touched last when `touched` says.
    pub(crate) fn go_on<V>(
        &mut self,
        touched: Touched<V>,
        step: impl FnOnce(&mut ExpiryPass<V>) -> Result<()>,
    ) -> Result<()> {
        let &mut Self { to, cursor, least, is_whole, looked, removed } = self;
        let mut pass = ExpiryPass { touched, to, cursor, least, is_whole, looked, removed };
        let stepped = step(&mut pass);
        *self = Self::of(&pass);
        stepped
    }
}

/// Removes some entries of a table that are over.
type SweepStep<'s> = &'s mut dyn FnMut(&mut SweepPass, usize) -> Result<()>;

impl Sweeping {
    pub(crate) fn new(lifetime: Rc<Lifetime>) -> Self {
        let (swept_to, again) = (Cell::new(Time::MIN), Cell::new(false));
        Self { lifetime, pass: RefCell::new(None), swept_to, again }
    }

    /// How long entries live without a touch.
    pub(crate) fn life_nanos(&self) -> u64 {
        self.lifetime.nanos().unsigned_abs()
    }

    /// What was touched last before this is over at this moment.
    pub(crate) fn over(&self) -> Time {
        self.lifetime.known().over
    }

    /// A value came from elsewhere: the time was at least when it was touched.
    ///
    /// # Errors
    /// Those of a time that jumps too far.
    pub(crate) fn saw(&self, touched: Time) -> Result<()> {
        self.lifetime.advance(touched)
    }

    /// Entries that were removed, and those that were looked at.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.lifetime.removed.get(), self.lifetime.looked.get())
    }

    /// Has `step` look at about `fuel` entries, if a pass is under way or due; says at how many.
    /// `idle`: there is time to go over again what a pass may have missed.
    pub(crate) fn step(&self, fuel: usize, idle: bool, step: SweepStep<'_>) -> Result<usize> {
        let mut under_way = self.pass.borrow_mut();
        if under_way.is_none() {
            let over = self.lifetime.moment()?.over;
            if !self.is_due(over, idle) {
                return Ok(0);
            }
            self.swept_to.set(over);
            *under_way = Some(SweepPass::new(over));
        }
        let pass = under_way.as_mut().expect("begun above");
        let (looked, removed, position) = (pass.looked, pass.removed, pass.cursor.position);
        let stepped = step(pass, fuel);
        let lifetime = &self.lifetime;
        lifetime.looked.set(lifetime.looked.get() + pass.looked - looked);
        lifetime.removed.set(lifetime.removed.get() + pass.removed - removed);
        stepped?;
        let moved = pass.cursor.position.abs_diff(position);
        let done = (pass.looked - looked).max(moved).min(fuel as u64);
        if pass.cursor.done {
            self.again.set(!pass.is_whole);
            *under_way = None;
        }
        Ok(done as usize)
    }

    fn is_due(&self, over: Time, idle: bool) -> bool {
        let (last, every) = (self.swept_to.get(), (self.lifetime.nanos() / PASSES).max(1));
        let has_moved = over > last && (last == Time::MIN || over >= last.plus(every));
        has_moved || (idle && self.again.get())
    }
}
