//! Two streams as one, for an operator whose key groups move: both are sent where their key group is at their
//! time, by one router.
//!
//! What it keeps true: of rows and changes of a table that come together changes are first, and each of the two
//! keeps its order.

use std::rc::Rc;

use alluvium::Key;
use serde::{Deserialize, Serialize};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::core::Concat;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;
use timely::progress::Timestamp;

use crate::operators::key_by::{Builder, KeyBy, Keyed};

/// A row of the left side of a join, or one of the right.
pub(crate) type Row<A, B> = std::result::Result<A, B>;

/// Makes one stream of the two sides of a join. Moves no data.
#[expect(clippy::type_complexity, reason = "the stream's type names the function of its key")]
pub(crate) fn both_sides<'scope, T, K, A, B, F, G>(
    left: Keyed<'scope, T, A, F>,
    right: Keyed<'scope, T, B, G>,
) -> Keyed<'scope, T, Row<A, B>, impl Fn(&Row<A, B>) -> K + use<T, K, A, B, F, G>>
where
    T: Timestamp,
    K: Key,
    A: ExchangeData,
    B: ExchangeData,
    F: Fn(&A) -> K + 'static,
    G: Fn(&B) -> K + 'static,
{
    let (left_key, right_key) = (left.key, right.key);
    let key = move |row: &Row<A, B>| match row {
        Ok(row) => left_key(row),
        Err(row) => right_key(row),
    };
    left.stream.map(Ok).concat(right.stream.map(Err)).key_by(&left.state, key)
}

/// What comes to the owner of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Arrival<D, U> {
    Row(D),
    Change(U),
}

impl<D, U> Arrival<D, U> {
    pub(crate) fn is_row(&self) -> bool {
        matches!(self, Arrival::Row(_))
    }
}

/// Makes one stream of two. Moves no data.
#[expect(clippy::type_complexity, reason = "the stream's type names the function of its key")]
pub(crate) fn merged<'scope, T, K, D, U, F, G>(
    rows: Keyed<'scope, T, D, F>,
    changes: Keyed<'scope, T, U, G>,
    name: &str,
) -> Keyed<'scope, T, Arrival<D, U>, impl Fn(&Arrival<D, U>) -> K + use<T, K, D, U, F, G>>
where
    T: Timestamp,
    K: Key,
    D: ExchangeData,
    U: ExchangeData,
    F: Fn(&D) -> K + 'static,
    G: Fn(&U) -> K + 'static,
{
    let Keyed { stream, state, key: of_row } = rows;
    let Keyed { stream: changes, key: of_change, .. } = changes;
    let name = format!("{name}: rows and changes");
    let stream = stream.binary::<_, Builder<Arrival<D, U>>, _, _, _, _>(
        changes,
        Pipeline,
        Pipeline,
        &name,
        |_, _| {
            move |rows, changes, output| {
                // Batch by batch, as grouping by time would not keep their order.
                changes.for_each(|right, batch| {
                    output.session(&right).give_iterator(batch.drain(..).map(Arrival::Change));
                });
                rows.for_each(|right, batch| {
                    output.session(&right).give_iterator(batch.drain(..).map(Arrival::Row));
                });
            }
        },
    );
    let key = Rc::new(move |arrival: &Arrival<D, U>| match arrival {
        Arrival::Row(row) => of_row(row),
        Arrival::Change(change) => of_change(change),
    });
    Keyed { stream, state, key }
}
