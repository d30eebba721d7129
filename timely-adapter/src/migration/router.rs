//! The first half of a migratable operator: sends rows to where their key groups are at their time, and
//! groups to where they are to be.
//!
//! What it keeps true:
//! - A row is sent when the control stream has passed its time: then nobody can move its group at or
//!   before that time any more.
//! - A group is read when nothing before the time of its move is under way in the operator behind, on any
//!   worker; the right to send at that time is held until then, and until the last chunk is sent, so
//!   that the operator behind fires no timer after it.
//! - What was sent is forgotten here when the operator behind has passed the time of the move: it holds
//!   that time until the group is installed in full.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use alluvium::{Error, ErrorKind, Extraction, Key, KeyGroup, Mover, Result};
use timely::ExchangeData;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{OutputBuilder, OutputBuilderSession};
use timely::dataflow::operators::vec::Broadcast;
use timely::dataflow::operators::{Capability, CapabilityTrait};
use timely::scheduling::Activator;

use super::routes::Routes;
use super::{Chunk, MoveGroup, Routed};
use crate::event_time::EventTime;
use crate::fault::is_passing;
use crate::worker::WorkerState;

/// Entries of a group that has left that are removed per schedule.
const FORGOTTEN: usize = 1024;
/// How long storage that gives nothing is left alone.
const DELAY: Duration = Duration::from_millis(5);

/// How far the whole operator is, on all workers, as its output shows on this one.
pub(super) struct Progress<T> {
    /// The least time that may still come out; `None` if none can.
    least: RefCell<Option<T>>,
    /// The router, and whether it waits for a later time.
    router: RefCell<Option<Activator>>,
    is_awaited: Cell<bool>,
}

impl<T: EventTime> Progress<T> {
    pub fn new() -> Rc<Self> {
        let least = RefCell::new(Some(T::minimum()));
        Rc::new(Self { least, router: RefCell::new(None), is_awaited: Cell::new(false) })
    }

    /// The output has come to `least`.
    pub fn set(&self, least: Option<T>) {
        *self.least.borrow_mut() = least;
        if self.is_awaited.get() {
            self.router.borrow().iter().for_each(Activator::activate);
        }
    }

    /// Whether everything before `time` is done.
    fn has_come_to(&self, time: &T) -> bool {
        self.least.borrow().as_ref().is_none_or(|least| least >= time)
    }

    /// Whether everything at `time` is done.
    fn has_passed(&self, time: &T) -> bool {
        self.least.borrow().as_ref().is_none_or(|least| least > time)
    }
}

/// A group on its way out.
struct Shipment<T: EventTime> {
    group: KeyGroup,
    to: u32,
    moves: u32,
    right: Capability<T>,
    rest: Option<Extraction>,
}

/// Moves that were told, of one time.
struct Told<T: EventTime> {
    right: Capability<T>,
    moves: BTreeMap<u16, u32>,
}

type Rows<D> = CapacityContainerBuilder<Vec<Routed<D>>>;
type Chunks = CapacityContainerBuilder<Vec<Chunk>>;

/// What the router has to do with the worker's part of the state.
struct Router<T: EventTime> {
    worker: WorkerState,
    operator: String,
    mover: Mover,
    chunk_bytes: usize,
    progress: Rc<Progress<T>>,
    activator: Activator,
    routes: Routes<T>,
    told: BTreeMap<T, Told<T>>,
    shipments: VecDeque<Shipment<T>>,
    /// Groups that were sent, and when.
    sent: VecDeque<(T, KeyGroup)>,
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
    progress: &Rc<Progress<T>>,
) -> (StreamVec<'scope, T, Routed<D>>, StreamVec<'scope, T, Chunk>)
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    let scope = rows.scope();
    let mut builder = OperatorBuilder::new(format!("{operator}: routes"), scope);
    let mut rows = builder.new_input(rows, Pipeline);
    let mut control = builder.new_input(control.broadcast(), Pipeline);
    let (out_rows, routed) = builder.new_output();
    let (out_chunks, chunks) = builder.new_output();
    let mut out_rows = OutputBuilder::<_, Rows<D>>::from(out_rows);
    let mut out_chunks = OutputBuilder::<_, Chunks>::from(out_chunks);
    let activator = scope.activator_for(builder.operator_info().address.clone());
    *progress.router.borrow_mut() =
        Some(scope.activator_for(builder.operator_info().address.clone()));
    let share = worker.store().memory_bytes() / 64;
    let mut router = Router {
        routes: Routes::new(worker.key_groups(), scope.peers()),
        worker: worker.clone(),
        operator: operator.to_owned(),
        mover,
        chunk_bytes: usize::try_from(share).unwrap_or(usize::MAX).clamp(1 << 10, 64 << 10),
        progress: progress.clone(),
        activator,
        told: BTreeMap::new(),
        shipments: VecDeque::new(),
        sent: VecDeque::new(),
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
            rows.for_each_time(|capability, batches| {
                let time = capability.time();
                let rows = batches.flat_map(|batch| batch.drain(..));
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
    (routed, chunks)
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
        let told = told.or_insert_with(|| Told { right: right(), moves: BTreeMap::new() });
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
        output: &mut OutputBuilderSession<'_, T, Rows<D>>,
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
    fn work(&mut self, output: &mut OutputBuilderSession<'_, T, Chunks>) -> bool {
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
            Err(error) => self.fail(error),
        }
        if more {
            self.activator.activate();
        }
        let is_busy = !self.shipments.is_empty() || !self.sent.is_empty();
        self.progress.is_awaited.set(is_busy);
        is_busy
    }

    /// Sends a chunk; says whether it did.
    fn ship(&mut self, output: &mut OutputBuilderSession<'_, T, Chunks>) -> Result<bool> {
        let Some(first) = self.shipments.front_mut() else { return Ok(false) };
        if !self.progress.has_come_to(first.right.time()) {
            return Ok(false);
        }
        if first.rest.is_none() {
            first.rest = Some(self.mover.begin(first.group)?);
        }
        let rest = first.rest.as_mut().expect("made above");
        if let Some(bytes) = self.mover.next_chunk(rest, self.chunk_bytes)? {
            output.session(&first.right).give((first.to, first.moves, bytes));
        } else {
            self.sent.push_back((first.right.time().clone(), first.group));
            self.shipments.pop_front();
        }
        Ok(true)
    }

    /// Removes some of a group that has arrived; says whether there was one.
    fn forget(&mut self) -> Result<bool> {
        let Some((time, group)) = self.sent.front() else { return Ok(false) };
        if !self.progress.has_passed(time) {
            return Ok(false);
        }
        if self.mover.forget(*group, FORGOTTEN)? {
            self.sent.pop_front();
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
