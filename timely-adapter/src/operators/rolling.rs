//! Aggregates that answer on every record.

use alluvium::{Aggregate, Key, Layout};
use timely::ExchangeData;
use timely::progress::Timestamp;

use crate::Changes;
use crate::intake::{EmitRight, IntakeWork, PreparedIntake};
use crate::operators::key_by::Keyed;
use crate::operators::shell::{RowOutput, untimed};
use crate::operators::spec::{OperatorState, Spec};

/// Rows after which changes are passed on: so many changes stay in the cache until then.
pub(crate) const PART: usize = 256;

/// Extension trait: aggregates that answer on each row.
///
/// ```
/// use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         ["to", "be", "to"].map(String::from).to_stream(scope)
///             .container::<Vec<_>>()
///             .key_by(state, String::clone)
///             .rolling(Spec::new("words"), Counting)?
///             // ((to, 1), +1), ((be, 1), +1), ((to, 1), -1), ((to, 2), +1)
///             .inspect(|((word, count), _, diff)| println!("{word} {count} {diff:+}"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait Rolling<'scope, T: Timestamp, K: Key, D> {
    /// Folds each row into its key's aggregate when it arrives, whatever its time. Emits a change
    /// of the result: the old result with -1, the new one with +1. The state `id/groups` keeps one
    /// accumulator per key for ever.
    ///
    /// # Errors
    /// Those of opening the state.
    fn rolling<A: Aggregate<D>, L: Layout<K, A::Acc>>(
        self,
        spec: Spec<L>,
        aggregate: A,
    ) -> alluvium::Result<Changes<'scope, T, (K, A::Out)>>;
}

impl<'scope, T, K, D, F> Rolling<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: Timestamp,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn rolling<A: Aggregate<D>, L: Layout<K, A::Acc>>(
        self,
        spec: Spec<L>,
        aggregate: A,
    ) -> alluvium::Result<Changes<'scope, T, (K, A::Out)>> {
        let name = spec.id().to_owned();
        let states = OperatorState::new(&self.state, spec)?;
        let mut groups = states.map::<K, A::Acc>("groups")?;
        let prepared = PreparedIntake::<K>::new::<T, D>(&self.state, &states)?;
        let mut changes = Vec::new();
        let apply = move |right: &EmitRight<'_, T>,
                          work: IntakeWork<'_, K, D>,
                          output: &mut RowOutput<'_, T, _>| {
            let IntakeWork::Rows(rows) = work else { unreachable!("there are no timers") };
            let (mut session, time) = (output.session(right), right.time());
            let (mut applied, mut done) = (0, Ok(()));
            for part in rows.chunks(PART) {
                // A short loop: the fewer instructions there are between two keys, the more of
                // their cache misses overlap.
                let change = |(key, row): &(K, D), acc: &mut A::Acc| {
                    aggregate.fold(acc, row, |out, diff| {
                        changes.push(((key.clone(), out), time.clone(), diff));
                    });
                };
                let folded = groups.update_batch(part, |row| &row.0, |_| aggregate.init(), change);
                session.give_iterator(changes.drain(..));
                match folded {
                    Ok(()) => applied += part.len(),
                    Err(error) => {
                        applied += error.applied;
                        done = Err(error.error);
                        break;
                    }
                }
            }
            rows.drain(..applied);
            done
        };
        Ok(untimed(self, &name, prepared, apply))
    }
}
