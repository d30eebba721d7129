//! The second half of a migratable operator: applies rows to the groups that are here, and installs
//! groups that come.
//!
//! What it keeps true: a row is applied if its group is here by the move that its router knew last before
//! the row's time; else the group is on its way, and the row waits for it with its time. A chunk that is
//! not installed yet holds the time of the move. Timers of a group fire when it is here in full, after
//! the rows that waited for it.

use alluvium::{Key, Result, Time};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use super::arrivals::{Arrivals, Host};
use super::progress::{Progress, observe};
use super::router;
use super::{Chunk, Migratable, Routed};
use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::intake::{Right, Work};
use crate::key_by::Builder;
use crate::spec::{OperatorState, Spec};
use crate::stateful::{Body, Context, Output, Stateful, begin, limit_of};

/// The operator while a group arrives.
struct At<'a, 'o, S, T: EventTime, K: Key + Ord, R: Clone + 'static, A, B> {
    body: &'a mut Body<S, T, K, R, A, B>,
    watermark: Time,
    output: &'a mut Output<'o, T, R>,
}

impl<S, T, K, D, R, A, B> Host<T, K, D> for At<'_, '_, S, T, K, R, A, B>
where
    T: EventTime,
    K: Key + Ord,
    R: Clone + 'static,
    A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()>,
    B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()>,
{
    fn has_come(&mut self, right: &Capability<T>) {
        self.body.hold_for_timers(right);
    }

    fn apply(&mut self, right: &Right<'_, T>, work: Work<'_, K, D>) -> Result<()> {
        self.body.apply(self.watermark, right, work, self.output)
    }
}

impl<'scope, T, K, D, F> Stateful<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn stateful<S, R, L>(
        self,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        R: Clone + 'static,
        L: Clone,
    {
        let Migratable { keyed, control } = self;
        let name = spec.id().to_owned();
        let opener = OperatorState::moving_of_closures(&keyed.state, spec)?;
        let (mut body, prepared) =
            begin::<T, K, D, _, _, _, _, _>(&keyed.state, &opener, open, rows, due)?;
        let mover = opener.mover().expect("a moving operator has one").clone();
        let (key, scope, progress) = (keyed.key, keyed.stream.scope(), Progress::new());
        let unit = (name.as_str(), mover.clone());
        let (routed, chunks) = router::route(
            keyed.stream,
            control,
            key.clone(),
            &keyed.state,
            unit,
            &progress,
            false,
        )?;
        let rows_pact = Exchange::<Routed<D>, _>::new(|row: &Routed<D>| u64::from(row.0));
        let chunks_pact = Exchange::<Chunk, _>::new(|chunk: &Chunk| u64::from(chunk.to));
        let groups = keyed.state.key_groups();
        let mut fired: Vec<(Time, K)> = Vec::new();
        let mut ready = Vec::<(K, D)>::new();
        let changes = routed.binary_frontier::<_, Builder<_>, _, _, _, _>(
            chunks,
            rows_pact,
            chunks_pact,
            &name,
            |first, info| {
                let mut intake = prepared.start::<T, D>(scope, &info);
                let activator = scope.activator_for(info.address.clone());
                let again = scope.activator_for(info.address.clone());
                let mut arrivals =
                    Arrivals::<T, K, D>::new(mover, groups, progress.clone(), activator);
                body.hold_restored(first);
                move |(rows, of_rows), (chunks, of_chunks), output| {
                    let owed = body.owed();
                    let now = || watermark(of_rows).min(watermark(of_chunks));
                    let watermark = owed.unwrap_or_else(now);
                    // Nothing sees later time than the rows that wait for their groups.
                    body.wait_for(arrivals.limit());
                    let seen = limit_of(watermark, &intake);
                    intake.resume(|right, work| body.apply(seen, right, work, output));
                    if owed.is_some() {
                        // Input waits until the timers have fired that were due before it.
                        let limit = limit_of(watermark, &intake);
                        body.fire(limit, &mut fired, &mut intake, output);
                        body.hold_next(of_rows.is_empty() && of_chunks.is_empty());
                        body.owe(watermark, limit);
                        again.activate();
                        return;
                    }
                    // Batch by batch, as grouping by time would not keep their order.
                    chunks.for_each(|capability, batch| {
                        for chunk in batch.drain(..) {
                            arrivals.take(capability.retain(0), chunk);
                        }
                    });
                    body.wait_for(arrivals.limit());
                    let mut at = At { body: &mut body, watermark, output: &mut *output };
                    arrivals.install(&mut intake, &mut at);
                    rows.for_each(|capability, batch| {
                        let right = || capability.retain(0);
                        arrivals.sort(batch.drain(..), &*key, right, &mut ready);
                        body.wait_for(arrivals.limit());
                        if !ready.is_empty() {
                            intake.offer(&capability, &mut ready, |right, work| {
                                body.apply(watermark, right, work, output)
                            });
                        }
                    });
                    body.wait_for(arrivals.limit());
                    let limit = limit_of(watermark, &intake);
                    body.fire(limit, &mut fired, &mut intake, output);
                    body.hold_next(of_rows.is_empty() && of_chunks.is_empty());
                    if body.owe(watermark, limit) {
                        again.activate();
                    }
                }
            },
        );
        Ok(observe(changes, &name, progress))
    }
}
