//! The escape hatch: an operator of one's own on managed state and timers.
//!
//! Timers are ordered, set by (time, key), and kept with ONE capability: that of the earliest of
//! them. Timely's own notificator keeps one capability per time and sorts them on every schedule,
//! which takes 33 ms with 360,000 of them pending.

use alluvium::{Key, Result, Time, Timers};
use timely::ExchangeData;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::fault::Guard;
use crate::key_by::{Builder, Keyed, owner_pact};
use crate::spec::{OperatorState, Spec};

/// Most timers that are handed over in one call; a batch whose state accesses overlap.
const DUE_BATCH: usize = 1024;

/// What the closures of [`Stateful::stateful`] may do besides using their state.
#[derive(Debug)]
pub struct Context<'a, T, W: Key + Ord, R> {
    watermark: Time,
    time: T,
    timers: &'a mut Timers<W>,
    earliest_set: Option<Time>,
    changes: &'a mut Vec<(R, T, i64)>,
}

impl<T: EventTime, W: Key + Ord, R> Context<'_, T, W, R> {
    /// No event before this time is still to come.
    pub fn watermark(&self) -> Time {
        self.watermark
    }

    /// The timestamp of the rows at hand; for timers, of the earliest of them.
    pub fn time(&self) -> &T {
        &self.time
    }

    /// Asks to be called for `key` when the watermark has passed `at`. Asking twice for the same
    /// is asking once. Time and key are in the operator's state `id/timers`.
    ///
    /// # Errors
    /// The timer does not fit into memory.
    pub fn set_timer(&mut self, at: Time, key: W) -> Result<()> {
        self.timers.set(at, key)?;
        self.earliest_set = Some(self.earliest_set.map_or(at, |earliest| earliest.min(at)));
        Ok(())
    }

    /// Withdraws a timer and says whether there was one.
    pub fn cancel_timer(&mut self, at: Time, key: W) -> bool {
        self.timers.cancel(at, key)
    }

    /// Emits that `row` occurs `diff` times more from [`time`](Context::time) on.
    #[inline]
    pub fn emit(&mut self, row: R, diff: i64) {
        self.changes.push((row, self.time.clone(), diff));
    }

    /// [`emit`](Context::emit) from `at` on, which must not be before `time`; if it is, `time`
    /// counts.
    #[inline]
    pub fn emit_at(&mut self, at: Time, row: R, diff: i64) {
        self.changes.push((row, T::from_time(at).max(self.time.clone()), diff));
    }
}

/// Extension trait: operators of one's own.
pub trait Stateful<'scope, T: EventTime, K: Key, D> {
    /// An operator on state that `open` opens.
    ///
    /// `rows` is called with each batch of keyed rows as it arrives, in no order of times, and
    /// takes what it needs; batches suit [`Map::update_batch`](alluvium::Map::update_batch).
    /// `due` is called with timers that the watermark has passed, ordered by time and key. After
    /// an error of either, neither is called again; see the crate's documentation.
    ///
    /// # Errors
    /// Opening the state failed.
    fn stateful<S, W, R>(
        self,
        spec: Spec,
        open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, W, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &[(Time, W)], &mut Context<'_, T, W, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        W: Key + Ord,
        R: Clone + 'static;
}

impl<'scope, T, K, D, F> Stateful<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn stateful<S, W, R>(
        self,
        spec: Spec,
        open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
        mut rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, W, R>) -> Result<()>
        + 'static,
        mut due: impl FnMut(&mut S, &[(Time, W)], &mut Context<'_, T, W, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        W: Key + Ord,
        R: Clone + 'static,
    {
        let name = spec.id().to_owned();
        let opener = OperatorState::new(&self.state, spec)?;
        let mut state = open(&opener)?;
        let mut timers: Timers<W> = opener.timers()?;
        let pact = owner_pact(&self.state, &self.key);
        let (key, mut guard) = (self.key, Guard::<T>::new(&self.state));
        let (mut keyed, mut changes) = (Vec::<(K, D)>::new(), Vec::new());
        let mut fired: Vec<(Time, W)> = Vec::new();
        let stream = self.stream.unary_frontier::<Builder<_>, _, _, _>(pact, &name, |first, _| {
            // Timers of a restored checkpoint fire at their times.
            let mut held = timers.next_time().map(|at| first.delayed(&at_least(at, first.time())));
            drop(first);
            move |(input, frontier), output| {
                let watermark = watermark(frontier);
                input.for_each_time(|capability, batches| {
                    for batch in batches {
                        if !guard.admits(&capability) {
                            return;
                        }
                        keyed.clear();
                        keyed.extend(batch.drain(..).map(|row| (key(&row), row)));
                        let mut context = Context {
                            watermark,
                            time: capability.time().clone(),
                            timers: &mut timers,
                            earliest_set: None,
                            changes: &mut changes,
                        };
                        let done = rows(&mut state, &mut keyed, &mut context);
                        if let Some(earliest) = context.earliest_set {
                            let at = at_least(earliest, capability.time());
                            if held.as_ref().is_none_or(|held| *held.time() > at) {
                                held = Some(capability.delayed(&at, 0));
                            }
                        }
                        guard.check(&capability, done);
                        output.session(&capability).give_iterator(changes.drain(..));
                    }
                });
                while let Some(capability) = held.as_mut().filter(|_| !guard.is_closed()) {
                    fired.clear();
                    while fired.len() < DUE_BATCH {
                        let Some(timer) = timers.pop_due(watermark) else { break };
                        fired.push(timer);
                    }
                    let Some((earliest, _)) = fired.first() else { break };
                    downgrade(capability, *earliest);
                    let mut context = Context {
                        watermark,
                        time: capability.time().clone(),
                        timers: &mut timers,
                        earliest_set: None,
                        changes: &mut changes,
                    };
                    let done = due(&mut state, &fired, &mut context);
                    output.session(&*capability).give_iterator(changes.drain(..));
                    if let Err(error) = done {
                        guard.close(capability.clone(), error);
                    }
                }
                match (timers.next_time(), held.as_mut()) {
                    // Timers at the end of time never fire and must not keep the dataflow alive.
                    (Some(next), Some(capability)) if !frontier.is_empty() => {
                        downgrade(capability, next);
                    }
                    _ => held = None,
                }
            }
        });
        Ok(stream)
    }
}

/// The timestamp of `at`, or `least` if that is later.
fn at_least<T: EventTime>(at: Time, least: &T) -> T {
    T::from_time(at).max(least.clone())
}

/// Moves `capability` on to `at`, unless it is there or past it.
fn downgrade<T: EventTime>(capability: &mut Capability<T>, at: Time) {
    let at = at_least(at, capability.time());
    if at != *capability.time() {
        capability.downgrade(&at);
    }
}
