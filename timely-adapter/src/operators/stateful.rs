//! The escape hatch: an operator of one's own on managed state and timers.
//!
//! Timers are ordered, set by (time, key), and kept with ONE capability: that of the earliest of
//! them. Timely's own notificator keeps one capability per time and sorts them on every schedule,
//! which takes 33 ms with 360,000 of them pending.

use alluvium::moving::RowKeys;
use alluvium::{Key, Result, Time, Timers};
use timely::ExchangeData;
use timely::dataflow::operators::Capability;

use crate::Changes;
use crate::event_time::EventTime;
use crate::intake::{EmitRight, Intake, IntakeWork, PreparedIntake};
use crate::job::worker::WorkerState;
use crate::operators::key_by::Keyed;
use crate::operators::shell::{OperatorBody, RowOutput, StepBounds, timed};
use crate::operators::spec::{OperatorState, Spec};

/// Most timers that are handed over in one call; a batch whose state accesses overlap.
const DUE_BATCH: usize = 1024;
/// Most timers whose keys wait that are passed over to find others.
const WAITING_MAX: usize = 1024;
/// Most timers that fire each time the operator is scheduled; the others, also those that these set,
/// fire the next time, before any input is taken.
const STEP_MAX: usize = 16 * DUE_BATCH;

/// Gives closures of [`Stateful::stateful`] the time, timers and the output.
#[derive(Debug)]
pub struct Context<'a, T, K: Key + Ord, R> {
    watermark: Time,
    time: T,
    timers: &'a mut Timers<K>,
    earliest_set: Option<Time>,
    changes: &'a mut Vec<(R, T, i64)>,
}

impl<T: EventTime, K: Key + Ord, R> Context<'_, T, K, R> {
    /// Returns the operator's watermark: no earlier event is still to come, from its input, from a
    /// read, or with a key group. So state that is advanced to it never passes a waiting row.
    /// Timers of keys that do not wait fire meanwhile and see a watermark just past their own
    /// times.
    pub fn watermark(&self) -> Time {
        self.watermark
    }

    /// Returns the timestamp of the rows at hand; for timers, that of the earliest of them.
    pub fn time(&self) -> &T {
        &self.time
    }

    /// Requests a call for `key` when the watermark has passed `at`. A timer that is set twice is
    /// one timer. Time and key are kept in the operator's state `id/timers`.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium::ErrorKind::OverBudget) if the timer does not fit into
    /// memory.
    pub fn set_timer(&mut self, key: K, at: Time) -> Result<()> {
        self.timers.set(key, at)?;
        self.earliest_set = Some(self.earliest_set.map_or(at, |earliest| earliest.min(at)));
        Ok(())
    }

    /// Cancels a timer and returns whether there was one.
    pub fn cancel_timer(&mut self, key: K, at: Time) -> bool {
        self.timers.cancel(key, at)
    }

    /// Emits that `row` occurs `diff` times more from [`time`](Context::time) on.
    #[inline]
    pub fn emit(&mut self, row: R, diff: i64) {
        self.changes.push((row, self.time.clone(), diff));
    }

    /// Emits from `at` on, or from [`time`](Context::time) if `at` is before it.
    #[inline]
    pub fn emit_at(&mut self, at: Time, row: R, diff: i64) {
        self.changes.push((row, T::from_time(at).max(self.time.clone()), diff));
    }
}

/// Extension trait: operators with state and timers of your own.
///
/// ```
/// use alluvium::{SECOND, Time};
/// use alluvium_timely::{KeyBy, NodeConfig, Spec, Stateful, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// // Tells how often a user came, a minute after the first visit.
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         let visits = [("ann".to_owned(), 5i64), ("bob".to_owned(), 7), ("ann".to_owned(), 9)];
///         visits
///             .to_stream(scope)
///             .container::<Vec<_>>()
///             .key_by(state, |(user, _)| user.clone())
///             .stateful(
///                 Spec::new("visits"),
///                 |states| states.map::<String, u64>("count"),
///                 |count, rows, context| {
///                     let mut applied = 0;
///                     let done = rows.iter().try_for_each(|(user, (_, at))| {
///                         // The timer first: if the update fails, both are done again.
///                         if !count.contains(user)? {
///                             context.set_timer(user.clone(), Time(at + 60 * SECOND))?;
///                         }
///                         count.update(user, || 0, |count| *count += 1)?;
///                         applied += 1;
///                         Ok(())
///                     });
///                     rows.drain(..applied); // the rest is passed again after the error
///                     done
///                 },
///                 |count, due, context| {
///                     for (at, user) in due.drain(..) {
///                         if let Some(visits) = count.take(&user)? {
///                             context.emit_at(at, (user, visits), 1);
///                         }
///                     }
///                     Ok(())
///                 },
///             )?
///             .inspect(|((user, visits), _, _)| println!("{user} came {visits} times"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait Stateful<'scope, T: EventTime, K: Key + Ord, D> {
    /// Builds an operator on the state that `open` opens.
    ///
    /// `rows` gets batches of keyed rows of one time, in order of arrival per key; batches suit
    /// [`Map::update_batch`](alluvium::Map::update_batch). `due` gets timers that the watermark has
    /// passed, ordered by time and key. A key's timer comes after all earlier rows of the key. Rows
    /// and timers whose keys are on storage wait for the read; the others continue.
    ///
    /// # Errors
    /// Those of opening the state; [`ErrorKind::OverBudget`](alluvium::ErrorKind::OverBudget)
    /// without memory for waiting records.
    ///
    /// An error of `rows` or `due` ends the run, unless [`Fault`](crate::Fault) says that it
    /// passes: then the operator calls the closure again later with what is left in its vector. So
    /// take out what you have applied (see
    /// [`BatchError::leave_rest`](alluvium::states::BatchError::leave_rest)). After `Ok` everything counts
    /// as applied. If a row causes several writes, all but the last must be safe to repeat. So set
    /// a timer before you change a value.
    fn stateful<S, R, L>(
        self,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        R: Clone + 'static,
        L: Clone;
}

impl<'scope, T, K, D, F> Stateful<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn stateful<S, R, L>(
        self,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        R: Clone + 'static,
        L: Clone,
    {
        let name = spec.id().to_owned();
        let opener = OperatorState::of_closures(&self.state, spec)?;
        let (body, prepared) =
            begin::<T, K, D, _, _, _, _, _>(&self.state, &opener, open, rows, due)?;
        Ok(timed(self, &name, prepared, body))
    }
}

type Begun<S, T, K, R, A, B> = (Closures<S, T, K, R, A, B>, PreparedIntake<K>);

/// Opens the operator's state and timers, and books what is parked.
pub(crate) fn begin<T: EventTime, K: Key + Ord, D, L: Clone, S, R, A, B>(
    worker: &WorkerState,
    opener: &OperatorState<'_, L>,
    open: impl FnOnce(&OperatorState<'_, L>) -> Result<S>,
    rows: A,
    due: B,
) -> Result<Begun<S, T, K, R, A, B>> {
    let state = open(opener)?;
    let timers = opener.timers()?;
    let prepared = PreparedIntake::<K>::new::<T, D>(worker, opener)?;
    let body = Closures {
        state,
        timers,
        keys: opener.rows(),
        held: None,
        changes: Vec::new(),
        fired: Vec::new(),
        waiting: Vec::new(),
        in_step: 0,
        unfinished: None,
        seen: Time::MIN,
        arriving: Time::MAX,
        rows,
        due,
    };
    Ok((body, prepared))
}

/// The operator's state and closures.
pub(crate) struct Closures<S, T: EventTime, K: Key + Ord, R, A, B> {
    state: S,
    timers: Timers<K>,
    /// The only keys that the closures may write, if these are not all.
    keys: Option<RowKeys>,
    /// Of the earliest timer, or earlier.
    held: Option<Capability<T>>,
    changes: Vec<(R, T, i64)>,
    /// Timers that are being handed over.
    fired: Vec<(Time, K)>,
    /// Timers that are due and whose keys wait, while others are looked at.
    waiting: Vec<(Time, K)>,
    /// Timers that have fired in this step.
    in_step: usize,
    /// The watermark of a step that had no more fuel for its timers.
    unfinished: Option<Time>,
    /// The watermark that is seen.
    seen: Time,
    /// The least time of what waits outside of the intake, as for key groups that are on their way.
    arriving: Time,
    rows: A,
    due: B,
}

impl<S, T, K, D, R, A, B> OperatorBody<T, K, D> for Closures<S, T, K, R, A, B>
where
    S: 'static,
    T: EventTime,
    K: Key + Ord,
    D: 'static,
    R: Clone + 'static,
    A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
{
    type Row = (R, T, i64);

    /// Hands rows or timers to their closure and emits what comes of it.
    fn apply(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, D>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> Result<()> {
        let waiting = right.least_waiting().map_or(Time::MAX, T::time).min(self.arriving);
        let are_timers = matches!(work, IntakeWork::Timers(_));
        match (&self.keys, &work) {
            (Some(keys), IntakeWork::Rows(rows)) => {
                keys.begin(rows.iter().map(|(key, _)| key.key_hash()))
            }
            (Some(keys), IntakeWork::Timers(due)) => {
                keys.begin(due.iter().map(|(_, key)| key.key_hash()))
            }
            (None, _) => {}
        }
        let mut context = Context {
            watermark: self.seen.min(waiting),
            time: right.time().clone(),
            timers: &mut self.timers,
            earliest_set: None,
            changes: &mut self.changes,
        };
        let done = match work {
            IntakeWork::Rows(rows) => {
                context.watermark = context.watermark.min(context.time.time());
                (self.rows)(&mut self.state, rows, &mut context)
            }
            IntakeWork::Timers(timers) => {
                // A timer sees that its time is over, though rows of other keys wait that are before it.
                let last = timers.iter().map(|(at, _)| *at).max().unwrap_or(Time::MIN);
                context.watermark = self.seen.min(waiting.max(last.plus(1)));
                (self.due)(&mut self.state, timers, &mut context)
            }
        };
        if let Some(earliest) = context.earliest_set {
            let at = at_least(earliest, right.time());
            if self.held.as_ref().is_none_or(|held| *held.time() > at) {
                self.held = Some(right.delayed(&at));
            }
        }
        if let Some(keys) = &self.keys {
            keys.end(are_timers, done.is_ok());
        }
        output.session(right).give_iterator(self.changes.drain(..));
        done
    }

    fn advance(
        &mut self,
        now: StepBounds,
        intake: &mut Intake<T, K, D>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> bool {
        self.seen = now.limit;
        self.fire(intake, output);
        self.hold_next(now.has_ended);
        self.owe(now)
    }

    /// Timers of a restored checkpoint fire at their times.
    fn begin(&mut self, first: Capability<T>) {
        let earliest = self.timers.next_time();
        self.held = earliest.map(|at| first.delayed(&at_least(at, first.time())));
    }

    fn unfinished(&self) -> Option<Time> {
        self.unfinished
    }

    fn set_watermark(&mut self, watermark: Time) {
        self.seen = watermark;
    }

    fn set_arriving(&mut self, arriving: Time) {
        self.arriving = arriving;
    }

    /// Timers have come with it, none of them before the time of this capability.
    fn group_arrived(&mut self, right: &Capability<T>) {
        let Some(earliest) = self.timers.next_time() else { return };
        let at = at_least(earliest, right.time());
        if self.held.as_ref().is_none_or(|held| *held.time() > at) {
            self.held = Some(right.delayed(&at));
        }
    }
}

impl<S, T, K, R, A, B> Closures<S, T, K, R, A, B>
where
    S: 'static,
    T: EventTime,
    K: Key + Ord,
    R: Clone + 'static,
{
    /// Ends a step, whose timers before the limit were to fire. Says whether some are left.
    fn owe(&mut self, now: StepBounds) -> bool {
        let is_cut = std::mem::take(&mut self.in_step) >= STEP_MAX;
        let is_left = is_cut && self.timers.next_time().is_some_and(|at| at < now.limit);
        self.unfinished = is_left.then_some(now.watermark);
        is_left
    }

    /// Holds the time of the next timer, and no earlier one.
    fn hold_next(&mut self, is_last: bool) {
        match (self.timers.next_time(), &mut self.held) {
            // Timers at the end of time never fire and must not keep the dataflow alive.
            (Some(next), Some(held)) if !(is_last && next == Time::MAX) => downgrade(held, next),
            _ => self.held = None,
        }
    }

    /// Hands over the timers before the time that is seen. Those whose keys wait stay among the others, in
    /// their order: rows that wait before them may set others, or withdraw them.
    fn fire<D: 'static>(
        &mut self,
        intake: &mut Intake<T, K, D>,
        output: &mut RowOutput<'_, T, (R, T, i64)>,
    ) where
        A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    {
        let mut fired = std::mem::take(&mut self.fired);
        // Of the first that waits.
        let mut first: Option<Capability<T>> = None;
        while intake.takes_timers() && self.waiting.len() < WAITING_MAX && self.in_step < STEP_MAX {
            let Some(mut capability) = self.held.take() else { break };
            let mut outcome = Ok(());
            while fired.len() < DUE_BATCH
                && self.waiting.len() < WAITING_MAX
                && outcome.is_ok()
                && intake.takes_timers()
            {
                let Some((at, key)) = self.timers.pop_due(self.seen) else { break };
                let right = || capability.delayed(&at_least(at, capability.time()));
                match intake.parks_timer(&key, right) {
                    Ok(true) => {
                        first.get_or_insert_with(right);
                        self.waiting.push((at, key));
                    }
                    Ok(false) => fired.push((at, key)),
                    Err(error) => {
                        fired.push((at, key));
                        outcome = Err(error);
                    }
                }
            }
            let Some(&(earliest, _)) = fired.first() else {
                self.held = Some(capability);
                break;
            };
            downgrade(&mut capability, earliest);
            self.in_step += fired.len();
            match outcome {
                Ok(()) => {
                    let apply = |right: &EmitRight<'_, T>, work: IntakeWork<'_, K, D>| {
                        self.apply(right, work, output)
                    };
                    intake.fire(&capability, &mut fired, apply);
                }
                Err(error) => intake.stop(&EmitRight::held(&capability), error),
            }
            for (at, key) in fired.drain(..) {
                // Their memory was given back when they were taken out.
                if let Err(error) = self.timers.set(key, at) {
                    intake.stop(&EmitRight::held(&capability), error);
                }
            }
            if self.held.as_ref().is_none_or(|held| held.time() > capability.time()) {
                self.held = Some(capability);
            }
        }
        self.fired = fired;
        // A key may have found all buffers taken by reads that have ended: no end of a read will have
        // the operator scheduled for it.
        intake.show();
        let Some(first) = first else { return };
        for (at, key) in self.waiting.drain(..) {
            // Their memory was given back when they were taken out.
            if let Err(error) = self.timers.set(key, at) {
                intake.stop(&EmitRight::held(&first), error);
            }
        }
        if self.held.as_ref().is_none_or(|held| held.time() > first.time()) {
            self.held = Some(first);
        }
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
