//! Windows whose key groups move between workers.
//!
//! What it keeps true: a group moves at one watermark, the time of the move, to which all workers have
//! advanced and with which they are done. It leaves its worker when the last of its chunks is sent; where
//! it comes to, no window goes past that time before it is there in full, after the rows that waited
//! for it. So each window of a key fires once, at the worker that has the key at its time.

use alluvium::{Advanced, Key, Result, Time, Windows};
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilderSession;
use timely::dataflow::operators::generic::operator::Operator;

use super::arrivals::{Arrivals, Host};
use super::progress::{Progress, observe};
use super::{Chunk, Migratable, MoveGroup, Routed, router};
use crate::event_time::{EventTime, watermark};
use crate::intake::{Prepared, Right, Work};
use crate::key_by::{Builder, Keyed};
use crate::spec::{OperatorState, Spec};
use crate::stateful::limit_of;
use crate::windows::{Body, Fires, Output, Windowed, Windowing};

impl<'scope, T, K, D, F> Windowing<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    type KeyOf = F;

    fn window<G>(self, windows: Windows, at: G) -> Windowed<'scope, T, D, F, G>
    where
        G: Fn(&D) -> Time + 'static,
    {
        Windowed::of(self.keyed, Some(self.control), windows, at)
    }
}

type Session<'a, T, K, R, D> = OutputBuilderSession<'a, T, Builder<Output<T, K, R, D>>>;

/// The operator while a group arrives.
struct At<'a, 'o, T: EventTime, K: Key, S, G, R: 'static, D: 'static> {
    body: &'a mut Body<T, S, G, K, R, D>,
    output: &'a mut Session<'o, T, K, R, D>,
}

impl<T, K, D, S, G, R> Host<T, K, D> for At<'_, '_, T, K, S, G, R, D>
where
    T: EventTime,
    K: Key,
    S: Fires<K, D, R>,
    G: Fn(&D) -> Time,
{
    fn has_come(&mut self, _: &Capability<T>) {}

    fn apply(&mut self, right: &Right<'_, T>, work: Work<'_, K, D>) -> Result<()> {
        let done = self.body.apply(right, work);
        self.output.session(right).give_iterator(self.body.out.drain(..));
        done
    }
}

/// The operator, with the router in front of it.
pub(crate) fn fire_moving<'scope, T, K, D, F, G, S, R, L>(
    keyed: Keyed<'scope, T, D, F>,
    control: StreamVec<'scope, T, MoveGroup>,
    spec: Spec<L>,
    body: impl FnOnce(&OperatorState<'_, L>) -> Result<Body<T, S, G, K, R, D>>,
) -> Result<StreamVec<'scope, T, Output<T, K, R, D>>>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
    G: Fn(&D) -> Time + 'static,
    S: Fires<K, D, R>,
    R: Clone + 'static,
    L: Clone,
{
    let name = spec.id().to_owned();
    let opener = OperatorState::moving(&keyed.state, spec)?;
    let mut body = body(&opener)?;
    // All are at one watermark, also before the first schedule.
    body.begin()?;
    let prepared = Prepared::<K>::new::<T, D>(&keyed.state, &opener)?;
    let mover = opener.mover().expect("a moving operator has one").clone();
    let (key, scope, progress) = (keyed.key, keyed.stream.scope(), Progress::new());
    let unit = (name.as_str(), mover.clone());
    let (routed, chunks) =
        router::route(keyed.stream, control, key.clone(), &keyed.state, unit, &progress, true)?;
    let rows_pact = Exchange::<Routed<D>, _>::new(|row: &Routed<D>| u64::from(row.0));
    let chunks_pact = Exchange::<Chunk, _>::new(|chunk: &Chunk| u64::from(chunk.to));
    let groups = keyed.state.key_groups();
    let mut ready = Vec::<(K, D)>::new();
    let told = routed.binary_frontier::<_, Builder<_>, _, _, _, _>(
        chunks,
        rows_pact,
        chunks_pact,
        &name,
        |first, info| {
            let mut intake = prepared.start::<T, D>(scope, &info);
            let activator = scope.activator_for(info.address.clone());
            let waker = scope.activator_for(info.address.clone());
            let mut arrivals = Arrivals::<T, K, D>::new(mover, groups, progress.clone(), waker);
            // What a checkpoint holds fires at its time.
            body.held = Some(first);
            move |(rows, of_rows), (chunks, of_chunks), output| {
                let watermark = watermark(of_rows).min(watermark(of_chunks));
                let mut at = At { body: &mut body, output: &mut *output };
                intake.resume(|right, work| at.apply(right, work));
                // Batch by batch, as grouping by time would not keep their order.
                chunks.for_each(|capability, batch| {
                    for chunk in batch.drain(..) {
                        arrivals.take(capability.retain(0), chunk);
                    }
                });
                arrivals.install(&mut intake, &mut at);
                rows.for_each(|capability, batch| {
                    let right = || capability.retain(0);
                    arrivals.sort(batch.drain(..), &*key, right, &mut ready);
                    if !ready.is_empty() {
                        intake.offer(&capability, &mut ready, |right, work| at.apply(right, work));
                    }
                });
                let limit = limit_of(watermark, &intake).min(arrivals.limit());
                let Some(held) = body.held.clone().filter(|_| intake.takes_timers()) else {
                    return;
                };
                let mut advanced = None;
                intake.attempt(&held, || {
                    advanced = Some(body.advance(limit, &held)?);
                    Ok(())
                });
                output.session(&held).give_iterator(body.out.drain(..));
                let is_last = of_rows.is_empty() && of_chunks.is_empty() && limit == Time::MAX;
                match advanced {
                    Some(Advanced { done: true }) if is_last => body.held = None,
                    Some(Advanced { done: true }) => body.downgrade(limit),
                    Some(Advanced { done: false }) => activator.activate(),
                    // It failed: what holds the times of a failed operator does the rest.
                    None => {}
                }
            }
        },
    );
    Ok(observe(told, &name, progress))
}
