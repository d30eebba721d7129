//! Runs a helper's thread and its owner one at a time: a seed then determines the order.
//!
//! The turn may change where either uses a simulated device, where the owner drives its helper, and
//! at the end of a job; seeded chance decides. A job can thus stop at any step of the device while
//! its owner continues, and jobs start late. The same seed and calls give the same order, whatever
//! the threads' speed.
//!
//! Invariant: the two never run at once. A panic on the helper's thread continues on the owner's.
//! If a thread ends its turn while it holds a lock that the other wants, both stop for ever: the
//! tested code has such a deadlock too.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::helper::Job;
use crate::{Error, Result};

/// Of so many chances the owner gives its turn away once, at a step of a device.
#[cfg(feature = "sim")]
const OWNER_STAYS: u64 = 4;
/// Of so many the helper does.
const HELPER_STAYS: u64 = 3;
/// Of so many calls that drive the helper one does not: it is late.
const LATE: u64 = 4;

/// The turns of an owner and a [helper](crate::Helper::in_turns). One helper after another can use
/// them; clones share them. `Simulated::take_turns` lets turns
/// change at the steps of a device.
#[derive(Clone)]
pub struct Turns(Arc<SharedTurns>);

struct SharedTurns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

struct TurnState {
    chance: u64,
    /// The helper's thread; none between two helpers.
    helper: Option<ThreadId>,
    is_helpers_turn: bool,
    jobs: VecDeque<Job>,
    is_working: bool,
    is_closing: bool,
    panic: Option<Box<dyn Any + Send>>,
    /// Times that the helper's turn ended within a job.
    interrupted: u64,
}

impl TurnState {
    fn has_work(&self) -> bool {
        self.helper.is_some() && (self.is_working || !self.jobs.is_empty())
    }

    /// Whether one of so many chances comes up.
    fn one_of(&mut self, chances: u64) -> bool {
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::hash::hash_word(self.chance).is_multiple_of(chances)
    }
}

impl Turns {
    /// Creates turns in the order of a seed.
    pub fn new(seed: u64) -> Self {
        let state = TurnState {
            chance: seed,
            helper: None,
            is_helpers_turn: false,
            jobs: VecDeque::new(),
            is_working: false,
            is_closing: false,
            panic: None,
            interrupted: 0,
        };
        Self(Arc::new(SharedTurns { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Returns how often a job of the helper was stopped while its owner continued.
    pub fn interrupted(&self) -> u64 {
        self.state().interrupted
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step: whose turn it is may end.
    #[cfg(feature = "sim")]
    pub(crate) fn step(&self) {
        let mut state = self.state();
        if is_helper(&state) {
            if state.one_of(HELPER_STAYS) {
                state.interrupted += 1;
                drop(self.wait_as_helper(self.give(state, false)));
            }
        } else if state.has_work() && state.one_of(OWNER_STAYS) {
            self.let_work(state);
        }
    }

    /// Hands over one job.
    pub(crate) fn submit(&self, job: Job) {
        self.state().jobs.push_back(job);
    }

    /// Gives the helper its turn, most often, and says whether it has work.
    pub(crate) fn drive(&self) -> bool {
        let mut state = self.state();
        let has_work = !is_helper(&state) && state.has_work();
        if has_work && !state.one_of(LATE) {
            self.let_work(state);
        }
        has_work
    }

    /// The helper's thread.
    pub(crate) fn thread(&self) -> Option<ThreadId> {
        self.state().helper
    }

    /// Starts the helper's thread.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut state = self.state();
        assert!(state.helper.is_none(), "one helper at a time takes turns");
        let turns = self.clone();
        let thread = std::thread::Builder::new()
            .name("alluvium-helper".into())
            .spawn(move || turns.work())
            .map_err(|e| Error::io("start a helper thread", "-", e))?;
        state.helper = Some(thread.thread().id());
        state.is_closing = false;
        Ok(())
    }

    /// Lets the helper do all that was given to it; its thread ends.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.is_closing = true;
        if is_helper(&state) {
            return;
        }
        while state.helper.is_some() {
            state = self.wait_as_owner(self.give(state, true));
        }
        raise(state);
    }

    /// The life of the helper's thread.
    fn work(&self) {
        loop {
            let mut state = self.wait_as_helper(self.state());
            if let Some(job) = state.jobs.pop_front() {
                state.is_working = true;
                drop(state);
                let done = catch_unwind(AssertUnwindSafe(job));
                state = self.state();
                state.is_working = false;
                let first = state.panic.take();
                state.panic = first.or(done.err());
            }
            let is_over = state.jobs.is_empty() && state.is_closing;
            if is_over {
                state.helper = None;
            }
            if is_over || state.jobs.is_empty() || state.one_of(HELPER_STAYS) {
                drop(self.give(state, false));
            }
            if is_over {
                return;
            }
        }
    }

    /// Ends the owner's turn until the helper's ends.
    fn let_work(&self, state: MutexGuard<'_, TurnState>) {
        raise(self.wait_as_owner(self.give(state, true)));
    }

    fn give<'a>(
        &'a self,
        mut state: MutexGuard<'a, TurnState>,
        to_helper: bool,
    ) -> MutexGuard<'a, TurnState> {
        state.is_helpers_turn = to_helper;
        self.0.changed.notify_all();
        state
    }

    fn wait_as_owner<'a>(&'a self, state: MutexGuard<'a, TurnState>) -> MutexGuard<'a, TurnState> {
        let waited = self.0.changed.wait_while(state, |state| state.is_helpers_turn);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_as_helper<'a>(&'a self, state: MutexGuard<'a, TurnState>) -> MutexGuard<'a, TurnState> {
        let waited = self.0.changed.wait_while(state, |state| !state.is_helpers_turn);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_helper(state: &TurnState) -> bool {
    state.helper == Some(std::thread::current().id())
}

/// Goes on with a panic of the helper's thread, on the owner's.
fn raise(mut state: MutexGuard<'_, TurnState>) {
    if let Some(panic) = state.panic.take().filter(|_| !std::thread::panicking()) {
        drop(state);
        resume_unwind(panic);
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Helper;
    use crate::io::{Device, Faults, Simulated};

    /// What happens on a device whose owner and helper create files.
    fn play(seed: u64) -> (Vec<String>, u64) {
        let (turns, device) = (Turns::new(seed), Simulated::new(1, Faults::none()));
        device.take_turns(&turns);
        device.start_trace();
        for round in 0..3 {
            let helper = Helper::in_turns(&turns).unwrap();
            for job in 0..4 {
                let device = device.clone();
                helper.submit(move || {
                    for at in 0..4 {
                        device.create(&format!("helper-{round}-{job}-{at}")).unwrap();
                    }
                });
                helper.drive();
            }
            for at in 0..20 {
                device.create(&format!("owner-{round}-{at}")).unwrap();
            }
        }
        (device.trace(), turns.interrupted())
    }

    #[test]
    fn a_seed_is_an_order_and_others_are_others() {
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let (order, interrupted) = play(seed);
            assert_eq!(order.len(), 3 * (4 * 4 + 20));
            assert!(interrupted > 0, "{order:?}");
            assert_eq!(play(seed), (order.clone(), interrupted));
            for by in ["helper", "owner"] {
                let of_one: Vec<_> = order.iter().filter(|step| step.contains(by)).collect();
                assert!(of_one.is_sorted_by_key(|step| {
                    let numbers = step.split('-').skip(1).map(|n| n.parse::<u32>().unwrap());
                    numbers.collect::<Vec<_>>()
                }));
            }
            orders.insert(order);
        }
        assert_eq!(orders.len(), 20);
    }

    #[test]
    fn a_panic_of_the_helper_comes_up_on_its_owner() {
        let turns = Turns::new(1);
        let helper = Arc::new(Helper::in_turns(&turns).unwrap());
        helper.submit(|| panic!("planned"));
        let caught = catch_unwind(AssertUnwindSafe(|| while helper.drive() {}));
        assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "planned");
    }
}
