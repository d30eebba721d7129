//! The second half of a migratable operator: applies rows to the groups that are here, and installs
//! groups that come.
//!
//! What it keeps true: a row is applied if its group is here by the move that its router knew last before
//! the row's time; else the group is on its way, and the row waits for it with its time. A chunk that is
//! not installed yet holds the time of the move. Timers of a group fire when it is here in full, after
//! the rows that waited for it.

use alluvium::moving::Mover;
use alluvium::{Key, Result, Time, Windows};
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;

use super::arrivals::{ArrivalHost, Arrivals};
use super::progress::{MigrationProgress, observe};
use super::{GroupChunk, Migratable, MoveGroup, Routed, router};
use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::intake::{EmitRight, IntakeWork, PreparedIntake};
use crate::operators::key_by::{Builder, Keyed};
use crate::operators::placing::Moved;
use crate::operators::shell::{OperatorBody, RowOutput, StepBounds, limit_of};
use crate::operators::spec::{OperatorState, Spec};
use crate::operators::stateful::{Context, Stateful, begin};
use crate::operators::windows::{Windowed, Windowing};

/// The operator while a group arrives.
struct GroupArrival<'a, 'o, T: EventTime, B, R: 'static> {
    body: &'a mut B,
    output: &'a mut RowOutput<'o, T, R>,
}

impl<T: EventTime, K: Key, D, B: OperatorBody<T, K, D>> ArrivalHost<T, K, D>
    for GroupArrival<'_, '_, T, B, B::Row>
{
    fn group_arrived(&mut self, right: &Capability<T>) {
        self.body.group_arrived(right);
    }

    fn apply(&mut self, right: &EmitRight<'_, T>, work: IntakeWork<'_, K, D>) -> Result<()> {
        self.body.apply(right, work, self.output)
    }
}

/// The operator, with the router in front of it.
pub(crate) fn moving<'scope, T, K, D, F, B>(
    (keyed, control): (Keyed<'scope, T, D, F>, StreamVec<'scope, T, MoveGroup>),
    (name, mover): (&str, Mover),
    prepared: PreparedIntake<K>,
    mut body: B,
) -> Result<StreamVec<'scope, T, B::Row>>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
    B: OperatorBody<T, K, D>,
{
    let Keyed { stream, state, key } = keyed;
    let (scope, progress, groups) = (stream.scope(), MigrationProgress::new(), state.key_groups());
    let unit = (name, mover.clone());
    let (routed, chunks) =
        router::route(stream, control, key.clone(), &state, unit, &progress, B::LEAVES_AT_ONCE)?;
    let rows_pact = Exchange::<Routed<D>, _>::new(|row: &Routed<D>| u64::from(row.0));
    let chunks_pact = Exchange::<GroupChunk, _>::new(|chunk: &GroupChunk| u64::from(chunk.to));
    let mut ready = Vec::<(K, D)>::new();
    let out = routed.binary_frontier::<_, Builder<B::Row>, _, _, _, _>(
        chunks,
        rows_pact,
        chunks_pact,
        name,
        |first, info| {
            let mut intake = prepared.start::<T, D>(scope, &info);
            let activator = scope.activator_for(info.address.clone());
            let waker = scope.activator_for(info.address.clone());
            let mut arrivals = Arrivals::<T, K, D>::new(mover, groups, progress.clone(), waker);
            body.begin(first);
            move |(rows, of_rows), (chunks, of_chunks), output| {
                let unfinished = body.unfinished();
                let now = || watermark(of_rows).min(watermark(of_chunks));
                let watermark = unfinished.unwrap_or_else(now);
                // Nothing sees later time than the rows that wait for their groups.
                body.set_arriving(arrivals.limit());
                body.set_watermark(limit_of(watermark, &intake));
                intake.resume(|right, work| body.apply(right, work, output));
                if unfinished.is_none() {
                    body.set_watermark(watermark);
                    // Batch by batch, as grouping by time would not keep their order.
                    chunks.for_each(|capability, batch| {
                        for chunk in batch.drain(..) {
                            arrivals.take(capability.retain(0), chunk);
                        }
                    });
                    body.set_arriving(arrivals.limit());
                    let mut at = GroupArrival { body: &mut body, output: &mut *output };
                    arrivals.install(&mut intake, &mut at);
                    rows.for_each(|capability, batch| {
                        let right = || capability.retain(0);
                        arrivals.sort(batch.drain(..), &*key, right, &mut ready);
                        body.set_arriving(arrivals.limit());
                        if !ready.is_empty() {
                            let apply = |right: &EmitRight<'_, T>, work: IntakeWork<'_, K, D>| {
                                body.apply(right, work, output)
                            };
                            intake.offer(&capability, &mut ready, apply);
                        }
                    });
                    body.set_arriving(arrivals.limit());
                }
                let limit = limit_of(watermark, &intake);
                let has_ended = of_rows.is_empty() && of_chunks.is_empty();
                let now = StepBounds { watermark, limit, has_ended };
                if body.advance(now, &mut intake, output) || unfinished.is_some() {
                    activator.activate();
                }
            }
        },
    );
    Ok(observe(out, name, progress))
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
        let (body, prepared) =
            begin::<T, K, D, _, _, _, _, _>(&keyed.state, &opener, open, rows, due)?;
        let mover = opener.mover().expect("a moving operator has one").clone();
        moving((keyed, control), (&name, mover), prepared, body)
    }
}

/// A group moves at one watermark, the time of the move, to which all workers have advanced and with which they are
/// done. Where it comes to, no window goes past that time before it is there in full, after the rows that waited for it:
/// each window of a key fires once, at the worker that has the key at its time.
impl<'scope, T, K, D, F> Windowing<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    type KeyOf = F;
    type Placing = Moved<'scope, T>;

    fn window<G>(self, windows: Windows, at: G) -> Windowed<'scope, T, D, F, G, Self::Placing>
    where
        G: Fn(&D) -> Time + 'static,
    {
        Windowed::of(self.keyed, Moved(self.control), windows, at)
    }
}
