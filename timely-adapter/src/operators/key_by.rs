//! Keyed streams: which worker a row belongs to.

use std::fmt;
use std::rc::Rc;

use alluvium::Key;
use timely::ExchangeData;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::progress::Timestamp;

use crate::job::worker::WorkerState;

/// Extension trait: assigns keys to the rows of a stream.
///
/// ```
/// use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         [3u64, 14, 15].to_stream(scope)
///             .container::<Vec<_>>()
///             .key_by(state, |number| number % 10)
///             .rolling(Spec::new("last-digits"), Counting)?
///             .inspect(|change| println!("{change:?}"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait KeyBy<'scope, T: Timestamp, D> {
    /// Gives each row a key. Moves no data yet: the operator that follows sends each row to the
    /// worker that owns the key's group. It hashes the key once, or not at all if there is one
    /// worker.
    ///
    /// `key` must be a pure function of the row. The sending and the receiving worker both call it,
    /// so keys do not travel.
    fn key_by<K, F>(self, state: &WorkerState, key: F) -> Keyed<'scope, T, D, F>
    where
        K: Key,
        F: Fn(&D) -> K + 'static;
}

impl<'scope, T: Timestamp, D: ExchangeData> KeyBy<'scope, T, D> for StreamVec<'scope, T, D> {
    fn key_by<K, F>(self, state: &WorkerState, key: F) -> Keyed<'scope, T, D, F>
    where
        K: Key,
        F: Fn(&D) -> K + 'static,
    {
        Keyed { stream: self, state: state.clone(), key: Rc::new(key) }
    }
}

/// A stream whose rows have keys; made by [`KeyBy::key_by`].
///
/// Continue with [`Rolling`](crate::Rolling), [`Join`](crate::Join),
/// [`Windowing`](crate::Windowing) or [`Stateful`](crate::Stateful).
///
/// An operator applies the rows of a key in the order of their arrival, also if they wait for a
/// read. Timely's own operators before it (`map`, `filter`) may change the order of batches of one
/// time.
pub struct Keyed<'scope, T: Timestamp, D, F> {
    pub(crate) stream: StreamVec<'scope, T, D>,
    pub(crate) state: WorkerState,
    pub(crate) key: Rc<F>,
}

impl<T: Timestamp, D, F> fmt::Debug for Keyed<'_, T, D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Sends rows to the owner of their key.
///
/// It returns the owner's index itself, which Timely's masking and modulo both leave as it is.
pub(crate) fn owner_pact<K, D, F>(
    state: &WorkerState,
    key: &Rc<F>,
) -> Exchange<D, impl FnMut(&D) -> u64 + use<K, D, F>>
where
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    let (route, key) = (state.router(), key.clone());
    Exchange::<D, _>::new(move |row: &D| route(key(row).key_hash()))
}

/// The container builder of the operators' outputs.
pub(crate) type Builder<D> = CapacityContainerBuilder<Vec<D>>;
