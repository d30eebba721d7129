//! The shell of every keyed operator: it goes on with what waits, takes rows in, has them applied, and goes on
//! in time. What an operator does with its rows and its time is its body.
//!
//! What it keeps true: what was put aside comes before what is new. A body sees no later time than the rows
//! that wait. A body that has not done all that its time allows is scheduled again.

use alluvium::{Key, Result, Time};
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilderSession;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;

use crate::event_time::{EventTime, watermark};
use crate::intake::{EmitRight, Intake, IntakeWork, PreparedIntake};
use crate::operators::key_by::{Builder, Keyed, owner_pact};

/// Where rows come out.
pub(crate) type RowOutput<'a, T, R> = OutputBuilderSession<'a, T, Builder<R>>;

/// What an operator does that has a time.
pub(crate) trait OperatorBody<T: EventTime, K: Key, D>: 'static {
    /// What comes out.
    type Row: 'static;

    /// Whether a key group that was sent counts where it goes at once: else from when it is there on.
    const LEAVES_AT_ONCE: bool = false;

    /// Applies rows, or timers that are due. Leaves in `work` what an error has left undone.
    fn apply(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, D>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> Result<()>;

    /// Does what is due by now; says whether some of it is left for the next step.
    fn advance(
        &mut self,
        _now: StepBounds,
        _intake: &mut Intake<T, K, D>,
        _output: &mut RowOutput<'_, T, Self::Row>,
    ) -> bool {
        false
    }

    /// Goes to the first time of all, before the first schedule of an operator whose key groups move.
    ///
    /// # Errors
    /// Those of what is due then.
    fn go_to_first(&mut self) -> Result<()> {
        Ok(())
    }

    /// Takes the first capability of the operator.
    fn begin(&mut self, _first: Capability<T>) {}

    /// The watermark of the last step, if what was due in it has not been done in full. Input waits for that.
    fn unfinished(&self) -> Option<Time> {
        None
    }

    /// From now on what is applied sees this time.
    fn set_watermark(&mut self, _watermark: Time) {}

    /// From now on rows before `arriving` wait for their key groups.
    fn set_arriving(&mut self, _arriving: Time) {}

    /// A key group is here in full, at the time of this capability.
    fn group_arrived(&mut self, _right: &Capability<T>) {}
}

/// How far an operator may go in a step.
#[derive(Clone, Copy)]
pub(crate) struct StepBounds {
    pub(crate) watermark: Time,
    /// The watermark, but not past what was not applied yet.
    pub(crate) limit: Time,
    /// No input is still to come.
    pub(crate) has_ended: bool,
}

/// How far the operator's own time is: the watermark, but not past what was not applied yet.
pub(crate) fn limit_of<T: EventTime, K: Key, D>(watermark: Time, intake: &Intake<T, K, D>) -> Time {
    intake.horizon().map_or(watermark, |time| time.time().min(watermark))
}

/// An operator without a time, which `apply` is all of.
pub(crate) fn untimed<'scope, T, K, D, F, R>(
    keyed: Keyed<'scope, T, D, F>,
    name: &str,
    prepared: PreparedIntake<K>,
    mut apply: impl FnMut(
        &EmitRight<'_, T>,
        IntakeWork<'_, K, D>,
        &mut RowOutput<'_, T, R>,
    ) -> Result<()>
    + 'static,
) -> StreamVec<'scope, T, R>
where
    T: Timestamp,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
    R: Clone + 'static,
{
    let Keyed { stream, state, key } = keyed;
    let (pact, scope) = (owner_pact(&state, &key), stream.scope());
    stream.unary::<Builder<R>, _, _, _>(pact, name, |_, info| {
        let mut intake = prepared.start::<T, D>(scope, &info);
        move |input, output| {
            intake.resume(|right, work| apply(right, work, output));
            intake.take_in(input, |row| (key(&row), row), |right, work| apply(right, work, output));
        }
    })
}

/// The same of two inputs, whose rows become rows of one type. Of those that come together, the first's are
/// taken first.
pub(crate) fn untimed_of_two<'scope, T, K, A, B, D, F, G, R>(
    (first, of_first): (Keyed<'scope, T, A, F>, impl Fn(A) -> D + 'static),
    (second, of_second): (Keyed<'scope, T, B, G>, impl Fn(B) -> D + 'static),
    name: &str,
    prepared: PreparedIntake<K>,
    mut apply: impl FnMut(
        &EmitRight<'_, T>,
        IntakeWork<'_, K, D>,
        &mut RowOutput<'_, T, R>,
    ) -> Result<()>
    + 'static,
) -> StreamVec<'scope, T, R>
where
    T: Timestamp,
    K: Key,
    A: ExchangeData,
    B: ExchangeData,
    D: 'static,
    F: Fn(&A) -> K + 'static,
    G: Fn(&B) -> K + 'static,
    R: Clone + 'static,
{
    let pact = owner_pact(&first.state, &first.key);
    let other_pact = owner_pact(&second.state, &second.key);
    let (key, other_key, scope) = (first.key, second.key, first.stream.scope());
    let stream = first.stream;
    stream.binary::<_, Builder<R>, _, _, _, _>(second.stream, pact, other_pact, name, |_, info| {
        let mut intake = prepared.start::<T, D>(scope, &info);
        move |input, other, output| {
            intake.resume(|right, work| apply(right, work, output));
            let keyed = |row| (key(&row), of_first(row));
            intake.take_in(input, keyed, |right, work| apply(right, work, output));
            let keyed = |row| (other_key(&row), of_second(row));
            intake.take_in(other, keyed, |right, work| apply(right, work, output));
        }
    })
}

/// An operator that has a time.
pub(crate) fn timed<'scope, T, K, D, F, B>(
    keyed: Keyed<'scope, T, D, F>,
    name: &str,
    prepared: PreparedIntake<K>,
    mut body: B,
) -> StreamVec<'scope, T, B::Row>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
    B: OperatorBody<T, K, D>,
{
    let Keyed { stream, state, key } = keyed;
    let (pact, scope) = (owner_pact(&state, &key), stream.scope());
    stream.unary_frontier::<Builder<B::Row>, _, _, _>(pact, name, |first, info| {
        let mut intake = prepared.start::<T, D>(scope, &info);
        let activator = scope.activator_for(info.address.clone());
        body.begin(first);
        move |(input, frontier), output| {
            let unfinished = body.unfinished();
            let watermark = unfinished.unwrap_or_else(|| watermark(frontier));
            body.set_watermark(limit_of(watermark, &intake));
            intake.resume(|right, work| body.apply(right, work, output));
            if unfinished.is_none() {
                body.set_watermark(watermark);
                let keyed = |row| (key(&row), row);
                intake.take_in(input, keyed, |right, work| body.apply(right, work, output));
            }
            let limit = limit_of(watermark, &intake);
            let now = StepBounds { watermark, limit, has_ended: frontier.is_empty() };
            if body.advance(now, &mut intake, output) || unfinished.is_some() {
                activator.activate();
            }
        }
    })
}

/// Goes on to the limit under the capability that the operator holds at the time up to which it has gone, if it
/// may. Says whether there is more to do.
pub(crate) fn advance_under<T: EventTime, K: Key, D>(
    held: &mut Option<Capability<T>>,
    now: StepBounds,
    intake: &mut Intake<T, K, D>,
    go_on: impl FnOnce(&Capability<T>) -> Result<bool>,
) -> bool {
    let Some(capability) = held.clone().filter(|_| intake.takes_timers()) else { return false };
    let mut done = None;
    intake.attempt(&capability, || {
        done = Some(go_on(&capability)?);
        Ok(())
    });
    match done {
        Some(true) if now.has_ended && now.limit == Time::MAX => *held = None,
        Some(true) => {
            let time = T::from_time(now.limit);
            if let Some(held) = held.as_mut().filter(|held| *held.time() < time) {
                held.downgrade(&time);
            }
        }
        Some(false) => return true,
        // It failed: what holds the times of a failed operator does the rest.
        None => {}
    }
    false
}
