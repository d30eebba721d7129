//! The escape hatch: an operator of one's own on managed state and timers.
//!
//! Timers are ordered, set by (time, key), and kept with ONE capability: that of the earliest of
//! them. Timely's own notificator keeps one capability per time and sorts them on every schedule,
//! which takes 33 ms with 360,000 of them pending.

use alluvium::{Key, Result, RowKeys, Time, Timers};
use timely::ExchangeData;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilderSession;
use timely::dataflow::operators::generic::operator::Operator;

use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::intake::{Intake, Prepared, Right, Work};
use crate::key_by::{Builder, Keyed, owner_pact};
use crate::spec::{OperatorState, Spec};
use crate::worker::WorkerState;

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
    /// [`BatchError::leave_rest`](alluvium::BatchError::leave_rest)). After `Ok` everything counts
    /// as applied. If a row causes several writes, all but the last must be safe to repeat. So set
    /// a timer before you change a value.
    fn stateful<S, R>(
        self,
        spec: Spec,
        open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        R: Clone + 'static;
}

impl<'scope, T, K, D, F> Stateful<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn stateful<S, R>(
        self,
        spec: Spec,
        open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        R: Clone + 'static,
    {
        let name = spec.id().to_owned();
        let opener = OperatorState::of_closures(&self.state, spec)?;
        let (mut body, prepared) =
            begin::<T, K, D, _, _, _, _>(&self.state, &opener, open, rows, due)?;
        let pact = owner_pact(&self.state, &self.key);
        let (key, scope) = (self.key, self.stream.scope());
        let mut fired: Vec<(Time, K)> = Vec::new();
        let stream =
            self.stream.unary_frontier::<Builder<_>, _, _, _>(pact, &name, |first, info| {
                let mut intake = prepared.start::<T, D>(scope, &info);
                let activator = scope.activator_for(info.address.clone());
                body.hold_restored(first);
                move |(input, frontier), output| {
                    let owed = body.owed();
                    let watermark = owed.unwrap_or_else(|| watermark(frontier));
                    let limit = limit_of(watermark, &intake);
                    intake.resume(|right, work| body.apply(limit, right, work, output));
                    if owed.is_some() {
                        // Input waits until the timers have fired that were due before it.
                        let limit = limit_of(watermark, &intake);
                        body.fire(limit, &mut fired, &mut intake, output);
                        body.hold_next(frontier.is_empty());
                        body.owe(watermark, limit);
                        activator.activate();
                        return;
                    }
                    intake.take_in(
                        input,
                        |row| (key(&row), row),
                        |right, work| body.apply(watermark, right, work, output),
                    );
                    let limit = limit_of(watermark, &intake);
                    body.fire(limit, &mut fired, &mut intake, output);
                    body.hold_next(frontier.is_empty());
                    if body.owe(watermark, limit) {
                        activator.activate();
                    }
                }
            });
        Ok(stream)
    }
}

type Begun<S, T, K, R, A, B> = (Body<S, T, K, R, A, B>, Prepared<K>);

/// Opens the operator's state and timers, and books what is parked.
pub(crate) fn begin<T: EventTime, K: Key + Ord, D, S, R, A, B>(
    worker: &WorkerState,
    opener: &OperatorState<'_>,
    open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
    rows: A,
    due: B,
) -> Result<Begun<S, T, K, R, A, B>> {
    let state = open(opener)?;
    let timers = opener.timers()?;
    let prepared = Prepared::<K>::new::<T, D>(worker, opener)?;
    let (held, changes, waiting) = (None, Vec::new(), Vec::new());
    let (in_step, owed, arriving, keys) = (0, None, Time::MAX, opener.rows());
    let body =
        Body { state, timers, keys, held, changes, waiting, in_step, owed, arriving, rows, due };
    Ok((body, prepared))
}

/// How far the operator's own time is: the watermark, but not past what was not applied yet.
pub(crate) fn limit_of<T: EventTime, K: Key, D>(watermark: Time, intake: &Intake<T, K, D>) -> Time {
    intake.horizon().map_or(watermark, |time| time.time().min(watermark))
}

/// The operator's state and closures.
pub(crate) struct Body<S, T: EventTime, K: Key + Ord, R, A, B> {
    state: S,
    timers: Timers<K>,
    /// The only keys that the closures may write, if these are not all.
    keys: Option<RowKeys>,
    /// Of the earliest timer, or earlier.
    held: Option<Capability<T>>,
    changes: Vec<(R, T, i64)>,
    /// Timers that are due and whose keys wait, while others are looked at.
    waiting: Vec<(Time, K)>,
    /// Timers that have fired in this step.
    in_step: usize,
    /// The watermark of a step that had no more fuel for its timers.
    owed: Option<Time>,
    /// The least time of what waits outside of the intake, as for key groups that are on their way.
    arriving: Time,
    rows: A,
    due: B,
}

pub(crate) type Output<'a, T, R> = OutputBuilderSession<'a, T, Builder<(R, T, i64)>>;

impl<S, T, K, R, A, B> Body<S, T, K, R, A, B>
where
    T: EventTime,
    K: Key + Ord,
    R: Clone + 'static,
{
    /// From now on rows before `arriving` wait for their key groups: what is applied sees no later time.
    pub(crate) fn wait_for(&mut self, arriving: Time) {
        self.arriving = arriving;
    }

    /// The watermark up to which timers were to fire in the last step, if some are left of these.
    pub(crate) fn owed(&self) -> Option<Time> {
        self.owed
    }

    /// Ends a step at `watermark`, whose timers before `limit` were to fire. Says whether some are left.
    pub(crate) fn owe(&mut self, watermark: Time, limit: Time) -> bool {
        let is_cut = std::mem::take(&mut self.in_step) >= STEP_MAX;
        let is_due = |at: Time| at < limit;
        self.owed = (is_cut && self.timers.next_time().is_some_and(is_due)).then_some(watermark);
        self.owed.is_some()
    }

    /// Timers of a restored checkpoint fire at their times.
    pub(crate) fn hold_restored(&mut self, first: Capability<T>) {
        let earliest = self.timers.next_time();
        self.held = earliest.map(|at| first.delayed(&at_least(at, first.time())));
    }

    /// Timers have come, none of them before the time of this capability.
    pub(crate) fn hold_for_timers(&mut self, right: &Capability<T>) {
        let Some(earliest) = self.timers.next_time() else { return };
        let at = at_least(earliest, right.time());
        if self.held.as_ref().is_none_or(|held| *held.time() > at) {
            self.held = Some(right.delayed(&at));
        }
    }

    /// Holds the time of the next timer, and no earlier one.
    pub(crate) fn hold_next(&mut self, is_last: bool) {
        match (self.timers.next_time(), &mut self.held) {
            // Timers at the end of time never fire and must not keep the dataflow alive.
            (Some(next), Some(held)) if !(is_last && next == Time::MAX) => downgrade(held, next),
            _ => self.held = None,
        }
    }

    /// Hands rows or timers to their closure and emits what comes of it.
    pub(crate) fn apply<D>(
        &mut self,
        limit: Time,
        right: &Right<'_, T>,
        work: Work<'_, K, D>,
        output: &mut Output<'_, T, R>,
    ) -> Result<()>
    where
        A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()>,
        B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()>,
    {
        let waiting = right.least_waiting().map_or(Time::MAX, T::time).min(self.arriving);
        let are_timers = matches!(work, Work::Timers(_));
        match (&self.keys, &work) {
            (Some(keys), Work::Rows(rows)) => {
                keys.begin(rows.iter().map(|(key, _)| key.key_hash()))
            }
            (Some(keys), Work::Timers(due)) => {
                keys.begin(due.iter().map(|(_, key)| key.key_hash()))
            }
            (None, _) => {}
        }
        let mut context = Context {
            watermark: limit.min(waiting),
            time: right.time().clone(),
            timers: &mut self.timers,
            earliest_set: None,
            changes: &mut self.changes,
        };
        let done = match work {
            Work::Rows(rows) => {
                context.watermark = context.watermark.min(context.time.time());
                (self.rows)(&mut self.state, rows, &mut context)
            }
            Work::Timers(timers) => {
                // A timer sees that its time is over, though rows of other keys wait that are before it.
                let last = timers.iter().map(|(at, _)| *at).max().unwrap_or(Time::MIN);
                context.watermark = limit.min(waiting.max(last.plus(1)));
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

    /// Hands over the timers before `limit`. Those whose keys wait stay among the others, in their
    /// order: rows that wait before them may set others, or withdraw them.
    pub(crate) fn fire<D>(
        &mut self,
        limit: Time,
        fired: &mut Vec<(Time, K)>,
        intake: &mut Intake<T, K, D>,
        output: &mut Output<'_, T, R>,
    ) where
        A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()>,
        B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()>,
    {
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
                let Some((at, key)) = self.timers.pop_due(limit) else { break };
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
                Ok(()) => intake
                    .fire(&capability, fired, |right, work| self.apply(limit, right, work, output)),
                Err(error) => intake.stop(&Right::held(&capability), error),
            }
            for (at, key) in fired.drain(..) {
                // Their memory was given back when they were taken out.
                if let Err(error) = self.timers.set(key, at) {
                    intake.stop(&Right::held(&capability), error);
                }
            }
            if self.held.as_ref().is_none_or(|held| held.time() > capability.time()) {
                self.held = Some(capability);
            }
        }
        // A key may have found all buffers taken by reads that have ended: no end of a read will have
        // the operator scheduled for it.
        intake.show();
        let Some(first) = first else { return };
        for (at, key) in self.waiting.drain(..) {
            // Their memory was given back when they were taken out.
            if let Err(error) = self.timers.set(key, at) {
                intake.stop(&Right::held(&first), error);
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
