//! The join of rows that are close in time.

use alluvium::{Error, ErrorKind, Key, Result, State, Time, TimeMap, nanos};
use timely::ExchangeData;
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;

use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::intake::{Prepared, Right, Work};
use crate::key_by::{Builder, KeyBy, Keyed, owner_pact};
use crate::spec::{OperatorState, Spec};

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
    fn interval_join<B, G, R>(
        self,
        at: impl Fn(&A) -> Time + 'static,
        other: Keyed<'scope, T, B, G>,
        other_at: impl Fn(&B) -> Time + 'static,
        bounds: (i64, i64),
        spec: Spec,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static;
}

/// One side: rows by their times, each with the time it was sent with.
struct Side<K: Key, V: State> {
    rows: TimeMap<K, (Time, V)>,
    /// Rows of the other side that pair with one of this are so far after it, from and to.
    from: i64,
    to: i64,
}

impl<K: Key, V: State> Side<K, V> {
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
    fn interval_join<B, G, R>(
        self,
        at: impl Fn(&A) -> Time + 'static,
        other: Keyed<'scope, T, B, G>,
        other_at: impl Fn(&B) -> Time + 'static,
        bounds: (i64, i64),
        spec: Spec,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
    {
        let (lower, upper) = bounds;
        if upper < lower {
            let message = format!("an interval from {lower} ns to {upper} ns has no times");
            return Err(Error::new(ErrorKind::Config, message).with("operator", spec.id()));
        }
        let name = spec.id().to_owned();
        let worker = self.state.clone();
        let opener = OperatorState::new(&worker, spec)?;
        let width = nanos((upper.saturating_sub(lower) / SLICES).max(1));
        let bounds = format!("rows that are {lower} to {upper} ns apart");
        let rows = opener.rows_by_time("left", width, Some(&bounds))?;
        let left = Side { rows, from: lower, to: upper };
        let right = Side {
            rows: opener.rows_by_time("right", width, Some(&bounds))?,
            from: upper.saturating_neg(),
            to: lower.saturating_neg(),
        };
        let (left_key, right_key) = (self.key, other.key);
        let key = move |row: &std::result::Result<A, B>| match row {
            Ok(row) => left_key(row),
            Err(row) => right_key(row),
        };
        let both = self.stream.map(Ok).concat(other.stream.map(Err)).key_by(&worker, key);
        let Keyed { stream, key, .. } = both;
        type Row<A, B> = std::result::Result<A, B>;
        let prepared = Prepared::<K>::new::<T, Row<A, B>>(&worker, &opener)?;
        let pact = owner_pact(&worker, &key);
        let scope = stream.scope();
        let mut found = Vec::new();
        let mut apply = move |sides: &mut (Side<K, A>, Side<K, B>),
                              right: &Right<'_, T>,
                              work: Work<'_, K, Row<A, B>>,
                              out: &mut Vec<(R, T, i64)>| {
            let Work::Rows(rows) = work else { unreachable!("there are no timers") };
            let sent = right.time().time();
            let mut rest = std::mem::take(rows).into_iter();
            for (key, row) in rest.by_ref() {
                found.clear();
                let is_timeless = match &row {
                    Ok(a) => at(a) == Time::MAX,
                    Err(b) => other_at(b) == Time::MAX,
                };
                if is_timeless {
                    continue;
                }
                // Partners first: what fails leaves nothing done.
                let done =
                    match &row {
                        Ok(a) => {
                            let at = at(a);
                            let meet = |b: &B| found.push(pair(&key, a, b));
                            sides.1.partners(&key, (at, sent), meet).and_then(|()| {
                                Ok(sides.0.rows.insert(&key, at, (sent, a.clone()))?)
                            })
                        }
                        Err(b) => {
                            let at = other_at(b);
                            let meet = |a: &A| found.push(pair(&key, a, b));
                            sides.0.partners(&key, (at, sent), meet).and_then(|()| {
                                Ok(sides.1.rows.insert(&key, at, (sent, b.clone()))?)
                            })
                        }
                    };
                if let Err(error) = done {
                    rows.push((key, row));
                    rows.extend(rest);
                    return Err(error);
                }
                out.extend(found.drain(..).map(|row| (row, right.time().clone(), 1)));
            }
            Ok(())
        };
        let stream = stream.unary_frontier::<Builder<_>, _, _, _>(pact, &name, |first, info| {
            let mut intake = prepared.start::<T, Row<A, B>>(scope, &info);
            let activator = scope.activator_for(info.address.clone());
            // Of use only to an operator that fails while it purges.
            let mut held = Some(first);
            let mut sides = (left, right);
            let mut out = Vec::new();
            move |(input, frontier), output| {
                intake.resume(|right, work| {
                    let done = apply(&mut sides, right, work, &mut out);
                    output.session(right).give_iterator(out.drain(..));
                    done
                });
                intake.take_in(
                    input,
                    |row| (key(&row), row),
                    |right, work| {
                        let done = apply(&mut sides, right, work, &mut out);
                        output.session(right).give_iterator(out.drain(..));
                        done
                    },
                );
                let watermark = watermark(frontier);
                let limit = intake.horizon().map_or(watermark, |time| time.time().min(watermark));
                let Some(capability) = held.clone().filter(|_| intake.takes_timers()) else {
                    return;
                };
                let mut done = None;
                intake.attempt(&capability, || {
                    done = Some(sides.0.purge(limit)? & sides.1.purge(limit)?);
                    Ok(())
                });
                match done {
                    Some(true) if frontier.is_empty() && limit == Time::MAX => held = None,
                    Some(true) => {
                        let time = T::from_time(limit);
                        if let Some(held) = held.as_mut().filter(|held| *held.time() < time) {
                            held.downgrade(&time);
                        }
                    }
                    Some(false) => activator.activate(),
                    None => {}
                }
            }
        });
        Ok(stream)
    }
}
