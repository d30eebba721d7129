//! The second half of a migratable operator: applies rows to the groups that are here, and installs
//! groups that come.
//!
//! What it keeps true: a row is applied if its group is here by the move that its router knew last before
//! the row's time; else the group is on its way, and the row waits for it with its time. A chunk that is
//! not installed yet holds the time of the move. Timers of a group fire when it is here in full, after
//! the rows that waited for it.

use std::collections::{BTreeMap, VecDeque};

use alluvium::{ErrorKind, Key, KeyGroup, Mover, Result, Standing, Time};
use timely::ExchangeData;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::scheduling::Activator;

use super::router::{self, Progress};
use super::{Chunk, Migratable, Routed};
use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::intake::{Intake, Prepared};
use crate::key_by::Builder;
use crate::spec::{OperatorState, Spec};
use crate::stateful::{Body, Context, Output, limit_of};

/// Chunks installed per schedule.
const INSTALLED: usize = 4;

/// Groups on their way here, and what waits for them.
struct Arrivals<T: EventTime, K, D> {
    mover: Mover,
    /// How often each group had moved when it came here last.
    moves: Vec<u32>,
    chunks: VecDeque<(Capability<T>, u32, Vec<u8>)>,
    /// Rows by group, with how often it will have moved.
    waiting: BTreeMap<u16, Vec<Waiting<T, K, D>>>,
    activator: Activator,
}

struct Waiting<T: EventTime, K, D> {
    moves: u32,
    right: Capability<T>,
    rows: Vec<(K, D)>,
}

pub(super) fn build<'scope, T, K, D, F, S, R>(
    migratable: Migratable<'scope, T, D, F>,
    spec: Spec,
    open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
    rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
) -> Result<Changes<'scope, T, R>>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
    S: 'static,
    R: Clone + 'static,
{
    let Migratable { keyed, control } = migratable;
    let name = spec.id().to_owned();
    let opener = OperatorState::moving(&keyed.state, spec)?;
    let state = open(&opener)?;
    let timers = opener.timers()?;
    let prepared = Prepared::<K>::new::<T, D>(&keyed.state, &opener)?;
    let mover = opener.mover().expect("a moving operator has one").clone();
    let (key, scope, progress) = (keyed.key, keyed.stream.scope(), Progress::new());
    let unit = (name.as_str(), mover.clone());
    let (routed, chunks) =
        router::route(keyed.stream, control, key.clone(), &keyed.state, unit, &progress);
    let rows_pact = Exchange::<Routed<D>, _>::new(|row: &Routed<D>| u64::from(row.0));
    let chunks_pact = Exchange::<Chunk, _>::new(|chunk: &Chunk| u64::from(chunk.0));
    let groups = keyed.state.key_groups();
    let mut body = Body::new(state, timers, rows, due);
    let mut fired: Vec<(Time, K)> = Vec::new();
    let mut ready = Vec::<(K, D)>::new();
    let changes = routed.binary_frontier::<_, Builder<_>, _, _, _, _>(
        chunks,
        rows_pact,
        chunks_pact,
        &name,
        |first, info| {
            let mut intake = prepared.start::<T, D>(scope, &info);
            let mut arrivals = Arrivals::<T, K, D> {
                mover,
                moves: vec![0; usize::from(groups)],
                chunks: VecDeque::new(),
                waiting: BTreeMap::new(),
                activator: scope.activator_for(info.address.clone()),
            };
            for group in 0..groups {
                // What is elsewhere has never been here.
                if arrivals.mover.standing(KeyGroup(group)).is_ok_and(|at| at != Standing::Here) {
                    arrivals.moves[usize::from(group)] = NEVER;
                }
            }
            body.hold_restored(first);
            move |(rows, of_rows), (chunks, of_chunks), output| {
                let watermark = watermark(of_rows).min(watermark(of_chunks));
                let limit = limit_of(watermark, &intake);
                intake.resume(|right, work| body.apply(limit, right, work, output));
                chunks.for_each_time(|capability, batches| {
                    for (_, moves, bytes) in batches.flat_map(|batch| batch.drain(..)) {
                        arrivals.chunks.push_back((capability.retain(0), moves, bytes));
                    }
                });
                arrivals.install(watermark, &mut intake, &mut body, output);
                rows.for_each_time(|capability, batches| {
                    for batch in batches {
                        for (_, moves, row) in batch.drain(..) {
                            let key = key(&row);
                            let group = KeyGroup::of(key.key_hash(), groups).0;
                            if arrivals.moves[usize::from(group)] == moves {
                                ready.push((key, row));
                            } else {
                                let right = || capability.retain(0);
                                arrivals.put_aside(group, moves, right, (key, row));
                            }
                        }
                        if !ready.is_empty() {
                            intake.offer(&capability, &mut ready, |right, work| {
                                body.apply(watermark, right, work, output)
                            });
                        }
                    }
                });
                let limit = limit_of(watermark, &intake);
                body.fire(limit, &mut fired, &mut intake, output);
                body.hold_next(of_rows.is_empty() && of_chunks.is_empty());
            }
        },
    );
    // What comes out shows how far all workers are.
    Ok(changes.unary_frontier::<Builder<_>, _, _, _>(
        Pipeline,
        &format!("{name}: progress"),
        |_, _| {
            move |(changes, frontier), output| {
                changes.for_each_time(|capability, batches| {
                    output.session(&capability).give_containers(batches);
                });
                progress.set(frontier.frontier().first().cloned());
            }
        },
    ))
}

/// Of a group that has not been here.
const NEVER: u32 = u32::MAX;

impl<T: EventTime, K: Key + Ord, D: ExchangeData> Arrivals<T, K, D> {
    /// Keeps a row for a group that is on its way.
    fn put_aside(
        &mut self,
        group: u16,
        moves: u32,
        right: impl Fn() -> Capability<T>,
        row: (K, D),
    ) {
        let waiting = self.waiting.entry(group).or_default();
        let time = right();
        match waiting.last_mut() {
            Some(last) if last.moves == moves && last.right.time() == time.time() => {
                last.rows.push(row);
            }
            _ => waiting.push(Waiting { moves, right: time, rows: vec![row] }),
        }
    }

    /// Installs some chunks, and gives the rows on that waited for a group that is here then.
    fn install<S, R, A, B>(
        &mut self,
        watermark: Time,
        intake: &mut Intake<T, K, D>,
        body: &mut Body<S, T, K, R, A, B>,
        output: &mut Output<'_, T, R>,
    ) where
        R: Clone + 'static,
        A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()>,
        B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()>,
    {
        for _ in 0..INSTALLED {
            if intake.is_closed() {
                return;
            }
            let Some((right, moves, bytes)) = self.chunks.pop_front() else { return };
            let mut installed = None;
            intake.attempt(&right, || match self.mover.install(&bytes) {
                Ok(arrived) => {
                    installed = Some(arrived);
                    Ok(())
                }
                // What was here before is being removed: by the router, in its steps.
                Err(error) if error.kind() == ErrorKind::InUse => {
                    self.activator.activate();
                    Ok(())
                }
                Err(error) => Err(error),
            });
            match installed {
                Some((_, false)) => {}
                Some((group, true)) => {
                    self.moves[usize::from(group.0)] = moves;
                    body.hold_for_timers(&right);
                    self.release(group.0, watermark, intake, body, output);
                }
                None => {
                    self.chunks.push_front((right, moves, bytes));
                    return;
                }
            }
        }
        if !self.chunks.is_empty() {
            self.activator.activate();
        }
    }

    /// Gives the rows on that waited for a group that is here now.
    fn release<S, R, A, B>(
        &mut self,
        group: u16,
        watermark: Time,
        intake: &mut Intake<T, K, D>,
        body: &mut Body<S, T, K, R, A, B>,
        output: &mut Output<'_, T, R>,
    ) where
        R: Clone + 'static,
        A: FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()>,
        B: FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()>,
    {
        let now = self.moves[usize::from(group)];
        let Some(all) = self.waiting.remove(&group) else { return };
        let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.moves == now);
        if !later.is_empty() {
            self.waiting.insert(group, later);
        }
        for Waiting { right, mut rows, .. } in due {
            intake
                .give(&right, &mut rows, |right, work| body.apply(watermark, right, work, output));
        }
    }
}
