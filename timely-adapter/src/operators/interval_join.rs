//! The join of rows that are close in time.

use alluvium::backend::ListsLayout;
use alluvium::time::nanos;
use alluvium::{Error, ErrorKind, Key, Result, State, Time, TimeMap};
use timely::ExchangeData;
use timely::dataflow::operators::Capability;

use crate::Changes;
use crate::event_time::EventTime;
use crate::intake::{EmitRight, Intake, IntakeWork};
use crate::migration::Migratable;
use crate::operators::key_by::Keyed;
use crate::operators::merged::{Row, both_sides};
use crate::operators::placing::{Fixed, Moved, Placing};
use crate::operators::shell::{OperatorBody, RowOutput, StepBounds, advance_under};
use crate::operators::spec::{OperatorState, Spec};

/// Rows that are dropped each time the operator is scheduled, about.
const FUEL: usize = 8192;
/// The interval of a join is about so many slices of time long.
const SLICES: i64 = 4;

/// Extension trait: joins of rows whose times are close.
///
/// ```
/// use alluvium::{SECOND, Time};
/// use alluvium_timely::{IntervalJoin, KeyBy, NodeConfig, Spec, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         let orders = [(7u64, 10 * SECOND), (8, 20 * SECOND)];
///         let payments = [(7u64, 25 * SECOND), (8, 90 * SECOND)];
///         let orders = orders.to_stream(scope).container::<Vec<_>>();
///         let payments = payments.to_stream(scope).container::<Vec<_>>();
///         orders
///             .key_by(state, |(order, _)| *order)
///             .interval_join(
///                 |(_, at)| Time(*at),
///                 payments.key_by(state, |(order, _)| *order),
///                 |(_, at)| Time(*at),
///                 (0, 60 * SECOND), // paid within a minute
///                 Spec::new("paid"),
///                 |order, _, _| *order,
///             )?
///             .inspect(|(order, _, _)| println!("order {order} was paid in time"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait IntervalJoin<'scope, T: EventTime, K: Key, A> {
    /// Pairs each row with the rows of the other stream that have its key and a time within
    /// `bounds` after its own: in nanoseconds, both ends inclusive. Emits `pair`'s result with +1,
    /// at the timestamp of the later row.
    ///
    /// The states `id/left` and `id/right` keep a row until the frontier excludes every partner. A
    /// late row, whose time is before its timestamp, pairs with the rows that are still kept at
    /// that timestamp. So the result does not depend on how the streams interleave. A row at
    /// [`Time::MAX`] pairs with none and is not kept.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the second bound is before the first. [`ErrorKind::Mismatch`] for a
    /// checkpoint of a join with other bounds. Those of opening the states.
    fn interval_join<B, G, R, L>(
        self,
        at: impl Fn(&A) -> Time + 'static,
        other: Keyed<'scope, T, B, G>,
        other_at: impl Fn(&B) -> Time + 'static,
        bounds: (i64, i64),
        spec: Spec<L>,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
        L: ListsLayout<K, (Time, (Time, A))> + ListsLayout<K, (Time, (Time, B))>;
}

/// One side: rows by their times, each with the time it was sent with.
struct TimedSide<K: Key, V: State, L: ListsLayout<K, (Time, (Time, V))>> {
    rows: TimeMap<K, (Time, V), L>,
    /// Rows of the other side that pair with one of this are so far after it, from and to.
    from: i64,
    to: i64,
}

impl<K: Key, V: State, L: ListsLayout<K, (Time, (Time, V))>> TimedSide<K, V, L> {
    /// Calls `visit` with the rows of this side that pair with one of the other at `at`, sent with
    /// `sent`.
    fn partners(
        &mut self,
        key: &K,
        (at, sent): (Time, Time),
        mut visit: impl FnMut(&V),
    ) -> Result<()> {
        let (from, to) = (self.from, self.to);
        // `to` may be as far as time goes: the last point of time is no time of rows.
        let times = at.plus(to.saturating_neg())..at.plus(from.saturating_neg()).plus(1);
        self.rows.range(key, times, |own, (own_sent, row)| {
            // A range to the end of time may have more than the interval; and neither was over when
            // the other was sent.
            if own <= at.plus(from.saturating_neg())
                && own.plus(to) >= sent
                && at.plus(from.saturating_neg()) >= *own_sent
            {
                visit(row);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Drops rows with which none can be paired that is sent at or after `watermark`.
    fn purge(&mut self, watermark: Time) -> Result<bool> {
        match watermark {
            Time::MAX => self.rows.purge(Time::MAX, FUEL),
            _ => self.rows.purge(watermark.plus(self.to.saturating_neg()), FUEL),
        }
    }
}

impl<'scope, T, K, A, F> IntervalJoin<'scope, T, K, A> for Keyed<'scope, T, A, F>
where
    T: EventTime,
    K: Key,
    A: ExchangeData + State,
    F: Fn(&A) -> K + 'static,
{
    fn interval_join<B, G, R, L>(
        self,
        at: impl Fn(&A) -> Time + 'static,
        other: Keyed<'scope, T, B, G>,
        other_at: impl Fn(&B) -> Time + 'static,
        bounds: (i64, i64),
        spec: Spec<L>,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
        L: ListsLayout<K, (Time, (Time, A))> + ListsLayout<K, (Time, (Time, B))>,
    {
        let (both, times) = (both_sides(self, other), (at, other_at));
        Fixed.start(both, spec, |states| IntervalSides::open(states, times, bounds, pair))
    }
}

/// Key groups of both sides move together: a row goes to the worker that has its group at its time, and with the
/// group go the rows of both sides that may still have partners. Where it comes to, no row is dropped that the rows
/// which wait for it may still pair with.
impl<'scope, T, K, A, F> IntervalJoin<'scope, T, K, A> for Migratable<'scope, T, A, F>
where
    T: EventTime,
    K: Key,
    A: ExchangeData + State,
    F: Fn(&A) -> K + 'static,
{
    fn interval_join<B, G, R, L>(
        self,
        at: impl Fn(&A) -> Time + 'static,
        other: Keyed<'scope, T, B, G>,
        other_at: impl Fn(&B) -> Time + 'static,
        bounds: (i64, i64),
        spec: Spec<L>,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
        L: ListsLayout<K, (Time, (Time, A))> + ListsLayout<K, (Time, (Time, B))>,
    {
        let Migratable { keyed, control } = self;
        let (both, times) = (both_sides(keyed, other), (at, other_at));
        Moved(control).start(both, spec, |states| IntervalSides::open(states, times, bounds, pair))
    }
}

/// Both sides, and what makes pairs of them.
struct IntervalSides<T, K, A, B, R, L, P, Q, M>
where
    T: EventTime,
    K: Key,
    A: State,
    B: State,
    L: ListsLayout<K, (Time, (Time, A))> + ListsLayout<K, (Time, (Time, B))>,
{
    left: TimedSide<K, A, L>,
    right: TimedSide<K, B, L>,
    at: P,
    other_at: Q,
    pair: M,
    /// At the time up to which rows were dropped: of use only to an operator that fails while it purges.
    held: Option<Capability<T>>,
    /// The least time of what waits for key groups that are on their way.
    arriving: Time,
    /// The pairs of a row.
    found: Vec<R>,
}

impl<T, K, A, B, R, L, P, Q, M> IntervalSides<T, K, A, B, R, L, P, Q, M>
where
    T: EventTime,
    K: Key,
    A: State,
    B: State,
    L: ListsLayout<K, (Time, (Time, A))> + ListsLayout<K, (Time, (Time, B))>,
    P: Fn(&A) -> Time,
    Q: Fn(&B) -> Time,
    M: Fn(&K, &A, &B) -> R,
{
    fn open(
        states: &OperatorState<'_, L>,
        (at, other_at): (P, Q),
        (lower, upper): (i64, i64),
        pair: M,
    ) -> Result<Self> {
        if upper < lower {
            let message = format!("an interval from {lower} ns to {upper} ns has no times");
            return Err(Error::new(ErrorKind::Config, message).with("operator", states.id()));
        }
        let width = nanos((upper.saturating_sub(lower) / SLICES).max(1));
        let bounds = format!("rows that are {lower} to {upper} ns apart");
        let rows = states.rows_by_time("left", width, Some(&bounds))?;
        let left = TimedSide { rows, from: lower, to: upper };
        let right = TimedSide {
            rows: states.rows_by_time("right", width, Some(&bounds))?,
            from: upper.saturating_neg(),
            to: lower.saturating_neg(),
        };
        let (held, arriving, found) = (None, Time::MAX, Vec::new());
        Ok(Self { left, right, at, other_at, pair, held, arriving, found })
    }

    /// Finds the pairs of a row that was sent with `sent`, and keeps it. Partners first: what fails leaves
    /// nothing done.
    fn meet(&mut self, key: &K, row: &Row<A, B>, sent: Time) -> Result<()> {
        let (pair, found) = (&self.pair, &mut self.found);
        found.clear();
        match row {
            Ok(a) => {
                let at = (self.at)(a);
                if at == Time::MAX {
                    return Ok(());
                }
                self.right.partners(key, (at, sent), |b| found.push(pair(key, a, b)))?;
                Ok(self.left.rows.insert(key, at, (sent, a.clone()))?)
            }
            Err(b) => {
                let at = (self.other_at)(b);
                if at == Time::MAX {
                    return Ok(());
                }
                self.left.partners(key, (at, sent), |a| found.push(pair(key, a, b)))?;
                Ok(self.right.rows.insert(key, at, (sent, b.clone()))?)
            }
        }
    }
}

impl<T, K, A, B, R, L, P, Q, M> OperatorBody<T, K, Row<A, B>>
    for IntervalSides<T, K, A, B, R, L, P, Q, M>
where
    T: EventTime,
    K: Key,
    A: ExchangeData + State,
    B: ExchangeData + State,
    R: Clone + 'static,
    L: ListsLayout<K, (Time, (Time, A))> + ListsLayout<K, (Time, (Time, B))>,
    P: Fn(&A) -> Time + 'static,
    Q: Fn(&B) -> Time + 'static,
    M: Fn(&K, &A, &B) -> R + 'static,
{
    type Row = (R, T, i64);

    /// Rows are dropped for the last time when the input has ended, and none is while a group counts as leaving.
    const LEAVES_AT_ONCE: bool = true;

    fn apply(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, Row<A, B>>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> Result<()> {
        let IntakeWork::Rows(rows) = work else { unreachable!("there are no timers") };
        let mut session = output.session(right);
        let mut rest = std::mem::take(rows).into_iter();
        for (key, row) in rest.by_ref() {
            if let Err(error) = self.meet(&key, &row, right.time().time()) {
                rows.push((key, row));
                rows.extend(rest);
                return Err(error);
            }
            session.give_iterator(self.found.drain(..).map(|row| (row, right.time().clone(), 1)));
        }
        Ok(())
    }

    fn advance(
        &mut self,
        now: StepBounds,
        intake: &mut Intake<T, K, Row<A, B>>,
        _: &mut RowOutput<'_, T, Self::Row>,
    ) -> bool {
        let now = StepBounds { limit: now.limit.min(self.arriving), ..now };
        let (left, right) = (&mut self.left, &mut self.right);
        advance_under(&mut self.held, now, intake, |_| {
            Ok(left.purge(now.limit)? & right.purge(now.limit)?)
        })
    }

    fn begin(&mut self, first: Capability<T>) {
        self.held = Some(first);
    }

    fn set_arriving(&mut self, arriving: Time) {
        self.arriving = arriving;
    }
}
