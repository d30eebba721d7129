//! q3 to q8 of the testbed as they are written in Timely without managed state: maps of the standard
//! library in operators. What managed state costs shows beside them. Nothing of theirs is in a
//! checkpoint.
//!
//! Two shapes: [`join`], and [`on_maps`] for what waits until the watermark has passed a time.

mod joins;
mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use alluvium::KeyHash;
use alluvium_timely::Changes;
use timely::ExchangeData;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

pub use joins::{Q3Plain, Q8Plain};
pub use windows::{Q5Plain, Q7Plain};

/// A query: its name, its row, and its results of the events. Runs of it take no checkpoints.
macro_rules! plain_query {
    ($(#[$doc:meta])* $query:ident, $name:literal, $row:ty: |$events:ident| $build:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $query;

        impl $crate::queries::Query for $query {
            type Row = $row;
            const NAME: &'static str = $name;
            const NO_CHECKPOINTS: Option<&'static str> = Some("keeps its state in plain maps");

            fn build<'scope>(
                $events: $crate::queries::Events<'scope>,
                _: &alluvium_timely::WorkerState,
            ) -> alluvium::Result<alluvium_timely::Changes<'scope, i64, $row>> {
                Ok($build)
            }
        }
    };
}

pub(super) use plain_query;

type Builder<R> = CapacityContainerBuilder<Vec<(R, i64, i64)>>;

/// What an operator keeps.
pub(super) trait Maps<In>: 'static {
    /// A row of its result.
    type Out: Clone + 'static;

    /// Takes a row. `ask` wants a key to be looked at when the watermark has passed a time.
    fn take(&mut self, row: In, watermark: i64, ask: Ask<'_>);

    /// Looks at a key. `emit` takes a row with its time, which is not before the one asked for.
    fn due(&mut self, alarm: Alarm, emit: &mut dyn FnMut(i64, Self::Out), ask: Ask<'_>);
}

/// Takes a time and a key.
pub(super) type Ask<'a> = &'a mut dyn FnMut(i64, u64);

/// A key whose time has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarm {
    pub(super) at: i64,
    pub(super) key: u64,
    pub(super) watermark: i64,
}

/// Keys to look at, and the right to emit at that time.
type Alarms = BTreeMap<i64, (Capability<i64>, BTreeSet<u64>)>;

fn set(alarms: &mut Alarms, capability: &Capability<i64>, at: i64, key: u64) {
    // No row is before the time of its batch.
    let at = at.max(*capability.time());
    let (_, keys) = alarms.entry(at).or_insert_with(|| (capability.delayed(&at), BTreeSet::new()));
    keys.insert(key);
}

/// An operator with maps; rows of equal `key` come to the same worker.
pub(super) fn on_maps<'scope, In: ExchangeData, M: Maps<In>>(
    rows: StreamVec<'scope, i64, In>,
    name: &str,
    key: impl Fn(&In) -> u64 + 'static,
    mut maps: M,
) -> Changes<'scope, i64, M::Out> {
    let pact = Exchange::new(move |row: &In| key(row).key_hash());
    rows.unary_frontier::<Builder<M::Out>, _, _, _>(pact, name, |_, _| {
        let mut alarms = Alarms::new();
        move |(input, frontier), output| {
            let watermark = frontier.frontier().first().copied().unwrap_or(i64::MAX);
            input.for_each_time(|capability, batches| {
                let capability = capability.retain(0);
                let ask = &mut |at, key| set(&mut alarms, &capability, at, key);
                for row in batches.flat_map(|batch| batch.drain(..)) {
                    maps.take(row, watermark, ask);
                }
            });
            while let Some(entry) = alarms.first_entry()
                && *entry.key() < watermark
            {
                let (at, (capability, keys)) = entry.remove_entry();
                let mut emitted = Vec::new();
                for key in keys {
                    let emit = &mut |at, row| emitted.push((row, at, 1));
                    let ask = &mut |at, key| set(&mut alarms, &capability, at, key);
                    maps.due(Alarm { at, key, watermark }, emit, ask);
                }
                output.session(&capability).give_iterator(emitted.into_iter());
            }
        }
    })
}

/// The rows of one side of a join, and their key.
pub(super) type Side<'scope, A, K> = (StreamVec<'scope, i64, A>, fn(&A) -> K);

/// Pairs of both sides with equal keys, each side kept for ever.
pub(super) fn join<'scope, K, A, B, R>(
    (left, left_key): Side<'scope, A, K>,
    (right, right_key): Side<'scope, B, K>,
    name: &str,
    mut pair: impl FnMut(&A, &B) -> Option<R> + 'static,
) -> Changes<'scope, i64, R>
where
    K: KeyHash + Hash + Eq + 'static,
    A: ExchangeData,
    B: ExchangeData,
    R: Clone + 'static,
{
    let by_left = Exchange::new(move |row: &A| left_key(row).key_hash());
    let by_right = Exchange::new(move |row: &B| right_key(row).key_hash());
    let mut lefts: HashMap<K, Vec<A>> = HashMap::new();
    let mut rights: HashMap<K, Vec<B>> = HashMap::new();
    let mut rows = Vec::new();
    left.binary::<_, Builder<R>, _, _, _, _>(right, by_left, by_right, name, |_, _| {
        move |left, right, output| {
            left.for_each_time(|capability, batches| {
                let time = *capability.time();
                for row in batches.flat_map(|batch| batch.drain(..)) {
                    let key = left_key(&row);
                    let others = rights.get(&key).into_iter().flatten();
                    let pairs = others.filter_map(|other| pair(&row, other));
                    rows.extend(pairs.map(|row| (row, time, 1)));
                    lefts.entry(key).or_default().push(row);
                }
                output.session(&capability).give_iterator(rows.drain(..));
            });
            right.for_each_time(|capability, batches| {
                let time = *capability.time();
                for row in batches.flat_map(|batch| batch.drain(..)) {
                    let key = right_key(&row);
                    let others = lefts.get(&key).into_iter().flatten();
                    let pairs = others.filter_map(|other| pair(other, &row));
                    rows.extend(pairs.map(|row| (row, time, 1)));
                    rights.entry(key).or_default().push(row);
                }
                output.session(&capability).give_iterator(rows.drain(..));
            });
        }
    })
}
