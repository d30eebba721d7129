//! The incremental, unbounded join of two keyed streams.

use std::cell::Cell;

use alluvium::{Error, Key, Map, Result, State};
use timely::ExchangeData;
use timely::dataflow::operators::generic::operator::Operator;
use timely::progress::Timestamp;

use crate::Changes;
use crate::fault::Guard;
use crate::key_by::{Builder, Keyed, owner_pact};
use crate::spec::{OperatorState, Spec};

/// Extension trait: joins.
pub trait Join<'scope, T: Timestamp, K: Key, A> {
    /// Pairs each row with all rows of the other stream that have its key, and emits what `pair`
    /// makes of them as a row that comes. Both streams are multisets of rows; all of them are
    /// kept for ever, in lists per key, in the states `id/left` and `id/right`.
    ///
    /// # Errors
    /// Opening the states failed.
    fn join<B, G, R>(
        self,
        other: Keyed<'scope, T, B, G>,
        spec: Spec,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static;
}

impl<'scope, T, K, A, F> Join<'scope, T, K, A> for Keyed<'scope, T, A, F>
where
    T: Timestamp,
    K: Key,
    A: ExchangeData + State,
    F: Fn(&A) -> K + 'static,
{
    fn join<B, G, R>(
        self,
        other: Keyed<'scope, T, B, G>,
        spec: Spec,
        pair: impl Fn(&K, &A, &B) -> R + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        B: ExchangeData + State,
        G: Fn(&B) -> K + 'static,
        R: Clone + 'static,
    {
        let name = spec.id().to_owned();
        let states = OperatorState::new(&self.state, spec)?;
        let mut left = Side::<K, A>::new(states.map("left")?);
        let mut right = Side::<K, B>::new(states.map("right")?);
        let left_pact = owner_pact(&self.state, &self.key);
        let right_pact = owner_pact(&other.state, &other.key);
        let (left_key, right_key) = (self.key, other.key);
        let mut guard = Guard::<T>::new(&self.state);
        let stream = self.stream.binary::<_, Builder<(R, T, i64)>, _, _, _, _>(
            other.stream,
            left_pact,
            right_pact,
            &name,
            |_, _| {
                move |left_input, right_input, output| {
                    left_input.for_each_time(|capability, batches| {
                        let time = capability.time().clone();
                        let mut session = output.session(&capability);
                        for batch in batches {
                            if !guard.admits(&capability) {
                                return;
                            }
                            left.fill(batch, &*left_key);
                            let meet = |key: &K, a: &A, b: &B| {
                                session.give((pair(key, a, b), time.clone(), 1));
                            };
                            let done = left.meet(&mut right.rows, meet);
                            guard.check(&capability, done.and_then(|()| left.keep()));
                        }
                    });
                    right_input.for_each_time(|capability, batches| {
                        let time = capability.time().clone();
                        let mut session = output.session(&capability);
                        for batch in batches {
                            if !guard.admits(&capability) {
                                return;
                            }
                            right.fill(batch, &*right_key);
                            let meet = |key: &K, b: &B, a: &A| {
                                session.give((pair(key, a, b), time.clone(), 1));
                            };
                            let done = right.meet(&mut left.rows, meet);
                            guard.check(&capability, done.and_then(|()| right.keep()));
                        }
                    });
                }
            },
        );
        Ok(stream)
    }
}

/// One side of a join: its rows so far and the batch that is being added to them.
struct Side<K: Key, A: State> {
    rows: Map<K, Vec<A>>,
    /// Rows are moved out through a shared reference, once each.
    batch: Vec<(K, Cell<Option<A>>)>,
}

impl<K: Key, A: State> Side<K, A> {
    fn new(rows: Map<K, Vec<A>>) -> Self {
        Self { rows, batch: Vec::new() }
    }

    fn fill(&mut self, batch: &mut Vec<A>, key: impl Fn(&A) -> K) {
        self.batch.clear();
        self.batch.extend(batch.drain(..).map(|row| (key(&row), Cell::new(Some(row)))));
    }

    /// Pairs the batch with the other side's rows.
    fn meet<B: State>(
        &self,
        others: &mut Map<K, Vec<B>>,
        mut meet: impl FnMut(&K, &A, &B),
    ) -> Result<()> {
        let done = others.read_batch(
            &self.batch,
            |row| &row.0,
            |(key, row), others| {
                let Some(taken) = row.take() else { return };
                for other in others.into_iter().flatten() {
                    meet(key, &taken, other);
                }
                row.set(Some(taken));
            },
        );
        done.map_err(Error::from)
    }

    /// Adds the batch to this side's rows.
    fn keep(&mut self) -> Result<()> {
        let push = |(_, row): &(K, Cell<Option<A>>), rows: &mut Vec<A>| rows.extend(row.take());
        self.rows.update_batch(&self.batch, |row| &row.0, |_| Vec::new(), push)?;
        Ok(())
    }
}
