//! The second half of a migratable operator: applies rows to the groups that are here, and installs
//! groups that come.
//!
//! What it keeps true: a row is applied if its group is here by the move that its router knew last before
//! the row's time; else the group is on its way, and the row waits for it with its time. A chunk that is
//! not installed yet holds the time of the move. Timers of a group fire when it is here in full, after
//! the rows that waited for it.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use alluvium::{ErrorKind, Key, KeyGroup, Mover, Result, Standing, Time};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::scheduling::Activator;

use super::progress::{Progress, observe};
use super::router;
use super::{Chunk, Migratable, Routed};
use crate::Changes;
use crate::event_time::{EventTime, watermark};
use crate::intake::Intake;
use crate::key_by::Builder;
use crate::spec::{OperatorState, Spec};
use crate::stateful::{Body, Context, Output, Stateful, begin, limit_of};

/// Chunks installed per schedule.
const INSTALLED: usize = 4;

/// Groups on their way here, and what waits for them.
struct Arrivals<T: EventTime, K, D> {
    mover: Mover,
    /// How often each group had moved when it came here last.
    moves: Vec<u32>,
    chunks: VecDeque<(Capability<T>, Chunk)>,
    progress: Rc<Progress<T>>,
    /// Rows by group, with how often it will have moved.
    waiting: BTreeMap<u16, Vec<Waiting<T, K, D>>>,
    activator: Activator,
}

struct Waiting<T: EventTime, K, D> {
    moves: u32,
    right: Capability<T>,
    rows: Vec<(K, D)>,
}

impl<'scope, T, K, D, F> Stateful<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn stateful<S, R>(
        self,
        spec: Spec,
        open: impl FnOnce(&OperatorState<'_>) -> Result<S>,
        rows: impl FnMut(&mut S, &mut Vec<(K, D)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
        due: impl FnMut(&mut S, &mut Vec<(Time, K)>, &mut Context<'_, T, K, R>) -> Result<()> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        S: 'static,
        R: Clone + 'static,
    {
        let Migratable { keyed, control } = self;
        let name = spec.id().to_owned();
        let opener = OperatorState::moving(&keyed.state, spec)?;
        let (mut body, prepared) =
            begin::<T, K, D, _, _, _, _>(&keyed.state, &opener, open, rows, due)?;
        let mover = opener.mover().expect("a moving operator has one").clone();
        let (key, scope, progress) = (keyed.key, keyed.stream.scope(), Progress::new());
        let unit = (name.as_str(), mover.clone());
        let (routed, chunks) =
            router::route(keyed.stream, control, key.clone(), &keyed.state, unit, &progress)?;
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
                let mut arrivals = Arrivals::<T, K, D> {
                    mover,
                    moves: vec![0; usize::from(groups)],
                    chunks: VecDeque::new(),
                    progress: progress.clone(),
                    waiting: BTreeMap::new(),
                    activator: scope.activator_for(info.address.clone()),
                };
                for group in 0..groups {
                    // What is elsewhere has never been here.
                    if arrivals.mover.standing(KeyGroup(group)).is_ok_and(|at| at != Standing::Here)
                    {
                        arrivals.moves[usize::from(group)] = NEVER;
                    }
                }
                body.hold_restored(first);
                move |(rows, of_rows), (chunks, of_chunks), output| {
                    let watermark = watermark(of_rows).min(watermark(of_chunks));
                    let limit = limit_of(watermark, &intake);
                    intake.resume(|right, work| body.apply(limit, right, work, output));
                    chunks.for_each_time(|capability, batches| {
                        for chunk in batches.flat_map(|batch| batch.drain(..)) {
                            arrivals.chunks.push_back((capability.retain(0), chunk));
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
        Ok(observe(changes, &name, progress))
    }
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
            let Some((right, chunk)) = self.chunks.pop_front() else { return };
            let mut installed = None;
            intake.attempt(&right, || match self.mover.install(&chunk.bytes) {
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
            if installed.is_some() {
                self.progress.install(chunk.from, chunk.bytes.len() as u64);
            }
            match installed {
                Some((_, false)) => {}
                Some((group, true)) => {
                    self.moves[usize::from(group.0)] = chunk.moves;
                    body.hold_for_timers(&right);
                    self.release(group.0, watermark, intake, body, output);
                }
                None => {
                    self.chunks.push_front((right, chunk));
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
