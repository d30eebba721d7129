//! Joins that enrich rows with what a table says at the moment, and keep no rows.

use alluvium::{Key, Map, Result, State};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilderSession;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;

use crate::Changes;
use crate::intake::{Prepared, Right, Work};
use crate::key_by::{Builder, Keyed, owner_pact};
use crate::shared_table::SharedTable;
use crate::spec::{OperatorState, Spec};

/// Extension trait: look-ups of keyed rows in tables.
///
/// `pair` gets the key, the row and the value that the table has for the key, and says what comes
/// out of it: an inner join gives `None` where there is no value, a left outer join always gives a
/// row. Rows come out with the timestamp they came with, and as changes by one: what was given out
/// is not taken back when the table changes later.
pub trait LookupJoin<'scope, T: Timestamp, K: Key, D> {
    /// Looks rows up in a table that never changes. Rows stay on the worker where they are: each
    /// process has all of the table. No state.
    fn lookup_join_shared<V, R>(
        self,
        table: &SharedTable<K, V>,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Changes<'scope, T, R>
    where
        V: State,
        R: Clone + 'static;

    /// Looks rows up in a table that `updates` make and change; both go to the owner of their key.
    /// The table is the state `id/table` and has one value per key: the latest update's, for which
    /// `value` gives `None` to delete it.
    ///
    /// A row sees the table as it is when the row arrives at its owner, whatever the timestamps
    /// say: the semantics of processing time, as of Flink's look-up joins. In particular:
    ///
    /// - Updates and rows that arrive together: the row sees the updates.
    /// - Two updates of a key take effect in order of arrival, which is that of sending if one
    ///   worker sent both, and is not defined if two did, even with different timestamps.
    /// - A row that arrives before an update does not see it, even with a later timestamp. Once a
    ///   probe behind the join has passed the timestamp of an update, all rows sent from then on
    ///   see it: the table holds the join's frontier back as the rows do.
    ///
    /// Results therefore depend on how the streams interleave, and are those of the table's last
    /// version only for rows sent behind it.
    ///
    /// # Errors
    /// Opening the state failed.
    fn lookup_join<U, G, V, R>(
        self,
        updates: Keyed<'scope, T, U, G>,
        spec: Spec,
        value: impl Fn(&U) -> Option<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: State,
        R: Clone + 'static;
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
                input.for_each_time(|capability, batches| {
                    let time = capability.time();
                    let found = batches.flat_map(|batch| batch.drain(..)).filter_map(|row| {
                        let key = key(&row);
                        Some((pair(&key, &row, table.get(&key))?, time.clone(), 1))
                    });
                    output.session(&capability).give_iterator(found);
                });
            }
        })
    }

    fn lookup_join<U, G, V, R>(
        self,
        updates: Keyed<'scope, T, U, G>,
        spec: Spec,
        value: impl Fn(&U) -> Option<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: State,
        R: Clone + 'static,
    {
        let name = spec.id().to_owned();
        let states = OperatorState::new(&self.state, spec)?;
        let mut table = states.map::<K, V>("table")?;
        let prepared = Prepared::<K>::new::<T, Arrival<U, D>>(&self.state, &states)?;
        let rows_pact = owner_pact(&self.state, &self.key);
        let updates_pact = owner_pact(&updates.state, &updates.key);
        let (row_key, update_key, scope) = (self.key, updates.key, self.stream.scope());
        let mut keyed: Vec<(K, Arrival<U, D>)> = Vec::new();
        let mut apply = move |at: &Right<'_, T>,
                              work: Work<'_, K, Arrival<U, D>>,
                              output: &mut OutputBuilderSession<'_, T, Builder<(R, T, i64)>>|
              -> Result<()> {
            let Work::Rows(arrived) = work else { unreachable!("there are no timers") };
            let mut session = output.session(at);
            let mut done = 0;
            let outcome = loop {
                let Some((key, first)) = arrived.get(done) else { break Ok(()) };
                if let Arrival::Update(update) = first {
                    if let Err(error) = change(&mut table, key, value(update)) {
                        break Err(error);
                    }
                    done += 1;
                    continue;
                }
                let is_row =
                    |(_, arrival): &&(K, Arrival<U, D>)| matches!(arrival, Arrival::Row(_));
                let rows = arrived[done..].iter().take_while(is_row).count();
                let give = |(key, arrival): &(K, Arrival<U, D>), value: Option<&V>| {
                    let Arrival::Row(row) = arrival else { return };
                    if let Some(out) = pair(key, row, value) {
                        session.give((out, at.time().clone(), 1));
                    }
                };
                match table.read_batch(&arrived[done..done + rows], |(key, _)| key, give) {
                    Ok(()) => done += rows,
                    Err(error) => {
                        done += error.applied;
                        break Err(error.error);
                    }
                }
            };
            arrived.drain(..done);
            outcome
        };
        let stream = self.stream.binary::<_, Builder<(R, T, i64)>, _, _, _, _>(
            updates.stream,
            rows_pact,
            updates_pact,
            &name,
            |_, info| {
                let mut intake = prepared.start::<T, Arrival<U, D>>(scope, &info);
                move |rows, updates, output| {
                    intake.resume(|at, work| apply(at, work, output));
                    // Batch by batch, as grouping by time would not keep their order.
                    updates.for_each(|capability, batch| {
                        let updates = batch.drain(..).map(|u| (update_key(&u), Arrival::Update(u)));
                        keyed.extend(updates);
                        intake.offer(&capability, &mut keyed, |at, work| apply(at, work, output));
                    });
                    rows.for_each_time(|capability, batches| {
                        for batch in batches {
                            keyed.extend(batch.drain(..).map(|d| (row_key(&d), Arrival::Row(d))));
                            intake
                                .offer(&capability, &mut keyed, |at, work| apply(at, work, output));
                        }
                    });
                }
            },
        );
        Ok(stream)
    }
}

/// What arrives at the owner of a key.
enum Arrival<U, D> {
    Update(U),
    Row(D),
}

/// Applies an update to the table.
fn change<K: Key, V: State>(table: &mut Map<K, V>, key: &K, value: Option<V>) -> Result<()> {
    match value {
        Some(value) => table.put(key.clone(), value).map(drop).map_err(|rejected| rejected.error),
        None => table.remove(key).map(drop),
    }
}
