//! Joins that enrich rows with what a table says at the moment, and keep no rows.

use std::marker::PhantomData;

use alluvium::states::BatchError;
use alluvium::{Key, Layout, Map, Result, State};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;

use crate::Changes;
use crate::event_time::EventTime;
use crate::intake::{EmitRight, IntakeWork, PreparedIntake};
use crate::migration::Migratable;
use crate::operators::key_by::{Builder, Keyed};
use crate::operators::merged::{Arrival, merged};
use crate::operators::placing::{Moved, Placing};
use crate::operators::shared_table::SharedTable;
use crate::operators::shell::{OperatorBody, RowOutput, untimed_of_two};
use crate::operators::spec::{OperatorState, Spec};

/// Extension trait: enriches keyed rows from a table.
///
/// `pair` gets the key, the row and the table's value for the key, if there is one. Return `None`
/// to emit nothing: an inner join does so without a value, a left outer join never does. Results
/// have the timestamp of their row and `diff` +1. A later change of the table retracts nothing.
///
/// ```
/// use alluvium_timely::{KeyBy, LookupJoin, NodeConfig, Spec, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         let prices = [("tea".to_owned(), 3u64)].to_stream(scope).container::<Vec<_>>();
///         let sales = [("tea".to_owned(), 20u64)].to_stream(scope).container::<Vec<_>>();
///         sales
///             .key_by(state, |(good, _)| good.clone())
///             .lookup_join(
///                 prices.key_by(state, |(good, _)| good.clone()),
///                 Spec::new("prices"),
///                 |(_, price)| Some(*price), // None deletes the key
///                 |good, (_, count), price| Some((good.clone(), count * price?)),
///             )?
///             .inspect(|((good, total), _, _)| println!("{good}: {total}"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait LookupJoin<'scope, T: Timestamp, K: Key, D> {
    /// Looks rows up in a table that never changes. Rows stay on their worker: each process has the
    /// whole table. Keeps no state.
    fn lookup_join_shared<V, R>(
        self,
        table: &SharedTable<K, V>,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Changes<'scope, T, R>
    where
        V: State,
        R: Clone + 'static;

    /// Looks rows up in a table that `updates` change. Rows and updates both go to the owner of
    /// their key. The state `id/table` has one value per key, that of the latest update; `value`
    /// returns `None` to delete it.
    ///
    /// A row sees the table as it is when the row arrives at the key's owner, whatever the
    /// timestamps say. This is processing time, as in Flink's look-up joins:
    ///
    /// - A row sees the updates that arrive together with it.
    /// - Two updates of a key apply in order of arrival. That is the order of sending if one worker
    ///   sent both, and undefined if two did, even with different timestamps.
    /// - Rows and updates of a key that wait for a read from storage keep their order.
    /// - A row that arrives before an update does not see it, even with a later timestamp. The
    ///   table holds the join's frontier back: once a probe behind the join has passed the
    ///   timestamp of an update, all rows sent after that see it.
    ///
    /// So results depend on how the streams interleave. Only rows sent behind the last update are
    /// sure to see it.
    ///
    /// # Errors
    /// Those of opening the state.
    fn lookup_join<U, G, V, R, L>(
        self,
        updates: Keyed<'scope, T, U, G>,
        spec: Spec<L>,
        value: impl Fn(&U) -> Option<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: State,
        R: Clone + 'static,
        L: Layout<K, V>;
}

impl<'scope, T, K, D, F> LookupJoin<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: Timestamp,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn lookup_join_shared<V, R>(
        self,
        table: &SharedTable<K, V>,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Changes<'scope, T, R>
    where
        V: State,
        R: Clone + 'static,
    {
        let (key, table) = (self.key, table.clone());
        self.stream.unary::<Builder<_>, _, _, _>(Pipeline, "lookup_join_shared", |_, _| {
            move |input, output| {
                // Batch by batch, as grouping by time would not keep their order.
                input.for_each(|capability, batch| {
                    let time = capability.time();
                    let found = batch.drain(..).filter_map(|row| {
                        let key = key(&row);
                        Some((pair(&key, &row, table.get(&key))?, time.clone(), 1))
                    });
                    output.session(&capability).give_iterator(found);
                });
            }
        })
    }

    fn lookup_join<U, G, V, R, L>(
        self,
        updates: Keyed<'scope, T, U, G>,
        spec: Spec<L>,
        value: impl Fn(&U) -> Option<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: State,
        R: Clone + 'static,
        L: Layout<K, V>,
    {
        let name = spec.id().to_owned();
        let states = OperatorState::new(&self.state, spec)?;
        let mut look_ups = LookUps { table: states.map("table")?, value, pair, of: PhantomData };
        let prepared = PreparedIntake::<K>::new::<T, Arrival<D, U>>(&self.state, &states)?;
        let apply = move |right: &EmitRight<'_, T>,
                          work: IntakeWork<'_, K, Arrival<D, U>>,
                          output: &mut RowOutput<'_, T, (R, T, i64)>| {
            look_ups.apply(right, work, output)
        };
        let (updates, rows) = ((updates, Arrival::Change), (self, Arrival::Row));
        Ok(untimed_of_two(updates, rows, &name, prepared, apply))
    }
}

/// Key groups of rows, updates and table move together: a row or an update goes to the worker that has its
/// group at its time, and with the group goes its part of the table. Two updates of a key apply in the order
/// of their times, if they are of different ones.
impl<'scope, T, K, D, F> LookupJoin<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    /// Rows stay on their worker, and no group moves.
    fn lookup_join_shared<V, R>(
        self,
        table: &SharedTable<K, V>,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Changes<'scope, T, R>
    where
        V: State,
        R: Clone + 'static,
    {
        self.keyed.lookup_join_shared(table, pair)
    }

    fn lookup_join<U, G, V, R, L>(
        self,
        updates: Keyed<'scope, T, U, G>,
        spec: Spec<L>,
        value: impl Fn(&U) -> Option<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: State,
        R: Clone + 'static,
        L: Layout<K, V>,
    {
        let Migratable { keyed, control } = self;
        let keyed = merged(keyed, updates, spec.id());
        Moved(control).start(keyed, spec, |states| {
            Ok(LookUps { table: states.map("table")?, value, pair, of: PhantomData })
        })
    }
}

/// A table, what an update makes of it, and what a row makes of that.
struct LookUps<K: Key, V: State, L: Layout<K, V>, P, W, R> {
    table: Map<K, V, L>,
    value: P,
    pair: W,
    of: PhantomData<fn() -> R>,
}

impl<K: Key, V: State, L: Layout<K, V>, P, W, R> LookUps<K, V, L, P, W, R> {
    fn apply<T, D, U>(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, Arrival<D, U>>,
        output: &mut RowOutput<'_, T, (R, T, i64)>,
    ) -> Result<()>
    where
        T: Timestamp,
        P: Fn(&U) -> Option<V>,
        W: Fn(&K, &D, Option<&V>) -> Option<R>,
        R: Clone + 'static,
    {
        let Self { table, value, pair, .. } = self;
        let IntakeWork::Rows(rows) = work else { unreachable!("there are no timers") };
        let mut session = output.session(right);
        while let Some((_, first)) = rows.first() {
            let is_row = first.is_row();
            let alike = rows.iter().take_while(|(_, next)| next.is_row() == is_row).count();
            let done = if is_row {
                let give = |(key, row): &(K, Arrival<D, U>), value: Option<&V>| {
                    let Arrival::Row(row) = row else { return };
                    if let Some(out) = pair(key, row, value) {
                        session.give((out, right.time().clone(), 1));
                    }
                };
                table.read_batch(&rows[..alike], |(key, _)| key, give)
            } else {
                change(table, &rows[..alike], value)
            };
            match done {
                Ok(()) => drop(rows.drain(..alike)),
                Err(error) => return Err(error.leave_rest(rows)),
            }
        }
        Ok(())
    }
}

impl<T, K, V, L, D, U, P, W, R> OperatorBody<T, K, Arrival<D, U>> for LookUps<K, V, L, P, W, R>
where
    T: EventTime,
    K: Key,
    V: State,
    L: Layout<K, V>,
    P: Fn(&U) -> Option<V> + 'static,
    W: Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    R: Clone + 'static,
{
    type Row = (R, T, i64);

    fn apply(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, Arrival<D, U>>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> Result<()> {
        LookUps::apply(self, right, work, output)
    }
}

/// Applies updates to the table, in their order, until one fails.
fn change<K: Key, V: State, L: Layout<K, V>, D, U>(
    table: &mut Map<K, V, L>,
    updates: &[(K, Arrival<D, U>)],
    value: &impl Fn(&U) -> Option<V>,
) -> std::result::Result<(), BatchError> {
    for (applied, (key, update)) in updates.iter().enumerate() {
        let Arrival::Change(update) = update else { continue };
        let done = match value(update) {
            Some(value) => table.put(key.clone(), value).map_err(|rejected| rejected.error),
            None => table.remove(key),
        };
        done.map_err(|error| BatchError { applied, error })?;
    }
    Ok(())
}
