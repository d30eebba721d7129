//! Joins that enrich rows with what a table says at the moment, and keep no rows.

use alluvium::{BatchError, Key, Layout, Map, Result, State};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;

use crate::Changes;
use crate::intake::{Prepared, Right, Work};
use crate::operators::key_by::{Builder, Keyed};
use crate::operators::shared_table::SharedTable;
use crate::operators::shell::{Output, untimed_of_two};
use crate::operators::spec::{OperatorState, Spec};

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
    /// - Rows and updates of a key that wait for a read of it from storage keep their order.
    /// - A row that arrives before an update does not see it, even with a later timestamp. Once a
    ///   probe behind the join has passed the timestamp of an update, all rows sent from then on
    ///   see it: the table holds the join's frontier back as the rows do.
    ///
    /// Results therefore depend on how the streams interleave, and are those of the table's last
    /// version only for rows sent behind it.
    ///
    /// # Errors
    /// Opening the state failed.
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
        let mut table = states.map::<K, V>("table")?;
        let prepared = Prepared::<K>::new::<T, Arrival<D, U>>(&self.state, &states)?;
        let apply = move |right: &Right<'_, T>,
                          work: Work<'_, K, Arrival<D, U>>,
                          output: &mut Output<'_, T, (R, T, i64)>|
              -> Result<()> {
            let Work::Rows(rows) = work else { unreachable!("there are no timers") };
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
                    change(&mut table, &rows[..alike], &value)
                };
                match done {
                    Ok(()) => drop(rows.drain(..alike)),
                    Err(error) => return Err(error.leave_rest(rows)),
                }
            }
            Ok(())
        };
        let (updates, rows) = ((updates, Arrival::Update), (self, Arrival::Row));
        Ok(untimed_of_two(updates, rows, &name, prepared, apply))
    }
}

/// What comes to the owner of a key.
enum Arrival<D, U> {
    Row(D),
    Update(U),
}

impl<D, U> Arrival<D, U> {
    fn is_row(&self) -> bool {
        matches!(self, Arrival::Row(_))
    }
}

/// Applies updates to the table, in their order, until one fails.
fn change<K: Key, V: State, L: Layout<K, V>, D, U>(
    table: &mut Map<K, V, L>,
    updates: &[(K, Arrival<D, U>)],
    value: &impl Fn(&U) -> Option<V>,
) -> std::result::Result<(), BatchError> {
    for (applied, (key, update)) in updates.iter().enumerate() {
        let Arrival::Update(update) = update else { continue };
        let done = match value(update) {
            Some(value) => table.put(key.clone(), value).map_err(|rejected| rejected.error),
            None => table.remove(key),
        };
        done.map_err(|error| BatchError { applied, error })?;
    }
    Ok(())
}
