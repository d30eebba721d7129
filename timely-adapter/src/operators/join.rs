//! The incremental, unbounded join of two keyed streams.

use alluvium::{Key, Layout, Result, State};
use timely::ExchangeData;
use timely::progress::Timestamp;

use crate::Changes;
use crate::event_time::EventTime;
use crate::intake::{EmitRight, IntakeWork, PreparedIntake};
use crate::migration::Migratable;
use crate::operators::join_sides::JoinSides;
use crate::operators::key_by::Keyed;
use crate::operators::merged::{Row, both_sides};
use crate::operators::placing::{Moved, Placing};
use crate::operators::shell::{OperatorBody, RowOutput, untimed_of_two};
use crate::operators::spec::{OperatorState, Spec};

/// Extension trait: incremental joins of two keyed streams.
///
/// ```
/// use alluvium_timely::{Join, KeyBy, NodeConfig, Spec, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         let names = [(1u64, "ann".to_owned()), (2, "bob".to_owned())];
///         let visits = [(1u64, 30i64), (1, 31)];
///         let names = names.to_stream(scope).container::<Vec<_>>();
///         let visits = visits.to_stream(scope).container::<Vec<_>>();
///         names
///             .key_by(state, |(id, _)| *id)
///             .join(
///                 visits.key_by(state, |(id, _)| *id),
///                 Spec::new("visits"),
///                 |_, (_, name), (_, day)| (name.clone(), *day),
///             )?
///             .inspect(|((name, day), _, _)| println!("{name} came on day {day}"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait Join<'scope, T: Timestamp, K: Key, A> {
    /// Pairs each row with all rows of the other stream that have the same key. Emits `pair`'s
    /// result for each pair with +1. Both streams are multisets. The states `id/left` and
    /// `id/right` keep all rows for ever, as one `Vec` per key.
    ///
    /// **The rows of one key and side must fit into `max_value`** (1 MiB at most by default). Once
    /// they are larger, the next row of that key and side ends the run with `ValueTooLarge`, also
    /// after a restart. Cost: a row visits all rows of its key on the other side.
    ///
    /// # Errors
    /// Those of opening the states.
    fn join<B, G, R, L>(
        self,
        other: Keyed<'scope, T, B, G>,
        spec: Spec<L>,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
        L: Layout<K, Vec<A>> + Layout<K, Vec<B>>;
}

impl<'scope, T, K, A, F> Join<'scope, T, K, A> for Keyed<'scope, T, A, F>
where
    T: Timestamp,
    K: Key,
    A: ExchangeData + State,
    F: Fn(&A) -> K + 'static,
{
    fn join<B, G, R, L>(
        self,
        other: Keyed<'scope, T, B, G>,
        spec: Spec<L>,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
        L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
    {
        let name = spec.id().to_owned();
        let states = OperatorState::new(&self.state, spec)?;
        let mut body = Pairing::open(&states, pair)?;
        let prepared = PreparedIntake::<K>::new::<T, Row<A, B>>(&self.state, &states)?;
        let apply = move |right: &EmitRight<'_, T>,
                          work: IntakeWork<'_, K, Row<A, B>>,
                          output: &mut RowOutput<'_, T, (R, T, i64)>| {
            body.apply(right, work, output)
        };
        Ok(untimed_of_two((self, Ok), (other, Err), &name, prepared, apply))
    }
}

/// Key groups of both sides move together: a row goes to the worker that has its group at its time, and with the
/// group go the rows of both sides. So each pair is made once, at the worker that has its later row.
impl<'scope, T, K, A, F> Join<'scope, T, K, A> for Migratable<'scope, T, A, F>
where
    T: EventTime,
    K: Key,
    A: ExchangeData + State,
    F: Fn(&A) -> K + 'static,
{
    fn join<B, G, R, L>(
        self,
        other: Keyed<'scope, T, B, G>,
        spec: Spec<L>,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
        L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
    {
        let Migratable { keyed, control } = self;
        let both = both_sides(keyed, other);
        Moved(control).start(both, spec, |states| Pairing::open(states, pair))
    }
}

/// Both sides, and what makes pairs of them.
struct Pairing<K, A, B, R, L, P>
where
    K: Key,
    A: State,
    B: State,
    L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
{
    sides: JoinSides<K, A, B, R, L>,
    pair: P,
}

impl<K, A, B, R, L, P> Pairing<K, A, B, R, L, P>
where
    K: Key,
    A: State,
    B: State,
    L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
    P: Fn(&K, &A, &B) -> R,
{
    fn open(states: &OperatorState<'_, L>, pair: P) -> Result<Self> {
        let sides = JoinSides::new(states.map("left")?, states.map("right")?);
        Ok(Self { sides, pair })
    }

    fn apply<T: Timestamp>(
        &mut self,
        at: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, Row<A, B>>,
        output: &mut RowOutput<'_, T, (R, T, i64)>,
    ) -> Result<()>
    where
        R: Clone + 'static,
    {
        let (JoinSides { left, right }, pair) = (&mut self.sides, &self.pair);
        let IntakeWork::Rows(rows) = work else { unreachable!("there are no timers") };
        let mut session = output.session(at);
        while let Some((_, first)) = rows.first() {
            let emit = |row| session.give((row, at.time().clone(), 1));
            if first.is_ok() {
                left.apply(rows, |row| row.map_err(Err), Ok, &mut right.rows, pair, emit)?;
            } else {
                let mine = |row: Row<A, B>| row.map_or_else(Ok, |row| Err(Ok(row)));
                let pair = |key: &K, b: &B, a: &A| pair(key, a, b);
                right.apply(rows, mine, Err, &mut left.rows, pair, emit)?;
            }
        }
        Ok(())
    }
}

impl<T, K, A, B, R, L, P> OperatorBody<T, K, Row<A, B>> for Pairing<K, A, B, R, L, P>
where
    T: EventTime,
    K: Key,
    A: State,
    B: State,
    R: Clone + 'static,
    L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
    P: Fn(&K, &A, &B) -> R + 'static,
{
    type Row = (R, T, i64);

    fn apply(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, Row<A, B>>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> Result<()> {
        let IntakeWork::Rows(rows) = work else { unreachable!("there are no timers") };
        // Rows of both sides come by turns, and each change of sides moves all that are left. Those of a side keep
        // their order: the sort is stable.
        rows.sort_by_key(|(_, row)| row.is_err());
        Pairing::apply(self, right, IntakeWork::Rows(rows), output)
    }
}
