//! The incremental, unbounded join of two keyed streams.

use alluvium::{Key, Layout, Result, State};
use timely::ExchangeData;
use timely::progress::Timestamp;

use crate::Changes;
use crate::intake::{Prepared, Right, Work};
use crate::operators::join_sides::JoinSides;
use crate::operators::key_by::Keyed;
use crate::operators::shell::{Output, untimed_of_two};
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
        let JoinSides { mut left, mut right } =
            JoinSides::<K, A, B, R, L>::new(states.map("left")?, states.map("right")?);
        let prepared = Prepared::<K>::new::<T, Either<A, B>>(&self.state, &states)?;
        let apply = move |at: &Right<'_, T>,
                          work: Work<'_, K, Either<A, B>>,
                          output: &mut Output<'_, T, (R, T, i64)>|
              -> Result<()> {
            let Work::Rows(rows) = work else { unreachable!("there are no timers") };
            let mut session = output.session(at);
            while let Some((_, first)) = rows.first() {
                let emit = |row| session.give((row, at.time().clone(), 1));
                match first {
                    Either::Left(_) => {
                        let pair = |key: &K, a: &A, b: &B| pair(key, a, b);
                        left.apply(rows, Either::left, Either::Left, &mut right.rows, pair, emit)?;
                    }
                    Either::Right(_) => {
                        let pair = |key: &K, b: &B, a: &A| pair(key, a, b);
                        right.apply(
                            rows,
                            Either::right,
                            Either::Right,
                            &mut left.rows,
                            pair,
                            emit,
                        )?;
                    }
                }
            }
            Ok(())
        };
        let (left, right) = ((self, Either::Left), (other, Either::Right));
        Ok(untimed_of_two(left, right, &name, prepared, apply))
    }
}

/// A row of one of the two streams.
enum Either<A, B> {
    Left(A),
    Right(B),
}

impl<A, B> Either<A, B> {
    fn left(self) -> std::result::Result<A, Self> {
        match self {
            Either::Left(a) => Ok(a),
            other => Err(other),
        }
    }

    fn right(self) -> std::result::Result<B, Self> {
        match self {
            Either::Right(b) => Ok(b),
            other => Err(other),
        }
    }
}
