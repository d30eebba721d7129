//! The first half of a migratable operator: sends rows to where their key groups are at their time, and
//! groups to where they are to be.
//!
//! What it keeps true:
//! - A row is sent when the control stream has passed its time: then nobody can move its group at or
//!   before that time any more.
//! - A group is read when nothing before the time of its move is under way in the operator behind, on any
//!   worker; the right to send at that time is held until then, and until the last chunk is sent, so
//!   that the operator behind fires no timer after it.
//! - No move begins at the time of a checkpoint, or after it, before all workers have sealed.
//! - So many bytes are on their way from a worker at most, until who installs them says that it has:
//!   their memory is booked here.
//! - What was sent is forgotten here when the operator behind has passed the time of the move: it holds
//!   that time until the group is installed in full.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use alluvium::config::Reservation;
use alluvium::moving::{Extraction, KeyGroup, Mover, Standing};
use alluvium::{Error, ErrorKind, Key, Result};
use timely::ExchangeData;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{OutputBuilder, OutputBuilderSession};
use timely::dataflow::operators::vec::Broadcast;
use timely::dataflow::operators::{Capability, CapabilityTrait};
use timely::scheduling::Activator;

use super::progress::MigrationProgress;
use super::routes::Routes;
use super::{GroupChunk, MoveGroup, Routed};
use crate::event_time::EventTime;
use crate::intake::fault::is_passing;
use crate::job::worker::WorkerState;

/// Entries of a group that has left that are removed per schedule.
const FORGOTTEN: usize = 1024;
/// Chunks on their way from a worker, at most. An entry that is longer makes its chunk longer, unbooked.
const UNDER_WAY_MAX: u64 = 4;
/// How long storage that gives nothing is left alone.
const DELAY: Duration = Duration::from_millis(5);

/// A group on its way out.
struct Shipment<T: EventTime> {
    group: KeyGroup,
    to: u32,
    moves: u32,
    right: Capability<T>,
    rest: Option<Extraction>,
}

/// Moves that were told, of one time.
struct TimedMoves<T: EventTime> {
    right: Capability<T>,
    moves: BTreeMap<u16, u32>,
}

/// The rows, and the groups.
type Outputs<'scope, T, D> = (StreamVec<'scope, T, Routed<D>>, StreamVec<'scope, T, GroupChunk>);
type RowBuilder<D> = CapacityContainerBuilder<Vec<Routed<D>>>;
type ChunkBuilder = CapacityContainerBuilder<Vec<GroupChunk>>;

/// What the router has to do with the worker's part of the state.
struct Router<T: EventTime> {
    worker: WorkerState,
    operator: String,
    mover: Mover,
    chunk_bytes: usize,
    /// The most bytes that were on their way at a time.
    gauge: Rc<Cell<u64>>,
    /// For the chunks on their way, wherever they are.
    memory: Reservation,
    progress: Rc<MigrationProgress<T>>,
    activator: Activator,
    routes: Routes<T>,
    told: BTreeMap<T, TimedMoves<T>>,
    shipments: VecDeque<Shipment<T>>,
    /// Groups that were sent, and when.
    sent: VecDeque<(T, KeyGroup)>,
    /// Those that have arrived, of which something is left here.
    left: VecDeque<KeyGroup>,
    /// Whether a group that was sent counts where it goes at once: else from when it is there on.
    leaves_at_once: bool,
    is_waiting: bool,
    has_failed: bool,
}

/// Builds the router in front of `mover`'s operator.
pub(super) fn route<'scope, T, K, D, F>(
    rows: StreamVec<'scope, T, D>,
    control: StreamVec<'scope, T, MoveGroup>,
    key: Rc<F>,
    worker: &WorkerState,
    (operator, mover): (&str, Mover),
    progress: &Rc<MigrationProgress<T>>,
    leaves_at_once: bool,
) -> Result<Outputs<'scope, T, D>>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    // Whatever fails does so before there is an operator.
    let (homes, left) = starting_groups(worker, operator, &mover)?;
    let share = usize::try_from(worker.store().memory_bytes() / 64).unwrap_or(usize::MAX);
    let chunk_bytes = share.clamp(1 << 10, 64 << 10);
    let under_way_max = UNDER_WAY_MAX * chunk_bytes as u64;
    let what = format!("pieces of key groups of operator {operator} on their way");
    let memory = worker.store().reserve(under_way_max, &what)?;
    let scope = rows.scope();
    let mut builder = OperatorBuilder::new(format!("{operator}: routes"), scope);
    let mut rows = builder.new_input(rows, Pipeline);
    let mut control = builder.new_input(control.broadcast(), Pipeline);
    let (out_rows, routed) = builder.new_output();
    let (out_chunks, chunks) = builder.new_output();
    let mut out_rows = OutputBuilder::<_, RowBuilder<D>>::from(out_rows);
    let mut out_chunks = OutputBuilder::<_, ChunkBuilder>::from(out_chunks);
    let activator = scope.activator_for(builder.operator_info().address.clone());
    progress.attach(scope.activator_for(builder.operator_info().address.clone()));
    worker.barrier().attach(scope.activator_for(builder.operator_info().address.clone()));
    let mut router = Router {
        gauge: worker.gauge_of_moves(operator),
        routes: Routes::new(homes),
        worker: worker.clone(),
        operator: operator.to_owned(),
        mover,
        chunk_bytes,
        memory,
        progress: progress.clone(),
        activator,
        told: BTreeMap::new(),
        shipments: VecDeque::new(),
        sent: VecDeque::new(),
        left: left.into(),
        leaves_at_once,
        is_waiting: false,
        has_failed: false,
    };
    let mut held: BTreeMap<T, (Capability<T>, Vec<D>)> = BTreeMap::new();
    builder.build_reschedule(move |capabilities| {
        drop(capabilities);
        move |frontiers| {
            let (mut out_rows, mut out_chunks) = (out_rows.activate(), out_chunks.activate());
            control.for_each_time(|capability, batches| {
                let moves = batches.flat_map(|batch| batch.drain(..));
                router.hear(capability.time(), || capability.retain(1), moves);
            });
            let (of_rows, of_control) = (frontiers[0].frontier(), frontiers[1].frontier());
            let is_open = |time: &T| of_control.less_equal(time);
            router.decide(is_open);
            while let Some(first) = held.first_entry() {
                if is_open(first.key()) {
                    break;
                }
                let (capability, mut rows) = first.remove();
                router.send(&capability, capability.time(), rows.drain(..), &*key, &mut out_rows);
            }
            // Batch by batch, as grouping by time would not keep their order.
            rows.for_each(|capability, batch| {
                let (time, rows) = (capability.time(), batch.drain(..));
                if is_open(time) {
                    let right = || (capability.retain(0), Vec::new());
                    held.entry(time.clone()).or_insert_with(right).1.extend(rows);
                } else {
                    router.send(&capability, time, rows, &*key, &mut out_rows);
                }
            });
            router.routes.settle(of_rows.first());
            router.work(&mut out_chunks)
        }
    });
    Ok((routed, chunks))
}

/// Where each group is at the begin, and those of which something may be left on this worker that have
/// gone in the run before.
fn starting_groups(
    worker: &WorkerState,
    operator: &str,
    mover: &Mover,
) -> Result<(Vec<u32>, Vec<KeyGroup>)> {
    worker.check_recorded()?;
    let (homes, mut left) = (worker.homes(operator), Vec::new());
    for (group, home) in (0..).map(KeyGroup).zip(&homes) {
        let standing = mover.standing(group)?;
        if (standing == Standing::Here) != (*home as usize == worker.index()) {
            let message = format!(
                "key group {} has moved: workers whose stores have checkpoints of their own do not know \
                 where it is; take those of the job",
                group.0
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("operator", operator));
        }
        if standing == Standing::Going {
            left.push(group);
        }
    }
    Ok((homes, left))
}

impl<T: EventTime> Router<T> {
    /// Takes moves in. Of several of one group at one time, the one to the last worker counts: all
    /// routers decide alike, in whatever order they hear of them.
    fn hear(
        &mut self,
        time: &T,
        right: impl FnOnce() -> Capability<T>,
        moves: impl Iterator<Item = MoveGroup>,
    ) {
        let (groups, peers) = (self.routes.groups(), self.worker.peers());
        let told = self.told.entry(time.clone());
        let told = told.or_insert_with(|| TimedMoves { right: right(), moves: BTreeMap::new() });
        let mut wrong = None;
        for MoveGroup { group, to } in moves {
            if group.0 >= groups || to as usize >= peers {
                let message = format!(
                    "key group {} cannot move to worker {to}: there are {groups} groups and {peers} \
                     workers",
                    group.0
                );
                wrong = Some(Error::new(ErrorKind::Config, message));
                continue;
            }
            let known = told.moves.entry(group.0).or_insert(to);
            *known = to.max(*known);
        }
        if let Some(error) = wrong {
            self.fail(error);
        }
    }

    /// Changes the routes for times at which nothing more can be told.
    fn decide(&mut self, is_open: impl Fn(&T) -> bool) {
        while let Some(first) = self.told.first_entry() {
            if is_open(first.key()) || self.has_failed {
                return;
            }
            let (time, told) = first.remove_entry();
            for (group, to) in told.moves {
                let Some((before, after)) = self.routes.change(&time, group, to) else { continue };
                if before.to as usize == self.worker.index() {
                    self.shipments.push_back(Shipment {
                        group: KeyGroup(group),
                        to,
                        moves: after.moves,
                        right: told.right.clone(),
                        rest: None,
                    });
                }
            }
        }
    }

    fn send<K: Key, D: ExchangeData>(
        &self,
        right: &impl CapabilityTrait<T>,
        time: &T,
        rows: impl Iterator<Item = D>,
        key: &impl Fn(&D) -> K,
        output: &mut OutputBuilderSession<'_, T, RowBuilder<D>>,
    ) {
        let groups = self.routes.groups();
        output.session(right).give_iterator(rows.map(|row| {
            let group = KeyGroup::of(key(&row).key_hash(), groups);
            let route = self.routes.at(time, group.0);
            (route.to, route.moves, row)
        }));
    }

    /// Sends a chunk of the first group that is due, and removes some of those that have arrived. Says
    /// whether there is more to be done.
    fn work(&mut self, output: &mut OutputBuilderSession<'_, T, ChunkBuilder>) -> bool {
        if self.has_failed {
            return false;
        }
        let mut more = false;
        let done = self.ship(output).and_then(|shipped| Ok(shipped | self.forget()?));
        match done {
            Ok(worked) => {
                more = worked;
                if std::mem::take(&mut self.is_waiting) {
                    self.worker.set_waiting(&self.operator_name(), None);
                }
            }
            Err(error) if is_passing(error.kind()) => {
                self.activator.activate_after(DELAY);
                self.is_waiting = true;
                self.worker.set_waiting(&self.operator_name(), Some(error));
            }
            // Windows are being fired at the time that groups move at: they soon are.
            Err(error) if error.kind() == ErrorKind::InUse => self.activator.activate_after(DELAY),
            Err(error) => self.fail(error),
        }
        if more {
            self.activator.activate();
        }
        let is_busy = !self.shipments.is_empty() || !self.sent.is_empty() || !self.left.is_empty();
        self.progress.await_more(is_busy);
        is_busy
    }

    /// Sends a chunk; says whether it did.
    fn ship(&mut self, output: &mut OutputBuilderSession<'_, T, ChunkBuilder>) -> Result<bool> {
        let Some(first) = self.shipments.front_mut() else { return Ok(false) };
        if !self.progress.has_come_to(first.right.time()) {
            return Ok(false);
        }
        if first.rest.is_none() {
            if !self.worker.barrier().begin(first.right.time().time()) {
                return Ok(false);
            }
            first.rest = Some(self.mover.begin(first.group)?);
        }
        let under_way = self.progress.under_way();
        if under_way > 0 && under_way + self.chunk_bytes as u64 > self.memory.bytes() {
            return Ok(false);
        }
        let rest = first.rest.as_mut().expect("made above");
        if let Some(bytes) = self.mover.next_chunk(rest, self.chunk_bytes)? {
            self.progress.send(bytes.len() as u64);
            self.gauge.set(self.gauge.get().max(self.progress.under_way()));
            let from = self.worker.index() as u32;
            let chunk = GroupChunk { to: first.to, from, moves: first.moves, bytes };
            output.session(&first.right).give(chunk);
        } else {
            if self.leaves_at_once {
                self.mover.leave(first.group)?;
            }
            self.sent.push_back((first.right.time().clone(), first.group));
            self.shipments.pop_front();
        }
        Ok(true)
    }

    /// Removes some of a group that has arrived; says whether there was one. All that have arrived count
    /// where they are, at once.
    fn forget(&mut self) -> Result<bool> {
        while let Some((time, group)) = self.sent.front() {
            if !self.progress.has_passed(time) {
                break;
            }
            self.mover.leave(*group)?;
            self.left.push_back(*group);
            self.sent.pop_front();
        }
        let Some(group) = self.left.front() else { return Ok(false) };
        if self.mover.forget(*group, FORGOTTEN)? {
            self.left.pop_front();
        }
        Ok(true)
    }

    /// Stops moving; the rights to send that are held stay so.
    fn fail(&mut self, error: Error) {
        self.has_failed = true;
        self.worker.fail(error.with("operator", &self.operator));
    }

    /// What the worker shows as waiting.
    fn operator_name(&self) -> String {
        format!("{}: routes", self.operator)
    }
}

impl<T: EventTime> Drop for Router<T> {
    /// The next operator of this id finds the groups where they are now.
    fn drop(&mut self) {
        let homes = std::mem::replace(&mut self.routes, Routes::new(Vec::new())).into_homes();
        self.worker.leave_homes(&self.operator, homes);
    }
}
