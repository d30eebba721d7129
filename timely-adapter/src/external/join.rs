//! The join of keyed rows with an external table, as a dataflow.

use std::rc::Rc;

use alluvium::types::HeapSize;
use alluvium::{Key, Result};
use timely::ExchangeData;
use timely::dataflow::operators::generic::operator::{Operator, empty};
use timely::progress::Timestamp;

use super::asking::{JoinedRows, PreparedJoin};
use super::{External, ExternalTable, Told};
use crate::Changes;
use crate::operators::key_by::{Builder, Keyed, owner_pact};

/// Extension trait: look-ups of keyed rows in tables that lie outside of the job.
///
/// `pair` gets the key, the row and the value that the table has for the key, and says what comes out:
/// an inner join gives `None` where there is no value, a left outer join always gives a row. Rows go to
/// the owner of their key, which asks the table and lets the row wait for the answer, other rows passing
/// it; rows of a key stay in order. Rows come out with the timestamp they came with, and as changes by one.
///
/// # What holds when another program changes the table
///
/// A row sees a value that the table had at some moment between when the row arrived at its owner and
/// when it came out. If there is a [cache](External::cache), that moment may be the cache's time to live
/// earlier. More is not known: rows of two keys may see the table at different moments, in any order. Rows
/// of one key see its changes in order, each the same value as the one before it or a later one.
///
/// When a run goes on after a failure, rows after the last checkpoint are looked up again, and may see
/// another value than they saw before: results that were not [committed](crate::JobSink) then are not
/// shown twice, but are those of the later look-up.
///
/// # What holds when changes are told
///
/// If a program changes the table first and tells afterwards, by a row of `changes`, then rows that arrive
/// after the change's row see the change, with a cache or without, whatever its time to live: what is
/// cached is forgotten, and an answer that is still under way is used for rows that came before only. Once
/// a probe behind the join has passed the timestamp of the change's row, all rows sent from then on see
/// the change. Of what arrives together, changes come first.
///
/// # Errors at run time
///
/// As long as the table cannot be reached, rows wait, at most [`External::parked_max`] of them, and the
/// operator takes no further input; [`WorkerState::waiting`](crate::WorkerState::waiting) has the last
/// error. A [`Gate`](crate::Gate) at the source bounds what comes meanwhile. After
/// [`External::patience`] the run ends with the error.
pub trait LookupExternal<'scope, T: Timestamp, K: Key, D> {
    /// Looks rows up in a table of which no changes are told.
    ///
    /// # Errors
    /// What waits and is cached does not fit into memory; another operator has the id.
    fn lookup_external<V, R>(
        self,
        table: impl ExternalTable<K, V>,
        external: External,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        V: HeapSize + 'static,
        R: Clone + 'static;

    /// Looks rows up in a table of which `changes` are told, to the owner of their key.
    ///
    /// # Errors
    /// As [`lookup_external`](LookupExternal::lookup_external).
    fn lookup_external_told<U, G, V, R>(
        self,
        changes: Keyed<'scope, T, U, G>,
        table: impl ExternalTable<K, V>,
        external: External,
        told: impl Fn(&U) -> Told<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: HeapSize + 'static,
        R: Clone + 'static;
}

impl<'scope, T, K, D, F> LookupExternal<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: Timestamp,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn lookup_external<V, R>(
        self,
        table: impl ExternalTable<K, V>,
        external: External,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        V: HeapSize + 'static,
        R: Clone + 'static,
    {
        let key = |(): &()| -> K { unreachable!("the stream is empty") };
        let stream = empty(self.stream.scope());
        let nothing = Keyed { stream, state: self.state.clone(), key: Rc::new(key) };
        self.lookup_external_told(nothing, table, external, |()| Told::Changed, pair)
    }

    fn lookup_external_told<U, G, V, R>(
        self,
        changes: Keyed<'scope, T, U, G>,
        table: impl ExternalTable<K, V>,
        external: External,
        told: impl Fn(&U) -> Told<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: HeapSize + 'static,
        R: Clone + 'static,
    {
        let registered = self.state.register(external.id())?;
        let prepared = PreparedJoin::new::<T, K, D, V>(&self.state, external, registered)?;
        let rows_pact = owner_pact(&self.state, &self.key);
        let changes_pact = owner_pact(&changes.state, &changes.key);
        let (row_key, change_key, scope) = (self.key, changes.key, self.stream.scope());
        let name = prepared.external().id().to_owned();
        let stream = self.stream.binary::<_, Builder<(R, T, i64)>, _, _, _, _>(
            changes.stream,
            rows_pact,
            changes_pact,
            &name,
            |_, info| {
                let mut join = prepared.start(scope, &info, Box::new(table));
                let (mut given, mut taken) = (Vec::new(), Vec::new());
                move |rows, changes, output| {
                    let mut out = JoinedRows::new(&pair, output, &mut given);
                    join.rearm();
                    changes.for_each(|_, batch| {
                        let told = batch.drain(..).map(|row| (change_key(&row), told(&row)));
                        told.for_each(|(key, told)| join.told(key, told));
                    });
                    join.take_answers(&mut out);
                    join.take_staged(&mut out);
                    rows.for_each(|capability, batch| {
                        let capability = capability.retain(0);
                        taken.extend(batch.drain(..).map(|row| (row_key(&row), row)));
                        join.offer(capability, &mut taken, &mut out);
                    });
                    out.flush();
                    join.ask();
                }
            },
        );
        Ok(stream)
    }
}
